//! What the clock will bring, for whoever looks at the page of a loop.
//!
//! A forecast packs many fleets, so that it is made seldom, and never while something is to be launched: pods that
//! wait come first. Nothing is decided by it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use super::plans::Plans;
use crate::fleet::Observed;
use crate::plan::Plan;
use crate::plan::forecast::Forecast;
use crate::plan::wire::WaveStep;

/// Between two forecasts of one commit.
const AGAIN: SignedDuration = SignedDuration::from_mins(15);

/// How far it looks.
const SPAN: SignedDuration = SignedDuration::from_hours(7 * 24);

/// The forecast as it was told last.
pub(super) type Told = watch::Receiver<Option<Arc<Forecast>>>;

/// Where forecasts are told.
#[derive(Debug)]
pub(super) struct Foresight {
    tell: watch::Sender<Option<Arc<Forecast>>>,
    /// The commit that the last one was of, and the moment that it began at.
    last: Mutex<Option<(String, Timestamp)>>,
    /// Whether one is being made.
    busy: AtomicBool,
}

/// The right to make a forecast: nobody else makes one until it is dropped, however its work ends.
#[derive(Debug)]
pub(super) struct Turn(Arc<Foresight>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

impl Turn {
    /// Makes a forecast over `world`, and tells it; returns how long that took.
    pub(super) fn look_ahead(self, plans: &Plans, world: &Observed) -> Duration {
        let began = Instant::now();
        let to = world.taken_at.checked_add(SPAN).unwrap_or(Timestamp::MAX);
        self.0.tell.send_replace(Some(Arc::new(plans.foreseen(world, to))));
        began.elapsed()
    }
}

impl Foresight {
    /// Returns where forecasts are told, and what is told.
    pub(super) fn new() -> (Arc<Self>, Told) {
        let (tell, told) = watch::channel(None);
        let (last, busy) = (Mutex::default(), AtomicBool::default());
        (Arc::new(Self { tell, last, busy }), told)
    }

    /// Returns whose turn it is to make a forecast now that `plan` was made, and counts it as made; `None` where none
    /// is due, or one is being made still.
    pub(super) fn is_due(self: &Arc<Self>, plan: &Plan, world: &Observed) -> Option<Turn> {
        let launches = plan.capacity.waves.iter().any(|wave| wave.step == WaveStep::Launch);
        // Nobody may be there to look at it.
        if launches || plan.errored || self.tell.is_closed() {
            return None;
        }
        let commit = plan.capacity.base.commit.as_ref().unwrap_or(&plan.capacity.base.tree);
        let now = world.taken_at;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let young =
            |(of, at): &(String, Timestamp)| of == commit && now.duration_since(*at).abs() < AGAIN;
        if last.as_ref().is_some_and(young) || self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        *last = Some((commit.clone(), now));
        Some(Turn(Arc::clone(self)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::ClusterIdentity;
    use crate::render::fixture;

    #[test]
    fn a_forecast_is_made_once_in_a_while_of_each_commit_and_never_before_a_launch() {
        let at = |minutes: i64| {
            let at = Timestamp::from_second(1_000_000 + 60 * minutes).expect("a time");
            Observed::empty(ClusterIdentity::default(), at)
        };
        let launching = fixture::plan();
        let mut idle = launching.clone();
        idle.capacity.waves.clear();
        let mut next = idle.clone();
        next.capacity.base.commit = Some("another".to_owned());
        let (foresight, told) = Foresight::new();
        for (plan, minutes, due) in [
            (&launching, 0, false),
            (&idle, 0, true),
            (&idle, 14, false),
            (&next, 14, true),
            (&next, 28, false),
            (&next, 29, true),
        ] {
            assert_eq!(foresight.is_due(plan, &at(minutes)).is_some(), due, "minute {minutes}");
        }
        let turn = foresight.is_due(&idle, &at(60)).expect("it is due");
        assert!(foresight.is_due(&next, &at(60)).is_none(), "one is being made");
        // However it ends: here it did not even begin.
        drop(turn);
        assert!(foresight.is_due(&next, &at(60)).is_some());
        drop(told);
        assert!(foresight.is_due(&idle, &at(90)).is_none(), "nobody looks");
    }
}
