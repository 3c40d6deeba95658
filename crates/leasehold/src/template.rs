//! `leasehold template`: the snapshot templates of this user, built, listed and removed.

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use leasehold_backend::wasm::Module;
use leasehold_core::digest::Digest;
use leasehold_core::quantity::{format_bytes, format_micros};
use leasehold_protocol::wasm::Flavour;
use leasehold_supervisor::paths::Paths;
use leasehold_template::shelf::{Shelf, Template};
use leasehold_template::{BuildError, Interpreter, Manifest, Packages, Places, Recipe};
use serde::Serialize;

use crate::cli::template::{BuildFlags, TemplateCommand};
use crate::fault::Fault;
use crate::run::supply;
use crate::voice::clean;
use crate::{place, table, voice};

/// Modules that are named one by one.
const NAMED_MAX: usize = 8;

/// The templates of this user.
pub(crate) fn shelf(paths: &Paths) -> Shelf {
    shelf_below(paths.state())
}

/// The templates below a state directory.
pub(crate) fn shelf_below(state: &Path) -> Shelf {
    Shelf::new(state.join("wasm/templates"))
}

/// `leasehold template`.
///
/// # Errors
/// When a name or a flag is wrong, a program is missing or fails, or a file cannot be used.
pub(crate) fn main(command: &TemplateCommand) -> Result<u8, Fault> {
    let paths = place::paths()?;
    match command {
        TemplateCommand::Build(flags) => build(&paths, flags),
        TemplateCommand::Ls { json } => list(&shelf(&paths), *json),
        TemplateCommand::Rm { names } => remove(&shelf(&paths), names),
    }
}

/// What went wrong with a template, as a failure of ours.
pub(crate) fn fault(error: &BuildError) -> Fault {
    let fault = match error {
        BuildError::Name(_)
        | BuildError::NoPackages
        | BuildError::Native(_)
        | BuildError::TooMuch { .. }
        | BuildError::Leak(_) => Fault::usage("no template"),
        BuildError::Missing { .. }
        | BuildError::TooOld { .. }
        | BuildError::NoPip
        | BuildError::Failed { .. }
        | BuildError::Odd { .. }
        | BuildError::File { .. } => Fault::host("no template"),
    };
    let fault = fault.because(error);
    let mend = match error {
        BuildError::Failed {
            what: "componentize-py",
            ..
        } => Some("--lazy MODULE leaves a module of the packages to the runs".to_owned()),
        error => error.mend(),
    };
    match mend {
        Some(mend) => fault.hint(mend),
        None => fault,
    }
}

fn build(paths: &Paths, flags: &BuildFlags) -> Result<u8, Fault> {
    let recipes = recipes(flags)?;
    place::make(paths)?;
    let places = Places {
        tools: paths.state().join("wasm/tools"),
        output: shelf(paths).folder().to_owned(),
    };
    for recipe in &recipes {
        let kept = match flags.again {
            true => None,
            false => leasehold_template::current(recipe, &places.output)
                .map_err(|error| fault(&error))?,
        };
        if kept.is_some() {
            voice::note(&format!(
                "{} is there and current; --again builds it again",
                recipe.name
            ));
            continue;
        }
        voice::note(&format!(
            "building {}: about half a minute, more when the tool chain is fetched first",
            recipe.name
        ));
        let begun = Instant::now();
        let manifest = leasehold_template::build(recipe, &places).map_err(|error| fault(&error))?;
        let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        voice::note(&format!(
            "{} is built: {}, {} in {}",
            manifest.name,
            clean(&manifest.interpreter_version),
            format_bytes(manifest.component.bytes),
            format_micros(micros)
        ));
        for left in manifest.left.iter().take(NAMED_MAX) {
            voice::note(&format!(
                "not imported, and refused in a run: {}",
                clean(left)
            ));
        }
        if manifest.left.len() > NAMED_MAX {
            let more = manifest.left.len() - NAMED_MAX;
            voice::note(&format!("and {more} more: leasehold template ls --json"));
        }
        compile(paths, &manifest);
    }
    Ok(0)
}

