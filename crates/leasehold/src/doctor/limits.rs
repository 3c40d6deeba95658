//! Breaching every limit on purpose, in real sandboxes, and judging what the host saw.
//!
//! The scripts are plain shell and bounded by themselves: on a host where a limit does not hold, a
//! probe ends by itself after having taken a few times its limit, and harms nobody. Judging is pure.

use std::net::TcpListener;

use leasehold_core::contract::Enforcement;
use leasehold_core::end::EndReason;
use leasehold_core::limits::{Limit, Limits, Resource};
use leasehold_core::quantity::{format_bytes, format_micros};
use leasehold_core::record::RunRecord;
use leasehold_core::spec::{ExecSpec, SandboxSpec};

use super::facts::Facts;
use super::mend;
use super::report::{Check, Section, State};
use super::ward::{Seen, Ward};
use crate::fault::Fault;

/// Wall limit of probes that are not about it.
const WALL_MS: u64 = 10_000;
const MEMORY: u64 = 64 << 20;
const DISK: u64 = 1 << 20;
const INODES: u64 = 32;
const PIDS: u32 = 16;
const CPU_MILLI: u32 = 200;
const CPU_TIME_MS: u64 = 300;
const SHORT_WALL_MS: u64 = 500;
const FILES: u32 = 32;
const OUTPUT: u64 = 64 << 10;
const WRITTEN: u64 = 1_000_000;

/// What a breach came to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// It held; how.
    Held(String),
    /// It did not; what was seen.
    Broke(String),
    /// The command did not get as far as the limit.
    Unclear(String),
}

use Verdict::{Broke, Held, Unclear};

/// One limit to breach.
struct Probe {
    what: &'static str,
    /// Sets the limit, as asked for.
    ask: fn(&mut Limits),
    script: String,
    /// Whether it held, and what was seen.
    judge: fn(&Seen) -> Verdict,
}

fn spec(ask: impl Fn(&mut Limits)) -> SandboxSpec {
    let mut limits = Limits {
        wall_ms: Limit::asked(WALL_MS),
        grace_ms: 0,
        ..Limits::default()
    };
    ask(&mut limits);
    SandboxSpec {
        limits,
        ..SandboxSpec::default()
    }
}

fn shell(script: &str) -> ExecSpec {
    let mut exec = ExecSpec::command(["/bin/sh", "-c", script]);
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    exec.env.insert("PATH".to_owned(), path.to_owned());
    exec.env.insert("HOME".to_owned(), "/home/user".to_owned());
    exec
}

/// Tries the process backend with a command that does nothing. Says whether it works.
pub(super) fn backend(facts: &Facts, ward: &mut Ward) -> (Check, bool) {
    const WHAT: &str = "process";
    let check = |state, why| Check::new(Section::Backends, WHAT, state, why);
    match ward.run(spec(|_| {}), shell("exit 0")) {
        Ok(seen) if seen.record.end == Some(EndReason::Completed) => {
            (check(State::Ok, works(&seen)), true)
        }
        Ok(seen) => {
            let end = seen.record.end.as_ref().map(EndReason::phrase);
            let why = format!("a command that does nothing: {}", end.unwrap_or_default());
            (
                check(State::Missing, why).mend(namespaces(facts)).breaks(),
                false,
            )
        }
        Err(fault) => {
            let mend = namespaces(facts).or(fault.mend().map(str::to_owned));
            (
                check(State::Missing, fault.chain()).mend(mend).breaks(),
                false,
            )
        }
    }
}

/// What most often stands in the way of an ordinary user.
fn namespaces(facts: &Facts) -> Option<String> {
    (!facts.root() && facts.apparmor_userns == Some(1)).then(|| mend::apparmor_profile(facts))
}

fn works(seen: &Seen) -> String {
    let mut why = format!(
        "a real run took {}",
        format_micros(u64::try_from(seen.took.as_micros()).unwrap_or(u64::MAX))
    );
    if let Some(contract) = &seen.record.contract {
        let posture = &contract.posture;
        let ids = if posture.single_uid {
            ", one uid inside"
        } else {
            ""
        };
        why.push_str(&format!(
            "; control groups {}, Landlock {}{ids}",
            posture.cgroup, posture.landlock_abi
        ));
        if !posture.missing.is_empty() {
            why.push_str(&format!("; lacks {}", posture.missing.join(", ")));
        }
    }
    why
}

