//! The cheapest nodes found for all pods of a market: every way to part them if they are few, else
//! the better of the ways that pay for few and for many pods a node.

use super::Market;
use super::bought::Bought;
use super::dive::dive;
use super::exact::cheapest;
use super::generate::{Effort, Pricing, ROWS_MAX};
use super::guided::guided;
use super::quota::shared_out;

/// How much is done for prices and the first mix.
const EFFORT: Effort = Effort { cut_rounds: 80, rounds: 60, steps: 500, steps_total: 500_000 };

/// The same for what is left over when most pods have their nodes.
const REST: Effort = Effort { cut_rounds: 40, rounds: 20, steps: 500, steps_total: 200_000 };

/// Returns nodes for `wanted` pods by class, of the kinds of `market` alone.
pub(in crate::solve) fn purchase(market: &Market, wanted: &[u32]) -> Bought {
    let mut bought = Bought::nothing(wanted);
    if let Some(end) = cheapest(market, wanted) {
        end.nodes.iter().for_each(|node| _ = bought.buy(node, 1));
        return bought;
    }
    let mut pricing = Pricing::of(market, wanted, EFFORT);
    pricing.price_cut();
    bought = shared_out(market, wanted, pricing.cut());
    let rest = for_rest(market, &bought.left);
    bought.and_then(rest);
    bought.shrink(market);
    if pricing.rows() <= ROWS_MAX {
        let mut dived = dive(market, wanted, pricing);
        dived.shrink(market);
        let key = |bought: &Bought| (bought.left_over(), bought.price(market));
        if key(&dived) < key(&bought) {
            return dived;
        }
    }
    bought
}

fn for_rest(market: &Market, left: &[u32]) -> Bought {
    let mut pricing = Pricing::of(market, left, REST);
    pricing.price_cut();
    let guided = guided(market, left, &pricing.best().worth);
    if pricing.rows() > ROWS_MAX {
        return guided;
    }
    let dived = dive(market, left, pricing);
    let key = |bought: &Bought| (bought.left_over(), bought.price(market));
    if key(&dived) < key(&guided) { dived } else { guided }
}
