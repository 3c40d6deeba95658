//! Runs that share a host: fast, apart, and each with its own end.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold_backend::seam::Backend as _;
use leasehold_backend::wasm::WasmBounds;
use leasehold_core::end::{CancelledBy, EndReason, ExitStatus};
use leasehold_core::error::ErrorKind;
use leasehold_core::id::SandboxId;
use leasehold_core::isolation::Isolation;
use leasehold_core::limits::Limit;
use leasehold_core::stage::Stage;
use rustix::process::{Pid, Signal, kill_process};

use super::{Rig, finish, guests, module, order, tenant};

impl Rig {
    /// Process id of the init of a host's sandbox.
    async fn pid(&self, sandbox: &SandboxId) -> Pid {
        let pid = self.process.init_pid(sandbox).await.unwrap().unwrap();
        Pid::from_raw(pid.cast_signed()).unwrap()
    }
}

#[tokio::test]
async fn a_shared_run_is_told_whole() {
    let Some(rig) = Rig::new("a_shared_run_is_told_whole") else {
        return;
    };
    let hello = module(&guests::hello());
    for warm in [false, true] {
        let done = rig.run(order(&hello).of("ada")).await;
        assert_eq!(*done.end(), EndReason::Completed);
        assert_eq!(done.stdout, b"hello\n");
        assert!(done.shared());
        let record = &done.record;
        assert_eq!(record.warm, warm);
        let stages: Vec<Stage> = record.stages.iter().map(|time| time.stage).collect();
        assert_eq!(stages, Stage::ALL);
        assert!(record.cleanup.as_ref().unwrap().clean());
        let contract = record.contract.as_ref().unwrap();
        assert_eq!(contract.isolation, Isolation::Wasm);
        assert_eq!(contract.program.as_ref().unwrap().digest, *hello.digest());
        let host = contract.posture.host.as_ref().unwrap();
        assert_eq!(host.program, rig.backend.programs().host_digest().unwrap());
        assert_eq!(host.seccomp_sha256.len(), 64);
        assert!(contract.posture.uid_range.0 > 0);
        let module = record.module.as_ref().unwrap();
        assert!(module.memory_peak_bytes >= 64 << 10);
        assert_eq!(record.sandbox, rig.backend.hosts()[0].sandbox);
    }
    let counts = rig.backend.counts();
    assert_eq!((counts.shared, counts.single, counts.compiled), (2, 0, 1));
    assert_eq!(counts.trouble, None);
}

#[tokio::test]
async fn input_arrives_whole_and_too_much_of_it_takes_a_sandbox() {
    let Some(rig) = Rig::new("input_arrives_whole_and_too_much_of_it_takes_a_sandbox") else {
        return;
    };
    let copies = module(&guests::copies());
    for length in [0, 1, 65_536, 1 << 20] {
        let input: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        let order = order(&copies).of("ada").input(&input);
        let execution = rig.backend.launch(order.launch).await.unwrap();
        assert_eq!(execution.fed, Some(length as u64));
        assert!(execution.input.is_none());
        let done = finish(execution).await;
        assert_eq!(*done.end(), EndReason::Completed, "{length}");
        assert!(done.stdout == input, "{length}");
    }
}

