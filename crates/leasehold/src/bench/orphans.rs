//! How fast the sandboxes of a supervisor that was killed are gone: seen by the sweep that every
//! start of ours begins with.

use std::time::{Duration, Instant};

use leasehold_core::spec::SandboxSpec;
use leasehold_protocol::supervisor::{Event, Request};
use rustix::process::{Pid, Signal, kill_process};

use super::Interrupt;
use super::arena::{self, Arena, PATIENCE};
use super::bars::{Bar, Must};
use super::ground::Ground;
use super::report::Report;
use super::sample::Samples;
use crate::fault::Fault;
use crate::{place, supervise};

/// Sandboxes that lose their supervisor at once.
const ORPHANS: u32 = 10;
/// How often.
const ROUNDS: u32 = 5;

/// Measures and reports.
///
/// # Errors
/// When something of ours fails, an orphan that stays included.
pub(crate) fn measure(
    ground: &Ground,
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<(), Fault> {
    let arena = Arena::new(ground, "orphans")?;
    let mut swept = Samples::default();
    for _ in 0..ROUNDS {
        interrupt.check()?;
        swept.add(round(&arena)?);
    }
    let said = swept
        .summary()
        .ok_or_else(|| "no sample was taken".to_owned());
    let worst = said
        .as_ref()
        .map(|said| said.p99_ms / 1e3)
        .map_err(Clone::clone);
    report.row(
        format!("supervisor killed → {ORPHANS} orphans gone, successor up"),
        said,
    );
    report.bar(Bar::judge(
        "sweep of orphans, worst",
        worst,
        Must::AtMost(4.0),
        " s",
    ));
    Ok(())
}

fn round(arena: &Arena) -> Result<Duration, Fault> {
    let mut client = arena.client()?;
    for _ in 0..ORPHANS {
        arena::provision(&mut client, SandboxSpec::default(), &[])?;
    }
    let pid = i32::try_from(client.supervisor_pid())
        .ok()
        .and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Fault::host("the supervisor told no process id"))?;
    let begun = Instant::now();
    kill_process(pid, Signal::KILL)
        .map_err(|errno| Fault::host("cannot kill the supervisor").because(&errno))?;
    let mut successor = arena.client()?;
    let took = begun.elapsed();
    let (event, _) = successor
        .ask(Request::Status, &[], PATIENCE)
        .map_err(place::client_fault)?;
    match event {
        Event::Status { sandboxes } if sandboxes.is_empty() => {}
        _ => return Err(Fault::host("orphans were left after the sweep")),
    }
    supervise::stop_it(successor)?;
    Ok(took)
}
