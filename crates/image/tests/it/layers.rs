//! What an entry does, and what none may do. Each attack is tried first on a plain reader, which must fall for it.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use leasehold_image::ImageError;
use leasehold_image::tar::{Kind, Reader};

use crate::layout::{Ground, load, lower, refused};
use crate::tarball::{Header, Tar, sum};

/// Unpacks as somebody would who thinks of no attack: names are joined, links are followed.
fn naive(archive: &[u8], root: &Path) {
    let mut tar = Reader::new(archive);
    while let Ok(Some(entry)) = tar.next_entry() {
        let name = String::from_utf8(entry.path.clone()).unwrap();
        let link = String::from_utf8(entry.link.clone()).unwrap();
        let path = root.join(&name);
        match entry.kind {
            Kind::Directory => drop(fs::create_dir_all(&path)),
            Kind::SymbolicLink => drop(std::os::unix::fs::symlink(&link, &path)),
            Kind::HardLink => drop(fs::hard_link(root.join(&link), &path)),
            Kind::Special => {}
            Kind::File => {
                let mut data = Vec::new();
                let mut buffer = [0; 512];
                while let Ok(got @ 1..) = tar.read_data(&mut buffer) {
                    data.extend_from_slice(&buffer[..got]);
                }
                let _ = fs::write(&path, data);
            }
        }
        // As for a directory whose name has become a link meanwhile.
        if matches!(entry.kind, Kind::Directory) {
            let _ = fs::set_permissions(&path, fs::Permissions::from_mode(entry.mode));
        }
    }
}

/// An attack that reaches `sentinel` from a directory beside it, and what its refusal says.
struct Attack {
    what: &'static str,
    archive: Vec<u8>,
    says: &'static str,
}

fn attack(what: &'static str, archive: Tar, says: &'static str) -> Attack {
    Attack {
        what,
        archive: archive.end(),
        says,
    }
}

fn attacks(outside: &str) -> Vec<Attack> {
    let mut all = ways_out(outside);
    all.extend(odd_names(outside));
    all
}

/// Names and links that lead out.
fn ways_out(outside: &str) -> Vec<Attack> {
    let hit = b"hit";
    vec![
        attack("upwards", Tar::new().file("../sentinel", hit), "upwards"),
        attack(
            "upwards inside",
            Tar::new()
                .directory("a", 0o755)
                .file("a/../../sentinel", hit),
            "upwards",
        ),
        attack(
            "through a link upwards",
            Tar::new().link("a", "..").file("a/sentinel", hit),
            "symbolic link of the layer",
        ),
        attack(
            "through an absolute link",
            Tar::new().link("a", outside).file("a/sentinel", hit),
            "symbolic link of the layer",
        ),
        attack(
            "through two links",
            Tar::new()
                .directory("d", 0o755)
                .link("d/a", "..")
                .link("b", "d/a/..")
                .file("b/sentinel", hit),
            "symbolic link of the layer",
        ),
        attack(
            "a hard link to outside, then written",
            Tar::new().hard_link("a", "../sentinel").file("a", hit),
            "upwards",
        ),
        attack(
            "a hard link through a link",
            Tar::new()
                .link("l", outside)
                .hard_link("a", "l/sentinel")
                .file("a", hit),
            "behind a symbolic link",
        ),
        attack(
            "a directory that becomes a link",
            Tar::new()
                .directory("a", 0o755)
                .raw(&[])
                .link("a/x", "../..")
                .file("a/x/sentinel", hit),
            "symbolic link of the layer",
        ),
    ]
}

/// Marks of removed names, and the root itself.
fn odd_names(outside: &str) -> Vec<Attack> {
    let hit = b"hit";
    vec![
        attack("a mark upwards", Tar::new().file(".wh...", b""), "no name"),
        attack("a mark of itself", Tar::new().file(".wh..", b""), "no name"),
        attack("a mark of nothing", Tar::new().file(".wh.", b""), "no name"),
        attack(
            "a mark below a link",
            Tar::new().link("a", "..").file("a/.wh.sentinel", b""),
            "symbolic link of the layer",
        ),
        attack(
            "below a mark",
            Tar::new().file(".wh.a/b", hit),
            "below the mark",
        ),
        attack(
            "the root as a link",
            Tar::new().link("./", outside),
            "place of the root",
        ),
        attack(
            "the root as a file",
            Tar::new().file("/", hit),
            "name of a directory",
        ),
    ]
}

