//! Alternatives of a launch: each fallback offering must meet the requirements of the launch.
//!
//! Inter-pod rules bind pods to a value of a topology key. These are the rules that a pod carries,
//! and the rules of other pods that select it. A fallback node must keep that value. Several
//! launches may fall back at once, so another value cannot be verified for one launch alone.
//!
//! Launches of one pool that differ only in their key share their results.

use std::collections::{BTreeMap, BTreeSet};

use super::Violations;
use super::admission::{AdmissionView, refusal_of, runs_daemon};
use super::context::{CheckContext, CheckedRow};
use super::end_state::{EndState, PodSet, PodSetKind};
use super::inter_pod::{bound_topology_keys, first_clash};
use super::launches::{alternative_labels, is_excluded, unmet};
use super::part_assignment::{admitting_parts, unassigned_pods};
use crate::catalog::Offering;
use crate::demand::{NodeChoice, PodGroup};
use crate::model::ids::{
    Address, InstanceTypeName, LabelKey, LabelValue, Labels, PoolName, ZoneName,
};
use crate::model::market::CapacityType;
use crate::model::observed::KEY_LABEL;
use crate::model::pod::{Taint, Toleration};
use crate::model::reason::Alternative;
use crate::model::units::{MicroUsd, Resources};
use crate::plan::wire::NodeState;

/// A broken rule, with the message.
type RuleFailure = (&'static str, String);

/// Returns the failure for a launch that cannot be verified. Such a launch is never treated as
/// valid.
fn unverifiable() -> RuleFailure {
    ("alternatives/fit", "its launch cannot be verified".to_owned())
}

/// An offering as its alternative states it.
type StatedOffering<'a> = (&'a InstanceTypeName, &'a ZoneName, CapacityType, MicroUsd);

/// Properties that launches with equal results share.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct LaunchKey<'a> {
    pool: &'a PoolName,
    kind: &'a InstanceTypeName,
    labels: Vec<(&'a LabelKey, &'a LabelValue)>,
    taints: &'a [Taint],
}

/// The data of a launch that its alternatives are checked against.
struct CheckedLaunch<'a> {
    after: &'a NodeState,
    end_node: usize,
    launch_key: usize,
    /// Topology keys that the pods of the launch are bound to.
    bound_keys: BTreeSet<&'a LabelKey>,
    /// Pod sets that the plan places on the node.
    placed: Vec<usize>,
    requested: Resources,
}

/// The node that a fallback offering launches.
struct AlternativeNode {
    labels: Labels,
    allocatable: Resources,
    /// Pod sets of the DaemonSet pods.
    daemons: Vec<usize>,
    /// Sum of the requests of the DaemonSet pods.
    daemon_requests: Resources,
    /// Cached reasons why pods of a constraint class are not admitted.
    refusals: BTreeMap<usize, Option<String>>,
}

/// Cached results of checks.
struct AlternativeChecker<'a> {
    context: &'a CheckContext<'a>,
    state: &'a EndState<'a>,
    /// Topology keys that each pod set is bound to.
    bound_keys: Vec<BTreeSet<&'a LabelKey>>,
    /// Constraint class of each pod set: equal for pod sets that the same nodes admit.
    constraint_classes: Vec<usize>,
    /// Pod group of each pod set; `None` for DaemonSet and static pods.
    groups: Vec<Option<&'a PodGroup>>,
    /// True if any pod selects its node by the node's key.
    selects_by_key: bool,
    node_index: BTreeMap<&'a Address, usize>,
    launch_keys: BTreeMap<LaunchKey<'a>, usize>,
    alternative_nodes: BTreeMap<(usize, StatedOffering<'a>), Result<AlternativeNode, RuleFailure>>,
    /// Parts of a pod set with partitions that every alternative of a launch admits, by pod set and
    /// launch.
    parts: BTreeMap<usize, BTreeMap<usize, BTreeSet<usize>>>,
}

