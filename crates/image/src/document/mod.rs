//! Manifests, indexes and configurations: read up to a bound, checked by digest, then parsed.
//!
//! What a document says is data. Labels, annotations and commands steer nothing here.

use leasehold_core::digest::Digest;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::strict::{Strict, exact, exact_keys};
mod strict;

use crate::error::{ImageError, Result, shown};
use crate::limits::{CONFIG_BYTES, INDEX_ENTRIES, LAYERS, Limits};

/// Media types of manifests.
const MANIFESTS: [&str; 2] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];
/// Media types of indexes.
const INDEXES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
/// Media types of configurations.
const CONFIGS: [&str; 2] = [
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
];
/// Media types of layers.
const LAYER_TYPES: [&str; 5] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar",
];

/// Keys that are read of a manifest or an index.
const TOP: [&str; 6] = [
    "schemaVersion",
    "mediaType",
    "config",
    "layers",
    "manifests",
    "fsLayers",
];
/// Keys that are read of what describes bytes.
const DESCRIPTOR: [&str; 6] = [
    "mediaType",
    "digest",
    "size",
    "urls",
    "platform",
    "annotations",
];
/// Keys that are read of a configuration.
const CONFIGURATION: [&str; 6] = [
    "os",
    "architecture",
    "variant",
    "rootfs",
    "config",
    "created",
];
/// Keys that are read of how an image is started.
const PROCESS: [&str; 5] = ["Env", "Entrypoint", "Cmd", "WorkingDir", "User"];

/// What is accepted where a manifest is asked for.
#[must_use]
pub(crate) fn accepted() -> String {
    [&MANIFESTS[..], &INDEXES[..]].concat().join(", ")
}

/// Bytes that a document names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What they are.
    pub media_type: String,
    /// Their digest.
    pub digest: Digest,
    /// How many there are.
    pub size: u64,
}

/// A manifest of one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Its configuration.
    pub config: Descriptor,
    /// Its layers, the lowest first.
    pub layers: Vec<Descriptor>,
}

/// What a document that was asked for as a manifest is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    /// One image.
    Manifest(Manifest),
    /// Images for several machines.
    Index(Vec<IndexEntry>),
}

/// One image of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexEntry {
    /// Its manifest.
    pub manifest: Descriptor,
    /// What it runs on, where the index says so.
    pub platform: Option<Platform>,
    /// Its name, in a layout directory.
    pub name: Option<String>,
}

/// What an image runs on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// Operating system, such as `linux`.
    pub os: String,
    /// Processor, such as `amd64`.
    pub architecture: String,
    /// Which of its kind, such as `v7`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl Platform {
    /// This machine.
    #[must_use]
    pub fn host() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self {
            os: "linux".to_owned(),
            architecture: architecture.to_owned(),
            variant: None,
        }
    }

    /// Reads `OS/ARCHITECTURE` or `OS/ARCHITECTURE/VARIANT`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let word = |part: &&str| {
            let plain = part.bytes().all(|byte| byte.is_ascii_alphanumeric());
            plain && (1..=32).contains(&part.len())
        };
        let parts: Vec<&str> = text.split('/').collect();
        let (os, architecture, variant) = match parts.as_slice() {
            [os, architecture] => (os, architecture, None),
            [os, architecture, variant] => (os, architecture, Some(*variant)),
            _ => return None,
        };
        parts.iter().all(word).then(|| Self {
            os: (*os).to_owned(),
            architecture: (*architecture).to_owned(),
            variant: variant.map(str::to_owned),
        })
    }

    /// Whether an image of `other` runs here. A variant counts where both have one.
    #[must_use]
    pub fn takes(&self, other: &Self) -> bool {
        let variants = match (&self.variant, &other.variant) {
            (Some(own), Some(other)) => own == other,
            _ => true,
        };
        self.os == other.os && self.architecture == other.architecture && variants
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}/{}", self.os, self.architecture)?;
        match &self.variant {
            Some(variant) => write!(out, "/{variant}"),
            None => Ok(()),
        }
    }
}

/// How a sandbox of an image is started, as its configuration says. Data for a backend, which decides what of
/// it counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Environment, `NAME=VALUE`.
    pub env: Vec<String>,
    /// What is started always.
    pub entrypoint: Vec<String>,
    /// What is started, or passed to the entrypoint, unless something else is asked for.
    pub cmd: Vec<String>,
    /// Working directory; empty for the root.
    pub working_dir: String,
    /// User, as `USER` or `USER:GROUP`, by name or number; empty for root.
    pub user: String,
}

