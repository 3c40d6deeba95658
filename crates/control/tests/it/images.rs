//! Runs and tools in images through the whole control plane, at a worker whose images are made up.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_backend::seam::ImageFiles;
use leasehold_control::control::{Control, Until};
use leasehold_control::engine::Engine;
use leasehold_control::engine::parts::Doing;
use leasehold_control::image::{ImageName, ImageStart, Images, Mounted, Pull};
use leasehold_control::request::RunRequest;
use leasehold_core::digest::Digest;
use leasehold_core::end::{CancelledBy, EndReason};
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::event::{RunFact, TenantFact};
use leasehold_core::image::{ImageSpec, LayerName, RootDirectory, User};
use leasehold_core::name::Name;
use leasehold_core::outcome::RunState;
use leasehold_core::run_contract::Rootfs;
use leasehold_core::tenant::{Principal, Role, Tenant};
use leasehold_store::seam::{Change, RunRow, Store};

use crate::world::{World, end, name, sealed, who};

/// One registry, whose tag is moved by the test.
#[derive(Default)]
struct Made {
    asked: AtomicU32,
    mounts: AtomicU32,
    tag: Mutex<Vec<u8>>,
    here: Mutex<Vec<Digest>>,
    takes: Mutex<Duration>,
    fault: Mutex<Option<PublicError>>,
}

impl Made {
    fn stands_for(&self) -> Digest {
        Digest::of(&self.tag.lock().unwrap())
    }
}

impl Images for Made {
    fn name(&self, text: &str) -> Result<ImageName, PublicError> {
        let repository = text.split(['@', ':']).next().unwrap_or_default();
        Ok(ImageName {
            full: text.to_owned(),
            repository: repository.to_owned(),
        })
    }

    fn resolve(&self, _: Name, name: String, _: Pull) -> Doing<'_, Digest> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let fixed = name.rsplit_once('@');
        let digest = fixed.map_or_else(
            || self.stands_for(),
            |(_, digest)| Digest::parse(digest).unwrap(),
        );
        Box::pin(std::future::ready(Ok(digest)))
    }

    fn here(&self, _: Name, digest: Digest) -> Doing<'_, bool> {
        let here = self.here.lock().unwrap().contains(&digest);
        Box::pin(std::future::ready(Ok(here)))
    }

    fn bring(&self, _: Name, image: ImageStart) -> Doing<'_, ()> {
        Box::pin(async move {
            let takes = *self.takes.lock().unwrap();
            tokio::time::sleep(takes).await;
            if let Some(error) = self.fault.lock().unwrap().clone() {
                return Err(error);
            }
            self.here.lock().unwrap().push(image.digest);
            Ok(())
        })
    }

    fn mount(&self, _: Name, image: ImageStart) -> Doing<'_, Mounted> {
        self.mounts.fetch_add(1, Ordering::Relaxed);
        let null = || File::open("/dev/null").unwrap().into();
        let mounted = Mounted {
            spec: ImageSpec {
                digest: image.digest,
                layers: vec![LayerName {
                    digest: image.digest,
                    leans: false,
                }],
                root: RootDirectory {
                    mode: 0o755,
                    uid: 0,
                    gid: 0,
                },
                owners: true,
                user: User {
                    uid: 1_000,
                    gid: 1_000,
                },
                home: true,
            },
            env: BTreeMap::from([("OF_THE_IMAGE".to_owned(), "1".to_owned())]),
            cwd: None,
            files: ImageFiles {
                layers: null(),
                lease: null(),
            },
        };
        Box::pin(std::future::ready(Ok(mounted)))
    }
}

struct Rig {
    world: World,
    made: Arc<Made>,
    control: Control,
}

fn operator() -> Principal {
    Principal {
        role: Role::Operator,
        ..who("default")
    }
}

fn policy(images: &str) -> String {
    format!(
        "version: 1\nallow: {{tools: inherit, commands: inherit, permissions: inherit, egress: inherit, \
         credentials: inherit, workspaces: inherit, trust: inherit, backends: inherit, placement: inherit{images}}}\n\
         trust: {{commands: first_party, tools: {{t.one: first_party}}}}\n"
    )
}

