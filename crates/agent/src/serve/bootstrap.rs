//! `leasehold.Bootstrap`: what the host alone may ask. Served on host connections only.

use std::time::Duration;

use leasehold_protocol::envd::bootstrap::{
    FILES_MAX, Inject, InjectFile, Rearm, Rearmed, ResetDone,
};
use leasehold_protocol::envd::code::{CallError, Code};
use leasehold_protocol::envd::process::Empty;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use tokio::time::Instant;

use super::acting::{self, Done, refused};
use super::state::{Shared, State};
use super::token::Token;
use super::users::{self, User};
use super::{bounds, procfs, tree};

/// Directories that are emptied by a reset.
const SCRATCH: [&str; 5] = ["/workspace", "/home/user", "/tmp", "/var/tmp", "/dev/shm"];
/// Time after which a reset gives up killing.
const KILL_TIME: Duration = Duration::from_secs(10);
/// Lines of what could not be removed.
const LINES: usize = 8;

/// Gives the sandbox its environment, token, defaults and files.
///
/// # Errors
/// When something is out of bounds or a file cannot be written; what came before it is done.
pub(super) async fn inject(state: &State, request: Inject) -> Result<Empty, CallError> {
    if request.files.len() > FILES_MAX {
        let message = format!(
            "{} files to inject: most is {FILES_MAX}",
            request.files.len()
        );
        return Err(CallError::new(Code::InvalidArgument, message));
    }
    {
        let mut settings = state.settings.borrow_mut();
        if let Some(envs) = request.envs {
            settings.envs = envs;
        }
        if let Some(token) = request.access_token {
            settings.token = Token::new(token);
        }
        if let Some(user) = request.default_user {
            settings.user = Some(user).filter(|user| !user.is_empty());
        }
        if let Some(workdir) = request.default_workdir {
            settings.workdir = Some(workdir).filter(|path| path.starts_with('/'));
        }
    }
    for file in request.files {
        write(state, file).await?;
    }
    Ok(Empty {})
}

async fn write(state: &Shared, file: InjectFile) -> Result<(), CallError> {
    let named = Some(file.user.as_str()).filter(|user| !user.is_empty());
    let user = state.user(named)?;
    let path = state.path(&file.path, &user)?;
    let mode = if file.mode == 0 {
        0o644
    } else {
        file.mode & 0o777
    };
    acting::run(state, &user, bounds::OPERATION_TIME, || {
        let to = tree::open_to_write(&path, &user, mode)?;
        let failed = |errno| refused(&format!("cannot write '{path}'"), errno);
        rustix::fs::fchmod(&to, Mode::from_raw_mode(mode)).map_err(failed)?;
        let mut rest = file.content.0.as_slice();
        while !rest.is_empty() {
            let written = rustix::io::write(&to, rest).map_err(failed)?;
            rest = &rest[written..];
        }
        Done::json(&Empty {})
    })
    .await?;
    Ok(())
}

/// After a restore: a new token, and nobody keeps what was opened with the old one.
///
/// # Errors
/// When the new token is empty.
pub(super) fn rearm(state: &State, request: Rearm) -> Result<Rearmed, CallError> {
    let token = Token::new(request.access_token)
        .ok_or_else(|| CallError::new(Code::InvalidArgument, "accessToken is empty"))?;
    state.settings.borrow_mut().token = Some(token);
    let cut = state.connections.get();
    state.cuts.send_modify(|count| *count += 1);
    Ok(Rearmed {
        connections_cut: cut as u32,
        watchers_dropped: state.watchers.drop_all() as u32,
    })
}

/// Kills everything that was not there before the agent, and empties the scratch directories. Tells
/// what it saw afterwards, not what it meant to do.
///
/// # Errors
/// When the clearing itself cannot be done.
pub(super) async fn reset(state: &State) -> Result<ResetDone, CallError> {
    state.cuts.send_modify(|count| *count += 1);
    state.watchers.drop_all();
    let mut done = ResetDone {
        processes_killed: kill_all(state).await,
        ..ResetDone::default()
    };
    let root = User {
        name: "root".to_owned(),
        uid: 0,
        gid: 0,
        home: "/root".to_owned(),
    };
    let time = bounds::LONG_OPERATION_TIME;
    let (left, _) = acting::ask::<Vec<String>>(state, &root, time, || Done::json(&clear())).await?;
    done.scratch_empty = left.is_empty();
    done.left = left;
    done.processes_gone = strangers(state).is_empty();
    let mut settings = state.settings.borrow_mut();
    settings.envs.clear();
    settings.token = None;
    settings.user = Some(users::DEFAULT.to_owned());
    settings.workdir = None;
    Ok(done)
}

/// Processes that are neither init, stub nor agent: not there when the agent started.
fn strangers(state: &Shared) -> Vec<i32> {
    let me = std::process::id().cast_signed();
    procfs::processes()
        .into_iter()
        .filter(|one| !one.zombie && one.pid != me && one.pid != 1)
        .filter(|one| !state.before.contains(&(one.pid, one.started)))
        .map(|one| one.pid)
        .collect()
}

async fn kill_all(state: &Shared) -> u32 {
    let mut killed = std::collections::BTreeSet::new();
    state.processes.forget();
    let end = Instant::now() + KILL_TIME;
    // Again and again: the killed take their time, and whoever forks is faster than one look.
    while Instant::now() < end {
        let targets = strangers(state);
        if targets.is_empty() {
            break;
        }
        for pid in targets {
            if leasehold_jail::sys::kill(pid, 9).is_ok() {
                killed.insert(pid);
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    killed.len() as u32
}

/// Empties the scratch directories; tells what is left.
fn clear() -> Vec<String> {
    let mut left = Vec::new();
    for path in SCRATCH {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let outcome = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
            Ok(directory) => tree::empty(directory),
        };
        if let Err(errno) = outcome
            && left.len() < LINES
        {
            left.push(format!("{path}: {errno}"));
        }
    }
    left
}
