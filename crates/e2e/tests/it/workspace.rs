//! What happens to the caller's files, and what comes back.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use leasehold_e2e::{Instance, Need, need};
use rustix::process::Signal;

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

/// After the run, alone: the list, then all of them or those of a glob.
#[test]
fn artifacts_are_listed_and_taken_after_the_run() {
    let instance = Instance::new();
    let script = "mkdir -p out; printf one > out/a.txt; printf two > out/b.csv; ln -s a.txt out/l";
    instance.sh(&["--artifact", "out"], script).status_is(0);
    let run = instance.last_record()["run"].as_str().unwrap().to_owned();
    let listed = instance.cli(["artifacts", &run]).status_is(0).out();
    for part in ["out/a.txt", "3 B", "out/b.csv", "not taken: symlink"] {
        assert!(listed.contains(part), "{part}: {listed}");
    }
    let out = instance.scratch("later");
    let place = out.to_string_lossy().into_owned();
    let taken = instance.cli(["artifacts", &run, "*.csv", "out/*.csv", "--out", &place]);
    taken.status_is(0);
    assert_eq!(fs::read_to_string(out.join("out/b.csv")).unwrap(), "two");
    assert!(!out.join("out/a.txt").exists(), "it was not asked for");
    instance
        .cli(["artifacts", &run, "--out", &place])
        .status_is(0);
    assert_eq!(fs::read_to_string(out.join("out/a.txt")).unwrap(), "one");
    assert!(fs::symlink_metadata(out.join("out/l")).is_err());
    let none = instance.cli(["artifacts", &run, "nothing*"]).status_is(2);
    assert!(
        none.err().contains("has no artifact that is nothing*"),
        "{}",
        none.err()
    );
}

/// A glob means the names as they were made, and a name of the list means itself.
#[test]
fn artifacts_with_names_that_need_escaping_are_listed_and_taken() {
    let instance = Instance::new();
    let script = r#"mkdir o; cd o; for name in 'a*b' axb '[x]' x 'back\slash' "$(printf 'new\nline')" "$(printf 'not\377text')" ' b ' '-n'; do printf %s "$name" > "./$name"; done"#;
    instance.sh(&["--artifact", "o"], script).status_is(0);
    let run = instance.last_record()["run"].as_str().unwrap().to_owned();
    let listed = instance
        .cli(["artifacts", "--json", &run])
        .status_is(0)
        .json();
    let listed = listed.as_array().unwrap();
    let names: Vec<&str> = listed
        .iter()
        .map(|one| one["path"].as_str().unwrap())
        .collect();
    assert_eq!(names.len(), 9, "{names:?}");
    let taken = |glob: &str| -> Vec<Vec<u8>> {
        let out = instance.scratch("taken");
        fs::remove_dir_all(&out).unwrap();
        let place = out.to_string_lossy().into_owned();
        let words = ["artifacts", &run, "--out", &place, "--", glob];
        instance.cli(words).status_is(0);
        let there = fs::read_dir(out.join("o"))
            .unwrap()
            .map(|entry| entry.unwrap());
        let mut names: Vec<Vec<u8>> = there
            .map(|entry| {
                let name = std::os::unix::ffi::OsStringExt::into_vec(entry.file_name());
                assert_eq!(
                    fs::read(entry.path()).unwrap(),
                    name,
                    "its bytes are its own"
                );
                name
            })
            .collect();
        names.sort();
        names
    };
    let cases: [(&str, &[&[u8]]); 8] = [
        ("o/a*b", &[b"a*b", b"axb"]),
        ("o/a\\*b", &[b"a*b"]),
        ("o/[[]x]", &[b"[x]"]),
        ("o/back\\\\slash", &[b"back\\slash"]),
        ("o/new?line", &[b"new\nline"]),
        ("o/not?text", &[b"not\xfftext"]),
        ("o/ b ", &[b" b "]),
        ("o/-n", &[b"-n"]),
    ];
    for (glob, wanted) in cases {
        assert_eq!(taken(glob), wanted, "{glob}");
    }
    // What the list says of a name finds it.
    for name in names {
        let found = taken(name).len();
        assert!(
            found == 1 || name == "o/a*b" && found == 2 || name == "o/[x]" && found == 2,
            "{name}"
        );
    }
}

