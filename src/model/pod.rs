//! Pod templates: the fields that constrain placement.
//!
//! The types follow the fields of Kubernetes, so that templates from manifests and pods from
//! clusters have the same representation. This module contains no rules: `demand` converts
//! templates to pod shapes, and `scheduler` and `solver` implement the rules. Commands, images,
//! environment variables and other fields that may contain secrets are never stored. Of Cluster
//! Autoscaler alone, the flags about node groups are.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::cluster_autoscaler::AutoscalerFlags;
use crate::model::ids::{LabelKey, LabelValue, Labels};
use crate::model::requirement::{LabelSet, Operator};
use crate::model::units::ResourceName;

/// Amounts by resource name: `cpu` in thousandths of a core, all others in whole units (bytes for
/// memory, storage and huge pages).
pub type ResourceList = BTreeMap<ResourceName, i64>;

/// A pod template: labels, relevant annotations, and specification.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTemplate {
    /// Labels of the pods.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: Labels,
    /// Annotations that affect capacity decisions (`karpenter.sh/…`, `cluster-autoscaler…`,
    /// `eks…`, and [`INDEX_FAILURES`](super::job::INDEX_FAILURES)).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Specification.
    pub spec: PodSpec,
    /// Flags of Cluster Autoscaler, if a container runs it. Command lines are not kept otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_autoscaler: Option<Box<AutoscalerFlags>>,
}

/// Fields of a pod specification that constrain placement.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Init containers in declaration order, including sidecars.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<Container>,
    /// Containers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<Container>,
    /// Pod-level resources, if declared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ContainerResources>,
    /// Overhead declared in the pod. If empty, the overhead of the runtime class applies.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub overhead: ResourceList,
    /// Name of the runtime class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    /// Name of the priority class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Priority value declared in the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Preemption policy: `Never` or `PreemptLowerPriority`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption_policy: Option<String>,
    /// Node name declared in the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Required labels of the node.
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
    /// Volumes that constrain placement.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// Name of the scheduler; `None` means the default scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// Names of scheduling gates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scheduling_gates: Vec<String>,
    /// True if the pod uses the network namespace of the node. Its container ports are then host
    /// ports.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
    /// Termination grace period in seconds; the default of Kubernetes is 30.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_grace_seconds: Option<i64>,
    /// Names of dynamic resource claims.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_claims: Vec<String>,
    /// `ResourceClaimTemplate` of each claim that has one, by name of the claim.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub resource_claim_templates: BTreeMap<String, String>,
}

/// A container: name, resources and host ports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Name of the container.
    pub name: String,
    /// Requests and limits.
    pub resources: ContainerResources,
    /// True for an init container that runs as a sidecar (`restartPolicy: Always`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sidecar: bool,
    /// Host ports bound by the container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host_ports: Vec<HostPort>,
    /// True if the container is privileged.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub privileged: bool,
}

/// Requests and limits as declared.
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

/// A host port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostPort {
    /// Port number.
    pub port: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Bound IP address; empty or `0.0.0.0` means all addresses.
    pub ip: String,
}

/// Node affinity. A node must match any required term and should match preferred terms.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeAffinity {
    /// Required terms; a node must match at least one. `None` means no requirement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required: Option<Vec<NodeTerm>>,
    /// Preferred terms, with weights.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preferred: Vec<(i32, NodeTerm)>,
}

impl NodeAffinity {
    /// Returns true if there are neither required nor preferred terms.
    pub fn is_none(&self) -> bool {
        self.required.is_none() && self.preferred.is_empty()
    }
}

/// A node selector term. A node must match every expression.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeTerm {
    /// Expressions on labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expressions: Vec<Expression>,
    /// Expressions on fields; Kubernetes supports only `metadata.name`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<Expression>,
}

/// A selector expression, with operator and values validated together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Expression {
    /// Key of the label or field, with deprecated names already replaced.
    pub key: LabelKey,
    /// Operator.
    pub operator: Operator,
    /// Values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<LabelValue>,
}

