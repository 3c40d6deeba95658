//! Building one template. This text is among the inputs that tell whether a template is still what would be built.

use std::path::{Path, PathBuf};

use crate::work::Work;
use crate::{
    BuildError, COMPONENT_BYTES_MAX, Component, Interpreter, Manifest, Places, Recipe, digest,
    error, inputs, javascript, manifest, python, scan,
};

/// Builds one template and gives its manifest, which is in the output folder as well.
///
/// # Errors
/// When the recipe makes no sense, a program is missing or fails, packages are not pure, or something of
/// this machine is found in the result. Nothing is in the output folder then that was not there before.
pub fn build(recipe: &Recipe, places: &Places) -> Result<Manifest, BuildError> {
    let inputs = inputs(recipe)?;
    let work = Work::new(&places.output)?;
    let made = match recipe.interpreter {
        Interpreter::Python => python::make(recipe, &places.tools, &work)?,
        Interpreter::JavaScript => javascript::make(&places.tools, &work)?,
    };
    let mut bytes = error::read(&made.component, COMPONENT_BYTES_MAX)?;
    scan::neutralize(&mut bytes, work.path());
    scan::check(&bytes, &private(recipe, places, &work))?;
    let manifest = Manifest {
        format: manifest::FORMAT,
        name: recipe.name.clone(),
        interpreter: recipe.interpreter.name().to_owned(),
        interpreter_version: made.version,
        component: Component {
            sha256: digest::of(&bytes),
            bytes: bytes.len() as u64,
        },
        inputs,
        packages: made.packages,
        modules: made.modules,
        left: made.left,
    };
    work.publish(&recipe.name, &bytes, &manifest, &places.output)?;
    Ok(manifest)
}

/// Texts that must not be in a template: folders of this machine.
fn private(recipe: &Recipe, places: &Places, work: &Work) -> Vec<String> {
    let mut folders: Vec<&Path> = vec![work.path(), &places.tools, &places.output];
    folders.extend(recipe.packages.path());
    let home = std::env::var_os("HOME").map(PathBuf::from);
    folders.extend(home.as_deref());
    folders
        .into_iter()
        .filter_map(|folder| folder.canonicalize().ok())
        // A short one, such as `/root`, is a word of many programs.
        .filter(|folder| folder.components().count() > 2)
        .map(|folder| folder.to_string_lossy().into_owned())
        .collect()
}
