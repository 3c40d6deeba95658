//! What cases are made of: tenants, admissions and runs that are led through their lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_core::digest::{Digest, canonical};
use leasehold_core::end::EndReason;
use leasehold_core::event::{Chain, Event, Head, RunFact, TenantEntry, TenantFact};
use leasehold_core::id::{Entropy, KeyId, LeaseId, RunId, SandboxId, WorkerId};
use leasehold_core::lease::{Epoch, Lease, LeaseState};
use leasehold_core::name::Name;
use leasehold_core::outcome::Outcome;
use leasehold_core::record::{Observed, Residue, Usage};
use leasehold_core::tenant::Tenant;
use serde_json::json;

use super::Failed;
use crate::seam::{Admission, Admitted, Change, Idempotency, PAGE_MAX, Sealing, Store};

type Result<T> = std::result::Result<T, Failed>;

/// A store and a source of ids that never repeat.
pub struct World {
    /// The store under test.
    pub store: Arc<dyn Store>,
    drawn: AtomicU64,
}

/// A run somebody leads through its life: its chain, epoch and lease.
#[derive(Debug, Clone)]
pub struct Life {
    /// Which run.
    pub run: RunId,
    /// Its chain as its writer knows it.
    pub chain: Chain,
    /// Under which epoch.
    pub epoch: Epoch,
    /// Its lease, once granted.
    pub lease: Option<Lease>,
}

impl World {
    /// Around an empty store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            drawn: AtomicU64::new(1),
        }
    }

    /// Around a store that has rows: ids start from `from`.
    #[must_use]
    pub fn from(store: Arc<dyn Store>, from: u64) -> Self {
        Self {
            store,
            drawn: AtomicU64::new(from),
        }
    }

    /// Entropy that never repeats here.
    pub fn entropy(&self) -> Entropy {
        let mut entropy = [0; 13];
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        entropy[..8].copy_from_slice(&drawn.to_le_bytes());
        entropy
    }

    /// Makes a tenant.
    ///
    /// # Errors
    /// As the store.
    pub async fn tenant(&self, name: &str) -> Result<Name> {
        let name = Name::parse(name)?;
        let tenant = Tenant {
            name: name.clone(),
            created_unix_ms: 1,
            suspended: false,
            projects: vec![Name::parse("default")?],
        };
        let change = (Change::CreateTenant(tenant), TenantFact::TenantCreated);
        self.store
            .change(name.clone(), None, 1, vec![change])
            .await?;
        Ok(name)
    }

    /// An admission at a time, with a key if one is given; the request is the key's own text.
    ///
    /// # Errors
    /// Never in practice.
    pub fn admission(
        &self,
        tenant: &Name,
        at: u64,
        key: Option<&str>,
    ) -> Result<(Admission, Life)> {
        let run = RunId::from_entropy(&self.entropy());
        let contract = canonical(&json!({
            "run": run, "argv": ["true"], "text": "\u{1}é", "retention": {"record_s": 1_000}
        }))?;
        let digest = Digest::of(&contract);
        let mut chain = Chain::new(run.clone(), digest, Head::EMPTY);
        let first = chain.next(Epoch::NONE, at, RunFact::Accepted { contract: digest })?;
        let admission = Admission {
            run: run.clone(),
            tenant: tenant.clone(),
            project: Name::parse("default")?,
            principal: Name::parse("someone")?,
            tool: None,
            contract,
            sealed_request: b"sealed\0request".to_vec(),
            idempotency: key.map(|key| Idempotency {
                key: key.to_owned(),
                request: Digest::of(key.as_bytes()),
            }),
            first,
            at_unix_ms: at,
        };
        let life = Life {
            run,
            chain,
            epoch: Epoch::NONE,
            lease: None,
        };
        Ok((admission, life))
    }

    /// Admits a run.
    ///
    /// # Errors
    /// As the store, or when it is not new.
    pub async fn admit(&self, tenant: &Name) -> Result<Life> {
        let (admission, life) = self.admission(tenant, 10, None)?;
        match self.store.admit(admission).await? {
            Admitted::New => Ok(life),
            Admitted::Earlier(_) => Err(Failed("a new run was taken for an earlier one".into())),
        }
    }

    /// The next lease of a run, with its event.
    ///
    /// # Errors
    /// Never in practice.
    pub fn lease(&self, life: &Life) -> Result<(Lease, Event, Life)> {
        let lease = Lease {
            id: LeaseId::from_entropy(&self.entropy()),
            run: life.run.clone(),
            worker: WorkerId::from_entropy(&[7; 13]),
            epoch: life.epoch.next(),
            sandbox: None,
            expires_unix_ms: 1_000,
            state: LeaseState::Active,
        };
        let mut life = life.clone();
        life.epoch = lease.epoch;
        life.lease = Some(lease.clone());
        let fact = RunFact::Leased {
            lease: lease.id.clone(),
            worker: lease.worker.clone(),
        };
        let event = life.chain.next(lease.epoch, 20, fact)?;
        Ok((lease, event, life))
    }

    /// Admits a run and grants its lease.
    ///
    /// # Errors
    /// As the store.
    pub async fn leased(&self, tenant: &Name) -> Result<Life> {
        let life = self.admit(tenant).await?;
        let (lease, event, life) = self.lease(&life)?;
        self.store.grant(lease, event).await?;
        Ok(life)
    }

    /// A sandbox's id.
    pub fn sandbox(&self) -> SandboxId {
        SandboxId::from_entropy(&self.entropy())
    }

    /// A key's id.
    pub fn key(&self) -> KeyId {
        KeyId::from_entropy(&self.entropy())
    }

    /// Leads a run from its lease to its seal.
    ///
    /// # Errors
    /// As the store.
    pub async fn finish(&self, mut life: Life) -> Result<Life> {
        let (outcome, events) = life.ending()?;
        let (run, epoch) = (life.run.clone(), life.epoch);
        self.store.conclude(run, epoch, outcome, events).await?;
        let lease = life.lease.as_ref().map(|lease| lease.id.clone());
        if let Some(lease) = &lease {
            let revoked = RunFact::AuthorityRevoked {
                lease: lease.clone(),
            };
            let event = life.chain.next(epoch, 40, revoked)?;
            self.store.revoke(lease.clone(), vec![event]).await?;
        }
        let sealing = life.sealing(clean())?;
        self.store.seal(lease, sealing).await?;
        Ok(life)
    }

    /// Every event of a run.
    ///
    /// # Errors
    /// As the store.
    pub async fn events(&self, run: &RunId) -> Result<Vec<Event>> {
        let mut all = Vec::new();
        loop {
            let from = u64::try_from(all.len()).unwrap_or(u64::MAX);
            let page = self.store.events(run.clone(), from).await?;
            let last = page.len() < PAGE_MAX as usize;
            all.extend(page);
            if last {
                return Ok(all);
            }
        }
    }

    /// Every entry of a tenant's log.
    ///
    /// # Errors
    /// As the store.
    pub async fn log(&self, tenant: &Name) -> Result<Vec<TenantEntry>> {
        let mut all = Vec::new();
        loop {
            let from = u64::try_from(all.len()).unwrap_or(u64::MAX);
            let page = self.store.log(tenant.clone(), from).await?;
            let last = page.len() < PAGE_MAX as usize;
            all.extend(page);
            if last {
                return Ok(all);
            }
        }
    }

    /// Fails unless the events of a run link from nothing to the head in its row.
    ///
    /// # Errors
    /// As the store, or where a link is broken.
    pub async fn whole(&self, run: &RunId) -> Result<Head> {
        let mut head = Head::EMPTY;
        for event in self.events(run).await? {
            if event.seq != head.count || event.prev != head.digest || event.run != *run {
                return Err(Failed(format!("{run}: event {} does not link", event.seq)));
            }
            head = Head {
                count: event.seq + 1,
                digest: event.digest()?,
            };
        }
        let row = self.store.run(None, run.clone()).await?;
        if row.head != head {
            return Err(Failed(format!(
                "{run}: the head is {:?}, its events end at {head:?}",
                row.head
            )));
        }
        Ok(head)
    }

    /// Fails unless the entries of a log link from nothing to its head.
    ///
    /// # Errors
    /// As the store, or where a link is broken.
    pub async fn whole_log(&self, tenant: &Name) -> Result<Head> {
        let mut head = Head::EMPTY;
        for entry in self.log(tenant).await? {
            if entry.seq != head.count || entry.prev != head.digest || entry.tenant != *tenant {
                return Err(Failed(format!(
                    "{tenant}: entry {} does not link",
                    entry.seq
                )));
            }
            head = Head {
                count: entry.seq + 1,
                digest: entry.digest()?,
            };
        }
        if self.store.log_head(tenant.clone()).await? != head {
            return Err(Failed(format!("{tenant}: the log's head is another")));
        }
        Ok(head)
    }
}

