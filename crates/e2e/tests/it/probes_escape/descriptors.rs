//! P02, P61: nothing the caller has open and nothing of its environment is inside, or with our helpers.

use std::fs;
use std::path::Path;
use std::process::Command;

use leasehold_e2e::{Instance, Need, Running, Who, need, until};

use super::{
    PATIENCE, await_workload, below, descriptors_of, everybody, helper, inits, outside, parents,
};

const HOLDER: &str = include_str!("../../../helpers/holder.c");
/// Descriptors the holder opens at least.
const HELD: usize = 200;
const CANARY: &str = "canary-5f0d1c7a";
/// Names a caller keeps secrets in, or steers programs by.
const SENSITIVE: [&str; 10] = [
    "AWS_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN",
    "HTTPS_PROXY",
    "http_proxy",
    "SSL_CERT_FILE",
    "LD_PRELOAD_CANARY",
    "BASH_ENV",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "NODE_OPTIONS",
];

/// `leasehold` with these arguments, started by the holder.
fn held(instance: &Instance, holder: &Path, args: &[&str]) -> Command {
    let inner = instance.command(args);
    let mut command = Command::new(holder);
    command.arg(inner.get_program()).args(inner.get_args());
    command.env_clear();
    command.envs(
        inner
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    command.current_dir("/");
    command
}

/// A process has its three descriptors, and they are no more than that.
#[track_caller]
fn only_standard(pid: i32) {
    let open = descriptors_of(pid);
    assert_eq!(
        open.keys().copied().collect::<Vec<_>>(),
        [0, 1, 2],
        "{open:?}"
    );
    for target in open.values() {
        let known = ["/dev/null", "/dev/pts/", "pipe:"];
        assert!(
            known.iter().any(|head| target.starts_with(head)),
            "{open:?}"
        );
    }
    let cwd = fs::read_link(format!("/proc/{pid}/cwd")).expect("its directory");
    assert_eq!(cwd, Path::new("/workspace"));
}

/// Nothing of what the holder held is open in any process of ours but the command line itself.
#[track_caller]
fn nothing_passed_on(instance: &Instance) {
    let parents = parents();
    let supervisor = instance.supervisor().expect("a supervisor").cast_signed();
    let mut all = below(supervisor, &parents);
    all.push(supervisor);
    assert!(all.len() >= 3, "supervisor, spawner and a sandbox: {all:?}");
    for pid in all {
        let open = descriptors_of(pid);
        let canaries = ["/root", "/etc/passwd", "/memfd:canary"];
        let passed = open
            .values()
            .any(|target| canaries.iter().any(|canary| target.starts_with(canary)));
        assert!(!passed && open.len() < 100, "{pid}: {open:?}");
    }
}

#[test]
fn p02_no_descriptor_of_the_caller_is_inside() {
    let test = "p02_no_descriptor_of_the_caller";
    if !need(test, &[Need::Root]) {
        return;
    }
    let Some(holder) = helper(test, "holder", HOLDER) else {
        return;
    };
    // The control: what the holder starts has all of it, and so has the command line itself.
    let listed = outside(
        &[&holder.display().to_string(), "/bin/ls", "/proc/self/fd"],
        None,
    );
    assert!(listed.status_is(0).out().lines().count() > HELD);

    for who in everybody(test) {
        joined_by_pipes(who, &holder);
        joined_by_a_terminal(who, &holder);
    }
}

/// A command and a warm interpreter.
#[track_caller]
fn joined_by_pipes(who: Who, holder: &Path) {
    for (args, name) in [
        (&["run", "--", "sleep", "60"][..], "sleep"),
        (
            &[
                "run",
                "--warm",
                "python",
                "--",
                "python3",
                "-c",
                "import time; time.sleep(60)",
            ],
            "python3",
        ),
    ] {
        if name == "python3"
            && !need(
                "p02_no_descriptor (warm python)",
                &[Need::Path("/usr/bin/python3")],
            )
        {
            continue;
        }
        let instance = Instance::of(who);
        let running = Running::start(&mut held(&instance, holder, args), None);
        let (_, workload) = await_workload(&instance, name, || running.err());
        let with_canaries = descriptors_of(running.pid().cast_signed()).len();
        assert!(with_canaries > HELD, "the command line has {with_canaries}");
        until("the command to be in place", PATIENCE, || {
            let open = descriptors_of(workload);
            (open.get(&1)?.starts_with("pipe:") && open.len() == 3).then_some(())
        });
        only_standard(workload);
        nothing_passed_on(&instance);
    }
}

#[track_caller]
fn joined_by_a_terminal(who: Who, holder: &Path) {
    // A terminal needs one outside: `script` makes it.
    if need("p02_no_descriptor (terminal)", &[Need::Program("script")]) {
        let instance = Instance::of(who);
        let inner = held(&instance, holder, &["run", "--tty", "--", "sleep", "60"]);
        let words: Vec<String> = [inner.get_program()]
            .into_iter()
            .chain(inner.get_args())
            .map(|word| word.display().to_string())
            .collect();
        let mut command = Command::new("script");
        command.args(["-qec", &words.join(" "), "/dev/null"]);
        command.env_clear();
        command.envs(
            inner
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let running = Running::start(&mut command, None);
        let (_, workload) = await_workload(&instance, "sleep", || running.out() + &running.err());
        only_standard(workload);
        nothing_passed_on(&instance);
    }
}

/// Whether the canary is in the environment of a process.
fn has_canary(pid: i32) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    String::from_utf8_lossy(&environment).contains(CANARY)
}

#[test]
fn p61_nothing_of_the_callers_environment_is_passed_on() {
    let test = "p61_nothing_of_the_callers_environment";
    if !need(test, &[Need::Root]) {
        return;
    }
    for who in everybody(test) {
        passes_nothing_on(&Instance::of(who));
    }
}

/// Runs with canaries in environment and home; nothing of them is inside, or with our helpers.
#[track_caller]
fn passes_nothing_on(instance: &Instance) {
    let home = instance.scratch("home");
    fs::create_dir_all(home.join(".docker")).expect("make a folder");
    fs::write(home.join(".docker/config.json"), CANARY).expect("write a file");
    let agent = std::os::unix::net::UnixListener::bind(home.join("agent.sock")).expect("listen");
    let run = |args: &[&str]| {
        let mut command = instance.command(args);
        for name in SENSITIVE {
            command.env(name, CANARY);
        }
        command.env("SSH_AUTH_SOCK", home.join("agent.sock"));
        command.env("CANARY_HOME", format!("{CANARY}-home"));
        Running::start(&mut command, None)
    };
    // Every file of a process, everything below the home and the socket, by every name.
    let script = format!(
        "env; cat /proc/self/environ /proc/*/environ /proc/*/cmdline; cat $HOME/.docker/* {0}/.docker/*; ls -la $HOME {0}; ls {0}/agent.sock; echo end",
        home.display()
    );
    let told = run(&["run", "-q", "--", "sh", "-c", &script]).wait(PATIENCE);
    assert!(told.out().contains("end"), "{}", told.story());
    let inside = String::from_utf8_lossy(&[&told.stdout[..], b"\n"].concat()).into_owned();
    assert!(
        !inside.contains("canary-5f0d1c7a") && !inside.contains("SSH_AUTH"),
        "{inside}"
    );
    let names: std::collections::BTreeSet<&str> = inside
        .lines()
        .take_while(|line| !line.contains('\0'))
        .filter_map(|line| line.split_once('=').map(|(name, _)| name))
        .collect();
    let declared = ["HOME", "LANG", "LOGNAME", "PATH", "PWD", "USER"];
    assert!(
        names.iter().all(|name| declared.contains(name)),
        "{names:?}"
    );

    // On the host: the command line has the canary (the control), nobody below it has.
    let running = run(&["run", "--artifact", "*", "--", "sleep", "60"]);
    let (init, workload) = await_workload(instance, "sleep", || running.err());
    assert!(
        has_canary(running.pid().cast_signed()),
        "the control has no canary"
    );
    let parents = parents();
    let supervisor = instance.supervisor().expect("a supervisor").cast_signed();
    let all = below(supervisor, &parents);
    assert!(
        all.contains(&init) && all.contains(&workload) && inits(instance, &parents).contains(&init)
    );
    for pid in all.into_iter().chain([supervisor]) {
        assert!(
            !has_canary(pid),
            "process {pid} ({}) has the canary",
            super::comm(pid)
        );
    }
    drop(agent);
}
