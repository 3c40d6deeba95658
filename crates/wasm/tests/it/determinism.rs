//! Deterministic runs: the same bytes each time, others with another seed.

use leasehold_protocol::wasm::{Determinism, Flavour};
use leasehold_wasm::run::Task;

use crate::guests;
use crate::rig::{Ran, Rig, limits};

fn with(rig: &Rig, program: &leasehold_wasm::program::Program, seed: Option<u64>) -> Ran {
    let mut task = Task::new("guest", limits());
    task.determinism = seed.map(|seed| Determinism {
        seed,
        clock_ms: 1_700_000_000_000,
    });
    rig.run(program, task)
}

#[test]
fn a_hundred_runs_are_byte_identical() {
    let rig = Rig::new(Flavour::Metered);
    let program = rig.program(&guests::entropy());
    let first = with(&rig, &program, Some(7));
    assert_eq!(first.stdout.len(), 52);
    let wall = u64::from_le_bytes(first.stdout[32..40].try_into().unwrap());
    assert_eq!(wall, 1_700_000_000_000_000_000);
    for _ in 1..100 {
        let again = with(&rig, &program, Some(7));
        assert_eq!(again.stdout, first.stdout);
        assert_eq!(again.report.fuel_used, first.report.fuel_used);
    }
    assert_ne!(with(&rig, &program, Some(8)).stdout, first.stdout);
    // Without it no two are alike.
    assert_ne!(
        with(&rig, &program, None).stdout,
        with(&rig, &program, None).stdout
    );
}

#[test]
fn determinism_of_a_plain_module_is_refused() {
    let rig = Rig::new(Flavour::Plain);
    let mut task = Task::new("guest", limits());
    task.determinism = Some(Determinism {
        seed: 0,
        clock_ms: 0,
    });
    assert!(
        task.check(&rig.program(&guests::hello()))
            .unwrap_err()
            .contains("metered")
    );
}

#[test]
fn a_not_a_number_has_one_form() {
    let rig = Rig::new(Flavour::Metered);
    let ran = with(&rig, &rig.program(&guests::entropy()), Some(1));
    assert_eq!(ran.stdout[48..52], 0x7fc0_0000u32.to_le_bytes());
}
