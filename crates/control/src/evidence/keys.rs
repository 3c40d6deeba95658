//! The keys that sign evidence, and the list of those that did.
//!
//! One file, readable by its owner alone, holds the present key and the signed list of all public keys with
//! the time each was in use; it is replaced as a whole, so that a crash leaves the old or the new state. A
//! rotation retires the present key and lets the next one sign the list, retired ones included: whoever
//! trusts the newest key can check what the older ones signed while they were in use, and nothing later.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{RwLock, RwLockReadGuard};

use data_encoding::{BASE64, HEXLOWER};
use ed25519_dalek::{SigningKey, VerifyingKey};
use leasehold_core::digest::{Digest, canonical};
use serde::{Deserialize, Serialize};

use super::envelope::{Envelope, key_id};
use super::fault::{Fault, Signed};

/// The kind of envelope of the list.
pub const KIND: &str = "application/vnd.leasehold.keys+json";
/// Most keys of a list.
pub const KEYS_MAX: usize = 1_000;
/// Largest key file in bytes.
const FILE_MAX: u64 = 1 << 20;

/// Why keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file system refused.
    #[error("cannot {action} the signing key {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Others may read or write the file.
    #[error("others may use the signing key {} (mode {mode:o}); make it 600 and rotate it", path.display())]
    Open {
        /// Which file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is not what was written.
    #[error("the signing key {} is damaged: {why}", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What was seen.
        why: &'static str,
    },
    /// The list is full.
    #[error("the list holds {KEYS_MAX} keys already")]
    Full,
}

/// A public key and when it was in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublicKey {
    /// Digest of its bytes.
    pub id: Digest,
    /// Its 32 bytes, base 64.
    pub public: String,
    /// In use from, milliseconds since 1970.
    pub from_unix_ms: u64,
    /// Retired at; absent for the present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_unix_ms: Option<u64>,
}

impl PublicKey {
    fn new(key: &VerifyingKey, from_unix_ms: u64) -> Self {
        Self {
            id: key_id(key),
            public: BASE64.encode(key.as_bytes()),
            from_unix_ms,
            until_unix_ms: None,
        }
    }

    /// The key itself, if it is one and the id is its own.
    fn key(&self) -> Option<VerifyingKey> {
        let bytes: [u8; 32] = BASE64
            .decode(self.public.as_bytes())
            .ok()?
            .try_into()
            .ok()?;
        let key = VerifyingKey::from_bytes(&bytes).ok()?;
        (key_id(&key) == self.id).then_some(key)
    }
}

/// Every key that ever signed here, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyList {
    /// The keys; the last is the present one.
    pub keys: Vec<PublicKey>,
}

/// Keys that a verifier may use, and how far it may trust them.
#[derive(Debug)]
pub(super) struct Known {
    list: KeyList,
    /// The whole list is trusted, since a trusted key signed it or nobody was asked to vouch.
    all: bool,
    pinned: BTreeSet<Digest>,
}

impl Known {
    /// Reads a list whose newest key signed it. `pinned` are the ids somebody vouches for; `None` takes the
    /// list's own word.
    pub(super) fn read(
        envelope: &Envelope,
        pinned: Option<&BTreeSet<Digest>>,
    ) -> Result<Self, Fault> {
        let unreadable = |why: &str| Fault::Unreadable(format!("list of keys: {why}"));
        let signer = envelope
            .signer()
            .ok_or_else(|| unreadable("it needs exactly one signature"))?;
        let bytes = envelope
            .unproven()
            .ok_or_else(|| unreadable("its payload is not base 64"))?;
        let list: KeyList =
            serde_json::from_slice(&bytes).map_err(|error| unreadable(&error.to_string()))?;
        if list.keys.is_empty() || list.keys.len() > KEYS_MAX {
            return Err(unreadable("it has no keys or too many"));
        }
        let newest = list.keys.last().filter(|key| key.id == signer);
        let key = newest
            .and_then(PublicKey::key)
            .ok_or(Fault::BadSignature(Signed::Keys, signer))?;
        if envelope.open(&key, KIND).is_none() {
            return Err(Fault::BadSignature(Signed::Keys, signer));
        }
        let pinned = pinned.cloned();
        let all = pinned
            .as_ref()
            .is_none_or(|pinned| pinned.contains(&signer));
        Ok(Self {
            list,
            all,
            pinned: pinned.unwrap_or_default(),
        })
    }

