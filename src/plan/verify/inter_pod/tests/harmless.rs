//! Valid states that resemble the unreachable states of `defects`.

use super::defects::{
    DefectCase, RULES, affinity, anti_affinity, binds, declare_namespace, in_namespace_bank,
    no_rules, spread_evenly, taint,
};
use super::*;

const HARMLESS: &[DefectCase] = &[
    ("fit/ports", "one port on two nodes", |t| {
        t.add_workload("w", binds, &[("a1", 1, 0), ("a2", 0, 1)]);
    }),
    ("fit/ports", "two protocols", |t| {
        t.add_workload("v", |s| s.host_ports = vec![host_port(53, "UDP", "")], &[("a2", 0, 1)]);
        t.add_workload("w", |s| s.host_ports = vec![host_port(53, "TCP", "")], &[("a2", 0, 1)]);
    }),
    ("fit/ports", "two addresses", |t| {
        t.add_workload(
            "v",
            |s| s.host_ports = vec![host_port(53, "UDP", "10.0.0.1")],
            &[("a2", 0, 1)],
        );
        t.add_workload(
            "w",
            |s| s.host_ports = vec![host_port(53, "UDP", "10.0.0.2")],
            &[("a2", 0, 1)],
        );
    }),
    ("fit/ports", "pods that already run on one node", |t| {
        t.add_workload("w", binds, &[("a1", 2, 0)]);
    }),
    ("fit/ports", "port 0 binds nothing", |t| {
        t.add_workload("w", |s| s.host_ports = vec![host_port(0, "TCP", "")], &[("a2", 0, 2)]);
    }),
    ("fit/anti-affinity", "one pod on each node", |t| {
        t.add_workload(
            "w",
            anti_affinity(HOST, "w"),
            &[("a1", 1, 0), ("b1", 0, 1), ("a2", 0, 1), ("b2", 0, 1)],
        );
    }),
    (
        "fit/anti-affinity",
        "pods that already run in one zone, and a new pod in another zone",
        |t| {
            t.add_workload("w", anti_affinity(ZONE, "w"), &[("a1", 2, 0), ("b1", 0, 1)]);
        },
    ),
    ("fit/anti-affinity", "nodes without the key", |t| {
        t.add_workload("w", anti_affinity("rack", "w"), &[("a1", 0, 2), ("a2", 0, 1)]);
    }),
    ("fit/anti-affinity", "another namespace", |t| {
        t.add_workload("v", in_namespace_bank, &[("a1", 1, 0)]);
        t.add_workload("w", anti_affinity(HOST, "v"), &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "a namespace with other labels", |t| {
        declare_namespace(t, "bank", "art");
        t.add_workload("v", in_namespace_bank, &[("a1", 1, 0)]);
        let bank_term = PodAffinityTerm {
            namespace_selector: Some(selector("team", "money")),
            ..affinity_term(HOST, "v")
        };
        t.add_workload("w", |s| s.anti_affinity.required = vec![bank_term], &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "pods of another version", |t| {
        let mut same = PodAffinityTerm { selector: Some(everything()), ..affinity_term(HOST, "") };
        same.match_label_keys = vec!["version".into()];
        t.add_workload("v", |s| s.labels.extend([label("version", "1")]), &[("a1", 1, 0)]);
        t.add_workload(
            "w",
            |s| {
                s.labels.extend([label("version", "2")]);
                s.anti_affinity.required = vec![same];
            },
            &[("a1", 0, 1)],
        );
    }),
    ("fit/anti-affinity", "pods of the same tenant", |t| {
        let mut other = PodAffinityTerm { selector: Some(everything()), ..affinity_term(HOST, "") };
        other.mismatch_label_keys = vec!["tenant".into()];
        let own = |s: &mut PodShape| {
            s.labels.extend([label("tenant", "x")]);
            s.anti_affinity.required = vec![other];
        };
        t.add_workload("w", own, &[("a1", 0, 2)]);
    }),
    ("fit/anti-affinity", "a missing selector", |t| {
        let without_selector = PodAffinityTerm { selector: None, ..affinity_term(HOST, "w") };
        t.add_workload("w", |s| s.anti_affinity.required = vec![without_selector], &[("a1", 0, 2)]);
    }),
    ("fit/anti-affinity", "a preference", |t| {
        t.add_workload(
            "w",
            |s| s.anti_affinity.preferred = vec![(100, affinity_term(HOST, "w"))],
            &[("a1", 0, 2)],
        );
    }),
    ("fit/affinity", "a running target", |t| {
        t.add_workload("v", no_rules, &[("a1", 1, 0)]);
        t.add_workload("w", affinity(ZONE, "v"), &[("a2", 0, 2)]);
    }),
    ("fit/affinity", "an arriving target", |t| {
        t.add_workload("v", no_rules, &[("a2", 0, 1)]);
        t.add_workload("w", affinity(HOST, "v"), &[("a2", 0, 2)]);
    }),
    ("fit/affinity", "a chain of targets", |t| {
        t.add_workload("u", affinity(ZONE, "v"), &[("a1", 0, 1)]);
        t.add_workload("v", affinity(ZONE, "w"), &[("a2", 0, 1)]);
        t.add_workload("w", no_rules, &[("a2", 0, 1)]);
    }),
    ("fit/affinity", "the first pods of a workload", |t| {
        t.add_workload("w", affinity(ZONE, "w"), &[("a1", 0, 2), ("a2", 0, 1)]);
    }),
    ("fit/affinity", "the first pod of a workload, before a target arrives in another zone", |t| {
        t.add_workload("v", |s| s.labels = [label("app", "w")].into(), &[("b1", 0, 1)]);
        t.add_workload("w", affinity(ZONE, "w"), &[("a1", 0, 1)]);
    }),
    ("fit/affinity", "two workloads with one target, which can start first", |t| {
        t.add_workload("v", affinity(ZONE, "w"), &[("a1", 0, 1)]);
        t.add_workload("w", affinity(ZONE, "w"), &[("a2", 0, 1)]);
    }),
    ("fit/affinity", "a zone target that arrives by its affinity over the region", |t| {
        for node in NODES {
            t.edit_node(node, |state| state.labels.extend([label("region", "r")]));
        }
        let v = |s: &mut PodShape| {
            s.labels = [label("app", "w")].into();
            s.affinity.required = vec![affinity_term("region", "w")];
        };
        t.add_workload("v", v, &[("b1", 0, 1)]);
        t.add_workload("w", affinity(ZONE, "w"), &[("a1", 0, 1), ("b2", 0, 1)]);
    }),
    ("fit/affinity", "staying pods without a target", |t| {
        t.add_workload("w", affinity(ZONE, "v"), &[("a1", 2, 0)]);
    }),
    ("fit/affinity", "one pod that all terms select", |t| {
        t.add_workload("u", |s| s.labels.extend([label("tier", "db")]), &[("a1", 1, 0)]);
        let mut tier = affinity_term(ZONE, "");
        tier.selector = Some(selector("tier", "db"));
        let terms = vec![affinity_term(HOST, "u"), tier];
        t.add_workload("w", |s| s.affinity.required = terms, &[("a1", 0, 1)]);
    }),
    ("fit/spread", "an empty selector, which counts no pod", |t| {
        let rule = TopologySpread { selector: Some(everything()), ..topology_spread(ZONE, 1, "") };
        t.add_workload("w", |s| s.spread = vec![rule], &[("a1", 0, 3)]);
    }),
    ("fit/spread", "an even spread", |t| {
        t.add_workload(
            "w",
            spread_evenly(ZONE, 1, "w"),
            &[("a1", 0, 2), ("b1", 0, 1), ("c1", 0, 1)],
        );
    }),
    ("fit/spread", "a skewed workload that grows in the emptiest zones", |t| {
        t.add_workload(
            "w",
            spread_evenly(ZONE, 1, "w"),
            &[("a1", 5, 0), ("b2", 0, 1), ("c2", 0, 1)],
        );
    }),
    ("fit/spread", "a skewed workload without arriving pods", |t| {
        t.add_workload("w", spread_evenly(ZONE, 1, "w"), &[("a1", 5, 0)]);
    }),
    ("fit/spread", "a preference", |t| {
        let soft = WhenUnsatisfiable::ScheduleAnyway;
        let rule = TopologySpread { when_unsatisfiable: soft, ..topology_spread(ZONE, 1, "w") };
        t.add_workload("w", |s| s.spread = vec![rule], &[("a1", 0, 5)]);
    }),
    ("fit/spread", "a missing selector, which counts no pods", |t| {
        let rule = TopologySpread { selector: None, ..topology_spread(ZONE, 1, "w") };
        t.add_workload("w", |s| s.spread = vec![rule], &[("a1", 0, 5)]);
    }),
    ("fit/spread", "an empty selector over a zone, which counts no pods", |t| {
        let rule = TopologySpread { selector: Some(everything()), ..topology_spread(ZONE, 1, "w") };
        t.add_workload("w", |s| s.spread = vec![rule], &[("a1", 0, 5)]);
    }),
    ("fit/spread", "a zone outside of the node affinity", |t| {
        t.edit_node("c1", |state| drop(state.labels.remove("team")));
        t.edit_node("c2", |state| drop(state.labels.remove("team")));
        t.add_workload(
            "w",
            |s| {
                only(s, "team", "web");
                s.spread = vec![topology_spread(ZONE, 1, "w")];
            },
            &[("a1", 0, 2), ("b1", 0, 2)],
        );
    }),
    ("fit/spread", "a zone with a taint, with taint policy Honor", |t| {
        taint(t, "c1");
        taint(t, "c2");
        let policy = NodeInclusion::Honor;
        let rule = TopologySpread { node_taints_policy: policy, ..topology_spread(ZONE, 1, "w") };
        t.add_workload("w", |s| s.spread = vec![rule], &[("a1", 0, 2), ("b1", 0, 2)]);
    }),
    ("fit/spread", "a cordoned zone, with taint policy Honor", |t| {
        t.inputs.observed.nodes.get_mut("c1").unwrap().unschedulable = true;
        taint(t, "c2");
        let policy = NodeInclusion::Honor;
        let rule = TopologySpread { node_taints_policy: policy, ..topology_spread(ZONE, 1, "w") };
        t.add_workload("w", |s| s.spread = vec![rule], &[("a1", 0, 2), ("b1", 0, 2)]);
    }),
    ("fit/spread", "a zone without a key of another constraint", |t| {
        for node in ["a1", "b1"] {
            t.edit_node(node, |state| state.labels.extend([label("rack", "7")]));
        }
        let rules = vec![topology_spread(ZONE, 1, "w"), topology_spread("rack", 9, "w")];
        t.add_workload("w", |s| s.spread = rules, &[("a1", 0, 2), ("b1", 0, 2)]);
    }),
    ("fit/spread", "pods of another workload that arrive in the zone later", |t| {
        t.add_workload("v", |s| s.labels = [label("app", "w")].into(), &[("a1", 0, 4)]);
        t.add_workload("w", spread_evenly(ZONE, 1, "w"), &[("a2", 0, 1)]);
    }),
    ("fit/spread", "as many domains as minDomains", |t| {
        let rule = TopologySpread { min_domains: Some(3), ..topology_spread(ZONE, 1, "w") };
        t.add_workload("w", |s| s.spread = vec![rule], &[("a1", 0, 2), ("b1", 0, 2), ("c1", 0, 2)]);
    }),
    ("fit/spread", "pods of another namespace do not count", |t| {
        t.add_workload(
            "v",
            |s| (s.namespace, s.labels) = ("bank".into(), [label("app", "w")].into()),
            &[("a1", 5, 0)],
        );
        t.add_workload("w", spread_evenly(ZONE, 1, "w"), &[("a1", 0, 1)]);
    }),
];

#[test]
fn reachable_state_breaks_no_rule() {
    for (_, what, make) in HARMLESS {
        let mut fixture = PlanFixture::new();
        make(&mut fixture);
        assert_eq!(fixture.violations(&RULES), [], "{what}");
    }
}
