//! The check before each step of a batch: plans again for the part of the plan that is done after it.
//!
//! A pod that arrived on a node to remove may fit nowhere else.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;

use super::Run;
use super::nomination::waits_for_node;
use super::replacement_batches::join;
use super::retirement_state::has_ended;
use super::wave_plan::{RetireWork, WaveWork};
use crate::apply::ports::{Clock, Cloud, Cluster};
use crate::model::ids::{Address, Uid};
use crate::model::observed::Observed;
use crate::plan::Plan;
use crate::plan::wire::{Action, ExplainRow, ResourceChange, WaveStep};

const UNREADABLE: &str = "the live state cannot be read";

/// Time for kube-scheduler to bind the pods that wait for new nodes. It retries a pod within ten
/// seconds.
const BINDING_WITHIN: SignedDuration = SignedDuration::from_secs(30);

/// Judgment of removals.
enum Judgment {
    Free,
    /// Pods need the nodes, or further launches.
    Needed(String),
    Blocked(String),
}

impl Judgment {
    fn into_blocker(self) -> Option<String> {
        match self {
            Self::Free => None,
            Self::Needed(why) | Self::Blocked(why) => Some(why),
        }
    }
}

impl<C: Cloud, K: Cluster, T: Clock> Run<'_, C, K, T> {
    /// Judges the batch that begins at `index`, before its launches. If its pods need launches of
    /// later batches, these are joined with it. Returns the reason to launch nothing, if any.
    ///
    /// Each judgment needs a plan of its own, because it places the pods without the nodes that its
    /// part removes. The number of plans is bounded: once a batch is blocked, no later batch is
    /// joined with another one. The next plan of the fleet has what is skipped.
    pub(super) async fn batch_blocker(
        &mut self,
        waves: &mut Vec<WaveWork<'_>>,
        index: usize,
    ) -> Option<String> {
        if self.settings.is_interrupted() {
            return None;
        }
        let observed = match self.observation.take().filter(Observed::is_complete) {
            Some(observed) => Some(observed),
            None => self.observe_with_retries().await,
        };
        let Some(observed) = observed else { return Some(UNREADABLE.to_owned()) };
        let is_end = |at: &usize| waves[*at].step() == WaveStep::Retire;
        let most = if self.joins_batches { usize::MAX } else { 1 };
        let ends: Vec<usize> = (index..waves.len()).filter(is_end).take(most).collect();
        let mut blocker = None;
        for (later, end) in ends.into_iter().enumerate() {
            let judgment = if later == 0 && self.is_idle(&waves[end], &observed) {
                Judgment::Free
            } else {
                self.judge(&waves[..=end], &observed).await
            };
            match judgment {
                Judgment::Free => {
                    if later > 0 {
                        join(waves, index..=end);
                    }
                    blocker = None;
                    break;
                }
                Judgment::Needed(why) => {
                    blocker.get_or_insert(why);
                }
                Judgment::Blocked(why) => {
                    blocker = Some(why);
                    break;
                }
            }
        }
        // The launches reuse it, because nothing is written in between.
        self.observation = Some(observed);
        // New pods wait for no removal. The first launches include theirs, and the removals are
        // judged once more after them.
        let has_first_launches =
            index == 0 && waves.first().is_some_and(|wave| wave.step() == WaveStep::Launch);
        let blocker = blocker.filter(|_| !has_first_launches);
        self.joins_batches &= blocker.is_none();
        blocker
    }

    /// Judges the removals that `waves` ends with, after the first write. Returns the reason why the
    /// nodes must stay, if any.
    pub(super) async fn removal_blocker(&mut self, waves: &[WaveWork<'_>]) -> Option<String> {
        if self.called_off.is_some() {
            return self.called_off.clone();
        }
        if self.observation.is_some() || self.settings.is_interrupted() {
            return None;
        }
        let Some(observed) = self.observe_with_retries().await else {
            return Some(UNREADABLE.to_owned());
        };
        if waves.last().is_some_and(|wave| self.is_idle(wave, &observed)) {
            return None;
        }
        match self.judge(waves, &observed).await {
            Judgment::Needed(why) => match self.observe_bound_pods(&observed).await {
                Some(observed) => self.judge(waves, &observed).await.into_blocker(),
                None => Some(why),
            },
            judgment @ (Judgment::Free | Judgment::Blocked(_)) => judgment.into_blocker(),
        }
    }

    /// Waits until kube-scheduler has bound the pods that wait for a node in `observed`. Returns the
    /// next observation; `None` if all of them still wait.
    ///
    /// New nodes are Ready before kube-scheduler has bound pods to them. A judgment places all pods
    /// without a node in several orders. Pods of the removed nodes may then take the room of those
    /// that wait, although they are evicted later.
    async fn observe_bound_pods(&self, observed: &Observed) -> Option<Observed> {
        let waiting = waiting_pods(observed);
        let deadline = self.deadline(BINDING_WITHIN);
        let (mut left, mut latest) = (waiting.len(), None);
        while left > 0 && self.now() < deadline && !self.settings.is_interrupted() {
            self.pause().await;
            let observed = self.observe_with_retries().await?;
            left = waiting_pods(&observed).intersection(&waiting).count();
            latest = Some(observed);
        }
        latest.filter(|_| left < waiting.len())
    }

    /// Plans again for the part of the plan that is done after `waves`.
    async fn judge(&self, waves: &[WaveWork<'_>], observed: &Observed) -> Judgment {
        let part = part_of(self.plan, &self.steps_in(waves));
        let replanned = self.settings.replan.replan(&part, observed).await;
        self.ports.clock.yield_now().await;
        match (replanned.removal_freeze(), replanned.blocked_removal) {
            (None, None) => Judgment::Free,
            (None, Some(why)) => Judgment::Needed(why),
            (Some(_), Some(why)) | (Some(why), None) => Judgment::Blocked(why),
        }
    }

    /// Returns the steps of `waves` that are done, or that this apply still does.
    fn steps_in<'w>(&self, waves: &'w [WaveWork<'_>]) -> BTreeSet<(&'w Address, WaveStep)> {
        let outcomes = self.outcomes.borrow();
        let is_settled: BTreeMap<(&Address, WaveStep), bool> = outcomes
            .iter()
            .map(|change| ((&change.address, change.step), change.outcome.is_settled()))
            .collect();
        let mut steps = BTreeSet::new();
        for wave in waves {
            match wave {
                WaveWork::Launch(works) => {
                    let is_in = |step: &(&Address, WaveStep)| {
                        !self.exceptions.dropped.contains_key(step.0)
                            && is_settled.get(step) != Some(&false)
                    };
                    let launches = works.iter().map(|work| (work.address, WaveStep::Launch));
                    steps.extend(launches.filter(is_in));
                }
                WaveWork::Retire(works) => {
                    let is_in = |work: &&RetireWork<'_>| {
                        let is_settled = is_settled.get(&(work.address, WaveStep::Retire)).copied();
                        is_settled.unwrap_or_else(|| self.skip_outcome(work, None).is_none())
                    };
                    let removals = works.iter().filter(is_in);
                    steps.extend(removals.map(|work| (work.address, WaveStep::Retire)));
                }
            }
        }
        steps
    }

    /// Returns true if no removal of a wave starts: it is skipped, or has ended already.
    fn is_idle(&self, wave: &WaveWork<'_>, observed: &Observed) -> bool {
        match wave {
            WaveWork::Launch(_) => false,
            WaveWork::Retire(works) => works
                .iter()
                .all(|work| has_ended(work, observed) || self.skip_outcome(work, None).is_some()),
        }
    }
}

