//! Cron expressions and their due times.
//!
//! The syntax is the standard form of robfig/cron, the library of Kubernetes, KEDA and Karpenter.
//! It has five fields, names of months and days, `*`, `?`, lists, ranges and steps. If day of month
//! and day of week are both restricted, one match is enough. At a change of daylight saving time, a
//! skipped time is never due and a repeated time is due twice.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// Macros and their expansions.
const MACROS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// Maximum number of days to search for the next due time. Leap years recur within eight years.
const DAYS_MAX: i64 = 8 * 366 + 1;

const MINUTE: SignedDuration = SignedDuration::from_mins(1);

/// A cron expression in a time zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    text: String,
    rule: Rule,
    zone: TimeZone,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    Fields(Fields),
    Every(SignedDuration),
    /// The expression has only days that do not exist in its months.
    Never,
}

/// Due values of each field, as bit sets.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// True if day of month and day of week must both match, since at least one is unrestricted.
    both_days: bool,
}

impl Schedule {
    /// Parses a schedule in UTC. Returns `None` if `text` is not a valid expression.
    pub fn parse(text: &str) -> Option<Self> {
        Some(Self { text: text.to_owned(), rule: parse_rule(text)?, zone: TimeZone::UTC })
    }

    /// Returns the same schedule in another time zone.
    #[must_use]
    pub fn in_time_zone(self, zone: TimeZone) -> Self {
        Self { zone, ..self }
    }

    /// Returns the expression as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns true for an interval (`@every`). Its phase is unknown, because it starts with its
    /// controller.
    pub fn is_interval(&self) -> bool {
        matches!(self.rule, Rule::Every(_))
    }

    /// Returns the time zone.
    pub fn zone(&self) -> &TimeZone {
        &self.zone
    }

    /// Returns the first due time after `moment`; `None` if no time within eight years is due. An
    /// interval is assumed to start at `moment`.
    pub fn next_after(&self, moment: Timestamp) -> Option<Timestamp> {
        match &self.rule {
            Rule::Never => None,
            Rule::Every(interval) => moment.checked_add(*interval).ok(),
            Rule::Fields(fields) => fields.next_after(moment, &self.zone),
        }
    }

    /// Returns the number of due times after `from` and up to `to` (inclusive), at most `most`. For
    /// an interval with an unknown start, the result is an upper bound.
    pub fn max_count_between(&self, from: Timestamp, to: Timestamp, most: usize) -> usize {
        let Rule::Every(interval) = self.rule else {
            return self.times_between(from, to, most).len();
        };
        let span = u64::try_from(to.duration_since(from).as_secs()).unwrap_or(0);
        let interval = u64::try_from(interval.as_secs()).unwrap_or(0).max(1);
        usize::try_from(span.div_ceil(interval)).unwrap_or(most).min(most)
    }

    /// Returns the due times after `from` and up to `to` (inclusive), at most `most` of them.
    pub fn times_between(&self, from: Timestamp, to: Timestamp, most: usize) -> Vec<Timestamp> {
        let next = |moment: &Timestamp| self.next_after(*moment);
        let times = std::iter::successors(self.next_after(from), next);
        times.take_while(|time| *time <= to).take(most).collect()
    }
}

impl Fields {
    fn next_after(&self, moment: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        // Start at the next whole minute.
        let seconds = moment.as_second().div_euclid(60).checked_add(1)?.checked_mul(60)?;
        let mut time = Timestamp::from_second(seconds).ok()?;
        let mut days = 0;
        loop {
            let local = zone.to_datetime(time);
            let date = local.date();
            if !self.has_day(date) {
                let later = if has_bit(self.months, date.month()) {
                    date.tomorrow().ok()?
                } else {
                    date.last_of_month().tomorrow().ok()?
                };
                days += i64::from(date.until(later).ok()?.get_days());
                let later = DateTime::from_parts(later, Time::midnight());
                time = zone.to_ambiguous_timestamp(later).compatible().ok()?;
                if days > DAYS_MAX {
                    return None;
                }
            } else if !has_bit(self.hours, local.hour()) {
                let rest = i64::from(60 - local.minute());
                time = time.checked_add(SignedDuration::from_mins(rest)).ok()?;
            } else if has_bit(self.minutes, local.minute()) {
                return Some(time);
            } else {
                time = time.checked_add(MINUTE).ok()?;
            }
        }
    }

