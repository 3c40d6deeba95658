//! Bytes out of the spools to the caller, and from the caller into the sandbox.
//!
//! Each direction holds one buffer and never more: what a slow reader does not take stays in the
//! spool file, what a slow command does not take stays with whoever feeds us. Nothing here blocks.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::event::PollFlags;
use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, open};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::termios::isatty;

use super::screen::Screen;

/// Bytes of one buffer.
const BUFFER: usize = 64 << 10;
/// Bytes that a pipe or terminal which is ready takes without blocking.
const READY_WRITE: usize = 4 << 10;

/// A standard output of ours, written to without blocking. The descriptor is shared with other
/// processes, so its own flags must not be changed.
enum Target {
    /// A second, non-blocking opening of the same pipe or terminal.
    Reopened(File),
    /// A socket.
    Socket(OwnedFd),
    /// A file or device that never makes one wait.
    Plain(File),
    /// Something that may make one wait and cannot be opened again.
    Shared(File),
}

impl Target {
    fn new(standard: BorrowedFd<'_>) -> io::Result<Self> {
        let own = standard.try_clone_to_owned()?;
        let kind = FileType::from_raw_mode(fstat(&own)?.st_mode);
        if kind == FileType::Socket {
            return Ok(Self::Socket(own));
        }
        let waits = kind == FileType::Fifo || isatty(&own);
        if !waits {
            return Ok(Self::Plain(File::from(own)));
        }
        let path = format!("/proc/self/fd/{}", own.as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(match open(path, flags, Mode::empty()) {
            Ok(reopened) => Self::Reopened(File::from(reopened)),
            Err(_) => Self::Shared(File::from(own)),
        })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Reopened(file) | Self::Plain(file) => file.write(bytes),
            Self::Socket(socket) => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                Ok(send(socket, bytes, flags)?)
            }
            Self::Shared(file) => file.write(&bytes[..bytes.len().min(READY_WRITE)]),
        }
    }
}

impl AsFd for Target {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Reopened(file) | Self::Plain(file) | Self::Shared(file) => file.as_fd(),
            Self::Socket(socket) => socket.as_fd(),
        }
    }
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Goes on.
    Going,
    /// The reader is gone; nothing more is written.
    ReaderGone,
}

/// One output: from its spool to a standard output of ours.
pub(crate) struct Pump {
    spool: File,
    target: Target,
    screen: Option<Screen>,
    /// Next byte of the spool to read.
    offset: u64,
    /// Bytes the spool is known to have.
    announced: u64,
    buffer: Vec<u8>,
    /// Bytes of the buffer that are written.
    written: usize,
    last: u8,
    /// Nothing more will be announced.
    whole: bool,
    gone: bool,
}

impl Pump {
    /// Makes a pump to `standard`. With `for_person` control sequences are written out if a
    /// terminal is there.
    ///
    /// # Errors
    /// When the standard output cannot be looked at.
    pub(crate) fn new(
        spool: OwnedFd,
        standard: BorrowedFd<'_>,
        for_person: bool,
    ) -> io::Result<Self> {
        Ok(Self {
            spool: File::from(spool),
            screen: (for_person && isatty(standard)).then(Screen::default),
            target: Target::new(standard)?,
            offset: 0,
            announced: 0,
            buffer: Vec::new(),
            written: 0,
            last: b'\n',
            whole: false,
            gone: false,
        })
    }

    /// Leaves out what comes before a byte, where nothing was read yet.
    pub(crate) fn skip_to(&mut self, byte: u64) {
        self.offset = byte;
    }

    /// The spool has so many bytes now. It never shrinks.
    pub(crate) fn announce(&mut self, bytes: u64) {
        self.announced = self.announced.max(bytes);
    }

    /// The spool has so many bytes and will never have more.
    pub(crate) fn complete(&mut self, bytes: u64) {
        self.announce(bytes);
        self.whole = true;
    }

    /// Whether there is something to write.
    pub(crate) fn pending(&self) -> bool {
        let held = self.whole && self.screen.as_ref().is_some_and(Screen::holds);
        !self.gone && (self.written < self.buffer.len() || self.offset < self.announced || held)
    }

    /// Whether the last byte shown to a person's terminal ended its line.
    pub(crate) fn line_is_open(&self) -> bool {
        self.last != b'\n' && isatty(&self.target)
    }

