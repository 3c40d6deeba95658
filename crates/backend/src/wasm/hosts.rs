//! Which host a run gets: one of its tenant's, an untouched one, a new one; never one that was another tenant's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leasehold_core::error::PublicError;
use leasehold_core::id::SandboxId;
use leasehold_core::name::Name;

use super::code::Code;
use super::counts::count;
use super::host::{Host, Seat, Setup, start};
use crate::error::BackendError;

/// How long no host is started after one could not be.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Runs of one host above which its tenant gets another one beside it.
const CROWDED: usize = 4;

/// How many there may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostsBounds {
    pub(super) all: usize,
    pub(super) per_tenant: usize,
    pub(super) spares: usize,
    /// How long a run waits for room.
    pub(super) wait: Duration,
}

/// One host, as [`WasmBackend::hosts`](super::WasmBackend::hosts) shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostStatus {
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// Whose it is; absent while it is untouched.
    pub tenant: Option<Name>,
    /// Runs in it now.
    pub runs: usize,
    /// Runs it ever had.
    pub served: u64,
}

#[derive(Debug)]
pub(super) struct Hosts {
    setup: Setup,
    bounds: HostsBounds,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    tenants: HashMap<Name, Vec<Arc<Host>>>,
    spares: Vec<Arc<Host>>,
    /// Being started.
    starting: usize,
    /// Of these, those that are for a tenant.
    coming: HashMap<Name, usize>,
    /// Untouched hosts that are wanted; none until somebody needs a host.
    wanted: usize,
    failed: Option<(Instant, PublicError)>,
}

/// How a run got its place.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) seat: Seat,
    /// Whether its host was there already.
    pub(super) warm: bool,
}

/// What to do where no host has room.
enum Next {
    Start,
    Wait,
}

