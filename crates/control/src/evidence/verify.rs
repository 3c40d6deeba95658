//! Checking a bundle offline. Every fault that can be told is named, not only the first.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use leasehold_core::digest::Digest;
use leasehold_core::event::{Event, Head, RunFact, TenantEntry, TenantFact};
use leasehold_core::id::RunId;
use leasehold_core::quantity::format_moment;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::bundle::{Bundle, LogBundle};
use super::chain;
use super::fault::{Fault, Of, Signed};
use super::head::{self, Anchor, HeadText};
use super::keys::Known;
use super::plain::plain;
use super::statement::{self, MadeFrom, Predicate, Statement, receipts};

/// Whose signatures count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// Keys somebody vouches for, by id, and those that the newest of them lists.
    Pinned(BTreeSet<Digest>),
    /// Whatever key the bundle itself lists: shows that it is whole, not who made it.
    AsShown,
}

impl Trust {
    fn pinned(&self) -> Option<&BTreeSet<Digest>> {
        match self {
            Self::Pinned(ids) => Some(ids),
            Self::AsShown => None,
        }
    }
}

/// What a check came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// What is wrong; nothing, if it holds.
    pub faults: Vec<Fault>,
    /// What a reader should know although it holds.
    pub notes: Vec<String>,
}

impl Verdict {
    /// Whether it is what was signed.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.faults.is_empty()
    }
}

impl fmt::Display for Verdict {
    /// One line for each fault or note. No text of a user begins a line or ends one.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.holds() {
            true => writeln!(out, "holds: this is what was signed")?,
            false => writeln!(out, "does not hold: {} fault(s)", self.faults.len())?,
        }
        for fault in &self.faults {
            writeln!(out, "fault: {fault}")?;
        }
        for note in &self.notes {
            writeln!(out, "note: {note}")?;
        }
        Ok(())
    }
}

/// Checks the bundle of a run.
#[must_use]
pub fn verify(text: &[u8], trust: &Trust) -> Verdict {
    let mut verdict = Verdict {
        faults: Vec::new(),
        notes: Vec::new(),
    };
    match Bundle::read(text) {
        Ok(bundle) => check(&bundle, trust, &mut verdict),
        Err(fault) => verdict.faults.push(fault),
    }
    let mut seen = BTreeSet::new();
    verdict
        .faults
        .retain(|fault| seen.insert(fault.to_string()));
    verdict
}

fn check(bundle: &Bundle, trust: &Trust, verdict: &mut Verdict) {
    let known = match Known::read(&bundle.keys, trust.pinned()) {
        Ok(known) => known,
        Err(fault) => return verdict.faults.push(fault),
    };
    if *trust == Trust::AsShown {
        verdict.notes.push(
            "nobody was named who vouches for the key (`--key`): this shows that it is whole, not who made it"
                .into(),
        );
    }
    let predicate = match open_statement(bundle, &known) {
        Ok(predicate) => predicate,
        Err(fault) => return verdict.faults.push(fault),
    };
    let faults = &mut verdict.faults;
    same_as_signed(bundle, &predicate, faults);
    let whose = bundle.run.as_str();
    faults.extend(chain::check(&bundle.events, whose, predicate.chain));
    faults.extend(chain::check_facts(
        &bundle.events,
        predicate.contract,
        predicate.outcome,
    ));
    let cleaned = bundle
        .events
        .iter()
        .rev()
        .find_map(|event| match &event.fact {
            RunFact::Cleaned { observed } => Some(observed),
            _ => None,
        });
    if cleaned != Some(&predicate.cleanup) {
        faults.push(differs("cleanup"));
    }
    match bundle.made_from {
        MadeFrom::Daemon => anchored(bundle, &known, &predicate, faults),
        MadeFrom::SupervisorRecord => {
            let alone = bundle.opened.is_none() && bundle.sealed.is_none();
            if !alone {
                faults.push(Fault::Unreadable(
                    "a run without a daemon is in no log".into(),
                ));
            }
            verdict.notes.push(
                "made from the supervisor's record after the fact; in no log, so that a run that is not shown at all \
                 cannot be missed"
                    .into(),
            );
        }
    }
    conclude_notes(bundle, &predicate, verdict);
}

