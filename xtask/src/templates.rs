//! `cargo xtask templates`: builds the snapshot templates into `target/templates`, those that are not there.

use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use leasehold_template::{BuildError, Interpreter, Places, Recipe, build, current};

use crate::tally::Tally;
use crate::{setup, tree};

/// What building them needs: package and the program it brings.
const NEEDS: [(&str, &str); 4] = [
    ("python3", "python3"),
    ("python3-pip", "pip3"),
    ("nodejs", "node"),
    ("npm", "npm"),
];

/// Builds the templates with those names; all where there are none.
///
/// # Errors
/// When a name is of no template, or one cannot be built.
pub(crate) fn run(names: &[&str]) -> Result<Tally> {
    let chosen: Vec<Interpreter> = Interpreter::ALL
        .into_iter()
        .filter(|interpreter| names.is_empty() || names.contains(&interpreter.name()))
        .collect();
    if let Some(unknown) = names.iter().find(|name| {
        !chosen
            .iter()
            .any(|interpreter| interpreter.name() == **name)
    }) {
        let known = Interpreter::ALL.map(Interpreter::name).join(", ");
        bail!("no template `{unknown}`; there are {known}");
    }
    let mut tally = needs()?;
    for interpreter in chosen {
        let name = interpreter.name();
        made(interpreter).with_context(|| format!("build {name}"))?;
        tally.passed += 1;
    }
    Ok(tally)
}

/// Builds all for the tests. What the machine cannot have, for want of a program or of the way to a registry, is a
/// skip by name; anything else that goes wrong is a failure.
///
/// # Errors
/// When what building needs cannot be looked for.
pub(crate) fn where_possible() -> Result<Tally> {
    let mut tally = needs()?;
    for interpreter in Interpreter::ALL {
        let name = format!("template {}", interpreter.name());
        match made(interpreter) {
            Ok(()) => tally.passed += 1,
            Err(error) if error.is_of_machine() => {
                let text = error.to_string();
                println!("{text}");
                tally.skip(&name, text.lines().last().unwrap_or_default());
            }
            Err(error) => tally.fail(&format!("{name}: {:#}", anyhow::Error::from(error))),
        }
    }
    Ok(tally)
}

/// Installs what building needs.
fn needs() -> Result<Tally> {
    let mut tally = setup::run(&NEEDS)?;
    // Packages are no templates.
    tally.passed = 0;
    Ok(tally)
}

/// Builds one that is not there.
fn made(interpreter: Interpreter) -> Result<(), BuildError> {
    let places = Places {
        tools: tree::target().join("templates/tools"),
        output: tree::target().join("templates"),
    };
    let recipe = Recipe::bare(interpreter);
    let name = interpreter.name();
    if current(&recipe, &places.output)?.is_some() {
        println!("{name}: is there");
        return Ok(());
    }
    println!("\n==> {name}");
    let started = Instant::now();
    let manifest = build(&recipe, &places)?;
    println!(
        "<== {name}: {:.1} s, {:.1} MB, sha256 {}",
        started.elapsed().as_secs_f64(),
        manifest.component.bytes as f64 / 1e6,
        manifest.component.sha256
    );
    Ok(())
}