/// The configuration of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// What it runs on.
    pub platform: Platform,
    /// Digests of its layers without compression, the lowest first.
    pub diff_ids: Vec<Digest>,
    /// How it is started.
    pub process: Process,
    /// When it was made, as it says itself, cut.
    pub created: Option<String>,
}

fn wrong(what: &str, why: impl Into<String>) -> ImageError {
    ImageError::Document {
        what: what.to_owned(),
        why: why.into(),
    }
}

/// Most values in a document, told by the characters that stand before one: each takes some hundred bytes once it is read.
const VALUES_MAX: usize = 200_000;

fn object(what: &str, bytes: &[u8]) -> Result<serde_json::Map<String, Value>> {
    let before = |byte: &&u8| matches!(byte, b',' | b'[' | b'{');
    if bytes.iter().filter(before).count() > VALUES_MAX {
        return Err(wrong(what, format!("it has more than {VALUES_MAX} values")));
    }
    let Strict(value) = serde_json::from_slice(bytes).map_err(|error| {
        let why = match error.is_data() {
            true => error.to_string(),
            false => format!("it is no JSON: {error}"),
        };
        wrong(what, why)
    })?;
    match value {
        Value::Object(object) => Ok(object),
        _ => Err(wrong(what, "it is no JSON object")),
    }
}

fn descriptor(what: &str, value: &Value) -> Result<Descriptor> {
    exact(what, value, &DESCRIPTOR)?;
    let text = |field: &str| match value.get(field) {
        None => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err(wrong(what, format!("`{field}` is no text"))),
    };
    let digest = text("digest")?;
    let digest = Digest::parse(digest).map_err(|_| {
        let shown = shown(digest.as_bytes());
        wrong(
            what,
            format!("`digest` is {shown:?}: only sha256 with 64 digits is taken"),
        )
    })?;
    let size = value.get("size").and_then(Value::as_u64);
    Ok(Descriptor {
        media_type: text("mediaType")?.chars().take(256).collect(),
        digest,
        size: size.ok_or_else(|| wrong(what, "`size` is no whole number"))?,
    })
}

impl Document {
    /// Parses what a registry gave where a manifest was asked for, or a layout has as one.
    ///
    /// # Errors
    /// When it is neither a manifest nor an index, is both, or is of another type than was said.
    pub fn parse(bytes: &[u8], content_type: Option<&str>) -> Result<Self> {
        let what = "the manifest";
        let object = object(what, bytes)?;
        exact_keys(what, &object, &TOP)?;
        let stated = match object.get("mediaType") {
            None => None,
            Some(Value::String(stated)) => Some(stated.as_str()),
            Some(_) => return Err(wrong(what, "`mediaType` is no text")),
        };
        if let (Some(stated), Some(sent)) = (stated, content_type)
            && stated != sent
        {
            let (stated, sent) = (shown(stated.as_bytes()), shown(sent.as_bytes()));
            return Err(wrong(
                what,
                format!("`mediaType` is {stated:?}, and it was sent as {sent:?}"),
            ));
        }
        let media = stated.or(content_type).unwrap_or_default();
        let has = |field: &str| object.contains_key(field);
        if has("manifests") && (has("layers") || has("config") || has("fsLayers")) {
            return Err(wrong(
                what,
                "it has both `manifests` and `layers`, and could be read as either",
            ));
        }
        let known = |types: &[&str]| media.is_empty() || types.contains(&media);
        if has("manifests") && known(&INDEXES) {
            return index(&object).map(Self::Index);
        }
        if has("layers") && has("config") && known(&MANIFESTS) {
            return manifest(&object).map(Self::Manifest);
        }
        let media = shown(media.as_bytes());
        Err(wrong(
            what,
            format!("it is neither an image nor an index of images (`mediaType` {media:?})"),
        ))
    }
}

fn list<'a>(
    what: &str,
    object: &'a serde_json::Map<String, Value>,
    field: &str,
) -> Result<&'a [Value]> {
    match object.get(field) {
        Some(Value::Array(list)) => Ok(list),
        _ => Err(wrong(what, format!("`{field}` is no list"))),
    }
}

