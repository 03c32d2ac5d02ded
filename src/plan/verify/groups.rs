//! Auto Scaling groups: undeclared groups stay unchanged, sizes match the named members, and a new
//! member states only certain properties.

use std::collections::BTreeMap;

use super::autoscaler_growth::SYSTEM_NAMESPACES;
use super::context::{CheckContext, CheckedRow, count, resources};
use super::{Violations, words};
use crate::catalog::NodeSettings;
use crate::model::desired::{EKS_GROUP_TAG, GroupKind, NodeGroup, Scale};
use crate::model::ids::{GroupName, InstanceId, Labels, PoolName, WorkloadId, WorkloadKind};
use crate::model::market::CapacityType;
use crate::model::observed::{Group, Membership, Pod};
use crate::model::requirement::key;
use crate::plan::wire::{
    Action, Condition, GroupSize, LaunchReason, NodeState, Precondition, Reason, ResourceChange,
};

/// Prefix of tags by which Cluster Autoscaler discovers groups.
const DISCOVERY_TAG_PREFIX: &str = "k8s.io/cluster-autoscaler/";
/// Prefix of tags that only describe nodes to Cluster Autoscaler.
const TEMPLATE_TAG_PREFIX: &str = "k8s.io/cluster-autoscaler/node-template/";
/// Part of the name of the Deployment of Cluster Autoscaler, or of a label of its pods.
const AUTOSCALER_NAME: &str = "cluster-autoscaler";
const AUTOSCALER_LABEL_KEYS: [&str; 3] = ["app.kubernetes.io/name", "app", "k8s-app"];

pub(super) fn check(context: &CheckContext<'_>, violations: &mut Violations) {
    for row in &context.group_rows {
        let declared = context.facts.desired.node_groups.contains_key(row.name.as_str());
        let live = context.facts.observed.groups.get(row.name.as_str());
        match (declared, live) {
            (true, _) => {}
            (false, Some(live)) => check_undeclared(row, live, violations),
            (false, None) => {
                violations.report_row(
                    "row/kind",
                    &row.address,
                    "there is no such group, declared or live",
                );
            }
        }
    }
    check_unique_matches(context, violations);
    for group in context.facts.desired.node_groups.values() {
        let rows: Vec<&ResourceChange> = context
            .group_rows
            .iter()
            .copied()
            .filter(|row| row.name == group.name.as_str())
            .collect();
        match rows.as_slice() {
            [row] => declared(context, group, row, violations),
            rows => {
                let fault = format!("group {} has {} rows", group.name, rows.len());
                violations.report_plan("group/rows", fault);
            }
        }
        check_unmanaged(context, group, violations);
        check_mix(context, group, violations);
        check_minimum(context, group, violations);
        for row in context.rows.iter().filter(|row| row.action.creates() && is_of(row, &group.name))
        {
            member(context, group, row, violations);
        }
    }
}

/// Checks that no two declared groups match the same observed group, since both would count its
/// members.
fn check_unique_matches(context: &CheckContext<'_>, violations: &mut Violations) {
    let mut known: BTreeMap<&GroupName, &PoolName> = BTreeMap::new();
    for group in context.facts.desired.node_groups.values() {
        let Some(live) = live_group(context, group) else { continue };
        if let Some(other) = known.insert(&live.name, &group.name) {
            let fault = format!("groups {other} and {} are both {}", group.name, live.name);
            violations.report_plan("group/same", fault);
        }
    }
}

/// Checks that the row of an undeclared group leaves it unchanged.
fn check_undeclared(row: &ResourceChange, live: &Group, violations: &mut Violations) {
    let observed = Some(size_of(live));
    violations.require_row_equal(
        "group/before",
        &row.address,
        "before",
        &size(row.change.before.as_ref()),
        &observed,
    );
    violations.require_row_equal(
        "group/after",
        &row.address,
        "after",
        &size(row.change.after.as_ref()),
        &observed,
    );
    if row.change.actions.as_slice() != [Action::NoOp] {
        violations.report_row("group/claimed", &row.address, "the repository does not declare it");
    }
}

fn size_of(live: &Group) -> GroupSize {
    let Group { name, min, max, desired, .. } = live;
    GroupSize { name: Some(name.clone()), min: *min, max: *max, desired: *desired }
}

fn size(state: Option<&NodeState>) -> Option<GroupSize> {
    state?.group.clone()
}

fn is_of(row: &CheckedRow<'_>, pool: &PoolName) -> bool {
    row.after.or(row.before).and_then(|state| state.pool.as_ref()) == Some(pool)
}

