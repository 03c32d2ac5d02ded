//! Stale cordons: nodes that fleetwright cordoned and no longer drains.
//!
//! A process that stops between a cordon and the end of the drain leaves a cordoned node. If the
//! next plan removes the node, that drain resumes. If the plan retains the node, only this module
//! reports the cordon.

use std::collections::{BTreeMap, BTreeSet};

use super::wire::{BlockReason, ExplainRow, KeepReason, Plan, Reason};
use crate::model::ids::{Address, InstanceId};
use crate::model::observed::{CordonReason, Instance, Node, Observed};

/// A node with our cordon mark that is not terminating.
#[derive(Debug, Clone, Copy)]
pub struct StaleCordon<'o> {
    /// The running instance of the node.
    pub instance: &'o InstanceId,
    /// The node. A schedulable node was uncordoned by another client and only retains our mark.
    /// With that mark, a later foreign cordon could not be distinguished from ours.
    pub node: &'o Node,
    /// Reason of the cordon.
    pub mark: CordonReason,
    /// True if fleetwright may uncordon the node: its instance carries our tags, or belongs to a
    /// managed group.
    pub is_ours: bool,
    /// True if a later plan may continue the drain: its termination grace period has begun, and the
    /// plan keeps the node for a reason that passes.
    pub may_continue: bool,
}

impl StaleCordon<'_> {
    /// Returns whether an apply without the controller may uncordon the node.
    ///
    /// The controller decides about cordons for interruptions, because it tracks them. A
    /// schedulable node is never in an interruption.
    pub fn can_uncordon_in_apply(&self) -> bool {
        self.is_ours
            && !self.may_continue
            && (self.mark == CordonReason::Drain || !self.node.unschedulable)
    }
}

/// Returns the nodes with our mark whose running instances are not in `terminating`, by node name.
/// The result includes the cordons of an apply in progress.
pub fn stale_cordons<'o>(
    plan: &Plan,
    observed: &'o Observed,
    terminating: &BTreeSet<InstanceId>,
) -> Vec<StaleCordon<'o>> {
    let managed = managed(plan);
    let kept_for_now = instances_where(plan, is_kept_for_now);
    let found = observed.nodes.values().filter_map(|node| {
        let mark = node.cordon_reason()?;
        let instance = observed.instances.get(node.instance.as_ref()?)?;
        let is_member = |instance: &Instance| instance.group.is_some();
        let ours = instance.is_managed_by(&observed.cluster.name)
            || is_member(instance) && managed.contains(&instance.id);
        let stays = instance.is_active() && !terminating.contains(&instance.id);
        stays.then_some(StaleCordon {
            instance: &instance.id,
            node,
            mark,
            is_ours: ours,
            may_continue: node.grace_period_began_at().is_some()
                && kept_for_now.contains(&instance.id),
        })
    });
    found.collect()
}

/// Returns whether `instance` is a member of a group that the plan manages.
pub fn is_managed_member(plan: &Plan, instance: &Instance) -> bool {
    instance.group.is_some() && managed(plan).contains(&instance.id)
}

/// Returns the instances whose row marks them as unmanaged.
pub fn unmanaged_instances(plan: &Plan) -> BTreeSet<&InstanceId> {
    instances_where(plan, is_unmanaged)
}

/// Returns the instances with a row, except unmanaged ones.
fn managed(plan: &Plan) -> BTreeSet<&InstanceId> {
    instances_where(plan, |row| !is_unmanaged(row))
}

fn instances_where(plan: &Plan, predicate: impl Fn(&ExplainRow) -> bool) -> BTreeSet<&InstanceId> {
    let explain: BTreeMap<&Address, &ExplainRow> =
        plan.capacity.explain.iter().map(|row| (&row.address, row)).collect();
    let rows = plan.resource_changes.iter();
    let found = rows.filter(|row| explain.get(&row.address).is_some_and(|row| predicate(row)));
    found.filter_map(|row| row.change.before.as_ref()?.instance_id.as_ref()).collect()
}

/// Returns whether the row keeps a node for a reason that passes by itself.
fn is_kept_for_now(row: &ExplainRow) -> bool {
    let Reason::Keep { because: KeepReason::Blocked { by } } = &row.reason else { return false };
    matches!(
        by,
        BlockReason::Budget
            | BlockReason::BudgetZero
            | BlockReason::NotReady
            | BlockReason::NotTargeted
            | BlockReason::Unknown { .. }
    )
}

