//! Decides the number of pods of a declared workload, its bounds and its [`Decider`].
//!
//! If an autoscaler owns the replicas, `spec.replicas` in the repository is ignored. The observed
//! count applies, or the autoscaler's minimum if no count was observed.

use jiff::Timestamp;

use super::cluster_proportional::{ClusterSize, bounds, replicas};
use super::live_pods::LivePods;
use super::queues::{QueueWait, QueuedPods};
use super::{Counts, Decider, DemandQuery, hpa, jobs, keda};
use crate::model::code::Code;
use crate::model::desired::{
    Behavior, Desired, EventDriven, Horizontal, LiveReplicas, PauseMode, Problem, Scale, Scaler,
    ScalerRule, Severity, Unresolved, Workload,
};
use crate::model::ids::WorkloadId;
use crate::model::observed::{LiveEvents, LiveHorizontal, Observed};
use crate::model::plural;

/// Inputs that decide the number of a declared workload's pods.
pub(super) struct ScalingContext<'a> {
    pub(super) desired: &'a Desired,
    pub(super) observed: &'a Observed,
    pub(super) live: &'a LivePods<'a>,
    pub(super) query: &'a DemandQuery,
}

/// The result for one workload. The caller sets `counts.planned`.
pub(super) struct ScalingDecision {
    pub(super) counts: Counts,
    pub(super) by: Decider,
    pub(super) problems: Vec<Problem>,
    pub(super) unresolved: Option<Unresolved>,
    /// Pods that wait for Kueue.
    pub(super) waits: Option<QueueWait>,
}

impl ScalingDecision {
    fn new(counts: Counts, by: Decider) -> Self {
        Self { counts, by, problems: Vec::new(), unresolved: None, waits: None }
    }

    /// Limits the counts to the pods that Kueue admits. The ceiling stays: Kueue may admit them all.
    fn within_queue(mut self, queued: QueuedPods, workload: &Workload) -> Self {
        let QueuedPods { queue, startable, in_jobs, because, is_read, unknown } = queued;
        let Counts { floor, live, ceiling, planned } = self.counts;
        // A Job that its CronJob has made may have no pod yet.
        let live = live.max(in_jobs);
        let pods = live.saturating_sub(startable);
        let (floor, ceiling) = (floor.min(startable), ceiling.max(live));
        self.counts = Counts { floor, live: live.min(startable), ceiling, planned };
        if pods > 0 || self.by == Decider::Git && live > 0 {
            let origin = workload.origin.clone();
            self.by = Decider::Autoscaler { autoscaler: queue, origin, because, next: None };
        }
        if pods > 0 {
            self.waits = Some(QueueWait { pods, is_read });
            let unknown = unknown.map(|reason| Unresolved {
                origin: workload.origin.clone(),
                object: format!("{} {}", workload.id.kind, workload.id),
                reason,
            });
            self.unresolved = self.unresolved.or(unknown);
        }
        self
    }
}

/// Replica bounds, the current count, its explanation, and the next count if it is known.
struct ReplicaRange {
    floor: u32,
    live: u32,
    ceiling: u32,
    because: String,
    next: Option<u32>,
}

impl ReplicaRange {
    fn fixed(count: u32, because: String) -> Self {
        Self { floor: count, live: count, ceiling: count, because, next: None }
    }
}

