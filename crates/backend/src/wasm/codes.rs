//! From a module to its code in memory: remembered, else kept on disk, else compiled, once for all who wait.
//!
//! Code that was used lately stays in memory up to a bound, so that a run of a hot module reads and checks no
//! file. A module that cannot be compiled is remembered for a while too: whoever asks again and again costs
//! nothing. Tenants take turns at the compiler: one has one module compiled at a time, and waits for no other's
//! turn, even where both want the same module.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use leasehold_core::digest::Digest;
use leasehold_core::error::ErrorKind;
use leasehold_core::name::Name;
use leasehold_protocol::wasm::{Flavour, Kind};
use tokio::sync::{Semaphore, watch};

use super::code::{Code, Found, Key, Store};
use super::compile::{CompileBound, CompileError, CompileLimits, compile, limit};
use super::counts::{Counts, count};
use super::fingerprint;
use super::module::Module;
use super::programs::Programs;
use super::sealed::{self, CopyError, FromStart, Sealed};
use crate::process::ProcessBackend;
use crate::seam::Readiness;

/// How long a module that cannot be compiled is remembered as such.
const REFUSED_FOR: Duration = Duration::from_secs(600);
/// Most such modules that are remembered.
const REFUSED_MAX: usize = 1_024;

/// Bounds of what is held and done here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Of one module.
    pub(super) compile: CompileLimits,
    /// Bytes of code that stays in memory.
    pub(super) memory_bytes: u64,
    /// Bytes of code that is kept on disk.
    pub(super) disk_bytes: u64,
    /// Modules that are compiled at one time.
    pub(super) compiles: usize,
    /// Modules of one tenant that are or wait to be compiled.
    pub(super) waiting: usize,
    /// Code is left with the supervisor, and taken from there.
    pub(super) lend: bool,
}

/// What is compiled.
type Id = (Digest, Flavour);
type Compiled = Result<Arc<Code>, CompileError>;
/// Whoever of one tenant looks for the same.
type Seeker = (Id, Option<Name>);

/// Where code came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It was in memory.
    Memory,
    /// It was on disk, and checked.
    Disk,
    /// It was compiled.
    Compiler,
}

