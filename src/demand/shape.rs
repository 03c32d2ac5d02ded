//! What one pod asks for, with every default applied: the unit of placement.

use std::collections::BTreeMap;

use super::do_not_disrupt::DoNotDisrupt;
use super::pod_volume::{PodVolume, Sharing};
use super::requests::{AllocatedResources, RequestContext, pod_requests, presumed_requests};
use crate::model::desired::{Desired, LimitRangeItem, PriorityClass, RuntimeClass};
use crate::model::ids::{LabelKey, LabelValue, Labels, Namespace, WorkloadKind};
use crate::model::observed::{Observed, Pod};
use crate::model::pod::{
    Expression, HostPort, NodeTerm, PodAffinity, PodAffinityTerm, PodSpec, PodTemplate, Selector,
    Toleration, TopologySpread, Volume, VolumeSource,
};
use crate::model::requirement::{LabelSet, Operator, Requirements, key};
use crate::model::units::Resources;

/// What labels begin with that stand for claims.
const CLAIM_LABELS: &str = "claim.fleetwright.dev";

/// What one pod asks for. Pods of equal shape can stand in for each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodShape {
    /// Namespace.
    pub namespace: Namespace,
    /// Labels of the pod.
    pub labels: Labels,
    /// Requests with init containers, sidecars and overhead; `pods` is 1.
    pub requests: Resources,
    /// CPU and memory that the scheduler's scores count on top, for containers that state none.
    pub presumed: Resources,
    /// The nodes it may run on.
    pub nodes: NodeChoice,
    /// Tolerations.
    pub tolerations: Vec<Toleration>,
    /// Ports of the node it binds.
    pub host_ports: Vec<HostPort>,
    /// Topology spread constraints, its own or those of [`PodShape::spread_by_default`].
    pub spread: Vec<TopologySpread>,
    /// What the scheduler spreads it by where it asks for nothing itself, as the scheduler's
    /// configuration says (`PodTopologySpreadArgs`, `defaultingType: List`); `None`: as schedulers
    /// do that nobody configured, softly over hosts and zones.
    pub default_spread: Option<Vec<TopologySpread>>,
    /// Affinity to other pods.
    pub affinity: PodAffinity,
    /// Anti-affinity to other pods.
    pub anti_affinity: PodAffinity,
    /// Volumes that decide where it runs; [`Claims::with_volumes`] adds them.
    ///
    /// [`Claims::with_volumes`]: super::Claims::with_volumes
    pub volumes: Vec<PodVolume>,
    /// Priority; higher goes first.
    pub priority: i32,
    /// Whether pods of lower priority are evicted for it where it has no place.
    pub preempts: bool,
    /// Whether the pod must never be moved (`do-not-disrupt`, `safe-to-evict: "false"`). For a limited
    /// period, the start of the pod decides, see [`DoNotDisrupt`](super::DoNotDisrupt).
    pub do_not_disrupt: bool,
    /// What the pod uses that placement does not know yet; such a pod is reported, never planned
    /// as if it asked for nothing.
    pub unsupported: Vec<Unsupported>,
}

impl PodShape {
    /// Ties the pod to those that share a claim whose volume is still to be made: it is made in the
    /// zone of the first of them, and the others reach it from there alone.
    ///
    /// kube-scheduler finds that out one pod at a time. Here it is affinity to one another, by a label
    /// that stands for the claim and that nothing in a cluster has.
    pub(super) fn keep_to_zones_of_claims(&mut self) {
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

    /// Returns the shape of pods of a workload of `kind`, with the constraints that the scheduler
    /// was told to spread them by, if they ask for none and it can tell them from others.
    ///
    /// The scheduler selects them as their controller does; here all of their labels stand for
    /// that, so that pods of two templates of one workload are counted apart.
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
        let alike = Selector(self.labels.iter().map(one).collect());
        let of = |rule: &TopologySpread| TopologySpread {
            selector: Some(alike.clone()),
            ..rule.clone()
        };
        self.spread = constraints.iter().map(of).collect();
        self
    }
}

/// Returns whether a term stands for a claim that pods share, and not for a wish of theirs.
#[must_use]
pub fn is_claim_affinity(term: &PodAffinityTerm) -> bool {
    let is_label = |wish: &Expression| wish.key.as_str().starts_with(CLAIM_LABELS);
    term.selector.as_ref().is_some_and(|Selector(wishes)| wishes.iter().any(is_label))
}