/// P76: no layer writes outside of its own directory.
#[test]
fn p76_no_entry_leads_out_of_the_layer() {
    let mut works = 0;
    for (number, _) in attacks("").iter().enumerate() {
        let ground = Ground::new();
        let outside = ground.path.to_str().unwrap().to_owned();
        let attack = attacks(&outside).remove(number);
        // The control: what the guard is off for.
        let root = ground.path.join("naive");
        fs::create_dir(&root).unwrap();
        naive(&attack.archive, &root);
        works += u32::from(!ground.untouched());
        fs::write(ground.path.join("sentinel"), "untouched").unwrap();

        let why = refused(&ground, attack.archive);
        assert!(why.contains(attack.says), "{}: {why}", attack.what);
        assert!(ground.untouched(), "{}", attack.what);
    }
    assert!(
        works >= 7,
        "the plain reader fell for {works} of the attacks"
    );
}

/// P76 across layers: a link of a lower layer is not followed either.
#[test]
fn p76_no_layer_writes_through_a_link_of_another() {
    for (upper, says) in [
        (
            Tar::new().file("a/sentinel", b"hit"),
            "symbolic link of a lower layer",
        ),
        (
            Tar::new().file("a/.wh.sentinel", b""),
            "symbolic link of a lower layer",
        ),
        (
            Tar::new().hard_link("b", "a/sentinel"),
            "symbolic link of a lower layer",
        ),
        (Tar::new().hard_link("b", "a"), "no file"),
    ] {
        let ground = Ground::new();
        let store = ground.store();
        let outside = ground.path.to_str().unwrap();
        let layers = [Tar::new().link("a", outside).end(), upper.end()];
        let error = load(&ground, &store, &layers).unwrap_err();
        assert!(matches!(error, ImageError::Layer { .. }), "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(ground.untouched());
    }
}

/// P76: what is legitimate works: a file in the place of a link, a link in that of a directory, and back.
#[test]
fn p76_one_kind_takes_the_place_of_another() {
    let ground = Ground::new();
    let store = ground.store();
    let layer = Tar::new()
        .link("a", "/nowhere")
        .file("a", b"file")
        .directory("d", 0o755)
        .file("d/x", b"gone")
        .link("d", "elsewhere")
        .directory("d", 0o700)
        .file("d/y", b"here")
        .file("/abs/olute", b"inside")
        .end();
    let image = load(&ground, &store, &[layer]).unwrap();
    let root = &lower(&store, &image)[0];
    assert_eq!(fs::read(root.join("a")).unwrap(), b"file");
    assert!(!root.join("d/x").exists());
    assert_eq!(fs::read(root.join("d/y")).unwrap(), b"here");
    assert_eq!(fs::read(root.join("abs/olute")).unwrap(), b"inside");
    assert_eq!(fs::metadata(root.join("d")).unwrap().mode() & 0o7777, 0o700);
    assert!(ground.untouched());
}

/// P77: a mode meant for a directory does not reach what took its name.
#[test]
fn p77_no_mode_goes_through_a_link() {
    let ground = Ground::new();
    let target = ground.path.join("target");
    fs::create_dir(&target).unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o700)).unwrap();
    let mode = || fs::metadata(&target).unwrap().mode() & 0o777;
    let layer = Tar::new()
        .link("d", target.to_str().unwrap())
        .directory("d", 0o777)
        .end();
    let root = ground.path.join("naive");
    fs::create_dir(&root).unwrap();
    naive(&layer, &root);
    assert_eq!(mode(), 0o777, "the plain reader did not fall for it");
    fs::set_permissions(&target, fs::Permissions::from_mode(0o700)).unwrap();

    let store = ground.store();
    let image = load(&ground, &store, &[layer]).unwrap();
    assert_eq!(mode(), 0o700);
    let made = fs::symlink_metadata(lower(&store, &image)[0].join("d")).unwrap();
    assert!(made.is_dir() && made.mode() & 0o777 == 0o777);

    let other = Tar::new()
        .directory("d", 0o777)
        .link("d", target.to_str().unwrap())
        .end();
    load(&ground, &store, &[other]).unwrap();
    assert_eq!(mode(), 0o700);
}

fn header(change: impl FnOnce(&mut [u8; 512])) -> Tar {
    let mut block = Header {
        name: b"x",
        ..Header::default()
    }
    .block();
    change(&mut block);
    sum(&mut block);
    Tar::new().raw(&block)
}

