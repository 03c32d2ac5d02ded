//! What may stand in for a launch whose pods are tied to a place.

use super::*;
use crate::catalog::CapacityType;
use crate::plan::wire::{Alternative, AlternativesRow};
use crate::units::MicroUsd;

const RULES: [&str; 2] = ["alternatives/topology", "alternatives/fit"];

/// What is on the node, how it comes there, and the rules that the offering breaks.
type Case = (&'static str, fn(&mut Town), &'static [&'static str]);

/// Lets an offering in zone b stand in for the node `a2`.
fn stand_in(town: &mut Town) {
    let offering = Alternative {
        instance_type: "m5.xlarge".into(),
        zone: "us-east-1b".into(),
        capacity_type: CapacityType::OnDemand,
        hourly: MicroUsd(192_000),
    };
    let row = AlternativesRow { address: address("a2"), offerings: vec![offering] };
    town.plan.capacity.alternatives = vec![row];
}

#[test]
fn a_node_of_tied_pods_keeps_its_place() {
    let cases: [Case; 8] = [
        ("pods that nothing ties", |t| t.put("w", |_| {}, &[("a2", 0, 1)]), &[]),
        (
            "pods that are spread",
            |t| t.put("w", |s| s.spread = vec![spread(ZONE, 1, "w")], &[("a2", 0, 1)]),
            &["alternatives/topology"],
        ),
        (
            "pods that avoid others",
            |t| t.put("w", |s| s.anti_affinity.required = vec![term(ZONE, "v")], &[("a2", 0, 1)]),
            &["alternatives/topology"],
        ),
        (
            "pods that others join",
            |t| {
                t.put("v", |s| s.affinity.required = vec![term(ZONE, "w")], &[("a1", 1, 0)]);
                t.put("w", |_| {}, &[("a2", 0, 1)]);
            },
            &["alternatives/topology"],
        ),
        (
            "pods that others are not about",
            |t| {
                t.put("v", |s| s.affinity.required = vec![term(ZONE, "v")], &[("a1", 1, 0)]);
                t.put("w", |_| {}, &[("a2", 0, 1)]);
            },
            &[],
        ),
        (
            "pods that are alone on their node wherever it is",
            |t| t.put("w", |s| s.anti_affinity.required = vec![term(HOST, "w")], &[("a2", 0, 1)]),
            &[],
        ),
        (
            "a DaemonSet of the other zone that has the port",
            |t| {
                let binds = |s: &mut PodShape| s.host_ports = vec![port(80, "TCP", "")];
                t.daemon("agent", |s| {
                    binds(s);
                    only(s, ZONE, "us-east-1b");
                });
                t.put("w", binds, &[("a2", 0, 1)]);
            },
            &["alternatives/fit"],
        ),
        (
            "pods whose volumes are in the zone",
            |t| {
                t.put("w", |_| {}, &[("a2", 0, 1)]);
                let group = t.inputs.demand.groups.last_mut().unwrap();
                let mut shape = PodShape::clone(&group.shape);
                only(&mut shape, ZONE, "a");
                let running = BTreeMap::new();
                let here = crate::demand::Part { shape: shape.into(), planned: 1, running };
                let shape = group.shape.clone();
                let anywhere = crate::demand::Part { shape, planned: 0, ..here.clone() };
                group.parts = vec![here, anywhere];
            },
            &["alternatives/fit"],
        ),
    ];
    for (what, make, rules) in cases {
        let mut town = Town::new();
        make(&mut town);
        stand_in(&mut town);
        let found: Vec<&str> = town.violations(&RULES).iter().map(|v| v.rule).collect();
        assert_eq!(found, rules, "{what}");
    }
}
