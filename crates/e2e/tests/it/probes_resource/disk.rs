//! P32: bytes and inodes by every way a guest has to take them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use leasehold_e2e::{Instance, Need, Outcome, need};

use crate::record::{assert_clean, assert_nothing_left};

/// Ways to fill a disk. Each says `refused` when it was, and `through` when it got all it wanted: 40 MiB,
/// or 2000 files.
const WAYS: [(&str, &str); 6] = [
    (
        "write",
        "with open('f', 'wb') as f:\n  for _ in range(40): f.write(b'x' * MIB)",
    ),
    (
        "fallocate",
        "f = os.open('f', os.O_CREAT | os.O_RDWR)\nos.posix_fallocate(f, 0, 40 * MIB)",
    ),
    (
        "sparse",
        "f = os.open('f', os.O_CREAT | os.O_RDWR)\nos.ftruncate(f, 1 << 40)\nfor at in range(40): os.pwrite(f, b'x' * MIB, at * 64 * MIB)",
    ),
    (
        "unlinked",
        "held = []\nfor at in range(40):\n  f = os.open('f', os.O_CREAT | os.O_RDWR); os.unlink('f'); held.append(f)\n  os.write(f, b'x' * MIB)\n  if os.fstat(f).st_blocks * 512 < MIB: raise OSError(28, 'short')",
    ),
    ("files", "for at in range(2000): open(f'f{at}', 'w')"),
    (
        "deep",
        "for at in range(2000):\n  os.mkdir('d'); os.chdir('d')",
    ),
];

fn way(script: &str, place: &str) -> String {
    format!(
        "import os, errno\nMIB = 1 << 20\nos.chdir('{place}')\ntry:\n  exec({script:?})\n  print('through')\nexcept OSError as error:\n  print('refused' if error.errno in (errno.ENOSPC, errno.EDQUOT) else error)"
    )
}

fn attempt(instance: &Instance, limits: &[&str], script: &str) -> Outcome {
    let head = ["run", "--memory", "192M", "--timeout", "30s"];
    let tail = ["--", "/usr/bin/python3", "-c", script];
    instance.cli([&head, limits, &tail].concat())
}

#[test]
fn p32_every_way_is_refused_inside_and_gone_after() {
    let test = "p32_every_way_is_refused_inside_and_gone_after";
    if !need(test, &[Need::Root, Need::Path("/usr/bin/python3")]) {
        return;
    }
    let instance = Instance::new();
    for (name, script) in WAYS {
        for place in ["/workspace", "/tmp"] {
            let limits = ["--disk", "24M", "--inodes", "1000"];
            let outcome = attempt(&instance, &limits, &way(script, place)).status_is(0);
            assert_eq!(outcome.out(), "refused\n", "{name}: {}", outcome.story());
        }
        let record = instance.last_record();
        assert_clean(&record);
        let limits = ["--disk", "90M", "--inodes", "4000"];
        let outcome = attempt(&instance, &limits, &way(script, "/workspace")).status_is(0);
        assert_eq!(outcome.out(), "through\n", "{name}: {}", outcome.story());
    }
    assert_nothing_left(&instance);
}

#[test]
fn p32_shared_memory_is_a_file_system_with_bounds_too() {
    let test = "p32_shared_memory_is_a_file_system_with_bounds_too";
    if !need(test, &[Need::Root, Need::Path("/usr/bin/python3")]) {
        return;
    }
    let instance = Instance::new();
    let fill = "with open('f', 'wb') as f:\n  for _ in range(70): f.write(b'x' * MIB)";
    let outcome = attempt(&instance, &[], &way(fill, "/dev/shm")).status_is(0);
    assert_eq!(outcome.out(), "refused\n", "{}", outcome.story());
    let files = "for at in range(70000): open(f'f{at}', 'w')";
    let outcome = attempt(&instance, &[], &way(files, "/dev/shm")).status_is(0);
    assert_eq!(outcome.out(), "refused\n", "{}", outcome.story());
    // The host's own takes as much.
    let host = Path::new("/dev/shm").join(instance.name());
    let took = fs::write(&host, vec![1; 70 << 20]);
    fs::remove_file(&host).ok();
    took.expect("70 MiB of the host's shared memory");
}

/// A disk that is larger than memory is an image on the host's disk. It takes no more of it than was
/// leased, whatever is done inside, and is gone with the sandbox.
#[test]
fn p32_an_image_takes_no_more_of_the_host_than_leased() {
    let test = "p32_an_image_takes_no_more_of_the_host_than_leased";
    let needs = [
        Need::Root,
        Need::Path("/dev/loop-control"),
        Need::Path("/usr/bin/python3"),
    ];
    if !need(test, &needs) {
        return;
    }
    let instance = Instance::new();
    let fill = "import os\ntry:\n  f = open('/workspace/f', 'wb')\n  while True: f.write(b'x' * (1 << 20))\nexcept OSError: pass\nos.sync()\nprint('full', flush=True)\nimport time; time.sleep(20)";
    let limits = [
        "run", "--memory", "48M", "--disk", "96M", "--grace", "100ms",
    ];
    let run = instance.start([&limits[..], &["--", "/usr/bin/python3", "-c", fill]].concat());
    run.await_out("full", Duration::from_secs(30));
    let held = allocated(&instance.state().join("scratch"));
    assert!(held >= 48 << 20, "{held} bytes: it is not on the disk");
    assert!(held <= (96 << 20) + (8 << 20), "{held} bytes of the host");
    run.signal(rustix::process::Signal::INT);
    run.wait(Duration::from_secs(20)).status_is(130);
    assert_clean(&instance.last_record());
    let left = allocated(&instance.state().join("scratch"));
    assert!(left <= 1 << 20, "{left} bytes are still held");
    assert_nothing_left(&instance);
}

/// Bytes on disk of everything below a folder.
fn allocated(folder: &Path) -> u64 {
    let Ok(found) = fs::symlink_metadata(folder) else {
        return 0;
    };
    let below = fs::read_dir(folder).into_iter().flatten().flatten();
    let own = found.blocks() * 512;
    own + below.map(|entry| allocated(&entry.path())).sum::<u64>()
}