    fn has_day(&self, date: Date) -> bool {
        let day = has_bit(self.days, date.day());
        let weekday = has_bit(self.weekdays, date.weekday().to_sunday_zero_offset());
        let is_due = if self.both_days { day && weekday } else { day || weekday };
        has_bit(self.months, date.month()) && is_due
    }
}

impl Fields {
    /// Returns true if any selected day exists in a selected month.
    fn has_month_with_its_days(&self) -> bool {
        let month_has_day = |month: i8| {
            let longest = match month {
                2 => 29,
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            has_bit(self.months, month) && (1..=longest).any(|day| has_bit(self.days, day))
        };
        (1..=12).any(month_has_day)
    }
}

fn has_bit(bits: u64, value: i8) -> bool {
    u32::try_from(value).is_ok_and(|value| bits & 1_u64.checked_shl(value).unwrap_or(0) != 0)
}

fn parse_rule(text: &str) -> Option<Rule> {
    if let Some(interval) = text.strip_prefix("@every ") {
        // robfig/cron truncates intervals to whole seconds, with a minimum of one second.
        let seconds = crate::model::duration::parse(interval)?.as_secs().max(1);
        return Some(Rule::Every(SignedDuration::from_secs(seconds)));
    }
    let expression =
        MACROS.iter().find(|(name, _)| *name == text).map_or(text, |(_, fields)| fields);
    let parts: Vec<&str> = expression.split_whitespace().collect();
    let [minutes, hours, days, months, weekdays] = parts.as_slice() else { return None };
    let (minutes, _) = parse_field(minutes, 0, 59, &[])?;
    let (hours, _) = parse_field(hours, 0, 23, &[])?;
    let (days, any_day) = parse_field(days, 1, 31, &[])?;
    let (months, _) = parse_field(months, 1, 12, &MONTHS)?;
    let (weekdays, any_weekday) = parse_field(weekdays, 0, 6, &DAYS)?;
    let both_days = any_day || any_weekday;
    let fields = Fields { minutes, hours, days, months, weekdays, both_days };
    let has_times = minutes != 0 && hours != 0 && months != 0;
    let is_possible = has_times && (!any_weekday || any_day || fields.has_month_with_its_days());
    Some(if is_possible { Rule::Fields(fields) } else { Rule::Never })
}

/// Parses one field. Returns the due values as bits, and true if the field is unrestricted (`*` or
/// `?`). As in robfig/cron, empty parts of a list are ignored, and so is a range that starts with `*`.
fn parse_field(text: &str, least: u32, most: u32, names: &[&str]) -> Option<(u64, bool)> {
    let (mut bits, mut is_any) = (0, false);
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (range, step) = match part.split_once('/') {
            None => (part, None),
            Some((range, step)) => (range, Some(step.parse::<u64>().ok().filter(|s| *s > 0)?)),
        };
        let number = |text: &str| parse_number(text, least, names);
        let (from, to) = match range.split_once('-') {
            _ if range.split('-').next().is_some_and(|from| matches!(from, "*" | "?")) => {
                is_any |= step.is_none_or(|step| step == 1);
                (least, most)
            }
            Some((from, to)) => (number(from)?, number(to)?),
            // A step after a single value extends to the end of the field.
            None => (number(range)?, if step.is_some() { most } else { number(range)? }),
        };
        if from < least || to > most || from > to {
            return None;
        }
        let step = usize::try_from(step.unwrap_or(1)).unwrap_or(usize::MAX);
        bits |= (from..=to).step_by(step).fold(0, |bits, value| bits | 1_u64 << value);
    }
    Some((bits, is_any))
}

