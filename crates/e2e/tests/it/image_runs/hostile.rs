//! P06: images whose places of ours are links. None leads a mount or a file of ours anywhere.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use leasehold_e2e::Instance;

use super::{can, image, layers};
use crate::record::assert_nothing_left;

/// Places that something is mounted on or written to, and what makes room for a link there.
const PLACES: [&str; 8] = [
    "dev",
    "proc",
    "sys",
    "tmp",
    "workspace",
    "etc/hosts",
    "etc/hostname",
    "etc/resolv.conf",
];

/// What is in the sentinel, with all that a write would change.
fn sentinel(folder: &Path) -> Vec<String> {
    let mut all: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let found = fs::symlink_metadata(&path).unwrap();
            let text = fs::read_to_string(&path).unwrap_or_default();
            format!(
                "{} {:o} {} {text}",
                path.display(),
                found.mode(),
                found.uid()
            )
        })
        .collect();
    all.sort();
    all
}

#[test]
fn p06_links_at_our_places_lead_nowhere() {
    if !can("p06_links_at_our_places_lead_nowhere") {
        return;
    }
    let instance = Instance::new();
    let bait = instance.scratch("bait");
    for name in ["keep", "hosts", "hostname", "resolv.conf"] {
        fs::write(bait.join(name), "untouched").unwrap();
    }
    let before = sentinel(&bait);
    let up = "../".repeat(12);
    let at = bait.display().to_string();
    let kinds = [
        ("absolute", at.clone()),
        ("upwards", format!("{up}{}", at.trim_start_matches('/'))),
        ("magic", format!("/proc/self/root{at}")),
        ("dangling", "/nowhere/at/all".to_owned()),
        ("inside", "/srv".to_owned()),
    ];
    for (kind, target) in kinds {
        let lead = |place: &str| match place.strip_prefix("etc/") {
            Some(name) => format!("ln -s {target}/{name} {place}; "),
            None => format!("ln -s {target} {place}; "),
        };
        let links: String = PLACES.iter().map(|place| lead(place)).collect();
        let layer = format!("mkdir etc srv; echo untouched > srv/keep; {links}");
        let name = format!("{kind}:1");
        let _ = image(&instance, &name, &[&layer], &["--config.user", "0"]);
        if kind == "absolute" {
            // The control: the links are in the layer as they are, and whoever follows them is at the sentinel.
            let unpacked = layers(&instance).pop().unwrap().join("fs");
            let followed = fs::canonicalize(unpacked.join("dev")).unwrap();
            assert_eq!(followed, fs::canonicalize(&bait).unwrap());
            assert_eq!(
                fs::read_to_string(unpacked.join("etc/hosts")).unwrap(),
                "untouched"
            );
        }
        let script = "for place in dev proc sys tmp workspace etc/hosts etc/hostname etc/resolv.conf; do \
            [ -L /$place ] && echo link $place; done; \
            grep -q ' /dev tmpfs' /proc/mounts && grep -q ' /proc proc' /proc/mounts && echo mounted; \
            grep -c /srv /proc/mounts; ls /srv; cat /srv/keep /etc/hostname; \
            echo x > /dev/null && echo x > /tmp/x && echo x > /workspace/x && echo written";
        let told = instance.sh(&["-q", "--image", &name], script);
        let right = "mounted\n0\nkeep\nuntouched\nsandbox\nwritten\n";
        assert_eq!(told.out(), right, "{kind}: {}", told.story());
        assert_eq!(sentinel(&bait), before, "{kind}");
    }
    assert_nothing_left(&instance);
}

/// What cannot be made good without hiding the image's own is refused, with the place named.
#[test]
fn p06_what_cannot_be_made_good_is_refused_by_name() {
    if !can("p06_what_cannot_be_made_good_is_refused_by_name") {
        return;
    }
    let instance = Instance::new();
    let bait = instance.scratch("bait");
    fs::write(bait.join("hosts"), "untouched").unwrap();
    let link = format!("ln -s {} etc", bait.display());
    let home = format!("mkdir etc; ln -s {} home", bait.display());
    for (name, layer, status, word) in [
        ("link:1", link.as_str(), 2, "`/etc` is a link"),
        ("file:1", "touch etc", 2, "`/etc` is no directory"),
        (
            "folder:1",
            "mkdir -p etc/hosts",
            2,
            "`/etc/hosts` is a directory",
        ),
        ("home:1", home.as_str(), 2, "`/home` is a link"),
        (
            "user:1",
            "mkdir etc home; touch home/user",
            125,
            "/home/user",
        ),
    ] {
        let _ = image(&instance, name, &[layer], &[]);
        let told = instance.sh(&["--image", name], "true").status_is(status);
        assert!(told.err().contains(word), "{name}: {}", told.story());
        assert_eq!(fs::read_dir(&bait).unwrap().count(), 1);
    }
    // A file where a directory is wanted makes room for one; the image itself keeps it.
    let files = "mkdir etc; for name in dev proc sys tmp workspace; do echo f > $name; done";
    let _ = image(&instance, "files:1", &[files], &[]);
    let told = instance.sh(
        &["-q", "--image", "files:1"],
        "echo x > /dev/null && cat /proc/self/comm",
    );
    assert_eq!(told.out(), "cat\n", "{}", told.story());
    assert_nothing_left(&instance);
}
