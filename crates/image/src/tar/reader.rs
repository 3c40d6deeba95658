//! Entries, put together from a header and the extensions before it.

use std::io::{ErrorKind, Read};

use super::header::{Format, Header};
use super::pax::{self, About, Extension};
use super::{BLOCK, TarError};

/// Most bytes of one extension.
const EXTENSION_MAX: u64 = 1 << 20;
/// Largest size that the field of a header can say in octal.
const OCTAL_MAX: u64 = 0o777_7777_7777;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file with data.
    File,
    /// Another name of a file.
    HardLink,
    /// A symbolic link.
    SymbolicLink,
    /// A directory.
    Directory,
    /// A character or block device, or a pipe.
    Special,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name as the archive says it.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Where a link leads, as the archive says it; empty for others.
    pub link: Vec<u8>,
    /// Bytes of data; 0 but for files.
    pub size: u64,
    /// Permissions, with set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Seconds and nanoseconds of the last change.
    pub mtime: (u64, u32),
    /// Extended attributes by name.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Reads an archive from front to back.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    /// Bytes of data of the entry at hand that were not read.
    left: u64,
    /// Bytes after them up to the next block.
    padding: u64,
    over: bool,
}

/// Extensions that wait for their entry.
#[derive(Debug, Default)]
struct Waiting {
    pax: Option<Extension>,
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

impl<R: Read> Reader<R> {
    /// Reads from the start of an archive.
    pub fn new(source: R) -> Self {
        Self {
            source,
            left: 0,
            padding: 0,
            over: false,
        }
    }

    /// What it reads from.
    pub fn into_inner(self) -> R {
        self.source
    }

    /// What it reads from, between two entries.
    pub fn source_mut(&mut self) -> &mut R {
        &mut self.source
    }

    /// The next entry; data of the one before that was not read is passed over. `None` at the end, after which
    /// nothing but zeros may follow.
    ///
    /// # Errors
    /// When the archive is cut, or has two readings. Nothing more must be read then.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, TarError> {
        if self.over {
            return Ok(None);
        }
        let mut waiting = Waiting::default();
        loop {
            self.pass()?;
            let Some(block) = self.block()? else {
                self.over = true;
                waiting.none()?;
                return Ok(None);
            };
            if block.iter().all(|byte| *byte == 0) {
                waiting.none()?;
                self.end()?;
                return Ok(None);
            }
            let header =
                Header::parse(&block).map_err(|(name, why)| TarError::entry(&name, why))?;
            match header.flag {
                b'x' | b'g' | b'L' | b'K' => self.extension(&header, &mut waiting)?,
                _ => {
                    let entry = entry(header, waiting)?;
                    self.left = entry.size;
                    self.padding = padding(entry.size);
                    return Ok(Some(entry));
                }
            }
        }
    }

    /// Reads data of the entry at hand; 0 bytes at its end.
    ///
    /// # Errors
    /// When the archive is cut or cannot be read.
    pub fn read_data(&mut self, buffer: &mut [u8]) -> Result<usize, TarError> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let most = most.min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let got = read(&mut self.source, &mut buffer[..most])?;
        if got == 0 {
            return Err(TarError::Short("the data of an entry"));
        }
        self.left -= got as u64;
        Ok(got)
    }

    /// Reads the extension behind a header into what waits for its entry.
    fn extension(&mut self, header: &Header, waiting: &mut Waiting) -> Result<(), TarError> {
        let refuse = |why: &str| Err(TarError::entry(&header.name, why));
        if header.size > EXTENSION_MAX {
            return refuse("its extension is longer than 1 MiB");
        }
        self.left = header.size;
        self.padding = padding(header.size);
        let mut bytes = vec![0; header.size as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += self.read_data(&mut bytes[filled..])?;
        }
        match header.flag {
            b'g' => {
                if waiting.any() {
                    return refuse("an extension for all entries follows one for the next");
                }
                pax::parse(&bytes, About::All)?;
            }
            b'x' if waiting.pax.is_some() => return refuse("two PAX extensions follow each other"),
            b'x' => waiting.pax = Some(pax::parse(&bytes, About::Next)?),
            flag => {
                if header.format != Format::Gnu {
                    return refuse("a long name of GNU is in an archive of another format");
                }
                // One NUL ends it.
                let name = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
                if name.is_empty() || name.contains(&0) {
                    return refuse("its long name is empty or has a NUL in it");
                }
                let place = match flag {
                    b'L' => &mut waiting.name,
                    _ => &mut waiting.link,
                };
                if place.is_some() {
                    return refuse("two long names of GNU follow each other");
                }
                *place = Some(name.to_vec());
            }
        }
        Ok(())
    }

    /// Passes over what was not read of the entry at hand.
    fn pass(&mut self) -> Result<(), TarError> {
        let mut buffer = [0; 8_192];
        while self.left > 0 {
            self.read_data(&mut buffer)?;
        }
        while self.padding > 0 {
            let most = buffer.len().min(self.padding as usize);
            match read(&mut self.source, &mut buffer[..most])? {
                0 => return Err(TarError::Short("the padding of an entry")),
                got => self.padding -= got as u64,
            }
        }
        Ok(())
    }

    /// The next block; `None` when the archive ends before it.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match read(&mut self.source, &mut block[filled..])? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(TarError::Short("a header")),
                got => filled += got,
            }
        }
        Ok(Some(block))
    }

    /// After a block of zeros nothing else may follow.
    fn end(&mut self) -> Result<(), TarError> {
        self.over = true;
        let mut buffer = [0; 8_192];
        loop {
            let got = read(&mut self.source, &mut buffer)?;
            if buffer[..got].iter().any(|byte| *byte != 0) {
                return Err(TarError::Trailing);
            }
            if got == 0 {
                return Ok(());
            }
        }
    }
}

