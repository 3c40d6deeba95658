//! A host that is played by the test, and misbehaves.

use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold_core::contract::HostPosture;
use leasehold_core::digest::Digest;
use leasehold_core::end::{CancelledBy, ExitStatus, LimitHit};
use leasehold_core::id::SandboxId;
use leasehold_core::limits::Resource;
use leasehold_core::record::RunRecord;
use leasehold_protocol::socket::send_with_fds;
use leasehold_protocol::wasm::{
    Flavour, HEAD_LEN, Kind, RunLimits, STDIN_WINDOW, Start, ToHost, body, frame,
};
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc};

use super::super::out::Out;
use super::super::{Got, HostBounds, read_once};
use super::*;
use crate::execution::{EVENTS_MAX, EventSender, Events};
use crate::wasm::code::Code;
use crate::wasm::room::Room;
use crate::wasm::run::tests::{contract, record, run};
use crate::wasm::runs::Runs;
use crate::wasm::sealed;
use crate::wasm::testing::Folder;

const PATIENCE: Duration = Duration::from_secs(20);

/// The other end of a host's socket, played by the test.
struct Pretender {
    host: Arc<Host>,
    theirs: UnixStream,
    reader: Reader,
    frames: VecDeque<Frame>,
    ended: Arc<AtomicBool>,
    events: EventSender,
    task: tokio::task::JoinHandle<()>,
    code: Arc<Code>,
    room: Arc<Room>,
    next: u8,
    _folder: Folder,
}

/// Tells what the supervisor would, once it is asked to end the host.
struct Hold(Arc<AtomicBool>, EventSender, Option<EndReason>);

fn gone_record(end: Option<EndReason>) -> Box<RunRecord> {
    let id = RunId::from_entropy(&[7; 13]);
    Box::new(RunRecord {
        end,
        cleanup: Some(set_back()),
        ..RunRecord::accepted(id, SandboxId::from_entropy(&[8; 13]), 0)
    })
}

impl Grip for Hold {
    fn end(&self) -> Doing<'_, Result<(), BackendError>> {
        self.0.store(true, Ordering::SeqCst);
        let record = gone_record(self.2.clone());
        let _ = self.1.try_send(Ok(RunEvent::Ended(record.clone())));
        let _ = self.1.try_send(Ok(RunEvent::Cleaned(record)));
        Box::pin(std::future::ready(Ok(())))
    }
}

fn bounds() -> HostBounds {
    HostBounds {
        runs: 1_000,
        runs_at_once: 64,
        memory_bytes: 64 << 30,
        idle: Duration::from_secs(600),
        slack: Duration::from_secs(600),
    }
}

impl Pretender {
    fn new(bounds: HostBounds) -> Self {
        Self::ending(bounds, Some(EndReason::Completed))
    }

    fn ending(bounds: HostBounds, end: Option<EndReason>) -> Self {
        let folder = Folder::new("pretender");
        let (ours, theirs) = UnixStream::pair().unwrap();
        let common = Arc::new(Common {
            bounds,
            runs: Arc::new(Runs::new(folder.path().join("runs"), 10)),
            freed: Notify::new(),
        });
        let host = Arc::new(Host {
            sandbox: SandboxId::from_entropy(&[3; 13]),
            contract: contract(),
            posture: HostPosture {
                program: Digest::ZERO,
                engine: String::new(),
                seccomp_sha256: String::new(),
                places: Vec::new(),
            },
            socket: ours,
            out: Mutex::new(Out::default()),
            books: Mutex::new(Books::new(bounds.memory_bytes, bounds.runs_at_once)),
            more: Notify::new(),
            common,
        });
        let (events, heard) = mpsc::channel(EVENTS_MAX);
        let spool = || sealed::copy("test", &mut &b""[..], 0).unwrap().file;
        let execution = Execution::new(
            RunId::from_entropy(&[7; 13]),
            host.sandbox.clone(),
            [spool(), spool()],
            None,
            Events::Channel(heard),
        );
        let ended = Arc::new(AtomicBool::new(false));
        let grip = Hold(Arc::clone(&ended), events.clone(), end);
        let driving = drive(
            Arc::clone(&host),
            Reader::new(false),
            execution,
            Box::new(grip),
        );
        Self {
            task: tokio::spawn(driving),
            host,
            theirs,
            reader: Reader::new(true),
            frames: VecDeque::new(),
            ended,
            events,
            code: Arc::new(Code {
                kind: Kind::Core,
                flavour: Flavour::Plain,
                sealed: sealed::copy("test", &mut &b"code"[..], 10).unwrap(),
            }),
            room: Room::of(1 << 20),
            next: 1,
            _folder: folder,
        }
    }

