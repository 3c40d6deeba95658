//! P40: files that a tool of the host would run or obey later.

use std::fs;
use std::path::Path;

use leasehold_e2e::{Instance, Need, need};

use super::lent::{git, listed};
use super::{collect, everything, rows};

/// What is obeyed, whether or not it was there at the start.
const OBEYED: [&str; 8] = [
    ".git/hooks/pre-commit",
    ".git/config",
    ".gitmodules",
    ".envrc",
    ".vscode/tasks.json",
    ".bashrc",
    "sub/.git/hooks/post-checkout",
    "sub/.envrc",
];

fn make() -> String {
    let names = OBEYED.map(|name| format!("{name:?}")).join(", ");
    format!(
        "import os\nfor name in [{names}]:\n  os.makedirs(os.path.dirname(name) or '.', exist_ok=True)\n  open(name + '.new', 'w').write('#!/bin/sh\\necho ran > ran\\n'); os.chmod(name + '.new', 0o755); os.rename(name + '.new', name)\nopen('plain', 'w').write('x')\n"
    )
}

#[test]
fn p40_what_the_host_would_obey_is_withheld_and_marked() {
    let test = "p40_what_the_host_would_obey_is_withheld_and_marked";
    if !need(test, &[Need::Path("/usr/bin/python3")]) {
        return;
    }
    let instance = Instance::new();
    let (record, out) = collect(&instance, &[], &make());
    let artifacts = record["artifacts"].as_array().unwrap();
    for name in OBEYED {
        let row = artifacts.iter().find(|row| row["path"] == name);
        let row = row.unwrap_or_else(|| panic!("{name} is not listed: {record:#}"));
        assert_eq!(row["may_execute_on_host"], true, "{name}");
        assert!(!out.join(name).exists(), "{name} was written");
    }
    assert_eq!(rows(&record)["plain"], "taken");
    assert!(out.join("plain").exists());
    // Asked for by name they are written: the guard is what withheld them.
    let (_, out) = collect(&instance, &["--unsafe-artifacts"], &make());
    for name in OBEYED {
        assert!(out.join(name).exists(), "{name}");
    }
    assert!(everything(&out).len() > OBEYED.len());
}

/// A clone that is full of them changes nothing outside.
#[test]
fn p40_a_clone_leaves_no_hook_behind() {
    let test = "p40_a_clone_leaves_no_hook_behind";
    if !need(
        test,
        &[Need::Path("/usr/bin/python3"), Need::Program("git")],
    ) {
        return;
    }
    let instance = Instance::new();
    let project = instance.scratch("project");
    let git = |words: &[&str]| git(&project, words);
    assert!(git(&["init", "-q"]).status.success());
    let mode = |mode: &str| format!("{}:{mode}", project.display());
    let hook = "import os; p = '.git/hooks/pre-commit'; os.makedirs('.git/hooks', exist_ok=True); open(p, 'w').write('#!/bin/sh\\ntouch ran\\n'); os.chmod(p, 0o755)";
    let run = |mode: &str| {
        instance
            .run(["--workspace", mode, "--", "/usr/bin/python3", "-c", hook])
            .status_is(0)
    };
    let ran = |project: &Path| {
        git(&["commit", "-q", "--allow-empty", "-m", "x"]);
        let ran = project.join("ran").exists();
        fs::remove_file(project.join("ran")).ok();
        ran
    };
    run(&mode("clone"));
    assert!(!ran(&project), "a hook of the guest ran on the host");
    // Where the caller lends the folder itself, the hook is there, listed, and runs.
    run(&mode("rw"));
    let rows = listed(&instance.last_record());
    assert_eq!(rows[".git/hooks/pre-commit"], "created");
    assert!(ran(&project), "the hook was no hook");
}
