//! Validation of an approved plan with current inputs, before an apply.
//!
//! The planner assumes that the approved changes are applied, and solves the resulting world with
//! all nodes untouched. A launch that is still necessary is missing from the approved plan. A
//! launch is unneeded if the world without it needs no other launch. Launches are dropped but never
//! substituted; the current plan is only advice. Invariant: a dropped launch was omitted from a
//! solved world that leaves no additional pod unschedulable.

use std::collections::{BTreeMap, BTreeSet};

use super::current_plan::CurrentPlan;
use super::{Inputs, freeze_reason, node_count_fixpoint, solver_input, with_effective_inputs};
use crate::model::desired::{Desired, Scaler, ScalerRule};
use crate::model::ids::{Address, GroupName, InstanceId, NodeName, PoolName, Tags};
use crate::model::observed::{
    Group, Instance, InstanceState, KEY_LABEL, Membership, Node, Observed, tag,
};
use crate::model::plural::count;
use crate::model::requirement::{key, label};
use crate::model::units::MicroUsd;
use crate::plan::wire::{
    Action, LaunchReason, NodeState, Plan, Reason, ResourceChange, ResourceKind,
};
use crate::plan::{RevalidatedPlan, change_id, launched_instance, planned_pods, planned_pods_at};
use crate::solver::{Input, Launch, Purpose, Solution, exceeded_budget, solve, spec_digests};

/// Maximum number of trial worlds solved to find unneeded launches.
const TRIALS_MAX: usize = 32;

/// Maximum work of all trial worlds together, in pods times nodes.
///
/// If the fleet is too large for a single trial, all launches are kept. Unneeded launches only cost
/// money for a while, and the apply lease is not renewed during the search.
const TRIALS_WORK: usize = 2_000_000;

const NO_LONGER_NEEDED: &str = "no pod needs the node any more";

/// Plans for the current inputs, and returns the result if its digest is the approved one.
///
/// In an unchanged world, inputs without planned pods lead to the same plan. With the pods planned
/// on their nodes, the search may end in another plan.
pub fn reproduce(inputs: &Inputs, approved: &Plan) -> Option<RevalidatedPlan> {
    // The plan of the whole fleet differs from one of a limited scope.
    if !approved.complete {
        return None;
    }
    with_effective_inputs(inputs, |inputs| {
        let applied = AppliedPlan::new(inputs, approved);
        // No later plan repeats a launch that is done.
        if launches(approved).any(|row| applied.has_instance(row)) {
            return None;
        }
        let current = CurrentPlan::new(inputs, approved);
        current.is_approved(approved).then_some(current.revalidated)
    })
}

/// Compares the approved plan with the current inputs.
///
/// If the current plan has the approved digest, no further checks are made.
pub fn revalidate(inputs: &Inputs, approved: &Plan) -> RevalidatedPlan {
    with_effective_inputs(inputs, |inputs| revalidate_effective(inputs, approved))
}

fn revalidate_effective(inputs: &Inputs, approved: &Plan) -> RevalidatedPlan {
    let current = CurrentPlan::new(inputs, approved);
    if current.is_approved(approved) {
        return current.revalidated;
    }
    let CurrentPlan { demand, mut revalidated, dearest } = current;
    revalidated.undeclared.extend(undeclared_launches(inputs.desired, approved));
    let applied = AppliedPlan::new(inputs, approved);
    let within_limits = applied.remaining_without(&BTreeSet::new());
    let is_enough = within_limits.launches.is_empty();
    let bill = applied.bill(&within_limits, &dearest);
    revalidated.hourly_after = bill.hourly;
    // Other reasons already refuse the plan, and explain the missing price.
    if revalidated.undeclared.is_empty() {
        revalidated.undeclared = bill.unpriced;
    }
    let is_limited = !inputs.desired.failure_domains.is_empty() && !is_enough;
    let all = if is_limited {
        applied.remaining_without_limits(RemovedNodes::Absent)
    } else {
        within_limits
    };
    revalidated.blocked_removal = applied.blocked_removal(&all, is_limited);
    // A partial plan omits launches deliberately, with the knowledge of its approver.
    if approved.complete {
        revalidated.missing = all.launches.iter().map(describe_launch).collect();
    }
    // Pods without a possible launch can only run on existing nodes. A launch takes no node from
    // them, so they do not make it wrong.
    if all.unschedulable > approved.capacity.pods.without_node() {
        revalidated.missing.extend(revalidated.blocked_removal.clone());
    }
    let freeze_reason = freeze_reason(inputs, &demand);
    // This check also applies to partial plans: a launch for omitted rows may also serve other
    // pods.
    if is_enough
        && revalidated.missing.is_empty()
        && freeze_reason.is_none()
        && applied.may_have_fewer(&revalidated.current)
    {
        let reason = || NO_LONGER_NEEDED.to_owned();
        let dropped = applied.unneeded_launches(all.unschedulable).into_iter();
        revalidated.dropped = dropped.map(|address| (address, reason())).collect();
    }
    let freeze_reason = freeze_reason
        .or_else(|| undeclared_period(inputs, approved))
        .or_else(|| applied.exceeded_budget());
    revalidated.frozen = freeze_reason.filter(|_| applied.has_removals());
    revalidated
}

