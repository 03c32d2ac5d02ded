//! Alternatives of launches whose pods are bound to a topology domain.

use super::*;
use crate::model::market::CapacityType;
use crate::model::units::MicroUsd;
use crate::plan::wire::{Alternative, AlternativesRow};

const RULES: [&str; 2] = ["alternatives/topology", "alternatives/fit"];

/// Description, setup, and the rules that the alternative breaks.
type DefectCase = (&'static str, fn(&mut PlanFixture), &'static [&'static str]);

/// Adds an alternative in zone b for node `a2`.
fn add_alternative(fixture: &mut PlanFixture) {
    let offering = Alternative {
        instance_type: "m5.xlarge".into(),
        zone: "us-east-1b".into(),
        capacity_type: CapacityType::OnDemand,
        hourly: MicroUsd(192_000),
    };
    let row = AlternativesRow { address: address("a2"), offerings: vec![offering] };
    fixture.plan.capacity.alternatives = vec![row];
}

const CASES: &[DefectCase] = &[
    ("pods without inter-pod rules", |t| t.add_workload("w", |_| {}, &[("a2", 0, 1)]), &[]),
    (
        "pods with a spread constraint",
        |t| {
            t.add_workload(
                "w",
                |s| s.spread = vec![topology_spread(ZONE, 1, "w")],
                &[("a2", 0, 1)],
            );
        },
        &["alternatives/topology"],
    ),
    (
        "pods with anti-affinity",
        |t| {
            t.add_workload(
                "w",
                |s| s.anti_affinity.required = vec![affinity_term(ZONE, "v")],
                &[("a2", 0, 1)],
            );
        },
        &["alternatives/topology"],
    ),
    (
        "pods that the affinity of other pods selects",
        |t| {
            t.add_workload(
                "v",
                |s| s.affinity.required = vec![affinity_term(ZONE, "w")],
                &[("a1", 1, 0)],
            );
            t.add_workload("w", |_| {}, &[("a2", 0, 1)]);
        },
        &["alternatives/topology"],
    ),
    (
        "pods that the affinity of other pods does not select",
        |t| {
            t.add_workload(
                "v",
                |s| s.affinity.required = vec![affinity_term(ZONE, "v")],
                &[("a1", 1, 0)],
            );
            t.add_workload("w", |_| {}, &[("a2", 0, 1)]);
        },
        &[],
    ),
    (
        "pods with anti-affinity over the host name only",
        |t| {
            t.add_workload(
                "w",
                |s| s.anti_affinity.required = vec![affinity_term(HOST, "w")],
                &[("a2", 0, 1)],
            );
        },
        &[],
    ),
    (
        "a DaemonSet of the other zone binds the same port",
        |t| {
            let binds = |s: &mut PodShape| s.host_ports = vec![host_port(80, "TCP", "")];
            t.add_daemon_set("agent", |s| {
                binds(s);
                only(s, ZONE, "us-east-1b");
            });
            t.add_workload("w", binds, &[("a2", 0, 1)]);
        },
        &["alternatives/fit"],
    ),
    (
        "pods with volumes in the zone",
        |t| {
            t.add_workload("w", |_| {}, &[("a2", 0, 1)]);
            let group = t.inputs.demand.groups.last_mut().unwrap();
            let mut shape = PodShape::clone(&group.shape);
            only(&mut shape, ZONE, "a");
            let running = BTreeMap::new();
            let here = crate::demand::ReplicaPartition { shape: shape.into(), planned: 1, running };
            let shape = group.shape.clone();
            let anywhere = crate::demand::ReplicaPartition { shape, planned: 0, ..here.clone() };
            group.partitions = vec![here, anywhere];
        },
        &["alternatives/fit"],
    ),
];

#[test]
fn bound_pods_keep_their_topology_domain() {
    for (what, make, rules) in CASES {
        let mut fixture = PlanFixture::new();
        make(&mut fixture);
        add_alternative(&mut fixture);
        let found: Vec<&str> = fixture.violations(&RULES).iter().map(|v| v.rule).collect();
        assert_eq!(found, *rules, "{what}");
    }
}
