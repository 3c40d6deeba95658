//! P05, P15, P17: what of the kernel's own files is there, what can be written, what tells of the host.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use leasehold_e2e::{Instance, Need, Who, need};

use crate::terminal::Session;

use super::{await_workload, everybody, hold, outside};

/// Files of the kernel that a guest may want to write, and those it may want to read.
const WRITE: [&str; 14] = [
    "/proc/sysrq-trigger",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/irq/default_smp_affinity",
    "/proc/acpi/wakeup",
    "/proc/mtrr",
    "/sys/kernel/uevent_helper",
    "/sys/power/state",
    "/proc/sys/kernel/sysrq",
];
const READ: [&str; 20] = [
    "/proc/kcore",
    "/proc/keys",
    "/proc/kallsyms",
    "/proc/timer_list",
    "/proc/kmsg",
    "/proc/interrupts",
    "/proc/key-users",
    "/proc/config.gz",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/slabinfo",
    "/proc/sched_debug",
    "/proc/modules",
    "/proc/vmallocinfo",
    "/proc/cmdline",
    "/proc/diskstats",
    "/proc/partitions",
    "/proc/locks",
    "/proc/softirqs",
    "/proc/swaps",
];
const FOLDERS: [&str; 8] = [
    "/sys/firmware",
    "/sys/kernel",
    "/sys/module",
    "/sys/fs/bpf",
    "/sys/class",
    "/proc/irq",
    "/proc/bus",
    "/proc/fs",
];

/// Tells what opens for writing, what has a byte to read, and what folder has an entry. Nothing is
/// written, neither here nor there.
fn look() -> String {
    format!(
        "for file in {}; do (exec 3<>$file) 2>/dev/null && echo writes $file; done; \
         for file in {}; do [ -n \"$(head -c 1 $file 2>/dev/null | tr '\\0' x)\" ] && echo reads $file; done; \
         for folder in {}; do [ -n \"$(ls $folder 2>/dev/null)\" ] && echo lists $folder; done; \
         find /proc/sys /sys /dev -writable ! -type l 2>/dev/null | sort | sed 's/^/writable /'; \
         for name in x 0 7; do touch /dev/pts/$name || mkdir /dev/pts/$name || ln -s x /dev/pts/$name; done 2>/dev/null && echo made in /dev/pts; echo end",
        WRITE.join(" "),
        READ.join(" "),
        FOLDERS.join(" ")
    )
}

fn lines<'a>(text: &'a str, word: &str) -> BTreeSet<&'a str> {
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
    lines.collect()
}

#[test]
fn p05_nothing_of_the_kernels_files_opens() {
    let test = "p05_nothing_of_the_kernels_files";
    if !need(test, &[Need::Root, Need::Program("unshare")]) {
        return;
    }
    for who in everybody(test) {
        is_closed(&Instance::of(who), who, &[]);
    }
    if let Some(instance) = with_image(test) {
        is_closed(&instance, Who::Me, &IMAGE);
    }

    // The control: in a user namespace that is root of the host, much of it opens; nothing is written.
    let free = outside(
        &["unshare", "--user", "--map-root-user", "sh", "-c", &look()],
        None,
    );
    let told = free.out();
    assert!(
        lines(&told, "writes").contains("/proc/sys/kernel/core_pattern"),
        "{}",
        free.story()
    );
    assert!(lines(&told, "reads").len() >= 5, "{}", free.story());
    assert!(lines(&told, "lists").len() >= 3, "{}", free.story());
    assert!(
        lines(&told, "writable").len() > WRITABLE.len(),
        "{}",
        free.story()
    );
}

/// What a guest may write below the kernel's folders.
const WRITABLE: [&str; 8] = [
    "/dev/full",
    "/dev/null",
    "/dev/pts/ptmx",
    "/dev/random",
    "/dev/shm",
    "/dev/tty",
    "/dev/urandom",
    "/dev/zero",
];

/// What makes a run one in the image of [`with_image`].
const IMAGE: [&str; 2] = ["--image", "tool:1"];

/// An instance with an image of busybox, where one can be made.
fn with_image(test: &str) -> Option<Instance> {
    let needs = ["umoci", "busybox"].map(Need::Program);
    need(&format!("{test} (in an image)"), &needs).then(|| {
        let instance = Instance::new();
        let _ = crate::image_runs::plain(&instance, "tool:1");
        instance
    })
}

