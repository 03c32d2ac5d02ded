//! Offerings that may stand in for a launch: each is held to what is required of the launch itself.
//!
//! Rules between pods tie pods to a value of a topology key: their own rules, and the rules of
//! others that are about them. What stands in for their node must keep that value. Several launches
//! may fall back at once, so that another value could not be judged one launch at a time.
//!
//! Launches of one pool that differ in their key alone get the same answers, which are kept.

use std::collections::{BTreeMap, BTreeSet};

use super::Verdict;
use super::case::{Case, Row};
use super::fit::{Spot, refusal_of, runs_daemon};
use super::launches::{is_excluded, stand_in_labels, unmet};
use super::parts::{admitted, torn};
use super::state::{Crowd, CrowdKind, EndState};
use super::together::{first_clash, ties};
use crate::catalog::{CapacityType, Offering};
use crate::demand::{NodeChoice, PodGroup};
use crate::fleet::KEY_LABEL;
use crate::ids::{Address, InstanceTypeName, LabelKey, LabelValue, Labels, PoolName, ZoneName};
use crate::plan::wire::NodeState;
use crate::pod::{Taint, Toleration};
use crate::solve::Alternative;
use crate::units::{MicroUsd, Resources};

/// The rule that an offering breaks, and how.
type Fault = (&'static str, String);

/// Says that what it stands in for cannot be judged, which never counts as fine.
fn unjudged() -> Fault {
    ("alternatives/fit", "the launch that it stands in for cannot be judged".to_owned())
}

/// An offering as its alternative states it.
type Stated<'a> = (&'a InstanceTypeName, &'a ZoneName, CapacityType, MicroUsd);

/// What launches that get the same answers have in common.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Template<'a> {
    pool: &'a PoolName,
    kind: &'a InstanceTypeName,
    labels: Vec<(&'a LabelKey, &'a LabelValue)>,
    taints: &'a [Taint],
}

/// A launch, as far as offerings are held to it.
struct Launch<'a> {
    after: &'a NodeState,
    site: usize,
    template: usize,
    /// The topology keys that its pods are tied to.
    ties: BTreeSet<&'a LabelKey>,
    /// The crowds that are placed there, and what their pods ask for.
    placed: Vec<usize>,
    asked: Resources,
}

/// The node that would come instead.
struct StandIn {
    labels: Labels,
    allocatable: Resources,
    /// The crowds of its DaemonSet pods, and what they take.
    daemons: Vec<usize>,
    daemons_take: Resources,
    /// Why pods of a wish are not admitted, as far as it was asked.
    refusals: BTreeMap<usize, Option<String>>,
}

/// The answers given so far.
struct Answers<'a> {
    case: &'a Case<'a>,
    state: &'a EndState<'a>,
    /// The keys that each crowd is tied to.
    ties: Vec<BTreeSet<&'a LabelKey>>,
    /// The wish of each crowd: equal for those that the same nodes admit.
    wishes: Vec<usize>,
    /// The group of each crowd that has one.
    groups: Vec<Option<&'a PodGroup>>,
    /// Whether some pod chooses its node by the node's key.
    keyed: bool,
    sites: BTreeMap<&'a Address, usize>,
    templates: BTreeMap<Template<'a>, usize>,
    stand_ins: BTreeMap<(usize, Stated<'a>), Result<StandIn, Fault>>,
    /// The parts of a crowd's pods that may be on a launch whatever stands in for it, by site; of
    /// crowds whose pods differ.
    parts: BTreeMap<usize, BTreeMap<usize, BTreeSet<usize>>>,
}

pub(super) fn check(case: &Case<'_>, state: &EndState<'_>, verdict: &mut Verdict) {
    let mut answers = Answers::new(case, state);
    for of in &case.plan.capacity.alternatives {
        let row = case.row(&of.address).filter(|row| row.deed.creates());
        let Some((row, after)) = row.and_then(|row| Some((row, row.after?))) else {
            verdict.row("alternatives/row", &of.address, "nothing is launched there");
            continue;
        };
        if !of.offerings.is_sorted_by_key(|offering| offering.hourly) {
            verdict.row("alternatives/order", &of.address, "they are not cheapest first");
        }
        let Some(launch) = answers.launch(row, after) else { continue };
        for offering in &of.offerings {
            let what = (offering.instance_type.as_str(), offering.zone.as_str());
            if let Some((rule, fault)) = answers.unfit(&launch, offering) {
                verdict.row(rule, &of.address, format!("{} in {}: {fault}", what.0, what.1));
            }
        }
    }
    for (crowd, only) in &answers.parts {
        let Some(group) = answers.groups[*crowd] else { continue };
        let crowd = &state.crowds[*crowd];
        if let Some((address, pods)) = torn((state, crowd), group, only) {
            let fault = format!(
                "{}: of {pods} pods here and on nodes like this one, some are bound to where what \
                 stands in is not",
                crowd.name
            );
            verdict.row("alternatives/fit", address, fault);
        }
    }
}

