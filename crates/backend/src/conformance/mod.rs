//! One suite that every backend must pass, the fake one included.
//!
//! A case that needs something this backend or host lacks is skipped and names what is missing.
//! Cases run one after another against a backend whose state belongs to nobody else.

mod cases;
mod launches;
mod limits;
pub mod script;

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use leasehold_core::contract::Enforcement;
use leasehold_core::end::EndReason;
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::limits::{Limits, Resource};
use leasehold_core::name::Name;
use leasehold_core::record::RunRecord;
use leasehold_core::spec::SandboxSpec;

use self::script::{Command, Difference, Language, Native, Script};
use crate::error::BackendError;
use crate::execution::{Execution, RunEvent};
use crate::seam::{Backend, Capabilities, Computer, Doing};

/// Longest time of one case.
const CASE: Duration = Duration::from_secs(90);
/// Most output a case looks at.
const OUTPUT_MAX: usize = 1 << 20;

/// What a test can do to a backend from outside.
pub trait Rig: Send + Sync {
    /// Kills our own first process in a computer behind its backend's back. `None` when there is no
    /// way to.
    fn crash<'a>(&'a self, sandbox: &'a SandboxId) -> Option<Doing<'a, Result<(), String>>>;

    /// How commands are said to the backend.
    fn language(&self) -> &dyn Language {
        &Native
    }

    /// Whose the runs are that are launched.
    fn tenant(&self) -> Option<Name> {
        None
    }
}

/// A rig that can do nothing.
#[derive(Debug, Clone, Copy)]
pub struct NoRig;

impl Rig for NoRig {
    fn crash<'a>(&'a self, _: &'a SandboxId) -> Option<Doing<'a, Result<(), String>>> {
        None
    }
}

/// What came of one case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The promise holds.
    Passed,
    /// It does not.
    Failed(String),
    /// It could not be tried: what is missing.
    Skipped(String),
}

/// What came of all cases, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Which backend.
    pub backend: &'static str,
    /// Name and outcome of each case.
    pub rows: Vec<(&'static str, Outcome)>,
}

impl Report {
    /// How many cases failed.
    #[must_use]
    pub fn failures(&self) -> usize {
        let failed = |row: &&(&str, Outcome)| matches!(row.1, Outcome::Failed(_));
        self.rows.iter().filter(failed).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, outcome) in &self.rows {
            match outcome {
                Outcome::Passed => writeln!(out, "ok   {}: {name}", self.backend)?,
                Outcome::Failed(why) => writeln!(out, "FAIL {}: {name}: {why}", self.backend)?,
                Outcome::Skipped(why) => writeln!(out, "SKIP {}: {name}: {why}", self.backend)?,
            }
        }
        Ok(())
    }
}

/// Why a case does not pass.
#[derive(Debug)]
enum Trouble {
    Wrong(String),
    Missing(String),
}

type Verdict = Result<(), Trouble>;

impl From<BackendError> for Trouble {
    fn from(error: BackendError) -> Self {
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        Self::Wrong(text)
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self::Wrong(error.to_string())
    }
}

/// Fails the case unless the condition holds.
macro_rules! check {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err(crate::conformance::Trouble::Wrong(format!($($words)+)));
        }
    };
}
use check;

/// The backend under test and what is known of it.
struct Suite<'a> {
    backend: &'a dyn Backend,
    rig: &'a dyn Rig,
    capabilities: Capabilities,
}

/// One finished run.
struct Finished {
    record: RunRecord,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    events: Vec<RunEvent>,
}

impl Finished {
    fn end(&self) -> Result<&EndReason, Trouble> {
        let missing = || Trouble::Wrong("the record has no end".to_owned());
        self.record.end.as_ref().ok_or_else(missing)
    }
}

