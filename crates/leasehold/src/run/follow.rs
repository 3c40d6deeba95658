//! One run as it happens: notices in, bytes out, signals to cancellations, until its outcome.
//!
//! A single loop over `poll`; it blocks nowhere else, so a slow terminal, a silent command and an
//! impatient person are all served at once.

use std::os::fd::{AsFd, OwnedFd};

use leasehold_backend::process::client::{Client, ClientError};
use leasehold_core::end::CancelledBy;
use leasehold_core::error::PublicError;
use leasehold_core::id::RunId;
use leasehold_core::record::RunRecord;
use leasehold_protocol::supervisor::{Event, Notice, Request};
use rustix::event::{PollFd, PollFlags, poll};

use super::signals::Signals;
use super::stream::{Feed, Pump, Step};
use super::tty;
use crate::fault::Fault;
use crate::place::client_fault;
use crate::voice;

/// What a run is joined to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Joint {
    /// Its output is printed.
    pub(crate) print: bool,
    /// Our standard input is passed on.
    pub(crate) feed: bool,
    /// It has a terminal that is joined to ours.
    pub(crate) terminal: bool,
    /// If it turns out to have a terminal, and there is one here, join them.
    pub(crate) take_terminal: bool,
    /// Wait until its removal was observed.
    pub(crate) wait_cleanup: bool,
    /// Where its output is taken up.
    pub(crate) from: From,
}

/// Where each output is taken up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    /// At its first byte.
    Start,
    /// At this byte, whether it is there yet or not.
    Byte(u64),
    /// Behind what is there when we join.
    End,
}

impl From {
    /// Reads `start`, `end` or a byte's number.
    ///
    /// # Errors
    /// When it is none of them.
    pub(crate) fn parse(text: &str) -> Result<Self, Fault> {
        match text {
            "start" => Ok(Self::Start),
            "end" => Ok(Self::End),
            number => number.parse().map(Self::Byte).map_err(|_| {
                let shown = voice::clean(number);
                Fault::usage(format!("`--from` is `{shown}`"))
                    .hint("give `start`, `end` or the number of a byte, the first being 0")
            }),
        }
    }
}

/// How the following ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The outcome is fixed.
    Recorded(Box<RunRecord>),
    /// It was refused before anything was made.
    Refused(PublicError),
    /// The supervisor went away.
    Lost,
    /// The person did not want to wait any longer.
    Left,
}

/// What a poll slot stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Notices,
    Signals,
    Output(usize),
    Input,
}

/// Follows one run.
pub(crate) struct Follow<'a> {
    client: Client,
    signals: &'a Signals,
    tag: u64,
    run: RunId,
    joint: Joint,
    pumps: Vec<Pump>,
    feed: Option<Feed>,
    master: Option<OwnedFd>,
    raw: Option<tty::Raw>,
    /// How often the end was asked for.
    asked: u32,
    record: Option<Box<RunRecord>>,
    cleaned: bool,
}

impl<'a> Follow<'a> {
    /// Prepares to follow the call `tag` of `client`.
    pub(crate) fn new(
        client: Client,
        signals: &'a Signals,
        tag: u64,
        run: RunId,
        joint: Joint,
    ) -> Self {
        Self {
            client,
            signals,
            tag,
            run,
            joint,
            pumps: Vec::new(),
            feed: None,
            master: None,
            raw: None,
            asked: 0,
            record: None,
            cleaned: false,
        }
    }

    /// Goes on with another supervisor, which was asked with the call `tag`. What was printed is not
    /// printed again.
    pub(crate) fn take_up(&mut self, client: Client, tag: u64) {
        self.client = client;
        self.tag = tag;
    }

