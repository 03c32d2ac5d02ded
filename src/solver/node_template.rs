//! Common properties of all nodes of a pool, and the offers derived from them.

use std::collections::{BTreeMap, BTreeSet};

use super::auto_scaling_groups::{self, GroupGuarantee, OptionPrice, UnknownAttributes};
use super::offer::{
    Offer, OfferInput, PoolOffers, PoolRefusal, WithheldReason, daemon_requests, pool_requirements,
};
use super::reserved_pools::selects;
use super::target_fleet::NewNode;
use super::{daemon_sets, drift};
use crate::catalog::{Allocation, InstanceType, NodeSettings, Offering, Overlays};
use crate::demand::{Daemon, PodShape};
use crate::model::desired::{AmiFamily, Generation, NodeClass, NodeGroup, Pool};
use crate::model::ids::{LabelKey, LabelValue, Labels};
use crate::model::market::CapacityType;
use crate::model::observed::Reservation;
use crate::model::pod::{TopologySpread, WhenUnsatisfiable};
use crate::model::requirement::{LabelSet, Requirements, is_well_known, key, label};
use crate::model::units::{MicroUsd, Resources};

/// Maximum number of custom label combinations per offering that also serve pods with different
/// labels. Above it, only the combinations of single pods are used.
const SHARED_COMBINATIONS_MAX: usize = 64;

/// Absolute maximum number of custom label combinations. Pods that request more are unschedulable,
/// with that reason.
const COMBINATIONS_MAX: usize = 1_024;

/// Maximum number of offers of one pool, beyond [`SHARED_COMBINATIONS_MAX`] combinations. A pool of
/// all types in three zones has about 3,600 purchase options, and each offer takes about 2 kB.
const OFFERS_MAX: usize = 400_000;

/// Maximum number of values of a custom label that pods can be spread over.
const TOPOLOGY_VALUES_MAX: usize = 64;

/// Maximum number of values named by a pod that each get an offer.
const NAMED_VALUES_MAX: u64 = 64;

/// Maximum number of values listed by a pool that each get an offer, if the pod names none
/// (`Exists`, `NotIn`, `Gt`).
const LISTED_VALUES_MAX: u64 = 8;

/// More values than any pool lists for a label.
const VALUES_MAX: u64 = 1 << 16;

/// Common properties of all nodes of a pool.
pub(super) struct NodeTemplate<'a> {
    supply: &'a OfferInput<'a>,
    pool: &'a Pool,
    class: &'a NodeClass,
    overlays: Overlays<'a>,
    settings: NodeSettings,
    requirements: Requirements,
    labels: Labels,
    spec_digest: String,
    /// For a group: what its next member has at least, and its unknown attributes.
    group: Option<(GroupGuarantee<'a>, UnknownAttributes)>,
}

/// One way to buy an instance of a type.
struct PurchaseOption<'a> {
    offering: Offering,
    reservation: Option<&'a Reservation>,
}

impl<'a> NodeTemplate<'a> {
    /// Returns the template of `pool`, or the reason why the pool cannot launch nodes.
    pub(super) fn new(pool: &'a Pool, supply: &'a OfferInput<'a>) -> Result<Self, PoolRefusal> {
        let template = Self::of_any_group(pool, supply);
        let (desired, observed) = (supply.desired, supply.observed);
        let observe_only =
            |group| auto_scaling_groups::observe_only_reason(group, desired, observed);
        match desired.node_groups.get(&pool.name).and_then(observe_only) {
            Some(why) if matches!(template, Ok(_) | Err(PoolRefusal::Group { .. })) => {
                Err(PoolRefusal::Group { why })
            }
            _ => template,
        }
    }

