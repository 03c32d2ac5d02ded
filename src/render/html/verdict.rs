//! The verdict of a page: one sentence with an icon, and the facts below it.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::super::amount::{count, dollars, gib, signed_dollars, span};
use super::super::header::capacity_totals;
use super::super::{is_errored_by_rules, overlay_prices, unread};
use super::escape::text;
use super::links;
use crate::model::code::Code;
use crate::model::commit::CommitOrigin;
use crate::model::units::MicroUsd;
use crate::plan::Plan;
use crate::plan::wire::{CheckStatus, Completeness};

const NAME: usize = 120;
const SENTENCE: usize = 240;
/// Displayed characters of a digest.
const DIGEST_SHOWN: usize = "sha256:".len() + 12;

/// The tone of a verdict: its icon and color.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerdictTone {
    /// Nothing to do.
    InSync,
    /// Changes are planned or in progress.
    Working,
    /// An operator has to decide.
    Waiting,
    /// Part of the input is missing.
    Incomplete,
    /// Part of the fleet or of the controller fails.
    Degraded,
    /// Nothing happens until an operator acts.
    Blocked,
    /// Nothing can be applied.
    Preview,
}

impl VerdictTone {
    fn class(self) -> &'static str {
        match self {
            Self::InSync => "ok",
            Self::Working => "work",
            Self::Waiting => "wait",
            Self::Incomplete | Self::Degraded => "poor",
            Self::Blocked => "bad",
            Self::Preview => "view",
        }
    }

    fn icon(self) -> &'static str {
        match self {
            Self::InSync => "✓",
            Self::Working => "→",
            Self::Waiting => "?",
            Self::Incomplete | Self::Degraded => "!",
            Self::Blocked => "×",
            Self::Preview => "○",
        }
    }
}

/// The state of a plan or a controller in one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageVerdict {
    /// Icon and color.
    pub tone: VerdictTone,
    /// The sentence, such as `In sync`; outside text is not escaped yet.
    pub title: String,
    /// A second sentence; empty if there is nothing to add.
    pub detail: String,
}

impl PageVerdict {
    /// Returns a verdict.
    pub fn new(tone: VerdictTone, title: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { tone, title: title.into(), detail: detail.into() }
    }

    /// Renders the verdict. A screen reader announces its changes.
    pub fn html(&self) -> String {
        let detail = match self.detail.as_str() {
            "" => String::new(),
            detail => format!("<span>{}</span>", text(detail, SENTENCE)),
        };
        format!(
            "<div id=\"verdict\" class=\"verdict {}\" role=\"status\" aria-live=\"polite\">\
             <b class=\"icon\" aria-hidden=\"true\">{}</b><p><strong>{}</strong>{detail}</p></div>\n",
            self.tone.class(),
            self.tone.icon(),
            text(&self.title, SENTENCE)
        )
    }
}

/// Returns the verdict of a plan that no controller applies.
pub fn plan_verdict(plan: &Plan) -> PageVerdict {
    let changes = changes_text(plan);
    problem_verdict(plan, &changes).unwrap_or_else(|| {
        if is_preview(plan) {
            let detail = "Nothing can be applied. Use --world live to plan against your cluster.";
            let changes = match (has_changes(plan), plan.complete) {
                (true, _) => changes.as_str(),
                (false, true) => "no node is needed",
                (false, false) => "no changes in this part of the plan",
            };
            let title = format!("Preview (empty cluster): {changes}");
            return PageVerdict::new(VerdictTone::Preview, title, detail);
        }
        if !has_changes(plan) {
            return no_changes(plan, "In sync: no changes", "");
        }
        let detail = if plan.applyable {
            "This plan can be applied."
        } else {
            "This plan cannot be applied."
        };
        PageVerdict::new(VerdictTone::Working, format!("Planned: {changes}"), detail)
    })
}

/// Returns the verdict of a plan without changes. `title` and `detail` are for a plan that covers
/// the whole fleet.
pub fn no_changes(plan: &Plan, title: &str, detail: &str) -> PageVerdict {
    if plan.complete {
        return PageVerdict::new(VerdictTone::InSync, title, detail);
    }
    let title = "No changes in this part of the plan";
    let detail = "Targets, exclusions or the scope of the controller limit the plan.";
    PageVerdict::new(VerdictTone::InSync, title, detail)
}

/// The cause of an errored plan.
enum ErrorCause<'p> {
    /// The plan breaks rules of its own check.
    Rules,
    /// A source of the observation was not fully read.
    Source(&'p str),
    /// The inputs have errors.
    Inputs,
}

