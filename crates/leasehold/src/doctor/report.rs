//! What the doctor says, for people and as JSON.

use leasehold_core::quantity::format_micros;
use serde::Serialize;

use super::facts::Facts;
use crate::voice::clean;

/// Format version of [`Report`].
const VERSION: u32 = 1;

/// How one thing stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// It is there and works.
    Ok,
    /// It should be there, and somebody can put it there.
    Missing,
    /// This host or this build has none.
    NotHere,
    /// A limit was breached on purpose and held.
    Enforced,
    /// A limit was breached on purpose and did not hold.
    NotEnforced,
    /// A limit is refused here, so nothing is promised.
    Refused,
    /// It could not be told.
    Unclear,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Missing => "missing",
            Self::NotHere => "not here",
            Self::Enforced => "enforced",
            Self::NotEnforced => "NOT ENFORCED",
            Self::Refused => "refused",
            Self::Unclear => "unclear",
        }
    }
}

/// Where a line stands in the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Section {
    /// Ways to make a sandbox.
    Backends,
    /// Limits, each breached on purpose.
    Limits,
    /// What holds limits.
    ControlGroups,
    /// The rest of the host.
    Host,
}

impl Section {
    const ALL: [Self; 4] = [
        Self::Backends,
        Self::Limits,
        Self::ControlGroups,
        Self::Host,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Backends => "Backends",
            Self::Limits => "Limits (each was breached on purpose just now)",
            Self::ControlGroups => "Control groups",
            Self::Host => "Host",
        }
    }
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// Where it stands.
    pub(crate) section: Section,
    /// What it is about.
    pub(crate) what: &'static str,
    /// How it stands.
    pub(crate) state: State,
    /// Why, in words.
    pub(crate) why: String,
    /// The one command that mends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mend: Option<String>,
    /// The command that breached it, for `sh -c`, so that anybody can do it again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) script: Option<String>,
    /// Whether something promised does not hold because of it.
    pub(crate) breaks_a_promise: bool,
}

impl Check {
    pub(crate) fn new(
        section: Section,
        what: &'static str,
        state: State,
        why: impl Into<String>,
    ) -> Self {
        Self {
            section,
            what,
            state,
            why: why.into(),
            mend: None,
            script: None,
            breaks_a_promise: false,
        }
    }

    /// Adds the mend, where one is known.
    #[must_use]
    pub(crate) fn mend(mut self, command: Option<impl Into<String>>) -> Self {
        self.mend = command.map(Into::into);
        self
    }

    /// Something promised does not hold because of it.
    #[must_use]
    pub(crate) fn breaks(mut self) -> Self {
        self.breaks_a_promise = true;
        self
    }
}

/// How long one thing takes here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Timing {
    /// What was timed.
    pub(crate) what: &'static str,
    /// Its median in microseconds.
    pub(crate) micros: u64,
    /// What it means for a run.
    pub(crate) meaning: &'static str,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    version: u32,
    /// This process, whose number is in the names of what it makes meanwhile.
    pid: u32,
    /// Whether everything promised holds.
    pub(crate) ok: bool,
    /// `root` or `user`: who would make sandboxes.
    maker: &'static str,
    uid: u32,
    kernel: String,
    /// `v1`, `v2`, `hybrid` or `none`.
    cgroup: &'static str,
    /// Every line.
    pub(crate) checks: Vec<Check>,
    /// Every timing.
    pub(crate) timings: Vec<Timing>,
    /// Time the probes took in microseconds.
    pub(crate) took_micros: u64,
}

impl Report {
    pub(crate) fn new(facts: &Facts, cgroup: &'static str) -> Self {
        Self {
            version: VERSION,
            pid: std::process::id(),
            ok: true,
            maker: if facts.root() { "root" } else { "user" },
            uid: facts.uid,
            kernel: facts.kernel.clone(),
            cgroup,
            checks: Vec::new(),
            timings: Vec::new(),
            took_micros: 0,
        }
    }

    /// What the supervisor said when it was asked for a limit and refused it.
    pub(crate) fn refusal(&self, what: &str) -> Option<&str> {
        let refused = |check: &&Check| {
            check.section == Section::Limits && check.what == what && check.state == State::Refused
        };
        self.checks
            .iter()
            .find(refused)
            .map(|check| check.why.as_str())
    }

    /// Decides whether everything promised holds.
    pub(crate) fn settle(&mut self) {
        self.ok = !self.checks.iter().any(|check| check.breaks_a_promise);
    }

    /// The report for people.
    pub(crate) fn told(&self) -> String {
        let who = match self.maker {
            "root" => "as root".to_owned(),
            _ => format!("as ordinary user {}", self.uid),
        };
        let mut text = format!(
            "Linux {}, control groups {}, {who}\n",
            clean(&self.kernel),
            self.cgroup
        );
        let mut mends = Vec::new();
        for section in Section::ALL {
            let lines: Vec<&Check> = self
                .checks
                .iter()
                .filter(|check| check.section == section)
                .collect();
            if lines.is_empty() {
                continue;
            }
            text.push_str(&format!("\n{}\n", section.title()));
            for check in lines {
                text.push_str(&line(check, &mut mends));
            }
        }
        text.push_str(&self.told_timings());
        text.push_str(&self.verdict());
        text
    }

