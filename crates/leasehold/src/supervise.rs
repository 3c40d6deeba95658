//! Commands about the supervisor itself: becoming it, its pools, its end, and what a dead one left.

use std::os::unix::process::CommandExt as _;
use std::process;
use std::time::{Duration, Instant};

use leasehold_backend::process::client::{Client, ClientError};
use leasehold_core::spec::WorkspaceMode;
use leasehold_protocol::supervisor::Request;
use leasehold_protocol::{leash, memory};

use leasehold_supervisor::paths::Paths;
use leasehold_supervisor::program::{IDLE_FLAG, WORD};
use leasehold_supervisor::sweep::SweepReport;

use crate::carried::{self, INIT};
use crate::cli::{PoolFlags, SupervisorFlags, SweepFlags};
use crate::fault::Fault;
use crate::remote::stands_behind;
use crate::run::request;
use crate::serve::home::Home;
use crate::{place, voice};

/// How long a pool may take to fill.
const FILL_PATIENCE: Duration = Duration::from_secs(120);
/// How long a supervisor may take to end everything.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// `leasehold pool`.
///
/// # Errors
/// When the kind is wrong, refused, or does not fill in time.
pub(crate) fn pool(flags: &PoolFlags) -> Result<u8, Fault> {
    let sandbox = request::sandbox(
        &flags.limits,
        flags.warm.as_deref(),
        WorkspaceMode::Ephemeral,
    )?;
    let count = flags.count;
    let mut client = place::connect_or_start(&place::paths()?)?;
    let pool = Request::Pool {
        sandbox,
        count,
        held: false,
    };
    client
        .ask(pool, &[], FILL_PATIENCE)
        .map_err(place::client_fault)?;
    voice::note(&match count {
        0 => "the pool of this kind is empty".to_owned(),
        _ => format!("{count} sandboxes of this kind are parked and will be kept so"),
    });
    Ok(0)
}

/// `leasehold stop`.
///
/// # Errors
/// When a supervisor runs and does not end in time.
pub(crate) fn stop() -> Result<u8, Fault> {
    let paths = place::paths()?;
    let home = Home::within(&paths);
    let mut ended = stopped(&paths)?;
    if stands_behind(&home) {
        voice::note("a daemon is running, and keeps its own supervisor until it is ended itself");
    } else {
        ended |= stopped(&home.worker())?;
    }
    if !ended {
        voice::note("no supervisor is running");
    }
    Ok(0)
}

/// Ends the supervisor of some directories; whether there was one.
fn stopped(paths: &Paths) -> Result<bool, Fault> {
    match place::connect(paths)? {
        Some(client) => stop_it(client).map(|()| true),
        None => Ok(false),
    }
}

/// Ends the supervisor behind a connection and waits until it is gone.
///
/// # Errors
/// When it does not go in time.
pub(crate) fn stop_it(mut client: Client) -> Result<(), Fault> {
    match client.call(Request::Stop, &[]) {
        Ok(_) | Err(ClientError::Gone) => {}
        Err(error) => return Err(place::client_fault(error)),
    }
    let deadline = Instant::now() + STOP_PATIENCE;
    loop {
        match client.next_notice(Some(deadline)) {
            Ok(Some(_)) => {}
            Err(ClientError::Gone) => return Ok(()),
            Ok(None) => {
                return Err(Fault::host(format!(
                    "supervisor {} has not ended after {STOP_PATIENCE:?}",
                    client.supervisor_pid()
                ))
                .hint("`leasehold sweep` removes what is left after it was killed"));
            }
            Err(error) => return Err(place::client_fault(error)),
        }
    }
}

/// `leasehold sweep`.
///
/// # Errors
/// When nothing could be looked at. What could not be removed is told, with status 125.
pub(crate) fn sweep(flags: &SweepFlags) -> Result<u8, Fault> {
    let paths = place::paths()?;
    let own = swept(&paths, flags.dry_run)?;
    // A daemon's sandboxes belong to a supervisor of its own.
    let worker = Home::within(&paths).worker();
    let service = match worker.state().exists() {
        true => Some(swept(&worker, flags.dry_run)?),
        false => None,
    };
    if flags.json {
        voice::json(&serde_json::json!({ "alone": own, "service": service }))?;
    } else {
        let text = match &service {
            None => told(&own),
            Some(service) => whose("without a daemon", &own) + &whose("of the service", service),
        };
        voice::data(text.as_bytes())?;
    }
    let good = |report: &SweepReport| report.dry_run || report.clean();
    Ok(if good(&own) && service.as_ref().is_none_or(good) {
        0
    } else {
        125
    })
}

