//! What every node of a pool has in common, and the offers that follow from it.

use std::collections::{BTreeMap, BTreeSet};

use super::drift;
use super::groups::{self, Open};
use super::offer::{
    Offer, PoolRefusal, Stock, Supply, Withheld, daemon_requests, pool_requirements,
};
use super::target::NewNode;
use crate::catalog::{Allocation, CapacityType, InstanceType, NodeSettings, Offering, Overlays};
use crate::demand::{Daemon, PodShape};
use crate::fleet::{MatchCriteria, Reservation};
use crate::ids::{LabelKey, LabelValue, Labels};
use crate::manifest::{AmiFamily, Generation, NodeClass, Pool, ReservationTerm};
use crate::pod::{TopologySpread, WhenUnsatisfiable};
use crate::requirement::{LabelSet, Requirements, is_well_known, key, label};
use crate::units::{MicroUsd, Resources};

/// Most combinations of custom label values that one offering is split into so that pods which name
/// different labels can share nodes; above it, only the combinations that one pod names by itself.
const SPLITS_MAX: usize = 64;

/// Most combinations of custom label values in any case. Pods that ask for further ones have no place,
/// with that reason.
const COMBINATIONS_MAX: usize = 1_024;

/// Most offers of one pool, beyond what [`SPLITS_MAX`] combinations make: a pool of all types in three
/// zones has some 3,600 ways to buy a node, and each offer takes about 2 kB.
const OFFERS_MAX: usize = 400_000;

/// Most values of a custom label that pods can be spread over.
const DOMAINS_MAX: usize = 64;

/// Most values that a pod's wish names, for each of which an offer is made.
const NAMED_MAX: u64 = 64;

/// Most values that a pool lists for each of which an offer is made, where a pod's wish names none, as
/// `Exists`, `NotIn` and `Gt` do.
const LISTED_MAX: u64 = 8;

/// More values of a label than any pool lists.
const VALUES_MAX: u64 = 1 << 16;

/// What every node of a pool has in common.
pub(super) struct Template<'a> {
    supply: &'a Supply<'a>,
    pool: &'a Pool,
    class: &'a NodeClass,
    overlays: Overlays<'a>,
    settings: NodeSettings,
    requirements: Requirements,
    labels: Labels,
    spec_digest: String,
    /// The type that a member of a group is at least, and what is not known of it.
    group: Option<(&'a InstanceType, Open)>,
}

/// One way to buy a machine of a type.
struct Way<'a> {
    offering: Offering,
    reservation: Option<&'a Reservation>,
}

impl<'a> Template<'a> {
    /// Returns the template of `pool`, or why it makes no nodes.
    pub(super) fn of(pool: &'a Pool, supply: &'a Supply<'a>) -> Result<Self, PoolRefusal> {
        let class = pool.node_class.as_ref().and_then(|n| supply.desired.node_classes.get(n));
        let class = class.ok_or(PoolRefusal::NoNodeClass)?;
        let unreadable = |what: String, field: &Option<String>| {
            field.as_ref().map(|field| PoolRefusal::Unreadable { what, field: field.clone() })
        };
        let refusal = unreadable(format!("pool {}", pool.name), &pool.unreadable);
        let refusal =
            refusal.or_else(|| unreadable(format!("node class {}", class.name), &class.unreadable));
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        let settings = NodeSettings::of(pool, class);
        let group = Self::group_of(pool, supply, &settings)?;
        let mut labels = pool.labels.clone();
        labels.extend([label(key::REGION, supply.catalog.region.as_str())]);
        let own = [
            label(key::NODE_CLASS, class.name.as_str()),
            label(key::NODEPOOL, pool.name.as_str()),
            label("karpenter.sh/registered", "true"),
            label("karpenter.sh/initialized", "true"),
        ];
        labels.extend(own.into_iter().filter(|_| group.is_none()));
        if pool.generation == Generation::V1alpha5 {
            labels.extend([label(key::PROVISIONER, pool.name.as_str())]);
        }
        Ok(Self {
            supply,
            pool,
            class,
            overlays: Overlays::of(supply.desired),
            settings,
            group,
            requirements: pool_requirements(pool),
            labels,
            spec_digest: drift::spec_digest(pool, class),
        })
    }

