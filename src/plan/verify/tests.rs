//! Tests that each rule finds its planted defects, and reports no valid plan.

mod autoscaler_growth;
mod contingency;
mod fargate;
mod fit;
mod groups;
mod harmless;
mod identity;
mod launches;
mod observed;
mod order;
mod pools;
mod rows;
mod totals;

use std::collections::BTreeSet;

use jiff::SignedDuration;
use proptest::prelude::*;

use super::*;
use crate::demand::{PodGroup, PodShape};
use crate::model::desired::Problem;
use crate::model::ids::Origin;
use crate::model::market::CapacityType;
use crate::model::observed::{Completeness, tag};
use crate::model::reason::RetireReason;
use crate::model::requirement::{Requirements, key, label};
use crate::model::units::{MicroUsd, Resources};
use crate::plan::wire::{
    Action, Amount, Condition, ExplainRow, NodeState, Precondition, ResourceChange, ResourceKind,
};
use crate::testing::plan::address;
use crate::testing::valid_plan::{Inputs, inputs, plan, workload};

/// A defect: the rule that reports it, a description, and a function that plants it.
type Defect = (&'static str, &'static str, fn(&mut Plan, &mut Inputs));

fn row<'a>(plan: &'a mut Plan, key: &str) -> &'a mut ResourceChange {
    plan.row_mut(&address(key))
}

fn before<'a>(plan: &'a mut Plan, key: &str) -> &'a mut NodeState {
    row(plan, key).change.before.as_mut().unwrap()
}

fn after<'a>(plan: &'a mut Plan, key: &str) -> &'a mut NodeState {
    row(plan, key).change.after.as_mut().unwrap()
}

/// Changes both states of a retained row.
fn edit_kept_node(plan: &mut Plan, edit: fn(&mut NodeState)) {
    edit(before(plan, "0"));
    edit(after(plan, "0"));
}

fn drifted() -> RetireReason {
    let [field, is, declared] = ["label team", "a", "b"].map(str::to_owned);
    RetireReason::Drifted { field, is, declared }
}

fn explain<'a>(plan: &'a mut Plan, key: &str) -> &'a mut ExplainRow {
    plan.explain_mut(&address(key))
}

fn group<'a>(inputs: &'a mut Inputs, name: &str) -> &'a mut PodGroup {
    let id = workload(name);
    inputs.demand.groups.iter_mut().find(|group| group.workload == id).unwrap()
}

fn shape(inputs: &mut Inputs, name: &str, edit: fn(&mut PodShape)) {
    let group = group(inputs, name);
    let mut shape = PodShape::clone(&group.shape);
    edit(&mut shape);
    group.shape = shape.into();
}

/// Changes the requests of a group, in the demand and in the plan's row.
fn requests(plan: &mut Plan, inputs: &mut Inputs, name: &str, edit: fn(&mut Resources)) {
    let group = group(inputs, name);
    let mut shape = PodShape::clone(&group.shape);
    edit(&mut shape.requests);
    let row = plan.capacity.demand.iter_mut().find(|row| row.workload == group.workload);
    row.unwrap().requests = Amount::from(&shape.requests);
    group.shape = shape.into();
}

fn pool(inputs: &mut Inputs) -> &mut crate::model::desired::Pool {
    inputs.desired.pools.get_mut("web").unwrap()
}

fn problem() -> Problem {
    Problem::error(Origin::new("shop.yaml", 3), "Deployment shop/api", "wrong")
}

/// Moves the arriving pods of a workload to another node, in all parts of the plan.
fn move_pods(plan: &mut Plan, name: &str, from: &str, to: &str) {
    let key = format!("shop/Deployment/{name}");
    let pods = explain(plan, from).pods.remove(key.as_str()).unwrap();
    *explain(plan, to).pods.entry(key.into()).or_default() += pods;
    let rows = &mut plan.capacity.placements;
    for row in rows.iter_mut() {
        if row.workload == workload(name) && row.address == address(from) {
            row.address = address(to);
        }
    }
    rows.sort();
}

/// Renames a row and all references to it.
fn rename(plan: &mut Plan, key: &str, to: &str) {
    let old = address(key);
    let moved = row(plan, key);
    (moved.address, moved.index) = (address(to), Some(to.to_owned()));
    if let Some(after) = &mut moved.change.after {
        after.labels.extend([label(crate::model::observed::KEY_LABEL, to)]);
    }
    let capacity = &mut plan.capacity;
    let addresses = capacity.waves.iter_mut().flat_map(|wave| &mut wave.addresses);
    let addresses = addresses
        .chain(capacity.explain.iter_mut().map(|row| &mut row.address))
        .chain(capacity.alternatives.iter_mut().map(|row| &mut row.address))
        .chain(capacity.placements.iter_mut().map(|row| &mut row.address))
        .chain(capacity.base.preconditions.iter_mut().map(|row| &mut row.address));
    for address in addresses.filter(|address| **address == old) {
        *address = self::address(to);
    }
    for precondition in &mut capacity.base.preconditions {
        if let Condition::KeyUnused { key: held, .. } = &mut precondition.condition
            && held == key
        {
            to.clone_into(held);
        }
    }
}

