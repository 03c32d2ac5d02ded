//! Instance types, what a node of each offers, where it is offered, and at what price.
//!
//! This module knows EC2's facts (embedded as a snapshot) and the arithmetic from capacity to
//! allocatable. It knows nothing of pods, plans or live state. Invariant: the same region and zones
//! give the same catalogue; everything is ordered by name.

mod model;

pub use model::{
    Allocation, CapacityType, Catalog, CatalogError, InstanceType, NodeSettings, Offering,
    PriceSource, Zone,
};
