//! From counts by class back to workloads and concrete nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::allot::Field;
use super::consolidate::{Consolidated, Declined};
use super::exchange::{Changes, Exchange, Exchanges};
use super::layout::Counts;
use super::limits::Limits;
use super::model::{Column, Model, Vector};
use super::offer::Offer;
use super::pack::Opened;
use super::rehearse::Placements;
use super::runs::occupied;
use super::stand_ins::Candidates;
use super::standing::{Fate, Standing};
use super::target::{
    BlockReason, KeepReason, Launch, LaunchReason, Place, Rejection, Retire, RetireReason,
};
use super::{Input, Settings, groups, stand_ins, variety, workload_key};
use crate::demand::PodGroup;
use crate::ids::{LabelKey, NodeName};
use crate::units::MicroUsd;

/// What concrete answers are made from.
pub(super) struct Assembly<'a> {
    pub input: &'a Input<'a>,
    pub field: Field<'a>,
    pub model: &'a Model,
    pub groups: &'a [PodGroup],
    pub offers: &'a [Offer],
    pub standing: &'a [Standing],
    pub outcome: &'a Consolidated,
    pub settings: &'a Settings,
}

/// What could stand in for a node, and what was not taken.
struct Others<'a> {
    /// Offers that hold its pods, cheapest first.
    candidates: Vec<&'a Offer>,
    rejected: Vec<Rejection>,
}

/// Where the pods of each group are, and how many have no place.
pub(super) struct Places {
    pub placements: BTreeMap<usize, BTreeMap<Place, u32>>,
    pub unplaced: BTreeMap<usize, u32>,
}

