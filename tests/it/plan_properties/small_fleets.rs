//! Exhaustive search over small fleets, for plans with unschedulable pods.

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

/// Maximum number of new nodes of a fleet.
const NODES_MAX: usize = 6;

/// Maximum number of fleets of one size.
const FLEETS_MAX: usize = 3_000;

/// A node that a pool may launch.
#[derive(Debug, Clone)]
struct OfferedNode {
    node: ScheduleNode,
    pool: PoolName,
    kind: InstanceTypeName,
    capacity: Resources,
    /// Reservation that the instance would use.
    reservation: Option<ReservationId>,
}

impl ProofCase {
    /// Checks that, if pods are unschedulable, no fleet fits all pods in every order.
    pub(super) fn no_fleet_fits_unschedulable_pods(&self) -> Result<(), String> {
        let left = self.unschedulable();
        let known = (0..left.len()).all(|kind| left[kind] == 0 || self.is_supported(kind));
        if left.iter().all(|count| *count == 0) || !known {
            return Ok(());
        }
        match fleet(self) {
            None => Ok(()),
            Some(fleet) => {
                Err(self.describe_failure(&format!("all pods run on {}", fleet.join(", "))))
            }
        }
    }

    /// Checks that neither the planned fleet nor the fleet with one more node fits an unschedulable
    /// pod beside the others, in every order.
    pub(super) fn no_extra_node_fits_unschedulable_pods(&self) -> Result<(), String> {
        let left = self.unschedulable();
        let waiting = (0..left.len()).filter(|kind| left[*kind] > 0 && self.is_supported(*kind));
        let waiting: Vec<usize> = waiting.collect();
        // With `minValues`, the pods of a node are limited to those that fit its alternatives.
        let demands = |pool: &Pool| pool.requirements.iter().any(|r| r.min_values.is_some());
        if waiting.is_empty() || self.desired.pools.values().any(demands) {
            return Ok(());
        }
        let launchable_nodes = self.launchable_nodes();
        for kind in waiting {
            let mut arriving = self.arriving();
            arriving[kind] += 1;
            for more in std::iter::once(None).chain(launchable_nodes.iter().map(Some)) {
                let scheduled = |seed| self.planned(seed, more.map(|offered| &offered.node));
                if self.always_places(scheduled, &arriving) {
                    let name = &self.kinds[kind].workload.name;
                    let on = more.map_or("the fleet", |offered| offered.node.name.as_str());
                    return Err(self
                        .describe_failure(&format!("{name} is unschedulable, but fits on {on}")));
                }
            }
        }
        Ok(())
    }

    /// Returns the nodes that exist independently of launches for pods: running nodes, and new
    /// nodes of static pools. Surplus nodes of static pools are excluded.
    fn existing_nodes(&self) -> Vec<ScheduleNode> {
        let is_fixed = |pool: &PoolName| self.desired.pools[pool].replicas.is_some();
        let of_fixed =
            |planned_node: &&PlannedNode| planned_node.pool.as_ref().is_some_and(&is_fixed);
        let new =
            self.planned_nodes.iter().filter(|planned_node| planned_node.is_new).filter(of_fixed);
        let mut nodes = self.input.schedule_nodes();
        nodes.retain(|node| {
            let pool = node.labels.get("karpenter.sh/nodepool").map(|name| name.as_str().into());
            let is_fixed = pool.is_some_and(|pool: PoolName| {
                self.desired.pools.contains_key(&pool) && is_fixed(&pool)
            });
            !is_fixed
                || self.planned_nodes.iter().any(|planned_node| planned_node.node.name == node.name)
        });
        for node in &mut nodes {
            if let Some(limit) = self.attach_limit(&node.name, &node.labels) {
                node.allocatable.extended.insert(attach_resource(EBS_DRIVER), limit);
            }
        }
        nodes.into_iter().chain(new.map(|planned_node| planned_node.node.clone())).collect()
    }

