//! Why pods have no place: what ruled out each offer, and the nearest change that would help.

mod pools;
mod rules;

use std::collections::BTreeMap;

pub(super) use pools::refusal_text;
use pools::{code, withheld_text};

use super::Input;
use super::aside::aside;
use super::groups;
use super::limits::amount;
use super::offer::{Offer, Offers, Withheld, pool_requirements};
use super::rescue::Hearing;
use super::target::{Contest, Rejection, Relaxed, Unplaced};
use crate::catalog::{CapacityType, InstanceType, NodeSettings};
use crate::demand::{Mount, PodGroup, PodShape};
use crate::ids::{PoolName, ReservationId};
use crate::manifest::{Desired, PoolLimits};
use crate::pod::untolerated;
use crate::requirement::{Requirements, key};
use crate::schedule::UnfitReason;
use crate::units::Resources;

/// Most reasons that are listed for one group.
const REASONS_MAX: usize = 12;

/// What explains unplaced pods.
pub(super) struct Inquest<'a> {
    pub input: &'a Input<'a>,
    pub offers: &'a Offers,
}

/// The most of each resource that a node of each pool leaves to pods.
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
        let largest = self.largest();
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
                Obstacle::Taint(_) | Obstacle::Label { .. } | Obstacle::Volume { .. } => {}
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

    /// Returns, by pool, the most of each resource that one of its nodes leaves to pods.
    fn largest(&self) -> Largest<'_> {
        let all = self.offers.list.iter().chain(self.not_offered().map(|(offer, _)| offer));
        let mut largest = Largest::new();
        for offer in all {
            let most = largest.entry(&offer.node.pool).or_default();
            *most = most.at_least(&offer.room);
        }
        largest
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
        self.offers.refusals.iter().map(|(pool, refusal)| Rejection {
            reason: "pool-unusable".to_owned(),
            detail: refusal_text(pool, refusal),
            count: 0,
        })
    }

    /// Returns the smallest change that would let the pod be placed, in words.
    fn nearest(&self, shape: &PodShape, obstacles: &[(&Offer, Obstacle)]) -> Option<String> {
        if self.input.desired.pools.is_empty() {
            return Some("declare a NodePool: the repository has none".to_owned());
        }
        if let Some((offer, _)) =
            obstacles.iter().find(|(_, obstacle)| matches!(obstacle, Obstacle::LimitForNow))
        {
            let node = &offer.node;
            return Some(format!(
                "plan again once this plan is applied: the nodes that go leave room for one {} \
                 within the limits of pool {}",
                node.instance_type, node.pool
            ));
        }
        let limited = obstacles.iter().find(|(_, o)| matches!(o, Obstacle::Limit));
        if let Some((offer, _)) = limited {
            let node = &offer.node;
            return Some(format!(
                "raise the limits of pool {} by at least one {} (cpu {}, memory {})",
                node.pool, node.instance_type, node.capacity.cpu, node.capacity.memory
            ));
        }
        let roomy = obstacles.iter().filter(|(offer, _)| shape.requests.fits(&offer.room));
        let by_cost = roomy.min_by_key(|(offer, _)| offer.node.price);
        if let Some((offer, obstacle)) = by_cost {
            let change = match obstacle {
                Obstacle::Taint(taint) => format!("tolerate taint {taint}"),
                Obstacle::Label { key, asked } => {
                    format!(
                        "let pool {} make nodes with {key} {asked}, or drop the wish",
                        offer.node.pool
                    )
                }
                Obstacle::Volume { place } => {
                    format!("let pool {} make nodes there, since {place}", offer.node.pool)
                }
                Obstacle::Fixed => format!("raise `replicas` of pool {}", offer.node.pool),
                Obstacle::Withheld(Withheld::Excluded { until }) => format!("wait until {until}"),
                Obstacle::Withheld(Withheld::TooFewValues(Relaxed { key, .. })) => {
                    format!("lower minValues of {key} in pool {}", offer.node.pool)
                }
                Obstacle::Reservation(id)
                | Obstacle::Withheld(Withheld::UsedUp { reservation: id }) => {
                    format!("enlarge reservation {id}, or let the pool use other capacity")
                }
                Obstacle::Rule(reason) => {
                    return rules::told(shape, &offer.node.labels, reason).remedy;
                }
                Obstacle::TooSmall { .. }
                | Obstacle::Limit
                | Obstacle::LimitForNow
                | Obstacle::Order => return None,
            };
            return Some(format!(
                "{change}: {} at ${}/h would hold it",
                offer.node.instance_type,
                offer.node.price.rounded(4)
            ));
        }
        self.nearest_type(shape)
    }

    /// The type of the region that would hold the pod and breaks the fewest requirements of the
    /// pool; the cheapest of several.
    fn nearest_type(&self, shape: &PodShape) -> Option<String> {
        let (pool, settings) = self.first_pool()?;
        let daemons =
            self.offers.list.first().map(|offer| offer.daemons.clone()).unwrap_or_default();
        let requirements = pool_requirements(&self.input.desired.pools[&pool]);
        let broken = |kind: &InstanceType| -> Vec<String> {
            let of_type = requirements.iter().filter_map(|(key, set)| {
                let value = kind.labels.get(key)?;
                (!set.contains(Some(value))).then(|| format!("{key} {value}, not {set}"))
            });
            of_type.collect()
        };
        let types = self.input.catalog.types.values().filter(|kind| !kind.bare_metal);
        let holding = types.filter_map(|kind| {
            let room = self.input.catalog.allocation(kind, &settings).allocatable.minus(&daemons);
            let on_demand =
                kind.offerings.iter().filter(|o| o.capacity_type == CapacityType::OnDemand);
            let price = on_demand.filter_map(|o| o.price).min()?;
            shape.requests.fits(&room).then(|| (broken(kind), price, kind))
        });
        let best =
            holding.min_by(|a, b| (a.0.len(), a.1, &a.2.name).cmp(&(b.0.len(), b.1, &b.2.name)));
        let Some((broken, price, kind)) = best else {
            return Some(
                "lower the requests: no instance type of the region holds such a pod".to_owned(),
            );
        };
        let why =
            if broken.is_empty() { String::new() } else { format!(" ({})", broken.join("; ")) };
        let (name, price) = (&kind.name, price.rounded(4));
        Some(format!("let pool {pool} use {name}{why}: ${price}/h on demand"))
    }

    fn first_pool(&self) -> Option<(PoolName, NodeSettings)> {
        let desired: &Desired = self.input.desired;
        desired.pools.values().find_map(|pool| {
            let class = desired.node_classes.get(pool.node_class.as_ref()?)?;
            Some((pool.name.clone(), NodeSettings::of(pool, class)))
        })
    }
}

