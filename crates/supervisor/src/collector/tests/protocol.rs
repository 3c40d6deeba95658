//! A collector that was taken over by what it read, played by the test.

use std::process::{Child, Command};

use leasehold_protocol::socket::recv_with_fds;
use rustix::net::{SendFlags, send};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::*;

/// Our side of a collection, and the other end of its socket.
fn taken_over(tree: &Tree) -> (Collector, OwnedFd, Child) {
    let child = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let collector = Collector {
        pidfd: pidfd_open(pid, PidfdFlags::empty()).unwrap(),
        socket: ours,
        staging: directory(&tree.path("staging")),
        globs: vec!["*".to_owned()],
        bounds: CollectBounds {
            files: 2,
            total_bytes: 10,
            ..CollectBounds::default()
        },
        deadline: Instant::now() + Duration::from_secs(20),
        artifacts: Vec::new(),
        record_bytes: 0,
        total: 0,
        files: 0,
        open: None,
        end: None,
        reaped: false,
    };
    (collector, theirs, child)
}

fn row(fate: Fate, bytes: u64, path: &str) -> Vec<u8> {
    Message::Row {
        fate,
        bytes,
        sha256: [0; 32],
        path: path.into(),
    }
    .encode()
}

fn say(socket: &OwnedFd, bytes: &[u8]) {
    send(socket, bytes, SendFlags::NOSIGNAL).unwrap();
}

fn refused(messages: &[Vec<u8>]) -> CollectError {
    let tree = Tree::new("collect-taken-over");
    let (mut collector, socket, mut child) = taken_over(&tree);
    for message in messages {
        say(&socket, message);
    }
    let error = collector.advance().unwrap_err();
    assert!(collector.advance().is_ok_and(|over| over));
    drop(collector);
    assert!(tree.staged_names().is_empty(), "a useless copy was left");
    // It was killed and reaped: nobody is left to wait for.
    assert!(child.wait().is_err());
    error
}

#[test]
fn lies_end_the_collection() {
    let want = Message::Want.encode();
    let cases = [
        vec![vec![0xff; 8]],
        vec![vec![0; MESSAGE_MAX + 1]],
        vec![want.clone(), want.clone()],
        vec![row(Fate::Taken, 0, "a")],
        vec![want.clone(), row(Fate::Taken, 5, "a")],
        vec![want.clone(), row(Fate::Taken, 0, "../a")],
        vec![want, row(Fate::Taken, 0, "/etc/cron.d/a")],
    ];
    for messages in cases {
        let error = refused(&messages);
        assert!(matches!(error, CollectError::Protocol(_)), "{error}");
    }
}

#[test]
fn no_more_copies_than_may_be() {
    let tree = Tree::new("collect-greedy");
    let (mut collector, socket, mut child) = taken_over(&tree);
    let mut answers = Vec::new();
    for at in 0..3 {
        say(&socket, &Message::Want.encode());
        assert!(!collector.advance().unwrap());
        let (mut answer, mut fds) = ([9], Vec::new());
        recv_with_fds(&socket, &mut answer, &mut fds).unwrap();
        answers.push((answer[0], fds.len()));
        let fate = if at < 2 { Fate::Taken } else { Fate::Limit };
        say(&socket, &row(fate, 0, "a"));
        assert!(!collector.advance().unwrap());
    }
    assert_eq!(answers, [(TAKE, 1), (TAKE, 1), (NO_MORE, 0)]);
    drop(collector);
    assert!(child.wait().is_err());
}

#[test]
fn a_sudden_death_keeps_what_was_collected() {
    let tree = Tree::new("collect-death");
    let (mut collector, socket, mut child) = taken_over(&tree);
    say(&socket, &Message::Want.encode());
    assert!(!collector.advance().unwrap());
    say(&socket, &row(Fate::Taken, 0, "a"));
    say(&socket, &Message::Want.encode());
    assert!(!collector.advance().unwrap());
    drop(socket);
    let collected = collector.finish().unwrap();
    assert_eq!(collected.cut, Some(Cut::Died));
    assert_eq!(rows(&collected.artifacts), [("a", "taken"), (".", "limit")]);
    assert_eq!(tree.staged_names(), ["0001"]);
    assert!(child.wait().is_err());
}
