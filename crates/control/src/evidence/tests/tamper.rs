//! P71, the bundle of a run: each way to change it is named.

use leasehold_core::digest::Digest;
use leasehold_core::event::{Chain, Head, RunFact};
use leasehold_core::lease::Epoch;

use super::super::bundle::BUNDLE_MAX;
use super::super::fault::{Of, Signed};
use super::super::verify::verify;
use super::super::{Bundle, Fault};
use super::{Made, NOW, inventory, made, made_with, run_id};

fn faults(made: &Made, change: impl FnOnce(&mut Bundle)) -> Vec<Fault> {
    let mut bundle = made.bundle.clone();
    change(&mut bundle);
    made.check(&bundle).faults
}

#[tokio::test]
async fn p71_each_altered_event_is_named() {
    let made = made();
    for seq in 0..made.bundle.events.len() {
        let body = faults(&made, |bundle| bundle.events[seq].at_unix_ms += 1);
        assert_eq!(body, [Fault::Altered(Of::Run, seq as u64)], "body of {seq}");
        let pointer = faults(&made, |bundle| bundle.events[seq].prev = Digest::of(b"x"));
        assert_eq!(
            pointer,
            [Fault::Altered(Of::Run, seq as u64)],
            "pointer of {seq}"
        );
    }
}

#[tokio::test]
async fn p71_cuts_are_named() {
    let made = made();
    let count = made.bundle.events.len() as u64;
    let middle = faults(&made, |bundle| drop(bundle.events.drain(2..4)));
    let cut = |from, to| Fault::Cut {
        of: Of::Run,
        from,
        to,
    };
    assert_eq!(middle, [cut(2, 4)]);
    let begin = faults(&made, |bundle| drop(bundle.events.remove(0)));
    assert!(begin.contains(&cut(0, 1)), "{begin:?}");
    let tail = faults(&made, |bundle| bundle.events.truncate(6));
    let missing = Fault::MissingTail {
        of: Of::Run,
        have: 6,
        signed: count,
    };
    assert!(tail.contains(&missing), "{tail:?}");
    let all = faults(&made, |bundle| bundle.events.clear());
    let absent = Fault::Absent {
        of: Of::Run,
        whose: made.bundle.run.to_string(),
    };
    assert!(all.contains(&absent), "{all:?}");
}

#[tokio::test]
async fn p71_order_copies_and_forks_are_named() {
    let made = made();
    let swapped = faults(&made, |bundle| bundle.events.swap(1, 2));
    assert!(
        swapped.contains(&Fault::Reordered(Of::Run, 1)),
        "{swapped:?}"
    );
    let twice = faults(&made, |bundle| {
        bundle.events.insert(3, bundle.events[2].clone())
    });
    assert_eq!(twice, [Fault::Duplicated(Of::Run, 2)]);
    // Two writers went on from event 1 in two ways.
    let forked = faults(&made, |bundle| {
        let mut other = bundle.events[2].clone();
        other.at_unix_ms += 5;
        bundle.events.insert(3, other);
    });
    assert_eq!(forked, [Fault::Forked(Of::Run, 2)]);
    let added = faults(&made, |bundle| {
        let last = bundle.events.last().unwrap();
        let head = Head {
            count: last.seq + 1,
            digest: last.digest().unwrap(),
        };
        let mut chain = Chain::new(bundle.run.clone(), last.contract, head);
        let more = chain.next(Epoch(1), NOW, RunFact::Queued { ahead: 9 });
        bundle.events.push(more.unwrap());
    });
    assert!(matches!(added[..], [Fault::Added { .. }]), "{added:?}");
}

#[tokio::test]
async fn p71_a_chain_written_anew_is_not_the_signed_one() {
    let made = made();
    let anew = faults(&made, |bundle| {
        let contract = bundle.events[0].contract;
        let mut chain = Chain::new(bundle.run.clone(), contract, Head::EMPTY);
        for event in &mut bundle.events {
            let at = event.at_unix_ms + 1;
            *event = chain.next(event.epoch, at, event.fact.clone()).unwrap();
        }
    });
    let last = made.bundle.events.len() as u64 - 1;
    assert_eq!(anew, [Fault::Altered(Of::Run, last)]);
}

