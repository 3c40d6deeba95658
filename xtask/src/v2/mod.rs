//! `cargo xtask test-v2`: runs tests on a kernel with a pure cgroup v2, in an emulated machine.
//!
//! Most CI machines have cgroup v1 or a hybrid, so what this project promises first, v2, would never be
//! seen to work there. Start with [`run`]; what is tested is the list in `cases.rs`.

mod cases;
mod cpio;
mod kernel;
mod managed;
mod pack;
mod qemu;
mod report;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::tally::Tally;
use crate::{step, tree};
use cases::Case;
use cpio::{Entry, Tree};
use report::{Outcome, Report};

/// Memory of the guest. Holds the unpacked tree twice for a moment, and the tests.
const MEMORY_MIB: u32 = 3072;

/// What systemd is told at boot: to say nothing on the kernel's port.
const QUIET: &str = "systemd.show_status=0";

/// What CI runs of it: the groups themselves, every limit as root and as an ordinary user, every end,
/// and a memory limit in a scope of systemd's. The rest takes an emulated machine as long as all other
/// tests together.
pub(crate) const IN_CI: &str =
    "host-is,user-is,jail-cgroup,doctor-,ends-root,managed-session,managed-scope-memory";

fn chosen(name: &str, words: &str) -> bool {
    words.split(',').any(|word| name.contains(word))
}

/// Builds the guest, boots it, and counts its cases, or those whose name contains one of the words of
/// a comma-separated list. A guest that cannot be built here is a skip with its reason.
///
/// # Errors
/// When building the tests fails, or the emulator cannot be started.
pub(crate) fn run(filter: Option<&str>) -> Result<Tally> {
    let mut tally = Tally::default();
    if !cfg!(target_arch = "x86_64") {
        tally.skip("test-v2", "the guest is built for x86-64 only");
        return Ok(tally);
    }
    let Some(emulator) = step::which("qemu-system-x86_64") else {
        tally.skip(
            "test-v2",
            "no qemu-system-x86_64; apt-get install qemu-system-x86",
        );
        return Ok(tally);
    };
    let folder = tree::target().join("v2");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let parts = match kernel::parts(&folder) {
        Ok(parts) => parts,
        Err(error) => {
            tally.skip("test-v2", &format!("no kernel for the guest: {error:#}"));
            return Ok(tally);
        }
    };
    let place = Place {
        emulator: &emulator,
        folder: &folder,
        parts: &parts,
    };
    let chosen = |cases: Vec<Case>| -> Vec<Case> {
        let wanted = |case: &Case| filter.is_none_or(|words| chosen(&case.name, words));
        cases.into_iter().filter(wanted).collect()
    };
    let managed_cases = chosen(managed::cases());
    // The tests of the other guest take long to build.
    let of_managed = |words: &str| words.split(',').all(|word| word.starts_with("managed"));
    if !filter.is_some_and(of_managed) {
        let mut guest = place.guest(&mut tally)?;
        let cases = chosen(cases::pack(&mut guest)?);
        let next = include_str!("bare.sh").as_bytes().to_vec();
        guest.add("next", Entry::File(0o755, next));
        if !cases.is_empty() {
            place.work("bare", guest, &cases, "", &mut tally)?;
        }
    }
    if !managed_cases.is_empty() {
        let mut guest = place.guest(&mut Tally::default())?;
        match managed::pack(&mut guest, &folder) {
            Ok(()) => place.work("managed", guest, &managed_cases, QUIET, &mut tally)?,
            Err(error) => tally.skip(
                "v2::managed",
                &format!("no systemd for the guest: {error:#}"),
            ),
        }
    }
    Ok(tally)
}

/// What every guest is made of.
struct Place<'a> {
    emulator: &'a Path,
    folder: &'a Path,
    parts: &'a kernel::Parts,
}

impl Place<'_> {
    /// A guest with what both kinds need.
    fn guest(&self, tally: &mut Tally) -> Result<Tree> {
        let mut guest = pack::base(&self.parts.busybox)?;
        for module in &self.parts.modules {
            let name = module.file_name().unwrap_or_default().to_string_lossy();
            pack::file(&mut guest, module, &format!("guest/modules/{name}"))?;
        }
        cases::programs(&mut guest, tally)?;
        for (path, text) in [
            ("init", include_str!("boot.sh")),
            ("guest/plan.sh", include_str!("plan.sh")),
        ] {
            guest.add(path, Entry::File(0o755, text.as_bytes().to_vec()));
        }
        Ok(guest)
    }

    /// Boots a guest with its cases in it and counts them.
    fn work(
        &self,
        name: &str,
        mut guest: Tree,
        cases: &[Case],
        append: &str,
        tally: &mut Tally,
    ) -> Result<()> {
        pack::applets(&mut guest, &self.parts.busybox)?;
        let plan: String = cases.iter().map(Case::line).collect();
        guest.add("plan", Entry::File(0o644, plan.into_bytes()));
        let initramfs = self.folder.join(format!("{name}.cpio"));
        fs::write(&initramfs, guest.archive()).context("write the initramfs")?;
        let limit = Duration::from_secs(120 + cases.iter().map(|case| case.limit_s).sum::<u64>());
        let mut report = Report::of(cases.iter().map(|case| case.name.clone()));
        let machine = qemu::Machine {
            emulator: self.emulator,
            kernel: &self.parts.image,
            initramfs: &initramfs,
            kernel_log: &self.folder.join(format!("{name}.log")),
            append,
            memory_mib: MEMORY_MIB,
        };
        let started = Instant::now();
        qemu::boot(&machine, &mut report, limit)?;
        count(&report, tally);
        println!("guest {name}: {:.1} s", started.elapsed().as_secs_f64());
        Ok(())
    }
}

fn count(report: &Report, tally: &mut Tally) {
    for (name, outcome) in report.outcomes() {
        match outcome {
            Outcome::Ended(0, seconds) => {
                println!("test v2::{name} ... ok ({seconds} s)");
                tally.passed += 1;
            }
            Outcome::Ended(status, seconds) => {
                println!("test v2::{name} ... FAILED (status {status}, {seconds} s)");
                tally.fail(&format!("v2::{name}: status {status}"));
            }
            Outcome::NotRun => tally.fail(&format!("v2::{name}: never begun")),
            Outcome::Unfinished => tally.fail(&format!("v2::{name}: begun and never ended")),
        }
    }
    for skip in &report.skips {
        let (name, reason) = skip.split_once(": ").unwrap_or((skip, "no reason given"));
        tally.skip(&format!("v2::{name}"), reason);
    }
}
