//! Builds groups of pods from declared workloads and live pods.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::admission::QuotaPods;
use super::controller_labels::NamedKeys;
use super::live_pods::LivePods;
use super::pod_volume::{TopologySource, VolumeProblem};
use super::scaling_decision::{ScalingContext, ScalingDecision};
use super::shape::{ShapeContext, pod_shape};
use super::volume_claims::Claims;
use super::{
    ClusterSize, Counts, Daemon, Decider, Demand, DemandMode, DemandQuery, PodGroup, PodShape,
    Sizing, admission, capacity_buffer, fargate, hooks, refused_pods, replica_partitions, rollouts,
    scaling_decision, vpa,
};
use crate::model::code::Code;
use crate::model::desired::{
    Desired, Problem, Scale, Scaler, ScalerRule, Severity, Unresolved, UnresolvedPolicy, Workload,
};
use crate::model::ids::{Namespace, WorkloadId, WorkloadKind};
use crate::model::observed::Observed;

/// Maximum number of pods of one workload. Kubernetes clusters hold at most about 150,000 pods in
/// total.
const PODS_MAX: u32 = 1_000_000;

/// Maximum number of pods of all workloads.
const ALL_PODS_MAX: u64 = 5_000_000;

impl Demand {
    /// Returns the pods to place at the time of the observation; see [`Demand::for_query`].
    pub fn build(desired: &Desired, observed: &Observed, mode: DemandMode) -> Self {
        let (at, lead) = (observed.taken_at, desired.lead_time);
        Self::for_query(
            desired,
            observed,
            &DemandQuery { mode, at, lead, ..DemandQuery::default() },
        )
    }

    /// Returns the pods to place: the pods of declared workloads, in the number that `query`
    /// selects, and the live pods that keep their capacity.
    pub fn for_query(desired: &Desired, observed: &Observed, query: &DemandQuery) -> Self {
        let context = ShapeContext::new(desired).with_nodes(observed);
        let live = LivePods::new(observed, &context);
        let claims = Claims::new(desired, &observed.storage);
        let named_keys = NamedKeys::new(desired, observed);
        let is_open = |source: &&Unresolved| !has_known_replicas(source, desired, observed);
        let unresolved = desired.unresolved.iter().filter(is_open).cloned().collect();
        let decisions = ScalingContext { desired, observed, live: &live, query };
        let mut declared =
            DeclaredWorkloads { decisions, demand: Self { unresolved, ..Self::default() } };
        // Where a cluster is observed, the pods of unread sources are those that run.
        let is_empty = observed.nodes.is_empty() && observed.pods.is_empty();
        let assumed = desired.assumed.iter().filter(|_| is_empty);
        let mut sized = BTreeMap::new();
        for workload in desired.workloads.values().chain(assumed) {
            declared.demand.problems.extend(refused_pods::refusals(workload, desired));
            let (workload, is_sized) = declared.with_vertical_sizing(workload);
            if is_sized {
                sized.insert(workload.id.clone(), Arc::clone(&workload.template));
            }
            // The LimitRanger checks the requests that a vertical autoscaler has set.
            declared.demand.problems.extend(admission::admission_errors(&workload, desired));
            let (workload, several) = live.with_flavor(workload);
            declared.demand.problems.extend(several);
            let stated = pod_shape(&workload.id.namespace, &workload.template, &context)
                .spread_by_default(workload.id.kind);
            let stated = named_keys.with_controller_labels(stated, &workload.id);
            let (shape, changed) = live.with_live_requests(&workload, stated, is_sized);
            declared.demand.problems.extend(changed);
            let shape =
                Arc::new(claims.with_volumes(&shape, &workload.template.spec.volumes, None));
            declared.demand.problems.extend(volume_problems(&workload, &shape));
            if workload.scale == Scale::PerNode {
                let origin = Some(workload.origin.clone());
                let daemon = Daemon { workload: workload.id.clone(), origin, shape };
                declared.demand.daemons.push(daemon);
                continue;
            }
            declared.add_workload(&workload, shape, &claims);
        }
        let mut demand = declared.demand;
        hooks::count_peaks(&mut demand, desired, &live);
        capacity_buffer::set_buffer_counts(&mut demand.groups, desired, query.mode);
        demand.reject_oversized_groups();
        demand.add_undeclared_workloads(desired, observed, &live, &claims);
        demand.groups.sort_by(|a, b| a.workload.cmp(&b.workload));
        demand.predict_ending_pods(desired, &live, observed.taken_at);
        demand.share_claims();
        demand.daemons.sort_by(|a, b| a.workload.cmp(&b.workload));
        let pods = QuotaPods { demand: &demand, desired, sized: &sized };
        let over_quota = admission::quota_warnings(&pods);
        demand.problems.extend(over_quota);
        fargate::assign_fargate(&mut demand, desired, observed, &live);
        rollouts::add_headroom(&mut demand.groups, desired);
        demand
    }

