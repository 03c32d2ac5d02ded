//! Types of pod autoscalers: HorizontalPodAutoscaler, KEDA, VerticalPodAutoscaler and
//! cluster-proportional-autoscaler.

use std::collections::BTreeMap;
use std::fmt;

use jiff::SignedDuration;

use super::Schedule;
use crate::model::ids::{Namespace, Origin};
use crate::model::pod::ResourceList;
use crate::model::requirement::Requirements;
use crate::model::units::Quantity;

/// An autoscaler of replica counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scaler {
    /// Object, such as `HorizontalPodAutoscaler web/api`.
    pub object: String,
    /// Source file and line.
    pub origin: Origin,
    /// Namespace of the autoscaler and its targets.
    pub namespace: Namespace,
    /// Name.
    pub name: String,
    /// Scaled objects; all get the same replica count.
    pub targets: Vec<ScaleTarget>,
    /// Scaling rule.
    pub rule: ScalerRule,
}

/// Reference to a scalable object, by kind and name.
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

/// Scaling rule of a [`Scaler`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScalerRule {
    /// `HorizontalPodAutoscaler`.
    Horizontal(Horizontal),
    /// `ScaledObject`.
    EventDriven(EventDriven),
    /// cluster-proportional-autoscaler.
    Proportional(Proportional),
    /// Unknown rule, with the reason: it could not be read, or its parameters are not in the
    /// repository.
    Unknown(String),
}

/// Scaling rule of a `HorizontalPodAutoscaler`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Horizontal {
    /// Minimum number of pods.
    pub min: u32,
    /// Maximum number of pods.
    pub max: u32,
    /// Metrics; the highest proposed replica count applies.
    pub metrics: Vec<Metric>,
    /// Scaling behavior; `None` means the defaults of the HPA controller.
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

/// Source of a metric.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetricSource {
    /// Resource usage of all containers of a pod.
    Resource,
    /// Resource usage of the container with this name.
    ContainerResource(String),
    /// A metric of each pod.
    Pods,
    /// A metric of another object.
    Object,
    /// A metric from outside the cluster.
    External,
}

/// Target value of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricTarget {
    /// Percentage of the requests of the pods.
    Utilization(u32),
    /// Average per pod.
    AverageValue(Quantity),
    /// Total value.
    Value(Quantity),
}

/// Scaling behavior of a `HorizontalPodAutoscaler` by direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behavior {
    /// Rules for scaling up.
    pub up: ScalingRules,
    /// Rules for scaling down.
    pub down: ScalingRules,
}

impl Behavior {
    /// Returns true if the HPA never adds pods.
    pub fn is_up_disabled(&self) -> bool {
        self.up.select == SelectPolicy::Disabled
    }

    /// Returns true if the HPA never removes pods.
    pub fn is_down_disabled(&self) -> bool {
        self.down.select == SelectPolicy::Disabled
    }
}

/// Scaling rules for one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalingRules {
    /// Stabilization window; `None` means the default of the HPA controller.
    pub window: Option<SignedDuration>,
    /// Selection among the policies.
    pub select: SelectPolicy,
    /// Maximum changes per period.
    pub policies: Vec<ScalingPolicy>,
    /// Tolerance in thousandths; `None` means the default of the HPA controller.
    pub tolerance_milli: Option<i64>,
}

/// Selection among several scaling policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectPolicy {
    /// The policy that allows the largest change.
    Max,
    /// The policy that allows the smallest change.
    Min,
    /// Scaling in this direction is disabled.
    Disabled,
}

/// Maximum change in one period. The period length is omitted, because changes within the current
/// period are not observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScalingPolicy {
    /// True if `amount` is a percentage of the pods rather than a number of pods.
    pub is_percent: bool,
    /// Maximum change, in pods or percent.
    pub amount: u32,
}

/// Scaling rule of a KEDA `ScaledObject`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventDriven {
    /// Minimum number of pods while any trigger is active. With 0, inactive triggers scale the
    /// target to zero.
    pub min: u32,
    /// Maximum number of pods.
    pub max: u32,
    /// Number of pods while no trigger is active, if it is less than `min`.
    pub idle: Option<u32>,
    /// Polling interval of the triggers.
    pub polling: SignedDuration,
    /// Cooldown between the last activity and scaling to the idle count.
    pub cooldown: SignedDuration,
    /// Scale-down stabilization window of the generated HPA.
    pub stabilization: SignedDuration,
    /// Scaling behavior of the generated HPA.
    pub behavior: Option<Behavior>,
    /// Fallback if a trigger cannot be read.
    pub fallback: Option<Fallback>,
    /// Cron triggers.
    pub crons: Vec<CronTrigger>,
    /// Types of the other triggers. Only the cluster has their values.
    pub triggers: Vec<String>,
    /// True if a formula replaces the maximum over the triggers.
    pub has_formula: bool,
    /// Pause mode.
    pub paused: PauseMode,
    /// True if the `ScaledObject` is active regardless of its triggers.
    pub is_forced: bool,
}

