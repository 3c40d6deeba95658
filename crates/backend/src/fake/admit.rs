//! What is granted: the same rules as on a real host, over the limits this one is said to lack.

use leasehold_core::contract::{Contract, Enforced, Enforcement, Posture};
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::limits::{Limits, Resource};
use leasehold_core::spec::SandboxSpec;

use super::Identity;

/// Resources that have a limit in every sandbox.
const LIMITED: [Resource; 9] = [
    Resource::Cpu,
    Resource::CpuTime,
    Resource::Memory,
    Resource::Disk,
    Resource::Inodes,
    Resource::Pids,
    Resource::Files,
    Resource::Wall,
    Resource::Output,
];

fn asked(limits: &Limits, resource: Resource) -> bool {
    match resource {
        Resource::Cpu => limits.cpu_milli.is_asked(),
        Resource::CpuTime => limits.cpu_time_ms.is_some_and(|limit| limit.is_asked()),
        Resource::Memory => limits.memory_bytes.is_asked(),
        Resource::Disk => limits.disk_bytes.is_asked(),
        Resource::Inodes => limits.inodes.is_asked(),
        Resource::Pids => limits.pids.is_asked(),
        Resource::Files => limits.files.is_asked(),
        Resource::Wall => limits.wall_ms.is_asked(),
        Resource::Output => limits.output_bytes.is_asked(),
        Resource::Egress
        | Resource::Fuel
        | Resource::Stack
        | Resource::Handles
        | Resource::Compile => false,
    }
}

/// How each limit holds.
pub(super) fn enforcement(spec: &SandboxSpec, unenforced: &[Resource]) -> Vec<Enforced> {
    let how = |which| match (unenforced.contains(&which), asked(&spec.limits, which)) {
        (false, _) => Enforcement::Enforced,
        (true, false) => Enforcement::BestEffort,
        (true, true) => Enforcement::Unenforced,
    };
    LIMITED
        .into_iter()
        .map(|which| Enforced {
            which,
            how: how(which),
        })
        .collect()
}

/// There is none.
pub(super) fn posture() -> Posture {
    Posture {
        profile: "fake/1".to_owned(),
        maker: "fake".to_owned(),
        cgroup: "none".to_owned(),
        ..Posture::default()
    }
}

/// What is granted.
pub(super) fn contract(
    identity: Identity,
    spec: &SandboxSpec,
    directory: bool,
    unenforced: &[Resource],
) -> Result<Contract, PublicError> {
    let checked = spec.limits.check();
    checked.map_err(|error| PublicError::new(ErrorKind::Invalid, error.to_string()))?;
    if spec.workspace.needs_directory() && !directory {
        let message = "`workspace` needs a directory and none came along";
        return Err(PublicError::new(ErrorKind::Invalid, message));
    }
    let enforcement = enforcement(spec, unenforced);
    let broken = enforcement
        .iter()
        .find(|row| row.how == Enforcement::Unenforced);
    if let Some(row) = broken
        && !spec.allow_unenforced
    {
        let message = format!("limit `{}` cannot be enforced here", row.which.word());
        return Err(PublicError::new(ErrorKind::Unsupported, message));
    }
    Ok(Contract {
        backend: identity.name.to_owned(),
        isolation: identity.isolation,
        isolation_reason: "a test said so".to_owned(),
        limits: spec.limits.clone().settled(),
        enforcement,
        workspace: spec.workspace,
        network: "none".to_owned(),
        argv: Vec::new(),
        program: None,
        image: None,
        env_names: Vec::new(),
        posture: posture(),
    })
}
