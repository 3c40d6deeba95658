//! The child that watches a directory with the user's rights.
//!
//! It tells what happens as typed frames, and answers one question: whether everything that happened
//! up to now has been told. It runs until its socket closes or it is killed.

use std::collections::{BTreeMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use leasehold_protocol::envd::code::{CallError, Code};
use leasehold_protocol::envd::filesystem::{EventType, FilesystemEvent};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::acting::{refused, send_all};
use super::users::Names;
use super::{bounds, entry};

/// Frame kinds: one byte, then a little-endian `u32` length, then JSON.
pub(super) const STARTED: u8 = b'S';
/// Something happened; a [`FilesystemEvent`].
pub(super) const EVENT: u8 = b'E';
/// Everything up to the question has been told.
pub(super) const FLUSHED: u8 = b'F';
/// The watch is over; a [`CallError`].
pub(super) const FAILED: u8 = b'X';

/// What to watch.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Absolute path.
    pub(super) path: String,
    /// With everything below.
    pub(super) recursive: bool,
    /// Whether events carry the entry.
    pub(super) include_entry: bool,
    /// Whether network file systems may be watched.
    pub(super) allow_network: bool,
}

const WATCHED: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// Runs the watch. The exit status is of no interest to anybody.
pub(super) fn run(socket: &OwnedFd, plan: Plan) -> u8 {
    let outcome = Watch::new(socket, plan).and_then(|mut watch| watch.serve());
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            let text = serde_json::to_vec(&error).unwrap_or_default();
            u8::from(send(socket, FAILED, &text).is_err())
        }
    }
}

fn send(socket: &OwnedFd, kind: u8, text: &[u8]) -> Result<(), CallError> {
    let mut frame = Vec::with_capacity(5 + text.len());
    frame.push(kind);
    frame.extend_from_slice(&(text.len() as u32).to_le_bytes());
    frame.extend_from_slice(text);
    send_all(socket, &frame).map_err(|error| CallError::new(Code::Canceled, error.to_string()))
}

struct Watch<'a> {
    socket: &'a OwnedFd,
    plan: Plan,
    inotify: OwnedFd,
    /// Path below the root by watch descriptor; the root's is empty.
    directories: BTreeMap<i32, String>,
    root: i32,
    /// Entries told when their directory was found full; their own event may still come.
    told: HashSet<(i32, String)>,
    names: Names,
}

/// One change as read from the kernel.
struct Change {
    directory: i32,
    flags: ReadFlags,
    name: Option<String>,
}

impl<'a> Watch<'a> {
    fn new(socket: &'a OwnedFd, plan: Plan) -> Result<Self, CallError> {
        check(&plan)?;
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map_err(|errno| limited("cannot watch", errno))?;
        let mut watch = Self {
            socket,
            plan,
            inotify,
            directories: BTreeMap::new(),
            root: -1,
            told: HashSet::new(),
            names: Names::load(),
        };
        watch.root = watch.add("")?.ok_or_else(|| {
            let path = &watch.plan.path;
            CallError::new(Code::NotFound, format!("path {path} not found"))
        })?;
        if watch.plan.recursive {
            watch.add_below(String::new(), false)?;
        }
        send(socket, STARTED, b"{}")?;
        Ok(watch)
    }

    fn path(&self, relative: &str) -> String {
        match relative {
            "" => self.plan.path.clone(),
            relative => format!("{}/{relative}", self.plan.path.trim_end_matches('/')),
        }
    }

    /// Watches one directory; none when it is gone or not the user's to see.
    fn add(&mut self, relative: &str) -> Result<Option<i32>, CallError> {
        if self.directories.len() >= bounds::WATCHED {
            let most = bounds::WATCHED;
            let message = format!("more than {most} directories to watch");
            return Err(CallError::new(Code::ResourceExhausted, message));
        }
        let path = self.path(relative);
        let mut flags = WATCHED;
        if !relative.is_empty() {
            flags |= WatchFlags::DONT_FOLLOW;
        }
        match inotify::add_watch(&self.inotify, path.as_str(), flags) {
            Ok(number) => {
                self.directories.insert(number, relative.to_owned());
                Ok(Some(number))
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP)
                if !relative.is_empty() =>
            {
                Ok(None)
            }
            Err(errno) => Err(limited(&format!("cannot watch {path}"), errno)),
        }
    }

