//! Nodes that the volume claims of a pod allow, from the repository and the cluster.
//!
//! A claim restricts nodes through the volume that it is bound to, or through the storage class
//! that will provision one. The rules are those of kube-scheduler's `VolumeBinding` and
//! `VolumeZone` filters (`pkg/scheduler/framework/plugins/{volumebinding,volumezone}`).
//!
//! The cluster decides which claims are bound. Objects that exist only in the repository count as
//! declared, because they will be created that way. This module is independent of nodes and of
//! their attach limits.
//!
//! Invariant: the pods of a claim without a known topology stay pending with the reason. They are
//! never planned as pods without volumes.
//!
//! Karpenter 1.14 differs in one rule: it ignores a host name in the affinity of a local volume. It
//! may launch a node that kube-scheduler then rejects for the pod. Here a local volume binds the
//! pod to its node.

use std::collections::{BTreeMap, BTreeSet};

use super::pod_volume::{PodVolume, Sharing, TopologySource, VolumeProblem};
use super::shape::{NodeChoice, PodShape, Unsupported, label_set};
use crate::model::desired::Desired;
use crate::model::ids::Namespace;
use crate::model::pod::{NodeTerm, Volume, VolumeSource};
use crate::model::requirement::{LabelSet, Requirements, key, normalize_key};
use crate::model::storage::{
    Claim, ClaimPhase, EBS_DRIVER, NO_PROVISIONER, PersistentVolume, Storage, StorageClass,
    csi_driver, ebs_zone, is_file_system,
};

/// Maximum number of node alternatives from the volumes of one pod. A claim rarely has more than
/// the zones of a region.
const ALTERNATIVES_MAX: usize = 512;

/// Name of the class in messages if a claim names no class and no default class is declared.
const DEFAULT_CLASS: &str = "(default)";

/// Lookup of claims, volumes and storage classes.
#[derive(Debug, Clone, Copy)]
pub struct Claims<'a> {
    /// Declared objects; `None` to use observed objects only.
    desired: Option<&'a Desired>,
    observed: &'a Storage,
}

/// Nodes that a claim allows, and the CSI driver that attaches its volume.
struct ClaimBinding {
    nodes: Vec<Requirements>,
    driver: Option<String>,
    cause: TopologySource,
    problem: Option<VolumeProblem>,
}

impl ClaimBinding {
    fn new(cause: TopologySource, driver: Option<&str>, nodes: Vec<Requirements>) -> Self {
        Self { nodes, driver: driver.map(str::to_owned), cause, problem: None }
    }

    /// Returns the binding of a claim whose volume has no known topology.
    fn blocked(problem: VolumeProblem) -> Self {
        let nodes = vec![Requirements::default()];
        Self { nodes, driver: None, cause: TopologySource::Bound, problem: Some(problem) }
    }
}

impl<'a> Claims<'a> {
    /// Returns the claims of the repository and the cluster.
    pub fn new(desired: &'a Desired, observed: &'a Storage) -> Self {
        Self { desired: Some(desired), observed }
    }

    /// Returns the claims of the cluster only, for pods that exist already.
    pub fn from_observed(observed: &'a Storage) -> Self {
        Self { desired: None, observed }
    }

    /// Returns `shape` with `volumes`, and with its nodes narrowed to those that the volumes allow.
    ///
    /// The name in `pod` selects the claims of a `StatefulSet` replica. Without a name, these
    /// claims count as new.
    pub fn with_volumes(
        &self,
        shape: &PodShape,
        volumes: &[Volume],
        pod: Option<&str>,
    ) -> PodShape {
        let mount = |volume: &Volume| self.mount(&shape.namespace, volume, pod);
        let mut mounts: Vec<PodVolume> = volumes.iter().filter_map(mount).collect();
        mounts.sort();
        mounts.dedup_by(|a, b| a == b && a.sharing != Sharing::Own);
        let mut shape = shape.clone();
        shape.unsupported.retain(|feature| *feature != Unsupported::Volumes);
        match narrow_nodes(&shape.nodes, &mounts) {
            Some(nodes) => shape.nodes = nodes,
            None => {
                mounts
                    .iter_mut()
                    .take(1)
                    .for_each(|m| m.problem = Some(VolumeProblem::TooManyPlaces));
            }
        }
        if mounts.iter().any(|mount| mount.problem.is_some()) {
            shape.unsupported.push(Unsupported::Volumes);
            shape.unsupported.sort();
        }
        shape.volumes = mounts;
        shape
    }

