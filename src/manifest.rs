//! Files of a repository → typed [`Desired`]: what the repository asks for.
//!
//! This module knows YAML, the Kubernetes objects that decide capacity, and the generations of
//! Karpenter's API. It knows nothing of live state, prices or plans. Invariants: every object
//! remembers its file and line; nothing that was read is dropped in silence (it is an object, a
//! [`Skipped`] with its reason, or a [`Problem`]); the result does not depend on the order of files
//! or documents.

mod model;
mod pool;

pub use model::{
    AutoscalerRef, CronSchedule, Desired, DisruptionBudget, LimitRangeItem, PersistentVolume,
    Problem, RuntimeClass, Scale, Severity, Skipped, StorageClass, Tree, TreeFile, Unresolved,
    VolumeClaim, Workload,
};
pub use pool::{
    AmiFamily, Budget, Consolidation, Expiry, Generation, KubeletSettings, NodeClass, Pool,
    PoolLimits, PoolRequirement, Reserved,
};
