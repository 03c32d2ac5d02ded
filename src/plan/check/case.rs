//! A plan and its inputs, indexed for the rules.

use std::collections::{BTreeMap, BTreeSet};

use super::Facts;
use crate::catalog::{Allocation, InstanceType, NodeSettings, Offering};
use crate::demand::PodGroup;
use crate::fleet::{Instance, InstanceState, Node, Observed, tag};
use crate::ids::{Address, InstanceId, NodeName, PoolName};
use crate::manifest::{NodeClass, Pool};
use crate::plan::wire::{Action, Amount, ExplainRow, NodeState, Plan, ResourceChange};
use crate::solve::workload_key;
use crate::units::{Bytes, MilliCpu, Resources};

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
    /// Returns the planned pods of each workload on the node, by workload key.
    pub(super) fn pods(&self) -> impl Iterator<Item = (&str, u32)> {
        let pods = self.explain.into_iter().flat_map(|explain| &explain.pods);
        pods.map(|(key, count)| (key.as_str(), *count))
    }
}

/// A plan under judgement.
pub(super) struct Case<'a> {
    pub(super) plan: &'a Plan,
    pub(super) facts: &'a Facts<'a>,
    /// The rows, in the order of the plan.
    pub(super) rows: Vec<Row<'a>>,
    /// The demand's groups, by workload key.
    pub(super) groups: BTreeMap<String, &'a PodGroup>,
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
        let groups = facts.demand.groups.iter();
        let nodes = facts.observed.nodes.values();
        let mut holders: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (pool, key, instance) in keyed(facts.observed) {
            holders.entry((pool, key)).or_default().push(instance);
        }
        let places = plan.resource_changes.iter().map(|change| &change.address).enumerate();
        Self {
            plan,
            facts,
            rows: plan.resource_changes.iter().map(row).collect(),
            groups: groups.map(|group| (workload_key(&group.workload), group)).collect(),
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

    /// Returns the pods of `group` that run on `node`.
    pub(super) fn running(group: &PodGroup, node: Option<&NodeName>) -> u32 {
        node.and_then(|name| group.running.get(name)).copied().unwrap_or(0)
    }

    /// Returns the node class of `pool`; one that a pool states inline has the pool's name.
    pub(super) fn class(&self, pool: &Pool) -> Option<&'a NodeClass> {
        let name = pool.node_class.as_ref().map_or(pool.name.as_str(), |name| name.as_str());
        self.facts.desired.node_classes.get(name)
    }

    /// Returns the pool named, if it is declared.
    pub(super) fn pool(&self, name: &PoolName) -> Option<&'a Pool> {
        self.facts.desired.pools.get(name)
    }

    /// Returns the type that `state` names, if the catalogue has it.
    pub(super) fn kind(&self, state: &NodeState) -> Option<&'a InstanceType> {
        self.facts.catalog.types.get(state.instance_type.as_ref()?)
    }

    /// Returns what a node of `pool` and `kind` offers; `None` where the class is not declared.
    pub(super) fn allocation(&self, pool: &Pool, kind: &InstanceType) -> Option<Allocation> {
        let class = self.class(pool)?;
        Some((self.facts.allocation)(kind, &NodeSettings::of(pool, class)))
    }

    /// Returns how `state` is bought, if the catalogue offers it.
    pub(super) fn offering(&self, state: &NodeState) -> Option<&'a Offering> {
        let (zone, capacity_type) = (state.zone.as_ref()?, state.capacity_type?);
        let same = |o: &&Offering| o.zone == *zone && o.capacity_type == capacity_type;
        self.kind(state)?.offerings.iter().find(same)
    }
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
