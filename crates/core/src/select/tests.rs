//! The table of the design cell by cell, and the invariant over the whole space.

use super::*;
use crate::isolation::TrustClass;

const TRUSTS: [TrustClass; 3] = [
    TrustClass::FirstParty,
    TrustClass::Verified,
    TrustClass::Untrusted,
];

fn abilities() -> Abilities {
    Abilities {
        host_system: true,
        base: true,
        images: true,
        nests_wasm: true,
        network: true,
        path_rules: true,
        extras: vec!["gpu".to_owned()],
        workspaces: vec![WorkspaceMode::Ephemeral],
        unenforced: Vec::new(),
        posture: None,
    }
}

fn offer(isolation: Isolation) -> Offer {
    Offer {
        backend: isolation.word().to_owned(),
        isolation,
        runtime: match isolation {
            Isolation::Wasm => Runtime::Wasm,
            _ => Runtime::Command,
        },
        zone: "local".to_owned(),
        cost: isolation as u32,
        state: Ok(abilities()),
    }
}

fn all() -> Vec<Offer> {
    Isolation::ALL.map(offer).to_vec()
}

fn why(preference: Isolation, floor: Isolation, trust: TrustClass) -> Why {
    Why {
        preference,
        floor,
        trust,
        required: trust.required(),
    }
}

fn wanted(runtime: Runtime, image: bool, floor: Isolation) -> Wanted {
    Wanted {
        runtime,
        image: image.then_some(Digest::ZERO),
        why: why(Isolation::Process, floor, TrustClass::FirstParty),
        network: false,
        path_rules: false,
        extras: Vec::new(),
        workspace: WorkspaceMode::Ephemeral,
        asked: Vec::new(),
    }
}

#[test]
fn the_table_of_the_design_cell_by_cell() {
    let image = Rootfs::Image {
        digest: Digest::ZERO,
    };
    use Isolation::{Container, Gvisor, Microvm, Process, Wasm};
    let command = |floor, backend: &str, rootfs: Rootfs, with_image| {
        let got = select(
            &wanted(Runtime::Command, with_image, floor),
            &all(),
            &Anywhere,
        )
        .unwrap();
        assert_eq!(
            (got.backend.as_str(), got.nested.clone()),
            (backend, None),
            "{floor:?}"
        );
        assert_eq!(got.rootfs, rootfs, "{floor:?}");
    };
    command(Process, "process", Rootfs::HostSystem, false);
    command(Wasm, "container", Rootfs::Base, false);
    command(Container, "container", Rootfs::Base, false);
    command(Gvisor, "gvisor", Rootfs::Base, false);
    command(Microvm, "microvm", Rootfs::Base, false);
    command(Process, "process", image.clone(), true);
    command(Wasm, "container", image.clone(), true);
    command(Container, "container", image.clone(), true);
    command(Gvisor, "gvisor", image.clone(), true);
    command(Microvm, "microvm", image, true);
    for (floor, backend, nested) in [
        (Process, "wasm", None),
        (Wasm, "wasm", None),
        (Container, "container", Some("wasm")),
        (Gvisor, "gvisor", Some("wasm")),
        (Microvm, "microvm", Some("wasm")),
    ] {
        let got = select(&wanted(Runtime::Wasm, false, floor), &all(), &Anywhere).unwrap();
        assert_eq!(
            (got.backend.as_str(), got.nested.as_deref()),
            (backend, nested)
        );
        let rootfs = if nested.is_some() {
            Rootfs::Base
        } else {
            Rootfs::None
        };
        assert_eq!(got.rootfs, rootfs);
    }
}

