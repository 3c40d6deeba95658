//! What the engine is made of: everything outside it, behind a seam.

use std::fs::File;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::digest::Digest;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::event::{Head, TenantEntry};
use leasehold_core::id::{RunId, WorkerId};
use leasehold_core::name::{Name, ToolRef};
use leasehold_core::outcome::Outcome;
use leasehold_core::record::Observed;
use leasehold_core::run_contract::RunContract;
use leasehold_store::objects::ObjectError;
use leasehold_store::seam::Store;

use super::backends::Backends;
use super::descriptors::Descriptors;
use super::modules::{Scripts, Templates};
use super::queue::Bounds;
use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::evidence::envelope::Envelope;
use crate::evidence::head::Anchor;
use crate::image::Images;
use crate::plan::OutputCheck;
use crate::vault::Vault;

/// Bytes that are copied to the object store at once.
const COPIED_AT_ONCE: u64 = 1 << 20;

/// Something a part is doing.
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = Result<T, PublicError>> + Send + 'a>>;

/// Bytes by their digest: output streams, artifacts, uploads. What is put is durable when it answers.
pub trait Objects: Send + Sync + 'static {
    /// Keeps the first `bytes` bytes of a file, whatever its own position; gives their digest.
    ///
    /// # Errors
    /// When the file is shorter, or they cannot be kept.
    fn put(&self, file: File, bytes: u64) -> Doing<'_, Digest>;

    /// Bytes of an object from `offset`, at most `most`; fewer only at its end.
    ///
    /// # Errors
    /// `not_found` when it was never there or is no more.
    fn read(&self, digest: Digest, offset: u64, most: usize) -> Doing<'_, Vec<u8>>;

    /// Bytes of an object; `None` where there is none.
    ///
    /// # Errors
    /// When it cannot be asked.
    fn size(&self, digest: Digest) -> Doing<'_, Option<u64>>;

    /// Objects whose digest begins with this byte and that were last put longer than `spared` ago.
    ///
    /// # Errors
    /// When they cannot be listed.
    fn list(&self, first: u8, spared: Duration) -> Doing<'_, Vec<Digest>>;

    /// Removes an object unless it was put within `spared`. Says whether it is gone.
    ///
    /// # Errors
    /// When it cannot be removed.
    fn remove(&self, digest: Digest, spared: Duration) -> Doing<'_, bool>;
}

impl Objects for leasehold_store::objects::Objects {
    fn put(&self, file: File, bytes: u64) -> Doing<'_, Digest> {
        Box::pin(async move {
            let mut upload = self.upload(bytes);
            let mut offset = 0;
            while offset < bytes {
                let piece = (bytes - offset).min(COPIED_AT_ONCE);
                let mut buffer = vec![0; usize::try_from(piece).unwrap_or(usize::MAX)];
                file.read_exact_at(&mut buffer, offset).map_err(|error| {
                    let message = format!("{bytes} bytes cannot be kept: {error} at {offset}");
                    PublicError::new(ErrorKind::Unavailable, message)
                })?;
                let written = upload.write(&buffer).await;
                written.map_err(|error| error.public())?;
                offset += piece;
            }
            let stored = upload.finish().await.map_err(|error| error.public())?;
            Ok(stored.digest)
        })
    }

    fn read(&self, digest: Digest, offset: u64, most: usize) -> Doing<'_, Vec<u8>> {
        Box::pin(async move {
            let end = offset.saturating_add(most as u64);
            let read = leasehold_store::objects::Objects::read(self, &digest, offset..end).await;
            read.map_err(|error| error.public())
        })
    }

    fn size(&self, digest: Digest) -> Doing<'_, Option<u64>> {
        Box::pin(async move {
            match leasehold_store::objects::Objects::size(self, &digest).await {
                Ok(bytes) => Ok(Some(bytes)),
                Err(ObjectError::NotFound(_)) => Ok(None),
                Err(error) => Err(error.public()),
            }
        })
    }

    fn list(&self, first: u8, spared: Duration) -> Doing<'_, Vec<Digest>> {
        Box::pin(async move {
            let listed = leasehold_store::objects::Objects::list(self, first).await;
            let mut listed = listed.map_err(|error| error.public())?;
            listed.retain(|one| one.age >= spared);
            Ok(listed.into_iter().map(|one| one.stored.digest).collect())
        })
    }

    fn remove(&self, digest: Digest, spared: Duration) -> Doing<'_, bool> {
        Box::pin(async move {
            let gone = self.delete(&digest, spared).await;
            gone.map_err(|error| error.public())
        })
    }
}

