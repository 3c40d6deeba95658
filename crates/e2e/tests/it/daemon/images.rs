//! Images through the daemon: pulled from a real registry, run in, left, ended, refused.

use std::time::Duration;

use leasehold_e2e::{
    Daemon, Need, Protection, Registry, busybox_layout, need, registry_program, skip, until,
};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(60);

/// Whether images can be made and run here; says so loudly when not.
fn can(test: &str) -> bool {
    if registry_program().is_none() {
        skip(
            test,
            "needs the program docker-registry (cargo xtask setup)",
        );
        return false;
    }
    need(test, &["skopeo", "umoci", "busybox"].map(Need::Program)) && need(test, &[Need::Root])
}

struct Rig {
    daemon: Daemon,
    registry: Registry,
    layout: String,
    name: String,
}

impl Rig {
    fn new(protection: Protection) -> Self {
        let daemon = Daemon::start(&[], &[]);
        let folder = daemon.instance().scratch("registry");
        let layout = busybox_layout(&folder, 4_000_000);
        let registry = Registry::start(&folder, protection);
        registry.push(&layout, "team/tool:1");
        let name = format!("{}/team/tool:1", registry.host());
        Self {
            daemon,
            registry,
            layout,
            name,
        }
    }

    fn post(&self, body: &Value, wait: &str) -> Value {
        self.daemon
            .post(&format!("/v1/runs?wait={wait}"), &[], body)
            .json
    }

    fn facts(&self, run: &str) -> String {
        self.daemon.cli(["evidence", run]).status_is(0).out()
    }

    /// Leases of images that somebody holds, by the word of a collection that frees nothing.
    fn leases(&self) -> u64 {
        let said = self
            .daemon
            .instance()
            .cli(["image", "gc", "--dry-run", "--json"]);
        said.status_is(0).json()["leases"].as_u64().unwrap()
    }
}

#[test]
fn ten_runs_of_a_missing_image_pull_it_once_and_say_so() {
    if !can("ten_runs_of_a_missing_image_pull_it_once_and_say_so") {
        return;
    }
    let rig = Rig::new(Protection::default());
    let body =
        json!({"image": rig.name, "command": ["sh", "-c", "cat /etc/passwd; id -u; echo $A"]});
    let runs: Vec<String> = (0..10)
        .map(|_| rig.post(&body, "none")["run"].as_str().unwrap().to_owned())
        .collect();
    let rows: Vec<Value> = runs
        .iter()
        .map(|run| rig.daemon.sealed(run, LONG))
        .collect();
    for row in &rows {
        assert_eq!(row["outcome"]["end"]["reason"], "completed", "{row}");
        let said = rig.daemon.cli(["logs", row["run"].as_str().unwrap()]);
        let said = said.status_is(0).out();
        assert!(said.contains("root:x:0:0"), "{said}");
        assert!(said.ends_with("33\nb\n"), "{said}");
    }
    let shown = rig
        .daemon
        .instance()
        .cli(["image", "show", &rig.name, "--json"]);
    let shown = shown.status_is(0).json();
    let layers = shown["image"]["layers"].as_array();
    let layers = layers
        .or_else(|| shown["layers"].as_array())
        .unwrap()
        .clone();
    for layer in layers {
        let blob = layer["blob"].as_str().unwrap();
        assert_eq!(rig.registry.sent(blob), 1, "{blob}");
    }
    // The first had to wait and said so; whoever comes now does not, and needs no registry.
    assert!(rig.facts(&runs[0]).contains("\"pulled\""));
    let Rig {
        daemon,
        registry,
        name,
        ..
    } = rig;
    drop(registry);
    let again = daemon.cli(["run", "--image", &name, "--", "true"]);
    again.status_is(0);
    let again = daemon.cli(["run", "--image", &name, "--pull", "always", "--", "true"]);
    assert_ne!(again.status, 0, "{again:?}");
    assert!(again.err().contains("cannot get"), "{again:?}");
}