    /// Writes what can be written now.
    ///
    /// # Errors
    /// When the spool cannot be read or the target fails for another reason than a reader that is
    /// gone.
    pub(crate) fn step(&mut self) -> io::Result<Step> {
        if self.written == self.buffer.len() && !self.refill()? {
            return Ok(Step::Going);
        }
        match self.target.write(&self.buffer[self.written..]) {
            Ok(count) => {
                self.written += count;
                if let Some(last) = self.written.checked_sub(1) {
                    self.last = self.buffer[last];
                }
                Ok(Step::Going)
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(Step::Going),
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                    self.gone = true;
                    Ok(Step::ReaderGone)
                }
                _ => {
                    self.gone = true;
                    Err(error)
                }
            },
        }
    }

    /// Reads the next piece of the spool. Says whether there is something to write.
    fn refill(&mut self) -> io::Result<bool> {
        self.written = 0;
        self.buffer.clear();
        let left = self.announced.saturating_sub(self.offset);
        let want = usize::try_from(left).map_or(BUFFER, |left| left.min(BUFFER));
        if want == 0 {
            if let (true, Some(screen)) = (self.whole, &mut self.screen) {
                screen.finish(&mut self.buffer);
            }
            return Ok(!self.buffer.is_empty());
        }
        self.buffer.resize(want, 0);
        let got = self.spool.read_at(&mut self.buffer, self.offset)?;
        self.buffer.truncate(got);
        if got == 0 {
            // Announced and not there: nothing will come any more.
            self.offset = self.announced;
            return Ok(false);
        }
        self.offset += got as u64;
        if let Some(screen) = &mut self.screen {
            let piece = std::mem::take(&mut self.buffer);
            screen.pass(&piece, &mut self.buffer);
        }
        Ok(!self.buffer.is_empty())
    }
}

impl AsFd for Pump {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.target.as_fd()
    }
}

/// The byte that, typed three times in a row, ends a terminal session: `^]`.
const ESCAPE: u8 = 0x1d;

/// Our standard input into the sandbox.
pub(crate) struct Feed {
    source: OwnedFd,
    /// The sandbox's end; closed when the source has ended.
    sink: Option<OwnedFd>,
    buffer: Vec<u8>,
    written: usize,
    /// Length of the present row of escape bytes, where a terminal is joined.
    escapes: Option<u32>,
}

impl Feed {
    /// Joins `source` to `sink`. With a terminal, three `^]` in a row are told by [`Feed::step`].
    ///
    /// # Errors
    /// When a descriptor cannot be copied or set.
    pub(crate) fn new(source: BorrowedFd<'_>, sink: OwnedFd, terminal: bool) -> io::Result<Self> {
        let flags = fcntl_getfl(&sink)?;
        fcntl_setfl(&sink, flags | OFlags::NONBLOCK)?;
        Ok(Self {
            source: source.try_clone_to_owned()?,
            sink: Some(sink),
            buffer: Vec::new(),
            written: 0,
            escapes: terminal.then_some(0),
        })
    }

    /// The descriptor to wait for now, and for what: one of the two ends.
    pub(crate) fn waits_for(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let sink = self.sink.as_ref()?;
        Some(if self.written < self.buffer.len() {
            (sink.as_fd(), PollFlags::OUT)
        } else {
            (self.source.as_fd(), PollFlags::IN)
        })
    }

    /// Moves bytes after a wait. Says whether the person typed the escape.
    ///
    /// # Errors
    /// When our standard input fails.
    pub(crate) fn step(&mut self) -> io::Result<bool> {
        if self.sink.is_none() {
            return Ok(false);
        }
        let mut escaped = false;
        if self.written == self.buffer.len() {
            self.written = 0;
            self.buffer.resize(BUFFER, 0);
            let got = match rustix::io::read(&self.source, &mut self.buffer) {
                Ok(got) => got,
                Err(Errno::AGAIN | Errno::INTR) => {
                    self.buffer.clear();
                    return Ok(false);
                }
                // The terminal has hung up.
                Err(Errno::IO) => 0,
                Err(errno) => {
                    self.sink = None;
                    return Err(errno.into());
                }
            };
            self.buffer.truncate(got);
            if got == 0 {
                self.sink = None;
                return Ok(false);
            }
            escaped = self.count_escapes();
        }
        let Some(sink) = &self.sink else {
            return Ok(escaped);
        };
        match rustix::io::write(sink, &self.buffer[self.written..]) {
            Ok(count) => self.written += count,
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The command closed its standard input, or is gone.
            Err(_) => self.sink = None,
        }
        Ok(escaped)
    }