    /// Starts a run with this wall limit and input; gives its number too.
    fn start(&mut self, wall_ms: u64, input: Option<&[u8]>) -> (u32, Arc<SharedRun>) {
        let limits = RunLimits {
            wall_ms,
            output_bytes: 100,
            ..RunLimits::default()
        };
        let run = Arc::new(run(limits.clone(), &self.room));
        let seat = self.host.take(&self.code, 1 << 20).unwrap();
        let number = seat.number();
        let mut start = Start {
            module: 0,
            argv: vec!["guest".to_owned()],
            env: Vec::new(),
            stdin: false,
            preopens: Vec::new(),
            limits,
            determinism: None,
        };
        let frames = seat.frames(&mut start, input).unwrap();
        let id = RunId::from_entropy(&[self.next; 13]);
        self.next += 1;
        let wall = Duration::from_millis(wall_ms);
        seat.begin(id, &run, frames, input.map(Into::into), wall);
        (number, run)
    }

    /// The next frame that the owner sent.
    async fn frame(&mut self) -> Frame {
        let reading = async {
            loop {
                if let Some(frame) = self.frames.pop_front() {
                    return frame;
                }
                self.theirs.readable().await.unwrap();
                if let Got::End = read_once(&self.theirs, &mut self.reader).unwrap() {
                    panic!("the owner is gone");
                }
                while let Some(frame) = self.reader.take().unwrap() {
                    self.frames.push_back(frame);
                }
            }
        };
        tokio::time::timeout(PATIENCE, reading).await.unwrap()
    }

    async fn expect(&mut self, kind: ToHost) -> Frame {
        let frame = self.frame().await;
        assert_eq!(ToHost::of(frame.kind), Some(kind));
        frame
    }

    async fn say(&self, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            self.theirs.writable().await.unwrap();
            match self.theirs.try_write(&bytes[at..]) {
                Ok(count) => at += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                // It was ended already.
                Err(_) => return,
            }
        }
    }

    async fn tell(&self, kind: FromHost, number: u32, bytes: &[u8]) {
        self.say(&frame(kind as u8, 0, number, bytes).unwrap())
            .await;
    }

    async fn report(&self, number: u32, report: &Report) {
        self.tell(FromHost::Ended, number, &body(report).unwrap())
            .await;
    }

    /// Waits until the host was ended and seen gone.
    async fn over(self) {
        tokio::time::timeout(PATIENCE, self.task)
            .await
            .unwrap()
            .unwrap();
        assert!(self.ended.load(Ordering::SeqCst));
    }
}

fn exited() -> Report {
    Report {
        exit: Some(ExitStatus::Exit { code: 0 }),
        ..Report::default()
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, waiting).await;
    waited.unwrap_or_else(|_| panic!("{what}"));
}

fn diagnostics(run: &SharedRun) -> String {
    match record(run).end {
        Some(EndReason::SandboxCrashed { diagnostics }) => diagnostics,
        end => panic!("{end:?}"),
    }
}

