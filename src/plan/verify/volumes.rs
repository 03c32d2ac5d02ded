//! Volumes: pods run on nodes that reach their volumes, nodes stay within their attach limits, and
//! a `ReadWriteOncePod` claim has one pod.
//!
//! The volumes in the demand are not trusted. Claims are resolved again from the objects of the
//! repository and the observation, and compared on every node with arriving pods. Module
//! `part_assignment` checks the assignment of pods to parts. Uncertain cases are not checked:
//! claims that may bind to one of several volumes, and the attach limit of an existing node whose
//! driver does not report it.

use std::collections::{BTreeMap, BTreeSet};

use super::Violations;
use super::context::CheckContext;
use super::end_state::{EndNode, EndState, PodSet, PodSetKind};
use crate::demand::PodGroup;
use crate::model::ids::{LabelValue, Labels, Namespace, WorkloadKind};
use crate::model::pod::{Expression, NodeTerm, Volume, VolumeSource};
use crate::model::requirement::{Operator, key, normalize_key};
use crate::model::storage::{
    Claim, ClaimPhase, EBS_DRIVER, NO_PROVISIONER, PersistentVolume, StorageClass, csi_driver,
    ebs_zone,
};

/// Nodes that can use a volume, as far as known.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct VolumeReach {
    /// Alternative node terms. An empty list means all nodes, `None` means unknown.
    terms: Option<Vec<NodeTerm>>,
    /// True if pods with the claim can be bound to a node.
    ready: bool,
    /// Driver that attaches the volume.
    driver: Option<String>,
    /// Name of the claim or volume, if several pods may use it.
    shared: Option<String>,
    /// True if at most one pod may use the claim.
    for_one_pod: bool,
    /// True if a storage class still has to provision the volume, in the zone of its first pod.
    is_unprovisioned: bool,
}

/// Volumes of the planned pods of a workload, with the number of pods.
type PodVolumes = BTreeMap<Vec<VolumeReach>, u32>;

pub(super) fn check(context: &CheckContext<'_>, state: &EndState<'_>, violations: &mut Violations) {
    let ledger = VolumeLedger { context };
    let all: BTreeMap<&str, PodVolumes> = context
        .groups
        .iter()
        .filter_map(|(name, group)| Some((name.as_str(), ledger.pods(group)?)))
        .filter(|(_, pods)| pods.keys().any(|volumes| !volumes.is_empty()))
        .collect();
    if all.is_empty() {
        return;
    }
    let placed = state.pod_sets.iter().filter(|pod_set| pod_set.kind == PodSetKind::Placed);
    for pod_set in placed {
        let Some(pods) = all.get(pod_set.name.as_str()) else { continue };
        reachable(context, state, pod_set, pods, violations);
        ready(pod_set, pods, violations);
    }
    one_pod(state, &all, violations);
    one_zone(state, &all, violations);
    for (index, end_node) in state.nodes.iter().enumerate() {
        attach(context, state, index, end_node, &all, violations);
    }
}

/// Checks the demand against the volumes, on every node with arriving pods of the set.
fn reachable(
    context: &CheckContext<'_>,
    state: &EndState<'_>,
    pod_set: &PodSet,
    pods: &PodVolumes,
    violations: &mut Violations,
) {
    let Some(group) = context.groups.get(&pod_set.name) else { return };
    if pods.keys().flatten().any(|reach| reach.terms.is_none()) {
        return;
    }
    let arriving = pod_set.by_node.iter().filter(|(_, presence)| presence.arriving > 0);
    for end_node in arriving.map(|(end_node, _)| &state.nodes[*end_node]) {
        let labels = &end_node.after.labels;
        let can_reach =
            |volumes: &Vec<VolumeReach>| volumes.iter().all(|reach| reach.admits(labels));
        let reaching: u32 =
            pods.iter().filter(|(volumes, _)| can_reach(volumes)).map(|(_, n)| n).sum();
        let stated = stated(group, labels);
        if reaching != stated {
            let fault = format!(
                "{reaching} pods of {} can reach their volumes from here, the demand states {stated}",
                pod_set.name
            );
            violations.report_row("volumes/place", end_node.row.address, fault);
        }
    }
}

