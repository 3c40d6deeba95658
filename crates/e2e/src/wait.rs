//! Waiting for a level, with a bound.

use std::time::{Duration, Instant};

/// Asks again and again until `ask` has an answer, and returns it.
///
/// # Panics
/// When there is none after `limit`; the message names `what`.
pub fn until<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
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
