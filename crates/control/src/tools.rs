//! Published tools: immutable once they are there, with a state beside them.

use std::collections::BTreeSet;
use std::sync::Arc;

use leasehold_core::digest::Digest;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::event::TenantFact;
use leasehold_core::name::{Name, ToolRef};
use leasehold_core::tenant::{Operation, Principal};
use leasehold_store::seam::{Change, Store, StoreError, ToolRow, ToolState};

use crate::access;
use crate::archive::{self, Entry, TOOL_DIR};
use crate::engine::modules::script_text;
use crate::engine::parts::Objects;
use crate::manifest::{Entrypoint, Manifest, WasmEntry};
use crate::module;
use crate::plan::OutputCheck;
use crate::request::ToolWish;
use crate::schema::Structured;

/// A tool that was checked and may be published.
#[derive(Debug, Clone, PartialEq)]
pub struct Publication {
    /// What it is.
    pub manifest: Manifest,
    /// The form that is kept.
    pub canonical: Vec<u8>,
    /// Digest of that.
    pub digest: Digest,
    /// What is worth a second look.
    pub warnings: Vec<String>,
}

fn invalid(message: impl Into<String>) -> PublicError {
    PublicError::new(ErrorKind::Invalid, message)
}

/// Checks a manifest and the archive of its files, which all lie below [`TOOL_DIR`]. Pure; also used
/// without a daemon.
///
/// # Errors
/// `invalid` with everything that is wrong.
pub fn check(manifest: &[u8], package: Option<&[u8]>) -> Result<Publication, PublicError> {
    let mut manifest = Manifest::parse(manifest).map_err(|mistakes| mistakes.public("tool"))?;
    let digest = package.map(Digest::of);
    if manifest.package.is_some() && manifest.package != digest {
        return Err(invalid(
            "tool: package: it names another archive than the one that came along",
        )
        .hint("leave `package` away; it is filled in at publication"));
    }
    if let Some(bytes) = package {
        check_package(&mut manifest, bytes)?;
    } else if let Some(file) = manifest.entry_file() {
        return Err(invalid(format!(
            "tool: entrypoint.file: {file:?} is not there: no files came along with the manifest"
        )));
    }
    manifest.package = digest;
    let warnings = manifest.warnings();
    let canonical = manifest
        .canonical()
        .map_err(|error| invalid(format!("tool: {error}")))?;
    Ok(Publication {
        digest: Digest::of(&canonical),
        warnings,
        canonical,
        manifest,
    })
}

fn check_package(manifest: &mut Manifest, bytes: &[u8]) -> Result<(), PublicError> {
    let tree =
        archive::unpack(bytes).map_err(|error| invalid(format!("tool: package: {error}")))?;
    if let Some(name) = tree.keys().find(|name| !archive::is_of_tool(name)) {
        return Err(invalid(format!(
            "tool: package: {name:?} is not below `{TOOL_DIR}`"
        )));
    }
    if let Some(file) = manifest.entry_file()
        && !matches!(
            tree.get(&format!("{TOOL_DIR}/{file}")),
            Some(Entry::File { .. })
        )
    {
        return Err(invalid(format!(
            "tool: entrypoint.file: {file:?} is not among the tool's files"
        )));
    }
    match &mut manifest.entrypoint {
        Entrypoint::Wasm(entry) => check_wasm(entry, tree),
        Entrypoint::Command { .. } | Entrypoint::Python { .. } | Entrypoint::Image { .. } => Ok(()),
    }
}

/// Looks at the module or script of a tool, and fills in what follows from its files.
fn check_wasm(entry: &mut WasmEntry, mut tree: archive::Tree) -> Result<(), PublicError> {
    let wrong = |why: String| invalid(format!("tool: entrypoint.file: {:?}: {why}", entry.file));
    let Some(Entry::File { content, .. }) = tree.remove(&format!("{TOOL_DIR}/{}", entry.file))
    else {
        return Err(wrong("it is not among the tool's files".to_owned()));
    };
    let digest = Digest::of(&content);
    if entry.content.is_some_and(|said| said != digest) {
        let message =
            "tool: entrypoint.content: it names another file than the one that came along";
        return Err(invalid(message).hint("leave it away; it is filled in at publication"));
    }
    let others = tree
        .values()
        .any(|entry| matches!(entry, Entry::File { .. }));
    match entry.interpreter {
        None => module::check(&content).map_err(wrong)?,
        // With other files it runs from the tree, where it may be as long as it likes.
        Some(_) if !others => drop(script_text(content).map_err(wrong)?),
        Some(_) => {}
    }
    entry.content = Some(digest);
    entry.tree = others;
    Ok(())
}

