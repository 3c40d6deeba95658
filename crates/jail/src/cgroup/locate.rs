//! Where control group hierarchies are mounted and where this process stands in them: pure text
//! work over `/proc/self/mountinfo` and `/proc/self/cgroup`. Opens nothing else.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::CgroupError;

/// Most lines read of either file; a host with more is read to this point only.
const LINES_MAX: usize = 16_384;

/// The controllers this module can make use of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Controller {
    Memory,
    Pids,
    Cpu,
    Cpuacct,
    Devices,
    Freezer,
}

impl Controller {
    /// Every one, in the order of its bit.
    pub(super) const ALL: [Self; 6] = [
        Self::Memory,
        Self::Pids,
        Self::Cpu,
        Self::Cpuacct,
        Self::Devices,
        Self::Freezer,
    ];

    /// The kernel's name for it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
            Self::Cpuacct => "cpuacct",
            Self::Devices => "devices",
            Self::Freezer => "freezer",
        }
    }
}

/// A set of controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Set(u8);

impl Set {
    pub(super) fn of(controllers: &[Controller]) -> Self {
        Self(
            controllers
                .iter()
                .fold(0, |bits, one| bits | 1 << *one as u8),
        )
    }

    /// Those of a comma- or blank-separated list that are known here.
    pub(super) fn parse(list: &str) -> Self {
        let mut set = Self::default();
        for word in list.split([',', ' ', '\n']) {
            for controller in Controller::ALL {
                if controller.name() == word {
                    set.insert(controller);
                }
            }
        }
        set
    }

    pub(super) fn insert(&mut self, controller: Controller) {
        self.0 |= 1 << controller as u8;
    }

    pub(super) fn has(self, controller: Controller) -> bool {
        self.0 & 1 << controller as u8 != 0
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) fn iter(self) -> impl Iterator<Item = Controller> {
        Controller::ALL
            .into_iter()
            .filter(move |one| self.has(*one))
    }
}

/// One mounted hierarchy as seen from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    /// Its mount point.
    pub(super) mount: PathBuf,
    /// Our own group below the mount point, relative, without a leading slash; empty at its root.
    /// `None` when our group lies outside what is mounted.
    pub(super) own: Option<PathBuf>,
    /// Controllers; always empty for cgroup2, whose controllers are read from its files.
    pub(super) controllers: Set,
    /// The highest group above our own that may be tried, relative too.
    pub(super) highest: PathBuf,
}

/// All that was found. A hierarchy that is mounted several times is listed once per mount.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Located {
    pub(super) v1: Vec<Hierarchy>,
    pub(super) v2: Vec<Hierarchy>,
}

impl Located {
    /// What there is, for the process whose groups are in this file of `/proc`.
    pub(super) fn read(groups: &str) -> Result<Self, CgroupError> {
        let read = |path: &str| {
            std::fs::read_to_string(path).map_err(|source| CgroupError::Read {
                path: path.to_owned(),
                source,
            })
        };
        Ok(locate(&read("/proc/self/mountinfo")?, &read(groups)?))
    }

    /// Only what lies within our own service or scope: on a host of systemd's whatever is above is
    /// systemd's alone, also where its files are writable. Standing in the unit's top group is no
    /// place either, since a group with processes passes no controllers on.
    pub(super) fn within_own_unit(&self) -> Self {
        let mut within = self.clone();
        for hierarchy in &mut within.v2 {
            let own = hierarchy.own.take().unwrap_or_default();
            let unit = own.ancestors().find(|place| is_unit(place));
            if let Some(unit) = unit.filter(|unit| *unit != own) {
                hierarchy.highest = unit.to_owned();
                hierarchy.own = Some(own);
            }
        }
        within
    }
}

fn is_unit(place: &Path) -> bool {
    place
        .extension()
        .is_some_and(|kind| kind == "scope" || kind == "service")
}

/// One line of `/proc/self/mountinfo` that is a cgroup file system.
struct MountLine {
    root: PathBuf,
    mount: PathBuf,
    v2: bool,
    options: String,
}

