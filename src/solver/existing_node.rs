//! Existing nodes: free resources, price, and disposition.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::Input;
use super::auto_scaling_groups::AutoScalingGroups;
use super::daemon_sets::{RunningHere, running_by_node};
use super::drift;
use super::node_disposition::{
    NodeDisposition, NodeDrift, RetireCondition, job_refusals, pinned_daemons, pinned_pods,
};
use super::offer::{Offer, Offers, runs_daemon};
use super::reported_resources::MORE_PERCENT;
use crate::catalog::{Catalog, Overlays};
use crate::demand::{JobRefusal, PodShape, ShapeContext, live_requests, pod_shape};
use crate::model::desired::{AmiFamily, Desired, Pool};
use crate::model::ids::{
    Labels, Namespace, NodeName, PoolName, ReservationId, WorkloadId, WorkloadKind,
};
use crate::model::observed::{Instance, Node, Observed, Pod, UnreadObject, UntaggedNode, tag};
use crate::model::pod::{Taint, TaintEffect, untolerated};
use crate::model::reason::{BlockReason, DriftedField, KeepReason, RetireReason};
use crate::model::requirement::{key, label};
use crate::model::units::{MicroUsd, Resources};

/// Maximum time until the node of an instance is Ready. Karpenter gives an instance the same time
/// to register.
const READY_TIMEOUT: SignedDuration = SignedDuration::from_mins(15);

/// An existing node, or a managed instance whose node has not joined yet.
#[derive(Debug, Clone)]
pub struct ExistingNode {
    /// Name of the node; the instance id until the node joins.
    pub name: NodeName,
    /// Pool of the node, if it has one.
    pub pool: Option<PoolName>,
    /// Labels.
    pub labels: Labels,
    /// Taints that pods must tolerate.
    pub taints: Vec<Taint>,
    /// Taints that keep new pods away and no running pod: those that are removed once the node is
    /// initialized, and those that an operator set against running pods.
    pub startup_taints: Vec<Taint>,
    /// Reported capacity, at most that of the instance type if the instance lost its tags. Pool limits
    /// count this amount.
    pub capacity: Resources,
    /// Resources for pods, DaemonSet pods included.
    pub allocatable: Resources,
    /// Resources for pods, less the requests of DaemonSet and static pods.
    pub room: Resources,
    /// Static pods of the node, and DaemonSet pods that no rule expects there. Their shapes have no
    /// requests, because `room` excludes these already.
    pub static_pods: Vec<Arc<PodShape>>,
    /// Price per hour, if known.
    pub price: Option<MicroUsd>,
    /// True if the price is an estimate because the actual price is unknown.
    pub price_estimated: bool,
    /// Capacity reservation of the instance.
    pub reservation: Option<ReservationId>,
    /// Names of the node overlays that changed its price.
    pub overlays: Vec<String>,
    /// True if the node is only planned: it can be removed at no cost.
    pub is_planned: bool,
    /// True if new pods may be placed on it.
    pub schedulable: bool,
    /// Disposition of the node.
    pub disposition: NodeDisposition,
    /// Reason to replace or remove it, whether or not this is allowed now.
    pub due: Option<RetireReason>,
    /// Every field in which it differs from its pool.
    pub differences: Vec<DriftedField>,
    /// Condition for its retirement.
    pub retire_condition: RetireCondition,
    /// Pods that the last plan places on the node, by workload.
    pub planned_pods: BTreeMap<String, u32>,
}

impl ExistingNode {
    /// Returns true if the node should be retired, but is retained while its pods do not fit
    /// elsewhere.
    pub(super) fn may_be_retained(&self) -> bool {
        matches!(self.disposition, NodeDisposition::Retire(_))
            && self.retire_condition == RetireCondition::OncePodsPlaced
    }

