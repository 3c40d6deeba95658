//! The page of `leasehold show`: one record in words. Pure.

use std::fmt::Write as _;
use std::path::Path;

use leasehold_core::contract::{Contract, Enforcement};
use leasehold_core::image::{ImageUse, User};
use leasehold_core::limits::{Limit, Limits, Resource};
use leasehold_core::quantity::{format_bytes, format_micros};
use leasehold_core::record::RunRecord;

use super::when;
use crate::run::{module, summary};
use crate::voice::clean;

/// Width of the left column.
const LEFT: usize = 13;

/// The whole page.
pub(crate) fn page(record: &RunRecord, directory: &Path) -> String {
    let mut text = String::new();
    let end = record
        .end
        .as_ref()
        .map_or_else(|| "still running".to_owned(), |end| clean(&end.phrase()));
    line(&mut text, "run", record.run.as_str());
    line(&mut text, "end", &end);
    if let Some(contract) = &record.contract {
        line(&mut text, "command", &clean(&contract.argv.join(" ")));
        if let Some(program) = &contract.program {
            line(&mut text, "module", &module::program(program));
        }
        if let Some(image) = &contract.image {
            line(&mut text, "image", &self::image(image));
        }
    }
    line(
        &mut text,
        "accepted",
        &format!("{} UTC", when(record.accepted_unix_ms)),
    );
    let start = if record.warm {
        "warm slot"
    } else {
        "made for it"
    };
    line(
        &mut text,
        "sandbox",
        &format!("{} ({start})", record.sandbox),
    );
    stages(&mut text, record);
    usage(&mut text, record);
    for (name, stream) in [("stdout", record.stdout), ("stderr", record.stderr)] {
        let cut = if stream.truncated { ", cut" } else { "" };
        let place = match record.pruned_unix_ms {
            Some(at) => format!("pruned at {} UTC", when(at)),
            None => directory.join(name).display().to_string(),
        };
        let told = format!(
            "{} of {}{cut}  {place}",
            format_bytes(stream.kept),
            format_bytes(stream.written)
        );
        line(&mut text, name, &told);
    }
    artifacts(&mut text, record);
    left_on_host(&mut text, record);
    if let Some(contract) = &record.contract {
        self::contract(&mut text, contract);
    }
    cleanup(&mut text, record);
    if let Some(mend) = summary::mend(record) {
        line(&mut text, "hint", &mend);
    }
    text
}

fn line(text: &mut String, name: &str, told: &str) {
    let _ = writeln!(text, "{name:<LEFT$}{told}");
}

fn stages(text: &mut String, record: &RunRecord) {
    let told: Vec<String> = record
        .stages
        .iter()
        .map(|time| format!("{} {}", time.stage.word(), format_micros(time.micros)))
        .collect();
    line(text, "stages", &told.join(" · "));
}

fn usage(text: &mut String, record: &RunRecord) {
    let mut told = format!("wall {}", format_micros(record.usage.wall_micros));
    let used = summary::used(&record.usage);
    if !used.is_empty() {
        let _ = write!(told, ", {used}");
    }
    if let Some(bytes) = record.usage.disk_bytes {
        let _ = write!(told, ", disk {}", format_bytes(bytes));
    }
    line(text, "used", &told);
    if let Some(report) = &record.module {
        line(text, "in it", &module::used(report));
        for note in module::notes(report) {
            line(text, "note", &note);
        }
    }
    for hit in &record.limits_hit {
        let told = format!(
            "{} (limit {}, observed {})",
            hit.which.word(),
            hit.which.amount(hit.limit),
            hit.observed
        );
        line(text, "limit hit", &told);
    }
}

fn artifacts(text: &mut String, record: &RunRecord) {
    for file in &record.artifacts {
        let told = match (&file.skipped, &file.sha256) {
            (Some(reason), _) => format!("{} not taken: {reason}", clean(&file.path)),
            (None, Some(digest)) => format!(
                "{} {} sha256 {digest}{}",
                clean(&file.path),
                format_bytes(file.bytes),
                if file.may_execute_on_host {
                    " (this host's tools may execute it)"
                } else {
                    ""
                }
            ),
            (None, None) => format!("{} {}", clean(&file.path), format_bytes(file.bytes)),
        };
        line(text, "artifact", &told);
    }
}

fn left_on_host(text: &mut String, record: &RunRecord) {
    let Some(left) = &record.may_execute_on_host else {
        return;
    };
    for file in &left.files {
        let told = format!(
            "{} {} (this host's tools may execute or obey it)",
            clean(&file.path),
            file.change.word()
        );
        line(text, "careful", &told);
    }
    match &left.incomplete {
        Some(why) => {
            let told = format!("the workspace was NOT compared as a whole: {}", clean(why));
            line(text, "careful", &told);
        }
        None if left.files.is_empty() => {
            let told = "nothing that this host's tools execute by themselves was changed";
            line(text, "workspace", told);
        }
        None => {}
    }
}