/// Everything but the offers: 2 runtimes, image or not, 5 × 5 × 3 inputs of the max.
fn every_wish() -> Vec<Wanted> {
    let mut wishes = Vec::new();
    for runtime in [Runtime::Command, Runtime::Wasm] {
        for image in [false, true] {
            for preference in Isolation::ALL {
                for floor in Isolation::ALL {
                    for trust in TRUSTS {
                        wishes.push(Wanted {
                            why: why(preference, floor, trust),
                            ..wanted(runtime, image, floor)
                        });
                    }
                }
            }
        }
    }
    wishes
}

/// Offers of every subset of the five backends, each able, unable or lacking one thing.
fn every_offer() -> Vec<Vec<Offer>> {
    let states = |isolation: Isolation| -> Vec<Option<Offer>> {
        let with = |change: &dyn Fn(&mut Abilities)| {
            let mut abilities = abilities();
            change(&mut abilities);
            Some(Offer {
                state: Ok(abilities),
                ..offer(isolation)
            })
        };
        vec![
            None,
            Some(offer(isolation)),
            Some(Offer {
                state: Err("broken here".to_owned()),
                ..offer(isolation)
            }),
            with(&|abilities| {
                abilities.base = false;
                abilities.host_system = false;
            }),
            with(&|abilities| abilities.images = false),
            with(&|abilities| abilities.nests_wasm = false),
        ]
    };
    let mut sets: Vec<Vec<Offer>> = vec![Vec::new()];
    for isolation in Isolation::ALL {
        let choices = states(isolation);
        sets = sets
            .into_iter()
            .flat_map(|set| {
                choices.iter().map(move |choice| {
                    let mut set = set.clone();
                    set.extend(choice.clone());
                    set
                })
            })
            .collect();
    }
    sets
}

#[test]
fn i2_no_selection_of_the_whole_space_is_weaker_than_any_of_its_inputs() {
    let wishes = every_wish();
    let mut chosen = 0_u64;
    let mut refused = 0_u64;
    for offers in every_offer() {
        for wish in &wishes {
            let Why {
                preference,
                floor,
                trust,
                ..
            } = wish.why;
            match select(wish, &offers, &Anywhere) {
                Ok(got) => {
                    chosen += 1;
                    assert!(got.isolation >= preference);
                    assert!(got.isolation >= floor);
                    assert!(got.isolation >= trust.required());
                    let taken = offers.iter().find(|offer| offer.backend == got.backend);
                    assert!(taken.is_some_and(|offer| offer.state.is_ok()));
                    if got.rootfs == Rootfs::HostSystem {
                        assert_eq!(trust, TrustClass::FirstParty);
                        assert_eq!(got.isolation, Isolation::Process);
                    }
                    assert_eq!(
                        got.nested.is_some(),
                        wish.runtime == Runtime::Wasm && got.isolation > Isolation::Wasm
                    );
                }
                Err(refusal) => {
                    refused += 1;
                    assert_eq!(refusal.needed, wish.why.needed());
                    let strong: Vec<&Offer> = offers
                        .iter()
                        .filter(|offer| offer.isolation >= refusal.needed)
                        .collect();
                    assert_eq!(refusal.considered.len(), strong.len());
                    for offer in strong {
                        assert!(refusal.reason.contains(&format!("`{}`:", offer.backend)));
                    }
                }
            }
        }
    }
    assert!(
        chosen > 100_000 && refused > 100_000,
        "{chosen} and {refused}"
    );
}

#[test]
fn the_cheapest_that_is_able_is_taken_and_cost_never_weakens() {
    let mut offers = all();
    offers[4].cost = 0;
    let got = select(
        &wanted(Runtime::Command, false, Isolation::Container),
        &offers,
        &Anywhere,
    );
    assert_eq!(got.unwrap().backend, "microvm");
    offers[0].cost = 0;
    offers[4].cost = 9;
    let got = select(
        &wanted(Runtime::Command, false, Isolation::Gvisor),
        &offers,
        &Anywhere,
    );
    assert_eq!(got.unwrap().backend, "gvisor");
}

