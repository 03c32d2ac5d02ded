//! From a packing to a fleet that every run of the rehearsal passes.
//!
//! Three ways, and the cheapest that passes wins: the packing as it is; nodes of few shapes, as many
//! as it takes (`mixture`); the packing with nodes added for what was left over. What can be left
//! out of the result again is left out; for few pods, all fleets that cost less are looked at
//! (`few`). Work is counted in pods times nodes, so that the result does
//! not depend on the machine; the count only ever ends the search for something cheaper.

use super::Purpose;
use super::layout::Layout;
use super::pack::{LookAhead, pack};
use super::rehearse::{Settled, Stage, Verdict};
use super::runs::planned_pods;
use super::target::Unsteered;
use crate::demand::PodGroup;
use crate::units::MicroUsd;

/// Times that nodes are added for what was left over; each time for twice as much of it.
const REPAIRS_MAX: u32 = 10;

/// How many times the price of a packing its repair may come to: beyond that, nodes stand empty for
/// luck alone, and it is the rule of a pod that has to be looked at.
const REPAIRED_PRICE_MAX: i64 = 4;

/// Pods up to which a plan is rehearsed; above, it says that it was not.
const REHEARSED_PODS_MAX: u64 = 300_000;

/// How much is done to find a cheaper fleet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    /// Pods times nodes after which nothing cheaper is looked for.
    pub work: u64,
    /// Whether more than one shape at a time is tried.
    pub thorough: bool,
    /// How far ahead nodes are packed that are added.
    pub ahead: LookAhead,
    /// The price that a fleet has to be below to be of use, where there is one.
    pub below: Option<MicroUsd>,
}

impl Budget {
    /// For the fleet itself: about two seconds of one core.
    const FULL: Self =
        Self { work: 300_000_000, thorough: true, ahead: LookAhead::FAR, below: None };
    /// For one of many changes that are tried.
    const SMALL: Self =
        Self { work: 25_000_000, thorough: false, ahead: LookAhead::NEAR, below: None };
    /// For a fleet of which a figure is shown, and which is not to be had: the same as in full where
    /// that is little.
    const ESTIMATE: Self =
        Self { work: 25_000_000, thorough: true, ahead: LookAhead::FAR, below: None };
}

