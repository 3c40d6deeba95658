//! What documents come to where they meet.

use serde::{Deserialize, Serialize};

use super::document::Document;
use super::list::{AllowList, Say};
use super::number::Number;
use super::scope::Scope;
use crate::digest::Digest;
use crate::isolation::{Isolation, TrustClass};
use crate::run_contract::PolicyUsed;
use crate::select::Placement;

/// One document in force at one scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    /// Where it holds.
    pub scope: Scope,
    /// Its version there; 0 for the one that is built in.
    pub version: u64,
    /// Digest of its canonical form.
    pub digest: Digest,
    /// What it says.
    pub document: Document,
}

impl Level {
    /// How it is named in texts: `tenant/acme (version 3)`.
    #[must_use]
    pub fn title(&self) -> String {
        match self.version {
            0 => format!("{} (built in)", self.scope),
            version => format!("{} (version {version})", self.scope),
        }
    }
}

/// Something that policy does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("policy does not allow {what} {thing:?}: {why}")]
pub struct Denied {
    /// The kind of thing, one word of [`AllowList`].
    pub what: &'static str,
    /// Which.
    pub thing: String,
    /// Which document does not allow it.
    pub why: String,
}

/// One effective value and who set it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// Path of the value.
    pub field: String,
    /// The value, as a document would have it.
    pub value: String,
    /// The documents that set it; empty where nobody did.
    pub set_by: Vec<String>,
}

/// What the documents of all levels come to. Without any level nothing is allowed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Effective {
    levels: Vec<Level>,
}

impl Effective {
    /// Lets documents meet. Their order does not matter to the result.
    #[must_use]
    pub fn meet(mut levels: Vec<Level>) -> Self {
        levels.sort_by(|left, right| left.scope.cmp(&right.scope));
        Self { levels }
    }

    /// The documents that have a say, outermost first.
    #[must_use]
    pub fn used(&self) -> Vec<PolicyUsed> {
        let used = |level: &Level| PolicyUsed {
            scope: level.scope.to_string(),
            version: level.version,
            digest: level.digest,
        };
        self.levels.iter().map(used).collect()
    }

    /// The most of a number, and the document that says so; `None` where nobody bounds it. What stands
    /// between tenants is the operator's word alone.
    #[must_use]
    pub fn cap(&self, number: Number) -> Option<(u64, &Level)> {
        self.levels
            .iter()
            .filter(|level| level.scope.of_operator() || !number.between_tenants())
            .filter_map(|level| Some((*level.document.numbers.get(&number)?, level)))
            .min_by_key(|(value, _)| *value)
    }

    /// The weakest isolation that is allowed, and the document that says so.
    #[must_use]
    pub fn floor(&self) -> (Isolation, Option<&Level>) {
        self.levels
            .iter()
            .filter_map(|level| Some((level.document.floor?, Some(level))))
            .reduce(|best, next| if next.0 > best.0 { next } else { best })
            .unwrap_or((Isolation::Process, None))
    }

    /// Whether every level that speaks allows it, and at least one of the operator's does.
    ///
    /// # Errors
    /// Names the document that does not.
    pub fn allows(&self, list: AllowList, thing: &str) -> Result<(), Denied> {
        let denied = |why: String| {
            Err(Denied {
                what: list.word(),
                thing: thing.chars().take(128).collect(),
                why,
            })
        };
        let mut spoken = false;
        for level in &self.levels {
            let Say::Only(entries) = level.document.list(list) else {
                continue;
            };
            spoken |= level.scope.of_operator();
            if entries.is_empty() {
                return denied(format!(
                    "`allow.{}` of {} is empty",
                    list.word(),
                    level.title()
                ));
            }
            if !entries.iter().any(|entry| list.entry_allows(entry, thing)) {
                return denied(format!(
                    "it is not in `allow.{}` of {}",
                    list.word(),
                    level.title()
                ));
            }
        }
        if spoken {
            return Ok(());
        }
        denied(format!(
            "no policy of the operator has a list `allow.{}`",
            list.word()
        ))
    }

