//! Taking a tree apart: a map's fields one by one, each read as what it should be.

use std::cell::RefCell;
use std::str::FromStr;

use super::{Content, FAULTS_MAX, Mistake, Mistakes, Node};
use crate::quantity;

/// Where mistakes are gathered while a document is read.
#[derive(Debug, Default)]
pub struct Report {
    mistakes: RefCell<Vec<Mistake>>,
}

impl Report {
    /// Notes one more, up to [`FAULTS_MAX`].
    pub fn note(&self, path: &str, line: Option<u32>, message: impl Into<String>) {
        let mut mistakes = self.mistakes.borrow_mut();
        if mistakes.len() < FAULTS_MAX {
            mistakes.push(Mistake {
                path: path.to_owned(),
                line,
                message: message.into(),
            });
        }
    }

    /// The value if nothing was wrong.
    ///
    /// # Errors
    /// Every mistake that was noted, or that the value is missing.
    pub fn finish<T>(self, value: Option<T>) -> Result<T, Mistakes> {
        let mistakes = self.mistakes.into_inner();
        match value {
            Some(value) if mistakes.is_empty() => Ok(value),
            _ if mistakes.is_empty() => Err(Mistakes::one("", None, "it is not complete")),
            _ => Err(Mistakes(mistakes)),
        }
    }
}

/// One field that is there and is not null.
#[derive(Clone)]
pub struct Field<'a> {
    /// Its path.
    pub path: String,
    /// Its part of the tree.
    pub node: &'a Node,
    report: &'a Report,
}

/// The fields of one map. What was never asked for is unknown, and a mistake at [`Fields::close`].
pub struct Fields<'a> {
    path: String,
    line: Option<u32>,
    fields: &'a [(String, Node)],
    known: Vec<&'static str>,
    report: &'a Report,
}

impl<'a> Fields<'a> {
    /// The fields of the whole document. Anything but a map is a mistake, and reads as an empty one.
    #[must_use]
    pub fn of(node: &'a Node, report: &'a Report) -> Self {
        Field {
            path: String::new(),
            node,
            report,
        }
        .fields()
    }

