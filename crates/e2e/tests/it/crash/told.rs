//! What is told of what went wrong or is gone: retention, quiet runs, and where a run is taken up.

use leasehold_e2e::{Instance, until};

use super::SOON;
use crate::record::assert_nothing_left;

/// Runs a script and gives the id of the run.
fn ran(instance: &Instance, script: &str) -> String {
    instance.sh(&[], script).status_is(0);
    until("a run that is over", SOON, || {
        let open = std::fs::read_dir(instance.state().join("open")).expect("the open runs");
        (open.count() == 0).then_some(())
    });
    instance.last_run()
}

#[test]
fn prune_takes_the_output_and_leaves_the_record() {
    let instance = Instance::new();
    let mut runs = Vec::new();
    for text in ["one", "two", "three"] {
        runs.push(ran(&instance, &format!("echo {text}")));
    }
    let dry = instance
        .cli(["prune", "--dry-run", "--keep", "1"])
        .status_is(0);
    assert_eq!(
        dry.out().matches("would be pruned").count(),
        3,
        "{}",
        dry.out()
    );
    assert_eq!(instance.cli(["logs", &runs[0]]).out(), "one\n");
    let done = instance.cli(["prune", "--keep", "1"]).status_is(0);
    assert!(done.out().contains("2 runs pruned"), "{}", done.out());
    for run in &runs[..2] {
        let gone = instance.cli(["logs", run]).status_is(125);
        let told = gone.err().contains("was pruned at") && gone.err().contains("leasehold show");
        assert!(told, "{}", gone.story());
        let page = instance.cli(["show", run]).status_is(0);
        assert!(page.out().contains("completed") && page.out().contains("pruned at"));
        assert!(instance.record(run)["pruned_unix_ms"].is_u64());
        let joined = instance.cli(["attach", run]);
        assert!(joined.err().contains("was pruned"), "{}", joined.story());
    }
    assert_eq!(instance.cli(["logs", &runs[2]]).out(), "three\n");
    let nothing = instance.cli(["prune", "--keep", "1"]).status_is(0);
    assert_eq!(nothing.out(), "nothing is to be pruned\n");
    let none = instance.cli(["prune", "--keep", "0"]).status_is(2);
    assert!(none.err().contains("`--keep` is `0`"), "{}", none.story());
    assert_nothing_left(&instance);
}

#[test]
fn a_wrong_rule_of_retention_is_refused_before_anything_is_started() {
    let instance = Instance::new();
    let mut command = instance.command(["run", "--", "true"]);
    command.env("LEASEHOLD_KEEP_RUNS", "0");
    let refused = leasehold_e2e::Running::start(&mut command, None).wait(SOON);
    let refused = refused.status_is(2);
    let named = refused.err().contains("`LEASEHOLD_KEEP_RUNS` is `0`");
    assert!(named, "{}", refused.story());
    assert!(instance.supervisor().is_none());
}

#[test]
fn a_quiet_run_tells_what_is_no_doing_of_the_command() {
    let instance = Instance::new();
    let failed = instance.run(["-q", "--workdir", "/nowhere", "--", "true"]);
    let failed = failed.status_is(125);
    let told = failed.err().contains("working directory") && failed.err().contains("/nowhere");
    assert!(told, "{}", failed.story());
    let mend = failed
        .err()
        .contains("hint: --workdir names a directory inside");
    assert!(
        mend && !failed.err().contains("doctor"),
        "{}",
        failed.story()
    );
    // The control: what the command itself does is not told.
    let own = instance
        .run(["-q", "--", "sh", "-c", "exit 3"])
        .status_is(3);
    assert_eq!(own.err(), "");
    assert_nothing_left(&instance);
}

#[test]
fn a_run_is_taken_up_where_one_says() {
    let instance = Instance::new();
    let run = ran(&instance, "printf 0123456789");
    let attach = |from: &str| instance.cli(["attach", "-q", &run, "--from", from]);
    assert_eq!(attach("start").status_is(0).out(), "0123456789");
    assert_eq!(attach("4").status_is(0).out(), "456789");
    assert_eq!(attach("end").status_is(0).out(), "");
    assert_eq!(attach("99").status_is(0).out(), "");
    let wrong = attach("middle").status_is(2);
    assert!(
        wrong.err().contains("`--from` is `middle`"),
        "{}",
        wrong.story()
    );

    let live = instance.start(["run", "--", "sh", "-c", "echo one; sleep 3; echo two"]);
    live.await_out("one", SOON);
    let run = instance.last_run();
    let late = instance.cli(["attach", "-q", &run, "--from", "end"]);
    assert_eq!(late.status_is(0).out(), "two\n");
    live.wait(SOON).status_is(0);
    assert_nothing_left(&instance);
}
