//! Collected files from the record's directory into the caller's, with the caller's own rights.
//!
//! Names come from a hostile guest: they are only ever used below the destination's descriptor, by
//! the collector's own export.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use leasehold_core::quantity::format_bytes;
use leasehold_core::record::{Artifact, RunRecord};
use leasehold_supervisor::collector::export::{self, MayExecute};
use leasehold_supervisor::paths::Paths;
use rustix::fs::{Mode, OFlags, open};
use serde::Serialize;

use crate::fault::Fault;
use crate::{place, voice};

/// Skipped and risky files that are named one by one.
const NAMED_MAX: usize = 8;

/// The directory that artifacts go to.
#[derive(Debug)]
pub(crate) struct Destination {
    path: PathBuf,
    directory: OwnedFd,
    may_execute: MayExecute,
}

/// What was written and what was not.
#[derive(Debug, Serialize)]
pub(crate) struct Exported {
    /// The directory.
    place: PathBuf,
    /// How many files were written.
    files: usize,
    /// Their bytes.
    bytes: u64,
    /// Each that was not written.
    left: Vec<Left>,
    /// How many of those this host's tools may execute.
    withheld: usize,
    /// Those that were written and that this host's tools may execute.
    risky: Vec<String>,
}

/// A file that was not written.
#[derive(Debug, Serialize)]
struct Left {
    path: String,
    reason: String,
}

impl Left {
    fn text(&self) -> String {
        let (path, reason) = (voice::clean(&self.path), voice::clean(&self.reason));
        format!("not written: {path} ({reason})")
    }
}

impl Destination {
    /// Opens the directory, made if it is not there, before anything runs. Files that this host's tools may
    /// execute are written where `unsafe_too` says so.
    ///
    /// # Errors
    /// When it cannot be made or is no directory.
    pub(crate) fn open(path: &Path, unsafe_too: bool) -> Result<Self, Fault> {
        let may_execute = match unsafe_too {
            true => MayExecute::Write,
            false => MayExecute::Withhold,
        };
        let failed = |error: &dyn std::error::Error| {
            Fault::usage(format!("cannot use `--out` {}", path.display())).because(error)
        };
        std::fs::create_dir_all(path).map_err(|error| failed(&error))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(path, flags, Mode::empty()).map_err(|errno| failed(&errno))?;
        Ok(Self {
            path: path.to_owned(),
            directory,
            may_execute,
        })
    }

    /// Writes every collected file of a record.
    ///
    /// # Errors
    /// When the copies cannot be opened or a file cannot be written.
    pub(crate) fn take(&self, paths: &Paths, record: &RunRecord) -> Result<Exported, Fault> {
        if record.artifacts.iter().all(|file| file.sha256.is_none()) {
            return Ok(Exported::of(&self.path, &record.artifacts, &[]));
        }
        let staging = place::run_directory(paths, &record.run).join("artifacts");
        self.take_from(&staging, &record.artifacts)
    }

    /// Writes every collected file whose copy is in a directory, named by its place in the list.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub(crate) fn take_from(
        &self,
        staging: &Path,
        artifacts: &[Artifact],
    ) -> Result<Exported, Fault> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let copies = open(staging, flags, Mode::empty()).map_err(|errno| {
            Fault::host(format!("cannot open {}", staging.display())).because(&errno)
        })?;
        let became = export::export(
            copies.as_fd(),
            artifacts,
            self.directory.as_fd(),
            self.may_execute,
        )
        .map_err(|error| {
            Fault::host("cannot write the artifacts")
                .because(&error)
                .hint(format!("the copies are at {}", staging.display()))
        })?;
        Ok(Exported::of(&self.path, artifacts, &became))
    }
}

impl Exported {
    fn of(place: &Path, artifacts: &[Artifact], became: &[export::Exported]) -> Self {
        let mut exported = Self {
            place: place.to_owned(),
            files: 0,
            bytes: 0,
            left: Vec::new(),
            withheld: 0,
            risky: Vec::new(),
        };
        for (at, file) in artifacts.iter().enumerate() {
            let reason = match became.get(at) {
                Some(export::Exported::Written) => {
                    exported.files += 1;
                    exported.bytes += file.bytes;
                    if file.may_execute_on_host {
                        exported.risky.push(file.path.clone());
                    }
                    None
                }
                Some(export::Exported::Withheld) => {
                    exported.withheld += 1;
                    Some("this host's tools may execute it")
                }
                Some(export::Exported::InTheWay) => Some("something else stands at its place"),
                Some(export::Exported::NotCollected) | None => None,
            };
            let reason = reason.or(file.skipped.as_deref());
            exported.left.extend(reason.map(|reason| Left {
                path: file.path.clone(),
                reason: reason.to_owned(),
            }));
        }
        exported
    }

    /// Tells what was written, what was not, and what to be careful with.
    pub(crate) fn tell(&self) {
        for text in self.texts() {
            voice::note(&text);
        }
        if self.withheld > 0 {
            voice::hint("--unsafe-artifacts writes files that this host's tools may execute, too");
        }
    }

    /// Tells only what was not written, for those who want to hear nothing else.
    pub(crate) fn tell_left(&self) {
        for left in self.left.iter().take(NAMED_MAX) {
            voice::note(&left.text());
        }
    }

    fn texts(&self) -> Vec<String> {
        let mut texts = vec![format!(
            "{} artifact{} ({}) written to {}",
            self.files,
            if self.files == 1 { "" } else { "s" },
            format_bytes(self.bytes),
            self.place.display()
        )];
        for left in self.left.iter().take(NAMED_MAX) {
            texts.push(left.text());
        }
        for path in self.risky.iter().take(NAMED_MAX) {
            texts.push(format!(
                "be careful: {} may be executed by this host's tools",
                voice::clean(path)
            ));
        }
        let named = self.left.len().min(NAMED_MAX) + self.risky.len().min(NAMED_MAX);
        let more = self.left.len() + self.risky.len() - named;
        if more > 0 {
            texts.push(format!("and {more} more, see the record"));
        }
        texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_and_what_is_risky_is_told() {
        use export::Exported as E;
        let file = |path: &str, skipped: Option<&str>, risky| Artifact {
            path: path.to_owned(),
            bytes: 10,
            sha256: None,
            skipped: skipped.map(str::to_owned),
            may_execute_on_host: risky,
        };
        let mut artifacts = vec![
            file("a", None, false),
            file(".git/hooks/x", None, true),
            file("l\x1b[2J", Some("symlink"), false),
            file(".envrc", None, true),
        ];
        let mut became = vec![E::Written, E::Written, E::NotCollected, E::Withheld];
        let texts = Exported::of(Path::new("out"), &artifacts, &became).texts();
        assert_eq!(
            texts,
            [
                "2 artifacts (20 B) written to out",
                "not written: l\\x1b[2J (symlink)",
                "not written: .envrc (this host's tools may execute it)",
                "be careful: .git/hooks/x may be executed by this host's tools",
            ]
        );
        artifacts.extend((0..20).map(|at| file(&at.to_string(), Some("limit"), false)));
        became.extend((0..20).map(|_| E::NotCollected));
        let texts = Exported::of(Path::new("out"), &artifacts, &became).texts();
        assert_eq!(texts.last().unwrap(), "and 14 more, see the record");
    }
}