/// Extensions with two readings, each with what its refusal says.
fn wrong_extensions() -> Vec<(Vec<u8>, &'static str)> {
    let inner = Tar::new().file("hidden", b"x").end();
    vec![
        // A reader that takes the header's size finds another archive in the data.
        (
            Tar::new()
                .pax(&[("size", "1536")])
                .header(&Header {
                    name: b"x",
                    ..Header::default()
                })
                .raw(&inner)
                .end(),
            "PAX extension 1536",
        ),
        (
            Tar::new()
                .pax(&[("path", "a")])
                .extension(b'L', b"b\0", true)
                .file("c", b"")
                .end(),
            "of PAX and one of GNU",
        ),
        (
            Tar::new()
                .pax(&[("path", "a")])
                .pax(&[("path", "b")])
                .file("c", b"")
                .end(),
            "two PAX",
        ),
        (
            Tar::new()
                .pax(&[("path", "a"), ("path", "b")])
                .file("c", b"")
                .end(),
            "two records",
        ),
        (
            Tar::new()
                .pax(&[("GNU.sparse.name", "a")])
                .file("c", b"")
                .end(),
            "sparse",
        ),
        (
            Tar::new()
                .extension(b'x', b"99 path=a\n", false)
                .file("c", b"")
                .end(),
            "longer than",
        ),
        (
            Tar::new()
                .extension(b'g', b"9 path=a\n", false)
                .file("c", b"")
                .end(),
            "for all entries",
        ),
        (Tar::new().kind("s", b'S', "").end(), "sparse"),
    ]
}

/// Headers and ends with two readings.
fn wrong_headers() -> Vec<(Vec<u8>, &'static str)> {
    vec![
        (header(|block| block[124..136].fill(0xff)).end(), "negative"),
        (header(|block| block[124] = 0x81).end(), "too large"),
        (
            header(|block| block[124..136].copy_from_slice(b"\x80\0\0\0\x40\0\0\0\0\0\0\0")).end(),
            "ends within",
        ),
        (
            header(|block| block[257..262].copy_from_slice(b"other")).end(),
            "magic",
        ),
        (
            Tar::new()
                .header(&Header {
                    name: b"d/",
                    flag: b'5',
                    size: 512,
                    ..Header::default()
                })
                .data(b"x")
                .end(),
            "bytes of data",
        ),
        (
            Tar::new()
                .header(&Header {
                    name: b"l",
                    flag: b'1',
                    link: b"x",
                    size: 1,
                    ..Header::default()
                })
                .data(b"x")
                .end(),
            "bytes of data",
        ),
        (
            Tar::new()
                .raw(&Tar::new().file("a", b"x").end())
                .file("late", b"y")
                .end(),
            "follow the end",
        ),
        (
            Tar::new().file("a", b"x").pax(&[("path", "b")]).end(),
            "without its entry",
        ),
        (
            Tar::new().file("a", &[b'x'; 600]).cut()[..700].to_vec(),
            "ends within",
        ),
        (Tar::new().kind("x", b'V', "").end(), "not read"),
    ]
}

/// P77: what has two readings is refused.
#[test]
fn p77_what_two_readers_read_differently_is_refused() {
    for (layer, says) in wrong_extensions().into_iter().chain(wrong_headers()) {
        let why = refused(&Ground::new(), layer);
        assert!(why.contains(says), "{says}: {why}");
    }
    let mut wrong = Tar::new().file("a", b"x").end();
    wrong[0] = b'b';
    assert!(refused(&Ground::new(), wrong).contains("checksum"));
}

/// P77: what tools write is read: long names, large owners in PAX, no end, several members.
#[test]
fn p77_what_tools_write_is_read() {
    let long = "d/".repeat(60) + "name";
    let layer = Tar::new()
        .extension(b'g', b"15 comment=abc\n", false)
        .pax(&[
            ("path", &long),
            ("mtime", "1500000000.25"),
            ("uid", "42"),
            ("gid", "43"),
            ("LIBARCHIVE.creationtime", "1"),
        ])
        .file("short", b"pax")
        .extension(b'L', format!("{long}2\0").as_bytes(), true)
        .header(&Header {
            name: b"cut",
            size: 3,
            gnu: true,
            ..Header::default()
        })
        .data(b"gnu")
        .cut();
    let ground = Ground::new();
    let store = ground.store();
    let image = load(&ground, &store, &[layer]).unwrap();
    let root = &lower(&store, &image)[0];
    assert_eq!(fs::read(root.join(&long)).unwrap(), b"pax");
    assert_eq!(fs::read(root.join(format!("{long}2"))).unwrap(), b"gnu");
    let found = fs::metadata(root.join(&long)).unwrap();
    assert_eq!(
        (found.mtime(), found.mtime_nsec()),
        (1_500_000_000, 250_000_000)
    );
    if rustix::process::geteuid().is_root() {
        assert_eq!((found.uid(), found.gid()), (42, 43));
    }
}

