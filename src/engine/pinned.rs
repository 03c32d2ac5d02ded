//! Planning again before an apply, pinned to what was approved.
//!
//! The approved changes are taken as given: the world stands as though they had been carried out,
//! and nothing in it may be touched. Whatever would still have to be launched there is missing from
//! the approved plan; a launch without which nothing more would have to be launched is no longer
//! needed. Nothing is swapped: what the planner would rather have now is advice. Invariant: each
//! launch that is dropped was left out of a world in which every pod that had a place has one.

use std::collections::{BTreeMap, BTreeSet};

use super::{Inputs, as_measured, frozen, in_scope, input, size};
use crate::fleet::{
    Group, Instance, InstanceState, KEY_LABEL, MadeWith, Membership, Node, Observed, tag,
};
use crate::ids::{Address, GroupName, InstanceId, NodeName, Tags};
use crate::manifest::{Scaler, ScalerRule};
use crate::plan::wire::{Action, LaunchReason, NodeState, Plan, ResourceChange, ResourceKind};
use crate::plan::{Pinned, change_id, seal};
use crate::requirement::{key, label};
use crate::solve::{Input, Launch, Purpose, solve};
use crate::units::MicroUsd;

/// Most worlds that are looked at to find launches that are no longer needed.
const TRIALS_MAX: usize = 32;

/// Most pods times nodes of all of these worlds together. A fleet for which that allows no world has
/// none of its launches dropped: too many of them cost money for a while, and the lock of the apply
/// is not renewed while they are looked for.
const TRIALS_WORK: usize = 2_000_000;

const NO_LONGER_NEEDED: &str = "what it was planned for has room on other nodes now";

/// Returns what planning again over `inputs` makes of `approved`.
///
/// Where what would be decided now is what was approved, nothing else is looked at.
#[must_use]
pub fn pinned(inputs: &Inputs, approved: &Plan) -> Pinned {
    as_measured(inputs, |inputs| pinned_with(inputs, approved))
}

fn pinned_with(inputs: &Inputs, approved: &Plan) -> Pinned {
    let demand = size::demand(inputs, inputs.observed);
    let (mut now, _) = in_scope(inputs, &demand);
    seal(&mut now);
    let mut pinned = Pinned::as_approved(now);
    if pinned.now.capacity.digest == approved.capacity.digest {
        return pinned;
    }
    let carried = Carried::new(inputs, approved);
    let within_limits = carried.without(&BTreeSet::new());
    let is_enough = within_limits.launches.is_empty();
    let is_limited = !inputs.desired.failure_domains.is_empty() && !is_enough;
    let all = if is_limited { carried.without_limits(Leavers::Gone) } else { within_limits };
    pinned.held = carried.held(&all, is_limited);
    // A plan of a part of the rows leaves out what others need, as everybody knows who approved it.
    if approved.complete {
        pinned.missing = all.launches.iter().map(words).collect();
    }
    // What nothing can be launched for needs the nodes that are there all the more.
    let approved_without = approved.capacity.pods.unschedulable;
    if let Some(more) = all.unplaced.checked_sub(approved_without).filter(|more| *more > 0) {
        pinned.missing.push(format!(
            "{more} more pods have no place than the {approved_without} of the approved plan, and \
             nothing can be launched for them"
        ));
    }
    let is_known = frozen(inputs, &demand);
    // Of a plan of a part as well: a launch for what it left out may hide what else it is for.
    if is_enough
        && pinned.missing.is_empty()
        && is_known.is_none()
        && carried.may_have_fewer(&pinned.now)
    {
        let why = || NO_LONGER_NEEDED.to_owned();
        let dropped = carried.not_needed(all.unplaced).into_iter();
        pinned.dropped = dropped.map(|address| (address, why())).collect();
    }
    pinned.frozen = is_known.filter(|_| carried.removes());
    pinned
}

