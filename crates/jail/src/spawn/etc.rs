//! The curated `/etc` of every sandbox: written texts for what would name the host or its users,
//! read-only binds of whole directories that programs need, and bounded copies of single files.
//! Only what everybody on the host may read is shown.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use crate::mount::{self, PLAIN, Reach};

/// Names below `/etc` that are copied where the host has them. A `*` stands for any rest.
const COPIED: &[&str] = &[
    "ImageMagick-*",
    "R",
    "alternatives",
    "bash.bashrc",
    "ca-certificates*",
    "crypto-policies",
    "debian_version",
    "fonts",
    "gai.conf",
    "host.conf",
    "inputrc",
    "java-*-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "lsb-release",
    "magic",
    "magic.mime",
    "mime.types",
    "os-release",
    "papersize",
    "perl",
    "php",
    "pki",
    "protocols",
    "python3*",
    "rpc",
    "services",
    "ssl",
    "terminfo",
    "timezone",
];
/// Directories shown as they are, by a read-only bind: they have hundreds of entries, and copying
/// them would be most of a spawner's start.
const BOUND: &[&str] = &[
    "alternatives",
    "fonts",
    "java-*-openjdk",
    "perl",
    "php",
    "python3*",
    "certs",
];
/// Names that are never entered, at any depth.
const REFUSED: &[&str] = &["private"];
/// Most files, directories and links copied.
const ENTRIES_MAX: u32 = 16_384;
/// Most bytes of one file; a longer one is left out.
const FILE_MAX: u64 = 4 << 20;
/// Most bytes copied in all; what is over is left out.
const BYTES_MAX: u64 = 32 << 20;
/// Deepest directory.
const DEPTH_MAX: u32 = 8;

/// The files that say who a sandbox is: every one has them, those of images too.
pub(super) const OWN: [(&CStr, &str); 3] = [
    (
        c"hosts",
        "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    ),
    (c"hostname", "sandbox\n"),
    (c"resolv.conf", ""),
];

/// The other written files.
fn written(shell: &str) -> [(&'static CStr, String); 6] {
    [
        (
            c"passwd",
            format!(
                "root:x:0:0:root:/root:/usr/sbin/nologin\n\
                 user:x:1000:1000:user:/home/user:{shell}\n\
                 nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
            ),
        ),
        (
            c"group",
            "root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n".into(),
        ),
        (
            c"nsswitch.conf",
            "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n\
             protocols: files\nservices: files\nethers: files\nrpc: files\n"
                .into(),
        ),
        (
            c"profile",
            "PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin\nexport PATH\n"
                .into(),
        ),
        (c"shells", "/bin/sh\n/bin/bash\n".into()),
        (c"environment", String::new()),
    ]
}

/// Fills a new, empty `/etc` from the host's.
///
/// # Errors
/// When the new tree cannot be written. What cannot be read of the host's is left out.
pub(super) fn fill(host: BorrowedFd<'_>, new: BorrowedFd<'_>, bash: bool) -> Result<(), Errno> {
    let shell = if bash { "/bin/bash" } else { "/bin/sh" };
    let readable = Mode::from_raw_mode(0o644);
    for (name, text) in written(shell) {
        write(new, name, text.as_bytes(), readable)?;
    }
    for (name, text) in OWN {
        write(new, name, text.as_bytes(), readable)?;
    }
    rustix::fs::symlinkat(c"/proc/self/mounts", new, c"mtab")?;
    let mut copy = Copy {
        entries: 0,
        bytes: 0,
    };
    for name in names(host)? {
        if COPIED.iter().any(|pattern| fits(pattern, &name)) {
            copy.entry(host, new, &name, 0)?;
        }
    }
    Ok(())
}

fn fits(pattern: &str, name: &CStr) -> bool {
    let name = name.to_bytes();
    match pattern.split_once('*') {
        Some((head, tail)) => {
            name.len() >= head.len() + tail.len()
                && name.starts_with(head.as_bytes())
                && name.ends_with(tail.as_bytes())
        }
        None => name == pattern.as_bytes(),
    }
}

/// The names in a directory, but `.` and `..`, sorted.
pub(super) fn names(directory: BorrowedFd<'_>) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    // Opened anew: what we hold may be a place and not a readable directory.
    let readable = open(directory, c".", OFlags::RDONLY | OFlags::DIRECTORY)?;
    for entry in Dir::new(readable)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_owned());
        }
        if names.len() > ENTRIES_MAX as usize {
            break;
        }
    }
    names.sort();
    Ok(names)
}

