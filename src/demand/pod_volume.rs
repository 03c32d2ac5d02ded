//! A volume of a pod, as far as it decides where the pod may run.

use std::fmt;

use crate::model::requirement::{Requirements, key};

/// A volume of a pod: where it lets the pod run, who attaches it, and who else may use it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodVolume {
    /// The claim as `namespace/name`, or the disk. Claims that a template makes, one for each pod,
    /// share a name that ends in `*`.
    pub name: String,
    /// Who else may use it.
    pub sharing: Sharing,
    /// The CSI driver that attaches it to the node, where the volumes of that driver are counted.
    pub driver: Option<String>,
    /// Alternatives of which a node must meet one; a volume that any node reaches has one that
    /// requires nothing.
    pub nodes: Vec<Requirements>,
    /// What decides `nodes`.
    pub cause: TopologySource,
    /// Whether the volume is made where its first pod goes, and then reached from that zone alone.
    pub zone_set_by_first_pod: bool,
    /// Why no pod that uses the volume can be placed now; such a pod stays where it runs.
    pub problem: Option<VolumeProblem>,
}

/// Who may use a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sharing {
    /// The pod alone has it: each pod has a volume of its own.
    Own,
    /// All pods that name it; a node attaches it once for all of them.
    Shared,
    /// One pod of the whole cluster (`ReadWriteOncePod`).
    OnePod,
    /// One pod of each node, as with disks that pods name themselves.
    OnePodPerNode,
}

/// What decides the nodes that a volume can be reached from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TopologySource {
    /// The volume that the claim is bound to.
    Bound,
    /// The storage class; the volume is made where the pod goes.
    Class(String),
    /// A storage class that nobody declares, taken for one of EBS volumes that follow their pods.
    Assumed(String),
    /// The disk that the pod names.
    Disk,
}

/// Why the pods of a claim have no place yet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VolumeProblem {
    /// The claim is declared nowhere.
    Missing,
    /// The claim is being deleted.
    Deleting,
    /// The volume of the claim is lost.
    Lost,
    /// The claim's volume is not there.
    VolumeGone(String),
    /// The claim asks for a volume and is not bound to it yet.
    VolumePending(String),
    /// The volume that the claim asks for, or that is kept for it, is too small, of other access
    /// modes, or kept for another claim.
    VolumeUnfit(String),
    /// The claim names no class, and no class is the default.
    NoDefaultClass,
    /// The claim's class is not there.
    ClassGone(String),
    /// The class binds at once, and not yet: where the volume will be is not known.
    Immediate(String),
    /// The claim gets a volume that somebody made, and which one is not known.
    ByHand,
    /// Another pod has the claim, which is for one pod.
    InUse,
    /// Where the disk is, is not known.
    UnknownDisk,
    /// The pod's volumes allow more combinations of places than are looked at.
    TooManyPlaces,
}

impl PodVolume {
    /// Returns why no pod can be placed, as a sentence without an end.
    #[must_use]
    pub fn problem_text(&self) -> Option<String> {
        let name = &self.name;
        Some(match self.problem.as_ref()? {
            VolumeProblem::Missing => {
                format!("claim {name} is neither in the repository nor in the world")
            }
            VolumeProblem::Deleting => format!("claim {name} is being deleted"),
            VolumeProblem::Lost => format!("claim {name} has lost its volume"),
            VolumeProblem::VolumeGone(volume) => {
                format!("claim {name} needs volume {volume}, which is not there")
            }
            VolumeProblem::VolumePending(volume) => {
                format!("claim {name} asks for volume {volume} and is not bound to it yet")
            }
            VolumeProblem::VolumeUnfit(volume) => format!(
                "claim {name} cannot be bound to volume {volume}, which is too small, has other \
                 access modes, or is kept for another claim"
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
                format!("claim {name} waits for a volume that somebody makes by hand")
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

    /// Returns what the volume asks of nodes, as a sentence without an end.
    #[must_use]
    pub fn topology_text(&self) -> String {
        let Self { name, cause, nodes, .. } = self;
        let places = Places(nodes);
        match cause {
            TopologySource::Bound => format!("claim {name} is bound to a volume in {places}"),
            TopologySource::Class(class) | TopologySource::Assumed(class) => {
                format!("claim {name} is of storage class {class}, which allows {places} only")
            }
            TopologySource::Disk => format!("disk {name} is in {places}"),
        }
    }
}

/// Shows alternatives: a zone by its name, everything else as it is required.
struct Places<'a>(&'a [Requirements]);

impl fmt::Display for Places<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, place) in self.0.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { " or " })?;
            let mut pairs = place.iter();
            match (pairs.next(), pairs.next()) {
                (Some((key, set)), None) if key.as_str() == key::ZONE => write!(f, "zone {set}")?,
                (Some((key, set)), None) if key.as_str() == key::HOSTNAME => {
                    write!(f, "node {set}")?;
                }
                _ => write!(f, "nodes with {place}")?,
            }
        }
        Ok(())
    }
}
