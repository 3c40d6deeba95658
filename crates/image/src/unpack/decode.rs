//! The bytes of a layer without their compression, counted and hashed.
//!
//! What a layer is compressed with is told by its first bytes. Members of gzip and frames of zstd may follow
//! each other, as tools write them.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use leasehold_core::digest::Digest;
use ruzstd::decoding::StreamingDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use sha2::{Digest as _, Sha256};

use crate::limits::Limits;

/// Magic number of a zstd frame.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// How bytes are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// By gzip.
    Gzip,
    /// By zstd.
    Zstd,
}

impl Compression {
    /// By the first bytes.
    #[must_use]
    pub fn of(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            _ if start.starts_with(&ZSTD) => Self::Zstd,
            _ => Self::None,
        }
    }
}

/// A bound was met, as the cause of an I/O error.
#[derive(Debug, thiserror::Error)]
#[error("it is beyond the limit `{limit}` of {most}")]
pub(crate) struct Beyond {
    pub(crate) limit: &'static str,
    pub(crate) most: u64,
}

/// Bytes without compression.
pub struct Decoded<R: Read> {
    source: Source<Counted<R>>,
    hash: Sha256,
    /// Bytes so far.
    bytes: u64,
    /// Bytes that come from elsewhere, and count all the same.
    besides: u64,
    /// Bytes of the layers below.
    below: u64,
    /// Compressed bytes, where it is known how many there are.
    compressed: Option<u64>,
    /// Compressed bytes so far.
    taken: Rc<Cell<u64>>,
    limits: Limits,
}

/// Counts what is read for a ratio.
struct Counted<R> {
    source: R,
    taken: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.source.read(buffer)?;
        self.taken.set(self.taken.get() + got as u64);
        Ok(got)
    }
}

enum Source<R: Read> {
    None(BufReader<R>),
    Gzip(MultiGzDecoder<BufReader<R>>),
    Zstd(Box<Frames<BufReader<R>>>),
}

impl<R: Read> Decoded<R> {
    /// Reads from the start of a layer of so many bytes. Where nobody says how many there are, the ratio is that to
    /// the bytes read so far.
    ///
    /// # Errors
    /// When the first bytes cannot be read.
    pub fn new(source: R, compressed: Option<u64>, limits: Limits) -> io::Result<Self> {
        let taken = Rc::new(Cell::new(0));
        let source = Counted {
            source,
            taken: Rc::clone(&taken),
        };
        let mut source = BufReader::with_capacity(128 << 10, source);
        let source = match Compression::of(source.fill_buf()?) {
            Compression::None => Source::None(source),
            Compression::Gzip => Source::Gzip(MultiGzDecoder::new(source)),
            Compression::Zstd => Source::Zstd(Box::new(Frames {
                idle: Some(source),
                frame: None,
                window: limits.window_bytes,
            })),
        };
        Ok(Self {
            source,
            hash: Sha256::new(),
            bytes: 0,
            besides: 0,
            below: 0,
            compressed,
            taken,
            limits,
        })
    }

    /// Counts the bytes of the layers below towards those of the image.
    #[must_use]
    pub fn upon(mut self, below: u64) -> Self {
        self.below = below;
        self
    }

    /// Bytes so far with those that were copied, and the digest of what was read.
    #[must_use]
    pub fn finish(self) -> (u64, Digest) {
        let bytes = self.bytes + self.besides;
        (bytes, Digest::from_bytes(self.hash.finalize().into()))
    }

    /// Counts bytes that the layer takes from elsewhere, before they are.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<(), Beyond> {
        self.besides = self.besides.saturating_add(bytes);
        self.within()
    }

    fn within(&self) -> Result<(), Beyond> {
        let beyond = |limit, most| Err(Beyond { limit, most });
        let bytes = self.bytes.saturating_add(self.besides);
        if bytes > self.limits.layer_bytes {
            return beyond("layer", self.limits.layer_bytes);
        }
        if bytes.saturating_add(self.below) > self.limits.unpacked_bytes {
            return beyond("unpacked", self.limits.unpacked_bytes);
        }
        let compressed = self.compressed.unwrap_or_else(|| self.taken.get());
        let most = compressed.saturating_mul(self.limits.ratio);
        if bytes > Limits::RATIO_FREE && bytes > most {
            return beyond("ratio", self.limits.ratio);
        }
        Ok(())
    }
}

