//! Conditions: progress of an object in words that tools wait for.
//!
//! `Ready` is always present. As in kstatus, `Reconciling` is present while the controller makes
//! progress by itself, and `Stalled` while it needs an operator.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::controller::{BlockedReason, labels};

/// A Kubernetes condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// `Ready`, `Reconciling` or `Stalled`.
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Machine-readable reason in CamelCase.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
    /// Time of the last change.
    pub last_transition_time: Timestamp,
    /// Generation of the object that the condition describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Declares the reasons of conditions that no blocked change causes. The comment of each is its
/// meaning on the reference page `events.md`.
macro_rules! reasons {
    ($($object:literal $ready:literal { $(#[doc = $meaning:literal] $reason:ident;)+ })+) => {
        /// The reason of a condition. Reasons are stable.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ConditionReason {
            $($(#[doc = $meaning] $reason,)+)+
        }

        impl ConditionReason {
            /// All reasons, in the order of the reference page.
            pub const ALL: &'static [Self] = &[$($(Self::$reason,)+)+];

            /// Returns the reason as conditions write it.
            pub const fn as_str(self) -> &'static str {
                match self { $($(Self::$reason => stringify!($reason),)+)+ }
            }

            /// Returns the objects that have the reason.
            pub const fn objects(self) -> &'static str {
                match self { $($(Self::$reason)|+ => $object,)+ }
            }

            /// Returns the status of `Ready`.
            pub const fn ready(self) -> &'static str {
                match self { $($(Self::$reason)|+ => $ready,)+ }
            }

            /// Returns the meaning as a sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $($(Self::$reason => $meaning.trim_ascii(),)+)+ }
            }
        }
    };
}

reasons! {
    "both" "True" {
        /// The nodes match the repository.
        NothingToDo;
    }
    "CapacityPlan" "True" {
        /// All changes of the plan are applied.
        Applied;
    }
    "CapacityPlan" "False" {
        /// Changes are in progress.
        Applying;
        /// Changes are next.
        Pending;
        /// The inputs have errors.
        InputsHaveErrors;
        /// The plan changes nothing, and pods are unschedulable.
        Unschedulable;
        /// Some changes of the plan failed or were abandoned.
        PartlyApplied;
        /// The apply was interrupted.
        Interrupted;
        /// The apply was refused before its first change.
        Refused;
        /// Another plan replaced this one before a change of it was applied.
        Superseded;
    }
    "CapacityPool" "False" {
        /// Changes of the pool are pending or in progress.
        Progressing;
        /// Recent launches of the pool did not help, and it launches nothing for a while.
        Quarantined;
        /// Too many nodes of the pool are broken, so none of them is replaced.
        RepairWithheld;
    }
}

impl From<ConditionReason> for String {
    fn from(reason: ConditionReason) -> Self {
        reason.as_str().to_owned()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) state: ProgressState,
    /// A [`ConditionReason`], or the reason of a blocked change in CamelCase.
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) since: Timestamp,
}

/// State that conditions and the words of Argo CD derive from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgressState {
    /// Live and desired state agree.
    Synced,
    /// In progress, or next.
    Progressing,
    /// Blocked until an event or a time.
    Waiting,
    /// Suspended by an operator until a time.
    Paused,
    /// Blocked until an operator acts.
    Suspended,
    /// Failed, and tried once more without an operator.
    Retrying,
    /// Failed.
    Degraded,
    /// Replaced by another plan.
    Superseded,
}

impl ProgressState {
    /// Returns the sync status as Argo CD spells it.
    pub(super) fn argo_sync(self) -> &'static str {
        if self == Self::Synced { "Synced" } else { "OutOfSync" }
    }

    /// Returns the health status as Argo CD spells it.
    pub(super) fn argo_health(self) -> &'static str {
        match self {
            // Nothing is left to do for a superseded plan.
            Self::Synced | Self::Superseded => "Healthy",
            Self::Progressing | Self::Waiting => "Progressing",
            Self::Paused | Self::Suspended => "Suspended",
            Self::Retrying | Self::Degraded => "Degraded",
        }
    }
}

impl Progress {
    pub(super) fn conditions(&self) -> Vec<Condition> {
        let condition = |kind: &str, holds: bool| Condition {
            r#type: kind.to_owned(),
            status: if holds { "True" } else { "False" }.to_owned(),
            reason: self.reason.clone(),
            message: super::truncate_text(&self.message),
            last_transition_time: self.since,
            observed_generation: None,
        };
        let mut conditions = vec![condition("Ready", self.state == ProgressState::Synced)];
        match self.state {
            // A superseded plan is not pursued.
            ProgressState::Synced | ProgressState::Superseded => {}
            ProgressState::Progressing
            | ProgressState::Waiting
            | ProgressState::Paused
            | ProgressState::Retrying => {
                conditions.push(condition("Reconciling", true));
            }
            ProgressState::Suspended | ProgressState::Degraded => {
                conditions.push(condition("Stalled", true));
            }
        }
        conditions
    }
}

/// Returns the state of a change that is blocked for this reason until an event or a time.
pub(super) fn waiting_state(why: &BlockedReason) -> ProgressState {
    let is_suspended = matches!(why, BlockedReason::Suspended { .. });
    if is_suspended { ProgressState::Paused } else { ProgressState::Waiting }
}

/// Returns the reason in CamelCase, such as `NotApproved`.
pub(super) fn condition_reason(why: &BlockedReason) -> String {
    let part = |part: &str| {
        let mut letters = part.chars();
        let first = letters.next().map(|c| c.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    };
    labels::blocked_reason(why).split('-').map(part).collect()
}
