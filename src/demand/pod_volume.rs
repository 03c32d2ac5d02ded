//! Volumes that decide the nodes of a pod.

use std::fmt;

use crate::model::requirement::{Requirements, key};

/// A volume of a pod: the nodes that it allows, its CSI driver, and its sharing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodVolume {
    /// Claim as `namespace/name`, or disk ID. Claims from one template, one for each pod, share a
    /// name that ends in `*`.
    pub name: String,
    /// Pods that may use the volume.
    pub sharing: Sharing,
    /// CSI driver that attaches the volume, if nodes limit the number of its volumes.
    pub driver: Option<String>,
    /// Alternative requirements, one of which the node must meet. A volume that is reachable from
    /// any node has one empty alternative.
    pub nodes: Vec<Requirements>,
    /// Source of `nodes`.
    pub cause: TopologySource,
    /// True if the first pod decides the volume's zone, and all later pods must run in that zone.
    pub zone_set_by_first_pod: bool,
    /// Reason why pods with this volume cannot be placed. Running pods stay on their nodes.
    pub problem: Option<VolumeProblem>,
}

/// Pods that may use a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sharing {
    /// One pod: each pod has its own volume.
    Own,
    /// All pods that name it. A node attaches it once for all of them.
    Shared,
    /// One pod in the cluster (`ReadWriteOncePod`).
    OnePod,
    /// One pod per node, as for disks that pods reference directly.
    OnePodPerNode,
}

/// Source of the nodes that can reach a volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TopologySource {
    /// The volume that the claim is bound to.
    Bound,
    /// A storage class, which provisions the volume for the pod.
    Class(String),
    /// An undeclared storage class, which is assumed to provision EBS volumes for the pod.
    Assumed(String),
    /// A disk that the pod references directly.
    Disk,
}

/// Reason why the pods of a claim cannot be placed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VolumeProblem {
    /// The claim exists neither in the repository nor in the cluster.
    Missing,
    /// The claim is being deleted.
    Deleting,
    /// The volume of the claim is lost.
    Lost,
    /// The volume of the claim does not exist.
    VolumeGone(String),
    /// The claim names a volume and is not bound to it yet.
    VolumePending(String),
    /// The volume that the claim names, or that is reserved for it, does not fit. It is too small,
    /// has other access modes or another class, or is reserved for another claim.
    VolumeUnfit(String),
    /// The claim names no class, and there is no default class.
    NoDefaultClass,
    /// The class of the claim does not exist.
    ClassGone(String),
    /// The class binds claims immediately, and this claim is not bound yet. Its zone is unknown.
    Immediate(String),
    /// The claim needs a manually created volume, and its topology is unknown.
    ByHand,
    /// Another pod uses the claim, which allows only one pod.
    InUse,
    /// The zone of the disk is unknown.
    UnknownDisk,
    /// The pod's volumes allow too many combinations of requirements.
    TooManyPlaces,
}

impl PodVolume {
    /// Returns the reason why no pod can be placed, as a clause without a final period.
    pub fn problem_text(&self) -> Option<String> {
        let name = &self.name;
        Some(match self.problem.as_ref()? {
            VolumeProblem::Missing => {
                format!("claim {name} is neither in the repository nor in the world")
            }
            VolumeProblem::Deleting => format!("claim {name} is being deleted"),
            VolumeProblem::Lost => format!("claim {name} has lost its volume"),
            VolumeProblem::VolumeGone(volume) => {
                format!(
                    "claim {name} needs volume {volume}, which is neither in the repository nor in \
                     the world"
                )
            }
            VolumeProblem::VolumePending(volume) => {
                format!("claim {name} asks for volume {volume} and is not bound to it yet")
            }
            VolumeProblem::VolumeUnfit(volume) => format!(
                "claim {name} cannot be bound to volume {volume}, which is too small, has other \
                 access modes or another storage class, or is kept for another claim"
            ),
            VolumeProblem::NoDefaultClass => {
                format!("claim {name} names no storage class, and none is the default")
            }
            VolumeProblem::ClassGone(class) => {
                format!("claim {name} is of storage class {class}, which does not exist")
            }
            VolumeProblem::Immediate(class) => format!(
                "claim {name} is not bound yet, and storage class {class} chooses its zone without \
                 regard to pods (volumeBindingMode Immediate)"
            ),
            VolumeProblem::ByHand => {
                format!(
                    "claim {name} needs a manually created PersistentVolume (its \
                     storageClassName is \"\", or its class has no provisioner), and it is not \
                     known which one it gets"
                )
            }
            VolumeProblem::InUse => {
                format!("claim {name} is for one pod (ReadWriteOncePod), and another has it")
            }
            VolumeProblem::UnknownDisk => format!("it is not known where the disk {name} is"),
            VolumeProblem::TooManyPlaces => {
                format!("its volumes, {name} among them, allow too many combinations of places")
            }
        })
    }

    /// Returns the nodes that the volume allows, as a clause without a final period.
    pub fn topology_text(&self) -> String {
        let Self { name, cause, nodes, .. } = self;
        let alternatives = Alternatives(nodes);
        match cause {
            TopologySource::Bound => format!("claim {name} is bound to a volume in {alternatives}"),
            TopologySource::Class(class) | TopologySource::Assumed(class) => {
                format!(
                    "claim {name} is of storage class {class}, which allows {alternatives} only"
                )
            }
            TopologySource::Disk => format!("disk {name} is in {alternatives}"),
        }
    }
}

/// Formats alternatives: zones and nodes by name, all others as requirements.
struct Alternatives<'a>(&'a [Requirements]);

impl fmt::Display for Alternatives<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, alternative) in self.0.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { " or " })?;
            let mut pairs = alternative.iter();
            match (pairs.next(), pairs.next()) {
                (Some((key, set)), None) if key.as_str() == key::ZONE => write!(f, "zone {set}")?,
                (Some((key, set)), None) if key.as_str() == key::HOSTNAME => {
                    write!(f, "node {set}")?;
                }
                _ => write!(f, "nodes with {alternative}")?,
            }
        }
        Ok(())
    }
}
