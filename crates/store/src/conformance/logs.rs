//! The log of a tenant: whole, in order, and true to what was changed.

use leasehold_core::digest::Digest;
use leasehold_core::event::{Head, TenantFact};
use leasehold_core::id::RunId;
use leasehold_core::name::ToolRef;

use super::keys::{key_row, policy_row, tool_row};
use super::{Case, World, equal, refused};
use crate::seam::{Change, SignedHead, StoreError, ToolState};

pub(super) async fn a_log_links_what_happened(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let other = world.tenant("other").await?;
    let by = world.key();
    let key = key_row(world, &tenant)?;
    let made = TenantFact::KeyCreated {
        key: key.key.clone(),
        principal: key.principal.clone(),
    };
    let change = (Change::CreateKey(key), made.clone());
    world
        .store
        .change(tenant.clone(), Some(by.clone()), 5, vec![change])
        .await?;
    let life = world.finish(world.leased(&tenant).await?).await?;
    let entries = world.log(&tenant).await?;
    equal!(entries.len(), 4);
    equal!(entries[0].fact, TenantFact::TenantCreated);
    equal!((&entries[1].fact, &entries[1].by), (&made, &Some(by)));
    let sealed = TenantFact::RunSealed {
        run: life.run.clone(),
        head: life.chain.head(),
    };
    equal!((&entries[3].fact, entries[3].at_unix_ms), (&sealed, 50));
    equal!(
        world.store.log_of(life.run.clone()).await?,
        entries[2..].to_vec()
    );
    let open = world.admit(&other).await?.run;
    equal!(
        world.store.log_of(open).await?,
        world.log(&other).await?[1..].to_vec()
    );
    let unknown = RunId::from_entropy(&world.entropy());
    refused!(world.store.log_of(unknown), StoreError::NotFound("run"));
    world.whole_log(&tenant).await?;
    equal!(world.whole_log(&other).await?.count, 2);
    equal!(world.store.log(tenant, 3).await?, entries[3..].to_vec());
    Ok(())
}

pub(super) async fn changes_are_all_or_nothing(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let tool = tool_row(&tenant, "text.count@1.0.0", "{}")?;
    let published = TenantFact::ToolPublished {
        tool: tool.tool.clone(),
        manifest: tool.digest,
    };
    let policy = policy_row("tenant/acme", 2);
    let in_force = TenantFact::PolicyPublished {
        scope: policy.scope.clone(),
        version: 2,
        digest: policy.digest,
    };
    let changes = vec![
        (Change::PublishTool(tool.clone()), published),
        (Change::PublishPolicy(policy), in_force),
    ];
    refused!(
        world.store.change(tenant.clone(), None, 5, changes),
        StoreError::Fork
    );
    refused!(
        world.store.tool(tenant.clone(), tool.tool),
        StoreError::NotFound("tool")
    );
    equal!(world.log(&tenant).await?.len(), 1);
    Ok(())
}

pub(super) async fn an_entry_tells_of_its_change(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let key = key_row(world, &tenant)?;
    let tool = tool_row(&tenant, "text.count@1.0.0", "{}")?;
    let state = |state: &str| TenantFact::ToolState {
        tool: tool.tool.clone(),
        state: state.to_owned(),
    };
    let lies = vec![
        (
            Change::CreateKey(key.clone()),
            TenantFact::KeyCreated {
                key: world.key(),
                principal: key.principal.clone(),
            },
        ),
        (Change::RevokeKey(key.key, 1), TenantFact::TenantCreated),
        (
            Change::PublishTool(tool.clone()),
            TenantFact::ToolPublished {
                tool: ToolRef::parse("text.count@1.0.1")?,
                manifest: tool.digest,
            },
        ),
        (
            Change::SetToolState(tool.tool.clone(), ToolState::Quarantined, None),
            state("active"),
        ),
    ];
    for lie in lies {
        refused!(
            world.store.change(tenant.clone(), None, 5, vec![lie]),
            StoreError::WrongState {
                what: "log entry",
                ..
            }
        );
    }
    equal!(world.log(&tenant).await?.len(), 1);
    Ok(())
}

pub(super) async fn heads_only_grow(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let signed = |head: Head| SignedHead {
        tenant: tenant.clone(),
        head,
        envelope: format!("{{\"count\":{}}}", head.count),
    };
    equal!(world.store.signed_head(tenant.clone()).await?, None);
    let one = world.store.log_head(tenant.clone()).await?;
    world.admit(&tenant).await?;
    let two = world.store.log_head(tenant.clone()).await?;
    equal!((one.count, two.count), (1, 2));
    world.store.put_signed_head(signed(one)).await?;
    world.store.put_signed_head(signed(two)).await?;
    world.store.put_signed_head(signed(two)).await?;
    refused!(
        world.store.put_signed_head(signed(one)),
        StoreError::WrongState { .. }
    );
    for wrong in [
        Head {
            count: 3,
            digest: two.digest,
        },
        Head {
            count: 2,
            digest: Digest::of(b"x"),
        },
        Head::EMPTY,
    ] {
        refused!(world.store.put_signed_head(signed(wrong)), StoreError::Fork);
    }
    equal!(
        world.store.signed_head(tenant.clone()).await?,
        Some(signed(two))
    );
    Ok(())
}
