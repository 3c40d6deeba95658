//! Every environment variable that Leasehold reads. Nothing else may read one.
//!
//! `leasehold --help` prints this table, and tidy compares it with the documentation.
//! Builds with debug assertions also read `LEASEHOLD_HOLD` and `LEASEHOLD_FAULT`, for tests: they hold a run at
//! a stage, or make a step of removal fail.

use std::ffi::OsString;

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
pub(crate) const ALL: [Variable; 6] = [
    STATE_DIR,
    RUN_DIR,
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

/// The registry as a block of help text.
pub(crate) fn help() -> String {
    let mut text = String::from("Environment:\n");
    for variable in ALL {
        text.push_str(&format!("  {:<21} {}\n", variable.name, variable.what));
    }
    text.pop();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

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