/// What a signed statement says.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// What was promised.
    pub contract: &'a RunContract,
    /// Digest of that.
    pub digest: Digest,
    /// End of the chain, the last event included.
    pub head: Head,
    /// What it came to.
    pub outcome: &'a Outcome,
    /// What the host saw after removal.
    pub observed: &'a Observed,
}

/// Signs what a run came to, and where it stands in its tenant's log.
pub trait Sealer: Send + Sync + 'static {
    /// The signed statement, as JSON text.
    ///
    /// # Errors
    /// When it cannot be signed; it is tried again later.
    fn statement(&self, facts: Facts<'_>) -> Result<String, PublicError>;

    /// The signed head of a tenant's log.
    ///
    /// # Errors
    /// When it cannot be signed.
    fn head(&self, tenant: &Name, head: Head) -> Result<Envelope, PublicError>;

    /// An entry with the signed head of the log up to it.
    ///
    /// # Errors
    /// When it cannot be signed.
    fn anchor(&self, entry: TenantEntry) -> Result<Anchor, PublicError>;

    /// The signed list of the keys that ever signed here.
    fn keys(&self) -> Envelope;
}

/// Finds the output check of a tool again, for a run that was admitted before a restart.
pub trait Checks: Send + Sync + 'static {
    /// The check of one version of a tool; `None` when it declares none.
    ///
    /// # Errors
    /// When the tool cannot be read.
    fn check(&self, tenant: Name, tool: ToolRef) -> Doing<'_, Option<Arc<dyn OutputCheck>>>;
}

/// Makes the tree that a run's workspace begins with.
pub trait Workspaces: Send + Sync + 'static {
    /// Unpacks archives one after another into one fresh directory and gives it.
    ///
    /// # Errors
    /// When an archive is not there or not to be believed.
    fn unpack(&self, run: RunId, archives: Vec<Digest>) -> Doing<'_, OwnedFd>;

    /// Removes what was unpacked for a run. Idempotent.
    fn remove(&self, run: RunId) -> Doing<'_, ()>;
}

/// No tree can be made here.
#[derive(Debug, Clone, Copy)]
pub struct NoWorkspaces;

impl Workspaces for NoWorkspaces {
    fn unpack(&self, _: RunId, _: Vec<Digest>) -> Doing<'_, OwnedFd> {
        let message = "this daemon unpacks no workspace";
        let none = PublicError::new(ErrorKind::Unsupported, message);
        Box::pin(std::future::ready(Err(none)))
    }

    fn remove(&self, _: RunId) -> Doing<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// What an operator may set.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Runs at once and runs that wait.
    pub bounds: Bounds,
    /// How often host, rows and ledger are compared; at most two seconds.
    pub reconcile_every: Duration,
    /// How long after its end a removal may take before it is called stuck.
    pub removal_max: Duration,
    /// Objects that were put within this time are never removed: a row may be about to name them.
    pub objects_spared: Duration,
    /// How long an upload is kept after it was last uploaded, where no live run begins with it.
    pub uploads_kept: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            bounds: Bounds::new(32, 10_000),
            reconcile_every: Duration::from_secs(2),
            removal_max: Duration::from_secs(150),
            objects_spared: Duration::from_secs(3_600),
            uploads_kept: Duration::from_secs(86_400),
        }
    }
}

/// Everything the engine needs.
#[derive(Clone)]
pub struct Parts {
    /// Rows.
    pub store: Arc<dyn Store>,
    /// Bytes.
    pub objects: Arc<dyn Objects>,
    /// Computers.
    pub backends: Backends,
    /// Signatures.
    pub sealer: Arc<dyn Sealer>,
    /// Output checks of tools.
    pub checks: Arc<dyn Checks>,
    /// What starts a run, while it is in the store.
    pub vault: Arc<Vault>,
    /// Trees.
    pub workspaces: Arc<dyn Workspaces>,
    /// Interpreters in WebAssembly.
    pub templates: Arc<dyn Templates>,
    /// Images.
    pub images: Arc<dyn Images>,
    /// Scripts that ran last.
    pub scripts: Scripts,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Ids.
    pub entropy: Arc<dyn Entropy>,
    /// This worker.
    pub worker: WorkerId,
    /// What this process can still open.
    pub descriptors: Arc<Descriptors>,
    /// Bounds.
    pub settings: Settings,
    /// Test hooks; the default has none.
    pub failpoints: super::failpoint::Failpoints,
}
