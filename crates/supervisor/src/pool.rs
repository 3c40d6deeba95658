//! Pools: untouched sandboxes that wait, so that a run costs one message. A slot serves one run of
//! one owner and is gone (invariant I5). Filled while nothing else is to do. A pool may be kept for one
//! caller alone: when that is away, it is let go, so that no daemon's death leaves sandboxes parked for ever.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use leasehold_core::error::PublicError;
use leasehold_core::limits::Limits;
use leasehold_core::sandbox::state::{Action, State};
use leasehold_core::spec::{SandboxSpec, WorkspaceMode};
use leasehold_protocol::supervisor::Event;

use crate::admit::{Admitted, Beside, admit};
use crate::calls::new_sandbox_id;
use crate::log;
use crate::make::{Came, group_limits};
use crate::run::Exec;
use crate::sandbox::Role;
use crate::server::{Server, Timer};
use crate::source::Key;

/// Most slots of one pool.
const SLOTS_MAX: u32 = 4_096;
/// Failures in a row after which a pool is given up.
const FAILURES_MAX: u32 = 3;
/// How long after a claim the run has the machine to itself, if the pool can spare it.
const REFILL_PAUSE: Duration = Duration::from_millis(10);

/// One pool.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Names it in the role of its slots.
    key: Key,
    spec: SandboxSpec,
    admitted: Admitted,
    count: usize,
    /// The caller it is kept for, connected or not; `None` as long as the supervisor is there.
    holder: Option<Key>,
    /// Parked slots, oldest first.
    ready: VecDeque<Key>,
    /// Slots being made.
    making: Vec<Key>,
    failures: u32,
    /// Calls that wait until it is full.
    waiters: Vec<(Key, u64)>,
}

impl Pool {
    /// Connections that wait until it is full.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = Key> {
        self.waiters.iter().map(|(key, _)| *key)
    }

    fn low(&self) -> bool {
        self.ready.len() + self.making.len() <= self.count / 2
    }
}

/// Whether a slot made for `pool` can serve `wanted`.
fn fits(pool: &SandboxSpec, have: &Limits, wanted: &SandboxSpec, limits: &Limits) -> bool {
    pool.warm == wanted.warm
        // A slot has the root it was made with, which is no image's.
        && wanted.image.is_none()
        && wanted.workspace == WorkspaceMode::Ephemeral
        && have.same_slot(limits)
}

impl Server {
    /// Sets how many slots of a kind are to wait.
    pub(crate) fn on_pool(
        &mut self,
        (from, tag): (Key, u64),
        spec: SandboxSpec,
        count: u32,
        held: bool,
    ) -> Result<(), PublicError> {
        use leasehold_core::error::ErrorKind;
        if self.stopping {
            let message = "the supervisor is about to end";
            return Err(PublicError::new(ErrorKind::Unavailable, message));
        }
        if spec.workspace != WorkspaceMode::Ephemeral {
            let message = "a pool holds sandboxes with an ephemeral workspace only";
            return Err(PublicError::new(ErrorKind::Invalid, message));
        }
        crate::image::refuse_parked(&spec)?;
        let room = self.capacity as u64;
        if count > SLOTS_MAX || u64::from(count) > room {
            let most = u64::from(SLOTS_MAX).min(room);
            let message = format!("`count` is {count}: most is {most}");
            return Err(PublicError::new(ErrorKind::Invalid, message));
        }
        let admitted = admit(&self.host, &spec, false, Beside::NOTHING)?;
        let same =
            |pool: &&mut Pool| fits(&pool.spec, &pool.admitted.limits, &spec, &admitted.limits);
        let pool = match self.pools.iter_mut().find(same) {
            Some(pool) => pool,
            None => {
                let key = self.new_key();
                self.pools.push(Pool {
                    key,
                    spec,
                    admitted,
                    count: 0,
                    holder: None,
                    ready: VecDeque::new(),
                    making: Vec::new(),
                    failures: 0,
                    waiters: Vec::new(),
                });
                let last = self.pools.len() - 1;
                &mut self.pools[last]
            }
        };
        pool.count = count as usize;
        pool.holder = held.then_some(from);
        pool.failures = 0;
        pool.waiters.push((from, tag));
        let key = pool.key;
        self.timers.clear(Timer::Forsaken(key));
        self.shrink(key);
        self.tell_full(key);
        Ok(())
    }

    /// Gives the pools of a caller that went away a while to be asked for by the next.
    pub(crate) fn forsake(&mut self, caller: Key) {
        let pools = self.pools.iter();
        let held = pools.filter(|pool| pool.holder == Some(caller));
        for key in held.map(|pool| pool.key).collect::<Vec<_>>() {
            let timer = Timer::Forsaken(key);
            self.timers.set(timer, Instant::now(), self.idle_exit);
        }
    }

