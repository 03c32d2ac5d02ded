//! Conditions: how far an object has come, in words that tools wait for.
//!
//! `Ready` is always there. `Reconciling` and `Stalled` are there while they hold, as kstatus has it:
//! the first where the loop gets on by itself, the second where it waits for somebody.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::face::words;
use crate::reconcile::Held;

/// A condition, as Kubernetes spells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// `Ready`, `Reconciling` or `Stalled`.
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, as one word.
    pub reason: String,
    /// The same in a sentence.
    pub message: String,
    /// Since when.
    pub last_transition_time: Timestamp,
    /// The generation that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// How far an object has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) state: State,
    /// Why, as one word in the spelling of reasons.
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) since: Timestamp,
}

/// The states that conditions and the words of Argo CD follow from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// As it should be.
    Synced,
    /// Being carried out, or about to be.
    Progressing,
    /// Held back until something happens by itself.
    Waiting,
    /// Held back until somebody does something.
    Suspended,
    /// It went wrong.
    Degraded,
    /// Nobody pursues it any more.
    Superseded,
}

impl State {
    /// Returns Argo CD's word for whether live and desired agree.
    pub(super) fn sync(self) -> &'static str {
        if self == Self::Synced { "Synced" } else { "OutOfSync" }
    }

    /// Returns Argo CD's word for how it fares.
    pub(super) fn health(self) -> &'static str {
        match self {
            Self::Synced => "Healthy",
            Self::Progressing | Self::Waiting => "Progressing",
            Self::Suspended | Self::Superseded => "Suspended",
            Self::Degraded => "Degraded",
        }
    }
}

impl Standing {
    pub(super) fn conditions(&self) -> Vec<Condition> {
        let condition = |kind: &str, holds: bool| Condition {
            r#type: kind.to_owned(),
            status: if holds { "True" } else { "False" }.to_owned(),
            reason: self.reason.clone(),
            message: super::short(&self.message),
            last_transition_time: self.since,
            observed_generation: None,
        };
        let mut conditions = vec![condition("Ready", self.state == State::Synced)];
        match self.state {
            // Of one that nobody pursues nothing is awaited either.
            State::Synced | State::Superseded => {}
            State::Progressing | State::Waiting => conditions.push(condition("Reconciling", true)),
            State::Suspended | State::Degraded => conditions.push(condition("Stalled", true)),
        }
        conditions
    }
}

/// Returns whether a change that is held back so waits for somebody.
pub(super) fn needs_somebody(why: &Held) -> bool {
    let tag = words::held(why);
    let by_hand =
        ["not-approved", "not-confirmed", "suspended", "breaker", "not-applyable", "mode"];
    by_hand.contains(&tag.as_str())
}

/// Returns the reason as conditions spell it, such as `NotApproved`.
pub(super) fn reason(why: &Held) -> String {
    let part = |part: &str| {
        let mut letters = part.chars();
        let first = letters.next().map(|c| c.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    };
    words::held(why).split('-').map(part).collect()
}
