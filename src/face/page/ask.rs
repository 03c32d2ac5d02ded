//! The forms by which something is asked of the loop, each with the token of whoever asks.

use std::fmt::Write as _;

use super::moment;
use crate::ids::InstanceId;
use crate::plan::wire::ResourceChange;
use crate::reconcile::allow::MASS_REMOVAL;
use crate::reconcile::{Breaker, Held, PlanNow, Status};
use crate::render::web::text;

const NAME: usize = 120;
const LINE: usize = 600;
/// Most removals among which somebody chooses the one to confirm.
const CONFIRM_MAX: usize = 200;

const TOKEN: &str = "<label>Token <input name=\"token\" type=\"password\" autocomplete=\"off\" required \
                     placeholder=\"kubectl create token NAME\"></label>";
const REASON: &str = "<label>Reason <input name=\"reason\" required maxlength=\"400\"></label>";

/// Returns everything that may be asked now.
pub(super) fn requests(status: &Status) -> String {
    let mut html = "<h2 id=\"requests\">Ask</h2>\n<p class=\"dim\">The token tells the cluster who asks; the \
                    cluster says whether they may. It is sent to this server alone, and not kept.</p>\n"
        .to_owned();
    if let Some(current) = &status.plan {
        html.push_str(&approve(current));
        html.push_str(&confirm(current));
    }
    html.extend(status.breakers.iter().map(|breaker| reset(breaker, status.plan.as_ref())));
    html.push_str(&suspend(status));
    html.push_str(&glass(status));
    html
}

fn form(request: &str, fields: &str, button: &str) -> String {
    format!(
        "<form class=\"act\" method=\"post\" action=\"/requests\"><input type=\"hidden\" name=\"request\" \
         value=\"{request}\">{fields}{TOKEN}<button>{button}</button></form>\n"
    )
}

fn approve(current: &PlanNow) -> String {
    form("approve", &plan(current), "Approve this plan")
}

fn plan(current: &PlanNow) -> String {
    let digest = current.digest().to_string();
    format!(
        "<label>Plan <input name=\"digest\" readonly value=\"{}\"></label>",
        text(&digest, NAME)
    )
}

/// Returns the form by which the removal of one machine is confirmed, where any waits for that.
fn confirm(current: &PlanNow) -> String {
    let waits = |row: &ResourceChange| {
        let held = current.held.get(&row.address);
        held.is_some_and(|held| matches!(held.why, Held::NotConfirmed { .. }))
    };
    let machine = |row: &ResourceChange| row.change.before.as_ref()?.instance_id.clone();
    let rows = current.plan.resource_changes.iter().filter(|row| waits(row));
    let rows: Vec<(&ResourceChange, InstanceId)> =
        rows.filter_map(|row| Some((row, machine(row)?))).collect();
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
        more => format!(" (and {more} more once these are gone)"),
    };
    let machine =
        format!("<label>Machine{more} <select name=\"instance\">{options}</select></label>");
    form("confirm", &machine, "Confirm this removal")
}

/// Returns the form by which a breaker is opened again.
fn reset(breaker: &Breaker, current: Option<&PlanNow>) -> String {
    let Breaker { name, since, why, removes } = breaker;
    let mut field = format!(
        "<label>Breaker <input name=\"breaker\" readonly value=\"{}\"></label>",
        text(name, NAME)
    );
    let mut approves = String::new();
    if let (Some(machines), Some(current), MASS_REMOVAL) = (removes, current, name.as_str()) {
        field.push_str(&plan(current));
        approves = format!(
            " To reset it is to approve this plan, where it removes no more than {machines} machines."
        );
    }
    format!(
        "<p class=\"dim\">Latched at {}: {}.{approves}</p>\n{}",
        moment(*since),
        text(why, LINE),
        form("reset", &field, "Reset this breaker")
    )
}

fn suspend(status: &Status) -> String {
    if status.suspended.is_some() {
        return form("resume", "", "End the suspension");
    }
    let lasts = "<label>For <select name=\"minutes\"><option value=\"60\">an hour<option value=\"480\">8 hours\
                 <option value=\"1440\">a day</select></label>";
    form("suspend", &format!("{REASON}{lasts}"), "Suspend")
}

/// Returns the form by which approval is passed over, or the one that ends that.
fn glass(status: &Status) -> String {
    if status.break_glass.is_some() {
        return form("mend-glass", "", "Ask for approvals again");
    }
    let lasts = "<label>For <select name=\"minutes\"><option value=\"30\">half an hour<option value=\"60\">an hour\
                 <option value=\"240\">4 hours</select></label>";
    format!(
        "<details id=\"glass\"><summary>Break the glass</summary>\n<p class=\"dim\">For an emergency: until then \
         plans are carried out that nobody approved, outside of windows too, and of commits that CI has not \
         applied. Mode, suspensions, denials of policies, confirmations, budgets and breakers hold as ever. \
         Everybody is told who asked for it, and why.</p>\n{}</details>\n",
        form("break-glass", &format!("{REASON}{lasts}"), "Break the glass")
    )
}
