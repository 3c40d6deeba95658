//! What starts a run may be secret (values of variables, standard input) and must outlive a restart. It is
//! kept in the store encrypted under a key that is not in the store, bound to its run, until the run ends.
//!
//! Whoever has the database alone, or a copy of it, or a page of it that was freed, has no secret of a
//! caller (invariant I8).

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::RunId;

/// Bytes of a key.
const KEY_LEN: usize = 32;
/// Bytes of a nonce, drawn anew for every text.
const NONCE_LEN: usize = 24;

/// Why a vault cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// Others may read or write the key file, or it is none of ours.
    #[error("the key file is refused: {0}")]
    Refused(&'static str),
    /// The disk or the system's source of randomness failed.
    #[error("the key file cannot be read or made")]
    Io(#[from] io::Error),
}

/// Encrypts and decrypts under one key.
pub struct Vault {
    cipher: XChaCha20Poly1305,
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Vault(..)")
    }
}

fn draw<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    match got == N {
        true => Ok(bytes),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

impl Vault {
    fn of(key: [u8; KEY_LEN]) -> Self {
        Self {
            cipher: XChaCha20Poly1305::new(&Key::from(key)),
        }
    }

    /// A vault whose key is gone with the process. For tests.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn in_memory() -> Result<Self, VaultError> {
        Ok(Self::of(draw()?))
    }

    /// Opens the key file, or makes it with a fresh key that only this user can read. Blocks.
    ///
    /// # Errors
    /// When others may read it, it has another length, or the disk refuses.
    pub fn open(path: &Path) -> Result<Self, VaultError> {
        match fs::symlink_metadata(path) {
            Ok(meta) if !meta.is_file() => return Err(VaultError::Refused("it is no file")),
            Ok(meta) if meta.mode() & 0o077 != 0 => {
                return Err(VaultError::Refused(
                    "others may use it; its mode must be 0600",
                ));
            }
            Ok(_) => {
                let key = fs::read(path)?.try_into();
                return key
                    .map(Self::of)
                    .map_err(|_| VaultError::Refused("it has another length than a key"));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            Err(_) => {}
        }
        let key: [u8; KEY_LEN] = draw()?;
        let temporary = path.with_extension("new");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&temporary)?;
        file.write_all(&key)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        Ok(Self::of(key))
    }

    /// Encrypts what starts a run.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn seal(&self, run: &RunId, plain: &[u8]) -> Result<Vec<u8>, PublicError> {
        let failed = || PublicError::new(ErrorKind::Internal, "the request cannot be kept safely");
        let nonce: [u8; NONCE_LEN] = draw().map_err(|_| failed())?;
        let payload = Payload {
            msg: plain,
            aad: run.as_str().as_bytes(),
        };
        let sealed = self.cipher.encrypt(XNonce::from_slice(&nonce), payload);
        let sealed = sealed.map_err(|_| failed())?;
        Ok([nonce.as_slice(), &sealed].concat())
    }

    /// Decrypts what was sealed for this run under this key; nothing for anything else.
    #[must_use]
    pub fn unseal(&self, run: &RunId, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_at_checked(NONCE_LEN)?;
        let payload = Payload {
            msg: sealed,
            aad: run.as_str().as_bytes(),
        };
        self.cipher.decrypt(XNonce::from_slice(nonce), payload).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn i8_what_is_sealed_is_readable_for_its_run_alone() {
        let vault = Vault::in_memory().unwrap();
        let run = RunId::from_entropy(&[1; 13]);
        let sealed = vault.seal(&run, b"TOKEN=canary").unwrap();
        assert!(!sealed.windows(6).any(|part| part == b"canary"));
        assert_eq!(vault.unseal(&run, &sealed).unwrap(), b"TOKEN=canary");
        assert_ne!(vault.seal(&run, b"TOKEN=canary").unwrap(), sealed);
        let other = RunId::from_entropy(&[2; 13]);
        assert_eq!(vault.unseal(&other, &sealed), None);
        assert_eq!(Vault::in_memory().unwrap().unseal(&run, &sealed), None);
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(vault.unseal(&run, &changed), None, "byte {at}");
        }
        assert_eq!(vault.unseal(&run, &sealed[..10]), None);
    }

    #[test]
    fn the_key_file_is_made_once_and_closed_to_others() {
        let path = std::env::temp_dir().join(format!("leasehold-vault-{}", std::process::id()));
        let run = RunId::from_entropy(&[1; 13]);
        let sealed = Vault::open(&path).unwrap().seal(&run, b"x").unwrap();
        assert_eq!(
            Vault::open(&path).unwrap().unseal(&run, &sealed).unwrap(),
            b"x"
        );
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o640);
        assert!(matches!(Vault::open(&path), Err(VaultError::Refused(_))));
        mode(0o600);
        fs::write(&path, "short").unwrap();
        assert!(matches!(Vault::open(&path), Err(VaultError::Refused(_))));
        fs::remove_file(path).unwrap();
    }
}
