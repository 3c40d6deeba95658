//! The WebAssembly engine's library, used directly by a program of its own: this one links none.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The program, which has the module and waits.
#[derive(Debug)]
pub(super) struct Library {
    child: Child,
    asks: ChildStdin,
    tells: BufReader<ChildStdout>,
}

/// What it measured of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Told {
    /// The run, with the settings that the library has by itself.
    pub(super) run: Duration,
    /// The instance of that run.
    pub(super) instance: Duration,
    /// An instance in the engine as our host has it.
    pub(super) ours: Duration,
}

impl Library {
    /// Starts `program` with a module.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn start(program: &Path, module: &Path) -> Result<Self, String> {
        let child = Command::new(program)
            .arg(module)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let told = |error| format!("cannot start {}: {error}", program.display());
        let mut child = child.map_err(told)?;
        let (Some(asks), Some(tells)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("it has no pipes".to_owned());
        };
        Ok(Self {
            child,
            asks,
            tells: BufReader::new(tells),
        })
    }

    /// One run.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) fn once(&mut self) -> Result<Told, String> {
        let mut line = String::new();
        let asked = self.asks.write_all(b"\n").and_then(|()| {
            self.asks.flush()?;
            self.tells.read_line(&mut line)
        });
        asked.map_err(|error| format!("the library's program is gone: {error}"))?;
        read(&line).ok_or_else(|| format!("the library's program says {line:?}"))
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // It holds nothing, and there is nobody to tell.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(line: &str) -> Option<Told> {
    let mut numbers = line.split_whitespace().map(str::parse);
    let mut next = || numbers.next()?.ok().map(Duration::from_nanos);
    Some(Told {
        run: next()?,
        instance: next()?,
        ours: next()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_numbers_are_read() {
        let nanos = Duration::from_nanos;
        let told = Told {
            run: nanos(9),
            instance: nanos(2),
            ours: nanos(3),
        };
        assert_eq!(read("9 2 3\n"), Some(told));
        assert_eq!(read("9 2\n"), None);
        assert_eq!(read("9 2 x\n"), None);
    }
}
