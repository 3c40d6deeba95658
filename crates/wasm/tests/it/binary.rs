//! Modules in binary form, piece by piece: for what is too large to write as text.

/// What a module consists of, in the order that the format wants.
#[derive(Debug, Default)]
pub(crate) struct Binary {
    sections: Vec<u8>,
}

/// Numbers of sections.
pub(crate) const TYPES: u8 = 1;
pub(crate) const IMPORTS: u8 = 2;
pub(crate) const FUNCTIONS: u8 = 3;
pub(crate) const TABLES: u8 = 4;
pub(crate) const MEMORIES: u8 = 5;
pub(crate) const GLOBALS: u8 = 6;
pub(crate) const EXPORTS: u8 = 7;
pub(crate) const ELEMENTS: u8 = 9;
pub(crate) const CODE: u8 = 10;
pub(crate) const DATA: u8 = 11;

/// A function that takes and gives nothing.
pub(crate) const NOTHING: &[u8] = &[0x60, 0, 0];

/// An unsigned number as the format writes it.
pub(crate) fn number(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

/// Bytes with their length before them.
pub(crate) fn sized(bytes: &[u8]) -> Vec<u8> {
    [number(bytes.len() as u64).as_slice(), bytes].concat()
}

/// An export or the end of an import: name, kind and index.
pub(crate) fn export(name: &str, kind: u8, index: u64) -> Vec<u8> {
    [sized(name.as_bytes()).as_slice(), &[kind], &number(index)].concat()
}

impl Binary {
    /// Adds a section of these items.
    pub(crate) fn section(self, number_of: u8, items: &[Vec<u8>]) -> Self {
        let all = [number(items.len() as u64), items.concat()].concat();
        self.raw(number_of, &all)
    }

    /// Adds a section with these bytes.
    pub(crate) fn raw(mut self, number_of: u8, bytes: &[u8]) -> Self {
        self.sections.push(number_of);
        self.sections.extend(sized(bytes));
        self
    }

    /// The same section item, over and over.
    pub(crate) fn many(self, number_of: u8, times: usize, item: &[u8]) -> Self {
        let all = [number(times as u64), item.repeat(times)].concat();
        self.raw(number_of, &all)
    }

    /// The module.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        [b"\0asm\x01\0\0\0", self.sections.as_slice()].concat()
    }
}

/// A command whose whole work is this body, with the declarations of locals before it, after what `before` adds
/// between its types and its exports.
pub(crate) fn command(body: &[u8], before: impl FnOnce(Binary) -> Binary) -> Vec<u8> {
    let declared = Binary::default()
        .many(TYPES, 1, NOTHING)
        .many(FUNCTIONS, 1, &[0]);
    before(declared)
        .section(EXPORTS, &[export("_start", 0, 0)])
        .section(CODE, &[sized(body)])
        .bytes()
}
