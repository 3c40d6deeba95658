//! Uploads belong to a tenant, and what something names is told for as long as it is named.

use leasehold_core::digest::{Digest, canonical};
use leasehold_core::event::{Chain, Head, RunFact};
use leasehold_core::id::RunId;
use leasehold_core::lease::Epoch;
use leasehold_core::name::Name;
use leasehold_core::outcome::StoredStream;
use leasehold_core::record::{Artifact, StreamRecord};
use serde_json::json;

use super::keys::tool_row;
use super::{Case, Failed, equal, holds, refused};
use crate::conformance::{Life, World};
use crate::seam::{Admission, Change, StoreError, UploadBounds, UploadRow};

const BOUNDS: UploadBounds = UploadBounds {
    count_max: 2,
    bytes_max: 100,
};

fn upload(tenant: &Name, content: &[u8], bytes: u64, at_unix_ms: u64) -> UploadRow {
    UploadRow {
        tenant: tenant.clone(),
        digest: Digest::of(content),
        bytes,
        at_unix_ms,
    }
}

/// An admission whose workspace begins with an upload and whose contract keeps things for seconds.
fn beginning_with(
    world: &World,
    tenant: &Name,
    content: Option<Digest>,
) -> Result<(Admission, Life), Failed> {
    let (mut admission, mut life) = world.admission(tenant, 10, None)?;
    let run = RunId::from_entropy(&world.entropy());
    admission.contract = canonical(&json!({
        "run": run,
        "workspace": {"content": content},
        "retention": {"logs_s": 10, "artifacts_s": 20, "record_s": 1_000},
    }))?;
    let contract = Digest::of(&admission.contract);
    let mut chain = Chain::new(run.clone(), contract, Head::EMPTY);
    admission.first = chain.next(Epoch::NONE, 10, RunFact::Accepted { contract })?;
    admission.run = run.clone();
    (life.run, life.chain) = (run, chain);
    Ok((admission, life))
}

pub(super) async fn an_upload_is_its_tenants_alone_and_bounded(world: &World) -> Case {
    let (acme, other) = (world.tenant("acme").await?, world.tenant("other").await?);
    let store = &world.store;
    let first = upload(&acme, b"a", 60, 5);
    store.put_upload(first.clone(), BOUNDS).await?;
    equal!(store.upload(acme.clone(), first.digest).await?, first);
    refused!(
        store.upload(other.clone(), first.digest),
        StoreError::NotFound("upload")
    );
    let nobody = Name::parse("nobody")?;
    refused!(
        store.put_upload(upload(&nobody, b"a", 1, 5), BOUNDS),
        StoreError::NotFound("tenant")
    );
    // Bytes, then number; what is there already counts once, and a later upload of it is noted.
    let large = upload(&acme, b"b", 41, 5);
    refused!(
        store.put_upload(large.clone(), BOUNDS),
        StoreError::Quota { most: 100, .. }
    );
    refused!(
        store.room_for_upload(large, BOUNDS),
        StoreError::Quota { most: 100, .. }
    );
    store.put_upload(upload(&acme, b"c", 40, 5), BOUNDS).await?;
    let more = upload(&acme, b"d", 0, 5);
    refused!(
        store.room_for_upload(more.clone(), BOUNDS),
        StoreError::Quota { most: 2, .. }
    );
    refused!(
        store.put_upload(more, BOUNDS),
        StoreError::Quota { most: 2, .. }
    );
    store.put_upload(upload(&acme, b"a", 60, 9), BOUNDS).await?;
    equal!(
        store.upload(acme.clone(), first.digest).await?.at_unix_ms,
        9
    );
    // No run begins with another's.
    let (foreign, _) = beginning_with(world, &other, Some(first.digest))?;
    let run = foreign.run.clone();
    refused!(store.admit(foreign), StoreError::NotFound("upload"));
    refused!(store.run(None, run), StoreError::NotFound("run"));
    let (own, _) = beginning_with(world, &acme, Some(first.digest))?;
    store.admit(own).await?;
    Ok(())
}

pub(super) async fn an_upload_stays_while_a_run_begins_with_it(world: &World) -> Case {
    let acme = world.tenant("acme").await?;
    let store = &world.store;
    let digest = Digest::of(b"tree");
    store
        .put_upload(upload(&acme, b"tree", 4, 5), BOUNDS)
        .await?;
    let (admission, life) = beginning_with(world, &acme, Some(digest))?;
    store.admit(admission).await?;
    equal!(store.prune_names(50, 6, 10).await?, 0);
    let (lease, event, life) = world.lease(&life)?;
    store.grant(lease, event).await?;
    world.finish(life).await?;
    equal!(store.prune_names(50, 5, 10).await?, 0);
    equal!(store.named(vec![digest], 50).await?, [digest]);
    equal!(store.prune_names(50, 6, 0).await?, 0);
    equal!(store.prune_names(50, 6, 10).await?, 1);
    equal!(store.named(vec![digest], 50).await?, []);
    refused!(store.upload(acme, digest), StoreError::NotFound("upload"));
    Ok(())
}

