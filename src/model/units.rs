//! Quantities with their unit in the type, and the resource vector that placement works on.
//!
//! This module knows arithmetic and how Kubernetes writes quantities; it knows nothing of pods,
//! nodes or prices lists. Invariant: everything is an integer, so sums do not depend on order.
//!
//! ```
//! use fleetwright::model::units::{Bytes, MilliCpu, Quantity};
//! let memory: Quantity = "1.5Gi".parse().unwrap();
//! assert_eq!(Bytes::from_quantity(memory), Bytes(1_610_612_736));
//! let cpu: Quantity = "0.1".parse().unwrap();
//! assert_eq!(MilliCpu::from_quantity(cpu), MilliCpu(100));
//! ```

mod money;
mod quantity;
mod resources;

pub use money::{MicroUsd, ParseMoneyError};
pub use quantity::{Quantity, QuantityError};
pub use resources::{Bytes, MilliCpu, ResourceName, Resources};
