//! The one form in which trees of files travel: a plain tar archive, made the same way by everybody.
//!
//! Only folders and regular files, relative names without `.` and `..`, nothing twice, nothing below a
//! file, no owner and no time. Equal trees give equal bytes, so their digest names the tree. Whatever
//! else a tar archive can hold (links, devices, extended headers, sparse files) is refused: two readers
//! could understand it in two ways.

use std::collections::BTreeMap;

/// Where a tool's own files are below `/workspace`.
pub const TOOL_DIR: &str = ".tool";
/// Most bytes of an archive.
pub const ARCHIVE_MAX: usize = 64 << 20;
/// Most files and folders.
pub const ENTRIES_MAX: usize = 16_384;
/// Longest name, in bytes; it fits the oldest form of header in two parts.
pub const PATH_MAX: usize = 255;
/// Longest part of a name between two `/`, in bytes.
const PART_MAX: usize = 100;
/// Deepest folder.
pub const DEPTH_MAX: usize = 32;
const BLOCK: usize = 512;

/// One file or folder of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A folder.
    Folder,
    /// A regular file.
    File {
        /// Whether its owner may execute it.
        executable: bool,
        /// Its content.
        content: Vec<u8>,
    },
}

/// A tree by relative name with `/` between its parts; a folder sorts before what is in it.
pub type Tree = BTreeMap<String, Entry>;

/// What is wrong with an archive or tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// A name that is not allowed.
    #[error(
        "the name {0:?} is not allowed: relative, at most 255 bytes (100 between two `/`) and 32 deep, no `.`, `..`, backslash or control character"
    )]
    Name(String),
    /// It does not fit the bounds.
    #[error("the archive has {what}: most is {most}")]
    Bound {
        /// What there is too much of.
        what: String,
        /// The bound.
        most: usize,
    },
    /// It has something else than folders and regular files.
    #[error("{name:?} is {what}: only folders and regular files may be in an archive")]
    Kind {
        /// Which entry.
        name: String,
        /// What it is.
        what: &'static str,
    },
    /// A name is there twice, or is below a file.
    #[error("{0:?} is there twice or is below a file")]
    Twice(String),
    /// It says something where the tool's own files are.
    #[error(
        "{0:?} is in the place of a tool's own files, `.tool`: only a tool's publisher puts files there"
    )]
    Reserved(String),
    /// It is no archive of this form.
    #[error("it is no plain tar archive: {0}")]
    Form(&'static str),
}

/// Checks the name of an entry.
///
/// # Errors
/// When it is not allowed.
pub fn check_name(name: &str) -> Result<(), ArchiveError> {
    let part = |part: &str| {
        let plain = !part.contains('\\') && !part.chars().any(char::is_control);
        !part.is_empty() && part.len() <= PART_MAX && part != "." && part != ".." && plain
    };
    let good =
        name.len() <= PATH_MAX && name.split('/').count() <= DEPTH_MAX && name.split('/').all(part);
    good.then_some(())
        .ok_or_else(|| ArchiveError::Name(name.chars().take(80).collect()))
}

