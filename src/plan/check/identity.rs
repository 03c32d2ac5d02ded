//! What a plan says about itself: version, digest, identity, base, flags.

use super::Verdict;
use super::case::Case;
use crate::manifest::Severity;
use crate::plan::digest::digest;
use crate::plan::identity::plan_id;
use crate::plan::wire::FORMAT_VERSION;

/// The world that has nothing in it because nobody looked.
const EMPTY_WORLD: &str = "empty";

pub(super) fn check(case: &Case<'_>, verdict: &mut Verdict) {
    identity(case, verdict);
    base(case, verdict);
    flags(case, verdict);
}

fn identity(case: &Case<'_>, verdict: &mut Verdict) {
    let capacity = &case.plan.capacity;
    let version = FORMAT_VERSION.to_owned();
    verdict.equal("plan/version", "format_version", &case.plan.format_version, &version);
    let computed = digest(case.plan);
    verdict.equal("plan/digest", "digest", &capacity.digest, &computed);
    verdict.equal("plan/id", "plan_id", &capacity.plan_id, &plan_id(case.plan, &computed));
}

fn base(case: &Case<'_>, verdict: &mut Verdict) {
    let (world, observed) = (&case.plan.capacity.base.world, case.facts.observed);
    verdict.equal("base/cluster", "the cluster", &world.cluster, &observed.cluster);
    verdict.equal("base/world", "the time of the world", &world.taken_at, &observed.taken_at);
    verdict.equal("base/world", "the state of sources", &world.sources, &observed.sources);
}

fn flags(case: &Case<'_>, verdict: &mut Verdict) {
    let (plan, facts) = (case.plan, case.facts);
    let mut problems = facts.desired.problems.iter().chain(&facts.demand.problems);
    let wrong = problems.any(|problem| problem.severity == Severity::Error)
        || !facts.catalog.overlay_conflicts(facts.desired).is_empty();
    if (wrong || !facts.observed.is_complete()) && !plan.errored {
        verdict
            .plan("flags/errored", "inputs have errors or were not read, and `errored` is false");
    }
    let base = &plan.capacity.base;
    for (holds, reason) in [
        (plan.errored, "the plan is errored"),
        (base.world.name == EMPTY_WORLD, "nobody looked at the world"),
    ] {
        if holds && plan.applyable {
            verdict.plan("flags/applyable", format!("`applyable` is true, but {reason}"));
        }
    }
    if plan.capacity.expires_at <= plan.timestamp {
        verdict.plan("flags/expiry", "the plan expires before it is made");
    }
}