    /// Returns true if the pod has an existing claim from a claim template.
    pub fn has_existing_claim(&self, namespace: &Namespace, volumes: &[Volume], pod: &str) -> bool {
        let exists = |volume: &Volume| match volume.source {
            VolumeSource::ClaimTemplate(_) => {
                self.find(namespace, &format!("{}-{pod}", volume.name)).is_some()
            }
            VolumeSource::Claim(_)
            | VolumeSource::EphemeralClaim(_)
            | VolumeSource::Ebs(_)
            | VolumeSource::NetworkDisk(_)
            | VolumeSource::InTree(_)
            | VolumeSource::HostPath
            | VolumeSource::EmptyDir
            | VolumeSource::Other => false,
        };
        volumes.iter().any(exists)
    }

    fn mount(
        &self,
        namespace: &Namespace,
        volume: &Volume,
        pod: Option<&str>,
    ) -> Option<PodVolume> {
        let full = |name: &str| format!("{namespace}/{name}");
        let Volume { name, source } = volume;
        let (name, sharing, binding) = match source {
            VolumeSource::Claim(claim) => {
                let binding = self.claim(namespace, claim);
                let binding =
                    binding.unwrap_or_else(|| ClaimBinding::blocked(VolumeProblem::Missing));
                (full(claim), self.sharing(namespace, claim), binding)
            }
            // Such a claim is deleted with its pod, so a replacement pod gets a new one.
            VolumeSource::EphemeralClaim(class) => {
                (full(&format!("*-{name}")), Sharing::Own, self.new_claim(class.as_deref()))
            }
            VolumeSource::ClaimTemplate(class) => {
                let existing = pod.and_then(|pod| self.claim(namespace, &format!("{name}-{pod}")));
                let binding = existing.unwrap_or_else(|| self.new_claim(class.as_deref()));
                (full(&format!("{name}-*")), Sharing::Own, binding)
            }
            VolumeSource::Ebs(id) => (id.clone(), Sharing::OnePodPerNode, inline_disk_binding(id)),
            VolumeSource::NetworkDisk(id) => {
                let nodes = vec![Requirements::default()];
                let binding = ClaimBinding::new(TopologySource::Disk, None, nodes);
                (id.clone(), Sharing::OnePodPerNode, binding)
            }
            VolumeSource::InTree(kind) => {
                let binding = ClaimBinding::blocked(VolumeProblem::UnknownDisk);
                (format!("{name} ({kind})"), Sharing::Own, binding)
            }
            VolumeSource::HostPath | VolumeSource::EmptyDir | VolumeSource::Other => return None,
        };
        let ClaimBinding { nodes, driver, cause, problem } = binding;
        // For other drivers, it is unknown if a volume is restricted to one zone.
        let zone_set_by_first_pod =
            matches!(cause, TopologySource::Class(_) | TopologySource::Assumed(_))
                && driver.as_deref() == Some(EBS_DRIVER);
        let driver = driver.filter(|driver| self.is_attach_limited(driver));
        Some(PodVolume { name, sharing, driver, nodes, cause, zone_set_by_first_pod, problem })
    }

    /// Returns true if nodes limit the number of attached volumes of the driver.
    fn is_attach_limited(&self, driver: &str) -> bool {
        let listed =
            || self.observed.attach_limits.values().any(|limits| limits.contains_key(driver));
        driver == EBS_DRIVER || listed()
    }

    fn sharing(&self, namespace: &Namespace, name: &str) -> Sharing {
        let (claim, _) = self.find(namespace, name).unzip();
        let one = claim.is_some_and(Claim::is_single_pod);
        if one { Sharing::OnePod } else { Sharing::Shared }
    }

    /// Returns the claim, with true if it exists in the cluster.
    fn find(&self, namespace: &Namespace, name: &str) -> Option<(&'a Claim, bool)> {
        if let Some(claim) = self.observed.claim(namespace, name) {
            return Some((claim, true));
        }
        let declared = self.desired?.claims.get(&(namespace.clone(), name.to_owned()))?;
        Some((&declared.claim, false))
    }

