//! Nodes that are there: what is left on them for pods, what they cost, and whether they may go.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::drift::{self, Moved};
use super::groups::Groups;
use super::learned::is_ephemeral;
use super::leave;
use super::offer::{Offer, Offers, admits_daemon};
use super::outdated::outdated;
use super::target::{BlockReason, KeepReason, RetireReason};
use crate::catalog::{Catalog, Overlays};
use crate::demand::{Demand, Pin, ShapeContext, is_pinned_at, live_requests};
use crate::fleet::{Instance, Node, Observed, Pod, SCALE_DOWN_DISABLED_ANNOTATION, tag};
use crate::ids::{Labels, NodeName, PoolName, ReservationId, WorkloadId, WorkloadKind};
use crate::manifest::{Consolidation, Desired, Expiry, Pool};
use crate::pod::Taint;
use crate::requirement::{key, label};
use crate::units::{MicroUsd, Resources};

/// How long a machine may take until its node is Ready; one that takes longer is not waited for.
/// Karpenter gives a machine as long to register.
const READY_MAX: SignedDuration = SignedDuration::from_mins(15);

/// A node that is there, or an instance of ours that has not joined yet.
#[derive(Debug, Clone)]
pub struct Standing {
    /// Name of the node; the instance id while no node has joined.
    pub name: NodeName,
    /// Pool, where the node belongs to one.
    pub pool: Option<PoolName>,
    /// Labels.
    pub labels: Labels,
    /// Taints that pods must tolerate.
    pub taints: Vec<Taint>,
    /// Taints that are gone once the node is initialized.
    pub startup_taints: Vec<Taint>,
    /// What it reports as capacity; pool limits count this.
    pub capacity: Resources,
    /// What its pods may use, DaemonSet pods included.
    pub allocatable: Resources,
    /// What is left for pods once DaemonSet and static pods have theirs.
    pub room: Resources,
    /// Price per hour, where known.
    pub price: Option<MicroUsd>,
    /// Whether the price stands in for one that is not known.
    pub price_estimated: bool,
    /// The capacity reservation it runs in, or is to be launched into.
    pub reservation: Option<ReservationId>,
    /// Names of the node overlays that changed its price.
    pub overlays: Vec<String>,
    /// Whether the node is only planned yet: it may be planned away again at no cost.
    pub is_new: bool,
    /// Whether new pods may be placed on it.
    pub schedulable: bool,
    /// What may become of it.
    pub fate: Fate,
    /// In what it is no longer what its pool declares, whether or not it may go.
    pub drift: Option<RetireReason>,
    /// What it waits for where it should go.
    pub leave: Leave,
}

impl Standing {
    /// Returns whether the node should go and stays where its pods have no other place.
    pub(super) fn may_stay_after_all(&self) -> bool {
        matches!(self.fate, Fate::Leaves(_)) && self.leave == Leave::OncePlaced
    }

    /// Returns a node that is only planned, as it will stand.
    pub(super) fn planned(name: NodeName, offer: &Offer, fate: Fate) -> Self {
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
            price: Some(node.price),
            price_estimated: node.price_estimated,
            reservation: node.reservation.clone(),
            overlays: node.overlays.clone(),
            is_new: true,
            schedulable: true,
            fate,
            drift: None,
            leave: Leave::OncePlaced,
        }
    }
}

/// What a node that should go waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// That its pods have a place elsewhere.
    OncePlaced,
    /// Nothing: its pool says how many nodes there are.
    Anyway,
}

/// What may become of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It stays, whatever it costs.
    Stays(KeepReason),
    /// It may go once nothing but DaemonSet pods is left on it; the reason forbids more.
    OnlyWhenEmpty(BlockReason),
    /// It may go, or be replaced, when that saves enough.
    Free,
    /// It should go, for this reason, as soon as its pods have a place elsewhere.
    Leaves(RetireReason),
}

/// What decides the fate of nodes, beside the nodes themselves.
pub struct Circumstances<'a> {
    /// What the repository declares.
    pub desired: &'a Desired,
    /// What has to be placed.
    pub demand: &'a Demand,
    /// The moment planned for.
    pub at: Timestamp,
    /// Why nothing may be removed at all, where something says so.
    pub frozen: Option<String>,
    /// Nodes that the user asked to replace.
    pub replace: &'a [NodeName],
    /// Nodes that must not change, because the user limited the plan.
    pub untouched: &'a [NodeName],
}