#[track_caller]
fn is_closed(instance: &Instance, who: Who, flags: &[&str]) {
    let flags = [&["-q"], flags].concat();
    let outcome = instance.sh(&flags, &look()).status_is(0);
    let told = outcome.out();
    assert!(told.contains("end"), "{}", outcome.story());
    assert!(lines(&told, "writes").is_empty(), "{told}");
    assert!(lines(&told, "reads").is_empty(), "{told}");
    assert!(lines(&told, "lists").is_empty(), "{told}");
    if flags.len() > 1 {
        // The image's `find` does not know what can be written.
        return;
    }
    let mut writable = lines(&told, "writable");
    // With a single id it is the user's by its mode; no name can be made in it.
    if who == Who::Ordinary && writable.remove("/dev/pts") {
        assert!(!told.contains("made in /dev/pts"), "{told}");
    }
    assert_eq!(writable, WRITABLE.into_iter().collect(), "{told}");
}

/// Every device node below a folder, as `major:minor`, without crossing into `/proc`.
fn devices(top: &Path) -> BTreeSet<(PathBuf, u32, u32)> {
    let mut found = BTreeSet::new();
    let mut folders = vec![top.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
        {
            let Ok(seen) = entry.metadata() else { continue };
            let kind = seen.file_type();
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_char_device() || kind.is_block_device() {
                let number = seen.rdev();
                found.insert((
                    entry.path().strip_prefix(top).expect("below").to_owned(),
                    rustix::fs::major(number),
                    rustix::fs::minor(number),
                ));
            }
        }
    }
    found
}

#[test]
fn p05_the_devices_are_those_on_the_list() {
    let test = "p05_the_devices_are_those_on_the_list";
    if !need(test, &[Need::Root]) {
        return;
    }
    for who in everybody(test) {
        has_listed_devices(&Instance::of(who));
    }
    let free = outside(
        &[
            "sh",
            "-c",
            "cd $(mktemp -d) && mknod node c 1 3 && echo made; rm -f node; rmdir $PWD",
        ],
        None,
    );
    assert!(free.out().contains("made"), "{}", free.story());
}

#[track_caller]
fn has_listed_devices(instance: &Instance) {
    let held = hold(instance, &["run", "--", "sleep", "60"], "sleep");
    let seen = devices(Path::new(&format!("/proc/{}/root/dev", held.workload)));
    let right = [
        ("full", 1, 7),
        ("null", 1, 3),
        ("pts/ptmx", 5, 2),
        ("random", 1, 8),
        ("tty", 5, 0),
        ("urandom", 1, 9),
        ("zero", 1, 5),
    ];
    let right = right.map(|(name, major, minor)| (PathBuf::from(name), major, minor));
    assert_eq!(seen, right.into_iter().collect());
    // The control: the host has more, and the same look sees them.
    assert!(devices(Path::new("/dev")).len() > seen.len());
    // None can be made either.
    let script = "for kind in 'b 7 0' 'c 1 1' 'c 10 200' 'c 10 229'; do mknod /tmp/node $kind 2>/dev/null && echo made; rm -f /tmp/node; done; echo end";
    let outcome = instance.sh(&["-q"], script).status_is(0);
    assert_eq!(outcome.out().trim(), "end", "{}", outcome.story());
}

/// The files of a sandbox's control groups that say what it may take, and the groups below it.
fn limits(pid: i32) -> Vec<(PathBuf, String)> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let mut found = Vec::new();
    for group in groups.lines().filter(|line| line.contains("/leasehold-")) {
        let mut parts = group.splitn(3, ':').skip(1);
        let (name, path) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        let mount = table.lines().find_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let kind = if name.is_empty() {
                "cgroup2 "
            } else {
                "cgroup "
            };
            let of_it = right.starts_with(kind)
                && (name.is_empty() || right.split([' ', ',']).any(|word| word == name));
            of_it.then(|| left.split(' ').nth(4).unwrap_or("/").to_owned())
        });
        let folder = PathBuf::from(format!("{}{path}", mount.expect("the hierarchy's mount")));
        for entry in fs::read_dir(&folder)
            .expect("a group")
            .filter_map(Result::ok)
        {
            let name = entry.file_name().to_string_lossy().into_owned();
            let counts = [
                "memory.limit_in_bytes",
                "memory.memsw.limit_in_bytes",
                "memory.max",
                "memory.swap.max",
                "pids.max",
                "cpu.cfs_quota_us",
                "cpu.cfs_period_us",
                "cpu.max",
                "cgroup.freeze",
                "notify_on_release",
                "cgroup.max.descendants",
                "memory.oom_control",
            ];
            if counts.contains(&name.as_str()) {
                found.push((
                    entry.path(),
                    fs::read_to_string(entry.path()).unwrap_or_default(),
                ));
            } else if entry.path().is_dir() {
                found.push((entry.path(), "a group below".to_owned()));
            }
        }
    }
    found.sort();
    found
}