    /// Keeps a pool no longer.
    pub(crate) fn let_go(&mut self, key: Key) {
        if let Some(pool) = self.pool_mut(key) {
            pool.count = 0;
        }
        self.shrink(key);
        self.tell_full(key);
    }

    fn pool_mut(&mut self, key: Key) -> Option<&mut Pool> {
        self.pools.iter_mut().find(|pool| pool.key == key)
    }

    /// Ends slots above the wanted number, and the pool when none is wanted.
    fn shrink(&mut self, key: Key) {
        let Some(pool) = self.pool_mut(key) else {
            return;
        };
        let mut surplus = Vec::new();
        while pool.ready.len() > pool.count {
            surplus.extend(pool.ready.pop_back());
        }
        for slot in surplus {
            self.end_sandbox(slot);
        }
    }

    /// Tells the waiting calls when a pool is full; a pool of none is forgotten.
    fn tell_full(&mut self, key: Key) {
        let Some(pool) = self.pool_mut(key) else {
            return;
        };
        let waiters = if pool.ready.len() >= pool.count {
            std::mem::take(&mut pool.waiters)
        } else {
            Vec::new()
        };
        if pool.count == 0 && pool.making.is_empty() {
            self.pools.retain(|pool| pool.key != key);
            self.timers.clear(Timer::Forsaken(key));
        }
        for (from, tag) in waiters {
            self.notify(from, tag, Event::Done);
        }
    }

    /// A slot is parked.
    pub(crate) fn pool_grew(&mut self, pool: Key, slot: Key) {
        let Some(pool) = self.pool_mut(pool) else {
            return self.end_sandbox(slot);
        };
        pool.making.retain(|making| *making != slot);
        pool.ready.push_back(slot);
        pool.failures = 0;
        let key = pool.key;
        self.shrink(key);
        self.tell_full(key);
    }

    /// A slot died.
    pub(crate) fn pool_lost(&mut self, pool: Key, slot: Key) {
        let Some(pool) = self.pool_mut(pool) else {
            return;
        };
        if pool.making.contains(&slot) {
            pool.failures += 1;
        }
        pool.making.retain(|making| *making != slot);
        pool.ready.retain(|ready| *ready != slot);
        let key = pool.key;
        self.give_up(key, "its sandboxes die before they are parked");
    }

    /// Slots were lost with their spawner: one failure for each pool, however many were in the making.
    pub(crate) fn slots_lost(&mut self, slots: &[Key]) {
        let mut hit = Vec::new();
        for pool in &mut self.pools {
            let before = pool.making.len();
            pool.making.retain(|making| !slots.contains(making));
            if pool.making.len() < before {
                pool.failures += 1;
                hit.push(pool.key);
            }
        }
        for key in hit {
            self.give_up(key, "the spawner dies while it makes its sandboxes");
        }
    }

    fn give_up(&mut self, key: Key, why: &str) {
        use leasehold_core::error::ErrorKind;
        let Some(pool) = self.pool_mut(key) else {
            return;
        };
        if pool.failures < FAILURES_MAX {
            // One that is to be emptied has nothing left to wait for.
            return self.tell_full(key);
        }
        log::line(&format!("a pool is given up: {why}"));
        pool.count = pool.ready.len();
        for (from, tag) in std::mem::take(&mut pool.waiters) {
            let message = format!("the pool could not be filled: {why}");
            let error = PublicError::new(ErrorKind::Unavailable, message);
            self.notify(from, tag, Event::Refused(error));
        }
        // One that is empty is forgotten.
        self.tell_full(key);
    }

    /// A slot that can serve a sandbox as asked: the oldest that may run beside us, since this core
    /// has our own work next; else the oldest.
    pub(crate) fn claimable(&self, spec: &SandboxSpec, admitted: &Admitted) -> Option<Key> {
        let fitting =
            |pool: &&Pool| fits(&pool.spec, &pool.admitted.limits, spec, &admitted.limits);
        let slots = self
            .pools
            .iter()
            .filter(fitting)
            .flat_map(|pool| &pool.ready);
        let parked = slots.copied().filter(|slot| {
            let found = self.sandboxes.get(slot);
            found.is_some_and(|found| found.state() == State::Parked)
        });
        let here = rustix::thread::sched_getcpu();
        let beside = |slot: &Key| {
            let cores = self.sandboxes.get(slot).map(|found| &found.cores);
            cores.is_some_and(|cores| cores.iter().any(|core| *core as usize != here))
        };
        parked
            .clone()
            .find(beside)
            .or_else(|| parked.clone().next())
    }

