//! What backends offer, as selection compares it.

use leasehold_backend::seam::Capabilities;
use leasehold_core::contract::Enforcement;
use leasehold_core::digest::Digest;
use leasehold_core::error::PublicError;
use leasehold_core::isolation::Isolation;
use leasehold_core::select::{Abilities, Offer, Runtime};

/// Name of the zone of the embedded worker.
pub(super) const LOCAL: &str = "local";

/// The offer of a native backend on this host, from its name, its isolation and its probe.
#[must_use]
pub fn offer(name: &str, isolation: Isolation, probed: Result<Capabilities, PublicError>) -> Offer {
    let state = match probed {
        Err(error) => Err(error.message),
        Ok(capabilities) => Ok(Abilities {
            host_system: isolation == Isolation::Process,
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
        runtime: Runtime::Command,
        zone: LOCAL.to_owned(),
        cost: isolation as u32,
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
            runtime: match level {
                Isolation::Wasm => Runtime::Wasm,
                _ => Runtime::Command,
            },
            zone: LOCAL.to_owned(),
            cost: level as u32,
            state: Err("this build has no such backend yet".to_owned()),
        })
        .collect()
}
