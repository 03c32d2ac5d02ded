//! Capacity reported by former nodes, stored in `fleetwright.learned.json`.

use serde::{Deserialize, Serialize};

use crate::model::ids::{InstanceTypeName, PoolName};
use crate::model::units::Resources;

/// Name of the file in the root of the repository.
pub const LEARNED_FILE: &str = "fleetwright.learned.json";

/// Format version that is written and accepted.
pub const FORMAT: u32 = 1;

/// Content of `fleetwright.learned.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedNodes {
    /// Format version.
    pub format_version: u32,
    /// Entries, ordered by pool, specification and instance type.
    pub nodes: Vec<LearnedNode>,
}

/// Lowest capacity reported by any node of one instance type and pool specification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedNode {
    /// Pool name.
    pub pool: PoolName,
    /// Digest of the launch specification, as in the tag of the instances. An entry is ignored
    /// unless its digest matches the declared specification.
    pub spec_digest: String,
    /// Instance type.
    pub instance_type: InstanceTypeName,
    /// Total capacity of a node.
    pub capacity: Resources,
    /// Allocatable resources of a node.
    pub allocatable: Resources,
}

impl LearnedNodes {
    /// Returns the file content for these nodes.
    pub fn new(nodes: Vec<LearnedNode>) -> Self {
        Self { format_version: FORMAT, nodes }
    }
}