#[tokio::test]
async fn a_run_is_attached_to_cancelled_and_taken_once() {
    let Some(rig) = Rig::new("a_run_is_attached_to_cancelled_and_taken_once") else {
        return;
    };
    let sleeps = module(&guests::sleeps());
    let order_of = || order(&sleeps).of("ada");
    let first = order_of();
    let run = first.launch.run.clone();
    let execution = rig.backend.launch(first.launch).await.unwrap();
    let listed = rig.backend.running().await.unwrap();
    assert_eq!(listed, [(run.clone(), execution.sandbox.clone())]);
    let again = rig.backend.attach(run.clone()).await.unwrap();
    let mut second = order_of();
    second.launch.run = run.clone();
    let refused = rig.backend.launch(second.launch).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Exists);
    let by = CancelledBy::Operator;
    rig.backend.cancel(run.clone(), by, false).await.unwrap();
    let (one, other) = tokio::join!(finish(execution), finish(again));
    assert_eq!(*one.end(), EndReason::Cancelled { by });
    assert_eq!(one.record, other.record);
    assert!(rig.backend.running().await.unwrap().is_empty());
    let over = finish(rig.backend.attach(run.clone()).await.unwrap()).await;
    assert_eq!(over.record, one.record);
    rig.backend.cancel(run, by, true).await.unwrap();
    let nobody = rig.backend.attach(super::run_id()).await.map(drop);
    assert_eq!(nobody.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn two_tenants_never_have_one_host() {
    let Some(rig) = Rig::new("two_tenants_never_have_one_host") else {
        return;
    };
    let hello = module(&guests::hello());
    let names = ["ada", "bob", "cyd"];
    let mut hosts = [(); 3].map(|()| BTreeSet::new());
    for _ in 0..10 {
        for (name, seen) in names.iter().zip(&mut hosts) {
            let done = rig.run(order(&hello).of(name)).await;
            assert!(done.shared());
            seen.insert(rig.pid(&done.record.sandbox).await.as_raw_nonzero());
        }
    }
    for (at, seen) in hosts.iter().enumerate() {
        assert_eq!(seen.len(), 1, "{} had {seen:?}", names[at]);
        for other in &hosts[at + 1..] {
            assert!(seen.is_disjoint(other), "{seen:?} and {other:?}");
        }
    }
    let owners = rig
        .backend
        .hosts()
        .into_iter()
        .filter_map(|host| host.tenant);
    let owners: BTreeSet<_> = owners.collect();
    assert_eq!(owners, names.map(tenant).into());
}

#[tokio::test]
async fn the_death_of_a_host_ends_its_runs_alone() {
    let Some(rig) = Rig::new("the_death_of_a_host_ends_its_runs_alone") else {
        return;
    };
    let sleeps = module(&guests::sleeps());
    let hello = module(&guests::hello());
    let mine = rig
        .backend
        .launch(order(&sleeps).of("ada").launch)
        .await
        .unwrap();
    let other = order(&sleeps).of("bob");
    let run = other.launch.run.clone();
    let other = rig.backend.launch(other.launch).await.unwrap();
    let pid = rig.pid(&mine.sandbox).await;
    kill_process(pid, Signal::KILL).unwrap();
    let done = finish(mine).await;
    let EndReason::SandboxCrashed { diagnostics } = done.end() else {
        panic!("{:?}", done.end());
    };
    assert!(
        diagnostics.contains("host of this run is gone"),
        "{diagnostics}"
    );
    // What was seen of it is what the supervisor saw of its sandbox.
    let cleanup = done.record.cleanup.as_ref().unwrap();
    assert!(cleanup.clean(), "{cleanup:?}");
    assert!(cleanup.residues.iter().any(|row| row.resource == "cgroups"));
    assert_eq!(rig.run(order(&hello).of("ada")).await.stdout, b"hello\n");
    assert_eq!(
        rig.run(order(&hello).of("bob")).await.record.sandbox,
        other.sandbox
    );
    let by = CancelledBy::Caller;
    rig.backend.cancel(run, by, true).await.unwrap();
    assert_eq!(*finish(other).await.end(), EndReason::Cancelled { by });
}

#[tokio::test]
async fn a_trap_leaves_its_neighbours_alone() {
    // All of them in one.
    let bounds = WasmBounds {
        hosts_per_tenant: 1,
        ..WasmBounds::default()
    };
    let Some(rig) = Rig::bounded("a_trap_leaves_its_neighbours_alone", &bounds) else {
        return;
    };
    let copies = module(&guests::copies());
    let traps = module(&guests::with(
        "(func $deeper (unreachable)) (func $deep (call $deeper))",
        "(call $deep)",
    ));
    let input = vec![7; 1 << 20];
    let mut neighbours = Vec::new();
    for _ in 0..4 {
        let order = order(&copies).of("ada").input(&input);
        neighbours.push(rig.backend.launch(order.launch).await.unwrap());
    }
    let done = rig.run(order(&traps).of("ada")).await;
    let EndReason::ToolError {
        exit: ExitStatus::Trap { name },
    } = done.end()
    else {
        panic!("{:?}", done.end());
    };
    assert!(name.contains("unreachable"), "{name}");
    let told = done.record.module.as_ref().unwrap();
    assert!(told.backtrace.len() >= 3, "{told:?}");
    let sandbox = done.record.sandbox;
    for execution in neighbours {
        let done = finish(execution).await;
        assert_eq!(*done.end(), EndReason::Completed);
        assert!(done.stdout == input && done.record.sandbox == sandbox);
    }
}

#[tokio::test]
async fn a_host_is_recycled_after_so_many_runs() {
    let bounds = WasmBounds {
        host_runs: 5,
        spares: 1,
        ..WasmBounds::default()
    };
    let Some(rig) = Rig::bounded("a_host_is_recycled_after_so_many_runs", &bounds) else {
        return;
    };
    let hello = module(&guests::hello());
    let mut hosts: Vec<SandboxId> = Vec::new();
    for _ in 0..12 {
        let done = rig.run(order(&hello).of("ada")).await;
        assert!(done.shared());
        hosts.push(done.record.sandbox);
    }
    hosts.dedup();
    assert_eq!(hosts.len(), 3, "{hosts:?}");
    let all: BTreeSet<_> = hosts.iter().collect();
    assert_eq!(all.len(), 3, "one came back: {hosts:?}");
}

#[tokio::test]
async fn idle_hosts_make_room_and_are_ended_by_themselves() {
    let bounds = WasmBounds {
        hosts: 2,
        spares: 0,
        host_idle: Duration::from_millis(200),
        slack: Duration::from_millis(800),
        ..WasmBounds::default()
    };
    let Some(rig) = Rig::bounded("idle_hosts_make_room_and_are_ended_by_themselves", &bounds)
    else {
        return;
    };
    let hello = module(&guests::hello());
    for name in ["ada", "bob", "cyd", "dan"] {
        assert!(rig.run(order(&hello).of(name)).await.shared(), "{name}");
        assert!(rig.backend.hosts().len() <= 2);
    }
    let ended = async {
        while !rig.backend.hosts().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), ended)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_tenant_that_comes_all_at_once_has_no_more_hosts_than_it_may() {
    let bounds = WasmBounds {
        hosts_per_tenant: 2,
        spares: 0,
        room_wait: Duration::from_secs(60),
        ..WasmBounds::default()
    };
    let test = "a_tenant_that_comes_all_at_once_has_no_more_hosts_than_it_may";
    let Some(rig) = Rig::bounded(test, &bounds) else {
        return;
    };
    let hello = module(&guests::hello());
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..24 {
        let order = order(&hello).of("ada");
        let order = order.limits(|limits| limits.output_bytes = Limit::asked(1_000));
        let (backend, launch) = (rig.backend.clone(), order.launch);
        all.spawn(async move { finish(backend.launch(launch).await.unwrap()).await });
    }
    let done = all.join_all().await;
    assert!(
        done.iter()
            .all(|done| done.shared() && done.stdout == b"hello\n")
    );
    let hosts: BTreeSet<_> = done.iter().map(|done| &done.record.sandbox).collect();
    assert!(hosts.len() <= 2, "{hosts:?}");
    assert!(rig.backend.counts().hosts_started <= 2);
}

#[tokio::test]
async fn untouched_hosts_are_kept_ready() {
    let Some(rig) = Rig::new("untouched_hosts_are_kept_ready") else {
        return;
    };
    rig.backend.keep_warm(Default::default(), 2).await.unwrap();
    let spares: BTreeSet<_> = rig
        .backend
        .hosts()
        .into_iter()
        .map(|host| host.sandbox)
        .collect();
    assert_eq!(spares.len(), 2);
    let hello = module(&guests::hello());
    for name in ["ada", "bob"] {
        let done = rig.run(order(&hello).of(name)).await;
        assert!(done.record.warm && spares.contains(&done.record.sandbox));
    }
    rig.backend.keep_warm(Default::default(), 0).await.unwrap();
    let untouched = rig
        .backend
        .hosts()
        .into_iter()
        .filter(|host| host.tenant.is_none());
    assert_eq!(untouched.count(), 0);
}

#[tokio::test]
async fn more_memory_than_a_host_has_is_never_promised_in_it() {
    let bounds = WasmBounds {
        host_memory_bytes: 400 << 20,
        hosts_per_tenant: 1,
        room_wait: Duration::from_millis(100),
        ..WasmBounds::default()
    };
    let Some(rig) = Rig::bounded(
        "more_memory_than_a_host_has_is_never_promised_in_it",
        &bounds,
    ) else {
        return;
    };
    let sleeps = module(&guests::sleeps());
    let of = |mib: u64| {
        order(&sleeps)
            .of("ada")
            .wall(300_000)
            .limits(|limits| limits.memory_bytes = Limit::asked(mib << 20))
    };
    let first = rig.backend.launch(of(300).launch).await.unwrap();
    assert_eq!(rig.backend.counts().shared, 1);
    // It waits for room, and finds it when the first is over.
    let second = tokio::spawn({
        let (backend, launch) = (rig.backend.clone(), of(200).launch);
        async move { backend.launch(launch).await.unwrap() }
    });
    let by = CancelledBy::Caller;
    rig.backend
        .cancel(first.run.clone(), by, true)
        .await
        .unwrap();
    finish(first).await;
    let second = second.await.unwrap();
    assert_eq!(rig.backend.counts().shared, 2);
    rig.backend
        .cancel(second.run.clone(), by, true)
        .await
        .unwrap();
    finish(second).await;
}

#[tokio::test]
async fn a_pace_is_that_of_runs_which_came_to_a_good_end() {
    let Some(rig) = Rig::new("a_pace_is_that_of_runs_which_came_to_a_good_end") else {
        return;
    };
    let hello = module(&guests::hello());
    let pace = rig
        .backend
        .pace(50, 4, move || order(&hello).of("ada").launch);
    let pace = pace.await.unwrap();
    assert_eq!((pace.times.len(), pace.bad), (50, 0));
    assert!(pace.per_second > 0.0 && pace.percentile(50) <= pace.percentile(95));
    let fails = module(&guests::exits(3));
    let pace = rig
        .backend
        .pace(4, 2, move || order(&fails).of("ada").launch);
    assert_eq!(pace.await.unwrap().bad, 5);
}

/// Resident bytes of a process.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages = text
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4_096
}

