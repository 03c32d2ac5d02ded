//! Why pods have no place: what ruled out each offer, and the nearest change that would help.

mod nearest;
mod pools;
mod rules;

use std::collections::BTreeMap;

pub(super) use pools::refusal_text;
use pools::{code, withheld_text};

use super::Input;
use super::aside::aside;
use super::groups;
use super::limits::amount;
use super::offer::{Offer, Offers, PoolRefusal, Withheld};
use super::rescue::Hearing;
use super::target::{Contest, Rejection, Unplaced};
use crate::demand::{Mount, PodGroup, PodShape};
use crate::ids::{Labels, PoolName, ReservationId};
use crate::manifest::PoolLimits;
use crate::pod::{Taint, untolerated};
use crate::requirement::{Requirements, key};
use crate::schedule::{ScheduleNode, UnfitReason};
use crate::units::Resources;

/// Most reasons that are listed for one group.
const REASONS_MAX: usize = 12;

/// What explains unplaced pods.
pub(super) struct Inquest<'a> {
    pub input: &'a Input<'a>,
    pub offers: &'a Offers,
}

/// The most of each resource that nodes which are too small leave to pods, by pool.
type Largest<'a> = BTreeMap<&'a PoolName, Resources>;

/// Why one offer does not take a pod.
enum Obstacle {
    Taint(String),
    Label {
        key: String,
        asked: String,
    },
    Volume {
        place: String,
    },
    /// Its node affinity, and its volumes, leave no term that a node could meet.
    NoTerm,
    TooSmall {
        resource: String,
    },
    /// The limits of its pool.
    Limit,
    /// The limits of its pool, until nodes that this plan removes are gone.
    LimitForNow,
    /// Its reservation, which the plan uses up.
    Reservation(ReservationId),
    /// Its pool has a fixed number of nodes.
    Fixed,
    /// It is not offered now.
    Withheld(Withheld),
    /// A rule between pods.
    Rule(UnfitReason),
    /// Nothing that holds in every order of arrival.
    Order,
}

/// Returns what keeps a pod off nodes of an offer that admit it and have room.
fn heard(hearing: &mut Hearing, group: usize, (at, offer): (usize, &Offer)) -> Obstacle {
    if !hearing.is_within_limits(at) {
        if hearing.is_within_limits_once_applied(at) {
            return Obstacle::LimitForNow;
        }
        let reservation = offer.node.reservation.clone();
        return reservation.map_or(Obstacle::Limit, Obstacle::Reservation);
    }
    hearing.refusal(group, at).into_iter().next().map_or(Obstacle::Order, Obstacle::Rule)
}

