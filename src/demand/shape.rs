//! Requests and scheduling rules of one pod with all defaults applied: the unit of placement.

use std::collections::BTreeMap;

use super::device_claims::DeviceClaims;
use super::do_not_disrupt::DoNotDisrupt;
use super::pod_volume::{PodVolume, Sharing};
use super::requests::{
    AllocatedResources, RequestContext, pod_requests, presumed_requests, to_resources,
};
use crate::model::desired::{Desired, LimitRangeItem, PriorityClass, RuntimeClass};
use crate::model::ids::{LabelKey, LabelValue, Labels, Namespace, WorkloadKind};
use crate::model::observed::{Observed, Pod};
use crate::model::pod::{
    Expression, HostPort, NodeTerm, PodAffinity, PodAffinityTerm, PodSpec, PodTemplate, Selector,
    Toleration, TopologySpread, Volume, VolumeSource,
};
use crate::model::requirement::{LabelSet, Operator, Requirements, key};
use crate::model::units::Resources;

/// Prefix of the labels that represent shared claims.
const CLAIM_LABELS: &str = "claim.fleetwright.dev";

/// Requests and scheduling rules of a pod. Pods of equal shape are interchangeable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodShape {
    /// Namespace of the pod.
    pub namespace: Namespace,
    /// Labels of the pod.
    pub labels: Labels,
    /// Requests including init containers, sidecars and overhead; `pods` is 1.
    pub requests: Resources,
    /// CPU and memory that the scheduler's scores add for containers without requests.
    pub presumed: Resources,
    /// Nodes that the pod may run on.
    pub nodes: NodeChoice,
    /// Tolerations of the pod.
    pub tolerations: Vec<Toleration>,
    /// Host ports that the pod binds.
    pub host_ports: Vec<HostPort>,
    /// Topology spread constraints of the pod, or those of [`PodShape::spread_by_default`].
    pub spread: Vec<TopologySpread>,
    /// Default constraints of the scheduler's configuration (`PodTopologySpreadArgs`,
    /// `defaultingType: List`), for pods without their own. `None` uses kube-scheduler's built-in
    /// defaults: soft constraints on hosts and zones.
    pub default_spread: Option<Vec<TopologySpread>>,
    /// Affinity to other pods.
    pub affinity: PodAffinity,
    /// Anti-affinity to other pods.
    pub anti_affinity: PodAffinity,
    /// Volumes that restrict the nodes of the pod; [`Claims::with_volumes`] adds them.
    ///
    /// [`Claims::with_volumes`]: super::Claims::with_volumes
    pub volumes: Vec<PodVolume>,
    /// Priority of the pod. Higher values are scheduled first.
    pub priority: i32,
    /// True if the scheduler may preempt pods of lower priority when the pod is unschedulable.
    pub preempts: bool,
    /// True if the pod must never be disrupted (`do-not-disrupt`, `safe-to-evict: "false"`). A
    /// limited period depends on the start of the pod; see [`DoNotDisrupt`](super::DoNotDisrupt).
    pub do_not_disrupt: bool,
    /// Features of the pod that placement does not support. Such a pod is reported. It is never
    /// planned as if it had no requirements.
    pub unsupported: Vec<Unsupported>,
}

impl PodShape {
    /// Adds pod affinity among the pods that share a claim without a volume. The first pod decides
    /// the zone of the volume, and the other pods reach it only from there.
    ///
    /// kube-scheduler applies this rule pod by pod. Here it is affinity on a label that represents
    /// the claim and that no real pod has.
    pub(super) fn add_claim_affinity(&mut self) {
        let shared =
            |mount: &&PodVolume| mount.zone_set_by_first_pod && mount.sharing == Sharing::Shared;
        for mount in self.volumes.iter().filter(shared) {
            let claim = mount.name.rsplit('/').next().unwrap_or_default();
            let label = LabelKey::from(format!("{CLAIM_LABELS}/{claim}").as_str());
            let here =
                Expression { key: label.clone(), operator: Operator::Exists, values: Vec::new() };
            let term = PodAffinityTerm {
                selector: Some(Selector(vec![here])),
                topology_key: key::ZONE.into(),
                namespaces: Vec::new(),
                namespace_selector: None,
                match_label_keys: Vec::new(),
                mismatch_label_keys: Vec::new(),
            };
            self.labels.extend([(label, LabelValue::from(""))]);
            self.affinity.required.push(term);
        }
    }