/// Returns the number of pods of `group` whose volumes allow a node with `labels`, according to the
/// demand.
fn stated(group: &PodGroup, labels: &Labels) -> u32 {
    let parts = group.partitions.iter().map(|part| (&part.shape, part.planned));
    let whole = (&group.shape, group.counts.planned);
    let all = parts.chain(group.partitions.is_empty().then_some(whole));
    let reached = all.filter(|(shape, _)| {
        let mut mounts = shape.volumes.iter();
        mounts.all(|mount| mount.nodes.iter().any(|reach| reach.matches_labels(labels)))
    });
    reached.map(|(_, pods)| pods).sum()
}

/// Checks that all arriving pods have usable claims.
fn ready(pod_set: &PodSet, pods: &PodVolumes, violations: &mut Violations) {
    let arriving: u32 = pod_set.by_node.values().map(|presence| presence.arriving).sum();
    let usable = pods.iter().filter(|(volumes, _)| volumes.iter().all(|reach| reach.ready));
    let usable: u32 = usable.map(|(_, pods)| pods).sum();
    if arriving > usable {
        let fault = format!(
            "{arriving} pods of {} are placed by this plan, but {usable} have \
                             usable volumes",
            pod_set.name
        );
        violations.report_plan("volumes/ready", fault);
    }
}

/// Checks that pods that share an unprovisioned volume run in one zone, the zone of the first pod.
fn one_zone(state: &EndState<'_>, all: &BTreeMap<&str, PodVolumes>, violations: &mut Violations) {
    let mut zones: BTreeMap<&str, BTreeSet<Option<&LabelValue>>> = BTreeMap::new();
    for pod_set in &state.pod_sets {
        let Some(pods) = all.get(pod_set.name.as_str()) else { continue };
        if pod_set.by_node.values().all(|presence| presence.arriving == 0) {
            continue;
        }
        let in_zone = |reach: &&VolumeReach| {
            reach.is_unprovisioned && reach.driver.as_deref() == Some(EBS_DRIVER)
        };
        let reaches: BTreeSet<&VolumeReach> = pods.keys().flatten().filter(in_zone).collect();
        for claim in reaches.into_iter().filter_map(|reach| reach.shared.as_deref()) {
            let end_nodes =
                pod_set.by_node.keys().map(|end_node| &state.nodes[*end_node].after.labels);
            zones.entry(claim).or_default().extend(end_nodes.map(|labels| labels.get(key::ZONE)));
        }
    }
    for (claim, zones) in zones.into_iter().filter(|(_, zones)| zones.len() > 1) {
        let fault = format!("pods that share claim {claim} would be in {} zones", zones.len());
        violations.report_plan("volumes/zone", fault);
    }
}

/// Checks that a `ReadWriteOncePod` claim has one pod, if the plan places a pod with it.
fn one_pod(state: &EndState<'_>, all: &BTreeMap<&str, PodVolumes>, violations: &mut Violations) {
    let mut users: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for pod_set in &state.pod_sets {
        let Some(pods) = all.get(pod_set.name.as_str()) else { continue };
        let reaches: BTreeSet<&VolumeReach> =
            pods.keys().flatten().filter(|p| p.for_one_pod).collect();
        for claim in reaches.into_iter().filter_map(|reach| reach.shared.as_deref()) {
            let (staying, arriving) = users.entry(claim).or_default();
            for presence in pod_set.by_node.values() {
                *staying = staying.saturating_add(presence.staying);
                *arriving = arriving.saturating_add(presence.arriving);
            }
        }
    }
    for (claim, (staying, arriving)) in users {
        if arriving > 0 && staying.saturating_add(arriving) > 1 {
            let fault = format!(
                "claim {claim} is ReadWriteOncePod: {staying} running pods use it \
                                 and {arriving} more are placed"
            );
            violations.report_plan("volumes/one-pod", fault);
        }
    }
}

