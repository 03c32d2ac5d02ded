//! Measurements of a day.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use fleetwright::catalog::Catalog;
use fleetwright::model::ids::{InstanceId, NodeName, Uid};
use fleetwright::model::observed::{Instance, InstanceState, Observed};
use fleetwright::model::units::MicroUsd;
use fleetwright::plan::Plan;
use fleetwright::plan::wire::WaveStep;
use jiff::{SignedDuration, Timestamp};

use super::STEP;
use crate::simulation::environment::CallKind;
use crate::simulation::harness::Simulation;

/// A node with a shorter life was launched in vain, unless the demand changed.
const SHORT_LIFE: SignedDuration = SignedDuration::from_mins(30);

/// The plans of the whole fleet.
#[derive(Default)]
struct Plans {
    made: u32,
    with_changes: u32,
    /// Plans with changes from an input whose plan had none.
    repeated: u32,
    bound: MicroUsd,
    /// Last input whose plan had no changes, with its commit.
    at_rest: Option<(Option<String>, Arc<Observed>)>,
    /// Descriptions of new plans with changes.
    lines: Vec<String>,
}

impl Plans {
    fn record(&mut self, world: &Arc<Observed>, plan: &Plan) {
        let (commit, cost) = (plan.capacity.base.commit.clone(), &plan.capacity.cost);
        self.made += 1;
        self.bound = cost.lower_bound_hourly;
        let changed = |step| {
            let waves = plan.capacity.waves.iter().filter(move |wave| wave.step == step);
            waves.map(|wave| wave.addresses.len()).sum::<usize>()
        };
        let (launches, removals) = (changed(WaveStep::Launch), changed(WaveStep::Retire));
        if launches + removals == 0 {
            self.at_rest = Some((commit, Arc::clone(world)));
            return;
        }
        self.with_changes += 1;
        let is_repeated = self.at_rest.as_ref().is_some_and(|(of, before)| {
            *of == commit
                && before.pods == world.pods
                && before.nodes == world.nodes
                && before.instances == world.instances
                && before.workloads == world.workloads
        });
        self.repeated += u32::from(is_repeated);
        let again = if is_repeated { " at unchanged input" } else { "" };
        self.lines.push(format!(
            "{:.0} plans {launches} launches and {removals} removals{again}, USD {} to {}, bound {}",
            world.taken_at,
            cost.hourly_before.rounded(2),
            cost.hourly_after.rounded(2),
            self.bound.rounded(2),
        ));
    }
}

/// The time of a launch, and the demand at that time.
struct LaunchedAt {
    at: Timestamp,
    /// Number of changes of the demand until then.
    changes: u32,
    requested: i64,
}

/// Sums over a run.
#[derive(Default)]
pub(super) struct Meter {
    plans: Rc<RefCell<Plans>>,
    begin: Timestamp,
    end: Timestamp,
    seen_calls: usize,
    /// Price and lower bound, times seconds.
    spent: i128,
    bound: i128,
    pod_seconds: i64,
    pending_pod_seconds: i64,
    evicted: BTreeSet<Uid>,
    evicted_by_interruption: BTreeSet<Uid>,
    launched: BTreeMap<InstanceId, LaunchedAt>,
    terminated: BTreeSet<InstanceId>,
    interrupted: BTreeSet<InstanceId>,
    interrupted_nodes: BTreeSet<NodeName>,
    /// Number of changes of the demand, and the requested CPU.
    changes: u32,
    requested: i64,
    /// Terminations soon after the launch: all, those without a fall of the demand, and those
    /// without any change of it.
    short_lives: u32,
    without_fall: u32,
    pointless: u32,
}

impl Meter {
    /// Starts to measure a run.
    pub(super) fn new(run: &Simulation, requested: i64) -> Self {
        let plans: Rc<RefCell<Plans>> = Rc::default();
        let status = run.status().and_then(|status| status.plan);
        let bound = status.map(|plan| plan.plan.capacity.cost.lower_bound_hourly);
        plans.borrow_mut().bound = bound.unwrap_or_default();
        let recorder = Rc::clone(&plans);
        let observer = move |world: &Arc<Observed>, plan: &Plan| {
            recorder.borrow_mut().record(world, plan);
        };
        *run.shared.plan_observer.borrow_mut() = Some(Box::new(observer));
        let (now, seen_calls) = (run.now(), run.shared.calls.borrow().len());
        Self { plans, begin: now, end: now, seen_calls, requested, ..Self::default() }
    }

    /// Records a change of the demand.
    pub(super) fn record_demand(&mut self, requested: i64) {
        (self.changes, self.requested) = (self.changes + 1, requested);
    }

    /// Records the warning of an interruption, which changes the supply.
    pub(super) fn record_interruption(&mut self, run: &Simulation, id: &InstanceId) {
        self.changes += 1;
        self.interrupted.insert(id.clone());
        let node = run.observed().node_for_instance(id).map(|node| node.name.clone());
        self.interrupted_nodes.extend(node);
    }