impl Stage<'_> {
    /// Returns `layout` with whatever nodes it takes for every run to find each pod a place.
    pub(super) fn settle(&self, layout: &Layout) -> Settled {
        let budget = match self.purpose {
            Purpose::Plan => Budget::FULL,
            Purpose::Estimate => Budget::ESTIMATE,
        };
        self.settle_within(layout, budget)
    }

    /// Returns the same with less search, for a change that is one of many to be tried.
    pub(super) fn settle_trial(&self, layout: &Layout) -> Settled {
        self.settle_within(layout, Budget::SMALL)
    }

    /// Returns the same, or `None` where it would not be cheaper than `cap`: most that are tried of a
    /// large fleet are not, and finding out by how much takes long.
    pub(super) fn settle_below(&self, layout: &Layout, cap: MicroUsd) -> Option<Settled> {
        self.forget_work();
        let packed = layout.price;
        if let Verdict::Passed(settled) = self.rehearse(layout) {
            return Some(Settled { packed, ..self.without_idle(settled) });
        }
        let budget = Budget { below: Some(cap), ..Budget::SMALL };
        let best = match self.of_few_shapes(layout, budget) {
            Some(few) if self.work() > budget.work => few,
            Some(few) => self.repaired(layout, Some(few.layout.price), budget.ahead).unwrap_or(few),
            None => self.repaired(layout, Some(cap), budget.ahead)?,
        };
        Some(Settled { packed, ..self.trimmed(best, budget) })
    }

    fn settle_within(&self, layout: &Layout, budget: Budget) -> Settled {
        let packed = layout.price;
        if !is_rehearsed(self.groups) {
            return self.as_packed(layout);
        }
        self.forget_work();
        if let Verdict::Passed(settled) = self.rehearse(layout) {
            return Settled { packed, ..self.without_idle(settled) };
        }
        let best = match self.of_few_shapes(layout, budget) {
            Some(few) if self.work() > budget.work => few,
            Some(few) => self.repaired(layout, Some(few.layout.price), budget.ahead).unwrap_or(few),
            None => self
                .repaired(layout, None, budget.ahead)
                .unwrap_or_else(|| self.as_far_as_possible(layout)),
        };
        let best = self.trimmed(best, budget);
        let best = if budget.thorough { self.of_few_pods(layout, best) } else { best };
        Settled { packed, ..best }
    }

    /// Returns what a fleet lacks for every run to pass: the most pods that a run leaves over, and
    /// the nodes that would be added for them.
    pub(super) fn missing_unsteered(&self, settled: &Settled) -> Unsteered {
        let layout = pinned(settled);
        let pending = self.most_left(&layout);
        if pending == 0 {
            return Unsteered { pending, nodes: 0, hourly: MicroUsd::ZERO };
        }
        self.forget_work();
        let enough = self
            .repaired(&layout, None, LookAhead::FAR)
            .map(|more| self.trimmed(more, Budget::FULL));
        let more = enough.map_or_else(|| layout.clone(), |enough| enough.layout);
        let nodes = more.packing.opened.len().saturating_sub(layout.packing.opened.len());
        let hourly = (more.price - layout.price).max(MicroUsd::ZERO);
        Unsteered { pending, nodes: u32::try_from(nodes).unwrap_or(u32::MAX), hourly }
    }

    /// Returns the fleet with the nodes that it takes for runs to pass which were not played before;
    /// `None` where none bring that about.
    pub(super) fn mended(&self, settled: &Settled) -> Option<Settled> {
        self.forget_work();
        let layout = pinned(settled);
        let enough = self.repaired(&layout, None, LookAhead::FAR)?;
        Some(self.of_few_pods(&layout, self.trimmed(enough, Budget::SMALL)))
    }

    /// Leaves out new nodes as long as every run still finds each pod a place: first those that
    /// hold nothing, then of each column ever more at once, the dearest first.
    fn trimmed(&self, mut best: Settled, budget: Budget) -> Settled {
        best = self.without_idle(best);
        let columns = &self.ground.model.columns;
        let mut used: Vec<usize> = best.layout.packing.opened.iter().map(|n| n.column).collect();
        used.sort_unstable();
        used.dedup();
        used.sort_by_key(|column| std::cmp::Reverse(columns[*column].price));
        for column in used {
            let mut step = 1;
            while step > 0 && self.work() <= budget.work {
                let opened = best.layout.packing.opened.iter().enumerate().rev();
                let of_column = opened.filter(|(_, node)| node.column == column);
                let last: Vec<usize> = of_column.map(|(index, _)| index).take(step).collect();
                match self.without_nodes(&best, &last) {
                    Some(leaner) => (best, step) = (leaner, step * 2),
                    None => step /= 2,
                }
            }
        }
        best
    }

    /// Returns the fleet without these new nodes, where it holds.
    fn without_nodes(&self, settled: &Settled, nodes: &[usize]) -> Option<Settled> {
        if nodes.is_empty() {
            return None;
        }
        let mut layout = pinned(settled);
        let opened: Vec<_> = std::mem::take(&mut layout.packing.opened);
        for (index, node) in opened.into_iter().enumerate() {
            if nodes.contains(&index) {
                layout.price = layout.price - self.ground.model.columns[node.column].price;
            } else {
                layout.packing.opened.push(node);
            }
        }
        match self.rehearse(&layout) {
            Verdict::Passed(leaner) if leaner.unplaced == settled.unplaced => Some(leaner),
            Verdict::Passed(_) | Verdict::Left(_) => None,
        }
    }

    /// Adds nodes for what is left over until nothing is; `None` when the price reaches `cap`, or
    /// when nothing more can be had.
    ///
    /// The scheduler spreads pods over new nodes as well, so that adding just enough may go on for
    /// ever: each round adds room for twice as much of what was left as the one before.
    fn repaired(
        &self,
        layout: &Layout,
        cap: Option<MicroUsd>,
        ahead: LookAhead,
    ) -> Option<Settled> {
        let most = layout.price.times(REPAIRED_PRICE_MAX);
        let mut layout = layout.clone();
        for round in 0..REPAIRS_MAX {
            let left = match self.rehearse(&layout) {
                Verdict::Passed(settled) => return Some(settled),
                Verdict::Left(left) => left,
            };
            let grown: Vec<u32> = left.iter().map(|n| n.saturating_mul(1 << round)).collect();
            let limits = self.ground.limits_after(&layout.packing.opened);
            let more = pack(self.ground.model, &grown, &limits, ahead);
            if more.opened.is_empty() {
                return None;
            }
            layout.price += more.price(self.ground.model);
            layout.packing.opened.extend(more.opened);
            if layout.price > most || cap.is_some_and(|cap| layout.price >= cap) {
                return None;
            }
        }
        None
    }
}

/// Returns the layout with each new node of the very offer that was chosen for it.
pub(super) fn pinned(settled: &Settled) -> Layout {
    let mut layout = settled.layout.clone();
    for (node, offer) in layout.packing.opened.iter_mut().zip(&settled.offers) {
        node.offer = Some(*offer);
    }
    layout
}

/// Says, where that is so, that nothing was rehearsed.
pub(super) fn unrehearsed_text(groups: &[PodGroup]) -> Option<String> {
    let pods = planned_pods(groups);
    (pods > REHEARSED_PODS_MAX).then(|| {
        format!(
            "the plan is not rehearsed: it has {pods} pods, and at most {REHEARSED_PODS_MAX} are; \
             kube-scheduler may leave some of them pending"
        )
    })
}

/// Returns whether these pods are few enough to be rehearsed.
pub(super) fn is_rehearsed(groups: &[PodGroup]) -> bool {
    planned_pods(groups) <= REHEARSED_PODS_MAX
}