    /// Returns the nodes that limits and reservations allow beside the planned nodes.
    fn launchable_nodes(&self) -> Vec<OfferedNode> {
        let mut all = offered(self);
        all.retain(|offered| {
            // Retiring nodes count against limits until they are terminated, after the launches.
            let existing = self.input.node_capacities(offered.pool.as_str());
            let new = self.planned_nodes.iter().filter(|planned_node| planned_node.is_new);
            let new = new.filter(|planned_node| planned_node.pool.as_ref() == Some(&offered.pool));
            let existing =
                existing.into_iter().chain(new.map(|planned_node| &planned_node.capacity));
            let launched = self.planned_nodes.iter().filter(|planned_node| planned_node.is_new);
            let mut taken = BTreeMap::new();
            for id in launched.filter_map(|planned_node| planned_node.reservation.as_ref()) {
                *taken.entry(id).or_insert(0) += 1;
            }
            if let Some(id) = &offered.reservation {
                *taken.entry(id).or_insert(0) += 1;
            }
            self.allows(&offered.pool, existing, [&offered.capacity])
                && has_available_instances(self, taken)
        });
        all
    }

    /// Returns whether any pod selects its node by instance type.
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
        existing: impl IntoIterator<Item = &'a Resources>,
        more: impl IntoIterator<Item = &'a Resources>,
    ) -> bool {
        let limits = &self.desired.pools[pool].limits;
        if let Some(most) = self.most_members(pool) {
            let more = u32::try_from(more.into_iter().count()).unwrap_or(u32::MAX);
            return members(&self.input.world, pool).saturating_add(more) <= most;
        }
        if self.input.has_joining(pool.as_str()) {
            // A joining instance counts against limits by an unknown amount.
            return limits.nodes.is_none() && limits.resources.is_empty();
        }
        let all: Vec<&Resources> = existing.into_iter().chain(more).collect();
        let nodes = u64::try_from(all.len()).unwrap_or(u64::MAX);
        let cpu: i64 = all.iter().map(|capacity| capacity.cpu.0).sum();
        let most = limits.resources.get("cpu").copied().unwrap_or(i64::MAX);
        limits.nodes.is_none_or(|most| nodes <= u64::from(most)) && cpu <= most
    }
}

/// Returns the new nodes of a fleet that runs all pods. Running pods stay, new nodes are within the
/// limits, and the scheduler places the pending pods in every order.
fn fleet(case: &ProofCase) -> Option<Vec<String>> {
    let existing = case.existing_nodes();
    let pending = case.kinds.iter().map(|kind| {
        let runs: u32 = existing.iter().map(|node| kind.runs_on(&node.name)).sum();
        kind.planned.saturating_sub(runs)
    });
    let pending: Vec<u32> = pending.collect();
    let pods: usize =
        pending.iter().map(|count| usize::try_from(*count).unwrap_or(usize::MAX)).sum();
    let offered = offered(case);
    // One more node than pods can only add a topology domain.
    let most = NODES_MAX.min(pods + 1);
    let mut fleets = 1;
    for size in 0..=most {
        // Number of multisets of `size` elements.
        let multisets = (fleets * (offered.len() + size.saturating_sub(1))).checked_div(size);
        fleets = multisets.unwrap_or(1);
        if fleets > FLEETS_MAX {
            break;
        }
        let mut counts = vec![0; offered.len()];
        let found = each_fleet(&mut counts, 0, size, &mut |counts| {
            let counted = || offered.iter().zip(counts.iter().copied());
            is_within_limits(case, counted()) && fits_pending_pods(case, counted(), &pending)
        });
        if found {
            let name = |(offered, count): (&OfferedNode, &usize)| {
                (*count > 0).then(|| format!("{count} x {}", offered.node.name))
            };
            let names: Vec<String> = offered.iter().zip(&counts).filter_map(name).collect();
            return Some(if names.is_empty() {
                vec!["the existing nodes".to_owned()]
            } else {
                names
            });
        }
    }
    None
}

/// Tries every multiset of `size` nodes of the kinds from `first` on. Stops at the first multiset
/// that `accept` accepts, and leaves it in `counts`.
fn each_fleet(
    counts: &mut Vec<usize>,
    first: usize,
    size: usize,
    accept: &mut impl FnMut(&[usize]) -> bool,
) -> bool {
    if size == 0 {
        return accept(counts);
    }
    for kind in first..counts.len() {
        counts[kind] += 1;
        if each_fleet(counts, kind, size - 1, accept) {
            return true;
        }
        counts[kind] -= 1;
    }
    false
}

