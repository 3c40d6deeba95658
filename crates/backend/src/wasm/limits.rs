//! How the limits of a run bound a module: what the host holds it to, and how each holds.

use leasehold_core::contract::{Contract, Enforced, Enforcement, HostPosture, Posture};
use leasehold_core::isolation::Isolation;
use leasehold_core::limits::{Limits, Resource};
use leasehold_core::spec::{ExecSpec, ModuleSpec, WorkspaceMode};
use leasehold_protocol::wasm::{Flavour, RunLimits, Start};

use super::{Asked, NAME};

/// How a module has to be compiled for this.
pub(super) fn flavour(module: &ModuleSpec) -> Flavour {
    if module.fuel.is_some() || module.determinism.is_some() {
        Flavour::Metered
    } else {
        Flavour::Plain
    }
}

/// The run as its host is told of it; a module's number comes later.
pub(super) fn start(asked: Asked<'_>, limits: &Limits) -> Start {
    let Asked {
        exec, spec: module, ..
    } = asked;
    Start {
        module: 0,
        argv: asked.argv(),
        env: exec.env.clone().into_iter().collect(),
        stdin: exec.stdin,
        preopens: Vec::new(),
        limits: RunLimits::of(limits, module.fuel),
        determinism: module.determinism,
    }
}

/// The contract of a run in a shared host, which is in the sandbox that `host` promises.
pub(super) fn contract(
    host: &Contract,
    inner: &HostPosture,
    limits: &Limits,
    exec: &ExecSpec,
) -> Contract {
    Contract {
        backend: NAME.to_owned(),
        isolation: Isolation::Wasm,
        isolation_reason:
            "the command is a WebAssembly module: a host of its tenant's alone, that confines \
                           itself, runs it in a process sandbox"
                .to_owned(),
        limits: limits.clone(),
        enforcement: enforcement(host, limits, exec),
        workspace: WorkspaceMode::Ephemeral,
        network: "none".to_owned(),
        argv: exec.argv.clone(),
        program: exec.module.clone(),
        image: None,
        env_names: exec.env.keys().cloned().collect(),
        posture: Posture {
            host: Some(inner.clone()),
            ..host.posture.clone()
        },
    }
}

/// The processor's share is the host's sandbox's; all else the host holds by itself. A run in it has no
/// directory and cannot start a process, so what bounds those has nothing to let through.
fn enforcement(host: &Contract, limits: &Limits, exec: &ExecSpec) -> Vec<Enforced> {
    let held = [
        Resource::Memory,
        Resource::Disk,
        Resource::Inodes,
        Resource::Pids,
        Resource::Files,
        Resource::Wall,
        Resource::Output,
        Resource::Stack,
        Resource::Handles,
    ];
    let share = host
        .enforcement
        .iter()
        .filter(|row| row.which == Resource::Cpu);
    let fuel = exec.module.as_ref().and_then(|module| module.fuel);
    let counted = [
        limits.cpu_time_ms.map(|_| Resource::CpuTime),
        fuel.map(|_| Resource::Fuel),
    ];
    let held = held.into_iter().chain(counted.into_iter().flatten());
    let held = held.map(|which| Enforced {
        which,
        how: Enforcement::Enforced,
    });
    share.copied().chain(held).collect()
}
