//! Groups: whoever else claims one, nobody here touches it; sizes follow from named members; and of
//! a member to come no more is promised than is certain.

use std::collections::BTreeMap;

use super::case::{Case, Row, number, resources};
use super::{Verdict, words};
use crate::catalog::{CapacityType, NodeSettings};
use crate::fleet::Group;
use crate::ids::{GroupName, InstanceId, Labels, PoolName, WorkloadId, WorkloadKind};
use crate::manifest::{NodeGroup, Scale};
use crate::plan::wire::{
    Action, Condition, GroupSize, NodeState, Precondition, Reason, ResourceChange,
};
use crate::requirement::key;

/// What the tags begin with by which Cluster Autoscaler finds its groups, and those that only describe.
const CLAIM: &str = "k8s.io/cluster-autoscaler/";
const DESCRIPTION: &str = "k8s.io/cluster-autoscaler/node-template/";
/// What the name of its Deployment holds, or a label of its pods.
const AUTOSCALER: &str = "cluster-autoscaler";
const NAMES: [&str; 3] = ["app.kubernetes.io/name", "app", "k8s-app"];

pub(super) fn check(case: &Case<'_>, verdict: &mut Verdict) {
    for row in &case.group_rows {
        let declared = case.facts.desired.node_groups.contains_key(row.name.as_str());
        let live = case.facts.observed.groups.get(row.name.as_str());
        match (declared, live) {
            (true, _) => {}
            (false, Some(live)) => stranger(row, live, verdict),
            (false, None) => {
                verdict.row("row/kind", &row.address, "there is no such group, declared or live");
            }
        }
    }
    one_each(case, verdict);
    for group in case.facts.desired.node_groups.values() {
        let rows: Vec<&ResourceChange> =
            case.group_rows.iter().copied().filter(|row| row.name == group.name.as_str()).collect();
        match rows.as_slice() {
            [row] => declared(case, group, row, verdict),
            rows => {
                let fault = format!("group {} has {} rows", group.name, rows.len());
                verdict.plan("group/rows", fault);
            }
        }
        untouched(case, group, verdict);
        for row in case.rows.iter().filter(|row| row.deed.creates() && is_of(row, &group.name)) {
            member(case, group, row, verdict);
        }
    }
}

/// Holds no two groups to be the same one of the world: each would count on its members.
fn one_each(case: &Case<'_>, verdict: &mut Verdict) {
    let mut known: BTreeMap<&GroupName, &PoolName> = BTreeMap::new();
    for group in case.facts.desired.node_groups.values() {
        let Some(there) = live(case, group) else { continue };
        if let Some(other) = known.insert(&there.name, &group.name) {
            let fault = format!("groups {other} and {} are both {}", group.name, there.name);
            verdict.plan("group/same", fault);
        }
    }
}

/// Holds the row of a group that the repository does not declare to leave it as it is.
fn stranger(row: &ResourceChange, live: &Group, verdict: &mut Verdict) {
    let holds = Some(size_of(live));
    verdict.row_equal(
        "group/before",
        &row.address,
        ("before", &size(row.change.before.as_ref()), &holds),
    );
    verdict.row_equal(
        "group/after",
        &row.address,
        ("after", &size(row.change.after.as_ref()), &holds),
    );
    if row.change.actions.as_slice() != [Action::NoOp] {
        verdict.row("group/claimed", &row.address, "the repository does not declare it");
    }
}

fn size_of(live: &Group) -> GroupSize {
    let Group { name, min, max, desired, .. } = live;
    GroupSize { name: Some(name.clone()), min: *min, max: *max, desired: *desired }
}

fn size(state: Option<&NodeState>) -> Option<GroupSize> {
    state?.group.clone()
}

fn is_of(row: &Row<'_>, pool: &PoolName) -> bool {
    row.after.or(row.before).and_then(|state| state.pool.as_ref()) == Some(pool)
}

fn live<'a>(case: &Case<'a>, group: &NodeGroup) -> Option<&'a Group> {
    case.facts.observed.groups.values().find(|live| group.is_live(&live.name, &live.tags))
}

