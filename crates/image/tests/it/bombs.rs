//! Bounds: each is met by its name, before the disk or the memory is full, and nothing stays.

use std::fs;

use leasehold_image::ImageError;
use leasehold_image::archive::LoadOptions;
use leasehold_image::limits::Limits;
use leasehold_image::store::Scope;
use serde_json::json;

use crate::layout::{self, GZIP, Ground, Made, describe, image, load, nothing_left};
use crate::tarball::{Header, Tar};

#[track_caller]
fn meets(limits: Limits, layer: Vec<u8>, limit: &str) {
    let ground = Ground::new();
    let store = ground.store_with(limits);
    let error = load(&ground, &store, std::slice::from_ref(&layer)).unwrap_err();
    assert!(
        error.to_string().contains(&format!("limit `{limit}`")),
        "{error}"
    );
    nothing_left(&store);
}

fn zeros(bytes: usize) -> Vec<u8> {
    Tar::new().file("zeros", &vec![0; bytes]).end()
}

/// P78: what unpacks to far more than it is, and what has too much of anything.
#[test]
fn p78_bombs_meet_a_limit_by_its_name() {
    let usual = Limits::default();
    meets(usual, zeros(100 << 20), "ratio");
    meets(
        Limits {
            layer_bytes: 1 << 20,
            ..usual
        },
        zeros(2 << 20),
        "layer",
    );
    let many = (0..60).fold(Tar::new(), |tar, at| tar.file(&format!("f{at}"), b""));
    meets(
        Limits {
            entries: 50,
            ..usual
        },
        many.end(),
        "entries",
    );
    let deep = Tar::new()
        .pax(&[("path", &"d/".repeat(300))])
        .directory("d", 0o755);
    meets(usual, deep.end(), "depth");
    let long = Tar::new().pax(&[("path", &"n".repeat(300))]).file("n", b"");
    meets(usual, long.end(), "name");
    let path = Tar::new()
        .pax(&[("path", &("n/".repeat(3_000) + "n"))])
        .file("n", b"");
    meets(usual, path.end(), "path");
    let named = (0..60).fold(Tar::new(), |tar, at| {
        tar.directory(&format!("directory-{at}"), 0o755)
    });
    meets(
        Limits {
            directory_names_bytes: 500,
            ..usual
        },
        named.end(),
        "directories",
    );
    let owner = Tar::new().header(&Header {
        name: b"x",
        uid: 70_000,
        ..Header::default()
    });
    meets(usual, owner.end(), "owner");
    let value = "v".repeat(300 << 10);
    let attributes = Tar::new()
        .pax(&[("SCHILY.xattr.user.big", &value)])
        .file("x", b"");
    meets(usual, attributes.end(), "attributes");
    // The control: the same with the guard off is taken.
    let ground = Ground::new();
    let off = Limits {
        ratio: u64::MAX,
        ..usual
    };
    let store = ground.store_with(off);
    load(&ground, &store, &[zeros(100 << 20)]).unwrap();
}

/// P78: what a manifest only announces is refused before anything is read for it.
#[test]
fn p78_announced_sizes_are_bounded() {
    let layer = Tar::new().file("x", b"").end();
    let mut made = image(&[layer]);
    let announce = |made: &Made, size: u64, count: usize| {
        let mut described = describe(GZIP, &made.layers[0]);
        described["size"] = json!(size);
        layout::manifest(&made.config, &vec![described; count])
    };
    for (size, count, limit) in [
        (1 << 62, 1, "image"),
        (u64::MAX, 2, "image"),
        (1, 10_000, "layers"),
    ] {
        let ground = Ground::new();
        let store = ground.store();
        made.manifest = announce(&made, size, count);
        let path = ground.path.join("layout");
        made.write(&path);
        let error = store
            .load(&Scope::host(), &path, &LoadOptions::default(), &())
            .unwrap_err();
        assert!(matches!(error, ImageError::Limit { .. }), "{error}");
        assert!(
            error.to_string().contains(&format!("limit `{limit}`")),
            "{error}"
        );
        nothing_left(&store);
    }
    let ground = Ground::new();
    let path = ground.path.join("layout");
    made.config.extend(vec![b' '; 9 << 20]);
    made.manifest = layout::manifest(&made.config, &[describe(GZIP, &made.layers[0])]);
    made.write(&path);
    let error = ground
        .store()
        .load(&Scope::host(), &path, &LoadOptions::default(), &())
        .unwrap_err();
    assert!(error.to_string().contains("limit `config`"), "{error}");
    fs::write(path.join("index.json"), vec![b' '; 5 << 20]).unwrap();
    let error = ground
        .store()
        .load(&Scope::host(), &path, &LoadOptions::default(), &())
        .unwrap_err();
    assert!(error.to_string().contains("limit `document`"), "{error}");
}

/// P78: the process that unpacks ends at its own limits, and says so.
#[test]
fn p78_a_layer_that_takes_too_long_is_given_up() {
    let ground = Ground::new();
    let limits = Limits {
        wall_seconds: 0,
        ..Limits::default()
    };
    let store = ground.store_with(limits);
    let error = load(&ground, &store, &[zeros(1 << 20)]).unwrap_err();
    assert!(error.to_string().contains("limit `wall`"), "{error}");
    nothing_left(&store);
}

#[track_caller]
fn image_meets(limits: Limits, layers: &[Vec<u8>], limit: &str) {
    let ground = Ground::new();
    let store = ground.store_with(limits);
    let error = load(&ground, &store, layers).unwrap_err();
    assert!(
        error.to_string().contains(&format!("limit `{limit}`")),
        "{error}"
    );
    assert!(store.images(&Scope::host()).unwrap().is_empty());
}

