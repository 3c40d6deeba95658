//! The tree of a document.

use serde_json::{Map, Number, Value};

/// One part of a document and the line it stood in.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Line, from 1; absent where the text gives none.
    pub line: Option<u32>,
    /// What it is.
    pub content: Content,
}

/// What a part of a document is.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Nothing: the same as leaving it away.
    Null,
    /// True or false.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A text.
    Text(String),
    /// Parts in order.
    List(Vec<Node>),
    /// Named parts in order; no name is twice in it.
    Map(Vec<(String, Node)>),
}

impl Node {
    /// A part without a line.
    #[must_use]
    pub fn bare(content: Content) -> Self {
        Self {
            line: None,
            content,
        }
    }

    /// The same as a JSON value, without lines.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match &self.content {
            Content::Null => Value::Null,
            Content::Bool(value) => Value::Bool(*value),
            Content::Number(number) => Value::Number(number.clone()),
            Content::Text(text) => Value::String(text.clone()),
            Content::List(items) => Value::Array(items.iter().map(Self::to_json).collect()),
            Content::Map(fields) => Value::Object(
                fields
                    .iter()
                    .map(|(name, node)| (name.clone(), node.to_json()))
                    .collect::<Map<_, _>>(),
            ),
        }
    }

    /// What it is, for a fault: its text in quotes, or the kind of thing, cut to 64 characters.
    #[must_use]
    pub fn shown(&self) -> String {
        match &self.content {
            Content::Null => "nothing".to_owned(),
            Content::Bool(value) => value.to_string(),
            Content::Number(number) => number.to_string(),
            Content::Text(text) => format!("{:?}", text.chars().take(64).collect::<String>()),
            Content::List(items) => format!("a list of {}", items.len()),
            Content::Map(fields) => format!("a map of {}", fields.len()),
        }
    }
}