/// Returns the pods that wait for a node.
fn waiting_pods(observed: &Observed) -> BTreeSet<Uid> {
    let waiting = observed.pods.iter().filter(|pod| waits_for_node(pod, observed));
    waiting.map(|pod| pod.uid.clone()).collect()
}

/// Returns the part of a plan with these steps: other launches are not in it, and nodes of other
/// removals stay.
fn part_of<'p>(plan: &'p Plan, steps: &BTreeSet<(&Address, WaveStep)>) -> Cow<'p, Plan> {
    let has = |address: &Address, step: WaveStep| steps.contains(&(address, step));
    let mut waves = plan.capacity.waves.iter();
    if waves.all(|wave| wave.addresses.iter().all(|address| has(address, wave.step))) {
        return Cow::Borrowed(plan);
    }
    let mut part = plan.clone();
    let rows = plan.resource_changes.iter();
    part.resource_changes =
        rows.flat_map(|row| rows_of_part(row, |step| has(&row.address, step))).collect();
    let staying: BTreeSet<&Address> = plan
        .resource_changes
        .iter()
        .filter(|row| row.change.actions.contains(&Action::Delete))
        .map(|row| &row.address)
        .filter(|address| !has(address, WaveStep::Retire) && !has(address, WaveStep::Launch))
        .collect();
    for row in part.capacity.explain.iter_mut().filter(|row| staying.contains(&row.address)) {
        let ExplainRow { pods, pods_before, hourly_before, hourly_after, .. } = row;
        (*pods, *hourly_after) = (pods_before.clone(), *hourly_before);
    }
    // No plan of the whole fleet equals a part, and a part leaves demand to the other parts.
    (part.capacity.digest, part.complete) = ("".into(), false);
    Cow::Owned(part)
}

/// Returns a row with only the steps of a part. A replacement whose launch alone is done has two
/// rows.
fn rows_of_part(row: &ResourceChange, has: impl Fn(WaveStep) -> bool) -> Vec<ResourceChange> {
    let does = |action| row.change.actions.contains(&action);
    let (launches, retires) = (has(WaveStep::Launch), has(WaveStep::Retire));
    let (creates, deletes) = (does(Action::Create), does(Action::Delete));
    if creates == launches && deletes == retires {
        return vec![row.clone()];
    }
    let mut rows = Vec::new();
    if launches {
        let mut launched = row.clone();
        (launched.change.actions, launched.change.before) = (vec![Action::Create], None);
        rows.push(launched);
    }
    if deletes {
        let mut existing = row.clone();
        let change = &mut existing.change;
        (change.actions, change.after) = if retires {
            (vec![Action::Delete], None)
        } else {
            (vec![Action::NoOp], change.before.clone())
        };
        rows.push(existing);
    }
    rows
}
