//! What control groups can do here: made and looked at for real, then removed.

use leasehold_jail::cgroup::{Cgroups, Controls, Layout};

use super::facts::Facts;
use super::mend;
use super::report::{Check, Section, State};

/// Lines about control groups, and the layout's word.
pub(crate) fn checks(facts: &Facts) -> (Vec<Check>, &'static str) {
    let cgroups = match Cgroups::discover(&format!("dr{}", std::process::id())) {
        Ok(cgroups) => cgroups,
        Err(error) => {
            let why = error.to_string();
            let line = Check::new(Section::ControlGroups, "groups", State::Unclear, why);
            return (vec![line], Layout::None.word());
        }
    };
    let layout = cgroups.layout();
    let lines = judge(facts, cgroups.can());
    cgroups.remove_base();
    (lines, layout.word())
}

/// One line per control. Nothing here breaks a promise: what cannot be held is refused.
fn judge(facts: &Facts, can: &Controls) -> Vec<Check> {
    let rows = [
        ("memory", can.memory, "limited and counted"),
        ("pids", can.pids, "limited and counted"),
        ("cpu", can.cpu, "the share is limited"),
        ("cpu_time", can.cpu_time, "counted"),
        ("kill", can.kill, "the whole group in one call"),
        ("freeze", can.freeze, "the whole group"),
        (
            "devices",
            can.devices,
            "a second layer behind the sandbox's own /dev",
        ),
    ];
    let mut said = None;
    let mut lines = Vec::new();
    for (what, here, good) in rows {
        if here {
            let line = Check::new(Section::ControlGroups, what, State::Ok, good);
            lines.push(line);
            continue;
        }
        let reason = can.reason(what);
        // A device program needs rights of the host that no delegation gives.
        let command = match what {
            "devices" => None,
            _ => mend::control_groups(facts, reason),
        };
        let state = match command {
            Some(_) => State::Missing,
            None => State::NotHere,
        };
        // One command mends several lines; it is said with the first.
        let command = command.filter(|command| said.as_ref() != Some(command));
        said = command.clone().or(said);
        lines.push(Check::new(Section::ControlGroups, what, state, reason).mend(command));
    }
    if can.missing.iter().any(|gap| gap.control == "swap") {
        lines.push(swap(facts));
    }
    lines
}

/// Where swap cannot be bounded per group, memory is refused while any is on.
fn swap(facts: &Facts) -> Check {
    const WHAT: &str = "swap";
    if facts.swap {
        let why = "not bounded per group here, and on: no memory limit is promised";
        Check::new(Section::ControlGroups, WHAT, State::Missing, why)
            .mend(Some(format!("{}swapoff -a", facts.sudo())))
    } else {
        let why = "not bounded per group here, and none is on";
        Check::new(Section::ControlGroups, WHAT, State::Ok, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_jail::cgroup::Missing;

    #[test]
    fn what_is_missing_has_its_reason_and_the_mend_is_said_once() {
        let facts = Facts {
            uid: 1000,
            ..Facts::default()
        };
        let gap = |control| Missing {
            control,
            reason: "not writable by uid 1000".to_owned(),
        };
        let can = Controls {
            missing: vec![gap("memory"), gap("pids"), gap("devices")],
            ..Controls::default()
        };
        let lines = judge(&facts, &can);
        assert_eq!(lines.len(), 7);
        assert!(lines.iter().all(|line| !line.breaks_a_promise));
        let mends = lines.iter().filter(|line| line.mend.is_some()).count();
        assert_eq!(mends, 1);
        assert_eq!(lines[6].state, State::NotHere);
    }

    #[test]
    fn swap_that_is_on_and_not_bounded_is_named_with_its_mend() {
        let can = Controls {
            missing: vec![Missing {
                control: "swap",
                reason: "not bounded".to_owned(),
            }],
            ..Controls::default()
        };
        let mut facts = Facts::default();
        let last = |facts: &Facts| judge(facts, &can).pop().unwrap();
        assert_eq!(last(&facts).state, State::Ok);
        facts.swap = true;
        assert_eq!(last(&facts).mend.as_deref(), Some("swapoff -a"));
    }
}