impl<R: Read> Read for Decoded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = match &mut self.source {
            Source::None(source) => source.read(buffer)?,
            Source::Gzip(source) => source.read(buffer)?,
            Source::Zstd(source) => source.read(buffer)?,
        };
        self.hash.update(&buffer[..got]);
        self.bytes += got as u64;
        self.within().map_err(io::Error::other)?;
        Ok(got)
    }
}

/// Frames of zstd, one after the other.
struct Frames<R: BufRead> {
    idle: Option<R>,
    frame: Option<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>,
    window: u64,
}

impl<R: BufRead> Frames<R> {
    /// Begins the next frame; `false` at the end.
    fn begin(&mut self) -> io::Result<bool> {
        let Some(mut source) = self.idle.take() else {
            return Ok(self.frame.is_some());
        };
        loop {
            let start = source.fill_buf()?;
            if start.is_empty() {
                self.idle = Some(source);
                return Ok(false);
            }
            // A frame to be passed over: its number, its length, and that many bytes.
            if matches!(start, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]) {
                let mut head = [0; 8];
                source.read_exact(&mut head)?;
                let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
                let passed = io::copy(&mut source.by_ref().take(length.into()), &mut io::sink())?;
                if passed < u64::from(length) {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                continue;
            }
            let frame = StreamingDecoder::new_with_max_window_size(source, self.window);
            self.frame = Some(frame.map_err(|error| refused(error, self.window))?);
            return Ok(true);
        }
    }
}

fn refused(error: FrameDecoderError, window: u64) -> io::Error {
    match error {
        FrameDecoderError::WindowSizeTooBig { .. } => io::Error::other(Beyond {
            limit: "window",
            most: window,
        }),
        FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { .. }) => {
            io::Error::other("a frame of zstd is cut")
        }
        error => io::Error::other(error.to_string()),
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        while self.begin()? {
            let Some(frame) = &mut self.frame else {
                return Ok(0);
            };
            match frame.read(buffer)? {
                0 => self.idle = self.frame.take().map(StreamingDecoder::into_inner),
                got => return Ok(got),
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn decode(bytes: &[u8], limits: Limits) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut decoded = Decoded::new(bytes, Some(bytes.len() as u64), limits)?;
        decoded.read_to_end(&mut out)?;
        let (count, digest) = decoded.finish();
        assert_eq!((count, digest), (out.len() as u64, Digest::of(&out)));
        Ok(out)
    }

    #[test]
    fn members_and_frames_follow_each_other() {
        let limits = Limits::default();
        let two = [gzip(b"one "), gzip(b"two")].concat();
        assert_eq!(decode(&two, limits).unwrap(), b"one two");
        // A frame of one raw block, and one that is passed over.
        let frame = b"\x28\xb5\x2f\xfd\x20\x03\x19\x00\x00abc";
        let skipped = b"\x50\x2a\x4d\x18\x02\0\0\0xx";
        let all = [&frame[..], skipped, frame].concat();
        assert_eq!(decode(&all, limits).unwrap(), b"abcabc");
        assert!(decode(&two[..two.len() - 3], limits).is_err());
        assert!(decode(&all[..all.len() - 1], limits).is_err());
        assert!(decode(&skipped[..9], limits).is_err());
        assert_eq!(decode(b"plain", limits).unwrap(), b"plain");
    }

    #[test]
    fn the_ratio_of_a_stream_is_to_what_was_read() {
        let bomb = gzip(&vec![0; 80 << 20]);
        let long = bomb.repeat(4);
        let mut decoded = Decoded::new(&long[..], None, Limits::default()).unwrap();
        let error = io::copy(&mut decoded, &mut io::sink()).unwrap_err();
        assert!(error.to_string().contains("`ratio` of 250"), "{error}");
    }

    #[test]
    fn bombs_meet_their_limit() {
        let bomb = gzip(&vec![0; 80 << 20]);
        let error = decode(&bomb, Limits::default()).unwrap_err().to_string();
        assert!(error.contains("`ratio` of 250"), "{error}");
        let limits = Limits {
            ratio: u64::MAX,
            ..Limits::default()
        };
        assert_eq!(decode(&bomb, limits).unwrap().len(), 80 << 20);
        let small = Limits {
            layer_bytes: 1_000,
            ..limits
        };
        let error = decode(&bomb, small).unwrap_err().to_string();
        assert!(error.contains("`layer` of 1000"), "{error}");
        // A window of 2 GiB.
        let error = decode(b"\x28\xb5\x2f\xfd\x00\xa8\x19\x00\x00abc", limits).unwrap_err();
        assert!(error.to_string().contains("`window`"), "{error}");
    }
}