/// Resident bytes of a process and of all below it.
fn resident_below(pid: u32) -> u64 {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    let below = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    resident(pid) + below.map(resident_below).sum::<u64>()
}

/// In a process of its own: other tests take memory too.
#[test]
fn ten_thousand_runs_are_flat_in_memory() {
    if leasehold_e2e::alone("wasm::shared::ten_thousand_runs_are_flat_in_memory") {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(runs_ten_thousand_times());
    }
}

async fn runs_ten_thousand_times() {
    let bounds = WasmBounds {
        host_runs: 1 << 40,
        ..WasmBounds::default()
    };
    let Some(rig) = Rig::bounded("ten_thousand_runs_are_flat_in_memory", &bounds) else {
        return;
    };
    let copies = module(&guests::copies());
    let input = [b'x'; 1_000];
    let run = async |times: usize| {
        let mut sandbox = None;
        for _ in 0..times {
            let done = rig.run(order(&copies).of("ada").input(&input)).await;
            assert_eq!(*done.end(), EndReason::Completed);
            assert_eq!(done.stdout.len(), 1_000);
            assert!(sandbox.is_none_or(|before| before == done.record.sandbox));
            sandbox = Some(done.record.sandbox);
        }
        sandbox.unwrap()
    };
    let host = run(1_500).await;
    let pid = rig.pid(&host).await.as_raw_nonzero().get().cast_unsigned();
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let now = || (resident(std::process::id()), resident_below(pid), files());
    let before = now();
    assert!(before.1 > 4 << 20, "the host is not below {pid}");
    run(10_000).await;
    let after = now();
    let grown = |before: u64, after: u64| after.saturating_sub(before);
    assert!(
        grown(before.0, after.0) < 8 << 20,
        "we grew: {before:?} {after:?}"
    );
    assert!(
        grown(before.1, after.1) < 8 << 20,
        "the host grew: {before:?} {after:?}"
    );
    assert!(after.2 <= before.2 + 8, "descriptors: {before:?} {after:?}");
}

