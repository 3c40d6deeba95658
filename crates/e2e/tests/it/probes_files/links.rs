//! P35: links among what is collected.

use std::fs;
use std::path::Path;
use std::process::Command;

use leasehold_e2e::{Instance, Need, need};

use super::{collect, leaks, rows, secret};

/// Makes every kind of link to the secret, to its folder, and to what else a host has.
fn script(secret: &Path) -> String {
    let secret = secret.display();
    format!(
        r#"import os
secret = "{secret}"
os.makedirs("d")
link = lambda to, name: os.symlink(to, name)
link(secret, "absolute"); link("../" * 20 + secret[1:], "relative"); link(secret, "d/inner")
link(os.path.dirname(secret), "directory"); link("/", "root"); link("/proc/self/root" + secret, "magic")
link("/proc/self/fd/3", "descriptor"); link("/proc/1/environ", "environment"); link("/etc/shadow", "shadow")
link("nowhere", "dangling"); link("loop", "loop")
link(secret, "chain0")
for at in range(1, 40): link(f"chain{{at - 1}}", f"chain{{at}}")
open("plain", "w").write("mine")
"#
    )
}

#[test]
fn p35_no_link_brings_anything_of_the_host() {
    let test = "p35_no_link_brings_anything_of_the_host";
    if !need(test, &[Need::Path("/usr/bin/python3")]) {
        return;
    }
    let instance = Instance::new();
    let secret = secret(&instance);
    let script = script(&secret);
    let shared = instance.scratch("shared");
    let at = format!("{}:rw", shared.display());
    // In the guest's own workspace, and in a folder of the host, where the links lead somewhere.
    for flags in [&[][..], &["--workspace", &at]] {
        let (record, out) = collect(&instance, flags, &script);
        assert_eq!(leaks(&out), [] as [std::path::PathBuf; 0], "{record:#}");
        let kept = instance.run_record_folder(record["run"].as_str().unwrap());
        assert!(leaks(&kept).is_empty(), "{record:#}");
        let rows = rows(&record);
        for (path, fate) in &rows {
            let wanted = if path == "plain" { "taken" } else { "symlink" };
            assert_eq!(fate, wanted, "{path}");
        }
        assert_eq!(rows.len(), 1 + 12 + 39, "{rows:?}");
        assert_eq!(fs::read(out.join("plain")).unwrap(), b"mine");
    }
    // The links in the shared folder are as dangerous as they look: a copy that follows them has the
    // secret many times.
    let naive = instance.scratch("naive");
    Command::new("cp")
        .args(["-rL", "--"])
        .args(
            ["absolute", "relative", "d", "directory", "magic", "chain30"]
                .map(|name| shared.join(name)),
        )
        .arg(&naive)
        .status()
        .unwrap();
    assert!(leaks(&naive).len() >= 5, "{:?}", leaks(&naive));
}

/// A path that a glob names through a link is not walked.
#[test]
fn p35_a_glob_does_not_lead_through_a_link() {
    let test = "p35_a_glob_does_not_lead_through_a_link";
    if !need(test, &[Need::Path("/usr/bin/python3")]) {
        return;
    }
    let instance = Instance::new();
    let secret = secret(&instance);
    let shared = instance.scratch("shared");
    std::os::unix::fs::symlink(secret.parent().unwrap(), shared.join("way")).unwrap();
    assert_eq!(
        fs::read_to_string(shared.join("way/secret")).unwrap(),
        super::CANARY
    );
    let out = instance.scratch("out");
    for mode in ["rw", "clone", "ro"] {
        let at = format!("{}:{mode}", shared.display());
        for glob in ["way/secret", "way/*", "*/secret", "way/**"] {
            let place = out.display().to_string();
            let flags = ["--workspace", &at, "--artifact", glob, "--out", &place];
            let outcome = instance.sh(&flags, "true").status_is(0);
            assert!(leaks(&out).is_empty(), "{mode} {glob}: {}", outcome.story());
        }
    }
    assert!(leaks(&instance.state()).is_empty());
}
