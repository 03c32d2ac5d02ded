//! What decides how many pods a workload has, or what they ask for, other than the workload itself.
//!
//! Types and readers of HorizontalPodAutoscaler, KEDA's ScaledObject and ScaledJob,
//! VerticalPodAutoscaler, cluster-proportional-autoscaler and CapacityBuffer. What they come to is
//! decided in `demand`. Invariant: a field that decides and could not be read is an error, never a
//! default.

mod buffer;
mod event;
mod horizontal;
mod proportional;
mod vertical;

pub(super) use buffer::{Buffer, capacity_buffer, fill, pod_template_object};
pub(super) use event::{scaled_job, scaled_object};
pub(super) use horizontal::horizontal;
pub(super) use proportional::{Found, Parameters, autoscaler_of, join, parameters};
pub(super) use vertical::vertical;

use std::collections::BTreeMap;
use std::fmt;

use jiff::SignedDuration;

use super::cron::Schedule;
use super::decode::{Field, Map};
use super::meta::Meta;
use crate::ids::{Labels, Namespace, Origin};
use crate::pod::Amounts;
use crate::units::Quantity;

/// Decides how many pods of its targets there are.
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
    /// How it decides.
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

/// How a [`Scaler`] decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScalerRule {
    /// `HorizontalPodAutoscaler`.
    Horizontal(Horizontal),
    /// `ScaledObject`.
    EventDriven(EventDriven),
    /// cluster-proportional-autoscaler.
    Proportional(Proportional),
    /// It could not be read, or its parameters are not in the repository: what it decides is not
    /// known.
    Unknown(String),
}

/// The rule of a `HorizontalPodAutoscaler`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Horizontal {
    /// Fewest pods.
    pub min: u32,
    /// Most pods.
    pub max: u32,
    /// What it looks at; the highest proposal counts.
    pub metrics: Vec<Metric>,
    /// How fast it goes; `None`: the controller's own limits.
    pub behavior: Option<Behavior>,
}

/// One thing that a `HorizontalPodAutoscaler` looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metric {
    /// What kind of metric it is.
    pub source: MetricSource,
    /// Name of the resource or metric.
    pub name: String,
    /// What it should be.
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

/// What a metric should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricTarget {
    /// This share of what pods request, in percent.
    Utilization(u32),
    /// This much for each pod.
    AverageValue(Quantity),
    /// This much in all.
    Value(Quantity),
}

/// How fast a `HorizontalPodAutoscaler` goes in each direction.
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
    /// The time over which the gentlest proposal counts; `None` is the controller's own.
    pub window: Option<SignedDuration>,
    /// Which of the policies counts.
    pub select: SelectPolicy,
    /// How much may change in how long.
    pub policies: Vec<ScalingPolicy>,
    /// The deviation that changes nothing, in thousandths; `None` is the controller's own.
    pub tolerance_milli: Option<i64>,
}

/// Which of several policies counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectPolicy {
    /// The one that allows most.
    Max,
    /// The one that allows least.
    Min,
    /// The direction is closed.
    Disabled,
}

/// How much may change in one period. How long that is does not matter to the next step: what
/// changed within the present one is not observed.
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
    /// Time between two looks at the triggers.
    pub polling: SignedDuration,
    /// Time from the last activity until the last pods go.
    pub cooldown: SignedDuration,
    /// Time over which the generated HPA keeps a higher count.
    pub stabilization: SignedDuration,
    /// Pods where a trigger cannot be read.
    pub fallback: Option<Fallback>,
    /// Windows of time that want so many pods.
    pub crons: Vec<CronTrigger>,
    /// Types of the other triggers, whose values only the cluster knows.
    pub triggers: Vec<String>,
    /// Whether a formula stands in for the highest of the triggers.
    pub has_formula: bool,
    /// Whether it is paused.
    pub paused: Paused,
    /// Whether it is active whatever its triggers say.
    pub is_forced: bool,
}

/// What KEDA does where a trigger cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fallback {
    /// Pods that it asks for then.
    pub replicas: u32,
}

/// Whether an autoscaler is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paused {
    /// It acts.
    No,
    /// It keeps the count that there is.
    AsIs,
    /// It keeps this count.
    At(u32),
    /// It only grows.
    ScaleIn,
    /// It only shrinks.
    ScaleOut,
}

/// A cron trigger: from each `start` until the next `end` it wants so many pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronTrigger {
    /// File and line.
    pub origin: Origin,
    /// When it begins to hold.
    pub start: Schedule,
    /// When it ends.
    pub end: Schedule,
    /// How many pods it wants.
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

/// Decides what the pods of a workload ask for: a `VerticalPodAutoscaler`.
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
    /// When it acts.
    pub mode: UpdateMode,
    /// Bounds by container; `*` stands for all others.
    pub policies: BTreeMap<String, ContainerPolicy>,
}

/// When a `VerticalPodAutoscaler` acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateMode {
    /// Never: it recommends.
    Off,
    /// When a pod is made.
    Initial,
    /// When a pod is made, and by evicting pods that deviate.
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

/// Bounds of a `VerticalPodAutoscaler` for a container; one that controls neither resource leaves
/// it alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPolicy {
    /// Least request.
    pub min: Amounts,
    /// Largest request.
    pub max: Amounts,
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
            min: Amounts::new(),
            max: Amounts::new(),
            controls_cpu: true,
            controls_memory: true,
            controls_limits: true,
        }
    }
}

/// Reads a reference to a target: `{kind, name}`; `default_kind` stands where it names no kind.
fn target(field: &Field<'_>, default_kind: Option<&str>) -> Option<ScaleTarget> {
    let map = field.map()?;
    let kind = match (map.get("kind"), default_kind) {
        (Some(kind), _) => kind.filled()?.into_owned(),
        (None, Some(default)) => default.to_owned(),
        (None, None) => {
            map.need("kind");
            return None;
        }
    };
    let name = map.need("name")?.filled()?.into_owned();
    Some(ScaleTarget { kind, name })
}

/// Returns the scaler of an object whose rule was read, or could not be.
fn scaler(
    meta: Meta,
    root: &Map<'_>,
    targets: Vec<ScaleTarget>,
    rule: Option<ScalerRule>,
) -> Scaler {
    let scope = root.field.scope;
    let unreadable = scope.first_failed().map(|field| format!("its `{field}` could not be read"));
    let rule = match (unreadable, rule) {
        (None, Some(rule)) => rule,
        (why, _) => ScalerRule::Unknown(why.unwrap_or_else(|| "it could not be read".to_owned())),
    };
    let Meta { name, namespace, origin, .. } = meta;
    Scaler { object: scope.object.clone(), origin, namespace, name, targets, rule }
}
