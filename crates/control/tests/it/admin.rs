//! Tools, policies and tenants over the store, and what admission makes of them.

use leasehold_control::admission::{Case, gather, resolve, unbuilt};
use leasehold_control::archive::{self, Entry};
use leasehold_control::control::Control;
use leasehold_control::engine::modules::NoTemplates;
use leasehold_control::engine::parts::{Doing, Objects};
use leasehold_control::image::NoImages;
use leasehold_control::policies::Named;
use leasehold_control::request::{RunRequest, ToolWish};
use leasehold_control::{policies, tenants, tools};
use leasehold_core::digest::Digest;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::RunId;
use leasehold_core::isolation::Isolation;
use leasehold_core::name::ToolRef;
use leasehold_core::policy::Scope;
use leasehold_core::select::{Abilities, Offer, Runtime};
use leasehold_core::spec::WorkspaceMode;
use leasehold_core::tenant::{Principal, Role};
use leasehold_store::seam::{Store, ToolState};

use crate::scratch::{NOW, Scratch, name};

const INHERIT: &str = "version: 1\nallow: {tools: inherit, commands: inherit, permissions: inherit, egress: inherit, credentials: inherit, workspaces: inherit, trust: inherit, backends: inherit, placement: inherit}\n";

fn manifest(version: &str, more: &str) -> String {
    format!(
        "id: text.wordcount\nversion: {version}\nentrypoint: {{runtime: python, file: main.py}}\nsandbox: {{trust: first_party}}\n{more}"
    )
}

fn package(file: &str) -> Vec<u8> {
    let content = Entry::File {
        executable: false,
        content: b"print(1)\n".to_vec(),
    };
    archive::pack(&[(format!(".tool/{file}"), content)].into()).unwrap()
}

fn publication(version: &str, more: &str) -> tools::Publication {
    tools::check(
        manifest(version, more).as_bytes(),
        Some(&package("main.py")),
    )
    .unwrap()
}

fn scope(text: &str) -> Scope {
    Scope::parse(text).unwrap()
}

fn offers() -> Vec<Offer> {
    let mut offers = vec![Offer {
        backend: "process".to_owned(),
        isolation: Isolation::Process,
        runtime: Runtime::Command,
        zone: "local".to_owned(),
        cost: 0,
        state: Ok(Abilities {
            host_system: true,
            workspaces: vec![WorkspaceMode::Ephemeral, WorkspaceMode::Clone],
            ..Abilities::default()
        }),
    }];
    offers.extend(unbuilt(&offers));
    offers
}

async fn admit(
    scratch: &Scratch,
    who: &Principal,
    request: &str,
) -> Result<leasehold_control::plan::Plan, leasehold_core::error::PublicError> {
    let request = RunRequest::parse(request.as_bytes())?;
    let known = gather(&scratch.store, &NoTemplates, &NoImages, who, &request).await?;
    let case = Case {
        who,
        request: &request,
        known: &known,
    };
    resolve(case, &offers(), RunId::from_entropy(&[5; 13]))
}

#[tokio::test]
async fn a_published_version_never_changes_and_the_newest_active_one_is_taken() {
    let scratch = Scratch::new().await;
    let (store, who) = (&scratch.store, &scratch.operator);
    for version in ["1.0.0", "1.10.0", "1.9.0", "2.0.0-rc.1"] {
        tools::publish(store, who, NOW, &publication(version, ""))
            .await
            .unwrap();
    }
    // The same again is answered; another manifest under the same version is refused.
    let first = tools::publish(store, who, NOW + 5, &publication("1.0.0", ""))
        .await
        .unwrap();
    assert_eq!(first.published_unix_ms, NOW);
    let other = publication("1.0.0", "description: another\n");
    assert_eq!(
        tools::publish(store, who, NOW, &other)
            .await
            .unwrap_err()
            .kind,
        ErrorKind::Exists
    );

    let newest = async |text: &str| {
        let row = tools::get(store, who, &ToolWish::parse(text).unwrap()).await?;
        Ok::<_, leasehold_core::error::PublicError>(row.tool.to_string())
    };
    assert_eq!(
        newest("text.wordcount").await.unwrap(),
        "text.wordcount@1.10.0"
    );
    assert_eq!(
        newest("text.wordcount@2.0.0-rc.1").await.unwrap(),
        "text.wordcount@2.0.0-rc.1"
    );
    for (version, state) in [
        ("1.10.0", ToolState::Quarantined),
        ("1.9.0", ToolState::Deprecated),
        ("1.0.0", ToolState::Deprecated),
    ] {
        let tool = ToolRef::parse(&format!("text.wordcount@{version}")).unwrap();
        let row = tools::set_state(store, who, NOW, &tool, state, Some("why".into()))
            .await
            .unwrap();
        assert_eq!((row.state, row.note.as_deref()), (state, Some("why")));
    }
    let none = newest("text.wordcount").await.unwrap_err();
    assert!(
        none.hint
            .unwrap()
            .contains("text.wordcount@1.10.0 (quarantined)")
    );
    let nothing = newest("nothing").await.unwrap_err();
    assert_eq!(nothing.message, "no such tool");
    assert!(nothing.hint.unwrap().contains("`leasehold tool ls`"));
    // Another tenant's tool is not there.
    let (_, theirs) = scratch.key("acme", Role::Developer).await;
    let hidden = tools::get(store, &theirs, &ToolWish::parse("text.wordcount").unwrap()).await;
    assert_eq!(hidden.unwrap_err().message, "no such tool");
    let (_, runner) = scratch.key("acme", Role::Runner).await;
    let refused = tools::publish(store, &runner, NOW, &publication("3.0.0", "")).await;
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Forbidden);
}

