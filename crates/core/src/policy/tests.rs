//! Documents are read strictly, and what they meet to is never wider than any of them.

use super::*;
use crate::digest::Digest;
use crate::document::parse_json;
use crate::isolation::{Isolation, TrustClass};
use crate::name::Name;

fn document(text: &str) -> Document {
    Document::read(&parse_json(text.as_bytes()).unwrap()).unwrap()
}

fn mistakes(text: &str) -> String {
    Document::read(&parse_json(text.as_bytes()).unwrap())
        .unwrap_err()
        .to_string()
}

fn level(scope: &str, text: &str) -> Level {
    level_of(scope, document(text))
}

fn level_of(scope: &str, document: Document) -> Level {
    Level {
        scope: Scope::parse(scope).unwrap(),
        version: 1,
        digest: Digest::of_value(&document.to_value()).unwrap(),
        document,
    }
}

#[test]
fn i9_p43_every_form_of_an_empty_list_allows_nothing() {
    for form in [
        r#"{"version":1}"#,
        r#"{"version":1,"allow":null}"#,
        r#"{"version":1,"allow":{}}"#,
        r#"{"version":1,"allow":{"egress":null}}"#,
        r#"{"version":1,"allow":{"egress":{}}}"#,
        r#"{"version":1,"allow":{"egress":[]}}"#,
    ] {
        let open = level("platform", r#"{"version":1,"allow":{"egress":["*:443"]}}"#);
        let shut = Effective::meet(vec![open.clone(), level("tenant/acme", form)]);
        let denied = shut
            .allows(AllowList::Egress, "a.example.org:443")
            .unwrap_err();
        assert!(
            denied.to_string().contains("tenant/acme"),
            "{form}: {denied}"
        );
        // The control: without that document, and with `inherit` in it, the same rule is allowed.
        let inherit = level(
            "tenant/acme",
            r#"{"version":1,"allow":{"egress":"inherit"}}"#,
        );
        for open in [vec![open.clone()], vec![open, inherit]] {
            assert_eq!(
                Effective::meet(open).allows(AllowList::Egress, "a.example.org:443"),
                Ok(())
            );
        }
    }
    let nobody = Effective::meet(vec![level(
        "platform",
        r#"{"version":1,"allow":{"egress":"inherit"}}"#,
    )]);
    assert!(
        nobody
            .allows(AllowList::Egress, "a.example.org:443")
            .is_err()
    );
    assert!(Effective::default().allows(AllowList::Tools, "a").is_err());
}

#[test]
fn what_is_not_understood_is_refused_with_path_value_and_what_is_allowed() {
    for (text, told) in [
        (r#"{}"#, "version: missing: expected 1"),
        (
            r#"{"version":2}"#,
            "version: 2: expected a whole number from 1 to 1",
        ),
        (
            r#"{"version":1,"limts":{}}"#,
            "limts: unknown field: known here are version,",
        ),
        (
            r#"{"version":1,"limits":{"memory":"12X"}}"#,
            "limits.memory: \"12X\": expected a size such as 512M (8M to 1024T)",
        ),
        (
            r#"{"version":1,"limits":{"pids":-1}}"#,
            "limits.pids: -1: expected a whole number from 1 to 1000000",
        ),
        (
            r#"{"version":1,"limits":[]}"#,
            "limits: a list of 0: expected a map of fields",
        ),
        (
            r#"{"version":1,"allow":{"egress":"all"}}"#,
            "allow.egress: \"all\": expected a list, or the word inherit",
        ),
        (
            r#"{"version":1,"allow":{"egress":["10.0.0.1:80"]}}"#,
            "allow.egress[0]: \"10.0.0.1:80\": expected a host name and port",
        ),
        (
            r#"{"version":1,"allow":{"egress":["*"]}}"#,
            "allow.egress[0]: \"*\": expected a host name and port",
        ),
        (
            r#"{"version":1,"allow":{"egress":{"a":1}}}"#,
            "allow.egress: a map of 1: expected a list",
        ),
        (
            r#"{"version":1,"allow":{"tools":["a*"]}}"#,
            "allow.tools[0]: \"a*\": expected a name, a start of names such as `text.*`, or `*`",
        ),
        (
            r#"{"version":1,"allow":{"trust":["root"]}}"#,
            "allow.trust[0]: \"root\": expected `*` or one of untrusted, verified, first_party",
        ),
        (
            r#"{"version":1,"trust":{"tools":{"A":"verified"}}}"#,
            "trust.tools.A: \"A\": expected a name",
        ),
        (
            r#"{"version":1,"isolation_floor":"chroot"}"#,
            "isolation_floor: \"chroot\": expected one of process, wasm, container, gvisor, microvm",
        ),
    ] {
        let got = mistakes(text);
        assert!(got.contains(told), "{text}\n  told: {got}\n  want: {told}");
    }
}

#[test]
fn a_document_reads_back_from_its_canonical_form() {
    let text = r#"{"version":1,"description":"x","isolation_floor":"gvisor",
        "limits":{"cpu":0.5,"memory":"1G","timeout":"90s","pids":7},
        "share":{"weight":3,"max_wait":"1m"},"retention":{"logs":"24h"},
        "allow":{"tools":["b","a","a"],"egress":"inherit","commands":["python3"]},
        "trust":{"commands":"verified","tools":{"text.*":"first_party"}}}"#;
    let first = document(text);
    let again = document(&first.to_value().to_string());
    assert_eq!(first, again);
    assert_eq!(
        first.list(AllowList::Tools),
        &Say::Only(vec!["a".into(), "b".into()])
    );
    let digest = |document: &Document| Digest::of_value(&document.to_value()).unwrap();
    assert_eq!(digest(&first), digest(&again));
}

/// Every combination of three levels out of a set of documents: what they meet to is never wider than
/// any one of them, whatever their order.
#[test]
fn a_meet_is_never_wider_than_any_of_its_documents() {
    let texts = [
        r#"{"version":1}"#,
        r#"{"version":1,"isolation_floor":"container","limits":{"memory":"1G"},"allow":{"tools":["*"],"egress":["*:443"]},"trust":{"commands":"first_party","tools":{"*":"first_party"}}}"#,
        r#"{"version":1,"isolation_floor":"gvisor","limits":{"memory":"2G","pids":9},"allow":{"tools":["text.*"],"egress":["*.example.org:443"]},"trust":{"commands":"verified"}}"#,
        r#"{"version":1,"allow":{"tools":"inherit","egress":"inherit"},"trust":{"tools":{"text.*":"verified","text.a":"untrusted"}}}"#,
        r#"{"version":1,"limits":{"pids":3},"allow":{"tools":["text.a","pdf"],"egress":["a.example.org:443","b.org:80"]}}"#,
    ];
    let things = [
        (
            AllowList::Tools,
            ["text.a", "text.b", "pdf", "text."].as_slice(),
        ),
        (
            AllowList::Egress,
            &[
                "a.example.org:443",
                "x.example.org:443",
                "b.org:80",
                "b.org:443",
                "*.example.org:443",
            ],
        ),
    ];
    let scopes = ["platform", "tenant/t", "tenant/t/project/p"];
    let mut seen = 0;
    for a in texts {
        for b in texts {
            for c in texts {
                let levels: Vec<Level> = scopes
                    .iter()
                    .zip([a, b, c])
                    .map(|(s, t)| level(s, t))
                    .collect();
                let whole = Effective::meet(levels.clone());
                let turned = Effective::meet(levels.iter().rev().cloned().collect());
                assert_eq!(whole, turned);
                for one in &levels {
                    let alone = &one.document;
                    assert!(whole.floor().0 >= alone.floor.unwrap_or(Isolation::Process));
                    for (number, most) in &alone.numbers {
                        assert!(whole.cap(*number).unwrap().0 <= *most);
                    }
                    for (list, things) in things {
                        for thing in things {
                            let speaks = alone.list(list) != &Say::Inherit;
                            // Read as the operator's, whose word alone allows.
                            let alone = Effective::meet(vec![Level {
                                scope: Scope::Platform,
                                ..one.clone()
                            }])
                            .allows(list, thing);
                            let wider =
                                speaks && alone.is_err() && whole.allows(list, thing).is_ok();
                            assert!(!wider, "{thing} in {a} {b} {c}");
                            seen += 1;
                        }
                    }
                    if let Some(class) = alone.trust.of_tool("text.a") {
                        assert!(whole.trust_of_tool("text.a").0 <= class);
                    }
                }
            }
        }
    }
    assert_eq!(seen, 125 * 3 * 9);
}

/// Numbers from a seed, the same in every run of the test.
struct Seeded(u64);

impl Seeded {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }

    /// Any document at all, wide and narrow ones alike.
    fn document(&mut self) -> Document {
        let entries: &[&str] = &["*", "text.*", "text.a", "pdf"];
        let rules: &[&str] = &["*:443", "*.example.org:443", "a.example.org:443"];
        let mut lists = std::collections::BTreeMap::new();
        for list in AllowList::ALL {
            let from = match list {
                AllowList::Egress => rules,
                _ => entries,
            };
            let say = match self.below(3) {
                0 => Say::Inherit,
                _ => {
                    let some = (0..self.below(3)).map(|_| self.one(from).to_owned());
                    Say::Only(some.collect())
                }
            };
            lists.insert(list, say);
        }
        let numbers = Number::ALL.into_iter();
        let numbers = numbers.filter(|_| self.below(2) == 0).collect::<Vec<_>>();
        let numbers = numbers.into_iter().map(|number| {
            let (low, high) = number.bounds();
            (number, low + self.below(high - low + 1))
        });
        let numbers = numbers.collect();
        let class = |seed: &mut Self| seed.one(&TrustClass::ALL);
        let tools = (0..self.below(3)).map(|_| (self.one(entries).to_owned(), class(self)));
        let tools = tools.collect();
        let commands = (self.below(2) == 0).then(|| class(self));
        Document {
            description: None,
            floor: (self.below(2) == 0).then(|| self.one(&Isolation::ALL)),
            numbers,
            lists,
            trust: TrustRules { commands, tools },
        }
    }
}

