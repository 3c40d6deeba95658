//! P30: who stays behind and holds the output open.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use leasehold_e2e::{Instance, Need, need, until};
use rustix::process::{Pid, Signal, kill_process};

use super::{PATIENCE, with_word};
use crate::record::{assert_clean, assert_nothing_left, reason};

const TIMES: usize = 50;
const AT_ONCE: usize = 5;

/// A daemon of its own session that keeps standard output, and whose parent is gone.
fn script(seconds: &str) -> String {
    format!("(setsid sh -c 'sleep {seconds} & exit 0' &); echo main")
}

#[test]
fn p30_orphans_with_the_output_never_hold_a_run() {
    let instance = Instance::new();
    // A number that marks them on the host.
    let seconds = format!("3{:05}", std::process::id() % 100_000);
    let script = script(&seconds);
    let words = ["run", "--json", "--", "sh", "-c", &script];
    for _ in 0..TIMES / AT_ONCE {
        let runs: Vec<_> = (0..AT_ONCE).map(|_| instance.start(words)).collect();
        for run in runs {
            let outcome = run.wait(PATIENCE).status_is(0);
            let record = outcome.within(Duration::from_secs(10)).json();
            assert_eq!(reason(&record), "completed");
            assert_eq!(record["stdout"]["written"], 5, "{record:#}");
            assert_clean(&record);
        }
    }
    let left = with_word(&seconds);
    assert!(left.is_empty(), "left on the host: {left:?}");
    assert_nothing_left(&instance);
}

/// The control: outside the pipe stays open and the orphan is given another parent.
#[test]
fn p30_control_outside_the_orphan_holds_the_pipe() {
    if !need("p30_control_outside", &[Need::Program("setsid")]) {
        return;
    }
    let seconds = format!("31{:05}", std::process::id() % 100_000);
    let mut child = Command::new("sh")
        .args(["-c", &script(&seconds)])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdout.take().unwrap();
    let (done, ended) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        done.send(text).ok();
    });
    assert!(child.wait().unwrap().success());
    let orphan = until("the orphan outside", PATIENCE, || {
        let found = with_word(&seconds);
        let sleeps = |pid: &i32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.starts_with(b"sleep\0")
        };
        found.into_iter().find(sleeps)
    });
    let held = ended.recv_timeout(Duration::from_millis(500)).is_err();
    let status = fs::read_to_string(format!("/proc/{orphan}/status")).unwrap_or_default();
    kill_process(Pid::from_raw(orphan).unwrap(), Signal::KILL).unwrap();
    reader.join().unwrap();
    assert!(held, "nobody held the pipe");
    let child = format!("PPid:\t{}\n", child.id());
    assert!(!status.contains(&child), "{status}");
}