pub(super) fn check(context: &CheckContext<'_>, state: &EndState<'_>, violations: &mut Violations) {
    let mut checker = AlternativeChecker::new(context, state);
    for alternatives in &context.plan.capacity.alternatives {
        let row = context.row(&alternatives.address).filter(|row| row.action.creates());
        let Some((row, after)) = row.and_then(|row| Some((row, row.after?))) else {
            violations.report_row(
                "alternatives/row",
                &alternatives.address,
                "nothing is launched there",
            );
            continue;
        };
        if !alternatives.offerings.is_sorted_by_key(|offering| offering.hourly) {
            violations.report_row(
                "alternatives/order",
                &alternatives.address,
                "they are not cheapest first",
            );
        }
        let Some(launch) = checker.launch(row, after) else { continue };
        for offering in &alternatives.offerings {
            if let Some((rule, fault)) = checker.broken_rule(&launch, offering) {
                violations.report_row(
                    rule,
                    &alternatives.address,
                    format!("{} in {}: {fault}", offering.instance_type, offering.zone),
                );
            }
        }
    }
    for (pod_set, only) in &checker.parts {
        let Some(group) = checker.groups[*pod_set] else { continue };
        let pod_set = &state.pod_sets[*pod_set];
        if let Some((address, pods)) = unassigned_pods(state, pod_set, group, only) {
            let fault = format!(
                "{}: of {pods} pods here and on equal nodes, some cannot run on the alternatives",
                pod_set.name
            );
            violations.report_row("alternatives/fit", address, fault);
        }
    }
}

impl<'a> AlternativeChecker<'a> {
    fn new(context: &'a CheckContext<'a>, state: &'a EndState<'a>) -> Self {
        let node_index =
            state.nodes.iter().enumerate().map(|(index, end_node)| (end_node.row.address, index));
        let choices = state.pod_sets.iter().flat_map(|pod_set| &pod_set.shape.nodes.any_of);
        let parts = context.groups.values().flat_map(|group| &group.partitions);
        let mut choices = choices.chain(parts.flat_map(|part| &part.shape.nodes.any_of));
        Self {
            context,
            state,
            bound_keys: bound_topology_keys(context, state),
            constraint_classes: constraint_classes(context, &state.pod_sets),
            groups: state.pod_sets.iter().map(|c| context.groups.get(&c.name).copied()).collect(),
            selects_by_key: choices.any(|choice| choice.get(KEY_LABEL).is_some()),
            node_index: node_index.collect(),
            launch_keys: BTreeMap::new(),
            alternative_nodes: BTreeMap::new(),
            parts: BTreeMap::new(),
        }
    }