/// KEDA's fallback if a trigger cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fallback {
    /// Number of pods while a trigger cannot be read.
    pub replicas: u32,
    /// Relation of `replicas` to the current number of pods.
    pub behavior: FallbackBehavior,
}

/// Relation of the pods of a fallback to the current number of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallbackBehavior {
    /// The stated number.
    Static,
    /// The current number.
    Current,
    /// The larger of both.
    CurrentIfHigher,
    /// The smaller of both.
    CurrentIfLower,
    /// A formula decides.
    Formula,
}

/// Pause mode of an autoscaler.
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

/// A cron trigger, which requests `desired` pods from each `start` until the next `end`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronTrigger {
    /// Source file and line.
    pub origin: Origin,
    /// Start times.
    pub start: Schedule,
    /// End times.
    pub end: Schedule,
    /// Desired number of pods while active.
    pub desired: u32,
}

/// Scaling rule of a cluster-proportional-autoscaler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proportional {
    /// Selector of the counted nodes.
    pub nodes: Requirements,
    /// Function from nodes and cores to pods.
    pub mode: ProportionalMode,
}

/// Function from nodes and cores to pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProportionalMode {
    /// Proportional to cores and nodes.
    Linear(Linear),
    /// Step function of cores and nodes.
    Ladder(Ladder),
}

/// Parameters of proportional scaling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Linear {
    /// Cores per pod, in thousandths.
    pub cores_per_replica_milli: Option<i64>,
    /// Nodes per pod, in thousandths.
    pub nodes_per_replica_milli: Option<i64>,
    /// Minimum number of pods.
    pub min: u32,
    /// Maximum number of pods; 0 means unlimited.
    pub max: u32,
    /// True if at least two pods run when there are at least two nodes.
    pub prevent_single_point_of_failure: bool,
    /// True if cordoned nodes and nodes that are not Ready count.
    pub include_unschedulable: bool,
}

/// Steps as pairs of a threshold and the number of pods from that threshold on, ascending.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ladder {
    /// Steps by cores.
    pub cores: Vec<(i64, u32)>,
    /// Steps by nodes.
    pub nodes: Vec<(i64, u32)>,
    /// True if cordoned nodes and nodes that are not Ready count.
    pub include_unschedulable: bool,
}

/// An autoscaler of resource requests (`VerticalPodAutoscaler`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerticalScaler {
    /// Object, such as `VerticalPodAutoscaler web/api`.
    pub object: String,
    /// Source file and line.
    pub origin: Origin,
    /// Namespace of the autoscaler and its target.
    pub namespace: Namespace,
    /// Name.
    pub name: String,
    /// Target workload.
    pub target: ScaleTarget,
    /// Update mode.
    pub mode: UpdateMode,
    /// Minimum number of running pods of the target from which the updater changes any of them.
    pub min_replicas: u32,
    /// Policies by container name; `*` applies to all other containers.
    pub policies: BTreeMap<String, ContainerPolicy>,
}

/// Update mode of a `VerticalPodAutoscaler`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateMode {
    /// Recommendations only; pods are not changed.
    Off,
    /// Requests are set when a pod is created.
    Initial,
    /// Requests are set when a pod is created, and pods that deviate are evicted.
    Recreate,
    /// As `Recreate`, but pods are resized in place where possible.
    InPlaceOrRecreate,
    /// Pods are only resized in place.
    InPlace,
}

impl UpdateMode {
    /// Returns the mode as spelled in a manifest.
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

/// Policy of a `VerticalPodAutoscaler` for a container. The policy has no effect without a
/// controlled resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPolicy {
    /// Minimum request.
    pub min: ResourceList,
    /// Maximum request.
    pub max: ResourceList,
    /// True if the autoscaler sets the CPU request.
    pub controls_cpu: bool,
    /// True if the autoscaler sets the memory request.
    pub controls_memory: bool,
    /// True if limits are scaled in proportion to requests.
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