/// Mounts every hierarchy there is and writes every file that would help, wherever it may be.
const ATTACK: &str = "mkdir -p $1; \
    for kind in cpu cpuacct cpuset memory devices freezer blkio pids net_cls rdma none,name=x; do \
      mount -t cgroup -o $kind none $1 2>/dev/null && { echo mounted $kind; umount $1; }; done; \
    mount -t cgroup2 none $1 2>/dev/null && { echo mounted unified; umount $1; }; \
    mount -t tmpfs none $1 2>/dev/null && { echo mounted tmpfs; umount $1; }; \
    for name in release_agent notify_on_release cgroup.procs tasks memory.max memory.limit_in_bytes pids.max \
      cgroup.freeze cgroup.subtree_control cgroup.kill cpu.max; do \
      for file in $(find / -xdev -name $name 2>/dev/null) /sys/fs/cgroup/$name /sys/fs/cgroup/*/$name; do \
        [ -w $file ] && echo writable $file; done; done; \
    mkdir /sys/fs/cgroup/x /sys/fs/cgroup/memory/x 2>/dev/null && echo made; \
    grep -c ' - cgroup' /proc/self/mountinfo | sed 's/^/mounts /'; echo end";

#[test]
fn p15_no_control_group_can_be_reached() {
    let test = "p15_no_control_group";
    if !need(test, &[Need::Root, Need::Program("unshare")]) {
        return;
    }
    for who in everybody(test) {
        reaches_no_group(&Instance::of(who), who);
    }

    // The control: root in a mount namespace of its own mounts a hierarchy and may write there.
    let instance = Instance::new();
    let folder = instance.scratch("groups");
    let attack = ATTACK
        .replace(
            "cpu cpuacct cpuset memory devices freezer blkio pids net_cls rdma none,name=x",
            "memory pids cpu",
        )
        .replace("find / -xdev", "find /sys/fs/cgroup -maxdepth 2")
        .replace("mkdir /sys/fs/cgroup/x /sys/fs/cgroup/memory/x", "false");
    let script = format!("set -- {}; {attack}", folder.display());
    let free = outside(&["unshare", "--mount", "sh", "-c", &script], None);
    assert!(
        free.out().contains("mounted") && free.out().contains("writable"),
        "{}",
        free.story()
    );
}

/// Attacks in a sandbox; its groups stay as they are. An ordinary user's may have none of its own.
#[track_caller]
fn reaches_no_group(instance: &Instance, who: Who) {
    let script = format!("read go; set -- /tmp/groups; {ATTACK}; exec sleep 60");
    let words = ["run", "-q", "-t", "--", "sh", "-c", &script];
    let mut session = Session::start(instance, &words);
    let (_, shell) = await_workload(instance, "sh", || session.seen());
    let before = limits(shell);
    let words: Vec<String> = before
        .iter()
        .map(|(path, _)| path.display().to_string())
        .collect();
    assert!(
        who == Who::Ordinary || words.iter().any(|word| word.ends_with("pids.max")),
        "{words:?}"
    );
    session.type_in(b"go\r");
    session.await_seen("end");
    let told = session.seen();
    for word in ["mounted", "writable", "made"] {
        assert!(!told.contains(word), "{told}");
    }
    assert!(told.contains("mounts 0"), "a hierarchy is visible: {told}");
    let (_, workload) = await_workload(instance, "sleep", || session.seen());
    assert_eq!(limits(workload), before);
}

/// All that a guest can read of who it is with: environment, small files of the kernel and of `/etc`,
/// names, errors.
const COLLECT: &str = "env; hostname; uname -a; id; cd /; ls -la / /dev /run /var /home /tmp /workspace; \
    cat /proc/self/mountinfo /proc/self/mounts /proc/self/mountstats /proc/self/cgroup /proc/self/maps \
      /proc/*/cmdline /proc/*/environ /proc/net/* /proc/cmdline /proc/version /proc/sys/kernel/hostname \
      /proc/sys/kernel/domainname /proc/sys/kernel/random/boot_id /sys/class/dmi/id/* /var/lib/dbus/machine-id; \
    find /etc /run /sys /dev/shm -type f -size -64k -exec cat {} +; \
    readlink /proc/self/fd/* /proc/self/ns/* /proc/*/exe /proc/*/cwd; ls /nowhere; cat /root/x; mount; df";

