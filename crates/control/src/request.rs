//! What a caller asks for: read strictly, bounded, and not believed. Everything in it can only narrow what
//! tool and policies allow.

use std::collections::BTreeMap;

use data_encoding::BASE64;
use leasehold_core::digest::{CanonicalError, Digest};
use leasehold_core::document::{Content, Field, Fields, Node, Report, parse_json};
use leasehold_core::error::PublicError;
use leasehold_core::isolation::Isolation;
use leasehold_core::name::{Name, NameError, ToolRef};
use leasehold_core::policy::{AllowList, Number};
use leasehold_core::spec::{ARGS_MAX, EXEC_BYTES_MAX, GLOBS_MAX, SCRIPT_BYTES_MAX, WorkspaceMode};
use serde_json::json;

use crate::asked::Asked;
use crate::image::{ImageWish, NAME_MAX, Pull};
use crate::manifest::read;
use crate::module::{Manner, template_name};
use crate::schema::VALUE_MAX;

/// Largest standard input of a bare command in bytes.
pub const STDIN_MAX: usize = 512 << 10;
/// What the word for a module in a policy's list of commands begins with; no native program's does.
pub const MODULE_WORD: &str = "wasm:";
/// Most permissions that are asked for.
const PERMISSIONS_MAX: usize = 256;

/// Which tool: a name alone takes the newest version that is no pre-release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolWish {
    /// Its name.
    pub name: Name,
    /// Its version, where one was named.
    pub exact: Option<ToolRef>,
}

impl ToolWish {
    /// Reads `name` or `name@version`.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.contains('@') {
            let exact = ToolRef::parse(text)?;
            return Ok(Self {
                name: exact.tool.clone(),
                exact: Some(exact),
            });
        }
        Ok(Self {
            name: Name::parse(text)?,
            exact: None,
        })
    }
}

/// What is to run.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// A published tool with its input, as JSON text without spaces.
    Tool {
        /// Which.
        tool: ToolWish,
        /// Its input; absent for none.
        input: Option<String>,
    },
    /// A command.
    Command {
        /// Program and arguments.
        argv: Vec<String>,
        /// Absolute working directory inside.
        cwd: Option<String>,
        /// What its standard input gives.
        stdin: Option<Vec<u8>>,
        /// The WebAssembly module that is run with these arguments, in the place of a program.
        module: Option<ModuleWish>,
    },
}

/// A WebAssembly module in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleWish {
    /// Which.
    pub from: ModuleFrom,
    /// How it runs.
    pub manner: Manner,
}

/// Where a module comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModuleFrom {
    /// It was uploaded before, under this digest.
    Upload(Digest),
    /// A template of the daemon's host. Its name is the first argument.
    Template {
        /// Its name.
        name: String,
        /// Text of the script that is named by the first argument behind that.
        script: Option<String>,
    },
}

impl ModuleFrom {
    /// What a policy's list of commands knows it by: nothing a caller may choose.
    #[must_use]
    pub fn command(&self) -> String {
        match self {
            Self::Upload(digest) => format!("{MODULE_WORD}{digest}"),
            Self::Template { name, .. } => format!("{MODULE_WORD}{name}"),
        }
    }
}

/// The tree it works in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WorkspaceWish {
    /// Empty, gone afterwards.
    #[default]
    Ephemeral,
    /// What was uploaded before under this digest, in a tree of its own.
    Upload(Digest),
    /// A directory of the host, whose descriptor a local caller passes beside the request. Never read
    /// from a document: a path or mode in one is refused.
    Directory(WorkspaceMode),
}

/// A request for a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRequest {
    /// What is to run.
    pub what: What,
    /// The image that a command runs in, in the place of the host's system tree.
    pub image: Option<ImageWish>,
    /// Variables.
    pub env: BTreeMap<String, String>,
    /// Limits, lifetimes, retention, priority and longest wait.
    pub asked: Asked,
    /// Place in the queue; higher goes first.
    pub priority: i32,
    /// The isolation that is preferred.
    pub isolation: Option<Isolation>,
    /// The tree it works in.
    pub workspace: WorkspaceWish,
    /// Globs of files that are kept.
    pub artifacts: Vec<String>,
    /// Permissions that are wanted; absent asks for all that may be had.
    pub permissions: Option<Vec<String>>,
}

