//! Metadata of a plan: version, digest, identity, base and flags.

use super::Violations;
use super::context::CheckContext;
use crate::model::desired::Severity;
use crate::plan::digest::digest;
use crate::plan::identity::plan_id;
use crate::plan::wire::FORMAT_VERSION;

pub(super) fn check(context: &CheckContext<'_>, violations: &mut Violations) {
    identity(context, violations);
    base(context, violations);
    flags(context, violations);
}

fn identity(context: &CheckContext<'_>, violations: &mut Violations) {
    let capacity = &context.plan.capacity;
    let version = FORMAT_VERSION.to_owned();
    violations.require_equal(
        "plan/version",
        "format_version",
        &context.plan.format_version,
        &version,
    );
    let computed = digest(context.plan);
    violations.require_equal("plan/digest", "digest", &capacity.digest, &computed);
    violations.require_equal(
        "plan/id",
        "plan_id",
        &capacity.plan_id,
        &plan_id(context.plan, &computed),
    );
}

fn base(context: &CheckContext<'_>, violations: &mut Violations) {
    let (world, observed) = (&context.plan.capacity.base.world, context.facts.observed);
    violations.require_equal("base/cluster", "the cluster", &world.cluster, &observed.cluster);
    violations.require_equal(
        "base/world",
        "the time of the observation",
        &world.taken_at,
        &observed.taken_at,
    );
    violations.require_equal(
        "base/world",
        "the state of sources",
        &world.sources,
        &observed.sources,
    );
}

fn flags(context: &CheckContext<'_>, violations: &mut Violations) {
    let (plan, facts) = (context.plan, context.facts);
    let mut problems = facts.desired.problems.iter().chain(&facts.demand.problems);
    let wrong = problems.any(|problem| problem.severity == Severity::Error)
        || !facts.catalog.overlay_conflicts(facts.desired).is_empty();
    if (wrong || !facts.observed.is_complete()) && !plan.errored {
        violations.report_plan(
            "flags/errored",
            "inputs have errors or were not read, and `errored` is false",
        );
    }
    let errored = plan.errored.then(|| "the plan is errored".to_owned());
    let unchangeable = plan.capacity.base.world.unchangeable_reason();
    for reason in errored.into_iter().chain(unchangeable) {
        if plan.applyable {
            violations.report_plan("flags/applyable", format!("`applyable` is true, but {reason}"));
        }
    }
    if plan.capacity.expires_at <= plan.timestamp {
        violations.report_plan("flags/expiry", "the plan expires before its timestamp");
    }
}
