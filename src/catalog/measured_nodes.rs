//! Capacity and allocatable measured on running nodes, which replace the formulas for nodes like
//! them.
//!
//! The formulas estimate the memory that the hypervisor and the image use, and are often off by
//! some percent in both directions. Nodes of one type and one specification differ slightly, so the
//! minimum of each resource is safe for the next node. Other modules decide which nodes belong to a
//! specification.

use std::collections::BTreeMap;

use super::allocatable::{allocation, explain, is_efa};
use super::allocatable_step::{AllocationStep, Formula};
use super::instance_type::InstanceType;
use super::node_resource::{Allocation, AllocationPart, NodeResource};
use super::node_settings::NodeSettings;
use crate::model::desired::EfaInterfaces;
use crate::model::ids::{InstanceTypeName, NodeName};
use crate::model::units::{Bytes, ResourceName, Resources};

/// Measurements by type and settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeasuredNodes(BTreeMap<(InstanceTypeName, NodeSettings), NodeSample>);

/// The nodes measured of one type and one specification.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NodeSample {
    nodes: u32,
    capacity: MinimumAmounts,
    allocatable: MinimumAmounts,
}

/// The minimum amounts of several nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MinimumAmounts {
    amounts: Resources,
    /// Number of nodes that report each extended resource.
    reporting: BTreeMap<ResourceName, u32>,
    /// The node with the least memory; of several, the first by name.
    node: NodeName,
}

impl MeasuredNodes {
    /// Returns whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of nodes measured of a type with these settings.
    pub fn nodes(&self, kind: &InstanceTypeName, settings: &NodeSettings) -> u32 {
        self.0.get(&(kind.clone(), settings.clone())).map_or(0, |sample| sample.nodes)
    }

    /// Returns measured capacity and allocatable with these settings, by type. Resources that only
    /// some of the nodes report are left out.
    pub fn amounts_for<'m>(
        &'m self,
        settings: &'m NodeSettings,
    ) -> impl Iterator<Item = (&'m InstanceTypeName, Resources, Resources)> {
        let alike = self.0.iter().filter(move |((_, of), _)| of == settings);
        alike.map(|((kind, _), sample)| {
            let common_amounts = |least: &MinimumAmounts| least.common_amounts(sample.nodes);
            (kind, common_amounts(&sample.capacity), common_amounts(&sample.allocatable))
        })
    }

    /// Adds a node. A node that reports no CPU, no memory or no pods is not ready, and is ignored.
    pub fn add(
        &mut self,
        kind: &InstanceTypeName,
        settings: NodeSettings,
        node: &NodeName,
        capacity: &Resources,
        allocatable: &Resources,
    ) {
        let is_up = |r: &Resources| r.cpu.0 > 0 && r.memory.0 > 0 && r.pods > 0;
        if !is_up(capacity) || !is_up(allocatable) {
            return;
        }
        let sample = self.0.entry((kind.clone(), settings)).or_insert_with(|| NodeSample {
            nodes: 0,
            capacity: MinimumAmounts::first(node, capacity),
            allocatable: MinimumAmounts::first(node, allocatable),
        });
        sample.nodes = sample.nodes.saturating_add(1);
        sample.capacity.add(node, capacity);
        sample.allocatable.add(node, allocatable);
    }

    /// Returns the allocation of a node of `kind` under `settings`, with measured amounts in place
    /// of those of `model`.
    pub fn adjust(
        &self,
        model: Allocation,
        kind: &InstanceTypeName,
        settings: &NodeSettings,
    ) -> Allocation {
        // Avoids copying the key for each lookup.
        if self.0.is_empty() {
            return model;
        }
        let Some(sample) = self.0.get(&(kind.clone(), settings.clone())) else { return model };
        let mut capacity = sample.capacity.merge_with(&model.capacity, sample.nodes);
        let mut allocatable = sample.allocatable.merge_with(&model.allocatable, sample.nodes);
        let is_bounded = match settings.efa {
            EfaInterfaces::All | EfaInterfaces::Reported => false,
            EfaInterfaces::Absent | EfaInterfaces::Declared(_) => true,
        };
        // The kubelet also counts the addresses of interfaces that are adapters.
        let counts_too_many = matches!(
            settings.efa,
            EfaInterfaces::Declared(adapters) if adapters.on_default_card > 0
        );
        for (amounts, model) in
            [(&mut capacity, &model.capacity), (&mut allocatable, &model.allocatable)]
        {
            if is_bounded {
                limit_adapters(amounts, model);
            }
            if counts_too_many {
                amounts.pods = amounts.pods.min(model.pods);
            }
        }
        let reserved = Resources::at_least(&capacity.minus(&allocatable), &Resources::default());
        Allocation { capacity, kube_reserved: reserved, allocatable, ..Allocation::default() }
    }
}

