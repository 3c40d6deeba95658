//! The durable plane in one SQLite database.
//!
//! One thread writes ([`writer`]), a few connections read; readers never wait for a commit and a commit
//! never waits for a reader. What each write keeps true is checked inside its own transaction ([`write`]).
//! One process has a store at a time: a lock beside the database says so.

mod error;
mod memo;
mod open;
mod read;
mod readers;
mod reserve;
mod rows;
mod write;
mod writer;

use std::fs::File;
use std::hash::Hash;
use std::path::{Path, PathBuf};

use leasehold_core::digest::{Digest, canonical};
use leasehold_core::error::Internal;
use leasehold_core::event::{Event, Head, TenantEntry, TenantFact};
use leasehold_core::id::{KeyId, LeaseId, RunId};
use leasehold_core::lease::{Epoch, Lease};
use leasehold_core::name::{Name, ToolRef};
use leasehold_core::outcome::Outcome;
use leasehold_core::record::Observed;
use leasehold_core::tenant::Tenant;

pub use error::OpenError;
pub use writer::{Faults, Point};

use crate::seam::{
    Admission, Admitted, Change, Commits, Doing, KeyRow, PolicyRow, RunFilter, RunRow, Sealing,
    SignedHead, Store, StoreError, ToolRow, UploadBounds, UploadRow, WorkerRow,
};
use memo::{Memo, Pick, Remembered};
use readers::Readers;
use reserve::Reserve;
use write::chain::Written;
use write::runs::Prepared;
use writer::{Class, Op, Room, Writer};

/// How a store is opened.
#[derive(Clone)]
pub struct Options {
    /// Directory of its files; made if it is not there, readable by its owner alone.
    pub dir: PathBuf,
    /// Whether writes of many callers are committed together. Off only to be measured.
    pub together: bool,
    /// For tests.
    pub faults: Option<Faults>,
}

impl Options {
    /// The usual options.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            together: true,
            faults: None,
        }
    }
}

/// A store in a directory.
pub struct SqliteStore {
    writer: Writer,
    readers: Readers,
    memo: Memo,
    faults: Option<Faults>,
    // Released last, when nothing of ours writes any more.
    _lock: File,
}

impl SqliteStore {
    /// Opens a store, makes it if it is not there and brings it to this program's format. Blocks.
    ///
    /// # Errors
    /// When another process has it, a newer program wrote it, it is damaged, or the disk refuses.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        make_dir(&options.dir)?;
        let paths = open::Paths::of(&options.dir);
        let lock = open::lock(&paths.lock)?;
        let conn = open::writer(&paths)?;
        let room = Room {
            reserve: Reserve::new(paths.reserve),
            log: paths.log,
        };
        let faults = options.faults;
        let writer = Writer::start(conn, options.together, faults.clone(), room);
        let writer = writer.map_err(|source| OpenError::Io {
            action: "start the writer of",
            path: paths.database.clone(),
            source,
        })?;
        Ok(Self {
            writer,
            readers: Readers::new(paths.database),
            memo: Memo::default(),
            faults,
            _lock: lock,
        })
    }

    fn write<T, F>(&self, op: Op, work: F) -> Doing<'_, T>
    where
        T: Send + 'static,
        F: FnMut(&rusqlite::Connection) -> Result<T, StoreError> + Send + 'static,
    {
        Box::pin(self.writer.submit(op, work))
    }

    /// A write whose events are written out before it waits for its turn.
    fn write_events<F>(&self, op: Op, events: Vec<Event>, work: F) -> Doing<'_, ()>
    where
        F: Fn(&rusqlite::Connection, &[Written]) -> Result<(), StoreError> + Send + 'static,
    {
        Box::pin(async move {
            let events = Written::all(events)?;
            let work = move |conn: &rusqlite::Connection| work(conn, &events);
            self.writer.submit(op, work).await
        })
    }

    fn read<T, F>(&self, work: F) -> Doing<'_, T>
    where
        T: Send + 'static,
        F: FnOnce(&rusqlite::Connection) -> Result<T, StoreError> + Send + 'static,
    {
        match self.is_away() {
            Some(error) => Box::pin(std::future::ready(Err(error))),
            None => Box::pin(self.readers.read(work)),
        }
    }

    /// A read of a few rows by their keys.
    fn look_up<T, F>(&self, work: F) -> Doing<'_, T>
    where
        T: Send + 'static,
        F: FnOnce(&rusqlite::Connection) -> Result<T, StoreError> + Send + 'static,
    {
        match self.is_away() {
            Some(error) => Box::pin(std::future::ready(Err(error))),
            None => Box::pin(self.readers.look_up(work)),
        }
    }

    /// A row that only [`Store::change`] changes.
    fn remembered<K, V, F>(&self, pick: Pick<K, V>, key: K, work: F) -> Doing<'_, V>
    where
        K: Hash + Eq + Send + 'static,
        V: Remembered,
        F: FnOnce(&rusqlite::Connection) -> Result<V, StoreError> + Send + 'static,
    {
        if let Some(error) = self.is_away() {
            return Box::pin(std::future::ready(Err(error)));
        }
        match self.memo.get(pick, &key) {
            Ok(row) => Box::pin(std::future::ready(Ok(row))),
            Err(era) => Box::pin(async move {
                let row = self.readers.look_up(work).await?;
                self.memo.put(pick, key, row.clone(), era);
                Ok(row)
            }),
        }
    }

    /// Whether a test has it that nothing can be read.
    fn is_away(&self) -> Option<StoreError> {
        let away = self.faults.as_ref()?(Point::Begin, "read");
        away.then(|| StoreError::Engine(Internal::new("a test took the disk away")))
    }
}

