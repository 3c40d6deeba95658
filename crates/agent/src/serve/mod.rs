//! The agent mode: the public E2B `envd` wire surface, and our bootstrap service.
//!
//! The agent runs as the sandbox's root, on request, beside whatever the guest runs. It answers
//! HTTP/1.1 on sockets the host passes it ([`leasehold_protocol::envd::channel`]); the guest has no
//! way to reach it. Calls are Connect with JSON, framed by hand over hyper: the stock clients use
//! three shapes of it only, and the ready-made crate brings HTTP/2, protobuf code generation and a
//! service stack that this static program would carry into every sandbox.
//!
//! It must not: run more than one thread (children are forked), open a path somebody else chose with
//! its own rights ([`acting`]), start a process other than through the one posture builder
//! ([`process`]), or let anything a caller or guest sends grow without a bound ([`bounds`]).
//!
//! Start with [`route`] for what is answered, [`connection`] for how.

mod acting;
mod bootstrap;
mod bounds;
mod compose;
mod connection;
mod download;
mod entry;
mod filesystem;
mod listener;
mod metadata;
mod metrics;
mod multipart;
mod paths;
mod process;
mod procfs;
mod query;
mod ready;
mod reply;
mod request;
mod route;
mod state;
mod token;
mod tree;
mod upload;
mod users;
mod watch_child;
mod watcher;

use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::rc::Rc;

use leasehold_jail::posture;
use leasehold_protocol::envd::channel::Received;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::{JoinSet, LocalSet};

use acting::Reaper;
use listener::Listener;
use state::Shared;

/// Open files the agent wants for itself.
const FILES: u64 = 4_096;

/// Serves until the host closes the channel and the last connection has ended.
#[must_use]
pub fn main(channel: OwnedFd) -> ExitCode {
    // Children inherit the rules; without them nothing may start.
    if posture::agent().is_err() {
        return ExitCode::FAILURE;
    }
    let served = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .and_then(|runtime| LocalSet::new().block_on(&runtime, serve(channel)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Takes as many descriptors as the host allows, and gives the number for what is started here.
fn files() -> u32 {
    let limit = getrlimit(Resource::Nofile);
    let own = limit.maximum.unwrap_or(FILES).min(FILES);
    let raised = Rlimit {
        current: Some(own.max(limit.current.unwrap_or(0))),
        maximum: limit.maximum,
    };
    // Without it the agent only has room for less.
    let _ = setrlimit(Resource::Nofile, raised);
    let all = limit.maximum.unwrap_or(u64::from(u32::MAX));
    u32::try_from(all).unwrap_or(u32::MAX)
}

async fn serve(channel: OwnedFd) -> io::Result<()> {
    let listener = Listener::passed(channel)?;
    let (reaper, reaping) = Reaper::new();
    tokio::task::spawn_local(reaping);
    let state = Shared::new(reaper, files());
    listener.ready().await?;
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await? {
            Received::Connection(kind, socket) => {
                connections.spawn_local(connection::serve(Rc::clone(&state), kind, socket));
                while connections.try_join_next().is_some() {}
            }
            Received::Refused => {}
            Received::End => break,
        }
    }
    while connections.join_next().await.is_some() {}
    Ok(())
}
