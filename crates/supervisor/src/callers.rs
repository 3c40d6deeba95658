//! Callers: they are let in, heard and forgotten, and who may stay when there are too many. A caller that says nothing is let go after
//! a few seconds. One that has said hello stays as long as it likes, with nothing to say for days; only
//! when the table is full, one that waits for nothing makes room for the next: first of the process
//! that has most connections, and none for a process that has more, so that a crowd costs the crowd.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::connection::Connection;
use crate::sandbox::{Role, Sandbox};
use crate::server::{Server, Timer};
use crate::source::{Happening, Key, Source};

/// Most connections at one time.
pub(crate) const CONNECTIONS_MAX: usize = 512;
/// How long a caller may take to say hello.
pub(crate) const HELLO_BOUND: Duration = Duration::from_secs(5);
/// How long a caller has for its next word before it may have to make room.
const QUIET_LEAST: Duration = Duration::from_secs(1);

impl Server {
    /// Lets in whoever waits, of this user and as far as there is room.
    pub(crate) fn accept(&mut self) {
        use rustix::net::{SocketFlags, accept_with};
        while let Some(listener) = &self.listener {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = accept_with(listener, flags) else {
                return;
            };
            let Ok(peer) = rustix::net::sockopt::socket_peercred(&socket) else {
                continue;
            };
            let (uid, peer) = (peer.uid, peer.pid.as_raw_nonzero().get());
            if uid != rustix::process::geteuid() || !self.room_for_caller(peer) {
                continue;
            }
            let key = self.new_key();
            if self.sources.add(&socket, Source::Connection(key)).is_ok() {
                self.connections.insert(key, Connection::new(socket, peer));
                self.await_hello(key);
            }
        }
    }

    /// Takes what a caller says, and notices its end.
    pub(crate) fn on_connection(&mut self, key: Key, happening: Happening) {
        if happening.writable {
            self.unflushed.push(key);
        }
        if !happening.readable {
            return;
        }
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        let alive = connection.fill();
        loop {
            let Some(connection) = self.connections.get_mut(&key) else {
                return;
            };
            match connection.take() {
                Ok(Some(call)) => self.on_call(key, call),
                Ok(None) => break,
                Err(_) => return self.drop_connection(key),
            }
        }
        if !alive.is_ok_and(|alive| alive) {
            self.drop_connection(key);
        }
    }

    /// Forgets a caller. Its runs and sandboxes go on, but not a sandbox that was for it alone or whose id it
    /// never learned: nobody could ever end that. Pools that were kept for it go on for a while.
    pub(crate) fn drop_connection(&mut self, key: Key) {
        let Some(connection) = self.connections.remove(&key) else {
            return;
        };
        self.sources.forget(connection.as_fd());
        self.timers.clear(Timer::Hello(key));
        self.forsake(key);
        self.end_bound(key);
        for (_, run) in &connection.follows {
            if let Some(run) = self.runs.get_mut(run) {
                run.followers.retain(|(follower, _)| *follower != key);
            }
        }
        let orphaned = |sandbox: &Sandbox| match sandbox.role {
            Role::Provisioned(waiter) => {
                sandbox.holder == Some(key) || waiter.is_some_and(|(waiter, _)| waiter == key)
            }
            Role::Run(_) | Role::Pool(_) => false,
        };
        let orphans = self
            .sandboxes
            .iter()
            .filter(|(_, sandbox)| orphaned(sandbox));
        for orphan in orphans.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.end_sandbox(orphan);
        }
    }

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
