//! The host process: `leasehold-wasm-host FD [files]` serves its owner on the socket it inherited as `FD`;
//! `leasehold-wasm-host one [read|write]` runs one module, which it finds in the descriptors after the standard
//! ones, with access of this kind to `/workspace` or none to any file.
//!
//! It sets its engines up, confines itself, and then says that it is ready: nothing of anybody's has reached it
//! before. With `files` its runs may be given directories.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use leasehold_jail::lockdown::{Bounds, Role, lock_down};
use leasehold_jail::seccomp::Program;
use leasehold_jail::sys;
use leasehold_protocol::wasm::{Flavour, Ready, VERSION};
use leasehold_wasm::engine::Room;
use leasehold_wasm::host::one::Given;
use leasehold_wasm::host::server::{Loaders, serve};
use leasehold_wasm::program::Loader;
use tokio::runtime::Runtime;

/// Its owner ends it; address space it reserves far more than it uses.
const BOUNDS: Bounds = Bounds {
    address_bytes: None,
    cpu_seconds: None,
    // Of directories of its runs too.
    file_bytes: 1 << 30,
    open_files: 4_096,
};
/// Times of the runtime between two looks at the socket: a program that computes lets go each 5 ms.
const EVENT_INTERVAL: u32 = 4;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match carry_out(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // There is nobody to tell if it cannot be written.
            let _ = writeln!(std::io::stderr(), "leasehold-wasm-host: {why}");
            ExitCode::FAILURE
        }
    }
}

fn carry_out(arguments: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["one"] => one(None),
        ["one", "read"] => one(Some(false)),
        ["one", "write"] => one(Some(true)),
        [number] => many(number, false),
        [number, "files"] => many(number, true),
        _ => Err("arguments: the socket's number, and perhaps `files`; or `one`, and perhaps `read` or `write`".into()),
    }
}

fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(EVENT_INTERVAL)
        .max_blocking_threads(16)
        .thread_stack_size(512 << 10)
        .build()
}

/// What goes wrong in a run is told in its report; the lines of a panic would go to whoever started us.
fn be_silent() {
    std::panic::set_hook(Box::new(|_| ()));
}

/// Serves an owner.
fn many(number: &str, files: bool) -> Result<(), Box<dyn std::error::Error>> {
    let socket: OwnedFd = sys::inherited(number.parse()?)?;
    let loaders = Loaders {
        plain: Loader::new(Flavour::Plain, Room::default())?,
        metered: Loader::new(Flavour::Metered, Room::default())?,
    };
    let runtime = runtime()?;
    if files {
        // Where it steps to for a directory must not be left to chance before the first.
        rustix::process::chdir("/")?;
    }
    let landlock = lock_down(Role::Host { files }, &BOUNDS)?;
    let ready = Ready {
        version: VERSION,
        landlock,
        seccomp_sha256: Program::wasm_host(files).sha256(),
    };
    be_silent();
    runtime.block_on(serve(socket, loaders, ready, files))?;
    Ok(())
}

/// Runs one module. Its end is told in a file; a status of its own means that there is no report.
fn one(workspace: Option<bool>) -> Result<(), Box<dyn std::error::Error>> {
    let given = Given::take(workspace)?;
    let runtime = runtime()?;
    lock_down(Role::One(given.place()), &BOUNDS)?;
    be_silent();
    given.carry_out(&runtime)?;
    Ok(())
}
