//! What a run leaves in a read-write workspace that the host may execute later: the server's half of
//! the lookout. Its first look is over before the command starts, its second is begun when every
//! process of the sandbox is dead. Other workspaces have none.

use std::time::Instant;

use leasehold_core::record::LeftOnHost;
use leasehold_core::spec::WorkspaceMode;

use crate::collector::lookout::{self, LookBounds, LookJob, Phase};
use crate::log;
use crate::sandbox::{Role, Sandbox};
use crate::server::{Server, Timer};
use crate::source::{Key, Source};

impl Server {
    /// Posts a lookout at the workspace of a sandbox that was just made, if it is the host's own. A
    /// run without one goes on, and its record says that nobody looked.
    pub(crate) fn post_lookout(&mut self, key: Key) {
        let Some(sandbox) = self.sandboxes.get_mut(&key) else {
            return;
        };
        if sandbox.spec.workspace != WorkspaceMode::ReadWrite || sandbox.killed {
            return;
        }
        let (host_uid, host_gid) = sandbox.workload_ids();
        let Some(made) = &sandbox.made else { return };
        let posted = rustix::io::fcntl_dupfd_cloexec(&made.workspace, 3)
            .map_err(|errno| errno.to_string())
            .and_then(|workspace| {
                lookout::start(LookJob {
                    workspace,
                    host_uid,
                    host_gid,
                    bounds: LookBounds::default(),
                })
                .map_err(|error| error.to_string())
            })
            .and_then(|lookout| {
                self.sources
                    .add(&lookout, Source::Lookout(key))
                    .map(|()| lookout)
                    .map_err(|error| error.to_string())
            });
        match posted {
            Ok(lookout) => {
                sandbox.lookout = Some(lookout);
                self.bound_lookout(key);
            }
            Err(error) => log::line(&format!("sandbox {}: no lookout: {error}", sandbox.id)),
        }
    }

    /// Arms or clears the deadline of a look.
    fn bound_lookout(&mut self, key: Key) {
        let lookout = self.sandboxes.get(&key).and_then(|it| it.lookout.as_ref());
        match lookout.and_then(lookout::Lookout::deadline) {
            Some(due) => {
                let now = Instant::now();
                let late = due.saturating_duration_since(now);
                self.timers.set(Timer::Lookout(key), now, late);
            }
            None => self.timers.clear(Timer::Lookout(key)),
        }
    }

    /// Takes what a lookout says.
    pub(crate) fn on_lookout(&mut self, key: Key) {
        let Some(sandbox) = self.sandboxes.get_mut(&key) else {
            return;
        };
        let Some(lookout) = &mut sandbox.lookout else {
            return;
        };
        let before = lookout.phase();
        let now = lookout.advance();
        if now == before {
            return;
        }
        if now == Phase::Over {
            self.sources.forget(&*lookout);
        }
        let role = sandbox.role;
        self.bound_lookout(key);
        self.on_ready(key);
        if let Role::Run(run) = role {
            self.step(run);
        }
    }

    /// Whether a lookout of a run's sandbox has still something to tell.
    pub(crate) fn lookout_waits(&self, run: Key) -> bool {
        let sandbox = self.runs.get(&run).and_then(|run| run.sandbox);
        let sandbox = sandbox.and_then(|sandbox| self.sandboxes.get(&sandbox));
        let lookout = sandbox.and_then(|sandbox| sandbox.lookout.as_ref());
        lookout.is_some_and(|lookout| lookout.phase() != Phase::Over)
    }

    /// Has the lookout of a run's sandbox look again: every process of it is dead.
    pub(crate) fn look_again(&mut self, run: Key) {
        let Some(key) = self.runs.get(&run).and_then(|run| run.sandbox) else {
            return;
        };
        let sandbox = self.sandboxes.get_mut(&key);
        let Some(lookout) = sandbox.and_then(|sandbox| sandbox.lookout.as_mut()) else {
            return;
        };
        if lookout.phase() == Phase::Waiting {
            lookout.look_again();
            self.bound_lookout(key);
        }
    }

    /// Takes a lookout from its post, whatever it does.
    pub(crate) fn dismiss_lookout(&mut self, key: Key, sandbox: &mut Sandbox) {
        self.timers.clear(Timer::Lookout(key));
        if let Some(lookout) = sandbox.lookout.take()
            && lookout.phase() != Phase::Over
        {
            self.sources.forget(&lookout);
        }
    }
}

impl Sandbox {
    /// Whether no first look is going on.
    pub(crate) fn looked(&self) -> bool {
        let lookout = self.lookout.as_ref();
        lookout.is_none_or(|lookout| lookout.phase() != Phase::Before)
    }

    /// What its command left for the host to execute, as far as it was looked for; nothing where the
    /// workspace is not the host's own.
    pub(crate) fn left_on_host(&self) -> Option<LeftOnHost> {
        if self.spec.workspace != WorkspaceMode::ReadWrite {
            return None;
        }
        let missed = |why: &str| LeftOnHost {
            files: Vec::new(),
            incomplete: Some(why.to_owned()),
        };
        Some(match &self.lookout {
            Some(lookout) if lookout.phase() == Phase::Over => lookout.found().clone(),
            Some(_) => missed("alive"),
            None => missed("failed"),
        })
    }
}
