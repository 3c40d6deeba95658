//! Runs over HTTP: how they are answered, repeated, followed and ended.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::rig::Rig;

/// The events of a stream, as (name, data, id).
fn events(text: &str) -> Vec<(String, Value, String)> {
    let mut events = Vec::new();
    for block in text.split("\n\n").filter(|block| block.contains("event:")) {
        let field = |name: &str| {
            let lines = block.lines().filter_map(|line| line.strip_prefix(name));
            lines
                .map(|line| line.trim_start_matches(' '))
                .collect::<String>()
        };
        let data = serde_json::from_str(&field("data:")).unwrap();
        events.push((field("event:"), data, field("id:")));
    }
    events
}

#[tokio::test(flavor = "multi_thread")]
async fn a_synchronous_run_is_answered_with_its_end_and_output() {
    let rig = Rig::new().await;
    let key = Some(rig.operator.as_str());
    let body = json!({"command": ["sh", "-c", r"printf 'out\000\377\n'; printf 'err\n' >&2"]});
    let answer = rig.call("POST", "/v1/runs", key, Some(body)).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let view = answer.json();
    assert_eq!(view["outcome"]["end"]["reason"], "completed");
    assert_eq!(view["stdout"]["base64"], "b3V0AP8K");
    assert_eq!(view["stderr"]["text"], "err\n");
    let path = format!("{}/logs/stdout", view["links"]["self"].as_str().unwrap());
    let log = rig.call("GET", &path, key, None).await;
    assert_eq!(&log.bytes[..], b"out\0\xff\n");
    assert_eq!(log.headers["content-disposition"], "attachment");
    assert_eq!(log.headers["x-content-type-options"], "nosniff");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bare_command_that_fails_is_no_error_and_a_missing_one_says_so() {
    let rig = Rig::new().await;
    let key = Some(rig.operator.as_str());
    let failed = rig
        .call("POST", "/v1/runs", key, Some(json!({"command": ["false"]})))
        .await;
    assert_eq!(failed.status, StatusCode::OK);
    assert_eq!(
        failed.json()["outcome"]["exit"],
        json!({"kind": "exit", "code": 1})
    );
    assert_eq!(failed.json()["error"], Value::Null);
    let body = json!({"command": ["sh", "-c", "echo before; exec sleep 600"], "limits": {"timeout": "50ms", "grace": "10ms"}});
    let late = rig.call("POST", "/v1/runs", key, Some(body)).await;
    assert_eq!(late.status, StatusCode::GATEWAY_TIMEOUT, "{}", late.text());
    assert_eq!(late.json()["error"]["code"], "timeout");
    assert_eq!(late.json()["stdout"]["text"], "before\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn p69_one_key_is_one_run_and_another_body_a_conflict() {
    let rig = Rig::new().await;
    let key = Some(rig.operator.as_str());
    let create = |argv: &'static str| {
        let body = Some(json!({ "command": [argv] }));
        rig.with(
            "POST",
            "/v1/runs",
            key,
            body,
            &[("idempotency-key", "once")],
        )
    };
    let mut all = Vec::new();
    for _ in 0..4 {
        let batch = (0..50).map(|_| create("true"));
        all.extend(futures_util::future::join_all(batch).await);
    }
    let first = all[0].json()["run"].clone();
    assert!(first.is_string(), "{}", all[0].text());
    for answer in &all {
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        assert_eq!(answer.json()["run"], first);
    }
    let list = rig.call("GET", "/v1/runs", key, None).await.json();
    assert_eq!(list["runs"].as_array().unwrap().len(), 1);
    let other = create("false").await;
    assert_eq!(other.status, StatusCode::CONFLICT, "{}", other.text());
    assert_eq!(other.json()["error"]["code"], "conflict");
    // The control: without the key each is a run of its own.
    let body = Some(json!({"command": ["true"]}));
    let own = rig.call("POST", "/v1/runs", key, body).await.json();
    assert_ne!(own["run"], first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_one_end_and_goes_on_from_any_event() {
    let rig = Rig::new().await;
    let key = Some(rig.operator.as_str());
    let body = json!({"command": ["sh", "-c", r"printf 'out\000\377\n'; printf 'err\n' >&2"]});
    let ran = rig
        .call("POST", "/v1/runs?wait=cleanup", key, Some(body))
        .await
        .json();
    let path = format!("/v1/runs/{}/events", ran["run"].as_str().unwrap());
    let whole = rig.call("GET", &path, key, None).await;
    assert_eq!(whole.headers["content-type"], "text/event-stream");
    let whole = events(&whole.text());
    let ends = whole
        .iter()
        .filter(|(name, ..)| matches!(name.as_str(), "done" | "error"));
    assert_eq!(ends.count(), 1, "{whole:?}");
    assert_eq!(whole.last().unwrap().0, "done");
    assert!(
        whole
            .iter()
            .any(|(name, data, _)| name == "stdout" && data["base64"] == "b3V0AP8K")
    );
    for (at, (.., id)) in whole.iter().enumerate().take(whole.len() - 1) {
        let rest = rig
            .with("GET", &path, key, None, &[("last-event-id", id)])
            .await;
        let rest = events(&rest.text());
        assert_eq!(rest, whole[at + 1..], "from {id}");
    }
    let wrong = rig
        .with("GET", &path, key, None, &[("last-event-id", "x")])
        .await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_says_by_whom_and_again_is_no_error() {
    let rig = Rig::new().await;
    let key = Some(rig.operator.as_str());
    let body = json!({"command": ["sh", "-c", "echo before; exec sleep 600"], "limits": {"grace": "10ms"}});
    let begun = rig
        .call("POST", "/v1/runs?wait=none", key, Some(body))
        .await;
    assert_eq!(begun.status, StatusCode::ACCEPTED);
    let run = begun.json()["run"].as_str().unwrap().to_owned();
    assert_eq!(begun.headers["location"], format!("/v1/runs/{run}"));
    let path = format!("/v1/runs/{run}/cancel");
    let asked = rig.call("POST", &path, key, Some(json!({}))).await;
    assert!(asked.status.is_success(), "{}", asked.text());
    let stream = rig
        .call("GET", &format!("/v1/runs/{run}/events"), key, None)
        .await;
    let stream = events(&stream.text());
    let (name, view, _) = stream.last().unwrap();
    assert_eq!(name, "error");
    assert_eq!(
        view["outcome"]["end"],
        json!({"reason": "cancelled", "by": "caller"})
    );
    let again = rig.call("POST", &path, key, Some(json!({}))).await;
    assert_eq!(again.status, StatusCode::OK);
    assert_eq!(again.json()["outcome"]["end"]["reason"], "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_comes_beside_the_request_and_is_used_once() {
    let rig = Rig::new().await;
    let key = Some(rig.operator.as_str());
    rig.pass("ticket", std::fs::File::open("/tmp").unwrap().into());
    let headers = [("leasehold-directory", "ticket")];
    let body = || Some(json!({"command": ["true"]}));
    // The fake backend has no directories, and says which mode it lacks.
    let ran = rig.with("POST", "/v1/runs", key, body(), &headers).await;
    assert_eq!(
        ran.status,
        StatusCode::SERVICE_UNAVAILABLE,
        "{}",
        ran.text()
    );
    assert!(ran.text().contains("the mode `clone`"), "{}", ran.text());
    let again = rig.with("POST", "/v1/runs", key, body(), &headers).await;
    assert_eq!(again.status, StatusCode::BAD_REQUEST, "{}", again.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_follow_each_other_without_gap_or_repetition() {
    let rig = Rig::new().await;
    let key = Some(rig.operator.as_str());
    let mut made = Vec::new();
    for _ in 0..7 {
        let body = Some(json!({"command": ["true"]}));
        let ran = rig.call("POST", "/v1/runs", key, body).await.json();
        made.push(ran["run"].as_str().unwrap().to_owned());
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = rig
            .call("GET", &format!("/v1/runs?limit=3{cursor}"), key, None)
            .await
            .json();
        for run in page["runs"].as_array().unwrap() {
            seen.push(run["run"].as_str().unwrap().to_owned());
        }
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    made.sort();
    let mut sorted = seen.clone();
    sorted.sort();
    assert_eq!(sorted, made, "{seen:?}");
    for bad in [
        "limit=0",
        "limit=501",
        "cursor=x",
        "state=lost",
        "unknown=1",
    ] {
        let answer = rig.call("GET", &format!("/v1/runs?{bad}"), key, None).await;
        assert_eq!(
            answer.status,
            StatusCode::BAD_REQUEST,
            "{bad}: {}",
            answer.text()
        );
    }
}
