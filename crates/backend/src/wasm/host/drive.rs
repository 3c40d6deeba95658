//! The task of a host: it reads what the host says, looks at the clock, and sees it end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_core::end::EndReason;
use leasehold_core::id::RunId;
use leasehold_core::record::Observed;
use leasehold_protocol::socket::FrameError;
use leasehold_protocol::wasm::{Frame, FromHost, Reader, Refused, Report, printable};
use tokio::time::MissedTickBehavior;

use super::books::{Books, Held, Phase};
use super::{Common, Got, Host, locked, read_once};
use crate::error::BackendError;
use crate::execution::{Execution, RunEvent};
use crate::seam::Doing;
use crate::wasm::run::{Breach, Over, SharedRun, set_back, unseen};

/// Pause between two looks at the clock, at most. What is late is late by seconds.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Reads of one socket before others get their turn.
const READS_MAX: usize = 16;
/// How long a host that was ended may take to be seen gone.
const GONE: Duration = Duration::from_secs(120);
/// Most characters of what a host says.
const TEXT_MAX: usize = 500;

/// What ends the process of a host.
pub(super) trait Grip: Send + Sync {
    fn end(&self) -> Doing<'_, Result<(), BackendError>>;
}

/// Why a host is over.
#[derive(Debug)]
enum Stop {
    /// It was no more of use.
    Retired,
    /// Its end of the socket is closed.
    Closed,
    /// It broke the protocol or failed, in words.
    Broken(String),
    /// It did not end this run in time.
    Late(u32),
    /// Its sandbox ended, in words.
    Ended(String),
}

impl Stop {
    fn phrase(&self) -> String {
        match self {
            Self::Retired => "it was retired".to_owned(),
            Self::Closed => "it went away".to_owned(),
            Self::Broken(why) => format!("it broke the protocol: {why}"),
            Self::Late(_) => "it did not end another run in time".to_owned(),
            Self::Ended(why) => why.clone(),
        }
    }
}

impl From<Breach> for Stop {
    fn from(breach: Breach) -> Self {
        Self::Broken(breach.0)
    }
}

/// Carries a host to its end, and sees it gone.
pub(super) async fn drive(
    host: Arc<Host>,
    mut reader: Reader,
    mut execution: Execution,
    grip: Box<dyn Grip>,
) {
    let stop = carry(&host, &mut reader, &mut execution).await;
    let ending = Instant::now();
    let left = {
        let mut books = locked(&host.books);
        books.phase = Phase::Over;
        let numbers: Vec<u32> = books.runs.keys().copied().collect();
        let left = numbers
            .into_iter()
            .filter_map(|number| Some((number, books.release(number)?.0)));
        left.collect::<Vec<_>>()
    };
    // Where it cannot be asked to end it, its supervisor is gone, and it is too.
    let _ = grip.end().await;
    let (why, observed) = gone(&mut execution, &stop).await;
    for (number, held) in left {
        let over = match stop {
            Stop::Late(late) if late == number => Over::Late,
            _ => Over::Lost(why.clone()),
        };
        finish(&host.common, held, over, observed.clone(), ending.elapsed());
    }
    host.common.freed.notify_waiters();
}

/// Waits until a host that was ended is seen gone. Tells why it ended, where nobody here knows better, and what
/// was seen.
async fn gone(execution: &mut Execution, stop: &Stop) -> (String, Observed) {
    let mut why = stop.phrase();
    let seen = tokio::time::timeout(GONE, async {
        while let Some(Ok(event)) = execution.next().await {
            match event {
                RunEvent::Ended(record) if matches!(stop, Stop::Closed) => {
                    why = ended(record.end.as_ref());
                }
                RunEvent::Cleaned(record) => return record.cleanup,
                _ => {}
            }
        }
        None
    });
    let observed = seen.await.ok().flatten();
    (why, observed.unwrap_or_else(unseen))
}

fn ended(end: Option<&EndReason>) -> String {
    match end {
        // By itself: it says that it is fine, and its socket is closed all the same.
        Some(EndReason::Completed) | None => "it went away".to_owned(),
        Some(end) => end.phrase(),
    }
}

