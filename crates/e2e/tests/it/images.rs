//! Images from a real registry and from files, through the command line: pulled, loaded, shown, killed half way.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold_e2e::{
    Instance, Need, Outcome, Protection, Registry, Running, Who, busybox_layout, done, need,
    registry_program, skip, until,
};
use rustix::process::Signal;
use serde_json::Value;

/// How long anything may take.
const LONG: Duration = Duration::from_secs(60);

/// Whether images can be made here; says so loudly when not.
fn can(test: &str) -> bool {
    if registry_program().is_none() {
        skip(
            test,
            "needs the program docker-registry (cargo xtask setup)",
        );
        return false;
    }
    need(test, &["skopeo", "umoci", "busybox"].map(Need::Program)) && need(test, &[Need::Root])
}

/// Digest of the last layer, which has the data.
fn last_layer(image: &Value) -> String {
    let layers = image["layers"].as_array().unwrap();
    layers.last().unwrap()["blob"].as_str().unwrap().to_owned()
}

fn images(instance: &Instance) -> Vec<Value> {
    let listed = instance.cli(["image", "ls", "--json"]).status_is(0).json();
    listed.as_array().unwrap().clone()
}

/// Whoever opens the store removes what the dead left; a process that unpacked may take a moment to die.
fn work_is_empty(instance: &Instance) {
    let work = instance.state().join("images/work");
    until("an empty work directory", Duration::from_secs(5), || {
        images(instance);
        (fs::read_dir(&work).unwrap().count() == 0).then_some(())
    });
}

/// Everything below two directories, as `mtree`-like lines; owners too.
pub(crate) fn listing(root: &Path) -> String {
    let mut find = Command::new("find");
    find.args([".", "-printf", "%P %y %m %U %G %s %l\n"])
        .current_dir(root);
    let out = find.output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    // The size of a directory is its file system's matter.
    let mut lines: Vec<String> = text
        .lines()
        .map(|line| match line.split(' ').nth(1) == Some("d") {
            true => line.rsplitn(3, ' ').last().unwrap_or_default().to_owned(),
            false => line.to_owned(),
        })
        .collect();
    lines.sort();
    lines.join("\n")
}

#[test]
fn an_image_is_pulled_shown_checked_and_freed() {
    if !can("an_image_is_pulled_shown_checked_and_freed") {
        return;
    }
    let instance = Instance::new();
    let folder = instance.scratch("registry");
    let layout = busybox_layout(&folder, 100_000);
    let registry = Registry::start(&folder, Protection::default());
    registry.push(&layout, "team/tool:1");
    let name = format!("{}/team/tool:1", registry.host());
    let pulled = instance
        .cli(["image", "pull", &name, "--json"])
        .status_is(0)
        .json();
    let digest = pulled["digest"].as_str().unwrap();

    let shown = instance.cli(["image", "show", &name]).status_is(0).out();
    for word in [
        "user        33",
        "command     /bin/sh",
        "env         A=b",
        "owners      as in the image",
        digest,
    ] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    assert_eq!(images(&instance)[0]["names"][0], name);
    // As another tool unpacks it, but for what overlayfs does with what is removed.
    let plan = instance
        .cli(["image", "show", digest, "--json"])
        .status_is(0)
        .json();
    let merged = merge(&instance, &plan, &folder);
    let umoci = folder.join("reference");
    done(
        Command::new("umoci")
            .args(["unpack", "--image", &layout])
            .arg(&umoci),
    );
    assert_eq!(listing(&merged), listing(&umoci.join("rootfs")));
    unmount(&merged);

    instance.cli(["image", "verify"]).status_is(0);
    let layer = plan["image"]["layers"][1]["key"].as_str().unwrap();
    let data = instance
        .state()
        .join("images/layers")
        .join(layer)
        .join("fs/data");
    fs::write(&data, "other").unwrap();
    let out = instance.cli(["image", "verify", &name]).status_is(1).out();
    assert!(
        out.contains("ALTERED") && out.contains("data: its size is altered"),
        "{out}"
    );
    instance
        .cli(["image", "verify", "--drop", &name])
        .status_is(1);
    instance.cli(["image", "pull", &name]).status_is(0);
    instance.cli(["image", "verify", &name]).status_is(0);
    instance.cli(["image", "rm", &name]).status_is(0);
    let freed = instance.cli(["image", "gc", "--json"]).status_is(0).json();
    assert_eq!(
        (freed["blobs"].as_u64(), freed["layers"].as_u64()),
        (Some(4), Some(2))
    );
    assert!(images(&instance).is_empty());
    instance.cli(["image", "show", &name]).status_is(2);
}

