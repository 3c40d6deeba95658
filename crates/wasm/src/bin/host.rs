//! The host process: `leasehold-wasm-host FD [files]` serves its owner on the socket it inherited as `FD`.
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
use leasehold_wasm::host::server::{Loaders, serve};
use leasehold_wasm::program::Loader;

/// Largest file it writes, in directories of its runs too.
const FILE_BYTES: u64 = 1 << 30;
/// Most open files.
const OPEN_FILES: u64 = 4_096;
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
    let (number, files) = match arguments {
        [number] => (number, false),
        [number, word] if word == "files" => (number, true),
        _ => return Err("arguments: the socket's number, and perhaps `files`".into()),
    };
    let socket: OwnedFd = sys::inherited(number.parse()?)?;
    let loaders = Loaders {
        plain: Loader::new(Flavour::Plain, Room::default())?,
        metered: Loader::new(Flavour::Metered, Room::default())?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(EVENT_INTERVAL)
        .max_blocking_threads(16)
        .thread_stack_size(512 << 10)
        .build()?;
    if files {
        // Where it steps to for a directory must not be left to chance before the first.
        rustix::process::chdir("/")?;
    }
    let bounds = Bounds {
        address_bytes: None,
        cpu_seconds: None,
        file_bytes: FILE_BYTES,
        open_files: OPEN_FILES,
    };
    let landlock = lock_down(Role::Host { files }, &bounds)?;
    let confined = Ready {
        version: VERSION,
        landlock,
        seccomp_sha256: Program::wasm_host(files).sha256(),
    };
    // What goes wrong in a run is told in its report; the lines of a panic would go to whoever started us.
    std::panic::set_hook(Box::new(|_| ()));
    runtime.block_on(serve(socket, loaders, confined, files))?;
    Ok(())
}