    fn volume(&self, name: &str) -> Option<&'a PersistentVolume> {
        self.observed.volumes.get(name).or_else(|| self.desired?.volumes.get(name))
    }

    fn volumes(&self) -> impl Iterator<Item = (&'a str, &'a PersistentVolume)> {
        let declared = self.desired.into_iter().flat_map(|desired| &desired.volumes);
        let new = declared.filter(|(name, _)| !self.observed.volumes.contains_key(*name));
        self.observed.volumes.iter().chain(new).map(|(name, volume)| (name.as_str(), volume))
    }

    /// Returns the binding of an existing or declared claim.
    fn claim(&self, namespace: &Namespace, name: &str) -> Option<ClaimBinding> {
        let (claim, live) = self.find(namespace, name)?;
        let mut binding = if live {
            self.live_claim(claim)
        } else {
            self.declared_claim(claim, &format!("{namespace}/{name}"))
        };
        if claim.deleting {
            binding.problem = Some(VolumeProblem::Deleting);
        }
        Some(binding)
    }

    fn live_claim(&self, claim: &Claim) -> ClaimBinding {
        match (claim.phase, &claim.volume_name) {
            (ClaimPhase::Lost, _) => ClaimBinding::blocked(VolumeProblem::Lost),
            (ClaimPhase::Bound, Some(volume)) => self.bound_volume(volume),
            (ClaimPhase::Pending, Some(volume)) => {
                ClaimBinding::blocked(VolumeProblem::VolumePending(volume.clone()))
            }
            (ClaimPhase::Bound | ClaimPhase::Pending, None) => {
                match self.class(claim.storage_class.as_deref()) {
                    Ok(Some((name, class))) if !class.wait_for_first_consumer => {
                        ClaimBinding::blocked(VolumeProblem::Immediate(name.to_owned()))
                    }
                    Ok(None) => ClaimBinding::blocked(VolumeProblem::ByHand),
                    Ok(Some((name, class))) if class.provisioner == NO_PROVISIONER => {
                        let binding = self.static_binding(claim, name, true);
                        binding.unwrap_or_else(|| ClaimBinding::blocked(VolumeProblem::ByHand))
                    }
                    Ok(Some(_)) | Err(_) => self.new_claim(claim.storage_class.as_deref()),
                }
            }
        }
    }

    /// Returns the binding of a claim that will be created. If it names a volume, or a volume is
    /// reserved for it, it is bound to that volume immediately. Other claims take a free volume of
    /// their class. A class with delayed binding provisions a volume where no free one is reachable.
    fn declared_claim(&self, claim: &Claim, full: &str) -> ClaimBinding {
        let is_reserved =
            |(_, volume): &(&str, &PersistentVolume)| volume.claim.as_deref() == Some(full);
        let requested = claim.volume_name.as_deref();
        let selected = requested.or_else(|| self.volumes().find(is_reserved).map(|(name, _)| name));
        if let Some(name) = selected {
            let class = self.volume_class(claim);
            let is_unfit = |volume: &PersistentVolume| {
                let is_other = class.is_some_and(|class| class != volume.class());
                !volume.can_bind(claim, full) || (volume.claim.is_none() && is_other)
            };
            let unfit = self.volume(name).is_some_and(is_unfit);
            let unfit =
                unfit.then(|| ClaimBinding::blocked(VolumeProblem::VolumeUnfit(name.to_owned())));
            return unfit.unwrap_or_else(|| self.bound_volume(name));
        }
        let delayed = match self.class(claim.storage_class.as_deref()) {
            Ok(Some((_, class))) if class.wait_for_first_consumer => Some(class),
            Ok(_) | Err(_) => None,
        };
        let is_provisioned = delayed.is_some_and(|class| class.provisioner != NO_PROVISIONER);
        let class = self.volume_class(claim).filter(|_| !is_provisioned);
        let existing = class.and_then(|class| self.static_binding(claim, class, delayed.is_some()));
        existing.unwrap_or_else(|| self.new_claim(claim.storage_class.as_deref()))
    }

    fn bound_volume(&self, volume: &str) -> ClaimBinding {
        let missing = || ClaimBinding::blocked(VolumeProblem::VolumeGone(volume.to_owned()));
        self.volume(volume).map_or_else(missing, volume_binding)
    }

    /// Returns the class of a claim with its name; `Ok(None)` if the requested name is empty.
    fn class(
        &self,
        requested: Option<&str>,
    ) -> Result<Option<(&'a str, &'a StorageClass)>, ClaimBinding> {
        let found = match requested {
            Some("") => return Ok(None),
            Some(name) => self.classes().find(|(known, _)| *known == name),
            // The youngest default class counts, then the first by name. A class that is only
            // declared is younger than every observed class.
            None => self.classes().filter(|(_, class)| class.is_default).min_by_key(|(name, _)| {
                let created = self.observed.classes.get(*name).map(|class| class.created_at);
                (created.is_some(), std::cmp::Reverse(created.flatten()), *name)
            }),
        };
        let missing = || match requested {
            // Without any observed class, the classes were not read, or the cluster is empty.
            _ if self.observed.classes.is_empty() => {
                let cause = TopologySource::Assumed(requested.unwrap_or(DEFAULT_CLASS).to_owned());
                ClaimBinding::new(cause, Some(EBS_DRIVER), vec![Requirements::default()])
            }
            Some(name) => ClaimBinding::blocked(VolumeProblem::ClassGone(name.to_owned())),
            None => ClaimBinding::blocked(VolumeProblem::NoDefaultClass),
        };
        found.map(Some).ok_or_else(missing)
    }

    /// Returns the class of the volumes that a claim can be bound to, empty for none. `None` if it
    /// is the default class, which is unknown.
    fn volume_class<'c>(&self, claim: &'c Claim) -> Option<&'c str>
    where
        'a: 'c,
    {
        let requested = claim.storage_class.as_deref();
        match self.class(requested) {
            Ok(found) => Some(found.map_or("", |(name, _)| name)),
            Err(_) if self.observed.classes.is_empty() => requested,
            Err(_) => Some(requested.unwrap_or_default()),
        }
    }

    /// Returns the classes. A declared class takes precedence, because it applies to new claims.
    fn classes(&self) -> impl Iterator<Item = (&'a str, &'a StorageClass)> {
        let declared = self.desired.map(|desired| &desired.storage_classes);
        let new = move |name: &str| !declared.is_some_and(|declared| declared.contains_key(name));
        let live = self.observed.classes.iter().filter(move |(name, _)| new(name));
        declared.into_iter().flatten().chain(live).map(|(name, class)| (name.as_str(), class))
    }

    /// Returns the binding of an unbound claim for its first pod.
    fn new_claim(&self, requested: Option<&str>) -> ClaimBinding {
        let (name, class) = match self.class(requested) {
            Ok(Some(found)) => found,
            Ok(None) => return ClaimBinding::blocked(VolumeProblem::ByHand),
            Err(binding) => return binding,
        };
        if class.provisioner == NO_PROVISIONER {
            return ClaimBinding::blocked(VolumeProblem::ByHand);
        }
        let driver = csi_driver(&class.provisioner);
        let nodes = node_alternatives(&class.allowed_topologies);
        let is_known =
            class.wait_for_first_consumer || is_file_system(driver) || is_single_topology(&nodes);
        let mut binding =
            ClaimBinding::new(TopologySource::Class(name.to_owned()), Some(driver), nodes);
        binding.problem = (!is_known).then(|| VolumeProblem::Immediate(name.to_owned()));
        binding
    }

    /// Returns the binding of a claim to one of the free volumes that suit it. `None` if there is
    /// none, or if it is unknown which nodes reach the one that it gets.
    ///
    /// The claim takes the first of these volumes that no other claim has taken. For a class with
    /// delayed binding (`delayed`), the node of the pod decides, so all must be alike.
    fn static_binding(&self, claim: &Claim, class: &str, delayed: bool) -> Option<ClaimBinding> {
        let free = self.volumes().map(|(_, volume)| volume);
        let mut free: Vec<_> = free.filter(|volume| volume.suits(claim, class)).collect();
        free.sort_by_key(|volume| volume.choice_order());
        let first = volume_binding(free.first()?);
        let is_alike = |volume: &&&PersistentVolume| {
            let other = volume_binding(volume);
            other.nodes == first.nodes && other.driver == first.driver
        };
        let alike = free.iter().take_while(is_alike).count();
        // Index of the first volume that each pending claim could take, this one included.
        let first_choice = |claim: &'a Claim| {
            let class = self.volume_class(claim)?;
            free.iter().position(|volume| volume.suits(claim, class))
        };
        let choices: Vec<usize> = self.pending_claims().filter_map(first_choice).collect();
        // Of volumes of the same order, any may be taken first.
        let is_end = |count: usize| match free.get(count) {
            Some(next) => !delayed && free[count - 1].choice_order() < next.choice_order(),
            None => true,
        };
        let is_known = |&count: &usize| {
            is_end(count) && choices.iter().filter(|index| **index < count).count() <= count
        };
        (1..=alike).find(is_known).map(|_| first)
    }

    /// Returns the claims that name no volume, and for which no volume is reserved.
    fn pending_claims(&self) -> impl Iterator<Item = &'a Claim> {
        let reserved: BTreeSet<&str> =
            self.volumes().filter_map(|(_, volume)| volume.claim.as_deref()).collect();
        let live = self.observed.claims.values().flat_map(BTreeMap::values);
        let declared = self.desired.into_iter().flat_map(|desired| &desired.claims);
        let observed = self.observed;
        let new = declared.filter(move |((namespace, name), _)| {
            observed.claim(namespace, name).is_none()
                && !reserved.contains(format!("{namespace}/{name}").as_str())
        });
        let is_pending =
            |claim: &&Claim| claim.volume_name.is_none() && claim.phase == ClaimPhase::Pending;
        live.chain(new.map(|(_, declared)| &declared.claim)).filter(is_pending)
    }
}

