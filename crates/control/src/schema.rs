//! JSON Schema of what goes into a tool and what comes out.
//!
//! A schema is written by whoever publishes a tool and is met by bytes of whoever calls it, so both are
//! bounded: draft 2020-12 alone, references within the schema alone and never in a circle, patterns of
//! an engine whose time is linear, and a bound on what the schema comes to with its references written
//! out. A value is checked where its size times the size of its schema is bounded, since that is the work.

use std::collections::BTreeMap;
use std::fmt;

use jsonschema::{Draft, PatternOptions, Validator};
use leasehold_core::document::parse_json;
use serde_json::Value;

use crate::plan::OutputCheck;

/// Largest schema as JSON text, in bytes.
pub const SCHEMA_MAX: usize = 64 << 10;
/// Most parts of a schema with its references written out.
pub const PARTS_MAX: u64 = 4_096;
/// Largest value that is checked, as JSON text, in bytes.
pub const VALUE_MAX: usize = 1 << 20;
/// What a pattern counts among the parts: as much memory as many others, and at most 64 in a schema.
const PATTERN_PARTS: u64 = 64;
/// Largest compiled pattern in bytes.
const PATTERN_MAX: usize = 128 << 10;
/// Most work of a check: parts of the schema times size of the value, see [`size`].
pub const WORK_MAX: u64 = 16 << 20;
/// Bytes of text that count as much as one value.
const TEXT_UNIT: usize = 16;
/// Most faults that are told of one value.
const FAULTS_MAX: usize = 16;

/// A schema that was understood.
#[derive(Clone)]
pub struct Schema {
    text: String,
    parts: u64,
    validator: std::sync::Arc<Validator>,
}

impl fmt::Debug for Schema {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Schema({})", self.text)
    }
}

impl PartialEq for Schema {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Schema {
    /// Understands a schema.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn compile(schema: &Value) -> Result<Self, String> {
        let text = schema.to_string();
        if text.len() > SCHEMA_MAX {
            return Err(format!(
                "the schema has {} bytes: most is {SCHEMA_MAX}",
                text.len()
            ));
        }
        if !schema.is_object() {
            return Err("a schema must be a map".to_owned());
        }
        let mut weigher = Weigher {
            root: schema,
            weights: BTreeMap::new(),
        };
        let parts = weigher.weigh(schema)?;
        if parts > PARTS_MAX {
            return Err(format!(
                "the schema comes to {parts} parts with its references written out: most is {PARTS_MAX}"
            ));
        }
        jsonschema::draft202012::meta::validate(schema).map_err(|error| {
            format!(
                "no valid schema at {:?}: {error}",
                error.instance_path().as_str()
            )
        })?;
        let validator = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .with_pattern_options(
                PatternOptions::regex()
                    .size_limit(PATTERN_MAX)
                    .dfa_size_limit(PATTERN_MAX),
            )
            .build(schema)
            .map_err(|error| {
                format!(
                    "no valid schema at {:?}: {error}",
                    error.instance_path().as_str()
                )
            })?;
        Ok(Self {
            text,
            parts,
            validator: std::sync::Arc::new(validator),
        })
    }

    /// The schema as JSON text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Checks a value.
    ///
    /// # Errors
    /// Each fault with a JSON pointer to where it is; the values themselves are not repeated.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        let size = size(value);
        if size.saturating_mul(self.parts) > WORK_MAX {
            return Err(format!(
                "/: its size is {size}: most is {} for a schema of {} parts",
                WORK_MAX / self.parts,
                self.parts
            ));
        }
        let faults: Vec<String> = self
            .validator
            .iter_errors(value)
            .take(FAULTS_MAX)
            .map(|error| {
                let pointer = error.instance_path().as_str();
                let pointer = if pointer.is_empty() { "/" } else { pointer };
                format!("{pointer}: {}", error.masked())
            })
            .collect();
        if faults.is_empty() {
            return Ok(());
        }
        Err(faults.join("; "))
    }
}

/// Size of a value: one for each value in it, and one for every 16 bytes of text.
fn size(value: &Value) -> u64 {
    let text = |text: &str| (text.len() / TEXT_UNIT) as u64;
    match value {
        Value::Array(items) => items.iter().fold(1, |sum, item| sum + size(item)),
        Value::Object(fields) => fields
            .iter()
            .fold(1, |sum, (name, item)| sum + text(name) + size(item)),
        Value::String(string) => 1 + text(string),
        _ => 1,
    }
}

/// Checks the standard output of a tool against its schema.
pub struct Structured(pub Schema);

