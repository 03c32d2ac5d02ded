//! What `fleetwright.yaml` says of commitments, and of who may apply a plan, and when.

use std::borrow::Cow;

use ed25519_dalek::VerifyingKey;
use ed25519_dalek::pkcs8::DecodePublicKey as _;
use jiff::Timestamp;
use jiff::civil::Weekday;
use jiff::tz::TimeZone;

use super::super::decode::{Field, Map, shorten};
use super::super::model::Severity;
use super::file::{money, share};
use crate::ids::{InstanceTypeName, Origin};
use crate::units::MicroUsd;

/// Minutes of a day.
const DAY_MINUTES: u32 = 24 * 60;

/// Something that is paid for whether or not it is used, and that makes other prices lower.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commitment {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: CommitmentKind,
}

/// The kinds of commitment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitmentKind {
    /// An amount per hour, spent at a discount on whatever on-demand capacity runs.
    SavingsPlan {
        /// What is paid per hour.
        hourly: MicroUsd,
        /// How far its prices are below the list, in thousandths of a percent.
        discount_milli_percent: u32,
    },
    /// Instances of one type.
    ReservedInstances {
        /// Type.
        instance_type: InstanceTypeName,
        /// How many.
        count: u32,
        /// What each costs per hour, whatever was paid upfront included.
        hourly: MicroUsd,
    },
}

impl CommitmentKind {
    /// Returns the kind as plans write it.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::SavingsPlan { .. } => "savings-plan",
            Self::ReservedInstances { .. } => "reserved-instances",
        }
    }
}

impl Commitment {
    /// Returns what is paid per hour whether or not it is used.
    #[must_use]
    pub fn hourly(&self) -> MicroUsd {
        match &self.kind {
            CommitmentKind::SavingsPlan { hourly, .. } => *hourly,
            CommitmentKind::ReservedInstances { count, hourly, .. } => {
                hourly.times(i64::from(*count))
            }
        }
    }
}

/// Who may apply a plan, and when.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GuardSettings {
    /// Whose approvals count; with any, a plan is applied only with signed ones.
    pub keys: Vec<TrustedKey>,
    /// How many different keys must have approved; at least 1 where there are keys.
    pub approvals: u32,
    /// When plans may be applied; empty means always.
    pub windows: Vec<Window>,
    /// File and line of the windows, where there are any.
    pub windows_at: Option<Origin>,
}

/// A public key whose approvals count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedKey {
    /// Whose it is.
    pub name: String,
    /// Ed25519 public key.
    pub key: VerifyingKey,
}

/// A time of the week.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Days on which it opens; empty means each.
    pub days: Vec<Weekday>,
    /// Minute of the day at which it opens.
    pub from: u32,
    /// Minute of the day at which it closes; on the next day where that is not later.
    pub to: u32,
    /// The time zone of its days and minutes.
    pub zone: TimeZone,
}

impl GuardSettings {
    /// Returns whether a plan may be applied at `now`.
    #[must_use]
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.windows.is_empty() || self.windows.iter().any(|window| window.holds(now))
    }

    /// Returns when plans may begin to be applied, and when no more, after `from` and before `to`;
    /// whether they may comes with each. Windows begin and end with a minute.
    #[must_use]
    pub fn changes(&self, (from, to): (Timestamp, Timestamp)) -> Vec<(Timestamp, bool)> {
        let (mut found, mut open) = (Vec::new(), self.is_open(from));
        let minutes = from.as_second().div_euclid(60) + 1..=to.as_second().div_euclid(60);
        // Without windows nothing changes.
        let minutes = minutes.filter(|_| !self.windows.is_empty());
        for at in minutes.filter_map(|minute| Timestamp::from_second(minute * 60).ok()) {
            let now = self.is_open(at);
            if now != open && at < to {
                found.push((at, now));
            }
            open = now;
        }
        found
    }

    /// Returns when the next window opens, if there are windows and all are closed.
    #[must_use]
    pub fn next_opening(&self, now: Timestamp) -> Option<Timestamp> {
        if self.is_open(now) {
            return None;
        }
        let minute = jiff::SignedDuration::from_mins(1);
        let start = Timestamp::from_second(now.as_second().div_euclid(60) * 60).ok()?;
        let mut at = start;
        // A week has every opening there is.
        for _ in 0..=7 * DAY_MINUTES {
            at = at.checked_add(minute).ok()?;
            if self.is_open(at) {
                return Some(at);
            }
        }
        None
    }
}

