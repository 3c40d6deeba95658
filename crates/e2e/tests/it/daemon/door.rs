//! Who is let in (P66, P67), what may be asked for (P68), and what is told to whom.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use leasehold_e2e::{Daemon, Instance, Running};
use serde_json::{Value, json};

use super::{SOON, assert_nothing_left, reason, script, tenant};

#[test]
fn p67_nothing_is_served_beyond_this_machine_without_keys() {
    let instance = Instance::new();
    let serve = |flags: &[&str]| {
        let words = [&["serve", "--warm", "0"], flags].concat();
        instance.start(words).wait(SOON)
    };
    let refused = serve(&["--listen", "0.0.0.0:0"]).status_is(2);
    assert!(
        refused.err().contains("no key has been made"),
        "{}",
        refused.story()
    );
    let refused = serve(&["--listen", "0.0.0.0:0", "--plain-http"]).status_is(2);
    assert!(
        refused.err().contains("no key has been made"),
        "{}",
        refused.story()
    );
    let refused = serve(&["--listen", "everywhere"]).status_is(2);
    assert!(refused.err().contains("everywhere"), "{}", refused.story());
    assert!(!instance.run_folder().join("daemon.json").exists());
    // With keys, still not in the clear.
    let mut daemon = Daemon::start(&["--warm", "0"], &[]);
    daemon.kill();
    let mut command = daemon
        .instance()
        .command(["serve", "--listen", "0.0.0.0:0"]);
    let refused = Running::start(&mut command, None).wait(SOON).status_is(2);
    assert!(
        refused.err().contains("in the clear"),
        "{}",
        refused.story()
    );
}