    /// Returns the shape with the scheduler's default spread constraints, for pods of a workload of
    /// `kind`. Pods with their own constraints, or without labels, are unchanged.
    ///
    /// The scheduler uses the selector of the controller. Here all labels of the pod replace it, so
    /// pods of two templates of one workload are counted separately.
    #[must_use]
    pub fn spread_by_default(mut self, kind: WorkloadKind) -> Self {
        let Some(constraints) = &self.default_spread else { return self };
        if !self.spread.is_empty() || self.labels.is_empty() || !kind.is_spread_by_default() {
            return self;
        }
        let one = |(key, value): (&LabelKey, &LabelValue)| Expression {
            key: key.clone(),
            operator: Operator::In,
            values: vec![value.clone()],
        };
        let selector = Selector(self.labels.iter().map(one).collect());
        let with_selector = |rule: &TopologySpread| TopologySpread {
            selector: Some(selector.clone()),
            ..rule.clone()
        };
        self.spread = constraints.iter().map(with_selector).collect();
        self
    }
}

/// Returns true if a term represents a shared claim instead of a rule of the pod.
pub fn is_claim_affinity(term: &PodAffinityTerm) -> bool {
    let is_label = |expression: &Expression| expression.key.as_str().starts_with(CLAIM_LABELS);
    term.selector.as_ref().is_some_and(|Selector(expressions)| expressions.iter().any(is_label))
}

/// Nodes that a pod may run on: nodes that meet one of the alternatives.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeChoice {
    /// Alternatives: the node selector combined with one node affinity term. An empty list means
    /// *no* node. A pod without rules has one empty alternative.
    pub any_of: Vec<Requirements>,
    /// Weighted preferences.
    pub preferred: Vec<(i32, Requirements)>,
    /// The only node that the pod may run on (`nodeName`).
    pub name: Option<String>,
    /// Value of `any_of` before volumes narrowed it; `None` if volumes did not narrow it. Topology
    /// spread counts the nodes that the pod itself selects, regardless of its volumes.
    pub without_volumes: Option<Vec<Requirements>>,
}

impl NodeChoice {
    /// Returns the alternatives that the pod itself states, regardless of its volumes.
    pub fn stated(&self) -> &[Requirements] {
        self.without_volumes.as_ref().unwrap_or(&self.any_of)
    }
}

/// A feature of a pod that placement does not support.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unsupported {
    /// Volumes without a known topology; [`PodVolume::problem_text`] returns the reason.
    Volumes,
    /// A scheduler other than `default-scheduler`.
    OtherScheduler,
    /// Scheduling gates.
    SchedulingGates,
    /// Device claims whose devices are not known; [`claim_problem`](super::claim_problem) returns
    /// the reason.
    ResourceClaims,
    /// A node name in the pod's specification.
    NodeName,
    /// More rules about other pods than one plan considers.
    TooManyPodRules,
}

impl Unsupported {
    /// Returns the field name in the Kubernetes API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Volumes => "volumes",
            Self::OtherScheduler => "schedulerName",
            Self::SchedulingGates => "schedulingGates",
            Self::ResourceClaims => "resourceClaims",
            Self::NodeName => "nodeName",
            Self::TooManyPodRules => "affinity",
        }
    }
}

/// Objects that complete a pod template.
pub struct ShapeContext<'a> {
    priority_classes: &'a BTreeMap<String, PriorityClass>,
    runtime_classes: &'a BTreeMap<String, RuntimeClass>,
    limit_ranges: &'a BTreeMap<Namespace, Vec<LimitRangeItem>>,
    default_spread: Option<&'a [TopologySpread]>,
    device_claims: DeviceClaims<'a>,
    /// Host names of the observed nodes by node name.
    hostnames: BTreeMap<&'a str, LabelValue>,
}

impl<'a> ShapeContext<'a> {
    /// Returns the context from the repository.
    pub fn new(desired: &'a Desired) -> Self {
        Self {
            priority_classes: &desired.priority_classes,
            runtime_classes: &desired.runtime_classes,
            limit_ranges: &desired.limit_ranges,
            default_spread: desired.default_spread.as_deref(),
            device_claims: DeviceClaims::new(desired),
            hostnames: BTreeMap::new(),
        }
    }

