//! A daemon with too few descriptors and one without room on its disk (P87): new work is refused and told,
//! ending works, and it mends itself.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
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

#[test]
fn p87_without_descriptors_new_work_waits_or_is_refused_and_ending_works() {
    let name =
        "daemon::scarce::p87_without_descriptors_new_work_waits_or_is_refused_and_ending_works";
    if !need(name, &[Need::Program("prlimit")]) {
        return;
    }
    let mut daemon = Daemon::start(&["--warm", "0"], &[]);
    let first = daemon
        .post("/v1/runs?wait=none", &[], &script("echo up; sleep 60"))
        .run();
    until("it runs", SOON, || {
        (daemon.row(&first)["state"] == "running").then_some(())
    });
    // The worker keeps its own; the daemon comes back poor.
    daemon.kill();
    daemon.restart_under(&["prlimit", "--nofile=64:64"]);
    let descriptors = format!("/proc/{}/fd", daemon.pid());
    let fds = || std::fs::read_dir(&descriptors).unwrap().count();
    let base = fds();
    let stop = AtomicBool::new(false);
    let path = format!("/v1/runs/{first}/cancel");
    std::thread::scope(|scope| {
        for _ in 0..60 {
            scope.spawn(|| crowd_in(&daemon, &stop));
        }
        std::thread::sleep(Duration::from_secs(2));
        // Meanwhile somebody ends the first.
        until("somebody who ends it is heard", SOON, || {
            let asked = daemon.ask("POST", &path, daemon.key(), &[], None).ok()?;
            matches!(asked.status, 200 | 202).then_some(())
        });
        stop.store(true, Ordering::Relaxed);
    });
    assert!(!daemon.is_over(), "it lives");
    assert_eq!(reason(&daemon.sealed(&first, SOON)), "cancelled");
    // All that were admitted end, whatever way.
    until("all runs to be over", SOON, || {
        let over = daemon.rows("").iter().all(|row| row["state"] == "sealed");
        over.then_some(())
    });
    let fine = daemon.post("/v1/runs", &[], &script("true")).status_is(200);
    assert_eq!(reason(&fine.json), "completed");
    daemon.sealed(&fine.run(), SOON);
    until("descriptors back at their base", SOON, || {
        (fds() <= base + 6).then_some(())
    });
    agree(&daemon, Duration::from_secs(2));
    assert_nothing_left(&daemon);
}

/// Asks for work and waits for it, again and again; whatever is answered is typed.
fn crowd_in(daemon: &Daemon, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let body = script("sleep 0.2");
        // One who is let go without a word comes again.
        let Ok(answer) = daemon.ask("POST", "/v1/runs", daemon.key(), &[], Some(&body)) else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let admitted = answer.json["run"].is_string();
        assert!(
            admitted || is_typed(&answer),
            "{}: {}",
            answer.status,
            answer.text
        );
    }
}

/// A file system of a bounded size over the daemon's own directory. Gone on drop.
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
    let row = daemon.sealed(&first, SOON);
    assert_eq!(reason(&row), "cancelled", "{row:#}");
    assert!(!daemon.is_over());
    std::fs::remove_file(&ballast).unwrap();
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
