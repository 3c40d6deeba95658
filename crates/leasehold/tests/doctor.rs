//! The doctor against this very host: what it says holds, what it breaches it leaves no trace of, and
//! the commands it gives do mend. Needs root; says so where it is not.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test; the lints know only functions marked as such"
)]

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold");

fn root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIP doctor::{test}: needs root");
    }
    root
}

/// A directory that goes with the value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, owner: u32) -> Self {
        let path = std::env::temp_dir().join(format!("doctor-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(owner), Some(owner)).unwrap();
        Self(path)
    }

    fn apply(&self, command: &mut Command) {
        command
            .env("LEASEHOLD_STATE_DIR", self.0.join("state"))
            .env("LEASEHOLD_RUN_DIR", self.0.join("run"));
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What the host has that a doctor could leave behind.
fn traces() -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut places = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(place) = places.pop() {
        for entry in std::fs::read_dir(&place).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name();
            if name.to_string_lossy().starts_with("leasehold-dr") {
                found.insert(entry.path());
            }
            places.push(entry.path());
        }
    }
    for entry in std::fs::read_dir("/tmp").unwrap().flatten() {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with("leasehold-doctor-") {
            found.insert(entry.path());
        }
    }
    found
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!(
            "{error}: {}\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

fn line<'a>(report: &'a Value, section: &str, what: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    checks
        .iter()
        .find(|check| check["section"] == section && check["what"] == what)
        .unwrap_or_else(|| panic!("no line {section}/{what} in {report:#}"))
}

#[test]
fn i6_every_limit_is_seen_to_bite_and_nothing_stays() {
    if !root("i6_every_limit_is_seen_to_bite_and_nothing_stays") {
        return;
    }
    let output = Command::new(LEASEHOLD)
        .args(["doctor", "--json"])
        .output()
        .unwrap();
    let report = json(&output);
    assert!(output.status.success(), "{report:#}");
    assert_eq!(report["ok"], true);
    for what in [
        "memory", "pids", "disk", "inodes", "cpu", "cpu_time", "wall", "output", "files", "network",
    ] {
        let limit = line(&report, "limits", what);
        assert_eq!(limit["state"], "enforced", "{limit:#}");
    }
    assert_eq!(line(&report, "backends", "process")["state"], "ok");
    assert_eq!(line(&report, "backends", "removal")["state"], "ok");
    assert!(report["timings"].as_array().unwrap().len() >= 4);
    // Others may run a doctor beside this test; their traces are theirs.
    let own = report["pid"].to_string();
    let left: Vec<_> = traces()
        .into_iter()
        .filter(|path| path.to_string_lossy().contains(&own))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    with_the_limit_off(&report);
}

/// The same commands with room enough go through: it was the limit that stopped them.
fn with_the_limit_off(report: &Value) {
    let folder = Folder::new("off", 0);
    for what in ["memory", "pids", "disk", "inodes", "output"] {
        let script = line(report, "limits", what)["script"].as_str().unwrap();
        let mut command = Command::new(LEASEHOLD);
        folder.apply(&mut command);
        let output = command
            .args(["run", "--json", "--memory", "2G", "--timeout", "60s", "--"])
            .args(["/bin/sh", "-c", script])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let record = json(&output);
        assert_eq!(record["end"]["reason"], "completed", "{what}: {record:#}");
        assert_eq!(record["limits_hit"], Value::Array(Vec::new()), "{what}");
        assert_eq!(record["stdout"]["truncated"], false, "{what}");
    }
    let mut command = Command::new(LEASEHOLD);
    folder.apply(&mut command);
    assert!(command.arg("stop").status().unwrap().success());
}

#[test]
fn the_text_is_for_people_and_looking_alone_makes_nothing() {
    let output = Command::new(LEASEHOLD)
        .args(["doctor", "--no-probes"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("Linux "), "{text}");
    for title in ["\nBackends\n", "\nControl groups\n", "\nHost\n"] {
        assert!(text.contains(title), "{text}");
    }
    assert!(text.lines().all(|line| !line.contains('\x1b')), "{text}");
}

/// A shell of an ordinary user that waits for a line before it becomes the doctor.
fn as_user(program: &Path, folder: &Folder) -> std::process::Child {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "read go && exec \"$0\" doctor --json"])
        .arg(program)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir("/")
        .uid(4_321)
        .gid(4_321)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    folder.apply(&mut command);
    command.spawn().unwrap()
}

fn go(mut shell: std::process::Child) -> (bool, Value) {
    shell.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let output = shell.wait_with_output().unwrap();
    (output.status.success(), json(&output))
}

#[test]
fn an_ordinary_user_is_refused_told_why_and_mended_by_the_command_given() {
    const TEST: &str = "an_ordinary_user_is_refused_told_why_and_mended_by_the_command_given";
    if !root(TEST) {
        return;
    }
    let folder = Folder::new("user", 4_321);
    let program = folder.0.join("leasehold");
    std::fs::copy(LEASEHOLD, &program).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();

    let (good, before) = go(as_user(&program, &folder));
    if line(&before, "backends", "process")["state"] != "ok" {
        eprintln!("SKIP doctor::{TEST}: an ordinary user makes no sandbox here: {before:#}");
        return;
    }
    let memory = line(&before, "limits", "memory");
    if memory["state"] == "enforced" {
        eprintln!("SKIP doctor::{TEST}: this user has control groups already");
        return;
    }
    assert_eq!(memory["state"], "refused", "{memory:#}");
    assert!(good, "a refusal is no broken promise: {before:#}");
    for what in ["disk", "inodes", "wall", "output", "files", "network"] {
        assert_eq!(line(&before, "limits", what)["state"], "enforced", "{what}");
    }

    let mend = memory["mend"].as_str().unwrap().to_owned();
    if mend.starts_with("systemd-run") {
        eprintln!("SKIP doctor::{TEST}: the mend needs a login session: {mend}");
        return;
    }
    let shell = as_user(&program, &folder);
    // What the user's own shell would have put there.
    let mend = mend.replace("'$$'", &shell.id().to_string());
    let mend = mend.strip_prefix("sudo ").unwrap_or(&mend);
    let status = Command::new("/bin/sh").args(["-c", mend]).status().unwrap();
    let (good, after) = go(shell);
    for place in ["memory", "pids", "cpu", "cpuacct", "unified", "."] {
        let group = Path::new("/sys/fs/cgroup").join(place).join("user-4321");
        let _ = std::fs::remove_dir(group.join("shell"));
        let _ = std::fs::remove_dir(group);
    }
    assert!(status.success(), "{mend}");
    for what in ["memory", "pids", "cpu", "cpu_time"] {
        assert_eq!(
            line(&after, "limits", what)["state"],
            "enforced",
            "{after:#}"
        );
    }
    assert!(good);
}
