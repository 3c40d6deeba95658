//! `cargo bench -p leasehold-wasm`: a small program through the host process, beside the engine's own library
//! used directly in the same run: the same code, the same machine, one after the other in rounds.
//!
//! Between the two is our own use of the library in this process, with our limits, clock and captured streams: what
//! the host's own process costs is the difference.
//!
//! The host is the program that was built with this one, compiler and all; the one that is handed out has none.

mod library;

use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use leasehold_protocol::socket::send_with_fds;
use leasehold_protocol::wasm::{
    Flavour, FromHost, Load, Reader, RunLimits, Start, ToHost, body, frame,
};
use leasehold_wasm::compile::Compiler;
use leasehold_wasm::engine::Room;
use leasehold_wasm::host::epoch::Epochs;
use leasehold_wasm::program::{Loader, Program};
use leasehold_wasm::run::{Task, run};
use library::{Direct, Fallible, Instances};
use tokio::sync::oneshot;

const ROUNDS: usize = 5;
const RUNS: usize = 2_000;

const GUEST: &str = r#"(module
  (import "wasi_snapshot_preview1" "fd_write" (func $w (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 2)
  (data (i32.const 100) "{\"answer\":42}\n")
  (func (export "_start")
    (i32.store (i32.const 0) (i32.const 100))
    (i32.store (i32.const 4) (i32.const 14))
    (drop (call $w (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#;
const SAYS: &[u8] = b"{\"answer\":42}\n";

/// The host process and our end of its socket.
struct Host {
    child: Child,
    socket: UnixStream,
    reader: Reader,
}

impl Host {
    fn spawn(wasm: &[u8]) -> Fallible<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let theirs = OwnedFd::from(theirs);
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?;
        let child = Command::new(env!("CARGO_BIN_EXE_leasehold-wasm-host"))
            .arg(theirs.as_raw_fd().to_string())
            .spawn()?;
        let mut host = Self {
            child,
            socket,
            reader: Reader::new(false),
        };
        host.until(FromHost::Ready)?;
        let (kind, code) = Compiler::new(Flavour::Plain)?.compile(wasm)?;
        let load = Load {
            kind,
            flavour: Flavour::Plain,
        };
        let bytes = frame(ToHost::Load as u8, 1, 1, &body(&load)?)?;
        send_with_fds(&host.socket, &bytes, &[sealed(&code)?.as_fd()])?;
        host.until(FromHost::Loaded)?;
        Ok(host)
    }

    /// Reads up to a frame of this kind; gives what came on standard output.
    fn until(&mut self, wanted: FromHost) -> Fallible<Vec<u8>> {
        let mut stdout = Vec::new();
        loop {
            while let Some(frame) = self.reader.take()? {
                match FromHost::of(frame.kind) {
                    Some(kind) if kind == wanted => return Ok(stdout),
                    Some(FromHost::Stdout) => stdout.extend_from_slice(&frame.body),
                    _ => return Err("the host said something else".into()),
                }
            }
            if !self.reader.fill(&self.socket)? {
                return Err("the host is gone".into());
            }
        }
    }

    fn run(&mut self, id: u32) -> Fallible<Vec<u8>> {
        let start = Start {
            module: 1,
            argv: vec!["guest".to_owned()],
            env: Vec::new(),
            stdin: false,
            preopens: Vec::new(),
            limits: RunLimits::default(),
            determinism: None,
        };
        let bytes = frame(ToHost::Start as u8, 0, id, &body(&start)?)?;
        send_with_fds(&self.socket, &bytes, &[])?;
        self.until(FromHost::Ended)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Nothing is left to do about a failure.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn sealed(bytes: &[u8]) -> Fallible<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = std::fs::File::from(rustix::fs::memfd_create("code", flags)?);
    file.write_all(bytes)?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// The library as the host uses it, in this process.
struct Ours {
    program: Program,
    epochs: Epochs,
    runtime: tokio::runtime::Runtime,
}

impl Ours {
    fn new(wasm: &[u8]) -> Fallible<Self> {
        let loader = Loader::new(Flavour::Plain, Room::default())?;
        let (kind, code) = Compiler::new(Flavour::Plain)?.compile(wasm)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(Self {
            epochs: Epochs::start(vec![loader.engine().clone()])?,
            program: loader.load(kind, Flavour::Plain, sealed(&code)?.into())?,
            runtime,
        })
    }

    fn run(&self) -> Fallible<Vec<u8>> {
        let _clock = self.epochs.run();
        let task = Task::new("guest", RunLimits::default());
        let stdout = task.stdout.clone();
        let (_cancel, cancelled) = oneshot::channel();
        self.runtime.block_on(async {
            run(&self.program, task, cancelled).await;
            let mut said = Vec::new();
            while let Some(bytes) = stdout.next().await {
                said.extend_from_slice(&bytes);
            }
            Ok(said)
        })
    }
}

/// Times of one round, sorted.
fn round(mut once: impl FnMut(u32) -> Fallible<Duration>) -> Fallible<Vec<Duration>> {
    let times = (0..RUNS as u32).map(&mut once);
    let mut times = times.collect::<Fallible<Vec<_>>>()?;
    times.sort_unstable();
    Ok(times)
}

/// How long a run takes that says what it should.
fn whole(run: impl FnOnce() -> Fallible<Vec<u8>>) -> Fallible<Duration> {
    let begun = Instant::now();
    let said = run()?;
    let took = begun.elapsed();
    match said == SAYS {
        true => Ok(took),
        false => Err("the guest did not say what it should".into()),
    }
}

fn main() -> Fallible<()> {
    let wasm = wat::parse_str(GUEST)?;
    let direct = Direct::new(&wasm)?;
    let ours = Ours::new(&wasm)?;
    let instances = Instances::new(&wasm)?;
    let mut host = Host::spawn(&wasm)?;
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{RUNS} runs a round; microseconds p50 / p95 / p99, and runs a second one after another"
    )?;
    for number in 0..=ROUNDS {
        let rounds = [
            ("wasmtime, an instance", round(|_| Ok(direct.run()?.0))?),
            ("ours, an instance", round(|_| instances.make())?),
            (
                "wasmtime, in process",
                round(|_| whole(|| Ok(direct.run()?.1)))?,
            ),
            ("ours, in process", round(|_| whole(|| ours.run()))?),
            ("leasehold-wasm-host", round(|id| whole(|| host.run(id)))?),
        ];
        for (name, times) in rounds {
            // The first round warms both up.
            if number > 0 {
                let at = |share: usize| times[RUNS * share / 100].as_secs_f64() * 1e6;
                let total: Duration = times.iter().sum();
                let rate = RUNS as f64 / total.as_secs_f64();
                writeln!(
                    out,
                    "{name:<22} {:>7.1} / {:>7.1} / {:>7.1}   {rate:>8.0}/s",
                    at(50),
                    at(95),
                    at(99)
                )?;
            }
        }
    }
    Ok(())
}
