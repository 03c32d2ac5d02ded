//! Autoscalers of pods: the types of HorizontalPodAutoscaler, KEDA, VerticalPodAutoscaler and
//! cluster-proportional-autoscaler.

use std::collections::BTreeMap;
use std::fmt;

use jiff::SignedDuration;

use super::Schedule;
use crate::model::ids::{Labels, Namespace, Origin};
use crate::model::pod::ResourceList;
use crate::model::units::Quantity;

/// An autoscaler of replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scaler {
    /// The object, such as `HorizontalPodAutoscaler web/api`.
    pub object: String,
    /// File and line.
    pub origin: Origin,
    /// Namespace of it and of its targets.
    pub namespace: Namespace,
    /// Name.
    pub name: String,
    /// What it scales; all get the same count.
    pub targets: Vec<ScaleTarget>,
    /// Its rule.
    pub rule: ScalerRule,
}

/// An object with a scale, by kind and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScaleTarget {
    /// Kind as written.
    pub kind: String,
    /// Name.
    pub name: String,
}

impl fmt::Display for ScaleTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// The rule of a [`Scaler`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScalerRule {
    /// `HorizontalPodAutoscaler`.
    Horizontal(Horizontal),
    /// `ScaledObject`.
    EventDriven(EventDriven),
    /// cluster-proportional-autoscaler.
    Proportional(Proportional),
    /// Unknown: it could not be read, or its parameters are not in the repository.
    Unknown(String),
}

/// The rule of a `HorizontalPodAutoscaler`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Horizontal {
    /// Fewest pods.
    pub min: u32,
    /// Most pods.
    pub max: u32,
    /// Metrics; the highest proposal counts.
    pub metrics: Vec<Metric>,
    /// Scaling behavior; `None`: the controller's defaults.
    pub behavior: Option<Behavior>,
}

/// A metric of a `HorizontalPodAutoscaler`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metric {
    /// Source of the metric.
    pub source: MetricSource,
    /// Name of the resource or metric.
    pub name: String,
    /// Target value.
    pub target: MetricTarget,
}

/// Where a metric comes from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetricSource {
    /// A resource of all containers.
    Resource,
    /// A resource of the container of this name.
    ContainerResource(String),
    /// A metric of each pod.
    Pods,
    /// A metric of another object.
    Object,
    /// A metric of something outside the cluster.
    External,
}

/// The target value of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricTarget {
    /// This share of what pods request, in percent.
    Utilization(u32),
    /// This much for each pod.
    AverageValue(Quantity),
    /// This much in all.
    Value(Quantity),
}

/// Scaling behavior of a `HorizontalPodAutoscaler` by direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behavior {
    /// Upwards.
    pub up: ScalingRules,
    /// Downwards.
    pub down: ScalingRules,
}

/// Limits of one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalingRules {
    /// Stabilization window; `None`: the controller's default.
    pub window: Option<SignedDuration>,
    /// Which of the policies counts.
    pub select: SelectPolicy,
    /// How much may change in how long.
    pub policies: Vec<ScalingPolicy>,
    /// Tolerance in thousandths; `None`: the controller's default.
    pub tolerance_milli: Option<i64>,
}

/// Which of several policies counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectPolicy {
    /// The one that allows most.
    Max,
    /// The one that allows least.
    Min,
    /// Scaling in this direction is disabled.
    Disabled,
}

/// How much may change in one period. Its length does not matter for the next step: changes within
/// the present period are not observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScalingPolicy {
    /// Whether `amount` is percent of the pods, or pods.
    pub is_percent: bool,
    /// How much.
    pub amount: u32,
}

/// The rule of a `ScaledObject`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventDriven {
    /// Fewest pods while any trigger is active (0: none at all when none is).
    pub min: u32,
    /// Most pods.
    pub max: u32,
    /// Pods while no trigger is active, where that is less than `min`.
    pub idle: Option<u32>,
    /// Polling interval of the triggers.
    pub polling: SignedDuration,
    /// Cooldown from the last activity until scaling to the idle count.
    pub cooldown: SignedDuration,
    /// Scale-down stabilization window of the generated HPA.
    pub stabilization: SignedDuration,
    /// Fallback if a trigger cannot be read.
    pub fallback: Option<Fallback>,
    /// Cron triggers.
    pub crons: Vec<CronTrigger>,
    /// Types of the other triggers, whose values are known only in the cluster.
    pub triggers: Vec<String>,
    /// Whether a formula replaces the maximum of the triggers.
    pub has_formula: bool,
    /// Whether it is paused.
    pub paused: PauseMode,
    /// Whether it is active regardless of its triggers.
    pub is_forced: bool,
}

