//! Whether pods ask not to be moved: for ever, or for a time from their start.
//!
//! `karpenter.sh/do-not-disrupt` is `true` or a duration as Go writes it, counted from the pod's
//! `status.startTime`; anything else is ignored, as with Karpenter. Invariant: a pod whose start nobody
//! knows may not be moved.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::model::duration::parse as parse_duration;
use crate::model::observed::{Observed, Pod};

/// How long a pod asks not to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DoNotDisrupt {
    /// It may be moved.
    No,
    /// For so long from its start.
    For(SignedDuration),
    /// For as long as it lives.
    Always,
}

impl DoNotDisrupt {
    /// Returns what the annotations of a pod ask for, whoever reads them.
    #[must_use]
    pub fn from_annotations(annotations: &BTreeMap<String, String>) -> Self {
        let safe = annotations.get("cluster-autoscaler.kubernetes.io/safe-to-evict");
        let unsafe_ = safe.is_some_and(|value| value == "false");
        Self::from_karpenter_annotations(annotations).max(if unsafe_ {
            Self::Always
        } else {
            Self::No
        })
    }

    /// Returns what they ask of Karpenter, which honours that of pods of `DaemonSet`s as well.
    #[must_use]
    pub fn from_karpenter_annotations(annotations: &BTreeMap<String, String>) -> Self {
        if annotations.get("karpenter.sh/do-not-evict").is_some_and(|value| value == "true") {
            return Self::Always;
        }
        match annotations.get("karpenter.sh/do-not-disrupt").map(String::as_str) {
            None => Self::No,
            Some("true") => Self::Always,
            Some(text) => match parse_duration(text) {
                Some(time) if time.is_positive() => Self::For(time),
                Some(_) | None => Self::No,
            },
        }
    }

    /// Returns whether it holds at `at` for a pod that started then.
    #[must_use]
    pub fn holds(self, started: Option<Timestamp>, at: Timestamp) -> bool {
        match self {
            Self::No => false,
            Self::Always => true,
            Self::For(time) => started.is_none_or(|started| at.duration_since(started) < time),
        }
    }
}

/// Returns whether `pod` asks at `at` not to be moved.
#[must_use]
pub fn is_do_not_disrupt_at(pod: &Pod, observed: &Observed, at: Timestamp) -> bool {
    let template = observed.templates.get(&pod.template);
    template.is_some_and(|template| {
        DoNotDisrupt::from_annotations(&template.annotations).holds(pod.started_at, at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_pin_a_pod() {
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
    fn a_time_is_counted_from_the_start_and_one_that_nobody_knows_holds() {
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
