//! Builds the programs inside a sandbox and the supervisor first, as static programs in a target folder of their own,
//! and says where they are.
//!
//! The crate embeds them with `include_bytes!`. They are always release builds, whatever this crate is built as;
//! where it has debug assertions the supervisor has them too, and with them the failpoints of the tests. A failed
//! build of one fails this build.

use std::env;
use std::error::Error;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A static program.
struct Program {
    name: &'static str,
    package: &'static str,
    /// Its own crate first.
    sources: &'static [&'static str],
    /// Which optimization `CARGO_PROFILE_RELEASE_OPT_LEVEL` asks for.
    opt_level: &'static str,
    /// The variable that names its file.
    variable: &'static str,
    /// The one that tells its versions apart, where anybody asks.
    digest: Option<&'static str>,
    /// Whether it has the debug assertions of this crate.
    failpoints: bool,
}

/// All of them.
const PROGRAMS: [Program; 3] = [
    Program {
        name: "leasehold-init",
        package: "leasehold-agent",
        sources: &["agent", "jail", "protocol", "core"],
        opt_level: "s",
        variable: "LEASEHOLD_INIT",
        digest: None,
        failpoints: false,
    },
    Program {
        name: "leasehold-agent",
        package: "leasehold-agent",
        sources: &["agent", "jail", "protocol", "core"],
        opt_level: "s",
        variable: "LEASEHOLD_AGENT",
        digest: None,
        failpoints: false,
    },
    Program {
        name: "leasehold-supervisor",
        package: "leasehold-supervisor",
        sources: &["supervisor", "jail", "protocol", "core"],
        opt_level: "2",
        variable: "LEASEHOLD_SUPERVISOR",
        digest: Some("LEASEHOLD_SUPERVISOR_DIGEST"),
        failpoints: true,
    },
];

/// Of the outer build, and wrong for the inner one.
const FOREIGN: [&str; 10] = [
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_INCREMENTAL",
    "CARGO_TARGET_DIR",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTDOCFLAGS",
    "__CARGO_DEFAULT_LIB_METADATA",
];

/// Small, and dead at the first panic.
const PROFILE: [(&str, &str); 5] = [
    ("CARGO_PROFILE_RELEASE_PANIC", "abort"),
    ("CARGO_PROFILE_RELEASE_LTO", "fat"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "false"),
    ("CARGO_PROFILE_RELEASE_STRIP", "symbols"),
];

fn main() {
    if let Err(reason) = take_unwinder_in() {
        println!("cargo::warning=the unwinder stays a shared library: {reason}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    for program in &PROGRAMS {
        match build(program) {
            Ok((file, digest)) => {
                println!("cargo::rustc-env={}={}", program.variable, file.display());
                if let Some(variable) = program.digest {
                    println!("cargo::rustc-env={variable}={digest:016x}");
                }
            }
            Err(reason) => println!("cargo::error=cannot build {}: {reason}", program.name),
        }
    }
}

fn variable(name: &str) -> Result<String, Box<dyn Error>> {
    env::var(name).map_err(|_| format!("cargo did not set {name}").into())
}

/// Builds one. Gives its file, and a digest that tells versions apart.
fn build(program: &Program) -> Result<(PathBuf, u64), Box<dyn Error>> {
    let here = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(variable("OUT_DIR")?);
    let crates = here.parent().ok_or("this crate has no parent folder")?;
    let watch = |path: PathBuf| println!("cargo::rerun-if-changed={}", path.display());
    watch(crates.join("../Cargo.lock"));
    for source in program.sources {
        watch(crates.join(source).join("src"));
        watch(crates.join(source).join("Cargo.toml"));
    }
    let triple = triple()?;
    let folder = folder(&out);
    run_cargo(program, crates, triple, &folder)?;
    let built = folder.join(triple).join("release").join(program.name);
    let bytes = fs::read(&built).map_err(|error| format!("{}: {error}", built.display()))?;
    if needs_interpreter(&bytes) {
        return Err("it is not static: the target's `crt-static` had no effect".into());
    }
    // A copy of our own: another build may replace the other one. Written only when it differs, so
    // that nothing is compiled again for nothing.
    let embedded = out.join(program.name);
    if fs::read(&embedded).ok().as_ref() != Some(&bytes) {
        fs::write(&embedded, &bytes)?;
    }
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    Ok((embedded, hasher.finish()))
}

/// Links the unwinder from its archive. As a shared library it takes each start a quarter of a
/// millisecond, and a cold run starts this program twice. The linker finds our `libgcc_s.so` before
/// the host's, and in it the names of the archives.
fn take_unwinder_in() -> Result<(), Box<dyn Error>> {
    if variable("CARGO_CFG_TARGET_ENV")? != "gnu" || variable("HOST")? != variable("TARGET")? {
        return Ok(());
    }
    let asked = Command::new("cc")
        .arg("-print-file-name=libgcc_eh.a")
        .output()
        .map_err(|error| format!("cannot run cc: {error}"))?;
    let archive = String::from_utf8(asked.stdout)?;
    if !Path::new(archive.trim()).is_absolute() {
        return Err("cc has no libgcc_eh.a".into());
    }
    let folder = PathBuf::from(variable("OUT_DIR")?).join("unwinder");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("libgcc_s.so"), "GROUP ( -lgcc_eh -lgcc )\n")?;
    println!("cargo::rustc-link-search=native={}", folder.display());
    Ok(())
}

