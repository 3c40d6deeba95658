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
