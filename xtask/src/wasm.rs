//! `cargo xtask wasm`: builds the two programs of the crate `wasm` and puts them beside the command line.
//!
//! The host is built without a compiler in it, which no build of the whole workspace gives: features of one
//! package are joined there. So it has a target folder of its own, which also keeps the programs that the tests
//! of the crate use as they are.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::tally::Tally;
use crate::{step, tree};

/// Longest that building one may take on two slow cores.
const BUILD_MAX: Duration = Duration::from_secs(40 * 60);

/// A text that every program has which compiles: its panics name the sources they are in.
const COMPILER_MARK: &[u8] = b"cranelift-codegen-";

/// Dear to optimise, and built into the host too.
const OF_THE_COMPILER: [&str; 4] = ["gimli", "object", "wasmparser", "wasmtime-environ"];

/// What a program of ours is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speed {
    /// To be used: optimised as the command line is.
    Release,
    /// To be tested: built as fast as can be, what is there of the tests' own build is used.
    Dev,
}

impl Speed {
    /// The folder below the target folder that cargo builds into.
    fn folder(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Dev => "debug",
        }
    }
}

/// Builds both and puts them into `target/{release,debug}/wasm`.
///
/// # Errors
/// When one cannot be built, or the host has a compiler in it.
pub(crate) fn run(speed: Speed) -> Result<Tally> {
    let target = tree::target();
    let own = target.join("wasm");
    let place = target.join(speed.folder()).join("wasm");
    fs::create_dir_all(&place).with_context(|| format!("make {}", place.display()))?;
    let host = own.join(speed.folder()).join("leasehold-wasm-host");
    build("host", speed, Some(&own))?;
    let compiler = match speed {
        Speed::Release => {
            build("compiler", speed, Some(&own))?;
            own.join("release/leasehold-wasm-compiler")
        }
        // That of the workspace: most of it is compiled for the tests anyway.
        Speed::Dev => {
            build("compiler", speed, None)?;
            target.join("debug/leasehold-wasm-compiler")
        }
    };
    check(&host, &compiler)?;
    let mut tally = Tally::default();
    for program in [&host, &compiler] {
        put(program, &place)?;
        tally.passed += 1;
    }
    println!("{}", place.display());
    Ok(tally)
}

/// Builds one program; into the folder `own`, with its one feature, or as the workspace does.
fn build(name: &str, speed: Speed, own: Option<&Path>) -> Result<()> {
    let mut command = step::cargo();
    command.current_dir(tree::root());
    command.args(["build", "--bin", &format!("leasehold-wasm-{name}")]);
    match own {
        None => command.arg("--workspace"),
        Some(own) => command
            .args(["-p", "leasehold-wasm", "--no-default-features"])
            .args(["--features", name, "--target-dir"])
            .arg(own),
    };
    if speed == Speed::Release {
        // What it is copied from at each start of a daemon or a command should be small.
        command
            .arg("--release")
            .args(["--config", "profile.release.strip=\"symbols\""]);
    } else if own.is_some() {
        command
            .args(["--config", "profile.dev.debug=false"])
            // Fast for whoever compiles modules; this program compiles none.
            .args(OF_THE_COMPILER.iter().flat_map(|name| {
                let level = format!("profile.dev.package.{name}.opt-level=0");
                ["--config".to_owned(), level]
            }));
    }
    step::tee(&format!("wasm {name}"), &mut command, BUILD_MAX).map(drop)
}

/// Refuses a host that could compile. That the compiler has what is looked for says that looking works.
fn check(host: &Path, compiler: &Path) -> Result<()> {
    if !has_compiler(compiler)? {
        bail!(
            "{}: nothing in it says that it compiles, so the host cannot be told from it",
            compiler.display()
        );
    }
    if has_compiler(host)? {
        bail!("{}: there is a compiler in it", host.display());
    }
    Ok(())
}

fn has_compiler(program: &Path) -> Result<bool> {
    let bytes = fs::read(program).with_context(|| format!("read {}", program.display()))?;
    Ok(bytes
        .windows(COMPILER_MARK.len())
        .any(|window| window == COMPILER_MARK))
}

/// Puts a copy of a program into `place`, whole or not at all, and writable by nobody else.
fn put(program: &Path, place: &Path) -> Result<()> {
    let name = program.file_name().context("a program has a name")?;
    let half = place.join(format!(
        ".{}.{}",
        name.to_string_lossy(),
        std::process::id()
    ));
    copy_bare(program, &half)?;
    for (path, mode) in [(half.as_path(), 0o755), (place, 0o755)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .with_context(|| format!("close {}", path.display()))?;
    }
    let at = place.join(name);
    fs::rename(&half, &at).with_context(|| format!("put into place {}", at.display()))
}

/// Copies a program without its symbols, where the tool for that is there: whoever starts it copies and
/// digests it first.
fn copy_bare(program: &Path, to: &Path) -> Result<()> {
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(to).arg(program);
    if step::output(&mut strip).is_err() {
        fs::copy(program, to).with_context(|| format!("copy {}", program.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_with_a_compiler_in_it_is_refused() {
        let folder = std::env::temp_dir().join(format!("xtask-wasm-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let host = write("host", "..wasmtime-48.0.8/src..");
        let compiler = write("compiler", "..cranelift-codegen-0.135.8/src..");
        check(&host, &compiler).unwrap();
        let error = check(&compiler, &compiler).unwrap_err().to_string();
        assert!(error.contains("there is a compiler in it"), "{error}");
        // A mark that is found nowhere any more shows nothing.
        assert!(check(&host, &host).is_err());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_program_is_put_into_place_closed_to_others() {
        let folder = std::env::temp_dir().join(format!("xtask-put-{}", std::process::id()));
        fs::create_dir_all(folder.join("to")).unwrap();
        let program = folder.join("program");
        fs::write(&program, "text").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o777)).unwrap();
        put(&program, &folder.join("to")).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder.join("to/program")), 0o755);
        assert_eq!(mode(&folder.join("to")), 0o755);
        assert_eq!(fs::read_dir(folder.join("to")).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }
}