#[test]
fn p67_a_token_is_in_a_closed_file_and_in_no_log_and_a_bad_one_gets_the_one_answer() {
    let daemon = Daemon::start(&["--warm", "0"], &[]);
    for file in [
        daemon.key_file(),
        daemon.instance().run_folder().join("daemon.json"),
    ] {
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
    let key = daemon.key().to_owned();
    let token = tenant(&daemon, "other", "{running: 4}");
    let altered = format!(
        "{}{}",
        &key[..key.len() - 1],
        if key.ends_with('a') { 'b' } else { 'a' }
    );
    let unknown = key.replacen(|letter: char| letter.is_ascii_digit(), "z", 1);
    let huge = "x".repeat(16 << 10);
    let mut answers = Vec::new();
    for bad in [
        "",
        " ",
        "lh_",
        "null",
        &altered,
        &unknown,
        &key.to_uppercase(),
    ] {
        let answer = daemon.ask("GET", "/v1/runs", bad, &[], None).unwrap();
        assert_eq!(answer.status, 401, "{bad:?}: {}", answer.text);
        answers.push(answer.text);
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "one answer to all: {answers:?}");
    // Too long for a header is refused before anybody looks.
    let long = daemon.ask("GET", "/v1/runs", &huge, &[], None);
    assert!(long.map_or(true, |answer| matches!(answer.status, 400 | 401 | 431)));
    let in_query = daemon
        .ask("GET", &format!("/v1/runs?key={key}"), "", &[], None)
        .unwrap();
    assert_eq!(in_query.status, 401);
    let twice = [("authorization", format!("Bearer {key}"))];
    let twice: Vec<(&str, &str)> = twice
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    assert_eq!(
        daemon
            .ask("GET", "/v1/runs", &key, &twice, None)
            .unwrap()
            .status,
        401
    );
    // The control: good ones are let in.
    for good in [&key, &token] {
        assert_eq!(
            daemon
                .ask("GET", "/v1/runs", good, &[], None)
                .unwrap()
                .status,
            200
        );
    }
    let ran = daemon.ask(
        "POST",
        "/v1/runs?wait=cleanup",
        &token,
        &[],
        Some(&script("env; true")),
    );
    assert_eq!(reason(&ran.unwrap().status_is(200).json), "completed");
    assert_no_token(&daemon, &[&key, &token]);
}

/// No secret is in a log, in a record or in an environment of ours.
#[track_caller]
fn assert_no_token(daemon: &Daemon, tokens: &[&str]) {
    let worker = daemon.instance().run_folder().join("worker/supervisor.log");
    let mut texts = vec![daemon.log(), std::fs::read_to_string(worker).unwrap()];
    let worker = daemon.supervisor().expect("a worker");
    for pid in [daemon.pid(), worker] {
        for file in ["environ", "cmdline"] {
            let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
            texts.push(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
    let store = daemon.instance().state().join("daemon/store.db");
    texts.push(String::from_utf8_lossy(&std::fs::read(store).unwrap()).into_owned());
    for entry in std::fs::read_dir(daemon.worker_state().join("runs")).unwrap() {
        let record = entry.unwrap().path().join("record.json");
        texts.push(std::fs::read_to_string(record).unwrap());
    }
    for token in tokens {
        let secret = token.rsplit('_').next().unwrap();
        assert!(secret.len() > 20, "a secret: {secret}");
        assert!(
            texts.iter().all(|text| !text.contains(secret)),
            "a token is told"
        );
    }
}

/// A key in the environment of whoever starts a supervisor is not the supervisor's.
#[test]
fn p61_a_key_of_the_caller_is_in_no_environment_of_a_supervisor() {
    let instance = Instance::new();
    let mut command = instance.command(["run", "--alone", "--", "true"]);
    command.env("LEASEHOLD_API_KEY", "lh_key_secret0123456789");
    Running::start(&mut command, None).wait(SOON).status_is(0);
    let supervisor = instance.supervisor().expect("a supervisor");
    let bytes = std::fs::read(format!("/proc/{supervisor}/environ")).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    // The control: its own variables are there.
    assert!(text.contains("LEASEHOLD_STATE_DIR="));
    assert!(!text.contains("secret0123456789"));
}

#[test]
fn p66_another_tenants_run_is_like_one_that_is_not_there() {
    let daemon = Daemon::start(&["--warm", "0"], &[]);
    let (own, other) = (
        tenant(&daemon, "own", "{running: 4}"),
        tenant(&daemon, "other", "{running: 4}"),
    );
    let made = daemon.ask("POST", "/v1/runs", &own, &[], Some(&script("echo secret")));
    let run = made.unwrap().status_is(200).run();
    daemon.sealed(&run, SOON);
    // Of the same form, and nobody's.
    let nobody: String = run
        .char_indices()
        .map(|(at, letter)| if at > 10 { 'a' } else { letter })
        .collect();
    let parts = [
        "",
        "/contract",
        "/audit",
        "/events",
        "/logs/stdout",
        "/artifacts",
        "/evidence",
        "/explain",
    ];
    for part in parts {
        let at = |run: &str, key: &str| {
            daemon
                .ask("GET", &format!("/v1/runs/{run}{part}"), key, &[], None)
                .unwrap()
        };
        assert_eq!(at(&run, &own).status, 200, "the control: {part}");
        let (hidden, absent) = (at(&run, &other), at(&nobody, &other));
        assert_eq!(
            (hidden.status, absent.status),
            (404, 404),
            "{part}: {}",
            hidden.text
        );
        assert_eq!(
            hidden.text.replace(&run, "R"),
            absent.text.replace(&nobody, "R"),
            "{part}"
        );
    }
    let cancel = format!("/v1/runs/{run}/cancel");
    assert_eq!(
        daemon
            .ask("POST", &cancel, &other, &[], None)
            .unwrap()
            .status,
        404
    );
    let list = daemon.ask("GET", "/v1/runs", &other, &[], None).unwrap();
    assert_eq!(list.json["runs"], json!([]), "{}", list.text);
}

#[test]
fn p68_what_may_not_be_asked_for_is_refused_over_http() {
    let daemon = Daemon::start(&["--warm", "0"], &[]);
    let with = |name: &str, value: Value| {
        let mut body = script("true");
        body[name] = value;
        body
    };
    let cases = [
        ("mounts", with("mounts", json!(["/:/host"]))),
        ("workspace", with("workspace", json!({"path": "/etc"}))),
        ("privileged", with("privileged", json!(true))),
        ("user", with("user", json!("0"))),
        (
            "env.LD_PRELOAD",
            with("env", json!({"LD_PRELOAD": "/x.so"})),
        ),
        (
            "env.LEASEHOLD_STATE_DIR",
            with("env", json!({"LEASEHOLD_STATE_DIR": "/x"})),
        ),
        ("limits.pids", with("limits", json!({"pids": -1}))),
        (
            "limits.memory",
            with("limits", json!({"memory": "9223372036854775808000G"})),
        ),
        ("cwd", with("cwd", json!("../../etc"))),
    ];
    for (field, body) in cases {
        let answer = daemon.post("/v1/runs", &[], &body);
        assert_eq!(answer.status, 400, "{field}: {}", answer.text);
        assert!(answer.text.contains(field), "{field}: {}", answer.text);
    }
    let twice = Value::String("x".into());
    let answer = daemon.post("/v1/runs", &[], &twice);
    assert_eq!(answer.status, 400, "{}", answer.text);
    assert_eq!(daemon.rows("").len(), 0, "nothing was admitted");
    let started = std::time::Instant::now();
    let fine = daemon.post("/v1/runs", &[], &script("true")).status_is(200);
    assert_eq!(reason(&fine.json), "completed");
    assert!(started.elapsed() < Duration::from_secs(20));
}

/// After the run, from a daemon: the list, then all of them or those of a glob.
#[test]
fn artifacts_of_a_daemon_are_listed_and_taken_after_the_run() {
    let daemon = Daemon::start(&["--warm", "0"], &[]);
    let mut body = script("mkdir out; printf one > out/a.txt; printf two > out/b.csv");
    body["artifacts"] = json!(["out"]);
    let run = daemon.post("/v1/runs", &[], &body).status_is(200).run();
    daemon.sealed(&run, SOON);
    let listed = daemon.cli(["artifacts", &run]).status_is(0).out();
    assert!(
        listed.contains("out/a.txt") && listed.contains("out/b.csv"),
        "{listed}"
    );
    let out = daemon.instance().scratch("later");
    let place = out.display().to_string();
    let csv = ["artifacts", &run, "--out", &place, "out/*.csv"];
    daemon.cli(csv).status_is(0);
    assert_eq!(
        std::fs::read_to_string(out.join("out/b.csv")).unwrap(),
        "two"
    );
    assert!(!out.join("out/a.txt").exists(), "it was not asked for");
    daemon
        .cli(["artifacts", &run, "--out", &place])
        .status_is(0);
    assert_eq!(
        std::fs::read_to_string(out.join("out/a.txt")).unwrap(),
        "one"
    );
    daemon.cli(["artifacts", &run, "nothing*"]).status_is(2);
    assert_nothing_left(&daemon);
}

/// What has a meaning in a queue alone is passed to the daemon, and refused without one.
#[test]
fn priority_and_longest_wait_go_to_the_daemon_alone() {
    let daemon = Daemon::start(&[], &[]);
    let flags = ["--priority", "-5", "--max-wait", "7s"];
    let words = |more: &[&'static str]| -> Vec<&'static str> {
        let all = ["run"].iter().chain(&flags).chain(more);
        all.chain(&["--", "true"]).copied().collect()
    };
    daemon.cli(words(&[])).status_is(0);
    let run = daemon.rows("")[0]["run"].as_str().unwrap().to_owned();
    let contract = daemon.get(&format!("/v1/runs/{run}/contract")).json;
    let asked = (&contract["priority"], &contract["max_wait_ms"]);
    assert_eq!(asked, (&json!(-5), &json!(7_000)), "{contract}");
    let refused = daemon.cli(words(&["--alone"]));
    assert_ne!(refused.status, 0);
    assert!(refused.err().contains("through a daemon"), "{refused:?}");
    // A mistake is told once.
    let wrong = daemon.cli(["policy", "show", "nope"]);
    assert_eq!(
        wrong.err().matches("scope \"nope\"").count(),
        1,
        "{wrong:?}"
    );
    assert_eq!(wrong.err().matches("expected").count(), 1, "{wrong:?}");
    assert!(!wrong.err().contains("scope: scope"), "{wrong:?}");
}

/// Who wants to hear nothing of ours hears nothing of a command's own end, and why it was not run.
#[test]
fn a_quiet_run_says_why_its_command_was_not_run() {
    let daemon = Daemon::start(&[], &[]);
    let failed = daemon.cli(["run", "-q", "-w", "/nonexist", "--", "true"]);
    assert_eq!(failed.status, 125, "{failed:?}");
    assert!(failed.err().contains("error: "), "{failed:?}");
    assert!(failed.err().contains("leasehold explain r"), "{failed:?}");
    let own = daemon.cli(["run", "-q", "--", "false"]);
    assert_eq!((own.status, own.err().as_str()), (1, ""), "{own:?}");
}
