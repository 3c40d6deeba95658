//! WebAssembly as manifests and requests ask for it: which module, how exactly it repeats itself, and where its
//! bytes are once a run is admitted.

use leasehold_backend::wasm::Kind;
use leasehold_core::digest::Digest;
use leasehold_core::document::{Content, Field, Fields};
use leasehold_core::policy::Number;
use leasehold_core::spec::{Determinism, FIXED_CLOCK_MS, Script};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Most of a seed, a clock or fuel: the largest whole number that every reader of JSON keeps.
const NUMBER_MAX: u64 = (1 << 53) - 1;
/// Longest name of a template.
const TEMPLATE_MAX: usize = 63;

/// Longest module in bytes: what fits the archive of a tool.
pub const MODULE_MAX: usize = crate::archive::ARCHIVE_MAX;

/// Looks whether bytes begin as a module or component does, within the bound. What is wrong further on is the
/// compiler's to find.
///
/// # Errors
/// Why they are none.
pub(crate) fn check(bytes: &[u8]) -> Result<(), String> {
    if bytes.len() > MODULE_MAX {
        return Err(format!("{} bytes: most is {MODULE_MAX}", bytes.len()));
    }
    match Kind::of(bytes) {
        Some(_) => Ok(()),
        None => Err(
            "it begins with neither the magic number of a WebAssembly module nor that of a component"
                .to_owned(),
        ),
    }
}

/// What is said of limits that were asked for and bound nothing of a module: it has nothing that they could let
/// through. `tree` says whether it has a directory to write to.
#[must_use]
pub fn idle_limits(asked: impl Fn(Number) -> bool, tree: bool) -> Vec<String> {
    let told = [
        (
            asked(Number::Pids),
            "limits.pids: means nothing here: a module starts no process",
        ),
        (
            !tree && asked(Number::Disk),
            "limits.disk: means nothing here: it has no tree to write to",
        ),
        (
            !tree && asked(Number::Inodes),
            "limits.inodes: means nothing here: it has no tree to write to",
        ),
        (
            asked(Number::Grace),
            "limits.grace: means nothing here: a module is not asked to end, it is ended",
        ),
    ];
    let told = told.into_iter().filter(|(told, _)| *told);
    told.map(|(_, text)| text.to_owned()).collect()
}

/// How a module is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Manner {
    /// Fixed clocks and seeded random.
    pub determinism: Option<Determinism>,
    /// Most instructions, as the engine weighs them.
    pub fuel: Option<u64>,
}

impl Manner {
    /// Reads `deterministic` and `fuel`.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Self {
        let field = fields.get("deterministic");
        Self {
            determinism: field.and_then(|field| determinism(&field)),
            fuel: fields
                .get("fuel")
                .and_then(|field| field.count(1, NUMBER_MAX)),
        }
    }

    /// As [`Manner::read`] takes it.
    pub(crate) fn determinism_value(&self) -> Value {
        match self.determinism {
            Some(fixed) => json!({"seed": fixed.seed, "clock": fixed.clock_ms}),
            None => Value::Null,
        }
    }
}

/// `true`, `false`, or a map of seed and clock.
fn determinism(field: &Field<'_>) -> Option<Determinism> {
    match field.node.content {
        Content::Map(_) => {
            let mut fields = field.fields();
            let mut number = |name: &'static str, unsaid: u64| {
                let field = fields.get(name);
                field.map_or(Some(unsaid), |field| field.count(0, NUMBER_MAX))
            };
            let (seed, clock) = (number("seed", 0), number("clock", FIXED_CLOCK_MS));
            fields.close();
            Some(Determinism {
                seed: seed?,
                clock_ms: clock?,
            })
        }
        _ => field.bool()?.then(|| Determinism::of_seed(0)),
    }
}

/// The name of a template.
pub(crate) fn template_name(field: &Field<'_>) -> Option<String> {
    field.parsed(TEMPLATE_MAX, |text| {
        let good = text.starts_with(|c: char| c.is_ascii_lowercase())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        good.then(|| text.to_owned()).ok_or_else(|| {
            format!("{text:?}: expected the name of a template, such as python: a-z, 0-9 and `-`")
        })
    })
}

/// Where the bytes of a module are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModulePlace {
    /// A file of a tool.
    Tool(ToolFile),
    /// An object of its own: it was uploaded.
    Object,
    /// A template of this host, by its name.
    Template(String),
}

/// A file in the archive of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolFile {
    /// The archive.
    pub package: Digest,
    /// The file, as the manifest names it.
    pub file: String,
}

/// Where the text of a script is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScriptPlace {
    /// A file of a tool; it is the first argument.
    Tool(ToolFile),
    /// It came with the request.
    Given(Script),
}

/// The module of a run that is admitted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleStart {
    /// Where its bytes are.
    pub place: ModulePlace,
    /// Its script, where it is an interpreter that gets one as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<ScriptPlace>,
}

impl ModuleStart {
    /// Bytes of it that somebody sent.
    pub(crate) fn request_bytes(&self) -> usize {
        match &self.script {
            Some(ScriptPlace::Given(script)) => script.text.len(),
            Some(ScriptPlace::Tool(_)) | None => 0,
        }
    }
}
