//! Number of pods of temporary work: Jobs, CronJobs and ScaledJobs.

use jiff::{SignedDuration, Timestamp};

use super::{Counts, DemandQuery};
use crate::model::desired::{Concurrency, CronSchedule, JobScaling, JobStrategy};
use crate::model::observed::LiveEvents;
use crate::model::plural;

/// Assumed duration of a run without a deadline. A longer run keeps its capacity because its pods
/// are observed.
pub(super) const DEFAULT_RUN_DURATION: SignedDuration = SignedDuration::from_mins(15);

/// Maximum number of runs that are evaluated in one span.
const RUNS_MAX: usize = 12_000;

/// Returns the assumed duration of a run.
pub(super) fn run_duration(schedule: &CronSchedule) -> SignedDuration {
    schedule.deadline.unwrap_or(DEFAULT_RUN_DURATION)
}

/// Returns the number of pods that a job still runs in parallel, given its `active` and its
/// succeeded (`finished`) pods. A work queue gets no new pods after one has succeeded.
pub(super) fn remaining_pods(
    parallelism: u32,
    completions: Option<u32>,
    active: u32,
    finished: u32,
) -> u32 {
    match completions {
        Some(completions) => parallelism.min(completions.saturating_sub(finished)),
        None if finished > 0 => parallelism.min(active),
        None => parallelism,
    }
}

/// Returns the counts of a CronJob with `running` active pods, and their explanation.
pub(super) fn cron_job_counts(
    pods: u32,
    schedule: &CronSchedule,
    running: u32,
    query: &DemandQuery,
) -> (Counts, String) {
    let DemandQuery { at, lead, is_forecast, ignores_runs, .. } = *query;
    let until = at.checked_add(lead).unwrap_or(at);
    // Observed pods do not count for a time in the future. Runs that start before it count instead.
    let (from, running) = if is_forecast {
        (at.checked_sub(run_duration(schedule)).unwrap_or(at), 0)
    } else {
        (at, running)
    };
    let runs = if ignores_runs {
        0
    } else {
        let runs = schedule.schedule.max_count_between(from, until, RUNS_MAX);
        u32::try_from(runs).unwrap_or(u32::MAX)
    };
    let live = match schedule.concurrency {
        Concurrency::Allow => running.saturating_add(pods.saturating_mul(runs)),
        Concurrency::Forbid | Concurrency::Replace => running.max(pods.saturating_mul(runs.min(1))),
    };
    let ceiling = pods.saturating_mul(overlapping_runs(schedule, at)).max(live);
    let because = match schedule.schedule.next_after(at) {
        _ if ignores_runs => format!(
            "`{}`; upcoming runs count with --at and in the controller",
            schedule.schedule.as_str()
        ),
        _ if schedule.schedule.is_interval() => {
            format!("`{}`; run times are known only to its controller", schedule.schedule.as_str())
        }
        Some(next) => format!("`{}`, next at {next}", schedule.schedule.as_str()),
        None => format!("`{}` is never due", schedule.schedule.as_str()),
    };
    (Counts { floor: 0, live, ceiling, planned: 0 }, because)
}

/// Returns the maximum number of runs in progress at once, as far as the deadline bounds it.
fn overlapping_runs(schedule: &CronSchedule, at: Timestamp) -> u32 {
    let (Concurrency::Allow, Some(deadline)) = (schedule.concurrency, schedule.deadline) else {
        return 1;
    };
    let Some(first) = schedule.schedule.next_after(at) else { return 0 };
    // A run ends at its deadline, so a run that starts then does not overlap it.
    let end = first.checked_add(deadline).unwrap_or(first) - SignedDuration::from_nanos(1);
    let overlapping = schedule.schedule.times_between(first, end, RUNS_MAX).len();
    u32::try_from(overlapping).unwrap_or(u32::MAX).saturating_add(1)
}