/// Before the end of a run nothing is collected, and that is what is said.
#[test]
fn artifacts_of_a_run_that_is_not_over_are_none_yet() {
    let instance = Instance::new();
    let script = "printf one > a.txt; echo up; exec sleep 60";
    let run = instance.start(["run", "--artifact", "a.txt", "--", "sh", "-c", script]);
    run.await_out("up", Duration::from_secs(30));
    let refused = instance.cli(["artifacts", &instance.last_run()]);
    let refused = refused.status_is(2).err();
    assert!(refused.contains("is not over"), "{refused}");
    run.signal(Signal::INT);
    run.wait(Duration::from_secs(30)).status_is(130);
    let listed = instance.cli(["artifacts", &instance.last_run()]);
    assert!(listed.status_is(0).out().contains("a.txt"));
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

/// In a folder of three owners each file keeps its owner's rights: the guest has those of the folder's
/// owner, reads what everybody may, and changes nothing else; but it sees all and removes what lies in
/// its own folders, as its owner could outside.
#[test]
fn a_folder_of_several_owners_works_and_gives_no_more_rights() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let name = "workspace::a_folder_of_several_owners_works_and_gives_no_more_rights";
    if !need(name, &[Need::Root]) {
        return;
    }
    let instance = Instance::new();
    for owner in [1_000, 0, 70_000] {
        let others = [0, 1_000, 1_001].into_iter().filter(|id| *id != owner);
        let folder = instance.scratch("project");
        fs::remove_dir_all(&folder).unwrap();
        fs::create_dir(&folder).unwrap();
        let give = |name: &str, text: &str, mode, id| {
            let path = folder.join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            chown(&path, Some(id), Some(id)).unwrap();
        };
        give("own", "own ", 0o600, owner);
        for id in others.clone() {
            give(&format!("open-{id}"), "open ", 0o644, id);
            give(&format!("shut-{id}"), "shut ", 0o600, id);
            give(&format!("all-{id}"), "all ", 0o666, id);
            give(&format!("gone-{id}"), "", 0o600, id);
            fs::create_dir(folder.join(format!("d-{id}"))).unwrap();
            give(&format!("d-{id}/in"), "", 0o644, id);
            chown(folder.join(format!("d-{id}")), Some(id), Some(id)).unwrap();
        }
        chown(&folder, Some(owner), Some(owner)).unwrap();
        let read = "cat own; for f in open-*; do cat $f; { echo x > $f; } 2>/dev/null && echo BAD; chmod 777 $f 2>/dev/null && echo BAD; done; for f in shut-*; do cat $f 2>/dev/null && echo BAD; done; ls -ln >/dev/null || echo BAD; stat -c %u own open-* | sort -u | tr '\\n' ' '";
        let write = "for f in all-*; do echo new > $f || echo BAD; done; rm -f gone-* || echo BAD; for d in d-*; do rm $d/in 2>/dev/null && echo BAD; done; echo more >> own; echo made > made; mkdir sub; cp /bin/true sub/x; chmod 4755 sub/x 2>/dev/null && test -u sub/x && test $MODE = rw && echo BAD; ls -d gone-* 2>/dev/null; echo done";
        let before = fingerprint(&folder);
        for mode in ["ro", "clone", "rw"] {
            let at = format!("{}:{mode}", folder.display());
            let set = format!("MODE={mode}");
            let flags = ["--quiet", "--env", &set, "--workspace", &at];
            let told = instance.sh(&flags, read).status_is(0);
            let want = format!("own {}1000 65534 ", "open ".repeat(others.clone().count()));
            assert_eq!(told.out(), want, "{owner} {mode}: {}", told.story());
            if mode == "ro" {
                continue;
            }
            let told = instance.sh(&flags, write).status_is(0);
            assert_eq!(told.out(), "done\n", "{owner} {mode}: {}", told.story());
            assert_eq!(fingerprint(&folder) == before, mode == "clone", "{mode}");
        }
        for made in ["made", "sub", "sub/x", "own"] {
            let seen = fs::metadata(folder.join(made)).unwrap();
            assert_eq!((seen.uid(), seen.gid()), (owner, owner), "{made}");
            assert_eq!(seen.mode() & 0o7000, 0, "{made}");
        }
        for id in others {
            let seen = fs::metadata(folder.join(format!("all-{id}"))).unwrap();
            assert_eq!((seen.uid(), seen.len()), (id, 4));
            assert!(folder.join(format!("d-{id}/in")).exists());
        }
    }
    assert_nothing_left(&instance);
}

/// A file system mounted for one test.
struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let done = std::process::Command::new("umount").arg(&self.0).status();
        assert!(done.is_ok_and(|status| status.success()), "umount");
    }
}

