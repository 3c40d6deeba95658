//! Archives that tenants uploaded: each is its tenant's alone, and bounded in number and bytes.

use leasehold_core::digest::Digest;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::name::Name;
use leasehold_core::tenant::Principal;
use leasehold_store::seam::{Store, StoreError, UploadBounds, UploadRow};

use crate::engine::Engine;
use crate::request::{ModuleFrom, ModuleWish, RunRequest, What, WorkspaceWish};

/// Most that a tenant may have uploaded at once; what no live run begins with goes a day after it was last
/// uploaded.
pub const BOUNDS: UploadBounds = UploadBounds {
    count_max: 1_000,
    bytes_max: 8 << 30,
};

fn public(error: &StoreError) -> PublicError {
    let error = error.public();
    match error.kind {
        ErrorKind::Quota => error
            .hint("an upload that no live run begins with goes a day after it was last uploaded"),
        _ => error,
    }
}

/// Takes an archive in: counted first and noted last, so that no row names bytes that are not there and
/// what is over the bound is never written.
///
/// # Errors
/// `quota`; when the archive cannot be kept.
pub(crate) async fn take(
    engine: &Engine,
    who: &Principal,
    bytes: &[u8],
    keep: impl Future<Output = Result<Digest, PublicError>>,
) -> Result<Digest, PublicError> {
    let _alone = engine.uploading.lock().await;
    let parts = &engine.parts;
    let row = |digest| UploadRow {
        tenant: who.tenant.clone(),
        digest,
        bytes: bytes.len() as u64,
        at_unix_ms: parts.clock.unix_ms(),
    };
    let room = parts.store.room_for_upload(row(Digest::of(bytes)), BOUNDS);
    room.await.map_err(|error| public(&error))?;
    let digest = keep.await?;
    let noted = parts.store.put_upload(row(digest), BOUNDS).await;
    noted.map_err(|error| public(&error))?;
    Ok(digest)
}

/// Refuses a request whose workspace or module is what its tenant never uploaded.
///
/// # Errors
/// `invalid` with the field; when the store fails.
pub(crate) async fn check(
    store: &dyn Store,
    tenant: &Name,
    request: &RunRequest,
) -> Result<(), PublicError> {
    if let WorkspaceWish::Upload(digest) = request.workspace {
        there(store, tenant, ("workspace.content", "archive"), digest).await?;
    }
    if let What::Command {
        module:
            Some(ModuleWish {
                from: ModuleFrom::Upload(digest),
                ..
            }),
        ..
    } = request.what
    {
        there(store, tenant, ("module", "module"), digest).await?;
    }
    Ok(())
}

async fn there(
    store: &dyn Store,
    tenant: &Name,
    (field, what): (&str, &str),
    digest: Digest,
) -> Result<(), PublicError> {
    match store.upload(tenant.clone(), digest).await {
        Ok(_) => Ok(()),
        Err(StoreError::NotFound(_)) => Err(PublicError::new(
            ErrorKind::Invalid,
            format!("{field}: {digest}: no such upload"),
        )
        .hint(format!(
            "upload the {what} first, by POST /v1/uploads; it is kept for a day"
        ))),
        Err(error) => Err(error.public()),
    }
}
