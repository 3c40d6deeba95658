//! From a request to a plan: everything resolved, bounded and fixed before anything is allocated.
//!
//! What is read of the store is gathered first; the rest is one pure function. Whatever cannot be
//! evaluated denies. A request can only narrow what tool and policies allow; where it asks for more, it is
//! refused and told which document or manifest does not allow it, never given less in silence.

mod authority;
mod module;
mod numbers;
mod offers;
mod program;

use leasehold_core::digest::{CanonicalError, Digest};
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::RunId;
use leasehold_core::isolation::{Isolation, TrustClass};
use leasehold_core::limits::{Limits, Resource};
use leasehold_core::policy::{AllowList, Denied, Effective, Scope};
use leasehold_core::run_contract::{CONTRACT_VERSION, NetworkTerms, RunContract, Selected, Why};
use leasehold_core::select::{Offer, Runtime, Wanted, select};
use leasehold_core::spec::SandboxSpec;
use leasehold_core::tenant::{Operation, Principal};
use leasehold_store::seam::{Store, StoreError, ToolRow, ToolState};

pub use offers::{offer, runtime, unbuilt};

use crate::engine::modules::{Templates, no_template};
use crate::image::{ImageKnown, ImageWish, Images};
use crate::manifest::{Entrypoint, Manifest};
use crate::plan::{Plan, Start};
use crate::request::{MODULE_WORD, ModuleFrom, ModuleWish, RunRequest, What, WorkspaceWish};
use crate::{access, policies, tools, uploads};

/// Everything of the store that a decision rests on.
#[derive(Debug, Clone)]
pub struct Known {
    /// The tool and its manifest; absent for a bare command.
    pub tool: Option<(ToolRow, Manifest)>,
    /// What the policies come to.
    pub policy: Effective,
    /// The template that the tool or the request names, by its digest; absent where none is named.
    pub template: Option<Digest>,
    /// The image that the tool or the request names; absent where none is named.
    pub image: Option<ImageKnown>,
}

/// Reads what a decision rests on.
///
/// # Errors
/// `forbidden` for the role or a suspended tenant; `not_found` for the tool; what denies because it cannot
/// be read.
pub async fn gather(
    store: &dyn Store,
    templates: &dyn Templates,
    images: &dyn Images,
    who: &Principal,
    request: &RunRequest,
) -> Result<Known, PublicError> {
    access::allowed(who, Operation::Run)?;
    let tenant = match store.tenant(who.tenant.clone()).await {
        Ok(tenant) => tenant,
        Err(StoreError::NotFound(_)) => return Err(forbidden("the tenant is not there any more")),
        Err(error) => return Err(error.public()),
    };
    if tenant.suspended {
        let why = forbidden("the tenant is suspended: it may start nothing");
        return Err(why.hint(format!(
            "an operator lets it go on: `leasehold tenant resume {}`",
            who.tenant
        )));
    }
    if !tenant.projects.contains(&who.project) {
        return Err(forbidden(format!(
            "the project `{}` is not there any more",
            who.project
        )));
    }
    uploads::check(store, &who.tenant, request).await?;
    let tool = match &request.what {
        What::Tool { tool, .. } => {
            let row = tools::get(store, who, tool).await?;
            let manifest = tools::manifest(&row)?;
            Some((row, manifest))
        }
        What::Command { .. } => None,
    };
    let name = tool.as_ref().map(|(row, _)| &row.tool.tool);
    let scopes = Scope::of_run(&who.tenant, &who.project, &who.name, name);
    let policy = policies::meet(store, scopes).await?;
    let template = match interpreter(request, tool.as_ref().map(|(_, manifest)| manifest)) {
        Some(name) => {
            let found = templates.find(name.to_owned()).await?;
            Some(found.ok_or_else(|| no_template(name))?)
        }
        None => None,
    };
    let wish = image(request, tool.as_ref().map(|(_, manifest)| manifest));
    let image = match wish {
        Some(wish) => Some(ImageKnown {
            name: images.name(&wish.name)?,
            pull: wish.pull,
            digest: None,
        }),
        None => None,
    };
    Ok(Known {
        tool,
        policy,
        template,
        image,
    })
}