    /// Watches everything below a directory that is watched already. With `tell`, what is found
    /// there was made before we watched, and is told as made.
    fn add_below(&mut self, top: String, tell: bool) -> Result<(), CallError> {
        let mut waiting = vec![top];
        while let Some(directory) = waiting.pop() {
            for (name, is_directory) in self.entries(&directory) {
                let relative = join(&directory, &name);
                if tell {
                    let number = self.number(&directory);
                    self.told.insert((number, name));
                    self.tell(&relative, EventType::Create)?;
                    if !is_directory {
                        self.tell(&relative, EventType::Write)?;
                    }
                }
                if is_directory && self.add(&relative)?.is_some() {
                    waiting.push(relative);
                }
            }
        }
        Ok(())
    }

    fn number(&self, relative: &str) -> i32 {
        let found = self.directories.iter().find(|(_, path)| *path == relative);
        found.map_or(-1, |(number, _)| *number)
    }

    fn entries(&self, directory: &str) -> Vec<(String, bool)> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = if directory.is_empty() {
            rustix::fs::openat(
                CWD,
                self.path("").as_str(),
                flags - OFlags::NOFOLLOW,
                Mode::empty(),
            )
        } else {
            rustix::fs::openat(CWD, self.path(directory).as_str(), flags, Mode::empty())
        };
        let Ok(entries) = opened.and_then(Dir::new) else {
            return Vec::new();
        };
        entries
            .filter_map(Result::ok)
            .filter(|entry| !matches!(entry.file_name().to_bytes(), b"." | b".."))
            .take(bounds::LISTED)
            .map(|entry| {
                let name = entry.file_name().to_string_lossy().into_owned();
                (name, entry.file_type() == FileType::Directory)
            })
            .collect()
    }

    fn tell(&self, relative: &str, kind: EventType) -> Result<(), CallError> {
        let there = matches!(
            kind,
            EventType::Create | EventType::Write | EventType::Chmod
        );
        let entry = (self.plan.include_entry && there)
            .then(|| entry::read(&self.path(relative), &self.names).ok())
            .flatten();
        let name = if relative.is_empty() { "." } else { relative };
        let event = FilesystemEvent {
            name: name.to_owned(),
            kind,
            entry,
        };
        send(
            self.socket,
            EVENT,
            &serde_json::to_vec(&event).unwrap_or_default(),
        )
    }

    fn serve(&mut self) -> Result<(), CallError> {
        loop {
            let (changed, asked) = {
                let mut fds = [
                    PollFd::new(&self.inotify, PollFlags::IN),
                    PollFd::new(self.socket, PollFlags::IN),
                ];
                match poll(&mut fds, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(errno) => return Err(refused("cannot wait", errno)),
                }
                (!fds[0].revents().is_empty(), !fds[1].revents().is_empty())
            };
            if changed {
                self.drain()?;
            }
            if asked {
                let mut question = [0];
                match rustix::io::read(self.socket, &mut question[..]) {
                    Ok(0) | Err(_) => return Ok(()),
                    Ok(_) => {}
                }
                self.drain()?;
                send(self.socket, FLUSHED, b"")?;
            }
        }
    }

    /// Tells everything the kernel has.
    fn drain(&mut self) -> Result<(), CallError> {
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        loop {
            let changes = read_changes(self.inotify.as_fd(), &mut buffer)?;
            if changes.is_empty() {
                return Ok(());
            }
            for change in changes {
                self.changed(change)?;
            }
        }
    }

    fn changed(&mut self, change: Change) -> Result<(), CallError> {
        let flags = change.flags;
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            let message = "more happened than could be kept: events were lost";
            return Err(CallError::new(Code::DataLoss, message));
        }
        if flags.contains(ReadFlags::IGNORED) {
            self.directories.remove(&change.directory);
            return Ok(());
        }
        let Some(directory) = self.directories.get(&change.directory).cloned() else {
            return Ok(());
        };
        let Some(name) = change.name else {
            return self.root_changed(change.directory, flags);
        };
        let relative = join(&directory, &name);
        let told = self.told.remove(&(change.directory, name));
        let is_directory = flags.contains(ReadFlags::ISDIR);
        if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            if !told {
                self.tell(&relative, EventType::Create)?;
            }
            if is_directory && self.plan.recursive && !told && self.add(&relative)?.is_some() {
                let moved = flags.contains(ReadFlags::MOVED_TO);
                self.add_below(relative.clone(), !moved)?;
            }
        }
        if flags.contains(ReadFlags::MOVED_FROM) {
            self.tell(&relative, EventType::Rename)?;
            self.forget(&relative);
        }
        for (flag, kind) in [
            (ReadFlags::ATTRIB, EventType::Chmod),
            (ReadFlags::MODIFY, EventType::Write),
            (ReadFlags::DELETE, EventType::Remove),
        ] {
            if flags.contains(flag) {
                self.tell(&relative, kind)?;
            }
        }
        Ok(())
    }

    /// The watched directory itself changed. Of those below it their parents tell.
    fn root_changed(&self, directory: i32, flags: ReadFlags) -> Result<(), CallError> {
        if directory != self.root {
            return Ok(());
        }
        for (flag, kind) in [
            (ReadFlags::MOVE_SELF, EventType::Rename),
            (ReadFlags::ATTRIB, EventType::Chmod),
            (ReadFlags::DELETE_SELF, EventType::Remove),
        ] {
            if flags.contains(flag) {
                self.tell("", kind)?;
            }
        }
        Ok(())
    }

    /// A directory was moved away: it and what is below it is not ours any more.
    fn forget(&mut self, relative: &str) {
        let below = format!("{relative}/");
        let gone: Vec<i32> = self
            .directories
            .iter()
            .filter(|(_, path)| *path == relative || path.starts_with(&below))
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            self.directories.remove(&number);
            let _ = inotify::remove_watch(&self.inotify, number);
        }
    }
}

