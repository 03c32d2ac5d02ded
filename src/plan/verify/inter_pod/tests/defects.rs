//! States that no scheduling order reaches. `harmless` has similar states that are valid.

use super::*;
use crate::model::observed::Pod;
use crate::model::pod::{Container, Expression, PodSpec, PodTemplate};
use crate::model::requirement::Operator;
use crate::testing::pods::no_schedule;
use crate::testing::world;

/// The rules between pods.
pub(super) const RULES: [&str; 4] =
    ["fit/ports", "fit/anti-affinity", "fit/affinity", "fit/spread"];

/// A rule, a description, and a function that sets up the state.
pub(super) type DefectCase = (&'static str, &'static str, fn(&mut PlanFixture));

pub(super) fn binds(shape: &mut PodShape) {
    shape.host_ports = vec![host_port(8080, "TCP", "")];
}

pub(super) fn anti_affinity(key: &str, name: &str) -> impl FnOnce(&mut PodShape) {
    let term = affinity_term(key, name);
    |shape| shape.anti_affinity.required.push(term)
}

pub(super) fn affinity(key: &str, name: &str) -> impl FnOnce(&mut PodShape) {
    let term = affinity_term(key, name);
    |shape| shape.affinity.required.push(term)
}

pub(super) fn spread_evenly(key: &str, max_skew: i32, name: &str) -> impl FnOnce(&mut PodShape) {
    let rule = topology_spread(key, max_skew, name);
    |shape| shape.spread.push(rule)
}

pub(super) fn no_rules(_: &mut PodShape) {}

pub(super) fn in_namespace_bank(shape: &mut PodShape) {
    shape.namespace = "bank".into();
}

pub(super) fn declare_namespace(fixture: &mut PlanFixture, namespace: &str, team: &str) {
    fixture.inputs.desired.namespaces.insert(namespace.into(), [label("team", team)].into());
}

/// Gives node `name` a taint that no pod tolerates.
pub(super) fn taint(fixture: &mut PlanFixture, name: &str) {
    let taint = no_schedule("gpu", "");
    fixture.edit_node(name, |state| state.taints = vec![taint.clone()]);
}

/// Adds a static pod with label `app: static` that binds host port 8080.
fn static_pod(fixture: &mut PlanFixture, node: &str) {
    let container =
        Container { host_ports: vec![host_port(8080, "TCP", "")], ..Container::default() };
    let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
    let template =
        PodTemplate { labels: [label("app", "static")].into(), spec, ..PodTemplate::default() };
    fixture.inputs.observed.templates.insert("static".to_owned(), template.into());
    let pod = world::pod("static").on(node);
    let pod = Pod {
        namespace: "shop".into(),
        template: "static".into(),
        created_at: fixture.inputs.observed.taken_at,
        mirror: true,
        ..pod
    };
    fixture.inputs.observed.pods.push(Arc::new(pod));
}

