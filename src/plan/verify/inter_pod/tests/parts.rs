//! Tests the assignment of pods to parts, for workloads with pods that are bound to different
//! nodes.

use super::*;
use crate::demand::ReplicaPartition;

/// Zone of a part (empty: any), its number of pods, and its running pods by node.
type Bound<'a> = (&'a str, u32, &'a [(&'a str, u32)]);

/// Adds workload `w` with a part for each entry of `parts`.
fn add_parts(fixture: &mut PlanFixture, parts: &[Bound<'_>], on: &[(&str, u32, u32)]) {
    fixture.add_workload("w", |_| {}, on);
    let group = fixture.inputs.demand.groups.last_mut().unwrap();
    let part = |(zone, planned, running): &Bound<'_>| {
        let mut shape = PodShape::clone(&group.shape);
        if !zone.is_empty() {
            only(&mut shape, ZONE, zone);
        }
        let running = running.iter().map(|(node, pods)| (NodeName::from(*node), *pods)).collect();
        ReplicaPartition { shape: Arc::new(shape), planned: *planned, running }
    };
    group.partitions = parts.iter().map(part).collect();
}

#[test]
fn pods_are_assigned_to_parts_that_nodes_admit() {
    let ok: &[&str] = &[];
    for (what, parts, on, rules) in [
        (
            "one pod in each zone",
            &[("a", 1, &[][..]), ("b", 1, &[]), ("c", 1, &[])][..],
            &[("a2", 0, 1), ("b2", 0, 1), ("c2", 0, 1)][..],
            ok,
        ),
        (
            "two pods in a zone that one part is bound to",
            &[("a", 1, &[]), ("b", 1, &[])],
            &[("a2", 0, 2)],
            &["fit/parts"],
        ),
        (
            "a zone that no part is bound to",
            &[("a", 1, &[]), ("b", 1, &[])],
            &[("a2", 0, 1), ("c2", 0, 1)],
            &["fit/labels", "fit/parts"],
        ),
        (
            "an unbound part leaves nodes to a bound part",
            &[("", 1, &[]), ("a", 1, &[]), ("b", 1, &[])],
            &[("a1", 0, 2), ("b2", 0, 1)],
            ok,
        ),
        (
            "an unbound part uses the remaining nodes",
            &[("", 2, &[]), ("a", 1, &[])],
            &[("c1", 0, 1), ("a1", 0, 1), ("b2", 0, 1)],
            ok,
        ),
        (
            "more pods than the parts allow together",
            &[("", 1, &[]), ("a", 1, &[]), ("b", 2, &[])],
            &[("a1", 0, 2), ("c2", 0, 1), ("b2", 0, 1)],
            &["fit/parts"],
        ),
        (
            "a running pod stays on a node that does not admit its part",
            &[("a", 1, &[]), ("b", 1, &[("c1", 1)])],
            &[("a1", 0, 1), ("c1", 1, 0)],
            ok,
        ),
        (
            "a running pod does not allow an arriving pod of its part",
            &[("a", 1, &[]), ("b", 2, &[("c1", 1)])],
            &[("a1", 0, 1), ("c1", 1, 1)],
            &["fit/labels", "fit/parts"],
        ),
    ] {
        let mut fixture = PlanFixture::new();
        add_parts(&mut fixture, parts, on);
        let found = fixture.violations(&["fit/parts", "fit/labels", "fit/placements"]);
        let found: Vec<&str> = found.iter().map(|violation| violation.rule).collect();
        assert_eq!(found, rules, "{what}");
    }
}

#[test]
fn unschedulable_pods_may_be_of_any_part() {
    let mut fixture = PlanFixture::new();
    add_parts(&mut fixture, &[("a", 1, &[]), ("b", 1, &[])], &[("b2", 0, 1)]);
    assert_eq!(fixture.violations(&["fit/parts"]), []);
}
