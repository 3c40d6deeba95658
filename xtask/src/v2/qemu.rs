//! Booting the guest in QEMU without hardware virtualization and reading its serial port, with a
//! bound on time. This is a test machine, never a boundary.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::report::Report;
use crate::step;

/// What to boot.
pub(super) struct Machine<'a> {
    /// The emulator.
    pub(super) emulator: &'a Path,
    /// The kernel image.
    pub(super) kernel: &'a Path,
    /// The initramfs.
    pub(super) initramfs: &'a Path,
    /// Where the kernel's own messages go.
    pub(super) kernel_log: &'a Path,
    /// What is said to it at boot, besides what every guest is told.
    pub(super) append: &'a str,
    /// Its memory in MiB.
    pub(super) memory_mib: u32,
}

/// Boots, feeds each line to `report`, and returns when the guest is off or `limit` is over.
pub(super) fn boot(machine: &Machine<'_>, report: &mut Report, limit: Duration) -> Result<()> {
    let mut command = Command::new(machine.emulator);
    command
        .args(["-nodefaults", "-display", "none", "-no-reboot"])
        .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"])
        .args(["-m", &machine.memory_mib.to_string()])
        .arg("-serial")
        .arg(format!("file:{}", machine.kernel_log.display()))
        .args(["-serial", "stdio"])
        .arg("-kernel")
        .arg(machine.kernel)
        .arg("-initrd")
        .arg(machine.initramfs)
        .arg("-append")
        .arg(format!(
            "console=ttyS0 quiet panic=-1 mitigations=off cgroup_no_v1=all {}",
            machine.append
        ));
    println!("{}", step::shown(&command));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", machine.emulator.display()))?;
    let lines = step::lines_of(&mut child)?;
    let end = Instant::now() + limit;
    loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                println!("  guest | {line}");
                report.line(&line);
                if report.done {
                    break;
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                println!("the guest did not finish within {} s", limit.as_secs());
                break;
            }
        }
    }
    child.kill().ok();
    child.wait().context("wait for the emulator")?;
    if !report.done {
        let log = fs::read(machine.kernel_log).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = text.lines().collect();
        println!("last lines of the guest's kernel:");
        for line in &lines[lines.len().saturating_sub(30)..] {
            println!("  kernel | {line}");
        }
    }
    Ok(())
}