    fn count_escapes(&mut self) -> bool {
        let Some(row) = &mut self.escapes else {
            return false;
        };
        for byte in &self.buffer {
            *row = if *byte == ESCAPE { *row + 1 } else { 0 };
            if *row == 3 {
                *row = 0;
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn spool(bytes: &[u8]) -> OwnedFd {
        let memory = rustix::fs::memfd_create("spool", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        File::from(memory.try_clone().unwrap())
            .write_all(bytes)
            .unwrap();
        memory
    }

    #[test]
    fn a_reader_that_does_not_read_neither_blocks_nor_grows_us() {
        let bytes = vec![b'x'; 1 << 20];
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut pump = Pump::new(spool(&bytes), writer.as_fd(), true).unwrap();
        pump.announce(bytes.len() as u64);
        for _ in 0..100 {
            assert_eq!(pump.step().unwrap(), Step::Going);
        }
        assert!(pump.pending());
        assert!(pump.buffer.capacity() <= 2 * BUFFER);
        let flags = fcntl_getfl(&writer).unwrap();
        assert!(
            !flags.contains(OFlags::NONBLOCK),
            "the caller's own flags changed"
        );
        drop(writer);
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            reader.read_to_end(&mut got).unwrap();
            got
        });
        while pump.pending() {
            pump.step().unwrap();
        }
        drop(pump);
        assert!(reader.join().unwrap() == bytes);
    }

    #[test]
    fn only_announced_bytes_are_read_and_a_gone_reader_is_told() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let mut pump = Pump::new(spool(b"abcdef"), far.as_fd(), false).unwrap();
        assert!(!pump.pending());
        pump.announce(3);
        pump.step().unwrap();
        assert!(!pump.pending());
        let mut got = [0; 8];
        assert_eq!(near.read(&mut got).unwrap(), 3);
        drop(near);
        pump.announce(6);
        assert_eq!(pump.step().unwrap(), Step::ReaderGone);
        assert!(!pump.pending());
    }

    #[test]
    fn a_feed_ends_the_sink_with_its_source() {
        let (reader, writer) = std::io::pipe().unwrap();
        let (mut inside, sink) = std::io::pipe().unwrap();
        let mut feed = Feed::new(reader.as_fd(), OwnedFd::from(sink), false).unwrap();
        (&writer).write_all(b"hello").unwrap();
        drop(writer);
        while feed.waits_for().is_some() {
            assert!(!feed.step().unwrap());
        }
        let mut got = Vec::new();
        inside.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"hello");
    }

    #[test]
    fn a_sink_that_is_full_stops_the_reading() {
        let (reader, writer) = std::io::pipe().unwrap();
        let (inside, sink) = std::io::pipe().unwrap();
        let mut feed = Feed::new(reader.as_fd(), OwnedFd::from(sink), false).unwrap();
        let mut taken = 0;
        let block = [b'y'; 4096];
        for _ in 0..64 {
            (&writer).write_all(&block).unwrap();
            taken += block.len();
            feed.step().unwrap();
            if feed.waits_for().unwrap().1 == PollFlags::OUT {
                break;
            }
        }
        assert!(taken <= 256 << 10, "a full pipe went on taking");
        assert!(feed.buffer.len() <= BUFFER);
        drop(inside);
        feed.step().unwrap();
        assert!(feed.waits_for().is_none(), "a command that is gone is fed");
    }

    #[test]
    fn three_escapes_in_a_row_end_a_terminal_session() {
        for (typed, escaped) in [(&b"\x1d\x1d\x1d"[..], true), (b"\x1d\x1da\x1d", false)] {
            let (reader, writer) = std::io::pipe().unwrap();
            let (_inside, sink) = std::io::pipe().unwrap();
            let mut feed = Feed::new(reader.as_fd(), OwnedFd::from(sink), true).unwrap();
            (&writer).write_all(typed).unwrap();
            assert_eq!(feed.step().unwrap(), escaped);
        }
    }
}
