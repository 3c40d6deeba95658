//! The store of code, and what is done to it from outside.

use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::sync::Arc;

use super::*;
use crate::wasm::testing::Folder;

const BYTES_MAX: u64 = 1 << 20;

fn key(number: u8) -> Key {
    Key {
        module: Digest::of(&[number]),
        flavour: Flavour::Plain,
        fingerprint: Digest::of(b"compiler"),
    }
}

fn code(bytes: &[u8]) -> Code {
    Code {
        kind: Kind::Core,
        flavour: Flavour::Plain,
        sealed: sealed::copy("test", &mut &*bytes, CODE_BYTES_MAX).unwrap(),
    }
}

/// A store that keeps the code `good` under the first key.
fn filled(name: &str) -> (Folder, Store) {
    let folder = Folder::new(name);
    let store = Store::open(&folder.path().join("code"), BYTES_MAX).unwrap();
    store.keep(&key(1), &code(b"good code")).unwrap();
    (folder, store)
}

fn there(store: &Store, key: &Key) -> Option<Digest> {
    match store.load(key) {
        Found::There(code) => {
            let mut bytes = Vec::new();
            let file = File::from(code.sealed.file.try_clone().unwrap());
            FromStart::of(&file).read_to_end(&mut bytes).unwrap();
            assert_eq!(Digest::of(&bytes), code.sealed.digest);
            Some(code.sealed.digest)
        }
        Found::Absent => None,
        Found::Refused(why) => panic!("refused: {why}"),
    }
}

fn names(store: &Store) -> Vec<String> {
    let mut names: Vec<String> = store
        .listed()
        .unwrap()
        .into_iter()
        .map(|row| row.0)
        .collect();
    names.sort();
    names
}

#[test]
fn what_was_kept_is_there_for_its_key_alone() {
    let (_folder, store) = filled("kept");
    assert_eq!(there(&store, &key(1)), Some(Digest::of(b"good code")));
    let other = [
        key(2),
        Key {
            flavour: Flavour::Metered,
            ..key(1)
        },
        Key {
            fingerprint: Digest::of(b"another compiler"),
            ..key(1)
        },
    ];
    for key in other {
        assert_eq!(there(&store, &key), None, "{key:?}");
    }
    let again = Store::open(&store.path, BYTES_MAX).unwrap();
    assert_eq!(there(&again, &key(1)), Some(Digest::of(b"good code")));
}

/// The one file of the store with this ending.
fn only(store: &Store, end: &str) -> PathBuf {
    let mut found = names(store).into_iter().filter(|name| name.ends_with(end));
    let path = store.path.join(found.next().unwrap());
    assert_eq!(found.next(), None);
    path
}

type Harm = fn(&Store);

fn refused_and_compiled_again(name: &str, harm: Harm) {
    let (_folder, store) = filled(name);
    harm(&store);
    match store.load(&key(1)) {
        Found::Refused(_) => {}
        found => panic!("{name}: {found:?}"),
    }
    assert!(matches!(store.load(&key(1)), Found::Absent), "{name}");
    store.keep(&key(1), &code(b"good code")).unwrap();
    let again = there(&store, &key(1));
    assert_eq!(again, Some(Digest::of(b"good code")), "{name}");
}

#[test]
fn what_was_tampered_with_is_never_loaded_and_compiled_again() {
    let cases: [(&str, Harm); 12] = [
        ("altered byte", |store| {
            fs::write(only(store, CODE), b"gooe code").unwrap();
        }),
        ("truncated", |store| {
            fs::write(only(store, CODE), b"good").unwrap();
        }),
        ("longer", |store| {
            fs::write(only(store, CODE), b"good code and more").unwrap();
        }),
        ("gone", |store| fs::remove_file(only(store, CODE)).unwrap()),
        ("link to the same bytes", |store| {
            let path = only(store, CODE);
            fs::rename(&path, store.path.join("elsewhere")).unwrap();
            symlink("elsewhere", path).unwrap();
        }),
        ("pipe", |store| {
            let path = only(store, CODE);
            fs::remove_file(&path).unwrap();
            rustix::fs::mkfifoat(CWD, &path, Mode::RWXU).unwrap();
        }),
        ("writable by others", |store| {
            fs::set_permissions(only(store, CODE), fs::Permissions::from_mode(0o622)).unwrap();
        }),
        ("no row", |store| {
            fs::write(only(store, ROW), b"{}").unwrap()
        }),
        ("long row", |store| {
            let long = " ".repeat(2 * ROW_BYTES_MAX as usize);
            let text = fs::read_to_string(only(store, ROW)).unwrap();
            fs::write(only(store, ROW), long + &text).unwrap();
        }),
        ("row of another module", |store| {
            let text = fs::read_to_string(only(store, ROW)).unwrap();
            let (ours, other) = (key(1).module.hex(), key(2).module.hex());
            fs::write(only(store, ROW), text.replace(&ours, &other)).unwrap();
        }),
        ("row that names other code", |store| {
            store.keep(&key(2), &code(b"evil code")).unwrap();
            let (good, evil) = (
                Digest::of(b"good code").hex(),
                Digest::of(b"evil code").hex(),
            );
            let row = store.path.join(key(1).row_name());
            let text = fs::read_to_string(&row).unwrap();
            // Digest and length fit, and so would anybody's who can write here: what holds is that nobody can.
            fs::write(&row, text.replace(&good, &evil)).unwrap();
            fs::set_permissions(&row, fs::Permissions::from_mode(0o666)).unwrap();
        }),
        ("another user's", |store| {
            if rustix::process::geteuid().is_root() {
                chown(only(store, CODE), Some(4_711), None).unwrap();
            } else {
                fs::remove_file(only(store, CODE)).unwrap();
            }
        }),
    ];
    for (name, harm) in cases {
        refused_and_compiled_again(name, harm);
    }
}

