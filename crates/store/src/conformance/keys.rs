//! Tenants, keys, tools, policies, workers and kept results.

use leasehold_core::digest::Digest;
use leasehold_core::event::TenantFact;
use leasehold_core::id::WorkerId;
use leasehold_core::name::{Name, ToolRef};
use leasehold_core::tenant::{Role, Tenant};

use super::{Case, Failed, World, equal, holds, refused};
use crate::seam::{
    Change, KEYS_KEPT_MAX, KeyRow, POLICY_VERSIONS_MAX, PolicyRow, StoreError, TOOL_VERSIONS_MAX,
    ToolRow, ToolState, WorkerRow,
};

pub(super) fn key_row(world: &World, tenant: &Name) -> Result<KeyRow, Failed> {
    Ok(KeyRow {
        key: world.key(),
        secret: Digest::of(b"secret"),
        tenant: tenant.clone(),
        project: Name::parse("default")?,
        principal: Name::parse("someone")?,
        role: Role::Developer,
        grants: vec!["net.fetch".to_owned()],
        created_unix_ms: 5,
        expires_unix_ms: Some(500),
        revoked_unix_ms: None,
    })
}

pub(super) fn tool_row(tenant: &Name, tool: &str, manifest: &str) -> Result<ToolRow, Failed> {
    Ok(ToolRow {
        tenant: tenant.clone(),
        tool: ToolRef::parse(tool)?,
        manifest: manifest.as_bytes().to_vec(),
        digest: Digest::of(manifest.as_bytes()),
        state: ToolState::Active,
        note: None,
        published_unix_ms: 5,
    })
}

pub(super) fn policy_row(scope: &str, version: u64) -> PolicyRow {
    let document = format!("{{\"version\":{version}}}").into_bytes();
    PolicyRow {
        scope: scope.to_owned(),
        version,
        digest: Digest::of(&document),
        document,
        published_unix_ms: version,
    }
}

pub(super) async fn a_name_of_a_tenant_is_used_once(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let row = world.store.tenant(tenant.clone()).await?;
    let again = (Change::CreateTenant(row.clone()), TenantFact::TenantCreated);
    refused!(
        world.store.change(tenant.clone(), None, 2, vec![again]),
        StoreError::Exists("tenant")
    );
    let other = Tenant {
        name: Name::parse("other")?,
        ..row.clone()
    };
    let foreign = (Change::CreateTenant(other), TenantFact::TenantCreated);
    refused!(
        world.store.change(tenant.clone(), None, 2, vec![foreign]),
        StoreError::NotFound("tenant")
    );
    let suspended = Tenant {
        suspended: true,
        created_unix_ms: 99,
        ..row.clone()
    };
    let change = (
        Change::UpdateTenant(suspended),
        TenantFact::TenantSuspended { suspended: true },
    );
    world
        .store
        .change(tenant.clone(), None, 3, vec![change])
        .await?;
    let now = world.store.tenant(tenant).await?;
    equal!(
        (now.suspended, now.created_unix_ms),
        (true, row.created_unix_ms)
    );
    world.tenant("aaa").await?;
    let names: Vec<String> = world
        .store
        .tenants()
        .await?
        .iter()
        .map(|tenant| tenant.name.to_string())
        .collect();
    equal!(names, ["aaa", "acme"]);
    Ok(())
}

pub(super) async fn keys_are_revoked_once(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let other = world.tenant("other").await?;
    let row = key_row(world, &tenant)?;
    let made = (
        Change::CreateKey(row.clone()),
        TenantFact::KeyCreated {
            key: row.key.clone(),
            principal: row.principal.clone(),
        },
    );
    let change = |tenant: &Name, change| world.store.change(tenant.clone(), None, 5, vec![change]);
    refused!(change(&other, made.clone()), StoreError::NotFound("tenant"));
    change(&tenant, made.clone()).await?;
    refused!(change(&tenant, made), StoreError::Exists("key"));
    equal!(world.store.key(row.key.clone()).await?, row);
    let gone = (
        Change::RevokeKey(row.key.clone(), 77),
        TenantFact::KeyRevoked {
            key: row.key.clone(),
        },
    );
    refused!(change(&other, gone.clone()), StoreError::NotFound("key"));
    change(&tenant, gone.clone()).await?;
    refused!(change(&tenant, gone), StoreError::WrongState { .. });
    equal!(
        world.store.key(row.key.clone()).await?.revoked_unix_ms,
        Some(77)
    );
    equal!(world.store.keys(tenant).await?.len(), 1);
    equal!(world.store.keys(other).await?.len(), 0);
    refused!(world.store.key(world.key()), StoreError::NotFound("key"));
    Ok(())
}