#[tokio::test]
async fn a_package_must_hold_the_entrypoint_and_nothing_outside_its_place() {
    let text = manifest("1.0.0", "");
    let refused =
        |package: Option<&[u8]>| tools::check(text.as_bytes(), package).unwrap_err().message;
    assert!(refused(None).contains("no files came along"));
    assert!(refused(Some(&package("other.py"))).contains("not among the tool's files"));
    assert!(refused(Some(b"x")).contains("no plain tar archive"));
    let stray = Entry::File {
        executable: true,
        content: Vec::new(),
    };
    let stray = archive::pack(&[("bin/sh".to_owned(), stray)].into()).unwrap();
    assert!(refused(Some(&stray)).contains("is not below `.tool`"));
    let good = tools::check(text.as_bytes(), Some(&package("main.py"))).unwrap();
    assert_eq!(
        good.manifest.package,
        Some(leasehold_core::digest::Digest::of(&package("main.py")))
    );
}

/// Objects of which nothing is known but that each has so many bytes.
struct Sized(u64);

impl Objects for Sized {
    fn put(&self, _: std::fs::File, _: u64) -> Doing<'_, Digest> {
        unreachable!("nothing is kept")
    }

    fn read(&self, _: Digest, _: u64, _: usize) -> Doing<'_, Vec<u8>> {
        unreachable!("nothing is read")
    }

    fn size(&self, _: Digest) -> Doing<'_, Option<u64>> {
        Box::pin(std::future::ready(Ok(Some(self.0))))
    }

    fn list(&self, _: u8, _: std::time::Duration) -> Doing<'_, Vec<Digest>> {
        unreachable!("nothing is listed")
    }

    fn remove(&self, _: Digest, _: std::time::Duration) -> Doing<'_, bool> {
        unreachable!("nothing is removed")
    }
}

#[tokio::test]
async fn the_packages_of_a_tenant_are_bounded_and_each_counts_once() {
    let scratch = Scratch::new().await;
    let (store, operator) = (&scratch.store, &scratch.operator);
    for version in ["1.0.0", "1.0.1"] {
        tools::publish(store, operator, NOW, &publication(version, ""))
            .await
            .unwrap();
    }
    let room = async |tenant: &str, each: u64, package: &[u8]| {
        tools::room(store, &Sized(each), &name(tenant), package)
            .await
            .map_err(|error| error.kind)
    };
    let all = tools::PACKAGES_MAX;
    // Both versions have one package: it counts once.
    assert_eq!(room("default", all - 3, b"new").await, Ok(()));
    assert_eq!(
        room("default", all - 2, b"new").await,
        Err(ErrorKind::Quota)
    );
    // The same bytes again take no room, and another tenant's are its own.
    assert_eq!(room("default", all, &package("main.py")).await, Ok(()));
    assert_eq!(room("acme", all, b"new").await, Ok(()));
}