    /// Returns the template of `pool`, even if it is a group that only others resize.
    pub(super) fn of_any_group(
        pool: &'a Pool,
        supply: &'a OfferInput<'a>,
    ) -> Result<Self, PoolRefusal> {
        let class = pool.node_class.as_ref().and_then(|n| supply.desired.node_classes.get(n));
        let class = class.ok_or_else(|| PoolRefusal::without_node_class(pool, supply.desired))?;
        if let Some(refusal) = PoolRefusal::of_invalid_field(pool, class, supply.desired) {
            return Err(refusal);
        }
        let settings = NodeSettings::new(pool, class);
        let group = Self::group_guarantee(pool, supply, &settings)?;
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
            overlays: Overlays::from_desired(supply.desired),
            settings,
            group,
            requirements: pool_requirements(pool).and(&class.type_requirements()),
            labels,
            spec_digest: drift::spec_digest(pool, class),
        })
    }

    /// Returns the guarantee for the next member of a group; `None` if the pool is no group.
    fn group_guarantee(
        pool: &Pool,
        supply: &'a OfferInput<'a>,
        settings: &NodeSettings,
    ) -> Result<Option<(GroupGuarantee<'a>, UnknownAttributes)>, PoolRefusal> {
        let Some(group) = supply.desired.node_groups.get(&pool.name) else { return Ok(None) };
        let refusal = |why: String| PoolRefusal::Group { why };
        let least =
            auto_scaling_groups::group_guarantee(pool, &group.types, supply.catalog, settings);
        let zones = match group.zones.len() {
            0 => supply.catalog.zones.len(),
            n => n,
        };
        Ok(Some((
            least.map_err(refusal)?,
            auto_scaling_groups::unknown_attributes(&group.types, zones),
        )))
    }

    /// Reduces the offers of a group to its guarantee, with only the labels that are certain.
    fn keep_certain_labels(&self, stock: &mut PoolOffers, daemons: &[Daemon]) {
        let Some((guarantee, open)) = &self.group else { return };
        let kind = guarantee.kind;
        let Some(group) = self.supply.desired.node_groups.get(&self.pool.name) else { return };
        let types = group.types.iter().filter_map(|name| self.supply.catalog.types.get(name));
        let types: Vec<&InstanceType> = types.collect();
        let is_mixed = types.iter().any(|other| other.name != kind.name);
        let PoolOffers { offers, withheld, unpriced, .. } = stock;
        let withheld = withheld.iter_mut().map(|(offer, _)| offer);
        for offer in offers.iter_mut().chain(withheld).chain(unpriced) {
            offer.node.labels.retain(|label, _| {
                let name = label.as_str();
                let of_zone = name == key::ZONE || name == key::ZONE_ID;
                let unknown =
                    open.zone && of_zone || open.instance_type && name == key::INSTANCE_TYPE;
                // Nodes have the labels of the template, whatever their type is.
                let differs = !self.pool.labels.contains_key(label)
                    && types.iter().any(|of| of.labels.get(label) != kind.labels.get(label));
                !unknown && !differs && !auto_scaling_groups::is_karpenter_label(name)
            });
            if offer.node.instance_type == kind.name {
                let NewNode { allocatable, capacity, .. } = &mut offer.node;
                *allocatable = allocatable.minus(&guarantee.less_allocatable);
                *capacity = capacity.minus(&guarantee.less_capacity);
            }
            let dearest = is_mixed.then(|| self.dearest_price(group, &offer.node)).flatten();
            if let Some(OptionPrice { price, is_estimate }) = dearest {
                offer.node.price = price;
                offer.node.price_estimated |= is_estimate;
            }
            *offer = with_room(offer.clone(), daemons);
        }
        stock.offers.retain(|offer| offer.node.instance_type == kind.name);
        self.apply_mix(group, &mut stock.offers);
        if open.zone {
            stock.offers.truncate(1);
        }
    }

    /// Returns the price of the dearest type that a group may launch as `node`.
    fn dearest_price(&self, group: &NodeGroup, node: &NewNode) -> Option<OptionPrice> {
        let way = (node, node.capacity_type);
        auto_scaling_groups::dearest_price(group, self.supply.catalog, way, &self.overlays)
    }

    /// Gives the offers of a mixed group the average price of its next members.
    fn apply_mix(&self, group: &NodeGroup, offers: &mut [Offer]) {
        let OfferInput { catalog, observed, .. } = self.supply;
        let mix = auto_scaling_groups::mix_of(group, observed).filter(|mix| mix.is_mixed());
        let Some(mix) = mix else { return };
        for Offer { node, .. } in offers {
            let way = (&*node, CapacityType::Spot);
            let spot = auto_scaling_groups::dearest_price(group, catalog, way, &self.overlays);
            let Some(spot) = spot else { continue };
            let prices = [node.price, spot.price];
            node.price = auto_scaling_groups::average_price(group, mix, observed, prices);
            node.price_estimated |= spot.is_estimate;
        }
    }

    /// Returns every offer of the pool for the label values that pods request.
    pub(super) fn pool_offers(
        &self,
        requested: &RequestedLabels,
        daemons: &[Daemon],
    ) -> PoolOffers {
        let kinds: Vec<_> = self.instance_types().collect();
        let ways = kinds.iter().map(|kind| kind.offerings.len()).sum::<usize>();
        let most = (OFFERS_MAX / ways.max(1)).clamp(SHARED_COMBINATIONS_MAX, COMBINATIONS_MAX);
        let LabelCombinations { list: splits, is_truncated: is_cut } =
            self.label_combinations(requested, most);
        let mut stock = PoolOffers { is_truncated: is_cut, ..PoolOffers::default() };
        for kind in kinds {
            let amounts = self.supply.catalog.allocation(kind, &self.settings);
            for way in self.purchase_options(kind) {
                for PoolOffer { offer, is_priced } in self.offers(kind, &way, &amounts, &splits) {
                    let offer = with_room(offer, daemons);
                    if !is_priced {
                        stock.unpriced.push(offer);
                        continue;
                    }
                    match self.withheld_reason(kind, &way) {
                        Some(why) => stock.withheld.push((offer, why)),
                        None => stock.offers.push(offer),
                    }
                }
            }
        }
        self.keep_certain_labels(&mut stock, daemons);
        daemon_sets::exclude_small_types(&mut stock, daemons);
        stock
    }

    /// Returns the instance types that the pool allows.
    fn instance_types(&self) -> impl Iterator<Item = &'a InstanceType> {
        let kinds = self.supply.catalog.types.values().filter(|kind| self.has_image(kind));
        let kinds = kinds.filter(|kind| kind.has_interfaces(&self.class.instance_settings));
        kinds.filter(|kind| {
            let of_type = |key: &LabelKey| {
                kind.labels.contains_key(key) || key.as_str().starts_with(key::INSTANCE_PREFIX)
            };
            self.admits(&self.type_labels(kind), of_type)
        })
    }

    /// Returns whether the family of images of the node class has one for the type. Windows runs on
    /// amd64 alone. Source: karpenter-provider-aws, `pkg/providers/instancetype/types.go`, `getOS`.
    fn has_image(&self, kind: &InstanceType) -> bool {
        let is_amd64 = || kind.labels.get(key::ARCH).is_some_and(|arch| arch.as_str() == "amd64");
        self.class.ami_family != AmiFamily::Windows || is_amd64()
    }

    fn type_labels(&self, kind: &InstanceType) -> Labels {
        let mut labels = self.labels.clone();
        labels.extend(kind.labels.iter().map(|(k, v)| (k.clone(), v.clone())));
        if self.class.ami_family == AmiFamily::Windows {
            labels.extend([label(key::OS, "windows")]);
        }
        labels.extend(self.class.windows_build.map(|build| label(key::WINDOWS_BUILD, build)));
        labels
    }

    /// Returns true if `labels` meet every requirement whose key is decided so far.
    fn admits(&self, labels: &Labels, decided: impl Fn(&LabelKey) -> bool) -> bool {
        self.requirements.iter().all(|(key, set)| {
            let open = !decided(key) && !self.labels.contains_key(key);
            open || set.contains(labels.get(key))
        })
    }

    /// Returns the ways to buy a type: its offerings in the catalog, and the reservations that the
    /// node class selects.
    fn purchase_options(&self, kind: &InstanceType) -> Vec<PurchaseOption<'a>> {
        let listed = kind.offerings.iter().cloned();
        let listed = listed.map(|offering| PurchaseOption { offering, reservation: None });
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
            Some(PurchaseOption { offering, reservation: Some(reservation) })
        });
        listed.chain(reserved).collect()
    }

    /// Returns the reason why a purchase option is unavailable now.
    fn withheld_reason(
        &self,
        kind: &InstanceType,
        way: &PurchaseOption<'_>,
    ) -> Option<WithheldReason> {
        if let Some(reservation) = way.reservation.filter(|found| found.available == 0) {
            return Some(WithheldReason::ReservationExhausted {
                reservation: reservation.id.clone(),
            });
        }
        let Offering { zone, capacity_type, price, estimated, .. } = &way.offering;
        let group = self.supply.desired.node_groups.get(&self.pool.name);
        let most = group.and_then(|group| group.max_spot_price);
        // An estimated price must not exclude an offer.
        let spot = price.filter(|_| *capacity_type == CapacityType::Spot && !estimated);
        if let Some((price, most)) = spot.zip(most).filter(|(price, most)| price > most) {
            return Some(WithheldReason::AboveMaxPrice { price, max_price: most });
        }
        let OfferInput { observed, at, .. } = self.supply;
        let exclusions = observed.exclusions.iter();
        let covering = exclusions.filter(|e| e.covers(*at, &kind.name, zone, *capacity_type));
        covering
            .map(|exclusion| exclusion.until)
            .max()
            .map(|until| WithheldReason::Excluded { until })
    }

    /// Returns at most `most` combinations of custom labels that nodes of the pool can have.
    ///
    /// A label whose value the pool decides has one state. An open label has one state for each
    /// value that a pod requests or spreads over, and one for all other values.
    fn label_combinations(&self, requested: &RequestedLabels, most: usize) -> LabelCombinations {
        let open: Vec<_> = open_labels(&self.requirements, &self.labels).collect();
        let of_key =
            |(key, set): &(&LabelKey, &LabelSet)| requested.topology_values(key, set).is_truncated;
        let is_cut = open.iter().any(of_key);
        let any = |key: &LabelKey, set: &LabelSet| {
            let mut wanted = requested.topology_values(key, set).values;
            wanted
                .extend(requested.requested_sets(key).flat_map(|wish| matching_values(wish, set)));
            label_states(set, &wanted)
        };
        let all = combinations(
            open.iter().map(|(key, set)| (*key, any(key, set))),
            SHARED_COMBINATIONS_MAX + 1,
        );
        if all.len() <= SHARED_COMBINATIONS_MAX {
            return LabelCombinations { list: all, is_truncated: is_cut };
        }
        let mut found: BTreeSet<Labels> = BTreeSet::new();
        let none = BTreeMap::new();
        for alternative in std::iter::once(&none).chain(&requested.alternatives) {
            let of_key = |(key, set): &(&LabelKey, &LabelSet)| match alternative.get(*key) {
                Some(wish) => label_states(set, &matching_values(wish, set)),
                None => label_states(set, &requested.topology_values(key, set).values),
            };
            let keys = open.iter().map(|key| (key.0, of_key(key)));
            found.extend(combinations(keys, most + 1));
            if found.len() > most {
                break;
            }
        }
        let is_cut = is_cut || found.len() > most;
        LabelCombinations { list: found.into_iter().take(most).collect(), is_truncated: is_cut }
    }

    fn offers(
        &self,
        kind: &InstanceType,
        way: &PurchaseOption<'_>,
        amounts: &Allocation,
        splits: &[Labels],
    ) -> Vec<PoolOffer> {
        let Offering { zone, zone_id, capacity_type, .. } = &way.offering;
        let mut labels = self.type_labels(kind);
        labels.extend([
            label(key::ZONE, zone.as_str()),
            label(key::ZONE_ID, zone_id.as_str()),
            label(key::CAPACITY_TYPE, capacity_type.as_str()),
        ]);
        labels.extend(way.reservation.into_iter().flat_map(reservation_labels));
        if !self.admits(&labels, |key| is_well_known(key.as_str())) {
            return Vec::new();
        }
        let with = |split: &Labels| {
            let mut labels = labels.clone();
            labels.extend(split.iter().map(|(k, v)| (k.clone(), v.clone())));
            self.offer(kind, way, amounts, labels, split)
        };
        splits.iter().map(with).collect()
    }

    /// Returns the offer of a node with these labels.
    fn offer(
        &self,
        kind: &InstanceType,
        way: &PurchaseOption<'_>,
        amounts: &Allocation,
        labels: Labels,
        split: &Labels,
    ) -> PoolOffer {
        let Offering { zone, zone_id, capacity_type, price, estimated: _ } = &way.offering;
        let estimated = way.offering.is_estimate_for(&labels);
        let overlaid = self.overlays.apply(&labels, *price);
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
        PoolOffer {
            offer: Offer { node, weight, daemons, room, has_special_hardware: exotic },
            is_priced: overlaid.price.is_some(),
        }
    }
}

