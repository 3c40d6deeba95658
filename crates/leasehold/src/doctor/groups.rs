//! What control groups can do here, from where a supervisor stands: made and looked at for real, then
//! removed.

use std::path::PathBuf;

use leasehold_jail::cgroup::{Cgroups, Controls, Layout, scope_of};

use super::facts::Facts;
use super::mend;
use super::report::{Check, Section, State};

/// What was seen.
pub(crate) struct Groups {
    found: Result<Controls, String>,
    layout: Layout,
    /// The groups in which ours are made.
    places: Vec<PathBuf>,
    /// systemd's scope in which the supervisor stands.
    scope: Option<String>,
    /// Whether there was a supervisor to look from.
    tried: bool,
}

impl Groups {
    /// Looks from where the supervisor of this process id stands; without one, from here.
    pub(crate) fn look(supervisor: Option<u32>) -> Self {
        let instance = format!("dr{}", std::process::id());
        let from_there = supervisor.and_then(|pid| Cgroups::discover_beside(&instance, pid).ok());
        let mut seen = Self {
            found: Err(String::new()),
            layout: Layout::None,
            places: Vec::new(),
            scope: supervisor.and_then(scope_of),
            tried: supervisor.is_some(),
        };
        match from_there.map_or_else(|| Cgroups::discover(&instance), Ok) {
            Ok(cgroups) => {
                seen.layout = cgroups.layout();
                let places = cgroups.places();
                seen.places = places
                    .iter()
                    .filter_map(|place| Some(place.parent()?.to_owned()))
                    .collect();
                seen.found = Ok(cgroups.can().clone());
                cgroups.remove_base();
            }
            Err(error) => seen.found = Err(error.to_string()),
        }
        seen
    }

    /// The layout's word.
    pub(crate) fn layout(&self) -> &'static str {
        self.layout.word()
    }

    /// One line about whose groups are used and one per control. `refusal` is what the supervisor said
    /// when it was asked for a limit that it cannot hold. Nothing here breaks a promise: what cannot be
    /// held is refused.
    pub(crate) fn checks(&self, facts: &Facts, refusal: Option<&str>) -> Vec<Check> {
        match &self.found {
            Ok(can) if !self.tried && !can.complete() && would_ask(facts) => {
                let why =
                    "systemd would be asked for a scope; not tried, as asked with --no-probes";
                vec![line("delegation", State::Unclear, why)]
            }
            Ok(can) => {
                let first = self.delegation(facts, can, refusal);
                let said = first.mend.clone();
                let mut lines = vec![first];
                lines.extend(judge(facts, can, refusal, said));
                lines
            }
            Err(why) => vec![line("groups", State::Unclear, why.clone())],
        }
    }

    /// Whose groups are used.
    fn delegation(&self, facts: &Facts, can: &Controls, refusal: Option<&str>) -> Check {
        const WHAT: &str = "delegation";
        if let Some(scope) = &self.scope {
            let mut why =
                format!("scope {scope}: asked of systemd when the supervisor starts, gone with it");
            if !facts.root() && !facts.lingers {
                why.push_str(
                    "; ends with your last session, unless `loginctl enable-linger` keeps it",
                );
            }
            return line(WHAT, State::Ok, why);
        }
        if can.complete() {
            let first = self.places.first().map(|place| place.display().to_string());
            let more = match self.places.len() {
                0 | 1 => String::new(),
                count => format!(" and {} more", count - 1),
            };
            let why = format!("own groups, in {}{more}", first.unwrap_or_default());
            return line(WHAT, State::Ok, why);
        }
        let lacking = ["memory", "pids", "cpu"]
            .into_iter()
            .zip([can.memory, can.pids, can.cpu])
            .find(|(_, here)| !here)
            .map_or("memory", |(what, _)| what);
        let off = (facts.scope_off && facts.systemd)
            .then_some("; systemd is not asked, since LEASEHOLD_SCOPE is off");
        let reason = format!(
            "none: {}{}",
            refusal.unwrap_or_else(|| can.reason(lacking)),
            off.unwrap_or_default()
        );
        let command = mend::control_groups(facts, &reason);
        let state = match command {
            Some(_) => State::Missing,
            None => State::NotHere,
        };
        line(WHAT, state, reason).mend(command)
    }
}

/// Whether a supervisor would ask systemd for a scope.
fn would_ask(facts: &Facts) -> bool {
    facts.manager && !facts.scope_off
}

fn line(what: &'static str, state: State, why: impl Into<String>) -> Check {
    Check::new(Section::ControlGroups, what, state, why)
}

