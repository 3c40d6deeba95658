//! What people with rights change and read: tools, policies, tenants, keys, workers, the tenant's log.

use leasehold_core::digest::Digest;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::event::{Head, TenantEntry};
use leasehold_core::id::{KeyId, RunId};
use leasehold_core::name::{Name, ToolRef};
use leasehold_core::policy::{Explained, Level, Scope};
use leasehold_core::tenant::{Operation, Principal, Tenant};
use leasehold_store::seam::{KeyRow, ToolRow, ToolState, WorkerRow};

use super::{Control, Published};
use crate::access::allowed;
use crate::archive::{self, ARCHIVE_MAX};
use crate::auth::Token;
use crate::engine::modules::in_memory;
use crate::keys::{self, KeyEntropy, KeyOrder};
use crate::policies::{self, Named, Subject};
use crate::request::ToolWish;
use crate::{module, tenants, tools, uploads};

impl Control {
    fn now(&self) -> u64 {
        self.engine.parts.clock.unix_ms()
    }

    /// Keeps bytes that are at hand, by way of a file in memory.
    async fn keep(&self, bytes: &[u8]) -> Result<Digest, PublicError> {
        let failed = |error: &dyn std::error::Error| {
            PublicError::new(
                ErrorKind::Unavailable,
                format!("no memory for the upload: {error}"),
            )
        };
        let file = in_memory(bytes).map_err(|error| failed(&error))?;
        self.engine
            .parts
            .objects
            .put(file, bytes.len() as u64)
            .await
    }

    /// Takes a WebAssembly module; gives its digest, for a later request.
    ///
    /// # Errors
    /// `invalid` for bytes that are none, or too many; `quota` when the tenant has uploaded too much.
    pub async fn upload_module(
        &self,
        who: &Principal,
        bytes: Vec<u8>,
    ) -> Result<Digest, PublicError> {
        allowed(who, Operation::Run)?;
        module::check(&bytes)
            .map_err(|why| PublicError::new(ErrorKind::Invalid, format!("module: {why}")))?;
        uploads::take(&self.engine, who, &bytes, self.keep(&bytes)).await
    }

    /// Takes a workspace's content as a tar archive; gives its digest, for a later request.
    ///
    /// # Errors
    /// `invalid` for an archive that is too large or holds what may not be in one; `quota` when the tenant
    /// has uploaded too much.
    pub async fn upload(&self, who: &Principal, bytes: Vec<u8>) -> Result<Digest, PublicError> {
        allowed(who, Operation::Run)?;
        archive::unpack(&bytes)
            .and_then(|tree| archive::check_content(&tree))
            .map_err(|error| PublicError::new(ErrorKind::Invalid, format!("archive: {error}")))?;
        uploads::take(&self.engine, who, &bytes, self.keep(&bytes)).await
    }

    /// Published tools: versions of one or of all, by name, newest version first.
    ///
    /// # Errors
    /// `forbidden`.
    pub async fn tools(
        &self,
        who: &Principal,
        tool: Option<Name>,
    ) -> Result<Vec<ToolRow>, PublicError> {
        tools::list(self.engine.parts.store.as_ref(), who, tool).await
    }

