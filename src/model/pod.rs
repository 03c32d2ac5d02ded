//! Pod templates: the fields that decide where a pod may run.
//!
//! The types follow Kubernetes' own fields, so that a template read from a manifest and a pod read
//! from a cluster become the same thing. This module holds no rule: `demand` turns a template
//! into a shape to place, `scheduler` and `solver` hold the rules. Commands, images, environment and
//! other fields that may carry secrets are never stored.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::ids::{LabelKey, LabelValue, Labels};
use crate::model::requirement::Operator;
use crate::model::units::ResourceName;

/// Amounts by resource name: `cpu` in thousandths of a core, everything else in whole units
/// (bytes for memory, storage and huge pages).
pub type ResourceList = BTreeMap<ResourceName, i64>;

/// A pod template: labels, the annotations that matter, and the specification.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTemplate {
    /// Labels of the pods.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: Labels,
    /// Annotations with a meaning for capacity (`karpenter.sh/…`, `cluster-autoscaler…`, `eks…`).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The specification.
    pub spec: PodSpec,
}

/// The part of a pod's specification that decides where it may run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Init containers in their order, sidecars included.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<Container>,
    /// Containers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<Container>,
    /// Pod-level resources, where the pod states them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ContainerResources>,
    /// Overhead stated in the pod itself; else that of the runtime class counts.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub overhead: ResourceList,
    /// Name of the runtime class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    /// Name of the priority class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Priority stated in the pod itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Whether the pod may preempt others: `Never`, or `PreemptLowerPriority`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption_policy: Option<String>,
    /// The node the pod names itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Labels that the node must have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: Labels,
    /// Node affinity.
    #[serde(skip_serializing_if = "NodeAffinity::is_none")]
    pub node_affinity: NodeAffinity,
    /// Required and preferred affinity to other pods.
    #[serde(skip_serializing_if = "PodAffinity::is_none")]
    pub pod_affinity: PodAffinity,
    /// Required and preferred anti-affinity to other pods.
    #[serde(skip_serializing_if = "PodAffinity::is_none")]
    pub pod_anti_affinity: PodAffinity,
    /// Topology spread constraints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub topology_spread: Vec<TopologySpread>,
    /// Tolerations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Volumes that restrict the nodes the pod can run on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// The scheduler that places the pod; none means the default one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// Names of the pod's scheduling gates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scheduling_gates: Vec<String>,
    /// Whether the pod shares the node's network, which makes its ports host ports.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
    /// Seconds the pod may take to stop; Kubernetes' default is 30.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_grace_seconds: Option<i64>,
    /// Names of the dynamic resource claims the pod makes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_claims: Vec<String>,
}

/// A container's name, resources and host ports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Name of the container.
    pub name: String,
    /// Requests and limits.
    pub resources: ContainerResources,
    /// Whether an init container runs as a sidecar (`restartPolicy: Always`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sidecar: bool,
    /// Ports of the node that the container binds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host_ports: Vec<HostPort>,
    /// Whether the container is privileged.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub privileged: bool,
}

/// Requests and limits as stated.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerResources {
    /// Requests.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: ResourceList,
    /// Limits.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: ResourceList,
}

/// A port of the node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostPort {
    /// Port number.
    pub port: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Address bound; empty or `0.0.0.0` means every address.
    pub ip: String,
}

/// Required terms (any one suffices) and preferred terms of node affinity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeAffinity {
    /// Terms, one of which must hold; `None` if node affinity requires nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required: Option<Vec<NodeTerm>>,
    /// Weighted terms that should hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preferred: Vec<(i32, NodeTerm)>,
}

impl NodeAffinity {
    /// Returns whether nothing is required or preferred.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.required.is_none() && self.preferred.is_empty()
    }
}

/// One node selector term: every expression must hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeTerm {
    /// Expressions over labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expressions: Vec<Expression>,
    /// Expressions over fields; only `metadata.name` exists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<Expression>,
}

