//! Whether everything that a plan depends on was read.

use super::Plan;
use crate::model::desired::UnresolvedPolicy;

/// Returns whether a part of the inputs was not read, so that the plan may lack changes. Sources
/// that the settings ignore count as read.
pub fn is_incomplete(plan: &Plan) -> bool {
    let is_ignored = plan.capacity.base.unresolved == Some(UnresolvedPolicy::Ignore);
    plan.errored || !(plan.capacity.unresolved.is_empty() || is_ignored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample_plan;

    #[test]
    fn ignored_sources_do_not_make_a_plan_incomplete() {
        let mut plan = sample_plan::plan();
        assert!(is_incomplete(&plan));
        plan.capacity.base.unresolved = Some(UnresolvedPolicy::Running);
        assert!(is_incomplete(&plan));
        plan.capacity.base.unresolved = Some(UnresolvedPolicy::Ignore);
        assert!(!is_incomplete(&plan));
        plan.errored = true;
        assert!(is_incomplete(&plan));
    }
}