    fn join(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    /// A field, if it is there and not null.
    pub fn get(&mut self, name: &'static str) -> Option<Field<'a>> {
        self.known.push(name);
        let (_, node) = self.fields.iter().find(|(each, _)| each == name)?;
        (node.content != Content::Null).then(|| Field {
            path: self.join(name),
            node,
            report: self.report,
        })
    }

    /// Whether the field is written, be it as null.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(each, _)| each == name)
    }

    /// A field that must be there.
    pub fn need(&mut self, name: &'static str, wanted: &str) -> Option<Field<'a>> {
        let field = self.get(name);
        if field.is_none() {
            self.report.note(
                &self.join(name),
                self.line,
                format!("missing: expected {wanted}"),
            );
        }
        field
    }

    /// The fields of a map inside; absent reads as an empty one.
    pub fn map(&mut self, name: &'static str) -> Fields<'a> {
        match self.get(name) {
            Some(field) => field.fields(),
            None => Fields {
                path: self.join(name),
                line: self.line,
                fields: &[],
                known: Vec::new(),
                report: self.report,
            },
        }
    }

    /// Notes every field that nobody asked for.
    pub fn close(self) {
        for (name, node) in self.fields {
            if !self.known.contains(&name.as_str()) {
                let short: String = name.chars().take(64).collect();
                self.report.note(
                    &self.join(&short),
                    node.line,
                    format!("unknown field: known here are {}", self.known.join(", ")),
                );
            }
        }
    }
}

impl<'a> Field<'a> {
    /// Notes that this field is wrong.
    pub fn wrong(&self, message: impl Into<String>) {
        self.report.note(&self.path, self.node.line, message);
    }

    fn expected<T>(&self, wanted: &str) -> Option<T> {
        self.wrong(format!("{}: expected {wanted}", self.node.shown()));
        None
    }

    /// The fields, for a map.
    #[must_use]
    pub fn fields(&self) -> Fields<'a> {
        let fields = match &self.node.content {
            Content::Map(fields) => fields.as_slice(),
            _ => {
                self.expected::<()>("a map of fields");
                &[]
            }
        };
        Fields {
            path: self.path.clone(),
            line: self.node.line,
            fields,
            known: Vec::new(),
            report: self.report,
        }
    }

    /// The entries of a map whose names are free, at most `most`.
    #[must_use]
    pub fn entries(&self, most: usize) -> Vec<(&'a str, Field<'a>)> {
        let Content::Map(fields) = &self.node.content else {
            self.expected::<()>("a map");
            return Vec::new();
        };
        if fields.len() > most {
            self.wrong(format!("{} entries: most is {most}", fields.len()));
            return Vec::new();
        }
        let entry = |(name, node): &'a (String, Node)| {
            let shown: String = name.chars().take(64).collect();
            let field = Field {
                path: format!("{}.{shown}", self.path),
                node,
                report: self.report,
            };
            (name.as_str(), field)
        };
        fields.iter().map(entry).collect()
    }

    /// The items of a list, at most `most`. Null and an empty map read as an empty list.
    #[must_use]
    pub fn items(&self, most: usize) -> Vec<Field<'a>> {
        let items = match &self.node.content {
            Content::List(items) => items.as_slice(),
            Content::Map(fields) if fields.is_empty() => &[],
            _ => {
                self.expected::<()>("a list");
                &[]
            }
        };
        if items.len() > most {
            self.wrong(format!("{} items: most is {most}", items.len()));
            return Vec::new();
        }
        let item = |(at, node): (usize, &'a Node)| Field {
            path: format!("{}[{at}]", self.path),
            node,
            report: self.report,
        };
        items.iter().enumerate().map(item).collect()
    }

    /// A text of at most `most` bytes, without control characters but tab and line ends.
    #[must_use]
    pub fn text(&self, most: usize) -> Option<String> {
        let Content::Text(text) = &self.node.content else {
            let hint = match self.node.content {
                Content::Number(_) | Content::Bool(_) => "a text: write it in quotes",
                _ => "a text",
            };
            return self.expected(hint);
        };
        if text.len() > most {
            self.wrong(format!("{} bytes long: most is {most}", text.len()));
            return None;
        }
        if text
            .chars()
            .any(|c| c.is_control() && !matches!(c, '\t' | '\n' | '\r'))
        {
            self.wrong("has a control character: allowed are tab and line end alone");
            return None;
        }
        Some(text.clone())
    }

    /// A text that `read` makes a value of; its error is the message.
    pub fn parsed<T, E: std::fmt::Display>(
        &self,
        most: usize,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.text(most)?;
        read(&text)
            .map_err(|error| self.wrong(error.to_string()))
            .ok()
    }