    /// The text of an envelope, if a trusted key signed it while it was in use. `at` reads the time from the
    /// text, before anything of it is believed.
    pub(super) fn open(
        &self,
        envelope: &Envelope,
        (kind, signed): (&str, Signed),
        at: impl Fn(&[u8]) -> Option<u64>,
    ) -> Result<Vec<u8>, Fault> {
        let unreadable = |why: &str| Fault::Unreadable(format!("an envelope: {why}"));
        let signer = envelope
            .signer()
            .ok_or_else(|| unreadable("it needs exactly one signature"))?;
        let known = self.list.keys.iter().find(|key| key.id == signer);
        let trusted = known.filter(|key| self.all || self.pinned.contains(&key.id));
        let key = trusted.ok_or(Fault::UnknownKey(signed, signer))?;
        let bad = Fault::BadSignature(signed, signer);
        let Some(payload) = key.key().and_then(|public| envelope.open(&public, kind)) else {
            return Err(bad);
        };
        let at_unix_ms = at(&payload).ok_or_else(|| unreadable("it says no time"))?;
        self.in_use(signed, signer, at_unix_ms)?;
        Ok(payload)
    }

    /// Whether a key was in use at a time.
    pub(super) fn in_use(&self, signed: Signed, key: Digest, at_unix_ms: u64) -> Result<(), Fault> {
        let known = self.list.keys.iter().find(|known| known.id == key);
        let known = known.ok_or(Fault::UnknownKey(signed, key))?;
        if at_unix_ms < known.from_unix_ms {
            return Err(Fault::EarlyKey {
                signed,
                key,
                from_unix_ms: known.from_unix_ms,
                at_unix_ms,
            });
        }
        match known.until_unix_ms {
            Some(until_unix_ms) if at_unix_ms > until_unix_ms => Err(Fault::RetiredKey {
                signed,
                key,
                until_unix_ms,
                at_unix_ms,
            }),
            _ => Ok(()),
        }
    }
}

/// The file as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    /// The present key's secret, hexadecimal.
    seed: String,
    /// The signed list.
    list: Envelope,
}

struct Present {
    key: SigningKey,
    list: KeyList,
    signed: Envelope,
}

/// The present key and the list. Its secret never leaves it.
pub struct Keyring {
    path: PathBuf,
    present: RwLock<Present>,
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Keyring({})", self.id())
    }
}

impl Keyring {
    /// Opens the key file, or makes it with a fresh key. Blocks.
    ///
    /// # Errors
    /// When others may read it, it is damaged, or the disk refuses.
    pub fn open(path: impl Into<PathBuf>, now_unix_ms: u64) -> Result<Self, KeyError> {
        let path = path.into();
        let present = match read(&path)? {
            Some(present) => present,
            None => {
                let key = fresh(&path)?;
                let list = KeyList {
                    keys: vec![PublicKey::new(&key.verifying_key(), now_unix_ms)],
                };
                let present = signed(key, list, &path)?;
                write(&path, &present)?;
                present
            }
        };
        Ok(Self {
            path,
            present: RwLock::new(present),
        })
    }

    /// Retires the present key and goes on with a fresh one. Blocks.
    ///
    /// # Errors
    /// When the list is full or the disk refuses; the present key stays then.
    pub fn rotate(&self, now_unix_ms: u64) -> Result<Digest, KeyError> {
        let mut list = self.present().list.clone();
        if list.keys.len() >= KEYS_MAX {
            return Err(KeyError::Full);
        }
        let key = fresh(&self.path)?;
        if let Some(last) = list.keys.last_mut() {
            last.until_unix_ms = Some(now_unix_ms.max(last.from_unix_ms));
        }
        list.keys
            .push(PublicKey::new(&key.verifying_key(), now_unix_ms));
        let next = signed(key, list, &self.path)?;
        write(&self.path, &next)?;
        let id = key_id(&next.key.verifying_key());
        let mut present = self
            .present
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        *present = next;
        Ok(id)
    }