impl<'a> Answers<'a> {
    fn new(case: &'a Case<'a>, state: &'a EndState<'a>) -> Self {
        let sites = state.sites.iter().enumerate().map(|(index, site)| (site.row.address, index));
        let choices = state.crowds.iter().flat_map(|crowd| &crowd.shape.nodes.any_of);
        let parts = case.groups.values().flat_map(|group| &group.parts);
        let mut choices = choices.chain(parts.flat_map(|part| &part.shape.nodes.any_of));
        Self {
            case,
            state,
            ties: ties(case, state),
            wishes: wishes(case, &state.crowds),
            groups: state.crowds.iter().map(|c| case.groups.get(&c.name).copied()).collect(),
            keyed: choices.any(|choice| choice.get(KEY_LABEL).is_some()),
            sites: sites.collect(),
            templates: BTreeMap::new(),
            stand_ins: BTreeMap::new(),
            parts: BTreeMap::new(),
        }
    }

    /// Returns what every offering for a launch is held to; `None` where the launch itself cannot be
    /// judged.
    fn launch(&mut self, row: &Row<'_>, after: &'a NodeState) -> Option<Launch<'a>> {
        let site = *self.sites.get(row.address)?;
        let template = self.template(after)?;
        let state = self.state;
        let here = state.by_site[site].iter().copied();
        let placed = here.filter(|crowd| state.crowds[*crowd].kind == CrowdKind::Placed);
        let placed: Vec<usize> = placed.collect();
        // Pods of DaemonSets come to every machine, whichever it is: rules that speak of them as well
        // decide about the others.
        let ties = placed.iter().flat_map(|crowd| &self.ties[*crowd]).copied().collect();
        let asked = state.on(site).filter(|(crowd, _)| crowd.kind == CrowdKind::Placed);
        let asked = asked.map(|(crowd, pods)| crowd.shape.requests.times(i64::from(pods.all())));
        let asked = asked.fold(Resources::default(), |sum, requests| sum.plus(&requests));
        Some(Launch { after, site, template, ties, placed, asked })
    }

    /// Returns the rule that `offering` would break in the place of a launch, and how.
    fn unfit(&mut self, launch: &Launch<'a>, offering: &'a Alternative) -> Option<Fault> {
        let Launch { after, site, template, ties, placed, asked } = launch;
        let Alternative { instance_type, zone, capacity_type, hourly } = offering;
        let place = (*template, (instance_type, zone, *capacity_type, *hourly));
        if !self.stand_ins.contains_key(&place) {
            let Some(stand_in) = self.stand_in(after, offering) else { return Some(unjudged()) };
            self.stand_ins.insert(place, stand_in);
        }
        let Self { state, wishes, groups, stand_ins, parts, .. } = self;
        let stand_in = match stand_ins.get_mut(&place)? {
            Ok(stand_in) => stand_in,
            Err(fault) => return Some(fault.clone()),
        };
        let held = |key: &&&LabelKey| stand_in.labels.get(**key) != after.labels.get(**key);
        if let Some(key) = ties.iter().find(held) {
            let fault = format!("rules between pods tie those on the node to its {key}");
            return Some(("alternatives/topology", fault));
        }
        for crowd in placed {
            let Some(group) = groups[*crowd] else { return Some(unjudged()) };
            if let Some(why) = stand_in.refusal(wishes[*crowd], group, after) {
                let name = &state.crowds[*crowd].name;
                return Some(("alternatives/fit", format!("{name} is not admitted: {why}")));
            }
            if !group.parts.is_empty() {
                let here = Spot { labels: &after.labels, taints: &after.taints, name: None };
                let there = Spot { labels: &stand_in.labels, ..here };
                let of_crowd = parts.entry(*crowd).or_default();
                let both = of_crowd.entry(*site).or_insert_with(|| admitted(group, &here));
                *both = both.intersection(&admitted(group, &there)).copied().collect();
            }
        }
        let short = asked.plus(&stand_in.daemons_take).exceeding(&stand_in.allocatable);
        if !short.is_empty() {
            let fault = format!("{} do not suffice for the pods of the node", short.join(", "));
            return Some(("alternatives/fit", fault));
        }
        let pods = placed.iter().chain(&stand_in.daemons).map(|crowd| &state.crowds[*crowd]);
        let binds = pods.filter(|crowd| !crowd.shape.host_ports.is_empty());
        let (one, other, port) = first_clash(&binds.collect::<Vec<&Crowd>>())?;
        let fault = format!("pods of {} and {} would bind host port {port}", one.name, other.name);
        Some(("alternatives/fit", fault))
    }

    fn template(&mut self, after: &'a NodeState) -> Option<usize> {
        let labels = after.labels.iter();
        let labels = labels.filter(|(key, _)| self.keyed || key.as_str() != KEY_LABEL);
        let template = Template {
            pool: after.pool.as_ref()?,
            kind: after.instance_type.as_ref()?,
            labels: labels.collect(),
            taints: &after.taints,
        };
        let next = self.templates.len();
        Some(*self.templates.entry(template).or_insert(next))
    }

    /// Returns the node that `offering` makes; `None` where the launch itself cannot be judged.
    fn stand_in(
        &self,
        after: &NodeState,
        offering: &Alternative,
    ) -> Option<Result<StandIn, Fault>> {
        let case = self.case;
        let pool = case.pool(after.pool.as_ref()?)?;
        let chosen = case.kind(after)?;
        let Alternative { instance_type, zone, capacity_type, hourly } = offering;
        let kind = case.facts.catalog.types.get(instance_type);
        let same = |o: &&Offering| o.zone == *zone && o.capacity_type == *capacity_type;
        let Some((kind, listed)) = kind.and_then(|k| Some((k, k.offerings.iter().find(same)?)))
        else {
            return Some(Err(("alternatives/offering", "nobody offers it".to_owned())));
        };
        let labels = stand_in_labels(after, (chosen, kind), listed);
        let sold = case.sold(kind, zone, *capacity_type, &labels)?;
        if sold.price != Some(*hourly) {
            let price = sold.price.as_ref().map(MicroUsd::to_string);
            let price = price.unwrap_or_else(|| "an unknown price".to_owned());
            let fault = format!("it costs {price}, not {hourly}");
            return Some(Err(("alternatives/price", fault)));
        }
        if is_excluded(case, instance_type, (zone, *capacity_type)) {
            let fault = "EC2 had none of it lately".to_owned();
            return Some(Err(("alternatives/excluded", fault)));
        }
        if let Some(fault) = unmet(case, pool, &labels) {
            return Some(Err(("alternatives/requirements", fault)));
        }
        let allocatable = case.allocation(pool, kind, &labels)?.allocatable;
        let spot = Spot { labels: &labels, taints: &after.taints, name: None };
        let crowds = self.state.crowds.iter().enumerate();
        let runs =
            |crowd: &Crowd| crowd.kind == CrowdKind::Daemon && runs_daemon(&crowd.shape, &spot);
        let daemons: Vec<usize> =
            crowds.filter(|(_, crowd)| runs(crowd)).map(|(index, _)| index).collect();
        let take = daemons.iter().map(|crowd| &self.state.crowds[*crowd].shape.requests);
        let daemons_take = take.fold(Resources::default(), |sum, requests| sum.plus(requests));
        let refusals = BTreeMap::new();
        Some(Ok(StandIn { labels, allocatable, daemons, daemons_take, refusals }))
    }
}

impl StandIn {
    /// Returns why the node would admit none of `group`, whose wish is `wish`, in the place of the
    /// launch `after`.
    fn refusal(&mut self, wish: usize, group: &PodGroup, after: &NodeState) -> Option<String> {
        if let Some(known) = self.refusals.get(&wish) {
            return known.clone();
        }
        let spot = Spot { labels: &self.labels, taints: &after.taints, name: None };
        let refusal = refusal_of(group, &spot).map(|(_, why)| why);
        self.refusals.insert(wish, refusal.clone());
        refusal
    }
}

/// Numbers the wishes of crowds; a workload whose pods differ has one of its own.
fn wishes(case: &Case<'_>, crowds: &[Crowd]) -> Vec<usize> {
    let mut known: BTreeMap<(&NodeChoice, &[Toleration]), usize> = BTreeMap::new();
    let mut wishes = Vec::new();
    for (index, crowd) in crowds.iter().enumerate() {
        let differ = case.groups.get(&crowd.name).is_some_and(|group| !group.parts.is_empty());
        let wish = (&crowd.shape.nodes, crowd.shape.tolerations.as_slice());
        wishes.push(if differ { index } else { *known.entry(wish).or_insert(index) });
    }
    wishes
}