/// Tells everybody who cares that a run is over.
fn finish(common: &Common, held: Held, over: Over, observed: Observed, took: Duration) {
    if let Some((id, run)) = held.run {
        run.end(over);
        run.removed(observed, took);
        common.runs.over(&id);
    }
}

/// The end of a run whose host was over before it began.
pub(super) fn lost(common: &Common, id: &RunId, run: &SharedRun) {
    run.end(Over::Lost("it ended before the run began".to_owned()));
    run.removed(set_back(), Duration::ZERO);
    common.runs.over(id);
}

async fn carry(host: &Host, reader: &mut Reader, execution: &mut Execution) -> Stop {
    let mut look = tokio::time::interval((host.common.bounds.slack / 4).min(LOOK_EVERY));
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        if let Some(stop) = host.due() {
            return stop;
        }
        let waits = !locked(&host.out).is_empty();
        tokio::select! {
            biased;
            ready = host.socket.readable() => {
                if let Err(error) = ready.map_err(|_| Stop::Closed).and_then(|()| host.hear(reader)) {
                    return error;
                }
            }
            ready = host.socket.writable(), if waits => {
                let sent = ready.and_then(|()| locked(&host.out).flush(&host.socket));
                if sent.is_err() {
                    return Stop::Closed;
                }
            }
            () = host.more.notified() => {}
            event = execution.next() => match event {
                Some(Ok(RunEvent::Ended(record))) => return Stop::Ended(ended(record.end.as_ref())),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Stop::Ended(error.to_string()),
                None => return Stop::Ended("its supervisor went away".to_owned()),
            },
            _ = look.tick() => {}
        }
    }
}

/// What came of one frame.
enum Heard {
    /// A run has more output.
    Output(u32),
    /// A run is over.
    Over(Held, Over),
    Nothing,
}

impl Host {
    /// Whether it has to end now.
    fn due(&self) -> Option<Stop> {
        let mut books = locked(&self.books);
        let now = Instant::now();
        let late = books.runs.iter();
        let late = late.filter(|(_, held)| held.deadline.is_some_and(|deadline| deadline < now));
        if let Some((number, _)) = late.min_by_key(|(_, held)| held.deadline) {
            return Some(Stop::Late(*number));
        }
        let empty = books.runs.is_empty();
        let idle = books.owned && now - books.idle_since > self.common.bounds.idle;
        if empty && idle && books.phase == Phase::Open {
            books.phase = Phase::Retiring;
        }
        (empty && books.phase == Phase::Retiring).then_some(Stop::Retired)
    }

    /// Takes what the socket has.
    fn hear(&self, reader: &mut Reader) -> Result<(), Stop> {
        let mut told: Vec<u32> = Vec::new();
        let mut freed = false;
        for _ in 0..READS_MAX {
            if !self.fill(reader)? {
                break;
            }
            while let Some(frame) = reader.take().map_err(|error| broken(&error))? {
                match self.on_frame(&frame)? {
                    Heard::Nothing => {}
                    Heard::Output(number) if told.contains(&number) => {}
                    Heard::Output(number) => told.push(number),
                    Heard::Over(held, over) => {
                        finish(&self.common, held, over, set_back(), Duration::ZERO);
                        freed = true;
                    }
                }
            }
        }
        for number in told {
            // One that is over has told of its output already.
            if let Some(run) = self.run(number) {
                run.kept.tell_output();
            }
        }
        if freed {
            self.common.freed.notify_waiters();
        }
        Ok(())
    }

    fn run(&self, number: u32) -> Option<Arc<SharedRun>> {
        let books = locked(&self.books);
        let (_, run) = books.runs.get(&number)?.run.as_ref()?;
        Some(Arc::clone(run))
    }

    /// Reads once. Says whether there was anything.
    fn fill(&self, reader: &mut Reader) -> Result<bool, Stop> {
        match read_once(&self.socket, reader) {
            Ok(Got::Bytes) => Ok(true),
            Ok(Got::Nothing) => Ok(false),
            Ok(Got::End) | Err(FrameError::Io(_)) => Err(Stop::Closed),
            Err(error) => Err(broken(&error)),
        }
    }

