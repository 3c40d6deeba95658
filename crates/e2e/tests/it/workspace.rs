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

/// Every name below a folder with what makes it up: kind, mode, owner, times, contents.
fn fingerprint(folder: &std::path::Path) -> std::collections::BTreeMap<std::path::PathBuf, String> {
    use std::os::unix::fs::MetadataExt;
    let mut all = std::collections::BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let (path, seen) = (entry.path(), entry.metadata().unwrap());
            let contents = if seen.is_dir() {
                folders.push(path.clone());
                String::new()
            } else if seen.is_symlink() {
                fs::read_link(&path).unwrap().display().to_string()
            } else {
                format!("{:?}", fs::read(&path).unwrap())
            };
            let told = format!(
                "{:o} {}:{} {}.{} {} {contents}",
                seen.mode(),
                seen.uid(),
                seen.gid(),
                seen.mtime(),
                seen.mtime_nsec(),
                seen.nlink()
            );
            all.insert(path, told);
        }
    }
    all
}

/// Everything a guest can do to a clone, and to what it may only read, leaves the folder as it was, to
/// the last bit of its metadata; the same done to the folder itself is seen.
#[test]
fn a_clone_leaves_the_folder_identical_to_the_bit() {
    use std::os::unix::fs::PermissionsExt;
    let name = "workspace::a_clone_leaves_the_folder_identical_to_the_bit";
    // To read what nobody else may.
    if !need(name, &[Need::Root]) {
        return;
    }
    let instance = Instance::new();
    let folder = instance.scratch("project");
    fs::create_dir_all(folder.join("closed/deep")).unwrap();
    for (name, mode) in [
        ("a", 0o644),
        ("read-only", 0o400),
        ("none", 0),
        ("closed/deep/b", 0o600),
        ("tool", 0o755),
    ] {
        fs::write(folder.join(name), name).unwrap();
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::hard_link(folder.join("a"), folder.join("second")).unwrap();
    symlink("a", folder.join("link")).unwrap();
    fs::set_permissions(folder.join("closed"), fs::Permissions::from_mode(0o500)).unwrap();
    let before = fingerprint(&folder);
    // Whatever their modes, the files are the guest's own to open, change and remove.
    let script = "set -e; chmod -R u+rwX .; for f in a read-only none closed/deep/b tool link; do echo more >> $f; done; mv a moved; mkdir new; echo x > closed/made; touch -d 2001-01-01 tool; ln -sf nowhere link; rm -r closed read-only; ln tool hard; echo done";
    for mode in ["clone", "ro", "rw"] {
        let at = format!("{}:{mode}", folder.display());
        let outcome = instance.sh(&["--quiet", "--workspace", &at], script);
        if mode == "ro" {
            assert_ne!(outcome.status, 0, "{}", outcome.story());
        } else {
            assert_eq!(outcome.out(), "done\n", "{mode}: {}", outcome.story());
        }
        assert_eq!(fingerprint(&folder) == before, mode != "rw", "{mode}");
    }
    assert_nothing_left(&instance);
}

/// A tree of many small files, as package managers make it: made, read and removed, in every place.
#[test]
fn many_small_files_are_no_trouble() {
    let instance = Instance::new();
    let folder = instance.scratch("project");
    let script = "set -e; i=0; while [ $i -lt 60 ]; do mkdir -p m/$i/lib; j=0; while [ $j -lt 50 ]; do echo $i.$j > m/$i/lib/$j.js; j=$((j+1)); done; i=$((i+1)); done; find m -type f | wc -l; cat m/*/lib/*.js | wc -l; cp -r m n; rm -r m; find n -type f | wc -l; rm -r n; ls";
    for mode in ["clone", "rw"] {
        let at = format!("{}:{mode}", folder.display());
        let outcome = instance
            .sh(&["--quiet", "--workspace", &at], script)
            .status_is(0);
        let told = outcome.out();
        let counts: Vec<&str> = told.split_whitespace().collect();
        assert_eq!(counts, ["3000", "3000", "3000"], "{}", outcome.story());
    }
    assert!(fingerprint(&folder).is_empty());
}

/// A gap, asserted as it is: in a folder of many owners only the files of the folder's own owner are the
/// guest's; those of others cannot be read unless everybody may. When this fails because they can, the gap
/// is closed.
#[test]
fn files_of_other_owners_stay_theirs() {
    let name = "workspace::files_of_other_owners_stay_theirs";
    if !need(name, &[Need::Root]) {
        return;
    }
    let instance = Instance::new();
    let folder = instance.scratch("project");
    fs::write(folder.join("open"), "open").unwrap();
    fs::write(folder.join("shut"), "shut").unwrap();
    for (file, mode) in [("open", 0o644), ("shut", 0o600)] {
        let path = folder.join(file);
        std::os::unix::fs::chown(&path, Some(12_345), Some(12_345)).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    }
    let at = folder.display().to_string();
    let script =
        "cat open; cat shut 2>/dev/null || echo no; { echo x >> open; } 2>/dev/null || echo no";
    let outcome = instance.sh(&["--quiet", "--workspace", &at], script);
    assert_eq!(outcome.out(), "openno\nno\n", "{}", outcome.story());
}

#[test]
fn the_working_directory_is_the_one_asked_for() {
    let instance = Instance::new();
    let folder = instance.scratch("project");
    fs::create_dir(folder.join("sub")).unwrap();
    let at = folder.display().to_string();
    for (flags, wanted) in [
        (&[][..], "/workspace"),
        (&["--workdir", "/tmp"], "/tmp"),
        (
            &["--workspace", &at, "--workdir", "/workspace/sub"],
            "/workspace/sub",
        ),
    ] {
        let words = [&["run", "--quiet"], flags, &["--", "pwd"]].concat();
        assert_eq!(instance.cli(words).status_is(0).out().trim(), wanted);
    }
    for (wrong, status) in [("relative", 2), ("/no/such", 125), ("/etc/passwd", 125)] {
        let outcome = instance
            .run(["--workdir", wrong, "--", "pwd"])
            .status_is(status);
        assert!(outcome.err().contains(wrong), "{}", outcome.story());
    }
}
