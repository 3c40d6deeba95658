//! The last words about a run: one line how it ended, and what to do about it. Pure functions.

use leasehold_core::contract::Enforcement;
use leasehold_core::end::{EndReason, ExitStatus, LimitHit};
use leasehold_core::limits::Resource;
use leasehold_core::quantity::{format_bytes, format_micros};
use leasehold_core::record::{RunRecord, StreamRecord, Usage};

use super::module;
use crate::voice::clean;

/// Files that the host may execute that are named one by one.
const NAMED_MAX: usize = 8;

/// The line: end, time, stages, usage, id. `total_micros` is what the caller waited.
pub(crate) fn line(record: &RunRecord, total_micros: u64) -> String {
    let total = format_micros(total_micros);
    let end = match &record.end {
        None => format!("still running after {total}"),
        Some(EndReason::Completed) => format!("completed in {total}"),
        Some(end) => format!("{} after {total}", clean(&end.phrase())),
    };
    let stages: Vec<String> = record
        .stages
        .iter()
        .map(|time| format!("{} {}", time.stage.word(), format_micros(time.micros)))
        .collect();
    let mut text = end;
    if !stages.is_empty() {
        text.push_str(&format!(" ({})", stages.join(" · ")));
    }
    let used = used(&record.usage);
    if !used.is_empty() {
        text.push(' ');
        text.push_str(&used);
        text.push(',');
    }
    format!("{text} run {}", record.run)
}

/// Why the command was not run, or not to its end, where that is no doing of its own or its caller's.
pub(crate) fn failure(end: Option<&EndReason>, run: &str) -> Option<String> {
    match end? {
        end @ (EndReason::SandboxUnavailable { .. }
        | EndReason::SandboxCrashed { .. }
        | EndReason::HostLost) => Some(format!("{}, run {run}", clean(&end.phrase()))),
        EndReason::Cancelled { .. }
        | EndReason::LeaseExpired { .. }
        | EndReason::Timeout { .. }
        | EndReason::ResourceExceeded { .. }
        | EndReason::ToolError { .. }
        | EndReason::InvalidOutput { .. }
        | EndReason::Completed => None,
    }
}

/// What a run used, in words; empty when nothing was counted.
pub(crate) fn used(usage: &Usage) -> String {
    let mut parts = Vec::new();
    if let Some(micros) = usage.cpu_micros {
        parts.push(format!("cpu {}", format_micros(micros)));
    }
    if let Some(bytes) = usage.memory_peak_bytes {
        parts.push(format!("memory peak {}", format_bytes(bytes)));
    }
    if let Some(micros) = usage.throttled_micros.filter(|micros| *micros > 0) {
        parts.push(format!("throttled {}", format_micros(micros)));
    }
    parts.join(", ")
}

/// What else the caller should know: facts first.
pub(crate) fn notes(record: &RunRecord) -> Vec<String> {
    let mut notes = left_on_host(record);
    notes.extend(record.module.iter().flat_map(module::notes));
    if !matches!(record.end, Some(EndReason::ResourceExceeded { .. })) {
        notes.extend(record.limits_hit.iter().map(|hit| denied(*hit)));
    }
    for (name, stream) in [("stdout", record.stdout), ("stderr", record.stderr)] {
        notes.extend(cut(name, stream));
    }
    let (loose, open) = (
        held(record, Enforcement::BestEffort),
        held(record, Enforcement::Unenforced),
    );
    if !loose.is_empty() {
        notes.push(format!(
            "nobody asked for these limits, and this host cannot hold them: {}",
            loose.join(", ")
        ));
    }
    if !open.is_empty() {
        notes.push(format!(
            "these limits were asked for and NOT held, as --allow-unenforced lets it: {}",
            open.join(", ")
        ));
    }
    if let Some(seen) = record.cleanup.as_ref().filter(|seen| !seen.clean()) {
        let left: Vec<String> = seen
            .residues
            .iter()
            .filter(|residue| !residue.clean)
            .map(|residue| format!("{} ({})", residue.resource, clean(&residue.detail)))
            .collect();
        notes.push(format!("removal is NOT complete: {}", left.join(", ")));
    }
    notes
}

/// What the host may execute later of a directory that was lent for writing. Told even to those who
/// want to hear nothing else.
pub(crate) fn left_on_host(record: &RunRecord) -> Vec<String> {
    let Some(left) = &record.may_execute_on_host else {
        return Vec::new();
    };
    let mut notes = Vec::new();
    if !left.files.is_empty() {
        let named: Vec<String> = left
            .files
            .iter()
            .take(NAMED_MAX)
            .map(|file| format!("{} ({})", clean(&file.path), file.change.word()))
            .collect();
        let more = match left.files.len() - named.len() {
            0 => String::new(),
            more => format!(", and {more} more: `leasehold show {}`", record.run),
        };
        notes.push(format!(
            "be careful, this host's tools may execute or obey what the command left in the \
             workspace: {}{more}",
            named.join(", ")
        ));
    }
    if let Some(why) = &left.incomplete {
        notes.push(format!(
            "the workspace was NOT compared as a whole ({}): it may hold more that this host's tools \
             execute",
            clean(why)
        ));
    }
    notes
}