const DEFECTS: &[DefectCase] = &[
    ("fit/ports", "two pods of a workload on one node", |t| {
        t.add_workload("w", binds, &[("a2", 0, 2)]);
    }),
    ("fit/ports", "an arriving pod beside a running pod of its workload", |t| {
        t.add_workload("w", binds, &[("a1", 1, 1)]);
    }),
    ("fit/ports", "two workloads with one port", |t| {
        t.add_workload("v", binds, &[("a1", 1, 0)]);
        t.add_workload("w", binds, &[("a1", 0, 1)]);
    }),
    ("fit/ports", "the port of a DaemonSet", |t| {
        t.add_daemon_set("agent", binds);
        t.add_workload("w", binds, &[("c2", 0, 1)]);
    }),
    ("fit/ports", "the port of a static pod", |t| {
        static_pod(t, "b1");
        t.add_workload("w", binds, &[("b1", 0, 1)]);
    }),
    ("fit/ports", "one address and the wildcard address", |t| {
        t.add_workload(
            "v",
            |s| s.host_ports = vec![host_port(53, "UDP", "0.0.0.0")],
            &[("a2", 0, 1)],
        );
        t.add_workload(
            "w",
            |s| s.host_ports = vec![host_port(53, "UDP", "10.0.0.1")],
            &[("a2", 0, 1)],
        );
    }),
    ("fit/ports", "an empty protocol means TCP", |t| {
        t.add_workload("v", |s| s.host_ports = vec![host_port(53, "", "")], &[("a2", 0, 1)]);
        t.add_workload("w", |s| s.host_ports = vec![host_port(53, "TCP", "")], &[("a2", 0, 1)]);
    }),
    ("fit/anti-affinity", "two pods on a new node", |t| {
        t.add_workload("w", anti_affinity(HOST, "w"), &[("a2", 0, 2)]);
    }),
    ("fit/anti-affinity", "an arriving pod beside a running pod of its workload", |t| {
        t.add_workload("w", anti_affinity(HOST, "w"), &[("a1", 1, 1)]);
    }),
    ("fit/anti-affinity", "two pods in a zone", |t| {
        t.add_workload("w", anti_affinity(ZONE, "w"), &[("a1", 0, 1), ("a2", 0, 1)]);
    }),
    ("fit/anti-affinity", "a zone with a running pod", |t| {
        t.add_workload("w", anti_affinity(ZONE, "w"), &[("a1", 1, 0), ("a2", 0, 1)]);
    }),
    ("fit/anti-affinity", "an arriving pod with a term against a running pod", |t| {
        t.add_workload("v", no_rules, &[("a1", 1, 0)]);
        t.add_workload("w", anti_affinity(HOST, "v"), &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "an arriving pod against the term of a running pod", |t| {
        t.add_workload("v", anti_affinity(HOST, "w"), &[("a1", 1, 0)]);
        t.add_workload("w", no_rules, &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "two arriving pods", |t| {
        t.add_workload("v", anti_affinity(ZONE, "w"), &[("c1", 0, 1)]);
        t.add_workload("w", no_rules, &[("c2", 0, 1)]);
    }),
    ("fit/anti-affinity", "a pod with a term against a DaemonSet", |t| {
        t.add_daemon_set("agent", no_rules);
        t.add_workload("w", anti_affinity(HOST, "agent"), &[("b2", 0, 1)]);
    }),
    ("fit/anti-affinity", "a DaemonSet with a term against a pod", |t| {
        t.add_daemon_set("agent", anti_affinity(HOST, "w"));
        t.add_workload("w", no_rules, &[("b2", 0, 1)]);
    }),
    ("fit/anti-affinity", "a pod with a term against a static pod", |t| {
        static_pod(t, "b1");
        t.add_workload("w", anti_affinity(ZONE, "static"), &[("b2", 0, 1)]);
    }),
    ("fit/anti-affinity", "a namespace by name", |t| {
        t.add_workload("v", in_namespace_bank, &[("a1", 1, 0)]);
        let mut bank_term = affinity_term(HOST, "v");
        bank_term.namespaces = vec!["bank".to_owned()];
        t.add_workload("w", |s| s.anti_affinity.required = vec![bank_term], &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "a namespace by its labels", |t| {
        declare_namespace(t, "bank", "money");
        t.add_workload("v", in_namespace_bank, &[("a1", 1, 0)]);
        let bank_term = PodAffinityTerm {
            namespace_selector: Some(selector("team", "money")),
            ..affinity_term(HOST, "v")
        };
        t.add_workload("w", |s| s.anti_affinity.required = vec![bank_term], &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "every namespace", |t| {
        t.add_workload("v", in_namespace_bank, &[("a1", 1, 0)]);
        let bank_term =
            PodAffinityTerm { namespace_selector: Some(everything()), ..affinity_term(HOST, "v") };
        t.add_workload("w", |s| s.anti_affinity.required = vec![bank_term], &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "pods of the same version", |t| {
        let mut same = PodAffinityTerm { selector: Some(everything()), ..affinity_term(HOST, "") };
        same.match_label_keys = vec!["version".into()];
        t.add_workload("v", |s| s.labels.extend([label("version", "2")]), &[("a1", 1, 0)]);
        t.add_workload(
            "w",
            |s| {
                s.labels.extend([label("version", "2")]);
                s.anti_affinity.required = vec![same];
            },
            &[("a1", 0, 1)],
        );
    }),
    ("fit/anti-affinity", "pods of another tenant", |t| {
        let mut other = PodAffinityTerm { selector: Some(everything()), ..affinity_term(ZONE, "") };
        other.mismatch_label_keys = vec!["tenant".into()];
        t.add_workload("v", |s| s.labels.extend([label("tenant", "x")]), &[("a1", 1, 0)]);
        t.add_workload(
            "w",
            |s| {
                s.labels.extend([label("tenant", "y")]);
                s.anti_affinity.required = vec![other];
            },
            &[("a2", 0, 1)],
        );
    }),
    ("fit/anti-affinity", "a custom topology key", |t| {
        t.edit_node("a1", |state| state.labels.extend([label("rack", "7")]));
        t.edit_node("c2", |state| state.labels.extend([label("rack", "7")]));
        t.add_workload("w", anti_affinity("rack", "w"), &[("a1", 1, 0), ("c2", 0, 1)]);
    }),
    ("fit/anti-affinity", "the second of two terms", |t| {
        t.add_workload("v", no_rules, &[("a1", 1, 0)]);
        let terms = vec![affinity_term(HOST, "w"), affinity_term(ZONE, "v")];
        t.add_workload("w", |s| s.anti_affinity.required = terms, &[("a2", 0, 1)]);
    }),
    ("fit/affinity", "no target in the zone", |t| {
        t.add_workload("v", no_rules, &[("a1", 1, 0)]);
        t.add_workload("w", affinity(ZONE, "v"), &[("b1", 0, 1)]);
    }),
    ("fit/affinity", "no target anywhere", |t| {
        t.add_workload("w", affinity(ZONE, "v"), &[("b1", 0, 1)]);
    }),
    ("fit/affinity", "a target on another node of the zone", |t| {
        t.add_workload("v", no_rules, &[("a1", 1, 0)]);
        t.add_workload("w", affinity(HOST, "v"), &[("a2", 0, 1)]);
    }),
    ("fit/affinity", "a workload with first pods in two zones", |t| {
        t.add_workload("w", affinity(ZONE, "w"), &[("a1", 0, 1), ("b1", 0, 1)]);
    }),
    ("fit/affinity", "two pods in a zone, while the first pod runs in another zone", |t| {
        t.add_workload("w", affinity(ZONE, "w"), &[("a1", 1, 0), ("b2", 0, 2)]);
    }),
    ("fit/affinity", "two workloads with affinity to each other", |t| {
        t.add_workload("v", affinity(ZONE, "w"), &[("a1", 0, 1)]);
        t.add_workload("w", affinity(ZONE, "v"), &[("a2", 0, 1)]);
    }),
    ("fit/affinity", "two workloads of one app with first pods in two zones", |t| {
        let same_app = |s: &mut PodShape| {
            s.labels = [label("app", "kin")].into();
            s.affinity.required = vec![affinity_term(ZONE, "kin")];
        };
        t.add_workload("v", same_app, &[("a1", 0, 1)]);
        t.add_workload("w", same_app, &[("b1", 0, 1)]);
    }),
    ("fit/affinity", "two terms that match different pods", |t| {
        t.add_workload("u", no_rules, &[("a1", 1, 0)]);
        t.add_workload("v", no_rules, &[("a2", 0, 1)]);
        let terms = vec![affinity_term(ZONE, "u"), affinity_term(ZONE, "v")];
        t.add_workload("w", |s| s.affinity.required = terms, &[("a2", 0, 1)]);
    }),
    ("fit/affinity", "a target in another namespace", |t| {
        t.add_workload("v", in_namespace_bank, &[("a1", 1, 0)]);
        t.add_workload("w", affinity(HOST, "v"), &[("a1", 0, 1)]);
    }),
    ("fit/affinity", "a node without the key", |t| {
        t.add_workload("w", affinity("rack", "w"), &[("a1", 0, 1)]);
    }),
    ("fit/affinity", "a missing selector", |t| {
        let without_selector = PodAffinityTerm { selector: None, ..affinity_term(ZONE, "w") };
        t.add_workload("w", |s| s.affinity.required = vec![without_selector], &[("a1", 0, 1)]);
    }),
    ("fit/spread", "two pods in one zone, none in the others", |t| {
        t.add_workload("w", spread_evenly(ZONE, 1, "w"), &[("a1", 0, 1), ("a2", 0, 1)]);
    }),
    ("fit/spread", "one zone without pods", |t| {
        t.add_workload("w", spread_evenly(ZONE, 1, "w"), &[("a1", 0, 2), ("b1", 0, 2)]);
    }),
    ("fit/spread", "running pods count", |t| {
        t.add_workload(
            "w",
            spread_evenly(ZONE, 1, "w"),
            &[("a1", 1, 0), ("a2", 0, 1), ("b1", 1, 0)],
        );
    }),
    ("fit/spread", "one more pod in the fullest zone of a skewed workload", |t| {
        t.add_workload(
            "w",
            spread_evenly(ZONE, 1, "w"),
            &[("a1", 5, 1), ("b2", 0, 1), ("c2", 0, 1)],
        );
    }),
    ("fit/spread", "a skew of three with maxSkew 2", |t| {
        t.add_workload("w", spread_evenly(ZONE, 2, "w"), &[("a2", 0, 3), ("b1", 0, 1)]);
    }),
    ("fit/spread", "two pods on a new node", |t| {
        t.add_workload("w", spread_evenly(HOST, 1, "w"), &[("a2", 0, 2), ("b2", 0, 1)]);
    }),
    ("fit/spread", "too few domains", |t| {
        let rule = TopologySpread { min_domains: Some(4), ..topology_spread(ZONE, 1, "w") };
        t.add_workload("w", |s| s.spread = vec![rule], &[("a1", 0, 2), ("b1", 0, 2), ("c1", 0, 2)]);
    }),
    ("fit/spread", "a zone outside of the node affinity, with policy Ignore", |t| {
        t.edit_node("c1", |state| drop(state.labels.remove("team")));
        t.edit_node("c2", |state| drop(state.labels.remove("team")));
        let policy = NodeInclusion::Ignore;
        let rule = TopologySpread { node_affinity_policy: policy, ..topology_spread(ZONE, 1, "w") };
        t.add_workload(
            "w",
            |s| {
                only(s, "team", "web");
                s.spread = vec![rule];
            },
            &[("a1", 0, 2), ("b1", 0, 2)],
        );
    }),
    ("fit/spread", "a zone with a taint, with taint policy Ignore", |t| {
        taint(t, "c1");
        taint(t, "c2");
        t.add_workload("w", spread_evenly(ZONE, 1, "w"), &[("a1", 0, 2), ("b1", 0, 2)]);
    }),
    ("fit/spread", "pods of the same version", |t| {
        let mut rule =
            TopologySpread { selector: Some(everything()), ..topology_spread(ZONE, 1, "") };
        rule.match_label_keys = vec!["version".into()];
        t.add_workload("v", |s| s.labels.extend([label("version", "2")]), &[("a1", 1, 0)]);
        t.add_workload(
            "w",
            |s| {
                s.labels.extend([label("version", "2")]);
                s.spread = vec![rule];
            },
            &[("a2", 0, 1)],
        );
    }),
    ("fit/spread", "DaemonSet pods count", |t| {
        let mut rule = topology_spread(ZONE, 1, "");
        let named =
            Expression { key: "app".into(), operator: Operator::Exists, values: Vec::new() };
        rule.selector = Some(Selector(vec![named]));
        t.add_daemon_set("agent", |s| only(s, ZONE, "a"));
        t.add_workload("w", |s| s.spread = vec![rule], &[("a1", 0, 1)]);
    }),
    ("fit/spread", "two workloads that count each other", |t| {
        let same_app = |s: &mut PodShape| {
            s.labels = [label("app", "kin")].into();
            s.spread = vec![topology_spread(ZONE, 1, "kin")];
        };
        t.add_workload("v", same_app, &[("a1", 0, 1)]);
        t.add_workload("w", same_app, &[("a2", 0, 1)]);
    }),
    ("fit/spread", "pods outside of their own selector, in a zone with selected pods", |t| {
        t.add_workload("v", no_rules, &[("a1", 2, 0)]);
        t.add_workload("w", spread_evenly(ZONE, 1, "v"), &[("a2", 0, 1)]);
    }),
    ("fit/spread", "a node without the key", |t| {
        t.add_workload("w", spread_evenly("rack", 1, "w"), &[("a1", 0, 1)]);
    }),
    ("fit/spread", "the second of two constraints", |t| {
        let rules = vec![topology_spread(ZONE, 1, "w"), topology_spread(HOST, 1, "w")];
        t.add_workload("w", |s| s.spread = rules, &[("a1", 0, 2), ("b1", 0, 1), ("c1", 0, 1)]);
    }),
];

#[test]
fn unreachable_state_is_found_by_its_rule_alone() {
    for (rule, what, make) in DEFECTS {
        let mut fixture = PlanFixture::new();
        make(&mut fixture);
        let found = fixture.violations(&RULES);
        assert!(!found.is_empty(), "{what}: {rule} is not found");
        assert!(found.iter().all(|violation| violation.rule == *rule), "{what}: {found:#?}");
    }
}

#[test]
fn inter_pod_violation_names_pods_domain_and_rule() {
    for (number, expected) in [
        (
            5,
            "fit/ports: ec2_instance.web[\"a2\"]: pods of shop/Deployment/v and shop/Deployment/w \
             are planned here, and both bind host port 53/UDP",
        ),
        (
            12,
            "fit/anti-affinity: ec2_instance.web[\"a1\"]: shop/Deployment/w is placed in \
             kubernetes.io/hostname a1, where shop/Deployment/v runs; required anti-affinity of \
             shop/Deployment/v over kubernetes.io/hostname forbids that",
        ),
        (
            24,
            "fit/affinity: ec2_instance.web[\"b1\"]: shop/Deployment/w is placed in \
             topology.kubernetes.io/zone b, where no pod that its required affinity selects runs \
             or can start first",
        ),
        (
            36,
            "fit/spread: ec2_instance.web[\"a1\"]: shop/Deployment/w is placed in \
             topology.kubernetes.io/zone a, which then has 2 of the pods that its spread \
             constraint counts; with maxSkew 1 no domain may have more than 1",
        ),
    ] {
        let (_, _, make) = DEFECTS[number];
        let mut fixture = PlanFixture::new();
        make(&mut fixture);
        let found = fixture.violations(&RULES);
        assert_eq!(found.first().map(ToString::to_string).as_deref(), Some(expected));
    }
}
