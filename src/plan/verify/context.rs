//! A plan and its inputs, indexed for the rules.

use std::collections::{BTreeMap, BTreeSet};

use super::Facts;
use crate::catalog::{Allocation, InstanceType, NodeSettings, Offering, Overlays};
use crate::demand::{FargatePods, PodGroup};
use crate::model::desired::{NodeClass, NodeGroup, Pool, PoolRequirement};
use crate::model::ids::{
    Address, InstanceId, InstanceTypeName, LabelValue, Labels, NodeName, PoolName, ZoneName,
    workload_key,
};
use crate::model::market::CapacityType;
use crate::model::observed::{Instance, InstanceState, Node, Observed, UntaggedNode, tag};
use crate::model::requirement::{LabelSet, Requirements};
use crate::model::units::{Bytes, MicroUsd, MilliCpu, Resources};
use crate::plan::wire::{
    Action, Amount, ExplainRow, NodeState, Plan, ResourceChange, ResourceKind,
};

/// The actions of a row as one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowAction {
    Keep,
    Create,
    Update,
    Delete,
    Replace,
    /// The list of actions is invalid. Rule `row/actions` reports this, and no other rule applies.
    Unknown,
}

impl RowAction {
    fn from_actions(actions: &[Action]) -> Self {
        match actions {
            [Action::NoOp] => Self::Keep,
            [Action::Create] => Self::Create,
            [Action::Update] => Self::Update,
            [Action::Delete] => Self::Delete,
            [Action::Create, Action::Delete] => Self::Replace,
            _ => Self::Unknown,
        }
    }

    /// Returns whether the row launches a node.
    pub(super) fn creates(self) -> bool {
        matches!(self, Self::Create | Self::Replace)
    }

    /// Returns whether the row removes a node.
    pub(super) fn deletes(self) -> bool {
        matches!(self, Self::Delete | Self::Replace)
    }

    /// Returns whether the row retains its node.
    pub(super) fn keeps(self) -> bool {
        matches!(self, Self::Keep | Self::Update)
    }
}

/// A row with its related objects.
pub(super) struct CheckedRow<'a> {
    pub(super) address: &'a Address,
    pub(super) change: &'a ResourceChange,
    pub(super) action: RowAction,
    pub(super) before: Option<&'a NodeState>,
    pub(super) after: Option<&'a NodeState>,
    pub(super) explain: Option<&'a ExplainRow>,
    /// The node that `before` names.
    pub(super) node: Option<&'a Node>,
    /// The instance that `before` names.
    pub(super) instance: Option<&'a Instance>,
}

impl CheckedRow<'_> {
    /// Returns the number of pods of a workload that are planned on the node.
    pub(super) fn planned(&self, key: &str) -> u32 {
        self.explain.and_then(|explain| explain.pods.get(key)).copied().unwrap_or(0)
    }

    /// Returns the planned pods of each workload on the node, by workload key.
    pub(super) fn pods(&self) -> impl Iterator<Item = (&str, u32)> {
        let pods = self.explain.into_iter().flat_map(|explain| &explain.pods);
        pods.map(|(key, count)| (key.as_str(), *count))
    }
}

/// Running pods of one workload on one node.
pub(super) struct RunningPods<'c> {
    /// Key of the workload.
    pub(super) key: &'c str,
    pub(super) group: &'c PodGroup,
    /// Number of pods on this node.
    pub(super) pods: u32,
    /// Number of pods on all nodes.
    pub(super) on_all_nodes: u32,
}

/// Resources of nodes, by pool and instance type.
type Allocations<'a> = BTreeMap<&'a PoolName, BTreeMap<&'a InstanceTypeName, Allocation>>;

pub(super) struct CheckContext<'a> {
    pub(super) plan: &'a Plan,
    pub(super) facts: &'a Facts<'a>,
    /// Rows of nodes, in the order of the plan.
    pub(super) rows: Vec<CheckedRow<'a>>,
    /// Rows of groups, which are not nodes.
    pub(super) group_rows: Vec<&'a ResourceChange>,
    /// Declared prices and capacities that override the catalog.
    pub(super) overlays: Overlays<'a>,
    /// Pod groups of the demand, by workload key.
    pub(super) groups: BTreeMap<String, &'a PodGroup>,
    /// Pods on Fargate, by workload key.
    pub(super) fargate: BTreeMap<String, &'a FargatePods>,
    /// Keys of the pod groups with the numbers of running pods, in the order of the demand.
    keys: Vec<(String, u32)>,
    /// Pod groups with running pods on each node, by their index in the demand.
    running: BTreeMap<&'a NodeName, Vec<(usize, u32)>>,
    /// Requirements of each pool, or the error of reading them.
    requirements: BTreeMap<&'a PoolName, Result<Requirements, String>>,
    /// Resources of nodes that the plan names.
    allocations: Allocations<'a>,
    /// Index of an address in `rows`.
    row_index: BTreeMap<&'a Address, usize>,
    /// Observed nodes by instance.
    nodes: BTreeMap<&'a InstanceId, &'a Node>,
    /// Managed instances by pool and key. A key has several instances only after a failed apply.
    key_holders: BTreeMap<(&'a str, &'a str), Vec<&'a Instance>>,
    /// Nodes whose instances lost their tags.
    untagged: BTreeMap<&'a NodeName, UntaggedNode>,
}

