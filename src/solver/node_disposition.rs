//! Dispositions of existing nodes: what the solver may do with each node, and why not more.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::Input;
use super::cloud_drift::{detect_cloud_drift, resolved_selectors};
use super::disruption_blockers;
use super::drift;
use super::existing_node::ExistingNodeBuilder;
use super::reported_resources::is_near_formulas;
use crate::demand::{DoNotDisrupt, JobEvictions, JobRefusal, is_do_not_disrupt_at};
use crate::model::desired::{Consolidation, Expiry, Pool, UnresolvedPolicy};
use crate::model::ids::{LabelKey, NodeName, PoolName, WorkloadId, WorkloadKind, workload_key};
use crate::model::observed::{
    CordonReason, Instance, Node, Observed, Pod, SCALE_DOWN_DISABLED_ANNOTATION, UnreadObject, tag,
};
use crate::model::reason::{BlockReason, DriftedField, KeepReason, RetireReason};
use crate::model::units::Resources;

/// Condition for the retirement of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetireCondition {
    /// Its pods fit on other nodes.
    OncePodsPlaced,
    /// No condition: the pool declares the number of nodes.
    Unconditional,
}

/// What the solver may do with a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeDisposition {
    /// Keep the node, whatever it costs.
    Keep(KeepReason),
    /// Remove the node only if just DaemonSet pods are left on it; the reason blocks other changes.
    RemoveWhenEmpty(BlockReason),
    /// Remove or replace the node if that saves enough.
    Consolidatable,
    /// Retire the node for this reason, as soon as its pods fit on other nodes.
    Retire(RetireReason),
}

/// Drift of a node from its declaration.
#[derive(Debug, Default)]
pub(super) struct NodeDrift {
    /// Reason to replace or remove the node, whether or not this is allowed now.
    pub(super) due: Option<RetireReason>,
    /// Every field in which the node differs.
    pub(super) fields: Vec<DriftedField>,
}