/// Returns what keeps a pod off a node of the offer in any case.
fn obstacle(shape: &PodShape, offer: &Offer) -> Option<Obstacle> {
    let node = &offer.node;
    if let Some(taint) = untolerated(&node.taints, &shape.tolerations) {
        let taint = format!("{}={}:{:?}", taint.key, taint.value, taint.effect);
        return Some(Obstacle::Taint(taint));
    }
    let labels = &node.labels;
    let reached = |mount: &&Mount| !mount.nodes.iter().any(|place| place.match_labels(labels));
    if shape.nodes.stated().iter().any(|stated| stated.match_labels(labels))
        && let Some(mount) = shape.volumes.iter().find(reached)
    {
        return Some(Obstacle::Volume { place: mount.place_text() });
    }
    let unmatched = |alternative: &Requirements| {
        let key = alternative.unmatched(&node.labels)?;
        let asked = alternative.get(key.as_str()).map(ToString::to_string).unwrap_or_default();
        Some(Obstacle::Label { key: key.to_string(), asked })
    };
    let verdicts: Vec<Option<Obstacle>> = shape.nodes.any_of.iter().map(unmatched).collect();
    if verdicts.iter().all(Option::is_some) {
        let first = verdicts.into_iter().flatten().next();
        let impossible =
            Obstacle::Label { key: "node affinity".into(), asked: "impossible".into() };
        return Some(first.unwrap_or(impossible));
    }
    // Of several resources that are short, the one that is furthest from enough tells most.
    let shortage = |resource: &String| {
        let (asked, room) = (amount(&shape.requests, resource), amount(&offer.room, resource));
        if room <= 0 { i128::MAX } else { i128::from(asked) * 1000 / i128::from(room) }
    };
    let short = shape.requests.exceeding(&offer.room).into_iter().max_by_key(shortage);
    short.map(|resource| Obstacle::TooSmall { resource })
}

/// Returns an amount as Kubernetes writes it.
fn show(resource: &str, amount: i64) -> String {
    match resource {
        "cpu" => crate::units::MilliCpu(amount).to_string(),
        "memory" | "ephemeral-storage" => crate::units::Bytes(amount).to_string(),
        _ => amount.to_string(),
    }
}