    /// Returns the planned node of an offer.
    pub(super) fn from_offer(name: NodeName, offer: &Offer, disposition: NodeDisposition) -> Self {
        let Offer { node, room, .. } = offer;
        let mut labels = node.labels.clone();
        labels.extend([label(key::HOSTNAME, name.as_str())]);
        Self {
            name,
            pool: Some(node.pool.clone()),
            labels,
            taints: node.taints.clone(),
            startup_taints: Vec::new(),
            capacity: node.capacity.clone(),
            allocatable: node.allocatable.clone(),
            room: room.clone(),
            static_pods: Vec::new(),
            price: Some(node.price),
            price_estimated: node.price_estimated,
            reservation: node.reservation.clone(),
            overlays: node.overlays.clone(),
            is_planned: true,
            schedulable: true,
            disposition,
            due: None,
            differences: Vec::new(),
            retire_condition: RetireCondition::OncePodsPlaced,
            planned_pods: BTreeMap::new(),
        }
    }
}

/// Returns every node that can run pods, sorted by name.
pub(super) fn existing_nodes(input: &Input, offers: &Offers) -> Vec<ExistingNode> {
    let Input { observed, catalog, .. } = *input;
    let builder = ExistingNodeBuilder {
        observed,
        catalog,
        offers,
        input,
        overlays: Overlays::from_desired(input.desired),
        static_pods: static_pods(input),
        running: running_by_node(&input.demand.groups),
        pinned_daemons: pinned_daemons(observed, input.at),
        pinned_pods: pinned_pods(observed, input.at),
        job_refusals: job_refusals(input),
        groups: AutoScalingGroups::new(input.desired, observed),
        spec_digests: spec_digests(input.desired),
        unread: unread_by_node(observed),
        untagged: observed.untagged_nodes(),
    };
    let by_instance: BTreeMap<_, _> =
        observed.nodes.values().filter_map(|n| Some((n.instance.as_ref()?, n))).collect();
    let joining = observed
        .instances
        .values()
        .filter(|i| i.is_active() && builder.pool_of(i).is_some())
        .filter(|i| !by_instance.contains_key(&i.id));
    let mut nodes: Vec<ExistingNode> = observed
        .nodes
        .values()
        .filter(|n| !n.is_fargate())
        .filter_map(|n| builder.node(n))
        .collect();
    nodes.extend(joining.filter_map(|instance| builder.expected_node(instance)));
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    builder.groups.apply_bounds(&mut nodes, input.demand);
    nodes
}

/// Builds [`ExistingNode`]s from the observed state.
pub(super) struct ExistingNodeBuilder<'a> {
    pub(super) observed: &'a Observed,
    pub(super) catalog: &'a Catalog,
    pub(super) offers: &'a Offers,
    pub(super) input: &'a Input<'a>,
    pub(super) overlays: Overlays<'a>,
    pub(super) static_pods: BTreeMap<NodeName, StaticPods>,
    /// By node: its running pods that stay.
    pub(super) running: BTreeMap<&'a NodeName, Vec<RunningHere<'a>>>,
    /// By node: the workload of a DaemonSet or static pod that blocks changes of the node.
    pub(super) pinned_daemons: BTreeMap<NodeName, String>,
    /// Nodes with workloads whose pod there must not be moved now.
    pub(super) pinned_pods: BTreeSet<(&'a NodeName, &'a WorkloadId)>,
    /// By node: why the Job of a pod there might fail without it.
    pub(super) job_refusals: BTreeMap<&'a NodeName, JobRefusal>,
    pub(super) groups: AutoScalingGroups<'a>,
    /// Digest of the declared launch settings of each pool. There are many nodes and few pools.
    pub(super) spec_digests: BTreeMap<PoolName, String>,
    /// By node: the first unread object that may need it, those that hide requests first.
    pub(super) unread: BTreeMap<&'a NodeName, &'a UnreadObject>,
    /// Nodes whose instances lost their tags.
    untagged: BTreeMap<&'a NodeName, UntaggedNode>,
}

fn unread_by_node(observed: &Observed) -> BTreeMap<&NodeName, &UnreadObject> {
    let mut by_node: BTreeMap<&NodeName, &UnreadObject> = BTreeMap::new();
    for unread in &observed.unread {
        for node in &unread.nodes {
            let first = by_node.entry(node).or_insert(unread);
            if unread.hides_requests && !first.hides_requests {
                *first = unread;
            }
        }
    }
    by_node
}

