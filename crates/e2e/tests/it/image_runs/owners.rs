//! Whose the files of an image are, inside and for the host; what its root may.

use std::fs;
use std::os::unix::fs::MetadataExt;

use leasehold_e2e::{Instance, Need, Running, Who, need, until};

use super::{SOON, can, image};

/// The workload of a run that waits: the process of this name, by the host's count.
fn workload(instance: &Instance, running: &Running, name: &str) -> i32 {
    until(
        &format!("a process `{name}` ({})", running.err()),
        SOON,
        || {
            let inventory = instance.inventory();
            let tasks = fs::read_dir("/proc").unwrap().filter_map(|entry| {
                let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
                let comm = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
                let group = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
                (comm.trim() == name && group.contains(inventory.instance())).then_some(pid)
            });
            tasks.min()
        },
    )
}

/// First id on the host of the block that a process is in.
fn block(pid: i32) -> u32 {
    let map = fs::read_to_string(format!("/proc/{pid}/uid_map")).unwrap();
    let words: Vec<u32> = map
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    assert_eq!((words[0], words[2]), (0, 65_536), "{map}");
    words[1]
}

#[test]
fn owners_of_an_image_are_of_the_sandboxs_own_ids() {
    if !can("owners_of_an_image_are_of_the_sandboxs_own_ids") {
        return;
    }
    let instance = Instance::new();
    let layer = "mkdir etc; touch of-0 of-1000 of-65535; chown 1000:2000 of-1000; chown 65535:65535 of-65535; \
        cp bin/busybox bin/busybox-set; chmod 4755 bin/busybox-set; mkdir -m 2777 shared; chown 0:7 shared";
    let _ = image(
        &instance,
        "tool:1",
        &[layer],
        &["--config.user", "1000:1000"],
    );
    let script = "cd /; stat -c '%n %u:%g %a' of-0 of-1000 of-65535 bin/busybox-set; /bin/busybox-set id -u; touch shared/new; \
        stat -c '%u:%g' shared/new; sleep 60";
    let running = instance.start(["run", "--image", "tool:1", "--", "sh", "-c", script]);
    let right = "of-0 0:0 644\nof-1000 1000:2000 644\nof-65535 65535:65535 644\nbin/busybox-set 0:0 755\n1000\n1000:7\n";
    running.await_out(right, SOON);
    let pid = workload(&instance, &running, "sleep");
    let base = block(pid);
    assert!(base >= 0x6000_0000, "{base:#x}");
    let seen = |name: &str| fs::metadata(format!("/proc/{pid}/root/{name}")).unwrap();
    for (name, uid, gid) in [
        ("of-0", 0, 0),
        ("of-1000", 1_000, 2_000),
        ("shared/new", 1_000, 7),
        ("etc/hosts", 0, 0),
    ] {
        let found = seen(name);
        assert_eq!(
            (found.uid(), found.gid()),
            (base + uid, base + gid),
            "{name}"
        );
    }
    // The store's own files are as they were: the map is the mount's alone.
    let store = super::layers(&instance);
    let own = store
        .iter()
        .find_map(|layer| fs::metadata(layer.join("fs/of-1000")).ok());
    assert_eq!(own.unwrap().uid(), 1_000);
    // And what a mount of the host would obey counts for nothing inside.
    let mounts = fs::read_to_string(format!("/proc/{pid}/mounts")).unwrap();
    let root = mounts
        .lines()
        .find(|line| line.contains(" / overlay "))
        .unwrap();
    assert!(root.contains("nosuid,nodev"), "{root}");
}

