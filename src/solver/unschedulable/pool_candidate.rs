//! A pool as a candidate for pods that none of its nodes has room for.

use std::collections::BTreeSet;

use super::super::auto_scaling_groups::{group_guarantee, group_size, resize_obstacle};
use super::super::limits::amount;
use super::super::offer::{PoolRefusal, pool_requirements};
use super::super::{GroupGrowth, Input};
use super::raised_limits::limit_text;
use super::suggested_change::UnplacedPods;
use super::{OfferObstacle, UnschedulableReport, contradiction_remedy};
use crate::catalog::{InstanceType, NodeSettings, ebs_volumes};
use crate::demand::PodShape;
use crate::model::desired::{NodeClass, NodeGroup, Pool, PoolRequirement};
use crate::model::ids::{LabelKey, LabelValue, Labels};
use crate::model::market::CapacityType;
use crate::model::pod::all_untolerated;
use crate::model::requirement::{LabelSet, Operator, Requirements, is_well_known, key, label};
use crate::model::storage::{EBS_DRIVER, attach_resource, is_attach_resource};
use crate::model::units::{MicroUsd, Resources};

/// A pool as a candidate for a pod, if the pool allowed other instance types.
pub(super) struct PoolCandidate<'a> {
    pool: &'a Pool,
    class: &'a NodeClass,
    unplaced: &'a UnplacedPods<'a>,
    shape: &'a PodShape,
    requirements: Requirements,
    /// Requests of its DaemonSets, as far as its offers show.
    daemons: Resources,
    report: &'a UnschedulableReport<'a>,
    settings: NodeSettings,
    /// Necessary changes apart from the instance type.
    changes: Vec<String>,
    /// Removals of the pod's requirements for the instance type that the pool excludes. A change of
    /// the type meets them instead.
    type_changes: Vec<String>,
    /// Keys of the pod's requirements that `changes` removes.
    removed: BTreeSet<&'a LabelKey>,
    /// Keys of the pod's requirements that the instance type decides.
    type_keys: BTreeSet<&'a LabelKey>,
}

/// The instance type that needs the fewest changes of a pool; the cheapest of several.
struct BestType<'a> {
    /// Number of changes.
    cost: usize,
    /// On-demand price per hour.
    price: MicroUsd,
    kind: &'a InstanceType,
    /// Keys of the requirements that the type does not meet, with its values.
    broken: Vec<(LabelKey, LabelValue)>,
}

impl<'a> PoolCandidate<'a> {
    pub(super) fn new(
        report: &'a UnschedulableReport<'_>,
        pool: &'a Pool,
        class: &'a NodeClass,
        unplaced: &'a UnplacedPods<'_>,
    ) -> Self {
        let shape = unplaced.shape;
        let offer = report.offers.list.iter().find(|offer| offer.node.pool == pool.name);
        let daemons = offer.map(|offer| offer.daemons.clone()).unwrap_or_default();
        let mut changes = Vec::new();
        for taint in all_untolerated(&pool.taints, &shape.tolerations) {
            changes
                .push(format!("tolerate taint {}={}:{:?}", taint.key, taint.value, taint.effect));
        }
        let requirements = pool_requirements(pool);
        let mut own = pool.labels.clone();
        own.extend([label(key::NODEPOOL, pool.name.as_str())]);
        let of_pool = |key: &str, set: &LabelSet| {
            let met = match own.get(key) {
                Some(value) => set.contains(Some(value)),
                None => match requirements.get(key) {
                    Some(allowed) => !allowed.intersect(set).is_empty(),
                    // Without it in the pool, nodes have only the labels that each node has.
                    None => is_well_known(key) || set.contains(None),
                },
            };
            if set.is_empty() {
                return Some(contradiction_remedy(key));
            }
            (!met).then(|| format!("remove the pod's requirement {key} {set}"))
        };
        let asked = shape.nodes.any_of.iter().flat_map(Requirements::iter);
        let keys: BTreeSet<&LabelKey> = asked.map(|(key, _)| key).collect();
        let type_keys: BTreeSet<&LabelKey> =
            keys.into_iter().filter(|key| report.is_of_type(key.as_str())).collect();
        let (mut type_changes, mut removed) = (Vec::new(), BTreeSet::new());
        for (key, set) in shape.nodes.any_of.first().into_iter().flat_map(Requirements::iter) {
            let Some(change) = of_pool(key.as_str(), set) else { continue };
            if !set.is_empty() && type_keys.contains(key) {
                type_changes.push(change);
            } else {
                changes.push(change);
                removed.insert(key);
            }
        }
        let settings = NodeSettings::new(pool, class);
        Self {
            pool,
            class,
            unplaced,
            shape,
            requirements,
            daemons,
            report,
            settings,
            changes,
            type_changes,
            removed,
            type_keys,
        }
    }

