//! Fleets of few nodes, all of them, where a plan leaves pods out.

use std::collections::BTreeMap;

use fleetwright::catalog::{Catalog, NodeSettings, Offering, allocation};
use fleetwright::ids::{Labels, PoolName};
use fleetwright::manifest::{Desired, Pool};
use fleetwright::requirement::label;
use fleetwright::schedule::ScheduleNode;
use fleetwright::solve::pool_requirements;
use fleetwright::units::Resources;

use super::stage::Stage;

/// Most new nodes of a fleet.
const NODES_MAX: usize = 6;

/// A node that may be had.
#[derive(Debug, Clone)]
struct Offered {
    node: ScheduleNode,
    pool: PoolName,
    capacity: Resources,
}

impl Stage {
    /// Where pods are left out, no fleet holds everything in whatever order pods come.
    pub(super) fn leaves_nothing_that_some_fleet_holds(&self) -> Result<(), String> {
        let left = self.left();
        let known = (0..left.len()).all(|group| left[group] == 0 || self.is_supported(group));
        if left.iter().all(|count| *count == 0) || !known {
            return Ok(());
        }
        match fleet(self) {
            None => Ok(()),
            Some(fleet) => Err(self.story(&format!("everything runs on {}", fleet.join(", ")))),
        }
    }

    /// Where pods are left out, neither the planned fleet nor that with one more node holds one of
    /// them beside the others, in whatever order pods come.
    pub(super) fn leaves_nothing_that_one_more_node_holds(&self) -> Result<(), String> {
        let left = self.left();
        let waiting = (0..left.len()).filter(|group| left[*group] > 0 && self.is_supported(*group));
        let waiting: Vec<usize> = waiting.collect();
        if waiting.is_empty() {
            return Ok(());
        }
        let affordable = self.affordable();
        for group in waiting {
            let mut coming = self.coming();
            coming[group] += 1;
            for more in std::iter::once(None).chain(affordable.iter().map(Some)) {
                let scene = |seed| self.planned(seed, more.map(|offered| &offered.node));
                if self.always_places(scene, &coming) {
                    let name = &self.demand.groups[group].workload.name;
                    let on = more.map_or("the fleet", |offered| offered.node.name.as_str());
                    return Err(self.story(&format!("{name} is left out, and has a place on {on}")));
                }
            }
        }
        Ok(())
    }

    /// Returns what may be launched beside the planned nodes.
    fn affordable(&self) -> Vec<Offered> {
        let mut all = offered(&self.desired, &self.made.catalog);
        all.retain(|offered| {
            // Nodes that go count until they are gone, which is after the launches.
            let there = self.given.nodes_of(offered.pool.as_str());
            let new = self.seats.iter().filter(|seat| seat.is_new);
            let new = new.filter(|seat| seat.pool.as_ref() == Some(&offered.pool));
            let there = there.into_iter().chain(new.map(|seat| &seat.capacity));
            self.allows(&offered.pool, there, [&offered.capacity])
        });
        all
    }

    /// Returns whether the limits of `pool` allow nodes of these capacities.
    fn allows<'a>(
        &self,
        pool: &PoolName,
        there: impl IntoIterator<Item = &'a Resources>,
        more: impl IntoIterator<Item = &'a Resources>,
    ) -> bool {
        let limits = &self.desired.pools[pool].limits;
        let all: Vec<&Resources> = there.into_iter().chain(more).collect();
        let nodes = u64::try_from(all.len()).unwrap_or(u64::MAX);
        let cpu: i64 = all.iter().map(|capacity| capacity.cpu.0).sum();
        let most = limits.resources.get("cpu").copied().unwrap_or(i64::MAX);
        limits.nodes.is_none_or(|most| nodes <= u64::from(most)) && cpu <= most
    }
}

/// Returns the new nodes of a fleet on which everything runs: what runs stays where it is, new nodes
/// are within the limits, and the scheduler places what is pending in whatever order it comes. A
/// fleet that only some order fills is none: nobody tells the scheduler the order.
fn fleet(stage: &Stage) -> Option<Vec<String>> {
    let pending: Vec<u32> = stage
        .demand
        .groups
        .iter()
        .map(|group| group.counts.planned.saturating_sub(group.running.values().sum()))
        .collect();
    let pods: usize =
        pending.iter().map(|count| usize::try_from(*count).unwrap_or(usize::MAX)).sum();
    let offered = offered(&stage.desired, &stage.made.catalog);
    // An empty node beyond one for each pod can only serve to make one more domain.
    let most = NODES_MAX.min(pods + 1);
    for size in 0..=most {
        let mut counts = vec![0; offered.len()];
        let found = each_fleet(&mut counts, 0, size, &mut |counts| {
            let counted = || offered.iter().zip(counts.iter().copied());
            is_within_limits(stage, counted()) && holds(stage, counted(), &pending)
        });
        if found {
            let name = |(offered, count): (&Offered, &usize)| {
                (*count > 0).then(|| format!("{count} x {}", offered.node.name))
            };
            let names: Vec<String> = offered.iter().zip(&counts).filter_map(name).collect();
            return Some(if names.is_empty() { vec!["what is there".to_owned()] } else { names });
        }
    }
    None
}

