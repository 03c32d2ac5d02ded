//! Files of a repository → typed [`Desired`]: what the repository asks for.
//!
//! This module knows YAML, the Kubernetes objects that decide capacity, and the generations of
//! Karpenter's API. It knows nothing of live state, prices or plans. Invariants: every object
//! remembers its file and line; nothing that was read is dropped in silence (it is an object, a
//! [`Skipped`] with its reason, an [`Unresolved`] or a [`Problem`]); the result does not depend on
//! the order of files or documents.
//!
//! ```
//! use fleetwright::manifest::{Fleet, Tree, TreeFile, read};
//! let text = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: api}, spec: {replicas: 3,
//!   template: {spec: {containers: [{name: app, resources: {requests: {cpu: 500m}}}]}}}}";
//! let file = TreeFile { path: "api.yaml".into(), content: Ok(text.as_bytes().into()) };
//! let desired = read(&Tree { files: vec![file] }, &Fleet::default());
//! assert!(desired.problems.is_empty() && desired.workloads.len() == 1);
//! ```

mod amounts;
mod budget;
mod classify;
mod cluster;
mod collect;
mod cron;
mod decode;
mod delivery;
mod duration;
mod eksctl;
mod fleet;
mod group;
mod karpenter;
mod labels;
mod layout;
mod learned;
mod limits;
mod live;
mod machine;
mod meta;
mod model;
mod order;
mod placeholder;
mod podspec;
mod pool;
mod read;
mod references;
mod rendered;
mod scaling;
mod sources;
mod storage;
mod workload;
mod yaml;

#[cfg(doc)]
#[doc = include_str!("adr/0001-yaml.md")]
pub mod adr_0001 {}

pub use budget::kept_pods;
pub use cron::Schedule;
pub use duration::parse as parse_duration;
pub(crate) use fleet::normal_path;
pub use fleet::{
    ApprovalRule, Autoscaled, ClusterSettings, Commitment, CommitmentKind, ConsolidationSettings,
    ControllerSettings, DeliverySettings, DemandSettings, FailureDomains, Fleet, GuardSettings,
    MergedBy, Mode, Most, Rate, Renderer, Shares, Signer, SignerKey, Source, TrustedKey, Window,
    is_read, read_fleet,
};
pub use group::{DISCOVERY_PREFIX, DISCOVERY_TAG, GroupKind, NodeGroup};
pub(crate) use layout::KUSTOMIZATION;
pub use layout::{Loads, loads};
pub use learned::{LEARNED_FILE, Learned, LearnedNode};
pub use live::read_live;
pub use machine::{
    BlockDevice, Identity, ImageTerm, Machine, MetadataOptions, Selector as MachineSelector,
    UserData, in_words,
};
pub use model::{
    BufferScaling, Concurrency, CronSchedule, Desired, DisruptionBudget, JobScaling, JobStrategy,
    LimitRangeItem, LimitScope, PriorityClass, Problem, QuotaScope, ResourceQuota, RuntimeClass,
    Scale, Severity, Skipped, Tree, TreeFile, Unresolved, VolumeClaim, Workload,
};
pub use order::{Home, Layer, Order, Recipe, Release, Rendered, Renderings, SetValue, Values};
pub use pool::{
    AmiFamily, Budget, Consolidation, Expiry, Generation, KubeletSettings, MinValuesPolicy,
    NodeClass, Overlay, Pool, PoolLimits, PoolRequirement, PriceChange, ReservationTerm, Reserved,
};
pub use read::{read, read_rendered};
pub(crate) use rendered::STAGED_PREFIX;
pub use scaling::{
    Behavior, ContainerPolicy, CronTrigger, EventDriven, Fallback, Horizontal, Ladder, Linear,
    Metric, MetricSource, MetricTarget, Paused, Proportional, ProportionalMode, ScaleTarget,
    Scaler, ScalerRule, ScalingPolicy, ScalingRules, SelectPolicy, UpdateMode, VerticalScaler,
};
pub use sources::{orders, paths_in};

#[cfg(test)]
mod tests;
