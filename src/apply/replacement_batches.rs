//! Splits the waves of a plan into batches: a few launches, and then the removals that need them.
//!
//! Each batch leaves the fleet valid, and no dearer than before. The batches depend on the plan
//! alone, so each run of a plan has the same. If removals do not finish, the planned places also
//! say which launches are needed nevertheless.

#[cfg(doc)]
#[doc = include_str!("../adr/0023-replacement-batches.md")]
pub mod adr_0023 {}

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use super::wave_plan::{LaunchWork, RetireWork, WaveWork, groups};
use crate::model::ids::{Address, WorkloadKey, ZoneName};
use crate::model::units::MicroUsd;
use crate::plan::Plan;
use crate::plan::wire::ExplainRow;

/// Number of nodes up to which small parts of replacements are joined to a batch. It is larger if
/// there were too many batches.
const BATCH_NODES: usize = 3;

/// Maximum number of batches of a plan. Each one takes minutes, and planner runs.
const BATCHES_MAX: usize = 10;

/// Number of pods by workload.
type Pods = BTreeMap<WorkloadKey, u32>;

static NO_PODS: Pods = Pods::new();

/// A launched or removed node of a replacement.
struct PlannedNode<'p> {
    address: &'p Address,
    hourly: MicroUsd,
    zone: Option<&'p ZoneName>,
    /// Planned pods of a launch, or running pods of a removed node.
    pods: &'p Pods,
}

/// Nodes to remove, and the launches that replace them.
#[derive(Default)]
struct Replacement<'p> {
    /// Launches of Auto Scaling groups. They precede all batches, because a group is raised once.
    raised: Vec<PlannedNode<'p>>,
    launches: Vec<PlannedNode<'p>>,
    removals: Vec<PlannedNode<'p>>,
}

/// Progress of an apply, by row.
pub(super) struct Progress<'a> {
    /// Launches with an instance.
    pub(super) launched: BTreeSet<&'a Address>,
    /// Launches whose instance no pod uses.
    pub(super) unused: BTreeSet<&'a Address>,
    /// Removals whose instance has ended.
    pub(super) removed: BTreeSet<&'a Address>,
}

/// Rows of a batch.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Batch<'p> {
    launches: Vec<&'p Address>,
    removals: Vec<&'p Address>,
}

/// Pods of each workload that still find planned places. A negative number of places is missing.
#[derive(Default)]
struct Places<'p>(BTreeMap<&'p WorkloadKey, i64>);

impl<'p> Places<'p> {
    fn add(&mut self, pods: &'p Pods) {
        for (workload, count) in pods {
            *self.0.entry(workload).or_insert(0) += i64::from(*count);
        }
    }

    fn remove(&mut self, pods: &'p Pods) {
        for (workload, count) in pods {
            *self.0.entry(workload).or_insert(0) -= i64::from(*count);
        }
    }

    /// Returns true if a node with places for these pods has some that are missing.
    fn lack(&self, pods: &Pods) -> bool {
        let lacks = |workload| self.0.get(workload).is_some_and(|places| *places < 0);
        pods.iter().any(|(workload, count)| *count > 0 && lacks(workload))
    }
}

/// Returns the waves of a plan in batches. Launches of no batch come with the first batch, and
/// removals of no batch last.
pub(super) fn in_batches<'p>(plan: &'p Plan, waves: Vec<WaveWork<'p>>) -> Vec<WaveWork<'p>> {
    let (launches, retires) = match <[WaveWork<'p>; 2]>::try_from(waves) {
        Ok([WaveWork::Launch(launches), WaveWork::Retire(retires)]) => (launches, retires),
        Ok(waves) => return waves.into(),
        Err(waves) => return waves,
    };
    let batches = batches(plan, &launches, &retires);
    if batches.len() < 2 {
        return vec![WaveWork::Launch(launches), WaveWork::Retire(retires)];
    }
    let (mut launched_in, mut removed_in) = (BTreeMap::new(), BTreeMap::new());
    for (index, batch) in batches.iter().enumerate() {
        launched_in.extend(batch.launches.iter().map(|address| (*address, index)));
        removed_in.extend(batch.removals.iter().map(|address| (*address, index)));
    }
    let mut steps: Vec<(Vec<LaunchWork<'p>>, Vec<RetireWork<'p>>)> = Vec::new();
    steps.resize_with(batches.len() + 1, Default::default);
    for work in launches {
        steps[launched_in.get(work.address).copied().unwrap_or(0)].0.push(work);
    }
    for work in retires {
        steps[removed_in.get(work.address).copied().unwrap_or(batches.len())].1.push(work);
    }
    let mut waves = Vec::new();
    for (launches, retires) in steps {
        waves.extend((!launches.is_empty()).then_some(WaveWork::Launch(launches)));
        waves.extend((!retires.is_empty()).then_some(WaveWork::Retire(retires)));
    }
    waves
}

