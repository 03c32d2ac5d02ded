//! Differences between any two plans.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;

use super::change_summary::change_summary;
use super::wire::{Condition, ListCost, Plan, Precondition};
use crate::model::ids::{Address, Digest, PlanId, PoolName};
use crate::model::node_annotations::NodeAnnotations;
use crate::model::units::MicroUsd;

/// Differences between two plans.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The first plan.
    pub a: PlanOverview,
    /// The second plan.
    pub b: PlanOverview,
    /// True if both plans have the same decisions.
    pub same_decisions: bool,
    /// True if both plans have the same identity, so that an approval of one covers the other.
    pub same_plan: bool,
    /// Rows with different actions, by address.
    pub rows: Vec<DifferenceRow>,
    /// Rows with different preconditions, by address.
    pub preconditions: Vec<ConditionDifference>,
    /// Pools whose new nodes get different annotations; absent if there is none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub annotations: Vec<AnnotationDifference>,
    /// Node overlays that set prices; absent if none sets a price of either plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlays: Option<OverlayDifference>,
}

/// Key data of one of the compared plans.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlanOverview {
    /// Digest.
    pub digest: Digest,
    /// Identity.
    pub plan_id: PlanId,
    /// Commit.
    pub commit: Option<String>,
    /// Time that the plan is made for.
    pub timestamp: Timestamp,
    /// Numbers of rows that create, update and delete.
    pub changes: [u32; 3],
    /// Price per hour after the apply.
    pub hourly_after: MicroUsd,
    /// Cost at list prices; absent unless node overlays set a price of the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list: Option<ListCost>,
    /// Number of unschedulable pods.
    pub unschedulable: u32,
}

/// A row that differs between two plans.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct DifferenceRow {
    /// Address of the row.
    pub address: Address,
    /// Action of the first plan; absent if it has no such row.
    pub a: Option<String>,
    /// Action of the second plan; absent if it has no such row.
    pub b: Option<String>,
}

/// The preconditions of a row that only one of two plans has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConditionDifference {
    /// Address of the row.
    pub address: Address,
    /// Preconditions of the first plan alone.
    pub a: BTreeSet<Condition>,
    /// Preconditions of the second plan alone.
    pub b: BTreeSet<Condition>,
}

/// The annotations of new nodes of a pool that only one of two plans has. A different value is in
/// both parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AnnotationDifference {
    /// The pool.
    pub pool: PoolName,
    /// Annotations of the first plan alone.
    pub a: NodeAnnotations,
    /// Annotations of the second plan alone.
    pub b: NodeAnnotations,
}

/// Names of the node overlays that set prices of two plans.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OverlayDifference {
    /// Overlays that set a price of the first plan alone.
    pub a: Vec<String>,
    /// Overlays that set a price of the second plan alone.
    pub b: Vec<String>,
    /// Overlays that set a price of both plans.
    pub both: Vec<String>,
}

/// Returns the differences between two plans.
pub fn difference(a: &Plan, b: &Plan) -> Difference {
    Difference {
        same_decisions: a.capacity.digest == b.capacity.digest,
        same_plan: a.capacity.plan_id == b.capacity.plan_id,
        rows: differing_rows(row_descriptions(a), row_descriptions(b)),
        preconditions: differing_conditions(&conditions(a), &conditions(b)),
        annotations: differing_annotations(
            &a.capacity.node_annotations,
            &b.capacity.node_annotations,
        ),
        overlays: overlay_difference(a, b),
        a: PlanOverview::new(a),
        b: PlanOverview::new(b),
    }
}

impl PlanOverview {
    fn new(plan: &Plan) -> Self {
        let capacity = &plan.capacity;
        Self {
            digest: capacity.digest.clone(),
            plan_id: capacity.plan_id.clone(),
            commit: capacity.base.commit.clone(),
            timestamp: plan.timestamp,
            changes: [plan.summary.add, plan.summary.change, plan.summary.destroy],
            hourly_after: capacity.cost.hourly_after,
            list: capacity.cost.list.clone(),
            unschedulable: capacity.pods.unschedulable,
        }
    }

    /// Returns the price per hour after the apply, without the prices of node overlays.
    pub fn hourly_list(&self) -> MicroUsd {
        self.list.as_ref().map_or(self.hourly_after, |list| list.hourly_after)
    }

    /// Returns the number of nodes without a list price.
    pub fn unlisted(&self) -> u32 {
        self.list.as_ref().map_or(0, |list| list.unlisted)
    }
}

fn overlay_difference(a: &Plan, b: &Plan) -> Option<OverlayDifference> {
    let names = |plan: &Plan| -> BTreeSet<String> {
        plan.capacity.cost.list.iter().flat_map(|list| list.overlays.iter().cloned()).collect()
    };
    let (a, b) = (names(a), names(b));
    (!a.is_empty() || !b.is_empty()).then(|| OverlayDifference {
        a: a.difference(&b).cloned().collect(),
        b: b.difference(&a).cloned().collect(),
        both: a.intersection(&b).cloned().collect(),
    })
}

fn row_descriptions(plan: &Plan) -> BTreeMap<Address, String> {
    plan.resource_changes.iter().map(|row| (row.address.clone(), change_summary(row))).collect()
}

fn conditions(plan: &Plan) -> BTreeMap<Address, BTreeSet<Condition>> {
    let mut map: BTreeMap<Address, BTreeSet<Condition>> = BTreeMap::new();
    for Precondition { address, condition } in &plan.capacity.base.preconditions {
        map.entry(address.clone()).or_default().insert(condition.clone());
    }
    map
}