fn is_within_limits<'a>(
    case: &ProofCase,
    counts: impl Iterator<Item = (&'a OfferedNode, usize)>,
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
        let existing = case.input.node_capacities(pool.as_str());
        case.allows(pool, existing, more)
    }) && has_available_instances(case, reserved)
}

/// Returns whether each reservation has enough available instances.
fn has_available_instances(case: &ProofCase, taken: BTreeMap<&ReservationId, usize>) -> bool {
    let left = |id: &ReservationId| case.input.world.reservations.get(id).map(|r| r.available);
    let left = |id| usize::try_from(left(id).unwrap_or(0)).unwrap_or(usize::MAX);
    taken.into_iter().all(|(id, count)| count <= left(id))
}

/// Returns whether the existing nodes and `counts` new nodes fit the pending pods in every order.
fn fits_pending_pods<'a>(
    case: &ProofCase,
    counts: impl Iterator<Item = (&'a OfferedNode, usize)>,
    pending: &[u32],
) -> bool {
    let mut nodes = case.existing_nodes();
    for (offered, count) in counts {
        nodes.extend((0..count).map(|number| numbered(&offered.node, number)));
    }
    let scheduled = |seed| {
        let mut scheduled = case.scheduled(nodes.clone(), seed);
        for node in scheduled.nodes.clone() {
            let name = scheduled.scheduler.name(node).clone();
            let here: Vec<u32> = case.kinds.iter().map(|kind| kind.runs_on(&name)).collect();
            scheduled.bind(&here, node);
        }
        scheduled
    };
    case.always_places(scheduled, pending)
}

fn numbered(node: &ScheduleNode, number: usize) -> ScheduleNode {
    let name = format!("{}/{number}", node.name);
    let mut node = node.clone();
    let hostname = label("kubernetes.io/hostname", &name);
    node.labels.extend([hostname]);
    node.name = name.into();
    node
}

/// Returns every node that pools may launch, except static pools.
fn offered(case: &ProofCase) -> Vec<OfferedNode> {
    let ProofCase { desired, case_plan, .. } = case;
    let mut all = Vec::new();
    for pool in desired.pools.values().filter(|pool| pool.replicas.is_none()) {
        // Pods that select instance types change the `minValues` count, which brute force does not
        // model.
        if pool.requirements.iter().any(|r| r.min_values.is_some()) && case.names_types() {
            continue;
        }
        let of_pool = offered_by(case, pool);
        let has_choice = |offered: &OfferedNode| {
            let demands = pool.requirements.iter().filter_map(|r| Some((&r.key, r.min_values?)));
            let mut demands =
                demands.map(|(key, least)| (key, usize::try_from(least).unwrap_or(0)));
            demands.all(|(key, least)| values_that_fit(key, offered, &of_pool) >= least)
        };
        all.extend(of_pool.iter().filter(|offered| has_choice(offered)).cloned());
    }
    // Nodes with devices are only launched for pods that need devices.
    let has_device = |kind: &PodKind| !kind.shape.requests.extended.is_empty();
    if !case.kinds.iter().all(has_device) {
        all.retain(|offered| !case_plan.catalog.types[&offered.kind].labels.contains_key(DEVICE));
    }
    all
}

/// Returns the number of values of `key` among nodes that are at least as large as `one`.
fn values_that_fit(key: &LabelKey, one: &OfferedNode, all: &[OfferedNode]) -> usize {
    let asked = &one.node.allocatable;
    let large_enough = all.iter().filter(|offered| asked.fits(&offered.node.allocatable));
    large_enough.filter_map(|offered| offered.node.labels.get(key)).collect::<BTreeSet<_>>().len()
}

