//! Layouts and archives: what is read, and what is refused.

use std::fs;
use std::path::Path;

use leasehold_core::digest::Digest;
use leasehold_image::archive::LoadOptions;
use leasehold_image::document::Platform;
use leasehold_image::store::plan::At;
use leasehold_image::store::records::Image;
use leasehold_image::store::{Scope, Store};
use leasehold_image::{ImageError, Result};
use serde_json::json;

use crate::layout::{
    self, GZIP, Ground, INDEX, MANIFEST, PLAIN, config, describe, gzip, image, lower, nothing_left,
};
use crate::tarball::Tar;

fn load(store: &Store, path: &Path) -> Result<Image> {
    store.load(&Scope::host(), path, &LoadOptions::default(), &())
}

fn layer() -> Vec<u8> {
    Tar::new().file("hello", b"world").end()
}

/// Every file below a directory, as one archive.
fn packed(folder: &Path) -> Tar {
    fn add(mut tar: Tar, root: &Path, folder: &Path) -> Tar {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            tar = match path.is_dir() {
                true => add(tar, root, &path),
                false => {
                    let name = path
                        .strip_prefix(root)
                        .unwrap()
                        .to_str()
                        .unwrap()
                        .to_owned();
                    tar.file(&name, &fs::read(&path).unwrap())
                }
            };
        }
        tar
    }
    add(Tar::new(), folder, folder)
}

#[test]
fn a_layout_is_loaded_as_directory_archive_and_compressed() {
    let ground = Ground::new();
    let store = ground.store();
    let made = image(&[layer()]);
    let folder = ground.path.join("layout");
    made.write(&folder);
    let plain = packed(&folder).end();
    fs::write(ground.path.join("a.tar"), &plain).unwrap();
    fs::write(ground.path.join("a.tgz"), gzip(&plain)).unwrap();
    for name in ["layout", "a.tar", "a.tgz"] {
        let image = load(&store, &ground.path.join(name)).unwrap();
        assert_eq!(image.digest, made.digest());
        assert_eq!(
            fs::read(lower(&store, &image)[0].join("hello")).unwrap(),
            b"world"
        );
    }
    // An archive sets no name, and whoever loads it may.
    assert!(store.names(&Scope::host()).unwrap().is_empty());
    let options = LoadOptions {
        name: Some("docker.io/library/x:1".to_owned()),
        ..LoadOptions::default()
    };
    store.load(&Scope::host(), &folder, &options, &()).unwrap();
    assert_eq!(
        store.find(&Scope::host(), "x:1").unwrap().digest,
        made.digest()
    );
    let digits = &made.digest().hex()[..8];
    assert_eq!(
        store.find(&Scope::host(), digits).unwrap().digest,
        made.digest()
    );
}

#[test]
fn what_docker_save_writes_is_loaded() {
    let ground = Ground::new();
    let store = ground.store();
    let layers = [layer(), Tar::new().file("two", b"2").end()];
    let configuration = config(&layers);
    let name = format!("{}.json", Digest::of(&configuration).hex());
    let list = json!([{
        "Config": name,
        "RepoTags": ["somebody/else:1"],
        "Layers": ["one/layer.tar", "two/layer.tar"],
    }]);
    // Old ones have one layer twice as a link.
    let archive = Tar::new()
        .file(&name, &configuration)
        .file("one/layer.tar", &layers[0])
        .file("real/layer.tar", &layers[1])
        .link("two/layer.tar", "../real/layer.tar")
        .file("manifest.json", &serde_json::to_vec(&list).unwrap())
        .end();
    let path = ground.path.join("saved.tar");
    fs::write(&path, archive).unwrap();
    let image = load(&store, &path).unwrap();
    let roots = lower(&store, &image);
    assert_eq!(fs::read(roots[0].join("two")).unwrap(), b"2");
    assert_eq!(fs::read(roots[1].join("hello")).unwrap(), b"world");
    assert!(store.verify(&image).unwrap().is_empty());
    assert!(store.names(&Scope::host()).unwrap().is_empty());

    let leads_out = Tar::new().link("two/layer.tar", "../../x").end();
    fs::write(&path, leads_out).unwrap();
    let error = load(&store, &path).unwrap_err();
    assert!(error.to_string().contains("leads out"), "{error}");
}

