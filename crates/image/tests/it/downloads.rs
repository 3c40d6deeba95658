//! Downloads that are slow, wrong from before, too many, or somebody else's.

use std::fs;
use std::time::{Duration, Instant};

use leasehold_core::digest::Digest;
use serde_json::json;

use crate::hostile::{layer, made, pull};
use crate::layout::{GZIP, Ground, Made, describe, manifest};
use crate::server::Server;

/// A body that comes drop by drop is given up, be it a layer or a manifest.
#[test]
fn a_body_that_comes_too_slowly_is_given_up() {
    for part in ["/blobs/", "/manifests/"] {
        let ground = Ground::new();
        let store = ground.store();
        let server = Server::of(made(20_000), move |asked, _, mut good| {
            if asked.path.contains(part) {
                good.drip = Some(Duration::from_millis(100));
            }
            good
        });
        let begun = Instant::now();
        let error = pull(&store, &server.host, "x:1").unwrap_err();
        assert!(error.to_string().contains("slower than"), "{part}: {error}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{part}");
    }
}

/// A size that is not that of bytes which are here is found out as it is for those that are not.
#[test]
fn a_wrong_size_is_refused_though_the_bytes_are_here() {
    let ground = Ground::new();
    let store = ground.store();
    let good = made(1_000);
    let honest = Server::of(good.clone(), |_, _, good| good);
    pull(&store, &honest.host, "x:1").unwrap();
    let mut described = describe(GZIP, &good.layers[0]);
    described["size"] = json!(good.layers[0].len() - 1);
    let lying = Made {
        manifest: manifest(&good.config, &[described]),
        ..good.clone()
    };
    let liar = Server::of(lying, |_, _, good| good);
    let error = pull(&store, &liar.host, "x:1").unwrap_err();
    assert!(error.to_string().contains("were announced"), "{error}");
    assert!(pull(&store, &honest.host, "x:1").is_ok());
}

/// What was kept of a download and is wrong is fetched again from its first byte, once.
#[test]
fn a_wrong_beginning_is_fetched_again_once() {
    let ground = Ground::new();
    let store = ground.store();
    let made = made(10_000);
    let path = layer(&made);
    let hex = Digest::of(&made.layers[0]).hex();
    fs::write(
        store.root().join("partial").join(format!("host_{hex}")),
        vec![7; 5_000],
    )
    .unwrap();
    let server = Server::of(made, |_, _, good| good);
    pull(&store, &server.host, "x:1").unwrap();
    let from: Vec<usize> = server.asked(&path).iter().map(|asked| asked.from).collect();
    assert_eq!(from, [5_000, 0]);
}

/// Downloads that broke off are bounded for a scope; the oldest go.
#[test]
fn broken_downloads_are_bounded() {
    let ground = Ground::new();
    let store = ground.store();
    let partial = store.root().join("partial");
    for number in 0..200_u32 {
        let hex = Digest::of(&number.to_le_bytes()).hex();
        fs::write(partial.join(format!("host_{hex}")), "x").unwrap();
        fs::write(partial.join(format!("other_{hex}")), "x").unwrap();
    }
    let server = Server::of(made(1_000), |_, _, good| good);
    pull(&store, &server.host, "x:1").unwrap();
    let left = |scope: &str| {
        let listed = fs::read_dir(&partial).unwrap();
        listed
            .filter(|one| {
                let name = one.as_ref().unwrap().file_name();
                name.to_str().unwrap().starts_with(scope)
            })
            .count()
    };
    assert!(left("host_") <= 64, "{}", left("host_"));
    assert_eq!(left("other_"), 200);
}

/// Whoever waits for a download that does not grow says so after a while.
#[test]
fn nobody_waits_for_ever_for_another() {
    let ground = Ground::new();
    let store = ground.store();
    let made = made(1_000);
    let hex = Digest::of(&made.layers[0]).hex();
    let held = fs::File::create(store.root().join(format!("locks/blob-host_{hex}"))).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let server = Server::of(made, |_, _, good| good);
    let error = pull(&store, &server.host, "x:1").unwrap_err();
    let text = error.to_string();
    let own = format!("process {}", std::process::id());
    assert!(text.contains(&hex) && text.contains(&own), "{text}");
    drop(held);
    pull(&store, &server.host, "x:1").unwrap();
}
