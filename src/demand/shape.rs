//! What one pod asks for, with every default applied: the unit of placement.

use crate::ids::{Labels, Namespace};
use crate::pod::{HostPort, PodAffinity, Toleration, TopologySpread, Volume};
use crate::requirement::Requirements;
use crate::units::Resources;

/// What one pod asks for. Pods of equal shape can stand in for each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodShape {
    /// Namespace.
    pub namespace: Namespace,
    /// Labels of the pod.
    pub labels: Labels,
    /// Requests with init containers, sidecars and overhead; `pods` is 1.
    pub requests: Resources,
    /// The nodes it may run on.
    pub nodes: NodeChoice,
    /// Tolerations.
    pub tolerations: Vec<Toleration>,
    /// Ports of the node it binds.
    pub host_ports: Vec<HostPort>,
    /// Topology spread constraints.
    pub spread: Vec<TopologySpread>,
    /// Affinity to other pods.
    pub affinity: PodAffinity,
    /// Anti-affinity to other pods.
    pub anti_affinity: PodAffinity,
    /// Volumes that bind it to a place.
    pub volumes: Vec<Volume>,
    /// Priority; higher goes first.
    pub priority: i32,
    /// Whether the pod may not be moved (`do-not-disrupt`, `safe-to-evict: "false"`).
    pub pinned: bool,
    /// What the pod uses that placement does not know yet; such a pod is reported, never planned
    /// as if it asked for nothing.
    pub unsupported: Vec<Unsupported>,
}

/// The nodes a pod may run on: one of the alternatives must hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeChoice {
    /// Alternatives (node selector ∧ one term of node affinity). Empty means *no* node at all;
    /// a pod without any wish has one alternative that requires nothing.
    pub any_of: Vec<Requirements>,
    /// Weighted wishes.
    pub preferred: Vec<(i32, Requirements)>,
    /// The only node it may run on.
    pub name: Option<String>,
}

/// A feature of a pod that placement does not know yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unsupported {
    /// `topologySpreadConstraints` with `DoNotSchedule`.
    TopologySpread,
    /// Required pod affinity.
    PodAffinity,
    /// Required pod anti-affinity.
    PodAntiAffinity,
    /// Volumes that bind to a zone or node.
    Volumes,
    /// Host ports.
    HostPorts,
    /// A scheduler other than the default one.
    OtherScheduler,
    /// Scheduling gates.
    SchedulingGates,
    /// Dynamic resource claims.
    ResourceClaims,
    /// Node affinity over fields.
    MatchFields,
    /// The pod names its node itself.
    NodeName,
}

impl Unsupported {
    /// Returns the feature in the words of Kubernetes' API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TopologySpread => "topologySpreadConstraints",
            Self::PodAffinity => "podAffinity",
            Self::PodAntiAffinity => "podAntiAffinity",
            Self::Volumes => "volumes",
            Self::HostPorts => "hostPort",
            Self::OtherScheduler => "schedulerName",
            Self::SchedulingGates => "schedulingGates",
            Self::ResourceClaims => "resourceClaims",
            Self::MatchFields => "matchFields",
            Self::NodeName => "nodeName",
        }
    }
}