impl Hosts {
    pub(super) fn new(setup: Setup, bounds: HostsBounds) -> Self {
        Self {
            setup,
            bounds,
            held: Mutex::default(),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // Nothing panics while it holds this lock.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a run of this tenant that may use so much memory; `None` where there is none for now.
    pub(super) async fn seat(
        self: &Arc<Self>,
        tenant: &Name,
        code: &Arc<Code>,
        memory: u64,
    ) -> Option<Given> {
        if !self.setup.common.bounds.fit(code, memory) {
            return None;
        }
        let until = tokio::time::Instant::now() + self.bounds.wait;
        loop {
            // Before looking, so that room that comes meanwhile is not missed.
            let freed = self.setup.common.freed.notified();
            if let Some(seat) = self.try_seat(tenant, code, memory) {
                return Some(Given { seat, warm: true });
            }
            match self.next(tenant)? {
                Next::Start => {
                    let host = Arc::clone(self).make(Some(tenant.clone())).await?;
                    if let Some(seat) = host.take(code, memory) {
                        return Some(Given { seat, warm: false });
                    }
                    // Others of the tenant were there first.
                }
                Next::Wait => tokio::time::timeout_at(until, freed).await.ok()?,
            }
        }
    }

    /// A place in a host that is there.
    fn try_seat(self: &Arc<Self>, tenant: &Name, code: &Arc<Code>, memory: u64) -> Option<Seat> {
        let mut held = self.held();
        held.wanted = held.wanted.max(self.bounds.spares);
        held.forget_ended();
        let own = held
            .tenants
            .get(tenant)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let mut open: Vec<(usize, &Arc<Host>)> = own
            .iter()
            .map(|host| (host.standing(), host))
            .filter(|(standing, _)| standing.open)
            .map(|(standing, host)| (standing.runs, host))
            .collect();
        open.sort_by_key(|(runs, _)| *runs);
        let crowded = open.first().is_some_and(|(runs, _)| *runs >= CROWDED);
        let found = open.iter().find_map(|(_, host)| host.take(code, memory));
        let alone = open.len() < self.bounds.per_tenant;
        if found.is_some() && !(crowded && alone) {
            return found;
        }
        let given = if alone { held.spares.pop() } else { None };
        let seat = given.as_ref().and_then(|host| {
            host.give();
            let seat = host.take(code, memory);
            held.tenants
                .entry(tenant.clone())
                .or_default()
                .push(Arc::clone(host));
            seat
        });
        drop(held);
        self.replenish();
        // The place in the crowded host is given back where there is a better one.
        seat.or(found)
    }

    /// Whether a host may be started for this tenant; `None` where waiting would not help either.
    fn next(&self, tenant: &Name) -> Option<Next> {
        let mut held = self.held();
        let there = held.tenants.get(tenant).map_or(0, Vec::len);
        let own = there + held.coming.get(tenant).copied().unwrap_or(0);
        if own >= self.bounds.per_tenant {
            return Some(Next::Wait);
        }
        if let Some((when, _)) = &held.failed {
            if when.elapsed() < AFTER_FAILURE {
                return (own > 0).then_some(Next::Wait);
            }
            held.failed = None;
        }
        if held.count() >= self.bounds.all && !held.evict() {
            return Some(Next::Wait);
        }
        held.starting += 1;
        *held.coming.entry(tenant.clone()).or_default() += 1;
        Some(Next::Start)
    }

    /// Starts a host that was counted as starting, for a tenant or for whoever needs one. It goes on where the
    /// caller goes away.
    async fn make(self: Arc<Self>, tenant: Option<Name>) -> Option<Arc<Host>> {
        let made = tokio::spawn(async move {
            let started = start(&self.setup).await;
            let mut held = self.held();
            held.starting -= 1;
            if let Some(tenant) = &tenant {
                held.came(tenant);
            }
            let host = match started {
                Ok(host) => host,
                Err(error) => {
                    let error = public(&error);
                    count(&self.setup.counts.hosts_failed);
                    self.setup.counts.trouble(error.message.clone());
                    held.failed = Some((Instant::now(), error));
                    return None;
                }
            };
            count(&self.setup.counts.hosts_started);
            match tenant {
                Some(tenant) => {
                    host.give();
                    held.tenants
                        .entry(tenant)
                        .or_default()
                        .push(Arc::clone(&host));
                }
                None => held.spares.push(Arc::clone(&host)),
            }
            drop(held);
            self.setup.common.freed.notify_waiters();
            Some(host)
        });
        made.await.ok().flatten()
    }

    /// Starts untouched hosts, as many as are wanted and there is room for.
    fn replenish(self: &Arc<Self>) {
        let mut held = self.held();
        held.forget_ended();
        let failed = held.failed.as_ref();
        if failed.is_some_and(|(when, _)| when.elapsed() < AFTER_FAILURE) {
            return;
        }
        while held.spares.len() + held.starting < held.wanted && held.count() < self.bounds.all {
            held.starting += 1;
            tokio::spawn(Arc::clone(self).make(None));
        }
    }

    /// Keeps so many untouched hosts, and waits until they are there.
    ///
    /// # Errors
    /// When one cannot be started.
    pub(super) async fn keep(self: &Arc<Self>, count: usize) -> Result<(), PublicError> {
        let count = count.min(self.bounds.all);
        let over = {
            let mut held = self.held();
            held.wanted = count;
            held.failed = None;
            let keep = count.min(held.spares.len());
            held.spares.split_off(keep)
        };
        for host in over {
            host.retire();
        }
        loop {
            let freed = self.setup.common.freed.notified();
            self.replenish();
            {
                let held = self.held();
                if held.spares.len() >= count
                    || held.count() >= self.bounds.all && held.starting == 0
                {
                    return Ok(());
                }
                if let Some((_, error)) = &held.failed {
                    return Err(error.clone());
                }
            }
            // A start that fails tells nobody.
            let _ = tokio::time::timeout(Duration::from_millis(50), freed).await;
        }
    }

    pub(super) fn status(&self) -> Vec<HostStatus> {
        let mut held = self.held();
        held.forget_ended();
        let owned = held
            .tenants
            .iter()
            .flat_map(|(tenant, hosts)| hosts.iter().map(move |host| (Some(tenant.clone()), host)));
        let all = owned.chain(held.spares.iter().map(|host| (None, host)));
        all.map(|(tenant, host)| {
            let standing = host.standing();
            HostStatus {
                sandbox: host.sandbox.clone(),
                tenant,
                runs: standing.runs,
                served: standing.served,
            }
        })
        .collect()
    }
}

impl Held {
    /// Notes that the start of a host for a tenant is over.
    fn came(&mut self, tenant: &Name) {
        if let Some(coming) = self.coming.get_mut(tenant) {
            *coming -= 1;
            if *coming == 0 {
                self.coming.remove(tenant);
            }
        }
    }

    fn count(&self) -> usize {
        let owned: usize = self.tenants.values().map(Vec::len).sum();
        owned + self.spares.len() + self.starting
    }

    fn forget_ended(&mut self) {
        self.tenants.retain(|_, hosts| {
            hosts.retain(|host| !host.standing().over);
            !hosts.is_empty()
        });
        self.spares.retain(|host| host.standing().open);
    }

    /// Ends the host that was without a run for longest. Says whether there was one.
    fn evict(&mut self) -> bool {
        let all = self.tenants.iter();
        let all = all.flat_map(|(tenant, hosts)| hosts.iter().map(move |host| (tenant, host)));
        let idle = all.filter_map(|(tenant, host)| {
            let standing = host.standing();
            let idle = standing.open && standing.runs == 0;
            idle.then(|| (standing.idle_since, tenant.clone(), Arc::clone(host)))
        });
        let Some((_, tenant, host)) = idle.min_by_key(|(since, ..)| *since) else {
            return false;
        };
        if !host.retire_if_idle() {
            return false;
        }
        if let Some(hosts) = self.tenants.get_mut(&tenant) {
            hosts.retain(|each| !Arc::ptr_eq(each, &host));
        }
        true
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        for host in held.tenants.values().flatten().chain(&held.spares) {
            host.retire();
        }
    }
}

fn public(error: &BackendError) -> PublicError {
    match error {
        BackendError::Refused(error) => error.clone(),
        BackendError::Unrunnable { detail, .. } => PublicError::new(error.kind(), detail.as_str()),
        BackendError::Lost { kind, .. } => {
            let mut said = "a WebAssembly host cannot be started".to_owned();
            if let Some(cause) = std::error::Error::source(error) {
                said = format!("{said}: {cause}");
            }
            PublicError::new(*kind, said)
        }
    }
}
