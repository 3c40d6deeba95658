//! Watched directories: exactly what happened, and what is said when that is too much.

use leasehold_protocol::envd::filesystem::{
    EventType, FilesystemEvent, WatchEvent, WatcherEvents, WatcherId,
};
use serde_json::{Value, json};

use crate::client::Agent;
use crate::sandbox::able;

fn call(agent: &Agent, method: &str, message: &Value) -> crate::client::Response {
    agent.call(&format!("/filesystem.Filesystem/{method}"), message)
}

fn watch(agent: &Agent, message: &Value) -> WatcherId {
    call(agent, "CreateWatcher", message).json()
}

fn events(agent: &Agent, id: &WatcherId) -> Vec<FilesystemEvent> {
    let response = agent.call("/filesystem.Filesystem/GetWatcherEvents", id);
    assert_eq!(response.status, 200, "{}", response.text());
    response.json::<WatcherEvents>().events
}

fn shapes(events: &[FilesystemEvent]) -> Vec<(&str, EventType)> {
    events
        .iter()
        .map(|event| (event.name.as_str(), event.kind))
        .collect()
}

#[test]
fn one_new_file_is_exactly_three_events() {
    if !able("one_new_file_is_exactly_three_events") {
        return;
    }
    let agent = Agent::boot();
    call(&agent, "MakeDir", &json!({"path": "w"}));
    let id = watch(&agent, &json!({"path": "w", "includeEntry": true}));
    for round in 0..20 {
        let name = format!("f{round}");
        agent.upload(&format!("w/{name}"), b"text");
        let seen = events(&agent, &id);
        let want = [EventType::Create, EventType::Chmod, EventType::Write];
        assert_eq!(
            shapes(&seen),
            want.map(|kind| (name.as_str(), kind)),
            "{seen:?}"
        );
        let entry = seen[2].entry.as_ref().unwrap();
        assert_eq!(
            (entry.size, entry.path.as_str()),
            (4, &*format!("/home/user/w/{name}"))
        );
    }
    agent.run("cd w; mv f0 g; rm f1; chmod 600 f2");
    let seen = events(&agent, &id);
    let want = [
        ("f0", EventType::Rename),
        ("g", EventType::Create),
        ("f1", EventType::Remove),
        ("f2", EventType::Chmod),
    ];
    assert_eq!(shapes(&seen), want);
    assert!(seen[0].entry.is_none() && seen[1].entry.is_some());
    assert_eq!(
        agent
            .call("/filesystem.Filesystem/RemoveWatcher", &id)
            .status,
        200
    );
    assert_eq!(
        agent
            .call("/filesystem.Filesystem/GetWatcherEvents", &id)
            .code(),
        "not_found"
    );
    for (path, code) in [("absent", "not_found"), ("w/g", "invalid_argument")] {
        assert_eq!(
            call(&agent, "CreateWatcher", &json!({"path": path})).code(),
            code
        );
    }
}

#[test]
fn what_is_made_later_below_is_watched_too() {
    if !able("what_is_made_later_below_is_watched_too") {
        return;
    }
    let agent = Agent::boot();
    agent.run("mkdir -p w/old");
    let flat = watch(&agent, &json!({"path": "w"}));
    let deep = watch(&agent, &json!({"path": "w", "recursive": true}));
    // All at once: directories are there, and full, before anybody can have watched them.
    agent.run("mkdir -p w/a/b/c; echo x > w/a/b/c/f; echo y > w/old/g");
    let seen = events(&agent, &deep);
    let has = |name: &str, kind| {
        seen.iter()
            .any(|event| event.name == name && event.kind == kind)
    };
    for name in ["a", "a/b", "a/b/c", "a/b/c/f", "old/g"] {
        assert!(has(name, EventType::Create), "{name}: {seen:?}");
        let made = seen
            .iter()
            .filter(|event| event.name == name && event.kind == EventType::Create);
        assert_eq!(made.count(), 1, "{name}: {seen:?}");
    }
    assert!(has("a/b/c/f", EventType::Write) && has("old/g", EventType::Write));
    assert_eq!(shapes(&events(&agent, &flat)), [("a", EventType::Create)]);
    // What was moved away is not watched any more; what was moved in is.
    agent.run(
        "mv w/a /tmp/away; touch /tmp/away/b/new; mkdir -p /tmp/in/x; mv /tmp/in w/in; sleep 0.2",
    );
    events(&agent, &deep);
    agent.run("touch w/in/x/f /tmp/away/b/newer");
    let seen = events(&agent, &deep);
    assert!(
        shapes(&seen).contains(&("in/x/f", EventType::Create)),
        "{seen:?}"
    );
    assert!(
        !seen.iter().any(|event| event.name.contains("newer")),
        "{seen:?}"
    );
}

