//! From a manifest to the form that is kept and hashed. Schemas are kept as text, since their numbers
//! may have fractions, which have no canonical form.

use serde_json::{Map, Value, json};

use super::{Entrypoint, Manifest};

pub(super) fn value(manifest: &Manifest) -> Value {
    let mut top = Map::new();
    let mut put = |name: &str, value: Value| {
        let empty = match &value {
            Value::Null => true,
            Value::Bool(value) => !value,
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            Value::Number(_) | Value::String(_) => false,
        };
        if !empty {
            top.insert(name.to_owned(), value);
        }
    };
    put("id", json!(manifest.id));
    put("version", json!(manifest.version));
    put("category", json!(manifest.category));
    put("owner", json!(manifest.owner));
    put("description", json!(manifest.description));
    put("entrypoint", entrypoint(&manifest.entrypoint));
    put("package", json!(manifest.package));
    put(
        "sandbox",
        filled(json!({
            "isolation": manifest.isolation.map(|level| level.word()),
            "trust": manifest.trust.map(|class| class.word()),
        })),
    );
    put("limits", json!(manifest.limits.limits_value()));
    put(
        "network",
        filled(json!({"egress": manifest.egress, "ingress": manifest.ingress})),
    );
    let filesystem = &manifest.filesystem;
    put(
        "filesystem",
        filled(json!({
            "upload": filesystem.upload,
            "allow": filesystem.allow,
            "read_only": filesystem.read_only,
            "artifacts": filesystem.artifacts,
        })),
    );
    put(
        "environment",
        filled(json!({"set": manifest.environment, "accept": manifest.accepts})),
    );
    put("credentials", credentials(manifest));
    put(
        "input_schema",
        json!(manifest.input.as_ref().map(|schema| schema.text())),
    );
    put(
        "output_schema",
        json!(manifest.output.as_ref().map(|schema| schema.text())),
    );
    put("permissions", json!(manifest.permissions));
    put("idempotent", json!(manifest.idempotent));
    put("cacheable", json!(manifest.cacheable));
    if manifest.attempts != Manifest::attempts_of(manifest.idempotent) {
        put("retry", json!({"attempts": manifest.attempts}));
    }
    put("capabilities", json!(manifest.capabilities));
    Value::Object(top)
}

/// A map without its empty fields.
fn filled(value: Value) -> Value {
    let Value::Object(fields) = value else {
        return value;
    };
    let there = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    };
    Value::Object(
        fields
            .into_iter()
            .filter(|(_, value)| there(value))
            .collect(),
    )
}

fn entrypoint(entrypoint: &Entrypoint) -> Value {
    filled(match entrypoint {
        Entrypoint::Command { argv } => json!({"runtime": "command", "argv": argv}),
        Entrypoint::Python { file, args } => {
            json!({"runtime": "python", "file": file, "args": args})
        }
        Entrypoint::Wasm(entry) => json!({
            "runtime": "wasm",
            "file": entry.file,
            "args": entry.args,
            "interpreter": entry.interpreter,
            "deterministic": entry.manner.determinism_value(),
            "fuel": entry.manner.fuel,
            "content": entry.content,
            "tree": entry.tree,
        }),
        Entrypoint::Image { image, name, argv } => {
            let image = match name {
                Some(name) => format!("{name}@{image}"),
                None => image.to_string(),
            };
            json!({"runtime": "image", "image": image, "argv": argv})
        }
    })
}

fn credentials(manifest: &Manifest) -> Value {
    let wishes = manifest.credentials.iter().map(|wish| {
        filled(json!({
            "name": wish.name,
            "secretRef": wish.secret_ref,
            "way": wish.way,
            "ttl": wish.ttl_ms.map(leasehold_core::quantity::write_millis),
        }))
    });
    Value::Array(wishes.collect())
}
