//! What processes say to each other, read by the side that believes nothing.

use std::fmt::Debug;
use std::io::Write as _;
use std::os::unix::net::UnixStream;

use leasehold_core::id::RunId;
use leasehold_core::limits::Limits;
use leasehold_core::spec::{ExecSpec, SandboxSpec};
use leasehold_protocol::envd::frame::{Unwrapper, wrap};
use leasehold_protocol::guest::{
    Control, EXEC_HEADER_LEN, ExecHeader, ExecRequest, ExecStep, SignalTarget, StubReply,
};
use leasehold_protocol::socket::{FrameReader, encode_frame};
use leasehold_protocol::supervisor::{Call, Event, Notice, Request, Target};
use leasehold_protocol::wasm::{
    Flavour, FromHost, Kind, Load, Preopen, Reader, Ready, Refused, Report, RunLimits, Start,
    ToHost, body, frame,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most bytes that fit into a socket at once.
const BYTES_MAX: usize = 60 << 10;

/// A socket that gives these bytes and then ends.
fn socket(data: &[u8]) -> Option<UnixStream> {
    let (mut left, right) = UnixStream::pair().unwrap();
    (data.len() <= BYTES_MAX).then(|| left.write_all(data).unwrap())?;
    Some(right)
}

/// What was read is the same when it is written and read again.
fn again<T: Serialize + DeserializeOwned + PartialEq + Debug>(message: &T) {
    let written = serde_json::to_vec(message).unwrap();
    let read: T = serde_json::from_slice(&written).unwrap();
    assert_eq!(&read, message);
}

/// Frames of both directions between an owner and a WebAssembly host.
pub(crate) fn host(data: &[u8]) {
    for with_fds in [false, true] {
        let Some(socket) = socket(data) else { return };
        let mut reader = Reader::new(with_fds);
        while let Ok(true) = reader.fill(&socket) {
            while let Ok(Some(got)) = reader.take() {
                let whole = frame(got.kind, 0, got.id, &got.body).unwrap();
                assert!(whole.ends_with(&got.body));
                from_owner(&got);
                from_host(&got);
            }
        }
    }
}

fn from_owner(got: &leasehold_protocol::wasm::Frame) {
    match ToHost::of(got.kind) {
        Some(ToHost::Load) => drop(got.read::<Load>()),
        Some(ToHost::Start) => {
            if let Ok(start) = got.read::<Start>() {
                again(&start);
            }
        }
        _ => {}
    }
}

fn from_host(got: &leasehold_protocol::wasm::Frame) {
    match FromHost::of(got.kind) {
        Some(FromHost::Ready) => drop(got.read::<Ready>()),
        Some(FromHost::Refused) => drop(got.read::<Refused>()),
        Some(FromHost::Ended) => {
            if let Ok(report) = got.read::<Report>() {
                again(&report);
                let kept = report.kept();
                assert!(kept.backtrace.len() <= 32 && kept.http_denied_to.len() <= 32);
                drop(report.observations(&RunLimits::default()));
            }
        }
        _ => {}
    }
}

pub(crate) fn host_seeds() -> Vec<Vec<u8>> {
    let start = Start {
        module: 1,
        argv: vec!["guest".to_owned(), "word".to_owned()],
        env: vec![("NAME".to_owned(), "value".to_owned())],
        stdin: true,
        preopens: vec![Preopen {
            guest: "/workspace".to_owned(),
            writable: true,
        }],
        limits: RunLimits::of(&Limits::default(), Some(7)),
        determinism: None,
    };
    let load = Load {
        kind: Kind::Core,
        flavour: Flavour::Metered,
    };
    let report = Report {
        backtrace: vec!["deep +0x1".to_owned()],
        crashed: Some("why".to_owned()),
        ..Report::default()
    };
    let refused = Refused {
        message: "no".to_owned(),
    };
    let both = [
        frame(ToHost::Load as u8, 0, 1, &body(&load).unwrap()),
        frame(ToHost::Start as u8, 0, 2, &body(&start).unwrap()),
        frame(ToHost::Stdin as u8, 0, 2, b"input"),
        frame(FromHost::Stdout as u8, 0, 2, b"output"),
        frame(FromHost::Ended as u8, 0, 2, &body(&report).unwrap()),
        frame(FromHost::Refused as u8, 0, 3, &body(&refused).unwrap()),
    ];
    let mut seeds: Vec<Vec<u8>> = both.into_iter().map(Result::unwrap).collect();
    seeds.push(seeds.concat());
    seeds
}

/// Calls to a supervisor, and its notices.
pub(crate) fn supervisor(data: &[u8]) {
    read_all::<Call>(data);
    read_all::<Notice>(data);
}

fn read_all<T: Serialize + DeserializeOwned>(data: &[u8]) {
    let Some(socket) = socket(data) else { return };
    let mut reader = FrameReader::new();
    while let Ok(true) = reader.fill(&socket) {
        while let Ok(Some((message, fds))) = reader.take::<T>() {
            assert!(fds.is_empty());
            let written = serde_json::to_value(&message).unwrap();
            let read: T = serde_json::from_value(written.clone()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), written);
        }
    }
}

