//! The guest that systemd manages: Debian's packages of it, unpacked and packed again, the few files
//! that an installation would have written, and what is tested there.
//!
//! What it is for: an ordinary user in a login session, where no control group is writable, gets
//! groups from systemd when he asks and loses them when he is done.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};

use super::cases::{Case, case};
use super::cpio::{Entry, Tree};
use super::kernel;

/// systemd, the bus by which its managers talk, and their libraries.
const PACKAGES: [&str; 36] = [
    "dbus",
    "dbus-daemon",
    "dbus-session-bus-common",
    "dbus-system-bus-common",
    "libacl1",
    "libapparmor1",
    "libaudit1",
    "libblkid1",
    "libc6",
    "libcap-ng0",
    "libcap2",
    "libcrypt1",
    "libcryptsetup12",
    "libdb5.3",
    "libdbus-1-3",
    "libexpat1",
    "libfdisk1",
    "libgcrypt20",
    "libgpg-error0",
    "libip4tc2",
    "libkmod2",
    "liblz4-1",
    "liblzma5",
    "libmount1",
    "libpam-modules",
    "libpam-systemd",
    "libpam0g",
    "libpcre2-8-0",
    "libseccomp2",
    "libselinux1",
    "libssl3",
    "libsystemd-shared",
    "libsystemd0",
    "libuuid1",
    "libzstd1",
    "systemd",
];

/// Parts of the packages that no case needs.
const PASSED_OVER: [&str; 5] = [
    "usr/lib/systemd/system-generators",
    "usr/share/doc",
    "usr/share/locale",
    "usr/share/man",
    "usr/lib/x86_64-linux-gnu/gconv",
];

/// Units that wait for what the guest has not.
const MASKED: [&str; 12] = [
    "getty.target",
    "kmod-static-nodes.service",
    "proc-sys-fs-binfmt_misc.automount",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "systemd-binfmt.service",
    "systemd-firstboot.service",
    "systemd-journald-audit.socket",
    "systemd-modules-load.service",
    "systemd-random-seed.service",
    "systemd-sysusers.service",
    "systemd-update-utmp.service",
];

const PLAN: &str = "\
[Unit]
Description=Work through the plan
Wants=user@1000.service
After=user@1000.service systemd-logind.service

[Service]
Type=oneshot
ExecStart=/guest/managed.sh
TimeoutStartSec=infinity
";

const PAM: &str = "\
account required pam_permit.so
session required pam_permit.so
session optional pam_systemd.so
";

/// Adds systemd and makes it what the guest goes on as.
pub(super) fn pack(guest: &mut Tree, folder: &Path) -> Result<()> {
    let unpacked = kernel::unpacked(folder, "systemd", || {
        Ok(PACKAGES.map(str::to_owned).to_vec())
    })?;
    packages(guest, &unpacked, "")?;
    let wanted = "etc/systemd/system/multi-user.target.wants/plan.service";
    for (path, target) in [
        ("next", "usr/lib/systemd/systemd"),
        ("var/run", "/run"),
        (
            "etc/systemd/system/default.target",
            "/usr/lib/systemd/system/multi-user.target",
        ),
        (wanted, "../plan.service"),
    ] {
        guest.add(path, Entry::Link(target.to_owned()));
    }
    for unit in MASKED {
        let path = format!("etc/systemd/system/{unit}");
        guest.add(&path, Entry::Link("/dev/null".to_owned()));
    }
    for (path, mode, text) in [
        ("etc/systemd/system/plan.service", 0o644, PLAN),
        ("etc/pam.d/systemd-user", 0o644, PAM),
        (
            "etc/machine-id",
            0o644,
            "0123456789abcdef0123456789abcdef\n",
        ),
        (
            "etc/passwd",
            0o644,
            "root:x:0:0:root:/root:/bin/sh\nmessagebus:x:100:100::/run:/bin/sh\n\
             user:x:1000:1000:user:/home/user:/bin/sh\n",
        ),
        (
            "etc/group",
            0o644,
            "root:x:0:\nmessagebus:x:100:\nuser:x:1000:\n",
        ),
        ("guest/managed.sh", 0o755, include_str!("managed.sh")),
        ("guest/cases.sh", 0o644, include_str!("managed_cases.sh")),
        ("guest/session", 0o755, include_str!("session.sh")),
    ] {
        guest.add(path, Entry::File(mode, text.as_bytes().to_vec()));
    }
    Ok(())
}

/// Adds a folder of unpacked packages with its links, in a merged `/usr`.
fn packages(guest: &mut Tree, from: &Path, below: &str) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("list {}", from.display()))? {
        let path = entry
            .with_context(|| format!("list {}", from.display()))?
            .path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let inside = match (below, name.as_ref()) {
            ("", "bin" | "sbin" | "lib" | "lib64") => format!("usr/{name}"),
            ("", name) => name.to_owned(),
            (below, name) => format!("{below}/{name}"),
        };
        if PASSED_OVER.contains(&inside.as_str()) {
            continue;
        }
        let facts =
            fs::symlink_metadata(&path).with_context(|| format!("look at {}", path.display()))?;
        if facts.is_dir() {
            packages(guest, &path, &inside)?;
        } else if facts.is_symlink() {
            let target = fs::read_link(&path).context("read a link of a package")?;
            guest.add(&inside, Entry::Link(target.to_string_lossy().into_owned()));
        } else {
            let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            let mode = facts.permissions().mode() & 0o7777;
            guest.add(&inside, Entry::File(mode, bytes));
        }
    }
    Ok(())
}

/// The cases: name, who, seconds, and function of `managed_cases.sh`. The last ones hold the user's
/// manager up and take it away.
const CASES: [(&str, &str, u64, &str); 12] = [
    ("managed-is-up", "root", 60, "is_up"),
    ("managed-session", "user", 30, "session_is_not_delegated"),
    ("managed-scope-limits", "user", 180, "scope_limits"),
    ("managed-scope-memory", "user", 90, "scope_memory"),
    ("managed-scope-after-kill", "user", 90, "scope_after_kill"),
    ("managed-scope-off", "user", 180, "scope_off"),
    ("managed-root-limits", "root", 180, "root_limits"),
    ("managed-bad-settings", "root", 90, "bad_settings"),
    ("managed-closed-to-users", "root", 60, "closed_to_users"),
    ("managed-read-only-groups", "root", 60, "read_only_groups"),
    ("managed-scope-silent", "root", 90, "scope_silent"),
    ("managed-no-manager", "root", 400, "no_manager"),
];

/// The cases.
pub(super) fn cases() -> Vec<Case> {
    CASES
        .iter()
        .map(|(name, who, limit_s, function)| {
            case(
                name,
                who,
                *limit_s,
                &format!(". /guest/cases.sh; {function}"),
            )
        })
        .collect()
}
