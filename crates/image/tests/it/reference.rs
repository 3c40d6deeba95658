//! Archives that were changed at random, read by our reader and by the one that most programs use: what ours takes has
//! the same entries there, however the bytes come.

use std::io::Read;

use leasehold_image::tar::{Kind, Reader};

use crate::tarball::{Header, Tar, sum};

/// Changed archives that are read.
const ROUNDS: u64 = 20_000;

/// Name, size and kind of one entry.
type Row = (Vec<u8>, u64, u8);

/// Gives a few bytes at a time.
struct Slowly<'a>(&'a [u8]);

impl Read for Slowly<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let most = buffer.len().min(7);
        self.0.read(&mut buffer[..most])
    }
}

fn ours(archive: impl Read) -> Option<Vec<Row>> {
    let mut tar = Reader::new(archive);
    let mut rows = Vec::new();
    while let Some(entry) = tar.next_entry().ok()? {
        let kind = match entry.kind {
            Kind::File => b'0',
            Kind::HardLink => b'1',
            Kind::SymbolicLink => b'2',
            Kind::Directory => b'5',
            Kind::Special => b'3',
        };
        rows.push((entry.path, entry.size, kind));
    }
    Some(rows)
}

fn theirs(archive: &[u8]) -> Option<Vec<Row>> {
    let mut rows = Vec::new();
    let mut tar = tar::Archive::new(archive);
    for entry in tar.entries().ok()? {
        let entry = entry.ok()?;
        let kind = match entry.header().entry_type().as_byte() {
            // Of the old format, which ours takes for a directory; of a later one it refuses it.
            b'0' if entry.path_bytes().ends_with(b"/") => b'5',
            b'3' | b'4' | b'6' => b'3',
            b'g' => continue,
            kind => kind,
        };
        rows.push((entry.path_bytes().into_owned(), entry.size(), kind));
    }
    Some(rows)
}

fn seed() -> Vec<u8> {
    Tar::new()
        .directory("d/", 0o755)
        .file("d/file", &[b'x'; 700])
        .pax(&[("path", "d/long"), ("mtime", "1.5"), ("size", "3")])
        .header(&Header {
            name: b"short",
            size: 3,
            ..Header::default()
        })
        .data(b"abc")
        .extension(b'L', b"d/gnu\0", true)
        .header(&Header {
            name: b"cut",
            gnu: true,
            ..Header::default()
        })
        .link("l", "d")
        .hard_link("h", "d/file")
        .end()
}

/// P77: an archive has one list of entries, or none.
#[test]
fn p77_what_is_taken_has_the_same_entries_elsewhere() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let seed = seed();
    assert_eq!(ours(&seed[..]), theirs(&seed));
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..ROUNDS {
        let mut archive = seed.clone();
        for _ in 0..=random(3) {
            let block = random(archive.len() / 512) * 512;
            let at = block + random(512);
            archive[at] = match random(4) {
                0 => b'0' + random(10) as u8,
                1 => 0,
                2 => b"xgLKS125/.= "[random(12)],
                _ => random(256) as u8,
            };
            // A header whose sum is right again goes further.
            let header: &mut [u8; 512] = (&mut archive[block..block + 512]).try_into().unwrap();
            if &header[257..262] == b"ustar" {
                sum(header);
            }
        }
        let read = ours(&archive[..]);
        assert_eq!(read, ours(Slowly(&archive)));
        match read {
            None => refused += 1,
            Some(rows) => {
                taken += 1;
                assert_eq!(
                    Some(rows),
                    theirs(&archive),
                    "{:?}",
                    changed(&seed, &archive)
                );
            }
        }
    }
    assert!(
        taken > ROUNDS / 10 && refused > ROUNDS / 10,
        "{taken} and {refused}"
    );
}

/// Where two archives differ, to find out why.
fn changed(one: &[u8], other: &[u8]) -> Vec<(usize, u8, u8)> {
    let pairs = one.iter().zip(other).enumerate();
    let pairs = pairs.filter(|(_, (one, other))| one != other);
    pairs.map(|(at, (one, other))| (at, *one, *other)).collect()
}