/// Whether a name is the place of a tool's own files or below it.
#[must_use]
pub fn is_of_tool(name: &str) -> bool {
    name.strip_prefix(TOOL_DIR)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Checks a caller's tree. It says nothing where a tool's own files are: else whoever may run a tool could
/// put another program into its place, or a module beside it, and have the tool's trust and rights.
///
/// # Errors
/// The first name that is there.
pub fn check_content(tree: &Tree) -> Result<(), ArchiveError> {
    match tree.keys().find(|name| is_of_tool(name)) {
        None => Ok(()),
        Some(name) => Err(ArchiveError::Reserved(name.clone())),
    }
}

/// Checks that every folder above an entry is a folder, and adds those that are not written.
fn complete(tree: &mut Tree) -> Result<(), ArchiveError> {
    let names: Vec<String> = tree.keys().cloned().collect();
    for name in names {
        for (at, _) in name.match_indices('/') {
            let above = tree.entry(name[..at].to_owned()).or_insert(Entry::Folder);
            if *above != Entry::Folder {
                return Err(ArchiveError::Twice(name.clone()));
            }
        }
    }
    bound(tree.len(), ENTRIES_MAX, "entries")
}

fn bound(number: usize, most: usize, what: &str) -> Result<(), ArchiveError> {
    if number <= most {
        return Ok(());
    }
    Err(ArchiveError::Bound {
        what: format!("{number} {what}"),
        most,
    })
}

/// Writes a tree. Equal trees give equal bytes.
///
/// # Errors
/// When a name is not allowed or the whole is too large.
pub fn pack(tree: &Tree) -> Result<Vec<u8>, ArchiveError> {
    let mut tree = tree.clone();
    tree.keys().try_for_each(|name| check_name(name))?;
    complete(&mut tree)?;
    let mut out = Vec::new();
    for (name, entry) in &tree {
        let (kind, mode, content): (u8, u64, &[u8]) = match entry {
            Entry::Folder => (b'5', 0o755, &[]),
            Entry::File {
                executable,
                content,
            } => (b'0', if *executable { 0o755 } else { 0o644 }, content),
        };
        bound(content.len(), ARCHIVE_MAX, "bytes in one file")?;
        out.extend_from_slice(&header(name, kind, mode, content.len() as u64)?);
        out.extend_from_slice(content);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
        bound(out.len(), ARCHIVE_MAX, "bytes")?;
    }
    out.resize(out.len() + 2 * BLOCK, 0);
    Ok(out)
}

/// Splits a name into the two fields of a header: at most 155 bytes, `/`, at most 100 bytes.
fn split(name: &str) -> Result<(&str, &str), ArchiveError> {
    if name.len() <= 100 {
        return Ok(("", name));
    }
    name.match_indices('/')
        .map(|(at, _)| (&name[..at], &name[at + 1..]))
        .find(|(prefix, rest)| prefix.len() <= 155 && rest.len() <= 100)
        .ok_or_else(|| ArchiveError::Name(name.chars().take(80).collect()))
}

fn header(name: &str, kind: u8, mode: u64, size: u64) -> Result<[u8; BLOCK], ArchiveError> {
    let (prefix, rest) = split(name)?;
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, rest.as_bytes());
    put(100, format!("{mode:07o}\0").as_bytes());
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    put(345, prefix.as_bytes());
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(block)
}

/// Reads an archive.
///
/// # Errors
/// At the first thing that is not of the form above.
pub fn unpack(bytes: &[u8]) -> Result<Tree, ArchiveError> {
    bound(bytes.len(), ARCHIVE_MAX + 2 * BLOCK, "bytes")?;
    let mut tree = Tree::new();
    let mut rest = bytes;
    loop {
        let Some((block, after)) = rest.split_at_checked(BLOCK) else {
            return Err(ArchiveError::Form("it is cut off"));
        };
        if block.iter().all(|byte| *byte == 0) {
            let zero = after.iter().all(|byte| *byte == 0);
            if !zero || after.len() < BLOCK {
                return Err(ArchiveError::Form(
                    "it goes on after its end, or its end is cut off",
                ));
            }
            break;
        }
        let (mut name, entry, after) = read(block, after)?;
        rest = after;
        // `tar -C DIR -c .` names everything from `.`, which is the tree itself.
        if name == "." && entry == Entry::Folder {
            continue;
        }
        if let Some(below) = name.strip_prefix("./") {
            name = below.to_owned();
        }
        check_name(&name)?;
        bound(tree.len() + 1, ENTRIES_MAX, "entries")?;
        let again = tree.insert(name.clone(), entry);
        // Writers may name a folder more than once; anything else would hide something.
        if again
            .is_some_and(|again| again != Entry::Folder || tree.get(&name) != Some(&Entry::Folder))
        {
            return Err(ArchiveError::Twice(name));
        }
    }
    complete(&mut tree)?;
    Ok(tree)
}

