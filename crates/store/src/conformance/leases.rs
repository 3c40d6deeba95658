//! The right to a run: one holder, a growing epoch, and an old one refused everywhere.

use leasehold_core::event::RunFact;
use leasehold_core::id::LeaseId;
use leasehold_core::lease::{Epoch, LeaseState};
use leasehold_core::outcome::RunState;
use tokio::task::JoinSet;

use super::world::clean;
use super::{Case, Failed, World, equal, holds, refused};
use crate::seam::StoreError;

pub(super) async fn a_lease_is_the_next_epoch(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let waiting = world.admit(&tenant).await?;
    for wrong in [0, 2, 9] {
        let (mut lease, mut event, _) = world.lease(&waiting)?;
        lease.epoch = Epoch(wrong);
        event.epoch = lease.epoch;
        refused!(
            world.store.grant(lease, event),
            StoreError::Fenced {
                present: Epoch(0),
                ..
            }
        );
    }
    let (mut dead, event, _) = world.lease(&waiting)?;
    dead.state = LeaseState::Revoked;
    refused!(
        world.store.grant(dead, event),
        StoreError::WrongState { .. }
    );
    let (lease, event, life) = world.lease(&waiting)?;
    world.store.grant(lease.clone(), event).await?;
    let row = world.store.run(None, life.run.clone()).await?;
    equal!((row.state, row.epoch), (RunState::Running, Epoch(1)));
    equal!(world.store.open_leases().await?, vec![lease.clone()]);
    let (again, event, _) = world.lease(&life)?;
    refused!(
        world.store.grant(again, event),
        StoreError::WrongState {
            what: "lease",
            state: "active"
        }
    );
    let other = world.admit(&tenant).await?;
    let (mut same, event, _) = world.lease(&other)?;
    same.id = lease.id;
    refused!(world.store.grant(same, event), StoreError::Exists("lease"));
    let done = world.finish(life).await?;
    let (late, event, _) = world.lease(&done)?;
    refused!(
        world.store.grant(late, event),
        StoreError::WrongState {
            what: "run",
            state: "sealed"
        }
    );
    Ok(())
}

pub(super) async fn of_twenty_grants_one_wins(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let waiting = world.admit(&tenant).await?;
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        let (lease, event, _) = world.lease(&waiting)?;
        let store = world.store.clone();
        calls.spawn(async move { store.grant(lease, event).await });
    }
    let mut won = 0;
    while let Some(done) = calls.join_next().await {
        match done.map_err(|error| Failed(error.to_string()))? {
            Ok(()) => won += 1,
            Err(StoreError::WrongState { what: "lease", .. }) => {}
            Err(other) => return Err(other.into()),
        }
    }
    equal!(won, 1);
    equal!(world.store.open_leases().await?.len(), 1);
    world.whole(&waiting.run).await?;
    Ok(())
}

pub(super) async fn an_old_epoch_is_refused_everywhere(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let mut old = world.leased(&tenant).await?;
    let (lease, event, mut new) = world.lease(&old)?;
    world.store.take_over(lease, event).await?;
    let run = old.run.clone();
    let event = old.clone().step()?;
    refused!(
        world
            .store
            .append(run.clone(), old.epoch, vec![event.clone()]),
        StoreError::Fenced {
            given: Epoch(1),
            present: Epoch(2)
        }
    );
    // Under the new number, but on what the old one knew.
    refused!(
        world.store.append(run.clone(), new.epoch, vec![event]),
        StoreError::Fork
    );
    let (result, events) = old.clone().ending()?;
    refused!(
        world.store.conclude(run.clone(), old.epoch, result, events),
        StoreError::Fenced { .. }
    );
    let old_lease = old.lease.as_ref().map(|lease| lease.id.clone());
    let (_, event, _) = world.lease(&old)?;
    let (again, ..) = world.lease(&old)?;
    refused!(
        world.store.take_over(again, event),
        StoreError::Fenced { .. }
    );
    let (result, events) = new.ending()?;
    world
        .store
        .conclude(run.clone(), new.epoch, result, events)
        .await?;
    let stale = old.sealing(clean())?;
    refused!(
        world.store.seal(old_lease, stale),
        StoreError::Fenced { .. }
    );
    equal!(world.whole(&run).await?, new.chain.head());
    Ok(())
}

pub(super) async fn a_refused_takeover_changes_nothing(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let life = world.leased(&tenant).await?;
    let before = world.store.open_leases().await?;
    let (mut skips, mut event, _) = world.lease(&life)?;
    skips.epoch = Epoch(7);
    event.epoch = skips.epoch;
    refused!(
        world.store.take_over(skips, event),
        StoreError::Fenced { .. }
    );
    let (lease, mut event, _) = world.lease(&life)?;
    event.seq += 1;
    refused!(world.store.take_over(lease, event), StoreError::Fork);
    equal!(world.store.open_leases().await?, before);
    equal!(
        world.store.run(None, life.run.clone()).await?.epoch,
        life.epoch
    );
    Ok(())
}

pub(super) async fn what_ended_is_taken_over_to_be_sealed(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let mut life = world.leased(&tenant).await?;
    let (result, events) = life.ending()?;
    world
        .store
        .conclude(life.run.clone(), life.epoch, result, events)
        .await?;
    let (lease, event, mut next) = world.lease(&life)?;
    world.store.take_over(lease.clone(), event).await?;
    let row = world.store.run(None, life.run.clone()).await?;
    equal!((row.state, row.epoch), (RunState::Ended, next.epoch));
    let sealing = next.sealing(clean())?;
    world.store.seal(Some(lease.id), sealing).await?;
    equal!(world.store.open_leases().await?.len(), 0);
    let (late, event, _) = world.lease(&next)?;
    refused!(
        world.store.take_over(late, event),
        StoreError::WrongState {
            what: "run",
            state: "sealed"
        }
    );
    Ok(())
}

pub(super) async fn a_revoked_lease_stays_open_until_the_seal(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let mut life = world.leased(&tenant).await?;
    let Some(lease) = life.lease.clone() else {
        return Err(Failed("there is no lease".into()));
    };
    let revoked = RunFact::AuthorityRevoked {
        lease: lease.id.clone(),
    };
    let event = life.chain.next(life.epoch, 40, revoked)?;
    world
        .store
        .revoke(lease.id.clone(), vec![event.clone()])
        .await?;
    // Again: it is done already, and nothing is appended twice.
    world.store.revoke(lease.id.clone(), vec![event]).await?;
    let open = world.store.open_leases().await?;
    equal!(open.len(), 1);
    equal!(open[0].state, LeaseState::Revoked);
    let unknown = LeaseId::from_entropy(&world.entropy());
    refused!(
        world.store.revoke(unknown, vec![]),
        StoreError::NotFound("lease")
    );
    life.lease = None;
    let life = world.finish(life).await?;
    equal!(world.store.open_leases().await?.len(), 0);
    world.store.revoke(lease.id, vec![]).await?;
    holds!(world.whole(&life.run).await? == life.chain.head());
    Ok(())
}
