//! What a sandbox is to be made of. Plain data with its bounds; nothing is done here.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

pub use leasehold_core::image::ImageSpec;
pub use leasehold_core::spec::{Warm, WorkspaceMode};

use leasehold_core::image::LAYERS_MAX;

use super::step::SpawnError;

/// User and group id of a workload inside.
pub const WORKLOAD_ID: u32 = 1_000;
/// Most cores one sandbox may name.
pub const CORES_MAX: usize = 1_024;
/// Most control groups a sandbox is put into.
pub const CGROUPS_MAX: usize = 10;
/// Longest deadline of an order.
pub const DEADLINE_MAX: Duration = Duration::from_secs(600);

/// The ids one sandbox has for itself, counted in the *maker's* user namespace.
///
/// As root these are host ids, and id `n` inside is `host_base + n`. As an ordinary user with a
/// range they are ids of that range as the spawner sees them (from 1), and the workload itself is
/// the caller, so that files of a workspace need no translation. In single-uid mode they are not
/// looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdBlock {
    /// First id; never 0.
    pub host_base: u32,
    /// How many; at least 1,001, so that the workload has one.
    pub count: u32,
}

/// Where `/workspace`, `/tmp`, `/home/user` and `/var/tmp` keep their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    /// Memory of the sandbox, bounded in bytes and in files.
    Tmpfs {
        /// Bytes.
        bytes: u64,
        /// Files and directories.
        inodes: u64,
    },
    /// An ext4 image of the wanted size; [`MakeFds::disk`] is its block device. Needs root.
    Image,
}

/// One sandbox as the supervisor orders it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MakeSpec {
    /// Its ids.
    pub ids: IdBlock,
    /// Host processors it may run on; their number is what `nproc` shows. 1 to [`CORES_MAX`].
    pub cores: Vec<u32>,
    /// Memory the files inside show, in bytes.
    pub memory_bytes: u64,
    /// Its writable tree.
    pub disk: Disk,
    /// Bytes of `/dev/shm`.
    pub shm_bytes: u64,
    /// What `/workspace` is.
    pub workspace: WorkspaceMode,
    /// What the stub warms.
    pub warm: Option<Warm>,
    /// The image whose file system is its root; else it is the template's.
    pub image: Option<ImageSpec>,
    /// Host user whose files a workspace directory belongs to.
    pub caller_uid: u32,
    /// Host group whose files a workspace directory belongs to.
    pub caller_gid: u32,
    /// Time the spawner has, up to [`DEADLINE_MAX`].
    pub deadline: Duration,
}

/// The descriptors that go with an order. The spawner gets copies.
#[derive(Debug, Clone, Copy)]
pub struct MakeFds<'a> {
    /// Init's end of its control socket.
    pub init: BorrowedFd<'a>,
    /// The stub's end of its socket.
    pub stub: BorrowedFd<'a>,
    /// The host directory of a workspace mode that needs one.
    pub workspace: Option<BorrowedFd<'a>>,
    /// The block device of [`Disk::Image`].
    pub disk: Option<BorrowedFd<'a>>,
    /// The directory with the unpacked layers of [`MakeSpec::image`], each `NAME/fs` below it.
    pub layers: Option<BorrowedFd<'a>>,
    /// Directory of the cgroup2 leaf: the sandbox is born in it.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// Of each further leaf a file in which a process enters by writing `0` (`tasks`, `cgroup.procs`),
    /// open for writing; the first process does so before anything else. Moving it from outside would
    /// cost 5 to 16 ms where nobody has moved anything for a while. At most [`CGROUPS_MAX`].
    pub cgroup_procs: &'a [BorrowedFd<'a>],
}

/// Inode numbers of namespaces, by which a host can tell that they are new and, later, gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Namespaces {
    /// Network.
    pub net: u64,
    /// Mount.
    pub mnt: u64,
    /// Process ids.
    pub pid: u64,
    /// User.
    pub user: u64,
    /// System V IPC and POSIX queues.
    pub ipc: u64,
    /// Host name.
    pub uts: u64,
    /// Control groups.
    pub cgroup: u64,
}

