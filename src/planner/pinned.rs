//! Planning again before an apply, pinned to the approved plan.
//!
//! The approved changes are assumed to be applied, and nothing in the resulting world may be
//! touched. A launch that is still necessary there is missing from the approved plan. A launch is
//! unneeded if the world without it needs no other launch. Nothing is swapped: the current plan is
//! only advice. Invariant: a dropped launch was left out of a world in which every pod that was
//! schedulable still is.

use std::collections::{BTreeMap, BTreeSet};

use super::{Inputs, frozen, in_scope, input, node_count_fixpoint, with_effective_inputs};
use crate::model::desired::{Scaler, ScalerRule};
use crate::model::ids::{Address, GroupName, InstanceId, NodeName, Tags};
use crate::model::observed::{
    Group, Instance, InstanceState, KEY_LABEL, LaunchedWith, Membership, Node, Observed, tag,
};
use crate::model::requirement::{key, label};
use crate::model::units::MicroUsd;
use crate::plan::wire::{Action, LaunchReason, NodeState, Plan, ResourceChange, ResourceKind};
use crate::plan::{PinnedPlan, change_id, seal};
use crate::solver::{Input, Launch, Purpose, solve};

/// Most worlds that are solved to find unneeded launches.
const TRIALS_MAX: usize = 32;

/// Most pods times nodes of all trial worlds together.
///
/// A fleet that is too large for a single trial drops no launch. Superfluous launches only cost
/// money for a while, and the apply lease is not renewed during the search.
const TRIALS_WORK: usize = 2_000_000;

const NO_LONGER_NEEDED: &str = "its pods now fit on other nodes";

/// Compares the approved plan with the current inputs.
///
/// If the current plan has the approved digest, nothing else is computed.
#[must_use]
pub fn plan_pinned(inputs: &Inputs, approved: &Plan) -> PinnedPlan {
    with_effective_inputs(inputs, |inputs| plan_pinned_effective(inputs, approved))
}

fn plan_pinned_effective(inputs: &Inputs, approved: &Plan) -> PinnedPlan {
    let demand = node_count_fixpoint::demand(inputs, inputs.observed);
    let (mut now, _) = in_scope(inputs, &demand);
    seal(&mut now);
    let mut pinned = PinnedPlan::as_approved(now);
    if pinned.current.capacity.digest == approved.capacity.digest {
        return pinned;
    }
    let applied = AppliedPlan::new(inputs, approved);
    let within_limits = applied.remaining_without(&BTreeSet::new());
    let is_enough = within_limits.launches.is_empty();
    let is_limited = !inputs.desired.failure_domains.is_empty() && !is_enough;
    let all = if is_limited {
        applied.remaining_without_limits(RemovedNodes::Absent)
    } else {
        within_limits
    };
    pinned.blocked_removal = applied.blocked_removal(&all, is_limited);
    // A partial plan omits launches on purpose, and its approver knows that.
    if approved.complete {
        pinned.missing = all.launches.iter().map(describe_launch).collect();
    }
    // Pods without a possible launch depend on the existing nodes.
    let approved_without = approved.capacity.pods.unschedulable;
    if let Some(more) = all.unschedulable.checked_sub(approved_without).filter(|more| *more > 0) {
        pinned.missing.push(format!(
            "{more} more pods are unschedulable than the {approved_without} of the approved plan, \
             and no launch is possible for them"
        ));
    }
    let is_known = frozen(inputs, &demand);
    // This also holds for partial plans: a launch for omitted rows may hide what else it is for.
    if is_enough
        && pinned.missing.is_empty()
        && is_known.is_none()
        && applied.may_have_fewer(&pinned.current)
    {
        let why = || NO_LONGER_NEEDED.to_owned();
        let dropped = applied.unneeded_launches(all.unschedulable).into_iter();
        pinned.dropped = dropped.map(|address| (address, why())).collect();
    }
    pinned.frozen = is_known.filter(|_| applied.removes());
    pinned
}

/// Returns a one-line description of a launch.
fn describe_launch(launch: &Launch) -> String {
    let node = &launch.node;
    let (kind, zone, bought) = (&node.instance_type, &node.zone, node.capacity_type);
    let pods = match &launch.reason {
        LaunchReason::Demand { pods } => {
            pods.iter().map(|(workload, count)| format!("{workload} x{count}")).collect()
        }
        LaunchReason::Consolidation { .. }
        | LaunchReason::Static { .. }
        | LaunchReason::Replacement { .. } => Vec::new(),
    };
    let of_pool = format!("{kind} {zone} {bought} of pool {}", node.pool);
    if pods.is_empty() { of_pool } else { format!("{of_pool} for {}", pods.join(", ")) }
}

