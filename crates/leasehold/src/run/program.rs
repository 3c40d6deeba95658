//! What is to run, where it is no native program: a WebAssembly module of this host's files, or an interpreter.
//!
//! The words of the command are read as the process backend reads them: a script is looked for in the workspace
//! first. One that is not there is a file of this host, and goes along as text.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};

use leasehold_backend::wasm::Module;
use leasehold_core::digest::Digest;
use leasehold_core::isolation::Isolation;
use leasehold_core::policy::Number;
use leasehold_core::spec::{Determinism, MODULE_NAME_MAX, ModuleSpec, SCRIPT_BYTES_MAX, Script};
use leasehold_template::Interpreter;
use leasehold_template::shelf::Shelf;

use super::request;
use crate::cli::{LimitFlags, RunFlags};
use crate::fault::Fault;
use crate::template;
use crate::voice::clean;

/// Largest module that is read, in bytes.
pub(crate) const MODULE_BYTES_MAX: u64 = 64 << 20;

/// Where a run finds its workspace.
const INSIDE: &str = "/workspace";

/// A module and what it is given.
#[derive(Debug)]
pub(crate) struct Program {
    /// Arguments as contract and record have them.
    pub(crate) argv: Vec<String>,
    /// The module as contract and record have it.
    pub(crate) spec: ModuleSpec,
    /// Its script.
    pub(crate) script: Option<Script>,
    /// Its file.
    pub(crate) file: File,
}

/// Whether the flags ask for a module.
pub(crate) fn wanted(flags: &RunFlags) -> bool {
    flags.interpreter.is_some()
        || flags.boundary.isolation.as_deref() == Some(Isolation::Wasm.word())
}

/// Finds what is to run; nothing where that is a native program or a tool.
///
/// # Errors
/// When a flag goes with modules alone, or the module, the interpreter or the script cannot be had.
pub(crate) fn find(flags: &RunFlags, shelf: &Shelf) -> Result<Option<Program>, Fault> {
    if !wanted(flags) {
        for_modules_alone(flags)?;
        return Ok(None);
    }
    if flags.tool.is_some() {
        return Ok(None);
    }
    check(flags)?;
    let words = request::texts(&flags.command, "command")?;
    let mut program = match &flags.interpreter {
        Some(name) => interpreted(flags, shelf, name, words)?,
        None => module(flags, words)?,
    };
    program.spec.fuel = flags.fuel.as_deref().map(fuel).transpose()?;
    program.spec.determinism = flags
        .deterministic
        .map(|seed| Determinism::of_seed(seed.unwrap_or(0)));
    Ok(Some(program))
}

/// Refuses flags that go with modules alone.
///
/// # Errors
/// Names the flag.
pub(crate) fn for_modules_alone(flags: &RunFlags) -> Result<(), Fault> {
    for (flag, given) in [
        ("fuel", flags.fuel.is_some()),
        ("deterministic", flags.deterministic.is_some()),
    ] {
        if given {
            return Err(Fault::usage(format!("`--{flag}` is for WebAssembly alone"))
                .hint("add --isolation wasm, or --interpreter NAME"));
        }
    }
    Ok(())
}

/// What is said of limits that bind nothing of a module.
pub(crate) fn idle_limits(flags: &LimitFlags) -> Vec<String> {
    let asked = |number| match number {
        Number::Pids => flags.pids.is_some(),
        Number::Grace => flags.grace.is_some(),
        _ => false,
    };
    // It has a workspace to write to.
    let told = leasehold_control::module::idle_limits(asked, true);
    let flag = |told: String| told.replacen("limits.", "--", 1);
    told.into_iter().map(flag).collect()
}

/// What a daemon is sent for a module.
#[derive(Debug)]
pub(crate) enum Sent {
    /// A module of this host's files, with its arguments.
    Module(Program),
    /// Words for an interpreter that the daemon has, and the text of the script that the first of them names.
    Script {
        /// Name of the template.
        interpreter: String,
        /// The words behind the interpreter's own name.
        command: Vec<String>,
        /// Text of the script.
        text: Option<String>,
    },
}

/// Finds what a daemon is to run; templates are the daemon's affair.
///
/// # Errors
/// As [`find`], and for a script behind options, which a request cannot name.
pub(crate) fn sent(flags: &RunFlags, shelf: &Shelf) -> Result<Sent, Fault> {
    check(flags)?;
    let mut command = request::texts(&flags.command, "command")?;
    let Some(name) = &flags.interpreter else {
        return module(flags, command).map(Sent::Module);
    };
    // A template of the daemon's own that is not known here is read as most are.
    let known = shelf.find(name).ok().flatten();
    let kind = known.and_then(|known| Interpreter::of(&known.manifest.interpreter));
    let kind = kind.or_else(|| Interpreter::of(name));
    let at = kind.unwrap_or(Interpreter::Python).script_at(&command);
    let text = match at {
        Some(at) => script(flags, &command[at])?,
        None => None,
    };
    if let (Some(at), Some(_)) = (at, &text) {
        if at > 0 {
            return Err(Fault::usage(format!(
                "options before the script, such as `{}`, do not go through a daemon",
                clean(&command[0])
            ))
            .hint("add --alone to run it without the daemon, or give the folder as the workspace: --workspace DIR"));
        }
        command[at] = file_name(&command[at]);
    }
    Ok(Sent::Script {
        interpreter: name.clone(),
        command,
        text,
    })
}

