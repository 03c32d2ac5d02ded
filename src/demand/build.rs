//! From what is declared and what runs to groups of pods.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use super::admission;
use super::claims::Claims;
use super::decide::{Decision, Decisions};
use super::fargate;
use super::live::LivePods;
use super::mount::{Cause, Wait};
use super::parts;
use super::shape::{ShapeContext, shape_of};
use super::{
    Asked, ClusterSize, Counts, Daemon, Decider, Demand, DemandMode, PodGroup, PodShape, Sizing,
    buffer, decide, vertical,
};
use crate::fleet::Observed;
use crate::ids::{Namespace, WorkloadId, WorkloadKind};
use crate::manifest::{
    Desired, Problem, Scale, Scaler, ScalerRule, Severity, Unresolved, Workload,
};

/// Most pods of one workload; Kubernetes clusters hold at most some 150,000 pods in all.
const PODS_MAX: u32 = 1_000_000;

/// Most pods of all workloads together.
const ALL_PODS_MAX: u64 = 5_000_000;

impl Demand {
    /// Returns the pods to place at the moment of the world; see [`Demand::asked`].
    #[must_use]
    pub fn build(desired: &Desired, observed: &Observed, mode: DemandMode) -> Self {
        let (at, lead) = (observed.taken_at, desired.lead);
        Self::asked(desired, observed, &Asked { mode, at, lead, ..Asked::default() })
    }

    /// Returns the pods to place: those of the repository's workloads in the number that `asked`
    /// chooses, and the live pods that keep their room.
    #[must_use]
    pub fn asked(desired: &Desired, observed: &Observed, asked: &Asked) -> Self {
        let context = ShapeContext::of(desired).within(observed);
        let live = LivePods::of(observed, &context);
        let claims = Claims::of(desired, &observed.storage);
        let is_open = |source: &&Unresolved| !is_owned(source, desired, observed);
        let unresolved = desired.unresolved.iter().filter(is_open).cloned().collect();
        let decisions = Decisions { desired, observed, live: &live, asked };
        let mut declared = Declared { decisions, demand: Self { unresolved, ..Self::default() } };
        for workload in desired.workloads.values() {
            declared.demand.problems.extend(admission::refusals(workload, desired));
            let (workload, is_sized) = declared.sized(workload);
            let stated = shape_of(&workload.id.namespace, &workload.template, &context)
                .spread_by_default(workload.id.kind);
            let (shape, changed) = live.grown(&workload, stated, is_sized);
            declared.demand.problems.extend(changed);
            let shape = Arc::new(claims.mounted(&shape, &workload.template.spec.volumes, None));
            declared.demand.problems.extend(volume_problems(&workload, &shape));
            if workload.scale == Scale::PerNode {
                let origin = Some(workload.origin.clone());
                let daemon = Daemon { workload: workload.id.clone(), origin, shape };
                declared.demand.daemons.push(daemon);
                continue;
            }
            declared.add(&workload, shape, &claims);
        }
        let mut demand = declared.demand;
        buffer::fill(&mut demand.groups, desired, asked.mode);
        demand.refuse_absurd();
        demand.add_live_only(desired, observed, (&live, &claims));
        demand.groups.sort_by(|a, b| a.workload.cmp(&b.workload));
        demand.share_claims();
        demand.daemons.sort_by(|a, b| a.workload.cmp(&b.workload));
        let over_quota = admission::over_quota(&demand, desired);
        demand.problems.extend(over_quota);
        fargate::take(&mut demand, desired, observed, &live);
        demand
    }

    /// Returns what scalers that follow the number of nodes want at a size; empty without any.
    #[must_use]
    pub fn following(desired: &Desired, size: &ClusterSize) -> Vec<u32> {
        decide::follows_nodes(desired, size)
    }

    /// Counts a workload of absurd size as one whose size is not known: it is named, it blocks
    /// removals, and no memory is spent on its pods.
    fn refuse(&mut self, group: &PodGroup) {
        let PodGroup { workload, origin, counts, .. } = group;
        let Some(origin) = origin.clone() else { return };
        let object = format!("{} {workload}", workload.kind);
        let reason = format!(
            "it asks for {} pods; at most {PODS_MAX} are planned, and {ALL_PODS_MAX} of all workloads \
             together",
            counts.planned
        );
        let severity = Severity::Error;
        let (message, hint) = (reason.clone(), Some("check its number of replicas".to_owned()));
        let at = origin.clone();
        self.problems.push(Problem { origin: at, severity, object: object.clone(), message, hint });
        self.unresolved.push(Unresolved { origin, object, reason });
    }

    /// Refuses groups that grew beyond what is planned for since they were added.
    fn refuse_absurd(&mut self) {
        let mut all = 0_u64;
        let mut is_absurd = |group: &PodGroup| {
            let more = all.saturating_add(u64::from(group.counts.planned));
            let absurd = group.counts.planned > PODS_MAX || more > ALL_PODS_MAX;
            if !absurd {
                all = more;
            }
            absurd
        };
        let (absurd, kept) = std::mem::take(&mut self.groups).into_iter().partition(&mut is_absurd);
        self.groups = kept;
        let absurd: Vec<PodGroup> = absurd;
        for group in &absurd {
            self.refuse(group);
        }
    }

