//! Files by name, in a directory or in an archive. Nothing of an archive is unpacked for it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat, openat2};

use crate::error::{ImageError, Result, at, shown};
use crate::limits::Limits;
use crate::path::components;
use crate::stack::BENEATH;
use crate::tar::{Kind, Reader};
use crate::unpack::decode::{Beyond, Compression, Decoded};

/// Most entries of an archive.
const ENTRIES_MAX: usize = 65_536;

/// Where files are found by name.
pub(super) struct Source {
    path: PathBuf,
    kind: Of,
}

enum Of {
    Directory(OwnedFd),
    Archive {
        file: File,
        /// Where the data of each file begins, and how long it is.
        files: BTreeMap<Vec<u8>, (u64, u64)>,
        /// Names that stand for other names.
        links: BTreeMap<Vec<u8>, Vec<u8>>,
    },
}

/// Counts what is read.
struct Counted<R> {
    source: R,
    bytes: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let got = self.source.read(buffer)?;
        self.bytes += got as u64;
        Ok(got)
    }
}

impl Source {
    /// Opens a directory or an archive; `-` is standard input. One that is compressed is written out to `work`.
    ///
    /// # Errors
    /// When it cannot be read or is no archive.
    pub(super) fn open(path: &Path, work: &Path, limits: &Limits) -> Result<Self> {
        if path.is_dir() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let opened = openat(CWD, path, flags, Mode::empty()).map_err(at("open", path))?;
            return Ok(Self {
                path: path.to_owned(),
                kind: Of::Directory(opened),
            });
        }
        let file = match path.as_os_str() == "-" {
            true => spooled(std::io::stdin().lock(), path, work, limits)?,
            false => {
                let mut file = File::open(path).map_err(at("open", path))?;
                let mut start = [0; 4];
                let got = file.read(&mut start).map_err(at("read", path))?;
                file.rewind().map_err(at("rewind", path))?;
                match Compression::of(&start[..got]) {
                    Compression::None => file,
                    _ => spooled(file, path, work, limits)?,
                }
            }
        };
        let mut source = Self {
            path: path.to_owned(),
            kind: Of::Archive {
                file,
                files: BTreeMap::new(),
                links: BTreeMap::new(),
            },
        };
        source.index(limits)?;
        Ok(source)
    }

    /// That it is no image.
    pub(super) fn none(&self, why: impl Into<String>) -> ImageError {
        ImageError::Archive {
            path: self.path.clone(),
            why: why.into(),
        }
    }

    /// That it has several images, or not the one that is meant.
    pub(super) fn several(&self, names: impl Iterator<Item = String>) -> ImageError {
        let names: Vec<String> = names.take(32).map(|name| shown(name.as_bytes())).collect();
        self.none(format!(
            "it has {}; --which names one of them",
            names.join(", ")
        ))
    }

    fn index(&mut self, limits: &Limits) -> Result<()> {
        let path = self.path.clone();
        let no = |why: String| ImageError::Archive {
            path: path.clone(),
            why,
        };
        let Of::Archive { file, files, links } = &mut self.kind else {
            return Ok(());
        };
        let mut tar = Reader::new(Counted {
            source: BufReader::new(&*file),
            bytes: 0,
        });
        while let Some(entry) = tar.next_entry().map_err(|error| no(error.to_string()))? {
            if files.len() + links.len() >= ENTRIES_MAX {
                return Err(no(format!(
                    "it is beyond the limit `entries` of {ENTRIES_MAX}"
                )));
            }
            let name = components(&entry.path, limits.depth)
                .map_err(|why| no(format!("entry {:?}: {why}", shown(&entry.path))))?
                .join(&b'/');
            let again = match entry.kind {
                Kind::File => {
                    let begins = tar.source_mut().bytes;
                    files.insert(name.clone(), (begins, entry.size)).is_some()
                        || links.contains_key(&name)
                }
                Kind::SymbolicLink | Kind::HardLink => {
                    let hard = entry.kind == Kind::HardLink;
                    let to = target(&name, &entry.link, hard).map_err(&no)?;
                    links.insert(name.clone(), to).is_some() || files.contains_key(&name)
                }
                Kind::Directory => false,
                Kind::Special => return Err(no("it has a device in it".to_owned())),
            };
            if again {
                return Err(no(format!("it has {:?} twice", shown(&name))));
            }
        }
        Ok(())
    }

    /// Opens a file; its bytes, and how many there are.
    ///
    /// # Errors
    /// When it is no file or cannot be read.
    pub(super) fn open_file(&mut self, name: &str) -> Result<Option<(Box<dyn Read + '_>, u64)>> {
        let path = self.path.join(name);
        match &mut self.kind {
            Of::Directory(directory) => {
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = match openat2(&*directory, name, flags, Mode::empty(), BENEATH) {
                    Ok(file) => File::from(file),
                    Err(rustix::io::Errno::NOENT) => return Ok(None),
                    Err(error) => return Err(at("open", path)(error)),
                };
                let found = file.metadata().map_err(at("look at", &path))?;
                if !found.is_file() {
                    return Err(at("read", path)(std::io::Error::other("it is no file")));
                }
                let size = found.len();
                Ok(Some((Box::new(file.take(size)), size)))
            }
            Of::Archive { file, files, links } => {
                let name = name.as_bytes();
                let name = links.get(name).map_or(name, Vec::as_slice);
                let Some((begins, size)) = files.get(name).copied() else {
                    return Ok(None);
                };
                file.seek(SeekFrom::Start(begins))
                    .map_err(at("seek in", path))?;
                Ok(Some((Box::new(file.take(size)), size)))
            }
        }
    }

    /// Reads a file of at most so many bytes.
    ///
    /// # Errors
    /// When it is longer or cannot be read.
    pub(super) fn read(&mut self, name: &str, most: u64) -> Result<Option<Vec<u8>>> {
        let path = self.path.join(name);
        let Some((mut file, size)) = self.open_file(name)? else {
            return Ok(None);
        };
        if size > most {
            return Err(ImageError::Limit {
                what: format!("`{}` of {size} bytes", shown(name.as_bytes())),
                limit: "document",
                most,
            });
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(at("read", path))?;
        Ok(Some(bytes))
    }
}

