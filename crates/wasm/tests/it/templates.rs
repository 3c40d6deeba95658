//! The snapshot templates in the host process: each case of `crates/template/cases` in a fresh instance.
//!
//! They are built by `cargo xtask templates`; where one is not there its test says that it did not run.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use leasehold_core::end::ExitStatus;
use leasehold_protocol::wasm::{Kind, Preopen, RunLimits, Start, ToHost};
use leasehold_template::cases::{Case, FOLDER, JAVASCRIPT_CASES, PYTHON_CASES, Seen};
use sha2::{Digest as _, Sha256};

use crate::compile::{ROOMY, compile, fingerprint};
use crate::host::{Host, start};
use crate::rig::Ran;

/// Id of the template in its host.
const TEMPLATE: u32 = 1;

/// Seconds of processor time for one: a compiler of a debug build takes sixty on a slow machine.
const SECONDS: &str = "300";

/// A template's code, compiled when it is asked for the first time and kept below the target folder.
fn code(name: &str, wasm: &[u8]) -> Vec<u8> {
    let digest: String = Sha256::digest(wasm)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("templates")
        .join(name);
    let path = folder.join(format!("{digest}-{}", fingerprint("plain")));
    if let Ok(code) = fs::read(&path) {
        return code;
    }
    let made = compile(wasm, [SECONDS, ROOMY[1], ROOMY[2]]);
    assert!(
        made.status.success() && made.stderr == b"component\n",
        "{}: {}",
        made.status,
        String::from_utf8_lossy(&made.stderr)
    );
    // Code of an earlier template is of no more use. What is half written has another name.
    fs::remove_dir_all(&folder).ok();
    fs::create_dir_all(&folder).unwrap();
    let half = folder.join("half");
    fs::write(&half, &made.stdout).unwrap();
    fs::rename(half, path).unwrap();
    made.stdout
}

/// Lets everybody write below `place`: a host that root starts is nobody.
fn open_up(place: &Path) {
    let folder = place.is_dir();
    let mode = if folder { 0o777 } else { 0o666 };
    fs::set_permissions(place, Permissions::from_mode(mode)).unwrap();
    if folder {
        for entry in fs::read_dir(place).unwrap() {
            open_up(&entry.unwrap().path());
        }
    }
}

/// A host with one template.
struct Interpreter {
    name: &'static str,
    host: Host,
    runs: u32,
}

impl Interpreter {
    /// A template as it was built; `None`, and a loud word, where it was not.
    fn load(name: &'static str, test: &str) -> Option<Self> {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let path = target.join("templates").join(format!("{name}.wasm"));
        if !path.exists() {
            leasehold_e2e::skip(
                test,
                &format!("no template of {name}; `cargo xtask templates {name}` builds it"),
            );
            return None;
        }
        let code = code(name, &fs::read(path).unwrap());
        let mut host = Host::spawn(true);
        host.load_code(TEMPLATE, Kind::Component, &code);
        Some(Self {
            name,
            host,
            runs: 0,
        })
    }

    /// Runs a case in an instance of its own: what it wrote, and what is not as it must be.
    fn run(&mut self, case: &Case) -> (String, Vec<String>) {
        self.runs += 1;
        let place = place(self.name, self.runs);
        let mut wanted = Start {
            argv: [self.name.to_owned()]
                .into_iter()
                .chain(case.args.iter().cloned())
                .collect(),
            env: case.env.clone(),
            stdin: !case.stdin.is_empty(),
            ..start(TEMPLATE, RunLimits::default())
        };
        wanted.limits.wall_ms = 30_000;
        let mut fds = Vec::new();
        if case.folder(&place).unwrap() {
            open_up(&place);
            wanted.preopens.push(Preopen {
                guest: FOLDER.to_owned(),
                writable: true,
            });
            fds.push(File::open(&place).unwrap().into());
        }
        self.host.start(self.runs, &wanted, &fds);
        if wanted.stdin {
            let bytes = case.stdin.as_bytes();
            self.host.send(ToHost::Stdin, self.runs, bytes, &[]);
            self.host.send(ToHost::StdinEnd, self.runs, b"", &[]);
        }
        let (seen, report) = seen(self.host.ran(self.runs));
        let mut mistakes = case.mistakes(&seen, &place);
        fs::remove_dir_all(place).unwrap();
        if !mistakes.is_empty() {
            mistakes.push(format!("{seen:?}, {report}"));
        }
        (seen.stdout, mistakes)
    }
}

/// An empty folder for one run.
fn place(name: &str, run: u32) -> PathBuf {
    let name = format!("leasehold-wasm-{name}-{}-{run}", std::process::id());
    let place = std::env::temp_dir().join(name);
    fs::create_dir(&place).unwrap();
    place
}

fn seen(ran: Ran) -> (Seen, String) {
    let told = format!("{:?}", ran.report);
    let status = match ran.report.exit {
        Some(ExitStatus::Exit { code }) => Some(i32::from(code)),
        _ => None,
    };
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let seen = Seen {
        status,
        stdout: text(ran.stdout),
        stderr: text(ran.stderr),
    };
    (seen, told)
}

/// Runs all cases of a table and tells all that do not hold.
fn hold(name: &'static str, table: &str, test: &str) {
    let Some(mut interpreter) = Interpreter::load(name, test) else {
        return;
    };
    let document = leasehold_control::yaml::parse(table.as_bytes()).unwrap();
    let cases = Case::read(&document).unwrap();
    let mut failed = Vec::new();
    for case in &cases {
        let (first, mut mistakes) = interpreter.run(case);
        if case.differs {
            let (second, more) = interpreter.run(case);
            mistakes.extend(more);
            if first == second {
                mistakes.push(format!("two instances print {first:?}"));
            }
        }
        if !mistakes.is_empty() {
            failed.push(format!("{}: {}", case.name, mistakes.join("; ")));
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {} cases of {name} fail:\n{}",
        failed.len(),
        cases.len(),
        failed.join("\n")
    );
}

#[test]
fn every_case_of_python_holds_in_a_fresh_instance() {
    let test = "every_case_of_python_holds_in_a_fresh_instance";
    hold("python", PYTHON_CASES, test);
}

#[test]
fn every_case_of_javascript_holds_in_a_fresh_instance() {
    let test = "every_case_of_javascript_holds_in_a_fresh_instance";
    hold("javascript", JAVASCRIPT_CASES, test);
}
