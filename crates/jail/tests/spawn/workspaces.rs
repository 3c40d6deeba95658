//! The four workspace modes over a directory of the host.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, ExitCode};

use leasehold_jail::spawn::{Disk, MakeSpec, WorkspaceMode};

use crate::rig::{Directory, Sandbox, expect, make, spawner, spec};
use crate::{Case, Outcome};

pub(crate) const CASES: &[Case] = &[
    (
        "workspace_ephemeral_is_the_workloads_and_outlives_it",
        ephemeral,
    ),
    ("workspace_read_only_reads_and_never_writes", read_only),
    (
        "workspace_clone_takes_changes_and_leaves_the_host_alone",
        clone,
    ),
    (
        "workspace_read_write_changes_the_host_as_its_owner",
        read_write,
    ),
    ("workspace_hides_what_its_owner_may_not_read", foreign_files),
    ("workspace_sockets_are_dead_but_in_read_write", sockets),
    ("workspace_shows_no_host_path", no_host_path),
    ("workspace_links_do_not_lead_out", links),
    ("workspace_clone_is_bounded_by_the_disk", clone_bounded),
    (
        "workspace_is_copied_where_owners_cannot_be_mapped",
        unmapped,
    ),
    ("workspace_hides_what_is_mounted_below_it", submounts),
];

const CALLER: u32 = 23_456;

fn with(mode: WorkspaceMode) -> MakeSpec {
    MakeSpec {
        workspace: mode,
        caller_uid: CALLER,
        caller_gid: CALLER,
        ..spec()
    }
}

/// A sandbox in a mode over a directory.
fn over(directory: &Directory, mode: WorkspaceMode) -> Result<Sandbox, String> {
    let mut spawner = spawner(None).map_err(|error| format!("{error:?}"))?;
    let open = directory.open();
    make(&mut spawner, &with(mode), Some(open.as_fd())).map_err(|error| format!("{error:?}"))
}