/// Where the kernel cannot translate owners, a folder is not lent for writing, and the refusal says which
/// file system it is and what to do; to read and to clone it works.
#[test]
fn a_file_system_that_translates_no_owners_is_named() {
    let name = "workspace::a_file_system_that_translates_no_owners_is_named";
    if !need(name, &[Need::Root, Need::Program("mount")]) {
        return;
    }
    let instance = Instance::new();
    let place = instance.scratch("layers");
    for layer in ["lower", "upper", "work", "top"] {
        fs::create_dir(place.join(layer)).unwrap();
    }
    let top = place.join("top");
    let at = |layer: &str| place.join(layer).display().to_string();
    let layers = format!(
        "lowerdir={},upperdir={},workdir={}",
        at("lower"),
        at("upper"),
        at("work")
    );
    let mounted = std::process::Command::new("mount")
        .args(["-t", "overlay", "overlay", "-o", &layers])
        .arg(&top)
        .output()
        .unwrap();
    if !mounted.status.success() {
        leasehold_e2e::skip(name, &String::from_utf8_lossy(&mounted.stderr));
        return;
    }
    let _mounted = Mounted(top.clone());
    fs::write(top.join("kept.txt"), "original\n").unwrap();
    let run = |mode: &str| {
        let at = format!("{}:{mode}", top.display());
        instance.sh(&["--workspace", &at], "cat kept.txt; echo x > new")
    };
    assert_eq!(run("clone").status_is(0).out(), "original\n");
    assert!(run("ro").out().starts_with("original\n"));
    assert!(!top.join("new").exists());
    let refused = run("rw").status_is(125);
    for word in ["`overlay`", "translate owners", ":clone"] {
        assert!(refused.err().contains(word), "{}", refused.story());
    }
    // The control: the same folder elsewhere is lent.
    let elsewhere = format!("{}:rw", instance.scratch("plain").display());
    instance
        .sh(&["--workspace", &elsewhere], "echo x > new")
        .status_is(0);
    instance.stopped_inventory();
}

/// Package managers and version control put files in place by moving and linking them.
#[test]
fn files_move_and_link_between_directories() {
    let instance = Instance::new();
    let folder = instance.scratch("project");
    let script = "import os, sys\nfor place in ('/workspace', '/tmp', '/home/user', '/var/tmp'):\n  os.chdir(place); os.makedirs('a/d'); os.mkdir('b'); open('a/x', 'w').write('x')\n  os.link('a/x', 'b/y'); os.rename('a/x', 'b/x'); os.rename('a/d', 'b/d'); os.rename('b/x', 'x')\n  print(sorted(os.listdir('b')))\nfor new in ('/usr/x', '/etc/x', '/proc/x'):\n  try: os.rename('/tmp/x', new); print('BAD')\n  except OSError: pass";
    let needs = [Need::Path("/usr/bin/python3")];
    if !need("workspace::files_move_and_link_between_directories", &needs) {
        return;
    }
    for mode in ["clone", "rw"] {
        let at = format!("{}:{mode}", folder.display());
        let words = [
            "run",
            "--quiet",
            "--workspace",
            &at,
            "--",
            "/usr/bin/python3",
            "-c",
            script,
        ];
        let told = instance.cli(words).status_is(0);
        assert_eq!(told.out(), "['d', 'y']\n".repeat(4), "{}", told.story());
    }
}

/// A disk that was full for a moment is named: looks come as often as what is left can be filled.
///
/// A gap, asserted as it is: what the kernel refuses without filling anything leaves no trace.
#[test]
fn a_disk_that_was_full_for_a_moment_is_named() {
    let instance = Instance::new();
    let filled = "head -c 100M /dev/zero > x 2>/dev/null; sleep 0.3; rm x; exit 3";
    let record = instance.record_of(&["--disk", "64M"], filled);
    assert_eq!(crate::record::exceeded(&record), "disk");
    let refused = "import os, sys\ntry: os.posix_fallocate(os.open('x', os.O_CREAT | os.O_RDWR), 0, 1 << 40)\nexcept OSError: sys.exit(3)";
    let words = [
        "run",
        "--disk",
        "64M",
        "--",
        "/usr/bin/python3",
        "-c",
        refused,
    ];
    if need(
        "workspace::a_disk_that_was_full_for_a_moment_is_named",
        &[Need::Path("/usr/bin/python3")],
    ) {
        assert_eq!(instance.cli(words).status, 3);
        assert_eq!(
            instance.last_record()["limits_hit"]
                .as_array()
                .unwrap()
                .len(),
            0
        );
    }
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
