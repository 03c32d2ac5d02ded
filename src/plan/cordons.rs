//! Cordons of ours for which nothing stands any more.
//!
//! Whoever dies between a cordon and the end of its drain leaves a node that takes no pods. Where the next plan has it
//! go, its drain is taken up; where the plan keeps it, this is the one place that says so.

use std::collections::{BTreeMap, BTreeSet};

use super::wire::{BlockReason, ExplainRow, KeepReason, Plan, Reason};
use crate::fleet::{CordonedFor, Instance, Node, Observed};
use crate::ids::{Address, InstanceId};

/// A node with our mark on it that does not go.
#[derive(Debug, Clone, Copy)]
pub struct StaleCordon<'o> {
    /// Its machine, which runs.
    pub instance: &'o InstanceId,
    /// The node; one that takes pods was uncordoned by somebody else, and has only our mark left on it. With that a
    /// later cordon of theirs would look like one of ours.
    pub node: &'o Node,
    /// What it was cordoned for.
    pub mark: CordonedFor,
    /// Whether it is ours to uncordon: its machine carries our tags, or is of a group that we manage.
    pub ours: bool,
}

impl StaleCordon<'_> {
    /// Returns whether an apply beside which nothing goes on may take it back: of a machine that goes by itself the
    /// loop knows how that stands, but a node that takes pods does not go.
    #[must_use]
    pub fn is_of_apply(&self) -> bool {
        self.ours && (self.mark == CordonedFor::Drain || !self.node.unschedulable)
    }
}

/// Returns the nodes with our mark whose machines run and are not among those that go, by the name of the node.
/// What is carried out beside the plan is not known here: its cordons are among them.
#[must_use]
pub fn stale_cordons<'o>(
    plan: &Plan,
    observed: &'o Observed,
    goes: &BTreeSet<InstanceId>,
) -> Vec<StaleCordon<'o>> {
    let managed = managed(plan);
    let found = observed.nodes.values().filter_map(|node| {
        let mark = node.cordoned_for()?;
        let instance = observed.instances.get(node.instance.as_ref()?)?;
        let is_member = |instance: &Instance| instance.group.is_some();
        let ours = instance.is_ours(&observed.cluster.name)
            || is_member(instance) && managed.contains(&instance.id);
        let stays = instance.is_active() && !goes.contains(&instance.id);
        stays.then_some(StaleCordon { instance: &instance.id, node, mark, ours })
    });
    found.collect()
}

/// Returns whether `instance` is a member of a group that the plan manages.
#[must_use]
pub fn is_managed_member(plan: &Plan, instance: &Instance) -> bool {
    instance.group.is_some() && managed(plan).contains(&instance.id)
}

/// Returns the machines that the plan leaves alone because of whose they are. Of one that it has no row of it tells
/// nothing.
#[must_use]
pub fn left_to_others(plan: &Plan) -> BTreeSet<&InstanceId> {
    machines(plan, is_of_others)
}

/// Returns the machines that the plan has rows of, and does not leave alone because whose they are.
fn managed(plan: &Plan) -> BTreeSet<&InstanceId> {
    machines(plan, |row| !is_of_others(row))
}

fn machines(plan: &Plan, which: impl Fn(&ExplainRow) -> bool) -> BTreeSet<&InstanceId> {
    let explain: BTreeMap<&Address, &ExplainRow> =
        plan.capacity.explain.iter().map(|row| (&row.address, row)).collect();
    let rows = plan.resource_changes.iter();
    let found = rows.filter(|row| explain.get(&row.address).is_some_and(|row| which(row)));
    found.filter_map(|row| row.change.before.as_ref()?.instance_id.as_ref()).collect()
}

fn is_of_others(row: &ExplainRow) -> bool {
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
    use crate::fleet::{CORDONED_ANNOTATION, ClusterIdentity, Membership, fixture};
    use crate::plan::wire::{Action, RetireReason};

    /// Returns a plan whose first row is of the machine `i-1`, which is kept for a reason.
    fn keeps(because: Option<KeepReason>) -> Plan {
        let mut plan = crate::render::fixture::plan();
        let deletes = |row: &&mut crate::plan::wire::ResourceChange| {
            row.change.actions.contains(&Action::Delete)
        };
        let row = plan.resource_changes.iter_mut().find(deletes).expect("one goes");
        row.change.before.as_mut().expect("it is there").instance_id = Some("i-1".into());
        let address = row.address.clone();
        let explain = plan.capacity.explain.iter_mut().find(|row| row.address == address);
        explain.expect("explained").reason = match because {
            Some(because) => Reason::Keep { because },
            None => Reason::Retire { because: RetireReason::Requested },
        };
        plan
    }

    /// Returns a world in which the node of `i-1`, of a group or ours, carries a mark.
    fn world(of_group: bool, mark: &str, unschedulable: bool) -> Observed {
        let cluster = ClusterIdentity { name: "c".into(), ..ClusterIdentity::default() };
        let mut world = Observed::empty(cluster, Timestamp::UNIX_EPOCH);
        let lifecycle = "InService".to_owned();
        let group = Membership { name: "g".into(), lifecycle, protected: false };
        let instance = if of_group {
            Instance { group: Some(group), ..fixture::instance("i-1") }
        } else {
            fixture::ours("i-1", "c")
        };
        let mark = (CORDONED_ANNOTATION.to_owned(), mark.to_owned());
        let node = Node {
            instance: Some(instance.id.clone()),
            unschedulable,
            annotations: [mark].into(),
            ..fixture::node("n")
        };
        world.instances.insert(instance.id.clone(), instance);
        world.nodes.insert(node.name.clone(), node);
        world
    }

    #[test]
    fn ours_is_what_carries_our_tags_and_what_is_of_a_group_that_the_plan_manages() {
        let observed = || BlockReason::GroupObserved { why: "manage is not set".to_owned() };
        for (what, of_group, because, ours) in [
            ("tags", false, Some(KeepReason::NotOurs), true),
            ("a group that we manage", true, Some(KeepReason::Needed { pods: 1 }), true),
            ("and its members that are held back", true, None, true),
            ("a group of nobody here", true, Some(KeepReason::NotOurs), false),
            ("one only looked at", true, Some(KeepReason::Blocked { by: observed() }), false),
        ] {
            let (plan, world) = (keeps(because), world(of_group, "drain", true));
            let found = stale_cordons(&plan, &world, &BTreeSet::new());
            let found: Vec<_> = found.iter().map(|one| (one.ours, one.is_of_apply())).collect();
            assert_eq!(found, [(ours, ours)], "{what}");
        }
        let unknown = world(true, "drain", true);
        let mut plan = keeps(None);
        plan.resource_changes.clear();
        assert!(stale_cordons(&plan, &unknown, &BTreeSet::new()).iter().all(|one| !one.ours));
    }

    #[test]
    fn what_goes_is_taken_up_and_what_goes_by_itself_is_for_the_loop_unless_it_takes_pods() {
        let plan = keeps(None);
        for (mark, unschedulable, of_apply) in [
            ("drain", true, true),
            ("drain", false, true),
            ("leaving", true, false),
            ("leaving", false, true),
            // Of an earlier version.
            ("true", true, false),
        ] {
            let world = world(false, mark, unschedulable);
            let found = stale_cordons(&plan, &world, &BTreeSet::new());
            let found: Vec<_> = found.iter().map(StaleCordon::is_of_apply).collect();
            assert_eq!(found, [of_apply], "{mark} {unschedulable}");
            assert!(stale_cordons(&plan, &world, &["i-1".into()].into()).is_empty());
        }
    }
}