/// Returns the digest of the declared launch settings of each pool.
pub fn spec_digests(desired: &Desired) -> BTreeMap<PoolName, String> {
    let spec = |pool: &Pool| {
        let class = desired.node_classes.get(pool.node_class.as_ref()?)?;
        Some((pool.name.clone(), drift::spec_digest(pool, class)))
    };
    desired.pools.values().filter_map(spec).collect()
}

impl ExistingNodeBuilder<'_> {
    fn node(&self, node: &Node) -> Option<ExistingNode> {
        let instance = node.instance.as_ref().and_then(|id| self.observed.instances.get(id));
        if instance.is_some_and(|instance| !instance.is_active()) {
            return None;
        }
        let ours = instance.filter(|instance| instance.is_managed_by(&self.observed.cluster.name));
        let member = instance.filter(|i| self.groups.pool_of(i).is_some());
        let known = ours.or(member);
        let untagged = self.untagged.get(&node.name).filter(|_| known.is_none());
        let pool = match untagged {
            Some(untagged) => self.pool_of_untagged(untagged),
            None => known.and_then(|instance| self.pool_of(instance)),
        };
        let declared = pool.as_ref().and_then(|name| self.input.desired.pools.get(name));
        // Startup taints keep pods away only briefly. If they return or persist, no new pods arrive
        // and running pods stay.
        let starts = |taint: &Taint| {
            taint.is_ephemeral() || declared.is_some_and(|p| p.startup_taints.contains(taint))
        };
        let manual = declared.map(|pool| self.manual_taints(node, pool)).unwrap_or_default();
        let (startup_taints, taints): (Vec<Taint>, Vec<Taint>) =
            node.taints.iter().cloned().partition(|taint| starts(taint) || manual.contains(taint));
        let priced = instance.map(|i| self.node_price(i, &node.labels)).unwrap_or_default();
        let static_pods = self.static_pods.get(&node.name).cloned().unwrap_or_default();
        let is_young = self.is_starting(node.created_at)
            && !self.was_ready_before(node, instance, pool.as_ref());
        let (capacity, mut usable) = self.counted_amounts(node, instance, pool.as_ref());
        if let Some(instance) = ours.filter(|_| is_young || self.runs_unreported_devices(node)) {
            self.add_expected_devices(&mut usable, node, instance, pool.as_ref());
        }
        let disposition = match (ours, member, pool.as_ref()) {
            (Some(instance), _, pool) => self.disposition(node, instance, pool),
            (None, Some(instance), Some(pool)) => self.member_disposition(node, instance, pool),
            (None, _, _) => NodeDisposition::Keep(foreign_reason(untagged)),
        };
        let NodeDrift { due, fields: differences } =
            ours.map(|instance| self.drift(node, instance, pool.as_ref())).unwrap_or_default();
        let room = self.room_beside_daemons(node, &taints, &usable);
        // The pods of a node without tags keep their room, whatever its kubelet reports.
        let room = match untagged {
            Some(_) => room.at_least(&self.running_requests(&node.name)),
            None => room,
        };
        Some(ExistingNode {
            name: node.name.clone(),
            labels: node.labels.clone(),
            capacity,
            allocatable: node.allocatable.clone(),
            room,
            static_pods: static_pods.shapes,
            price: priced.price,
            price_estimated: priced.estimated,
            reservation: instance.and_then(|instance| instance.reservation.clone()),
            overlays: priced.overlays,
            schedulable: !node.unschedulable
                && (node.ready || known.is_some() && is_young)
                && (startup_taints.is_empty() || is_young)
                && manual.is_empty()
                && !self.unread.get(&node.name).is_some_and(|unread| unread.hides_requests),
            is_planned: false,
            taints,
            startup_taints,
            disposition,
            due,
            differences,
            retire_condition: RetireCondition::OncePodsPlaced,
            planned_pods: instance.map(|i| self.planned_pods(i)).unwrap_or_default(),
            pool,
        })
    }

    /// Returns the declared pool of a node whose instance lost its tags.
    fn pool_of_untagged(&self, untagged: &UntaggedNode) -> Option<PoolName> {
        let pool = self.input.desired.pools.get(untagged.pool.as_ref()?)?;
        let is_group = self.input.desired.node_groups.contains_key(&pool.name);
        (!is_group).then(|| pool.name.clone())
    }

    /// Returns capacity and allocatable resources of a node. Those of a node without tags are at most
    /// slightly above those of its instance type: a label that its kubelet sets may be the only
    /// evidence of its pool.
    fn counted_amounts(
        &self,
        node: &Node,
        instance: Option<&Instance>,
        pool: Option<&PoolName>,
    ) -> (Resources, Resources) {
        let Node { capacity, allocatable, .. } = node;
        let is_untagged = self.untagged.contains_key(&node.name);
        let kind = instance.and_then(|i| self.catalog.types.get(&i.instance_type));
        let Some((kind, pool)) = kind.zip(pool).filter(|_| is_untagged) else {
            return (capacity.clone(), allocatable.clone());
        };
        let mut model = self.catalog.allocation(kind, &self.node_settings(pool));
        self.overlays.apply(&node.labels, None).extend(&mut model);
        let most = model.capacity.percent(100 + MORE_PERCENT);
        (capacity.at_most(&most), allocatable.at_most(&model.capacity))
    }

    /// Returns the requests of the pods on a node, without those of `DaemonSet`s.
    fn running_requests(&self, node: &NodeName) -> Resources {
        let groups = self.input.demand.groups.iter();
        groups.fold(Resources::default(), |sum, group| {
            let pods = group.running.get(node).copied().unwrap_or(0);
            sum.plus(&group.shape.requests.times(i64::from(pods)))
        })
    }

    /// Returns the `NoSchedule` taints that an operator set on a node against pods that run on it.
    /// They keep new pods away, and evict none. As taints of the node, they would let it look empty,
    /// and a plan would replace it as a saving.
    fn manual_taints(&self, node: &Node, pool: &Pool) -> Vec<Taint> {
        let manual: Vec<Taint> = node
            .taints
            .iter()
            .filter(|taint| taint.effect == TaintEffect::NoSchedule)
            .filter(|taint| drift::is_set_by_hand(taint, pool))
            .cloned()
            .collect();
        let mut groups = self.input.demand.groups.iter();
        let holds_pods = groups.any(|group| {
            group.counts.planned > 0
                && group.active_on(&node.name) > 0
                && untolerated(&manual, &group.shape.tolerations).is_some()
        });
        if holds_pods { manual } else { Vec::new() }
    }

    /// Returns the pool of a managed instance, or of a member of a declared group.
    pub(super) fn pool_of(&self, instance: &Instance) -> Option<PoolName> {
        let ours = instance.is_managed_by(&self.observed.cluster.name);
        pool_of(instance).filter(|_| ours).or_else(|| self.groups.pool_of(instance).cloned())
    }

    /// Adds the devices that a node does not report: device plugins start after the kubelet of a
    /// young node, and `ResourceSlice` objects may not be served.
    fn add_expected_devices(
        &self,
        usable: &mut Resources,
        node: &Node,
        instance: &Instance,
        pool: Option<&PoolName>,
    ) {
        let kind = self.catalog.types.get(&instance.instance_type);
        let Some((kind, pool)) = kind.zip(pool) else { return };
        let mut expected = self.catalog.allocation(kind, &self.node_settings(pool));
        self.overlays.apply(&node.labels, None).extend(&mut expected);
        for (name, amount) in expected.allocatable.extended {
            usable.extended.entry(name).or_insert(amount);
        }
    }

    /// Returns true if a node is not Ready although it was before. It does not become Ready as a
    /// node that starts does.
    fn was_ready_before(
        &self,
        node: &Node,
        instance: Option<&Instance>,
        pool: Option<&PoolName>,
    ) -> bool {
        let desired = self.input.desired;
        let class = pool.and_then(|name| desired.pools.get(name)?.node_class.as_ref());
        let class = class.and_then(|name| desired.node_classes.get(name));
        // The user data of an image of the user's own may register the node open.
        let registers_closed = class.is_some_and(|class| class.ami_family != AmiFamily::Custom);
        let was_opened = || instance.is_some_and(|instance| node.was_opened(instance));
        !node.ready && (node.was_ready || registers_closed && was_opened())
    }

    /// Returns true if an instance launched at `began` may still become Ready.
    pub(super) fn is_starting(&self, began: Timestamp) -> bool {
        self.input.at.duration_since(began) <= READY_TIMEOUT
    }
}

