//! A person's terminal: joined, resized, given back as it was, and safe from what a guest writes.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold_e2e::{Instance, Need, need, until};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

const PATIENCE: Duration = Duration::from_secs(30);

/// A terminal that a test holds the other side of, and the call in it.
pub(crate) struct Session {
    /// What the person types goes in here.
    keyboard: File,
    /// The side of the call; kept so that its settings can be looked at.
    pub(crate) terminal: OwnedFd,
    seen: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

impl Session {
    pub(crate) fn start(instance: &Instance, args: &[&str]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("open a terminal");
        grantpt(&master).expect("grant it");
        unlockpt(&master).expect("unlock it");
        let name = ptsname(&master, Vec::new()).expect("name it");
        let terminal = OwnedFd::from(
            File::options()
                .read(true)
                .write(true)
                .open(name.to_str().expect("text"))
                .expect("open the other side"),
        );
        size(&terminal, 33, 101);
        let side = || Stdio::from(terminal.try_clone().expect("copy"));
        let child = instance
            .command(args)
            .stdin(side())
            .stdout(side())
            .stderr(side())
            .spawn()
            .expect("start it");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let screen = File::from(master.try_clone().expect("copy"));
        let into = Arc::clone(&seen);
        std::thread::spawn(move || read_all(screen, &into));
        Self {
            keyboard: File::from(master),
            terminal,
            seen,
            child,
        }
    }

    pub(crate) fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().expect("lock")).into_owned()
    }

    #[track_caller]
    pub(crate) fn await_seen(&self, text: &str) {
        until(&format!("`{text}` on the terminal"), PATIENCE, || {
            self.seen().contains(text).then_some(())
        });
    }

    pub(crate) fn type_in(&mut self, text: &[u8]) {
        self.keyboard.write_all(text).expect("type");
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("pid")).expect("pid");
        kill_process(pid, signal).expect("signal");
    }

    /// Whether the terminal is in the mode a person types a line in.
    fn in_line_mode(&self) -> bool {
        let settings = tcgetattr(&self.terminal).expect("settings");
        let line = LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        settings.local_modes.contains(line)
    }

    #[track_caller]
    pub(crate) fn status(&mut self) -> i32 {
        let status = until("the end of the call", PATIENCE, || {
            self.child.try_wait().expect("wait")
        });
        status.code().expect("a status")
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn size(terminal: &OwnedFd, ws_row: u16, ws_col: u16) {
    let size = Winsize {
        ws_row,
        ws_col,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size).expect("set the size");
}

fn read_all(mut screen: File, into: &Mutex<Vec<u8>>) {
    let mut piece = [0; 4096];
    while let Ok(got) = screen.read(&mut piece) {
        if got == 0 {
            return;
        }
        into.lock().expect("lock").extend_from_slice(&piece[..got]);
    }
}

#[test]
fn a_terminal_is_joined_resized_and_given_back() {
    if !need("a_terminal_is_joined_resized_and_given_back", &[Need::Root]) {
        return;
    }
    let instance = Instance::new();
    // The size is asked for again and again, since a signal may interrupt a shell's `read`.
    let script = "tty; while :; do echo size $(stty size); sleep 0.1; done";
    let mut session = Session::start(&instance, &["run", "-t", "--", "sh", "-c", script]);
    session.await_seen("/dev/pts/");
    session.await_seen("size 33 101");
    assert!(!session.in_line_mode(), "the terminal is not raw");
    size(&session.terminal, 40, 120);
    session.signal(Signal::WINCH);
    session.await_seen("size 40 120");
    // The interrupt key belongs to the command inside.
    session.type_in(b"\x03");
    assert_eq!(session.status(), 130, "{}", session.seen());
    session.await_seen("signal 2");
    assert!(session.in_line_mode(), "the terminal was not given back");
}

#[test]
fn three_escapes_end_a_session_that_ignores_everything() {
    if !need("three_escapes_end_a_session", &[Need::Root]) {
        return;
    }
    let instance = Instance::new();
    let script = "trap '' INT TERM HUP; stty raw -echo; echo ready; while :; do sleep 1; done";
    let flags = ["run", "-t", "--grace", "200ms", "--", "sh", "-c", script];
    let mut session = Session::start(&instance, &flags);
    session.await_seen("ready");
    let begun = Instant::now();
    session.type_in(b"\x1d\x1d\x1d");
    assert_eq!(session.status(), 130, "{}", session.seen());
    assert!(begun.elapsed() < PATIENCE);
    assert!(session.in_line_mode());
}

#[test]
fn the_terminal_is_given_back_when_the_call_is_ended() {
    if !need("the_terminal_is_given_back", &[Need::Root]) {
        return;
    }
    let instance = Instance::new();
    let mut session = Session::start(
        &instance,
        &["run", "-t", "--", "sh", "-c", "echo ready; sleep 60"],
    );
    session.await_seen("ready");
    assert!(!session.in_line_mode());
    session.signal(Signal::TERM);
    assert_eq!(session.status(), 130, "{}", session.seen());
    assert!(session.in_line_mode());
}

#[test]
fn a_terminal_at_standard_input_is_not_read_unless_asked() {
    if !need("a_terminal_at_standard_input", &[Need::Root]) {
        return;
    }
    let instance = Instance::new();
    let mut session = Session::start(&instance, &["run", "--", "cat"]);
    assert_eq!(session.status(), 0, "{}", session.seen());
    let mut session = Session::start(&instance, &["run", "-i", "--", "head", "-1"]);
    session.type_in(b"hello\n");
    assert_eq!(session.status(), 0, "{}", session.seen());
    assert!(
        session.seen().matches("hello").count() >= 2,
        "{}",
        session.seen()
    );
}

#[test]
fn a_guest_cannot_steer_the_terminal_it_prints_on() {
    if !need("a_guest_cannot_steer_the_terminal", &[Need::Root]) {
        return;
    }
    let instance = Instance::new();
    let script = r"printf 'a\033[2J\033]0;title\007\033[6n\033[31mred\033[0m\n'";
    let mut session = Session::start(&instance, &["run", "--", "sh", "-c", script]);
    assert_eq!(session.status(), 0);
    session.await_seen("completed");
    let seen = session.seen();
    assert!(
        seen.contains("a\\x1b[2J\\x1b]0;title\\x07\\x1b[6n\x1b[31mred\x1b[0m"),
        "{seen:?}"
    );
    // The control: a pipe gets the bytes as they are.
    let piped = instance.sh(&["-q"], script).status_is(0);
    assert!(piped.out().contains("\x1b[2J"), "{:?}", piped.out());
}

#[test]
fn a_run_with_a_terminal_can_be_taken_up_from_another_one() {
    if !need("a_run_with_a_terminal_can_be_taken_up", &[Need::Root]) {
        return;
    }
    let instance = Instance::new();
    let script = "echo ready; read word; echo got $word; exit 7";
    let mut first = Session::start(&instance, &["run", "-t", "--", "sh", "-c", script]);
    first.await_seen("ready");
    first.signal(Signal::KILL);
    first.child.wait().expect("wait");
    let runs = instance.cli(["runs", "--json"]).json();
    let run = runs[0]["run"].as_str().expect("a run").to_owned();
    let mut second = Session::start(&instance, &["attach", &run[..10]]);
    second.await_seen("ready");
    second.type_in(b"word\r");
    second.await_seen("got word");
    assert_eq!(second.status(), 7, "{}", second.seen());
    assert!(second.in_line_mode());
}
