//! One output stream: from a pipe or terminal the workload writes into a file the caller reads.
//!
//! Bytes are kept up to a limit; what comes after is counted and dropped, so a flood costs neither
//! memory nor disk. The workload is never blocked by a reader, since the readers have the file.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use leasehold_core::record::StreamRecord;
use rustix::io::Errno;

/// Most reads at one go, so that one flood does not starve the other sandboxes.
const READS: usize = 8;

/// Most such goes at the end of a stream, should its writer give a byte at a time.
const PUMPS: u32 = 4_096;
/// More than a terminal holds that nobody reads.
const TERMINAL_BYTES: usize = 64 << 10;

/// What is left in the source after [`Spool::pump`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// Perhaps more; it will be readable again.
    More,
    /// Nothing now.
    Nothing,
    /// It is at its end; every writer closed it.
    Ended,
}

/// One stream and its file.
#[derive(Debug)]
pub(crate) struct Spool {
    source: Option<OwnedFd>,
    file: OwnedFd,
    limit: u64,
    seen: StreamRecord,
}

impl Spool {
    /// A spool of at most `limit` bytes in `file`, without a source yet.
    pub(crate) fn new(file: OwnedFd, limit: u64) -> Self {
        Self {
            source: None,
            file,
            limit,
            seen: StreamRecord::default(),
        }
    }

    /// Gives it a source, which must not block.
    pub(crate) fn open(&mut self, source: OwnedFd) {
        self.source = Some(source);
    }

