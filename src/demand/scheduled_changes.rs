//! The moments at which what a repository asks for changes by the clock alone.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::jobs;
use crate::model::desired::{
    Budget, CronSchedule, Desired, EventDriven, Pool, Scale, Scaler, ScalerRule, Schedule, Workload,
};
use crate::model::ids::Origin;

/// Most times of one schedule that are looked at: one a minute for 69 days, which is longer than any
/// forecast with what leads to it.
const TIMES_MAX: usize = 100_000;

/// Something that the clock does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScheduledChange {
    /// The object, such as `ScaledObject web/api`.
    pub object: String,
    /// File and line.
    pub origin: Origin,
    /// What happens, such as `the window opens`.
    pub what: String,
    /// Whether the fleet may change by it.
    pub changes_fleet: bool,
}

/// Returns what the clock does from `from` up to and with `to`, by moment.
///
/// Capacity is asked for `lead` before it is needed, and pods stay for a while after what wanted
/// them has ended: both are moments of their own.
#[must_use]
pub fn scheduled_changes(
    desired: &Desired,
    (from, to): (Timestamp, Timestamp),
) -> BTreeMap<Timestamp, Vec<ScheduledChange>> {
    let mut all = Moments { desired, from, to, found: BTreeMap::new() };
    for scaler in &desired.scalers {
        if let ScalerRule::EventDriven(rule) = &scaler.rule {
            all.windows(scaler, rule);
        }
    }
    for workload in desired.workloads.values() {
        if let Scale::CronJob { suspended: false, schedule, .. } = &workload.scale {
            all.runs(workload, schedule);
        }
    }
    for pool in desired.pools.values() {
        for budget in &pool.budgets {
            all.budget(pool, budget);
        }
    }
    for ticks in all.found.values_mut() {
        ticks.sort();
        ticks.dedup();
    }
    all.found
}

struct Moments<'a> {
    desired: &'a Desired,
    from: Timestamp,
    to: Timestamp,
    found: BTreeMap<Timestamp, Vec<ScheduledChange>>,
}

impl Moments<'_> {
    fn add(&mut self, at: Option<Timestamp>, tick: ScheduledChange) {
        let inside = at.filter(|at| *at > self.from && *at <= self.to);
        if let Some(at) = inside {
            self.found.entry(at).or_default().push(tick);
        }
    }

    fn windows(&mut self, scaler: &Scaler, rule: &EventDriven) {
        let tick = |what: String| ScheduledChange {
            object: scaler.object.clone(),
            origin: scaler.origin.clone(),
            what,
            changes_fleet: true,
        };
        let lead = self.desired.lead_time;
        let late = self.to.checked_add(lead).unwrap_or(self.to);
        for cron in &rule.crons {
            for start in cron.start.times_between(self.from, late, TIMES_MAX) {
                let what = format!("{} pods are wanted from {start}", cron.desired);
                self.add(start.checked_sub(lead).ok(), tick(what));
                self.add(Some(start), tick("a window opens".to_owned()));
            }
            for end in cron.end.times_between(self.from, self.to, TIMES_MAX) {
                self.add(Some(end), tick("a window closes".to_owned()));
            }
            // What ended before the span may be held into it.
            for wait in [rule.stabilization, rule.cooldown] {
                let wait = wait.saturating_add(rule.polling);
                for end in self.between_before(&cron.end, wait) {
                    self.add(end.checked_add(wait).ok(), tick("its pods have gone".to_owned()));
                }
            }
        }
    }

    /// Returns the times of a schedule which the span is `wait` later than.
    fn between_before(&self, schedule: &Schedule, wait: SignedDuration) -> Vec<Timestamp> {
        let (Ok(from), Ok(to)) = (self.from.checked_sub(wait), self.to.checked_sub(wait)) else {
            return Vec::new();
        };
        schedule.times_between(from, to, TIMES_MAX)
    }

    fn runs(&mut self, workload: &Workload, schedule: &CronSchedule) {
        if schedule.schedule.is_interval() {
            // Room for a run is kept at any time: nothing here tells when one is due.
            return;
        }
        let tick = |what: String| ScheduledChange {
            object: format!("{} {}", workload.id.kind, workload.id),
            origin: workload.origin.clone(),
            what,
            changes_fleet: true,
        };
        let lead = self.desired.lead_time;
        let length = jobs::run_duration(schedule);
        let late = self.to.checked_add(lead).unwrap_or(self.to);
        let bound = if schedule.deadline.is_some() { "its deadline" } else { "15 minutes, taken" };
        for run in schedule.schedule.times_between(self.from, late, TIMES_MAX) {
            self.add(run.checked_sub(lead).ok(), tick(format!("a run is due at {run}")));
        }
        for run in self.between_before(&schedule.schedule, length) {
            self.add(run.checked_add(length).ok(), tick(format!("its run has ended ({bound})")));
        }
    }

    fn budget(&mut self, pool: &Pool, budget: &Budget) {
        let (Some(schedule), Some(duration)) = (&budget.schedule, budget.duration) else { return };
        let tick = |what: String| ScheduledChange {
            object: format!("NodePool {}", pool.name),
            origin: pool.origin.clone(),
            what,
            changes_fleet: false,
        };
        for start in schedule.times_between(self.from, self.to, TIMES_MAX) {
            let what = format!("at most {} nodes may go at a time from here on", budget.nodes);
            self.add(Some(start), tick(what));
        }
        for start in self.between_before(schedule, duration) {
            let what = format!("the budget of {} nodes ends", budget.nodes);
            self.add(start.checked_add(duration).ok(), tick(what));
        }
    }
}