    /// One version of a tool.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn tool(&self, who: &Principal, tool: &ToolRef) -> Result<ToolRow, PublicError> {
        let wish = ToolWish {
            name: tool.tool.clone(),
            exact: Some(tool.clone()),
        };
        tools::get(self.engine.parts.store.as_ref(), who, &wish).await
    }

    /// Checks and publishes a tool with the archive of its files. A WebAssembly module is compiled before, for
    /// a bounded time; what takes longer goes on afterwards.
    ///
    /// # Errors
    /// `invalid` with everything that is wrong, a module that cannot be compiled among it; `exists` for a
    /// version that is there with another manifest; `quota` when the packages of the tenant have too many
    /// bytes.
    pub async fn publish_tool(
        &self,
        who: &Principal,
        manifest: &[u8],
        package: Option<&[u8]>,
    ) -> Result<Published, PublicError> {
        allowed(who, Operation::WriteTools)?;
        if let Some(bytes) = package
            && bytes.len() > ARCHIVE_MAX
        {
            return Err(PublicError::new(
                ErrorKind::Invalid,
                format!(
                    "the archive has {} bytes: most is {ARCHIVE_MAX}",
                    bytes.len()
                ),
            ));
        }
        let mut publication = tools::check(manifest, package)?;
        let store = self.engine.parts.store.as_ref();
        tools::present(store, who, &publication).await?;
        let code = self.compile(who, &mut publication, package).await?;
        let _alone = self.engine.uploading.lock().await;
        tools::present(store, who, &publication).await?;
        if let Some(bytes) = package {
            let objects = self.engine.parts.objects.as_ref();
            tools::room(store, objects, &who.tenant, bytes).await?;
            self.keep(bytes).await?;
        }
        let row = tools::publish(store, who, self.now(), &publication).await?;
        Ok(Published {
            row,
            warnings: publication.warnings,
            code,
        })
    }

    /// Deprecates, quarantines or reactivates a version.
    ///
    /// # Errors
    /// `not_found`, `forbidden`.
    pub async fn set_tool_state(
        &self,
        who: &Principal,
        tool: &ToolRef,
        state: ToolState,
        note: Option<String>,
    ) -> Result<ToolRow, PublicError> {
        let store = self.engine.parts.store.as_ref();
        tools::set_state(store, who, self.now(), tool, state, note).await
    }

    /// Policies in force that the caller may see.
    ///
    /// # Errors
    /// `forbidden`.
    pub async fn policies(&self, who: &Principal) -> Result<Vec<Level>, PublicError> {
        policies::list(self.engine.parts.store.as_ref(), who).await
    }

    /// The policy in force at a scope.
    ///
    /// # Errors
    /// `invalid` for what is no scope; `not_found`.
    pub async fn policy(&self, who: &Principal, scope: &str) -> Result<Level, PublicError> {
        let store = self.engine.parts.store.as_ref();
        policies::get(store, who, read_scope(scope)?, None).await
    }

    /// Puts a policy in force.
    ///
    /// # Errors
    /// `invalid` with everything that is wrong; `forbidden`; `conflict`.
    pub async fn put_policy(
        &self,
        who: &Principal,
        scope: &str,
        document: &str,
    ) -> Result<Level, PublicError> {
        let store = self.engine.parts.store.as_ref();
        let scope = read_scope(scope)?;
        policies::publish(store, who, self.now(), scope, document.as_bytes()).await
    }

    /// What the policies come to for the caller, or whom it names.
    ///
    /// # Errors
    /// `forbidden`; `not_found` for a tenant that is not there or, but for an operator, another's.
    pub async fn explain_policy(
        &self,
        who: &Principal,
        named: Named,
    ) -> Result<Vec<Explained>, PublicError> {
        let store = self.engine.parts.store.as_ref();
        let subject = Subject::of(who, named)?;
        tenants::get(store, who, &subject.tenant).await?;
        policies::explain(store, who, &subject).await
    }

    /// Tenants the caller may see.
    ///
    /// # Errors
    /// `forbidden`.
    pub async fn tenants(&self, who: &Principal) -> Result<Vec<Tenant>, PublicError> {
        tenants::list(self.engine.parts.store.as_ref(), who).await
    }

    /// One tenant.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn tenant(&self, who: &Principal, name: &Name) -> Result<Tenant, PublicError> {
        tenants::get(self.engine.parts.store.as_ref(), who, name).await
    }

    /// Makes a tenant.
    ///
    /// # Errors
    /// `forbidden`; `exists` for a name that was ever used.
    pub async fn create_tenant(&self, who: &Principal, name: &Name) -> Result<Tenant, PublicError> {
        let store = self.engine.parts.store.as_ref();
        let made = tenants::create(store, who, self.now(), name.clone(), Vec::new()).await?;
        self.engine.tenant_came();
        Ok(made)
    }

    /// Suspends a tenant or lets it go on.
    ///
    /// # Errors
    /// `forbidden`, `not_found`.
    pub async fn suspend_tenant(
        &self,
        who: &Principal,
        name: &Name,
        suspended: bool,
    ) -> Result<Tenant, PublicError> {
        let store = self.engine.parts.store.as_ref();
        tenants::suspend(store, who, self.now(), name, suspended).await
    }

    /// Keys of a tenant; of the caller's own where none is named.
    ///
    /// # Errors
    /// `forbidden`, `not_found`.
    pub async fn keys(
        &self,
        who: &Principal,
        tenant: Option<Name>,
    ) -> Result<Vec<KeyRow>, PublicError> {
        keys::list(self.engine.parts.store.as_ref(), who, tenant.as_ref()).await
    }

    /// Makes a key that is good for so long; its token is in the answer and nowhere else.
    ///
    /// # Errors
    /// `forbidden`, `invalid`, `not_found`, `quota`.
    pub async fn create_key(
        &self,
        who: &Principal,
        order: KeyOrder,
    ) -> Result<(KeyRow, Token), PublicError> {
        let store = self.engine.parts.store.as_ref();
        keys::create(store, who, self.now(), order, &self.key_entropy()?).await
    }

    /// When something that is good for so long ends, milliseconds since 1970.
    #[must_use]
    pub fn ends_in(&self, ttl_ms: u64) -> u64 {
        self.now().saturating_add(ttl_ms)
    }

    /// Revokes a key.
    ///
    /// # Errors
    /// `forbidden`, `not_found`.
    pub async fn revoke_key(&self, who: &Principal, key: &KeyId) -> Result<KeyRow, PublicError> {
        keys::revoke(self.engine.parts.store.as_ref(), who, self.now(), key).await
    }

    /// Makes the tenant `default` and an operator's key in it where there is no tenant yet; `keep` is to keep
    /// its token durably, and has done so before the key is there. Says whether one was made.
    ///
    /// # Errors
    /// What `keep` says, or when the store fails.
    pub async fn first_key<E: From<PublicError>>(
        &self,
        keep: impl FnOnce(&Token) -> Result<(), E>,
    ) -> Result<bool, E> {
        let store = self.engine.parts.store.as_ref();
        let failpoints = self.engine.failpoints();
        let kept = |token: &Token| {
            keep(token)?;
            failpoints.before("first_key");
            Ok::<_, E>(())
        };
        let made = keys::first(store, self.now(), &self.key_entropy()?, kept).await?;
        failpoints.after("first_key");
        Ok(made.is_some())
    }

    /// Whether anybody could prove who they are.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn has_keys(&self) -> Result<bool, PublicError> {
        let store = &self.engine.parts.store;
        let now = self.now();
        for tenant in store.tenants().await.map_err(|error| error.public())? {
            let keys = store
                .keys(tenant.name)
                .await
                .map_err(|error| error.public())?;
            if keys.iter().any(|key| crate::auth::is_live(key, now)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn key_entropy(&self) -> Result<KeyEntropy, PublicError> {
        let entropy = &self.engine.parts.entropy;
        let mut secret = [0; 32];
        for part in secret.chunks_mut(13) {
            let drawn = entropy.draw()?;
            part.copy_from_slice(&drawn[..part.len()]);
        }
        Ok(KeyEntropy {
            id: entropy.draw()?,
            secret,
        })
    }

    /// Workers heard of.
    ///
    /// # Errors
    /// `forbidden`.
    pub async fn workers(&self, who: &Principal) -> Result<Vec<WorkerRow>, PublicError> {
        allowed(who, Operation::Platform)?;
        let parts = &self.engine.parts;
        let rows = parts.store.workers().await;
        let mut rows = rows.map_err(|error| error.public())?;
        // The one of this process is known here, and is heard of now.
        rows.retain(|row| row.worker != parts.worker);
        rows.insert(
            0,
            WorkerRow {
                worker: parts.worker.clone(),
                capabilities: self.offers.told().to_string(),
                seen_unix_ms: parts.clock.unix_ms(),
            },
        );
        Ok(rows)
    }

    /// Runs that were set aside, and why.
    ///
    /// # Errors
    /// `forbidden`.
    pub fn stuck(&self, who: &Principal) -> Result<Vec<(RunId, String)>, PublicError> {
        allowed(who, Operation::Platform)?;
        Ok(self.engine.stuck())
    }

    /// Whether a run was set aside; for whoever has its row.
    #[must_use]
    pub fn is_stuck(&self, run: &RunId) -> bool {
        self.engine.is_stuck(run)
    }

    /// Entries of the caller's tenant's log from `from`, its end, and its newest signed head.
    ///
    /// # Errors
    /// `forbidden`.
    pub async fn log(
        &self,
        who: &Principal,
        from: u64,
    ) -> Result<(Vec<TenantEntry>, Head, Option<String>), PublicError> {
        allowed(who, Operation::ReadEvidence)?;
        let store = &self.engine.parts.store;
        let tenant = who.tenant.clone();
        let entries = store.log(tenant.clone(), from).await;
        let head = store.log_head(tenant.clone()).await;
        let signed = store.signed_head(tenant).await;
        let public = |error: leasehold_store::seam::StoreError| error.public();
        Ok((
            entries.map_err(public)?,
            head.map_err(public)?,
            signed.map_err(public)?.map(|signed| signed.envelope),
        ))
    }
}

fn read_scope(text: &str) -> Result<Scope, PublicError> {
    Scope::parse(text).map_err(|error| PublicError::new(ErrorKind::Invalid, error.to_string()))
}
