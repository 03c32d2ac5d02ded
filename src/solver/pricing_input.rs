//! Converts pods and offer classes of the packing model to the input of `pricing`.

use std::collections::BTreeMap;

use super::packing_model::PackingModel;
use super::pricing::{BinPackingProblem, DemandClass, NodeOffering, PodCap};
use super::topology::NodeRule;

/// A pricing problem and the mapping back to the model.
pub(super) struct PricingInput {
    pub problem: BinPackingProblem,
    /// Wanted pods by class of the problem.
    pub wanted: Vec<u32>,
    /// For each offering of the problem, its offer class.
    pub offer_classes: Vec<usize>,
    /// For each class of the problem, the merged pod classes.
    pub members: Vec<Vec<usize>>,
}

impl PricingInput {
    /// Returns the problem of `wanted` pods by class, on the given offer classes.
    /// Caps are the only node rules it includes.
    pub(super) fn new(model: &PackingModel, wanted: &[u32], offer_classes: &[usize]) -> Self {
        let members = group_alike(model, wanted, offer_classes);
        let offer_classes = distinct(model, offer_classes);
        let only = |admits: &[bool]| members.iter().map(|of| admits[of[0]]).collect();
        let offering = |offer_class: &usize| {
            let offer_class = &model.offer_classes[*offer_class];
            NodeOffering {
                price: offer_class.price.0,
                room: offer_class.room.clone(),
                admits: only(&offer_class.admits),
            }
        };
        let offerings: Vec<NodeOffering> = offer_classes.iter().map(offering).collect();
        let caps = caps(model, &members);
        let demand =
            |of: &Vec<usize>| DemandClass { requests: model.classes[of[0]].requests.clone() };
        let classes = members.iter().map(demand).collect();
        let problem = BinPackingProblem::new(classes, offerings, caps);
        let sum = |of: &Vec<usize>| of.iter().map(|c| wanted[*c]).fold(0, u32::saturating_add);
        let wanted = members.iter().map(sum).collect();
        Self { problem, wanted, offer_classes, members }
    }
}

/// Returns the caps that apply to these classes.
fn caps(model: &PackingModel, members: &[Vec<usize>]) -> Vec<PodCap> {
    let cap = |(index, rule): (usize, &NodeRule)| {
        let NodeRule::Cap { max_pods, .. } = rule else { return None };
        let concerns = |of: &Vec<usize>| {
            model.classes[of[0]].rules.iter().any(|(of_class, _)| *of_class == index)
        };
        let members: Vec<usize> =
            (0..members.len()).filter(|class| concerns(&members[*class])).collect();
        (!members.is_empty()).then_some(PodCap { members, max_pods: *max_pods })
    };
    model.rules.iter().enumerate().filter_map(cap).collect()
}

/// Groups the wanted classes that the problem does not distinguish.
fn group_alike(model: &PackingModel, wanted: &[u32], offer_classes: &[usize]) -> Vec<Vec<usize>> {
    let mut keyed: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for class in (0..wanted.len()).filter(|class| wanted[*class] > 0) {
        let on_columns =
            offer_classes.iter().map(|offer_class| model.offer_classes[*offer_class].admits[class]);
        let admits: Vec<bool> = on_columns.collect();
        let class_key = &model.classes[class];
        keyed.entry((&class_key.requests, &class_key.rules, admits)).or_default().push(class);
    }
    keyed.into_values().collect()
}

/// Returns the first of the offer classes that differ only in their pool.
fn distinct(model: &PackingModel, offer_classes: &[usize]) -> Vec<usize> {
    let mut seen = BTreeMap::new();
    for offer_class in offer_classes {
        let of = &model.offer_classes[*offer_class];
        seen.entry((of.price, &of.room, &of.admits)).or_insert(*offer_class);
    }
    let mut offer_classes: Vec<usize> = seen.into_values().collect();
    offer_classes.sort_unstable();
    offer_classes
}