impl Rig {
    async fn new() -> Self {
        let world = World::new().await;
        let row = Tenant {
            name: name("default"),
            created_unix_ms: 1,
            suspended: false,
            projects: vec![name("default")],
        };
        let change = (Change::CreateTenant(row), TenantFact::TenantCreated);
        let changed = world.store.change(name("default"), None, 1, vec![change]);
        changed.await.unwrap();
        let made = Arc::new(Made::default());
        let mut parts = world.parts(4);
        parts.images = made.clone();
        let control = Control::new(Engine::start(parts).await.unwrap());
        let rig = Self {
            world,
            made,
            control,
        };
        rig.allow(", images: [\"r.example/team/*\"]").await;
        rig
    }

    async fn allow(&self, images: &str) {
        let scope = "platform/tenant/default";
        let (who, policy) = (operator(), policy(images));
        let put = self.control.put_policy(&who, scope, &policy);
        put.await.unwrap();
    }

    async fn begin(&self, request: &str) -> Result<RunRow, PublicError> {
        let request = RunRequest::parse(request.as_bytes())?;
        let me = who("default");
        Ok(self.control.submit(&me, request, None, None).await?.row)
    }

    async fn run(&self, request: &str) -> Result<RunRow, PublicError> {
        let row = self.begin(request).await?;
        Ok(sealed(&self.control, "default", &row.run).await)
    }

