//! What all requests share. Everything runs on one thread.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use leasehold_protocol::envd::code::CallError;
use tokio::sync::{Semaphore, watch};

use super::acting::Reaper;
use super::bounds;
use super::metrics::Meter;
use super::process::Registry;
use super::token::Token;
use super::users::{self, User};
use super::watcher::Watchers;

/// What the host has given the sandbox.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// Environment of every process.
    pub(super) envs: BTreeMap<String, String>,
    /// Acting user where none is named.
    pub(super) user: Option<String>,
    /// Directory an empty path means.
    pub(super) workdir: Option<String>,
    /// What clients must know.
    pub(super) token: Option<Token>,
}

/// The agent's state.
pub(super) struct Shared {
    /// What the host has given.
    pub(super) settings: RefCell<Settings>,
    /// Processes that were started.
    pub(super) processes: Registry,
    /// Watchers that are asked now and then.
    pub(super) watchers: Watchers,
    /// Rights to run a short file operation.
    pub(super) operations: Semaphore,
    /// Rights to run a long one.
    pub(super) long_operations: Semaphore,
    /// Takes killed children.
    pub(super) reaper: Reaper,
    /// RLIMIT_NOFILE of what is started here.
    pub(super) files: u32,
    /// Open client connections.
    pub(super) connections: Cell<usize>,
    /// Counts the times at which all client connections were cut.
    pub(super) cuts: watch::Sender<u64>,
    /// Processor use since the last look.
    pub(super) meter: Meter,
    /// Processes that were there before the agent: id and start time.
    pub(super) before: Vec<(i32, u64)>,
}

/// How everybody holds it.
pub(super) type State = Rc<Shared>;

impl Shared {
    /// A fresh state. `files` is the limit of open files for what is started.
    pub(super) fn new(reaper: Reaper, files: u32) -> State {
        let before = super::procfs::processes();
        Rc::new(Self {
            settings: RefCell::default(),
            processes: Registry::default(),
            watchers: Watchers::default(),
            operations: Semaphore::new(bounds::OPERATIONS),
            long_operations: Semaphore::new(bounds::LONG_OPERATIONS),
            reaper,
            files,
            connections: Cell::new(0),
            cuts: watch::channel(0).0,
            meter: Meter::default(),
            before: before.iter().map(|one| (one.pid, one.started)).collect(),
        })
    }

    /// The acting user: the one named, or the default.
    ///
    /// # Errors
    /// `unauthenticated` when there is none of this name.
    pub(super) fn user(&self, named: Option<&str>) -> Result<User, CallError> {
        match named {
            Some(name) => users::look_up(name),
            None => {
                let settings = self.settings.borrow();
                users::look_up(settings.user.as_deref().unwrap_or(users::DEFAULT))
            }
        }
    }

    /// Absolute path of what a caller named.
    ///
    /// # Errors
    /// As [`super::paths::resolve`].
    pub(super) fn path(&self, path: &str, user: &User) -> Result<String, CallError> {
        let settings = self.settings.borrow();
        super::paths::resolve(path, user, settings.workdir.as_deref())
    }
}
