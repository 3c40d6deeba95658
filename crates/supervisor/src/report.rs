//! What is believed of a report: the word of a program that may have been taken over by the module it runs.
//!
//! It decides how the module ended and why, which nobody else can know. What was seen from outside stays as it
//! is: a report cannot take back a limit, a cancellation or a crash. Pure.

use leasehold_core::end::Observations;
use leasehold_core::record::ModuleReport;
use leasehold_protocol::wasm::{Report, RunLimits};

/// Puts the report of a run with these limits beside what was seen.
///
/// # Errors
/// Says why it is no report, and then nothing of it counts.
pub(crate) fn believe(
    bytes: &[u8],
    limits: &RunLimits,
    seen: &mut Observations,
) -> Result<ModuleReport, String> {
    if bytes.is_empty() {
        return Err("it ended without a report".to_owned());
    }
    let report: Report =
        serde_json::from_slice(bytes).map_err(|_| "its report is none".to_owned())?;
    let told = report.observations(limits)?;
    // It is told to end for these reasons alone.
    let asked =
        seen.cancelled.is_some() || seen.wall_expired_ms.is_some() || seen.killed_by.is_some();
    if report.cancelled && !asked {
        return Err("its report tells a cancellation that nobody asked for".to_owned());
    }
    let nothing = Observations {
        denied: told.denied.clone(),
        ..Observations::default()
    };
    if told == nothing && !report.cancelled {
        return Err("its report tells no end".to_owned());
    }
    seen.wall_expired_ms = seen.wall_expired_ms.or(told.wall_expired_ms);
    seen.killed_by = seen.killed_by.or(told.killed_by);
    seen.crashed = seen.crashed.take().or(told.crashed);
    seen.exit = told.exit;
    for hit in told.denied {
        if !seen.denied.iter().any(|known| known.which == hit.which) {
            seen.denied.push(hit);
        }
    }
    Ok(report.kept())
}

#[cfg(test)]
mod tests {
    use leasehold_core::end::{CancelledBy, EndReason, ExitStatus, LimitHit, decide};
    use leasehold_core::limits::Resource;

    use super::*;

    fn hit(which: Resource) -> LimitHit {
        LimitHit {
            which,
            limit: RunLimits::default().memory_bytes,
            observed: 11,
        }
    }

    fn told(report: &Report, mut seen: Observations) -> EndReason {
        let bytes = serde_json::to_vec(report).unwrap();
        believe(&bytes, &RunLimits::default(), &mut seen).unwrap();
        decide(&seen)
    }

    fn exits(code: u8) -> Report {
        Report {
            exit: Some(ExitStatus::Exit { code }),
            ..Report::default()
        }
    }

    #[test]
    fn the_module_s_own_end_is_told() {
        let none = Observations::default;
        assert_eq!(told(&exits(0), none()), EndReason::Completed);
        let exit = ExitStatus::Exit { code: 3 };
        assert_eq!(told(&exits(3), none()), EndReason::ToolError { exit });
        let killed = Report {
            killed_by: Some(hit(Resource::Memory)),
            ..Report::default()
        };
        let wanted = EndReason::ResourceExceeded {
            hit: hit(Resource::Memory),
            exit: None,
        };
        assert_eq!(told(&killed, none()), wanted);
        let wall = Report {
            wall_expired: true,
            ..Report::default()
        };
        let limit_ms = RunLimits::default().wall_ms;
        assert_eq!(told(&wall, none()), EndReason::Timeout { limit_ms });
    }

    #[test]
    fn what_was_seen_from_outside_cannot_be_taken_back() {
        type Row = (fn(&mut Observations), EndReason);
        let rows: [Row; 4] = [
            (
                |seen| seen.killed_by = Some(hit(Resource::Memory)),
                EndReason::ResourceExceeded {
                    hit: hit(Resource::Memory),
                    exit: None,
                },
            ),
            (
                |seen| seen.wall_expired_ms = Some(7),
                EndReason::Timeout { limit_ms: 7 },
            ),
            (
                |seen| seen.cancelled = Some(CancelledBy::Operator),
                EndReason::Cancelled {
                    by: CancelledBy::Operator,
                },
            ),
            (
                |seen| seen.crashed = Some("init died".to_owned()),
                EndReason::SandboxCrashed {
                    diagnostics: "init died".to_owned(),
                },
            ),
        ];
        for (see, wanted) in rows {
            let mut seen = Observations::default();
            see(&mut seen);
            assert_eq!(told(&exits(0), seen), wanted);
        }
        // What denied from outside stays before what denied inside.
        let seen = Observations {
            denied: vec![hit(Resource::Disk)],
            ..Observations::default()
        };
        let report = Report {
            denied: vec![hit(Resource::Memory)],
            ..exits(1)
        };
        let end = told(&report, seen);
        assert!(
            matches!(&end, EndReason::ResourceExceeded { hit, .. } if hit.which == Resource::Disk),
            "{end:?}"
        );
    }

    #[test]
    fn what_is_no_report_changes_nothing() {
        let signal = Report {
            exit: Some(ExitStatus::Signal { number: 9 }),
            ..Report::default()
        };
        let pids = Report {
            killed_by: Some(hit(Resource::Pids)),
            ..Report::default()
        };
        let disk = Report {
            denied: vec![hit(Resource::Disk)],
            ..exits(1)
        };
        let denied = Report {
            denied: vec![hit(Resource::Memory)],
            ..Report::default()
        };
        let cancelled = Report {
            cancelled: true,
            ..exits(0)
        };
        let reports = [Report::default(), signal, pids, disk, denied, cancelled];
        let deep = [b"[".repeat(60_000), b"]".repeat(60_000)].concat();
        let others = [&b""[..], b"{", b"null", b"{} {}", b"\xff", &deep].map(<[u8]>::to_vec);
        let reports = reports.map(|report| serde_json::to_vec(&report).unwrap());
        for bytes in reports.into_iter().chain(others) {
            let mut seen = Observations::default();
            let believed = believe(&bytes, &RunLimits::default(), &mut seen);
            assert!(believed.is_err(), "{}", String::from_utf8_lossy(&bytes));
            assert_eq!(seen, Observations::default());
        }
    }
}
