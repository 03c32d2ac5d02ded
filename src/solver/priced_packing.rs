//! New nodes from column generation, for pods that only room and caps keep from sharing a node.
//!
//! The module builds one problem per pool weight. Greedy packing handles pods with companions or
//! anti-affinity, because it applies all node rules.

use super::greedy_packing::{LookAhead, PackedNode, Packing, pack_greedily};
use super::limits::RemainingLimits;
use super::packing_model::PackingModel;
use super::pricing::BinPackingProblem;
use super::pricing::best_purchase::{best_purchase, thorough_purchase};
use super::pricing::purchase::Purchase;
use super::pricing_input::PricingInput;
use super::topology::NodeRule;

/// A strategy that chooses nodes for a problem. It returns `None` if it does not apply.
type PurchaseFn = fn(&BinPackingProblem, &[u32]) -> Option<Purchase>;

/// Returns nodes for `wanted` pods by class. Returns `None` if limits of pools or preferences of
/// pods matter, because dual prices ignore both.
pub(super) fn pack_by_prices(
    model: &PackingModel,
    wanted: &[u32],
    limits: &RemainingLimits,
) -> Option<Packing> {
    pack_with(model, wanted, limits, |problem, wanted| Some(best_purchase(problem, wanted)))
}

/// Returns nodes for many classes, found with more work. Returns `None` if that strategy does not
/// apply.
pub(super) fn pack_by_prices_thoroughly(
    model: &PackingModel,
    wanted: &[u32],
    limits: &RemainingLimits,
) -> Option<Packing> {
    pack_with(model, wanted, limits, thorough_purchase)
}

fn pack_with(
    model: &PackingModel,
    wanted: &[u32],
    limits: &RemainingLimits,
    choose: PurchaseFn,
) -> Option<Packing> {
    if limits.has_limits() || model.has_preferences {
        return None;
    }
    let mut weights: Vec<u32> =
        model.offer_classes.iter().map(|offer_class| offer_class.weight).collect();
    weights.sort_unstable_by(|a, b| b.cmp(a));
    weights.dedup();
    let mut packing = Packing { new_nodes: Vec::new(), left: wanted.to_vec() };
    for weight in weights {
        let of_weight = |offer_class: &usize| model.offer_classes[*offer_class].weight == weight;
        let offer_classes: Vec<usize> =
            model.undominated.iter().copied().filter(of_weight).collect();
        buy(model, &offer_classes, &mut packing, choose)?;
    }
    let rest = pack_greedily(model, &packing.left, limits, LookAhead::DEEP);
    packing.new_nodes.extend(rest.new_nodes);
    packing.left = rest.left;
    Some(packing)
}

/// Buys nodes of these offer classes for the remaining pods.
fn buy(
    model: &PackingModel,
    offer_classes: &[usize],
    packing: &mut Packing,
    choose: PurchaseFn,
) -> Option<()> {
    let is_taken =
        |class: usize| offer_classes.iter().any(|c| model.offer_classes[*c].admits[class]);
    let count = |(class, left): (usize, &u32)| {
        if *left > 0 && is_priced(model, class) && is_taken(class) { *left } else { 0 }
    };
    let wanted: Vec<u32> = packing.left.iter().enumerate().map(count).collect();
    if wanted.iter().all(|count| *count == 0) {
        return Some(());
    }
    let input = PricingInput::new(model, &wanted, offer_classes);
    let purchase = choose(&input.problem, &input.wanted)?;
    for (node, count) in purchase.nodes {
        for _ in 0..count {
            let mut packed = PackedNode {
                offer_class: input.offer_classes[node.offering],
                pods: [].into(),
                offer: None,
            };
            for (class, count) in &node.pods {
                distribute(&input.members[*class], *count, &mut packing.left, &mut packed);
            }
            packing.new_nodes.push(packed);
        }
    }
    Some(())
}

/// Adds `count` pods of merged classes to a node.
fn distribute(classes: &[usize], count: u32, left: &mut [u32], node: &mut PackedNode) {
    let mut count = count;
    for class in classes {
        let taken = count.min(left[*class]);
        if taken > 0 {
            left[*class] -= taken;
            count -= taken;
            *node.pods.entry(*class).or_insert(0) += taken;
        }
    }
}

fn is_priced(model: &PackingModel, class: usize) -> bool {
    let class = &model.classes[class];
    let is_cap = |(rule, _): &(usize, _)| matches!(model.rules[*rule], NodeRule::Cap { .. });
    class.is_independent() && class.rules.iter().all(is_cap)
}
