//! Sections of `terraform show -json` that follow from the rows of a plan.
//!
//! Outputs contain them, saved plans do not. Readers drop them and derive them anew, so a file
//! cannot state wrong ones. [`Plan::to_output_json`](super::Plan::to_output_json) derives them.

use schemars::JsonSchema;
use serde::de::{Deserializer, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::{NodeState, ResourceKind};
use crate::model::ids::Address;

/// Version of [`PriorState`], which Terraform counts apart from the version of plans.
pub const STATE_FORMAT_VERSION: &str = "1.0";

/// Modes of resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResourceMode {
    /// A resource, as opposed to a data source.
    Managed,
}

/// Providers of resources, in Terraform's form `HOST/NAMESPACE/TYPE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub enum ProviderName {
    /// The provider of all resources.
    #[serde(rename = "fleetwright.dev/fleetwright/fleetwright")]
    Fleetwright,
}

/// Resources by module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ResourceValues {
    /// The only module.
    pub root_module: ModuleValues,
}

/// Resources of a module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ModuleValues {
    /// Resources, sorted by address.
    pub resources: Vec<ResourceValue>,
}

/// A resource with its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ResourceValue {
    /// Address, unique within the module.
    pub address: Address,
    /// Mode.
    pub mode: ResourceMode,
    /// Resource type.
    #[serde(rename = "type")]
    pub kind: ResourceKind,
    /// Pool, node or group name.
    pub name: String,
    /// Key within the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// Provider of the resource.
    pub provider_name: ProviderName,
    /// State of the resource. Keys of `after_unknown` are absent.
    pub values: NodeState,
}

/// Resources before the apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PriorState {
    /// Format version of the state, `major.minor`.
    pub format_version: &'static str,
    /// The resources.
    pub values: ResourceValues,
}

/// Reads a derived value and drops it.
pub(super) fn drop_derived<'de, D: Deserializer<'de>, T>(value: D) -> Result<Option<T>, D::Error> {
    IgnoredAny::deserialize(value).map(|_| None)
}
