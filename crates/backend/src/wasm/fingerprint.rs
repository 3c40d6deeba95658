//! What compiled code depends on besides its module: the compiler's program and this machine's processor.
//!
//! The digest of a large program is remembered beside the code, together with what tells one state of a file
//! from another, so that a short-lived command does not read it all each time.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_core::digest::Digest;
use serde::{Deserialize, Serialize};

use super::programs::{Identity, Program, ProgramsError};

/// Names of the files that remember the digests.
const COMPILER: &str = "compiler.json";
const HOST: &str = "host.json";
/// A file that changed later than so long ago could change again without looking different.
const SETTLED: Duration = Duration::from_secs(5);
/// Longest such file.
const BYTES_MAX: u64 = 1 << 10;

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Remembered {
    identity: Identity,
    digest: Digest,
}

/// The fingerprint of this compiler on this machine. `folder` is this user's alone.
///
/// # Errors
/// When the program or the processor's features cannot be read.
pub(super) fn of(compiler: &Program, folder: &Path) -> Result<Digest, ProgramsError> {
    let digest = digest(compiler, &folder.join(COMPILER))?;
    let processor = processor().map_err(|source| ProgramsError::Read {
        path: PROCESSOR.into(),
        source,
    })?;
    let text = format!("leasehold-wasm-code/1\n{digest}\n{processor}");
    Ok(Digest::of(text.as_bytes()))
}

/// The digest of the host's program, without reading it where that was done before.
///
/// # Errors
/// When it cannot be read.
pub(super) fn of_host(host: &Program, folder: &Path) -> Result<Digest, ProgramsError> {
    digest(host, &folder.join(HOST))
}

fn digest(program: &Program, path: &Path) -> Result<Digest, ProgramsError> {
    let identity = program.identity();
    if let Some(digest) = remembered(path, &identity) {
        return Ok(digest);
    }
    let digest = program.digest()?;
    if settled(&identity) {
        // It is read again where this cannot be kept.
        let _ = remember(path, &Remembered { identity, digest });
    }
    Ok(digest)
}

fn remembered(path: &Path, identity: &Identity) -> Option<Digest> {
    if fs::symlink_metadata(path).ok()?.len() > BYTES_MAX {
        return None;
    }
    let known: Remembered = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    (known.identity == *identity).then_some(known.digest)
}

fn remember(path: &Path, known: &Remembered) -> io::Result<()> {
    let apart = path.with_extension(super::random_word()?);
    let text = serde_json::to_vec(known).map_err(io::Error::other)?;
    let renamed = fs::write(&apart, text).and_then(|()| fs::rename(&apart, path));
    if renamed.is_err() {
        let _ = fs::remove_file(&apart);
    }
    renamed
}

fn settled(identity: &Identity) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.is_ok_and(|now| now.as_nanos() > u128::from(identity.changed_nanos) + SETTLED.as_nanos())
}

const PROCESSOR: &str = "/proc/cpuinfo";

/// What the first processor can do, as the kernel lists it; all are alike.
fn processor() -> io::Result<String> {
    let text = fs::read_to_string(PROCESSOR)?;
    Ok(features(&text).to_owned())
}

fn features(text: &str) -> &str {
    let listed = |line: &&str| {
        let name = line.split(':').next().unwrap_or_default().trim();
        name == "flags" || name == "Features"
    };
    text.lines().find(listed).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::wasm::programs::{COMPILER_NAME, HOST_NAME, Programs};
    use crate::wasm::testing::Folder;

    fn programs(folder: &Folder, compiler: &[u8]) -> Programs {
        for (name, bytes) in [(HOST_NAME, &b"host"[..]), (COMPILER_NAME, compiler)] {
            folder.write(name, bytes);
            let path = folder.path().join(name);
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Programs::find(&[folder.path().to_owned()]).unwrap()
    }

    #[test]
    fn another_compiler_is_another_fingerprint() {
        let folder = Folder::new("fingerprint");
        let first = of(&programs(&folder, b"one").compiler, folder.path()).unwrap();
        let again = of(&programs(&folder, b"one").compiler, folder.path()).unwrap();
        let other = of(&programs(&folder, b"two").compiler, folder.path()).unwrap();
        assert_eq!(first, again);
        assert_ne!(first, other);
    }

    #[test]
    fn a_digest_is_remembered_for_one_state_of_the_file() {
        let folder = Folder::new("remembered");
        let compiler = programs(&folder, b"one").compiler;
        let path = folder.path().join(COMPILER);
        let fresh = of(&compiler, folder.path()).unwrap();
        assert!(
            !path.exists(),
            "it may change again within a tick of the clock"
        );
        let known = Remembered {
            identity: compiler.identity(),
            digest: Digest::of(b"remembered"),
        };
        remember(&path, &known).unwrap();
        assert_ne!(of(&compiler, folder.path()).unwrap(), fresh);
        let later = programs(&folder, b"two").compiler;
        assert_eq!(remembered(&path, &later.identity()), None);
        let changed = of(&later, folder.path()).unwrap();
        assert_ne!(changed, fresh);
        for broken in ["", "{}", "null"] {
            fs::write(&path, broken).unwrap();
            assert_eq!(of(&later, folder.path()).unwrap(), changed);
        }
    }

    #[test]
    fn the_features_of_a_processor_are_found() {
        let intel = "processor\t: 0\nflags\t\t: fpu vme\nbugs\t: x\n\nprocessor\t: 1\n";
        assert_eq!(features(intel), "flags\t\t: fpu vme");
        assert_eq!(features("Features : asimd\n"), "Features : asimd");
        assert_eq!(features("nothing"), "");
        assert!(!processor().unwrap().is_empty());
    }
}
