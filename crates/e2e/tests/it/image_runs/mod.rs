//! Commands in the file system of an image: what they see, whose its files are, how they end, what stays of them.

mod ends;
mod hostile;
mod leases;
mod owners;

use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_e2e::{Instance, Need, busybox_layout, image_layout, need};

use crate::record::{assert_clean, assert_nothing_left, reason};

/// Longest that anything may take to begin.
const SOON: Duration = Duration::from_secs(20);

/// Whether images can be made and run here; says so loudly when not.
fn can(test: &str) -> bool {
    need(test, &["umoci", "busybox"].map(Need::Program)) && need(test, &[Need::Root])
}

/// Has an image in the instance's store, under a name, made of these layers.
#[track_caller]
pub(crate) fn image(instance: &Instance, name: &str, layers: &[&str], config: &[&str]) -> String {
    let folder = instance.scratch(&format!("image-{name}"));
    let _ = image_layout(&folder, layers, config);
    load(instance, &folder, name)
}

/// An image with nothing but busybox.
#[track_caller]
pub(crate) fn plain(instance: &Instance, name: &str) -> String {
    image(instance, name, &["mkdir etc tmp"], &[])
}

fn load(instance: &Instance, folder: &Path, name: &str) -> String {
    let layout = folder.join("layout").display().to_string();
    if rustix::process::geteuid().is_root() {
        // An ordinary user reads it, too.
        leasehold_e2e::done(
            std::process::Command::new("chmod")
                .args(["-R", "a+rX"])
                .arg(folder),
        );
    }
    let loaded = instance.cli(["image", "load", &layout, "--name", name, "-q"]);
    loaded.status_is(0).out().trim().to_owned()
}

/// The unpacked layers of an instance's images.
fn layers(instance: &Instance) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(instance.state().join("images/layers")).unwrap();
    listed.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_command_sees_its_image_and_nothing_of_the_hosts() {
    if !can("a_command_sees_its_image_and_nothing_of_the_hosts") {
        return;
    }
    let instance = Instance::new();
    let folder = instance.scratch("layout");
    let _ = busybox_layout(&folder, 100);
    let digest = load(&instance, &folder, "tool:1");
    let before = crate::images::listing(&instance.state().join("images/layers"));
    let script = "id -u; pwd; echo $A $HOME $B; ls /usr /var /lib 2>/dev/null; \
        [ -e /etc/removed ] && echo removed is back; stat -c %u:%g /data /bin/busybox; \
        cat /etc/hostname; ls -d /proc/1 /dev/null /sys/devices /tmp /workspace; \
        rm /bin/ls && mkdir /bin/ls && echo x > /bin/ls/x; echo y > /tmp/y; cat /bin/ls/x";
    let as_root = ["--image", "tool:1", "--env", "B=c"];
    let outcome = instance.sh(&[&as_root[..], &["-q"]].concat(), script);
    let told = outcome.out();
    let right = "33\n/workspace\nb /home/user c\n33:33\n0:0\nsandbox\n\
        /dev/null\n/proc/1\n/sys/devices\n/tmp\n/workspace\n";
    // User 33 may not change what is root's in the image.
    assert_eq!(told, right, "{}", outcome.story());
    assert_eq!(
        crate::images::listing(&instance.state().join("images/layers")),
        before
    );

    let record = instance.record_of(&["--image", &digest], "true");
    let image = &record["contract"]["image"];
    assert_eq!(image["digest"], digest.as_str(), "{record:#}");
    assert_eq!(
        (image["user"]["uid"].as_u64(), image["user"]["gid"].as_u64()),
        (Some(33), Some(0))
    );
    assert_eq!(record["contract"]["posture"]["single_uid"], false);
    assert_clean(&record);
    let run = record["run"].as_str().unwrap();
    for command in ["show", "explain"] {
        let told = instance.cli([command, run]).status_is(0).out();
        assert!(told.contains(&digest), "{command}: {told}");
    }
    assert_nothing_left(&instance);
}

/// Without a command the image's own is run, and what is named takes its place.
#[test]
fn an_image_is_started_as_it_says() {
    if !can("an_image_is_started_as_it_says") {
        return;
    }
    let instance = Instance::new();
    let config = [
        "--config.entrypoint",
        "echo",
        "--config.cmd",
        "hello",
        "--config.workingdir",
        "/srv",
        "--config.env",
        "PATH=/opt:/bin",
    ];
    let lower =
        "mkdir -p srv opt etc; printf '#!/bin/sh\\necho opt' > opt/tool; chmod 755 opt/tool";
    let _ = image(&instance, "tool:1", &[lower], &config);
    let own = instance.cli(["run", "-q", "--image", "tool:1"]);
    assert_eq!(own.out(), "hello\n", "{}", own.story());
    let flags = ["-q", "--image", "tool:1"];
    let named = instance.sh(
        &flags,
        "pwd; tool; id -u; id -g; echo ~; touch ~/x && echo $HOME",
    );
    assert_eq!(
        named.out(),
        "/srv\nopt\n1000\n1000\n/home/user\n/home/user\n",
        "{}",
        named.story()
    );
    let moved = instance.sh(&[&flags[..], &["--workdir", "/tmp"]].concat(), "pwd");
    assert_eq!(moved.out(), "/tmp\n", "{}", moved.story());
    let _ = plain(&instance, "plain:1");
    let nothing = instance.cli(["run", "--image", "plain:1"]).status_is(2);
    assert!(
        nothing.err().contains("no command of its own"),
        "{}",
        nothing.story()
    );
    let absent = instance.sh(&["--image", "other:9"], "true").status_is(2);
    assert!(
        absent.err().contains("leasehold image pull other:9"),
        "{}",
        absent.story()
    );
    let pooled = ["run", "--warm", "python", "--image", "tool:1", "--", "true"];
    instance.cli(pooled).status_is(2);
}

