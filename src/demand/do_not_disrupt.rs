//! Pods that must not be disrupted, without a limit or for a time after their start.
//!
//! `karpenter.sh/do-not-disrupt` is `true` or a Go duration, counted from the pod's
//! `status.startTime`. Karpenter ignores any other value, and so does this module.
//!
//! Invariant: a pod with a duration and an unknown start time must not be disrupted.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::model::duration::parse as parse_duration;
use crate::model::observed::{Observed, Pod};

/// Time during which a pod must not be disrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DoNotDisrupt {
    /// The pod may be disrupted.
    No,
    /// This long from the start of the pod.
    For(SignedDuration),
    /// For the lifetime of the pod.
    Always,
}

impl DoNotDisrupt {
    /// Returns the setting from a pod's annotations for Karpenter and Cluster Autoscaler.
    pub fn from_annotations(annotations: &BTreeMap<String, String>) -> Self {
        let safe = annotations.get("cluster-autoscaler.kubernetes.io/safe-to-evict");
        let is_unsafe = safe.is_some_and(|value| value == "false");
        Self::from_karpenter_annotations(annotations).max(if is_unsafe {
            Self::Always
        } else {
            Self::No
        })
    }

    /// Returns the setting from Karpenter's annotations, which also apply to pods of DaemonSets.
    pub fn from_karpenter_annotations(annotations: &BTreeMap<String, String>) -> Self {
        if annotations.get("karpenter.sh/do-not-evict").is_some_and(|value| value == "true") {
            return Self::Always;
        }
        match annotations.get("karpenter.sh/do-not-disrupt").map(String::as_str) {
            None => Self::No,
            Some("true") => Self::Always,
            Some(text) => match parse_duration(text) {
                Some(duration) if duration.is_positive() => Self::For(duration),
                Some(_) | None => Self::No,
            },
        }
    }

    /// Returns true if the setting applies at `at` to a pod with this start time.
    pub fn holds(self, started: Option<Timestamp>, at: Timestamp) -> bool {
        match self {
            Self::No => false,
            Self::Always => true,
            Self::For(duration) => {
                started.is_none_or(|started| at.duration_since(started) < duration)
            }
        }
    }
}

/// Returns true if `pod` must not be disrupted at `at`.
pub fn is_do_not_disrupt_at(pod: &Pod, observed: &Observed, at: Timestamp) -> bool {
    let template = observed.templates.get(&*pod.template);
    template.is_some_and(|template| {
        DoNotDisrupt::from_annotations(&template.annotations).holds(pod.started_at, at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_protect_a_pod() {
        let minutes = |n| DoNotDisrupt::For(SignedDuration::from_mins(n));
        for (key, value, expected) in [
            ("karpenter.sh/do-not-disrupt", "true", DoNotDisrupt::Always),
            ("karpenter.sh/do-not-disrupt", "10m", minutes(10)),
            ("karpenter.sh/do-not-disrupt", "1h30m", minutes(90)),
            ("karpenter.sh/do-not-disrupt", "0s", DoNotDisrupt::No),
            ("karpenter.sh/do-not-disrupt", "-5m", DoNotDisrupt::No),
            ("karpenter.sh/do-not-disrupt", "false", DoNotDisrupt::No),
            ("karpenter.sh/do-not-disrupt", "abc", DoNotDisrupt::No),
            ("karpenter.sh/do-not-disrupt", "5", DoNotDisrupt::No),
            ("karpenter.sh/do-not-evict", "true", DoNotDisrupt::Always),
            ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false", DoNotDisrupt::Always),
            ("cluster-autoscaler.kubernetes.io/safe-to-evict", "true", DoNotDisrupt::No),
        ] {
            assert_eq!(
                DoNotDisrupt::from_annotations(&[(key.into(), value.into())].into()),
                expected,
                "{key}={value}"
            );
        }
    }

    #[test]
    fn duration_counts_from_a_known_start() {
        let at = |minutes: i64| Timestamp::from_second(1_000_000 + 60 * minutes).expect("a time");
        let pin = DoNotDisrupt::For(SignedDuration::from_mins(10));
        for (pin, started, holds) in [
            (pin, Some(at(-5)), true),
            (pin, Some(at(-10)), false),
            (pin, Some(at(-11)), false),
            // A clock that is behind.
            (pin, Some(at(3)), true),
            (pin, None, true),
            (DoNotDisrupt::Always, Some(at(-100_000)), true),
            (DoNotDisrupt::No, None, false),
        ] {
            assert_eq!(pin.holds(started, at(0)), holds, "{pin:?} {started:?}");
        }
    }
}