/// Root of an image owns its files and has no right beyond that.
#[test]
fn root_of_an_image_has_no_capability() {
    if !can("root_of_an_image_has_no_capability") {
        return;
    }
    let instance = Instance::new();
    let layer = "mkdir -p etc srv; printf 'root:x:0:0::/root:/bin/sh\\n' > etc/passwd; touch srv/of-33; \
        chown 33:33 srv srv/of-33; chmod 700 srv; cp bin/busybox bin/busybox-set";
    let _ = image(&instance, "tool:1", &[layer], &["--config.user", "root"]);
    let script = "id -u; grep Cap /proc/self/status | tr -d '\\t'; echo x > /etc/new && echo wrote; \
        ls /srv || echo closed; chown 33 /etc/new || echo keeps; chmod 6755 /bin/busybox-set; \
        mount -t tmpfs none /tmp || echo no mount; mknod /node c 1 3 || echo no node; \
        mkdir /proc/x /sys/x /dev/x || echo no; kill -9 1; kill -TERM 1; \
        head -c 1 /proc/1/environ || echo hidden; cat /proc/1/mem || echo hidden; echo alive";
    let outcome = instance.sh(&["-q", "--image", "tool:1"], script);
    let none = "0000000000000000";
    let right = format!(
        "0\nCapInh:{none}\nCapPrm:{none}\nCapEff:{none}\nCapBnd:{none}\nCapAmb:{none}\nwrote\nclosed\nkeeps\n\
        no mount\nno node\nno\nhidden\nhidden\nalive\n"
    );
    assert_eq!(outcome.out(), right, "{}", outcome.story());
    // It has the id of our init, and the record says so.
    let record = instance.record_of(&["--image", "tool:1"], "true");
    assert_eq!(
        record["contract"]["posture"]["single_uid"], true,
        "{record:#}"
    );
    let run = record["run"].as_str().unwrap();
    let told = instance.cli(["explain", run]).status_is(0).out();
    assert!(!told.contains("the caller's own user id"), "{told}");
}

/// As an ordinary user all files are the caller's, and the rest is the same.
#[test]
fn an_ordinary_user_runs_in_an_image() {
    let test = "an_ordinary_user_runs_in_an_image";
    if !can(test) || !need(test, &[Need::Program("setpriv")]) {
        return;
    }
    let instance = Instance::of(Who::Ordinary);
    let upper = "rm etc/removed; mkdir d; chown 33:33 d";
    let layers = ["mkdir etc; touch etc/removed of-0", upper];
    let _ = image(&instance, "tool:1", &layers, &["--config.user", "33"]);
    let script = "id -u; stat -c %u of-0 d; [ -e etc/removed ] || echo gone; ls -d usr; rm bin/yes && mkdir bin/yes && \
        echo x > bin/yes/x; cat bin/yes/x; echo y > /workspace/y";
    let outcome = instance.sh(&["--image", "tool:1", "--workdir", "/"], script);
    assert_eq!(
        outcome.out(),
        "1000\n1000\n1000\ngone\nx\n",
        "{}",
        outcome.story()
    );
    assert!(outcome.err().contains("and not 33"), "{}", outcome.story());
    let again = instance.sh(&["-q", "--image", "tool:1"], "ls -d /bin/yes /bin/yes/x");
    assert_eq!(again.out(), "/bin/yes\n", "{}", again.story());
    crate::record::assert_nothing_left(&instance);
}

/// With a range of ids init is another user than the command, and the image is the same.
#[test]
fn an_ordinary_user_with_a_range_runs_in_an_image() {
    let test = "an_ordinary_user_with_a_range_runs_in_an_image";
    let tools = ["setpriv", "unshare", "mount", "newuidmap", "newgidmap"].map(Need::Program);
    let files = ["/etc/subuid", "/etc/subgid"].map(Need::Path);
    if !can(test) || !need(test, &[&tools[..], &files[..]].concat()) {
        return;
    }
    let instance = Instance::of(Who::Ordinary);
    let _ = image(&instance, "tool:1", &["mkdir etc; touch of-0"], &[]);
    let script = "id -u; stat -c %u /of-0 /tmp; echo x > /new && cat /new";
    let args = ["run", "-q", "--image", "tool:1", "--", "sh", "-c", script];
    let run = crate::crash::with_ranges(&instance, "1000:700000:65536\n", &args).wait(SOON);
    assert_eq!(run.out(), "1000\n1000\n0\nx\n", "{}", run.story());
    let record = instance.last_record();
    assert_eq!(
        record["contract"]["posture"]["single_uid"], false,
        "{record:#}"
    );
    crate::record::assert_clean(&record);
    crate::record::assert_nothing_left(&instance);
}