/// The nodes a pod may run on: one of the alternatives must hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeChoice {
    /// Alternatives (node selector ∧ one term of node affinity). Empty means *no* node at all;
    /// a pod without any wish has one alternative that requires nothing.
    pub any_of: Vec<Requirements>,
    /// Weighted wishes.
    pub preferred: Vec<(i32, Requirements)>,
    /// The only node it may run on.
    pub name: Option<String>,
    /// What `any_of` was before volumes narrowed it; `None` where they did not. Topology spread
    /// counts the nodes that the pod itself chooses, whatever its volumes say.
    pub without_volumes: Option<Vec<Requirements>>,
}

impl NodeChoice {
    /// Returns the alternatives that the pod itself states, whatever its volumes allow.
    #[must_use]
    pub fn stated(&self) -> &[Requirements] {
        self.without_volumes.as_ref().unwrap_or(&self.any_of)
    }
}

/// A feature of a pod that placement does not know yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unsupported {
    /// Volumes without a known topology; [`PodVolume::problem_text`] returns the reason.
    Volumes,
    /// A scheduler other than the default one.
    OtherScheduler,
    /// Scheduling gates.
    SchedulingGates,
    /// Dynamic resource claims.
    ResourceClaims,
    /// The pod names its node itself.
    NodeName,
}

impl Unsupported {
    /// Returns the feature in the words of Kubernetes' API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Volumes => "volumes",
            Self::OtherScheduler => "schedulerName",
            Self::SchedulingGates => "schedulingGates",
            Self::ResourceClaims => "resourceClaims",
            Self::NodeName => "nodeName",
        }
    }
}

/// The objects that fill in what a pod template leaves open.
pub struct ShapeContext<'a> {
    priority_classes: &'a BTreeMap<String, PriorityClass>,
    runtime_classes: &'a BTreeMap<String, RuntimeClass>,
    limit_ranges: &'a BTreeMap<Namespace, Vec<LimitRangeItem>>,
    default_spread: Option<&'a [TopologySpread]>,
    /// Host names of the nodes that are there, where they are known.
    hostnames: BTreeMap<&'a str, LabelValue>,
}

impl<'a> ShapeContext<'a> {
    /// Returns the context that the repository declares.
    #[must_use]
    pub fn new(desired: &'a Desired) -> Self {
        Self {
            priority_classes: &desired.priority_classes,
            runtime_classes: &desired.runtime_classes,
            limit_ranges: &desired.limit_ranges,
            default_spread: desired.default_spread.as_deref(),
            hostnames: BTreeMap::new(),
        }
    }

    /// Returns the context with what the nodes of `observed` are called.
    ///
    /// Node affinity may be about a node's name, which is no label. Its host name stands for it: a
    /// label that each node has, mostly with that very name as its value, and that no node to come
    /// has before it is there.
    #[must_use]
    pub fn with_nodes(mut self, observed: &'a Observed) -> Self {
        let nodes = observed.nodes.values();
        let named = nodes.filter_map(|node| Some((&node.name, node.labels.get(key::HOSTNAME)?)));
        self.hostnames = named.map(|(name, host)| (name.as_str(), host.clone())).collect();
        self
    }

    /// Returns what an expression over a node's name says of its host name.
    fn of_field(&self, expression: &Expression) -> (LabelKey, LabelSet) {
        let host = |name: &LabelValue| self.hostnames.get(name.as_str()).unwrap_or(name).clone();
        let values = expression.values.iter().map(host).collect();
        let of_host = Expression { key: key::HOSTNAME.into(), values, ..expression.clone() };
        let set = label_set(&of_host);
        (of_host.key, set)
    }

    /// Returns what a node selector term requires of labels; a term without any expression matches
    /// no node.
    fn of_term(&self, term: &NodeTerm) -> Option<Requirements> {
        if term.expressions.is_empty() && term.fields.is_empty() {
            return None;
        }
        let labels = term.expressions.iter().map(|e| (e.key.clone(), label_set(e)));
        Some(labels.chain(term.fields.iter().map(|field| self.of_field(field))).collect())
    }

    fn node_choice(&self, spec: &PodSpec) -> NodeChoice {
        let mut base = Requirements::from_labels(&spec.node_selector);
        if let Some(class) = self.runtime(spec) {
            base = base.and(&Requirements::from_labels(&class.node_selector));
        }
        let affinity = &spec.node_affinity;
        let of_term = |term: &NodeTerm| self.of_term(term);
        let any_of = match &affinity.required {
            None => vec![base],
            Some(terms) => terms.iter().filter_map(of_term).map(|t| base.and(&t)).collect(),
        };
        let preferred = affinity.preferred.iter();
        let preferred = preferred.filter_map(|(w, term)| Some((*w, of_term(term)?))).collect();
        let name = spec.node_name.clone();
        NodeChoice { any_of, preferred, name, without_volumes: None }
    }