#[test]
fn a_refusal_names_every_backend_that_is_strong_enough_and_why_it_cannot() {
    let mut offers = all();
    offers[3].state = Err("runsc is not installed".to_owned());
    offers[4].state = Err("there is no /dev/kvm".to_owned());
    let wish = Wanted {
        why: why(
            Isolation::Process,
            Isolation::Process,
            TrustClass::Untrusted,
        ),
        ..wanted(Runtime::Command, false, Isolation::Process)
    };
    let refusal = select(&wish, &offers, &Anywhere).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "sandbox unavailable: isolation `gvisor` is needed (trust class `untrusted` demands it), and \
         nothing weaker is used instead; backend `gvisor`: runsc is not installed; backend `microvm`: \
         there is no /dev/kvm"
    );
    let refusal = select(&wish, &offers[..3], &Anywhere).unwrap_err();
    assert!(refusal.reason.ends_with("no backend is that strong"));
}

#[test]
fn i6_an_asked_limit_that_a_backend_cannot_hold_takes_the_next_or_is_a_refusal() {
    let mut offers = vec![offer(Isolation::Process), offer(Isolation::Microvm)];
    let Ok(abilities) = &mut offers[0].state else {
        panic!("not able");
    };
    abilities.unenforced = vec![Resource::Disk];
    let mut wish = wanted(Runtime::Command, false, Isolation::Process);
    assert_eq!(
        select(&wish, &offers, &Anywhere).unwrap().backend,
        "process"
    );
    wish.asked = vec![Resource::Memory, Resource::Disk];
    assert_eq!(
        select(&wish, &offers, &Anywhere).unwrap().backend,
        "microvm"
    );
    let refusal = select(&wish, &offers[..1], &Anywhere).unwrap_err();
    assert!(refusal.reason.contains("cannot hold the asked limits disk"));
}

#[test]
fn placement_and_network_take_away_and_never_weaken() {
    struct Only(&'static str);
    impl Placement for Only {
        fn backend(&self, backend: &str) -> Option<String> {
            (backend != self.0).then(|| "policy does not allow it".to_owned())
        }
        fn zone(&self, zone: &str) -> Option<String> {
            (zone != "local").then(|| "policy does not allow its zone".to_owned())
        }
    }
    let wish = wanted(Runtime::Command, false, Isolation::Gvisor);
    assert_eq!(
        select(&wish, &all(), &Only("microvm")).unwrap().backend,
        "microvm"
    );
    assert!(select(&wish, &all(), &Only("process")).is_err());
    let mut offers = all();
    for offer in &mut offers {
        offer.zone = "abroad".to_owned();
    }
    assert!(select(&wish, &offers, &Only("gvisor")).is_err());
    // A host for WebAssembly that policy bars is barred inside a stronger sandbox as well.
    let nested = wanted(Runtime::Wasm, false, Isolation::Gvisor);
    assert!(select(&nested, &all(), &Only("gvisor")).is_err());
    let mut mute = all();
    for offer in &mut mute {
        if let Ok(abilities) = &mut offer.state {
            abilities.network = false;
        }
    }
    let loud = Wanted {
        network: true,
        ..wanted(Runtime::Command, false, Isolation::Process)
    };
    let strict = Wanted {
        path_rules: true,
        ..wanted(Runtime::Command, false, Isolation::Process)
    };
    assert!(select(&strict, &all(), &Anywhere).is_ok());
    let equipped = |extra: &str| Wanted {
        extras: vec![extra.to_owned()],
        ..wanted(Runtime::Command, false, Isolation::Process)
    };
    assert!(select(&equipped("gpu"), &all(), &Anywhere).is_ok());
    let refusal = select(&equipped("tpu"), &all(), &Anywhere).unwrap_err();
    assert!(refusal.reason.contains("no capability \"tpu\""));
    assert!(select(&loud, &mute, &Anywhere).is_err());
    assert!(select(&loud, &all(), &Anywhere).is_ok());
}