fn manifest(object: &serde_json::Map<String, Value>) -> Result<Manifest> {
    let what = "the manifest";
    let config = descriptor("`config` of the manifest", &object["config"])?;
    if !config.media_type.is_empty() && !CONFIGS.contains(&config.media_type.as_str()) {
        let media = shown(config.media_type.as_bytes());
        return Err(wrong(what, format!("it is no image but {media:?}")));
    }
    if config.size > CONFIG_BYTES {
        return Err(ImageError::Limit {
            what: format!("the configuration of {} bytes", config.size),
            limit: "config",
            most: CONFIG_BYTES,
        });
    }
    let layers = list(what, object, "layers")?;
    if layers.is_empty() {
        return Err(wrong(
            what,
            "it has no layers, so that there is nothing to start",
        ));
    }
    if layers.len() > LAYERS {
        return Err(ImageError::Limit {
            what: format!("an image of {} layers", layers.len()),
            limit: "layers",
            most: LAYERS as u64,
        });
    }
    let layers = layers.iter().enumerate().map(|(at, value)| {
        let what = format!("`layers[{at}]` of the manifest");
        let foreign = value.get("urls").is_some_and(|urls| match urls {
            Value::Null => false,
            Value::Array(urls) => !urls.is_empty(),
            _ => true,
        });
        let layer = descriptor(&what, value)?;
        if layer.media_type.contains("foreign")
            || layer.media_type.contains("nondistributable")
            || foreign
        {
            return Err(wrong(
                &what,
                "it is a foreign layer, which is fetched from elsewhere; these are not taken",
            ));
        }
        if !LAYER_TYPES.contains(&layer.media_type.as_str()) {
            let media = shown(layer.media_type.as_bytes());
            return Err(wrong(
                &what,
                format!("`mediaType` {media:?} is no layer that is read"),
            ));
        }
        Ok(layer)
    });
    Ok(Manifest {
        config,
        layers: layers.collect::<Result<_>>()?,
    })
}

impl Manifest {
    /// Bytes of all layers, as the manifest announces them.
    ///
    /// # Errors
    /// When they are beyond the bound of an image.
    pub fn compressed(&self, limits: &Limits) -> Result<u64> {
        let sum = self
            .layers
            .iter()
            .try_fold(0u64, |sum, layer| sum.checked_add(layer.size));
        match sum.filter(|sum| *sum <= limits.image_bytes) {
            Some(sum) => Ok(sum),
            None => Err(ImageError::Limit {
                what: "the layers that the manifest announces".to_owned(),
                limit: "image",
                most: limits.image_bytes,
            }),
        }
    }
}

fn index(object: &serde_json::Map<String, Value>) -> Result<Vec<IndexEntry>> {
    let entries = list("the index", object, "manifests")?;
    if entries.len() > INDEX_ENTRIES {
        return Err(ImageError::Limit {
            what: format!("an index of {} images", entries.len()),
            limit: "index",
            most: INDEX_ENTRIES as u64,
        });
    }
    let entries = entries.iter().enumerate().map(|(at, value)| {
        let text = |field: &str| {
            let text = value.get("platform")?.get(field)?.as_str()?;
            Some(text.chars().take(32).collect::<String>())
        };
        let name = value
            .get("annotations")
            .and_then(|all| all.get("org.opencontainers.image.ref.name"))
            .and_then(Value::as_str);
        Ok(IndexEntry {
            manifest: descriptor(&format!("`manifests[{at}]` of the index"), value)?,
            platform: match (text("os"), text("architecture")) {
                (Some(os), Some(architecture)) => Some(Platform {
                    os,
                    architecture,
                    variant: text("variant"),
                }),
                _ => None,
            },
            name: name.map(|name| name.chars().take(256).collect()),
        })
    });
    entries.collect()
}

/// The image of an index that runs on a platform: the first that is for it, else the only one that says nothing.
///
/// # Errors
/// When there is none, with what there is.
pub fn choose<'a>(entries: &'a [IndexEntry], wanted: &Platform) -> Result<&'a IndexEntry> {
    let fits = |entry: &&IndexEntry| {
        let platform = entry.platform.as_ref();
        platform.is_some_and(|platform| wanted.takes(platform))
    };
    if let Some(entry) = entries.iter().find(fits) {
        return Ok(entry);
    }
    if let [entry] = entries
        && entry.platform.is_none()
    {
        return Ok(entry);
    }
    let there: Vec<String> = entries
        .iter()
        .filter_map(|entry| entry.platform.as_ref())
        .take(16)
        .map(|platform| shown(platform.to_string().as_bytes()))
        .collect();
    Err(ImageError::Platform {
        wanted: wanted.to_string(),
        there: match there.is_empty() {
            true => "none that says what it is for".to_owned(),
            false => there.join(", "),
        },
    })
}