fn swept(paths: &Paths, dry_run: bool) -> Result<SweepReport, Fault> {
    leasehold_supervisor::sweep::sweep(paths, dry_run)
        .map_err(|error| Fault::host("cannot sweep").because(&error))
}

/// A sweep in words, each line with whose it is.
fn whose(whose: &str, report: &SweepReport) -> String {
    let text = told(report);
    text.lines()
        .map(|line| format!("{whose}: {line}\n"))
        .collect()
}

/// A sweep in words.
fn told(report: &SweepReport) -> String {
    if report.live {
        return "a supervisor is running: what there is belongs to it\n".to_owned();
    }
    if report.nothing() {
        return "nothing is left behind\n".to_owned();
    }
    let (done, completed) = if report.dry_run {
        ("would be removed", "record would be completed")
    } else {
        ("removed", "record completed")
    };
    let mut text = String::new();
    for swept in &report.sandboxes {
        if report.dry_run || swept.observed.clean() {
            text.push_str(&format!("sandbox {} {done}\n", swept.sandbox));
            continue;
        }
        text.push_str(&format!(
            "sandbox {} is NOT wholly removed\n",
            swept.sandbox
        ));
        for residue in swept.observed.residues.iter().filter(|left| !left.clean) {
            text.push_str(&format!(
                "  {}: {}\n",
                residue.resource,
                voice::clean(&residue.detail)
            ));
        }
    }
    for run in &report.runs {
        text.push_str(&format!(
            "run {run} {completed}: `leasehold show` tells its end\n"
        ));
    }
    for base in &report.uid_blocks {
        text.push_str(&format!("uid block {base} {done}\n"));
    }
    for image in &report.images {
        text.push_str(&format!("disk image {} {done}\n", voice::clean(image)));
    }
    for group in &report.groups {
        text.push_str(&format!("control group {} {done}\n", voice::clean(group)));
    }
    if report.socket {
        text.push_str(&format!("socket of a dead supervisor {done}\n"));
    }
    text
}

/// `leasehold supervisor`: becomes its program.
///
/// # Errors
/// When a directory is refused, or the program cannot be executed.
pub(crate) fn supervisor(flags: &SupervisorFlags) -> Result<u8, Fault> {
    let paths = place::paths()?;
    place::make(&paths)?;
    let mut command = process::Command::new(carried::supervisor(paths.run())?);
    let init = memory::sealed("leasehold-init", INIT)
        .map_err(|error| Fault::host("cannot hold the program of its sandboxes").because(&error))?;
    command.stdin(init).arg0("leasehold").arg(WORD);
    if let Some(seconds) = flags.idle {
        command.args([IDLE_FLAG, &seconds.to_string()]);
    }
    if flags.leashed {
        command.arg(leash::FLAG);
    }
    Err(Fault::host("cannot execute the supervisor").because(&command.exec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::id::{RunId, SandboxId};
    use leasehold_core::record::{Observed, Residue};
    use leasehold_supervisor::sweep::Swept;

    #[test]
    fn a_sweep_says_what_it_did_and_what_it_could_not() {
        assert_eq!(told(&SweepReport::default()), "nothing is left behind\n");
        let swept = |clean| Swept {
            sandbox: SandboxId::from_entropy(&[u8::from(clean); 13]),
            observed: Observed {
                residues: vec![Residue {
                    resource: "cgroups".to_owned(),
                    clean,
                    detail: "busy".to_owned(),
                    inferred: false,
                }],
            },
        };
        let report = SweepReport {
            sandboxes: vec![swept(true), swept(false)],
            runs: vec![RunId::from_entropy(&[1; 13])],
            uid_blocks: vec![7],
            ..SweepReport::default()
        };
        let text = told(&report);
        assert!(text.contains("removed\n"), "{text}");
        assert!(
            text.contains("NOT wholly removed\n  cgroups: busy\n"),
            "{text}"
        );
        assert!(text.contains("uid block 7 removed"), "{text}");
        let text = whose("of the service", &report);
        assert_eq!(
            text.lines().count(),
            text.matches("of the service: ").count(),
            "{text}"
        );
        // Its end may have been fixed before its supervisor died.
        assert!(text.contains(" record completed: ") && !text.contains("host_lost"));
        let dry = SweepReport {
            dry_run: true,
            ..report
        };
        assert!(!told(&dry).contains("NOT"), "{}", told(&dry));
    }
}