impl ScalingContext<'_> {
    /// Returns the counts of `workload` and their source.
    pub(super) fn decide(&self, workload: &Workload) -> ScalingDecision {
        let decision = self.without_queue(workload);
        let Some(mut queued) = self.live.queued(workload) else { return decision };
        if self.query.is_forecast {
            queued.in_jobs = 0;
        }
        decision.within_queue(queued, workload)
    }

    /// Returns the counts as if every pod might start.
    fn without_queue(&self, workload: &Workload) -> ScalingDecision {
        let mut scalers = scalers_of(&self.desired.scalers, &workload.id);
        let rank = |scaler: &&Scaler| match scaler.rule {
            ScalerRule::EventDriven(_) => 0,
            ScalerRule::Horizontal(_) => 1,
            ScalerRule::Proportional(_) => 2,
            ScalerRule::Unknown(_) => 3,
        };
        scalers.sort_by_key(rank);
        let Some(first) = scalers.first() else { return self.without_autoscaler(workload) };
        let mut decision = self.with_autoscaler(workload, first);
        decision
            .problems
            .extend(scalers.get(1).map(|second| duplicate_scaler_error(first, second, workload)));
        decision
    }

    /// Returns the counts of a workload without an autoscaler.
    fn without_autoscaler(&self, workload: &Workload) -> ScalingDecision {
        let all = |n: u32| Counts { floor: n, live: n, ceiling: n, planned: n };
        // A pod counts from its creation: it needs capacity before it is bound.
        let active = self.live.active_count(&workload.id);
        match &workload.scale {
            Scale::Replicas(stated) => self.stated_or_live(workload, *stated),
            // The size of a buffer depends on other workloads; see `capacity_buffer`.
            Scale::PerNode | Scale::Buffer(_) => {
                ScalingDecision::new(Counts::default(), Decider::Git)
            }
            // Kueue or a user may have resumed it. Else the Job controller deletes its pods.
            Scale::Job { suspended: true, .. } => {
                let counts = Counts { floor: 0, live: active, ceiling: active, planned: 0 };
                ScalingDecision::new(counts, Decider::Git)
            }
            Scale::Job { pods, completions, suspended: false } => {
                // A sync deletes a hook of an earlier sync, and creates it anew.
                let is_hook = self.desired.hooks.contains_key(&workload.id);
                let finished = if is_hook { 0 } else { self.live.finished_count(&workload.id) };
                let left = jobs::remaining_pods(*pods, *completions, active, finished);
                ScalingDecision::new(all(left), Decider::Git)
            }
            Scale::CronJob { suspended: true, .. } => {
                // A suspended CronJob starts no further run; a run in progress continues.
                let counts = Counts { floor: 0, live: active, ceiling: active, planned: 0 };
                let because = "it is suspended: no further runs".to_owned();
                ScalingDecision::new(counts, Decider::Schedule { because })
            }
            Scale::CronJob { pods, suspended: false, schedule } => {
                let (counts, because) = jobs::cron_job_counts(*pods, schedule, active, self.query);
                ScalingDecision::new(counts, Decider::Schedule { because })
            }
            Scale::ScaledJob(scaling) => {
                let seen = self.live_events(&workload.id.namespace, &workload.id.name);
                let (counts, because, next) = jobs::scaled_job_counts(scaling, active, seen);
                let scaler = Decider::Autoscaler {
                    autoscaler: format!("ScaledJob {}", workload.id),
                    origin: workload.origin.clone(),
                    because,
                    next,
                };
                ScalingDecision::new(counts, scaler)
            }
        }
    }

    /// Returns the number of replicas that the repository states, or the live one if the delivery
    /// tool leaves it alone.
    fn stated_or_live(&self, workload: &Workload, stated: u32) -> ScalingDecision {
        let rule = self.desired.live_replicas.get(&workload.id);
        let (count, why) = match (rule, self.live_replicas(&workload.id)) {
            (Some(LiveReplicas::Stay), Some(live)) => (
                live,
                "its delivery tool leaves the number alone, so the number in the cluster counts",
            ),
            (Some(LiveReplicas::MayStay), Some(live)) => (
                live.max(stated),
                "this number may stay until the next sync, so the larger one counts",
            ),
            (Some(_), None) | (None, _) => (stated, ""),
        };
        let counts = Counts { floor: count, live: count, ceiling: count, planned: count };
        let mut decision = ScalingDecision::new(counts, Decider::Git);
        if count != stated {
            let object = format!("{} {}", workload.id.kind, workload.id);
            let message = format!(
                "states {}, and the cluster has {}: {why}",
                plural::count(stated, "replica"),
                plural::count(count, "replica"),
            );
            let severity = Severity::Warning;
            let warning = Problem::new(severity, workload.origin.clone(), object, message);
            decision.problems.push(warning.hint("write the number of the cluster"));
        }
        decision
    }

    /// Returns the counts that `scaler` decides.
    fn with_autoscaler(&self, workload: &Workload, scaler: &Scaler) -> ScalingDecision {
        let known = self.live_replicas(&workload.id);
        let seen = self.live_horizontal(scaler);
        let range = match &scaler.rule {
            ScalerRule::Horizontal(rule)
                if rule.min > 0
                    && known.is_none()
                    && seen.is_none()
                    && is_scaled_to_0(workload) =>
            {
                ReplicaRange::fixed(0, SWITCHED_OFF.to_owned())
            }
            ScalerRule::Horizontal(rule) => horizontal_range(rule, known, seen),
            ScalerRule::EventDriven(rule) => {
                let events = self.live_events(&scaler.namespace, &scaler.name);
                self.event_driven(workload, rule, known, seen, events)
            }
            ScalerRule::Proportional(rule) => {
                let (count, nodes, cores) = replicas(rule, &self.query.size);
                let (least, most) = bounds(rule);
                let because = format!(
                    "{} with {}",
                    plural::count(nodes, "node"),
                    plural::count(cores, "core")
                );
                let (floor, ceiling) = (least.min(count), most.unwrap_or(count).max(count));
                ReplicaRange { floor, live: count, ceiling, because, next: None }
            }
            ScalerRule::Unknown(why) => {
                ReplicaRange::fixed(initial_replicas(workload, known), why.clone())
            }
        };
        let ReplicaRange { floor, live, ceiling, because, next } = range;
        let by = Decider::Autoscaler {
            autoscaler: scaler.object.clone(),
            origin: scaler.origin.clone(),
            because,
            next,
        };
        let mut decision = ScalingDecision::new(Counts { floor, live, ceiling, planned: 0 }, by);
        let is_known = known.is_some() || seen.is_some();
        decision.problems.extend(unused_replicas_warning(
            workload,
            scaler,
            decision.counts,
            is_known,
        ));
        if let ScalerRule::Unknown(why) = &scaler.rule {
            decision.unresolved = Some(Unresolved {
                origin: scaler.origin.clone(),
                object: format!("{} {}", workload.id.kind, workload.id),
                reason: format!("{} decides how many pods there are: {why}", scaler.object),
            });
        }
        decision
    }

    fn event_driven(
        &self,
        workload: &Workload,
        rule: &EventDriven,
        known: Option<u32>,
        seen: Option<&LiveHorizontal>,
        events: Option<&LiveEvents>,
    ) -> ReplicaRange {
        let known = known.max(seen.map(|s| s.current_replicas.max(s.desired_replicas)));
        match rule.paused {
            PauseMode::At(count) => {
                return ReplicaRange::fixed(count, format!("it is paused at {count}"));
            }
            PauseMode::AsIs => {
                let live = initial_replicas(workload, known);
                return ReplicaRange::fixed(
                    live,
                    format!("it is paused; {}", plural::count_with_verb(live, "pod", "stay")),
                );
            }
            PauseMode::No | PauseMode::ScaleIn | PauseMode::ScaleOut => {}
        }
        let reach = keda::upward_reach(rule);
        let bounded = keda::within_reach(rule, reach);
        let (all_windows, rule) = (rule, &*bounded);
        let DemandQuery { at, lead, is_forecast, .. } = *self.query;
        let until = at.checked_add(lead).unwrap_or(at);
        // The result of a scaling formula is unknown, so windows do not raise the floor.
        let mut floor = if rule.has_formula {
            keda::idle_replicas(rule)
        } else {
            keda::max_declared_within(rule, at, until)
        };
        if let Some(fallback) = rule.fallback.filter(|_| events.is_some_and(|e| e.in_fallback)) {
            floor = floor.max(keda::fallback_replicas(fallback, known).min(rule.max));
        }
        let is_foreseeable = keda::is_foreseeable(rule);
        let highest = if is_foreseeable { keda::max_declared(rule) } else { rule.max };
        let stabilized = keda::stabilized_replicas(rule, at).max(floor);
        let (live, source) = match known.filter(|_| !(is_forecast && is_foreseeable)) {
            Some(known) => (known.max(floor), plural::count_with_verb(known, "pod", "run")),
            None if reach == keda::UpwardReach::All => {
                (stabilized, "by its windows alone".to_owned())
            }
            // Nothing adds pods, so those of the first delivery stay.
            None => {
                let first = initial_replicas(workload, known);
                (first.max(floor), format!("{} at first", plural::count(first, "pod")))
            }
        };
        let mut ceiling = highest.max(floor);
        // KEDA removes pods above the maximum at once. Pods that a coming window requests stay.
        let live = live.min(rule.max.max(floor));
        if keda::never_shrinks(rule, at) {
            floor = floor.max(live);
        }
        if reach != keda::UpwardReach::All {
            ceiling = ceiling.min(live.max(floor));
        }
        let mut because = format!("{source}; {}", describe_windows(all_windows, at, until));
        if reach != keda::UpwardReach::All {
            because.push_str("; scaling out is disabled");
        }
        ReplicaRange { floor, live, ceiling: ceiling.max(live), because, next: None }
    }

    /// Returns the maximum of the active pods and the observed `replicas` settings; `None` if
    /// neither was observed.
    fn live_replicas(&self, id: &WorkloadId) -> Option<u32> {
        let scale = self.observed.scaling.scales.iter().find(|scale| {
            scale.namespace == id.namespace
                && scale.kind == id.kind.as_str()
                && *scale.name == *id.name
        });
        let set = self.live.specified_replicas(id).max(scale.map(|scale| scale.replicas));
        let active = Some(self.live.active_count(id)).filter(|active| *active > 0);
        set.max(active)
    }

    fn live_horizontal(&self, scaler: &Scaler) -> Option<&LiveHorizontal> {
        let mut rows = self.observed.scaling.horizontal.iter();
        rows.find(|row| row.namespace == scaler.namespace && row.name == scaler.name)
    }

    fn live_events(
        &self,
        namespace: &crate::model::ids::Namespace,
        name: &str,
    ) -> Option<&LiveEvents> {
        let mut rows = self.observed.scaling.event_driven.iter();
        rows.find(|row| row.namespace == *namespace && row.name == name)
    }
}