/// A key, an operator and values, validated: operator and values suit each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Expression {
    /// Key of the label or field, deprecated names already replaced.
    pub key: LabelKey,
    /// Operator.
    pub operator: Operator,
    /// Values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<LabelValue>,
}

/// Required and preferred terms of affinity, or of anti-affinity, to other pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PodAffinity {
    /// Terms that must all hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required: Vec<PodAffinityTerm>,
    /// Weighted terms that should hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preferred: Vec<(i32, PodAffinityTerm)>,
}

impl PodAffinity {
    /// Returns whether nothing is required or preferred.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.required.is_empty() && self.preferred.is_empty()
    }
}

/// One term of pod affinity or anti-affinity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodAffinityTerm {
    /// Selects the pods; `None` matches no pod.
    pub selector: Option<Selector>,
    /// The topology within which the term holds.
    pub topology_key: LabelKey,
    /// Namespaces of those pods; with no namespace selector either, the pod's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Namespaces by their labels; an empty selector means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<Selector>,
    /// Keys whose values are copied from the pod into the selector.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_label_keys: Vec<LabelKey>,
    /// Keys whose values must differ from the pod's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mismatch_label_keys: Vec<LabelKey>,
}

/// A label selector: every expression must hold; none means every object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Selector(pub Vec<Expression>);

/// What the scheduler does when a spread constraint cannot be satisfied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum WhenUnsatisfiable {
    /// The pod is not scheduled.
    DoNotSchedule,
    /// The pod is scheduled where the skew is least.
    ScheduleAnyway,
}

/// Whether a rule takes part in counting domains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NodeInclusion {
    /// Nodes that the rule excludes do not count.
    Honor,
    /// Every node counts.
    Ignore,
}

/// A topology spread constraint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopologySpread {
    /// Most pods that one domain may have above the least.
    pub max_skew: i32,
    /// The label whose values are the domains.
    pub topology_key: LabelKey,
    /// Hard or soft.
    pub when_unsatisfiable: WhenUnsatisfiable,
    /// The pods counted; `None` counts none.
    pub selector: Option<Selector>,
    /// Keys whose values are copied from the pod into the selector.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_label_keys: Vec<LabelKey>,
    /// Fewest domains before the least count is more than zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_domains: Option<i32>,
    /// Whether node affinity and selector limit the nodes counted (default `Honor`).
    pub node_affinity_policy: NodeInclusion,
    /// Whether taints limit the nodes counted (default `Ignore`).
    pub node_taints_policy: NodeInclusion,
}

/// What a taint does to pods that do not tolerate it.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
pub enum TaintEffect {
    /// Not scheduled here.
    NoSchedule,
    /// Scheduled elsewhere if possible.
    PreferNoSchedule,
    /// Not scheduled here, and evicted if running.
    NoExecute,
}

/// A taint of a node.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct Taint {
    /// Key.
    pub key: LabelKey,
    /// Value; empty where the taint has none.
    #[serde(default = "empty_value")]
    pub value: LabelValue,
    /// Effect.
    pub effect: TaintEffect,
}

fn empty_value() -> LabelValue {
    "".into()
}

/// How a toleration compares values.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub enum TolerationOperator {
    /// The value is equal.
    #[default]
    Equal,
    /// Every value; with an empty key, every taint.
    Exists,
    /// The taint's value is an integer above the toleration's.
    Gt,
    /// The taint's value is an integer below the toleration's.
    Lt,
}

/// A toleration of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Toleration {
    /// Key; empty means every key.
    pub key: String,
    /// How values are compared.
    pub operator: TolerationOperator,
    /// Value.
    pub value: String,
    /// Effect; `None` means every effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// How long a `NoExecute` taint is tolerated; it does not matter for placement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<i64>,
}

