//! From what is declared and what runs to groups of pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::admission;
use super::claims::Claims;
use super::fargate;
use super::live::LivePods;
use super::mount::{Cause, Wait};
use super::parts;
use super::shape::{ShapeContext, shape_of};
use super::{Counts, Daemon, Decider, Demand, DemandMode, PodGroup, PodShape};
use crate::fleet::Observed;
use crate::ids::{WorkloadId, WorkloadKind};
use crate::manifest::{AutoscalerRef, Desired, Problem, Scale, Severity, Unresolved, Workload};

/// Most pods of one workload; Kubernetes clusters hold at most some 150,000 pods in all.
const PODS_MAX: u32 = 1_000_000;

impl Demand {
    /// Returns the pods to place: those of the repository's workloads in the number that `mode`
    /// chooses, and the live pods that keep their room.
    #[must_use]
    pub fn build(desired: &Desired, observed: &Observed, mode: DemandMode) -> Self {
        let context = ShapeContext::of(desired).within(observed);
        let live = LivePods::of(observed, &context);
        let claims = Claims::of(desired, &observed.storage);
        let declared = Declared { autoscalers: &desired.autoscalers, live: &live, mode };
        let mut demand = Self { unresolved: desired.unresolved.clone(), ..Self::default() };
        for workload in desired.workloads.values() {
            demand.problems.extend(admission::refusals(workload, desired));
            let stated = shape_of(&workload.id.namespace, &workload.template, &context);
            let (shape, changed) = live.grown(workload, stated);
            demand.problems.extend(changed);
            let shape = Arc::new(claims.mounted(&shape, &workload.template.spec.volumes, None));
            demand.problems.extend(volume_problems(workload, &shape));
            if workload.scale == Scale::PerNode {
                let origin = Some(workload.origin.clone());
                demand.daemons.push(Daemon { workload: workload.id.clone(), origin, shape });
                continue;
            }
            let mut group = declared.group(workload, shape, &mut demand.problems);
            if group.counts.planned > PODS_MAX {
                demand.refuse(&group);
            } else {
                let made_from = (&*workload.template, workload.first_ordinal);
                let parts =
                    parts::of_stateful_set(&group, made_from, &claims, live.pods(&workload.id));
                group.consist_of(parts);
                demand.groups.push(group);
            }
        }
        demand.add_live_only(desired, observed, (&live, &claims));
        demand.groups.sort_by(|a, b| a.workload.cmp(&b.workload));
        demand.share_claims();
        demand.daemons.sort_by(|a, b| a.workload.cmp(&b.workload));
        let over_quota = admission::over_quota(&demand, desired);
        demand.problems.extend(over_quota);
        fargate::take(&mut demand, desired, observed, &live);
        demand
    }

    /// Counts a workload of absurd size as one whose size is not known: it is named, it blocks
    /// removals, and no memory is spent on its pods.
    fn refuse(&mut self, group: &PodGroup) {
        let PodGroup { workload, origin, counts, .. } = group;
        let Some(origin) = origin.clone() else { return };
        let object = format!("{} {workload}", workload.kind);
        let reason = format!("it asks for {} pods; at most {PODS_MAX} are planned", counts.planned);
        let severity = Severity::Error;
        let (message, hint) = (reason.clone(), Some("check its number of replicas".to_owned()));
        let at = origin.clone();
        self.problems.push(Problem { origin: at, severity, object: object.clone(), message, hint });
        self.unresolved.push(Unresolved { origin, object, reason });
    }

    fn add_live_only(
        &mut self,
        desired: &Desired,
        observed: &Observed,
        (live, claims): (&LivePods, &Claims),
    ) {
        let delivered: BTreeSet<&WorkloadId> =
            observed.workloads.iter().filter(|w| w.delivered).map(|w| &w.id).collect();
        for (id, pods) in live.by_owner.iter().filter(|(id, _)| !desired.workloads.contains_key(id))
        {
            let Some(shape) = live.shape(id, pods) else { continue };
            let mut parts = parts::of_live_pods(&shape, claims, pods, &observed.templates);
            let removed = delivered.contains(id);
            if id.kind == WorkloadKind::DaemonSet {
                if !removed {
                    let shape = parts.pop().map_or(shape, |part| part.shape);
                    self.daemons.push(Daemon { workload: id.clone(), origin: None, shape });
                }
                continue;
            }
            let count = u32::try_from(pods.len()).unwrap_or(u32::MAX);
            let count = if removed { 0 } else { count };
            let mut group = PodGroup {
                workload: id.clone(),
                origin: None,
                shape,
                counts: Counts { floor: count, live: count, ceiling: count, planned: count },
                decided_by: if removed { Decider::Removed } else { Decider::World },
                running: live.running(id),
                parts: Vec::new(),
            };
            if !removed {
                group.consist_of(parts);
            }
            self.groups.push(group);
        }
    }
}