impl Config {
    /// Parses the configuration of an image of so many layers.
    ///
    /// # Errors
    /// When it is none, is of another number of layers, or has more in it than a sandbox could be given.
    pub fn parse(bytes: &[u8], layers: usize) -> Result<Self> {
        let what = "the configuration";
        let object = object(what, bytes)?;
        exact_keys(what, &object, &CONFIGURATION)?;
        let rootfs = object.get("rootfs").unwrap_or(&Value::Null);
        exact(
            "`rootfs` of the configuration",
            rootfs,
            &["type", "diff_ids"],
        )?;
        if rootfs.get("type").and_then(Value::as_str) != Some("layers") {
            return Err(wrong(what, "`rootfs.type` is not `layers`"));
        }
        let ids = rootfs
            .get("diff_ids")
            .and_then(Value::as_array)
            .map_or(&[][..], Vec::as_slice);
        if ids.len() != layers {
            return Err(wrong(
                what,
                format!(
                    "`rootfs.diff_ids` has {} layers, and the manifest {layers}",
                    ids.len()
                ),
            ));
        }
        let diff_ids = ids.iter().map(|id| {
            let text = id.as_str().unwrap_or_default();
            Digest::parse(text).map_err(|_| {
                wrong(
                    what,
                    format!(
                        "`rootfs.diff_ids` has {:?}: only sha256 with 64 digits is taken",
                        shown(text.as_bytes())
                    ),
                )
            })
        });
        let diff_ids = diff_ids.collect::<Result<_>>()?;
        let word = |field: &str| match object.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.chars().take(64).collect::<String>())),
            Some(_) => Err(wrong(what, format!("`{field}` is no text"))),
        };
        Ok(Self {
            platform: Platform {
                os: word("os")?.unwrap_or_else(|| "linux".to_owned()),
                architecture: word("architecture")?.unwrap_or_default(),
                variant: word("variant")?.filter(|variant| !variant.is_empty()),
            },
            diff_ids,
            process: process(object.get("config").unwrap_or(&Value::Null))?,
            created: word("created")?,
        })
    }
}

fn process(config: &Value) -> Result<Process> {
    /// Most texts of a list, and bytes of one.
    const TEXTS: usize = 4_096;
    const TEXT_BYTES: usize = 128 << 10;
    let what = "`config` of the configuration";
    if !matches!(config, Value::Null | Value::Object(_)) {
        return Err(wrong(what, "it is no JSON object"));
    }
    exact(what, config, &PROCESS)?;
    let text = |field: &str, value: &Value| match value {
        Value::Null => Ok(String::new()),
        Value::String(text) if text.len() <= TEXT_BYTES && !text.contains('\0') => Ok(text.clone()),
        _ => Err(wrong(
            "the configuration",
            format!("`config.{field}` is no text, too long, or has a NUL in it"),
        )),
    };
    let field = |name: &str| config.get(name).unwrap_or(&Value::Null);
    let list = |name: &str| match field(name) {
        Value::Null => Ok(Vec::new()),
        Value::Array(values) if values.len() <= TEXTS => {
            values.iter().map(|value| text(name, value)).collect()
        }
        _ => Err(wrong(
            "the configuration",
            format!("`config.{name}` is no list of at most {TEXTS} texts"),
        )),
    };
    Ok(Process {
        env: list("Env")?,
        entrypoint: list("Entrypoint")?,
        cmd: list("Cmd")?,
        working_dir: text("WorkingDir", field("WorkingDir"))?,
        user: text("User", field("User"))?,
    })
}

/// The chain ids of layers by their diff ids, the lowest first.
#[must_use]
pub fn chain_ids(diff_ids: &[Digest]) -> Vec<Digest> {
    let mut chain: Vec<Digest> = Vec::with_capacity(diff_ids.len());
    for id in diff_ids {
        let next = match chain.last() {
            Some(below) => Digest::of(format!("{below} {id}").as_bytes()),
            None => *id,
        };
        chain.push(next);
    }
    chain
}
