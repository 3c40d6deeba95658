//! Evidence that was tampered with, through the command line (P71): `verify` names what was done.

use std::path::Path;

use leasehold_e2e::Daemon;
use serde_json::Value;

use super::{SOON, reason, script};

/// What `verify` says of a changed bundle; it must not hold.
#[track_caller]
fn faults(daemon: &Daemon, folder: &Path, name: &str, text: &str) -> Vec<String> {
    let file = folder.join(name);
    std::fs::write(&file, text).unwrap();
    let file = file.display().to_string();
    let verdict = daemon
        .instance()
        .cli(["verify", "--json", &file])
        .status_is(1)
        .json();
    assert_eq!(verdict["holds"], false, "{name}: {verdict:#}");
    let faults = verdict["faults"].as_array().unwrap();
    faults
        .iter()
        .map(|fault| fault.as_str().unwrap().to_owned())
        .collect()
}

fn changed(bundle: &Value, change: impl FnOnce(&mut Vec<Value>)) -> String {
    let mut bundle = bundle.clone();
    change(bundle["events"].as_array_mut().expect("events"));
    bundle.to_string()
}

fn evidence(daemon: &Daemon, folder: &Path, name: &str) -> (String, String) {
    let run = daemon
        .post("/v1/runs", &[], &script("echo hello"))
        .status_is(200)
        .run();
    assert_eq!(reason(&daemon.sealed(&run, SOON)), "completed");
    let file = folder.join(name).display().to_string();
    daemon.cli(["evidence", &run, "-o", &file]).status_is(0);
    (run, file)
}

#[test]
fn p71_verify_names_what_was_done_to_a_bundle() {
    let mut daemon = Daemon::start(&["--warm", "0"], &[]);
    let folder = daemon.instance().scratch("proof");
    let (run, file) = evidence(&daemon, &folder, "one");
    let (_, other) = evidence(&daemon, &folder, "two");
    daemon.kill();
    // The control: unchanged it holds, without a daemon.
    let verdict = daemon.cli(["verify", "--json", &file]).status_is(0).json();
    assert_eq!(
        (&verdict["holds"], &verdict["clean"]),
        (&true.into(), &true.into())
    );
    let text = std::fs::read_to_string(&file).unwrap().trim().to_owned();
    let bundle: Value = serde_json::from_str(&text).unwrap();
    let foreign: Value = serde_json::from_str(&std::fs::read_to_string(other).unwrap()).unwrap();
    let count = bundle["events"].as_array().unwrap().len();
    let cases = [
        (
            "altered",
            "altered",
            changed(&bundle, |events| events[2]["at_unix_ms"] = 1.into()),
        ),
        (
            "middle",
            "cut",
            changed(&bundle, |events| drop(events.remove(2))),
        ),
        (
            "tail",
            "missing tail",
            changed(&bundle, |events| events.truncate(count - 1)),
        ),
        ("all", "absent", changed(&bundle, Vec::clear)),
        (
            "order",
            "reordered",
            changed(&bundle, |events| events.swap(2, 3)),
        ),
        (
            "twice",
            "duplicated",
            changed(&bundle, |events| events.insert(3, events[2].clone())),
        ),
        (
            "foreign",
            "another's",
            changed(&bundle, |events| {
                events[2] = foreign["events"][2].clone();
            }),
        ),
    ];
    for (name, word, text) in &cases {
        let faults = faults(&daemon, &folder, name, text);
        eprintln!("{name}: {faults:?}");
        assert!(!faults.is_empty(), "{name}");
        assert!(
            faults.iter().any(|fault| fault.contains(word)),
            "{name} {word}: {faults:?}"
        );
    }
    // A key that nobody vouches for, and one that did not sign.
    let wrong = format!("sha256:{}", "0".repeat(64));
    let verdict = daemon
        .cli(["verify", "--json", "--key", &wrong, &file])
        .status_is(1);
    assert!(
        verdict.json()["faults"].to_string().contains("key"),
        "{}",
        verdict.story()
    );
    let said = daemon.cli(["verify", &file]).status_is(0);
    assert!(said.out().contains(&run), "{}", said.story());
}
