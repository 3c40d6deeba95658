//! `leasehold prune`: what runs left goes now, by the rule of retention or a stricter one. Needs no
//! supervisor; what a run that is not over wrote is not touched.

use std::time::{SystemTime, UNIX_EPOCH};

use leasehold_core::quantity::{format_bytes, parse_duration};
use leasehold_supervisor::retention::{COUNT_MAX, Pass, Pruned, Pruner, Retention};
use serde::Serialize;

use crate::cli::PruneFlags;
use crate::fault::Fault;
use crate::{env, place, show, voice};

/// What was done, as JSON.
#[derive(Debug, Serialize)]
struct Report<'a> {
    dry_run: bool,
    pruned: &'a [Pruned],
    /// Runs that could not be pruned.
    failures: u64,
}

/// `leasehold prune`.
///
/// # Errors
/// When a flag or variable is wrong or the records cannot be read. What could not be pruned is told,
/// with status 125.
pub(crate) fn prune(flags: &PruneFlags) -> Result<u8, Fault> {
    let retention = rule(flags, env::retention()?)?;
    let records = show::store(&place::paths()?)?;
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    let mut pruner = Pruner::new(retention, now, flags.dry_run);
    loop {
        let pass = pruner.step(&records);
        let pass = pass.map_err(|error| Fault::host("cannot list the runs").because(&error))?;
        if pass == Pass::Over {
            break;
        }
    }
    if flags.json {
        voice::json(&Report {
            dry_run: flags.dry_run,
            pruned: &pruner.pruned,
            failures: pruner.failures,
        })?;
    } else {
        voice::data(told(&pruner.pruned, flags.dry_run).as_bytes())?;
    }
    if pruner.failures > 0 {
        let text = format!("error: {} runs could not be pruned", pruner.failures);
        voice::note(&text);
        return Ok(125);
    }
    Ok(0)
}

/// The rule of the environment with what the flags say instead.
fn rule(flags: &PruneFlags, rule: Retention) -> Result<Retention, Fault> {
    let mut rule = rule;
    if let Some(text) = &flags.older_than {
        rule.age = parse_duration(text)
            .map_err(|error| Fault::usage(format!("`--older-than`: {error}")))?;
    }
    if let Some(text) = &flags.keep {
        let count = text
            .parse()
            .ok()
            .filter(|count| (1..=COUNT_MAX).contains(count));
        rule.runs = count.ok_or_else(|| {
            let shown = voice::clean(text);
            Fault::usage(format!(
                "`--keep` is `{shown}`: a whole number from 1 to {COUNT_MAX} is needed"
            ))
            .hint("the newest run always keeps its output")
        })?;
    }
    Ok(rule)
}

/// What was pruned in words.
fn told(pruned: &[Pruned], dry_run: bool) -> String {
    if pruned.is_empty() {
        return "nothing is to be pruned\n".to_owned();
    }
    let done = if dry_run { "would be pruned" } else { "pruned" };
    let mut text = String::new();
    for one in pruned {
        let what = if one.record {
            "output and record"
        } else {
            "output"
        };
        let bytes = format_bytes(one.output_bytes);
        text.push_str(&format!("run {} {what} {done}, {bytes}\n", one.run));
    }
    let bytes = pruned.iter().map(|one| one.output_bytes).sum();
    let (count, bytes) = (pruned.len(), format_bytes(bytes));
    text.push_str(&format!("{count} runs {done}, {bytes} in all\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::id::RunId;
    use std::time::Duration;

    fn flags(older_than: Option<&str>, keep: Option<&str>) -> PruneFlags {
        PruneFlags {
            dry_run: false,
            older_than: older_than.map(str::to_owned),
            keep: keep.map(str::to_owned),
            json: false,
        }
    }

    #[test]
    fn a_flag_takes_the_place_of_one_bound_and_nonsense_is_named() {
        let whole = Retention::default();
        let rule = |older, keep| rule(&flags(older, keep), whole);
        assert_eq!(rule(None, None).unwrap(), whole);
        let age = Duration::from_secs(7 * 86_400);
        assert_eq!(rule(Some("7d"), None).unwrap(), Retention { age, ..whole });
        assert_eq!(
            rule(None, Some("3")).unwrap(),
            Retention { runs: 3, ..whole }
        );
        for keep in ["0", "-1", "all", "10000001"] {
            let fault = rule(None, Some(keep)).unwrap_err();
            assert!(fault.chain().contains(&format!("`--keep` is `{keep}`")));
            assert_eq!(fault.status(), 2);
        }
        assert!(rule(Some("yesterday"), None).is_err());
    }

    #[test]
    fn the_report_names_each_run_and_the_sum() {
        assert_eq!(told(&[], true), "nothing is to be pruned\n");
        let one = |record| Pruned {
            run: RunId::from_entropy(&[1; 13]),
            output_bytes: 1_024,
            record,
        };
        let text = told(&[one(false), one(true)], false);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains(" output pruned, ") && text.contains(" output and record pruned, "));
        assert!(text.ends_with("2 runs pruned, 2 KiB in all\n"), "{text}");
        assert!(told(&[one(false)], true).contains("would be pruned"));
    }
}