impl<'a> CheckContext<'a> {
    pub(super) fn new(plan: &'a Plan, facts: &'a Facts<'a>) -> Self {
        let explain: BTreeMap<&Address, &ExplainRow> =
            plan.capacity.explain.iter().map(|row| (&row.address, row)).collect();
        let row = |change: &'a ResourceChange| {
            let before = change.change.before.as_ref();
            let node = before.and_then(|state| state.node.as_ref());
            let instance = before.and_then(|state| state.instance_id.as_ref());
            CheckedRow {
                address: &change.address,
                change,
                action: RowAction::from_actions(&change.change.actions),
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
            for (node, pods) in group.active_by_node() {
                running.entry(node).or_default().push((index, pods));
            }
        }
        let keys = groups.iter().map(|group| (workload_key(&group.workload), group.active()));
        let keys: Vec<(String, u32)> = keys.collect();
        let by_key = keys.iter().zip(groups).map(|((key, _), group)| (key.clone(), group));
        let nodes = facts.observed.nodes.values();
        let mut key_holders: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (pool, key, instance) in instances_with_keys(facts.observed) {
            key_holders.entry((pool, key)).or_default().push(instance);
        }
        let row_index = nodes_of(plan).map(|change| &change.address).enumerate();
        Self {
            plan,
            facts,
            overlays: Overlays::from_desired(facts.desired),
            rows: nodes_of(plan).map(row).collect(),
            group_rows: plan.resource_changes.iter().filter(|row| is_group(row)).collect(),
            groups: by_key.collect(),
            fargate: facts.demand.fargate.iter().map(|t| (workload_key(&t.workload), t)).collect(),
            keys,
            running,
            requirements: facts.desired.pools.iter().map(|(n, p)| (n, requirements(p))).collect(),
            allocations: allocations(plan, facts),
            row_index: row_index.map(|(index, address)| (address, index)).collect(),
            nodes: nodes.filter_map(|node| Some((node.instance.as_ref()?, node))).collect(),
            key_holders,
            untagged: facts.observed.untagged_nodes(),
        }
    }