impl Assembly<'_> {
    /// Returns the concrete nodes to launch, one for each opened node, in the same order.
    pub(super) fn new_nodes(&self) -> Vec<Launch> {
        let settled = &self.outcome.settled;
        let limits = self.limits();
        let ties = super::allot::ties(self.field);
        let mut memo: BTreeMap<(usize, &Counts), Others> = BTreeMap::new();
        let mut launches = Vec::with_capacity(settled.offers.len());
        let on_it = pods_by_launch(&settled.placements, settled.offers.len());
        let opened = settled.layout.packing.opened.iter().zip(&settled.offers);
        for ((node, offer), on_it) in opened.zip(on_it) {
            let key = (node.column, &node.pods);
            let others = memo.entry(key).or_insert_with(|| self.others(node, &limits));
            let mut new = self.offers[*offer].node.clone();
            let pool = self.input.desired.pools.get(&new.pool);
            let demands = pool.map(variety::demands).unwrap_or_default();
            // Pods that rules between pods tie to a zone stay in it, whatever stands in.
            let packed = node.pods.keys().flat_map(|class| self.model.classes[*class].groups());
            // The rehearsal may put others there than the packing has.
            let groups = packed.chain(on_it.into_iter().map(|(group, _)| group));
            let fixed: BTreeSet<&LabelKey> = groups.flat_map(|group| &ties[group]).collect();
            let stays: Vec<_> =
                fixed.iter().map(|key| (*key, new.labels.get(*key).cloned())).collect();
            let keeps = |offer: &Offer| {
                stays.iter().all(|(key, is)| offer.node.labels.get(*key) == is.as_ref())
            };
            let candidates = Candidates { offers: &others.candidates, keeps: &keeps };
            stand_ins::choose(&mut new, &candidates, &demands);
            let reason = LaunchReason::Demand { pods: BTreeMap::new() };
            let rejected = others.rejected.clone();
            launches.push(Launch { node: new, reason, batch: None, rejected });
        }
        launches
    }

    /// Returns what pools may still grow by once everything is launched.
    fn limits(&self) -> Limits {
        let pools = groups::limits(self.input.desired, self.input.observed);
        let columns: Vec<&Offer> =
            self.model.columns.iter().map(|c| &self.offers[c.offers[0]]).collect();
        let mut limits = Limits::of(&pools, std::iter::empty(), self.standing, &columns);
        for node in &self.outcome.settled.layout.packing.opened {
            limits.take(node.column);
        }
        limits
    }

    /// Returns the offerings that could stand in for `node`, and what was not taken and why.
    fn others(&self, node: &Opened, limits: &Limits) -> Others<'_> {
        let taken = &self.model.columns[node.column];
        let (mut candidates, mut dearer) = (Vec::new(), Vec::new());
        let (mut too_small, mut too_tight, mut used_up) = (0_u32, 0_u32, 0_u32);
        let asked = self.asked(node);
        for (index, column) in self.model.columns.iter().enumerate() {
            if column.pool != taken.pool {
                continue;
            }
            if !holds(column, node, &asked) {
                too_small += 1;
                continue;
            }
            if column.scarce {
                used_up += u32::from(!taken.scarce);
                continue;
            }
            if limits.allows_swap(node.column, index) {
                candidates.extend(column.offers.iter().map(|i| &self.offers[*i]));
            }
            if column.price < taken.price {
                too_tight += 1;
            } else if index != node.column {
                dearer.push(index);
            }
        }
        candidates
            .sort_by_key(|offer| (offer.node.price, &offer.node.instance_type, &offer.node.zone));
        let mut rejected = self.rejections(&dearer, too_small, too_tight);
        if used_up > 0 {
            let detail = "of a capacity reservation, which this plan uses up".to_owned();
            let reason = "reservation-full".to_owned();
            rejected.push(Rejection { reason, detail, count: used_up });
        }
        Others { candidates, rejected }
    }

    fn rejections(&self, dearer: &[usize], too_small: u32, too_tight: u32) -> Vec<Rejection> {
        let mut rejections = Vec::new();
        if let Some(next) = dearer.first() {
            let next = &self.offers[self.model.columns[*next].offers[0]].node;
            rejections.push(Rejection {
                reason: "dearer".to_owned(),
                detail: format!(
                    "holds the same pods, from {} at ${}/h",
                    next.instance_type,
                    next.price.rounded(4)
                ),
                count: u32::try_from(dearer.len()).unwrap_or(u32::MAX),
            });
        }
        if too_tight > 0 {
            let detail = "cheaper, but kube-scheduler would leave pods over on them".to_owned();
            rejections.push(Rejection { reason: "too-tight".to_owned(), detail, count: too_tight });
        }
        if too_small > 0 {
            let detail = "cannot hold these pods on one node".to_owned();
            rejections.push(Rejection { reason: "too-small".to_owned(), detail, count: too_small });
        }
        rejections
    }

    /// What the pods of a node ask for together.
    fn asked(&self, node: &Opened) -> Vector {
        let mut asked = vec![0_i64; self.model.columns[node.column].room.len()];
        for (class, count) in &node.pods {
            for (sum, ask) in asked.iter_mut().zip(&self.model.classes[*class].ask) {
                *sum = sum.saturating_add(ask.saturating_mul(i64::from(*count)));
            }
        }
        asked
    }

    /// Returns where the pods of each group are, and which have no place.
    pub(super) fn places(&self) -> Places {
        let settled = &self.outcome.settled;
        let mut places =
            Places { placements: settled.placements.clone(), unplaced: settled.unplaced.clone() };
        self.unsupported(&mut places);
        places
    }

    /// Pods that use something placement does not know stay where they run; more of them have no
    /// place.
    fn unsupported(&self, places: &mut Places) {
        let groups =
            self.groups.iter().enumerate().filter(|(_, g)| !g.shape.unsupported.is_empty());
        for (index, group) in groups {
            let here: u32 =
                places.placements.get(&index).into_iter().flat_map(BTreeMap::values).sum();
            let without = group.counts.planned.saturating_sub(here);
            if without > 0 {
                places.unplaced.insert(index, without);
            }
        }
    }

    /// Returns which nodes stay and which go, and gives every launch its reason.
    pub(super) fn fates(
        &self,
        places: &Places,
        launches: &mut [Launch],
    ) -> (BTreeMap<NodeName, KeepReason>, BTreeMap<NodeName, Retire>) {
        let layout = &self.outcome.settled.layout;
        let (mut keeps, mut retires) = (BTreeMap::new(), BTreeMap::new());
        let planned = launches.to_vec();
        let changes = Changes {
            standing: self.standing,
            kept: &layout.kept,
            groups: self.groups,
            placements: &places.placements,
            launches: &planned,
        };
        let mut exchanges = changes.exchanges();
        if let [only] = exchanges.list.as_mut_slice() {
            // Where pods are added too, the saving is against adding nodes for them alone.
            only.saves = only.saves.max(self.outcome.baseline - layout.price);
        }
        let occupied = occupied(self.groups);
        for (index, node) in self.standing.iter().enumerate() {
            if layout.kept[index] {
                let pods = layout.on[index].values().sum();
                keeps.insert(node.name.clone(), self.keep_reason(node, pods));
            } else {
                let retire = self.retire((index, node), (&exchanges, &changes), &occupied);
                retires.insert(node.name.clone(), retire);
            }
        }
        self.launch_reasons(places, launches, &exchanges);
        (keeps, retires)
    }

    fn keep_reason(&self, node: &Standing, pods: u32) -> KeepReason {
        let blocked = |by: BlockReason| KeepReason::Blocked { by };
        match &node.fate {
            // What is not known holds nothing back from a node that is needed anyway.
            Fate::Stays(KeepReason::Blocked { by: BlockReason::Unknown { .. } }) if pods > 0 => {
                KeepReason::Needed { pods }
            }
            Fate::Stays(reason) => reason.clone(),
            Fate::Leaves(_) => blocked(BlockReason::NoOtherPlace),
            Fate::Free | Fate::OnlyWhenEmpty(_) => match self.outcome.declined.get(&node.name) {
                Some(Declined { saves, needed, moves })
                    if *saves > MicroUsd::ZERO && *saves < *needed =>
                {
                    KeepReason::NotWorthMoving {
                        saves_hourly: *saves,
                        needed_hourly: *needed,
                        moves: *moves,
                    }
                }
                None if self.outcome.barred.contains(&node.name) => blocked(BlockReason::Budget),
                Some(_) | None => KeepReason::Needed { pods },
            },
        }
    }

    fn retire(
        &self,
        (index, node): (usize, &Standing),
        (exchanges, changes): (&Exchanges, &Changes),
        occupied: &BTreeSet<&NodeName>,
    ) -> Retire {
        let price = node.price.unwrap_or_default();
        let batch = exchanges.of_node.get(&index).copied();
        if let Fate::Leaves(reason) = &node.fate {
            return Retire { reason: reason.clone(), batch };
        }
        if !occupied.contains(&node.name) {
            return Retire { reason: RetireReason::Empty { saves_hourly: price }, batch: None };
        }
        let exchange = batch.map(|batch| &exchanges.list[batch]);
        let (saves_hourly, moves) = match exchange {
            Some(exchange) if exchange.saves > MicroUsd::ZERO => (exchange.saves, exchange.moves),
            Some(_) | None => (price, changes.moved(&[index])),
        };
        let payback_hours = self.settings.payback_hours(saves_hourly, moves);
        Retire { reason: RetireReason::Underutilized { saves_hourly, moves, payback_hours }, batch }
    }

    fn launch_reasons(&self, places: &Places, launches: &mut [Launch], exchanges: &Exchanges) {
        let on_it = pods_by_launch(&places.placements, launches.len());
        for (index, (launch, pods)) in launches.iter_mut().zip(on_it).enumerate() {
            launch.batch = exchanges.of_launch.get(&index).copied();
            let exchange = launch.batch.map(|batch| &exchanges.list[batch]);
            if launch.is_fixed() {
                continue;
            }
            launch.reason = match exchange {
                Some(Exchange { leaving: Some((node, reason)), .. }) => LaunchReason::Replacement {
                    of: node.as_str().into(),
                    because: Box::new(reason.clone()),
                },
                Some(Exchange { saves, moves, .. }) if *saves > MicroUsd::ZERO => {
                    LaunchReason::Consolidation { saves_hourly: *saves, moves: *moves }
                }
                // More pods than before: the exchange makes room, cheaper than adding to what is.
                Some(_) | None => {
                    let named =
                        |(group, n): (usize, u32)| (workload_key(&self.groups[group].workload), n);
                    LaunchReason::Demand { pods: pods.into_iter().map(named).collect() }
                }
            };
        }
    }
}

/// Returns whether a node of `column` could stand in for `node`, whose pods ask for `asked`.
fn holds(column: &Column, node: &Opened, asked: &[i64]) -> bool {
    asked.iter().zip(&column.room).all(|(asked, room)| *asked <= 0 || asked <= room)
        && node.pods.keys().all(|class| column.takes[*class])
}

/// Returns for each launch the groups whose pods are on it, with how many of each.
fn pods_by_launch(placements: &Placements, launches: usize) -> Vec<Vec<(usize, u32)>> {
    let mut on_it = vec![Vec::new(); launches];
    for (group, places) in placements {
        for (place, count) in places {
            if let Place::Launch(index) = place {
                on_it[*index].push((*group, *count));
            }
        }
    }
    on_it
}