/// An offer of a pool, before its price is checked.
struct PoolOffer {
    offer: Offer,
    /// The price is known. An unknown price is 0.
    is_priced: bool,
}

fn with_room(mut offer: Offer, daemons: &[Daemon]) -> Offer {
    offer.daemons = {
        let NewNode { labels, taints, allocatable, .. } = &offer.node;
        daemon_requests(daemons, labels, taints, allocatable)
    };
    offer.room = offer.node.allocatable.minus(&offer.daemons);
    offer
}

/// Returns the labels that a capacity reservation adds to its nodes.
fn reservation_labels(reservation: &Reservation) -> [(LabelKey, LabelValue); 3] {
    let interruptible = if reservation.interruptible { "true" } else { "false" };
    [
        label(key::RESERVATION_ID, reservation.id.as_str()),
        label(key::RESERVATION_TYPE, reservation.kind.as_str()),
        label(key::RESERVATION_INTERRUPTIBLE, interruptible),
    ]
}

/// Returns the custom labels that a pool leaves open.
pub(super) fn open_labels<'r>(
    requirements: &'r Requirements,
    decided: &'r Labels,
) -> impl Iterator<Item = (&'r LabelKey, &'r LabelSet)> {
    let requirements = requirements.iter();
    requirements.filter(|(key, _)| !is_well_known(key.as_str()) && !decided.contains_key(*key))
}