/// Joins the batches of some waves to one: all their launches, and then all their removals.
pub(super) fn join(waves: &mut Vec<WaveWork<'_>>, range: RangeInclusive<usize>) {
    let (at, mut launches, mut retires) = (*range.start(), Vec::new(), Vec::new());
    for wave in waves.drain(range) {
        match wave {
            WaveWork::Launch(works) => launches.extend(works),
            WaveWork::Retire(works) => retires.extend(works),
        }
    }
    let joined = [WaveWork::Launch(launches), WaveWork::Retire(retires)];
    waves.splice(at..at, joined.into_iter().filter(|wave| wave.addresses().next().is_some()));
}

/// Returns the unused launches whose places the fleet needs although removals did not finish: for
/// new pods, and for pods of nodes that were removed.
pub(super) fn needed_launches<'w, 'p: 'w>(
    plan: &'p Plan,
    waves: &'w [WaveWork<'p>],
    progress: &Progress<'_>,
) -> BTreeSet<&'p Address> {
    let launches = waves.iter().flat_map(WaveWork::launches);
    let retires = waves.iter().flat_map(WaveWork::retires);
    let replacements = replacements(plan, launches, retires).into_values();
    replacements.flat_map(|replacement| replacement.needed_launches(progress)).collect()
}

/// Returns the batches of all replacements of a plan. With the removals of no batch, they are at
/// most [`BATCHES_MAX`].
fn batches<'p>(
    plan: &'p Plan,
    launches: &[LaunchWork<'p>],
    retires: &[RetireWork<'p>],
) -> Vec<Batch<'p>> {
    let replacements = replacements(plan, launches, retires).into_values();
    let parts: Vec<Batch<'p>> = replacements.flat_map(Replacement::parts).collect();
    let removals: usize = parts.iter().map(|part| part.removals.len()).sum();
    let most = BATCHES_MAX - usize::from(removals < retires.len());
    let mut size = BATCH_NODES;
    loop {
        let batches = joined(&parts, size);
        if batches.len() <= most {
            return batches;
        }
        size += 1;
    }
}

/// Joins consecutive parts up to `size` launches and `size` removals. A larger part is a batch.
fn joined<'p>(parts: &[Batch<'p>], size: usize) -> Vec<Batch<'p>> {
    let mut batches: Vec<Batch<'p>> = Vec::new();
    for part in parts {
        match batches.last_mut() {
            Some(last)
                if last.launches.len() + part.launches.len() <= size
                    && last.removals.len() + part.removals.len() <= size =>
            {
                last.launches.extend(&part.launches);
                last.removals.extend(&part.removals);
            }
            Some(_) | None => batches.push(part.clone()),
        }
    }
    batches
}

/// Returns the replacements of a plan by name. A removal without a group that its row does not
/// replace is in none.
fn replacements<'w, 'p: 'w>(
    plan: &'p Plan,
    launches: impl IntoIterator<Item = &'w LaunchWork<'p>> + Clone,
    retires: impl IntoIterator<Item = &'w RetireWork<'p>>,
) -> BTreeMap<&'p str, Replacement<'p>> {
    let groups = groups(plan);
    let explained: BTreeMap<&Address, &'p ExplainRow> =
        plan.capacity.explain.iter().map(|row| (&row.address, row)).collect();
    let name_of = |address: &'p Address| groups.get(address).copied().unwrap_or(address.as_str());
    let launched: BTreeSet<&Address> =
        launches.clone().into_iter().map(|work| work.address).collect();
    let mut replacements: BTreeMap<&'p str, Replacement<'p>> = BTreeMap::new();
    for work in retires {
        if work.group.is_none() && !launched.contains(work.address) {
            continue;
        }
        let row = explained.get(work.address);
        replacements.entry(name_of(work.address)).or_default().removals.push(PlannedNode {
            address: work.address,
            hourly: row.and_then(|row| row.hourly_before).unwrap_or_default(),
            zone: work.node.zone.as_ref(),
            pods: row.map_or(&NO_PODS, |row| &*row.pods_before),
        });
    }
    for work in launches {
        let Some(replacement) = replacements.get_mut(name_of(work.address)) else { continue };
        let row = explained.get(work.address);
        let node = PlannedNode {
            address: work.address,
            hourly: row.and_then(|row| row.hourly_after).unwrap_or_default(),
            zone: work.node.zone.as_ref(),
            pods: row.map_or(&NO_PODS, |row| &*row.pods),
        };
        match work.group {
            Some(_) => replacement.raised.push(node),
            None => replacement.launches.push(node),
        }
    }
    replacements
}

