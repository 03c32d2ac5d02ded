//! Tests of the group rules, with a plan that resizes a group and planted defects.

use super::*;
use crate::model::desired::{GroupKind, NodeGroup};
use crate::model::market::CapacityMix;
use crate::model::observed::{Group, Membership};
use crate::plan::wire::{GroupSize, LaunchReason, Reason};
use crate::testing::world::group as live_group;

pub(super) const NAME: &str = "asg-web";

fn group() -> NodeGroup {
    NodeGroup {
        name: "web".into(),
        origin: Origin::new("cluster.yaml", 3),
        kind: GroupKind::Unmanaged,
        cluster: "prod".to_owned(),
        min: 1,
        max: 9,
        desired: None,
        types: Vec::new(),
        zones: Vec::new(),
        tags: [].into(),
        mix: None,
        max_spot_price: None,
        manage: true,
    }
}

/// A mixed policy demands one member on demand.
#[test]
fn spot_member_in_place_of_an_on_demand_one_is_found() {
    let (mut plan, mut inputs) = with_group();
    let spot = |row: &mut ResourceChange| {
        if row.name == "web" && row.change.actions.contains(&Action::Create) {
            row.change.after.as_mut().unwrap().capacity_type = Some(CapacityType::Spot);
        }
    };
    plan.resource_changes.iter_mut().for_each(spot);
    let found = |plan: &Plan, inputs: &Inputs| {
        verify(plan, &inputs.facts()).iter().any(|found| found.rule == "group/mix")
    };
    assert!(!found(&plan, &inputs));
    let mix = |on_demand_base| CapacityMix { on_demand_base, on_demand_percent: 0 };
    let live = inputs.observed.groups.get_mut(NAME).unwrap();
    live.mix = Some(mix(9));
    assert!(found(&plan, &inputs));
    inputs.observed.groups.get_mut(NAME).unwrap().mix = Some(mix(0));
    inputs.desired.node_groups.get_mut("web").unwrap().mix = Some(mix(9));
    assert!(!found(&plan, &inputs), "the observed policy counts");
}

fn size(desired: u32) -> GroupSize {
    GroupSize { name: Some(NAME.into()), min: 1, max: 9, desired }
}

fn resize(from: u32, to: u32, reason: Reason) -> (ResourceChange, ExplainRow) {
    let state = |desired| NodeState { group: Some(size(desired)), ..NodeState::empty() };
    let row = ResourceChange::resize("web", state(from), state(to));
    let explain = ExplainRow::new(row.address.clone(), reason);
    (row, explain)
}

/// Returns the valid plan with pool `web` as a group: `1` is removed, `2` is replaced, `3`
/// is launched.
pub(super) fn with_group() -> (Plan, Inputs) {
    let (mut plan, mut inputs) = (plan(), inputs());
    let mut types = BTreeSet::new();
    let mut terminated = Vec::new();
    let mut members = 0;
    for row in &plan.resource_changes {
        let states = [&row.change.before, &row.change.after].into_iter().flatten();
        let of_web =
            states.filter(|state| state.pool.as_ref().is_some_and(|p| p.as_str() == "web"));
        types.extend(of_web.filter_map(|state| state.instance_type.clone()));
        if row.name != "web" {
            continue;
        }
        let Some(id) = row.change.before.as_ref().and_then(|b| b.instance_id.clone()) else {
            continue;
        };
        members += 1;
        let name = NAME.into();
        let membership = Membership { name, lifecycle: "InService".into(), protected: false };
        inputs.observed.instances.get_mut(&id).unwrap().group = Some(membership);
        if row.change.actions.contains(&Action::Delete) {
            terminated.push(id);
        }
    }
    let mut declared = group();
    declared.cluster = inputs.observed.cluster.name.clone();
    declared.types = types.into_iter().collect();
    let own = declared.identity_tags().into_iter();
    let tags = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let live = Group { tags: tags.collect(), ..live_group(NAME, members) };
    inputs.observed.groups.insert(live.name.clone(), live);
    inputs.desired.node_groups.insert("web".into(), declared);
    let launched =
        plan.resource_changes.iter().filter(|r| r.change.actions.contains(&Action::Create));
    let launched = u32::try_from(launched.count()).unwrap();
    let removed = u32::try_from(terminated.len()).unwrap();
    let reason = Reason::Resize { launch: launched, terminate: terminated };
    let (row, explain) = resize(members, members + launched - removed, reason);
    plan.resource_changes.insert(0, row);
    plan.capacity.explain.insert(0, explain);
    let condition = Condition::GroupIs { group: NAME.into(), desired: members };
    plan = plan.with_precondition("autoscaling_group.web".into(), condition);
    plan.capacity.base.preconditions.sort();
    plan.summary.change += 1;
    (plan.with_identity(), inputs)
}

fn of_group(plan: &mut Plan) -> &mut GroupSize {
    plan.resource_changes[0].change.after.as_mut().unwrap().group.as_mut().unwrap()
}

