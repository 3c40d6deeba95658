//! WebAssembly: from wanting a module to run until its end is known, through the backend as a daemon has it,
//! in a sandbox of its own, and from the command line; interpreters beside the native ones of this host, and the
//! engine's library beside it all, in a program of its own ([`super::library`]).

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use leasehold_backend::error::BackendError;
use leasehold_backend::execution::RunEvent;
use leasehold_backend::seam::{Backend as _, Launch};
use leasehold_backend::wasm::{Module, WasmBackend};
use leasehold_core::end::EndReason;
use leasehold_core::name::Name;
use leasehold_core::spec::{ExecSpec, ModuleSpec, SandboxSpec};
use leasehold_protocol::wasm::Flavour;

use super::Interrupt;
use super::arena::Arena;
use super::bars::{Bar, Measured, Must};
use super::ground::Ground;
use super::library::Library;
use super::peer;
use super::report::Report;
use super::sample::Samples;
use crate::fault::Fault;
use crate::run::{new_run, supply};
use crate::{place, template};

/// Writes `hello` and a line end to standard output.
const HELLO: &[u8] = b"\0asm\x01\0\0\0\x01\x0c\x02\x60\x04\x7f\x7f\x7f\x7f\x01\x7f\x60\0\0\x02\x23\x01\x16wasi_snapshot_preview1\
\x08fd_write\0\0\x03\x02\x01\x01\x05\x03\x01\0\x01\x07\x13\x02\x06memory\x02\0\x06_start\0\x01\x0a\x1d\x01\x1b\0\x41\0\x41\x10\
\x36\x02\0\x41\x04\x41\x06\x36\x02\0\x41\x01\x41\0\x41\x01\x41\x08\x10\0\x1a\x0b\x0b\x0c\x01\0\x41\x10\x0b\x06hello\x0a";

/// Runs one after another for the rate.
const IN_A_ROW: u32 = 2_000;
/// Runs at once for the other rate.
const AT_ONCE: usize = 8;

