//! A control plane of its own for each test, called without a socket.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use leasehold_backend::fake::FakeBackend;
use leasehold_control::archive::{self, Entry, Tree};
use leasehold_control::clock::{Clock, SystemClock};
use leasehold_control::control::Control;
use leasehold_control::engine::Engine;
use leasehold_control::engine::backends::Backends;
use leasehold_control::engine::descriptors::Descriptors;
use leasehold_control::engine::modules::{NoTemplates, Scripts};
use leasehold_control::engine::parts::{Doing, NoWorkspaces, Objects, Parts, Settings};
use leasehold_control::entropy::{Entropy, SystemEntropy};
use leasehold_control::evidence::Keyring;
use leasehold_control::evidence::seal::Signer;
use leasehold_control::image::NoImages;
use leasehold_control::tools::StoredChecks;
use leasehold_control::vault::Vault;
use leasehold_core::digest::Digest;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::WorkerId;
use leasehold_store::sqlite::{Options, SqliteStore};
use serde_json::{Value, json};
use tower::ServiceExt;

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Objects as files of one directory.
struct Files(PathBuf);

impl Objects for Files {
    fn put(&self, file: File, bytes: u64) -> Doing<'_, Digest> {
        let mut content = vec![0; usize::try_from(bytes).unwrap()];
        file.read_exact_at(&mut content, 0).unwrap();
        let digest = Digest::of(&content);
        std::fs::write(self.0.join(digest.hex()), content).unwrap();
        Box::pin(std::future::ready(Ok(digest)))
    }

    fn read(&self, digest: Digest, offset: u64, most: usize) -> Doing<'_, Vec<u8>> {
        let read = std::fs::read(self.0.join(digest.hex())).map(|bytes| {
            let from = usize::try_from(offset).unwrap().min(bytes.len());
            bytes[from..bytes.len().min(from + most)].to_vec()
        });
        let missing = |_| PublicError::new(ErrorKind::NotFound, "no such object");
        Box::pin(std::future::ready(read.map_err(missing)))
    }

    fn size(&self, digest: Digest) -> Doing<'_, Option<u64>> {
        let found = std::fs::metadata(self.0.join(digest.hex()));
        Box::pin(std::future::ready(Ok(found.ok().map(|meta| meta.len()))))
    }

    fn list(&self, _: u8, _: std::time::Duration) -> Doing<'_, Vec<Digest>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn remove(&self, digest: Digest, _: std::time::Duration) -> Doing<'_, bool> {
        let gone = std::fs::remove_file(self.0.join(digest.hex())).is_ok();
        Box::pin(std::future::ready(Ok(gone)))
    }
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }
}

/// Keys and things of one tenant.
pub(crate) struct Tenant {
    pub(crate) auditor: String,
    pub(crate) runner: String,
    pub(crate) developer: String,
    pub(crate) admin: String,
    pub(crate) spare_key: String,
    pub(crate) run: String,
    pub(crate) tool: String,
}

/// Two tenants that have everything.
pub(crate) struct World {
    pub(crate) operator: String,
    pub(crate) acme: Tenant,
    pub(crate) globex: Tenant,
}

/// The door of a control plane.
pub(crate) struct Rig {
    pub(crate) router: Router,
    pub(crate) directories: leasehold_api::Directories,
    pub(crate) operator: String,
    dir: PathBuf,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A tool that echoes nothing, as a request to publish it.
pub(crate) fn publication(tool: &str, version: &str) -> Value {
    let manifest = format!(
        "id: {tool}\nversion: {version}\ndescription: a test\nentrypoint:\n  runtime: command\n  argv: [\"cat\"]\nsandbox:\n  trust: first_party\n"
    );
    json!({ "manifest": manifest })
}

/// A small archive.
pub(crate) fn archive() -> Vec<u8> {
    let mut tree: Tree = BTreeMap::new();
    let content = b"hello".to_vec();
    let executable = false;
    tree.insert(
        "a".into(),
        Entry::File {
            executable,
            content,
        },
    );
    archive::pack(&tree).unwrap()
}

impl Rig {
    pub(crate) async fn new() -> Self {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir =
            std::env::temp_dir().join(format!("leasehold-api-{}-{count}", std::process::id()));
        std::fs::create_dir_all(dir.join("objects")).unwrap();
        let store = Arc::new(SqliteStore::open(Options::new(dir.join("store"))).unwrap());
        let clock = Arc::new(SystemClock::new());
        let keyring = Keyring::open(dir.join("signing"), clock.unix_ms()).unwrap();
        let engine = Engine::start(Parts {
            store: store.clone(),
            objects: Arc::new(Files(dir.join("objects"))),
            backends: Backends::of(Arc::new(FakeBackend::new())),
            sealer: Arc::new(Signer::new(Arc::new(keyring), clock.clone())),
            checks: Arc::new(StoredChecks(store)),
            vault: Arc::new(Vault::in_memory().unwrap()),
            workspaces: Arc::new(NoWorkspaces),
            templates: Arc::new(NoTemplates),
            images: Arc::new(NoImages),
            scripts: Scripts::default(),
            clock,
            entropy: Arc::new(SystemEntropy),
            worker: WorkerId::from_entropy(&SystemEntropy.draw().unwrap()),
            descriptors: Descriptors::unbounded(),
            settings: Settings::default(),
            failpoints: Default::default(),
        })
        .await
        .unwrap();
        let control = Control::new(engine);
        let mut operator = String::new();
        let made = control.first_key(|token| {
            token.reveal().clone_into(&mut operator);
            Ok::<_, PublicError>(())
        });
        assert!(made.await.unwrap());
        let directories = leasehold_api::Directories::default();
        let router = leasehold_api::router(control, directories.clone());
        Self {
            router,
            directories,
            operator,
            dir,
        }
    }

