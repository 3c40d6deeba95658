//! Timing what only `unsafe` calls can do, for whoever reports what a host costs. Changes nothing.
#![allow(
    unsafe_code,
    reason = "unshare(2) has no safe wrapper, since most of its flags have surprising effects"
)]

use std::io;
use std::time::{Duration, Instant};

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// How long making one network namespace takes, without a name or an interface that is up. It is
/// gone again when this returns, its removal goes on in the kernel for some tens of milliseconds.
///
/// # Errors
/// When the caller may not make one (an ordinary user may not).
pub fn network_namespace() -> io::Result<Duration> {
    let thread = std::thread::spawn(|| {
        let begun = Instant::now();
        // SAFETY: of the flags only NEWNET is given, which concerns this thread alone and no
        // descriptor of it; the thread ends right afterwards.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
        Ok(begun.elapsed())
    });
    thread
        .join()
        .map_err(|_| io::Error::other("the measuring thread ended badly"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_namespace_stays_the_same() {
        let name = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let before = name();
        match network_namespace() {
            Ok(took) => assert!(took < Duration::from_secs(10)),
            Err(error) => assert!(!rustix::process::geteuid().is_root(), "{error}"),
        }
        assert_eq!(name(), before);
    }
}
