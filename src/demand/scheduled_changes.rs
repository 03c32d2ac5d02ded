//! Times at which the demand of a repository changes by schedule.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::jobs;
use crate::model::desired::{
    Budget, CronSchedule, Desired, EventDriven, Pool, Scale, Scaler, ScalerRule, Schedule, Workload,
};
use crate::model::ids::Origin;
use crate::model::plural::count;

/// Maximum number of evaluated times of one schedule: one per minute for 69 days. That exceeds any
/// forecast with its lead time.
const TIMES_MAX: usize = 100_000;

/// A change by schedule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScheduledChange {
    /// Kind and name of the object, such as `ScaledObject web/api`.
    pub object: String,
    /// File and line of the object.
    pub origin: Origin,
    /// Description, such as `a window opens`.
    pub description: String,
    /// True if the change may affect the fleet.
    pub changes_fleet: bool,
}

/// Returns the scheduled changes after `from` and up to `to` (included), by time.
///
/// Windows and runs have a change one lead time before their start, when their capacity is
/// requested. Another change follows when their pods have ended.
pub fn scheduled_changes(
    desired: &Desired,
    from: Timestamp,
    to: Timestamp,
) -> BTreeMap<Timestamp, Vec<ScheduledChange>> {
    let mut collector = ChangeCollector { desired, from, to, found: BTreeMap::new() };
    for scaler in &desired.scalers {
        if let ScalerRule::EventDriven(rule) = &scaler.rule {
            collector.windows(scaler, rule);
        }
    }
    for workload in desired.workloads.values() {
        if let Scale::CronJob { suspended: false, schedule, .. } = &workload.scale {
            collector.runs(workload, schedule);
        }
    }
    for pool in desired.pools.values() {
        for budget in &pool.budgets {
            collector.budget(pool, budget);
        }
    }
    for changes in collector.found.values_mut() {
        changes.sort();
        changes.dedup();
    }
    collector.found
}

struct ChangeCollector<'a> {
    desired: &'a Desired,
    from: Timestamp,
    to: Timestamp,
    found: BTreeMap<Timestamp, Vec<ScheduledChange>>,
}

impl ChangeCollector<'_> {
    fn add(&mut self, at: Option<Timestamp>, change: ScheduledChange) {
        let inside = at.filter(|at| *at > self.from && *at <= self.to);
        if let Some(at) = inside {
            self.found.entry(at).or_default().push(change);
        }
    }

    fn windows(&mut self, scaler: &Scaler, rule: &EventDriven) {
        let change = |description: String| ScheduledChange {
            object: scaler.object.clone(),
            origin: scaler.origin.clone(),
            description,
            changes_fleet: true,
        };
        let lead = self.desired.lead_time;
        let latest = self.to.checked_add(lead).unwrap_or(self.to);
        for cron in &rule.crons {
            for start in cron.start.times_between(self.from, latest, TIMES_MAX) {
                let verb = if cron.desired == 1 { "is" } else { "are" };
                let what = format!("{} {verb} wanted from {start}", count(cron.desired, "pod"));
                self.add(start.checked_sub(lead).ok(), change(what));
                self.add(Some(start), change("a window opens".to_owned()));
            }
            for end in cron.end.times_between(self.from, self.to, TIMES_MAX) {
                self.add(Some(end), change("a window closes".to_owned()));
            }
            // Pods of a window that ended before the span may be stabilized into it.
            for delay in [rule.stabilization, rule.cooldown] {
                let delay = delay.saturating_add(rule.polling);
                for end in self.times_before(&cron.end, delay) {
                    self.add(end.checked_add(delay).ok(), change("its pods have gone".to_owned()));
                }
            }
        }
    }

    /// Returns the times of a schedule that fall into the span when delayed by `delay`.
    fn times_before(&self, schedule: &Schedule, delay: SignedDuration) -> Vec<Timestamp> {
        let (Ok(from), Ok(to)) = (self.from.checked_sub(delay), self.to.checked_sub(delay)) else {
            return Vec::new();
        };
        schedule.times_between(from, to, TIMES_MAX)
    }

    fn runs(&mut self, workload: &Workload, schedule: &CronSchedule) {
        if schedule.schedule.is_interval() {
            // An interval has no known start, so the plan always includes capacity for a run.
            return;
        }
        let change = |description: String| ScheduledChange {
            object: format!("{} {}", workload.id.kind, workload.id),
            origin: workload.origin.clone(),
            description,
            changes_fleet: true,
        };
        let lead = self.desired.lead_time;
        let length = jobs::run_duration(schedule);
        let latest = self.to.checked_add(lead).unwrap_or(self.to);
        let bound = if schedule.deadline.is_some() { "its deadline" } else { "15 minutes, taken" };
        for run in schedule.schedule.times_between(self.from, latest, TIMES_MAX) {
            self.add(run.checked_sub(lead).ok(), change(format!("a run is due at {run}")));
        }
        for run in self.times_before(&schedule.schedule, length) {
            self.add(run.checked_add(length).ok(), change(format!("its run has ended ({bound})")));
        }
    }

    fn budget(&mut self, pool: &Pool, budget: &Budget) {
        let (Some(schedule), Some(duration)) = (&budget.schedule, budget.duration) else { return };
        let change = |description: String| ScheduledChange {
            object: format!("NodePool {}", pool.name),
            origin: pool.origin.clone(),
            description,
            changes_fleet: false,
        };
        for start in schedule.times_between(self.from, self.to, TIMES_MAX) {
            let text = format!("nodes disrupted at a time from now on: at most {}", budget.nodes);
            self.add(Some(start), change(text));
        }
        for start in self.times_before(schedule, duration) {
            let text = format!("the budget `nodes: {}` ends", budget.nodes);
            self.add(start.checked_add(duration).ok(), change(text));
        }
    }
}