fn live_group<'a>(context: &CheckContext<'a>, group: &NodeGroup) -> Option<&'a Group> {
    context
        .facts
        .observed
        .groups
        .values()
        .find(|live| group.matches_live_group(&live.name, &live.tags))
}

/// Checks that a group with on-demand and spot members launches as many on demand as its policy
/// demands.
fn check_mix(context: &CheckContext<'_>, group: &NodeGroup, violations: &mut Violations) {
    let live = live_group(context, group);
    let Some(mix) = live.and_then(|live| live.mix).or(group.mix).filter(|mix| mix.is_mixed())
    else {
        return;
    };
    let members = context.rows.iter().filter(|row| is_of(row, &group.name));
    let members: Vec<_> = members.filter(|row| row.after.is_some()).collect();
    let is_spot = |row: &CheckedRow<'_>| {
        row.after.and_then(|state| state.capacity_type) == Some(CapacityType::Spot)
    };
    let launched = count(members.iter().filter(|row| row.action.creates()));
    let new_spot = count(members.iter().filter(|row| row.action.creates() && is_spot(row)));
    let spot = count(members.iter().filter(|row| is_spot(row)));
    let on_demand = count(&members).saturating_sub(spot);
    let wanted = mix.on_demand(count(&members));
    if new_spot > 0 && on_demand < wanted {
        let fault = format!(
            "group {} has {on_demand} members on demand, not {wanted}: {new_spot} of {launched} new \
             ones are spot",
            group.name
        );
        violations.report_plan("group/mix", fault);
    }
}

/// Checks that a group launches for its minimum size no more nodes than it lacks.
fn check_minimum(context: &CheckContext<'_>, group: &NodeGroup, violations: &mut Violations) {
    let live = live_group(context, group);
    let (least, most) = live.map_or((0, u32::MAX), |live| (live.min, live.max));
    let least = group.min.max(least).min(group.max.min(most));
    let there = live.map_or(0, |live| active_members(context, live));
    let is_fixed = |row: &&CheckedRow<'_>| {
        let reason = row.explain.map(|explain| &explain.reason);
        row.action.creates()
            && is_of(row, &group.name)
            && matches!(reason, Some(Reason::Launch { because: LaunchReason::Static { .. } }))
    };
    let fixed = count(context.rows.iter().filter(is_fixed));
    if fixed > least.saturating_sub(there) {
        let fault = format!(
            "group {} launches {fixed} nodes for its minimum of {least}, and has {there}",
            group.name
        );
        violations.report_plan("group/minimum", fault);
    }
}

/// Returns the number of members of a live group that run or are starting.
fn active_members(context: &CheckContext<'_>, live: &Group) -> u32 {
    let instances = context.facts.observed.instances.values();
    let is_member = |of: &Membership| of.name == live.name;
    count(instances.filter(|one| one.is_active() && one.group.as_ref().is_some_and(is_member)))
}

/// Checks the row of a group against the observation, and its size against its launched and
/// terminated members.
fn declared(
    context: &CheckContext<'_>,
    group: &NodeGroup,
    row: &ResourceChange,
    violations: &mut Violations,
) {
    let live = live_group(context, group);
    let expected_before =
        live.map_or(GroupSize { name: None, min: group.min, max: group.max, desired: 0 }, size_of);
    let (before, after) = (size(row.change.before.as_ref()), size(row.change.after.as_ref()));
    violations.require_row_equal(
        "group/before",
        &row.address,
        "before",
        &before,
        &Some(expected_before.clone()),
    );
    let members = |is_counted: fn(&CheckedRow<'_>) -> bool| {
        count(context.rows.iter().filter(|row| is_counted(row) && is_of(row, &group.name)))
    };
    let (launched, terminated) =
        (members(|row| row.action.creates()), members(|row| row.action.deletes()));
    let desired = expected_before.desired.saturating_add(launched).saturating_sub(terminated);
    let expected = GroupSize { desired, ..expected_before.clone() };
    violations.require_row_equal("group/after", &row.address, "after", &after, &Some(expected));
    let changes = row.change.actions.as_slice() != [Action::NoOp];
    if changes != (launched > 0 || terminated > 0) {
        violations.report_row(
            "group/actions",
            &row.address,
            "its actions do not match those of its members",
        );
    }
    // Auto Scaling enforces the bounds of the live group. The bounds of the repository apply too.
    let (least, most) = (group.min.max(expected_before.min), group.max.min(expected_before.max));
    if launched > 0 && desired > most {
        let fault = format!("it grows to {desired} nodes, above its most, {most}");
        violations.report_row("group/bounds", &row.address, fault);
    }
    if terminated > 0 && desired < least {
        let fault = format!("it shrinks to {desired} nodes, below its least, {least}");
        violations.report_row("group/bounds", &row.address, fault);
    }
    resize(context, group, row, launched, &expected_before, violations);
}

