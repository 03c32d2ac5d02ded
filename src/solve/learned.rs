//! What nodes of ours that run tell of the nodes that may be launched.
//!
//! Only nodes of ours count, and only those whose tag says that they were launched with the very
//! specification that is declared: what settings another's node was started with, nobody knows. Of a
//! group that was made elsewhere every member counts, for that group alone. A node that is still coming up counts later: its
//! kubelet reports amounts before its plugins have. What such nodes reported that ran once, and are kept in the repository,
//! counts as if one of them ran.

use std::collections::BTreeMap;

use super::drift;
use crate::catalog::{Measured, NodeSettings};
use crate::fleet::{Instance, Node, Observed, tag};
use crate::ids::{GroupName, InstanceId, InstanceTypeName, NodeName};
use crate::manifest::{Desired, GroupKind, LEARNED_FILE, LearnedNode, NodeClass, Pool};
use crate::pod::Taint;
use crate::units::Resources;

/// Prefixes and keys of taints that a node loses once it is initialized.
/// Source: Karpenter, `pkg/scheduling/taints.go`.
const EPHEMERAL: [&str; 5] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.cloudprovider.kubernetes.io/uninitialized",
    "karpenter.sh/unregistered",
    "readiness.k8s.io/",
];

/// Returns whether a taint is one that every node has while it comes up.
pub(super) fn is_ephemeral(taint: &Taint) -> bool {
    let key = taint.key.as_str();
    EPHEMERAL.iter().any(|known| key == *known || known.ends_with('/') && key.starts_with(known))
}

/// Pools with their node classes, and the digest of what their nodes are launched with, by name.
type Specs<'d> = BTreeMap<&'d str, (&'d Pool, &'d NodeClass, String)>;

fn specs(desired: &Desired) -> Specs<'_> {
    let mut specs = Specs::new();
    for pool in desired.pools.values() {
        let class = pool.node_class.as_ref().and_then(|name| desired.node_classes.get(name));
        if let Some(class) = class {
            let digest = drift::spec_digest(pool, class);
            specs.insert(pool.name.as_str(), (pool, class, digest));
        }
    }
    specs
}

/// Returns what is to be kept in the repository of what nodes report, and of what is kept there and still declared.
#[must_use]
pub fn learn(desired: &Desired, observed: &Observed) -> Vec<LearnedNode> {
    let specs = specs(desired);
    let mut by_pool: BTreeMap<&str, Measured> = BTreeMap::new();
    each_running((desired, observed), &specs, |seen| {
        let Some((name, _)) = specs.get_key_value(seen.pool) else { return };
        seen.add_to(by_pool.entry(name).or_default());
    });
    let mut learned: BTreeMap<_, LearnedNode> = BTreeMap::new();
    for (name, measured) in &by_pool {
        let Some((pool, class, digest)) = specs.get(name) else { continue };
        let settings = NodeSettings::of(pool, class);
        for (instance_type, capacity, allocatable) in measured.of(&settings) {
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
    for known in kept(desired, &specs) {
        learned
            .entry((known.pool.clone(), known.instance_type.clone()))
            .and_modify(|seen| {
                seen.capacity = least(&seen.capacity, &known.capacity);
                seen.allocatable = least(&seen.allocatable, &known.allocatable);
            })
            .or_insert_with(|| known.clone());
    }
    learned.into_values().collect()
}

/// Returns the smaller amounts; of extended resources those of `seen`, since a plugin may have come since.
fn least(seen: &Resources, known: &Resources) -> Resources {
    Resources {
        cpu: seen.cpu.min(known.cpu),
        memory: seen.memory.min(known.memory),
        pods: seen.pods.min(known.pods),
        ephemeral_storage: seen.ephemeral_storage.min(known.ephemeral_storage),
        ..seen.clone()
    }
}

/// Returns what the nodes of `observed` report that were launched as `desired` declares; of what none of them is like, what
/// others are known to have reported.
#[must_use]
pub fn measure(desired: &Desired, observed: &Observed) -> Measured {
    let specs = specs(desired);
    let mut measured = Measured::default();
    each_running((desired, observed), &specs, |seen| seen.add_to(&mut measured));
    let file = NodeName::from(LEARNED_FILE);
    let mut unseen = Vec::new();
    for known in kept(desired, &specs) {
        let Some((pool, class, _)) = specs.get(known.pool.as_str()) else { continue };
        let settings = NodeSettings::of(pool, class);
        if measured.nodes(&known.instance_type, &settings) == 0 {
            unseen.push((known, settings));
        }
    }
    for (known, settings) in unseen {
        let key = (&known.instance_type, settings);
        measured.add(key, &file, &known.capacity, &known.allocatable);
    }
    measured
}

/// Returns what is kept of specifications that are still declared.
fn kept<'d>(desired: &'d Desired, specs: &'d Specs<'d>) -> impl Iterator<Item = &'d LearnedNode> {
    desired.learned.iter().filter(|known| {
        specs.get(known.pool.as_str()).is_some_and(|(.., digest)| *digest == known.spec_digest)
    })
}

