//! Explains unschedulable pods: why each offer was rejected, and the smallest change that would
//! help.

mod amounts;
mod pod_rules;
mod pool_candidate;
mod pool_occupants;
mod pool_refusals;
mod raised_limits;
mod suggested_change;

use std::collections::BTreeMap;

pub(super) use amounts::format_amount;
use amounts::format_in_one_unit;
pub(super) use pool_occupants::PoolOccupants;
pub(super) use pool_refusals::refusal_message;
use pool_refusals::{withheld_code, withheld_message};
use raised_limits::LimitNeed;
pub use suggested_change::EXPORT_POOLS;

use super::excluded_pods::{auto_mode_reason, exclusion_reason};
use super::limits::amount;
use super::offer::{Offer, Offers, PoolRefusal, WithheldReason};
use super::rescue::RescueContext;
use super::target_fleet::{Contention, UnschedulablePods};
use suggested_change::UnplacedPods;

use super::{GroupGrowth, Input, auto_scaling_groups};
use crate::demand::{PodGroup, PodShape, PodVolume, Unsupported, queue_reasons};
use crate::model::code::Code;
use crate::model::desired::PoolLimits;
use crate::model::ids::{
    LabelKey, LabelValue, Labels, PoolName, ReservationId, WorkloadId, workload_key,
};
use crate::model::pod::{Taint, all_untolerated, untolerated};
use crate::model::reason::Rejection;
use crate::model::requirement::{LabelSet, Requirements, key};
use crate::scheduler::{ScheduleNode, UnfitReason};

/// Maximum number of reasons listed for one group.
pub(super) const REASONS_MAX: usize = 12;

/// Explains unschedulable pods.
pub(super) struct UnschedulableReport<'a> {
    pub input: &'a Input<'a>,
    pub offers: &'a Offers,
    pub occupants: PoolOccupants,
    pub growths: &'a [GroupGrowth],
}

/// Largest amount of a resource on the nodes of a pool that have too little of it for a pod.
type LargestRoom = BTreeMap<(PoolName, String), i64>;

/// An offer that does not fit a pod.
struct RejectedOffer<'a> {
    /// Index among the available offers; `None` for an unavailable offer.
    at: Option<usize>,
    offer: &'a Offer,
    /// Most important obstacle.
    obstacle: OfferObstacle,
    /// Obstacle that remains once the static ones are removed.
    hidden: Option<OfferObstacle>,
}

/// Reason why an offer does not fit a pod.
enum OfferObstacle {
    Taint(String),
    Label {
        key: String,
        asked: String,
        /// The values that the pod asks for. `None` if it excludes values, or may lack the label.
        values: Option<Vec<LabelValue>>,
    },
    /// Rules of the pod about this label exclude each other.
    Contradiction {
        key: String,
    },
    Volume {
        place: String,
    },
    /// Node affinity and volumes of the pod leave no term that a node could meet.
    NoTerm,
    TooSmall {
        resource: String,
    },
    /// Limits of the pool are reached.
    Limit,
    /// Limits of the pool are reached until nodes that this plan removes are terminated.
    LimitUntilApplied,
    /// The plan uses up its capacity reservation.
    Reservation(ReservationId),
    /// The pool has a fixed number of nodes.
    StaticPool,
    /// The offer is unavailable now.
    Withheld(WithheldReason),
    /// An inter-pod rule.
    Rule(UnfitReason),
    /// The node would fit, but some arrival order leaves a pod unscheduled.
    LeftOver,
}

impl OfferObstacle {
    /// Returns true if the taints or labels of the pool do not admit the pod.
    fn is_declared(&self) -> bool {
        matches!(
            self,
            Self::Taint(_) | Self::Label { .. } | Self::Contradiction { .. } | Self::NoTerm
        )
    }
}

/// Returns the obstacle for a pod on nodes of an offer that admit the pod and have room.
fn scheduler_obstacle(
    context: &mut RescueContext,
    group: usize,
    at: usize,
    offer: &Offer,
) -> OfferObstacle {
    if !context.is_within_limits(at) {
        if context.is_within_limits_once_applied(at) {
            return OfferObstacle::LimitUntilApplied;
        }
        return limit_obstacle(offer);
    }
    context
        .refusal(group, at)
        .into_iter()
        .next()
        .map_or(OfferObstacle::LeftOver, OfferObstacle::Rule)
}