/// Flags that make no sense for a module.
fn check(flags: &RunFlags) -> Result<(), Fault> {
    if flags.tty {
        return Err(
            Fault::usage("`--tty`: a WebAssembly module has no terminal")
                .hint("leave --tty away; --stdin passes standard input on"),
        );
    }
    if flags.warm.is_some() {
        return Err(Fault::usage(
            "`--warm` is for native programs: an interpreter in WebAssembly has started already",
        ));
    }
    if let Some(directory) = flags.workdir.as_deref().filter(|dir| *dir != INSIDE) {
        return Err(Fault::usage(format!(
            "`--workdir` is `{}`: a WebAssembly module has the working directory {INSIDE}",
            clean(directory)
        )));
    }
    Ok(())
}

/// The module that the first word names.
fn module(flags: &RunFlags, words: Vec<String>) -> Result<Program, Fault> {
    let Some(first) = words.first() else {
        return Err(Fault::usage("no module is named").hint(HOW));
    };
    let path = in_workspace(flags, first)?.unwrap_or_else(|| first.into());
    let file = open_module(&path, first)?;
    let name = file_name(first);
    let bytes = digest(&file, MODULE_BYTES_MAX).map_err(|error| {
        Fault::usage(format!("cannot use the module `{}`", clean(first))).because(&error)
    })?;
    let spec = spec(bytes, &name);
    // No path of this host is told inside.
    let argv = std::iter::once(name)
        .chain(words.into_iter().skip(1))
        .collect();
    Ok(Program {
        argv,
        spec,
        script: None,
        file,
    })
}

const HOW: &str = "give a .wasm file: leasehold run --isolation wasm -- module.wasm; for a script: \
                   leasehold run --interpreter python -- script.py";

/// Opens a module and looks at its first bytes.
fn open_module(path: &Path, word: &str) -> Result<File, Fault> {
    let shown = clean(word);
    let native = || {
        Fault::usage(format!(
            "`{shown}` is no WebAssembly module, and isolation `wasm` runs no native program"
        ))
        .hint(HOW)
    };
    let file = match File::open(path) {
        Ok(file) => file,
        // A word without a folder is a program of the search path elsewhere.
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.extension().is_none() => {
            return Err(native());
        }
        Err(error) => {
            return Err(Fault::usage(format!("cannot open the module `{shown}`")).because(&error));
        }
    };
    let mut magic = [0; 4];
    let read = rustix::io::pread(&file, &mut magic, 0);
    match read {
        Ok(4) if magic == *b"\0asm" => Ok(file),
        _ => Err(native()),
    }
}

fn file_name(path: &str) -> String {
    let name = Path::new(path).file_name().unwrap_or_default();
    let name = name.to_string_lossy();
    let mut name = match name.chars().any(char::is_control) {
        true => clean(&name),
        false => name.into_owned(),
    };
    while name.len() > MODULE_NAME_MAX {
        name.pop();
    }
    name
}

/// Digest of a file that is read once; read again when it must be compiled, and refused if it changed.
fn digest(file: &File, most: u64) -> io::Result<Digest> {
    let module = Module::of_file(file.try_clone()?, most)?;
    Ok(*module.digest())
}

fn spec(digest: Digest, name: &str) -> ModuleSpec {
    ModuleSpec {
        digest,
        name: name.to_owned(),
        script: None,
        determinism: None,
        fuel: None,
    }
}

/// The template of this name with its words.
fn interpreted(
    flags: &RunFlags,
    shelf: &Shelf,
    name: &str,
    words: Vec<String>,
) -> Result<Program, Fault> {
    let template = template::find(shelf, name)?;
    let (digest, file) = template::open(shelf, name)?;
    let kind = Interpreter::of(&template.manifest.interpreter).ok_or_else(|| {
        Fault::host(format!(
            "the template `{name}` has the interpreter `{}`, which this build does not know",
            clean(&template.manifest.interpreter)
        ))
    })?;
    let at = kind.script_at(&words);
    let script = match at {
        Some(at) => script(flags, &words[at])?.map(|text| Script { at: at + 1, text }),
        None => None,
    };
    let mut argv = vec![kind.name().to_owned()];
    argv.extend(words);
    if let Some(script) = &script {
        // No path of this host is told inside, and a file beside it is not there.
        argv[script.at] = file_name(&argv[script.at]);
        script.check(&argv)?;
    }
    Ok(Program {
        argv,
        spec: ModuleSpec {
            script: script.as_ref().map(Script::digest),
            ..spec(digest, name)
        },
        script,
        file,
    })
}

