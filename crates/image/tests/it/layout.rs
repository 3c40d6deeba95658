//! OCI layouts made in a directory of the test's own, and a store beside them.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::write::GzEncoder;
use leasehold_core::digest::Digest;
use leasehold_image::archive::LoadOptions;
use leasehold_image::document::Platform;
use leasehold_image::limits::Limits;
use leasehold_image::store::records::Image;
use leasehold_image::store::{Scope, Store};
use leasehold_image::unpack::worker::Worker;
use leasehold_image::{ImageError, Result};
use serde_json::{Value, json};

/// A directory of a test's own, removed with it.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) path: PathBuf,
}

impl Ground {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("leasehold-image-{}-{next}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        // Where the sentinel is that no image may touch.
        fs::write(path.join("sentinel"), "untouched").unwrap();
        Self { path }
    }

    pub(crate) fn store(&self) -> Store {
        self.store_with(Limits::default())
    }

    pub(crate) fn store_with(&self, limits: Limits) -> Store {
        Store::open(self.path.join("store"), worker(), limits).unwrap()
    }

    /// Whether the sentinel is as it was.
    pub(crate) fn untouched(&self) -> bool {
        let sentinel = self.path.join("sentinel");
        fs::read(&sentinel).is_ok_and(|bytes| bytes == b"untouched")
            && fs::symlink_metadata(&sentinel).is_ok_and(|found| found.is_file())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

pub(crate) fn worker() -> Worker {
    Worker::new(
        env!("CARGO_BIN_EXE_leasehold-image-unpack").into(),
        Vec::new(),
    )
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub(crate) const PLAIN: &str = "application/vnd.oci.image.layer.v1.tar";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// What describes bytes.
pub(crate) fn describe(media_type: &str, bytes: &[u8]) -> Value {
    json!({
        "mediaType": media_type,
        "digest": Digest::of(bytes).to_string(),
        "size": bytes.len(),
    })
}

/// An image as bytes: its manifest, and all that it names.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub(crate) manifest: Vec<u8>,
    pub(crate) config: Vec<u8>,
    pub(crate) layers: Vec<Vec<u8>>,
}

/// The configuration of layers that are these without compression.
pub(crate) fn config(layers: &[Vec<u8>]) -> Vec<u8> {
    let ids: Vec<String> = layers
        .iter()
        .map(|layer| Digest::of(layer).to_string())
        .collect();
    serde_json::to_vec(&json!({
        "os": "linux",
        "architecture": Platform::host().architecture,
        "config": { "Env": ["A=b"], "Cmd": ["/bin/sh"], "User": "7", "WorkingDir": "/w" },
        "rootfs": { "type": "layers", "diff_ids": ids },
    }))
    .unwrap()
}

/// An image of layers, which are compressed.
pub(crate) fn image(layers: &[Vec<u8>]) -> Made {
    let compressed: Vec<Vec<u8>> = layers.iter().map(|layer| gzip(layer)).collect();
    let config = config(layers);
    let described: Vec<Value> = compressed
        .iter()
        .map(|layer| describe(GZIP, layer))
        .collect();
    Made {
        manifest: manifest(&config, &described),
        config,
        layers: compressed,
    }
}

pub(crate) fn manifest(config: &[u8], layers: &[Value]) -> Vec<u8> {
    serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": describe(CONFIG, config),
        "layers": layers,
    }))
    .unwrap()
}

impl Made {
    pub(crate) fn digest(&self) -> Digest {
        Digest::of(&self.manifest)
    }

    /// Writes it as a layout.
    pub(crate) fn write(&self, to: &Path) {
        let index = json!({
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [describe(MANIFEST, &self.manifest)],
        });
        let blobs = to.join("blobs/sha256");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(to.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        fs::write(to.join("index.json"), serde_json::to_vec(&index).unwrap()).unwrap();
        for bytes in self.blobs() {
            fs::write(blobs.join(Digest::of(bytes).hex()), bytes).unwrap();
        }
    }

    pub(crate) fn blobs(&self) -> impl Iterator<Item = &Vec<u8>> {
        [&self.manifest, &self.config]
            .into_iter()
            .chain(&self.layers)
    }
}

/// Loads an image of these layers.
pub(crate) fn load(ground: &Ground, store: &Store, layers: &[Vec<u8>]) -> Result<Image> {
    let layout = ground.path.join("layout");
    let _ = fs::remove_dir_all(&layout);
    image(layers).write(&layout);
    store.load(&Scope::host(), &layout, &LoadOptions::default(), &())
}

/// The directories of an image's layers, the topmost first.
pub(crate) fn lower(store: &Store, image: &Image) -> Vec<PathBuf> {
    let plan = store.mount_plan(&Scope::host(), &image.digest).unwrap();
    plan.lower
}

/// What is wrong with an image of one layer, in words.
#[track_caller]
pub(crate) fn refused(ground: &Ground, layer: Vec<u8>) -> String {
    let store = ground.store();
    match load(ground, &store, &[layer]) {
        Err(ImageError::Layer { why, .. }) => {
            nothing_left(&store);
            why
        }
        other => panic!("the layer was not refused: {other:?}"),
    }
}

/// That nothing of an image can be used, and nothing is half made.
#[track_caller]
pub(crate) fn nothing_left(store: &Store) {
    let entries = |name: &str| {
        let listed = fs::read_dir(store.root().join(name)).unwrap();
        listed
            .map(|entry| entry.unwrap().file_name())
            .collect::<Vec<_>>()
    };
    assert!(entries("layers").is_empty(), "{:?}", entries("layers"));
    assert!(entries("work").is_empty(), "{:?}", entries("work"));
    assert!(store.images(&Scope::host()).unwrap().is_empty());
}