/// Decodes the `\ooo` escapes of mountinfo.
fn unescape(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octal = bytes.get(at + 1..at + 4).and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        match (bytes[at], octal) {
            (b'\\', Some(byte)) => {
                out.push(byte);
                at += 4;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

fn mount_line(line: &str) -> Option<MountLine> {
    let (left, right) = line.split_once(" - ")?;
    let mut right = right.split(' ');
    let v2 = match right.next()? {
        "cgroup2" => true,
        "cgroup" => false,
        _ => return None,
    };
    let options = right.nth(1)?.to_owned();
    let mut left = left.split(' ');
    let root = unescape(left.nth(3)?);
    let mount = unescape(left.next()?);
    Some(MountLine {
        root,
        mount,
        v2,
        options,
    })
}

/// Our group relative to a mount whose own root is `root`.
fn below(own: &str, root: &Path) -> Option<PathBuf> {
    let relative = Path::new(own).strip_prefix(root).ok()?;
    let climbs = relative
        .components()
        .any(|part| !matches!(part, std::path::Component::Normal(_)));
    (!climbs).then(|| relative.to_path_buf())
}

/// Reads both texts. Lines that make no sense are passed over: a hierarchy that cannot be read is
/// one that is not there, and what is not there is reported as missing later.
pub(super) fn locate(mountinfo: &str, own: &str) -> Located {
    let mut groups: Vec<(&str, &str)> = Vec::new();
    for line in own.lines().take(LINES_MAX) {
        let mut fields = line.splitn(3, ':').skip(1);
        if let (Some(names), Some(path)) = (fields.next(), fields.next()) {
            groups.push((names, path));
        }
    }
    let mut located = Located::default();
    for line in mountinfo.lines().take(LINES_MAX).filter_map(mount_line) {
        if line.v2 {
            let own = groups.iter().find(|(names, _)| names.is_empty());
            located.v2.push(Hierarchy {
                own: own.and_then(|(_, path)| below(path, &line.root)),
                mount: line.mount,
                controllers: Set::default(),
                highest: PathBuf::new(),
            });
            continue;
        }
        let controllers = Set::parse(&line.options);
        if controllers.is_empty() {
            continue;
        }
        let own = groups
            .iter()
            .find(|(names, _)| Set::parse(names) == controllers);
        located.v1.push(Hierarchy {
            own: own.and_then(|(_, path)| below(path, &line.root)),
            mount: line.mount,
            controllers,
            highest: PathBuf::new(),
        });
    }
    located
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID_MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:4 master:1 - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const HYBRID_OWN: &str = "\
9:name=systemd:/
4:memory:/a/b
1:cpu,cpuacct:/
0::/
";

    fn path(text: &str) -> Option<PathBuf> {
        Some(PathBuf::from(text))
    }

    #[test]
    fn a_hybrid_host_is_read_whole() {
        let located = locate(HYBRID_MOUNTS, HYBRID_OWN);
        assert_eq!(located.v1.len(), 2, "named hierarchies are not ours");
        assert_eq!(
            located.v1[0].controllers,
            Set::of(&[Controller::Cpu, Controller::Cpuacct])
        );
        assert_eq!(located.v1[0].own, path(""));
        assert_eq!(located.v1[1].own, path("a/b"));
        assert_eq!(located.v1[1].mount, Path::new("/sys/fs/cgroup/memory"));
        assert_eq!(located.v2.len(), 1);
        assert_eq!(located.v2[0].own, path(""));
    }

    #[test]
    fn a_pure_v2_host_gives_the_own_group() {
        let located = locate(
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
            "0::/user.slice/user-1000.slice/session-3.scope\n",
        );
        assert!(located.v1.is_empty());
        assert_eq!(
            located.v2[0].own,
            path("user.slice/user-1000.slice/session-3.scope")
        );
    }

    #[test]
    fn within_a_unit_is_what_lies_below_its_top_group() {
        let within = |own: &str| {
            let mounts = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
            let located = locate(mounts, &format!("0::{own}\n")).within_own_unit();
            let found = located.v2[0].clone();
            found.own.map(|own| (own, found.highest))
        };
        let user = "user.slice/user-1000.slice/user@1000.service/app.slice";
        for own in [
            "/user.slice/user-1000.slice/session-3.scope".to_owned(),
            format!("/{user}/vte-spawn-1.scope"),
            "/user.slice".to_owned(),
            "/".to_owned(),
        ] {
            assert_eq!(within(&own), None, "{own}");
        }
        let unit = format!("{user}/lent.scope");
        let below = format!("{unit}/a/b");
        let wanted = Some((PathBuf::from(&below), PathBuf::from(&unit)));
        assert_eq!(within(&format!("/{below}")), wanted);
    }

    #[test]
    fn a_container_without_a_cgroup_namespace_is_below_its_mount_root() {
        let located = locate(
            "30 23 0:26 /docker/f00 /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n",
            "0::/docker/f00\n",
        );
        assert_eq!(located.v2[0].own, path(""));
    }

    #[test]
    fn a_group_outside_what_is_mounted_is_not_guessed() {
        for own in ["0::/docker/bar\n", "0::/../other\n", "0::/..\n", ""] {
            let located = locate(
                "30 23 0:26 /docker/f00 /sys/fs/cgroup rw - cgroup2 cgroup rw\n\
                 31 23 0:26 / /mnt rw - cgroup2 cgroup rw\n",
                own,
            );
            assert_eq!(located.v2[0].own, None, "{own}");
            if own.contains("..") {
                assert_eq!(located.v2[1].own, None, "{own}");
            }
        }
    }

    #[test]
    fn escapes_and_nonsense_do_not_confuse() {
        let located = locate(
            "x\n - \n1 2 0:3 / /a\\040b\\134c rw - cgroup none rw,pids\n\
             1 2 0:3 / /half\\04 rw - cgroup none rw,pids\n1 2 - cgroup\n",
            "garbage\n8:pids:/p q\n7:pids\n",
        );
        assert_eq!(located.v1.len(), 2);
        assert_eq!(located.v1[0].mount, Path::new("/a b\\c"));
        assert_eq!(located.v1[0].own, path("p q"));
        assert_eq!(located.v1[1].mount, Path::new("/half\\04"));
    }

    #[test]
    fn sets_know_their_members() {
        let set = Set::parse("memory pids rdma\n");
        assert_eq!(set.len(), 2);
        assert!(set.has(Controller::Pids) && !set.has(Controller::Cpu));
        let names: Vec<_> = set.iter().map(Controller::name).collect();
        assert_eq!(names, ["memory", "pids"]);
        assert!(set.without(Set::parse("memory,pids")).is_empty());
        assert_eq!(set.and(Set::parse("pids,cpu")), Set::parse("pids"));
    }
}
