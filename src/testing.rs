//! What unit tests share: one builder of worlds, one of plans, and fixtures made with them.
//!
//! - [`world`], [`desired`], [`pods`], [`catalog`]: minimal parts; `Observed::with_*` adds to a world.
//! - [`plan`]: `Plan::unchanged` starts a plan in wire form, `with_*` adds rows and waves.
//! - [`Scenario`]: a repository and a world in which its plans are carried out.
//! - [`PlacementSimulation`]: whether a scheduling order leads to the end state of a plan.
//! - [`sample_plan`], [`valid_plan`]: plans with every kind of row, for views and for verification.
//! - [`top`]: views of nodes.
//! - [`simulator`], [`apply`], [`controller`]: simulated worlds, failing ports, the controller.

pub(crate) mod apply;
pub(crate) mod catalog;
pub(crate) mod controller;
pub(crate) mod desired;
mod placement_simulation;
pub(crate) mod plan;
pub(crate) mod pods;
pub(crate) mod sample_plan;
mod scenario;
pub(crate) mod simulator;
pub(crate) mod top;
pub(crate) mod valid_plan;
pub(crate) mod world;

pub(crate) use desired::{node_class, pool, requirement};
pub(crate) use placement_simulation::PlacementSimulation;
pub(crate) use scenario::{Scenario, workload_id};
