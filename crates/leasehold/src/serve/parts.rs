//! What the engine calls its parts, made of the concrete ones.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_control::archive::{self, ARCHIVE_MAX, Entry, Tree};
use leasehold_control::engine::modules::Templates;
use leasehold_control::engine::parts::{Doing, Objects, Workspaces};
use leasehold_core::digest::Digest;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::RunId;
use leasehold_store::objects::{ObjectError, READ_MAX};
use leasehold_template::shelf::{Shelf, Template};

/// Bytes of a file that are read at once.
const PIECE: usize = 256 << 10;

/// Objects of the local store.
#[derive(Clone)]
pub(crate) struct Stored(pub(crate) leasehold_store::objects::Objects);

fn public(error: &ObjectError) -> PublicError {
    tracing::warn!(%error, "an object failed");
    error.public()
}

fn failed(what: &str, error: &dyn std::error::Error) -> PublicError {
    tracing::warn!(%error, "{what} failed");
    PublicError::new(
        ErrorKind::Unavailable,
        format!("{what} failed on this host"),
    )
}

/// One piece of a file, read where it does not hold up others.
async fn piece(file: File, at: u64, bytes: usize) -> std::io::Result<(File, Vec<u8>)> {
    let read = tokio::task::spawn_blocking(move || {
        let mut piece = vec![0; bytes];
        file.read_exact_at(&mut piece, at).map(|()| (file, piece))
    });
    read.await
        .unwrap_or_else(|_| Err(std::io::ErrorKind::Interrupted.into()))
}

impl Objects for Stored {
    fn put(&self, file: File, bytes: u64) -> Doing<'_, Digest> {
        Box::pin(async move {
            let mut upload = self.0.upload(bytes);
            let (mut file, mut at) = (file, 0);
            while at < bytes {
                let most = usize::try_from(bytes - at).unwrap_or(PIECE).min(PIECE);
                let (again, piece) = piece(file, at, most)
                    .await
                    .map_err(|error| failed("reading an output", &error))?;
                upload.write(&piece).await.map_err(|error| public(&error))?;
                (file, at) = (again, at + most as u64);
            }
            let stored = upload.finish().await.map_err(|error| public(&error))?;
            Ok(stored.digest)
        })
    }

    fn read(&self, digest: Digest, offset: u64, most: usize) -> Doing<'_, Vec<u8>> {
        Box::pin(async move {
            let end = offset.saturating_add((most as u64).min(READ_MAX));
            let read = self.0.read(&digest, offset..end).await;
            read.map_err(|error| public(&error))
        })
    }

    fn size(&self, digest: Digest) -> Doing<'_, Option<u64>> {
        Box::pin(async move {
            match self.0.size(&digest).await {
                Ok(bytes) => Ok(Some(bytes)),
                Err(ObjectError::NotFound(_)) => Ok(None),
                Err(error) => Err(public(&error)),
            }
        })
    }

    fn list(&self, first: u8, spared: Duration) -> Doing<'_, Vec<Digest>> {
        Box::pin(async move {
            let listed = self.0.list(first).await;
            let mut listed = listed.map_err(|error| public(&error))?;
            listed.retain(|one| one.age >= spared);
            Ok(listed.into_iter().map(|one| one.stored.digest).collect())
        })
    }

    fn remove(&self, digest: Digest, spared: Duration) -> Doing<'_, bool> {
        Box::pin(async move {
            let gone = self.0.delete(&digest, spared).await;
            gone.map_err(|error| public(&error))
        })
    }
}

/// Snapshot templates of this user.
#[derive(Clone)]
pub(crate) struct Shelved(pub(crate) Shelf);

impl Shelved {
    /// One template, looked up where it does not hold up others.
    async fn look(&self, name: String) -> Result<Option<Template>, PublicError> {
        let shelf = self.0.clone();
        let found = tokio::task::spawn_blocking(move || shelf.find(&name)).await;
        let found = found.map_err(|error| failed("looking for a template", &error))?;
        found.map_err(|error| failed("looking for a template", &error))
    }
}

impl Templates for Shelved {
    fn find(&self, name: String) -> Doing<'_, Option<Digest>> {
        Box::pin(async move {
            let found = self.look(name).await?;
            let digest = |template: Template| {
                let hex = template.manifest.component.sha256;
                Digest::parse(&format!("sha256:{hex}"))
                    .map_err(|error| failed("reading a template's digest", &error))
            };
            found.map(digest).transpose()
        })
    }

    fn open(&self, name: String) -> Doing<'_, File> {
        Box::pin(async move {
            let gone = || {
                let message = format!("the template `{name}` is not there any more");
                PublicError::new(ErrorKind::Unsupported, message)
            };
            let template = self.look(name.clone()).await?.ok_or_else(gone)?;
            template
                .open()
                .map_err(|error| failed("opening a template", &error))
        })
    }
}

/// Trees that workspaces begin with, one directory for each run.
#[derive(Clone)]
pub(crate) struct Trees {
    objects: leasehold_store::objects::Objects,
    place: PathBuf,
}

impl Trees {
    /// Below a directory of our own, emptied of what an earlier process left.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn new(
        objects: leasehold_store::objects::Objects,
        place: PathBuf,
    ) -> std::io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&place)?;
        Ok(Self { objects, place })
    }

    async fn content(&self, digest: &Digest) -> Result<Vec<u8>, PublicError> {
        let size = self
            .objects
            .size(digest)
            .await
            .map_err(|error| public(&error))?;
        if size > ARCHIVE_MAX as u64 {
            return Err(PublicError::new(
                ErrorKind::Invalid,
                format!("the archive {digest} has {size} bytes: most is {ARCHIVE_MAX}"),
            ));
        }
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < size {
            let at = bytes.len() as u64;
            let end = size.min(at.saturating_add(READ_MAX));
            let piece = self.objects.read(digest, at..end).await;
            bytes.extend(piece.map_err(|error| public(&error))?);
        }
        Ok(bytes)
    }
}