/// P78: a few bytes of links to a large file of a lower layer do not become many copies, and what they become counts.
#[test]
fn p78_copies_of_lower_files_count() {
    let usual = Limits::default();
    let names = ["a", "b", "c"];
    let base = names
        .iter()
        .fold(Tar::new(), |tar, name| tar.file(name, &vec![0; 30 << 20]));
    let links = |count: usize| {
        let all = names[..count].iter();
        all.fold(Tar::new(), |tar, name| {
            tar.hard_link(&format!("of-{name}"), name)
        })
        .end()
    };
    let lower = Limits {
        ratio: 2_000,
        ..usual
    };
    image_meets(lower, &[base.clone().end(), links(3)], "ratio");
    let bounded = Limits {
        layer_bytes: 95 << 20,
        ratio: u64::MAX,
        ..usual
    };
    let two = Tar::new().raw(&links(2)[..1_024]);
    let more = two.file("more", &vec![0; 40 << 20]).end();
    image_meets(bounded, &[base.clone().end(), more], "layer");
    // The control: fewer of them are taken.
    let ground = Ground::new();
    let store = ground.store_with(lower);
    load(&ground, &store, &[base.end(), links(2)]).unwrap();
}

/// P78: what each layer may come to, all of them together may not.
#[test]
fn p78_all_layers_of_an_image_are_bounded() {
    let usual = Limits::default();
    let bytes = Limits {
        unpacked_bytes: 5 << 20,
        ..usual
    };
    let layer = |name: &str, bytes: usize| Tar::new().file(name, &vec![0; bytes]).end();
    let layers = ["a", "b", "c"].map(|name| layer(name, 2 << 20));
    image_meets(bytes, &layers, "unpacked");
    let entries = Limits {
        image_entries: 2,
        ..usual
    };
    let small = ["a", "b", "c"].map(|name| layer(name, 0));
    image_meets(entries, &small, "image-entries");
    // Layers that are here already count too.
    let same = [&small[0], &small[0], &small[0]].map(Clone::clone);
    image_meets(entries, &same, "image-entries");
    // The control: each of them, and two together, are taken.
    for (limits, layers) in [(bytes, &layers[..2]), (entries, &small[..2])] {
        let ground = Ground::new();
        load(&ground, &ground.store_with(limits), layers).unwrap();
    }
}

/// P78: layers that each take little time do not take much together.
#[test]
fn p78_the_time_of_all_layers_is_bounded() {
    let many = (0..200).fold(Tar::new(), |tar, at| tar.file(&format!("f{at}"), b""));
    let layers: Vec<_> = (0..100)
        .map(|at| many.clone().file(&format!("u{at}"), b"").end())
        .collect();
    let ground = Ground::new();
    let limits = Limits {
        wall_seconds: 1,
        ..Limits::default()
    };
    let error = load(&ground, &ground.store_with(limits), &layers).unwrap_err();
    assert!(error.to_string().contains("limit `wall`"), "{error}");
    assert!(error.to_string().contains("all layers"), "{error}");
}

/// P78: a way is gone along once, not from the top for each directory on it.
#[test]
fn p78_a_deep_way_over_many_layers_costs_its_length() {
    let paths: Vec<_> = (0..5)
        .map(|at| format!("p{at}/{}", "a/".repeat(250)))
        .collect();
    let base = |at: usize| {
        let tar = paths.iter().fold(Tar::new(), |tar, path| {
            tar.pax(&[("path", path)]).directory("x", 0o755)
        });
        tar.file(&format!("u{at}"), b"").end()
    };
    let mut layers: Vec<_> = (0..10).map(base).collect();
    let ground = Ground::new();
    load(&ground, &ground.store(), &layers).unwrap();
    layers.push(base(10));
    // The kernel ends what takes more processor time than that.
    let limits = Limits {
        cpu_seconds: 1,
        ..Limits::default()
    };
    load(&ground, &ground.store_with(limits), &layers).unwrap();
}

/// P78: an archive that is compressed far too well is given up before it fills the disk.
#[test]
fn p78_a_compressed_archive_is_held_to_the_ratio() {
    let ground = Ground::new();
    let store = ground.store();
    let path = ground.path.join("bomb.tgz");
    fs::write(&path, layout::gzip(&zeros(100 << 20))).unwrap();
    let error = store
        .load(&Scope::host(), &path, &LoadOptions::default(), &())
        .unwrap_err();
    assert!(matches!(error, ImageError::Limit { .. }), "{error}");
    assert!(error.to_string().contains("limit `ratio`"), "{error}");
    nothing_left(&store);
}

/// P78: an archive of `docker save` with too many layers, or too large ones, is refused before a byte is written.
#[test]
fn p78_a_saved_archive_is_bounded_before_it_is_read() {
    let layer = zeros(1 << 20);
    for (count, image_bytes, limit) in [(200, 1 << 40, "layers"), (3, 2 << 20, "image")] {
        let ground = Ground::new();
        let store = ground.store_with(Limits {
            image_bytes,
            ..Limits::default()
        });
        let list = json!([{ "Config": "c", "Layers": vec!["l"; count] }]);
        let archive = Tar::new()
            .file("manifest.json", &serde_json::to_vec(&list).unwrap())
            .file("c", &layout::config(&vec![layer.clone(); count]))
            .file("l", &layer)
            .end();
        let path = ground.path.join("saved.tar");
        fs::write(&path, archive).unwrap();
        let error = store
            .load(&Scope::host(), &path, &LoadOptions::default(), &())
            .unwrap_err();
        assert!(
            error.to_string().contains(&format!("limit `{limit}`")),
            "{error}"
        );
        let blobs = fs::read_dir(store.root().join("blobs/sha256")).unwrap();
        assert_eq!(blobs.count(), 0);
    }
}
