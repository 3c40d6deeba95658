//! `leasehold doctor`: what is real on this host, what is not, and the one command that mends each.
//!
//! Looking is not enough: every limit is breached on purpose in a real sandbox and seen to bite or
//! not (invariant I6). The doctor changes nothing on the host, has a supervisor of its own in a
//! directory of its own, and removes both.
//!
//! Start with [`report`] for what is said; [`facts`] reads the host, [`host`] judges it, [`limits`] breaches.

mod facts;
mod groups;
mod host;
mod limits;
mod mend;
mod modules;
mod report;
mod timing;
mod ward;

use std::time::Instant;

use crate::cli::DoctorFlags;
use crate::fault::Fault;
use crate::voice;
use facts::Facts;
use groups::Groups;
use report::{Check, Report, Section, State};
use ward::Ward;

/// Looks, breaches, tells. The status is 0 when everything promised holds, else 1.
///
/// # Errors
/// When the answer cannot be written.
pub(crate) fn main(flags: &DoctorFlags) -> Result<u8, Fault> {
    let facts = Facts::gather();
    let begun = Instant::now();
    let ward = (!flags.no_probes).then(Ward::open);
    let supervisor = ward.as_ref().and_then(|ward| ward.as_ref().ok()?.pid());
    let groups = Groups::look(supervisor);
    let mut report = Report::new(&facts, groups.layout());
    match ward {
        Some(ward) => probe(&facts, ward, begun, &mut report),
        None => report.checks.extend([
            Check::new(
                Section::Backends,
                "process",
                State::Unclear,
                "not tried, as asked with --no-probes",
            ),
            modules::backend(None),
        ]),
    }
    report.checks.push(modules::templates());
    let groups = groups.checks(&facts, report.refusal("memory"));
    report.checks.extend(host::other_backends(&facts));
    report.checks.extend(host::checks(&facts));
    report.checks.extend(groups);
    report.settle();
    if flags.json {
        voice::json(&report)?;
    } else {
        voice::data(report.told().as_bytes())?;
    }
    Ok(u8::from(!report.ok))
}

/// Everything that needs real sandboxes, and the timings.
fn probe(facts: &Facts, ward: Result<Ward, Fault>, begun: Instant, report: &mut Report) {
    match ward {
        Ok(mut ward) => {
            let (backend, works) = limits::backend(facts, &mut ward);
            report.checks.push(backend);
            if works {
                report.checks.extend(limits::checks(facts, &mut ward));
                report.timings.extend(timing::runs(&mut ward));
                report.checks.push(modules::backend(Some(&ward)));
            }
            report.checks.push(ward.close());
        }
        Err(fault) => report.checks.push(
            Check::new(Section::Backends, "process", State::Missing, fault.chain())
                .breaks()
                .mend(fault.mend()),
        ),
    }
    report.timings.extend(timing::host(facts));
    report.took_micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
}
