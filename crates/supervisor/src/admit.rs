//! Admission: what is asked against what this host can hold (invariant I6), and the contract that
//! comes of it.
//!
//! Pure: looks at nothing but its arguments. [`Host`] is filled once at start.

use leasehold_core::contract::{Contract, Enforced, Enforcement, HostPosture, Posture};
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::image::ImageUse;
use leasehold_core::isolation::Isolation;
use leasehold_core::limits::{Limits, Resource};
use leasehold_core::spec::{ExecSpec, SandboxSpec, WorkspaceMode};
use leasehold_jail::seccomp::Program;
use leasehold_protocol::supervisor::Supplied;
use leasehold_protocol::wasm;

/// Why a control is not there; `None` when it is.
pub(crate) type Missing = Option<String>;

/// What this host can enforce, and what every posture here has in common.
#[derive(Debug, Clone, Default)]
pub(crate) struct Host {
    pub(crate) memory: Missing,
    pub(crate) pids: Missing,
    pub(crate) cpu: Missing,
    pub(crate) cpu_time: Missing,
    /// A disk larger than half the memory, by an image file.
    pub(crate) image: Missing,
    /// The uid range and the rest of what is applied to every sandbox alike.
    pub(crate) posture: Posture,
}

/// Why the limits of scratch do not hold with a read-write workspace.
const HOST_DIRECTORY: &str = "the workspace is a directory of the host and takes what is written";

/// What a program of ours needs beside the limits of what it runs: they are for the module, and it holds the
/// module to them; its control group has to hold both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Beside {
    /// Threads.
    pub(crate) tasks: u32,
    /// Bytes of memory.
    pub(crate) memory_bytes: u64,
    /// Open files.
    pub(crate) files: u32,
}

impl Beside {
    /// Of a command that is no module.
    pub(crate) const NOTHING: Self = Self {
        tasks: 0,
        memory_bytes: 0,
        files: 0,
    };
    /// Of a WebAssembly host for one run: its clock, its threads for files, what engine and streams need.
    const HOST: Self = Self {
        tasks: 20,
        memory_bytes: 48 << 20,
        files: 64,
    };

    /// Of this command.
    pub(crate) fn of(exec: &ExecSpec) -> Self {
        match exec.module {
            Some(_) => Self::HOST,
            None => Self::NOTHING,
        }
    }
}

/// A sandbox that may be made.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Admitted {
    /// Limits as settled.
    pub(crate) limits: Limits,
    /// How each holds here.
    pub(crate) enforcement: Vec<Enforced>,
    /// Whether the disk is an image file instead of memory.
    pub(crate) image: bool,
    /// What its control group has room for beside these limits.
    pub(crate) beside: Beside,
}

/// Checks a sandbox: bounds, workspace directory, and that every asked limit can be held.
///
/// # Errors
/// Names the field, the value and the limit, or the limit that cannot be enforced and why.
pub(crate) fn admit(
    host: &Host,
    spec: &SandboxSpec,
    directory: bool,
    beside: Beside,
) -> Result<Admitted, PublicError> {
    let limits = spec.limits.clone().settled();
    limits
        .check()
        .map_err(|error| PublicError::new(ErrorKind::Invalid, error.to_string()))?;
    if spec.workspace.needs_directory() != directory {
        let message = if directory {
            "a workspace directory came with a workspace that takes none"
        } else {
            "`workspace` needs a directory and none came with the request"
        };
        return Err(PublicError::new(ErrorKind::Invalid, message));
    }
    crate::image::admit(host, spec)?;
    let image = !limits.disk_fits_memory();
    let mut enforcement = Vec::new();
    let shared = spec.workspace == WorkspaceMode::ReadWrite;
    for (which, asked, missing) in rows(host, &limits, image) {
        let scratch_alone = shared && matches!(which, Resource::Disk | Resource::Inodes);
        let (missing, optional) = match missing {
            None if scratch_alone => (Some(HOST_DIRECTORY.to_owned()), true),
            other => (other, which != Resource::Disk),
        };
        let how = match (missing, asked, spec.allow_unenforced) {
            (None, _, _) => Enforcement::Enforced,
            (Some(_), false, _) if optional => Enforcement::BestEffort,
            (Some(_), true, true) if optional => Enforcement::Unenforced,
            (Some(reason), _, _) => return Err(refusal(which, &reason)),
        };
        enforcement.push(Enforced { which, how });
    }
    Ok(Admitted {
        limits,
        enforcement,
        image,
        beside,
    })
}