/// Affinity or anti-affinity to other pods, with required and preferred terms.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PodAffinity {
    /// Required terms, which must all hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required: Vec<PodAffinityTerm>,
    /// Preferred terms, with weights.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preferred: Vec<(i32, PodAffinityTerm)>,
}

impl PodAffinity {
    /// Returns true if there are neither required nor preferred terms.
    pub fn is_none(&self) -> bool {
        self.required.is_empty() && self.preferred.is_empty()
    }
}

/// A term of pod affinity or anti-affinity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodAffinityTerm {
    /// Selector of pods; `None` matches no pods.
    pub selector: Option<Selector>,
    /// Label key of the topology domains.
    pub topology_key: LabelKey,
    /// Namespaces of the selected pods. If it is empty and there is no namespace selector, the
    /// namespace of the pod applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Selector of namespaces by labels; an empty selector matches all namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<Selector>,
    /// Label keys copied with their values from the pod into the selector.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_label_keys: Vec<LabelKey>,
    /// Label keys whose values must differ from the values of the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mismatch_label_keys: Vec<LabelKey>,
}

/// A label selector. Objects must match every expression; an empty selector matches all objects.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Selector(pub Vec<Expression>);

impl Selector {
    /// Returns true if an object with these labels matches.
    pub fn matches(&self, labels: &Labels) -> bool {
        let matches = |Expression { key, operator, values }: &Expression| {
            let values: Vec<&str> = values.iter().map(LabelValue::as_str).collect();
            // An expression that bypassed validation matches nothing.
            LabelSet::from_operator(*operator, &values)
                .is_ok_and(|set| set.contains(labels.get(key)))
        };
        self.0.iter().all(matches)
    }
}

/// Behavior of kube-scheduler for an unsatisfiable spread constraint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum WhenUnsatisfiable {
    /// The pod is not scheduled.
    DoNotSchedule,
    /// The pod is scheduled to a node that minimizes the skew.
    ScheduleAnyway,
}

/// Policy for nodes that affinity or taints exclude when domains are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NodeInclusion {
    /// Excluded nodes are ignored.
    Honor,
    /// All nodes are counted.
    Ignore,
}

/// A topology spread constraint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopologySpread {
    /// Maximum difference between the pod counts of any domain and the minimum.
    pub max_skew: i32,
    /// Label key of the topology domains.
    pub topology_key: LabelKey,
    /// Behavior if the constraint cannot be satisfied.
    pub when_unsatisfiable: WhenUnsatisfiable,
    /// Selector of counted pods; `None` matches no pods.
    pub selector: Option<Selector>,
    /// Label keys copied with their values from the pod into the selector.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_label_keys: Vec<LabelKey>,
    /// Minimum number of domains. With fewer domains, the minimum count is zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_domains: Option<i32>,
    /// Policy for nodes excluded by node affinity or node selector (default `Honor`).
    pub node_affinity_policy: NodeInclusion,
    /// Policy for nodes excluded by taints (default `Ignore`).
    pub node_taints_policy: NodeInclusion,
}

/// Effect of a taint on pods without a matching toleration.
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
    /// Pods are not scheduled to the node.
    NoSchedule,
    /// Pods are scheduled to other nodes if possible.
    PreferNoSchedule,
    /// Pods are not scheduled to the node, and running pods are evicted.
    NoExecute,
}

/// Keys and prefixes of taints that a node loses once it is initialized. Source: Karpenter,
/// `pkg/scheduling/taints.go`.
const EPHEMERAL_TAINTS: [&str; 6] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.cloudprovider.kubernetes.io/uninitialized",
    "karpenter.sh/unregistered",
    "readiness.k8s.io/",
    OPENING_TAINT,
];

/// Key of the taint of a closed node: a launched node keeps pods away until it is opened together
/// with the other nodes of its batch. The effect is `NoSchedule`.
pub const OPENING_TAINT: &str = "fleetwright.dev/opening";

/// A taint of a node.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct Taint {
    /// Key.
    pub key: LabelKey,
    /// Value; empty for a taint without a value.
    #[serde(default = "empty_value")]
    pub value: LabelValue,
    /// Effect.
    pub effect: TaintEffect,
}

