//! JSON that can be read in one way: no key twice, and none that some readers take for another.

use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Number, Value};

use super::wrong;
use crate::error::{Result, shown};

/// A value with no key twice in it. Readers differ in which of the two they take.
pub(super) struct Strict(pub(super) Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        from.deserialize_any(Reader).map(Self)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JSON")
    }

    fn visit_unit<E>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> std::result::Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> std::result::Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> std::result::Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> std::result::Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> std::result::Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> std::result::Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Strict(value)) = from.next_element()? {
            all.push(value);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> std::result::Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(key) = from.next_key::<String>()? {
            if all.contains_key(&key) {
                let key = shown(key.as_bytes());
                return Err(A::Error::custom(format!("it has the key `{key}` twice")));
            }
            let Strict(value) = from.next_value()?;
            all.insert(key, value);
        }
        Ok(Value::Object(all))
    }
}

/// That no key is one of these but for the case of its letters, which some readers take for it.
///
/// # Errors
/// With the key.
pub(super) fn exact_keys(what: &str, object: &Map<String, Value>, known: &[&str]) -> Result<()> {
    for key in object.keys() {
        let like = known
            .iter()
            .find(|known| *known != key && known.eq_ignore_ascii_case(key));
        if let Some(known) = like {
            let key = shown(key.as_bytes());
            let why = format!("it has `{key}`, which others read as `{known}`");
            return Err(wrong(what, why));
        }
    }
    Ok(())
}

/// The same for a value, where it is an object.
pub(super) fn exact(what: &str, value: &Value, known: &[&str]) -> Result<()> {
    match value {
        Value::Object(object) => exact_keys(what, object, known),
        _ => Ok(()),
    }
}
