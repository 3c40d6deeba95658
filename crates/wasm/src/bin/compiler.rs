//! The compiler process: one module from standard input, its machine code to standard output, and it ends.
//!
//! `leasehold-wasm-compiler FLAVOUR CPU_SECONDS ADDRESS_BYTES WASM_BYTES` compiles; with `fingerprint` after the
//! flavour it says what its code depends on. It confines itself before it reads a byte. Its owner bounds its
//! wall time. Status 0: done, and standard error has the kind; 65: no valid module, and standard error says
//! why; 64: wrong arguments; 70: it could not be set up; anything else: the kernel or a defect ended it.

use std::io::{Read as _, Write as _};
use std::process::ExitCode;

use leasehold_jail::lockdown::{Bounds, Role, lock_down};
use leasehold_protocol::wasm::{Flavour, Kind};
use leasehold_wasm::compile::Compiler;

const USAGE: u8 = 64;
const DATA: u8 = 65;
const SOFTWARE: u8 = 70;

/// Largest code that is written.
const CODE_BYTES: u64 = 1 << 30;

struct Failure(u8, String);

fn failure<E: std::fmt::Display>(status: u8) -> impl Fn(E) -> Failure {
    move |error| Failure(status, error.to_string())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match carry_out(&arguments) {
        Ok(said) => {
            say(&said);
            ExitCode::SUCCESS
        }
        Err(Failure(status, why)) => {
            say(&why);
            ExitCode::from(status)
        }
    }
}

/// The one line for its owner. There is nobody to tell if it cannot be written.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn carry_out(arguments: &[String]) -> Result<String, Failure> {
    let flavour = match arguments.first().map(String::as_str) {
        Some("plain") => Flavour::Plain,
        Some("metered") => Flavour::Metered,
        _ => {
            return Err(Failure(
                USAGE,
                "first argument: plain or metered".to_owned(),
            ));
        }
    };
    let compiler = Compiler::new(flavour).map_err(failure(SOFTWARE))?;
    if arguments.get(1).map(String::as_str) == Some("fingerprint") {
        return Ok(compiler.fingerprint());
    }
    let numbers: Vec<u64> = arguments
        .iter()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    let [cpu_seconds, address_bytes, wasm_bytes] = numbers[..] else {
        return Err(Failure(
            USAGE,
            "three numbers come after the flavour".to_owned(),
        ));
    };
    let bounds = Bounds {
        address_bytes: Some(address_bytes),
        cpu_seconds: Some(u32::try_from(cpu_seconds).map_err(failure(USAGE))?),
        file_bytes: CODE_BYTES,
        open_files: 8,
    };
    lock_down(Role::Compiler, &bounds).map_err(failure(SOFTWARE))?;
    let mut wasm = Vec::new();
    let most = wasm_bytes.saturating_add(1);
    std::io::stdin()
        .take(most)
        .read_to_end(&mut wasm)
        .map_err(failure(SOFTWARE))?;
    if wasm.len() as u64 > wasm_bytes {
        return Err(Failure(
            DATA,
            format!("the module is longer than {wasm_bytes} bytes"),
        ));
    }
    let (kind, code) = compiler.compile(&wasm).map_err(failure(DATA))?;
    std::io::stdout()
        .write_all(&code)
        .map_err(failure(SOFTWARE))?;
    Ok(match kind {
        Kind::Core => "core".to_owned(),
        Kind::Component => "component".to_owned(),
    })
}
