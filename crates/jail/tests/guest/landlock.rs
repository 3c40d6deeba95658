//! The rules and scopes, each beside the same attempt without them.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;

use leasehold_jail::landlock::{Root, Ruleset, abi};
use leasehold_jail::sys;

use crate::child::answer;

/// The error number an attempt came to, 0 for none.
fn number<T>(result: io::Result<T>) -> i64 {
    match result {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(-1).into(),
    }
}

fn able(name: &str, wanted: u32) -> bool {
    let have = abi();
    if have < wanted {
        eprintln!("SKIP {name}: Landlock is {have}, needed is {wanted}");
    }
    have >= wanted
}

fn open(path: &str, write: bool) -> io::Result<std::fs::File> {
    std::fs::OpenOptions::new()
        .read(true)
        .write(write)
        .open(path)
}

/// `act` without and with the rules of a workload.
fn both(act: impl Fn() -> i64) -> (i64, i64) {
    let with = answer(|| {
        rustix::thread::set_no_new_privs(true).unwrap();
        Ruleset::workload(Root::Template)
            .unwrap()
            .unwrap()
            .restrict()
            .unwrap();
        act()
    });
    (answer(&act), with)
}

/// In an image of its own a workload writes anywhere, and still makes no device and sends no call to one that is
/// not on the list.
#[test]
fn in_an_image_writing_is_for_all_but_devices() {
    let name = "in_an_image_writing_is_for_all_but_devices";
    if !able(name, 5) || !rustix::process::geteuid().is_root() {
        return;
    }
    let place = std::path::PathBuf::from(format!(
        "/var/lib/leasehold-landlock-{}",
        std::process::id()
    ));
    std::fs::create_dir(&place).unwrap();
    let of = |root: Root, act: &dyn Fn() -> i64| {
        answer(|| {
            rustix::thread::set_no_new_privs(true).unwrap();
            Ruleset::workload(root)
                .unwrap()
                .unwrap()
                .restrict()
                .unwrap();
            act()
        })
    };
    let write = || {
        let file = place.join("f");
        let made = number(std::fs::write(&file, "x"));
        let moved = number(std::fs::rename(&file, place.join("g")));
        let gone = number(std::fs::remove_file(place.join("g")));
        [made, moved, gone]
            .into_iter()
            .find(|errno| *errno != 0)
            .unwrap_or(0)
    };
    let node = || {
        let kind = rustix::fs::FileType::CharacterDevice;
        let mode = rustix::fs::Mode::empty();
        let device = rustix::fs::makedev(1, 3);
        let made = rustix::fs::mknodat(rustix::fs::CWD, place.join("n"), kind, mode, device);
        let _ = std::fs::remove_file(place.join("n"));
        number(made.map_err(io::Error::from))
    };
    let denied = i64::from(libc::EACCES);
    assert_eq!(answer(|| write() | node()), 0, "the control");
    assert_eq!(
        (of(Root::Template, &write), of(Root::Image, &write)),
        (denied, 0)
    );
    assert_eq!(
        (of(Root::Template, &node), of(Root::Image, &node)),
        (denied, denied)
    );
    std::fs::remove_dir_all(&place).unwrap();
}

#[test]
fn writing_is_for_a_few_places() {
    if !able("writing_is_for_a_few_places", 1) || !rustix::process::geteuid().is_root() {
        return;
    }
    let denied = i64::from(libc::EACCES);
    for path in [
        "/etc/hostname",
        "/etc/passwd",
        "/root/.profile",
        "/proc/self/comm",
    ] {
        if Path::new(path).exists() {
            assert_eq!(both(|| number(open(path, true))), (0, denied), "{path}");
            assert_eq!(both(|| number(open(path, false))), (0, 0), "{path}");
        }
    }
    let place = std::env::temp_dir().join(format!("leasehold-landlock-{}", std::process::id()));
    let inside = place.to_str().unwrap();
    let make = || {
        let made = number(std::fs::create_dir(inside));
        let written = number(std::fs::write(format!("{inside}/f"), "x"));
        let moved = number(std::fs::rename(
            format!("{inside}/f"),
            format!("{inside}/g"),
        ));
        let removed = number(std::fs::remove_dir_all(inside));
        made | written | moved | removed
    };
    assert_eq!(both(make), (0, 0));
    let outside = "/var/lib/leasehold-landlock-test";
    let make = || {
        let made = number(std::fs::create_dir(outside));
        let _ = std::fs::remove_dir(outside);
        made
    };
    assert_eq!(both(make), (0, denied));
}

#[test]
fn devices_and_programs_work() {
    if !able("devices_and_programs_work", 1) {
        return;
    }
    for path in [
        "/dev/null",
        "/dev/zero",
        "/dev/full",
        "/dev/random",
        "/dev/urandom",
        "/dev/ptmx",
    ] {
        if Path::new(path).exists() {
            assert_eq!(both(|| number(open(path, true))), (0, 0), "{path}");
        }
    }
    let run = || match std::process::Command::new("/bin/true").status() {
        Ok(status) => i64::from(!status.success()),
        Err(error) => number::<()>(Err(error)),
    };
    assert_eq!(both(run), (0, 0));
    let terminal = || {
        let run = || -> io::Result<()> {
            let master = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR)?;
            rustix::pty::unlockpt(&master)?;
            let own = rustix::pty::ioctl_tiocgptpeer(&master, rustix::pty::OpenptFlags::RDWR)?;
            rustix::termios::tcgetwinsize(&own)?;
            Ok(())
        };
        number(run())
    };
    if both(terminal).0 == 0 {
        assert_eq!(both(terminal), (0, 0));
    } else {
        eprintln!("SKIP devices_and_programs_work: no terminals on this machine");
    }
}

#[test]
fn nothing_leaves_the_scope() {
    if !able("nothing_leaves_the_scope", 6) {
        return;
    }
    let name = format!("leasehold-scope-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let parent = std::process::id() as i32;
    let scoped = |act: &dyn Fn() -> i64| {
        answer(|| {
            rustix::thread::set_no_new_privs(true).unwrap();
            Ruleset::scope().unwrap().unwrap().restrict().unwrap();
            act()
        })
    };
    let connect = || number(UnixStream::connect_addr(&address));
    let signal = || number(sys::kill(parent, 0));
    let myself = || number(sys::kill(std::process::id() as i32, 0));
    let refused = i64::from(libc::EPERM);
    assert_eq!((answer(connect), scoped(&connect)), (0, refused));
    assert_eq!((answer(signal), scoped(&signal)), (0, refused));
    assert_eq!(scoped(&myself), 0);
    // Between two processes of one scope both work: the rules of a workload do not part them.
    let within = || {
        let (listener, parent) = (
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(format!("{name}-in")).unwrap()),
            std::process::id() as i32,
        );
        let listener = listener.unwrap();
        let address = listener.local_addr().unwrap();
        answer(|| {
            Ruleset::workload(Root::Template)
                .unwrap()
                .unwrap()
                .restrict()
                .unwrap();
            number(UnixStream::connect_addr(&address)) | number(sys::kill(parent, 0))
        })
    };
    assert_eq!(scoped(&within), 0);
}
