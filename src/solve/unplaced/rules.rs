//! Rules between pods in words: which one keeps a pod off a new node, and what would help.

use crate::demand::{PodShape, is_of_claim};
use crate::ids::{LabelKey, Labels};
use crate::pod::{PodAffinityTerm, WhenUnsatisfiable};
use crate::requirement::key;
use crate::schedule::UnfitReason;

/// A rule that keeps a pod off a node, in words.
pub(super) struct Told {
    /// A stable code.
    pub code: &'static str,
    /// What the rule says of the node.
    pub detail: String,
    /// What would let the pod be placed, where something is known.
    pub remedy: Option<String>,
}

/// Returns what `reason` says of a pod and a node with these labels.
pub(super) fn told(shape: &PodShape, labels: &Labels, reason: &UnfitReason) -> Told {
    match reason {
        UnfitReason::SpreadKey => without_key(&spread_keys(shape)),
        UnfitReason::Spread => uneven(&spread_keys(shape), labels),
        UnfitReason::PodAffinity if shape.affinity.required.iter().all(is_of_claim) => of_claim(),
        UnfitReason::PodAffinity => alone(&term_keys(&shape.affinity.required), labels),
        UnfitReason::PodAntiAffinity => {
            let keys = term_keys(&shape.anti_affinity.required);
            Told {
                code: "pod-anti-affinity",
                detail: format!("a pod that it keeps apart from is in {}", place(&keys, labels)),
                remedy: Some(format!(
                    "let a pool make nodes in another domain of {}, or prefer to keep apart \
                     instead of requiring it",
                    list(&keys)
                )),
            }
        }
        UnfitReason::ExistingAntiAffinity => Told {
            code: "pod-anti-affinity",
            detail: "a pod that is there keeps apart from pods like this one".to_owned(),
            remedy: None,
        },
        UnfitReason::HostPorts => Told {
            code: "host-port",
            detail: "a DaemonSet binds the same host port on every such node".to_owned(),
            remedy: Some("use another host port".to_owned()),
        },
        UnfitReason::Unschedulable
        | UnfitReason::NodeName
        | UnfitReason::Taint
        | UnfitReason::NodeAffinity
        | UnfitReason::VolumeInUse
        | UnfitReason::TooManyVolumes
        | UnfitReason::VolumeElsewhere
        | UnfitReason::VolumeNotReady
        | UnfitReason::TooManyPods
        | UnfitReason::Insufficient(_) => {
            Told { code: "unfit", detail: reason.to_string(), remedy: None }
        }
    }
}

fn without_key(keys: &[&LabelKey]) -> Told {
    let keys = list(keys);
    Told {
        code: "topology-spread",
        detail: format!("its nodes have no label {keys} to spread over"),
        remedy: Some(format!(
            "let a pool label its nodes with {keys}, or let the constraint be ScheduleAnyway"
        )),
    }
}

fn uneven(keys: &[&LabelKey], labels: &Labels) -> Told {
    Told {
        code: "topology-spread",
        detail: format!("one more pod in {} would exceed maxSkew", place(keys, labels)),
        remedy: Some(format!(
            "let a pool make nodes in more domains of {}, raise maxSkew, or let the constraint be \
             ScheduleAnyway",
            list(keys)
        )),
    }
}

fn of_claim() -> Told {
    let detail = "a volume that it shares is made in the zone of another pod, and is reached from \
                  there alone";
    let remedy = "let the pods that share it run in one zone, or give each a volume of its own";
    Told { code: "volume-elsewhere", detail: detail.to_owned(), remedy: Some(remedy.to_owned()) }
}

fn alone(keys: &[&LabelKey], labels: &Labels) -> Told {
    Told {
        code: "pod-affinity",
        detail: format!("no pod that its affinity asks for is in {}", place(keys, labels)),
        remedy: Some(format!(
            "its affinity lets it run only in the same {} as pods that it selects: deploy them \
             where they are missing, let larger nodes hold both, or prefer to be near instead of \
             requiring it",
            list(keys)
        )),
    }
}

/// Names the domains of `keys` that a node with these labels is in.
fn place(keys: &[&LabelKey], labels: &Labels) -> String {
    let values = keys.iter().filter(|key| key.as_str() != key::HOSTNAME);
    let values = values.map(|key| match labels.get(*key) {
        Some(value) => format!("{key} {value}"),
        None => format!("nodes without {key}"),
    });
    let values: Vec<String> = values.collect();
    if values.is_empty() { "a new node".to_owned() } else { values.join(", ") }
}

fn list(keys: &[&LabelKey]) -> String {
    keys.iter().map(|key| key.as_str()).collect::<Vec<_>>().join(" and ")
}

fn spread_keys(shape: &PodShape) -> Vec<&LabelKey> {
    let hard = shape.spread.iter();
    let hard = hard.filter(|rule| rule.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule);
    hard.map(|rule| &rule.topology_key).collect()
}

fn term_keys(terms: &[PodAffinityTerm]) -> Vec<&LabelKey> {
    terms.iter().map(|term| &term.topology_key).collect()
}
