//! A plan and its inputs, indexed for the rules.

use std::collections::{BTreeMap, BTreeSet};

use super::Facts;
use crate::catalog::{Allocation, CapacityType, InstanceType, NodeSettings, Offering, Overlays};
use crate::demand::{FargatePods, PodGroup};
use crate::fleet::{Instance, InstanceState, Node, Observed, tag};
use crate::ids::{
    Address, InstanceId, InstanceTypeName, LabelValue, Labels, NodeName, PoolName, ZoneName,
};
use crate::manifest::{NodeClass, NodeGroup, Pool, PoolRequirement};
use crate::plan::wire::{
    Action, Amount, ExplainRow, NodeState, Plan, ResourceChange, ResourceKind,
};
use crate::requirement::{LabelSet, Requirements};
use crate::solve::workload_key;
use crate::units::{Bytes, MicroUsd, MilliCpu, Resources};

/// What happens to a row, as its actions say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    Keep,
    Create,
    Update,
    Delete,
    Replace,
    /// The actions are none of the five lists that there are: a violation of its own, of which no
    /// other rule makes sense.
    Unknown,
}

impl Deed {
    fn of(actions: &[Action]) -> Self {
        match actions {
            [Action::NoOp] => Self::Keep,
            [Action::Create] => Self::Create,
            [Action::Update] => Self::Update,
            [Action::Delete] => Self::Delete,
            [Action::Create, Action::Delete] => Self::Replace,
            _ => Self::Unknown,
        }
    }

    /// Returns whether a node comes.
    pub(super) fn creates(self) -> bool {
        matches!(self, Self::Create | Self::Replace)
    }

    /// Returns whether a node goes.
    pub(super) fn deletes(self) -> bool {
        matches!(self, Self::Delete | Self::Replace)
    }

    /// Returns whether the node that is there stays.
    pub(super) fn stays(self) -> bool {
        matches!(self, Self::Keep | Self::Update)
    }
}

/// A row with what belongs to it.
pub(super) struct Row<'a> {
    pub(super) address: &'a Address,
    pub(super) change: &'a ResourceChange,
    pub(super) deed: Deed,
    pub(super) before: Option<&'a NodeState>,
    pub(super) after: Option<&'a NodeState>,
    pub(super) explain: Option<&'a ExplainRow>,
    /// The node that `before` names.
    pub(super) node: Option<&'a Node>,
    /// The instance that `before` names.
    pub(super) instance: Option<&'a Instance>,
}

impl Row<'_> {
    /// Returns how many pods of a workload are planned on the node.
    pub(super) fn planned(&self, key: &str) -> u32 {
        self.explain.and_then(|explain| explain.pods.get(key)).copied().unwrap_or(0)
    }

    /// Returns the planned pods of each workload on the node, by workload key.
    pub(super) fn pods(&self) -> impl Iterator<Item = (&str, u32)> {
        let pods = self.explain.into_iter().flat_map(|explain| &explain.pods);
        pods.map(|(key, count)| (key.as_str(), *count))
    }
}

/// Pods of one workload that run on one node.
pub(super) struct Running<'c> {
    /// The key of the workload.
    pub(super) key: &'c str,
    pub(super) group: &'c PodGroup,
    /// How many run on the node.
    pub(super) pods: u32,
    /// How many run on all nodes.
    pub(super) everywhere: u32,
}

/// What nodes offer, by pool and type.
type Allocations<'a> = BTreeMap<&'a PoolName, BTreeMap<&'a InstanceTypeName, Allocation>>;

/// A plan under judgement.
pub(super) struct Case<'a> {
    pub(super) plan: &'a Plan,
    pub(super) facts: &'a Facts<'a>,
    /// The rows, in the order of the plan.
    pub(super) rows: Vec<Row<'a>>,
    /// The rows of groups, which are no nodes.
    pub(super) group_rows: Vec<&'a ResourceChange>,
    /// What the repository states in the place of the cloud.
    pub(super) overlays: Overlays<'a>,
    /// The demand's groups, by workload key.
    pub(super) groups: BTreeMap<String, &'a PodGroup>,
    /// What Fargate runs, or would, by workload key.
    pub(super) fargate: BTreeMap<String, &'a FargatePods>,
    /// The keys of the demand's groups, and how many pods of each run, in the order of the demand.
    keys: Vec<(String, u32)>,
    /// The groups with pods on each node, by their place in the demand.
    running: BTreeMap<&'a NodeName, Vec<(usize, u32)>>,
    /// What each pool requires of its nodes, or why that cannot be told.
    requirements: BTreeMap<&'a PoolName, Result<Requirements, String>>,
    /// What a node of a pool and type offers.
    allocations: Allocations<'a>,
    /// Where in `rows` an address is.
    places: BTreeMap<&'a Address, usize>,
    /// The nodes observed, by the instance they run on.
    nodes: BTreeMap<&'a InstanceId, &'a Node>,
    /// The instances of ours, by pool and key; one for each, unless something went wrong.
    holders: BTreeMap<(&'a str, &'a str), Vec<&'a Instance>>,
}

