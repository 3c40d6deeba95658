//! Waiting for a level, with a bound.

use std::time::{Duration, Instant};

/// How many times longer things may take here: 1, or what `LEASEHOLD_PATIENCE` says, which an emulated
/// machine sets. It stretches bounds, never a limit that is tested.
pub fn patience() -> u32 {
    let told = std::env::var("LEASEHOLD_PATIENCE").ok();
    told.and_then(|text| text.parse().ok())
        .unwrap_or(1)
        .clamp(1, 100)
}

/// Asks again and again until `ask` has an answer, and returns it.
///
/// # Panics
/// When there is none after `limit` times [`patience`]; the message names `what`.
#[track_caller]
pub fn until<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit * patience();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(
            Instant::now() < end,
            "waited {} ms in vain for: {what}",
            limit.as_millis()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}