impl Window {
    fn holds(&self, now: Timestamp) -> bool {
        let here = now.to_zoned(self.zone.clone());
        let number = |n: i8| u32::try_from(n).unwrap_or(0);
        let minute = number(here.hour()) * 60 + number(here.minute());
        let on = |day: Weekday| self.days.is_empty() || self.days.contains(&day);
        let (today, yesterday) = (here.weekday(), here.weekday().previous());
        if self.from < self.to {
            return on(today) && (self.from..self.to).contains(&minute);
        }
        (on(today) && minute >= self.from) || (on(yesterday) && minute < self.to)
    }
}

/// Reads `spec.cost`.
pub(super) fn read_commitments(map: &Map<'_>) -> Vec<Commitment> {
    let Some(list) = map.get("commitments") else { return Vec::new() };
    list.items().filter_map(|item| commitment(&item)).collect()
}

fn commitment(field: &Field<'_>) -> Option<Commitment> {
    let map = field.map()?;
    let name = map.need("name").and_then(|f| Some(f.filled()?.into_owned()));
    let plan = map.get("savingsPlan").and_then(|f| savings_plan(&f.map()?));
    let reserved = map.get("reservedInstances").and_then(|f| reserved(&f.map()?));
    let given = [map.get("savingsPlan"), map.get("reservedInstances")];
    if given.iter().flatten().count() != 1 {
        field.error("needs one of `savingsPlan` and `reservedInstances`", None);
    }
    map.finish(Severity::Error);
    Some(Commitment { name: name?, kind: plan.or(reserved)? })
}

fn savings_plan(map: &Map<'_>) -> Option<CommitmentKind> {
    let hourly = map.need("hourly").and_then(|f| money(&f));
    let discount = map.need("discount").and_then(|f| share(&f));
    map.finish(Severity::Error);
    Some(CommitmentKind::SavingsPlan { hourly: hourly?, discount_milli_percent: discount? })
}

fn reserved(map: &Map<'_>) -> Option<CommitmentKind> {
    let kind = map.need("instanceType").and_then(|f| Some(f.filled()?.into_owned()));
    let count = map.need("count").and_then(|f| f.int::<u32>(1));
    let hourly = map.need("hourly").and_then(|f| money(&f));
    map.finish(Severity::Error);
    let instance_type = kind?.into();
    Some(CommitmentKind::ReservedInstances { instance_type, count: count?, hourly: hourly? })
}

/// Reads `spec.apply`.
pub(super) fn read_guard(map: &Map<'_>, guard: &mut GuardSettings) {
    if let Some(keys) = map.get("keys") {
        for item in keys.items() {
            let Some(found) = trusted_key(&item) else { continue };
            // One key under two names would count as two people.
            match guard.keys.iter().find(|known| known.key == found.key) {
                Some(known) => item.error(
                    format_args!("has the key of `{}`", shorten(&known.name)),
                    "list each key once: it counts once".to_owned(),
                ),
                None => guard.keys.push(found),
            }
        }
    }
    guard.approvals = u32::from(!guard.keys.is_empty());
    if let Some(approvals) = map.get("approvals") {
        guard.approvals = approvals.int::<u32>(1).unwrap_or(guard.approvals);
        let keys = u32::try_from(guard.keys.len()).unwrap_or(u32::MAX);
        if guard.approvals > keys {
            approvals.error(
                format_args!("asks for {} approvals, and there are {keys} keys", guard.approvals),
                "list the public key of each approver in spec.apply.keys".to_owned(),
            );
        }
    }
    if let Some(windows) = map.get("windows") {
        guard.windows = windows.items().filter_map(|item| window(&item)).collect();
        guard.windows_at = Some(windows.origin());
    }
}

