//! Room for callers: who may stay when there are too many. A caller that says nothing is let go after
//! a few seconds. One that has said hello stays as long as it likes, with nothing to say for days; only
//! when the table is full, one that waits for nothing makes room for the next: first of the process
//! that has most connections, and none for a process that has more, so that a crowd costs the crowd.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::sandbox::Role;
use crate::server::{Server, Timer};
use crate::source::Key;

/// Most connections at one time.
pub(crate) const CONNECTIONS_MAX: usize = 512;
/// How long a caller may take to say hello.
pub(crate) const HELLO_BOUND: Duration = Duration::from_secs(5);
/// How long a caller has for its next word before it may have to make room.
const QUIET_LEAST: Duration = Duration::from_secs(1);

impl Server {
    /// Whether another caller fits, after one has made room where that is needed.
    pub(crate) fn room_for_caller(&mut self, peer: i32) -> bool {
        if self.connections.len() >= CONNECTIONS_MAX
            && let Some(key) = self.dispensable(peer)
        {
            self.drop_connection(key);
        }
        self.connections.len() < CONNECTIONS_MAX
    }

    /// A caller has not said hello in time.
    pub(crate) fn on_hello_late(&mut self, key: Key) {
        if self
            .connections
            .get(&key)
            .is_some_and(|caller| !caller.greeted)
        {
            self.drop_connection(key);
        }
    }

    /// The caller that is missed least, where a process wants one more.
    fn dispensable(&self, peer: i32) -> Option<Key> {
        let owed = self.owed();
        let mut crowd: HashMap<i32, usize> = HashMap::new();
        for caller in self.connections.values() {
            *crowd.entry(caller.peer).or_default() += 1;
        }
        let now = Instant::now();
        let quiet = self.connections.iter().filter(|(key, caller)| {
            let silent = now.saturating_duration_since(caller.heard) >= QUIET_LEAST;
            let larger = crowd.get(&caller.peer) >= crowd.get(&peer);
            let idle = caller.owes_nothing() && !owed.contains(*key);
            silent && (!caller.greeted || larger && idle)
        });
        let least = quiet.min_by_key(|(_, caller)| {
            let crowd = crowd.get(&caller.peer).copied().unwrap_or(0);
            (caller.greeted, std::cmp::Reverse(crowd), caller.heard)
        });
        least.map(|(key, _)| *key)
    }

    /// Callers that wait for an answer.
    fn owed(&self) -> HashSet<Key> {
        let mut owed: HashSet<Key> = self.stoppers.iter().map(|(key, _)| *key).collect();
        for pool in &self.pools {
            owed.extend(pool.waiting());
        }
        for sandbox in self.sandboxes.values() {
            if let Role::Provisioned(Some((key, _))) = sandbox.role {
                owed.insert(key);
            }
            owed.extend(sandbox.agents.iter().map(|(key, _, _)| *key));
            owed.extend(sandbox.destroyers.iter().map(|(key, _)| *key));
        }
        owed
    }

    /// Begins to wait for the first word of a caller.
    pub(crate) fn await_hello(&mut self, key: Key) {
        self.timers
            .set(Timer::Hello(key), Instant::now(), HELLO_BOUND);
    }
}