    /// Returns the row at `address`.
    pub(super) fn row(&self, address: &Address) -> Option<&CheckedRow<'a>> {
        self.row_index.get(address).and_then(|index| self.rows.get(*index))
    }

    /// Returns the node that runs on `instance`.
    pub(super) fn node_for_instance(&self, instance: &InstanceId) -> Option<&'a Node> {
        self.nodes.get(instance).copied()
    }

    /// Returns an instance that uses `key` in `pool` and is not shutting down. The instance that
    /// `row` replaces does not count.
    pub(super) fn key_holder(
        &self,
        pool: &PoolName,
        key: &str,
        row: &CheckedRow<'_>,
    ) -> Option<&'a Instance> {
        let key_holders = self.key_holders.get(&(pool.as_str(), key)).into_iter().flatten();
        let gone = |state| matches!(state, InstanceState::ShuttingDown | InstanceState::Terminated);
        let replaced = row.instance.filter(|_| row.action == RowAction::Replace).map(|i| &i.id);
        key_holders.copied().find(|holder| !gone(holder.state) && Some(&holder.id) != replaced)
    }

    /// Returns the keys of managed instances in `pool`, including instances that are shutting down,
    /// and those of nodes whose instances lost their tags.
    pub(super) fn used_keys(&self, pool: &PoolName) -> BTreeSet<&str> {
        let keys = self.key_holders.keys().filter(|(of, _)| *of == pool.as_str());
        let untagged = self.untagged.values().filter(|node| node.pool.as_ref() == Some(pool));
        keys.map(|(_, key)| *key).chain(untagged.map(|node| node.key.as_str())).collect()
    }

    /// Returns whether the instance of a node lost our tags.
    pub(super) fn is_untagged(&self, node: &NodeName) -> bool {
        self.untagged.contains_key(node)
    }

    /// Returns whether `instance` carries our tags for the observed cluster.
    pub(super) fn is_managed(&self, instance: &Instance) -> bool {
        instance.is_managed_by(&self.facts.observed.cluster.name)
    }

    /// Returns whether another managed instance carries the same key in the same pool.
    pub(super) fn shares_key(&self, instance: &Instance) -> bool {
        let of = |i: &Instance| (i.tags.get(tag::POOL).cloned(), i.tags.get(tag::KEY).cloned());
        let own = of(instance);
        instances_with_keys(self.facts.observed)
            .any(|(_, _, other)| other.id != instance.id && of(other) == own)
    }

    /// Returns the number of running pods of `group` on `node`.
    pub(super) fn running_pods(group: &PodGroup, node: Option<&NodeName>) -> u32 {
        node.and_then(|name| group.running.get(name)).copied().unwrap_or(0)
    }

    /// Returns the workloads with running pods on `node`.
    pub(super) fn running_on(&self, node: &NodeName) -> impl Iterator<Item = RunningPods<'_>> {
        self.running.get(node).into_iter().flatten().map(|(index, pods)| {
            let (key, on_all_nodes) = &self.keys[*index];
            let group = &self.facts.demand.groups[*index];
            RunningPods { key, group, pods: *pods, on_all_nodes: *on_all_nodes }
        })
    }

    /// Returns the node class of `pool`.
    pub(super) fn class(&self, pool: &Pool) -> Option<&'a NodeClass> {
        class(self.facts, pool)
    }

    /// Returns the declared pool of this name.
    pub(super) fn pool(&self, name: &PoolName) -> Option<&'a Pool> {
        self.facts.desired.pools.get(name)
    }

    /// Returns the declared node group of this name.
    pub(super) fn group(&self, pool: &PoolName) -> Option<&'a NodeGroup> {
        self.facts.desired.node_groups.get(pool)
    }

    /// Returns the declared group of a row's node.
    pub(super) fn group_of(&self, row: &CheckedRow<'_>) -> Option<&'a NodeGroup> {
        self.group(row.after.or(row.before)?.pool.as_ref()?)
    }

    /// Returns whether an instance is a member of the live group of `group`.
    pub(super) fn is_member(&self, instance: &Instance, group: &NodeGroup) -> bool {
        let of = instance.group.as_ref().and_then(|of| self.facts.observed.groups.get(&of.name));
        of.is_some_and(|live| group.matches_live_group(&live.name, &live.tags))
    }

    /// Returns the requirements of `pool`, or the error of reading them.
    pub(super) fn requirements(&self, pool: &Pool) -> Option<&Result<Requirements, String>> {
        self.requirements.get(&pool.name)
    }

    /// Returns the instance type of `state`, if the catalog has it.
    pub(super) fn kind(&self, state: &NodeState) -> Option<&'a InstanceType> {
        self.facts.catalog.types.get(state.instance_type.as_ref()?)
    }

    /// Returns the resources of a node of `pool` and `kind` with `labels`; `None` if the node class
    /// is not declared.
    pub(super) fn allocation(
        &self,
        pool: &Pool,
        kind: &InstanceType,
        labels: &Labels,
    ) -> Option<Allocation> {
        let mut allocation = self.allocations.get(&pool.name)?.get(&kind.name)?.clone();
        self.overlays.apply(labels, None).extend(&mut allocation);
        Some(allocation)
    }

    /// Returns the offering of `state`, if the catalog has it.
    ///
    /// A reserved instance has price zero. Module `reservations` checks that the reservation is
    /// usable.
    pub(super) fn offering(&self, state: &NodeState) -> Option<Offering> {
        let (zone, capacity_type) = (state.zone.as_ref()?, state.capacity_type?);
        let kind = self.kind(state)?;
        if capacity_type == CapacityType::Reserved {
            let known = self.facts.catalog.zones.iter().find(|known| known.name == *zone)?;
            let (zone, zone_id) = (known.name.clone(), known.id.clone());
            let price = Some(MicroUsd::ZERO);
            return Some(Offering { zone, zone_id, capacity_type, price, estimated: false });
        }
        self.catalog_offering(kind, zone, capacity_type, &state.labels)
    }

    /// Returns the offering of `kind` with overlays applied, for a node with `labels`.
    pub(super) fn catalog_offering(
        &self,
        kind: &InstanceType,
        zone: &ZoneName,
        capacity_type: CapacityType,
        labels: &Labels,
    ) -> Option<Offering> {
        let same = |o: &&Offering| o.zone == *zone && o.capacity_type == capacity_type;
        let listed = kind.offerings.iter().find(same)?.clone();
        let price = self.overlays.apply(labels, listed.price).price;
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

/// Returns the node class of `pool`. An inline node class has the name of its pool.
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

/// Computes the resources of every combination of pool and instance type that the plan names.
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
        let settings = NodeSettings::new(pool, class);
        let model = (facts.allocation)(kind, &settings);
        let allocation = facts.catalog.measured.adjust(model, &kind.name, &settings);
        known.entry(&pool.name).or_default().insert(&kind.name, allocation);
    }
    known
}

/// Returns the managed instances that have a key, with pool and key.
fn instances_with_keys(observed: &Observed) -> impl Iterator<Item = (&str, &str, &Instance)> {
    let ours = observed.instances.values().filter(|i| i.is_managed_by(&observed.cluster.name));
    ours.filter_map(|i| Some((i.tags.get(tag::POOL)?.as_str(), i.tags.get(tag::KEY)?.as_str(), i)))
}

/// Converts an amount to a resource vector.
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

/// Returns the saturating sum of `count` over `items`.
pub(super) fn total<T>(items: impl IntoIterator<Item = T>, count: impl Fn(T) -> u32) -> u32 {
    items.into_iter().fold(0, |sum, item| sum.saturating_add(count(item)))
}

/// Returns the number of `items`.
pub(super) fn count<T>(items: impl IntoIterator<Item = T>) -> u32 {
    total(items, |_| 1)
}