    /// The present key's id.
    #[must_use]
    pub fn id(&self) -> Digest {
        key_id(&self.present().key.verifying_key())
    }

    /// The signed list of keys.
    #[must_use]
    pub fn list(&self) -> Envelope {
        self.present().signed.clone()
    }

    /// Signs a text of a kind; `text` is given the id of the key that will sign it.
    pub(super) fn seal<E>(
        &self,
        kind: &str,
        text: impl FnOnce(Digest) -> Result<Vec<u8>, E>,
    ) -> Result<Envelope, E> {
        let present = self.present();
        let bytes = text(key_id(&present.key.verifying_key()))?;
        Ok(Envelope::seal(&present.key, kind, &bytes))
    }

    fn present(&self) -> RwLockReadGuard<'_, Present> {
        self.present
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> KeyError {
    let path = path.to_owned();
    move |source| KeyError::Io {
        action,
        path,
        source,
    }
}

fn fresh(path: &Path) -> Result<SigningKey, KeyError> {
    let mut seed = [0; 32];
    let flags = rustix::rand::GetRandomFlags::empty();
    match rustix::rand::getrandom(&mut seed, flags) {
        Ok(32) => Ok(SigningKey::from_bytes(&seed)),
        Ok(_) => Err(io(path, "draw")(std::io::ErrorKind::UnexpectedEof.into())),
        Err(errno) => Err(io(path, "draw")(errno.into())),
    }
}

fn signed(key: SigningKey, list: KeyList, path: &Path) -> Result<Present, KeyError> {
    let bytes = canonical(&list).map_err(|_| KeyError::Damaged {
        path: path.to_owned(),
        why: "the list has no canonical form",
    })?;
    let signed = Envelope::seal(&key, KIND, &bytes);
    Ok(Present { key, list, signed })
}

fn read(path: &Path) -> Result<Option<Present>, KeyError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(path, "open")(error)),
    };
    let mode = file.metadata().map_err(io(path, "look at"))?.mode() & 0o777;
    if mode & 0o077 != 0 {
        let path = path.to_owned();
        return Err(KeyError::Open { path, mode });
    }
    let mut text = Vec::new();
    file.take(FILE_MAX)
        .read_to_end(&mut text)
        .map_err(io(path, "read"))?;
    let damaged = |why| KeyError::Damaged {
        path: path.to_owned(),
        why,
    };
    let stored: Stored =
        serde_json::from_slice(&text).map_err(|_| damaged("it is not what was written"))?;
    let seed: [u8; 32] = HEXLOWER
        .decode(stored.seed.as_bytes())
        .ok()
        .and_then(|seed| seed.try_into().ok())
        .ok_or_else(|| damaged("its secret is no key"))?;
    let key = SigningKey::from_bytes(&seed);
    let known = Known::read(&stored.list, None).map_err(|_| damaged("its list does not hold"))?;
    if stored.list.signer() != Some(key_id(&key.verifying_key())) {
        return Err(damaged("its list is signed by another key"));
    }
    Ok(Some(Present {
        key,
        list: known.list,
        signed: stored.list,
    }))
}

fn write(path: &Path, present: &Present) -> Result<(), KeyError> {
    let stored = Stored {
        seed: HEXLOWER.encode(&present.key.to_bytes()),
        list: present.signed.clone(),
    };
    let text = serde_json::to_vec(&stored).map_err(|_| KeyError::Damaged {
        path: path.to_owned(),
        why: "it cannot be written",
    })?;
    let new = path.with_extension("new");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&new)
        .map_err(io(&new, "make"))?;
    file.write_all(&text).map_err(io(&new, "write"))?;
    file.sync_all().map_err(io(&new, "write"))?;
    std::fs::rename(&new, path).map_err(io(path, "replace"))?;
    let dir = path.parent().unwrap_or(Path::new("."));
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(io(dir, "sync"))
}
