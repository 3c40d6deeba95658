//! What a sandbox is, seen from the host: namespaces, ids, posture, mounts, descriptors.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use crate::rig::{Directory, Sandbox, expect, make, make_with, spawner, spec};
use crate::{Case, Outcome};

pub(crate) const CASES: &[Case] = &[
    ("namespaces_are_new_and_not_shared", namespaces),
    ("ids_never_hold_the_hosts_root", ids),
    (
        "what_the_kernel_counts_by_user_is_counted_for_each_sandbox",
        owners,
    ),
    ("posture_of_init_is_exactly_this", posture),
    ("mounts_are_exactly_these", mounts),
    ("descriptors_of_the_caller_do_not_come_along", descriptors),
    ("environment_of_the_caller_does_not_come_along", environment),
    ("host_tree_is_gone", host_tree),
    ("host_has_no_name_inside", host_names),
    (
        "control_groups_are_entered_before_their_namespace",
        control_groups,
    ),
];

pub(crate) fn sandbox() -> Result<Sandbox, String> {
    let mut spawner = spawner(None).map_err(|error| format!("{error:?}"))?;
    make(&mut spawner, &spec(), None).map_err(|error| format!("{error:?}"))
}

fn namespace(pid: &str, name: &str) -> String {
    std::fs::read_link(format!("/proc/{pid}/ns/{name}"))
        .unwrap()
        .to_string_lossy()
        .into_owned()
}

fn namespaces() -> Outcome {
    let mut spawner = spawner(None).map_err(|error| format!("{error:?}"))?;
    let order = spec();
    let one = make(&mut spawner, &order, None).map_err(|error| format!("{error:?}"))?;
    let two = make(&mut spawner, &spec(), None).map_err(|error| format!("{error:?}"))?;
    let told = one.made.namespaces;
    let (first, second) = (one.made.pid.to_string(), two.made.pid.to_string());
    for (name, inode) in [
        ("net", told.net),
        ("mnt", told.mnt),
        ("pid", told.pid),
        ("user", told.user),
        ("ipc", told.ipc),
        ("uts", told.uts),
        ("cgroup", told.cgroup),
    ] {
        let (mine, ours, other) = (
            namespace(&first, name),
            namespace("self", name),
            namespace(&second, name),
        );
        expect(mine != ours, format!("{name} is the host's"))?;
        expect(mine != other, format!("{name} is shared by two sandboxes"))?;
        expect(
            mine == format!("{name}:[{inode}]"),
            format!("{name} is told as {inode}, is {mine}"),
        )?;
    }
    // All but the user namespace belong to the maker's: root inside has no right over them.
    for script in [
        "mount -t tmpfs none /tmp",
        "umount /proc/kcore",
        "mount -o remount,rw /",
        "mount -o remount,rw /proc",
        "hostname other",
        "ip link add d type dummy",
        "ip addr add 10.0.0.1/8 dev lo",
    ] {
        let (status, out) = one.init(script);
        expect(status != 0, format!("root inside did `{script}`: {out}"))?;
    }
    Ok(())
}

/// One sandbox that takes every inotify instance leaves the next one its own, and the host's root.
fn owners() -> Outcome {
    const TAKE: &str = "python3 -c '
import ctypes
call = ctypes.CDLL(None).inotify_init
count = 0
while count < 5000 and call() >= 0: count += 1
print(count, flush=True)
import os
os.close(1), os.close(2)
import time
time.sleep(60)'";
    let most = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances");
    if most.map_or(0, |most| most.trim().parse().unwrap_or(0)) > 512 {
        return Err("SKIP: this host allows more instances than a process has files".into());
    }
    let mut spawner = spawner(None).map_err(|error| format!("{error:?}"))?;
    let one = make(&mut spawner, &spec(), None).map_err(|error| format!("{error:?}"))?;
    let two = make(&mut spawner, &spec(), None).map_err(|error| format!("{error:?}"))?;
    // The probe waits for the ends of both streams; the taker itself stays.
    let first = one.out(&format!("{TAKE} &"))?;
    let free = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC);
    expect(free.is_ok(), "the host's root has no inotify instance left")?;
    let second = two.out(&format!("{TAKE} &"))?;
    let counts = (first.parse::<u32>(), second.parse::<u32>());
    expect(
        matches!(counts, (Ok(first), Ok(second)) if first > 0 && second == first),
        format!("the first took {first}, the second {second}"),
    )
}

