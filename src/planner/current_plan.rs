//! The plan that the current inputs lead to, beside an approved one.

use std::collections::BTreeMap;

use super::{Inputs, node_count_fixpoint, plan_in_scope};
use crate::demand::Demand;
use crate::model::ids::Address;
use crate::model::units::MicroUsd;
use crate::plan::{Facts, LaunchReview, Plan, RevalidatedPlan, review_launches, set_identity};

/// The plan for the current inputs, and the review of the approved launches.
pub(super) struct CurrentPlan {
    pub demand: Demand,
    /// The result if the current plan has the approved digest.
    pub revalidated: RevalidatedPlan,
    /// Price of the dearest offering that remains, where the planned offering is withdrawn.
    pub dearest: BTreeMap<Address, MicroUsd>,
}

impl CurrentPlan {
    pub(super) fn new(inputs: &Inputs, approved: &Plan) -> Self {
        let demand = node_count_fixpoint::demand(inputs, inputs.observed);
        let (mut now, _) = plan_in_scope(inputs, &demand);
        set_identity(&mut now);
        let mut revalidated = RevalidatedPlan::as_approved(now);
        let review = review_launches(
            approved,
            &Facts {
                desired: inputs.desired,
                demand: &demand,
                observed: inputs.observed,
                catalog: inputs.catalog,
                allocation: crate::catalog::allocation,
            },
        );
        let LaunchReview { refused, withdrawn, dearest } = review;
        (revalidated.undeclared, revalidated.withdrawn) = (refused, withdrawn);
        Self { demand, revalidated, dearest }
    }

    /// Returns true if the current plan has the approved digest, and its prices are those of the
    /// launches that remain.
    pub(super) fn is_approved(&self, approved: &Plan) -> bool {
        self.revalidated.current.capacity.digest == approved.capacity.digest
            && self.dearest.is_empty()
    }
}