fn trusted_key(field: &Field<'_>) -> Option<TrustedKey> {
    let map = field.map()?;
    let text = |f: Field<'_>| f.filled().map(Cow::into_owned);
    let name = map.need("name").and_then(text);
    let key = map.need("key").and_then(|field| public_key(&field));
    map.finish(Severity::Error);
    Some(TrustedKey { name: name?, key: key? })
}

/// Reads an Ed25519 public key: PEM, or the line of base64 within it.
fn public_key(field: &Field<'_>) -> Option<VerifyingKey> {
    let text = field.filled()?;
    let text = text.trim();
    let pem = if text.starts_with("-----") {
        text.to_owned()
    } else {
        format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
    };
    // A weak key accepts signatures that nobody made.
    let key = VerifyingKey::from_public_key_pem(&pem).ok().filter(|key| !key.is_weak());
    if key.is_none() {
        field.error(
            "is no Ed25519 public key",
            "write it as `openssl pkey -in key.pem -pubout` prints it".to_owned(),
        );
    }
    key
}

const DAYS: [(&str, Weekday); 7] = [
    ("mon", Weekday::Monday),
    ("tue", Weekday::Tuesday),
    ("wed", Weekday::Wednesday),
    ("thu", Weekday::Thursday),
    ("fri", Weekday::Friday),
    ("sat", Weekday::Saturday),
    ("sun", Weekday::Sunday),
];

fn window(field: &Field<'_>) -> Option<Window> {
    let map = field.map()?;
    let days = map.get("days").map(|days| days.items().filter_map(|d| d.choice(&DAYS)).collect());
    let (from, to) =
        (map.need("from").and_then(|f| clock(&f)), map.need("to").and_then(|f| clock(&f)));
    let given = map.get("zone");
    let zone = given.as_ref().map_or(Some(TimeZone::UTC), zone);
    map.finish(Severity::Error);
    Some(Window { days: days.unwrap_or_default(), from: from?, to: to?, zone: zone? })
}

/// Reads a time zone by its name in the database of IANA.
fn zone(field: &Field<'_>) -> Option<TimeZone> {
    let text = field.filled()?;
    let found = TimeZone::get(&text).ok();
    if found.is_none() {
        field.error(
            format_args!("is `{}`, not a time zone", shorten(&text)),
            "write its name in the time zone database, such as Europe/Berlin".to_owned(),
        );
    }
    found
}

