//! Learns the resources of future nodes from the reports of running nodes.
//!
//! Only managed nodes count whose tag shows the declared specification: the settings of other nodes
//! are unknown. Every member of an external group counts, for that group alone. A starting node
//! counts later: its kubelet reports resources before device plugins start.
//!
//! A report far from the formulas does not count: one broken or hostile kubelet would change the size of
//! its type for every node to come. Several nodes that agree may lower the size, and never raise it.
//!
//! Reports of former nodes that are stored in the repository count like one running node.

use std::collections::BTreeMap;

use super::drift;
use crate::catalog::{AllocationStep, Catalog, Formula, MeasuredNodes, NodeSettings, allocation};
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
    // Several nodes of one type that agree on less are believed: their image may reserve much.
    let mut doubtful: BTreeMap<_, Vec<NodeReport<'_>>> = BTreeMap::new();
    for_each_report(desired, observed, &specs, |report| {
        if report.is_plausible(catalog) {
            report.add_to(&mut measured);
        } else if !report.claims_too_much(catalog) {
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
    for report in stored_reports(desired, &specs, &file) {
        if measured.nodes(report.instance_type, &report.settings) == 0
            && report.is_plausible(catalog)
        {
            unseen.push(report);
        }
    }
    for report in unseen {
        report.add_to(&mut measured);
    }
    measured
}

/// Stored reports of declared specifications, by their effect.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StoredReports<'d> {
    /// Reports that change the size of a type.
    pub counted: Vec<&'d LearnedNode>,
    /// Reports that do not count, because they are far from the formulas.
    pub implausible: Vec<&'d LearnedNode>,
}

/// Returns the stored reports that have an effect on `catalog`, which has the measurements of the
/// plan, and those that are not believed.
pub fn stored_reports_in_use<'d>(desired: &'d Desired, catalog: &Catalog) -> StoredReports<'d> {
    let mut found = StoredReports::default();
    if desired.learned_nodes.is_empty() {
        return found;
    }
    let specs = declared_specs(desired);
    let file = NodeName::from(LEARNED_FILE);
    for known in still_declared(desired, &specs) {
        let Some(kind) = catalog.types.get(&known.instance_type) else { continue };
        let Some(report) = stored_report(desired, &specs, known, &file) else { continue };
        let is_of_file = |step: &AllocationStep| {
            let formula = &step.formula;
            matches!(formula, Formula::Measured { node, .. } if *node == file)
        };
        let model = allocation(kind, &report.settings);
        if !report.is_plausible(catalog) {
            found.implausible.push(known);
        } else if model.allocatable != known.allocatable
            && catalog.explain(kind, &report.settings).iter().any(is_of_file)
        {
            found.counted.push(known);
        }
    }
    found
}

/// Returns the stored reports of specifications that are still declared, as reports of `file`.
fn stored_reports<'a>(
    desired: &'a Desired,
    specs: &'a DeclaredSpecs<'a>,
    file: &'a NodeName,
) -> impl Iterator<Item = NodeReport<'a>> {
    still_declared(desired, specs)
        .filter_map(move |known| stored_report(desired, specs, known, file))
}

fn stored_report<'a>(
    desired: &Desired,
    specs: &DeclaredSpecs<'_>,
    known: &'a LearnedNode,
    file: &'a NodeName,
) -> Option<NodeReport<'a>> {
    let (pool, class, _) = specs.get(known.pool.as_str())?;
    let group = desired.node_groups.get(&known.pool);
    Some(NodeReport {
        pool: known.pool.as_str(),
        instance_type: &known.instance_type,
        settings: NodeSettings::new(pool, class),
        node: file,
        capacity: &known.capacity,
        allocatable: &known.allocatable,
        is_external: group.is_some_and(|group| matches!(group.kind, GroupKind::External(_))),
    })
}

/// Returns the stored reports of specifications that are still declared.
fn still_declared<'d>(
    desired: &'d Desired,
    specs: &DeclaredSpecs<'_>,
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
/// Most pods of a report where the formulas have fewer. Bootstrap scripts of EKS allow 250 at most.
const PODS_MAX: i64 = 256;
/// Prefix of resources of network interfaces, which are not hardware of the type.
const NETWORK_RESOURCES: &str = "vpc.amazonaws.com/";

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