    /// Follows until the outcome is known and everything is printed.
    ///
    /// # Errors
    /// When the supervisor breaks the protocol or a descriptor fails us.
    pub(crate) fn until_over(&mut self) -> Result<Outcome, Fault> {
        loop {
            if let Some(outcome) = self.notices()? {
                return Ok(outcome);
            }
            let known = self.record.is_some() && (self.cleaned || !self.joint.wait_cleanup);
            if known && !self.pumps.iter().any(Pump::pending) {
                self.raw = None;
                self.end_open_line();
                if let Some(record) = self.record.take() {
                    return Ok(Outcome::Recorded(record));
                }
            }
            for source in self.wait()? {
                let left = match source {
                    Source::Notices => false,
                    Source::Signals => self.signalled()?,
                    Source::Output(at) => self.pump(at)?,
                    Source::Input => self.feed()?,
                };
                if left {
                    return Ok(Outcome::Left);
                }
            }
        }
    }

    /// Takes every notice that is there.
    fn notices(&mut self) -> Result<Option<Outcome>, Fault> {
        loop {
            match self.client.next_notice(Some(std::time::Instant::now())) {
                Ok(None) => return Ok(None),
                Ok(Some((notice, fds))) => {
                    if let Some(outcome) = self.notice(notice, fds)? {
                        return Ok(Some(outcome));
                    }
                }
                Err(ClientError::Gone) => {
                    // The outcome is recorded; only the observation of its removal is missing.
                    return Ok(Some(match self.record.take() {
                        Some(record) if !self.joint.wait_cleanup => Outcome::Recorded(record),
                        _ => {
                            self.feed = None;
                            self.raw = None;
                            Outcome::Lost
                        }
                    }));
                }
                Err(error) => return Err(client_fault(error)),
            }
        }
    }

    fn notice(&mut self, notice: Notice, fds: Vec<OwnedFd>) -> Result<Option<Outcome>, Fault> {
        if notice.tag != self.tag {
            return Ok(None);
        }
        match notice.event {
            Event::Accepted { input, .. } => self.accepted(input, fds)?,
            Event::Refused(error) => return Ok(Some(Outcome::Refused(error))),
            Event::Output { stdout, stderr } => {
                let first = std::mem::replace(&mut self.joint.from, From::Start);
                for (pump, bytes) in self.pumps.iter_mut().zip([stdout, stderr]) {
                    if first == From::End {
                        pump.skip_to(bytes);
                    }
                    pump.announce(bytes);
                }
            }
            Event::Ended(record) => self.recorded(record),
            Event::Cleaned(record) => {
                self.cleaned = true;
                self.recorded(record);
            }
            Event::Stage(_)
            | Event::Hello { .. }
            | Event::Provisioned { .. }
            | Event::Channel
            | Event::Kept { .. }
            | Event::Usage(_)
            | Event::Destroyed(_)
            | Event::Status { .. }
            | Event::Done => {}
        }
        Ok(None)
    }

    fn accepted(&mut self, input: bool, fds: Vec<OwnedFd>) -> Result<(), Fault> {
        let failed =
            |error: std::io::Error| Fault::host("cannot join the run's streams").because(&error);
        let mut fds = fds.into_iter();
        let (Some(stdout), Some(stderr)) = (fds.next(), fds.next()) else {
            return Err(Fault::host("the supervisor gave no output streams"));
        };
        if self.joint.take_terminal && input && tty::size().is_some() {
            self.joint.terminal = true;
            self.joint.feed = true;
        }
        if self.joint.print && self.pumps.is_empty() {
            let person = !self.joint.terminal;
            let out = Pump::new(stdout, std::io::stdout().as_fd(), person).map_err(failed)?;
            let err = Pump::new(stderr, std::io::stderr().as_fd(), person).map_err(failed)?;
            self.pumps = vec![out, err];
            if let From::Byte(byte) = self.joint.from {
                self.pumps.iter_mut().for_each(|pump| pump.skip_to(byte));
            }
        }
        let Some(sink) = fds.next().filter(|_| input && self.joint.feed) else {
            return Ok(());
        };
        if self.joint.terminal {
            let master = sink.try_clone().map_err(failed)?;
            tty::resize(&master);
            self.master = Some(master);
            self.raw = Some(tty::Raw::enter()?);
        }
        let feed = Feed::new(std::io::stdin().as_fd(), sink, self.joint.terminal);
        self.feed = Some(feed.map_err(failed)?);
        Ok(())
    }

