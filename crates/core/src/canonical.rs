//! The one form of JSON that is hashed, written without a tree of values in between.
//!
//! A value is written as serde gives it; an object whose keys did not come in order is put in order when it is
//! whole. The form itself is described at [`crate::digest`], whose [`canonical`](crate::digest::canonical) is the way in.

use serde::{Serialize, ser};

use crate::digest::{CanonicalError, DEPTH_MAX};

type Result<T> = std::result::Result<T, CanonicalError>;

impl ser::Error for CanonicalError {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self::Value(message.to_string())
    }
}

/// Writes values to a buffer. `depth` is that of the value that is next.
pub(crate) struct Writer<'a> {
    out: &'a mut Vec<u8>,
    depth: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, depth: 0 }
    }

    fn at(out: &'a mut Vec<u8>, depth: usize) -> Result<Self> {
        if depth > DEPTH_MAX {
            return Err(CanonicalError::Depth);
        }
        Ok(Self { out, depth })
    }

    /// A value that has no parts, written by the library that knows how.
    fn scalar<T: Serialize + ?Sized>(self, value: &T) -> Result<()> {
        serde_json::to_writer(self.out, value)
            .map_err(|error| CanonicalError::Value(error.to_string()))
    }

    fn array(self) -> Array<'a> {
        self.out.push(b'[');
        Array {
            out: self.out,
            depth: self.depth + 1,
            first: true,
            closes: 0,
        }
    }

    fn object(self) -> Object<'a> {
        self.out.push(b'{');
        Object {
            start: self.out.len(),
            out: self.out,
            depth: self.depth + 1,
            fields: Vec::with_capacity(8),
            closes: 0,
        }
    }

    /// `{"variant":`, in which something with parts follows.
    fn variant(self, variant: &'static str) -> Result<Self> {
        self.out.push(b'{');
        Writer::at(self.out, 0)?.scalar(variant)?;
        self.out.push(b':');
        Writer::at(self.out, self.depth + 1)
    }
}

/// An array that is being written.
pub(crate) struct Array<'a> {
    out: &'a mut Vec<u8>,
    /// Of its items.
    depth: usize,
    first: bool,
    /// Objects around it that end with it.
    closes: usize,
}

impl Array<'_> {
    fn item<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<()> {
        if !std::mem::take(&mut self.first) {
            self.out.push(b',');
        }
        item.serialize(Writer::at(self.out, self.depth)?)
    }

    fn close(self) {
        self.out.push(b']');
        self.out.extend(std::iter::repeat_n(b'}', self.closes));
    }
}

/// A field that was written: its key, and where it ends.
struct Field {
    key: std::borrow::Cow<'static, str>,
    end: usize,
}

/// An object that is being written, its fields one after another with a comma behind each.
pub(crate) struct Object<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    /// Of its fields.
    depth: usize,
    fields: Vec<Field>,
    closes: usize,
}

impl Object<'_> {
    fn key(&mut self, key: std::borrow::Cow<'static, str>) -> Result<()> {
        Writer::at(self.out, 0)?.scalar(key.as_ref())?;
        self.out.push(b':');
        self.fields.push(Field { key, end: 0 });
        Ok(())
    }

    fn value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        value.serialize(Writer::at(self.out, self.depth)?)?;
        self.out.push(b',');
        let end = self.out.len();
        match self.fields.last_mut() {
            Some(field) => field.end = end,
            None => return Err(ser::Error::custom("a value came without its key")),
        }
        Ok(())
    }

    fn close(self) {
        let Self {
            out, start, fields, ..
        } = self;
        let ordered = fields.windows(2).all(|pair| pair[0].key < pair[1].key);
        if !ordered {
            reorder(out, start, fields);
        }
        // The comma behind the last.
        if out.len() > start {
            out.pop();
        }
        out.extend(std::iter::repeat_n(b'}', 1 + self.closes));
    }
}

/// Puts fields in the order of their keys; of two with one key the last one stays.
fn reorder(out: &mut Vec<u8>, start: usize, fields: Vec<Field>) {
    let written = out.split_off(start);
    let mut begin = 0;
    let mut pieces: Vec<_> = fields
        .into_iter()
        .map(|field| {
            let end = field.end - start;
            let piece = &written[begin..end];
            begin = end;
            (field.key, piece)
        })
        .collect();
    pieces.sort_by(|left, right| left.0.cmp(&right.0));
    for (at, (key, piece)) in pieces.iter().enumerate() {
        if pieces.get(at + 1).is_none_or(|next| next.0 != *key) {
            out.extend_from_slice(piece);
        }
    }
}