#[test]
fn valid_plan_breaks_no_rule() {
    assert_eq!(verify(&plan(), &inputs().facts()), []);
}

#[test]
fn replacement_may_have_a_new_key() {
    let (mut plan, inputs) = (plan(), inputs());
    rename(&mut plan, "3", "4");
    rename(&mut plan, "2", "3");
    plan.capacity.base.preconditions.push(Precondition {
        address: address("3"),
        condition: Condition::KeyUnused { pool: "web".into(), key: "3".to_owned() },
    });
    plan.capacity.base.preconditions.sort();
    assert_eq!(verify(&plan.with_identity(), &inputs.facts()), []);
}

fn defects() -> impl Iterator<Item = &'static Defect> {
    let all = [
        identity::DEFECTS,
        rows::DEFECTS,
        observed::OBSERVED,
        observed::OWNERSHIP,
        launches::LAUNCHES,
        launches::LIMITS,
        pools::DEFECTS,
        fit::DEFECTS,
        totals::TOTALS,
        totals::COST,
        order::DEFECTS,
        contingency::DEFECTS,
    ];
    all.into_iter().flatten()
}

#[test]
fn every_planted_defect_is_found_by_its_rule() {
    for (rule, what, plant) in defects() {
        let (mut plan, mut inputs) = (plan(), inputs());
        plant(&mut plan, &mut inputs);
        let found = verify(&plan.with_identity(), &inputs.facts());
        let rules: BTreeSet<_> = found.iter().map(|violation| violation.rule).collect();
        assert!(rules.contains(rule), "{what}: {rule} is not among {rules:?}");
        assert!(!rules.contains("plan/digest"), "{what}");
    }
}

#[test]
fn wrong_digest_or_identity_is_found() {
    let claims: [Defect; 3] = [
        ("plan/digest", "another digest", |plan, _| plan.capacity.digest = "sha256:0".into()),
        ("plan/id", "another identity", |plan, _| plan.capacity.plan_id = "0".into()),
        ("plan/id", "another commit", |plan, _| {
            plan.capacity.base.commit = Some("beef".to_owned());
        }),
    ];
    for (rule, what, plant) in claims {
        let (mut plan, mut inputs) = (plan(), inputs());
        plant(&mut plan, &mut inputs);
        let found = verify(&plan, &inputs.facts());
        assert_eq!(found.iter().map(|v| v.rule).collect::<Vec<_>>(), [rule], "{what}");
    }
}

#[test]
fn harmless_changes_break_no_rule() {
    for (rule, what, plant) in harmless::HARMLESS {
        let (mut plan, mut inputs) = (plan(), inputs());
        plant(&mut plan, &mut inputs);
        let found = verify(&plan.with_identity(), &inputs.facts());
        assert!(found.iter().all(|violation| violation.rule != *rule), "{what}: {found:?}");
    }
}

#[test]
fn violation_names_rule_row_and_both_values() {
    let mut plan = plan();
    after(&mut plan, "3").image = Some("al2@v1".to_owned());
    let found = verify(&plan.with_identity(), &inputs().facts());
    let text: Vec<String> = found.iter().map(ToString::to_string).collect();
    let expected = "launch/image: ec2_instance.web[\"3\"]: image is stated as al2@v1, \
                    but is al2023@latest";
    assert_eq!(text, [expected]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn verification_never_panics_and_is_deterministic(
        planted in proptest::sample::subsequence(defects().collect::<Vec<_>>(), 1..5),
    ) {
        // A defect may remove the object of a later defect. The later defect is then skipped.
        let (mut defective, mut facts) = (plan(), inputs());
        for (_, _, plant) in planted {
            let attempt = std::panic::catch_unwind(|| {
                let (mut plan, mut inputs) = (defective.clone(), facts.clone());
                plant(&mut plan, &mut inputs);
                (plan, inputs)
            });
            if let Ok((plan, inputs)) = attempt {
                (defective, facts) = (plan, inputs);
            }
        }
        let defective = defective.with_identity();
        prop_assert_eq!(verify(&defective, &facts.facts()), verify(&defective, &facts.facts()));
    }
}