/// Each limit, whether it was asked for, and why it cannot be held. Absent limits have no row.
fn rows(host: &Host, limits: &Limits, image: bool) -> Vec<(Resource, bool, Missing)> {
    let disk = if image { host.image.clone() } else { None };
    let mut rows = vec![
        (Resource::Cpu, limits.cpu_milli.is_asked(), host.cpu.clone()),
        (
            Resource::Memory,
            limits.memory_bytes.is_asked(),
            host.memory.clone(),
        ),
        (Resource::Disk, limits.disk_bytes.is_asked(), disk),
        (Resource::Inodes, limits.inodes.is_asked(), None),
        (Resource::Pids, limits.pids.is_asked(), host.pids.clone()),
        (Resource::Files, limits.files.is_asked(), None),
        (Resource::Wall, limits.wall_ms.is_asked(), None),
        (Resource::Output, limits.output_bytes.is_asked(), None),
    ];
    if let Some(limit) = limits.cpu_time_ms {
        rows.push((Resource::CpuTime, limit.is_asked(), host.cpu_time.clone()));
    }
    rows
}

fn refusal(which: Resource, reason: &str) -> PublicError {
    let error = PublicError::new(
        ErrorKind::Unsupported,
        format!("limit `{}` cannot be enforced here: {reason}", which.word()),
    );
    match which {
        _ if reason == HOST_DIRECTORY => error.hint(
            "a workspace in mode `clone` holds it; `--allow-unenforced` goes on with the limit on \
             /tmp and /home/user alone and records that",
        ),
        Resource::Disk => error.hint(
            "ask for at most half of `memory`, or for more `memory`: a disk of that size is held \
             in memory",
        ),
        _ => error.hint(
            "`leasehold doctor` names the command that mends it; `--allow-unenforced` goes on \
             without the limit and records that",
        ),
    }
}

/// The contract of one run. `uid_range` is the leased block; without one it is that of the host. `supplied` is
/// the program that runs the command's module, where it has one.
pub(crate) fn contract(
    host: &Host,
    admitted: &Admitted,
    spec: &SandboxSpec,
    exec: &ExecSpec,
    uid_range: Option<(u32, u32)>,
    supplied: Option<&Supplied>,
) -> Contract {
    let inner = supplied.filter(|_| exec.module.is_some()).map(host_posture);
    let (backend, isolation, reason) = match inner {
        Some(_) => (
            "wasm",
            Isolation::Wasm,
            "the command is a WebAssembly module: a host that confines itself runs it, in a process sandbox",
        ),
        None => (
            "process",
            Isolation::Process,
            "asked for by the local caller, whose own authority it is",
        ),
    };
    let mut enforcement = admitted.enforcement.clone();
    if let Some(module) = exec.module.as_ref().filter(|_| inner.is_some()) {
        // Held by the host inside, and by nobody else.
        let counted = module.fuel.map(|_| Resource::Fuel);
        let held = [Resource::Stack, Resource::Handles]
            .into_iter()
            .chain(counted);
        enforcement.extend(held.map(|which| Enforced {
            which,
            how: Enforcement::Enforced,
        }));
    }
    Contract {
        backend: backend.to_owned(),
        isolation,
        isolation_reason: reason.to_owned(),
        limits: admitted.limits.clone(),
        enforcement,
        workspace: spec.workspace,
        network: "none".to_owned(),
        argv: exec.argv.clone(),
        program: exec.module.clone(),
        image: spec.image.as_ref().map(|image| ImageUse {
            digest: image.digest,
            user: image.user,
        }),
        env_names: exec.env.keys().cloned().collect(),
        posture: Posture {
            uid_range: uid_range.unwrap_or(host.posture.uid_range),
            host: inner,
            ..host.posture.clone()
        },
    }
}

