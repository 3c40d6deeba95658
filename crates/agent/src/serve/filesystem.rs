//! The calls of `filesystem.Filesystem` that answer at once.

use leasehold_protocol::envd::code::{CallError, Code};
use leasehold_protocol::envd::filesystem::{
    EntryResponse, ListDirRequest, MoveRequest, PathRequest,
};
use leasehold_protocol::envd::process::Empty;

use super::acting::{self, Done, refused};
use super::request::Meta;
use super::state::Shared;
use super::users::Names;
use super::{bounds, entry, tree};

/// Tells about one entry.
///
/// # Errors
/// `not_found` when there is none.
pub(super) async fn stat(
    shared: &Shared,
    meta: &Meta,
    request: PathRequest,
) -> Result<Done, CallError> {
    let user = shared.user(meta.user.as_deref())?;
    let path = shared.path(&request.path, &user)?;
    acting::run(shared, &user, bounds::OPERATION_TIME, || {
        let entry = entry::read(&path, &Names::load())
            .map_err(|errno| refused(&format!("cannot find {path}"), errno))?;
        Done::json(&EntryResponse { entry })
    })
    .await
}

/// Makes a directory with its parents.
///
/// # Errors
/// `already_exists` when it is there.
pub(super) async fn make_dir(
    shared: &Shared,
    meta: &Meta,
    request: PathRequest,
) -> Result<Done, CallError> {
    let user = shared.user(meta.user.as_deref())?;
    let path = shared.path(&request.path, &user)?;
    acting::run(shared, &user, bounds::OPERATION_TIME, || {
        let entry = tree::make(&path, &user)?;
        Done::json(&EntryResponse { entry })
    })
    .await
}

/// Moves an entry.
///
/// # Errors
/// `not_found` when there is none.
pub(super) async fn rename(
    shared: &Shared,
    meta: &Meta,
    request: MoveRequest,
) -> Result<Done, CallError> {
    let user = shared.user(meta.user.as_deref())?;
    let source = shared.path(&request.source, &user)?;
    let destination = shared.path(&request.destination, &user)?;
    acting::run(shared, &user, bounds::LONG_OPERATION_TIME, || {
        let entry = tree::rename(&source, &destination, &user)?;
        Done::json(&EntryResponse { entry })
    })
    .await
}

/// Lists a directory.
///
/// # Errors
/// `not_found` or `invalid_argument` when it is no directory.
pub(super) async fn list(
    shared: &Shared,
    meta: &Meta,
    request: ListDirRequest,
) -> Result<Done, CallError> {
    let user = shared.user(meta.user.as_deref())?;
    let path = shared.path(&request.path, &user)?;
    // Deeper than the bound is walked to the bound; trees that deep are refused where they are.
    let depth = request.depth.clamp(1, bounds::LIST_DEPTH);
    acting::run(shared, &user, bounds::OPERATION_TIME, || {
        Done::json(&tree::list(&path, depth)?)
    })
    .await
}

/// Removes an entry with everything below.
///
/// # Errors
/// When something cannot be removed.
pub(super) async fn remove(
    shared: &Shared,
    meta: &Meta,
    request: PathRequest,
) -> Result<Done, CallError> {
    let user = shared.user(meta.user.as_deref())?;
    let path = shared.path(&request.path, &user)?;
    if path.trim_end_matches('/').is_empty() {
        let message = "the root directory cannot be removed";
        return Err(CallError::new(Code::InvalidArgument, message));
    }
    acting::run(shared, &user, bounds::LONG_OPERATION_TIME, || {
        tree::remove(&path)?;
        Done::json(&Empty {})
    })
    .await
}
