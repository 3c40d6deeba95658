//! Many callers at once: whatever the order, every chain and log is whole.

use std::sync::Arc;

use leasehold_core::name::Name;
use leasehold_core::outcome::RunState;
use tokio::task::JoinSet;

use super::{Case, Failed, Life, World, equal};

/// Runs of each caller.
const RUNS: u64 = 8;

pub(super) async fn sixteen_callers_leave_whole_chains(world: &World) -> Case {
    let tenants = [world.tenant("acme").await?, world.tenant("other").await?];
    let mut callers = JoinSet::new();
    for caller in 0..16_u64 {
        let own = World::from(Arc::clone(&world.store), (caller + 1) << 32);
        let tenant = tenants[usize::from(caller % 2 == 1)].clone();
        callers.spawn(async move { lives(&own, &tenant).await });
    }
    let mut all = Vec::new();
    while let Some(done) = callers.join_next().await {
        all.extend(done.map_err(|error| Failed(error.to_string()))??);
    }
    equal!(all.len(), 16 * 8);
    for life in &all {
        equal!(world.whole(&life.run).await?, life.chain.head());
        let row = world.store.run(None, life.run.clone()).await?;
        equal!(row.state, RunState::Sealed);
    }
    for tenant in &tenants {
        equal!(world.whole_log(tenant).await?.count, 1 + 2 * 8 * RUNS);
    }
    equal!(world.store.open_leases().await?.len(), 0);
    Ok(())
}

async fn lives(world: &World, tenant: &Name) -> Result<Vec<Life>, Failed> {
    let mut lives = Vec::new();
    for _ in 0..RUNS {
        let mut life = world.leased(tenant).await?;
        for _ in 0..5 {
            let event = life.step()?;
            world
                .store
                .append(life.run.clone(), life.epoch, vec![event])
                .await?;
        }
        lives.push(world.finish(life).await?);
    }
    Ok(lives)
}