    /// Returns the context with the host names of the observed nodes.
    ///
    /// Node affinity can match a node name, which is not a label. The host name label represents
    /// it: each node has it, usually with the node name as its value. Planned nodes have no known
    /// host name.
    #[must_use]
    pub fn with_nodes(mut self, observed: &'a Observed) -> Self {
        let nodes = observed.nodes.values();
        let named = nodes.filter_map(|node| Some((&node.name, node.labels.get(key::HOSTNAME)?)));
        self.hostnames = named.map(|(name, host)| (name.as_str(), host.clone())).collect();
        self
    }

    /// Returns the requirement on the host name for an expression on the node name.
    fn field_requirement(&self, expression: &Expression) -> (LabelKey, LabelSet) {
        let host = |name: &LabelValue| self.hostnames.get(name.as_str()).unwrap_or(name).clone();
        let values = expression.values.iter().map(host).collect();
        let of_host = Expression { key: key::HOSTNAME.into(), values, ..expression.clone() };
        let set = label_set(&of_host);
        (of_host.key, set)
    }

    /// Returns the label requirements of a node selector term; `None` for a term without
    /// expressions, which matches no node.
    fn term_requirements(&self, term: &NodeTerm) -> Option<Requirements> {
        if term.expressions.is_empty() && term.fields.is_empty() {
            return None;
        }
        let labels = term.expressions.iter().map(|e| (e.key.clone(), label_set(e)));
        Some(labels.chain(term.fields.iter().map(|field| self.field_requirement(field))).collect())
    }

    fn node_choice(&self, spec: &PodSpec) -> NodeChoice {
        let mut base = Requirements::from_labels(&spec.node_selector);
        if let Some(class) = self.runtime(spec) {
            base = base.and(&Requirements::from_labels(&class.node_selector));
        }
        let affinity = &spec.node_affinity;
        let term_requirements = |term: &NodeTerm| self.term_requirements(term);
        let any_of = match &affinity.required {
            None => vec![base],
            Some(terms) => {
                terms.iter().filter_map(term_requirements).map(|t| base.and(&t)).collect()
            }
        };
        let preferred = affinity.preferred.iter();
        let preferred =
            preferred.filter_map(|(w, term)| Some((*w, term_requirements(term)?))).collect();
        let name = spec.node_name.clone();
        NodeChoice { any_of, preferred, name, without_volumes: None }
    }

    fn runtime(&self, spec: &PodSpec) -> Option<&'a RuntimeClass> {
        spec.runtime_class_name.as_ref().and_then(|name| self.runtime_classes.get(name))
    }

    /// Returns the inputs to a pod's requests besides `spec`.
    fn request_context<'b>(
        &'b self,
        namespace: &Namespace,
        spec: &'b PodSpec,
        granted: &'b AllocatedResources,
    ) -> RequestContext<'b> {
        let overhead = match self.runtime(spec) {
            Some(class) if spec.overhead.is_empty() => &class.overhead,
            _ => &spec.overhead,
        };
        let limits = self.limit_ranges.get(namespace).map_or(&[][..], Vec::as_slice);
        RequestContext { overhead, limits, granted }
    }

    /// Returns the requests of a pod, and those for the devices of its claims.
    ///
    /// A claimed device counts as the extended resource of the same device: on a node, either a DRA
    /// driver or a device plugin offers it. Claims that are not planned add nothing.
    fn requests(
        &self,
        namespace: &Namespace,
        spec: &PodSpec,
        granted: &AllocatedResources,
    ) -> Resources {
        let requests = pod_requests(spec, &self.request_context(namespace, spec, granted));
        let devices = self.device_claims.devices(namespace, spec).unwrap_or_default();
        requests.plus(&to_resources(&devices))
    }

    /// Returns true if a pod preempts others. Its priority class takes precedence over the pod.
    fn preempts(&self, spec: &PodSpec) -> bool {
        let classes = self.priority_classes;
        let class = match &spec.priority_class_name {
            Some(name) => classes.get(name),
            None => default_class(classes).map(|(_, class)| class),
        };
        let own = || spec.preemption_policy.as_deref() != Some("Never");
        class.map_or_else(own, |class| class.preempts)
    }

    fn priority(&self, spec: &PodSpec) -> i32 {
        let named = |name: &String| class_priority(self.priority_classes, name);
        let default = || default_class(self.priority_classes).map(|(_, class)| class);
        match &spec.priority_class_name {
            Some(name) => named(name).or(spec.priority).unwrap_or(0),
            None => spec.priority.or_else(|| default().map(|class| class.value)).unwrap_or(0),
        }
    }
}