/// Tries every way to take `size` nodes of the kinds from `first` on; stops with the first that
/// `try_it` accepts, which `counts` then holds.
fn each_fleet(
    counts: &mut Vec<usize>,
    first: usize,
    size: usize,
    try_it: &mut impl FnMut(&[usize]) -> bool,
) -> bool {
    if size == 0 {
        return try_it(counts);
    }
    for kind in first..counts.len() {
        counts[kind] += 1;
        if each_fleet(counts, kind, size - 1, try_it) {
            return true;
        }
        counts[kind] -= 1;
    }
    false
}

fn is_within_limits<'a>(stage: &Stage, counts: impl Iterator<Item = (&'a Offered, usize)>) -> bool {
    let mut new: BTreeMap<&PoolName, Vec<&Resources>> = BTreeMap::new();
    for (offered, count) in counts {
        new.entry(&offered.pool).or_default().extend(std::iter::repeat_n(&offered.capacity, count));
    }
    new.into_iter().filter(|(_, more)| !more.is_empty()).all(|(pool, more)| {
        let there = stage.given.nodes_of(pool.as_str());
        stage.allows(pool, there, more)
    })
}

/// Returns whether what runs and so many more nodes of each kind hold the pending pods, in whatever
/// order they come.
fn holds<'a>(
    stage: &Stage,
    counts: impl Iterator<Item = (&'a Offered, usize)>,
    pending: &[u32],
) -> bool {
    let mut nodes = stage.given.schedule_nodes();
    for (offered, count) in counts {
        nodes.extend((0..count).map(|number| numbered(&offered.node, number)));
    }
    let scene = |seed| {
        let mut scene = stage.scene(nodes.clone(), seed);
        for node in scene.nodes.clone() {
            let name = scene.scheduler.name(node).clone();
            let here =
                stage.demand.groups.iter().map(|g| g.running.get(&name).copied().unwrap_or(0));
            scene.bind(&here.collect::<Vec<u32>>(), node);
        }
        scene
    };
    stage.always_places(scene, pending)
}

fn numbered(node: &ScheduleNode, number: usize) -> ScheduleNode {
    let name = format!("{}/{number}", node.name);
    let mut node = node.clone();
    let hostname = label("kubernetes.io/hostname", &name);
    node.labels.extend([hostname]);
    node.name = name.into();
    node
}

/// Returns every node that some pool may launch.
fn offered(desired: &Desired, catalog: &Catalog) -> Vec<Offered> {
    let mut all = Vec::new();
    for pool in desired.pools.values() {
        let class = pool.node_class.as_ref().and_then(|name| desired.node_classes.get(name));
        let Some(class) = class else { continue };
        let wanted = pool_requirements(pool);
        for kind in catalog.types.values() {
            let amounts = allocation(kind, &NodeSettings::of(pool, class));
            for offering in kind.offerings.iter().filter(|offering| offering.price.is_some()) {
                let labels = labels(pool, &kind.labels, offering, catalog);
                if wanted.iter().any(|(key, set)| !set.contains(labels.get(key))) {
                    continue;
                }
                let Offering { zone, capacity_type, .. } = offering;
                let name = format!("{}/{}/{zone}/{capacity_type}", pool.name, kind.name);
                let node = ScheduleNode {
                    name: name.as_str().into(),
                    labels: labels
                        .into_iter()
                        .chain([label("kubernetes.io/hostname", &name)])
                        .collect(),
                    taints: pool.taints.clone(),
                    allocatable: amounts.allocatable.clone(),
                    unschedulable: false,
                };
                let capacity = amounts.capacity.clone();
                all.push(Offered { node, pool: pool.name.clone(), capacity });
            }
        }
    }
    all
}

fn labels(pool: &Pool, of_type: &Labels, offering: &Offering, catalog: &Catalog) -> Labels {
    let mut labels = pool.labels.clone();
    labels.extend(of_type.iter().map(|(key, value)| (key.clone(), value.clone())));
    labels.extend([
        label("karpenter.sh/nodepool", pool.name.as_str()),
        label("karpenter.sh/capacity-type", offering.capacity_type.as_str()),
        label("topology.kubernetes.io/region", catalog.region.as_str()),
        label("topology.kubernetes.io/zone", offering.zone.as_str()),
    ]);
    labels
}
