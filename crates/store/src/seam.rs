//! What a durable plane promises.
//!
//! Each method that writes is one transaction: all of it or nothing, and *durable* when it answers, also
//! through a power cut, unless its text says otherwise. Writes of many callers may be committed together.
//! What must never be true is refused here and not only by the code above: a second run for one
//! idempotency key, a write under an old epoch, a chain that forks or skips, a published tool that
//! changes, two leases at once on one run.

use std::future::Future;
use std::pin::Pin;

use leasehold_core::digest::Digest;
use leasehold_core::error::{ErrorKind, Internal, PublicError};
use leasehold_core::event::{Event, Head, TenantEntry, TenantFact};
use leasehold_core::id::{KeyId, LeaseId, RunId, SandboxId, WorkerId};
use leasehold_core::lease::{Epoch, Lease};
use leasehold_core::name::{Name, ToolRef};
use leasehold_core::outcome::{Outcome, RunState};
use leasehold_core::record::Observed;
use leasehold_core::tenant::{Role, Tenant};

/// Something the store is doing. Dropping it does not undo what was begun.
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Most rows of one page.
pub const PAGE_MAX: u32 = 500;
/// Most versions of all tools of one tenant.
pub const TOOL_VERSIONS_MAX: u64 = 2_000;
/// Most versions of all documents of one tenant's own scopes. The operator's are not counted.
pub const POLICY_VERSIONS_MAX: u64 = 5_000;
/// Most keys of one tenant that are remembered, those that ended among them: of these the oldest go first.
pub const KEYS_KEPT_MAX: u64 = 2_000;

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No such row, or it is another tenant's.
    #[error("no such {0}")]
    NotFound(&'static str),
    /// The row is there already.
    #[error("the {0} is there already")]
    Exists(&'static str),
    /// The key was used for another request.
    #[error("the idempotency key was used for another request (run {first})")]
    KeyReused {
        /// The run that the key belongs to.
        first: RunId,
    },
    /// The writer's epoch is not the run's present one; it must stop what it does.
    #[error("epoch {given:?} is not the present one ({present:?})")]
    Fenced {
        /// What the writer said.
        given: Epoch,
        /// What holds.
        present: Epoch,
    },
    /// The row is in a state that does not allow it.
    #[error("the {what} is {state}")]
    WrongState {
        /// Which noun.
        what: &'static str,
        /// Its state, a word of a closed enum.
        state: &'static str,
    },
    /// It would be more than is allowed.
    #[error("{what}: most is {most}")]
    Quota {
        /// Of what.
        what: &'static str,
        /// The bound.
        most: u64,
    },
    /// An event does not continue the chain as it is.
    #[error("the event does not continue the chain")]
    Fork,
    /// Its disk is full or read-only: nothing was written. Reads go on; it mends itself when there is room.
    #[error("the store cannot be written: its disk is full or read-only")]
    Unwritable(Internal),
    /// What is kept does not read back as what was written.
    #[error("the store is damaged")]
    Damaged(Internal),
    /// The database or its disk failed. Whether the write happened is unknown.
    #[error("the store failed")]
    Engine(Internal),
}

impl StoreError {
    /// What kind of failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound(_) => ErrorKind::NotFound,
            // The same request with that key never succeeds: it is no conflict that passes.
            Self::Exists(_) | Self::KeyReused { .. } => ErrorKind::Exists,
            Self::Fenced { .. } | Self::Fork => ErrorKind::Conflict,
            Self::WrongState { .. } => ErrorKind::WrongState,
            Self::Quota { .. } => ErrorKind::Quota,
            Self::Unwritable(_) | Self::Engine(_) => ErrorKind::Unavailable,
            Self::Damaged(_) => ErrorKind::Internal,
        }
    }

    /// As a caller may see it.
    #[must_use]
    pub fn public(&self) -> PublicError {
        PublicError::new(self.kind(), self.to_string())
    }
}