/// Returns the default class; of several, the one with the lowest value.
/// Source: `k8s.io/kubernetes/plugin/pkg/admission/priority`, `getDefaultPriorityClass`.
pub(super) fn default_class(
    classes: &BTreeMap<String, PriorityClass>,
) -> Option<(&String, &PriorityClass)> {
    classes.iter().filter(|(_, class)| class.is_default).min_by_key(|(_, class)| class.value)
}

/// Returns the priority of a built-in or declared class; `None` if the class is neither.
pub(super) fn class_priority(classes: &BTreeMap<String, PriorityClass>, name: &str) -> Option<i32> {
    match name {
        "system-node-critical" => Some(2_000_001_000),
        "system-cluster-critical" => Some(2_000_000_000),
        _ => classes.get(name).map(|class| class.value),
    }
}

/// Returns the requests of a live pod of `template`, including larger resources that the kubelet
/// granted.
pub fn live_requests(pod: &Pod, template: &PodTemplate, context: &ShapeContext) -> Resources {
    context.requests(&pod.namespace, &template.spec, &pod.granted)
}

/// Returns the shape of a pod of `template` in `namespace`, without volumes. Until volumes are
/// added, a pod with a volume that may restrict its nodes is unsupported.
pub fn pod_shape(
    namespace: &Namespace,
    template: &PodTemplate,
    context: &ShapeContext,
) -> PodShape {
    let spec = &template.spec;
    let runtime = context.runtime(spec);
    let granted = AllocatedResources::new();
    let request_inputs = context.request_context(namespace, spec, &granted);
    let mut tolerations = spec.tolerations.clone();
    tolerations.extend(runtime.iter().flat_map(|class| class.tolerations.clone()));
    PodShape {
        namespace: namespace.clone(),
        labels: template.labels.clone(),
        requests: context.requests(namespace, spec, &granted),
        presumed: presumed_requests(spec, &request_inputs),
        nodes: context.node_choice(spec),
        tolerations,
        host_ports: host_ports(spec),
        spread: spec.topology_spread.clone(),
        default_spread: context.default_spread.map(<[_]>::to_vec),
        affinity: spec.pod_affinity.clone(),
        anti_affinity: spec.pod_anti_affinity.clone(),
        volumes: Vec::new(),
        priority: context.priority(spec),
        preempts: context.preempts(spec),
        do_not_disrupt: DoNotDisrupt::from_annotations(&template.annotations)
            == DoNotDisrupt::Always,
        unsupported: unsupported(namespace, spec, &context.device_claims),
    }
}

/// Returns the label values that a validated expression allows.
pub fn label_set(expression: &Expression) -> LabelSet {
    let values: Vec<&str> = expression.values.iter().map(LabelValue::as_str).collect();
    // An expression that bypassed validation matches nothing, so that it cannot widen the choice.
    LabelSet::from_operator(expression.operator, &values)
        .unwrap_or_else(|_| LabelSet::all().complement())
}

fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let sidecars = spec.init_containers.iter().filter(|c| c.sidecar);
    spec.containers.iter().chain(sidecars).flat_map(|c| c.host_ports.clone()).collect()
}

/// Returns true if a volume may restrict the nodes of its pod.
fn may_restrict_nodes(volume: &Volume) -> bool {
    match volume.source {
        VolumeSource::Claim(_)
        | VolumeSource::EphemeralClaim(_)
        | VolumeSource::ClaimTemplate(_)
        | VolumeSource::Ebs(_)
        | VolumeSource::NetworkDisk(_)
        | VolumeSource::InTree(_) => true,
        VolumeSource::HostPath | VolumeSource::EmptyDir | VolumeSource::Other => false,
    }
}

