//! Admission, its key, and the ends of a run.

use leasehold_core::digest::Digest;
use leasehold_core::event::{RunFact, TenantFact};
use leasehold_core::id::RunId;
use leasehold_core::lease::Epoch;
use leasehold_core::name::Name;
use leasehold_core::outcome::RunState;
use leasehold_core::record::Observed;
use leasehold_core::tenant::Tenant;
use tokio::task::JoinSet;

use super::world::{clean, inventory, outcome};
use super::{Case, Failed, World, equal, holds, refused};
use crate::seam::{Admission, Admitted, Change, StoreError};

pub(super) async fn what_is_admitted_is_there_as_given(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let (admission, life) = world.admission(&tenant, 10, Some("key"))?;
    let contract = admission.contract.clone();
    let first = admission.first.clone();
    equal!(world.store.admit(admission).await?, Admitted::New);
    let row = world
        .store
        .run(Some(tenant.clone()), life.run.clone())
        .await?;
    equal!((row.state, row.epoch), (RunState::Queued, Epoch::NONE));
    equal!(row.contract, Digest::of(&contract));
    equal!((row.accepted_unix_ms, row.cancel_requested), (10, false));
    equal!((row.outcome, row.sandbox), (None, None));
    equal!(row.head, life.chain.head());
    equal!(world.store.contract(life.run.clone()).await?, contract);
    equal!(
        world
            .store
            .sealed_request(life.run.clone())
            .await?
            .as_deref(),
        Some(&b"sealed\0request"[..])
    );
    equal!(world.events(&life.run).await?, vec![first]);
    let opened = TenantFact::RunOpened {
        run: life.run.clone(),
        contract: row.contract,
    };
    equal!(world.log(&tenant).await?[1].fact, opened);
    Ok(())
}

pub(super) async fn a_second_run_of_an_id_is_refused(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let (admission, life) = world.admission(&tenant, 10, None)?;
    world.store.admit(admission.clone()).await?;
    refused!(world.store.admit(admission), StoreError::Exists("run"));
    equal!(world.log(&tenant).await?.len(), 2);
    world.whole(&life.run).await?;
    Ok(())
}

pub(super) async fn no_tenant_no_run(world: &World) -> Case {
    let nobody = Name::parse("nobody")?;
    let (admission, life) = world.admission(&nobody, 10, None)?;
    refused!(world.store.admit(admission), StoreError::NotFound("tenant"));
    refused!(world.store.run(None, life.run), StoreError::NotFound("run"));
    let tenant = world.tenant("acme").await?;
    let (earlier, _) = world.admission(&tenant, 10, Some("key"))?;
    world.store.admit(earlier.clone()).await?;
    let suspended = Tenant {
        suspended: true,
        ..world.store.tenant(tenant.clone()).await?
    };
    let change = (
        Change::UpdateTenant(suspended),
        TenantFact::TenantSuspended { suspended: true },
    );
    world
        .store
        .change(tenant.clone(), None, 11, vec![change])
        .await?;
    let (later, _) = world.admission(&tenant, 12, None)?;
    refused!(
        world.store.admit(later),
        StoreError::WrongState {
            what: "tenant",
            state: "suspended"
        }
    );
    holds!(matches!(
        world.store.admit(earlier).await?,
        Admitted::Earlier(_)
    ));
    Ok(())
}

pub(super) async fn a_wrong_first_event_is_refused(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let spoil: [fn(&mut Admission); 7] = [
        |admission| admission.first.seq = 1,
        |admission| admission.first.prev = Digest::of(b"x"),
        |admission| admission.first.epoch = Epoch(1),
        |admission| admission.first.contract = Digest::of(b"x"),
        |admission| admission.first.run = RunId::from_entropy(&[9; 13]),
        |admission| admission.first.fact = RunFact::Queued { ahead: 0 },
        |admission| admission.contract.push(b' '),
    ];
    for spoil in spoil {
        let (mut admission, life) = world.admission(&tenant, 10, None)?;
        spoil(&mut admission);
        refused!(world.store.admit(admission), StoreError::Fork);
        refused!(world.store.run(None, life.run), StoreError::NotFound("run"));
    }
    equal!(world.log(&tenant).await?.len(), 1);
    Ok(())
}