/// Returns the obstacle for an offer that its pool or its reservation has no further node of.
fn limit_obstacle(offer: &Offer) -> OfferObstacle {
    let reservation = offer.node.reservation.clone();
    reservation.map_or(OfferObstacle::Limit, OfferObstacle::Reservation)
}

impl<'a> UnschedulableReport<'a> {
    pub(super) fn new(
        input: &'a Input<'a>,
        offers: &'a Offers,
        occupants: PoolOccupants,
        growths: &'a [GroupGrowth],
    ) -> Self {
        Self { input, offers, occupants, growths }
    }

    /// Returns explanations for all unschedulable groups.
    pub(super) fn explain_all<'h>(
        &self,
        groups: &[PodGroup],
        unplaced: &BTreeMap<usize, u32>,
        context: impl FnOnce() -> RescueContext<'h>,
    ) -> Vec<UnschedulablePods> {
        if unplaced.is_empty() {
            return Vec::new();
        }
        let mut context = context();
        let is_gated = |index: &usize| {
            groups[*index].shape.unsupported.first() == Some(&Unsupported::SchedulingGates)
        };
        let is_any_gated = unplaced.keys().any(is_gated);
        let reasons =
            if is_any_gated { queue_reasons(self.input.observed) } else { BTreeMap::new() };
        let explain = |(index, pods): (&usize, &u32)| {
            self.explain(*index, &groups[*index], *pods, &reasons, &mut context)
        };
        let explained = unplaced.iter().map(explain).collect();
        self.with_shared_limits(explained, &context)
    }

    /// Returns the explanation for `pods` unschedulable pods of a group, and the nodes that only
    /// limits of a pool forbid.
    fn explain(
        &self,
        index: usize,
        group: &PodGroup,
        pods: u32,
        queue_reasons: &BTreeMap<WorkloadId, String>,
        context: &mut RescueContext,
    ) -> (UnschedulablePods, Option<LimitNeed>) {
        let shape = &group.shape;
        let offerings = u32::try_from(self.offers.list.len() + self.unavailable_offers().count())
            .unwrap_or(u32::MAX);
        let excluded = |rejection: Rejection, suggested_change: Option<String>| UnschedulablePods {
            group: index,
            pods,
            rejections: vec![rejection],
            offerings,
            suggested_change,
            contention: Contention::default(),
            oversize: None,
        };
        if let Some(feature) = shape.unsupported.first() {
            let (rejection, nearest) =
                exclusion_reason(*feature, group, self.input, queue_reasons, offerings);
            return (excluded(rejection, nearest), None);
        }
        let mut counts: BTreeMap<(String, String), u32> = BTreeMap::new();
        let rejected = self.rejected_offers(shape, index, context);
        // A pool that could not be read may be the one for these pods.
        if self.offers.refusals.is_empty()
            && rejected.iter().all(|rejected| rejected.obstacle.is_declared())
            && let Some(reason) = auto_mode_reason(shape, self.input, offerings)
        {
            return (excluded(reason, None), None);
        }
        let largest = largest(&rejected);
        let workload = workload_key(&group.workload);
        for RejectedOffer { at, offer, obstacle, .. } in &rejected {
            let mut reason = self.describe(shape, &largest, offer, obstacle);
            if let (OfferObstacle::Limit, Some(at)) = (obstacle, at) {
                let pool = &offer.node.pool;
                let occupants =
                    self.occupants.text(pool, &workload).map_or_else(String::new, |pods| {
                        format!(", and its nodes hold pods that other pools admit: {pods}")
                    });
                let detail = self.limit_detail(pool, &context.limit_shortfall(&[(*at, 1)]));
                reason.1 = format!("{detail}{occupants}");
            }
            *counts.entry(reason).or_insert(0) += 1;
        }
        let mut rejections: Vec<Rejection> = counts
            .into_iter()
            .map(|((reason, detail), count)| Rejection { reason, detail, count })
            .collect();
        rejections.extend(self.pool_rejections());
        rejections.extend(self.skipped_pools());
        rejections.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.cmp(b)));
        rejections.truncate(REASONS_MAX);
        let unplaced = UnplacedPods { shape, index, pods, workload: &workload };
        let (suggested_change, need) = self.suggested_change(&unplaced, &rejected, context);
        let explained = UnschedulablePods {
            group: index,
            pods,
            rejections,
            offerings,
            suggested_change,
            contention: Contention::default(),
            oversize: self.oversize(shape, &largest, &rejected),
        };
        (explained, need)
    }

    /// Returns every offer with its obstacle for the pods.
    fn rejected_offers(
        &self,
        shape: &PodShape,
        index: usize,
        context: &mut RescueContext,
    ) -> Vec<RejectedOffer<'_>> {
        let mut rejected = Vec::with_capacity(self.offers.list.len());
        for (at, offer) in self.offers.list.iter().enumerate() {
            let (obstacle, hidden) = match obstacle(shape, offer) {
                Some(first) => {
                    let hidden = (!context.is_within_limits(at)).then(|| limit_obstacle(offer));
                    (first, hidden)
                }
                None => (scheduler_obstacle(context, index, at, offer), None),
            };
            rejected.push(RejectedOffer { at: Some(at), offer, obstacle, hidden });
        }
        for (offer, last) in self.unavailable_offers() {
            let (obstacle, hidden) = match obstacle(shape, offer) {
                Some(first) => (first, Some(last)),
                None => (last, None),
            };
            rejected.push(RejectedOffer { at: None, offer, obstacle, hidden });
        }
        rejected
    }

    /// Returns the resource in which the pods exceed every node that admits them. `None` if one of
    /// these nodes has room, or no node admits them.
    fn oversize(
        &self,
        shape: &PodShape,
        largest: &LargestRoom,
        rejected: &[RejectedOffer],
    ) -> Option<String> {
        let mut first = None;
        for RejectedOffer { offer, obstacle, .. } in rejected {
            match obstacle {
                OfferObstacle::Taint(_)
                | OfferObstacle::Label { .. }
                | OfferObstacle::Contradiction { .. }
                | OfferObstacle::NoTerm
                | OfferObstacle::Volume { .. } => {}
                OfferObstacle::TooSmall { .. } => {
                    first = first.or(Some((*offer, obstacle)));
                }
                OfferObstacle::Limit
                | OfferObstacle::LimitUntilApplied
                | OfferObstacle::Reservation(_)
                | OfferObstacle::StaticPool
                | OfferObstacle::Withheld(_)
                | OfferObstacle::Rule(_)
                | OfferObstacle::LeftOver => return None,
            }
        }
        first.map(|(offer, obstacle)| self.describe(shape, largest, offer, obstacle).1)
    }

    /// Returns the unavailable offers, with the reason.
    fn unavailable_offers(&self) -> impl Iterator<Item = (&Offer, OfferObstacle)> {
        let fixed = self
            .offers
            .static_pools
            .values()
            .flatten()
            .map(|offer| (offer, OfferObstacle::StaticPool));
        let withheld = self.offers.withheld.iter();
        fixed.chain(withheld.map(|(offer, why)| (offer, OfferObstacle::Withheld(why.clone()))))
    }

    fn describe(
        &self,
        shape: &PodShape,
        largest: &LargestRoom,
        offer: &Offer,
        obstacle: &OfferObstacle,
    ) -> (String, String) {
        let pool = &offer.node.pool;
        match obstacle {
            OfferObstacle::Taint(taint) => (
                Code::Taint.to_string(),
                format!("pool {pool} has taint {taint}, which the pod does not tolerate"),
            ),
            OfferObstacle::Label { key, asked, .. } if key == key::ZONE => {
                (Code::WrongZone.to_string(), format!("the pod asks for zone {asked}"))
            }
            OfferObstacle::Label { key, asked, .. } => (
                Code::WrongLabel.to_string(),
                format!("the pod asks for {key} {asked}; pool {pool} does not make such nodes"),
            ),
            OfferObstacle::Contradiction { key } => {
                (Code::WrongLabel.to_string(), contradiction_message(key))
            }
            OfferObstacle::Volume { place } => (Code::VolumeElsewhere.to_string(), place.clone()),
            OfferObstacle::NoTerm => (Code::WrongLabel.to_string(), no_term_message(shape)),
            OfferObstacle::TooSmall { resource } => {
                let of_nodes = (pool.clone(), resource.clone());
                let largest = largest.get(&of_nodes).copied().unwrap_or_default();
                let asked = amount(&shape.requests, resource);
                let [asked, largest] = format_in_one_unit(resource, [asked, largest]);
                let detail = format!(
                    "{resource}: needs {asked}, these nodes of pool {pool} leave at most {largest}"
                );
                (Code::TooSmall.to_string(), detail)
            }
            OfferObstacle::Limit => (Code::LimitReached.to_string(), self.limit_detail(pool, &[])),
            OfferObstacle::LimitUntilApplied => (
                Code::LimitUntilApplied.to_string(),
                format!(
                    "{} until nodes that this plan removes are terminated",
                    self.limit_detail(pool, &[])
                ),
            ),
            OfferObstacle::Reservation(id) => (
                Code::ReservationFull.to_string(),
                format!("reservation {id} has no instance left"),
            ),
            OfferObstacle::StaticPool => (
                Code::FixedSize.to_string(),
                format!("pool {pool} has a fixed number of nodes, and pods cannot add any"),
            ),
            OfferObstacle::Withheld(why) => {
                (withheld_code(why).to_string(), withheld_message(pool, why))
            }
            OfferObstacle::Rule(reason) => {
                let rule = pod_rules::explain_rule(shape, &offer.node.labels, reason);
                (rule.code.to_owned(), rule.detail)
            }
            OfferObstacle::LeftOver => (
                Code::LeftOver.to_string(),
                "the node would fit, but kube-scheduler leaves a pod unscheduled in some \
                 arrival order"
                    .to_owned(),
            ),
        }
    }

    /// Returns the limits of a pool that a further node would exceed; all limits if `lacking` is
    /// empty.
    fn limit_detail(&self, pool: &PoolName, lacking: &[(String, i64)]) -> String {
        let PoolLimits { resources, nodes } = self.pool_limits(pool);
        let is_reached =
            |name: &str| lacking.is_empty() || lacking.iter().any(|(lacking, _)| lacking == name);
        let nodes = nodes.filter(|_| is_reached("nodes"));
        let amounts = resources
            .iter()
            .filter(|(name, _)| is_reached(name.as_str()))
            .map(|(name, n)| format!("{name} {}", format_amount(name.as_str(), *n)));
        let nodes = nodes.map(|n| format!("nodes {n}"));
        let list: Vec<String> = amounts.chain(nodes).collect();
        format!("pool {pool} has reached its limits ({})", list.join(", "))
    }

    fn pool_limits(&self, pool: &PoolName) -> PoolLimits {
        let mut limits = auto_scaling_groups::pool_limits(self.input.desired, self.input.observed);
        limits.remove(pool).unwrap_or_default()
    }

    /// Returns a rejection for the pools that make no offers; see `candidate_pools`.
    fn skipped_pools(&self) -> Option<Rejection> {
        let count = self.offers.skipped_pools;
        (count > 0).then(|| Rejection {
            reason: Code::Unfit.to_string(),
            detail: format!(
                "{count} further pools have taints or labels that no pod admits, or equal a pool above"
            ),
            count: 0,
        })
    }

    fn pool_rejections(&self) -> impl Iterator<Item = Rejection> {
        // Withheld offers are already listed among the offers.
        let rule =
            |(_, refusal): &(&PoolName, &PoolRefusal)| !matches!(refusal, PoolRefusal::Withheld(_));
        self.offers.refusals.iter().filter(rule).map(|(pool, refusal)| Rejection {
            reason: pool_refusals::refusal_code(refusal).to_string(),
            detail: refusal_message(pool, refusal),
            count: 0,
        })
    }
}

