//! What nodes that run were seen to offer: it replaces the rules for nodes like them.
//!
//! The rules estimate what the hypervisor and the image keep, and are often off by some percent, in
//! both directions. Nodes of one type and of one specification differ a little among themselves, and
//! the smallest of each resource is what the next one surely has. Who counts as a node of a
//! specification is not known here.

use std::collections::BTreeMap;

use super::allocation::{allocation, explain};
use super::formula::Formula;
use super::model::{Allocation, Catalog, InstanceType, NodeSettings};
use super::step::{AllocationStep, NodeResource, Part};
use crate::ids::{InstanceTypeName, NodeName};
use crate::units::{Bytes, ResourceName, Resources};

/// What was seen, by type and settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Measured(BTreeMap<(InstanceTypeName, NodeSettings), Sample>);

/// The nodes seen of one type and one specification.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sample {
    nodes: u32,
    capacity: Least,
    allocatable: Least,
}

/// The smallest amounts of several nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Least {
    amounts: Resources,
    /// How many nodes report each extended resource at all.
    reporting: BTreeMap<ResourceName, u32>,
    /// The node with the least memory; the first by name of several.
    node: NodeName,
}

impl Measured {
    /// Returns whether nothing was seen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns how many nodes were seen of a type with these settings.
    #[must_use]
    pub fn nodes(&self, kind: &InstanceTypeName, settings: &NodeSettings) -> u32 {
        self.0.get(&(kind.clone(), settings.clone())).map_or(0, |sample| sample.nodes)
    }

    /// Returns what was seen with these settings, by type: capacity, and what pods may use. A resource that only some of the
    /// nodes report is left out.
    pub fn of<'m>(
        &'m self,
        settings: &'m NodeSettings,
    ) -> impl Iterator<Item = (&'m InstanceTypeName, Resources, Resources)> {
        let alike = self.0.iter().filter(move |((_, of), _)| of == settings);
        alike.map(|((kind, _), sample)| {
            let of_all = |least: &Least| least.of_all(sample.nodes);
            (kind, of_all(&sample.capacity), of_all(&sample.allocatable))
        })
    }

    /// Adds a node; one that reports no CPU, no memory or no room for pods is not up yet, and tells
    /// nothing.
    pub fn add(
        &mut self,
        (kind, settings): (&InstanceTypeName, NodeSettings),
        node: &NodeName,
        capacity: &Resources,
        allocatable: &Resources,
    ) {
        let is_up = |r: &Resources| r.cpu.0 > 0 && r.memory.0 > 0 && r.pods > 0;
        if !is_up(capacity) || !is_up(allocatable) {
            return;
        }
        let sample = self.0.entry((kind.clone(), settings)).or_insert_with(|| Sample {
            nodes: 0,
            capacity: Least::first(node, capacity),
            allocatable: Least::first(node, allocatable),
        });
        sample.nodes = sample.nodes.saturating_add(1);
        sample.capacity.add(node, capacity);
        sample.allocatable.add(node, allocatable);
    }

    /// Returns what a node of `kind` offers under `settings`, given what the rules say.
    #[must_use]
    pub fn correct(
        &self,
        model: Allocation,
        kind: &InstanceTypeName,
        settings: &NodeSettings,
    ) -> Allocation {
        // A copy of the key would be made for each lookup otherwise.
        if self.0.is_empty() {
            return model;
        }
        let Some(sample) = self.0.get(&(kind.clone(), settings.clone())) else { return model };
        let capacity = sample.capacity.over(&model.capacity, sample.nodes);
        let allocatable = sample.allocatable.over(&model.allocatable, sample.nodes);
        let kept = Resources::at_least(&capacity.minus(&allocatable), &Resources::default());
        Allocation { capacity, kube_reserved: kept, allocatable, ..Allocation::default() }
    }
}

impl Least {
    fn first(node: &NodeName, amounts: &Resources) -> Self {
        Self { amounts: amounts.clone(), reporting: BTreeMap::new(), node: node.clone() }
    }

    fn add(&mut self, node: &NodeName, seen: &Resources) {
        let Self { amounts, reporting, node: least } = self;
        if (seen.memory, node) < (amounts.memory, &*least) {
            least.clone_from(node);
        }
        amounts.cpu = amounts.cpu.min(seen.cpu);
        amounts.memory = amounts.memory.min(seen.memory);
        amounts.pods = amounts.pods.min(seen.pods);
        amounts.ephemeral_storage = match (amounts.ephemeral_storage, seen.ephemeral_storage) {
            (Bytes(0), stated) | (stated, Bytes(0)) => stated,
            (a, b) => a.min(b),
        };
        for (name, amount) in seen.extended.iter().filter(|(_, amount)| **amount > 0) {
            let held = amounts.extended.entry(name.clone()).or_insert(*amount);
            *held = (*held).min(*amount);
            *reporting.entry(name.clone()).or_insert(0) += 1;
        }
    }

