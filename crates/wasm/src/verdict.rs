//! What the end of a call says about the run, in the order: its time, a limit of ours, its own exit, a trap,
//! anything else.

use leasehold_core::end::{ExitStatus, LimitHit};
use leasehold_core::limits::Resource;
use leasehold_protocol::wasm::{Report, RunLimits};
use wasmtime::component::ResourceTableError;
use wasmtime::{Trap, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use crate::engine::STACK_BYTES;
use crate::limiter::Breach;

/// Most bytes of one name in a backtrace.
const NAME_MAX: usize = 200;

/// What the engine's WASI says, last, of a call by a module that exports no memory to read from or write to.
const NO_MEMORY: &str = "missing required memory export";

/// How it begins to say what is wrong with an argument.
const BAD_ARGUMENTS: [&str; 7] = [
    ": In func wasi_snapshot_preview1::",
    ": Pointer out of bounds: ",
    ": Pointer not aligned to ",
    ": Pointer overflow",
    ": Slice length mismatch",
    ": Invalid UTF-8 encountered: ",
    ": Int conversion error: ",
];

/// Why a run got no further.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The program returned; whether it says it went well.
    Returned(bool),
    /// The call failed.
    Failed(wasmtime::Error),
    /// It could not be made ready to run.
    NotStarted(wasmtime::Error),
    /// Its wall limit.
    Wall,
    /// Its processor limit, and what was used, in milliseconds.
    Cpu(u64),
    /// Its owner.
    Cancelled,
}

/// Puts it in the report.
pub(crate) fn give(report: &mut Report, stop: Stop, limits: &RunLimits) {
    match stop {
        Stop::Returned(well) => report.exit = exit(i32::from(!well)),
        Stop::Wall => report.wall_expired = true,
        Stop::Cancelled => report.cancelled = true,
        Stop::Cpu(used) => {
            report.killed_by = Some(LimitHit {
                which: Resource::CpuTime,
                limit: limits.cpu_time_ms.unwrap_or(used),
                observed: used,
            });
        }
        Stop::Failed(error) => failed(report, &error, limits),
        Stop::NotStarted(error) => {
            let known = known(report, &error, limits);
            if !known {
                report.detail = Some(text(&error));
                // What it asked for at its very start and did not get is the reason, if there was such.
                match report.denied.first() {
                    Some(hit) => report.killed_by = Some(*hit),
                    None => report.exit = Some(ExitStatus::NotExecutable),
                }
            }
        }
    }
}

fn exit(code: i32) -> Option<ExitStatus> {
    Some(ExitStatus::Exit {
        code: (code & 0xff) as u8,
    })
}

fn failed(report: &mut Report, error: &wasmtime::Error, limits: &RunLimits) {
    if !known(report, error, limits) {
        report.crashed = Some(text(error));
    }
}

/// A limit, an exit or a trap.
fn known(report: &mut Report, error: &wasmtime::Error, limits: &RunLimits) -> bool {
    if let Some(Breach(hit)) = error.downcast_ref() {
        report.killed_by = Some(*hit);
    } else if matches!(error.downcast_ref(), Some(ResourceTableError::Full)) {
        report.killed_by = Some(LimitHit {
            which: Resource::Handles,
            limit: limits.handles.into(),
            observed: u64::from(limits.handles) + 1,
        });
    } else if let Some(I32Exit(code)) = error.downcast_ref() {
        report.exit = exit(*code);
    } else if let Some(trap) = error.downcast_ref::<Trap>() {
        trapped(report, *trap, limits);
        report.backtrace = backtrace(error);
    } else if let Some(name) = bad_call(error) {
        report.exit = Some(ExitStatus::Trap {
            name: name.to_owned(),
        });
        report.backtrace = backtrace(error);
    } else {
        return false;
    }
    true
}

/// What is wrong with a call of WASI that could not be read: the module's own fault. Known by the engine's words
/// alone; a module that has them in its names says no more than that it is at fault.
fn bad_call(error: &wasmtime::Error) -> Option<&'static str> {
    let said = format!("{error:#}");
    if said.ends_with(NO_MEMORY) {
        Some("call of WASI by a module that exports no memory")
    } else if BAD_ARGUMENTS.iter().any(|words| said.contains(words)) {
        Some("call of WASI with arguments that cannot be read")
    } else {
        None
    }
}

fn trapped(report: &mut Report, trap: Trap, limits: &RunLimits) {
    let killed = |which, limit| {
        Some(LimitHit {
            which,
            limit,
            observed: limit,
        })
    };
    match trap {
        Trap::StackOverflow => report.killed_by = killed(Resource::Stack, STACK_BYTES as u64),
        Trap::OutOfFuel => {
            report.killed_by = killed(Resource::Fuel, limits.fuel.unwrap_or(u64::MAX))
        }
        trap => {
            let name = trap.to_string();
            let name = name.strip_prefix("wasm trap: ").unwrap_or(&name).to_owned();
            report.exit = Some(ExitStatus::Trap { name });
        }
    }
}

/// The program's functions, innermost first. Their names are its own: cut, and without control characters.
fn backtrace(error: &wasmtime::Error) -> Vec<String> {
    let Some(trace) = error.downcast_ref::<WasmBacktrace>() else {
        return Vec::new();
    };
    let names = trace.frames().iter().map(|frame| {
        let name = frame.func_name().map_or_else(
            || format!("function {}", frame.func_index()),
            |name| printable(name).chars().take(NAME_MAX).collect(),
        );
        match frame.func_offset() {
            Some(offset) => format!("{name} +{offset:#x}"),
            None => name,
        }
    });
    names.collect()
}

fn printable(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

fn text(error: &wasmtime::Error) -> String {
    printable(&format!("{error:#}")).chars().take(500).collect()
}
