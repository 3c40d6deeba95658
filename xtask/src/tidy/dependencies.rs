//! Checks over cargo's metadata: who may use whom, licences, one version of each.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{File, Findings};
use crate::step;

/// Licences that go with Apache-2.0 for a program that is handed out.
const LICENCES: [&str; 11] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Zlib",
];

/// Crates that may be there in two versions, and why.
const TWICE: [(&str, &str); 12] = [
    (
        "syn",
        "macros of two generations use it while they are built; no program has it in it",
    ),
    ("chacha20", ENGINE),
    ("cpufeatures", ENGINE),
    ("embedded-io", ENGINE),
    (
        "getrandom",
        "of the WebAssembly engine's own tree, and of what makes the keys of TLS",
    ),
    ("hashbrown", ENGINE),
    ("io-lifetimes", ENGINE),
    ("itertools", ENGINE),
    ("r-efi", "of firmware alone, where nothing of ours runs"),
    ("thiserror", ENGINE),
    ("thiserror-impl", ENGINE),
    ("wast", ENGINE),
];

/// Why the WebAssembly engine has another version.
const ENGINE: &str =
    "of the WebAssembly engine's own tree: in its host and its compiler, and in no other program";

/// Of Windows alone, where nothing of ours runs.
fn of_windows(name: &str) -> bool {
    name.starts_with("windows-") || name.starts_with("windows_")
}

/// What crates of ours must stay free of, whatever they use else: no I/O in `core`; no async runtime and no
/// command-line parser where code is trusted and must stay short.
const FREE_OF: [(&str, &[&str]); 4] = [
    ("core", &["libc", "rustix", "tokio", "clap"]),
    ("protocol", &["tokio", "clap"]),
    ("jail", &["tokio", "clap"]),
    ("supervisor", &["tokio", "clap"]),
];

/// What `cargo metadata` says of this work tree, resolved.
pub(super) fn metadata(root: &Path) -> Result<Value> {
    let text = step::output(
        step::cargo()
            .args(["metadata", "--format-version", "1"])
            .current_dir(root),
    )?;
    serde_json::from_str(&text).context("read cargo's metadata")
}

/// The packages of this workspace: name without prefix, and package.
fn ours(metadata: &Value) -> Vec<(String, &Value)> {
    let members: BTreeSet<&str> = array(&metadata["workspace_members"])
        .filter_map(Value::as_str)
        .collect();
    array(&metadata["packages"])
        .filter(|package| {
            package["id"]
                .as_str()
                .is_some_and(|id| members.contains(id))
        })
        .filter_map(|package| Some((short(package["name"].as_str()?).to_owned(), package)))
        .collect()
}

fn short(name: &str) -> &str {
    name.strip_prefix("leasehold-").unwrap_or(name)
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// One row of the table of crates.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    all: bool,
    may: BTreeSet<String>,
    /// Crate of ours of which only one feature may be used.
    feature: Option<(String, String)>,
}

/// The table of crates in `docs/ARCHITECTURE.md`.
fn table(text: &str) -> BTreeMap<String, Row> {
    let mut rows = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, _, may, _] = cells.as_slice() else {
            continue;
        };
        let mut row = Row {
            all: *may == "all",
            may: BTreeSet::new(),
            feature: None,
        };
        for part in may.split(',') {
            let (used, note) = part.trim().split_once(' ').unwrap_or((part.trim(), ""));
            if !matches!(used, "–" | "all" | "") {
                row.may.insert(used.to_owned());
                let feature = note
                    .strip_prefix("(feature `")
                    .and_then(|note| note.strip_suffix("` only)"));
                row.feature = row
                    .feature
                    .or(feature.map(|feature| (used.to_owned(), feature.to_owned())));
            }
        }
        rows.insert(name.trim_matches('`').to_owned(), row);
    }
    rows
}