    /// Returns what the next member of a group is at least; `None` where the pool is no group.
    fn group_of(
        pool: &Pool,
        supply: &'a Supply<'a>,
        settings: &NodeSettings,
    ) -> Result<Option<(&'a InstanceType, Open)>, PoolRefusal> {
        let Some(group) = supply.desired.node_groups.get(&pool.name) else { return Ok(None) };
        let refusal = |why: String| PoolRefusal::Group { why };
        if let Some(why) = groups::observed_only(group, supply.desired, supply.observed) {
            return Err(refusal(why));
        }
        let least = groups::guarantee(pool, &group.types, supply.catalog, settings);
        let zones = match group.zones.len() {
            0 => supply.catalog.zones.len(),
            n => n,
        };
        Ok(Some((least.map_err(refusal)?, groups::open(&group.types, zones))))
    }

    /// Leaves of a group's offers one for what its next member is at least, with what is certain of
    /// it.
    fn certain(&self, stock: &mut Stock, daemons: &[Daemon]) {
        let Some((kind, open)) = self.group else { return };
        let Stock { offers, withheld, unpriced, .. } = stock;
        let withheld = withheld.iter_mut().map(|(offer, _)| offer);
        for offer in offers.iter_mut().chain(withheld).chain(unpriced) {
            offer.node.labels.retain(|label, _| {
                let name = label.as_str();
                let of_zone = name == key::ZONE || name == key::ZONE_ID;
                let unknown = open.zone && of_zone || open.kind && name == key::INSTANCE_TYPE;
                !unknown && !groups::is_karpenters(name)
            });
            *offer = with_room(offer.clone(), daemons);
        }
        stock.offers.retain(|offer| offer.node.instance_type == kind.name);
        if open.zone {
            stock.offers.truncate(1);
        }
    }

    /// Returns every offer of the pool; `asked` holds the label values that pods ask for.
    pub(super) fn stock(&self, asked: &Asked, daemons: &[Daemon]) -> Stock {
        let kinds: Vec<_> = self.kinds().collect();
        let ways = kinds.iter().map(|kind| kind.offerings.len()).sum::<usize>();
        let most = (OFFERS_MAX / ways.max(1)).clamp(SPLITS_MAX, COMBINATIONS_MAX);
        let Splits { list: splits, is_cut } = self.splits(asked, most);
        let mut stock = Stock { is_cut, ..Stock::default() };
        for kind in kinds {
            let amounts = self.supply.catalog.allocation(kind, &self.settings);
            for way in self.ways(kind) {
                for (offer, is_priced) in self.offers(kind, &way, &amounts, &splits) {
                    let offer = with_room(offer, daemons);
                    if !is_priced {
                        stock.unpriced.push(offer);
                        continue;
                    }
                    match self.withheld(kind, &way) {
                        Some(why) => stock.withheld.push((offer, why)),
                        None => stock.offers.push(offer),
                    }
                }
            }
        }
        self.certain(&mut stock, daemons);
        stock
    }

