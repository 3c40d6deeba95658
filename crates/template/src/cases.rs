//! How the interpreters behave, as data: whatever runs templates is tested with these.
//!
//! The files in `cases` are YAML and tell their fields themselves. Who tests reads the text into a tree,
//! takes the tree apart with [`Case::read`], runs each case in a fresh instance of the template with
//! [`Case::folder`] preopened where it says so, and asks [`Case::mistakes`].

use std::fs;
use std::io;
use std::path::Path;

use leasehold_core::document::{Field, Fields, Mistakes, Node, Report};

/// The cases of Python, in YAML; the file tells its fields.
pub const PYTHON_CASES: &str = include_str!("../cases/python.yaml");

/// The cases of JavaScript, in YAML.
pub const JAVASCRIPT_CASES: &str = include_str!("../cases/javascript.yaml");

/// Where a case's folder is in the guest.
pub const FOLDER: &str = "/work";

const CASES_MAX: usize = 500;
const ITEMS_MAX: usize = 32;
const TEXT_MAX: usize = 16 << 10;

/// One run of an interpreter and what must come of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// What it shows.
    pub name: String,
    /// Arguments after the program's name.
    pub args: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// Standard input.
    pub stdin: String,
    /// Files of the folder that is preopened at [`FOLDER`] with all rights; none, none is.
    pub files: Vec<(String, String)>,
    /// Whether the outputs of two instances must not be the same.
    pub differs: bool,
    status: i32,
    stdout: Option<String>,
    stdout_has: Vec<String>,
    stderr_has: Vec<String>,
    written: Vec<(String, String)>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its status; `None` where it did not end by itself.
    pub status: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Case {
    /// The cases of a document.
    ///
    /// # Errors
    /// When a field is missing, unknown or of the wrong kind: all such mistakes.
    pub fn read(document: &Node) -> Result<Vec<Self>, Mistakes> {
        let report = Report::default();
        let mut fields = Fields::of(document, &report);
        let cases = fields
            .need("cases", "a list of cases")
            .map_or_else(Vec::new, |list| list.items(CASES_MAX));
        let cases: Vec<Self> = cases.iter().filter_map(Self::one).collect();
        fields.close();
        report.finish(Some(cases))
    }

    fn one(field: &Field<'_>) -> Option<Self> {
        let mut fields = field.fields();
        let case = Self {
            name: fields.need("name", "what it shows")?.text(TEXT_MAX)?,
            args: texts(fields.need("args", "a list of texts")),
            env: pairs(fields.get("env")),
            stdin: text(fields.get("stdin")).unwrap_or_default(),
            files: pairs(fields.get("files")),
            differs: fields.get("differs").and_then(|field| field.bool()) == Some(true),
            status: fields
                .get("status")
                .map_or(Some(0), |field| field.count(0, 255))?,
            stdout: text(fields.get("stdout")),
            stdout_has: texts(fields.get("stdout_has")),
            stderr_has: texts(fields.get("stderr_has")),
            written: pairs(fields.get("written")),
        };
        fields.close();
        Some(case)
    }

    /// Makes the folder that is preopened at [`FOLDER`], in the empty directory `place`; false where the case
    /// has none.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn folder(&self, place: &Path) -> io::Result<bool> {
        for (name, content) in &self.files {
            let path = place.join(name);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(path, content)?;
        }
        Ok(!self.files.is_empty())
    }

    /// What is not as it must be. `place` is the folder of [`Case::folder`] after the run.
    #[must_use]
    pub fn mistakes(&self, seen: &Seen, place: &Path) -> Vec<String> {
        let mut found = Vec::new();
        if seen.status != Some(self.status) {
            found.push(format!("status {:?}, not {}", seen.status, self.status));
        }
        let free = self.differs || !self.stdout_has.is_empty();
        let exact = self.stdout.as_deref().or((!free).then_some(""));
        if exact.is_some_and(|text| text != seen.stdout) {
            found.push(format!("stdout is not {exact:?}"));
        }
        if self.stderr_has.is_empty() && !seen.stderr.is_empty() {
            found.push("stderr is not empty".to_owned());
        }
        let lacks = |name, text: &str, wanted: &[String]| {
            let missing: Vec<&String> =
                wanted.iter().filter(|part| !text.contains(*part)).collect();
            (!missing.is_empty()).then(|| format!("{name} lacks {missing:?}"))
        };
        found.extend(lacks("stdout", &seen.stdout, &self.stdout_has));
        found.extend(lacks("stderr", &seen.stderr, &self.stderr_has));
        for (name, content) in &self.written {
            let read = fs::read_to_string(place.join(name));
            if read.as_ref().ok() != Some(content) {
                found.push(format!("file {name} is {read:?}"));
            }
        }
        found
    }
}

