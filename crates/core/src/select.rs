//! Which computer a run gets: one pure function over what is wanted and what there is.
//!
//! The strength is the max of three inputs (invariant I2); among the backends that are strong enough and
//! can do what is wanted, the cheapest is taken. What cannot be had is refused with the reason of every
//! backend that would have been strong enough; nothing weaker is ever taken instead.

use crate::digest::Digest;
use crate::isolation::Isolation;
use crate::limits::Resource;
use crate::run_contract::{Rootfs, Selected, Why};
use crate::spec::WorkspaceMode;

/// What kind of program a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Runtime {
    /// A native program.
    Command,
    /// A WebAssembly module or component.
    Wasm,
}

/// What an available backend can do here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Abilities {
    /// It can use the host's system tree, read-only.
    pub host_system: bool,
    /// It has the `base` template.
    pub base: bool,
    /// It can use the root file system of an image.
    pub images: bool,
    /// A WebAssembly host can run inside its computers.
    pub nests_wasm: bool,
    /// It can carry the network rules of a run.
    pub network: bool,
    /// It can hold rules on single paths inside.
    pub path_rules: bool,
    /// What else its worker has, by the names that tools ask for.
    pub extras: Vec<String>,
    /// How its workspaces may come to be.
    pub workspaces: Vec<WorkspaceMode>,
    /// Limits it cannot hold on this host (invariant I6).
    pub unenforced: Vec<Resource>,
    /// Digest of what its computers are made of here, as probed.
    pub posture: Option<Digest>,
}

/// One backend on one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Name of the backend.
    pub backend: String,
    /// How strong its boundary is.
    pub isolation: Isolation,
    /// What it runs by itself.
    pub runtime: Runtime,
    /// Where it is: `local`, or the name of a worker pool.
    pub zone: String,
    /// What a computer of it costs, to compare; lower is taken first.
    pub cost: u32,
    /// What it can do, or the reason why it cannot be used.
    pub state: Result<Abilities, String>,
}

/// What a run wants of its computer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// What kind of program.
    pub runtime: Runtime,
    /// Image by digest; absent for none.
    pub image: Option<Digest>,
    /// The inputs of the max.
    pub why: Why,
    /// Whether the run has any network rule.
    pub network: bool,
    /// Whether the run has rules on single paths.
    pub path_rules: bool,
    /// What else the worker must have.
    pub extras: Vec<String>,
    /// How its workspace comes to be.
    pub workspace: WorkspaceMode,
    /// Limits that are promises.
    pub asked: Vec<Resource>,
}

/// What policy lets a run be placed on. Apart from strength: it can only take away.
pub trait Placement {
    /// Why this backend may not be used, if so.
    fn backend(&self, backend: &str) -> Option<String>;
    /// Why this zone may not be used, if so.
    fn zone(&self, zone: &str) -> Option<String>;
}

/// Everything may be used.
#[derive(Debug, Clone, Copy)]
pub struct Anywhere;

impl Placement for Anywhere {
    fn backend(&self, _: &str) -> Option<String> {
        None
    }

    fn zone(&self, _: &str) -> Option<String> {
        None
    }
}

/// No computer is both strong enough and able.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("sandbox unavailable: {reason}")]
pub struct Refusal {
    /// The strength that is needed.
    pub needed: Isolation,
    /// One sentence that names every backend that is strong enough and why it cannot.
    pub reason: String,
    /// Each such backend, and why it cannot.
    pub considered: Vec<(String, String)>,
}

impl Why {
    /// The strength: never weaker than any of the three (invariant I2).
    #[must_use]
    pub fn needed(&self) -> Isolation {
        self.preference.max(self.floor).max(self.required)
    }

    /// Which of the inputs demands the strength, in words. The one nobody can argue with comes first.
    #[must_use]
    pub fn demand(&self) -> String {
        let needed = self.needed();
        if self.required == needed {
            format!("trust class `{}` demands it", self.trust.word())
        } else if self.floor == needed {
            "the policy's floor demands it".to_owned()
        } else {
            "it was asked for".to_owned()
        }
    }
}

/// Chooses the computer of a run.
///
/// # Errors
/// When none is at or above the needed strength and able.
pub fn select(
    wanted: &Wanted,
    offers: &[Offer],
    placement: &dyn Placement,
) -> Result<Selected, Refusal> {
    let needed = wanted.why.needed();
    let mut ordered: Vec<&Offer> = offers
        .iter()
        .filter(|offer| offer.isolation >= needed)
        .collect();
    ordered.sort_by_key(|offer| (offer.cost, offer.isolation, offer.backend.as_str()));
    let mut considered = Vec::new();
    for offer in ordered {
        match fits(wanted, offer, offers, placement) {
            Ok((rootfs, nested)) => return Ok(selected(wanted, offer, rootfs, nested)),
            Err(why) => considered.push((offer.backend.clone(), why)),
        }
    }
    Err(refusal(wanted, considered))
}