fn offered_by(case: &ProofCase, pool: &Pool) -> Vec<OfferedNode> {
    let ProofCase { desired, case_plan, input, .. } = case;
    let class = pool.node_class.as_ref().and_then(|name| desired.node_classes.get(name));
    let Some(class) = class else { return Vec::new() };
    let (wanted, overlays) = (pool_requirements(pool), Overlays::from_desired(desired));
    let (at, mut all) = (input.world.taken_at, Vec::new());
    for kind in case_plan.catalog.types.values() {
        let amounts = allocation(kind, &NodeSettings::new(pool, class));
        for NodeOption { offering, reservation } in node_options(kind, case) {
            let Offering { zone, capacity_type, .. } = &offering;
            let mut sold_out = input.world.exclusions.iter();
            if sold_out.any(|rule| rule.covers(at, &kind.name, zone, *capacity_type)) {
                continue;
            }
            let mut labels = labels(pool, &kind.labels, &offering, &case_plan.catalog);
            labels.extend(reservation.into_iter().flat_map(labels_of_reservation));
            if desired.node_groups.contains_key(&pool.name) {
                labels.retain(|key, _| !key.as_str().starts_with("karpenter."));
            }
            for labels in with_custom_labels(case, labels, &wanted) {
                let mut amounts = amounts.clone();
                overlays.apply(&labels, offering.price).extend(&mut amounts);
                let name = format!("{}/{}/{zone}/{capacity_type}", pool.name, kind.name);
                let custom = |key: &str| labels.get(key).map(|value| format!("/{value}"));
                let custom = CUSTOM_LABELS.iter().filter_map(|(key, _)| custom(key));
                let name = custom.fold(name, |name, part| name + &part);
                let mut allocatable = amounts.allocatable;
                if let Some(limit) = case.attach_limit(&name.as_str().into(), &labels) {
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
                all.push(OfferedNode {
                    node,
                    pool,
                    kind: kind.name.clone(),
                    capacity,
                    reservation,
                });
            }
        }
    }
    all
}

/// An offering of an instance type, with its reservation.
struct NodeOption<'a> {
    offering: Offering,
    reservation: Option<&'a Reservation>,
}

/// Returns the priced offerings and the reservations of a type. The node class of every case
/// selects all reservations.
fn node_options<'a>(kind: &InstanceType, case: &'a ProofCase) -> Vec<NodeOption<'a>> {
    let sold = kind.offerings.iter().filter(|offering| offering.price.is_some());
    let sold = sold.map(|offering| NodeOption { offering: offering.clone(), reservation: None });
    let reserved = case.input.world.reservations.values();
    let reserved = reserved.filter(|reservation| reservation.instance_type == kind.name);
    let reserved = reserved.filter_map(|reservation| {
        let mut existing = kind.offerings.iter();
        let existing = existing.find(|offering| offering.zone == reservation.zone)?;
        let (capacity_type, price) = (CapacityType::Reserved, Some(MicroUsd::ZERO));
        let offering = Offering { capacity_type, price, ..existing.clone() };
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

/// Labels that pools may leave open, with the values in use.
const CUSTOM_LABELS: [(&str, &[&str]); 2] = [("disk", &["hdd", "ssd"]), ("tier", &["1", "5", "7"])];

/// Label of instance types with a GPU.
const DEVICE: &str = "karpenter.k8s.aws/instance-gpu-name";

/// Returns the labels with each choice of open labels; empty if they do not meet the requirements.
fn with_custom_labels(case: &ProofCase, labels: Labels, wanted: &Requirements) -> Vec<Labels> {
    let mut all = vec![labels];
    for (key, values) in CUSTOM_LABELS {
        let Some((key, set)) = wanted.iter().find(|(asked, _)| asked.as_str() == key) else {
            continue;
        };
        // If a pool lists no values, only values that pods name are possible.
        let is_listed = set.values().finite(LISTED_MAX).is_some();
        let values = values.iter().map(|value| LabelValue::from(*value));
        let values = values.filter(|value| is_listed || is_named(case, key, value));
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

/// Upper bound of the number of values that a pool lists.
const LISTED_MAX: u64 = 8;

/// Returns whether any pod requires this value.
fn is_named(case: &ProofCase, key: &LabelKey, value: &LabelValue) -> bool {
    case.kinds.iter().flat_map(|kind| &kind.shape.nodes.any_of).any(|term| {
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
