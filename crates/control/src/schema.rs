//! JSON Schema of what goes into a tool and what comes out.
//!
//! A schema is written by whoever publishes a tool and is met by bytes of whoever calls it, so both are
//! bounded: draft 2020-12 alone, references within the schema alone and never in a circle, patterns of
//! an engine whose time is linear, and a bound on what the schema comes to with its references written
//! out.

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
/// Largest compiled pattern in bytes.
const PATTERN_MAX: usize = 1 << 20;
/// Most faults that are told of one value.
const FAULTS_MAX: usize = 16;

/// A schema that was understood.
#[derive(Clone)]
pub struct Schema {
    text: String,
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
                            "properties" | "patternProperties" | "$defs" | "definitions"
                            | "dependentSchemas",
                            Value::Object(named),
                        ) => named.values().try_fold(1_u64, |sum, each| {
                            Ok::<_, String>(sum.saturating_add(self.weigh(each)?))
                        })?,
                        ("const" | "enum" | "default" | "examples", _) => 1,
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
        let found = target
            .strip_prefix('#')
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