fn ids() -> Outcome {
    let mut spawner = spawner(None).map_err(|error| format!("{error:?}"))?;
    let order = spec();
    let sandbox = make(&mut spawner, &order, None).map_err(|error| format!("{error:?}"))?;
    for file in ["uid_map", "gid_map"] {
        let map = sandbox.seen(file);
        let numbers: Vec<u32> = map
            .split_whitespace()
            .map(|number| number.parse().unwrap())
            .collect();
        expect(
            numbers == [0, order.ids.host_base, order.ids.count],
            format!("{file} is {map}"),
        )?;
    }
    expect(
        sandbox.seen("setgroups").trim() == "deny",
        "setgroups is allowed",
    )?;
    // The control: our own map does hold root, and read by the same means.
    let own = std::fs::read_to_string("/proc/self/uid_map").unwrap();
    let begins: Vec<&str> = own.split_whitespace().take(2).collect();
    expect(begins == ["0", "0"], format!("the test's own map is {own}"))
}

fn fields(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().replace('\t', " ")))
        .collect()
}

fn posture() -> Outcome {
    // What a supervisor may have: another umask, a raised niceness, blocked signals.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    rustix::process::nice(5).unwrap();
    let mut order = spec();
    order.cores = vec![1];
    let mut spawner = spawner(None).map_err(|error| format!("{error:?}"))?;
    let sandbox = make(&mut spawner, &order, None).map_err(|error| format!("{error:?}"));
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let _ = rustix::process::setpriority_process(None, 0);
    let sandbox = sandbox?;
    let status = fields(&sandbox.seen("status"));
    let base = order.ids.host_base;
    let four = format!("{base} {base} {base} {base}");
    // CHOWN DAC_OVERRIDE FOWNER KILL SETGID SETUID SETPCAP.
    let kept = "00000000000001eb";
    for (field, value) in [
        ("Umask", "0022"),
        ("Uid", four.as_str()),
        ("Gid", four.as_str()),
        ("Groups", ""),
        ("SigBlk", "0000000000000000"),
        ("CapInh", "0000000000000000"),
        ("CapPrm", kept),
        ("CapEff", kept),
        ("CapBnd", kept),
        ("CapAmb", "0000000000000000"),
        ("NoNewPrivs", "1"),
        ("Cpus_allowed_list", "1"),
        ("Threads", "1"),
    ] {
        let got = status.get(field).map(String::as_str);
        expect(
            got == Some(value),
            format!("{field} is {got:?}, not {value}"),
        )?;
    }
    let inside = |field: &str| {
        let text = status.get(field).cloned().unwrap_or_default();
        text.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    expect(inside("NSpid") == "1", "it is not PID 1")?;
    expect(inside("NSsid") == "1", "it leads no session")?;
    expect(
        sandbox.seen("oom_score_adj").trim() == "1000",
        "its score is the host's",
    )?;
    let stat = sandbox.seen("stat");
    let after = stat
        .rsplit_once(") ")
        .map(|(_, rest)| rest.to_owned())
        .unwrap_or_default();
    let nice = after.split(' ').nth(16).map(str::to_owned);
    expect(
        nice.as_deref() == Some("0"),
        format!("niceness is {nice:?}"),
    )?;
    // Its death is the caller's to see.
    let parent = status.get("PPid").cloned();
    let me = std::process::id().to_string();
    expect(parent == Some(me), format!("its parent is {parent:?}"))
}

/// Mount point, file system, source, the mount's own options; masks of `/proc` apart.
fn table(text: &str) -> (Vec<String>, Vec<String>) {
    let (mut all, mut masks) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let dash = words.iter().position(|word| *word == "-").unwrap();
        let (root, point, flags) = (words[3], words[4], words[5]);
        let (kind, source) = (words[dash + 1], words[dash + 2]);
        if point.starts_with("/proc/") {
            masks.push(format!("{point} {root} {flags}"));
        } else {
            let propagation = if dash == 6 { "private" } else { "NOT-PRIVATE" };
            all.push(format!("{point} {kind} {source} {flags} {propagation}"));
        }
    }
    (all, masks)
}