    /// Returns the data that every alternative of a launch is checked against; `None` if the launch
    /// itself cannot be verified.
    fn launch(&mut self, row: &CheckedRow<'_>, after: &'a NodeState) -> Option<CheckedLaunch<'a>> {
        let end_node = *self.node_index.get(row.address)?;
        let launch_key = self.launch_key(after)?;
        let state = self.state;
        let here = state.sets_by_node[end_node].iter().copied();
        let placed = here.filter(|pod_set| state.pod_sets[*pod_set].kind == PodSetKind::Placed);
        let placed: Vec<usize> = placed.collect();
        // DaemonSet pods run on every node, independent of the offering. Rules that select them
        // restrict other pods.
        let bound_keys =
            placed.iter().flat_map(|pod_set| &self.bound_keys[*pod_set]).copied().collect();
        let requested =
            state.pods_on(end_node).filter(|(pod_set, _)| pod_set.kind == PodSetKind::Placed);
        let requested =
            requested.map(|(pod_set, pods)| pod_set.shape.requests.times(i64::from(pods.all())));
        let requested = requested.fold(Resources::default(), |sum, requests| sum.plus(&requests));
        Some(CheckedLaunch { after, end_node, launch_key, bound_keys, placed, requested })
    }

    /// Returns the rule that `offering` breaks as the alternative of a launch, with the message.
    fn broken_rule(
        &mut self,
        launch: &CheckedLaunch<'a>,
        offering: &'a Alternative,
    ) -> Option<RuleFailure> {
        let CheckedLaunch { after, end_node, launch_key, bound_keys, placed, requested } = launch;
        let Alternative { instance_type, zone, capacity_type, hourly } = offering;
        let place = (*launch_key, (instance_type, zone, *capacity_type, *hourly));
        if !self.alternative_nodes.contains_key(&place) {
            let Some(alternative_node) = self.alternative_node(after, offering) else {
                return Some(unverifiable());
            };
            self.alternative_nodes.insert(place, alternative_node);
        }
        let limits_of = &self.context.facts.desired.failure_domains;
        let Self { state, constraint_classes, groups, alternative_nodes, parts, .. } = self;
        let alternative_node = match alternative_nodes.get_mut(&place)? {
            Ok(alternative_node) => alternative_node,
            Err(fault) => return Some(fault.clone()),
        };
        let differs =
            |key: &&&LabelKey| alternative_node.labels.get(**key) != after.labels.get(**key);
        if let Some(key) = bound_keys.iter().find(differs) {
            let fault = format!("inter-pod rules bind the pods of the node to its {key}");
            return Some(("alternatives/topology", fault));
        }
        let limits = after.pool.as_ref().and_then(|pool| limits_of.get(pool));
        let is_limited =
            limits.is_some_and(|of| of.workload.zone.is_some() || of.pods.zone.is_some());
        if is_limited && after.zone.as_ref() != Some(zone) {
            let fault = "the pool limits the share of pods in a zone".to_owned();
            return Some(("alternatives/topology", fault));
        }
        for pod_set in placed {
            let Some(group) = groups[*pod_set] else { return Some(unverifiable()) };
            if let Some(why) = alternative_node.refusal(constraint_classes[*pod_set], group, after)
            {
                let name = &state.pod_sets[*pod_set].name;
                return Some(("alternatives/fit", format!("{name} is not admitted: {why}")));
            }
            if !group.partitions.is_empty() {
                let here =
                    AdmissionView { labels: &after.labels, taints: &after.taints, name: None };
                let there = AdmissionView { labels: &alternative_node.labels, ..here };
                let by_node = parts.entry(*pod_set).or_default();
                let both =
                    by_node.entry(*end_node).or_insert_with(|| admitting_parts(group, &here));
                *both = both.intersection(&admitting_parts(group, &there)).copied().collect();
            }
        }
        let short = requested
            .plus(&alternative_node.daemon_requests)
            .exceeding(&alternative_node.allocatable);
        if !short.is_empty() {
            let fault = format!("{} is insufficient for the pods of the node", short.join(", "));
            return Some(("alternatives/fit", fault));
        }
        let pods =
            placed.iter().chain(&alternative_node.daemons).map(|pod_set| &state.pod_sets[*pod_set]);
        let binds = pods.filter(|pod_set| !pod_set.shape.host_ports.is_empty());
        let (one, other, port) = first_clash(&binds.collect::<Vec<&PodSet>>())?;
        let fault = format!("pods of {} and {} would bind host port {port}", one.name, other.name);
        Some(("alternatives/fit", fault))
    }

    fn launch_key(&mut self, after: &'a NodeState) -> Option<usize> {
        let labels = after.labels.iter();
        let labels = labels.filter(|(key, _)| self.selects_by_key || key.as_str() != KEY_LABEL);
        let launch_key = LaunchKey {
            pool: after.pool.as_ref()?,
            kind: after.instance_type.as_ref()?,
            labels: labels.collect(),
            taints: &after.taints,
        };
        let next = self.launch_keys.len();
        Some(*self.launch_keys.entry(launch_key).or_insert(next))
    }

    /// Returns the node that `offering` launches; `None` if the launch itself cannot be verified.
    fn alternative_node(
        &self,
        after: &NodeState,
        offering: &Alternative,
    ) -> Option<Result<AlternativeNode, RuleFailure>> {
        let context = self.context;
        let pool = context.pool(after.pool.as_ref()?)?;
        let chosen = context.kind(after)?;
        let Alternative { instance_type, zone, capacity_type, hourly } = offering;
        let kind = context.facts.catalog.types.get(instance_type);
        let same = |o: &&Offering| o.zone == *zone && o.capacity_type == *capacity_type;
        let Some((kind, listed)) = kind.and_then(|k| Some((k, k.offerings.iter().find(same)?)))
        else {
            return Some(Err((
                "alternatives/offering",
                "the catalog does not offer it".to_owned(),
            )));
        };
        let labels = alternative_labels(after, chosen, kind, listed);
        let listed_price = context.catalog_offering(kind, zone, *capacity_type, &labels)?;
        if listed_price.price != Some(*hourly) {
            let price = listed_price.price.as_ref().map(MicroUsd::to_string);
            let price = price.unwrap_or_else(|| "an unknown price".to_owned());
            let fault = format!("it costs {price}, not {hourly}");
            return Some(Err(("alternatives/price", fault)));
        }
        if is_excluded(context, instance_type, zone, *capacity_type) {
            let fault = "EC2 recently had insufficient capacity of it".to_owned();
            return Some(Err(("alternatives/excluded", fault)));
        }
        if let Some(fault) = unmet(context, pool, &labels) {
            return Some(Err(("alternatives/requirements", fault)));
        }
        let allocatable = context.allocation(pool, kind, &labels)?.allocatable;
        let view = AdmissionView { labels: &labels, taints: &after.taints, name: None };
        let pod_sets = self.state.pod_sets.iter().enumerate();
        let runs = |pod_set: &PodSet| {
            pod_set.kind == PodSetKind::Daemon && runs_daemon(&pod_set.shape, &view, &allocatable)
        };
        let daemons: Vec<usize> =
            pod_sets.filter(|(_, pod_set)| runs(pod_set)).map(|(index, _)| index).collect();
        let requests = daemons.iter().map(|pod_set| &self.state.pod_sets[*pod_set].shape.requests);
        let daemon_requests =
            requests.fold(Resources::default(), |sum, requests| sum.plus(requests));
        let refusals = BTreeMap::new();
        Some(Ok(AlternativeNode { labels, allocatable, daemons, daemon_requests, refusals }))
    }
}