/// An interpreter with the native program it is compared with.
struct Pair {
    template: &'static str,
    code: [&'static str; 2],
    native: &'static str,
    /// How many times ours the native one is to take at least.
    times: f64,
}

const PAIRS: [Pair; 2] = [
    Pair {
        template: "python",
        code: ["-c", "print(1)"],
        native: "/usr/bin/python3",
        times: 4.0,
    },
    Pair {
        template: "javascript",
        code: ["-e", "console.log(1)"],
        native: "/usr/bin/node",
        times: 40.0,
    },
];

/// One thing that is sampled in every round.
struct Row {
    what: String,
    way: Way,
    samples: Result<Samples, String>,
}

enum Way {
    /// A run of the backend; a tenant's may share a host.
    Backend { guest: Guest, shared: bool },
    /// A command line of ours.
    Ours(Vec<String>),
    /// A program of the host.
    Native(Vec<String>),
}

/// A module and what it is called with.
#[derive(Clone)]
struct Guest {
    module: Module,
    argv: Vec<String>,
}

/// Measures and reports.
///
/// # Errors
/// When something of ours fails.
pub(crate) fn measure(
    runs: u32,
    library: Option<&Path>,
    ground: &Ground,
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<(), Fault> {
    let arena = Arena::new(ground, "wasm")?;
    // It makes the directories, which the backend takes for made.
    drop(arena.client()?);
    let backend = match supply::backend(arena.paths()) {
        Ok(backend) => backend,
        Err(fault) => {
            report.row("a small module", Err(fault.chain()));
            return Ok(());
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Fault::host("cannot start the backend").because(&error))?;
    let module = arena.directory().join("hello.wasm");
    std::fs::write(&module, HELLO)
        .map_err(|error| Fault::host("cannot make the module").because(&error))?;
    let mut rows = rows(&arena, &module)?;
    let mut peer = Beside::new(library, &module);
    for row in &mut rows {
        // Compiled before anything is measured.
        if let Way::Backend { guest, .. } = &row.way {
            let prepared = runtime.block_on(backend.prepare(&guest.module, Flavour::Plain, None));
            prepared.map_err(|error| Fault::from(error.public()))?;
        }
    }
    for round in 0..=runs {
        interrupt.check()?;
        for row in &mut rows {
            let took = once(&runtime, &backend, &arena, &row.way);
            match (&mut row.samples, took) {
                // The first round warms caches and is not counted.
                (Ok(samples), Ok(took)) if round > 0 => samples.add(took),
                (Ok(_), Err(reason)) => row.samples = Err(reason),
                _ => {}
            }
        }
        peer.once(round > 0);
    }
    rates(&runtime, &backend, interrupt, report)?;
    let p95 = summary(&rows[0]).map(|summary| summary.p95_ms);
    for row in rows.iter().chain(&peer.rows) {
        report.row(row.what.clone(), summary(row));
    }
    for pair in &PAIRS {
        report.bar(beside(pair, &rows));
    }
    report.bar(Bar::judge(
        "a small module in a shared host, request → result, p95",
        p95,
        Must::AtMost(0.5),
        " ms",
    ));
    report.bar(Bar::judge(
        peer.rows[2].what.clone() + ", p95",
        summary(&peer.rows[2]).map(|summary| summary.p95_ms),
        Must::AtMost(0.05),
        " ms",
    ));
    Ok(())
}

/// The engine's library, sampled in the same rounds.
struct Beside {
    library: Option<Library>,
    rows: [Row; 3],
}

impl Beside {
    fn new(program: Option<&Path>, module: &Path) -> Self {
        let program = program.ok_or_else(|| "--library names its program".to_owned());
        let library = program.and_then(|program| Library::start(program, module));
        let mut rows = [
            "the same by the engine's library, in its own process",
            "… of that its instance",
            "an instance, in the engine as the host has it",
        ]
        .map(|what| row(what, Way::Native(Vec::new())));
        if let Err(reason) = &library {
            for row in &mut rows {
                row.samples = Err(reason.clone());
            }
        }
        Self {
            library: library.ok(),
            rows,
        }
    }

    fn once(&mut self, counts: bool) {
        let Some(library) = &mut self.library else {
            return;
        };
        let told = library.once();
        let gone = told.is_err();
        let times = match told {
            Ok(told) => [Ok(told.run), Ok(told.instance), Ok(told.ours)],
            Err(reason) => [(); 3].map(|()| Err(reason.clone())),
        };
        for (row, time) in self.rows.iter_mut().zip(times) {
            match (&mut row.samples, time) {
                (Ok(samples), Ok(time)) if counts => samples.add(time),
                (_, Err(reason)) => row.samples = Err(reason),
                _ => {}
            }
        }
        if gone {
            self.library = None;
        }
    }
}

/// How many times ours the native interpreter takes, each to start, print one line and end.
fn beside(pair: &Pair, rows: &[Row]) -> Bar {
    let p50 = |what: String| {
        let row = rows.iter().find(|row| row.what == what);
        let row = row.ok_or_else(|| format!("leasehold template build --wasm {}", pair.template));
        row.and_then(summary).map(|summary| summary.p50_ms)
    };
    let native = p50(pair.native_row());
    let times = native.and_then(|native| Ok(native / p50(pair.shared_row())?));
    Bar::judge(
        format!(
            "{} in a shared host, {} ÷ ours, p50",
            pair.template, pair.native
        ),
        times,
        Must::AtLeast(pair.times),
        " ×",
    )
}

impl Pair {
    fn said(&self) -> String {
        self.code.join(" ")
    }

    fn native_row(&self) -> String {
        format!("`{} {}`, this host's", self.native, self.said())
    }

    fn shared_row(&self) -> String {
        format!("{} {}, shared host", self.template, self.said())
    }
}

fn summary(row: &Row) -> Measured {
    let samples = row.samples.as_ref().map_err(Clone::clone)?;
    samples
        .summary()
        .ok_or_else(|| "no sample was taken".to_owned())
}

fn row(what: impl Into<String>, way: Way) -> Row {
    Row {
        what: what.into(),
        way,
        samples: Ok(Samples::default()),
    }
}

fn rows(arena: &Arena, module: &Path) -> Result<Vec<Row>, Fault> {
    let hello = hello()?;
    let words = |head: &[&str], tail: &[&str]| -> Vec<String> {
        let words = head.iter().chain(tail).map(|word| (*word).to_owned());
        words.collect()
    };
    let backend = |guest: &Guest, shared| Way::Backend {
        guest: guest.clone(),
        shared,
    };
    let path = module.to_string_lossy().into_owned();
    let mut rows = vec![
        row("a small module, shared host", backend(&hello, true)),
        row("a small module, sandbox of its own", backend(&hello, false)),
        row(
            "`leasehold run --isolation wasm`, the same",
            Way::Ours(words(&["run", "-q", "--isolation", "wasm", "--"], &[&path])),
        ),
    ];
    let here = place::paths().map(|paths| template::shelf(&paths))?;
    let there = template::shelf(arena.paths());
    for pair in PAIRS {
        let name = pair.template;
        let said = pair.said();
        let native = words(&[pair.native], &pair.code);
        rows.push(row(pair.native_row(), Way::Native(native)));
        match here.lend(name, &there) {
            Ok(true) => {}
            Ok(false) => {
                let mut absent = row(format!("{name} in WebAssembly"), Way::Native(Vec::new()));
                absent.samples = Err(format!("leasehold template build --wasm {name}"));
                rows.push(absent);
                continue;
            }
            Err(error) => return Err(template::fault(&error)),
        }
        let (digest, file) = template::open(&there, name)?;
        let guest = Guest {
            module: Module::known(digest, file),
            argv: words(&[name], &pair.code),
        };
        rows.push(row(pair.shared_row(), backend(&guest, true)));
        rows.push(row(
            format!("{name} {said}, sandbox of its own"),
            backend(&guest, false),
        ));
        rows.push(row(
            format!("`leasehold run --interpreter {name}`, the same"),
            Way::Ours(words(
                &["run", "-q", "--interpreter", name, "--"],
                &pair.code,
            )),
        ));
    }
    Ok(rows)
}

fn hello() -> Result<Guest, Fault> {
    let module = Module::of_bytes(HELLO)
        .map_err(|error| Fault::host("cannot make the module").because(&error))?;
    Ok(Guest {
        module,
        argv: vec!["hello.wasm".to_owned()],
    })
}

fn once(
    runtime: &tokio::runtime::Runtime,
    backend: &WasmBackend,
    arena: &Arena,
    way: &Way,
) -> Result<Duration, String> {
    match way {
        Way::Backend { guest, shared } => runtime.block_on(run(backend, guest, *shared)),
        Way::Ours(words) => {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let command = arena.command(&words).map_err(|fault| fault.chain());
            peer::timed(command?.stdin(std::process::Stdio::null()))
        }
        Way::Native(words) => {
            let (program, rest) = words.split_first().ok_or_else(String::new)?;
            let mut command = Command::new(program);
            command
                .args(rest)
                .stdin(std::process::Stdio::null())
                .stdout(std::process::Stdio::null());
            peer::timed(&mut command)
        }
    }
}

/// From the request until the end is known and the output is there.
async fn run(backend: &WasmBackend, guest: &Guest, shared: bool) -> Result<Duration, String> {
    let run = new_run().map_err(|fault| fault.chain())?;
    let mut exec = ExecSpec::command(guest.argv.iter().cloned());
    exec.module = Some(ModuleSpec {
        digest: *guest.module.digest(),
        name: guest.argv[0].clone(),
        script: None,
        determinism: None,
        fuel: None,
    });
    let launch = Launch {
        module: Some(guest.module.clone()),
        tenant: match shared {
            true => Some(Name::parse("bench").map_err(|error| error.to_string())?),
            false => None,
        },
        ..Launch::new(run, SandboxSpec::default(), exec)
    };
    let told = |error: BackendError| error.to_string();
    let begun = Instant::now();
    let mut execution = backend.launch(launch).await.map_err(told)?;
    while let Some(event) = execution.next().await {
        if let RunEvent::Ended(record) = event.map_err(told)? {
            let took = begun.elapsed();
            return match record.end {
                Some(EndReason::Completed) => Ok(took),
                Some(end) => Err(end.phrase()),
                None => Err("nobody told how it ended".to_owned()),
            };
        }
    }
    Err("nobody told of its end".to_owned())
}

/// How many a second, one after another and some at once.
fn rates(
    runtime: &tokio::runtime::Runtime,
    backend: &WasmBackend,
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<(), Fault> {
    for at_once in [1, AT_ONCE] {
        interrupt.check()?;
        let guest = hello()?;
        let each = IN_A_ROW / u32::try_from(at_once).unwrap_or(1);
        let begun = Instant::now();
        let all = runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..at_once {
                let (backend, guest) = (backend.clone(), guest.clone());
                tasks.spawn(async move {
                    for _ in 0..each {
                        run(&backend, &guest, true).await?;
                    }
                    Ok::<(), String>(())
                });
            }
            tasks.join_all().await
        });
        let failed = all.into_iter().find_map(Result::err);
        let rate = f64::from(IN_A_ROW) / begun.elapsed().as_secs_f64();
        match failed {
            Some(reason) => report.note(format!("runs a second, {at_once} at once: {reason}")),
            None if at_once == 1 => report.bar(Bar::judge(
                "small modules in shared hosts, one after another",
                Ok(rate),
                Must::AtLeast(5_000.0),
                " runs/s",
            )),
            None => report.note(format!(
                "small modules in shared hosts, {at_once} at once: {rate:.0} runs/s"
            )),
        }
    }
    Ok(())
}