/// The file that the entrypoint of a tool names, out of its archive.
pub(crate) fn entry_bytes(manifest: &Manifest, package: &[u8]) -> Option<Vec<u8>> {
    let mut tree = archive::unpack(package).ok()?;
    match tree.remove(&format!("{TOOL_DIR}/{}", manifest.entry_file()?))? {
        Entry::File { content, .. } => Some(content),
        _ => None,
    }
}

/// Most bytes that the packages of a tenant's tools may have, of every version; each digest counts once.
pub const PACKAGES_MAX: u64 = 8 << 30;

/// Checks that one package more fits among those of a tenant. No version is ever removed, so that nothing
/// makes room again.
///
/// # Errors
/// `quota`; when the store or an object cannot be asked.
pub async fn room(
    store: &dyn Store,
    objects: &dyn Objects,
    tenant: &Name,
    package: &[u8],
) -> Result<(), PublicError> {
    let rows = store.tools(tenant.clone(), None).await;
    let mut digests = BTreeSet::new();
    for row in rows.map_err(|error| error.public())? {
        digests.extend(manifest(&row)?.package);
    }
    if digests.contains(&Digest::of(package)) {
        return Ok(());
    }
    let mut bytes = package.len() as u64;
    for digest in digests {
        bytes = bytes.saturating_add(objects.size(digest).await?.unwrap_or(0));
    }
    fits(bytes)
}

fn fits(bytes: u64) -> Result<(), PublicError> {
    if bytes <= PACKAGES_MAX {
        return Ok(());
    }
    Err(PublicError::new(
        ErrorKind::Quota,
        format!("tool: package: with it the tenant's packages have {bytes} bytes: most is {PACKAGES_MAX}"),
    )
    .hint("leave large files out of the package: they can come with a run as its workspace"))
}

fn not_found() -> PublicError {
    PublicError::new(ErrorKind::NotFound, "no such tool").hint(
        "`leasehold tool ls` lists the tools of the tenant, and `leasehold tool publish` adds one",
    )
}

fn public(error: &StoreError) -> PublicError {
    match error {
        StoreError::NotFound(_) => not_found(),
        error => error.public(),
    }
}

/// The version as it is there already, if it is. Looked at before anything of a publication is kept: what is
/// refused must leave no bytes, which nobody would count.
///
/// # Errors
/// `exists` when it is there with another manifest.
pub async fn present(
    store: &dyn Store,
    who: &Principal,
    publication: &Publication,
) -> Result<Option<ToolRow>, PublicError> {
    let tool = publication.manifest.tool();
    match store.tool(who.tenant.clone(), tool.clone()).await {
        Ok(there) if there.digest == publication.digest => Ok(Some(there)),
        Ok(_) => Err(PublicError::new(
            ErrorKind::Exists,
            format!("{tool} is published with another manifest and never changes"),
        )
        .hint("raise `version` and publish again")),
        Err(StoreError::NotFound(_)) => Ok(None),
        Err(error) => Err(public(&error)),
    }
}

/// Publishes a tool; its archive must be in the object store already. The same version with the same
/// manifest again is answered as it is there.
///
/// # Errors
/// `forbidden`; `exists` when the version is there with another manifest.
pub async fn publish(
    store: &dyn Store,
    who: &Principal,
    now_unix_ms: u64,
    publication: &Publication,
) -> Result<ToolRow, PublicError> {
    access::allowed(who, Operation::WriteTools)?;
    let row = ToolRow {
        tenant: who.tenant.clone(),
        tool: publication.manifest.tool(),
        manifest: publication.canonical.clone(),
        digest: publication.digest,
        state: ToolState::Active,
        note: None,
        published_unix_ms: now_unix_ms,
    };
    let fact = TenantFact::ToolPublished {
        tool: row.tool.clone(),
        manifest: row.digest,
    };
    let change = vec![(Change::PublishTool(row.clone()), fact)];
    let by = Some(who.key.clone());
    match store
        .change(who.tenant.clone(), by, now_unix_ms, change)
        .await
    {
        Ok(()) => Ok(row),
        Err(StoreError::Exists(_)) => {
            let there = present(store, who, publication).await?;
            there.ok_or_else(not_found)
        }
        Err(error) => Err(public(&error)),
    }
}

