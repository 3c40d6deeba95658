//! Making `leasehold-<instance>` in every hierarchy of use, and finding out what that gives.
//!
//! Places are tried, never guessed: a place counts when the directory could be made there, the
//! controllers really arrived in it, and the kernel lets us move processes into it.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::locate::{Controller, Hierarchy, Located, Set};
use super::{Controls, Missing, Tree, device, file, make_dir, remove_dir};

/// What is wanted of cgroup2 where v1 does not have it.
pub(super) const WANTED: [Controller; 3] = [Controller::Memory, Controller::Pids, Controller::Cpu];

/// Opens a mount point and makes sure that it is the file system it is said to be. Returns its
/// device number, by which two mounts of one hierarchy are told to be one.
pub(super) fn open_mount(path: &Path, v2: bool) -> rustix::io::Result<(OwnedFd, u64)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, Mode::empty())?;
    let magic = if v2 {
        libc::CGROUP2_SUPER_MAGIC
    } else {
        libc::CGROUP_SUPER_MAGIC
    };
    if rustix::fs::fstatfs(&dir)?.f_type != magic {
        return Err(Errno::NODEV);
    }
    let device = rustix::fs::fstat(&dir)?.st_dev;
    Ok((dir, device))
}

/// Everything that is found out along the way.
struct Laying<'a> {
    name: &'a CString,
    trees: Vec<Tree>,
    missing: Vec<Missing>,
}

/// Makes the directories. What is missing is in the controls with its reason.
pub(super) fn lay(located: &Located, name: &CString) -> (Vec<Tree>, Controls) {
    let mut laying = Laying {
        name,
        trees: Vec::new(),
        missing: Vec::new(),
    };
    laying.v1(located, Set::of(&WANTED));
    laying.v2(located);
    let tracker = laying.trees.iter().position(|tree| tree.v2);
    let can_track =
        |file| tracker.is_some_and(|at| file::exists(laying.trees[at].base.as_fd(), file));
    let (kill, freeze) = (can_track(c"cgroup.kill"), can_track(c"cgroup.freeze"));
    let stat = can_track(c"cpu.stat");
    if !freeze {
        laying.v1(located, Set::of(&[Controller::Freezer]));
    }
    if !stat {
        laying.v1(located, Set::of(&[Controller::Cpuacct]));
    }
    let devices = laying.devices(located, tracker);
    let has = |controller| laying.trees.iter().any(|tree| tree.set.has(controller));
    let mut controls = Controls {
        memory: has(Controller::Memory),
        pids: has(Controller::Pids),
        cpu: has(Controller::Cpu),
        cpu_time: stat || has(Controller::Cpuacct),
        kill,
        freeze: freeze || has(Controller::Freezer),
        devices,
        missing: Vec::new(),
    };
    laying.judge_swap(&mut controls);
    laying.explain(&controls, located);
    laying.judge_sockets();
    controls.missing = laying.missing;
    (laying.trees, controls)
}