/// Returns true if CPU, memory or pods are above what the formulas may understate.
fn is_above_formulas(reported: &Resources, model: &Resources, size: &Resources) -> bool {
    let is_above = |reported: i64, model: i64, size: i64| {
        reported > model.saturating_add(size.saturating_mul(MORE_PERCENT) / 100)
    };
    is_above(reported.cpu.0, model.cpu.0, size.cpu.0)
        || is_above(reported.memory.0, model.memory.0, size.memory.0)
        || reported.pods > model.pods.max(PODS_MAX)
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
        !self.claims_too_much(catalog)
            && is_near_formulas(self.capacity, &model.capacity, &model.capacity)
            // The settings of external groups are unknown.
            && (self.is_external
                || is_near_formulas(self.allocatable, &model.allocatable, &model.capacity))
    }

    /// Returns true if the node reports more than its type has. No agreement makes this true.
    fn claims_too_much(&self, catalog: &Catalog) -> bool {
        let Some(kind) = catalog.types.get(self.instance_type) else { return false };
        let model = allocation(kind, &self.settings);
        let most = if self.is_external { &model.capacity } else { &model.allocatable };
        let reported = self.capacity.extended.iter().chain(&self.allocatable.extended);
        let mut devices = reported.filter(|(name, amount)| {
            **amount > 0
                && !kind.extended.contains_key(*name)
                && !name.as_str().starts_with(NETWORK_RESOURCES)
        });
        is_above_formulas(self.capacity, &model.capacity, &model.capacity)
            || is_above_formulas(self.allocatable, most, &model.capacity)
            // Hardware of other types, such as GPUs.
            || devices.any(|(name, _)| {
                let mut kinds = catalog.types.values();
                kinds.any(|kind| kind.has_accelerator && kind.extended.contains_key(name))
            })
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

    /// Returns the catalog with the reports of the nodes.
    fn measured_catalog(scenario: &Scenario) -> Catalog {
        let Scenario { desired, observed, catalog, .. } = scenario;
        let measured = measured_resources(desired, observed, catalog);
        Catalog { measured, ..catalog.clone() }
    }

    /// Returns the allocatable resources of a new m5.large.
    fn new_node(scenario: &Scenario) -> Resources {
        let catalog = measured_catalog(scenario);
        let pool = scenario.desired.pools.values().next().expect("one pool");
        let class = scenario.desired.node_classes.values().next().expect("one class");
        let kind = catalog.get(&"m5.large".into()).expect("offered");
        catalog.allocation(kind, &NodeSettings::new(pool, class)).allocatable
    }

    /// Returns the memory of an m5.large in MiB once one runs in a world that `change` altered.
    fn learned(change: impl FnOnce(&mut Scenario)) -> i64 {
        let mut scenario = Scenario::new(&["m5.large"], 500, 1);
        scenario.scale(1);
        let solution = scenario.solve();
        scenario.carry_out(&solution);
        let node = scenario.node();
        node.allocatable.memory = Bytes::mib(7000);
        change(&mut scenario);
        new_node(&scenario).memory.0 >> 20
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
            let offers = new_node(scenario);
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

    /// Returns CPU in millicores and memory in MiB of an m5.large whose stored report `change` altered,
    /// with the number of reports that count and of those that are not believed.
    fn stored(change: impl FnOnce(&mut LearnedNode)) -> (i64, i64, usize, usize) {
        let mut scenario = Scenario::new(&["m5.large"], 500, 1);
        scenario.scale(1);
        let solution = scenario.solve();
        scenario.carry_out(&solution);
        scenario.node().allocatable.memory = Bytes::mib(7000);
        scenario.desired.learned_nodes = learned_nodes(&scenario.desired, &scenario.observed);
        change(scenario.desired.learned_nodes.first_mut().expect("one is stored"));
        scenario.observed.nodes.clear();
        let offers = new_node(&scenario);
        let used = stored_reports_in_use(&scenario.desired, &measured_catalog(&scenario));
        (offers.cpu.0, offers.memory.0 >> 20, used.counted.len(), used.implausible.len())
    }

    #[test]
    fn stored_report_far_from_the_formulas_does_not_count() {
        assert_eq!(stored(|_| ()), (1930, 7000, 1, 0));
        let formulas = (1930, 6903, 0, 1);
        let cpu = |known: &mut LearnedNode| {
            (known.capacity.cpu.0, known.allocatable.cpu.0) = (64_000, 64_000);
        };
        assert_eq!(stored(cpu), formulas, "64 CPU");
        let less = |known: &mut LearnedNode| known.allocatable.memory = Bytes::mib(200);
        assert_eq!(stored(less), formulas, "200 MiB");
        assert_eq!(stored(|known| known.allocatable.pods = 1_000), formulas, "1,000 pods");
        let gpus = |known: &mut LearnedNode| {
            known.capacity.extended.insert("nvidia.com/gpu".into(), 8);
            known.allocatable.extended.insert("nvidia.com/gpu".into(), 8);
        };
        let hardware = Catalog::load(&"us-east-1".into(), &[]).expect("known region");
        let has_gpu = |kind: &crate::catalog::InstanceType| {
            kind.has_accelerator && kind.extended.contains_key("nvidia.com/gpu")
        };
        assert!(hardware.types.values().any(has_gpu));
        assert_eq!(stored(gpus), formulas, "GPUs of another type");
    }

    #[test]
    fn reports_that_agree_lower_a_size_and_never_raise_it() {
        let agreed = |memory: i64| {
            let mut scenario = Scenario::new(&["m5.large"], 500, 1);
            scenario.scale(8);
            let solution = scenario.solve();
            scenario.carry_out(&solution);
            assert!(scenario.observed.nodes.len() >= 2);
            for node in scenario.observed.nodes.values_mut() {
                node.allocatable.memory = Bytes::mib(memory);
                node.capacity.memory = node.capacity.memory.max(Bytes::mib(memory));
            }
            new_node(&scenario).memory.0 >> 20
        };
        assert_eq!(agreed(4_000), 4_000, "an image that reserves much");
        assert_eq!(agreed(64_000), 6_903, "two kubelets that lie alike");
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
