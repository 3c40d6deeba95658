//! P23: what cannot be had is refused by name; nothing weaker is ever used instead.

use std::process::Command;
use std::time::Duration;

use leasehold_e2e::{Instance, Need, Running, need};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(30);

/// A command that tells on the host, by a file in a workspace of the host's, that it ran.
fn witness(instance: &Instance, flags: &[&str]) -> (leasehold_e2e::Outcome, bool) {
    let folder = instance.scratch("witness");
    let seen = folder.join("seen");
    std::fs::remove_file(&seen).ok();
    let workspace = format!("{}:rw", folder.display());
    let head = ["run", "--workspace", &workspace];
    let words = [&head[..], flags, &["--", "touch", "seen"]].concat();
    (instance.cli(words), seen.exists())
}

#[test]
fn p23_a_stronger_boundary_is_never_replaced_by_a_weaker_one() {
    if !need("p23_a_stronger_boundary", &[Need::Root]) {
        return;
    }
    let instance = Instance::new();
    // The control: the same command does run, and its record names what it ran in.
    let (outcome, ran) = witness(
        &instance,
        &["--isolation", "process", "--trust", "first-party"],
    );
    assert!(outcome.status == 0 && ran, "{}", outcome.story());
    for (flags, word) in [
        (["--isolation", "wasm"], "wasm"),
        (["--isolation", "container"], "container"),
        (["--isolation", "gvisor"], "gvisor"),
        (["--isolation", "microvm"], "microvm"),
        (["--trust", "verified"], "container"),
        (["--trust", "untrusted"], "gvisor"),
    ] {
        // Asking for the weakest beside it does not help.
        for more in [&[][..], &["--isolation", "process"]] {
            if !more.is_empty() && flags[0] == "--isolation" {
                continue;
            }
            let (outcome, ran) = witness(&instance, &[&flags[..], more].concat());
            // A native program is nothing for the engine, whether that is here or not.
            let status = if word == "wasm" { 2 } else { 125 };
            assert_eq!(outcome.status, status, "{flags:?}: {}", outcome.story());
            assert!(
                outcome.err().contains(word),
                "{flags:?}: {}",
                outcome.story()
            );
            assert!(!ran, "{flags:?} ran");
        }
    }
    for flags in [
        ["--isolation", "bogus"],
        ["--isolation", ""],
        ["--trust", "all"],
        ["--network", "all"],
    ] {
        let (outcome, ran) = witness(&instance, &flags);
        assert_eq!(outcome.status, 2, "{flags:?}: {}", outcome.story());
        assert!(!ran, "{flags:?} ran");
    }
    let record = instance.record_of(&[], "true");
    let contract = &record["contract"];
    assert_eq!(contract["backend"], "process", "{contract:#}");
    assert_eq!(contract["isolation"], "process", "{contract:#}");
    let posture = &contract["posture"];
    let digest = posture["seccomp_sha256"].as_str().unwrap_or_default();
    assert_eq!(digest.len(), 64, "{posture:#}");
    let kernel =
        std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's release");
    assert_eq!(posture["kernel"], Value::from(kernel.trim()));
}

/// As a user in a user namespace, which may make so many more of them: without one for the sandbox
/// there is no sandbox.
fn with_namespaces(instance: &Instance, most: u32) -> leasehold_e2e::Outcome {
    let inner = instance.command(["run", "--", "echo", "ran"]);
    let script = format!(
        "echo {most} > /proc/sys/user/max_user_namespaces && exec unshare --user --map-user=1000 --map-group=1000 \"$@\""
    );
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", &script, "sh"]);
    command.arg(inner.get_program()).args(inner.get_args());
    command.env_clear();
    command.envs(
        inner
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    command.current_dir("/");
    Running::start(&mut command, None).wait(PATIENCE)
}

#[test]
fn p23_a_missing_control_is_a_refusal() {
    let test = "p23_a_missing_control";
    if !need(test, &[Need::Root, Need::Program("unshare")]) {
        return;
    }
    let instance = Instance::new();
    let without = with_namespaces(&instance, 1).status_is(125);
    assert!(!without.out().contains("ran"), "{}", without.story());
    assert!(
        without.err().contains("user namespace"),
        "{}",
        without.story()
    );
    // The control: with them it is made, so nothing else was in the way.
    let with = with_namespaces(&instance, 100).status_is(0);
    assert!(with.out().contains("ran"), "{}", with.story());
}

/// What a run is made of cannot be weakened from inside: the command line is not there, and no socket
/// of ours is.
#[test]
fn p23_a_guest_cannot_ask_for_a_weaker_sandbox() {
    if !need("p23_a_guest_cannot_ask", &[Need::Root]) {
        return;
    }
    let instance = Instance::new();
    let folder = instance.scratch("guest");
    std::fs::copy(leasehold_e2e::leasehold(), folder.join("leasehold")).expect("copy our binary");
    let workspace = folder.display().to_string();
    // Its own command line, with the directories of this instance and with its own.
    let script = format!(
        "export LEASEHOLD_STATE_DIR={} LEASEHOLD_RUN_DIR={}; ls -d $LEASEHOLD_RUN_DIR; ./leasehold run -- echo ran; \
         mkdir -m 700 /tmp/s /tmp/r; LEASEHOLD_STATE_DIR=/tmp/s LEASEHOLD_RUN_DIR=/tmp/r ./leasehold run -- echo ran; true",
        instance.state().display(),
        instance.run_folder().display()
    );
    let head = [
        "run",
        "-q",
        "--memory",
        "1G",
        "--disk",
        "500M",
        "--workspace",
        &workspace,
        "--",
        "sh",
        "-c",
    ];
    let outcome = instance.cli([&head[..], &[&script]].concat()).status_is(0);
    assert_eq!(outcome.out(), "", "{}", outcome.story());
    assert!(outcome.err().contains("cannot use"), "{}", outcome.story());
    // The control: the same copy outside does run something.
    let mut command = Command::new(folder.join("leasehold"));
    let inner = instance.command(["run", "--", "echo", "ran"]);
    command.args(inner.get_args()).env_clear();
    command.envs(
        inner
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let outcome = Running::start(&mut command, None)
        .wait(PATIENCE)
        .status_is(0);
    assert!(outcome.out().contains("ran"), "{}", outcome.story());
}