impl<'p> ErrorCause<'p> {
    /// Returns the cause; `None` if the plan is not errored.
    fn of(plan: &'p Plan) -> Option<Self> {
        if !plan.errored {
            return None;
        }
        if is_errored_by_rules(plan) {
            return Some(Self::Rules);
        }
        Some(partial_source(plan).map_or(Self::Inputs, Self::Source))
    }
}

/// Returns the first source of the observation that was not fully read.
fn partial_source(plan: &Plan) -> Option<&str> {
    let sources = &plan.capacity.base.world.sources;
    let partial = sources.iter().find(|(_, state)| **state != Completeness::Complete);
    partial.map(|(source, _)| source.as_str())
}

/// Returns why an errored plan is not applied, as one sentence; outside text is not escaped yet.
pub fn errored_text(plan: &Plan) -> Option<String> {
    Some(match ErrorCause::of(plan)? {
        ErrorCause::Rules => {
            "The plan breaks rules of its own check, so it is not applied.".to_owned()
        }
        ErrorCause::Source(source) => {
            format!("{source} was not fully read: the plan removes nothing and is not applied.")
        }
        ErrorCause::Inputs => {
            "The inputs have errors: the plan removes nothing and is not applied.".to_owned()
        }
    })
}

fn errored_verdict(plan: &Plan) -> Option<PageVerdict> {
    let (title, detail) = match ErrorCause::of(plan)? {
        ErrorCause::Rules => (
            "Blocked: the plan breaks rules of its own check".to_owned(),
            "The plan cannot be applied. Report the errors below.",
        ),
        ErrorCause::Source(source) => (
            format!("Blocked: {source} not fully read"),
            "The plan removes nothing and cannot be applied. The reason is below.",
        ),
        ErrorCause::Inputs => (
            "Blocked: the inputs have errors".to_owned(),
            "The plan removes nothing and cannot be applied. Correct the errors below.",
        ),
    };
    Some(PageVerdict::new(VerdictTone::Blocked, title, detail))
}

/// Returns the verdict of a plan that is blocked, incomplete or leaves pods without a node.
pub fn problem_verdict(plan: &Plan, changes: &str) -> Option<PageVerdict> {
    let detail = match (is_preview(plan), has_changes(plan)) {
        (true, _) => format!("Preview from an empty cluster; the plan {changes}."),
        (false, true) => format!("The plan {changes}."),
        (false, false) => "No node changes.".to_owned(),
    };
    if let Some(verdict) = errored_verdict(plan) {
        return Some(verdict);
    }
    let mut denied = plan.checks.iter().filter(|check| check.status.is_denial());
    if let Some(first) = denied.next() {
        let more = denied.count();
        let others = if more > 0 { format!(" and {more} more") } else { String::new() };
        let title = if first.status == CheckStatus::Fail {
            format!("Blocked: denied by policy {}{others}", first.name)
        } else {
            format!("Blocked: policy {} has no result{others}", first.name)
        };
        return Some(PageVerdict::new(VerdictTone::Blocked, title, format!("The plan {changes}.")));
    }
    if let Some(sources) = not_counted_text(plan) {
        let title = format!("Incomplete: {sources}");
        return Some(PageVerdict::new(VerdictTone::Incomplete, title, detail));
    }
    if let Some(source) = partial_source(plan) {
        let title = format!("Incomplete: {source} not fully read");
        return Some(PageVerdict::new(VerdictTone::Incomplete, title, detail));
    }
    match plan.capacity.pods.unschedulable {
        0 => None,
        n => {
            let title = format!("Degraded: {} unschedulable", count(n, "pod"));
            Some(PageVerdict::new(VerdictTone::Degraded, title, detail))
        }
    }
}

/// Returns true for a plan from an empty cluster.
fn is_preview(plan: &Plan) -> bool {
    plan.capacity.base.world.name == "empty"
}

/// Returns true if the plan changes anything.
pub fn has_changes(plan: &Plan) -> bool {
    let summary = &plan.summary;
    summary.add + summary.change + summary.destroy > 0
}

/// Returns the changes of a plan as a predicate, such as `launches 2 nodes and removes 1`.
pub fn changes_text(plan: &Plan) -> String {
    let nodes = plan.summary.nodes;
    let mut parts = Vec::new();
    if nodes.launch > 0 {
        parts.push(format!("launches {}", count(nodes.launch, "node")));
    }
    if nodes.terminate > 0 {
        parts.push(format!("removes {}", count(nodes.terminate, "node")));
    }
    if plan.summary.change > 0 && parts.is_empty() {
        parts.push(format!("makes {}", count(plan.summary.change, "change")));
    }
    match parts.len() {
        0 => "has no changes".to_owned(),
        _ => parts.join(" and "),
    }
}