pub(super) async fn one_key_is_one_run_for_two_hundred(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let other = world.tenant("other").await?;
    let mut calls = JoinSet::new();
    for _ in 0..200 {
        let (admission, life) = world.admission(&tenant, 10, Some("same"))?;
        let store = world.store.clone();
        calls.spawn(async move { (life.run, store.admit(admission).await) });
    }
    let mut fresh = Vec::new();
    let mut earlier = Vec::new();
    while let Some(done) = calls.join_next().await {
        let (run, answer) = done.map_err(|error| Failed(error.to_string()))?;
        match answer? {
            Admitted::New => fresh.push(run),
            Admitted::Earlier(row) => earlier.push(row.run.clone()),
        }
    }
    equal!((fresh.len(), earlier.len()), (1, 199));
    holds!(earlier.iter().all(|run| *run == fresh[0]));
    let (mut another, _) = world.admission(&tenant, 11, Some("same"))?;
    if let Some(key) = &mut another.idempotency {
        key.request = Digest::of(b"another body");
    }
    let refusal = world.store.admit(another).await;
    holds!(matches!(&refusal, Err(StoreError::KeyReused { first }) if *first == fresh[0]));
    let (separate, _) = world.admission(&other, 11, Some("same"))?;
    equal!(world.store.admit(separate).await?, Admitted::New);
    equal!(world.log(&tenant).await?.len(), 2);
    Ok(())
}

pub(super) async fn a_key_outlives_its_run_until_it_is_pruned(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let (admission, life) = world.admission(&tenant, 10, Some("key"))?;
    world.store.admit(admission).await?;
    let life = world.finish(life).await?;
    let (again, _) = world.admission(&tenant, 60, Some("key"))?;
    match world.store.admit(again).await? {
        Admitted::Earlier(row) => {
            equal!((&row.run, row.state), (&life.run, RunState::Sealed));
        }
        Admitted::New => return Err(Failed("a second run was made".into())),
    }
    equal!(world.store.prune(2_000_000, 10).await?, 1);
    let (anew, _) = world.admission(&tenant, 2_000_001, Some("key"))?;
    equal!(world.store.admit(anew).await?, Admitted::New);
    Ok(())
}

pub(super) async fn an_outcome_is_fixed_once(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let mut life = world.leased(&tenant).await?;
    let mut liar = life.clone();
    let wrong = RunFact::Concluded {
        outcome: Digest::of(b"another outcome"),
    };
    let event = liar.chain.next(liar.epoch, 34, wrong)?;
    let (run, epoch) = (life.run.clone(), life.epoch);
    refused!(
        world.store.append(run.clone(), epoch, vec![event.clone()]),
        StoreError::Fork
    );
    refused!(
        world
            .store
            .conclude(run.clone(), epoch, outcome(), vec![event]),
        StoreError::Fork
    );
    equal!(
        world.store.run(None, run.clone()).await?.state,
        RunState::Running
    );
    let (result, events) = life.ending()?;
    world
        .store
        .conclude(run.clone(), epoch, result.clone(), events)
        .await?;
    let row = world.store.run(None, run.clone()).await?;
    equal!(
        (row.state, row.outcome),
        (RunState::Ended, Some(result.clone()))
    );
    equal!(world.store.sealed_request(run.clone()).await?, None);
    let mut second = result;
    second.ended_unix_ms = 99;
    refused!(
        world.store.conclude(run.clone(), epoch, second, vec![]),
        StoreError::WrongState {
            what: "run",
            state: "ended"
        }
    );
    equal!(world.whole(&run).await?, life.chain.head());
    Ok(())
}

