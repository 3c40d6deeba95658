//! The same sandboxes made by an ordinary user, with a range of ids and without.
//!
//! The cases start this program again as that user, in a mount namespace of its own where
//! `/etc/subuid` and `/etc/subgid` name a range for it; nothing of the host changes.

use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, ExitCode};

use leasehold_jail::spawn::{
    Disk, IdBlock, MakeSpec, RootlessIds, Spawner, SpawnerConfig, WorkspaceMode,
};

use crate::rig::{Directory, Sandbox, expect, first_program, make, spec};
use crate::{Case, Outcome};

pub(crate) const CASES: &[Case] = &[
    ("ordinary_user_with_a_range_has_two_uids", || outer("range")),
    ("ordinary_user_without_a_range_has_one_uid", || {
        outer("single")
    }),
];

/// First argument of this program as the ordinary user.
pub(crate) const MARK: &str = "--as-ordinary-user";
const USER: &str = "lease-test";
const UID: u32 = 23_456;
const FIRST: u32 = 3_000_000;

fn outer(mode: &str) -> Outcome {
    let directory = Directory::new("rootless");
    std::fs::set_permissions(&directory.0, PermissionsExt::from_mode(0o755)).unwrap();
    let program = directory.0.join("spawn");
    std::fs::copy("/proc/self/exe", &program).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let range = directory.file("range", &format!("{USER}:{FIRST}:65536\n"));
    let host = std::fs::read_to_string("/etc/passwd").unwrap();
    let passwd = directory.file(
        "passwd",
        &format!("{host}{USER}:x:{UID}:{UID}::/:/bin/sh\n"),
    );
    let home = directory.0.join("home");
    std::fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(UID), Some(UID)).unwrap();
    let script = format!(
        "mount --bind {range} /etc/subuid && mount --bind {range} /etc/subgid && \
         mount --bind {passwd} /etc/passwd && \
         exec setpriv --reuid {UID} --regid {UID} --clear-groups {program} {MARK} {mode} {home}",
        range = range.display(),
        passwd = passwd.display(),
        program = program.display(),
        home = home.display(),
    );
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .output()
        .map_err(|error| error.to_string())?;
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    if text.starts_with("SKIP") {
        return Err(text.trim().to_owned());
    }
    expect(output.status.success(), text)
}