fn mounts() -> Outcome {
    let sandbox = sandbox()?;
    let (all, masks) = table(&sandbox.seen("mountinfo"));
    let expected = [
        "/ tmpfs root ro,nosuid,nodev,noexec,relatime private",
        "/dev tmpfs dev ro,nosuid,noexec,relatime private",
        "/proc proc proc ro,nosuid,nodev,noexec,relatime private",
        "/tmp tmpfs scratch rw,nosuid,nodev,relatime private",
        "/workspace tmpfs scratch rw,nosuid,nodev,relatime private",
        "/home/user tmpfs scratch rw,nosuid,nodev,relatime private",
        "/var/tmp tmpfs scratch rw,nosuid,nodev,relatime private",
        "/tmp tmpfs scratch rw,nosuid,nodev,relatime private",
        "/sys tmpfs root ro,nosuid,nodev,noexec,relatime private",
        "/dev/shm tmpfs shm rw,nosuid,nodev,noexec,relatime private",
        "/dev/pts devpts pts rw,nosuid,noexec,relatime private",
    ];
    let system = ["/usr", "/bin", "/sbin", "/lib"];
    for line in &all {
        let of_system = system
            .iter()
            .any(|path| line.starts_with(path) && line.contains(" ro,nosuid,nodev,"))
            || line.starts_with("/etc/") && line.contains(" ro,nosuid,nodev,noexec,");
        expect(
            of_system || expected.contains(&line.as_str()),
            format!("unexpected mount: {line}"),
        )?;
        expect(line.ends_with(" private"), format!("propagates: {line}"))?;
    }
    for line in expected {
        expect(
            all.iter().any(|got| got == line),
            format!("missing mount: {line}"),
        )?;
    }
    for line in &masks {
        expect(
            line.contains(" /sys/") && line.contains(" ro,nosuid,nodev,noexec,"),
            format!("unexpected mask: {line}"),
        )?;
    }
    expect(masks.len() > 20, format!("only {} masks", masks.len()))
}

fn descriptors() -> Outcome {
    let directory = Directory::new("leak");
    // Not close-on-exec, as a careless library leaves them.
    let held: Vec<_> = (0..50)
        .map(|_| {
            let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
            rustix::fs::open(&directory.0, flags, rustix::fs::Mode::empty()).unwrap()
        })
        .collect();
    let sandbox = sandbox()?;
    let got = sandbox.fds();
    let names: Vec<&str> = got
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    // The fifth is the listing's own.
    expect(
        names == ["0", "1", "2", "3", "4", "5"],
        format!("inside: {got}"),
    )?;
    for (number, target) in ["/dev/null", "/dev/null", "/dev/null", "socket:", "socket:"]
        .iter()
        .enumerate()
    {
        let line = format!("{number} {target}");
        expect(got.contains(&line), format!("no `{line}` in {got}"))?;
    }
    // The control: an ordinary child does get them.
    let child = std::process::Command::new("/bin/ls")
        .args(["-l", "/proc/self/fd"])
        .output()
        .map_err(|error| error.to_string())?;
    let listing = String::from_utf8_lossy(&child.stdout).into_owned();
    let name = directory.0.display().to_string();
    let leaked = listing.lines().filter(|line| line.contains(&name)).count();
    drop(held);
    expect(leaked >= 50, format!("the control leaked {leaked} only"))
}

fn environment() -> Outcome {
    let sandbox = sandbox()?;
    let environment = sandbox.seen("environ");
    expect(environment.is_empty(), format!("inside: {environment:?}"))?;
    let own = std::fs::read("/proc/self/environ").unwrap();
    expect(!own.is_empty(), "the control has no environment itself")?;
    let command = sandbox.seen("cmdline");
    expect(
        command == "leasehold-init\0" && sandbox.args().is_empty(),
        format!("command line {command:?}"),
    )
}