/// State of the nodes that the approved plan removes.
#[derive(Clone, Copy)]
enum RemovedNodes {
    Absent,
    Present,
}

/// Launches and unschedulable pods that remain after the approved changes.
struct RemainingWork {
    launches: Vec<Launch>,
    unschedulable: u32,
}

/// The approved plan, assumed to be applied.
struct AppliedPlan<'a> {
    inputs: &'a Inputs<'a>,
    approved: &'a Plan,
    /// Price per hour of each row after the apply.
    prices: BTreeMap<&'a Address, MicroUsd>,
    /// Changes whose instance is running or pending.
    begun: BTreeSet<&'a str>,
    /// Auto Scaling groups of the changed rows, by pool.
    groups: BTreeMap<&'a str, &'a GroupName>,
    /// Number of members that the plan does not know, by group.
    new_members: BTreeMap<&'a GroupName, usize>,
}

impl<'a> AppliedPlan<'a> {
    fn new(inputs: &'a Inputs<'a>, approved: &'a Plan) -> Self {
        let explained = approved.capacity.explain.iter();
        let prices = explained.filter_map(|row| Some((&row.address, row.hourly_after?))).collect();
        let rows = &approved.resource_changes;
        let of_groups = rows.iter().filter(|row| row.kind == ResourceKind::AutoscalingGroup);
        let groups = of_groups.filter_map(|row| {
            Some((row.name.as_str(), row.change.before.as_ref()?.group.as_ref()?.name.as_ref()?))
        });
        let known = rows.iter().filter_map(|row| row.change.before.as_ref()?.instance_id.as_ref());
        let known: BTreeSet<&InstanceId> = known.collect();
        let (mut begun, mut new_members) = (BTreeSet::new(), BTreeMap::new());
        for instance in inputs.observed.instances.values().filter(|one| one.is_active()) {
            begun.extend(instance.tags.get(tag::CHANGE).map(String::as_str));
            if let Some(of) = instance.group.as_ref().filter(|_| !known.contains(&instance.id)) {
                *new_members.entry(&of.name).or_default() += 1;
            }
        }
        Self { inputs, approved, prices, begun, groups: groups.collect(), new_members }
    }

    /// Returns the remaining work once all of the plan is applied except the launches of `dropped`.
    fn remaining_without(&self, dropped: &BTreeSet<&Address>) -> RemainingWork {
        self.remaining_in(&self.world_after(dropped, RemovedNodes::Absent))
    }

    fn remaining_in(&self, observed: &Observed) -> RemainingWork {
        let inputs = Inputs { observed, ..self.inputs.clone() };
        let demand = node_count_fixpoint::demand(&inputs, observed);
        let all: Vec<NodeName> = observed.nodes.keys().cloned().collect();
        let trial = Input { purpose: Purpose::Estimate, ..input(&inputs, &demand, &[], &all) };
        let target = solve(&trial).target;
        let unplaced = target.unschedulable.iter().map(|unplaced| unplaced.pods);
        RemainingWork {
            unschedulable: unplaced.fold(0, u32::saturating_add),
            launches: target.launches,
        }
    }

    /// Returns the remaining work without failure-domain limits. Pods that started since the
    /// approval may already exceed those limits, which must not block the plan.
    fn remaining_without_limits(&self, removed_nodes: RemovedNodes) -> RemainingWork {
        let mut desired = self.inputs.desired.clone();
        desired.failure_domains.clear();
        let inputs = Inputs { desired: &desired, ..self.inputs.clone() };
        let applied = AppliedPlan::new(&inputs, self.approved);
        applied.remaining_in(&applied.world_after(&BTreeSet::new(), removed_nodes))
    }

    /// Returns the reason why nodes that the plan removes are still needed.
    fn blocked_removal(&self, left: &RemainingWork, is_limited: bool) -> Option<String> {
        if !self.removes() || (left.launches.is_empty() && left.unschedulable == 0) {
            return None;
        }
        let with = if is_limited {
            self.remaining_without_limits(RemovedNodes::Present)
        } else {
            self.remaining_in(&self.world_after(&BTreeSet::new(), RemovedNodes::Present))
        };
        let unschedulable = left.unschedulable.saturating_sub(with.unschedulable);
        if unschedulable > 0 {
            return Some(format!(
                "{unschedulable} more pods would be unschedulable without the nodes that it removes"
            ));
        }
        let launches: Vec<String> = left.launches.iter().map(describe_launch).collect();
        (launches.len() > with.launches.len()).then(|| {
            format!(
                "without the nodes that it removes, more launches would be needed: {}",
                launches.join("; ")
            )
        })
    }

