//! Drops repeated warnings.
//!
//! A controller retries for ever, and a source that stays unreadable would fill the log with one
//! line. A warning or an error with the same text and the same fields is logged once in
//! [`REPEAT_AFTER`]. Each change of the text is logged at once.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

use super::json_lines::Fields;

/// Time after which an unchanged warning is logged once more.
const REPEAT_AFTER: Duration = Duration::from_mins(10);

/// Maximum number of remembered warnings. Beyond it, the oldest is forgotten.
const REMEMBERED_MAX: usize = 256;

/// Filter of events. `clock` returns the current time.
pub(super) struct RepeatedWarnings<C> {
    clock: C,
    /// Time of the last logged line of each warning.
    logged: Mutex<BTreeMap<String, Instant>>,
}

impl<C: Fn() -> Instant> RepeatedWarnings<C> {
    pub(super) fn new(clock: C) -> Self {
        Self { clock, logged: Mutex::new(BTreeMap::new()) }
    }

    /// Returns true if the warning was not logged lately, and records that it is logged now.
    fn record(&self, warning: String) -> bool {
        let now = (self.clock)();
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |at: &Instant| now.duration_since(*at) < REPEAT_AFTER;
        if logged.get(&warning).is_some_and(is_recent) {
            return false;
        }
        logged.insert(warning, now);
        if logged.len() > REMEMBERED_MAX {
            let oldest = logged.iter().min_by_key(|(_, at)| **at).map(|(text, _)| text.clone());
            oldest.map(|text| logged.remove(&text));
        }
        true
    }
}

impl<S: Subscriber, C: Fn() -> Instant + Send + Sync + 'static> Filter<S> for RepeatedWarnings<C> {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        if *event.metadata().level() > Level::WARN {
            return true;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.record(format!("{} {}", event.metadata().target(), Json::Object(fields.0)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[derive(Clone, Default)]
    struct EventCounter(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for EventCounter {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn unchanged_warning_is_logged_once_in_ten_minutes() {
        let (start, minutes) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let elapsed = minutes.clone();
        let clock = move || start + Duration::from_mins(elapsed.load(Ordering::Relaxed));
        let counter = EventCounter::default();
        let lines = counter.clone().with_filter(RepeatedWarnings::new(clock));
        let warn = |error: &str| tracing::warn!(error, "cannot read the inventory");
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            let logged = |log: &dyn Fn()| {
                let before = counter.0.load(Ordering::Relaxed);
                log();
                counter.0.load(Ordering::Relaxed) - before
            };
            assert_eq!(logged(&|| warn("timeout")), 1);
            assert_eq!(logged(&|| warn("timeout")), 0);
            assert_eq!(logged(&|| warn("access denied")), 1, "a new text");
            assert_eq!(logged(&|| warn("timeout")), 0, "two warnings take turns");
            assert_eq!(logged(&|| tracing::info!("step")), 1);
            assert_eq!(logged(&|| tracing::info!("step")), 1, "steps are no warnings");
            minutes.store(10, Ordering::Relaxed);
            assert_eq!(logged(&|| warn("timeout")), 1, "it still lasts");
        });
    }

    #[test]
    fn remembered_warnings_are_bounded() {
        let filter = RepeatedWarnings::new(Instant::now);
        for number in 0..2 * REMEMBERED_MAX {
            assert!(filter.record(number.to_string()));
        }
        assert_eq!(filter.logged.lock().expect("a lock").len(), REMEMBERED_MAX);
    }
}