/// Removes the adapters that running nodes have, and that new nodes of the class do not get.
fn limit_adapters(amounts: &mut Resources, model: &Resources) {
    amounts.extended.retain(|name, amount| {
        if is_efa(name) {
            *amount = model.extended(name).min(*amount);
        }
        !is_efa(name) || *amount > 0
    });
}

impl MinimumAmounts {
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
            let least_amount = amounts.extended.entry(name.clone()).or_insert(*amount);
            *least_amount = (*least_amount).min(*amount);
            *reporting.entry(name.clone()).or_insert(0) += 1;
        }
    }

    /// Returns the amounts of resources that all nodes report.
    fn common_amounts(&self, nodes: u32) -> Resources {
        let mut amounts = self.amounts.clone();
        amounts.extended.retain(|name, _| self.reporting.get(name) == Some(&nodes));
        amounts
    }

    /// Returns the measured amounts, and those of `model` where nothing was measured.
    ///
    /// A device that a node does not report belongs to a plugin that has not started; the type has
    /// it anyway. A resource that the type lacks counts only if every node reports it.
    fn merge_with(&self, model: &Resources, nodes: u32) -> Resources {
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

impl MeasuredNodes {
    /// Returns the steps to the allocatable of a node of `kind` under `settings`: the measured
    /// amounts with those of the formulas, or the formulas where nothing was measured.
    pub(super) fn explain(
        &self,
        kind: &InstanceType,
        settings: &NodeSettings,
    ) -> Vec<AllocationStep> {
        let key = (kind.name.clone(), settings.clone());
        let Some(sample) = self.0.get(&key) else { return explain(kind, settings) };
        let model = allocation(kind, settings);
        let Allocation { capacity, allocatable, .. } =
            self.adjust(model.clone(), &kind.name, settings);
        let mut resources = vec![
            NodeResource::Cpu,
            NodeResource::Memory,
            NodeResource::EphemeralStorage,
            NodeResource::Pods,
        ];
        resources.extend(capacity.extended.keys().cloned().map(NodeResource::Extended));
        let step = |part, resource: &NodeResource, (seen, model, least): MeasuredAmounts<'_>| {
            AllocationStep {
                part,
                resource: resource.clone(),
                amount: resource.amount_in(seen),
                formula: Formula::Measured {
                    node: least.node.clone(),
                    nodes: sample.nodes,
                    model: resource.format_amount(resource.amount_in(model)),
                },
            }
        };
        let capacity = (&capacity, &model.capacity, &sample.capacity);
        let allocatable = (&allocatable, &model.allocatable, &sample.allocatable);
        let mut steps = Vec::new();
        for (part, ends) in
            [(AllocationPart::Capacity, capacity), (AllocationPart::Allocatable, allocatable)]
        {
            steps.extend(resources.iter().map(|resource| step(part, resource, ends)));
        }
        steps
    }
}