/// Checks that a node stays within the attach limit of a driver, if pods with such volumes arrive.
fn attach(
    context: &CheckContext<'_>,
    state: &EndState<'_>,
    index: usize,
    end_node: &EndNode<'_>,
    all: &BTreeMap<&str, PodVolumes>,
    violations: &mut Violations,
) {
    let mut own: BTreeMap<&str, u32> = BTreeMap::new();
    let mut shared: BTreeSet<(&str, &str)> = BTreeSet::new();
    let mut coming: BTreeSet<&str> = BTreeSet::new();
    for (pod_set, presence) in state.pods_on(index) {
        // All pods of a workload have the same number of volumes.
        let volumes = all.get(pod_set.name.as_str()).and_then(|pods| pods.keys().next());
        for reach in volumes.into_iter().flatten() {
            let Some(driver) = reach.driver.as_deref() else { continue };
            match reach.shared.as_deref() {
                Some(claim) => {
                    shared.insert((driver, claim));
                }
                None => *own.entry(driver).or_default() += presence.all(),
            }
            if presence.arriving > 0 {
                coming.insert(driver);
            }
        }
    }
    for driver in coming {
        let of_driver = shared.iter().filter(|(of, _)| *of == driver).map(|_| 1).sum::<u32>();
        let volumes = own.get(driver).copied().unwrap_or(0).saturating_add(of_driver);
        let Some(limit) = limit(context, end_node, driver).filter(|limit| volumes > *limit) else {
            continue;
        };
        let fault = format!("{volumes} volumes of {driver} are on a node that attaches {limit}");
        violations.report_row("volumes/attach", end_node.row.address, fault);
    }
}

/// Returns the maximum number of volumes of a driver on a node. For an existing node this is the
/// value that the driver reports. For a new instance it is the EC2 limit without the root volume.
fn limit(context: &CheckContext<'_>, end_node: &EndNode<'_>, driver: &str) -> Option<u32> {
    if let Some(name) = end_node.name {
        return context.facts.observed.storage.attach_limits.get(name)?.get(driver).copied();
    }
    let (most, _) =
        context.kind(end_node.after)?.ebs_attachments.filter(|_| driver == EBS_DRIVER)?;
    u32::try_from((most - 1).max(1)).ok()
}

impl VolumeReach {
    fn admits(&self, labels: &Labels) -> bool {
        let Some(terms) = &self.terms else { return true };
        terms.is_empty() || terms.iter().any(|term| term_holds(term, labels))
    }
}

/// Returns whether a node with `labels` meets a term. No node meets an empty term.
fn term_holds(term: &NodeTerm, labels: &Labels) -> bool {
    let holds = |expression: &Expression| {
        let key = normalize_key(expression.key.as_str()).into();
        expression_holds(&Expression { key, ..expression.clone() }, labels)
    };
    !term.expressions.is_empty() && term.fields.is_empty() && term.expressions.iter().all(holds)
}

fn expression_holds(expression: &Expression, labels: &Labels) -> bool {
    let value = labels.get(&expression.key);
    let listed = value.is_some_and(|value| expression.values.contains(value));
    let number = |text: &str| text.parse::<i64>().ok();
    let compared = |wanted: fn(&i64, &i64) -> bool| {
        let bound = expression.values.first().and_then(|bound| number(bound.as_str()));
        let value = value.and_then(|value| number(value.as_str()));
        value.zip(bound).is_some_and(|(value, bound)| wanted(&value, &bound))
    };
    match expression.operator {
        Operator::In => listed,
        Operator::NotIn => !listed,
        Operator::Exists => value.is_some(),
        Operator::DoesNotExist => value.is_none(),
        Operator::Gt => compared(i64::gt),
        Operator::Lt => compared(i64::lt),
        Operator::Gte => compared(i64::ge),
        Operator::Lte => compared(i64::le),
    }
}

/// Resolves claims from the storage objects of repository and observation.
struct VolumeLedger<'a> {
    context: &'a CheckContext<'a>,
}