/// Checks that a resized group names its terminated members and has a precondition on its size.
fn resize(
    context: &CheckContext<'_>,
    group: &NodeGroup,
    row: &ResourceChange,
    launched: u32,
    before: &GroupSize,
    violations: &mut Violations,
) {
    if row.change.actions.as_slice() == [Action::NoOp] {
        return;
    }
    let explain =
        context.plan.capacity.explain.iter().find(|explain| explain.address == row.address);
    let terminated_ids =
        context.rows.iter().filter(|row| row.action.deletes() && is_of(row, &group.name));
    let mut terminated_ids: Vec<&InstanceId> =
        terminated_ids.filter_map(|row| row.before?.instance_id.as_ref()).collect();
    terminated_ids.sort();
    let named = match explain.map(|explain| &explain.reason) {
        Some(Reason::Resize { launch, terminate }) => {
            let mut terminate: Vec<&InstanceId> = terminate.iter().collect();
            terminate.sort();
            *launch == launched && terminate == terminated_ids
        }
        Some(Reason::Launch { .. } | Reason::Retire { .. } | Reason::Keep { .. }) | None => false,
    };
    if !named {
        violations.report_row(
            "group/named",
            &row.address,
            "its reason does not name the launched and terminated members",
        );
    }
    let Some(name) = before.name.clone() else { return };
    let condition = Condition::GroupIs { group: name, desired: before.desired };
    let wanted = Precondition { address: row.address.clone(), condition };
    if !context.plan.capacity.base.preconditions.contains(&wanted) {
        let fault = format!("lacks the precondition {}", words(&wanted.condition));
        violations.report_row("group/condition", &row.address, fault);
    }
}

/// Checks that members stay unchanged if another component may resize their group.
fn check_unmanaged(context: &CheckContext<'_>, group: &NodeGroup, violations: &mut Violations) {
    let Some(why) = unmanaged_reason(context, group) else { return };
    for row in context.rows.iter().filter(|row| is_of(row, &group.name)) {
        if row.action.creates() || row.action.deletes() {
            let fault = format!("group {} is only observed: {why}", group.name);
            violations.report_row("group/claimed", row.address, fault);
        }
    }
}