fn join(directory: &str, name: &str) -> String {
    match directory {
        "" => name.to_owned(),
        directory => format!("{directory}/{name}"),
    }
}

fn read_changes(
    inotify: std::os::fd::BorrowedFd<'_>,
    buffer: &mut [MaybeUninit<u8>],
) -> Result<Vec<Change>, CallError> {
    let mut reader = inotify::Reader::new(inotify, buffer);
    let mut changes = Vec::new();
    loop {
        match reader.next() {
            Ok(event) => changes.push(Change {
                directory: event.wd(),
                flags: event.events(),
                name: event
                    .file_name()
                    .map(|name| name.to_string_lossy().into_owned()),
            }),
            Err(Errno::AGAIN) => return Ok(changes),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(refused("cannot read changes", errno)),
        }
        if reader.is_buffer_empty() {
            return Ok(changes);
        }
    }
}

/// Limits of the kernel have their own words: a full disk is something else.
fn limited(what: &str, errno: Errno) -> CallError {
    match errno {
        Errno::NOSPC | Errno::MFILE | Errno::NOMEM => CallError::new(
            Code::ResourceExhausted,
            format!("{what}: the system's limit of watches is reached"),
        ),
        errno => refused(what, errno),
    }
}

fn check(plan: &Plan) -> Result<(), CallError> {
    let path = &plan.path;
    let stat = rustix::fs::stat(path.as_str()).map_err(|errno| match errno {
        Errno::NOENT | Errno::NOTDIR => {
            CallError::new(Code::NotFound, format!("path {path} not found"))
        }
        errno => refused(&format!("cannot watch {path}"), errno),
    })?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(CallError::new(
            Code::InvalidArgument,
            format!("path {path} not a directory"),
        ));
    }
    if plan.allow_network {
        return Ok(());
    }
    let system = rustix::fs::statfs(path.as_str())
        .map_err(|errno| refused(&format!("cannot watch {path}"), errno))?;
    // NFS, CIFS, SMB, SMB2, FUSE, 9P.
    let network = [
        0x6969,
        0xff53_4d42,
        0x517b,
        0xfe53_4d42,
        0x6573_5546,
        0x0102_1997,
    ];
    if network.contains(&(system.f_type as u64 & 0xffff_ffff)) {
        return Err(CallError::new(
            Code::InvalidArgument,
            format!("cannot watch path on network filesystem: {path}"),
        ));
    }
    Ok(())
}
