//! Whether namespaces are still there, whoever holds them: a process, a descriptor, a mount, a socket.
//!
//! Told by their file handles (Linux 6.18). A handle keeps nothing alive, and no two namespaces of one boot have
//! the same. Of a process's namespaces those are looked at that the kernel takes down at once; its process id and
//! user namespace live on for tens of milliseconds by themselves.

#![allow(
    unsafe_code,
    reason = "there is no safe binding for file handles and for the namespaces of a pidfd"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The root of the file system of namespaces, for `open_by_handle_at(2)`.
const ROOT: RawFd = -10_003;
/// Most bytes of a handle; the kernel's have 16.
const BYTES_MAX: usize = 32;
/// Most characters of one handle as text.
const TEXT_MAX: usize = 128;

/// A kind of namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Mounts.
    Mount,
    /// Network.
    Network,
    /// System V IPC and POSIX queues.
    Ipc,
    /// Host name.
    Uts,
    /// Control groups.
    Cgroup,
}

impl Kind {
    /// All that are looked at.
    pub const ALL: [Self; 5] = [
        Self::Mount,
        Self::Network,
        Self::Ipc,
        Self::Uts,
        Self::Cgroup,
    ];

    /// As `/proc/PID/ns` has it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Mount => "mnt",
            Self::Network => "net",
            Self::Ipc => "ipc",
            Self::Uts => "uts",
            Self::Cgroup => "cgroup",
        }
    }

    /// The request that opens it from a pidfd.
    fn request(self) -> libc::c_ulong {
        let number = match self {
            Self::Cgroup => 1,
            Self::Ipc => 2,
            Self::Mount => 3,
            Self::Network => 4,
            Self::Uts => 10,
        };
        0xff << 8 | number
    }
}

/// The kernel's `struct file_handle`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Handle {
    length: u32,
    sort: i32,
    bytes: [u8; BYTES_MAX],
}

