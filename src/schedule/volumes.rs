//! The volumes of pods: what nodes can attach, and who may share what.
//!
//! Where a volume can be reached from is a matter of labels, and stands with the node's
//! [`View`](super::place::View). A volume that several pods of a node use is attached once; a limit
//! counts volumes, not pods. Nodes tell their limits as Kubernetes once had them in the node's own
//! allocatable: under the name that [`attach_resource`] gives; no such amount means no limit.
//!
//! Source: `pkg/scheduler/framework/plugins/{volumerestrictions,nodevolumelimits,volumebinding}`.

use std::collections::BTreeMap;

use super::filter::{Obstacle, UnfitReason};
use super::topology::{Step, slot};
use crate::demand::{Mount, Sharing};
use crate::storage::attach_resource;
use crate::units::{ResourceName, Resources};

/// What pods of one class use, compiled.
#[derive(Debug, Clone, Default)]
pub(super) struct Mounts {
    /// Volumes of the pod's own, by driver.
    own: Vec<(usize, u32)>,
    /// Volumes that others may use too.
    shared: Vec<usize>,
    /// Whether the pod has to wait for a volume, wherever it might go.
    pub(super) waits: bool,
}

impl Mounts {
    pub(super) fn is_none(&self) -> bool {
        self.own.is_empty() && self.shared.is_empty() && !self.waits
    }
}

/// The drivers and the shared volumes that some class knows of.
#[derive(Debug, Clone, Default)]
pub(super) struct Catalogue {
    /// What nodes state the limit of each driver under.
    drivers: Vec<ResourceName>,
    shared: Vec<Shared>,
    index: BTreeMap<String, usize>,
}

/// A volume that several pods may use.
#[derive(Debug, Clone)]
struct Shared {
    sharing: Sharing,
    driver: Option<usize>,
}

impl Catalogue {
    /// Compiles what a pod uses.
    pub(super) fn compile(&mut self, mounts: &[Mount]) -> Mounts {
        let mut compiled = Mounts::default();
        for mount in mounts {
            compiled.waits |= mount.waits.is_some();
            let driver = mount.driver.as_ref().map(|name| self.driver(name));
            match (mount.sharing, driver) {
                (Sharing::Own, None) => {}
                (Sharing::Own, Some(driver)) => {
                    match compiled.own.iter_mut().find(|(known, _)| *known == driver) {
                        Some((_, count)) => *count += 1,
                        None => compiled.own.push((driver, 1)),
                    }
                }
                (Sharing::Shared | Sharing::OnePod | Sharing::OnePodPerNode, driver) => {
                    compiled.shared.push(self.volume(mount, driver));
                }
            }
        }
        compiled
    }

    fn driver(&mut self, name: &str) -> usize {
        let resource = attach_resource(name);
        self.drivers.iter().position(|known| *known == resource).unwrap_or_else(|| {
            self.drivers.push(resource);
            self.drivers.len() - 1
        })
    }

    fn volume(&mut self, mount: &Mount, driver: Option<usize>) -> usize {
        let next = self.shared.len();
        let index = *self.index.entry(mount.name.clone()).or_insert(next);
        if index == next {
            self.shared.push(Shared { sharing: mount.sharing, driver });
        }
        index
    }
}

/// The volumes of the pods that are bound.
#[derive(Debug, Clone, Default)]
pub(super) struct Attached {
    /// How many are attached, by driver and node.
    counts: Vec<Vec<u32>>,
    /// Pods that use a shared volume, by volume and node.
    users: Vec<BTreeMap<usize, u32>>,
}

impl Attached {
    /// Counts the volumes of a pod that comes to `node` or leaves it.
    pub(super) fn step(&mut self, node: usize, mounts: &Mounts, known: &Catalogue, step: Step) {
        for (driver, count) in &mounts.own {
            let attached = slot(slot(&mut self.counts, *driver), node);
            (0..*count).for_each(|_| step.count(attached));
        }
        for volume in &mounts.shared {
            let on = slot(&mut self.users, *volume);
            let users = on.entry(node).or_insert(0);
            let before = *users;
            step.count(users);
            let first_or_last = before.min(*users) == 0;
            on.retain(|_, users| *users > 0);
            if let Some(driver) = known.shared[*volume].driver.filter(|_| first_or_last) {
                step.count(slot(slot(&mut self.counts, driver), node));
            }
        }
    }

    fn attached(&self, driver: usize, node: usize) -> u32 {
        self.counts.get(driver).and_then(|nodes| nodes.get(node)).copied().unwrap_or(0)
    }

    /// Returns whether pods on `node` use the volume, and whether pods elsewhere do.
    fn used(&self, volume: usize, node: usize) -> (bool, bool) {
        let on = self.users.get(volume);
        let here = on.is_some_and(|on| on.contains_key(&node));
        (here, on.map_or(0, BTreeMap::len) > usize::from(here))
    }
}

/// The volumes of one pod against those that are attached.
#[derive(Clone, Copy)]
pub(super) struct Claims<'a> {
    pub(super) mounts: &'a Mounts,
    pub(super) known: &'a Catalogue,
    pub(super) attached: &'a Attached,
}

impl Claims<'_> {
    /// Returns whether the volumes let the pod run on `node`.
    #[inline]
    pub(super) fn pass(&self, node: usize, allocatable: &Resources) -> bool {
        self.mounts.is_none() || self.obstacle(node, allocatable).is_none()
    }

    /// Returns why the volumes keep the pod from `node`.
    pub(super) fn obstacle(&self, node: usize, allocatable: &Resources) -> Option<Obstacle> {
        if self.mounts.waits {
            return Some(Obstacle { reason: UnfitReason::VolumeNotReady, movable: false });
        }
        self.conflict(node).or_else(|| self.excess(node, allocatable))
    }

    /// Finds a volume that another pod has and does not share; it helps to evict that pod only where
    /// it runs on `node`.
    fn conflict(&self, node: usize) -> Option<Obstacle> {
        let movable = |volume: &usize| {
            let (here, elsewhere) = self.attached.used(*volume, node);
            match self.known.shared[*volume].sharing {
                Sharing::Own | Sharing::Shared => None,
                Sharing::OnePod => (here || elsewhere).then_some(!elsewhere),
                Sharing::OnePodPerNode => here.then_some(true),
            }
        };
        let movable = self.mounts.shared.iter().find_map(movable)?;
        Some(Obstacle { reason: UnfitReason::VolumeInUse, movable })
    }

    /// Finds a driver that the node would have to attach more volumes of than it can.
    fn excess(&self, node: usize, allocatable: &Resources) -> Option<Obstacle> {
        let over = |(driver, resource): (usize, &ResourceName)| {
            let own = self.mounts.own.iter().filter(|(of, _)| *of == driver);
            let new = self.mounts.shared.iter().filter(|volume| {
                let of_driver = self.known.shared[**volume].driver == Some(driver);
                of_driver && !self.attached.used(**volume, node).0
            });
            let wanted = own.map(|(_, count)| count).sum::<u32>() + new.map(|_| 1).sum::<u32>();
            let all = i64::from(wanted) + i64::from(self.attached.attached(driver, node));
            // No limit that is told is no limit.
            wanted > 0 && allocatable.extended.get(resource).is_some_and(|limit| all > *limit)
        };
        let excess = self.known.drivers.iter().enumerate().any(over);
        excess.then_some(Obstacle { reason: UnfitReason::TooManyVolumes, movable: true })
    }
}
