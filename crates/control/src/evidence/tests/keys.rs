//! P71, keys: wrong, retired, rotated; and the file they are kept in.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use super::super::fault::Signed;
use super::super::keys::KeyError;
use super::super::seal::{Signer, sign_head};
use super::super::verify::verify;
use super::super::{Fault, Keyring, Trust};
use super::{Made, NOW, Scratch, inventory, made, made_with};
use crate::clock::PausedClock;
use crate::engine::parts::Sealer;

fn pinned(id: leasehold_core::digest::Digest) -> Trust {
    Trust::Pinned(BTreeSet::from([id]))
}

#[tokio::test]
async fn p71_a_wrong_key_is_named() {
    let made = made();
    let stranger = Scratch::new().keyring();
    let text = made.bundle.text().unwrap();
    let verdict = verify(text.as_bytes(), &pinned(stranger.id()));
    let wrong = Fault::UnknownKey(Signed::Statement, made.keyring.id());
    assert_eq!(verdict.faults, [wrong]);
    // Everything signed anew by a stranger, its own list included.
    let other = made_with(7, "hello", inventory(true, "as seen"));
    let forged = other.bundle.text().unwrap();
    let verdict = verify(forged.as_bytes(), &made.trust());
    assert_eq!(
        verdict.faults,
        [Fault::UnknownKey(Signed::Statement, other.keyring.id())]
    );
    // Its statement under the true list.
    let mut mixed = made.bundle.clone();
    mixed.statement = other.bundle.statement.clone();
    assert_eq!(
        made.check(&mixed).faults,
        [Fault::UnknownKey(Signed::Statement, other.keyring.id())]
    );
    // A stranger's signature under the true key's name.
    let mut claimed = made.bundle.clone();
    claimed.statement.signatures[0].sig = other.bundle.statement.signatures[0].sig.clone();
    assert_eq!(
        made.check(&claimed).faults,
        [Fault::BadSignature(Signed::Statement, made.keyring.id())]
    );
    // A stranger's list that names the true key.
    let mut listed = made.bundle.clone();
    listed.keys.signatures = other.bundle.keys.signatures.clone();
    assert!(matches!(
        made.check(&listed).faults[..],
        [Fault::BadSignature(Signed::Keys, _)]
    ));
}

/// The bundle with its anchors and list signed by the keyring as it is now.
fn shown_at(made: &Made, now: u64) -> super::Bundle {
    let clock = Arc::new(PausedClock::new(now));
    let signer = Signer::new(Arc::clone(&made.keyring), clock);
    let mut bundle = made.bundle.clone();
    for anchor in [&mut bundle.opened, &mut bundle.sealed] {
        let entry = anchor.clone().unwrap().entry;
        *anchor = Some(signer.anchor(entry).unwrap());
    }
    bundle.keys = signer.keys();
    bundle
}

#[tokio::test]
async fn p71_after_a_rotation_old_evidence_holds_and_old_keys_sign_nothing_new() {
    let made = made();
    let old = made.keyring.id();
    let old_file = std::fs::read(made.scratch.key_file()).unwrap();
    let new = made.keyring.rotate(NOW + 100).unwrap();
    assert_ne!(old, new);
    // Whoever trusts the new key takes what the old one signed in its time.
    let bundle = shown_at(&made, NOW + 200);
    let text = bundle.text().unwrap();
    let verdict = verify(text.as_bytes(), &pinned(new));
    assert!(verdict.holds(), "{verdict}");
    // Somebody has a copy of the old key and signs a head after it was retired.
    let stolen = Scratch::new();
    std::fs::write(stolen.key_file(), &old_file).unwrap();
    std::fs::set_permissions(stolen.key_file(), PermissionsExt::from_mode(0o600)).unwrap();
    let thief = stolen.keyring();
    assert_eq!(thief.id(), old);
    let mut late = bundle.clone();
    if let Some(sealed) = &mut late.sealed {
        let head = leasehold_core::event::Head {
            count: sealed.entry.seq + 1,
            digest: sealed.entry.digest().unwrap(),
        };
        sealed.head = sign_head(&thief, &late.tenant, head, NOW + 300).unwrap();
    }
    let verdict = verify(late.text().unwrap().as_bytes(), &pinned(new));
    assert_eq!(
        verdict.faults,
        [Fault::RetiredKey {
            signed: Signed::Head,
            key: old,
            until_unix_ms: NOW + 100,
            at_unix_ms: NOW + 300,
        }]
    );
    // Whoever knows only the old key does not take the new one on its word.
    let verdict = verify(text.as_bytes(), &pinned(old));
    assert!(
        verdict
            .faults
            .contains(&Fault::UnknownKey(Signed::Head, new)),
        "{verdict}"
    );
    // The list from before the rotation does not know the new key.
    let mut before = bundle.clone();
    before.keys = made.bundle.keys.clone();
    let verdict = verify(before.text().unwrap().as_bytes(), &pinned(old));
    assert!(
        verdict
            .faults
            .contains(&Fault::UnknownKey(Signed::Head, new)),
        "{verdict}"
    );
}

#[tokio::test]
async fn p71_a_retired_key_cannot_write_an_earlier_time() {
    // The log sealed the run after the key was retired; the thief wrote an earlier time into the statement.
    let made = made();
    made.keyring.rotate(NOW - 10).unwrap();
    let bundle = shown_at(&made, NOW + 5);
    let text = bundle.text().unwrap();
    let verdict = verify(text.as_bytes(), &pinned(made.keyring.id()));
    assert!(
        verdict.faults.iter().any(|fault| matches!(
            fault,
            Fault::RetiredKey {
                signed: Signed::Statement,
                ..
            }
        )),
        "{verdict}"
    );
}

#[test]
fn a_key_file_is_its_owners_alone_and_stays_the_same() {
    let scratch = Scratch::new();
    let path = scratch.key_file();
    let id = Keyring::open(&path, 1).unwrap().id();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    assert_eq!(Keyring::open(&path, 99).unwrap().id(), id);
    let keyring = Keyring::open(&path, 99).unwrap();
    let next = keyring.rotate(50).unwrap();
    assert_eq!(Keyring::open(&path, 99).unwrap().id(), next);
    assert!(!format!("{keyring:?}").contains("seed"));
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    assert!(matches!(
        Keyring::open(&path, 1),
        Err(KeyError::Open { mode: 0o640, .. })
    ));
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let at = text.find("\"seed\":\"").unwrap() + 10;
    let mut other = text.into_bytes();
    other[at] = if other[at] == b'0' { b'1' } else { b'0' };
    std::fs::write(&path, &other).unwrap();
    assert!(matches!(
        Keyring::open(&path, 1),
        Err(KeyError::Damaged { .. })
    ));
}
