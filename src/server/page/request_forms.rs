//! Forms for operator requests. Each carries the token of the operator.

use std::fmt::Write as _;

use super::moment;
use crate::controller::gates::MASS_REMOVAL_BREAKER;
use crate::controller::{BlockedReason, Breaker, PublishedPlan, Status};
use crate::model::ids::InstanceId;
use crate::model::plural::count;
use crate::plan::wire::ResourceChange;
use crate::render::html_fragments::{has_changes, text};

const NAME: usize = 120;
const LINE: usize = 600;
/// Maximum number of removals offered for confirmation.
const CONFIRM_MAX: usize = 200;

const TOKEN: &str = "<label>Token <input name=\"token\" type=\"password\" autocomplete=\"off\" required \
                     placeholder=\"kubectl create token NAME --audience fleetwright.dev\"></label>";
const TOKEN_NOTE: &str = "<p class=\"dim\">The cluster authenticates the token and authorizes the request. The token \
                          is sent to this server alone, and not stored.</p>\n";
const REASON: &str = "<label>Reason <input name=\"reason\" required maxlength=\"400\"></label>";

/// Renders all requests that are possible now. Those that nothing waits for are folded.
pub(super) fn request_forms(status: &Status) -> String {
    let plan = status.plan.as_ref();
    let approval = plan.filter(|current| has_changes(&current.plan)).map(approval_form);
    let is_awaited = plan.is_some_and(needs_approval);
    let mut awaited = approval.clone().filter(|_| is_awaited).unwrap_or_default();
    awaited.push_str(&plan.map(confirmation_form).unwrap_or_default());
    awaited.extend(status.breakers.iter().map(|breaker| breaker_form(breaker, plan)));
    let mut other = approval.filter(|_| !is_awaited).unwrap_or_default();
    other.push_str(&suspension_form(status));
    other.push_str(&break_glass_form(status));
    let fold = |summary: &str, note: &str| {
        format!(
            "<details id=\"other-requests\"><summary>{summary}</summary>\n{note}{other}</details>\n"
        )
    };
    if awaited.is_empty() {
        let other = fold("Approve, suspend or break-glass", TOKEN_NOTE);
        return format!("<h2 id=\"requests\">Requests</h2>\n{other}");
    }
    let other = fold("Other requests", "");
    format!("<h2 id=\"requests\">Decisions</h2>\n{TOKEN_NOTE}{awaited}{other}")
}

/// Returns true if a change waits for the approval of the plan.
fn needs_approval(current: &PublishedPlan) -> bool {
    current
        .blocked
        .values()
        .any(|blocked| matches!(blocked.reason, BlockedReason::NotApproved { .. }))
}

fn request_form(request: &str, fields: &str, button: &str) -> String {
    format!(
        "<form class=\"act\" method=\"post\" action=\"/requests\"><input type=\"hidden\" name=\"request\" \
         value=\"{request}\">{fields}{TOKEN}<button>{button}</button></form>\n"
    )
}

fn approval_form(current: &PublishedPlan) -> String {
    request_form("approve", &plan_field(current), "Approve this plan")
}

fn plan_field(current: &PublishedPlan) -> String {
    let digest = current.digest().to_string();
    format!(
        "<label>Plan <input name=\"digest\" readonly value=\"{}\"></label>",
        text(&digest, NAME)
    )
}

/// Renders the form that confirms one removal, if any requires confirmation.
fn confirmation_form(current: &PublishedPlan) -> String {
    let needs_confirmation = |row: &ResourceChange| {
        let blocked = current.blocked.get(&row.address);
        blocked.is_some_and(|blocked| matches!(blocked.reason, BlockedReason::NotConfirmed { .. }))
    };
    let instance = |row: &ResourceChange| row.change.before.as_ref()?.instance_id.clone();
    let rows = current.plan.resource_changes.iter().filter(|row| needs_confirmation(row));
    let rows: Vec<(&ResourceChange, InstanceId)> =
        rows.filter_map(|row| Some((row, instance(row)?))).collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut options = String::new();
    for (row, instance) in rows.iter().take(CONFIRM_MAX) {
        let (value, address) = (text(instance.as_str(), NAME), text(row.address.as_str(), NAME));
        let _ = write!(options, "<option value=\"{value}\">{address}: {value}</option>");
    }
    let more = match rows.len().saturating_sub(CONFIRM_MAX) {
        0 => String::new(),
        more => format!(" ({more} more are not listed)"),
    };
    let instance =
        format!("<label>Instance{more} <select name=\"instance\">{options}</select></label>");
    request_form("confirm", &instance, "Confirm this removal")
}

/// Renders the form that resets a breaker.
fn breaker_form(breaker: &Breaker, current: Option<&PublishedPlan>) -> String {
    let Breaker { name, since, why, removes } = breaker;
    let mut field = format!(
        "<label>Breaker <input name=\"breaker\" readonly value=\"{}\"></label>",
        text(name, NAME)
    );
    let mut approves = String::new();
    if let (Some(instances), Some(current), MASS_REMOVAL_BREAKER) =
        (removes, current, name.as_str())
    {
        field.push_str(&plan_field(current));
        let instances = count(instances, "instance");
        approves =
            format!(" A reset approves this plan, as long as it removes at most {instances}.");
    }
    format!(
        "<p class=\"dim\">Latched at {}: {}.{approves}</p>\n{}",
        moment(*since),
        text(why, LINE),
        request_form("reset", &field, "Reset this breaker")
    )
}

fn suspension_form(status: &Status) -> String {
    if status.suspended.is_some() {
        return request_form("resume", "", "End the suspension");
    }
    let lasts = "<label>For <select name=\"minutes\"><option value=\"60\">an hour<option value=\"480\">8 hours\
                 <option value=\"1440\">a day</select></label>";
    request_form("suspend", &format!("{REASON}{lasts}"), "Suspend")
}

/// Renders the form that starts or ends a break-glass.
fn break_glass_form(status: &Status) -> String {
    if status.break_glass.is_some() {
        return request_form("end-break-glass", "", "End break-glass");
    }
    let lasts = "<label>For <select name=\"minutes\"><option value=\"30\">half an hour<option value=\"60\">an hour\
                 <option value=\"240\">4 hours</select></label>";
    format!(
        "<details id=\"break-glass\"><summary>Break-glass</summary>\n<p class=\"dim\">For an emergency: bypasses \
         approvals, apply windows and the wait for CI. Mode, suspensions, policy denials, confirmations, budgets \
         and breakers still apply. The page, metrics and events show the operator and the reason.</p>\n{}</details>\n",
        request_form("break-glass", &format!("{REASON}{lasts}"), "Start break-glass")
    )
}
