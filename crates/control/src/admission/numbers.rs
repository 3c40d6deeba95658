//! Limits, lifetimes, retention and shares: what is asked, what the tool says, what policy bounds.
//!
//! A caller who asks for more than tool or policy allow is refused. What a tool says is lowered to what
//! policy allows, with a warning. What nobody named is our default, lowered in silence. A limit that a
//! published policy bounds is a promise like one that was asked for; the built-in policy is a default.

use leasehold_core::error::PublicError;
use leasehold_core::limits::{Limit, Limits, OnDenied, OnOutputLimit, Origin};
use leasehold_core::policy::Number;
use leasehold_core::run_contract::{AllocationTerms, AuthorityTerms, RetentionTerms};

use super::{Case, invalid};
use crate::plan::Share;

/// Time a lease has beside wall limit and grace: to unpack, start and collect.
const SLACK_MS: u64 = 60_000;
const DAY_MS: u64 = 86_400_000;

/// Every number of a run.
#[derive(Debug, Clone)]
pub(super) struct Settled {
    pub(super) limits: Limits,
    pub(super) allocation: AllocationTerms,
    pub(super) authority: AuthorityTerms,
    pub(super) retention: RetentionTerms,
    pub(super) share: Share,
    pub(super) priority: i32,
    pub(super) max_wait_ms: u64,
}

/// One number as settled.
#[derive(Debug, Clone, Copy)]
struct Chosen {
    value: u64,
    origin: Origin,
}

struct Settling<'a, 'w> {
    case: Case<'a>,
    warnings: &'w mut Vec<String>,
}

impl Settling<'_, '_> {
    /// The number, from caller, tool or `fallback`, in that order, within tool and policy.
    fn number(&mut self, number: Number, fallback: u64) -> Result<Chosen, PublicError> {
        let asked = self.case.request.asked.get(number);
        let tool = self
            .case
            .manifest()
            .and_then(|manifest| manifest.limits.get(number));
        let cap = self.case.policy().cap(number);
        if let Some(asked) = asked {
            let over = match (tool, cap) {
                (Some(most), _) if asked > most => Some((most, "the tool".to_owned())),
                (_, Some((most, level))) if asked > most => {
                    Some((most, format!("policy {}", level.title())))
                }
                _ => None,
            };
            if let Some((most, who)) = over {
                return Err(invalid(format!(
                    "{}: {}: {who} allows at most {}",
                    number.path(),
                    number.show(asked),
                    number.show(most)
                )));
            }
        }
        let wanted = asked.or(tool).unwrap_or(fallback);
        let value = cap.map_or(wanted, |(most, _)| wanted.min(most));
        if let Some((most, level)) = cap
            && value < wanted
            && tool.is_some()
        {
            self.warnings.push(format!(
                "{}: the tool asks for {}; policy {} allows {}",
                number.path(),
                number.show(wanted),
                level.title(),
                number.show(most)
            ));
        }
        let promised = asked.or(tool).is_some() || cap.is_some_and(|(_, level)| level.version > 0);
        Ok(Chosen {
            value,
            origin: match promised {
                true => Origin::Asked,
                false => Origin::Defaulted,
            },
        })
    }

    fn limit<T: TryFrom<u64> + Copy>(
        &mut self,
        number: Number,
        default: T,
    ) -> Result<Limit<T>, PublicError>
    where
        u64: From<T>,
    {
        let settled = self.number(number, default.into())?;
        Ok(Limit {
            value: T::try_from(settled.value).unwrap_or(default),
            origin: settled.origin,
        })
    }
}

pub(super) fn settle(case: Case<'_>, warnings: &mut Vec<String>) -> Result<Settled, PublicError> {
    let mut settling = Settling { case, warnings };
    let mut limits = limits(&mut settling)?;
    let allocation = allocation(&mut settling, &mut limits)?;
    let most = allocation.hard_deadline_ms;
    let authority = AuthorityTerms {
        lease_ms: settling.number(Number::Lease, most)?.value.min(most),
        credentials_ms: settling.number(Number::Credentials, most)?.value.min(most),
    };
    let retention = RetentionTerms {
        logs_s: settling.number(Number::Logs, 7 * DAY_MS)?.value / 1_000,
        artifacts_s: settling.number(Number::Artifacts, 7 * DAY_MS)?.value / 1_000,
        record_s: settling.number(Number::Record, 90 * DAY_MS)?.value / 1_000,
    };
    let priority = case.request.priority;
    if let Some((most, level)) = case.policy().cap(Number::Priority)
        && i64::from(priority) > i64::try_from(most).unwrap_or(i64::MAX)
    {
        return Err(invalid(format!(
            "priority: {priority}: policy {} allows at most {most}",
            level.title()
        )));
    }
    let max_wait_ms = settling.number(Number::MaxWait, 60_000)?.value;
    Ok(Settled {
        limits,
        allocation,
        authority,
        retention,
        share: share(case),
        priority,
        max_wait_ms,
    })
}

