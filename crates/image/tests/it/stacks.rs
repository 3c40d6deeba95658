//! Layers on layers: what one hides, copies and takes the place of, as the kernel stacks them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use leasehold_image::store::Scope;
use leasehold_image::store::plan::{At, MountPlan, lowerdir};

use crate::layout::{Ground, load, lower, refused};
use crate::tarball::Tar;

/// A link in the place of a directory that has what it leads to: the archive is wrong, not the host.
#[test]
fn a_link_to_what_is_below_itself_is_refused() {
    let own = Tar::new()
        .directory("d", 0o755)
        .file("d/f", b"x")
        .hard_link("d", "./d/f");
    let why = refused(&Ground::new(), own.end());
    assert!(why.contains("below itself"), "{why}");
}

/// Links to a file of a lower layer are one file, and a copy that is gone gets no further name.
#[test]
fn a_lower_file_is_copied_once() {
    let ground = Ground::new();
    let store = ground.store();
    let base = Tar::new().file("big", &[b'b'; 5_000]).end();
    let upper = Tar::new()
        .hard_link("one", "big")
        .hard_link("two", "./big")
        .directory("d", 0o755)
        .hard_link("three", "/big")
        // Its first copy is gone; the next is another.
        .file("one", b"other")
        .hard_link("d/four", "big")
        .file("d", b"")
        .hard_link("five", "big")
        .end();
    let length = upper.len() as u64;
    let image = load(&ground, &store, &[base, upper]).unwrap();
    let root = &lower(&store, &image)[0];
    let inode = |name: &str| fs::metadata(root.join(name)).unwrap().ino();
    assert_eq!(inode("two"), inode("three"));
    assert_eq!(fs::read(root.join("one")).unwrap(), b"other");
    assert_eq!(fs::read(root.join("two")).unwrap(), [b'b'; 5_000]);
    assert_eq!(fs::read(root.join("five")).unwrap(), [b'b'; 5_000]);
    let record = store.layer_record(&image.layers[1].key).unwrap().unwrap();
    assert_eq!(record.unpacked.bytes, length + 3 * 5_000);
}

/// A directory over a link is a directory: nothing of what the link hides is looked for, and no way leads through it.
#[test]
fn a_directory_takes_the_place_of_a_lower_link() {
    let ground = Ground::new();
    let store = ground.store();
    let layers = [
        Tar::new().link("dev", "/x").link("run", "/y").end(),
        Tar::new()
            .directory("dev", 0o755)
            .directory("run", 0o711)
            .end(),
        Tar::new().file("run/x/y", b"1").end(),
    ];
    let image = load(&ground, &store, &layers).unwrap();
    let plan = store.mount_plan(&Scope::host(), &image.digest).unwrap();
    let at = |path: &str| plan.facts.iter().find(|fact| fact.path == path).unwrap();
    assert_eq!(at("dev").at, At::Directory);
    assert_eq!(at("dev/shm").at, At::Nothing);
    let run = fs::metadata(plan.lower[0].join("run")).unwrap();
    assert_eq!(run.mode() & 0o777, 0o711);
}

/// A mark that hides nothing would be listed by a mount where no other layer has its directory.
#[test]
fn a_mark_of_what_no_layer_has_is_left_out() {
    let ground = Ground::new();
    let store = ground.store();
    let base = Tar::new()
        .file("there", b"x")
        .directory("d", 0o755)
        .file("d/a", b"x")
        .file("d/s/a", b"x")
        .end();
    let upper = Tar::new()
        .file(".wh.there", b"")
        .file(".wh.ghost", b"")
        .directory("new", 0o755)
        .file("new/.wh.ghost", b"")
        // These hide what is hidden anyway.
        .file("d/.wh.a", b"")
        .file("d/s/.wh.a", b"")
        .file("d/.wh..wh..opq", b"")
        .end();
    let image = load(&ground, &store, &[base, upper]).unwrap();
    let root = &lower(&store, &image)[0];
    let gone = |name: &str| fs::symlink_metadata(root.join(name)).is_err();
    assert!(!gone("there"));
    for name in ["ghost", "new/ghost", "d/a", "d/s/a"] {
        assert!(gone(name), "{name}");
    }
    let record = store.layer_record(&image.layers[1].key).unwrap().unwrap();
    assert_eq!(
        (record.unpacked.left_out.marks, record.unpacked.leans),
        (4, true)
    );
    assert!(store.verify(&image).unwrap().is_empty());
}