impl OutputCheck for Structured {
    fn check(&self, stdout: &[u8]) -> Result<String, String> {
        if stdout.len() > VALUE_MAX {
            return Err(format!(
                "standard output has {} bytes: most for a structured output is {VALUE_MAX}",
                stdout.len()
            ));
        }
        let value = parse_json(stdout)
            .map_err(|error| format!("standard output is no JSON: {error}"))?
            .to_json();
        self.0.check(&value)?;
        Ok(value.to_string())
    }
}

/// Counts what a schema comes to, and refuses what could make its check unbounded.
struct Weigher<'a> {
    root: &'a Value,
    /// Weight by reference; `None` while it is being counted, which shows a circle.
    weights: BTreeMap<&'a str, Option<u64>>,
}

impl<'a> Weigher<'a> {
    fn weigh(&mut self, part: &'a Value) -> Result<u64, String> {
        match part {
            Value::Array(items) => items
                .iter()
                .try_fold(1_u64, |sum, item| Ok(sum.saturating_add(self.weigh(item)?))),
            Value::Object(fields) => {
                let mut sum = 1_u64;
                for (name, value) in fields {
                    let weight = match (name.as_str(), value) {
                        ("$ref", Value::String(target)) => self.follow(target)?,
                        ("pattern", Value::String(_)) => PATTERN_PARTS,
                        ("patternProperties", Value::Object(named)) => {
                            let patterns = PATTERN_PARTS.saturating_mul(named.len() as u64);
                            named.values().try_fold(patterns, |sum, each| {
                                Ok::<_, String>(sum.saturating_add(self.weigh(each)?))
                            })?
                        }
                        ("$schema", Value::String(uri)) if !uri.contains("2020-12") => {
                            return Err(format!(
                                "$schema {uri:?}: only draft 2020-12 is understood"
                            ));
                        }
                        (
                            "$id" | "$anchor" | "$dynamicRef" | "$dynamicAnchor",
                            Value::String(_),
                        ) => {
                            return Err(format!(
                                "{name} is not supported: refer by `#/$defs/…` within the schema"
                            ));
                        }
                        (
                            "properties" | "$defs" | "definitions" | "dependentSchemas",
                            Value::Object(named),
                        ) => named.values().try_fold(1_u64, |sum, each| {
                            Ok::<_, String>(sum.saturating_add(self.weigh(each)?))
                        })?,
                        // Long lists of plain values are looked up, not gone through.
                        ("const" | "enum", value) => 1 + size(value) / 16,
                        ("default" | "examples", _) => 1,
                        _ => self.weigh(value)?,
                    };
                    sum = sum.saturating_add(weight);
                }
                Ok(sum)
            }
            _ => Ok(1),
        }
    }