/// Breaches every limit.
pub(super) fn checks(facts: &Facts, ward: &mut Ward) -> Vec<Check> {
    let mut lines: Vec<Check> = probes()
        .into_iter()
        .map(|probe| {
            let seen = ward.run(spec(probe.ask), shell(&probe.script));
            let mut line = verdict(facts, probe.what, seen, probe.judge);
            line.script = Some(probe.script);
            line
        })
        .collect();
    lines.push(files(ward));
    lines.push(network(ward));
    lines
}

fn limit(what: &'static str, state: State, why: String) -> Check {
    Check::new(Section::Limits, what, state, why)
}

fn verdict(
    facts: &Facts,
    what: &'static str,
    seen: Result<Seen, Fault>,
    judge: fn(&Seen) -> Verdict,
) -> Check {
    match seen {
        Ok(seen) => match judge(&seen) {
            Held(why) => limit(what, State::Enforced, why),
            Broke(why) => limit(what, State::NotEnforced, why).breaks(),
            Unclear(why) => limit(what, State::Unclear, why).breaks(),
        },
        // Not promised: asked for, it is refused. That is the rule and no failure.
        Err(fault) if fault.chain().contains("cannot be enforced here") => {
            let reason = fault.chain();
            let command = mend::control_groups(facts, &reason);
            limit(what, State::Refused, reason).mend(command)
        }
        Err(fault) => limit(what, State::Unclear, fault.chain()).breaks(),
    }
}

/// `while` loop of so many turns around a body.
fn times(count: u32, body: &str) -> String {
    format!("i=0; while [ $i -lt {count} ]; do {body}; i=$((i+1)); done")
}

fn probes() -> Vec<Probe> {
    const SPIN: &str = "while :; do :; done";
    vec![
        Probe {
            what: "memory",
            ask: |limits| limits.memory_bytes = Limit::asked(MEMORY),
            // One buffer of that size, filled.
            script: format!("dd if=/dev/zero of=/dev/null bs={} count=1", 4 * MEMORY),
            judge: memory,
        },
        Probe {
            what: "pids",
            ask: |limits| limits.pids = Limit::asked(PIDS),
            script: times(4 * PIDS, "{ sleep 2 & }"),
            judge: |seen| denied(seen, Resource::Pids),
        },
        Probe {
            what: "disk",
            ask: |limits| limits.disk_bytes = Limit::asked(DISK),
            script: format!("head -c {} /dev/zero >/workspace/big", 8 * DISK),
            judge: |seen| denied(seen, Resource::Disk),
        },
        Probe {
            what: "inodes",
            ask: |limits| limits.inodes = Limit::asked(INODES),
            script: times(200, ": >/workspace/$i || exit 1"),
            judge: |seen| denied(seen, Resource::Inodes),
        },
        Probe {
            what: "cpu",
            ask: |limits| {
                limits.cpu_milli = Limit::asked(CPU_MILLI);
                limits.wall_ms = Limit::asked(2_000);
            },
            script: format!("({SPIN}) & {SPIN}"),
            judge: cpu_rate,
        },
        Probe {
            what: "cpu_time",
            ask: |limits| limits.cpu_time_ms = Some(Limit::asked(CPU_TIME_MS)),
            script: SPIN.to_owned(),
            judge: cpu_time,
        },
        Probe {
            what: "wall",
            ask: |limits| {
                limits.wall_ms = Limit::asked(SHORT_WALL_MS);
                limits.grace_ms = 100;
            },
            script: format!("trap '' TERM INT HUP; {}", times(20, "sleep 1")),
            judge: wall,
        },
        Probe {
            what: "output",
            ask: |limits| limits.output_bytes = Limit::asked(OUTPUT),
            script: format!("head -c {WRITTEN} /dev/zero"),
            judge: output,
        },
    ]
}

fn phrase(record: &RunRecord) -> String {
    record
        .end
        .as_ref()
        .map_or_else(String::new, EndReason::phrase)
}

