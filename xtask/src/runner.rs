//! The test runners, and reading what they print: `cargo nextest` where it is, else `cargo test`.

use std::collections::BTreeSet;
use std::process::Command;

use crate::tally::Tally;
use crate::{step, tree};

/// Which runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runner {
    /// `cargo nextest run`: a process for each test, with a bound on its time.
    Nextest,
    /// `cargo test`, which is always there.
    Cargo,
}

impl Runner {
    /// The one that this machine has.
    pub(crate) fn here() -> Self {
        match step::which("cargo-nextest") {
            Some(_) => Self::Nextest,
            None => Self::Cargo,
        }
    }

    /// The command that runs these packages' tests. Its errors come with its output.
    pub(crate) fn command(self, chosen: &[&str]) -> Command {
        let (head, tail): (&[&str], &[&str]) = match self {
            Self::Nextest => (
                &[
                    "nextest",
                    "run",
                    "--no-fail-fast",
                    "--success-output",
                    "immediate",
                ],
                &[],
            ),
            Self::Cargo => (&["test", "--no-fail-fast"], &["--", "--show-output"]),
        };
        let mut command = Command::new("sh");
        command
            .args(["-c", "exec \"$@\" 2>&1", "sh"])
            .arg(step::cargo().get_program())
            .args(head)
            .args(chosen)
            .args(tail)
            .current_dir(tree::root());
        command
    }
}

/// How nextest says that a test did not pass.
const BAD: [&str; 6] = ["FAIL", "TIMEOUT", "TMT", "SIGSEGV", "SIGABRT", "SIGKILL"];

/// Counts what a runner printed. A test that passed at its second try has passed and is named as flaky. A runner that failed without naming a test is one failure.
pub(crate) fn read(name: &str, text: &str, success: bool) -> Tally {
    let mut tally = Tally::default();
    let (mut failed, mut flaky) = (BTreeSet::new(), BTreeSet::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Indented, it is what a test printed, or a test that nextest runs alone.
        let own = !line.starts_with(' ');
        match words.as_slice() {
            // cargo test: `test result: ok. 3 passed; 0 failed; …`
            ["test", "result:", _, passed, "passed;", ..] if own => {
                tally.passed += passed.parse().unwrap_or(0);
                tally.summary(line.trim());
            }
            // nextest: `Summary [ 0.5s] 30 tests run: 29 passed, 1 failed, 0 skipped`
            ["Summary", ..] if line.contains("run:") => {
                tally.passed += before(&words, "passed");
                tally.summary(line.trim());
            }
            ["test", test, "...", "FAILED"] if own => drop(failed.insert((*test).to_owned())),
            ["TRY", _, end, .., krate, test] | [end, .., krate, test] if BAD.contains(end) => {
                failed.insert(format!("{krate} {test}"));
            }
            ["FLAKY", .., krate, test] => {
                flaky.insert(format!("{krate} {test}"));
            }
            _ => {}
        }
    }
    tally.add(skips(text));
    failed.retain(|test| !flaky.contains(test));
    for test in &flaky {
        tally.flaky(&format!("{name}: {test}"));
    }
    for test in &failed {
        tally.fail(&format!("{name}: {test}"));
    }
    if !success && failed.is_empty() {
        tally.fail(&format!("{name}: the test runner failed; see above"));
    }
    tally
}

/// The number before a word, such as `29 passed,`.
fn before(words: &[&str], word: &str) -> u64 {
    words
        .windows(2)
        .find(|pair| pair[1].trim_end_matches(',') == word)
        .and_then(|pair| pair[0].parse().ok())
        .unwrap_or(0)
}

/// Counts lines `SKIP name: reason`, each once.
pub(crate) fn skips(text: &str) -> Tally {
    let mut tally = Tally::default();
    let lines: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("SKIP "))
        // nextest says `SKIP [ …` of tests that its filter left out.
        .filter(|line| !line.starts_with('['))
        .collect();
    for line in lines {
        let (name, reason) = line.split_once(": ").unwrap_or((line, "no reason given"));
        tally.skip(name, reason);
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cargo_test_prints_is_counted() {
        let text = "test a::b ... ok\ntest a::c ... FAILED\nSKIP a::d: needs root\n\
                    test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n\
                    test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let closing = read("tests", text, false).closing();
        assert!(closing.contains("failed: tests: a::c"), "{closing}");
        assert!(closing.contains("skipped: a::d: needs root"), "{closing}");
        assert!(
            closing.ends_with("5 passed, 1 failed, 1 skipped"),
            "{closing}"
        );
    }

    #[test]
    fn what_nextest_prints_is_counted() {
        let text = "        PASS [   0.010s] x a::b\n    test a::b ... ok\n    \
                    test result: ok. 1 passed; 0 failed; 0 ignored\n        FAIL [   0.010s] x a::c\n        \
                    TIMEOUT [ 180.010s] x a::d\n     Summary [   0.5s] 3 tests run: 1 passed, 1 failed, 1 timed out, 0 skipped\n\
                    FAIL [   0.010s] x a::c\n";
        let closing = read("tests", text, false).closing();
        assert!(
            closing.ends_with("1 passed, 2 failed, 0 skipped"),
            "{closing}"
        );
    }

    #[test]
    fn a_test_that_passed_at_its_second_try_is_named() {
        let text = "  TRY 1 FAIL [   0.350s] (───) x a::b\n  TRY 1 FAIL [   0.350s] (───) x a::c\n  \
                    TRY 2 PASS [   0.022s] (2/4) x a::b\n  TRY 2 FAIL [   0.199s] (3/4) x a::c\n\
                    TRY 2 TMT [   1.004s] (4/4) x a::d\n     \
                    Summary [   2.400s] 4 tests run: 2 passed (1 flaky), 1 failed, 1 timed out, 0 skipped\n   \
                    FLAKY 2/2 [   0.022s] (2/4) x a::b\n  TRY 2 FAIL [   0.199s] (3/4) x a::c\n";
        let closing = read("tests", text, false).closing();
        assert!(
            closing.contains("flaky, passed at the second try: tests: x a::b\n"),
            "{closing}"
        );
        assert!(!closing.contains("failed: tests: x a::b"), "{closing}");
        assert!(
            closing.ends_with("2 passed, 2 failed, 0 skipped"),
            "{closing}"
        );
    }

    #[test]
    fn a_runner_that_fails_without_a_test_is_a_failure() {
        let closing = read("tests", "error: could not compile\n", false).closing();
        assert!(
            closing.ends_with("0 passed, 1 failed, 0 skipped"),
            "{closing}"
        );
    }

    #[test]
    fn a_skip_is_counted_once() {
        let closing = skips("SKIP a: x\nnoise\n  SKIP a: x\nSKIP b: y\nSKIP [ 0.1s] n\n").closing();
        assert!(
            closing.ends_with("0 passed, 0 failed, 2 skipped"),
            "{closing}"
        );
    }
}
