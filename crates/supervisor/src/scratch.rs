//! Disks larger than memory allows: a sized ext4 image per sandbox, made by root.
//!
//! The image is `scratch/<sandbox>.img` and belongs to the ledger entry of the sandbox. Its size is
//! what bounds the workload, its number of inodes likewise.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold_core::id::SandboxId;
use leasehold_jail::loop_device::{self, LoopDevice};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal};

/// Bytes of one inode in the image's tables.
const INODE_BYTES: u64 = 256;

/// How long the program may take, on a host whose disk is busy.
pub(crate) const FORMAT_BOUND: Duration = Duration::from_secs(60);
/// How long a killed program may take to be gone.
const REAP: Duration = Duration::from_millis(250);

/// Where the program that makes file systems may be.
const MKFS: [&str; 4] = [
    "/usr/sbin/mkfs.ext4",
    "/sbin/mkfs.ext4",
    "/usr/bin/mkfs.ext4",
    "/bin/mkfs.ext4",
];

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    /// The file could not be made.
    #[error("disk image cannot be made")]
    File(#[source] io::Error),
    /// The program that makes the file system failed.
    #[error("`mkfs.ext4` failed: {0}")]
    Format(String),
    /// There is no block device for it.
    #[error("no loop device for the disk image")]
    Device(#[source] io::Error),
}

/// An image with a block device over it.
#[derive(Debug)]
pub(crate) struct Image {
    /// The block device; closed once it is mounted.
    pub(crate) device: Option<LoopDevice>,
}

/// Why this host cannot make images; `None` when it can.
pub(crate) fn missing(root: bool) -> Option<String> {
    if !root {
        return Some(
            "a disk above half of the memory is an image file, which takes root".to_owned(),
        );
    }
    if program().is_none() {
        return Some("`mkfs.ext4` is not installed (Debian package e2fsprogs)".to_owned());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("this host has no loop devices (`modprobe loop`)".to_owned());
    }
    None
}

fn program() -> Option<&'static str> {
    MKFS.into_iter().find(|path| Path::new(path).exists())
}

/// Where a sandbox's image is.
pub(crate) fn image_path(directory: &Path, sandbox: &SandboxId) -> PathBuf {
    directory.join(format!("{sandbox}.img"))
}

/// An image whose file system a program of the host is making. Dropping it ends the program; the file
/// stays for [`remove`].
#[derive(Debug)]
pub(crate) struct Formatting {
    image: File,
    child: Child,
    pidfd: OwnedFd,
}

impl Formatting {
    /// Begins an image that holds `bytes` of files and `inodes` files. The program's end makes
    /// [`Formatting::as_fd`] readable.
    ///
    /// # Errors
    /// When the file or the program cannot be made. What was made by then stays for [`remove`].
    pub(crate) fn begin(path: &Path, bytes: u64, inodes: u64) -> Result<Self, ImageError> {
        let image = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(ImageError::File)?;
        // Group descriptors, bitmaps and directories beside the inode tables; blocks are 4 KiB.
        let size = bytes + inodes * INODE_BYTES + bytes / 64 + (1 << 20);
        image
            .set_len(size.div_ceil(4_096) * 4_096)
            .map_err(ImageError::File)?;
        let mkfs = program().ok_or_else(|| ImageError::Format("it is not installed".to_owned()))?;
        let mut command = Command::new(mkfs);
        command
            .args(["-q", "-F", "-m", "0", "-b", "4096", "-I", "256"])
            .args(["-O", "^has_journal,^resize_inode"])
            .args(["-E", "nodiscard,lazy_itable_init=1"])
            .args(["-N", &inodes.to_string()])
            .arg(path);
        Self::of(image, &mut command)
    }