    /// Returns the types that the pool may be made of.
    fn kinds(&self) -> impl Iterator<Item = &'a InstanceType> {
        self.supply.catalog.types.values().filter(|kind| {
            let of_type = |key: &LabelKey| {
                kind.labels.contains_key(key) || key.as_str().starts_with(key::INSTANCE_PREFIX)
            };
            self.admits(&self.type_labels(kind), of_type)
        })
    }

    fn type_labels(&self, kind: &InstanceType) -> Labels {
        let mut labels = self.labels.clone();
        labels.extend(kind.labels.iter().map(|(k, v)| (k.clone(), v.clone())));
        if self.class.ami_family == AmiFamily::Windows {
            labels.extend([label(key::OS, "windows")]);
        }
        labels
    }

    /// Returns whether `labels` meet every requirement whose key is decided by now.
    fn admits(&self, labels: &Labels, decided: impl Fn(&LabelKey) -> bool) -> bool {
        self.requirements.iter().all(|(key, set)| {
            let open = !decided(key) && !self.labels.contains_key(key);
            open || set.contains(labels.get(key))
        })
    }

    /// Returns the ways to buy a type: what the catalogue lists, and the reservations that the node
    /// class selects.
    fn ways(&self, kind: &InstanceType) -> Vec<Way<'a>> {
        let listed = kind.offerings.iter().cloned();
        let listed = listed.map(|offering| Way { offering, reservation: None });
        let reservations = self.supply.observed.reservations.values().filter(|reservation| {
            reservation.instance_type == kind.name
                && reservation.is_open(self.supply.at)
                && self.class.reservations.iter().any(|term| selects(term, reservation))
        });
        let reserved = reservations.filter_map(|reservation| {
            let zones = &self.supply.catalog.zones;
            let zone = zones.iter().find(|zone| zone.name == reservation.zone)?;
            let offering = Offering {
                zone: zone.name.clone(),
                zone_id: zone.id.clone(),
                capacity_type: CapacityType::Reserved,
                price: Some(MicroUsd::ZERO),
                estimated: false,
            };
            Some(Way { offering, reservation: Some(reservation) })
        });
        listed.chain(reserved).collect()
    }

    /// Returns why a way cannot be used now.
    fn withheld(&self, kind: &InstanceType, way: &Way<'_>) -> Option<Withheld> {
        if let Some(reservation) = way.reservation.filter(|found| found.available == 0) {
            return Some(Withheld::UsedUp { reservation: reservation.id.clone() });
        }
        let Offering { zone, capacity_type, price, estimated, .. } = &way.offering;
        let group = self.supply.desired.node_groups.get(&self.pool.name);
        let most = group.and_then(|group| group.max_spot_price);
        // A price that stands in for one that is not known tells nothing.
        let spot = price.filter(|_| *capacity_type == CapacityType::Spot && !estimated);
        if let Some((price, most)) = spot.zip(most).filter(|(price, most)| price > most) {
            return Some(Withheld::TooDear { price, most });
        }
        let Supply { observed, at, .. } = self.supply;
        let exclusions = observed.exclusions.iter();
        let covering = exclusions.filter(|e| e.covers(*at, &kind.name, zone, *capacity_type));
        covering.map(|exclusion| exclusion.until).max().map(|until| Withheld::Excluded { until })
    }

    /// Returns the combinations of custom labels that its nodes can have, given what pods ask for;
    /// `most` of them.
    ///
    /// A label whose value the pool decides has one state. One that the pool leaves open is split:
    /// each value some pod asks for, each that pods can be spread over, and one further state for the
    /// rest.
    fn splits(&self, asked: &Asked, most: usize) -> Splits {
        let open: Vec<_> = open(&self.requirements, &self.labels).collect();
        let of_key = |(key, set): &(&LabelKey, &LabelSet)| asked.domains(key, set).is_cut;
        let is_cut = open.iter().any(of_key);
        let any = |key: &LabelKey, set: &LabelSet| {
            let mut wanted = asked.domains(key, set).values;
            wanted.extend(asked.of_any(key).flat_map(|wish| values_within(wish, set)));
            states(set, &wanted)
        };
        let all = product(open.iter().map(|(key, set)| (*key, any(key, set))), SPLITS_MAX + 1);
        if all.len() <= SPLITS_MAX {
            return Splits { list: all, is_cut };
        }
        let mut found: BTreeSet<Labels> = BTreeSet::new();
        let none = BTreeMap::new();
        for alternative in std::iter::once(&none).chain(&asked.alternatives) {
            let of_key = |(key, set): &(&LabelKey, &LabelSet)| match alternative.get(*key) {
                Some(wish) => states(set, &values_within(wish, set)),
                None => states(set, &asked.domains(key, set).values),
            };
            let keys = open.iter().map(|key| (key.0, of_key(key)));
            found.extend(product(keys, most + 1));
            if found.len() > most {
                break;
            }
        }
        let is_cut = is_cut || found.len() > most;
        Splits { list: found.into_iter().take(most).collect(), is_cut }
    }

    fn offers(
        &self,
        kind: &InstanceType,
        way: &Way<'_>,
        amounts: &Allocation,
        splits: &[Labels],
    ) -> Vec<(Offer, bool)> {
        let Offering { zone, zone_id, capacity_type, .. } = &way.offering;
        let mut labels = self.type_labels(kind);
        labels.extend([
            label(key::ZONE, zone.as_str()),
            label(key::ZONE_ID, zone_id.as_str()),
            label(key::CAPACITY_TYPE, capacity_type.as_str()),
        ]);
        labels.extend(way.reservation.into_iter().flat_map(reservation_labels));
        // Only what the image decides is left open: the build of Windows.
        let known =
            |key: &LabelKey| is_well_known(key.as_str()) && key.as_str() != key::WINDOWS_BUILD;
        if !self.admits(&labels, known) {
            return Vec::new();
        }
        let with = |split: &Labels| {
            let mut labels = labels.clone();
            labels.extend(split.iter().map(|(k, v)| (k.clone(), v.clone())));
            self.offer(kind, way, amounts, (labels, split))
        };
        splits.iter().map(with).collect()
    }

    /// Returns the offer of a node with these labels, and whether its price is known; where it is not, it
    /// says 0.
    fn offer(
        &self,
        kind: &InstanceType,
        way: &Way<'_>,
        amounts: &Allocation,
        (labels, split): (Labels, &Labels),
    ) -> (Offer, bool) {
        let Offering { zone, zone_id, capacity_type, price, estimated: _ } = &way.offering;
        let estimated = way.offering.is_estimate_for(&labels);
        let overlaid = self.overlays.overlaid(&labels, *price);
        let mut amounts = amounts.clone();
        overlaid.extend(&mut amounts);
        let node = NewNode {
            pool: self.pool.name.clone(),
            node_class: self.class.name.clone(),
            instance_type: kind.name.clone(),
            zone: zone.clone(),
            zone_id: zone_id.clone(),
            capacity_type: *capacity_type,
            image: self.class.image.clone(),
            labels,
            taints: self.pool.taints.clone(),
            startup_taints: self.pool.startup_taints.clone(),
            capacity: amounts.capacity,
            allocatable: amounts.allocatable,
            price: overlaid.price.unwrap_or(MicroUsd::ZERO),
            price_estimated: estimated && overlaid.price == *price,
            spec_digest: self.spec_digest.clone(),
            reservation: way.reservation.map(|reservation| reservation.id.clone()),
            open_labels: split.keys().cloned().collect(),
            overlays: overlaid.names,
            relaxed: Vec::new(),
            alternatives: Vec::new(),
        };
        let weight = self.pool.weight;
        let exotic = kind.bare_metal || kind.has_accelerator;
        let (daemons, room) = (Resources::default(), Resources::default());
        (Offer { node, weight, daemons, room, exotic }, overlaid.price.is_some())
    }
}