/// Returns the counts of a ScaledJob with `active` pods, their explanation, and the next count.
pub(super) fn scaled_job_counts(
    scaling: &JobScaling,
    active: u32,
    seen: Option<&LiveEvents>,
) -> (Counts, String, Option<u32>) {
    let JobScaling { pods, min, max, strategy, is_paused } = scaling;
    let (floor, ceiling) = (pods.saturating_mul(*min), pods.saturating_mul((*max).max(*min)));
    if *is_paused {
        let counts = Counts { floor: active, live: active, ceiling: active, planned: 0 };
        return (counts, "it is paused: no further jobs are made".to_owned(), None);
    }
    let running = active.div_ceil((*pods).max(1));
    let wanted = seen.and_then(|seen| seen.wanted_jobs);
    let step = wanted.map(|wanted| {
        let most = wanted.min(max.saturating_sub(*min));
        let pending = seen.and_then(|seen| seen.pending_jobs).unwrap_or(0);
        let free = max.saturating_sub(running);
        let new = match *strategy {
            JobStrategy::Default => most.saturating_sub(running),
            JobStrategy::Custom { deduction, running_milli } => {
                let share = u64::from(running) * u64::from(running_milli) / 1_000;
                let share = u32::try_from(share).unwrap_or(u32::MAX);
                most.saturating_sub(deduction).saturating_sub(share)
            }
            JobStrategy::Accurate if most.saturating_add(running) > *max => free,
            JobStrategy::Accurate => most.saturating_sub(pending),
            JobStrategy::Eager => free.min(wanted.saturating_sub(pending)),
        };
        new.min(free)
    });
    let each = plural::count(pods, "pod");
    let because = match step {
        None => format!("between {min} and {max} jobs of {each}; its queue is not known"),
        Some(new) => format!("between {min} and {max} jobs of {each}; {new} come next"),
    };
    let live = active.max(floor);
    let counts = Counts { floor, live, ceiling: ceiling.max(active), planned: 0 };
    let next = step.filter(|new| *new > 0);
    (counts, because, next.map(|new| active.saturating_add(new.saturating_mul(*pods))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::desired::Schedule;

    fn query(at: &str, lead: i64) -> DemandQuery {
        DemandQuery {
            at: at.parse().expect("a time"),
            lead: SignedDuration::from_mins(lead),
            ..DemandQuery::default()
        }
    }

    fn queue_of(jobs: u32) -> LiveEvents {
        LiveEvents {
            namespace: "a".into(),
            name: "b".to_owned(),
            in_fallback: false,
            wanted_jobs: Some(jobs),
            pending_jobs: None,
        }
    }

    fn schedule(text: &str, concurrency: Concurrency, deadline: Option<i64>) -> CronSchedule {
        let due = Schedule::parse(text).expect("cron");
        CronSchedule {
            schedule: due,
            concurrency,
            deadline: deadline.map(SignedDuration::from_mins),
        }
    }

    #[test]
    fn run_due_within_the_lead_time_has_capacity() {
        use Concurrency::{Allow, Forbid, Replace};
        let at = "2026-11-21T01:55:00Z";
        for (rule, concurrency, running, lead, live) in [
            ("beyond the lead", Allow, 0, 4, 0),
            ("within the lead", Allow, 0, 5, 3),
            ("beside the previous run", Allow, 3, 5, 6),
            ("not during the previous run", Forbid, 3, 5, 3),
            ("instead of the previous run", Replace, 3, 5, 3),
        ] {
            let schedule = schedule("0 2 * * *", concurrency, None);
            let (counts, _) = cron_job_counts(3, &schedule, running, &query(at, lead));
            assert_eq!(counts.live, live, "{rule}");
        }
    }

    #[test]
    fn plan_for_no_stated_time_does_not_depend_on_the_next_run() {
        let schedule = schedule("0 2 * * *", Concurrency::Allow, None);
        let counts = |at: &str| {
            let query = DemandQuery { ignores_runs: true, ..query(at, 10) };
            cron_job_counts(3, &schedule, 1, &query)
        };
        let near = counts("2026-11-21T01:55:00Z");
        assert_eq!(near, counts("2026-11-21T12:00:00Z"));
        assert_eq!((near.0.live, near.0.ceiling), (1, 3), "the pod that runs counts");
    }

    #[test]
    fn every_run_within_the_lead_time_counts() {
        use Concurrency::{Allow, Forbid};
        let at = "2026-11-21T01:58:00Z";
        for (rule, text, concurrency, lead, live) in [
            ("three runs", "*/5 * * * *", Allow, 15, 9),
            ("one at a time", "*/5 * * * *", Forbid, 15, 3),
            ("an interval longer than the lead", "@every 1h", Allow, 10, 3),
            ("one more than fits", "@every 10m", Allow, 25, 9),
            ("an exact multiple", "@every 5m", Allow, 15, 9),
            ("no lead", "@every 1h", Allow, 0, 0),
        ] {
            let schedule = schedule(text, concurrency, None);
            let (counts, _) = cron_job_counts(3, &schedule, 0, &query(at, lead));
            assert_eq!(counts.live, live, "{rule}");
        }
        let foreseen = DemandQuery { is_forecast: true, ..query(at, 0) };
        let hourly = schedule("@every 1h", Allow, None);
        let (counts, because) = cron_job_counts(3, &hourly, 0, &foreseen);
        assert_eq!(counts.live, 3, "a run may have started in the previous 15 minutes");
        assert!(because.contains("only to its controller"), "{because}");
    }

    #[test]
    fn job_has_pods_until_its_completions_succeeded() {
        for (rule, parallelism, completions, active, finished, expected) in [
            ("new", 2, Some(10), 0, 0, 2),
            ("two of ten succeeded", 2, Some(10), 2, 2, 2),
            ("the last one", 2, Some(10), 1, 9, 1),
            ("done", 2, Some(10), 0, 10, 0),
            ("fewer than the parallelism", 4, Some(3), 0, 0, 3),
            ("a new work queue", 4, None, 0, 0, 4),
            ("a work queue that ends", 4, None, 3, 1, 3),
            ("a work queue that has ended", 4, None, 0, 4, 0),
        ] {
            assert_eq!(
                remaining_pods(parallelism, completions, active, finished),
                expected,
                "{rule}"
            );
        }
    }

    #[test]
    fn custom_strategy_subtracts_deduction_and_running_share() {
        let next = |strategy| {
            let scaling = JobScaling { pods: 1, min: 0, max: 100, strategy, is_paused: false };
            scaled_job_counts(&scaling, 5, Some(&queue_of(50))).2
        };
        let custom = |deduction, running_milli| JobStrategy::Custom { deduction, running_milli };
        assert_eq!(next(JobStrategy::Default), Some(5 + 45));
        assert_eq!(next(custom(10, 500)), Some(5 + 38), "50 - 10 - 2");
        assert_eq!(next(custom(0, 0)), Some(5 + 50));
        assert_eq!(next(custom(60, 0)), None);
    }

    #[test]
    fn deadline_bounds_overlapping_runs() {
        let at = query("2026-11-21T00:01:00Z", 0);
        let ceiling = |concurrency, deadline| {
            let schedule = schedule("*/10 * * * *", concurrency, deadline);
            cron_job_counts(2, &schedule, 0, &at).0.ceiling
        };
        assert_eq!(ceiling(Concurrency::Allow, Some(30)), 6);
        assert_eq!(ceiling(Concurrency::Allow, Some(31)), 8);
        assert_eq!(ceiling(Concurrency::Allow, None), 2);
        assert_eq!(ceiling(Concurrency::Forbid, Some(30)), 2);
    }

    #[test]
    fn scaled_job_grows_by_its_queue_within_its_bounds() {
        let scaling = JobScaling {
            pods: 2,
            min: 0,
            max: 3,
            strategy: JobStrategy::Default,
            is_paused: false,
        };
        let (counts, _, next) = scaled_job_counts(&scaling, 0, None);
        assert_eq!((counts.floor, counts.live, counts.ceiling, next), (0, 0, 6, None));
        let (counts, _, next) = scaled_job_counts(&scaling, 2, Some(&queue_of(10)));
        assert_eq!((counts.live, next), (2, Some(6)), "one job runs, two more come");
        let (counts, _, _) = scaled_job_counts(&JobScaling { min: 1, ..scaling }, 0, None);
        assert_eq!((counts.floor, counts.ceiling), (2, 6));
    }
}
