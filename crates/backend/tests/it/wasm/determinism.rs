//! The same run, over and over.

use leasehold_core::end::EndReason;
use leasehold_core::limits::Resource;

use super::{Rig, guests, module, order};

#[tokio::test]
async fn a_hundred_runs_with_one_seed_are_one_to_the_byte() {
    let Some(rig) = Rig::new("a_hundred_runs_with_one_seed_are_one_to_the_byte") else {
        return;
    };
    let entropy = module(&guests::entropy());
    let seeded = async |seed: u64| {
        let done = rig.run(order(&entropy).of("ada").fixed(seed)).await;
        assert_eq!(*done.end(), EndReason::Completed);
        let contract = done.record.contract.as_ref().unwrap();
        let fixed = contract.program.as_ref().unwrap().determinism;
        assert_eq!(fixed.map(|fixed| fixed.seed), Some(seed));
        let fuel = done.record.module.as_ref().unwrap().fuel_used;
        (done.stdout, done.stderr, fuel)
    };
    let first = seeded(7).await;
    assert_eq!(first.0.len(), 52);
    assert!(first.2.is_some_and(|fuel| fuel > 0));
    for _ in 1..100 {
        assert_eq!(seeded(7).await, first);
    }
    assert_ne!(seeded(8).await.0, first.0);
    // Without a seed no two are alike.
    let free = async || rig.run(order(&entropy).of("ada")).await.stdout;
    assert_ne!(free().await, free().await);
}

#[tokio::test]
async fn fuel_ends_a_run_at_its_last_drop() {
    let Some(rig) = Rig::new("fuel_ends_a_run_at_its_last_drop") else {
        return;
    };
    let spins = module(&guests::spins());
    let fuelled = order(&spins)
        .of("ada")
        .spec(|spec| spec.fuel = Some(100_000));
    let done = rig.run(fuelled).await;
    let EndReason::ResourceExceeded { hit, exit: None } = done.end() else {
        panic!("{:?}", done.end());
    };
    assert_eq!((hit.which, hit.limit), (Resource::Fuel, 100_000));
}
