//! What a sandbox is, tried from inside: `/proc`, devices, limits, network, nesting.

use std::os::fd::AsFd;
use std::process::Command;

use leasehold_jail::spawn::Disk;

use crate::cases::sandbox;
use crate::rig::{Directory, expect, make, make_with, spawner, spec};
use crate::{Case, Outcome};

pub(crate) const CASES: &[Case] = &[
    ("proc_hides_what_is_of_the_host", masks),
    ("proc_and_sys_cannot_be_written", sealed),
    ("processes_of_others_are_invisible", hidden_processes),
    ("inits_program_cannot_be_written", program),
    ("runtimes_see_the_limits", runtimes),
    ("devices_are_these_and_work", devices),
    (
        "disk_inodes_shared_memory_and_terminals_are_bounded",
        bounded,
    ),
    ("disk_image_bounds_what_memory_need_not_hold", image),
    ("network_is_loopback_alone", network),
    ("network_of_the_pool_is_the_same", pooled_network),
    ("namespaces_cannot_be_nested", nesting),
    ("cgroups_cannot_be_mounted", cgroup_mounts),
];

fn masks() -> Outcome {
    let sandbox = sandbox()?;
    let mut seen = 0;
    for name in [
        "kcore",
        "keys",
        "key-users",
        "kallsyms",
        "kpagecount",
        "kpageflags",
        "timer_list",
        "sched_debug",
        "interrupts",
        "config.gz",
        "cmdline",
        "kmsg",
        "modules",
        "diskstats",
        "partitions",
        "swaps",
        "vmallocinfo",
        "slabinfo",
        "zoneinfo",
        "iomem",
        "ioports",
        "softirqs",
        "cgroups",
        "locks",
        "vmstat",
        "buddyinfo",
    ] {
        let host = std::path::Path::new("/proc").join(name);
        if !host.exists() {
            continue;
        }
        seen += 1;
        let (_, out) = sandbox.init(&format!("head -c 1 /proc/{name}"));
        expect(out.is_empty(), format!("{name}: {out}"))?;
    }
    for name in [
        "acpi", "bus", "fs", "irq", "scsi", "driver", "tty", "pressure",
    ] {
        let (_, out) = sandbox.init(&format!("ls -A /proc/{name} 2>/dev/null"));
        expect(out.is_empty(), format!("{name}: {out}"))?;
    }
    // The controls: on the host the same files do say something.
    let host = std::fs::read_to_string("/proc/interrupts").unwrap_or_default();
    expect(
        !host.is_empty() && seen > 15,
        "the host's files are empty too",
    )?;
    // What programs need is there.
    sandbox.out("cd /proc && grep -q . self/status && grep -q . uptime && grep -q . version")?;
    sandbox
        .out("cd /proc && grep -q . filesystems && grep -q . mounts && grep -q . net/dev")
        .map(drop)
}

fn sealed() -> Outcome {
    let sandbox = sandbox()?;
    for path in [
        "/proc/sysrq-trigger",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/vm/drop_caches",
        "/proc/sys/user/max_user_namespaces",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sys/kernel/hostname",
        "/proc/self/oom_score_adj",
        "/proc/self/uid_map",
        "/proc/1/oom_score_adj",
        "/sys/fs/cgroup/memory.max",
    ] {
        let (status, out) = sandbox.init(&format!("exec 3>>{path}"));
        expect(status != 0, format!("{path} opens for writing: {out}"))?;
    }
    let found = sandbox
        .init("find /proc/sys /sys /proc/fs /proc/irq -writable 2>/dev/null")
        .1;
    expect(found.is_empty(), format!("writable: {found}"))?;
    // The control: in a user namespace that maps the host's root, this one does open.
    let control = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c"])
        .arg("exec 3>>/proc/sys/kernel/core_pattern")
        .status();
    expect(
        control.is_ok_and(|status| status.success()),
        "the control could not open core_pattern either",
    )
}

