//! P40 where the caller lends the folder itself: whatever the guest leaves there that a tool of the host
//! runs or obeys is in the record, in the last lines and on the page, and nothing else is.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use leasehold_e2e::{Instance, Need, Who, need};
use serde_json::Value;

use crate::record::assert_clean;

/// Runs git on the host in a folder.
pub(super) fn git(folder: &Path, words: &[&str]) -> std::process::Output {
    let mut command = Command::new("git");
    command
        .args(["-c", "user.name=a", "-c", "user.email=a@b"])
        .args(["-c", "safe.directory=*"])
        .args(words);
    command.current_dir(folder).output().expect("git")
}

/// What the record lists, by path.
pub(super) fn listed(record: &Value) -> BTreeMap<String, String> {
    let files = record["may_execute_on_host"]["files"].as_array();
    let files = files.unwrap_or_else(|| panic!("no list in {record:#}"));
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let row = |row: &Value| (text(&row["path"]), text(&row["change"]));
    files.iter().map(row).collect()
}

/// A repository with one nested in it and one whose `.git` is a link.
fn project(instance: &Instance) -> std::path::PathBuf {
    let project = instance.scratch("project");
    for folder in ["", "nested", "real"] {
        let folder = project.join(folder);
        fs::create_dir_all(&folder).unwrap();
        assert!(git(&folder, &["init", "-q"]).status.success());
        fs::create_dir_all(folder.join(".git/hooks")).unwrap();
    }
    fs::create_dir(project.join("linked")).unwrap();
    std::os::unix::fs::symlink("../real/.git", project.join("linked/.git")).unwrap();
    fs::create_dir_all(project.join(".vscode")).unwrap();
    fs::write(project.join(".vscode/tasks.json"), "{}").unwrap();
    fs::write(project.join(".npmrc"), "a=b\n").unwrap();
    fs::write(project.join("data.txt"), "data\n").unwrap();
    project
}

/// Every way in, each to another name.
const WAYS: &str = r#"set -e
hook='#!/bin/sh
touch ran
'
printf %s "$hook" > evil; chmod 755 evil
cp evil .git/hooks/pre-commit
cp .git/config config.new; printf '[alias]\n\tst = !touch ran\n' >> config.new; mv config.new .git/config
ln evil .git/hooks/post-commit
mkdir stage; echo '{}' > stage/tasks.json; rm -r .vscode; mv stage .vscode
cp evil nested/.git/hooks/post-checkout
cp evil linked/.git/hooks/pre-push
echo 'touch ran' > .envrc
touch -d '2001-01-01' .envrc
cp -p .npmrc keep; printf 'c=d\n' > .npmrc; touch -r keep .npmrc; rm keep
echo more >> data.txt; echo new > new.txt"#;

#[test]
fn p40_what_a_lent_folder_holds_for_the_host_is_listed() {
    let test = "p40_what_a_lent_folder_holds_for_the_host_is_listed";
    if !need(test, &[Need::Program("git")]) {
        return;
    }
    let instance = Instance::new();
    let project = project(&instance);
    let at = format!("{}:rw", project.display());
    let outcome = instance.sh(&["--workspace", &at], WAYS).status_is(0);
    let record = instance.last_record();
    assert_clean(&record);
    let rows = listed(&record);
    let wanted = [
        (".envrc", "created"),
        (".git/config", "changed"),
        (".git/hooks/post-commit", "created"),
        (".git/hooks/pre-commit", "created"),
        (".npmrc", "changed"),
        (".vscode/tasks.json", "changed"),
        ("linked/.git/hooks/pre-push", "created"),
        ("nested/.git/hooks/post-checkout", "created"),
        ("real/.git/hooks/pre-push", "created"),
    ];
    let wanted = wanted.map(|(path, change)| (path.to_owned(), change.to_owned()));
    assert_eq!(rows, BTreeMap::from(wanted), "{record:#}");
    assert!(record["may_execute_on_host"]["incomplete"].is_null());
    let shown = instance.cli(["show", &instance.last_run()]).status_is(0);
    for path in [".envrc", ".git/config", ".git/hooks/pre-commit"] {
        assert!(outcome.err().contains(path), "{}", outcome.story());
        assert!(shown.out().contains(path), "{}", shown.story());
    }
    for path in ["data.txt", "new.txt"] {
        assert!(!outcome.err().contains(path), "{}", outcome.story());
    }
    // The control: who does not look at the list runs the guest's program.
    assert!(!project.join("ran").exists());
    git(&project, &["commit", "-q", "--allow-empty", "-m", "x"]);
    assert!(project.join("ran").exists(), "the hook was no hook");
}

/// Nothing touched, nothing told; a folder that is not lent has no list; told even when quiet.
#[test]
fn p40_only_a_lent_folder_has_a_list_and_only_changes_are_in_it() {
    let test = "p40_only_a_lent_folder_has_a_list_and_only_changes_are_in_it";
    if !need(test, &[Need::Program("git")]) {
        return;
    }
    let instance = Instance::new();
    let project = project(&instance);
    let run = |mode: &str, script: &str| {
        let at = format!("{}:{mode}", project.display());
        instance
            .sh(&["--quiet", "--workspace", &at], script)
            .status_is(0)
    };
    let told = run(
        "rw",
        "cat .git/config .npmrc; echo x > new.txt; mkdir -p a/b",
    )
    .err();
    assert!(!told.contains("careful"), "{told}");
    assert!(listed(&instance.last_record()).is_empty());
    for mode in ["clone", "ro"] {
        run(mode, "echo x > .envrc || true");
        let record = instance.last_record();
        assert!(record["may_execute_on_host"].is_null(), "{record:#}");
    }
    let told = run("rw", "echo x > .envrc").err();
    assert!(told.contains(".envrc (created)"), "{told}");
}

/// A guest that hides behind a bound is told of, and so is one that shuts the door.
#[test]
fn p40_a_folder_that_cannot_be_compared_is_told() {
    let instance = Instance::new();
    let project = instance.scratch("project");
    let at = format!("{}:rw", project.display());
    let deep = "i=0; while [ $i -lt 300 ]; do mkdir d; cd d; i=$((i+1)); done; mkdir .vscode; echo x > .vscode/tasks.json";
    let told = instance.sh(&["--workspace", &at], deep).status_is(0).err();
    assert!(told.contains("NOT compared as a whole (depth)"), "{told}");
    let shut =
        "rm -r d; mkdir -p shut/.git/hooks; echo x > shut/.git/hooks/pre-commit; chmod 0 shut";
    let told = instance.sh(&["--workspace", &at], shut).status_is(0).err();
    assert!(told.contains("shut (unreadable)"), "{told}");
}

/// An ordinary user's folder, and a command that is ended.
#[test]
fn p40_what_an_ordinary_users_lent_folder_holds_is_listed() {
    let test = "p40_what_an_ordinary_users_lent_folder_holds_is_listed";
    if !need(test, &[Need::Root, Need::Program("setpriv")]) {
        return;
    }
    let instance = Instance::of(Who::Ordinary);
    let project = instance.scratch("project");
    let at = format!("{}:rw", project.display());
    let script = "mkdir -p x/.git/hooks; echo x > x/.git/hooks/pre-commit; echo x > data; (while :; do echo y > .envrc; done) & sleep 60";
    let outcome = instance.sh(&["--timeout", "1s", "--workspace", &at], script);
    assert_eq!(outcome.status, 124, "{}", outcome.story());
    let rows = listed(&instance.last_record());
    let names: Vec<&str> = rows.keys().map(String::as_str).collect();
    assert_eq!(names, [".envrc", "x/.git/hooks/pre-commit"]);
}
