//! What is tested in the guest: the list of cases and the files each needs.
//!
//! A new case goes into [`pack`]: add its program to the tree and a [`Case`] to the list.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::cpio::Tree;
use super::pack;
use crate::tally::Tally;
use crate::{step, tree};

/// One line of the guest's plan.
#[derive(Debug, Clone)]
pub(super) struct Case {
    /// Its name in the report.
    pub(super) name: String,
    /// `root`, or `user` in a delegated subtree.
    pub(super) who: &'static str,
    /// How long it may take, in seconds of the guest.
    pub(super) limit_s: u64,
    /// Its working directory.
    pub(super) folder: &'static str,
    /// Its command line for the guest's shell.
    pub(super) command: String,
}

impl Case {
    /// The line of the plan file.
    pub(super) fn line(&self) -> String {
        format!(
            "{}\t{}\t{}\t{}\t{}\n",
            self.name, self.who, self.limit_s, self.folder, self.command
        )
    }
}

/// The built binary, which both guests are about, and programs of this machine that it or a test
/// calls. What is not here is counted as skipped.
pub(super) fn programs(guest: &mut Tree, tally: &mut Tally) -> Result<()> {
    for program in ["setpriv", "newuidmap", "newgidmap", "mkfs.ext4"] {
        match step::which(program) {
            Some(path) => pack::program(guest, &path, &format!("usr/bin/{program}"))?,
            None => tally.skip(
                &format!("v2::{program}"),
                &format!("{program} is not on this machine, so not in the guest"),
            ),
        }
    }
    let mut build = step::cargo();
    build
        .args(["build", "-p", "leasehold"])
        .current_dir(tree::root());
    println!("{}", step::shown(&build));
    step::output(&mut build)?;
    let binary = tree::target().join("debug/leasehold");
    pack::program(guest, &binary, "guest/leasehold")
}

/// Packs the tests of the guest without a manager and returns its cases.
pub(super) fn pack(guest: &mut Tree) -> Result<Vec<Case>> {
    let mut cases = vec![
        case(
            "host-is-pure-v2",
            "root",
            30,
            "test -e /sys/fs/cgroup/cgroup.controllers && ! grep '^[^ ]* [^ ]* cgroup ' /proc/mounts",
        ),
        case(
            "user-is-delegated",
            "user",
            30,
            "test $(id -u) = 1000 && mkdir /sys/fs/cgroup/user/x && rmdir /sys/fs/cgroup/user/x && ! mkdir /sys/fs/cgroup/x 2>/dev/null",
        ),
    ];
    if tree::root().join("crates/jail/tests/cgroup.rs").is_file() {
        let binary = test_binary("leasehold-jail", "cgroup")?;
        pack::program(guest, &binary, "guest/cgroup")?;
        // As root alone: it starts itself as an ordinary user where a test is about one.
        cases.push(case(
            "jail-cgroup",
            "root",
            300,
            "LEASEHOLD_PATIENCE=6 /guest/cgroup --test-threads=1 --nocapture",
        ));
    }
    end_to_end(guest, &mut cases)?;
    Ok(cases)
}

/// The end-to-end tests against the built binary, as root and as an ordinary user with a delegated
/// subtree. What they need and the guest has not (an interpreter, a compiler) is a skip of theirs;
/// compiled helpers are packed where an earlier run on this machine left them.
fn end_to_end(guest: &mut Tree, cases: &mut Vec<Case>) -> Result<()> {
    // Every limit bites on v2, for root and for a user with a delegated subtree.
    for who in ["root", "user"] {
        let command = "/guest/leasehold doctor >/tmp/doctor-$(id -u); status=$?; \
                       cat /tmp/doctor-$(id -u); test $status = 0 && \
                       test $(grep -c '^  enforced ' /tmp/doctor-$(id -u)) = 10";
        cases.push(case(&format!("doctor-{who}"), who, 120, command));
    }
    pack::program(guest, &test_binary("leasehold-e2e", "it")?, "guest/it")?;
    let helpers = tree::target().join("e2e/helpers");
    if helpers.is_dir() {
        pack::folder(guest, &helpers, "guest/helpers")?;
    }
    // Of the crashes the basic ones: all of them would take an emulated machine too long.
    // Emulated, everything takes several times longer; bounds are stretched, limits are not.
    let environment =
        "LEASEHOLD_PATIENCE=6 LEASEHOLD_BIN=/guest/leasehold LEASEHOLD_HELPERS=/guest/helpers";
    for (who, modules) in [
        (
            "root",
            &[
                "ends::",
                "streams::",
                "visible::",
                "workspace::",
                "crash::a_",
            ][..],
        ),
        ("user", &["ends::", "visible::", "workspace::"]),
    ] {
        for chosen in modules {
            let call =
                format!("LEASEHOLD_SKIPS=/tmp/skips-{who} /guest/it {chosen} --test-threads=2");
            let command = format!("{environment} {call}");
            let module = chosen.split(':').next().unwrap_or(chosen);
            cases.push(case(&format!("e2e-{module}-{who}"), who, 600, &command));
        }
    }
    Ok(())
}

pub(super) fn case(name: &str, who: &'static str, limit_s: u64, command: &str) -> Case {
    Case {
        name: name.to_owned(),
        who,
        limit_s,
        folder: "/tmp",
        command: command.to_owned(),
    }
}

/// Builds one integration test and returns where cargo put it.
fn test_binary(package: &str, test: &str) -> Result<PathBuf> {
    let mut command = step::cargo();
    command
        .args([
            "test",
            "--no-run",
            "--message-format=json",
            "-p",
            package,
            "--test",
            test,
        ])
        .current_dir(tree::root());
    println!("{}", step::shown(&command));
    let messages = step::output(&mut command)?;
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == test)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .with_context(|| format!("cargo named no executable for {package} test {test}"))
}
