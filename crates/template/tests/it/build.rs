//! Templates with packages of the user's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_template::{BuildError, Interpreter, Packages, Places, Recipe, build, current};

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

/// The tool chains that `cargo xtask templates` has fetched; `None`, and a loud word, where there are none.
fn tools(test: &str) -> Option<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
        PathBuf::from,
    );
    let tools = target.join("templates/tools");
    if !tools.is_dir() {
        leasehold_e2e::skip(test, "no tool chains; `cargo xtask templates` fetches them");
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
    let Some(tools) = tools("packages_are_baked_in_and_nothing_of_this_machine_is") else {
        return;
    };
    let packages = Scratch::new("packages");
    packages.write("greet/__init__.py", "WORDS = 'baked into the template'\n");
    packages.write("greet/inner.py", "from . import WORDS\n");
    packages.write("greet/terminal.py", "import termios\n");
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
    // A part for another system is left to the runs, and told.
    let left = manifest.left.as_slice();
    assert!(
        matches!(left, [one] if one.starts_with("greet.terminal: No module named 'termios'")),
        "{left:?}"
    );
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
    let Some(tools) =
        tools("a_package_that_cannot_be_imported_ends_the_build_and_what_was_there_stays")
    else {
        return;
    };
    // What acts, and a package that as a whole misses another.
    for (at, text, told) in [
        (
            1,
            "raise RuntimeError('acts on import')\n",
            "acts on import",
        ),
        (2, "import nowhere_to_be_found\n", "nowhere_to_be_found"),
    ] {
        let packages = Scratch::new(&format!("failing-{at}"));
        packages.write("acts.py", text);
        let output = Scratch::new(&format!("failing-output-{at}"));
        output.write("mine.wasm", "earlier");
        output.write("mine.json", "earlier");
        let places = Places {
            tools: tools.clone(),
            output: output.0.clone(),
        };
        let error = build(&recipe(&packages, &[]), &places).unwrap_err();
        assert!(error.to_string().contains(told), "{error}");
        assert_eq!(fs::read_dir(&output.0).unwrap().count(), 2);
        for name in ["mine.wasm", "mine.json"] {
            assert_eq!(fs::read_to_string(output.0.join(name)).unwrap(), "earlier");
        }
    }
}

/// Makes a wheel with one module in it, as a registry would hand it out.
fn wheel(folder: &Scratch, name: &str, tag: &str, module: &str) {
    const MAKE: &str = "\
import sys, zipfile
folder, name, tag, module = sys.argv[1:]
info = f'{name}-1.2.dist-info'
with zipfile.ZipFile(f'{folder}/{name}-1.2-{tag}.whl', 'w') as wheel:
    wheel.writestr(f'{name}.py', module)
    wheel.writestr(f'{info}/METADATA', f'Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.2\\n')
    wheel.writestr(f'{info}/WHEEL', f'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: {tag}\\n')
    wheel.writestr(f'{info}/RECORD', '')
";
    let status = Command::new("python3")
        .args(["-c", MAKE])
        .arg(&folder.0)
        .args([name, tag, module])
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn a_list_of_requirements_is_what_pip_makes_of_it() {
    let Some(tools) = tools("a_list_of_requirements_is_what_pip_makes_of_it") else {
        return;
    };
    let wheels = Scratch::new("wheels");
    wheel(
        &wheels,
        "salute",
        "py3-none-any",
        "WORDS = 'from a list of requirements'\n",
    );
    wheel(&wheels, "fast", "cp314-cp314-linux_x86_64", "");
    let output = Scratch::new("required-output");
    let places = Places {
        tools,
        output: output.0.clone(),
    };
    let recipe = |text: &str| {
        let from = format!("--no-index\n--find-links {}\n{text}\n", wheels.0.display());
        wheels.write("requirements.txt", &from);
        Recipe {
            name: "mine".to_owned(),
            packages: Packages::Requirements(wheels.0.join("requirements.txt")),
            ..Recipe::bare(Interpreter::Python)
        }
    };
    let wanted = recipe("salute");
    assert_eq!(current(&wanted, &output.0).unwrap(), None);
    let manifest = build(&wanted, &places).unwrap();
    let names = &manifest.packages;
    assert!(names.iter().any(|name| name == "salute 1.2"), "{names:?}");
    assert!(manifest.modules.iter().any(|name| name == "salute"));
    let component = fs::read(output.0.join("mine.wasm")).unwrap();
    assert!(memchr::memmem::find(&component, b"from a list of requirements").is_some());
    assert_eq!(current(&wanted, &output.0).unwrap(), Some(manifest));
    // Another list is another template, and one that has machine code alone is none.
    let native = recipe("fast");
    assert_eq!(current(&native, &output.0).unwrap(), None);
    let error = build(&native, &places).unwrap_err();
    assert!(
        matches!(&error, BuildError::Failed { what: "pip", log, .. } if log.contains("fast")),
        "{error}"
    );
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