/// Returns a launch in words of one line.
fn words(launch: &Launch) -> String {
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

/// What became of the nodes that an approved plan removes.
#[derive(Clone, Copy)]
enum Leavers {
    Gone,
    Kept,
}

/// What is left to do in a world in which approved changes were carried out.
struct Left {
    launches: Vec<Launch>,
    unplaced: u32,
}

/// The approved plan, taken as carried out.
struct Carried<'a> {
    inputs: &'a Inputs<'a>,
    approved: &'a Plan,
    /// What each row costs when it is done, an hour.
    prices: BTreeMap<&'a Address, MicroUsd>,
    /// The changes that have an instance which runs or is about to.
    begun: BTreeSet<&'a str>,
    /// Groups by the pool that they are, of the rows that change them.
    groups: BTreeMap<&'a str, &'a GroupName>,
    /// Members that the plan does not know, by group.
    new_members: BTreeMap<&'a GroupName, usize>,
}

impl<'a> Carried<'a> {
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

    /// Returns what is left to do once all of the plan is carried out but the launches of `dropped`.
    fn without(&self, dropped: &BTreeSet<&Address>) -> Left {
        self.left_in(&self.world(dropped, Leavers::Gone))
    }

    fn left_in(&self, observed: &Observed) -> Left {
        let inputs = Inputs { observed, ..self.inputs.clone() };
        let demand = size::demand(&inputs, observed);
        let all: Vec<NodeName> = observed.nodes.keys().cloned().collect();
        let trial = Input { purpose: Purpose::Estimate, ..input(&inputs, &demand, &[], &all) };
        let target = solve(&trial).target;
        let unplaced = target.unplaced.iter().map(|unplaced| unplaced.pods);
        Left { unplaced: unplaced.fold(0, u32::saturating_add), launches: target.launches }
    }

    /// Returns what is left to do where no node and zone is held to a share of the pods: where pods
    /// came to run since, it may not be kept any more, which is no reason to hold the plan up.
    fn without_limits(&self, leavers: Leavers) -> Left {
        let mut desired = self.inputs.desired.clone();
        desired.failure_domains.clear();
        let inputs = Inputs { desired: &desired, ..self.inputs.clone() };
        let carried = Carried::new(&inputs, self.approved);
        carried.left_in(&carried.world(&BTreeSet::new(), leavers))
    }

    /// Returns what the nodes that go are needed for, of what is left to do without them.
    fn held(&self, left: &Left, is_limited: bool) -> Option<String> {
        if !self.removes() || (left.launches.is_empty() && left.unplaced == 0) {
            return None;
        }
        let with = if is_limited {
            self.without_limits(Leavers::Kept)
        } else {
            self.left_in(&self.world(&BTreeSet::new(), Leavers::Kept))
        };
        let homeless = left.unplaced.saturating_sub(with.unplaced);
        if homeless > 0 {
            return Some(format!(
                "{homeless} more pods would have no place without what it removes"
            ));
        }
        let launches: Vec<String> = left.launches.iter().map(words).collect();
        (launches.len() > with.launches.len()).then(|| {
            format!("without what it removes, more would be launched: {}", launches.join("; "))
        })
    }

    /// Returns whether something that is there still would be removed.
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

    /// Returns how many worlds may be looked at, by how large they are.
    fn trials(&self) -> usize {
        let Inputs { observed, desired, .. } = self.inputs;
        let is_one = |scaler: &Scaler| matches!(scaler.rule, ScalerRule::Proportional(_));
        // What follows the nodes is brought to rest in each of them.
        let rounds = if desired.scalers.iter().any(is_one) { 1 + size::ROUNDS } else { 1 };
        let pods = usize::try_from(self.approved.capacity.pods.total).unwrap_or(usize::MAX);
        let nodes = observed.nodes.len().saturating_add(launches(self.approved).count());
        let each = pods.max(observed.pods.len()).max(1).saturating_mul(nodes.max(1));
        (TRIALS_WORK / each.saturating_mul(rounds)).min(TRIALS_MAX)
    }

    /// Returns whether the plan of now has fewer or cheaper launches than are left of the approved:
    /// else there is no reason to look for one too many.
    fn may_have_fewer(&self, now: &Plan) -> bool {
        let wanted: BTreeSet<&Address> = launches(now).map(|row| &row.address).collect();
        let priced = now.capacity.explain.iter().filter(|row| wanted.contains(&row.address));
        let theirs = priced.filter_map(|row| row.hourly_after).fold(MicroUsd::ZERO, |a, b| a + b);
        let (mut left, mut ours) = (0, MicroUsd::ZERO);
        for row in launches(self.approved).filter(|row| !self.is_there(row)) {
            left += 1;
            ours += self.price(&row.address);
        }
        wanted.len() < left || theirs < ours
    }

