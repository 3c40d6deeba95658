//! Many callers at one time: those that say nothing, those that are idle, and those that wait.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leasehold_core::spec::SandboxSpec;
use leasehold_core::stage::Stage;
use leasehold_protocol::supervisor::{Event, Request, Target};

use crate::harness::{Client, Supervisor, eventually, shell};

/// Most connections of one supervisor.
const MOST: usize = 512;
/// The variable that makes this program a crowd of callers: their socket.
const CROWD: &str = "LEASEHOLD_TEST_CROWD";

fn served(client: &mut Client) -> bool {
    matches!(client.ask(Request::Status).0, Event::Status { .. })
}

/// Whether the other side has closed it.
fn closed(mut socket: &UnixStream) -> bool {
    socket.set_nonblocking(true).unwrap();
    matches!(socket.read(&mut [0; 8]), Ok(0))
}

/// A process that takes all the room that two others leave, and says hello everywhere. It tells when it
/// is done, wants one more when it is told to, and ends with its standard input.
struct Crowd(Child);

impl Crowd {
    fn gather(supervisor: &Supervisor) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "callers::crowd", "--nocapture"])
            .env(CROWD, supervisor.paths.socket())
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut crowd = Self(child);
        crowd.says(b"here\n");
        crowd
    }

    fn wants_one_more(&mut self) {
        let stdin = self.0.stdin.as_mut().unwrap();
        stdin.write_all(b"!").unwrap();
        self.says(b"gone\n");
    }

    fn says(&mut self, expected: &[u8; 5]) {
        let mut word = [0; 5];
        let stderr = self.0.stderr.as_mut().unwrap();
        stderr.read_exact(&mut word).unwrap();
        assert_eq!(&word, expected);
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// No test of anything unless it is started as a crowd.
#[test]
fn crowd() {
    let Some(socket) = std::env::var_os(CROWD) else {
        return;
    };
    let all: Vec<Client> = (2..MOST)
        .map(|_| Client::connect(std::path::Path::new(&socket)))
        .collect();
    eprintln!("here");
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let more = UnixStream::connect(&socket).unwrap();
    eventually("it is refused", || closed(&more));
    eprintln!("gone");
    let _ = std::io::stdin().read(&mut [0]);
    drop(all);
}

#[test]
fn callers_that_say_nothing_lock_nobody_out_and_are_let_go() {
    let Some(supervisor) = Supervisor::start("callers-silent") else {
        return;
    };
    let mut before = supervisor.connect();
    let begun = Instant::now();
    let silent: Vec<UnixStream> = (0..MOST - 1)
        .map(|_| UnixStream::connect(supervisor.paths.socket()).unwrap())
        .collect();
    eventually("all are let in", || supervisor.descriptors() > MOST);
    assert!(!silent.iter().any(closed));
    std::thread::sleep(Duration::from_millis(1_200));
    // Before the bound: the table is full, and the next one is served at once.
    let mut next = supervisor.connect();
    assert!(served(&mut next) && begun.elapsed() < Duration::from_secs(4));
    assert_eq!(silent.iter().filter(|one| closed(one)).count(), 1);
    eventually("all are let go", || silent.iter().all(closed));
    let took = begun.elapsed();
    assert!(
        took > Duration::from_secs(4) && took < Duration::from_secs(9),
        "{took:?}"
    );
    assert!(served(&mut before) && served(&mut next));
}

#[test]
fn a_crowd_of_idle_callers_costs_the_crowd() {
    let Some(supervisor) = Supervisor::start("callers-idle") else {
        return;
    };
    let mut old = supervisor.connect();
    let mut follower = supervisor.connect();
    let target = Target::New(SandboxSpec::default());
    follower.start(1, target, shell("sleep 1000"), &[]);
    while !matches!(follower.next().unwrap().0.event, Event::Stage(t) if t.stage == Stage::Inject) {
    }
    std::thread::sleep(Duration::from_millis(1_200));
    let mut crowd = Crowd::gather(&supervisor);
    // The old one is idle for longest, and none of the crowd's business.
    crowd.wants_one_more();
    assert!(served(&mut old));
    std::thread::sleep(Duration::from_millis(1_200));
    let mut kept = Vec::new();
    for _ in 0..20 {
        let mut next = supervisor.connect();
        assert!(served(&mut next));
        kept.push(next);
    }
    assert!(served(&mut old), "the long-lived one was let go");
    drop(crowd);
    assert!(served(&mut old) && served(&mut follower));
}
