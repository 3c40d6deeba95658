//! Checks that every point at which a process of ours can be made to die has a test in which it does.

use std::collections::BTreeSet;

use super::{File, Findings};

/// Where points are listed, and the tests that walk a run past each.
const LISTS: [(&str, &str); 2] = [
    (
        "crates/jail/src/failpoint.rs",
        "crates/e2e/tests/it/daemon/points.rs",
    ),
    (
        "crates/control/src/engine/failpoint.rs",
        "crates/e2e/tests/it/daemon/kills.rs",
    ),
];
/// How a point is passed by name.
const PASSES: [&str; 4] = [
    "failpoint::around(\"",
    "failpoint::around_in_child(\"",
    "failpoints().before(\"",
    "failpoints.before(\"",
];

/// Compares lists, tests and the code that passes the points.
pub(super) fn walked(files: &[File]) -> Findings {
    let mut findings = Findings::new();
    let mut listed = BTreeSet::new();
    for (list, test) in LISTS {
        let text = |path: &str| files.iter().find(|file| file.path == path);
        let (Some(points), Some(tests)) = (text(list), text(test)) else {
            findings.push(format!("{list}, {test}: both are to be there"));
            continue;
        };
        let (points, tests) = (of_lists(&points.text), quoted(&tests.text));
        for point in points.difference(&tests) {
            findings.push(format!("{list}: no test in {test} dies at `{point}`"));
        }
        if points.is_empty() {
            findings.push(format!("{list}: lists no point"));
        }
        listed.extend(points);
    }
    for file in files.iter().filter(|file| file.path.starts_with("crates/")) {
        for point in passed(&file.text).difference(&listed) {
            findings.push(format!(
                "{}: passes the point `{point}`, which is in no list",
                file.path
            ));
        }
    }
    findings
}

/// The words of every public list of words.
fn of_lists(text: &str) -> BTreeSet<String> {
    let lists = text.split("pub const ").skip(1);
    let lists = lists.filter_map(|rest| {
        let (head, body) = rest.split_once("= [")?;
        head.contains(": [&str; ").then_some(body)
    });
    lists
        .filter_map(|body| Some(quoted(body.split_once("];")?.0)))
        .flatten()
        .collect()
}

/// Every word in quotes.
fn quoted(text: &str) -> BTreeSet<String> {
    let word = |text: &&str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    text.split('"').filter(word).map(str::to_owned).collect()
}

/// The points that code passes.
fn passed(text: &str) -> BTreeSet<String> {
    let after = |pass: &'static str| text.split(pass).skip(1);
    let names = PASSES.iter().flat_map(|pass| after(pass));
    names
        .filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(test: &str, code: &str) -> Findings {
        let list = "pub const POINTS: [&str; 2] = [\n    \"ledger\",\n    \"last\",\n];\npub const N: &str = \"x\";";
        let engine = "pub const POINTS: [&str; 1] = [\"admit\"];";
        walked(&[
            File::of(LISTS[0].0, list),
            File::of(LISTS[0].1, test),
            File::of(LISTS[1].0, engine),
            File::of(LISTS[1].1, "[\"admit\"]"),
            File::of("crates/supervisor/src/ledger.rs", code),
        ])
    }

    #[test]
    fn a_point_without_a_test_or_beside_every_list_is_found() {
        let test = "const A: [&str; 2] = [\"ledger\", \"last\"];";
        let code = "failpoint::around(\"ledger\", || 1)";
        assert_eq!(found(test, code), Findings::new());
        let without = found("const A: [&str; 1] = [\"ledger\"];", code);
        assert!(
            without.len() == 1 && without[0].contains("`last`"),
            "{without:?}"
        );
        let beside = found(test, "failpoint::around(\"new\", || 1)");
        assert!(
            beside.len() == 1 && beside[0].contains("`new`"),
            "{beside:?}"
        );
        assert!(!walked(&[]).is_empty());
    }
}