    fn on_frame(&self, frame: &Frame) -> Result<Heard, Stop> {
        let kind = FromHost::of(frame.kind);
        let number = frame.id;
        match kind {
            Some(FromHost::Stdout | FromHost::Stderr) => {
                let run = self.run(number).ok_or_else(|| stranger(number))?;
                if frame.body.is_empty() {
                    return Err(nothing("output"));
                }
                let which = usize::from(kind == Some(FromHost::Stderr));
                run.output(which, &frame.body)?;
                Ok(Heard::Output(number))
            }
            Some(FromHost::Ended) => {
                let report: Report = frame.read().map_err(|error| broken(&error))?;
                self.on_end(number, report)
            }
            Some(FromHost::StdinTaken) => {
                self.on_taken(number, &frame.body).map(|()| Heard::Nothing)
            }
            Some(FromHost::Refused) => {
                let refused: Refused = frame.read().map_err(|error| broken(&error))?;
                self.on_refusal(number, printable(&refused.message, TEXT_MAX))
            }
            Some(FromHost::Loaded) if locked(&self.books).answered(number) => Ok(Heard::Nothing),
            Some(FromHost::Loaded | FromHost::Ready) | None => {
                let what = format!("a frame of kind {} for {number}", frame.kind);
                Err(Stop::Broken(format!("{what} was not asked for")))
            }
        }
    }

    fn on_end(&self, number: u32, report: Report) -> Result<Heard, Stop> {
        let mut books = locked(&self.books);
        if report.crashed.is_some() && books.phase == Phase::Open {
            // What failed in it once may be worse than it looks.
            books.phase = Phase::Retiring;
        }
        let begun = books
            .runs
            .get(&number)
            .is_some_and(|held| held.run.is_some());
        let released = if begun { books.release(number) } else { None };
        let (held, _) = released.ok_or_else(|| stranger(number))?;
        Ok(Heard::Over(held, Over::Report(Box::new(report))))
    }

    fn on_refusal(&self, number: u32, message: String) -> Result<Heard, Stop> {
        let mut books = locked(&self.books);
        if Books::names_module(number) {
            if !books.answered(number) {
                return Err(Stop::Broken(format!(
                    "it refused module {number}, which it was not sent"
                )));
            }
            // It may have made room for another one meanwhile.
            books.refuse(number, message);
            return Ok(Heard::Nothing);
        }
        let begun = books
            .runs
            .get(&number)
            .is_some_and(|held| held.run.is_some());
        let released = if begun { books.release(number) } else { None };
        let (held, unusable) = released.ok_or_else(|| stranger(number))?;
        let over = match unusable {
            Some(why) => Over::Unusable(why),
            None => Over::Lost(format!("it refused the run: {message}")),
        };
        Ok(Heard::Over(held, over))
    }

    fn on_taken(&self, number: u32, body: &[u8]) -> Result<(), Stop> {
        let taken: [u8; 4] = body
            .try_into()
            .map_err(|_| Stop::Broken(format!("a count of {} bytes", body.len())))?;
        let taken = u64::from(u32::from_le_bytes(taken));
        if taken == 0 {
            return Err(nothing("input"));
        }
        let mut frames = Vec::new();
        let mut books = locked(&self.books);
        let held = books.runs.get_mut(&number);
        let feed = held.and_then(|held| held.feed.as_mut());
        let feed = feed.ok_or_else(|| stranger(number))?;
        feed.ahead = feed.ahead.checked_sub(taken).ok_or_else(|| {
            Stop::Broken(format!(
                "run {number} took {taken} bytes that it was not sent"
            ))
        })?;
        feed.push(number, &mut frames);
        drop(books);
        if !frames.is_empty() {
            self.send(frames);
        }
        Ok(())
    }
}

/// Frames that say nothing are without end: what they cost would be bounded by nothing.
fn nothing(of: &str) -> Stop {
    Stop::Broken(format!("it told of no {of}"))
}

fn stranger(number: u32) -> Stop {
    Stop::Broken(format!("it told of run {number}, which it does not have"))
}

fn broken(error: &FrameError) -> Stop {
    let mut why = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        why = format!("{why}: {error}");
        cause = error.source();
    }
    Stop::Broken(why)
}

#[cfg(test)]
mod tests;