impl RunRequest {
    /// Reads a JSON body.
    ///
    /// # Errors
    /// Names every field that is wrong, its value and what is allowed.
    pub fn parse(body: &[u8]) -> Result<Self, PublicError> {
        let wrong = |mistakes: leasehold_core::document::Mistakes| mistakes.public("request");
        let node = parse_json(body).map_err(wrong)?;
        Self::read(&node).map_err(wrong)
    }

    fn read(node: &Node) -> Result<Self, leasehold_core::document::Mistakes> {
        let report = Report::default();
        let mut top = Fields::of(node, &report);
        let what = what(&mut top, &report);
        let image = image(&mut top);
        let env = top.get("env").map(|field| read::variables(&field));
        let mut asked = Asked::default();
        asked.read(&mut top, "limits", &[]);
        asked.read(&mut top, "lifetimes", &[Number::IdleTimeout]);
        asked.read(&mut top, "retention", &[]);
        let wait = top
            .get("max_wait")
            .and_then(|field| Number::MaxWait.read(&field));
        asked
            .numbers
            .extend(wait.map(|wait| (Number::MaxWait, wait)));
        let priority = top
            .get("priority")
            .and_then(|field| field.count(-1_000, 1_000));
        let isolation = top
            .get("isolation")
            .and_then(|field| field.word(&Isolation::ALL.map(|level| (level.word(), level))));
        let workspace = workspace(&mut top);
        let artifacts = texts(&mut top, "artifacts", GLOBS_MAX, read::glob);
        let fewer = top.has("permissions");
        let permissions = texts(&mut top, "permissions", PERMISSIONS_MAX, |text| {
            AllowList::Permissions.check(text)?;
            match text.ends_with('*') {
                true => Err(format!("{text:?}: name each permission in full")),
                false => Ok(text.to_owned()),
            }
        });
        let permissions = fewer.then_some(permissions);
        top.close();
        report.finish(what.map(|what| Self {
            what,
            image,
            env: env.unwrap_or_default(),
            asked,
            priority: priority.unwrap_or(0),
            isolation,
            workspace,
            artifacts,
            permissions,
        }))
    }

    /// A bare command with nothing else asked.
    #[must_use]
    pub fn command<I: IntoIterator<Item = S>, S: Into<String>>(argv: I) -> Self {
        Self::of(What::Command {
            argv: argv.into_iter().map(Into::into).collect(),
            cwd: None,
            stdin: None,
            module: None,
        })
    }

    /// A request with nothing else asked.
    #[must_use]
    pub fn of(what: What) -> Self {
        Self {
            what,
            image: None,
            env: BTreeMap::new(),
            asked: Asked::default(),
            priority: 0,
            isolation: None,
            workspace: WorkspaceWish::Ephemeral,
            artifacts: Vec::new(),
            permissions: None,
        }
    }

    /// Digest of all that was asked for, by which an idempotency key knows the request again.
    ///
    /// # Errors
    /// Never for a request that was read.
    pub fn digest(&self) -> Result<Digest, CanonicalError> {
        let what = match &self.what {
            What::Tool { tool, input } => json!({
                "tool": tool.name,
                "exact": tool.exact,
                "input": input,
            }),
            What::Command {
                argv,
                cwd,
                stdin,
                module: None,
            } => json!({
                "argv": argv,
                "cwd": cwd,
                "stdin": stdin.as_deref().map(Digest::of),
            }),
            What::Command {
                argv,
                cwd,
                stdin,
                module: Some(module),
            } => json!({
                "argv": argv,
                "cwd": cwd,
                "stdin": stdin.as_deref().map(Digest::of),
                "module": module.from.command(),
                "script": match &module.from {
                    ModuleFrom::Template { script, .. } => {
                        script.as_ref().map(|text| Digest::of(text.as_bytes()))
                    }
                    ModuleFrom::Upload(_) => None,
                },
                "deterministic": module.manner.determinism,
                "fuel": module.manner.fuel,
            }),
        };
        let workspace = match self.workspace {
            WorkspaceWish::Ephemeral => json!(null),
            WorkspaceWish::Upload(digest) => json!(digest),
            WorkspaceWish::Directory(mode) => json!(mode),
        };
        let numbers: BTreeMap<String, u64> = self
            .asked
            .numbers
            .iter()
            .map(|(number, value)| (number.path(), *value))
            .collect();
        // Values of variables may be secret: only their digest is in what is hashed.
        let env: BTreeMap<&String, Digest> = self
            .env
            .iter()
            .map(|(name, value)| (name, Digest::of(value.as_bytes())))
            .collect();
        // What was asked for before there were images has the digest it had.
        let what = match &self.image {
            None => what,
            Some(ImageWish { name, pull }) => json!([what, name, pull]),
        };
        Digest::of_value(&json!({
            "what": what,
            "env": env,
            "numbers": numbers,
            "on_output": self.asked.on_output,
            "on_denied": self.asked.on_denied,
            "priority": self.priority,
            "isolation": self.isolation,
            "workspace": workspace,
            "artifacts": self.artifacts,
            "permissions": self.permissions,
        }))
    }
}