    /// Returns the count of each scaler that follows the number of nodes, at this size.
    pub fn proportional_replicas(desired: &Desired, size: &ClusterSize) -> Vec<u32> {
        scaling_decision::proportional_replicas(desired, size)
    }

    /// Marks an oversized workload as unresolved and reports an error. It then blocks removals, and
    /// its pods use no memory.
    fn reject_group(&mut self, group: &PodGroup) {
        let PodGroup { workload, origin, counts, .. } = group;
        let Some(origin) = origin.clone() else { return };
        let object = format!("{} {workload}", workload.kind);
        let reason = format!(
            "it asks for {} pods; at most {PODS_MAX} are planned, and {ALL_PODS_MAX} of all \
             workloads together",
            counts.planned
        );
        let severity = Severity::Error;
        let (message, hint) = (reason.clone(), Some("check its number of replicas".to_owned()));
        let at = origin.clone();
        self.problems.push(Problem::new(severity, at, object.clone(), message).maybe_hint(hint));
        self.unresolved.push(Unresolved { origin, object, reason });
    }

    /// Rejects groups whose planned pods exceed the maximum.
    fn reject_oversized_groups(&mut self) {
        let mut all = 0_u64;
        let mut is_oversized = |group: &PodGroup| {
            let more = all.saturating_add(u64::from(group.counts.planned));
            let oversized = group.counts.planned > PODS_MAX || more > ALL_PODS_MAX;
            if !oversized {
                all = more;
            }
            oversized
        };
        let (oversized, accepted) =
            std::mem::take(&mut self.groups).into_iter().partition(&mut is_oversized);
        self.groups = accepted;
        let oversized: Vec<PodGroup> = oversized;
        for group in &oversized {
            self.reject_group(group);
        }
    }

    /// Returns, for each of `times`, the number of pods of each workload that depends on the time.
    /// Times with equal counts have equal demand.
    pub fn replicas_over_time(
        desired: &Desired,
        observed: &Observed,
        query: &DemandQuery,
        times: &[Timestamp],
    ) -> Vec<Vec<u32>> {
        let context = ShapeContext::new(desired).with_nodes(observed);
        let live = LivePods::new(observed, &context);
        let is_scheduled = |workload: &&Workload| {
            let is_timed = |scaler: &&Scaler| matches!(scaler.rule, ScalerRule::EventDriven(_));
            matches!(workload.scale, Scale::CronJob { .. })
                || scaling_decision::scalers_of(&desired.scalers, &workload.id).iter().any(is_timed)
        };
        let scheduled: Vec<&Workload> = desired.workloads.values().filter(is_scheduled).collect();
        let counts = |at: &Timestamp| {
            let query = DemandQuery { at: *at, ..query.clone() };
            let decisions = ScalingContext { desired, observed, live: &live, query: &query };
            let count = |w: &&Workload| decisions.decide(w).counts.for_mode(query.mode);
            scheduled.iter().map(count).collect()
        };
        times.iter().map(counts).collect()
    }

    /// Returns false if the repository may declare more objects: a file has an error, or a source was
    /// not read. An absent object may then be in the part that is not read.
    pub fn declarations_read(&self, desired: &Desired) -> bool {
        let is_ignored = desired.unresolved_policy == UnresolvedPolicy::Ignore;
        let has_errors = desired.problems.iter().any(|problem| problem.severity == Severity::Error);
        !has_errors && (self.unresolved.is_empty() || is_ignored)
    }