/// Reason why a `HorizontalPodAutoscaler` does not scale a target without replicas.
/// Source: `k8s.io/kubernetes/pkg/controller/podautoscaler`, `reconcileAutoscaler`.
const SWITCHED_OFF: &str = "its target is scaled to 0, which switches it off";

fn is_scaled_to_0(workload: &Workload) -> bool {
    matches!(workload.scale, Scale::Replicas(0))
}

/// Returns the range that a `HorizontalPodAutoscaler` allows.
fn horizontal_range(
    rule: &Horizontal,
    known: Option<u32>,
    seen: Option<&LiveHorizontal>,
) -> ReplicaRange {
    let bounds = (rule.min, rule.max);
    let step = seen.and_then(|seen| hpa::next_step(rule, seen));
    let Some(live) = known.max(seen.map(|s| s.current_replicas.max(s.desired_replicas))) else {
        // `spec.replicas` is an estimate that a delivery may reset. A change of it does not change
        // the required capacity.
        let because = "nothing live is known of it: its least counts".to_owned();
        return ReplicaRange {
            floor: rule.min,
            live: rule.min,
            ceiling: rule.max,
            because,
            next: None,
        };
    };
    if live == 0 && rule.min > 0 {
        return ReplicaRange::fixed(0, SWITCHED_OFF.to_owned());
    }
    let bounded = live.clamp(bounds.0, bounds.1);
    let run = plural::count_with_verb(live, "pod", "run");
    let because = match (&step, bounded == live) {
        (_, false) => format!("{run}, outside its bounds"),
        (Some(step), true) if step.count == live => {
            format!("{run}, and {} changes nothing", step.metric)
        }
        (Some(step), true) => {
            let hpa::ScalingStep { count, wanted, metric } = step;
            format!("{run}; {metric} asks for {wanted}, next step {count}")
        }
        (None, true) => format!("{run}; none of its metrics is known"),
    };
    let next = step.map(|step| step.count).filter(|next| *next != live);
    let (floor, ceiling) = bounds_by_behavior(rule, bounded);
    ReplicaRange { floor, live: bounded, ceiling, because, next }
}

