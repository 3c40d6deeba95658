//! Reading run records in assertions. No tests here.

use leasehold_e2e::Instance;
use serde_json::Value;

/// The word for how the run ended.
#[track_caller]
pub(crate) fn reason(record: &Value) -> &str {
    record["end"]["reason"]
        .as_str()
        .unwrap_or_else(|| panic!("no end in {record:#}"))
}

/// The limit that ended the run.
#[track_caller]
pub(crate) fn exceeded(record: &Value) -> &str {
    assert_eq!(reason(record), "resource_exceeded", "{record:#}");
    record["end"]["which"]
        .as_str()
        .unwrap_or_else(|| panic!("no limit in {record:#}"))
}

/// The record says what was seen after removal, and that all of it was gone (invariant I7).
#[track_caller]
pub(crate) fn assert_clean(record: &Value) {
    let residues = record["cleanup"]["residues"].as_array();
    let residues = residues.unwrap_or_else(|| panic!("no cleanup inventory in {record:#}"));
    assert!(
        !residues.is_empty(),
        "an empty inventory proves nothing: {record:#}"
    );
    for residue in residues {
        assert_eq!(residue["clean"], true, "{record:#}");
    }
}

/// The host itself shows that nothing of the instance is left once its supervisor is stopped.
#[track_caller]
pub(crate) fn assert_nothing_left(instance: &Instance) {
    let left = instance.stopped_inventory();
    assert!(left.is_empty(), "left on the host:\n{left}");
}
