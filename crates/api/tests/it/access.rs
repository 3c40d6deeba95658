//! Every route × {own, another's, unknown, malformed, no key, too weak a role}.
//!
//! The routes are read from the description, so a route without a case here fails this test.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::rig::{Answer, Rig, World};

/// How a route is called.
struct Case {
    method: &'static str,
    path: &'static str,
    /// What it is sent.
    body: fn() -> Option<Value>,
    /// Its content type, if not JSON.
    kind: Option<&'static str>,
    /// Which names and ids go into the path, of the caller's own tenant.
    own: fn(&World) -> Vec<String>,
    /// The same of another tenant; empty where the path has none.
    others: fn(&World) -> Vec<String>,
    /// The same, of nobody.
    unknown: fn() -> Vec<&'static str>,
    /// Texts that cannot be any; none where every text is a name of something that may not be there.
    malformed: &'static [&'static str],
    /// The weakest key that may do it.
    needs: Key,
}

/// Keys, by what they may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    /// None at all.
    Nobody,
    Auditor,
    Runner,
    Developer,
    Admin,
    Operator,
}

const UNKNOWN_RUN: &str = "raaaaaaaaaaaaaaaaaaaa";
const UNKNOWN_KEY: &str = "kaaaaaaaaaaaaaaaaaaaa";
const MODULE_KIND: &str = "application/wasm";
/// A module that exports an empty `_start`.
const MODULE: &[u8] = b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x03\x02\x01\0\x07\x0a\x01\x06_start\0\0\x0a\x04\x01\x02\0\x0b";
const BAD_IDS: &[&str] = &["x", "..", "r%2f", "r*", "RAAAAAAAAAAAAAAAAAAAA"];

fn nothing() -> Option<Value> {
    None
}

const fn get(path: &'static str, needs: Key) -> Case {
    Case {
        method: "GET",
        path,
        body: nothing,
        kind: None,
        own: |_| Vec::new(),
        others: |_| Vec::new(),
        unknown: Vec::new,
        malformed: &[],
        needs,
    }
}

const fn of_run(method: &'static str, path: &'static str, needs: Key) -> Case {
    Case {
        method,
        own: |world| vec![world.acme.run.clone()],
        others: |world| vec![world.globex.run.clone()],
        unknown: || vec![UNKNOWN_RUN],
        malformed: BAD_IDS,
        ..get(path, needs)
    }
}

const fn post(path: &'static str, body: fn() -> Option<Value>, needs: Key) -> Case {
    Case {
        method: "POST",
        body,
        ..get(path, needs)
    }
}

