//! Replica counts that KEDA's cron triggers, bounds and pauses declare.
//!
//! A cron trigger is active at a time if its next end comes before its next start. KEDA looks only
//! ahead, so a trigger is also active before an end that no start precedes. An example is a daily
//! end with starts on weekdays: the trigger stays active over the weekend.

use std::borrow::Cow;

use jiff::{SignedDuration, Timestamp};

use crate::model::desired::{
    Behavior, CronTrigger, EventDriven, Fallback, FallbackBehavior, PauseMode, Schedule,
};

/// Maximum number of starts, and of ends, of one trigger that are evaluated in one span. A trigger
/// with more of them is assumed to be active in the span.
const EVENTS_MAX: usize = 1_000;

/// Returns true if a cron trigger is active at `moment`. A window includes its start, but not its
/// end.
pub(crate) fn is_active_at(cron: &CronTrigger, moment: Timestamp) -> bool {
    ends_first(cron.end.next_after(moment), cron.start.next_after(moment))
}

/// Returns true if a trigger with this next end and this next start is active.
fn ends_first(end: Option<Timestamp>, start: Option<Timestamp>) -> bool {
    match (end, start) {
        (Some(end), Some(start)) => end <= start,
        (Some(_), None) => true,
        (None, _) => false,
    }
}

/// Returns true if a cron trigger is active at any time from `from` to `to`, both included. A
/// trigger changes only at its starts and ends.
fn is_active_within(cron: &CronTrigger, from: Timestamp, to: Timestamp) -> bool {
    if is_active_at(cron, from) {
        return true;
    }
    if cron.end.next_after(from).is_none() {
        return false;
    }
    let event_times = |schedule: &Schedule| {
        let mut times = schedule.times_between(from, to, EVENTS_MAX);
        let next = schedule.next_after(times.last().copied().unwrap_or(from));
        times.extend(next);
        times
    };
    let starts = event_times(&cron.start);
    if starts.len() > EVENTS_MAX {
        return true;
    }
    let ends = event_times(&cron.end);
    if ends.len() > EVENTS_MAX {
        return true;
    }
    let next_of = |times: &[Timestamp], moment: Timestamp| {
        times.get(times.partition_point(|time| *time <= moment)).copied()
    };
    let inside = starts.iter().chain(&ends).filter(|moment| **moment <= to);
    let mut holding = inside.map(|at| ends_first(next_of(&ends, *at), next_of(&starts, *at)));
    holding.any(|holds| holds)
}

/// Returns the declared count, if `wanted` is the maximum over the active windows.
fn replicas_for(rule: &EventDriven, wanted: Option<u32>) -> u32 {
    match wanted {
        Some(wanted) => wanted.max(rule.min).max(1).min(rule.max),
        None if rule.is_forced => rule.min.max(1),
        None => rule.idle.unwrap_or(rule.min),
    }
}

/// Returns the declared count while no trigger is active.
pub(super) fn idle_replicas(rule: &EventDriven) -> u32 {
    replicas_for(rule, None)
}

/// Returns the count that cron triggers and bounds declare at `moment`.
pub(super) fn declared_at(rule: &EventDriven, moment: Timestamp) -> u32 {
    let wanted =
        rule.crons.iter().filter(|cron| is_active_at(cron, moment)).map(|cron| cron.desired);
    replicas_for(rule, wanted.max())
}

/// Returns the maximum declared count from `from` to `to`, both included. The declared count grows
/// with the wanted one, so the windows can be evaluated one by one.
pub(super) fn max_declared_within(rule: &EventDriven, from: Timestamp, to: Timestamp) -> u32 {
    let holding = rule.crons.iter().filter(|cron| is_active_within(cron, from, to));
    replicas_for(rule, holding.map(|cron| cron.desired).max())
}

/// Returns the count at `moment` if only the declarations decide. The generated HPA delays a
/// scale-down by its stabilization window, and KEDA delays the last one by the cooldown.
pub(super) fn stabilized_replicas(rule: &EventDriven, moment: Timestamp) -> u32 {
    let before = |span: SignedDuration| {
        moment.checked_sub(span.saturating_add(rule.polling)).unwrap_or(Timestamp::MIN)
    };
    let now = declared_at(rule, moment);
    // A window that ends at the start of the span does not count: its end is excluded.
    let recent = max_declared_within(rule, before(rule.stabilization), moment);
    let is_idle = !rule.is_forced && !rule.crons.iter().any(|cron| is_active_at(cron, moment));
    let recent = if never_shrinks(rule, moment) { recent.max(max_declared(rule)) } else { recent };
    if !is_idle || now >= rule.min.max(1) {
        return recent;
    }
    let from = before(rule.cooldown);
    let was_active = rule.crons.iter().any(|cron| is_active_within(cron, from, moment));
    if was_active { recent.max(rule.min).max(1) } else { now }
}