impl VolumeLedger<'_> {
    /// Returns the volumes of the planned pods of a declared workload.
    fn pods(&self, group: &PodGroup) -> Option<PodVolumes> {
        let workload = self.context.facts.desired.workloads.get(&group.workload)?;
        let volumes = &workload.template.spec.volumes;
        let namespace = &workload.id.namespace;
        let planned = group.counts.planned;
        if workload.id.kind != WorkloadKind::StatefulSet {
            return Some([(self.reaches(namespace, volumes, ""), planned)].into());
        }
        let mut pods = PodVolumes::new();
        for ordinal in workload.first_ordinal..workload.first_ordinal.saturating_add(planned) {
            let pod = format!("{}-{ordinal}", workload.id.name);
            *pods.entry(self.reaches(namespace, volumes, &pod)).or_default() += 1;
        }
        Some(pods)
    }

    fn reaches(&self, namespace: &Namespace, volumes: &[Volume], pod: &str) -> Vec<VolumeReach> {
        let reach = |Volume { name, source }: &Volume| match source {
            VolumeSource::Claim(claim) => {
                let reach = self.claim(namespace, claim).unwrap_or_default();
                Some(VolumeReach { shared: Some(format!("{namespace}/{claim}")), ..reach })
            }
            VolumeSource::ClaimTemplate(class) => {
                let existing = self.claim(namespace, &format!("{name}-{pod}"));
                let existing = existing.map(|reach| VolumeReach { for_one_pod: false, ..reach });
                Some(existing.unwrap_or_else(|| self.class_reach(class.as_deref(), false)))
            }
            VolumeSource::EphemeralClaim(class) => Some(self.class_reach(class.as_deref(), false)),
            VolumeSource::Ebs(id) => Some(ebs_volume(id)),
            VolumeSource::NetworkDisk(id) => Some(VolumeReach {
                terms: Some(Vec::new()),
                ready: true,
                shared: Some(id.clone()),
                ..VolumeReach::default()
            }),
            VolumeSource::InTree(_) => Some(VolumeReach::default()),
            VolumeSource::HostPath | VolumeSource::EmptyDir | VolumeSource::Other => None,
        };
        let mut reaches: Vec<VolumeReach> = volumes.iter().filter_map(reach).collect();
        reaches.sort();
        reaches
    }

    /// Returns the nodes that can use a claim; `None` if the claim does not exist.
    fn claim(&self, namespace: &Namespace, name: &str) -> Option<VolumeReach> {
        let facts = self.context.facts;
        let of = |claim: &Claim, reach: VolumeReach| VolumeReach {
            ready: reach.ready && !claim.deleting,
            for_one_pod: claim.access_modes.iter().any(|mode| mode == "ReadWriteOncePod"),
            ..reach
        };
        if let Some(claim) = facts.observed.storage.claim(namespace, name) {
            let reach = match (claim.phase, &claim.volume_name) {
                (ClaimPhase::Bound, Some(volume)) => self.volume(volume),
                (ClaimPhase::Pending | ClaimPhase::Bound, None) => {
                    self.class_reach(claim.storage_class.as_deref(), true)
                }
                (ClaimPhase::Lost, _) | (ClaimPhase::Pending, Some(_)) => VolumeReach::default(),
            };
            return Some(of(claim, reach));
        }
        let claim = &facts.desired.claims.get(&(namespace.clone(), name.to_owned()))?.claim;
        let full = format!("{namespace}/{name}");
        let existing =
            |(_, volume): &(&String, &PersistentVolume)| volume.claim.as_ref() == Some(&full);
        let mut known = facts.observed.storage.volumes.iter().chain(&facts.desired.volumes);
        let meant =
            claim.volume_name.as_ref().or_else(|| known.find(existing).map(|(name, _)| name));
        let reach = match meant {
            Some(name) => {
                let reach = self.volume(name);
                VolumeReach { ready: reach.ready && self.can_bind(claim, name, &full), ..reach }
            }
            None => self
                .static_reach(claim)
                .unwrap_or_else(|| self.class_reach(claim.storage_class.as_deref(), false)),
        };
        Some(of(claim, reach))
    }

    /// Returns the nodes that reach one of the existing volumes that a claim may take; `None` if no
    /// volume suits it, or its class provisions one for its first pod. If its class provisions one
    /// at once, the nodes are unknown.
    fn static_reach(&self, claim: &Claim) -> Option<VolumeReach> {
        let facts = self.context.facts;
        let class = self.class(claim.storage_class.as_deref());
        let is_manual = claim.storage_class.as_deref() == Some("")
            || class.is_some_and(|class| class.provisioner == NO_PROVISIONER);
        if !is_manual && class.is_none_or(|class| class.wait_for_first_consumer) {
            return None;
        }
        let live = &facts.observed.storage.volumes;
        let declared = facts.desired.volumes.iter().filter(|(name, _)| !live.contains_key(*name));
        let is_selected = |volume: &PersistentVolume| {
            let mut expressions = claim.selector.iter().flat_map(|selector| &selector.0);
            expressions.all(|expression| expression_holds(expression, &volume.labels))
        };
        let is_of_class = |volume: &PersistentVolume| {
            let requested = claim.storage_class.as_deref();
            requested.is_none_or(|name| name == volume.storage_class.as_deref().unwrap_or_default())
        };
        let suits = |(name, volume): &(&String, &PersistentVolume)| {
            volume.claim.is_none()
                && is_of_class(volume)
                && is_selected(volume)
                && self.can_bind(claim, name, "")
        };
        let terms: Vec<&[NodeTerm]> = live
            .iter()
            .chain(declared)
            .filter(suits)
            .map(|(_, volume)| volume.node_terms.as_slice())
            .collect();
        let is_any_node = terms.iter().any(|terms| terms.is_empty());
        let union = if is_any_node { Vec::new() } else { terms.concat() };
        (!terms.is_empty()).then(|| VolumeReach {
            terms: is_manual.then_some(union),
            ready: true,
            ..VolumeReach::default()
        })
    }

    /// Returns whether a volume can be bound to a claim: its `claimRef` names no other claim, and
    /// its capacity suffices.
    fn can_bind(&self, claim: &Claim, volume: &str, full: &str) -> bool {
        let facts = self.context.facts;
        let known = facts.observed.storage.volumes.get(volume);
        let Some(volume) = known.or_else(|| facts.desired.volumes.get(volume)) else {
            return false;
        };
        let others = volume.claim.as_ref().is_some_and(|bound_claim| bound_claim != full);
        let small = matches!((claim.request, volume.capacity), (Some(ask), Some(has)) if ask > has);
        !others && !small
    }

    fn volume(&self, name: &str) -> VolumeReach {
        let facts = self.context.facts;
        let known = facts.observed.storage.volumes.get(name);
        let Some(volume) = known.or_else(|| facts.desired.volumes.get(name)) else {
            return VolumeReach::default();
        };
        let PersistentVolume { node_terms: terms, driver, .. } = volume.clone();
        VolumeReach { terms: Some(terms), driver, ready: true, ..VolumeReach::default() }
    }

    /// Returns the nodes that a class provisions volumes for. An unknown class is not checked.
    fn class_reach(&self, name: Option<&str>, live: bool) -> VolumeReach {
        let unknown = VolumeReach { ready: true, ..VolumeReach::default() };
        let Some(class) = self.class(name) else { return unknown };
        let StorageClass {
            provisioner,
            wait_for_first_consumer: waits_for_pod,
            allowed_topologies,
            ..
        } = class;
        VolumeReach {
            terms: Some(allowed_topologies.clone()),
            ready: *waits_for_pod || !live,
            driver: Some(csi_driver(provisioner).to_owned()),
            is_unprovisioned: true,
            ..unknown
        }
    }

    fn class(&self, name: Option<&str>) -> Option<&StorageClass> {
        let facts = self.context.facts;
        let (declared, live) = (&facts.desired.storage_classes, &facts.observed.storage.classes);
        if let Some(name) = name {
            return declared.get(name).or_else(|| live.get(name));
        }
        let mut defaults = declared.iter().chain(live).filter(|(_, class)| class.is_default);
        let (first, class) = defaults.next()?;
        // Kubernetes uses the newest of several default classes. This is not checked.
        defaults.all(|(name, _)| name == first).then_some(class)
    }
}

fn ebs_volume(id: &str) -> VolumeReach {
    let Some(zone) = ebs_zone(id) else { return VolumeReach::default() };
    let values = vec![zone.into()];
    let expression = Expression { key: key::ZONE.into(), operator: Operator::In, values };
    VolumeReach {
        terms: Some(vec![NodeTerm { expressions: vec![expression], fields: Vec::new() }]),
        ready: true,
        driver: Some(EBS_DRIVER.to_owned()),
        shared: Some(id.to_owned()),
        for_one_pod: false,
        is_unprovisioned: false,
    }
}

#[cfg(test)]
mod tests;
