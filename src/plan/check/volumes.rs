//! Volumes: each pod is where its volumes can be reached from, nodes attach no more than they can, and
//! a claim for one pod has one pod.
//!
//! What the demand says of volumes is not believed: claims are followed again, from the objects of the
//! repository and of the world, and held against it on every node that pods come to. Which pod of a
//! workload goes where is judged by the parts of the demand, once they are known to be right. Refuses
//! to know what cannot be told for certain: claims that may get any of several volumes, and what a node
//! that is there attaches where no driver told.

use std::collections::{BTreeMap, BTreeSet};

use super::Verdict;
use super::case::Case;
use super::state::{Crowd, CrowdKind, EndState, Site};
use crate::demand::PodGroup;
use crate::ids::{LabelValue, Labels, Namespace, WorkloadKind};
use crate::pod::{Expression, NodeTerm, Volume, VolumeSource};
use crate::requirement::{Operator, key, normalize_key};
use crate::storage::{
    Claim, ClaimPhase, EBS_DRIVER, PersistentVolume, StorageClass, csi_driver, ebs_zone,
};

/// Where a claim can be used, as far as it is known.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// Terms of which one must hold, an empty list meaning anywhere; `None` where it is not known.
    terms: Option<Vec<NodeTerm>>,
    /// Whether pods of the claim can be bound to a node at all.
    ready: bool,
    /// Who attaches the volume.
    driver: Option<String>,
    /// The claim, where several pods may use it.
    shared: Option<String>,
    /// Whether one pod at most may.
    for_one_pod: bool,
    /// Whether a class is still to make the volume, where its first pod goes.
    to_come: bool,
}

/// The volumes of each planned pod of a workload, and how many pods have such volumes.
type Pods = BTreeMap<Vec<Place>, u32>;

pub(super) fn check(case: &Case<'_>, state: &EndState<'_>, verdict: &mut Verdict) {
    let books = Books { case };
    let all: BTreeMap<&str, Pods> = case
        .groups
        .iter()
        .filter_map(|(name, group)| Some((name.as_str(), books.pods(group)?)))
        .filter(|(_, pods)| pods.keys().any(|volumes| !volumes.is_empty()))
        .collect();
    if all.is_empty() {
        return;
    }
    let placed = state.crowds.iter().filter(|crowd| crowd.kind == CrowdKind::Placed);
    for crowd in placed {
        let Some(pods) = all.get(crowd.name.as_str()) else { continue };
        places(case, state, (crowd, pods), verdict);
        ready(crowd, pods, verdict);
    }
    one_pod(state, &all, verdict);
    one_zone(state, &all, verdict);
    for (index, site) in state.sites.iter().enumerate() {
        attach(case, state, (index, site), &all, verdict);
    }
}

/// Holds the demand to what the volumes say, on every node that pods of the crowd come to.
fn places(
    case: &Case<'_>,
    state: &EndState<'_>,
    (crowd, pods): (&Crowd, &Pods),
    verdict: &mut Verdict,
) {
    let Some(group) = case.groups.get(&crowd.name) else { return };
    if pods.keys().flatten().any(|place| place.terms.is_none()) {
        return;
    }
    let comes = crowd.on.iter().filter(|(_, presence)| presence.come > 0);
    for site in comes.map(|(site, _)| &state.sites[*site]) {
        let labels = &site.after.labels;
        let may = |volumes: &Vec<Place>| volumes.iter().all(|place| place.admits(labels));
        let holds: u32 = pods.iter().filter(|(volumes, _)| may(volumes)).map(|(_, n)| n).sum();
        let stated = stated(group, labels);
        if holds != stated {
            let fault = format!(
                "the volumes of {holds} pods of {} can be reached from here, not of {stated}",
                crowd.name
            );
            verdict.row("volumes/place", site.row.address, fault);
        }
    }
}

