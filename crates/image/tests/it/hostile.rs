//! A registry that lies, stalls and breaks off. Each lie is refused by its name, and nothing of it is kept.

use std::fs;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use leasehold_core::digest::Digest;
use leasehold_image::document::Platform;
use leasehold_image::reference::Reference;
use leasehold_image::registry::{Credentials, PullOptions};
use leasehold_image::store::records::Image;
use leasehold_image::store::{Progress, Scope, Store, Watch};
use leasehold_image::{ImageError, Result};
use serde_json::json;

use crate::layout::{Ground, INDEX, MANIFEST, Made, describe, image, lower, nothing_left};
use crate::server::{Answer, Server, right};
use crate::tarball::Tar;

fn options() -> PullOptions {
    PullOptions {
        stall: Duration::from_millis(500),
        ..PullOptions::default()
    }
}

pub(crate) fn pull(store: &Store, host: &str, name: &str) -> Result<Image> {
    pull_with(store, host, name, &options())
}

fn pull_with(store: &Store, host: &str, name: &str, options: &PullOptions) -> Result<Image> {
    let reference = Reference::parse(&format!("{host}/{name}")).unwrap();
    store.pull(&Scope::host(), &reference, options, &())
}

/// An image with one layer of so many random bytes, which do not compress.
pub(crate) fn made(bytes: usize) -> Made {
    let mut data = vec![0; bytes];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for byte in &mut data {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state as u8;
    }
    image(&[Tar::new().file("data", &data).end()])
}

pub(crate) fn layer(made: &Made) -> String {
    Digest::of(&made.layers[0]).to_string()
}

#[test]
fn a_pull_brings_the_image_and_its_name() {
    let ground = Ground::new();
    let store = ground.store();
    let made = made(100_000);
    let server = Server::of(made.clone(), |_, _, good| good);
    let image = pull(&store, &server.host, "x:1").unwrap();
    assert_eq!(image.digest, made.digest());
    assert_eq!(
        fs::metadata(lower(&store, &image)[0].join("data"))
            .unwrap()
            .len(),
        100_000
    );
    let name = format!("{}/x:1", server.host);
    assert_eq!(
        store.find(&Scope::host(), &name).unwrap().digest,
        image.digest
    );
    // By digest too; what is there is not fetched again.
    pull(&store, &server.host, &format!("x@{}", made.digest())).unwrap();
    assert_eq!(server.count(&layer(&made)), 1);
    let error = pull(&store, &server.host, "x:2").unwrap_err();
    assert!(
        error.to_string().contains("404") && error.to_string().contains("manifest unknown"),
        "{error}"
    );
}

type Lie = fn(&Made, Answer) -> Answer;

/// P79: what a registry sends is what was asked for, or it is refused and not kept.
#[test]
fn p79_a_registry_that_lies_is_refused() {
    let blobs: [(&str, Lie); 6] = [
        ("has the digest", |_, mut good| {
            good.body[5_000] ^= 1;
            good
        }),
        ("were announced", |_, mut good| {
            good.body.push(0);
            good
        }),
        ("were announced", |_, mut good| {
            good.body.extend(vec![0; 50 << 20]);
            good
        }),
        ("were announced", |_, mut good| {
            good.body.truncate(good.body.len() / 2);
            good
        }),
        ("403", |_, _| Answer::new(403, b"no")),
        ("plain HTTP", |_, _| {
            Answer::new(307, b"").header("location", "http://example.invalid/x")
        }),
    ];
    for (says, lie) in blobs {
        let ground = Ground::new();
        let store = ground.store();
        let made = made(10_000);
        let (path, lying) = (layer(&made), made.clone());
        let server = Server::of(made.clone(), move |asked, _, good| {
            match asked.path.ends_with(&path) {
                true => lie(&lying, good),
                false => good,
            }
        });
        let error = pull(&store, &server.host, "x:1").unwrap_err();
        assert!(error.to_string().contains(says), "{says}: {error}");
        nothing_left(&store);
        let kept = store
            .root()
            .join("blobs/sha256")
            .join(Digest::of(&made.layers[0]).hex());
        assert!(!kept.exists(), "{says}");
    }
}

