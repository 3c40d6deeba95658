//! The suite that every backend must pass, in both ways to run a module.

use leasehold_backend::conformance::script::Language;
use leasehold_backend::conformance::{self, Outcome};
use leasehold_backend::seam::{Backend as _, Doing};
use leasehold_core::id::SandboxId;
use leasehold_core::name::Name;

use super::script::Modules;
use super::{Rig, tenant};
use crate::process::Killer;

/// Speaks modules to the backend, for nobody or for one tenant.
struct Speaker {
    killer: Killer,
    tenant: Option<Name>,
}

impl conformance::Rig for Speaker {
    fn crash<'a>(&'a self, sandbox: &'a SandboxId) -> Option<Doing<'a, Result<(), String>>> {
        conformance::Rig::crash(&self.killer, sandbox)
    }

    fn language(&self) -> &dyn Language {
        &Modules
    }

    fn tenant(&self) -> Option<Name> {
        self.tenant.clone()
    }
}

async fn suite(test: &str, tenant: Option<Name>) {
    let Some(rig) = Rig::new(test) else { return };
    let shares = tenant.is_some();
    let speaker = Speaker {
        killer: Killer(rig.process.clone()),
        tenant,
    };
    let report = conformance::all(&rig.backend, &speaker).await;
    eprint!("{report}");
    assert_eq!(report.failures(), 0);
    let skipped = report.rows.iter();
    let skipped = skipped.filter(|(_, outcome)| matches!(outcome, Outcome::Skipped(_)));
    let skipped: Vec<_> = skipped.map(|(name, _)| *name).collect();
    // Sandboxes of their own are not kept ready: what is, is a host that is shared.
    let pool: &[&str] = if shares {
        &[]
    } else {
        &["a warm computer serves a launch"]
    };
    assert_eq!(skipped, pool);
    assert_eq!(rig.backend.counts().shared > 0, shares);
    let left = rig.backend.sweep(Vec::new()).await.unwrap();
    assert!(left.ended.is_empty(), "the suite left {left:?}");
}

#[tokio::test]
async fn the_wasm_backend_passes_the_suite() {
    suite("the_wasm_backend_passes_the_suite", None).await;
}

#[tokio::test]
async fn the_wasm_backend_passes_the_suite_in_shared_hosts() {
    let test = "the_wasm_backend_passes_the_suite_in_shared_hosts";
    suite(test, Some(tenant("suite"))).await;
}

#[tokio::test]
async fn what_is_tried_out_is_no_run_that_anybody_could_miss() {
    let test = "what_is_tried_out_is_no_run_that_anybody_could_miss";
    let Some(rig) = Rig::new(test) else { return };
    let probing = rig.backend.clone();
    let probed = tokio::spawn(async move { probing.probe().await });
    let mut looks = 0;
    while !probed.is_finished() {
        assert_eq!(rig.backend.running().await.unwrap(), []);
        looks += 1;
    }
    assert!(looks > 3, "nobody looked");
    probed.await.unwrap().unwrap();
}