#[test]
fn p17_nothing_names_the_host() {
    let test = "p17_nothing_names_the_host";
    if !need(test, &[Need::Root]) {
        return;
    }
    let mut canaries = Vec::new();
    for who in everybody(test) {
        canaries = names_nothing(&Instance::of(who), &[], Vec::new());
    }
    if let Some(instance) = with_image(test) {
        let listed = instance.cli(["image", "ls", "--json"]).json();
        let image = &listed[0]["image"];
        let text =
            |value: &serde_json::Value| value.as_str().expect("a text").replace("sha256:", "");
        let more = vec![
            ("the image's digest", text(&image["digest"])),
            ("the name of a layer", text(&image["layers"][0]["key"])),
            ("the image's name", "tool:1".to_owned()),
        ];
        let _ = names_nothing(&instance, &IMAGE, more);
    }

    // The control: the same look outside finds what can be found by it, among it the boot's id.
    // It leaves out what would take long there, or tell in a log what a host keeps for itself.
    let look = COLLECT
        .replace("env; ", "")
        .replace("/proc/*/cmdline /proc/*/environ", "")
        .replace(
            "find /etc /run /sys /dev/shm",
            "find /etc/machine-id /etc/hostname",
        );
    let told = outside(&["sh", "-c", &look], None).out();
    let found: Vec<&str> = canaries
        .iter()
        .filter(|(_, canary)| told.contains(canary.as_str()))
        .map(|(what, _)| *what)
        .collect();
    assert!(found.contains(&"boot id") && found.len() >= 3, "{found:?}");
}

fn read(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().to_owned()
}

/// The host's name, where it is not one of many, and the addresses of its network.
fn names_of_the_host() -> Vec<(&'static str, String)> {
    let mut canaries = Vec::new();
    let host = read("/proc/sys/kernel/hostname");
    // A name that may be in any text proves nothing.
    if host.len() > 5 && !["localhost", "debian"].contains(&host.as_str()) {
        canaries.push(("host's name", host));
    }
    for device in fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
    {
        let address = read(&device.path().join("address").display().to_string());
        if address.len() > 10 && !address.starts_with("00:00:00:00:00") {
            canaries.push(("an address of the network", address));
        }
    }
    canaries
}

/// Looks around in a sandbox, and finds none of the canaries that it returns.
#[track_caller]
fn names_nothing(
    instance: &Instance,
    flags: &[&str],
    more: Vec<(&'static str, String)>,
) -> Vec<(&'static str, String)> {
    let words = [&["run"], flags, &["--", "sleep", "60"]].concat();
    let neighbour = hold(instance, &words, "sleep");
    let group = read(&format!("/proc/{}/cgroup", neighbour.workload));
    let other = group.rsplit('/').next().unwrap_or_default().to_owned();
    let mut canaries: Vec<(&'static str, String)> = vec![
        ("state directory", instance.state().display().to_string()),
        ("instance", instance.name()),
        ("another sandbox", other),
        ("boot id", read("/proc/sys/kernel/random/boot_id")),
        ("machine id", read("/etc/machine-id")),
        ("kernel's command line", read("/proc/cmdline")),
        ("product", read("/sys/class/dmi/id/product_uuid")),
    ];
    canaries.extend(names_of_the_host());
    canaries.extend(more);
    canaries.retain(|(_, canary)| canary.len() > 5);

    let workspace = instance.scratch("w").display().to_string();
    let flags = [&["-q", "--workspace", workspace.as_str()], flags].concat();
    let outcome = instance.sh(&flags, COLLECT);
    let runs = instance.cli(["runs", "--json"]).json();
    for key in ["run", "sandbox"] {
        canaries.push((
            "its own id outside",
            runs[0][key].as_str().expect("an id").to_owned(),
        ));
    }
    let told = outcome.out() + &outcome.err();
    assert!(told.len() > 5_000, "{}", outcome.story());
    for (what, canary) in &canaries {
        assert!(
            !told.contains(canary.as_str()),
            "{what} `{canary}` is visible inside"
        );
    }
    canaries
}
