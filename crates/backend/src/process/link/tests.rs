//! The connection against a supervisor played by the test: callers that go away, descriptors that have no numbers.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream as Blocking};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::spec::ExecSpec;
use leasehold_protocol::socket::FrameReader;
use leasehold_protocol::supervisor::{Notice, Target, VERSION};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

const SOON: Duration = Duration::from_secs(10);
/// More than a socket takes while nobody reads.
const LARGE: usize = 2 << 20;

/// The supervisor's side.
struct Peer {
    socket: Blocking,
    reader: FrameReader,
}

impl Peer {
    fn greeted(listener: &UnixListener) -> Self {
        let (socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        let reader = FrameReader::new();
        let mut peer = Self { socket, reader };
        let (version, pid) = (VERSION, std::process::id());
        let call = peer.call();
        peer.say(call.tag, Event::Hello { version, pid }, &[]);
        peer
    }

    fn call(&mut self) -> Call {
        loop {
            let taken = self.reader.take().expect("a whole frame");
            if let Some((call, _)) = taken {
                return call;
            }
            assert!(self.reader.fill(&self.socket).unwrap(), "it is closed");
        }
    }

    fn say(&self, tag: u64, event: Event, fds: &[BorrowedFd<'_>]) {
        let frame = encode_frame(&Notice { tag, event }).unwrap();
        let sent = send_with_fds(&self.socket, &frame, fds).unwrap();
        assert_eq!(sent, frame.len());
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("leasehold-link-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn endpoint(folder: &Path) -> Endpoint {
    Endpoint::new(folder.to_owned(), folder.to_owned(), "/nowhere".into())
}

fn large(run: u8) -> Request {
    let exec = ExecSpec::command(["x".repeat(LARGE)]);
    let sandbox = SandboxId::from_entropy(&[run; 13]);
    Request::run(
        RunId::from_entropy(&[run; 13]),
        Target::Parked(sandbox),
        exec,
    )
}

#[tokio::test]
async fn a_caller_that_goes_away_in_the_middle_of_its_frame_breaks_nothing() {
    let folder = folder("half");
    let listener = UnixListener::bind(endpoint(&folder).socket()).unwrap();
    let (go, going) = mpsc::channel::<()>();
    let peer = std::thread::spawn(move || {
        let mut peer = Peer::greeted(&listener);
        // Nothing is read until the first caller has gone.
        going.recv_timeout(SOON).unwrap();
        let (first, second) = (peer.call(), peer.call());
        peer.say(second.tag, Event::Done, &[]);
        let third = peer.call();
        peer.say(third.tag, Event::Done, &[]);
        // It is there until the test has looked.
        going.recv_timeout(SOON).unwrap();
        [first.request, second.request, third.request]
    });
    let link = Link::open(endpoint(&folder)).await.unwrap();
    let half = link.call(large(1), &[]);
    let half = tokio::time::timeout(Duration::from_millis(200), half).await;
    assert!(half.is_err(), "it was sent whole: nothing is shown");
    let sent = link.sending.lock().await.sent;
    assert!((1..LARGE).contains(&sent), "{sent} bytes were sent");
    // One that is dropped before its first byte leaves nothing behind.
    let never = link.call(large(2), &[]);
    let never = tokio::time::timeout(Duration::from_millis(50), never).await;
    assert!(never.is_err());
    go.send(()).unwrap();
    for _ in 0..2 {
        let (event, _) = link.ask(Request::Status, &[], SOON).await.unwrap();
        assert_eq!(event, Event::Done);
    }
    assert!(!link.over());
    go.send(()).unwrap();
    let heard = peer.join().unwrap();
    assert_eq!(heard, [large(1), Request::Status, Request::Status]);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Sets how many descriptors this process may have; gives what it was.
fn allow(current: u64) -> u64 {
    let found = getrlimit(Resource::Nofile);
    let now = Rlimit {
        current: Some(current),
        ..found
    };
    setrlimit(Resource::Nofile, now).unwrap();
    found.current.unwrap_or(65_536)
}

#[tokio::test]
async fn descriptors_without_numbers_cost_their_call_and_not_the_connection() {
    // It cuts the bound of its process, and so has one of its own.
    if std::env::var_os("ALONE").is_none() {
        let name = "process::link::tests::descriptors_without_numbers_cost_their_call_and_not_the_connection";
        let mut own = std::process::Command::new(std::env::current_exe().unwrap());
        own.args(["--exact", "--nocapture", name]).env("ALONE", "1");
        let done = own.output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let folder = folder("cut");
    let listener = UnixListener::bind(endpoint(&folder).socket()).unwrap();
    let (go, going) = mpsc::channel::<()>();
    let peer = std::thread::spawn(move || {
        let mut peer = Peer::greeted(&listener);
        for _ in 0..2 {
            let (call, other) = (peer.call(), peer.call());
            let accepted = Event::Accepted {
                run: RunId::from_entropy(&[1; 13]),
                sandbox: SandboxId::from_entropy(&[1; 13]),
                input: false,
                warm: false,
            };
            let fds = [peer.socket.as_fd(), peer.socket.as_fd()];
            peer.say(call.tag, accepted, &fds);
            peer.say(other.tag, Event::Done, &[]);
        }
        going.recv_timeout(SOON).unwrap();
    });
    let link = Link::open(endpoint(&folder)).await.unwrap();
    for few in [true, false] {
        let mut call = link
            .call(
                Request::Attach {
                    run: RunId::from_entropy(&[1; 13]),
                },
                &[],
            )
            .await
            .unwrap();
        // There is one number for the two that come.
        let spare = link.stream.as_fd().try_clone_to_owned().unwrap();
        let number = u64::try_from(rustix::fd::AsRawFd::as_raw_fd(&spare)).unwrap();
        let before = few.then(|| allow(number + 1));
        drop(spare);
        let mut other = link.call(Request::Stop, &[]).await.unwrap();
        let heard = call.next().await;
        let (event, _) = other.next().await.unwrap();
        before.map(allow);
        assert_eq!(event, Event::Done);
        match heard {
            Ok((Event::Accepted { .. }, fds)) => assert_eq!((few, fds.len()), (false, 2)),
            Err(ClientError::NoDescriptors) => assert!(few),
            other => panic!("{other:?}"),
        }
    }
    assert!(!link.over());
    go.send(()).unwrap();
    peer.join().unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}
