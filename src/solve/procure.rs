//! New nodes from solved prices, for pods that nothing but room and caps keeps from sharing a node.
//!
//! Knows a market for each weight of pools; pods that come in company or that keep away from certain
//! others are left to the greedy packing, which knows all rules of a filling.

use super::allot::NodeRule;
use super::limits::Limits;
use super::market::Market;
use super::market::bought::Bought;
use super::market::purchase::{purchase, tightest};
use super::model::Model;
use super::pack::{LookAhead, Opened, Packing, pack};
use super::survey::Survey;

/// How nodes are chosen for the pods of a market; `None` where that is not for it to say.
type Choice = fn(&Market, &[u32]) -> Option<Bought>;

/// Returns nodes for `wanted` pods by class; `None` where what is not priced here decides: limits of
/// pools, and what pods would rather have.
pub(super) fn procure(model: &Model, wanted: &[u32], limits: &Limits) -> Option<Packing> {
    procured(model, (wanted, limits), |market, wanted| Some(purchase(market, wanted)))
}

/// Returns nodes for many classes of pods, found with more work; `None` where that finds none.
pub(super) fn procure_tightly(model: &Model, wanted: &[u32], limits: &Limits) -> Option<Packing> {
    procured(model, (wanted, limits), tightest)
}

fn procured(model: &Model, (wanted, limits): (&[u32], &Limits), choose: Choice) -> Option<Packing> {
    if limits.bind() || model.has_wishes {
        return None;
    }
    let mut weights: Vec<u32> = model.columns.iter().map(|column| column.weight).collect();
    weights.sort_unstable_by(|a, b| b.cmp(a));
    weights.dedup();
    let mut packing = Packing { opened: Vec::new(), left: wanted.to_vec() };
    for weight in weights {
        let of_weight = |column: &usize| model.columns[*column].weight == weight;
        let columns: Vec<usize> = model.undominated.iter().copied().filter(of_weight).collect();
        buy(model, &columns, (&mut packing, choose))?;
    }
    let rest = pack(model, &packing.left, limits, LookAhead::FAR);
    packing.opened.extend(rest.opened);
    packing.left = rest.left;
    Some(packing)
}

/// Buys nodes of `columns` for what is left.
fn buy(model: &Model, columns: &[usize], (packing, choose): (&mut Packing, Choice)) -> Option<()> {
    let is_taken = |class: usize| columns.iter().any(|c| model.columns[*c].takes[class]);
    let count = |(class, left): (usize, &u32)| {
        if *left > 0 && is_priced(model, class) && is_taken(class) { *left } else { 0 }
    };
    let wanted: Vec<u32> = packing.left.iter().enumerate().map(count).collect();
    if wanted.iter().all(|count| *count == 0) {
        return Some(());
    }
    let survey = Survey::of(model, &wanted, columns, &[]);
    let bought = choose(&survey.market, &survey.wanted)?;
    for (node, count) in bought.nodes {
        for _ in 0..count {
            let mut opened =
                Opened { column: survey.columns[node.kind], pods: [].into(), offer: None };
            for (class, count) in &node.pods {
                deal(&survey.members[*class], *count, &mut packing.left, &mut opened);
            }
            packing.opened.push(opened);
        }
    }
    Some(())
}

/// Puts `count` pods of classes that are alike on a node.
fn deal(classes: &[usize], count: u32, left: &mut [u32], opened: &mut Opened) {
    let mut count = count;
    for class in classes {
        let some = count.min(left[*class]);
        if some > 0 {
            left[*class] -= some;
            count -= some;
            *opened.pods.entry(*class).or_insert(0) += some;
        }
    }
}

fn is_priced(model: &Model, class: usize) -> bool {
    let class = &model.classes[class];
    let is_cap = |(rule, _): &(usize, _)| matches!(model.rules[*rule], NodeRule::Cap { .. });
    class.is_single() && class.rules.iter().all(is_cap)
}