/// Returns texts about the launches whose pool or node class is declared otherwise than the plan
/// states. A launch reads the node class of the files, such as the user data.
fn undeclared_launches(desired: &Desired, approved: &Plan) -> Vec<String> {
    let declared = spec_digests(desired);
    let annotations = |pool: &PoolName| {
        let declared = desired.pools.get(pool).map(|pool| &pool.annotations);
        declared.filter(|annotations| !annotations.is_empty())
    };
    let other = launches(approved).filter(|row| {
        let after = row.change.after.as_ref();
        let pool = after.and_then(|after| after.pool.as_ref());
        let spec = after.and_then(|after| after.spec_digest.as_ref());
        let stated = pool.and_then(|pool| approved.capacity.node_annotations.get(pool));
        pool.and_then(|pool| declared.get(pool)) != spec || pool.and_then(annotations) != stated
    });
    let text = |row: &ResourceChange| {
        format!("`{}` was planned with other settings of its pool or node class", row.address)
    };
    other.map(text).collect()
}

/// Returns a text about an approved drain that ends by force otherwise than its pool declares.
fn undeclared_period(inputs: &Inputs, approved: &Plan) -> Option<String> {
    let row = approved.resource_changes.iter().find(|row| {
        let stated = row.change.termination_grace_seconds;
        stated.is_some() && stated != declared_grace_seconds(inputs, row)
    })?;
    Some(format!("`{}` has another terminationGracePeriod than its pool", row.address))
}

/// Returns the termination grace period that the pool of a removed node declares. Nodes of static
/// pools have none.
fn declared_grace_seconds(inputs: &Inputs, row: &ResourceChange) -> Option<u64> {
    let name = row.change.before.as_ref()?.pool.as_ref()?;
    let pool = inputs.desired.pools.get(name).filter(|pool| pool.replicas.is_none())?;
    u64::try_from(pool.termination_grace_period?.as_secs()).ok()
}

/// Returns a one-line description of a launch.
fn describe_launch(launch: &Launch) -> String {
    let node = &launch.node;
    let (kind, zone, capacity_type) = (&node.instance_type, &node.zone, node.capacity_type);
    let pods = match &launch.reason {
        LaunchReason::Demand { pods } => {
            pods.iter().map(|(workload, count)| format!("{workload} x{count}")).collect()
        }
        LaunchReason::Consolidation { .. }
        | LaunchReason::Static { .. }
        | LaunchReason::Replacement { .. } => Vec::new(),
    };
    let offering = format!("{kind} {zone} {capacity_type} of pool {}", node.pool);
    if pods.is_empty() { offering } else { format!("{offering} for {}", pods.join(", ")) }
}

/// Presence of the nodes that the approved plan removes.
#[derive(Clone, Copy)]
enum RemovedNodes {
    Absent,
    Present,
}

/// Launches and unschedulable pods that remain after the approved changes.
struct RemainingWork {
    launches: Vec<Launch>,
    unschedulable: u32,
    /// Price per hour of each node, if it is known.
    prices: BTreeMap<NodeName, Option<MicroUsd>>,
}

/// Price of the fleet after the approved changes.
struct Bill {
    hourly: MicroUsd,
    /// Launches without a known price, in words.
    unpriced: Vec<String>,
}

