//! A pre-warmed interpreter against a fresh one in the same sandbox: time to the first byte.

use leasehold_core::spec::{SandboxSpec, Warm};
use leasehold_protocol::supervisor::Target;

use super::Interrupt;
use super::arena::{self, Arena};
use super::bars::{Bar, Measured, Must, ratio};
use super::ground::Ground;
use super::report::Report;
use super::sample::Samples;
use crate::fault::Fault;

/// The least a script says.
const PRINT: &str = "print(1)";
/// A script with the modules that agents' scripts begin with.
const IMPORTS: &str = "import json, re, csv, math, random, datetime, collections, itertools, \
functools, pathlib, subprocess, hashlib, urllib.parse, tempfile, socket; print(1)";

/// Measures and reports.
///
/// # Errors
/// When something of ours fails for another reason than that there is no Python.
pub(crate) fn measure(
    runs: u32,
    ground: &Ground,
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<(), Fault> {
    if !std::path::Path::new("/usr/bin/python3").exists() {
        let reason = "there is no /usr/bin/python3".to_owned();
        for what in ["`print(1)`", "15 imports"] {
            report.bar(bar(what, &Err(reason.clone()), &Err(reason.clone())));
        }
        return Ok(());
    }
    let arena = Arena::new(ground, "python")?;
    let mut client = arena.client()?;
    let warm = SandboxSpec {
        warm: Some(Warm::Python),
        ..SandboxSpec::default()
    };
    let kinds = [warm, SandboxSpec::default()];
    let mut samples = [PRINT, IMPORTS].map(|_| kinds.clone().map(|_| Samples::default()));
    for round in 0..=runs {
        interrupt.check()?;
        for (script, samples) in [PRINT, IMPORTS].into_iter().zip(&mut samples) {
            for (kind, samples) in kinds.iter().zip(samples) {
                let parked = arena::provision(&mut client, kind.clone(), &[])?;
                let exec = arena::command(&["/usr/bin/python3", "-c", script]);
                let times = arena::once(&mut client, Target::Parked(parked), exec, &[])?;
                if round > 0 {
                    samples.add(times.first_byte.unwrap_or(times.ended));
                }
            }
        }
    }
    for (what, [warm, fresh]) in ["`print(1)`", "15 imports"].into_iter().zip(&samples) {
        let none = || "no sample was taken".to_owned();
        let warm = warm.summary().ok_or_else(none);
        let fresh = fresh.summary().ok_or_else(none);
        report.row(format!("warm Python, {what} → first byte"), warm.clone());
        report.row(
            format!("fresh `python3 -c` in the same sandbox, {what}"),
            fresh.clone(),
        );
        report.bar(bar(what, &fresh, &warm));
    }
    Ok(())
}

fn bar(what: &str, fresh: &Measured, warm: &Measured) -> Bar {
    let ratio = ratio(fresh, warm, |summary| summary.p50_ms);
    Bar::judge(
        format!("fresh ÷ warm Python, {what}, p50"),
        ratio,
        Must::AtLeast(15.0),
        "",
    )
}