/// Returns every node that pods may be on, by name.
#[must_use]
pub(super) fn standing_nodes(
    observed: &Observed,
    catalog: &Catalog,
    offers: &Offers,
    circumstances: &Circumstances,
) -> Vec<Standing> {
    let survey = Survey {
        observed,
        catalog,
        offers,
        circumstances,
        overlays: Overlays::of(circumstances.desired),
        fixed: fixed_requests(observed, circumstances),
        pinned_daemons: pinned_daemons(observed, circumstances.at),
        pinned_pods: pinned_pods(observed, circumstances.at),
        groups: Groups::of(circumstances.desired, observed),
        specs: specs(circumstances.desired),
    };
    let by_instance: BTreeMap<_, _> =
        observed.nodes.values().filter_map(|n| Some((n.instance.as_ref()?, n))).collect();
    let joining = observed
        .instances
        .values()
        .filter(|i| i.is_active() && survey.pool_of(i).is_some())
        .filter(|i| !by_instance.contains_key(&i.id));
    let mut nodes: Vec<Standing> = observed
        .nodes
        .values()
        .filter(|n| !n.is_fargate())
        .filter_map(|n| survey.node(n))
        .collect();
    nodes.extend(joining.filter_map(|instance| survey.joining(instance)));
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    survey.groups.bound(&mut nodes, circumstances.demand);
    nodes
}

/// What is known of what runs.
pub(super) struct Survey<'a> {
    pub(super) observed: &'a Observed,
    pub(super) catalog: &'a Catalog,
    pub(super) offers: &'a Offers,
    pub(super) circumstances: &'a Circumstances<'a>,
    pub(super) overlays: Overlays<'a>,
    /// What static pods, and DaemonSet pods that no rule expects, take of each node.
    fixed: BTreeMap<NodeName, Resources>,
    /// Workload of a DaemonSet pod or static pod that forbids to touch its node.
    pinned_daemons: BTreeMap<NodeName, String>,
    /// Nodes, and workloads of which a pod there asks not to be moved now.
    pinned_pods: BTreeSet<(&'a NodeName, &'a WorkloadId)>,
    groups: Groups<'a>,
    /// With what machines of each pool are launched now, as one digest: there are many nodes, and few pools.
    specs: BTreeMap<PoolName, String>,
}

/// Returns the digest of each pool with its node class.
fn specs(desired: &Desired) -> BTreeMap<PoolName, String> {
    let spec = |pool: &Pool| {
        let class = desired.node_classes.get(pool.node_class.as_ref()?)?;
        Some((pool.name.clone(), drift::spec_digest(pool, class)))
    };
    desired.pools.values().filter_map(spec).collect()
}