fn volume_binding(volume: &PersistentVolume) -> ClaimBinding {
    ClaimBinding::new(
        TopologySource::Bound,
        volume.driver.as_deref(),
        node_alternatives(&volume.node_terms),
    )
}

/// Returns the binding of a disk that a pod references directly.
fn inline_disk_binding(id: &str) -> ClaimBinding {
    let Some(zone) = ebs_zone(id) else { return ClaimBinding::blocked(VolumeProblem::UnknownDisk) };
    let zone = [(key::ZONE.into(), LabelSet::one(&zone.into()))].into_iter().collect();
    ClaimBinding::new(TopologySource::Disk, Some(EBS_DRIVER), vec![zone])
}

/// Returns the requirements of alternative terms. An empty list requires nothing.
fn node_alternatives(terms: &[NodeTerm]) -> Vec<Requirements> {
    if terms.is_empty() {
        return vec![Requirements::default()];
    }
    // A term without expressions matches no node. So does a term over fields, because volumes have
    // no fields.
    let valid = terms.iter().filter(|t| !t.expressions.is_empty() && t.fields.is_empty());
    valid.map(term_requirements).collect::<BTreeSet<_>>().into_iter().collect()
}

fn term_requirements(term: &NodeTerm) -> Requirements {
    let pairs = term.expressions.iter();
    pairs.map(|e| (normalize_key(e.key.as_str()).into(), label_set(e))).collect()
}