fn field(bytes: &[u8]) -> Result<&str, ArchiveError> {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    if bytes[end..].iter().any(|byte| *byte != 0) {
        return Err(ArchiveError::Form("a field goes on after its end"));
    }
    std::str::from_utf8(&bytes[..end]).map_err(|_| ArchiveError::Form("a name is not UTF-8"))
}

fn octal(bytes: &[u8]) -> Result<usize, ArchiveError> {
    const WRONG: ArchiveError = ArchiveError::Form("a number is not octal");
    let text = std::str::from_utf8(bytes).map_err(|_| WRONG)?;
    let text = text.trim_matches([' ', '\0']);
    if !text.bytes().all(|byte| (b'0'..=b'7').contains(&byte)) {
        return Err(WRONG);
    }
    usize::from_str_radix(text, 8).map_err(|_| WRONG)
}

fn read<'a>(block: &[u8], after: &'a [u8]) -> Result<(String, Entry, &'a [u8]), ArchiveError> {
    let sum: usize = block
        .iter()
        .enumerate()
        .map(|(at, byte)| {
            usize::from(if (148..156).contains(&at) {
                b' '
            } else {
                *byte
            })
        })
        .sum();
    if octal(&block[148..156])? != sum {
        return Err(ArchiveError::Form("a checksum is wrong"));
    }
    if !matches!(&block[257..265], b"ustar\x0000" | b"ustar  \0") {
        return Err(ArchiveError::Form("a header is not of the form ustar"));
    }
    let (prefix, rest) = (field(&block[345..500])?, field(&block[0..100])?);
    let mut name = match prefix {
        "" => rest.to_owned(),
        prefix => format!("{prefix}/{rest}"),
    };
    let size = octal(&block[124..136])?;
    let what = match block[156] {
        b'5' => {
            name.truncate(name.trim_end_matches('/').len());
            if size != 0 {
                return Err(ArchiveError::Form("a folder has content"));
            }
            return Ok((name, Entry::Folder, after));
        }
        b'0' | 0 => {
            let (content, _) = after
                .split_at_checked(size)
                .ok_or(ArchiveError::Form("it is cut off"))?;
            let after = after
                .get(size.next_multiple_of(BLOCK)..)
                .ok_or(ArchiveError::Form("it is cut off"))?;
            let entry = Entry::File {
                executable: octal(&block[100..108])? & 0o100 != 0,
                content: content.to_vec(),
            };
            return Ok((name, entry, after));
        }
        b'1' => "a hard link",
        b'2' => "a symbolic link",
        b'3' | b'4' => "a device",
        b'6' => "a pipe",
        b'x' | b'g' => "an extended header",
        b'L' | b'K' => "a long name of another form",
        _ => "of an unknown kind",
    };
    Err(ArchiveError::Kind { name, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &[u8]) -> Entry {
        Entry::File {
            executable: false,
            content: content.to_vec(),
        }
    }

    fn tree() -> Tree {
        let script = Entry::File {
            executable: true,
            content: vec![7; 1_000],
        };
        let long = format!("{0}/{0}/{1}", "d".repeat(60), "f".repeat(90));
        [
            ("a.py".to_owned(), file(b"print(1)\n")),
            ("b/c/run".to_owned(), script),
            ("empty".to_owned(), file(b"")),
            (long, file(b"x")),
        ]
        .into()
    }

    #[test]
    fn a_tree_packs_to_the_same_bytes_and_reads_back() {
        let bytes = pack(&tree()).unwrap();
        assert_eq!(bytes, pack(&tree()).unwrap());
        let read = unpack(&bytes).unwrap();
        assert_eq!(read.get("b/c"), Some(&Entry::Folder));
        for (name, entry) in tree() {
            assert_eq!(read.get(&name), Some(&entry), "{name}");
        }
        assert_eq!(pack(&read).unwrap(), bytes);
    }

    #[test]
    fn p68_names_that_leave_the_tree_and_kinds_that_point_elsewhere_are_refused() {
        for name in [
            "",
            "/etc/passwd",
            "..",
            "a/../b",
            "./a",
            "a//b",
            "a\\b",
            "a\nb",
            "a/",
        ] {
            let tree = Tree::from([(name.to_owned(), file(b""))]);
            assert!(pack(&tree).is_err(), "{name:?} was packed");
        }
        let good = pack(&Tree::from([("name".to_owned(), file(b"x"))])).unwrap();
        for (kind, word) in [
            (b'1', "hard link"),
            (b'2', "symbolic link"),
            (b'3', "device"),
            (b'6', "pipe"),
            (b'x', "extended"),
            (b'L', "long name"),
            (b'S', "unknown"),
        ] {
            let mut bad = good.clone();
            bad[156] = kind;
            let error = unpack(&summed(bad)).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let mut up = good.clone();
        up[..4].copy_from_slice(b"../x");
        assert!(matches!(unpack(&summed(up)), Err(ArchiveError::Name(_))));
        assert!(unpack(&summed(good)).is_ok());
    }

    #[test]
    fn p68_what_tar_writes_of_a_whole_folder_is_read_and_no_second_dot() {
        let named = |name: &str, kind: u8| {
            let mut bytes = pack(&Tree::from([("name".to_owned(), file(b""))])).unwrap();
            bytes[..100].fill(0);
            bytes[..name.len()].copy_from_slice(name.as_bytes());
            bytes[156] = kind;
            unpack(&summed(bytes))
        };
        assert_eq!(named("./", b'5').unwrap(), Tree::new());
        assert_eq!(
            named("./a", b'0').unwrap(),
            Tree::from([("a".to_owned(), file(b""))])
        );
        for (name, kind) in [
            ("././a", b'0'),
            ("./../a", b'0'),
            (".", b'0'),
            ("./", b'0'),
            ("a/./b", b'0'),
        ] {
            assert!(
                matches!(named(name, kind), Err(ArchiveError::Name(_))),
                "{name}"
            );
        }
        let tool = named("./.tool", b'5').unwrap();
        assert!(matches!(
            check_content(&tool),
            Err(ArchiveError::Reserved(_))
        ));
    }

    #[test]
    fn p68_a_callers_tree_says_nothing_where_a_tools_files_are() {
        for name in [".tool", ".tool/main.py", ".tool/a/b"] {
            let tree = Tree::from([(name.to_owned(), file(b""))]);
            let tree = unpack(&pack(&tree).unwrap()).unwrap();
            assert!(
                matches!(check_content(&tree), Err(ArchiveError::Reserved(_))),
                "{name}"
            );
        }
        for name in [".toolbox/a", "a/.tool/b", "tool/x"] {
            let tree = Tree::from([(name.to_owned(), file(b""))]);
            assert_eq!(check_content(&tree), Ok(()), "{name}");
        }
    }

    fn summed(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes[148..156].fill(b' ');
        let sum: u32 = bytes[..BLOCK].iter().map(|byte| u32::from(*byte)).sum();
        bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes
    }

    #[test]
    fn what_is_cut_altered_or_written_twice_is_refused() {
        let bytes = pack(&tree()).unwrap();
        for cut in [0, 1, 511, 512, 600, bytes.len() - 512, bytes.len() - 1] {
            assert!(unpack(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        let mut altered = bytes.clone();
        altered[0] ^= 1;
        assert_eq!(
            unpack(&altered),
            Err(ArchiveError::Form("a checksum is wrong"))
        );
        let one = pack(&Tree::from([("a".to_owned(), file(b""))])).unwrap();
        let twice = [&one[..BLOCK], &one].concat();
        assert_eq!(unpack(&twice), Err(ArchiveError::Twice("a".into())));
        let below = pack(&Tree::from([("a/b".to_owned(), file(b""))])).unwrap();
        let mixed = [&one[..BLOCK], &below[BLOCK..]].concat();
        assert_eq!(unpack(&mixed), Err(ArchiveError::Twice("a/b".into())));
    }
}
