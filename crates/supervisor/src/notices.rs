//! What callers are told: notices wait in a connection and are sent when the loop comes round, as far as the
//! socket takes them.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use leasehold_protocol::supervisor::{Event, RecordWord};

use crate::server::{Server, Timer};
use crate::source::{Key, Source};

/// How long a notice that nobody waits for may wait for one that somebody does.
const UNHURRIED: Duration = Duration::from_millis(1);

impl Server {
    /// Queues a notice for one caller.
    pub(crate) fn notify(&mut self, key: Key, tag: u64, event: Event) {
        self.notify_with(key, tag, event, Vec::new());
    }

    /// Queues a notice with descriptors for one caller.
    pub(crate) fn notify_with(&mut self, key: Key, tag: u64, event: Event, fds: Vec<OwnedFd>) {
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        if connection.push(tag, event, fds) {
            self.unflushed.push(key);
        } else {
            self.drop_connection(key);
        }
    }

    /// Queues a notice that nobody waits for: it goes with the next one that somebody does, or by
    /// itself before long, so that a short run does not wake its caller for each of its stages.
    pub(crate) fn notify_soon(&mut self, key: Key, tag: u64, event: Event, fds: Vec<OwnedFd>) {
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        if !connection.push(tag, event, fds) {
            return self.drop_connection(key);
        }
        self.unhurried.push(key);
        if !self.timers.pending(Timer::Unhurried) {
            let now = Instant::now();
            self.timers.set(Timer::Unhurried, now, UNHURRIED);
        }
    }

    /// Notices have waited for others long enough.
    pub(crate) fn hurry(&mut self) {
        self.unflushed.append(&mut self.unhurried);
    }

    /// Queues a notice with a record that is encoded, for callers who follow its run.
    pub(crate) fn tell_record(
        &mut self,
        followers: &[(Key, u64)],
        word: RecordWord,
        record: &[u8],
    ) {
        for (key, tag) in followers.iter().copied() {
            let connection = self.connections.get_mut(&key);
            match connection.map(|connection| connection.push_record(tag, word, record)) {
                Some(true) => self.unflushed.push(key),
                Some(false) => self.drop_connection(key),
                None => {}
            }
        }
    }

    /// Sends what is queued, as far as the sockets take it.
    pub(crate) fn flush(&mut self) {
        let mut keys = std::mem::take(&mut self.unflushed);
        if keys.is_empty() {
            return;
        }
        keys.sort_unstable();
        keys.dedup();
        self.unhurried
            .retain(|key| keys.binary_search(key).is_err());
        if self.unhurried.is_empty() {
            self.timers.clear(Timer::Unhurried);
        }
        for key in keys {
            self.flush_one(key);
        }
    }

    fn flush_one(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        if connection.flush().is_ok_and(|done| done) && !connection.stale.is_empty() {
            // It was slow; of the counts it missed only the newest matter.
            let stale = std::mem::take(&mut connection.stale);
            for (tag, run) in stale {
                if let Some(run) = self.runs.get(&run) {
                    let (stdout, stderr) = run.kept();
                    connection.push(tag, Event::Output { stdout, stderr }, Vec::new());
                }
            }
        }
        match connection.flush() {
            Err(_) => self.drop_connection(key),
            Ok(done) => {
                if done == connection.waits_for_room {
                    connection.waits_for_room = !done;
                    let source = Source::Connection(key);
                    let _ = self.sources.want_room(connection.as_fd(), source, !done);
                }
            }
        }
    }
}
