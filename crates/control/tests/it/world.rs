//! An engine over the real store, real objects and a fake host, and the ends of runs in it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_backend::conformance::script::Script;
use leasehold_backend::fake::FakeBackend;
use leasehold_control::clock::{Clock, SystemClock};
use leasehold_control::control::{Control, Until};
use leasehold_control::engine::Engine;
use leasehold_control::engine::backends::Backends;
use leasehold_control::engine::descriptors::Descriptors;
use leasehold_control::engine::failpoint::Failpoints;
use leasehold_control::engine::modules::{NoTemplates, Scripts};
use leasehold_control::engine::parts::{Checks, Doing, NoWorkspaces, Parts, Settings};
use leasehold_control::engine::queue::Bounds;
use leasehold_control::entropy::SystemEntropy;
use leasehold_control::evidence::keys::Keyring;
use leasehold_control::evidence::seal::Signer;
use leasehold_control::image::NoImages;
use leasehold_control::plan::{OutputCheck, Plan, Share, Start};
use leasehold_control::vault::Vault;
use leasehold_core::digest::{Digest, canonical};
use leasehold_core::end::EndReason;
use leasehold_core::event::{Event, RunFact, TenantFact};
use leasehold_core::id::{KeyId, RunId, WorkerId};
use leasehold_core::isolation::{Isolation, TrustClass};
use leasehold_core::limits::Limits;
use leasehold_core::name::{Name, ToolRef};
use leasehold_core::run_contract::{
    AllocationTerms, AuthorityTerms, CONTRACT_VERSION, NetworkTerms, RetentionTerms, Rootfs,
    RunContract, Selected, Why, WorkspaceTerms,
};
use leasehold_core::spec::{ExecSpec, SandboxSpec, WorkspaceMode};
use leasehold_core::tenant::{Principal, Role, Tenant};
use leasehold_store::objects::Objects;
use leasehold_store::seam::{Change, Idempotency, RunFilter, RunRow, Store};
use leasehold_store::sqlite::{Faults, Options, SqliteStore};

static COUNT: AtomicU64 = AtomicU64::new(0);

pub(crate) fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