/// Crates use each other only as the table says. Tests of a crate may use more.
pub(super) fn direction(files: &[File], metadata: &Value) -> Findings {
    let Some(page) = files
        .iter()
        .find(|file| file.path == "docs/ARCHITECTURE.md")
    else {
        return vec!["docs/ARCHITECTURE.md: is not there; it holds the table of crates".into()];
    };
    let rows = table(&page.text);
    let ours = ours(metadata);
    let names: BTreeSet<&str> = ours.iter().map(|(name, _)| name.as_str()).collect();
    let mut findings = Findings::new();
    for (name, package) in &ours {
        let Some(row) = rows.get(name) else {
            findings.push(format!("docs/ARCHITECTURE.md: no row for crate `{name}`"));
            continue;
        };
        for dependency in array(&package["dependencies"]).filter(|used| used["kind"] != "dev") {
            let used = short(dependency["name"].as_str().unwrap_or_default());
            if names.contains(used) {
                findings.extend(forbidden(name, row, used, dependency));
            } else if FREE_OF
                .iter()
                .any(|(whose, of)| whose == name && of.contains(&used))
            {
                findings.push(format!(
                    "crate `{name}` uses `{used}`, which it must stay free of"
                ));
            }
        }
    }
    findings
}

fn forbidden(name: &str, row: &Row, used: &str, dependency: &Value) -> Option<String> {
    if !row.all && !row.may.contains(used) {
        return Some(format!(
            "crate `{name}` uses `{used}`; docs/ARCHITECTURE.md does not let it"
        ));
    }
    let (_, feature) = row.feature.as_ref().filter(|(of, _)| of == used)?;
    let only = dependency["uses_default_features"] == false
        && array(&dependency["features"]).all(|taken| taken == feature.as_str());
    (!only).then(|| {
        format!("crate `{name}` uses `{used}` with more than its feature `{feature}`; switch default features off")
    })
}

/// Every dependency may be handed out with us.
pub(super) fn licences(metadata: &Value) -> Findings {
    array(&metadata["packages"])
        .filter(|package| !package["source"].is_null())
        .filter(|package| !package["license"].as_str().is_some_and(allowed))
        .map(|package| {
            format!(
                "{} {}: licence {} is not on the list",
                package["name"], package["version"], package["license"]
            )
        })
        .collect()
}

/// Whether an SPDX expression can be met with licences of the list.
fn allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    let expression = expression.trim();
    if let Some(parts) = split(expression, " OR ") {
        return parts.iter().any(|part| allowed(part));
    }
    if let Some(parts) = split(expression, " AND ") {
        return parts.iter().all(|part| allowed(part));
    }
    if let Some(inner) = expression
        .strip_prefix('(')
        .and_then(|rest| rest.strip_suffix(')'))
    {
        return allowed(inner);
    }
    // An exception only adds to what is permitted.
    let licence = expression.split(" WITH ").next().unwrap_or(expression);
    LICENCES.contains(&licence.trim())
}

/// The parts of an expression between `word` outside of parentheses, where there is more than one.
fn split<'a>(expression: &'a str, word: &str) -> Option<Vec<&'a str>> {
    let mut parts = Vec::new();
    let mut from = 0;
    for (at, _) in expression.match_indices(word) {
        let before = &expression[..at];
        if before.matches('(').count() == before.matches(')').count() {
            parts.push(&expression[from..at]);
            from = at + word.len();
        }
    }
    parts.push(&expression[from..]);
    (parts.len() > 1).then_some(parts)
}

/// One version of each dependency, but for those on the list.
pub(super) fn duplicates(metadata: &Value) -> Findings {
    twice(metadata, &TWICE)
}