    /// Returns true if the described change of the type removes an obstacle of its offers.
    pub(super) fn removes(&self, obstacle: &OfferObstacle) -> bool {
        match obstacle {
            OfferObstacle::Taint(taint) => {
                self.changes.contains(&format!("tolerate taint {taint}"))
            }
            OfferObstacle::Label { key, .. } | OfferObstacle::Contradiction { key } => {
                self.type_keys.iter().chain(&self.removed).any(|known| known.as_str() == key)
            }
            OfferObstacle::Volume { .. }
            | OfferObstacle::NoTerm
            | OfferObstacle::TooSmall { .. }
            | OfferObstacle::Limit
            | OfferObstacle::LimitUntilApplied
            | OfferObstacle::Reservation(_)
            | OfferObstacle::StaticPool
            | OfferObstacle::Withheld(_)
            | OfferObstacle::Rule(_)
            | OfferObstacle::LeftOver => false,
        }
    }

    /// Returns the necessary changes if the type stays.
    pub(super) fn all_changes(self) -> Vec<String> {
        let mut all = self.changes;
        all.extend(self.type_changes);
        all
    }

    /// Returns the resources of a node for pods other than those of DaemonSets.
    fn room(&self, kind: &InstanceType) -> Resources {
        let allocation = self.report.input.catalog.allocation(kind, &self.settings);
        allocation.allocatable.minus(&self.daemons)
    }

    /// Returns the on-demand price of a type that holds the pod; `None` if the type does not.
    fn price(&self, kind: &InstanceType) -> Option<MicroUsd> {
        self.price_with(kind, &self.room(kind))
    }

    /// Returns the on-demand price of a type that holds the pod in this room.
    fn price_with(&self, kind: &InstanceType, room: &Resources) -> Option<MicroUsd> {
        let mut requests = self.shape.requests.clone();
        let volumes = requests.extended(&attach_resource(EBS_DRIVER));
        requests.extended.retain(|name, _| !is_attach_resource(name));
        let (own, interfaces) = (self.class.volumes(), self.class.interfaces());
        let attaches = i64::from(ebs_volumes(kind, own, interfaces));
        if volumes > attaches || !requests.fits(room) || !self.admits(&kind.labels) {
            return None;
        }
        // No edit of the pool lets its class launch other types.
        let of_class = self.class.type_requirements();
        if !of_class.iter().all(|(key, set)| set.contains(kind.labels.get(key)))
            || !kind.has_interfaces(&self.class.instance_settings)
        {
            return None;
        }
        let on_demand = kind.offerings.iter().filter(|o| o.capacity_type == CapacityType::OnDemand);
        on_demand.filter_map(|offering| offering.price).min()
    }

    /// Returns the change that lets the pool launch the best instance type, with its cost and price.
    pub(super) fn type_change(&self) -> Option<(usize, MicroUsd, String)> {
        let BestType { cost, price, kind, broken } = self.best_type()?;
        Some((cost, price, self.describe(kind, price, &broken)))
    }

    /// Returns the change of the pool's requirements that lets it launch the best instance type.
    /// `None` if they allow this type.
    pub(super) fn requirement_change(&self) -> Option<String> {
        let BestType { price, kind, broken, .. } = self.best_type()?;
        (!broken.is_empty()).then(|| self.describe(kind, price, &broken))
    }

