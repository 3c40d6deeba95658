//! The supervisor alone, for tests and for trying things by hand: `supervise INIT [IDLE_MS]`.
//! The directories come from the environment as always.

use std::process::ExitCode;
use std::time::Duration;

use leasehold_protocol::memory;
use leasehold_supervisor::program::InitProgram;
use leasehold_supervisor::{Config, IDLE_EXIT, paths::Paths, retention::Retention};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(init), idle) = (arguments.next(), arguments.next()) else {
        return ExitCode::from(2);
    };
    let (Ok(paths), Ok(init)) = (Paths::from_env(), std::fs::read(init)) else {
        return ExitCode::from(2);
    };
    let idle = idle
        .and_then(|ms| ms.parse().ok())
        .map(Duration::from_millis);
    let Ok(retention) = Retention::from_env() else {
        return ExitCode::from(2);
    };
    let Ok(init) = memory::sealed("leasehold-init", &init) else {
        return ExitCode::from(2);
    };
    leasehold_supervisor::main(Config {
        paths,
        init: InitProgram::whole(init),
        retention,
        idle_exit: idle.unwrap_or(IDLE_EXIT),
        scope: true,
    })
}