fn twice(metadata: &Value, listed: &[(&str, &str)]) -> Findings {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in array(&metadata["packages"]) {
        if let (Some(name), Some(version)) = (package["name"].as_str(), package["version"].as_str())
        {
            versions.entry(name).or_default().insert(version);
        }
    }
    let seen = |name: &str| versions.get(name).is_some_and(|found| found.len() > 1);
    let stale = listed
        .iter()
        .filter(|(name, _)| !seen(name))
        .map(|(name, _)| format!("{name}: listed as there twice and is not; take it off the list"));
    let double = versions.iter().filter(|(name, found)| {
        found.len() > 1 && !of_windows(name) && !listed.iter().any(|(known, _)| known == *name)
    });
    double
        .map(|(name, found)| {
            let found: Vec<&str> = found.iter().copied().collect();
            format!("{name} is there as {}; agree on one", found.join(" and "))
        })
        .chain(stale)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TABLE: &str = "| crate | what it is | may use |\n|---|---|---|\n\
        | `core` | nouns | – |\n| `jail` | walls | core |\n\
        | `agent` | inside | core, jail (feature `guest` only) |\n| `leasehold` | binary | all |\n";

    fn workspace(packages: &Value) -> Value {
        let members: Vec<&Value> = packages
            .as_array()
            .unwrap()
            .iter()
            .map(|p| &p["id"])
            .collect();
        json!({"workspace_members": members, "packages": packages})
    }

    fn found(packages: &Value) -> Findings {
        direction(
            &[File::of("docs/ARCHITECTURE.md", TABLE)],
            &workspace(packages),
        )
    }

    #[test]
    fn a_wrong_direction_is_found() {
        let uses = |name: &str| json!([{"name": name, "kind": null, "uses_default_features": true, "features": []}]);
        let packages = |core: &Value| {
            json!([
                {"id": "a", "name": "leasehold-core", "dependencies": core},
                {"id": "b", "name": "leasehold-jail", "dependencies": uses("leasehold-core")},
            ])
        };
        assert!(found(&packages(&json!([]))).is_empty());
        assert_eq!(found(&packages(&uses("leasehold-jail"))).len(), 1);
        assert_eq!(found(&packages(&uses("tokio"))).len(), 1);
        assert!(found(&packages(&uses("serde"))).is_empty());
    }

    #[test]
    fn more_than_the_one_feature_is_found() {
        let agent = |defaults: bool| {
            json!([
                {"id": "b", "name": "leasehold-jail", "dependencies": []},
                {"id": "c", "name": "leasehold-agent", "dependencies": [
                    {"name": "leasehold-jail", "kind": null, "uses_default_features": defaults, "features": ["guest"]}
                ]},
            ])
        };
        assert!(found(&agent(false)).is_empty());
        assert_eq!(found(&agent(true)).len(), 1);
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        let packages = json!([{"id": "x", "name": "leasehold-new", "dependencies": []}]);
        assert_eq!(found(&packages).len(), 1);
    }

    #[test]
    fn licence_expressions_are_understood() {
        for good in [
            "MIT",
            "MIT OR GPL-3.0",
            "MIT/Apache-2.0",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
        ] {
            assert!(allowed(good), "{good}");
        }
        for bad in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT OR Apache-2.0) AND AGPL-3.0",
            "",
        ] {
            assert!(!allowed(bad), "{bad}");
        }
        let metadata = json!({"packages": [
            {"name": "x", "version": "1", "source": "registry", "license": null},
            {"name": "own", "version": "1", "source": null, "license": null},
        ]});
        assert_eq!(licences(&metadata).len(), 1);
    }

    #[test]
    fn two_versions_are_found() {
        let metadata = json!({"packages": [
            {"name": "x", "version": "1.0.0"}, {"name": "x", "version": "2.0.0"},
            {"name": "y", "version": "1.0.0"},
            {"name": "syn", "version": "2.0.0"}, {"name": "syn", "version": "3.0.0"},
        ]});
        let found = twice(&metadata, &[("syn", "two generations"), ("y", "once")]);
        assert_eq!(found.len(), 2);
        assert!(found[0].contains("1.0.0 and 2.0.0"));
        assert!(found[1].starts_with("y: listed as there twice and is not"));
    }
}