    fn price(&self, address: &Address) -> MicroUsd {
        self.prices.get(address).copied().unwrap_or(MicroUsd::ZERO)
    }

    /// Returns the launches that may be left out: of each kind as many as can be, dearest kind first.
    fn not_needed(&self, unplaced: u32) -> BTreeSet<Address> {
        let mut dropped: BTreeSet<&Address> = BTreeSet::new();
        let mut trials = self.trials();
        for (_, kind) in self.kinds() {
            // The most that can be left out lies between these.
            let (mut none, mut many) = (0, kind.len());
            while none < many && trials > 0 {
                // All of them first: most often it is all or none.
                let count = if many == kind.len() { many } else { (none + many).div_ceil(2) };
                let mut trial = dropped.clone();
                trial.extend(kind.iter().rev().take(count));
                trials -= 1;
                let left = self.without(&trial);
                if left.launches.is_empty() && left.unplaced <= unplaced {
                    none = count;
                } else {
                    many = count - 1;
                }
            }
            dropped.extend(kind.iter().rev().take(none));
        }
        dropped.into_iter().cloned().collect()
    }

    /// Returns the launches that nothing is replaced by and that are not there yet, by what they
    /// are; the dearest first.
    fn kinds(&self) -> Vec<(MicroUsd, Vec<&'a Address>)> {
        let mut kinds: BTreeMap<_, (MicroUsd, Vec<&Address>)> = BTreeMap::new();
        for row in launches(self.approved) {
            let Some(after) = row.change.after.as_ref() else { continue };
            let has_grown =
                self.group_of(after).is_some_and(|group| self.new_members.contains_key(group));
            if row.change.actions != [Action::Create] || self.is_there(row) || has_grown {
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

    /// Returns the world in which the plan was carried out but for the launches of `dropped`.
    fn world(&self, dropped: &BTreeSet<&Address>, leavers: Leavers) -> Observed {
        let mut world = self.inputs.observed.clone();
        let rows = &self.approved.resource_changes;
        let gone = rows.iter().filter(|row| row.change.actions.contains(&Action::Delete));
        let gone = gone.filter_map(|row| row.change.before.as_ref()?.instance_id.clone());
        match leavers {
            Leavers::Gone => world.take_away(&gone.collect()),
            Leavers::Kept => {}
        }
        // Members that their group has made already stand for the first of its rows.
        let mut made = self.new_members.clone();
        for row in launches(self.approved).filter(|row| !dropped.contains(&row.address)) {
            let Some(after) = row.change.after.as_ref() else { continue };
            let group = self.group_of(after);
            let stands = group.and_then(|group| made.get_mut(group)).filter(|made| **made > 0);
            if let Some(made) = stands {
                *made -= 1;
                continue;
            }
            if !self.is_there(row) {
                add(&mut world, row, after, group);
            }
        }
        settle_groups(&mut world);
        world
    }

    /// Returns whether the change of a row has an instance that runs or is about to.
    fn is_there(&self, row: &ResourceChange) -> bool {
        let change = change_id(&self.approved.capacity.plan_id, &row.address);
        self.begun.contains(change.as_str())
    }

    /// Returns the name of the group that makes a node, where one does.
    fn group_of(&self, node: &NodeState) -> Option<&'a GroupName> {
        self.groups.get(node.pool.as_ref()?.as_str()).copied()
    }
}

/// Returns the rows of a plan that launch something.
fn launches(plan: &Plan) -> impl Iterator<Item = &ResourceChange> {
    let creates = |row: &&ResourceChange| {
        row.kind == ResourceKind::Ec2Instance && row.change.actions.contains(&Action::Create)
    };
    plan.resource_changes.iter().filter(creates)
}

/// Adds what a row launches, Ready.
///
/// A row that does not say what it launches adds nothing: what it was for is missing then, which ends
/// the apply before it writes.
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
        made_with: MadeWith::default(),
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

/// Has every group be as large as it has members: a plan that was carried out leaves none on its way.
fn settle_groups(world: &mut Observed) {
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