fn text(field: Option<Field<'_>>) -> Option<String> {
    field.and_then(|field| field.text(TEXT_MAX))
}

fn texts(field: Option<Field<'_>>) -> Vec<String> {
    let items = field.map_or_else(Vec::new, |field| field.items(ITEMS_MAX));
    items
        .iter()
        .filter_map(|item| item.text(TEXT_MAX))
        .collect()
}

fn pairs(field: Option<Field<'_>>) -> Vec<(String, String)> {
    let entries = field.map_or_else(Vec::new, |field| field.entries(ITEMS_MAX));
    let pair =
        |(name, field): &(&str, Field<'_>)| Some(((*name).to_owned(), field.text(TEXT_MAX)?));
    entries.iter().filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use leasehold_core::document::parse_json;

    fn case(text: &str) -> Case {
        let text = format!(r#"{{"cases": [{text}]}}"#);
        let mut cases = Case::read(&parse_json(text.as_bytes()).unwrap()).unwrap();
        cases.remove(0)
    }

    fn seen(status: i32, stdout: &str, stderr: &str) -> Seen {
        Seen {
            status: Some(status),
            stdout: stdout.to_owned(),
            stderr: stderr.to_owned(),
        }
    }

    #[test]
    fn the_cases_of_both_interpreters_are_read() {
        for (name, text) in [("python", PYTHON_CASES), ("javascript", JAVASCRIPT_CASES)] {
            let document = leasehold_control::yaml::parse(text.as_bytes()).unwrap();
            let cases =
                Case::read(&document).unwrap_or_else(|mistakes| panic!("{name}: {mistakes}"));
            assert!(cases.len() > 50, "{name}");
            let mut names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), cases.len(), "{name}: a name twice");
        }
    }

    #[test]
    fn a_field_that_nobody_knows_is_a_mistake() {
        let text = br#"{"cases": [{"name": "n", "args": [], "stdot": "1"}]}"#;
        let mistakes = Case::read(&parse_json(text).unwrap()).unwrap_err();
        assert!(mistakes.to_string().contains("stdot"), "{mistakes}");
    }

    #[test]
    fn every_difference_is_told() {
        let folder = Scratch::new();
        let place = folder.path();
        let silent = case(r#"{"name": "n", "args": []}"#);
        let told = case(
            r#"{"name": "n", "args": [], "status": 3, "stdout": "a", "stderr_has": ["b"], "files": {"d/f": "1"},
                "written": {"d/f": "2"}}"#,
        );
        assert!(!silent.folder(place).unwrap());
        assert!(told.folder(place).unwrap());
        assert_eq!(
            silent.mistakes(&seen(0, "", ""), place),
            Vec::<String>::new()
        );
        for wrong in [seen(1, "", ""), seen(0, "x", ""), seen(0, "", "x")] {
            assert_eq!(silent.mistakes(&wrong, place).len(), 1, "{wrong:?}");
        }
        assert_eq!(told.mistakes(&seen(0, "x", "x"), place).len(), 4);
        std::fs::write(place.join("d/f"), "2").unwrap();
        assert_eq!(
            told.mistakes(&seen(3, "a", "abc"), place),
            Vec::<String>::new()
        );
    }
}