/// Whatever a tenant publishes at the scopes that are its own, nothing comes out wider, and its share no
/// bigger, than with what the operator says alone.
#[test]
fn nothing_a_tenant_publishes_widens_what_the_operator_says() {
    const CASES: usize = 1_000;
    let operators = ["platform", "platform/tenant/t"];
    let own = [
        "tenant/t",
        "tenant/t/project/p",
        "tenant/t/principal/n",
        "tenant/t/tool/text.a",
    ];
    let things = [
        "text.a",
        "text.b",
        "pdf",
        "*",
        "a.example.org:443",
        "x.example.org:443",
        "b.org:443",
    ];
    let mut seeded = Seeded(17);
    let (mut narrowed, mut raised) = (0, 0);
    for case in 0..CASES {
        let mut at = |scope: &&str| level_of(scope, seeded.document());
        let above: Vec<Level> = operators.iter().map(&mut at).collect();
        let below: Vec<Level> = own.iter().map(&mut at).collect();
        let alone = Effective::meet(above.clone());
        let whole = Effective::meet(above.iter().chain(&below).cloned().collect());
        assert!(whole.floor().0 >= alone.floor().0, "{case}");
        let value = |effective: &Effective, number: Number| {
            let cap = effective.cap(number).map(|(value, _)| value);
            cap.or(number.unsaid()).unwrap_or(u64::MAX)
        };
        for number in Number::ALL {
            let (most, without) = (value(&whole, number), value(&alone, number));
            assert!(most <= without, "{case}: {}", number.path());
            narrowed += usize::from(most < without);
        }
        assert_eq!(value(&whole, Number::Weight), value(&alone, Number::Weight));
        for list in AllowList::ALL {
            for thing in things {
                let wider = whole.allows(list, thing).is_ok() && alone.allows(list, thing).is_err();
                assert!(!wider, "{case}: {} {thing}", list.word());
            }
        }
        assert!(whole.trust_of_commands().0 <= alone.trust_of_commands().0);
        for tool in ["text.a", "text.b", "pdf"] {
            assert!(whole.trust_of_tool(tool).0 <= alone.trust_of_tool(tool).0);
        }
        // The control: the same documents from the operator do give.
        let given = below.into_iter().map(|level| Level {
            scope: Scope::Platform,
            ..level
        });
        let given = Effective::meet(given.collect());
        let more = |effective: &Effective| {
            (
                effective.trust_of_commands().0,
                value(effective, Number::Weight),
            )
        };
        raised += usize::from(more(&given) > more(&alone));
    }
    assert!(
        narrowed > CASES && raised > CASES / 10,
        "{narrowed} {raised}"
    );
}