/// Has it compiled, so that the first run need not wait for that. A template that was built and cannot be
/// compiled here now is one all the same, and its first run says why.
fn compile(paths: &Paths, manifest: &Manifest) {
    let begun = Instant::now();
    let compiled = (|| -> Result<(), Fault> {
        let backend = supply::backend(paths)?;
        let (digest, file) = open(&shelf(paths), &manifest.name)?;
        let module = Module::known(digest, file);
        let prepared = supply::wait(async {
            let prepared = backend.prepare(&module, Flavour::Plain, None);
            prepared.await
        })?;
        prepared
            .map(drop)
            .map_err(|error| Fault::from(error.public()))
    })();
    match compiled {
        Ok(()) => {
            let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
            voice::note(&format!(
                "{} is compiled, in {}",
                manifest.name,
                format_micros(micros)
            ));
        }
        Err(fault) => {
            voice::note(&format!(
                "it is not compiled yet: {}",
                clean(&fault.chain())
            ));
            if let Some(mend) = fault.mend() {
                voice::hint(mend);
            }
        }
    }
}

/// The component of a template with its digest, which is not looked at before it must be compiled.
///
/// # Errors
/// When there is no such template, or it cannot be used.
pub(crate) fn open(shelf: &Shelf, name: &str) -> Result<(Digest, File), Fault> {
    let template = find(shelf, name)?;
    let broken = |error: &dyn std::error::Error| {
        Fault::host(format!("the template `{name}` cannot be used"))
            .because(error)
            .hint(format!(
                "leasehold template build --wasm {name} --again builds it again"
            ))
    };
    let digest = format!("sha256:{}", template.manifest.component.sha256);
    let digest = Digest::parse(&digest).map_err(|error| broken(&error))?;
    let file = template.open().map_err(|error| broken(&error))?;
    Ok((digest, file))
}

/// The template of this name.
///
/// # Errors
/// When there is none, with what there is.
pub(crate) fn find(shelf: &Shelf, name: &str) -> Result<Template, Fault> {
    let found = shelf.find(name).map_err(|error| fault(&error))?;
    if let Some(template) = found {
        return Ok(template);
    }
    let there: Vec<String> = shelf
        .all()
        .map(|(found, _)| found.into_iter().map(|each| each.manifest.name).collect())
        .unwrap_or_default();
    let there = match there.as_slice() {
        [] => "none is".to_owned(),
        names => names.join(", "),
    };
    let fault = Fault::usage(format!("no template `{}` is there ({there})", clean(name)));
    Err(match Interpreter::of(name) {
        Some(_) => fault.hint(format!("leasehold template build --wasm {name}")),
        None => fault.hint("leasehold template ls"),
    })
}

/// What is to be built, checked before anything is.
fn recipes(flags: &BuildFlags) -> Result<Vec<Recipe>, Fault> {
    let packages = match (&flags.packages, &flags.requirements) {
        (Some(folder), _) => Packages::Folder(folder.clone()),
        (None, Some(list)) => Packages::Requirements(list.clone()),
        (None, None) => Packages::None,
    };
    let own = packages != Packages::None || !flags.lazy.is_empty();
    if own && flags.names.len() > 1 {
        return Err(Fault::usage(format!(
            "packages go into one template, and {} are named",
            flags.names.len()
        )));
    }
    let mut recipes = Vec::new();
    for name in &flags.names {
        let bare = Interpreter::of(name);
        let named = flags.interpreter.as_deref();
        let kind = match (bare, named) {
            (Some(kind), None) => kind,
            (Some(kind), Some(word)) if kind.name() == word => kind,
            (Some(kind), Some(word)) => {
                return Err(Fault::usage(format!(
                    "the template `{name}` has the interpreter {}, not {}",
                    kind.name(),
                    clean(word)
                )));
            }
            (None, None) => Interpreter::Python,
            (None, Some(word)) => Interpreter::of(word).ok_or_else(|| {
                let known = Interpreter::ALL.map(Interpreter::name).join(" and ");
                Fault::usage(format!(
                    "`--interpreter` is `{}`: there are {known}",
                    clean(word)
                ))
            })?,
        };
        if own && bare.is_some() {
            return Err(Fault::usage(format!(
                "`{name}` is the name of the template without packages"
            ))
            .hint(format!(
                "give yours another: leasehold template build --wasm my-{name} --packages DIR"
            )));
        }
        let recipe = Recipe {
            name: name.clone(),
            packages: packages.clone(),
            lazy: flags.lazy.clone(),
            ..Recipe::bare(kind)
        };
        leasehold_template::inputs(&recipe).map_err(|error| fault(&error))?;
        recipes.push(recipe);
    }
    Ok(recipes)
}

/// A template as `ls --json` gives it.
#[derive(Debug, Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    manifest: &'a Manifest,
    /// Whether this build would make it of the same parts of its own.
    current: bool,
}