impl Inquest<'_> {
    /// Returns why pods of each of these groups have no place.
    pub(super) fn explain_all<'h>(
        &self,
        groups: &[PodGroup],
        unplaced: &BTreeMap<usize, u32>,
        hearing: impl FnOnce() -> Hearing<'h>,
    ) -> Vec<Unplaced> {
        if unplaced.is_empty() {
            return Vec::new();
        }
        let mut hearing = hearing();
        let explain = |(index, pods): (&usize, &u32)| {
            self.explain((*index, &groups[*index]), *pods, &mut hearing)
        };
        unplaced.iter().map(explain).collect()
    }

    /// Returns why `pods` pods of a group have no place.
    fn explain(
        &self,
        (index, group): (usize, &PodGroup),
        pods: u32,
        hearing: &mut Hearing,
    ) -> Unplaced {
        let shape = &group.shape;
        let offerings =
            u32::try_from(self.offers.list.len() + self.not_offered().count()).unwrap_or(u32::MAX);
        if let Some(feature) = shape.unsupported.first() {
            let (rejection, nearest) = aside(*feature, group, self.input, offerings);
            let rejections = vec![rejection];
            let contest = Contest::default();
            let oversize = None;
            return Unplaced {
                group: index,
                pods,
                rejections,
                offerings,
                nearest,
                contest,
                oversize,
            };
        }
        let mut counts: BTreeMap<(String, String), u32> = BTreeMap::new();
        let mut obstacles = Vec::with_capacity(self.offers.list.len());
        for (at, offer) in self.offers.list.iter().enumerate() {
            let obstacle = obstacle(shape, offer);
            obstacles.push((offer, obstacle.unwrap_or_else(|| heard(hearing, index, (at, offer)))));
        }
        for (offer, last) in self.not_offered() {
            obstacles.push((offer, obstacle(shape, offer).unwrap_or(last)));
        }
        let largest = largest(&obstacles);
        for (offer, obstacle) in &obstacles {
            let reason = self.describe(shape, &largest, (offer, obstacle));
            *counts.entry(reason).or_insert(0) += 1;
        }
        let mut rejections: Vec<Rejection> = counts
            .into_iter()
            .map(|((reason, detail), count)| Rejection { reason, detail, count })
            .collect();
        rejections.extend(self.refusals());
        rejections.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.cmp(b)));
        rejections.truncate(REASONS_MAX);
        Unplaced {
            group: index,
            pods,
            rejections,
            offerings,
            nearest: self.nearest(shape, &obstacles),
            contest: Contest::default(),
            oversize: self.oversize(shape, &largest, &obstacles),
        }
    }

    /// Returns in which resource the pods are larger than every node that admits them; `None` where one
    /// of those has room for them, or none admits them.
    fn oversize(
        &self,
        shape: &PodShape,
        largest: &Largest,
        obstacles: &[(&Offer, Obstacle)],
    ) -> Option<String> {
        let mut first = None;
        for (offer, obstacle) in obstacles {
            match obstacle {
                Obstacle::Taint(_)
                | Obstacle::Label { .. }
                | Obstacle::NoTerm
                | Obstacle::Volume { .. } => {}
                Obstacle::TooSmall { .. } => {
                    first = first.or(Some((*offer, obstacle)));
                }
                Obstacle::Limit
                | Obstacle::LimitForNow
                | Obstacle::Reservation(_)
                | Obstacle::Fixed
                | Obstacle::Withheld(_)
                | Obstacle::Rule(_)
                | Obstacle::Order => return None,
            }
        }
        first.map(|found| self.describe(shape, largest, found).1)
    }

    /// Returns the offers that are not made, with the reason.
    fn not_offered(&self) -> impl Iterator<Item = (&Offer, Obstacle)> {
        let fixed = self.offers.fixed.values().flatten().map(|offer| (offer, Obstacle::Fixed));
        let withheld = self.offers.withheld.iter();
        fixed.chain(withheld.map(|(offer, why)| (offer, Obstacle::Withheld(why.clone()))))
    }

    fn describe(
        &self,
        shape: &PodShape,
        largest: &Largest,
        (offer, obstacle): (&Offer, &Obstacle),
    ) -> (String, String) {
        let pool = &offer.node.pool;
        match obstacle {
            Obstacle::Taint(taint) => (
                "taint".to_owned(),
                format!("pool {pool} has taint {taint}, which the pod does not tolerate"),
            ),
            Obstacle::Label { key, asked } if key == key::ZONE => {
                ("wrong-zone".to_owned(), format!("the pod asks for zone {asked}"))
            }
            Obstacle::Label { key, asked } => (
                "wrong-label".to_owned(),
                format!("the pod asks for {key} {asked}; pool {pool} does not make such nodes"),
            ),
            Obstacle::Volume { place } => ("volume-elsewhere".to_owned(), place.clone()),
            Obstacle::NoTerm => ("wrong-label".to_owned(), no_term(shape)),
            Obstacle::TooSmall { resource } => {
                let largest = largest.get(pool).map_or(0, |room| amount(room, resource));
                let asked = show(resource, amount(&shape.requests, resource));
                let detail = format!(
                    "{resource}: needs {asked}, the largest of pool {pool} leaves {}",
                    show(resource, largest)
                );
                ("too-small".to_owned(), detail)
            }
            Obstacle::Limit => ("limit-reached".to_owned(), self.limit_detail(pool)),
            Obstacle::LimitForNow => (
                "limit-until-applied".to_owned(),
                format!("{} until nodes that this plan removes are gone", self.limit_detail(pool)),
            ),
            Obstacle::Reservation(id) => {
                ("reservation-full".to_owned(), format!("reservation {id} has no machine left"))
            }
            Obstacle::Fixed => (
                "fixed-size".to_owned(),
                format!("pool {pool} has a fixed number of nodes, to which pods add none"),
            ),
            Obstacle::Withheld(why) => (code(why).to_owned(), withheld_text(pool, why)),
            Obstacle::Rule(reason) => {
                let told = rules::told(shape, &offer.node.labels, reason);
                (told.code.to_owned(), told.detail)
            }
            Obstacle::Order => (
                "left-over".to_owned(),
                "it would hold the pod, but kube-scheduler leaves one over in some order of \
                 arrival"
                    .to_owned(),
            ),
        }
    }

    fn limit_detail(&self, pool: &PoolName) -> String {
        let mut limits = groups::limits(self.input.desired, self.input.observed);
        let PoolLimits { resources, nodes } = limits.remove(pool).unwrap_or_default();
        let amounts =
            resources.iter().map(|(name, n)| format!("{name} {}", show(name.as_str(), *n)));
        let nodes = nodes.map(|n| format!("nodes {n}"));
        let list: Vec<String> = amounts.chain(nodes).collect();
        format!("pool {pool} has reached its limits ({})", list.join(", "))
    }

    fn refusals(&self) -> impl Iterator<Item = Rejection> {
        // What is withheld stands among the offers already.
        let told =
            |(_, refusal): &(&PoolName, &PoolRefusal)| !matches!(refusal, PoolRefusal::Withheld(_));
        self.offers.refusals.iter().filter(told).map(|(pool, refusal)| Rejection {
            reason: pools::refusal_code(refusal).to_owned(),
            detail: refusal_text(pool, refusal),
            count: 0,
        })
    }
}