    fn add_undeclared_workloads(
        &mut self,
        desired: &Desired,
        observed: &Observed,
        live: &LivePods,
        claims: &Claims,
    ) {
        let declarations_read = self.declarations_read(desired);
        let delivered: BTreeSet<&WorkloadId> = observed
            .workloads
            .iter()
            .filter(|live| live.delivered && declarations_read)
            .map(|live| &live.id)
            // Their delivery tool does not remove them.
            .filter(|id| !desired.retained.contains(id))
            .filter(|id| !desired.retaining_namespaces.contains(&id.namespace))
            .collect();
        let daemon_sets: BTreeSet<&WorkloadId> = observed
            .workloads
            .iter()
            .map(|live| &live.id)
            .filter(|id| id.kind == WorkloadKind::DaemonSet)
            .collect();
        let is_unread = |id: &WorkloadId| {
            let object = format!("DaemonSet {}/{}", id.namespace, id.name);
            observed.unread.iter().any(|unread| unread.object == object)
        };
        for (id, pods) in live.by_owner.iter().filter(|(id, _)| !desired.workloads.contains_key(id))
        {
            let Some(shape) = live.shape(id, pods) else { continue };
            let mut parts =
                replica_partitions::live_partitions(&shape, claims, pods, &observed.templates);
            let removed = delivered.contains(id);
            if id.kind == WorkloadKind::DaemonSet {
                // Any pod may name an owner. Only an object of the cluster starts pods on new nodes.
                if !removed && (daemon_sets.contains(id) || is_unread(id)) {
                    let shape = parts.pop().map_or(shape, |part| part.shape);
                    self.daemons.push(Daemon { workload: id.clone(), origin: None, shape });
                }
                continue;
            }
            let waits = live.waits_beside(id).filter(|_| !removed);
            self.queue_waits.extend(waits.map(|wait| (id.clone(), wait)));
            let count = u32::try_from(pods.len()).unwrap_or(u32::MAX);
            let count = if removed { 0 } else { count };
            let mut group = PodGroup {
                workload: id.clone(),
                origin: None,
                shape,
                counts: Counts { floor: count, live: count, ceiling: count, planned: count },
                decided_by: if removed { Decider::Removed } else { Decider::World },
                running: live.running_by_node(id),
                ending: [].into(),
                partitions: Vec::new(),
            };
            if !removed {
                group.set_partitions(parts);
            }
            self.groups.push(group);
        }
    }
}

/// Inputs and result of adding the declared workloads.
struct DeclaredWorkloads<'a> {
    decisions: ScalingContext<'a>,
    demand: Demand,
}