fn limits(settling: &mut Settling<'_, '_>) -> Result<Limits, PublicError> {
    let default = Limits::default();
    let on_output = settling.case.request.asked.on_output.or(settling
        .case
        .manifest()
        .and_then(|manifest| manifest.limits.on_output));
    let on_denied = on_denied(settling.case);
    let cpu_time = cpu_time(settling)?;
    let mut limits = Limits {
        cpu_milli: settling.limit(Number::Cpu, default.cpu_milli.value)?,
        memory_bytes: settling.limit(Number::Memory, default.memory_bytes.value)?,
        disk_bytes: settling.limit(Number::Disk, default.disk_bytes.value)?,
        inodes: settling.limit(Number::Inodes, default.inodes.value)?,
        pids: settling.limit(Number::Pids, default.pids.value)?,
        files: settling.limit(Number::Files, default.files.value)?,
        wall_ms: settling.limit(Number::Wall, default.wall_ms.value)?,
        cpu_time_ms: cpu_time,
        grace_ms: settling.number(Number::Grace, default.grace_ms)?.value,
        output_bytes: settling.limit(Number::Output, default.output_bytes.value)?,
        on_output_limit: on_output.unwrap_or(OnOutputLimit::Cut),
        on_denied,
    };
    // A disk that only policy bounds may shrink with the memory, and is a promise all the same.
    let named = settling.case.request.asked.get(Number::Disk).is_some()
        || settling
            .case
            .manifest()
            .is_some_and(|manifest| manifest.limits.get(Number::Disk).is_some());
    if !named {
        let origin = limits.disk_bytes.origin;
        limits.disk_bytes.origin = Origin::Defaulted;
        limits = limits.settled();
        limits.disk_bytes.origin = origin;
    }
    limits
        .check()
        .map_err(|error| invalid(format!("limits: {error}")))?;
    Ok(limits)
}

/// The stricter of what caller and tool say.
fn on_denied(case: Case<'_>) -> OnDenied {
    let tool = case
        .manifest()
        .and_then(|manifest| manifest.limits.on_denied);
    let kills = [case.request.asked.on_denied, tool].contains(&Some(OnDenied::Kill));
    match kills {
        true => OnDenied::Kill,
        false => OnDenied::Note,
    }
}

/// There is no default of processor time: it holds where somebody names it or policy bounds it.
fn cpu_time(settling: &mut Settling<'_, '_>) -> Result<Option<Limit<u64>>, PublicError> {
    let settled = settling.number(Number::CpuTime, u64::MAX)?;
    Ok((settled.value != u64::MAX).then_some(Limit {
        value: settled.value,
        origin: settled.origin,
    }))
}

/// The hard deadline, which leaves room for wall limit and grace.
fn allocation(
    settling: &mut Settling<'_, '_>,
    limits: &mut Limits,
) -> Result<AllocationTerms, PublicError> {
    let least = limits.wall_ms.value.saturating_add(limits.grace_ms);
    let hard = settling.number(Number::HardDeadline, least.saturating_add(SLACK_MS))?;
    if hard.value < least {
        let asked = settling.case.request.asked.get(Number::Wall).is_some()
            || settling
                .case
                .request
                .asked
                .get(Number::HardDeadline)
                .is_some();
        let room = hard.value.saturating_sub(limits.grace_ms);
        if asked || room == 0 {
            return Err(invalid(format!(
                "lifetimes.hard_deadline: {}: it must leave room for limits.timeout {} and limits.grace {}",
                Number::HardDeadline.show(hard.value),
                Number::Wall.show(limits.wall_ms.value),
                Number::Grace.show(limits.grace_ms),
            )));
        }
        limits.wall_ms.value = room;
    }
    Ok(AllocationTerms {
        hard_deadline_ms: hard.value,
        idle_timeout_ms: None,
    })
}

fn share(case: Case<'_>) -> Share {
    let cap = |number: Number, most: u32| {
        let cap = case.policy().cap(number).map(|(value, _)| value);
        cap.map_or(most, |value| u32::try_from(value).unwrap_or(u32::MAX))
    };
    let tool = case
        .known
        .tool
        .as_ref()
        .map(|(row, _)| row.tool.tool.clone());
    Share {
        weight: cap(Number::Weight, 1),
        tenant_running_max: cap(Number::Running, u32::MAX),
        tenant_queued_max: cap(Number::Queued, u32::MAX),
        tool_running_max: case
            .policy()
            .cap(Number::ToolRunning)
            .and_then(|(value, _)| Some((tool?, u32::try_from(value).unwrap_or(u32::MAX)))),
        per_minute_max: cap(Number::PerMinute, u32::MAX),
        tenant_request_bytes_max: case
            .policy()
            .cap(Number::RequestBytes)
            .map_or(u64::MAX, |(most, _)| most),
    }
}