/// Returns the bounds of `rule`. A direction that its behavior disables is bounded by `runs`.
fn bounds_by_behavior(rule: &Horizontal, runs: u32) -> (u32, u32) {
    let behavior = rule.behavior.as_ref();
    let floor = if behavior.is_some_and(Behavior::is_down_disabled) { runs } else { rule.min };
    let ceiling = if behavior.is_some_and(Behavior::is_up_disabled) { runs } else { rule.max };
    (floor, ceiling)
}

/// Describes the cron windows of `rule` and its other triggers.
fn describe_windows(rule: &EventDriven, at: Timestamp, until: Timestamp) -> String {
    let mut parts = Vec::new();
    let active = rule.crons.iter().filter(|cron| keda::is_active_at(cron, at));
    parts.extend(active.map(|cron| {
        format!(
            "the window {} to {} wants {}",
            cron.start.as_str(),
            cron.end.as_str(),
            cron.desired
        )
    }));
    let coming =
        rule.crons.iter().filter(|cron| !keda::is_active_at(cron, at)).filter_map(|cron| {
            let start = cron.start.next_after(at).filter(|start| *start <= until)?;
            Some(format!("{} are wanted from {start}", cron.desired))
        });
    parts.extend(coming);
    if parts.is_empty() && !rule.crons.is_empty() {
        parts.push("no window holds".to_owned());
    }
    if !rule.triggers.is_empty() {
        parts.push(format!("triggers that only the cluster knows: {}", rule.triggers.join(", ")));
    }
    parts.join("; ")
}