fn with_room(mut offer: Offer, daemons: &[Daemon]) -> Offer {
    offer.daemons = daemon_requests(daemons, &offer.node.labels, &offer.node.taints);
    offer.room = offer.node.allocatable.minus(&offer.daemons);
    offer
}

/// Returns the labels that a node has from the reservation it runs in.
fn reservation_labels(reservation: &Reservation) -> [(LabelKey, LabelValue); 3] {
    let interruptible = if reservation.interruptible { "true" } else { "false" };
    [
        label(key::RESERVATION_ID, reservation.id.as_str()),
        label(key::RESERVATION_TYPE, reservation.kind.as_str()),
        label(key::RESERVATION_INTERRUPTIBLE, interruptible),
    ]
}

/// Returns whether `term` selects `reservation`: all that it states holds.
fn selects(term: &ReservationTerm, reservation: &Reservation) -> bool {
    let ReservationTerm { id, tags, owner, targeted } = term;
    let is_targeted = reservation.match_criteria == MatchCriteria::Targeted;
    let tagged = |(key, value): (&String, &String)| {
        reservation.tags.get(key).is_some_and(|held| value == "*" || held == value)
    };
    id.as_ref().is_none_or(|id| id == reservation.id.as_str())
        && owner.as_ref().is_none_or(|owner| *owner == reservation.owner)
        && targeted.is_none_or(|targeted| targeted == is_targeted)
        && tags.iter().all(tagged)
}

/// Returns the custom labels that a pool leaves open.
pub(super) fn open<'r>(
    requirements: &'r Requirements,
    decided: &'r Labels,
) -> impl Iterator<Item = (&'r LabelKey, &'r LabelSet)> {
    let requirements = requirements.iter();
    requirements.filter(|(key, _)| !is_well_known(key.as_str()) && !decided.contains_key(*key))
}