/// P79: the same for manifests.
#[test]
fn p79_a_registry_that_lies_about_a_manifest_is_refused() {
    let manifests: [(&str, Lie); 6] = [
        ("it was sent as", |made, _| {
            Answer::new(200, &made.manifest).header("content-type", INDEX)
        }),
        ("no JSON", |_, _| {
            Answer::new(200, b"<html>").header("content-type", "text/html")
        }),
        ("limit `manifest`", |_, _| {
            Answer::new(200, &vec![b' '; 6 << 20])
        }),
        ("has the digest", |_, good| {
            good.header("docker-content-digest", Digest::of(b"other").to_string())
        }),
        ("sends us on more than", |_, _| {
            Answer::new(302, b"").header("location", "/v2/x/manifests/1")
        }),
        ("neither https nor http", |_, _| {
            Answer::new(302, b"").header("location", "file:///etc/passwd")
        }),
    ];
    for (says, lie) in manifests {
        let ground = Ground::new();
        let store = ground.store();
        let made = made(1_000);
        let lying = made.clone();
        let server = Server::of(made, move |asked, _, good| {
            match asked.path.contains("/manifests/") {
                true => lie(&lying, good),
                false => good,
            }
        });
        let error = pull(&store, &server.host, "x:1").unwrap_err();
        assert!(error.to_string().contains(says), "{says}: {error}");
        nothing_left(&store);
    }
}

/// P79: an index has one level, and its entries are what they say.
#[test]
fn p79_an_index_leads_to_an_image_and_no_further() {
    let made = made(1_000);
    let entry = |value: serde_json::Value| {
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [value] });
        serde_json::to_vec(&index).unwrap()
    };
    let host = Platform::host();
    let platform = json!({ "os": host.os, "architecture": host.architecture });
    let mut own = describe(MANIFEST, &made.manifest);
    own["platform"] = platform.clone();
    let good = entry(own.clone());
    own["size"] = json!(7);
    let wrong_size = entry(own);
    let mut inner = describe(INDEX, &good);
    inner["platform"] = platform;
    let nested = entry(inner);
    for (index, says) in [
        (good.clone(), None),
        (wrong_size, Some("were announced")),
        (nested, Some("another index")),
    ] {
        let ground = Ground::new();
        let store = ground.store();
        let (made, good) = (made.clone(), good.clone());
        let server = Server::start(move |asked, _| {
            let inner = asked.path.ends_with(&Digest::of(&good).to_string());
            let index = if inner { &good } else { &index };
            match asked.path.ends_with("/manifests/1") || inner {
                true => Answer::new(200, index).header("content-type", INDEX),
                false => right(&made, asked),
            }
        });
        match (pull(&store, &server.host, "x:1"), says) {
            (Ok(_), None) => {}
            (Err(error), Some(says)) => assert!(error.to_string().contains(says), "{error}"),
            (other, says) => panic!("{says:?}: {other:?}"),
        }
    }
}

/// Writes down what is told.
#[derive(Default)]
struct Told(Mutex<Vec<Progress>>);

impl Watch for Told {
    fn tell(&self, progress: Progress) {
        self.0.lock().unwrap().push(progress);
    }
}

/// A connection that breaks, and one that stands still: the rest comes with the next, and no byte twice.
#[test]
fn a_broken_download_goes_on_where_it_was() {
    let ground = Ground::new();
    let store = ground.store();
    let made = made(300_000);
    let path = layer(&made);
    let server = Server::of(made.clone(), {
        let path = path.clone();
        move |asked, before, mut good| {
            if asked.path.ends_with(&path) {
                match before {
                    0 => good.cut = Some(100_000),
                    1 => good.stall = Some((50_000, Duration::from_secs(20))),
                    _ => {}
                }
            }
            good
        }
    });
    let begun = Instant::now();
    let told = Told::default();
    let reference = Reference::parse(&format!("{}/x:1", server.host)).unwrap();
    let image = store
        .pull(&Scope::host(), &reference, &options(), &told)
        .unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(15),
        "{:?}",
        begun.elapsed()
    );
    assert!(store.verify(&image).unwrap().is_empty());
    let from: Vec<usize> = server.asked(&path).iter().map(|asked| asked.from).collect();
    assert_eq!(from, [0, 100_000, 150_000]);
    let again = told
        .0
        .lock()
        .unwrap()
        .iter()
        .filter(|one| matches!(one, Progress::Again(..)))
        .count();
    assert_eq!(again, 2);
}

