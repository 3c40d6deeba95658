//! JSON into the tree: a name twice in one map is a fault, and depth and count are bounded while reading.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};

use super::{Content, DOCUMENT_MAX, Mistakes, NESTING_MAX, NODES_MAX, Node};

/// Reads JSON.
///
/// # Errors
/// When it is too large, no JSON, nested too deep, or has a name twice.
pub fn parse_json(text: &[u8]) -> Result<Node, Mistakes> {
    if text.len() > DOCUMENT_MAX {
        return Err(Mistakes::one(
            "",
            None,
            format!(
                "the document has {} bytes: most is {DOCUMENT_MAX}",
                text.len()
            ),
        ));
    }
    let count = Cell::new(0);
    let mut input = serde_json::Deserializer::from_slice(text);
    let node = Seed {
        depth: 0,
        count: &count,
    }
    .deserialize(&mut input)
    .and_then(|node| input.end().map(|()| node));
    node.map_err(|error| {
        let line = u32::try_from(error.line()).ok().filter(|line| *line > 0);
        let text = error.to_string();
        let message = text.split(" at line ").next().unwrap_or_default();
        Mistakes::one("", line, format!("it is no valid JSON: {message}"))
    })
}

#[derive(Clone, Copy)]
struct Seed<'a> {
    depth: usize,
    count: &'a Cell<usize>,
}

impl Seed<'_> {
    fn inner<E: Error>(self) -> Result<Self, E> {
        if self.depth >= NESTING_MAX {
            return Err(E::custom(format!("nested deeper than {NESTING_MAX}")));
        }
        Ok(Self {
            depth: self.depth + 1,
            ..self
        })
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Node;

    fn deserialize<D: serde::Deserializer<'de>>(self, input: D) -> Result<Node, D::Error> {
        self.count.set(self.count.get() + 1);
        if self.count.get() > NODES_MAX {
            return Err(D::Error::custom(format!("more than {NODES_MAX} values")));
        }
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Node;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        Ok(Node::bare(Content::Null))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Node, E> {
        Ok(Node::bare(Content::Bool(value)))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Node, E> {
        Ok(Node::bare(Content::Number(value.into())))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Node, E> {
        Ok(Node::bare(Content::Number(value.into())))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Node, E> {
        serde_json::Number::from_f64(value)
            .map(|number| Node::bare(Content::Number(number)))
            .ok_or_else(|| E::custom("a number that is not finite"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Node, E> {
        Ok(Node::bare(Content::Text(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut input: A) -> Result<Node, A::Error> {
        let seed = self.inner()?;
        let mut items = Vec::new();
        while let Some(item) = input.next_element_seed(seed)? {
            items.push(item);
        }
        Ok(Node::bare(Content::List(items)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut input: A) -> Result<Node, A::Error> {
        let seed = self.inner()?;
        let mut fields: Vec<(String, Node)> = Vec::new();
        let mut names = std::collections::HashSet::new();
        while let Some(name) = input.next_key::<String>()? {
            if !names.insert(name.clone()) {
                let name: String = name.chars().take(64).collect();
                return Err(A::Error::custom(format!(
                    "the name {name:?} is there twice"
                )));
            }
            fields.push((name, input.next_value_seed(seed)?));
        }
        Ok(Node::bare(Content::Map(fields)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_reads_into_the_tree_and_back() {
        let text = r#"{"a":[1,-2,0.5,"x",true,null],"b":{}}"#;
        assert_eq!(
            parse_json(text.as_bytes()).unwrap().to_json().to_string(),
            text
        );
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for (text, word) in [
            (r#"{"a":1,"a":2}"#, "twice"),
            (r#"{"x":{"a":1,"a":2}}"#, "twice"),
            ("{} {}", "trailing"),
            ("", "EOF"),
            ("NaN", "expected"),
            ("1e999", "out of range"),
        ] {
            let error = parse_json(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
        let deep = "[".repeat(NESTING_MAX + 1) + &"]".repeat(NESTING_MAX + 1);
        let error = parse_json(deep.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("nested deeper"), "{error}");
        let long = format!("[{}1]", "1,".repeat(NODES_MAX));
        assert!(parse_json(long.as_bytes()).is_err());
        assert!(parse_json(&vec![b' '; DOCUMENT_MAX + 1]).is_err());
    }
}
