//! The controller settings of `fleetwright.yaml`: mode, timing, rate limits and approval.

use jiff::SignedDuration;

use super::super::decode::{Field, FieldMap, shorten};
use super::field_values::set;
use crate::model::desired::{
    AppliedBy, ApprovalRule, ControllerSettings, CountOrShare, Mode, RateLimit, Severity,
};
use crate::model::ids::PoolName;

/// Reads `spec.controller`.
pub(super) fn read_controller(map: &FieldMap<'_>, settings: &mut ControllerSettings) {
    let rules = [
        ("merge", ApprovalRule::Merge),
        ("digest", ApprovalRule::Digest),
        ("policy", ApprovalRule::Policy),
    ];
    set(&mut settings.mode, map.get("mode").and_then(|f| f.choice(&Mode::ALL)));
    set(&mut settings.approval, map.get("approval").and_then(|f| f.choice(&rules)));
    settings.steer = map.get("steer").and_then(|f| f.boolean());
    settings.queue = map.get("queue").and_then(|f| f.non_empty_text()).map(Into::into);
    let ci_timeout = map.get_renamed("ciTimeout", "ciPatience");
    set(&mut settings.ci_timeout, ci_timeout.and_then(|f| positive_duration(&f)));
    let times = [
        ("poll", &mut settings.poll),
        ("refresh", &mut settings.refresh),
        ("settle", &mut settings.removal_delay),
    ];
    for (key, time) in times {
        set(time, map.get(key).and_then(|f| positive_duration(&f)));
    }
    if let Some(batch) = map.get("batch").as_ref().and_then(Field::map) {
        set(&mut settings.batch_idle, batch.get("idle").and_then(|f| positive_duration(&f)));
        set(&mut settings.batch_max, batch.get("most").and_then(|f| positive_duration(&f)));
        batch.finish(Severity::Error);
    }
    for (key, rate) in [("launches", &mut settings.launches), ("removals", &mut settings.removals)]
    {
        let Some(given) = map.get(key) else { continue };
        let Some(given) = given.map() else { continue };
        set(&mut rate.limit, given.get("most").and_then(|f| count_or_share(&f)));
        set(&mut rate.window, given.get("within").and_then(|f| budget_period(&f)));
        given.finish(Severity::Error);
    }
    set(&mut settings.mass_removal, map.get("massRemoval").and_then(|f| count_or_share(&f)));
    if let Some(repair) = map.get("repairAfter").and_then(|f| f.duration_or_never()) {
        settings.repair_after = match repair {
            crate::model::desired::Expiry::After(time) => Some(time),
            crate::model::desired::Expiry::Never => None,
        };
    }
    if let Some(confirm) = map.get("confirm") {
        settings.confirm_pools =
            confirm.items().filter_map(|f| Some(PoolName::from(&*f.non_empty_text()?))).collect();
    }
    map.finish(Severity::Error);
}

/// Reads `spec.apply.by`.
pub(super) fn read_merged_by(map: &FieldMap<'_>, settings: &mut ControllerSettings) {
    let choices = [("ci", AppliedBy::Ci), ("controller", AppliedBy::Controller)];
    set(&mut settings.applied_by, map.get("by").and_then(|f| f.choice(&choices)));
}

/// Reads a positive duration.
fn positive_duration(field: &Field<'_>) -> Option<SignedDuration> {
    let time = field.duration()?;
    if time.is_zero() {
        field.error("is zero", "write at least 1ms".to_owned());
        return None;
    }
    Some(time)
}

/// Reads the period of a rate limit, which must not exceed the recorded history.
fn budget_period(field: &Field<'_>) -> Option<SignedDuration> {
    let time = positive_duration(field)?;
    if time > RateLimit::WINDOW_MAX {
        let hours = RateLimit::WINDOW_MAX.as_hours();
        field.error(
            format_args!("is more than {hours} hours, the recorded history of moves"),
            format!("write at most {hours}h, and fewer instances"),
        );
        return None;
    }
    Some(time)
}

/// Reads a number of instances such as `5`, or a share such as `10%`.
fn count_or_share(field: &Field<'_>) -> Option<CountOrShare> {
    let text = field.text_or_number()?;
    let share = text.strip_suffix('%').and_then(super::super::karpenter::milli_percent);
    let read =
        share.map(CountOrShare::Share).or_else(|| text.parse().ok().map(CountOrShare::Count));
    if read.is_none() {
        field.error(
            format_args!("is `{}`, not a number of instances", shorten(&text)),
            "write a number such as 5, or a share such as 10%".to_owned(),
        );
    }
    read
}
