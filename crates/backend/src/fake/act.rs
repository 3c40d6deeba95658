//! What the commands of the suite do in a computer that is not there.

use std::os::fd::OwnedFd;
use std::time::Duration;

use leasehold_core::end::{ExitStatus, LimitHit};
use leasehold_core::limits::{Limits, Resource};
use leasehold_core::record::Artifact;
use leasehold_core::spec::ExecSpec;
use tokio::net::unix::pipe::Receiver;

use super::run::Recorded;
use crate::conformance::script::{COMPLAINED, FLOOD, PRINTED, Script};

const FILLED: u64 = 8 << 20;
const FORKED: u64 = 64;

/// How a command came to its end by itself or by a limit.
#[derive(Debug, Default)]
pub(super) struct Acted {
    pub(super) exit: Option<ExitStatus>,
    pub(super) killed_by: Option<LimitHit>,
    pub(super) denied: Vec<LimitHit>,
    pub(super) disk: u64,
    pub(super) artifacts: Vec<Artifact>,
}

fn exit(code: u8) -> Acted {
    Acted {
        exit: Some(ExitStatus::Exit { code }),
        ..Acted::default()
    }
}

fn told(exit: ExitStatus) -> Acted {
    Acted {
        exit: Some(exit),
        ..Acted::default()
    }
}

fn killed(which: Resource, limit: u64, observed: u64) -> Acted {
    Acted {
        killed_by: Some(LimitHit {
            which,
            limit,
            observed,
        }),
        ..Acted::default()
    }
}

/// Plays a command to its end; never comes back from one that has none.
pub(super) async fn act(
    recorded: &Recorded,
    limits: &Limits,
    exec: &ExecSpec,
    input: Option<OwnedFd>,
) -> Acted {
    match Script::read(exec) {
        None | Some(Script::True) => exit(0),
        Some(Script::False) => exit(1),
        Some(Script::Exit(code)) => exit(code),
        Some(Script::Signal) => told(ExitStatus::Signal { number: 9 }),
        Some(Script::Missing) => told(ExitStatus::NotFound),
        Some(Script::NotExecutable) => told(ExitStatus::NotExecutable),
        Some(Script::Print) => {
            let over = recorded
                .put(0, PRINTED)
                .or_else(|| recorded.put(1, COMPLAINED));
            over.unwrap_or_else(|| exit(0))
        }
        Some(Script::Echo) => echo(recorded, input).await,
        Some(Script::Env) => {
            let line = |(name, value): (&String, &String)| format!("{name}={value}\n");
            let text: String = exec.env.iter().map(line).collect();
            recorded.put(0, text.as_bytes()).unwrap_or_else(|| exit(0))
        }
        Some(Script::Pwd) => {
            let cwd = exec.cwd.as_deref().unwrap_or("/workspace");
            let text = format!("{cwd}\n");
            recorded.put(0, text.as_bytes()).unwrap_or_else(|| exit(0))
        }
        Some(Script::Mark) => {
            recorded.slot.mark();
            forever(recorded).await
        }
        Some(Script::Sleep | Script::Stubborn) => forever(recorded).await,
        Some(Script::MarkAndLook) => {
            recorded.slot.mark();
            exit(u8::from(recorded.slot.marked()))
        }
        Some(Script::Look) => exit(u8::from(recorded.slot.marked())),
        Some(Script::Count) => recorded.put(0, b"2\n").unwrap_or_else(|| exit(0)),
        Some(Script::Flood) => flood(recorded),
        Some(Script::Hog) => {
            let limit = limits.memory_bytes.value;
            killed(Resource::Memory, limit, limit)
        }
        Some(Script::Spin) => spin(limits).await,
        Some(Script::Fork) => bounded(Resource::Pids, limits.pids.value.into(), FORKED, 2),
        Some(Script::Fill) => bounded(Resource::Disk, limits.disk_bytes.value, FILLED, 1),
        Some(Script::Artifacts) => Acted {
            artifacts: artifacts(),
            ..exit(0)
        },
    }
}

async fn forever(recorded: &Recorded) -> Acted {
    match recorded.put(0, b"before\n") {
        Some(over) => over,
        None => std::future::pending().await,
    }
}

async fn echo(recorded: &Recorded, input: Option<OwnedFd>) -> Acted {
    let Some(input) = input.and_then(|input| Receiver::from_owned_fd(input).ok()) else {
        return exit(0);
    };
    let mut piece = [0; 4_096];
    loop {
        if input.readable().await.is_err() {
            return exit(1);
        }
        match input.try_read(&mut piece) {
            Ok(0) => return exit(0),
            Ok(got) => {
                if let Some(over) = recorded.put(0, &piece[..got]) {
                    return over;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return exit(1),
        }
    }
}

fn flood(recorded: &Recorded) -> Acted {
    let zeros = [0; 1_000];
    for _ in 0..FLOOD / 1_000 {
        if let Some(over) = recorded.put(0, &zeros) {
            return over;
        }
    }
    exit(0)
}

async fn spin(limits: &Limits) -> Acted {
    match limits.cpu_time_ms {
        None => std::future::pending().await,
        Some(limit) => {
            tokio::time::sleep(Duration::from_millis(limit.value)).await;
            killed(Resource::CpuTime, limit.value, limit.value + 1)
        }
    }
}

/// Takes so much of something, and fails with a status where there is less.
fn bounded(which: Resource, limit: u64, wanted: u64, status: u8) -> Acted {
    let disk = if which == Resource::Disk {
        wanted.min(limit)
    } else {
        0
    };
    if wanted < limit {
        return Acted { disk, ..exit(0) };
    }
    Acted {
        denied: vec![LimitHit {
            which,
            limit,
            observed: limit,
        }],
        disk,
        ..exit(status)
    }
}

/// Content of the one file that is collected.
pub(super) const ARTIFACT: &[u8] = b"mine";

fn artifacts() -> Vec<Artifact> {
    let row = |path: &str, bytes, skipped: Option<&str>| Artifact {
        path: path.to_owned(),
        bytes,
        sha256: skipped
            .is_none()
            .then(|| "3fd30542fe3f61b14bd4a4b2dc0b6fb30fa6f63ebce52dd1778aaa8c4dc02cff".to_owned()),
        skipped: skipped.map(str::to_owned),
        may_execute_on_host: false,
    };
    vec![
        row("out/a", 4, None),
        row("out/link", 0, Some("symlink")),
        row("nothing", 0, Some("not_found")),
    ]
}

/// The hit of the output limit, where the contract says that it ends a run.
pub(super) fn output_killed(limit: u64, written: u64) -> Acted {
    killed(Resource::Output, limit, written)
}