    /// Returns the amounts of what all nodes report.
    fn of_all(&self, nodes: u32) -> Resources {
        let mut amounts = self.amounts.clone();
        amounts.extended.retain(|name, _| self.reporting.get(name) == Some(&nodes));
        amounts
    }

    /// Returns the measured amounts; those of `model` where nothing was measured.
    ///
    /// A device that a node does not report is one whose plugin has not started: the type has it all
    /// the same. What the type does not have counts only where every node reports it.
    fn over(&self, model: &Resources, nodes: u32) -> Resources {
        let mut amounts = self.amounts.clone();
        if amounts.ephemeral_storage.0 == 0 {
            amounts.ephemeral_storage = model.ephemeral_storage;
        }
        let everywhere = |name: &ResourceName| self.reporting.get(name) == Some(&nodes);
        amounts.extended.retain(|name, _| model.extended.contains_key(name) || everywhere(name));
        for (name, amount) in &model.extended {
            amounts.extended.entry(name.clone()).or_insert(*amount);
        }
        amounts
    }
}

impl Catalog {
    /// Returns what a node of `kind` offers under `settings`: as nodes like it report, else by the
    /// rules.
    #[must_use]
    pub fn allocation(&self, kind: &InstanceType, settings: &NodeSettings) -> Allocation {
        self.measured.correct(allocation(kind, settings), &kind.name, settings)
    }

    /// Returns where the numbers of [`Catalog::allocation`] come from.
    #[must_use]
    pub fn explain(&self, kind: &InstanceType, settings: &NodeSettings) -> Vec<AllocationStep> {
        let key = (kind.name.clone(), settings.clone());
        let Some(sample) = self.measured.0.get(&key) else { return explain(kind, settings) };
        let model = allocation(kind, settings);
        let Allocation { capacity, allocatable, .. } = self.allocation(kind, settings);
        let mut resources = vec![
            NodeResource::Cpu,
            NodeResource::Memory,
            NodeResource::EphemeralStorage,
            NodeResource::Pods,
        ];
        resources.extend(capacity.extended.keys().cloned().map(NodeResource::Extended));
        let step = |part, resource: &NodeResource, (seen, model, least): Ends<'_>| AllocationStep {
            part,
            resource: resource.clone(),
            amount: resource.amount_in(seen),
            formula: Formula::Measured {
                node: least.node.clone(),
                nodes: sample.nodes,
                model: resource.show(resource.amount_in(model)),
            },
        };
        let capacity = (&capacity, &model.capacity, &sample.capacity);
        let allocatable = (&allocatable, &model.allocatable, &sample.allocatable);
        let mut steps = Vec::new();
        for (part, ends) in [(Part::Capacity, capacity), (Part::Allocatable, allocatable)] {
            steps.extend(resources.iter().map(|resource| step(part, resource, ends)));
        }
        steps
    }
}

