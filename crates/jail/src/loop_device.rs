//! Block devices over image files, for disks larger than memory allows.
//!
//! A device is set to free itself with its last user: a supervisor that dies leaves none behind
//! once the mount is gone. Nothing here makes or removes the image.

#![allow(unsafe_code, reason = "loop device ioctls have no safe binding")]

use std::fs;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};

const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CLR_FD: libc::c_ulong = 0x4C01;
const AUTOCLEAR: u32 = 4;

/// Most attempts at a free device: another process may take the number between two calls.
const ATTEMPTS: u32 = 16;

/// `struct loop_info64` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of the kernel.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// A device over an image.
#[derive(Debug)]
pub struct LoopDevice {
    /// The block device, open.
    pub device: OwnedFd,
    /// Its number: `/dev/loop<number>`.
    pub number: u32,
}

/// Puts a block device over an open image file. The device frees itself when it is closed and no
/// longer mounted.
///
/// # Errors
/// When this host has no loop devices, or none is free.
pub fn attach(image: BorrowedFd<'_>) -> io::Result<LoopDevice> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let control = open("/dev/loop-control", flags, Mode::empty())?;
    let mut last = io::Error::from(io::ErrorKind::ResourceBusy);
    for _ in 0..ATTEMPTS {
        // SAFETY: takes no argument and touches no memory.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        let number = u32::try_from(number).map_err(|_| io::Error::last_os_error())?;
        let device = open(device_path(number), flags, Mode::empty())?;
        match configure(&device, image) {
            Ok(()) => return Ok(LoopDevice { device, number }),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn configure(device: &OwnedFd, image: BorrowedFd<'_>) -> io::Result<()> {
    let config = Config {
        fd: image.as_raw_fd().cast_unsigned(),
        block_size: 0,
        info: Info {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: AUTOCLEAR,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    const { assert!(size_of::<Config>() == 304) };
    // SAFETY: `config` is the structure this call reads, alive for its duration.
    let answer = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn device_path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

/// Numbers of the devices over this image, by what the kernel says of each.
#[must_use]
pub fn over(image: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/sys/block") else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix("loop")?.parse().ok());
        let backing = fs::read_to_string(entry.path().join("loop/backing_file"));
        if let (Some(number), Ok(backing)) = (number, backing) {
            let path = backing.trim_end_matches('\n');
            if Path::new(path.trim_end_matches(" (deleted)")) == image {
                found.push(number);
            }
        }
    }
    found
}

/// Frees a device, at once or with its last user. Idempotent.
pub fn detach(number: u32) {
    if let Ok(device) = open(
        device_path(number),
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    ) {
        // SAFETY: takes no argument and touches no memory. Its answer does not matter: a device
        // that is free already or still in use is seen by `over`.
        unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    #[test]
    fn a_device_goes_with_its_last_user() {
        let path = std::env::temp_dir().join(format!("leasehold-loop-{}", std::process::id()));
        let image = fs::File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        image.set_len(1 << 20).unwrap();
        match attach(image.as_fd()) {
            Ok(device) => {
                assert_eq!(over(&path), [device.number]);
                drop(device);
                let begun = Instant::now();
                while !over(&path).is_empty() {
                    assert!(begun.elapsed() < Duration::from_secs(5), "it stays");
                    std::thread::yield_now();
                }
            }
            Err(error) => eprintln!("SKIP a_device_goes_with_its_last_user: {error}"),
        }
        fs::remove_file(&path).unwrap();
    }
}
