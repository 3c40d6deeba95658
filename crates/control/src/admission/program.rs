//! What runs: argument list, environment, input, and the tree it works in.

use std::collections::BTreeMap;

use leasehold_core::digest::Digest;
use leasehold_core::error::PublicError;
use leasehold_core::policy::AllowList;
use leasehold_core::run_contract::WorkspaceTerms;
use leasehold_core::select::Runtime;
use leasehold_core::spec::{ExecSpec, WorkspaceMode, base_environment};

use super::{Case, denied, invalid, module};
use crate::archive::TOOL_DIR;
use crate::manifest::{Entrypoint, Manifest};
use crate::module::{ModuleStart, ScriptPlace};
use crate::request::{What, WorkspaceWish};

/// What runs.
#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) exec: ExecSpec,
    pub(super) stdin: Option<Vec<u8>>,
    pub(super) workspace: WorkspaceTerms,
    pub(super) archives: Vec<Digest>,
    pub(super) module: Option<ModuleStart>,
}

impl Program {
    /// Whether a module of it has a directory: what shares a host with others has none.
    pub(super) fn has_tree(&self) -> bool {
        let workspace = &self.workspace;
        let lent = workspace.mode != WorkspaceMode::Ephemeral;
        lent || !self.archives.is_empty()
            || !workspace.artifacts.is_empty()
            || self.exec.cwd.is_some()
    }
}

pub(super) fn resolve(case: Case<'_>) -> Result<Program, PublicError> {
    let (argv, cwd, stdin) = match (&case.request.what, case.manifest()) {
        (What::Tool { input, .. }, Some(manifest)) => (
            argv(&manifest.entrypoint),
            None,
            tool_input(manifest, input.as_deref())?,
        ),
        (
            What::Command {
                argv, cwd, stdin, ..
            },
            _,
        ) => (argv.clone(), cwd.clone(), stdin.clone()),
        (What::Tool { .. }, None) => return Err(invalid("tool: it was not looked up")),
    };
    let (mode, archives, content) = workspace(case)?;
    let artifacts = artifacts(case)?;
    let (spec, module) = module::resolve(case)?.unzip();
    if spec.is_some() && cwd.as_deref().is_some_and(|cwd| cwd != "/workspace") {
        return Err(invalid(
            "cwd: a WebAssembly module has no working directory but `/workspace`: leave it away",
        ));
    }
    let exec = ExecSpec {
        argv,
        env: environment(case)?,
        cwd,
        tty: None,
        stdin: stdin.is_some(),
        artifacts: artifacts.clone(),
        module: spec,
    };
    exec.check()?;
    if let Some(ModuleStart {
        script: Some(ScriptPlace::Given(script)),
        ..
    }) = &module
    {
        script.check(&exec.argv)?;
    }
    Ok(Program {
        exec,
        stdin,
        workspace: WorkspaceTerms {
            mode,
            content,
            artifacts,
        },
        archives,
        module,
    })
}

fn argv(entrypoint: &Entrypoint) -> Vec<String> {
    let place = |file: &String| format!("/workspace/{TOOL_DIR}/{file}");
    match entrypoint {
        Entrypoint::Command { argv } | Entrypoint::Image { argv, .. } => argv.clone(),
        Entrypoint::Python { file, args } => ["python3".to_owned(), place(file)]
            .into_iter()
            .chain(args.iter().cloned())
            .collect(),
        Entrypoint::Wasm(entry) => {
            let file = match entry.tree {
                true => place(&entry.file),
                false => entry.file.clone(),
            };
            let interpreter = entry.interpreter.iter().cloned();
            let args = entry.args.iter().cloned();
            interpreter.chain([file]).chain(args).collect()
        }
    }
}

/// The input of a tool, which must fit its schema.
fn tool_input(manifest: &Manifest, input: Option<&str>) -> Result<Option<Vec<u8>>, PublicError> {
    let Some(schema) = &manifest.input else {
        return Ok(input.map(|text| text.as_bytes().to_vec()));
    };
    let Some(text) = input else {
        return Err(invalid(format!(
            "input: missing: {} demands one",
            manifest.tool()
        )));
    };
    let value = serde_json::from_str(text).map_err(|error| invalid(format!("input: {error}")))?;
    schema
        .check(&value)
        .map_err(|error| invalid(format!("input: {error}")))?;
    Ok(Some(text.as_bytes().to_vec()))
}

fn environment(case: Case<'_>) -> Result<BTreeMap<String, String>, PublicError> {
    // A module has what was declared for it alone.
    let mut env = match super::wanted_runtime(case.known, case.request) {
        // What an image declares is known when it is here, and goes below this.
        Runtime::Command if case.known.image.is_some() => BTreeMap::new(),
        Runtime::Command => base_environment(),
        Runtime::Wasm => BTreeMap::new(),
    };
    if let Some(manifest) = case.manifest() {
        env.extend(manifest.environment.clone());
        let refused = case
            .request
            .env
            .keys()
            .find(|name| !manifest.accepts.contains(*name));
        if let Some(name) = refused {
            let accepted: Vec<&str> = manifest.accepts.iter().map(String::as_str).collect();
            return Err(invalid(match accepted.as_slice() {
                [] => format!("env.{name}: the tool accepts no variables"),
                _ => format!("env.{name}: the tool accepts {} alone", accepted.join(", ")),
            }));
        }
    }
    env.extend(case.request.env.clone());
    Ok(env)
}

fn artifacts(case: Case<'_>) -> Result<Vec<String>, PublicError> {
    let Some(manifest) = case.manifest() else {
        return Ok(case.request.artifacts.clone());
    };
    if case.request.artifacts.is_empty() {
        return Ok(manifest.filesystem.artifacts.clone());
    }
    Err(invalid(
        "artifacts: goes with `command` alone; a tool says itself which files leave it",
    ))
}

type Tree = (WorkspaceMode, Vec<Digest>, Option<Digest>);

/// The tool's own files, then what was uploaded, as one disposable tree.
fn workspace(case: Case<'_>) -> Result<Tree, PublicError> {
    let word = match case.request.workspace {
        WorkspaceWish::Ephemeral => "ephemeral",
        WorkspaceWish::Upload(_) => "upload",
        WorkspaceWish::Directory(mode) => mode.word(),
    };
    case.policy()
        .allows(AllowList::Workspaces, word)
        .map_err(denied)?;
    let manifest = case.manifest();
    let package = manifest.and_then(|manifest| match &manifest.entrypoint {
        // It is read from where it is kept.
        Entrypoint::Wasm(entry) if !entry.tree => None,
        _ => manifest.package,
    });
    let sent = !matches!(case.request.workspace, WorkspaceWish::Ephemeral);
    if sent && manifest.is_some_and(|manifest| !manifest.filesystem.upload) {
        return Err(invalid(
            "workspace: the tool takes none: its manifest does not say `filesystem.upload: true`",
        ));
    }
    let content = match case.request.workspace {
        WorkspaceWish::Ephemeral => None,
        WorkspaceWish::Upload(digest) => Some(digest),
        WorkspaceWish::Directory(mode) => {
            if package.is_some() {
                return Err(invalid(
                    "workspace: the tool brings files of its own: upload the content in place of a directory",
                ));
            }
            return Ok((mode, Vec::new(), None));
        }
    };
    let archives: Vec<Digest> = package.into_iter().chain(content).collect();
    let mode = match archives.as_slice() {
        [] => WorkspaceMode::Ephemeral,
        _ => WorkspaceMode::Clone,
    };
    Ok((mode, archives, content))
}
