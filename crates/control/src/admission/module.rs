//! Which WebAssembly module a run has, and where its bytes and its script are.

use leasehold_core::digest::Digest;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::spec::{ModuleSpec, Script};

use super::program::Program;
use super::{Case, invalid};
use crate::manifest::{Entrypoint, Manifest, WasmEntry};
use crate::module::{ModulePlace, ModuleStart, ScriptPlace, ToolFile, idle_limits};
use crate::request::{ModuleFrom, ModuleWish, What};

type Resolved = Option<(ModuleSpec, ModuleStart)>;

/// The module of a request; nothing for a program of the sandbox.
pub(super) fn resolve(case: Case<'_>) -> Result<Resolved, PublicError> {
    match (&case.request.what, case.manifest()) {
        (
            What::Command {
                argv,
                module: Some(wish),
                ..
            },
            _,
        ) => of_request(case, argv, wish).map(Some),
        (What::Tool { .. }, Some(manifest)) => match &manifest.entrypoint {
            Entrypoint::Wasm(entry) => of_tool(case, manifest, entry).map(Some),
            _ => Ok(None),
        },
        _ => Ok(None),
    }
}

/// Limits that the caller named and that bound nothing of a module.
pub(super) fn warnings(case: Case<'_>, program: &Program) -> Vec<String> {
    if program.module.is_none() {
        return Vec::new();
    }
    let asked = |number| case.request.asked.get(number).is_some();
    idle_limits(asked, program.has_tree())
}

fn template(case: Case<'_>) -> Result<Digest, PublicError> {
    let missing = || PublicError::new(ErrorKind::Internal, "the template was not looked up");
    case.known.template.ok_or_else(missing)
}

fn of_request(
    case: Case<'_>,
    argv: &[String],
    wish: &ModuleWish,
) -> Result<(ModuleSpec, ModuleStart), PublicError> {
    let spec = |digest, name: &str, script| ModuleSpec {
        digest,
        name: name.to_owned(),
        script,
        determinism: wish.manner.determinism,
        fuel: wish.manner.fuel,
    };
    Ok(match &wish.from {
        ModuleFrom::Upload(digest) => {
            let name = argv.first().map(String::as_str).unwrap_or_default();
            let start = ModuleStart {
                place: ModulePlace::Object,
                script: None,
            };
            (spec(*digest, name, None), start)
        }
        ModuleFrom::Template { name, script } => {
            let script = script.as_ref().map(|text| Script {
                at: 1,
                text: text.clone(),
            });
            let digest = script.as_ref().map(Script::digest);
            let start = ModuleStart {
                place: ModulePlace::Template(name.clone()),
                script: script.map(ScriptPlace::Given),
            };
            (spec(template(case)?, name, digest), start)
        }
    })
}

fn of_tool(
    case: Case<'_>,
    manifest: &Manifest,
    entry: &WasmEntry,
) -> Result<(ModuleSpec, ModuleStart), PublicError> {
    let (Some(package), Some(content)) = (manifest.package, entry.content) else {
        let message = format!(
            "{} was published by a leasehold that ran no WebAssembly",
            manifest.tool()
        );
        return Err(invalid(format!("tool: {message}")).hint("publish it again as a new version"));
    };
    let file = ToolFile {
        package,
        file: entry.file.clone(),
    };
    let (digest, name, place, script) = match &entry.interpreter {
        None => (content, &entry.file, ModulePlace::Tool(file), None),
        Some(name) => {
            // In a tree it is a file like any other.
            let script = (!entry.tree).then_some(ScriptPlace::Tool(file));
            let place = ModulePlace::Template(name.clone());
            (template(case)?, name, place, script)
        }
    };
    let spec = ModuleSpec {
        digest,
        name: name.clone(),
        script: script.as_ref().map(|_| content),
        determinism: entry.manner.determinism,
        fuel: entry.manner.fuel,
    };
    Ok((spec, ModuleStart { place, script }))
}