    /// One of a closed set of words.
    pub fn word<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        if let Content::Text(text) = &self.node.content
            && let Some((_, value)) = words.iter().find(|(word, _)| word == text)
        {
            return Some(*value);
        }
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        self.expected(&format!("one of {}", known.join(", ")))
    }

    /// True or false.
    #[must_use]
    pub fn bool(&self) -> Option<bool> {
        match &self.node.content {
            Content::Bool(value) => Some(*value),
            _ => self.expected("true or false"),
        }
    }

    /// A text, or a number as it was written.
    fn written(&self) -> Option<String> {
        match &self.node.content {
            Content::Text(text) => Some(text.clone()),
            Content::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }

    fn quantity<T: PartialOrd + Copy>(
        &self,
        read: impl FnOnce(&str) -> Option<T>,
        (low, high): (T, T),
        wanted: &str,
    ) -> Option<T> {
        let value = self.written().as_deref().and_then(read);
        match value.filter(|value| (low..=high).contains(value)) {
            Some(value) => Some(value),
            None => self.expected(wanted),
        }
    }

    /// A size in bytes from `low` to `high`.
    #[must_use]
    pub fn bytes(&self, low: u64, high: u64) -> Option<u64> {
        let wanted = format!(
            "a size such as 512M ({} to {})",
            quantity::write_bytes(low),
            quantity::write_bytes(high)
        );
        let read = |text: &str| quantity::parse_bytes(text).ok();
        self.quantity(read, (low, high), &wanted)
    }

    /// A duration in milliseconds from `low` to `high`; a bare number is seconds.
    #[must_use]
    pub fn millis(&self, low: u64, high: u64) -> Option<u64> {
        let wanted = format!(
            "a duration such as 30s ({} to {})",
            quantity::write_millis(low),
            quantity::write_millis(high)
        );
        let read = |text: &str| {
            let duration = quantity::parse_duration(text).ok()?;
            u64::try_from(duration.as_millis()).ok()
        };
        self.quantity(read, (low, high), &wanted)
    }

    /// A processor share in thousandths of a core.
    #[must_use]
    pub fn cpu(&self) -> Option<u32> {
        let read = |text: &str| quantity::parse_cpu(text).ok();
        self.quantity(
            read,
            (10, 1_024_000),
            "cores such as 0.5 or 2 (0.01 to 1024)",
        )
    }

    /// A whole number from `low` to `high`.
    #[must_use]
    pub fn count<T>(&self, low: T, high: T) -> Option<T>
    where
        T: FromStr + PartialOrd + Copy + std::fmt::Display,
    {
        let wanted = format!("a whole number from {low} to {high}");
        let plain = |text: &str| {
            let digits = text.strip_prefix('-').unwrap_or(text);
            let good = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            good.then(|| text.parse().ok()).flatten()
        };
        match &self.node.content {
            Content::Number(_) => self.quantity(plain, (low, high), &wanted),
            _ => self.expected(&wanted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse_json;
    use super::*;

    #[test]
    fn every_mistake_is_told_with_path_value_and_what_is_allowed() {
        let node = parse_json(
            br#"{"limits":{"memory":"12X","pids":1.5,"cpu":"fast","wall":"x"},"list":[1],"color":1}"#,
        )
        .unwrap();
        let report = Report::default();
        let mut top = Fields::of(&node, &report);
        let mut limits = top.map("limits");
        assert!(
            limits
                .get("memory")
                .unwrap()
                .bytes(64 << 10, 1 << 40)
                .is_none()
        );
        assert!(limits.get("pids").unwrap().count(1_u32, 9).is_none());
        assert!(limits.get("cpu").unwrap().cpu().is_none());
        assert!(limits.get("wall").unwrap().millis(1, 3_600_000).is_none());
        limits.close();
        for item in top.get("list").unwrap().items(4) {
            assert!(item.text(9).is_none());
        }
        assert!(top.need("id", "a name").is_none());
        top.close();
        let told: Vec<String> = report
            .finish(Some(()))
            .unwrap_err()
            .0
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            told,
            [
                r#"limits.memory: "12X": expected a size such as 512M (64K to 1T)"#,
                "limits.pids: 1.5: expected a whole number from 1 to 9",
                r#"limits.cpu: "fast": expected cores such as 0.5 or 2 (0.01 to 1024)"#,
                r#"limits.wall: "x": expected a duration such as 30s (1ms to 1h)"#,
                "list[0]: 1: expected a text: write it in quotes",
                "id: missing: expected a name",
                "color: unknown field: known here are limits, list, id",
            ]
        );
    }

    #[test]
    fn null_says_the_same_as_leaving_it_away() {
        let node = parse_json(br#"{"a":null}"#).unwrap();
        let report = Report::default();
        let mut top = Fields::of(&node, &report);
        assert!(top.get("a").is_none() && top.has("a"));
        top.close();
        assert!(report.finish(Some(())).is_ok());
    }
}
