//! The Python template: pip fetches componentize-py, which starts the interpreter and keeps its memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::command::Tool;
use crate::error::{file, read};
use crate::work::Work;
use crate::{BuildError, Embedded, Input, Made, Packages, Recipe, digest, packages};

/// What is inside every Python template of ours.
const RUNNER: [Embedded; 6] = [
    embedded(
        "_leasehold/__init__.py",
        include_str!("../python/_leasehold/__init__.py"),
    ),
    embedded(
        "_leasehold/absent.py",
        include_str!("../python/_leasehold/absent.py"),
    ),
    embedded(
        "_leasehold/archive.py",
        include_str!("../python/_leasehold/archive.py"),
    ),
    embedded(
        "_leasehold/command.py",
        include_str!("../python/_leasehold/command.py"),
    ),
    embedded(
        "_leasehold/loop.py",
        include_str!("../python/_leasehold/loop.py"),
    ),
    embedded(
        "_leasehold/snapshot.py",
        include_str!("../python/_leasehold/snapshot.py"),
    ),
];
const WIT: [Embedded; 2] = [
    embedded("world.wit", include_str!("../python/wit/world.wit")),
    embedded("deps/cli.wit", include_str!("../python/wit/deps/cli.wit")),
];
const BUILD: [Embedded; 1] = [embedded("build.py", include_str!("../python/build.py"))];
/// The tool chain, pinned by version and digest.
const REQUIREMENTS: &str = include_str!("../python/requirements.txt");
/// Packages that every Python of ours has, pinned the same way.
const BAKED: &str = include_str!("../python/baked.txt");

const fn embedded(path: &'static str, text: &'static str) -> Embedded {
    Embedded { path, text }
}

/// What the interpreter says of itself when it is sealed.
#[derive(Deserialize)]
struct Sealed {
    version: String,
    modules: Vec<String>,
    left: Vec<String>,
}

pub(crate) fn inputs() -> Vec<Input> {
    let all = RUNNER.iter().chain(&WIT).chain(&BUILD);
    let ours = all.flat_map(|file| [file.path.as_bytes(), file.text.as_bytes()]);
    vec![
        Input {
            name: "runner".to_owned(),
            sha256: digest::list(ours),
        },
        Input {
            name: "tools".to_owned(),
            sha256: digest::of(REQUIREMENTS.as_bytes()),
        },
        Input {
            name: "baked".to_owned(),
            sha256: digest::of(BAKED.as_bytes()),
        },
    ]
}

pub(crate) fn make(recipe: &Recipe, tools: &Path, work: &Work) -> Result<Made, BuildError> {
    let chain = kept(tools, "python", REQUIREMENTS, work)?;
    let stage = work.write("stage", &RUNNER)?;
    work.write("wit", &WIT)?;
    work.write(".", &BUILD)?;
    let baked = work.folder("stage/site-packages")?;
    packages::copy(&kept(tools, "baked", BAKED, work)?, &baked)?;
    match &recipe.packages {
        Packages::None => {}
        Packages::Folder(folder) => packages::copy(folder, &baked)?,
        Packages::Requirements(list) => {
            let list = list.canonicalize().map_err(file("find", list))?;
            // Wheels that are the same on every machine.
            let pure = [
                "--platform",
                "any",
                "--implementation",
                "py",
                "--abi",
                "none",
                "--python-version",
                "3.14",
            ];
            install(work, &list.to_string_lossy(), &baked, &pure)?;
        }
    }
    packages::check(&baked)?;
    let listed = packages::listed(&baked)?;
    let settings = serde_json::json!({ "lazy": recipe.lazy });
    let path = stage.join("template.json");
    fs::write(&path, settings.to_string()).map_err(file("write", &path))?;

    let mut command = work.program("python3");
    command
        .args(["build.py", "component.wasm", "wit", "stage"])
        .env("PYTHONPATH", &chain);
    let log = work.path().join("build.log");
    let tool = Tool {
        what: "componentize-py",
        package: "python3",
        command,
        log: &log,
    };
    tool.run()?;
    let path = stage.join("sealed.json");
    let sealed: Sealed =
        serde_json::from_slice(&read(&path, 16 << 20)?).map_err(|error| BuildError::Odd {
            path,
            what: error.to_string(),
        })?;
    Ok(Made {
        component: work.path().join("component.wasm"),
        version: sealed.version,
        packages: listed,
        modules: sealed.modules,
        left: sealed.left,
    })
}

/// The folder with the packages of a pinned list, filled if it is not there.
fn kept(tools: &Path, name: &str, list: &'static str, work: &Work) -> Result<PathBuf, BuildError> {
    fs::create_dir_all(tools).map_err(file("create", tools))?;
    let tools = tools.canonicalize().map_err(file("find", tools))?;
    let place = tools.join(format!("{name}-{}", &digest::of(list.as_bytes())[..16]));
    if !place.is_dir() {
        work.write(".", &[embedded("requirements.txt", list)])?;
        let fresh = work.folder(name)?;
        let exact = ["--require-hashes", "--no-deps"];
        install(work, "requirements.txt", &fresh, &exact)?;
        settle(&fresh, &place)?;
    }
    Ok(place)
}

/// Puts a finished folder into its place; somebody else's that came first is as good.
pub(crate) fn settle(fresh: &Path, place: &Path) -> Result<(), BuildError> {
    match fs::rename(fresh, place) {
        Err(_) if place.is_dir() => Ok(()),
        moved => moved.map_err(file("put into place", place)),
    }
}

/// Has pip put what `list` names into `folder`: built packages only, since building one runs its code.
fn install(work: &Work, list: &str, folder: &Path, more: &[&str]) -> Result<(), BuildError> {
    // pip needs what the user has set of mirrors and certificates; it makes no part of a snapshot.
    let mut command = Command::new("python3");
    command
        .current_dir(work.path())
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-compile",
        ])
        .args(["--only-binary", ":all:", "--target"])
        .arg(folder)
        .args(more)
        .args(["-r", list]);
    let log = work.path().join("pip.log");
    let tool = Tool {
        what: "pip",
        package: "python3 and python3-pip",
        command,
        log: &log,
    };
    match tool.run() {
        Err(BuildError::Failed { log, .. }) if log.contains("No module named pip") => {
            Err(BuildError::NoPip)
        }
        done => done,
    }
}
