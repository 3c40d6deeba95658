//! Builds snapshot templates: WebAssembly components that hold an interpreter as it is after its start.
//!
//! A template is an ordinary `wasi:cli/command`: it reads arguments, environment, standard input and the
//! directories it is given, writes its output and ends with a status. Every instance is a fresh interpreter
//! that starts in a few milliseconds, since what a start does was done once, in the build.
//!
//! [`build`] makes one from packages of PyPI or npm at pinned versions and digests, in a private folder. The
//! result is *not* the same byte for byte when it is built again: both tool chains draw random numbers and
//! read clocks while the interpreter starts. A template is therefore known by the digest in its manifest.
//!
//! The interpreters' own side is in `python/_leasehold` and `javascript/src`; how they behave is told case
//! by case in `cases`, which whatever runs them is tested with.

mod arguments;
mod build;
pub mod cases;
mod command;
mod digest;
mod error;
mod javascript;
mod manifest;
mod packages;
mod python;
mod scan;
#[cfg(test)]
mod scratch;
pub mod shelf;
mod work;

use std::path::{Path, PathBuf};

pub use build::build;
pub use error::BuildError;
pub use manifest::{Component, Input, Manifest};
pub use packages::Packages;

use shelf::Shelf;

/// Largest component that is taken from a tool chain, in bytes.
pub const COMPONENT_BYTES_MAX: u64 = 512 << 20;

/// Longest name of a template.
const NAME_MAX: usize = 64;

/// What decides, beside the inputs that it takes, what comes out.
const BUILDER: [&str; 4] = [
    include_str!("build.rs"),
    include_str!("python.rs"),
    include_str!("javascript.rs"),
    include_str!("scan.rs"),
];

/// An interpreter that templates are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interpreter {
    /// CPython with the standard library, as far as it is pure.
    Python,
    /// SpiderMonkey with the modules of node that need no system.
    JavaScript,
}

impl Interpreter {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Python, Self::JavaScript];

    /// Its name, which a template without packages of its own has too.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|interpreter| interpreter.name() == name)
    }
}

/// What is to be built.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// The template's name: letters, digits, `-` and `_`, at most 64.
    pub name: String,
    /// Its interpreter.
    pub interpreter: Interpreter,
    /// Packages that are baked in. Only Python takes any.
    pub packages: Packages,
    /// Modules of those packages that are in the template, but not imported in the build: those that act
    /// when they are imported, and those that cannot be imported without something a run has.
    pub lazy: Vec<String>,
}

impl Recipe {
    /// A template of an interpreter and nothing else.
    #[must_use]
    pub fn bare(interpreter: Interpreter) -> Self {
        Self {
            name: interpreter.name().to_owned(),
            interpreter,
            packages: Packages::None,
            lazy: Vec::new(),
        }
    }

    fn check(&self) -> Result<(), BuildError> {
        check_name(&self.name)?;
        if self.interpreter == Interpreter::JavaScript
            && (self.packages != Packages::None || !self.lazy.is_empty())
        {
            return Err(BuildError::NoPackages);
        }
        Ok(())
    }
}

/// Whether a template may be called so.
fn check_name(name: &str) -> Result<(), BuildError> {
    let fits = (1..=NAME_MAX).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    fits.then_some(())
        .ok_or_else(|| BuildError::Name(name.chars().take(80).collect()))
}

/// Where things are built.
#[derive(Debug, Clone)]
pub struct Places {
    /// Folder for the tool chains, kept from build to build.
    pub tools: PathBuf,
    /// Folder that gets `NAME.wasm` and `NAME.json`.
    pub output: PathBuf,
}

/// What the template would be made of, as far as it is known before it is built: the manifest of an earlier
/// build with the same list need not be built again.
///
/// # Errors
/// When the recipe makes no sense or its packages cannot be read.
pub fn inputs(recipe: &Recipe) -> Result<Vec<Input>, BuildError> {
    recipe.check()?;
    let mut inputs = own_inputs(recipe.interpreter);
    inputs.extend(recipe.packages.inputs()?);
    inputs.extend(recipe.lazy.iter().map(|module| Input {
        name: format!("lazy {module}"),
        sha256: digest::of(module.as_bytes()),
    }));
    Ok(inputs)
}

/// What every template of an interpreter is made of, whatever is baked in.
fn own_inputs(interpreter: Interpreter) -> Vec<Input> {
    let mut inputs = vec![Input {
        name: "builder".to_owned(),
        sha256: digest::list(BUILDER.iter().map(|text| text.as_bytes())),
    }];
    inputs.extend(match interpreter {
        Interpreter::Python => python::inputs(),
        Interpreter::JavaScript => javascript::inputs(),
    });
    inputs
}

/// Whether a template is made of what this build would make it of, its packages apart.
#[must_use]
pub fn of_this_build(manifest: &Manifest) -> bool {
    Interpreter::of(&manifest.interpreter).is_some_and(|interpreter| {
        let wanted = own_inputs(interpreter);
        wanted.iter().all(|input| manifest.inputs.contains(input))
    })
}

/// Whether a template is there that is made of what it would be made of now.
///
/// # Errors
/// When the recipe makes no sense or its packages cannot be read.
pub fn current(recipe: &Recipe, output: &Path) -> Result<Option<Manifest>, BuildError> {
    let inputs = inputs(recipe)?;
    // What is there and cannot be read is built anew.
    let found = Shelf::new(output.to_owned()).find(&recipe.name);
    let found = found.ok().flatten().filter(|template| {
        template.manifest.inputs == inputs
            && template.manifest.interpreter == recipe.interpreter.name()
            && template.open().is_ok()
    });
    Ok(found.map(|template| template.manifest))
}

/// What an interpreter's side of the build gives.
struct Made {
    component: PathBuf,
    version: String,
    /// Name and version of each package that was baked in.
    packages: Vec<String>,
    modules: Vec<String>,
    /// Modules of packages that cannot be imported in it, and why.
    left: Vec<String>,
}

/// A text of ours that is part of a template.
struct Embedded {
    path: &'static str,
    text: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_file_name() {
        for (name, good) in [
            ("python", true),
            ("my-tools_2", true),
            ("", false),
            ("../up", false),
            ("a b", false),
        ] {
            let recipe = Recipe {
                name: name.to_owned(),
                ..Recipe::bare(Interpreter::Python)
            };
            assert_eq!(inputs(&recipe).is_ok(), good, "{name}");
        }
    }

    #[test]
    fn packages_are_for_python() {
        let recipe = Recipe {
            packages: Packages::Folder("anywhere".into()),
            ..Recipe::bare(Interpreter::JavaScript)
        };
        assert!(matches!(inputs(&recipe), Err(BuildError::NoPackages)));
    }

    #[test]
    fn inputs_say_what_a_template_is_made_of() {
        for interpreter in Interpreter::ALL {
            let recipe = Recipe::bare(interpreter);
            let first = inputs(&recipe).unwrap();
            assert_eq!(first, inputs(&recipe).unwrap());
            assert!(first.iter().all(|input| input.sha256.len() == 64));
            let lazy = Recipe {
                lazy: vec!["some.module".to_owned()],
                ..recipe
            };
            assert_ne!(inputs(&lazy).ok(), Some(first));
        }
    }
}