/// P79: bytes that are not what was said are refused, and nothing of them is kept under their digest.
#[test]
fn p79_a_layout_that_lies_is_refused() {
    let good = image(&[layer()]);
    let blob = |at: &Path, bytes: &[u8]| at.join("blobs/sha256").join(Digest::of(bytes).hex());
    type Change = fn(&Path, &layout::Made, &dyn Fn(&Path, &[u8]) -> std::path::PathBuf);
    let cases: [(&str, Change); 5] = [
        ("has the digest", |at, made, blob| {
            let mut bytes = made.layers[0].clone();
            bytes[12] ^= 1;
            fs::write(blob(at, &made.layers[0]), bytes).unwrap();
        }),
        ("were announced", |at, made, blob| {
            fs::write(blob(at, &made.layers[0]), &made.layers[0][..40]).unwrap();
        }),
        ("has the digest", |at, made, blob| {
            let mut bytes = made.manifest.clone();
            let end = bytes.len() - 1;
            bytes[end - 1] = b' ';
            fs::write(blob(at, &made.manifest), bytes).unwrap();
        }),
        ("is missing", |at, made, blob| {
            fs::remove_file(blob(at, &made.config)).unwrap();
        }),
        ("cannot open", |at, made, blob| {
            let path = blob(at, &made.layers[0]);
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink("/etc/hostname", path).unwrap();
        }),
    ];
    for (says, change) in cases {
        let ground = Ground::new();
        let store = ground.store();
        let folder = ground.path.join("layout");
        good.write(&folder);
        change(&folder, &good, &blob);
        let error = load(&store, &folder).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        nothing_left(&store);
        let kept = store
            .root()
            .join("blobs/sha256")
            .join(Digest::of(&good.layers[0]).hex());
        assert!(!kept.exists(), "{says}");
    }
}

type Wrong = (Vec<u8>, Option<Vec<u8>>, &'static str);

/// Documents that are wrong: manifest, configuration where it is another one, and what the refusal says.
fn wrong_documents(made: &layout::Made) -> Vec<Wrong> {
    let good = serde_json::from_slice::<serde_json::Value>(&made.manifest).unwrap();
    let with = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut value = good.clone();
        change(&mut value);
        serde_json::to_vec(&value).unwrap()
    };
    let foreign = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip";
    vec![
        (
            with(&|value| value["manifests"] = json!([])),
            None,
            "could be read as either",
        ),
        (
            with(&|value| value["layers"][0]["mediaType"] = json!(foreign)),
            None,
            "foreign",
        ),
        (
            with(&|value| value["layers"][0]["urls"] = json!(["https://x/"])),
            None,
            "foreign",
        ),
        (
            with(&|value| value["layers"][0]["mediaType"] = json!("text/plain")),
            None,
            "no layer",
        ),
        (
            with(&|value| value["layers"][0]["digest"] = json!("sha512:00")),
            None,
            "only sha256",
        ),
        (
            with(&|value| value["layers"][0]["digest"] = json!("sha256:../../x")),
            None,
            "only sha256",
        ),
        (
            with(&|value| value["layers"][0]["size"] = json!(-1)),
            None,
            "no whole number",
        ),
        (
            with(&|value| value["mediaType"] = json!(INDEX)),
            None,
            "neither an image",
        ),
        (b"[]".to_vec(), None, "no JSON object"),
        (b"{".to_vec(), None, "no JSON"),
    ]
}

/// Documents that another reader takes for something else.
fn ambiguous_documents(made: &layout::Made) -> Vec<Wrong> {
    let good = serde_json::from_slice::<serde_json::Value>(&made.manifest).unwrap();
    let with = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut value = good.clone();
        change(&mut value);
        serde_json::to_vec(&value).unwrap()
    };
    vec![
        (
            with(&|value| value["layers"] = json!([])),
            None,
            "no layers",
        ),
        (
            with(&|value| value["layers"] = json!({"0": 1})),
            None,
            "`layers` is no list",
        ),
        (
            with(&|value| value["Layers"] = json!([])),
            None,
            "`Layers`, which others read as `layers`",
        ),
        (
            with(&|value| value["Manifests"] = json!([])),
            None,
            "`Manifests`",
        ),
        (
            with(&|value| value["layers"][0]["Digest"] = json!("x")),
            None,
            "`Digest`",
        ),
        (
            with(&|value| value["mediaType"] = json!(7)),
            None,
            "`mediaType` is no text",
        ),
        (
            twice(&made.manifest, "\"layers\":", "\"layers\":[],\"layers\":"),
            None,
            "twice",
        ),
        (
            twice(&made.manifest, "\"size\":", "\"size\":1,\"size\":"),
            None,
            "twice",
        ),
    ]
}

fn twice(document: &[u8], text: &str, by: &str) -> Vec<u8> {
    let document = String::from_utf8(document.to_vec()).unwrap();
    assert!(document.contains(text));
    document.replacen(text, by, 1).into_bytes()
}

/// Configurations that are of something else.
fn wrong_configs(layers: &[Vec<u8>], made: &layout::Made) -> Vec<Wrong> {
    let described = describe(GZIP, &made.layers[0]);
    let other_config = |text: &str, by: &str| {
        let text = String::from_utf8(made.config.clone())
            .unwrap()
            .replace(text, by);
        (
            text.clone().into_bytes(),
            layout::manifest(text.as_bytes(), std::slice::from_ref(&described)),
        )
    };
    let machine = Platform::host().architecture;
    let wrong_machine = other_config(&machine, "s390x");
    let wrong_id = other_config(
        &Digest::of(&layers[0]).to_string(),
        &Digest::of(b"x").to_string(),
    );
    let bad_id = other_config("sha256:", "sha512:");
    let again = other_config("\"User\":", "\"User\":\"0\",\"User\":");
    let case = other_config("\"User\":", "\"user\":\"0\",\"User\":");
    vec![
        (wrong_machine.1, Some(wrong_machine.0), "no image for"),
        (wrong_id.1, Some(wrong_id.0), "the configuration says"),
        (bad_id.1, Some(bad_id.0), "only sha256"),
        (again.1, Some(again.0), "twice"),
        (case.1, Some(case.0), "`user`"),
    ]
}

