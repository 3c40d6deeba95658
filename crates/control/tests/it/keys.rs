//! Keys: what proves somebody, what does not, and who may make which.

use leasehold_control::auth::{Token, authenticate, bearer};
use leasehold_control::keys;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::tenant::Role;

use crate::scratch::{NOW, Scratch, entropy, name, order};

/// Texts made from a good token that are none.
fn wrong_in_form(good: &str) -> Vec<String> {
    let mut altered = good.to_owned();
    let last = altered.pop().unwrap();
    altered.push(if last == 'a' { 'b' } else { 'a' });
    let header = format!("Bearer {good}");
    let basic = format!("Basic {good}");
    vec![
        String::new(),
        " ".to_owned(),
        "lh_".to_owned(),
        good[..good.len() - 1].to_owned(),
        good.to_uppercase(),
        format!("{good} "),
        format!("{good}a"),
        altered,
        good.replace(&good[3..24], "k77777777777777777777"),
        format!("{good}{}", "a".repeat(1 << 20)),
        "lh_k77777777777777777777_".to_owned(),
        "eyJhbGciOiJub25lIn0.e30.".to_owned(),
        bearer(&[]).to_owned(),
        bearer(&[header.as_bytes(), header.as_bytes()]).to_owned(),
        bearer(&[basic.as_bytes()]).to_owned(),
        bearer(&[good.as_bytes()]).to_owned(),
    ]
}

#[tokio::test]
async fn p67_every_token_that_is_not_good_gets_the_one_answer() {
    let scratch = Scratch::new().await;
    let store = &scratch.store;
    let (token, who) = scratch.key("acme", Role::Runner).await;
    let good = token.reveal().to_owned();
    // The control: the token itself, from one header of the right scheme.
    let header = format!("Bearer {good}");
    assert_eq!(
        authenticate(store, bearer(&[header.as_bytes()]), NOW)
            .await
            .unwrap(),
        who
    );

    let mut order = order("acme", Role::Runner);
    order.expires_unix_ms = Some(NOW + 1_000);
    let (_, expiring) = keys::create(store, &scratch.operator, NOW, order, &entropy())
        .await
        .unwrap();
    assert!(
        authenticate(store, expiring.reveal(), NOW + 999)
            .await
            .is_ok()
    );
    let (revoked, owner) = scratch.key("acme", Role::Runner).await;
    keys::revoke(store, &scratch.operator, NOW, &owner.key)
        .await
        .unwrap();
    let (_, other) = scratch.key("acme", Role::Runner).await;

    let mut bad = wrong_in_form(&good);
    bad.push(good.replace(who.key.as_str(), other.key.as_str()));
    bad.push(revoked.reveal().to_owned());
    let one = leasehold_control::auth::refused();
    for token in &bad {
        let shown: String = token.chars().take(40).collect();
        assert_eq!(
            authenticate(store, token, NOW).await.unwrap_err(),
            one,
            "{shown:?}"
        );
    }
    for late in [NOW + 1_000, u64::MAX] {
        assert_eq!(
            authenticate(store, expiring.reveal(), late)
                .await
                .unwrap_err(),
            one
        );
    }
    assert!(!one.message.contains(&good) && one.kind == ErrorKind::Unauthenticated);
}

#[tokio::test]
async fn who_may_make_and_see_which_keys() {
    let scratch = Scratch::new().await;
    let store = &scratch.store;
    let (_, admin) = scratch.key("acme", Role::Admin).await;
    let (_, runner) = scratch.key("acme", Role::Runner).await;
    let make = |who, order| keys::create(store, who, NOW, order, Box::leak(Box::new(entropy())));
    assert!(make(&admin, order("acme", Role::Developer)).await.is_ok());
    let kinds = [
        (
            make(&runner, order("acme", Role::Auditor))
                .await
                .unwrap_err()
                .kind,
            ErrorKind::Forbidden,
        ),
        (
            make(&admin, order("acme", Role::Operator))
                .await
                .unwrap_err()
                .kind,
            ErrorKind::Forbidden,
        ),
        (
            make(&admin, order("default", Role::Runner))
                .await
                .unwrap_err()
                .kind,
            ErrorKind::NotFound,
        ),
        (
            make(&admin, order("nobody", Role::Runner))
                .await
                .unwrap_err()
                .kind,
            ErrorKind::NotFound,
        ),
    ];
    for (got, want) in kinds {
        assert_eq!(got, want);
    }
    let mut elsewhere = order("acme", Role::Runner);
    elsewhere.project = name("none");
    assert_eq!(
        make(&admin, elsewhere).await.unwrap_err().kind,
        ErrorKind::NotFound
    );
    let mut over = order("acme", Role::Runner);
    over.expires_unix_ms = Some(NOW);
    assert!(
        make(&admin, over)
            .await
            .unwrap_err()
            .message
            .starts_with("expires: ")
    );
    let mut wide = order("acme", Role::Runner);
    wide.grants = vec!["Repo".to_owned()];
    assert!(
        make(&admin, wide)
            .await
            .unwrap_err()
            .message
            .starts_with("grants[0]: ")
    );
}

#[tokio::test]
async fn p66_another_tenants_key_and_one_that_is_not_there_look_the_same() {
    let scratch = Scratch::new().await;
    let store = &scratch.store;
    let (_, admin) = scratch.key("acme", Role::Admin).await;
    let (_, runner) = scratch.key("acme", Role::Runner).await;
    let theirs = keys::revoke(store, &admin, NOW, &scratch.operator.key)
        .await
        .unwrap_err();
    let nobodys = leasehold_core::id::KeyId::from_entropy(&[0xee; 13]);
    assert_eq!(
        theirs,
        keys::revoke(store, &admin, NOW, &nobodys)
            .await
            .unwrap_err()
    );
    let listed = keys::list(store, &admin, None).await.unwrap();
    assert!(listed.len() == 2 && listed.iter().all(|key| key.tenant.as_str() == "acme"));
    assert_eq!(
        keys::list(store, &admin, Some(&name("default")))
            .await
            .unwrap_err()
            .kind,
        ErrorKind::NotFound
    );
    // Revoking twice is answered as it was the first time.
    let first = keys::revoke(store, &admin, NOW + 1, &runner.key)
        .await
        .unwrap();
    let again = keys::revoke(store, &admin, NOW + 2, &runner.key)
        .await
        .unwrap();
    assert_eq!(
        (first.revoked_unix_ms, again.revoked_unix_ms),
        (Some(NOW + 1), Some(NOW + 1))
    );
    // There is one first key, once.
    let never = |_: &Token| -> Result<(), PublicError> { panic!("nothing is to be kept") };
    assert!(
        keys::first(store, NOW, &entropy(), never)
            .await
            .unwrap()
            .is_none()
    );
}