fn differing_conditions(
    a: &BTreeMap<Address, BTreeSet<Condition>>,
    b: &BTreeMap<Address, BTreeSet<Condition>>,
) -> Vec<ConditionDifference> {
    let addresses: BTreeSet<&Address> = a.keys().chain(b.keys()).collect();
    let none = BTreeSet::new();
    let row = |address: &Address| {
        let (a, b) = (a.get(address).unwrap_or(&none), b.get(address).unwrap_or(&none));
        let alone = |one: &BTreeSet<Condition>, other| one.difference(other).cloned().collect();
        ConditionDifference { address: address.clone(), a: alone(a, b), b: alone(b, a) }
    };
    let rows = addresses.into_iter().map(row);
    rows.filter(|row| !row.a.is_empty() || !row.b.is_empty()).collect()
}

fn differing_annotations(
    a: &BTreeMap<PoolName, NodeAnnotations>,
    b: &BTreeMap<PoolName, NodeAnnotations>,
) -> Vec<AnnotationDifference> {
    let pools: BTreeSet<&PoolName> = a.keys().chain(b.keys()).collect();
    let none = NodeAnnotations::new();
    let row = |pool: &PoolName| {
        let (a, b) = (a.get(pool).unwrap_or(&none), b.get(pool).unwrap_or(&none));
        let alone = |one: &NodeAnnotations, other: &NodeAnnotations| -> NodeAnnotations {
            let alone = one.iter().filter(|(key, value)| other.get(*key) != Some(*value));
            alone.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        AnnotationDifference { pool: pool.clone(), a: alone(a, b), b: alone(b, a) }
    };
    let rows = pools.into_iter().map(row);
    rows.filter(|row| !row.a.is_empty() || !row.b.is_empty()).collect()
}

fn differing_rows(
    a: BTreeMap<Address, String>,
    mut b: BTreeMap<Address, String>,
) -> Vec<DifferenceRow> {
    let mut rows = Vec::new();
    for (address, a) in a {
        let b = b.remove(&address);
        if b.as_ref() != Some(&a) {
            rows.push(DifferenceRow { address, a: Some(a), b });
        }
    }
    rows.extend(b.into_iter().map(|(address, b)| DifferenceRow { address, a: None, b: Some(b) }));
    rows.sort();
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::wire::Action;
    use crate::testing::valid_plan::plan;

    #[test]
    fn difference_lists_rows_with_other_actions() {
        let a = plan();
        let none = difference(&a, &a.clone());
        assert!(none.same_decisions && none.same_plan && none.rows.is_empty());
        let mut b = plan();
        let launch =
            b.resource_changes.iter_mut().find(|row| row.change.actions == [Action::Create]);
        let state = launch.and_then(|row| row.change.after.as_mut()).expect("a launched node");
        state.instance_type = Some("x9.large".into());
        let found = difference(&a, &b.with_identity());
        assert!(!found.same_decisions && !found.same_plan);
        assert_eq!(found.rows.len(), 1);
        assert!(found.rows[0].b.as_ref().is_some_and(|b| b.starts_with("launch x9.large")));
    }

    /// Returns a plan with annotations for these pools.
    fn annotated(pools: &[(&str, &[(&str, &str)])]) -> Plan {
        let mut plan = plan();
        for (pool, pairs) in pools {
            let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            plan.capacity.node_annotations.insert((*pool).into(), pairs.collect());
        }
        plan.with_identity()
    }

    #[test]
    fn annotations_of_one_plan_alone_are_listed_by_pool() {
        let a = annotated(&[("batch", &[("x", "y")]), ("web", &[("team", "shop"), ("x", "y")])]);
        let b = annotated(&[("batch", &[("x", "y")]), ("web", &[("team", "other"), ("x", "y")])]);
        let found = difference(&a, &b);
        assert!(!found.same_decisions && found.rows.is_empty());
        let json = serde_json::to_value(found).expect("JSON");
        let web = serde_json::json!({
            "pool": "web", "a": { "team": "shop" }, "b": { "team": "other" },
        });
        assert_eq!(json["annotations"], serde_json::json!([web]));
        let json = serde_json::to_value(difference(&a, &a)).expect("JSON");
        assert!(json.get("annotations").is_none(), "{json}");
        let found = difference(&a, &annotated(&[("web", &[("team", "shop"), ("x", "y")])]));
        assert_eq!(found.annotations.len(), 1);
        assert_eq!((found.annotations[0].a.len(), found.annotations[0].b.len()), (1, 0));
    }

    #[test]
    fn overlays_that_set_prices_are_named_by_plan() {
        let (mut a, mut b) = (plan(), plan());
        assert_eq!(difference(&a, &b).overlays, None);
        let json = serde_json::to_value(difference(&a, &b)).expect("JSON");
        assert!(json.get("overlays").is_none() && json["a"].get("list").is_none(), "{json}");
        let list = |overlays: &[&str]| {
            let overlays = overlays.iter().map(|name| (*name).to_owned()).collect();
            let (hourly_before, hourly_after) = (MicroUsd::ZERO, MicroUsd(70));
            Some(ListCost { hourly_before, hourly_after, overlays, unlisted: 2 })
        };
        b.capacity.cost.list = list(&["deal", "fuse"]);
        let found = difference(&a, &b);
        assert_eq!((found.b.hourly_list(), found.b.unlisted()), (MicroUsd(70), 2));
        assert_eq!((found.a.hourly_list(), found.a.unlisted()), (found.a.hourly_after, 0));
        a.capacity.cost.list = list(&["fuse", "old"]);
        let json = serde_json::to_value(difference(&a, &b)).expect("JSON");
        let expected = serde_json::json!({ "a": ["old"], "b": ["deal"], "both": ["fuse"] });
        assert_eq!(json["overlays"], expected);
        assert_eq!(json["b"]["list"]["hourly_after"], "0.000070");
    }
}
