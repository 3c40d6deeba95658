//! Checks that every environment variable of ours is in the registry, and every one of the registry is
//! explained to people.

use std::collections::BTreeSet;

use super::{File, Findings};

const REGISTRY: &str = "crates/leasehold/src/env.rs";
const PREFIX: &str = concat!("LEASE", "HOLD_");

/// Compares the registry with the sources and the documents.
pub(super) fn registered(files: &[File]) -> Findings {
    let Some(registry) = files.iter().find(|file| file.path == REGISTRY) else {
        return vec![format!(
            "{REGISTRY}: is not there; it holds the registry of variables"
        )];
    };
    let registry = names(&registry.text);
    let built: BTreeSet<String> = files
        .iter()
        .filter(|file| file.path.ends_with("build.rs"))
        .flat_map(|file| names(&file.text))
        .collect();
    let tests: BTreeSet<String> = files
        .iter()
        .filter(|file| !product(&file.path) && !file.path.ends_with(".md"))
        .flat_map(|file| names(&file.text))
        .collect();
    let mut findings = Findings::new();
    for file in files
        .iter()
        .filter(|file| product(&file.path) && file.path != REGISTRY)
    {
        for name in names(&file.text)
            .difference(&registry)
            .filter(|name| !built.contains(*name))
        {
            findings.push(format!("{}: `{name}` is not in {REGISTRY}", file.path));
        }
    }
    let documents: Vec<&File> = files
        .iter()
        .filter(|file| file.path.ends_with(".md"))
        .collect();
    let explained: BTreeSet<String> = documents
        .iter()
        .flat_map(|file| names(&file.text))
        .collect();
    for name in registry.difference(&explained) {
        findings.push(format!("{REGISTRY}: no document explains `{name}`"));
    }
    for name in explained.difference(&registry) {
        if !tests.contains(name) && !built.contains(name) {
            findings.push(format!("documents: explain `{name}`, which nothing reads"));
        }
    }
    findings
}

/// Whether a file is part of what is handed out, tests aside.
fn product(path: &str) -> bool {
    path.ends_with(".rs")
        && path.starts_with("crates/")
        && !path.starts_with("crates/e2e/")
        && path.contains("/src/")
}

/// Names of variables of ours in a text.
fn names(text: &str) -> BTreeSet<String> {
    text.match_indices(PREFIX)
        .map(|(at, _)| {
            let rest = &text[at..];
            let end =
                rest.find(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_');
            rest[..end.unwrap_or(rest.len())].to_owned()
        })
        .filter(|name| name.len() > PREFIX.len())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str) -> String {
        format!("{PREFIX}{name}")
    }

    #[test]
    fn a_variable_without_registry_or_words_is_found() {
        let registry = File::of(REGISTRY, &format!("{} {}", variable("A"), variable("B")));
        let page = |text: &str| File::of("README.md", text);
        let both = page(&format!("`{}` and `{}`", variable("A"), variable("B")));
        assert!(registered(&[registry.clone(), both.clone()]).is_empty());
        assert_eq!(
            registered(&[registry.clone(), page(&variable("A"))]).len(),
            1
        );
        let stray = File::of("crates/x/src/a.rs", &variable("C"));
        assert_eq!(registered(&[registry.clone(), both, stray]).len(), 1);
        assert_eq!(registered(&[page("")]).len(), 1);
        let more = page(&format!(
            "{} {} {}",
            variable("A"),
            variable("B"),
            variable("D")
        ));
        assert_eq!(registered(&[registry, more]).len(), 1);
    }

    #[test]
    fn a_variable_of_the_build_needs_no_registry() {
        let registry = File::of(REGISTRY, "");
        let build = File::of("crates/x/build.rs", &variable("AGENT"));
        let user = File::of("crates/x/src/a.rs", &variable("AGENT"));
        assert!(registered(&[registry, build, user]).is_empty());
    }
}