/// Returns the largest amount of each resource on the nodes that are too small in it, by pool.
/// Nodes with another obstacle may have more of it.
fn largest(rejected: &[RejectedOffer]) -> LargestRoom {
    let mut largest = LargestRoom::new();
    for RejectedOffer { offer, obstacle, .. } in rejected {
        let OfferObstacle::TooSmall { resource } = obstacle else { continue };
        let most = largest.entry((offer.node.pool.clone(), resource.clone())).or_default();
        *most = (*most).max(amount(&offer.room, resource));
    }
    largest
}

/// Returns the first static obstacle for a pod on a node of the offer.
fn obstacle(shape: &PodShape, offer: &Offer) -> Option<OfferObstacle> {
    obstacles(shape, offer).into_iter().next()
}

/// Returns all static obstacles for a pod on a node of the offer, most important first. Of labels
/// it returns those of the term that misses the fewest.
fn obstacles(shape: &PodShape, offer: &Offer) -> Vec<OfferObstacle> {
    let node = &offer.node;
    let mut found = Vec::new();
    for taint in all_untolerated(&node.taints, &shape.tolerations) {
        let taint = format!("{}={}:{:?}", taint.key, taint.value, taint.effect);
        found.push(OfferObstacle::Taint(taint));
    }
    let labels = &node.labels;
    let reached =
        |mount: &&PodVolume| !mount.nodes.iter().any(|place| place.matches_labels(labels));
    let is_asked_for = shape.nodes.stated().iter().any(|stated| stated.matches_labels(labels));
    match shape.volumes.iter().find(reached).filter(|_| is_asked_for) {
        Some(mount) => found.push(OfferObstacle::Volume { place: mount.topology_text() }),
        None => found.extend(unmatched_labels(shape, labels)),
    }
    // Of several short resources, the one with the largest shortage is the most useful.
    let shortage = |resource: &String| {
        let (asked, room) = (amount(&shape.requests, resource), amount(&offer.room, resource));
        if room <= 0 { i128::MAX } else { i128::from(asked) * 1000 / i128::from(room) }
    };
    let short = shape.requests.exceeding(&offer.room).into_iter().max_by_key(shortage);
    found.extend(short.map(|resource| OfferObstacle::TooSmall { resource }));
    found
}