/// Returns how many pods of `group` the demand lets be on a node, by their volumes.
fn stated(group: &PodGroup, labels: &Labels) -> u32 {
    let parts = group.parts.iter().map(|part| (&part.shape, part.planned));
    let whole = (&group.shape, group.counts.planned);
    let all = parts.chain(group.parts.is_empty().then_some(whole));
    let reached = all.filter(|(shape, _)| {
        let mut mounts = shape.volumes.iter();
        mounts.all(|mount| mount.nodes.iter().any(|place| place.match_labels(labels)))
    });
    reached.map(|(_, pods)| pods).sum()
}

/// Holds the pods that come to those whose claims can be used.
fn ready(crowd: &Crowd, pods: &Pods, verdict: &mut Verdict) {
    let come: u32 = crowd.on.values().map(|presence| presence.come).sum();
    let usable = pods.iter().filter(|(volumes, _)| volumes.iter().all(|place| place.ready));
    let usable: u32 = usable.map(|(_, pods)| pods).sum();
    if come > usable {
        let fault = format!("{come} pods of {} come, {usable} have volumes", crowd.name);
        verdict.plan("volumes/ready", fault);
    }
}

/// Holds pods that share a volume which is still to be made to one zone: it will be in that of the
/// first of them.
fn one_zone(state: &EndState<'_>, all: &BTreeMap<&str, Pods>, verdict: &mut Verdict) {
    let mut zones: BTreeMap<&str, BTreeSet<Option<&LabelValue>>> = BTreeMap::new();
    for crowd in &state.crowds {
        let Some(pods) = all.get(crowd.name.as_str()) else { continue };
        if crowd.on.values().all(|presence| presence.come == 0) {
            continue;
        }
        let in_zone = |place: &&Place| place.to_come && place.driver.as_deref() == Some(EBS_DRIVER);
        let places: BTreeSet<&Place> = pods.keys().flatten().filter(in_zone).collect();
        for claim in places.into_iter().filter_map(|place| place.shared.as_deref()) {
            let sites = crowd.on.keys().map(|site| &state.sites[*site].after.labels);
            zones.entry(claim).or_default().extend(sites.map(|labels| labels.get(key::ZONE)));
        }
    }
    for (claim, zones) in zones.into_iter().filter(|(_, zones)| zones.len() > 1) {
        let fault = format!("pods that share claim {claim} would be in {} zones", zones.len());
        verdict.plan("volumes/zone", fault);
    }
}

/// Holds a claim for one pod to one pod, where the plan brings any.
fn one_pod(state: &EndState<'_>, all: &BTreeMap<&str, Pods>, verdict: &mut Verdict) {
    let mut users: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for crowd in &state.crowds {
        let Some(pods) = all.get(crowd.name.as_str()) else { continue };
        let places: BTreeSet<&Place> = pods.keys().flatten().filter(|p| p.for_one_pod).collect();
        for claim in places.into_iter().filter_map(|place| place.shared.as_deref()) {
            let (stay, come) = users.entry(claim).or_default();
            for presence in crowd.on.values() {
                *stay = stay.saturating_add(presence.stay);
                *come = come.saturating_add(presence.come);
            }
        }
    }
    for (claim, (stay, come)) in users {
        if come > 0 && stay.saturating_add(come) > 1 {
            let fault = format!("claim {claim} is for one pod; {stay} have it and {come} come");
            verdict.plan("volumes/one-pod", fault);
        }
    }
}

