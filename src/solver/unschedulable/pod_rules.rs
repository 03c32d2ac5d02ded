//! Explains inter-pod rules: which rule rejects a new node, and what would help.

use crate::demand::{PodShape, is_claim_affinity};
use crate::model::code::Code;
use crate::model::ids::{LabelKey, Labels};
use crate::model::pod::{PodAffinityTerm, WhenUnsatisfiable};
use crate::model::requirement::key;
use crate::scheduler::UnfitReason;

/// Explanation of a rule that rejects a node.
pub(super) struct RuleExplanation {
    /// Stable code.
    pub code: &'static str,
    /// Detail about the node.
    pub detail: String,
    /// Change that would make the pod schedulable, if one is known.
    pub remedy: Option<String>,
}

/// Explains `reason` for a pod and a node with these labels.
pub(super) fn explain_rule(
    shape: &PodShape,
    labels: &Labels,
    reason: &UnfitReason,
) -> RuleExplanation {
    match reason {
        UnfitReason::SpreadKey => missing_key(&spread_keys(shape)),
        UnfitReason::Spread => skew_exceeded(&spread_keys(shape), labels),
        UnfitReason::PodAffinity if shape.affinity.required.iter().all(is_claim_affinity) => {
            shared_volume_elsewhere()
        }
        UnfitReason::PodAffinity => affinity_unmet(&term_keys(&shape.affinity.required), labels),
        UnfitReason::PodAntiAffinity => {
            let keys = term_keys(&shape.anti_affinity.required);
            RuleExplanation {
                code: Code::PodAntiAffinity.as_str(),
                detail: format!(
                    "a pod that its anti-affinity excludes is in {}",
                    domain_text(&keys, labels)
                ),
                remedy: Some(format!(
                    "let a pool make nodes in another domain of {}, or use preferred anti-affinity",
                    join_keys(&keys)
                )),
            }
        }
        UnfitReason::ExistingAntiAffinity => RuleExplanation {
            code: Code::PodAntiAffinity.as_str(),
            detail: "the anti-affinity of a running pod excludes it".to_owned(),
            remedy: None,
        },
        UnfitReason::HostPorts => RuleExplanation {
            code: Code::HostPort.as_str(),
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
            RuleExplanation { code: Code::Unfit.as_str(), detail: reason.to_string(), remedy: None }
        }
    }
}

fn missing_key(keys: &[&LabelKey]) -> RuleExplanation {
    // Only a group of several zones launches nodes whose zone is not known in advance.
    if keys.iter().any(|name| [key::ZONE, key::ZONE_ID].contains(&name.as_str())) {
        return RuleExplanation {
            code: Code::TopologySpread.as_str(),
            detail: "the zone of a new node of a group of several zones is not known in advance"
                .to_owned(),
            remedy: Some(
                "use one node group per zone, or let the constraint be ScheduleAnyway".to_owned(),
            ),
        };
    }
    let keys = join_keys(keys);
    RuleExplanation {
        code: Code::TopologySpread.as_str(),
        detail: format!("its nodes have no label {keys} to spread over"),
        remedy: Some(format!(
            "let a pool label its nodes with {keys}, or let the constraint be ScheduleAnyway"
        )),
    }
}

fn skew_exceeded(keys: &[&LabelKey], labels: &Labels) -> RuleExplanation {
    RuleExplanation {
        code: Code::TopologySpread.as_str(),
        detail: format!("one more pod in {} would exceed maxSkew", domain_text(keys, labels)),
        remedy: Some(format!(
            "let a pool make nodes in more domains of {}, raise maxSkew, or let the constraint be \
             ScheduleAnyway",
            join_keys(keys)
        )),
    }
}

fn shared_volume_elsewhere() -> RuleExplanation {
    let detail = "a shared volume is created in the zone of another pod, and is reachable from \
                  there only";
    let remedy = "let the pods that share it run in one zone, or give each a volume of its own";
    RuleExplanation {
        code: Code::VolumeElsewhere.as_str(),
        detail: detail.to_owned(),
        remedy: Some(remedy.to_owned()),
    }
}

fn affinity_unmet(keys: &[&LabelKey], labels: &Labels) -> RuleExplanation {
    RuleExplanation {
        code: Code::PodAffinity.as_str(),
        detail: format!("no pod that its affinity selects is in {}", domain_text(keys, labels)),
        remedy: Some(format!(
            "its affinity lets it run only in the same {} as pods that it selects: deploy them \
             where they are missing, let larger nodes hold both, or use preferred affinity",
            join_keys(keys)
        )),
    }
}

/// Describes the topology domains of a node with these labels.
fn domain_text(keys: &[&LabelKey], labels: &Labels) -> String {
    let values = keys.iter().filter(|key| key.as_str() != key::HOSTNAME);
    let values = values.map(|key| match labels.get(*key) {
        Some(value) => format!("{key} {value}"),
        None => format!("nodes without {key}"),
    });
    let values: Vec<String> = values.collect();
    if values.is_empty() { "a new node".to_owned() } else { values.join(", ") }
}

fn join_keys(keys: &[&LabelKey]) -> String {
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
