//! Pulls an image: name to digest once, documents by digest, layers side by side, then an image or nothing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use leasehold_core::digest::Digest;

use crate::document::{Document, Manifest, choose};
use crate::error::{ImageError, Result};
use crate::reference::Reference;
use crate::registry::PullOptions;
use crate::registry::client::{Client, Fetched};
use crate::registry::download;
use crate::store::fill::Complete;
use crate::store::records::Image;
use crate::store::{Progress, Scope, Store, Watch};

/// A watch that is told nothing.
struct Silent<'a>(&'a dyn Watch);

impl Watch for Silent<'_> {
    fn tell(&self, _: Progress) {}

    fn given_up(&self) -> bool {
        self.0.given_up()
    }
}

/// Blobs that come at one time.
const SIDE_BY_SIDE: usize = 3;

impl Store {
    /// Pulls an image from its registry and lets its name stand for it.
    ///
    /// # Errors
    /// When it cannot be had, is refused, or is not what its digest says. What was downloaded and checked stays for
    /// the next time; nothing of it can be used until all is there.
    pub fn pull(
        &self,
        scope: &Scope,
        reference: &Reference,
        options: &PullOptions,
        watch: &dyn Watch,
    ) -> Result<Image> {
        self.pull_digest(scope, reference, reference.digest(), options, watch)
    }

    /// What a name stands for at its registry now: the digest of the manifest for this platform. Nothing is kept.
    ///
    /// # Errors
    /// When the registry has no such image, or cannot be asked.
    pub fn resolve(&self, reference: &Reference, options: &PullOptions) -> Result<Digest> {
        let client = Client::new(reference, options)?;
        let (fetched, manifest) = named(&client, reference, reference.digest(), options)?;
        manifest.compressed(self.limits())?;
        Ok(fetched.digest)
    }

    /// Pulls the image of a digest that a name was resolved to before, and lets the name stand for it.
    ///
    /// # Errors
    /// As [`Store::pull`].
    pub fn pull_digest(
        &self,
        scope: &Scope,
        reference: &Reference,
        digest: Option<Digest>,
        options: &PullOptions,
        watch: &dyn Watch,
    ) -> Result<Image> {
        let _keep = self.keep()?;
        let client = Client::new(reference, options)?;
        let (fetched, manifest) = named(&client, reference, digest, options)?;
        watch.tell(Progress::Resolved(fetched.digest));
        manifest.compressed(self.limits())?;
        for layer in &manifest.layers {
            watch.tell(Progress::Layer(layer.digest, layer.size));
        }
        download::blob(self, scope, &client, &manifest.config, &Silent(watch))?;
        // What makes no sense is refused before its layers come.
        self.config(&manifest.config.digest, manifest.layers.len())?;
        self.put(scope, &fetched.bytes)?;
        self.download(scope, &client, &manifest, watch)?;
        let name = reference.to_string();
        let complete = Complete {
            digest: fetched.digest,
            manifest_bytes: fetched.bytes.len() as u64,
            manifest: &manifest,
            platform: &options.platform,
            source: &name,
            name: Some(&name),
        };
        self.admit(scope, &complete, watch)
    }

    /// Brings all layers, a few side by side.
    fn download(
        &self,
        scope: &Scope,
        client: &Client<'_>,
        manifest: &Manifest,
        watch: &dyn Watch,
    ) -> Result<()> {
        let next = AtomicUsize::new(0);
        let work = || -> Result<()> {
            while let Some(layer) = manifest.layers.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(error) = download::blob(self, scope, client, layer, watch) {
                    // The others finish what they are at and begin no more.
                    next.store(manifest.layers.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
            Ok(())
        };
        thread::scope(|threads| {
            let all: Vec<_> = (0..SIDE_BY_SIDE.min(manifest.layers.len()))
                .map(|_| threads.spawn(work))
                .collect();
            let mut done = Ok(());
            for one in all {
                let ended = one.join().unwrap_or_else(|_| {
                    Err(client.failure("a layer", "the thread that downloads it broke down"))
                });
                done = done.and(ended);
            }
            done
        })
    }
}

/// The manifest of the image of a digest, or of what a name stands for.
fn named(
    client: &Client<'_>,
    reference: &Reference,
    digest: Option<Digest>,
    options: &PullOptions,
) -> Result<(Fetched, Manifest)> {
    let which = match &digest {
        Some(digest) => digest.to_string(),
        None => reference.tag().unwrap_or("latest").to_owned(),
    };
    let fetched = client.manifest(&which, digest.as_ref())?;
    one(client, fetched, options)
}

/// The manifest of one image: what was fetched, or what an index has for the platform.
fn one(
    client: &Client<'_>,
    fetched: Fetched,
    options: &PullOptions,
) -> Result<(Fetched, Manifest)> {
    let parse =
        |fetched: &Fetched| Document::parse(&fetched.bytes, fetched.content_type.as_deref());
    let entries = match parse(&fetched)? {
        Document::Manifest(manifest) => return Ok((fetched, manifest)),
        Document::Index(entries) => entries,
    };
    let chosen = &choose(&entries, &options.platform)?.manifest;
    let fetched = client.manifest(&chosen.digest.to_string(), Some(&chosen.digest))?;
    if fetched.bytes.len() as u64 != chosen.size {
        return Err(ImageError::Size {
            what: format!("the manifest {}", chosen.digest),
            found: fetched.bytes.len() as u64,
            wanted: chosen.size,
        });
    }
    match parse(&fetched)? {
        Document::Manifest(manifest) => Ok((fetched, manifest)),
        Document::Index(_) => Err(ImageError::Document {
            what: "the manifest".to_owned(),
            why: "an index leads to another index".to_owned(),
        }),
    }
}