/// Returns the maximum declared count over all times.
pub(super) fn max_declared(rule: &EventDriven) -> u32 {
    let max_window = rule.crons.iter().map(|cron| cron.desired).max().unwrap_or(0);
    max_window.max(rule.min).max(u32::from(rule.is_forced)).min(rule.max)
}

/// How far triggers raise the number of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UpwardReach {
    /// Up to what they request.
    All,
    /// From idle to the minimum: the behavior of the HPA forbids more.
    Minimum,
    /// Not at all: scaling out is paused.
    Nothing,
}

/// Returns how far triggers raise the number of pods of `rule`.
pub(super) fn upward_reach(rule: &EventDriven) -> UpwardReach {
    if rule.paused == PauseMode::ScaleOut {
        UpwardReach::Nothing
    } else if rule.behavior.as_ref().is_some_and(Behavior::is_up_disabled) {
        UpwardReach::Minimum
    } else {
        UpwardReach::All
    }
}

/// Returns `rule` with windows that request no more than `reach` allows. The HPA adds pods up to its
/// minimum regardless.
/// Source: `pkg/scaling/executor/scale_scaledobjects.go`, `scaleFromZeroOrIdle`.
pub(super) fn within_reach(rule: &EventDriven, reach: UpwardReach) -> Cow<'_, EventDriven> {
    let mut bounded = Cow::Borrowed(rule);
    match reach {
        UpwardReach::All => {}
        UpwardReach::Minimum => {
            bounded.to_mut().crons.iter_mut().for_each(|cron| cron.desired = 1);
        }
        UpwardReach::Nothing => bounded.to_mut().crons.clear(),
    }
    bounded
}

/// Returns true if pods that once ran stay at `moment`: scaling in is paused, or the behavior of the
/// HPA forbids it while a trigger is active. KEDA itself ends pods only on the way to idle.
pub(super) fn never_shrinks(rule: &EventDriven, moment: Timestamp) -> bool {
    let goes_idle = rule.min == 0 || rule.idle.is_some();
    let is_active = || rule.crons.iter().any(|cron| is_active_at(cron, moment));
    rule.paused == PauseMode::ScaleIn
        || rule.behavior.as_ref().is_some_and(Behavior::is_down_disabled)
            && (!goes_idle || is_active())
}

/// Returns the number of pods of a fallback beside the current number.
/// Source: `pkg/fallback/fallback.go`, `doFallback`.
pub(super) fn fallback_replicas(fallback: Fallback, current: Option<u32>) -> u32 {
    let current = current.unwrap_or(0);
    match fallback.behavior {
        FallbackBehavior::Static => fallback.replicas,
        FallbackBehavior::Current => current,
        FallbackBehavior::CurrentIfHigher => current.max(fallback.replicas),
        FallbackBehavior::CurrentIfLower => current.min(fallback.replicas),
        FallbackBehavior::Formula => 0,
    }
}

