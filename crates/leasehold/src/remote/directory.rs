//! Directories of this host and a daemon: passing one as a workspace, writing artifacts into one.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use leasehold_control::archive;
use leasehold_core::digest::Digest;
use leasehold_core::id::RunId;
use leasehold_core::record::Artifact;
use leasehold_core::spec::WorkspaceMode;
use leasehold_protocol::socket::send_with_fds;
use leasehold_protocol::supervisor::artifact_name;
use leasehold_supervisor::collector::CollectBounds;
use leasehold_supervisor::collector::names::unescape;
use leasehold_supervisor::collector::obeyed::may_execute_on_host;
use rustix::fs::{Mode, OFlags, open};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::Remote;
use crate::fault::Fault;
use crate::gather::Gathering;
use crate::run::export::{Destination, Exported};
use crate::voice::clean;

/// Bytes that are copied at once.
const PIECE: usize = 64 << 10;

/// What the daemon says to a directory.
#[derive(Debug, Deserialize)]
struct Ticket {
    ticket: Option<String>,
    error: Option<String>,
}

/// How a directory that was given to a daemon is named in a request.
pub(crate) enum Offered {
    /// As a header: it was passed over the local socket.
    Ticket(String),
    /// As the `workspace` field: its content was sent.
    Content(Value),
}

/// Gives a directory to a daemon.
///
/// # Errors
/// When it cannot be opened, read or passed, or the mode cannot go that way.
pub(crate) fn offer(remote: &Remote, path: &Path, mode: WorkspaceMode) -> Result<Offered, Fault> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open(path, flags, Mode::empty()).map_err(|errno| {
        Fault::usage(format!("cannot open `--workspace` {}", path.display())).because(&errno)
    })?;
    if let Some(home) = remote.home() {
        return pass(&home.local_socket(), &directory, mode).map(Offered::Ticket);
    }
    if mode == WorkspaceMode::ReadWrite {
        return Err(Fault::usage(
            "`--workspace …:rw` needs a daemon on this machine: a copy of the directory is all that another one gets",
        )
        .hint("use DIR:clone, and --artifact for what is to come back"));
    }
    let gathering = Gathering {
        what: "the workspace",
        folders: true,
        leave_out: &|_, _| false,
    };
    let tree = gathering.gather(path, "")?;
    let bytes = archive::pack(&tree)
        .map_err(|error| Fault::usage("this directory cannot be sent").because(&error))?;
    let sent: Value = remote.upload("/v1/uploads", "application/x-tar", bytes)?;
    Ok(Offered::Content(
        json!({ "mode": "upload", "content": sent["digest"] }),
    ))
}

/// Passes the descriptor over the local socket; gets a ticket that is good once.
fn pass(socket: &Path, directory: &OwnedFd, mode: WorkspaceMode) -> Result<String, Fault> {
    let word: &[u8] = match mode {
        WorkspaceMode::ReadOnly => b"read_only\n",
        WorkspaceMode::ReadWrite => b"read_write\n",
        WorkspaceMode::Clone | WorkspaceMode::Ephemeral => b"clone\n",
    };
    let failed = |error: &dyn std::error::Error| {
        Fault::host("cannot pass the directory to the daemon").because(error)
    };
    let mut stream = UnixStream::connect(socket).map_err(|error| failed(&error))?;
    send_with_fds(&stream, word, &[directory.as_fd()]).map_err(|error| failed(&error))?;
    let mut answer = Vec::new();
    (&mut stream)
        .take(4_096)
        .read_to_end(&mut answer)
        .map_err(|error| failed(&error))?;
    let ticket: Ticket = serde_json::from_slice(&answer).map_err(|error| failed(&error))?;
    ticket.ticket.ok_or_else(|| {
        Fault::host(format!(
            "the daemon did not take the directory: {}",
            ticket.error.unwrap_or_default()
        ))
    })
}

/// The artifacts of a run, by their places, no more of them than a worker collects.
///
/// # Errors
/// As the daemon says, or when the list is none or beyond those bounds.
pub(crate) fn artifacts(remote: &Remote, run: &RunId) -> Result<Vec<Artifact>, Fault> {
    let list: Value = remote.get(&format!("/v1/runs/{run}/artifacts"))?;
    let artifacts: Vec<Artifact> = serde_json::from_value(list["artifacts"].clone())
        .map_err(|error| Fault::host("the daemon gave no list of artifacts").because(&error))?;
    bounded(&artifacts)?;
    named(artifacts)
}

/// Writes artifacts of a run into a directory of this host, by the same rules as for a run without a daemon.
///
/// # Errors
/// When they cannot be read from the daemon or written.
pub(crate) fn take(
    remote: &Remote,
    run: &RunId,
    artifacts: &[Artifact],
    destination: &Destination,
) -> Result<Exported, Fault> {
    let staging = Staging::make(run)?;
    for (at, artifact) in artifacts.iter().enumerate() {
        let Some(digest) = &artifact.sha256 else {
            continue;
        };
        let file = File::create_new(staging.0.join(artifact_name(at)))
            .map_err(|error| Fault::host("cannot keep an artifact").because(&error))?;
        let bytes = remote.open(&format!("/v1/runs/{run}/artifacts/{at}"), &[])?;
        copy(bytes, file, artifact.bytes, digest).map_err(|error| {
            Fault::host(format!("cannot take artifact {}", clean(&artifact.path))).because(&error)
        })?;
    }
    destination.take_from(&staging.0, artifacts)
}