/// The image as overlayfs shows it.
fn merge(instance: &Instance, plan: &Value, folder: &Path) -> std::path::PathBuf {
    let layers = plan["image"]["layers"].as_array().unwrap();
    let lower: Vec<String> = layers
        .iter()
        .rev()
        .map(|layer| {
            let key = layer["key"].as_str().unwrap();
            format!("{}/images/layers/{key}/fs", instance.state().display())
        })
        .collect();
    let merged = folder.join("merged");
    fs::create_dir(&merged).unwrap();
    let options = format!("userxattr,lowerdir={}", lower.join(":"));
    done(
        Command::new("mount")
            .args(["-t", "overlay", "overlay", "-o", &options])
            .arg(&merged),
    );
    merged
}

fn unmount(path: &Path) {
    done(Command::new("umount").arg(path));
}

#[test]
fn what_other_tools_write_is_loaded() {
    if !can("what_other_tools_write_is_loaded") {
        return;
    }
    let instance = Instance::new();
    let folder = instance.scratch("files");
    let layout = busybox_layout(&folder, 1_000);
    let copy = |to: String, more: &[&str]| {
        let mut copy = Command::new("skopeo");
        copy.args(["--insecure-policy", "copy", "--quiet"])
            .args(more);
        done(copy.arg(format!("oci:{layout}")).arg(to));
    };
    let at = |name: &str| folder.join(name).display().to_string();
    copy(
        format!("docker-archive:{}:other/name:9", at("docker.tar")),
        &[],
    );
    copy(format!("oci-archive:{}", at("oci.tar")), &[]);
    copy(
        format!("oci:{}:1", at("zstd")),
        &[
            "--dest-compress",
            "--dest-compress-format",
            "zstd",
            "--dest-oci-accept-uncompressed-layers=false",
        ],
    );
    let mut digests = Vec::new();
    for name in ["docker.tar", "oci.tar", "zstd", "layout"] {
        let out = instance
            .cli(["image", "load", &at(name), "-q"])
            .status_is(0)
            .out();
        digests.push(out.trim().to_owned());
    }
    // One layer is unpacked once, however it came.
    let layers = fs::read_dir(instance.state().join("images/layers"))
        .unwrap()
        .count();
    assert_eq!(layers, 2);
    assert_eq!(digests[1], digests[3]);
    for image in images(&instance) {
        assert_eq!(image["names"].as_array().unwrap().len(), 0);
    }
    instance.cli(["image", "verify"]).status_is(0);
    let named = instance
        .cli(["image", "load", &at("oci.tar"), "--name", "tool:2"])
        .status_is(0);
    assert!(
        named.err().contains("docker.io/library/tool:2"),
        "{}",
        named.story()
    );
    let refused = instance
        .cli(["image", "load", "/etc/hostname"])
        .status_is(2);
    assert!(refused.err().contains("is no image"), "{}", refused.story());
}