/// A tenant's own idempotency key and what it stood for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// As the caller wrote it; 1 to 255 printable ASCII characters, checked above.
    pub key: String,
    /// Digest of the canonical request.
    pub request: Digest,
}

/// A run as it is admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// Which run.
    pub run: RunId,
    /// Whose.
    pub tenant: Name,
    /// In which project.
    pub project: Name,
    /// Asked by whom.
    pub principal: Name,
    /// Which tool; absent for a bare command.
    pub tool: Option<ToolRef>,
    /// Canonical form of the contract.
    pub contract: Vec<u8>,
    /// What is needed to start it after a restart and must not be in the contract (environment values,
    /// standard input): opaque here, removed when the run ends.
    pub sealed_request: Vec<u8>,
    /// Its key, if one was given.
    pub idempotency: Option<Idempotency>,
    /// The first event, `Accepted`, of an empty chain.
    pub first: Event,
    /// When, milliseconds since 1970.
    pub at_unix_ms: u64,
}

/// What became of an admission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admitted {
    /// It is a new run.
    New,
    /// The same key and request came before: this is that run; nothing was written.
    Earlier(Box<RunRow>),
}

/// A run's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRow {
    /// Which.
    pub run: RunId,
    /// Whose.
    pub tenant: Name,
    /// In which project.
    pub project: Name,
    /// Asked by whom.
    pub principal: Name,
    /// Which tool.
    pub tool: Option<ToolRef>,
    /// Where it is.
    pub state: RunState,
    /// Present epoch.
    pub epoch: Epoch,
    /// Its sandbox, once known.
    pub sandbox: Option<SandboxId>,
    /// Digest of the contract.
    pub contract: Digest,
    /// Whether somebody asked for its end; it must hold through a restart.
    pub cancel_requested: bool,
    /// Its result.
    pub outcome: Option<Outcome>,
    /// End of its chain.
    pub head: Head,
    /// When it was admitted, milliseconds since 1970.
    pub accepted_unix_ms: u64,
}

/// Which runs to list, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Of one tenant; `None` is for the daemon itself and the operator.
    pub tenant: Option<Name>,
    /// Of one project.
    pub project: Option<Name>,
    /// Of one tool, any version.
    pub tool: Option<Name>,
    /// In one of these states; empty means any.
    pub states: Vec<RunState>,
    /// Older than this one (the cursor).
    pub before: Option<(u64, RunId)>,
    /// At most so many, at most [`PAGE_MAX`].
    pub limit: u32,
}

/// An API key as it is kept: never the secret itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// Which.
    pub key: KeyId,
    /// Digest of the secret.
    pub secret: Digest,
    /// Whose tenant.
    pub tenant: Name,
    /// Which project.
    pub project: Name,
    /// Which principal.
    pub principal: Name,
    /// Its role.
    pub role: Role,
    /// Its permissions.
    pub grants: Vec<String>,
    /// When it was made, milliseconds since 1970.
    pub created_unix_ms: u64,
    /// When it ends by itself.
    pub expires_unix_ms: Option<u64>,
    /// When it was revoked.
    pub revoked_unix_ms: Option<u64>,
}

/// Where a published tool is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolState {
    /// May be run.
    Active,
    /// May be run when its version is named; warned about.
    Deprecated,
    /// May not be run.
    Quarantined,
}

impl ToolState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Active, Self::Deprecated, Self::Quarantined];

    /// The word used in rows and texts.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Deprecated => "deprecated",
            Self::Quarantined => "quarantined",
        }
    }
}

/// One version of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolRow {
    /// Whose.
    pub tenant: Name,
    /// Which.
    pub tool: ToolRef,
    /// Canonical form of its manifest.
    pub manifest: Vec<u8>,
    /// Digest of that.
    pub digest: Digest,
    /// Where it is in its life.
    pub state: ToolState,
    /// Why it is deprecated or quarantined.
    pub note: Option<String>,
    /// When it was published, milliseconds since 1970.
    pub published_unix_ms: u64,
}

