//! Reading what the guest says on its second serial port.
//!
//! The guest's text is not trusted beyond its markers: a case passes only when its `::end` line with
//! status 0 was seen.

use std::collections::BTreeMap;

/// How one case went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was never begun.
    NotRun,
    /// It was begun and its end was never seen.
    Unfinished,
    /// It ended with this status after so many seconds.
    Ended(i32, u64),
}

/// What was read so far.
#[derive(Debug)]
pub(super) struct Report {
    outcomes: BTreeMap<String, Outcome>,
    /// `SKIP name: reason` lines.
    pub(super) skips: Vec<String>,
    /// Whether the guest said that it had worked through its plan.
    pub(super) done: bool,
}

impl Report {
    /// A report that waits for these cases.
    pub(super) fn of(names: impl Iterator<Item = String>) -> Self {
        Self {
            outcomes: names.map(|name| (name, Outcome::NotRun)).collect(),
            skips: Vec::new(),
            done: false,
        }
    }

    /// Takes one line.
    pub(super) fn line(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["::begin", name] => self.set(name, Outcome::Unfinished),
            ["::end", name, status, seconds] => {
                if let (Ok(status), Ok(seconds)) = (status.parse(), seconds.parse()) {
                    self.set(name, Outcome::Ended(status, seconds));
                }
            }
            ["::done"] => self.done = true,
            ["SKIP", ..] => self.skips.push(line.trim_start_matches("SKIP ").to_owned()),
            _ => {}
        }
    }

    fn set(&mut self, name: &str, outcome: Outcome) {
        if let Some(known) = self.outcomes.get_mut(name) {
            *known = outcome;
        }
    }

    /// Each case and how it went, by name.
    pub(super) fn outcomes(&self) -> impl Iterator<Item = (&String, &Outcome)> {
        self.outcomes.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_end_with_its_status_counts() {
        let mut report = Report::of(["a", "b", "c"].map(str::to_owned).into_iter());
        for line in [
            "::begin a",
            "test x ... ok",
            "test a::y ... SKIP a::y: no loop device",
            "SKIP a::y: no loop device",
            "::end a 0 3",
            "::begin b",
            "::end unknown 0 0",
            "::end b zero 0",
        ] {
            report.line(line);
        }
        let seen: Vec<_> = report
            .outcomes()
            .map(|(_, outcome)| outcome.clone())
            .collect();
        assert_eq!(
            seen,
            [Outcome::Ended(0, 3), Outcome::Unfinished, Outcome::NotRun]
        );
        assert_eq!(report.skips, ["a::y: no loop device"]);
        assert!(!report.done);
        report.line("::done");
        assert!(report.done);
    }
}