/// What one run writes is gone with it, and no other run of the image sees it meanwhile.
#[test]
fn runs_of_one_image_do_not_see_each_other() {
    if !can("runs_of_one_image_do_not_see_each_other") {
        return;
    }
    let instance = Instance::new();
    let _ = image(
        &instance,
        "tool:1",
        &["mkdir etc; echo old > etc/file"],
        &["--config.user", "0"],
    );
    let flags = ["--image", "tool:1"];
    let write = "echo new > /etc/file; rm /bin/yes; mkdir /made; cat /etc/file; echo up; sleep 60";
    let words = [&["run"], &flags[..], &["--", "sh", "-c", write]].concat();
    let first = instance.start(words);
    first.await_out("new\nup", SOON);
    let look = "cat /etc/file; ls -d /made /bin/yes";
    let second = instance.sh(&[&flags[..], &["-q"]].concat(), look);
    assert_eq!(second.out(), "old\n/bin/yes\n", "{}", second.story());
    drop(first);
    let third = instance.sh(&[&flags[..], &["-q"]].concat(), look);
    assert_eq!(third.out(), "old\n/bin/yes\n", "{}", third.story());
    assert_eq!(reason(&instance.last_record()), "tool_error");
}

/// The workspace is as everywhere, and its files are the command's, whoever it is.
#[test]
fn a_workspace_and_artifacts_belong_to_the_command() {
    if !can("a_workspace_and_artifacts_belong_to_the_command") {
        return;
    }
    let instance = Instance::new();
    let _ = image(
        &instance,
        "tool:1",
        &["mkdir etc"],
        &["--config.user", "33:44"],
    );
    let work = instance.scratch("work");
    instance.write(&work.join("in"), "given\n");
    let at = work.display().to_string();
    let script = "stat -c %u:%g . in; cat in; echo made > out; mkdir d; stat -c %u:%g out; \
        chmod 600 out; echo again > /dev/stdout";
    let out = instance.scratch("out").display().to_string();
    for mode in ["clone", "rw"] {
        let place = format!("{at}:{mode}");
        let flags = [
            "-q",
            "--image",
            "tool:1",
            "--workspace",
            &place,
            "--artifact",
            "out",
            "--out",
            &out,
        ];
        let told = instance.sh(&flags, script);
        assert_eq!(
            told.out(),
            "33:44\n33:44\ngiven\n33:44\nagain\n",
            "{mode}: {}",
            told.story()
        );
        let kept = std::fs::read_to_string(Path::new(&out).join("out")).unwrap();
        assert_eq!(kept, "made\n");
        std::fs::remove_file(Path::new(&out).join("out")).unwrap();
        assert_eq!(work.join("out").exists(), mode == "rw");
    }
    let own = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(work.join("out")).unwrap());
    assert_eq!(own, rustix::process::geteuid().as_raw());
    // On files of the host no file of it comes to run as its owner, whatever the root is.
    let place = format!("{at}:rw");
    let flags = ["-q", "--image", "tool:1", "--workspace", &place];
    let told = instance.sh(&flags, "chmod 4755 out || echo refused");
    assert_eq!(told.out(), "refused\n", "{}", told.story());
    let place = format!("{at}:ro");
    let told = instance.sh(
        &["-q", "--image", "tool:1", "--workspace", &place],
        "cat in; touch x",
    );
    assert_eq!(
        (told.out().as_str(), told.status),
        ("given\n", 1),
        "{}",
        told.story()
    );
}

/// A mount of as many layers as an image may have.
#[test]
fn an_image_of_most_layers_is_run() {
    if !can("an_image_of_most_layers_is_run") {
        return;
    }
    let instance = Instance::new();
    let scripts: Vec<String> = (1..=126)
        .map(|layer| format!("mkdir -p etc d; echo {layer} > top; echo {layer} > d/{layer}"))
        .collect();
    let layers: Vec<&str> = scripts.iter().map(String::as_str).collect();
    let _ = image(&instance, "tool:1", &layers, &[]);
    assert_eq!(self::layers(&instance).len(), 126);
    let told = instance.sh(&["-q", "--image", "tool:1"], "cat /top /d/1; ls /d | wc -l");
    assert_eq!(told.out(), "126\n1\n126\n", "{}", told.story());
}
