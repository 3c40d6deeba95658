//! What runs left, and when it goes.

use std::fs;
use std::time::{Duration, SystemTime};

use leasehold_core::error::ErrorKind;
use leasehold_core::id::RunId;
use leasehold_core::record::RunRecord;
use leasehold_core::spec::SandboxSpec;
use leasehold_protocol::supervisor::{Event, Request, Target};
use leasehold_supervisor::records::Records;
use leasehold_supervisor::retention::{Pass, Pruner, Retention};

use crate::harness::{Supervisor, eventually, run_id, shell};

fn records(supervisor: &Supervisor) -> Records {
    Records::open(&supervisor.paths).unwrap()
}

fn record(supervisor: &Supervisor, run: &RunId) -> RunRecord {
    records(supervisor).read(run).unwrap().unwrap()
}

fn files(supervisor: &Supervisor, run: &RunId) -> Vec<String> {
    let Ok(found) = fs::read_dir(supervisor.paths.runs().join(run.as_str())) else {
        return Vec::new();
    };
    let names = found.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Makes the end of a run so many hours older.
fn age(supervisor: &Supervisor, run: &RunId, hours: u64) {
    let path = supervisor
        .paths
        .runs()
        .join(run.as_str())
        .join("record.json");
    let file = fs::File::options().write(true).open(path).unwrap();
    let time = SystemTime::now() - Duration::from_secs(hours * 3_600);
    file.set_modified(time).unwrap();
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap().as_millis()).unwrap()
}

/// A whole pass by hand.
fn pass(supervisor: &Supervisor, retention: Retention, dry_run: bool) -> Pruner {
    let mut pruner = Pruner::new(retention, now_ms(), dry_run);
    while pruner.step(&records(supervisor)).unwrap() == Pass::On {}
    assert_eq!(pruner.failures, 0);
    pruner
}

fn whole(supervisor: &Supervisor, run: &RunId) -> bool {
    let files = files(supervisor, run);
    files.contains(&"stdout".to_owned()) && files.contains(&"stderr".to_owned())
}

/// Runs one command with a collected file for each letter, each an hour older than the next.
fn some_runs(supervisor: &Supervisor, letters: &[u8]) {
    let mut client = supervisor.connect();
    for (at, letter) in letters.iter().enumerate() {
        let mut exec = shell("mkdir -p d/e; echo kept > d/e/f; head -c 1000 /dev/zero");
        exec.artifacts = vec!["d/e/f".to_owned()];
        let done = client.run(*letter, SandboxSpec::default(), exec);
        assert_eq!(done.stdout.len(), 1_000);
        assert_eq!(done.ended.artifacts.len(), 1);
        age(supervisor, &run_id(*letter), (letters.len() - at) as u64);
    }
}