/// Reads a time of the day as minutes.
fn clock(field: &Field<'_>) -> Option<u32> {
    let text = field.filled()?;
    let parsed = text.split_once(':').and_then(|(hours, minutes)| {
        let number = |text: &str| (text.len() == 2).then(|| text.parse::<u32>().ok()).flatten();
        Some((number(hours)?, number(minutes)?)).filter(|(h, m)| *h < 24 && *m < 60)
    });
    if parsed.is_none() {
        field.error(
            format_args!("is `{}`, not a time of the day", shorten(&text)),
            "write hours and minutes, in quotes: \"22:30\"".to_owned(),
        );
    }
    parsed.map(|(hours, minutes)| hours * 60 + minutes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Tree, TreeFile, read_fleet};

    fn window(days: &[Weekday], from: u32, to: u32) -> GuardSettings {
        let windows =
            vec![Window { days: days.to_vec(), from: from * 60, to: to * 60, zone: TimeZone::UTC }];
        GuardSettings { windows, ..GuardSettings::default() }
    }

    #[test]
    fn windows_that_touch_are_one_and_each_opening_and_closing_is_told() {
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        let span = (at("2026-11-21T09:30:00Z"), at("2026-11-22T11:00:00Z"));
        let told = |guard: &GuardSettings| -> Vec<(String, bool)> {
            guard.changes(span).into_iter().map(|(at, open)| (at.to_string(), open)).collect()
        };
        let said = |rows: &[(&str, bool)]| -> Vec<(String, bool)> {
            rows.iter().map(|(at, open)| ((*at).to_owned(), *open)).collect()
        };
        assert_eq!(told(&GuardSettings::default()), []);
        let mut guard = window(&[], 10, 12);
        let (first, second) = ("2026-11-21T10:00:00Z", "2026-11-22T10:00:00Z");
        let noon = ("2026-11-21T12:00:00Z", false);
        assert_eq!(told(&guard), said(&[(first, true), noon, (second, true)]));
        guard.windows.extend(window(&[Weekday::Saturday], 12, 13).windows);
        let one = ("2026-11-21T13:00:00Z", false);
        assert_eq!(told(&guard), said(&[(first, true), one, (second, true)]));
    }

    #[test]
    fn a_key_that_is_none_or_stands_twice_is_an_error_at_its_line() {
        const KEY: &str = "MCowBQYDK2VwAyEAK6r6k6xSO+Tf7GsjgOLiOP431kQtIjsjKV0hIVgox0c=";
        // The point of order one, which verifies what nobody signed.
        const WEAK: &str = "MCowBQYDK2VwAyEAAQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        for (keys, says) in [
            (vec![("a", "AAAA")], "no Ed25519 public key"),
            (vec![("a", WEAK)], "no Ed25519 public key"),
            (vec![("a", KEY), ("b", KEY)], "has the key of `a`"),
        ] {
            let rows: Vec<String> =
                keys.iter().map(|(n, k)| format!("    - {{ name: {n}, key: {k} }}\n")).collect();
            let text = format!(
                "apiVersion: fleetwright.dev/v1\nkind: Fleet\nmetadata: {{ name: a }}\nspec:\n  \
                 apply:\n    keys:\n{}",
                rows.concat()
            );
            let content = Ok(text.into_bytes().into());
            let file = TreeFile { path: "fleetwright.yaml".into(), content };
            let (fleet, problems) = read_fleet(&Tree { files: vec![file] });
            let line = 6 + u32::try_from(keys.len()).expect("few");
            let found = problems.iter().find(|problem| problem.message.contains(says));
            assert_eq!(found.map(|problem| problem.origin.line), Some(line), "{problems:?}");
            assert!(fleet.guard.keys.len() < 2);
        }
    }

    #[test]
    fn a_window_counts_in_its_own_time_zone_and_follows_its_summer_time() {
        let mut guard = window(&[Weekday::Monday], 9, 10);
        guard.windows[0].zone = TimeZone::get("Europe/Berlin").expect("a zone");
        for (at, open) in [
            // 2026-08-31 and 2026-11-30 are Mondays; summer time is two hours ahead of UTC.
            ("2026-08-31T07:30:00Z", true),
            ("2026-08-31T08:30:00Z", false),
            ("2026-11-30T07:30:00Z", false),
            ("2026-11-30T08:30:00Z", true),
        ] {
            assert_eq!(guard.is_open(at.parse().expect("a time")), open, "{at}");
        }
    }

    #[test]
    fn a_window_may_reach_over_midnight_and_then_counts_for_the_day_it_opens() {
        // 2026-09-01 is a Tuesday.
        for (guard, at, open) in [
            (GuardSettings::default(), "2026-09-01T03:00:00Z", true),
            (window(&[], 8, 17), "2026-09-01T08:00:00Z", true),
            (window(&[], 8, 17), "2026-09-01T17:00:00Z", false),
            (window(&[Weekday::Monday], 8, 17), "2026-09-01T09:00:00Z", false),
            (window(&[Weekday::Monday], 22, 4), "2026-09-01T03:59:00Z", true),
            (window(&[Weekday::Monday], 22, 4), "2026-09-01T22:30:00Z", false),
            (window(&[Weekday::Tuesday], 22, 4), "2026-09-01T03:59:00Z", false),
        ] {
            assert_eq!(guard.is_open(at.parse().expect("a time")), open, "{guard:?} {at}");
        }
        let now = "2026-09-01T17:30:20Z".parse().expect("a time");
        let next = window(&[], 8, 17).next_opening(now).expect("tomorrow");
        assert_eq!(next.to_string(), "2026-09-02T08:00:00Z");
    }
}
