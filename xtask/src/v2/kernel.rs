//! Getting a kernel with cgroup v2 and a static busybox from Debian's packages, without installing.
//!
//! Packages are fetched once into the target folder and unpacked there; nothing on this machine is
//! changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::step;

/// What the guest boots from.
pub(super) struct Parts {
    /// The kernel image.
    pub(super) image: PathBuf,
    /// Kernel modules to load, in this order.
    pub(super) modules: Vec<PathBuf>,
    /// A static busybox.
    pub(super) busybox: PathBuf,
}

/// Fetches and unpacks what is not there yet, below `folder`.
pub(super) fn parts(folder: &Path) -> Result<Parts> {
    let kernel = unpacked(folder, "kernel", || {
        let depends =
            step::output(Command::new("apt-cache").args(["depends", "linux-image-cloud-amd64"]))?;
        let newest = newest(&depends)
            .context("linux-image-cloud-amd64 depends on no kernel; run apt-get update")?;
        Ok(vec![newest])
    })?;
    let busybox = unpacked(folder, "busybox", || Ok(vec!["busybox-static".to_owned()]))?;
    let image = first_starting(&kernel.join("boot"), "vmlinuz-")?;
    let release = first_starting(&kernel.join("lib/modules"), "")?;
    let modules = ["fs/overlayfs/overlay.ko", "drivers/block/loop.ko"]
        .map(|module| release.join("kernel").join(module));
    Ok(Parts {
        image,
        modules: modules.into_iter().filter(|path| path.is_file()).collect(),
        busybox: busybox.join("bin/busybox"),
    })
}

/// The folder `folder/name` with packages in it; a marker file says that it is whole.
pub(super) fn unpacked(
    folder: &Path,
    name: &str,
    packages: impl Fn() -> Result<Vec<String>>,
) -> Result<PathBuf> {
    let tree = folder.join(name);
    let marker = folder.join(format!("{name}.whole"));
    if marker.is_file() {
        return Ok(tree);
    }
    let packages = packages()?;
    let downloads = folder.join(format!("{name}.download"));
    for stale in [&tree, &downloads] {
        if stale.exists() {
            fs::remove_dir_all(stale).with_context(|| format!("remove {}", stale.display()))?;
        }
        fs::create_dir_all(stale).with_context(|| format!("make {}", stale.display()))?;
    }
    println!("fetching {} with apt-get download", packages.join(" "));
    step::output(
        Command::new("apt-get")
            .arg("download")
            .args(&packages)
            .current_dir(&downloads),
    )?;
    for file in starting(&downloads, "")? {
        step::output(Command::new("dpkg-deb").arg("-x").arg(&file).arg(&tree))?;
    }
    fs::remove_dir_all(&downloads).context("remove the package files")?;
    fs::write(&marker, packages.join("\n"))
        .with_context(|| format!("write {}", marker.display()))?;
    Ok(tree)
}

/// The kernel package in the output of `apt-cache depends`.
fn newest(depends: &str) -> Option<String> {
    depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .map(str::to_owned)
}

/// The first entry of a folder whose name starts with `prefix`.
fn first_starting(folder: &Path, prefix: &str) -> Result<PathBuf> {
    let first = starting(folder, prefix)?.into_iter().next();
    first.with_context(|| format!("nothing named {prefix}… in {}", folder.display()))
}

/// The entries of a folder whose name starts with `prefix`, sorted.
fn starting(folder: &Path, prefix: &str) -> Result<Vec<PathBuf>> {
    let mut paths: Vec<_> = fs::read_dir(folder)
        .with_context(|| format!("list {}", folder.display()))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(prefix))
        })
        .collect();
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_package_is_read_from_the_dependency() {
        let text = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-57-cloud-amd64\n";
        assert_eq!(
            newest(text).as_deref(),
            Some("linux-image-6.1.0-57-cloud-amd64")
        );
        assert_eq!(newest("nothing\n"), None);
    }
}