/// One line per control. `said` is the command that was given already.
fn judge(
    facts: &Facts,
    can: &Controls,
    refusal: Option<&str>,
    mut said: Option<String>,
) -> Vec<Check> {
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
    let mut lines = Vec::new();
    for (what, here, good) in rows {
        if here {
            lines.push(line(what, State::Ok, good));
            continue;
        }
        let reason = can.reason(what);
        // A device program needs rights of the host that no delegation gives.
        let command = match what {
            "devices" => None,
            _ => mend::control_groups(facts, refusal.unwrap_or(reason)),
        };
        let state = match command {
            Some(_) => State::Missing,
            None => State::NotHere,
        };
        // One command mends several lines; it is said with the first.
        let command = command.filter(|command| said.as_ref() != Some(command));
        said = command.clone().or(said);
        lines.push(line(what, state, reason).mend(command));
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

    fn gap(control: &'static str) -> Missing {
        Missing {
            control,
            reason: "not writable by uid 1000".to_owned(),
        }
    }

    fn bare() -> Controls {
        Controls {
            missing: ["memory", "pids", "cpu", "devices"].map(gap).to_vec(),
            ..Controls::default()
        }
    }

    fn whole() -> Controls {
        Controls {
            memory: true,
            pids: true,
            cpu: true,
            ..Controls::default()
        }
    }

    fn seen(can: Controls, scope: Option<&str>, tried: bool) -> Groups {
        Groups {
            found: Ok(can),
            layout: Layout::V2,
            places: vec!["/sys/fs/cgroup/a".into(), "/b".into()],
            scope: scope.map(str::to_owned),
            tried,
        }
    }

    fn user() -> Facts {
        Facts {
            uid: 1000,
            user: Some("ann".to_owned()),
            systemd: true,
            pure_v2: true,
            manager: true,
            ..Facts::default()
        }
    }

    #[test]
    fn what_is_missing_has_its_reason_and_the_mend_is_said_once() {
        let facts = Facts {
            uid: 1000,
            ..Facts::default()
        };
        let lines = seen(bare(), None, true).checks(&facts, None);
        assert_eq!(lines.len(), 8);
        assert!(lines.iter().all(|line| !line.breaks_a_promise));
        assert_eq!(lines[0].what, "delegation");
        assert!(lines[0].mend.is_some());
        assert!(lines[1..].iter().all(|line| line.mend.is_none()));
        assert_eq!(lines[7].state, State::NotHere);
    }

    #[test]
    fn the_delegation_line_says_whose_groups_are_used() {
        let facts = user();
        let first =
            |groups: Groups, facts: &Facts, refusal| groups.checks(facts, refusal).remove(0);
        let scope = "leasehold-0a-7.scope";
        let in_scope = first(seen(whole(), Some(scope), true), &facts, None);
        assert_eq!((in_scope.state, in_scope.mend), (State::Ok, None));
        assert!(in_scope.why.starts_with("scope leasehold-0a-7.scope: "));
        assert!(in_scope.why.contains("enable-linger"));
        let lingers = Facts {
            lingers: true,
            ..user()
        };
        let kept = first(seen(whole(), Some(scope), true), &lingers, None);
        assert!(!kept.why.contains("enable-linger"), "{}", kept.why);
        let own = first(seen(whole(), None, true), &facts, None);
        assert_eq!(own.why, "own groups, in /sys/fs/cgroup/a and 1 more");

        let refusal = "limit `memory` cannot be enforced here: not writable; no systemd manager of \
                       this user listens at /x";
        let none = first(seen(bare(), None, true), &facts, Some(refusal));
        assert_eq!(none.state, State::Missing);
        assert!(none.why.starts_with("none: ") && none.why.contains("listens at /x"));
        assert_eq!(
            none.mend.as_deref(),
            Some("sudo loginctl enable-linger ann")
        );
        let off = Facts {
            scope_off: true,
            ..user()
        };
        let none = first(seen(bare(), None, true), &off, None);
        assert!(none.why.contains("LEASEHOLD_SCOPE is off"), "{}", none.why);
        assert_eq!(none.mend.as_deref(), Some("unset LEASEHOLD_SCOPE"));
    }

    #[test]
    fn without_probes_a_scope_is_not_asked_for_and_nothing_is_called_missing() {
        let lines = seen(bare(), None, false).checks(&user(), None);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].state, State::Unclear);
        let no_manager = Facts {
            manager: false,
            ..user()
        };
        let lines = seen(bare(), None, false).checks(&no_manager, None);
        assert_eq!(lines[0].state, State::Missing);
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
        let last = |facts: &Facts| judge(facts, &can, None, None).pop().unwrap();
        assert_eq!(last(&facts).state, State::Ok);
        facts.swap = true;
        assert_eq!(last(&facts).mend.as_deref(), Some("swapoff -a"));
    }
}
