//! The inventory sees what is left, a record says what did not go, and a sweep takes away what is ours
//! alone.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use leasehold_e2e::{Instance, Need, Running, need, skip, until};

use super::{SOON, kill};
use crate::record::assert_nothing_left;

/// A name that a sandbox could have.
const SANDBOX: &str = "saaaaaaaaaaaaaaaaaaaa";

/// Runs a program of the host that must succeed, and returns what it said.
#[track_caller]
fn host(words: &[&str]) -> String {
    let done = Command::new(words[0])
        .args(&words[1..])
        .output()
        .expect("start a program");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{words:?}: {said}");
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

/// A hierarchy in which groups can be made.
fn hierarchy() -> Option<PathBuf> {
    [
        "/sys/fs/cgroup/unified",
        "/sys/fs/cgroup/pids",
        "/sys/fs/cgroup",
    ]
    .map(PathBuf::from)
    .into_iter()
    .find(|path| path.join("cgroup.procs").exists())
}

/// A lease that the ledger of an instance has and no entry of it names. Whoever else sweeps leaves it
/// alone, since the ledger exists.
fn lease(instance: &Instance) -> Option<PathBuf> {
    let holder = instance.state().join("ledger");
    let folder = PathBuf::from("/run/leasehold-uids");
    if !folder.exists() {
        return None;
    }
    // Blocks lie 0x10000 apart, from 0x60000000; one that is leased already is passed over.
    (0..0x1ff_u32).rev().find_map(|block| {
        let path = folder.join(format!("{:08x}", 0x6000_0000 + (block << 16)));
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .ok()?;
        std::io::Write::write_all(&mut file, holder.as_os_str().as_encoded_bytes()).ok()?;
        Some(path)
    })
}

/// The control of every test that says that nothing is left.
#[test]
fn the_inventory_sees_one_of_each_kind() {
    let name = "crash::the_inventory_sees_one_of_each_kind";
    let tools = ["losetup", "unshare", "mount", "umount"].map(Need::Program);
    if !need(name, &[&[Need::Root], &tools[..]].concat()) {
        return;
    }
    let instance = Instance::new();
    // It also makes the registry of leases and the directories.
    instance.run(["--", "true"]).status_is(0);
    assert_nothing_left(&instance);
    let seen = |kind: &str| instance.inventory().count(kind);

    let mut sleeper = Command::new("unshare");
    sleeper
        .args(["--net", "sleep", "60"])
        .env("LEASEHOLD_STATE_DIR", instance.state());
    let sleeper = Running::start(&mut sleeper, None);
    until("a process and its network", SOON, || {
        (seen("processes") == 1 && seen("netns") == 1).then_some(())
    });
    kill(sleeper.pid());
    sleeper.wait(SOON);
    assert_eq!((seen("processes"), seen("netns")), (0, 0));

    let group = hierarchy()
        .expect("a hierarchy")
        .join(format!("leasehold-{}", instance.name()));
    fs::create_dir(&group).unwrap();
    assert_eq!(seen("cgroups"), 1);
    fs::remove_dir(&group).unwrap();

    let folder = instance.scratch("mounted").display().to_string();
    host(&["mount", "-t", "tmpfs", "planted", &folder]);
    let mounted = seen("mounts");
    host(&["umount", &folder]);
    assert_eq!(mounted, 1);

    let image = instance.scratch("images").join("planted.img");
    fs::write(&image, vec![0; 64 << 10]).unwrap();
    match Command::new("losetup")
        .args(["--find", "--show"])
        .arg(&image)
        .output()
    {
        Ok(made) if made.status.success() => {
            let device = String::from_utf8_lossy(&made.stdout).trim().to_owned();
            let seen_loops = seen("loops");
            host(&["losetup", "--detach", &device]);
            assert_eq!(seen_loops, 1);
            until("the loop device to go", SOON, || {
                (seen("loops") == 0).then_some(())
            });
        }
        _ => skip(name, "no loop device can be made here"),
    }

    assert_nothing_left(&instance);
}

/// The same for what is a file.
#[test]
fn the_inventory_sees_leases_sockets_and_files() {
    let name = "crash::the_inventory_sees_leases_sockets_and_files";
    if !need(name, &[Need::Root]) {
        return;
    }
    let instance = Instance::new();
    instance.run(["--", "true"]).status_is(0);
    assert_nothing_left(&instance);
    let seen = |kind: &str| instance.inventory().count(kind);

    let block = lease(&instance).expect("a free block");
    let leased = seen("uids");
    fs::remove_file(&block).unwrap();
    assert_eq!(leased, 1);

    let socket = instance.run_folder().join("planted.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert_eq!(seen("sockets"), 1);
    fs::remove_file(&socket).unwrap();

    for (kind, place) in [
        ("scratch", "scratch"),
        ("scratch", "ledger"),
        ("temp", "blank"),
        ("temp", "open"),
    ] {
        let file = instance.state().join(place).join("planted");
        fs::write(&file, "").unwrap();
        assert_eq!(seen(kind), 1, "{place}");
        fs::remove_file(&file).unwrap();
    }
    assert_nothing_left(&instance);
}

/// Removal that does not succeed is said in the record, seen on the host, and mended by the next one.
#[test]
fn what_is_left_on_purpose_is_on_record() {
    let name = "crash::what_is_left_on_purpose_is_on_record";
    if cfg!(not(debug_assertions)) {
        skip(name, "faults are built with debug assertions only");
        return;
    }
    if !need(name, &[Need::Root]) {
        return;
    }
    for fault in ["cgroups", "uids", "scratch"] {
        eprintln!("fault {fault}");
        let instance = Instance::new();
        let mut command = instance.command(["run", "--", "true"]);
        command.env("LEASEHOLD_FAULT", fault);
        Running::start(&mut command, None).wait(SOON).status_is(0);
        let record = instance.last_record();
        let residues = record["cleanup"]["residues"]
            .as_array()
            .expect("an inventory");
        let dirty = residues.iter().filter(|row| row["clean"] != true);
        let dirty: Vec<&str> = dirty.filter_map(|row| row["resource"].as_str()).collect();
        assert!(dirty.contains(&fault), "{record:#}");
        let left = instance.inventory();
        assert_eq!(left.count("uids"), 1, "the block is quarantined:\n{left}");
        assert_eq!(
            left.count("scratch"),
            1,
            "the ledger still names it:\n{left}"
        );
        kill(instance.supervisor().expect("a supervisor"));
        instance.cli(["sweep"]).status_is(0);
        let after = instance.inventory();
        assert_eq!(
            (after.count("uids"), after.count("cgroups")),
            (0, 0),
            "{after}"
        );
        instance.run(["--", "true"]).status_is(0);
        assert_nothing_left(&instance);
    }
}

/// A lease, an image and an empty group that no entry of the ledger names.
#[test]
fn a_sweep_takes_strays_and_leaves_what_lives() {
    let name = "crash::a_sweep_takes_strays_and_leaves_what_lives";
    if !need(name, &[Need::Root]) {
        return;
    }
    let instance = Instance::new();
    let running = instance.start(["run", "--", "sh", "-c", "echo up; sleep 60"]);
    running.await_out("up", SOON);
    let groups = instance.inventory().all("cgroups");
    let base = groups
        .iter()
        .find(|path| path.ends_with(&instance.name()))
        .expect("a group");
    let base = PathBuf::from(base);
    running.signal(rustix::process::Signal::INT);
    running.wait(SOON).status_is(130);
    assert_nothing_left(&instance);

    let block = lease(&instance).expect("a free block");
    fs::write(instance.state().join(format!("scratch/{SANDBOX}.img")), "x").unwrap();
    fs::create_dir(&base).unwrap();
    fs::create_dir(base.join(SANDBOX)).unwrap();
    let busy = base.join(SANDBOX.replace('a', "b"));
    fs::create_dir(&busy).unwrap();
    let mut sleeper = Command::new("sleep");
    let sleeper = Running::start(sleeper.arg("60"), None);
    fs::write(busy.join("cgroup.procs"), sleeper.pid().to_string()).unwrap();
    let planted = instance.inventory();
    assert_eq!(planted.count("uids"), 1, "{planted}");
    assert!(
        planted.count("cgroups") == 3 && planted.count("scratch") == 1,
        "{planted}"
    );
    instance.cli(["sweep"]).status_is(0);
    let left = instance.inventory();
    let lives = std::path::Path::new(&format!("/proc/{}", sleeper.pid())).exists();
    kill(sleeper.pid());
    sleeper.wait(SOON);
    let gone = !block.exists();
    fs::remove_file(&block).ok();
    assert!(lives && busy.exists(), "what lives is left alone:\n{left}");
    assert!(gone && !base.join(SANDBOX).exists(), "{left}");
    assert_eq!(
        (left.count("scratch"), left.count("cgroups")),
        (0, 2),
        "{left}"
    );
    instance.cli(["sweep"]).status_is(0);
    assert_nothing_left(&instance);
}
