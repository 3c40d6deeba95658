//! What is read of the host, bounded and without judgement. Everything that may be absent is an
//! `Option`; judging is pure and tested in `host.rs`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use leasehold_jail::cgroup::{scope_socket, scope_thinkable};
use leasehold_jail::{landlock, seccomp};

use crate::env;

/// Most bytes read of one file.
const FILE_MAX: u64 = 64 << 10;

/// The host as read once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    pub(crate) uid: u32,
    pub(crate) user: Option<String>,
    pub(crate) kernel: String,
    /// Path of this program, for an AppArmor profile.
    pub(crate) program: PathBuf,
    /// `user.max_user_namespaces`.
    pub(crate) user_namespaces_max: Option<u64>,
    /// `kernel.unprivileged_userns_clone` (a Debian switch).
    pub(crate) unprivileged_userns: Option<u64>,
    /// `kernel.apparmor_restrict_unprivileged_userns` (Ubuntu 23.10 and later).
    pub(crate) apparmor_userns: Option<u64>,
    /// `dev.tty.legacy_tiocsti`.
    pub(crate) legacy_tiocsti: Option<u64>,
    pub(crate) core_pattern: Option<String>,
    pub(crate) swap: bool,
    pub(crate) pid_max: Option<u64>,
    /// Open files one process may have at most.
    pub(crate) files_max: Option<u64>,
    pub(crate) landlock_abi: u32,
    /// Security modules in use, as the kernel lists them.
    pub(crate) modules: Option<String>,
    /// Instructions of the seccomp program; 0 when the kernel has no filters.
    pub(crate) seccomp: usize,
    /// Programs that map a range of ids, and whether the range is there.
    pub(crate) id_tools: bool,
    pub(crate) id_range: bool,
    /// Which container we are in, where signs of one are seen.
    pub(crate) container: Option<String>,
    pub(crate) systemd: bool,
    /// Whether a systemd manager of this user can be asked for control groups.
    pub(crate) manager: bool,
    /// Whether the user's processes stay when the last session ends.
    pub(crate) lingers: bool,
    /// Whether asking systemd is switched off.
    pub(crate) scope_off: bool,
    /// Whether `/sys/fs/cgroup` is the one cgroup2 hierarchy.
    pub(crate) pure_v2: bool,
    /// Whether `/dev/kvm` can be opened for writing.
    pub(crate) kvm: bool,
    /// OCI runtimes found, by name.
    pub(crate) oci_runtimes: Vec<&'static str>,
    pub(crate) runsc: bool,
}

fn text(path: &str) -> Option<String> {
    let mut text = String::new();
    let file = File::open(path).ok()?;
    file.take(FILE_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

fn number(path: &str) -> Option<u64> {
    text(path)?.trim().parse().ok()
}

/// Whether a program is in one of the usual places. `PATH` is not asked: the supervisor does not
/// either.
fn installed(name: &str) -> bool {
    [
        "/usr/local/sbin",
        "/usr/local/bin",
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
    ]
    .iter()
    .any(|place| Path::new(place).join(name).exists())
}

impl Facts {
    /// Reads the host.
    pub(crate) fn gather() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let user = text("/etc/passwd").and_then(|passwd| user_name(&passwd, uid));
        let owns_range =
            |path| text(path).is_some_and(|ranges| has_range(&ranges, user.as_deref(), uid));
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        Self {
            uid,
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            program: std::env::current_exe().unwrap_or_default(),
            user_namespaces_max: number("/proc/sys/user/max_user_namespaces"),
            unprivileged_userns: number("/proc/sys/kernel/unprivileged_userns_clone"),
            apparmor_userns: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
            legacy_tiocsti: number("/proc/sys/dev/tty/legacy_tiocsti"),
            core_pattern: text("/proc/sys/kernel/core_pattern").map(|text| text.trim().to_owned()),
            swap: text("/proc/swaps").is_some_and(|text| text.lines().count() > 1),
            pid_max: number("/proc/sys/kernel/pid_max"),
            files_max: files.maximum,
            landlock_abi: landlock::abi(),
            modules: text("/sys/kernel/security/lsm").map(|text| text.trim().to_owned()),
            seccomp: match text("/proc/sys/kernel/seccomp/actions_avail") {
                Some(_) => seccomp::Program::native().instructions().len(),
                None => 0,
            },
            id_tools: installed("newuidmap") && installed("newgidmap"),
            id_range: owns_range("/etc/subuid") && owns_range("/etc/subgid"),
            container: container(
                text("/run/systemd/container").as_deref(),
                Path::new("/.dockerenv").exists(),
                Path::new("/run/.containerenv").exists(),
                text("/proc/1/cgroup").as_deref(),
            ),
            systemd: Path::new("/run/systemd/system").exists(),
            manager: scope_thinkable() && scope_socket().exists(),
            lingers: user
                .as_ref()
                .is_some_and(|name| Path::new("/var/lib/systemd/linger").join(name).exists()),
            scope_off: env::scope_wanted().is_ok_and(|wanted| !wanted),
            pure_v2: Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
            kvm: File::options().write(true).open("/dev/kvm").is_ok(),
            oci_runtimes: ["runc", "crun", "youki"]
                .into_iter()
                .filter(|name| installed(name))
                .collect(),
            runsc: installed("runsc"),
            user,
        }
    }

    pub(crate) fn root(&self) -> bool {
        self.uid == 0
    }

    /// `sudo ` where it is needed in front of a command.
    pub(crate) fn sudo(&self) -> &'static str {
        if self.root() { "" } else { "sudo " }
    }
}

