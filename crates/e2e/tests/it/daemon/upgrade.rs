//! A newer binary starts over what an older one left alive, which died in the middle of uploads (P85).

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_e2e::{Daemon, until};
use serde_json::{Value, json};

use super::{AGREE, SOON, agree, assert_nothing_left, assert_proven, reason, script};

/// Bytes of the upload that is half sent, and of the one that is half written.
const HALF_SENT: usize = 8 << 20;
const HALF_WRITTEN: usize = 32 << 20;
/// How often the daemon is killed at the most until it was in the middle of a write.
const TRIES: usize = 20;

/// The binary under another name, with other bytes: what an upgrade puts there.
fn newer(folder: &Path) -> PathBuf {
    let copy = folder.join("leasehold-newer");
    fs::copy(leasehold_e2e::leasehold(), &copy).unwrap();
    let mut file = fs::OpenOptions::new().append(true).open(&copy).unwrap();
    file.write_all(b"newer").unwrap();
    copy
}

/// A program that executes another than it is told to.
fn instead(program: &Path) -> [String; 4] {
    let script = "program=$0; shift; exec \"$program\" \"$@\"";
    let program = program.display().to_string();
    ["sh".into(), "-c".into(), script.into(), program]
}

/// Begins to send an archive of so many bytes, and sends so many of them.
fn begin_upload(daemon: &Daemon, bytes: usize, sent: usize) -> TcpStream {
    let address = daemon.url().strip_prefix("http://").expect("its address");
    let mut stream = TcpStream::connect(address).expect("reach the daemon");
    let head = format!(
        "POST /v1/uploads HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\
         content-type: application/x-tar\r\ncontent-length: {bytes}\r\n\r\n",
        daemon.key()
    );
    stream.write_all(head.as_bytes()).expect("begin");
    stream.write_all(&archive(bytes)[..sent]).expect("send");
    stream
}

/// An archive with one file, of so many bytes in all.
fn archive(bytes: usize) -> Vec<u8> {
    let content = bytes - 3 * 512;
    let mut head = [0_u8; 512];
    head[..4].copy_from_slice(b"file");
    head[100..107].copy_from_slice(b"0000644");
    head[108..115].copy_from_slice(b"0000000");
    head[116..123].copy_from_slice(b"0000000");
    head[124..135].copy_from_slice(format!("{content:011o}").as_bytes());
    head[136..147].copy_from_slice(b"00000000000");
    head[148..156].copy_from_slice(b"        ");
    head[156] = b'0';
    head[257..263].copy_from_slice(b"ustar\0");
    head[263..265].copy_from_slice(b"00");
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let mut all = head.to_vec();
    all.resize(512 + content, 7);
    all.resize(bytes, 0);
    all
}

/// Files of objects that are not whole.
fn halves(daemon: &Daemon) -> Vec<PathBuf> {
    let objects = daemon.instance().state().join("daemon/objects");
    let mut found = Vec::new();
    let mut open = vec![objects.clone()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.to_string_lossy().contains('#')
                || path.starts_with(objects.join("incoming"))
            {
                found.push(path);
            }
        }
    }
    found
}

/// Kills the daemon while it writes an object, as often as that takes.
fn kill_in_a_write(daemon: &mut Daemon) {
    for _ in 0..TRIES {
        let stream = begin_upload(daemon, HALF_WRITTEN, HALF_WRITTEN);
        until("the first bytes of an object, or its answer", SOON, || {
            stream.set_nonblocking(true).ok();
            let answered = stream.peek(&mut [0]).is_ok();
            (answered || !halves(daemon).is_empty()).then_some(())
        });
        daemon.kill();
        if !halves(daemon).is_empty() {
            return;
        }
        daemon.restart(&[]);
    }
    panic!("it was never in the middle of a write");
}