/// Holds the row of a group to what is there, and its size to the members that come and go.
fn declared(case: &Case<'_>, group: &NodeGroup, row: &ResourceChange, verdict: &mut Verdict) {
    let there = live(case, group);
    let holds =
        there.map_or(GroupSize { name: None, min: group.min, max: group.max, desired: 0 }, size_of);
    let (before, after) = (size(row.change.before.as_ref()), size(row.change.after.as_ref()));
    verdict.row_equal("group/before", &row.address, ("before", &before, &Some(holds.clone())));
    let of = |holds: fn(&Row<'_>) -> bool| {
        number(case.rows.iter().filter(|row| holds(row) && is_of(row, &group.name)))
    };
    let (comes, goes) = (of(|row| row.deed.creates()), of(|row| row.deed.deletes()));
    let desired = holds.desired.saturating_add(comes).saturating_sub(goes);
    let expected = GroupSize { desired, ..holds.clone() };
    verdict.row_equal("group/after", &row.address, ("after", &after, &Some(expected)));
    let changes = row.change.actions.as_slice() != [Action::NoOp];
    if changes != (comes > 0 || goes > 0) {
        verdict.row("group/actions", &row.address, "its actions are not what its members do");
    }
    // Auto Scaling holds to the bounds of the live group, the repository to its own.
    let (least, most) = (group.min.max(holds.min), group.max.min(holds.max));
    if comes > 0 && desired > most {
        let fault = format!("it grows to {desired} nodes, above its most, {most}");
        verdict.row("group/bounds", &row.address, fault);
    }
    if goes > 0 && desired < least {
        let fault = format!("it shrinks to {desired} nodes, below its least, {least}");
        verdict.row("group/bounds", &row.address, fault);
    }
    resize(case, (group, row), (comes, &holds), verdict);
}

/// Holds a group that changes to name who goes, and to a size that is still what it was.
fn resize(
    case: &Case<'_>,
    (group, row): (&NodeGroup, &ResourceChange),
    (comes, holds): (u32, &GroupSize),
    verdict: &mut Verdict,
) {
    if row.change.actions.as_slice() == [Action::NoOp] {
        return;
    }
    let explain = case.plan.capacity.explain.iter().find(|explain| explain.address == row.address);
    let gone = case.rows.iter().filter(|row| row.deed.deletes() && is_of(row, &group.name));
    let mut gone: Vec<&InstanceId> =
        gone.filter_map(|row| row.before?.instance_id.as_ref()).collect();
    gone.sort();
    let named = match explain.map(|explain| &explain.reason) {
        Some(Reason::Resize { launch, terminate }) => {
            let mut terminate: Vec<&InstanceId> = terminate.iter().collect();
            terminate.sort();
            *launch == comes && terminate == gone
        }
        Some(Reason::Launch { .. } | Reason::Retire { .. } | Reason::Keep { .. }) | None => false,
    };
    if !named {
        verdict.row("group/named", &row.address, "its reason does not name who comes and goes");
    }
    let Some(name) = holds.name.clone() else { return };
    let condition = Condition::GroupIs { group: name, desired: holds.desired };
    let wanted = Precondition { address: row.address.clone(), condition };
    if !case.plan.capacity.base.preconditions.contains(&wanted) {
        let fault = format!("lacks the precondition {}", words(&wanted.condition));
        verdict.row("group/condition", &row.address, fault);
    }
}

/// Holds members to stay as they are where anything else may resize their group.
fn untouched(case: &Case<'_>, group: &NodeGroup, verdict: &mut Verdict) {
    let Some(why) = claimed(case, group) else { return };
    for row in case.rows.iter().filter(|row| is_of(row, &group.name)) {
        if row.deed.creates() || row.deed.deletes() {
            let fault = format!("group {} is only observed: {why}", group.name);
            verdict.row("group/claimed", row.address, fault);
        }
    }
}