/// Returns the sources whose pods are not counted, such as `1 Helm chart not read`.
fn not_counted_text(plan: &Plan) -> Option<String> {
    let kinds = unread::by_code(plan);
    let total: usize = kinds.values().map(Vec::len).sum();
    match (kinds.len(), kinds.first_key_value()) {
        (1, Some((Code::SizeUnknown, _))) => {
            Some(format!("{} not counted", unread::counted(Code::SizeUnknown, total)))
        }
        (1, Some((code, _))) => Some(format!("{} not read", unread::counted(*code, total))),
        (0, _) => None,
        (_, _) => Some(format!("{total} sources not counted")),
    }
}

/// Renders the totals of a plan: nodes, capacity, pods and cost.
pub fn totals(plan: &Plan) -> String {
    let capacity = &plan.capacity;
    let (nodes, pods, cost) = (&plan.summary.nodes, &capacity.pods, &capacity.cost);
    let [before, after] = capacity_totals(plan);
    let monthly = |price: MicroUsd| dollars(price.per_month(), 0);
    let mut items = vec![
        ("nodes", arrow(&nodes.before.to_string(), &nodes.after.to_string())),
        ("vCPU", arrow(&before.0, &after.0)),
        ("GiB of memory", arrow(&whole_gib(before.1), &whole_gib(after.1))),
        ("pods placed", format!("{} of {}", pods.placed, pods.total)),
        ("a month", arrow(&monthly(cost.hourly_before), &monthly(cost.hourly_after))),
    ];
    if cost.monthly_delta != MicroUsd::ZERO {
        items.push(("difference a month", signed_dollars(cost.monthly_delta, 2)));
    }
    if cost.lower_bound_hourly != MicroUsd::ZERO {
        items.push(("above the lower bound", format!("{} %", cost.gap_percent)));
    }
    let overlays = overlay_prices::cost_text(cost, "→")
        .map_or_else(String::new, |line| format!("<p>{}.</p>\n", text(&line, SENTENCE)));
    format!("{}{overlays}", total_list(&items))
}

/// Returns gibibytes, without decimals if they are many.
fn whole_gib(bytes: i64) -> String {
    let exact = gib(bytes);
    match exact.split_once('.') {
        Some((whole, _)) if whole.len() > 2 => whole.to_owned(),
        _ => exact,
    }
}

/// Renders totals: each a value with its name.
pub fn total_list(items: &[(&str, String)]) -> String {
    let mut html = "<ul class=\"totals\">\n".to_owned();
    for (name, value) in items {
        let _ = writeln!(html, "<li><b>{}</b> {name}</li>", text(value, 80));
    }
    html.push_str("</ul>\n");
    html
}

/// Returns both values, or one if they are equal.
fn arrow(before: &str, after: &str) -> String {
    if before == after { after.to_owned() } else { format!("{before} → {after}") }
}

/// Returns where the plan comes from: names and escaped HTML. Ages refer to `now`, if it is known.
pub fn plan_facts(plan: &Plan, now: Option<Timestamp>) -> Vec<(&'static str, String)> {
    let capacity = &plan.capacity;
    let base = &capacity.base;
    let ago = |at: Timestamp| {
        now.map_or_else(String::new, |now| format!(" ({} ago)", span(now.duration_since(at))))
    };
    let mut facts = Vec::new();
    if let Some(commit) = &base.commit {
        let changed = if base.dirty { " with local changes" } else { "" };
        facts.push((
            "Commit",
            format!("{}{changed}", links::commit(base.repository.as_deref(), commit)),
        ));
    }
    if let Some(repository) = &base.repository {
        facts.push(("Repository", text(repository, NAME)));
    }
    facts.push(("Planned", format!("{}{}", minute(plan.timestamp), ago(plan.timestamp))));
    let world = &base.world;
    let observed = if is_preview(plan) {
        "empty cluster".to_owned()
    } else {
        format!("{}, {}{}", text(&world.name, NAME), minute(world.taken_at), ago(world.taken_at))
    };
    facts.push(("Observed", observed));
    let left = now.map_or_else(String::new, |now| match capacity.expires_at.duration_since(now) {
        left if left.is_positive() => format!(" (in {})", span(left)),
        _ => " (expired)".to_owned(),
    });
    facts.push(("Expires", format!("{}{left}", minute(capacity.expires_at))));
    let digest: String = capacity.digest.as_str().chars().take(DIGEST_SHOWN).collect();
    facts.push(("Digest", format!("<code>{}</code>", text(&digest, NAME))));
    facts
}

