//! The commitments, approvals and apply windows of `fleetwright.yaml`.

use std::borrow::Cow;

use ed25519_dalek::VerifyingKey;
use jiff::civil::Weekday;
use jiff::tz::TimeZone;

use super::super::cron;
use super::super::decode::{Field, FieldMap, shorten};
use super::field_values::{money, share};
use crate::model::desired::{
    ApplyConditions, CommitmentKind, PricingCommitment, Severity, TrustedKey, Window,
};

/// Reads `spec.cost`.
pub(super) fn read_commitments(map: &FieldMap<'_>) -> Vec<PricingCommitment> {
    let Some(list) = map.get("commitments") else { return Vec::new() };
    list.items().filter_map(|item| commitment(&item)).collect()
}

fn commitment(field: &Field<'_>) -> Option<PricingCommitment> {
    let map = field.map()?;
    let name = map.required("name").and_then(|f| Some(f.non_empty_text()?.into_owned()));
    let plan = map.get("savingsPlan").and_then(|f| savings_plan(&f.map()?));
    let reserved = map.get("reservedInstances").and_then(|f| reserved(&f.map()?));
    let given = [map.get("savingsPlan"), map.get("reservedInstances")];
    if given.iter().flatten().count() != 1 {
        field.error("needs one of `savingsPlan` and `reservedInstances`", None);
    }
    map.finish(Severity::Error);
    Some(PricingCommitment { name: name?, kind: plan.or(reserved)? })
}

fn savings_plan(map: &FieldMap<'_>) -> Option<CommitmentKind> {
    let hourly = map.required("hourly").and_then(|f| money(&f));
    let discount = map.required("discount").and_then(|f| share(&f));
    map.finish(Severity::Error);
    Some(CommitmentKind::SavingsPlan { hourly: hourly?, discount_milli_percent: discount? })
}

fn reserved(map: &FieldMap<'_>) -> Option<CommitmentKind> {
    let kind = map.required("instanceType").and_then(|f| Some(f.non_empty_text()?.into_owned()));
    let count = map.required("count").and_then(|f| f.int::<u32>(1));
    let hourly = map.required("hourly").and_then(|f| money(&f));
    map.finish(Severity::Error);
    let instance_type = kind?.into();
    Some(CommitmentKind::ReservedInstances { instance_type, count: count?, hourly: hourly? })
}

/// Reads `spec.apply`.
pub(super) fn read_guard(map: &FieldMap<'_>, guard: &mut ApplyConditions) {
    if let Some(keys) = map.get("keys") {
        for item in keys.items() {
            let Some(found) = trusted_key(&item) else { continue };
            // One key under two names would count as two approvers.
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
        guard.windows_origin = Some(windows.origin());
    }
}

fn trusted_key(field: &Field<'_>) -> Option<TrustedKey> {
    let map = field.map()?;
    let text = |f: Field<'_>| f.non_empty_text().map(Cow::into_owned);
    let name = map.required("name").and_then(text);
    let key = map.required("key").and_then(|field| public_key(&field));
    map.finish(Severity::Error);
    Some(TrustedKey { name: name?, key: key? })
}

/// Reads an Ed25519 public key: PEM, or the base64 line within it.
fn public_key(field: &Field<'_>) -> Option<VerifyingKey> {
    let text = field.non_empty_text()?;
    let key = TrustedKey::from_pem("", &text).map(|trusted| trusted.key);
    if key.is_none() {
        field.error(
            "is not an Ed25519 public key",
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
        (map.required("from").and_then(|f| clock(&f)), map.required("to").and_then(|f| clock(&f)));
    let given = map.get("zone");
    let zone = given.as_ref().map_or(Some(TimeZone::UTC), cron::time_zone);
    map.finish(Severity::Error);
    Some(Window { days: days.unwrap_or_default(), from: from?, to: to?, zone: zone? })
}

/// Reads a time of day in minutes.
fn clock(field: &Field<'_>) -> Option<u32> {
    let text = field.non_empty_text()?;
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
    use crate::manifest::read_fleet;
    use crate::model::desired::{Tree, TreeFile};
    use jiff::Timestamp;

    fn window(days: &[Weekday], from: u32, to: u32) -> ApplyConditions {
        let windows =
            vec![Window { days: days.to_vec(), from: from * 60, to: to * 60, zone: TimeZone::UTC }];
        ApplyConditions { windows, ..ApplyConditions::default() }
    }

    #[test]
    fn adjacent_windows_merge_and_changes_list_each_transition() {
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        let (from, to) = (at("2026-11-21T09:30:00Z"), at("2026-11-22T11:00:00Z"));
        let transitions = |guard: &ApplyConditions| -> Vec<(String, bool)> {
            guard
                .window_transitions(from, to)
                .into_iter()
                .map(|(at, open)| (at.to_string(), open))
                .collect()
        };
        let expected = |rows: &[(&str, bool)]| -> Vec<(String, bool)> {
            rows.iter().map(|(at, open)| ((*at).to_owned(), *open)).collect()
        };
        assert_eq!(transitions(&ApplyConditions::default()), []);
        let mut guard = window(&[], 10, 12);
        let (first, second) = ("2026-11-21T10:00:00Z", "2026-11-22T10:00:00Z");
        let noon = ("2026-11-21T12:00:00Z", false);
        assert_eq!(transitions(&guard), expected(&[(first, true), noon, (second, true)]));
        guard.windows.extend(window(&[Weekday::Saturday], 12, 13).windows);
        let one = ("2026-11-21T13:00:00Z", false);
        assert_eq!(transitions(&guard), expected(&[(first, true), one, (second, true)]));
    }

    #[test]
    fn an_invalid_or_duplicate_key_is_an_error_at_its_line() {
        const KEY: &str = "MCowBQYDK2VwAyEAK6r6k6xSO+Tf7GsjgOLiOP431kQtIjsjKV0hIVgox0c=";
        // The point of order one, which verifies forged signatures.
        const WEAK: &str = "MCowBQYDK2VwAyEAAQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        for (keys, says) in [
            (vec![("a", "AAAA")], "not an Ed25519 public key"),
            (vec![("a", WEAK)], "not an Ed25519 public key"),
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
    fn a_window_follows_its_time_zone_and_daylight_saving() {
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
    fn a_window_over_midnight_belongs_to_its_opening_day() {
        // 2026-09-01 is a Tuesday.
        for (guard, at, open) in [
            (ApplyConditions::default(), "2026-09-01T03:00:00Z", true),
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
        // The clock skips from 02:00 to 03:00 on 28 March.
        let mut skipped = window(&[Weekday::Sunday], 2, 3);
        skipped.windows[0].zone = TimeZone::get("Europe/Berlin").expect("a zone");
        let next = skipped.next_opening("2027-03-22T00:00:00Z".parse().expect("a time"));
        assert_eq!(next.expect("in two weeks").to_string(), "2027-04-04T00:00:00Z");
    }
}
