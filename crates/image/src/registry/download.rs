//! Blobs from a registry: once for all who want them, from where the last one left off, checked as they come.

use std::io::Read;

use leasehold_core::digest::Digest;

use super::client::Client;
use super::pace::{Paced, least};
use crate::document::Descriptor;
use crate::error::{ImageError, Result};
use crate::store::blobs::Incoming;
use crate::store::locks::Waiting;
use crate::store::{Progress, Scope, Store, Watch};

/// Attempts without more than a few bytes between them.
const ATTEMPTS: u32 = 4;
/// Bytes that are read at once.
const PIECE: usize = 64 << 10;
/// Bytes between two reports.
const REPORT: u64 = 256 << 10;

/// How many times a connection may stand still while another one waits for it.
const PATIENCE: u32 = 10;

/// How one answer ended.
enum Ended {
    /// All bytes are here.
    Whole,
    /// It broke off, or stood still.
    Broken(ImageError),
}

/// Brings one blob into the store, unless the scope has it.
pub(crate) fn blob(
    store: &Store,
    scope: &Scope,
    client: &Client<'_>,
    wanted: &Descriptor,
    watch: &dyn Watch,
) -> Result<()> {
    let digest = &wanted.digest;
    if store.has_all(scope, digest, wanted.size) {
        watch.tell(Progress::Here(*digest));
        return Ok(());
    }
    let partial = store.partial(scope, digest);
    // Of the scope: nobody waits for a tenant who takes his time.
    let lock = format!("blob-{}_{}", scope.name(), digest.hex());
    let waiting = Waiting {
        what: &format!("blob {digest}"),
        most: client.stall() * PATIENCE,
        grows: Some(partial.clone()),
    };
    let _one = store.once(&lock, &waiting, || watch.tell(Progress::Waiting(*digest)))?;
    if store.has_all(scope, digest, wanted.size) {
        watch.tell(Progress::Here(*digest));
        return Ok(());
    }
    store.bound_partials(scope)?;
    let mut incoming = Incoming::resume(&partial, wanted.size)?;
    let resumed = incoming.bytes() > 0;
    let mut fetched = fetch(client, wanted, &mut incoming, watch);
    if fetched.is_ok() && resumed && incoming.digest() != *digest {
        // What was kept may be what is wrong.
        incoming.again()?;
        watch.tell(Progress::Again(*digest, 0));
        fetched = fetch(client, wanted, &mut incoming, watch);
    }
    if let Err(error) = fetched {
        // A registry that breaks off leaves what is good.
        if !matches!(
            error,
            ImageError::Registry { .. } | ImageError::Answer { .. }
        ) {
            incoming.discard()?;
        }
        return Err(error);
    }
    let found = incoming.digest();
    if found != *digest {
        incoming.discard()?;
        return Err(ImageError::Digest {
            what: format!("blob {digest}"),
            found,
            wanted: *digest,
        });
    }
    store.take(scope, incoming, digest)?;
    watch.tell(Progress::Bytes(*digest, wanted.size));
    Ok(())
}

/// Brings all bytes, with as many requests as it takes while each brings something.
fn fetch(
    client: &Client<'_>,
    wanted: &Descriptor,
    incoming: &mut Incoming,
    watch: &dyn Watch,
) -> Result<()> {
    let digest = &wanted.digest;
    let mut fruitless = 0;
    while incoming.bytes() < wanted.size || wanted.size == 0 {
        let before = incoming.bytes();
        watch.tell(Progress::Bytes(*digest, before));
        match once(client, wanted, incoming, watch) {
            Ok(Ended::Whole) => break,
            Ok(Ended::Broken(error)) => {
                let enough = least(client.stall());
                fruitless = if incoming.bytes().saturating_sub(before) >= enough {
                    0
                } else {
                    fruitless + 1
                };
                if fruitless >= ATTEMPTS {
                    return Err(error);
                }
                watch.tell(Progress::Again(*digest, incoming.bytes()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// One request, and what comes of it.
fn once(
    client: &Client<'_>,
    wanted: &Descriptor,
    incoming: &mut Incoming,
    watch: &dyn Watch,
) -> Result<Ended> {
    let digest: &Digest = &wanted.digest;
    let what = format!("blob {digest}");
    let answer = match client.blob(digest, incoming.bytes()) {
        Ok(answer) => answer,
        Err(error @ ImageError::Registry { .. }) => return Ok(Ended::Broken(error)),
        // It does not know the part that is wanted; it may know the whole.
        Err(ImageError::Answer { status: 416, .. }) if incoming.bytes() > 0 => {
            incoming.again()?;
            client.blob(digest, 0)?
        }
        Err(error @ ImageError::Answer { status: 500.., .. }) => return Ok(Ended::Broken(error)),
        Err(error) => return Err(error),
    };
    let (answer, from) = answer;
    if from != incoming.bytes() {
        incoming.again()?;
    }
    let mut body = Paced::new(answer.into_body().into_reader(), client.stall());
    let mut buffer = vec![0; PIECE];
    let mut reported = incoming.bytes();
    loop {
        if watch.given_up() {
            return Err(client.failure(&what, "nobody wants it any more"));
        }
        let got = match body.read(&mut buffer) {
            Ok(got) => got,
            Err(error) => return Ok(Ended::Broken(client.failure(&what, error.to_string()))),
        };
        if got == 0 {
            return Ok(match incoming.bytes() == wanted.size {
                true => Ended::Whole,
                false => Ended::Broken(ImageError::Size {
                    what,
                    found: incoming.bytes(),
                    wanted: wanted.size,
                }),
            });
        }
        let now = incoming.bytes() + got as u64;
        if now > wanted.size {
            return Err(ImageError::Size {
                what,
                found: now,
                wanted: wanted.size,
            });
        }
        incoming.write(&buffer[..got])?;
        if now - reported >= REPORT || now == wanted.size {
            reported = now;
            watch.tell(Progress::Bytes(*digest, now));
        }
    }
}