fn is_unmanaged(row: &ExplainRow) -> bool {
    let Reason::Keep { because } = &row.reason else { return false };
    matches!(
        because,
        KeepReason::NotOurs | KeepReason::Blocked { by: BlockReason::GroupObserved { .. } }
    )
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::model::observed::{CORDONED_ANNOTATION, GRACE_PERIOD_ANNOTATION, Membership};
    use crate::plan::wire::{Action, RetireReason};
    use crate::testing::{sample_plan, world};

    /// Returns a plan with a row for `i-1`, which retains it for `because`, or retires it on
    /// request.
    fn plan_with_reason(because: Option<KeepReason>) -> Plan {
        let mut plan = sample_plan::plan();
        let deletes = |row: &&mut crate::plan::wire::ResourceChange| {
            row.change.actions.contains(&Action::Delete)
        };
        let row = plan.resource_changes.iter_mut().find(deletes).expect("a deletion");
        row.change.before.as_mut().expect("a deletion has a state before").instance_id =
            Some("i-1".into());
        let address = row.address.clone();
        plan.explain_mut(&address).reason = match because {
            Some(because) => Reason::Keep { because },
            None => Reason::Retire { because: RetireReason::Requested },
        };
        plan
    }

    /// Returns an observation in which the node of `i-1` carries our cordon mark.
    fn world(is_member: bool, mark: &str, unschedulable: bool) -> Observed {
        let lifecycle = "InService".to_owned();
        let group = Membership { name: "g".into(), lifecycle, protected: false };
        let instance = if is_member {
            Instance { group: Some(group), ..world::instance("i-1") }
        } else {
            world::managed_instance("i-1", "c")
        };
        let mark = (CORDONED_ANNOTATION.to_owned(), mark.to_owned());
        let node = Node {
            instance: Some(instance.id.clone()),
            unschedulable,
            annotations: [mark].into(),
            ..world::node("n")
        };
        let world = Observed::of_cluster("c", Timestamp::UNIX_EPOCH);
        world.with_instance(instance).with_node(node)
    }

    #[test]
    fn tagged_instances_and_managed_members_are_ours() {
        let observed = || BlockReason::GroupObserved { why: "manage is not set".to_owned() };
        for (what, is_member, because, ours) in [
            ("tags", false, Some(KeepReason::NotOurs), true),
            (
                "retained member of a managed group",
                true,
                Some(KeepReason::Needed { pods: 1, within_budget: false }),
                true,
            ),
            ("retired member of a managed group", true, None, true),
            ("member of an unmanaged group", true, Some(KeepReason::NotOurs), false),
            (
                "member of an observed group",
                true,
                Some(KeepReason::Blocked { by: observed() }),
                false,
            ),
        ] {
            let (plan, world) = (plan_with_reason(because), world(is_member, "drain", true));
            let found = stale_cordons(&plan, &world, &BTreeSet::new());
            let found: Vec<_> =
                found.iter().map(|one| (one.is_ours, one.can_uncordon_in_apply())).collect();
            assert_eq!(found, [(ours, ours)], "{what}");
        }
        let unknown = world(true, "drain", true);
        let mut plan = plan_with_reason(None);
        plan.resource_changes.clear();
        assert!(stale_cordons(&plan, &unknown, &BTreeSet::new()).iter().all(|one| !one.is_ours));
    }

    #[test]
    fn apply_uncordons_drains_and_schedulable_nodes_only() {
        let plan = plan_with_reason(None);
        for (mark, unschedulable, of_apply) in [
            ("drain", true, true),
            ("drain", false, true),
            ("interruption", true, false),
            ("interruption", false, true),
            // Mark of an earlier version.
            ("true", true, false),
        ] {
            let world = world(false, mark, unschedulable);
            let found = stale_cordons(&plan, &world, &BTreeSet::new());
            let found: Vec<_> = found.iter().map(StaleCordon::can_uncordon_in_apply).collect();
            assert_eq!(found, [of_apply], "{mark} {unschedulable}");
            assert!(stale_cordons(&plan, &world, &["i-1".into()].into()).is_empty());
        }
    }

    #[test]
    fn drain_with_a_period_waits_for_reasons_that_pass() {
        for (by, period_began, waits) in [
            (BlockReason::Budget, true, true),
            (BlockReason::NotReady, true, true),
            (BlockReason::NotTargeted, true, true),
            (BlockReason::Unknown { what: "a size".to_owned() }, true, true),
            (BlockReason::Budget, false, false),
            (BlockReason::DoNotDisrupt, true, false),
        ] {
            let plan = plan_with_reason(Some(KeepReason::Blocked { by: by.clone() }));
            let mut world = world(false, "drain", true);
            let node = world.nodes.values_mut().next().expect("a node");
            let began = period_began.then(|| "2026-11-01T00:00:00Z".to_owned());
            let began = began.map(|at| (GRACE_PERIOD_ANNOTATION.to_owned(), at));
            node.annotations.extend(began);
            let found = stale_cordons(&plan, &world, &BTreeSet::new());
            let found: Vec<_> =
                found.iter().map(|one| (one.may_continue, one.can_uncordon_in_apply())).collect();
            assert_eq!(found, [(waits, !waits)], "{by:?}");
        }
    }
}