impl Toleration {
    /// Returns whether the toleration tolerates `taint`.
    ///
    /// Source: `k8s.io/component-helpers/scheduling/corev1`, `ToleratesTaint`.
    #[must_use]
    pub fn tolerates(&self, taint: &Taint) -> bool {
        if self.effect.is_some_and(|effect| effect != taint.effect) {
            return false;
        }
        if !self.key.is_empty() && self.key != taint.key.as_str() {
            return false;
        }
        let numbers = || {
            let bound = self.value.parse::<i64>().ok()?;
            Some((taint.value.as_str().parse::<i64>().ok()?, bound))
        };
        match self.operator {
            TolerationOperator::Exists => true,
            TolerationOperator::Equal => self.value == taint.value.as_str(),
            TolerationOperator::Gt => numbers().is_some_and(|(value, bound)| value > bound),
            TolerationOperator::Lt => numbers().is_some_and(|(value, bound)| value < bound),
        }
    }
}

/// A volume: the fields that restrict where its pod can run or whether it can be moved.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Volume {
    /// Name within the pod.
    pub name: String,
    /// Where it comes from.
    pub source: VolumeSource,
}

/// Where a volume comes from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum VolumeSource {
    /// A claim of this name.
    Claim(String),
    /// A claim made for the pod and deleted with it, of this storage class (`None`: the default
    /// class). Its name is `<pod>-<volume>`.
    EphemeralClaim(Option<String>),
    /// A claim made for each ordinal of a `StatefulSet` and kept, of this storage class (`None`: the
    /// default class). Its name is `<volume>-<pod>`.
    ClaimTemplate(Option<String>),
    /// A path of the node.
    HostPath,
    /// Scratch space on disk.
    EmptyDir,
    /// An EBS volume that the pod names itself, as `vol-…` or `aws://<zone>/vol-…`.
    Ebs(String),
    /// A disk that the pod names itself, by the key of its kind, or a kind that is not known: it may
    /// bind the pod to a zone or node.
    InTree(String),
    /// Anything that binds the pod to nothing.
    Other,
}

/// Returns the first taint that forbids scheduling (`NoSchedule`, `NoExecute`) and that no
/// toleration covers.
#[must_use]
pub fn untolerated<'a>(taints: &'a [Taint], tolerations: &[Toleration]) -> Option<&'a Taint> {
    let hard = |taint: &&Taint| taint.effect != TaintEffect::PreferNoSchedule;
    taints.iter().filter(hard).find(|taint| !tolerations.iter().any(|t| t.tolerates(taint)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(value: &str, effect: TaintEffect) -> Taint {
        Taint { key: "dedicated".into(), value: value.into(), effect }
    }

    #[test]
    fn tolerations_match_as_kubernetes_documents() {
        use TolerationOperator::{Equal, Exists, Gt, Lt};
        let spot = taint("5", TaintEffect::NoSchedule);
        for (key, operator, value, effect, expected) in [
            ("dedicated", Equal, "5", None, true),
            ("dedicated", Equal, "6", None, false),
            ("dedicated", Exists, "", Some(TaintEffect::NoSchedule), true),
            ("dedicated", Exists, "", Some(TaintEffect::NoExecute), false),
            ("", Exists, "", None, true),
            ("other", Exists, "", None, false),
            ("dedicated", Gt, "4", None, true),
            ("dedicated", Gt, "5", None, false),
            ("dedicated", Lt, "6", None, true),
            ("dedicated", Lt, "x", None, false),
        ] {
            let toleration = Toleration {
                key: key.into(),
                operator,
                value: value.into(),
                effect,
                seconds: None,
            };
            assert_eq!(toleration.tolerates(&spot), expected, "{toleration:?}");
        }
    }

    #[test]
    fn a_preference_never_forbids() {
        let soft = [taint("x", TaintEffect::PreferNoSchedule)];
        assert_eq!(untolerated(&soft, &[]), None);
        let hard = [taint("x", TaintEffect::NoExecute)];
        assert_eq!(untolerated(&hard, &[]), Some(&hard[0]));
    }
}
