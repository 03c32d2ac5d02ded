//! What KEDA declares: windows of time, bounds, pauses.
//!
//! A cron trigger holds at a moment where its end comes before its next start (KEDA's rule looks
//! ahead, not back): an end that comes on days without a start holds over into them.

use jiff::{SignedDuration, Timestamp};

use crate::model::desired::{CronTrigger, EventDriven, Schedule};

/// Most starts, and most ends, of one trigger that are looked at in one span. Whether a trigger
/// with more of them held at any time is not worked out: it is taken to have.
const EVENTS_MAX: usize = 1_000;

/// Returns whether a cron trigger holds at `moment`: from each start, without the end itself.
pub(crate) fn is_active_at(cron: &CronTrigger, moment: Timestamp) -> bool {
    ends_first(cron.end.next_after(moment), cron.start.next_after(moment))
}

/// Returns whether a trigger holds whose next end and next start these are.
fn ends_first(end: Option<Timestamp>, start: Option<Timestamp>) -> bool {
    match (end, start) {
        (Some(end), Some(start)) => end <= start,
        (Some(_), None) => true,
        (None, _) => false,
    }
}

/// Returns whether a cron trigger holds at any time from `from` up to and with `to`; what it does
/// changes at starts and ends alone.
fn is_active_within(cron: &CronTrigger, from: Timestamp, to: Timestamp) -> bool {
    if is_active_at(cron, from) {
        return true;
    }
    if cron.end.next_after(from).is_none() {
        return false;
    }
    let of = |schedule: &Schedule| {
        let mut times = schedule.times_between(from, to, EVENTS_MAX);
        let next = schedule.next_after(times.last().copied().unwrap_or(from));
        times.extend(next);
        times
    };
    let starts = of(&cron.start);
    if starts.len() > EVENTS_MAX {
        return true;
    }
    let ends = of(&cron.end);
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

/// Returns what is declared while `wanted` is the most that any holding window wants.
fn replicas_for(rule: &EventDriven, wanted: Option<u32>) -> u32 {
    match wanted {
        Some(wanted) => wanted.max(rule.min).max(1).min(rule.max),
        None if rule.is_forced => rule.min.max(1),
        None => rule.idle.unwrap_or(rule.min),
    }
}

/// Returns what is declared where no trigger wants anything.
pub(super) fn idle_replicas(rule: &EventDriven) -> u32 {
    replicas_for(rule, None)
}

/// Returns what cron triggers and bounds alone declare at `moment`.
pub(super) fn declared_at(rule: &EventDriven, moment: Timestamp) -> u32 {
    let wanted =
        rule.crons.iter().filter(|cron| is_active_at(cron, moment)).map(|cron| cron.desired);
    replicas_for(rule, wanted.max())
}

/// Returns the most that is declared from `from` up to and with `to`. What is declared grows with
/// what is wanted, so that no two windows have to be looked at together.
pub(super) fn max_declared_within(rule: &EventDriven, from: Timestamp, to: Timestamp) -> u32 {
    let holding = rule.crons.iter().filter(|cron| is_active_within(cron, from, to));
    replicas_for(rule, holding.map(|cron| cron.desired).max())
}

/// Returns what there is at `moment` where nothing but its declarations decides: a count goes down
/// only after the generated HPA has held it, and the last pods go only after the cooldown.
pub(super) fn held_replicas(rule: &EventDriven, moment: Timestamp) -> u32 {
    let before = |span: SignedDuration| {
        moment.checked_sub(span.saturating_add(rule.polling)).unwrap_or(Timestamp::MIN)
    };
    let now = declared_at(rule, moment);
    // At the start of the span what was declared before no longer counts: it is half-open.
    let recent = max_declared_within(rule, before(rule.stabilization), moment);
    let is_idle = !rule.is_forced && !rule.crons.iter().any(|cron| is_active_at(cron, moment));
    if !is_idle || now >= rule.min.max(1) {
        return recent;
    }
    let from = before(rule.cooldown);
    let was_active = rule.crons.iter().any(|cron| is_active_within(cron, from, moment));
    if was_active { recent.max(rule.min).max(1) } else { now }
}

/// Returns the most that its declarations come to at any time.
pub(super) fn max_declared(rule: &EventDriven) -> u32 {
    let of_windows = rule.crons.iter().map(|cron| cron.desired).max().unwrap_or(0);
    of_windows.max(rule.min).max(u32::from(rule.is_forced)).min(rule.max)
}

/// Returns whether the repository alone says how many pods there are at any time.
pub(super) fn is_foreseeable(rule: &EventDriven) -> bool {
    rule.triggers.is_empty() && !rule.has_formula && !rule.crons.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::desired::PauseMode;
    use crate::model::ids::Origin;

    fn cron(start: &str, end: &str, zone: &str, desired: u32) -> CronTrigger {
        let zone = jiff::tz::TimeZone::get(zone).expect("a zone");
        let of = |text: &str| Schedule::parse(text).expect("cron").in_time_zone(zone.clone());
        CronTrigger { origin: Origin::new("a.yaml", 1), start: of(start), end: of(end), desired }
    }

    fn rule(min: u32, max: u32, crons: Vec<CronTrigger>) -> EventDriven {
        EventDriven {
            min,
            max,
            idle: None,
            polling: SignedDuration::from_secs(30),
            cooldown: SignedDuration::from_secs(300),
            stabilization: SignedDuration::from_secs(300),
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
    fn the_window_of_the_source_document_holds_from_minute_3_and_is_gone_after_the_cooldown() {
        let rule = rule(0, 100, vec![cron("3 * * * *", "10 * * * *", "Asia/Seoul", 5)]);
        for (moment, now, kept) in [
            ("2026-11-21T10:02:59Z", 0, 0),
            ("2026-11-21T10:03:00Z", 5, 5),
            ("2026-11-21T10:09:59Z", 5, 5),
            ("2026-11-21T10:10:00Z", 0, 5),
            ("2026-11-21T10:15:00Z", 0, 5),
            ("2026-11-21T10:15:31Z", 0, 0),
        ] {
            assert_eq!(
                (declared_at(&rule, time(moment)), held_replicas(&rule, time(moment))),
                (now, kept),
                "{moment}"
            );
        }
        assert_eq!(
            max_declared_within(&rule, time("2026-11-21T10:00:00Z"), time("2026-11-21T10:03:00Z")),
            5,
            "capacity is asked for three minutes before"
        );
    }

    #[test]
    fn bounds_that_kubernetes_allows_and_windows_without_number_neither_panic_nor_take_long() {
        let mut minutely: Vec<CronTrigger> = Vec::new();
        for n in 0..5 {
            minutely.push(cron("* * * * *", "30 * * * *", "Asia/Seoul", n));
            minutely.push(cron("* * * * *", "0 0 31 2 *", "UTC", n));
        }
        let mut rule = rule(0, 3, minutely);
        let most = SignedDuration::from_secs(i32::MAX.into());
        (rule.polling, rule.cooldown, rule.stabilization) = (most, most, most);
        assert_eq!(held_replicas(&rule, time("2026-11-21T10:02:59Z")), 3);
        rule.polling = SignedDuration::MAX;
        assert_eq!(held_replicas(&rule, time("2026-11-21T10:02:59Z")), 3);
    }

    proptest::proptest! {
        #[test]
        fn what_holds_within_a_span_holds_at_one_of_its_minutes(
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
    fn an_end_on_days_without_a_start_holds_over_the_weekend() {
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
    fn windows_overlap_by_the_higher_one_within_the_bounds() {
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
    fn windows_over_midnight_hold_into_the_next_day() {
        let night = cron("0 22 * * *", "0 6 * * *", "UTC", 3);
        let at = |text: &str| is_active_at(&night, time(text));
        assert!(at("2026-11-21T23:00:00Z") && at("2026-11-22T05:59:00Z"));
        assert!(!at("2026-11-22T06:00:00Z") && !at("2026-11-22T21:00:00Z"));
    }
}