#[tokio::test]
async fn policies_are_versioned_strict_and_in_force_at_once() {
    let scratch = Scratch::new().await;
    let store = &scratch.store;
    let (_, admin) = scratch.key("acme", Role::Admin).await;
    let publish = async |who: &Principal, at: &str, text: &str| {
        policies::publish(store, who, NOW, scope(at), text.as_bytes()).await
    };
    // Until somebody publishes, the built-in one holds, and is a document like any other.
    let built_in = policies::get(store, &admin, Scope::Platform, None)
        .await
        .unwrap();
    assert_eq!(built_in.version, 0);
    // p43: what is not understood is refused at publication, and nothing changes.
    for (text, told) in [
        ("version: 1\nallow: {egress: [\n", "no valid YAML"),
        (
            "version: 1\nallow: {egres: []}\n",
            "allow.egres: unknown field",
        ),
        (
            "version: 1\nallow: {egress: all}\n",
            "allow.egress: \"all\"",
        ),
        ("version: 1\nversion: 1\n", "twice"),
        ("[]", "expected a map"),
    ] {
        let error = publish(&admin, "tenant/acme", text).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert!(error.message.contains(told), "{text}: {error}");
    }
    assert!(
        policies::in_force(store, scope("tenant/acme"))
            .await
            .unwrap()
            .is_none()
    );
    for version in 1..=3 {
        let text = format!("{INHERIT}limits: {{pids: {version}}}\n");
        assert_eq!(
            publish(&admin, "tenant/acme", &text).await.unwrap().version,
            version
        );
    }
    let second = policies::get(store, &admin, scope("tenant/acme"), Some(2))
        .await
        .unwrap();
    assert_eq!(second.version, 2);
}

#[tokio::test]
async fn who_may_publish_which_policy_and_see_it() {
    let scratch = Scratch::new().await;
    let (store, operator) = (&scratch.store, &scratch.operator);
    let (_, admin) = scratch.key("acme", Role::Admin).await;
    let publish = async |who: &Principal, at: &str, text: &str| {
        policies::publish(store, who, NOW, scope(at), text.as_bytes()).await
    };
    let (_, developer) = scratch.key("acme", Role::Developer).await;
    for (who, at, kind) in [
        (&developer, "tenant/acme", ErrorKind::Forbidden),
        (&admin, "platform", ErrorKind::Forbidden),
        (&admin, "platform/tenant/acme", ErrorKind::Forbidden),
        (&admin, "platform/tenant/default", ErrorKind::Forbidden),
        (&admin, "tenant/default", ErrorKind::NotFound),
    ] {
        assert_eq!(
            publish(who, at, INHERIT).await.unwrap_err().kind,
            kind,
            "{at}"
        );
    }
    let first_party = format!("{INHERIT}trust: {{commands: first_party}}\n");
    let refused = publish(&admin, "tenant/acme", &first_party)
        .await
        .unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Invalid);
    assert_eq!(
        refused.message,
        "policy: trust.commands: first_party: a document of a tenant can only lower trust, and the operator gives `untrusted` here"
    );
    assert!(refused.hint.unwrap().contains("`platform/tenant/acme`"));
    // Nor does it give anything when the operator writes it there.
    assert!(
        publish(operator, "tenant/acme", &first_party)
            .await
            .is_err()
    );
    let given = publish(operator, "platform/tenant/acme", &first_party).await;
    assert_eq!(given.unwrap().version, 1);
    let lowered = first_party.replace("first_party", "verified");
    let lowered = publish(&admin, "tenant/acme", &lowered).await;
    assert_eq!(lowered.unwrap().version, 1);
    // Each one is in the tenant's log.
    let log = store.log(name("acme"), 0).await.unwrap();
    let published = log.iter().filter(|entry| {
        matches!(
            &entry.fact,
            leasehold_core::event::TenantFact::PolicyPublished { .. }
        )
    });
    assert_eq!(published.count(), 2);
    let mine: Vec<String> = policies::list(store, &admin)
        .await
        .unwrap()
        .iter()
        .map(|level| level.title())
        .collect();
    assert_eq!(
        mine,
        [
            "platform (built in)",
            "platform/tenant/acme (version 1)",
            "tenant/acme (version 1)"
        ]
    );
    assert_eq!(
        policies::get(store, &admin, scope("tenant/default"), None)
            .await
            .unwrap_err()
            .message,
        "no such policy"
    );
}

#[tokio::test]
async fn what_the_operator_says_of_a_tenant_is_read_there_and_nowhere_else() {
    let scratch = Scratch::new().await;
    let store = &scratch.store;
    let (_, admin) = scratch.key("acme", Role::Admin).await;
    let at = scope("platform/tenant/acme");
    policies::publish(store, &scratch.operator, NOW, at, INHERIT.as_bytes())
        .await
        .unwrap();
    let (_, stranger) = scratch.key("default", Role::Admin).await;
    for (who, seen) in [(&admin, true), (&stranger, false)] {
        let got = policies::get(store, who, scope("platform/tenant/acme"), None).await;
        assert_eq!(got.is_ok(), seen);
    }
}

