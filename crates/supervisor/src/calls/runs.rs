//! Calls about runs: begin one, follow it, take it up again, end it.

use std::os::fd::OwnedFd;
use std::time::Instant;

use leasehold_core::end::{CancelledBy, Observations};
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::RunId;
use leasehold_core::record::RunRecord;
use leasehold_core::spec::{ExecSpec, SandboxSpec};
use leasehold_core::stage::Stage;
use leasehold_protocol::supervisor::{Event, Supplied, Target};

use super::{Answer, new_sandbox_id, refuse, unix_ms};
use crate::admit::{Admitted, Beside, admit, contract};
use crate::image;
use crate::log;
use crate::make::Came;
use crate::records::{Blank, RecordError};
use crate::run::{Collection, Exec, Run};
use crate::server::Server;
use crate::source::Key;
use crate::spool::Spool;
use crate::supplied::{self, Supply};

/// Most callers that follow one run.
const FOLLOWERS_MAX: usize = 16;

/// Whether a command and a supplied program can go together, and with such a sandbox.
fn fits_supply(spec: &SandboxSpec, exec: &ExecSpec, told: Option<&Supplied>) -> Answer {
    let invalid = |message: &str| Err(refuse(ErrorKind::Invalid, message));
    match (told, &exec.module) {
        (None, None) => Ok(()),
        (None, Some(_)) => {
            invalid("`module` needs the program that runs it, and none was supplied")
        }
        (Some(told), Some(_)) if !told.report => {
            invalid("`module` needs a supplied program that reports: nobody else knows its end")
        }
        (Some(_), _) if exec.tty.is_some() => invalid("a supplied program takes no terminal"),
        (Some(_), _) if spec.image.is_some() => {
            invalid("a supplied program takes no image: it brings all it needs")
        }
        (Some(_), _) if spec.warm.is_some() => {
            invalid("a waiting interpreter becomes no supplied program")
        }
        (Some(_), _) => Ok(()),
    }
}

/// Where a run is to be, and what came along.
struct Wanted {
    spec: SandboxSpec,
    /// The sandbox that was provisioned for it.
    parked: Option<Key>,
    came: Came,
    supply: Option<Supply>,
}

impl Server {
    /// Takes every descriptor of a call before anything can refuse it: the next call has its own.
    fn wanted(
        &mut self,
        from: Key,
        target: &Target,
        supplied: Option<Supplied>,
    ) -> Result<Wanted, PublicError> {
        let (directory, image) = match target {
            Target::New(spec) => (
                self.directory(from, spec),
                image::take(self.connections.get_mut(&from), spec),
            ),
            Target::Parked(_) => (Ok(None), Ok(None)),
        };
        let supply = supplied.map(|told| supplied::take(self.connections.get_mut(&from), told));
        let (directory, image, supply) = (directory?, image?, supply.transpose()?);
        let (spec, parked) = match target {
            Target::New(spec) => (spec.clone(), None),
            Target::Parked(id) => {
                let key = self.parked(id)?;
                (self.sandboxes[&key].spec.clone(), Some(key))
            }
        };
        Ok(Wanted {
            spec,
            parked,
            came: Came { directory, image },
            supply,
        })
    }

    /// Checks what is wanted, and what this host can hold of it.
    fn admitted(&self, wanted: &Wanted, exec: &ExecSpec) -> Result<Admitted, PublicError> {
        exec.check()?;
        let told = wanted.supply.as_ref().map(|supply| &supply.told);
        fits_supply(&wanted.spec, exec, told)?;
        crate::collector::check(&exec.artifacts)
            .map_err(|error| refuse(ErrorKind::Invalid, format!("`artifact` {error}")))?;
        let beside = Beside::of(exec);
        let admitted = match wanted.parked {
            Some(key) => Admitted {
                beside,
                ..self.sandboxes[&key].admitted.clone()
            },
            None => {
                self.room()?;
                let directory = wanted.came.directory.is_some();
                admit(&self.host, &wanted.spec, directory, beside)?
            }
        };
        if self.stopping {
            return Err(refuse(
                ErrorKind::Unavailable,
                "the supervisor is about to end",
            ));
        }
        Ok(admitted)
    }

