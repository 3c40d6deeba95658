//! Other runtimes, driven directly with the same root file system and the same program.
//!
//! `bwrap` makes namespaces and mounts alone: no cgroups, no limits, no filter. `runc` and `crun`
//! get limits like ours and no filter. All have the host's system directories read-only, their own
//! `/proc` and `/dev`, no capabilities and no network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::json;

use super::arena::{Arena, PATIENCE};

/// Links of a merged root file system.
const LINKS: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// One runtime that works here.
#[derive(Debug)]
pub(crate) struct Peer {
    program: &'static str,
    /// Words before the name of the container, if it takes one, and before the command.
    words: Vec<String>,
    named: bool,
    command: Vec<String>,
    next: u32,
}

impl Peer {
    /// Runs it once and says how long that took, from start to end.
    ///
    /// # Errors
    /// With the first line it says, when it fails.
    pub(crate) fn once(&mut self) -> Result<Duration, String> {
        let mut command = Command::new(self.program);
        command.args(&self.words);
        if self.named {
            self.next += 1;
            command.arg(format!(
                "leasehold-bench-{}-{}",
                std::process::id(),
                self.next
            ));
        }
        command
            .args(&self.command)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        timed(&mut command)
    }
}

/// What a program says of its version, on its first line.
pub(crate) fn version(program: &str) -> Option<String> {
    let told = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    Some(crate::voice::clean(text.lines().next()?))
}

/// Prepares every peer: one that works, or the reason it does not.
pub(crate) fn all(arena: &Arena) -> Vec<(&'static str, Result<Peer, String>)> {
    let oci = |program| bundle(arena, program).and_then(|()| tried(oci_peer(arena, program)));
    vec![
        ("bwrap", tried(bwrap(arena))),
        ("runc", oci("runc")),
        ("crun", oci("crun")),
    ]
}

/// `bwrap` with another program of the host.
pub(crate) fn bwrap_with(arena: &Arena, program: &str) -> Result<Peer, String> {
    tried(Peer {
        command: vec![program.to_owned()],
        ..bwrap(arena)
    })
}

fn tried(mut peer: Peer) -> Result<Peer, String> {
    peer.once().map(|_| peer)
}

fn bwrap(arena: &Arena) -> Peer {
    let mut words: Vec<String> = [
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
        "--cap-drop",
        "ALL",
        "--clearenv",
        "--ro-bind",
        "/usr",
        "/usr",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--tmpfs",
        "/tmp",
    ]
    .map(str::to_owned)
    .into();
    for (name, target) in links() {
        words.extend(["--symlink".to_owned(), target, format!("/{name}")]);
    }
    words.push("--ro-bind".to_owned());
    words.push(arena.programs().display().to_string());
    words.extend(["/workspace", "--"].map(str::to_owned));
    Peer {
        program: "bwrap",
        words,
        named: false,
        command: vec!["/workspace/true".to_owned()],
        next: 0,
    }
}

/// Links at the root of this host that lead into `/usr`.
fn links() -> Vec<(&'static str, String)> {
    LINKS
        .into_iter()
        .filter_map(|name| {
            let target = fs::read_link(Path::new("/").join(name)).ok()?;
            Some((name, target.to_str()?.to_owned()))
        })
        .collect()
}

fn bundle_path(arena: &Arena, program: &str) -> PathBuf {
    arena.directory().join(format!("bundle-{program}"))
}

fn oci_peer(arena: &Arena, program: &'static str) -> Peer {
    let text = |path: PathBuf| path.display().to_string();
    let words = vec![
        "--root".to_owned(),
        text(arena.directory().join(format!("root-{program}"))),
        "run".to_owned(),
        "--bundle".to_owned(),
        text(bundle_path(arena, program)),
    ];
    Peer {
        program,
        words,
        named: true,
        command: Vec::new(),
        next: 0,
    }
}

fn bundle(arena: &Arena, program: &str) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("its cgroups need root".to_owned());
    }
    let bundle = bundle_path(arena, program);
    let root = bundle.join("rootfs");
    let made = || -> std::io::Result<()> {
        fs::create_dir_all(&root)?;
        for name in ["usr", "proc", "dev", "sys", "tmp", "workspace"] {
            fs::create_dir(root.join(name))?;
        }
        for (name, target) in links() {
            std::os::unix::fs::symlink(target, root.join(name))?;
        }
        fs::write(
            bundle.join("config.json"),
            config(&arena.programs()).to_string(),
        )
    };
    made().map_err(|error| format!("its bundle cannot be made: {error}"))
}

fn config(programs: &Path) -> serde_json::Value {
    let ro = ["rbind", "ro", "nosuid", "nodev"];
    let tmpfs = |at: &str, options: &[&str]| json!({"destination": at, "type": "tmpfs", "source": "tmpfs", "options": options});
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": {"uid": 0, "gid": 0},
            "args": ["/workspace/true"],
            "env": ["PATH=/usr/bin"],
            "cwd": "/",
            "capabilities": {},
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}],
            "noNewPrivileges": true,
        },
        "root": {"path": "rootfs", "readonly": true},
        "hostname": "sandbox",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            tmpfs("/dev", &["nosuid", "mode=755", "size=65536k"]),
            {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
             "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]},
            tmpfs("/dev/shm", &["nosuid", "nodev", "mode=1777", "size=65536k"]),
            tmpfs("/tmp", &["nosuid", "nodev", "mode=1777", "size=256m"]),
            {"destination": "/usr", "type": "bind", "source": "/usr", "options": ro},
            {"destination": "/workspace", "type": "bind", "source": programs, "options": ro},
        ],
        "linux": {
            "namespaces": (["pid", "network", "ipc", "uts", "mount", "cgroup"]
                .map(|kind| json!({"type": kind}))),
            "resources": {
                "devices": [{"allow": false, "access": "rwm"}],
                "memory": {"limit": 512 << 20},
                "pids": {"limit": 256},
                "cpu": {"quota": 100_000, "period": 100_000},
            },
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"],
        },
    })
}

/// Runs a process to its end and says how long it took.
///
/// # Errors
/// With the first line of its standard error, when it cannot be started, fails or hangs.
pub(crate) fn timed(command: &mut Command) -> Result<Duration, String> {
    command.stderr(Stdio::piped());
    let begun = Instant::now();
    let mut child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "it is not installed".to_owned(),
        _ => format!("it cannot be started: {error}"),
    })?;
    let over = await_end(&child, begun + PATIENCE);
    let took = begun.elapsed();
    if !over {
        let _ = child.kill();
        let _ = child.wait();
        return Err(format!("it did not end within {PATIENCE:?}"));
    }
    let ended = child
        .wait_with_output()
        .map_err(|error| format!("it cannot be waited for: {error}"))?;
    if ended.status.success() {
        return Ok(took);
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    let line = said.lines().next().unwrap_or("it said nothing");
    Err(format!("{}: {}", ended.status, crate::voice::clean(line)))
}

/// Waits for the end of a child without reaping it; `false` when the deadline passes first.
fn await_end(child: &Child, deadline: Instant) -> bool {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let Some(Ok(pidfd)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
        // Without a descriptor the wait that follows is unbounded, and still a wait.
        return true;
    };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], limit.as_ref()) {
            Ok(count) => return count > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return true,
        }
    }
}