fn entropy() -> [u8; 13] {
    let mut entropy = [7; 13];
    entropy[..8].copy_from_slice(&COUNT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    entropy
}

/// No tool has a check.
struct NoChecks;

impl Checks for NoChecks {
    fn check(&self, _: Name, _: ToolRef) -> Doing<'_, Option<Arc<dyn OutputCheck>>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}

/// What outlives a daemon: its files and its host.
pub(crate) struct World {
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) objects: Arc<Objects>,
    pub(crate) backend: FakeBackend,
    pub(crate) clock: SystemClock,
    dir: PathBuf,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A plan that a test may change before it is fixed.
pub(crate) struct Draft {
    pub(crate) contract: RunContract,
    pub(crate) start: Start,
    pub(crate) share: Share,
    pub(crate) output: Option<Arc<dyn OutputCheck>>,
    pub(crate) cache: Option<Digest>,
}

/// What is promised of a plain run.
fn contract(tenant: &str, exec: &ExecSpec, limits: &Limits) -> RunContract {
    RunContract {
        version: CONTRACT_VERSION,
        run: RunId::from_entropy(&entropy()),
        tenant: name(tenant),
        project: name("default"),
        principal: name("ann"),
        role: Role::Runner,
        key: KeyId::from_entropy(&[1; 13]),
        tool: None,
        manifest: None,
        argv: exec.argv.clone(),
        program: exec.module.clone(),
        image: None,
        env_names: Vec::new(),
        cwd: None,
        input: None,
        selected: Selected {
            backend: "fake".to_owned(),
            isolation: Isolation::Process,
            nested: None,
            rootfs: Rootfs::HostSystem,
            why: Why {
                preference: Isolation::Process,
                floor: Isolation::Process,
                trust: TrustClass::FirstParty,
                required: Isolation::Process,
            },
            reason: "a test said so".to_owned(),
        },
        posture: Digest::of(b"posture"),
        limits: limits.clone(),
        workspace: WorkspaceTerms {
            mode: WorkspaceMode::Ephemeral,
            content: None,
            artifacts: exec.artifacts.clone(),
        },
        network: NetworkTerms::default(),
        permissions: Vec::new(),
        credentials: Vec::new(),
        allocation: AllocationTerms {
            hard_deadline_ms: 600_000,
            idle_timeout_ms: None,
        },
        authority: AuthorityTerms {
            lease_ms: 30_000,
            credentials_ms: 0,
        },
        retention: RetentionTerms {
            logs_s: 60,
            artifacts_s: 60,
            record_s: 600,
        },
        policies: Vec::new(),
        idempotent: false,
        attempts: 1,
        cacheable: false,
        priority: 0,
        max_wait_ms: 60_000,
    }
}

impl Draft {
    pub(crate) fn new(tenant: &str, exec: ExecSpec) -> Self {
        let limits = Limits {
            grace_ms: 200,
            ..Limits::default()
        };
        let contract = contract(tenant, &exec, &limits);
        Self {
            contract,
            start: Start {
                sandbox: SandboxSpec {
                    limits,
                    ..SandboxSpec::default()
                },
                exec,
                stdin: None,
                workspace: Vec::new(),
                module: None,
                image: None,
            },
            share: Share {
                weight: 1,
                tenant_running_max: 100,
                tenant_queued_max: 10_000,
                tool_running_max: None,
                per_minute_max: 100_000,
                tenant_request_bytes_max: 64 << 20,
            },
            output: None,
            cache: None,
        }
    }

    pub(crate) fn script(tenant: &str, script: Script) -> Self {
        Self::new(tenant, script.exec())
    }

    /// The same at another backend.
    pub(crate) fn at(mut self, backend: &str) -> Self {
        self.contract.selected.backend = backend.to_owned();
        self
    }

    pub(crate) fn plan(self) -> Plan {
        let canonical = canonical(&self.contract).unwrap();
        Plan {
            digest: Digest::of(&canonical),
            contract: self.contract,
            canonical,
            start: self.start,
            share: self.share,
            output: self.output,
            cache: self.cache,
            warnings: Vec::new(),
        }
    }
}

pub(crate) fn key(text: &str) -> Idempotency {
    Idempotency {
        key: text.to_owned(),
        request: Digest::of(text.as_bytes()),
    }
}

pub(crate) fn who(tenant: &str) -> Principal {
    Principal {
        tenant: name(tenant),
        project: name("default"),
        name: name("ann"),
        role: Role::Admin,
        key: KeyId::from_entropy(&[1; 13]),
        grants: Vec::new(),
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with_faults(None).await
    }

    pub(crate) async fn with_faults(faults: Option<Faults>) -> Self {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = format!("leasehold-engine-{}-{count}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        let mut options = Options::new(dir.join("db"));
        std::fs::create_dir_all(&dir).unwrap();
        options.faults = faults;
        let world = Self {
            store: Arc::new(SqliteStore::open(options).unwrap()),
            objects: Arc::new(Objects::local(dir.join("objects")).unwrap()),
            backend: FakeBackend::new(),
            clock: SystemClock::new(),
            dir,
        };
        for tenant in ["acme", "globex"] {
            let row = Tenant {
                name: name(tenant),
                created_unix_ms: 1,
                suspended: false,
                projects: vec![name("default")],
            };
            let change = (Change::CreateTenant(row), TenantFact::TenantCreated);
            let changed = world.store.change(name(tenant), None, 1, vec![change]);
            changed.await.unwrap();
        }
        world
    }

    pub(crate) fn parts(&self, running_max: u32) -> Parts {
        let keyring = Keyring::open(self.dir.join("keys"), self.clock.unix_ms()).unwrap();
        Parts {
            store: self.store.clone(),
            objects: self.objects.clone(),
            backends: Backends::of(Arc::new(self.backend.clone())),
            sealer: Arc::new(Signer::new(Arc::new(keyring), Arc::new(self.clock))),
            checks: Arc::new(NoChecks),
            vault: Arc::new(Vault::open(&self.dir.join("vault")).unwrap()),
            workspaces: Arc::new(NoWorkspaces),
            templates: Arc::new(NoTemplates),
            images: Arc::new(NoImages),
            scripts: Scripts::default(),
            clock: Arc::new(self.clock),
            entropy: Arc::new(SystemEntropy),
            worker: WorkerId::from_entropy(&[3; 13]),
            descriptors: Descriptors::unbounded(),
            settings: Settings {
                bounds: Bounds::new(running_max, 10_000),
                reconcile_every: Duration::from_millis(200),
                removal_max: Duration::from_secs(5),
                ..Settings::default()
            },
            failpoints: Failpoints::default(),
        }
    }

    pub(crate) async fn engine(&self, running_max: u32) -> Arc<Engine> {
        Engine::start(self.parts(running_max)).await.unwrap()
    }

    /// What the chain of a run says, checked link by link.
    pub(crate) async fn facts(&self, run: &RunId) -> Vec<RunFact> {
        // A run that goes on may add an event between the two reads, so its row is read around them.
        let (head, events) = loop {
            let before = self.store.run(None, run.clone()).await.unwrap().head;
            let events: Vec<Event> = self.store.events(run.clone(), 0).await.unwrap();
            let after = self.store.run(None, run.clone()).await.unwrap().head;
            if before.count == after.count {
                break (after, events);
            }
        };
        let mut prev = Digest::ZERO;
        for (seq, event) in events.iter().enumerate() {
            assert_eq!((event.seq, event.prev), (seq as u64, prev));
            prev = event.digest().unwrap();
        }
        assert_eq!((head.count, head.digest), (events.len() as u64, prev));
        events.into_iter().map(|event| event.fact).collect()
    }

    pub(crate) async fn rows(&self) -> Vec<RunRow> {
        let filter = RunFilter {
            limit: 500,
            ..RunFilter::default()
        };
        self.store.runs(filter).await.unwrap()
    }

    /// Nothing is left on the host or open in the books.
    pub(crate) async fn assert_nothing_left(&self) {
        assert!(
            self.backend.present().is_empty(),
            "{:?}",
            self.backend.present()
        );
        let open = self.store.open_leases().await.unwrap();
        assert!(open.is_empty(), "{open:?}");
    }
}

/// Waits until a run is sealed.
pub(crate) async fn sealed(control: &Control, tenant: &str, run: &RunId) -> RunRow {
    let patience = Duration::from_secs(20);
    let row = control
        .wait(&who(tenant), run, Until::Sealed, patience)
        .await
        .unwrap();
    let state = row.state;
    assert_eq!(state, leasehold_core::outcome::RunState::Sealed, "{row:?}");
    row
}

pub(crate) fn end(row: &RunRow) -> EndReason {
    row.outcome.as_ref().unwrap().end.clone()
}