    /// Returns whether the plan would remove an instance that still exists.
    fn removes(&self) -> bool {
        let rows = self.approved.resource_changes.iter();
        let mut gone = rows.filter(|row| row.change.actions.contains(&Action::Delete));
        gone.any(|row| {
            let before = row.change.before.as_ref();
            let id = before.and_then(|before| before.instance_id.as_ref());
            let instance = id.and_then(|id| self.inputs.observed.instances.get(id));
            instance.is_some_and(Instance::is_active)
        })
    }

    /// Returns the number of trial worlds that the size of the fleet allows.
    fn trials(&self) -> usize {
        let Inputs { observed, desired, .. } = self.inputs;
        let is_one = |scaler: &Scaler| matches!(scaler.rule, ScalerRule::Proportional(_));
        // Proportional scalers need the fixpoint iteration in each trial.
        let rounds =
            if desired.scalers.iter().any(is_one) { 1 + node_count_fixpoint::ROUNDS } else { 1 };
        let pods = usize::try_from(self.approved.capacity.pods.total).unwrap_or(usize::MAX);
        let nodes = observed.nodes.len().saturating_add(launches(self.approved).count());
        let each = pods.max(observed.pods.len()).max(1).saturating_mul(nodes.max(1));
        (TRIALS_WORK / each.saturating_mul(rounds)).min(TRIALS_MAX)
    }

    /// Returns whether the current plan has fewer or cheaper launches than remain of the approved
    /// plan. Otherwise there is no reason to search for unneeded launches.
    fn may_have_fewer(&self, now: &Plan) -> bool {
        let wanted: BTreeSet<&Address> = launches(now).map(|row| &row.address).collect();
        let priced = now.capacity.explain.iter().filter(|row| wanted.contains(&row.address));
        let theirs = priced.filter_map(|row| row.hourly_after).fold(MicroUsd::ZERO, |a, b| a + b);
        let (mut left, mut ours) = (0, MicroUsd::ZERO);
        for row in launches(self.approved).filter(|row| !self.has_instance(row)) {
            left += 1;
            ours += self.price(&row.address);
        }
        wanted.len() < left || theirs < ours
    }

    fn price(&self, address: &Address) -> MicroUsd {
        self.prices.get(address).copied().unwrap_or(MicroUsd::ZERO)
    }

    /// Returns launches that can be dropped: as many of each kind as possible, most expensive kind
    /// first.
    fn unneeded_launches(&self, unschedulable: u32) -> BTreeSet<Address> {
        let mut dropped: BTreeSet<&Address> = BTreeSet::new();
        let mut trials = self.trials();
        for (_, kind) in self.launches_by_kind() {
            // Binary search for the largest number that can be dropped.
            let (mut none, mut many) = (0, kind.len());
            while none < many && trials > 0 {
                // Try all of them first: the answer is most often all or none.
                let count = if many == kind.len() { many } else { (none + many).div_ceil(2) };
                let mut trial = dropped.clone();
                trial.extend(kind.iter().rev().take(count));
                trials -= 1;
                let left = self.remaining_without(&trial);
                if left.launches.is_empty() && left.unschedulable <= unschedulable {
                    none = count;
                } else {
                    many = count - 1;
                }
            }
            dropped.extend(kind.iter().rev().take(none));
        }
        dropped.into_iter().cloned().collect()
    }

    /// Returns the launches that replace nothing and have no instance yet, by kind; most expensive
    /// kind first.
    fn launches_by_kind(&self) -> Vec<(MicroUsd, Vec<&'a Address>)> {
        let mut kinds: BTreeMap<_, (MicroUsd, Vec<&Address>)> = BTreeMap::new();
        for row in launches(self.approved) {
            let Some(after) = row.change.after.as_ref() else { continue };
            let has_grown =
                self.group_of(after).is_some_and(|group| self.new_members.contains_key(group));
            if row.change.actions != [Action::Create] || self.has_instance(row) || has_grown {
                continue;
            }
            let NodeState { pool, instance_type, zone, capacity_type, .. } = after;
            let kind = kinds.entry((pool, instance_type, zone, capacity_type));
            kind.or_insert((self.price(&row.address), Vec::new())).1.push(&row.address);
        }
        let mut kinds: Vec<_> = kinds.into_values().collect();
        kinds.sort_by_key(|(price, rows)| (std::cmp::Reverse(*price), rows.first().copied()));
        kinds
    }

