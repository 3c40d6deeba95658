//! What backends offer, as selection compares it.

use leasehold_backend::seam::Capabilities;
use leasehold_core::contract::Enforcement;
use leasehold_core::digest::Digest;
use leasehold_core::error::PublicError;
use leasehold_core::isolation::Isolation;
use leasehold_core::select::{Abilities, Offer, Runtime};

/// Name of the zone of the embedded worker.
pub(super) const LOCAL: &str = "local";

/// What a backend of this isolation runs by itself.
#[must_use]
pub fn runtime(isolation: Isolation) -> Runtime {
    match isolation {
        Isolation::Wasm => Runtime::Wasm,
        Isolation::Process | Isolation::Container | Isolation::Gvisor | Isolation::Microvm => {
            Runtime::Command
        }
    }
}

/// What a computer costs, to compare: an instance is less than a process, and the rest cost as they are strong.
fn cost(isolation: Isolation) -> u32 {
    match isolation {
        Isolation::Wasm => 0,
        Isolation::Process => 1,
        stronger => stronger as u32,
    }
}

/// The offer of a backend on this host, from its name, its isolation and its probe.
#[must_use]
pub fn offer(name: &str, isolation: Isolation, probed: Result<Capabilities, PublicError>) -> Offer {
    let state = match probed {
        Err(error) => Err(error.message),
        Ok(capabilities) => Ok(Abilities {
            host_system: isolation == Isolation::Process,
            images: isolation == Isolation::Process,
            posture: Digest::of_value(&capabilities.posture).ok(),
            workspaces: capabilities.workspaces,
            unenforced: capabilities
                .enforcement
                .iter()
                .filter(|row| row.how != Enforcement::Enforced)
                .map(|row| row.which)
                .collect(),
            ..Abilities::default()
        }),
    };
    Offer {
        backend: name.to_owned(),
        isolation,
        runtime: runtime(isolation),
        zone: LOCAL.to_owned(),
        cost: cost(isolation),
        state,
    }
}

/// Offers for every isolation that none of these has, so that a refusal says why each cannot be had.
#[must_use]
pub fn unbuilt(offers: &[Offer]) -> Vec<Offer> {
    Isolation::ALL
        .into_iter()
        .filter(|level| offers.iter().all(|offer| offer.isolation != *level))
        .map(|level| Offer {
            backend: level.word().to_owned(),
            isolation: level,
            runtime: runtime(level),
            zone: LOCAL.to_owned(),
            cost: cost(level),
            state: Err("this build has no such backend yet".to_owned()),
        })
        .collect()
}