/// The states to make offers for, of a label that the pool leaves open and some pods want.
fn states(set: &LabelSet, wanted: &BTreeSet<LabelValue>) -> Vec<Option<LabelValue>> {
    let mut states: Vec<Option<LabelValue>> = wanted.iter().cloned().map(Some).collect();
    if set.allows_absence() {
        states.push(None);
    } else if states.is_empty() {
        states.extend(set.values().any().map(Some));
    }
    states
}

/// Returns the combinations of the states of keys, the first `most` of them.
fn product<'k>(
    keys: impl Iterator<Item = (&'k LabelKey, Vec<Option<LabelValue>>)>,
    most: usize,
) -> Vec<Labels> {
    keys.fold(vec![Labels::new()], |combined, (key, states)| {
        let combine = |base: &Labels, state: &Option<LabelValue>| {
            let mut labels = base.clone();
            labels.extend(state.iter().map(|value| (key.clone(), value.clone())));
            labels
        };
        let all = combined.iter().flat_map(|base| states.iter().map(move |s| combine(base, s)));
        all.take(most).collect()
    })
}

/// What pods ask of labels that are not well known.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// What each alternative of some pod's nodes asks of each key.
    alternatives: BTreeSet<BTreeMap<LabelKey, LabelSet>>,
    /// Keys whose values are domains: pods are spread over them, kept together or apart.
    topologies: BTreeSet<LabelKey>,
}

impl Asked {
    /// Returns what the pods of these shapes ask for.
    pub(super) fn of<'a>(shapes: impl IntoIterator<Item = &'a PodShape>) -> Self {
        let mut asked = Self::default();
        for shape in shapes {
            for alternative in &shape.nodes.any_of {
                let custom = alternative.iter().filter(|(key, _)| !is_well_known(key.as_str()));
                let wishes: BTreeMap<_, _> =
                    custom.map(|(key, set)| (key.clone(), set.clone())).collect();
                if !wishes.is_empty() {
                    asked.alternatives.insert(wishes);
                }
            }
            let terms = shape.affinity.required.iter().chain(&shape.anti_affinity.required);
            let hard = |rule: &&TopologySpread| {
                rule.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule
            };
            let spread = shape.spread.iter().filter(hard).map(|rule| &rule.topology_key);
            let keys = terms.map(|term| &term.topology_key).chain(spread);
            asked.topologies.extend(keys.filter(|key| !is_well_known(key.as_str())).cloned());
        }
        asked
    }

    /// Returns what pods ask of `key`.
    fn of_any(&self, key: &LabelKey) -> impl Iterator<Item = &LabelSet> {
        self.alternatives.iter().filter_map(|wishes| wishes.get(key))
    }

    /// Returns the values of `set` that are domains of some pod. A pool that takes any value but a
    /// few names no domain itself.
    fn domains(&self, key: &LabelKey, set: &LabelSet) -> Domains {
        let is_topology = self.topologies.contains(key);
        let values = is_topology.then(|| set.values().finite(VALUES_MAX)).flatten();
        let values = values.unwrap_or_default();
        let is_cut = values.len() > DOMAINS_MAX;
        Domains { values: values.into_iter().take(DOMAINS_MAX).collect(), is_cut }
    }
}

/// Values of a label that are domains.
struct Domains {
    values: BTreeSet<LabelValue>,
    /// Whether there are more.
    is_cut: bool,
}

/// Combinations of the values of labels.
struct Splits {
    list: Vec<Labels>,
    /// Whether pods ask for more.
    is_cut: bool,
}

/// Returns the values of a pool that meet a pod's wish: those that the wish names, those that the pool
/// lists, where they are few, or one of them.
fn values_within(wish: &LabelSet, of_pool: &LabelSet) -> BTreeSet<LabelValue> {
    let both = wish.values().intersect(of_pool.values());
    let most = if wish.values().finite(NAMED_MAX).is_some() { NAMED_MAX } else { LISTED_MAX };
    let values = both.finite(most);
    values.unwrap_or_else(|| both.any().into_iter().collect()).into_iter().collect()
}
