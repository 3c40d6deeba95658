//! The steps of making a spawner or a sandbox, and how the failure of one is told.
//!
//! Nothing in the spawner or in a sandbox being made prints: a failure is a step and an error
//! number, carried to the caller.

use std::io;

use rustix::io::Errno;

macro_rules! steps {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal, $word:literal;)+) => {
        /// What was being done when a spawner or a sandbox could not be made.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u32)]
        pub enum MakeStep {
            $($(#[doc = $doc])+ $name = $number,)+
        }

        impl MakeStep {
            /// Every step.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The step in words, as an operator reads it.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)+ }
            }
        }
    };
}

steps! {
    /// Starting the spawner process.
    Fork = 1, "starting the spawner";
    /// Entering the spawner's own user namespace (ordinary user).
    MakerNamespace = 2, "entering the maker's user namespace";
    /// Mapping the ids of the spawner's own user namespace (ordinary user).
    MakerIds = 3, "mapping the maker's ids";
    /// Leaving the host's mount namespace.
    MountNamespace = 4, "leaving the host's mount namespace";
    /// The root of the template tree.
    TemplateRoot = 5, "making the template's root";
    /// The system directories of the template tree.
    TemplateSystem = 6, "binding the system directories";
    /// The curated `/etc` of the template tree.
    TemplateEtc = 7, "filling the template's /etc";
    /// The device nodes of the template tree.
    TemplateDevices = 8, "binding the device nodes";
    /// Entering the template tree and letting go of the host's.
    Pivot = 9, "pivoting into the template";
    /// Closing what the spawner does not need.
    Descriptors = 10, "closing inherited descriptors";
    /// Reading an order.
    Order = 11, "reading the order";
    /// Texts that show the limits.
    Texts = 12, "writing the files that show the limits";
    /// Creating the process with its namespaces.
    Clone = 13, "cloning the sandbox's first process";
    /// Putting it into its control groups.
    Cgroup = 14, "entering the control groups";
    /// Its network namespace.
    Network = 15, "making the network namespace";
    /// Its host name.
    HostName = 16, "naming the sandbox's host";
    /// Its `/proc`.
    Proc = 17, "mounting /proc";
    /// What is hidden in `/proc`.
    ProcMasks = 18, "masking /proc";
    /// Its writable tree.
    Scratch = 19, "mounting the scratch file system";
    /// Its `/dev/shm` and `/dev/pts`.
    Devices = 20, "mounting /dev/shm and /dev/pts";
    /// Its workspace.
    Workspace = 21, "mounting the workspace";
    /// Mapping the owners of a host directory.
    WorkspaceOwners = 22, "mapping the workspace's owners";
    /// Copying a host directory into scratch.
    WorkspaceCopy = 23, "copying the workspace into scratch";
    /// Scheduling, umask, session, out-of-memory score.
    Inherited = 24, "resetting inherited state";
    /// Its cgroup namespace.
    CgroupNamespace = 25, "unsharing the cgroup namespace";
    /// Its user namespace.
    UserNamespace = 26, "unsharing the user namespace";
    /// Mapping its ids.
    Ids = 27, "mapping the sandbox's ids";
    /// Taking its first identity.
    Identity = 28, "taking the sandbox's identity";
    /// Cutting its capabilities.
    Capabilities = 29, "cutting capabilities";
    /// Arranging its descriptors.
    Handover = 30, "arranging descriptors";
    /// Becoming init.
    Exec = 31, "executing init";
    /// Answering before the deadline.
    Deadline = 32, "answering in time";
    /// The first process died before it became init.
    Died = 33, "keeping the sandbox's first process alive";
    /// The answer could not be carried back.
    Answer = 34, "answering the order";
    /// The unpacked layers of its image.
    Layers = 35, "opening the image's layers";
    /// Mapping the owners of its image onto its ids.
    LayerOwners = 36, "mapping the owners of the image's files";
    /// Its image with a layer of its own as one file system.
    ImageRoot = 37, "stacking the image's layers";
    /// Places in the image that something is mounted on.
    ImagePlaces = 38, "making /proc, /sys, /dev, /tmp and /workspace in the image";
    /// Files that say who the sandbox is.
    ImageEtc = 39, "writing /etc/hosts, /etc/hostname and /etc/resolv.conf in the image";
    /// A home for its command.
    ImageHome = 40, "making /home/user in the image";
    /// Moving into the image and letting go of the template.
    ImagePivot = 41, "pivoting into the image";
}

impl MakeStep {
    /// Reads a step off the wire.
    pub(super) fn from_number(number: u32) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|step| *step as u32 == number)
    }
}

impl std::fmt::Display for MakeStep {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.word())
    }
}

/// A step that failed, with its error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failed {
    pub(super) step: MakeStep,
    pub(super) errno: Errno,
}

/// Says which step an error number belongs to.
pub(super) trait At<T> {
    fn at(self, step: MakeStep) -> Result<T, Failed>;
}

impl<T> At<T> for Result<T, Errno> {
    fn at(self, step: MakeStep) -> Result<T, Failed> {
        self.map_err(|errno| Failed { step, errno })
    }
}

impl<T> At<T> for io::Result<T> {
    fn at(self, step: MakeStep) -> Result<T, Failed> {
        self.map_err(|error| Failed {
            step,
            errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
        })
    }
}

/// Why there is no spawner or no sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// A step failed; nothing is left of the attempt.
    #[error("sandbox set-up failed while {step}")]
    Step {
        /// What was attempted.
        step: MakeStep,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The request breaks a bound.
    #[error("sandbox order: `{field}` is {value}, allowed is {low} to {high}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What it says.
        value: u64,
        /// Least allowed.
        low: u64,
        /// Most allowed.
        high: u64,
    },
    /// The spawner did not answer within the deadline of the order and was killed.
    #[error("the spawner did not answer within {waited_ms} ms")]
    Silent {
        /// How long the caller waited, in milliseconds.
        waited_ms: u64,
    },
    /// The spawner is dead; start another.
    #[error("the spawner is gone")]
    Gone,
    /// The spawner said something that is not of the protocol; start another.
    #[error("the spawner's answer is not understood")]
    Answer,
}

impl SpawnError {
    /// The step that failed, where it was one.
    #[must_use]
    pub fn step(&self) -> Option<MakeStep> {
        match self {
            Self::Step { step, .. } => Some(*step),
            Self::Invalid { .. } | Self::Silent { .. } | Self::Gone | Self::Answer => None,
        }
    }

    /// The error number of the step that failed.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Step { source, .. } => source.raw_os_error(),
            Self::Invalid { .. } | Self::Silent { .. } | Self::Gone | Self::Answer => None,
        }
    }

    /// Whether a new spawner is needed before the next order.
    #[must_use]
    pub fn spawner_lost(&self) -> bool {
        matches!(self, Self::Silent { .. } | Self::Gone | Self::Answer)
    }
}

impl From<Failed> for SpawnError {
    fn from(failed: Failed) -> Self {
        Self::Step {
            step: failed.step,
            source: io::Error::from_raw_os_error(failed.errno.raw_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_survives_the_wire_and_has_its_own_number() {
        for step in MakeStep::ALL {
            assert_eq!(MakeStep::from_number(*step as u32), Some(*step));
        }
        assert_eq!(MakeStep::from_number(0), None);
    }
}