fn host_tree() -> Outcome {
    let directory = Directory::new("canary");
    let canary = directory.file("canary.txt", "canary");
    let sandbox = sandbox()?;
    for as_init in [false, true] {
        for prefix in [
            "",
            "/proc/1/root",
            "/proc/self/root",
            "/..",
            "/proc/self/cwd/../..",
        ] {
            let script = format!("cat {prefix}{}", canary.display());
            let (status, out) = if as_init {
                sandbox.init(&script)
            } else {
                sandbox.sh(&script)
            };
            expect(status != 0, format!("`{script}` gave {out}"))?;
        }
    }
    for path in [
        "/etc/shadow",
        "/etc/ssl/private",
        "/root/x",
        "/home/user/../../boot",
        "/var/log",
    ] {
        let (status, out) = sandbox.init(&format!("ls -ld {path}"));
        expect(status != 0, format!("{path} is there: {out}"))?;
    }
    let writable = sandbox.sh("find / -xdev -writable -not -type l 2>/dev/null; \
         find /usr /etc /dev /sys -writable -not -type l -not -type c 2>/dev/null");
    let meant = ["/dev/shm", "/tmp", "/var/tmp", "/workspace", "/home/user"];
    let lines: Vec<&str> = writable
        .1
        .lines()
        .filter(|line| !meant.contains(line))
        .collect();
    expect(lines.is_empty(), format!("writable: {lines:?}"))?;
    // The control: the same search finds what is meant to be writable.
    let own = sandbox.out("find /tmp /workspace -writable")?;
    expect(
        own == "/tmp\n/workspace",
        format!("the control found {own}"),
    )
}

fn host_names() -> Outcome {
    let read = |path: &str| {
        std::fs::read_to_string(path)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let canaries = [
        ("machine id", read("/etc/machine-id")),
        ("boot id", read("/proc/sys/kernel/random/boot_id")),
        ("kernel command line", read("/proc/cmdline")),
    ];
    let sandbox = sandbox()?;
    let collected = sandbox.init(
        "hostname; uname -a; cat /etc/* /proc/cmdline /proc/sys/kernel/random/boot_id \
         /proc/self/mountinfo /proc/self/cgroup /proc/net/route /proc/net/dev /proc/partitions \
         /proc/diskstats /proc/swaps /proc/modules; env; ls /sys /sys/*/*",
    );
    let text = collected.1;
    for (what, canary) in canaries {
        if canary.is_empty() {
            continue;
        }
        expect(!text.contains(&canary), format!("the {what} is inside"))?;
    }
    let named = sandbox.out("hostname; cat /etc/hostname; uname -n; domainname")?;
    expect(
        named == "sandbox\nsandbox\nsandbox\n(none)",
        format!("it is called {named}"),
    )?;
    expect(
        name != "sandbox",
        "the control fails: the host is called sandbox",
    )?;
    expect(text.contains("sandbox"), "nothing was collected")
}

fn control_groups() -> Outcome {
    let root = std::path::Path::new("/sys/fs/cgroup/pids");
    let group = root.join(format!("spawn-test-{}", std::process::id()));
    if std::fs::create_dir(&group).is_err() {
        return Err("SKIP control_groups: no pids hierarchy to make a group in".into());
    }
    let outcome = (|| {
        let procs = std::fs::OpenOptions::new()
            .write(true)
            .open(group.join("cgroup.procs"))
            .map_err(|error| error.to_string())?;
        let mut spawner = spawner(None).map_err(|error| format!("{error:?}"))?;
        let sandbox = make_with(&mut spawner, &spec(), None, None, &[procs.as_fd()])
            .map_err(|error| format!("{error:?}"))?;
        let name = group.file_name().unwrap().to_string_lossy().into_owned();
        let outside = sandbox.seen("cgroup");
        expect(outside.contains(&name), format!("the host sees {outside}"))?;
        let inside = sandbox.init("cat /proc/self/cgroup").1;
        expect(
            inside.contains("pids:/\n") && !inside.contains(&name),
            format!("inside sees {inside}"),
        )?;
        // The control: a sandbox in no group of ours is not in it.
        let other = make(&mut spawner, &spec(), None).map_err(|error| format!("{error:?}"))?;
        expect(
            !other.seen("cgroup").contains(&name),
            "it is in the group unasked",
        )
    })();
    let removed = std::fs::remove_dir(&group);
    outcome?;
    removed.map_err(|error| format!("the group cannot be removed: {error}"))
}