/// Returns the initial number of pods: the observed count, else the declared one, else 0.
fn initial_replicas(workload: &Workload, known: Option<u32>) -> u32 {
    known.unwrap_or(match &workload.scale {
        Scale::Replicas(n) => *n,
        Scale::PerNode
        | Scale::Job { .. }
        | Scale::CronJob { .. }
        | Scale::ScaledJob(_)
        | Scale::Buffer(_) => 0,
    })
}

/// Returns the scalers that target a workload.
pub(super) fn scalers_of<'a>(scalers: &'a [Scaler], id: &WorkloadId) -> Vec<&'a Scaler> {
    let claims = |scaler: &&Scaler| {
        scaler.namespace == id.namespace
            && scaler.targets.iter().any(|t| t.kind == id.kind.as_str() && *t.name == *id.name)
    };
    scalers.iter().filter(claims).collect()
}

fn duplicate_scaler_error(first: &Scaler, second: &Scaler, workload: &Workload) -> Problem {
    Problem::error(
        second.origin.clone(),
        second.object.clone(),
        format!(
            "scales {} {}, which {} at {} scales as well",
            workload.id.kind, workload.id, first.object, first.origin
        ),
    )
    .hint("keep one of the two: they would undo each other's work")
    .code(Code::AutoscalerConflict)
}

/// Returns a warning if the autoscaler never keeps the declared replicas, or if the first delivery
/// starts with more pods than planned.
fn unused_replicas_warning(
    workload: &Workload,
    scaler: &Scaler,
    counts: Counts,
    is_known: bool,
) -> Option<Problem> {
    let Scale::Replicas(stated) = workload.scale else { return None };
    if matches!(scaler.rule, ScalerRule::Unknown(_)) {
        return None;
    }
    let Counts { floor, live, ceiling, planned: _ } = counts;
    // A manifest without replicas has 1.
    let is_outside = stated > 1 && !(floor..=ceiling).contains(&stated);
    let starts_above = !is_known && stated > live.max(1);
    let statement = if is_outside {
        format!("keeps it between {floor} and {ceiling}: the number is not used")
    } else if starts_above {
        format!(
            "controls the replicas: no count was observed, {live} are planned, and a first \
             delivery begins with {stated}"
        )
    } else {
        return None;
    };
    Some(
        Problem::warning(
            workload.origin.clone(),
            format!("{} {}", workload.id.kind, workload.id),
            format!(
                "states {}, and {} at {} {statement}",
                plural::count(stated, "replica"),
                scaler.object,
                scaler.origin
            ),
        )
        .hint("leave `replicas` out: each delivery would reset them")
        .code(Code::ReplicasOverridden),
    )
}

/// Returns the count of each scaler that follows the number of nodes.
pub(super) fn proportional_replicas(desired: &Desired, size: &ClusterSize) -> Vec<u32> {
    let replica_count = |scaler: &Scaler| match &scaler.rule {
        ScalerRule::Proportional(rule) => Some(replicas(rule, size).0),
        ScalerRule::Horizontal(_) | ScalerRule::EventDriven(_) | ScalerRule::Unknown(_) => None,
    };
    desired.scalers.iter().filter_map(replica_count).collect()
}

#[cfg(test)]
mod tests;