    /// How far a tool is trusted: the least of what any level says; untrusted where the operator says nothing.
    #[must_use]
    pub fn trust_of_tool(&self, tool: &str) -> (TrustClass, Option<&Level>) {
        self.least_trust(|document| document.trust.of_tool(tool))
    }

    /// How far bare commands are trusted; untrusted where the operator says nothing.
    #[must_use]
    pub fn trust_of_commands(&self) -> (TrustClass, Option<&Level>) {
        self.least_trust(|document| document.trust.commands)
    }

    fn least_trust(
        &self,
        said: impl Fn(&Document) -> Option<TrustClass>,
    ) -> (TrustClass, Option<&Level>) {
        let speaking = self
            .levels
            .iter()
            .filter_map(|level| Some((said(&level.document)?, Some(level))));
        let given = self
            .levels
            .iter()
            .any(|level| level.scope.of_operator() && said(&level.document).is_some());
        speaking
            .min_by_key(|(class, _)| *class)
            .filter(|_| given)
            .unwrap_or((TrustClass::Untrusted, None))
    }

    /// The highest trust that any rule of these documents gives to a tool that a pattern names.
    #[must_use]
    pub fn most_trust(&self, pattern: &str) -> TrustClass {
        let rules = self
            .levels
            .iter()
            .flat_map(|level| &level.document.trust.tools);
        rules
            .filter(|(rule, _)| super::covers(rule, pattern) || super::covers(pattern, rule))
            .map(|(_, class)| *class)
            .max()
            .unwrap_or_default()
    }

    /// Every effective value and the documents that set it; for one tool, or for bare commands.
    #[must_use]
    pub fn explain(&self, tool: Option<&str>) -> Vec<Explained> {
        let row = |field: String, value: String, set_by: Option<&Level>| Explained {
            field,
            value,
            set_by: set_by.map(Level::title).into_iter().collect(),
        };
        let (floor, by) = self.floor();
        let mut rows = vec![row("isolation_floor".into(), floor.word().into(), by)];
        let ((class, by), field) = match tool {
            Some(tool) => (self.trust_of_tool(tool), format!("trust.tools.{tool}")),
            None => (self.trust_of_commands(), "trust.commands".to_owned()),
        };
        rows.push(row(field, class.word().into(), by));
        for number in Number::ALL {
            let cap = self.cap(number);
            let value = match cap.map(|(value, _)| value).or(number.unsaid()) {
                Some(value) => number.show(value),
                None => "unbounded".to_owned(),
            };
            rows.push(row(number.path(), value, cap.map(|(_, level)| level)));
        }
        rows.extend(AllowList::ALL.map(|list| self.explain_list(list)));
        rows
    }

    fn explain_list(&self, list: AllowList) -> Explained {
        let speaking: Vec<(&Level, &Vec<String>)> = self
            .levels
            .iter()
            .filter_map(|level| match level.document.list(list) {
                Say::Inherit => None,
                Say::Only(entries) => Some((level, entries)),
            })
            .collect();
        let mut common: Vec<String> = speaking
            .iter()
            .flat_map(|(_, entries)| entries.iter())
            .filter(|entry| self.allows(list, entry).is_ok())
            .cloned()
            .collect();
        common.sort();
        common.dedup();
        Explained {
            field: format!("allow.{}", list.word()),
            value: if common.is_empty() {
                "nothing".to_owned()
            } else {
                common.join(", ")
            },
            set_by: speaking.iter().map(|(level, _)| level.title()).collect(),
        }
    }
}

impl Placement for Effective {
    fn backend(&self, backend: &str) -> Option<String> {
        let denied = self.allows(AllowList::Backends, backend).err()?;
        Some(denied.to_string())
    }

    fn zone(&self, zone: &str) -> Option<String> {
        let denied = self.allows(AllowList::Placement, zone).err()?;
        Some(denied.to_string())
    }
}