fn contract(text: &mut String, contract: &Contract) {
    let boundary = format!(
        "{} by backend {}: {}",
        contract.isolation.word(),
        contract.backend,
        clean(&contract.isolation_reason)
    );
    line(text, "boundary", &boundary);
    line(text, "network", &contract.network);
    line(text, "limits", &limits(&contract.limits));
    let weak: Vec<&str> = contract
        .enforcement
        .iter()
        .filter(|limit| limit.how != Enforcement::Enforced)
        .map(|limit| limit.which.word())
        .collect();
    if !weak.is_empty() {
        line(text, "not held", &weak.join(", "));
    }
    if !contract.env_names.is_empty() {
        line(text, "environment", &clean(&contract.env_names.join(" ")));
    }
    let posture = &contract.posture;
    let told = format!(
        "{} made by {}, cgroup {}, landlock {}, kernel {}",
        posture.profile, posture.maker, posture.cgroup, posture.landlock_abi, posture.kernel
    );
    line(text, "posture", &told);
    if let Some(host) = &posture.host {
        line(text, "host", &module::host(host));
    }
    for missing in &posture.missing {
        line(text, "missing", missing);
    }
}

/// The image, and who the command was in it.
fn image(image: &ImageUse) -> String {
    let User { uid, gid } = image.user;
    format!("{}, as user {uid}:{gid}", image.digest)
}

/// Limits on one line; what was asked for has a star.
fn limits(limits: &Limits) -> String {
    fn told<T: Copy + Into<u64>>(which: Resource, limit: Limit<T>) -> String {
        let star = if limit.is_asked() { "*" } else { "" };
        format!(
            "{} {}{star}",
            which.word(),
            which.amount(limit.value.into())
        )
    }
    let mut parts = vec![
        told(Resource::Cpu, limits.cpu_milli),
        told(Resource::Memory, limits.memory_bytes),
        told(Resource::Disk, limits.disk_bytes),
        told(Resource::Inodes, limits.inodes),
        told(Resource::Pids, limits.pids),
        told(Resource::Files, limits.files),
        told(Resource::Wall, limits.wall_ms),
    ];
    parts.extend(
        limits
            .cpu_time_ms
            .map(|limit| told(Resource::CpuTime, limit)),
    );
    parts.push(told(Resource::Output, limits.output_bytes));
    format!("{} (* asked)", parts.join(", "))
}

fn cleanup(text: &mut String, record: &RunRecord) {
    let Some(seen) = &record.cleanup else {
        line(text, "removal", "not observed yet");
        return;
    };
    let told = if seen.clean() {
        "complete"
    } else {
        "NOT complete"
    };
    line(text, "removal", told);
    for residue in &seen.residues {
        let mark = if residue.clean { "gone" } else { "LEFT" };
        let how = if residue.inferred { "inferred: " } else { "" };
        let told = format!(
            "{:<10} {mark}  {how}{}",
            residue.resource,
            clean(&residue.detail)
        );
        line(text, "", &told);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::summary::tests::record;
    use leasehold_core::end::EndReason;
    use leasehold_core::record::{LeftChange, LeftFile, LeftOnHost, Observed, Residue};

    #[test]
    fn a_page_says_end_and_removal() {
        let mut done = record(Some(EndReason::Completed));
        done.cleanup = Some(Observed {
            residues: vec![Residue {
                resource: "cgroups".into(),
                clean: true,
                detail: "3 removed".into(),
                inferred: false,
            }],
        });
        let text = page(&done, Path::new("/state/runs/r"));
        assert!(text.contains("end          completed\n"), "{text}");
        assert!(text.contains("removal      complete"), "{text}");
        assert!(text.contains("cgroups    gone  3 removed"), "{text}");
        assert!(text.contains("/state/runs/r/stdout"), "{text}");
        done.cleanup = None;
        assert!(page(&done, Path::new("/")).contains("not observed yet"));
    }

    #[test]
    fn a_page_says_what_the_host_may_execute() {
        let mut done = record(Some(EndReason::Completed));
        let told = |done: &RunRecord| page(done, Path::new("/"));
        assert!(!told(&done).contains("careful"));
        done.may_execute_on_host = Some(LeftOnHost::default());
        assert!(told(&done).contains("workspace    nothing that this host's"));
        done.may_execute_on_host = Some(LeftOnHost {
            files: vec![LeftFile {
                path: ".envrc\x1b".into(),
                change: LeftChange::Created,
            }],
            incomplete: Some("entries".into()),
        });
        let text = told(&done);
        assert!(
            text.contains("careful      .envrc\\x1b created (this"),
            "{text}"
        );
        assert!(text.contains("as a whole: entries\n"), "{text}");
    }

    #[test]
    fn asked_limits_have_a_star() {
        let all = Limits {
            pids: Limit::asked(9),
            ..Limits::default()
        };
        let text = limits(&all);
        assert!(text.contains("pids 9*"), "{text}");
        assert!(text.contains("memory 512 MiB,"), "{text}");
    }
}
