//! Who a command of an image is: by number, by name, and by files of the image that lie.

use leasehold_core::image::User;
use leasehold_image::store::Scope;
use leasehold_image::store::plan::MountPlan;

use crate::layout::{Ground, load};
use crate::tarball::Tar;

const OTHERWISE: User = User {
    uid: 1_000,
    gid: 1_000,
};

const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/sh\n\
    short:x:1\n\
    app:x:500:600:The App:/srv/app:/bin/sh\n\
    huge:x:70000:70000::/huge:/bin/sh\n\
    wraps:x:4294967296:0::/:/bin/sh\n\
    minus:x:-1:0::/:/bin/sh\n\
    homeless:x:7:8::nowhere:/bin/sh\n\
    person:x:1000:100::/people/one:/bin/sh\n\
    app:x:501:601::/second:/bin/sh\n";

fn plan(ground: &Ground, layers: &[Vec<u8>]) -> MountPlan {
    let store = ground.store();
    let image = load(ground, &store, layers).unwrap();
    store.mount_plan(&Scope::host(), &image.digest).unwrap()
}

fn account(plan: &mut MountPlan, user: &str) -> Result<(u32, u32, Option<String>), String> {
    plan.config.process.user = user.to_owned();
    let found = plan.account(OTHERWISE).map_err(|error| error.to_string())?;
    Ok((found.user.uid, found.user.gid, found.home))
}

#[test]
fn a_user_is_looked_up_in_the_image() {
    let ground = Ground::new();
    let layer = Tar::new()
        .file("etc/passwd", PASSWD)
        .file(
            "etc/group",
            b"wheel:x:10:\nbroken\nfar:x:70000:\nstaff:x:50:a,b\n",
        )
        .end();
    let mut plan = plan(&ground, &[layer]);
    let home = |text: &str| Some(text.to_owned());
    for (user, right) in [
        ("", (1_000, 100, home("/people/one"))),
        ("root", (0, 0, home("/root"))),
        ("app", (500, 600, home("/srv/app"))),
        ("500", (500, 600, home("/srv/app"))),
        ("501", (501, 601, home("/second"))),
        ("33", (33, 0, None)),
        ("33:44", (33, 44, None)),
        ("app:staff", (500, 50, home("/srv/app"))),
        ("0:wheel", (0, 10, home("/root"))),
        ("homeless", (7, 8, None)),
        ("65535:65535", (65_535, 65_535, None)),
    ] {
        assert_eq!(account(&mut plan, user), Ok(right), "{user}");
    }
    for (user, word) in [
        ("nobody", "no such user"),
        ("short", "no such user"),
        // A number that is no id of an image never comes to mean another one.
        ("huge", "out of bounds"),
        ("wraps", "out of bounds"),
        ("minus", "no such user"),
        ("65536", "0 to 65535"),
        ("4294967296", "0 to 65535"),
        ("18446744073709551616", "0 to 65535"),
        ("33:65536", "0 to 65535"),
        ("-1", "no such user"),
        ("+0", "no such user"),
        (" 0", "no such user"),
        ("app:nobody", "no such group"),
        ("app:far", "out of bounds"),
        ("app:", "missing"),
        (":0", "missing"),
        ("0:0:0", "no such group"),
    ] {
        let told = account(&mut plan, user).unwrap_err();
        assert!(told.contains(word), "{user}: {told}");
    }
}

/// The file that counts is the image's as it is stacked, and never one that a link leads to.
#[test]
fn a_user_file_is_the_images_own() {
    let ground = Ground::new();
    let base = Tar::new().file("etc/passwd", PASSWD).end();
    let gone = Tar::new().file("etc/.wh.passwd", b"").end();
    let mut removed = plan(&ground, &[base.clone(), gone]);
    assert!(account(&mut removed, "app").is_err());
    assert_eq!(account(&mut removed, ""), Ok((1_000, 1_000, None)));

    let ground = Ground::new();
    let link = Tar::new().link("etc/passwd", "/etc/passwd").end();
    let mut linked = plan(&ground, &[base.clone(), link]);
    // The control: the host's file is there and knows its root.
    assert!(
        std::fs::read_to_string("/etc/passwd")
            .unwrap()
            .contains("root:")
    );
    assert!(account(&mut linked, "root").is_err());
    assert_eq!(account(&mut linked, "0"), Ok((0, 0, None)));

    let ground = Ground::new();
    let behind = Tar::new().link("etc", "/etc").end();
    assert!(account(&mut plan(&ground, &[behind]), "root").is_err());

    let ground = Ground::new();
    let odd = Tar::new().directory("etc/passwd", 0o755).end();
    assert!(account(&mut plan(&ground, &[odd]), "root").is_err());
}

#[test]
fn a_user_file_without_end_is_refused_by_its_bound() {
    let ground = Ground::new();
    let mut text = PASSWD.to_vec();
    text.resize(1 << 20, b'#');
    let fits = Tar::new().file("etc/passwd", &text).end();
    assert!(account(&mut plan(&ground, &[fits]), "app").is_ok());
    text.push(b'#');
    let ground = Ground::new();
    let long = Tar::new().file("etc/passwd", &text).end();
    let told = account(&mut plan(&ground, &[long]), "app").unwrap_err();
    assert!(told.contains("file-bytes"), "{told}");
}