impl Life {
    /// A plain event.
    ///
    /// # Errors
    /// Never in practice.
    pub fn step(&mut self) -> Result<Event> {
        Ok(self
            .chain
            .next(self.epoch, 30, RunFact::Queued { ahead: 3 })?)
    }

    /// An outcome and the events that tell of it.
    ///
    /// # Errors
    /// Never in practice.
    pub fn ending(&mut self) -> Result<(Outcome, Vec<Event>)> {
        let outcome = outcome();
        let ended = RunFact::Ended {
            end: outcome.end.clone(),
        };
        let concluded = RunFact::Concluded {
            outcome: Digest::of_value(&outcome)?,
        };
        let events = vec![
            self.chain.next(self.epoch, 35, ended)?,
            self.chain.next(self.epoch, 35, concluded)?,
        ];
        Ok((outcome, events))
    }

    /// The last transaction.
    ///
    /// # Errors
    /// Never in practice.
    pub fn sealing(&mut self, observed: Observed) -> Result<Sealing> {
        let cleaned = RunFact::Cleaned {
            observed: observed.clone(),
        };
        Ok(Sealing {
            run: self.run.clone(),
            epoch: self.epoch,
            observed,
            events: vec![self.chain.next(self.epoch, 50, cleaned)?],
            statement: "{\"signed\":true}".to_owned(),
            at_unix_ms: 50,
        })
    }
}

/// An outcome of success.
#[must_use]
pub(super) fn outcome() -> Outcome {
    Outcome {
        end: EndReason::Completed,
        exit: None,
        limits_hit: Vec::new(),
        usage: Usage::default(),
        stdout: None,
        stderr: None,
        output: Some("{\"half\":0.5}".to_owned()),
        artifacts: Vec::new(),
        module: None,
        ended_unix_ms: 35,
    }
}

/// An inventory of one thing, gone or not.
#[must_use]
pub(super) fn inventory(clean: bool) -> Observed {
    Observed {
        residues: vec![Residue {
            resource: "cgroups".to_owned(),
            clean,
            detail: "as seen".to_owned(),
            inferred: false,
        }],
    }
}

/// A clean inventory.
#[must_use]
pub(super) fn clean() -> Observed {
    inventory(true)
}
