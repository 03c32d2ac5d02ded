//! Builders of worlds and plans for unit tests.

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
pub(crate) mod status;
pub(crate) mod valid_plan;
pub(crate) mod world;

pub(crate) use desired::{node_class, pool, requirement};
pub(crate) use placement_simulation::PlacementSimulation;
pub(crate) use scenario::{Scenario, workload_id};