/// P79: a part that is not the one that was asked for is not spliced in; a registry without parts begins again.
#[test]
fn p79_parts_fit_or_the_whole_is_fetched_again() {
    for (lie, times) in [
        ("other part", None),
        ("no parts", Some(2)),
        ("other bytes", None),
    ] {
        let ground = Ground::new();
        let store = ground.store();
        let made = made(100_000);
        let path = layer(&made);
        let bytes = made.layers[0].clone();
        let server = Server::of(made, {
            let path = path.clone();
            move |asked, before, mut good| {
                if !asked.path.ends_with(&path) {
                    return good;
                }
                if before == 0 {
                    good.cut = Some(40_000);
                    return good;
                }
                match lie {
                    "other part" => {
                        Answer::new(206, &bytes).header("content-range", "bytes 0-99999/100000")
                    }
                    "no parts" => Answer::new(200, &bytes),
                    _ => {
                        good.body[0] ^= 1;
                        good
                    }
                }
            }
        });
        let pulled = pull(&store, &server.host, "x:1");
        match times {
            Some(times) => {
                pulled.unwrap();
                assert_eq!(server.count(&path), times);
            }
            None => {
                pulled.unwrap_err();
                nothing_left(&store);
            }
        }
    }
}

/// A registry that is gone, and one that never answers, are given up in bounded time.
#[test]
fn a_registry_that_does_not_answer_is_given_up() {
    let ground = Ground::new();
    let store = ground.store();
    let made = made(1_000);
    let path = layer(&made);
    let server = Server::of(made, move |asked, _, mut good| {
        if asked.path.ends_with(&path) {
            good.stall = Some((0, Duration::from_secs(60)));
        }
        good
    });
    let begun = Instant::now();
    let error = pull(&store, &server.host, "x:1").unwrap_err();
    assert!(matches!(error, ImageError::Registry { .. }), "{error}");
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
    let error = pull(&store, "127.0.0.1:1", "x:1").unwrap_err();
    assert!(matches!(error, ImageError::Registry { .. }), "{error}");
}

