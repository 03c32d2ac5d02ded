//! A plan that resizes a group, and the defects that verification finds in it.

use super::*;
use crate::model::desired::{GroupKind, NodeGroup};
use crate::model::observed::{Group, Membership};
use crate::plan::wire::{GroupSize, PodCounts, Reason};

const NAME: &str = "asg-web";

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
        max_spot_price: None,
        manage: true,
    }
}

fn size(desired: u32) -> GroupSize {
    GroupSize { name: Some(NAME.into()), min: 1, max: 9, desired }
}

fn resize(from: u32, to: u32, reason: Reason) -> (ResourceChange, ExplainRow) {
    let state = |desired| Some(NodeState { group: Some(size(desired)), ..NodeState::empty() });
    let address: crate::model::ids::Address = "autoscaling_group.web".into();
    let row = ResourceChange {
        address: address.clone(),
        kind: ResourceKind::AutoscalingGroup,
        name: "web".to_owned(),
        index: None,
        change: crate::plan::wire::Change {
            actions: vec![Action::Update],
            before: state(from),
            after: state(to),
            after_unknown: [].into(),
        },
        action_reason: None,
    };
    let explain = ExplainRow {
        address,
        group: None,
        reason,
        retire_reason: None,
        drift: None,
        estimated: false,
        hourly_before: None,
        hourly_after: None,
        pods: PodCounts::default(),
        pods_before: PodCounts::default(),
        daemons: Amount::default(),
        rejected: Vec::new(),
        overlays: Vec::new(),
        relaxed: Vec::new(),
    };
    (row, explain)
}

/// Returns the plan of the fixture with pool `web` as a group: `1` is removed, `2` is replaced, `3`
/// is launched.
fn with_group() -> (Plan, Inputs) {
    let (mut plan, mut inputs) = (plan(), inputs());
    let mut types = BTreeSet::new();
    let mut gone = Vec::new();
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
            gone.push(id);
        }
    }
    let mut declared = group();
    declared.cluster = inputs.observed.cluster.name.clone();
    declared.types = types.into_iter().collect();
    let own = declared.identity_tags().into_iter();
    let tags = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let live = Group {
        name: NAME.into(),
        min: 1,
        max: 9,
        desired: members,
        types: Vec::new(),
        zones: Vec::new(),
        tags: tags.collect(),
        suspended: Vec::new(),
        schedules: Vec::new(),
        schedules_unread: None,
    };
    inputs.observed.groups.insert(live.name.clone(), live);
    inputs.desired.node_groups.insert("web".into(), declared);
    let comes = plan.resource_changes.iter().filter(|r| r.change.actions.contains(&Action::Create));
    let comes = u32::try_from(comes.count()).unwrap();
    let removed = u32::try_from(gone.len()).unwrap();
    let reason = Reason::Resize { launch: comes, terminate: gone };
    let (row, explain) = resize(members, members + comes - removed, reason);
    plan.resource_changes.insert(0, row);
    plan.capacity.explain.insert(0, explain);
    let condition = Condition::GroupIs { group: NAME.into(), desired: members };
    let address = "autoscaling_group.web".into();
    plan.capacity.base.preconditions.push(Precondition { address, condition });
    plan.capacity.base.preconditions.sort();
    plan.summary.change += 1;
    (sealed(plan), inputs)
}

fn of_group(plan: &mut Plan) -> &mut GroupSize {
    plan.resource_changes[0].change.after.as_mut().unwrap().group.as_mut().unwrap()
}

const DEFECTS: &[Defect] = &[
    ("group/rows", "a group without a row", |p, _| {
        p.resource_changes.remove(0);
        p.capacity.explain.remove(0);
    }),
    ("group/same", "two groups that are one of the world", |_, i| {
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
    ("group/after", "one more than comes", |p, _| of_group(p).desired += 1),
    ("group/bounds", "above its most", |_, i| {
        i.desired.node_groups.values_mut().for_each(|group| group.max = 2);
    }),
    ("group/bounds", "below its least", |_, i| {
        i.desired.node_groups.values_mut().for_each(|group| group.min = 8);
    }),
    ("group/actions", "a size that changes unsaid", |p, _| {
        p.resource_changes[0].change.actions = vec![Action::NoOp];
    }),
    ("group/named", "no terminated member named", |p, _| {
        p.capacity.explain[0].reason = Reason::Resize { launch: 2, terminate: Vec::new() };
    }),
    ("group/condition", "no word of the size it had", |p, _| {
        let conditions = &mut p.capacity.base.preconditions;
        conditions.retain(|p| !matches!(p.condition, Condition::GroupIs { .. }));
    }),
    ("conditions/possible", "a size it never had", |_, i| {
        i.observed.groups.values_mut().for_each(|group| group.desired += 1);
    }),
    ("group/claimed", "a group that is not handed over", |_, i| {
        i.desired.node_groups.values_mut().for_each(|group| group.manage = false);
    }),
    ("group/claimed", "a group that Cluster Autoscaler finds", |_, i| {
        let tag = ("k8s.io/cluster-autoscaler/enabled".to_owned(), "true".to_owned());
        i.observed.groups.values_mut().for_each(|group| group.tags.extend([tag.clone()]));
    }),
    ("group/claimed", "a group on its way", |_, i| {
        let instance = i.observed.instances.values_mut().find(|i| i.group.is_some()).unwrap();
        instance.group = None;
    }),
    ("group/member", "a type that its group has not", |_, i| {
        let types = vec!["m5.metal".into()];
        i.desired.node_groups.values_mut().for_each(|group| group.types = types.clone());
    }),
    ("group/member", "a zone promised of several", |_, i| {
        let zones = vec!["us-east-1a".into(), "us-east-1b".into()];
        i.desired.node_groups.values_mut().for_each(|group| group.zones = zones.clone());
    }),
    ("totals/summary", "a resize not counted", |p, _| p.summary.change = 0),
];

#[test]
fn every_group_defect_is_found() {
    for (rule, defect, plant) in DEFECTS {
        let (mut plan, mut inputs) = with_group();
        plant(&mut plan, &mut inputs);
        let found = check(&sealed(plan), &inputs.facts());
        assert!(found.iter().any(|v| v.rule == *rule), "{rule}: {defect}: {found:?}");
    }
}

#[test]
fn complete_group_resize_breaks_no_group_rule() {
    let (plan, inputs) = with_group();
    // Members do not have Karpenter's labels, but those of the fixture do.
    let found = check(&plan, &inputs.facts());
    let of_groups = found.iter().filter(|v| v.rule.starts_with("group/"));
    let others: Vec<_> = of_groups.filter(|v| v.rule != "group/member").collect();
    assert!(others.is_empty(), "{others:?}");
}
