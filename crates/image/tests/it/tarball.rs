//! Archives written by hand, right and wrong ones.

/// An archive in the making.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tar {
    bytes: Vec<u8>,
}

/// One header; what is not said is as usual.
#[derive(Debug, Clone)]
pub(crate) struct Header<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) flag: u8,
    pub(crate) link: &'a [u8],
    pub(crate) size: u64,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) mtime: u64,
    /// Of GNU's format, instead of POSIX.
    pub(crate) gnu: bool,
}

impl Default for Header<'_> {
    fn default() -> Self {
        Self {
            name: b"",
            flag: b'0',
            link: b"",
            size: 0,
            mode: 0o644,
            uid: 0,
            gid: 0,
            mtime: 1_000_000_000,
            gnu: false,
        }
    }
}

fn octal(field: &mut [u8], value: u64) {
    let digits = field.len() - 1;
    let text = format!("{value:0digits$o}\0");
    field.copy_from_slice(text.as_bytes());
}

impl Header<'_> {
    /// Its block.
    pub(crate) fn block(&self) -> [u8; 512] {
        let mut block = [0; 512];
        block[..self.name.len()].copy_from_slice(self.name);
        octal(&mut block[100..108], self.mode.into());
        octal(&mut block[108..116], self.uid.min(0o7777777));
        octal(&mut block[116..124], self.gid.min(0o7777777));
        octal(&mut block[124..136], self.size);
        octal(&mut block[136..148], self.mtime);
        block[156] = self.flag;
        block[157..157 + self.link.len()].copy_from_slice(self.link);
        let magic = if self.gnu {
            b"ustar  \0"
        } else {
            b"ustar\x0000"
        };
        block[257..265].copy_from_slice(magic);
        sum(&mut block);
        block
    }
}

/// Puts the right checksum into a block.
pub(crate) fn sum(block: &mut [u8; 512]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

impl Tar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Bytes as they are.
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Data, and what it is filled up with.
    pub(crate) fn data(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        let end = self.bytes.len().next_multiple_of(512);
        self.bytes.resize(end, 0);
        self
    }

    pub(crate) fn header(self, header: &Header<'_>) -> Self {
        self.raw(&header.block())
    }

    pub(crate) fn file(self, name: &str, data: &[u8]) -> Self {
        self.file_mode(name, data, 0o644)
    }

    pub(crate) fn file_mode(self, name: &str, data: &[u8], mode: u32) -> Self {
        self.header(&Header {
            name: name.as_bytes(),
            size: data.len() as u64,
            mode,
            ..Header::default()
        })
        .data(data)
    }

    pub(crate) fn directory(self, name: &str, mode: u32) -> Self {
        self.header(&Header {
            name: name.as_bytes(),
            flag: b'5',
            mode,
            ..Header::default()
        })
    }

    pub(crate) fn link(self, name: &str, to: &str) -> Self {
        self.kind(name, b'2', to)
    }

    pub(crate) fn hard_link(self, name: &str, to: &str) -> Self {
        self.kind(name, b'1', to)
    }

    pub(crate) fn kind(self, name: &str, flag: u8, to: &str) -> Self {
        self.header(&Header {
            name: name.as_bytes(),
            flag,
            link: to.as_bytes(),
            ..Header::default()
        })
    }

    /// A PAX extension of these records.
    pub(crate) fn pax(self, records: &[(&str, &str)]) -> Self {
        let mut text = String::new();
        for (key, value) in records {
            let body = format!(" {key}={value}\n");
            let mut length = body.len() + 1;
            while length != body.len() + length.to_string().len() {
                length = body.len() + length.to_string().len();
            }
            text.push_str(&format!("{length}{body}"));
        }
        self.extension(b'x', text.as_bytes(), false)
    }

    pub(crate) fn extension(self, flag: u8, bytes: &[u8], gnu: bool) -> Self {
        self.header(&Header {
            name: b"extension",
            flag,
            size: bytes.len() as u64,
            gnu,
            ..Header::default()
        })
        .data(bytes)
    }

    /// The whole archive.
    pub(crate) fn end(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(&[0; 1_024]);
        self.bytes
    }

    /// What there is, without an end.
    pub(crate) fn cut(self) -> Vec<u8> {
        self.bytes
    }
}