fn conclude_notes(bundle: &Bundle, predicate: &Predicate, verdict: &mut Verdict) {
    if !verdict.holds() {
        return;
    }
    verdict.notes.push(format!(
        "run {} of tenant {}, signed by {} at {} UTC",
        bundle.run,
        bundle.tenant,
        predicate.key,
        format_moment(predicate.at_unix_ms)
    ));
    verdict
        .notes
        .push(format!("it ended: {}", plain(&bundle.outcome.end.phrase())));
    if !predicate.cleanup.clean() && !predicate.cleanup.residues.is_empty() {
        verdict
            .notes
            .push("the host was not clean afterwards; the statement says what was left".into());
    }
}

/// The time of a signed text, wherever it is in it.
fn time_of<T: DeserializeOwned>(read: fn(T) -> u64) -> impl Fn(&[u8]) -> Option<u64> {
    move |bytes| serde_json::from_slice(bytes).ok().map(read)
}

fn parsed<T: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T, Fault> {
    serde_json::from_slice(bytes).map_err(|error| Fault::Unreadable(format!("{what}: {error}")))
}

fn open_statement(bundle: &Bundle, known: &Known) -> Result<Predicate, Fault> {
    #[derive(Deserialize)]
    struct When {
        predicate: Time,
    }
    #[derive(Deserialize)]
    struct Time {
        at_unix_ms: u64,
    }
    let kind = (statement::KIND, Signed::Statement);
    let at = time_of(|when: When| when.predicate.at_unix_ms);
    let bytes = known.open(&bundle.statement, kind, at)?;
    let statement: Statement = parsed(&bytes, "statement")?;
    let predicate = statement.predicate.clone();
    if Statement::of(predicate.clone()) != statement {
        return Err(Fault::Unreadable(
            "statement: its subjects or types are not those of its predicate".into(),
        ));
    }
    if bundle.statement.signer() != Some(predicate.key) {
        return Err(differs("key"));
    }
    Ok(predicate)
}

fn differs(part: &'static str) -> Fault {
    Fault::Differs {
        signed: Signed::Statement,
        part,
    }
}

/// Whether what the bundle shows is what was signed.
fn same_as_signed(bundle: &Bundle, predicate: &Predicate, faults: &mut Vec<Fault>) {
    let contract = Digest::of_value(&bundle.contract).ok();
    let outcome = Digest::of_value(&bundle.outcome).ok();
    let of_run = |field: &str, own: &str| match bundle.made_from {
        MadeFrom::Daemon => bundle.contract[field] == *own,
        MadeFrom::SupervisorRecord => true,
    };
    for (same, part) in [
        (bundle.run == predicate.run, "run"),
        (bundle.tenant == predicate.tenant, "tenant"),
        (bundle.made_from == predicate.made_from, "source"),
        (contract == Some(predicate.contract), "contract"),
        (of_run("run", predicate.run.as_str()), "run's contract"),
        (
            of_run("tenant", predicate.tenant.as_str()),
            "tenant's contract",
        ),
        (outcome == Some(predicate.outcome), "outcome"),
        (receipts(&bundle.outcome) == predicate.receipts, "receipts"),
    ] {
        if !same {
            faults.push(differs(part));
        }
    }
}

/// Whether the tenant's log opens and seals this run, by heads that were signed.
fn anchored(bundle: &Bundle, known: &Known, predicate: &Predicate, faults: &mut Vec<Fault>) {
    let opened = TenantFact::RunOpened {
        run: predicate.run.clone(),
        contract: predicate.contract,
    };
    let sealed = TenantFact::RunSealed {
        run: predicate.run.clone(),
        head: predicate.chain,
    };
    let mut places = Vec::new();
    for (anchor, fact, part) in [
        (&bundle.opened, opened, "log entry that opens the run"),
        (&bundle.sealed, sealed, "log entry that seals the run"),
    ] {
        let Some(anchor) = anchor else {
            faults.push(Fault::Missing(part));
            continue;
        };
        if anchor.entry.fact != fact {
            faults.push(Fault::Differs {
                signed: Signed::Head,
                part: "entry",
            });
        }
        if let Err(fault) = holds_head(anchor, bundle, known) {
            faults.push(fault);
        }
        places.push(anchor.entry.seq);
    }
    if let [opened, sealed] = places[..]
        && opened >= sealed
    {
        faults.push(Fault::Reordered(Of::Log, sealed));
    }
    // A retired key cannot sign for a run that the log sealed later, whatever time it writes.
    if let Some(sealed) = &bundle.sealed
        && let Err(fault) = known.in_use(Signed::Statement, predicate.key, sealed.entry.at_unix_ms)
        && matches!(fault, Fault::RetiredKey { .. })
    {
        faults.push(fault);
    }
}