fn texts(
    top: &mut Fields<'_>,
    name: &'static str,
    most: usize,
    rule: impl Fn(&str) -> Result<String, String>,
) -> Vec<String> {
    let Some(field) = top.get(name) else {
        return Vec::new();
    };
    field
        .items(most)
        .iter()
        .filter_map(|item| item.parsed(1_024, &rule))
        .collect()
}

/// Exactly one of tool and command, and only what goes with it.
fn what(top: &mut Fields<'_>, report: &Report) -> Option<What> {
    let tool = top.get("tool");
    let command = top.get("command");
    let input = top.get("input");
    let rest = [top.get("cwd"), top.get("stdin"), top.get("stdin_base64")];
    let own = ["module", "interpreter", "script", "deterministic", "fuel"];
    let named = own.map(|name| top.get(name));
    let is_module = named[0].is_some() || named[1].is_some();
    match (tool, command) {
        (Some(tool), None) => {
            for field in rest.iter().flatten() {
                field.wrong("goes with `command` alone; a tool gets `input`");
            }
            for field in named.iter().flatten() {
                field.wrong("goes with `command` alone; a tool's manifest says it");
            }
            let input = match input {
                Some(field) => Some(input_text(&field)?),
                None => None,
            };
            let tool = tool.parsed(160, ToolWish::parse)?;
            Some(What::Tool { tool, input })
        }
        (None, Some(command)) => {
            if let Some(field) = input {
                field.wrong("goes with `tool` alone; a command gets `stdin`");
            }
            let [cwd, text, base64] = rest;
            if !is_module {
                for field in named.iter().flatten() {
                    field.wrong("goes with `module` or `interpreter` alone");
                }
            }
            let mut argv = argv(&command)?;
            let module = match is_module {
                true => Some(module_wish(top, &named, &mut argv)?),
                false => None,
            };
            Some(What::Command {
                argv,
                cwd: cwd.and_then(|field| cwd_text(&field)),
                stdin: stdin(text, base64),
                module,
            })
        }
        (Some(_), Some(command)) => {
            command.wrong("goes not with `tool`: ask for one of the two");
            None
        }
        (None, None) => {
            report.note("", None, "nothing to run: name a `tool` or a `command`");
            None
        }
    }
}

/// The image of a command.
fn image(top: &mut Fields<'_>) -> Option<ImageWish> {
    let (image, pull) = (top.get("image"), top.get("pull"));
    let Some(field) = image else {
        if let Some(pull) = pull {
            pull.wrong("goes with `image` alone");
        }
        return None;
    };
    if top.has("tool") {
        field.wrong("goes with `command` alone; a tool's manifest says it");
    }
    if top.has("module") || top.has("interpreter") {
        field.wrong("goes not with `module` and `interpreter`: these need no image");
    }
    let name = field.parsed(NAME_MAX, |text| {
        let good = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        good.then(|| text.to_owned())
            .ok_or_else(|| format!("{text:?}: expected NAME[:TAG][@sha256:…]"))
    })?;
    let pull = match pull {
        Some(field) => Pull::read(&field)?,
        None => Pull::default(),
    };
    Some(ImageWish { name, pull })
}

