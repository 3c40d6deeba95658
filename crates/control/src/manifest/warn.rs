//! What is not wrong with a manifest, and yet worth a second look.

use leasehold_core::isolation::TrustClass;
use leasehold_core::policy::Number;

use super::{Entrypoint, Manifest, WasmEntry};
use crate::environment::sounds_secret;
use crate::module::idle_limits;

pub(super) fn warnings(manifest: &Manifest) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut warn = |when: bool, text: &str| {
        if when {
            warnings.push(text.to_owned());
        }
    };
    warn(
        manifest.description.is_none(),
        "description: missing; people choose a tool by it",
    );
    warn(
        manifest.owner.is_none(),
        "owner: missing; nobody is named to ask",
    );
    warn(
        manifest.limits.get(Number::Wall).is_none(),
        "limits.timeout: missing; the default of 10m holds",
    );
    warn(
        manifest.input.is_none(),
        "input_schema: missing; any JSON up to 1 MiB is passed on",
    );
    warn(
        manifest.output.is_none(),
        "output_schema: missing; the output is not checked",
    );
    warn(
        matches!(manifest.trust, None | Some(TrustClass::Untrusted)),
        "sandbox.trust: untrusted; it runs behind `gvisor` or stronger alone",
    );
    warn(
        matches!(
            manifest.trust,
            Some(TrustClass::Verified | TrustClass::FirstParty)
        ),
        "sandbox.trust: a wish alone; a policy must say the same under `trust.tools`",
    );
    warn(
        !manifest.egress.is_empty() || !manifest.ingress.is_empty(),
        "network: no backend of this build carries network rules yet; it will not be started",
    );
    warn(
        !manifest.credentials.is_empty(),
        "credentials: this build hands none out yet; it will not be started",
    );
    warn(
        !manifest.filesystem.allow.is_empty() || !manifest.filesystem.read_only.is_empty(),
        "filesystem: no backend of this build holds rules on single paths yet; it will not be started",
    );
    if let Entrypoint::Wasm(entry) = &manifest.entrypoint {
        warnings.extend(of_wasm(manifest, entry));
    }
    for name in manifest
        .environment
        .keys()
        .filter(|name| sounds_secret(name))
    {
        warnings.push(format!(
            "environment.set.{name}: its value is public here; a secret belongs under `credentials`"
        ));
    }
    warnings
}

/// What means nothing for WebAssembly, or something else than for a program.
fn of_wasm(manifest: &Manifest, entry: &WasmEntry) -> Vec<String> {
    let asked = |number| manifest.limits.get(number).is_some();
    let tree =
        entry.tree || manifest.filesystem.upload || !manifest.filesystem.artifacts.is_empty();
    let mut warnings = idle_limits(asked, tree);
    let mut warn = |when: bool, text: &str| {
        if when {
            warnings.push(text.to_owned());
        }
    };
    warn(
        entry.tree,
        "entrypoint: there are files beside the one that runs: each run gets them as a tree, which takes a sandbox \
         of its own; with no other file in the folder it starts in a fraction of the time",
    );
    warn(
        manifest.cacheable && entry.manner.determinism.is_none(),
        "cacheable: it sees clocks and random numbers; `entrypoint.deterministic: true` fixes both",
    );
    warnings
}
