//! Instance types, what a node of each offers, where it is offered, and at what price.
//!
//! This module knows EC2's facts (embedded as a snapshot) and the arithmetic from capacity to
//! allocatable. It knows nothing of pods, plans or live state. Invariant: the same region and zones
//! give the same catalogue; everything is ordered by name.
//!
//! ```
//! use fleetwright::catalog::{Catalog, NodeSettings, allocation};
//! let catalog = Catalog::load(&"us-east-1".into(), &[]).unwrap();
//! let cheap = "karpenter.k8s.aws/instance-category in (c,m),karpenter.k8s.aws/instance-cpu>4".parse().unwrap();
//! let (kind, offering) = catalog.cheapest(&cheap)[0];
//! assert!(offering.price.is_some());
//! assert!(allocation(kind, &NodeSettings::default()).allocatable.memory.0 > 0);
//! ```
#![doc = include_str!("adr/0002-catalogue.md")]

mod allocation;
mod attachment;
mod described;
mod facts;
mod formula;
mod load;
mod lookup;
mod market;
mod measured;
mod model;
mod near;
mod overlay;
mod quota;
mod snapshot;
mod step;
mod synthetic;
mod unknown;

pub use allocation::{allocation, explain};
pub use attachment::{ebs_volumes, ebs_volumes_of};
pub use described::{DeviceFacts, TypeFacts};
pub use formula::{Formula, PodCount};
pub use lookup::Absent;
pub use market::{Listed, Market, Places, unfamiliar};
pub use measured::Measured;
pub use model::{
    Allocation, CapacityType, Catalog, CatalogError, InstanceType, NodeSettings, Offering,
    PriceSource, Zone, ZoneSetting,
};
pub use overlay::{Overlaid, Overlays};
pub use quota::{Quota, QuotaClass, Quotas};
pub use step::{AllocationStep, NodeResource, Part};
pub use synthetic::SyntheticType;