#[tokio::test]
async fn p71_another_runs_parts_are_named() {
    let made = made();
    let other = made_with(8, "other", inventory(true, "x"));
    let foreign = faults(&made, |bundle| {
        bundle.events[3] = other.bundle.events[3].clone()
    });
    let whose = other.bundle.run.to_string();
    assert!(
        foreign.contains(&Fault::Foreign {
            of: Of::Run,
            seq: 3,
            whose
        }),
        "{foreign:?}"
    );
    let differs = |part| Fault::Differs {
        signed: Signed::Statement,
        part,
    };
    let renamed = faults(&made, |bundle| bundle.run = run_id(9));
    assert!(renamed.contains(&differs("run")), "{renamed:?}");
    // Signed by the same key for another run of the same daemon.
    let second = made_with_same_key(&made);
    let swapped = faults(&made, |bundle| bundle.statement = second.statement.clone());
    assert!(swapped.contains(&differs("run")), "{swapped:?}");
    let anchored = faults(&made, |bundle| bundle.sealed = bundle.opened.clone());
    assert!(
        anchored.contains(&Fault::Differs {
            signed: Signed::Head,
            part: "entry"
        }),
        "{anchored:?}"
    );
}

fn made_with_same_key(made: &Made) -> Bundle {
    let other = made_with(8, "other", inventory(true, "x"));
    let text = other.bundle.statement.unproven().unwrap();
    let mut bundle = other.bundle;
    let key = made.keyring.id();
    let mut value: serde_json::Value = serde_json::from_slice(&text).unwrap();
    value["predicate"]["key"] = key.to_string().into();
    let statement = made.keyring.seal(super::super::statement::KIND, |_| {
        leasehold_core::digest::canonical(&value)
    });
    bundle.statement = statement.unwrap();
    bundle
}

#[tokio::test]
async fn p71_parts_that_were_signed_cannot_be_exchanged() {
    let made = made();
    let differs = |part| Fault::Differs {
        signed: Signed::Statement,
        part,
    };
    let contract = faults(&made, |bundle| bundle.contract["idempotent"] = true.into());
    assert_eq!(contract, [differs("contract")]);
    let outcome = faults(&made, |bundle| bundle.outcome.ended_unix_ms += 1);
    assert_eq!(outcome, [differs("outcome")]);
    let receipt = faults(&made, |bundle| {
        bundle.outcome.artifacts[0].sha256 = Some(Digest::of(b"other").hex());
    });
    assert!(receipt.contains(&differs("receipts")), "{receipt:?}");
    let missing = faults(&made, |bundle| bundle.sealed = None);
    assert_eq!(missing, [Fault::Missing("log entry that seals the run")]);
    let entry = faults(&made, |bundle| {
        if let Some(sealed) = &mut bundle.sealed {
            sealed.entry.at_unix_ms += 1;
        }
    });
    assert_eq!(entry, [Fault::Altered(Of::Log, 3)]);
}

#[tokio::test]
async fn p71_a_second_admission_or_a_fenced_writer_is_named() {
    let made = made();
    // Whoever has the key could sign it; what it says is still no run.
    let contract = made.bundle.events[0].contract;
    let outcome = Digest::of_value(&made.bundle.outcome).unwrap();
    let mut events = made.bundle.events.clone();
    events[4].fact = RunFact::Accepted { contract };
    events[6].epoch = Epoch(0);
    let found = super::super::chain::check_facts(&events, contract, outcome);
    assert_eq!(found, [Fault::Misplaced(4), Fault::OldEpoch(6)]);
    let never = super::super::chain::check_facts(&events[..5], contract, outcome);
    assert!(never.contains(&Fault::Missing("event that fixes the outcome")));
}

#[tokio::test]
async fn hostile_texts_are_bounded_and_told() {
    let made = made();
    let unreadable = |text: &[u8]| {
        let verdict = verify(text, &made.trust());
        matches!(verdict.faults[..], [Fault::Unreadable(_)])
    };
    assert!(unreadable(b""));
    assert!(unreadable(b"{}"));
    assert!(unreadable(&[0xff; 100]));
    assert!(unreadable("[".repeat(100_000).as_bytes()));
    assert!(unreadable(&vec![b' '; BUNDLE_MAX + 1]));
    let text = made.bundle.text().unwrap();
    assert!(unreadable(
        text.replace("leasehold-evidence/1", "leasehold-evidence/2")
            .as_bytes()
    ));
    assert!(unreadable(
        text.replacen('{', "{\"extra\":1,", 1).as_bytes()
    ));
    let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
    let mut nested = made.bundle.clone();
    nested.contract = serde_json::from_str(&deep).unwrap();
    assert!(!made.check(&nested).holds());
    let twice = text.replacen(
        "\"format\":",
        "\"format\":\"leasehold-evidence/1\",\"format\":",
        1,
    );
    assert!(unreadable(twice.as_bytes()));
}