/// A tenant's own administrator, with every scope that is the tenant's, against what the operator says.
#[tokio::test]
async fn a_tenant_cannot_replace_what_the_operator_says_of_it() {
    let scratch = Scratch::new().await;
    let (store, operator) = (&scratch.store, &scratch.operator);
    let (_, admin) = scratch.key("acme", Role::Admin).await;
    let publish = async |who: &Principal, at: &str, text: &str| {
        policies::publish(store, who, NOW, scope(at), text.as_bytes()).await
    };
    let narrow = format!(
        "{INHERIT}limits: {{memory: 64M}}\nshare: {{running: 3, queued: 5, per_minute: 7, weight: 2}}\ntrust: {{commands: first_party}}\n"
    );
    publish(operator, "platform/tenant/acme", &narrow)
        .await
        .unwrap();
    let command = r#"{"command":["true"]}"#;
    let before = admit(&scratch, &admin, command).await.unwrap();
    assert_eq!(before.share.tenant_running_max, 3);
    assert_eq!(before.share.weight, 2);
    let wide = "share: {running: 1000, queued: 1000, per_minute: 1000, priority: 1000}\nlimits: {memory: 4G}\n";
    publish(&admin, "tenant/acme", &format!("{INHERIT}{wide}"))
        .await
        .unwrap();
    let wide = "share: {priority: 1000, max_wait: 1h}\nlimits: {memory: 4G}\n";
    for at in ["project/default", "principal/ann"] {
        publish(
            &admin,
            &format!("tenant/acme/{at}"),
            &format!("{INHERIT}{wide}"),
        )
        .await
        .unwrap();
    }
    let heavy = format!("{INHERIT}share: {{weight: 1000}}\n");
    let weight = publish(&admin, "tenant/acme", &heavy).await.unwrap_err();
    assert_eq!(weight.kind, ErrorKind::Invalid);
    assert!(
        weight.message.contains(
            "share.weight: 1000: says how tenants stand to each other; only the operator"
        ),
        "{weight}"
    );
    let after = admit(&scratch, &admin, command).await.unwrap();
    assert_eq!(after.share, before.share);
    let memory = after.contract.limits.memory_bytes.value;
    assert_eq!(memory, before.contract.limits.memory_bytes.value);
    assert_eq!(memory, 64 << 20);
    let more = r#"{"command":["true"],"limits":{"memory":"65M"}}"#;
    let refused = admit(&scratch, &admin, more).await.err().unwrap();
    assert!(
        refused.message.contains("platform/tenant/acme (version 1)"),
        "{refused}"
    );
    // Its own narrower word holds, and the control: the operator's wider one does.
    publish(
        &admin,
        "tenant/acme",
        &format!("{INHERIT}share: {{running: 1}}\n"),
    )
    .await
    .unwrap();
    let less = admit(&scratch, &admin, command).await.unwrap();
    assert_eq!(less.share.tenant_running_max, 1);
    let wider = narrow.replace("memory: 64M", "memory: 128M");
    publish(operator, "platform/tenant/acme", &wider)
        .await
        .unwrap();
    assert!(admit(&scratch, &admin, more).await.is_ok());
}

#[tokio::test]
async fn p23_admission_over_the_store_refuses_what_no_backend_is_strong_enough_for() {
    let scratch = Scratch::new().await;
    let (store, operator) = (&scratch.store, &scratch.operator);
    tools::publish(store, operator, NOW, &publication("1.0.0", ""))
        .await
        .unwrap();
    let asked = r#"{"tool":"text.wordcount"}"#;
    let error = admit(&scratch, operator, asked).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert!(
        error
            .message
            .contains("backend `gvisor`: this build has no such backend yet"),
        "{error}"
    );
    // The operator vouches: the next run is admitted and its contract names the document.
    let text = format!("{INHERIT}trust: {{tools: {{'*': first_party}}}}\n");
    policies::publish(
        store,
        operator,
        NOW,
        scope("platform/tenant/default"),
        text.as_bytes(),
    )
    .await
    .unwrap();
    let plan = admit(&scratch, operator, asked).await.unwrap();
    let used: Vec<String> = plan
        .contract
        .policies
        .iter()
        .map(|used| format!("{} {}", used.scope, used.version))
        .collect();
    assert_eq!(used, ["platform 0", "platform/tenant/default 1"]);
    assert_eq!(
        plan.contract.manifest,
        Some(publication("1.0.0", "").digest)
    );
    // A floor of the platform is not undone by anybody below.
    let floor = policies::built_in_text(&Scope::Platform)
        .unwrap()
        .replace("isolation_floor: process", "isolation_floor: microvm");
    policies::publish(store, operator, NOW, Scope::Platform, floor.as_bytes())
        .await
        .unwrap();
    let error = admit(&scratch, operator, asked).await.err().unwrap();
    assert!(
        error
            .message
            .contains("isolation `microvm` is needed (the policy's floor demands it)"),
        "{error}"
    );
}