/// Returns, by pool, the most of each resource that a node which is too small leaves to pods.
fn largest<'o>(obstacles: &[(&'o Offer, Obstacle)]) -> Largest<'o> {
    let small = obstacles.iter().filter(|(_, why)| matches!(why, Obstacle::TooSmall { .. }));
    let mut largest = Largest::new();
    for (offer, _) in small {
        let most = largest.entry(&offer.node.pool).or_default();
        *most = most.at_least(&offer.room);
    }
    largest
}

/// Returns what keeps a pod off a node of the offer in any case.
fn obstacle(shape: &PodShape, offer: &Offer) -> Option<Obstacle> {
    obstacles(shape, offer).into_iter().next()
}

/// Returns everything that keeps a pod off a node of the offer in any case, most important first; of
/// labels the first that its first term misses.
fn obstacles(shape: &PodShape, offer: &Offer) -> Vec<Obstacle> {
    let node = &offer.node;
    let mut found = Vec::new();
    if let Some(taint) = untolerated(&node.taints, &shape.tolerations) {
        let taint = format!("{}={}:{:?}", taint.key, taint.value, taint.effect);
        found.push(Obstacle::Taint(taint));
    }
    let labels = &node.labels;
    let reached = |mount: &&Mount| !mount.nodes.iter().any(|place| place.match_labels(labels));
    let is_asked_for = shape.nodes.stated().iter().any(|stated| stated.match_labels(labels));
    match shape.volumes.iter().find(reached).filter(|_| is_asked_for) {
        Some(mount) => found.push(Obstacle::Volume { place: mount.place_text() }),
        None => found.extend(unmatched(shape, labels)),
    }
    // Of several resources that are short, the one that is furthest from enough tells most.
    let shortage = |resource: &String| {
        let (asked, room) = (amount(&shape.requests, resource), amount(&offer.room, resource));
        if room <= 0 { i128::MAX } else { i128::from(asked) * 1000 / i128::from(room) }
    };
    let short = shape.requests.exceeding(&offer.room).into_iter().max_by_key(shortage);
    found.extend(short.map(|resource| Obstacle::TooSmall { resource }));
    found
}