impl Laying<'_> {
    fn note(&mut self, control: &'static str, reason: String) {
        if !self.missing.iter().any(|one| one.control == control) {
            self.missing.push(Missing { control, reason });
        }
    }

    fn have(&self) -> Set {
        self.trees.iter().fold(Set::default(), |mut all, tree| {
            tree.set.iter().for_each(|one| all.insert(one));
            all
        })
    }

    /// v1: below our own group of each hierarchy that holds something wanted.
    fn v1(&mut self, located: &Located, wanted: Set) {
        for hierarchy in &located.v1 {
            let of_use = hierarchy.controllers.and(wanted).without(self.have());
            if of_use.is_empty() {
                continue;
            }
            match self.try_v1(hierarchy) {
                Ok(tree) => self.trees.push(tree),
                Err(reason) => of_use
                    .iter()
                    .for_each(|one| self.note(one.name(), reason.clone())),
            }
        }
    }

    fn try_v1(&self, hierarchy: &Hierarchy) -> Result<Tree, String> {
        let (place, path) = own_place(hierarchy, false)?;
        make_dir(&place, self.name).map_err(|error| cannot_make(&path, error))?;
        let path = path.join(self.name.to_string_lossy().as_ref());
        let base = file::open_dir(place.as_fd(), self.name)
            .map_err(|error| format!("cannot open {}: {error}", path.display()))?;
        if hierarchy.controllers.has(Controller::Memory) {
            prepare_memory_v1(&base);
        }
        if hierarchy.controllers.has(Controller::Cpu) {
            let _ = file::write_number(base.as_fd(), c"cpu.shares", 1_024 * cores());
        }
        Ok(Tree {
            v2: false,
            set: hierarchy.controllers,
            swap: file::exists(base.as_fd(), c"memory.memsw.limit_in_bytes"),
            base,
            path,
            stray: false,
        })
    }

    /// cgroup2: the first place that gives everything, else the one that gives most.
    fn v2(&mut self, located: &Located) {
        let wanted = Set::of(&WANTED).without(self.have());
        let root = rustix::process::geteuid().is_root();
        for hierarchy in &located.v2 {
            let top_first = root && (!wanted.is_empty() || hierarchy.own.is_none());
            let mut best: Option<Tree> = None;
            for place in candidates(hierarchy, top_first) {
                match self.try_v2(&below_mount(hierarchy, &place), wanted) {
                    Ok(tree) => {
                        let complete = tree.set == wanted;
                        best = Some(better(best, tree));
                        if complete {
                            break;
                        }
                    }
                    Err(reason) => {
                        for control in wanted.iter().map(Controller::name).chain(["kill"]) {
                            self.note(control, reason.clone());
                        }
                    }
                }
            }
            if let Some(tree) = best {
                finish_v2(&tree);
                self.trees.push(tree);
                return;
            }
        }
    }

    fn try_v2(&mut self, path: &Path, wanted: Set) -> Result<Tree, String> {
        let (place, _) = open_mount(path, true)
            .map_err(|error| format!("cannot open {}: {error}", path.display()))?;
        let made = make_dir(&place, self.name).map_err(|error| cannot_make(path, error))?;
        let undo = |reason: String| {
            if made {
                let _ = remove_dir(&place, self.name);
            }
            reason
        };
        // The kernel asks for the right to write here before it moves a process to below here.
        file::open(place.as_fd(), c"cgroup.procs", OFlags::WRONLY).map_err(|error| {
            undo(format!(
                "processes may not be moved into groups below {}: {error}",
                path.display()
            ))
        })?;
        let base = file::open_dir(place.as_fd(), self.name)
            .map_err(|error| undo(format!("cannot open a new group: {error}")))?;
        let offered = read_set(&place, c"cgroup.controllers").and(wanted);
        let enabled = read_set(&place, c"cgroup.subtree_control");
        for controller in offered.without(enabled).iter() {
            if let Err(error) = enable(&place, controller) {
                self.note(controller.name(), cannot_enable(controller, path, error));
            }
        }
        for controller in read_set(&base, c"cgroup.controllers").and(wanted).iter() {
            if let Err(error) = enable(&base, controller) {
                self.note(controller.name(), cannot_enable(controller, path, error));
            }
        }
        let set = read_set(&base, c"cgroup.subtree_control").and(wanted);
        for controller in wanted.without(offered).iter() {
            self.note(
                controller.name(),
                format!(
                    "controller {} is not delegated to {}",
                    controller.name(),
                    path.display()
                ),
            );
        }
        Ok(Tree {
            v2: true,
            set,
            swap: file::exists(base.as_fd(), c"memory.swap.max"),
            base,
            path: path.join(self.name.to_string_lossy().as_ref()),
            stray: false,
        })
    }

    /// Devices: a small program on the cgroup2 directory, which costs a sandbox nothing; else the
    /// v1 controller.
    fn devices(&mut self, located: &Located, tracker: Option<usize>) -> bool {
        let mut why = "no cgroup2 hierarchy for a device program".to_owned();
        if let Some(at) = tracker {
            match device::attach_program(self.trees[at].base.as_fd()) {
                Ok(()) => return true,
                Err(error) => why = format!("device program refused: {error}"),
            }
        }
        self.v1(located, Set::of(&[Controller::Devices]));
        let tree = self
            .trees
            .iter()
            .find(|tree| tree.set.has(Controller::Devices));
        match tree.map(|tree| device::write_rules(tree.base.as_fd())) {
            Some(Ok(())) => return true,
            Some(Err(error)) => why = format!("{why}; device rules refused: {error}"),
            None => {}
        }
        self.note("devices", why);
        false
    }

    /// Drops notes about what worked elsewhere, and says the rest.
    fn explain(&mut self, controls: &Controls, located: &Located) {
        let held = [
            ("memory", controls.memory),
            ("pids", controls.pids),
            ("cpu", controls.cpu),
            ("cpu_time", controls.cpu_time),
            ("kill", controls.kill),
            ("freeze", controls.freeze),
            ("devices", controls.devices),
        ];
        self.missing
            .retain(|one| one.control == "swap" || held.contains(&(one.control, false)));
        let general = if located.v1.is_empty() && located.v2.is_empty() {
            "no control group file system is mounted"
        } else {
            "no control group can be made here"
        };
        for (control, here) in held {
            if !here {
                let reason = match control {
                    "kill" if !self.trees.is_empty() => "no cgroup2 with cgroup.kill (Linux 5.14)",
                    _ => general,
                };
                self.note(control, reason.to_owned());
            }
        }
    }

    /// On v1 network buffers have a count of their own, which a kernel may lack. The memory limit
    /// holds without it, and they come on top.
    fn judge_sockets(&mut self) {
        let v1 = |tree: &&Tree| tree.set.has(Controller::Memory) && !tree.v2;
        let uncounted = |tree: &Tree| !counts_sockets(tree.base.as_fd());
        if self.trees.iter().find(v1).is_some_and(uncounted) {
            let gap = "this kernel does not bound network buffers per v1 group";
            self.note("sockets", gap.to_owned());
        }
    }

    /// A memory limit that swap gets around is none. Without a count of swap per group, v1 still keeps
    /// a group out of swap by its swappiness; on v2 nothing does.
    fn judge_swap(&mut self, controls: &mut Controls) {
        let memory = |tree: &&Tree| tree.set.has(Controller::Memory);
        let Some(tree) = self.trees.iter().find(memory) else {
            return;
        };
        let swappiness = || {
            file::read(tree.base.as_fd(), c"memory.swappiness")
                .ok()?
                .number()
        };
        if tree.swap || (!tree.v2 && swappiness() == Some(0)) {
            return;
        }
        let gap = "this kernel does not bound swap per group";
        self.note("swap", gap.to_owned());
        if swap_is_on() {
            self.missing.retain(|one| one.control != "memory");
            self.note("memory", format!("{gap}, and swap is on"));
            controls.memory = false;
        }
    }
}

