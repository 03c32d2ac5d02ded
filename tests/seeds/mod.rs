//! The loop in a simulation: one thread, virtual time, the code of production over the embedded world,
//! with faults drawn from a seed.
//!
//! `cargo bench --bench seeds` runs 2,000 seeds of 30 simulated minutes; `-- --replay SEED` runs one, and
//! tells what happens. The same seed is the same run, whatever the machine.

pub(crate) mod check;
pub(crate) mod clocks;
pub(crate) mod drawn;
pub(crate) mod files;
pub(crate) mod hardships;
pub(crate) mod idle;
pub(crate) mod images;
pub(crate) mod incidents;
pub(crate) mod mishaps;
pub(crate) mod modes;
pub(crate) mod others;
pub(crate) mod outside;
pub(crate) mod people;
pub(crate) mod random;
pub(crate) mod repairs;
pub(crate) mod run;
pub(crate) mod story;
pub(crate) mod taken;
pub(crate) mod time;
