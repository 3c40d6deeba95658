//! How a run ends: one closed enum, decided by the host in one fixed order.

use serde::{Deserialize, Serialize};

use crate::limits::Resource;

/// How the main process ended, as the host saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ExitStatus {
    /// It returned this status.
    Exit {
        /// 0 to 255.
        code: u8,
    },
    /// A signal ended it.
    Signal {
        /// Signal number.
        number: u8,
    },
    /// The command is not there.
    NotFound,
    /// The command is there and cannot be executed.
    NotExecutable,
    /// A WebAssembly trap.
    Trap {
        /// The engine's name for it.
        name: String,
    },
}

impl ExitStatus {
    /// Whether it is plain success.
    #[must_use]
    pub fn success(&self) -> bool {
        *self == Self::Exit { code: 0 }
    }

    /// The status a shell would give.
    #[must_use]
    pub fn shell_status(&self) -> u8 {
        match self {
            Self::Exit { code } => *code,
            Self::Signal { number } => 128u8.saturating_add(*number),
            Self::NotFound => 127,
            Self::NotExecutable => 126,
            Self::Trap { .. } => 134,
        }
    }
}

/// Who cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum CancelledBy {
    /// Whoever asked for the run.
    Caller,
    /// The operator of this host.
    Operator,
}

/// Which part of a lease ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum LeaseExpiry {
    /// Nobody used it for the idle timeout.
    Idle,
    /// The hard deadline came.
    Deadline,
}

/// A limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LimitHit {
    /// Which resource.
    pub which: Resource,
    /// Its limit, in the unit of the resource: bytes, milliseconds or a count.
    pub limit: u64,
    /// What the host observed, in the same unit; for counters of denials, how many.
    pub observed: u64,
}

/// Why a run is over. Kept after the sandbox is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "reason")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum EndReason {
    /// It never started: no capacity, capability or time.
    SandboxUnavailable {
        /// What was missing.
        detail: String,
    },
    /// Somebody ended it.
    Cancelled {
        /// Who.
        by: CancelledBy,
    },
    /// The lease of its sandbox ran out.
    LeaseExpired {
        /// Which part.
        cause: LeaseExpiry,
    },
    /// The wall limit.
    Timeout {
        /// The limit in milliseconds.
        limit_ms: u64,
    },
    /// A limit killed it, or denied it something and it then failed.
    ResourceExceeded {
        /// Which limit, its value and what was observed.
        #[serde(flatten)]
        hit: LimitHit,
        /// How the main process ended, where the limit only denied.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit: Option<ExitStatus>,
    },
    /// The host or worker went away under it.
    HostLost,
    /// Our init, agent or runtime died first.
    SandboxCrashed {
        /// What was seen.
        diagnostics: String,
    },
    /// The command itself failed.
    ToolError {
        /// How.
        exit: ExitStatus,
    },
    /// Its output does not match the declared schema.
    InvalidOutput {
        /// Where.
        detail: String,
    },
    /// It returned 0.
    Completed,
}

impl EndReason {
    /// Exit status of the command line.
    #[must_use]
    pub fn cli_status(&self) -> u8 {
        match self {
            Self::SandboxUnavailable { .. } | Self::HostLost | Self::SandboxCrashed { .. } => 125,
            Self::Cancelled { .. } => 130,
            Self::LeaseExpired { .. } | Self::Timeout { .. } => 124,
            Self::ResourceExceeded { .. } => 137,
            Self::ToolError { exit } => exit.shell_status(),
            Self::InvalidOutput { .. } => 65,
            Self::Completed => 0,
        }
    }

    /// HTTP status for a tool's result.
    #[must_use]
    pub fn http_status(&self) -> u16 {
        match self {
            Self::SandboxUnavailable { .. } => 503,
            Self::Cancelled { .. } | Self::Completed => 200,
            Self::LeaseExpired { .. } => 410,
            Self::Timeout { .. } => 504,
            Self::ResourceExceeded { .. } => 400,
            Self::HostLost | Self::SandboxCrashed { .. } | Self::InvalidOutput { .. } => 502,
            Self::ToolError { .. } => 422,
        }
    }

