//! Planning until there is nothing left to plan.
//!
//! A first answer only asks what pods without a place need; seen as a fleet that stands, it may be
//! improved like any other. So each answer is taken as carried out and consolidated again, with
//! nodes that are only planned costing nothing to plan away, until nothing changes: what would be
//! the next plan's changes are this plan's.

use std::collections::BTreeMap;

use super::consolidate::{Consolidated, consolidate};
use super::layout::{Counts, Ground, Layout};
use super::limits::Limits;
use super::model::Model;
use super::offer::Offer;
use super::pack::{Opened, Packing};
use super::rehearse::{Placements, Settled, Stage};
use super::standing::{Fate, Standing};
use super::target::Place;
use super::{Input, Settings};
use crate::demand::{Demand, PodGroup};
use crate::ids::NodeName;
use crate::requirement::{key, label};

/// Times that an answer is taken as carried out.
const PASSES_MAX: usize = 8;

/// Pods times nodes up to which an answer is taken as carried out and improved.
const PASS_WORK_MAX: u64 = 20_000;

/// What every pass works on.
pub(super) struct Passes<'a> {
    pub input: &'a Input<'a>,
    /// The demand, each group of alike pods.
    pub demand: &'a Demand,
    pub offers: &'a [Offer],
    pub standing: &'a [Standing],
}

