//! Checks over the text of single source files.

use super::code::{has_word, without_comments_and_literals};
use super::{File, Findings, lines};

/// Lines from which a file is pointed out, and from which it is refused.
const LINES_LONG: usize = 600;
const LINES_MAX: usize = 1000;

fn rust(files: &[File]) -> impl Iterator<Item = &File> {
    files.iter().filter(|file| file.path.ends_with(".rs"))
}

/// Every Rust file says in its first line what it is.
pub(super) fn without_doc(files: &[File]) -> Findings {
    rust(files)
        .filter(|file| !file.text.starts_with("//! "))
        .map(|file| format!("{}:1: start with `//! ` and what the file is", file.path))
        .collect()
}

/// Files that are longer than they should be.
pub(super) fn long(files: &[File]) -> Findings {
    sized(files, LINES_LONG + 1..=LINES_MAX)
}

/// Files that are longer than they may be.
pub(super) fn too_long(files: &[File]) -> Findings {
    sized(files, LINES_MAX + 1..=usize::MAX)
}

fn sized(files: &[File], range: std::ops::RangeInclusive<usize>) -> Findings {
    rust(files)
        .map(|file| (file, file.text.lines().count()))
        .filter(|(_, count)| range.contains(count))
        .map(|(file, count)| format!("{}: {count} lines; split it by subject", file.path))
        .collect()
}

/// The one file besides: it loads machine code into the engine, which `jail` must not depend on.
const LOADS_CODE: &str = "crates/wasm/src/program.rs";

/// `unsafe` is for the crate `jail` alone.
pub(super) fn unsafe_outside(files: &[File]) -> Findings {
    let mut findings = Findings::new();
    let outside = |file: &&File| !file.path.starts_with("crates/jail/") && file.path != LOADS_CODE;
    for file in rust(files).filter(outside) {
        let code = without_comments_and_literals(&file.text);
        for (number, line) in lines(&code) {
            if has_word(line, "unsafe") || line.contains("allow(unsafe_code") {
                findings.push(format!(
                    "{}:{number}: `unsafe` outside crates/jail; move it there behind a safe function",
                    file.path
                ));
            }
        }
    }
    findings
}

/// Nothing is left for later in comments, and no debugging aid in code.
pub(super) fn leftovers(files: &[File]) -> Findings {
    // Put together so that this file does not name them itself.
    let words = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
    ];
    let aid = concat!("dbg", "!(");
    let mut findings = Findings::new();
    for file in files.iter().filter(|file| !file.path.ends_with(".json")) {
        for (number, line) in lines(&file.text) {
            let word = words.into_iter().find(|word| has_word(line, word));
            if let Some(word) = word.or_else(|| line.contains(aid).then_some(aid)) {
                findings.push(format!(
                    "{}:{number}: `{word}`; do it now or say what is",
                    file.path
                ));
            }
        }
    }
    findings
}

/// No path of the machine somebody happened to work on.
pub(super) fn machine_paths(files: &[File]) -> Findings {
    let places = [
        concat!("/ro", "ot/"),
        concat!("/wo", "rk/"),
        concat!("/ho", "me/"),
    ];
    let mut findings = Findings::new();
    for file in files {
        for (number, line) in lines(&file.text) {
            for place in places {
                if line
                    .match_indices(place)
                    .any(|(at, _)| machine_path(line, at, place))
                {
                    findings.push(format!(
                        "{}:{number}: a path below `{place}`; name it relative to the work tree",
                        file.path
                    ));
                }
            }
        }
    }
    findings
}

/// Names below those places that stand in for any: the user inside a sandbox, and what tests invent.
const INVENTED: [&str; 7] = ["user", "ann", "other", "u", "f", "x", ".profile"];

/// Whether a path of a real machine starts here.
fn machine_path(line: &str, at: usize, place: &str) -> bool {
    let before = line[..at].chars().next_back();
    let starts = !before.is_some_and(|c| c.is_alphanumeric() || "._-~$})>/".contains(c));
    let rest = &line[at + place.len()..];
    let name = rest.split(|c: char| !c.is_alphanumeric() && !"._-".contains(c));
    let name = name.into_iter().next().unwrap_or_default();
    starts && !name.is_empty() && !INVENTED.contains(&name)
}

/// Every crate takes the lints of the workspace, but one that is a workspace of its own and cannot.
pub(super) fn without_lints(files: &[File]) -> Findings {
    files
        .iter()
        .filter(|file| file.path.ends_with("/Cargo.toml"))
        .filter(|file| !file.text.contains("\n[workspace]\n"))
        .filter(|file| !file.text.contains("[lints]\nworkspace = true"))
        .map(|file| format!("{}: add `[lints]` with `workspace = true`", file.path))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_its_line_is_found() {
        let files = [
            File::of("a.rs", "//! Fine.\n"),
            File::of("b.rs", "use x;\n"),
        ];
        assert_eq!(without_doc(&files).len(), 1);
    }

    #[test]
    fn a_long_file_is_pointed_out_and_a_longer_one_refused() {
        let files = [600, 601, 1000, 1001]
            .map(|count| File::of(&format!("{count}.rs"), &"x\n".repeat(count)));
        assert_eq!(long(&files).len(), 2);
        assert_eq!(too_long(&files).len(), 1);
    }

    #[test]
    fn unsafe_code_is_found_outside_jail_only() {
        let text = "//! a\nfn f() { unsafe { g() } }\n";
        let files = [
            File::of("crates/jail/src/a.rs", text),
            File::of("crates/core/src/a.rs", text),
            File::of(
                "crates/core/src/b.rs",
                "// unsafe in words\nlet x = \"unsafe\";\n",
            ),
            File::of("crates/core/src/c.rs", "#![allow(unsafe_code)]\n"),
        ];
        let found = unsafe_outside(&files);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("crates/core/src/a.rs:2:"));
    }

    #[test]
    fn leftovers_are_found_as_words() {
        let later = format!("// {}: later\n", concat!("TO", "DO"));
        let aid = format!("{}x);\n", concat!("dbg", "!("));
        let files = [
            File::of("a.rs", &later),
            File::of("b.rs", &aid),
            File::of("c.rs", concat!("mktemp.XX", "XXXX and TODOS\n")),
        ];
        assert_eq!(leftovers(&files).len(), 2);
    }

    #[test]
    fn machine_paths_are_found_where_they_start() {
        let bad = [
            concat!("see /wo", "rk/main"),
            concat!("`/ro", "ot/secret`"),
            concat!("\"/ho", "me/anna/x\""),
        ];
        for line in bad {
            assert_eq!(machine_paths(&[File::of("a.md", line)]).len(), 1, "{line}");
        }
        let good = [
            concat!("upper/wo", "rk/x"),
            concat!("/ho", "me/user/x"),
            concat!("/ho", "me/<name>"),
        ];
        for line in good {
            assert!(
                machine_paths(&[File::of("a.md", line)]).is_empty(),
                "{line}"
            );
        }
    }

    #[test]
    fn a_crate_without_the_lints_is_found() {
        let files = [
            File::of(
                "crates/a/Cargo.toml",
                "[package]\n\n[lints]\nworkspace = true\n",
            ),
            File::of("crates/b/Cargo.toml", "[package]\n"),
            File::of("Cargo.toml", "[workspace]\n"),
        ];
        assert_eq!(without_lints(&files).len(), 1);
    }
}
