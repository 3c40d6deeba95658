//! The description, refusals and health.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::rig::{Rig, publication};

/// Where the description is committed.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");

#[test]
fn the_committed_description_is_the_generated_one() {
    let mut generated = serde_json::to_string_pretty(&leasehold_api::openapi()).unwrap();
    generated.push('\n');
    if std::env::var_os("LEASEHOLD_BLESS").is_some() {
        std::fs::write(GOLDEN, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(GOLDEN).unwrap_or_default();
    assert!(
        committed == generated,
        "the interface changed: look at it, then commit it with LEASEHOLD_BLESS=1 cargo test -p leasehold-api"
    );
}

#[tokio::test]
async fn health_needs_no_key_and_tells_nothing_else() {
    let rig = Rig::new().await;
    let alive = rig.call("GET", "/healthz", None, None).await;
    assert_eq!(
        (alive.status, alive.text().as_str()),
        (StatusCode::OK, "ok\n")
    );
    let ready = rig.call("GET", "/readyz", None, None).await;
    assert_eq!(ready.status, StatusCode::OK, "{}", ready.text());
    let metrics = rig.call("GET", "/metrics", Some(&rig.operator), None).await;
    assert!(metrics.text().contains("leasehold_"), "{}", metrics.text());
}

#[tokio::test]
async fn p67_whatever_is_wrong_with_a_token_looks_the_same() {
    let rig = Rig::new().await;
    let good = rig.operator.clone();
    let told = |answer: crate::rig::Answer| (answer.status, answer.text());
    let none = told(rig.call("GET", "/v1/runs", None, None).await);
    assert_eq!(none.0, StatusCode::UNAUTHORIZED);
    let altered = format!("{}x", &good[..good.len() - 1]);
    let long = "x".repeat(1 << 16);
    let other_key = good.replacen("lh_k", "lh_r", 1);
    for wrong in [
        "", " ", "lh_", &altered, &long, &other_key, "alg:none", "Bearer x",
    ] {
        let answer = told(rig.call("GET", "/v1/runs", Some(wrong), None).await);
        assert_eq!(answer, none, "{wrong:.40}");
    }
    let two = [("authorization", "Bearer x")];
    let answer = told(rig.with("GET", "/v1/runs", Some(&good), None, &two).await);
    assert_eq!(answer, none, "two headers");
    let query = told(
        rig.call("GET", &format!("/v1/runs?token={good}"), None, None)
            .await,
    );
    assert_eq!(query, none, "in the query");
    let basic = [("authorization", "Basic eDp5")];
    assert_eq!(
        told(rig.with("GET", "/v1/runs", None, None, &basic).await),
        none
    );
    // The control: the right one is taken.
    let answer = rig.call("GET", "/v1/runs", Some(&good), None).await;
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test]
async fn a_wrong_query_is_told_with_parameter_value_and_what_is_allowed() {
    let rig = Rig::new().await;
    for (path, told) in [
        (
            "/v1/runs?limit=many",
            "query: limit: \"many\": expected a whole number from 1 to 500",
        ),
        (
            "/v1/runs?state=done",
            "query: state: \"done\": expected queued, running, ended or sealed",
        ),
        (
            "/v1/runs?tool=A%20b",
            "query: tool: \"A b\": expected the name of a tool, without a version",
        ),
        (
            "/v1/runs?limit=1&limit=2",
            "query: limit: it is there twice",
        ),
        (
            "/v1/runs?limt=1",
            "query: \"limt\": unknown: known here are project, tool, state, cursor, limit",
        ),
        (
            "/v1/policies/effective?tool=x",
            "query: tool: \"x\": expected NAME@VERSION",
        ),
        (
            "/v1/log?from=-1",
            "query: from: \"-1\": expected a whole number from 0",
        ),
    ] {
        let answer = rig.call("GET", path, Some(&rig.operator), None).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}");
        assert!(
            answer.text().contains(&told.replace('"', "\\\"")),
            "{path}: {}",
            answer.text()
        );
    }
    let good = rig.call(
        "GET",
        "/v1/runs?limit=1&state=queued",
        Some(&rig.operator),
        None,
    );
    assert_eq!(good.await.status, StatusCode::OK);
}

#[tokio::test]
async fn p67_a_revoked_and_an_expired_key_are_no_keys() {
    let rig = Rig::new().await;
    let (key, token) = rig.key("default", "admin").await;
    assert_eq!(
        rig.call("GET", "/v1/runs", Some(&token), None).await.status,
        StatusCode::OK
    );
    let gone = rig
        .call(
            "DELETE",
            &format!("/v1/keys/{key}"),
            Some(&rig.operator),
            None,
        )
        .await;
    assert_eq!(gone.status, StatusCode::OK);
    let answer = rig.call("GET", "/v1/runs", Some(&token), None).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    let body = json!({"principal": "x", "role": "runner", "project": "default", "ttl_ms": 150});
    let made = rig
        .call("POST", "/v1/keys", Some(&rig.operator), Some(body))
        .await
        .json();
    let token = made["token"].as_str().unwrap();
    assert_eq!(
        rig.call("GET", "/v1/runs", Some(token), None).await.status,
        StatusCode::OK
    );
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let answer = rig.call("GET", "/v1/runs", Some(token), None).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn p68_what_a_request_may_not_say_is_named() {
    let rig = Rig::new().await;
    let key = Some(rig.operator.as_str());
    let cases = [
        (json!({"command": []}), "command"),
        (json!({}), "command"),
        (json!({"command": ["true"], "mounts": ["/"]}), "mounts"),
        (
            json!({"command": ["true"], "privileged": true}),
            "privileged",
        ),
        (json!({"command": ["true"], "user": "root"}), "user"),
        (
            json!({"command": ["true"], "env": {"LD_PRELOAD": "/x"}}),
            "LD_PRELOAD",
        ),
        (
            json!({"command": ["true"], "limits": {"memory": -1}}),
            "memory",
        ),
        (
            json!({"command": ["true"], "limits": {"memory": "12X"}}),
            "memory",
        ),
        (
            json!({"command": ["true"], "limits": {"pids": 1.5}}),
            "pids",
        ),
        (
            json!({"command": ["true"], "isolation": "none"}),
            "isolation",
        ),
        (json!({"tool": "../x", "input": {}}), "tool"),
    ];
    for (body, field) in cases {
        let answer = rig.call("POST", "/v1/runs", key, Some(body.clone())).await;
        assert_eq!(
            answer.status,
            StatusCode::BAD_REQUEST,
            "{body}: {}",
            answer.text()
        );
        let error = &answer.json()["error"];
        assert_eq!(error["code"], "invalid_input");
        assert!(
            error["message"].as_str().unwrap().contains(field),
            "{body}: {error}"
        );
    }
    let stronger = json!({"command": ["true"], "isolation": "gvisor"});
    let answer = rig.call("POST", "/v1/runs", key, Some(stronger)).await;
    assert_eq!(
        answer.status,
        StatusCode::SERVICE_UNAVAILABLE,
        "{}",
        answer.text()
    );
    assert_eq!(answer.json()["error"]["code"], "sandbox_unavailable");
}

#[tokio::test]
async fn every_refusal_has_the_one_form() {
    let rig = Rig::new().await;
    let key = Some(rig.operator.as_str());
    for (method, path, status) in [
        ("GET", "/", 404),
        ("GET", "/v2/runs", 404),
        ("PATCH", "/v1/runs", 405),
        ("GET", "/v1/runs/raaaaaaaaaaaaaaaaaaaa", 404),
        ("GET", "/v1/runs?limit=x", 400),
    ] {
        let answer = rig.call(method, path, key, None).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {path}");
        let error = answer.json()["error"].clone();
        for field in ["code", "message", "type", "retryable", "details", "hint"] {
            assert!(error.get(field).is_some(), "{path} lacks {field}: {error}");
        }
        assert_ne!(error["message"], Value::Null);
    }
    let no_json = rig
        .bytes("POST", "/v1/runs", key, "text/plain", b"x".to_vec())
        .await;
    assert!(
        no_json.text().contains("content-type"),
        "{}",
        no_json.text()
    );
}

/// What a refused publication sent would be counted for nobody.
#[tokio::test]
async fn a_version_that_is_there_takes_no_other_package() {
    use base64::Engine as _;
    use leasehold_control::archive::{Entry, pack};
    let rig = Rig::new().await;
    let publish = async |content: &str| {
        let content = content.as_bytes().to_vec();
        let executable = false;
        let file = Entry::File {
            executable,
            content,
        };
        let package = pack(&[(".tool/data".to_owned(), file)].into()).unwrap();
        let mut body = publication("text.packed", "1.0.0");
        body["package"] = json!(base64::engine::general_purpose::STANDARD.encode(package));
        let answer = rig.call("POST", "/v1/tools", Some(&rig.operator), Some(body));
        answer.await.status
    };
    assert_eq!(rig.objects(), 0);
    assert_eq!(publish("one").await, StatusCode::CREATED);
    assert_eq!(rig.objects(), 1);
    for other in ["two", "three"] {
        assert_eq!(publish(other).await, StatusCode::CONFLICT);
    }
    assert_eq!(rig.objects(), 1);
    assert_eq!(publish("one").await, StatusCode::CREATED);
}