/// P79: documents with two readings, other kinds, other machines, wrong diff ids.
#[test]
fn p79_documents_are_read_one_way() {
    let layers = [layer()];
    let made = image(&layers);
    let wrong = wrong_documents(&made)
        .into_iter()
        .chain(ambiguous_documents(&made))
        .chain(wrong_configs(&layers, &made));
    for (manifest, config, says) in wrong {
        let ground = Ground::new();
        let store = ground.store();
        let folder = ground.path.join("layout");
        let made = layout::Made {
            manifest,
            config: config.unwrap_or_else(|| made.config.clone()),
            layers: made.layers.clone(),
        };
        made.write(&folder);
        let error = load(&store, &folder).unwrap_err();
        assert!(error.to_string().contains(says), "{says}: {error}");
        nothing_left(&store);
    }
}

#[test]
fn an_index_leads_to_the_image_of_this_machine() {
    let ground = Ground::new();
    let store = ground.store();
    let own = image(&[layer()]);
    let folder = ground.path.join("layout");
    own.write(&folder);
    let other = image(&[Tar::new().file("other", b"").end()]);
    let mut entries = [
        describe(MANIFEST, &other.manifest),
        describe(MANIFEST, &own.manifest),
    ];
    entries[0]["platform"] = json!({ "os": "linux", "architecture": "s390x" });
    let host = Platform::host();
    entries[1]["platform"] = json!({ "os": host.os, "architecture": host.architecture });
    let index = serde_json::to_vec(&json!({ "schemaVersion": 2, "manifests": entries })).unwrap();
    fs::write(folder.join("index.json"), &index).unwrap();
    assert_eq!(load(&store, &folder).unwrap().digest, own.digest());

    entries[1]["platform"]["architecture"] = json!("riscv64");
    let index = serde_json::to_vec(&json!({ "schemaVersion": 2, "manifests": entries })).unwrap();
    fs::write(folder.join("index.json"), &index).unwrap();
    let error = load(&store, &folder).unwrap_err();
    assert!(matches!(error, ImageError::Platform { .. }), "{error}");
    assert!(
        error.to_string().contains("linux/s390x, linux/riscv64"),
        "{error}"
    );
}

/// P06: a backend is told which of the places it mounts on are links, without following one.
#[test]
fn p06_links_at_mount_targets_are_told() {
    let ground = Ground::new();
    let store = ground.store();
    let outside = ground.path.to_str().unwrap();
    let lower_layer = Tar::new()
        .link("dev", outside)
        .directory("proc", 0o755)
        .link("etc", "../..")
        .directory("tmp", 0o1777)
        .end();
    // The upper layer has the last word.
    let upper = Tar::new()
        .file(".wh.tmp", b"")
        .link("sys", "/proc/self/root")
        .end();
    let folder = ground.path.join("layout");
    image(&[lower_layer, upper]).write(&folder);
    let image = load(&store, &folder).unwrap();
    let plan = store.mount_plan(&Scope::host(), &image.digest).unwrap();
    let at = |path: &str| {
        let fact = plan.facts.iter().find(|fact| fact.path == path).unwrap();
        fact.at.clone()
    };
    assert_eq!(at("dev"), At::Link(outside.to_owned()));
    assert_eq!(at("dev/shm"), At::BehindLink);
    assert_eq!(at("proc"), At::Directory);
    assert_eq!(at("etc"), At::Link("../..".to_owned()));
    assert_eq!(at("etc/passwd"), At::BehindLink);
    assert_eq!(at("sys"), At::Link("/proc/self/root".to_owned()));
    assert_eq!(at("tmp"), At::Nothing);
    assert_eq!(plan.config.process.env, ["A=b"]);
    assert_eq!(plan.config.process.user, "7");
    assert!(ground.untouched());
}

#[test]
fn a_layer_that_is_not_compressed_and_has_no_bytes_is_one() {
    let ground = Ground::new();
    let store = ground.store();
    let folder = ground.path.join("layout");
    let empty = Tar::new().end();
    let configuration = config(std::slice::from_ref(&empty));
    let made = layout::Made {
        manifest: layout::manifest(&configuration, &[describe(PLAIN, &empty)]),
        config: configuration,
        layers: vec![empty],
    };
    made.write(&folder);
    let image = load(&store, &folder).unwrap();
    assert_eq!(fs::read_dir(&lower(&store, &image)[0]).unwrap().count(), 0);
}
