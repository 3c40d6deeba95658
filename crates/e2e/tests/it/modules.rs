//! WebAssembly from the command line: modules, interpreters, what is told of them, and who dies when.
//!
//! The programs are built by `cargo xtask wasm --dev`, the interpreters by `cargo xtask templates`; where they
//! are not there a test says so. Compiled code is kept from test to test below the target folder: it is known
//! by its digest wherever it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_e2e::{Daemon, Instance, Outcome, Running, leasehold, skip, until};
use rustix::process::Signal;

use crate::guests;
use crate::record::{assert_clean, assert_nothing_left, exceeded, reason};

pub(crate) const SOON: Duration = Duration::from_secs(30);
/// Time to compile an interpreter on a slow machine.
const COMPILE: Duration = Duration::from_secs(300);

/// An instance that has the programs, and a folder of modules.
pub(crate) struct Rig {
    pub(crate) instance: Instance,
    folder: PathBuf,
}

impl Rig {
    pub(crate) fn new(test: &str) -> Option<Self> {
        let programs = leasehold().parent().unwrap().join("wasm");
        if !programs.join("leasehold-wasm-host").is_file() {
            skip(test, "no programs for WebAssembly: cargo xtask wasm --dev");
            return None;
        }
        let instance = Instance::new();
        let folder = instance.scratch("modules");
        Some(Self { instance, folder })
    }

    /// One with these templates, and their code as far as an earlier test compiled it.
    fn with_templates(test: &str, names: &[&str]) -> Option<Self> {
        let rig = Self::new(test)?;
        shelve(test, &rig.instance.state().join("wasm"), names)?;
        Some(rig)
    }

    /// Keeps the code of its modules for the next test.
    fn keep_code(&self) {
        fs::create_dir_all(kept_code()).unwrap();
        copy_files(&self.instance.state().join("wasm/code"), &kept_code());
    }

    /// Compiles a guest in text to a file of this name.
    pub(crate) fn module(&self, name: &str, text: &str) -> String {
        let path = self.folder.join(name);
        fs::write(&path, wat::parse_str(text).unwrap()).unwrap();
        path.to_string_lossy().into_owned()
    }

    pub(crate) fn run(&self, words: &[&str]) -> Outcome {
        let words = ["run", "--isolation", "wasm"].iter().chain(words).copied();
        self.instance.cli(words)
    }

    fn python(&self, words: &[&str]) -> Outcome {
        self.interpreter("python", words)
    }

    fn interpreter(&self, name: &str, words: &[&str]) -> Outcome {
        let head = ["run", "--interpreter", name];
        let words = head.iter().chain(words).copied();
        self.instance.start(words).wait(COMPILE)
    }
}

/// Puts templates and the code that is kept of them into the folder `wasm` of a state directory; none, and a skip
/// of this test, where one was not built.
pub(crate) fn shelve(test: &str, wasm: &Path, names: &[&str]) -> Option<()> {
    let target = leasehold().ancestors().nth(2).unwrap().join("templates");
    let shelf = wasm.join("templates");
    fs::create_dir_all(&shelf).unwrap();
    for name in names {
        for ending in ["wasm", "json"] {
            let file = format!("{name}.{ending}");
            if fs::copy(target.join(&file), shelf.join(&file)).is_err() {
                let reason = format!("no template of {name}: cargo xtask templates {name}");
                skip(test, &reason);
                return None;
            }
        }
    }
    let code = wasm.join("code");
    fs::create_dir_all(&code).unwrap();
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(&code, closed).unwrap();
    copy_files(&kept_code(), &code);
    Some(())
}

pub(crate) fn kept_code() -> PathBuf {
    leasehold()
        .ancestors()
        .nth(2)
        .unwrap()
        .join("e2e/wasm-code")
}

/// Copies what is not there, each file whole or not at all.
pub(crate) fn copy_files(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).into_iter().flatten() {
        let entry = entry.unwrap();
        let place = to.join(entry.file_name());
        let half = to.join(format!(".{}", std::process::id()));
        if !place.exists() && fs::copy(entry.path(), &half).is_ok() {
            fs::rename(half, place).unwrap();
        }
    }
}

/// A guest that makes the file `made` in its first directory, and exits with the errno.
fn makes() -> String {
    guests::with(
        r#"(data (i32.const 0) "made")"#,
        "(call $proc_exit (call $path_open (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 4)
           (i32.const 9) (i64.const 64) (i64.const 0) (i32.const 0) (i32.const 64)))",
    )
}

