//! What is handed over: one JSON text that needs nothing else to be checked.

use std::fmt;

use leasehold_core::event::{Event, TenantEntry};
use leasehold_core::id::RunId;
use leasehold_core::name::Name;
use leasehold_core::outcome::Outcome;
use serde::de::{DeserializeOwned, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::envelope::Envelope;
use super::fault::Fault;
use super::head::Anchor;
use super::statement::MadeFrom;

/// What a run's bundle calls itself.
pub const FORMAT: &str = "leasehold-evidence/1";
/// What a log's bundle calls itself.
pub const LOG_FORMAT: &str = "leasehold-log/1";
/// Largest bundle in bytes.
pub const BUNDLE_MAX: usize = 64 << 20;
/// Most events of a run that are checked.
pub const EVENTS_MAX: usize = 100_000;
/// Most entries of a log that are checked.
pub const ENTRIES_MAX: usize = 200_000;

/// What proves one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bundle {
    /// [`FORMAT`].
    pub format: String,
    /// From what it was made.
    pub made_from: MadeFrom,
    /// Which run.
    pub run: RunId,
    /// Whose; `local` for a run without a daemon.
    pub tenant: Name,
    /// The contract as admitted.
    pub contract: Value,
    /// What it came to.
    pub outcome: Outcome,
    /// Its chain.
    pub events: Vec<Event>,
    /// Where the tenant's log opens the run; absent without a daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened: Option<Anchor>,
    /// Where the tenant's log seals it; absent without a daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<Anchor>,
    /// The signed statement.
    pub statement: Envelope,
    /// The signed list of keys.
    pub keys: Envelope,
}

/// The whole log of a tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogBundle {
    /// [`LOG_FORMAT`].
    pub format: String,
    /// Whose.
    pub tenant: Name,
    /// Every entry.
    pub entries: Vec<TenantEntry>,
    /// The signed head.
    pub head: Envelope,
    /// The signed list of keys.
    pub keys: Envelope,
}

fn read<T: DeserializeOwned + Serialize>(text: &[u8]) -> Result<T, Fault> {
    if text.len() > BUNDLE_MAX {
        let why = format!("{} bytes are more than {BUNDLE_MAX}", text.len());
        return Err(Fault::Unreadable(why));
    }
    let unreadable = |error: serde_json::Error| Fault::Unreadable(error.to_string());
    // Nesting is bounded by the reader itself.
    let read: T = serde_json::from_slice(text).map_err(unreadable)?;
    let Once(given) = serde_json::from_slice(text).map_err(unreadable)?;
    let known = serde_json::to_value(&read).map_err(unreadable)?;
    match beyond(&given, &known) {
        None => Ok(read),
        Some(place) => Err(Fault::Unreadable(format!(
            "{} is nothing that this program knows, and nothing proves it",
            place.chars().take(128).collect::<String>()
        ))),
    }
}

/// Where a text says something that was not understood, so that no signature was compared with it: a
/// pointer. What was left away, or is null, says nothing.
fn beyond(given: &Value, known: &Value) -> Option<String> {
    let below = |name: &str, rest: String| format!("/{name}{rest}");
    match (given, known) {
        (Value::Null, _) => None,
        (Value::Object(given), Value::Object(known)) => given.iter().find_map(|(name, value)| {
            let known = known.get(name).unwrap_or(&Value::Null);
            beyond(value, known).map(|rest| below(name, rest))
        }),
        (Value::Array(given), Value::Array(known)) if given.len() == known.len() => {
            let mut pairs = given.iter().zip(known).enumerate();
            pairs.find_map(|(at, (given, known))| {
                beyond(given, known).map(|rest| below(&at.to_string(), rest))
            })
        }
        _ => (given != known).then(String::new),
    }
}

/// A JSON value in which no map has a name twice, so that every reader takes the same from it.
struct Once(Value);

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(Reading).map(Self)
    }
}

struct Reading;

impl<'de> Visitor<'de> for Reading {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut input: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Once(item)) = input.next_element()? {
            items.push(item);
        }
        Ok(items.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut input: A) -> Result<Value, A::Error> {
        let mut fields = serde_json::Map::new();
        while let Some((name, Once(value))) = input.next_entry::<String, Once>()? {
            let shown: String = name.chars().take(64).collect();
            if fields.insert(name, value).is_some() {
                return Err(A::Error::custom(format!(
                    "the name {shown:?} is there twice"
                )));
            }
        }
        Ok(fields.into())
    }
}

fn bounded(what: &str, count: usize, max: usize) -> Result<(), Fault> {
    if count > max {
        let why = format!("{count} {what} are more than {max}");
        return Err(Fault::Unreadable(why));
    }
    Ok(())
}

fn of_format(format: &str, known: &str) -> Result<(), Fault> {
    if format == known {
        return Ok(());
    }
    let shown: String = format.chars().take(64).collect();
    Err(Fault::Unreadable(format!(
        "its format is {shown:?}, this program knows {known:?}"
    )))
}

impl Bundle {
    /// Reads a bundle; nothing of it is believed yet.
    ///
    /// # Errors
    /// When it is no bundle or larger than bounds allow.
    pub fn read(text: &[u8]) -> Result<Self, Fault> {
        let bundle: Self = read(text)?;
        of_format(&bundle.format, FORMAT)?;
        bounded("events", bundle.events.len(), EVENTS_MAX)?;
        Ok(bundle)
    }

    /// The text that is handed over.
    ///
    /// # Errors
    /// Never for a value of this type; passed on all the same.
    pub fn text(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }
}

impl LogBundle {
    /// Reads a log; nothing of it is believed yet.
    ///
    /// # Errors
    /// When it is no log or larger than bounds allow.
    pub fn read(text: &[u8]) -> Result<Self, Fault> {
        let bundle: Self = read(text)?;
        of_format(&bundle.format, LOG_FORMAT)?;
        bounded("entries", bundle.entries.len(), ENTRIES_MAX)?;
        Ok(bundle)
    }
}