/// Parses a number or a name. A number may have a sign `+` and leading zeros.
fn parse_number(text: &str, least: u32, names: &[&str]) -> Option<u32> {
    match names.iter().position(|name| text.eq_ignore_ascii_case(name)) {
        Some(index) => Some(u32::try_from(index).ok()? + least),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expression_has_five_fields_or_is_a_macro() {
        for (text, expected) in [
            ("*/5 * * * *", true),
            ("30 2 * * MON-FRI", true),
            ("0 0 1 jan,JUL ?", true),
            ("10-50/20 * * * *", true),
            ("@daily", true),
            ("@every 1h", true),
            ("* * * *", false),
            ("* * * * * *", false),
            ("60 * * * *", false),
            ("0 24 * * *", false),
            ("0 0 0 * *", false),
            ("0 0 * * 7", false),
            ("5-1 * * * *", false),
            ("*/0 * * * *", false),
            ("+5 * * * *", true),
            ("005 * * * *", true),
            ("1,,2 * * * *", true),
            (",1 * * * *", true),
            ("*-5 * * * *", true),
            ("*/99999999999 * * * *", true),
            ("-5 * * * *", false),
            ("1-2-3 * * * *", false),
            ("*/+0 * * * *", false),
            ("*/2/3 * * * *", false),
            ("", false),
            ("@never", false),
            ("a b c d {", false),
        ] {
            assert_eq!(Schedule::parse(text).is_some(), expected, "{text}");
        }
    }

    fn next(text: &str, zone: &str, from: &str) -> String {
        let zone = TimeZone::get(zone).expect("a zone");
        let schedule = Schedule::parse(text).expect("an expression").in_time_zone(zone);
        let next = schedule.next_after(from.parse().expect("a time"));
        next.map_or_else(|| "never".to_owned(), |time| time.to_string())
    }

    #[test]
    fn next_time_is_computed_in_time_zone() {
        for (rule, text, zone, from, expected) in [
            ("strictly after", "3 * * * *", "UTC", "2026-11-21T10:03:00Z", "2026-11-21T11:03:00Z"),
            ("seconds", "3 * * * *", "UTC", "2026-11-21T10:02:59Z", "2026-11-21T10:03:00Z"),
            ("zone", "0 9 * * *", "Asia/Seoul", "2026-11-21T10:00:00Z", "2026-11-22T00:00:00Z"),
            ("weekday", "0 9 * * 1-5", "UTC", "2026-11-20T18:00:00Z", "2026-11-23T09:00:00Z"),
            ("either day", "0 0 13 * 5", "UTC", "2026-11-21T00:00:00Z", "2026-11-27T00:00:00Z"),
            (
                "an unrestricted weekday is ignored",
                "0 0 13 * *",
                "UTC",
                "2026-11-21T00:00:00Z",
                "2026-12-13T00:00:00Z",
            ),
            ("leap day", "0 0 29 2 *", "UTC", "2026-11-21T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("no such day", "0 0 31 2 *", "UTC", "2026-11-21T00:00:00Z", "never"),
            ("interval", "@every 90m", "UTC", "2026-11-21T00:00:00Z", "2026-11-21T01:30:00Z"),
            (
                "a skipped local time is not due",
                "30 2 * * *",
                "Europe/Berlin",
                "2026-03-28T12:00:00Z",
                "2026-03-30T00:30:00Z",
            ),
            (
                "a repeated local time is due twice",
                "30 2 * * *",
                "Europe/Berlin",
                "2026-10-25T00:30:00Z",
                "2026-10-25T01:30:00Z",
            ),
        ] {
            assert_eq!(next(text, zone, from), expected, "{rule}");
        }
    }

    #[test]
    fn impossible_dates_are_detected_by_the_parser() {
        for (text, expected) in [
            ("0 0 31 2 *", true),
            ("0 0 30,31 2 *", true),
            ("0 0 31 4,6,9,11 *", true),
            ("0 0 31 2 1", false),
            ("0 0 29 2 *", false),
            ("0 0 31 2,3 *", false),
            ("0 0 * 2 *", false),
            (", 0 1 1 *", true),
        ] {
            let rule = Schedule::parse(text).expect("an expression").rule;
            assert_eq!(rule == Rule::Never, expected, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn next_time_is_stable_for_earlier_moments(
            minute in 0_u32..60, hour in 0_u32..24, offset in 0_i64..200_000, zone in 0_usize..3
        ) {
            let zone = ["UTC", "Asia/Seoul", "America/St_Johns"][zone];
            let zone = TimeZone::get(zone).expect("a zone");
            let text = format!("{minute} {hour} * * *");
            let schedule = Schedule::parse(&text).expect("an expression").in_time_zone(zone);
            let from: Timestamp = "2026-06-01T00:00:00Z".parse().expect("a time");
            let due = schedule.next_after(from).expect("a daily schedule");
            let earlier = due - SignedDuration::from_secs(offset % 60_000 + 1);
            let found = schedule.next_after(earlier).expect("a daily schedule");
            proptest::prop_assert!(found <= due);
            let local = schedule.zone().to_datetime(found);
            proptest::prop_assert_eq!(
                (u32::try_from(local.hour()).ok(), u32::try_from(local.minute()).ok()),
                (Some(hour), Some(minute))
            );
        }
    }
}
