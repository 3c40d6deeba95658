//! The daemon dies before and after every durable write and message, also while it takes runs up (P84).
//!
//! The points are those of `LEASEHOLD_DIE`, which only builds with debug assertions read.

use std::path::PathBuf;

use leasehold_e2e::{Answer, Daemon};
use serde_json::{Value, json};

use super::{AGREE, SOON, agree, assert_nothing_left, assert_proven, facts, lines, reason, script};

/// A run that leaves a line in its workspace each time it is executed.
const WITNESS: &str = "echo ran; echo x >> /workspace/log; sleep 0.2";
const DIE: &str = "LEASEHOLD_DIE";
/// What happens in the life of every run.
const ALWAYS: [&str; 8] = [
    "admit",
    "grant",
    "launch",
    "objects",
    "revoke",
    "conclude",
    "statement",
    "seal",
];

/// One daemon that dies once.
struct Case {
    daemon: Daemon,
    folder: PathBuf,
    body: Value,
    /// Whether the workspace is a directory of the host.
    lent: bool,
    /// What was answered before it died.
    told: Option<String>,
}

impl Case {
    fn new(point: &str, lent: bool, body: Value) -> Self {
        let daemon = Daemon::start(&["--warm", "0"], &[(DIE, point)]);
        let folder = daemon.instance().scratch("lent");
        Self {
            daemon,
            folder,
            body,
            lent,
            told: None,
        }
    }

    /// Sends the request under the one key.
    fn send(&self) -> Result<Answer, String> {
        let ticket = self
            .lent
            .then(|| self.daemon.offer(&self.folder, "read_write"));
        let mut headers = vec![("idempotency-key", "the-one")];
        headers.extend(
            ticket
                .iter()
                .map(|ticket| ("leasehold-directory", ticket.as_str())),
        );
        let path = "/v1/runs?wait=none";
        let key = self.daemon.key().to_owned();
        self.daemon
            .ask("POST", path, &key, &headers, Some(&self.body))
    }

    /// Sends it and waits for the death.
    fn die(&mut self) {
        self.told = self.send().ok().map(|answer| answer.status_is(202).run());
        let outcome = self.daemon.await_end();
        assert_eq!(outcome.status, 137, "it did not die: {}", outcome.story());
    }

    /// Starts it again for good, sends the request once more, and sees that all came together.
    fn settle(&mut self, about: &str) -> Value {
        self.daemon.restart(&[]);
        agree(&self.daemon, AGREE);
        let answer = self
            .send()
            .unwrap_or_else(|error| panic!("{about}: {error}"));
        let run = answer.status_is(202).run();
        if let Some(told) = &self.told {
            assert_eq!(&run, told, "{about}: a retry is the same run");
        }
        let row = self.daemon.sealed(&run, SOON);
        assert_eq!(self.daemon.rows("").len(), 1, "{about}: one run");
        assert!(self.daemon.taken() <= 1, "{about}: begun at most once");
        for kind in ["accepted", "ended", "concluded", "cleaned"] {
            let told = facts(&self.daemon, &run, kind);
            assert_eq!(told.len(), 1, "{about}: {kind}: {told:?}");
        }
        assert_proven(&self.daemon, &run);
        assert_nothing_left(&self.daemon);
        row
    }
}

fn both(points: &[&str]) -> Vec<String> {
    let sides = |point: &&str| [format!("before-{point}"), format!("after-{point}")];
    points.iter().flat_map(sides).collect()
}

#[test]
fn p84_a_daemon_killed_at_every_point_carries_each_run_once() {
    for point in both(&ALWAYS) {
        eprintln!("{point}");
        let mut case = Case::new(&point, false, script(WITNESS));
        case.die();
        let row = case.settle(&point);
        assert_eq!(reason(&row), "completed", "{point}: {row:#}");
        assert_eq!(case.daemon.taken(), 1, "{point}");
    }
}