/// The image that a request is for.
fn image(request: &RunRequest, tool: Option<&Manifest>) -> Option<ImageWish> {
    match tool.map(|manifest| &manifest.entrypoint) {
        Some(Entrypoint::Image { image, name, .. }) => {
            Some(ImageWish::of_tool(name.as_deref(), *image))
        }
        Some(_) => None,
        None => request.image.clone(),
    }
}

/// The template that a request is for.
fn interpreter<'a>(request: &'a RunRequest, tool: Option<&'a Manifest>) -> Option<&'a str> {
    match (&request.what, tool) {
        (
            What::Command {
                module:
                    Some(ModuleWish {
                        from: ModuleFrom::Template { name, .. },
                        ..
                    }),
                ..
            },
            _,
        ) => Some(name),
        (What::Tool { .. }, Some(manifest)) => match &manifest.entrypoint {
            Entrypoint::Wasm(entry) => entry.interpreter.as_deref(),
            _ => None,
        },
        _ => None,
    }
}

fn forbidden(message: impl Into<String>) -> PublicError {
    PublicError::new(ErrorKind::Forbidden, message)
}

fn invalid(message: impl Into<String>) -> PublicError {
    PublicError::new(ErrorKind::Invalid, message)
}

fn denied(denied: Denied) -> PublicError {
    forbidden(denied.to_string())
}

fn internal(error: &CanonicalError) -> PublicError {
    PublicError::new(
        ErrorKind::Internal,
        format!("the contract has no form: {error}"),
    )
}

/// What is decided on: who asks, what for, what is known, and under which id it will run.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// Who asks.
    pub who: &'a Principal,
    /// What for.
    pub request: &'a RunRequest,
    /// What is known.
    pub known: &'a Known,
}

impl<'a> Case<'a> {
    fn manifest(&self) -> Option<&'a Manifest> {
        self.known.tool.as_ref().map(|(_, manifest)| manifest)
    }

    fn policy(&self) -> &'a Effective {
        &self.known.policy
    }
}

/// What kind of program a request is for.
#[must_use]
pub fn wanted_runtime(known: &Known, request: &RunRequest) -> Runtime {
    match (&request.what, &known.tool) {
        (
            What::Command {
                module: Some(_), ..
            },
            _,
        ) => Runtime::Wasm,
        (What::Tool { .. }, Some((_, manifest))) => match manifest.entrypoint {
            Entrypoint::Wasm(_) => Runtime::Wasm,
            Entrypoint::Command { .. } | Entrypoint::Python { .. } | Entrypoint::Image { .. } => {
                Runtime::Command
            }
        },
        (What::Command { .. } | What::Tool { .. }, _) => Runtime::Command,
    }
}

