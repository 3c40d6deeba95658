//! P13: nothing can be typed into anybody's terminal, and what shows a guest's words shows them inert.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::Path;

use leasehold_e2e::{Instance, Need, need};

use crate::terminal::Session;

use super::{await_workload, everybody, helper, outside, workspace_with};

const TYPIST: &str = include_str!("../../../helpers/typist.c");

#[test]
fn p13_nothing_can_be_typed_from_inside() {
    let test = "p13_nothing_can_be_typed";
    if !need(test, &[Need::Root, Need::Program("script")]) {
        return;
    }
    let Some(program) = helper(test, "typist", TYPIST) else {
        return;
    };
    for who in everybody(test) {
        cannot_type(&Instance::of(who), &program);
    }

    // The control: root in a terminal of the same kind without a filter.
    if fs::read_to_string("/proc/sys/dev/tty/legacy_tiocsti").is_ok_and(|text| text.trim() == "0") {
        // The kernel refuses it to all but root then, as which the control runs.
        assert!(rustix::process::geteuid().is_root());
    }
    let words = [
        "script",
        "-qec",
        &program.display().to_string(),
        "/dev/null",
    ];
    let told = outside(&words, None);
    assert!(told.out().contains("0 TIOCSTI 0"), "{}", told.story());
    assert!(!told.out().contains("typed 0."), "{}", told.story());
}

/// Types in a sandbox with a terminal by every door; nothing arrives.
#[track_caller]
fn cannot_type(instance: &Instance, program: &Path) {
    let workspace = workspace_with(instance, program);
    let script = "/workspace/helper; echo done; exec sleep 60";
    let words = [
        "run",
        "-t",
        "--workspace",
        &workspace,
        "--",
        "sh",
        "-c",
        script,
    ];
    let session = Session::start(instance, &words);
    session.await_seen("done");
    let told = session.seen();
    assert!(told.contains("typed 0."), "{told}");
    for door in ["0", "1", "2", "/dev/tty"] {
        for call in ["TIOCSTI", "TIOCLINUX", "TIOCCONS", "TIOCSETD"] {
            assert!(
                told.contains(&format!("{door} {call} 1\r")),
                "{door} {call}: {told}"
            );
        }
    }
    for door in ["/dev/console", "/dev/tty0"] {
        assert!(told.contains(&format!("{door} absent")), "{told}");
    }
    // Nothing waits to be read on the terminal outside, and theirs is none of the host's.
    let waiting = rustix::io::ioctl_fionread(&session.terminal).expect("ask the terminal");
    assert_eq!(waiting, 0);
    let (_, workload) = await_workload(instance, "sleep", || session.seen());
    let theirs = fs::metadata(format!("/proc/{workload}/fd/0")).expect("its terminal");
    let hosts = fs::metadata("/dev/pts").expect("the host's terminals");
    assert_ne!(theirs.st_dev(), hosts.st_dev(), "a terminal of the host's");
}

/// What a guest prints and how it is called: sequences for the title, the clipboard, a link, a cleared
/// screen, a question to the terminal, a long string, in seven and eight bits.
const HOSTILE: &str = r"\033]0;title\007\033]52;c;Y2FuYXJ5\007\033]8;;http://evil.test\033\\link\033]8;;\033\\\033[2J\033[6n\033P+q544e\033\\\033_long\302\233c\233c\r\b\n";

/// No escape but the beginning of a colour, no bell, no control character of eight bits, in bytes.
#[track_caller]
fn inert(shown: &str) {
    let mut rest = shown;
    while let Some(at) = rest.find('\u{1b}') {
        rest = &rest[at + 1..];
        let end = rest
            .find(|c: char| !matches!(c, '[' | '0'..='9' | ';' | ':'))
            .unwrap_or(rest.len());
        assert!(
            rest.starts_with('[') && rest[end..].starts_with('m'),
            "{shown:?}"
        );
    }
    for control in ['\u{7}', '\u{8}', '\u{9b}', '\u{90}', '\u{9d}'] {
        assert!(!shown.contains(control), "{control:?} in {shown:?}");
    }
}

#[test]
fn p13_what_a_guest_wrote_is_shown_inert() {
    if !need("p13_what_a_guest_wrote", &[Need::Root]) {
        return;
    }
    let instance = Instance::new();
    let print = format!("printf '{HOSTILE}end\\n'; printf '{HOSTILE}end\\n' >&2; exit 3");
    let name = "\u{1b}]0;name\u{7}\u{1b}[2J\u{9b}31m";
    let mut live = Session::start(&instance, &["run", "--", "sh", "-c", &print, name]);
    assert_eq!(live.status(), 3, "{}", live.seen());
    live.await_seen("exit status 3");
    assert!(live.seen().contains("\\x1b]0;title"), "{:?}", live.seen());
    inert(&live.seen());

    let runs = instance.cli(["runs", "--json"]).json();
    let run = runs[0]["run"].as_str().expect("a run").to_owned();
    let views: [&[&str]; 5] = [
        &["logs", &run],
        &["logs", "--stderr", &run],
        &["show", &run],
        &["runs"],
        &["attach", &run],
    ];
    for view in views {
        let mut session = Session::start(&instance, view);
        let status = session.status();
        session.await_seen(if view[0] == "runs" { &run[..6] } else { "end" });
        assert!(status == 0 || status == 3, "{view:?}: {}", session.seen());
        inert(&session.seen());
    }
    // An error that quotes what it was given.
    let mut session = Session::start(&instance, &["show", name]);
    assert_ne!(session.status(), 0);
    session.await_seen("hint");
    inert(&session.seen());
    // The control: asked for as they are, the bytes do reach the terminal.
    let mut raw = Session::start(&instance, &["logs", "--raw", &run]);
    assert_eq!(raw.status(), 0);
    raw.await_seen("end");
    assert!(
        raw.seen().contains("\u{1b}]0;title\u{7}"),
        "{:?}",
        raw.seen()
    );
}
