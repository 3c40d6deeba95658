//! A fake manager at a socket of its own: what it answers, and what becomes of it.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::JoinHandle;

use super::wire::{Kind, MESSAGE_MAX, answer};
use super::*;

/// How long the tests wait for a manager that says nothing.
const SHORT: Duration = Duration::from_millis(150);
/// How long for one that answers, on a busy machine.
const LONG: Duration = Duration::from_secs(20);
const JOB: &str = "/org/freedesktop/systemd1/job/7";
const UNIT: &str = "leasehold-t-7.scope";

/// A manager that takes the greeting and then does as it is told. Its end returns what it was sent
/// after `BEGIN`.
struct Manager {
    socket: PathBuf,
    thread: JoinHandle<Vec<u8>>,
}

impl Manager {
    fn new(
        name: &str,
        greeting: &'static [u8],
        then: impl Fn(&mut UnixStream) + Send + 'static,
    ) -> Self {
        let folder = std::env::temp_dir().join(format!("scope-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let socket = folder.join(name);
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let uid = rustix::process::geteuid().as_raw().to_string();
            let digits: String = uid.bytes().map(|one| format!("{one:02x}")).collect();
            let mut hello = vec![0; format!("\0AUTH EXTERNAL {digits}\r\n").len()];
            stream.read_exact(&mut hello).unwrap();
            assert!(hello.ends_with(format!(" {digits}\r\n").as_bytes()));
            stream.write_all(greeting).unwrap();
            let mut heard = Vec::new();
            let begun = greeting.starts_with(b"OK ") && stream.read_exact(&mut [0; 7]).is_ok();
            if begun {
                let mut chunk = [0; 4_096];
                let count = stream.read(&mut chunk).unwrap_or(0);
                heard.extend_from_slice(&chunk[..count]);
                then(&mut stream);
            }
            // Until the caller lets go, so that silence is silence and no end.
            let _ = stream.read_to_end(&mut Vec::new());
            heard
        });
        Self { socket, thread }
    }

    /// What comes of asking it, and what it heard.
    fn asked(self, patience: Duration) -> (Result<(), ScopeError>, Vec<u8>) {
        let result = ask(&self.socket, Instant::now() + patience, UNIT, 7);
        let heard = self.thread.join().unwrap();
        let _ = std::fs::remove_file(&self.socket);
        (result, heard)
    }
}

const OK: &[u8] = b"OK 0123456789abcdef0123456789abcdef\r\n";

fn job_made() -> Vec<u8> {
    answer(Kind::Return, 1, ["", ""], ("o", &[JOB]))
}

fn job_removed(job: &str, result: &str) -> Vec<u8> {
    answer(
        Kind::Signal,
        0,
        ["JobRemoved", ""],
        ("uoss", &[job, UNIT, result]),
    )
}

fn say(bytes: Vec<u8>) -> impl Fn(&mut UnixStream) + Send {
    move |stream| drop(stream.write_all(&bytes))
}

#[test]
fn a_scope_is_there_when_its_job_is_done_and_not_before() {
    let other = answer(Kind::Signal, 0, ["UnitNew", ""], ("so", &[UNIT, "/unit/x"]));
    let all = [
        other,
        job_removed("/org/freedesktop/systemd1/job/6", "failed"),
        job_made(),
        job_removed("/org/freedesktop/systemd1/job/8", "failed"),
        job_removed(JOB, "done"),
    ]
    .concat();
    // In one piece, and byte by byte.
    let whole = all.clone();
    let (result, heard) = Manager::new("good", OK, say(whole)).asked(LONG);
    result.unwrap();
    let text = String::from_utf8_lossy(&heard).into_owned();
    for word in [
        "StartTransientUnit",
        UNIT,
        "PIDs",
        "DelegateControllers",
        "memory",
        "CollectMode",
    ] {
        assert!(text.contains(word), "no {word} in the call");
    }
    let slowly = Manager::new("slow", OK, move |stream| {
        for byte in &all {
            stream.write_all(&[*byte]).unwrap();
        }
    });
    slowly.asked(LONG).0.unwrap();

    let undone = Manager::new("undone", OK, say(job_made()));
    assert!(matches!(undone.asked(SHORT).0, Err(ScopeError::Silent)));
    let failed = [job_made(), job_removed(JOB, "failed")].concat();
    let failed = Manager::new("failed", OK, say(failed)).asked(LONG).0;
    assert!(matches!(failed, Err(ScopeError::Job(result)) if result == "failed"));
}

