//! Test hooks, compiled only into debug builds: end the process at a named point, or call a test's own
//! function there, so that tests see what a restart makes of it.
//!
//! `LEASEHOLD_DIE=<point>[:<count>]` ends it by `SIGKILL` when it comes there for the count-th time (1 when
//! absent). Points are `before-X` and `after-X` for every write and message named in [`POINTS`].

/// What is written or sent in the life of a run, and the first key of a daemon.
pub const POINTS: [&str; 14] = [
    "first_key",
    "admit",
    "append",
    "grant",
    "launch",
    "attach",
    "input",
    "objects",
    "cancel",
    "revoke",
    "conclude",
    "take_over",
    "statement",
    "seal",
];

/// Environment variable of the hook.
pub const DIE_VARIABLE: &str = "LEASEHOLD_DIE";

/// A test's own function; it is given `before-X` or `after-X`.
pub type Hook = std::sync::Arc<dyn Fn(&str) + Send + Sync>;

/// Where the process is to end.
#[derive(Clone, Default)]
pub struct Failpoints {
    #[cfg(debug_assertions)]
    die: Option<std::sync::Arc<(String, std::sync::atomic::AtomicU32)>>,
    #[cfg(debug_assertions)]
    hook: Option<Hook>,
}

impl Failpoints {
    /// Calls a function at every point.
    #[cfg(debug_assertions)]
    #[must_use]
    pub fn hooked(hook: Hook) -> Self {
        Self {
            die: None,
            hook: Some(hook),
        }
    }

    /// Reads the environment; in release builds there is nothing to read.
    #[must_use]
    pub fn from_env() -> Self {
        #[cfg(debug_assertions)]
        {
            Self::parse(&std::env::var(DIE_VARIABLE).unwrap_or_default())
        }
        #[cfg(not(debug_assertions))]
        Self::default()
    }

    #[cfg(debug_assertions)]
    fn parse(text: &str) -> Self {
        let (name, count) = text.split_once(':').unwrap_or((text, "1"));
        let known = name
            .strip_prefix("before-")
            .or_else(|| name.strip_prefix("after-"))
            .is_some_and(|point| POINTS.contains(&point));
        let count = count.parse().ok().filter(|count| *count > 0);
        Self {
            die: count.filter(|_| known).map(|count| {
                std::sync::Arc::new((name.to_owned(), std::sync::atomic::AtomicU32::new(count)))
            }),
            hook: None,
        }
    }

    #[cfg(debug_assertions)]
    fn due(&self, when: &str, point: &str) -> bool {
        use std::sync::atomic::Ordering;
        let Some((name, left)) = self.die.as_deref() else {
            return false;
        };
        let here = name.strip_prefix(when).is_some_and(|rest| rest == point);
        here && left.fetch_sub(1, Ordering::Relaxed) == 1
    }

    /// Whether any is set; writes that go together are then done one after another.
    pub(crate) fn armed(&self) -> bool {
        #[cfg(debug_assertions)]
        {
            self.die.is_some() || self.hook.is_some()
        }
        #[cfg(not(debug_assertions))]
        false
    }

    /// Just before something is written or sent.
    pub(crate) fn before(&self, point: &str) {
        self.pass("before-", point);
    }

    /// Just after it was answered.
    pub(crate) fn after(&self, point: &str) {
        self.pass("after-", point);
    }

    #[cfg_attr(
        not(debug_assertions),
        allow(clippy::unused_self, reason = "reads itself in debug builds alone")
    )]
    fn pass(&self, when: &str, point: &str) {
        #[cfg(debug_assertions)]
        if let Some(hook) = &self.hook {
            hook(&format!("{when}{point}"));
        }
        #[cfg(debug_assertions)]
        if self.due(when, point) {
            let own = rustix::process::getpid();
            let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
            loop {
                std::thread::park();
            }
        }
        #[cfg(not(debug_assertions))]
        let _ = (when, point);
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn a_hook_counts_and_nonsense_is_none() {
        let points = Failpoints::parse("after-grant:2");
        assert!(!points.due("before-", "grant") && !points.due("after-", "launch"));
        assert!(!points.due("after-", "grant"));
        assert!(points.due("after-", "grant"));
        assert!(!points.due("after-", "grant"));
        for text in [
            "",
            "grant",
            "after-",
            "after-nothing",
            "after-grant:0",
            "after-grant:x",
        ] {
            assert!(Failpoints::parse(text).die.is_none(), "{text}");
        }
    }
}
