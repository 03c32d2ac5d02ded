//! One node while pods are put on it: what is left of its room, and what its pods keep away.

use std::collections::BTreeMap;

use super::allot::NodeRule;
use super::model::{Model, Side, Vector, copies, take};

/// Pods by class.
pub(super) type Counts = BTreeMap<usize, u32>;

/// A node with the pods that are put on it.
#[derive(Debug, Clone)]
pub(super) struct Filling {
    /// What is left.
    pub room: Vector,
    /// The pods.
    pub pods: Counts,
    /// Pods on each side of each rule that concerns some of them.
    sides: BTreeMap<(usize, Side), u32>,
}

impl Filling {
    /// Returns a node without pods.
    pub(super) fn of(room: &[i64]) -> Self {
        Self { room: room.to_vec(), pods: Counts::new(), sides: BTreeMap::new() }
    }

    /// Returns how many more pods of `class` fit here beside those that are here, at most `limit`.
    pub(super) fn most(&self, model: &Model, class: usize, limit: u32) -> u32 {
        let fits = model.copies(class, &self.room, limit);
        if fits == 0 || model.classes[class].is_plain() {
            return fits;
        }
        let rules = model.classes[class].rules.iter();
        rules.map(|rule| self.allowed(model, *rule, fits)).fold(fits, u32::min)
    }

    /// How many of the pods that would fit a rule allows, for pods on that side of it.
    fn allowed(&self, model: &Model, (rule, side): (usize, Side), fits: u32) -> u32 {
        let here = |side| self.sides.get(&(rule, side)).copied().unwrap_or(0);
        let free = match (&model.rules[rule], side) {
            (NodeRule::Cap { most, .. }, _) => return most.saturating_sub(here(Side::Ones)),
            (NodeRule::Apart { .. }, Side::Ones) => here(Side::Others) == 0,
            (NodeRule::Apart { .. }, Side::Others) => here(Side::Ones) == 0,
            (NodeRule::Near { .. }, Side::Ones) => here(Side::Others) > 0,
            (NodeRule::Near { .. }, Side::Others) => true,
        };
        if free { fits } else { 0 }
    }

    /// Puts pods here; nothing is checked.
    pub(super) fn put(&mut self, model: &Model, class: usize, count: u32) {
        if count == 0 {
            return;
        }
        take(&mut self.room, &model.classes[class].ask, count);
        *self.pods.entry(class).or_insert(0) += count;
        for rule in &model.classes[class].rules {
            *self.sides.entry(*rule).or_insert(0) += count;
        }
    }

    /// Puts pods of a class here that bring others along, or all go to one node, as many as have
    /// room with their company; `left` is what there is of each class.
    pub(super) fn put_company(
        &mut self,
        model: &Model,
        class: usize,
        left: &[u32],
        takes: &[bool],
    ) {
        let planned = |class: usize| left[class];
        let here = |filling: &Self, class: usize| filling.pods.get(&class).copied().unwrap_or(0);
        let rest =
            |filling: &Self, class: usize| planned(class).saturating_sub(here(filling, class));
        while rest(self, class) > 0 {
            let leader = if model.classes[class].whole { rest(self, class) } else { 1 };
            let mut trial = self.clone();
            if trial.most(model, class, leader) < leader {
                return;
            }
            trial.put(model, class, leader);
            for (follower, share) in &model.classes[class].brings {
                let count = (*share).min(rest(&trial, *follower));
                if !takes[*follower] || trial.most(model, *follower, count) < count {
                    return;
                }
                trial.put(model, *follower, count);
            }
            *self = trial;
        }
    }
}

/// Returns whether one node with this room, which takes these classes, may hold exactly `pods`.
pub(super) fn holds(model: &Model, room: &[i64], takes: &[bool], pods: &Counts) -> bool {
    let mut filling = Filling::of(room);
    for (class, count) in pods {
        let ask = &model.classes[*class].ask;
        if !takes[*class] || copies(ask, &filling.room, *count) < *count {
            return false;
        }
        filling.put(model, *class, *count);
    }
    filling.keeps_rules(model)
}

impl Filling {
    fn keeps_rules(&self, model: &Model) -> bool {
        let here = |rule, side| self.sides.get(&(rule, side)).copied().unwrap_or(0);
        self.sides.keys().all(|(rule, _)| {
            let (ones, others) = (here(*rule, Side::Ones), here(*rule, Side::Others));
            match &model.rules[*rule] {
                NodeRule::Cap { most, .. } => ones <= *most,
                NodeRule::Apart { .. } => ones == 0 || others == 0,
                NodeRule::Near { .. } => ones == 0 || others > 0,
            }
        })
    }
}