/// What the kernel shows of a stack, without a mount that outlives the command; `None` where it makes none.
fn mounted(ground: &Ground, plan: &MountPlan, script: &str) -> Option<String> {
    let [at, empty] = ["mnt", "empty"].map(|name| ground.path.join(name));
    for folder in [&at, &empty] {
        fs::create_dir_all(folder).unwrap();
    }
    // One layer alone is no stack for the kernel.
    let mut all = plan.lower.clone();
    all.push(empty);
    let mut options = std::ffi::OsString::from("ro,userxattr,lowerdir=");
    options.push(lowerdir(&all));
    let done = Command::new("unshare")
        .args(["-m", "sh", "-c"])
        .arg(format!(
            "mount -t overlay o -o \"$1\" \"$0\" || exit 99; cd \"$0\"; {script}"
        ))
        .args([at.as_os_str(), &options])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&done.stderr);
    match done.status.code() {
        Some(0) => Some(String::from_utf8(done.stdout).unwrap()),
        _ if !rustix::process::geteuid().is_root() => None,
        _ => panic!("no mount: {text}"),
    }
}

/// P76: a root that hides the layers below hides them in a mount too, which looks at no such attribute of a root.
#[test]
fn p76_a_root_that_hides_is_the_lowest_of_a_mount() {
    let ground = Ground::new();
    let store = ground.store();
    let base = Tar::new()
        .directory("dev.d", 0o755)
        .link("dev", "../../../tmp")
        .file("secret", b"x")
        .end();
    let middle = Tar::new().file(".wh..wh..opq", b"").file("top", b"1").end();
    let upper = Tar::new().file("dev/made", b"1").end();
    for layers in [
        vec![base.clone(), middle.clone()],
        vec![base.clone(), middle, upper],
    ] {
        let image = load(&ground, &store, &layers).unwrap();
        let mut plan = store.mount_plan(&Scope::host(), &image.digest).unwrap();
        let dev = plan.facts.iter().find(|fact| fact.path == "dev").unwrap();
        let (fact, names) = match layers.len() {
            2 => (At::Nothing, "top\n"),
            _ => (At::Directory, "dev\ntop\n"),
        };
        assert_eq!(dev.at, fact);
        assert_eq!(plan.lower.len(), layers.len() - 1);
        let Some(seen) = mounted(&ground, &plan, "ls") else {
            println!("SKIP: an overlay mount needs root");
            continue;
        };
        assert_eq!(seen, names);
        // The control: with the layer below it, the kernel brings back what was removed.
        plan.lower.push(
            store
                .root()
                .join("layers")
                .join(&image.layers[0].key)
                .join("fs"),
        );
        assert!(mounted(&ground, &plan, "ls").unwrap().contains("secret"));
    }
}

/// The deepest way that is taken is unpacked, and compared again.
#[test]
fn the_deepest_way_is_verified() {
    let ground = Ground::new();
    let store = ground.store();
    let deep = "a/".repeat(255) + "f";
    let layer = |name: &str| {
        Tar::new()
            .pax(&[("path", &deep)])
            .file("x", b"1")
            .file(name, b"")
            .end()
    };
    let layers: Vec<_> = (0..8).map(|at| layer(&format!("u{at}"))).collect();
    let image = load(&ground, &store, &layers).unwrap();
    assert_eq!(store.verify(&image).unwrap(), []);
}

/// The process that unpacks has no descriptor of whoever started it, from its first moment.
#[test]
fn nothing_is_inherited_by_the_process_that_unpacks() {
    let open = |program: &str| {
        // It waits for its request.
        let mut child = Command::new("sh")
            .args(["-c", "exec 7</etc/passwd; exec \"$0\"", program])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let of = format!("/proc/{}", child.id());
        let name = Path::new(program).file_name().unwrap().to_str().unwrap();
        let own = |comm: &str| name.starts_with(comm.trim());
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut there = true;
        while there && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
            let runs = own(&fs::read_to_string(format!("{of}/comm")).unwrap());
            there = !runs || fs::symlink_metadata(format!("{of}/fd/7")).is_ok();
            if program == "cat" && runs {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        there
    };
    assert!(open("cat"), "the control has lost its descriptor");
    assert!(!open(env!("CARGO_BIN_EXE_leasehold-image-unpack")));
}