/// All code of one backend.
#[derive(Debug)]
pub(super) struct Codes {
    process: ProcessBackend,
    programs: Arc<Programs>,
    folder: PathBuf,
    bounds: Bounds,
    counts: Arc<Counts>,
    fingerprint: OnceLock<Digest>,
    store: OnceLock<Option<Store>>,
    held: Mutex<Held>,
    slots: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Held {
    hot: HashMap<Id, (Arc<Code>, u64)>,
    bytes: u64,
    /// Grows with each use.
    tick: u64,
    refused: VecDeque<(Id, CompileError, Instant)>,
    flights: HashMap<Seeker, watch::Receiver<Option<(Compiled, Origin)>>>,
    /// What is being compiled, for whichever tenant's turn came first; closed when that is over.
    compiling: HashMap<Id, watch::Receiver<()>>,
    turns: HashMap<Option<Name>, Turn>,
}

/// Of one tenant.
#[derive(Debug, Default)]
struct Turn {
    waiting: usize,
    turn: Weak<Semaphore>,
}

impl Codes {
    pub(super) fn new(
        process: ProcessBackend,
        programs: Arc<Programs>,
        folder: PathBuf,
        bounds: Bounds,
        counts: Arc<Counts>,
    ) -> Self {
        Self {
            process,
            programs,
            folder,
            bounds,
            counts,
            fingerprint: OnceLock::new(),
            store: OnceLock::new(),
            held: Mutex::default(),
            slots: Arc::new(Semaphore::new(bounds.compiles)),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // Nothing panics while it holds this lock.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Code that is in memory.
    pub(super) fn hot(&self, module: &Digest, flavour: Flavour) -> Option<Arc<Code>> {
        let mut held = self.held();
        held.tick += 1;
        let tick = held.tick;
        let (code, used) = held.hot.get_mut(&(*module, flavour))?;
        *used = tick;
        Some(Arc::clone(code))
    }

    /// Where the code of a module stands, without having it made.
    pub(super) async fn readiness(self: &Arc<Self>, module: Digest, flavour: Flavour) -> Readiness {
        let id = (module, flavour);
        if self.hot(&module, flavour).is_some() {
            return Readiness::Ready;
        }
        if let Some(error) = self.held().refusal(id) {
            return Readiness::Refused(error.to_string());
        }
        let codes = Arc::clone(self);
        let looked = blocking(move || {
            let key = codes.key(module, flavour)?;
            Ok(codes.store().is_some_and(|store| store.has(&key)))
        });
        let kept = looked.await.unwrap_or(false);
        let sought = || self.held().flights.keys().any(|(sought, _)| *sought == id);
        match kept {
            true => Readiness::Kept,
            false if sought() => Readiness::Compiling,
            false => Readiness::Absent,
        }
    }

    /// Code of a module, wherever it is to be had from.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) async fn code(
        self: &Arc<Self>,
        module: &Module,
        flavour: Flavour,
        tenant: Option<&Name>,
    ) -> Result<(Arc<Code>, Origin), CompileError> {
        let id = (*module.digest(), flavour);
        if let Some(code) = self.hot(&id.0, flavour) {
            return Ok((code, Origin::Memory));
        }
        let mut flight = self.board(id, module, tenant)?;
        let landed = flight.wait_for(Option::is_some).await;
        // It falls over only by a defect of ours.
        let landed = landed.ok().and_then(|landed| landed.clone());
        let (compiled, origin) = landed.ok_or(CompileError::Failed {
            kind: ErrorKind::Internal,
            said: "the task that compiled it ended".to_owned(),
        })?;
        Ok((compiled?, origin))
    }

    /// Joins whoever looks for the same, or begins to.
    fn board(
        self: &Arc<Self>,
        id: Id,
        module: &Module,
        tenant: Option<&Name>,
    ) -> Result<watch::Receiver<Option<(Compiled, Origin)>>, CompileError> {
        let mut held = self.held();
        let seeker = (id, tenant.cloned());
        if let Some(flight) = held.flights.get(&seeker) {
            return Ok(flight.clone());
        }
        if let Some(error) = held.refusal(id) {
            return Err(error);
        }
        let turn = held.turns.entry(tenant.cloned()).or_default();
        if turn.waiting >= self.bounds.waiting {
            return Err(CompileError::Busy {
                waiting: turn.waiting,
                most: self.bounds.waiting,
            });
        }
        turn.waiting += 1;
        let own = turn.turn.upgrade().unwrap_or_else(|| {
            let own = Arc::new(Semaphore::new(1));
            turn.turn = Arc::downgrade(&own);
            own
        });
        let (landed, flight) = watch::channel(None);
        held.flights.insert(seeker.clone(), flight.clone());
        let flying = Flying {
            codes: Arc::clone(self),
            seeker,
        };
        let module = module.clone();
        tokio::spawn(async move {
            let found = flying.codes.find(&module, flavour_of(id), &own).await;
            // Nobody may be waiting any more.
            let _ = landed.send(Some(match found {
                Ok((code, origin)) => (Ok(code), origin),
                Err(error) => (Err(error), Origin::Compiler),
            }));
            drop(flying);
        });
        Ok(flight)
    }

    /// Keeps what was found where the next one looks first.
    fn land(&self, id: Id, found: &Result<(Arc<Code>, Origin), CompileError>) {
        let mut held = self.held();
        match found {
            Ok((code, _)) => held.warm(id, Arc::clone(code), self.bounds.memory_bytes),
            Err(error) if error.lasting() => {
                let until = Instant::now() + REFUSED_FOR;
                held.refused.push_back((id, error.clone(), until));
                if held.refused.len() > REFUSED_MAX {
                    held.refused.pop_front();
                }
            }
            Err(_) => {}
        }
    }

    async fn find(
        self: &Arc<Self>,
        module: &Module,
        flavour: Flavour,
        own: &Arc<Semaphore>,
    ) -> Result<(Arc<Code>, Origin), CompileError> {
        let id = (*module.digest(), flavour);
        let (key, kept) = self.kept(id).await?;
        if let Some(kept) = kept {
            let found = Ok(kept);
            self.land(id, &found);
            return found;
        }
        // The tenant's turn first, so that who waits for it holds no place of another's.
        let _turn = own.acquire().await.map_err(closed)?;
        let _compiling = loop {
            if let Some(code) = self.hot(&id.0, flavour) {
                return Ok((code, Origin::Memory));
            }
            match self.begin(id)? {
                Begun::Ours(compiling) => break compiling,
                // Whatever comes of it; where it was no fault of the module's, this one tries by itself.
                Begun::Anothers(mut compiling) => {
                    let _ = compiling.changed().await;
                }
            }
        };
        let found = self.compiled(module, key, id).await;
        self.land(id, &found);
        found
    }

    /// Code that is kept on disk, and the key that it is kept under.
    async fn kept(
        self: &Arc<Self>,
        id: Id,
    ) -> Result<(Key, Option<(Arc<Code>, Origin)>), CompileError> {
        let codes = Arc::clone(self);
        let (digest, flavour) = id;
        if self.bounds.lend
            && let Some((key, code)) = self.lent(digest, flavour).await?
        {
            return Ok((key, Some((Arc::new(code), Origin::Memory))));
        }
        let looked = blocking(move || {
            let key = codes.key(digest, flavour)?;
            let found = codes.store().map(|store| store.load(&key));
            Ok((key, found))
        });
        let (key, found) = looked.await?;
        match found {
            Some(Found::There(code)) => {
                self.lend(&code).await;
                return Ok((key, Some((Arc::new(code), Origin::Disk))));
            }
            Some(Found::Refused(why)) => {
                count(&self.counts.code_refused);
                self.counts
                    .trouble(format!("code of {digest} was not believed: {why}"));
            }
            Some(Found::Absent) | None => {}
        }
        Ok((key, None))
    }

    /// Takes the compilation of a module up, unless somebody is at it.
    fn begin(self: &Arc<Self>, id: Id) -> Result<Begun, CompileError> {
        let mut held = self.held();
        if let Some(compiling) = held.compiling.get(&id) {
            return Ok(Begun::Anothers(compiling.clone()));
        }
        // Of whoever was at it before.
        if let Some(error) = held.refusal(id) {
            return Err(error);
        }
        let (over, compiling) = watch::channel(());
        held.compiling.insert(id, compiling);
        Ok(Begun::Ours(Compiling {
            codes: Arc::clone(self),
            id,
            _over: over,
        }))
    }

    /// Compiles a module and keeps its code.
    async fn compiled(
        self: &Arc<Self>,
        module: &Module,
        key: Key,
        (digest, flavour): Id,
    ) -> Result<(Arc<Code>, Origin), CompileError> {
        let _slot = self.slots.acquire().await.map_err(closed)?;
        let file = module.open().await.map_err(CompileError::Bytes)?;
        let limits = self.bounds.compile;
        let wasm = blocking(move || checked(&file, &digest, &limits)).await?;
        let code = compile(&self.process, &self.programs, &limits, flavour, &wasm).await?;
        count(&self.counts.compiled);
        let code = Arc::new(code);
        let (codes, kept) = (Arc::clone(self), Arc::clone(&code));
        // A disk that takes nothing costs the next process a compilation, and this run nothing.
        let keeping = blocking(move || {
            if let Some(Err(error)) = codes.store().map(|store| store.keep(&key, &kept)) {
                let words = format!("code of {digest} was not kept: {error}");
                codes.counts.trouble(words);
            }
            Ok(())
        });
        keeping.await?;
        self.lend(&code).await;
        Ok((code, Origin::Compiler))
    }

    /// Code that an earlier process has checked and left with the supervisor, in a file that cannot change.
    async fn lent(
        self: &Arc<Self>,
        digest: Digest,
        flavour: Flavour,
    ) -> Result<Option<(Key, Code)>, CompileError> {
        let codes = Arc::clone(self);
        let looked = blocking(move || {
            let key = codes.key(digest, flavour)?;
            let row = codes.store().and_then(|store| store.row(&key));
            Ok((key, row))
        });
        let (key, Some(row)) = looked.await? else {
            return Ok(None);
        };
        // A supervisor that cannot be asked has none.
        let Ok(Some(file)) = self.process.kept(row.code).await else {
            return Ok(None);
        };
        let same = rustix::fs::fstat(&file);
        let same = same.is_ok_and(|seen| seen.st_size.unsigned_abs() == row.bytes);
        let sealed = Sealed {
            file,
            bytes: row.bytes,
            digest: row.code,
        };
        let code = Code {
            kind: row.kind,
            flavour,
            sealed,
        };
        Ok(same.then_some((key, code)))
    }

    /// Leaves code with the supervisor. Where it takes none, the next process reads it again.
    async fn lend(&self, code: &Code) {
        if self.bounds.lend {
            let sealed = &code.sealed;
            let _ = self.process.keep(sealed.digest, sealed.file.as_fd()).await;
        }
    }

    fn key(&self, module: Digest, flavour: Flavour) -> Result<Key, CompileError> {
        let fingerprint = match self.fingerprint.get() {
            Some(fingerprint) => *fingerprint,
            None => {
                // Where it cannot be made, the fingerprint cannot be remembered, and that is all.
                let _ = self.store();
                let made = fingerprint::of(&self.programs.compiler, &self.folder)?;
                *self.fingerprint.get_or_init(|| made)
            }
        };
        Ok(Key {
            module,
            flavour,
            fingerprint,
        })
    }

    /// The directory of code, where there can be one.
    fn store(&self) -> Option<&Store> {
        let path = self.folder.join("code");
        let open = || {
            let opened = Store::open(&path, self.bounds.disk_bytes);
            let refused = |error| self.counts.trouble(format!("no code is kept: {error}"));
            opened.map_err(refused).ok()
        };
        self.store.get_or_init(open).as_ref()
    }
}

fn flavour_of(id: Id) -> Flavour {
    id.1
}

fn closed(_: tokio::sync::AcquireError) -> CompileError {
    CompileError::Failed {
        kind: ErrorKind::Internal,
        said: "its turn will never come".to_owned(),
    }
}

/// Who compiles a module.
enum Begun {
    Ours(Compiling),
    Anothers(watch::Receiver<()>),
}

/// A compilation, over when this is dropped.
struct Compiling {
    codes: Arc<Codes>,
    id: Id,
    _over: watch::Sender<()>,
}

impl Drop for Compiling {
    fn drop(&mut self) {
        self.codes.held().compiling.remove(&self.id);
    }
}

/// Leaves with the task that looks for code, however that ends.
struct Flying {
    codes: Arc<Codes>,
    seeker: Seeker,
}

impl Drop for Flying {
    fn drop(&mut self) {
        let mut held = self.codes.held();
        held.flights.remove(&self.seeker);
        let tenant = &self.seeker.1;
        if let Some(turn) = held.turns.get_mut(tenant) {
            turn.waiting -= 1;
            if turn.waiting == 0 {
                held.turns.remove(tenant);
            }
        }
    }
}

impl Held {
    /// Why a module has no code, where that is remembered.
    fn refusal(&mut self, id: Id) -> Option<CompileError> {
        let now = Instant::now();
        self.refused.retain(|(.., until)| *until > now);
        let mut refused = self.refused.iter();
        let found = refused.find(|(refused, ..)| *refused == id);
        found.map(|(_, error, _)| error.clone())
    }

