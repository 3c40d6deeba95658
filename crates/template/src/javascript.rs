//! The JavaScript template: npm fetches componentize-js, which starts the engine and keeps its memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::command::Tool;
use crate::error::{file, read};
use crate::python::settle;
use crate::work::Work;
use crate::{BuildError, Embedded, Input, Made, digest};

macro_rules! embedded {
    ($($path:literal),* $(,)?) => {
        [$(Embedded { path: $path, text: include_str!(concat!("../javascript/", $path)) }),*]
    };
}

/// What is inside the JavaScript template.
const RUNNER: [Embedded; 19] = embedded![
    "build.mjs",
    "src/absent.js",
    "src/app.js",
    "src/assert.js",
    "src/builtins.js",
    "src/errors.js",
    "src/files.js",
    "src/globals.js",
    "src/inspect.js",
    "src/modules.js",
    "src/process.js",
    "src/readline.js",
    "src/streams.js",
    "src/timers.js",
    "wit/world.wit",
    "wit/deps/cli.wit",
    "wit/deps/clocks.wit",
    "wit/deps/filesystem.wit",
    "wit/deps/io.wit",
];
/// The tool chain, pinned by version and digest.
const PACKAGES: [Embedded; 2] = embedded!["package.json", "package-lock.json"];

/// Oldest node that the tool chain runs on.
const NODE_MIN: u32 = 18;

/// What a program can require, as `src/builtins.js` has it.
const MODULES: [&str; 20] = [
    "assert",
    "assert/strict",
    "buffer",
    "console",
    "crypto",
    "events",
    "fs",
    "fs/promises",
    "module",
    "os",
    "path",
    "path/posix",
    "perf_hooks",
    "process",
    "readline",
    "timers",
    "timers/promises",
    "url",
    "util",
    "util/types",
];

fn contents(files: &[Embedded]) -> impl Iterator<Item = &[u8]> {
    files
        .iter()
        .flat_map(|file| [file.path.as_bytes(), file.text.as_bytes()])
}

pub(crate) fn inputs() -> Vec<Input> {
    vec![
        Input {
            name: "runner".to_owned(),
            sha256: digest::list(contents(&RUNNER)),
        },
        Input {
            name: "tools".to_owned(),
            sha256: digest::list(contents(&PACKAGES)),
        },
    ]
}

pub(crate) fn make(tools: &Path, work: &Work) -> Result<Made, BuildError> {
    new_enough(work)?;
    let tools = tool_chain(tools, work)?;
    work.write(".", &RUNNER)?;
    work.write(".", &PACKAGES)?;
    let link = work.path().join("node_modules");
    std::os::unix::fs::symlink(tools.join("node_modules"), &link).map_err(file("link", &link))?;
    let mut command = work.program("node");
    command.args(["build.mjs", "component.wasm", "wit", "src/app.js"]);
    let log = work.path().join("build.log");
    let tool = Tool {
        what: "componentize-js",
        package: "nodejs",
        command,
        log: &log,
    };
    tool.run()?;
    Ok(Made {
        component: work.path().join("component.wasm"),
        version: version()?,
        packages: Vec::new(),
        modules: MODULES.map(str::to_owned).to_vec(),
        left: Vec::new(),
    })
}

/// Refuses a node that the tool chain does not run on, before anything is fetched.
fn new_enough(work: &Work) -> Result<(), BuildError> {
    let mut command = work.program("node");
    command.arg("--version");
    let log = work.path().join("node.log");
    let tool = Tool {
        what: "node --version",
        package: "nodejs",
        command,
        log: &log,
    };
    tool.run()?;
    let told = String::from_utf8_lossy(&read(&log, 1 << 10)?)
        .trim()
        .to_owned();
    match major(&told) {
        Some(major) if major >= NODE_MIN => Ok(()),
        _ => Err(BuildError::TooOld {
            program: "node",
            found: told,
            least: NODE_MIN,
            package: "nodejs",
        }),
    }
}

/// `v20.20.2` is 20.
fn major(version: &str) -> Option<u32> {
    version.strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// The engine has no version of its own; its package has.
fn version() -> Result<String, BuildError> {
    let [manifest, _] = PACKAGES;
    let name = "@bytecodealliance/componentize-js";
    let value: Value = serde_json::from_str(manifest.text).unwrap_or_default();
    let pinned = value["dependencies"][name].as_str();
    let pinned = pinned.ok_or_else(|| BuildError::Odd {
        path: manifest.path.into(),
        what: format!("does not pin {name}"),
    })?;
    Ok(format!("SpiderMonkey of componentize-js {pinned}"))
}

/// The folder with the packages, filled if it is not there.
fn tool_chain(tools: &Path, work: &Work) -> Result<PathBuf, BuildError> {
    fs::create_dir_all(tools).map_err(file("create", tools))?;
    let tools = tools.canonicalize().map_err(file("find", tools))?;
    let digest = digest::list(contents(&PACKAGES));
    let place = tools.join(format!("javascript-{}", &digest[..16]));
    if !place.is_dir() {
        let fresh = work.write("tools", &PACKAGES)?;
        // npm needs what the user has set of mirrors and certificates; it makes no part of a snapshot.
        let mut command = Command::new("npm");
        command
            .current_dir(&fresh)
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
        let log = work.path().join("npm.log");
        let tool = Tool {
            what: "npm",
            package: "npm",
            command,
            log: &log,
        };
        tool.run()?;
        settle(&fresh, &place)?;
    }
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_is_pinned() {
        assert!(version().unwrap().ends_with("0.23.0"));
    }

    #[test]
    fn the_version_of_node_is_read() {
        assert_eq!(major("v20.20.2"), Some(20));
        assert_eq!(major("v18"), Some(18));
        assert_eq!(major("20.1"), None);
    }

    #[test]
    fn the_modules_told_are_those_that_are_there() {
        let builtins = RUNNER
            .iter()
            .find(|file| file.path.ends_with("builtins.js"));
        let text = builtins.unwrap().text;
        for module in MODULES.iter().filter(|module| **module != "module") {
            let quoted = format!("'{module}':");
            let plain = [format!(" {module},"), format!(" {module}:")];
            let there = text.contains(&quoted) || plain.iter().any(|form| text.contains(form));
            assert!(there, "{module}");
        }
    }
}