impl Suite<'_> {
    async fn park(&self, limits: Limits) -> Result<Box<dyn Computer>, Trouble> {
        let spec = SandboxSpec {
            limits,
            ..SandboxSpec::default()
        };
        Ok(self.backend.provision(spec, None).await?)
    }

    fn command(&self, script: Script) -> Command {
        self.rig.language().command(script)
    }

    fn differs(&self, difference: Difference) -> bool {
        self.rig.language().differs(difference)
    }

    /// Runs a command in a fresh computer to its end.
    async fn run(&self, limits: Limits, script: Script) -> Result<Finished, Trouble> {
        let computer = self.park(limits).await?;
        finish(self.begin(&*computer, new_run()?, script).await?).await
    }

    /// The same with a command that was changed.
    async fn run_command(&self, command: Command) -> Result<Finished, Trouble> {
        let computer = self.park(Limits::default()).await?;
        let Command { exec, module } = command;
        finish(computer.run(new_run()?, exec, module).await?).await
    }

    /// Begins a command in a computer.
    async fn begin(
        &self,
        computer: &dyn Computer,
        run: RunId,
        script: Script,
    ) -> Result<Execution, BackendError> {
        let Command { exec, module } = self.command(script);
        computer.run(run, exec, module).await
    }

    /// Skips the case unless a limit really holds here.
    fn needs(&self, resource: Resource) -> Verdict {
        let rows = &self.capabilities.enforcement;
        let row = rows.iter().find(|row| row.which == resource);
        match row.map(|row| row.how) {
            Some(Enforcement::Enforced) => Ok(()),
            _ => Err(Trouble::Missing(format!(
                "enforcement of `{}`",
                resource.word()
            ))),
        }
    }
}

/// A run id nobody used.
fn new_run() -> Result<RunId, Trouble> {
    let mut entropy = [0; 13];
    let got = rustix::rand::getrandom(&mut entropy, rustix::rand::GetRandomFlags::empty());
    match got {
        Ok(13) => Ok(RunId::from_entropy(&entropy)),
        _ => Err(Trouble::Wrong("no random bytes".to_owned())),
    }
}

fn content(file: &File) -> Result<Vec<u8>, Trouble> {
    let mut bytes = Vec::new();
    let mut piece = [0; 8_192];
    while bytes.len() < OUTPUT_MAX {
        let got = file.read_at(&mut piece, bytes.len() as u64)?;
        if got == 0 {
            break;
        }
        bytes.extend(&piece[..got]);
    }
    Ok(bytes)
}

/// Follows a run to the end of its removal.
async fn finish(mut execution: Execution) -> Result<Finished, Trouble> {
    let mut events = Vec::new();
    while let Some(event) = execution.next().await {
        let event = event?;
        if let RunEvent::Cleaned(record) = event {
            return Ok(Finished {
                record: *record,
                stdout: content(&execution.stdout)?,
                stderr: content(&execution.stderr)?,
                events,
            });
        }
        events.push(event);
    }
    Err(Trouble::Wrong(
        "the events ended before removal was told".to_owned(),
    ))
}

/// Waits until so many bytes of standard output are there.
async fn await_output(execution: &mut Execution, bytes: u64) -> Verdict {
    while let Some(event) = execution.next().await {
        match event? {
            RunEvent::Output { stdout, .. } if stdout >= bytes => return Ok(()),
            RunEvent::Ended(record) => {
                return Err(Trouble::Wrong(format!(
                    "it ended before its output came: {:?}",
                    record.end
                )));
            }
            _ => {}
        }
    }
    Err(Trouble::Wrong("the events ended".to_owned()))
}

/// Runs every case.
pub async fn all(backend: &dyn Backend, rig: &dyn Rig) -> Report {
    let mut report = Report {
        backend: backend.name(),
        rows: Vec::new(),
    };
    let capabilities = match backend.probe().await {
        Ok(capabilities) => capabilities,
        Err(error) => {
            let hint = error.hint.as_deref().unwrap_or("no hint");
            let why = format!("{error} ({hint})");
            report.rows.push(("probe", Outcome::Failed(why)));
            return report;
        }
    };
    let suite = Suite {
        backend,
        rig,
        capabilities,
    };
    for (name, case) in cases::ALL.iter().chain(launches::ALL).chain(limits::ALL) {
        let outcome = match tokio::time::timeout(CASE, case(&suite)).await {
            Ok(Ok(())) => Outcome::Passed,
            Ok(Err(Trouble::Wrong(why))) => Outcome::Failed(why),
            Ok(Err(Trouble::Missing(what))) => Outcome::Skipped(what),
            Err(_) => Outcome::Failed(format!("did not end within {CASE:?}")),
        };
        report.rows.push((name, outcome));
    }
    report
}

type Case = for<'a> fn(&'a Suite<'a>) -> Doing<'a, Verdict>;