#[tokio::test]
async fn runs_of_a_process_that_is_gone_were_lost_and_are_not_begun_again() {
    let test = "runs_of_a_process_that_is_gone_were_lost_and_are_not_begun_again";
    let Some(rig) = Rig::new(test) else { return };
    let sleeps = order(&module(&guests::sleeps())).of("ada");
    let run = sleeps.launch.run.clone();
    drop(rig.backend.launch(sleeps.launch).await.unwrap());
    // A process that ends holds nothing any more; the file is all that is left.
    let folder = rig.own.directory.path().join("state/wasm");
    let successor = folder.with_file_name("successor");
    std::fs::create_dir(&successor).unwrap();
    std::fs::copy(folder.join("shared-runs"), successor.join("shared-runs")).unwrap();
    let later = rig.successor(successor);
    let found = later.attach(run.clone()).await.unwrap();
    let done = finish(found).await;
    assert_eq!(*done.end(), EndReason::HostLost);
    assert!(done.record.cleanup.unwrap().clean());
    let mut again = order(&module(&guests::hello())).of("ada");
    again.launch.run = run;
    let refused = later.launch(again.launch).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Exists);
    let fresh = order(&module(&guests::hello())).of("ada");
    let execution = later.launch(fresh.launch).await.unwrap();
    assert_eq!(*finish(execution).await.end(), EndReason::Completed);
}

