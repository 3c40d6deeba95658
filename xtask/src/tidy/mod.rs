//! `cargo xtask tidy`: the rules of the work tree that no compiler holds, as checks that can fail.
//!
//! A check is a function from text to findings, so that each has a test in which it finds something.
//! A finding says where, what, and how to mend it. To add one, write it in the file of its subject and
//! call it in [`run`].

mod code;
mod dependencies;
mod documents;
mod points;
mod sources;
mod variables;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::tally::Tally;
use crate::tree;

/// One file of the work tree.
#[derive(Debug, Clone)]
pub(crate) struct File {
    /// Path from the root of the work tree.
    pub(crate) path: String,
    /// Its text; files that are not UTF-8 are not looked at.
    pub(crate) text: String,
}

#[cfg(test)]
impl File {
    fn of(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }
}

/// What a check found: each line names a place and what to do.
pub(crate) type Findings = Vec<String>;

/// Runs every check over the work tree.
///
/// # Errors
/// When files or cargo's metadata cannot be read.
pub(crate) fn run() -> Result<Tally> {
    let root = tree::root();
    let mut files = Vec::new();
    read(&root, &root, &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let metadata = dependencies::metadata(&root)?;
    let exists = |path: &str| root.join(path).exists();

    let mut tally = Tally::default();
    for warning in sources::long(&files) {
        println!("warning: {warning}");
    }
    let checks: [(&str, Findings); 16] = [
        ("module docs", sources::without_doc(&files)),
        ("file sizes", sources::too_long(&files)),
        ("unsafe", sources::unsafe_outside(&files)),
        ("leftovers", sources::leftovers(&files)),
        ("machine paths", sources::machine_paths(&files)),
        ("lints", sources::without_lints(&files)),
        ("direction", dependencies::direction(&files, &metadata)),
        ("licences", dependencies::licences(&metadata)),
        ("duplicates", dependencies::duplicates(&metadata)),
        ("changelog", documents::changelog(&files)),
        ("named files", documents::named_files(&files, &exists)),
        ("named tests", documents::named_tests(&files)),
        ("invariants", documents::invariants(&files)),
        ("named commands", documents::named_commands(&files)),
        ("variables", variables::registered(&files)),
        ("points", points::walked(&files)),
    ];
    for (name, findings) in checks {
        if findings.is_empty() {
            tally.passed += 1;
        }
        for finding in findings {
            tally.fail(&format!("tidy {name}: {finding}"));
        }
    }
    Ok(tally)
}

/// Reads all text files below `folder`, except what is built or hidden.
fn read(root: &Path, folder: &Path, files: &mut Vec<File>) -> Result<()> {
    const TEXT: [&str; 8] = ["rs", "md", "toml", "sh", "py", "c", "json", "csv"];
    let listing = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    for entry in listing {
        let entry = entry.with_context(|| format!("list {}", folder.display()))?;
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().context("type of an entry")?;
        let hidden = name.starts_with('.') && name != ".ci" && name != ".config";
        if kind.is_dir() {
            if !hidden && name != "target" && name != "dist" {
                read(root, &path, files)?;
            }
            continue;
        }
        let script = ["scripts", ".ci"]
            .iter()
            .any(|name| folder.file_name().is_some_and(|own| own == *name));
        let text = script
            || path
                .extension()
                .is_some_and(|ext| TEXT.iter().any(|text| ext == *text));
        if !kind.is_file() || !text {
            continue;
        }
        // A file that went away or is not UTF-8 is no text of ours.
        if let Ok(text) = fs::read_to_string(&path) {
            let path = path.strip_prefix(root).unwrap_or(&path);
            files.push(File {
                path: path.to_string_lossy().into_owned(),
                text,
            });
        }
    }
    Ok(())
}

/// Numbered lines of a text, starting with 1.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(at, line)| (at + 1, line))
}
