//! From the tree to a manifest.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_core::digest::Digest;
use leasehold_core::document::{Content, Field, Fields, Mistakes, Node, Report};
use leasehold_core::isolation::{Isolation, TrustClass};
use leasehold_core::name::{Name, Version};
use leasehold_core::policy::{AllowList, Number, egress_rule};
use serde_json::Value;

use super::{CredentialWish, Filesystem, ITEMS_MAX, Manifest, entry};
use crate::asked::Asked;
use crate::environment::{self, VARIABLES_MAX};
use crate::schema::{SCHEMA_MAX, Schema};

const PATH_MAX: usize = 1_024;

pub(super) fn manifest(node: &Node) -> Result<Manifest, Mistakes> {
    let report = Report::default();
    let mut top = Fields::of(node, &report);
    let read = build(&mut top);
    top.close();
    report.finish(read)
}

fn build(top: &mut Fields<'_>) -> Option<Manifest> {
    let id = top
        .need("id", "a name such as text.wordcount")
        .and_then(|field| field.parsed(128, Name::parse));
    let version = top
        .need("version", "a version such as 1.4.0")
        .and_then(|field| field.parsed(128, Version::parse));
    let category = top
        .get("category")
        .and_then(|field| field.parsed(128, Name::parse));
    let owner = top.get("owner").and_then(|field| field.text(256));
    let description = top.get("description").and_then(|field| field.text(4_096));
    let entrypoint = entry::read(top);
    let package = top
        .get("package")
        .and_then(|field| field.parsed(128, Digest::parse));
    let (isolation, trust) = sandbox(top);
    let mut limits = Asked::default();
    limits.read(top, "limits", &[]);
    let (egress, ingress) = network(top);
    let filesystem = filesystem(top);
    let (environment, accepts) = environment(top);
    let credentials = credentials(top);
    let input = schema(top, "input_schema");
    let output = schema(top, "output_schema");
    let permissions = list(top, "permissions", |text| {
        AllowList::Permissions.check(text)?;
        match text.ends_with('*') {
            true => Err(format!("{text:?}: a tool names each permission in full")),
            false => Ok(text.to_owned()),
        }
    });
    let idempotent = flag(top, "idempotent");
    let cacheable = cacheable(top, &egress, &credentials);
    let attempts = attempts(top, idempotent);
    let capabilities = list(top, "capabilities", |text| {
        Name::parse(text)
            .map(|name| name.to_string())
            .map_err(|error| error.to_string())
    });
    Some(Manifest {
        id: id?,
        version: version?,
        category,
        owner,
        description,
        entrypoint: entrypoint?,
        package,
        isolation,
        trust,
        limits,
        egress,
        ingress,
        filesystem,
        environment,
        accepts,
        credentials,
        input,
        output,
        permissions,
        idempotent,
        cacheable,
        attempts,
        capabilities,
    })
}

fn flag(fields: &mut Fields<'_>, name: &'static str) -> bool {
    fields
        .get(name)
        .and_then(|field| field.bool())
        .unwrap_or(false)
}

/// A list of texts, each read by a rule; sorted, nothing twice.
fn list(
    fields: &mut Fields<'_>,
    name: &'static str,
    rule: impl Fn(&str) -> Result<String, String>,
) -> Vec<String> {
    let Some(field) = fields.get(name) else {
        return Vec::new();
    };
    let items: BTreeSet<String> = field
        .items(ITEMS_MAX)
        .iter()
        .filter_map(|item| item.parsed(PATH_MAX, &rule))
        .collect();
    items.into_iter().collect()
}

fn sandbox(top: &mut Fields<'_>) -> (Option<Isolation>, Option<TrustClass>) {
    let mut fields = top.map("sandbox");
    let isolation = fields
        .get("isolation")
        .and_then(|field| field.word(&Isolation::ALL.map(|level| (level.word(), level))));
    let trust = fields
        .get("trust")
        .and_then(|field| field.word(&TrustClass::ALL.map(|class| (class.word(), class))));
    fields.close();
    (isolation, trust)
}

fn network(top: &mut Fields<'_>) -> (Vec<String>, Vec<u16>) {
    let mut fields = top.map("network");
    let egress = list(&mut fields, "egress", |text| {
        egress_rule(text).map(|_| text.to_owned())
    });
    let ingress = match fields.get("ingress") {
        Some(field) => field
            .items(ITEMS_MAX)
            .iter()
            .filter_map(|item| item.count(1_u16, u16::MAX))
            .collect(),
        None => Vec::new(),
    };
    fields.close();
    (egress, ingress)
}

fn inside(text: &str) -> Result<String, String> {
    let part = |part: &str| !part.is_empty() && part != "." && part != "..";
    let good = text
        .strip_prefix('/')
        .is_some_and(|rest| rest.split('/').all(part) && !rest.contains(['*', '\0', '\\']));
    good.then(|| text.to_owned()).ok_or_else(|| {
        format!("{text:?}: expected an absolute path inside, without `.`, `..` or `*`")
    })
}