fn project() -> Directory {
    let directory = Directory::new("project");
    let private = directory.file("private.txt", "for the owner");
    directory.file("shared.txt", "for all");
    std::fs::set_permissions(private, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    directory.give(CALLER);
    directory
}

fn ephemeral() -> Outcome {
    let mut spawner = spawner(None).map_err(|error| format!("{error:?}"))?;
    let spec = spec();
    let sandbox = make(&mut spawner, &spec, None).map_err(|error| format!("{error:?}"))?;
    sandbox.out("echo result > /workspace/out.txt")?;
    let workspace = sandbox.made.workspace.try_clone().unwrap();
    drop(sandbox);
    let file = rustix::fs::openat(
        &workspace,
        c"out.txt",
        rustix::fs::OFlags::RDONLY,
        rustix::fs::Mode::empty(),
    )
    .map_err(|errno| format!("the result is gone with the sandbox: {errno}"))?;
    let stat = rustix::fs::fstat(&file).unwrap();
    expect(
        stat.st_uid == spec.ids.host_base + 1000,
        format!("owner outside is {}", stat.st_uid),
    )
}

fn read_only() -> Outcome {
    let directory = project();
    let sandbox = over(&directory, WorkspaceMode::ReadOnly)?;
    let text = sandbox.out("cat /workspace/private.txt /workspace/shared.txt")?;
    expect(text == "for the ownerfor all", format!("read {text}"))?;
    let owner = sandbox.out("stat -c %u:%g /workspace /workspace/private.txt")?;
    expect(
        owner == "1000:1000\n1000:1000",
        format!("owners inside {owner}"),
    )?;
    for script in [
        "echo x > /workspace/shared.txt",
        "echo x > /workspace/new.txt",
        "rm -f /workspace/shared.txt",
        "chmod 777 /workspace",
        "touch -a /workspace/shared.txt",
    ] {
        let (status, out) = sandbox.sh(script);
        expect(status != 0, format!("`{script}` succeeded: {out}"))?;
    }
    let names = std::fs::read_dir(&directory.0).unwrap().count();
    expect(names == 2, "the host's directory changed")
}

fn clone() -> Outcome {
    let directory = project();
    let sandbox = over(&directory, WorkspaceMode::Clone)?;
    expect(!sandbox.made.copied, "a copy on write became a plain copy")?;
    sandbox.out(
        "cd /workspace && echo more >> private.txt && echo x > new.txt && rm shared.txt && \
         mkdir shared.txt && mv private.txt shared.txt/",
    )?;
    let text = sandbox.out("cat /workspace/shared.txt/private.txt")?;
    expect(text == "for the ownermore", format!("inside: {text}"))?;
    let host = |name: &str| std::fs::read_to_string(directory.0.join(name)).unwrap_or_default();
    expect(
        host("private.txt") == "for the owner",
        "the host's file changed",
    )?;
    expect(host("shared.txt") == "for all", "the host's file went")?;
    expect(!directory.0.join("new.txt").exists(), "a new file came out")?;
    let seen = rustix::fs::statat(
        &sandbox.made.workspace,
        c"new.txt",
        rustix::fs::AtFlags::empty(),
    );
    expect(
        seen.is_ok(),
        "the collector's descriptor does not see a new file",
    )
}

fn read_write() -> Outcome {
    let directory = project();
    let sandbox = over(&directory, WorkspaceMode::ReadWrite)?;
    sandbox.out("cd /workspace && echo x > new.txt && echo y >> private.txt && mkdir d")?;
    for name in ["new.txt", "private.txt", "d"] {
        let meta = std::fs::metadata(directory.0.join(name)).map_err(|error| error.to_string())?;
        expect(
            (meta.uid(), meta.gid()) == (CALLER, CALLER),
            format!("{name} belongs to {}:{}", meta.uid(), meta.gid()),
        )?;
    }
    // A set-id bit or a device node would be a way back in.
    let (status, out) = sandbox.sh("mknod /workspace/n c 1 3");
    expect(status != 0, format!("made a device node: {out}"))?;
    sandbox.out("cp /bin/true /workspace/t && chmod 4755 /workspace/t; true")?;
    let mode = std::fs::metadata(directory.0.join("t")).unwrap();
    expect(
        mode.uid() == CALLER,
        "a set-user-id file of somebody else came out",
    )
}

fn foreign_files() -> Outcome {
    for mode in [
        WorkspaceMode::ReadOnly,
        WorkspaceMode::Clone,
        WorkspaceMode::ReadWrite,
    ] {
        let directory = project();
        let secret = directory.file("root.txt", "of root");
        std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        let sandbox = over(&directory, mode)?;
        let (status, out) = sandbox.sh("cat /workspace/root.txt");
        expect(status != 0, format!("{mode:?}: the workload read {out}"))?;
        let (status, out) = sandbox.init("cat /workspace/root.txt");
        expect(status != 0, format!("{mode:?}: init read {out}"))?;
        // The control: the owner's own file is readable by the same way.
        sandbox.out("cat /workspace/private.txt")?;
    }
    Ok(())
}

fn sockets() -> Outcome {
    use std::os::unix::net::UnixListener;
    let script = "python3 -c \"import socket;s=socket.socket(socket.AF_UNIX);\
                  s.connect('/workspace/s')\"";
    for (mode, reachable) in [
        (WorkspaceMode::ReadOnly, false),
        (WorkspaceMode::Clone, false),
        // The control: the same socket by a plain bind.
        (WorkspaceMode::ReadWrite, true),
    ] {
        let directory = project();
        let _listener = UnixListener::bind(directory.0.join("s")).unwrap();
        directory.give(CALLER);
        let sandbox = over(&directory, mode)?;
        let (status, out) = sandbox.sh(script);
        expect(
            (status == 0) == reachable,
            format!("{mode:?}: {status} {out}"),
        )?;
    }
    Ok(())
}

fn no_host_path() -> Outcome {
    for mode in [WorkspaceMode::ReadOnly, WorkspaceMode::Clone] {
        let directory = project();
        let sandbox = over(&directory, mode)?;
        let name = directory
            .0
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        let text = sandbox.out("cat /proc/self/mountinfo /proc/self/mounts")?;
        expect(!text.contains(&name), format!("{mode:?}: {text}"))?;
        expect(text.contains("/workspace"), "mountinfo is not complete")?;
    }
    Ok(())
}

fn links() -> Outcome {
    let directory = project();
    std::os::unix::fs::symlink("/etc/hostname", directory.0.join("absolute")).unwrap();
    std::os::unix::fs::symlink("../../../../etc/hostname", directory.0.join("relative")).unwrap();
    directory.give(CALLER);
    let host = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    for mode in [WorkspaceMode::ReadOnly, WorkspaceMode::ReadWrite] {
        let sandbox = over(&directory, mode)?;
        let text = sandbox.out("cat /workspace/absolute /workspace/relative")?;
        expect(text == "sandbox\nsandbox", format!("{mode:?}: {text}"))?;
        expect(
            host.trim() != "sandbox",
            "the control fails: the host is called sandbox",
        )?;
    }
    Ok(())
}

fn clone_bounded() -> Outcome {
    let directory = project();
    let sandbox = over(&directory, WorkspaceMode::Clone)?;
    let Disk::Tmpfs { bytes, .. } = spec().disk else {
        return Err("no tmpfs".into());
    };
    let (status, out) =
        sandbox.sh("head -c 8m /dev/zero > /workspace/big; stat -c %s /workspace/big");
    expect(out.contains("No space left"), format!("{status}: {out}"))?;
    let full = rustix::fs::fstatfs(&sandbox.made.scratch).unwrap();
    expect(
        full.f_bavail == 0,
        format!("{} blocks are left", full.f_bavail),
    )?;
    expect(
        full.f_blocks * full.f_bsize as u64 == bytes,
        "the disk is not of the size ordered",
    )?;
    Ok(())
}

/// First argument of this program in a mount namespace of its own.
pub(crate) const MARK: &str = "--in-own-mounts";

/// Runs a part of this program in a mount namespace of its own, after a script in it.
fn in_own_mounts(script: &str, part: &str, directory: &Directory) -> Outcome {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let path = directory.0.display();
    let script = format!(
        "cd {path} && {script} && exec {} {MARK} {part} {path}",
        program.display()
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
    expect(output.status.success(), text)
}

/// The part that runs there.
pub(crate) fn inner(args: &[String]) -> ExitCode {
    let [part, path] = args else {
        return ExitCode::FAILURE;
    };
    let home = std::path::Path::new(path);
    let outcome = match part.as_str() {
        "unmapped" => unmapped_inner(home),
        _ => submounts_inner(home),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            println!("{reason}");
            ExitCode::FAILURE
        }
    }
}

/// A file system that knows no mapped owners: one in layers.
fn unmapped() -> Outcome {
    let directory = Directory::new("unmapped");
    let script = "mount -t tmpfs none . && cd . && cd $PWD && mkdir l u w m && \
                  mount -t overlay none -o lowerdir=$PWD/l,upperdir=$PWD/u,workdir=$PWD/w m";
    in_own_mounts(script, "unmapped", &directory)
}

fn unmapped_inner(home: &std::path::Path) -> Outcome {
    use std::os::unix::fs::{PermissionsExt, chown};
    let path = home.join("m/project");
    std::fs::create_dir_all(path.join("d")).map_err(|error| error.to_string())?;
    for (name, owner, mode) in [
        ("own.txt", CALLER, 0o600),
        ("d/deep.txt", CALLER, 0o644),
        ("foreign.txt", 0, 0o600),
        ("tool", CALLER, 0o4755),
    ] {
        std::fs::write(path.join(name), name).map_err(|error| error.to_string())?;
        chown(path.join(name), Some(owner), Some(owner)).map_err(|error| error.to_string())?;
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path.join(name), mode).map_err(|error| error.to_string())?;
    }
    std::os::unix::fs::symlink("/etc/hostname", path.join("link")).unwrap();
    chown(&path, Some(CALLER), Some(CALLER)).unwrap();
    chown(path.join("d"), Some(CALLER), Some(CALLER)).unwrap();
    let directory = Directory(path);
    for mode in [WorkspaceMode::Clone, WorkspaceMode::ReadOnly] {
        let sandbox = over(&directory, mode)?;
        expect(sandbox.made.copied, format!("{mode:?} says it is no copy"))?;
        let text = sandbox.out("cd /workspace && cat own.txt d/deep.txt link && ls -A")?;
        expect(
            text == "own.txtd/deep.txtsandbox\nd\nlink\nown.txt\ntool",
            format!("{mode:?}: {text}"),
        )?;
        let mode_of = sandbox.out("stat -c '%a %u' /workspace/tool")?;
        expect(
            mode_of == "755 1000",
            format!("the set-user-id file is {mode_of}"),
        )?;
        let (status, out) = sandbox.sh("echo x > /workspace/new.txt");
        expect(
            (status == 0) == (mode == WorkspaceMode::Clone),
            format!("{mode:?}: writing ended with {status}: {out}"),
        )?;
        expect(!directory.0.join("new.txt").exists(), "a change came out")?;
    }
    match over(&directory, WorkspaceMode::ReadWrite) {
        Err(reason) if reason.contains("WorkspaceOwners") => {}
        Err(reason) => return Err(reason),
        Ok(_) => return Err("read-write without mapped owners was made".into()),
    }
    std::fs::write(directory.0.join("big"), vec![1; 8 << 20]).unwrap();
    std::os::unix::fs::chown(directory.0.join("big"), Some(CALLER), Some(CALLER)).unwrap();
    match over(&directory, WorkspaceMode::Clone) {
        Err(reason) => expect(
            reason.contains("WorkspaceCopy") && reason.contains("code: 28"),
            reason,
        ),
        Ok(_) => Err("more than the disk was copied".into()),
    }
}

/// What is mounted below the directory belongs to somebody else.
fn submounts() -> Outcome {
    let directory = Directory::new("submounts");
    let script = "mkdir sub && mount -t tmpfs none sub && echo secret > sub/secret.txt";
    in_own_mounts(script, "submounts", &directory)
}

fn submounts_inner(home: &std::path::Path) -> Outcome {
    std::os::unix::fs::chown(home, Some(CALLER), Some(CALLER)).unwrap();
    expect(
        home.join("sub/secret.txt").exists(),
        "the control has no submount",
    )?;
    let directory = Directory(home.to_owned());
    for mode in [WorkspaceMode::ReadOnly, WorkspaceMode::Clone] {
        let sandbox = over(&directory, mode)?;
        let names = sandbox.out("ls -A /workspace /workspace/sub")?;
        expect(!names.contains("secret"), format!("{mode:?}: {names}"))?;
    }
    // The outer part removes the directory.
    std::mem::forget(directory);
    Ok(())
}