#[test]
fn a_stream_tells_as_it_happens() {
    if !able("a_stream_tells_as_it_happens") {
        return;
    }
    let agent = Agent::boot();
    let path = "/filesystem.Filesystem/WatchDir";
    let headers = ["keepalive-ping-interval: 1"];
    let mut stream = agent
        .client()
        .stream(path, &headers, &json!({"path": "/tmp"}));
    assert!(matches!(stream.message(), Some(WatchEvent::Start(_))));
    assert!(matches!(stream.message(), Some(WatchEvent::Keepalive(_))));
    agent.run("touch /tmp/x");
    loop {
        match stream.message() {
            Some(WatchEvent::Filesystem(event)) => {
                assert_eq!((event.name.as_str(), event.kind), ("x", EventType::Create));
                break;
            }
            Some(WatchEvent::Keepalive(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    let timed = ["connect-timeout-ms: 100"];
    let mut short = agent
        .client()
        .stream(path, &timed, &json!({"path": "/tmp"}));
    assert!(matches!(short.message(), Some(WatchEvent::Start(_))));
    assert!(short.message::<WatchEvent>().is_none());
    let mut lost = agent
        .client()
        .stream(path, &[], &json!({"path": "/nowhere"}));
    assert!(lost.message::<WatchEvent>().is_none());
}

#[test]
fn watching_has_the_rights_of_the_user() {
    if !able("watching_has_the_rights_of_the_user") {
        return;
    }
    let agent = Agent::boot();
    let root = ["authorization: Basic cm9vdDo="];
    let script = crate::client::shell("mkdir -p /tmp/r/in; chmod 700 /tmp/r/in");
    assert_eq!(
        agent
            .start(&script, &root)
            .0
            .finish()
            .ended
            .unwrap()
            .exit_code,
        0
    );
    let refused = call(&agent, "CreateWatcher", &json!({"path": "/tmp/r/in"}));
    assert_eq!(refused.code(), "permission_denied");
    let tree = watch(&agent, &json!({"path": "/tmp/r", "recursive": true}));
    let script = crate::client::shell("touch /tmp/r/in/secret /tmp/r/open");
    agent.start(&script, &root).0.finish();
    let seen = events(&agent, &tree);
    assert!(seen.iter().any(|event| event.name == "open"), "{seen:?}");
    assert!(
        !seen.iter().any(|event| event.name.contains("secret")),
        "{seen:?}"
    );
}

#[test]
fn too_much_is_said_to_be_lost() {
    if !able("too_much_is_said_to_be_lost") {
        return;
    }
    let agent = Agent::boot();
    agent.run("mkdir w");
    let id = watch(&agent, &json!({"path": "w"}));
    let flood = "cd w; for i in $(seq 12000); do echo > f$i; done; ls | wc -l";
    assert_eq!(agent.run(flood).stdout, "12000\n");
    let lost = agent.call("/filesystem.Filesystem/GetWatcherEvents", &id);
    assert_eq!(lost.code(), "data_loss", "{}", lost.text());
    let kib = agent.run(&format!(
        "awk '/VmHWM/{{print $2}}' /proc/{}/status",
        agent.pid
    ));
    assert!(
        kib.stdout.trim().parse::<u64>().unwrap() < 65_536,
        "{kib:?}"
    );
    for n in 0..40 {
        let made = call(&agent, "CreateWatcher", &json!({"path": "/tmp"}));
        if n < 30 {
            assert_eq!(made.status, 200, "{n}");
        }
    }
    let full = call(&agent, "CreateWatcher", &json!({"path": "/tmp"}));
    assert_eq!(full.code(), "resource_exhausted");
}