impl<'a> Case<'a> {
    pub(super) fn new(plan: &'a Plan, facts: &'a Facts<'a>) -> Self {
        let explain: BTreeMap<&Address, &ExplainRow> =
            plan.capacity.explain.iter().map(|row| (&row.address, row)).collect();
        let row = |change: &'a ResourceChange| {
            let before = change.change.before.as_ref();
            let node = before.and_then(|state| state.node.as_ref());
            let instance = before.and_then(|state| state.instance_id.as_ref());
            Row {
                address: &change.address,
                change,
                deed: Deed::of(&change.change.actions),
                before,
                after: change.change.after.as_ref(),
                explain: explain.get(&change.address).copied(),
                node: node.and_then(|name| facts.observed.nodes.get(name)),
                instance: instance.and_then(|id| facts.observed.instances.get(id)),
            }
        };
        let groups = &facts.demand.groups;
        let mut running: BTreeMap<&NodeName, Vec<(usize, u32)>> = BTreeMap::new();
        for (index, group) in groups.iter().enumerate() {
            for (node, pods) in &group.running {
                running.entry(node).or_default().push((index, *pods));
            }
        }
        let everywhere = |group: &PodGroup| total(group.running.values(), |pods| *pods);
        let keys = groups.iter().map(|group| (workload_key(&group.workload), everywhere(group)));
        let keys: Vec<(String, u32)> = keys.collect();
        let by_key = keys.iter().zip(groups).map(|((key, _), group)| (key.clone(), group));
        let nodes = facts.observed.nodes.values();
        let mut holders: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (pool, key, instance) in keyed(facts.observed) {
            holders.entry((pool, key)).or_default().push(instance);
        }
        let places = nodes_of(plan).map(|change| &change.address).enumerate();
        Self {
            plan,
            facts,
            overlays: Overlays::of(facts.desired),
            rows: nodes_of(plan).map(row).collect(),
            group_rows: plan.resource_changes.iter().filter(|row| is_group(row)).collect(),
            groups: by_key.collect(),
            fargate: facts.demand.fargate.iter().map(|t| (workload_key(&t.workload), t)).collect(),
            keys,
            running,
            requirements: facts.desired.pools.iter().map(|(n, p)| (n, requirements(p))).collect(),
            allocations: allocations(plan, facts),
            places: places.map(|(index, address)| (address, index)).collect(),
            nodes: nodes.filter_map(|node| Some((node.instance.as_ref()?, node))).collect(),
            holders,
        }
    }

    /// Returns the row at `address`.
    pub(super) fn row(&self, address: &Address) -> Option<&Row<'a>> {
        self.places.get(address).and_then(|index| self.rows.get(*index))
    }

    /// Returns the node that runs on `instance`.
    pub(super) fn node_of(&self, instance: &InstanceId) -> Option<&'a Node> {
        self.nodes.get(instance).copied()
    }

    /// Returns an instance that has `key` in `pool` and is not on its way out, other than the one
    /// that `row` replaces.
    pub(super) fn holder(&self, pool: &PoolName, key: &str, row: &Row<'_>) -> Option<&'a Instance> {
        let holders = self.holders.get(&(pool.as_str(), key)).into_iter().flatten();
        let gone = |state| matches!(state, InstanceState::ShuttingDown | InstanceState::Terminated);
        let replaced = row.instance.filter(|_| row.deed == Deed::Replace).map(|i| &i.id);
        holders.copied().find(|held| !gone(held.state) && Some(&held.id) != replaced)
    }

    /// Returns the keys in `pool` that instances of ours have, those on their way out included.
    pub(super) fn held_keys(&self, pool: &PoolName) -> BTreeSet<&'a str> {
        let held = self.holders.keys().filter(|(of, _)| *of == pool.as_str());
        held.map(|(_, key)| *key).collect()
    }

    /// Returns whether `instance` carries our tags for the cluster observed.
    pub(super) fn is_ours(&self, instance: &Instance) -> bool {
        instance.is_ours(&self.facts.observed.cluster.name)
    }

    /// Returns whether another machine of ours carries the same key of the same pool.
    pub(super) fn has_twin(&self, instance: &Instance) -> bool {
        let of = |i: &Instance| (i.tags.get(tag::POOL).cloned(), i.tags.get(tag::KEY).cloned());
        let own = of(instance);
        keyed(self.facts.observed).any(|(_, _, other)| other.id != instance.id && of(other) == own)
    }

    /// Returns the pods of `group` that run on `node`.
    pub(super) fn running(group: &PodGroup, node: Option<&NodeName>) -> u32 {
        node.and_then(|name| group.running.get(name)).copied().unwrap_or(0)
    }

    /// Returns the workloads with pods that run on `node`.
    pub(super) fn running_on(&self, node: &NodeName) -> impl Iterator<Item = Running<'_>> {
        self.running.get(node).into_iter().flatten().map(|(index, pods)| {
            let (key, everywhere) = &self.keys[*index];
            let group = &self.facts.demand.groups[*index];
            Running { key, group, pods: *pods, everywhere: *everywhere }
        })
    }

    /// Returns the node class of `pool`.
    pub(super) fn class(&self, pool: &Pool) -> Option<&'a NodeClass> {
        class(self.facts, pool)
    }

    /// Returns the pool named, if it is declared.
    pub(super) fn pool(&self, name: &PoolName) -> Option<&'a Pool> {
        self.facts.desired.pools.get(name)
    }

    /// Returns the group that `pool` is, if it is one.
    pub(super) fn group(&self, pool: &PoolName) -> Option<&'a NodeGroup> {
        self.facts.desired.node_groups.get(pool)
    }

    /// Returns the group that a row's node is or will be a member of, where the row says it is.
    pub(super) fn group_of(&self, row: &Row<'_>) -> Option<&'a NodeGroup> {
        self.group(row.after.or(row.before)?.pool.as_ref()?)
    }

    /// Returns whether an instance is a member of the live group that `group` is.
    pub(super) fn is_member(&self, instance: &Instance, group: &NodeGroup) -> bool {
        let of = instance.group.as_ref().and_then(|of| self.facts.observed.groups.get(&of.name));
        of.is_some_and(|live| group.is_live(&live.name, &live.tags))
    }

    /// Returns what `pool` requires of its nodes, or why that cannot be told.
    pub(super) fn requirements(&self, pool: &Pool) -> Option<&Result<Requirements, String>> {
        self.requirements.get(&pool.name)
    }

    /// Returns the type that `state` names, if the catalogue has it.
    pub(super) fn kind(&self, state: &NodeState) -> Option<&'a InstanceType> {
        self.facts.catalog.types.get(state.instance_type.as_ref()?)
    }

    /// Returns what a node of `pool` and `kind` with `labels` offers; `None` where the class is not
    /// declared.
    pub(super) fn allocation(
        &self,
        pool: &Pool,
        kind: &InstanceType,
        labels: &Labels,
    ) -> Option<Allocation> {
        let mut allocation = self.allocations.get(&pool.name)?.get(&kind.name)?.clone();
        self.overlays.overlaid(labels, None).extend(&mut allocation);
        Some(allocation)
    }

    /// Returns how `state` is bought, and at what price, if the catalogue offers it. Reserved
    /// machines cost nothing more; whether the reservation can be used is judged elsewhere.
    pub(super) fn offering(&self, state: &NodeState) -> Option<Offering> {
        let (zone, capacity_type) = (state.zone.as_ref()?, state.capacity_type?);
        let kind = self.kind(state)?;
        if capacity_type == CapacityType::Reserved {
            let known = self.facts.catalog.zones.iter().find(|known| known.name == *zone)?;
            let (zone, zone_id) = (known.name.clone(), known.id.clone());
            let price = Some(MicroUsd::ZERO);
            return Some(Offering { zone, zone_id, capacity_type, price, estimated: false });
        }
        self.sold(kind, zone, capacity_type, &state.labels)
    }

    /// Returns what the catalogue and the overlays say of a way to buy `kind`, for a node with
    /// `labels`.
    pub(super) fn sold(
        &self,
        kind: &InstanceType,
        zone: &ZoneName,
        capacity_type: CapacityType,
        labels: &Labels,
    ) -> Option<Offering> {
        let same = |o: &&Offering| o.zone == *zone && o.capacity_type == capacity_type;
        let listed = kind.offerings.iter().find(same)?.clone();
        let price = self.overlays.overlaid(labels, listed.price).price;
        let estimated = listed.is_estimate_for(labels) && price == listed.price;
        Some(Offering { price, estimated, ..listed })
    }
}