/// The text of the script that a word names; nothing where the interpreter finds it in the workspace.
fn script(flags: &RunFlags, word: &str) -> Result<Option<String>, Fault> {
    if in_workspace(flags, word)?.is_some() || word.starts_with("/workspace/") {
        return Ok(None);
    }
    let shown = clean(word);
    let cannot = |error: &dyn std::error::Error| {
        Fault::usage(format!("cannot read the script `{shown}`")).because(error)
    };
    let mut text = Vec::new();
    let file = File::open(word).map_err(|error| cannot(&error))?;
    let seen = file.metadata().map_err(|error| cannot(&error))?;
    if seen.is_dir() {
        return Err(Fault::usage(format!("`{shown}` is a folder")).hint(format!(
            "give the folder as the workspace: --workspace {shown} … -- MAIN-FILE"
        )));
    }
    file.take(SCRIPT_BYTES_MAX as u64 + 1)
        .read_to_end(&mut text)
        .map_err(|error| cannot(&error))?;
    if text.len() > SCRIPT_BYTES_MAX {
        return Err(Fault::usage(format!(
            "the script `{shown}` is longer than {SCRIPT_BYTES_MAX} bytes"
        ))
        .hint("give its folder as the workspace: --workspace DIR"));
    }
    String::from_utf8(text).map(Some).map_err(|_| {
        Fault::usage(format!("the script `{shown}` is not UTF-8"))
            .hint("give its folder as the workspace: --workspace DIR")
    })
}

/// Where a word leads in the directory that becomes the workspace, if that has it.
fn in_workspace(flags: &RunFlags, word: &str) -> Result<Option<PathBuf>, Fault> {
    let (_, Some(folder)) = request::workspace(flags.workspace.as_deref())? else {
        return Ok(None);
    };
    let below = match word.strip_prefix("/workspace/") {
        Some(below) => Path::new(below),
        None => Path::new(word),
    };
    let plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    let path = folder.join(below);
    let there = below.components().all(plain) && path.exists();
    Ok(there.then_some(path))
}