/// Limits that hold in one way.
fn held(record: &RunRecord, how: Enforcement) -> Vec<&'static str> {
    let contract = record.contract.iter();
    contract
        .flat_map(|contract| &contract.enforcement)
        .filter(|limit| limit.how == how)
        .map(|limit| limit.which.word())
        .collect()
}

fn denied(hit: LimitHit) -> String {
    format!(
        "limit `{}` of {} denied something",
        hit.which.word(),
        hit.which.amount(hit.limit)
    )
}

fn cut(name: &str, stream: StreamRecord) -> Option<String> {
    stream.truncated.then(|| {
        format!(
            "{name} was cut: {} of {} were kept; --output-limit sets how much",
            format_bytes(stream.kept),
            format_bytes(stream.written)
        )
    })
}

/// The mend, where there is one.
pub(crate) fn mend(record: &RunRecord) -> Option<String> {
    match record.end.as_ref()? {
        EndReason::Timeout { limit_ms } => Some(format!(
            "allow it longer: --timeout {}",
            time_flag(limit_ms * 2)
        )),
        EndReason::ResourceExceeded { hit, .. } => raise(*hit),
        EndReason::ToolError { exit } => missing(record, exit),
        EndReason::SandboxUnavailable { detail } if detail.starts_with("working directory") => Some(
            "--workdir names a directory inside: below /workspace, /tmp or /home/user, or one of \
                 this host's system directories; --workspace DIR brings one in"
                .to_owned(),
        ),
        EndReason::SandboxUnavailable { .. } | EndReason::SandboxCrashed { .. } => {
            Some("`leasehold doctor` says what this host lacks".to_owned())
        }
        EndReason::HostLost => {
            Some("the command may have run in part; run it again if that does no harm".to_owned())
        }
        EndReason::Cancelled { .. }
        | EndReason::LeaseExpired { .. }
        | EndReason::InvalidOutput { .. }
        | EndReason::Completed => None,
    }
}

fn missing(record: &RunRecord, exit: &ExitStatus) -> Option<String> {
    let contract = record.contract.as_ref()?;
    let program = clean(contract.argv.first()?);
    match exit {
        ExitStatus::NotFound if contract.image.is_some() => Some(format!(
            "`{program}` is not in the image, or not in its PATH, or it wants an interpreter that is not there; \
             `--env PATH=…` names other places"
        )),
        ExitStatus::NotFound => Some(format!(
            "`{program}` is not in the sandbox: it has this host's system directories and \
             /workspace; bring files in with --workspace DIR"
        )),
        ExitStatus::NotExecutable => Some(format!(
            "`{program}` cannot be executed: see its mode bits and its first line"
        )),
        ExitStatus::Exit { .. } | ExitStatus::Signal { .. } | ExitStatus::Trap { .. } => None,
    }
}

fn raise(hit: LimitHit) -> Option<String> {
    let twice = hit.limit.saturating_mul(2);
    let (flag, value) = match hit.which {
        Resource::Memory => ("memory", size_flag(twice)),
        Resource::Disk => ("disk", size_flag(twice)),
        Resource::Output => ("output-limit", size_flag(twice)),
        Resource::CpuTime => ("cpu-time", time_flag(twice)),
        Resource::Wall => ("timeout", time_flag(twice)),
        Resource::Inodes => ("inodes", twice.to_string()),
        Resource::Pids => ("pids", twice.to_string()),
        Resource::Files => ("files", twice.to_string()),
        Resource::Fuel => ("fuel", twice.to_string()),
        Resource::Handles => ("files", twice.to_string()),
        Resource::Cpu | Resource::Egress | Resource::Stack | Resource::Compile => return None,
    };
    Some(format!("raise it: --{flag} {value}"))
}