#[test]
fn a_run_in_an_image_has_its_digest_in_contract_and_evidence_and_leaves_no_lease() {
    if !can("a_run_in_an_image_has_its_digest_in_contract_and_evidence_and_leaves_no_lease") {
        return;
    }
    let rig = Rig::new(Protection::default());
    let said = rig.daemon.cli([
        "run",
        "--image",
        &rig.name,
        "--",
        "sh",
        "-c",
        "pwd; echo $HOME",
    ]);
    let said = said.status_is(0);
    assert!(said.err().contains("pulls the image"), "{said:?}");
    let digest = rig.daemon.instance().cli(["image", "ls", "--json"]).json()[0]["image"]["digest"]
        .as_str()
        .unwrap()
        .to_owned();
    let run = rig.daemon.rows("")[0]["run"].as_str().unwrap().to_owned();
    rig.daemon.sealed(&run, LONG);
    let evidence = rig.facts(&run);
    assert!(
        evidence.matches(&digest).count() >= 3,
        "{digest}: {evidence}"
    );
    let explained = rig.daemon.cli(["explain", &run]).status_is(0).out();
    assert!(explained.contains(&digest), "{explained}");
    until("no lease", LONG, || (rig.leases() == 0).then_some(()));
    // Nobody but the operator's own tenant has it for knowing its digest.
    let made = rig.daemon.cli(["tenant", "create", "acme"]);
    made.status_is(0);
    let policy = rig.daemon.instance().scratch("policy").join("p.yaml");
    let text = "version: 1\nallow: {tools: inherit, commands: inherit, permissions: inherit, egress: inherit, credentials: inherit, workspaces: inherit, trust: inherit, backends: inherit, placement: inherit, images: inherit}\ntrust: {commands: first_party}\n";
    std::fs::write(&policy, text).unwrap();
    let set = rig.daemon.cli([
        "policy",
        "set",
        "platform/tenant/acme",
        policy.to_str().unwrap(),
    ]);
    set.status_is(0);
    let key = rig.daemon.cli([
        "key", "create", "--tenant", "acme", "--role", "runner", "ci",
    ]);
    let key = key.status_is(0).out().trim().to_owned();
    let ask = |image: &str, pull: &str| {
        let body = json!({"image": image, "pull": pull, "command": ["true"]});
        let asked = rig.daemon.ask("POST", "/v1/runs", &key, &[], Some(&body));
        asked.unwrap()
    };
    for image in [
        digest.as_str(),
        &rig.name,
        &format!("{}@{digest}", rig.name),
    ] {
        let refused = ask(image, "never");
        assert_eq!(refused.status, 404, "{image}: {refused:?}");
    }
    // The control: it may bring it itself.
    let brought = ask(&rig.name, "missing");
    assert_eq!(brought.status, 200, "{brought:?}");
    opens_no_other_repository(&rig, &digest, |image, pull| ask(image, pull).status);
}

/// Who has an image has it from where it came from alone: no other name opens it.
fn opens_no_other_repository(rig: &Rig, digest: &str, status: impl Fn(&str, &str) -> u16) {
    let host = rig.registry.host();
    for (image, expected) in [
        (format!("{host}/team/tool@{digest}"), 200),
        (format!("{host}/other/tool@{digest}"), 404),
        (format!("{host}/other/tool:2@{digest}"), 404),
        (digest["sha256:".len()..][..12].to_owned(), 404),
    ] {
        assert_eq!(status(&image, "never"), expected, "{image}");
    }
    // Its registry has no such.
    let asked = status(&format!("{host}/other/tool@{digest}"), "missing");
    assert_eq!(asked, 404);
}

#[test]
fn a_pull_that_is_refused_is_told_with_its_mend_and_one_that_is_left_ends() {
    if !can("a_pull_that_is_refused_is_told_with_its_mend_and_one_that_is_left_ends") {
        return;
    }
    let rig = Rig::new(Protection {
        password: true,
        ..Protection::default()
    });
    let body = json!({"image": rig.name, "command": ["true"]});
    let refused = rig.daemon.post("/v1/runs", &[], &body);
    assert_eq!(refused.status, 403, "{refused:?}");
    let said = refused.text;
    assert!(said.contains("as nobody"), "{said}");
    let open = Registry::start(
        &rig.daemon.instance().scratch("open"),
        Protection::default(),
    );
    open.push(&rig.layout, "team/tool:1");
    let host = open.host();
    for (name, status) in [
        (format!("{host}/team/none:1"), 404),
        (format!("{host}/team/tool:-"), 400),
    ] {
        let body = json!({"image": name, "command": ["true"]});
        let answer = rig.daemon.post("/v1/runs", &[], &body);
        assert_eq!(answer.status, status, "{name}: {answer:?}");
    }
    assert_eq!(rig.daemon.taken(), 0);
    assert_eq!(rig.leases(), 0);
}
