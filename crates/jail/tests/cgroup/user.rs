//! The same as an ordinary user: this binary starts itself as one.
#![allow(
    unsafe_code,
    reason = "children are forked here, to be hostile without any other program at hand"
)]

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use leasehold_jail::cgroup::{CgroupError, Cgroups, GroupLimits, Layout};

use super::rig::{BOUND, Bench, Way, bomb, fork_in};

/// Set in a child of this test binary that runs as an ordinary user.
const AS_USER: &str = "LEASEHOLD_TEST_CGROUP_USER";

/// Entry of a child of this binary that runs as an ordinary user; a plain test run passes it by.
#[test]
fn entry_as_user() {
    let Ok(mode) = std::env::var(AS_USER) else {
        return;
    };
    assert!(!rustix::process::geteuid().is_root());
    let cgroups = Cgroups::discover(&format!("u{}", std::process::id())).unwrap();
    let controls = cgroups.can().clone();
    eprintln!("as user, {mode}: {} {controls:?}", cgroups.layout().word());
    let limits = GroupLimits {
        memory_bytes: Some(32 << 20),
        pids: Some(5),
        cpu_milli: Some(500),
    };
    if mode == "bare" {
        assert!(!controls.memory && !controls.pids && !controls.cpu);
        assert!(!controls.reason("memory").is_empty());
        let refused = cgroups.create("none", &limits).unwrap_err();
        assert!(matches!(refused, CgroupError::NotHere { .. }), "{refused}");
        if cgroups.layout() == Layout::None {
            let group = cgroups.create("none", &GroupLimits::default()).unwrap();
            assert!(
                group.populated().is_err(),
                "unknown must not pass for empty"
            );
            assert!(group.kill().is_err());
        }
    } else {
        assert!(
            controls.memory && controls.pids && controls.cpu,
            "{controls:?}"
        );
        let group = cgroups.create("mine", &limits).unwrap();
        let mut child = fork_in(Some(&group), Way::Born, || bomb(10));
        assert_eq!(child.end() >> 8, 4);
        group.kill().unwrap();
        assert!(group.destroy(BOUND).complete());
    }
    cgroups.remove_base();
}

/// A copy of this binary where any user can run it.
fn public_copy(instance: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let copy = std::env::temp_dir().join(format!("cgroup-test-{instance}"));
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
    copy
}

/// Runs [`entry_as_user`] as uid 1000 with itself moved to `tasks` first.
fn run_as_user(copy: &Path, mode: &str, tasks: &[PathBuf]) -> (bool, String) {
    let files: Vec<OwnedFd> = tasks
        .iter()
        .map(|path| {
            std::fs::File::options()
                .write(true)
                .open(path)
                .unwrap()
                .into()
        })
        .collect();
    let mut command = std::process::Command::new(copy);
    command
        .args([
            "--exact",
            "user::entry_as_user",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(AS_USER, mode)
        .current_dir("/")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .uid(1000)
        .gid(1000);
    let raws: Vec<RawFd> = files.iter().map(|file| file.as_fd().as_raw_fd()).collect();
    // `pre_exec` runs after the uid changed; the files were opened by root, and that is what counts.
    // SAFETY: the closure only writes to open descriptors.
    unsafe {
        command.pre_exec(move || {
            for file in &raws {
                if libc::write(*file, b"0".as_ptr().cast(), 1) != 1 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    (output.status.success(), text)
}

#[test]
fn an_ordinary_user_without_delegation_is_told_what_is_missing() {
    let Some(bench) = Bench::new("an_ordinary_user_without_delegation_is_told_what_is_missing")
    else {
        return;
    };
    let copy = public_copy(&bench.instance);
    let (good, text) = run_as_user(&copy, "bare", &[]);
    let _ = std::fs::remove_file(&copy);
    eprintln!("{text}");
    assert!(good && text.contains("1 passed"), "{text}");
}

#[test]
fn an_ordinary_user_uses_what_is_delegated() {
    let Some(bench) = Bench::new("an_ordinary_user_uses_what_is_delegated") else {
        return;
    };
    let group = bench.group("lent", GroupLimits::default());
    let mut tasks = Vec::new();
    let mut made = Vec::new();
    for place in bench.cgroups.places() {
        let lent = place.join("lent");
        let v2 = lent.join("cgroup.controllers").exists();
        if v2 {
            // Groups of ours may hold no groups, and lend no controllers.
            std::fs::write(place.join("cgroup.max.depth"), "max").unwrap();
            let controllers = std::fs::read_to_string(lent.join("cgroup.controllers")).unwrap();
            for name in controllers.split_whitespace() {
                std::fs::write(lent.join("cgroup.subtree_control"), format!("+{name}")).unwrap();
            }
        }
        let inner = lent.join("inner");
        std::fs::create_dir(&inner).unwrap();
        for dir in [&lent, &inner] {
            std::os::unix::fs::chown(dir, Some(1000), Some(1000)).unwrap();
            for file in [
                "cgroup.procs",
                "cgroup.subtree_control",
                "cgroup.threads",
                "tasks",
            ] {
                let file = dir.join(file);
                if file.exists() {
                    std::os::unix::fs::chown(file, Some(1000), Some(1000)).unwrap();
                }
            }
        }
        tasks.push(inner.join(if v2 { "cgroup.procs" } else { "tasks" }));
        made.push(inner);
    }
    let copy = public_copy(&bench.instance);
    let (good, text) = run_as_user(&copy, "lent", &tasks);
    let _ = std::fs::remove_file(&copy);
    for inner in made {
        std::fs::remove_dir(inner).unwrap();
    }
    eprintln!("{text}");
    assert!(good && text.contains("1 passed"), "{text}");
    assert!(group.destroy(BOUND).complete());
}
