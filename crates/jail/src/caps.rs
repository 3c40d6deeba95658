//! Capabilities and securebits: what is kept at which step, and that the rest is gone.

use rustix::io::Result;
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities,
    capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits,
};

/// What init and the agent keep, over their own user namespace alone: acting for the users inside,
/// and locking down the processes they start.
pub const INIT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP);

/// What a parked stub keeps: the change of identity.
pub const STUB: CapabilitySet = CapabilitySet::SETGID.union(CapabilitySet::SETUID);

/// What a child of the agent keeps that does file work as the sandbox's root.
pub const FILE_WORK: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER);

/// Capabilities are numbered below this.
const NUMBERS: u32 = 64;

/// Root is no exception, changes of identity touch no capability, and nobody can say otherwise.
const LOCKED: CapabilitiesSecureBits = CapabilitiesSecureBits::NO_ROOT
    .union(CapabilitiesSecureBits::NO_ROOT_LOCKED)
    .union(CapabilitiesSecureBits::NO_SETUID_FIXUP)
    .union(CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED)
    .union(CapabilitiesSecureBits::KEEP_CAPS_LOCKED)
    .union(CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE)
    .union(CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED);

/// Cuts the bounding set to `keep`. Needs `CAP_SETPCAP` where there is something to cut.
///
/// # Errors
/// As `prctl(2)`.
pub fn bound(keep: CapabilitySet) -> Result<()> {
    for number in 0..NUMBERS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if keep.contains(capability) {
            continue;
        }
        match capability_is_in_bounding_set(capability) {
            Ok(true) => remove_capability_from_bounding_set(capability)?,
            Ok(false) => {}
            // The kernel knows no capability of this number, so none above it either.
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Permitted and effective become `keep` (of what is held), inheritable and ambient empty.
///
/// # Errors
/// As `capset(2)`.
pub fn reduce(keep: CapabilitySet) -> Result<()> {
    clear_ambient_capability_set()?;
    let keep = capabilities(None)?.permitted.intersection(keep);
    let sets = CapabilitySets {
        effective: keep,
        permitted: keep,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets)
}

/// Locks the securebits. Needs `CAP_SETPCAP`.
///
/// # Errors
/// As `prctl(2)`.
pub fn lock() -> Result<()> {
    set_capabilities_secure_bits(LOCKED)
}

/// Whether this thread holds nothing: permitted, effective and inheritable.
///
/// # Errors
/// As `capget(2)`.
pub fn none_held() -> Result<bool> {
    let held = capabilities(None)?;
    Ok((held.effective | held.permitted | held.inheritable).is_empty())
}
