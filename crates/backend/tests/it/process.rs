//! The process backend against the built program.

use std::path::PathBuf;

use leasehold_backend::conformance::script::Script;
use leasehold_backend::conformance::{self, Rig};
use leasehold_backend::execution::RunEvent;
use leasehold_backend::process::ProcessBackend;
use leasehold_backend::process::client::Client;
use leasehold_backend::process::start::Endpoint;
use leasehold_backend::seam::{Backend, Doing};
use leasehold_core::end::{EndReason, ExitStatus};
use leasehold_core::error::ErrorKind;
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::spec::SandboxSpec;
use leasehold_protocol::supervisor::Request;
use rustix::process::{Pid, Signal, kill_process};

use crate::scratch::Scratch;

/// Kills the init of a sandbox by its process id.
pub(crate) struct Killer(pub(crate) ProcessBackend);

impl Rig for Killer {
    fn crash<'a>(&'a self, sandbox: &'a SandboxId) -> Option<Doing<'a, Result<(), String>>> {
        Some(Box::pin(async move {
            let pid = self.0.init_pid(sandbox).await;
            let pid = pid.map_err(|error| error.to_string())?;
            let pid = pid.and_then(|pid| Pid::from_raw(pid.cast_signed()));
            let pid = pid.ok_or("it has no init")?;
            kill_process(pid, Signal::KILL).map_err(|errno| errno.to_string())
        }))
    }
}

/// A supervisor of its own in a directory of its own, ended with the test.
pub(crate) struct Own {
    pub(crate) endpoint: Endpoint,
    pub(crate) directory: Scratch,
}

impl Own {
    pub(crate) fn new(test: &str) -> Option<Self> {
        let Some(program) = std::env::var_os("LEASEHOLD_BIN").map(PathBuf::from) else {
            eprintln!("SKIP {test}: LEASEHOLD_BIN does not name the built program");
            return None;
        };
        let directory = Scratch::new();
        let (run, state) = (directory.path().join("run"), directory.path().join("state"));
        for path in [&run, &state] {
            std::fs::create_dir(path).unwrap();
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
            std::fs::set_permissions(path, private).unwrap();
        }
        Some(Self {
            endpoint: Endpoint {
                agent: agent(),
                ..Endpoint::new(run, state, program)
            },
            directory,
        })
    }
}

/// The agent's program, which a build of the command line leaves beside it. Read once, for good.
fn agent() -> &'static [u8] {
    let exe = std::env::current_exe().unwrap();
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let built = exe.ancestors().nth(3).unwrap().join("agent").join(triple);
    let program = built.join("release/leasehold-agent");
    std::fs::read(&program)
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()))
        .leak()
}

impl Drop for Own {
    fn drop(&mut self) {
        // A successor sweeps what a supervisor left that the test killed.
        if let Ok(mut client) = Client::connect_or_start(&self.endpoint) {
            let _ = client.ask(Request::Stop, &[], std::time::Duration::from_secs(20));
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.endpoint.log());
            eprintln!("log of the supervisor:\n{}", log.unwrap_or_default());
        }
    }
}

#[tokio::test]
async fn the_process_backend_passes_the_suite() {
    let Some(own) = Own::new("the_process_backend_passes_the_suite") else {
        return;
    };
    let backend = ProcessBackend::new(own.endpoint.clone());
    let report = conformance::all(&backend, &Killer(backend.clone())).await;
    eprint!("{report}");
    assert_eq!(report.failures(), 0);
    let left = backend.sweep(Vec::new()).await.unwrap();
    assert!(left.ended.is_empty(), "the suite left {left:?}");
}

