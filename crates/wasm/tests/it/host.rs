//! A host process, spoken to as its owner does.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::Duration;

use leasehold_protocol::socket::send_with_fds;
use leasehold_protocol::wasm::{
    Flavour, Frame, FromHost, Kind, Load, Reader, Ready, Refused, Report, RunLimits, Start, ToHost,
    body, frame,
};
use leasehold_wasm::compile::Compiler;

use crate::rig::{Ran, sealed};

/// A host process and our end of its socket.
pub(crate) struct Host {
    pub(crate) child: Child,
    pub(crate) socket: UnixStream,
    reader: Reader,
}

impl Host {
    pub(crate) fn spawn(files: bool) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let theirs = OwnedFd::from(theirs);
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold-wasm-host"));
        command.arg(theirs.as_raw_fd().to_string());
        if files {
            command.arg("files");
        }
        let child = command.spawn().unwrap();
        drop(theirs);
        ours.set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut host = Self {
            child,
            socket: ours,
            reader: Reader::new(false),
        };
        let ready = host.next().unwrap();
        assert_eq!(FromHost::of(ready.kind), Some(FromHost::Ready));
        assert_eq!(
            ready.read::<Ready>().unwrap().version,
            leasehold_protocol::wasm::VERSION
        );
        host
    }

    pub(crate) fn send(&self, kind: ToHost, id: u32, bytes: &[u8], fds: &[OwnedFd]) {
        let bytes = frame(kind as u8, fds.len() as u8, id, bytes).unwrap();
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let mut at = send_with_fds(&self.socket, &bytes, &fds).unwrap();
        while at < bytes.len() {
            at += send_with_fds(&self.socket, &bytes[at..], &[]).unwrap();
        }
    }

    /// The next frame; `None` when the host is gone.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.reader.take().unwrap() {
                return Some(frame);
            }
            if !self.reader.fill(&self.socket).unwrap_or(false) {
                return None;
            }
        }
    }

    pub(crate) fn load(&mut self, id: u32, text: &str) {
        let (kind, code) = Compiler::new(Flavour::Plain)
            .unwrap()
            .compile(&wat::parse_str(text).unwrap())
            .unwrap();
        self.load_code(id, kind, &code);
    }

    /// Loads what was compiled as [`Flavour::Plain`].
    pub(crate) fn load_code(&mut self, id: u32, kind: Kind, code: &[u8]) {
        let flavour = Flavour::Plain;
        self.send(
            ToHost::Load,
            id,
            &body(&Load { kind, flavour }).unwrap(),
            &[sealed(code).into()],
        );
        let answer = self.next().unwrap();
        assert_eq!(
            (FromHost::of(answer.kind), answer.id),
            (Some(FromHost::Loaded), id)
        );
    }

    pub(crate) fn start(&self, id: u32, start: &Start, fds: &[OwnedFd]) {
        self.send(ToHost::Start, id, &body(start).unwrap(), fds);
    }

    /// Reads until a run is over: its standard output and its report.
    pub(crate) fn ended(&mut self, id: u32) -> (Vec<u8>, Report) {
        let ran = self.ran(id);
        (ran.stdout, ran.report)
    }

    /// Reads until a run is over: all it wrote and its report.
    pub(crate) fn ran(&mut self, id: u32) -> Ran {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            let frame = self.next().expect("the host is gone");
            match FromHost::of(frame.kind).unwrap() {
                FromHost::Stdout if frame.id == id => stdout.extend_from_slice(&frame.body),
                FromHost::Stderr if frame.id == id => stderr.extend_from_slice(&frame.body),
                FromHost::Ended if frame.id == id => {
                    return Ran {
                        report: frame.read().unwrap(),
                        stdout,
                        stderr,
                    };
                }
                FromHost::Refused => panic!("{}", frame.read::<Refused>().unwrap().message),
                _ => {}
            }
        }
    }

    pub(crate) fn refused(&mut self) -> String {
        let frame = self.next().unwrap();
        assert_eq!(FromHost::of(frame.kind), Some(FromHost::Refused));
        frame.read::<Refused>().unwrap().message
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A run of `guest` with nothing but its limits.
pub(crate) fn start(module: u32, limits: RunLimits) -> Start {
    Start {
        module,
        argv: vec!["guest".to_owned()],
        env: Vec::new(),
        stdin: false,
        preopens: Vec::new(),
        limits,
        determinism: None,
    }
}
