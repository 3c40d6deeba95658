//! A WebAssembly module, or a script for an interpreter, as a daemon takes it.

use std::fs::File;
use std::io::{self, Read as _};

use serde_json::{Map, Value, json};

use super::Remote;
use crate::cli::RunFlags;
use crate::fault::Fault;
use crate::run::program::{self, MODULE_BYTES_MAX, Program, Sent};
use crate::voice::clean;
use crate::{place, template};

/// Puts what is to run into a request; a module's bytes are sent before.
///
/// # Errors
/// When a file cannot be read, or the daemon refuses the module.
pub(super) fn put(
    remote: &Remote,
    flags: &RunFlags,
    body: &mut Map<String, Value>,
) -> Result<(), Fault> {
    match program::sent(flags, &template::shelf(&place::paths()?))? {
        Sent::Module(program) => {
            let sent: Value = remote.upload("/v1/uploads", "application/wasm", bytes(&program)?)?;
            body.insert("module".into(), sent["digest"].clone());
            body.insert("command".into(), json!(program.argv));
        }
        Sent::Script {
            interpreter,
            command,
            text,
        } => {
            body.insert("interpreter".into(), json!(interpreter));
            body.insert("command".into(), json!(command));
            if let Some(text) = text {
                body.insert("script".into(), json!(text));
            }
        }
    }
    if let Some(fuel) = flags.fuel.as_deref().map(program::fuel).transpose()? {
        body.insert("fuel".into(), json!(fuel));
    }
    if let Some(seed) = flags.deterministic {
        body.insert("deterministic".into(), json!({ "seed": seed.unwrap_or(0) }));
    }
    Ok(())
}

/// The whole of a module, from its start.
fn bytes(program: &Program) -> Result<Vec<u8>, Fault> {
    let name = || clean(&program.spec.name);
    let cannot = |error: io::Error| {
        Fault::usage(format!("cannot read the module `{}`", name())).because(&error)
    };
    let mut file: &File = &program.file;
    io::Seek::rewind(&mut file).map_err(cannot)?;
    let mut bytes = Vec::new();
    file.take(MODULE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(cannot)?;
    if bytes.len() as u64 > MODULE_BYTES_MAX {
        return Err(Fault::usage(format!(
            "the module `{}` is longer than {MODULE_BYTES_MAX} bytes",
            name()
        )));
    }
    Ok(bytes)
}