/// Layers become what overlayfs takes: marks, hiding directories, links, owners, and nothing with a privilege.
#[test]
fn a_layer_is_as_overlayfs_wants_it() {
    let ground = Ground::new();
    let store = ground.store();
    let base = Tar::new()
        .directory("./", 0o755)
        .directory("etc", 0o750)
        .file("etc/a", b"base")
        .file_mode("bin", b"suid", 0o6755)
        .hard_link("bin2", "/bin")
        .kind("null", b'3', "")
        .pax(&[
            ("SCHILY.xattr.user.mine", "kept"),
            ("SCHILY.xattr.security.capability", "x"),
            ("SCHILY.xattr.user.overlay.redirect", "/etc"),
            ("SCHILY.xattr.trusted.overlay.opaque", "y"),
        ])
        .file("attributes", b"x")
        .directory("tmp", 0o1777)
        .end();
    let upper = Tar::new()
        .directory("etc", 0o700)
        .file("etc/.wh.a", b"")
        .directory("tmp", 0o1777)
        .file("tmp/.wh..wh..opq", b"")
        .file(".wh..wh.plnk", b"")
        // The name comes back as a directory, which must not show what was removed.
        .file(".wh.bin", b"")
        .directory("bin", 0o755)
        .end();
    let image = load(&ground, &store, &[base, upper]).unwrap();
    let [upper, base] = <[_; 2]>::try_from(lower(&store, &image)).unwrap();
    let mark = fs::symlink_metadata(upper.join("etc/a")).unwrap();
    assert!(mark.file_type().is_char_device() && mark.rdev() == 0);
    let opaque = |path: &str| {
        let mut value = [0; 8];
        let got = rustix::fs::getxattr(upper.join(path), "user.overlay.opaque", &mut value[..]);
        got.is_ok_and(|length| &value[..length] == b"y")
    };
    assert!(opaque("tmp") && opaque("bin") && !opaque("etc"));
    let suid = fs::metadata(base.join("bin")).unwrap();
    assert_eq!((suid.mode() & 0o7777, suid.nlink()), (0o755, 2));
    assert_eq!(
        fs::metadata(base.join("tmp")).unwrap().mode() & 0o7777,
        0o1777
    );
    assert!(fs::symlink_metadata(base.join("null")).is_err());
    let mut names = [0; 256];
    let length = rustix::fs::listxattr(base.join("attributes"), &mut names[..]).unwrap();
    assert_eq!(&names[..length], b"user.mine\0");
    let record = |at: usize| {
        store
            .layer_record(&image.layers[at].key)
            .unwrap()
            .unwrap()
            .unpacked
    };
    let left = record(0).left_out;
    assert_eq!((left.specials, left.attributes, left.set_ids), (1, 3, 1));
    assert_eq!(record(1).left_out.marks, 1);
    assert!(record(0).confined.0, "it had no root of its own");
}

/// A directory that a layer does not describe is as below it, and the layer is kept for that stack alone.
#[test]
fn a_layer_that_leans_is_kept_by_its_chain() {
    let ground = Ground::new();
    let store = ground.store();
    let upper = Tar::new()
        .file("closed/new", b"x")
        .hard_link("copy", "closed/old")
        .end();
    let below = |mode| {
        Tar::new()
            .directory("closed", mode)
            .file("closed/old", b"old")
            .end()
    };
    let mut keys = Vec::new();
    for mode in [0o700, 0o755] {
        let image = load(&ground, &store, &[below(mode), upper.clone()]).unwrap();
        let root = &lower(&store, &image)[0];
        assert_eq!(
            fs::metadata(root.join("closed")).unwrap().mode() & 0o777,
            mode
        );
        assert_eq!(fs::read(root.join("copy")).unwrap(), b"old");
        keys.push(image.layers[1].key.clone());
    }
    assert!(
        keys[0] != keys[1] && keys[0].starts_with("chain-"),
        "{keys:?}"
    );
    // One that describes all its directories is kept once for all stacks.
    let whole = Tar::new()
        .directory("closed", 0o711)
        .file("closed/new", b"x")
        .end();
    let one = load(&ground, &store, &[below(0o700), whole.clone()]).unwrap();
    let other = load(&ground, &store, &[below(0o755), whole]).unwrap();
    assert_eq!(one.layers[1].key, other.layers[1].key);
}