    /// One phrase for people, for the last line on standard error.
    #[must_use]
    pub fn phrase(&self) -> String {
        match self {
            Self::SandboxUnavailable { detail } => format!("sandbox unavailable: {detail}"),
            Self::Cancelled {
                by: CancelledBy::Caller,
            } => "cancelled by the caller".to_owned(),
            Self::Cancelled {
                by: CancelledBy::Operator,
            } => "cancelled by the operator".to_owned(),
            Self::LeaseExpired {
                cause: LeaseExpiry::Idle,
            } => "lease expired: idle".to_owned(),
            Self::LeaseExpired {
                cause: LeaseExpiry::Deadline,
            } => "lease expired: deadline".to_owned(),
            Self::Timeout { limit_ms } => format!(
                "timeout: ran longer than {}",
                Resource::Wall.amount(*limit_ms)
            ),
            Self::ResourceExceeded { hit, exit } => phrase_hit(*hit, exit.as_ref()),
            Self::HostLost => "host lost: the supervisor went away during the run".to_owned(),
            Self::SandboxCrashed { diagnostics } => format!("sandbox crashed: {diagnostics}"),
            Self::ToolError { exit } => phrase_exit(exit),
            Self::InvalidOutput { detail } => format!("invalid output: {detail}"),
            Self::Completed => "completed".to_owned(),
        }
    }
}

fn phrase_hit(hit: LimitHit, exit: Option<&ExitStatus>) -> String {
    let limit = hit.which.amount(hit.limit);
    let word = hit.which.word();
    match exit {
        // Which bound it was, and in which unit, is told beside the end.
        None if hit.which == Resource::Compile => {
            "compile limit: the module takes more to compile than it may; it was not run".to_owned()
        }
        None => format!("resource exceeded: {word} (limit {limit}); it was ended"),
        Some(exit) => {
            format!(
                "resource exceeded: {word} (limit {limit}) was denied, then: {}",
                phrase_exit(exit)
            )
        }
    }
}

fn phrase_exit(exit: &ExitStatus) -> String {
    match exit {
        ExitStatus::Exit { code } => format!("exit status {code}"),
        ExitStatus::Signal { number } => format!("ended by signal {number}"),
        ExitStatus::NotFound => "command not found".to_owned(),
        ExitStatus::NotExecutable => "command not executable".to_owned(),
        ExitStatus::Trap { name } => format!("trap: {name}"),
    }
}

/// What the host observed of one run. The guest's own words are not among it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observations {
    /// Why it never started.
    pub never_started: Option<String>,
    /// Somebody asked for its end before it came.
    pub cancelled: Option<CancelledBy>,
    /// Its lease ran out.
    pub lease_expired: Option<LeaseExpiry>,
    /// Its wall limit in milliseconds ran out.
    pub wall_expired_ms: Option<u64>,
    /// A limit ended it.
    pub killed_by: Option<LimitHit>,
    /// Limits that denied it something.
    pub denied: Vec<LimitHit>,
    /// The supervisor went away.
    pub host_lost: bool,
    /// Our own part inside died first.
    pub crashed: Option<String>,
    /// How the main process ended.
    pub exit: Option<ExitStatus>,
    /// Its output broke its schema.
    pub invalid_output: Option<String>,
}

/// Decides the end: the first row that holds, in the order of the design's table.
#[must_use]
pub fn decide(seen: &Observations) -> EndReason {
    if let Some(detail) = &seen.never_started {
        return EndReason::SandboxUnavailable {
            detail: detail.clone(),
        };
    }
    if let Some(by) = seen.cancelled {
        return EndReason::Cancelled { by };
    }
    if let Some(cause) = seen.lease_expired {
        return EndReason::LeaseExpired { cause };
    }
    if let Some(limit_ms) = seen.wall_expired_ms {
        return EndReason::Timeout { limit_ms };
    }
    if let Some(hit) = seen.killed_by {
        return EndReason::ResourceExceeded { hit, exit: None };
    }
    let failed = seen.exit.as_ref().filter(|exit| denial_could_cause(exit));
    if let (Some(hit), Some(exit)) = (seen.denied.first(), failed) {
        return EndReason::ResourceExceeded {
            hit: *hit,
            exit: Some(exit.clone()),
        };
    }
    if seen.host_lost {
        return EndReason::HostLost;
    }
    if let Some(diagnostics) = &seen.crashed {
        return EndReason::SandboxCrashed {
            diagnostics: diagnostics.clone(),
        };
    }
    match &seen.exit {
        None => EndReason::SandboxCrashed {
            diagnostics: "the exit status was never seen".to_owned(),
        },
        Some(exit) if !exit.success() => EndReason::ToolError { exit: exit.clone() },
        Some(_) => match &seen.invalid_output {
            Some(detail) => EndReason::InvalidOutput {
                detail: detail.clone(),
            },
            None => EndReason::Completed,
        },
    }
}

