//! One suite that every engine of the durable plane must pass.
//!
//! Each case gets a store of its own, empty. A case says what must be true of any engine; what belongs to one
//! engine alone (crashes, locks, full disks) is tested beside it.

mod chains;
mod keys;
mod leases;
mod lists;
mod logs;
mod objects;
mod runs;
mod storm;
mod world;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use leasehold_core::digest::CanonicalError;
use leasehold_core::name::NameError;

use crate::seam::{Store, StoreError};
pub use world::{Life, World};

/// Why a case does not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed(pub String);

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        let detail = match &error {
            StoreError::Engine(detail)
            | StoreError::Unwritable(detail)
            | StoreError::Damaged(detail) => detail.for_log(),
            _ => "",
        };
        Self(format!("refused: {error} {detail}"))
    }
}

impl From<CanonicalError> for Failed {
    fn from(error: CanonicalError) -> Self {
        Self(error.to_string())
    }
}

impl From<NameError> for Failed {
    fn from(error: NameError) -> Self {
        Self(error.to_string())
    }
}

/// A result of a case.
pub type Case = Result<(), Failed>;

type Running<'a> = Pin<Box<dyn Future<Output = Case> + Send + 'a>>;

/// Ends the case unless the condition holds.
macro_rules! holds {
    ($condition:expr) => {
        if !$condition {
            return Err($crate::conformance::Failed(format!(
                "line {}: not so: {}",
                line!(),
                stringify!($condition)
            )));
        }
    };
}

/// Ends the case unless both are equal.
macro_rules! equal {
    ($left:expr, $right:expr) => {
        match (&$left, &$right) {
            (left, right) => {
                if left != right {
                    return Err($crate::conformance::Failed(format!(
                        "line {}: {} is {left:?}, not {right:?}",
                        line!(),
                        stringify!($left)
                    )));
                }
            }
        }
    };
}

/// Ends the case unless the call is refused in this way.
macro_rules! refused {
    ($call:expr, $pattern:pat) => {
        match $call.await {
            Err($pattern) => {}
            Err(other) => {
                return Err($crate::conformance::Failed(format!(
                    "line {}: expected {}, got: {other:?}",
                    line!(),
                    stringify!($pattern)
                )));
            }
            Ok(_) => {
                return Err($crate::conformance::Failed(format!(
                    "line {}: expected {}, it was done",
                    line!(),
                    stringify!($pattern)
                )));
            }
        }
    };
}

pub(crate) use {equal, holds, refused};

/// Name and outcome of each case, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// `None` where the promise holds.
    pub rows: Vec<(&'static str, Option<String>)>,
}

impl Report {
    /// Whether every case passed and there was one.
    #[must_use]
    pub fn passed(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(|(_, failure)| failure.is_none())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, failure) in &self.rows {
            match failure {
                None => writeln!(out, "ok   {name}")?,
                Some(why) => writeln!(out, "FAIL {name}: {why}")?,
            }
        }
        Ok(())
    }
}

macro_rules! cases {
    ($($module:ident: $($case:ident),+;)+) => {
        /// Every case by name.
        const CASES: &[(&str, for<'a> fn(&'a World) -> Running<'a>)] = &[
            $($((stringify!($case), |world| Box::pin($module::$case(world)))),+),+
        ];
    };
}

cases! {
    runs: what_is_admitted_is_there_as_given, a_second_run_of_an_id_is_refused,
        no_tenant_no_run, a_wrong_first_event_is_refused, one_key_is_one_run_for_two_hundred,
        a_key_outlives_its_run_until_it_is_pruned, an_outcome_is_fixed_once,
        a_wish_to_end_is_kept, a_seal_needs_an_end_and_is_the_last_word,
        what_is_not_clean_is_told, what_is_kept_long_enough_goes;
    leases: a_lease_is_the_next_epoch, of_twenty_grants_one_wins, an_old_epoch_is_refused_everywhere,
        a_refused_takeover_changes_nothing, what_ended_is_taken_over_to_be_sealed,
        a_revoked_lease_stays_open_until_the_seal;
    chains: each_break_of_a_chain_is_refused, a_refused_event_takes_its_others_along,
        of_two_writers_one_goes_on, an_allocation_is_noted, events_come_in_pages;
    logs: a_log_links_what_happened, changes_are_all_or_nothing, an_entry_tells_of_its_change,
        heads_only_grow;
    keys: a_name_of_a_tenant_is_used_once, keys_are_revoked_once, tools_never_change,
        policies_count_by_one, what_a_tenant_publishes_is_bounded,
        keys_that_ended_are_forgotten_before_there_are_too_many, workers_and_results_are_kept;
    lists: pages_have_no_gap_and_nothing_twice, filters_hold, another_tenants_is_not_there;
    objects: an_upload_is_its_tenants_alone_and_bounded, an_upload_stays_while_a_run_begins_with_it,
        what_is_named_is_told_until_its_time_is_over, a_key_tells_its_run,
        what_is_not_sealed_comes_oldest_first;
    storm: sixteen_callers_leave_whole_chains;
}

/// Runs every case, each on a store that `make` gives.
///
/// # Errors
/// When a store cannot be made.
pub async fn all(make: &dyn Fn() -> Result<Arc<dyn Store>, String>) -> Result<Report, String> {
    let mut rows = Vec::new();
    for (name, case) in CASES {
        let world = World::new(make()?);
        rows.push((*name, case(&world).await.err().map(|failed| failed.0)));
    }
    Ok(Report { rows })
}
