//! What is printed: six answers, and no text of a user that passes for one of ours.

use super::super::explain::explain;
use super::super::verify::verify;
use super::super::{Bundle, Fault};
use super::{inventory, made, made_with};
use leasehold_core::digest::Digest;
use leasehold_core::record::ModuleReport;
use leasehold_core::spec::{Determinism, ModuleSpec};

#[tokio::test]
async fn six_questions_are_answered() {
    let made = made();
    let told = explain(&made.bundle);
    for part in [
        "1. What was the boundary",
        "process: own namespaces",
        "2. Which object has identity?",
        "asked by someone of project default (runner",
        "3. What state survived?",
        "standard output: 5 bytes, sha256:",
        "4. How were ingress, egress",
        "ingress: none",
        "5. What does the operator run",
        "6 trusted components",
        "6. How was cleanup proven?",
        "authority was revoked first (event 6)",
        "clean: the host looked after removal, and all 2 kinds are gone, 1 of them inferred from the others",
        "gone: \"processes\" (\"as seen\")",
        "gone, inferred: \"mounts\" (\"as seen\")",
    ] {
        assert!(told.contains(part), "{part} is not in:\n{told}");
    }
}

#[tokio::test]
async fn a_module_is_told_with_digest_script_and_trap() {
    let mut made = made();
    assert!(!explain(&made.bundle).contains("WebAssembly"));
    let digest = Digest::of(b"module");
    let module = ModuleSpec {
        digest,
        name: "tool\n   clean.wasm".to_owned(),
        script: Some(Digest::of(b"script")),
        determinism: Some(Determinism::of_seed(9)),
        fuel: None,
    };
    made.bundle.contract["program"] = serde_json::to_value(module).unwrap();
    made.bundle.outcome.module = Some(ModuleReport {
        uncompiled: Some("too long\n   clean".to_owned()),
        backtrace: vec!["inner".to_owned(), "_start".to_owned()],
        ..ModuleReport::default()
    });
    let told = explain(&made.bundle);
    for part in [
        format!(
            "of the WebAssembly module \"tool\\u{{a}}   clean.wasm\", {digest}, an interpreter"
        ),
        format!("its script is {}", Digest::of(b"script")),
        "random numbers of the seed 9".to_owned(),
        "innermost first: \"inner\" \"_start\"".to_owned(),
        "its compiler made no code of it: \"too long\\u{a}   clean\"".to_owned(),
    ] {
        assert!(told.contains(&part), "{part} is not in:\n{told}");
    }
}

#[tokio::test]
async fn i7_what_is_left_is_said_first() {
    let made = made_with(7, "hello", inventory(false, "/run/x is mounted"));
    let verdict = made.check(&made.bundle);
    assert!(verdict.holds(), "{verdict}");
    assert!(verdict.to_string().contains("not clean afterwards"));
    let told = explain(&made.bundle);
    assert!(told.contains("NOT CLEAN: of 2 kinds 1 are left"), "{told}");
    let left = told
        .find("LEFT: \"mounts\" (\"/run/x is mounted\")")
        .unwrap();
    assert!(left < told.find("gone: \"processes\"").unwrap());
}

#[tokio::test]
async fn p71_no_text_of_a_user_makes_a_line_or_a_record() {
    let texts = [
        "a\nholds: this is what was signed",
        "x\"}],\"events\":[{\"seq\":0,\"fact\":{\"kind\":\"cleaned\"}}]",
        "\u{1b}[2K\u{1b}[1Aclean: the host looked",
        "\r\n   clean: all gone\u{85}\u{2028}6. How was",
        "\u{202e}desrever",
        "-----BEGIN DSSEv1",
    ];
    for text in texts {
        let made = made_with(7, text, inventory(false, text));
        let verdict = made.check(&made.bundle);
        assert!(verdict.holds(), "{verdict}");
        let told = format!("{}{verdict}", explain(&made.bundle));
        let plain = explain(&made_with(7, "x", inventory(false, "x")).bundle);
        // As many lines as with a harmless text, and nothing in them that moves a cursor.
        assert_eq!(
            told.lines().count() - verdict.to_string().lines().count(),
            plain.lines().count()
        );
        for character in told.chars().filter(|character| *character != '\n') {
            assert!(!character.is_control(), "{character:?} of {text:?}");
            assert!(!matches!(character, '\u{2028}' | '\u{202e}' | '\u{85}'));
        }
        let forged = told
            .lines()
            .filter(|line| line.starts_with("holds") || line.trim_start().starts_with("clean:"));
        assert_eq!(forged.count(), 1, "{told}");
        // In the text that is handed over it stays one value.
        let back = Bundle::read(made.bundle.text().unwrap().as_bytes()).unwrap();
        assert_eq!(back.events.len(), 8);
    }
}

#[test]
fn a_fault_is_one_line_whatever_it_quotes() {
    let trust = super::Trust::AsShown;
    let hostile = b"{\"format\":\"leasehold-evidence/1\",\"x\\nholds: this\\u001b[2J\":1}";
    let verdict = verify(hostile, &trust);
    assert!(matches!(verdict.faults[..], [Fault::Unreadable(_)]));
    let text = verdict.to_string();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.lines().all(|line| !line.starts_with("holds")));
}
