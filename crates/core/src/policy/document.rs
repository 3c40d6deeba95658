//! One policy document: from a tree to typed values, and back to the form that is hashed.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::list::{AllowList, ENTRIES_MAX, Say};
use super::number::{Number, Unit};
use crate::document::{Content, Field, Fields, Mistakes, Node, Report};
use crate::isolation::{Isolation, TrustClass};

/// Version of the form of documents.
pub(super) const FORM: u32 = 1;

/// Who is trusted, as one level says. Trust is only ever given here: what a manifest says of itself is a
/// wish. Where several levels speak, the least trust wins.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrustRules {
    /// Of bare commands.
    pub commands: Option<TrustClass>,
    /// Of tools, by name or start of names.
    pub tools: BTreeMap<String, TrustClass>,
}

impl TrustRules {
    /// What is said of a tool: the most exact rule.
    #[must_use]
    pub fn of_tool(&self, tool: &str) -> Option<TrustClass> {
        self.tools
            .iter()
            .filter(|(pattern, _)| super::covers(pattern, tool))
            .max_by_key(|(pattern, _)| (!pattern.ends_with('*'), pattern.len()))
            .map(|(_, class)| *class)
    }
}

/// One policy document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// For people.
    pub description: Option<String>,
    /// Weakest isolation.
    pub floor: Option<Isolation>,
    /// Most of each number; what is absent says nothing.
    pub numbers: BTreeMap<Number, u64>,
    /// What each list says.
    pub lists: BTreeMap<AllowList, Say>,
    /// Who is trusted.
    pub trust: TrustRules,
}

impl Document {
    /// Reads a document.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn read(node: &Node) -> Result<Self, Mistakes> {
        let report = Report::default();
        let mut top = Fields::of(node, &report);
        top.need("version", "1")
            .and_then(|field| field.count(FORM, FORM));
        let description = top.get("description").and_then(|field| field.text(4_096));
        let floor = top
            .get("isolation_floor")
            .and_then(|field| isolation(&field));
        let mut numbers = BTreeMap::new();
        for section in ["limits", "share", "lifetimes", "retention"] {
            let mut fields = top.map(section);
            for number in Number::of_section(section) {
                if let Some(value) = fields
                    .get(number.place().1)
                    .and_then(|field| number.read(&field))
                {
                    numbers.insert(number, value);
                }
            }
            fields.close();
        }
        let lists = lists(&mut top);
        let trust = trust(&mut top);
        top.close();
        report.finish(Some(Self {
            description,
            floor,
            numbers,
            lists,
            trust,
        }))
    }

    /// What a list says; a list that is not there allows nothing.
    #[must_use]
    pub fn list(&self, list: AllowList) -> &Say {
        const NOTHING: &Say = &Say::Only(Vec::new());
        self.lists.get(&list).unwrap_or(NOTHING)
    }

    /// The form that is kept and hashed. [`Document::read`] reads it back to the same document.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut top = Map::new();
        top.insert("version".into(), json!(FORM));
        if let Some(text) = &self.description {
            top.insert("description".into(), json!(text));
        }
        if let Some(floor) = self.floor {
            top.insert("isolation_floor".into(), json!(floor.word()));
        }
        for (number, value) in &self.numbers {
            let (section, field) = number.place();
            let value = match number.unit() {
                Unit::Count => json!(value),
                _ => json!(number.show(*value)),
            };
            let section = top.entry(section).or_insert_with(|| json!({}));
            if let Some(section) = section.as_object_mut() {
                section.insert(field.into(), value);
            }
        }
        // An empty list says what a missing one does, and a document that was written before there were images
        // keeps its digest.
        let silent = |list| list == AllowList::Images && *self.list(list) == Say::Only(Vec::new());
        let lists: Map<String, Value> = AllowList::ALL
            .into_iter()
            .filter(|list| !silent(*list))
            .map(|list| {
                let said = match self.list(list) {
                    Say::Inherit => json!("inherit"),
                    Say::Only(entries) => json!(entries),
                };
                (list.word().to_owned(), said)
            })
            .collect();
        top.insert("allow".into(), Value::Object(lists));
        let mut trust = Map::new();
        if let Some(class) = self.trust.commands {
            trust.insert("commands".into(), json!(class.word()));
        }
        if !self.trust.tools.is_empty() {
            let tools = self.trust.tools.iter();
            let tools: Map<String, Value> = tools
                .map(|(pattern, class)| (pattern.clone(), json!(class.word())))
                .collect();
            trust.insert("tools".into(), Value::Object(tools));
        }
        if !trust.is_empty() {
            top.insert("trust".into(), Value::Object(trust));
        }
        Value::Object(top)
    }
}

fn isolation(field: &Field<'_>) -> Option<Isolation> {
    field.word(&Isolation::ALL.map(|level| (level.word(), level)))
}

fn class(field: &Field<'_>) -> Option<TrustClass> {
    field.word(&TrustClass::ALL.map(|class| (class.word(), class)))
}

fn lists(top: &mut Fields<'_>) -> BTreeMap<AllowList, Say> {
    let mut said = BTreeMap::new();
    let mut fields = top.map("allow");
    for list in AllowList::ALL {
        let Some(field) = fields.get(list.word()) else {
            said.insert(list, Say::Only(Vec::new()));
            continue;
        };
        let say = match &field.node.content {
            Content::Text(word) if word == "inherit" => Say::Inherit,
            Content::Text(_) => {
                field.wrong(format!(
                    "{}: expected a list, or the word inherit",
                    field.node.shown()
                ));
                Say::Only(Vec::new())
            }
            _ => Say::Only(entries(list, &field)),
        };
        said.insert(list, say);
    }
    fields.close();
    said
}

fn entries(list: AllowList, field: &Field<'_>) -> Vec<String> {
    let mut entries: Vec<String> = field
        .items(ENTRIES_MAX)
        .iter()
        .filter_map(|item| item.parsed(512, |text| list.check(text).map(|()| text.to_owned())))
        .collect();
    entries.sort();
    entries.dedup();
    entries
}

fn trust(top: &mut Fields<'_>) -> TrustRules {
    let mut fields = top.map("trust");
    let commands = fields.get("commands").and_then(|field| class(&field));
    let mut tools = BTreeMap::new();
    if let Some(field) = fields.get("tools") {
        for (pattern, field) in field.entries(ENTRIES_MAX) {
            match AllowList::Tools.check(pattern) {
                Ok(()) => {
                    if let Some(class) = class(&field) {
                        tools.insert(pattern.to_owned(), class);
                    }
                }
                Err(error) => field.wrong(error),
            }
        }
    }
    fields.close();
    TrustRules { commands, tools }
}
