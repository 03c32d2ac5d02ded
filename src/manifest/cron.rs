//! Reads cron expressions and time zones.

use jiff::tz::TimeZone;

use super::decode::{Field, shorten};
use crate::model::desired::Schedule;

/// Reads a cron expression: five fields, or one of the macros.
pub(super) fn expression(field: &Field<'_>) -> Option<Schedule> {
    let text = field.text()?;
    let schedule = Schedule::parse(&text);
    if schedule.is_none() {
        field.error(
            format_args!("is `{}`, not a cron expression", shorten(&text)),
            "write five fields, such as \"30 2 * * 1-5\" (Sunday is 0), or one of @hourly, @daily, \
             @weekly, @monthly, @yearly"
                .to_owned(),
        );
    }
    schedule
}

/// Reads a time zone by its IANA name.
pub(super) fn time_zone(field: &Field<'_>) -> Option<TimeZone> {
    let name = field.non_empty_text()?;
    let zone = TimeZone::get(&name).ok();
    if zone.is_none() {
        field.error(
            format_args!("is `{}`, which is not a time zone", shorten(&name)),
            "write an IANA name, such as Europe/Berlin, Asia/Seoul or UTC".to_owned(),
        );
    }
    zone
}