/// The part that runs as the ordinary user.
pub(crate) fn inner(args: &[String]) -> ExitCode {
    let [mode, home] = args else {
        return ExitCode::FAILURE;
    };
    let ids = match mode.as_str() {
        "single" => RootlessIds::Single,
        _ => RootlessIds::Range {
            uid_first: FIRST,
            gid_first: FIRST,
            count: 65_536,
        },
    };
    match all(ids, home) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            println!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn order() -> MakeSpec {
    MakeSpec {
        ids: IdBlock {
            host_base: 1,
            count: 65_536,
        },
        caller_uid: UID,
        caller_gid: UID,
        ..spec()
    }
}

fn all(ids: RootlessIds, home: &str) -> Outcome {
    let started = Spawner::start(SpawnerConfig {
        init: first_program(),
        rootless: Some(ids),
    });
    let mut spawner = match started {
        Ok(spawner) => spawner,
        Err(error) if error.errno() == Some(rustix::io::Errno::PERM.raw_os_error()) => {
            return Err(format!(
                "SKIP: this host forbids user namespaces: {error:?}"
            ));
        }
        Err(error) => return Err(format!("{error:?}")),
    };
    let plain = make(&mut spawner, &order(), None).map_err(|error| format!("{error:?}"))?;
    identity(&plain, ids)?;
    confinement(&plain)?;
    for mode in [
        WorkspaceMode::ReadOnly,
        WorkspaceMode::Clone,
        WorkspaceMode::ReadWrite,
    ] {
        workspace(&mut spawner, mode, home).map_err(|reason| format!("{mode:?}: {reason}"))?;
    }
    too_big(&mut spawner, home)
}

fn identity(sandbox: &Sandbox, ids: RootlessIds) -> Outcome {
    let single = ids == RootlessIds::Single;
    expect(
        sandbox.made.single_uid == single,
        "single-uid mode is told wrongly",
    )?;
    let map: Vec<String> = sandbox
        .seen("uid_map")
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    let wanted: &[&str] = if single {
        &["1000", "23456", "1"]
    } else {
        &[
            "0", "3000000", "1000", "1000", "23456", "1", "1001", "3001001", "64535",
        ]
    };
    expect(map == wanted, format!("uid_map is {map:?}"))?;
    let status = sandbox.seen("status");
    let uid = status
        .lines()
        .find(|line| line.starts_with("Uid:"))
        .unwrap_or_default()
        .to_owned();
    let init = if single { "23456" } else { "3000000" };
    expect(uid.contains(init), format!("init is {uid}"))?;
    for line in [
        "CapBnd:\t00000000000001eb",
        "CapEff:\t00000000000001eb",
        "NoNewPrivs:\t1",
    ] {
        expect(status.contains(line), format!("no `{line}` in {status}"))?;
    }
    let id = sandbox.out("id -u; id -g")?;
    expect(id == "1000\n1000", format!("the workload is {id}"))
}

fn confinement(sandbox: &Sandbox) -> Outcome {
    for script in [
        "mount -t tmpfs none /tmp",
        "umount /proc/kcore",
        "umount /proc",
        "mount -o remount,rw /",
        "hostname other",
        "unshare --user true",
        "exec 3>>/proc/sys/kernel/core_pattern",
        "cat /proc/kcore | grep -q .",
        "ls /work",
        "ls /proc/1/root/boot",
    ] {
        let (status, out) = sandbox.init(script);
        expect(status != 0, format!("root inside did `{script}`: {out}"))?;
    }
    let seen = sandbox.out("nproc; hostname; cat /proc/sys/kernel/random/boot_id | cut -c1-8")?;
    expect(seen == "1\nsandbox\n00000000", format!("inside {seen}"))?;
    sandbox.out(
        "echo x > /workspace/a && echo x > /tmp/b && echo x > /dev/null && echo x > /dev/shm/c",
    )?;
    sandbox.out("python3 -c 'import pty; pty.openpty()'")?;
    let text = sandbox.out("cat /proc/self/mountinfo")?;
    let procs = text
        .lines()
        .filter(|line| line.contains(" - proc "))
        .count();
    expect(procs == 1, format!("{procs} mounts of proc: {text}"))?;
    // What belongs to the workload is the caller's outside, so the caller can collect it.
    let stat = rustix::fs::fstat(&sandbox.made.workspace).unwrap();
    expect(
        stat.st_uid == UID,
        format!("the workspace belongs to {}", stat.st_uid),
    )
}

fn project(home: &str) -> Directory {
    let path = std::path::Path::new(home).join("project");
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir(&path).unwrap();
    std::fs::create_dir(path.join("d")).unwrap();
    std::fs::write(path.join("private.txt"), "for the owner").unwrap();
    std::fs::write(path.join("d/deep.txt"), "deep").unwrap();
    std::fs::set_permissions(path.join("private.txt"), PermissionsExt::from_mode(0o600)).unwrap();
    Directory(path)
}

fn workspace(spawner: &mut Spawner, mode: WorkspaceMode, home: &str) -> Outcome {
    let directory = project(home);
    let open = directory.open();
    let order = MakeSpec {
        workspace: mode,
        ..order()
    };
    let sandbox =
        make(spawner, &order, Some(open.as_fd())).map_err(|error| format!("{error:?}"))?;
    let text = sandbox.out("cd /workspace && cat private.txt d/deep.txt && stat -c %u .")?;
    expect(text == "for the ownerdeep1000", format!("read {text}"))?;
    let (status, out) = sandbox.sh("cd /workspace && echo x > new.txt && rm -r d && mkdir d");
    let host = directory.0.join("new.txt");
    match mode {
        WorkspaceMode::ReadOnly => expect(status != 0 && !host.exists(), "it was written")?,
        WorkspaceMode::Clone => {
            expect(status == 0, format!("it cannot be written: {out}"))?;
            expect(!host.exists(), "a change came out")?;
            expect(
                directory.0.join("d/deep.txt").exists(),
                "a removal came out",
            )?;
            expect(
                !sandbox.made.copied,
                "the copy on write became a plain copy",
            )?;
        }
        _ => {
            expect(status == 0, format!("it cannot be written: {out}"))?;
            let owner = std::fs::metadata(&host)
                .map_err(|error| error.to_string())?
                .uid();
            expect(owner == UID, format!("the new file belongs to {owner}"))?;
        }
    }
    Ok(())
}

fn too_big(spawner: &mut Spawner, home: &str) -> Outcome {
    let directory = project(home);
    let open = directory.open();
    let order = MakeSpec {
        workspace: WorkspaceMode::Clone,
        disk: Disk::Tmpfs {
            bytes: 64 << 10,
            inodes: 64,
        },
        ..order()
    };
    let sandbox =
        make(spawner, &order, Some(open.as_fd())).map_err(|error| format!("{error:?}"))?;
    let (_, out) = sandbox.sh("head -c 1m /dev/zero > /workspace/big");
    expect(
        out.contains("No space left"),
        format!("more than the disk fits: {out}"),
    )
}
