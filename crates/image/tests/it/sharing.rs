//! Who may use what, what is kept, and what is found altered.

use std::fs;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use leasehold_core::digest::Digest;
use leasehold_image::ImageError;
use leasehold_image::archive::LoadOptions;
use leasehold_image::reference::Reference;
use leasehold_image::registry::PullOptions;
use leasehold_image::store::{Progress, Scope, Store, Watch};

use serde_json::json;

use crate::layout::{GZIP, Ground, Made, PLAIN, describe, image, load, manifest};
use crate::server::{Answer, Server};
use crate::tarball::Tar;

fn count(store: &Store, folder: &str) -> usize {
    fs::read_dir(store.root().join(folder)).unwrap().count()
}

/// P80: what one tenant brought, another has not, by name or by digest, until the registry gives it to them too.
#[test]
fn p80_an_image_of_one_tenant_is_not_anothers() {
    let ground = Ground::new();
    let store = ground.store();
    let made = image(&[Tar::new().file("secret", b"of a").end()]);
    let path = Digest::of(&made.layers[0]).to_string();
    let server = Server::of(made.clone(), |asked, _, good| {
        // The registry knows one key.
        match asked.authorization.as_deref() {
            Some("Basic YTprZXk=") => good,
            _ => Answer::new(401, b"").header("www-authenticate", "Basic realm=\"x\""),
        }
    });
    let [a, b] = ["a", "b"].map(|name| Scope::new(name).unwrap());
    let reference = Reference::parse(&format!("{}/x:1", server.host)).unwrap();
    let key = PullOptions {
        credentials: Some(leasehold_image::registry::Credentials {
            user: "a".to_owned(),
            password: "key".to_owned(),
        }),
        ..PullOptions::default()
    };
    let image = store.pull(&a, &reference, &key, &()).unwrap();
    for text in [reference.to_string(), image.digest.to_string()] {
        let error = store.find(&b, &text).unwrap_err();
        assert!(matches!(error, ImageError::Absent(_)), "{error}");
    }
    assert!(store.mount_plan(&b, &image.digest).is_err());
    let error = store
        .pull(&b, &reference, &PullOptions::default(), &())
        .unwrap_err();
    assert!(
        matches!(error, ImageError::Answer { status: 401, .. }),
        "{error}"
    );
    assert_eq!(server.count(&path), 1);

    // B has a registry of its own that names the layer of A, whose digest it knows, and has not the bytes.
    let liar = Server::of(made.clone(), {
        let path = path.clone();
        move |asked, _, good| match asked.path.ends_with(&path) {
            true => Answer::new(404, b""),
            false => good,
        }
    });
    let own = Reference::parse(&format!("{}/x:1", liar.host)).unwrap();
    let error = store
        .pull(&b, &own, &PullOptions::default(), &())
        .unwrap_err();
    assert!(
        matches!(error, ImageError::Answer { status: 404, .. }),
        "{error}"
    );
    assert!(store.mount_plan(&b, &image.digest).is_err());

    // With the key B brings the bytes itself, and they are here once.
    let blobs = count(&store, "blobs/sha256");
    store.pull(&b, &reference, &key, &()).unwrap();
    assert_eq!(server.count(&path), 2);
    assert_eq!(
        (count(&store, "blobs/sha256"), count(&store, "layers")),
        (blobs, 1)
    );
    for name in ["", "A", "a/b", "..", &"x".repeat(65)] {
        assert!(Scope::new(name).is_err(), "{name}");
    }
}