#[tokio::test]
async fn who_may_start_nothing_is_refused_before_anything_is_looked_at() {
    let scratch = Scratch::new().await;
    let (store, operator) = (&scratch.store, &scratch.operator);
    let command = r#"{"command":["true"]}"#;
    assert!(admit(&scratch, operator, command).await.is_ok());
    let (_, auditor) = scratch.key("default", Role::Auditor).await;
    assert_eq!(
        admit(&scratch, &auditor, command).await.err().unwrap().kind,
        ErrorKind::Forbidden
    );
    // Nobody vouches for the commands of another tenant.
    let (_, runner) = scratch.key("acme", Role::Runner).await;
    let error = admit(&scratch, &runner, command).await.err().unwrap();
    assert!(
        error.message.contains("trust class `untrusted` demands it"),
        "{error}"
    );
    tenants::suspend(store, operator, NOW, &name("default"), true)
        .await
        .unwrap();
    let error = admit(&scratch, operator, command).await.err().unwrap();
    assert_eq!(
        error.message,
        "the tenant is suspended: it may start nothing"
    );
    assert!(
        error
            .hint
            .unwrap()
            .contains("`leasehold tenant resume default`")
    );
    tenants::suspend(store, operator, NOW, &name("default"), false)
        .await
        .unwrap();
    assert!(admit(&scratch, operator, command).await.is_ok());
    let (_, admin) = scratch.key("acme", Role::Admin).await;
    assert_eq!(
        tenants::create(store, &admin, NOW, name("b"), Vec::new())
            .await
            .unwrap_err()
            .kind,
        ErrorKind::Forbidden
    );
    assert_eq!(
        tenants::get(store, &admin, &name("default"))
            .await
            .unwrap_err(),
        tenants::get(store, &admin, &name("nobody"))
            .await
            .unwrap_err()
    );
    assert_eq!(tenants::list(store, &admin).await.unwrap().len(), 1);
    assert_eq!(tenants::list(store, operator).await.unwrap().len(), 2);
    let again = tenants::create(store, operator, NOW, name("acme"), Vec::new()).await;
    assert_eq!(again.unwrap_err().kind, ErrorKind::Exists);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_is_told_what_holds_for_another_tenant_and_nobody_else_is() {
    let world = crate::world::World::new().await;
    let control = Control::new(world.engine(1).await);
    let mut operator = crate::world::who("acme");
    operator.role = Role::Operator;
    let limits = "version: 1\nlimits: {memory: 64M}\n";
    let at = "platform/tenant/globex";
    control.put_policy(&operator, at, limits).await.unwrap();
    let of = |tenant: &str| Named {
        tenant: Some(name(tenant)),
        ..Named::default()
    };
    let set_by = async |who: &Principal, named: Named| {
        let explained = control.explain_policy(who, named).await?;
        let all = explained.into_iter().flat_map(|value| value.set_by);
        Ok::<_, PublicError>(all.filter(|by| by.contains("globex")).count())
    };
    assert!(set_by(&operator, of("globex")).await.unwrap() > 0);
    assert_eq!(set_by(&operator, Named::default()).await.unwrap(), 0);
    // Whoever is of the tenant needs no name; for all others it is not there, as one that is not.
    let globex = crate::world::who("globex");
    assert!(set_by(&globex, Named::default()).await.unwrap() > 0);
    let refused = async |who: &Principal, tenant| set_by(who, of(tenant)).await.unwrap_err();
    let acme = crate::world::who("acme");
    let foreign = refused(&acme, "globex").await;
    assert_eq!(foreign.kind, ErrorKind::NotFound);
    assert_eq!(foreign, refused(&acme, "nobody").await);
    assert_eq!(refused(&operator, "nobody").await.kind, ErrorKind::NotFound);
}
