//! What the event loop waits for: one epoll instance whose every registration says which kind of
//! thing it is and whose. Keys are never used twice, so a late event finds nothing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

/// Number that names a connection, a sandbox or a run for the life of the supervisor.
pub(crate) type Key = u64;

/// Most events taken at one go.
const EVENTS: usize = 64;

/// A kind of thing that becomes ready, and whose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The listening socket.
    Listener,
    /// A signal to the supervisor.
    Signal,
    /// The spawner ended.
    Spawner,
    /// The spawner made a sandbox, or could not.
    Answer,
    /// A killed child that no sandbox stands for ended.
    Orphan,
    /// A caller's connection.
    Connection(Key),
    /// The control socket of a sandbox's init.
    Init(Key),
    /// The socket of a sandbox's stub.
    Stub(Key),
    /// A sandbox's init ended.
    Death(Key),
    /// A sandbox ran out of memory.
    Oom(Key),
    /// Standard output (0) or error (1) of a run.
    Stream(Key, u8),
    /// The collector of a run.
    Collector(Key),
    /// The lookout of a sandbox.
    Lookout(Key),
    /// The program that makes a sandbox's disk ended.
    Format(Key),
}

impl Source {
    fn token(self) -> u64 {
        let (kind, key) = match self {
            Self::Listener => (0, 0),
            Self::Signal => (1, 0),
            Self::Spawner => (2, 0),
            Self::Connection(key) => (3, key),
            Self::Init(key) => (4, key),
            Self::Stub(key) => (5, key),
            Self::Death(key) => (6, key),
            Self::Oom(key) => (7, key),
            Self::Stream(key, 0) => (8, key),
            Self::Stream(key, _) => (9, key),
            Self::Collector(key) => (10, key),
            Self::Lookout(key) => (13, key),
            Self::Format(key) => (14, key),
            Self::Answer => (11, 0),
            Self::Orphan => (12, 0),
        };
        kind << 56 | key
    }

    fn from_token(token: u64) -> Option<Self> {
        let key = token & ((1 << 56) - 1);
        Some(match token >> 56 {
            0 => Self::Listener,
            1 => Self::Signal,
            2 => Self::Spawner,
            3 => Self::Connection(key),
            4 => Self::Init(key),
            5 => Self::Stub(key),
            6 => Self::Death(key),
            7 => Self::Oom(key),
            8 => Self::Stream(key, 0),
            9 => Self::Stream(key, 1),
            10 => Self::Collector(key),
            13 => Self::Lookout(key),
            14 => Self::Format(key),
            11 => Self::Answer,
            12 => Self::Orphan,
            _ => return None,
        })
    }
}

/// Something that happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Happening {
    pub(crate) source: Source,
    /// There is something to read, or its other end is gone.
    pub(crate) readable: bool,
    /// There is room to write.
    pub(crate) writable: bool,
}

/// The epoll instance.
#[derive(Debug)]
pub(crate) struct Sources(OwnedFd);

impl Sources {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Waits for something to read from `fd`, level-triggered.
    pub(crate) fn add(&self, fd: impl AsFd, source: Source) -> io::Result<()> {
        self.register(fd, source, EventFlags::IN)
    }

    /// Waits for something urgent on `fd`, as control group event files report it.
    pub(crate) fn add_urgent(&self, fd: impl AsFd, source: Source) -> io::Result<()> {
        self.register(fd, source, EventFlags::PRI)
    }

    fn register(&self, fd: impl AsFd, source: Source, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::add(
            &self.0,
            fd,
            EventData::new_u64(source.token()),
            flags,
        )?)
    }

    /// Waits for room in `fd` as well, or no longer.
    pub(crate) fn want_room(&self, fd: impl AsFd, source: Source, want: bool) -> io::Result<()> {
        let flags = if want {
            EventFlags::IN | EventFlags::OUT
        } else {
            EventFlags::IN
        };
        Ok(epoll::modify(
            &self.0,
            fd,
            EventData::new_u64(source.token()),
            flags,
        )?)
    }

    /// Waits no longer. Must come before `fd` is closed, since another process may hold a copy of
    /// it, which would keep the registration alive.
    pub(crate) fn forget(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }

    /// Waits until something happens or the time is over.
    pub(crate) fn wait(&self, time: Option<Duration>) -> io::Result<Vec<Happening>> {
        let time = time.map(|time| Timespec {
            tv_sec: time.as_secs().min(1 << 30).cast_signed(),
            tv_nsec: time.subsec_nanos().into(),
        });
        let mut events = Vec::with_capacity(EVENTS);
        match epoll::wait(
            &self.0,
            rustix::buffer::spare_capacity(&mut events),
            time.as_ref(),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(events.into_iter().filter_map(happening).collect())
    }
}

fn happening(event: epoll::Event) -> Option<Happening> {
    let flags = event.flags;
    Some(Happening {
        source: Source::from_token(event.data.u64())?,
        readable: flags
            .intersects(EventFlags::IN | EventFlags::PRI | EventFlags::HUP | EventFlags::ERR),
        writable: flags.contains(EventFlags::OUT),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_reads_back_from_its_token() {
        let key = (1 << 56) - 1;
        let all = [
            Source::Listener,
            Source::Signal,
            Source::Spawner,
            Source::Answer,
            Source::Orphan,
            Source::Connection(key),
            Source::Init(key),
            Source::Stub(key),
            Source::Death(key),
            Source::Oom(key),
            Source::Stream(key, 0),
            Source::Stream(key, 1),
            Source::Collector(key),
            Source::Lookout(key),
            Source::Format(key),
        ];
        for source in all {
            assert_eq!(Source::from_token(source.token()), Some(source));
        }
        assert_eq!(Source::from_token(u64::MAX), None);
    }

    #[test]
    fn events_carry_their_source_until_forgotten() {
        let sources = Sources::new().unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let copy = rustix::io::dup(&reader).unwrap();
        sources.add(&reader, Source::Stream(7, 1)).unwrap();
        assert_eq!(sources.wait(Some(Duration::ZERO)).unwrap(), []);
        rustix::io::write(&writer, b"x").unwrap();
        let got = sources.wait(None).unwrap();
        assert_eq!(got[0].source, Source::Stream(7, 1));
        assert!(got[0].readable && !got[0].writable);
        sources.forget(&reader);
        drop(reader);
        assert_eq!(sources.wait(Some(Duration::ZERO)).unwrap(), []);
        drop(copy);
    }
}
