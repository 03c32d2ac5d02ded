//! One node during packing: its remaining room, and the rules of its pods.

use std::collections::BTreeMap;

use super::packing_model::{PackingModel, ResourceVector, RuleSide, has_room, subtract};
use super::topology::NodeRule;

/// Pod counts by class.
pub(super) type PodsByClass = BTreeMap<usize, u32>;

/// A node and the pods packed onto it.
#[derive(Debug, Clone)]
pub(super) struct NodePacking {
    /// Remaining room.
    pub room: ResourceVector,
    pub pods: PodsByClass,
    /// Pods on each side of each rule that applies to them.
    rule_counts: BTreeMap<(usize, RuleSide), u32>,
}

impl NodePacking {
    /// Returns a node without pods.
    pub(super) fn new(room: &[i64]) -> Self {
        Self { room: room.to_vec(), pods: PodsByClass::new(), rule_counts: BTreeMap::new() }
    }

    /// Returns how many more pods of `class` fit, at most `limit`.
    pub(super) fn max_more(&self, model: &PackingModel, class: usize, limit: u32) -> u32 {
        let fits = model.copies(class, &self.room, limit);
        if fits == 0 || model.classes[class].is_unconstrained() {
            return fits;
        }
        let rules = model.classes[class].rules.iter();
        rules.map(|rule| self.allowed_by(model, rule.0, rule.1, fits)).fold(fits, u32::min)
    }

    /// Returns how many of `fits` pods on one side of a rule the rule allows.
    fn allowed_by(&self, model: &PackingModel, rule: usize, side: RuleSide, fits: u32) -> u32 {
        let here = |side| self.rule_counts.get(&(rule, side)).copied().unwrap_or(0);
        let free = match (&model.rules[rule], side) {
            (NodeRule::Cap { max_pods, .. }, _) => {
                return max_pods.saturating_sub(here(RuleSide::Subject));
            }
            (NodeRule::AntiAffinity { .. }, RuleSide::Subject) => here(RuleSide::Peer) == 0,
            (NodeRule::AntiAffinity { .. }, RuleSide::Peer) => here(RuleSide::Subject) == 0,
            (NodeRule::Affinity { .. }, RuleSide::Subject) => here(RuleSide::Peer) > 0,
            (NodeRule::Affinity { .. }, RuleSide::Peer) => true,
        };
        if free { fits } else { 0 }
    }

    /// Adds pods without any check.
    pub(super) fn add(&mut self, model: &PackingModel, class: usize, count: u32) {
        if count == 0 {
            return;
        }
        subtract(&mut self.room, &model.classes[class].requests, count);
        *self.pods.entry(class).or_insert(0) += count;
        for rule in &model.classes[class].rules {
            *self.rule_counts.entry(*rule).or_insert(0) += count;
        }
    }

    /// Adds pods of a class that needs companions or must share one node. It adds as many as fit
    /// together with their companions; `available` holds the pods of each class.
    pub(super) fn add_with_companions(
        &mut self,
        model: &PackingModel,
        class: usize,
        available: &[u32],
        admits: &[bool],
    ) {
        let planned = |class: usize| available[class];
        let here = |packing: &Self, class: usize| packing.pods.get(&class).copied().unwrap_or(0);
        let rest =
            |packing: &Self, class: usize| planned(class).saturating_sub(here(packing, class));
        while rest(self, class) > 0 {
            let leader = if model.classes[class].is_colocated { rest(self, class) } else { 1 };
            let mut trial = self.clone();
            if trial.max_more(model, class, leader) < leader {
                return;
            }
            trial.add(model, class, leader);
            for (follower, share) in &model.classes[class].companions {
                let count = (*share).min(rest(&trial, *follower));
                if !admits[*follower] || trial.max_more(model, *follower, count) < count {
                    return;
                }
                trial.add(model, *follower, count);
            }
            *self = trial;
        }
    }
}

/// Pods that are tried on many nodes: their classes, their total requests, and their rules.
pub(super) struct PodSet {
    classes: Vec<usize>,
    requests: ResourceVector,
    obeys_rules: bool,
    /// Work of trying the classes on a node.
    pub work: u64,
}

impl PodSet {
    pub(super) fn new(model: &PackingModel, pods: &PodsByClass) -> Self {
        let mut packing = NodePacking::new(&vec![0; model.resource_count()]);
        for (class, count) in pods {
            packing.add(model, *class, *count);
        }
        let requests = packing.room.iter().map(|room| room.saturating_neg()).collect();
        let obeys_rules = packing.satisfies_rules(model);
        let work = pods.keys().map(|class| model.work_of(*class)).fold(0, u64::saturating_add);
        Self { classes: pods.keys().copied().collect(), requests, obeys_rules, work }
    }

    /// Returns true if one node with this room, which admits these classes, may hold all pods.
    #[inline]
    pub(super) fn fits(&self, room: &[i64], admits: &[bool]) -> bool {
        self.obeys_rules
            && has_room(&self.requests, room)
            && self.classes.iter().all(|class| admits[*class])
    }
}

impl NodePacking {
    fn satisfies_rules(&self, model: &PackingModel) -> bool {
        let here = |rule, side| self.rule_counts.get(&(rule, side)).copied().unwrap_or(0);
        self.rule_counts.keys().all(|(rule, _)| {
            let (subjects, peers) = (here(*rule, RuleSide::Subject), here(*rule, RuleSide::Peer));
            match &model.rules[*rule] {
                NodeRule::Cap { max_pods, .. } => subjects <= *max_pods,
                NodeRule::AntiAffinity { .. } => subjects == 0 || peers == 0,
                NodeRule::Affinity { .. } => subjects == 0 || peers > 0,
            }
        })
    }
}