/// Returns true if there is exactly one alternative with exactly one value for each key.
fn is_single_topology(nodes: &[Requirements]) -> bool {
    let [only] = nodes else { return false };
    !only.is_unconstrained() && only.iter().all(|(_, set)| is_single(set))
}

fn is_single(set: &LabelSet) -> bool {
    !set.allows_absence() && set.values().finite(1).is_some_and(|values| values.len() == 1)
}

/// Returns the choice of nodes that every volume allows: all compatible combinations of one
/// alternative of each volume. `None` if there are more than [`ALTERNATIVES_MAX`].
fn narrow_nodes(choice: &NodeChoice, mounts: &[PodVolume]) -> Option<NodeChoice> {
    let stated = choice.stated();
    let mut narrowed: BTreeSet<Requirements> = stated.iter().cloned().collect();
    for mount in mounts.iter().filter(|mount| !is_any_node(&mount.nodes)) {
        let both = narrowed.iter().flat_map(|left| mount.nodes.iter().map(|right| left.and(right)));
        narrowed = both.filter(|both| both.conflict().is_none()).collect();
        if narrowed.len() > ALTERNATIVES_MAX {
            return None;
        }
    }
    let stated = stated.to_vec();
    Some(if mounts.iter().all(|mount| is_any_node(&mount.nodes)) {
        NodeChoice { any_of: stated, without_volumes: None, ..choice.clone() }
    } else {
        let any_of = narrowed.into_iter().collect();
        NodeChoice { any_of, without_volumes: Some(stated), ..choice.clone() }
    })
}

fn is_any_node(nodes: &[Requirements]) -> bool {
    nodes.iter().any(Requirements::is_unconstrained)
}

#[cfg(test)]
mod tests;