    /// Returns how many pods the clock alone asks for at each of `times`, workload by workload:
    /// where two moments agree, everything else agrees as well.
    #[must_use]
    pub fn by_clock(
        desired: &Desired,
        observed: &Observed,
        asked: &Asked,
        times: &[Timestamp],
    ) -> Vec<Vec<u32>> {
        let context = ShapeContext::of(desired).within(observed);
        let live = LivePods::of(observed, &context);
        let follows = |workload: &&Workload| {
            let is_timed = |scaler: &&Scaler| matches!(scaler.rule, ScalerRule::EventDriven(_));
            matches!(workload.scale, Scale::CronJob { .. })
                || decide::claimants(&desired.scalers, &workload.id).iter().any(is_timed)
        };
        let by_clock: Vec<&Workload> = desired.workloads.values().filter(follows).collect();
        let counts = |at: &Timestamp| {
            let asked = Asked { at: *at, ..asked.clone() };
            let decisions = Decisions { desired, observed, live: &live, asked: &asked };
            let count = |w: &&Workload| decisions.decide(w).counts.of(asked.mode);
            by_clock.iter().map(count).collect()
        };
        times.iter().map(counts).collect()
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

/// What declared workloads become groups with.
struct Declared<'a> {
    decisions: Decisions<'a>,
    demand: Demand,
}

impl Declared<'_> {
    /// Adds a workload whose pods have `shape`.
    fn add(&mut self, workload: &Workload, shape: Arc<PodShape>, claims: &Claims) {
        let group = self.group(workload, shape);
        if group.counts.planned > PODS_MAX {
            // Before its parts are made, which take memory for each pod.
            return self.demand.refuse(&group);
        }
        let made_from = (&*workload.template, workload.first_ordinal);
        let pods = self.decisions.live.pods(&workload.id);
        let parts = parts::of_stateful_set(&group, made_from, claims, pods);
        let mut group = group;
        group.consist_of(parts);
        self.demand.groups.push(group);
    }

    fn group(&mut self, workload: &Workload, mut shape: Arc<PodShape>) -> PodGroup {
        let live = self.decisions.live;
        let mut running = live.running(&workload.id);
        let Decision { mut counts, by, problems, unresolved } = self.decisions.decide(workload);
        self.demand.problems.extend(problems);
        self.demand.unresolved.extend(unresolved);
        if workload.id.kind == WorkloadKind::Pod {
            counts = counts.less(live.finished(&workload.id));
        }
        counts.planned = counts.of(self.decisions.asked.mode);
        if let Some(node) = &shape.nodes.name {
            // Such pods are bound by whoever makes them: they run there as soon as they are made.
            running = live.bound_by_name(&workload.id, node, (counts.planned, &shape.requests));
        }
        if workload.id.kind == WorkloadKind::Pod {
            // Nothing would make the pod anew if it were evicted.
            Arc::make_mut(&mut shape).pinned = true;
        }
        let (workload, origin) = (workload.id.clone(), Some(workload.origin.clone()));
        PodGroup { workload, origin, shape, counts, decided_by: by, running, parts: Vec::new() }
    }

    /// Returns the workload with the template that its pods are made from, and whether a vertical
    /// autoscaler decides what they ask for.
    fn sized<'w>(&mut self, workload: &'w Workload) -> (Cow<'w, Workload>, bool) {
        let Decisions { desired, observed, .. } = self.decisions;
        let mut all = vertical::of(&desired.verticals, &workload.id);
        let Some(vertical) = all.next() else { return (Cow::Borrowed(workload), false) };
        if let Some(second) = all.next() {
            self.demand.problems.push(Problem {
                origin: second.origin.clone(),
                severity: Severity::Error,
                object: second.object.clone(),
                message: format!(
                    "sizes {} {}, which {} at {} sizes as well",
                    workload.id.kind, workload.id, vertical.object, vertical.origin
                ),
                hint: Some("keep one of the two".to_owned()),
            });
        }
        let vertical::Sizing { template, because, is_applied } = vertical::sized(
            vertical,
            workload,
            (&observed.scaling, vertical::ranges(desired, workload)),
        );
        let (autoscaler, origin) = (vertical.object.clone(), vertical.origin.clone());
        let sizing = Sizing { autoscaler, origin, because, applied: is_applied };
        self.demand.sizings.insert(workload.id.clone(), sizing);
        (Cow::Owned(Workload { template, ..workload.clone() }), is_applied)
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

/// Returns whether the number of pods of an object that could not be read is known all the same: an
/// autoscaler of the repository owns it, and the world tells what it came to. Where nobody owns it,
/// the repository may have just changed it, so that what runs is only the least there will be.
fn is_owned(source: &Unresolved, desired: &Desired, observed: &Observed) -> bool {
    let is_it = |kind: &str, namespace: &Namespace, name: &str| {
        source.object == format!("{kind} {namespace}/{name}")
    };
    let mut scales = observed.scaling.scales.iter();
    let is_told = scales.any(|scale| is_it(&scale.kind, &scale.namespace, &scale.name));
    is_told
        && desired.scalers.iter().any(|scaler| {
            let mut targets = scaler.targets.iter();
            !matches!(scaler.rule, ScalerRule::Unknown(_))
                && targets.any(|target| is_it(&target.kind, &scaler.namespace, &target.name))
        })
}