#[tokio::test]
async fn a_run_comes_to_its_end_and_leaves_its_place() {
    let mut owner = Pretender::new(bounds());
    let (number, run) = owner.start(60_000, None);
    let load = owner.expect(ToHost::Load).await;
    assert_eq!(load.fds.len(), 1, "the code comes along");
    let start = owner.expect(ToHost::Start).await;
    let start: Start = start.read().unwrap();
    assert_eq!((start.module, start.stdin), (load.id, false));
    owner.tell(FromHost::Loaded, load.id, b"").await;
    owner.tell(FromHost::Stdout, number, b"out").await;
    owner.tell(FromHost::Stderr, number, b"err").await;
    owner.report(number, &exited()).await;
    until("it did not end", || run.over()).await;
    let record = record(&run);
    assert_eq!(record.end, Some(EndReason::Completed));
    assert_eq!((record.stdout.kept, record.stderr.kept), (3, 3));
    assert!(record.cleanup.unwrap().clean());
    assert_eq!(owner.host.standing().runs, 0);
    // The module is there now.
    let (_, _) = owner.start(60_000, None);
    owner.expect(ToHost::Start).await;
    assert!(!owner.ended.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_host_that_says_what_it_cannot_know_is_ended_with_its_runs() {
    let end = |number, report: &str| frame(FromHost::Ended as u8, 0, number, report.as_bytes());
    let mut long = vec![0; HEAD_LEN];
    long[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let loaded = frame(2, 0, 1 << 31, b"").unwrap();
    let refused = frame(3, 0, 1 << 31, br#"{"message":"no"}"#).unwrap();
    let cases: [(&str, Vec<u8>, &str); 15] = [
        ("kind", frame(99, 0, 0, b"").unwrap(), "kind 99"),
        (
            "ready again",
            frame(1, 0, 0, b"{}").unwrap(),
            "not asked for",
        ),
        (
            "loaded a run",
            frame(2, 0, 0, b"").unwrap(),
            "not asked for",
        ),
        (
            "stranger's output",
            frame(4, 0, 77, b"x").unwrap(),
            "run 77",
        ),
        ("stranger's end", end(77, "{}").unwrap(), "run 77"),
        ("no report", end(0, "[").unwrap(), "not a known message"),
        (
            "much output",
            frame(4, 0, 0, &[0; 101]).unwrap(),
            "100 bytes",
        ),
        (
            "took too much",
            frame(6, 0, 0, &9u32.to_le_bytes()).unwrap(),
            "run 0",
        ),
        ("loaded twice", loaded.repeat(2), "not asked for"),
        ("refused twice", refused.repeat(2), "was not sent"),
        ("says nothing", frame(4, 0, 0, b"").unwrap(), "no output"),
        (
            "took nothing",
            frame(6, 0, 0, &0u32.to_le_bytes()).unwrap(),
            "no input",
        ),
        ("no count", frame(6, 0, 0, b"abc").unwrap(), "3 bytes"),
        ("too long", long, "most is"),
        ("promises", frame(4, 1, 0, b"").unwrap(), "descriptors"),
    ];
    for (name, bytes, words) in cases {
        let mut owner = Pretender::new(bounds());
        let (first, one) = owner.start(60_000, None);
        let (_, other) = owner.start(60_000, None);
        assert_eq!(first, 0);
        owner.say(&bytes).await;
        owner.over().await;
        let said = diagnostics(&one);
        assert!(
            said.contains("broke the protocol") && said.contains(words),
            "{name}: {said}"
        );
        assert_eq!(diagnostics(&other), said);
        assert!(record(&one).cleanup.unwrap().clean());
    }
}

#[tokio::test]
async fn descriptors_of_a_host_are_not_taken() {
    let mut owner = Pretender::new(bounds());
    let (number, run) = owner.start(60_000, None);
    let bytes = frame(FromHost::Stdout as u8, 1, number, b"x").unwrap();
    owner.theirs.writable().await.unwrap();
    send_with_fds(&owner.theirs, &bytes, &[owner.theirs.as_fd()]).unwrap();
    owner.over().await;
    assert!(diagnostics(&run).contains("descriptors"));
}

#[tokio::test]
async fn a_host_that_keeps_silent_is_ended_and_its_run_has_timed_out() {
    let mut owner = Pretender::new(HostBounds {
        slack: Duration::from_millis(300),
        ..bounds()
    });
    let (_, late) = owner.start(50, None);
    let (_, beside) = owner.start(60_000, None);
    owner.over().await;
    assert_eq!(record(&late).end, Some(EndReason::Timeout { limit_ms: 50 }));
    assert!(diagnostics(&beside).contains("another run"));
}

#[tokio::test]
async fn an_order_that_a_host_does_not_obey_ends_it() {
    let mut owner = Pretender::new(HostBounds {
        slack: Duration::from_millis(300),
        ..bounds()
    });
    let (number, run) = owner.start(60_000, None);
    owner.expect(ToHost::Load).await;
    owner.expect(ToHost::Start).await;
    owner.host.cancel(number, &run, CancelledBy::Operator);
    assert_eq!(owner.expect(ToHost::Cancel).await.id, number);
    owner.over().await;
    let by = CancelledBy::Operator;
    assert_eq!(record(&run).end, Some(EndReason::Cancelled { by }));
}

#[tokio::test]
async fn an_order_ends_a_run_and_no_other_that_has_its_number() {
    let mut owner = Pretender::new(bounds());
    let (number, run) = owner.start(60_000, None);
    let (_, other) = owner.start(60_000, None);
    // An order that comes late is for a run that is over.
    owner.host.cancel(number, &other, CancelledBy::Caller);
    owner.host.cancel(number, &run, CancelledBy::Caller);
    for kind in [ToHost::Load, ToHost::Start, ToHost::Start] {
        owner.expect(kind).await;
    }
    assert_eq!(owner.expect(ToHost::Cancel).await.id, number);
    let report = Report {
        cancelled: true,
        ..Report::default()
    };
    owner.report(number, &report).await;
    until("it did not end", || run.over()).await;
    let by = CancelledBy::Caller;
    assert_eq!(record(&run).end, Some(EndReason::Cancelled { by }));
    owner.host.cancel(number, &run, CancelledBy::Caller);
    assert!(!owner.ended.load(Ordering::SeqCst));
}

#[tokio::test]
async fn the_end_of_a_host_is_the_end_of_its_runs_with_its_reason() {
    let memory = EndReason::ResourceExceeded {
        hit: LimitHit {
            which: Resource::Memory,
            limit: 1 << 20,
            observed: 1 << 20,
        },
        exit: None,
    };
    // Told by the supervisor first.
    let mut owner = Pretender::new(bounds());
    let (_, run) = owner.start(60_000, None);
    let told = RunEvent::Ended(gone_record(Some(memory.clone())));
    owner.events.send(Ok(told)).await.unwrap();
    owner.over().await;
    assert!(
        diagnostics(&run).contains("memory"),
        "{}",
        diagnostics(&run)
    );
    // Seen by its socket first.
    let mut owner = Pretender::ending(bounds(), Some(memory));
    let (_, run) = owner.start(60_000, None);
    let (_, unused) = UnixStream::pair().unwrap();
    drop(std::mem::replace(&mut owner.theirs, unused));
    let host = Arc::clone(&owner.host);
    let (code, room) = (Arc::clone(&owner.code), Arc::clone(&owner.room));
    owner.over().await;
    assert!(
        diagnostics(&run).contains("memory"),
        "{}",
        diagnostics(&run)
    );
    assert!(host.standing().over && host.take(&code, 0).is_none());
    drop(room);
}

#[tokio::test]
async fn a_module_that_a_host_cannot_use_ends_its_run_alone() {
    let mut owner = Pretender::new(bounds());
    let (number, run) = owner.start(60_000, None);
    let load = owner.expect(ToHost::Load).await;
    let refused = |message: &str| format!("{{\"message\":{message:?}}}");
    let why = refused("unknown import");
    owner.tell(FromHost::Refused, load.id, why.as_bytes()).await;
    owner
        .tell(FromHost::Refused, number, refused("not loaded").as_bytes())
        .await;
    until("it did not end", || run.over()).await;
    let seen = record(&run);
    let exit = ExitStatus::NotExecutable;
    assert_eq!(seen.end, Some(EndReason::ToolError { exit }));
    assert_eq!(seen.module.unwrap().detail.unwrap(), "unknown import");
    owner.expect(ToHost::Start).await;
    // Sent anew, and used.
    let (number, run) = owner.start(60_000, None);
    owner.expect(ToHost::Load).await;
    owner
        .tell(FromHost::Refused, number, refused("no room").as_bytes())
        .await;
    until("it did not end", || run.over()).await;
    assert!(diagnostics(&run).contains("no room"));
    assert!(!owner.ended.load(Ordering::SeqCst));
}

#[tokio::test]
async fn input_is_never_further_ahead_than_its_window() {
    let mut owner = Pretender::new(bounds());
    let input: Vec<u8> = (0..700_000u32).map(|at| (at % 251) as u8).collect();
    let (number, run) = owner.start(60_000, Some(&input));
    owner.expect(ToHost::Load).await;
    let start: Start = owner.expect(ToHost::Start).await.read().unwrap();
    assert!(start.stdin);
    let (mut got, mut ahead) = (Vec::new(), 0u64);
    loop {
        let frame = owner.frame().await;
        match ToHost::of(frame.kind) {
            Some(ToHost::StdinEnd) => break,
            Some(ToHost::Stdin) => {
                ahead += frame.body.len() as u64;
                assert!(ahead <= STDIN_WINDOW, "{ahead} bytes ahead");
                got.extend(frame.body);
            }
            other => panic!("{other:?}"),
        }
        if ahead == STDIN_WINDOW {
            let taken = u32::try_from(ahead).unwrap();
            owner
                .tell(FromHost::StdinTaken, number, &taken.to_le_bytes())
                .await;
            ahead = 0;
        }
    }
    assert!(got == input);
    owner.report(number, &exited()).await;
    until("it did not end", || run.over()).await;
}

#[tokio::test]
async fn a_host_is_recycled_after_its_runs_after_an_error_and_when_idle() {
    let few = HostBounds {
        runs: 2,
        ..bounds()
    };
    let mut owner = Pretender::new(few);
    for _ in 0..2 {
        assert!(owner.host.standing().open);
        let (number, _) = owner.start(60_000, None);
        assert!(!owner.ended.load(Ordering::SeqCst), "its last run goes on");
        owner.report(number, &exited()).await;
        let host = Arc::clone(&owner.host);
        until("it did not end", || host.standing().runs == 0).await;
    }
    owner.over().await;

    let mut owner = Pretender::new(bounds());
    let (number, run) = owner.start(60_000, None);
    let (beside, other) = owner.start(60_000, None);
    let failed = Report {
        crashed: Some("a panic".to_owned()),
        ..Report::default()
    };
    owner.report(number, &failed).await;
    until("it did not end", || run.over()).await;
    assert!(!owner.host.standing().open && !owner.host.standing().over);
    owner.report(beside, &exited()).await;
    owner.over().await;
    assert_eq!(
        record(&other).end,
        Some(EndReason::Completed),
        "its neighbour goes on"
    );

    let owner = Pretender::new(HostBounds {
        idle: Duration::from_millis(50),
        slack: Duration::from_millis(200),
        ..bounds()
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(owner.host.standing().open, "untouched, it waits for ever");
    owner.host.give();
    owner.over().await;
}

#[tokio::test]
async fn a_place_that_is_not_used_is_given_back() {
    let owner = Pretender::new(bounds());
    let seat = owner.host.take(&owner.code, 0).unwrap();
    assert_eq!(owner.host.standing().runs, 1);
    drop(seat);
    assert_eq!(owner.host.standing().runs, 0);
    let seat = owner.host.take(&owner.code, 0).unwrap();
    owner.host.retire();
    let run = Arc::new(run(RunLimits::default(), &owner.room));
    // It had its place before: it is the last.
    let id = RunId::from_entropy(&[1; 13]);
    seat.begin(id, &run, Vec::new(), None, Duration::from_secs(60));
    assert!(!owner.ended.load(Ordering::SeqCst));
    owner.report(1, &exited()).await;
    owner.over().await;
    assert_eq!(record(&run).end, Some(EndReason::Completed));
}