fn selected(wanted: &Wanted, offer: &Offer, rootfs: Rootfs, nested: Option<String>) -> Selected {
    let inside = match &nested {
        Some(host) => format!(", with `{host}` inside it"),
        None => String::new(),
    };
    Selected {
        backend: offer.backend.clone(),
        isolation: offer.isolation,
        nested,
        rootfs,
        why: wanted.why,
        reason: format!(
            "isolation `{}` is needed: {}; `{}` ({}) is the cheapest that gives it{inside}",
            wanted.why.needed().word(),
            wanted.why.demand(),
            offer.backend,
            offer.isolation.word(),
        ),
    }
}

fn refusal(wanted: &Wanted, considered: Vec<(String, String)>) -> Refusal {
    let needed = wanted.why.needed();
    let mut reason = format!(
        "isolation `{}` is needed ({}), and nothing weaker is used instead",
        needed.word(),
        wanted.why.demand()
    );
    if considered.is_empty() {
        reason.push_str("; no backend is that strong");
    }
    for (backend, why) in &considered {
        reason.push_str(&format!("; backend `{backend}`: {why}"));
    }
    Refusal {
        needed,
        reason,
        considered,
    }
}

type Fit = (Rootfs, Option<String>);

/// Whether an offer that is strong enough can do it, and what it is made of then.
fn fits(
    wanted: &Wanted,
    offer: &Offer,
    offers: &[Offer],
    placement: &dyn Placement,
) -> Result<Fit, String> {
    let abilities = able(wanted, offer, placement)?;
    match (wanted.runtime, offer.runtime) {
        (Runtime::Command, Runtime::Command) => Ok((rootfs(wanted, offer, abilities)?, None)),
        (Runtime::Command, Runtime::Wasm) => Err("it runs no native program".to_owned()),
        (Runtime::Wasm, Runtime::Wasm) => Ok((Rootfs::None, None)),
        (Runtime::Wasm, Runtime::Command) => nested(wanted, offer, abilities, offers, placement),
    }
}

/// Placement, availability, and what no kind of program can do without.
fn able<'a>(
    wanted: &Wanted,
    offer: &'a Offer,
    placement: &dyn Placement,
) -> Result<&'a Abilities, String> {
    if let Some(why) = placement.backend(&offer.backend) {
        return Err(why);
    }
    if let Some(why) = placement.zone(&offer.zone) {
        return Err(why);
    }
    let abilities = offer.state.as_ref().map_err(Clone::clone)?;
    if wanted.network && !abilities.network {
        return Err("it has no way to carry network rules yet".to_owned());
    }
    if wanted.path_rules && !abilities.path_rules {
        return Err("it cannot hold rules on single paths".to_owned());
    }
    if let Some(extra) = wanted
        .extras
        .iter()
        .find(|extra| !abilities.extras.contains(extra))
    {
        return Err(format!("its worker has no capability {extra:?}"));
    }
    if !abilities.workspaces.contains(&wanted.workspace) {
        return Err(format!(
            "it has no workspace of the mode `{}`",
            wanted.workspace.word()
        ));
    }
    let broken: Vec<&str> = wanted
        .asked
        .iter()
        .filter(|which| abilities.unenforced.contains(which))
        .map(|which| which.word())
        .collect();
    if !broken.is_empty() {
        return Err(format!(
            "this host cannot hold the asked limits {} (`leasehold doctor` on it names the mend)",
            broken.join(", ")
        ));
    }
    Ok(abilities)
}

/// The row of the table for native programs.
fn rootfs(wanted: &Wanted, offer: &Offer, abilities: &Abilities) -> Result<Rootfs, String> {
    match (wanted.image, offer.isolation) {
        (Some(digest), _) if abilities.images => Ok(Rootfs::Image { digest }),
        (Some(_), _) => Err("it cannot use images".to_owned()),
        // Strong enough at `process` is first-party alone: any other trust class requires more.
        (None, Isolation::Process) if abilities.host_system => Ok(Rootfs::HostSystem),
        (None, Isolation::Process) => Err("it has no system tree of the host".to_owned()),
        (None, _) if abilities.base => Ok(Rootfs::Base),
        (None, _) => Err("the `base` template is not there".to_owned()),
    }
}

/// The row for WebAssembly in something stronger: the same host runs inside that sandbox.
fn nested(
    wanted: &Wanted,
    offer: &Offer,
    abilities: &Abilities,
    offers: &[Offer],
    placement: &dyn Placement,
) -> Result<Fit, String> {
    if offer.isolation <= Isolation::Wasm {
        return Err("it runs no WebAssembly".to_owned());
    }
    if !abilities.nests_wasm {
        return Err("no WebAssembly host runs inside it".to_owned());
    }
    if !abilities.base {
        return Err("the `base` template is not there".to_owned());
    }
    let plain = Wanted {
        network: false,
        path_rules: false,
        extras: Vec::new(),
        asked: Vec::new(),
        ..wanted.clone()
    };
    let host = offers
        .iter()
        .filter(|each| each.runtime == Runtime::Wasm)
        .map(|each| able(&plain, each, placement).map(|_| each.backend.clone()))
        .reduce(|left, right| left.or(right));
    match host {
        Some(Ok(host)) => Ok((Rootfs::Base, Some(host))),
        Some(Err(why)) => Err(format!("the WebAssembly host inside it: {why}")),
        None => Err("there is no WebAssembly host to run inside it".to_owned()),
    }
}

#[cfg(test)]
mod tests;