/// Holds a node to attach no more volumes of a driver than it can, where pods come with more.
fn attach(
    case: &Case<'_>,
    state: &EndState<'_>,
    (index, site): (usize, &Site<'_>),
    all: &BTreeMap<&str, Pods>,
    verdict: &mut Verdict,
) {
    let mut own: BTreeMap<&str, u32> = BTreeMap::new();
    let mut shared: BTreeSet<(&str, &str)> = BTreeSet::new();
    let mut coming: BTreeSet<&str> = BTreeSet::new();
    for (crowd, presence) in state.on(index) {
        // Pods of one workload have as many volumes each, wherever those are.
        let volumes = all.get(crowd.name.as_str()).and_then(|pods| pods.keys().next());
        for place in volumes.into_iter().flatten() {
            let Some(driver) = place.driver.as_deref() else { continue };
            match place.shared.as_deref() {
                Some(claim) => {
                    shared.insert((driver, claim));
                }
                None => *own.entry(driver).or_default() += presence.all(),
            }
            if presence.come > 0 {
                coming.insert(driver);
            }
        }
    }
    for driver in coming {
        let of_driver = shared.iter().filter(|(of, _)| *of == driver).map(|_| 1).sum::<u32>();
        let volumes = own.get(driver).copied().unwrap_or(0).saturating_add(of_driver);
        let Some(limit) = limit(case, site, driver).filter(|limit| volumes > *limit) else {
            continue;
        };
        let fault = format!("{volumes} volumes of {driver} are on a node that attaches {limit}");
        verdict.row("volumes/attach", site.row.address, fault);
    }
}

/// Returns how many volumes of a driver a node attaches at most: what its driver told, or what EC2
/// lets a machine to come have beside its root volume.
fn limit(case: &Case<'_>, site: &Site<'_>, driver: &str) -> Option<u32> {
    if let Some(name) = site.name {
        return case.facts.observed.storage.attach_limits.get(name)?.get(driver).copied();
    }
    let (most, _) = case.kind(site.after)?.ebs_attachments.filter(|_| driver == EBS_DRIVER)?;
    u32::try_from((most - 1).max(1)).ok()
}

impl Place {
    fn admits(&self, labels: &Labels) -> bool {
        let Some(terms) = &self.terms else { return true };
        terms.is_empty() || terms.iter().any(|term| term_holds(term, labels))
    }
}

/// Returns whether a node with `labels` meets a term; one that requires nothing is met by no node.
fn term_holds(term: &NodeTerm, labels: &Labels) -> bool {
    let holds = |expression: &Expression| {
        let value = labels.get(normalize_key(expression.key.as_str()));
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
    };
    !term.expressions.is_empty() && term.fields.is_empty() && term.expressions.iter().all(holds)
}

/// The storage objects of repository and world.
struct Books<'a> {
    case: &'a Case<'a>,
}