impl<'p> Replacement<'p> {
    /// Returns the smallest parts of the replacement that each leave the fleet valid and no dearer.
    /// Launches for new pods are in none.
    fn parts(mut self) -> Vec<Batch<'p>> {
        self.launches.sort_by_key(|node| (node.hourly, node.address));
        // The places of pods that are not counted are not known.
        self.removals
            .sort_by_key(|node| (node.pods.is_empty(), Reverse(node.hourly), node.address));
        let mut places = self.places();
        for node in &self.raised {
            places.add(node.pods);
        }
        while self.take_launch(&mut places, None, is_lacked).is_some() {}
        let launched: MicroUsd = self.launches.iter().map(|node| node.hourly).sum();
        let removed: MicroUsd = self.removals.iter().map(|node| node.hourly).sum();
        let dearest = (launched - removed).max(MicroUsd::ZERO);
        let (mut parts, mut part, mut difference) = (Vec::new(), Batch::default(), MicroUsd::ZERO);
        for removal in std::mem::take(&mut self.removals) {
            places.remove(removal.pods);
            let is_needed = |places: &Places<'p>, node: &PlannedNode<'p>| {
                node.address == removal.address
                    || node.pods.is_empty()
                    || removal.pods.is_empty()
                    || places.lack(node.pods)
            };
            while let Some(launch) = self.take_launch(&mut places, removal.zone, is_needed) {
                difference += launch.hourly;
                part.launches.push(launch.address);
            }
            difference += -removal.hourly;
            part.removals.push(removal.address);
            if difference <= dearest {
                parts.push(std::mem::take(&mut part));
            }
        }
        parts
    }

    /// Returns the places besides those of launches: on nodes that stay, and of pods that end. The
    /// places of new pods are missing.
    fn places(&self) -> Places<'p> {
        let mut places = Places::default();
        for node in &self.removals {
            places.add(node.pods);
        }
        for node in self.launches.iter().chain(&self.raised) {
            places.remove(node.pods);
        }
        places
    }

    /// Returns the unused launches whose places are missing without them. The cheapest come first.
    fn needed_launches(mut self, progress: &Progress<'_>) -> Vec<&'p Address> {
        let mut places = self.places();
        for node in self.removals.iter().filter(|node| progress.removed.contains(node.address)) {
            places.remove(node.pods);
        }
        let launches = std::mem::take(&mut self.launches).into_iter();
        let (unused, used): (Vec<_>, Vec<_>) =
            launches.partition(|node| progress.unused.contains(node.address));
        let launched = |node: &&PlannedNode<'p>| progress.launched.contains(node.address);
        for node in used.iter().chain(&self.raised).filter(launched) {
            places.add(node.pods);
        }
        self.launches = unused;
        self.launches.sort_by_key(|node| (node.hourly, node.address));
        let next = || self.take_launch(&mut places, None, is_lacked).map(|node| node.address);
        std::iter::from_fn(next).collect()
    }

    /// Takes the next launch that is needed, and adds its places. Launches in `zone` are taken first,
    /// because its pods may have to stay there.
    fn take_launch(
        &mut self,
        places: &mut Places<'p>,
        zone: Option<&ZoneName>,
        is_needed: impl Fn(&Places<'p>, &PlannedNode<'p>) -> bool,
    ) -> Option<PlannedNode<'p>> {
        let mut nodes = self.launches.iter();
        let next = nodes.position(|node| node.zone == zone && is_needed(places, node));
        let next =
            next.or_else(|| self.launches.iter().position(|node| is_needed(places, node)))?;
        let launch = self.launches.remove(next);
        places.add(launch.pods);
        Some(launch)
    }
}

/// Returns true if places on the node of a launch are missing without it.
fn is_lacked(places: &Places<'_>, node: &PlannedNode<'_>) -> bool {
    places.lack(node.pods)
}

#[cfg(test)]
mod tests;