const CASES: &[Case] = &[
    get("/healthz", Key::Nobody),
    get("/readyz", Key::Nobody),
    get("/metrics", Key::Operator),
    post(
        "/v1/runs",
        || Some(json!({"command": ["true"]})),
        Key::Runner,
    ),
    get("/v1/runs", Key::Auditor),
    of_run("GET", "/v1/runs/{run}", Key::Auditor),
    Case {
        body: || Some(json!({})),
        ..of_run("POST", "/v1/runs/{run}/cancel", Key::Runner)
    },
    of_run("GET", "/v1/runs/{run}/contract", Key::Auditor),
    of_run("GET", "/v1/runs/{run}/events", Key::Auditor),
    of_run("GET", "/v1/runs/{run}/artifacts", Key::Auditor),
    of_run("GET", "/v1/runs/{run}/audit", Key::Auditor),
    of_run("GET", "/v1/runs/{run}/evidence", Key::Auditor),
    of_run("GET", "/v1/runs/{run}/explain", Key::Auditor),
    Case {
        own: |world| vec![world.acme.run.clone(), "stdout".into()],
        others: |world| vec![world.globex.run.clone(), "stdout".into()],
        unknown: || vec![UNKNOWN_RUN, "stdout"],
        ..of_run("GET", "/v1/runs/{run}/logs/{stream}", Key::Auditor)
    },
    Case {
        own: |world| vec![world.acme.run.clone(), "0".into()],
        others: |world| vec![world.globex.run.clone(), "0".into()],
        unknown: || vec![UNKNOWN_RUN, "0"],
        ..of_run("GET", "/v1/runs/{run}/artifacts/{index}", Key::Auditor)
    },
    Case {
        kind: Some("application/x-tar"),
        ..post("/v1/uploads", nothing, Key::Runner)
    },
    Case {
        kind: Some(MODULE_KIND),
        ..post("/v1/uploads", nothing, Key::Runner)
    },
    get("/v1/tools", Key::Auditor),
    post(
        "/v1/tools",
        || Some(crate::rig::publication("text.more", "9.9.9")),
        Key::Developer,
    ),
    Case {
        own: |world| vec![world.acme.tool.clone()],
        others: |world| vec![world.globex.tool.clone()],
        unknown: || vec!["nobody.has"],
        malformed: &["..", "A", "a%2fb"],
        ..get("/v1/tools/{tool}", Key::Auditor)
    },
    Case {
        own: |world| vec![world.acme.tool.clone(), "1.0.0".into()],
        others: |world| vec![world.globex.tool.clone(), "1.0.0".into()],
        unknown: || vec!["nobody.has", "1.0.0"],
        malformed: &["..", "A"],
        ..get("/v1/tools/{tool}/{version}", Key::Auditor)
    },
    Case {
        method: "PUT",
        body: || Some(json!({"state": "deprecated", "note": "old"})),
        own: |world| vec![world.acme.tool.clone(), "1.0.0".into()],
        others: |world| vec![world.globex.tool.clone(), "1.0.0".into()],
        unknown: || vec!["nobody.has", "1.0.0"],
        malformed: &["..", "A"],
        ..get("/v1/tools/{tool}/{version}/state", Key::Developer)
    },
    get("/v1/tenants", Key::Auditor),
    post(
        "/v1/tenants",
        || Some(json!({"name": "initech"})),
        Key::Operator,
    ),
    Case {
        own: |_| vec!["acme".into()],
        others: |_| vec!["globex".into()],
        unknown: || vec!["nobody"],
        malformed: &["..", "A"],
        ..get("/v1/tenants/{tenant}", Key::Auditor)
    },
    Case {
        method: "PUT",
        body: || Some(json!({"suspended": false})),
        own: |_| vec!["acme".into()],
        ..get("/v1/tenants/{tenant}/suspended", Key::Operator)
    },
    get("/v1/keys", Key::Admin),
    post(
        "/v1/keys",
        || Some(json!({"principal": "bob", "role": "runner", "project": "default"})),
        Key::Admin,
    ),
    Case {
        method: "DELETE",
        own: |world| vec![world.acme.spare_key.clone()],
        others: |world| vec![world.globex.spare_key.clone()],
        unknown: || vec![UNKNOWN_KEY],
        malformed: BAD_IDS,
        ..get("/v1/keys/{key}", Key::Admin)
    },
    get("/v1/policies", Key::Auditor),
    Case {
        method: "PUT",
        body: || {
            let document = json!({"version": 1, "limits": {"timeout": "1m"}});
            Some(json!({"scope": "tenant/acme/project/other", "document": document.to_string()}))
        },
        ..get("/v1/policies", Key::Admin)
    },
    // What the operator says of the tenant: no role of the tenant's own may replace it.
    Case {
        method: "PUT",
        body: || {
            let document = json!({"version": 1, "limits": {"timeout": "1m"}});
            Some(json!({"scope": "platform/tenant/acme", "document": document.to_string()}))
        },
        ..get("/v1/policies", Key::Operator)
    },
    get("/v1/policies/effective", Key::Auditor),
    get("/v1/workers", Key::Operator),
    get("/v1/log", Key::Auditor),
];

/// A path with its parts filled in.
fn fill<S: AsRef<str>>(path: &str, parts: &[S]) -> String {
    let mut parts = parts.iter();
    let filled = path.split('/').map(|part| match part.starts_with('{') {
        true => parts.next().expect("a part for each place").as_ref(),
        false => part,
    });
    filled.collect::<Vec<_>>().join("/")
}

async fn call(rig: &Rig, case: &Case, path: &str, token: Option<&str>) -> Answer {
    match case.kind {
        Some(kind) => {
            let bytes = match kind {
                MODULE_KIND => MODULE.to_vec(),
                _ => crate::rig::archive(),
            };
            rig.bytes(case.method, path, token, kind, bytes).await
        }
        None => rig.call(case.method, path, token, (case.body)()).await,
    }
}