#[test]
fn a_refusal_is_told_in_systemds_words_without_what_steers_a_terminal() {
    let name = "org.freedesktop.systemd1.UnitExists";
    let text = format!("Unit {UNIT} \x1b[2J {}", "x".repeat(1_000));
    let refused = answer(Kind::Error, 1, ["", name], ("s", &[&text]));
    match Manager::new("error", OK, say(refused)).asked(LONG).0 {
        Err(ScopeError::Refused { name: told, text }) => {
            assert_eq!(told, name);
            assert!(
                text.starts_with(&format!("Unit {UNIT}")) && text.len() <= 200,
                "{text}"
            );
            assert!(!text.contains('\x1b'));
        }
        other => panic!("{other:?}"),
    }
    let bare = answer(Kind::Error, 1, ["", name], ("", &[]));
    let bare = Manager::new("bare", OK, say(bare))
        .asked(LONG)
        .0
        .unwrap_err();
    assert!(bare.to_string().contains("no reason given"), "{bare}");
}

#[test]
fn silence_garbage_and_floods_end_within_the_bound() {
    let huge = |at: usize| {
        let mut bytes = job_made();
        bytes[at..at + 4].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
        bytes
    };
    let unending = |stream: &mut UnixStream| {
        let signal = answer(Kind::Signal, 0, ["UnitNew", ""], ("so", &[UNIT, "/u"]));
        while stream.write_all(&signal).is_ok() {}
    };
    let nameless = answer(Kind::Return, 1, ["", ""], ("", &[]));
    let resultless = answer(Kind::Signal, 0, ["JobRemoved", ""], ("uo", &[JOB]));
    let none = |_: &mut UnixStream| {};
    let quiet = [
        Manager::new("silence", OK, none),
        Manager::new("no-greeting", b"", none),
        Manager::new("flood", OK, unending),
    ];
    let odd = [
        Manager::new("rejected", b"REJECTED EXTERNAL\r\n", none),
        Manager::new("no-end-of-line", &[b'x'; 4_096], none),
        Manager::new("garbage", OK, say(vec![0xa5; 512])),
        Manager::new("huge-body", OK, say(huge(4))),
        Manager::new("huge-header", OK, say(huge(12))),
        Manager::new("no-job", OK, say(nameless)),
        Manager::new("no-result", OK, say(resultless)),
    ];
    for manager in quiet {
        let what = manager.socket.display().to_string();
        let begun = Instant::now();
        let error = manager.asked(SHORT).0.expect_err(&what);
        assert!(matches!(error, ScopeError::Silent), "{what}: {error:?}");
        assert!(begun.elapsed() < LONG, "{what} took {:?}", begun.elapsed());
    }
    for manager in odd {
        let what = manager.socket.display().to_string();
        let error = manager.asked(LONG).0.expect_err(&what);
        assert!(
            matches!(error, ScopeError::Nonsense(_)),
            "{what}: {error:?}"
        );
    }
}

#[test]
fn an_end_half_way_is_told_and_nobody_there_is_no_failure_of_ours() {
    let half = Manager::new("half", OK, |stream| {
        stream.write_all(&job_made()[..20]).unwrap();
        stream.shutdown(std::net::Shutdown::Both).unwrap();
    });
    assert!(matches!(half.asked(LONG).0, Err(ScopeError::Closed)));
    let nowhere = std::env::temp_dir().join("no-such-manager");
    let deadline = Instant::now() + SHORT;
    let absent = ask(&nowhere, deadline, UNIT, 7).unwrap_err();
    assert!(matches!(absent, ScopeError::NoManager { .. }));
    assert!(absent.to_string().contains("no-such-manager"));
    let long = PathBuf::from(format!("/tmp/{}", "x".repeat(200)));
    assert!(matches!(
        ask(&long, deadline, UNIT, 7),
        Err(ScopeError::Connect { .. })
    ));
}

#[test]
fn a_large_message_below_the_bound_is_passed_over() {
    let text = "x".repeat(MESSAGE_MAX - 4_096);
    let large = answer(Kind::Signal, 0, ["PropertiesChanged", ""], ("s", &[&text]));
    let all = [large, job_made(), job_removed(JOB, "done")].concat();
    Manager::new("large", OK, say(all)).asked(LONG).0.unwrap();
}

#[test]
fn only_a_scope_of_ours_is_taken_for_one() {
    let scope = "leasehold-0a1b2c3d4e-77.scope";
    for (groups, wanted) in [
        (
            format!("0::/user.slice/app.slice/{scope}/supervisor\n"),
            Some(scope),
        ),
        (format!("4:memory:/x\n0::/{scope}\n"), Some(scope)),
        (format!("4:memory:/{scope}\n0::/\n"), None),
        ("0::/user.slice/session-3.scope\n".to_owned(), None),
        ("0::/leasehold-0a1b2c3d4e/box\n".to_owned(), None),
        (String::new(), None),
    ] {
        assert_eq!(ours_of(&groups).as_deref(), wanted, "{groups}");
    }
    assert_eq!(scope_of(u32::MAX), None);
}