impl Survey<'_> {
    fn node(&self, node: &Node) -> Option<Standing> {
        let instance = node.instance.as_ref().and_then(|id| self.observed.instances.get(id));
        if instance.is_some_and(|instance| !instance.is_active()) {
            return None;
        }
        let ours = instance.filter(|instance| instance.is_ours(&self.observed.cluster.name));
        let member = instance.filter(|i| self.groups.pool_of(i).is_some());
        let known = ours.or(member);
        let pool = known.and_then(|instance| self.pool_of(instance));
        let declared = pool.as_ref().and_then(|name| self.circumstances.desired.pools.get(name));
        // Taints that go once the node is initialized keep no pod away for long; where they are
        // back, or never went, no more pods come, and those that run stay.
        let starts = |taint: &Taint| {
            is_ephemeral(taint) || declared.is_some_and(|p| p.startup_taints.contains(taint))
        };
        let (startup_taints, taints): (Vec<Taint>, Vec<Taint>) =
            node.taints.iter().cloned().partition(starts);
        let priced = instance.map(|i| self.priced(i, &node.labels)).unwrap_or_default();
        let daemons = self.expected_daemons(&node.labels, &taints);
        let fixed = self.fixed.get(&node.name).cloned().unwrap_or_default();
        let is_young = self.is_coming(node.created_at);
        let mut usable = node.allocatable.clone();
        if let Some(instance) = ours.filter(|_| is_young) {
            self.expect_devices(&mut usable, (node, instance), pool.as_ref());
        }
        let fate = match ours {
            Some(instance) => self.fate(node, instance, pool.as_ref()),
            None => match (member, pool.as_ref()) {
                (Some(instance), Some(pool)) => self.member_fate(node, instance, pool),
                (_, _) => Fate::Stays(KeepReason::NotOurs),
            },
        };
        Some(Standing {
            name: node.name.clone(),
            labels: node.labels.clone(),
            capacity: node.capacity.clone(),
            allocatable: node.allocatable.clone(),
            room: usable.minus(&daemons).minus(&fixed),
            price: priced.price,
            price_estimated: priced.estimated,
            reservation: instance.and_then(|instance| instance.reservation.clone()),
            overlays: priced.overlays,
            schedulable: !node.unschedulable
                && (node.ready || known.is_some() && is_young)
                && (startup_taints.is_empty() || is_young),
            is_new: false,
            taints,
            startup_taints,
            fate,
            drift: ours.and_then(|instance| self.drift(node, instance, pool.as_ref())),
            leave: Leave::OncePlaced,
            pool,
        })
    }

    /// Returns in what a node of ours is not what is declared.
    fn drift(&self, node: &Node, ours: &Instance, pool: Option<&PoolName>) -> Option<RetireReason> {
        let declared = pool.and_then(|name| self.circumstances.desired.pools.get(name));
        let Some(pool) = declared else { return Some(RetireReason::PoolRemoved) };
        let reason = self.must_leave(node, ours, pool);
        let reason = reason.filter(|reason| matches!(reason, RetireReason::Drifted { .. }));
        let class = pool.node_class.as_ref();
        let class = class.and_then(|name| self.circumstances.desired.node_classes.get(name));
        reason.or_else(|| {
            let spec = self.specs.get(&pool.name)?;
            let moved = drift::moved(node, ours, (pool, class?), spec)?;
            let Moved { field, is, declared } = moved;
            Some(RetireReason::Drifted { field, is, declared })
        })
    }

    /// Returns the pool of an instance of ours, or of a member of a declared group.
    pub(super) fn pool_of(&self, instance: &Instance) -> Option<PoolName> {
        let ours = instance.is_ours(&self.observed.cluster.name);
        pool_of(instance).filter(|_| ours).or_else(|| self.groups.pool_of(instance).cloned())
    }

    fn member_fate(&self, node: &Node, instance: &Instance, pool: &PoolName) -> Fate {
        let blocked = |by| Fate::Stays(KeepReason::Blocked { by });
        if let Some(why) = self.groups.observed_only(pool.as_str()) {
            return blocked(BlockReason::GroupObserved { why: why.to_owned() });
        }
        if instance.group.as_ref().is_some_and(|of| of.protected) {
            let why = "it is protected from being scaled in".to_owned();
            return blocked(BlockReason::GroupObserved { why });
        }
        self.fate(node, instance, Some(pool))
    }

    /// Adds the devices that a young node does not report yet, since their plugins start after its
    /// kubelet.
    fn expect_devices(
        &self,
        usable: &mut Resources,
        (node, instance): (&Node, &Instance),
        pool: Option<&PoolName>,
    ) {
        let kind = self.catalog.types.get(&instance.instance_type);
        let Some((kind, pool)) = kind.zip(pool) else { return };
        let mut expected = self.catalog.allocation(kind, &self.settings(pool));
        self.overlays.overlaid(&node.labels, None).extend(&mut expected);
        for (name, amount) in expected.allocatable.extended {
            usable.extended.entry(name).or_insert(amount);
        }
    }

    /// Returns whether a machine that began then may still become Ready.
    pub(super) fn is_coming(&self, began: Timestamp) -> bool {
        self.circumstances.at.duration_since(began) <= READY_MAX
    }

    pub(super) fn expected_daemons(&self, labels: &Labels, taints: &[Taint]) -> Resources {
        super::offer::daemon_requests(&self.circumstances.demand.daemons, labels, taints)
    }

    fn fate(&self, node: &Node, instance: &Instance, pool: Option<&PoolName>) -> Fate {
        let blocked = |by| Fate::Stays(KeepReason::Blocked { by });
        let circumstances = self.circumstances;
        if circumstances.untouched.contains(&node.name) {
            return blocked(BlockReason::NotTargeted);
        }
        if let Some(what) = &circumstances.frozen {
            return blocked(BlockReason::Unknown { what: what.clone() });
        }
        if !node.ready {
            return blocked(BlockReason::NotReady);
        }
        if let Some(by) = self.obstacle(node) {
            return blocked(by);
        }
        let declared = pool.and_then(|name| circumstances.desired.pools.get(name));
        let Some(pool) = declared else { return Fate::Leaves(RetireReason::PoolRemoved) };
        if circumstances.replace.contains(&node.name) {
            return Fate::Leaves(RetireReason::Requested);
        }
        let barred = |reason: &str| leave::is_barred(pool, reason, circumstances.at);
        if let Some(reason) = self.must_leave(node, instance, pool) {
            // What has expired goes whatever budgets say, as with Karpenter.
            if matches!(reason, RetireReason::Drifted { .. }) && barred("Drifted") {
                return blocked(BlockReason::Budget);
            }
            return Fate::Leaves(reason);
        }
        if pool.replicas.is_some() {
            return blocked(BlockReason::StaticPool);
        }
        if pool.consolidate_after.is_none() {
            return blocked(BlockReason::ConsolidationDisabled);
        }
        if barred("Empty") {
            return blocked(BlockReason::Budget);
        }
        match pool.consolidation {
            Consolidation::WhenEmptyOrUnderutilized | Consolidation::Balanced
                if barred("Underutilized") =>
            {
                Fate::OnlyWhenEmpty(BlockReason::Budget)
            }
            Consolidation::WhenEmpty => Fate::OnlyWhenEmpty(BlockReason::PolicyWhenEmpty),
            Consolidation::WhenEmptyOrUnderutilized | Consolidation::Balanced => Fate::Free,
        }
    }

    /// Something on the node, or on one of its pods, that forbids to touch it.
    fn obstacle(&self, node: &Node) -> Option<BlockReason> {
        if node.annotations.get("karpenter.sh/do-not-disrupt").is_some_and(|v| v == "true") {
            return Some(BlockReason::DoNotDisrupt);
        }
        if node.annotations.get(SCALE_DOWN_DISABLED_ANNOTATION).is_some_and(|v| v == "true") {
            return Some(BlockReason::ScaleDownDisabled);
        }
        if let Some(workload) = self.pinned_daemons.get(&node.name).cloned() {
            return Some(BlockReason::PinnedPod { workload });
        }
        let mut here = self
            .circumstances
            .demand
            .groups
            .iter()
            .filter(|group| group.counts.planned > 0 && group.running.contains_key(&node.name));
        here.find_map(|group| {
            let workload = super::workload_key(&group.workload);
            let asks = self.pinned_pods.contains(&(&node.name, &group.workload));
            if group.shape.pinned || asks {
                return Some(BlockReason::PinnedPod { workload });
            }
            let circumstances = self.circumstances;
            let groups = &circumstances.demand.groups;
            if let Some(budget) = leave::protector(circumstances.desired, groups, group) {
                let budget = format!("{}/{}", budget.namespace, budget.name);
                return Some(BlockReason::ProtectedPod { workload, budget });
            }
            let feature = group.shape.unsupported.first()?.as_str().to_owned();
            Some(BlockReason::UnsupportedPod { workload, feature })
        })
    }

    fn must_leave(&self, node: &Node, instance: &Instance, pool: &Pool) -> Option<RetireReason> {
        if let Expiry::After(limit) = pool.expire_after {
            let age = self.circumstances.at.duration_since(instance.launched_at);
            if age >= limit {
                let hours = |d: SignedDuration| u32::try_from(d.as_hours()).unwrap_or(u32::MAX);
                return Some(RetireReason::Expired {
                    age_hours: hours(age),
                    limit_hours: hours(limit),
                });
            }
        }
        // What a group's nodes are like is the business of whoever makes them.
        if self.circumstances.desired.node_groups.contains_key(&pool.name) {
            return None;
        }
        let requirements = super::offer::pool_requirements(pool);
        let class = pool.node_class.as_ref();
        let class = class.and_then(|name| self.circumstances.desired.node_classes.get(name));
        let launched = instance.tags.get(tag::SPEC);
        if let Some(key) = requirements.unmatched(&node.labels) {
            let of_commit = pool.labels.contains_key(key)
                && launched.zip(class).is_some_and(|(l, c)| drift::has_other_labels(l, pool, c));
            let state = node.labels.get(key).map_or("absent".to_owned(), ToString::to_string);
            let declared = requirements.get(key.as_str()).map(ToString::to_string);
            return Some(RetireReason::Drifted {
                field: format!("{}{key}", if of_commit { "template label " } else { "label " }),
                is: state,
                declared: declared.unwrap_or_default(),
            });
        }
        let otherwise = launched.filter(|launched| self.specs.get(&pool.name) != Some(launched));
        if let Some(field) = otherwise.zip(class).and_then(|(l, c)| drift::changed(l, pool, c)) {
            let (is, declared) = ("as launched".to_owned(), "changed since".to_owned());
            return Some(RetireReason::Drifted { field, is, declared });
        }
        let now = (self.catalog, self.observed);
        let moved = outdated(instance, class?, now)?;
        let Moved { field, is, declared } = moved;
        Some(RetireReason::Drifted { field, is, declared })
    }
}