/// Returns a label that a pod asks for otherwise in each of its terms.
fn unmatched(shape: &PodShape, labels: &Labels) -> Option<Obstacle> {
    if shape.nodes.any_of.is_empty() {
        return Some(Obstacle::NoTerm);
    }
    let of_term = |alternative: &Requirements| {
        let key = alternative.unmatched(labels)?;
        let asked = alternative.get(key.as_str()).map(ToString::to_string).unwrap_or_default();
        Some(Obstacle::Label { key: key.to_string(), asked })
    };
    let verdicts: Option<Vec<Obstacle>> = shape.nodes.any_of.iter().map(of_term).collect();
    verdicts?.into_iter().next()
}

/// Returns in a code and in words why one more pod of `shape` does not run on a node.
pub(super) fn kept_off(
    shape: &PodShape,
    node: &ScheduleNode,
    reason: &UnfitReason,
) -> (&'static str, String) {
    match reason {
        UnfitReason::Taint => {
            let taint = untolerated(&node.taints, &shape.tolerations);
            let text = |taint: &Taint| format!("{}={}:{:?}", taint.key, taint.value, taint.effect);
            let taint = taint.map(text).unwrap_or_default();
            ("taint", format!("its taint {taint} is not tolerated"))
        }
        UnfitReason::NodeAffinity => match unmatched(shape, &node.labels) {
            Some(Obstacle::Label { key, asked }) => {
                ("wrong-label", format!("the pod asks for {key} {asked}"))
            }
            _ => ("wrong-label", no_term(shape)),
        },
        UnfitReason::VolumeElsewhere => {
            let is_off =
                |mount: &&Mount| !mount.nodes.iter().any(|place| place.match_labels(&node.labels));
            let mount = shape.volumes.iter().find(is_off);
            ("volume-elsewhere", mount.map_or_else(|| reason.to_string(), Mount::place_text))
        }
        UnfitReason::HostPorts => ("host-port", "another pod binds its host port there".to_owned()),
        UnfitReason::Insufficient(resource) => {
            ("too-small", format!("it is too small for the pod's {resource}"))
        }
        UnfitReason::Unschedulable
        | UnfitReason::NodeName
        | UnfitReason::TooManyPods
        | UnfitReason::VolumeInUse
        | UnfitReason::TooManyVolumes
        | UnfitReason::VolumeNotReady
        | UnfitReason::SpreadKey
        | UnfitReason::Spread
        | UnfitReason::PodAffinity
        | UnfitReason::PodAntiAffinity
        | UnfitReason::ExistingAntiAffinity => {
            let told = rules::told(shape, &node.labels, reason);
            (told.code, told.detail)
        }
    }
}

/// Says why no node meets any term of a pod.
fn no_term(shape: &PodShape) -> String {
    let places: Vec<String> = shape.volumes.iter().map(Mount::place_text).collect();
    match places.as_slice() {
        [_, _, ..] => format!("no node reaches all of its volumes: {}", places.join("; ")),
        _ => "no term of its node affinity can be met by any node".to_owned(),
    }
}

/// Returns an amount as Kubernetes writes it.
fn show(resource: &str, amount: i64) -> String {
    match resource {
        "cpu" => crate::units::MilliCpu(amount).to_string(),
        "memory" | "ephemeral-storage" => crate::units::Bytes(amount).to_string(),
        _ if resource.starts_with("hugepages-") => crate::units::Bytes(amount).to_string(),
        _ => amount.to_string(),
    }
}
