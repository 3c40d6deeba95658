//! Checks that what the documents name is there.

use std::collections::BTreeSet;

use super::{File, Findings, lines};

/// Folders that a word in a document may name something in.
const FOLDERS: [&str; 8] = [
    "crates/",
    "docs/",
    "xtask/",
    "examples/",
    "scripts/",
    ".ci/",
    ".config/",
    ".cargo/",
];

fn documents(files: &[File]) -> impl Iterator<Item = &File> {
    files.iter().filter(|file| file.path.ends_with(".md"))
}

/// There is a changelog with a place for what comes next.
pub(super) fn changelog(files: &[File]) -> Findings {
    let page = files.iter().find(|file| file.path == "CHANGELOG.md");
    match page {
        None => vec!["CHANGELOG.md: is not there".into()],
        Some(page) if !page.text.lines().any(|line| line == "## [Unreleased]") => {
            vec!["CHANGELOG.md: has no `## [Unreleased]`".into()]
        }
        Some(_) => Findings::new(),
    }
}

/// Files and folders that documents name exist.
pub(super) fn named_files(files: &[File], exists: &dyn Fn(&str) -> bool) -> Findings {
    let mut findings = Findings::new();
    for file in documents(files) {
        for (number, line) in lines(&file.text) {
            for named in line.split(|c: char| c.is_whitespace() || "`()[]\"',;|".contains(c)) {
                let named = named.trim_end_matches(['.', ':', '/']);
                if names_file(named) && !there(&file.path, named, exists) {
                    findings.push(format!(
                        "{}:{number}: names {named}, which is not there",
                        file.path
                    ));
                }
            }
        }
    }
    findings
}

fn names_file(word: &str) -> bool {
    // A pattern, a placeholder or a way out of the tree is no name.
    let plain = !word.contains(['*', '<', '{', '…', '$', '?']) && !word.contains("..");
    let document = word.len() > 3 && word.ends_with(".md") && !word.contains(':');
    plain && (document || FOLDERS.iter().any(|folder| word.starts_with(folder)))
}

/// A name counts from the root of the work tree or from the folder of the document.
fn there(document: &str, named: &str, exists: &dyn Fn(&str) -> bool) -> bool {
    let folder = document.rsplit_once('/').map_or("", |(folder, _)| folder);
    exists(named) || exists(&format!("{folder}/{named}"))
}

/// Tests that the list of promises names exist.
pub(super) fn named_tests(files: &[File]) -> Findings {
    let Some(page) = files.iter().find(|file| file.path == "docs/SPEC.md") else {
        return vec!["docs/SPEC.md: is not there".into()];
    };
    let tests = functions(files);
    let mut findings = Findings::new();
    for (number, line) in lines(&page.text).filter(|(_, line)| line.starts_with('|')) {
        // The last column holds the tests.
        let cell = line
            .trim_end_matches('|')
            .rsplit('|')
            .next()
            .unwrap_or_default();
        for word in cell.split('`').skip(1).step_by(2) {
            let test = word.rsplit("::").next().unwrap_or(word);
            if !test.contains(' ') && !tests.contains(test) {
                findings.push(format!(
                    "{}:{number}: names test {test}, which is not there",
                    page.path
                ));
            }
        }
    }
    findings
}

/// The names of all functions in our sources.
fn functions(files: &[File]) -> BTreeSet<&str> {
    files
        .iter()
        .filter(|file| file.path.ends_with(".rs"))
        .flat_map(|file| file.text.split("fn ").skip(1))
        .filter_map(|rest| {
            rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .next()
        })
        .collect()
}

/// Each invariant of the architecture is named by a test: `I4` by one that has `i4` among its first words.
pub(super) fn invariants(files: &[File]) -> Findings {
    const PAGE: &str = "docs/ARCHITECTURE.md";
    let Some(page) = files.iter().find(|file| file.path == PAGE) else {
        return vec![format!("{PAGE}: is not there; it holds the invariants")];
    };
    let number = |word: &str, letter: char| {
        let number: Option<u32> = word.strip_prefix(letter).and_then(|rest| rest.parse().ok());
        number
    };
    let shown: BTreeSet<u32> = functions(files)
        .iter()
        .flat_map(|name| name.split('_').map_while(|word| number(word, 'i')))
        .collect();
    let named: BTreeSet<u32> = page
        .text
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter_map(|word| number(word, 'I'))
        .collect();
    named
        .difference(&shown)
        .map(|missing| format!("{PAGE}: no test is named after invariant I{missing}"))
        .collect()
}

/// Subcommands that documents tell people to type exist.
pub(super) fn named_commands(files: &[File]) -> Findings {
    let text_of = |path: &str| {
        files
            .iter()
            .find(|file| file.path == path)
            .map(|file| file.text.as_str())
    };
    let ours = text_of("crates/leasehold/src/cli.rs").map(subcommands);
    let tasks: BTreeSet<String> = crate::TASKS
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    let mut findings = Findings::new();
    for file in documents(files) {
        let mut fenced = false;
        for (number, line) in lines(&file.text) {
            fenced ^= line.trim_start().starts_with("```");
            let wrong = |program: &str, word: &str| {
                format!("{}:{number}: there is no `{program} {word}`", file.path)
            };
            for word in after(line, "cargo xtask ").filter(|word| !tasks.contains(*word)) {
                findings.push(wrong("cargo xtask", word));
            }
            let Some(ours) = &ours else { continue };
            let typed = line.split('`').skip(1).step_by(2);
            let typed = typed.chain(fenced.then_some(line.trim().trim_start_matches("$ ")));
            for word in typed.filter_map(|typed| after(typed, "leasehold ").next_if_first(typed)) {
                if !ours.contains(word) {
                    findings.push(wrong("leasehold", word));
                }
            }
        }
    }
    findings
}