impl Passes<'_> {
    /// Returns the answer that no further pass improves, in terms of `model`, which is the problem
    /// of the groups over the nodes that really stand.
    pub(super) fn run(&self, model: &Model) -> Consolidated {
        let mut outcome = self.pass(&self.demand.groups, self.standing, model);
        for _ in 0..PASSES_MAX {
            if outcome.settled.offers.is_empty() || self.is_large(&outcome.settled) {
                break;
            }
            let groups = self.carried_out(&outcome.settled);
            let standing = self.fleet_after(&outcome.settled);
            let next = Model::of(&groups, self.offers, &standing);
            let better = self.pass(&groups, &standing, &next);
            let layout = &better.settled.layout;
            if layout.kept.iter().all(|kept| *kept) && layout.packing.opened.is_empty() {
                break;
            }
            if layout.price > outcome.settled.layout.price {
                break;
            }
            outcome.settled = self.translated(model, &outcome.settled, &better.settled);
            outcome.declined.extend(better.declined);
        }
        outcome.settled = self.kept_back(model, outcome.settled);
        let kept = |name: &NodeName| {
            let mut nodes = self.standing.iter().zip(&outcome.settled.layout.kept);
            nodes.any(|(node, kept)| *kept && node.name == *name)
        };
        outcome.declined.retain(|name, _| kept(name));
        outcome
    }

    /// Places `groups` on `standing` and what else it takes, and consolidates.
    fn pass(&self, groups: &[PodGroup], standing: &[Standing], model: &Model) -> Consolidated {
        let demand = Demand {
            groups: groups.to_vec(),
            daemons: self.demand.daemons.clone(),
            ..Demand::default()
        };
        let settings: &Settings = &self.input.settings;
        consolidate(&self.stage(&demand, standing, model), settings)
    }

    fn stage<'s>(
        &'s self,
        demand: &'s Demand,
        standing: &'s [Standing],
        model: &'s Model,
    ) -> Stage<'s> {
        let columns: Vec<&Offer> =
            model.columns.iter().map(|c| &self.offers[c.offers[0]]).collect();
        let pools = self.input.desired.pools.iter().map(|(name, pool)| (name, &pool.limits));
        // Nodes that go still count, because they go last.
        let new = standing.iter().filter(|node| node.is_new);
        let counted: Vec<Standing> = self.standing.iter().chain(new).cloned().collect();
        let limits = Limits::of(pools, &counted, &columns);
        let ground = Ground::of(model, standing, limits);
        Stage::new(ground, demand, self.offers, &self.input.desired.namespaces)
    }

    /// Keeps nodes that would be replaced by others just like them, where that costs no more: a
    /// node does not go for the sake of its neighbours.
    fn kept_back(&self, model: &Model, mut settled: Settled) -> Settled {
        let stage = self.stage(self.demand, self.standing, model);
        for (index, node) in self.standing.iter().enumerate() {
            let alike = |offer: &usize| self.offers[*offer].is_like(node);
            let replaced = !settled.layout.kept[index] && settled.offers.iter().any(alike);
            if !replaced || node.fate != Fate::Free {
                continue;
            }
            let mut kept = settled.layout.kept.clone();
            kept[index] = true;
            let other = stage.settle(&stage.ground.layout(kept));
            if other.layout.price <= settled.layout.price && other.unplaced == settled.unplaced {
                settled = Settled { packed: settled.packed.min(other.packed), ..other };
            }
        }
        settled
    }

    /// Returns whether another pass would take too long.
    ///
    /// For such a fleet the first answer stands, and a later plan may still improve it.
    fn is_large(&self, settled: &Settled) -> bool {
        let pods = self.demand.groups.iter().map(|group| u64::from(group.counts.planned));
        let kept = settled.layout.kept.iter().filter(|kept| **kept).count();
        let nodes = u64::try_from(kept + settled.offers.len()).unwrap_or(u64::MAX);
        pods.fold(0, u64::saturating_add).saturating_mul(nodes) > PASS_WORK_MAX
    }

    /// Returns the groups with their pods running where `settled` has them.
    fn carried_out(&self, settled: &Settled) -> Vec<PodGroup> {
        let running = |index: usize| -> BTreeMap<NodeName, u32> {
            let places = settled.placements.get(&index).into_iter().flatten();
            places.map(|(place, count)| (name_of(place), *count)).collect()
        };
        let groups = self.demand.groups.iter().enumerate();
        groups.map(|(index, group)| PodGroup { running: running(index), ..group.clone() }).collect()
    }

    /// Returns the nodes that stay, then those that are launched.
    fn fleet_after(&self, settled: &Settled) -> Vec<Standing> {
        let kept = self.standing.iter().zip(&settled.layout.kept).filter(|(_, kept)| **kept);
        let kept = kept.map(|(node, _)| node.clone());
        let launched = settled.offers.iter().enumerate().map(|(index, offer)| {
            let offer = &self.offers[*offer];
            let name = name_of(&Place::Launch(index));
            let mut labels = offer.node.labels.clone();
            labels.extend([label(key::HOSTNAME, name.as_str())]);
            Standing {
                pool: Some(offer.node.pool.clone()),
                labels,
                taints: offer.node.taints.clone(),
                startup_taints: Vec::new(),
                capacity: offer.node.capacity.clone(),
                allocatable: offer.node.allocatable.clone(),
                room: offer.room.clone(),
                price: Some(offer.node.price),
                price_estimated: offer.node.price_estimated,
                is_new: true,
                schedulable: true,
                fate: Fate::Free,
                name,
            }
        });
        kept.chain(launched).collect()
    }

    /// Returns `later`, which speaks of the fleet after `earlier`, in terms of what stands now.
    fn translated(&self, model: &Model, earlier: &Settled, later: &Settled) -> Settled {
        let mut later_kept = later.layout.kept.iter().copied();
        let kept: Vec<bool> = earlier
            .layout
            .kept
            .iter()
            .map(|kept| *kept && later_kept.next().unwrap_or(false))
            .collect();
        let (mut offers, mut columns, mut places) = (Vec::new(), Vec::new(), BTreeMap::new());
        let launched = earlier.layout.packing.opened.iter().zip(&earlier.offers).enumerate();
        for (index, (node, offer)) in launched {
            if later_kept.next().unwrap_or(false) {
                places.insert(Place::Node(name_of(&Place::Launch(index))), offers.len());
                offers.push(*offer);
                columns.push(node.column);
            }
        }
        let opened = later.layout.packing.opened.iter().zip(&later.offers).enumerate();
        for (index, (node, offer)) in opened {
            places.insert(Place::Launch(index), offers.len());
            offers.push(*offer);
            columns.push(node.column);
        }
        let moved =
            |place: &Place| places.get(place).map_or_else(|| place.clone(), |i| Place::Launch(*i));
        let of_group = |on: &BTreeMap<Place, u32>| on.iter().map(|(p, n)| (moved(p), *n)).collect();
        let placements: Placements =
            later.placements.iter().map(|(group, on)| (*group, of_group(on))).collect();
        let opened = columns.into_iter().map(|column| Opened { column, pods: Counts::new() });
        let packing = Packing { opened: opened.collect(), left: later.layout.packing.left.clone() };
        let mut layout = Layout {
            on: vec![Counts::new(); kept.len()],
            staying: vec![Counts::new(); kept.len()],
            kept,
            packing,
            price: later.layout.price,
        };
        self.count_pods(model, &placements, &mut layout);
        let packed = earlier.packed.min(later.packed);
        Settled { layout, offers, placements, unplaced: later.unplaced.clone(), packed }
    }

    /// Fills in the counts by class that `placements` come to.
    fn count_pods(&self, model: &Model, placements: &Placements, layout: &mut Layout) {
        let index: BTreeMap<&NodeName, usize> =
            self.standing.iter().enumerate().map(|(i, node)| (&node.name, i)).collect();
        for (class, members) in model.classes.iter().enumerate() {
            for group in &members.groups {
                for (place, count) in placements.get(group).into_iter().flatten() {
                    let on = match place {
                        Place::Launch(node) => &mut layout.packing.opened[*node].pods,
                        Place::Node(name) => {
                            let running = &self.demand.groups[*group].running;
                            let stay = running.get(name).copied().unwrap_or(0).min(*count);
                            let seats = &mut layout.staying[index[name]];
                            *seats.entry(class).or_insert(0) += stay;
                            &mut layout.on[index[name]]
                        }
                    };
                    *on.entry(class).or_insert(0) += count;
                }
            }
        }
        for seats in &mut layout.staying {
            seats.retain(|_, count| *count > 0);
        }
    }
}

/// The name that a planned node goes by while it is taken as standing.
fn name_of(place: &Place) -> NodeName {
    match place {
        Place::Node(name) => name.clone(),
        Place::Launch(index) => format!("launch/{index}").as_str().into(),
    }
}
