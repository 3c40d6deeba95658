//! Templates with packages of the user's.

use std::fs;
use std::path::{Path, PathBuf};

use leasehold_template::{BuildError, Interpreter, Packages, Places, Recipe, build};

/// A folder for one test. It goes with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("leasehold-template-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// The tool chains that `cargo xtask templates` has fetched.
fn tools() -> Option<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
        PathBuf::from,
    );
    let tools = target.join("templates/tools");
    if !tools.is_dir() {
        println!("SKIP: no tool chains; run `cargo xtask templates` first");
        return None;
    }
    Some(tools)
}

fn recipe(packages: &Scratch, lazy: &[&str]) -> Recipe {
    Recipe {
        name: "mine".to_owned(),
        packages: Packages::Folder(packages.0.clone()),
        lazy: lazy.iter().map(|name| (*name).to_owned()).collect(),
        ..Recipe::bare(Interpreter::Python)
    }
}

#[test]
fn packages_are_baked_in_and_nothing_of_this_machine_is() {
    let Some(tools) = tools() else { return };
    let packages = Scratch::new("packages");
    packages.write("greet/__init__.py", "WORDS = 'baked into the template'\n");
    packages.write("greet/inner.py", "from . import WORDS\n");
    packages.write("acts.py", "raise RuntimeError('acts on import')\n");
    let output = Scratch::new("output");
    let places = Places {
        tools,
        output: output.0.clone(),
    };

    let manifest = build(&recipe(&packages, &["acts"]), &places).unwrap();
    let kept = fs::read(output.0.join("mine.json")).unwrap();
    assert_eq!(
        serde_json::from_slice::<leasehold_template::Manifest>(&kept).unwrap(),
        manifest
    );
    for module in [
        "greet",
        "greet.inner",
        "acts",
        "json.tool",
        "sqlite3",
        "tzdata",
    ] {
        assert!(
            manifest.modules.iter().any(|name| name == module),
            "{module}"
        );
    }
    for module in ["ssl", "ctypes", "_leasehold"] {
        assert!(
            !manifest.modules.iter().any(|name| name == module),
            "{module}"
        );
    }
    let component = fs::read(output.0.join("mine.wasm")).unwrap();
    assert_eq!(component.len() as u64, manifest.component.bytes);
    let has = |text: &str| memchr::memmem::find(&component, text.as_bytes()).is_some();
    assert!(has("baked into the template"));
    for private in [packages.0.as_path(), output.0.as_path()] {
        let private = private.to_string_lossy();
        assert!(!has(private.trim_start_matches('/')), "{private}");
    }
}

#[test]
fn a_package_that_cannot_be_imported_ends_the_build_and_what_was_there_stays() {
    let Some(tools) = tools() else { return };
    let packages = Scratch::new("failing");
    packages.write("acts.py", "raise RuntimeError('acts on import')\n");
    let output = Scratch::new("failing-output");
    output.write("mine.wasm", "earlier");
    output.write("mine.json", "earlier");
    let places = Places {
        tools,
        output: output.0.clone(),
    };
    let error = build(&recipe(&packages, &[]), &places).unwrap_err();
    assert!(error.to_string().contains("acts on import"), "{error}");
    assert_eq!(fs::read_dir(&output.0).unwrap().count(), 2);
    for name in ["mine.wasm", "mine.json"] {
        assert_eq!(fs::read_to_string(output.0.join(name)).unwrap(), "earlier");
    }
}

#[test]
fn packages_of_machine_code_are_refused_before_anything_is_built() {
    let packages = Scratch::new("native");
    packages.write("fast/__init__.py", "");
    packages.write("fast/_core.so", "");
    let output = Scratch::new("native-output");
    let places = Places {
        tools: output.0.join("tools"),
        output: output.0.clone(),
    };
    let error = build(&recipe(&packages, &[]), &places).unwrap_err();
    assert!(
        matches!(&error, BuildError::Native(path) if path.ends_with("fast/_core.so")),
        "{error}"
    );
    assert_eq!(fs::read_dir(&output.0).unwrap().count(), 0);
}
