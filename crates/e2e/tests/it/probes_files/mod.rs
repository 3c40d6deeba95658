//! Probes of what comes back from a hostile guest: links, races, objects that are no files, names, and
//! files that the host would obey.
//!
//! Each is driven through `--artifact` and `--out`, and has its control in the same test: who copies or
//! reads the naive way is seen to be taken in.

mod later;
mod lent;
mod links;
mod names;
mod objects;
mod race;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use leasehold_e2e::Instance;
use serde_json::Value;

/// A word that is nowhere but in the host's file that a guest must not get.
const CANARY: &str = "canary-9d41c07be2";

/// The host's secret, readable for everybody on it.
fn secret(instance: &Instance) -> PathBuf {
    let path = instance.scratch("secrets").join("secret");
    fs::write(&path, CANARY).expect("write the secret");
    path
}

/// Files below a folder that hold the canary.
fn leaks(folder: &Path) -> Vec<PathBuf> {
    let word = CANARY.as_bytes();
    let mut found = everything(folder);
    found.retain(|path| {
        let regular = fs::symlink_metadata(path).is_ok_and(|seen| seen.is_file());
        let holds =
            || fs::read(path).is_ok_and(|bytes| bytes.windows(word.len()).any(|at| at == word));
        regular && holds()
    });
    found
}

/// Everything below a folder, links not followed.
fn everything(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(everything(&path));
        }
        found.push(path);
    }
    found
}

/// The rows of a record's artifacts: path, and `taken` or why not.
fn rows(record: &Value) -> BTreeMap<String, String> {
    let rows = record["artifacts"].as_array().expect("artifacts");
    let row = |row: &Value| {
        let path = row["path"].as_str().expect("path").to_owned();
        let fate = row["skipped"].as_str().unwrap_or("taken").to_owned();
        (path, fate)
    };
    rows.iter().map(row).collect()
}

/// A path of a manifest as the bytes it stands for.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'\\', [b'\\', tail @ ..]) => {
                bytes.push(b'\\');
                rest = tail;
            }
            (b'\\', [b'x', high, low, tail @ ..]) => {
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits).expect("digits");
                bytes.push(u8::from_str_radix(digits, 16).expect("digits"));
                rest = tail;
            }
            (byte, tail) => {
                bytes.push(*byte);
                rest = tail;
            }
        }
    }
    bytes
}

/// Paths of the regular files below a folder, as bytes relative to it.
fn files(folder: &Path) -> Vec<Vec<u8>> {
    let mut paths: Vec<Vec<u8>> = everything(folder)
        .into_iter()
        .filter(|path| fs::symlink_metadata(path).is_ok_and(|seen| seen.is_file()))
        .map(|path| {
            path.strip_prefix(folder)
                .expect("below")
                .as_os_str()
                .as_bytes()
                .to_vec()
        })
        .collect();
    paths.sort();
    paths
}

/// Runs a Python script in a sandbox with flags, everything of its workspace collected into a folder.
fn collect(instance: &Instance, flags: &[&str], script: &str) -> (Value, PathBuf) {
    let out = instance.scratch("out");
    fs::remove_dir_all(&out).expect("empty the folder");
    let place = out.display().to_string();
    let head = ["run", "--json", "--artifact", "**", "--out", &place];
    let words = [&head, flags, &["--", "/usr/bin/python3", "-c", script]].concat();
    let outcome = instance.cli(words);
    assert_eq!(outcome.status, 0, "{}", outcome.story());
    (outcome.json(), out)
}