impl DeclaredWorkloads<'_> {
    /// Adds a group for a workload whose pods have `shape`.
    fn add_workload(&mut self, workload: &Workload, shape: Arc<PodShape>, claims: &Claims) {
        let group = self.group(workload, shape);
        if group.counts.planned > PODS_MAX {
            // Reject it before the partitions use memory for each pod.
            return self.demand.reject_group(&group);
        }
        let pods = self.decisions.live.pods_of(&workload.id);
        let parts = replica_partitions::stateful_set_partitions(
            &group,
            &workload.template,
            workload.first_ordinal,
            claims,
            pods,
        );
        let mut group = group;
        group.set_partitions(parts);
        self.demand.groups.push(group);
    }

    fn group(&mut self, workload: &Workload, mut shape: Arc<PodShape>) -> PodGroup {
        let live = self.decisions.live;
        let mut running = live.running_by_node(&workload.id);
        let ScalingDecision { mut counts, by, problems, unresolved, waits } =
            self.decisions.decide(workload);
        self.demand.queue_waits.extend(waits.map(|wait| (workload.id.clone(), wait)));
        self.demand.problems.extend(problems);
        self.demand.unresolved.extend(unresolved);
        if workload.id.kind == WorkloadKind::Pod {
            counts = counts.minus(live.finished_count(&workload.id));
        }
        counts.planned = counts.for_mode(self.decisions.query.mode);
        if let Some(node) = &shape.nodes.name {
            // Pods with `nodeName` bypass the scheduler: they run on that node from creation.
            running =
                live.running_on_named_node(&workload.id, node, counts.planned, &shape.requests);
        }
        if workload.id.kind == WorkloadKind::Pod {
            // No controller replaces an evicted bare pod.
            Arc::make_mut(&mut shape).do_not_disrupt = true;
        }
        let (workload, origin) = (workload.id.clone(), Some(workload.origin.clone()));
        PodGroup {
            workload,
            origin,
            shape,
            counts,
            decided_by: by,
            running,
            ending: [].into(),
            partitions: Vec::new(),
        }
    }

    /// Returns the workload with its resized template, and true if a vertical autoscaler decides
    /// the requests.
    fn with_vertical_sizing<'w>(&mut self, workload: &'w Workload) -> (Cow<'w, Workload>, bool) {
        let ScalingContext { desired, observed, .. } = self.decisions;
        let mut all = vpa::scalers_for(&desired.vertical_scalers, &workload.id);
        let Some(vertical) = all.next() else { return (Cow::Borrowed(workload), false) };
        if let Some(second) = all.next() {
            self.demand.problems.push(
                Problem::error(
                    second.origin.clone(),
                    second.object.clone(),
                    format!(
                        "sizes {} {}, which {} at {} sizes as well",
                        workload.id.kind, workload.id, vertical.object, vertical.origin
                    ),
                )
                .hint("keep one of the two")
                .code(Code::AutoscalerConflict),
            );
        }
        let vpa::TemplateSizing { template, mut because, is_applied } = vpa::resize_template(
            vertical,
            workload,
            &observed.scaling,
            vpa::ranges(desired, workload),
        );
        let running = self.decisions.live.active_count(&workload.id);
        if is_applied && vpa::keeps_running_pods(vertical, running) {
            because.push_str(
                "; running pods stay as they are, and room is planned for their next start",
            );
        }
        let (autoscaler, origin) = (vertical.object.clone(), vertical.origin.clone());
        if is_applied && !vpa::has_recommendation(vertical, &observed.scaling) {
            let message = format!("sizes {} {}: {because}", workload.id.kind, workload.id);
            let hint = "state in the template what the pods need, or plan over a cluster in which \
                        it has a recommendation";
            let warning = Problem::warning(origin.clone(), autoscaler.clone(), message);
            self.demand.problems.push(warning.hint(hint));
        }
        let sizing = Sizing { autoscaler, origin, because, applied: is_applied };
        self.demand.sizings.insert(workload.id.clone(), sizing);
        (Cow::Owned(Workload { template, ..workload.clone() }), is_applied)
    }
}

/// Returns warnings about missing claims and assumed storage classes of a workload.
fn volume_problems(workload: &Workload, shape: &PodShape) -> Vec<Problem> {
    let warnings = shape.volumes.iter().filter_map(|mount| {
        Some(match (&mount.problem, &mount.cause) {
            (Some(VolumeProblem::Missing), _) => (
                format!("{}: its pods are unschedulable", mount.problem_text()?),
                "add the PersistentVolumeClaim to the repository, or observe the cluster again",
            ),
            (_, TopologySource::Assumed(class)) => (
                format!(
                    "claim {} is of storage class {class}, which is declared nowhere; its volumes \
                     are taken for EBS volumes that follow their pods",
                    mount.name
                ),
                "add the StorageClass to the repository, or plan over the world of the cluster",
            ),
            (_, TopologySource::Bound | TopologySource::Class(_) | TopologySource::Disk) => {
                return None;
            }
        })
    });
    let warning = |(message, hint): (String, &str)| {
        Problem::warning(
            workload.origin.clone(),
            format!("{} {}", workload.id.kind, workload.id),
            message,
        )
        .hint(hint)
    };
    warnings.map(warning).collect()
}

/// Returns true if the number of pods of an unreadable object is known: an autoscaler of the
/// repository owns it, and its scale was observed. Without an owner, the repository may have
/// changed the number, so the observed number is only a lower bound.
fn has_known_replicas(source: &Unresolved, desired: &Desired, observed: &Observed) -> bool {
    let is_same = |kind: &str, namespace: &Namespace, name: &str| {
        source.object == format!("{kind} {namespace}/{name}")
    };
    let mut scales = observed.scaling.scales.iter();
    let is_observed = scales.any(|scale| is_same(&scale.kind, &scale.namespace, &scale.name));
    is_observed
        && desired.scalers.iter().any(|scaler| {
            let mut targets = scaler.targets.iter();
            !matches!(scaler.rule, ScalerRule::Unknown(_))
                && targets.any(|target| is_same(&target.kind, &scaler.namespace, &target.name))
        })
}
