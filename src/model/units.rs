//! Typed quantities, and the resource vector for placement.
//!
//! This module covers arithmetic and the quantity syntax of Kubernetes. It does not depend on pods,
//! nodes or price lists. Invariant: all quantities are integers, so sums do not depend on order.
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