#[test]
fn egress_rules_cover_names_and_ports_and_never_more() {
    let covers = |entry: &str, rule: &str| AllowList::Egress.entry_allows(entry, rule);
    assert!(covers("a.example.org:443", "a.example.org:443"));
    assert!(covers("*.example.org:443", "a.b.example.org:443"));
    assert!(covers("*.example.org:443", "*.example.org:443"));
    assert!(covers("*.example.org:443", "*.a.example.org:443"));
    assert!(covers("*:443", "*.example.org:443"));
    for (entry, rule) in [
        ("a.example.org:443", "a.example.org:80"),
        ("a.example.org:443", "b.example.org:443"),
        ("a.example.org:443", "*.example.org:443"),
        ("*.example.org:443", "example.org:443"),
        ("*.example.org:443", "evilexample.org:443"),
        ("*.example.org:443", "a.example.org.evil.net:443"),
        ("*.a.example.org:443", "*.example.org:443"),
        ("*.example.org:443", "*:443"),
    ] {
        assert!(!covers(entry, rule), "{entry} covers {rule}");
    }
    for bad in [
        "",
        "a:1",
        "localhost:80",
        "a.b",
        "a.b:0",
        "a.b:65536",
        "a.b:080",
        "a.b:+1",
        "A.b:1",
        "1.2.3.4:80",
        "[::1]:80",
        "a..b:1",
        "-a.b:1",
        "a.b.:1",
        "*.*.org:1",
        "a.b:1/x",
        "a b.c:1",
        "0x7f.1:80",
    ] {
        assert!(egress_rule(bad).is_err(), "{bad} was taken");
    }
}