/// Reads a glob of files that leave the workspace.
pub(crate) fn glob(text: &str) -> Result<String, String> {
    let climbs = text.split('/').any(|part| part == "..");
    if text.is_empty() || text.starts_with('/') || climbs {
        return Err(format!(
            "{text:?}: expected a glob below /workspace such as out/*.csv, without `..`"
        ));
    }
    Ok(text.to_owned())
}

fn filesystem(top: &mut Fields<'_>) -> Filesystem {
    let mut fields = top.map("filesystem");
    let filesystem = Filesystem {
        upload: flag(&mut fields, "upload"),
        allow: list(&mut fields, "allow", inside),
        read_only: list(&mut fields, "read_only", inside),
        artifacts: list(&mut fields, "artifacts", glob),
    };
    fields.close();
    filesystem
}

fn environment(top: &mut Fields<'_>) -> (BTreeMap<String, String>, BTreeSet<String>) {
    let mut fields = top.map("environment");
    let set = fields.get("set").map(|field| variables(&field));
    let accepts = list(&mut fields, "accept", |text| {
        environment::check_name(text).map(|()| text.to_owned())
    });
    fields.close();
    (set.unwrap_or_default(), accepts.into_iter().collect())
}

/// Reads a map of variables.
pub(crate) fn variables(field: &Field<'_>) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    for (name, field) in field.entries(VARIABLES_MAX) {
        if let Err(error) = environment::check_name(name) {
            field.wrong(error);
            continue;
        }
        let Content::Text(value) = &field.node.content else {
            field.wrong("expected a text: write it in quotes");
            continue;
        };
        match environment::check_value(value) {
            Ok(()) => {
                variables.insert(name.to_owned(), value.clone());
            }
            Err(error) => field.wrong(error),
        }
    }
    variables
}

fn credentials(top: &mut Fields<'_>) -> Vec<CredentialWish> {
    let Some(field) = top.get("credentials") else {
        return Vec::new();
    };
    let mut names = BTreeSet::new();
    let mut wishes = Vec::new();
    for item in field.items(ITEMS_MAX) {
        let mut fields = item.fields();
        let name = fields
            .need("name", "the name the tool knows it by")
            .and_then(|field| {
                field.parsed(128, |text| {
                    environment::check_name(text).map(|()| text.to_owned())
                })
            });
        let secret_ref = fields
            .need("secretRef", "where its value is, such as vault/ci-token")
            .and_then(|field| {
                field.parsed(512, |text| match text.ends_with('*') {
                    true => Err("a reference names one secret".to_owned()),
                    false => AllowList::Credentials.check(text).map(|()| text.to_owned()),
                })
            });
        let ways = ["proxy", "broker", "file", "env"].map(|word| (word, word));
        let way = fields
            .need("way", "one of proxy, broker, file, env")
            .and_then(|field| field.word(&ways));
        let ttl_ms = fields
            .get("ttl")
            .and_then(|field| Number::Credentials.read(&field));
        fields.close();
        if let (Some(name), Some(secret_ref), Some(way)) = (name, secret_ref, way) {
            if !names.insert(name.clone()) {
                item.wrong(format!("the name {name:?} is there twice"));
            }
            wishes.push(CredentialWish {
                name,
                secret_ref,
                way: way.to_owned(),
                ttl_ms,
            });
        }
    }
    wishes
}

/// A schema as a map, or as the JSON text it is kept as.
fn schema(top: &mut Fields<'_>, name: &'static str) -> Option<Schema> {
    let field = top.get(name)?;
    let value: Value = match &field.node.content {
        Content::Text(text) if text.len() <= SCHEMA_MAX => match serde_json::from_str(text) {
            Ok(value) => value,
            Err(error) => {
                field.wrong(format!("it is no valid JSON: {error}"));
                return None;
            }
        },
        Content::Text(text) => {
            field.wrong(format!("{} bytes: most is {SCHEMA_MAX}", text.len()));
            return None;
        }
        _ => field.node.to_json(),
    };
    Schema::compile(&value)
        .map_err(|error| field.wrong(error))
        .ok()
}

fn cacheable(top: &mut Fields<'_>, egress: &[String], credentials: &[CredentialWish]) -> bool {
    let Some(field) = top.get("cacheable") else {
        return false;
    };
    let cacheable = field.bool().unwrap_or(false);
    if cacheable && !(egress.is_empty() && credentials.is_empty()) {
        field.wrong("a tool with network or credentials is not pure: its result may not be kept");
    }
    cacheable
}

fn attempts(top: &mut Fields<'_>, idempotent: bool) -> u32 {
    let mut fields = top.map("retry");
    let attempts = match fields.get("attempts") {
        Some(field) => {
            let attempts = field.count(1_u32, 5).unwrap_or(1);
            if attempts > 1 && !idempotent {
                field.wrong("only a tool that says `idempotent: true` is begun again");
            }
            attempts
        }
        None => Manifest::attempts_of(idempotent),
    };
    fields.close();
    attempts
}