/// Instructions that `--fuel` names.
///
/// # Errors
/// When it is no whole number from 1.
pub(crate) fn fuel(text: &str) -> Result<u64, Fault> {
    match request::count("fuel", text)? {
        0 => Err(Fault::usage("`--fuel` is 0: at least 1 is needed")),
        fuel => Ok(fuel),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("leasehold-program-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(path.join("templates")).unwrap();
            Self(path)
        }

        fn write(&self, name: &str, bytes: &[u8]) -> String {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, bytes).unwrap();
            path.to_string_lossy().into_owned()
        }

        /// A template, as far as this looks at one.
        fn template(&self, name: &str, interpreter: &str) {
            let bytes = b"\0asm\x0d\0\x01\0";
            self.write(&format!("templates/{name}.wasm"), bytes);
            let manifest = serde_json::json!({
                "format": 1, "name": name, "interpreter": interpreter, "interpreter_version": "1",
                "component": {"sha256": Digest::of(bytes).hex(), "bytes": bytes.len()},
                "inputs": [], "modules": [],
            });
            self.write(
                &format!("templates/{name}.json"),
                manifest.to_string().as_bytes(),
            );
        }

        fn find(&self, words: &[&str]) -> Result<Option<Program>, Fault> {
            let argv = ["leasehold", "run"].iter().chain(words).copied();
            let cli = Cli::try_parse_from(argv).unwrap();
            let Command::Run(flags) = cli.command else {
                panic!("not a run");
            };
            find(&flags, &Shelf::new(self.0.join("templates")))
        }

        fn found(&self, words: &[&str]) -> Program {
            self.find(words).unwrap().unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_module_is_a_file_and_no_path_of_this_host_is_told_inside() {
        let scratch = Scratch::new("module");
        let path = scratch.write("tool.wasm", b"\0asm\x01\0\0\0");
        let program = scratch.found(&["--isolation=wasm", "--fuel=9", "--", &path, "a"]);
        assert_eq!(program.argv, ["tool.wasm", "a"]);
        assert_eq!(program.spec.digest, Digest::of(b"\0asm\x01\0\0\0"));
        assert_eq!(
            (program.spec.fuel, program.spec.determinism),
            (Some(9), None)
        );
        let folder = scratch.0.to_string_lossy().into_owned();
        let inside = scratch.found(&[
            "--isolation=wasm",
            "--workspace",
            &folder,
            "--",
            "tool.wasm",
        ]);
        assert_eq!(inside.argv, ["tool.wasm"]);
        for (flag, seed) in [("--deterministic", 0), ("--deterministic=7", 7)] {
            let program = scratch.found(&["--isolation=wasm", flag, "--", &path]);
            assert_eq!(program.spec.determinism, Some(Determinism::of_seed(seed)));
        }
        assert!(scratch.find(&["--", &path]).unwrap().is_none());
    }

    #[test]
    fn a_script_is_found_in_the_workspace_first_and_goes_along_as_text_else() {
        let scratch = Scratch::new("script");
        scratch.template("python", "python");
        scratch.template("mine", "javascript");
        let path = scratch.write("here/a.py", b"print(1)");
        let text = scratch.found(&["--interpreter=python", "--", "-u", &path, "x"]);
        assert_eq!(text.argv, ["python", "-u", "a.py", "x"]);
        assert_eq!(text.spec.script, Some(Digest::of(b"print(1)")));
        assert_eq!(
            text.script.unwrap().argv(&text.argv),
            ["python", "-u", "--script", "a.py", "print(1)", "x"]
        );
        let folder = format!("{}/here:ro", scratch.0.display());
        for name in ["a.py", "/workspace/a.py", "./a.py"] {
            let words = ["--interpreter=python", "--workspace", &folder, "--", name];
            let inside = scratch.found(&words);
            assert_eq!(inside.argv, ["python", name]);
            assert!(inside.script.is_none() && inside.spec.script.is_none());
        }
        let words = ["--interpreter=python", "--workspace", &folder, "--", &path];
        assert!(scratch.found(&words).script.is_some());
        let code = scratch.found(&["--interpreter=mine", "--", "-e", "1", &path]);
        assert_eq!(code.argv, ["javascript", "-e", "1", &path]);
        assert!(code.script.is_none());
        assert_eq!(scratch.found(&["--interpreter=python"]).argv, ["python"]);
    }

    #[test]
    fn what_cannot_run_is_told_with_the_mend() {
        let scratch = Scratch::new("refused");
        scratch.template("python", "python");
        let text = scratch.write("a.py", b"print(1)");
        let empty = scratch.write("empty.wasm", b"");
        let large = scratch.write("large.py", &vec![b' '; SCRIPT_BYTES_MAX + 1]);
        let latin = scratch.write("latin.py", b"# \xe9");
        let folder = scratch.0.to_string_lossy().into_owned();
        let wasm = "--isolation=wasm";
        let python = "--interpreter=python";
        let native = "no native program";
        for (flags, word, told, mend) in [
            (&[wasm][..], "python3", native, "--interpreter python"),
            (&[wasm], "/bin/sh", native, ".wasm"),
            (&[wasm], &text, "no WebAssembly module", ".wasm"),
            (&[wasm], &empty, "no WebAssembly module", ".wasm"),
            (
                &[wasm],
                "none.wasm",
                "cannot open the module `none.wasm`",
                "",
            ),
            (&[wasm, "--tty"], &text, "no terminal", "--stdin"),
            (&[wasm, "--warm=python"], &text, "native programs", ""),
            (&[wasm, "--workdir=/tmp"], &text, "/workspace", ""),
            (
                &["--interpreter=javascript"],
                "a.js",
                "(python)",
                "build --wasm javascript",
            ),
            (&["--interpreter=other"], "a.js", "(python)", "template ls"),
            (&[python], "none.py", "cannot read the script `none.py`", ""),
            (&[python], &large, "longer than 524288", "--workspace"),
            (&[python], &latin, "not UTF-8", "--workspace"),
            (&[python], &folder, "is a folder", "--workspace"),
        ] {
            let words: Vec<&str> = flags.iter().copied().chain(["--", word]).collect();
            let fault = scratch.find(&words).unwrap_err();
            assert_eq!(fault.status(), 2, "{words:?}");
            assert!(fault.chain().contains(told), "{words:?}: {}", fault.chain());
            let hint = fault.mend().unwrap_or_default();
            assert!(hint.contains(mend), "{words:?}: {hint}");
        }
    }

    #[test]
    fn flags_of_modules_are_for_modules() {
        let scratch = Scratch::new("flags");
        scratch.template("python", "python");
        for flag in ["--fuel=1", "--deterministic"] {
            let fault = scratch.find(&[flag, "--", "true"]).unwrap_err();
            assert!(fault.chain().contains("WebAssembly alone"), "{flag}");
        }
        for fuel in ["--fuel=0", "--fuel=many"] {
            let words = ["--interpreter=python", fuel, "--", "-c", "1"];
            assert!(scratch.find(&words).unwrap_err().chain().contains("--fuel"));
        }
    }
}