impl ExistingNodeBuilder<'_> {
    /// Returns the differences of a managed node from its declaration, and the reason to replace it.
    pub(super) fn drift(&self, node: &Node, ours: &Instance, pool: Option<&PoolName>) -> NodeDrift {
        let declared = pool.and_then(|name| self.input.desired.pools.get(name));
        let Some(pool) = declared else {
            // A part of the repository that was not read may declare the pool.
            let is_known =
                self.input.frozen.is_none() && undeclared_pool_doubt(self.input).is_none();
            let due = is_known.then_some(RetireReason::PoolRemoved);
            return NodeDrift { due, fields: Vec::new() };
        };
        let mut fields = self.pool_differences(node, ours, pool);
        let contradicted = self.contradicted_labels(node, ours);
        let drifted = || fields.first().cloned().map(Into::into);
        let is_requested = self.input.replace.contains(&node.name);
        let requested = is_requested.then_some(RetireReason::Requested);
        let due = requested.or_else(|| self.expiry(ours, pool)).or_else(drifted);
        let class = pool.node_class.as_ref();
        let class = class.and_then(|name| self.input.desired.node_classes.get(name));
        let launched = class.zip(self.spec_digests.get(&pool.name));
        let by_hand =
            launched.map(|(class, spec)| drift::manual_changes(node, ours, pool, class, spec));
        for change in contradicted.into_iter().chain(by_hand.unwrap_or_default()) {
            let is_known = fields
                .iter()
                .any(|known| known.field == change.field || drift::explains(known, &change));
            if !is_known {
                fields.push(change);
            }
        }
        NodeDrift { due, fields }
    }

    /// Returns what the solver may do with a member of a node group.
    pub(super) fn member_disposition(
        &self,
        node: &Node,
        instance: &Instance,
        pool: &PoolName,
    ) -> NodeDisposition {
        let blocked = |by| NodeDisposition::Keep(KeepReason::Blocked { by });
        if let Some(why) = self.groups.observe_only_reason(pool.as_str()) {
            return blocked(BlockReason::GroupObserved { why: why.to_owned() });
        }
        if instance.group.as_ref().is_some_and(|of| of.protected) {
            let why = "it is protected from being scaled in".to_owned();
            return blocked(BlockReason::GroupObserved { why });
        }
        self.disposition(node, instance, Some(pool))
    }

    /// Returns what the solver may do with a managed node.
    pub(super) fn disposition(
        &self,
        node: &Node,
        instance: &Instance,
        pool: Option<&PoolName>,
    ) -> NodeDisposition {
        let blocked = |by| NodeDisposition::Keep(KeepReason::Blocked { by });
        let input = self.input;
        if input.untouched.contains(&node.name) {
            return blocked(BlockReason::NotTargeted);
        }
        if let Some(what) = &input.frozen {
            return blocked(BlockReason::Unknown { what: what.clone() });
        }
        if let Some(UnreadObject { object, reason, .. }) = self.unread.get(&node.name) {
            return blocked(BlockReason::Unknown { what: format!("{object} {reason}") });
        }
        if !node.ready {
            return blocked(BlockReason::NotReady);
        }
        let declared = pool.and_then(|name| input.desired.pools.get(name));
        // A drain that a user asks for does not end by force, nor one of a node that another client
        // cordoned.
        let is_requested = input.replace.contains(&node.name);
        let is_cordoned = node.unschedulable && node.cordon_reason() != Some(CordonReason::Drain);
        let may_end_by_force = !is_requested && !is_cordoned;
        let ends_by_force = declared.filter(|_| may_end_by_force).is_some_and(|pool| {
            let reason = self.retire_reason(node, instance, pool);
            reason.is_some_and(|reason| pool.forced_drain_period(&reason).is_some())
        });
        if let Some(by) = self.block_reason(node, ends_by_force) {
            return blocked(by);
        }
        let Some(pool) = declared else {
            return match undeclared_pool_doubt(input) {
                Some(what) => blocked(BlockReason::Unknown { what }),
                None => NodeDisposition::Retire(RetireReason::PoolRemoved),
            };
        };
        if pool.do_not_disrupt {
            return blocked(BlockReason::DoNotDisrupt);
        }
        if is_requested {
            return NodeDisposition::Retire(RetireReason::Requested);
        }
        if let Some(reason) = self.retire_reason(node, instance, pool) {
            // Expired nodes are retired regardless of budgets, as in Karpenter.
            if matches!(reason, RetireReason::Drifted { .. })
                && !(ends_by_force && node.grace_period_began_at().is_some())
                && disruption_blockers::is_disruption_blocked(pool, "Drifted", input.at)
            {
                return blocked(BlockReason::Budget);
            }
            return NodeDisposition::Retire(reason);
        }
        if self.reports_too_little(node, instance, &pool.name) {
            let what = "the node reports far less CPU or memory than its instance type has";
            return blocked(BlockReason::Unknown { what: what.to_owned() });
        }
        if input.needed.contains(&node.name) {
            return blocked(BlockReason::NoOtherPlace);
        }
        self.consolidation(instance, pool)
    }

    /// Returns how far the pool of a node lets consolidation go.
    fn consolidation(&self, instance: &Instance, pool: &Pool) -> NodeDisposition {
        let blocked = |by| NodeDisposition::Keep(KeepReason::Blocked { by });
        let is_blocked_by_budget =
            |reason: &str| disruption_blockers::is_disruption_blocked(pool, reason, self.input.at);
        if pool.replicas.is_some() {
            return blocked(BlockReason::StaticPool);
        }
        let Some(rest) = pool.consolidate_after else {
            return blocked(BlockReason::ConsolidationDisabled);
        };
        // Pods come to a node after its launch, so Karpenter waits at least as long.
        let age = self.input.at.duration_since(instance.launched_at);
        if self.input.settings.keep_young_nodes && age < rest {
            let seconds = rest.as_secs().unsigned_abs();
            return blocked(BlockReason::ConsolidateAfter { seconds });
        }
        if is_blocked_by_budget("Empty") {
            return blocked(BlockReason::BudgetZero);
        }
        match pool.consolidation {
            Consolidation::WhenEmptyOrUnderutilized | Consolidation::Balanced
                if is_blocked_by_budget("Underutilized") =>
            {
                NodeDisposition::RemoveWhenEmpty(BlockReason::Budget)
            }
            Consolidation::WhenEmpty => {
                NodeDisposition::RemoveWhenEmpty(BlockReason::PolicyWhenEmpty)
            }
            Consolidation::WhenEmptyOrUnderutilized | Consolidation::Balanced => {
                NodeDisposition::Consolidatable
            }
        }
    }

    /// Returns true if running pods may seem to have no room on the node because its report is wrong.
    /// The settings of nodes that were launched with another specification are unknown.
    fn reports_too_little(&self, node: &Node, instance: &Instance, pool: &PoolName) -> bool {
        let as_declared = instance.tags.get(tag::SPEC) == self.spec_digests.get(pool);
        let kind = self.catalog.types.get(&instance.instance_type).filter(|_| as_declared);
        let Some(kind) = kind else { return false };
        let model = self.catalog.allocation(kind, &self.node_settings(pool));
        let size = &model.capacity;
        let least = |reported: &Resources, model: &Resources| Resources {
            cpu: reported.cpu.min(model.cpu),
            memory: reported.memory.min(model.memory),
            pods: reported.pods,
            ..Resources::default()
        };
        let is_near = |reported: &Resources, model: &Resources| {
            is_near_formulas(&least(reported, model), model, size)
        };
        !is_near(&node.capacity, &model.capacity) || !is_near(&node.allocatable, &model.allocatable)
    }

    /// Returns the annotation or pod that blocks changes of the node. A pod that must not be moved
    /// does not block a drain that ends by force.
    fn block_reason(&self, node: &Node, ends_by_force: bool) -> Option<BlockReason> {
        if node.annotations.get("karpenter.sh/do-not-disrupt").is_some_and(|v| v == "true") {
            return Some(BlockReason::DoNotDisrupt);
        }
        if node.annotations.get(SCALE_DOWN_DISABLED_ANNOTATION).is_some_and(|v| v == "true") {
            return Some(BlockReason::ScaleDownDisabled);
        }
        let pinned_daemon = self.pinned_daemons.get(&node.name).filter(|_| !ends_by_force);
        if let Some(workload) = pinned_daemon.cloned() {
            return Some(BlockReason::PinnedPod { workload });
        }
        // Pods of a Job may run although none is planned, such as those of a CronJob at its floor.
        let refusal = self.job_refusals.get(&node.name).filter(|_| !ends_by_force);
        if let Some(JobRefusal { job, why }) = refusal.cloned() {
            return Some(BlockReason::JobMightFail { job, why });
        }
        let mut here = self
            .input
            .demand
            .groups
            .iter()
            .filter(|group| group.counts.planned > 0 && group.active_on(&node.name) > 0);
        here.find_map(|group| {
            let workload = workload_key(&group.workload);
            let asks = self.pinned_pods.contains(&(&node.name, &group.workload));
            if (group.shape.do_not_disrupt || asks) && !ends_by_force {
                return Some(BlockReason::PinnedPod { workload });
            }
            let input = self.input;
            let groups = &input.demand.groups;
            let budget =
                disruption_blockers::blocking_disruption_budget(input.desired, groups, group);
            if let Some(budget) = budget.filter(|_| !ends_by_force) {
                let budget = format!("{}/{}", budget.namespace, budget.name);
                return Some(BlockReason::ProtectedPod { workload, budget });
            }
            let feature = group.shape.unsupported.first()?.as_str().to_owned();
            Some(BlockReason::UnsupportedPod { workload, feature })
        })
    }

    fn retire_reason(&self, node: &Node, instance: &Instance, pool: &Pool) -> Option<RetireReason> {
        let drifted = || self.pool_differences(node, instance, pool).into_iter().next();
        self.expiry(instance, pool).or_else(|| drifted().map(Into::into))
    }

    fn expiry(&self, instance: &Instance, pool: &Pool) -> Option<RetireReason> {
        let Expiry::After(limit) = pool.expire_after else { return None };
        let age = self.input.at.duration_since(instance.launched_at);
        let hours = |d: SignedDuration| u32::try_from(d.as_hours()).unwrap_or(u32::MAX);
        (age >= limit)
            .then(|| RetireReason::Expired { age_hours: hours(age), limit_hours: hours(limit) })
    }

    /// Returns the labels of a node that contradict its instance.
    fn contradicted_labels(&self, node: &Node, instance: &Instance) -> Vec<DriftedField> {
        let kind = self.catalog.types.get(&instance.instance_type);
        drift::contradicted_labels(node, instance, &self.observed.cluster.region, kind)
    }

    /// Returns the differences from the pool for which a node is replaced, in the order of their
    /// precedence.
    fn pool_differences(&self, node: &Node, instance: &Instance, pool: &Pool) -> Vec<DriftedField> {
        let mut found = self.declared_differences(node, instance, pool);
        let contradicted = self.contradicted_labels(node, instance);
        for field in &mut found {
            let explained = contradicted.iter().find(|label| drift::explains(label, field));
            if let Some(label) = explained {
                field.clone_from(label);
            }
        }
        found
    }

    /// Returns the differences from the pool, as the labels of the node state them.
    fn declared_differences(
        &self,
        node: &Node,
        instance: &Instance,
        pool: &Pool,
    ) -> Vec<DriftedField> {
        // The owner of a group decides the settings of its nodes.
        if self.input.desired.node_groups.contains_key(&pool.name) {
            return Vec::new();
        }
        let requirements = super::offer::pool_requirements(pool);
        let class = pool.node_class.as_ref();
        let class = class.and_then(|name| self.input.desired.node_classes.get(name));
        let launched = instance.tags.get(tag::SPEC);
        let label = |key: &LabelKey| {
            let of_commit = pool.labels.contains_key(key)
                && launched.zip(class).is_some_and(|(l, c)| drift::had_other_labels(l, pool, c));
            let is = node.labels.get(key).map_or("absent".to_owned(), ToString::to_string);
            let declared = requirements.get(key.as_str()).map(ToString::to_string);
            let field = format!("{}{key}", if of_commit { "template label " } else { "label " });
            DriftedField { field, is, declared: declared.unwrap_or_default() }
        };
        let mut found: Vec<DriftedField> =
            requirements.unmatched(&node.labels).map(label).collect();
        let otherwise =
            launched.filter(|launched| self.spec_digests.get(&pool.name) != Some(launched));
        let changed = otherwise.zip(class).and_then(|(launched, class)| {
            let resolved =
                resolved_selectors(instance, class, self.catalog, &self.observed.resolved);
            drift::changed_fields(launched, pool, class, &resolved)
        });
        found.extend(changed.map(DriftedField::changed_after_launch));
        let class = class.into_iter();
        found.extend(
            class.filter_map(|class| {
                detect_cloud_drift(instance, class, self.catalog, self.observed)
            }),
        );
        found
    }
}