#[test]
fn output_goes_by_number_and_its_record_says_so() {
    let keep = [("LEASEHOLD_KEEP_RUNS", "2")];
    let Some(mut supervisor) = Supervisor::start("keep-number") else {
        return;
    };
    some_runs(&supervisor, &[1, 2, 3, 4]);
    let before = record(&supervisor, &run_id(1));
    assert!(files(&supervisor, &run_id(1)).contains(&"artifacts".to_owned()));
    supervisor.kill();
    supervisor.succeed_with(&keep);
    // One that is not over is not looked at, whatever else is.
    let mut client = supervisor.connect();
    let target = Target::New(SandboxSpec::default());
    client.start(9, target, shell("echo x; sleep 1000"), &[]);
    for letter in [1, 2] {
        eventually("the output of the oldest is gone", || {
            files(&supervisor, &run_id(letter)) == ["record.json"]
        });
    }
    for letter in [3, 4, 9] {
        assert!(whole(&supervisor, &run_id(letter)), "{letter}");
    }
    let after = record(&supervisor, &run_id(1));
    assert!(after.pruned_unix_ms.unwrap() >= before.accepted_unix_ms);
    let unmarked = RunRecord {
        pruned_unix_ms: None,
        ..after
    };
    assert_eq!(unmarked, before, "nothing else of the record changed");
    let run = run_id(1);
    match supervisor.connect().ask(Request::Attach { run }).0 {
        Event::Refused(error) => {
            assert_eq!(error.kind, ErrorKind::NotFound);
            assert!(error.message.contains("was pruned"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn output_goes_by_age_and_by_size_and_records_by_their_own_number() {
    let Some(supervisor) = Supervisor::start("keep-bounds") else {
        return;
    };
    some_runs(&supervisor, &[1, 2, 3, 4, 5]);
    let all = Retention::default();
    assert!(pass(&supervisor, all, false).pruned.is_empty());
    let age = Duration::from_secs(4 * 3_600 + 1_800);
    let aged = Retention { age, ..all };
    let dry = pass(&supervisor, aged, true);
    assert_eq!((dry.pruned.len(), &dry.pruned[0].run), (1, &run_id(1)));
    // Its output and the file that was kept.
    assert_eq!(dry.pruned[0].output_bytes, 1_005);
    assert!(whole(&supervisor, &run_id(1)), "a dry run removes nothing");
    assert_eq!(pass(&supervisor, aged, false).pruned, dry.pruned);
    assert!(!whole(&supervisor, &run_id(1)) && whole(&supervisor, &run_id(2)));
    // Room for three of them.
    let sized = Retention {
        bytes: 3_500,
        ..all
    };
    assert_eq!(pass(&supervisor, sized, false).pruned.len(), 1);
    assert!(!whole(&supervisor, &run_id(2)) && whole(&supervisor, &run_id(3)));
    let few = Retention { records: 4, ..all };
    let gone = pass(&supervisor, few, false).pruned;
    assert!(gone.len() == 1 && gone[0].record);
    assert!(files(&supervisor, &run_id(1)).is_empty());
    assert_eq!(records(&supervisor).read(&run_id(1)).unwrap(), None);
    let least = Retention {
        age: Duration::ZERO,
        runs: 1,
        bytes: 0,
        records: 1,
    };
    pass(&supervisor, least, false);
    assert!(whole(&supervisor, &run_id(5)), "the newest stays");
    assert_eq!(records(&supervisor).list(10).unwrap().len(), 1);
}

/// An end at any point: the next pass finds what is left, and the record says no less than is so.
#[test]
fn a_pass_that_was_ended_anywhere_is_finished_by_the_next() {
    let Some(supervisor) = Supervisor::start("keep-torn") else {
        return;
    };
    some_runs(&supervisor, &[1, 2, 3]);
    let run = run_id(1);
    let directory = supervisor.paths.runs().join(run.as_str());
    let retention = Retention {
        runs: 2,
        ..Retention::default()
    };
    // After the mark and one of the files: the record says that output is gone before it is.
    let saved = fs::read(directory.join("stderr")).unwrap();
    let artifacts = directory.join("artifacts/d/e");
    pass(&supervisor, retention, false);
    let marked = record(&supervisor, &run).pruned_unix_ms;
    assert!(marked.is_some());
    fs::create_dir_all(&artifacts).unwrap();
    fs::write(artifacts.join("f"), "kept").unwrap();
    fs::write(directory.join("stderr"), &saved).unwrap();
    let again = pass(&supervisor, retention, false);
    assert_eq!(again.pruned.len(), 1);
    assert_eq!(files(&supervisor, &run), ["record.json"]);
    assert_eq!(record(&supervisor, &run).pruned_unix_ms, marked);
    // In the middle of writing the mark.
    fs::write(directory.join("record.next"), "{half").unwrap();
    assert_eq!(record(&supervisor, &run).pruned_unix_ms, marked);
    // After the record and before the directory.
    fs::remove_file(directory.join("record.json")).unwrap();
    fs::write(directory.join("stdout"), "left").unwrap();
    let last = pass(&supervisor, Retention::default(), false);
    assert!(last.pruned.len() == 1 && last.pruned[0].record);
    assert!(!directory.exists());
    // A link of somebody's leads nowhere.
    let elsewhere = supervisor.paths.state().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("file"), "safe").unwrap();
    let other = supervisor.paths.runs().join(run_id(2).as_str());
    fs::remove_dir_all(other.join("artifacts")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, other.join("artifacts")).unwrap();
    let one = Retention {
        runs: 1,
        ..Retention::default()
    };
    pass(&supervisor, one, false);
    assert_eq!(files(&supervisor, &run_id(2)), ["record.json"]);
    assert!(elsewhere.join("file").exists());
}

/// Killed in the middle of a pass over many, again and again: the next start goes on, and the last one
/// finishes.
#[test]
fn a_supervisor_killed_while_it_prunes_is_carried_on_by_the_next() {
    let Some(mut supervisor) = Supervisor::start("keep-killed") else {
        return;
    };
    some_runs(&supervisor, &[1]);
    let newest = run_id(1);
    age(&supervisor, &newest, 0);
    let from = supervisor.paths.runs().join(newest.as_str());
    let template = record(&supervisor, &newest);
    let many: Vec<RunId> = (0..200_u32)
        .map(|number| {
            let mut entropy = [9; 13];
            entropy[..4].copy_from_slice(&number.to_le_bytes());
            RunId::from_entropy(&entropy)
        })
        .collect();
    for run in &many {
        let to = supervisor.paths.runs().join(run.as_str());
        fs::create_dir(&to).unwrap();
        for name in ["stdout", "stderr"] {
            fs::copy(from.join(name), to.join(name)).unwrap();
        }
        let record = RunRecord {
            run: run.clone(),
            ..template.clone()
        };
        fs::write(to.join("record.json"), serde_json::to_vec(&record).unwrap()).unwrap();
        age(&supervisor, run, 5);
    }
    let left = |supervisor: &Supervisor| {
        let whole = many.iter().filter(|run| whole(supervisor, run));
        whole.count()
    };
    for kill in 0..6 {
        let before = left(&supervisor);
        assert!(
            before > 0,
            "over after {kill} kills: it was never in the middle"
        );
        supervisor.kill();
        supervisor.succeed_with(&[("LEASEHOLD_KEEP_RUNS", "1")]);
        eventually("some are pruned", || left(&supervisor) < before);
    }
    eventually("all are pruned", || left(&supervisor) == 0);
    for run in &many {
        let pruned = || files(&supervisor, run) == ["record.json"];
        eventually("what was begun is finished", pruned);
        assert!(record(&supervisor, run).pruned_unix_ms.is_some());
    }
    assert!(whole(&supervisor, &newest));
}
