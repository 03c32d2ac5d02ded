//! One node that is to be filled: the pods it takes, in numbers that fit the search.

use super::number::real;
use super::{Amounts, Cap, Kind, Market, Single};

/// Caps over several classes that one node is searched with; more are ignored, which loosens what
/// is claimed but keeps it true.
const SHARED_CAPS_MAX: usize = 8;

/// A node without pods.
#[derive(Debug, Clone)]
pub(super) struct Blank {
    /// Price per hour in micro-USD.
    pub price: i64,
    /// What it holds of what could run out: resources first, then pods under shared caps.
    pub room: Amounts,
    /// The resources that its first rows are.
    pub resources: Vec<usize>,
    /// What may go there.
    pub items: Vec<Item>,
    /// What each item asks for, item by item.
    asks: Vec<i64>,
    /// The same as shares of the room.
    shares: Vec<f64>,
}

/// Alike pods that may go on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Item {
    /// Class.
    pub class: usize,
    /// Most that the node holds of them.
    pub most: u32,
}

impl Blank {
    /// Returns a node of `kind` for at most `wanted` pods of each class of `market`.
    pub(super) fn of(market: &Market, kind: &Kind, wanted: &[u32]) -> Self {
        Self::under(market, &market.caps, kind, wanted)
    }

    /// Returns a node that there is one of.
    pub(super) fn single(market: &Market, single: &Single, wanted: &[u32]) -> Self {
        Self::under(market, &[], &single.kind, wanted)
    }

    fn under(market: &Market, limits: &[Cap], kind: &Kind, wanted: &[u32]) -> Self {
        let mut caps: Vec<(u32, Vec<usize>)> =
            limits.iter().map(|cap| (cap.most, Vec::new())).collect();
        let mut items: Vec<Item> = Vec::new();
        for (class, ware) in market.wares.iter().enumerate().filter(|(class, _)| kind.takes[*class])
        {
            let of_class =
                || market.caps_of[class].iter().copied().filter(|cap| *cap < limits.len());
            let cap = of_class().map(|cap| limits[cap].most).min().unwrap_or(u32::MAX);
            let most = copies(&ware.ask, &kind.room, wanted[class].min(cap));
            if most > 0 {
                of_class().for_each(|cap| caps[cap].1.push(items.len()));
                items.push(Item { class, most });
            }
        }
        let rows = resource_rows(market, kind, &items);
        let resources = rows.iter().map(|(resource, _)| *resource).collect();
        let mut rows: Vec<(i64, Vec<i64>)> = rows.into_iter().map(|(_, row)| row).collect();
        caps.retain(|(most, members)| {
            let all: u32 =
                members.iter().map(|item| items[*item].most).fold(0, u32::saturating_add);
            members.len() > 1 && all > *most
        });
        caps.sort_by_key(|(most, members)| (*most, std::cmp::Reverse(members.len())));
        caps.truncate(SHARED_CAPS_MAX);
        for (most, members) in caps {
            let mut asks = vec![0; items.len()];
            for item in members {
                asks[item] = 1;
            }
            rows.push((i64::from(most), asks));
        }
        let asks: Vec<i64> = (0..items.len())
            .flat_map(|item| rows.iter().map(move |(_, asks)| asks[item]))
            .collect();
        let room: Amounts = rows.iter().map(|(room, _)| *room).collect();
        let share = |(at, ask): (usize, &i64)| real(*ask) / real(room[at % room.len()]);
        let shares = asks.iter().enumerate().map(share).collect();
        Self { price: kind.price, room, resources, items, asks, shares }
    }

    /// Returns pods by class from pods by item.
    pub(super) fn pods(&self, counts: &[u32]) -> Vec<(usize, u32)> {
        let pods = self.items.iter().zip(counts).map(|(item, count)| (item.class, *count));
        pods.filter(|(_, count)| *count > 0).collect()
    }

    /// Returns how many rows limit it.
    pub(super) fn rows(&self) -> usize {
        self.room.len()
    }

    /// Returns what one pod of an item asks for.
    pub(super) fn ask(&self, item: usize) -> &[i64] {
        let rows = self.room.len();
        &self.asks[item * rows..(item + 1) * rows]
    }

    /// Returns the shares of the room that one pod of an item takes.
    pub(super) fn shares(&self, item: usize) -> &[f64] {
        let rows = self.room.len();
        &self.shares[item * rows..(item + 1) * rows]
    }
}

/// The resources that these pods could use up, each with what there is and what an item asks for.
fn resource_rows(market: &Market, kind: &Kind, items: &[Item]) -> Vec<(usize, (i64, Vec<i64>))> {
    let row = |(resource, room): (usize, &i64)| {
        let asks: Vec<i64> =
            items.iter().map(|item| market.wares[item.class].ask[resource]).collect();
        let all: i128 =
            items.iter().zip(&asks).map(|(i, ask)| i128::from(i.most) * i128::from(*ask)).sum();
        (all > i128::from(*room)).then_some((resource, (*room, asks)))
    };
    kind.room.iter().enumerate().filter_map(row).collect()
}

/// Returns how many times `ask` fits into `room`, at most `limit`.
pub(super) fn copies(ask: &[i64], room: &[i64], limit: u32) -> u32 {
    let fits =
        ask.iter().zip(room).filter(|(ask, _)| **ask > 0).map(|(ask, room)| room.max(&0) / ask);
    let fits = fits.min().unwrap_or(i64::MAX);
    u32::try_from(fits).unwrap_or(u32::MAX).min(limit)
}
