//! Learns the resources of future nodes from the reports of running nodes.
//!
//! Only managed nodes count whose tag shows the declared specification: the settings of other nodes
//! are unknown. Every member of an external group counts, for that group alone. A starting node
//! counts later: its kubelet reports resources before device plugins start.
//!
//! A report far from the formulas does not count: one broken or hostile kubelet would change the size of
//! its type for every node to come.
//!
//! Reports of former nodes that are stored in the repository count like a running node.

use std::collections::BTreeMap;

use super::drift;
use crate::catalog::{Catalog, MeasuredNodes, NodeSettings, allocation};
use crate::model::desired::{Desired, GroupKind, LEARNED_FILE, LearnedNode, NodeClass, Pool};
use crate::model::ids::{GroupName, InstanceId, InstanceTypeName, NodeName};
use crate::model::observed::{Instance, Node, Observed, tag};
use crate::model::pod::Taint;
use crate::model::units::Resources;

/// Pools by name, with their node classes and the digest of their launch settings.
type DeclaredSpecs<'d> = BTreeMap<&'d str, (&'d Pool, &'d NodeClass, String)>;

fn declared_specs(desired: &Desired) -> DeclaredSpecs<'_> {
    let mut specs = DeclaredSpecs::new();
    for pool in desired.pools.values() {
        let class = pool.node_class.as_ref().and_then(|name| desired.node_classes.get(name));
        if let Some(class) = class {
            let digest = drift::spec_digest(pool, class);
            specs.insert(pool.name.as_str(), (pool, class, digest));
        }
    }
    specs
}

/// Returns the node reports to store in the repository: current reports, and stored ones that are
/// still declared.
pub fn learned_nodes(desired: &Desired, observed: &Observed) -> Vec<LearnedNode> {
    let specs = declared_specs(desired);
    let mut by_pool: BTreeMap<&str, MeasuredNodes> = BTreeMap::new();
    for_each_report(desired, observed, &specs, |report| {
        let Some((name, _)) = specs.get_key_value(report.pool) else { return };
        report.add_to(by_pool.entry(name).or_default());
    });
    let mut learned: BTreeMap<_, LearnedNode> = BTreeMap::new();
    for (name, measured) in &by_pool {
        let Some((pool, class, digest)) = specs.get(name) else { continue };
        let settings = NodeSettings::new(pool, class);
        for (instance_type, capacity, allocatable) in measured.amounts_for(&settings) {
            let node = LearnedNode {
                pool: pool.name.clone(),
                spec_digest: digest.clone(),
                instance_type: instance_type.clone(),
                capacity,
                allocatable,
            };
            learned.insert((pool.name.clone(), instance_type.clone()), node);
        }
    }
    for known in still_declared(desired, &specs) {
        learned
            .entry((known.pool.clone(), known.instance_type.clone()))
            .and_modify(|report| {
                report.capacity = smaller_amounts(&report.capacity, &known.capacity);
                report.allocatable = smaller_amounts(&report.allocatable, &known.allocatable);
            })
            .or_insert_with(|| known.clone());
    }
    learned.into_values().collect()
}

/// Returns the smaller amounts. Extended resources are taken from `report`, since a device plugin
/// may be new.
fn smaller_amounts(report: &Resources, known: &Resources) -> Resources {
    Resources {
        cpu: report.cpu.min(known.cpu),
        memory: report.memory.min(known.memory),
        pods: report.pods.min(known.pods),
        ephemeral_storage: report.ephemeral_storage.min(known.ephemeral_storage),
        ..report.clone()
    }
}