#[tokio::test]
async fn what_is_kept_of_runs_that_are_over_takes_no_room_from_others() {
    const KIB: u64 = 1 << 10;
    let bounds = WasmBounds {
        output_memory_bytes: 256 * KIB,
        ..WasmBounds::default()
    };
    let test = "what_is_kept_of_runs_that_are_over_takes_no_room_from_others";
    let Some(rig) = Rig::bounded(test, &bounds) else {
        return;
    };
    let says = module(&guests::copies());
    let input = vec![b'x'; 64 << 10];
    for number in 0..6 {
        let order = order(&says).of("eve").input(&input);
        let order = order.limits(|limits| limits.output_bytes = Limit::asked(64 * KIB));
        let done = rig.run(order).await;
        assert!(done.shared(), "run {number}");
        assert_eq!(done.stdout.len(), input.len());
    }
}

/// Begins runs that stay and may print a half of all that may be kept: two of one tenant, then one of another. Gives
/// how many of each share a host, and what was said.
async fn greedy(rig: &Rig) -> ([u64; 2], Option<String>) {
    let sleeps = module(&guests::sleeps());
    let mut shared = [0; 2];
    let mut begun = Vec::new();
    for (at, name) in [(0, "ada"), (0, "ada"), (1, "bob")] {
        let order = order(&sleeps).of(name);
        let order = order.limits(|limits| limits.output_bytes = Limit::asked(64 << 10));
        let run = order.launch.run.clone();
        let before = rig.backend.counts().shared;
        begun.push((run, rig.backend.launch(order.launch).await.unwrap()));
        shared[at] += rig.backend.counts().shared - before;
    }
    let said = rig.backend.counts().trouble;
    for (run, execution) in begun {
        let by = CancelledBy::Operator;
        rig.backend.cancel(run, by, true).await.unwrap();
        assert_eq!(*finish(execution).await.end(), EndReason::Cancelled { by });
    }
    (shared, said)
}

#[tokio::test]
async fn one_tenants_live_runs_leave_another_room_for_its_output() {
    let test = "one_tenants_live_runs_leave_another_room_for_its_output";
    let bounds = |of_a_tenant| WasmBounds {
        output_memory_bytes: 256 << 10,
        output_memory_of_a_tenant: of_a_tenant,
        ..WasmBounds::default()
    };
    let Some(rig) = Rig::bounded(test, &bounds(128 << 10)) else {
        return;
    };
    let (shared, said) = greedy(&rig).await;
    assert_eq!(shared, [1, 1]);
    let said = said.expect("why a run got a sandbox of its own");
    assert!(said.contains("`ada`") && said.contains("128K"), "{said}");
    // The control: without a bound on one tenant it has all, and the other's run shares no host.
    let free = Rig::bounded(test, &bounds(256 << 10)).expect("a second one");
    assert_eq!(greedy(&free).await, ([2, 0], None));
}