/// The module of a command, and its arguments as the module gets them.
fn module_wish(
    top: &mut Fields<'_>,
    named: &[Option<Field<'_>>; 5],
    argv: &mut Vec<String>,
) -> Option<ModuleWish> {
    let [module, interpreter, script, _, _] = named;
    let manner = Manner::read(top);
    let from = match (module, interpreter) {
        (Some(_), Some(interpreter)) => {
            interpreter.wrong("goes not with `module`: name one of the two");
            return None;
        }
        (Some(module), None) => {
            if let Some(script) = script {
                script.wrong("goes with `interpreter` alone");
            }
            ModuleFrom::Upload(module.parsed(128, Digest::parse)?)
        }
        (None, interpreter) => {
            let name = template_name(interpreter.as_ref()?)?;
            argv.insert(0, name.clone());
            let script = match script {
                Some(field) => Some(script_of(field)?),
                None => None,
            };
            ModuleFrom::Template { name, script }
        }
    };
    Some(ModuleWish { from, manner })
}

fn script_of(field: &Field<'_>) -> Option<String> {
    let Content::Text(text) = &field.node.content else {
        field.wrong(format!("{}: expected a text", field.node.shown()));
        return None;
    };
    if text.len() > SCRIPT_BYTES_MAX {
        let bytes = text.len();
        field.wrong(format!("{bytes} bytes: most is {SCRIPT_BYTES_MAX}"));
        return None;
    }
    if text.contains('\0') {
        field.wrong("has a NUL byte");
        return None;
    }
    Some(text.clone())
}

fn input_text(field: &Field<'_>) -> Option<String> {
    let text = field.node.to_json().to_string();
    if text.len() > VALUE_MAX {
        field.wrong(format!("{} bytes of JSON: most is {VALUE_MAX}", text.len()));
        return None;
    }
    Some(text)
}

fn argv(field: &Field<'_>) -> Option<Vec<String>> {
    let items = field.items(ARGS_MAX);
    let mut argv = Vec::with_capacity(items.len());
    for item in &items {
        match &item.node.content {
            Content::Text(text) if !text.contains('\0') => argv.push(text.clone()),
            Content::Text(_) => item.wrong("has a NUL byte"),
            _ => item.wrong(format!("{}: expected a text", item.node.shown())),
        }
    }
    if argv.first().is_none_or(String::is_empty) {
        field.wrong("empty: a list, program first");
        return None;
    }
    let bytes: usize = argv.iter().map(|argument| argument.len() + 1).sum();
    if bytes > EXEC_BYTES_MAX {
        field.wrong(format!("{bytes} bytes: most is {EXEC_BYTES_MAX}"));
        return None;
    }
    Some(argv)
}

fn cwd_text(field: &Field<'_>) -> Option<String> {
    field.parsed(4_096, |text| {
        if text.starts_with('/') && !text.contains('\0') {
            return Ok(text.to_owned());
        }
        Err(format!(
            "{text:?}: expected an absolute path inside the sandbox"
        ))
    })
}

fn stdin(text: Option<Field<'_>>, base64: Option<Field<'_>>) -> Option<Vec<u8>> {
    let bytes = match (&text, &base64) {
        (Some(_), Some(base64)) => {
            base64.wrong("goes not with `stdin`: give one of the two");
            return None;
        }
        (Some(field), None) => match &field.node.content {
            Content::Text(text) => text.clone().into_bytes(),
            _ => {
                field.wrong(format!("{}: expected a text", field.node.shown()));
                return None;
            }
        },
        (None, Some(field)) => field.parsed(STDIN_MAX.div_ceil(3) * 4, |text| {
            BASE64
                .decode(text.as_bytes())
                .map_err(|_| "expected base64 with its padding")
        })?,
        (None, None) => return None,
    };
    if bytes.len() > STDIN_MAX {
        if let Some(field) = text.or(base64) {
            field.wrong(format!(
                "{} bytes: most is {STDIN_MAX}; upload a workspace for more",
                bytes.len()
            ));
        }
        return None;
    }
    Some(bytes)
}

fn workspace(top: &mut Fields<'_>) -> WorkspaceWish {
    let Some(field) = top.get("workspace") else {
        return WorkspaceWish::Ephemeral;
    };
    let mut fields = field.fields();
    let upload = fields
        .need("mode", "one of ephemeral, upload")
        .and_then(|field| field.word(&[("ephemeral", false), ("upload", true)]));
    let wish = match upload {
        Some(true) => fields
            .need("content", "the digest that the upload was answered with")
            .and_then(|field| field.parsed(128, Digest::parse))
            .map_or(WorkspaceWish::Ephemeral, WorkspaceWish::Upload),
        _ => WorkspaceWish::Ephemeral,
    };
    fields.close();
    wish
}

#[cfg(test)]
mod tests;
