//! How runs in an image end: each limit by its name, on the root as everywhere.

use leasehold_e2e::{Instance, Need, need};

use super::{can, image};
use crate::record::{assert_clean, exceeded, reason};

const IMAGE: [&str; 2] = ["--image", "tool:1"];

#[test]
fn every_end_in_an_image_has_its_reason() {
    if !can("every_end_in_an_image_has_its_reason") {
        return;
    }
    let instance = Instance::new();
    let _ = image(
        &instance,
        "tool:1",
        &["mkdir etc; touch bin/not"],
        &["--config.user", "0"],
    );
    let of =
        |flags: &[&str], script: &str| instance.record_of(&[&IMAGE[..], flags].concat(), script);
    let missing = instance
        .cli(["run", "--image", "tool:1", "--", "nosuch"])
        .status_is(127);
    assert!(
        missing.err().contains("not in the image"),
        "{}",
        missing.story()
    );
    instance
        .cli(["run", "--image", "tool:1", "--", "not"])
        .status_is(126);
    instance.sh(&IMAGE, "exit 7").status_is(7);
    let slow = of(&["--timeout", "300ms", "--grace", "100ms"], "sleep 60");
    assert_eq!(reason(&slow), "timeout");
    let large = of(
        &["--memory", "48M"],
        "dd if=/dev/zero of=/dev/null bs=200M count=1; echo over",
    );
    assert_eq!(exceeded(&large), "memory");
    let many = of(
        &["--pids", "8"],
        "for n in 1 2 3 4 5 6 7 8 9; do sleep 5 & done; exit 3",
    );
    assert_eq!(exceeded(&many), "pids");
    for record in [slow, large, many] {
        assert_clean(&record);
    }
}

/// What is written anywhere in the image is on the sandbox's own disk, in memory and as a file alike.
#[test]
fn the_disk_limit_holds_on_the_root() {
    if !can("the_disk_limit_holds_on_the_root") {
        return;
    }
    let instance = Instance::new();
    let layer = "mkdir etc srv; head -c 3000000 /dev/urandom > srv/big";
    let _ = image(&instance, "tool:1", &[layer], &["--config.user", "0"]);
    let of =
        |flags: &[&str], script: &str| instance.record_of(&[&IMAGE[..], flags].concat(), script);
    let fill = "dd if=/dev/zero of=/srv/zeros bs=64k count=64";
    // The control: the same fits where the limit is larger.
    assert_eq!(reason(&of(&["--disk", "16M"], fill)), "completed");
    let full = of(&["--disk", "2M"], fill);
    assert_eq!(exceeded(&full), "disk");
    // A file of the image that is changed is copied to that disk, all of it.
    // What did not fit is taken back, so that the disk is not full at the end and the limit not named.
    let copied = of(&["--disk", "2M"], "echo x >> /srv/big");
    assert_eq!(reason(&copied), "tool_error");
    assert_eq!(
        reason(&of(&["--disk", "4M"], "echo x >> /srv/big")),
        "completed"
    );
    let files = "n=0; while [ $n -lt 200 ]; do : > /srv/$n || exit 1; n=$((n+1)); done";
    assert_eq!(reason(&of(&["--inodes", "300"], files)), "completed");
    let crowded = of(&["--inodes", "100"], files);
    assert_eq!(exceeded(&crowded), "inodes");
    // All of the limit is the command's: what we put on that disk beforehand does not count.
    let exact = "n=0; while (: > /tmp/$n) 2>/dev/null; do n=$((n+1)); done; echo $n";
    let counted = instance.sh(&[&IMAGE[..], &["-q", "--inodes", "100"]].concat(), exact);
    let count: u32 = counted.out().trim().parse().unwrap_or(0);
    assert!((100..=108).contains(&count), "{}", counted.story());
    let test = "the_disk_limit_holds_on_the_root (a disk image)";
    if need(test, &[Need::Path("/dev/loop-control")]) {
        let flags = ["--memory", "64M", "--disk", "40M"];
        let script =
            "dd if=/dev/zero of=/srv/zeros bs=1M count=60 2>/dev/null || stat -c %s /srv/zeros";
        let full = instance.sh(&[&IMAGE[..], &["-q"], &flags].concat(), script);
        let bytes: u64 = full.out().trim().parse().unwrap_or(0);
        assert!((36 << 20..=41 << 20).contains(&bytes), "{}", full.story());
        assert_clean(&instance.last_record());
    }
}