fn user_name(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// Whether a user has a range of subordinate ids that holds more than the workload's.
fn has_range(ranges: &str, user: Option<&str>, uid: u32) -> bool {
    ranges.lines().any(|line| {
        let fields: Vec<&str> = line.trim().split(':').collect();
        let [owner, _, count] = fields.as_slice() else {
            return false;
        };
        (Some(*owner) == user || owner.parse() == Ok(uid))
            && count.parse::<u32>().is_ok_and(|count| count > 1_001)
    })
}

/// Which container this is, by the marks that managers leave.
fn container(
    systemd: Option<&str>,
    docker: bool,
    podman: bool,
    first_groups: Option<&str>,
) -> Option<String> {
    if let Some(kind) = systemd.map(str::trim).filter(|kind| !kind.is_empty()) {
        return Some(kind.chars().take(64).collect());
    }
    let groups = first_groups.unwrap_or_default();
    let by_group = ["kubepods", "docker", "lxc", "machine.slice/libpod"]
        .into_iter()
        .find(|mark| groups.contains(mark));
    match (docker, podman, by_group) {
        (true, _, _) => Some("docker".to_owned()),
        (_, true, _) => Some("podman".to_owned()),
        (_, _, Some("kubepods")) => Some("kubernetes".to_owned()),
        (_, _, Some(mark)) => Some(mark.rsplit('/').next().unwrap_or(mark).to_owned()),
        (false, false, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_told_by_their_marks() {
        assert_eq!(container(None, false, false, Some("0::/init.scope")), None);
        assert_eq!(
            container(None, true, false, None).as_deref(),
            Some("docker")
        );
        assert_eq!(
            container(None, false, true, None).as_deref(),
            Some("podman")
        );
        assert_eq!(
            container(Some("lxc\n"), false, false, None).as_deref(),
            Some("lxc")
        );
        let pod = "0::/kubepods.slice/kubepods-burstable.slice/pod1";
        assert_eq!(
            container(None, false, false, Some(pod)).as_deref(),
            Some("kubernetes")
        );
    }

    #[test]
    fn ranges_belong_to_a_name_or_a_number() {
        let text = "ann:100000:65536\n1001:200000:65536\nbob:1:10\nbroken\n";
        assert!(has_range(text, Some("ann"), 5));
        assert!(has_range(text, None, 1001));
        assert!(!has_range(text, Some("bob"), 5));
        assert!(!has_range(text, None, 0));
        assert_eq!(
            user_name("x:x:0:0\nann:x:1000:1\n", 1000).as_deref(),
            Some("ann")
        );
    }

    #[test]
    fn this_host_can_be_read() {
        let facts = Facts::gather();
        assert!(!facts.kernel.is_empty());
        assert!(facts.pid_max.is_some());
    }
}
