//! Disks larger than memory allows: a sized ext4 image per sandbox, made by root.
//!
//! The image is `scratch/<sandbox>.img` and belongs to the ledger entry of the sandbox. Its size is
//! what bounds the workload, its number of inodes likewise.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use leasehold_core::id::SandboxId;
use leasehold_jail::loop_device::{self, LoopDevice};

/// Bytes of one inode in the image's tables.
const INODE_BYTES: u64 = 256;

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

impl Image {
    /// Makes an image that holds `bytes` of files and `inodes` files, owned by `owner` at its root.
    ///
    /// # Errors
    /// When the disk is full, a tool is missing, or no loop device is free. What was made by then
    /// stays for [`remove`].
    pub(crate) fn make(path: &Path, bytes: u64, inodes: u64) -> Result<Self, ImageError> {
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
        let made = Command::new(mkfs)
            .args(["-q", "-F", "-m", "0", "-b", "4096", "-I", "256"])
            .args([
                "-O",
                "^has_journal,^resize_inode",
                "-E",
                "nodiscard,lazy_itable_init=1",
            ])
            .args(["-N", &inodes.to_string()])
            .arg(path)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .output()
            .map_err(|error| ImageError::Format(error.to_string()))?;
        if !made.status.success() {
            let text = String::from_utf8_lossy(&made.stderr);
            return Err(ImageError::Format(text.trim().chars().take(300).collect()));
        }
        let device = loop_device::attach(image.as_fd()).map_err(ImageError::Device)?;
        Ok(Self {
            device: Some(device),
        })
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
    use std::time::{Duration, Instant};

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
        let image = match Image::make(&path, 8 << 20, 64) {
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
}
