//! The entrypoint of a manifest.

use leasehold_core::digest::Digest;
use leasehold_core::document::{Field, Fields};
use leasehold_core::spec::ARGS_MAX;

use super::{Entrypoint, WasmEntry};
use crate::archive;
use crate::module::{Manner, template_name};

/// Longest argument in bytes.
const ARGUMENT_MAX: usize = 128 << 10;
/// Longest name of an image, its digest included.
const NAME_MAX: usize = 512;

#[derive(Clone, Copy)]
enum Kind {
    Command,
    Python,
    Wasm,
    Image,
}

pub(super) fn read(top: &mut Fields<'_>) -> Option<Entrypoint> {
    let field = top.need("entrypoint", "what runs: a map with `runtime`")?;
    let mut fields = field.fields();
    let kind = fields
        .need("runtime", "one of command, python, wasm, image")
        .and_then(|field| {
            field.word(&[
                ("command", Kind::Command),
                ("python", Kind::Python),
                ("wasm", Kind::Wasm),
                ("image", Kind::Image),
            ])
        });
    let entry = match kind? {
        Kind::Command => argv(&mut fields).map(|argv| Entrypoint::Command { argv }),
        Kind::Python => file(&mut fields, ".py").map(|file| Entrypoint::Python {
            file,
            args: args(&mut fields),
        }),
        Kind::Wasm => wasm(&mut fields),
        Kind::Image => {
            let image = fields
                .need("image", "an image and its digest: NAME[:TAG]@sha256:…")
                .and_then(|field| field.parsed(NAME_MAX, image));
            let argv = argv(&mut fields);
            image
                .zip(argv)
                .map(|((name, image), argv)| Entrypoint::Image { image, name, argv })
        }
    };
    fields.close();
    entry
}

/// An image of a tool. A version is the same for ever, so that it names what a tag stands for today.
fn image(text: &str) -> Result<(Option<String>, Digest), String> {
    let (name, digest) = match text.rsplit_once('@') {
        Some((name, digest)) => (Some(name.to_owned()), digest),
        None if text.starts_with("sha256:") => (None, text),
        None => {
            return Err(format!(
                "{text:?}: a tool names its image with the digest, NAME[:TAG]@sha256:…: a tag may stand for another \
                 tomorrow; `leasehold image pull` prints the digest"
            ));
        }
    };
    let digest = Digest::parse(digest).map_err(|error| error.to_string())?;
    Ok((name, digest))
}

/// A module, or a script with the name of its interpreter.
fn wasm(fields: &mut Fields<'_>) -> Option<Entrypoint> {
    let script = fields.has("interpreter");
    let interpreter = fields
        .get("interpreter")
        .and_then(|field| template_name(&field));
    let file = match script {
        true => file(fields, ""),
        false => file(fields, ".wasm"),
    };
    let entry = WasmEntry {
        args: args(fields),
        manner: Manner::read(fields),
        content: fields
            .get("content")
            .and_then(|field| field.parsed(128, Digest::parse)),
        tree: fields
            .get("tree")
            .and_then(|field| field.bool())
            .unwrap_or(false),
        interpreter,
        file: file?,
    };
    Some(Entrypoint::Wasm(entry))
}

fn words(field: &Field<'_>) -> Vec<String> {
    field
        .items(ARGS_MAX)
        .iter()
        .filter_map(|item| item.text(ARGUMENT_MAX))
        .collect()
}

fn argv(fields: &mut Fields<'_>) -> Option<Vec<String>> {
    let field = fields.need("argv", "a list: program and arguments")?;
    let argv = words(&field);
    if argv.first().is_none_or(String::is_empty) {
        field.wrong("empty: name the program to run");
        return None;
    }
    Some(argv)
}

fn args(fields: &mut Fields<'_>) -> Vec<String> {
    fields
        .get("args")
        .map(|field| words(&field))
        .unwrap_or_default()
}

fn file(fields: &mut Fields<'_>, ending: &str) -> Option<String> {
    let field = fields.need("file", "a file beside the manifest")?;
    let file = field.parsed(archive::PATH_MAX, |text| {
        archive::check_name(text).map(|()| text.to_owned())
    })?;
    if !file.ends_with(ending) {
        field.wrong(format!("{file:?}: expected a name that ends in {ending}"));
        return None;
    }
    Some(file)
}
