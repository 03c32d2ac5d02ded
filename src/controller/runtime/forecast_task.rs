//! Forecasts for the page of the controller.
//!
//! A forecast packs many fleets, so it is made rarely. It is never made while a launch is planned,
//! and new pods that wait for a node put it off: pending pods come first. No decision depends on it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use super::BlockingPlanner;
use crate::apply::waits_for_node;
use crate::model::observed::{Observed, Pod};
use crate::plan::Plan;
use crate::plan::forecast::Forecast;
use crate::plan::wire::WaveStep;

/// The shortest time between two forecasts of one commit.
const FORECAST_INTERVAL: SignedDuration = SignedDuration::from_mins(15);

const FORECAST_HORIZON: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Pods that are pending for longer wait for something else than the next plan.
const NEW_POD_AGE_MAX: SignedDuration = SignedDuration::from_mins(2);

/// Age of the last forecast from which new pods do not put off the next one.
const PUT_OFF_MAX: SignedDuration = SignedDuration::from_hours(1);

/// The latest forecast.
pub type ForecastReceiver = watch::Receiver<Option<Arc<Forecast>>>;

/// Decides when a forecast is due, and publishes forecasts.
#[derive(Debug)]
pub(super) struct ForecastTask {
    sender: watch::Sender<Option<Arc<Forecast>>>,
    /// The commit and the start of the last forecast.
    last: Mutex<Option<(String, Timestamp)>>,
    is_running: AtomicBool,
}

/// Permission to make a forecast. At most one exists at a time; dropping it allows the next one.
#[derive(Debug)]
pub(super) struct ForecastPermit(Arc<ForecastTask>);

impl Drop for ForecastPermit {
    fn drop(&mut self) {
        self.0.is_running.store(false, Ordering::Release);
    }
}

impl ForecastPermit {
    /// Makes a forecast over `world` and publishes it. Returns the time it took.
    pub(super) fn publish_forecast(
        self,
        plans: &impl BlockingPlanner,
        world: &Observed,
    ) -> Duration {
        let began = Instant::now();
        let to = world.taken_at.checked_add(FORECAST_HORIZON).unwrap_or(Timestamp::MAX);
        self.0.sender.send_replace(Some(Arc::new(plans.forecast(world, to))));
        began.elapsed()
    }
}

impl ForecastTask {
    /// Returns the task and the receiver of its forecasts.
    pub(super) fn new() -> (Arc<Self>, ForecastReceiver) {
        let (sender, forecasts) = watch::channel(None);
        let (last, is_running) = (Mutex::default(), AtomicBool::default());
        (Arc::new(Self { sender, last, is_running }), forecasts)
    }

    /// Returns a permit if a forecast is due after `plan`, and records it as made. Returns `None`
    /// while another forecast is in progress.
    pub(super) fn try_begin(
        self: &Arc<Self>,
        plan: &Plan,
        world: &Observed,
    ) -> Option<ForecastPermit> {
        let launches = plan.capacity.waves.iter().any(|wave| wave.step == WaveStep::Launch);
        // Without a page there is no receiver.
        if launches || plan.errored || self.sender.is_closed() {
            return None;
        }
        let commit = plan.capacity.base.commit.as_ref().unwrap_or(&plan.capacity.base.tree);
        let now = world.taken_at;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |(of, at): &(String, Timestamp)| {
            of == commit && now.duration_since(*at).abs() < FORECAST_INTERVAL
        };
        let may_wait = |(_, at): &(String, Timestamp)| now.duration_since(*at).abs() < PUT_OFF_MAX;
        let is_put_off = last.as_ref().is_some_and(may_wait) && has_new_pending_pod(world);
        if last.as_ref().is_some_and(is_recent)
            || is_put_off
            || self.is_running.swap(true, Ordering::Acquire)
        {
            return None;
        }
        *last = Some((commit.clone(), now));
        Some(ForecastPermit(Arc::clone(self)))
    }
}

fn has_new_pending_pod(world: &Observed) -> bool {
    let is_new = |pod: &Pod| world.taken_at.duration_since(pod.created_at).abs() < NEW_POD_AGE_MAX;
    world.pods.iter().any(|pod| waits_for_node(pod, world) && is_new(pod))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::observed::ClusterIdentity;
    use crate::testing::sample_plan;
    use crate::testing::world::pod;

    #[test]
    fn forecast_is_rare_and_never_before_a_launch() {
        let at = |minutes: i64| {
            let at = Timestamp::from_second(1_000_000 + 60 * minutes).expect("a time");
            Observed::empty(ClusterIdentity::default(), at)
        };
        let launching = sample_plan::plan();
        let mut idle = launching.clone();
        idle.capacity.waves.clear();
        let mut next = idle.clone();
        next.capacity.base.commit = Some("another".to_owned());
        let (forecast_task, forecasts) = ForecastTask::new();
        for (plan, minutes, due) in [
            (&launching, 0, false),
            (&idle, 0, true),
            (&idle, 14, false),
            (&next, 14, true),
            (&next, 28, false),
            (&next, 29, true),
        ] {
            assert_eq!(
                forecast_task.try_begin(plan, &at(minutes)).is_some(),
                due,
                "minute {minutes}"
            );
        }
        let mut busy = at(60);
        for (minutes, age, due) in
            [(60, 1, false), (60, 119, false), (60, 120, true), (120, 1, true)]
        {
            busy.taken_at = at(minutes).taken_at;
            let created_at = busy.taken_at - SignedDuration::from_secs(age);
            busy.pods = vec![Arc::new(Pod { created_at, ..pod("new") })];
            let permit = forecast_task.try_begin(&idle, &busy);
            assert_eq!(
                permit.is_some(),
                due,
                "minute {minutes}, a pod that is pending for {age} s"
            );
        }
        let permit = forecast_task.try_begin(&next, &at(120)).expect("it is due");
        assert!(forecast_task.try_begin(&idle, &at(120)).is_none(), "one is being made");
        // The permit is released even if no forecast was made.
        drop(permit);
        assert!(forecast_task.try_begin(&idle, &at(120)).is_some());
        drop(forecasts);
        assert!(forecast_task.try_begin(&idle, &at(150)).is_none(), "without a page");
    }
}