/// The text of a key, which may be given as a number, too.
fn key_text<T: Serialize + ?Sized>(key: &T) -> Result<String> {
    let mut text = Vec::new();
    key.serialize(Writer::new(&mut text))?;
    let wrong = || CanonicalError::Value("key must be a string".to_owned());
    match text.first() {
        Some(b'"') => serde_json::from_slice(&text).map_err(|_| wrong()),
        Some(b'{' | b'[' | b'n') | None => Err(wrong()),
        Some(_) => String::from_utf8(text).map_err(|_| wrong()),
    }
}

macro_rules! scalars {
    ($($name:ident: $kind:ty),*) => {
        $(fn $name(self, value: $kind) -> Result<()> {
            self.scalar(&value)
        })*
    };
}

impl<'a> ser::Serializer for Writer<'a> {
    type Ok = ();
    type Error = CanonicalError;
    type SerializeSeq = Array<'a>;
    type SerializeTuple = Array<'a>;
    type SerializeTupleStruct = Array<'a>;
    type SerializeTupleVariant = Array<'a>;
    type SerializeMap = Object<'a>;
    type SerializeStruct = Object<'a>;
    type SerializeStructVariant = Object<'a>;

    scalars! {
        serialize_bool: bool, serialize_char: char, serialize_str: &str,
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64
    }

    fn serialize_f32(self, value: f32) -> Result<()> {
        self.serialize_f64(f64::from(value))
    }

    fn serialize_f64(self, value: f64) -> Result<()> {
        match serde_json::Number::from_f64(value) {
            Some(number) => Err(CanonicalError::Number(number.to_string())),
            None => self.serialize_unit(),
        }
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<()> {
        self.collect_seq(value)
    }

    fn serialize_none(self) -> Result<()> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<()> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<()> {
        self.out.extend_from_slice(b"null");
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<()> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<()> {
        self.scalar(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<()> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<()> {
        let inner = self.variant(variant)?;
        let depth = inner.depth;
        value.serialize(Writer::at(&mut *inner.out, depth)?)?;
        inner.out.push(b'}');
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Array<'a>> {
        Ok(self.array())
    }

    fn serialize_tuple(self, _: usize) -> Result<Array<'a>> {
        Ok(self.array())
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Array<'a>> {
        Ok(self.array())
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Array<'a>> {
        let array = self.variant(variant)?.array();
        Ok(Array { closes: 1, ..array })
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Object<'a>> {
        Ok(self.object())
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Object<'a>> {
        Ok(self.object())
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Object<'a>> {
        let object = self.variant(variant)?.object();
        Ok(Object {
            closes: 1,
            ..object
        })
    }
}

macro_rules! arrays {
    ($($kind:ident: $add:ident),*) => {
        $(impl ser::$kind for Array<'_> {
            type Ok = ();
            type Error = CanonicalError;

            fn $add<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<()> {
                self.item(item)
            }

            fn end(self) -> Result<()> {
                self.close();
                Ok(())
            }
        })*
    };
}

arrays! {
    SerializeSeq: serialize_element, SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field, SerializeTupleVariant: serialize_field
}

macro_rules! objects {
    ($($kind:ident),*) => {
        $(impl ser::$kind for Object<'_> {
            type Ok = ();
            type Error = CanonicalError;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                key: &'static str,
                value: &T,
            ) -> Result<()> {
                self.key(key.into())?;
                self.value(value)
            }

            fn end(self) -> Result<()> {
                self.close();
                Ok(())
            }
        })*
    };
}

objects! { SerializeStruct, SerializeStructVariant }