    async fn pulling(&self, row: &RunRow) {
        let pulling = |fact: &RunFact| matches!(fact, RunFact::Pulling { .. });
        while !self.world.facts(&row.run).await.iter().any(pulling) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

const REQUEST: &str = r#"{"image":"r.example/team/tool:1","command":["true"]}"#;

fn leased(facts: &[RunFact]) -> bool {
    let leased = |fact: &RunFact| matches!(fact, RunFact::Leased { .. });
    facts.iter().any(leased)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tag_is_resolved_once_and_time_at_the_pull_is_no_time_of_the_run() {
    let rig = Rig::new().await;
    *rig.made.takes.lock().unwrap() = Duration::from_millis(1_500);
    let digest = rig.made.stands_for();
    let limits =
        r#""limits":{"timeout":"500ms","grace":"100ms"},"lifetimes":{"hard_deadline":"1s"}"#;
    let request = format!(
        r#"{{"image":"r.example/team/tool:1","command":["true"],"max_wait":"1s",{limits}}}"#
    );
    let row = rig.begin(&request).await.unwrap();
    rig.pulling(&row).await;
    // What the tag stands for tomorrow is nothing to this run.
    *rig.made.tag.lock().unwrap() = b"moved".to_vec();
    let row = sealed(&rig.control, "default", &row.run).await;
    assert_eq!(end(&row), EndReason::Completed);
    let facts = rig.world.facts(&row.run).await;
    let place = |which: fn(&RunFact) -> bool| facts.iter().position(which).unwrap();
    let pulling = place(|fact| matches!(fact, RunFact::Pulling { .. }));
    let pulled =
        place(|fact| matches!(fact, RunFact::Pulled { micros, .. } if *micros >= 1_500_000));
    let leased = place(|fact| matches!(fact, RunFact::Leased { .. }));
    assert!(pulling < pulled && pulled < leased, "{facts:?}");
    let contract = rig.control.contract(&who("default"), &row.run).await;
    let contract = contract.unwrap();
    assert_eq!(contract.selected.rootfs, Rootfs::Image { digest });
    assert_eq!(contract.image.as_deref(), Some("r.example/team/tool:1"));
    let asked = rig.made.asked.load(Ordering::Relaxed);
    assert_eq!((asked, rig.made.mounts.load(Ordering::Relaxed)), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_waits_for_its_image_can_be_left_and_ended_and_leaves_nothing() {
    let rig = Rig::new().await;
    *rig.made.takes.lock().unwrap() = Duration::from_secs(600);
    let row = rig.begin(REQUEST).await.unwrap();
    rig.pulling(&row).await;
    let me = who("default");
    let waited = rig
        .control
        .wait(&me, &row.run, Until::Ended, Duration::from_millis(300));
    let waiting = waited.await.unwrap();
    assert_eq!(waiting.state, RunState::Queued);
    rig.world.assert_nothing_left().await;
    rig.control.cancel(&me, &row.run).await.unwrap();
    let row = sealed(&rig.control, "default", &row.run).await;
    let by = CancelledBy::Caller;
    assert_eq!(end(&row), EndReason::Cancelled { by });
    assert!(!leased(&rig.world.facts(&row.run).await));
    assert_eq!(rig.world.backend.begun(), []);
    rig.world.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_fails_is_the_runs_end_with_the_reason_and_the_mend() {
    let rig = Rig::new().await;
    let error = PublicError::new(ErrorKind::NotFound, "r.example answers 404");
    *rig.made.fault.lock().unwrap() = Some(error.hint("look at the spelling"));
    let row = rig.run(REQUEST).await.unwrap();
    let EndReason::SandboxUnavailable { detail } = end(&row) else {
        panic!("{row:?}");
    };
    for word in ["r.example/team/tool:1", "404", "look at the spelling"] {
        assert!(detail.contains(word), "{word}: {detail}");
    }
    assert!(!leased(&rig.world.facts(&row.run).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_registry_is_asked_for_a_run_that_is_refused() {
    let rig = Rig::new().await;
    let other = REQUEST.replace("team/", "teams/");
    let evil = REQUEST.replace("r.example/", "r.example.evil.org/");
    let strong = REQUEST.replace("\"command\"", "\"isolation\":\"gvisor\",\"command\"");
    for (request, kind) in [
        (&other, ErrorKind::Forbidden),
        (&evil, ErrorKind::Forbidden),
        (&strong, ErrorKind::Unsupported),
    ] {
        assert_eq!(
            rig.begin(request).await.unwrap_err().kind,
            kind,
            "{request}"
        );
    }
    // A list that is missing allows nothing.
    rig.allow("").await;
    let error = rig.begin(REQUEST).await.unwrap_err();
    assert!(error.message.contains("images"), "{error}");
    assert_eq!(rig.made.asked.load(Ordering::Relaxed), 0);
    rig.allow(", images: inherit").await;
    let row = rig.run(REQUEST).await.unwrap();
    assert_eq!(end(&row), EndReason::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_names_its_image_with_the_digest() {
    let rig = Rig::new().await;
    let me = who("default");
    let digest = Digest::of(b"an image");
    let manifest = |version: &str, image: &str| {
        format!(
            "id: t.one\nversion: {version}\nsandbox: {{trust: first_party}}\n\
             entrypoint: {{runtime: image, image: \"{image}\", argv: [\"true\"]}}\n"
        )
    };
    let tag = manifest("1.0.0", "r.example/team/tool:1");
    let error = rig.control.publish_tool(&me, tag.as_bytes(), None).await;
    let error = error.unwrap_err();
    assert!(error.message.contains("leasehold image pull"), "{error:?}");
    let named = manifest("1.0.0", &format!("r.example/team/tool:1@{digest}"));
    let published = rig.control.publish_tool(&me, named.as_bytes(), None);
    let warnings = published.await.unwrap().warnings;
    let barred = |text: &String| text.contains("no backend");
    assert!(!warnings.iter().any(barred), "{warnings:?}");
    let row = rig.run(r#"{"tool":"t.one"}"#).await.unwrap();
    assert_eq!(end(&row), EndReason::Completed);
    let contract = rig.control.contract(&me, &row.run).await.unwrap();
    assert_eq!(contract.selected.rootfs, Rootfs::Image { digest });
}

#[test]
fn what_does_not_go_with_an_image_is_told() {
    for (request, word) in [
        (r#"{"command":["x"],"pull":"never"}"#, "goes with `image`"),
        (r#"{"tool":"t.one","image":"a"}"#, "goes with `command`"),
        (
            r#"{"interpreter":"python","command":["x"],"image":"a"}"#,
            "goes not with",
        ),
        (r#"{"command":["x"],"image":"a b"}"#, "expected NAME"),
        (r#"{"command":["x"],"image":"a","pull":"often"}"#, "missing"),
    ] {
        let error = RunRequest::parse(request.as_bytes()).unwrap_err();
        assert!(format!("{error:?}").contains(word), "{request}: {error:?}");
    }
}
