//! Static C programs that play the hostile guest, compiled once and kept by content.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use sha2::{Digest, Sha256};

/// The static program compiled from `source`, a C text. It is kept in `target/e2e/helpers` (or the
/// folder that `LEASEHOLD_HELPERS` names, so that a guest without a compiler can be given them) under a
/// name made of `name` and its hash. Absent where there is no copy and no `gcc`.
///
/// # Panics
/// When the compiler refuses the source.
pub fn c_helper(name: &str, source: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("LEASEHOLD_HELPERS").map_or_else(
        || crate::binary::target().join("e2e").join("helpers"),
        PathBuf::from,
    );
    let digest = Sha256::digest(source.as_bytes());
    let short: String = digest[..6]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let program = folder.join(format!("{name}-{short}"));
    if program.is_file() {
        return Some(program);
    }
    let compiler = crate::skips::which("gcc")?;
    std::fs::create_dir_all(&folder).expect("make the helpers' folder");
    static TURN: AtomicU32 = AtomicU32::new(0);
    let turn = TURN.fetch_add(1, Ordering::Relaxed);
    let unique = format!("{}.{}-{turn}", program.display(), std::process::id());
    let text = format!("{unique}.c");
    std::fs::write(&text, source).expect("write the helper's source");
    let compiled = Command::new(compiler)
        .args(["-static", "-O1", "-pthread", "-o", &unique, &text])
        .output()
        .expect("start gcc");
    std::fs::remove_file(&text).ok();
    assert!(
        compiled.status.success(),
        "gcc refused helper {name}: {}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    // Tests that run at once may both have compiled it; the last rename wins, both are whole.
    std::fs::rename(&unique, &program).expect("put the helper in place");
    Some(program)
}
