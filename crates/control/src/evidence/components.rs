//! What an operator has to trust for a run's boundary and record, listed so that it can be counted.

use leasehold_core::isolation::Isolation;

use super::statement::MadeFrom;

/// The parts that must do right for a run to be held in and told of truly. What is inside the sandbox (image,
/// guest kernel, our own agent) is never among them.
#[must_use]
pub fn trusted(isolation: Isolation, made_from: MadeFrom) -> Vec<&'static str> {
    let mut parts = vec![
        "the host's kernel",
        "the supervisor, with its spawner (parents every sandbox, holds limits and deadlines, observes removal)",
        "the collector (copies artifacts; jailed, and trusted for no more than the sandbox's own files)",
    ];
    match isolation {
        Isolation::Process => {}
        Isolation::Wasm => parts.push("the WebAssembly engine, in a jailed process"),
        Isolation::Container => parts.push("the container runtime"),
        Isolation::Gvisor => parts.push("gVisor's user-space kernel"),
        Isolation::Microvm => parts.push("the virtual machine monitor and KVM"),
    }
    match made_from {
        MadeFrom::Daemon => parts.extend([
            "the daemon (admission, policy, leases, evidence)",
            "the database and the object directory of its state",
            "the signing key of its state",
        ]),
        MadeFrom::SupervisorRecord => parts.extend([
            "the run record in the supervisor's state directory",
            "the signing key of whoever exported it",
        ]),
    }
    parts
}

/// What the boundary is and what still shares the host's kernel.
#[must_use]
pub fn boundary(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::Process => {
            "own namespaces, control groups, a system call filter and Landlock around a native process; every system call \
             that the filter lets through is served by the host's kernel, which it shares with the host and every other \
             sandbox"
        }
        Isolation::Wasm => {
            "a WebAssembly instance in a jailed host process; only that process shares the host's kernel"
        }
        Isolation::Container => {
            "a container with its own root file system; it shares the host's kernel with the host and every other container"
        }
        Isolation::Gvisor => {
            "a user-space kernel that serves the workload's system calls; only that kernel's own few calls reach the host's"
        }
        Isolation::Microvm => {
            "a virtual machine with its own kernel; the host's kernel is shared by its monitor alone, through KVM"
        }
    }
}
