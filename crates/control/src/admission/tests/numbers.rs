//! Limits, lifetimes and shares between caller, tool and policy.

use leasehold_core::limits::OnDenied;

use super::*;

#[test]
fn three_lifetimes_are_kept_apart_and_leave_room_for_each_other() {
    let attempt = Try::new(None, policy(&[]));
    let of = |text: &str| attempt.of(&format!(r#"{{"command":["true"]{text}}}"#));
    let plan =
        of(r#","limits":{"timeout":"10s","grace":"1s"},"retention":{"logs":"1h","record":"48h"}"#)
            .unwrap();
    let contract = plan.contract;
    assert_eq!(contract.allocation.hard_deadline_ms, 71_000);
    assert_eq!(contract.authority.lease_ms, 71_000);
    assert_eq!(
        (contract.retention.logs_s, contract.retention.record_s),
        (3_600, 172_800)
    );
    let refused =
        of(r#","limits":{"timeout":"10s"},"lifetimes":{"hard_deadline":"5s"}"#).unwrap_err();
    assert!(
        refused
            .message
            .starts_with("lifetimes.hard_deadline: 5s: it must leave room"),
        "{refused}"
    );
    // A policy's hard deadline shortens a wall limit that nobody asked for, never one that was asked for.
    let strict = Try::new(
        None,
        policy(&[(
            "platform/tenant/default",
            &inherit("lifetimes: {hard_deadline: 20s}\ntrust: {commands: first_party}"),
        )]),
    );
    let plan = strict.of(r#"{"command":["true"]}"#).unwrap();
    assert_eq!(
        plan.contract.limits.wall_ms.value + plan.contract.limits.grace_ms,
        20_000
    );
    assert!(
        strict
            .of(r#"{"command":["true"],"limits":{"timeout":"1m"}}"#)
            .is_err()
    );
}

#[test]
fn a_caller_who_asks_for_more_than_allowed_is_refused_and_told_by_whom() {
    let attempt = Try::new(None, policy(&[]));
    for (more, told) in [
        (
            r#""limits":{"memory":"8G"}"#,
            "limits.memory: 8G: policy platform (built in) allows at most 4G",
        ),
        (
            r#""limits":{"timeout":"2h"}"#,
            "limits.timeout: 2h: policy platform (built in) allows at most 1h",
        ),
        (
            r#""max_wait":"2h""#,
            "share.max_wait: 2h: policy platform (built in) allows at most 1h",
        ),
        (
            r#""priority":101"#,
            "priority: 101: policy platform (built in) allows at most 100",
        ),
        (
            r#""retention":{"logs":"1000h"}"#,
            "retention.logs: 1000h: policy platform (built in) allows at most 720h",
        ),
    ] {
        let error = attempt
            .of(&format!(r#"{{"command":["true"],{more}}}"#))
            .unwrap_err();
        assert_eq!(
            (error.kind, error.message.as_str()),
            (ErrorKind::Invalid, told)
        );
    }
    let limited = Try::new(
        Some(tool(&format!("{TOOL}limits: {{memory: 64M, pids: 8}}\n"))),
        trusted(),
    );
    let error = limited
        .of(r#"{"tool":"text.wordcount","limits":{"memory":"65M"}}"#)
        .unwrap_err();
    assert_eq!(
        error.message,
        "limits.memory: 65M: the tool allows at most 64M"
    );
    let plan = limited
        .of(r#"{"tool":"text.wordcount","limits":{"memory":"32M"}}"#)
        .unwrap();
    assert_eq!(plan.contract.limits.memory_bytes.value, 32 << 20);
    assert_eq!(plan.contract.limits.pids.value, 8);
}

#[test]
fn what_a_tool_says_is_lowered_to_policy_with_a_warning() {
    let lowered = policy(&[(
        "platform/tenant/default",
        &inherit("limits: {memory: 32M}\ntrust: {tools: {'*': first_party}}"),
    )]);
    let attempt = Try::new(
        Some(tool(&format!("{TOOL}limits: {{memory: 64M}}\n"))),
        lowered,
    );
    let plan = attempt.of(r#"{"tool":"text.wordcount"}"#).unwrap();
    assert_eq!(plan.contract.limits.memory_bytes.value, 32 << 20);
    assert_eq!(
        plan.warnings,
        [
            "limits.memory: the tool asks for 64M; policy platform/tenant/default (version 1) allows 32M"
        ]
    );
}

#[test]
fn i6_a_promise_that_no_backend_holds_is_a_refusal_and_a_default_is_not() {
    let mut attempt = Try::new(None, policy(&[]));
    if let Ok(abilities) = &mut attempt.offers[0].state {
        abilities.unenforced = vec![Resource::Memory, Resource::Pids];
    }
    // Nobody asked: the built-in policy is a default of ours.
    assert!(attempt.of(r#"{"command":["true"]}"#).is_ok());
    let error = attempt
        .of(r#"{"command":["true"],"limits":{"memory":"64M"}}"#)
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert!(
        error
            .message
            .contains("backend `process`: this host cannot hold the asked limits memory"),
        "{error}"
    );
    // A published policy that bounds it makes it a promise.
    attempt.known.policy = policy(&[(
        "platform/tenant/default",
        &inherit("limits: {pids: 64}\ntrust: {commands: first_party}"),
    )]);
    let error = attempt.of(r#"{"command":["true"]}"#).unwrap_err();
    assert!(
        error.message.contains("cannot hold the asked limits pids"),
        "{error}"
    );
}

#[test]
fn shares_come_from_policy() {
    let shared = policy(&[
        (
            "platform/tenant/default",
            &inherit(
                "share: {weight: 3, running: 5, queued: 7, per_minute: 11}\ntrust: {tools: {'*': first_party}}",
            ),
        ),
        (
            "tenant/default/tool/text.wordcount",
            &inherit("share: {tool_running: 2, max_wait: 3s}"),
        ),
    ]);
    let plan = Try::new(Some(tool(TOOL)), shared)
        .of(r#"{"tool":"text.wordcount"}"#)
        .unwrap();
    let share = plan.share;
    assert_eq!(
        (
            share.weight,
            share.tenant_running_max,
            share.tenant_queued_max,
            share.per_minute_max
        ),
        (3, 5, 7, 11)
    );
    assert_eq!(share.tool_running_max, Some((name("text.wordcount"), 2)));
    assert_eq!(plan.contract.max_wait_ms, 3_000);
}

#[test]
fn a_bare_command_gets_the_computer_that_is_kept_parked() {
    let attempt = Try::new(None, policy(&[]));
    let plain = attempt.of(r#"{"command":["true"]}"#).unwrap();
    let parked = SandboxSpec::default();
    assert!(parked.limits.same_slot(&plain.start.sandbox.limits));
    assert_eq!(parked.workspace, plain.start.sandbox.workspace);
    assert_eq!(parked.warm, plain.start.sandbox.warm);
    let more = r#"{"command":["true"],"limits":{"memory":"600M"}}"#;
    let other = attempt.of(more).unwrap();
    assert!(!parked.limits.same_slot(&other.start.sandbox.limits));
}

#[test]
fn what_a_denied_limit_does_is_the_stricter_word_of_caller_and_tool() {
    let of = |tool_says: &str, caller_says: &str| {
        let manifest = format!("{TOOL}{tool_says}");
        let attempt = Try::new(Some(tool(&manifest)), trusted());
        let request = format!(r#"{{"tool":"text.wordcount"{caller_says}}}"#);
        attempt.of(&request).unwrap().contract.limits.on_denied
    };
    let (note, kill) = ("limits: {on_denied: note}\n", "limits: {on_denied: kill}\n");
    let asked = r#","limits":{"on_denied":"kill"}"#;
    let mild = r#","limits":{"on_denied":"note"}"#;
    assert_eq!(of("", ""), OnDenied::Note);
    assert_eq!(of(note, asked), OnDenied::Kill);
    assert_eq!(of(kill, mild), OnDenied::Kill);
    assert_eq!(of(note, mild), OnDenied::Note);
}
