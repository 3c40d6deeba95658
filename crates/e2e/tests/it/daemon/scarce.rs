//! A daemon without room on its disk (P87): new work is refused and told,
//! ending works, and it mends itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use leasehold_e2e::{Answer, Daemon, Need, need, until};
use serde_json::{Value, json};

use super::{SOON, agree, assert_nothing_left, assert_proven, reason, script};

/// Runs a program of the host.
fn call(program: &str, args: &[&str]) -> bool {
    let done = Command::new(program).args(args).output();
    done.is_ok_and(|done| done.status.success())
}

/// A refusal of new work that blames the host, with its word.
fn is_typed(answer: &Answer) -> bool {
    let code = answer.json["error"]["code"].as_str();
    matches!(answer.status, 429 | 503 | 507) && code.is_some_and(|code| !code.is_empty())
}

/// A small file system of its own over a directory; gone with the test.
struct Small<'a>(&'a Path);

impl Drop for Small<'_> {
    fn drop(&mut self) {
        call("umount", &["-l", &self.0.display().to_string()]);
    }
}

impl<'a> Small<'a> {
    /// Puts a file system of 24 MiB over a directory, with what is in it; `None` where this may not be.
    fn over(directory: &'a Path, kept: &Path) -> Option<Self> {
        let (at, kept) = (directory.display().to_string(), kept.display().to_string());
        assert!(call("cp", &["-a", &format!("{at}/."), &kept]));
        let mount = ["-t", "tmpfs", "-o", "size=24m,mode=700", "small", &at];
        if !call("mount", &mount) {
            return None;
        }
        let small = Self(directory);
        assert!(call("cp", &["-a", &format!("{kept}/."), &at]));
        Some(small)
    }

    /// Fills it to the last byte, and gives the file that does.
    fn fill(&self) -> PathBuf {
        let ballast = self.0.join("ballast");
        let of = format!("of={}", ballast.display());
        call("dd", &["if=/dev/zero", &of, "bs=4k", "status=none"]);
        ballast
    }
}

/// Asks for new work that is large enough to be refused soon.
fn refused(daemon: &Daemon) -> Answer {
    until("a refusal", SOON, || {
        let mut body = script("true");
        body["env"] = json!({"FILLER": "x".repeat(8_192)});
        let answer = daemon.post("/v1/runs?wait=none", &[], &body);
        (answer.status != 202).then_some(answer)
    })
}

/// Begins a run that prints and stays, and waits until it has printed so many bytes.
fn printing(daemon: &Daemon, text: &str, bytes: usize) -> String {
    let text = format!("{text}; sleep 600");
    let run = daemon.post("/v1/runs?wait=none", &[], &script(&text)).run();
    until("it has printed", SOON, || {
        let at = bytes - 1;
        let log = daemon.get(&format!("/v1/runs/{run}/logs/stdout?offset={at}"));
        (log.text.len() == 1).then_some(())
    });
    run
}

/// Asks for the end of a run and waits until it is sealed.
fn ended(daemon: &Daemon, run: &str) -> Value {
    let asked = daemon.post(&format!("/v1/runs/{run}/cancel"), &[], &Value::Null);
    assert!(matches!(asked.status, 200 | 202), "{}", asked.text);
    // Its output is tried for half a minute before the run ends without.
    let row = daemon.sealed(run, 3 * SOON);
    assert_eq!(reason(&row), "cancelled", "{row:#}");
    row
}

#[test]
fn p87_a_full_disk_of_a_daemon_refuses_new_work_lets_work_end_and_mends_itself() {
    let name = "daemon::scarce::p87_a_full_disk_of_a_daemon_refuses_new_work_lets_work_end_and_mends_itself";
    if !need(name, &[Need::Root, Need::Program("mount")]) {
        return;
    }
    let mut daemon = Daemon::start(&["--warm", "0"], &[]);
    daemon.kill();
    let own = daemon.instance().state().join("daemon");
    let kept = daemon.instance().scratch("kept");
    let Some(small) = Small::over(&own, &kept) else {
        leasehold_e2e::skip(name, "cannot mount");
        return;
    };
    daemon.restart(&[]);
    // More than a full disk can have room for, whatever is given up.
    let large = printing(&daemon, "head -c 10485760 /dev/zero", 10 << 20);
    let quiet: Vec<String> = (0..3).map(|_| printing(&daemon, "echo", 1)).collect();
    let ballast = small.fill();
    let answer = refused(&daemon);
    assert!(is_typed(&answer), "{}: {}", answer.status, answer.text);
    assert_eq!(daemon.row(&large)["state"], "running", "reading works");
    // What ends is sealed while the disk is full, and what is given up for that is not for new work.
    for run in &quiet[..2] {
        ended(&daemon, run);
        let answer = daemon.post("/v1/runs?wait=none", &[], &script("true"));
        assert!(is_typed(&answer), "{}: {}", answer.status, answer.text);
    }
    let row = ended(&daemon, &large);
    assert_eq!(row["outcome"]["stdout"]["kept"], 10 << 20, "{row:#}");
    assert!(row["outcome"]["stdout"]["digest"].is_null(), "{row:#}");
    let told = daemon.cli(["explain", &large]).status_is(0).out();
    assert!(
        told.contains("10485760 bytes, which could not be kept"),
        "{told}"
    );
    let log = daemon.get(&format!("/v1/runs/{large}/logs/stdout"));
    let log = log.status_is(404);
    assert!(log.text.contains("could not be kept"), "{}", log.text);
    // Also by the next daemon.
    daemon.kill();
    daemon.restart(&[]);
    ended(&daemon, &quiet[2]);
    let answer = refused(&daemon);
    assert!(is_typed(&answer), "{}: {}", answer.status, answer.text);
    for run in [&quiet[0], &quiet[2], &large] {
        assert_proven(&daemon, run);
    }
    std::fs::remove_file(&ballast).unwrap();
    let fine = until("work again", SOON, || {
        let answer = daemon.post("/v1/runs", &[], &script("true"));
        (answer.status == 200).then_some(answer)
    });
    assert_eq!(reason(&fine.json), "completed");
    until("all runs to be over", SOON, || {
        let over = daemon.rows("").iter().all(|row| row["state"] == "sealed");
        over.then_some(())
    });
    agree(&daemon, Duration::from_secs(2));
    assert_nothing_left(&daemon);
    drop(small);
}