fn list(shelf: &Shelf, as_json: bool) -> Result<u8, Fault> {
    let (found, odd) = shelf.all().map_err(|error| fault(&error))?;
    for error in &odd {
        voice::note(&format!("warning: {}", clean(&error.to_string())));
    }
    let listed: Vec<Listed<'_>> = found
        .iter()
        .map(|template| Listed {
            manifest: &template.manifest,
            current: leasehold_template::of_this_build(&template.manifest),
        })
        .collect();
    if as_json {
        voice::json(&listed)?;
        return Ok(0);
    }
    if listed.is_empty() {
        voice::note("no templates are there");
        voice::hint("leasehold template build --wasm python javascript");
        return Ok(0);
    }
    let rows = listed.iter().map(|template| {
        let manifest = template.manifest;
        [
            manifest.name.clone(),
            table::short(&clean(&manifest.interpreter_version), 40),
            format_bytes(manifest.component.bytes),
            manifest.component.sha256.chars().take(12).collect(),
            match template.current {
                true => "yes".to_owned(),
                false => "no: build it again".to_owned(),
            },
            table::short(&clean(&manifest.packages.join(", ")), 60),
        ]
    });
    let heading = [
        "NAME",
        "INTERPRETER",
        "SIZE",
        "SHA256",
        "CURRENT",
        "PACKAGES",
    ];
    voice::data(table::lines(heading, rows.collect()).as_bytes())?;
    Ok(0)
}

fn remove(shelf: &Shelf, names: &[String]) -> Result<u8, Fault> {
    for name in names {
        if !shelf.remove(name).map_err(|error| fault(&error))? {
            return Err(
                Fault::usage(format!("no template `{}` is there", clean(name)))
                    .hint("leasehold template ls"),
            );
        }
        voice::note(&format!("removed {name}"));
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn asked(words: &[&str]) -> Result<Vec<Recipe>, Fault> {
        let argv = ["leasehold", "template", "build", "--wasm"];
        let cli = Cli::try_parse_from(argv.iter().chain(words).copied()).unwrap();
        let Command::Template(TemplateCommand::Build(flags)) = cli.command else {
            panic!("no build");
        };
        recipes(&flags)
    }

    #[test]
    fn names_and_packages_become_recipes() {
        let both = asked(&["python", "javascript"]).unwrap();
        let kinds: Vec<Interpreter> = both.iter().map(|recipe| recipe.interpreter).collect();
        assert_eq!(kinds, Interpreter::ALL);
        let folder = env!("CARGO_MANIFEST_DIR");
        let mine = asked(&["mine", "--packages", folder, "--lazy", "a.b"]).unwrap();
        assert_eq!(mine[0].interpreter, Interpreter::Python);
        assert_eq!(mine[0].packages, Packages::Folder(folder.into()));
        assert_eq!(mine[0].lazy, ["a.b"]);
        let script = asked(&["mine", "--interpreter", "javascript"]).unwrap();
        assert_eq!(script[0].interpreter, Interpreter::JavaScript);
    }

    #[test]
    fn what_makes_no_template_is_told_before_anything_is_built() {
        for (words, told) in [
            (&["../up"][..], "letters, digits"),
            (&["a", "b", "--packages", "/"], "2 are named"),
            (&["python", "--packages", "/"], "without packages"),
            (&["python", "--interpreter", "javascript"], "not javascript"),
            (&["mine", "--interpreter", "ruby"], "python and javascript"),
            (
                &["mine", "--interpreter", "javascript", "--lazy", "x"],
                "baked into Python only",
            ),
        ] {
            let fault = asked(words).unwrap_err();
            assert_eq!(fault.status(), 2, "{words:?}");
            assert!(fault.chain().contains(told), "{}", fault.chain());
        }
        let absent = asked(&["mine", "--requirements", "/no/such/list"]).unwrap_err();
        assert!(absent.chain().contains("/no/such/list"));
    }

    #[test]
    fn what_is_missing_is_told_with_the_command_that_brings_it() {
        let missing = fault(&BuildError::NoPip);
        assert_eq!(missing.mend(), Some("apt-get install python3-pip"));
        let missing = fault(&BuildError::Missing {
            program: "npm".to_owned(),
            package: "npm",
            source: std::io::ErrorKind::NotFound.into(),
        });
        assert_eq!(missing.mend(), Some("apt-get install npm"));
        assert_eq!(missing.status(), 125);
    }
}
