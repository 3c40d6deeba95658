//! YAML into the tree of [`leasehold_core::document`].
//!
//! The part of YAML 1.2 that means one thing to everybody: one document, maps with text names, lists and
//! scalars of the core schema (`yes` and `no` are texts). Anchors, aliases and tags are refused, so
//! nothing grows beyond what was written; a name twice in one map is refused.

use leasehold_core::document::{
    Content, DOCUMENT_MAX, Mistakes, NESTING_MAX, NODES_MAX, Node, parse_json,
};
use saphyr_parser::{Event, Parser, ScalarStyle, Span};

/// Reads YAML. Text that starts with `{` is read as JSON, by the stricter reader.
///
/// # Errors
/// When it is too large, is no YAML, uses what is refused here, or has a name twice. The line is given.
pub fn parse(text: &[u8]) -> Result<Node, Mistakes> {
    if text.len() > DOCUMENT_MAX {
        let message = format!(
            "the document has {} bytes: most is {DOCUMENT_MAX}",
            text.len()
        );
        return Err(Mistakes::one("", None, message));
    }
    let text = std::str::from_utf8(text)
        .map_err(|error| Mistakes::one("", None, format!("it is not UTF-8: {error}")))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('{') {
        return parse_json(text.as_bytes());
    }
    let mut tree = Tree::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            let line = line_of(error.marker().line());
            Mistakes::one("", line, format!("it is no valid YAML: {}", error.info()))
        })?;
        tree.take(event, span)?;
    }
    Ok(tree
        .root
        .unwrap_or_else(|| Node::bare(Content::Map(Vec::new()))))
}

fn line_of(line: usize) -> Option<u32> {
    u32::try_from(line).ok()
}

/// A list or map that is not closed yet.
struct Open {
    line: Option<u32>,
    /// Name that waits for its value; always `None` in a list.
    name: Option<(String, Option<u32>)>,
    content: Content,
}

#[derive(Default)]
struct Tree {
    open: Vec<Open>,
    root: Option<Node>,
    nodes: usize,
    documents: usize,
}

impl Tree {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Mistakes> {
        let line = line_of(span.start.line());
        let refuse = |message: &str| Err(Mistakes::one("", line, message));
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return refuse("a second document: write one alone");
                }
                Ok(())
            }
            Event::Alias(_) => refuse("an alias (`*`): write the value out"),
            Event::Scalar(text, style, anchor, tag) => {
                plain(anchor, tag.is_some(), line)?;
                self.scalar(&text, style, line)
            }
            Event::SequenceStart(anchor, tag) => {
                plain(anchor, tag.is_some(), line)?;
                self.begin(Content::List(Vec::new()), line)
            }
            Event::MappingStart(anchor, tag) => {
                plain(anchor, tag.is_some(), line)?;
                self.begin(Content::Map(Vec::new()), line)
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(open) => self.put(Node {
                    line: open.line,
                    content: open.content,
                }),
                None => Ok(()),
            },
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
        }
    }

    fn count(&mut self, line: Option<u32>) -> Result<(), Mistakes> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            let message = format!("more than {NODES_MAX} values");
            return Err(Mistakes::one("", line, message));
        }
        Ok(())
    }

    fn begin(&mut self, content: Content, line: Option<u32>) -> Result<(), Mistakes> {
        self.count(line)?;
        if self.wants_name() {
            return Err(Mistakes::one("", line, "a name in a map must be a text"));
        }
        if self.open.len() >= NESTING_MAX {
            let message = format!("nested deeper than {NESTING_MAX}");
            return Err(Mistakes::one("", line, message));
        }
        self.open.push(Open {
            line,
            name: None,
            content,
        });
        Ok(())
    }

    fn wants_name(&self) -> bool {
        self.open
            .last()
            .is_some_and(|open| matches!(open.content, Content::Map(_)) && open.name.is_none())
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        line: Option<u32>,
    ) -> Result<(), Mistakes> {
        self.count(line)?;
        if !self.wants_name() {
            let content = match style {
                ScalarStyle::Plain => resolve(text),
                _ => Content::Text(text.to_owned()),
            };
            return self.put(Node { line, content });
        }
        let Some(open) = self.open.last_mut() else {
            return Ok(());
        };
        if let Content::Map(fields) = &open.content
            && fields.iter().any(|(name, _)| name == text)
        {
            let shown: String = text.chars().take(64).collect();
            let message = format!("the name {shown:?} is there twice");
            return Err(Mistakes::one("", line, message));
        }
        open.name = Some((text.to_owned(), line));
        Ok(())
    }

    fn put(&mut self, node: Node) -> Result<(), Mistakes> {
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match (&mut open.content, open.name.take()) {
            (Content::List(items), _) => items.push(node),
            (Content::Map(fields), Some((name, line))) => {
                // A fault in a value that is a map is best shown at its name.
                let line = line.or(node.line);
                fields.push((name, Node { line, ..node }));
            }
            _ => {
                let message = "a name in a map must be a text";
                return Err(Mistakes::one("", node.line, message));
            }
        }
        Ok(())
    }
}