#[tokio::test]
async fn a_backend_that_cannot_start_says_why() {
    let directory = Scratch::new();
    let path = directory.path().to_owned();
    let endpoint = Endpoint {
        args: vec![
            "-c".to_owned(),
            "echo no user namespaces >&2; exit 1".to_owned(),
        ],
        ..Endpoint::new(path.clone(), path, PathBuf::from("/bin/sh"))
    };
    let error = ProcessBackend::new(endpoint).probe().await.unwrap_err();
    assert!(error.message.contains("no user namespaces"), "{error}");
    assert!(error.hint.unwrap().contains("doctor"));
}

fn run_id(number: u8) -> RunId {
    RunId::from_entropy(&[number; 13])
}

/// Whoever held the sandboxes is killed in the middle of a run: the run is lost, is told as lost, and
/// nothing of it is left.
#[tokio::test]
async fn a_run_is_found_again_after_its_supervisor_died() {
    let Some(own) = Own::new("a_run_is_found_again_after_its_supervisor_died") else {
        return;
    };
    let backend = ProcessBackend::new(own.endpoint.clone());
    let computer = backend
        .provision(SandboxSpec::default(), None)
        .await
        .unwrap();
    let mut execution = computer
        .run(run_id(1), Script::Sleep.exec(), None)
        .await
        .unwrap();
    loop {
        match execution.next().await.unwrap().unwrap() {
            RunEvent::Output { stdout: 7, .. } => break,
            RunEvent::Ended(record) => panic!("it ended: {:?}", record.end),
            _ => {}
        }
    }
    let supervisor = Client::connect(&own.endpoint).unwrap().supervisor_pid();
    let pid = Pid::from_raw(supervisor.cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let error = execution.cleaned().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let mut again = backend.attach(run_id(1)).await.unwrap();
    let record = again.cleaned().await.unwrap().unwrap();
    assert_eq!(record.end, Some(EndReason::HostLost));
    assert!(record.cleanup.unwrap().clean());
    assert!(computer.destroy().await.unwrap().clean());
    let successor = Client::connect(&own.endpoint).unwrap().supervisor_pid();
    assert_ne!(successor, supervisor);
}

#[tokio::test]
async fn many_runs_share_one_connection() {
    let Some(own) = Own::new("many_runs_share_one_connection") else {
        return;
    };
    let backend = ProcessBackend::new(own.endpoint.clone());
    let mut runs = tokio::task::JoinSet::new();
    for number in 0..40 {
        let backend = backend.clone();
        runs.spawn(async move {
            let computer = backend
                .provision(SandboxSpec::default(), None)
                .await
                .unwrap();
            let exec = Script::Exit(number).exec();
            let mut execution = computer.run(run_id(number), exec, None).await.unwrap();
            let record = execution.cleaned().await.unwrap().unwrap();
            (number, record)
        });
    }
    while let Some(done) = runs.join_next().await {
        let (number, record) = done.unwrap();
        assert_eq!(record.run, run_id(number));
        assert_eq!(record.exit, Some(ExitStatus::Exit { code: number }));
        assert!(record.cleanup.unwrap().clean());
    }
}

/// A wrong glob is told before the run, which has not used up its computer.
#[tokio::test]
async fn a_glob_that_is_none_is_refused_before_the_run() {
    let Some(own) = Own::new("a_glob_that_is_none_is_refused_before_the_run") else {
        return;
    };
    let backend = ProcessBackend::new(own.endpoint.clone());
    let computer = backend
        .provision(SandboxSpec::default(), None)
        .await
        .unwrap();
    let mut exec = Script::Artifacts.exec();
    exec.artifacts = vec!["out/[a".to_owned()];
    let refused = computer
        .run(run_id(1), exec.clone(), None)
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("out/[a"), "{refused}");
    exec.artifacts = vec![".".to_owned()];
    let mut execution = computer.run(run_id(2), exec, None).await.unwrap();
    let record = execution.cleaned().await.unwrap().unwrap();
    let taken = record.artifacts.iter().filter(|row| row.sha256.is_some());
    assert_eq!(taken.count(), 1, "{:?}", record.artifacts);
}