/// Makes a file with contents in our own tree, at a path whose directories are there.
pub(super) fn write(
    directory: BorrowedFd<'_>,
    name: &CStr,
    mut text: &[u8],
    mode: Mode,
) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(directory, name, flags, mode)?;
    while !text.is_empty() {
        match rustix::io::write(&file, text) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => text = &text[written..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

struct Copy {
    entries: u32,
    bytes: u64,
}

impl Copy {
    fn entry(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &CStr,
        depth: u32,
    ) -> Result<(), Errno> {
        let Ok(stat) = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW) else {
            return Ok(());
        };
        if self.entries >= ENTRIES_MAX
            || depth > DEPTH_MAX
            || REFUSED.iter().any(|refused| fits(refused, name))
        {
            return Ok(());
        }
        self.entries += 1;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                if let Ok(target) = rustix::fs::readlinkat(from, name, Vec::new()) {
                    rustix::fs::symlinkat(target.as_c_str(), to, name)?;
                }
                Ok(())
            }
            FileType::RegularFile if stat.st_mode & 0o004 != 0 => self.file(from, to, name),
            FileType::Directory if stat.st_mode & 0o005 == 0o005 => {
                let Ok(inner) = open(from, name, OFlags::RDONLY | OFlags::DIRECTORY) else {
                    return Ok(());
                };
                rustix::fs::mkdirat(to, name, Mode::from_raw_mode(0o755))?;
                if BOUND.iter().any(|pattern| fits(pattern, name)) {
                    return bind(inner.as_fd(), to, name);
                }
                let made = open(to, name, OFlags::PATH | OFlags::DIRECTORY)?;
                let made_names = names(inner.as_fd())?;
                for inner_name in made_names {
                    self.entry(inner.as_fd(), made.as_fd(), &inner_name, depth + 1)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn file(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        // Not blocking, should the name have become a pipe meanwhile.
        let Ok(file) = open(from, name, OFlags::RDONLY | OFlags::NONBLOCK) else {
            return Ok(());
        };
        let stat: Stat = rustix::fs::fstat(&file)?;
        let size = stat.st_size.unsigned_abs();
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !regular || size > FILE_MAX || self.bytes + size > BYTES_MAX {
            return Ok(());
        }
        // As long as it was a moment ago: one that grows meanwhile is cut.
        let mut contents = vec![0; size as usize];
        let mut got = 0;
        while got < contents.len() {
            match rustix::io::read(&file, &mut contents[got..]) {
                Ok(0) => break,
                Ok(more) => got += more,
                Err(Errno::INTR) => {}
                Err(_) => return Ok(()),
            }
        }
        self.bytes += got as u64;
        let mode = Mode::from_raw_mode(0o644 | (stat.st_mode & 0o111));
        write(to, name, &contents[..got], mode)
    }
}

/// Binds a directory of the host read-only at an empty one of ours.
fn bind(source: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let tree = mount::clone_at(source, Reach::Tree)?;
    let flags = PLAIN | MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    mount::restrict(&tree, Reach::Tree, flags)?;
    mount::attach(&tree, to, name)
}

fn open(directory: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::openat2(
        directory,
        name,
        flags | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_whole_names() {
        assert!(fits("python3*", c"python3.11"));
        assert!(fits("java-*-openjdk", c"java-17-openjdk"));
        assert!(!fits("ssl", c"ssl-old") && !fits("java-*-openjdk", c"java-openjdk"));
    }
}