pub(super) fn pool_of(instance: &Instance) -> Option<PoolName> {
    instance.tags.get(tag::POOL).map(|name| name.as_str().into())
}

/// Pods of a node that are not placed: static pods, and DaemonSet pods that no rule expects there.
#[derive(Clone, Default)]
pub(super) struct StaticPods {
    pub(super) requests: Resources,
    /// Shapes without requests.
    shapes: Vec<Arc<PodShape>>,
    /// By DaemonSet that is expected there: the requests of its pods that run.
    pub(super) daemons: BTreeMap<WorkloadId, Resources>,
}

fn static_pods(input: &Input) -> BTreeMap<NodeName, StaticPods> {
    let observed = input.observed;
    let context = ShapeContext::new(input.desired);
    let expected = |pod: &Pod, node: &Node| {
        let daemons = &input.demand.daemons;
        let owner = daemons.iter().find(|d| Some(&d.workload) == pod.owner.as_ref());
        owner.is_some_and(|daemon| {
            runs_daemon(daemon, &node.labels, &node.taints, &node.allocatable)
        })
    };
    let mut shapes: BTreeMap<(&Namespace, &str), Arc<PodShape>> = BTreeMap::new();
    let mut static_pods: BTreeMap<NodeName, StaticPods> = BTreeMap::new();
    for pod in observed.pods.iter().filter(|pod| pod.is_active()) {
        let Some(node) = pod.node.as_ref().and_then(|name| observed.nodes.get(name)) else {
            continue;
        };
        let daemon = pod.owner.as_ref().filter(|o| o.kind == WorkloadKind::DaemonSet);
        if !pod.mirror && daemon.is_none() {
            continue;
        }
        let Some(template) = observed.templates.get(&*pod.template) else { continue };
        if let Some(daemon) = daemon.filter(|_| !pod.mirror && expected(pod, node)) {
            let on_node = static_pods.entry(node.name.clone()).or_default();
            let sum = on_node.daemons.entry(daemon.clone()).or_default();
            *sum = sum.plus(&live_requests(pod, template, &context));
            continue;
        }
        let shape = shapes.entry((&pod.namespace, &*pod.template)).or_insert_with(|| {
            // kube-scheduler would preempt a static pod, and the kubelet would start it at once.
            let shape = pod_shape(&pod.namespace, template, &context);
            Arc::new(PodShape { requests: Resources::default(), priority: i32::MAX, ..shape })
        });
        let on_node = static_pods.entry(node.name.clone()).or_default();
        on_node.requests = on_node.requests.plus(&live_requests(pod, template, &context));
        on_node.shapes.push(Arc::clone(shape));
    }
    static_pods
}

/// Returns the zone label of a node, if it has one.
pub(super) fn zone_of(labels: &Labels) -> Option<&str> {
    labels.get(key::ZONE).map(crate::model::ids::LabelValue::as_str)
}

/// Returns the reason to keep a node without an instance of ours.
fn foreign_reason(untagged: Option<&UntaggedNode>) -> KeepReason {
    let Some(untagged) = untagged else { return KeepReason::NotOurs };
    let instance = untagged.instance.to_string();
    let missing = untagged.lost_tags();
    KeepReason::Blocked { by: BlockReason::TagsLost { instance, missing } }
}