/// The target to build for, named in full so that build scripts and macros are not made static too.
fn triple() -> Result<&'static str, Box<dyn Error>> {
    match variable("CARGO_CFG_TARGET_ARCH")?.as_str() {
        "x86_64" => Ok("x86_64-unknown-linux-gnu"),
        "aarch64" => Ok("aarch64-unknown-linux-gnu"),
        other => Err(format!("no sandbox runs on {other}").into()),
    }
}

/// `agent` in the outer target folder. Its own lock, so that the two builds do not wait for each other.
fn folder(out: &Path) -> PathBuf {
    out.ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").exists())
        .unwrap_or(out)
        .join("agent")
}

fn run_cargo(
    program: &Program,
    crates: &Path,
    triple: &str,
    folder: &Path,
) -> Result<(), Box<dyn Error>> {
    let assertions = program.failpoints && env::var_os("CARGO_CFG_DEBUG_ASSERTIONS").is_some();
    let mut command = Command::new(variable("CARGO")?);
    command
        .current_dir(crates.join(program.sources[0]))
        .args(["build", "--release", "--quiet"])
        .args(["--package", program.package, "--bin", program.name])
        .args(["--target", triple, "--target-dir"])
        .arg(folder)
        .envs(PROFILE)
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", program.opt_level)
        .env(
            "CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS",
            assertions.to_string(),
        )
        .env("RUSTFLAGS", "-C target-feature=+crt-static");

    for name in FOREIGN {
        command.env_remove(name);
    }
    let output = command
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    for line in text.lines() {
        println!("cargo::warning={line}");
    }
    let hint = if text.contains("linker") {
        " (a C toolchain with the static C library is needed, such as gcc and libc6-dev)"
    } else {
        ""
    };
    Err(format!("cargo ended with {}{hint}", output.status).into())
}

/// Whether an ELF program of 64 bits asks for a dynamic loader. Anything else is not static either.
fn needs_interpreter(bytes: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    let number = |at: usize, len: usize| -> Option<usize> {
        let part = bytes.get(at..at.checked_add(len)?)?;
        Some(
            part.iter()
                .rev()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
        )
    };
    let kinds = || -> Option<Vec<usize>> {
        let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        (0..count)
            .map(|at| number(table.checked_add(at * size)?, 4))
            .collect()
    };
    !bytes.starts_with(b"\x7fELF\x02")
        || kinds().is_none_or(|kinds| kinds.contains(&(PT_INTERP as usize)))
}