/// Changes where a tool is in its life, and says why.
///
/// # Errors
/// `forbidden`; `not_found`; `invalid` for a note that is too long.
pub async fn set_state(
    store: &dyn Store,
    who: &Principal,
    now_unix_ms: u64,
    tool: &ToolRef,
    state: ToolState,
    note: Option<String>,
) -> Result<ToolRow, PublicError> {
    access::allowed(who, Operation::WriteTools)?;
    let length = note.as_ref().map_or(0, String::len);
    if length > 1_024
        || note
            .as_ref()
            .is_some_and(|note| note.chars().any(char::is_control))
    {
        return Err(invalid(format!(
            "note: {length} bytes: most is 1024, in one line"
        )));
    }
    let there = store.tool(who.tenant.clone(), tool.clone()).await;
    let mut row = there.map_err(|error| public(&error))?;
    let fact = TenantFact::ToolState {
        tool: tool.clone(),
        state: state.word().to_owned(),
    };
    let change = vec![(
        Change::SetToolState(tool.clone(), state, note.clone()),
        fact,
    )];
    let by = Some(who.key.clone());
    let done = store
        .change(who.tenant.clone(), by, now_unix_ms, change)
        .await;
    done.map_err(|error| public(&error))?;
    row.state = state;
    row.note = note;
    Ok(row)
}

/// Versions of one tool or of all, by name, newest version first.
///
/// # Errors
/// `forbidden`, or when the store fails.
pub async fn list(
    store: &dyn Store,
    who: &Principal,
    tool: Option<Name>,
) -> Result<Vec<ToolRow>, PublicError> {
    access::allowed(who, Operation::ReadTools)?;
    let rows = store.tools(who.tenant.clone(), tool).await;
    rows.map_err(|error| public(&error))
}

/// The version that is meant: the one named, or the newest active one that is no pre-release.
///
/// # Errors
/// `not_found`, with the versions that are there as a hint.
pub async fn get(
    store: &dyn Store,
    who: &Principal,
    wish: &ToolWish,
) -> Result<ToolRow, PublicError> {
    access::allowed(who, Operation::ReadTools)?;
    if let Some(exact) = &wish.exact {
        let row = store.tool(who.tenant.clone(), exact.clone()).await;
        return row.map_err(|error| public(&error));
    }
    let rows = store
        .tools(who.tenant.clone(), Some(wish.name.clone()))
        .await;
    let rows = rows.map_err(|error| public(&error))?;
    let newest = rows
        .iter()
        .filter(|row| row.state == ToolState::Active && !row.tool.version.is_pre_release())
        .max_by(|left, right| left.tool.version.cmp(&right.tool.version));
    if let Some(newest) = newest {
        return Ok(newest.clone());
    }
    if rows.is_empty() {
        return Err(not_found());
    }
    let there: Vec<String> = rows
        .iter()
        .take(5)
        .map(|row| format!("{} ({})", row.tool, row.state.word()))
        .collect();
    Err(PublicError::new(
        ErrorKind::NotFound,
        format!(
            "`{}` has no active version that is no pre-release",
            wish.name
        ),
    )
    .hint(format!("name a version: there are {}", there.join(", "))))
}

/// The manifest of a row.
///
/// # Errors
/// When it does not read or its digest is another: nothing is started from it.
pub fn manifest(row: &ToolRow) -> Result<Manifest, PublicError> {
    let broken = |why: String| {
        PublicError::new(
            ErrorKind::Internal,
            format!("the manifest of {} cannot be believed: {why}", row.tool),
        )
    };
    if Digest::of(&row.manifest) != row.digest {
        return Err(broken("its digest is another".to_owned()));
    }
    let manifest = Manifest::parse(&row.manifest).map_err(|error| broken(error.to_string()))?;
    if manifest.tool() != row.tool {
        return Err(broken("it is another tool's".to_owned()));
    }
    Ok(manifest)
}

/// The check of a manifest's structured output.
#[must_use]
pub fn output_check(manifest: &Manifest) -> Option<Arc<dyn OutputCheck>> {
    let schema = manifest.output.clone()?;
    Some(Arc::new(Structured(schema)))
}

/// Finds output checks again in the store.
pub struct StoredChecks(pub Arc<dyn Store>);

impl crate::engine::parts::Checks for StoredChecks {
    fn check(
        &self,
        tenant: Name,
        tool: ToolRef,
    ) -> crate::engine::parts::Doing<'_, Option<Arc<dyn OutputCheck>>> {
        Box::pin(async move {
            let row = self.0.tool(tenant, tool).await;
            let row = row.map_err(|error| public(&error))?;
            Ok(output_check(&manifest(&row)?))
        })
    }
}