    fn of(image: File, command: &mut Command) -> Result<Self, ImageError> {
        let failed = |error: io::Error| ImageError::Format(error.to_string());
        let child = command
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let pid = Pid::from_child(&child);
        // Not waited for, so the number is still its own.
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty());
        Ok(Self {
            image,
            child,
            pidfd: pidfd.map_err(|errno| failed(errno.into()))?,
        })
    }

    /// The program's number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the program.
    pub(crate) fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Takes what the program made, once it has ended.
    ///
    /// # Errors
    /// What the program said, or that no loop device is free.
    pub(crate) fn finish(mut self) -> Result<Image, ImageError> {
        let failed = |error: io::Error| ImageError::Format(error.to_string());
        let status = self.child.try_wait().map_err(failed)?;
        if !status.is_some_and(|status| status.success()) {
            return Err(ImageError::Format(self.said()));
        }
        let device = loop_device::attach(self.image.as_fd()).map_err(ImageError::Device)?;
        Ok(Image {
            device: Some(device),
        })
    }

    /// The first words it wrote. Never waits.
    fn said(&mut self) -> String {
        let mut text = [0; 300];
        let got = self.child.stderr.as_ref().map(|stderr| {
            let _ = rustix::fs::fcntl_setfl(stderr, rustix::fs::OFlags::NONBLOCK);
            rustix::io::read(stderr, &mut text).unwrap_or(0)
        });
        let text = String::from_utf8_lossy(&text[..got.unwrap_or(0)]);
        match text.trim() {
            "" => "it was ended".to_owned(),
            text => text.to_owned(),
        }
    }
}

impl AsFd for Formatting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for Formatting {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
            let limit = rustix::event::Timespec::try_from(REAP).ok();
            let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
            let _ = rustix::io::retry_on_intr(|| poll(&mut polled, limit.as_ref()));
            let _ = self.child.try_wait();
        }
    }
}

/// Removes an image and frees its block device. Idempotent. Says what is left.
pub(crate) fn remove(path: &Path) -> Result<(), String> {
    let busy = loop_device::over(path);
    for number in &busy {
        loop_device::detach(*number);
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(format!("the image cannot be removed: {error}"));
        }
        _ => {}
    }
    match loop_device::over(path).first() {
        Some(number) => Err(format!("loop device {number} is still in use")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch_directory::ScratchDirectory;
    use std::time::Instant;

    #[test]
    fn an_image_is_made_and_leaves_nothing() {
        let root = rustix::process::geteuid().is_root();
        if let Some(reason) = missing(root) {
            eprintln!("SKIP an_image_is_made_and_leaves_nothing: {reason}");
            return;
        }
        let place = ScratchDirectory::new("image");
        let id = SandboxId::from_entropy(&[5; 13]);
        let path = image_path(place.path(), &id);
        let formatting = Formatting::begin(&path, 8 << 20, 64).unwrap();
        await_end(&formatting);
        let image = match formatting.finish() {
            Ok(image) => image,
            Err(ImageError::Device(error)) => {
                let _ = remove(&path);
                eprintln!("SKIP an_image_is_made_and_leaves_nothing: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(loop_device::over(&path).len(), 1);
        drop(image);
        let begun = Instant::now();
        while remove(&path).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(5));
            std::thread::yield_now();
        }
        assert!(!path.exists());
        assert_eq!(remove(&path), Ok(()));
    }

    fn await_end(formatting: &Formatting) {
        let mut polled = [PollFd::new(&formatting.pidfd, PollFlags::IN)];
        poll(&mut polled, None).unwrap();
    }

    fn program_of(place: &ScratchDirectory, script: &str) -> Formatting {
        let image = File::create(place.path().join("image")).unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        Formatting::of(image, &mut command).unwrap()
    }

    #[test]
    fn a_program_that_fails_is_quoted_and_one_that_hangs_is_not_waited_for() {
        let place = ScratchDirectory::new("format");
        let failing = program_of(&place, "echo no room >&2; exit 1");
        await_end(&failing);
        let error = failing.finish().unwrap_err();
        assert_eq!(error.to_string(), "`mkfs.ext4` failed: no room");
        let begun = Instant::now();
        let hanging = program_of(&place, "exec sleep 60");
        let pid = hanging.pid();
        assert!(Path::new(&format!("/proc/{pid}")).exists());
        drop(hanging);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}