/// Returns the plausible reports of nodes launched as `desired` declares. Stored reports fill in types
/// without such a node.
pub fn measured_resources(
    desired: &Desired,
    observed: &Observed,
    catalog: &Catalog,
) -> MeasuredNodes {
    let specs = declared_specs(desired);
    let mut measured = MeasuredNodes::default();
    // Several nodes of one type that agree are believed: their image may reserve much.
    let mut doubtful: BTreeMap<_, Vec<NodeReport<'_>>> = BTreeMap::new();
    for_each_report(desired, observed, &specs, |report| {
        if report.is_plausible(catalog) {
            report.add_to(&mut measured);
        } else {
            let key = (report.instance_type, report.settings.clone());
            doubtful.entry(key).or_default().push(report.clone());
        }
    });
    for ((instance_type, settings), reports) in doubtful {
        if measured.nodes(instance_type, &settings) == 0 && do_agree(&reports) {
            for report in &reports {
                report.add_to(&mut measured);
            }
        }
    }
    let file = NodeName::from(LEARNED_FILE);
    let mut unseen = Vec::new();
    for known in still_declared(desired, &specs) {
        let Some((pool, class, _)) = specs.get(known.pool.as_str()) else { continue };
        let settings = NodeSettings::new(pool, class);
        if measured.nodes(&known.instance_type, &settings) == 0 {
            unseen.push((known, settings));
        }
    }
    for (known, settings) in unseen {
        let LearnedNode { instance_type, capacity, allocatable, .. } = known;
        measured.add(instance_type, settings, &file, capacity, allocatable);
    }
    measured
}

/// Returns the stored reports of specifications that are still declared.
fn still_declared<'d>(
    desired: &'d Desired,
    specs: &'d DeclaredSpecs<'d>,
) -> impl Iterator<Item = &'d LearnedNode> {
    desired.learned_nodes.iter().filter(|known| {
        specs.get(known.pool.as_str()).is_some_and(|(.., digest)| *digest == known.spec_digest)
    })
}

/// Resources reported by one node.
#[derive(Clone)]
struct NodeReport<'a> {
    pool: &'a str,
    instance_type: &'a InstanceTypeName,
    settings: NodeSettings,
    node: &'a NodeName,
    capacity: &'a Resources,
    allocatable: &'a Resources,
    /// True for a member of an external group.
    is_external: bool,
}

/// Largest deviation of a report from the formulas, in percent of the capacity by the formulas. Known
/// deviations are below ten percent.
const LESS_PERCENT: i64 = 25;
pub(super) const MORE_PERCENT: i64 = 10;

/// Returns true if CPU, memory and pods of a node are near the formulas.
pub(super) fn is_near_formulas(reported: &Resources, model: &Resources, size: &Resources) -> bool {
    let is_near = |reported: i64, model: i64, size: i64| {
        let less = size.saturating_mul(LESS_PERCENT) / 100;
        let more = size.saturating_mul(MORE_PERCENT) / 100;
        (model.saturating_sub(less)..=model.saturating_add(more)).contains(&reported)
    };
    is_near(reported.cpu.0, model.cpu.0, size.cpu.0)
        && is_near(reported.memory.0, model.memory.0, size.memory.0)
        // A kubelet may declare more pods than network interfaces permit, and somewhat fewer.
        && reported.pods.saturating_mul(2) >= model.pods
}

/// Returns true if these reports of one type are alike.
fn do_agree(reports: &[NodeReport<'_>]) -> bool {
    let Some((first, others)) = reports.split_first().filter(|(_, others)| !others.is_empty())
    else {
        return false;
    };
    others.iter().all(|other| {
        is_near_formulas(other.capacity, first.capacity, first.capacity)
            && is_near_formulas(other.allocatable, first.allocatable, first.capacity)
            && is_near_formulas(first.allocatable, other.allocatable, other.capacity)
    })
}

impl NodeReport<'_> {
    fn is_plausible(&self, catalog: &Catalog) -> bool {
        let Some(kind) = catalog.types.get(self.instance_type) else { return true };
        let model = allocation(kind, &self.settings);
        is_near_formulas(self.capacity, &model.capacity, &model.capacity)
            // The settings of external groups are unknown.
            && (self.is_external
                || is_near_formulas(self.allocatable, &model.allocatable, &model.capacity))
    }

    fn add_to(&self, measured: &mut MeasuredNodes) {
        let Self { instance_type, settings, node, capacity, allocatable, .. } = self;
        measured.add(instance_type, settings.clone(), node, capacity, allocatable);
    }
}