pub(super) fn pool_of(instance: &Instance) -> Option<PoolName> {
    instance.tags.get(tag::POOL).map(|name| name.as_str().into())
}

/// What pods take of nodes without being placed: static pods, and pods of DaemonSets that are not
/// expected there.
fn fixed_requests(
    observed: &Observed,
    circumstances: &Circumstances,
) -> BTreeMap<NodeName, Resources> {
    let context = ShapeContext::of(circumstances.desired);
    let expected = |pod: &Pod, node: &Node| {
        let daemons = &circumstances.demand.daemons;
        let owner = daemons.iter().find(|d| Some(&d.workload) == pod.owner.as_ref());
        owner.is_some_and(|daemon| admits_daemon(daemon, &node.labels, &node.taints))
    };
    let mut fixed: BTreeMap<NodeName, Resources> = BTreeMap::new();
    for pod in observed.pods.iter().filter(|pod| pod.is_active()) {
        let Some(node) = pod.node.as_ref().and_then(|name| observed.nodes.get(name)) else {
            continue;
        };
        let daemon = pod.owner.as_ref().is_some_and(|o| o.kind == WorkloadKind::DaemonSet);
        if !(pod.mirror || daemon && !expected(pod, node)) {
            continue;
        }
        let Some(template) = observed.templates.get(&pod.template) else { continue };
        let requests = live_requests(pod, template, &context);
        let sum = fixed.entry(node.name.clone()).or_default();
        *sum = sum.plus(&requests);
    }
    fixed
}

