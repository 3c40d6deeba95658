//! What happens to the caller's files, and what comes back.

use std::fs;
use std::os::unix::fs::symlink;

use leasehold_e2e::{Instance, Need, need};

use crate::record::assert_nothing_left;

/// A folder with one file in it.
fn folder(instance: &Instance) -> String {
    let folder = instance.scratch("project");
    instance.write(&folder.join("kept.txt"), "original\n");
    folder.to_string_lossy().into_owned()
}

fn original(folder: &str) -> bool {
    let names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    names == ["kept.txt"]
        && fs::read_to_string(format!("{folder}/kept.txt")).unwrap() == "original\n"
}

#[test]
fn a_clone_is_thrown_away_and_the_original_untouched() {
    let instance = Instance::new();
    let folder = folder(&instance);
    for mode in ["", ":clone"] {
        let outcome = instance
            .sh(
                &["--workspace", &format!("{folder}{mode}")],
                "cat kept.txt; echo changed > kept.txt; touch new; rm kept.txt; ls",
            )
            .status_is(0);
        assert_eq!(outcome.out(), "original\nnew\n", "{}", outcome.story());
        assert!(original(&folder), "mode `{mode}`");
    }
    assert_nothing_left(&instance);
}

#[test]
fn a_read_only_workspace_cannot_be_written() {
    let instance = Instance::new();
    let folder = folder(&instance);
    let outcome = instance
        .sh(
            &["--workspace", &format!("{folder}:ro")],
            "cat kept.txt; { echo x > kept.txt; } 2>/dev/null || echo refused; touch new 2>/dev/null || echo refused",
        )
        .status_is(0);
    assert_eq!(
        outcome.out(),
        "original\nrefused\nrefused\n",
        "{}",
        outcome.story()
    );
    assert!(original(&folder));
}

#[test]
fn a_writable_workspace_keeps_files_as_the_callers_own() {
    use std::os::unix::fs::MetadataExt;
    let instance = Instance::new();
    let folder = folder(&instance);
    instance
        .sh(
            &["--workspace", &format!("{folder}:rw")],
            "echo made > made.txt; cat kept.txt",
        )
        .status_is(0);
    let made = fs::metadata(format!("{folder}/made.txt")).unwrap();
    let caller = fs::metadata(&folder).unwrap();
    assert_eq!(made.uid(), caller.uid());
    assert_eq!(
        fs::read_to_string(format!("{folder}/made.txt")).unwrap(),
        "made\n"
    );
}

#[test]
fn a_workspace_that_is_not_there_is_refused_by_name() {
    let instance = Instance::new();
    let outcome = instance.run(["--workspace", "/no/such/folder", "--", "true"]);
    assert_ne!(outcome.status, 0);
    assert!(
        outcome.err().contains("/no/such/folder"),
        "{}",
        outcome.story()
    );
}

#[test]
fn artifacts_come_back_with_their_digest_and_links_do_not() {
    let instance = Instance::new();
    let out = instance.scratch("out");
    let outcome = instance
        .sh(
            &[
                "--artifact",
                "out/*",
                "--artifact",
                "link",
                "--out",
                &out.to_string_lossy(),
            ],
            "mkdir out; printf hello > out/a.txt; printf x > not-asked; ln -s /etc/passwd link; ln -s /etc/passwd out/link",
        )
        .status_is(0);
    assert_eq!(
        fs::read_to_string(out.join("out/a.txt")).unwrap(),
        "hello",
        "{}",
        outcome.story()
    );
    for absent in ["not-asked", "link", "out/link"] {
        assert!(fs::symlink_metadata(out.join(absent)).is_err(), "{absent}");
    }
    let record = instance.last_record();
    let artifacts = record["artifacts"].as_array().cloned().unwrap_or_default();
    let hello = artifacts
        .iter()
        .find(|one| one["path"] == "out/a.txt")
        .cloned()
        .unwrap_or_default();
    assert_eq!(
        hello["sha256"], "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
        "{record:#}"
    );
    assert!(
        artifacts.iter().any(|one| one["skipped"] == "symlink"),
        "{record:#}"
    );
}

/// An artifact never overwrites through a link that waits in the caller's own folder.
#[test]
fn export_does_not_follow_links_of_the_output_folder() {
    let instance = Instance::new();
    let out = instance.scratch("out");
    let victim = instance.scratch("victim").join("file");
    fs::write(&victim, "untouched").unwrap();
    symlink(&victim, out.join("a.txt")).unwrap();
    instance.sh(
        &["--artifact", "a.txt", "--out", &out.to_string_lossy()],
        "printf evil > a.txt",
    );
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
}

#[test]
fn home_and_temporary_files_are_writable_and_bounded() {
    let instance = Instance::new();
    let script = "for place in /tmp /home/user /workspace /dev/shm; do echo x > $place/file || exit 1; done; for place in / /usr /etc /dev /proc; do echo x > $place/file && exit 2; done 2>/dev/null; true";
    instance.sh(&[], script).status_is(0);
}

#[test]
fn an_ordinary_users_folder_is_cloned_as_well() {
    let name = "workspace::an_ordinary_users_folder_is_cloned_as_well";
    if !need(name, &[Need::Root, Need::Program("setpriv")]) {
        return;
    }
    let instance = Instance::of(leasehold_e2e::Who::Ordinary);
    let folder = folder(&instance);
    let outcome = instance
        .sh(
            &["--workspace", &folder],
            "cat kept.txt; echo more >> kept.txt && cat kept.txt",
        )
        .status_is(0);
    assert_eq!(
        outcome.out(),
        "original\noriginal\nmore\n",
        "{}",
        outcome.story()
    );
    assert!(original(&folder));
    assert_nothing_left(&instance);
}