/// A sandbox whose first process has just become init.
#[derive(Debug)]
pub struct Made {
    /// Its first process, as the caller sees it; a child of the caller.
    pub pid: u32,
    /// The same, as a descriptor that cannot come to mean another process.
    pub pidfd: OwnedFd,
    /// The directory that is `/workspace` inside. Stays valid when the sandbox is dead.
    pub workspace: OwnedFd,
    /// The root of the writable tree, for `fstatfs` of the disk limit.
    pub scratch: OwnedFd,
    /// Its namespaces.
    pub namespaces: Namespaces,
    /// Whether the workload shares its user id with init (single-uid mode).
    pub single_uid: bool,
    /// Whether the workspace is a plain copy on scratch: the host's file system allows no layer over
    /// it, or no translation of its owners.
    pub copied: bool,
}

fn bound(field: &'static str, value: u64, low: u64, high: u64) -> Result<(), SpawnError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(SpawnError::Invalid {
        field,
        value,
        low,
        high,
    })
}

impl MakeSpec {
    /// Checks every bound, and that the descriptors fit the modes.
    ///
    /// # Errors
    /// Names the first field that is out of its bounds.
    pub fn check(&self, fds: &MakeFds<'_>) -> Result<(), SpawnError> {
        const IDS: u64 = u32::MAX as u64;
        let first = u64::from(self.ids.host_base);
        let count = u64::from(self.ids.count);
        bound("ids.host_base", first, 1, IDS - 1)?;
        bound("ids.count", count, u64::from(WORKLOAD_ID) + 1, IDS - first)?;
        bound("cores", self.cores.len() as u64, 1, CORES_MAX as u64)?;
        for core in &self.cores {
            bound("core", u64::from(*core), 0, 8_191)?;
        }
        bound("memory_bytes", self.memory_bytes, 1 << 20, 1 << 52)?;
        bound("shm_bytes", self.shm_bytes, 4_096, 1 << 52)?;
        if let Disk::Tmpfs { bytes, inodes } = self.disk {
            bound("disk.bytes", bytes, 4_096, 1 << 52)?;
            bound("disk.inodes", inodes, 16, 1 << 40)?;
        }
        let most = DEADLINE_MAX.as_millis() as u64;
        bound("deadline", self.deadline.as_millis() as u64, 1, most)?;
        let groups = fds.cgroup_procs.len() as u64;
        bound("cgroup_procs", groups, 0, CGROUPS_MAX as u64)?;
        let directory = u64::from(self.workspace.needs_directory());
        bound(
            "workspace directories",
            u64::from(fds.workspace.is_some()),
            directory,
            directory,
        )?;
        let device = u64::from(self.disk == Disk::Image);
        bound(
            "disk devices",
            u64::from(fds.disk.is_some()),
            device,
            device,
        )?;
        let layers = u64::from(self.image.is_some());
        bound(
            "layer directories",
            u64::from(fds.layers.is_some()),
            layers,
            layers,
        )?;
        match &self.image {
            Some(image) => self.check_image(image),
            None => Ok(()),
        }
    }

