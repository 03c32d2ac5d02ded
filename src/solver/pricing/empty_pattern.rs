//! A node without pods as a knapsack: rows limit it, items may be packed into it.

use super::float_conversion::to_f64;
use super::{Amounts, BinPackingProblem, NodeOffering};

/// Maximum number of caps over several classes in one knapsack. Further caps are ignored, which
/// loosens a bound but keeps it valid.
const SHARED_CAPS_MAX: usize = 8;

/// A node of one offering without pods.
#[derive(Debug, Clone)]
pub(super) struct EmptyPattern {
    pub price: i64,
    /// Capacity of each row that can run out: resources first, then shared caps.
    pub room: Amounts,
    /// The resource of each of the first rows.
    pub resources: Vec<usize>,
    /// The items that fit on the node.
    pub items: Vec<Item>,
    /// Requests of each item, item by item and row by row.
    item_requests: Vec<i64>,
    /// The same as shares of the room.
    shares: Vec<f64>,
}

/// Identical pods that may run on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Item {
    /// Index of the class.
    pub class: usize,
    /// Maximum number of these pods on the node.
    pub max_count: u32,
}

impl EmptyPattern {
    /// Returns the knapsack of `offering` for at most `wanted` pods of each class.
    pub(super) fn new(
        problem: &BinPackingProblem,
        offering: &NodeOffering,
        wanted: &[u32],
    ) -> Self {
        let limits = &problem.caps;
        let mut caps: Vec<(u32, Vec<usize>)> =
            limits.iter().map(|cap| (cap.max_pods, Vec::new())).collect();
        let mut items: Vec<Item> = Vec::new();
        for (class, demand) in
            problem.classes.iter().enumerate().filter(|(class, _)| offering.admits[*class])
        {
            let caps_of_class = || problem.caps_of_class[class].iter().copied();
            let cap = caps_of_class().map(|cap| limits[cap].max_pods).min().unwrap_or(u32::MAX);
            let most = copies(&demand.requests, &offering.room, wanted[class].min(cap));
            if most > 0 {
                caps_of_class().for_each(|cap| caps[cap].1.push(items.len()));
                items.push(Item { class, max_count: most });
            }
        }
        let rows = resource_rows(problem, offering, &items);
        let resources = rows.iter().map(|(resource, _)| *resource).collect();
        let mut rows: Vec<(i64, Vec<i64>)> = rows.into_iter().map(|(_, row)| row).collect();
        caps.retain(|(most, members)| {
            let all: u32 =
                members.iter().map(|item| items[*item].max_count).fold(0, u32::saturating_add);
            members.len() > 1 && all > *most
        });
        caps.sort_by_key(|(most, members)| (*most, std::cmp::Reverse(members.len())));
        caps.truncate(SHARED_CAPS_MAX);
        for (most, members) in caps {
            let mut requests = vec![0; items.len()];
            for item in members {
                requests[item] = 1;
            }
            rows.push((i64::from(most), requests));
        }
        let requests: Vec<i64> = (0..items.len())
            .flat_map(|item| rows.iter().map(move |(_, requests)| requests[item]))
            .collect();
        let room: Amounts = rows.iter().map(|(room, _)| *room).collect();
        let share = |(at, request): (usize, &i64)| to_f64(*request) / to_f64(room[at % room.len()]);
        let shares = requests.iter().enumerate().map(share).collect();
        Self { price: offering.price, room, resources, items, item_requests: requests, shares }
    }

    /// Converts pod counts by item to pod counts by class.
    pub(super) fn pods(&self, counts: &[u32]) -> Vec<(usize, u32)> {
        let pods = self.items.iter().zip(counts).map(|(item, count)| (item.class, *count));
        pods.filter(|(_, count)| *count > 0).collect()
    }

    /// Returns the number of rows.
    pub(super) fn rows(&self) -> usize {
        self.room.len()
    }

    /// Returns the requests of one pod of an item, by row.
    pub(super) fn requests(&self, item: usize) -> &[i64] {
        let rows = self.room.len();
        &self.item_requests[item * rows..(item + 1) * rows]
    }

    /// Returns the shares of the room that one pod of an item takes, by row.
    pub(super) fn shares(&self, item: usize) -> &[f64] {
        let rows = self.room.len();
        &self.shares[item * rows..(item + 1) * rows]
    }
}

/// Returns the resources that these items can use up, each with its capacity and the requests by
/// item.
fn resource_rows(
    problem: &BinPackingProblem,
    offering: &NodeOffering,
    items: &[Item],
) -> Vec<(usize, (i64, Vec<i64>))> {
    let row = |(resource, room): (usize, &i64)| {
        let requests: Vec<i64> =
            items.iter().map(|item| problem.classes[item.class].requests[resource]).collect();
        let all: i128 = items
            .iter()
            .zip(&requests)
            .map(|(i, request)| i128::from(i.max_count) * i128::from(*request))
            .sum();
        (all > i128::from(*room)).then_some((resource, (*room, requests)))
    };
    offering.room.iter().enumerate().filter_map(row).collect()
}

/// Returns how many copies of `request` fit into `room`, at most `limit`.
pub(super) fn copies(request: &[i64], room: &[i64], limit: u32) -> u32 {
    let fits = request
        .iter()
        .zip(room)
        .filter(|(request, _)| **request > 0)
        .map(|(request, room)| room.max(&0) / request);
    let fits = fits.min().unwrap_or(i64::MAX);
    u32::try_from(fits).unwrap_or(u32::MAX).min(limit)
}