#[test]
fn a_registry_with_tls_and_passwords_is_believed_as_told() {
    if !can("a_registry_with_tls_and_passwords_is_believed_as_told") {
        return;
    }
    let instance = Instance::new();
    let folder = instance.scratch("registry");
    let layout = busybox_layout(&folder, 1_000);
    let protection = Protection {
        tls: true,
        password: true,
    };
    let registry = Registry::start(&folder, protection);
    registry.push(&layout, "tool:1");
    let name = format!("{}/tool:1", registry.host());
    let (ca, word) = (folder.join("ca.pem"), folder.join("word"));
    fs::write(&word, "word\n").unwrap();
    let (ca, word) = (ca.to_str().unwrap(), word.to_str().unwrap());
    let plain = instance.cli(["image", "pull", &name]);
    assert_eq!(plain.status, 2, "{}", plain.story());
    let nobody = instance
        .cli(["image", "pull", &name, "--ca", ca])
        .status_is(2);
    assert!(nobody.err().contains("401"), "{}", nobody.story());
    let flags = [
        "image",
        "pull",
        &name,
        "--ca",
        ca,
        "--user",
        "name",
        "--password-file",
        word,
    ];
    instance.cli(flags).status_is(0);
    // An authority that nobody named is not believed.
    let other = folder.join("other.pem");
    let make = format!(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=x -keyout /dev/null -out {}",
        other.display()
    );
    done(Command::new("sh").args(["-ec", &make]));
    let unknown = instance
        .cli(["image", "pull", &name, "--ca", other.to_str().unwrap()])
        .status_is(125);
    assert!(
        unknown.err().to_lowercase().contains("certificate"),
        "{}",
        unknown.story()
    );
}

/// One image that cannot be read keeps nobody from the others; what is typed wrongly is said so.
#[test]
fn every_image_is_verified_and_mistakes_are_told() {
    if !can("every_image_is_verified_and_mistakes_are_told") {
        return;
    }
    let instance = Instance::new();
    let mut loaded = Vec::new();
    for (name, bytes) in [("one", 1_000), ("two", 2_000)] {
        let folder = instance.scratch(name);
        let _ = busybox_layout(&folder, bytes);
        let path = folder.join("layout").display().to_string();
        let load = ["image", "load", &path, "--name", name, "--json"];
        loaded.push(instance.cli(load).status_is(0).json());
    }
    // A directory where a layer's files were makes the reading fail, and is no mere alteration.
    let blob = instance
        .state()
        .join("images/blobs/sha256")
        .join(last_layer(&loaded[0]).replace("sha256:", ""));
    fs::remove_file(&blob).unwrap();
    fs::create_dir(&blob).unwrap();
    let out = instance.cli(["image", "verify", "nobody", "one", "two"]);
    assert_eq!(out.status, 1, "{}", out.story());
    let two = format!("{} as it came", loaded[1]["digest"].as_str().unwrap());
    assert!(out.out().contains(&two), "{}", out.story());
    for name in ["nobody", "one"] {
        let told = format!("cannot verify {name}");
        assert!(out.err().contains(&told), "{}", out.story());
    }
    let nope = instance.cli(["image", "load", "/nope"]).status_is(2);
    assert!(
        nope.err().contains("`/nope`") && nope.err().contains("hint:"),
        "{}",
        nope.story()
    );
    let flags = ["image", "pull", "x", "--user", "a:b"];
    let user = instance
        .cli(flags.into_iter().chain(["--password-file", "/dev/null"]))
        .status_is(2);
    assert!(user.err().contains("`--user`"), "{}", user.story());
    // A name whose image is gone is listed, and goes.
    let digest = loaded[1]["digest"].as_str().unwrap();
    let record = digest.replace("sha256:", "images/scopes/host/images/");
    fs::remove_file(instance.state().join(record)).unwrap();
    let listed = instance.cli(["image", "ls"]).status_is(0).out();
    assert!(listed.contains("missing"), "{listed}");
    instance.cli(["image", "rm", "two"]).status_is(0);
    let listed = instance.cli(["image", "ls"]).status_is(0).out();
    assert!(!listed.contains("missing"), "{listed}");
}