    fn check_image(&self, image: &ImageSpec) -> Result<(), SpawnError> {
        let most = u64::from(self.ids.count - 1);
        bound(
            "image.layers",
            image.layers.len() as u64,
            1,
            LAYERS_MAX as u64,
        )?;
        bound("image.root.mode", u64::from(image.root.mode), 0, 0o7777)?;
        for (field, id) in [
            ("image.root.uid", image.root.uid),
            ("image.root.gid", image.root.gid),
            ("image.user.uid", image.user.uid),
            ("image.user.gid", image.user.gid),
        ] {
            bound(field, u64::from(id), 0, most)?;
        }
        // Two programs want the one stub: an interpreter is of the host's system directories.
        bound("image with warm", u64::from(self.warm.is_some()), 0, 0)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use leasehold_core::digest::Digest;
    use leasehold_core::image::{LayerName, RootDirectory, User};
    use std::os::fd::AsFd;

    /// A small, valid order.
    pub(in super::super) fn small() -> MakeSpec {
        MakeSpec {
            ids: IdBlock {
                host_base: 0x6000_0000,
                count: 65_536,
            },
            cores: vec![0],
            memory_bytes: 64 << 20,
            disk: Disk::Tmpfs {
                bytes: 1 << 20,
                inodes: 64,
            },
            shm_bytes: 1 << 20,
            workspace: WorkspaceMode::Ephemeral,
            warm: None,
            image: None,
            caller_uid: 1000,
            caller_gid: 1000,
            deadline: Duration::from_secs(5),
        }
    }

    /// An image of three layers.
    pub(in super::super) fn image() -> ImageSpec {
        let name = |leans| LayerName {
            digest: Digest::of(b"layer"),
            leans,
        };
        ImageSpec {
            digest: Digest::of(b"manifest"),
            layers: vec![name(true), name(false), name(true)],
            root: RootDirectory {
                mode: 0o1755,
                uid: 1,
                gid: 2,
            },
            owners: true,
            user: User {
                uid: 3,
                gid: 65_535,
            },
            home: true,
        }
    }

    #[test]
    fn bounds_of_an_image_are_held_and_named() {
        let stdin = std::io::stdin();
        let fds = MakeFds {
            init: stdin.as_fd(),
            stub: stdin.as_fd(),
            workspace: None,
            disk: None,
            layers: Some(stdin.as_fd()),
            cgroup: None,
            cgroup_procs: &[],
        };
        let of = |image| MakeSpec {
            image: Some(image),
            ..small()
        };
        assert!(of(image()).check(&fds).is_ok());
        type Bend = fn(&mut MakeSpec, ImageSpec);
        let cases: [(&str, Bend); 4] = [
            ("image.layers", |spec, mut image| {
                image.layers.clear();
                spec.image = Some(image);
            }),
            ("image.user.gid", |spec, image| {
                spec.image = Some(image);
                spec.ids.count = 65_535;
            }),
            ("image with warm", |spec, image| {
                spec.image = Some(image);
                spec.warm = Some(Warm::Python);
            }),
            ("layer directories", |_, _| {}),
        ];
        for (wanted, bend) in cases {
            let mut spec = small();
            bend(&mut spec, image());
            match spec.check(&fds) {
                Err(SpawnError::Invalid { field, .. }) => assert_eq!(field, wanted),
                other => panic!("{wanted}: {other:?}"),
            }
        }
    }

    #[test]
    fn bounds_are_held_and_named() {
        let stdin = std::io::stdin();
        let fds = MakeFds {
            init: stdin.as_fd(),
            stub: stdin.as_fd(),
            workspace: None,
            disk: None,
            layers: None,
            cgroup: None,
            cgroup_procs: &[],
        };
        assert!(small().check(&fds).is_ok());
        type Bend = fn(&mut MakeSpec);
        let cases: [(&str, Bend); 8] = [
            ("ids.host_base", |spec| spec.ids.host_base = 0),
            ("ids.count", |spec| spec.ids.count = 1000),
            ("ids.count", |spec| spec.ids.host_base = u32::MAX - 5),
            ("cores", |spec| spec.cores.clear()),
            ("core", |spec| spec.cores = vec![100_000]),
            ("deadline", |spec| spec.deadline = Duration::ZERO),
            ("workspace directories", |spec| {
                spec.workspace = WorkspaceMode::Clone;
            }),
            ("layer directories", |spec| spec.image = Some(image())),
        ];
        for (wanted, bend) in cases {
            let mut spec = small();
            bend(&mut spec);
            match spec.check(&fds) {
                Err(SpawnError::Invalid { field, .. }) => assert_eq!(field, wanted),
                other => panic!("{wanted}: {other:?}"),
            }
        }
    }
}