/// Whether the group counts network buffers.
fn counts_sockets(group: BorrowedFd<'_>) -> bool {
    file::exists(group, super::limits::SOCKETS)
}

fn swap_is_on() -> bool {
    // The first line is a heading.
    std::fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1)
}

/// The one of two places that gives more; the other one's directory goes.
fn better(best: Option<Tree>, tree: Tree) -> Tree {
    let (better, loser) = match best {
        Some(best) if best.set.len() >= tree.set.len() => (best, Some(tree)),
        other => (tree, other),
    };
    if let Some(loser) = loser {
        // Refused where groups of a predecessor are still in it; a sweep finds those.
        let _ = std::fs::remove_dir(&loser.path);
    }
    better
}

/// Places on cgroup2 to try, best first: as root the top, where no other manager's limits apply;
/// then our own group and its parents up to the mount point.
fn candidates(hierarchy: &Hierarchy, top_first: bool) -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> = Vec::new();
    if top_first {
        places.push(PathBuf::new());
    }
    if let Some(own) = &hierarchy.own {
        let tried = own
            .ancestors()
            .take_while(|place| place.starts_with(&hierarchy.highest));
        for place in tried {
            if !places.iter().any(|one| one == place) {
                places.push(place.to_path_buf());
            }
        }
    }
    places
}

/// Without the slash at the end that joining nothing would leave.
fn below_mount(hierarchy: &Hierarchy, place: &Path) -> PathBuf {
    if place.as_os_str().is_empty() {
        hierarchy.mount.clone()
    } else {
        hierarchy.mount.join(place)
    }
}

fn own_place(hierarchy: &Hierarchy, v2: bool) -> Result<(OwnedFd, PathBuf), String> {
    let own = hierarchy
        .own
        .as_ref()
        .ok_or_else(|| format!("our own group is not below {}", hierarchy.mount.display()))?;
    let path = below_mount(hierarchy, own);
    let (place, _) = open_mount(&path, v2)
        .map_err(|error| format!("cannot open {}: {error}", path.display()))?;
    Ok((place, path))
}

fn cannot_make(path: &Path, error: Errno) -> String {
    let why = match error {
        Errno::ACCESS | Errno::PERM => format!(
            "not writable by uid {}",
            rustix::process::geteuid().as_raw()
        ),
        Errno::ROFS => "mounted read-only".to_owned(),
        other => other.to_string(),
    };
    format!("no group can be made in {}: {why}", path.display())
}

fn cannot_enable(controller: Controller, path: &Path, error: Errno) -> String {
    let name = controller.name();
    let path = path.display();
    match error {
        Errno::BUSY => format!(
            "controller {name} cannot be passed on below {path}, which has processes of its own"
        ),
        Errno::NOENT => format!("controller {name} is not delegated to {path}"),
        other => format!("controller {name} cannot be passed on below {path}: {other}"),
    }
}

fn read_set(dir: &OwnedFd, name: &std::ffi::CStr) -> Set {
    file::read(dir.as_fd(), name).map_or(Set::default(), |text| Set::parse(text.as_str()))
}

