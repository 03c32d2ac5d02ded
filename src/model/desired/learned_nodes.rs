//! Capacity that former nodes reported: the file `fleetwright.learned.json`.

use serde::{Deserialize, Serialize};

use crate::model::ids::{InstanceTypeName, PoolName};
use crate::model::units::Resources;

/// Name of the file, at the root of the repository.
pub const LEARNED_FILE: &str = "fleetwright.learned.json";

/// The format that this version writes, and the only one that it reads.
pub const FORMAT: u32 = 1;

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedNodes {
    /// The version of the format.
    pub format_version: u32,
    /// By pool, specification and type.
    pub nodes: Vec<LearnedNode>,
}

/// Capacity of nodes of one type and pool specification: the least that any node reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedNode {
    /// The pool.
    pub pool: PoolName,
    /// Digest of the launch specification, as instances carry it. Entries of any other specification
    /// than the declared one are ignored.
    pub spec_digest: String,
    /// The type.
    pub instance_type: InstanceTypeName,
    /// Capacity of a node.
    pub capacity: Resources,
    /// Resources available to pods.
    pub allocatable: Resources,
}

impl LearnedNodes {
    /// Returns a file with these nodes.
    #[must_use]
    pub fn new(nodes: Vec<LearnedNode>) -> Self {
        Self { format_version: FORMAT, nodes }
    }
}