fn unmanaged_reason(context: &CheckContext<'_>, group: &NodeGroup) -> Option<&'static str> {
    let observed = context.facts.observed;
    let live = live_group(context, group);
    let claims = |tag: &String| {
        tag.starts_with(DISCOVERY_TAG_PREFIX) && !tag.starts_with(TEMPLATE_TAG_PREFIX)
    };
    // EKS tags its own groups for Cluster Autoscaler, whether or not there is one.
    let of_user = live.into_iter().filter(|live| !live.tags.contains_key(EKS_GROUP_TAG));
    let is_of_file = !matches!(group.kind, GroupKind::External(_));
    let of_file = group.tags.keys().filter(|_| is_of_file);
    if !group.manage {
        Some("the settings do not enable its management")
    } else if of_file.chain(of_user.flat_map(|live| live.tags.keys())).any(claims) {
        Some("a tag assigns it to Cluster Autoscaler")
    } else if group
        .zones
        .iter()
        .chain(live.iter().flat_map(|g| &g.zones))
        .any(|zone| zone.is_edge_of(&context.facts.catalog.region))
    {
        Some("it is in a Local Zone")
    } else if has_cluster_autoscaler(context) {
        Some("Cluster Autoscaler runs")
    } else if live.is_none()
        && !(observed.groups.is_empty()
            && observed.nodes.is_empty()
            && observed.instances.is_empty())
    {
        Some("it was not observed")
    } else {
        let is_changing = live.is_some_and(|live| active_members(context, live) != live.desired);
        is_changing.then_some("its size is changing")
    }
}

/// Returns whether Cluster Autoscaler runs or is declared in a relevant namespace. Where tenants may
/// create Deployments, names prove nothing, and only a running container counts.
fn has_cluster_autoscaler(context: &CheckContext<'_>) -> bool {
    let (desired, observed) = (context.facts.desired, context.facts.observed);
    let namespaces = desired.autoscaler_namespaces.as_ref();
    let is_listed =
        |id: &WorkloadId| namespaces.is_none_or(|namespaces| namespaces.contains(&id.namespace));
    let is_trusted = |id: &WorkloadId| {
        is_listed(id)
            && (namespaces.is_some() || SYSTEM_NAMESPACES.contains(&id.namespace.as_str()))
    };
    let is_named = |id: &WorkloadId, labels: Option<&Labels>| {
        let mut labels = AUTOSCALER_LABEL_KEYS.iter().filter_map(|key| labels?.get(*key));
        id.kind == WorkloadKind::Deployment
            && (id.name.contains(AUTOSCALER_NAME)
                || labels.any(|it| it.as_str().contains(AUTOSCALER_NAME)))
    };
    let runs = |pod: &Pod| {
        pod.node.is_some()
            && observed
                .templates
                .get(&*pod.template)
                .is_some_and(|t| t.cluster_autoscaler.is_some())
    };
    let labels = |template: &str| observed.templates.get(template).map(|pod| &pod.labels);
    let declared = desired.workloads.values().filter(|one| one.scale != Scale::Replicas(0));
    let live = observed.workloads.iter().filter(|live| live.replicas > 0);
    let pods = observed.pods.iter().filter(|pod| pod.is_active());
    declared
        .into_iter()
        .any(|one| is_listed(&one.id) && is_named(&one.id, Some(&one.template.labels)))
        || live.into_iter().any(|one| {
            is_trusted(&one.id) && is_named(&one.id, one.template.as_deref().and_then(labels))
        })
        || pods.into_iter().filter_map(|pod| Some((pod, pod.owner.as_ref()?))).any(
            |(pod, owner)| {
                (is_trusted(owner) && is_named(owner, labels(&pod.template)))
                    || (owner.kind == WorkloadKind::Deployment && is_listed(owner) && runs(pod))
            },
        )
}

/// Returns whether the zone of the next member of a group is certain.
pub(super) fn has_certain_zone(context: &CheckContext<'_>, group: &NodeGroup) -> bool {
    let zones =
        if group.zones.is_empty() { context.facts.catalog.zones.len() } else { group.zones.len() };
    zones == 1
}

/// Checks the planned properties of a new member against every type and zone of its group.
fn member(
    context: &CheckContext<'_>,
    group: &NodeGroup,
    row: &CheckedRow<'_>,
    violations: &mut Violations,
) {
    let Some(after) = row.after else { return };
    let mut fault = |text: String| violations.report_row("group/member", row.address, text);
    let named = after.instance_type.as_ref();
    if !named.is_some_and(|kind| group.types.contains(kind)) {
        fault("its type is not one of its group's".to_owned());
    }
    if !has_certain_zone(context, group)
        && (after.zone.is_some()
            || after.labels.contains_key(key::ZONE)
            || after.labels.contains_key(key::ZONE_ID))
    {
        fault("its zone is stated, but its group has several".to_owned());
    }
    let spot = context.offering(after).filter(|way| way.capacity_type == CapacityType::Spot);
    let price = spot.filter(|way| !way.estimated).and_then(|way| way.price);
    if price.zip(group.max_spot_price).is_some_and(|(price, most)| price > most) {
        fault("spot costs more than its group pays".to_owned());
    }
    let others = group.types.iter().any(|kind| Some(kind) != named);
    if others && after.labels.contains_key(key::INSTANCE_TYPE) {
        fault("its type is stated, but its group has several".to_owned());
    }
    let foreign = |key: &str| key.starts_with("karpenter.sh/") || key.starts_with("karpenter.k8s");
    if let Some(label) = after.labels.keys().find(|label| foreign(label.as_str())) {
        fault(format!("label {label} is stated, which members of groups do not get"));
    }
    let pool = context.pool(&group.name);
    for (key, value) in pool.iter().flat_map(|pool| &pool.labels) {
        if after.labels.get(key) != Some(value) {
            fault(format!("label {key} is not {value}"));
        }
    }
    let class = pool.and_then(|pool| Some((pool, context.class(pool)?)));
    let Some((pool, class)) = class else { return };
    let settings = NodeSettings::new(pool, class);
    let stated = resources(&after.allocatable);
    let mut offers = BTreeMap::new();
    for kind in group.types.iter().filter_map(|name| context.facts.catalog.types.get(name)) {
        let model = (context.facts.allocation)(kind, &settings);
        let real = context.facts.catalog.measured.adjust(model, &kind.name, &settings);
        offers.insert(&kind.name, real.allocatable);
    }
    if let Some((kind, _)) = offers.iter().find(|(_, real)| !stated.fits(real)) {
        fault(format!("a {kind}, which its group may launch, offers less than is stated"));
    }
}
