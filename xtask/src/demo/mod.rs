//! `cargo xtask demo`: what it is, in steps that a person can repeat by hand.
//!
//! Its records and sockets are in the target folder, so that trying it changes nothing else.

mod service;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::tally::Tally;
use crate::{setup, step, tree};

/// Exit status that says a limit ended the command.
const LIMIT_ENDED_IT: i32 = 137;

/// Installs what is missing, builds, and runs the examples, alone and as a service.
///
/// # Errors
/// When building fails or an example does not end as it should.
pub(crate) fn run() -> Result<Tally> {
    let mut tally = setup::run(&setup::DEMO)?;
    tally.passed = 0;
    let mut build = step::cargo();
    build
        .args(["build", "-p", "leasehold"])
        .current_dir(tree::root());
    step::tee("build", &mut build, Duration::from_secs(3600))?;
    let demo = Demo::new()?;
    demo.job(&mut tally)?;
    demo.hog(&mut tally)?;
    demo.call(&["stop"])?;
    service::run(&demo, &mut tally)?;
    Ok(tally)
}

struct Demo {
    folder: PathBuf,
}

impl Demo {
    fn new() -> Result<Self> {
        let folder = tree::target().join("demo");
        for part in ["state", "run", "out"] {
            let path = folder.join(part);
            fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
            fs::set_permissions(&path, private)
                .with_context(|| format!("close {}", path.display()))?;
        }
        Ok(Self { folder })
    }

    /// A Python job over a CSV: sees a disposable clone of the folder, and one file comes back.
    fn job(&self, tally: &mut Tally) -> Result<()> {
        println!(
            "\n--- 1. a data job: its folder is cloned, one file is kept, the rest is thrown away"
        );
        let out = self.folder.join("out");
        let out = out.to_string_lossy();
        let status = self.call(&[
            "run",
            "--memory",
            "256M",
            "--timeout",
            "30s",
            "--wait-cleanup",
            "--workspace",
            "examples/orders",
            "--artifact",
            "summary.csv",
            "--out",
            &out,
            "--",
            "python3",
            "report.py",
        ])?;
        if status != 0 {
            bail!("the data job ended with status {status}");
        }
        let summary = Path::new(&*out).join("summary.csv");
        let text =
            fs::read_to_string(&summary).with_context(|| format!("read {}", summary.display()))?;
        println!("\n{}:\n{text}", summary.display());
        if tree::root().join("examples/orders/summary.csv").exists() {
            bail!("the job wrote into the caller's own folder");
        }
        println!("\n--- its record, which stays after the sandbox is gone");
        self.call(&["show", &self.newest()?])?;
        tally.passed += 1;
        Ok(())
    }

    /// A job that takes all memory it can get: it is ended, and the reason is said.
    fn hog(&self, tally: &mut Tally) -> Result<()> {
        println!("\n--- 2. a job that takes too much memory: it is ended, and told so");
        let status = self.call(&[
            "run",
            "--memory",
            "64M",
            "--timeout",
            "30s",
            "--workspace",
            "examples/hungry",
            "--",
            "python3",
            "hungry.py",
        ])?;
        if status != LIMIT_ENDED_IT {
            bail!("the hungry job ended with status {status}, not with {LIMIT_ENDED_IT}");
        }
        println!("(status {status}: a limit ended it)");
        tally.passed += 1;
        Ok(())
    }

    /// The id of the newest run.
    fn newest(&self) -> Result<String> {
        let runs = self.folder.join("state/runs");
        fs::read_dir(&runs)
            .with_context(|| format!("list {}", runs.display()))?
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let when = entry.metadata().ok()?.modified().ok()?;
                Some((when, entry.file_name().to_string_lossy().into_owned()))
            })
            .max()
            .map(|(_, name)| name)
            .context("there is no run record")
    }

    /// Prints and runs one command line; returns its status.
    fn call(&self, words: &[&str]) -> Result<i32> {
        let mut command = self.command(words);
        let words: Vec<String> = words.iter().map(|word| step::quoted(word)).collect();
        println!("\n$ leasehold {}", words.join(" "));
        let status = command
            .stdin(Stdio::null())
            .status()
            .context("start leasehold")?;
        Ok(status.code().unwrap_or(-1))
    }
}
