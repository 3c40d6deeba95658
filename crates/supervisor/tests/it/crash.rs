//! kill -9 of the supervisor and of callers at each stage; sweeps; removal that does not converge.

use std::path::PathBuf;
use std::time::Instant;

use leasehold_core::end::EndReason;
use leasehold_core::sandbox::state::State;
use leasehold_core::spec::SandboxSpec;
use leasehold_core::stage::Stage;
use leasehold_protocol::supervisor::{Event, Request, Target};
use leasehold_supervisor::records::Records;
use leasehold_supervisor::sweep::sweep;

use crate::harness::{Supervisor, eventually, run_id, shell};

/// Leases of uid blocks that name this supervisor's ledger.
fn leases(supervisor: &Supervisor) -> usize {
    let ledger = supervisor.paths.ledger();
    let Ok(found) = std::fs::read_dir(leasehold_supervisor::uids::REGISTRY) else {
        return 0;
    };
    found
        .flatten()
        .filter_map(|entry| std::fs::read_to_string(entry.path()).ok())
        .filter(|holder| *holder == ledger.to_string_lossy())
        .count()
}

fn nothing_left(supervisor: &Supervisor) {
    assert_eq!(supervisor.ledger(), [""; 0]);
    assert!(
        supervisor.cgroups().is_empty(),
        "{:?}",
        supervisor.cgroups()
    );
    assert_eq!(leases(supervisor), 0);
}

#[test]
fn i1_i3_i11_a_supervisor_killed_at_any_stage_leaves_a_complete_record_and_nothing_else() {
    for stage in Stage::ALL {
        let hold = format!("{}:60000", stage.word());
        let name = format!("crash-{}", stage.word());
        let Some(mut supervisor) = Supervisor::start_with(&name, &[("LEASEHOLD_HOLD", &hold)])
        else {
            return;
        };
        let mut client = supervisor.connect();
        client.start(
            1,
            Target::New(SandboxSpec::default()),
            shell("sleep 0.05; echo x"),
            &[],
        );
        let mut ended = None;
        loop {
            match client.next().unwrap().0.event {
                Event::Ended(record) => ended = Some(record),
                Event::Stage(time) if time.stage == stage => break,
                _ => {}
            }
        }
        supervisor.kill();
        assert!(client.next().is_none(), "{stage:?}: it is dead");
        let begun = Instant::now();
        supervisor.succeed();
        assert!(
            begun.elapsed().as_secs() < 4,
            "{stage:?}: the sweep took {:?}",
            begun.elapsed()
        );
        let records = Records::open(&supervisor.paths).unwrap();
        let record = records.read(&run_id(1)).unwrap().unwrap();
        let end = ended.map_or(Some(EndReason::HostLost), |record| record.end);
        assert_eq!(record.end, end, "{stage:?}");
        let cleanup = record.cleanup.unwrap();
        assert!(cleanup.clean(), "{stage:?}: {cleanup:?}");
        assert!(records.unfinished().unwrap().is_empty());
        nothing_left(&supervisor);
        // And it works.
        let done = supervisor
            .connect()
            .run(2, SandboxSpec::default(), shell("echo y"));
        assert_eq!(done.stdout, b"y\n");
    }
}

/// A run that takes a parked sandbox is recorded by one write and gets its name afterwards.
#[test]
fn i1_a_run_that_was_recorded_and_has_no_name_yet_is_completed() {
    let fault = [("LEASEHOLD_FAULT", "naming")];
    let Some(mut supervisor) = Supervisor::start_with("crash-naming", &fault) else {
        return;
    };
    let mut client = supervisor.connect();
    let wanted = Request::Provision {
        sandbox: SandboxSpec::default(),
        held: false,
    };
    let Event::Provisioned { sandbox, .. } = client.ask(wanted).0 else {
        panic!("nothing was provisioned");
    };
    client.start(1, Target::Parked(sandbox.clone()), shell("sleep 60"), &[]);
    assert!(client.next().is_none(), "it is dead, and told nobody");
    supervisor.kill();
    let records = Records::open(&supervisor.paths).unwrap();
    // The control: it has no name, and a record all the same.
    assert_eq!(records.read(&run_id(1)).unwrap(), None);
    let place = supervisor.paths.blank_runs().join(sandbox.as_str());
    let first = std::fs::read_to_string(place.join("record.json")).unwrap();
    assert!(first.contains(run_id(1).as_str()), "{first}");
    supervisor.succeed();
    let record = records.read(&run_id(1)).unwrap().unwrap();
    assert_eq!(record.end, Some(EndReason::HostLost));
    assert!(record.cleanup.unwrap().clean());
    assert!(records.unfinished().unwrap().is_empty());
    assert!(!place.exists());
    nothing_left(&supervisor);
}