    /// Gives a parked sandbox to a run, with the limits that run asked for.
    pub(crate) fn claim(&mut self, run_key: Key, slot: Key, spec: SandboxSpec, admitted: Admitted) {
        for pool in &mut self.pools {
            pool.ready.retain(|ready| *ready != slot);
        }
        self.timers.set(Timer::Refill, Instant::now(), REFILL_PAUSE);
        let (Some(sandbox), Some(run)) =
            (self.sandboxes.get_mut(&slot), self.runs.get_mut(&run_key))
        else {
            return;
        };
        debug_assert_eq!(run.exec_state, Exec::Unsent);
        let before = group_limits(&self.host, &sandbox.admitted, 0);
        let now = group_limits(&self.host, &admitted, 0);
        sandbox.spec = spec;
        sandbox.admitted = admitted;
        sandbox.role = Role::Run(run_key);
        sandbox.begun = Instant::now();
        run.sandbox = Some(slot);
        let claimed = sandbox.act(Action::Claim);
        let applied = match &sandbox.group {
            Some(group) if before != now => group.set_limits(&now).map_err(|e| e.to_string()),
            _ => Ok(()),
        };
        if let Err(why) = applied {
            run.seen.never_started = Some(format!("its limits could not be applied: {why}"));
            run.abort = true;
        } else if !claimed {
            run.seen.never_started = Some("it was not parked any more".to_owned());
            run.abort = true;
        }
    }

    /// Whether a slot is missing and may be made now: as many at a time as there are cores to make
    /// them on; and while there are runs only for a pool that is half empty, or when nobody has
    /// claimed anything for a while. A run that is being removed counts: its caller waits for that.
    pub(crate) fn wants_refill(&self) -> bool {
        let room = self.sandboxes.len() + self.stuck.len() < self.capacity;
        if self.stopping || !room || self.making() >= self.cores.len().max(1) {
            return false;
        }
        self.short_pool().is_some_and(|pool| {
            pool.low() || !self.timers.pending(Timer::Refill) || self.runs.is_empty()
        })
    }

    /// Whether a pool is so empty that its slots must not wait for a quiet moment, which may never
    /// come while it is claimed from.
    pub(crate) fn runs_dry(&self) -> bool {
        self.short_pool().is_some_and(Pool::low)
    }

    fn making(&self) -> usize {
        self.pools.iter().map(|pool| pool.making.len()).sum()
    }

    fn short_pool(&self) -> Option<&Pool> {
        self.pools
            .iter()
            .filter(|pool| pool.failures < FAILURES_MAX)
            .find(|pool| pool.ready.len() + pool.making.len() < pool.count)
    }

    /// Makes one slot.
    pub(crate) fn refill(&mut self) {
        let Some(pool) = self.short_pool() else {
            return;
        };
        let (key, spec, admitted) = (pool.key, pool.spec.clone(), pool.admitted.clone());
        let made = self.make(
            new_sandbox_id(),
            spec,
            admitted,
            Role::Pool(key),
            None,
            Came::default(),
        );
        let Some(pool) = self.pool_mut(key) else {
            return;
        };
        match made {
            Ok(slot) => {
                pool.making.push(slot);
                self.order_waiting();
                if let Some(sandbox) = self.sandboxes.get_mut(&slot) {
                    // Without it the run makes its own, later and slower.
                    sandbox.blank = self.records.blank(&sandbox.id, &mut self.spares).ok();
                }
            }
            Err(why) => {
                pool.failures += 1;
                self.give_up(key, &why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::limits::Limit;
    use leasehold_core::spec::Warm;

    #[test]
    fn i5_a_slot_serves_only_what_it_was_made_for() {
        let pool = SandboxSpec::default();
        let have = Limits::default();
        let mut spec = pool.clone();
        let mut limits = have.clone();
        limits.pids = Limit::asked(7);
        limits.wall_ms = Limit::asked(5);
        limits.cpu_milli = Limit::asked(900);
        assert!(fits(&pool, &have, &spec, &limits));
        limits.cpu_milli = Limit::asked(1_001);
        assert!(
            !fits(&pool, &have, &spec, &limits),
            "another number of cores is seen inside"
        );
        limits = have.clone();
        limits.memory_bytes = Limit::asked(64 << 20);
        assert!(!fits(&pool, &have, &spec, &limits));
        spec.warm = Some(Warm::Python);
        assert!(!fits(&pool, &have, &spec, &have));
        spec = pool.clone();
        spec.workspace = WorkspaceMode::Clone;
        assert!(!fits(&pool, &have, &spec, &have));
    }
}