fn claimed(case: &Case<'_>, group: &NodeGroup) -> Option<&'static str> {
    let observed = case.facts.observed;
    let there = live(case, group);
    let claims = |tag: &String| tag.starts_with(CLAIM) && !tag.starts_with(DESCRIPTION);
    if !group.manage {
        Some("the settings do not hand it over")
    } else if group.tags.keys().chain(there.iter().flat_map(|g| g.tags.keys())).any(claims) {
        Some("a tag hands it to Cluster Autoscaler")
    } else if is_resized_by_another(case) {
        Some("Cluster Autoscaler runs")
    } else if there.is_none()
        && !(observed.groups.is_empty()
            && observed.nodes.is_empty()
            && observed.instances.is_empty())
    {
        Some("it is not there")
    } else {
        let members = |live: &Group| {
            number(observed.instances.values().filter(|instance| {
                instance.is_active()
                    && instance.group.as_ref().is_some_and(|of| of.name == live.name)
            }))
        };
        there.is_some_and(|live| members(live) != live.desired).then_some("it is on its way")
    }
}

/// Returns whether Cluster Autoscaler runs or is declared to, where it counts.
fn is_resized_by_another(case: &Case<'_>) -> bool {
    let (desired, observed) = (case.facts.desired, case.facts.observed);
    let counts = |id: &WorkloadId, labels: Option<&Labels>| {
        let homes = desired.autoscaler_namespaces.as_ref();
        let mut labels = NAMES.iter().filter_map(|key| labels?.get(*key));
        id.kind == WorkloadKind::Deployment
            && (id.name.contains(AUTOSCALER) || labels.any(|it| it.as_str().contains(AUTOSCALER)))
            && homes.is_none_or(|homes| homes.contains(&id.namespace))
    };
    let labels = |template: &String| observed.templates.get(template).map(|pod| &pod.labels);
    let declared = desired.workloads.values().filter(|one| one.scale != Scale::Replicas(0));
    let live = observed.workloads.iter().filter(|live| live.replicas > 0);
    let pods = observed.pods.iter().filter(|pod| pod.is_active());
    declared.into_iter().any(|one| counts(&one.id, Some(&one.template.labels)))
        || live.into_iter().any(|one| counts(&one.id, one.template.as_ref().and_then(labels)))
        || pods
            .into_iter()
            .any(|pod| pod.owner.as_ref().is_some_and(|owner| counts(owner, labels(&pod.template))))
}

/// Returns whether the next member of a group has a zone that is certain.
pub(super) fn has_certain_zone(case: &Case<'_>, group: &NodeGroup) -> bool {
    let zones =
        if group.zones.is_empty() { case.facts.catalog.zones.len() } else { group.zones.len() };
    zones == 1
}

/// Holds what is planned of a member to come to what every type and zone of its group gives.
fn member(case: &Case<'_>, group: &NodeGroup, row: &Row<'_>, verdict: &mut Verdict) {
    let Some(after) = row.after else { return };
    let mut fault = |text: String| verdict.row("group/member", row.address, text);
    let named = after.instance_type.as_ref();
    if !named.is_some_and(|kind| group.types.contains(kind)) {
        fault("its type is none of its group's".to_owned());
    }
    if !has_certain_zone(case, group)
        && (after.zone.is_some()
            || after.labels.contains_key(key::ZONE)
            || after.labels.contains_key(key::ZONE_ID))
    {
        fault("its zone is promised, and its group has several".to_owned());
    }
    let spot = case.offering(after).filter(|way| way.capacity_type == CapacityType::Spot);
    let price = spot.filter(|way| !way.estimated).and_then(|way| way.price);
    if price.zip(group.max_spot_price).is_some_and(|(price, most)| price > most) {
        fault("spot costs more than its group pays".to_owned());
    }
    let others = group.types.iter().any(|kind| Some(kind) != named);
    if others && after.labels.contains_key(key::INSTANCE_TYPE) {
        fault("its type is promised, and its group has several".to_owned());
    }
    let foreign = |key: &str| key.starts_with("karpenter.sh/") || key.starts_with("karpenter.k8s");
    if let Some(label) = after.labels.keys().find(|label| foreign(label.as_str())) {
        fault(format!("label {label} is promised, which members of groups do not get"));
    }
    let pool = case.pool(&group.name);
    for (key, value) in pool.iter().flat_map(|pool| &pool.labels) {
        if after.labels.get(key) != Some(value) {
            fault(format!("label {key} is not {value}"));
        }
    }
    let class = pool.and_then(|pool| Some((pool, case.class(pool)?)));
    let Some((pool, class)) = class else { return };
    let settings = NodeSettings::of(pool, class);
    let stated = resources(&after.allocatable);
    let mut offers = BTreeMap::new();
    for kind in group.types.iter().filter_map(|name| case.facts.catalog.types.get(name)) {
        let model = (case.facts.allocation)(kind, &settings);
        let real = case.facts.catalog.measured.correct(model, &kind.name, &settings);
        offers.insert(&kind.name, real.allocatable);
    }
    if let Some((kind, _)) = offers.iter().find(|(_, real)| !stated.fits(real)) {
        fault(format!("a {kind}, which its group may make, offers less than is promised"));
    }
}