/// Marks what this host's tools may execute by its name: a daemon that lies about it would have a hook written.
fn named(mut artifacts: Vec<Artifact>) -> Result<Vec<Artifact>, Fault> {
    for artifact in artifacts.iter_mut().filter(|file| file.sha256.is_some()) {
        let path = unescape(&artifact.path).map_err(|error| {
            Fault::host(format!(
                "the daemon lists an artifact that no collection finds: `{}` {}",
                clean(&error.path),
                error.why
            ))
        })?;
        artifact.may_execute_on_host |= may_execute_on_host(&path);
    }
    Ok(artifacts)
}

/// Checks a list against what a worker collects at most, so that no daemon fills this host.
fn bounded(artifacts: &[Artifact]) -> Result<(), Fault> {
    let bounds = CollectBounds::default();
    let files = artifacts.iter().filter(|file| file.sha256.is_some());
    let (count, bytes) = files.fold((0_u64, 0_u64), |(count, bytes), file| {
        (count + 1, bytes.saturating_add(file.bytes))
    });
    if count > u64::from(bounds.files) || bytes > bounds.total_bytes {
        return Err(Fault::host(format!(
            "the daemon lists {count} artifacts with {bytes} bytes: at most {} with {} are taken",
            bounds.files, bounds.total_bytes
        )));
    }
    Ok(())
}

/// Copies exactly the bytes that the list tells of.
fn copy(from: impl Read, mut to: impl Write, bytes: u64, digest: &str) -> io::Result<()> {
    let mut from = from.take(bytes.saturating_add(1));
    let mut hasher = Sha256::new();
    let mut piece = vec![0; PIECE];
    let mut copied = 0;
    loop {
        let got = from.read(&mut piece)?;
        if got == 0 {
            break;
        }
        copied += got as u64;
        hasher.update(&piece[..got]);
        to.write_all(&piece[..got])?;
    }
    let found = Digest::from_bytes(hasher.finalize().into());
    match copied == bytes && found.hex() == digest {
        true => Ok(()),
        false => Err(io::Error::other("its bytes are not those of the list")),
    }
}

/// A directory of our own, gone with us.
struct Staging(std::path::PathBuf);

impl Staging {
    fn make(run: &RunId) -> Result<Self, Fault> {
        let path = std::env::temp_dir().join(format!("leasehold-{}-{run}", std::process::id()));
        let mut builder = fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&path).map_err(|error| {
            Fault::host(format!("cannot make {}", path.display())).because(&error)
        })?;
        Ok(Self(path))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // What is left in a temporary directory hurts nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(path: &str, bytes: u64) -> Artifact {
        Artifact {
            path: path.to_owned(),
            bytes,
            sha256: Some(Digest::of(b"abc").hex()),
            skipped: None,
            may_execute_on_host: false,
        }
    }

    /// A daemon lists hooks as plain files: they stay out of the directory unless somebody asks for such.
    #[test]
    fn no_daemon_has_this_hosts_tools_execute_what_it_sends() {
        let root = std::env::temp_dir().join(format!("leasehold-hooks-{}", std::process::id()));
        let (staging, out) = (root.join("staging"), root.join("out"));
        fs::create_dir_all(&staging).unwrap();
        let paths = ["a", ".git/hooks/pre-commit", ".ENVRC", "b\\x2f.bashrc"];
        for at in 0..paths.len() {
            fs::write(staging.join(artifact_name(at)), "abc").unwrap();
        }
        let list = || paths.map(|path| listed(path, 3)).to_vec();
        let there = |path: &str| out.join(path).exists();
        let write = |list: &[Artifact]| {
            let destination = Destination::open(&out, false).unwrap();
            destination.take_from(&staging, list).unwrap();
        };
        write(&named(list()).unwrap());
        assert!(there("a") && !there(".git") && !there(".ENVRC") && !there("b"));
        // The control: as the daemon lists them, they are written.
        write(&list());
        assert!(there(".git/hooks/pre-commit") && there("b/.bashrc"));
        for path in ["/etc/x", "../x", "a/./b", "a\\x00b", "a//b", ""] {
            assert!(named(vec![listed(path, 3)]).is_err(), "{path}");
        }
        let told = named(vec![listed("\u{1b}[2J\n\u{202e}/../x", 3)]);
        let told = told.unwrap_err().chain();
        assert!(
            told.ends_with("`\\x1b[2J\\x0a\\u{202e}/../x` has a name that climbs"),
            "{told}"
        );
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn no_daemon_fills_this_host_with_artifacts() {
        let file = |bytes| listed("a", bytes);
        assert!(bounded(&[file(1 << 20), file(1 << 20)]).is_ok());
        assert!(bounded(&[file(u64::MAX), file(u64::MAX)]).is_err());
        assert!(bounded(&vec![file(0); 5_000]).is_err());
        // What comes is what was listed: no byte more, none less, no other.
        let digest = Digest::of(b"abc").hex();
        let taken = |from: &mut dyn Read| {
            let mut to = Vec::new();
            let copied = copy(from, &mut to, 3, &digest);
            (copied.is_ok(), to.len())
        };
        assert_eq!(taken(&mut &b"abc"[..]), (true, 3));
        assert_eq!(taken(&mut io::repeat(b'x')), (false, 4));
        assert!(!taken(&mut &b"ab"[..]).0 && !taken(&mut &b"abd"[..]).0);
    }
}