    fn recorded(&mut self, record: Box<RunRecord>) {
        let kept = [record.stdout.kept, record.stderr.kept];
        for (pump, bytes) in self.pumps.iter_mut().zip(kept) {
            pump.complete(bytes);
        }
        self.feed = None;
        self.record = Some(record);
    }

    /// Waits for anything, and says what is ready.
    fn wait(&self) -> Result<Vec<Source>, Fault> {
        let mut sources = vec![Source::Notices, Source::Signals];
        let mut polled = vec![
            PollFd::from_borrowed_fd(self.client.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
        ];
        for (at, pump) in self
            .pumps
            .iter()
            .enumerate()
            .filter(|(_, pump)| pump.pending())
        {
            sources.push(Source::Output(at));
            polled.push(PollFd::from_borrowed_fd(pump.as_fd(), PollFlags::OUT));
        }
        if let Some((fd, flags)) = self.feed.as_ref().and_then(Feed::waits_for) {
            sources.push(Source::Input);
            polled.push(PollFd::from_borrowed_fd(fd, flags));
        }
        match poll(&mut polled, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Fault::host("cannot wait for the run").because(&errno)),
        }
        let ready = polled.iter().map(|slot| !slot.revents().is_empty());
        Ok(sources
            .into_iter()
            .zip(ready)
            .filter_map(|(source, ready)| ready.then_some(source))
            .collect())
    }

    /// Says whether the person leaves.
    fn signalled(&mut self) -> Result<bool, Fault> {
        let asked = self.signals.asked();
        if asked.resized
            && let Some(master) = &self.master
        {
            tty::resize(master);
        }
        if asked.end { self.end() } else { Ok(false) }
    }

    /// Asks for the end: the first time with grace, the second at once; the third time we leave.
    fn end(&mut self) -> Result<bool, Fault> {
        self.asked += 1;
        if self.asked > 2 || self.record.is_some() {
            return Ok(true);
        }
        let request = Request::Cancel {
            run: self.run.clone(),
            by: CancelledBy::Caller,
            at_once: self.asked == 2,
        };
        match self.client.call(request, &[]) {
            // That it is gone is seen, and handled, when the notices are read.
            Ok(_) | Err(ClientError::Gone) => Ok(false),
            Err(error) => Err(client_fault(error)),
        }
    }

    fn pump(&mut self, at: usize) -> Result<bool, Fault> {
        let step = self.pumps[at]
            .step()
            .map_err(|error| Fault::host("cannot pass the output on").because(&error))?;
        if step == Step::ReaderGone && at == 0 && self.record.is_none() && self.asked == 0 {
            voice::note("standard output was closed, so the run is cancelled");
            return self.end();
        }
        Ok(false)
    }

    fn feed(&mut self) -> Result<bool, Fault> {
        let Some(feed) = &mut self.feed else {
            return Ok(false);
        };
        match feed.step() {
            Ok(true) => self.end(),
            Ok(false) => Ok(false),
            Err(error) => {
                voice::note(&format!(
                    "standard input failed: {error}; the command sees its end"
                ));
                Ok(false)
            }
        }
    }

    /// What we say next should not stand behind the command's last words on the same line.
    fn end_open_line(&self) {
        let stderr_is_terminal = rustix::termios::isatty(std::io::stderr());
        if stderr_is_terminal && self.pumps.iter().any(Pump::line_is_open) {
            let _ = std::io::Write::write_all(&mut std::io::stderr(), b"\n");
        }
    }
}
