//! New nodes for few pods: every fleet that costs less than the best one known is listed, and
//! rehearsed from the cheapest on.
//!
//! What holds first is then the cheapest fleet of the kinds worth opening that passes every run, as
//! far as the list goes. How long the list is, and how many of it are rehearsed, is counted.

use super::layout::{Counts, Layout};
use super::pack::{Opened, Packing};
use super::rehearse::{Settled, Stage, Verdict};
use crate::units::MicroUsd;

/// Pods up to which all fleets are listed.
const PODS_MAX: u32 = 8;

/// Fleets that are listed at most.
const LISTED_MAX: usize = 4_096;

/// Fleets that are looked at for the list.
const SEEN_MAX: usize = 100_000;

/// Fleets that are rehearsed.
const REHEARSED_MAX: usize = 256;

impl Stage<'_> {
    /// Returns the cheapest fleet for the pods that `layout` has on new nodes, where they are few;
    /// `settled` where none that costs less passes every run.
    pub(super) fn of_few_pods(&self, layout: &Layout, settled: Settled) -> Settled {
        let model = self.ground.model;
        let mut wanted = vec![0_u32; model.classes.len()];
        for (class, count) in layout.packing.opened.iter().flat_map(|node| &node.pods) {
            wanted[*class] += count;
        }
        let pods: u32 = wanted.iter().sum();
        let Some(first) = layout.packing.opened.first() else { return settled };
        if pods > PODS_MAX || layout.packing.left_over() > 0 || self.steered {
            return settled;
        }
        let weight = model.columns[first.column].weight;
        let of_weight = |column: &usize| model.columns[*column].weight == weight;
        let columns: Vec<usize> = model.undominated.iter().copied().filter(of_weight).collect();
        let price = |column: &usize| model.columns[*column].price;
        let rest = layout.price - layout.packing.price(model);
        let mut list = List {
            prices: columns.iter().map(price).collect(),
            rooms: columns.iter().map(|column| model.columns[*column].room.as_slice()).collect(),
            below: settled.layout.price - rest,
            most: usize::try_from(pods).unwrap_or(usize::MAX),
            seen: 0,
            found: Vec::new(),
        };
        let ask = |resource: usize| -> i64 {
            let asks = model.classes.iter().zip(&wanted);
            asks.map(|(class, count)| class.ask[resource].saturating_mul(i64::from(*count))).sum()
        };
        let missing: Vec<i64> = (0..model.columns[first.column].room.len()).map(ask).collect();
        list.extend(&mut Vec::new(), (MicroUsd::ZERO, &missing));
        list.found.sort();
        for (_, fleet) in list.found.iter().take(REHEARSED_MAX) {
            let fleet = fleet.iter().map(|index| columns[*index]);
            let passed = self.passed(layout, fleet, rest);
            if let Some(passed) = passed.filter(|passed| passed.unplaced == settled.unplaced) {
                return passed;
            }
        }
        settled
    }

    /// Rehearses `layout` with these new nodes instead of its own.
    fn passed(
        &self,
        layout: &Layout,
        columns: impl Iterator<Item = usize>,
        rest: MicroUsd,
    ) -> Option<Settled> {
        let model = self.ground.model;
        let opened = columns.map(|column| Opened { column, pods: Counts::new(), offer: None });
        let packing = Packing { opened: opened.collect(), left: layout.packing.left.clone() };
        if !self.ground.within_limits(&packing.opened) {
            return None;
        }
        let price = rest + packing.price(model);
        match self.rehearse(&Layout { packing, price, ..layout.clone() }) {
            Verdict::Passed(settled) => Some(settled),
            Verdict::Left(_) => None,
        }
    }
}

/// Fleets that cost less than a price, as indices of columns in their order.
struct List<'a> {
    /// Prices of the columns, which rise.
    prices: Vec<MicroUsd>,
    rooms: Vec<&'a [i64]>,
    below: MicroUsd,
    /// Most nodes of a fleet.
    most: usize,
    seen: usize,
    found: Vec<(MicroUsd, Vec<usize>)>,
}

impl List<'_> {
    /// Lists `fleet` with every further node that it may have; `missing` is what it lacks.
    fn extend(&mut self, fleet: &mut Vec<usize>, (price, missing): (MicroUsd, &[i64])) {
        self.seen += 1;
        if !fleet.is_empty() && missing.iter().all(|missing| *missing <= 0) {
            self.found.push((price, fleet.clone()));
        }
        if fleet.len() == self.most {
            return;
        }
        for column in fleet.last().copied().unwrap_or(0)..self.prices.len() {
            let next = price + self.prices[column];
            let is_full = self.seen > SEEN_MAX || self.found.len() >= LISTED_MAX;
            if next >= self.below || is_full {
                return;
            }
            let room = self.rooms[column].iter();
            let missing: Vec<i64> = missing.iter().zip(room).map(|(m, room)| m - room).collect();
            fleet.push(column);
            self.extend(fleet, (next, &missing));
            fleet.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fleet_below_the_price_that_has_the_room_is_listed_once() {
        let rooms: [&[i64]; 3] = [&[2, 4], &[4, 4], &[8, 16]];
        let prices = vec![MicroUsd(2), MicroUsd(3), MicroUsd(6)];
        let mut list = List {
            prices,
            rooms: rooms.to_vec(),
            below: MicroUsd(9),
            most: 3,
            seen: 0,
            found: vec![],
        };
        list.extend(&mut Vec::new(), (MicroUsd::ZERO, &[6, 8]));
        list.found.sort();
        let expected = [
            (5, vec![0, 1]),
            (6, vec![0, 0, 0]),
            (6, vec![1, 1]),
            (6, vec![2]),
            (7, vec![0, 0, 1]),
            (8, vec![0, 1, 1]),
            (8, vec![0, 2]),
        ];
        let expected: Vec<_> = expected.map(|(price, fleet)| (MicroUsd(price), fleet)).into();
        assert_eq!(list.found, expected);
    }
}