    /// Returns the observation after the apply, without the launches of `dropped`.
    fn world_after(&self, dropped: &BTreeSet<&Address>, removed_nodes: RemovedNodes) -> Observed {
        let mut world = self.inputs.observed.clone();
        let rows = &self.approved.resource_changes;
        let gone = rows.iter().filter(|row| row.change.actions.contains(&Action::Delete));
        let gone = gone.filter_map(|row| row.change.before.as_ref()?.instance_id.clone());
        match removed_nodes {
            RemovedNodes::Absent => world.remove_instances(&gone.collect()),
            RemovedNodes::Present => {}
        }
        // Members that the group has already launched count for the first of its rows.
        let mut made = self.new_members.clone();
        for row in launches(self.approved).filter(|row| !dropped.contains(&row.address)) {
            let Some(after) = row.change.after.as_ref() else { continue };
            let group = self.group_of(after);
            let stands = group.and_then(|group| made.get_mut(group)).filter(|made| **made > 0);
            if let Some(made) = stands {
                *made -= 1;
                continue;
            }
            if !self.has_instance(row) {
                add(&mut world, row, after, group);
            }
        }
        set_group_sizes(&mut world);
        world
    }

    /// Returns whether the change of a row has an instance that is running or pending.
    fn has_instance(&self, row: &ResourceChange) -> bool {
        let change = change_id(&self.approved.capacity.plan_id, &row.address);
        self.begun.contains(change.as_str())
    }

    /// Returns the Auto Scaling group that launches a node.
    fn group_of(&self, node: &NodeState) -> Option<&'a GroupName> {
        self.groups.get(node.pool.as_ref()?.as_str()).copied()
    }
}

/// Returns the rows of a plan that launch an instance.
fn launches(plan: &Plan) -> impl Iterator<Item = &ResourceChange> {
    let creates = |row: &&ResourceChange| {
        row.kind == ResourceKind::Ec2Instance && row.change.actions.contains(&Action::Create)
    };
    plan.resource_changes.iter().filter(creates)
}

/// Adds the instance and the Ready node that a row launches.
///
/// A row without type, zone or capacity type adds nothing. Its pods then count as missing, and the
/// apply ends before its first write.
fn add(world: &mut Observed, row: &ResourceChange, after: &NodeState, group: Option<&GroupName>) {
    let name = format!("approved-{}", row.address);
    let id = InstanceId::from(name.as_str());
    let cluster = world.cluster.name.clone();
    let tags = [
        (tag::CLUSTER, Some(cluster)),
        (tag::POOL, after.pool.as_ref().map(ToString::to_string)),
        (tag::KEY, row.index.clone()),
        (tag::SPEC, after.spec_digest.clone()),
    ];
    let tags = tags.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    let open = after.open_labels.iter().filter_map(|key| {
        Some((format!("{}{key}", tag::LABEL_PREFIX), after.labels.get(key)?.to_string()))
    });
    let (Some(instance_type), Some(zone), Some(capacity_type)) =
        (after.instance_type.clone(), after.zone.clone(), after.capacity_type)
    else {
        return;
    };
    let instance = Instance {
        id: id.clone(),
        instance_type,
        zone,
        capacity_type,
        state: InstanceState::Running,
        launched_at: world.taken_at,
        image: after.image.clone().unwrap_or_default(),
        launched_with: LaunchedWith::default(),
        tags: if group.is_some() { Tags::new() } else { tags.chain(open).collect() },
        reservation: after.reservation.clone(),
        group: group.map(|name| Membership {
            name: name.clone(),
            lifecycle: "InService".to_owned(),
            protected: false,
        }),
    };
    let held = after.reservation.as_ref().and_then(|id| world.reservations.get_mut(id));
    if let Some(reservation) = held {
        reservation.available = reservation.available.saturating_sub(1);
    }
    let mut labels = after.labels.clone();
    labels.extend([label(key::HOSTNAME, &name)]);
    labels.extend(row.index.as_deref().map(|key| (KEY_LABEL.into(), key.into())));
    let node = Node {
        name: name.as_str().into(),
        uid: name.as_str().into(),
        instance: Some(id.clone()),
        labels,
        annotations: BTreeMap::new(),
        taints: after.taints.clone(),
        capacity: (&after.capacity).into(),
        allocatable: (&after.allocatable).into(),
        ready: true,
        faults: [].into(),
        unschedulable: false,
        created_at: world.taken_at,
    };
    world.instances.insert(id, instance);
    world.nodes.insert(node.name.clone(), node);
}

/// Sets the desired size of each group to its number of members, as after a complete apply.
fn set_group_sizes(world: &mut Observed) {
    let sizes: BTreeMap<GroupName, u32> = world
        .groups
        .keys()
        .map(|name| {
            let there = world.members(name).count();
            (name.clone(), u32::try_from(there).unwrap_or(u32::MAX))
        })
        .collect();
    for (name, Group { desired, .. }) in &mut world.groups {
        *desired = sizes.get(name).copied().unwrap_or(*desired);
    }
}