#[test]
fn p85_a_newer_binary_takes_up_what_lives_and_removes_what_is_half() {
    let mut daemon = Daemon::start(&["--warm", "0"], &[]);
    let folder = daemon.instance().scratch("newer");
    let text =
        "echo up; while [ ! -e /workspace/go ]; do sleep 0.05; done; echo x >> log; echo done";
    let ticket = daemon.offer(&folder, "read_write");
    let headers = [("leasehold-directory", ticket.as_str())];
    let live = daemon
        .post("/v1/runs?wait=none", &headers, &script(text))
        .run();
    let near = json!({"command": ["sh", "-c", "echo up; sleep 60"], "limits": {"timeout": "3s", "grace": "0s"}});
    let near = daemon.post("/v1/runs?wait=none", &[], &near).run();
    for run in [&live, &near] {
        let log = format!("/v1/runs/{run}/logs/stdout");
        until("both to be up", SOON, || {
            daemon.get(&log).text.contains("up").then_some(())
        });
    }
    let sandboxes = daemon.sandboxes();
    let mut half_sent = begin_upload(&daemon, HALF_SENT, HALF_SENT / 2);
    kill_in_a_write(&mut daemon);
    let mut rest = Vec::new();
    half_sent.set_read_timeout(Some(SOON)).unwrap();
    half_sent.read_to_end(&mut rest).ok();
    assert!(rest.is_empty(), "half an upload was answered");
    // The control: half an object is there before the newer one starts.
    assert!(!halves(&daemon).is_empty());
    let copy = newer(&folder);
    let under = instead(&copy);
    let words: Vec<&str> = under.iter().map(String::as_str).collect();
    daemon.restart_under(&words);
    let running = fs::read_link(format!("/proc/{}/exe", daemon.pid())).unwrap();
    assert_eq!(running, copy, "the newer one serves");
    assert_eq!(halves(&daemon), Vec::<PathBuf>::new());
    agree(&daemon, AGREE);
    // The deadline was kept by the older worker, whoever was away; what lives is the same and goes on.
    let row = daemon.sealed(&near, SOON);
    assert_eq!(reason(&row), "timeout", "{row:#}");
    assert_eq!(daemon.row(&live)["state"], "running");
    let kept: Vec<String> = daemon.sandboxes();
    assert!(kept.iter().all(|one| sandboxes.contains(one)) && !kept.is_empty());
    daemon.instance().write(&folder.join("go"), "");
    let row = daemon.sealed(&live, SOON);
    assert_eq!(reason(&row), "completed", "{row:#}");
    let log = daemon.get(&format!("/v1/runs/{live}/logs/stdout")).text;
    assert_eq!(log, "up\ndone\n");
    assert_eq!(super::lines(&folder.join("log")), 1, "executed once");
    assert_eq!(daemon.taken(), 2, "each begun once");
    // The whole upload arrives now, and a run begins with it.
    let mut again = begin_upload(&daemon, HALF_SENT, HALF_SENT);
    let content = uploaded(&mut again);
    let body = json!({"command": ["sh", "-c", "wc -c < file"], "workspace": {"mode": "upload", "content": content}});
    let used = daemon
        .post("/v1/runs?wait=cleanup", &[], &body)
        .status_is(200);
    let log = daemon
        .get(&format!("/v1/runs/{}/logs/stdout", used.run()))
        .text;
    assert_eq!(log.trim(), (HALF_SENT - 3 * 512).to_string());
    for run in [&live, &near, &used.run()] {
        assert_proven(&daemon, run);
    }
    assert_nothing_left(&daemon);
}

/// The digest that an upload was answered with.
fn uploaded(stream: &mut TcpStream) -> String {
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut said = Vec::new();
    let mut piece = [0; 4_096];
    loop {
        let text = String::from_utf8_lossy(&said).into_owned();
        if let Some((_, body)) = text.split_once("\r\n\r\n")
            && let Ok(body) = serde_json::from_str::<Value>(body)
        {
            return body["digest"].as_str().expect("a digest").to_owned();
        }
        let bytes = stream.read(&mut piece).expect("an answer");
        assert!(bytes > 0, "it was closed: {text}");
        said.extend_from_slice(&piece[..bytes]);
    }
}

/// Has a build with debug assertions be the next version, in its format of the store or in its protocol.
const NEWER: &str = "LEASEHOLD_NEWER";

/// Begins a run that stays until it is told to go on.
fn staying(daemon: &Daemon, folder: &Path) -> String {
    let text = "echo up; while [ ! -e /workspace/go ]; do sleep 0.05; done; echo x >> log";
    let ticket = daemon.offer(folder, "read_write");
    let headers = [("leasehold-directory", ticket.as_str())];
    let run = daemon
        .post("/v1/runs?wait=none", &headers, &script(text))
        .run();
    let log = format!("/v1/runs/{run}/logs/stdout");
    until("it is up", SOON, || {
        daemon.get(&log).text.contains("up").then_some(())
    });
    run
}

