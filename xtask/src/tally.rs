//! Counting what passed, failed and was skipped, and saying so at the end.

/// Counts over steps, with a line for everything that did not simply pass.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// How many passed.
    pub(crate) passed: u64,
    /// One line each.
    failures: Vec<String>,
    /// `name: reason`, one each.
    skips: Vec<String>,
    /// Tests that failed and then passed, one line each.
    flaky: Vec<String>,
    /// Closing lines of test runners, as they printed them.
    summaries: Vec<String>,
}

impl Tally {
    /// Counts a failure.
    pub(crate) fn fail(&mut self, what: &str) {
        self.failures.push(what.to_owned());
    }

    /// Counts a skip, each once. The reason says what is missing.
    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        let skip = format!("{name}: {reason}");
        if !self.skips.contains(&skip) {
            self.skips.push(skip);
        }
    }

    /// Names a test that failed at first and passed when it was tried again. Its pass is counted by its runner.
    pub(crate) fn flaky(&mut self, what: &str) {
        self.flaky.push(what.to_owned());
    }

    /// Keeps the closing line of a test runner.
    pub(crate) fn summary(&mut self, line: &str) {
        self.summaries.push(line.to_owned());
    }

    /// Adds the counts of another.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failures.extend(other.failures);
        self.flaky.extend(other.flaky);
        for skip in other.skips {
            if !self.skips.contains(&skip) {
                self.skips.push(skip);
            }
        }
        self.summaries.extend(other.summaries);
    }

    /// Whether nothing failed and something passed.
    pub(crate) fn good(&self) -> bool {
        self.failures.is_empty() && self.passed > 0
    }

    /// The closing lines: skips and failures by name, the runners' own lines, then the counts alone on
    /// the last line.
    pub(crate) fn closing(&self) -> String {
        let mut text = String::new();
        for skip in &self.skips {
            text.push_str(&format!("skipped: {skip}\n"));
        }
        for test in &self.flaky {
            text.push_str(&format!("flaky, passed at the second try: {test}\n"));
        }
        for failure in &self.failures {
            text.push_str(&format!("failed: {failure}\n"));
        }
        for summary in &self.summaries {
            text.push_str(summary);
            text.push('\n');
        }
        text.push_str(&format!(
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failures.len(),
            self.skips.len()
        ));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_run_is_not_good() {
        let mut tally = Tally::default();
        assert!(!tally.good());
        tally.passed = 1;
        assert!(tally.good());
        tally.fail("x");
        assert!(!tally.good());
    }

    #[test]
    fn the_last_line_holds_the_counts_alone() {
        let mut tally = Tally {
            passed: 3,
            ..Tally::default()
        };
        tally.skip("a", "no loop device");
        tally.fail("b");
        assert_eq!(
            tally.closing(),
            "skipped: a: no loop device\nfailed: b\n3 passed, 1 failed, 1 skipped"
        );
    }
}