/// What decides the number of a declared workload's pods.
struct Declared<'a> {
    autoscalers: &'a [AutoscalerRef],
    live: &'a LivePods<'a>,
    mode: DemandMode,
}

impl Declared<'_> {
    fn group(
        &self,
        workload: &Workload,
        mut shape: Arc<PodShape>,
        problems: &mut Vec<Problem>,
    ) -> PodGroup {
        let mut running = self.live.running(&workload.id);
        let (mut counts, mut decided_by) = declared_counts(&workload.scale, running.values().sum());
        if let Some(autoscaler) = self.autoscalers.iter().find(|a| claims(a, &workload.id)) {
            problems.push(ignored_autoscaler(autoscaler, workload));
            decided_by = Decider::Ignored { autoscaler: autoscaler.object.clone() };
            // Replicas belong to the autoscaler: what it runs now is never planned away.
            let running = self.live.active(&workload.id);
            counts = Counts {
                floor: counts.floor.max(running),
                live: counts.live.max(running),
                ceiling: counts.ceiling.max(running),
                planned: 0,
            };
        }
        if matches!(workload.id.kind, WorkloadKind::Job | WorkloadKind::Pod) {
            counts = counts.less(self.live.finished(&workload.id));
        }
        counts.planned = match self.mode {
            DemandMode::Floor => counts.floor,
            DemandMode::Live => counts.live,
            DemandMode::Ceiling => counts.ceiling,
        };
        if let Some(node) = &shape.nodes.name {
            // Such pods are bound by whoever makes them: they run there as soon as they are made.
            running =
                self.live.bound_by_name(&workload.id, node, (counts.planned, &shape.requests));
        }
        if workload.id.kind == WorkloadKind::Pod {
            // Nothing would make the pod anew if it were evicted.
            Arc::make_mut(&mut shape).pinned = true;
        }
        let (workload, origin) = (workload.id.clone(), Some(workload.origin.clone()));
        PodGroup { workload, origin, shape, counts, decided_by, running, parts: Vec::new() }
    }
}

fn declared_counts(scale: &Scale, running: u32) -> (Counts, Decider) {
    let all = |n: u32| Counts { floor: n, live: n, ceiling: n, planned: n };
    match scale {
        Scale::Replicas(n) => (all(*n), Decider::Git),
        Scale::PerNode => (Counts::default(), Decider::Git),
        Scale::Job { suspended: true, .. } => (all(0), Decider::Git),
        Scale::Job { pods, suspended: false } => (all(*pods), Decider::Git),
        Scale::CronJob { suspended: true, .. } => (all(0), Decider::Schedule),
        Scale::CronJob { pods, suspended: false, .. } => {
            let counts =
                Counts { floor: 0, live: running, ceiling: (*pods).max(running), planned: 0 };
            (counts, Decider::Schedule)
        }
    }
}

/// Returns what a reader should know of a workload's volumes, beside what keeps single pods back.
fn volume_problems(workload: &Workload, shape: &PodShape) -> Vec<Problem> {
    let told = shape.volumes.iter().filter_map(|mount| {
        Some(match (&mount.waits, &mount.cause) {
            (Some(Wait::Missing), _) => (
                format!("{}: its pods have no place yet", mount.wait_text()?),
                "add the PersistentVolumeClaim to the repository, or observe the cluster again",
            ),
            (_, Cause::Assumed(class)) => (
                format!(
                    "claim {} is of storage class {class}, which is declared nowhere; its volumes \
                     are taken for EBS volumes that follow their pods",
                    mount.name
                ),
                "add the StorageClass to the repository, or plan over the world of the cluster",
            ),
            (_, Cause::Bound | Cause::Class(_) | Cause::Disk) => return None,
        })
    });
    let warning = |(message, hint): (String, &str)| Problem {
        origin: workload.origin.clone(),
        severity: Severity::Warning,
        object: format!("{} {}", workload.id.kind, workload.id),
        message,
        hint: Some(hint.to_owned()),
    };
    told.map(warning).collect()
}

fn claims(autoscaler: &AutoscalerRef, id: &WorkloadId) -> bool {
    autoscaler.namespace == id.namespace
        && autoscaler.target_kind == id.kind.as_str()
        && *autoscaler.target_name == *id.name
}

fn ignored_autoscaler(autoscaler: &AutoscalerRef, workload: &Workload) -> Problem {
    Problem {
        origin: autoscaler.origin.clone(),
        severity: Severity::Warning,
        object: autoscaler.object.clone(),
        message: format!(
            "scales {} {}, which is not taken into account yet; the count in {} is planned",
            workload.id.kind, workload.id, workload.origin
        ),
        hint: None,
    }
}
