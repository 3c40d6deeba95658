//! A store in a directory of its own, and the first operator.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_control::auth::{Token, authenticate};
use leasehold_control::keys::{self, KeyEntropy, KeyOrder};
use leasehold_core::error::PublicError;
use leasehold_core::name::Name;
use leasehold_core::tenant::{Principal, Role};
use leasehold_store::sqlite::{Options, SqliteStore};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Now, in these tests.
pub(crate) const NOW: u64 = 1_700_000_000_000;

/// A store with the tenant `default`, its operator, and a tenant `acme`.
pub(crate) struct Scratch {
    pub(crate) store: SqliteStore,
    pub(crate) operator: Principal,
    dir: PathBuf,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Entropy that is never the same.
pub(crate) fn entropy() -> KeyEntropy {
    let count = COUNT.fetch_add(1, Ordering::Relaxed).to_le_bytes();
    let mut id = [0; 13];
    let mut secret = [0; 32];
    id[..8].copy_from_slice(&count);
    secret[..8].copy_from_slice(&count);
    KeyEntropy { id, secret }
}

pub(crate) fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

pub(crate) fn order(tenant: &str, role: Role) -> KeyOrder {
    KeyOrder {
        tenant: Some(name(tenant)),
        project: name("default"),
        principal: name("ann"),
        role,
        grants: Vec::new(),
        expires_unix_ms: None,
    }
}

impl Scratch {
    pub(crate) async fn new() -> Self {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir =
            std::env::temp_dir().join(format!("leasehold-control-{}-{count}", std::process::id()));
        let store = SqliteStore::open(Options::new(&dir)).unwrap();
        let made = keys::first(&store, NOW, &entropy(), |_| Ok::<_, PublicError>(())).await;
        let (_, token) = made.unwrap().unwrap();
        let operator = authenticate(&store, token.reveal(), NOW).await.unwrap();
        leasehold_control::tenants::create(&store, &operator, NOW, name("acme"), vec![name("web")])
            .await
            .unwrap();
        Self {
            store,
            operator,
            dir,
        }
    }

    /// A new key of a tenant, and who it proves.
    pub(crate) async fn key(&self, tenant: &str, role: Role) -> (Token, Principal) {
        let order = order(tenant, role);
        let made = keys::create(&self.store, &self.operator, NOW, order, &entropy()).await;
        let (_, token) = made.unwrap();
        let who = authenticate(&self.store, token.reveal(), NOW)
            .await
            .unwrap();
        (token, who)
    }
}