    fn runtime(&self, spec: &PodSpec) -> Option<&'a RuntimeClass> {
        spec.runtime_class_name.as_ref().and_then(|name| self.runtime_classes.get(name))
    }

    /// Returns what decides the requests of a pod beside `spec`.
    fn around<'b>(
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

    /// Returns whether a pod has others evicted: its class says so, else the pod itself.
    fn preempts(&self, spec: &PodSpec) -> bool {
        let classes = self.priority_classes;
        let class = match &spec.priority_class_name {
            Some(name) => classes.get(name),
            None => classes.values().find(|class| class.is_default),
        };
        let own = || spec.preemption_policy.as_deref() != Some("Never");
        class.map_or_else(own, |class| class.preempts)
    }

    fn priority(&self, spec: &PodSpec) -> i32 {
        let named = |name: &String| match name.as_str() {
            "system-node-critical" => Some(2_000_001_000),
            "system-cluster-critical" => Some(2_000_000_000),
            _ => self.priority_classes.get(name).map(|class| class.value),
        };
        let default = || self.priority_classes.values().find(|class| class.is_default);
        match &spec.priority_class_name {
            Some(name) => named(name).or(spec.priority).unwrap_or(0),
            None => spec.priority.or_else(|| default().map(|class| class.value)).unwrap_or(0),
        }
    }
}

/// Returns the requests of a live pod of `template`: with what the kubelet granted it, where that
/// is more than the template says.
#[must_use]
pub fn live_requests(pod: &Pod, template: &PodTemplate, context: &ShapeContext) -> Resources {
    pod_requests(&template.spec, &context.around(&pod.namespace, &template.spec, &pod.granted))
}

/// Returns what a pod of `template` in `namespace` asks for, its volumes left open: until they are
/// put in, a pod that has any is one whose place is not known.
#[must_use]
pub fn pod_shape(
    namespace: &Namespace,
    template: &PodTemplate,
    context: &ShapeContext,
) -> PodShape {
    let spec = &template.spec;
    let runtime = context.runtime(spec);
    let granted = AllocatedResources::new();
    let around = context.around(namespace, spec, &granted);
    let mut tolerations = spec.tolerations.clone();
    tolerations.extend(runtime.iter().flat_map(|class| class.tolerations.clone()));
    PodShape {
        namespace: namespace.clone(),
        labels: template.labels.clone(),
        requests: pod_requests(spec, &around),
        presumed: presumed_requests(spec, &around),
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
        unsupported: unsupported(spec),
    }
}

/// Returns the label states that a validated expression allows.
#[must_use]
pub fn label_set(expression: &Expression) -> LabelSet {
    let values: Vec<&str> = expression.values.iter().map(LabelValue::as_str).collect();
    // An expression that slipped past validation must not widen the choice: it matches nothing.
    LabelSet::from_operator(expression.operator, &values)
        .unwrap_or_else(|_| LabelSet::all().complement())
}

fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let sidecars = spec.init_containers.iter().filter(|c| c.sidecar);
    spec.containers.iter().chain(sidecars).flat_map(|c| c.host_ports.clone()).collect()
}

/// Returns whether a volume may decide where its pod runs.
fn binds(volume: &Volume) -> bool {
    match volume.source {
        VolumeSource::Claim(_)
        | VolumeSource::EphemeralClaim(_)
        | VolumeSource::ClaimTemplate(_)
        | VolumeSource::Ebs(_)
        | VolumeSource::InTree(_) => true,
        VolumeSource::HostPath | VolumeSource::EmptyDir | VolumeSource::Other => false,
    }
}

fn unsupported(spec: &PodSpec) -> Vec<Unsupported> {
    let other = |name: &String| name != "default-scheduler";
    [
        (spec.volumes.iter().any(binds), Unsupported::Volumes),
        (spec.scheduler_name.as_ref().is_some_and(other), Unsupported::OtherScheduler),
        (!spec.scheduling_gates.is_empty(), Unsupported::SchedulingGates),
        (!spec.resource_claims.is_empty(), Unsupported::ResourceClaims),
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
    fn priority_comes_from_the_class_then_the_pod_then_the_default() {
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
    fn what_placement_does_not_know_is_named() {
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
    fn volumes_that_may_bind_a_pod_to_a_place_are_named_and_others_are_not() {
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