pub(crate) fn traps() -> String {
    "(module (memory (export \"memory\") 1)
       (func $deep unreachable) (func $outer (call $deep)) (func (export \"_start\") (call $outer)))"
        .to_owned()
}

#[test]
fn a_module_is_run_and_told_for_what_it_is() {
    let Some(rig) = Rig::new("a_module_is_run_and_told_for_what_it_is") else {
        return;
    };
    let path = rig.module("hello.wasm", &guests::hello());
    let first = rig.run(&["--", &path, "a"]).status_is(0);
    assert_eq!(first.out(), "hello\n");
    assert!(
        first.err().contains("compiled hello.wasm"),
        "{}",
        first.story()
    );
    let again = rig.run(&["--wait-cleanup", "--", &path, "a"]).status_is(0);
    assert!(!again.err().contains("compiled"), "{}", again.story());
    let record = rig.instance.last_record();
    assert_clean(&record);
    let contract = &record["contract"];
    assert_eq!(
        (&contract["isolation"], &contract["backend"]),
        (&"wasm".into(), &"wasm".into())
    );
    // No path of this host is told inside.
    assert_eq!(contract["argv"], serde_json::json!(["hello.wasm", "a"]));
    assert_eq!(contract["program"]["name"], "hello.wasm");
    let digest = contract["program"]["digest"].as_str().unwrap().to_owned();
    let engine = contract["posture"]["host"]["engine"].as_str().unwrap();
    let run = rig.instance.last_run();
    let page = rig.instance.cli(["show", &run]).status_is(0).out();
    for part in [
        digest.as_str(),
        engine,
        "wasm by backend wasm",
        "/workspace",
    ] {
        assert!(page.contains(part), "{part} is not in:\n{page}");
    }
    let list = rig.instance.cli(["runs"]).status_is(0).out();
    assert_eq!(list.matches("hello.wasm a").count(), 2, "{list}");
    assert_eq!(
        list.lines().count(),
        3,
        "what compiles is no run of anybody's: {list}"
    );
    assert_eq!(
        rig.instance.cli(["logs", &run]).status_is(0).out(),
        "hello\n"
    );
    let told = rig.instance.cli(["explain", &run]).status_is(0).out();
    for part in [digest.as_str(), engine, "wasm: a WebAssembly instance"] {
        assert!(told.contains(part), "{part} is not in:\n{told}");
    }
    let proof = rig.folder.join("run.json").to_string_lossy().into_owned();
    rig.instance
        .cli(["evidence", &run, "-o", &proof])
        .status_is(0);
    rig.instance.cli(["verify", &proof]).status_is(0);
    assert_nothing_left(&rig.instance);
}

#[test]
fn the_ends_of_modules_are_told_apart() {
    let Some(rig) = Rig::new("the_ends_of_modules_are_told_apart") else {
        return;
    };
    let exits = rig.module("exits.wasm", &guests::exits(7));
    rig.run(&["--", &exits]).status_is(7);
    let trap = rig.run(&["--", &rig.module("traps.wasm", &traps())]);
    let trap = trap.status_is(134);
    assert!(
        trap.err().contains("trap: wasm `unreachable`"),
        "{}",
        trap.story()
    );
    let frames = trap.err();
    let (deep, outer) = (frames.find("deep"), frames.find("outer"));
    assert!(deep.is_some() && deep < outer, "{frames}");
    let spins = rig.module("spins.wasm", &guests::spins());
    rig.run(&["--timeout", "1s", "--", &spins]).status_is(124);
    let fuel = rig.run(&["--fuel", "1000000", "--", &spins]).status_is(137);
    assert!(
        fuel.err().contains("raise it: --fuel 2000000"),
        "{}",
        fuel.story()
    );
    assert_eq!(exceeded(&rig.instance.last_record()), "fuel");
    rig.run(&["--cpu-time", "300ms", "--", &spins])
        .status_is(137);
    assert_eq!(exceeded(&rig.instance.last_record()), "cpu_time");
    // What cannot run is refused with one error and runs nothing.
    let before = rig.instance.cli(["runs", "--json"]).json();
    let invalid = rig.folder.join("invalid.wasm");
    fs::write(&invalid, b"\0asm\x01\0\0\0\x01\xff").unwrap();
    let refused = rig.run(&["--", &invalid.to_string_lossy()]);
    assert_ne!(refused.status, 0);
    assert!(
        refused.err().contains("cannot run `invalid.wasm`"),
        "{}",
        refused.story()
    );
    for native in ["python3", "/bin/sh"] {
        let refused = rig.run(&["--", native]).status_is(2);
        assert!(
            refused.err().contains("runs no native program"),
            "{}",
            refused.story()
        );
    }
    rig.run(&["--tty", "--", &exits]).status_is(2);
    assert_eq!(rig.instance.cli(["runs", "--json"]).json(), before);
    assert_nothing_left(&rig.instance);
}

#[test]
fn a_workspace_is_what_its_mode_says_for_modules_too() {
    let Some(rig) = Rig::new("a_workspace_is_what_its_mode_says_for_modules_too") else {
        return;
    };
    let makes = rig.module("makes.wasm", &makes());
    let out = rig.folder.join("out");
    let shown = out.to_string_lossy().into_owned();
    rig.run(&["--artifact", "made", "--out", &shown, "--", &makes])
        .status_is(0);
    assert!(out.join("made").is_file());
    for (mode, works, stays) in [
        ("ro", false, false),
        ("clone", true, false),
        ("rw", true, true),
    ] {
        let place = rig.instance.scratch(mode);
        let workspace = format!("{}:{mode}", place.display());
        let outcome = rig.run(&["--workspace", &workspace, "--", &makes]);
        assert_eq!(outcome.status == 0, works, "{mode}: {}", outcome.story());
        assert_eq!(place.join("made").exists(), stays, "{mode}");
    }
    assert_nothing_left(&rig.instance);
}

#[test]
fn input_and_output_of_a_module_are_streams() {
    let Some(rig) = Rig::new("input_and_output_of_a_module_are_streams") else {
        return;
    };
    let copies = rig.module("copies.wasm", &guests::copies());
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    let mut command = rig
        .instance
        .command(["run", "--isolation", "wasm", "-q", "--", &copies]);
    let copied = Running::start(&mut command, Some(bytes.clone())).wait(SOON);
    let copied = copied.status_is(0);
    assert!(
        copied.stdout == bytes,
        "{} bytes came back",
        copied.stdout_bytes
    );
    let floods = rig.module("floods.wasm", &guests::floods(1_000));
    let cut = rig
        .run(&["--output-limit", "1K", "--", &floods])
        .status_is(0);
    assert_eq!(cut.stdout_bytes, 1_024);
    rig.run(&[
        "--output-limit",
        "1K",
        "--on-output-limit",
        "kill",
        "--",
        &floods,
    ])
    .status_is(137);
    assert_eq!(exceeded(&rig.instance.last_record()), "output");
    assert_nothing_left(&rig.instance);
}

#[test]
fn deterministic_runs_of_one_seed_are_equal() {
    let Some(rig) = Rig::new("deterministic_runs_of_one_seed_are_equal") else {
        return;
    };
    let entropy = rig.module("entropy.wasm", &guests::entropy());
    let once = |flag: &str| {
        let words: Vec<&str> = [flag].into_iter().filter(|flag| !flag.is_empty()).collect();
        let words: Vec<&str> = words.into_iter().chain(["--", &entropy]).collect();
        rig.run(&words).status_is(0).stdout
    };
    assert_eq!(once("--deterministic"), once("--deterministic=0"));
    assert_ne!(once("--deterministic"), once("--deterministic=1"));
    // The control: without the flag two runs differ.
    assert_ne!(once(""), once(""));
}

#[test]
fn a_module_outlives_its_command_line_and_ends_at_its_deadline() {
    let Some(rig) = Rig::new("a_module_outlives_its_command_line_and_ends_at_its_deadline") else {
        return;
    };
    // It says something first, so that it is known to run.
    let text = guests::with(
        r#"(data (i32.const 0) "hello\n")"#,
        "(drop (call $put (i32.const 1) (i32.const 0) (i32.const 6))) (loop $l (br $l))",
    );
    let path = rig.module("goes-on.wasm", &text);
    let words = ["run", "--isolation", "wasm", "--timeout", "3s", "--", &path];
    let run = rig.instance.start(words);
    run.await_out("hello", SOON);
    run.signal(Signal::KILL);
    run.wait(SOON).status_is(128 + 9);
    let record = until("the record of a run whose caller is gone", SOON, || {
        let record = rig.instance.last_record();
        record["cleanup"].is_object().then_some(record)
    });
    assert_eq!(reason(&record), "timeout");
    assert_clean(&record);
    assert_nothing_left(&rig.instance);
}

#[test]
fn a_command_line_killed_while_it_compiles_leaves_nothing() {
    let Some(rig) = Rig::with_templates(
        "a_command_line_killed_while_it_compiles_leaves_nothing",
        &["javascript"],
    ) else {
        return;
    };
    // None of its code is there, so that it takes a while.
    fs::remove_dir_all(rig.instance.state().join("wasm/code")).unwrap();
    let run = rig
        .instance
        .start(["run", "--interpreter", "javascript", "--", "-e", "1"]);
    until("a compiler at work", SOON, || {
        (rig.instance.inventory().count("processes") >= 3).then_some(())
    });
    run.signal(Signal::KILL);
    run.wait(SOON);
    until("the compiler to be gone", SOON, || {
        (rig.instance.inventory().count("scratch") == 0).then_some(())
    });
    assert_eq!(
        rig.instance.cli(["runs", "--json"]).json(),
        serde_json::json!([])
    );
    assert_nothing_left(&rig.instance);
}

#[test]
fn python_runs_code_and_scripts() {
    let Some(rig) = Rig::with_templates("python_runs_code_and_scripts", &["python"]) else {
        return;
    };
    assert_eq!(
        rig.python(&["--", "-c", "print(6*7)"]).status_is(0).out(),
        "42\n"
    );
    rig.keep_code();
    let script = rig.folder.join("script.py");
    let text =
        "import sys, os\nprint(sys.argv, os.listdir('.'), os.environ['WORD'])\nsys.exit(3)\n";
    fs::write(&script, text).unwrap();
    let script = script.to_string_lossy().into_owned();
    let ran = rig
        .python(&["-e", "WORD=said", "--", &script, "a b"])
        .status_is(3);
    assert_eq!(ran.out(), "['script.py', 'a b'] [] said\n");
    let record = rig.instance.last_record();
    let contract = &record["contract"];
    assert_eq!(
        contract["argv"],
        serde_json::json!(["python", "script.py", "a b"])
    );
    assert!(
        contract["program"]["script"]
            .as_str()
            .unwrap()
            .starts_with("sha256:")
    );
    assert!(
        !record.to_string().contains("listdir"),
        "no text of a script is on record"
    );

    assert_nothing_left(&rig.instance);
}

#[test]
fn python_finds_what_is_in_the_workspace_and_reads_its_program_from_input() {
    const TEST: &str = "python_finds_what_is_in_the_workspace_and_reads_its_program_from_input";
    let Some(rig) = Rig::with_templates(TEST, &["python"]) else {
        return;
    };
    let place = rig.instance.scratch("job");
    fs::write(
        place.join("helper.py"),
        "def make(): open('out.txt', 'w').write('made')\n",
    )
    .unwrap();
    fs::write(place.join("main.py"), "import helper\nhelper.make()\n1/0\n").unwrap();
    let out = rig.folder.join("out").to_string_lossy().into_owned();
    let workspace = place.to_string_lossy().into_owned();
    let flags = [
        "--workspace",
        &workspace,
        "--artifact",
        "*.txt",
        "--out",
        &out,
    ];
    let words: Vec<&str> = flags.iter().copied().chain(["--", "main.py"]).collect();
    let failed = rig.python(&words).status_is(1);
    assert!(
        failed.err().contains("ZeroDivisionError"),
        "{}",
        failed.story()
    );
    assert_eq!(
        fs::read_to_string(rig.folder.join("out/out.txt")).unwrap(),
        "made"
    );
    assert!(!place.join("out.txt").exists(), "a clone is thrown away");

    let mut command = rig
        .instance
        .command(["run", "-q", "--interpreter", "python"]);
    let piped = Running::start(&mut command, Some(b"print('piped')".to_vec())).wait(COMPILE);
    rig.keep_code();
    assert_eq!(piped.status_is(0).out(), "piped\n");
    let native = rig.python(&["--", "-c", "import subprocess; subprocess.run(['ls'])"]);
    assert!(native.status_is(1).err().contains("--isolation process"));
    assert_nothing_left(&rig.instance);
}

#[test]
fn javascript_runs_and_templates_are_listed_and_removed() {
    let Some(rig) = Rig::with_templates(
        "javascript_runs_and_templates_are_listed_and_removed",
        &["javascript"],
    ) else {
        return;
    };
    let code = "console.log([1, 2].map(n => n * 21), process.argv.length)";
    let ran = rig
        .interpreter("javascript", &["--", "-e", code])
        .status_is(0);
    rig.keep_code();
    assert_eq!(ran.out(), "[ 21, 42 ] 1\n");
    let script = rig.folder.join("fails.js");
    fs::write(&script, "throw new TypeError('on purpose');\n").unwrap();
    let failed = rig.interpreter("javascript", &["--", &script.to_string_lossy()]);
    let failed = failed.status_is(1);
    assert!(
        failed.err().contains("TypeError: on purpose"),
        "{}",
        failed.story()
    );

    let listed = rig.instance.cli(["template", "ls"]).status_is(0).out();
    assert!(listed.contains("javascript"), "{listed}");
    let absent = rig.interpreter("python", &["--", "-c", "1"]).status_is(2);
    assert!(absent.err().contains("(javascript)"), "{}", absent.story());
    assert!(
        absent.err().contains("template build --wasm python"),
        "{}",
        absent.story()
    );
    rig.instance
        .cli(["template", "rm", "javascript"])
        .status_is(0);
    rig.interpreter("javascript", &["--", "-e", "1"])
        .status_is(2);
    rig.instance
        .cli(["template", "rm", "javascript"])
        .status_is(2);
}

#[test]
fn without_the_programs_there_is_one_error_with_the_mend() {
    let Some(rig) = Rig::new("without_the_programs_there_is_one_error_with_the_mend") else {
        return;
    };
    let path = rig.module("hello.wasm", &guests::hello());
    let run = |place: &Path| {
        let words = ["run", "--isolation", "wasm", "--", &path];
        let mut command = rig.instance.command(words);
        command.env("LEASEHOLD_WASM_DIR", place);
        Running::start(&mut command, None).wait(SOON)
    };
    let nowhere = run(&rig.instance.scratch("nowhere")).status_is(125);
    assert!(
        nowhere.err().contains("cargo xtask wasm"),
        "{}",
        nowhere.story()
    );
    // What others can write is not executed; the same files closed to them are.
    let open = rig.instance.scratch("open");
    copy_files(&leasehold().parent().unwrap().join("wasm"), &open);
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    fs::set_permissions(&open, mode(0o777)).unwrap();
    let refused = run(&open).status_is(125);
    assert!(refused.err().contains("chmod go-w"), "{}", refused.story());
    fs::set_permissions(&open, mode(0o755)).unwrap();
    assert_eq!(run(&open).status_is(0).out(), "hello\n");
}

/// The host that is used has no compiler in it; the compiler, looked at the same way, has.
#[test]
fn the_host_has_no_compiler_in_it() {
    const MARK: &[u8] = b"cranelift-codegen-";
    if Rig::new("the_host_has_no_compiler_in_it").is_none() {
        return;
    }
    let programs = leasehold().parent().unwrap().join("wasm");
    let marked = |name: &str| {
        let bytes = fs::read(programs.join(name)).unwrap();
        bytes.windows(MARK.len()).any(|window| window == MARK)
    };
    assert!(marked("leasehold-wasm-compiler"));
    assert!(!marked("leasehold-wasm-host"));
}

/// The daemon has the module's bytes sent, runs it in a host of its tenant's, and its evidence verifies.
#[test]
fn a_module_goes_through_a_daemon_and_is_told_for_what_it_is() {
    let Some(rig) = Rig::new("a_module_goes_through_a_daemon_and_is_told_for_what_it_is") else {
        return;
    };
    let mut daemon = Daemon::prepared(&[]).with_modules();
    daemon.restart(&[]);
    let path = rig.module("hello.wasm", &guests::hello());
    let run = |words: &[&str]| daemon.cli(["run"].iter().chain(words).copied());
    let first = run(&["--isolation", "wasm", "--json", "--", &path, "a"]).status_is(0);
    let view: serde_json::Value = serde_json::from_str(&first.out()).unwrap();
    assert_eq!(view["outcome"]["end"]["reason"], "completed", "{view:#}");
    let id = view["run"].as_str().unwrap();
    assert_eq!(daemon.cli(["logs", id]).status_is(0).out(), "hello\n");
    let told = daemon.cli(["explain", id]).status_is(0).out();
    assert!(told.contains("wasm: a WebAssembly instance"), "{told}");
    let proof = rig.folder.join("run.json").to_string_lossy().into_owned();
    daemon.cli(["evidence", id, "-o", &proof]).status_is(0);
    daemon.cli(["verify", &proof]).status_is(0);
    let trapped = rig.module("trap.wasm", &traps());
    let trap = run(&["--isolation", "wasm", "--", &trapped]).status_is(134);
    assert!(trap.err().contains("unreachable"), "{}", trap.story());
    let refused = run(&["--fuel", "9", "--", "true"]).status_is(2);
    assert!(refused.err().contains("--fuel"), "{}", refused.story());
}
