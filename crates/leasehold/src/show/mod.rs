//! Reading what is on record: `show`, `runs`, `logs`, and finding a run by the beginning of its id.
//!
//! Nothing here needs a supervisor or starts one. What a dead one left is swept first, so that no run
//! is told to be on its way that is over. Everything a guest may have written is made fit
//! for a terminal first.

mod page;
mod table;

pub(crate) use leasehold_core::quantity::format_moment as when;

use std::io::Read;
use std::time::Duration;

use leasehold_core::id::RunId;
use leasehold_core::record::RunRecord;
use leasehold_supervisor::paths::Paths;
use leasehold_supervisor::records::Records;

use crate::cli::{LogsFlags, RunsFlags, ShowFlags};
use crate::fault::Fault;
use crate::remote::look;
use crate::run::{Whole, open_log};
use crate::{place, voice};

/// Bytes of a log that are read at once.
const PIECE: usize = 64 << 10;
/// Pause between two looks at a log that grows.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Opens the records.
///
/// # Errors
/// When the directories are refused.
pub(crate) fn store(paths: &Paths) -> Result<Records, Fault> {
    place::make(paths)?;
    Records::open(paths).map_err(|error| Fault::host("cannot open the records").because(&error))
}

/// Finds the one run whose id begins with `prefix`.
///
/// # Errors
/// When there is none, or more than one.
pub(crate) fn find(paths: &Paths, prefix: &str) -> Result<RunId, Fault> {
    let plausible = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let mut found = if plausible {
        store(paths)?
            .matching(prefix)
            .map_err(|error| Fault::host("cannot search the records").because(&error))?
    } else {
        Vec::new()
    };
    let shown = voice::clean(prefix);
    match (found.pop(), found.pop()) {
        (None, _) => Err(Fault::usage(format!("there is no run `{shown}`")).hint(
            "`leasehold runs` lists what ran without a daemon, `leasehold ps -a` what one has",
        )),
        (Some(run), None) => Ok(run),
        (Some(_), Some(_)) => Err(Fault::usage(format!(
            "`{shown}` is the beginning of more than one run id"
        ))
        .hint("type more of it; `leasehold runs` lists what there is")),
    }
}

/// The record of a run.
///
/// # Errors
/// When it has none, or it cannot be read.
pub(crate) fn read(paths: &Paths, run: &RunId) -> Result<RunRecord, Fault> {
    store(paths)?
        .read(run)
        .map_err(|error| Fault::host("cannot read the record").because(&error))?
        .ok_or_else(|| Fault::usage(format!("run {run} has no record")))
}

/// Whether a record is not complete.
fn open(record: &RunRecord) -> bool {
    record.end.is_none() || record.cleanup.is_none()
}

/// Sweeps, unless a supervisor is alive; whether it did. What cannot be swept is told by `leasehold
/// sweep`, and the record is shown as it is.
fn swept(paths: &Paths) -> bool {
    leasehold_supervisor::sweep::sweep(paths, false).is_ok_and(|report| !report.live)
}

/// The record of a run, completed if its supervisor is dead.
fn settled(paths: &Paths, run: &RunId) -> Result<RunRecord, Fault> {
    let record = read(paths, run)?;
    if open(&record) && swept(paths) {
        return read(paths, run);
    }
    Ok(record)
}

/// `leasehold show`.
pub(crate) fn show(flags: &ShowFlags) -> Result<u8, Fault> {
    let paths = place::paths()?;
    let run = match find(&paths, &flags.run) {
        Ok(run) => run,
        Err(fault) => {
            let of_daemon = look::find(&paths, &flags.run)?;
            let (remote, run) = of_daemon.ok_or(fault)?;
            return look::show(&remote, &run, flags);
        }
    };
    let record = settled(&paths, &run)?;
    let status = record.end.as_ref().map_or(0, |end| end.cli_status());
    if flags.json {
        voice::json(&Whole::of(&paths, &record, status))?;
    } else {
        let directory = place::run_directory(&paths, &run);
        voice::data(page::page(&record, &directory).as_bytes())?;
    }
    Ok(0)
}

/// `leasehold runs`.
pub(crate) fn runs(flags: &RunsFlags) -> Result<u8, Fault> {
    if flags.last == 0 {
        return Err(Fault::usage("`--last` is 0: at least 1 is needed"));
    }
    let paths = place::paths()?;
    let list = || {
        store(&paths)?
            .list(flags.last)
            .map_err(|error| Fault::host("cannot list the records").because(&error))
    };
    let mut records = list()?;
    if records.iter().any(open) && swept(&paths) {
        records = list()?;
    }
    if flags.json {
        voice::json(&records)?;
    } else if records.is_empty() {
        voice::note("no run was made here without a daemon; `leasehold ps -a` lists those of one");
    } else {
        voice::data(table::table(&records).as_bytes())?;
    }
    Ok(0)
}

/// The record of a run whose output is still there.
///
/// # Errors
/// As [`read`], or when the output was pruned.
pub(crate) fn kept(paths: &Paths, run: &RunId) -> Result<RunRecord, Fault> {
    let record = read(paths, run)?;
    let Some(at) = record.pruned_unix_ms else {
        return Ok(record);
    };
    let when = when(at);
    Err(Fault::host(format!(
        "the output of run {run} was pruned at {when} UTC by the rule of retention"
    ))
    .hint(format!(
        "`leasehold show {run}` tells how it ended; the LEASEHOLD_KEEP_ variables say what is kept"
    )))
}

/// `leasehold logs`.
pub(crate) fn logs(flags: &LogsFlags) -> Result<u8, Fault> {
    let paths = place::paths()?;
    let run = match find(&paths, &flags.run) {
        Ok(run) => run,
        Err(fault) => {
            let of_daemon = look::find(&paths, &flags.run)?;
            let (remote, run) = of_daemon.ok_or(fault)?;
            return look::logs(&remote, &run, flags);
        }
    };
    let name = if flags.stderr { "stderr" } else { "stdout" };
    kept(&paths, &run)?;
    let mut log = open_log(&paths, &run, name)?;
    let mut out = look::Out::new(flags.raw);
    let mut piece = vec![0; PIECE];
    loop {
        // Looked at first: what is written before the end is in the log when the end is on record.
        let over = settled(&paths, &run)?.end.is_some();
        loop {
            let got = log
                .read(&mut piece)
                .map_err(|error| Fault::host("cannot read the log").because(&error))?;
            if got == 0 {
                break;
            }
            out.write(&piece[..got])?;
        }
        if over || !flags.follow {
            return out.finish().map(|()| 0);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