    pub(super) fn run(
        &mut self,
        from: Key,
        tag: u64,
        run: RunId,
        target: Target,
        exec: ExecSpec,
        supplied: Option<Supplied>,
    ) -> Answer {
        let wanted = self.wanted(from, &target, supplied)?;
        if self.run_ids.contains_key(&run) {
            let error = RecordError::Exists(run);
            return Err(refuse(ErrorKind::Exists, error.to_string()));
        }
        let admitted = self.admitted(&wanted, &exec)?;
        let Wanted {
            spec,
            parked,
            came,
            supply,
        } = wanted;
        let warm = parked.or_else(|| self.claimable(&spec, &admitted));
        let sandbox = match warm {
            Some(key) => {
                self.place(key);
                self.sandboxes[&key].rouse();
                self.sandboxes[&key].id.clone()
            }
            None => new_sandbox_id(),
        };
        let begun = Instant::now();
        let range = warm.and_then(|key| self.sandboxes[&key].leased_range());
        let told = supply.as_ref().map(|supply| &supply.told);
        let contract = contract(&self.host, &admitted, &spec, &exec, range, told);
        let bound = told.is_some_and(|told| told.bound);
        let record = RunRecord {
            contract: Some(contract),
            warm: warm.is_some(),
            bound,
            ..RunRecord::accepted(run.clone(), sandbox.clone(), unix_ms())
        };
        let blank = warm.and_then(|key| self.sandboxes.get_mut(&key)?.blank.take());
        let key = self.begin(record, exec, &admitted, begun, blank)?;
        if let Some(run) = self.runs.get_mut(&key) {
            run.supply = supply;
            run.bound = bound.then_some(from);
        }
        self.follow(key, from, tag);
        self.open_input(key);
        if warm.is_none() && self.runs[&key].exec.tty.is_none() {
            self.tell_accepted(key);
        }
        match warm {
            Some(sandbox) => self.claim(key, sandbox, spec, admitted),
            None => self.make_for_run(key, sandbox, spec, admitted, came),
        }
        self.step(key);
        self.name_run(key);
        // Nobody waits for the rest as for the command, which is on its way. With a terminal a run is
        // accepted when that is there; one that is over already was.
        let told = |run: &Run| run.accepted || run.exec.tty.is_some();
        if self.runs.get(&key).is_some_and(|run| !told(run)) {
            self.tell_accepted(key);
        }
        Ok(())
    }

    /// Gives the record of a run its own name, if it has none yet. A run whose record nobody could find is
    /// ended.
    pub(crate) fn name_run(&mut self, key: Key) {
        let Some(run) = self.runs.get_mut(&key).filter(|run| !run.folder.named()) else {
            return;
        };
        self.failpoints.die("naming");
        let named = self.records.name(&mut run.folder, &run.record.run);
        if let Err(error) = named {
            log::failure("a run could not be given its name", &error);
            if !run.ended() {
                let why = "its record could not be given its name".to_owned();
                run.seen.crashed.get_or_insert(why);
                run.abort = true;
                self.kill_run(key);
                self.step(key);
            }
        }
    }

    /// Makes the pipe a command reads its input from, if it is to have any.
    fn open_input(&mut self, key: Key) {
        let Some(run) = self.runs.get_mut(&key) else {
            return;
        };
        if run.exec.stdin
            && run.exec.tty.is_none()
            && let Ok((reader, writer)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        {
            run.message_fds.push(reader);
            run.input = Some(writer);
        }
    }

    /// Writes the first record and makes the spools; nothing else exists before (invariant I1).
    fn begin(
        &mut self,
        record: RunRecord,
        exec: ExecSpec,
        admitted: &Admitted,
        begun: Instant,
        blank: Option<Blank>,
    ) -> Result<Key, PublicError> {
        let run = record.run.clone();
        let blank = match blank {
            Some(blank) => Ok(blank),
            None => self.records.blank(&record.sandbox, &mut self.spares),
        };
        let recorded = blank.and_then(|blank| self.records.begin(blank, &record));
        let (folder, files) = recorded.map_err(|error| match error {
            RecordError::Exists(_) => refuse(ErrorKind::Exists, error.to_string()),
            RecordError::Io { .. } | RecordError::Format { .. } => {
                log::failure("a run could not be recorded", &error);
                refuse(ErrorKind::Internal, "the run could not be recorded")
                    .hint("see the supervisor's log; is the state directory's disk full?")
            }
        })?;
        let limit = admitted.limits.output_bytes.value;
        let spools = files.map(|file| Spool::new(file, limit));
        let collection = if exec.artifacts.is_empty() {
            Collection::None
        } else {
            Collection::Wanted
        };
        let key = self.new_key();
        self.run_ids.insert(run, key);
        self.runs.insert(
            key,
            Run {
                record,
                folder,
                exec,
                supply: None,
                bound: None,
                spools,
                sandbox: None,
                followers: Vec::new(),
                accepted: false,
                stage: Stage::Allocate,
                since: begun,
                held: false,
                seen: Observations::default(),
                exec_state: Exec::Unsent,
                main_exited: false,
                message: Vec::new(),
                message_sent: 0,
                message_waits: false,
                message_fds: Vec::new(),
                input: None,
                started: None,
                over: None,
                abort: false,
                collection,
                told_end: false,
                removing: None,
                told: (0, 0),
                told_at: None,
            },
        );
        Ok(key)
    }

    fn follow(&mut self, run: Key, from: Key, tag: u64) {
        if let (Some(run_), Some(connection)) =
            (self.runs.get_mut(&run), self.connections.get_mut(&from))
        {
            run_.followers.push((from, tag));
            connection.follows.insert((tag, run));
        }
    }

    /// Tells every follower that the run is accepted, with its spools and its input.
    pub(crate) fn tell_accepted(&mut self, key: Key) {
        let Some(run) = self.runs.get_mut(&key) else {
            return;
        };
        run.accepted = true;
        let stages = run.record.stages.clone();
        let mut input = run.input.take();
        for (from, tag) in run.followers.clone() {
            let fds = self.accepted_fds(key, input.take());
            self.send_accepted(key, from, tag, fds);
            for time in &stages {
                self.notify_soon(from, tag, Event::Stage(*time), Vec::new());
            }
        }
    }

    fn accepted_fds(&self, key: Key, input: Option<OwnedFd>) -> Vec<OwnedFd> {
        let folder = &self.runs[&key].folder;
        let spools = ["stdout", "stderr"].map(|name| folder.read_spool(name));
        let fds: Vec<OwnedFd> = spools.into_iter().filter_map(Result::ok).collect();
        fds.into_iter().chain(input).collect()
    }

    fn send_accepted(&mut self, key: Key, from: Key, tag: u64, fds: Vec<OwnedFd>) {
        if fds.len() < 2 {
            let error = refuse(
                ErrorKind::Internal,
                "the spools of the run cannot be opened",
            );
            return self.notify(from, tag, Event::Refused(error));
        }
        let record = &self.runs[&key].record;
        let event = Event::Accepted {
            run: record.run.clone(),
            sandbox: record.sandbox.clone(),
            input: fds.len() > 2,
            warm: record.warm,
        };
        self.notify_soon(from, tag, event, fds);
    }

    pub(super) fn attach(&mut self, from: Key, tag: u64, run: &RunId) -> Answer {
        let Some(key) = self.run_ids.get(run).copied() else {
            return self.attach_finished(from, tag, run);
        };
        if self.runs[&key].followers.len() >= FOLLOWERS_MAX {
            let message = format!("run `{run}` has {FOLLOWERS_MAX} followers: that is the most");
            return Err(refuse(ErrorKind::NoCapacity, message));
        }
        self.follow(key, from, tag);
        let run = &self.runs[&key];
        if !run.accepted {
            return Ok(());
        }
        // A terminal can be taken up again; the input pipe belongs to whoever got it first.
        let terminal = run.exec.tty.and(run.spools[0].source());
        let terminal = terminal.and_then(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 3).ok());
        let fds = self.accepted_fds(key, terminal);
        self.send_accepted(key, from, tag, fds);
        let run = &self.runs[&key];
        let (stdout, stderr) = run.kept();
        let record = run.record.clone();
        self.notify_record(from, tag, record, Event::Output { stdout, stderr });
        Ok(())
    }