/// What was seen, what the rules say, and who was seen.
type Ends<'a> = (&'a Resources, &'a Resources, &'a Least);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MilliCpu;

    const MIB: i64 = Bytes::MIB;

    fn amounts(cpu: i64, memory_mib: i64, pods: i64) -> Resources {
        let (cpu, memory) = (MilliCpu(cpu), Bytes::mib(memory_mib));
        Resources { cpu, memory, pods, ..Resources::default() }
    }

    /// What an m5.large offers once these nodes were seen, each with capacity and allocatable alike.
    fn offers(seen: &[(&str, Resources)]) -> (Catalog, Allocation) {
        let mut catalog = Catalog::load(&"us-east-1".into(), &[]).expect("known region");
        let settings = NodeSettings::default();
        for (name, amounts) in seen {
            let key = (&"m5.large".into(), settings.clone());
            catalog.measured.add(key, &(*name).into(), amounts, amounts);
        }
        let kind = catalog.get(&"m5.large".into()).expect("offered");
        let allocation = catalog.allocation(kind, &settings);
        (catalog, allocation)
    }

    #[test]
    fn the_smallest_seen_replaces_the_rules_both_ways() {
        for (rule, seen, expected) in [
            ("nothing was seen: 6903 MiB by the rules", vec![], (1930, 6903, 29)),
            ("less than by the rules", vec![("n1", amounts(1900, 6800, 20))], (1900, 6800, 20)),
            ("more than by the rules", vec![("n1", amounts(1950, 7100, 110))], (1950, 7100, 110)),
            (
                "the least of each resource",
                vec![("n1", amounts(1950, 7000, 29)), ("n2", amounts(1900, 7100, 29))],
                (1900, 7000, 29),
            ),
            (
                "a node that is not up tells nothing",
                vec![("n1", amounts(0, 1, 1))],
                (1930, 6903, 29),
            ),
        ] {
            let Resources { cpu, memory, pods, ephemeral_storage, .. } =
                offers(&seen).1.allocatable;
            assert_eq!((cpu.0, memory.0 / MIB, pods), expected, "{rule}");
            assert_eq!(ephemeral_storage, Bytes::gib(17), "{rule}: what nobody reports is kept");
        }
    }

    #[test]
    fn another_type_and_other_settings_are_not_touched() {
        let (catalog, _) = offers(&[("n1", amounts(1, 1, 1))]);
        let kind = |name: &str| catalog.get(&name.into()).expect("offered");
        let of = |name, settings| catalog.allocation(kind(name), &settings).allocatable.cpu.0;
        assert_eq!(of("m5.large", NodeSettings::default()), 1);
        assert_eq!(of("m5.xlarge", NodeSettings::default()), 3920);
        let class_digests = BTreeMap::from([("userData".to_owned(), "another".into())]).into();
        assert_eq!(of("m5.large", NodeSettings { class_digests, ..NodeSettings::default() }), 1930);
    }

    #[test]
    fn devices_are_those_of_the_type_and_what_every_node_adds() {
        let gpu = |gpus: i64, pages: i64| Resources {
            extended: [("vpc.amazonaws.com/pod-eni".into(), gpus), ("hugepages-2Mi".into(), pages)]
                .into_iter()
                .filter(|(_, amount)| *amount > 0)
                .collect(),
            ..amounts(1, 1, 1)
        };
        for (rule, seen, expected) in [
            ("no plugin yet: as the type has them", vec![gpu(0, 0)], (9, 0)),
            ("fewer, where a plugin reports", vec![gpu(8, 0), gpu(0, 0)], (8, 0)),
            ("huge pages of every node", vec![gpu(9, 64), gpu(9, 32)], (9, 32)),
            ("huge pages of some nodes", vec![gpu(9, 64), gpu(9, 0)], (9, 0)),
        ] {
            let names = ["n1", "n2"];
            let seen: Vec<_> = names.into_iter().zip(seen).collect();
            let found = offers(&seen).1.allocatable;
            let of = |name: &str| found.extended(&name.into());
            assert_eq!((of("vpc.amazonaws.com/pod-eni"), of("hugepages-2Mi")), expected, "{rule}");
        }
    }

    #[test]
    fn the_order_in_which_nodes_are_seen_changes_nothing() {
        let seen = [
            ("n2", amounts(1900, 7000, 29)),
            ("n1", amounts(1950, 7000, 30)),
            ("n3", amounts(1920, 7100, 20)),
        ];
        let expected = offers(&seen);
        for turn in 1..seen.len() {
            let mut turned = seen.clone();
            turned.rotate_left(turn);
            assert_eq!(offers(&turned).0.measured, expected.0.measured);
        }
    }

    #[test]
    fn what_was_measured_is_explained_with_who_said_so_and_what_the_rules_say() {
        let (catalog, allocation) =
            offers(&[("n1", amounts(1930, 7000, 29)), ("n2", amounts(1930, 6800, 29))]);
        let kind = catalog.get(&"m5.large".into()).expect("offered");
        let steps = catalog.explain(kind, &NodeSettings::default());
        let memory = |part| {
            let of_memory =
                |s: &&AllocationStep| s.resource == NodeResource::Memory && s.part == part;
            steps.iter().find(of_memory).expect("a step")
        };
        let step = memory(Part::Allocatable);
        assert_eq!(step.amount, allocation.allocatable.memory.0);
        assert_eq!(
            (step.formula.to_string().as_str(), step.formula.source()),
            ("the least of 2 nodes, such as n2; by the rules 6903Mi", "observed")
        );
        assert!(memory(Part::Capacity).formula.to_string().ends_with("by the rules 7577Mi"));
    }
}
