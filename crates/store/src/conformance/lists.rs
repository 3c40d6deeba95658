//! Lists of runs: in pages, by filter, and never another tenant's.

use leasehold_core::name::{Name, ToolRef};
use leasehold_core::outcome::RunState;

use super::{Case, World, equal, holds, refused};
use crate::seam::{PAGE_MAX, RunFilter, RunRow, StoreError};

pub(super) async fn pages_have_no_gap_and_nothing_twice(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let mut made = Vec::new();
    for number in 0..25 {
        // Several of one moment: the id decides.
        let (admission, life) = world.admission(&tenant, number / 5, None)?;
        world.store.admit(admission).await?;
        made.push((number / 5, life.run));
    }
    made.sort();
    made.reverse();
    let mut seen: Vec<(u64, _)> = Vec::new();
    loop {
        let filter = RunFilter {
            tenant: Some(tenant.clone()),
            before: seen.last().cloned(),
            limit: 4,
            ..RunFilter::default()
        };
        let page = world.store.runs(filter).await?;
        if page.is_empty() {
            break;
        }
        holds!(page.len() <= 4);
        seen.extend(page.into_iter().map(|row| (row.accepted_unix_ms, row.run)));
    }
    equal!(seen, made);
    let all = RunFilter {
        limit: u32::MAX,
        ..RunFilter::default()
    };
    holds!(world.store.runs(all).await?.len() <= PAGE_MAX as usize);
    equal!(world.store.runs(RunFilter::default()).await?.len(), 0);
    Ok(())
}

pub(super) async fn filters_hold(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let (mut admission, tooled) = world.admission(&tenant, 1, None)?;
    admission.tool = Some(ToolRef::parse("text.count@1.0.0-rc.1")?);
    admission.project = Name::parse("second")?;
    world.store.admit(admission).await?;
    let running = world.leased(&tenant).await?;
    let sealed = world.finish(world.leased(&tenant).await?).await?;
    let find = |change: &dyn Fn(&mut RunFilter)| {
        let mut filter = RunFilter {
            tenant: Some(tenant.clone()),
            limit: 10,
            ..RunFilter::default()
        };
        change(&mut filter);
        world.store.runs(filter)
    };
    let ids = |rows: Vec<RunRow>| -> Vec<_> { rows.into_iter().map(|row| row.run).collect() };
    let tool = Name::parse("text.count")?;
    let by_tool = find(&|filter| filter.tool = Some(tool.clone())).await?;
    equal!(
        by_tool[0].tool,
        Some(ToolRef::parse("text.count@1.0.0-rc.1")?)
    );
    equal!(ids(by_tool).as_slice(), std::slice::from_ref(&tooled.run));
    let project = Name::parse("second")?;
    let by_project = find(&|filter| filter.project = Some(project.clone())).await?;
    equal!(
        ids(by_project).as_slice(),
        std::slice::from_ref(&tooled.run)
    );
    let over = find(&|filter| filter.states = vec![RunState::Sealed, RunState::Ended]).await?;
    equal!(ids(over), [sealed.run]);
    let open = find(&|filter| filter.states = vec![RunState::Queued, RunState::Running]).await?;
    equal!(ids(open), [running.run, tooled.run]);
    Ok(())
}

pub(super) async fn another_tenants_is_not_there(world: &World) -> Case {
    let tenant = world.tenant("acme").await?;
    let other = world.tenant("other").await?;
    let life = world.admit(&tenant).await?;
    refused!(
        world.store.run(Some(other.clone()), life.run.clone()),
        StoreError::NotFound("run")
    );
    let of_other = RunFilter {
        tenant: Some(other),
        limit: 10,
        ..RunFilter::default()
    };
    equal!(world.store.runs(of_other).await?.len(), 0);
    equal!(
        world.store.run(Some(tenant), life.run.clone()).await?,
        world.store.run(None, life.run).await?
    );
    Ok(())
}