/// What a link of an archive stands for, by its letters: another name of the same archive.
fn target(name: &[u8], link: &[u8], hard: bool) -> std::result::Result<Vec<u8>, String> {
    let mut parts: Vec<&[u8]> = match hard {
        true => Vec::new(),
        false => name.split(|byte| *byte == b'/').collect(),
    };
    parts.pop();
    for part in link.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop().ok_or("a link leads out of the archive")?;
            }
            part => parts.push(part),
        }
    }
    Ok(parts.join(&b'/'))
}

/// Bytes of a stream without compression in a file of our own.
fn spooled(from: impl Read, path: &Path, work: &Path, limits: &Limits) -> Result<File> {
    let made = work.join("archive");
    let mut file = File::create_new(&made).map_err(at("make", &made))?;
    // The bound is that of an image, and a stream does not say how long it is.
    let limits = Limits {
        layer_bytes: limits.image_bytes,
        ..*limits
    };
    let mut decoded = Decoded::new(from, None, limits).map_err(at("read", path))?;
    let mut buffer = vec![0; 128 << 10];
    loop {
        let got = decoded
            .read(&mut buffer)
            .map_err(|error| beyond(error, path))?;
        if got == 0 {
            break;
        }
        file.write_all(&buffer[..got]).map_err(at("write", &made))?;
    }
    File::open(&made).map_err(at("open", &made))
}

/// A bound that was met, by its name, or the failure to read.
fn beyond(error: std::io::Error, path: &Path) -> ImageError {
    let met = error.get_ref().and_then(|cause| cause.downcast_ref());
    match met {
        Some(Beyond { limit, most }) => ImageError::Limit {
            what: format!("the archive {}", shown(path.as_os_str().as_encoded_bytes())),
            limit,
            most: *most,
        },
        None => at("read", path)(error),
    }
}