impl Handle {
    fn of(namespace: &OwnedFd) -> io::Result<Self> {
        let mut handle = Self {
            length: BYTES_MAX as u32,
            sort: 0,
            bytes: [0; BYTES_MAX],
        };
        let mut mount: libc::c_int = 0;
        // SAFETY: the kernel writes at most `length` bytes after the head, and one number; both live through
        // the call.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                namespace.as_raw_fd(),
                c"".as_ptr(),
                &raw mut handle,
                &raw mut mount,
                libc::AT_EMPTY_PATH,
            )
        };
        match answer {
            0 if handle.length as usize <= BYTES_MAX => Ok(handle),
            0 => Err(io::ErrorKind::InvalidData.into()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether it still names something.
    fn there(&self) -> io::Result<bool> {
        // SAFETY: the kernel reads `length` bytes after the head, which are there.
        let number = unsafe {
            libc::syscall(
                libc::SYS_open_by_handle_at,
                ROOT,
                std::ptr::from_ref(self),
                libc::O_RDONLY | libc::O_CLOEXEC,
            )
        };
        if let Ok(number) = RawFd::try_from(number)
            && number >= 0
        {
            // SAFETY: the kernel just gave this descriptor to us; it is closed at once.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ESTALE) => Ok(false),
            // It was found, and may not be entered by us.
            Some(libc::EPERM | libc::EACCES) => Ok(true),
            _ => Err(error),
        }
    }

    fn text(&self) -> String {
        let bytes = self.bytes.iter().take(self.length as usize);
        let hex: String = bytes.map(|byte| format!("{byte:02x}")).collect();
        format!("{}.{hex}", self.sort)
    }

    fn parse(text: &str) -> Option<Self> {
        let (sort, hex) = text.split_once('.')?;
        let length = hex.len() / 2;
        if length == 0 || length > BYTES_MAX || hex.len() != length * 2 || !hex.is_ascii() {
            return None;
        }
        let mut bytes = [0; BYTES_MAX];
        for (at, byte) in bytes.iter_mut().take(length).enumerate() {
            *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Self {
            length: u32::try_from(length).ok()?,
            sort: sort.parse().ok()?,
            bytes,
        })
    }
}

/// Handles of the namespaces of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handles(Vec<(Kind, Handle)>);

impl Handles {
    /// Those of a living process, by its pidfd.
    ///
    /// # Errors
    /// When the process is gone, or the kernel gives no handles of namespaces (before 6.18).
    pub fn of(process: impl AsFd) -> io::Result<Self> {
        let process = process.as_fd();
        let handle = |kind: Kind| {
            // SAFETY: the request takes no argument and touches no memory of ours.
            let number =
                unsafe { libc::syscall(libc::SYS_ioctl, process.as_raw_fd(), kind.request(), 0) };
            let Some(number) = RawFd::try_from(number).ok().filter(|number| *number >= 0) else {
                return Err(io::Error::last_os_error());
            };
            // SAFETY: the kernel just gave this descriptor to us.
            let namespace = unsafe { OwnedFd::from_raw_fd(number) };
            Ok((kind, Handle::of(&namespace)?))
        };
        Kind::ALL
            .into_iter()
            .map(handle)
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// Which of them are still there.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn there(&self) -> io::Result<Vec<Kind>> {
        let mut there = Vec::new();
        for (kind, handle) in &self.0 {
            if handle.there()? {
                there.push(*kind);
            }
        }
        Ok(there)
    }

    /// As one line, for a process after this one. Means nothing after the host was started anew.
    #[must_use]
    pub fn to_text(&self) -> String {
        let each = self
            .0
            .iter()
            .map(|(kind, handle)| format!("{}:{}", kind.word(), handle.text()));
        each.collect::<Vec<_>>().join(" ")
    }

    /// From a line as [`Handles::to_text`] gives it; `None` for any other.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > Kind::ALL.len() * TEXT_MAX {
            return None;
        }
        let each = text.split(' ').map(|one| {
            let (word, handle) = one.split_once(':')?;
            let kind = Kind::ALL.into_iter().find(|kind| kind.word() == word)?;
            Some((kind, Handle::parse(handle)?))
        });
        each.collect::<Option<_>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::BorrowedFd;
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    /// A process in namespaces of its own, killed on drop.
    struct Apart(Child);

    impl Apart {
        fn new() -> Option<Self> {
            let ours = std::fs::read_link("/proc/self/ns/net").unwrap();
            let mut command = Command::new("unshare");
            let child = command
                .args(["-m", "-n", "-i", "-u", "-C", "sleep", "600"])
                .spawn();
            let apart = Self(child.ok()?);
            let until = Instant::now() + Duration::from_secs(30);
            while Instant::now() < until {
                let comm = std::fs::read_to_string(apart.proc("comm")).unwrap_or_default();
                let net = std::fs::read_link(apart.proc("ns/net"));
                if comm.trim() == "sleep" && net.is_ok_and(|net| net != ours) {
                    return Some(apart);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            None
        }

        fn proc(&self, name: &str) -> String {
            format!("/proc/{}/{name}", self.0.id())
        }

        fn handles(&self) -> Handles {
            let pid = Pid::from_raw(self.0.id().cast_signed()).unwrap();
            Handles::of(pidfd_open(pid, PidfdFlags::empty()).unwrap()).unwrap()
        }
    }

    impl Drop for Apart {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn supported() -> bool {
        let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        let supported = Handles::of(own).is_ok() && rustix::process::geteuid().is_root();
        if !supported {
            eprintln!("SKIP namespaces: needs root and Linux 6.18");
        }
        supported
    }

    fn until_there(handles: &Handles, wanted: &[Kind]) {
        let until = Instant::now() + Duration::from_secs(30);
        while handles.there().unwrap() != wanted {
            assert!(Instant::now() < until, "{:?}", handles.there());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn namespaces_are_there_as_long_as_anything_holds_them() {
        if !supported() {
            return;
        }
        let apart = Apart::new().expect("a process apart");
        let handles = apart.handles();
        assert_eq!(Handles::parse(&handles.to_text()), Some(handles.clone()));
        assert_eq!(handles.there().unwrap(), Kind::ALL);
        let held = std::fs::File::open(apart.proc("ns/uts")).unwrap();
        drop(apart);
        until_there(&handles, &[Kind::Uts]);
        drop(held);
        until_there(&handles, &[]);
    }

    #[test]
    fn what_is_no_line_of_handles_is_none() {
        for text in [
            "",
            "mnt",
            "mnt:241.",
            "mnt:241.0",
            "mnt:x.00",
            "pid:241.00",
            "mnt:241.zz",
        ] {
            assert_eq!(Handles::parse(text), None, "{text}");
        }
        assert_eq!(Handles::parse(&"mnt:241.00 ".repeat(200)), None);
    }

    #[test]
    fn what_has_no_namespaces_has_no_handles() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let borrowed: BorrowedFd<'_> = file.as_fd();
        assert!(Handles::of(borrowed).is_err());
    }
}