    /// Measures the time since the last call.
    pub(super) fn measure(
        &mut self,
        run: &Simulation,
        catalog: &Catalog,
        log: &mut impl FnMut(&str),
    ) {
        let seconds = STEP.as_secs();
        let view = run.shared.world.view();
        for pod in view.pods().filter(|pod| pod.is_active()) {
            self.pod_seconds += seconds;
            self.pending_pod_seconds += if pod.node.is_none() { seconds } else { 0 };
        }
        let paid = |i: &&Instance| i.state != InstanceState::Terminated;
        let price: i64 = view.instances().values().filter(paid).map(|i| price(catalog, i)).sum();
        drop(view);
        self.spent += i128::from(price) * i128::from(seconds);
        let mut plans = self.plans.borrow_mut();
        self.bound += i128::from(plans.bound.0) * i128::from(seconds);
        plans.lines.drain(..).for_each(|line| log(&line));
        drop(plans);
        self.end = run.now();
        let calls = run.shared.calls.borrow();
        for call in &calls[self.seen_calls..] {
            if !matches!(call.kind, CallKind::Evict(..) | CallKind::Nominate(..)) {
                log(&format!("{:.0} {:?}", call.at, call.kind));
            }
            self.record_call(call.at, &call.kind);
        }
        self.seen_calls = calls.len();
    }

    fn record_call(&mut self, at: Timestamp, kind: &CallKind) {
        if let CallKind::Launch(_, Some(id)) = kind {
            let (changes, requested) = (self.changes, self.requested);
            self.launched.entry(id.clone()).or_insert(LaunchedAt { at, changes, requested });
        } else if let CallKind::Terminate(ended) = kind {
            if self.terminated.insert(ended.id.clone()) {
                self.record_termination(at, &ended.id);
            }
        } else if let CallKind::Evict(pod, node) = kind {
            let interrupted = &self.interrupted_nodes;
            let is_voluntary = node.as_ref().is_none_or(|node| !interrupted.contains(node));
            let evicted = &mut self.evicted_by_interruption;
            if is_voluntary { &mut self.evicted } else { evicted }.insert(pod.clone());
        }
    }

    fn record_termination(&mut self, at: Timestamp, id: &InstanceId) {
        let launch = self.launched.get(id).filter(|_| !self.interrupted.contains(id));
        if let Some(launch) = launch.filter(|launch| at.duration_since(launch.at) < SHORT_LIFE) {
            self.short_lives += 1;
            self.without_fall += u32::from(self.requested >= launch.requested);
            self.pointless += u32::from(self.changes == launch.changes);
        }
    }

    /// Returns the number of launches, of those that were pointless, and of plans with changes at
    /// unchanged input.
    pub(super) fn counts(&self) -> (usize, u32, u32) {
        (self.launched.len(), self.pointless, self.plans.borrow().repeated)
    }

    /// Returns the result, a line for each row.
    pub(super) fn lines(&self) -> Vec<String> {
        let hour = i128::from(SignedDuration::from_hours(1).as_secs());
        let dollars = |sum: i128| {
            let micro = i64::try_from(sum / hour).unwrap_or(i64::MAX);
            MicroUsd(micro).rounded(2)
        };
        let per_mille = |part: i128, whole: i128| part * 1000 / whole.max(1);
        let over = per_mille(self.spent - self.bound, self.bound);
        let evicted = i128::try_from(self.evicted.len()).unwrap_or(0);
        let daily = per_mille(evicted * hour * 24, i128::from(self.pod_seconds));
        let minutes = self.end.duration_since(self.begin).as_mins();
        let plans = self.plans.borrow();
        let rows = [
            ("minutes", minutes.to_string()),
            ("fleet, USD", dollars(self.spent)),
            ("lower bound, USD", dollars(self.bound)),
            ("fleet over the bound", format!("{}.{} %", over / 10, over % 10)),
            ("pod-hours", (i128::from(self.pod_seconds) / hour).to_string()),
            ("pending-pod-seconds", self.pending_pod_seconds.to_string()),
            ("pods evicted voluntarily", evicted.to_string()),
            ("the same per pod-day", format!("{}.{:03}", daily / 1000, daily % 1000)),
            ("pods evicted by interruptions", self.evicted_by_interruption.len().to_string()),
            ("changes of demand or supply", self.changes.to_string()),
            ("launches", self.launched.len().to_string()),
            ("terminations", self.terminated.len().to_string()),
            ("terminated within 30 minutes of the launch", self.short_lives.to_string()),
            ("the same, without a fall of demand", self.without_fall.to_string()),
            ("the same, without any change", self.pointless.to_string()),
            ("plans", plans.made.to_string()),
            ("plans with changes", plans.with_changes.to_string()),
            ("plans with changes at unchanged input", plans.repeated.to_string()),
        ];
        rows.iter().map(|(name, value)| format!("{name:<44} {value:>10}")).collect()
    }
}

/// Returns the hourly price of an instance in micro-USD.
fn price(catalog: &Catalog, instance: &Instance) -> i64 {
    let kind = catalog.types.get(&instance.instance_type);
    let mut offerings = kind.into_iter().flat_map(|kind| &kind.offerings);
    let found = offerings.find(|offering| {
        offering.zone == instance.zone && offering.capacity_type == instance.capacity_type
    });
    found.and_then(|offering| offering.price).map_or(0, |price| price.0)
}