/// The approved plan, assumed to be applied.
struct AppliedPlan<'a> {
    inputs: &'a Inputs<'a>,
    approved: &'a Plan,
    /// Price per hour of each row after the apply.
    prices: BTreeMap<&'a Address, MicroUsd>,
    /// IDs of changes with a running or pending instance.
    started_changes: BTreeSet<&'a str>,
    /// Auto Scaling groups of the changed rows, by pool.
    groups: BTreeMap<&'a str, &'a GroupName>,
    /// Number of members that are absent from the plan, by group.
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
        let (mut started_changes, mut new_members) = (BTreeSet::new(), BTreeMap::new());
        for instance in inputs.observed.instances.values().filter(|instance| instance.is_active()) {
            started_changes.extend(instance.tags.get(tag::CHANGE).map(String::as_str));
            if let Some(membership) =
                instance.group.as_ref().filter(|_| !known.contains(&instance.id))
            {
                *new_members.entry(&membership.name).or_default() += 1;
            }
        }
        Self { inputs, approved, prices, started_changes, groups: groups.collect(), new_members }
    }

    /// Returns the remaining work after the plan is applied, except the launches of `dropped`.
    fn remaining_without(&self, dropped: &BTreeSet<&Address>) -> RemainingWork {
        self.remaining_in(&self.world_after(dropped, RemovedNodes::Absent))
    }

    fn remaining_in(&self, observed: &Observed) -> RemainingWork {
        let inputs = Inputs { observed, ..self.inputs.clone() };
        let demand = node_count_fixpoint::demand(&inputs, observed);
        let all: Vec<NodeName> = observed.nodes.keys().cloned().collect();
        let trial =
            Input { purpose: Purpose::Estimate, ..solver_input(&inputs, &demand, &[], &all) };
        let Solution { target, existing_nodes, .. } = solve(&trial);
        // Growth by Cluster Autoscaler replaces no launch, and permits no removal.
        let served = target.growths.iter().flat_map(|growth| growth.pods.values().copied());
        let unplaced = target.unschedulable.iter().map(|unplaced| unplaced.pods).chain(served);
        let existing = existing_nodes.iter().filter(|node| !node.is_planned);
        RemainingWork {
            prices: existing.map(|node| (node.name.clone(), node.price)).collect(),
            unschedulable: unplaced.fold(0, u32::saturating_add),
            launches: target.launches,
        }
    }

    /// Returns the price of the nodes of `work`. A launch whose planned offering is withdrawn counts
    /// with the price of its `dearest` offering that remains.
    fn bill(&self, work: &RemainingWork, dearest: &BTreeMap<Address, MicroUsd>) -> Bill {
        let launched: BTreeMap<NodeName, &ResourceChange> =
            launches(self.approved).map(|row| (launched_node_name(row), row)).collect();
        let mut bill = Bill { hourly: MicroUsd::ZERO, unpriced: Vec::new() };
        for (name, price) in &work.prices {
            let Some(row) = launched.get(name) else {
                // Nodes of unmanaged instances may have no price.
                bill.hourly += price.unwrap_or(MicroUsd::ZERO);
                continue;
            };
            let group = row.change.after.as_ref().and_then(|node| self.group_of(node));
            // Auto Scaling chooses the type of a member, whose row has the price of the dearest one.
            let stated = group.and_then(|_| self.prices.get(&row.address).copied());
            match dearest.get(&row.address).copied().or(*price).max(stated) {
                Some(price) => bill.hourly += price,
                None => bill
                    .unpriced
                    .push(format!("`{}` would launch a node without a known price", row.address)),
            }
        }
        bill
    }

    /// Returns the remaining work without failure-domain limits. Pods that started after the
    /// approval may exceed these limits, which must not block the plan.
    fn remaining_without_limits(&self, removed_nodes: RemovedNodes) -> RemainingWork {
        let mut desired = self.inputs.desired.clone();
        desired.failure_domains.clear();
        let inputs = Inputs { desired: &desired, ..self.inputs.clone() };
        let applied = AppliedPlan::new(&inputs, self.approved);
        applied.remaining_in(&applied.world_after(&BTreeSet::new(), removed_nodes))
    }

    /// Returns the reason that blocks the removals of the plan: their nodes are still needed.
    fn blocked_removal(&self, left: &RemainingWork, is_limited: bool) -> Option<String> {
        if !self.has_removals() || (left.launches.is_empty() && left.unschedulable == 0) {
            return None;
        }
        let with = if is_limited {
            self.remaining_without_limits(RemovedNodes::Present)
        } else {
            self.remaining_in(&self.world_after(&BTreeSet::new(), RemovedNodes::Present))
        };
        let unschedulable = left.unschedulable.saturating_sub(with.unschedulable);
        if unschedulable > 0 {
            let pods = count(unschedulable, "more pod");
            return Some(format!(
                "{pods} would be unschedulable without the nodes that it removes"
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

    /// Returns true if the plan removes an instance that may still run.
    fn has_removals(&self) -> bool {
        let rows = self.approved.resource_changes.iter();
        let mut removed = rows.filter(|row| row.change.actions.contains(&Action::Delete));
        removed.any(|row| {
            let before = row.change.before.as_ref();
            let Some(id) = before.and_then(|before| before.instance_id.as_ref()) else {
                return false;
            };
            let observed = self.inputs.observed;
            observed.instances.get(id).is_some_and(Instance::is_active)
                || observed.may_run_unlisted(id)
        })
    }

    /// Returns a text about a disruption budget that allows fewer removals now than the plan has.
    fn exceeded_budget(&self) -> Option<String> {
        let explained = &self.approved.capacity.explain;
        let explained: BTreeMap<_, _> = explained.iter().map(|row| (&row.address, row)).collect();
        let reason_of = |row: &ResourceChange| {
            let row = explained.get(&row.address)?;
            match &row.reason {
                Reason::Retire { because } => Some(because),
                Reason::Launch { .. } | Reason::Keep { .. } | Reason::Resize { .. } => {
                    row.retire_reason.as_ref()
                }
            }
        };
        let rows = self.approved.resource_changes.iter();
        let removed = rows.filter(|row| row.change.actions.contains(&Action::Delete));
        let removed = removed.filter_map(|row| {
            Some((row.change.before.as_ref()?.instance_id.as_ref()?, reason_of(row)))
        });
        let Inputs { desired, observed, .. } = self.inputs;
        exceeded_budget(desired, observed, observed.taken_at, &removed.collect())
    }

    /// Returns the maximum number of trial worlds for the size of the fleet.
    fn trials(&self) -> usize {
        let Inputs { observed, desired, .. } = self.inputs;
        let is_proportional = |scaler: &Scaler| matches!(scaler.rule, ScalerRule::Proportional(_));
        // Proportional scalers require the fixpoint iteration in each trial.
        let rounds = if desired.scalers.iter().any(is_proportional) {
            1 + node_count_fixpoint::ROUNDS
        } else {
            1
        };
        let pods = usize::try_from(self.approved.capacity.pods.total).unwrap_or(usize::MAX);
        let nodes = observed.nodes.len().saturating_add(launches(self.approved).count());
        let each = pods.max(observed.pods.len()).max(1).saturating_mul(nodes.max(1));
        (TRIALS_WORK / each.saturating_mul(rounds)).min(TRIALS_MAX)
    }

    /// Returns true if the current plan has fewer or cheaper launches than the rest of the approved
    /// plan. Otherwise a search for unneeded launches is pointless.
    fn may_have_fewer(&self, now: &Plan) -> bool {
        let wanted: BTreeSet<&Address> = launches(now).map(|row| &row.address).collect();
        let priced = now.capacity.explain.iter().filter(|row| wanted.contains(&row.address));
        let current_price =
            priced.filter_map(|row| row.hourly_after).fold(MicroUsd::ZERO, |a, b| a + b);
        let (mut remaining, mut remaining_price) = (0, MicroUsd::ZERO);
        for row in launches(self.approved).filter(|row| !self.has_instance(row)) {
            remaining += 1;
            remaining_price += self.price(&row.address);
        }
        wanted.len() < remaining || current_price < remaining_price
    }

    fn price(&self, address: &Address) -> MicroUsd {
        self.prices.get(address).copied().unwrap_or(MicroUsd::ZERO)
    }

    /// Returns launches that can be dropped: as many of each kind as possible, starting with the
    /// most expensive kind.
    fn unneeded_launches(&self, unschedulable: u32) -> BTreeSet<Address> {
        let mut dropped: BTreeSet<&Address> = BTreeSet::new();
        let mut trials = self.trials();
        for (_, kind) in self.launches_by_kind() {
            // Binary search for the largest number that can be dropped.
            let (mut none, mut many) = (0, kind.len());
            while none < many && trials > 0 {
                // Try all of them first, because the result is mostly all or none.
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

    /// Returns the launches without a replaced node and without an instance, by kind. The most
    /// expensive kind comes first.
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
        world.planned_pods = planned_pods(self.approved);
        let rows = &self.approved.resource_changes;
        let removed = rows.iter().filter(|row| row.change.actions.contains(&Action::Delete));
        let removed = removed.filter_map(|row| row.change.before.as_ref()?.instance_id.clone());
        match removed_nodes {
            RemovedNodes::Absent => world.remove_instances(&removed.collect()),
            RemovedNodes::Present => {}
        }
        // Members that the group has already launched stand for the first rows of the group.
        let mut new_members = self.new_members.clone();
        for row in launches(self.approved).filter(|row| !dropped.contains(&row.address)) {
            let Some(after) = row.change.after.as_ref() else { continue };
            let group = self.group_of(after);
            let launched = group.and_then(|group| new_members.get_mut(group));
            if let Some(count) = launched.filter(|count| **count > 0) {
                *count -= 1;
                continue;
            }
            let instance = match self.instance_of(row, &world) {
                Some(instance) => instance,
                None => add_launched_node(&mut world, row, after, group),
            };
            // Other nodes might hold the same pods only with another packing.
            world.planned_pods.insert(instance, planned_pods_at(self.approved, &row.address));
        }
        set_group_sizes(&mut world);
        world
    }

    /// Returns true if the change of a row already has a running or pending instance.
    fn has_instance(&self, row: &ResourceChange) -> bool {
        let change = change_id(&self.approved.capacity.plan_id, &row.address);
        self.started_changes.contains(change.as_str())
    }

    /// Returns the running or pending instance of a row, if its change has one.
    fn instance_of(&self, row: &ResourceChange, world: &Observed) -> Option<InstanceId> {
        let change = change_id(&self.approved.capacity.plan_id, &row.address);
        let mut instances = world.instances.values().filter(|instance| instance.is_active());
        let found =
            instances.find(|instance| instance.tags.get(tag::CHANGE) == Some(&change.to_string()));
        found.map(|instance| instance.id.clone())
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

/// Returns the name of the node of a row that is assumed to be launched.
fn launched_node_name(row: &ResourceChange) -> NodeName {
    format!("approved-{}", row.address).as_str().into()
}

/// Adds the launched instance of a row, with a Ready node, and returns its ID.
///
/// A row without instance type, zone or capacity type adds no node. Its pods then count as missing,
/// and the apply ends before its first write.
fn add_launched_node(
    world: &mut Observed,
    row: &ResourceChange,
    after: &NodeState,
    group: Option<&GroupName>,
) -> InstanceId {
    let name = launched_node_name(row);
    let id = InstanceId::from(name.as_str());
    let Some(launched) = launched_instance(row, after, &world.cluster.name, world.taken_at) else {
        return id;
    };
    let instance = Instance {
        id: id.clone(),
        state: InstanceState::Running,
        tags: if group.is_some() { Tags::new() } else { launched.tags.clone() },
        group: group.map(|name| Membership {
            name: name.clone(),
            lifecycle: "InService".to_owned(),
            protected: false,
        }),
        ..launched
    };
    let reservation = after.reservation.as_ref().and_then(|id| world.reservations.get_mut(id));
    if let Some(reservation) = reservation {
        reservation.available = reservation.available.saturating_sub(1);
    }
    let mut labels = after.labels.clone();
    labels.extend([label(key::HOSTNAME, name.as_str())]);
    labels.extend(row.index.as_deref().map(|key| (KEY_LABEL.into(), key.into())));
    let node = Node {
        uid: name.as_str().into(),
        name,
        instance: Some(id.clone()),
        labels,
        annotations: BTreeMap::new(),
        taints: after.taints.clone(),
        capacity: (&after.capacity).into(),
        allocatable: (&after.allocatable).into(),
        ready: true,
        faults: [].into(),
        was_ready: false,
        unschedulable: false,
        created_at: world.taken_at,
    };
    world.instances.insert(id.clone(), instance);
    world.nodes.insert(node.name.clone(), node);
    id
}

/// Sets the desired size of each group to its number of members, as a complete apply does.
fn set_group_sizes(world: &mut Observed) {
    let sizes: BTreeMap<GroupName, u32> = world
        .groups
        .keys()
        .map(|name| {
            let members = world.members(name).count();
            (name.clone(), u32::try_from(members).unwrap_or(u32::MAX))
        })
        .collect();
    for (name, Group { desired, .. }) in &mut world.groups {
        *desired = sizes.get(name).copied().unwrap_or(*desired);
    }
}