/// Returns true if the repository alone determines the count at any time.
pub(super) fn is_foreseeable(rule: &EventDriven) -> bool {
    rule.triggers.is_empty() && !rule.has_formula && !rule.crons.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::Origin;

    fn cron(start: &str, end: &str, zone: &str, desired: u32) -> CronTrigger {
        let zone = jiff::tz::TimeZone::get(zone).expect("a zone");
        let schedule = |text: &str| Schedule::parse(text).expect("cron").in_time_zone(zone.clone());
        CronTrigger {
            origin: Origin::new("a.yaml", 1),
            start: schedule(start),
            end: schedule(end),
            desired,
        }
    }

    fn rule(min: u32, max: u32, crons: Vec<CronTrigger>) -> EventDriven {
        EventDriven {
            min,
            max,
            idle: None,
            polling: SignedDuration::from_secs(30),
            cooldown: SignedDuration::from_secs(300),
            stabilization: SignedDuration::from_secs(300),
            behavior: None,
            fallback: None,
            crons,
            triggers: Vec::new(),
            has_formula: false,
            paused: PauseMode::No,
            is_forced: false,
        }
    }

    fn time(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[test]
    fn window_pods_stay_until_the_cooldown_ends() {
        let rule = rule(0, 100, vec![cron("3 * * * *", "10 * * * *", "Asia/Seoul", 5)]);
        for (moment, declared, stabilized) in [
            ("2026-11-21T10:02:59Z", 0, 0),
            ("2026-11-21T10:03:00Z", 5, 5),
            ("2026-11-21T10:09:59Z", 5, 5),
            ("2026-11-21T10:10:00Z", 0, 5),
            ("2026-11-21T10:15:00Z", 0, 5),
            ("2026-11-21T10:15:31Z", 0, 0),
        ] {
            assert_eq!(
                (declared_at(&rule, time(moment)), stabilized_replicas(&rule, time(moment))),
                (declared, stabilized),
                "{moment}"
            );
        }
        assert_eq!(
            max_declared_within(&rule, time("2026-11-21T10:00:00Z"), time("2026-11-21T10:03:00Z")),
            5,
            "capacity is requested three minutes ahead"
        );
    }

    #[test]
    fn fallback_follows_its_behavior() {
        use FallbackBehavior::{Current, CurrentIfHigher, CurrentIfLower, Formula, Static};
        for (behavior, expected) in [
            (Static, [6, 6, 6]),
            (Current, [0, 3, 9]),
            (CurrentIfHigher, [6, 6, 9]),
            (CurrentIfLower, [0, 3, 6]),
            (Formula, [0, 0, 0]),
        ] {
            let of = |current| fallback_replicas(Fallback { replicas: 6, behavior }, current);
            assert_eq!([of(None), of(Some(3)), of(Some(9))], expected, "{behavior:?}");
        }
    }

    #[test]
    fn extreme_bounds_and_many_windows_finish_quickly() {
        let mut minutely: Vec<CronTrigger> = Vec::new();
        for n in 0..5 {
            minutely.push(cron("* * * * *", "30 * * * *", "Asia/Seoul", n));
            minutely.push(cron("* * * * *", "0 0 31 2 *", "UTC", n));
        }
        let mut rule = rule(0, 3, minutely);
        let most = SignedDuration::from_secs(i32::MAX.into());
        (rule.polling, rule.cooldown, rule.stabilization) = (most, most, most);
        assert_eq!(stabilized_replicas(&rule, time("2026-11-21T10:02:59Z")), 3);
        rule.polling = SignedDuration::MAX;
        assert_eq!(stabilized_replicas(&rule, time("2026-11-21T10:02:59Z")), 3);
    }

    proptest::proptest! {
        #[test]
        fn active_span_has_an_active_minute(
            start in 0_u32..60, end in 0_u32..60, at in 0_i64..600, minutes in 0_i64..90
        ) {
            let hour = cron(&format!("{start} */2 * * *"), &format!("{end} * * * *"), "UTC", 1);
            let from = time("2026-11-21T00:00:00Z") + SignedDuration::from_mins(at);
            let minute = |n| from + SignedDuration::from_mins(n);
            let expected = (0..=minutes).any(|n| is_active_at(&hour, minute(n)));
            proptest::prop_assert_eq!(is_active_within(&hour, from, minute(minutes)), expected);
        }
    }

    #[test]
    fn end_without_a_start_keeps_the_trigger_active_over_weekends() {
        let weekly = cron("0 9 * * 1-5", "0 18 * * *", "UTC", 5);
        for (moment, expected) in [
            ("2026-11-20T17:59:00Z", true),
            ("2026-11-20T18:00:00Z", true),
            ("2026-11-22T17:59:00Z", true),
            ("2026-11-22T18:00:00Z", false),
            ("2026-11-23T08:59:00Z", false),
            ("2026-11-23T09:00:00Z", true),
            ("2026-11-23T18:00:00Z", false),
        ] {
            assert_eq!(is_active_at(&weekly, time(moment)), expected, "{moment}");
        }
    }

    #[test]
    fn overlapping_windows_use_the_higher_count_within_bounds() {
        let crons = vec![
            cron("0 8 * * *", "0 18 * * *", "UTC", 10),
            cron("0 12 * * *", "0 14 * * *", "UTC", 20),
        ];
        let rule = rule(2, 15, crons);
        let at = |hour: &str| declared_at(&rule, time(&format!("2026-11-21T{hour}:30:00Z")));
        assert_eq!([at("07"), at("09"), at("12"), at("15"), at("20")], [2, 10, 15, 10, 2]);
        assert_eq!(max_declared(&rule), 15);
    }

    #[test]
    fn window_over_midnight_stays_active_the_next_day() {
        let night = cron("0 22 * * *", "0 6 * * *", "UTC", 3);
        let at = |text: &str| is_active_at(&night, time(text));
        assert!(at("2026-11-21T23:00:00Z") && at("2026-11-22T05:59:00Z"));
        assert!(!at("2026-11-22T06:00:00Z") && !at("2026-11-22T21:00:00Z"));
    }
}