fn is_group(row: &ResourceChange) -> bool {
    row.kind == ResourceKind::AutoscalingGroup
}

fn nodes_of(plan: &Plan) -> impl Iterator<Item = &ResourceChange> {
    plan.resource_changes.iter().filter(|row| !is_group(row))
}

/// Returns the node class of `pool`; one that a pool states inline has the pool's name.
fn class<'a>(facts: &Facts<'a>, pool: &Pool) -> Option<&'a NodeClass> {
    let name = pool.node_class.as_ref().map_or(pool.name.as_str(), |name| name.as_str());
    facts.desired.node_classes.get(name)
}

fn requirements(pool: &Pool) -> Result<Requirements, String> {
    let set = |requirement: &PoolRequirement| {
        let values: Vec<&str> = requirement.values.iter().map(LabelValue::as_str).collect();
        let set = LabelSet::from_operator(requirement.operator, &values);
        set.map(|set| (requirement.key.clone(), set))
            .map_err(|error| format!("{}: {error}", requirement.key))
    };
    pool.requirements.iter().map(set).collect()
}

/// Works out what nodes offer of every pool and type that the plan names together.
fn allocations<'a>(plan: &'a Plan, facts: &Facts<'a>) -> Allocations<'a> {
    let changes = plan.resource_changes.iter();
    let states = changes.clone().flat_map(|row| [&row.change.before, &row.change.after]).flatten();
    let states = states.filter_map(|state| Some((state.pool.as_ref()?, &state.instance_type)));
    let pools: BTreeMap<&Address, &PoolName> = changes
        .filter_map(|row| Some((&row.address, row.change.after.as_ref()?.pool.as_ref()?)))
        .collect();
    let others = plan.capacity.alternatives.iter().flat_map(|row| {
        let pool = pools.get(&row.address).copied();
        row.offerings.iter().filter_map(move |offering| Some((pool?, &offering.instance_type)))
    });
    let states = states.filter_map(|(pool, kind)| Some((pool, kind.as_ref()?)));
    let named: BTreeSet<(&PoolName, &InstanceTypeName)> = states.chain(others).collect();
    let mut known = Allocations::new();
    for (pool, kind) in named {
        let pool = facts.desired.pools.get(pool);
        let Some((pool, kind)) = pool.zip(facts.catalog.types.get(kind)) else { continue };
        let Some(class) = class(facts, pool) else { continue };
        let settings = NodeSettings::of(pool, class);
        let model = (facts.allocation)(kind, &settings);
        let allocation = facts.catalog.measured.correct(model, &kind.name, &settings);
        known.entry(&pool.name).or_default().insert(&kind.name, allocation);
    }
    known
}

