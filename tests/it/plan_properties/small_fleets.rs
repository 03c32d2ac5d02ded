//! Fleets of few nodes, all of them, where a plan leaves pods out.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright::catalog::{Catalog, InstanceType, NodeSettings, Offering, Overlays, allocation};
use fleetwright::model::desired::Pool;
use fleetwright::model::ids::{
    InstanceTypeName, LabelKey, LabelValue, Labels, PoolName, ReservationId,
};
use fleetwright::model::market::CapacityType;
use fleetwright::model::observed::Reservation;
use fleetwright::model::requirement::{Requirements, label};
use fleetwright::model::storage::{EBS_DRIVER, attach_resource};
use fleetwright::model::units::{MicroUsd, Resources};
use fleetwright::scheduler::ScheduleNode;
use fleetwright::solver::pool_requirements;

use super::node_groups::members;
use super::proof_case::{PlannedNode, PodKind, ProofCase};

/// Most new nodes of a fleet.
const NODES_MAX: usize = 6;

/// Most fleets of one size.
const FLEETS_MAX: usize = 3_000;

/// A node that may be had.
#[derive(Debug, Clone)]
struct Offered {
    node: ScheduleNode,
    pool: PoolName,
    kind: InstanceTypeName,
    capacity: Resources,
    /// The instance of a reservation that it would be.
    reservation: Option<ReservationId>,
}

impl ProofCase {
    /// Where pods are left out, no fleet holds everything in whatever order pods come.
    pub(super) fn leaves_nothing_that_some_fleet_holds(&self) -> Result<(), String> {
        let left = self.left();
        let known = (0..left.len()).all(|kind| left[kind] == 0 || self.is_supported(kind));
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
        let waiting = (0..left.len()).filter(|kind| left[*kind] > 0 && self.is_supported(*kind));
        let waiting: Vec<usize> = waiting.collect();
        // A node of a pool that demands a choice is filled as far as others hold as much.
        let demands = |pool: &Pool| pool.requirements.iter().any(|r| r.min_values.is_some());
        if waiting.is_empty() || self.desired.pools.values().any(demands) {
            return Ok(());
        }
        let affordable = self.affordable();
        for kind in waiting {
            let mut coming = self.coming();
            coming[kind] += 1;
            for more in std::iter::once(None).chain(affordable.iter().map(Some)) {
                let scene = |seed| self.planned(seed, more.map(|offered| &offered.node));
                if self.always_places(scene, &coming) {
                    let name = &self.kinds[kind].workload.name;
                    let on = more.map_or("the fleet", |offered| offered.node.name.as_str());
                    return Err(self.story(&format!("{name} is left out, and has a place on {on}")));
                }
            }
        }
        Ok(())
    }

    /// Returns the nodes that are there whatever is launched: those that run, and those that pools with
    /// a fixed number of nodes launch, but not those that such pools give up.
    fn there(&self) -> Vec<ScheduleNode> {
        let is_fixed = |pool: &PoolName| self.desired.pools[pool].replicas.is_some();
        let of_fixed = |seat: &&PlannedNode| seat.pool.as_ref().is_some_and(&is_fixed);
        let new = self.seats.iter().filter(|seat| seat.is_new).filter(of_fixed);
        let mut nodes = self.given.schedule_nodes();
        nodes.retain(|node| {
            let pool = node.labels.get("karpenter.sh/nodepool").map(|name| name.as_str().into());
            let is_fixed = pool.is_some_and(|pool: PoolName| {
                self.desired.pools.contains_key(&pool) && is_fixed(&pool)
            });
            !is_fixed || self.seats.iter().any(|seat| seat.node.name == node.name)
        });
        for node in &mut nodes {
            if let Some(limit) = self.attach_limit(&node.name, &node.labels) {
                node.allocatable.extended.insert(attach_resource(EBS_DRIVER), limit);
            }
        }
        nodes.into_iter().chain(new.map(|seat| seat.node.clone())).collect()
    }

