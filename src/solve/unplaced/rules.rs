//! Rules between pods in words: which one keeps a pod off a new node, and what would help.

use crate::demand::PodShape;
use crate::ids::{LabelKey, Labels};
use crate::pod::{PodAffinityTerm, WhenUnsatisfiable};
use crate::requirement::key;
use crate::schedule::UnfitReason;

/// Returns the code of a reason and what it says of a node with these labels.
pub(super) fn describe(
    shape: &PodShape,
    labels: &Labels,
    reason: &UnfitReason,
) -> (String, String) {
    let place = |keys: &[&LabelKey]| -> String {
        let values = keys.iter().filter(|key| key.as_str() != key::HOSTNAME);
        let values = values.map(|key| match labels.get(*key) {
            Some(value) => format!("{key} {value}"),
            None => format!("nodes without {key}"),
        });
        let values: Vec<String> = values.collect();
        if values.is_empty() { "a new node".to_owned() } else { values.join(", ") }
    };
    match reason {
        UnfitReason::Spread | UnfitReason::SpreadKey => {
            let place = place(&spread_keys(shape));
            ("topology-spread".to_owned(), format!("one more pod in {place} would exceed maxSkew"))
        }
        UnfitReason::PodAffinity => {
            let place = place(&term_keys(&shape.affinity.required));
            let detail = format!("no pod that its affinity asks for is in {place}");
            ("pod-affinity".to_owned(), detail)
        }
        UnfitReason::PodAntiAffinity => {
            let place = place(&term_keys(&shape.anti_affinity.required));
            (
                "pod-anti-affinity".to_owned(),
                format!("a pod that it keeps apart from is in {place}"),
            )
        }
        UnfitReason::ExistingAntiAffinity => (
            "pod-anti-affinity".to_owned(),
            "a pod that is there keeps apart from pods like this one".to_owned(),
        ),
        UnfitReason::HostPorts => (
            "host-port".to_owned(),
            "a DaemonSet binds the same host port on every such node".to_owned(),
        ),
        UnfitReason::Unschedulable
        | UnfitReason::NodeName
        | UnfitReason::Taint
        | UnfitReason::NodeAffinity
        | UnfitReason::VolumeInUse
        | UnfitReason::TooManyVolumes
        | UnfitReason::VolumeElsewhere
        | UnfitReason::VolumeNotReady
        | UnfitReason::TooManyPods
        | UnfitReason::Insufficient(_) => ("unfit".to_owned(), reason.to_string()),
    }
}

/// Returns what would let such a pod be placed, in words.
pub(super) fn remedy(shape: &PodShape, reason: &UnfitReason) -> Option<String> {
    let list = |keys: Vec<&LabelKey>| {
        keys.iter().map(|key| key.as_str()).collect::<Vec<_>>().join(" and ")
    };
    match reason {
        UnfitReason::Spread | UnfitReason::SpreadKey => Some(format!(
            "let a pool make nodes in more domains of {}, raise maxSkew, or let the constraint be \
             ScheduleAnyway",
            list(spread_keys(shape))
        )),
        UnfitReason::PodAffinity => Some(format!(
            "deploy the pods that its affinity asks for; they have to be in the same {}",
            list(term_keys(&shape.affinity.required))
        )),
        UnfitReason::PodAntiAffinity => Some(format!(
            "let a pool make nodes in another domain of {}, or prefer to keep apart instead of \
             requiring it",
            list(term_keys(&shape.anti_affinity.required))
        )),
        UnfitReason::HostPorts => Some("use another host port".to_owned()),
        UnfitReason::Unschedulable
        | UnfitReason::NodeName
        | UnfitReason::Taint
        | UnfitReason::NodeAffinity
        | UnfitReason::VolumeInUse
        | UnfitReason::TooManyVolumes
        | UnfitReason::VolumeElsewhere
        | UnfitReason::VolumeNotReady
        | UnfitReason::TooManyPods
        | UnfitReason::Insufficient(_)
        | UnfitReason::ExistingAntiAffinity => None,
    }
}

fn spread_keys(shape: &PodShape) -> Vec<&LabelKey> {
    let hard = shape.spread.iter();
    let hard = hard.filter(|rule| rule.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule);
    hard.map(|rule| &rule.topology_key).collect()
}

fn term_keys(terms: &[PodAffinityTerm]) -> Vec<&LabelKey> {
    terms.iter().map(|term| &term.topology_key).collect()
}