/// Returns the label mismatches of the term with the fewest; none if a term has none.
fn unmatched_labels<'a>(shape: &'a PodShape, labels: &'a Labels) -> Vec<OfferObstacle> {
    let missed =
        |term: &'a Requirements| term.iter().filter(|(key, set)| !set.contains(labels.get(*key)));
    let Some(nearest) = shape.nodes.any_of.iter().min_by_key(|term| missed(term).count()) else {
        return vec![OfferObstacle::NoTerm];
    };
    let obstacle = |(key, set): (&LabelKey, &LabelSet)| {
        if set.is_empty() {
            return OfferObstacle::Contradiction { key: key.to_string() };
        }
        OfferObstacle::Label {
            key: key.to_string(),
            asked: set.to_string(),
            values: set.values().finite(1).filter(|_| !set.allows_absence()),
        }
    };
    missed(nearest).map(obstacle).collect()
}

/// Returns the code and the description of the reason why one more pod of `shape` does not fit a
/// node.
pub(super) fn explain_unfit(
    shape: &PodShape,
    node: &ScheduleNode,
    reason: &UnfitReason,
) -> (&'static str, String) {
    match reason {
        UnfitReason::Taint => {
            let taint = untolerated(&node.taints, &shape.tolerations);
            let text = |taint: &Taint| format!("{}={}:{:?}", taint.key, taint.value, taint.effect);
            let taint = taint.map(text).unwrap_or_default();
            (Code::Taint.as_str(), format!("its taint {taint} is not tolerated"))
        }
        UnfitReason::NodeAffinity => match unmatched_labels(shape, &node.labels).into_iter().next()
        {
            Some(OfferObstacle::Label { key, asked, .. }) => {
                (Code::WrongLabel.as_str(), format!("the pod asks for {key} {asked}"))
            }
            Some(OfferObstacle::Contradiction { key }) => {
                (Code::WrongLabel.as_str(), contradiction_message(&key))
            }
            _ => (Code::WrongLabel.as_str(), no_term_message(shape)),
        },
        UnfitReason::VolumeElsewhere => {
            let is_off = |mount: &&PodVolume| {
                !mount.nodes.iter().any(|place| place.matches_labels(&node.labels))
            };
            let mount = shape.volumes.iter().find(is_off);
            (
                Code::VolumeElsewhere.as_str(),
                mount.map_or_else(|| reason.to_string(), PodVolume::topology_text),
            )
        }
        UnfitReason::HostPorts => {
            (Code::HostPort.as_str(), "another pod binds its host port there".to_owned())
        }
        UnfitReason::Insufficient(resource) => {
            (Code::TooSmall.as_str(), format!("it is too small for the pod's {resource}"))
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
            let rule = pod_rules::explain_rule(shape, &node.labels, reason);
            (rule.code, rule.detail)
        }
    }
}

fn contradiction_message(key: &str) -> String {
    format!("the rules of the pod about {key} exclude each other, so that no node meets them")
}

/// Returns the correction of rules about a label that exclude each other.
fn contradiction_remedy(key: &str) -> String {
    format!(
        "keep one of the pod's rules about {key}: its nodeSelector, its node affinity or its \
         RuntimeClass"
    )
}

fn no_term_message(shape: &PodShape) -> String {
    let places: Vec<String> = shape.volumes.iter().map(PodVolume::topology_text).collect();
    match places.as_slice() {
        [_, _, ..] => format!("no node reaches all of its volumes: {}", places.join("; ")),
        _ => "no term of its node affinity can be met by any node".to_owned(),
    }
}
