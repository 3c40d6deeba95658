//! A run whose record and output this process keeps by itself, and who follows it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_core::record::{RunRecord, StreamRecord};
use leasehold_core::stage::{Stage, StageTime};
use rustix::fs::MemfdFlags;

use crate::execution::{EVENTS_KEPT, EventSender, Events, Execution, RunEvent};

/// The record, the two streams in memory files, and the followers.
#[derive(Debug)]
pub(crate) struct Kept {
    spools: [File; 2],
    progress: Mutex<Progress>,
}

#[derive(Debug)]
struct Progress {
    record: RunRecord,
    followers: Vec<EventSender>,
    ended: bool,
}

impl Kept {
    /// A run that was accepted.
    ///
    /// # Errors
    /// When there is no memory or descriptor for its output.
    pub(crate) fn new(record: RunRecord) -> io::Result<Self> {
        let spool = || rustix::fs::memfd_create("spool", MemfdFlags::CLOEXEC).map(File::from);
        Ok(Self {
            spools: [spool()?, spool()?],
            progress: Mutex::new(Progress {
                record,
                followers: Vec::new(),
                ended: false,
            }),
        })
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        // Nothing panics while it holds this lock.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run as a caller follows it.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub(crate) fn execution(
        &self,
        input: Option<OwnedFd>,
        events: Events,
    ) -> io::Result<Execution> {
        let copy = |file: &File| file.try_clone().map(OwnedFd::from);
        let spools = [copy(&self.spools[0])?, copy(&self.spools[1])?];
        let progress = self.progress();
        let record = &progress.record;
        let (run, sandbox) = (record.run.clone(), record.sandbox.clone());
        let mut execution = Execution::new(run, sandbox, spools, input, events);
        execution.warm = record.warm;
        Ok(execution)
    }

    /// Tells somebody what happens from now on, or the end if that is past.
    pub(crate) fn follow(&self, sender: EventSender) {
        let mut progress = self.progress();
        let record = || Box::new(progress.record.clone());
        // The place of these events is kept, and a follower that is gone misses nothing.
        if progress.ended {
            let _ = sender.try_send(Ok(RunEvent::Ended(record())));
        }
        if progress.record.cleanup.is_some() {
            let _ = sender.try_send(Ok(RunEvent::Cleaned(record())));
        } else {
            progress.followers.push(sender);
        }
    }

    /// Appends to a stream, of which at most `most` bytes are kept. Says how it stands.
    ///
    /// # Errors
    /// When there is no memory for it; it is counted as written and not as kept then.
    pub(crate) fn put(&self, which: usize, bytes: &[u8], most: u64) -> io::Result<StreamRecord> {
        let mut progress = self.progress();
        let record = &mut progress.record;
        let stream = if which == 0 {
            &mut record.stdout
        } else {
            &mut record.stderr
        };
        let room = usize::try_from(most.saturating_sub(stream.kept)).unwrap_or(usize::MAX);
        let kept = &bytes[..bytes.len().min(room)];
        stream.written += bytes.len() as u64;
        stream.truncated = true;
        self.spools[which].write_all_at(kept, stream.kept)?;
        stream.kept += kept.len() as u64;
        stream.truncated = stream.written > stream.kept;
        Ok(*stream)
    }

    /// Tells how much output there is, where there is room to tell it.
    pub(crate) fn tell_output(&self) {
        let progress = self.progress();
        let event = RunEvent::Output {
            stdout: progress.record.stdout.kept,
            stderr: progress.record.stderr.kept,
        };
        for follower in &progress.followers {
            if follower.capacity() > EVENTS_KEPT {
                let _ = follower.try_send(Ok(event.clone()));
            }
        }
    }

    /// Notes and tells that a stage is over.
    pub(crate) fn stage(&self, stage: Stage, micros: u64) {
        let time = StageTime { stage, micros };
        let mut progress = self.progress();
        progress.record.stages.push(time);
        progress.tell(&RunEvent::Stage(time));
    }

    /// Changes the record.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut RunRecord) -> T) -> T {
        change(&mut self.progress().record)
    }

    /// Tells that the end is fixed.
    pub(crate) fn end(&self) {
        let mut progress = self.progress();
        progress.ended = true;
        let record = Box::new(progress.record.clone());
        progress.tell(&RunEvent::Ended(record));
    }

    /// Tells that the removal was observed; nothing follows.
    pub(crate) fn close(&self) {
        let mut progress = self.progress();
        let record = Box::new(progress.record.clone());
        progress.tell(&RunEvent::Cleaned(record));
        progress.followers.clear();
    }
}

impl Progress {
    fn tell(&self, event: &RunEvent) {
        for follower in &self.followers {
            let _ = follower.try_send(Ok(event.clone()));
        }
    }
}