impl Books<'_> {
    /// Returns the volumes of the planned pods of a workload that the repository declares.
    fn pods(&self, group: &PodGroup) -> Option<Pods> {
        let workload = self.case.facts.desired.workloads.get(&group.workload)?;
        let volumes = &workload.template.spec.volumes;
        let namespace = &workload.id.namespace;
        let planned = group.counts.planned;
        if workload.id.kind != WorkloadKind::StatefulSet {
            return Some([(self.places(namespace, volumes, ""), planned)].into());
        }
        let mut pods = Pods::new();
        for ordinal in workload.first_ordinal..workload.first_ordinal.saturating_add(planned) {
            let pod = format!("{}-{ordinal}", workload.id.name);
            *pods.entry(self.places(namespace, volumes, &pod)).or_default() += 1;
        }
        Some(pods)
    }

    fn places(&self, namespace: &Namespace, volumes: &[Volume], pod: &str) -> Vec<Place> {
        let place = |Volume { name, source }: &Volume| match source {
            VolumeSource::Claim(claim) => {
                let place = self.claim(namespace, claim).unwrap_or_default();
                Some(Place { shared: Some(format!("{namespace}/{claim}")), ..place })
            }
            VolumeSource::ClaimTemplate(class) => {
                let kept = self.claim(namespace, &format!("{name}-{pod}"));
                let kept = kept.map(|place| Place { for_one_pod: false, ..place });
                Some(kept.unwrap_or_else(|| self.of_class(class.as_deref(), false)))
            }
            VolumeSource::EphemeralClaim(class) => Some(self.of_class(class.as_deref(), false)),
            VolumeSource::Ebs(id) => Some(disk(id)),
            VolumeSource::InTree(_) => Some(Place::default()),
            VolumeSource::HostPath | VolumeSource::EmptyDir | VolumeSource::Other => None,
        };
        let mut places: Vec<Place> = volumes.iter().filter_map(place).collect();
        places.sort();
        places
    }

    /// Returns where a claim can be used; `None` where there is none.
    fn claim(&self, namespace: &Namespace, name: &str) -> Option<Place> {
        let facts = self.case.facts;
        let of = |claim: &Claim, place: Place| Place {
            ready: place.ready && !claim.deleting,
            for_one_pod: claim.access_modes.iter().any(|mode| mode == "ReadWriteOncePod"),
            ..place
        };
        if let Some(claim) = facts.observed.storage.claim(namespace, name) {
            let place = match (claim.phase, &claim.volume_name) {
                (ClaimPhase::Bound, Some(volume)) => self.volume(volume),
                (ClaimPhase::Pending | ClaimPhase::Bound, None) => {
                    self.of_class(claim.storage_class.as_deref(), true)
                }
                (ClaimPhase::Lost, _) | (ClaimPhase::Pending, Some(_)) => Place::default(),
            };
            return Some(of(claim, place));
        }
        let claim = &facts.desired.claims.get(&(namespace.clone(), name.to_owned()))?.claim;
        let full = format!("{namespace}/{name}");
        let kept =
            |(_, volume): &(&String, &PersistentVolume)| volume.claim.as_ref() == Some(&full);
        let mut known = facts.observed.storage.volumes.iter().chain(&facts.desired.volumes);
        let meant = claim.volume_name.as_ref().or_else(|| known.find(kept).map(|(name, _)| name));
        let place = match meant {
            Some(name) => {
                let place = self.volume(name);
                Place { ready: place.ready && self.suits(claim, name, &full), ..place }
            }
            None => self.of_class(claim.storage_class.as_deref(), false),
        };
        Some(of(claim, place))
    }

    /// Returns whether a volume can be bound to a claim: not where its `claimRef` names another, and
    /// not where the claim asks for more.
    fn suits(&self, claim: &Claim, volume: &str, full: &str) -> bool {
        let facts = self.case.facts;
        let known = facts.observed.storage.volumes.get(volume);
        let Some(volume) = known.or_else(|| facts.desired.volumes.get(volume)) else {
            return false;
        };
        let others = volume.claim.as_ref().is_some_and(|kept_for| kept_for != full);
        let small = matches!((claim.request, volume.capacity), (Some(ask), Some(has)) if ask > has);
        !others && !small
    }

    fn volume(&self, name: &str) -> Place {
        let facts = self.case.facts;
        let known = facts.observed.storage.volumes.get(name);
        let Some(volume) = known.or_else(|| facts.desired.volumes.get(name)) else {
            return Place::default();
        };
        let PersistentVolume { node_terms: terms, driver, .. } = volume.clone();
        Place { terms: Some(terms), driver, ready: true, ..Place::default() }
    }

    /// Returns where a class makes volumes. What a claim without a class gets is not known, and a
    /// class that nobody knows is not judged.
    fn of_class(&self, name: Option<&str>, live: bool) -> Place {
        let unknown = Place { ready: true, ..Place::default() };
        let Some(class) = self.class(name) else { return unknown };
        let StorageClass { provisioner, waits_for_pod, allowed_topologies, .. } = class;
        Place {
            terms: Some(allowed_topologies.clone()),
            ready: *waits_for_pod || !live,
            driver: Some(csi_driver(provisioner).to_owned()),
            to_come: true,
            ..unknown
        }
    }

    fn class(&self, name: Option<&str>) -> Option<&StorageClass> {
        let facts = self.case.facts;
        let (declared, live) = (&facts.desired.storage_classes, &facts.observed.storage.classes);
        if let Some(name) = name {
            return declared.get(name).or_else(|| live.get(name));
        }
        let mut defaults = declared.iter().chain(live).filter(|(_, class)| class.is_default);
        let (first, class) = defaults.next()?;
        // Of several defaults, the youngest counts: that is not judged here.
        defaults.all(|(name, _)| name == first).then_some(class)
    }
}

fn disk(id: &str) -> Place {
    let Some(zone) = ebs_zone(id) else { return Place::default() };
    let values = vec![zone.into()];
    let expression = Expression { key: key::ZONE.into(), operator: Operator::In, values };
    Place {
        terms: Some(vec![NodeTerm { expressions: vec![expression], fields: Vec::new() }]),
        ready: true,
        driver: Some(EBS_DRIVER.to_owned()),
        shared: Some(id.to_owned()),
        for_one_pod: false,
        to_come: false,
    }
}

#[cfg(test)]
mod tests;
