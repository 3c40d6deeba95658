//! The fake backend: the suite all backends pass, and its faults.

use std::time::Duration;

use leasehold_backend::conformance;
use leasehold_backend::conformance::script::Script;
use leasehold_backend::execution::RunEvent;
use leasehold_backend::fake::FakeBackend;
use leasehold_backend::seam::{Backend, Computer};
use leasehold_core::end::EndReason;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::RunId;
use leasehold_core::limits::{Limit, Resource};
use leasehold_core::record::RunRecord;
use leasehold_core::sandbox::state::State;
use leasehold_core::spec::SandboxSpec;

fn run_id(number: u8) -> RunId {
    RunId::from_entropy(&[number; 13])
}

async fn park(backend: &FakeBackend) -> Box<dyn Computer> {
    backend
        .provision(SandboxSpec::default(), None)
        .await
        .unwrap()
}

async fn record(computer: &dyn Computer, run: RunId, script: Script) -> RunRecord {
    let mut execution = computer.run(run, script.exec(), None).await.unwrap();
    execution.cleaned().await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_fake_backend_passes_the_suite() {
    let backend = FakeBackend::new();
    let report = conformance::all(&backend, &backend).await;
    eprint!("{report}");
    assert_eq!(report.failures(), 0);
    assert!(report.rows.len() > 30);
    assert!(backend.present().is_empty(), "{:?}", backend.present());
}

/// A backend that does not hold what it promises does not pass.
#[tokio::test(start_paused = true)]
async fn the_suite_can_fail() {
    let backend = FakeBackend::new();
    backend.faults(|faults| faults.dirty = u32::MAX);
    let report = conformance::all(&backend, &backend).await;
    assert!(report.failures() > 10, "{report}");
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_is_skipped_by_name() {
    let backend = FakeBackend::new();
    backend.faults(|faults| faults.unenforced = vec![Resource::Memory]);
    let report = conformance::all(&backend, &conformance::NoRig).await;
    assert_eq!(report.failures(), 0, "{report}");
    let text = report.to_string();
    assert!(
        text.contains("SKIP fake: memory ends it: enforcement of `memory`"),
        "{text}"
    );
    assert!(text.contains("a way to kill init"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn an_asked_limit_that_cannot_be_held_is_refused() {
    let backend = FakeBackend::new();
    backend.faults(|faults| faults.unenforced = vec![Resource::Memory]);
    let mut spec = SandboxSpec::default();
    assert!(backend.provision(spec.clone(), None).await.is_ok());
    spec.limits.memory_bytes = Limit::asked(64 << 20);
    let refused = backend.provision(spec.clone(), None).await.map(drop);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
    spec.allow_unenforced = true;
    assert!(backend.provision(spec, None).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn provisioning_fails_on_demand_and_leaves_nothing() {
    let backend = FakeBackend::new();
    let error = PublicError::new(ErrorKind::NoCapacity, "full");
    backend.faults(|faults| faults.provision.push_back(error));
    let failed = backend.provision(SandboxSpec::default(), None).await;
    assert_eq!(failed.map(drop).unwrap_err().kind(), ErrorKind::NoCapacity);
    assert!(backend.present().is_empty());
    backend.faults(|faults| faults.capacity = Some(1));
    let first = park(&backend).await;
    let second = backend.provision(SandboxSpec::default(), None).await;
    assert_eq!(second.map(drop).unwrap_err().kind(), ErrorKind::NoCapacity);
    first.destroy().await.unwrap();
    park(&backend).await;
}

#[tokio::test(start_paused = true)]
async fn runs_crash_and_removals_get_stuck_on_demand() {
    let backend = FakeBackend::new();
    backend.faults(|faults| {
        faults.crash.push_back(Duration::from_secs(2));
        faults.dirty = 1;
    });
    let computer = park(&backend).await;
    let done = record(computer.as_ref(), run_id(1), Script::Sleep).await;
    assert!(matches!(done.end, Some(EndReason::SandboxCrashed { .. })));
    assert_eq!(done.usage.wall_micros / 1_000_000, 2);
    assert!(!done.cleanup.unwrap().clean());
    assert_eq!(backend.present(), [(computer.id().clone(), State::Stuck)]);
    assert!(!computer.destroy().await.unwrap().clean());
}

#[tokio::test(start_paused = true)]
async fn slowness_shows_in_the_stages() {
    let backend = FakeBackend::new();
    backend.faults(|faults| {
        faults.start_takes = Duration::from_secs(3);
        faults.destroy_takes = Duration::from_secs(5);
    });
    let computer = park(&backend).await;
    let done = record(computer.as_ref(), run_id(1), Script::True).await;
    let seconds: Vec<u64> = done
        .stages
        .iter()
        .map(|time| time.micros / 1_000_000)
        .collect();
    assert_eq!(seconds, [3, 3, 3, 0, 0, 5, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_run_in_progress_is_followed_by_many() {
    let backend = FakeBackend::new();
    let computer = park(&backend).await;
    let run = run_id(1);
    let mut first = computer
        .run(run.clone(), Script::Sleep.exec(), None)
        .await
        .unwrap();
    let mut second = backend.attach(run).await.unwrap();
    loop {
        let event = second.next().await.unwrap().unwrap();
        if matches!(event, RunEvent::Output { stdout: 7, .. }) {
            break;
        }
    }
    computer.destroy().await.unwrap();
    let (first, second) = (first.cleaned().await, second.cleaned().await);
    assert_eq!(first.unwrap().unwrap(), second.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn what_nobody_waited_for_is_found_by_a_sweep() {
    let backend = FakeBackend::new();
    backend.faults(|faults| faults.provision_takes = Duration::from_secs(5));
    let making = backend.provision(SandboxSpec::default(), None);
    let given_up = tokio::time::timeout(Duration::from_secs(1), making).await;
    assert!(given_up.is_err());
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(backend.present().len(), 1);
    assert_eq!(backend.sweep(Vec::new()).await.unwrap().ended.len(), 1);
    assert!(backend.present().is_empty());
}

#[tokio::test(start_paused = true)]
async fn two_who_destroy_at_once_hear_the_same() {
    let backend = FakeBackend::new();
    backend.faults(|faults| faults.destroy_takes = Duration::from_secs(5));
    let computer = park(&backend).await;
    let (first, second) = tokio::join!(computer.destroy(), computer.destroy());
    let (first, second) = (first.unwrap(), second.unwrap());
    assert!(first.clean());
    assert_eq!(first, second);
}