    /// Returns what may be launched beside the planned nodes.
    fn affordable(&self) -> Vec<Offered> {
        let mut all = offered(self);
        all.retain(|offered| {
            // Nodes that go count until they are gone, which is after the launches.
            let there = self.given.nodes_of(offered.pool.as_str());
            let new = self.seats.iter().filter(|seat| seat.is_new);
            let new = new.filter(|seat| seat.pool.as_ref() == Some(&offered.pool));
            let there = there.into_iter().chain(new.map(|seat| &seat.capacity));
            let launched = self.seats.iter().filter(|seat| seat.is_new);
            let mut taken = BTreeMap::new();
            for id in launched.filter_map(|seat| seat.reservation.as_ref()) {
                *taken.entry(id).or_insert(0) += 1;
            }
            if let Some(id) = &offered.reservation {
                *taken.entry(id).or_insert(0) += 1;
            }
            self.allows(&offered.pool, there, [&offered.capacity]) && are_left(self, taken)
        });
        all
    }

    /// Returns whether some pod says what type its node is of.
    fn names_types(&self) -> bool {
        let of_type = |key: &LabelKey| {
            let key = key.as_str();
            key.starts_with("karpenter.k8s.aws/") || key == "node.kubernetes.io/instance-type"
        };
        let mut terms = self.kinds.iter().flat_map(|kind| &kind.shape.nodes.any_of);
        terms.any(|term| term.iter().any(|(key, _)| of_type(key)))
    }

