//! P37: objects that are not files, and files that do not hold still.

use std::fs;
use std::io::Read;
use std::sync::mpsc;
use std::time::Duration;

use leasehold_e2e::{Instance, Need, need};

use super::{collect, everything, rows};
use crate::record::assert_clean;

const MAKE: &str = r#"import os, socket
os.mkfifo("fifo")
socket.socket(socket.AF_UNIX).bind("socket")
open("closed", "w").write("x"); os.chmod("closed", 0)
os.mkdir("shut"); open("shut/file", "w").write("x"); os.chmod("shut", 0)
f = os.open("huge", os.O_CREAT | os.O_RDWR)
for bits in (60, 50, 42):
    try: os.ftruncate(f, 1 << bits); break
    except OSError: pass
try: os.mknod("device", 0o20666, os.makedev(1, 5)); print("made a device")
except OSError: pass
open("plain", "w").write("mine")
"#;

#[test]
fn p37_special_files_are_skipped_with_their_reason() {
    let test = "p37_special_files_are_skipped_with_their_reason";
    let needs = [
        Need::Root,
        Need::Path("/usr/bin/python3"),
        Need::Program("mknod"),
    ];
    if !need(test, &needs) {
        return;
    }
    let instance = Instance::new();
    let shared = instance.scratch("shared");
    let device = shared.join("zero");
    // Somebody with the right to it has left a device in the folder that never ends.
    let made = std::process::Command::new("mknod")
        .arg(&device)
        .args(["c", "1", "5"])
        .status();
    assert!(made.unwrap().success());
    let at = format!("{}:rw", shared.display());
    for flags in [&[][..], &["--workspace", &at]] {
        let (record, out) = collect(&instance, flags, MAKE);
        assert_clean(&record);
        let rows = rows(&record);
        let wanted = [
            ("fifo", "not_regular"),
            ("socket", "not_regular"),
            ("closed", "unreadable"),
            ("shut", "unreadable"),
            ("huge", "too_large"),
            ("plain", "taken"),
        ];
        for (path, fate) in wanted {
            assert_eq!(
                rows.get(path).map(String::as_str),
                Some(fate),
                "{path}: {rows:?}"
            );
        }
        if !flags.is_empty() {
            assert_eq!(rows["zero"], "not_regular");
        }
        assert_eq!(record["stdout"]["written"], 0, "a guest made a device");
        assert_eq!(everything(&out).len(), 1, "{:?}", everything(&out));
        let collect = record["stages"]
            .as_array()
            .unwrap()
            .iter()
            .find(|stage| stage["stage"] == "collect");
        let micros = collect.unwrap()["micros"].as_u64().unwrap();
        assert!(
            micros < 5_000_000 * u64::from(leasehold_e2e::patience()),
            "{record:#}"
        );
    }
    // The control: a naive reader waits for ever at the pipe, and never has enough of the device.
    let fifo = shared.join("fifo");
    let (done, ended) = mpsc::channel();
    let path = fifo.clone();
    let reader = std::thread::spawn(move || done.send(fs::read(path).is_ok()));
    assert!(ended.recv_timeout(Duration::from_millis(300)).is_err());
    drop(fs::File::options().write(true).open(&fifo).unwrap());
    reader.join().unwrap().ok();
    let mut much = vec![0; 1 << 20];
    fs::File::open(&device)
        .unwrap()
        .read_exact(&mut much)
        .unwrap();
}

/// A neighbour lets a file grow as fast as it can while it is collected.
#[test]
fn p37_a_growing_file_is_cut_and_marked() {
    let test = "p37_a_growing_file_is_cut_and_marked";
    if !need(test, &[Need::Root, Need::Path("/usr/bin/python3")]) {
        return;
    }
    let instance = Instance::new();
    let shared = instance.scratch("shared");
    fs::write(shared.join("still"), vec![7; 1 << 20]).unwrap();
    let at = format!("{}:rw", shared.display());
    // Grows by small pieces and starts again, so that the host's disk is never filled.
    let grow = "import os\nf = os.open('growing', os.O_CREAT | os.O_RDWR)\nprint('up', flush=True)\nwhile True:\n  for _ in range(60000): os.write(f, b'x' * 512)\n  os.ftruncate(f, 0); os.lseek(f, 0, 0)";
    let neighbour = instance.start([
        "run",
        "--workspace",
        &at,
        "--",
        "/usr/bin/python3",
        "-c",
        grow,
    ]);
    neighbour.await_out("up", Duration::from_secs(20));
    let mut marked = 0;
    for _ in 0..20 {
        let (record, out) = collect(&instance, &["--workspace", &at], "pass");
        let rows = rows(&record);
        assert_eq!(rows["still"], "taken");
        match rows["growing"].as_str() {
            "changed_while_read" => marked += 1,
            // Nobody wrote to it in the moment it was read.
            "taken" => {
                let row = record["artifacts"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .find(|row| row["path"] == "growing");
                let bytes = row.unwrap()["bytes"].as_u64().unwrap();
                assert_eq!(fs::metadata(out.join("growing")).unwrap().len(), bytes);
            }
            other => panic!("{other}: {record:#}"),
        }
        if marked == 2 {
            break;
        }
    }
    assert!(marked > 0, "a file that grows was never marked");
    neighbour.signal(rustix::process::Signal::INT);
    neighbour.wait(Duration::from_secs(20)).status_is(130);
    // The control: once the writer is gone, the same file is no longer marked.
    let (record, _) = collect(&instance, &["--workspace", &at], "pass");
    assert_eq!(rows(&record)["growing"], "taken");
}