    fn follow(&mut self, target: &'a str) -> Result<u64, String> {
        match self.weights.get(target) {
            Some(Some(weight)) => return Ok(*weight),
            Some(None) => {
                return Err(format!(
                    "$ref {target:?} leads in a circle: that is not supported"
                ));
            }
            None => {}
        }
        // A pointer that is written with escapes would be read here in one way and by the engine in another.
        let found = target
            .strip_prefix('#')
            .filter(|pointer| !pointer.contains('%'))
            .and_then(|pointer| self.root.pointer(pointer))
            .ok_or_else(|| {
                format!("$ref {target:?} is not within the schema: write `#/$defs/…`; nothing is fetched")
            })?;
        self.weights.insert(target, None);
        let weight = self.weigh(found)?;
        self.weights.insert(target, Some(weight));
        Ok(weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn faults_are_told_with_a_pointer_and_without_the_value() {
        let schema = Schema::compile(&json!({
            "type": "object",
            "properties": {"words": {"type": "array", "items": {"$ref": "#/$defs/word"}}, "n": {"minimum": 0.5}},
            "required": ["words"],
            "additionalProperties": false,
            "$defs": {"word": {"type": "string", "pattern": "^[a-z]+$"}}
        }))
        .unwrap();
        assert_eq!(schema.check(&json!({"words": ["a"]})), Ok(()));
        let told = schema
            .check(&json!({"words": ["a", "SECRET", 3], "n": 0}))
            .unwrap_err();
        assert!(
            told.contains("/words/1: ") && told.contains("/words/2: ") && told.contains("/n: "),
            "{told}"
        );
        assert!(!told.contains("SECRET"), "{told}");
        assert!(schema.check(&json!({})).unwrap_err().contains("words"));
    }

    #[test]
    fn what_could_be_unbounded_or_fetched_is_refused() {
        let chain: serde_json::Map<String, Value> = (0..30)
            .map(|at| {
                let next = format!("#/$defs/a{}", at + 1);
                (
                    format!("a{at}"),
                    json!({"allOf": [{"$ref": next}, {"$ref": next}]}),
                )
            })
            .chain([("a30".to_owned(), json!({}))])
            .collect();
        for (schema, told) in [
            (json!({"$ref": "#"}), "circle"),
            (
                json!({"properties": {"a": {"$ref": "#/properties/b"}, "b": {"$ref": "#/properties/a"}}}),
                "circle",
            ),
            (json!({"properties": {"const": {"$ref": "#"}}}), "circle"),
            (
                json!({"$ref": "https://example.org/s.json"}),
                "nothing is fetched",
            ),
            (json!({"$ref": "file:///etc/passwd"}), "nothing is fetched"),
            (json!({"$defs": chain, "$ref": "#/$defs/a0"}), "parts"),
            (
                json!({"$schema": "http://json-schema.org/draft-07/schema#"}),
                "2020-12",
            ),
            (json!({"$id": "https://example.org/x"}), "not supported"),
            (json!({"type": "thing"}), "no valid schema"),
            (json!({"pattern": "(a"}), "no valid schema"),
            (json!({"pattern": "(a+)+(?=b)"}), "no valid schema"),
            (
                json!({"pattern": "(((a{999}){999}){999}){999}"}),
                "no valid schema",
            ),
            (json!({"description": "x".repeat(SCHEMA_MAX)}), "bytes"),
            (json!([]), "must be a map"),
        ] {
            let error = Schema::compile(&schema).unwrap_err();
            assert!(error.contains(told), "{told}: {error}");
        }
        let property =
            json!({"properties": {"$id": {"type": "string"}, "$ref": {"type": "string"}}});
        assert!(Schema::compile(&property).is_ok());
    }

    #[test]
    fn p18_a_reference_means_here_what_it_means_to_the_engine() {
        let mut defs = json!({"x0": {"type": "object"}});
        let mut decoys = json!({"x0": true});
        for at in 1..64 {
            let below = json!({"$ref": format!("#/%24defs/x{}", at - 1)});
            defs[format!("x{at}")] = json!({"allOf": [below, below]});
            decoys[format!("x{at}")] = json!(true);
        }
        let doubling = json!({"$ref": "#/%24defs/x63", "%24defs": decoys, "$defs": defs});
        let error = Schema::compile(&doubling).unwrap_err();
        assert!(error.contains("not within the schema"), "{error}");
    }

    #[test]
    fn p18_patterns_and_the_work_of_a_check_are_bounded() {
        let named = |count: usize, each: &str| -> Value {
            (0..count)
                .map(|at| (format!("{each}{at}"), json!({})))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        let many = json!({"patternProperties": named(65, "^a")});
        assert!(Schema::compile(&many).unwrap_err().contains("parts"));
        let few = json!({"patternProperties": named(60, "^a")});
        assert!(Schema::compile(&few).is_ok());
        let huge = json!({"pattern": "(\\p{L}{40}){8}"});
        assert!(Schema::compile(&huge).is_err());
        for usual in [
            r"^[\w.+-]+@[\w-]+\.[\w.]+$",
            r"^\d{4}-\d{2}-\d{2}$",
            "^[a-z0-9-]{1,63}$",
        ] {
            assert!(
                Schema::compile(&json!({"pattern": usual})).is_ok(),
                "{usual}"
            );
        }
        let choices: Vec<Value> = (0..1_000).map(|at| json!({"const": at})).collect();
        let schema = Schema::compile(&json!({"items": {"anyOf": choices}})).unwrap();
        assert_eq!(schema.check(&json!(vec![999; 1_000])), Ok(()));
        let error = schema.check(&json!(vec![999; 50_000])).unwrap_err();
        assert!(
            error.starts_with("/: its size is 50001: most is"),
            "{error}"
        );
        let long = json!({"properties": {"a": {"pattern": "^(x+x+)+y$"}}, "required": named(60, "p").as_object().unwrap().keys().collect::<Vec<_>>()});
        let schema = Schema::compile(&long).unwrap();
        assert!(schema.check(&json!({"a": "x".repeat(1 << 20)})).is_err());
    }

    #[test]
    fn output_is_one_json_value_that_fits_its_schema() {
        let check =
            Structured(Schema::compile(&json!({"type": "object", "required": ["n"]})).unwrap());
        assert_eq!(
            check.check(b" {\"n\": 1.5}\n"),
            Ok("{\"n\":1.5}".to_owned())
        );
        assert!(check.check(b"{}").unwrap_err().contains("n"));
        assert!(check.check(b"hello").unwrap_err().contains("no JSON"));
        assert!(check.check(b"{\"n\":1}{\"n\":2}").is_err());
        assert!(check.check(b"{\"n\":1,\"n\":2}").is_err());
        assert!(check.check(&vec![b' '; VALUE_MAX + 1]).is_err());
    }
}
