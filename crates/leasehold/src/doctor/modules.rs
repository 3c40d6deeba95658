//! WebAssembly: whether a module runs here, tried out in the doctor's own directories, and which interpreters
//! there are.

use leasehold_backend::seam::Backend as _;
use leasehold_core::quantity::format_bytes;
use leasehold_template::Interpreter;

use super::report::{Check, Section, State};
use super::ward::Ward;
use crate::run::supply;
use crate::{place, template, voice};

/// Name of the line about the backend.
const WASM: &str = "wasm";

/// The backend: not tried without a ward.
pub(super) fn backend(ward: Option<&Ward>) -> Check {
    let programs = match supply::programs() {
        Ok(programs) => programs,
        Err(error) => {
            return Check::new(Section::Backends, WASM, State::Missing, error.to_string())
                .mend(Some(error.hint()));
        }
    };
    let place = programs.folder().display().to_string();
    let Some(ward) = ward else {
        let why = format!("its programs are in {place}; not tried, as asked with --no-probes");
        return Check::new(Section::Backends, WASM, State::Unclear, why);
    };
    let tried = supply::backend(&ward.paths())
        .and_then(|backend| Ok(supply::wait(async { backend.probe().await })??));
    match tried {
        Ok(capabilities) => {
            let host = capabilities.posture.host;
            let engine = host.map_or_else(String::new, |host| format!(" of {}", host.engine));
            let why = format!(
                "a module was compiled, ran in a host{engine} and ended as it should; programs in {place}"
            );
            Check::new(Section::Backends, WASM, State::Ok, why)
        }
        Err(fault) => {
            let why = format!("a module that does nothing did not run: {}", fault.chain());
            Check::new(Section::Backends, WASM, State::Missing, why).mend(fault.mend())
        }
    }
}

/// The interpreters that there are for it.
pub(super) fn templates() -> Check {
    let found = place::paths().and_then(|paths| {
        template::shelf(&paths)
            .all()
            .map_err(|error| template::fault(&error))
    });
    match found {
        Err(fault) => Check::new(
            Section::Backends,
            "templates",
            State::Unclear,
            fault.chain(),
        ),
        Ok((found, _)) if found.is_empty() => {
            let why = "no interpreter in WebAssembly is there; modules need none";
            Check::new(Section::Backends, "templates", State::NotHere, why)
                .mend(mendable(&["python", "javascript"]))
        }
        Ok((found, odd)) => {
            let told: Vec<String> = found
                .iter()
                .map(|each| {
                    let manifest = &each.manifest;
                    format!(
                        "{} ({}, {})",
                        manifest.name,
                        voice::clean(&manifest.interpreter_version),
                        format_bytes(manifest.component.bytes)
                    )
                })
                .collect();
            let old: Vec<&str> = found
                .iter()
                .filter(|each| !leasehold_template::of_this_build(&each.manifest))
                .map(|each| each.manifest.name.as_str())
                .collect();
            let mut why = told.join(", ");
            if !old.is_empty() {
                why.push_str(&format!("; not of this build: {}", old.join(", ")));
            }
            for error in odd.iter().take(3) {
                why.push_str(&format!("; {error}"));
            }
            Check::new(Section::Backends, "templates", State::Ok, why).mend(mendable(&old))
        }
    }
}

/// The command that builds those that need no word on packages.
fn mendable(names: &[&str]) -> Option<String> {
    let bare: Vec<&str> = names
        .iter()
        .copied()
        .filter(|name| Interpreter::of(name).is_some())
        .collect();
    (!bare.is_empty()).then(|| format!("leasehold template build --wasm {}", bare.join(" ")))
}
