//! A supervisor of the doctor's own, in directories of its own: what it tries goes the way of every
//! `leasehold run`, and leaves no record among the user's.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use leasehold_backend::process::client::Client;
use leasehold_core::record::RunRecord;
use leasehold_core::spec::{ExecSpec, SandboxSpec};
use leasehold_protocol::supervisor::{Event, Request, Target};
use leasehold_supervisor::paths::Paths;

use super::report::{Check, Section, State};
use crate::fault::Fault;
use crate::run::new_run;
use crate::{place, supervise};

/// How long one probe may take, removal included. Each has a wall limit far below.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a probe's output that are looked at.
const OUTPUT_MAX: usize = 16 << 10;

/// What one run in the ward came to.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) record: RunRecord,
    /// The beginning of its standard output.
    pub(super) stdout: String,
    /// From asking to the fixed outcome.
    pub(super) took: Duration,
}

/// The doctor's own supervisor.
pub(super) struct Ward {
    client: Option<Client>,
    directory: PathBuf,
    runs: u32,
    unclean: Vec<String>,
}

impl Ward {
    /// Makes the directories and starts the supervisor.
    ///
    /// # Errors
    /// When either fails; nothing is left then.
    pub(super) fn open() -> Result<Self, Fault> {
        let directory = PathBuf::from(format!(
            "/tmp/leasehold-doctor-{}-{}",
            std::process::id(),
            new_run()?
        ));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&directory)
            .map_err(|error| {
                Fault::host(format!("cannot make {}", directory.display())).because(&error)
            })?;
        let mut ward = Self {
            client: None,
            directory,
            runs: 0,
            unclean: Vec::new(),
        };
        ward.client = Some(place::connect_or_start(&ward.paths())?);
        Ok(ward)
    }

    /// Its directories.
    pub(super) fn paths(&self) -> Paths {
        Paths::new(&self.directory.join("state"), &self.directory.join("run"))
    }

    /// The supervisor's process.
    pub(super) fn pid(&self) -> Option<u32> {
        self.client.as_ref().map(Client::supervisor_pid)
    }

    /// Runs one command and waits until its removal was observed.
    ///
    /// # Errors
    /// The supervisor's refusal, or that it could not be talked to.
    pub(super) fn run(&mut self, sandbox: SandboxSpec, exec: ExecSpec) -> Result<Seen, Fault> {
        let client = self
            .client
            .as_mut()
            .ok_or_else(|| Fault::host("the doctor's supervisor is gone"))?;
        let request = Request::run(new_run()?, Target::New(sandbox), exec);
        let begun = Instant::now();
        let tag = client.call(request, &[]).map_err(place::client_fault)?;
        let deadline = begun + PATIENCE;
        let (mut spool, mut took) = (None, PATIENCE);
        loop {
            let next = client
                .next_notice(Some(deadline))
                .map_err(place::client_fault)?;
            let Some((notice, fds)) = next else {
                return Err(Fault::host(format!(
                    "a probe did not end within {PATIENCE:?}"
                )));
            };
            if notice.tag != tag {
                continue;
            }
            match notice.event {
                Event::Refused(error) => return Err(error.into()),
                Event::Accepted { .. } => spool = fds.into_iter().next(),
                Event::Ended(_) => took = begun.elapsed(),
                Event::Cleaned(record) => {
                    self.runs += 1;
                    self.note_residues(&record);
                    return Ok(Seen {
                        stdout: spool.map_or_else(String::new, |spool| beginning(&spool)),
                        record: *record,
                        took,
                    });
                }
                _ => {}
            }
        }
    }

    fn note_residues(&mut self, record: &RunRecord) {
        let Some(seen) = &record.cleanup else {
            self.unclean.push("no inventory".to_owned());
            return;
        };
        for residue in seen.residues.iter().filter(|residue| !residue.clean) {
            self.unclean
                .push(format!("{} ({})", residue.resource, residue.detail));
        }
        if seen.residues.is_empty() {
            self.unclean.push("an empty inventory".to_owned());
        }
    }

    /// Ends the supervisor, removes the directories, and says whether everything went.
    pub(super) fn close(mut self) -> Check {
        const WHAT: &str = "removal";
        let stopped = match self.client.take() {
            Some(client) => supervise::stop_it(client).map_err(|fault| fault.chain()),
            None => Ok(()),
        };
        let removed = std::fs::remove_dir_all(&self.directory).map_err(|error| error.to_string());
        self.unclean.extend(stopped.err());
        self.unclean.extend(removed.err());
        if self.unclean.is_empty() {
            let why = format!(
                "{} sandboxes were made and everything of them seen gone",
                self.runs
            );
            return Check::new(Section::Backends, WHAT, State::Ok, why);
        }
        self.unclean.dedup();
        let left = self.unclean.join("; ");
        Check::new(
            Section::Backends,
            WHAT,
            State::Missing,
            format!("left behind: {left}"),
        )
        .mend(Some("leasehold sweep"))
        .breaks()
    }
}

impl Drop for Ward {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            let _ = supervise::stop_it(client);
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The first bytes of a spool.
fn beginning(spool: &OwnedFd) -> String {
    let mut bytes = vec![0; OUTPUT_MAX];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::pread(spool, &mut bytes[filled..], filled as u64) {
            Ok(0) => break,
            Ok(got) => filled += got,
            Err(errno) if io::Error::from(errno).kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&bytes[..filled]).into_owned()
}