/// A denied limit explains a failing exit, never a success or a command that is not there.
fn denial_could_cause(exit: &ExitStatus) -> bool {
    match exit {
        ExitStatus::Exit { code } => *code != 0,
        ExitStatus::Signal { .. } | ExitStatus::Trap { .. } => true,
        ExitStatus::NotFound | ExitStatus::NotExecutable => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(which: Resource) -> LimitHit {
        LimitHit {
            which,
            limit: 10,
            observed: 11,
        }
    }

    /// Each row sets its own field on top of all later rows; the earliest must win.
    #[test]
    fn the_first_row_that_holds_decides() {
        let mut seen = Observations {
            exit: Some(ExitStatus::Exit { code: 0 }),
            ..Default::default()
        };
        assert_eq!(decide(&seen), EndReason::Completed);
        seen.exit = Some(ExitStatus::Exit { code: 3 });
        assert_eq!(
            decide(&seen),
            EndReason::ToolError {
                exit: ExitStatus::Exit { code: 3 }
            }
        );
        seen.crashed = Some("init died".into());
        assert!(matches!(decide(&seen), EndReason::SandboxCrashed { .. }));
        seen.host_lost = true;
        assert_eq!(decide(&seen), EndReason::HostLost);
        seen.denied = vec![hit(Resource::Disk)];
        assert!(matches!(
            decide(&seen),
            EndReason::ResourceExceeded { exit: Some(_), .. }
        ));
        seen.killed_by = Some(hit(Resource::Memory));
        assert_eq!(
            decide(&seen),
            EndReason::ResourceExceeded {
                hit: hit(Resource::Memory),
                exit: None
            }
        );
        seen.wall_expired_ms = Some(7);
        assert_eq!(decide(&seen), EndReason::Timeout { limit_ms: 7 });
        seen.lease_expired = Some(LeaseExpiry::Idle);
        assert!(matches!(decide(&seen), EndReason::LeaseExpired { .. }));
        seen.cancelled = Some(CancelledBy::Caller);
        assert!(matches!(decide(&seen), EndReason::Cancelled { .. }));
        seen.never_started = Some("no room".into());
        assert!(matches!(
            decide(&seen),
            EndReason::SandboxUnavailable { .. }
        ));
    }

    #[test]
    fn a_denial_that_the_program_survived_is_no_failure() {
        let seen = Observations {
            denied: vec![hit(Resource::Disk)],
            exit: Some(ExitStatus::Exit { code: 0 }),
            ..Default::default()
        };
        assert_eq!(decide(&seen), EndReason::Completed);
    }

    #[test]
    fn a_missing_command_stays_a_missing_command() {
        let seen = Observations {
            denied: vec![hit(Resource::Pids)],
            exit: Some(ExitStatus::NotFound),
            ..Default::default()
        };
        assert_eq!(decide(&seen).cli_status(), 127);
    }

    #[test]
    fn statuses_of_the_command_line() {
        let signal = EndReason::ToolError {
            exit: ExitStatus::Signal { number: 11 },
        };
        assert_eq!(signal.cli_status(), 139);
        let memory = EndReason::ResourceExceeded {
            hit: hit(Resource::Memory),
            exit: None,
        };
        assert_eq!(memory.cli_status(), 137);
        assert!(memory.phrase().contains("memory"));
        assert_eq!(EndReason::Timeout { limit_ms: 1 }.cli_status(), 124);
    }

    #[test]
    fn the_record_names_the_reason_flat() {
        let end = EndReason::ResourceExceeded {
            hit: hit(Resource::Memory),
            exit: None,
        };
        let text = serde_json::to_string(&end).unwrap();
        assert_eq!(
            text,
            r#"{"reason":"resource_exceeded","which":"memory","limit":10,"observed":11}"#
        );
        assert_eq!(serde_json::from_str::<EndReason>(&text).unwrap(), end);
    }
}
