//! What a run leaves behind, moved from the worker's spool to the object store before its outcome is fixed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_backend::seam::Backend;
use leasehold_core::digest::Digest;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::event::RunFact;
use leasehold_core::id::RunId;
use leasehold_core::outcome::StoredStream;
use leasehold_core::record::{Artifact, RunRecord, StreamRecord};
use leasehold_store::seam::RunRow;

use super::Engine;
use super::live::Live;
use super::metrics::count;
use super::retention::pruned;

/// Longest output of a tool that is read as one structured value.
pub(crate) const STRUCTURED_MAX: u64 = 4 << 20;
/// The streams by their place.
const STREAMS: [&str; 2] = ["stdout", "stderr"];
/// How long all that a run left is tried again, what cannot be kept at once.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What was kept.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) stdout: StoredStream,
    pub(crate) stderr: StoredStream,
    pub(crate) artifacts: Vec<Artifact>,
}

impl Kept {
    /// As events, in order.
    pub(crate) fn facts(&self) -> Vec<RunFact> {
        let streams = [("stdout", self.stdout), ("stderr", self.stderr)];
        let stored = streams.into_iter().filter_map(|(name, stored)| {
            let digest = stored.digest.filter(|_| stored.stream.kept > 0)?;
            Some(RunFact::OutputStored {
                stream: name.to_owned(),
                bytes: stored.stream.kept,
                digest,
            })
        });
        let taken = self.artifacts.iter().filter(|file| file.sha256.is_some());
        let taken = taken.map(|file| RunFact::ArtifactStored {
            artifact: file.clone(),
        });
        stored.chain(taken).collect()
    }
}

/// The answer for bytes there was no room for.
fn not_kept(what: &str) -> PublicError {
    let message =
        format!("the {what} could not be kept when the run ended: the daemon's disk refused it");
    PublicError::new(ErrorKind::NotFound, message)
}

/// Reads the start of a file, at most so many bytes.
pub(crate) fn read_start(file: &File, bytes: u64) -> io::Result<Vec<u8>> {
    let most = usize::try_from(bytes).map_err(io::Error::other)?;
    let mut content = vec![0; most];
    file.read_exact_at(&mut content, 0)?;
    Ok(content)
}

/// Reads what is there from an offset on, at most so many bytes.
fn read_some(file: &File, offset: u64, most: usize) -> io::Result<Vec<u8>> {
    let mut content = vec![0; most];
    let mut got = 0;
    while got < most {
        match file.read_at(&mut content[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    content.truncate(got);
    Ok(content)
}

impl Engine {
    /// Bytes of standard output (0) or standard error (1) of a run from `offset`, at most `most`: from the
    /// spool while it is carried, from the object store afterwards.
    ///
    /// # Errors
    /// `not_found` when they are not kept any more, or could not be.
    pub(crate) async fn read_output(
        &self,
        live: Option<&Arc<Live>>,
        row: &RunRow,
        which: usize,
        offset: u64,
        most: usize,
    ) -> Result<Vec<u8>, PublicError> {
        if let Some(spools) = live.and_then(|live| live.spools()) {
            return read_some(&spools[which], offset, most).map_err(|error| {
                let message = format!("the output cannot be read: {error}");
                PublicError::new(ErrorKind::Unavailable, message)
            });
        }
        let stored = row.outcome.as_ref().and_then(|outcome| match which {
            0 => outcome.stdout,
            _ => outcome.stderr,
        });
        match stored {
            Some(stored) if stored.stream.kept > offset => {
                let name = STREAMS[which];
                self.kept_still(row, name, |kept| kept.logs_s).await?;
                let digest = stored.digest.ok_or_else(|| not_kept(name))?;
                let read = self.parts.objects.read(digest, offset, most).await;
                read.map_err(|error| pruned(error, name))
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Keeps both streams and every collected file of a run. What cannot be kept within [`PATIENCE`] has no
    /// digest in the result; it is counted.
    pub(crate) async fn keep(
        &self,
        backend: Option<&Arc<dyn Backend>>,
        run: &RunId,
        record: &RunRecord,
        spools: [&File; 2],
    ) -> Kept {
        self.failpoints().before("objects");
        let until = self.parts.clock.elapsed() + PATIENCE;
        let stdout = self.keep_stream(spools[0], record.stdout, until);
        let stderr = self.keep_stream(spools[1], record.stderr, until);
        let (stdout, stderr) = tokio::join!(stdout, stderr);
        let mut artifacts = record.artifacts.clone();
        for (place, file) in artifacts.iter_mut().enumerate() {
            if let Some(wanted) = file.sha256.clone()
                && !self
                    .keep_artifact((backend, run, place), file.bytes, &wanted, until)
                    .await
            {
                file.sha256 = None;
                file.skipped = Some("not_kept".to_owned());
            }
        }
        self.failpoints().after("objects");
        Kept {
            stdout,
            stderr,
            artifacts,
        }
    }

    async fn keep_stream(
        &self,
        spool: &File,
        stream: StreamRecord,
        until: Duration,
    ) -> StoredStream {
        let digest = match stream.kept {
            0 => Some(Digest::of(b"")),
            bytes => self.keep_file(spool, bytes, until).await,
        };
        StoredStream { stream, digest }
    }

    async fn keep_artifact(
        &self,
        (backend, run, place): (Option<&Arc<dyn Backend>>, &RunId, usize),
        bytes: u64,
        wanted: &str,
        until: Duration,
    ) -> bool {
        let copy = match backend {
            Some(backend) => backend.artifact(run.clone(), place).await.ok(),
            None => None,
        };
        let Some(copy) = copy else {
            count(&self.metrics.objects_lost);
            return false;
        };
        let kept = self.keep_file(&copy, bytes, until).await;
        kept.is_some_and(|digest| digest.hex() == wanted)
    }

    async fn keep_file(&self, file: &File, bytes: u64, until: Duration) -> Option<Digest> {
        let mut pause = PAUSE;
        let mut given_up = None;
        loop {
            let kept = match file.try_clone() {
                Ok(file) => self.parts.objects.put(file, bytes).await.ok(),
                Err(_) => None,
            };
            if kept.is_some() {
                return kept;
            }
            count(&self.metrics.object_errors);
            if self.parts.clock.elapsed() + pause > until {
                count(&self.metrics.objects_lost);
                return None;
            }
            drop(given_up.take());
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            given_up = self.parts.descriptors.for_an_end().await;
        }
    }
}