/// Measured amounts, formula amounts, and the sample they come from.
type MeasuredAmounts<'a> = (&'a Resources, &'a Resources, &'a MinimumAmounts);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use crate::model::desired::EfaCount;
    use crate::model::units::MilliCpu;

    const MIB: i64 = Bytes::MIB;

    fn amounts(cpu: i64, memory_mib: i64, pods: i64) -> Resources {
        let (cpu, memory) = (MilliCpu(cpu), Bytes::mib(memory_mib));
        Resources { cpu, memory, pods, ..Resources::default() }
    }

    /// Returns the allocation of an m5.large after these nodes were measured, with equal capacity
    /// and allocatable.
    fn offers(seen: &[(&str, Resources)]) -> (Catalog, Allocation) {
        let mut catalog = Catalog::load(&"us-east-1".into(), &[]).expect("known region");
        let settings = NodeSettings::default();
        for (name, amounts) in seen {
            let (kind, name) = ("m5.large".into(), (*name).into());
            catalog.measured.add(&kind, settings.clone(), &name, amounts, amounts);
        }
        let kind = catalog.get(&"m5.large".into()).expect("offered");
        let allocation = catalog.allocation(kind, &settings);
        (catalog, allocation)
    }

    #[test]
    fn the_minimum_measured_replaces_the_formula() {
        for (rule, seen, expected) in [
            ("nothing measured: 6903 MiB by the formula", vec![], (1930, 6903, 29)),
            ("less than the formula", vec![("n1", amounts(1900, 6800, 20))], (1900, 6800, 20)),
            ("more than the formula", vec![("n1", amounts(1950, 7100, 110))], (1950, 7100, 110)),
            (
                "the least of each resource",
                vec![("n1", amounts(1950, 7000, 29)), ("n2", amounts(1900, 7100, 29))],
                (1900, 7000, 29),
            ),
            (
                "a node that is not ready is ignored",
                vec![("n1", amounts(0, 1, 1))],
                (1930, 6903, 29),
            ),
        ] {
            let Resources { cpu, memory, pods, ephemeral_storage, .. } =
                offers(&seen).1.allocatable;
            assert_eq!((cpu.0, memory.0 / MIB, pods), expected, "{rule}");
            assert_eq!(ephemeral_storage, Bytes::gib(17), "{rule}: unreported resources stay");
        }
    }

    #[test]
    fn measurements_apply_to_one_type_and_its_settings() {
        let (catalog, _) = offers(&[("n1", amounts(1, 1, 1))]);
        let kind = |name: &str| catalog.get(&name.into()).expect("offered");
        let of = |name, settings| catalog.allocation(kind(name), &settings).allocatable.cpu.0;
        assert_eq!(of("m5.large", NodeSettings::default()), 1);
        assert_eq!(of("m5.xlarge", NodeSettings::default()), 3920);
        let class_digests = BTreeMap::from([("userData".to_owned(), "another".into())]).into();
        assert_eq!(of("m5.large", NodeSettings { class_digests, ..NodeSettings::default() }), 1930);
    }

    #[test]
    fn devices_come_from_the_type_and_from_every_node() {
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
    fn declared_adapters_limit_what_running_nodes_report() {
        let mut catalog = Catalog::load(&"us-east-1".into(), &[]).expect("known region");
        let adapters = EfaCount { all: 1, on_default_card: 1 };
        let efa = EfaInterfaces::Declared(adapters);
        let settings = NodeSettings { efa, ..NodeSettings::default() };
        let (kind, name) = ("c5n.18xlarge".into(), "n1".into());
        let seen = Resources {
            extended: [("vpc.amazonaws.com/efa".into(), 4)].into(),
            ..amounts(70_000, 180_000, 737)
        };
        catalog.measured.add(&kind, settings.clone(), &name, &seen, &seen);
        let kind = catalog.get(&kind).expect("offered");
        let found = catalog.allocation(kind, &settings).allocatable;
        let efa = found.extended(&"vpc.amazonaws.com/efa".into());
        assert_eq!((found.cpu.0, found.pods, efa), (70_000, 688, 1));
    }

    #[test]
    fn measurements_do_not_depend_on_node_order() {
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
    fn a_measurement_explains_its_node_and_the_formula() {
        let (catalog, allocation) =
            offers(&[("n1", amounts(1930, 7000, 29)), ("n2", amounts(1930, 6800, 29))]);
        let kind = catalog.get(&"m5.large".into()).expect("offered");
        let steps = catalog.explain(kind, &NodeSettings::default());
        let memory = |part| {
            let of_memory =
                |s: &&AllocationStep| s.resource == NodeResource::Memory && s.part == part;
            steps.iter().find(of_memory).expect("a step")
        };
        let step = memory(AllocationPart::Allocatable);
        assert_eq!(step.amount, allocation.allocatable.memory.0);
        assert_eq!(
            (step.formula.to_string().as_str(), step.formula.source()),
            ("minimum of 2 nodes, such as n2; formula: 6903Mi", "observed")
        );
        assert!(memory(AllocationPart::Capacity).formula.to_string().ends_with("formula: 7577Mi"));
    }
}