/// What the daemon keeps that no opening of a database touches, and the sandboxes that live.
fn kept(daemon: &Daemon) -> (Vec<(PathBuf, Vec<u8>)>, Vec<String>) {
    let own = daemon.instance().state().join("daemon");
    let mut files = Vec::new();
    let mut open = vec![own];
    while let Some(folder) = open.pop() {
        for path in fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            match path.is_dir() {
                true => open.push(path),
                // The engine moves its log into the database whenever somebody has looked.
                false if name.starts_with("store.") => {}
                false => files.push((path.clone(), fs::read(&path).unwrap())),
            }
        }
    }
    files.sort();
    (files, daemon.sandboxes())
}

/// Starts it as another version, which must refuse with all of these words and change nothing.
fn assert_refuses(daemon: &mut Daemon, variables: &[(&str, &str)], words: &[&str]) {
    let before = kept(daemon);
    daemon.spawn(variables);
    let ended = daemon.await_end();
    assert!(!matches!(ended.status, 0 | 101 | 134), "{}", ended.story());
    for word in words {
        assert!(ended.err().contains(word), "{word}: {}", ended.story());
    }
    assert!(kept(daemon) == before, "it changed something");
}

/// The last line of what the run leaves, once it may go on.
fn finished(daemon: &Daemon, folder: &Path, run: &str) {
    assert_eq!(daemon.row(run)["state"], "running");
    daemon.instance().write(&folder.join("go"), "");
    let row = daemon.sealed(run, SOON);
    assert_eq!(reason(&row), "completed", "{row:#}");
    assert_eq!(super::lines(&folder.join("log")), 1, "executed once");
    assert_proven(daemon, run);
    fs::remove_file(folder.join("go")).unwrap();
}

/// Whether the program can be made one of the next version; a skip of this test else.
fn can_be_the_next(test: &str) -> bool {
    if cfg!(not(debug_assertions)) {
        let reason = "builds with debug assertions alone can be the next version";
        leasehold_e2e::skip(test, reason);
    }
    cfg!(debug_assertions)
}

#[test]
fn p85_the_next_version_goes_on_over_live_state_and_the_one_before_refuses_that_of_the_next() {
    let name = "daemon::upgrade::p85_the_next_version_goes_on_over_live_state_and_the_one_before_refuses_that_of_the_next";
    if !can_be_the_next(name) {
        return;
    }
    let mut daemon = Daemon::start(&["--warm", "0"], &[]);
    let [first, second] = ["first", "second"].map(|name| daemon.instance().scratch(name));
    let before = staying(&daemon, &first);
    daemon.kill();
    // The next version has another format, and goes on with what lives.
    daemon.restart(&[(NEWER, "store")]);
    agree(&daemon, AGREE);
    let after = staying(&daemon, &second);
    daemon.kill();
    // The control that it was another: the version before knows its format, and not that.
    let words = ["newer version", "(format 4, this program knows up to 3)"];
    assert_refuses(&mut daemon, &[], &words);
    daemon.restart(&[(NEWER, "store")]);
    agree(&daemon, AGREE);
    finished(&daemon, &first, &before);
    finished(&daemon, &second, &after);
    assert_eq!(daemon.taken(), 2, "each begun once");
    assert_nothing_left(&daemon);
}

#[test]
fn p85_a_version_that_cannot_talk_to_a_live_worker_says_so_and_leaves_it_alone() {
    let name = "daemon::upgrade::p85_a_version_that_cannot_talk_to_a_live_worker_says_so_and_leaves_it_alone";
    if !can_be_the_next(name) {
        return;
    }
    let mut daemon = Daemon::start(&["--warm", "0"], &[]);
    let folder = daemon.instance().scratch("live");
    let live = staying(&daemon, &folder);
    daemon.kill();
    let words = ["the worker of another version", "speaks protocol version"];
    assert_refuses(&mut daemon, &[(NEWER, "protocol")], &words);
    daemon.restart(&[]);
    agree(&daemon, AGREE);
    finished(&daemon, &folder, &live);
    assert_eq!(daemon.taken(), 1, "begun once");
    assert_nothing_left(&daemon);
}