    fn best_type(&self) -> Option<BestType<'a>> {
        let kinds = self.report.input.catalog.types.values().filter(|kind| !kind.bare_metal);
        let priced = kinds.filter_map(|kind| Some((self.price(kind)?, kind)));
        let change = |(price, kind): (MicroUsd, &'a InstanceType)| {
            let broken = self.unmet_requirements(kind);
            let cost = self.changes.len() + broken.len() + self.limits(kind).len();
            BestType { cost, price, kind, broken }
        };
        priced.map(change).min_by_key(|best| (best.cost, best.price))
    }

    /// Returns the change that adds nodes of a group, with its cost and price. The type of a group is
    /// fixed, so that a pod that does not fit it needs another group.
    pub(super) fn group_change(&self, group: &NodeGroup) -> Option<(usize, MicroUsd, String)> {
        let catalog = self.report.input.catalog;
        let pool = self.report.pool_text(&self.pool.name);
        let nodes = |kind: &InstanceType, room: &Resources, price| {
            let nodes = self.unplaced.nodes_text(room, &kind.name, price);
            format!("{nodes} on demand")
        };
        let own = group_guarantee(self.pool, &group.types, catalog, &self.settings).ok();
        let certain = own.as_ref().and_then(|own| {
            let room = self.room(own.kind).minus(&own.less_allocatable);
            // Auto Scaling chooses the type, so that the pod must fit each one.
            let kinds = group.types.iter().filter_map(|name| catalog.types.get(name));
            let prices = kinds.map(|kind| self.price_with(kind, &room));
            let dearest = prices.collect::<Option<Vec<MicroUsd>>>()?.into_iter().max()?;
            Some((own.kind, room, dearest))
        });
        if let Some((kind, room, price)) = certain {
            let mut changes = self.size_changes(group, self.unplaced.nodes_needed(&room));
            changes.extend(self.changes.iter().cloned());
            let text = format!("{}: {}", changes.join(", and "), nodes(kind, &room, price));
            return Some((changes.len(), price, text));
        }
        let arch = |kind: &InstanceType| kind.labels.get(key::ARCH).cloned();
        let known = group.types.iter().find_map(|name| catalog.types.get(name)).map(arch);
        let kinds = catalog.types.values().filter(|kind| !kind.bare_metal);
        let kinds = kinds.filter(|kind| known.as_ref().is_none_or(|known| *known == arch(kind)));
        let priced = kinds.filter_map(|kind| Some((self.price(kind)?, kind)));
        let (price, kind) = priced.min_by_key(|(price, _)| *price)?;
        let why = if own.is_none() { "not certain" } else { "fixed and too small" };
        let add = format!("add a node group of {}, because the type of {pool} is {why}", kind.name);
        let changes: Vec<String> = [add].into_iter().chain(self.changes.iter().cloned()).collect();
        let text = format!("{}: {}", changes.join(", and "), nodes(kind, &self.room(kind), price));
        Some((changes.len() + 1, price, text))
    }

    /// Returns the changes that give a group `nodes` more nodes.
    fn size_changes(&self, group: &NodeGroup, nodes: i64) -> Vec<String> {
        let Input { desired, observed, .. } = *self.report.input;
        let pool = self.report.pool_text(&self.pool.name);
        let size = group_size(group, observed);
        let mut growths = self.report.growths.iter();
        let growth = growths.find(|growth| growth.group == group.name.as_str());
        let grown = growth.map_or(0, |growth| growth.nodes);
        let needed = i64::from(size.members) + i64::from(grown) + nodes;
        let is_full = needed > i64::from(size.most);
        let raise = |of: &str| format!("raise {of} from {} to {needed}", size.most);
        // Cluster Autoscaler serves the pods of this workload as far as the group may grow.
        let is_served = |growth: &GroupGrowth| {
            growth.maximum == size.most && growth.pods.contains_key(self.unplaced.workload)
        };
        if is_full && growth.is_some_and(is_served) {
            return vec![raise(&format!("maxSize of {pool}"))];
        }
        let by_hand = format!("resize {pool} by hand");
        let refusal = self.report.offers.refusals.get(&self.pool.name);
        let is_refused = matches!(refusal, Some(PoolRefusal::Group { .. })) && !group.manage;
        let change = if is_refused && resize_obstacle(group, desired, observed).is_none() {
            let name = &self.pool.name;
            format!(
                "set `spec.groups.{name}: {{ manage: true }}` in fleetwright.yaml, or {by_hand}"
            )
        } else {
            by_hand
        };
        let raised = is_full.then(|| raise("its maxSize"));
        [change].into_iter().chain(raised).collect()
    }

    /// Returns true if the pod's node selector allows these labels of a type. A type without the
    /// label of local disks has none, so that a pod that asks for them does not run there.
    fn admits(&self, labels: &Labels) -> bool {
        let meets = |alternative: &Requirements| {
            alternative.iter().all(|(key, set)| match labels.get(key) {
                Some(value) => set.contains(Some(value)),
                None => set.contains(None) || !self.type_keys.contains(key),
            })
        };
        self.shape.nodes.any_of.iter().any(meets)
    }

    /// Returns the keys of the pool's requirements that a type does not meet, with its values.
    fn unmet_requirements(&self, kind: &InstanceType) -> Vec<(LabelKey, LabelValue)> {
        let of_type = self.requirements.iter().filter_map(|(key, set)| {
            let value = kind.labels.get(key)?;
            (!set.contains(Some(value))).then(|| (key.clone(), value.clone()))
        });
        of_type.collect()
    }

    /// Returns the limits of the pool that one node of a type exceeds, with the least that each
    /// must be.
    fn limits(&self, kind: &InstanceType) -> Vec<String> {
        let capacity = self.report.input.catalog.allocation(kind, &self.settings).capacity;
        let limits = self.pool.limits.resources.iter().filter_map(|(name, limit)| {
            let least = amount(&capacity, name.as_str());
            (least > *limit).then(|| limit_text(name.as_str(), least))
        });
        limits.collect()
    }

    fn describe(
        &self,
        kind: &InstanceType,
        price: MicroUsd,
        broken: &[(LabelKey, LabelValue)],
    ) -> String {
        let name = &kind.name;
        let pool = self.report.pool_text(&self.pool.name);
        let mut changes = Vec::new();
        if !broken.is_empty() {
            let edits = broken.iter().flat_map(|(key, value)| self.edits(key, value));
            let edits: Vec<String> = edits.collect();
            changes.push(format!("{} in {pool}", edits.join(" and ")));
        }
        let limits = self.limits(kind);
        if !limits.is_empty() {
            changes.push(format!("raise the limits of {pool} to at least {}", limits.join(", ")));
        }
        changes.extend(self.changes.iter().cloned());
        if changes.is_empty() {
            changes.push(format!("let {pool} launch {name}"));
        }
        let nodes = self.unplaced.nodes_text(&self.room(kind), name, price);
        format!("{}: {nodes} on demand", changes.join(", and "))
    }

    /// Returns the edits of the pool that let its nodes have a value of a label.
    fn edits(&self, key: &LabelKey, value: &LabelValue) -> Vec<String> {
        let excludes = |requirement: &&PoolRequirement| {
            let values: Vec<&str> = requirement.values.iter().map(LabelValue::as_str).collect();
            let set = LabelSet::from_operator(requirement.operator, &values);
            requirement.key == *key && set.is_ok_and(|set| !set.contains(Some(value)))
        };
        let edit = |requirement: &PoolRequirement| match requirement.operator {
            Operator::In => format!("add {value} to {key}"),
            Operator::NotIn => format!("remove {value} from the excluded values of {key}"),
            Operator::Exists
            | Operator::DoesNotExist
            | Operator::Gt
            | Operator::Lt
            | Operator::Gte
            | Operator::Lte => {
                let bound: Vec<&str> = requirement.values.iter().map(LabelValue::as_str).collect();
                format!("allow {value} in {key} {:?} {}", requirement.operator, bound.join(", "))
            }
        };
        let label = self.pool.labels.get(key).filter(|label| *label != value);
        let label = label.map(|label| format!("change label {key} from {label} to {value}"));
        self.pool.requirements.iter().filter(excludes).map(edit).chain(label).collect()
    }
}
