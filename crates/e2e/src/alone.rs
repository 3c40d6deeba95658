//! A test in a process of its own, however the tests are run.

use std::process::Command;

/// Names the test that a process of its own runs alone.
const ALONE: &str = "LEASEHOLD_TEST_ALONE";

/// Whether this process is there for the test of this name alone, with its modules. If not, one that is runs it
/// to its end, and a failure there is one here.
#[track_caller]
#[allow(clippy::print_stderr, reason = "it is what the test says")]
pub fn alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some_and(|alone| alone == test) {
        return true;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ALONE, test)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "there is no test {test}: {said}");
    false
}
