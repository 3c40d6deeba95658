//! A program that a caller brings with its run: what came with it is checked here, and what it reports is read.

use std::io;
use std::os::fd::OwnedFd;

use leasehold_core::end::{CancelledBy, ExitStatus, LimitHit};
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::limits::OnDenied;
use leasehold_core::spec::ExecSpec;
use leasehold_protocol::memory;
use leasehold_protocol::supervisor::{PASSED_MAX, Supplied};
use leasehold_protocol::wasm::{REPORT_LEN, RunLimits};
use rustix::fs::{FileType, SealFlags};

use crate::connection::Connection;
use crate::report;
use crate::run::Run;
use crate::sandbox::Sandbox;
use crate::server::Server;
use crate::source::Key;

/// What came, until the stub has it.
#[derive(Debug)]
pub(crate) struct Supply {
    pub(crate) told: Supplied,
    /// The program, and then what it is passed.
    descriptors: Vec<OwnedFd>,
    /// Our side of its report.
    report: Option<OwnedFd>,
}

fn invalid(message: impl Into<String>) -> PublicError {
    PublicError::new(ErrorKind::Invalid, message)
}

/// Takes the descriptors of a supplied program, all of them even if it is refused then, and checks them.
pub(crate) fn take(caller: Option<&mut Connection>, told: Supplied) -> Result<Supply, PublicError> {
    let count = 1 + usize::from(told.passed);
    let descriptors: Vec<OwnedFd> = caller.map_or_else(Vec::new, |caller| {
        (0..count).map_while(|_| caller.take_fd()).collect()
    });
    if told.passed > PASSED_MAX {
        return Err(invalid(format!(
            "`passed` is {}: most is {PASSED_MAX}",
            told.passed
        )));
    }
    if descriptors.len() < count {
        return Err(invalid(format!(
            "a supplied program and `passed` {} make {count} descriptors, and {} came",
            told.passed,
            descriptors.len()
        )));
    }
    ExecSpec::command(told.argv.iter().map(String::as_str))
        .check()
        .map_err(|error| invalid(format!("the supplied program's {}", error.message)))?;
    let (program, passed) = (&descriptors[0], &descriptors[1..]);
    if !memory::is_sealed(program) {
        return Err(invalid(
            "the supplied program is not a sealed memory file: it could change while it runs",
        )
        .hint("seal it against writing, growing, shrinking and further seals"));
    }
    for (at, fd) in passed.iter().enumerate() {
        // Anything else could lead out of the sandbox, or change under it.
        if !memory::is_sealed(fd) && !is_socket(fd) {
            return Err(invalid(format!(
                "passed descriptor {} is neither a sealed memory file nor a socket",
                at + 1
            )));
        }
    }
    Ok(Supply {
        report: None,
        told,
        descriptors,
    })
}

fn is_socket(fd: &OwnedFd) -> bool {
    rustix::fs::fstat(fd)
        .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Socket)
}

/// A file of zeros that nobody can make longer or shorter.
fn report_file() -> io::Result<OwnedFd> {
    let file = memory::create("leasehold-report")?;
    rustix::fs::ftruncate(&file, REPORT_LEN as u64)?;
    let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}

impl Supply {
    /// Descriptors for the message to the stub: the program, what it is passed, and its side of the report.
    pub(crate) fn hand_over(&mut self) -> io::Result<Vec<OwnedFd>> {
        let mut all = std::mem::take(&mut self.descriptors);
        if self.told.report {
            let file = report_file()?;
            all.push(rustix::io::fcntl_dupfd_cloexec(&file, 3)?);
            self.report = Some(file);
        }
        Ok(all)
    }

    /// Descriptors the program is passed, its report among them.
    pub(crate) fn passed(&self) -> u8 {
        self.told.passed + u8::from(self.told.report)
    }

    /// Whether nothing is said of the end before every process is dead.
    pub(crate) fn reports(&self) -> bool {
        self.report.is_some()
    }

    /// The bytes of the report, once nobody can write any more.
    fn read(&self) -> io::Result<Vec<u8>> {
        let Some(file) = &self.report else {
            return Ok(Vec::new());
        };
        let mut bytes = vec![0; REPORT_LEN];
        let mut filled = 0;
        while filled < bytes.len() {
            match rustix::io::pread(file, &mut bytes[filled..], filled as u64)? {
                0 => break,
                count => filled += count,
            }
        }
        let end = bytes.iter().position(|byte| *byte == 0);
        bytes.truncate(end.unwrap_or(filled));
        Ok(bytes)
    }
}

/// Puts what the program says of itself beside what was seen, where it says it at all. Whether its processes
/// can still write is the caller's to know.
pub(crate) fn note_report(run: &mut Run, sandbox: &Sandbox) {
    let Some(supply) = run.supply.as_ref().filter(|supply| supply.reports()) else {
        return;
    };
    // The status is the host's own and not the module's.
    let Some(exit) = run.seen.exit.take() else {
        return;
    };
    let fuel = run.exec.module.as_ref().and_then(|module| module.fuel);
    let limits = RunLimits::of(&sandbox.admitted.limits, fuel);
    let believed = match exit {
        ExitStatus::Exit { code: 0 } => supply
            .read()
            .map_err(|error| format!("its report could not be read: {error}"))
            .and_then(|bytes| report::believe(&bytes, &limits, &mut run.seen)),
        ExitStatus::Exit { code } => Err(format!("it ended with status {code}")),
        ExitStatus::Signal { number } => Err(format!("signal {number} ended it")),
        other => Err(format!("it ended as {other:?}")),
    };
    match believed {
        Ok(module) => run.record.module = Some(module),
        Err(why) => {
            let text = format!("the WebAssembly host failed: {why}");
            run.seen.crashed.get_or_insert(text);
        }
    }
}

/// What limits that denied something come to, when all of them are known.
pub(crate) fn settle_denied(run: &mut Run, on_denied: OnDenied) {
    if on_denied == OnDenied::Kill
        && let Some(hit) = run.seen.denied.first()
    {
        run.seen.killed_by.get_or_insert(*hit);
    }
    if let Some(LimitHit { which, .. }) = run.seen.killed_by {
        run.seen.denied.retain(|hit| hit.which != which);
    }
}

impl Server {
    /// Ends what was work for a caller that is gone.
    pub(crate) fn end_bound(&mut self, caller: Key) {
        let bound = |run: &Run| run.bound == Some(caller);
        let ended = self.runs.iter().filter(|(_, run)| bound(run));
        for key in ended.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.cancel(key, CancelledBy::Caller, true);
        }
    }
}