/// The words that follow `prefix` in a line.
fn after<'a>(line: &'a str, prefix: &'a str) -> impl FirstWord<'a> {
    line.match_indices(prefix).filter_map(move |(at, _)| {
        let rest = &line[at + prefix.len()..];
        let word = rest
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
            .next()?;
        (!word.is_empty() && !word.starts_with('-')).then_some(word)
    })
}

/// Words found in a line, with a way to take one only when the line starts with the command.
trait FirstWord<'a>: Iterator<Item = &'a str> + Sized {
    /// The first word, where `typed` begins with the program itself.
    fn next_if_first(mut self, typed: &str) -> Option<&'a str> {
        typed
            .starts_with("leasehold ")
            .then(|| self.next())
            .flatten()
    }
}

impl<'a, I: Iterator<Item = &'a str>> FirstWord<'a> for I {}

/// The subcommands in the text of `cli.rs`: the variants of its enum `Command`.
fn subcommands(text: &str) -> BTreeSet<String> {
    let body = text.split("enum Command {").nth(1).unwrap_or_default();
    let body = body.split("\n}").next().unwrap_or_default();
    body.lines()
        .filter(|line| {
            line.starts_with("    ") && line.as_bytes().get(4).is_some_and(u8::is_ascii_uppercase)
        })
        .filter_map(|line| line.trim().split(['(', ',', ' ']).next())
        .map(str::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changelog_without_its_heading_is_found() {
        assert_eq!(changelog(&[]).len(), 1);
        assert_eq!(
            changelog(&[File::of("CHANGELOG.md", "# Changelog\n")]).len(),
            1
        );
        assert!(changelog(&[File::of("CHANGELOG.md", "# C\n\n## [Unreleased]\n")]).is_empty());
    }

    #[test]
    fn a_named_file_that_is_not_there_is_found() {
        let there = ["docs/SPEC.md", "crates/core"];
        let exists = |path: &str| there.contains(&path);
        let page = |text: &str| [File::of("docs/A.md", text)];
        for good in [
            "see `SPEC.md`",
            "`crates/core/`, and",
            "`crates/*/x.rs`",
            "`docs/<name>.md`",
        ] {
            assert!(named_files(&page(good), &exists).is_empty(), "{good}");
        }
        for bad in ["see `GONE.md`", "(crates/gone)", "sh scripts/gone"] {
            assert_eq!(named_files(&page(bad), &exists).len(), 1, "{bad}");
        }
    }

    #[test]
    fn an_invariant_without_its_test_is_found() {
        let page = File::of("docs/ARCHITECTURE.md", "I1, and (I11)");
        let source = |name: &str| File::of("crates/a/src/a.rs", &format!("fn {name}() {{}}"));
        let found = |name: &str| invariants(&[page.clone(), source(name)]).len();
        assert_eq!(
            found("i1_p2_i11_it_holds"),
            1,
            "words after another kind are no numbers"
        );
        assert_eq!(found("i1_i11_it_holds"), 0);
        assert_eq!(found("it_holds"), 2);
        assert_eq!(invariants(&[]).len(), 1);
    }

    #[test]
    fn a_promise_without_its_test_is_found() {
        let source = File::of("crates/a/tests/it/a.rs", "#[test]\nfn it_holds() {}\n");
        let page = |cell: &str| {
            let text =
                format!("| no. | promise | shown by |\n|---|---|---|\n| A1 | `x` | {cell} |\n");
            named_tests(&[source.clone(), File::of("docs/SPEC.md", &text)])
        };
        for good in [
            "`it_holds`",
            "`a::it_holds`",
            "*pending*",
            "`cargo xtask test-v2`",
        ] {
            assert!(page(good).is_empty(), "{good}");
        }
        assert_eq!(page("`it_holds`, `it_is_gone`").len(), 1);
        assert_eq!(named_tests(&[source]).len(), 1);
    }

    #[test]
    fn a_command_that_is_not_there_is_found() {
        let cli = "enum Command {\n    /// x\n    Run(Box<R>),\n    Stop,\n}\nenum Other {\n    Gone,\n}\n";
        let found = |text: &str| {
            named_commands(&[
                File::of("README.md", text),
                File::of("crates/leasehold/src/cli.rs", cli),
            ])
        };
        for good in [
            "`cargo xtask ci`",
            "`leasehold run -- true`",
            "the leasehold gone by",
            "```sh\nleasehold stop\n```",
            "`leasehold --help`",
        ] {
            assert!(found(good).is_empty(), "{good}");
        }
        for bad in [
            "cargo xtask gone",
            "`leasehold gone`",
            "```\n$ leasehold gone x\n```",
        ] {
            assert_eq!(found(bad).len(), 1, "{bad}");
        }
    }
}