fn hidden_processes() -> Outcome {
    let sandbox = sandbox()?;
    let numbers = sandbox.out("cd /proc && ls -d [0-9]* | tr '\\n' ' '")?;
    expect(
        !numbers.split(' ').any(|number| number == "1"),
        format!("the workload sees {numbers}"),
    )?;
    let (status, out) = sandbox.sh("cat /proc/1/status");
    expect(status != 0, format!("the workload reads init: {out}"))?;
    // The control: init sees itself, and a process of the workload.
    let (status, out) = sandbox.init("cat /proc/1/comm");
    expect(status == 0, format!("init does not see itself: {out}"))
}

fn program() -> Outcome {
    let sandbox = sandbox()?;
    for script in [
        "exec 3>>/proc/1/exe",
        "exec 3>>/proc/self/exe",
        "exec 3>/proc/1/exe",
    ] {
        let (status, out) = sandbox.init(script);
        expect(status != 0, format!("`{script}` worked: {out}"))?;
    }
    let (status, out) = sandbox.sh("cat /proc/1/exe > /dev/null");
    expect(
        status != 0,
        format!("the workload reads the first program: {out}"),
    )?;
    // The control: the sealed program can be read by init, and what is not sealed can be written.
    let (status, out) = sandbox.init("head -c 4 /proc/1/exe > /tmp/y && exec 3>>/tmp/y");
    expect(status == 0, format!("the control failed: {out}"))
}

fn runtimes() -> Outcome {
    let mut order = spec();
    order.cores = vec![1];
    order.memory_bytes = 96 << 20;
    let mut spawner = spawner(None).map_err(|error| format!("{error:?}"))?;
    let sandbox = make(&mut spawner, &order, None).map_err(|error| format!("{error:?}"))?;
    let host = std::thread::available_parallelism().map_or(1, usize::from);
    for (script, wanted) in [
        ("nproc", "1"),
        ("getconf _NPROCESSORS_ONLN", "1"),
        ("grep -c ^processor /proc/cpuinfo", "1"),
        ("grep -c '^cpu[0-9]' /proc/stat", "1"),
        ("cat /sys/devices/system/cpu/online", "1"),
        ("free -m | awk '/^Mem/ {print $2}'", "96"),
        (
            "python3 -c 'import os; print(os.cpu_count(), len(os.sched_getaffinity(0)))'",
            "1 1",
        ),
        ("ps -o comm= -p $$", "sh"),
        (
            "cat /proc/sys/kernel/random/boot_id",
            "00000000-0000-4000-8000-000000000000",
        ),
    ] {
        let got = sandbox.out(script)?;
        expect(
            got == wanted,
            format!("`{script}` says {got}, not {wanted}"),
        )?;
    }
    if std::path::Path::new("/usr/bin/node").exists() {
        let script =
            "node -p 'const os=require(\"os\"); os.cpus().length+\" \"+os.availableParallelism()'";
        let got = sandbox.out(script)?;
        expect(got == "1 1", format!("node says {got}"))?;
        let memory = sandbox.out("node -p 'process.constrainedMemory()'")?;
        expect(
            memory == (96 << 20).to_string(),
            format!("node sees {memory} bytes"),
        )?;
    }
    if host < 2 {
        return Err("SKIP runtimes: the control needs a host of two processors".into());
    }
    Ok(())
}

fn devices() -> Outcome {
    let sandbox = sandbox()?;
    let names = sandbox.out("cd /dev && ls -A | tr '\\n' ' '")?;
    expect(
        names.trim() == "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero",
        format!("/dev holds {names}"),
    )?;
    sandbox
        .out("echo x > /dev/null && head -c 4 /dev/urandom > /dev/null && head -c 4 /dev/zero")?;
    let (status, _) = sandbox.sh("echo x > /dev/full");
    expect(status != 0, "/dev/full takes bytes")?;
    sandbox.out("echo to-stdout > /dev/stdout; echo x | cat /dev/stdin; exec 4< /dev/fd/0")?;
    for script in [
        "mknod /tmp/n c 1 3",
        "mknod /tmp/sda b 254 0",
        "chmod 600 /dev/null",
    ] {
        let (status, out) = sandbox.init(script);
        expect(status != 0, format!("`{script}` worked: {out}"))?;
    }
    let script = "import os,pty; m,s=pty.openpty(); print(os.ttyname(s))";
    let got = sandbox.out(&format!("python3 -c '{script}'"))?;
    expect(got == "/dev/pts/0", format!("a terminal is {got}"))
}

