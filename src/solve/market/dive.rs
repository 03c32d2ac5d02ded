//! Whole nodes for all pods, from mixes with fractions of nodes.
//!
//! The cheapest mix of whole pods says how many nodes of which filling there are, with fractions.
//! What is whole of them is bought, or else what is nearly whole; the mix for what is left is found
//! anew from what is known, until so few pods are left that every way to part them is looked at.

use super::bought::Bought;
use super::exact::cheapest;
use super::generate::{Effort, Pricing};
use super::number::whole;
use super::{Market, Pattern};

/// Part of a node that counts as nearly whole.
const NEARLY: f64 = 0.9;

/// Mixes that are found.
const MIXES_MAX: usize = 200;

/// How much is done for each mix but the first.
const EFFORT: Effort = Effort { cut_rounds: 0, rounds: 5, steps: 500, steps_total: 100_000 };

/// Returns nodes for `wanted` pods by class; `pricing` has priced them, cut.
pub(super) fn dive(market: &Market, wanted: &[u32], mut pricing: Pricing) -> Bought {
    let mut bought = Bought::nothing(wanted);
    let mut mix = pricing.price_whole(&[]);
    let mut worth = pricing.best().worth.clone();
    for _ in 0..MIXES_MAX {
        if !buy_whole(&mut bought, &mix) && !buy_nearly_whole(&mut bought, &mix) {
            break;
        }
        let left = bought.left.clone();
        if let Some(end) = cheapest(market, &left) {
            end.nodes.iter().for_each(|node| _ = bought.buy(node, 1));
            break;
        }
        let known: Vec<Pattern> = mix.into_iter().map(|(node, _)| node).collect();
        let mut pricing = Pricing::of(market, &left, EFFORT);
        pricing.price_as(&worth);
        mix = pricing.price_whole(&known);
        worth.clone_from(&pricing.best().worth);
    }
    bought
}

pub(super) fn buy_whole(bought: &mut Bought, mix: &[(Pattern, f64)]) -> bool {
    let mut any = false;
    for (node, count) in mix {
        let count = u32::try_from(whole(count + 1e-6)).unwrap_or(u32::MAX);
        any |= count > 0 && bought.buy(node, count);
    }
    any
}

/// Buys what is nearly whole, at least what is nearest to it.
fn buy_nearly_whole(bought: &mut Bought, mix: &[(Pattern, f64)]) -> bool {
    let mut parts: Vec<&(Pattern, f64)> = mix.iter().filter(|(_, count)| *count > 1e-6).collect();
    parts.sort_by(|(x, a), (y, b)| b.total_cmp(a).then(x.cmp(y)));
    let mut any = false;
    for (node, count) in parts {
        if !any || *count >= NEARLY {
            any |= bought.buy(node, 1);
        }
    }
    any
}