const DEFECTS: &[Defect] = &[
    ("group/rows", "a group without a row", |p, _| {
        p.resource_changes.remove(0);
        p.capacity.explain.remove(0);
    }),
    ("group/same", "two declared groups for one live group", |_, i| {
        let mut other = i.desired.node_groups.values().next().unwrap().clone();
        let live = i.observed.groups.keys().next().unwrap().clone();
        (other.name, other.kind) = ("other".into(), GroupKind::External(live));
        i.desired.node_groups.insert("other".into(), other);
    }),
    ("group/member", "a spot price above what the group pays", |p, i| {
        let groups = i.desired.node_groups.values_mut();
        groups.for_each(|group| group.max_spot_price = Some(MicroUsd(1)));
        let offerings = i.catalog.types.values_mut().flat_map(|kind| &mut kind.offerings);
        offerings.for_each(|offering| offering.estimated = false);
        let mut rows = p.resource_changes.iter_mut();
        let new = rows.find(|row| row.change.actions.contains(&Action::Create)).unwrap();
        new.change.after.as_mut().unwrap().capacity_type = Some(CapacityType::Spot);
    }),
    ("group/before", "a size that was not observed", |_, i| {
        i.observed.groups.values_mut().for_each(|group| group.max = 8);
    }),
    ("group/after", "a desired size that is one too large", |p, _| of_group(p).desired += 1),
    ("group/bounds", "a size above the maximum", |_, i| {
        i.desired.node_groups.values_mut().for_each(|group| group.max = 2);
    }),
    ("group/bounds", "a size below the minimum", |_, i| {
        i.desired.node_groups.values_mut().for_each(|group| group.min = 8);
    }),
    ("group/minimum", "a launch for the minimum of a group that has it", |p, _| {
        let because = LaunchReason::Static { declared: 1, there: 0 };
        explain(p, "3").reason = Reason::Launch { because };
    }),
    ("group/actions", "a changed size with action no-op", |p, _| {
        p.resource_changes[0].change.actions = vec![Action::NoOp];
    }),
    ("group/named", "no terminated member named", |p, _| {
        p.capacity.explain[0].reason = Reason::Resize { launch: 2, terminate: Vec::new() };
    }),
    ("group/condition", "no precondition on the size", |p, _| {
        let conditions = &mut p.capacity.base.preconditions;
        conditions.retain(|p| !matches!(p.condition, Condition::GroupIs { .. }));
    }),
    ("conditions/possible", "a precondition on another size", |_, i| {
        i.observed.groups.values_mut().for_each(|group| group.desired += 1);
    }),
    ("group/claimed", "a group without `manage`", |_, i| {
        i.desired.node_groups.values_mut().for_each(|group| group.manage = false);
    }),
    ("group/claimed", "a group with a tag of Cluster Autoscaler", |_, i| {
        let tag = ("k8s.io/cluster-autoscaler/enabled".to_owned(), "true".to_owned());
        i.observed.groups.values_mut().for_each(|group| group.tags.extend([tag.clone()]));
    }),
    ("group/claimed", "a group that is resizing", |_, i| {
        let instance = i.observed.instances.values_mut().find(|i| i.group.is_some()).unwrap();
        instance.group = None;
    }),
    ("group/member", "a type outside of its group", |_, i| {
        let types = vec!["m5.metal".into()];
        i.desired.node_groups.values_mut().for_each(|group| group.types = types.clone());
    }),
    ("group/member", "a stated zone in a group with several zones", |_, i| {
        let zones = vec!["us-east-1a".into(), "us-east-1b".into()];
        i.desired.node_groups.values_mut().for_each(|group| group.zones = zones.clone());
    }),
    ("totals/summary", "a resize missing from the totals", |p, _| p.summary.change = 0),
];

#[test]
fn every_group_defect_is_found() {
    for (rule, defect, plant) in DEFECTS {
        let (mut plan, mut inputs) = with_group();
        plant(&mut plan, &mut inputs);
        let found = verify(&plan.with_identity(), &inputs.facts());
        assert!(found.iter().any(|v| v.rule == *rule), "{rule}: {defect}: {found:?}");
    }
}

#[test]
fn tags_that_eks_sets_by_itself_do_not_claim_a_group() {
    let (plan, mut inputs) = with_group();
    let tags = ["eks:nodegroup-name", "k8s.io/cluster-autoscaler/enabled"];
    let live = inputs.observed.groups.get_mut(NAME).unwrap();
    live.tags.extend(tags.map(|tag| (tag.to_owned(), "web".to_owned())));
    let found = verify(&plan, &inputs.facts());
    assert!(found.iter().all(|found| found.rule != "group/claimed"), "{found:?}");
}

#[test]
fn complete_group_resize_breaks_no_group_rule() {
    let (plan, inputs) = with_group();
    // Members do not have Karpenter's labels, but those of the valid plan do.
    let found = verify(&plan, &inputs.facts());
    let of_groups = found.iter().filter(|v| v.rule.starts_with("group/"));
    let others: Vec<_> = of_groups.filter(|v| v.rule != "group/member").collect();
    assert!(others.is_empty(), "{others:?}");
}