#[test]
fn a_directory_that_others_can_write_to_is_refused() {
    let (_folder, store) = filled("open");
    fs::set_permissions(&store.path, fs::Permissions::from_mode(0o777)).unwrap();
    let refused = Store::open(&store.path, BYTES_MAX).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    let path = store.path.with_file_name("link");
    symlink(&store.path, &path).unwrap();
    assert!(Store::open(&path, BYTES_MAX).is_err());
}

#[test]
fn what_was_used_least_makes_room() {
    let (_folder, store) = filled("room");
    let of = |number: u8| vec![number; 400 << 10];
    let age = |number: u8, seconds: u64| {
        let row = File::open(store.path.join(key(number).row_name())).unwrap();
        let then = SystemTime::now() - Duration::from_secs(seconds);
        row.set_modified(then).unwrap();
    };
    store.keep(&key(2), &code(&of(2))).unwrap();
    store.keep(&key(3), &code(&of(3))).unwrap();
    age(1, 900);
    age(2, 600);
    age(3, 300);
    // Its use is noted, so another one is the oldest now.
    assert!(there(&store, &key(1)).is_some());
    store.keep(&key(4), &code(&of(4))).unwrap();
    let kept: Vec<bool> = (1..=4)
        .map(|number| there(&store, &key(number)).is_some())
        .collect();
    assert_eq!(kept, [true, false, true, true]);
    assert_eq!(names(&store).len(), 6, "{:?}", names(&store));
    // One that is alone too long for the store is still there for whoever asked for it.
    let huge = code(&vec![9; 2 << 20]);
    store.keep(&key(9), &huge).unwrap();
    assert_eq!(there(&store, &key(9)), Some(huge.sealed.digest));
    assert_eq!(names(&store).len(), 2, "{:?}", names(&store));
}

#[test]
fn code_of_two_rows_goes_with_the_last() {
    let (_folder, store) = filled("shared");
    store.keep(&key(2), &code(b"good code")).unwrap();
    assert_eq!(names(&store).len(), 3);
    let row = File::open(store.path.join(key(1).row_name())).unwrap();
    row.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    store.keep(&key(3), &code(&vec![0; (1 << 20) - 5])).unwrap();
    assert!(there(&store, &key(1)).is_none());
    assert!(there(&store, &key(3)).is_some());
}

#[test]
fn leftovers_go_when_they_are_old() {
    let (folder, store) = filled("leftovers");
    let _ = folder;
    for name in ["aa.tmp", "bb.code"] {
        fs::write(store.path.join(name), b"x").unwrap();
    }
    store.keep(&key(2), &code(b"more")).unwrap();
    assert_eq!(names(&store).len(), 6, "they may be about to be named");
    for name in ["aa.tmp", "bb.code"] {
        let file = File::open(store.path.join(name)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    }
    store.keep(&key(3), &code(b"yet more")).unwrap();
    let left = names(&store);
    assert_eq!(left.len(), 6, "{left:?}");
    assert!(
        !left
            .iter()
            .any(|name| name.starts_with("aa.") || name.starts_with("bb."))
    );
}

#[test]
fn many_at_once_leave_whole_entries() {
    let (_folder, store) = filled("many");
    let store = Arc::new(store);
    let workers: Vec<_> = (0..4u8)
        .map(|worker| {
            let store = Arc::new(Store::open(&store.path, 3_000).unwrap());
            std::thread::spawn(move || {
                for round in 0..30u8 {
                    // The same key with code of its own, as two compilers might make it.
                    let bytes = [&[worker; 500][..], &[round; 500]].concat();
                    store.keep(&key(round % 3), &code(&bytes)).unwrap();
                    match store.load(&key(round % 3)) {
                        Found::There(_) | Found::Absent => {}
                        // Another one made room between the row and its code.
                        Found::Refused(why) => assert_eq!(why, "its code is gone"),
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().unwrap();
    }
    for number in 0..3 {
        store.keep(&key(number), &code(&[number; 900])).unwrap();
        assert_eq!(
            there(&store, &key(number)),
            Some(Digest::of(&[number; 900]))
        );
    }
    assert!(!names(&store).iter().any(|name| name.ends_with(UNFINISHED)));
}
