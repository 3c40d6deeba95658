//! Whether links form the chain that was signed, and if not, what was done to them.

use std::collections::BTreeMap;

use leasehold_core::digest::Digest;
use leasehold_core::event::{Event, Head, RunFact, TenantEntry};

use super::fault::{Fault, Of};

/// What an event and a log entry have in common.
pub trait Link {
    /// Which kind of chain.
    const OF: Of;
    /// Place in the chain, from 0.
    fn seq(&self) -> u64;
    /// Digest of the one before.
    fn prev(&self) -> Digest;
    /// Its own digest; `None` when it has no canonical form.
    fn own(&self) -> Option<Digest>;
    /// Its digest, were this the one before.
    fn relinked(&self, prev: Digest) -> Option<Digest>;
    /// Whose it is.
    fn whose(&self) -> &str;
}

/// Both kinds have the same fields but for whose they are.
macro_rules! link {
    ($link:ty, $of:expr, $whose:ident) => {
        impl Link for $link {
            const OF: Of = $of;

            fn seq(&self) -> u64 {
                self.seq
            }

            fn prev(&self) -> Digest {
                self.prev
            }

            fn own(&self) -> Option<Digest> {
                self.digest().ok()
            }

            fn relinked(&self, prev: Digest) -> Option<Digest> {
                Self {
                    prev,
                    ..self.clone()
                }
                .own()
            }

            fn whose(&self) -> &str {
                self.$whose.as_str()
            }
        }
    };
}

link!(Event, Of::Run, run);
link!(TenantEntry, Of::Log, tenant);

/// Compares links, as they were handed over, with the head that was signed for them. Names every fault it
/// can tell; an empty list means that these are exactly the signed links in their order.
pub fn check<T: Link>(links: &[T], whose: &str, head: Head) -> Vec<Fault> {
    if links.is_empty() && head.count > 0 {
        return vec![Fault::Absent {
            of: T::OF,
            whose: whose.to_owned(),
        }];
    }
    let mut faults = Vec::new();
    let own: Vec<&T> = links.iter().filter(|link| link.whose() == whose).collect();
    faults.extend(
        links
            .iter()
            .filter(|link| link.whose() != whose)
            .map(|link| Fault::Foreign {
                of: T::OF,
                seq: link.seq(),
                whose: link.whose().to_owned(),
            }),
    );
    let places = places(&own, head, &mut faults);
    order(&own, &mut faults);
    gaps(&places, head, &mut faults);
    links_hold(&places, head, &mut faults);
    faults
}

/// A place in the chain and what claims it.
struct Place<'a, T> {
    link: &'a T,
    /// Two different ones claim it.
    forked: bool,
}

/// What claims each place. Of two, the one that the next continues is kept.
fn places<'a, T: Link>(
    own: &[&'a T],
    head: Head,
    faults: &mut Vec<Fault>,
) -> BTreeMap<u64, Place<'a, T>> {
    let expected: BTreeMap<u64, Digest> = own
        .iter()
        .filter_map(|link| Some((link.seq().checked_sub(1)?, link.prev())))
        .chain(head.count.checked_sub(1).map(|last| (last, head.digest)))
        .collect();
    let mut places: BTreeMap<u64, Place<'a, T>> = BTreeMap::new();
    for link in own {
        let Some(there) = places.get_mut(&link.seq()) else {
            let forked = false;
            places.insert(link.seq(), Place { link, forked });
            continue;
        };
        if there.link.own() == link.own() {
            faults.push(Fault::Duplicated(T::OF, link.seq()));
            continue;
        }
        faults.push(Fault::Forked(T::OF, link.seq()));
        there.forked = true;
        if link.own().as_ref() == expected.get(&link.seq()) {
            there.link = link;
        }
    }
    places
}

/// Whether each stands after all that are before it.
fn order<T: Link>(own: &[&T], faults: &mut Vec<Fault>) {
    let mut highest = None;
    for link in own {
        if highest.is_some_and(|highest| link.seq() < highest) {
            let fault = Fault::Reordered(T::OF, link.seq());
            let twice = faults.iter().any(|known| {
                matches!(known, Fault::Duplicated(_, seq) | Fault::Forked(_, seq) if *seq == link.seq())
            });
            if !twice && !faults.contains(&fault) {
                faults.push(fault);
            }
        }
        highest = highest.max(Some(link.seq()));
    }
}

fn gaps<T: Link>(places: &BTreeMap<u64, Place<'_, T>>, head: Head, faults: &mut Vec<Fault>) {
    let of = T::OF;
    let mut next = 0;
    for seq in places.keys() {
        if *seq > next {
            faults.push(Fault::Cut {
                of,
                from: next,
                to: *seq,
            });
        }
        next = seq.saturating_add(1);
    }
    let (have, signed) = (next, head.count);
    if have < signed {
        faults.push(Fault::MissingTail { of, have, signed });
    }
    if have > signed {
        faults.push(Fault::Added { of, have, signed });
    }
}

/// Whether each is what the next one, or the head, says it is.
fn links_hold<T: Link>(places: &BTreeMap<u64, Place<'_, T>>, head: Head, faults: &mut Vec<Fault>) {
    let expected = |seq: u64| {
        let next = seq.checked_add(1)?;
        match places.get(&next) {
            Some(next) => Some(next.link.prev()),
            None => (next == head.count).then_some(head.digest),
        }
    };
    let before = |seq: u64| match seq.checked_sub(1) {
        None => Some(Digest::ZERO),
        Some(before) => places.get(&before).and_then(|place| place.link.own()),
    };
    for (seq, place) in places {
        let as_said = |digest| expected(*seq).is_none_or(|expected| Some(expected) == digest);
        // Only its own pointer was changed: then the one before is as it was.
        let repointed = |seq: u64| {
            let place = places.get(&seq)?;
            let relinked = place.link.relinked(before(seq)?);
            let changed = Some(place.link.prev()) != before(seq);
            Some(changed && relinked.is_some() && relinked == expected(seq))
        };
        let altered = match (place.forked, as_said(place.link.own())) {
            (true, _) => false,
            (false, true) => *seq == 0 && place.link.prev() != Digest::ZERO,
            (false, false) => {
                let next = seq.checked_add(1);
                next.and_then(repointed) != Some(true)
            }
        };
        if altered {
            faults.push(Fault::Altered(T::OF, *seq));
        }
    }
}

/// What must hold of the events of a run beside their links: one admission, first; one contract; no fenced
/// writer; the outcome told as it was.
#[must_use]
pub fn check_facts(events: &[Event], contract: Digest, outcome: Digest) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut concluded = false;
    let mut epoch = None;
    for (place, event) in events.iter().enumerate() {
        if epoch.is_some_and(|epoch| event.epoch < epoch) {
            faults.push(Fault::OldEpoch(event.seq));
        }
        epoch = epoch.max(Some(event.epoch));
        let fits = match &event.fact {
            RunFact::Accepted { contract: own } => place == 0 && *own == contract,
            RunFact::Concluded { outcome: own } => {
                let first = !std::mem::replace(&mut concluded, true);
                first && *own == outcome
            }
            _ => place != 0,
        };
        if !fits || event.contract != contract {
            faults.push(Fault::Misplaced(event.seq));
        }
    }
    if !concluded && !events.is_empty() {
        faults.push(Fault::Missing("event that fixes the outcome"));
    }
    faults
}
