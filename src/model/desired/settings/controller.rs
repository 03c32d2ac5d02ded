//! Settings of the controller: mode, approval, rate limits and delays.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use crate::model::ids::PoolName;

/// Mode of the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Create plans only; change nothing.
    #[default]
    Observe,
    /// Launch instances, and remove only instances that are being interrupted.
    Additive,
    /// Launch and remove instances until the fleet matches the repository.
    Full,
}

impl Mode {
    /// All modes with their names.
    pub const ALL: [(&'static str, Self); 3] =
        [("observe", Self::Observe), ("additive", Self::Additive), ("full", Self::Full)];

    /// Returns the name of the mode in settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Additive => "additive",
            Self::Full => "full",
        }
    }
}

/// Approval required for the plans of the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalRule {
    /// The merge of the commit is the approval.
    #[default]
    Merge,
    /// The digest of the plan must be approved.
    Digest,
    /// No approval if all policies pass without denials and warnings; otherwise as `Digest`.
    Policy,
}

/// Component that applies the changes of a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AppliedBy {
    /// The controller.
    #[default]
    Controller,
    /// The CI pipeline. The controller serves the previous commit until CI has applied the new one,
    /// or its timeout expires.
    Ci,
}

/// A limit on launches or removals within a time window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RateLimit {
    /// Maximum number of instances.
    pub limit: CountOrShare,
    /// Time window.
    pub window: SignedDuration,
}

/// A number of instances, absolute or relative to the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CountOrShare {
    /// Absolute number of instances.
    Count(u32),
    /// Share of the nodes, in thousandths of a percent; at least one instance.
    Share(u32),
}

impl RateLimit {
    /// Maximum window. The controller stores launches and removals for this long.
    pub const WINDOW_MAX: SignedDuration = SignedDuration::from_hours(24);

    /// Returns the limit for a fleet of `nodes` nodes, in instances. Shares are rounded up, as
    /// Karpenter rounds the budgets of a NodePool.
    pub fn limit_for(&self, nodes: u32) -> u32 {
        match self.limit {
            CountOrShare::Count(count) => count,
            CountOrShare::Share(milli) => {
                let part = (u64::from(nodes) * u64::from(milli)).div_ceil(100_000);
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
    /// Approval required for plans.
    pub approval: ApprovalRule,
    /// Component that applies the changes of a merge (`spec.apply.by`).
    pub applied_by: AppliedBy,
    /// Timeout for CI, from the time at which the controller read the commit.
    pub ci_timeout: SignedDuration,
    /// Polling interval of the repository.
    pub poll: SignedDuration,
    /// Interval between observations, unless an event triggers one earlier.
    pub refresh: SignedDuration,
    /// Idle time without new pending pods after which a batch is planned.
    pub batch_idle: SignedDuration,
    /// Maximum duration of a batch of pending pods.
    pub batch_max: SignedDuration,
    /// Time for which a removal must remain planned before it starts.
    pub removal_delay: SignedDuration,
    /// Rate limit of launches.
    pub launches: RateLimit,
    /// Rate limit of removals.
    pub removals: RateLimit,
    /// Maximum number of nodes with pods that one plan removes without replacement. The breaker
    /// latches only if no commit explains the removals.
    pub mass_removal: CountOrShare,
    /// Time after which the instance of a faulty node is replaced; `None` means never. A node is
    /// faulty if it is not Ready or reports a [`crate::model::observed::NodeFault`].
    pub repair_after: Option<SignedDuration>,
    /// Pools whose removals require a confirmation.
    pub confirm_pools: BTreeSet<PoolName>,
    /// True if pending pods are nominated to their planned nodes. `None`: in a live cluster whose
    /// kube-scheduler honors nominations.
    pub steer: Option<bool>,
    /// Name or URL of the SQS queue with interruption events from `EventBridge`.
    pub queue: Option<String>,
}

impl ControllerSettings {
    /// Returns true if pending pods are nominated. A controller resolves the default at its start.
    pub fn nominates_pods(&self) -> bool {
        self.steer == Some(true)
    }

    /// Returns true if a controller launches the nodes, and so can nominate pods before they open.
    pub fn steers_by_default(&self) -> bool {
        self.applied_by == AppliedBy::Controller
    }

    /// Returns whether the settings ask for nominations; `None` if the version of kube-scheduler
    /// decides.
    pub fn requested_nominations(&self) -> Option<bool> {
        self.steer.or((!self.steers_by_default()).then_some(false))
    }

    /// Returns true if the repository sets any of them, and so is planned for a controller.
    pub fn is_declared(&self) -> bool {
        *self != Self::default()
    }
}

impl Default for ControllerSettings {
    fn default() -> Self {
        Self {
            mode: Mode::Observe,
            approval: ApprovalRule::Merge,
            applied_by: AppliedBy::Controller,
            ci_timeout: SignedDuration::from_hours(1),
            poll: SignedDuration::from_secs(15),
            refresh: SignedDuration::from_secs(30),
            batch_idle: SignedDuration::from_millis(100),
            batch_max: SignedDuration::from_secs(1),
            // Karpenter validates a consolidation after the same time.
            removal_delay: SignedDuration::from_secs(15),
            launches: RateLimit {
                limit: CountOrShare::Count(200),
                window: SignedDuration::from_mins(10),
            },
            // Karpenter's default of 10 %, per time window.
            removals: RateLimit {
                limit: CountOrShare::Share(10_000),
                window: SignedDuration::from_mins(1),
            },
            mass_removal: CountOrShare::Share(50_000),
            // Same as the default of Karpenter's node repair.
            repair_after: Some(SignedDuration::from_mins(30)),
            confirm_pools: BTreeSet::new(),
            steer: None,
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
            (CountOrShare::Share(10_000), 51, 6),
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
