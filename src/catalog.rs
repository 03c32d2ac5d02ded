//! Instance types with their allocatable resources, offerings and prices.
//!
//! This module contains the facts of EC2 (embedded as a snapshot) and the arithmetic from capacity
//! to allocatable. It knows nothing of pods, plans or live state. Invariant: the same region and
//! zones give the same catalog, ordered by name.
//!
//! ```
//! use fleetwright::catalog::{Catalog, NodeSettings, allocation};
//! let catalog = Catalog::load(&"us-east-1".into(), &[]).unwrap();
//! let cheap = "karpenter.k8s.aws/instance-category in (c,m),karpenter.k8s.aws/instance-cpu>4".parse().unwrap();
//! let (kind, offering) = catalog.cheapest(&cheap)[0];
//! assert!(offering.price.is_some());
//! assert!(allocation(kind, &NodeSettings::default()).allocatable.memory.0 > 0);
//! ```
#![doc = include_str!("adr/0002-catalog.md")]

mod allocatable;
mod allocatable_step;
mod described_types;
mod instance_type;
mod live_market;
mod loader;
mod lookup;
mod measured_nodes;
mod network_interfaces;
mod node_overlay;
mod node_resource;
mod node_settings;
mod pool_warnings;
mod snapshot;
mod synthetic;
mod types;
mod unmet_requirement;
mod volume_limits;

pub use allocatable::{allocation, explain};
pub use allocatable_step::{AllocationStep, Formula, PodCount};
pub use instance_type::{InstanceType, Offering};
pub use live_market::types_missing_from_snapshot;
pub use loader::{TYPES_UNPRICED, ZONES_ASSUMED, warning_code};
pub use lookup::MissingType;
pub use measured_nodes::MeasuredNodes;
pub use node_overlay::{OverlaidOffering, Overlays};
pub use node_resource::{Allocation, AllocationPart, NodeResource};
pub use node_settings::NodeSettings;
pub use synthetic::SyntheticType;
pub use types::{Catalog, CatalogError, PriceSource, Zone};
pub use volume_limits::{ebs_volumes, ebs_volumes_by_name};
