//! Who a command of an image is: what its configuration names, looked up in the image's own files.
//!
//! Those files are somebody's: they are found without following a link, read up to a bound, and a number that is
//! no id of an image is no id at all.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use leasehold_core::image::{ID_MAX, User};
use rustix::fs::{FileType, Mode, OFlags, openat2};

use super::plan::{MountPlan, open_layer};
use crate::error::{ImageError, Result, at, shown};
use crate::stack::{BENEATH, Found, Stack};

/// Most bytes read of `/etc/passwd` or `/etc/group`.
const FILE_BYTES: u64 = 1 << 20;
/// Longest home directory that is taken.
const HOME_BYTES: usize = 4_095;
/// Group of a user that the image names by number and knows nothing of.
const UNKNOWN_GROUP: u32 = 0;

/// Who a command is, and where it is at home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its ids.
    pub user: User,
    /// Its home directory, as the image says.
    pub home: Option<String>,
}

/// A line of `/etc/passwd`.
struct Row<'a> {
    name: &'a [u8],
    uid: u32,
    gid: u32,
    home: &'a [u8],
}

impl MountPlan {
    /// Who the image's command is: whom its configuration names, or else this user.
    ///
    /// # Errors
    /// When it names somebody whom its files do not know, or an id beyond [`ID_MAX`].
    pub fn account(&self, otherwise: User) -> Result<Account> {
        let layers = self.lower.iter().map(open_layer);
        let stack = Stack::new(layers.collect::<Result<_>>()?);
        let passwd = read(&stack, &self.lower, b"passwd")?;
        let wanted = self.config.process.user.as_str();
        let rows = || passwd.split(|byte| *byte == b'\n').filter_map(row);
        if wanted.is_empty() {
            let known = rows().find(|row| row.uid == otherwise.uid);
            return Ok(Account {
                user: User {
                    gid: known.as_ref().map_or(otherwise.gid, |row| row.gid),
                    ..otherwise
                },
                home: known.and_then(|row| home(&row)),
            });
        }
        let (name, group) = match wanted.split_once(':') {
            None => (wanted, None),
            Some((name, group)) => (name, Some(group)),
        };
        let number = id(wanted, name)?;
        let known = rows().find(|row| match number {
            Some(uid) => row.uid == uid,
            None => row.name == name.as_bytes(),
        });
        let uid = match (number, &known) {
            (Some(uid), _) => uid,
            (None, Some(row)) => row.uid,
            (None, None) => {
                return Err(none(&passwd, wanted, name, "/etc/passwd", "user"));
            }
        };
        let gid = match group {
            None => known.as_ref().map_or(UNKNOWN_GROUP, |row| row.gid),
            Some(group) => match id(wanted, group)? {
                Some(gid) => gid,
                None => self.group(&stack, wanted, group)?,
            },
        };
        Ok(Account {
            user: User { uid, gid },
            home: known.and_then(|row| home(&row)),
        })
    }

    fn group(&self, stack: &Stack, wanted: &str, name: &str) -> Result<u32> {
        let text = read(stack, &self.lower, b"group")?;
        let found = text.split(|byte| *byte == b'\n').find_map(|line| {
            let mut fields = line.split(|byte| *byte == b':');
            let own = fields.next()?;
            let gid = number(fields.nth(1)?)?;
            (own == name.as_bytes()).then_some(gid)
        });
        found.ok_or_else(|| none(&text, wanted, name, "/etc/group", "group"))
    }
}

/// Why a name has no id: its line has one out of bounds, or there is none.
fn none(text: &[u8], wanted: &str, name: &str, file: &str, what: &str) -> ImageError {
    let beyond = text.split(|byte| *byte == b'\n').any(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let own = fields.next() == Some(name.as_bytes());
        let ids = fields.skip(1).take(2);
        let digits = |id: &[u8]| !id.is_empty() && id.iter().all(u8::is_ascii_digit);
        own && ids.filter(|id| digits(id)).any(|id| number(id).is_none())
    });
    match beyond {
        true => unknown(
            wanted,
            &format!(
                "{file} of the image has an id for it that is out of bounds: ids go from 0 to {ID_MAX}"
            ),
        ),
        false => unknown(wanted, &format!("{file} of the image has no such {what}")),
    }
}

fn unknown(wanted: &str, why: &str) -> ImageError {
    ImageError::Document {
        what: "configuration of the image".to_owned(),
        why: format!("its user is {:?}: {why}", shown(wanted.as_bytes())),
    }
}

/// An id that is written as a number; nothing where it is a name.
fn id(wanted: &str, text: &str) -> Result<Option<u32>> {
    if text.is_empty() {
        return Err(unknown(wanted, "a name or number is missing"));
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    let beyond = || unknown(wanted, &format!("ids go from 0 to {ID_MAX}"));
    number(text.as_bytes()).map(Some).ok_or_else(beyond)
}

/// Digits as an id of an image.
fn number(text: &[u8]) -> Option<u32> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(text).ok().filter(|_| digits)?;
    text.parse().ok().filter(|id| *id <= ID_MAX)
}

/// A line that is none is left out.
fn row(line: &[u8]) -> Option<Row<'_>> {
    let fields: Vec<&[u8]> = line.splitn(8, |byte| *byte == b':').collect();
    let [name, _, uid, gid, _, home, ..] = fields.as_slice() else {
        return None;
    };
    Some(Row {
        name,
        uid: number(uid)?,
        gid: number(gid)?,
        home,
    })
}

fn home(row: &Row<'_>) -> Option<String> {
    let text = std::str::from_utf8(row.home).ok()?;
    let good =
        text.starts_with('/') && text.len() <= HOME_BYTES && !text.contains(char::is_control);
    good.then(|| text.to_owned())
}

/// A file of `/etc`; empty where there is none that can be reached without a link.
fn read(stack: &Stack, lower: &[PathBuf], name: &[u8]) -> Result<Vec<u8>> {
    let place = || lower.first().cloned().unwrap_or_default().join("etc");
    let Found::Here(found) = stack
        .find(&[b"etc", name])
        .map_err(at("look up", place()))?
    else {
        return Ok(Vec::new());
    };
    if FileType::from_raw_mode(found.stat.st_mode) != FileType::RegularFile {
        return Ok(Vec::new());
    }
    // Not blocking, should it have become a pipe.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file: OwnedFd = openat2(&found.directory, name, flags, Mode::empty(), BENEATH)
        .map_err(at("open", place()))?;
    let mut bytes = Vec::new();
    let most = FILE_BYTES + 1;
    File::from(file)
        .take(most)
        .read_to_end(&mut bytes)
        .map_err(at("read", place()))?;
    if bytes.len() as u64 == most {
        return Err(ImageError::Limit {
            what: format!("/etc/{} of the image", shown(name)),
            limit: "file-bytes",
            most: FILE_BYTES,
        });
    }
    Ok(bytes)
}
