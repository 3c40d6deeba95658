//! Every environment variable that Leasehold reads. Nothing else may read one.
//!
//! `leasehold --help` prints this table, and tidy compares it with the documentation.
//! Builds with debug assertions also read `LEASEHOLD_HOLD`, `LEASEHOLD_FAULT`, `LEASEHOLD_DIE`,
//! `LEASEHOLD_POINT` and `LEASEHOLD_NEWER`, for tests: they hold a run at a stage, make a step of removal fail,
//! end the daemon at a write, or the supervisor at a resource of the host, and make a program of the next version.

use std::ffi::OsString;

use leasehold_supervisor::program;
use leasehold_supervisor::retention::Retention;

use crate::fault::Fault;

/// One variable.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Variable {
    /// Its name.
    pub(crate) name: &'static str,
    /// What it does, in one line.
    pub(crate) what: &'static str,
}

/// Where records, logs and ledger live.
pub(crate) const STATE_DIR: Variable = Variable {
    name: "LEASEHOLD_STATE_DIR",
    what: "directory of run records, logs and the ledger",
};

/// Where the supervisor's socket and lock live.
pub(crate) const RUN_DIR: Variable = Variable {
    name: "LEASEHOLD_RUN_DIR",
    what: "directory of the supervisor's socket and lock",
};

/// Whether systemd is asked for control groups.
pub(crate) const SCOPE: Variable = Variable {
    name: "LEASEHOLD_SCOPE",
    what: "auto (default): ask systemd for control groups where none can be made; off: never",
};

/// Where the programs for WebAssembly are.
pub(crate) const WASM_DIR: Variable = Variable {
    name: "LEASEHOLD_WASM_DIR",
    what: "directory of the programs for WebAssembly (else wasm/ beside this one)",
};

/// Which daemon is meant.
pub(crate) const URL: Variable = Variable {
    name: "LEASEHOLD_URL",
    what: "daemon to use, such as http://127.0.0.1:7431 (else the one of the run directory)",
};

/// The key a daemon is spoken to with.
pub(crate) const API_KEY: Variable = Variable {
    name: "LEASEHOLD_API_KEY",
    what: "API key for the daemon (else the first key, where it can be read)",
};

/// Where a daemon serves.
pub(crate) const LISTEN: Variable = Variable {
    name: "LEASEHOLD_LISTEN",
    what: "serve: address and port (else 127.0.0.1:7431)",
};

/// The configuration of a daemon.
pub(crate) const CONFIG: Variable = Variable {
    name: "LEASEHOLD_CONFIG",
    what: "serve: configuration file",
};

/// How long output is kept.
const KEEP_DAYS: Variable = Variable {
    name: "LEASEHOLD_KEEP_DAYS",
    what: "days for which a run keeps its output (30)",
};

/// How much output is kept.
const KEEP_BYTES: Variable = Variable {
    name: "LEASEHOLD_KEEP_BYTES",
    what: "bytes of output kept of all runs together (10737418240)",
};

/// How many outputs are kept.
const KEEP_RUNS: Variable = Variable {
    name: "LEASEHOLD_KEEP_RUNS",
    what: "how many runs keep their output (10000)",
};

/// How many records are kept.
const KEEP_RECORDS: Variable = Variable {
    name: "LEASEHOLD_KEEP_RECORDS",
    what: "how many runs keep their record (100000)",
};

/// The base of an ordinary user's state directory.
const XDG_STATE_HOME: Variable = Variable {
    name: "XDG_STATE_HOME",
    what: "base of an ordinary user's state directory (else ~/.local/state)",
};

/// The base of an ordinary user's run directory.
const XDG_RUNTIME_DIR: Variable = Variable {
    name: "XDG_RUNTIME_DIR",
    what: "base of an ordinary user's run directory (else /tmp)",
};

/// The home directory, for the state directory.
const HOME: Variable = Variable {
    name: "HOME",
    what: "home of an ordinary user, for the state directory",
};

/// The terminal's type.
pub(crate) const TERM: Variable = Variable {
    name: "TERM",
    what: "type of the terminal, passed on with --tty",
};

/// The registry.
pub(crate) const ALL: [Variable; 16] = [
    URL,
    API_KEY,
    LISTEN,
    CONFIG,
    STATE_DIR,
    RUN_DIR,
    KEEP_DAYS,
    KEEP_RUNS,
    KEEP_BYTES,
    KEEP_RECORDS,
    SCOPE,
    WASM_DIR,
    XDG_STATE_HOME,
    XDG_RUNTIME_DIR,
    HOME,
    TERM,
];

/// Reads a variable by name. `--env NAME` passes on what the caller names, so that the name is not
/// always one of the registry.
pub(crate) fn read(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// What [`SCOPE`] says.
///
/// # Errors
/// When it is set to something else.
pub(crate) fn scope_wanted() -> Result<bool, Fault> {
    program::scope_from_env()
        .map_err(|error| Fault::usage(error.to_string()).hint("set it to `auto` or `off`"))
}

/// What the `LEASEHOLD_KEEP_` variables say.
///
/// # Errors
/// When one holds no number, or one out of its bounds.
pub(crate) fn retention() -> Result<Retention, Fault> {
    Retention::from_env().map_err(|error| Fault::usage(error.to_string()))
}

/// The registry as a block of help text.
pub(crate) fn help() -> String {
    let mut text = String::from("Environment:\n");
    for variable in ALL {
        text.push_str(&format!("  {:<22} {}\n", variable.name, variable.what));
    }
    text.pop();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_of_retention_is_told_as_it_is() {
        let rule = Retention::default();
        let told = [
            (KEEP_DAYS, rule.age.as_secs() / 86_400),
            (KEEP_RUNS, rule.runs),
            (KEEP_BYTES, rule.bytes),
            (KEEP_RECORDS, rule.records),
        ];
        for (variable, default) in told {
            assert!(variable.what.ends_with(&format!("({default})")));
        }
        use leasehold_supervisor::retention as read;
        assert_eq!(KEEP_DAYS.name, read::KEEP_DAYS_VARIABLE);
        assert_eq!(KEEP_RUNS.name, read::KEEP_RUNS_VARIABLE);
        assert_eq!(KEEP_BYTES.name, read::KEEP_BYTES_VARIABLE);
        assert_eq!(KEEP_RECORDS.name, read::KEEP_RECORDS_VARIABLE);
        assert_eq!(SCOPE.name, program::SCOPE_VARIABLE);
    }

    #[test]
    fn every_variable_is_in_the_help_once() {
        let help = help();
        for variable in ALL {
            assert_eq!(
                help.matches(&format!("  {} ", variable.name)).count(),
                1,
                "{}",
                variable.name
            );
        }
    }
}