/// A node that reports.
struct Seen<'a> {
    pool: &'a str,
    key: (&'a InstanceTypeName, NodeSettings),
    node: &'a NodeName,
    capacity: &'a Resources,
    allocatable: &'a Resources,
}

impl Seen<'_> {
    fn add_to(&self, measured: &mut Measured) {
        measured.add(self.key.clone(), self.node, self.capacity, self.allocatable);
    }
}

/// Shows `take` each node that tells of others like it.
fn each_running(
    (desired, observed): (&Desired, &Observed),
    specs: &Specs<'_>,
    mut take: impl FnMut(&Seen<'_>),
) {
    let groups = members(desired, observed);
    for node in observed.nodes.values() {
        let instance = node.instance.as_ref().and_then(|id| observed.instances.get(id));
        let Some(instance) = instance.filter(|instance| instance.is_active()) else { continue };
        let name = match groups.get(&instance.id) {
            Some(name) => Some(*name),
            None if instance.is_ours(&observed.cluster.name) => {
                instance.tags.get(tag::POOL).map(String::as_str)
            }
            None => None,
        };
        let Some((name, (pool, class, digest))) = name.and_then(|name| specs.get_key_value(name))
        else {
            continue;
        };
        // What Auto Scaling made carries no digest: the least that its members report is what counts.
        let of_group = groups.contains_key(&instance.id);
        let as_declared = of_group || instance.tags.get(tag::SPEC) == Some(digest);
        if as_declared && is_initialized(node, pool) {
            let key = (&instance.instance_type, NodeSettings::of(pool, class));
            let (capacity, allocatable) = (&node.capacity, &node.allocatable);
            take(&Seen { pool: name, key, node: &node.name, capacity, allocatable });
        }
    }
}

/// Returns the pool of each member of a group that no file describes: what its nodes are started with
/// nobody says, so that what they report is all there is.
fn members<'a>(desired: &'a Desired, observed: &'a Observed) -> BTreeMap<&'a InstanceId, &'a str> {
    let elsewhere = desired.node_groups.values().filter_map(|group| match &group.kind {
        GroupKind::Elsewhere(live) => Some((live, group.name.as_str())),
        GroupKind::Managed | GroupKind::Unmanaged => None,
    });
    let pools: BTreeMap<&GroupName, &str> = elsewhere.collect();
    let instances = observed.instances.values();
    let of = |i: &'a Instance| Some((&i.id, *pools.get(&i.group.as_ref()?.name)?));
    instances.filter_map(of).collect()
}