fn bounded() -> Outcome {
    let sandbox = sandbox()?;
    // 4 MiB and 256 files for workspace, /tmp, home and /var/tmp together.
    let (_, out) = sandbox.sh(
        "head -c 3m /dev/zero > /workspace/a; head -c 3m /dev/zero > /tmp/b; \
         stat -c %s /workspace/a /tmp/b",
    );
    expect(
        out.contains("No space left") && out.contains("3145728"),
        format!("disk: {out}"),
    )?;
    sandbox.out("rm /workspace/a /tmp/b")?;
    let (_, out) = sandbox.sh(
        "i=0; while [ $i -lt 400 ]; do touch /home/user/f$i || break; i=$((i+1)); done; echo made $i",
    );
    let made: u32 = out
        .lines()
        .find_map(|line| line.strip_prefix("made "))
        .and_then(|number| number.trim().parse().ok())
        .unwrap_or(0);
    expect(
        (250..=262).contains(&made),
        format!("made {made} files: {out}"),
    )?;
    let (_, out) = sandbox.sh("head -c 2m /dev/zero > /dev/shm/a; stat -c %s /dev/shm/a");
    expect(
        out.contains("No space left") && out.contains("1048576"),
        format!("shared memory: {out}"),
    )?;
    let script = "import os
n=0
try:
    while n<40:
        os.open(\"/dev/ptmx\",os.O_RDWR|os.O_NOCTTY); n+=1
except OSError as e:
    pass
print(n)";
    let got = sandbox.out(&format!("python3 -c '{script}'"))?;
    expect(got == "16", format!("{got} terminals"))
}

fn image() -> Outcome {
    let directory = Directory::new("image");
    let path = directory.0.join("disk.ext4");
    let size = 32 << 20;
    let file = std::fs::File::create_new(&path).map_err(|error| error.to_string())?;
    file.set_len(size).map_err(|error| error.to_string())?;
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-F", "-m", "0", "-N", "256"])
        .arg(&path)
        .status();
    if !made.is_ok_and(|status| status.success()) {
        return Err("SKIP disk_image: no mkfs.ext4 here".into());
    }
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let Ok(device) = leasehold_jail::loop_device::attach(file.as_fd()) else {
        return Err("SKIP disk_image: no loop device is to be had".into());
    };
    let mut order = spec();
    order.disk = Disk::Image;
    order.memory_bytes = 16 << 20;
    let mut spawner = spawner(None).map_err(|error| format!("{error:?}"))?;
    let sandbox = make_with(&mut spawner, &order, None, Some(device.device.as_fd()), &[])
        .map_err(|error| format!("{error:?}"))?;
    let (_, out) = sandbox.sh("head -c 64m /dev/zero > /workspace/a; stat -c %s /workspace/a");
    expect(
        out.contains("No space left"),
        format!("more than the image holds: {out}"),
    )?;
    sandbox.out("rm /workspace/a && echo x > /tmp/b && echo y > /home/user/c")?;
    let (_, out) = sandbox.sh("cd /tmp && for i in $(seq 400); do touch f$i || break; done");
    expect(
        out.contains("No space left"),
        format!("more files than the image holds: {out}"),
    )?;
    let (status, out) = sandbox.init("cat /proc/self/mountinfo");
    let name = directory.0.display().to_string();
    expect(
        status == 0 && !out.contains(&name),
        format!("the image has a name: {out}"),
    )
}

const NETWORK: &str = "import socket,threading
for family,address in ((socket.AF_INET,\"127.0.0.1\"),(socket.AF_INET6,\"::1\")):
    s=socket.socket(family,socket.SOCK_STREAM); s.bind((address,80)); s.listen()
    c=socket.create_connection((address,80),timeout=5); s.accept()
for target in (\"10.0.0.1\",\"169.254.169.254\",\"8.8.8.8\"):
    try:
        socket.create_connection((target,80),timeout=5); print(\"reached\",target)
    except OSError as e:
        print(e.errno)
";

fn loopback_alone(sandbox: &crate::rig::Sandbox) -> Outcome {
    let devices = sandbox.out("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")?;
    let own: Vec<&str> = devices
        .lines()
        // Fallback tunnels the kernel adds to every namespace have no address and are down.
        .filter(|name| {
            !matches!(
                *name,
                "sit0"
                    | "tunl0"
                    | "gre0"
                    | "gretap0"
                    | "erspan0"
                    | "ip_vti0"
                    | "ip6_vti0"
                    | "ip6tnl0"
                    | "ip6gre0"
            )
        })
        .collect();
    expect(own == ["lo"], format!("devices: {devices}"))?;
    // Port 80 by the workload, on both loopbacks; nothing else has a route.
    let got = sandbox.out(&format!("python3 -c '{NETWORK}'"))?;
    let unreachable = rustix::io::Errno::NETUNREACH.raw_os_error().to_string();
    let three = [unreachable.as_str(); 3].join("\n");
    expect(got == three, format!("connecting says {got}"))
}

fn network() -> Outcome {
    loopback_alone(&sandbox()?)
}

fn pooled_network() -> Outcome {
    let mut spawner = spawner(None).map_err(|error| format!("{error:?}"))?;
    // Idle until its pool is full: the spawner then holds more network namespaces than its own.
    let held = || {
        std::fs::read_dir(format!("/proc/{}/fd", spawner.pid()))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .filter(|target| target.to_string_lossy().starts_with("net:["))
            .count()
    };
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while held() < 5 {
        if std::time::Instant::now() > until {
            return Err(format!("the pool holds {} namespaces", held()));
        }
        std::thread::yield_now();
    }
    let before = held();
    let sandbox = make(&mut spawner, &spec(), None).map_err(|error| format!("{error:?}"))?;
    let _ = before;
    loopback_alone(&sandbox)?;
    let other = make(&mut spawner, &spec(), None).map_err(|error| format!("{error:?}"))?;
    expect(
        sandbox.made.namespaces.net != other.made.namespaces.net,
        "a namespace was handed out twice",
    )
}

fn nesting() -> Outcome {
    let sandbox = sandbox()?;
    for script in [
        "unshare --user true",
        "unshare --user --map-root-user --mount true",
    ] {
        for (who, (status, out)) in [
            ("workload", sandbox.sh(script)),
            ("init", sandbox.init(script)),
        ] {
            expect(status != 0, format!("{who}: `{script}` worked"))?;
            expect(
                out.contains("No space left"),
                format!("{who}: `{script}`: {out}"),
            )?;
        }
    }
    // The control: the same program does it on this host as an ordinary user.
    let control = Command::new("setpriv")
        .args([
            "--reuid",
            "23456",
            "--regid",
            "23456",
            "--clear-groups",
            "unshare",
            "--user",
            "true",
        ])
        .status();
    expect(
        control.is_ok_and(|status| status.success()),
        "the control cannot make a user namespace either",
    )
}

fn cgroup_mounts() -> Outcome {
    let sandbox = sandbox()?;
    for script in [
        "mount -t cgroup2 none /tmp",
        "mount -t cgroup -o pids none /tmp",
        "mount -t cgroup -o memory none /workspace",
        "mount -t proc none /tmp",
        "mount -t sysfs none /tmp",
        "mount --bind /proc /tmp",
    ] {
        let (status, out) = sandbox.init(script);
        expect(status != 0, format!("`{script}` worked: {out}"))?;
    }
    let text = sandbox.init("cat /proc/self/mountinfo").1;
    expect(!text.contains(" cgroup"), "a hierarchy is visible")
}
