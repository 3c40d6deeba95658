//! The commands the suite runs: a closed list, so that a backend without an operating system can
//! play them, and one that runs no native programs can say them in its own [`Language`].

use leasehold_core::spec::ExecSpec;

use crate::wasm::Module;

/// One command of the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Script {
    /// Returns 0.
    True,
    /// Returns 1.
    False,
    /// Returns this.
    Exit(u8),
    /// Ends itself by `SIGKILL`.
    Signal,
    /// Is not there.
    Missing,
    /// Is there and no program.
    NotExecutable,
    /// Writes [`PRINTED`] to standard output and [`COMPLAINED`] to standard error.
    Print,
    /// Copies standard input to standard output.
    Echo,
    /// Writes its environment, a line each.
    Env,
    /// Writes its working directory and a line end.
    Pwd,
    /// Writes `before` and a line end, then sleeps for ten minutes.
    Sleep,
    /// The same, deaf to `SIGTERM`.
    Stubborn,
    /// Takes memory without end.
    Hog,
    /// Uses the processor without end.
    Spin,
    /// Starts 64 processes that stay; returns 2 when one cannot be started.
    Fork,
    /// Writes 8 MiB to `/workspace/full`; returns 1 when they do not fit.
    Fill,
    /// Writes [`FLOOD`] bytes to standard output.
    Flood,
    /// Leaves `/tmp/mark`, writes `before` and a line end, then sleeps for ten minutes.
    Mark,
    /// Returns 1 when `/tmp/mark` is there.
    Look,
    /// Leaves `/tmp/mark` and then looks: returns 1.
    MarkAndLook,
    /// Writes the number of processes it can see and a line end.
    Count,
    /// Writes `mine` to `/workspace/out/a` and makes `/workspace/out/link` lead to `/etc/passwd`.
    Artifacts,
}

/// What `PATH` is in the environment of each command.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// What [`Script::Print`] writes to standard output.
pub const PRINTED: &[u8] = b"out\0\xff\n";
/// What [`Script::Print`] writes to standard error.
pub const COMPLAINED: &[u8] = b"err\n";
/// How many bytes [`Script::Flood`] writes.
pub const FLOOD: u64 = 100_000;

/// A command, and the module it names where it is one.
#[derive(Debug, Clone)]
pub struct Command {
    /// What is run.
    pub exec: ExecSpec,
    /// The bytes of its module.
    pub module: Option<Module>,
}

/// Where what a backend runs is not as native programs are. Each is a promise of its own, and tried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// A program cannot end itself by a signal: [`Script::Signal`] ends by a trap.
    Traps,
    /// An order to end cannot be ignored: [`Script::Stubborn`] ends as [`Script::Sleep`] does.
    Obeys,
    /// No process can be started: [`Script::Fork`] is told to be no program.
    Alone,
    /// There is no working directory but the workspace: another one is refused.
    NoDirectory,
    /// What is not there is refused before anything is begun.
    NothingMissing,
    /// Memory is denied and does not kill, unless denials do.
    MemoryDenied,
    /// No agent runs beside the program: a channel to one is refused.
    NoAgent,
}

/// How the commands of the suite are said to a backend.
pub trait Language: Send + Sync {
    /// The command, with nothing in its environment but `PATH`.
    fn command(&self, script: Script) -> Command;

    /// Where it is not as a native program is.
    fn differs(&self, difference: Difference) -> bool;
}

/// Programs of the sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Native;

impl Language for Native {
    fn command(&self, script: Script) -> Command {
        Command {
            exec: script.exec(),
            module: None,
        }
    }

    fn differs(&self, _: Difference) -> bool {
        false
    }
}

const SHELL: [(Script, &str); 14] = [
    (Script::Signal, "kill -KILL $$"),
    (Script::Print, r"printf 'out\000\377\n'; printf 'err\n' >&2"),
    (Script::Sleep, "echo before; exec sleep 600"),
    (
        Script::Stubborn,
        "trap '' TERM; echo before; sleep 600; sleep 600",
    ),
    (Script::Spin, "while :; do :; done"),
    (
        Script::Fork,
        "i=0; while [ $i -lt 64 ]; do sleep 600 & i=$((i + 1)); done",
    ),
    (Script::Fill, "head -c 8388608 /dev/zero > /workspace/full"),
    (Script::Flood, "head -c 100000 /dev/zero"),
    (
        Script::Mark,
        "echo here > /tmp/mark; echo before; exec sleep 600",
    ),
    (Script::Look, "test ! -e /tmp/mark"),
    (
        Script::MarkAndLook,
        "echo here > /tmp/mark; test ! -e /tmp/mark",
    ),
    (Script::Count, "set -- /proc/[0-9]*; echo $#"),
    (
        Script::Artifacts,
        "mkdir out && printf mine > out/a && ln -s /etc/passwd out/link",
    ),
    (Script::Hog, "exec tail /dev/zero"),
];

const PLAIN: [(Script, &str); 7] = [
    (Script::True, "true"),
    (Script::False, "false"),
    (Script::Missing, "/nowhere/no-such-command"),
    (Script::NotExecutable, "/etc/passwd"),
    (Script::Echo, "cat"),
    (Script::Env, "env"),
    (Script::Pwd, "pwd"),
];

impl Script {
    /// The native command, with nothing in its environment but `PATH`.
    #[must_use]
    pub fn exec(self) -> ExecSpec {
        let plain = PLAIN.iter().find(|(script, _)| *script == self);
        let mut exec = match (self, plain) {
            (Self::Exit(code), _) => shell(&format!("exit {code}")),
            (_, Some((_, program))) => ExecSpec::command([*program]),
            (_, None) => {
                let text = SHELL.iter().find(|(script, _)| *script == self);
                shell(text.map_or("exit 99", |(_, text)| text))
            }
        };
        exec.env.insert("PATH".to_owned(), PATH.to_owned());
        exec
    }

    /// Which command of the suite this is.
    #[must_use]
    pub fn read(exec: &ExecSpec) -> Option<Self> {
        let argv: Vec<&str> = exec.argv.iter().map(String::as_str).collect();
        match argv.as_slice() {
            ["sh", "-c", text] => {
                if let Some(code) = text.strip_prefix("exit ") {
                    return code.parse().ok().map(Self::Exit);
                }
                let found = SHELL.iter().find(|(_, known)| known == text);
                found.map(|(script, _)| *script)
            }
            [program] => {
                let found = PLAIN.iter().find(|(_, known)| known == program);
                found.map(|(script, _)| *script)
            }
            _ => None,
        }
    }
}

fn shell(text: &str) -> ExecSpec {
    ExecSpec::command(["sh", "-c", text])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_known_again() {
        let listed = SHELL.iter().chain(&PLAIN).map(|(script, _)| *script);
        for script in listed.chain([Script::Exit(7)]) {
            assert_eq!(Script::read(&script.exec()), Some(script));
        }
        assert_eq!(Script::read(&ExecSpec::command(["ls"])), None);
    }
}