fn is_initialized(node: &Node, pool: &Pool) -> bool {
    let starts = |taint: &Taint| is_ephemeral(taint) || pool.startup_taints.contains(taint);
    node.ready && !node.taints.iter().any(starts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use crate::pod::TaintEffect;
    use crate::story::Story;
    use crate::units::Bytes;

    /// What an m5.large offers once one runs in a world that `change` altered.
    fn learned(change: impl FnOnce(&mut Story)) -> i64 {
        let mut story = Story::new(&["m5.large"], 500, 1);
        story.scale(1);
        let solution = story.solve();
        story.carry_out(&solution);
        let node = story.observed.nodes.values_mut().next().expect("launched");
        node.allocatable.memory = Bytes::mib(7000);
        change(&mut story);
        let Story { desired, observed, catalog, .. } = story;
        let measured = measure(&desired, &observed);
        let catalog = Catalog { measured, ..catalog };
        let pool = desired.pools.values().next().expect("one pool");
        let class = desired.node_classes.values().next().expect("one class");
        let kind = catalog.get(&"m5.large".into()).expect("offered");
        catalog.allocation(kind, &NodeSettings::of(pool, class)).allocatable.memory.0 >> 20
    }

    #[test]
    fn what_nodes_reported_counts_when_none_runs_any_more_for_the_specification_they_had() {
        let mut story = Story::new(&["m5.large"], 500, 1);
        story.scale(1);
        let solution = story.solve();
        story.carry_out(&solution);
        node(&mut story).allocatable.memory = Bytes::mib(7000);
        node(&mut story).allocatable.extended.insert("example.com/dongle".into(), 1);
        let memory = |story: &Story| {
            let measured = measure(&story.desired, &story.observed);
            let catalog = Catalog { measured, ..story.catalog.clone() };
            let pool = story.desired.pools.values().next().expect("one pool");
            let class = story.desired.node_classes.values().next().expect("one class");
            let kind = catalog.get(&"m5.large".into()).expect("offered");
            let offers = catalog.allocation(kind, &NodeSettings::of(pool, class)).allocatable;
            (offers.memory.0 >> 20, offers.extended.len())
        };
        let seen = memory(&story);
        assert_eq!(seen.0, 7000);
        story.desired.learned = learn(&story.desired, &story.observed);
        // It is the same whether it is learned once or over and over.
        assert_eq!(learn(&story.desired, &story.observed), story.desired.learned);
        // One that reports less teaches that.
        node(&mut story).allocatable.memory = Bytes::mib(6990);
        assert_eq!(learn(&story.desired, &story.observed)[0].allocatable.memory, Bytes::mib(6990));
        // A plugin that came later is no less there for what is kept.
        node(&mut story).allocatable.extended.insert("example.com/other".into(), 1);
        assert_eq!(memory(&story).1, seen.1 + 1);
        story.observed.nodes.clear();
        assert_eq!(memory(&story), seen);
        assert_eq!(learn(&story.desired, &story.observed), story.desired.learned, "and it stays");
        let class = story.desired.node_classes.values_mut().next().expect("one class");
        class.spec_digests = BTreeMap::from([("userData".to_owned(), "changed".into())]).into();
        assert_eq!(memory(&story).0, 6903, "another image, other user data");
        assert_eq!(learn(&story.desired, &story.observed), []);
    }

    fn node(story: &mut Story) -> &mut Node {
        story.observed.nodes.values_mut().next().expect("launched")
    }

    fn taint(key: &str) -> Taint {
        Taint { key: key.into(), value: "".into(), effect: TaintEffect::NoSchedule }
    }

    #[test]
    fn nodes_of_ours_that_are_as_declared_and_up_teach_and_no_others() {
        assert_eq!(learned(|_| ()), 7000);
        assert_eq!(learned(|s| node(s).ready = false), 6903, "it is not Ready");
        assert_eq!(
            learned(|s| node(s).taints.push(taint("team"))),
            7000,
            "taints of its pool stay"
        );
        for key in ["node.cloudprovider.kubernetes.io/uninitialized", "readiness.k8s.io/network"] {
            assert_eq!(learned(|s| node(s).taints.push(taint(key))), 6903, "{key}");
        }
        let starting = |story: &mut Story| {
            let pool = story.desired.pools.values_mut().next().expect("one pool");
            pool.startup_taints.push(taint("cilium"));
            node(story).taints.push(taint("cilium"));
            let Story { desired, observed, .. } = story;
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
            let change = |story: &mut Story| {
                let instance = story.observed.instances.values_mut().next().expect("launched");
                instance.tags.insert(tag.to_owned(), value.to_owned());
            };
            assert_eq!(learned(change), 6903, "{rule}");
        }
        let changed = |story: &mut Story| {
            let class = story.desired.node_classes.values_mut().next().expect("one class");
            class.spec_digests = BTreeMap::from([("userData".to_owned(), "changed".into())]).into();
        };
        assert_eq!(learned(changed), 6903, "another image, other user data");
    }
}