/// Returns author and pull request of a commit: names and escaped HTML.
pub fn origin_facts(
    repository: Option<&str>,
    origin: Option<&CommitOrigin>,
) -> Vec<(&'static str, String)> {
    let Some(origin) = origin else { return Vec::new() };
    let mut facts = vec![("Author", text(&origin.author, NAME))];
    let link = origin.pull_request.map(|number| links::pull_request(repository, number));
    facts.extend(link.map(|link| ("Pull request", link)));
    facts
}

/// Renders facts: names and escaped HTML.
pub fn fact_list(facts: &[(&str, String)]) -> String {
    let mut html = "<dl class=\"facts\">\n".to_owned();
    for (name, value) in facts {
        let _ = writeln!(html, "<div><dt>{name}</dt><dd>{value}</dd></div>");
    }
    html.push_str("</dl>\n");
    html
}

/// Formats a time to the minute.
pub(super) fn minute(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::Origin;
    use crate::plan::wire::{Check, Diagnostic, UnresolvedRow};
    use crate::testing::sample_plan::{nothing, plan};

    #[test]
    fn verdict_names_the_cause_of_an_errored_plan() {
        let mut plan = Plan { errored: true, ..nothing() };
        let title = |plan: &Plan| plan_verdict(plan).title;
        assert_eq!(title(&plan), "Blocked: the inputs have errors");
        let failed = Completeness::Failed { reason: "access denied".into() };
        plan.capacity.base.world.sources.insert("ec2".into(), failed);
        assert_eq!(title(&plan), "Blocked: ec2 not fully read");
        let text = errored_text(&plan).expect("errored");
        assert!(text.starts_with("ec2 was not fully read"), "{text}");
        plan.capacity.diagnostics =
            vec![Diagnostic::error("", "the plan breaks rule money/sum: 1 is not 2")];
        assert_eq!(title(&plan), "Blocked: the plan breaks rules of its own check");
        assert_eq!(errored_text(&nothing()), None);
    }

    #[test]
    fn partial_plan_without_changes_is_not_in_sync() {
        let partial = Plan { complete: false, ..nothing() };
        assert_eq!(plan_verdict(&partial).title, "No changes in this part of the plan");
    }

    #[test]
    fn object_of_unknown_size_is_not_unread() {
        let mut plan = nothing();
        let row = |object: &str| UnresolvedRow {
            running: 0,
            object: object.into(),
            origin: Origin::new("apps.yaml", 1),
            reason: "its size is unknown".into(),
        };
        plan.capacity.unresolved = vec![row("RayCluster ml/train")];
        assert_eq!(plan_verdict(&plan).title, "Incomplete: 1 object of unknown size not counted");
        plan.capacity.unresolved.push(row("HelmRelease web/shop"));
        assert_eq!(plan_verdict(&plan).title, "Incomplete: 2 sources not counted");
    }

    #[test]
    fn verdict_names_the_state_of_each_plan() {
        let with = |change: fn(&mut Plan)| {
            let mut plan = plan();
            plan.capacity.unresolved.clear();
            plan.capacity.pods.unschedulable = 0;
            change(&mut plan);
            plan_verdict(&plan).title
        };
        assert_eq!(plan_verdict(&nothing()).title, "In sync: no changes");
        assert_eq!(plan_verdict(&plan()).title, "Incomplete: 1 Helm chart not read");
        assert_eq!(with(|_| ()), "Planned: launches 4 nodes and removes 4 nodes");
        assert_eq!(with(|plan| plan.errored = true), "Blocked: the inputs have errors");
        assert_eq!(
            with(|plan| plan.capacity.pods.unschedulable = 2),
            "Degraded: 2 pods unschedulable"
        );
        assert_eq!(
            with(|plan| plan.capacity.base.world.name = "empty".to_owned()),
            "Preview (empty cluster): launches 4 nodes and removes 4 nodes"
        );
        let denied = |plan: &mut Plan| {
            let name = "budget.deny".to_owned();
            plan.checks.push(Check { name, status: CheckStatus::Fail, ..Check::default() });
        };
        assert_eq!(with(denied), "Blocked: denied by policy budget.deny");
    }
}
