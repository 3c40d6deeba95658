//! `cargo xtask setup`: installs Debian packages that are missing. Idempotent; asks apt-get only when
//! something is missing.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::tally::Tally;
use crate::{step, tree};

/// What somebody needs to build and to run the demo: package and the program it brings.
pub(crate) const DEMO: [(&str, &str); 4] = [
    ("gcc", "gcc"),
    ("libc6-dev", "/usr/include/stdio.h"),
    ("python3", "/usr/bin/python3"),
    ("uidmap", "newuidmap"),
];

/// What the tests need besides. Interpreters other than Python are used where they are, never
/// installed: they are large, and their absence is a skip that says so.
pub(crate) const TESTS: [(&str, &str); 5] = [
    ("bubblewrap", "bwrap"),
    ("runc", "runc"),
    ("e2fsprogs", "mkfs.ext4"),
    ("util-linux", "setpriv"),
    ("qemu-system-x86", "qemu-system-x86_64"),
];

/// What the tests of images need besides.
const IMAGES: [(&str, &str); 3] = [
    ("skopeo", "skopeo"),
    ("umoci", "umoci"),
    ("busybox-static", "busybox"),
];

/// A registry for them, which is unpacked and never installed: the package would start a service that everybody
/// can reach.
const REGISTRY: &str = "docker-registry";

/// Everything that the demo and the tests need.
///
/// # Errors
/// As [`run`].
pub(crate) fn all() -> Result<Tally> {
    let mut tally = run(&[&DEMO[..], &TESTS[..], &IMAGES[..]].concat())?;
    tally.add(registry()?);
    Ok(tally)
}

/// Has that registry in `target/tools`.
///
/// # Errors
/// When apt-get cannot be started or takes longer than ten minutes.
fn registry() -> Result<Tally> {
    let mut tally = Tally::default();
    let tools = tree::target().join("tools");
    if there(REGISTRY) || tools.join("usr/bin").join(REGISTRY).is_file() {
        tally.passed += 1;
        return Ok(tally);
    }
    std::fs::create_dir_all(&tools).context("make target/tools")?;
    let script = format!(
        "apt-get download -qq {REGISTRY} && dpkg-deb -x {REGISTRY}_*.deb . && rm {REGISTRY}_*.deb"
    );
    let mut fetch = Command::new("sh");
    fetch.args(["-ec", &script]).current_dir(&tools);
    let (_, status) = step::tee_status(REGISTRY, &mut fetch, Duration::from_secs(600))?;
    match status.success() {
        true => tally.passed += 1,
        false => tally.skip("setup docker-registry", "apt-get could not download it"),
    }
    Ok(tally)
}

/// Installs what is missing of `packages`. A package that cannot be had is a skip: what needs it says
/// so again when it is its turn.
///
/// # Errors
/// When apt-get cannot be started or takes longer than ten minutes.
pub(crate) fn run(packages: &[(&str, &str)]) -> Result<Tally> {
    let mut tally = Tally::default();
    let missing: Vec<&str> = packages
        .iter()
        .filter(|(_, brings)| !there(brings))
        .map(|(package, _)| *package)
        .collect();
    tally.passed += (packages.len() - missing.len()) as u64;
    if missing.is_empty() {
        return Ok(tally);
    }
    let Some(apt) = step::which("apt-get") else {
        for package in missing {
            tally.skip(
                &format!("setup {package}"),
                "no apt-get on this machine; install it by hand",
            );
        }
        return Ok(tally);
    };
    let limit = Duration::from_secs(600);
    let mut update = elevated(&apt);
    step::tee_status("package lists", update.arg("update"), limit)?;
    for package in missing {
        let mut install = elevated(&apt);
        install.env("DEBIAN_FRONTEND", "noninteractive").args([
            "install",
            "-y",
            "-qq",
            "--no-install-recommends",
            package,
        ]);
        let (_, status) = step::tee_status(package, &mut install, limit)
            .with_context(|| format!("install {package}"))?;
        if status.success() {
            tally.passed += 1;
        } else {
            tally.skip(&format!("setup {package}"), "apt-get could not install it");
        }
    }
    Ok(tally)
}

fn there(brings: &str) -> bool {
    if brings.starts_with('/') {
        std::path::Path::new(brings).exists()
    } else {
        step::which(brings).is_some()
    }
}

/// The command as root: as it is for root, through sudo for others.
fn elevated(program: &std::path::Path) -> Command {
    let root = step::output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    if root {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.arg(program);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_not_installed_again() {
        let tally = run(&[("coreutils", "ls"), ("base-files", "/etc")]).unwrap();
        assert_eq!(tally.passed, 2);
    }

    #[test]
    fn a_program_that_is_nowhere_is_missing() {
        assert!(!there("no-such-program-anywhere"));
        assert!(!there("/no/such/file"));
    }
}