    /// Returns whether the limits of `pool` allow nodes of these capacities.
    fn allows<'a>(
        &self,
        pool: &PoolName,
        there: impl IntoIterator<Item = &'a Resources>,
        more: impl IntoIterator<Item = &'a Resources>,
    ) -> bool {
        let limits = &self.desired.pools[pool].limits;
        if let Some(most) = self.most_members(pool) {
            let more = u32::try_from(more.into_iter().count()).unwrap_or(u32::MAX);
            return members(&self.given.world, pool).saturating_add(more) <= most;
        }
        if self.given.has_joining(pool.as_str()) {
            // What has not joined counts as well; by how much is for others to say.
            return limits.nodes.is_none() && limits.resources.is_empty();
        }
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
fn fleet(stage: &ProofCase) -> Option<Vec<String>> {
    let there = stage.there();
    let pending = stage.kinds.iter().map(|kind| {
        let runs: u32 = there.iter().map(|node| kind.runs_on(&node.name)).sum();
        kind.planned.saturating_sub(runs)
    });
    let pending: Vec<u32> = pending.collect();
    let pods: usize =
        pending.iter().map(|count| usize::try_from(*count).unwrap_or(usize::MAX)).sum();
    let offered = offered(stage);
    // An empty node beyond one for each pod can only serve to make one more domain.
    let most = NODES_MAX.min(pods + 1);
    let mut fleets = 1;
    for size in 0..=most {
        // So many multisets of so many kinds.
        let multisets = (fleets * (offered.len() + size.saturating_sub(1))).checked_div(size);
        fleets = multisets.unwrap_or(1);
        if fleets > FLEETS_MAX {
            break;
        }
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

fn is_within_limits<'a>(
    stage: &ProofCase,
    counts: impl Iterator<Item = (&'a Offered, usize)>,
) -> bool {
    let mut new: BTreeMap<&PoolName, Vec<&Resources>> = BTreeMap::new();
    let mut reserved = BTreeMap::new();
    for (offered, count) in counts {
        new.entry(&offered.pool).or_default().extend(std::iter::repeat_n(&offered.capacity, count));
        if let Some(id) = &offered.reservation {
            *reserved.entry(id).or_insert(0) += count;
        }
    }
    new.into_iter().filter(|(_, more)| !more.is_empty()).all(|(pool, more)| {
        let there = stage.given.nodes_of(pool.as_str());
        stage.allows(pool, there, more)
    }) && are_left(stage, reserved)
}

/// Returns whether each reservation has as many instances left as are taken of it.
fn are_left(stage: &ProofCase, taken: BTreeMap<&ReservationId, usize>) -> bool {
    let left = |id: &ReservationId| stage.given.world.reservations.get(id).map(|r| r.available);
    let left = |id| usize::try_from(left(id).unwrap_or(0)).unwrap_or(usize::MAX);
    taken.into_iter().all(|(id, count)| count <= left(id))
}

/// Returns whether what runs and so many more nodes of each kind hold the pending pods, in whatever
/// order they come.
fn holds<'a>(
    stage: &ProofCase,
    counts: impl Iterator<Item = (&'a Offered, usize)>,
    pending: &[u32],
) -> bool {
    let mut nodes = stage.there();
    for (offered, count) in counts {
        nodes.extend((0..count).map(|number| numbered(&offered.node, number)));
    }
    let scene = |seed| {
        let mut scene = stage.scene(nodes.clone(), seed);
        for node in scene.nodes.clone() {
            let name = scene.scheduler.name(node).clone();
            let here: Vec<u32> = stage.kinds.iter().map(|kind| kind.runs_on(&name)).collect();
            scene.bind(&here, node);
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

/// Returns every node that some pool may launch, but those of pools with a fixed number of nodes.
fn offered(stage: &ProofCase) -> Vec<Offered> {
    let ProofCase { desired, made, .. } = stage;
    let mut all = Vec::new();
    for pool in desired.pools.values().filter(|pool| pool.replicas.is_none()) {
        // What pods narrow, other nodes are counted by; that is not for brute force to say.
        if pool.requirements.iter().any(|r| r.min_values.is_some()) && stage.names_types() {
            continue;
        }
        let of_pool = offered_by(stage, pool);
        let has_choice = |offered: &Offered| {
            let demands = pool.requirements.iter().filter_map(|r| Some((&r.key, r.min_values?)));
            let mut demands =
                demands.map(|(key, least)| (key, usize::try_from(least).unwrap_or(0)));
            demands.all(|(key, least)| values_that_hold(key, offered, &of_pool) >= least)
        };
        all.extend(of_pool.iter().filter(|offered| has_choice(offered)).cloned());
    }
    // Nodes with devices are for pods that need them.
    let has_device = |kind: &PodKind| !kind.shape.requests.extended.is_empty();
    if !stage.kinds.iter().all(has_device) {
        all.retain(|offered| !made.catalog.types[&offered.kind].labels.contains_key(DEVICE));
    }
    all
}

/// Returns how many values of `key` there are among nodes that hold whatever `one` holds.
fn values_that_hold(key: &LabelKey, one: &Offered, all: &[Offered]) -> usize {
    let asked = &one.node.allocatable;
    let able = all.iter().filter(|offered| asked.fits(&offered.node.allocatable));
    able.filter_map(|offered| offered.node.labels.get(key)).collect::<BTreeSet<_>>().len()
}

fn offered_by(stage: &ProofCase, pool: &Pool) -> Vec<Offered> {
    let ProofCase { desired, made, given, .. } = stage;
    let class = pool.node_class.as_ref().and_then(|name| desired.node_classes.get(name));
    let Some(class) = class else { return Vec::new() };
    let (wanted, overlays) = (pool_requirements(pool), Overlays::from_desired(desired));
    let (at, mut all) = (given.world.taken_at, Vec::new());
    for kind in made.catalog.types.values() {
        let amounts = allocation(kind, &NodeSettings::new(pool, class));
        for NodeOption { offering, reservation } in ways(kind, stage) {
            let Offering { zone, capacity_type, .. } = &offering;
            let mut sold_out = given.world.exclusions.iter();
            if sold_out.any(|rule| rule.covers(at, &kind.name, zone, *capacity_type)) {
                continue;
            }
            let mut labels = labels(pool, &kind.labels, &offering, &made.catalog);
            labels.extend(reservation.into_iter().flat_map(labels_of_reservation));
            if desired.node_groups.contains_key(&pool.name) {
                labels.retain(|key, _| !key.as_str().starts_with("karpenter."));
            }
            for labels in completed(stage, labels, &wanted) {
                let mut amounts = amounts.clone();
                overlays.apply(&labels, offering.price).extend(&mut amounts);
                let name = format!("{}/{}/{zone}/{capacity_type}", pool.name, kind.name);
                let custom = |key: &str| labels.get(key).map(|value| format!("/{value}"));
                let custom = CUSTOM.iter().filter_map(|(key, _)| custom(key));
                let name = custom.fold(name, |name, part| name + &part);
                let mut allocatable = amounts.allocatable;
                if let Some(limit) = stage.attach_limit(&name.as_str().into(), &labels) {
                    allocatable.extended.insert(attach_resource(EBS_DRIVER), limit);
                }
                let hostname = label("kubernetes.io/hostname", &name);
                let node = ScheduleNode {
                    name: name.as_str().into(),
                    labels: labels.into_iter().chain([hostname]).collect(),
                    taints: pool.taints.clone(),
                    allocatable,
                    unschedulable: false,
                };
                let (pool, capacity) = (pool.name.clone(), amounts.capacity);
                let reservation = reservation.map(|reservation| reservation.id.clone());
                all.push(Offered { node, pool, kind: kind.name.clone(), capacity, reservation });
            }
        }
    }
    all
}

/// One way to have a node.
struct NodeOption<'a> {
    offering: Offering,
    reservation: Option<&'a Reservation>,
}

/// Returns what is sold of a type, and the instances of it that are paid for already: the node class
/// of every case selects all reservations.
fn ways<'a>(kind: &InstanceType, stage: &'a ProofCase) -> Vec<NodeOption<'a>> {
    let sold = kind.offerings.iter().filter(|offering| offering.price.is_some());
    let sold = sold.map(|offering| NodeOption { offering: offering.clone(), reservation: None });
    let reserved = stage.given.world.reservations.values();
    let reserved = reserved.filter(|reservation| reservation.instance_type == kind.name);
    let reserved = reserved.filter_map(|reservation| {
        let mut there = kind.offerings.iter();
        let there = there.find(|offering| offering.zone == reservation.zone)?;
        let (capacity_type, price) = (CapacityType::Reserved, Some(MicroUsd::ZERO));
        let offering = Offering { capacity_type, price, ..there.clone() };
        Some(NodeOption { offering, reservation: Some(reservation) })
    });
    sold.chain(reserved).collect()
}

fn labels_of_reservation(reservation: &Reservation) -> Labels {
    let label = |key: &str, value: &str| label(&format!("karpenter.k8s.aws/{key}"), value);
    let labels = [
        label("capacity-reservation-id", reservation.id.as_str()),
        label("capacity-reservation-type", reservation.kind.as_str()),
        label("capacity-reservation-interruptible", "false"),
    ];
    labels.into_iter().collect()
}

/// Labels that pools may leave open, and the values that trees name.
const CUSTOM: [(&str, &[&str]); 2] = [("disk", &["hdd", "ssd"]), ("tier", &["1", "5", "7"])];

/// Label of types with a GPU.
const DEVICE: &str = "karpenter.k8s.aws/instance-gpu-name";

/// Returns the labels with each choice of those that the pool leaves open; none where they do not meet
/// what it asks for.
fn completed(stage: &ProofCase, labels: Labels, wanted: &Requirements) -> Vec<Labels> {
    let mut all = vec![labels];
    for (key, values) in CUSTOM {
        let Some((key, set)) = wanted.iter().find(|(asked, _)| asked.as_str() == key) else {
            continue;
        };
        // A pool that lists no values has those that pods name; pods are spread over none of it.
        let is_listed = set.values().finite(LISTED_MAX).is_some();
        let values = values.iter().map(|value| LabelValue::from(*value));
        let values = values.filter(|value| is_listed || is_named(stage, key, value));
        let values: Vec<LabelValue> = values.filter(|value| set.contains(Some(value))).collect();
        let one = |labels: &Labels| {
            if labels.contains_key(key) {
                return vec![labels.clone()];
            }
            let with = values.iter().map(|value| {
                let mut labels = labels.clone();
                labels.extend([label(key.as_str(), value.as_str())]);
                labels
            });
            with.chain(set.contains(None).then(|| labels.clone())).collect()
        };
        all = all.iter().flat_map(one).collect();
    }
    all.retain(|labels| wanted.iter().all(|(key, set)| set.contains(labels.get(key))));
    all
}

/// More values than any pool of a tree lists.
const LISTED_MAX: u64 = 8;

/// Returns whether some pod asks for this very value.
fn is_named(stage: &ProofCase, key: &LabelKey, value: &LabelValue) -> bool {
    stage.kinds.iter().flat_map(|kind| &kind.shape.nodes.any_of).any(|term| {
        let values = term.get(key.as_str()).and_then(|set| set.values().finite(LISTED_MAX));
        values.is_some_and(|values| values.contains(value))
    })
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