fn token(world: &World, key: Key) -> Option<&str> {
    match key {
        Key::Nobody => None,
        Key::Auditor => Some(&world.acme.auditor),
        Key::Runner => Some(&world.acme.runner),
        Key::Developer => Some(&world.acme.developer),
        Key::Admin => Some(&world.acme.admin),
        Key::Operator => Some(&world.operator),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p66_every_route_has_a_case() {
    let description = serde_json::to_value(leasehold_api::openapi()).unwrap();
    let described: BTreeSet<(String, String)> = description["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().keys();
            methods.map(move |method| (method.to_uppercase(), path.clone()))
        })
        .collect();
    let cased: BTreeSet<(String, String)> = CASES
        .iter()
        .map(|case| (case.method.to_owned(), case.path.to_owned()))
        .collect();
    assert_eq!(described, cased, "a route has no case, or a case no route");
}

#[tokio::test(flavor = "multi_thread")]
async fn p66_what_is_anothers_looks_like_what_is_not_there() {
    let rig = Rig::new().await;
    let world = rig.world().await;
    for case in CASES.iter().filter(|case| case.needs != Key::Nobody) {
        let name = format!("{} {}", case.method, case.path);
        let others = (case.others)(&world);
        if others.is_empty() {
            continue;
        }
        // An admin may do all there is within a tenant, so that nothing but ownership stands in the way.
        let key = match case.needs {
            Key::Operator => continue,
            _ => Some(world.acme.admin.as_str()),
        };
        let unknown = call(&rig, case, &fill(case.path, &(case.unknown)()), key).await;
        assert_eq!(
            unknown.status,
            StatusCode::NOT_FOUND,
            "{name}: {}",
            unknown.text()
        );
        let other = call(&rig, case, &fill(case.path, &others), key).await;
        assert_eq!(
            (other.status, other.text()),
            (unknown.status, unknown.text()),
            "{name} tells what is another's"
        );
        for bad in case.malformed {
            let mut parts: Vec<&str> = (case.unknown)();
            parts[0] = bad;
            let answer = call(&rig, case, &fill(case.path, &parts), key).await;
            assert!(
                matches!(answer.status.as_u16(), 400 | 404 | 405),
                "{name} with {bad:?}: {}",
                answer.status
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p66_each_role_does_what_it_may_and_no_more() {
    let rig = Rig::new().await;
    let world = rig.world().await;
    let keys = [
        Key::Auditor,
        Key::Runner,
        Key::Developer,
        Key::Admin,
        Key::Operator,
    ];
    for case in CASES {
        let name = format!("{} {}", case.method, case.path);
        let path = fill(case.path, &(case.own)(&world));
        let stranger = call(&rig, case, &path, None).await;
        let wrong = call(&rig, case, &path, Some("lh_kaaaaaaaaaaaaaaaaaaaa_aaaa")).await;
        if case.needs == Key::Nobody {
            assert_eq!(stranger.status, StatusCode::OK, "{name}");
            continue;
        }
        assert_eq!(
            stranger.status,
            StatusCode::UNAUTHORIZED,
            "{name} without a key"
        );
        assert_eq!(
            (wrong.status, wrong.text()),
            (stranger.status, stranger.text()),
            "{name} with a wrong key"
        );
        for key in keys {
            // Reading needs no strength, so that a stronger role is not always the more able one.
            let may = may(case, key);
            let answer = call(&rig, case, &path, token(&world, key)).await;
            let refused = matches!(answer.status.as_u16(), 401 | 403);
            assert_eq!(
                !refused,
                may,
                "{name} as {key:?}: {} {}",
                answer.status,
                answer.text()
            );
        }
    }
}

/// Whether a key may do it, by the table of roles in the core.
fn may(case: &Case, key: Key) -> bool {
    let evidence = ["audit", "evidence", "explain", "/v1/log", "/v1/policies"];
    let rank = |key: Key| key as u8;
    if case.method == "GET" && case.needs == Key::Auditor && key == Key::Runner {
        return !evidence.iter().any(|part| case.path.contains(part));
    }
    match (case.needs, key) {
        (Key::Runner, Key::Auditor) => false,
        (needs, key) => rank(key) >= rank(needs),
    }
}

/// A kind of upload, its bytes, and a request that names one by its digest.
type Kind = (&'static str, Vec<u8>, fn(&str) -> Value);

fn of_module(digest: &str) -> Value {
    json!({"command": ["x"], "module": digest})
}

fn of_archive(digest: &str) -> Value {
    json!({"command": ["true"], "workspace": {"mode": "upload", "content": digest}})
}

/// What was uploaded is named by the digest of its bytes, which another tenant may know: that opens nothing, and looks
/// like what nobody uploaded.
#[tokio::test(flavor = "multi_thread")]
async fn p66_an_upload_is_its_tenants_alone_whoever_knows_its_digest() {
    let rig = Rig::new().await;
    let world = rig.world().await;
    let unknown = format!("sha256:{}", "0".repeat(64));
    let kinds: [Kind; 2] = [
        (MODULE_KIND, MODULE.to_vec(), of_module),
        ("application/x-tar", crate::rig::archive(), of_archive),
    ];
    for (kind, bytes, request) in kinds {
        let (path, key) = ("/v1/uploads", Some(world.acme.runner.as_str()));
        let made = rig.bytes("POST", path, key, kind, bytes.clone()).await;
        assert_eq!(made.status, StatusCode::CREATED, "{kind}: {}", made.text());
        let digest = made.json()["digest"].as_str().unwrap().to_owned();
        let run = async |key: &str, digest: &str| {
            rig.call("POST", "/v1/runs", Some(key), Some(request(digest)))
                .await
        };
        // The control: to its own tenant it is there, whatever becomes of the run.
        let own = run(&world.acme.runner, &digest).await;
        assert!(
            !own.text().contains("no such upload"),
            "{kind}: {}",
            own.text()
        );
        let other = run(&world.globex.admin, &digest).await;
        let nobodys = run(&world.globex.admin, &unknown).await;
        assert_eq!(
            nobodys.status,
            StatusCode::BAD_REQUEST,
            "{}",
            nobodys.text()
        );
        assert!(
            nobodys.text().contains("no such upload"),
            "{}",
            nobodys.text()
        );
        assert_eq!(
            (other.status, other.text().replace(&digest, &unknown)),
            (nobodys.status, nobodys.text()),
            "{kind} tells what is another's"
        );
        let malformed = ["", "x", "..", "sha256:", "sha256:00", "sha512:00"];
        for bad in malformed.into_iter().chain([&digest[..70]]) {
            let answer = run(&world.acme.runner, bad).await;
            let text = answer.text();
            assert_eq!(
                answer.status,
                StatusCode::BAD_REQUEST,
                "{kind} {bad:?}: {text}"
            );
        }
        // The other tenant sends the same bytes: now they are its own, too.
        let key = Some(world.globex.runner.as_str());
        let again = rig.bytes("POST", path, key, kind, bytes).await;
        assert_eq!(again.status, StatusCode::CREATED, "{}", again.text());
        let theirs = run(&world.globex.runner, &digest).await;
        assert!(
            !theirs.text().contains("no such upload"),
            "{}",
            theirs.text()
        );
    }
}

/// What is no module, and what is none of the kinds, is refused.
#[tokio::test(flavor = "multi_thread")]
async fn p68_an_upload_of_no_kind_is_refused() {
    let rig = Rig::new().await;
    let world = rig.world().await;
    for (kind, bytes) in [
        (MODULE_KIND, b"\0asm".to_vec()),
        (MODULE_KIND, crate::rig::archive()),
        ("application/zip", MODULE.to_vec()),
    ] {
        let key = Some(world.acme.runner.as_str());
        let answer = rig.bytes("POST", "/v1/uploads", key, kind, bytes).await;
        assert_eq!(
            answer.status,
            StatusCode::BAD_REQUEST,
            "{kind}: {}",
            answer.text()
        );
    }
}

/// The control of the matrix: with a key of the other tenant the same paths are there.
#[tokio::test(flavor = "multi_thread")]
async fn p66_the_other_tenant_sees_its_own() {
    let rig = Rig::new().await;
    let world = rig.world().await;
    for path in [
        format!("/v1/runs/{}", world.globex.run),
        format!("/v1/tools/{}/1.0.0", world.globex.tool),
        "/v1/tenants/globex".to_owned(),
    ] {
        let answer = rig
            .call("GET", &path, Some(&world.globex.admin), None)
            .await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text());
        let answer = rig.call("GET", &path, Some(&world.acme.admin), None).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
    }
    let page = rig
        .call("GET", "/v1/runs?limit=500", Some(&world.acme.admin), None)
        .await;
    assert!(!page.text().contains(&world.globex.run) && page.text().contains(&world.acme.run));
}
