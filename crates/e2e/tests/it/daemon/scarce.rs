//! A daemon without room on its disk (P87): new work is refused and told,
//! ending works, and it mends itself.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold_e2e::{Answer, Daemon, Need, need, patience, until};
use serde_json::{Value, json};

use super::{SOON, agree, assert_nothing_left, reason, script};

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
    let at = own.display().to_string();
    assert!(call(
        "cp",
        &["-a", &format!("{at}/."), &kept.display().to_string()]
    ));
    if !call(
        "mount",
        &["-t", "tmpfs", "-o", "size=24m,mode=700", "small", &at],
    ) {
        leasehold_e2e::skip(name, "cannot mount");
        return;
    }
    let small = Small(&own);
    assert!(call("cp", &["-a", &format!("{}/.", kept.display()), &at]));
    daemon.restart(&[]);
    let first = daemon
        .post("/v1/runs?wait=none", &[], &script("echo up; sleep 60"))
        .run();
    until("it runs", SOON, || {
        let log = daemon.get(&format!("/v1/runs/{first}/logs/stdout"));
        log.text.contains("up").then_some(())
    });
    // Somebody fills the disk to the last byte.
    let ballast = own.join("ballast");
    call(
        "dd",
        &[
            "if=/dev/zero",
            &format!("of={}", ballast.display()),
            "bs=4k",
            "status=none",
        ],
    );
    let refused = until("a refusal", SOON, || {
        let mut body = script("true");
        body["env"] = json!({"FILLER": "x".repeat(8_192)});
        let answer = daemon.post("/v1/runs?wait=none", &[], &body);
        (answer.status != 202).then_some(answer)
    });
    assert!(is_typed(&refused), "{}: {}", refused.status, refused.text);
    assert_eq!(daemon.row(&first)["state"], "running", "reading works");
    let path = format!("/v1/runs/{first}/cancel");
    let ended = daemon.post(&path, &[], &Value::Null);
    assert!(matches!(ended.status, 200 | 202), "{}", ended.text);
    assert!(!daemon.is_over());
    std::fs::remove_file(&ballast).unwrap();
    // Its output is tried for half a minute before the run ends without.
    let row = daemon.sealed(&first, 3 * SOON);
    assert_eq!(reason(&row), "cancelled", "{row:#}");
    let fine = until("work again", Duration::from_secs(10) * patience(), || {
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
    daemon.kill();
    drop(small);
}