pub(super) async fn a_wish_to_end_is_kept(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let life = world.leased(&tenant).await?;
    let run = life.run.clone();
    world.store.request_cancel(run.clone()).await?;
    world.store.request_cancel(run.clone()).await?;
    holds!(world.store.run(None, run.clone()).await?.cancel_requested);
    world.finish(life).await?;
    refused!(
        world.store.request_cancel(run),
        StoreError::WrongState { .. }
    );
    let unknown = RunId::from_entropy(&world.entropy());
    refused!(
        world.store.request_cancel(unknown),
        StoreError::NotFound("run")
    );
    Ok(())
}

pub(super) async fn a_seal_needs_an_end_and_is_the_last_word(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let mut life = world.leased(&tenant).await?;
    let run = life.run.clone();
    let early = life.clone().sealing(clean())?;
    let lease = life.lease.as_ref().map(|lease| lease.id.clone());
    refused!(
        world.store.seal(lease.clone(), early),
        StoreError::WrongState {
            what: "run",
            state: "running"
        }
    );
    let (result, events) = life.ending()?;
    world
        .store
        .conclude(run.clone(), life.epoch, result, events)
        .await?;
    equal!(world.store.statement(run.clone()).await?, None);
    let sealing = life.sealing(clean())?;
    let stranger = world.leased(&tenant).await?.lease.map(|lease| lease.id);
    refused!(
        world.store.seal(stranger, sealing.clone()),
        StoreError::NotFound("lease")
    );
    world.store.seal(lease.clone(), sealing.clone()).await?;
    refused!(
        world.store.seal(lease, sealing.clone()),
        StoreError::WrongState {
            what: "run",
            state: "sealed"
        }
    );
    let late = life.clone().step()?;
    refused!(
        world.store.append(run.clone(), life.epoch, vec![late]),
        StoreError::WrongState { .. }
    );
    equal!(
        world.store.statement(run.clone()).await?,
        Some(sealing.statement)
    );
    let head = world.whole(&run).await?;
    let last = world.log(&tenant).await?.pop().map(|entry| entry.fact);
    equal!(last, Some(TenantFact::RunSealed { run, head }));
    Ok(())
}

pub(super) async fn what_is_not_clean_is_told(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let mut told = Vec::new();
    for observed in [inventory(true), inventory(false), Observed::default()] {
        let mut life = world.leased(&tenant).await?;
        let (result, events) = life.ending()?;
        let run = life.run.clone();
        world
            .store
            .conclude(run.clone(), life.epoch, result, events)
            .await?;
        let lease = life.lease.as_ref().map(|lease| lease.id.clone());
        let sealing = life.sealing(observed.clone())?;
        world.store.seal(lease, sealing).await?;
        told.push((run, observed));
    }
    // Nothing was ever there for this one, so nothing can be left.
    let mut never = world.admit(&tenant).await?;
    let (result, events) = never.ending()?;
    world
        .store
        .conclude(never.run.clone(), never.epoch, result, events)
        .await?;
    let sealing = never.sealing(Observed::default())?;
    world.store.seal(None, sealing).await?;
    let expected = vec![told[2].clone(), told[1].clone()];
    equal!(world.store.not_clean(10).await?, expected);
    equal!(world.store.not_clean(1).await?.len(), 1);
    equal!(world.store.open_leases().await?.len(), 0);
    Ok(())
}

pub(super) async fn what_is_kept_long_enough_goes(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let sealed = world.finish(world.leased(&tenant).await?).await?;
    let running = world.leased(&tenant).await?;
    let entries = world.log(&tenant).await?.len();
    // Sealed at 50 ms; the contract keeps the record for 1,000 s.
    equal!(world.store.prune(1_000_049, 10).await?, 0);
    equal!(world.store.prune(1_000_050, 0).await?, 0);
    equal!(world.store.prune(1_000_050, 10).await?, 1);
    refused!(
        world.store.run(None, sealed.run.clone()),
        StoreError::NotFound("run")
    );
    refused!(
        world.store.contract(sealed.run.clone()),
        StoreError::NotFound("run")
    );
    refused!(
        world.store.events(sealed.run, 0),
        StoreError::NotFound("run")
    );
    equal!(world.log(&tenant).await?.len(), entries);
    world.whole_log(&tenant).await?;
    world.whole(&running.run).await?;
    Ok(())
}