pub(super) async fn tools_never_change(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let publish = |tool: &str, manifest: &str| -> Result<_, Failed> {
        let row = tool_row(&tenant, tool, manifest)?;
        let fact = TenantFact::ToolPublished {
            tool: row.tool.clone(),
            manifest: row.digest,
        };
        Ok(world.store.change(
            tenant.clone(),
            None,
            5,
            vec![(Change::PublishTool(row), fact)],
        ))
    };
    for tool in ["b@1.9.0", "b@1.10.0", "b@1.10.0-rc.1", "a@1.0.0"] {
        publish(tool, "{}")?.await?;
    }
    refused!(publish("a@1.0.0", "{}")?, StoreError::Exists("tool"));
    refused!(publish("a@1.0.0", "{\"x\":1}")?, StoreError::Exists("tool"));
    let listed: Vec<String> = world
        .store
        .tools(tenant.clone(), None)
        .await?
        .iter()
        .map(|row| row.tool.to_string())
        .collect();
    equal!(listed, ["a@1.0.0", "b@1.10.0", "b@1.10.0-rc.1", "b@1.9.0"]);
    let only = world
        .store
        .tools(tenant.clone(), Some(Name::parse("a")?))
        .await?;
    equal!(only.len(), 1);
    let tool = ToolRef::parse("a@1.0.0")?;
    let quarantine = |tool: ToolRef| {
        let fact = TenantFact::ToolState {
            tool: tool.clone(),
            state: "quarantined".to_owned(),
        };
        let change = Change::SetToolState(tool, ToolState::Quarantined, Some("why".into()));
        world
            .store
            .change(tenant.clone(), None, 6, vec![(change, fact)])
    };
    quarantine(tool.clone()).await?;
    let row = world.store.tool(tenant.clone(), tool).await?;
    equal!(
        (row.state, row.note.as_deref()),
        (ToolState::Quarantined, Some("why"))
    );
    equal!(row.manifest, b"{}".to_vec());
    refused!(
        quarantine(ToolRef::parse("a@2.0.0")?),
        StoreError::NotFound("tool")
    );
    let other = world.tenant("other").await?;
    refused!(
        world.store.tool(other, row.tool),
        StoreError::NotFound("tool")
    );
    Ok(())
}

pub(super) async fn policies_count_by_one(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let publish = |scope: &str, version: u64| {
        let row = policy_row(scope, version);
        let fact = TenantFact::PolicyPublished {
            scope: row.scope.clone(),
            version,
            digest: row.digest,
        };
        world.store.change(
            tenant.clone(),
            None,
            5,
            vec![(Change::PublishPolicy(row), fact)],
        )
    };
    equal!(world.store.policy("platform".into()).await?, None);
    for version in 1..=3 {
        publish("tenant/acme", version).await?;
    }
    publish("tenant/acme/tool/a", 1).await?;
    publish("platform/tenant/acme", 1).await?;
    publish("platform", 1).await?;
    for wrong in [0, 3, 5] {
        refused!(publish("tenant/acme", wrong), StoreError::Fork);
    }
    for foreign in [
        "tenant/acme2",
        "platform/tenant/other",
        "platform/tenant/acme/x",
        "tenant",
        "",
    ] {
        refused!(publish(foreign, 1), StoreError::NotFound("policy"));
    }
    equal!(
        world.store.policy("tenant/acme".into()).await?,
        Some(policy_row("tenant/acme", 3))
    );
    equal!(
        world.store.policy_version("tenant/acme".into(), 2).await?,
        policy_row("tenant/acme", 2)
    );
    refused!(
        world.store.policy_version("tenant/acme".into(), 4),
        StoreError::NotFound("policy")
    );
    let own = world.store.policies(Some(tenant)).await?;
    equal!(
        own,
        [
            policy_row("platform/tenant/acme", 1),
            policy_row("tenant/acme", 3),
            policy_row("tenant/acme/tool/a", 1)
        ]
    );
    equal!(world.store.policies(None).await?.len(), 4);
    Ok(())
}

/// The publication of one version.
fn publication(tenant: &Name, number: u64) -> Result<(Change, TenantFact), Failed> {
    let row = tool_row(tenant, &format!("text.count@1.0.{number}"), "{}")?;
    let fact = TenantFact::ToolPublished {
        tool: row.tool.clone(),
        manifest: row.digest,
    };
    Ok((Change::PublishTool(row), fact))
}

/// The same of a document.
fn document(scope: &str, version: u64) -> (Change, TenantFact) {
    let row = policy_row(scope, version);
    let fact = TenantFact::PolicyPublished {
        scope: row.scope.clone(),
        version,
        digest: row.digest,
    };
    (Change::PublishPolicy(row), fact)
}