/// One version of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRow {
    /// Where it holds: `platform`, `platform/tenant/T`, `tenant/T`, `tenant/T/project/P`,
    /// `tenant/T/principal/N`, `tenant/T/tool/X`.
    pub scope: String,
    /// From 1, growing by one.
    pub version: u64,
    /// Canonical form.
    pub document: Vec<u8>,
    /// Digest of that.
    pub digest: Digest,
    /// When it came into force, milliseconds since 1970.
    pub published_unix_ms: u64,
}

/// What an administrative transaction changes. Each is committed with its entry in the tenant's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Makes a tenant; `Exists` if the name was ever used.
    CreateTenant(Tenant),
    /// Replaces a tenant's row.
    UpdateTenant(Tenant),
    /// Makes a key.
    CreateKey(KeyRow),
    /// Revokes a key at this time.
    RevokeKey(KeyId, u64),
    /// Publishes a tool; `Exists` for a version that is there, also with the same manifest.
    PublishTool(ToolRow),
    /// Changes a tool's state and note, nothing else.
    SetToolState(ToolRef, ToolState, Option<String>),
    /// Publishes a policy; `Fork` if its version is not the next.
    PublishPolicy(PolicyRow),
}

/// A worker as last heard of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerRow {
    /// Which.
    pub worker: WorkerId,
    /// What it can do, as JSON text.
    pub capabilities: String,
    /// When it was last heard of, milliseconds since 1970.
    pub seen_unix_ms: u64,
}

/// An archive that a tenant uploaded: what its runs may begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadRow {
    /// Whose.
    pub tenant: Name,
    /// Of the archive.
    pub digest: Digest,
    /// Its length.
    pub bytes: u64,
    /// When it was last uploaded, milliseconds since 1970.
    pub at_unix_ms: u64,
}

/// Most that a tenant may have uploaded at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadBounds {
    /// Archives.
    pub count_max: u64,
    /// Bytes of all of them.
    pub bytes_max: u64,
}

/// A signed head of a tenant's log, as kept beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedHead {
    /// Whose log.
    pub tenant: Name,
    /// Its end.
    pub head: Head,
    /// The signed envelope, as JSON text.
    pub envelope: String,
}

