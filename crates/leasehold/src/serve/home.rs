//! Where the daemon keeps its things, that one daemon owns them, and how others find it.
//!
//! Below the state directory: `daemon/` with the database, the objects, the signing key and the first
//! API key, and `worker/` for the supervisor of its own. Two daemons with two state directories share
//! nothing; a second one on the same directory is refused by the lock.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use leasehold_control::entropy::{Entropy, SystemEntropy};
use leasehold_core::id::WorkerId;
use leasehold_supervisor::paths::Paths;
use leasehold_template::shelf::Shelf;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::fault::Fault;

/// The directories of one daemon.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    state: PathBuf,
    run: PathBuf,
}

/// What a daemon leaves in the run directory, so that the command line finds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Notice {
    /// Where HTTP is served.
    pub(crate) url: String,
    /// Process id of the daemon.
    pub(crate) pid: u32,
}

impl Home {
    /// The daemon's place within the directories this user means. Makes nothing.
    pub(crate) fn within(paths: &Paths) -> Self {
        Self {
            state: paths.state().to_owned(),
            run: paths.run().to_owned(),
        }
    }

    /// The directory of the database, the objects and the keys.
    pub(crate) fn own(&self) -> PathBuf {
        self.state.join("daemon")
    }

    /// The objects: outputs and artifacts.
    pub(crate) fn objects(&self) -> PathBuf {
        self.own().join("objects")
    }

    /// Trees that workspaces begin with.
    pub(crate) fn trees(&self) -> PathBuf {
        self.own().join("trees")
    }

    /// Compiled modules: those of the command line, too.
    pub(crate) fn wasm(&self) -> PathBuf {
        self.state.join("wasm")
    }

    /// What the images are below: the directory of those of the command line.
    pub(crate) fn images(&self) -> PathBuf {
        self.state.clone()
    }

    /// Snapshot templates: those of the command line.
    pub(crate) fn templates(&self) -> Shelf {
        crate::template::shelf_below(&self.state)
    }

    /// The keys that sign evidence.
    pub(crate) fn signing(&self) -> PathBuf {
        self.own().join("signing")
    }

    /// The key under which waiting requests are kept.
    pub(crate) fn vault(&self) -> PathBuf {
        self.own().join("vault.key")
    }

    /// The id of this daemon's worker, drawn once.
    ///
    /// # Errors
    /// When it cannot be read or written, or is none.
    pub(crate) fn worker_id(&self) -> Result<WorkerId, Fault> {
        let path = self.own().join("worker.id");
        match fs::read_to_string(&path) {
            Ok(text) => WorkerId::parse(text.trim()).map_err(|error| {
                Fault::host(format!("{} holds no worker id", path.display())).because(&error)
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let entropy = SystemEntropy.draw()?;
                let id = WorkerId::from_entropy(&entropy);
                write_closed(&path, id.as_str().as_bytes())?;
                Ok(id)
            }
            Err(error) => Err(failed("read", &path, &error)),
        }
    }

    /// The first API key.
    pub(crate) fn first_key(&self) -> PathBuf {
        self.own().join("operator.key")
    }

    /// Where a daemon tells that it is there.
    pub(crate) fn notice_file(&self) -> PathBuf {
        self.run.join("daemon.json")
    }

    /// The socket over which a local caller passes a directory.
    pub(crate) fn local_socket(&self) -> PathBuf {
        self.run.join("daemon.sock")
    }

    /// The directories of the daemon's own supervisor.
    pub(crate) fn worker(&self) -> Paths {
        Paths::new(&self.state.join("worker"), &self.run.join("worker"))
    }

    /// Makes what is missing, closed to everybody else, and takes the lock for the life of the file.
    ///
    /// # Errors
    /// When a directory cannot be made, or another daemon has the lock.
    pub(crate) fn take(&self) -> Result<File, Fault> {
        let own = self.own();
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&own);
        made.map_err(|error| failed("make", &own, &error))?;
        self.worker()
            .create()
            .map_err(|error| Fault::host("cannot use the worker's directories").because(&error))?;
        let path = own.join("daemon.lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(|error| failed("open", &path, &error))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(lock),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let who = self.notice().map_or_else(String::new, |notice| {
                    format!(" (process {} at {})", notice.pid, notice.url)
                });
                Err(Fault::host(format!("a daemon runs here already{who}")).hint(
                    "another LEASEHOLD_STATE_DIR with another LEASEHOLD_RUN_DIR gives a second one",
                ))
            }
            Err(errno) => Err(failed("lock", &path, &errno.into())),
        }
    }

    /// Tells others where the daemon is.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn announce(&self, address: SocketAddr) -> Result<(), Fault> {
        let notice = Notice {
            url: format!("http://{address}"),
            pid: std::process::id(),
        };
        let text = serde_json::to_vec(&notice)
            .map_err(|error| Fault::host("cannot write the notice").because(&error))?;
        write_closed(&self.notice_file(), &text)
    }

    /// Takes the notice away.
    pub(crate) fn withdraw(&self) {
        for path in [self.notice_file(), self.local_socket()] {
            // Whoever reads a stale one sees that nobody answers.
            let _ = fs::remove_file(path);
        }
    }

    /// Where a daemon said it is; it may be gone since.
    pub(crate) fn notice(&self) -> Option<Notice> {
        let bytes = fs::read(self.notice_file()).ok()?;
        serde_json::from_slice(&bytes).ok()
    }
}

/// Writes a file that only this user can read, whole or not at all.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write_closed(path: &Path, bytes: &[u8]) -> Result<(), Fault> {
    let temporary = path.with_extension("new");
    let written = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&temporary, path))
        // Its name survives a power cut, too.
        .and_then(|()| File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all());
    written.map_err(|error| failed("write", path, &error))
}

fn failed(verb: &str, path: &Path, error: &io::Error) -> Fault {
    Fault::host(format!("cannot {verb} {}", path.display())).because(error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn one_daemon_for_one_directory() {
        let root = std::env::temp_dir().join(format!("leasehold-home-{}", std::process::id()));
        let paths = Paths::new(&root.join("state"), &root.join("run"));
        paths.create().unwrap();
        let home = Home::within(&paths);
        let lock = home.take().unwrap();
        home.announce("127.0.0.1:1".parse().unwrap()).unwrap();
        let refused = home.take().unwrap_err();
        assert!(
            refused.chain().contains("http://127.0.0.1:1"),
            "{}",
            refused.chain()
        );
        let mode = fs::metadata(home.notice_file())
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(lock);
        home.take().unwrap();
        home.withdraw();
        assert_eq!(home.notice(), None);
        fs::remove_dir_all(root).unwrap();
    }
}