/// Calls `take` with each node report that applies to other nodes.
fn for_each_report<'a>(
    desired: &'a Desired,
    observed: &'a Observed,
    specs: &DeclaredSpecs<'a>,
    mut take: impl FnMut(&NodeReport<'a>),
) {
    let groups = external_members(desired, observed);
    for node in observed.nodes.values() {
        let instance = node.instance.as_ref().and_then(|id| observed.instances.get(id));
        let Some(instance) = instance.filter(|instance| instance.is_active()) else { continue };
        let name = match groups.get(&instance.id) {
            Some(name) => Some(*name),
            None if instance.is_managed_by(&observed.cluster.name) => {
                instance.tags.get(tag::POOL).map(String::as_str)
            }
            None => None,
        };
        let found = name.and_then(|name| specs.get_key_value(name));
        let Some((name, (pool, class, digest))) = found.map(|(name, spec)| (*name, spec)) else {
            continue;
        };
        // Members of Auto Scaling groups carry no digest; the smallest report of the members
        // counts.
        let of_group = groups.contains_key(&instance.id);
        let as_declared = of_group || instance.tags.get(tag::SPEC) == Some(digest);
        if as_declared && is_initialized(node, pool) {
            take(&NodeReport {
                pool: name,
                instance_type: &instance.instance_type,
                settings: NodeSettings::new(pool, class),
                node: &node.name,
                capacity: &node.capacity,
                allocatable: &node.allocatable,
                is_external: of_group,
            });
        }
    }
}

/// Returns the pool of each member of an external group. Its launch settings are unknown, so
/// reports are the only source.
fn external_members<'a>(
    desired: &'a Desired,
    observed: &'a Observed,
) -> BTreeMap<&'a InstanceId, &'a str> {
    let elsewhere = desired.node_groups.values().filter_map(|group| match &group.kind {
        GroupKind::External(live) => Some((live, group.name.as_str())),
        GroupKind::Managed | GroupKind::Unmanaged => None,
    });
    let pools: BTreeMap<&GroupName, &str> = elsewhere.collect();
    let instances = observed.instances.values();
    let of = |i: &'a Instance| Some((&i.id, *pools.get(&i.group.as_ref()?.name)?));
    instances.filter_map(of).collect()
}