fn make_dir(dir: &Path) -> Result<(), OpenError> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir);
    made.map_err(|source| OpenError::Io {
        action: "make",
        path: dir.to_owned(),
        source,
    })
}

/// A write that begins something: refused while no reserve is set aside.
fn begins(name: &'static str) -> Op {
    Op {
        name,
        class: Class::Durable,
        ends: false,
    }
}

/// A write that ends something: it may use the reserve.
fn ends(name: &'static str) -> Op {
    Op {
        name,
        class: Class::Durable,
        ends: true,
    }
}

/// A write that is not synced at once.
fn rides(name: &'static str, ends: bool) -> Op {
    Op {
        name,
        class: Class::Appended,
        ends,
    }
}

impl Store for SqliteStore {
    fn admit(&self, admission: Admission) -> Doing<'_, Admitted> {
        Box::pin(async move {
            let prepared = Prepared::new(admission)?;
            let work = move |conn: &rusqlite::Connection| write::runs::admit(conn, &prepared);
            self.writer.submit(begins("admit"), work).await
        })
    }

    fn grant(&self, lease: Lease, event: Event) -> Doing<'_, ()> {
        // A later one is for an end that its holder did not see.
        let op = match lease.epoch > Epoch::NONE.next() {
            true => ends("grant"),
            false => begins("grant"),
        };
        self.write_events(op, vec![event], move |conn, events| {
            write::runs::grant(conn, &lease, &events[0])
        })
    }

    fn take_over(&self, lease: Lease, event: Event) -> Doing<'_, ()> {
        self.write_events(ends("take_over"), vec![event], move |conn, events| {
            write::runs::take_over(conn, &lease, &events[0])
        })
    }

    fn append(&self, run: RunId, epoch: Epoch, events: Vec<Event>) -> Doing<'_, ()> {
        self.write_events(rides("append", true), events, move |conn, events| {
            write::runs::append(conn, &run, epoch, events)
        })
    }

    fn request_cancel(&self, run: RunId) -> Doing<'_, ()> {
        self.write(ends("request_cancel"), move |conn| {
            write::runs::request_cancel(conn, &run)
        })
    }

    fn conclude(
        &self,
        run: RunId,
        epoch: Epoch,
        outcome: Outcome,
        events: Vec<Event>,
    ) -> Doing<'_, ()> {
        Box::pin(async move {
            let text = String::from_utf8(canonical(&outcome)?)
                .map_err(|error| error::damaged("an outcome", error))?;
            let work = move |conn: &rusqlite::Connection, events: &[Written]| {
                write::runs::conclude(conn, &run, epoch, (&outcome, &text), events)
            };
            self.write_events(ends("conclude"), events, work).await
        })
    }

    fn revoke(&self, lease: LeaseId, events: Vec<Event>) -> Doing<'_, ()> {
        self.write_events(ends("revoke"), events, move |conn, events| {
            write::runs::revoke(conn, &lease, events)
        })
    }

    fn seal(&self, lease: Option<LeaseId>, mut sealing: Sealing) -> Doing<'_, ()> {
        let events = std::mem::take(&mut sealing.events);
        self.write_events(ends("seal"), events, move |conn, events| {
            write::runs::seal(conn, lease.as_ref(), &sealing, events)
        })
    }

    fn run(&self, tenant: Option<Name>, run: RunId) -> Doing<'_, RunRow> {
        self.look_up(move |conn| read::run(conn, tenant.as_ref(), &run))
    }

    fn earlier(&self, tenant: Name, key: String) -> Doing<'_, Option<(Digest, RunRow)>> {
        self.read(move |conn| read::earlier(conn, &tenant, &key))
    }

    fn unsealed(&self, after: Option<(u64, RunId)>, limit: u32) -> Doing<'_, Vec<RunRow>> {
        self.read(move |conn| read::unsealed(conn, after.as_ref(), limit))
    }

    fn contract(&self, run: RunId) -> Doing<'_, Vec<u8>> {
        self.read(move |conn| read::contract(conn, &run))
    }

    fn sealed_request(&self, run: RunId) -> Doing<'_, Option<Vec<u8>>> {
        self.read(move |conn| read::sealed_request(conn, &run))
    }

    fn runs(&self, filter: RunFilter) -> Doing<'_, Vec<RunRow>> {
        self.read(move |conn| read::runs(conn, &filter))
    }

    fn events(&self, run: RunId, from: u64) -> Doing<'_, Vec<Event>> {
        self.read(move |conn| read::events(conn, &run, from))
    }

    fn statement(&self, run: RunId) -> Doing<'_, Option<String>> {
        self.read(move |conn| read::statement(conn, &run))
    }

    fn open_leases(&self) -> Doing<'_, Vec<Lease>> {
        self.read(read::open_leases)
    }

    fn not_clean(&self, limit: u32) -> Doing<'_, Vec<(RunId, Observed)>> {
        self.read(move |conn| read::not_clean(conn, limit))
    }

    fn change(
        &self,
        tenant: Name,
        by: Option<KeyId>,
        at_unix_ms: u64,
        changes: Vec<(Change, TenantFact)>,
    ) -> Doing<'_, ()> {
        // Taking a right away must be possible on a full disk, too.
        let only_ends = changes
            .iter()
            .all(|(change, _)| matches!(change, Change::RevokeKey(..) | Change::SetToolState(..)));
        let op = Op {
            ends: only_ends,
            ..begins("change")
        };
        let changing = self.memo.change();
        self.write(op, move |conn| {
            // Its end is that of this write: after the commit, before the answer.
            let _ = &changing;
            write::change::apply(conn, &tenant, by.as_ref(), at_unix_ms, &changes)
        })
    }

    fn log(&self, tenant: Name, from: u64) -> Doing<'_, Vec<TenantEntry>> {
        self.read(move |conn| read::log(conn, &tenant, from))
    }

    fn log_of(&self, run: RunId) -> Doing<'_, Vec<TenantEntry>> {
        self.read(move |conn| read::log_of(conn, &run))
    }

    fn log_head(&self, tenant: Name) -> Doing<'_, Head> {
        self.read(move |conn| write::log::head(conn, &tenant))
    }

    fn put_signed_head(&self, signed: SignedHead) -> Doing<'_, ()> {
        self.write(ends("put_signed_head"), move |conn| {
            write::rest::put_signed_head(conn, &signed)
        })
    }

    fn signed_head(&self, tenant: Name) -> Doing<'_, Option<SignedHead>> {
        self.read(move |conn| read::signed_head(conn, &tenant))
    }

    fn tenant(&self, tenant: Name) -> Doing<'_, Tenant> {
        let name = tenant.clone();
        let read = move |conn: &rusqlite::Connection| read::tenant(conn, &name);
        self.remembered(|kept| &mut kept.tenants, tenant, read)
    }

    fn tenants(&self) -> Doing<'_, Vec<Tenant>> {
        self.read(read::tenants)
    }

    fn key(&self, key: KeyId) -> Doing<'_, KeyRow> {
        let id = key.clone();
        let read = move |conn: &rusqlite::Connection| read::key(conn, &id);
        self.remembered(|kept| &mut kept.keys, key, read)
    }

    fn keys(&self, tenant: Name) -> Doing<'_, Vec<KeyRow>> {
        self.read(move |conn| read::keys(conn, &tenant))
    }

    fn tool(&self, tenant: Name, tool: ToolRef) -> Doing<'_, ToolRow> {
        self.look_up(move |conn| read::tool(conn, &tenant, &tool))
    }

    fn tools(&self, tenant: Name, tool: Option<Name>) -> Doing<'_, Vec<ToolRow>> {
        self.read(move |conn| read::tools(conn, &tenant, tool.as_ref()))
    }

    fn policy(&self, scope: String) -> Doing<'_, Option<PolicyRow>> {
        let at = scope.clone();
        let read = move |conn: &rusqlite::Connection| read::policy(conn, &at);
        self.remembered(|kept| &mut kept.policies, scope, read)
    }

    fn policy_version(&self, scope: String, version: u64) -> Doing<'_, PolicyRow> {
        self.read(move |conn| read::policy_version(conn, &scope, version))
    }

    fn policies(&self, tenant: Option<Name>) -> Doing<'_, Vec<PolicyRow>> {
        self.read(move |conn| read::policies(conn, tenant.as_ref()))
    }

    fn put_cached(&self, tenant: Name, key: Digest, run: RunId) -> Doing<'_, ()> {
        self.write(rides("put_cached", false), move |conn| {
            write::rest::put_cached(conn, &tenant, &key, &run)
        })
    }

    fn cached(&self, tenant: Name, key: Digest) -> Doing<'_, Option<RunId>> {
        self.look_up(move |conn| read::cached(conn, &tenant, &key))
    }

    fn room_for_upload(&self, upload: UploadRow, bounds: UploadBounds) -> Doing<'_, ()> {
        self.read(move |conn| write::objects::room(conn, &upload, bounds))
    }

    fn put_upload(&self, upload: UploadRow, bounds: UploadBounds) -> Doing<'_, ()> {
        self.write(begins("put_upload"), move |conn| {
            write::objects::put_upload(conn, &upload, bounds)
        })
    }

    fn upload(&self, tenant: Name, digest: Digest) -> Doing<'_, UploadRow> {
        self.read(move |conn| write::objects::upload(conn, &tenant, &digest))
    }

    fn named(&self, digests: Vec<Digest>, at_unix_ms: u64) -> Doing<'_, Vec<Digest>> {
        self.read(move |conn| write::objects::named(conn, &digests, at_unix_ms))
    }

    fn prune_names(
        &self,
        now_unix_ms: u64,
        uploaded_before_unix_ms: u64,
        limit: u32,
    ) -> Doing<'_, u32> {
        self.write(ends("prune_names"), move |conn| {
            write::objects::prune(conn, now_unix_ms, uploaded_before_unix_ms, limit)
        })
    }

    fn put_worker(&self, worker: WorkerRow) -> Doing<'_, ()> {
        self.write(rides("put_worker", false), move |conn| {
            write::rest::put_worker(conn, &worker)
        })
    }

    fn workers(&self) -> Doing<'_, Vec<WorkerRow>> {
        self.read(read::workers)
    }

    fn commits(&self) -> Commits {
        self.writer.commits()
    }

    fn prune(&self, now_unix_ms: u64, limit: u32) -> Doing<'_, u32> {
        self.write(rides("prune", true), move |conn| {
            write::rest::prune(conn, now_unix_ms, limit)
        })
    }
}