    /// How many objects are kept.
    pub(crate) fn objects(&self) -> usize {
        std::fs::read_dir(self.dir.join("objects")).unwrap().count()
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        Answer {
            status: parts.status,
            headers: parts.headers,
            bytes: axum::body::to_bytes(body, 64 << 20).await.unwrap(),
        }
    }

    /// Calls with a JSON body, or none.
    pub(crate) async fn call(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: Option<Value>,
    ) -> Answer {
        self.with(method, path, token, body, &[]).await
    }

    /// Calls with more headers.
    pub(crate) async fn with(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: Option<Value>,
        headers: &[(&str, &str)],
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = match body {
            None => Body::empty(),
            Some(body) => {
                request = request.header("content-type", "application/json");
                Body::from(body.to_string())
            }
        };
        self.send(request.body(body).unwrap()).await
    }

    /// Calls with bytes of some type.
    pub(crate) async fn bytes(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        kind: &str,
        bytes: Vec<u8>,
    ) -> Answer {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", kind);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.send(request.body(Body::from(bytes)).unwrap()).await
    }

    /// Passes a directory as a local caller does.
    pub(crate) fn pass(&self, ticket: &str, directory: OwnedFd) {
        let mode = leasehold_core::spec::WorkspaceMode::Clone;
        self.directories
            .offer(ticket.into(), directory, mode)
            .unwrap();
    }

    /// A key of a tenant.
    pub(crate) async fn key(&self, tenant: &str, role: &str) -> (String, String) {
        let body = json!({
            "tenant": tenant, "project": "default", "principal": role, "role": role,
        });
        let answer = self
            .call("POST", "/v1/keys", Some(&self.operator), Some(body))
            .await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text());
        let made = answer.json();
        let [key, token] = [&made["key"]["key"], &made["token"]];
        (
            key.as_str().unwrap().to_owned(),
            token.as_str().unwrap().to_owned(),
        )
    }

    async fn tenant(&self, name: &str) -> Tenant {
        let operator = Some(self.operator.as_str());
        let made = self
            .call(
                "POST",
                "/v1/tenants",
                operator,
                Some(json!({ "name": name })),
            )
            .await;
        assert_eq!(made.status, StatusCode::CREATED, "{}", made.text());
        let document = json!({
            "version": 1,
            "allow": {
                "tools": "inherit", "commands": "inherit", "permissions": [], "egress": [],
                "credentials": [], "workspaces": "inherit", "trust": "inherit",
                "backends": "inherit", "placement": "inherit",
            },
            "trust": { "commands": "first_party", "tools": { "text.*": "first_party" } },
        });
        let policy =
            json!({ "scope": format!("platform/tenant/{name}"), "document": document.to_string() });
        let set = self
            .call("PUT", "/v1/policies", operator, Some(policy))
            .await;
        assert_eq!(set.status, StatusCode::OK, "{}", set.text());
        let (_, admin) = self.key(name, "admin").await;
        let developer = self.key(name, "developer").await.1;
        let tool = format!("text.{name}");
        let published = self
            .call(
                "POST",
                "/v1/tools",
                Some(&developer),
                Some(publication(&tool, "1.0.0")),
            )
            .await;
        assert_eq!(
            published.status,
            StatusCode::CREATED,
            "{}",
            published.text()
        );
        let body = json!({ "command": ["sh", "-c", "mkdir out && printf mine > out/a && ln -s /etc/passwd out/link"], "artifacts": ["out/*"] });
        let ran = self
            .call("POST", "/v1/runs?wait=cleanup", Some(&admin), Some(body))
            .await;
        assert_eq!(ran.status, StatusCode::OK, "{}", ran.text());
        Tenant {
            auditor: self.key(name, "auditor").await.1,
            runner: self.key(name, "runner").await.1,
            developer,
            spare_key: self.key(name, "runner").await.0,
            admin,
            run: ran.json()["run"].as_str().unwrap().to_owned(),
            tool,
        }
    }

    /// Two tenants with a run, a tool and keys each.
    pub(crate) async fn world(&self) -> World {
        World {
            operator: self.operator.clone(),
            acme: self.tenant("acme").await,
            globex: self.tenant("globex").await,
        }
    }
}
