//! Every limit that ends a run, and that its end names it.

use leasehold_core::end::{EndReason, ExitStatus};
use leasehold_core::limits::{Limit, Limits, OnDenied, OnOutputLimit, Resource};

use super::script::{Difference, FLOOD, Script};
use super::{Case, Finished, Suite, Verdict, check};
use crate::seam::Doing;

const MIB: u64 = 1 << 20;

pub(super) const ALL: &[(&str, Case)] = &[
    ("the wall limit ends it and output is kept", wall),
    ("memory ends it", memory),
    ("processor time ends it", cpu_time),
    ("processes are denied and the end says so", pids),
    ("disk is denied and the end says so", disk),
    ("output is cut and counted", output_cut),
    ("output ends it where the contract says so", output_kill),
    ("usage is what can be", usage),
];

/// Whether it was killed by a limit, or failed after one denied it something.
fn exceeded(done: &Finished, resource: Resource, denied: bool) -> Verdict {
    match done.end()? {
        EndReason::ResourceExceeded { hit, exit } => {
            check!(
                hit.which == resource && exit.is_some() == denied,
                "the end says {hit:?}, exit {exit:?}"
            );
            let listed = done
                .record
                .limits_hit
                .iter()
                .any(|hit| hit.which == resource);
            check!(listed, "not among {:?}", done.record.limits_hit);
            Ok(())
        }
        other => {
            check!(false, "ended as {other:?}");
            Ok(())
        }
    }
}

fn wall<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        suite.needs(Resource::Wall)?;
        let limits = Limits {
            wall_ms: Limit::asked(700),
            grace_ms: 200,
            ..Limits::default()
        };
        for script in [Script::Sleep, Script::Stubborn] {
            let done = suite.run(limits.clone(), script).await?;
            let end = done.end()?;
            check!(
                *end == EndReason::Timeout { limit_ms: 700 },
                "{script:?} ended as {end:?}"
            );
            check!(done.stdout == b"before\n", "kept {:?}", done.stdout);
            let ran = done.record.usage.wall_micros;
            check!(
                (690_000..20_000_000).contains(&ran),
                "{script:?} ran {ran} µs"
            );
        }
        Ok(())
    })
}

fn memory<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        suite.needs(Resource::Memory)?;
        let limits = Limits {
            memory_bytes: Limit::asked(32 * MIB),
            ..Limits::default()
        };
        let done = suite.run(limits.clone(), Script::Hog).await?;
        let denied = suite.differs(Difference::MemoryDenied);
        exceeded(&done, Resource::Memory, denied)?;
        let killing = Limits {
            on_denied: OnDenied::Kill,
            ..limits
        };
        let done = suite.run(killing, Script::Hog).await?;
        exceeded(&done, Resource::Memory, false)
    })
}

fn cpu_time<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        suite.needs(Resource::CpuTime)?;
        let limits = Limits {
            cpu_time_ms: Some(Limit::asked(300)),
            ..Limits::default()
        };
        let done = suite.run(limits, Script::Spin).await?;
        exceeded(&done, Resource::CpuTime, false)
    })
}

fn pids<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        suite.needs(Resource::Pids)?;
        let limits = Limits {
            pids: Limit::asked(16),
            ..Limits::default()
        };
        let done = suite.run(limits, Script::Fork).await?;
        if suite.differs(Difference::Alone) {
            let exit = ExitStatus::NotExecutable;
            let end = done.end()?;
            check!(*end == EndReason::ToolError { exit }, "ended as {end:?}");
            return Ok(());
        }
        exceeded(&done, Resource::Pids, true)?;
        // With room enough the same command is fine.
        let done = suite.run(Limits::default(), Script::Fork).await?;
        check!(*done.end()? == EndReason::Completed, "{:?}", done.end()?);
        Ok(())
    })
}

fn disk<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        suite.needs(Resource::Disk)?;
        let limits = Limits {
            disk_bytes: Limit::asked(2 * MIB),
            ..Limits::default()
        };
        let done = suite.run(limits, Script::Fill).await?;
        exceeded(&done, Resource::Disk, true)?;
        let done = suite.run(Limits::default(), Script::Fill).await?;
        check!(*done.end()? == EndReason::Completed, "{:?}", done.end()?);
        Ok(())
    })
}

fn output_cut<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        suite.needs(Resource::Output)?;
        let limits = Limits {
            output_bytes: Limit::asked(1_000),
            ..Limits::default()
        };
        let done = suite.run(limits, Script::Flood).await?;
        check!(*done.end()? == EndReason::Completed, "{:?}", done.end()?);
        check!(done.stdout.len() == 1_000, "kept {}", done.stdout.len());
        let stream = done.record.stdout;
        check!(
            stream.written == FLOOD && stream.kept == 1_000 && stream.truncated,
            "{stream:?}"
        );
        Ok(())
    })
}

fn output_kill<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        suite.needs(Resource::Output)?;
        let limits = Limits {
            output_bytes: Limit::asked(1_000),
            on_output_limit: OnOutputLimit::Kill,
            ..Limits::default()
        };
        let done = suite.run(limits, Script::Flood).await?;
        exceeded(&done, Resource::Output, false)?;
        check!(done.stdout.len() == 1_000, "kept {}", done.stdout.len());
        Ok(())
    })
}

fn usage<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let done = suite.run(Limits::default(), Script::Fill).await?;
        let used = done.record.usage;
        check!(
            done.record.exit == Some(ExitStatus::Exit { code: 0 }),
            "{:?}",
            done.record.exit
        );
        check!(
            (1..60_000_000).contains(&used.wall_micros),
            "wall {} µs",
            used.wall_micros
        );
        if let Some(cpu) = used.cpu_micros {
            check!((1..60_000_000).contains(&cpu), "processor {cpu} µs");
        }
        if let Some(peak) = used.memory_peak_bytes {
            let most = Limits::default().memory_bytes.value;
            check!((64 << 10..=most).contains(&peak), "memory peak {peak}");
        }
        if let Some(disk) = used.disk_bytes {
            check!((8 * MIB..=10 * MIB).contains(&disk), "disk {disk}");
        }
        Ok(())
    })
}