fn open_head(envelope: &super::envelope::Envelope, known: &Known) -> Result<HeadText, Fault> {
    let at = time_of(|text: HeadText| text.at_unix_ms);
    let bytes = known.open(envelope, (head::KIND, Signed::Head), at)?;
    parsed(&bytes, "head")
}

fn holds_head(anchor: &Anchor, bundle: &Bundle, known: &Known) -> Result<(), Fault> {
    let text = open_head(&anchor.head, known)?;
    let entry = &anchor.entry;
    if entry.tenant != bundle.tenant || text.tenant != bundle.tenant {
        return Err(Fault::Foreign {
            of: Of::Log,
            seq: entry.seq,
            whose: entry.tenant.to_string(),
        });
    }
    let last = Head {
        count: entry.seq.saturating_add(1),
        digest: entry.digest().unwrap_or(Digest::ZERO),
    };
    if text.head != last {
        return Err(Fault::Altered(Of::Log, entry.seq));
    }
    Ok(())
}

/// Checks the whole log of a tenant. `known` are heads that were published elsewhere: an older copy, or one
/// with another history, shows against them.
#[must_use]
pub fn verify_log(text: &[u8], trust: &Trust, published: &[Head]) -> Verdict {
    let faults = LogBundle::read(text).and_then(|bundle| {
        let known = Known::read(&bundle.keys, trust.pinned())?;
        let head = open_head(&bundle.head, &known)?;
        if head.tenant != bundle.tenant {
            return Err(Fault::Differs {
                signed: Signed::Head,
                part: "tenant",
            });
        }
        let mut faults = chain::check(&bundle.entries, bundle.tenant.as_str(), head.head);
        faults.extend(against(&bundle.entries, head.head, published));
        Ok(faults)
    });
    Verdict {
        faults: faults.unwrap_or_else(|fault| vec![fault]),
        notes: Vec::new(),
    }
}

fn against(entries: &[TenantEntry], head: Head, published: &[Head]) -> Vec<Fault> {
    let digest_at = |count: u64| -> Option<Digest> {
        let last = count.checked_sub(1)?;
        let entry = entries.iter().find(|entry| entry.seq == last)?;
        entry.digest().ok()
    };
    let mut faults = Vec::new();
    for known in published {
        if known.count > head.count {
            faults.push(Fault::OlderCopy {
                have: head.count,
                known: known.count,
            });
        } else if known.count > 0 && digest_at(known.count) != Some(known.digest) {
            faults.push(Fault::OtherHistory { count: known.count });
        }
    }
    faults
}

/// Compares a log with the chains that are there: one that was opened and is not, one that ends otherwise than
/// sealed, one that was never opened. Chains whose retention is over are given in `pruned`.
#[must_use]
pub fn check_chains(
    entries: &[TenantEntry],
    chains: &BTreeMap<RunId, Vec<Event>>,
    pruned: &BTreeSet<RunId>,
) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut opened = BTreeSet::new();
    for entry in entries {
        match &entry.fact {
            TenantFact::RunOpened { run, .. } => {
                opened.insert(run);
                let there = chains.get(run).is_some_and(|events| !events.is_empty());
                if !there && !pruned.contains(run) {
                    faults.push(Fault::Absent {
                        of: Of::Run,
                        whose: run.to_string(),
                    });
                }
            }
            TenantFact::RunSealed { run, head } => {
                if let Some(events) = chains.get(run).filter(|events| !events.is_empty()) {
                    faults.extend(chain::check(events, run.as_str(), *head));
                }
            }
            _ => {}
        }
    }
    faults.extend(
        chains
            .keys()
            .filter(|run| !opened.contains(run))
            .map(|run| Fault::Foreign {
                of: Of::Run,
                seq: 0,
                whose: format!("{run}, which the log never opened"),
            }),
    );
    faults
}
