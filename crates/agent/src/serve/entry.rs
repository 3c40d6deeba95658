//! What is told about one file or directory. Runs in a child that acts as the user.

use std::collections::BTreeMap;

use leasehold_protocol::envd::filesystem::{EntryInfo, FileType};
use rustix::fs::{FileType as Kind, Stat};
use rustix::io::Errno;

use super::users::Names;
use super::{metadata, paths};

/// Reads what is known of a path, without following it.
///
/// # Errors
/// As `lstat(2)`.
pub(super) fn read(path: &str, names: &Names) -> Result<EntryInfo, Errno> {
    let stat = rustix::fs::lstat(path)?;
    let mode = stat.st_mode;
    let mut entry = EntryInfo {
        name: paths::name(path).to_owned(),
        kind: kind(mode),
        path: path.to_owned(),
        size: stat.st_size,
        mode: mode & 0o777,
        permissions: permissions(mode),
        owner: names.user(stat.st_uid),
        group: names.group(stat.st_gid),
        modified_time: modified(&stat),
        metadata: BTreeMap::new(),
        ..EntryInfo::default()
    };
    if Kind::from_raw_mode(mode) == Kind::Symlink {
        follow(&mut entry);
    }
    if matches!(entry.kind, FileType::File | FileType::Directory) {
        entry.metadata = metadata::of_path(path);
    }
    Ok(entry)
}

/// A link reports the kind and permissions of what it leads to.
fn follow(entry: &mut EntryInfo) {
    entry.is_symlink = true;
    let target = std::fs::canonicalize(&entry.path);
    let target = target.map_or_else(
        |_| entry.path.clone(),
        |path| path.to_string_lossy().into_owned(),
    );
    let stat = rustix::fs::stat(&target);
    (entry.kind, entry.mode) = match stat {
        Ok(stat) if target != entry.path => (kind(stat.st_mode), stat.st_mode & 0o777),
        _ => (FileType::Unspecified, 0),
    };
    entry.symlink_target = Some(target);
}

fn kind(mode: u32) -> FileType {
    match Kind::from_raw_mode(mode) {
        Kind::RegularFile => FileType::File,
        Kind::Directory => FileType::Directory,
        _ => FileType::Unspecified,
    }
}

/// Kind and permissions as the official agent writes them: like `ls`, but one letter per special
/// property in front.
fn permissions(mode: u32) -> String {
    let mut text = String::new();
    text.push_str(match Kind::from_raw_mode(mode) {
        Kind::Directory => "d",
        Kind::Symlink => "L",
        Kind::BlockDevice | Kind::CharacterDevice => "D",
        Kind::Fifo => "p",
        Kind::Socket => "S",
        _ => "",
    });
    if mode & 0o4000 != 0 {
        text.push('u');
    }
    if mode & 0o2000 != 0 {
        text.push('g');
    }
    if Kind::from_raw_mode(mode) == Kind::CharacterDevice {
        text.push('c');
    }
    if mode & 0o1000 != 0 {
        text.push('t');
    }
    if text.is_empty() {
        text.push('-');
    }
    for (place, letter) in (0..9).rev().zip("rwxrwxrwx".chars()) {
        text.push(if mode >> place & 1 == 1 { letter } else { '-' });
    }
    text
}

fn modified(stat: &Stat) -> String {
    rfc3339(stat.st_mtime, stat.st_mtime_nsec as u32)
}

/// A time as RFC 3339 writes it, in UTC. Times outside the years 1 to 9999 become the nearest one.
pub(super) fn rfc3339(seconds: i64, nanos: u32) -> String {
    let seconds = seconds.clamp(-62_135_596_800, 253_402_300_799);
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    let nanos = nanos.min(999_999_999);
    let fraction = match nanos {
        0 => String::new(),
        n if n % 1_000_000 == 0 => format!(".{:03}", n / 1_000_000),
        n if n % 1_000 == 0 => format!(".{:06}", n / 1_000),
        n => format!(".{n:09}"),
    };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar: counts from the
/// first of March of year 0, so that the leap day is the last of its year.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_written_like_the_official_agent() {
        for (mode, text) in [
            (0o100644, "-rw-r--r--"),
            (0o040755, "drwxr-xr-x"),
            (0o120777, "Lrwxrwxrwx"),
            (0o041777, "dtrwxrwxrwx"),
            (0o104755, "urwxr-xr-x"),
            (0o020666, "Dcrw-rw-rw-"),
            (0o010600, "prw-------"),
        ] {
            assert_eq!(permissions(mode), text);
        }
    }

    #[test]
    fn times_are_written_in_utc() {
        for (seconds, nanos, text) in [
            (0, 0, "1970-01-01T00:00:00Z"),
            (951_782_400, 0, "2000-02-29T00:00:00Z"),
            (1_767_225_599, 5_000_000, "2025-12-31T23:59:59.005Z"),
            (-1, 1, "1969-12-31T23:59:59.000000001Z"),
            (i64::MAX, 0, "9999-12-31T23:59:59Z"),
            (i64::MIN, 0, "0001-01-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds, nanos), text);
        }
    }

    #[test]
    fn a_link_reports_what_it_leads_to() {
        let directory = std::env::temp_dir().join(format!("entry-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = |name: &str| directory.join(name).to_str().unwrap().to_owned();
        std::fs::write(path("file"), b"four").unwrap();
        std::os::unix::fs::symlink("file", path("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", path("dangling")).unwrap();
        std::os::unix::fs::symlink("loop", path("loop")).unwrap();
        let names = Names::default();
        let link = read(&path("link"), &names).unwrap();
        assert_eq!((link.kind, link.is_symlink), (FileType::File, true));
        assert!(link.symlink_target.unwrap().ends_with("/file"));
        for name in ["dangling", "loop"] {
            let entry = read(&path(name), &names).unwrap();
            assert_eq!((entry.kind, entry.mode), (FileType::Unspecified, 0));
        }
        assert_eq!(read(&path("absent"), &names), Err(Errno::NOENT));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