/// Nodes with a pod that nobody places and that still asks not to be disturbed, which Karpenter
/// honours like the wish of any other pod.
fn pinned_daemons(observed: &Observed, at: Timestamp) -> BTreeMap<NodeName, String> {
    let nobody_places = |pod: &Pod| {
        let owner = pod.owner.as_ref();
        pod.mirror || owner.is_some_and(|owner| owner.kind == WorkloadKind::DaemonSet)
    };
    let pinned = |pod: &Pod| {
        let template = observed.templates.get(&pod.template)?;
        let itself = || format!("{}/Pod/{}", pod.namespace, pod.name);
        let workload = pod.owner.as_ref().map_or_else(itself, super::workload_key);
        let pin = Pin::of_karpenter(&template.annotations);
        pin.holds(pod.started_at, at).then_some((pod.node.clone()?, workload))
    };
    observed
        .pods
        .iter()
        .filter(|pod| pod.is_active() && nobody_places(pod))
        .filter_map(|pod| pinned(pod))
        .collect()
}

/// Returns the nodes and the workloads of which a pod there asks not to be moved at `at`.
fn pinned_pods(observed: &Observed, at: Timestamp) -> BTreeSet<(&NodeName, &WorkloadId)> {
    let pods = observed.pods.iter().filter(|pod| pod.is_active() && pod.node.is_some());
    let pods = pods.filter(|pod| is_pinned_at(pod, observed, at));
    pods.filter_map(|pod| Some((pod.node.as_ref()?, pod.owner.as_ref()?))).collect()
}

/// Returns the node label that names the zone, where it has one.
#[must_use]
pub(super) fn zone_of(labels: &Labels) -> Option<&str> {
    labels.get(key::ZONE).map(crate::ids::LabelValue::as_str)
}
