//! P38: names that steer terminals, shells, and whoever splits a list by its lines.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use leasehold_e2e::{Instance, Need, need};

use super::{collect, files, rows, unescaped};

/// Python source for every name; each file holds its own name.
const NAMES: &str = r##"import os
NAMES = [b"new\nline", b"-rf", b"--help", b"quote'\"", b"$(touch pwned)", b"`touch pwned`", b"; touch pwned;",
    b"a" * 255, b"\xff\xfe", b"..x", b"...", b"\xe2\x80\xaegpj.exe", b"\x1b[31mred\x1b]0;title\x07", b"case", b"CASE",
    b"\xc3\xa9", b"e\xcc\x81", b" spaces ", b"back\\slash", b"back\\x0aslash", b"*", b"?", b"[a]", b"tab\there",
    b"del\x7f", b"\xc2\x85", b"CON", b"%2e%2e", b"\xed\xa0\x80", b"a\\", b"~", b"!", b"#x"]
os.mkdir(b"d\n\\"); os.mkdir(b"d\n\\/-x")
for name in NAMES:
    open(name, "wb").write(name)
    open(b"d\n\\/-x/" + name, "wb").write(name)
"##;

#[test]
fn p38_every_name_comes_back_as_it_was() {
    let test = "p38_every_name_comes_back_as_it_was";
    if !need(test, &[Need::Path("/usr/bin/python3"), Need::Program("sh")]) {
        return;
    }
    let instance = Instance::new();
    let (record, out) = collect(&instance, &[], NAMES);
    let rows = rows(&record);
    assert_eq!(rows.len(), 66, "{rows:?}");
    let mut told = BTreeSet::new();
    for (path, fate) in &rows {
        assert_eq!(fate, "taken", "{path}");
        let plain = path
            .chars()
            .all(|letter| !letter.is_control() && letter != '\u{202e}');
        assert!(plain, "{path:?} steers a terminal");
        assert!(told.insert(unescaped(path)), "{path} stands for two files");
    }
    let found = files(&out);
    assert_eq!(found, told.into_iter().collect::<Vec<_>>());
    for path in &found {
        let bytes = fs::read(out.join(std::ffi::OsStr::from_bytes(path))).unwrap();
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap();
        assert_eq!(bytes, name, "{}", String::from_utf8_lossy(path));
    }
    // What is shown to a person is plain as well.
    let run = record["run"].as_str().unwrap();
    let shown = instance.cli(["show", run]).status_is(0);
    assert!(
        !shown.stdout.contains(&0x1b) && !shown.stdout.contains(&7),
        "{}",
        shown.story()
    );
    // No shell saw a name.
    assert!(!found.iter().any(|path| path.ends_with(b"pwned")));
    assert!(
        !instance
            .scratch("out")
            .parent()
            .unwrap()
            .join("pwned")
            .exists()
    );

    // The control: a list by lines is ambiguous, and a shell that sees the names runs them.
    let listed = Command::new("find")
        .args([".", "-type", "f"])
        .current_dir(&out)
        .output()
        .unwrap();
    let lines = listed.stdout.iter().filter(|byte| **byte == b'\n').count();
    assert!(
        lines > found.len(),
        "{lines} lines for {} files",
        found.len()
    );
    let naive = "for name in *; do eval \"true $name\"; done 2>/dev/null; ls pwned";
    let status = Command::new("sh")
        .args(["-c", naive])
        .current_dir(&out)
        .output()
        .unwrap();
    assert!(out.join("pwned").exists(), "{status:?}");
}