pub(super) async fn what_is_named_is_told_until_its_time_is_over(world: &World) -> Case {
    let acme = world.tenant("acme").await?;
    let store = &world.store;
    let (log, file, both, package) = (
        Digest::of(b"log"),
        Digest::of(b"file"),
        Digest::of(b"both"),
        Digest::of(b"package"),
    );
    let all = vec![log, file, both, package, Digest::of(b"nobody's")];
    let row = tool_row(&acme, "a@1.0.0", &format!("{{\"package\":\"{package}\"}}"))?;
    let fact = leasehold_core::event::TenantFact::ToolPublished {
        tool: row.tool.clone(),
        manifest: row.digest,
    };
    let change = vec![(Change::PublishTool(row), fact)];
    store.change(acme.clone(), None, 5, change).await?;
    let (admission, life) = beginning_with(world, &acme, None)?;
    store.admit(admission).await?;
    let (lease, event, mut life) = world.lease(&life)?;
    store.grant(lease, event).await?;
    let (mut outcome, _) = life.clone().ending()?;
    let stored = |digest, kept| StoredStream {
        stream: StreamRecord {
            written: kept,
            kept,
            truncated: false,
        },
        digest: Some(digest),
    };
    let artifact = |digest: Digest| Artifact {
        path: "a".to_owned(),
        bytes: 1,
        sha256: Some(digest.hex()),
        skipped: None,
        may_execute_on_host: false,
    };
    outcome.stdout = Some(stored(log, 3));
    outcome.stderr = Some(stored(both, 4));
    outcome.artifacts = vec![artifact(file), artifact(both)];
    holds!(outcome.named().len() == 4);
    let concluded = RunFact::Concluded {
        outcome: Digest::of_value(&outcome)?,
    };
    let event = life.chain.next(life.epoch, 35, concluded)?;
    let (run, epoch) = (life.run.clone(), life.epoch);
    store.conclude(run, epoch, outcome, vec![event]).await?;
    // It ended at 35 ms; streams are kept for 10 s, files for 20 s.
    equal!(
        store.named(all.clone(), 10_034).await?,
        [log, file, both, package]
    );
    equal!(
        store.named(all.clone(), 10_035).await?,
        [file, both, package]
    );
    equal!(store.named(all.clone(), 20_035).await?, [package]);
    equal!(store.prune_names(10_034, 0, 10).await?, 0);
    equal!(store.prune_names(10_035, 0, 10).await?, 2);
    equal!(store.prune_names(20_035, 0, 1).await?, 1);
    equal!(store.prune_names(20_035, 0, 10).await?, 1);
    Ok(())
}

pub(super) async fn a_key_tells_its_run(world: &World) -> Case {
    let (acme, other) = (world.tenant("acme").await?, world.tenant("other").await?);
    let (admission, life) = world.admission(&acme, 10, Some("k"))?;
    world.store.admit(admission).await?;
    let found = world.store.earlier(acme.clone(), "k".to_owned()).await?;
    let row = world.store.run(None, life.run).await?;
    equal!(found, Some((Digest::of(b"k"), row)));
    equal!(world.store.earlier(acme, "l".to_owned()).await?, None);
    equal!(world.store.earlier(other, "k".to_owned()).await?, None);
    Ok(())
}

pub(super) async fn what_is_not_sealed_comes_oldest_first(world: &World) -> Case {
    let acme = world.tenant("acme").await?;
    let mut runs = Vec::new();
    for at in [30, 10, 20, 20] {
        let (admission, life) = world.admission(&acme, at, None)?;
        world.store.admit(admission).await?;
        runs.push((at, life.run));
    }
    let sealed = world.finish(world.leased(&acme).await?).await?;
    runs.sort();
    let mut seen = Vec::new();
    loop {
        let page = world.store.unsealed(seen.last().cloned(), 3).await?;
        holds!(page.iter().all(|row| row.run != sealed.run));
        let last = page.len() < 3;
        seen.extend(page.into_iter().map(|row| (row.accepted_unix_ms, row.run)));
        if last {
            break;
        }
    }
    equal!(seen, runs);
    Ok(())
}