#[test]
fn trust_is_untrusted_until_somebody_says_more_and_the_least_wins() {
    let none = Effective::meet(vec![level("platform", r#"{"version":1}"#)]);
    assert_eq!(none.trust_of_tool("a").0, TrustClass::Untrusted);
    assert_eq!(none.trust_of_commands().0, TrustClass::Untrusted);
    let given = r#"{"version":1,"trust":{"tools":{"*":"verified","text.*":"first_party","text.a":"untrusted"}}}"#;
    let one = Effective::meet(vec![level("platform", given)]);
    assert_eq!(one.trust_of_tool("b").0, TrustClass::Verified);
    assert_eq!(one.trust_of_tool("text.b").0, TrustClass::FirstParty);
    assert_eq!(one.trust_of_tool("text.a").0, TrustClass::Untrusted);
    // What a tenant says of itself gives nothing.
    let own = level("tenant/t", given);
    let silent = level("platform", r#"{"version":1}"#);
    let alone = Effective::meet(vec![silent, own]);
    assert_eq!(alone.trust_of_tool("b"), (TrustClass::Untrusted, None));
    let less = level(
        "tenant/t",
        r#"{"version":1,"trust":{"tools":{"text.b":"verified"}}}"#,
    );
    let two = Effective::meet(vec![level("platform", given), less]);
    assert_eq!(two.trust_of_tool("text.b").0, TrustClass::Verified);
}

#[test]
fn an_explanation_names_the_document_behind_each_value() {
    let levels = vec![
        level(
            "platform",
            r#"{"version":1,"limits":{"memory":"4G","pids":9},"allow":{"tools":["*"]}}"#,
        ),
        level(
            "tenant/t",
            r#"{"version":1,"limits":{"memory":"1G"},"isolation_floor":"gvisor","allow":{"tools":["text.*"]}}"#,
        ),
    ];
    let rows = Effective::meet(levels).explain(Some("text.a"));
    let row = |field: &str| {
        let row = rows.iter().find(|row| row.field == field).unwrap();
        (row.value.as_str(), row.set_by.join("; "))
    };
    assert_eq!(row("limits.memory"), ("1G", "tenant/t (version 1)".into()));
    assert_eq!(row("limits.pids"), ("9", "platform (version 1)".into()));
    assert_eq!(row("limits.disk"), ("unbounded", String::new()));
    assert_eq!(row("share.running"), ("unbounded", String::new()));
    assert_eq!(row("share.weight"), ("1", String::new()));
    assert_eq!(
        row("isolation_floor"),
        ("gvisor", "tenant/t (version 1)".into())
    );
    assert_eq!(row("trust.tools.text.a"), ("untrusted", String::new()));
    assert_eq!(
        row("allow.tools"),
        (
            "text.*",
            "platform (version 1); tenant/t (version 1)".into()
        )
    );
    assert_eq!(row("allow.egress").0, "nothing");
}

#[test]
fn scopes_read_back_and_nothing_else_is_one() {
    for text in [
        "platform",
        "platform/tenant/a",
        "tenant/a",
        "tenant/a/project/b",
        "tenant/a/principal/b",
        "tenant/a/tool/b.c",
    ] {
        assert_eq!(Scope::parse(text).unwrap().to_string(), text);
    }
    for bad in [
        "",
        "tenant",
        "tenant/",
        "tenant/../x",
        "tenant/a/tool",
        "tenant/a/tool/b/c",
        "platform/",
        "platform/tenant",
        "platform/tenant/a/tool/b",
        "platform/platform",
        "Tenant/a",
        "tenant/a/role/b",
    ] {
        assert!(Scope::parse(bad).is_err(), "{bad} was taken");
    }
    let name = |text: &str| Name::parse(text).unwrap();
    assert_eq!(
        Scope::of_run(&name("t"), &name("p"), &name("n"), None).len(),
        5
    );
}