/// Returns the label states to make offers for: wanted values, absence if allowed, or any value.
fn label_states(set: &LabelSet, wanted: &BTreeSet<LabelValue>) -> Vec<Option<LabelValue>> {
    let mut states: Vec<Option<LabelValue>> = wanted.iter().cloned().map(Some).collect();
    if set.allows_absence() {
        states.push(None);
    } else if states.is_empty() {
        states.extend(set.values().any().map(Some));
    }
    states
}

/// Returns the first `most` combinations of the label states.
fn combinations<'k>(
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

/// Requests of pods for labels that are not well known.
#[derive(Debug, Default)]
pub(super) struct RequestedLabels {
    /// Requested values by key, for each alternative node selector term of any pod.
    alternatives: BTreeSet<BTreeMap<LabelKey, LabelSet>>,
    /// Keys that serve as topology domains for spread or affinity rules.
    topologies: BTreeSet<LabelKey>,
}

impl RequestedLabels {
    /// Returns the requests of pods with these shapes.
    pub(super) fn from_shapes<'a>(shapes: impl IntoIterator<Item = &'a PodShape>) -> Self {
        let mut requested = Self::default();
        for shape in shapes {
            for alternative in &shape.nodes.any_of {
                let custom = alternative.iter().filter(|(key, _)| !is_well_known(key.as_str()));
                let wishes: BTreeMap<_, _> =
                    custom.map(|(key, set)| (key.clone(), set.clone())).collect();
                if !wishes.is_empty() {
                    requested.alternatives.insert(wishes);
                }
            }
            let terms = shape.affinity.required.iter().chain(&shape.anti_affinity.required);
            let hard = |rule: &&TopologySpread| {
                rule.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule
            };
            let spread = shape.spread.iter().filter(hard).map(|rule| &rule.topology_key);
            let keys = terms.map(|term| &term.topology_key).chain(spread);
            requested.topologies.extend(keys.filter(|key| !is_well_known(key.as_str())).cloned());
        }
        requested
    }

    /// Returns the requested sets of values for `key`.
    fn requested_sets(&self, key: &LabelKey) -> impl Iterator<Item = &LabelSet> {
        self.alternatives.iter().filter_map(|wishes| wishes.get(key))
    }

    /// Returns the values of `set` that are topology domains of some pod. An unbounded set (any
    /// value except a few) has no listed domain.
    fn topology_values(&self, key: &LabelKey, set: &LabelSet) -> TopologyValues {
        let is_topology = self.topologies.contains(key);
        let values = is_topology.then(|| set.values().finite(VALUES_MAX)).flatten();
        let values = values.unwrap_or_default();
        let is_cut = values.len() > TOPOLOGY_VALUES_MAX;
        TopologyValues {
            values: values.into_iter().take(TOPOLOGY_VALUES_MAX).collect(),
            is_truncated: is_cut,
        }
    }
}

/// Values of a label that are topology domains.
struct TopologyValues {
    values: BTreeSet<LabelValue>,
    /// True if there are more values.
    is_truncated: bool,
}

/// Combinations of label values.
struct LabelCombinations {
    list: Vec<Labels>,
    /// True if pods request more combinations.
    is_truncated: bool,
}

/// Returns the values of a pool that meet a pod's requirement: the named values, the values listed
/// by the pool if they are few, or any one value.
fn matching_values(wish: &LabelSet, of_pool: &LabelSet) -> BTreeSet<LabelValue> {
    let both = wish.values().intersect(of_pool.values());
    let most = if wish.values().finite(NAMED_VALUES_MAX).is_some() {
        NAMED_VALUES_MAX
    } else {
        LISTED_VALUES_MAX
    };
    let values = both.finite(most);
    values.unwrap_or_else(|| both.any().into_iter().collect()).into_iter().collect()
}