pub(super) async fn what_a_tenant_publishes_is_bounded(world: &World) -> Case {
    let store = &world.store;
    let acme = world.tenant("acme").await?;
    let other = world.tenant("acme0").await?;
    let one = |tenant: &Name, change| store.change(tenant.clone(), None, 5, vec![change]);
    let all: Result<Vec<_>, _> = (0..TOOL_VERSIONS_MAX)
        .map(|at| publication(&acme, at))
        .collect();
    store.change(acme.clone(), None, 5, all?).await?;
    refused!(
        one(&acme, publication(&acme, TOOL_VERSIONS_MAX)?),
        StoreError::Quota {
            most: TOOL_VERSIONS_MAX,
            ..
        }
    );
    // What is there already says so, and nobody else is counted.
    refused!(
        one(&acme, publication(&acme, 0)?),
        StoreError::Exists("tool")
    );
    one(&other, publication(&other, 0)?).await?;
    let (own, project) = ("tenant/acme", "tenant/acme/project/web");
    let half = POLICY_VERSIONS_MAX / 2;
    for (scope, count) in [(own, half), (project, POLICY_VERSIONS_MAX - half)] {
        let all = (1..=count).map(|version| document(scope, version));
        store.change(acme.clone(), None, 5, all.collect()).await?;
    }
    refused!(
        one(&acme, document(own, half + 1)),
        StoreError::Quota {
            most: POLICY_VERSIONS_MAX,
            ..
        }
    );
    // The operator's word about the tenant is not the tenant's.
    one(&acme, document("platform/tenant/acme", 1)).await?;
    one(&other, document("tenant/acme0", 1)).await?;
    let in_force = store.policy(own.to_owned()).await?;
    equal!(in_force.map(|row| row.version), Some(half));
    Ok(())
}

pub(super) async fn keys_that_ended_are_forgotten_before_there_are_too_many(world: &World) -> Case {
    let store = &world.store;
    let acme = world.tenant("acme").await?;
    let made = |at: u64, revoked| -> Result<(KeyRow, (Change, TenantFact)), Failed> {
        let row = KeyRow {
            created_unix_ms: at,
            expires_unix_ms: None,
            revoked_unix_ms: revoked,
            ..key_row(world, &acme)?
        };
        let fact = TenantFact::KeyCreated {
            key: row.key.clone(),
            principal: row.principal.clone(),
        };
        Ok((row.clone(), (Change::CreateKey(row), fact)))
    };
    // The oldest of all is good, the one after it is not.
    let (good, first) = made(1, None)?;
    let (ended, second) = made(2, Some(3))?;
    let mut all = vec![first, second];
    for at in 3..=KEYS_KEPT_MAX {
        all.push(made(at, Some(at))?.1);
    }
    store.change(acme.clone(), None, 5, all).await?;
    equal!(store.keys(acme.clone()).await?.len() as u64, KEYS_KEPT_MAX);
    let (newest, last) = made(KEYS_KEPT_MAX + 1, None)?;
    store.change(acme.clone(), None, 6, vec![last]).await?;
    let kept = store.keys(acme.clone()).await?;
    equal!(kept.len() as u64, KEYS_KEPT_MAX);
    let there = |row: &KeyRow| kept.iter().any(|one| one.key == row.key);
    holds!(there(&good) && there(&newest) && !there(&ended));
    Ok(())
}

pub(super) async fn workers_and_results_are_kept(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let other = world.tenant("other").await?;
    let worker = |seen_unix_ms, capabilities: &str| WorkerRow {
        worker: WorkerId::from_entropy(&[3; 13]),
        capabilities: capabilities.to_owned(),
        seen_unix_ms,
    };
    world.store.put_worker(worker(5, "{}")).await?;
    world.store.put_worker(worker(9, "{\"cpus\":2}")).await?;
    equal!(world.store.workers().await?, [worker(9, "{\"cpus\":2}")]);
    let first = world.admit(&tenant).await?.run;
    let second = world.admit(&tenant).await?.run;
    let key = Digest::of(b"all that went in");
    equal!(world.store.cached(tenant.clone(), key).await?, None);
    world
        .store
        .put_cached(tenant.clone(), key, first.clone())
        .await?;
    world.store.put_cached(tenant.clone(), key, second).await?;
    equal!(world.store.cached(tenant, key).await?, Some(first.clone()));
    equal!(world.store.cached(other.clone(), key).await?, None);
    refused!(
        world.store.put_cached(other, key, first),
        StoreError::NotFound("run")
    );
    Ok(())
}