/// KEDA's fallback if a trigger cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fallback {
    /// Pods in that case.
    pub replicas: u32,
}

/// Whether an autoscaler is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseMode {
    /// Not paused.
    No,
    /// Paused at the current count.
    AsIs,
    /// Paused at this count.
    At(u32),
    /// Scale-in is paused.
    ScaleIn,
    /// Scale-out is paused.
    ScaleOut,
}

/// A cron trigger: from each `start` until the next `end` it wants so many pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronTrigger {
    /// File and line.
    pub origin: Origin,
    /// When it becomes active.
    pub start: Schedule,
    /// When it ends.
    pub end: Schedule,
    /// Desired pods.
    pub desired: u32,
}

/// The rule of a cluster-proportional-autoscaler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proportional {
    /// Labels of the nodes that count.
    pub node_labels: Labels,
    /// How pods follow nodes.
    pub mode: ProportionalMode,
}

/// How pods follow nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProportionalMode {
    /// In proportion.
    Linear(Linear),
    /// In steps.
    Ladder(Ladder),
}

/// Pods in proportion to cores and nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Linear {
    /// Cores for each pod, in thousandths.
    pub cores_per_replica_milli: Option<i64>,
    /// Nodes for each pod, in thousandths.
    pub nodes_per_replica_milli: Option<i64>,
    /// Fewest pods.
    pub min: u32,
    /// Most pods; 0 is no bound.
    pub max: u32,
    /// Whether there are two pods as soon as there are two nodes.
    pub prevent_single_point_of_failure: bool,
    /// Whether cordoned nodes and nodes that are not Ready count.
    pub include_unschedulable: bool,
}

/// Pods in steps: so many from so much on, ascending.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ladder {
    /// Steps by cores.
    pub cores: Vec<(i64, u32)>,
    /// Steps by nodes.
    pub nodes: Vec<(i64, u32)>,
    /// Whether cordoned nodes and nodes that are not Ready count.
    pub include_unschedulable: bool,
}

/// An autoscaler of requests: a `VerticalPodAutoscaler`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerticalScaler {
    /// The object, such as `VerticalPodAutoscaler web/api`.
    pub object: String,
    /// File and line.
    pub origin: Origin,
    /// Namespace of it and of its target.
    pub namespace: Namespace,
    /// Name.
    pub name: String,
    /// What it sizes.
    pub target: ScaleTarget,
    /// Update mode.
    pub mode: UpdateMode,
    /// Bounds by container; `*` stands for all others.
    pub policies: BTreeMap<String, ContainerPolicy>,
}

/// When a `VerticalPodAutoscaler` acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateMode {
    /// It only recommends.
    Off,
    /// When a pod is created.
    Initial,
    /// When a pod is created, and by evicting pods that deviate.
    Recreate,
    /// The same, resizing in place where it can.
    InPlaceOrRecreate,
    /// By resizing in place alone.
    InPlace,
}

impl UpdateMode {
    /// Returns the mode as a manifest spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "Off",
            Self::Initial => "Initial",
            Self::Recreate => "Recreate",
            Self::InPlaceOrRecreate => "InPlaceOrRecreate",
            Self::InPlace => "InPlace",
        }
    }
}

/// Bounds of a `VerticalPodAutoscaler` for a container; without a controlled resource it does
/// nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPolicy {
    /// Least request.
    pub min: ResourceList,
    /// Largest request.
    pub max: ResourceList,
    /// Whether it decides the request of CPU.
    pub controls_cpu: bool,
    /// Whether it decides the request of memory.
    pub controls_memory: bool,
    /// Whether limits follow requests.
    pub controls_limits: bool,
}

impl Default for ContainerPolicy {
    fn default() -> Self {
        Self {
            min: ResourceList::new(),
            max: ResourceList::new(),
            controls_cpu: true,
            controls_memory: true,
            controls_limits: true,
        }
    }
}
