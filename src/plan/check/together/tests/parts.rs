//! Workloads whose pods are bound to different nodes, and how they can be dealt out.

use super::*;
use crate::demand::Part;

/// The zone that a part is bound to (none: any), its pods, and where they run.
type Bound<'a> = (&'a str, u32, &'a [(&'a str, u32)]);

/// Adds workload `w` with a part of `planned` pods for each zone of `parts`, of which as many run on
/// each node as `running` says.
fn put(town: &mut Town, parts: &[Bound<'_>], on: &[(&str, u32, u32)]) {
    town.put("w", |_| {}, on);
    let group = town.inputs.demand.groups.last_mut().unwrap();
    let part = |(zone, planned, running): &Bound<'_>| {
        let mut shape = PodShape::clone(&group.shape);
        if !zone.is_empty() {
            only(&mut shape, ZONE, zone);
        }
        let running = running.iter().map(|(node, pods)| (NodeName::from(*node), *pods)).collect();
        Part { shape: Arc::new(shape), planned: *planned, running }
    };
    group.parts = parts.iter().map(part).collect();
}

#[test]
fn pods_are_dealt_out_to_the_parts_that_may_be_there() {
    let ok: &[&str] = &[];
    for (what, parts, on, rules) in [
        (
            "one in each zone",
            &[("a", 1, &[][..]), ("b", 1, &[]), ("c", 1, &[])][..],
            &[("a2", 0, 1), ("b2", 0, 1), ("c2", 0, 1)][..],
            ok,
        ),
        (
            "two in a zone that one is bound to",
            &[("a", 1, &[]), ("b", 1, &[])],
            &[("a2", 0, 2)],
            &["fit/parts"],
        ),
        (
            "a zone that none is bound to",
            &[("a", 1, &[]), ("b", 1, &[])],
            &[("a2", 0, 1), ("c2", 0, 1)],
            &["fit/labels", "fit/parts"],
        ),
        (
            "a part that may go anywhere makes room for one that may not",
            &[("", 1, &[]), ("a", 1, &[]), ("b", 1, &[])],
            &[("a1", 0, 2), ("b2", 0, 1)],
            ok,
        ),
        (
            "a part that may go anywhere takes what is left",
            &[("", 2, &[]), ("a", 1, &[])],
            &[("c1", 0, 1), ("a1", 0, 1), ("b2", 0, 1)],
            ok,
        ),
        (
            "more than the parts that may be there together",
            &[("", 1, &[]), ("a", 1, &[]), ("b", 2, &[])],
            &[("a1", 0, 2), ("c2", 0, 1), ("b2", 0, 1)],
            &["fit/parts"],
        ),
        (
            "a pod that runs where it would not go again stays",
            &[("a", 1, &[]), ("b", 1, &[("c1", 1)])],
            &[("a1", 0, 1), ("c1", 1, 0)],
            ok,
        ),
        (
            "one runs there, another of its part does not come",
            &[("a", 1, &[]), ("b", 2, &[("c1", 1)])],
            &[("a1", 0, 1), ("c1", 1, 1)],
            &["fit/labels", "fit/parts"],
        ),
    ] {
        let mut town = Town::new();
        put(&mut town, parts, on);
        let found = town.violations(&["fit/parts", "fit/labels", "fit/placements"]);
        let found: Vec<&str> = found.iter().map(|violation| violation.rule).collect();
        assert_eq!(found, rules, "{what}");
    }
}

#[test]
fn pods_without_a_place_may_be_of_any_part() {
    let mut town = Town::new();
    put(&mut town, &[("a", 1, &[]), ("b", 1, &[])], &[("b2", 0, 1)]);
    assert_eq!(town.violations(&["fit/parts"]), []);
}