/// What a host of one run confines itself by, as its arguments say.
fn host_posture(supplied: &Supplied) -> HostPosture {
    let place = wasm::one_place(&supplied.argv);
    HostPosture {
        program: supplied.digest,
        engine: wasm::ENGINE.to_owned(),
        seccomp_sha256: Program::wasm_host(place.is_some()).sha256(),
        places: place.map(str::to_owned).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::limits::Limit;

    fn without_cgroups() -> Host {
        let why = Some("no cgroup may be written".to_owned());
        Host {
            memory: why.clone(),
            pids: why.clone(),
            cpu: why.clone(),
            cpu_time: why,
            ..Host::default()
        }
    }

    fn asked() -> SandboxSpec {
        SandboxSpec {
            limits: Limits {
                memory_bytes: Limit::asked(64 << 20),
                ..Limits::default()
            },
            ..SandboxSpec::default()
        }
    }

    fn how(admitted: &Admitted, which: Resource) -> Enforcement {
        admitted
            .enforcement
            .iter()
            .find(|row| row.which == which)
            .unwrap()
            .how
    }

    #[test]
    fn i6_an_asked_limit_that_cannot_be_held_is_refused() {
        let error = admit(&without_cgroups(), &asked(), false, Beside::NOTHING).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unsupported);
        assert_eq!(
            error.message,
            "limit `memory` cannot be enforced here: no cgroup may be written"
        );
        let there = admit(&Host::default(), &asked(), false, Beside::NOTHING).unwrap();
        assert_eq!(how(&there, Resource::Memory), Enforcement::Enforced);
    }

    #[test]
    fn a_defaulted_limit_is_best_effort_and_an_allowed_one_is_recorded() {
        let host = without_cgroups();
        let defaulted = admit(&host, &SandboxSpec::default(), false, Beside::NOTHING).unwrap();
        assert_eq!(how(&defaulted, Resource::Memory), Enforcement::BestEffort);
        assert_eq!(how(&defaulted, Resource::Wall), Enforcement::Enforced);
        let spec = SandboxSpec {
            allow_unenforced: true,
            ..asked()
        };
        let allowed = admit(&host, &spec, false, Beside::NOTHING).unwrap();
        assert_eq!(how(&allowed, Resource::Memory), Enforcement::Unenforced);
        assert_eq!(how(&allowed, Resource::Pids), Enforcement::BestEffort);
    }

    #[test]
    fn a_disk_above_half_the_memory_needs_an_image() {
        let mut spec = asked();
        spec.limits.disk_bytes = Limit::asked(1 << 30);
        assert!(
            admit(&Host::default(), &spec, false, Beside::NOTHING)
                .unwrap()
                .image
        );
        let host = Host {
            image: Some("only root makes disk images".to_owned()),
            ..Host::default()
        };
        spec.allow_unenforced = true;
        let error = admit(&host, &spec, false, Beside::NOTHING).unwrap_err();
        assert!(error.message.starts_with("limit `disk` cannot"), "{error}");
        assert!(
            !admit(&host, &asked(), false, Beside::NOTHING)
                .unwrap()
                .image
        );
    }

    #[test]
    fn i6_a_read_write_workspace_is_not_held_by_the_disk_limits() {
        let mut spec = asked();
        spec.workspace = WorkspaceMode::ReadWrite;
        let defaulted = admit(&Host::default(), &spec, true, Beside::NOTHING).unwrap();
        for which in [Resource::Disk, Resource::Inodes] {
            assert_eq!(how(&defaulted, which), Enforcement::BestEffort);
        }
        spec.limits.disk_bytes = Limit::asked(1 << 20);
        let error = admit(&Host::default(), &spec, true, Beside::NOTHING).unwrap_err();
        assert!(error.message.starts_with("limit `disk` cannot"), "{error}");
        spec.allow_unenforced = true;
        let allowed = admit(&Host::default(), &spec, true, Beside::NOTHING).unwrap();
        assert_eq!(how(&allowed, Resource::Disk), Enforcement::Unenforced);
        spec.workspace = WorkspaceMode::Clone;
        let held = admit(&Host::default(), &spec, true, Beside::NOTHING).unwrap();
        assert_eq!(how(&held, Resource::Disk), Enforcement::Enforced);
    }

    #[test]
    fn a_workspace_needs_its_directory_and_no_other() {
        let mut spec = asked();
        spec.workspace = WorkspaceMode::Clone;
        assert!(admit(&Host::default(), &spec, false, Beside::NOTHING).is_err());
        assert!(admit(&Host::default(), &spec, true, Beside::NOTHING).is_ok());
        spec.workspace = WorkspaceMode::Ephemeral;
        assert!(admit(&Host::default(), &spec, true, Beside::NOTHING).is_err());
    }

    #[test]
    fn i8_a_contract_names_the_environment_and_holds_no_value() {
        let mut exec = ExecSpec::command(["true"]);
        exec.env.insert("TOKEN".into(), "hunter2".into());
        let spec = SandboxSpec::default();
        let admitted = admit(&Host::default(), &spec, false, Beside::NOTHING).unwrap();
        let contract = contract(
            &Host::default(),
            &admitted,
            &spec,
            &exec,
            Some((7, 9)),
            None,
        );
        let text = serde_json::to_string(&contract).unwrap();
        assert!(
            text.contains("TOKEN") && !text.contains("hunter2"),
            "{text}"
        );
        assert_eq!(contract.posture.uid_range, (7, 9));
    }
}