fn plain(anchor: usize, tagged: bool, line: Option<u32>) -> Result<(), Mistakes> {
    if anchor != 0 {
        return Err(Mistakes::one("", line, "an anchor (`&`): write values out"));
    }
    if tagged {
        return Err(Mistakes::one("", line, "a tag (`!`): leave it away"));
    }
    Ok(())
}

/// A plain scalar by the core schema; numbers as JSON writes them, all else is text.
fn resolve(text: &str) -> Content {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Content::Null,
        "true" | "True" | "TRUE" => Content::Bool(true),
        "false" | "False" | "FALSE" => Content::Bool(false),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') => {
            match serde_json::from_str(text) {
                Ok(number) => Content::Number(number),
                Err(_) => Content::Text(text.to_owned()),
            }
        }
        _ => Content::Text(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_and_json_read_to_the_same_tree() {
        let yaml = "# a tool\na: 1\nb:\n  - x\n  - 'yes'\n  - no\n  - 0.5\n  - -3\nc: {d: true, e: ~, f: 1.4.0}\ng: |\n  two\n  lines\n";
        let json = r#"{"a":1,"b":["x","yes","no",0.5,-3],"c":{"d":true,"e":null,"f":"1.4.0"},"g":"two\nlines\n"}"#;
        assert_eq!(parse(yaml.as_bytes()).unwrap().to_json().to_string(), json);
        assert_eq!(parse(json.as_bytes()).unwrap().to_json().to_string(), json);
        assert_eq!(parse(b"").unwrap().to_json().to_string(), "{}");
    }

    #[test]
    fn lines_are_kept() {
        let node = parse(b"a: 1\nb:\n  c: 2\n").unwrap();
        let Content::Map(fields) = &node.content else {
            panic!("no map");
        };
        assert_eq!(fields[0].1.line, Some(1));
        assert_eq!(fields[1].1.line, Some(2));
    }

    #[test]
    fn what_could_grow_or_be_read_in_two_ways_is_refused() {
        for (text, told) in [
            (
                "a: 1\nb: 2\na: 3\n",
                "line 3: the name \"a\" is there twice",
            ),
            ("a: &x 1\n", "line 1: an anchor"),
            ("a: 1\nb: *x\n", ""),
            ("a: !!int 1\n", "line 1: a tag"),
            ("--- {a: 1}\n--- {b: 1}\n", "a second document"),
            ("? [a]\n: 1\n", "a name in a map must be a text"),
            ("a: [1\nb: 2\n", "it is no valid YAML"),
            ("{\"a\":1,\"a\":2}", "twice"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(told), "{text:?}: {error}");
        }
        let deep = format!("a: {}{}", "[".repeat(60), "]".repeat(60));
        assert!(
            parse(deep.as_bytes())
                .unwrap_err()
                .to_string()
                .contains("deeper")
        );
        let bomb = "a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n";
        assert!(
            parse(bomb.as_bytes())
                .unwrap_err()
                .to_string()
                .contains("anchor")
        );
        assert!(parse(b"a: \xff").is_err());
    }
}