pub(crate) fn supervisor_seeds() -> Vec<Vec<u8>> {
    let run = RunId::from_entropy(&[7; 13]);
    let exec = ExecSpec::command(["sh", "-c", "true"]);
    let request = Request::run(run.clone(), Target::New(SandboxSpec::default()), exec);
    let cancel = Request::Cancel {
        run,
        by: leasehold_core::end::CancelledBy::Caller,
        at_once: false,
    };
    let calls = [request, cancel].map(|request| encode_frame(&Call { tag: 3, request }).unwrap());
    let notice = Notice {
        tag: 3,
        event: Event::Output {
            stdout: 5,
            stderr: 6,
        },
    };
    let mut seeds = calls.to_vec();
    seeds.push(encode_frame(&notice).unwrap());
    seeds.push(seeds.concat());
    seeds
}

/// What is said between a supervisor and the programs inside a sandbox, and the envelopes of the agent.
pub(crate) fn guest(data: &[u8]) {
    if let Ok(control) = Control::decode(data) {
        assert_eq!(Control::decode(&control.encode()), Ok(control));
    }
    if let Ok(reply) = StubReply::decode(data) {
        assert_eq!(StubReply::decode(&reply.encode()), Ok(reply));
    }
    if let Some((head, rest)) = data.split_first_chunk::<EXEC_HEADER_LEN>()
        && let Ok(header) = ExecHeader::decode(head)
        && let Ok(request) = header.with_payload(rest)
    {
        let written = request.encode();
        let (head, rest) = written.split_first_chunk::<EXEC_HEADER_LEN>().unwrap();
        let again = ExecHeader::decode(head).unwrap().with_payload(rest);
        assert_eq!(again.unwrap(), request);
        assert!(request.descriptors() <= 16);
    }
    let mut whole = Unwrapper::new();
    whole.push(data);
    let mut pieces = Unwrapper::new();
    for byte in data {
        pieces.push(&[*byte]);
    }
    while let Ok(Some((flags, message))) = whole.take() {
        assert_eq!(pieces.take(), Ok(Some((flags, message.clone()))));
        let mut other = Unwrapper::new();
        other.push(&wrap(flags, &message));
        assert_eq!(other.take(), Ok(Some((flags, message))));
    }
    assert_eq!(whole.finish(), pieces.finish());
}

pub(crate) fn guest_seeds() -> Vec<Vec<u8>> {
    let exec = ExecRequest {
        cwd: b"/workspace".to_vec(),
        argv: vec![b"sh".to_vec(), b"-c".to_vec()],
        env: vec![b"A=b".to_vec()],
        ids: (1_000, 1_000),
        tty: None,
        files: 1_024,
        cpu_seconds: 0,
        passed: Some(2),
    };
    let controls = [
        Control::Signal {
            signal: 9,
            target: SignalTarget::Everything,
        },
        Control::StartAgent,
        Control::Ready { stub: 7 },
        Control::MainExited { status: 256 },
        Control::Agent { pid: 5, errno: 0 },
        Control::SetupFailed { step: 3, errno: 13 },
    ];
    let failed = StubReply::Failed {
        step: ExecStep::Cwd,
        errno: 2,
    };
    let mut seeds: Vec<Vec<u8>> = controls.map(|control| control.encode().to_vec()).to_vec();
    seeds.push(failed.encode().to_vec());
    seeds.push(exec.encode());
    seeds.push([wrap(0, b"{}"), wrap(0, b"[1]"), wrap(2, b"")].concat());
    seeds
}