/// Decides. Pure.
///
/// # Errors
/// `invalid` for what the caller should write in another way; `forbidden` for what policy does not allow;
/// `unsupported` (sandbox unavailable) when no backend is both strong enough and able, with the reason.
pub fn resolve(case: Case<'_>, offers: &[Offer], run: RunId) -> Result<Plan, PublicError> {
    let mut warnings = Vec::new();
    let trust = admitted(case, &mut warnings)?;
    let program = program::resolve(case)?;
    warnings.extend(module::warnings(case, &program));
    let settled = numbers::settle(case, &mut warnings)?;
    let authority = authority::resolve(case, &mut warnings)?;
    let selected = selected(case, trust, &settled.limits, &program, &authority, offers)?;
    let posture = posture(offers, &selected.backend);
    let start = Start {
        sandbox: SandboxSpec {
            limits: settled.limits.clone(),
            workspace: program.workspace.mode,
            ..SandboxSpec::default()
        },
        exec: program.exec,
        stdin: program.stdin,
        workspace: program.archives,
        module: program.module,
        image: case.known.image.as_ref().map(ImageKnown::start),
    };
    let input = start.stdin.as_deref().map(Digest::of);
    let manifest = case.manifest();
    let row = case.known.tool.as_ref().map(|(row, _)| row);
    let contract = RunContract {
        version: CONTRACT_VERSION,
        run,
        tenant: case.who.tenant.clone(),
        project: case.who.project.clone(),
        principal: case.who.name.clone(),
        role: case.who.role,
        key: case.who.key.clone(),
        tool: row.map(|row| row.tool.clone()),
        manifest: row.map(|row| row.digest),
        argv: start.exec.argv.clone(),
        program: start.exec.module.clone(),
        image: start.image.as_ref().map(|image| image.name.clone()),
        env_names: start.exec.env.keys().cloned().collect(),
        cwd: start.exec.cwd.clone(),
        input,
        selected,
        posture,
        limits: settled.limits,
        workspace: program.workspace,
        network: authority.network,
        permissions: authority.permissions,
        credentials: Vec::new(),
        allocation: settled.allocation,
        authority: settled.authority,
        retention: settled.retention,
        policies: case.policy().used(),
        idempotent: manifest.is_some_and(|manifest| manifest.idempotent),
        attempts: manifest.map_or(1, |manifest| manifest.attempts),
        // What a lent directory holds is in no digest, so that an equal request need not be an equal one.
        cacheable: manifest.is_some_and(|manifest| manifest.cacheable)
            && !matches!(case.request.workspace, WorkspaceWish::Directory(_)),
        priority: settled.priority,
        max_wait_ms: settled.max_wait_ms,
    };
    let canonical =
        leasehold_core::digest::canonical(&contract).map_err(|error| internal(&error))?;
    Ok(Plan {
        digest: Digest::of(&canonical),
        cache: cache_key(&contract, &start)?,
        output: manifest.and_then(tools::output_check),
        share: settled.share,
        canonical,
        contract,
        start,
        warnings,
    })
}

/// What the computers of a backend are made of here.
fn posture(offers: &[Offer], backend: &str) -> Digest {
    let offered = offers.iter().filter(|offer| offer.backend == backend);
    let mut postures = offered.filter_map(|offer| offer.state.as_ref().ok()?.posture);
    postures.next().unwrap_or(Digest::ZERO)
}

/// The native program of a command. A list that allows a module must not let in a file that is called like it.
fn native(argv: &[String]) -> Result<String, PublicError> {
    let program = argv.first().cloned().unwrap_or_default();
    match program.starts_with(MODULE_WORD) {
        true => Err(invalid(format!(
            "command[0]: {program:?}: `{MODULE_WORD}` is how policies name WebAssembly modules, and no program's name"
        ))
        .hint("run a module by `module` or `interpreter`")),
        false => Ok(program),
    }
}

/// Whether tool or command may be run at all, and how far it is trusted.
fn admitted(case: Case<'_>, warnings: &mut Vec<String>) -> Result<TrustClass, PublicError> {
    let policy = case.policy();
    let trust = match &case.known.tool {
        Some((row, manifest)) => {
            let name = row.tool.tool.as_str();
            policy.allows(AllowList::Tools, name).map_err(denied)?;
            let note = row.note.as_deref().unwrap_or("no reason was given");
            match row.state {
                ToolState::Active => {}
                ToolState::Deprecated => {
                    warnings.push(format!("{} is deprecated: {note}", row.tool));
                }
                ToolState::Quarantined => {
                    return Err(forbidden(format!("{} is quarantined: {note}", row.tool)));
                }
            }
            // What the manifest says is a wish: it can only lower what policy gives.
            let given = policy.trust_of_tool(name).0;
            manifest.trust.map_or(given, |wish| wish.min(given))
        }
        None => {
            if let What::Command { argv, module, .. } = &case.request.what {
                let program = match module {
                    Some(module) => module.from.command(),
                    None => native(argv)?,
                };
                policy
                    .allows(AllowList::Commands, &program)
                    .map_err(denied)?;
            }
            policy.trust_of_commands().0
        }
    };
    if let Some(image) = &case.known.image {
        policy
            .allows(AllowList::Images, &image.name.repository)
            .map_err(denied)?;
    }
    policy
        .allows(AllowList::Trust, trust.word())
        .map_err(denied)?;
    Ok(trust)
}