/// Returns the instances of ours that have a key, with pool and key.
fn keyed(observed: &Observed) -> impl Iterator<Item = (&str, &str, &Instance)> {
    let ours = observed.instances.values().filter(|i| i.is_ours(&observed.cluster.name));
    ours.filter_map(|i| Some((i.tags.get(tag::POOL)?.as_str(), i.tags.get(tag::KEY)?.as_str(), i)))
}

/// Returns an amount as the vector that arithmetic is done with.
pub(super) fn resources(amount: &Amount) -> Resources {
    let Amount { cpu_milli, memory_bytes, ephemeral_storage_bytes, pods, extended } = amount;
    let extended = extended.iter().filter(|(_, n)| **n != 0);
    Resources {
        cpu: MilliCpu(*cpu_milli),
        memory: Bytes(*memory_bytes),
        ephemeral_storage: Bytes(*ephemeral_storage_bytes),
        pods: *pods,
        extended: extended.map(|(name, n)| (name.as_str().into(), *n)).collect(),
    }
}

/// Returns the sum of `count` for each of `items`, without wrapping.
pub(super) fn total<T>(items: impl IntoIterator<Item = T>, count: impl Fn(T) -> u32) -> u32 {
    items.into_iter().fold(0, |sum, item| sum.saturating_add(count(item)))
}

/// Returns how many of `items` there are.
pub(super) fn number<T>(items: impl IntoIterator<Item = T>) -> u32 {
    total(items, |_| 1)
}