impl AlternativeNode {
    /// Returns the reason why the node admits no pod of `group`, a member of `constraint_class`.
    fn refusal(
        &mut self,
        constraint_class: usize,
        group: &PodGroup,
        after: &NodeState,
    ) -> Option<String> {
        if let Some(known) = self.refusals.get(&constraint_class) {
            return known.clone();
        }
        let view = AdmissionView { labels: &self.labels, taints: &after.taints, name: None };
        let refusal = refusal_of(group, &view).map(|(_, why)| why);
        self.refusals.insert(constraint_class, refusal.clone());
        refusal
    }
}

/// Returns the constraint class of each pod set. A workload with partitions has its own class.
fn constraint_classes(context: &CheckContext<'_>, pod_sets: &[PodSet]) -> Vec<usize> {
    let mut known: BTreeMap<(&NodeChoice, &[Toleration]), usize> = BTreeMap::new();
    let mut constraint_classes = Vec::new();
    for (index, pod_set) in pod_sets.iter().enumerate() {
        let differ =
            context.groups.get(&pod_set.name).is_some_and(|group| !group.partitions.is_empty());
        let constraint_class = (&pod_set.shape.nodes, pod_set.shape.tolerations.as_slice());
        constraint_classes.push(if differ {
            index
        } else {
            *known.entry(constraint_class).or_insert(index)
        });
    }
    constraint_classes
}