impl ser::SerializeMap for Object<'_> {
    type Ok = ();
    type Error = CanonicalError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<()> {
        let key = key_text(key)?;
        self.key(key.into())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        self.value(value)
    }

    fn end(self) -> Result<()> {
        self.close();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;
    use crate::digest::canonical;

    /// The form by way of a tree of values, whose objects are ordered maps.
    fn by_tree<T: Serialize>(value: &T) -> String {
        serde_json::to_string(&serde_json::to_value(value).unwrap()).unwrap()
    }

    fn same<T: Serialize>(value: &T) {
        let text = String::from_utf8(canonical(value).unwrap()).unwrap();
        assert_eq!(text, by_tree(value));
    }

    #[derive(Serialize)]
    enum Kind {
        Unit,
        New(Option<u8>),
        Pair(i64, &'static str),
        Fields { z: bool, a: char },
    }

    #[derive(Serialize)]
    #[serde(tag = "kind", rename_all = "snake_case")]
    enum Tagged {
        Zero { b: u8, a: Vec<Kind> },
    }

    #[derive(Serialize)]
    struct Whole {
        z: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        left_out: Option<u8>,
        a: (i8, (), [u16; 0]),
        #[serde(flatten)]
        rest: BTreeMap<String, Value>,
        m: BTreeMap<u32, Tagged>,
        none: Option<u8>,
    }

    #[test]
    fn every_shape_has_the_form_that_a_tree_of_values_gives() {
        let kinds = || {
            vec![
                Kind::Unit,
                Kind::New(Some(7)),
                Kind::New(None),
                Kind::Pair(i64::MIN, "\u{1}\"\\é\u{2028}"),
                Kind::Fields { z: true, a: 'ü' },
            ]
        };
        let rest = json!({"é": [], "e": {}, "z": {"b": {"d": 1, "c": [null]}, "a": u64::MAX}, "a": "last"});
        let rest: BTreeMap<String, Value> = serde_json::from_value(rest).unwrap();
        let tagged = |a| Tagged::Zero { b: 1, a };
        // `z` and `a` come twice: the tree keeps what comes last.
        same(&Whole {
            z: u64::MAX,
            left_out: None,
            a: (-1, (), []),
            rest,
            m: BTreeMap::from([(2, tagged(kinds())), (10, tagged(vec![]))]),
            none: None,
        });
        same(&kinds());
        for value in [json!(null), json!(""), json!([[]]), json!({}), json!(-1)] {
            same(&value);
        }
    }

    /// A value whose objects have their keys in any order, and some of them twice.
    enum Any {
        Whole(i64),
        Large(u64),
        Text(String),
        List(Vec<Any>),
        Object(Vec<(String, Any)>),
    }

    impl Serialize for Any {
        fn serialize<S: ser::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
            match self {
                Self::Whole(number) => to.serialize_i64(*number),
                Self::Large(number) => to.serialize_u64(*number),
                Self::Text(text) => to.serialize_str(text),
                Self::List(items) => to.collect_seq(items),
                Self::Object(fields) => {
                    to.collect_map(fields.iter().map(|(key, value)| (key, value)))
                }
            }
        }
    }

    /// Numbers from a seed, the same in every run of the test.
    struct Seeded(u64);

    impl Seeded {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            (mixed ^ (mixed >> 31)) % bound
        }

        fn text(&mut self) -> String {
            // Beyond U+FFFF the order of UTF-16 is another one than that of UTF-8.
            const LETTERS: [char; 12] = [
                'a',
                'B',
                '"',
                '\\',
                '/',
                '\n',
                '\u{0}',
                '\u{7f}',
                'é',
                '\u{2028}',
                '\u{ffff}',
                '\u{1f600}',
            ];
            let letter = |seed: &mut Self| LETTERS[seed.below(12) as usize];
            (0..self.below(4)).map(|_| letter(self)).collect()
        }

        fn any(&mut self, depth: u64) -> Any {
            let items = |seed: &mut Self| 0..seed.below(5);
            match self.below(if depth == 0 { 3 } else { 6 }) {
                0 => Any::Whole([0, -1, 1 << 53, i64::MIN][self.below(4) as usize]),
                1 => Any::Large(u64::MAX - self.below(2)),
                2 => Any::Text(self.text()),
                3 => Any::List(items(self).map(|_| self.any(depth - 1)).collect()),
                _ => {
                    let fields = items(self).map(|_| (self.text(), self.any(depth - 1)));
                    Any::Object(fields.collect())
                }
            }
        }
    }

    #[test]
    fn any_value_has_the_form_that_a_tree_of_values_gives() {
        let mut seeded = Seeded(5);
        let mut longest = 0;
        for _ in 0..5_000 {
            let any = seeded.any(4);
            same(&any);
            longest = longest.max(by_tree(&any).len());
        }
        assert!(longest > 500, "{longest}");
    }

    #[test]
    fn what_is_no_json_is_refused() {
        let bad = BTreeMap::from([(vec![1], 1)]);
        assert!(matches!(canonical(&bad), Err(CanonicalError::Value(_))));
        assert_eq!(
            canonical(&Kind::New(Some(1))).unwrap(),
            br#"{"New":1}"#.to_vec()
        );
        assert_eq!(canonical(&f64::NAN).unwrap(), b"null".to_vec());
        assert_eq!(canonical(&1.0), Err(CanonicalError::Number("1.0".into())));
    }
}