/// Tokens, and names and passwords, go to the registry and to nobody that it sends us on to.
#[test]
fn what_proves_who_asks_goes_to_the_registry_alone() {
    let ground = Ground::new();
    let store = ground.store();
    let made = made(5_000);
    let path = layer(&made);
    let elsewhere = Server::of(made.clone(), |_, _, good| good);
    let other = elsewhere.host.clone();
    // Its own port is known only once it runs.
    let own: Arc<OnceLock<String>> = Arc::default();
    let front = Server::of(made, {
        let (path, own) = (path.clone(), Arc::clone(&own));
        move |asked, _, good| {
            if asked.path.starts_with("/token") {
                assert!(
                    asked.path.contains("scope=repository:x:pull"),
                    "{}",
                    asked.path
                );
                return match asked.authorization.as_deref() {
                    Some("Basic bmFtZTp3b3Jk") => Answer::new(200, br#"{"token":"abc"}"#),
                    _ => Answer::new(401, b""),
                };
            }
            if asked.authorization.as_deref() != Some("Bearer abc") {
                let own = own.get().unwrap();
                let realm = format!(
                    "Bearer realm=\"http://{own}/token\",service=\"s\",scope=\"repository:x:pull\""
                );
                return Answer::new(401, b"").header("www-authenticate", realm);
            }
            match asked.path.ends_with(&path) {
                true => Answer::new(307, b"")
                    .header("location", format!("http://{other}{}", asked.path)),
                false => good,
            }
        }
    });
    own.set(front.host.clone()).unwrap();
    let error = pull(&store, &front.host, "x:1").unwrap_err();
    assert!(
        matches!(error, ImageError::Answer { status: 401, .. }),
        "{error}"
    );
    let named = named();
    let shown = format!("{named:?}");
    assert!(!shown.contains("word"), "{shown}");
    pull_with(&store, &front.host, "x:1", &named).unwrap();
    let there = elsewhere.asked(&path);
    assert!(
        there.len() == 1 && there[0].authorization.is_none(),
        "{there:?}"
    );
}

fn named() -> PullOptions {
    PullOptions {
        credentials: Some(Credentials {
            user: "name".to_owned(),
            password: "word".to_owned(),
        }),
        ..options()
    }
}

/// Whoever a redirect led to may ask for proof: nobody answers. A token service on plain HTTP that is not the
/// registry is asked as nobody.
#[test]
fn challenges_are_answered_to_the_registry_alone() {
    for by_redirect in [true, false] {
        let ground = Ground::new();
        let store = ground.store();
        let own: Arc<OnceLock<String>> = Arc::default();
        let thief = Server::start({
            let own = Arc::clone(&own);
            move |asked, _| match asked.path.starts_with("/token") {
                true => Answer::new(200, br#"{"token":"abc"}"#),
                false => {
                    let realm = format!("Bearer realm=\"http://{}/token\"", own.get().unwrap());
                    Answer::new(401, b"inner secret").header("www-authenticate", realm)
                }
            }
        });
        own.set(thief.host.clone()).unwrap();
        let there = thief.host.clone();
        let server = Server::of(made(1_000), move |asked, _, good| {
            match (by_redirect, asked.path.contains("/blobs/")) {
                (true, true) => {
                    Answer::new(307, b"").header("location", format!("http://{there}/x"))
                }
                (false, _) if asked.authorization.is_none() => Answer::new(401, b"").header(
                    "www-authenticate",
                    format!("Bearer realm=\"http://{there}/token\""),
                ),
                _ => good,
            }
        });
        let pulled = pull_with(&store, &server.host, "x:1", &named());
        assert_eq!(pulled.is_ok(), !by_redirect, "{pulled:?}");
        if let Err(error) = pulled {
            assert!(!error.to_string().contains("inner secret"), "{error}");
        }
        let asked = thief.asked("");
        assert!(!asked.is_empty());
        let proofs = asked.iter().filter(|one| one.authorization.is_some());
        assert_eq!(proofs.count(), 0, "{asked:?}");
    }
}

/// P80: ten who want one image do the work once: one download, one unpacking.
#[test]
fn p80_ten_pulls_at_once_do_the_work_once() {
    let ground = Ground::new();
    let store = ground.store();
    let made = made(2_000_000);
    let path = layer(&made);
    let server = Server::of(made, {
        let path = path.clone();
        move |asked, _, good| {
            if asked.path.ends_with(&path) {
                std::thread::sleep(Duration::from_millis(300));
            }
            good
        }
    });
    let told = Told::default();
    let reference = Reference::parse(&format!("{}/x:1", server.host)).unwrap();
    std::thread::scope(|threads| {
        let all: Vec<_> = (0..10)
            .map(|_| threads.spawn(|| store.pull(&Scope::host(), &reference, &options(), &told)))
            .collect();
        for one in all {
            one.join().unwrap().unwrap();
        }
    });
    assert_eq!(server.count(&path), 1);
    let told = told.0.lock().unwrap();
    let unpacked = told
        .iter()
        .filter(|one| matches!(one, Progress::Unpacked(_)))
        .count();
    assert_eq!(unpacked, 1);
}

/// P80: one tag with two contents at the same time: each pull has one of them whole.
#[test]
fn p80_a_tag_that_moves_gives_one_content_or_the_other() {
    let ground = Ground::new();
    let store = ground.store();
    let [one, two] = [made(40_000), made(50_000)];
    let digests = [one.digest(), two.digest()];
    let server = Server::start(move |asked, before| {
        if asked.path.ends_with("/manifests/1") {
            return right(if before % 2 == 0 { &one } else { &two }, asked);
        }
        match right(&one, asked) {
            Answer { status: 404, .. } => right(&two, asked),
            good => good,
        }
    });
    std::thread::scope(|threads| {
        for _ in 0..6 {
            threads.spawn(|| {
                let image = pull(&store, &server.host, "x:1").unwrap();
                assert!(digests.contains(&image.digest));
                assert!(store.verify(&image).unwrap().is_empty());
            });
        }
    });
    let named = store
        .find(&Scope::host(), &format!("{}/x:1", server.host))
        .unwrap();
    assert!(digests.contains(&named.digest));
}

/// What is read takes some hundred bytes for each value, however few bytes a value is.
#[test]
fn a_document_of_few_bytes_and_many_values_is_refused_before_it_is_read() {
    let index = |count: usize| {
        let entries = vec!["[]"; count].join(",");
        format!(
            r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{entries}]}}"#
        )
    };
    let told = |count| {
        let parsed = leasehold_image::document::Document::parse(index(count).as_bytes(), None);
        parsed.unwrap_err().to_string()
    };
    assert!(told(150_000).contains("more than 200000 values"));
    let few = told(10);
    assert!(!few.contains("values"), "{few}");
}
