//! A daemon of the bench's own: `leasehold serve` in the directories of an [`Arena`], on a free port. It
//! and its supervisor end when it is dropped.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use leasehold_backend::process::client::Client;
use rustix::process::{Pid, Signal, kill_process};

use super::arena::{Arena, PATIENCE};
use super::memory;
use super::wire::Wire;
use crate::fault::Fault;
use crate::serve::home::Home;
use crate::{place, supervise, voice};

/// Pause between two looks at one that starts or ends.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A running daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    home: Home,
    address: SocketAddr,
    key: String,
}

/// What a process holds of the memory, in MiB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    /// All pages it has mapped.
    pub(crate) resident: f64,
    /// The same, what is shared counted by its share.
    pub(crate) proportional: f64,
}

impl Daemon {
    /// Starts it with so many sandboxes kept parked, and waits until it says where it is.
    ///
    /// # Errors
    /// When it ends or says nothing.
    pub(crate) fn start(arena: &Arena, warm: u32) -> Result<Self, Fault> {
        let home = Home::within(arena.paths());
        let warm = warm.to_string();
        let words = ["serve", "--listen", "0", "--drain", "1s", "--warm", &warm];
        let mut command = arena.command(&words)?;
        // A file and no pipe: nobody reads it while it is measured.
        let log = arena.directory().join("daemon.log");
        let started = fs::File::create(&log).and_then(|file| command.stderr(file).spawn());
        let mut child =
            started.map_err(|error| Fault::host("cannot start the daemon").because(&error))?;
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some((address, key)) = told(&home) {
                return Ok(Self {
                    child,
                    home,
                    address,
                    key,
                });
            }
            let ended = child.try_wait().is_ok_and(|status| status.is_some());
            if ended || Instant::now() > until {
                let _ = child.kill();
                let _ = child.wait();
                return Err(silent(&log));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// A connection of its own.
    ///
    /// # Errors
    /// When it does not answer.
    pub(crate) fn wire(&self) -> Result<Wire, Fault> {
        Wire::open(self.address, &self.key)
            .map_err(|error| Fault::host("cannot reach the daemon").because(&error))
    }

    /// A connection to its supervisor.
    ///
    /// # Errors
    /// When it does not answer.
    pub(crate) fn worker(&self) -> Result<Client, Fault> {
        place::connect_or_start(&self.home.worker())
    }

    /// What it holds of the memory.
    ///
    /// # Errors
    /// When that cannot be read.
    pub(crate) fn held(&self) -> Result<Held, Fault> {
        let of = |name| memory::rollup_kib(self.child.id(), name);
        match (of("Rss"), of("Pss")) {
            (Some(resident), Some(proportional)) => Ok(Held {
                resident: resident as f64 / 1024.0,
                proportional: proportional as f64 / 1024.0,
            }),
            _ => Err(Fault::host("cannot read what memory the daemon holds")),
        }
    }

    fn stop(&mut self) -> Result<(), Fault> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // One that is gone already is waited for all the same.
            let _ = kill_process(pid, Signal::TERM);
        }
        let until = Instant::now() + PATIENCE;
        while self.child.try_wait().is_ok_and(|status| status.is_none()) {
            if Instant::now() > until {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        match place::connect(&self.home.worker())? {
            Some(client) => supervise::stop_it(client),
            None => Ok(()),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Err(fault) = self.stop() {
            voice::fault(&fault);
        }
    }
}

/// Where it serves and the key it made, once both are there.
fn told(home: &Home) -> Option<(SocketAddr, String)> {
    let notice = home.notice()?;
    let address = notice.url.strip_prefix("http://")?.parse().ok()?;
    let key = fs::read_to_string(home.first_key()).ok()?;
    Some((address, key.trim().to_owned()))
}

/// What one that did not come up said last.
fn silent(log: &Path) -> Fault {
    let said = fs::read(log).unwrap_or_default();
    let said = String::from_utf8_lossy(&said).into_owned();
    let line = said.lines().next_back().unwrap_or("it said nothing");
    Fault::host(format!("the daemon did not start: {}", voice::clean(line)))
}