    /// Keeps code in memory, and makes room for it.
    fn warm(&mut self, id: Id, code: Arc<Code>, most: u64) {
        self.tick += 1;
        self.bytes += code.sealed.bytes;
        if let Some((before, _)) = self.hot.insert(id, (code, self.tick)) {
            self.bytes -= before.sealed.bytes;
        }
        while self.bytes > most && self.hot.len() > 1 {
            let least = self.hot.iter().min_by_key(|(_, (_, used))| *used);
            let Some(least) = least.map(|(id, _)| *id) else {
                return;
            };
            if let Some((gone, _)) = self.hot.remove(&least) {
                self.bytes -= gone.sealed.bytes;
            }
        }
    }
}

/// Work that reads and hashes.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CompileError> + Send + 'static,
) -> Result<T, CompileError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        Err(CompileError::Failed {
            kind: ErrorKind::Internal,
            said: error.to_string(),
        })
    })
}

/// A copy of a module that is what was named.
fn checked(file: &File, digest: &Digest, limits: &CompileLimits) -> Result<File, CompileError> {
    let failed = |said: String| CompileError::Failed {
        kind: ErrorKind::Unavailable,
        said,
    };
    let most = limits.module_bytes;
    let copied = sealed::copy("leasehold-module", &mut FromStart::of(file), most);
    let copied = copied.map_err(|error| match error {
        CopyError::TooLong(_) => limit(CompileBound::Module, limits),
        CopyError::Io(error) => failed(error.to_string()),
    })?;
    if copied.digest != *digest {
        return Err(CompileError::Changed(*digest));
    }
    let wasm = File::from(copied.file);
    let mut head = [0; 8];
    let got = FromStart::of(&wasm).read(&mut head);
    let got = got.map_err(|error| failed(error.to_string()))?;
    if Kind::of(&head[..got]).is_none() {
        // No compiler is needed to tell that.
        let said = "it begins with neither a module's nor a component's magic number";
        return Err(CompileError::Invalid(said.to_owned()));
    }
    Ok(wasm)
}