/// The durable plane. See the module for what every method keeps true.
pub trait Store: Send + Sync + 'static {
    /// Records a run, its contract, its key and its first event, and opens it in the tenant's log. A key
    /// that is there gives the earlier run, or [`StoreError::KeyReused`] for another request. Refused
    /// while the tenant is not there or suspended; an earlier run is given all the same. `NotFound` where
    /// the contract's `workspace.content` is no upload of the tenant; the run names it until it ends.
    fn admit(&self, admission: Admission) -> Doing<'_, Admitted>;

    /// Grants a lease and records its event: the durable intent of a sandbox. The run must be queued or
    /// running and have no active lease; `lease.epoch` must be the run's epoch + 1, which becomes it.
    fn grant(&self, lease: Lease, event: Event) -> Doing<'_, ()>;

    /// Passes the right to a run on: revokes its active lease and grants this one, whose epoch must be
    /// the run's + 1. For adoption after a restart and for taking over from a lost worker. A run that
    /// ended may be taken over to be sealed, a sealed one may not.
    fn take_over(&self, lease: Lease, event: Event) -> Doing<'_, ()>;

    /// Appends events that continue the chain, under the run's present epoch, and notes the sandbox if
    /// one is in them. Not durable at once: a power cut may lose the newest; a crash of the process does not.
    fn append(&self, run: RunId, epoch: Epoch, events: Vec<Event>) -> Doing<'_, ()>;

    /// Notes that somebody asked for the end. Idempotent; `WrongState` when it is over. Under no epoch:
    /// the holder of the lease sees it and acts.
    fn request_cancel(&self, run: RunId) -> Doing<'_, ()>;

    /// Fixes the outcome under the run's present epoch with the events that belong to it, and forgets the
    /// sealed request. `WrongState` when it has one: a result is fixed once. The run names its streams until
    /// `retention.logs_s` of its contract is over, counted from the end, and its files until
    /// `retention.artifacts_s` is; where the contract has none, for as long as its record.
    fn conclude(
        &self,
        run: RunId,
        epoch: Epoch,
        outcome: Outcome,
        events: Vec<Event>,
    ) -> Doing<'_, ()>;

    /// Ends authority: the lease is revoked and the event appended. Idempotent for a revoked lease.
    fn revoke(&self, lease: LeaseId, events: Vec<Event>) -> Doing<'_, ()>;

    /// Closes the lease and any earlier one of the run, appends the last events, keeps the statement, seals
    /// the chain in the tenant's log. The outcome must be fixed. An inventory that is not clean closes the lease all the same; what is
    /// left is in it and in [`Store::not_clean`].
    fn seal(&self, lease: Option<LeaseId>, sealing: Sealing) -> Doing<'_, ()>;

    /// One run; another tenant's is not found. `None` for the daemon itself and the operator.
    fn run(&self, tenant: Option<Name>, run: RunId) -> Doing<'_, RunRow>;

    /// The run that a tenant's idempotency key stands for, and the digest of its request.
    fn earlier(&self, tenant: Name, key: String) -> Doing<'_, Option<(Digest, RunRow)>>;

    /// Runs that are not sealed, oldest first, after a place; at most [`PAGE_MAX`].
    fn unsealed(&self, after: Option<(u64, RunId)>, limit: u32) -> Doing<'_, Vec<RunRow>>;

    /// Canonical form of a run's contract.
    fn contract(&self, run: RunId) -> Doing<'_, Vec<u8>>;

    /// What was given to [`Store::admit`] to start the run again; `None` once it ended.
    fn sealed_request(&self, run: RunId) -> Doing<'_, Option<Vec<u8>>>;

    /// Runs, newest first.
    fn runs(&self, filter: RunFilter) -> Doing<'_, Vec<RunRow>>;

    /// Events of a run from `from`, in order, at most [`PAGE_MAX`].
    fn events(&self, run: RunId, from: u64) -> Doing<'_, Vec<Event>>;

    /// The signed statement of a sealed run.
    fn statement(&self, run: RunId) -> Doing<'_, Option<String>>;

    /// Leases that are not closed: what may still be on a host.
    fn open_leases(&self) -> Doing<'_, Vec<Lease>>;

    /// Runs whose inventory was not clean, newest first, and what was left. An empty inventory is clean
    /// only for a run that never had a lease.
    fn not_clean(&self, limit: u32) -> Doing<'_, Vec<(RunId, Observed)>>;

    /// Makes administrative changes and their log entries in one transaction. A fact that does not tell
    /// of its change is `WrongState`.
    fn change(
        &self,
        tenant: Name,
        by: Option<KeyId>,
        at_unix_ms: u64,
        changes: Vec<(Change, TenantFact)>,
    ) -> Doing<'_, ()>;

    /// Entries of a tenant's log from `from`, in order, at most [`PAGE_MAX`].
    fn log(&self, tenant: Name, from: u64) -> Doing<'_, Vec<TenantEntry>>;

    /// Entries of its tenant's log that are of this run: the one that opens it, then the one that seals it.
    fn log_of(&self, run: RunId) -> Doing<'_, Vec<TenantEntry>>;

    /// End of a tenant's log.
    fn log_head(&self, tenant: Name) -> Doing<'_, Head>;

    /// Keeps a signed head. `WrongState` for one that is shorter than what is kept, `Fork` for one that is
    /// no head the log ever had.
    fn put_signed_head(&self, signed: SignedHead) -> Doing<'_, ()>;

    /// The newest signed head.
    fn signed_head(&self, tenant: Name) -> Doing<'_, Option<SignedHead>>;

    /// One tenant.
    fn tenant(&self, tenant: Name) -> Doing<'_, Tenant>;

    /// Every tenant, by name.
    fn tenants(&self) -> Doing<'_, Vec<Tenant>>;

    /// One key, revoked or not.
    fn key(&self, key: KeyId) -> Doing<'_, KeyRow>;

    /// Keys of a tenant, newest first.
    fn keys(&self, tenant: Name) -> Doing<'_, Vec<KeyRow>>;

    /// One version of a tool.
    fn tool(&self, tenant: Name, tool: ToolRef) -> Doing<'_, ToolRow>;

    /// Versions of one tool, or of all of a tenant's, by name, newest version first.
    fn tools(&self, tenant: Name, tool: Option<Name>) -> Doing<'_, Vec<ToolRow>>;

    /// The policy in force at a scope.
    fn policy(&self, scope: String) -> Doing<'_, Option<PolicyRow>>;

    /// One version of a policy.
    fn policy_version(&self, scope: String, version: u64) -> Doing<'_, PolicyRow>;

    /// Scopes that have a policy, with what is in force; of one tenant or all.
    fn policies(&self, tenant: Option<Name>) -> Doing<'_, Vec<PolicyRow>>;

    /// Keeps the result of a pure tool under the digest of all that went in. The first one stays. Not
    /// durable at once.
    fn put_cached(&self, tenant: Name, key: Digest, run: RunId) -> Doing<'_, ()>;

    /// The run whose result is kept under that digest.
    fn cached(&self, tenant: Name, key: Digest) -> Doing<'_, Option<RunId>>;

    /// Whether [`Store::put_upload`] would take it: asked before its bytes are kept.
    fn room_for_upload(&self, upload: UploadRow, bounds: UploadBounds) -> Doing<'_, ()>;

    /// Notes that a tenant uploaded an archive, or did so again. `Quota` when it would be more than the
    /// bounds allow.
    fn put_upload(&self, upload: UploadRow, bounds: UploadBounds) -> Doing<'_, ()>;

    /// One upload of a tenant; another's is not found.
    fn upload(&self, tenant: Name, digest: Digest) -> Doing<'_, UploadRow>;

    /// Which of these objects, at most [`PAGE_MAX`], something names at this time: a run, an upload, or a tool
    /// with its package.
    fn named(&self, digests: Vec<Digest>, at_unix_ms: u64) -> Doing<'_, Vec<Digest>>;

    /// Forgets names whose time is over, and uploads that were last uploaded before a time and that no run of
    /// their tenant which is not over begins with; at most `limit` of each. Gives how many.
    fn prune_names(
        &self,
        now_unix_ms: u64,
        uploaded_before_unix_ms: u64,
        limit: u32,
    ) -> Doing<'_, u32>;

    /// Notes what a worker says of itself. Not durable at once.
    fn put_worker(&self, worker: WorkerRow) -> Doing<'_, ()>;

    /// Every worker heard of.
    fn workers(&self) -> Doing<'_, Vec<WorkerRow>>;

    /// What was written since the start. Never waits.
    fn commits(&self) -> Commits;

    /// Removes rows of sealed runs whose retention (`retention.record_s` of their contract, counted from the
    /// seal) is over at this time, with their idempotency keys. Their entries in the tenant's log stay.
    /// Gives how many. Not durable at once.
    fn prune(&self, now_unix_ms: u64, limit: u32) -> Doing<'_, u32>;
}

/// How many writes went into how many commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Commits {
    /// Durable writes.
    pub writes: u64,
    /// Commits they went in: so often the disk was waited for.
    pub commits: u64,
}

/// The last transaction of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealing {
    /// Which run.
    pub run: RunId,
    /// Under which epoch.
    pub epoch: Epoch,
    /// What the host saw after removal.
    pub observed: Observed,
    /// The last events.
    pub events: Vec<Event>,
    /// The signed statement, as JSON text.
    pub statement: String,
    /// When, milliseconds since 1970.
    pub at_unix_ms: u64,
}
