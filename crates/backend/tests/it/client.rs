//! The blocking client against a supervisor played by the test.

use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use leasehold_backend::process::client::{Client, ClientError};
use leasehold_backend::process::start::{self, Endpoint, RUN_DIR_VAR};
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::stage::{Stage, StageTime};
use leasehold_protocol::socket::{FrameReader, encode_frame, send_with_fds};
use leasehold_protocol::supervisor::{Call, Event, Notice, Request, VERSION};

use crate::scratch::Scratch;

const SOON: Duration = Duration::from_secs(10);

/// One connection seen from the supervisor's side.
struct Peer {
    socket: UnixStream,
    reader: FrameReader,
}

impl Peer {
    fn accept(listener: &UnixListener) -> Self {
        let (socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        Self {
            socket,
            reader: FrameReader::new(),
        }
    }

    fn call(&mut self) -> Option<Call> {
        loop {
            if let Some((call, _)) = self.reader.take().unwrap() {
                return Some(call);
            }
            if !self.reader.fill(&self.socket).unwrap() {
                return None;
            }
        }
    }

    fn say(&self, tag: u64, event: Event, fds: &[&OwnedFd]) {
        let frame = encode_frame(&Notice { tag, event }).unwrap();
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        assert_eq!(
            send_with_fds(&self.socket, &frame, &fds).unwrap(),
            frame.len()
        );
    }

    fn greet(&mut self, version: u32) {
        let call = self.call().unwrap();
        assert_eq!(call.request, Request::Hello { version: VERSION });
        let pid = std::process::id();
        self.say(call.tag, Event::Hello { version, pid }, &[]);
    }
}

fn endpoint(dir: &Path) -> Endpoint {
    let path = dir.to_owned();
    Endpoint::new(path.clone(), path, PathBuf::from("/nowhere"))
}

fn shell(dir: &Path, script: &str) -> Endpoint {
    let exe = std::env::current_exe().unwrap();
    Endpoint {
        program: PathBuf::from("/bin/sh"),
        args: ["-c", script, exe.to_str().unwrap()]
            .map(str::to_owned)
            .to_vec(),
        ..endpoint(dir)
    }
}

fn play(dir: &Path, part: impl FnOnce(UnixListener) + Send + 'static) -> JoinHandle<()> {
    let listener = UnixListener::bind(endpoint(dir).socket()).unwrap();
    std::thread::spawn(move || part(listener))
}

fn file_with(text: &str, dir: &Path, name: &str) -> OwnedFd {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::File::open(path).unwrap().into()
}

#[test]
fn nobody_there_is_told_as_such() {
    let dir = Scratch::new();
    let error = Client::connect(&endpoint(dir.path())).unwrap_err();
    assert!(matches!(error, ClientError::Absent { .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[test]
fn another_version_is_refused() {
    let dir = Scratch::new();
    let peer = play(dir.path(), |listener| {
        Peer::accept(&listener).greet(VERSION + 1);
    });
    let error = Client::connect(&endpoint(dir.path())).unwrap_err();
    assert!(matches!(error, ClientError::Version { theirs } if theirs == VERSION + 1));
    assert!(error.hint().unwrap().contains("leasehold stop"));
    peer.join().unwrap();
}

#[test]
fn a_refusal_keeps_its_kind_and_hint() {
    let dir = Scratch::new();
    let peer = play(dir.path(), |listener| {
        let mut peer = Peer::accept(&listener);
        peer.greet(VERSION);
        let call = peer.call().unwrap();
        let error = PublicError::new(ErrorKind::WrongState, "not now").hint("later");
        peer.say(call.tag, Event::Refused(error), &[]);
        assert!(peer.call().is_none());
    });
    let mut client = Client::connect(&endpoint(dir.path())).unwrap();
    assert_eq!(client.supervisor_pid(), std::process::id());
    let error = client.ask(Request::Status, &[], SOON).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongState);
    assert_eq!(error.hint().as_deref(), Some("later"));
    drop(client);
    peer.join().unwrap();
}

/// A read gives an earlier notice without descriptors and the first bytes of a later one with
/// them in one piece; the earlier one must not get them.
#[test]
fn descriptors_reach_the_notice_they_belong_to() {
    let dir = Scratch::new();
    let (tell, told) = std::sync::mpsc::channel();
    let folder = dir.path().to_owned();
    let peer = play(dir.path(), move |listener| {
        let mut peer = Peer::accept(&listener);
        peer.greet(VERSION);
        let stage = StageTime {
            stage: Stage::Allocate,
            micros: 7,
        };
        let out = file_with("out", &folder, "out");
        let err = file_with("err", &folder, "err");
        let accepted = Event::Accepted {
            run: RunId::from_entropy(&[1; 13]),
            sandbox: SandboxId::from_entropy(&[1; 13]),
            input: false,
            warm: false,
        };
        peer.say(8, Event::Stage(stage), &[]);
        peer.say(9, accepted, &[&out, &err]);
        peer.say(8, Event::Done, &[]);
        tell.send(()).unwrap();
    });
    let mut client = Client::connect(&endpoint(dir.path())).unwrap();
    told.recv_timeout(SOON).unwrap();
    let mut counts = Vec::new();
    for _ in 0..3 {
        let deadline = Some(Instant::now() + SOON);
        let (notice, fds) = client.next_notice(deadline).unwrap().unwrap();
        counts.push((notice.tag, fds.len()));
        for (fd, want) in fds.into_iter().zip(["out", "err"]) {
            let mut file = std::fs::File::from(fd);
            let mut text = String::new();
            file.rewind().unwrap();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, want);
        }
    }
    assert_eq!(counts, [(8, 0), (9, 2), (8, 0)]);
    peer.join().unwrap();
}

#[test]
fn a_deadline_passes_and_an_end_is_seen() {
    let dir = Scratch::new();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let peer = play(dir.path(), move |listener| {
        let mut peer = Peer::accept(&listener);
        peer.greet(VERSION);
        let _ = ended.recv_timeout(SOON);
    });
    let mut client = Client::connect(&endpoint(dir.path())).unwrap();
    assert!(client.next_notice(Some(Instant::now())).unwrap().is_none());
    end.send(()).unwrap();
    let error = client.next_notice(Some(Instant::now() + SOON)).unwrap_err();
    assert!(matches!(error, ClientError::Gone), "{error}");
    peer.join().unwrap();
}

#[test]
fn a_supervisor_that_ends_is_quoted() {
    let dir = Scratch::new();
    let endpoint = shell(dir.path(), "echo no such cgroup >&2; exit 3");
    let error = Client::connect_or_start(&endpoint).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("no such cgroup") && text.contains('3'),
        "{text}"
    );
}

#[test]
fn a_supervisor_that_never_listens_is_given_up_and_ended() {
    let dir = Scratch::new();
    let endpoint = Endpoint {
        patience: Duration::from_millis(200),
        ..shell(
            dir.path(),
            "echo $$ > \"$LEASEHOLD_RUN_DIR/pid\"; exec sleep 60",
        )
    };
    let error = Client::connect_or_start(&endpoint).unwrap_err();
    assert!(matches!(error, ClientError::StartTimeout { .. }), "{error}");
    let pid = std::fs::read_to_string(dir.path().join("pid")).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists());
}

/// The first two leave the field to a leader that never comes; the third finds it free.
#[test]
fn a_supervisor_that_leaves_the_field_is_started_again() {
    let dir = Scratch::new();
    let script = "n=$(cat \"$LEASEHOLD_RUN_DIR/n\" 2>/dev/null); echo x$n > \"$LEASEHOLD_RUN_DIR/n\"; \
        [ \"$n\" = xx ] || exit 0; PLAY=alone exec \"$0\" --exact client::plays_the_supervisor";
    let client = Client::connect_or_start(&shell(dir.path(), script)).unwrap();
    assert!(client.started_it());
    let starts = std::fs::read_to_string(dir.path().join("n")).unwrap();
    assert_eq!(starts.trim(), "xxx");
}

/// What it has done at each moment is in its file: it reads one byte before anything else; when somebody can connect to
/// it, it is given the program of its sandboxes, and then told so.
#[test]
fn a_supervisor_that_is_begun_waits_for_a_word_and_leaves_without_one() {
    let dir = Scratch::new();
    let script = "exec 3<&1 4<&0; word=$(head -c1 <&3); echo \"<$word>\" >> \"$LEASEHOLD_RUN_DIR/words\"; \
        [ \"$word\" = g ] || exit 0; \
        (echo \"<$(head -c1 <&3)$(cat <&4)>\" >> \"$LEASEHOLD_RUN_DIR/words\") & \
        PLAY=alone exec \"$0\" --exact client::plays_the_supervisor";
    let endpoint = Endpoint {
        init: b"init",
        ..shell(dir.path(), script)
    };
    let words = || std::fs::read_to_string(dir.path().join("words")).unwrap_or_default();
    let unwanted = start::begin(&endpoint).unwrap().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(words(), "");
    drop(unwanted);
    let deadline = Instant::now() + SOON;
    while words().is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(words(), "<>\n");
    let wanted = start::begin(&endpoint).unwrap();
    assert!(wanted.is_some());
    let client = Client::connect_or_go_on(&endpoint, wanted).unwrap();
    assert!(client.started_it());
    let deadline = Instant::now() + SOON;
    while !words().contains("init") && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(words(), "<>\n<g>\n<winit>\n");
}

/// The test binary itself plays the started supervisor; see [`plays_the_supervisor`].
#[test]
fn a_supervisor_is_started_once_and_found_again() {
    let dir = Scratch::new();
    let script = "PLAY=supervisor exec \"$0\" --exact client::plays_the_supervisor --nocapture";
    let endpoint = shell(dir.path(), script);
    let mut first = Client::connect_or_start(&endpoint).unwrap();
    assert!(first.started_it());
    let mut second = Client::connect_or_start(&endpoint).unwrap();
    assert!(!second.started_it());
    assert_eq!(first.supervisor_pid(), second.supervisor_pid());
    assert!(matches!(
        second.ask(Request::Status, &[], SOON),
        Ok((Event::Status { .. }, _))
    ));
    assert!(matches!(
        first.ask(Request::Stop, &[], SOON),
        Ok((Event::Done, _))
    ));
}

/// Idle unless started by a test above: then a supervisor of one or two connections.
#[test]
fn plays_the_supervisor() {
    let Some(part) = std::env::var_os("PLAY") else {
        return;
    };
    let dir = PathBuf::from(std::env::var_os(RUN_DIR_VAR).unwrap());
    let listener = UnixListener::bind(endpoint(&dir).socket()).unwrap();
    std::io::stdout().write_all(b"\n").unwrap();
    let mut first = Peer::accept(&listener);
    first.greet(VERSION);
    if part == "alone" {
        return;
    }
    let mut second = Peer::accept(&listener);
    second.greet(VERSION);
    let call = second.call().unwrap();
    let sandboxes = Vec::new();
    second.say(call.tag, Event::Status { sandboxes }, &[]);
    let call = first.call().unwrap();
    assert_eq!(call.request, Request::Stop);
    first.say(call.tag, Event::Done, &[]);
}