    fn attach_finished(&mut self, from: Key, tag: u64, run: &RunId) -> Answer {
        let missing = || refuse(ErrorKind::NotFound, format!("run `{run}` is not there"));
        let record = self.records.read(run).ok().flatten().ok_or_else(missing)?;
        if record.pruned_unix_ms.is_some() {
            let message = format!("the output of run `{run}` was pruned by the rule of retention");
            return Err(refuse(ErrorKind::NotFound, message)
                .hint("`leasehold show` tells how it ended and when its output was pruned"));
        }
        let folder = self.records.folder(run).map_err(|_| missing())?;
        let spools = ["stdout", "stderr"].map(|name| folder.read_spool(name));
        let fds: Vec<OwnedFd> = spools.into_iter().filter_map(Result::ok).collect();
        if fds.len() < 2 {
            return Err(refuse(
                ErrorKind::NotFound,
                format!("the output of `{run}` is gone"),
            ));
        }
        let event = Event::Accepted {
            run: run.clone(),
            sandbox: record.sandbox.clone(),
            input: false,
            warm: record.warm,
        };
        self.notify_with(from, tag, event, fds);
        let (stdout, stderr) = (record.stdout.kept, record.stderr.kept);
        self.notify_record(from, tag, record, Event::Output { stdout, stderr });
        Ok(())
    }

    /// Tells what a record says so far.
    fn notify_record(&mut self, from: Key, tag: u64, record: RunRecord, output: Event) {
        for time in &record.stages {
            self.notify(from, tag, Event::Stage(*time));
        }
        self.notify(from, tag, output);
        if record.end.is_some() {
            self.notify(from, tag, Event::Ended(Box::new(record.clone())));
        }
        if record.cleanup.is_some() {
            self.notify(from, tag, Event::Cleaned(Box::new(record)));
        }
    }

    pub(super) fn on_cancel(
        &mut self,
        from: Key,
        tag: u64,
        run: &RunId,
        by: CancelledBy,
        at_once: bool,
    ) -> Answer {
        match self.run_ids.get(run).copied() {
            Some(key) => self.cancel(key, by, at_once),
            None => {
                let known = self.records.read(run).ok().flatten();
                known.ok_or_else(|| {
                    refuse(ErrorKind::NotFound, format!("run `{run}` is not there"))
                })?;
            }
        }
        self.notify(from, tag, Event::Done);
        Ok(())
    }
}