/// P80: to name the diff id of a layer that another scope has is not to have it: the own bytes are unpacked first.
#[test]
fn p80_a_diff_id_gives_nobody_the_files_of_another() {
    let ground = Ground::new();
    let store = ground.store();
    let [a, b] = ["a", "b"].map(|name| Scope::new(name).unwrap());
    let layer = Tar::new().file("secret", b"of a").end();
    let good = image(std::slice::from_ref(&layer));
    let load = |scope: &Scope, media: &str, blob: &[u8]| {
        let folder = ground.path.join("given");
        let _ = fs::remove_dir_all(&folder);
        let made = Made {
            manifest: manifest(&good.config, &[describe(media, blob)]),
            config: good.config.clone(),
            layers: vec![blob.to_vec()],
        };
        made.write(&folder);
        store.load(scope, &folder, &LoadOptions::default(), &())
    };
    load(&a, GZIP, &good.layers[0]).unwrap();
    let cut = &good.layers[0][..good.layers[0].len() - 8];
    let other = Tar::new().file("secret", b"of b").end();
    for garbage in [b"garbage", cut, &other[..]] {
        let error = load(&b, GZIP, garbage).unwrap_err();
        assert!(matches!(error, ImageError::Layer { .. }), "{error}");
    }
    assert!(store.images(&b).unwrap().is_empty());
    // The same files, compressed otherwise, are proven and then kept once.
    let image = load(&b, PLAIN, &layer).unwrap();
    assert_eq!(count(&store, "layers"), 1);
    assert!(store.verify(&image).unwrap().is_empty());
    let begun = Told::default();
    store
        .load(
            &b,
            &ground.path.join("given"),
            &LoadOptions::default(),
            &begun,
        )
        .unwrap();
    assert_eq!(begun.0.load(std::sync::atomic::Ordering::Relaxed), 0);
}

/// P80: two scopes that bring one layer, compressed otherwise, at the same time have it once, and whoever claims its
/// diff id for other bytes is waited for by nobody.
#[test]
fn p80_one_layer_from_two_blobs_at_once_is_kept_once() {
    let ground = Ground::new();
    let store = ground.store();
    let layer = Tar::new().file("x", &vec![7; 3_000_000]).end();
    let good = image(std::slice::from_ref(&layer));
    let claimed = format!("locks/layer-{}", Digest::of(&layer).hex());
    let held = fs::File::create(store.root().join(claimed)).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    std::thread::scope(|threads| {
        for (name, media, blob) in [("a", GZIP, &good.layers[0]), ("b", PLAIN, &layer)] {
            let folder = ground.path.join(name);
            let made = Made {
                manifest: manifest(&good.config, &[describe(media, blob)]),
                config: good.config.clone(),
                layers: vec![blob.clone()],
            };
            made.write(&folder);
            let store = &store;
            threads.spawn(move || {
                let scope = Scope::new(name).unwrap();
                let image = store.load(&scope, &folder, &LoadOptions::default(), &());
                assert!(store.verify(&image.unwrap()).unwrap().is_empty());
            });
        }
    });
    assert_eq!((count(&store, "layers"), count(&store, "work")), (1, 0));
}

/// Counts how often something is unpacked.
#[derive(Default)]
struct Told(std::sync::atomic::AtomicUsize);