impl Taint {
    /// Returns the taint of a closed node.
    pub fn opening() -> Self {
        Self { key: OPENING_TAINT.into(), value: empty_value(), effect: TaintEffect::NoSchedule }
    }

    /// Returns true for a taint that every node has while it starts.
    pub fn is_ephemeral(&self) -> bool {
        let key = self.key.as_str();
        let matches = |known: &str| key == known || known.ends_with('/') && key.starts_with(known);
        EPHEMERAL_TAINTS.iter().any(|known| matches(known))
    }
}

fn empty_value() -> LabelValue {
    "".into()
}

/// Operator of a toleration.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub enum TolerationOperator {
    /// The values of taint and toleration are equal.
    #[default]
    Equal,
    /// Any value matches; with an empty key, every taint matches.
    Exists,
    /// The value of the taint is an integer greater than the value of the toleration.
    Gt,
    /// The value of the taint is an integer less than the value of the toleration.
    Lt,
}

/// A toleration of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Toleration {
    /// Taint key; empty matches all keys.
    pub key: String,
    /// Comparison operator.
    pub operator: TolerationOperator,
    /// Value.
    pub value: String,
    /// Taint effect; `None` matches all effects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// Toleration time for `NoExecute` taints, in seconds. It does not affect placement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<i64>,
}

impl Toleration {
    /// Returns true if the toleration tolerates `taint`.
    ///
    /// Source: `k8s.io/component-helpers/scheduling/corev1`, `ToleratesTaint`.
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

/// A volume: the fields that constrain placement or movement of its pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Volume {
    /// Name within the pod.
    pub name: String,
    /// Source.
    pub source: VolumeSource,
}

/// Source of a volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum VolumeSource {
    /// Name of a PersistentVolumeClaim.
    Claim(String),
    /// Storage class of a claim that is created and deleted with the pod; `None` means the default
    /// class. The name of the claim is `<pod>-<volume>`.
    EphemeralClaim(Option<String>),
    /// Storage class of a claim per ordinal of a `StatefulSet`, which outlives the pod; `None`
    /// means the default class. The name of the claim is `<volume>-<pod>`.
    ClaimTemplate(Option<String>),
    /// Host path.
    HostPath,
    /// Temporary storage on the disk of the node.
    EmptyDir,
    /// EBS volume declared in the pod, as `vol-…` or `aws://<zone>/vol-…`.
    Ebs(String),
    /// Name of a disk of a network that every node reaches, and that one pod of a node can write.
    NetworkDisk(String),
    /// Key of another in-tree disk or of an unknown volume kind. It may bind the pod to a zone or
    /// node.
    InTree(String),
    /// Any source that does not constrain placement.
    Other,
}

/// Returns the first untolerated taint with an effect that prevents scheduling (`NoSchedule` or
/// `NoExecute`).
pub fn untolerated<'a>(taints: &'a [Taint], tolerations: &[Toleration]) -> Option<&'a Taint> {
    all_untolerated(taints, tolerations).next()
}

/// Returns all untolerated taints with such an effect.
pub fn all_untolerated<'a>(
    taints: &'a [Taint],
    tolerations: &[Toleration],
) -> impl Iterator<Item = &'a Taint> {
    let hard = |taint: &&Taint| taint.effect != TaintEffect::PreferNoSchedule;
    taints.iter().filter(hard).filter(|taint| !tolerations.iter().any(|t| t.tolerates(taint)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(value: &str, effect: TaintEffect) -> Taint {
        Taint { key: "dedicated".into(), value: value.into(), effect }
    }

    #[test]
    fn tolerations_match_as_in_kubernetes() {
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
    fn prefer_no_schedule_does_not_prevent_scheduling() {
        let soft = [taint("x", TaintEffect::PreferNoSchedule)];
        assert_eq!(untolerated(&soft, &[]), None);
        let hard = [taint("x", TaintEffect::NoExecute)];
        assert_eq!(untolerated(&hard, &[]), Some(&hard[0]));
    }
}