impl Workspaces for Trees {
    fn unpack(&self, run: RunId, archives: Vec<Digest>) -> Doing<'_, OwnedFd> {
        Box::pin(async move {
            let mut whole = Tree::new();
            for (at, digest) in archives.into_iter().enumerate() {
                let bytes = self.content(&digest).await?;
                let tree = archive::unpack(&bytes).and_then(|tree| {
                    // The first may be a tool's own; what is laid over it is a caller's.
                    if at > 0 {
                        archive::check_content(&tree)?;
                    }
                    Ok(tree)
                });
                let tree = tree.map_err(|error| {
                    PublicError::new(ErrorKind::Invalid, format!("archive {digest}: {error}"))
                })?;
                whole.extend(tree);
            }
            let place = self.place.join(run.as_str());
            let written = tokio::task::spawn_blocking(move || write(&place, &whole)).await;
            written
                .unwrap_or_else(|_| Err(std::io::ErrorKind::Interrupted.into()))
                .map_err(|error| failed("unpacking the workspace", &error))
        })
    }

    fn remove(&self, run: RunId) -> Doing<'_, ()> {
        Box::pin(async move {
            let place = self.place.join(run.as_str());
            let removed = tokio::task::spawn_blocking(move || match fs::remove_dir_all(place) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            });
            removed
                .await
                .unwrap_or_else(|_| Err(std::io::ErrorKind::Interrupted.into()))
                .map_err(|error| failed("removing the workspace", &error))
        })
    }
}

/// Writes a tree whose names were checked into a directory that nobody else can reach. A directory of an
/// earlier try is written anew.
fn write(place: &Path, tree: &BTreeMap<String, Entry>) -> std::io::Result<OwnedFd> {
    if let Err(error) = fs::remove_dir_all(place)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let folder = |path: &Path| DirBuilder::new().recursive(true).mode(0o755).create(path);
    folder(place)?;
    for (name, entry) in tree {
        let path = place.join(name);
        match entry {
            Entry::Folder => folder(&path)?,
            Entry::File {
                executable,
                content,
            } => {
                if let Some(parent) = path.parent() {
                    folder(parent)?;
                }
                let mode = if *executable { 0o755 } else { 0o644 };
                let mut options = OpenOptions::new();
                let mut file = options
                    .write(true)
                    .create_new(true)
                    .mode(mode)
                    .open(&path)?;
                file.write_all(content)?;
            }
        }
    }
    Ok(File::open(place)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn p68_what_a_caller_sent_never_replaces_a_tools_own_files() {
        let root = std::env::temp_dir().join(format!("leasehold-layers-{}", std::process::id()));
        let objects = leasehold_store::objects::Objects::local(root.join("objects")).unwrap();
        let trees = Trees::new(objects.clone(), root.join("trees")).unwrap();
        let keep = async |name: &str, text: &str| {
            let file = Entry::File {
                executable: false,
                content: text.into(),
            };
            let tree = Tree::from([(name.to_owned(), file)]);
            let bytes = archive::pack(&tree).unwrap();
            objects.put(&bytes).await.unwrap().digest
        };
        let tool = keep(".tool/main.py", "the tool's").await;
        let run = RunId::from_entropy(&[2; 13]);
        for name in [".tool/main.py", ".tool/json.py", ".tool"] {
            let sent = keep(name, "the caller's").await;
            let refused = trees.unpack(run.clone(), vec![tool, sent]).await;
            let error = refused.expect_err(name);
            assert_eq!(error.kind, ErrorKind::Invalid, "{name}: {}", error.message);
        }
        let beside = keep("in.txt", "the caller's").await;
        trees.unpack(run.clone(), vec![tool, beside]).await.unwrap();
        let path = root.join("trees").join(run.as_str());
        let program = fs::read_to_string(path.join(".tool/main.py")).unwrap();
        assert_eq!(program, "the tool's");
        assert!(path.join("in.txt").exists());
        fs::remove_dir_all(root).unwrap();
    }

    #[tokio::test]
    async fn trees_are_written_and_removed() {
        let root = std::env::temp_dir().join(format!("leasehold-trees-{}", std::process::id()));
        let objects = leasehold_store::objects::Objects::local(root.join("objects")).unwrap();
        let mut tree = Tree::new();
        let file = |text: &str| Entry::File {
            executable: true,
            content: text.into(),
        };
        tree.insert("a".into(), Entry::Folder);
        tree.insert("a/x".into(), file("1"));
        let stored = objects.put(&archive::pack(&tree).unwrap()).await.unwrap();
        let trees = Trees::new(objects, root.join("trees")).unwrap();
        let run = RunId::from_entropy(&[1; 13]);
        for _ in 0..2 {
            trees
                .unpack(run.clone(), vec![stored.digest])
                .await
                .unwrap();
        }
        let path = root.join("trees").join(run.as_str());
        assert_eq!(fs::read_to_string(path.join("a/x")).unwrap(), "1");
        trees.remove(run.clone()).await.unwrap();
        trees.remove(run).await.unwrap();
        assert!(!path.exists());
        fs::remove_dir_all(root).unwrap();
    }
}
