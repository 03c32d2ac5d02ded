//! Volumes of pods: attach limits of nodes, and sharing.
//!
//! Reachability of a volume depends on node labels, and is part of
//! [`NodeViews`](super::node_view::NodeViews). A volume that several pods of a node use is attached
//! once; a limit counts volumes, not pods. Limits are part of the node's allocatable, as in earlier
//! Kubernetes versions, under the name that [`attach_resource`] returns. Without that entry there
//! is no limit.
//!
//! Source: `pkg/scheduler/framework/plugins/{volumerestrictions,nodevolumelimits,volumebinding}`.

use std::collections::BTreeMap;

use super::topology::{CountUpdate, slot_mut};
use super::unfit::{FilterFailure, UnfitReason};
use crate::demand::{PodVolume, Sharing};
use crate::model::storage::attach_resource;
use crate::model::units::{ResourceName, Resources};

/// Compiled volumes of one class of pods.
#[derive(Debug, Clone, Default)]
pub(super) struct PodMounts {
    /// Number of volumes of the pod alone, by driver.
    own: Vec<(usize, u32)>,
    /// Volumes that other pods may use as well.
    shared: Vec<usize>,
    /// True if the pod waits for a volume on any node.
    pub(super) is_waiting: bool,
}

impl PodMounts {
    pub(super) fn is_none(&self) -> bool {
        self.own.is_empty() && self.shared.is_empty() && !self.is_waiting
    }
}

/// Drivers and shared volumes of all classes.
#[derive(Debug, Clone, Default)]
pub(super) struct VolumeIndex {
    /// Resource name of the attach limit of each driver.
    drivers: Vec<ResourceName>,
    shared: Vec<SharedVolume>,
    index: BTreeMap<String, usize>,
}

/// A volume that several pods may use.
#[derive(Debug, Clone)]
struct SharedVolume {
    sharing: Sharing,
    driver: Option<usize>,
}

impl VolumeIndex {
    /// Compiles the volumes of a pod.
    pub(super) fn compile(&mut self, mounts: &[PodVolume]) -> PodMounts {
        let mut compiled = PodMounts::default();
        for mount in mounts {
            compiled.is_waiting |= mount.problem.is_some();
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

    fn volume(&mut self, mount: &PodVolume, driver: Option<usize>) -> usize {
        let next = self.shared.len();
        let index = *self.index.entry(mount.name.clone()).or_insert(next);
        if index == next {
            self.shared.push(SharedVolume { sharing: mount.sharing, driver });
        }
        index
    }
}

/// Volumes of the bound pods.
#[derive(Debug, Clone, Default)]
pub(super) struct AttachedVolumes {
    /// Number of attached volumes, by driver and node.
    counts: Vec<Vec<u32>>,
    /// Number of pods that use a shared volume, by volume and node.
    users: Vec<BTreeMap<usize, u32>>,
}

impl AttachedVolumes {
    /// Adds or removes the volumes of a pod on `node`.
    pub(super) fn update(
        &mut self,
        node: usize,
        mounts: &PodMounts,
        known: &VolumeIndex,
        step: CountUpdate,
    ) {
        for (driver, count) in &mounts.own {
            let attached = slot_mut(slot_mut(&mut self.counts, *driver), node);
            (0..*count).for_each(|_| step.apply(attached));
        }
        for volume in &mounts.shared {
            let on = slot_mut(&mut self.users, *volume);
            let users = on.entry(node).or_insert(0);
            let before = *users;
            step.apply(users);
            let first_or_last = before.min(*users) == 0;
            on.retain(|_, users| *users > 0);
            if let Some(driver) = known.shared[*volume].driver.filter(|_| first_or_last) {
                step.apply(slot_mut(slot_mut(&mut self.counts, driver), node));
            }
        }
    }

    fn attached(&self, driver: usize, node: usize) -> u32 {
        self.counts.get(driver).and_then(|nodes| nodes.get(node)).copied().unwrap_or(0)
    }

    fn usage(&self, volume: usize, node: usize) -> VolumeUsage {
        let on = self.users.get(volume);
        let on_node = on.is_some_and(|on| on.contains_key(&node));
        let elsewhere = on.map_or(0, BTreeMap::len) > usize::from(on_node);
        VolumeUsage { on_node, elsewhere }
    }
}

/// The nodes whose pods use a shared volume, as seen from one node.
struct VolumeUsage {
    /// Pods on the node use the volume.
    on_node: bool,
    /// Pods on other nodes use the volume.
    elsewhere: bool,
}

/// Filter of the volumes of one pod.
#[derive(Clone, Copy)]
pub(super) struct VolumeFilter<'a> {
    pub(super) mounts: &'a PodMounts,
    pub(super) index: &'a VolumeIndex,
    pub(super) attached: &'a AttachedVolumes,
}

impl VolumeFilter<'_> {
    /// Returns true if the volumes allow the pod on `node`.
    #[inline]
    pub(super) fn passes(&self, node: usize, allocatable: &Resources) -> bool {
        self.mounts.is_none() || self.failure(node, allocatable).is_none()
    }

    /// Returns the reason why the volumes do not allow the pod on `node`.
    pub(super) fn failure(&self, node: usize, allocatable: &Resources) -> Option<FilterFailure> {
        if self.mounts.is_waiting {
            return Some(FilterFailure { reason: UnfitReason::VolumeNotReady, evictable: false });
        }
        self.conflict_failure(node).or_else(|| self.limit_failure(node, allocatable))
    }

    /// Finds a volume that another pod uses exclusively. Evicting that pod helps only if it runs on
    /// `node`.
    fn conflict_failure(&self, node: usize) -> Option<FilterFailure> {
        let movable = |volume: &usize| {
            let VolumeUsage { on_node, elsewhere } = self.attached.usage(*volume, node);
            match self.index.shared[*volume].sharing {
                Sharing::Own | Sharing::Shared => None,
                Sharing::OnePod => (on_node || elsewhere).then_some(!elsewhere),
                Sharing::OnePodPerNode => on_node.then_some(true),
            }
        };
        let movable = self.mounts.shared.iter().find_map(movable)?;
        Some(FilterFailure { reason: UnfitReason::VolumeInUse, evictable: movable })
    }

    /// Finds a driver whose attach limit the pod would exceed.
    fn limit_failure(&self, node: usize, allocatable: &Resources) -> Option<FilterFailure> {
        let over = |(driver, resource): (usize, &ResourceName)| {
            let own = self.mounts.own.iter().filter(|(of, _)| *of == driver);
            let new = self.mounts.shared.iter().filter(|volume| {
                let of_driver = self.index.shared[**volume].driver == Some(driver);
                of_driver && !self.attached.usage(**volume, node).on_node
            });
            let wanted = own.map(|(_, count)| count).sum::<u32>() + new.map(|_| 1).sum::<u32>();
            let all = i64::from(wanted) + i64::from(self.attached.attached(driver, node));
            // A missing entry means no limit.
            wanted > 0 && allocatable.extended.get(resource).is_some_and(|limit| all > *limit)
        };
        let excess = self.index.drivers.iter().enumerate().any(over);
        excess.then_some(FilterFailure { reason: UnfitReason::TooManyVolumes, evictable: true })
    }
}