fn unsupported(
    namespace: &Namespace,
    spec: &PodSpec,
    claims: &DeviceClaims<'_>,
) -> Vec<Unsupported> {
    let other = |name: &String| name != "default-scheduler";
    [
        (spec.volumes.iter().any(may_restrict_nodes), Unsupported::Volumes),
        (spec.scheduler_name.as_ref().is_some_and(other), Unsupported::OtherScheduler),
        (!spec.scheduling_gates.is_empty(), Unsupported::SchedulingGates),
        (claims.devices(namespace, spec).is_err(), Unsupported::ResourceClaims),
        (spec.node_name.is_some(), Unsupported::NodeName),
    ]
    .into_iter()
    .filter_map(|(used, feature)| used.then_some(feature))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::requirement::{Operator, label};

    fn shape(template: &PodTemplate, desired: &Desired) -> PodShape {
        pod_shape(&"web".into(), template, &ShapeContext::new(desired))
    }

    fn term(key: &str, value: &str) -> NodeTerm {
        let expression =
            Expression { key: key.into(), operator: Operator::In, values: vec![value.into()] };
        NodeTerm { expressions: vec![expression], fields: Vec::new() }
    }

    #[test]
    fn selector_and_each_term_make_one_alternative() {
        let mut template = PodTemplate::default();
        template.spec.node_selector = [label("team", "a")].into();
        template.spec.node_affinity.required =
            Some(vec![term("zone", "x"), NodeTerm::default(), term("zone", "y")]);
        let choice = shape(&template, &Desired::default()).nodes;
        let on = |zone: &str| {
            let labels = [label("team", "a"), label("zone", zone)].into();
            choice.any_of.iter().any(|alternative| alternative.matches_labels(&labels))
        };
        assert_eq!((choice.any_of.len(), on("x"), on("y"), on("z")), (2, true, true, false));
        assert_eq!(shape(&PodTemplate::default(), &Desired::default()).nodes.any_of.len(), 1);
    }

    #[test]
    fn priority_comes_from_class_then_pod_then_default() {
        let class = |value, is_default| crate::model::desired::PriorityClass {
            value,
            is_default,
            preempts: true,
        };
        let mut desired = Desired::default();
        desired.priority_classes.insert("high".into(), class(1000, false));
        let mut template = PodTemplate::default();
        assert_eq!(shape(&template, &desired).priority, 0);
        desired.priority_classes.insert("normal".into(), class(5, true));
        assert_eq!(shape(&template, &desired).priority, 5);
        template.spec.priority_class_name = Some("high".into());
        assert_eq!(shape(&template, &desired).priority, 1000);
        template.spec.priority_class_name = Some("system-node-critical".into());
        assert_eq!(shape(&template, &desired).priority, 2_000_001_000);
        assert!(shape(&template, &desired).preempts);
        template.spec.priority_class_name = None;
        desired.priority_classes.clear();
        template.spec.preemption_policy = Some("Never".into());
        assert!(!shape(&template, &desired).preempts);
    }

    #[test]
    fn unsupported_features_are_listed() {
        let mut template = PodTemplate::default();
        assert_eq!(shape(&template, &Desired::default()).unsupported, []);
        template.spec.scheduler_name = Some("default-scheduler".into());
        assert_eq!(shape(&template, &Desired::default()).unsupported, []);
        template.spec.scheduler_name = Some("volcano".into());
        template.spec.scheduling_gates = vec!["wait".into()];
        assert_eq!(
            shape(&template, &Desired::default()).unsupported,
            [Unsupported::OtherScheduler, Unsupported::SchedulingGates]
        );
    }

    #[test]
    fn only_volumes_that_may_restrict_nodes_are_unsupported() {
        for (source, expected) in [
            (VolumeSource::Claim("data".into()), &[Unsupported::Volumes][..]),
            (VolumeSource::EphemeralClaim(None), &[Unsupported::Volumes]),
            (VolumeSource::InTree("awsElasticBlockStore".into()), &[Unsupported::Volumes]),
            (VolumeSource::HostPath, &[]),
            (VolumeSource::EmptyDir, &[]),
            (VolumeSource::Other, &[]),
        ] {
            let mut template = PodTemplate::default();
            template.spec.volumes = vec![Volume { name: "v".into(), source: source.clone() }];
            let shape = shape(&template, &Desired::default());
            assert_eq!(shape.unsupported, expected, "{source:?}");
        }
    }
}