/// Where the bytes of an envelope's payload are: signed as a whole, so that some of them stand for all.
fn payloads(text: &str) -> Vec<std::ops::Range<usize>> {
    let marks = text.match_indices("\"payload\":\"");
    marks
        .map(|(at, mark)| {
            let from = at + mark.len();
            let len = text[from..].find('"').unwrap();
            from + 2..from + len.saturating_sub(6)
        })
        .collect()
}

#[tokio::test]
async fn p71_no_single_byte_can_be_changed_unnoticed() {
    let made = made();
    let text = made.bundle.text().unwrap();
    let payloads = payloads(&text);
    assert_eq!(payloads.len(), 4);
    let sampled =
        |at: usize| at.is_multiple_of(61) || !payloads.iter().any(|range| range.contains(&at));
    let trust = made.trust();
    let try_every_fourth = |first: usize| {
        let (mut caught, mut same) = (0, 0);
        for at in (first..text.len()).step_by(4).filter(|at| sampled(*at)) {
            let flip = [0x01, 0x20, 0x02, 0x80, 0x10][at % 5];
            let mut changed = text.clone().into_bytes();
            changed[at] ^= flip;
            if verify(&changed, &trust).holds() {
                let read = Bundle::read(&changed).unwrap();
                assert_eq!(
                    read, made.bundle,
                    "byte {at} changed by {flip:#x} means something else"
                );
                same += 1;
            } else {
                caught += 1;
            }
        }
        (caught, same)
    };
    let try_every_fourth = &try_every_fourth;
    let (caught, same) = std::thread::scope(|scope| {
        let parts = [0, 1, 2, 3].map(|first| scope.spawn(move || try_every_fourth(first)));
        let counts = parts.map(|part| part.join().unwrap());
        counts.iter().fold((0, 0), |(caught, same), part| {
            (caught + part.0, same + part.1)
        })
    });
    assert!(
        caught > 5_000 && same < caught / 100,
        "{caught} caught, {same} the same"
    );
}

/// Pointers to every map of a text, the outermost among them.
fn maps(value: &serde_json::Value, at: &str, found: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            found.push(at.to_owned());
            for (name, value) in fields {
                maps(value, &format!("{at}/{name}"), found);
            }
        }
        serde_json::Value::Array(items) => {
            for (place, value) in items.iter().enumerate() {
                maps(value, &format!("{at}/{place}"), found);
            }
        }
        _ => {}
    }
}

#[tokio::test]
async fn p71_nothing_is_added_that_no_signature_is_compared_with() {
    let made = made();
    let text = made.bundle.text().unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let pretty = serde_json::to_vec_pretty(&value).unwrap();
    assert_eq!(Bundle::read(&pretty).unwrap(), made.bundle);
    let mut places = Vec::new();
    maps(&value, "", &mut places);
    assert!(places.len() > 30, "{places:?}");
    for place in places {
        let mut added = value.clone();
        let map = added.pointer_mut(&place).unwrap().as_object_mut().unwrap();
        map.insert("approved_by".into(), "the auditor".into());
        let read = Bundle::read(&serde_json::to_vec(&added).unwrap());
        // What the contract says is compared whole.
        let refused = match read {
            Err(fault) => matches!(fault, Fault::Unreadable(_)),
            Ok(bundle) => !made.check(&bundle).holds(),
        };
        assert!(refused, "{place:?} takes more than was signed");
    }
}

#[tokio::test]
async fn p71_nothing_is_said_twice() {
    let made = made();
    let text = made.bundle.text().unwrap();
    let twice = text.replacen("\"contract\":{", "\"contract\":{\"tenant\":\"other\",", 1);
    assert_ne!(text, twice);
    let read = Bundle::read(twice.as_bytes());
    assert!(
        matches!(&read, Err(Fault::Unreadable(why)) if why.contains("twice")),
        "{read:?}"
    );
}