fn padding(size: u64) -> u64 {
    (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64
}

fn read(source: &mut impl Read, buffer: &mut [u8]) -> Result<usize, TarError> {
    loop {
        match source.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result.map_err(TarError::Read),
        }
    }
}

impl Waiting {
    fn any(&self) -> bool {
        self.pax.is_some() || self.name.is_some() || self.link.is_some()
    }

    fn none(&self) -> Result<(), TarError> {
        match self.any() {
            true => Err(TarError::Short("an extension without its entry")),
            false => Ok(()),
        }
    }
}

/// A header and what was said before it, as one entry.
fn entry(header: Header, waiting: Waiting) -> Result<Entry, TarError> {
    let pax = waiting.pax.unwrap_or_default();
    let path = one(&header.name, pax.path, waiting.name, "name")?;
    let link = one(&header.link, pax.link, waiting.link, "link")?;
    let refuse = |why: String| Err(TarError::entry(&path, why));
    let kind = match header.flag {
        0 if path.ends_with(b"/") => Kind::Directory,
        b'0' | 0 if path.ends_with(b"/") => {
            return refuse("it is a file with the name of a directory".to_owned());
        }
        b'0' | 0 => Kind::File,
        b'1' => Kind::HardLink,
        b'2' => Kind::SymbolicLink,
        b'3' | b'4' | b'6' => Kind::Special,
        b'5' => Kind::Directory,
        b'S' => return refuse("it is sparse, which is not read".to_owned()),
        flag => return refuse(format!("its type {:?} is not read", char::from(flag))),
    };
    let size = match pax.size {
        // The field of the header cannot say what is larger.
        Some(size) if size != header.size && size <= OCTAL_MAX => {
            return refuse(format!(
                "its header says {} bytes and its PAX extension {size}",
                header.size
            ));
        }
        Some(size) => size,
        None => header.size,
    };
    if kind != Kind::File && size != 0 {
        return refuse(format!("it has {size} bytes of data, and is no file"));
    }
    let is_link = matches!(kind, Kind::HardLink | Kind::SymbolicLink);
    if is_link == link.is_empty() {
        return refuse(match is_link {
            true => "it is a link to nothing".to_owned(),
            false => "it is no link and leads somewhere".to_owned(),
        });
    }
    Ok(Entry {
        kind,
        link,
        size,
        mode: header.mode,
        uid: pax.uid.unwrap_or(header.uid),
        gid: pax.gid.unwrap_or(header.gid),
        mtime: pax.mtime.unwrap_or((header.mtime, 0)),
        attributes: pax.attributes,
        path,
    })
}

/// The one name that is meant.
fn one(
    header: &[u8],
    pax: Option<Vec<u8>>,
    gnu: Option<Vec<u8>>,
    what: &str,
) -> Result<Vec<u8>, TarError> {
    match (pax, gnu) {
        (Some(_), Some(_)) => Err(TarError::entry(
            header,
            format!("it has a {what} of PAX and one of GNU"),
        )),
        (Some(name), None) | (None, Some(name)) => Ok(name),
        (None, None) => Ok(header.to_vec()),
    }
}