/// Whether the contract promised this limit. A default that is best effort is no promise, but every
/// probe asks.
fn promised(record: &RunRecord, which: Resource) -> bool {
    let rows = record
        .contract
        .iter()
        .flat_map(|contract| &contract.enforcement);
    rows.into_iter()
        .any(|row| row.which == which && row.how == Enforcement::Enforced)
}

fn hit(record: &RunRecord, which: Resource) -> Option<(u64, u64)> {
    let by_end = match &record.end {
        Some(EndReason::ResourceExceeded { hit, .. }) => Some(*hit),
        _ => None,
    };
    record
        .limits_hit
        .iter()
        .copied()
        .chain(by_end)
        .find(|hit| hit.which == which)
        .map(|hit| (hit.limit, hit.observed))
}

fn memory(seen: &Seen) -> Verdict {
    let record = &seen.record;
    let peak = record.usage.memory_peak_bytes;
    let shown = peak.map_or_else(String::new, |peak| format!(", peak {}", format_bytes(peak)));
    let ended = matches!(
        &record.end,
        Some(EndReason::ResourceExceeded { hit, .. }) if hit.which == Resource::Memory
    );
    let bound = format_bytes(MEMORY);
    let above = peak.unwrap_or(0) > MEMORY;
    if ended && !above {
        return Held(format!("ended at {bound}{shown}"));
    }
    let end = phrase(record);
    if above || record.end == Some(EndReason::Completed) {
        let wanted = format_bytes(4 * MEMORY);
        return Broke(format!(
            "got {wanted} with a limit of {bound}{shown}: {end}"
        ));
    }
    Unclear(format!("did not get as far as {bound}{shown}: {end}"))
}

fn denied(seen: &Seen, which: Resource) -> Verdict {
    if !promised(&seen.record, which) {
        return Broke("asked for, and the contract does not promise it".to_owned());
    }
    let end = phrase(&seen.record);
    match (hit(&seen.record, which), &seen.record.end) {
        (Some((limit, _)), _) => Held(format!("denied at {}", which.amount(limit))),
        (None, Some(EndReason::Completed)) => Broke(format!("went beyond it: {end}")),
        (None, _) => Unclear(format!("nothing was denied, and yet: {end}")),
    }
}

/// All that its sandbox used, over all the time there was one, since the share holds from its first
/// process on. A tenth above it, and a tick of four milliseconds on each of two cores at the edges.
fn cpu_rate(seen: &Seen) -> Verdict {
    let usage = &seen.record.usage;
    let Some(used) = usage.cpu_micros else {
        return Broke("processor time is not counted".to_owned());
    };
    let whole = u64::try_from(seen.took.as_micros()).unwrap_or(u64::MAX);
    let whole = whole.max(usage.wall_micros).max(1);
    let most = whole * u64::from(CPU_MILLI) / 1_000 * 11 / 10 + 8_000;
    let text = format!(
        "two spinners used {:.3} cores of {:.3} for {}",
        used as f64 / whole as f64,
        f64::from(CPU_MILLI) / 1_000.0,
        format_micros(usage.wall_micros)
    );
    match (used > most, usage.throttled_micros) {
        (true, _) => Broke(text),
        (false, Some(0) | None) => Unclear(format!("{text}, and were never held back")),
        (false, Some(_)) => Held(text),
    }
}

fn cpu_time(seen: &Seen) -> Verdict {
    let used = format_micros(seen.record.usage.cpu_micros.unwrap_or(0));
    let bound = Resource::CpuTime.amount(CPU_TIME_MS);
    match &seen.record.end {
        Some(EndReason::ResourceExceeded { hit, .. }) if hit.which == Resource::CpuTime => {
            Held(format!("ended after {used} of {bound}"))
        }
        _ => Broke(format!("used {used} of {bound}: {}", phrase(&seen.record))),
    }
}

fn wall(seen: &Seen) -> Verdict {
    let took = seen.record.usage.wall_micros;
    let text = format!(
        "a command that ignores TERM ran {} of {}",
        format_micros(took),
        Resource::Wall.amount(SHORT_WALL_MS)
    );
    let ended = matches!(&seen.record.end, Some(EndReason::Timeout { .. }));
    if ended && took <= (SHORT_WALL_MS + 1_100) * 1_000 {
        Held(text)
    } else {
        Broke(format!("{text}: {}", phrase(&seen.record)))
    }
}

