//! The socket over which a caller of this user passes a directory of this host.
//!
//! HTTP never takes a host path. A descriptor is what its sender could open; the run directory that holds
//! the socket is closed to every other user, and the peer's uid is looked at all the same.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_api::Directories;
use leasehold_control::engine::descriptors::Descriptors;
use leasehold_core::spec::WorkspaceMode;
use leasehold_protocol::socket::recv_with_fds;
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use serde_json::{Value, json};

use crate::fault::Fault;

/// Callers that are heard at once.
const CALLERS_MAX: usize = 64;
/// Pause after a caller could not be let in.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a caller may take to pass its directory.
const PATIENCE: Duration = Duration::from_secs(5);

/// Listens in a thread of its own until the socket is removed with the process.
///
/// # Errors
/// When the socket cannot be made.
pub(crate) fn listen(
    path: &Path,
    directories: Directories,
    descriptors: Arc<Descriptors>,
) -> Result<(), Fault> {
    let failed = |error: std::io::Error| {
        Fault::host(format!("cannot listen at {}", path.display())).because(&error)
    };
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(failed(error));
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    let callers = Arc::new(AtomicUsize::new(0));
    std::thread::spawn(move || {
        loop {
            // What is given up for ends is not for what begins.
            while descriptors.are_scarce() {
                std::thread::sleep(PAUSE);
            }
            let Ok((stream, _)) = listener.accept() else {
                // Mostly there are no descriptors; the next caller fails as fast.
                std::thread::sleep(PAUSE);
                continue;
            };
            if callers.fetch_add(1, Ordering::SeqCst) >= CALLERS_MAX {
                callers.fetch_sub(1, Ordering::SeqCst);
                continue;
            }
            let (directories, callers) = (directories.clone(), Arc::clone(&callers));
            std::thread::spawn(move || {
                serve(stream, &directories);
                callers.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    Ok(())
}

fn serve(mut stream: UnixStream, directories: &Directories) {
    let answer = match taken(&stream, directories) {
        Ok(ticket) => json!({ "ticket": ticket }),
        Err(why) => json!({ "error": why }),
    };
    // A caller that went away needs no answer.
    let _ = answered(&mut stream, &answer);
}

fn answered(stream: &mut UnixStream, answer: &Value) -> std::io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    std::io::Write::write_all(stream, answer.to_string().as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)
}

fn taken(stream: &UnixStream, directories: &Directories) -> Result<String, String> {
    let peer = socket_peercred(stream).map_err(|errno| errno.to_string())?;
    if peer.uid != geteuid() {
        return Err("another user's directories are not taken".to_owned());
    }
    stream
        .set_read_timeout(Some(PATIENCE))
        .map_err(|error| error.to_string())?;
    let mut word = [0; 64];
    let mut fds = Vec::new();
    let bytes = recv_with_fds(stream, &mut word, &mut fds).map_err(|error| error.to_string())?;
    let mode = match &word[..bytes] {
        b"read_only\n" => WorkspaceMode::ReadOnly,
        b"clone\n" => WorkspaceMode::Clone,
        b"read_write\n" => WorkspaceMode::ReadWrite,
        _ => return Err("expected a mode: read_only, clone or read_write".to_owned()),
    };
    let directory: Option<OwnedFd> = fds.pop();
    let (Some(directory), true) = (directory, fds.is_empty()) else {
        return Err("expected one directory".to_owned());
    };
    let ticket = crate::run::new_run()
        .map_err(|fault| fault.chain())?
        .to_string();
    let offered = directories.offer(ticket.clone(), directory, mode);
    offered.map(|()| ticket).map_err(|error| error.message)
}