#[test]
fn a_caller_that_dies_at_any_stage_changes_nothing() {
    for stage in Stage::ALL {
        let hold = format!("{}:150", stage.word());
        let name = format!("caller-{}", stage.word());
        let Some(supervisor) = Supervisor::start_with(&name, &[("LEASEHOLD_HOLD", &hold)]) else {
            return;
        };
        let mut client = supervisor.connect();
        client.start(1, Target::New(SandboxSpec::default()), shell("echo x"), &[]);
        while !matches!(client.next().unwrap().0.event, Event::Stage(t) if t.stage == stage) {}
        drop(client);
        let records = Records::open(&supervisor.paths).unwrap();
        eventually("the record is complete", || {
            records.unfinished().unwrap().is_empty()
        });
        let record = records.read(&run_id(1)).unwrap().unwrap();
        assert_eq!(record.end, Some(EndReason::Completed), "{stage:?}");
        assert_eq!(record.stdout.kept, 2, "{stage:?}");
        nothing_left(&supervisor);
    }
}

#[test]
fn sandboxes_die_with_their_supervisor_before_anybody_sweeps() {
    let Some(mut supervisor) = Supervisor::start("crash-die") else {
        return;
    };
    let mut client = supervisor.connect();
    let pool = Request::Pool {
        sandbox: SandboxSpec::default(),
        count: 3,
        held: false,
    };
    assert_eq!(client.ask(pool).0, Event::Done);
    client.start(
        1,
        Target::New(SandboxSpec::default()),
        shell("sleep 100"),
        &[],
    );
    while !matches!(client.next().unwrap().0.event, Event::Stage(t) if t.stage == Stage::Inject) {}
    let Event::Status { sandboxes } = client.ask(Request::Status).0 else {
        panic!("no status");
    };
    // One may be on its way to refill the pool.
    let pids = sandboxes
        .iter()
        .map(|one| one.init_pid)
        .filter(|pid| *pid != 0);
    let pids: Vec<u32> = pids.collect();
    assert!(pids.len() >= 3);
    supervisor.kill();
    eventually("every init is dead", || {
        pids.iter()
            .all(|pid| !PathBuf::from(format!("/proc/{pid}")).exists())
    });
    let dry = sweep(&supervisor.paths, true).unwrap();
    assert!(
        dry.dry_run && dry.sandboxes.len() >= 3 && dry.runs == [run_id(1)],
        "{dry:?}"
    );
    assert!(!supervisor.ledger().is_empty(), "a dry run removes nothing");
    let swept = sweep(&supervisor.paths, false).unwrap();
    assert!(
        swept.clean() && swept.sandboxes.len() == dry.sandboxes.len(),
        "{swept:?}"
    );
    nothing_left(&supervisor);
    assert!(
        sweep(&supervisor.paths, false).unwrap().nothing(),
        "the second finds nothing"
    );
}

#[test]
fn a_sweep_leaves_the_living_alone() {
    let Some(supervisor) = Supervisor::start("crash-live") else {
        return;
    };
    let mut client = supervisor.connect();
    let sandbox = SandboxSpec::default();
    assert!(matches!(
        client
            .ask(Request::Provision {
                sandbox,
                held: false
            })
            .0,
        Event::Provisioned { .. }
    ));
    let report = sweep(&supervisor.paths, false).unwrap();
    assert!(report.live && report.nothing());
    assert_eq!(supervisor.ledger().len(), 1);
}

#[test]
fn i7_removal_that_fails_is_said_quarantined_and_mended_by_the_next_start() {
    for fault in ["cgroups", "uids", "scratch"] {
        let name = format!("fault-{fault}");
        let Some(mut supervisor) = Supervisor::start_with(&name, &[("LEASEHOLD_FAULT", fault)])
        else {
            return;
        };
        let mut client = supervisor.connect();
        let done = client.run(1, SandboxSpec::default(), shell("true"));
        let cleanup = done.cleaned.cleanup.unwrap();
        assert!(!cleanup.clean(), "{fault}");
        let row = cleanup
            .residues
            .iter()
            .find(|row| row.resource == fault)
            .unwrap();
        assert!(!row.clean, "{cleanup:?}");
        assert_eq!(leases(&supervisor), 1, "{fault}: the block is quarantined");
        let Event::Status { sandboxes } = client.ask(Request::Status).0 else {
            panic!("no status");
        };
        assert_eq!(sandboxes[0].state, State::Stuck);
        supervisor.kill();
        supervisor.succeed();
        nothing_left(&supervisor);
    }
}

#[test]
fn two_starters_make_one_supervisor() {
    let Some(mut supervisor) = Supervisor::start("crash-two") else {
        return;
    };
    let mut second = supervisor.rival();
    assert!(
        second.wait().unwrap().success(),
        "the loser leaves with status 0"
    );
    assert!(supervisor.child.try_wait().unwrap().is_none());
    supervisor.connect();
}
