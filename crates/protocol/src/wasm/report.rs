//! What a host's report comes to. It is as little believed as any guest's word: texts and lists are cut, limits
//! are those that were set, and how it ends is decided by [`leasehold_core::end::decide`] like every other run.

use leasehold_core::end::{ExitStatus, LimitHit, Observations};
use leasehold_core::limits::Resource;
use leasehold_core::record::ModuleReport;

use super::{Report, RunLimits};

/// Most characters of one text.
const TEXT_MAX: usize = 500;
/// Most characters of one function or address.
const NAME_MAX: usize = 240;
/// Most entries of one list.
const ROWS_MAX: usize = 32;

/// Cuts a text, and takes from it what would steer a terminal.
#[must_use]
pub fn printable(text: &str, most: usize) -> String {
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(most).map(shown).collect()
}

fn names(all: &[String]) -> Vec<String> {
    let cut = |name: &String| printable(name, NAME_MAX);
    all.iter().take(ROWS_MAX).map(cut).collect()
}

/// The limit of a resource that a host holds by itself; `None` for one that it does not.
fn limit(which: Resource, limits: &RunLimits, said: u64) -> Option<u64> {
    match which {
        Resource::Memory => Some(limits.memory_bytes),
        Resource::Output => Some(limits.output_bytes),
        Resource::CpuTime => limits.cpu_time_ms,
        Resource::Fuel => limits.fuel,
        Resource::Handles => Some(limits.handles.into()),
        // The engine's own, which the host alone knows.
        Resource::Stack => Some(said),
        _ => None,
    }
}

impl Report {
    /// What it says of the end of a run with these limits. Who cancelled it is its owner's to know; a host that
    /// says so by itself has failed.
    ///
    /// # Errors
    /// What cannot be true of such a run.
    pub fn observations(&self, limits: &RunLimits) -> Result<Observations, String> {
        let hit = |hit: &LimitHit| {
            let limit = limit(hit.which, limits, hit.limit);
            let limit = limit.ok_or_else(|| {
                let word = hit.which.word();
                format!("the host says that it holds `{word}`, which it does not")
            });
            Ok::<_, String>(LimitHit {
                limit: limit?,
                ..*hit
            })
        };
        if let Some(ExitStatus::Signal { .. } | ExitStatus::NotFound) = self.exit {
            return Err("the host tells an end that no module has".to_owned());
        }
        let denied = self.denied.iter().take(ROWS_MAX).map(hit);
        Ok(Observations {
            wall_expired_ms: self.wall_expired.then_some(limits.wall_ms),
            killed_by: self.killed_by.as_ref().map(hit).transpose()?,
            denied: denied.collect::<Result<_, _>>()?,
            crashed: self
                .crashed
                .as_deref()
                .map(|said| format!("the WebAssembly host says: {}", printable(said, TEXT_MAX))),
            exit: self.exit.as_ref().map(|exit| match exit {
                ExitStatus::Trap { name } => ExitStatus::Trap {
                    name: printable(name, NAME_MAX),
                },
                exit => exit.clone(),
            }),
            ..Observations::default()
        })
    }

    /// What the record keeps of it beside the end.
    #[must_use]
    pub fn kept(&self) -> ModuleReport {
        ModuleReport {
            // It was: a host gets code.
            uncompiled: None,
            detail: self.detail.as_deref().map(|said| printable(said, TEXT_MAX)),
            backtrace: names(&self.backtrace),
            memory_peak_bytes: self.memory_peak_bytes,
            fuel_used: self.fuel_used,
            http_denied: self.http_denied,
            http_denied_to: names(&self.http_denied_to),
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::end::{EndReason, decide};

    use super::*;

    fn end(report: &Report) -> Result<EndReason, String> {
        let seen = report.observations(&RunLimits::default())?;
        Ok(decide(&seen))
    }

    #[test]
    fn an_end_is_told_by_its_strongest_reason() {
        let exit = |code| Some(ExitStatus::Exit { code });
        let mut report = Report {
            exit: exit(0),
            ..Report::default()
        };
        assert_eq!(end(&report), Ok(EndReason::Completed));
        report.denied.push(LimitHit {
            which: Resource::Memory,
            limit: 1,
            observed: 7,
        });
        assert_eq!(end(&report), Ok(EndReason::Completed));
        report.exit = exit(3);
        let Ok(EndReason::ResourceExceeded { hit, exit }) = end(&report) else {
            panic!("{:?}", end(&report));
        };
        assert_eq!(
            (hit.limit, hit.observed),
            (RunLimits::default().memory_bytes, 7)
        );
        assert_eq!(exit, Some(ExitStatus::Exit { code: 3 }));
        report.wall_expired = true;
        let limit_ms = RunLimits::default().wall_ms;
        assert_eq!(end(&report), Ok(EndReason::Timeout { limit_ms }));
    }

    #[test]
    fn nothing_is_no_end() {
        let none = end(&Report::default());
        assert!(
            matches!(none, Ok(EndReason::SandboxCrashed { .. })),
            "{none:?}"
        );
        let broken = end(&Report {
            crashed: Some("a panic\u{1b}[2J".to_owned()),
            ..Report::default()
        });
        let Ok(EndReason::SandboxCrashed { diagnostics }) = broken else {
            panic!("{broken:?}");
        };
        assert!(diagnostics.ends_with("a panic\u{fffd}[2J"), "{diagnostics}");
    }

    #[test]
    fn an_end_that_no_module_has_is_not_believed() {
        for exit in [ExitStatus::Signal { number: 9 }, ExitStatus::NotFound] {
            let report = Report {
                exit: Some(exit),
                ..Report::default()
            };
            assert!(end(&report).is_err(), "{report:?}");
        }
    }

    #[test]
    fn a_limit_that_no_host_holds_is_not_believed() {
        for which in [
            Resource::Pids,
            Resource::Wall,
            Resource::CpuTime,
            Resource::Fuel,
        ] {
            let hit = LimitHit {
                which,
                limit: 1,
                observed: 2,
            };
            let report = Report {
                killed_by: Some(hit),
                ..Report::default()
            };
            let said = end(&report).unwrap_err();
            assert!(said.contains(which.word()), "{said}");
            let report = Report {
                denied: vec![hit],
                ..Report::default()
            };
            assert!(end(&report).is_err());
        }
    }

    #[test]
    fn long_words_are_cut() {
        let long = "\n".repeat(10_000);
        let report = Report {
            detail: Some(long.clone()),
            backtrace: vec![long.clone(); 100],
            http_denied_to: vec![long; 100],
            ..Report::default()
        };
        let kept = report.kept();
        assert_eq!(kept.detail.unwrap().chars().count(), TEXT_MAX);
        for list in [kept.backtrace, kept.http_denied_to] {
            assert_eq!(list.len(), ROWS_MAX);
            assert!(list.iter().all(|name| name.chars().count() == NAME_MAX));
            assert!(!list[0].contains('\n'));
        }
    }
}