/// A size as a flag takes it.
fn size_flag(bytes: u64) -> String {
    for (shift, unit) in [(30, 'G'), (20, 'M'), (10, 'K')] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// A duration as a flag takes it.
fn time_flag(millis: u64) -> String {
    if millis.is_multiple_of(60_000) {
        format!("{}m", millis / 60_000)
    } else if millis.is_multiple_of(1_000) {
        format!("{}s", millis / 1_000)
    } else {
        format!("{millis}ms")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use leasehold_core::end::CancelledBy;
    use leasehold_core::id::{RunId, SandboxId};
    use leasehold_core::record::{LeftChange, LeftFile, LeftOnHost, Observed, Residue};
    use leasehold_core::stage::{Stage, StageTime};

    pub(crate) fn record(end: Option<EndReason>) -> RunRecord {
        RunRecord {
            end,
            ..RunRecord::accepted(
                RunId::from_entropy(&[0; 13]),
                SandboxId::from_entropy(&[0; 13]),
                0,
            )
        }
    }

    #[test]
    fn the_line_has_end_stages_usage_and_id() {
        let mut done = record(Some(EndReason::Completed));
        done.stages = vec![
            StageTime {
                stage: Stage::Allocate,
                micros: 3_100,
            },
            StageTime {
                stage: Stage::Execute,
                micros: 30_000,
            },
        ];
        done.usage = Usage {
            cpu_micros: Some(12_000),
            memory_peak_bytes: Some(9_542_042),
            ..Usage::default()
        };
        assert_eq!(
            line(&done, 41_000),
            "completed in 41 ms (allocate 3.1 ms · execute 30 ms) cpu 12 ms, \
             memory peak 9.1 MiB, run raaaaaaaaaaaaaaaaaaaa"
        );
        let cancelled = record(Some(EndReason::Cancelled {
            by: CancelledBy::Caller,
        }));
        assert_eq!(
            line(&cancelled, 5),
            "cancelled by the caller after 5 µs run raaaaaaaaaaaaaaaaaaaa"
        );
    }

    #[test]
    fn every_limit_that_ends_a_run_says_what_to_raise() {
        for (which, limit, want) in [
            (Resource::Memory, 64 << 20, Some("raise it: --memory 128M")),
            (Resource::Disk, 1 << 30, Some("raise it: --disk 2G")),
            (Resource::Inodes, 100, Some("raise it: --inodes 200")),
            (Resource::Pids, 16, Some("raise it: --pids 32")),
            (Resource::Files, 64, Some("raise it: --files 128")),
            (Resource::CpuTime, 1_500, Some("raise it: --cpu-time 3s")),
            (Resource::Wall, 250, Some("raise it: --timeout 500ms")),
            (
                Resource::Output,
                1_000,
                Some("raise it: --output-limit 2000"),
            ),
            (Resource::Fuel, 500, Some("raise it: --fuel 1000")),
            (Resource::Handles, 64, Some("raise it: --files 128")),
            (Resource::Cpu, 1, None),
        ] {
            let end = EndReason::ResourceExceeded {
                hit: LimitHit {
                    which,
                    limit,
                    observed: limit,
                },
                exit: None,
            };
            assert_eq!(mend(&record(Some(end))).as_deref(), want, "{which:?}");
        }
        let end = EndReason::Timeout { limit_ms: 30_000 };
        let hint = mend(&record(Some(end))).unwrap();
        assert!(hint.ends_with("--timeout 1m"), "{hint}");
    }

    /// The values in hints are read back by the parsers of the flags.
    #[test]
    fn flags_in_hints_are_readable() {
        use leasehold_core::quantity::{parse_bytes, parse_duration};
        for bytes in [1, 1_000, 64 << 10, 3 << 20, 5 << 30] {
            assert_eq!(parse_bytes(&size_flag(bytes)), Ok(bytes));
        }
        for millis in [1, 1_000, 90_000, 600_000] {
            let read = parse_duration(&time_flag(millis)).unwrap();
            assert_eq!(read.as_millis(), u128::from(millis));
        }
    }

    #[test]
    fn what_the_host_may_execute_is_noted() {
        let mut done = record(Some(EndReason::Completed));
        done.may_execute_on_host = Some(LeftOnHost::default());
        assert!(notes(&done).is_empty());
        let file = |path: &str, change| LeftFile {
            path: path.to_owned(),
            change,
        };
        let mut files = vec![
            file(".git/hooks/x\x1b[2J", LeftChange::Created),
            file(".envrc", LeftChange::Changed),
        ];
        done.may_execute_on_host = Some(LeftOnHost {
            files: files.clone(),
            incomplete: Some("time".to_owned()),
        });
        assert_eq!(
            notes(&done),
            [
                "be careful, this host's tools may execute or obey what the command left in the \
                 workspace: .git/hooks/x\\x1b[2J (created), .envrc (changed)",
                "the workspace was NOT compared as a whole (time): it may hold more that this host's \
                 tools execute",
            ]
        );
        files.extend((0..20).map(|at| file(&format!("{at}/.envrc"), LeftChange::Created)));
        done.may_execute_on_host = Some(LeftOnHost {
            files,
            incomplete: None,
        });
        let told = notes(&done).remove(0);
        assert!(
            told.ends_with(", and 14 more: `leasehold show raaaaaaaaaaaaaaaaaaaa`"),
            "{told}"
        );
    }

    #[test]
    fn what_is_not_perfect_is_noted() {
        let mut done = record(Some(EndReason::Completed));
        assert!(notes(&done).is_empty());
        done.limits_hit = vec![LimitHit {
            which: Resource::Pids,
            limit: 16,
            observed: 3,
        }];
        done.stdout = StreamRecord {
            written: 4_096,
            kept: 1_024,
            truncated: true,
        };
        done.cleanup = Some(Observed {
            residues: vec![Residue {
                resource: "cgroups".into(),
                clean: false,
                detail: "busy\x1b[2J".into(),
                inferred: false,
            }],
        });
        let notes = notes(&done);
        assert_eq!(
            notes,
            [
                "limit `pids` of 16 denied something",
                "stdout was cut: 1 KiB of 4 KiB were kept; --output-limit sets how much",
                "removal is NOT complete: cgroups (busy\\x1b[2J)",
            ]
        );
    }
}
