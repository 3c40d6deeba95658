//! P71, the log of a tenant: a cut end, an older copy, another history, chains that are not there.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_core::event::{Head, TenantEntry};
use leasehold_core::name::Name;

use super::super::bundle::{LOG_FORMAT, LogBundle};
use super::super::fault::Of;
use super::super::seal::sign_head;
use super::super::verify::{check_chains, verify_log};
use super::super::{Fault, Verdict};
use super::{Made, NOW, made, run_id, tenant};

fn head_of(entries: &[TenantEntry]) -> Head {
    entries.last().map_or(Head::EMPTY, |last| Head {
        count: last.seq + 1,
        digest: last.digest().unwrap(),
    })
}

fn log_of(made: &Made, entries: &[TenantEntry]) -> LogBundle {
    let head = head_of(entries);
    LogBundle {
        format: LOG_FORMAT.to_owned(),
        tenant: tenant(),
        entries: entries.to_vec(),
        head: sign_head(&made.keyring, &tenant(), head, NOW).unwrap(),
        keys: made.keyring.list(),
    }
}

fn check(made: &Made, log: &LogBundle, published: &[Head]) -> Verdict {
    let text = serde_json::to_vec(log).unwrap();
    verify_log(&text, &made.trust(), published)
}

#[tokio::test]
async fn p71_each_change_of_a_log_is_named() {
    let made = made();
    let log = log_of(&made, &made.log);
    assert!(check(&made, &log, &[head_of(&made.log[..2])]).holds());
    let faults = |change: fn(&mut Vec<TenantEntry>)| {
        let mut changed = log.clone();
        change(&mut changed.entries);
        check(&made, &changed, &[]).faults
    };
    assert_eq!(
        faults(|entries| entries[2].at_unix_ms += 1),
        [Fault::Altered(Of::Log, 2)]
    );
    let of = Of::Log;
    assert_eq!(
        faults(|entries| drop(entries.remove(1))),
        [Fault::Cut { of, from: 1, to: 2 }]
    );
    assert_eq!(
        faults(|entries| entries.truncate(3)),
        [Fault::MissingTail {
            of,
            have: 3,
            signed: 4
        }]
    );
    assert_eq!(
        faults(Vec::clear),
        [Fault::Absent {
            of,
            whose: "acme".to_owned()
        }]
    );
    assert_eq!(
        faults(|entries| entries.swap(2, 3)),
        [Fault::Reordered(of, 2)]
    );
    assert_eq!(
        faults(|entries| entries.push(entries[3].clone())),
        [Fault::Duplicated(of, 3)]
    );
    assert!(
        faults(|entries| entries[1].tenant = Name::parse("other").unwrap())
            .iter()
            .any(|fault| matches!(fault, Fault::Foreign { seq: 1, .. }))
    );
}

#[tokio::test]
async fn p71_an_older_valid_copy_shows_against_a_published_head() {
    let made = made();
    let published = head_of(&made.log);
    let older = log_of(&made, &made.log[..3]);
    // By itself it is a true log of its time.
    assert!(check(&made, &older, &[]).holds());
    assert_eq!(
        check(&made, &older, &[published]).faults,
        [Fault::OlderCopy { have: 3, known: 4 }]
    );
    // A log that went another way after entry 1, signed by the daemon's own key.
    let mut entries = made.log[..2].to_vec();
    let other = super::entry(&entries, made.log[3].fact.clone(), NOW);
    entries.push(other);
    let forked = log_of(&made, &entries);
    assert_eq!(
        check(&made, &forked, &[head_of(&made.log[..3])]).faults,
        [Fault::OtherHistory { count: 3 }]
    );
}

#[tokio::test]
async fn p71_a_chain_that_was_opened_and_is_not_there_is_named() {
    let made = made();
    let own = made.bundle.run.clone();
    let chains = BTreeMap::from([(own.clone(), made.bundle.events.clone())]);
    let absent = |run: &leasehold_core::id::RunId| Fault::Absent {
        of: Of::Run,
        whose: run.to_string(),
    };
    let none = BTreeSet::new();
    // The fixture's log opens one more run, whose chain is nowhere.
    assert_eq!(
        check_chains(&made.log, &chains, &none),
        [absent(&run_id(99))]
    );
    let pruned = BTreeSet::from([run_id(99)]);
    assert_eq!(check_chains(&made.log, &chains, &pruned), []);
    assert_eq!(
        check_chains(&made.log, &BTreeMap::new(), &pruned),
        [absent(&own)]
    );
    let short = BTreeMap::from([(own, made.bundle.events[..5].to_vec())]);
    assert!(matches!(
        check_chains(&made.log, &short, &pruned)[..],
        [Fault::MissingTail { have: 5, .. }]
    ));
    let stranger = BTreeMap::from([(run_id(50), made.bundle.events.clone())]);
    let found = check_chains(&made.log[..1], &stranger, &none);
    assert!(matches!(found[..], [Fault::Foreign { .. }]));
}