fn is_initialized(node: &Node, pool: &Pool) -> bool {
    let starts = |taint: &Taint| taint.is_ephemeral() || pool.startup_taints.contains(taint);
    node.ready && !node.taints.iter().any(starts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use crate::model::units::Bytes;
    use crate::testing::Scenario;
    use crate::testing::pods::no_schedule;

    /// Returns the memory of an m5.large in MiB once one runs in a world that `change` altered.
    fn learned(change: impl FnOnce(&mut Scenario)) -> i64 {
        let mut scenario = Scenario::new(&["m5.large"], 500, 1);
        scenario.scale(1);
        let solution = scenario.solve();
        scenario.carry_out(&solution);
        let node = scenario.node();
        node.allocatable.memory = Bytes::mib(7000);
        change(&mut scenario);
        let Scenario { desired, observed, catalog, .. } = scenario;
        let measured = measured_resources(&desired, &observed, &catalog);
        let catalog = Catalog { measured, ..catalog };
        let pool = desired.pools.values().next().expect("one pool");
        let class = desired.node_classes.values().next().expect("one class");
        let kind = catalog.get(&"m5.large".into()).expect("offered");
        catalog.allocation(kind, &NodeSettings::new(pool, class)).allocatable.memory.0 >> 20
    }

    #[test]
    fn stored_reports_apply_without_nodes_of_that_specification() {
        let mut scenario = Scenario::new(&["m5.large"], 500, 1);
        scenario.scale(1);
        let solution = scenario.solve();
        scenario.carry_out(&solution);
        scenario.node().allocatable.memory = Bytes::mib(7000);
        scenario.node().allocatable.extended.insert("example.com/dongle".into(), 1);
        let memory = |scenario: &Scenario| {
            let measured =
                measured_resources(&scenario.desired, &scenario.observed, &scenario.catalog);
            let catalog = Catalog { measured, ..scenario.catalog.clone() };
            let pool = scenario.desired.pools.values().next().expect("one pool");
            let class = scenario.desired.node_classes.values().next().expect("one class");
            let kind = catalog.get(&"m5.large".into()).expect("offered");
            let offers = catalog.allocation(kind, &NodeSettings::new(pool, class)).allocatable;
            (offers.memory.0 >> 20, offers.extended.len())
        };
        let report = memory(&scenario);
        assert_eq!(report.0, 7000);
        scenario.desired.learned_nodes = learned_nodes(&scenario.desired, &scenario.observed);
        // Learning is idempotent.
        assert_eq!(
            learned_nodes(&scenario.desired, &scenario.observed),
            scenario.desired.learned_nodes
        );
        // A smaller report replaces a larger one.
        scenario.node().allocatable.memory = Bytes::mib(6990);
        assert_eq!(
            learned_nodes(&scenario.desired, &scenario.observed)[0].allocatable.memory,
            Bytes::mib(6990)
        );
        // A stored report does not hide a device plugin that is newer.
        scenario.node().allocatable.extended.insert("example.com/other".into(), 1);
        assert_eq!(memory(&scenario).1, report.1 + 1);
        scenario.observed.nodes.clear();
        assert_eq!(memory(&scenario), report);
        assert_eq!(
            learned_nodes(&scenario.desired, &scenario.observed),
            scenario.desired.learned_nodes,
            "the stored report stays"
        );
        let class = scenario.node_class();
        class.spec_digests = BTreeMap::from([("userData".to_owned(), "changed".into())]).into();
        assert_eq!(memory(&scenario).0, 6903, "another image, other user data");
        assert_eq!(learned_nodes(&scenario.desired, &scenario.observed), []);
    }

    #[test]
    fn only_initialized_managed_nodes_as_declared_are_learned_from() {
        assert_eq!(learned(|_| ()), 7000);
        assert_eq!(learned(|s| s.node().ready = false), 6903, "it is not Ready");
        assert_eq!(learned(|s| s.node().allocatable.pods = 2), 6903, "two pods");
        for lie in [200, 6903 - 2048, 6903 + 900] {
            assert_eq!(learned(|s| s.node().allocatable.memory = Bytes::mib(lie)), 6903, "{lie}");
        }
        assert_eq!(
            learned(|s| s.node().taints.push(no_schedule("team", ""))),
            7000,
            "taints of its pool stay"
        );
        for key in ["node.cloudprovider.kubernetes.io/uninitialized", "readiness.k8s.io/network"] {
            assert_eq!(learned(|s| s.node().taints.push(no_schedule(key, ""))), 6903, "{key}");
        }
        let starting = |scenario: &mut Scenario| {
            scenario.pool().startup_taints.push(no_schedule("cilium", ""));
            scenario.node().taints.push(no_schedule("cilium", ""));
            let Scenario { desired, observed, .. } = scenario;
            let pool = desired.pools.values().next().expect("one pool");
            let class = desired.node_classes.values().next().expect("one class");
            let instance = observed.instances.values_mut().next().expect("launched");
            instance.tags.insert(tag::SPEC.to_owned(), drift::spec_digest(pool, class));
        };
        assert_eq!(learned(starting), 6903, "its agents are not up");
        for (rule, tag, value) in [
            ("it is of another cluster", tag::CLUSTER, "another"),
            ("its pool is not declared", tag::POOL, "another"),
            ("it was launched with another specification", tag::SPEC, "v1:00"),
        ] {
            let change = |scenario: &mut Scenario| {
                let instance = scenario.instance();
                instance.tags.insert(tag.to_owned(), value.to_owned());
            };
            assert_eq!(learned(change), 6903, "{rule}");
        }
        let changed = |scenario: &mut Scenario| {
            let class = scenario.node_class();
            class.spec_digests = BTreeMap::from([("userData".to_owned(), "changed".into())]).into();
        };
        assert_eq!(learned(changed), 6903, "another image, other user data");
    }
}