impl Watch for Told {
    fn tell(&self, progress: Progress) {
        if matches!(progress, Progress::Unpacking(_)) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

/// A name never outlives its image, whoever removes the last name while another is given.
#[test]
fn a_name_that_is_given_while_the_last_one_goes_stands_for_an_image() {
    let ground = Ground::new();
    let store = ground.store();
    let folder = ground.path.join("layout");
    image(&[Tar::new().end()]).write(&folder);
    let scope = Scope::host();
    let give = |name: &str| {
        let options = LoadOptions {
            name: Some(format!("docker.io/library/{name}:1")),
            ..LoadOptions::default()
        };
        store.load(&scope, &folder, &options, &()).unwrap();
    };
    // Many names make the removal look for long.
    give("a");
    let names = store.root().join("scopes/host/names");
    let other = Digest::of(b"other").to_string();
    for number in 0..400 {
        let name = format!("docker.io/library/n{number}:1");
        let record = json!({ "name": name, "digest": other });
        let path = names.join(Digest::of(name.as_bytes()).hex());
        fs::write(path, serde_json::to_vec(&record).unwrap()).unwrap();
    }
    for _ in 0..40 {
        give("a");
        std::thread::scope(|threads| {
            threads.spawn(|| give("b"));
            threads.spawn(|| store.remove(&scope, "a:1"));
        });
        let found = store.find(&scope, "b:1");
        assert!(found.is_ok(), "the name stands for nothing");
        store.remove(&scope, "b:1").unwrap();
    }
    // One that does is removed like any other.
    let digest = give_and_lose(&store, &scope, give);
    assert_eq!(
        store.remove(&scope, "c:1").unwrap(),
        ["docker.io/library/c:1"]
    );
    assert!(store.find(&scope, &digest).is_err());
}

/// Names the image, and takes its record away behind the store's back.
fn give_and_lose(store: &Store, scope: &Scope, give: impl Fn(&str)) -> String {
    give("c");
    let image = store.find(scope, "c:1").unwrap();
    let record = format!("scopes/host/images/{}", image.digest.hex());
    fs::remove_file(store.root().join(record)).unwrap();
    image.digest.to_string()
}

/// Collection says who is in its way.
#[test]
fn collection_names_who_is_in_its_way() {
    let ground = Ground::new();
    let store = ground.store();
    let held = fs::File::create(store.root().join("locks/collect")).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockShared).unwrap();
    let text = store.collect(false).unwrap_err().to_string();
    let own = format!("process {}", std::process::id());
    assert!(text.contains(&own), "{text}");
}

/// Collection frees what nobody refers to, and nothing that has a lease, in this process or in another.
#[test]
fn a_lease_keeps_an_image_and_nothing_else_does() {
    let ground = Ground::new();
    let store = ground.store();
    let image = load(&ground, &store, &[Tar::new().file("x", b"x").end()]).unwrap();
    let scope = Scope::host();
    assert_eq!(store.collect(false).unwrap().layers, 0);
    let plan = store.mount_plan(&scope, &image.digest).unwrap();
    store.remove(&scope, &image.digest.to_string()).unwrap();
    assert!(store.image(&scope, &image.digest).unwrap().is_none());
    let kept = store.collect(false).unwrap();
    assert_eq!((kept.blobs, kept.layers, kept.leases), (0, 0, 1));
    assert_eq!(fs::read(plan.lower[0].join("x")).unwrap(), b"x");

    // It goes on with whoever was passed its descriptor.
    let passed = plan.lease.as_fd().try_clone_to_owned().unwrap();
    let mut other = Command::new("sleep")
        .arg("60")
        .stdin(Stdio::from(passed))
        .spawn()
        .unwrap();
    drop(plan.lease);
    assert_eq!(store.collect(false).unwrap().leases, 1);
    assert!(plan.lower[0].exists());
    other.kill().unwrap();
    other.wait().unwrap();
    let would = store.collect(true).unwrap();
    assert_eq!((would.blobs, would.layers, would.leases), (3, 1, 0));
    assert!(plan.lower[0].exists());
    let freed = store.collect(false).unwrap();
    assert_eq!(freed, would);
    assert!(!plan.lower[0].exists());
    for folder in ["blobs/sha256", "layers", "leases", "work"] {
        assert_eq!(count(&store, folder), 0, "{folder}");
    }
}

#[test]
fn names_go_one_by_one_and_the_image_with_the_last() {
    let ground = Ground::new();
    let store = ground.store();
    let folder = ground.path.join("layout");
    let made = image(&[Tar::new().end()]);
    made.write(&folder);
    let scope = Scope::host();
    for name in ["docker.io/library/x:1", "docker.io/library/x:2"] {
        let options = LoadOptions {
            name: Some(name.to_owned()),
            ..LoadOptions::default()
        };
        store.load(&scope, &folder, &options, &()).unwrap();
    }
    assert_eq!(
        store.remove(&scope, "x:1").unwrap(),
        ["docker.io/library/x:1"]
    );
    assert!(store.find(&scope, "x:1").is_err() && store.find(&scope, "x:2").is_ok());
    let gone = store.remove(&scope, "x:2").unwrap();
    assert_eq!(
        gone,
        [
            "docker.io/library/x:2".to_owned(),
            made.digest().to_string()
        ]
    );
    assert!(store.images(&scope).unwrap().is_empty());
    assert!(store.remove(&scope, "x:2").is_err());
}

/// What is altered afterwards is found and named: bytes, files, attributes, and what was added.
#[test]
fn verification_names_what_is_altered() {
    let ground = Ground::new();
    let store = ground.store();
    let layer = Tar::new()
        .directory("d", 0o755)
        .file("d/a", b"one")
        .file("d/b", b"two")
        .link("l", "a")
        .end();
    let image = load(&ground, &store, &[layer]).unwrap();
    assert!(store.verify(&image).unwrap().is_empty());
    let root = store
        .mount_plan(&Scope::host(), &image.digest)
        .unwrap()
        .lower
        .remove(0);
    let says = |what: &str| {
        let found = store.verify(&image).unwrap();
        let hit = found.iter().any(|one| one.what.contains(what));
        assert!(hit, "{what}: {found:?}");
    };
    fs::write(root.join("d/a"), "ONE").unwrap();
    says("d/a: its content is altered");
    fs::write(root.join("d/a"), "one").unwrap();
    fs::write(root.join("d/c"), "").unwrap();
    says("d/c: it is not of the layer");
    fs::remove_file(root.join("d/c")).unwrap();
    fs::remove_file(root.join("d/b")).unwrap();
    says("d/b: it is missing");
    fs::write(root.join("d/b"), "two").unwrap();
    fs::set_permissions(
        root.join("d/b"),
        std::os::unix::fs::PermissionsExt::from_mode(0o666),
    )
    .unwrap();
    says("d/b: its mode is altered");
    fs::set_permissions(
        root.join("d/b"),
        std::os::unix::fs::PermissionsExt::from_mode(0o644),
    )
    .unwrap();
    fs::remove_file(root.join("l")).unwrap();
    std::os::unix::fs::symlink("b", root.join("l")).unwrap();
    says("l: it leads elsewhere");
    let blob = store
        .root()
        .join("blobs/sha256")
        .join(image.layers[0].blob.hex());
    fs::set_permissions(&blob, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    fs::write(&blob, "other").unwrap();
    says("its bytes are altered");
    fs::remove_file(&blob).unwrap();
    says("it is missing");
}

/// What is altered goes, unless a sandbox has it, and comes again though another image has it too.
#[test]
fn what_is_altered_is_dropped_and_brought_again() {
    let ground = Ground::new();
    let store = ground.store();
    let base = Tar::new().file("a", b"one").end();
    let layers = [base.clone(), Tar::new().file("b", b"two").end()];
    load(&ground, &store, &layers).unwrap();
    let image = load(&ground, &store, &[base]).unwrap();
    let plan = store.mount_plan(&Scope::host(), &image.digest).unwrap();
    fs::write(plan.lower[0].join("a"), "ONE").unwrap();
    let found = store.verify(&image).unwrap();
    let error = store.drop_altered(&image, &found).unwrap_err();
    assert!(error.to_string().contains("a sandbox uses it"), "{error}");
    let path = plan.lower[0].clone();
    drop(plan);
    assert_eq!(store.drop_altered(&image, &found).unwrap(), 1);
    assert!(!path.exists());
    let blob = store.root().join("blobs/sha256");
    let blob = blob.join(image.layers[0].blob.hex());
    fs::remove_file(&blob).unwrap();
    fs::write(&blob, "other").unwrap();
    let found = store.verify(&image).unwrap();
    assert_eq!(store.drop_altered(&image, &found).unwrap(), 1);
    for one in [&layers[..], &layers[..1]] {
        let image = load(&ground, &store, one).unwrap();
        assert!(store.verify(&image).unwrap().is_empty());
    }
}

/// What a dead maker left goes when the store is opened; what a live one is at stays.
#[test]
fn what_dead_makers_left_is_removed_at_the_next_start() {
    let ground = Ground::new();
    let store = ground.store();
    let work = store.root().join("work");
    fs::create_dir_all(work.join("dead/layer/fs/x")).unwrap();
    fs::write(work.join("dead.lock"), "").unwrap();
    fs::create_dir(work.join("orphan")).unwrap();
    fs::create_dir(work.join("live")).unwrap();
    let held = fs::File::create(work.join("live.lock")).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    ground.store();
    let mut left: Vec<_> = fs::read_dir(&work)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["live", "live.lock"]);
    drop(held);
    ground.store();
    assert_eq!(count(&store, "work"), 0);
}

/// Whoever takes a lease removes some that nobody holds; one that is held stays.
#[test]
fn dead_leases_do_not_pile_up_and_live_ones_stay() {
    let ground = Ground::new();
    let store = ground.store();
    let image = load(&ground, &store, &[Tar::new().file("a", b"a").end()]).unwrap();
    let take = || store.mount_plan(&Scope::host(), &image.digest).unwrap();
    let held = take();
    for _ in 0..40 {
        drop(take());
    }
    let there = count(&store, "leases");
    assert!(there <= 2, "{there} leases");
    assert_eq!(store.collect(true).unwrap().leases, 1);
    drop(held);
    assert_eq!(store.collect(true).unwrap().leases, 0);
}

/// What is put in the place of a layer is told by a run and by verification, and dropping it mends it.
#[test]
fn a_layer_that_was_replaced_is_told_dropped_and_comes_again() {
    let ground = Ground::new();
    let store = ground.store();
    let made = [Tar::new().file("x", b"1").end()];
    let host = Scope::host();
    let elsewhere = store.root().join("elsewhere");
    fs::create_dir_all(elsewhere.join("fs")).unwrap();
    let put = |link: bool| {
        let loaded = load(&ground, &store, &made).unwrap();
        assert!(store.whole(&host, &loaded.digest).unwrap());
        let layer = store.root().join("layers").join(&loaded.layers[0].key);
        if link {
            fs::copy(layer.join("layer.json"), elsewhere.join("layer.json")).unwrap();
            fs::rename(&layer, store.root().join("aside")).unwrap();
            std::os::unix::fs::symlink(&elsewhere, &layer).unwrap();
        } else {
            fs::write(layer.join("layer.json"), b"{").unwrap();
        }
        loaded
    };
    for link in [false, true] {
        let loaded = put(link);
        let error = store.mount_plan(&host, &loaded.digest).unwrap_err();
        let hint = error.hint().unwrap_or_default();
        assert!(hint.contains("image verify --drop"), "{error}: {hint}");
        let found = store.verify(&loaded).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(store.drop_altered(&loaded, &found).unwrap(), 1);
        assert!(!store.whole(&host, &loaded.digest).unwrap());
        assert!(elsewhere.join("fs").is_dir());
    }
    let again = load(&ground, &store, &made).unwrap();
    assert!(store.mount_plan(&host, &again.digest).is_ok());
    assert!(store.verify(&again).unwrap().is_empty());
}

/// Few digits stand for nothing, and a name with a digest for the image of that digest.
#[test]
fn an_image_is_found_by_name_and_digest_together_and_not_by_few_digits() {
    let ground = Ground::new();
    let store = ground.store();
    let made = [Tar::new().file("x", b"1").end()];
    let host = Scope::host();
    let loaded = load(&ground, &store, &made).unwrap();
    let (digest, hex) = (loaded.digest, loaded.digest.hex());
    let found = |text: &str| store.find(&host, text).map(|image| image.digest);
    assert_eq!(found(&hex[..6]).unwrap(), digest);
    let few = found(&hex[..5]).unwrap_err();
    assert!(matches!(few, ImageError::Ambiguous(_)), "{few}");
    assert_eq!(found(&format!("r.io/x:1@{digest}")).unwrap(), digest);
    let bad = found(&format!("r.io/x:-@{digest}")).unwrap_err();
    assert!(matches!(bad, ImageError::Reference { .. }), "{bad}");
    let other = Digest::of(b"other");
    let absent = found(&format!("r.io/x:1@{other}")).unwrap_err();
    assert!(matches!(absent, ImageError::Absent(_)), "{absent}");
}