/// The token is in its file before its key is there: whoever dies on either side lets the next start in.
#[test]
fn p84_a_daemon_killed_while_it_makes_the_first_key_locks_nobody_out() {
    for point in both(&["first_key"]) {
        let mut daemon = Daemon::prepared(&["--warm", "0"]);
        daemon.spawn(&[(DIE, &point)]);
        let outcome = daemon.await_end();
        assert_eq!(outcome.status, 137, "{point}: {}", outcome.story());
        assert!(daemon.key_file().exists(), "{point}");
        daemon.restart(&[]);
        let keys = daemon.get("/v1/keys").status_is(200);
        let keys = keys.json["keys"].as_array().expect("keys").len();
        assert_eq!(keys, 1, "{point}: the one that the file opens");
    }
}

/// A directory that was passed is gone with the daemon: a run that was not begun cannot be begun any more.
#[test]
fn p84_a_run_in_a_lent_directory_is_executed_at_most_once() {
    for point in both(&["admit", "grant", "launch", "revoke", "conclude", "seal"]) {
        eprintln!("{point}");
        let mut case = Case::new(&point, true, script(WITNESS));
        case.die();
        let row = case.settle(&point);
        let lost = [
            "after-admit",
            "before-grant",
            "after-grant",
            "before-launch",
        ];
        let (expected, executed) = match lost.contains(&point.as_str()) {
            true => ("sandbox_unavailable", 0),
            false => ("completed", 1),
        };
        assert_eq!(reason(&row), expected, "{point}: {row:#}");
        assert_eq!(lines(&case.folder.join("log")), executed, "{point}");
    }
}

#[test]
fn p84_a_daemon_killed_while_it_gives_input_ends_the_run_by_rule() {
    for point in both(&["input", "append"]) {
        eprintln!("{point}");
        let text = "cat; echo x >> /workspace/log; sleep 0.2";
        let body = json!({"command": ["sh", "-c", text], "stdin": "go\n"});
        let mut case = Case::new(&point, true, body);
        case.die();
        let row = case.settle(&point);
        // Before its gift is written down nobody knows how much of it was read.
        let given = ["after-append", "after-input"].contains(&point.as_str());
        let expected = if given { "completed" } else { "host_lost" };
        assert_eq!(reason(&row), expected, "{point}: {row:#}");
        assert!(lines(&case.folder.join("log")) <= 1, "{point}");
    }
}

#[test]
fn p84_a_daemon_killed_again_while_it_takes_a_run_up_carries_it_once() {
    for point in both(&["attach", "take_over", "conclude"]) {
        eprintln!("{point}");
        let mut case = Case::new("after-launch", false, script("echo ran; sleep 1"));
        case.die();
        case.daemon.spawn(&[(DIE, &point)]);
        let outcome = case.daemon.await_end();
        assert_eq!(outcome.status, 137, "{point}: {}", outcome.story());
        let row = case.settle(&point);
        assert_eq!(reason(&row), "completed", "{point}: {row:#}");
        assert_eq!(case.daemon.taken(), 1, "{point}");
    }
}

#[test]
fn p84_a_daemon_killed_while_it_cancels_ends_the_run_as_it_was_wished() {
    for point in both(&["cancel"]) {
        eprintln!("{point}");
        let mut case = Case::new(&point, false, script("echo ran; sleep 4"));
        let run = case.send().expect("an answer").status_is(202).run();
        let path = format!("/v1/runs/{run}/cancel");
        let key = case.daemon.key().to_owned();
        let asked = case.daemon.ask("POST", &path, &key, &[], None);
        assert!(asked.is_err(), "{asked:?}");
        let outcome = case.daemon.await_end();
        assert_eq!(outcome.status, 137, "{point}: {}", outcome.story());
        case.told = Some(run);
        let row = case.settle(&point);
        // Before it was written down it was no wish.
        let wished = point.starts_with("after");
        let expected = if wished { "cancelled" } else { "completed" };
        assert_eq!(reason(&row), expected, "{point}: {row:#}");
    }
}
