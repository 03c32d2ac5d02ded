//! Settings of the controller: mode, approval, rate limits and delays.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use crate::model::ids::PoolName;

/// The mode of the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Plan, and change nothing.
    #[default]
    Observe,
    /// Launch; remove only instances that are being interrupted anyway.
    Additive,
    /// Launch and remove, so that the fleet matches the repository.
    Full,
}

impl Mode {
    /// The modes by their spelling.
    pub const ALL: [(&'static str, Self); 3] =
        [("observe", Self::Observe), ("additive", Self::Additive), ("full", Self::Full)];

    /// Returns the mode as settings spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Additive => "additive",
            Self::Full => "full",
        }
    }
}

/// The approval that the controller's plans require.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ApprovalRule {
    /// None beyond the merge of the commit.
    #[default]
    Merge,
    /// An approval of the plan's digest.
    Digest,
    /// Policies without a denial or warning; else an approval of the plan's digest.
    Policy,
}

/// Who applies the changes of a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AppliedBy {
    /// The controller.
    #[default]
    Controller,
    /// CI; until it has, or its timeout expires, the controller serves the previous commit.
    Ci,
}

/// A limit on launches or removals within a time window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Maximum number of instances.
    pub limit: CountOrShare,
    /// Time window.
    pub window: SignedDuration,
}

/// A number of instances, absolute or relative to the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountOrShare {
    /// A number.
    Count(u32),
    /// A share of the nodes, in thousandths of a percent; at least one.
    Share(u32),
}

impl RateLimit {
    /// The longest window: the controller remembers launches and removals for as long.
    pub const WINDOW_MAX: SignedDuration = SignedDuration::from_hours(24);

    /// Returns the limit for a fleet of `nodes`.
    #[must_use]
    pub fn limit_for(&self, nodes: u32) -> u32 {
        match self.limit {
            CountOrShare::Count(count) => count,
            CountOrShare::Share(milli) => {
                let part = u64::from(nodes) * u64::from(milli) / 100_000;
                u32::try_from(part).unwrap_or(u32::MAX).max(u32::from(milli > 0))
            }
        }
    }
}

/// Settings of the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerSettings {
    /// Mode.
    pub mode: Mode,
    /// The approval that its plans require.
    pub approval: ApprovalRule,
    /// Who applies the changes of a merge (`spec.apply.by`).
    pub applied_by: AppliedBy,
    /// How long the controller waits for CI, from reading the commit.
    pub ci_timeout: SignedDuration,
    /// Interval of reading the repository.
    pub poll: SignedDuration,
    /// Interval of observations, unless an event triggers one sooner.
    pub refresh: SignedDuration,
    /// How long no further pod may arrive before pending pods are planned.
    pub batch_idle: SignedDuration,
    /// The longest that a pending pod waits for its batch.
    pub batch_max: SignedDuration,
    /// How long a removal must stay planned before it starts.
    pub removal_delay: SignedDuration,
    /// Rate limit of launches.
    pub launches: RateLimit,
    /// Rate limit of removals.
    pub removals: RateLimit,
    /// Net removals that one plan may make; more trips the breaker.
    pub mass_removal: CountOrShare,
    /// How long a node may be not Ready, or report a [`crate::model::observed::NodeFault`], before its
    /// instance is replaced; `None`: never.
    pub repair_after: Option<SignedDuration>,
    /// Pools whose removals require a confirmation.
    pub confirm_pools: BTreeSet<PoolName>,
    /// Whether pending pods are nominated to their planned nodes.
    pub nominate_pods: bool,
    /// Name or URL of the interruption queue of `EventBridge`.
    pub queue: Option<String>,
}

impl Default for ControllerSettings {
    fn default() -> Self {
        Self {
            mode: Mode::Observe,
            approval: ApprovalRule::Merge,
            applied_by: AppliedBy::Controller,
            ci_timeout: SignedDuration::from_hours(1),
            poll: SignedDuration::from_mins(1),
            refresh: SignedDuration::from_secs(30),
            batch_idle: SignedDuration::from_millis(100),
            batch_max: SignedDuration::from_secs(1),
            removal_delay: SignedDuration::from_mins(1),
            launches: RateLimit {
                limit: CountOrShare::Count(200),
                window: SignedDuration::from_mins(10),
            },
            // Karpenter's default share of 10 %, but over a time window.
            removals: RateLimit {
                limit: CountOrShare::Share(10_000),
                window: SignedDuration::from_mins(5),
            },
            mass_removal: CountOrShare::Share(50_000),
            // As Karpenter's node repair.
            repair_after: Some(SignedDuration::from_mins(30)),
            confirm_pools: BTreeSet::new(),
            nominate_pods: false,
            queue: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_of_small_fleet_is_at_least_one_instance() {
        let window = SignedDuration::from_mins(1);
        for (limit, nodes, expected) in [
            (CountOrShare::Count(3), 0, 3),
            (CountOrShare::Share(10_000), 3, 1),
            (CountOrShare::Share(10_000), 50, 5),
            (CountOrShare::Share(0), 50, 0),
            (CountOrShare::Share(100_000), 7, 7),
        ] {
            assert_eq!(
                RateLimit { limit, window }.limit_for(nodes),
                expected,
                "{limit:?} of {nodes}"
            );
        }
    }
}