    fn told_timings(&self) -> String {
        if self.timings.is_empty() {
            return String::new();
        }
        let mut text = String::from("\nTime (median on this host just now)\n");
        for timing in &self.timings {
            let time = format_micros(timing.micros);
            text.push_str(&format!(
                "  {time:>9}  {:<20} {}\n",
                timing.what, timing.meaning
            ));
        }
        text
    }

    fn verdict(&self) -> String {
        let names = |want: fn(&Check) -> bool| {
            let found: Vec<&str> = self
                .checks
                .iter()
                .filter(|check| want(check))
                .map(|check| check.what)
                .collect();
            found
        };
        let broken = names(|check| check.breaks_a_promise && check.state != State::Unclear);
        if !broken.is_empty() {
            let broken = broken.join(", ");
            return format!("\nDo not rely on this host: {broken} does not hold.\n");
        }
        let unclear = names(|check| check.breaks_a_promise);
        if !unclear.is_empty() {
            let unclear = unclear.join(", ");
            return format!("\nNot seen to hold on this host: {unclear}.\n");
        }
        let tried =
            names(|check| check.what == "process" && check.state == State::Unclear).is_empty();
        if !tried {
            return "\nNothing was tried; without --no-probes every limit is made to bite.\n"
                .to_owned();
        }
        let refused = names(|check| check.state == State::Refused);
        let mut text = "\nEverything that is promised here holds.".to_owned();
        if !refused.is_empty() {
            text.push_str(&format!(
                " Not promised, and refused when asked for: {}.",
                refused.join(", ")
            ));
        }
        text + "\n"
    }
}

/// Columns before the reason.
const INDENT: usize = 32;
/// Where reasons are broken into lines.
const WIDTH: usize = 100;

fn line<'a>(check: &'a Check, mends: &mut Vec<&'a str>) -> String {
    let mut text = format!("  {:<12}  {:<15} ", check.state.word(), check.what);
    let mut column = INDENT;
    for word in clean(&check.why).split(' ') {
        if column + 1 + word.chars().count() > WIDTH && column > INDENT {
            text.push_str(&format!("\n{:INDENT$}", ""));
            column = INDENT;
        }
        text.push_str(&format!(" {word}"));
        column += 1 + word.chars().count();
    }
    text.push('\n');
    if let Some(mend) = &check.mend {
        // Commands are ours and have no control characters; they must be copied as they are.
        if mends.contains(&mend.as_str()) {
            text.push_str(&format!("{:INDENT$} mend: the command above\n", ""));
        } else {
            text.push_str(&format!("  mend: {mend}\n"));
            mends.push(mend);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(checks: Vec<Check>) -> Report {
        let mut report = Report::new(&Facts::default(), "v2");
        report.checks = checks;
        report.settle();
        report
    }

    #[test]
    fn a_broken_promise_is_said_aloud_and_a_refusal_is_none() {
        let refused = Check::new(Section::Limits, "memory", State::Refused, "no groups")
            .mend(Some("sudo true"));
        let good = report(vec![refused.clone()]);
        assert!(good.ok);
        let told = good.told();
        assert!(
            told.contains("refused       memory           no groups\n"),
            "{told}"
        );
        assert!(told.contains("mend: sudo true\n"), "{told}");
        assert!(told.contains("Everything that is promised here holds."));
        assert!(told.ends_with("refused when asked for: memory.\n"));

        let broken = Check::new(Section::Limits, "pids", State::NotEnforced, "64 ran").breaks();
        let bad = report(vec![refused, broken]);
        assert!(!bad.ok);
        assert!(bad.told().contains("NOT ENFORCED  pids"));
        assert!(
            bad.told()
                .ends_with("Do not rely on this host: pids does not hold.\n")
        );
    }

    #[test]
    fn what_was_not_tried_is_not_said_to_hold() {
        let looked = report(vec![Check::new(
            Section::Backends,
            "process",
            State::Unclear,
            "not tried",
        )]);
        assert!(looked.told().contains("\nNothing was tried;"));
        assert!(!looked.told().contains("Everything that is promised"));
    }

    #[test]
    fn long_reasons_are_broken_and_a_command_is_given_once() {
        let why = "word ".repeat(40);
        let check = |what| {
            Check::new(Section::Host, what, State::Missing, why.trim()).mend(Some("sudo true"))
        };
        let told = report(vec![check("a"), check("b")]).told();
        assert!(
            told.lines().all(|line| line.chars().count() <= WIDTH),
            "{told}"
        );
        assert_eq!(told.matches("sudo true").count(), 1);
        assert_eq!(told.matches("mend: the command above").count(), 1);
    }

    #[test]
    fn the_json_has_the_fields_that_scripts_use() {
        let check = Check::new(Section::ControlGroups, "cpu", State::NotHere, "why");
        let value = serde_json::to_value(report(vec![check])).unwrap();
        assert_eq!(value["ok"], true);
        assert_eq!(value["checks"][0]["section"], "control_groups");
        assert_eq!(value["checks"][0]["state"], "not_here");
        assert_eq!(value["checks"][0]["breaks_a_promise"], false);
        assert!(value["checks"][0].get("mend").is_none());
    }

    #[test]
    fn what_the_host_wrote_cannot_steer_the_terminal() {
        let check = Check::new(
            Section::Host,
            "core dumps",
            State::Missing,
            "pattern \x1b[2J",
        );
        assert!(!report(vec![check]).told().contains('\x1b'));
    }
}