/// P80: ten processes that want one image at the same time bring each layer once, by the registry's own log.
#[test]
fn p80_ten_processes_at_once_do_the_work_once() {
    if !can("p80_ten_processes_at_once_do_the_work_once") {
        return;
    }
    let instance = Instance::new();
    let folder = instance.scratch("registry");
    let layout = busybox_layout(&folder, 20_000_000);
    let registry = Registry::start(&folder, Protection::default());
    registry.push(&layout, "tool:1");
    let name = format!("{}/tool:1", registry.host());
    let flags = ["image", "pull", &name, "--json"];
    let all: Vec<Running> = (0..10).map(|_| instance.start(flags)).collect();
    let all: Vec<Outcome> = all
        .into_iter()
        .map(|one| one.wait(LONG).status_is(0))
        .collect();
    let image = all[0].json();
    for layer in image["layers"].as_array().unwrap() {
        let digest = layer["blob"].as_str().unwrap();
        assert_eq!(registry.sent(digest), 1, "{digest}");
    }
    let unpacked: usize = all
        .iter()
        .map(|one| one.err().matches("unpacked").count())
        .sum();
    assert_eq!(unpacked, 0, "--json is silent");
    let layers = fs::read_dir(instance.state().join("images/layers"))
        .unwrap()
        .count();
    assert_eq!(layers, 2);
    work_is_empty(&instance);
}

/// P80: killed at any moment of a pull, nothing half made is ever used, and the next pull is whole.
#[test]
fn p80_killed_at_any_moment_of_a_pull_nothing_is_half() {
    if !can("p80_killed_at_any_moment_of_a_pull_nothing_is_half") {
        return;
    }
    let instance = Instance::new();
    let folder = instance.scratch("registry");
    let layout = busybox_layout(&folder, 30_000_000);
    let registry = Registry::start(&folder, Protection::default());
    registry.push(&layout, "tool:1");
    let name = format!("{}/tool:1", registry.host());
    let mut killed = 0;
    for moment in (0..16).map(|step| step * 40) {
        let pull = instance.start(["image", "pull", &name, "-q"]);
        std::thread::sleep(Duration::from_millis(moment));
        if pull.out().is_empty() {
            pull.signal(Signal::KILL);
            killed += 1;
        }
        let ended = pull.wait(LONG);
        // Whatever there is now is whole: an image that is listed is as it came.
        let listed = images(&instance);
        assert_eq!(
            instance.cli(["image", "verify"]).status,
            0,
            "after {moment} ms"
        );
        work_is_empty(&instance);
        if ended.status == 0 {
            assert_eq!(listed.len(), 1);
            instance.cli(["image", "rm", &name]).status_is(0);
        }
        instance.cli(["image", "gc"]).status_is(0);
    }
    assert!(killed >= 4, "{killed} pulls were killed before their end");
    let image = instance
        .cli(["image", "pull", &name, "--json"])
        .status_is(0)
        .json();
    instance.cli(["image", "verify", &name]).status_is(0);
    assert!(!last_layer(&image).is_empty());
}

/// As an ordinary user everything is the caller's, and the rest is the same.
#[test]
fn an_ordinary_user_has_images_of_its_own() {
    if !can("an_ordinary_user_has_images_of_its_own") {
        return;
    }
    let instance = Instance::of(Who::Ordinary);
    let folder = instance.scratch("layout");
    let layout = busybox_layout(&folder, 1_000);
    let path = layout.trim_end_matches(":1").to_owned();
    done(Command::new("chmod").args(["-R", "a+rX"]).arg(&folder));
    let image = instance
        .cli(["image", "load", &path, "--json"])
        .status_is(0)
        .json();
    let digest = image["digest"].as_str().unwrap();
    let shown = instance.cli(["image", "show", digest]).status_is(0).out();
    assert!(shown.contains("owners      all the caller's"), "{shown}");
    instance.cli(["image", "verify"]).status_is(0);
    instance.cli(["image", "rm", digest]).status_is(0);
    instance.cli(["image", "gc"]).status_is(0);
    let left = fs::read_dir(instance.state().join("images/layers"))
        .unwrap()
        .count();
    assert_eq!(left, 0);
}
