//! Probes of exhaustion: a guest that takes all it can, judged by what the host counts.
//!
//! Each answers a numbered probe of the design and has its control in the same test: the same attempt with
//! the guard off, that is outside every sandbox or under a limit too high to matter, is seen to take more.

mod bombs;
mod disk;
mod floods;
mod held;
mod memory;
mod processor;
mod stubborn;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use leasehold_e2e::{Instance, Running, c_helper, skip};

/// Longest that one attempt may take.
const PATIENCE: Duration = Duration::from_secs(40);

/// A hostile program on the host, and its folder to be given as a workspace.
pub(crate) struct Hostile {
    /// Where it is outside.
    pub(crate) program: PathBuf,
    /// A folder with it in it, as an argument of `--workspace`.
    pub(crate) workspace: String,
}

/// A compiled helper as `./helper` of a workspace; a loud skip where it cannot be compiled.
pub(crate) fn hostile(
    test: &str,
    instance: &Instance,
    name: &str,
    source: &str,
) -> Option<Hostile> {
    let Some(program) = c_helper(name, source) else {
        skip(test, "needs the program gcc");
        return None;
    };
    let folder = instance.scratch(name);
    fs::copy(&program, folder.join("helper")).expect("copy the helper");
    Some(Hostile {
        program,
        workspace: folder.display().to_string(),
    })
}

impl Hostile {
    /// Starts it in a sandbox with these flags.
    pub(crate) fn inside(&self, instance: &Instance, flags: &[&str], words: &[&str]) -> Running {
        let head = ["run", "--workspace", &self.workspace];
        instance.start([&head, flags, &["--", "./helper"], words].concat())
    }

    /// Starts it outside every sandbox, in a folder of the instance.
    pub(crate) fn outside(&self, instance: &Instance, words: &[&str]) -> Running {
        let mut command = Command::new(&self.program);
        command.args(words).current_dir(instance.scratch("outside"));
        Running::start(&mut command, None)
    }
}

/// Processes of the host with a word in their arguments, zombies left out.
pub(crate) fn with_word(word: &str) -> Vec<i32> {
    let listing = fs::read_dir("/proc").expect("processes");
    let pids = listing.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &i32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words
            .split(|byte| *byte == 0)
            .any(|own| own == word.as_bytes())
    })
    .collect()
}