/// Returns nodes with a static or DaemonSet pod that must not be disrupted. Karpenter honors this
/// for such pods as well.
pub(super) fn pinned_daemons(observed: &Observed, at: Timestamp) -> BTreeMap<NodeName, String> {
    let nobody_places = |pod: &Pod| {
        let owner = pod.owner.as_ref();
        pod.mirror || owner.is_some_and(|owner| owner.kind == WorkloadKind::DaemonSet)
    };
    let pinned = |pod: &Pod| {
        let template = observed.templates.get(&*pod.template)?;
        let itself = || format!("{}/Pod/{}", pod.namespace, pod.name);
        let workload = pod.owner.as_ref().map_or_else(itself, workload_key);
        let pin = DoNotDisrupt::from_karpenter_annotations(&template.annotations);
        pin.holds(pod.started_at, at).then_some((pod.node.clone()?, workload))
    };
    observed
        .pods
        .iter()
        .filter(|pod| pod.is_active() && nobody_places(pod))
        .filter_map(|pod| pinned(pod))
        .collect()
}

/// Returns why an undeclared pool may still be in use: an unread source may declare it.
fn undeclared_pool_doubt(input: &Input<'_>) -> Option<String> {
    let source = input.demand.unresolved.first()?;
    (input.desired.unresolved_policy != UnresolvedPolicy::Ignore)
        .then(|| format!("{} was not read, and may declare the pool of the node", source.object))
}

/// Returns nodes with workloads whose pod there must not be moved at `at`.
pub(super) fn pinned_pods(
    observed: &Observed,
    at: Timestamp,
) -> BTreeSet<(&NodeName, &WorkloadId)> {
    let pods = observed.pods.iter().filter(|pod| pod.is_active() && pod.node.is_some());
    let pods = pods.filter(|pod| is_do_not_disrupt_at(pod, observed, at));
    pods.filter_map(|pod| Some((pod.node.as_ref()?, pod.owner.as_ref()?))).collect()
}

/// Returns why the Job of a pod might fail if a node is drained, by node.
pub(super) fn job_refusals<'a>(input: &Input<'a>) -> BTreeMap<&'a NodeName, JobRefusal> {
    let Input { observed, desired, .. } = *input;
    let jobs = JobEvictions::new(observed, desired);
    let pods = observed.pods.iter().filter(|pod| pod.is_active());
    pods.filter_map(|pod| Some((pod.node.as_ref()?, jobs.refusal(pod)?))).collect()
}
