//! Node after node, each the one whose pods are worth most for its price.
//!
//! Quick, and nearly as good as the prices it is given as long as pods of most classes are left.

use super::blank::Blank;
use super::bought::Bought;
use super::knapsack::search;
use super::{Market, Pattern};

/// Kinds that are filled at each step: those that did best when last all were.
const KINDS_TRIED: usize = 6;

/// Steps after which all kinds are filled again.
const STEPS_APART: usize = 16;

/// Steps of one search for a filling.
const STEPS: u64 = 200;

/// Returns nodes for `wanted` pods by class, which are worth `worth`.
pub(super) fn guided(market: &Market, wanted: &[u32], worth: &[i64]) -> Bought {
    let mut bought = Bought::nothing(wanted);
    let mut tried = Vec::new();
    while bought.left_over() > 0 {
        for step in 0..STEPS_APART {
            if step == 0 {
                tried = (0..market.kinds.len()).collect();
            }
            let best = filled(market, &bought.left, worth, &tried);
            let Some((_, node)) = best.first() else {
                if step == 0 {
                    return bought;
                }
                break;
            };
            bought.buy(node, u32::MAX);
            tried = best.iter().take(KINDS_TRIED).map(|(_, node)| node.kind).collect();
        }
    }
    bought
}

/// Returns a filled node of each of `kinds`, that with most worth for its price first.
fn filled(market: &Market, left: &[u32], worth: &[i64], kinds: &[usize]) -> Vec<(i128, Pattern)> {
    let fill = |kind: usize| {
        let blank = Blank::of(market, &market.kinds[kind], left);
        let found = search(&blank, worth, 0, STEPS);
        let pods = blank.pods(&found.counts);
        (!pods.is_empty()).then_some((found.worth, Pattern { kind, pods }))
    };
    let mut filled: Vec<(i128, Pattern)> = kinds.iter().copied().filter_map(fill).collect();
    let price = |node: &Pattern| i128::from(market.kinds[node.kind].price);
    filled.sort_by(|(a, x), (b, y)| (b * price(x)).cmp(&(a * price(y))).then(x.cmp(y)));
    filled
}
