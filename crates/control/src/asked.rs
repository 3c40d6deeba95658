//! Limits as a manifest or a caller asks for them, in the words of policy documents.

use std::collections::BTreeMap;

use leasehold_core::document::Fields;
use leasehold_core::limits::{OnDenied, OnOutputLimit};
use leasehold_core::policy::Number;
use serde_json::{Map, Value, json};

/// Numbers somebody asked for; what is absent was not asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Asked {
    /// The numbers.
    pub numbers: BTreeMap<Number, u64>,
    /// What reaching the output limit does.
    pub on_output: Option<OnOutputLimit>,
    /// What a limit that denies something does.
    pub on_denied: Option<OnDenied>,
}

impl Asked {
    /// Reads one section, such as `limits`, of a document.
    pub fn read(&mut self, top: &mut Fields<'_>, section: &'static str, leave_out: &[Number]) {
        let mut fields = top.map(section);
        for number in Number::of_section(section) {
            if leave_out.contains(&number) {
                continue;
            }
            let field = fields.get(number.place().1);
            if let Some(value) = field.and_then(|field| number.read(&field)) {
                self.numbers.insert(number, value);
            }
        }
        if section == "limits" {
            let words = [("cut", OnOutputLimit::Cut), ("kill", OnOutputLimit::Kill)];
            let field = fields.get("on_output");
            self.on_output = field.and_then(|field| field.word(&words));
            let words = [("note", OnDenied::Note), ("kill", OnDenied::Kill)];
            let field = fields.get("on_denied");
            self.on_denied = field.and_then(|field| field.word(&words));
        }
        fields.close();
    }

    /// A number that was asked for.
    #[must_use]
    pub fn get(&self, number: Number) -> Option<u64> {
        self.numbers.get(&number).copied()
    }

    /// The section `limits` as it is kept; `None` when nothing was asked for.
    #[must_use]
    pub fn limits_value(&self) -> Option<Value> {
        let mut fields: Map<String, Value> = Number::of_section("limits")
            .filter_map(|number| {
                let value = self.get(number)?;
                let value = match number {
                    Number::Inodes | Number::Pids | Number::Files => json!(value),
                    _ => json!(number.show(value)),
                };
                Some((number.place().1.to_owned(), value))
            })
            .collect();
        if let Some(on_output) = self.on_output {
            fields.insert("on_output".to_owned(), json!(on_output));
        }
        if let Some(on_denied) = self.on_denied {
            fields.insert("on_denied".to_owned(), json!(on_denied));
        }
        (!fields.is_empty()).then_some(Value::Object(fields))
    }
}