fn output(seen: &Seen) -> Verdict {
    let stream = seen.record.stdout;
    let text = format!(
        "{} of {} were kept",
        format_bytes(stream.kept),
        format_bytes(stream.written)
    );
    if stream.kept > OUTPUT {
        Broke(text)
    } else if stream.truncated && stream.written == WRITTEN {
        Held(text)
    } else {
        Unclear(format!("{text}: {}", phrase(&seen.record)))
    }
}

/// A redirection inside a redirection makes any shell keep one more descriptor, so that a deep nest
/// opens many files without any program.
fn nest(depth: usize) -> String {
    format!(
        "{}echo reached; {}",
        "{ ".repeat(depth),
        "} 3</dev/null; ".repeat(depth)
    )
}

/// The host sees no count of denied files, so the same command is run with and without the limit.
fn files(ward: &mut Ward) -> Check {
    const WHAT: &str = "files";
    let script = nest(2 * FILES as usize);
    let mut reached = |most: u32| {
        ward.run(
            spec(|limits| limits.files = Limit::asked(most)),
            shell(&script),
        )
        .map(|seen| seen.stdout.contains("reached"))
    };
    match (reached(FILES), reached(8 * FILES)) {
        (Ok(false), Ok(true)) => limit(
            WHAT,
            State::Enforced,
            format!("denied at {FILES} open files"),
        ),
        (Ok(true), _) => limit(
            WHAT,
            State::NotEnforced,
            format!("{} files were open with a limit of {FILES}", 2 * FILES),
        )
        .breaks(),
        (Ok(false), Ok(false)) => limit(
            WHAT,
            State::Unclear,
            "the shell here does not open many files, limit or not".to_owned(),
        )
        .breaks(),
        (Err(fault), _) | (_, Err(fault)) => limit(WHAT, State::Unclear, fault.chain()).breaks(),
    }
}

/// A listener of ours on the host's loopback must not be reached, and no interface but the sandbox's
/// own loopback may be there.
fn network(ward: &mut Ward) -> Check {
    const WHAT: &str = "network";
    let unclear = |why: String| limit(WHAT, State::Unclear, why).breaks();
    let listener = TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    let (listener, port) =
        match listener.and_then(|one| one.local_addr().map(|at| (one, at.port()))) {
            Ok(found) => found,
            Err(error) => return unclear(format!("no listener for the probe: {error}")),
        };
    let script = format!(
        "cat /proc/net/dev; echo routes; cat /proc/net/route; \
         if command -v bash >/dev/null; then bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}' \
         2>/dev/null && echo CONNECTED; fi; echo done"
    );
    match ward.run(spec(|_| {}), shell(&script)) {
        Err(fault) => unclear(fault.chain()),
        Ok(seen) => match alone(&seen.stdout, listener.accept().is_ok()) {
            Held(why) => limit(WHAT, State::Enforced, why),
            Broke(why) => limit(WHAT, State::NotEnforced, why).breaks(),
            Unclear(why) => limit(WHAT, State::Unclear, why).breaks(),
        },
    }
}

/// Judges what `/proc/net` inside showed, and whether our listener was reached.
fn alone(shown: &str, reached: bool) -> Verdict {
    if reached || shown.contains("CONNECTED") {
        return Broke("a listener on this host's loopback was reached".to_owned());
    }
    let Some((devices, routes)) = shown.split_once("routes\n") else {
        return Unclear("what is inside could not be read".to_owned());
    };
    let names: Vec<&str> = devices
        .lines()
        .filter_map(|line| line.split_once(':').map(|(name, _)| name.trim()))
        .collect();
    // The first line is a heading, the last our own.
    let routes = routes
        .lines()
        .skip(1)
        .filter(|line| *line != "done")
        .count();
    if names == ["lo"] && routes == 0 && shown.ends_with("done\n") {
        Held("only its own loopback, no route; a listener of this host was not reached".to_owned())
    } else {
        Broke(format!("interfaces {}, {routes} routes", names.join(", ")))
    }
}

#[cfg(test)]
mod tests;