fn enable(dir: &OwnedFd, controller: Controller) -> rustix::io::Result<()> {
    let word = match controller {
        Controller::Memory => "+memory",
        Controller::Pids => "+pids",
        Controller::Cpu => "+cpu",
        Controller::Cpuacct | Controller::Devices | Controller::Freezer => {
            return Err(Errno::INVAL);
        }
    };
    file::write(dir.as_fd(), c"cgroup.subtree_control", word.as_bytes())
}

/// All sandboxes together weigh on every core as much as one ordinary process: a busy host does not
/// starve them, and they do not starve whoever looks after them. 1,024 shares or a weight of 100
/// are one process on one core.
fn cores() -> u64 {
    let set = rustix::thread::sched_getaffinity(None);
    set.map_or(1, |set| u64::from(set.count()).max(1))
}

/// What holds for every sandbox of a v1 memory hierarchy: children count with their parents, and
/// nothing is swapped out. New groups inherit both. Either may be refused where it already holds.
fn prepare_memory_v1(base: &OwnedFd) {
    let hierarchical = file::read(base.as_fd(), c"memory.use_hierarchy");
    if hierarchical.is_ok_and(|text| text.number() == Some(0)) {
        let _ = file::write(base.as_fd(), c"memory.use_hierarchy", b"1");
    }
    let _ = file::write(base.as_fd(), c"memory.swappiness", b"0");
    // No limit here; but the first group that counts network buffers makes the kernel patch itself,
    // which takes a millisecond, and the last one undoes it.
    let _ = file::write(base.as_fd(), super::limits::SOCKETS, b"-1");
}

/// What holds for every sandbox of cgroup2: no swap, and no groups within a sandbox's group.
fn finish_v2(tree: &Tree) {
    if tree.swap {
        let _ = file::write(tree.base.as_fd(), c"memory.swap.max", b"0");
    }
    if tree.set.has(Controller::Cpu) {
        let _ = file::write_number(
            tree.base.as_fd(),
            c"cpu.weight",
            (100 * cores()).min(10_000),
        );
    }
    let _ = file::write(tree.base.as_fd(), c"cgroup.max.depth", b"1");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hierarchy(own: Option<&str>) -> Hierarchy {
        Hierarchy {
            mount: PathBuf::from("/sys/fs/cgroup"),
            own: own.map(PathBuf::from),
            controllers: Set::default(),
            highest: PathBuf::new(),
        }
    }

    #[test]
    fn a_kernel_that_does_not_count_network_buffers_is_told() {
        let place = std::env::temp_dir().join(format!("leasehold-sockets-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let group = std::fs::File::open(&place).unwrap();
        let without = counts_sockets(group.as_fd());
        std::fs::write(place.join("memory.kmem.tcp.limit_in_bytes"), "").unwrap();
        let with = counts_sockets(group.as_fd());
        std::fs::remove_dir_all(&place).unwrap();
        assert_eq!((without, with), (false, true));
    }

    fn texts(places: &[PathBuf]) -> Vec<&str> {
        places.iter().filter_map(|one| one.to_str()).collect()
    }

    #[test]
    fn root_tries_the_top_first_and_a_user_the_nearest() {
        let own = hierarchy(Some("user.slice/u/app"));
        assert_eq!(
            texts(&candidates(&own, true)),
            ["", "user.slice/u/app", "user.slice/u", "user.slice"]
        );
        assert_eq!(
            texts(&candidates(&own, false)),
            ["user.slice/u/app", "user.slice/u", "user.slice", ""]
        );
        assert_eq!(texts(&candidates(&hierarchy(Some("")), true)), [""]);
        assert!(candidates(&hierarchy(None), false).is_empty());
        let mut within = hierarchy(Some("user.slice/x.scope/a/b"));
        within.highest = PathBuf::from("user.slice/x.scope");
        assert_eq!(
            texts(&candidates(&within, false)),
            [
                "user.slice/x.scope/a/b",
                "user.slice/x.scope/a",
                "user.slice/x.scope"
            ]
        );
    }

    #[test]
    fn a_directory_that_is_no_control_group_is_not_taken_for_one() {
        let refused = open_mount(&std::env::temp_dir(), true);
        assert_eq!(refused.err(), Some(Errno::NODEV));
    }

    #[test]
    fn reasons_name_the_place_and_the_cause() {
        let place = Path::new("/x");
        assert_eq!(
            cannot_enable(Controller::Memory, place, Errno::BUSY),
            "controller memory cannot be passed on below /x, which has processes of its own"
        );
        assert_eq!(
            cannot_make(place, Errno::ROFS),
            "no group can be made in /x: mounted read-only"
        );
    }
}