    /// The source, while it is not at its end.
    pub(crate) fn source(&self) -> Option<BorrowedFd<'_>> {
        self.source.as_ref().map(AsFd::as_fd)
    }

    /// Gives the source up; what is in it is lost.
    pub(crate) fn close(&mut self) -> Option<OwnedFd> {
        self.source.take()
    }

    /// Counts so far.
    pub(crate) fn seen(&self) -> StreamRecord {
        self.seen
    }

    /// Whether more was written than is kept.
    pub(crate) fn over(&self) -> bool {
        self.seen.written > self.limit
    }

    /// Moves what is there, within a bound, through `buffer`. The source stays at its end, to be
    /// closed by whoever waits for it.
    pub(crate) fn pump(&mut self, buffer: &mut [u8]) -> Left {
        for _ in 0..READS {
            let Some(source) = &self.source else {
                return Left::Ended;
            };
            match rustix::io::read(source, &mut *buffer) {
                Ok(0) => return Left::Ended,
                Ok(count) => {
                    self.keep(&buffer[..count]);
                    if count < buffer.len() / 2 {
                        return Left::More;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Left::Nothing,
                // A terminal whose last user is gone says EIO; anything else is an end as well.
                Err(_) => return Left::Ended,
            }
        }
        Left::More
    }

    /// Moves everything that is there and gives the source up. For a source whose writers are dead,
    /// or could not be killed: one that still writes is not read beyond what was there.
    pub(crate) fn finish(&mut self, buffer: &mut [u8]) -> Option<OwnedFd> {
        // Nothing holds more than this, a terminal far less.
        let source = self.source.as_ref();
        let capacity = source.and_then(|source| rustix::pipe::fcntl_getpipe_size(source).ok());
        let most = self.seen.written + capacity.unwrap_or(TERMINAL_BYTES) as u64;
        for _ in 0..PUMPS {
            if self.pump(buffer) != Left::More || self.seen.written >= most {
                break;
            }
        }
        self.close()
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = self.limit.saturating_sub(self.seen.kept);
        let take = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
        self.seen.written += bytes.len() as u64;
        let kept = write_all(&self.file, &bytes[..take]);
        self.seen.kept += kept as u64;
        if kept < take {
            // The host's disk is full or broken: keep what there is and count the rest.
            self.limit = self.limit.min(self.seen.kept);
        }
        self.seen.truncated = self.seen.written > self.seen.kept;
    }
}

fn write_all(file: &OwnedFd, bytes: &[u8]) -> usize {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::write(file, &bytes[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    done
}

/// Makes a pipe whose reading end does not block; both ends are closed on exec.
///
/// # Errors
/// As `pipe2(2)`.
pub(crate) fn output_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::NONBLOCK)?;
    Ok((reader, writer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch_directory::ScratchDirectory;
    use std::fs::File;

    fn spool(limit: u64, test: &str) -> (Spool, OwnedFd, ScratchDirectory) {
        let place = ScratchDirectory::new(test);
        let file = File::create(place.path().join("stdout")).unwrap();
        let mut spool = Spool::new(file.into(), limit);
        let (reader, writer) = output_pipe().unwrap();
        spool.open(reader);
        (spool, writer, place)
    }

    #[test]
    fn bytes_up_to_the_limit_are_kept_and_the_rest_counted() {
        let (mut spool, writer, place) = spool(10, "spool-limit");
        let mut buffer = [0; 4096];
        assert_eq!(spool.pump(&mut buffer), Left::Nothing);
        write_all(&writer, b"12345678");
        spool.pump(&mut buffer);
        assert!(!spool.over());
        write_all(&writer, b"abcdefgh");
        spool.pump(&mut buffer);
        assert!(spool.over());
        drop(writer);
        assert_eq!(spool.pump(&mut buffer), Left::Ended);
        let want = StreamRecord {
            written: 16,
            kept: 10,
            truncated: true,
        };
        assert_eq!(spool.seen(), want);
        assert_eq!(
            std::fs::read(place.path().join("stdout")).unwrap(),
            b"12345678ab"
        );
    }

    #[test]
    fn exactly_the_limit_is_not_cut() {
        let (mut spool, writer, _place) = spool(4, "spool-exact");
        write_all(&writer, b"1234");
        spool.finish(&mut [0; 16]);
        assert!(!spool.over() && !spool.seen().truncated);
    }

    #[test]
    fn one_flood_gives_way_to_others() {
        let (mut spool, writer, _place) = spool(1 << 30, "spool-flood");
        write_all(&writer, &[b'x'; 65_536]);
        let mut buffer = [0; 64];
        assert_eq!(spool.pump(&mut buffer), Left::More);
        assert_eq!(spool.seen().written, (READS * 64) as u64);
        drop(writer);
        spool.finish(&mut buffer);
        assert_eq!(spool.seen().kept, 65_536);
    }

    /// A writer that outlived its kill must not hold the loop.
    #[test]
    fn a_writer_that_goes_on_is_left_behind() {
        let (mut spool, writer, _place) = spool(1 << 40, "spool-endless");
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    // Its other end goes first.
                    let _ = rustix::io::write(&writer, &[b'x'; 4_096]);
                }
            });
            let flags = rustix::event::PollFlags::IN;
            let reader = spool.source.as_ref().unwrap().try_clone().unwrap();
            let mut polled = [rustix::event::PollFd::new(&reader, flags)];
            rustix::event::poll(&mut polled, None).unwrap();
            let mut buffer = vec![0; 128 << 10];
            spool.finish(&mut buffer);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            drop(reader);
        });
        let capacity = 64 << 10;
        // One go more than what a pipe holds, at most.
        let most = capacity + (READS * (128 << 10)) as u64;
        assert!(spool.seen().written <= most, "{:?}", spool.seen());
        assert!(spool.source().is_none());
    }

    #[test]
    fn a_full_host_disk_cuts_and_does_not_stall() {
        let Ok(full) = File::options().write(true).open("/dev/full") else {
            return;
        };
        let mut spool = Spool::new(full.into(), 100);
        let (reader, writer) = output_pipe().unwrap();
        spool.open(reader);
        write_all(&writer, b"12345");
        drop(writer);
        spool.finish(&mut [0; 16]);
        let want = StreamRecord {
            written: 5,
            kept: 0,
            truncated: true,
        };
        assert_eq!(spool.seen(), want);
    }
}
