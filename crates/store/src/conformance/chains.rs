//! The chain of a run goes on in one way only.

use leasehold_core::digest::Digest;
use leasehold_core::event::{Event, RunFact};
use leasehold_core::id::RunId;
use leasehold_core::lease::Epoch;
use tokio::task::JoinSet;

use super::{Case, Failed, World, equal, refused};
use crate::seam::{PAGE_MAX, StoreError};

pub(super) async fn each_break_of_a_chain_is_refused(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let life = world.leased(&tenant).await?;
    let head = world.whole(&life.run).await?;
    let spoil: [fn(&mut Event); 7] = [
        |event| event.seq += 1,
        |event| event.seq -= 1,
        |event| event.prev = Digest::of(b"x"),
        |event| event.run = RunId::from_entropy(&[9; 13]),
        |event| event.epoch = Epoch(0),
        |event| event.contract = Digest::of(b"x"),
        |event| {
            event.fact = RunFact::Accepted {
                contract: event.contract,
            };
        },
    ];
    for spoil in spoil {
        let mut event = life.clone().step()?;
        spoil(&mut event);
        refused!(
            world
                .store
                .append(life.run.clone(), life.epoch, vec![event]),
            StoreError::Fork
        );
    }
    equal!(world.whole(&life.run).await?, head);
    let good = life.clone().step()?;
    world
        .store
        .append(life.run.clone(), life.epoch, vec![good.clone()])
        .await?;
    refused!(
        world.store.append(life.run.clone(), life.epoch, vec![good]),
        StoreError::Fork
    );
    Ok(())
}

pub(super) async fn a_refused_event_takes_its_others_along(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let mut life = world.leased(&tenant).await?;
    let head = world.whole(&life.run).await?;
    let first = life.step()?;
    let mut second = life.step()?;
    second.prev = Digest::of(b"x");
    refused!(
        world
            .store
            .append(life.run.clone(), life.epoch, vec![first, second]),
        StoreError::Fork
    );
    equal!(world.whole(&life.run).await?, head);
    Ok(())
}

pub(super) async fn of_two_writers_one_goes_on(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let life = world.leased(&tenant).await?;
    let mut calls = JoinSet::new();
    for at in 0..20 {
        let mut writer = life.clone();
        let event = writer
            .chain
            .next(writer.epoch, at, RunFact::Queued { ahead: 0 })?;
        let store = world.store.clone();
        calls.spawn(async move { store.append(writer.run, writer.epoch, vec![event]).await });
    }
    let mut won = 0;
    while let Some(done) = calls.join_next().await {
        match done.map_err(|error| Failed(error.to_string()))? {
            Ok(()) => won += 1,
            Err(StoreError::Fork) => {}
            Err(other) => return Err(other.into()),
        }
    }
    equal!(won, 1);
    equal!(
        world.whole(&life.run).await?.count,
        life.chain.head().count + 1
    );
    Ok(())
}

pub(super) async fn an_allocation_is_noted(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let mut life = world.leased(&tenant).await?;
    let sandbox = world.sandbox();
    let allocated = RunFact::Allocated {
        sandbox: sandbox.clone(),
        warm: true,
        computer: None,
    };
    let event = life.chain.next(life.epoch, 25, allocated)?;
    world
        .store
        .append(life.run.clone(), life.epoch, vec![event])
        .await?;
    let row = world.store.run(None, life.run.clone()).await?;
    equal!(row.sandbox, Some(sandbox.clone()));
    equal!(world.store.open_leases().await?[0].sandbox, Some(sandbox));
    Ok(())
}

pub(super) async fn events_come_in_pages(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let mut life = world.leased(&tenant).await?;
    let mut events = Vec::new();
    for _ in 0..PAGE_MAX + 10 {
        events.push(life.step()?);
    }
    world
        .store
        .append(life.run.clone(), life.epoch, events.clone())
        .await?;
    let page = world.store.events(life.run.clone(), 2).await?;
    equal!(page.len(), PAGE_MAX as usize);
    equal!(page[..], events[..PAGE_MAX as usize]);
    let rest = world
        .store
        .events(life.run.clone(), u64::from(PAGE_MAX) + 2)
        .await?;
    equal!(rest[..], events[PAGE_MAX as usize..]);
    equal!(world.store.events(life.run.clone(), 9_999).await?, vec![]);
    Ok(())
}