/// Limits that are promises, so that a host that cannot hold one is no choice (invariant I6).
fn promises(limits: &Limits) -> Vec<Resource> {
    let rows = [
        (Resource::Cpu, limits.cpu_milli.is_asked()),
        (Resource::Memory, limits.memory_bytes.is_asked()),
        (Resource::Disk, limits.disk_bytes.is_asked()),
        (Resource::Inodes, limits.inodes.is_asked()),
        (Resource::Pids, limits.pids.is_asked()),
        (Resource::Files, limits.files.is_asked()),
        (Resource::Wall, limits.wall_ms.is_asked()),
        (
            Resource::CpuTime,
            limits.cpu_time_ms.is_some_and(|limit| limit.is_asked()),
        ),
        (Resource::Output, limits.output_bytes.is_asked()),
    ];
    rows.into_iter()
        .filter(|(_, asked)| *asked)
        .map(|(which, _)| which)
        .collect()
}

fn selected(
    case: Case<'_>,
    trust: TrustClass,
    limits: &Limits,
    program: &program::Program,
    authority: &authority::Authority,
    offers: &[Offer],
) -> Result<Selected, PublicError> {
    let manifest = case.manifest();
    let preference = manifest
        .and_then(|manifest| manifest.isolation)
        .max(case.request.isolation)
        .unwrap_or(Isolation::Process);
    let image = case.known.image.as_ref();
    let image = image.map(|image| image.start().digest);
    let wanted = Wanted {
        runtime: wanted_runtime(case.known, case.request),
        image,
        why: Why {
            preference,
            floor: case.policy().floor().0,
            trust,
            required: trust.required(),
        },
        network: authority.network != NetworkTerms::default(),
        path_rules: manifest.is_some_and(|manifest| {
            !(manifest.filesystem.allow.is_empty() && manifest.filesystem.read_only.is_empty())
        }),
        extras: manifest
            .map(|manifest| manifest.capabilities.clone())
            .unwrap_or_default(),
        workspace: program.workspace.mode,
        asked: promises(limits),
    };
    select(&wanted, offers, case.policy()).map_err(|refusal| {
        let error = PublicError::new(ErrorKind::Unsupported, refusal.to_string());
        if trust == TrustClass::FirstParty {
            return error;
        }
        let at = Scope::PlatformTenant(case.who.tenant.clone());
        error.hint(match &case.known.tool {
            Some((row, _)) => format!(
                "if you vouch for it: an operator may publish a policy at `{at}` with `trust.tools.{}: first_party`",
                row.tool.tool
            ),
            None => format!(
                "if you vouch for its callers: an operator may publish a policy at `{at}` with `trust.commands: first_party`"
            ),
        })
    })
}

/// Digest of all that goes into the result of a pure tool.
fn cache_key(contract: &RunContract, start: &Start) -> Result<Option<Digest>, PublicError> {
    if !contract.cacheable {
        return Ok(None);
    }
    let env: Vec<(&String, Digest)> = start
        .exec
        .env
        .iter()
        .map(|(name, value)| (name, Digest::of(value.as_bytes())))
        .collect();
    let key = (
        contract.manifest,
        contract.input,
        env,
        &start.workspace,
        &start.exec.argv,
        &start.exec.artifacts,
    );
    // A module's result hangs on nothing else, if it is deterministic; its limits are part of what it sees.
    let key = match &contract.program {
        None => Digest::of_value(&key),
        Some(module) => Digest::of_value(&(key, module, &contract.limits)),
    };
    key.map(Some).map_err(|error| internal(&error))
}

#[cfg(test)]
mod tests;
