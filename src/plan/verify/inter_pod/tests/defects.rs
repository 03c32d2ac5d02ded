//! States that no scheduling order leads to, and similar states that are valid.

use super::*;
use crate::model::observed::{Pod, PodPhase};
use crate::model::pod::{Container, PodSpec, PodTemplate, Taint, TaintEffect};

/// The rules between pods.
const RULES: [&str; 4] = ["fit/ports", "fit/anti-affinity", "fit/affinity", "fit/spread"];

/// A rule, a description, and the setup.
type DefectCase = (&'static str, &'static str, fn(&mut PlanFixture));

fn binds(shape: &mut PodShape) {
    shape.host_ports = vec![port(8080, "TCP", "")];
}

fn apart(key: &str, name: &str) -> impl FnOnce(&mut PodShape) {
    let term = term(key, name);
    |shape| shape.anti_affinity.required.push(term)
}

fn near(key: &str, name: &str) -> impl FnOnce(&mut PodShape) {
    let term = term(key, name);
    |shape| shape.affinity.required.push(term)
}

fn even(key: &str, max_skew: i32, name: &str) -> impl FnOnce(&mut PodShape) {
    let rule = spread(key, max_skew, name);
    |shape| shape.spread.push(rule)
}

fn nothing(_: &mut PodShape) {}

fn elsewhere(shape: &mut PodShape) {
    shape.namespace = "bank".into();
}

fn declare(fixture: &mut PlanFixture, namespace: &str, team: &str) {
    fixture.inputs.desired.namespaces.insert(namespace.into(), [label("team", team)].into());
}

fn team(value: &str) -> Selector {
    let values = vec![value.into()];
    Selector(vec![Expression { key: "team".into(), operator: Operator::In, values }])
}

/// Gives node `name` a taint that no pod tolerates.
fn taint(fixture: &mut PlanFixture, name: &str) {
    let taint = Taint { key: "gpu".into(), value: "".into(), effect: TaintEffect::NoSchedule };
    fixture.edit_node(name, |state| state.taints = vec![taint.clone()]);
}

/// Adds a static pod with label `app: static` that binds host port 8080.
fn static_pod(fixture: &mut PlanFixture, node: &str) {
    let container = Container { host_ports: vec![port(8080, "TCP", "")], ..Container::default() };
    let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
    let template =
        PodTemplate { labels: [label("app", "static")].into(), spec, ..PodTemplate::default() };
    fixture.inputs.observed.templates.insert("static".to_owned(), template.into());
    fixture.inputs.observed.pods.push(Arc::new(Pod {
        namespace: "shop".into(),
        name: "static".into(),
        uid: "static".into(),
        owner: None,
        template: "static".to_owned(),
        node: Some(node.into()),
        phase: PodPhase::Running,
        created_at: fixture.inputs.observed.taken_at,
        terminating: false,
        mirror: true,
        started_at: None,
        granted: [].into(),
    }));
}

const DEFECTS: &[DefectCase] = &[
    ("fit/ports", "two pods of a workload on one node", |t| {
        t.add_workload("w", binds, &[("a2", 0, 2)]);
    }),
    ("fit/ports", "a pod beside its like that runs", |t| {
        t.add_workload("w", binds, &[("a1", 1, 1)]);
    }),
    ("fit/ports", "two workloads with one port", |t| {
        t.add_workload("v", binds, &[("a1", 1, 0)]);
        t.add_workload("w", binds, &[("a1", 0, 1)]);
    }),
    ("fit/ports", "a port that a DaemonSet has", |t| {
        t.add_daemon_set("agent", binds);
        t.add_workload("w", binds, &[("c2", 0, 1)]);
    }),
    ("fit/ports", "a port that a static pod has", |t| {
        static_pod(t, "b1");
        t.add_workload("w", binds, &[("b1", 0, 1)]);
    }),
    ("fit/ports", "one address and every address", |t| {
        t.add_workload("v", |s| s.host_ports = vec![port(53, "UDP", "0.0.0.0")], &[("a2", 0, 1)]);
        t.add_workload("w", |s| s.host_ports = vec![port(53, "UDP", "10.0.0.1")], &[("a2", 0, 1)]);
    }),
    ("fit/ports", "a protocol that is left out is TCP", |t| {
        t.add_workload("v", |s| s.host_ports = vec![port(53, "", "")], &[("a2", 0, 1)]);
        t.add_workload("w", |s| s.host_ports = vec![port(53, "TCP", "")], &[("a2", 0, 1)]);
    }),
    ("fit/anti-affinity", "two pods on a node to come", |t| {
        t.add_workload("w", apart(HOST, "w"), &[("a2", 0, 2)]);
    }),
    ("fit/anti-affinity", "a pod beside its like that runs", |t| {
        t.add_workload("w", apart(HOST, "w"), &[("a1", 1, 1)]);
    }),
    ("fit/anti-affinity", "two pods in a zone", |t| {
        t.add_workload("w", apart(ZONE, "w"), &[("a1", 0, 1), ("a2", 0, 1)]);
    }),
    ("fit/anti-affinity", "a zone in which one runs", |t| {
        t.add_workload("w", apart(ZONE, "w"), &[("a1", 1, 0), ("a2", 0, 1)]);
    }),
    ("fit/anti-affinity", "a pod that comes to those that it avoids", |t| {
        t.add_workload("v", nothing, &[("a1", 1, 0)]);
        t.add_workload("w", apart(HOST, "v"), &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "a pod that comes to one that avoids it", |t| {
        t.add_workload("v", apart(HOST, "w"), &[("a1", 1, 0)]);
        t.add_workload("w", nothing, &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "two that come at once", |t| {
        t.add_workload("v", apart(ZONE, "w"), &[("c1", 0, 1)]);
        t.add_workload("w", nothing, &[("c2", 0, 1)]);
    }),
    ("fit/anti-affinity", "a pod that avoids a DaemonSet", |t| {
        t.add_daemon_set("agent", nothing);
        t.add_workload("w", apart(HOST, "agent"), &[("b2", 0, 1)]);
    }),
    ("fit/anti-affinity", "a DaemonSet that avoids a pod", |t| {
        t.add_daemon_set("agent", apart(HOST, "w"));
        t.add_workload("w", nothing, &[("b2", 0, 1)]);
    }),
    ("fit/anti-affinity", "a pod that avoids a static one", |t| {
        static_pod(t, "b1");
        t.add_workload("w", apart(ZONE, "static"), &[("b2", 0, 1)]);
    }),
    ("fit/anti-affinity", "a namespace by name", |t| {
        t.add_workload("v", elsewhere, &[("a1", 1, 0)]);
        let mut far = term(HOST, "v");
        far.namespaces = vec!["bank".to_owned()];
        t.add_workload("w", |s| s.anti_affinity.required = vec![far], &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "a namespace by its labels", |t| {
        declare(t, "bank", "money");
        t.add_workload("v", elsewhere, &[("a1", 1, 0)]);
        let far = PodAffinityTerm { namespace_selector: Some(team("money")), ..term(HOST, "v") };
        t.add_workload("w", |s| s.anti_affinity.required = vec![far], &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "every namespace", |t| {
        t.add_workload("v", elsewhere, &[("a1", 1, 0)]);
        let far = PodAffinityTerm { namespace_selector: Some(everything()), ..term(HOST, "v") };
        t.add_workload("w", |s| s.anti_affinity.required = vec![far], &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "pods of the same version", |t| {
        let mut same = PodAffinityTerm { selector: Some(everything()), ..term(HOST, "") };
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
        let mut other = PodAffinityTerm { selector: Some(everything()), ..term(ZONE, "") };
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
    ("fit/anti-affinity", "a topology of one's own", |t| {
        t.edit_node("a1", |state| state.labels.extend([label("rack", "7")]));
        t.edit_node("c2", |state| state.labels.extend([label("rack", "7")]));
        t.add_workload("w", apart("rack", "w"), &[("a1", 1, 0), ("c2", 0, 1)]);
    }),
    ("fit/anti-affinity", "the second of two terms", |t| {
        t.add_workload("v", nothing, &[("a1", 1, 0)]);
        let terms = vec![term(HOST, "w"), term(ZONE, "v")];
        t.add_workload("w", |s| s.anti_affinity.required = terms, &[("a2", 0, 1)]);
    }),
    ("fit/affinity", "no target in the zone", |t| {
        t.add_workload("v", nothing, &[("a1", 1, 0)]);
        t.add_workload("w", near(ZONE, "v"), &[("b1", 0, 1)]);
    }),
    ("fit/affinity", "no target anywhere", |t| {
        t.add_workload("w", near(ZONE, "v"), &[("b1", 0, 1)]);
    }),
    ("fit/affinity", "a target on another node of the zone", |t| {
        t.add_workload("v", nothing, &[("a1", 1, 0)]);
        t.add_workload("w", near(HOST, "v"), &[("a2", 0, 1)]);
    }),
    ("fit/affinity", "a workload that begins in two zones", |t| {
        t.add_workload("w", near(ZONE, "w"), &[("a1", 0, 1), ("b1", 0, 1)]);
    }),
    ("fit/affinity", "twins in a zone, while the first runs in another", |t| {
        t.add_workload("w", near(ZONE, "w"), &[("a1", 1, 0), ("b2", 0, 2)]);
    }),
    ("fit/affinity", "two workloads that wait for each other", |t| {
        t.add_workload("v", near(ZONE, "w"), &[("a1", 0, 1)]);
        t.add_workload("w", near(ZONE, "v"), &[("a2", 0, 1)]);
    }),
    ("fit/affinity", "two workloads of one kind that begin apart", |t| {
        let kin = |s: &mut PodShape| {
            s.labels = [label("app", "kin")].into();
            s.affinity.required = vec![term(ZONE, "kin")];
        };
        t.add_workload("v", kin, &[("a1", 0, 1)]);
        t.add_workload("w", kin, &[("b1", 0, 1)]);
    }),
    ("fit/affinity", "one term met by one pod, the other by another", |t| {
        t.add_workload("u", nothing, &[("a1", 1, 0)]);
        t.add_workload("v", nothing, &[("a2", 0, 1)]);
        let terms = vec![term(ZONE, "u"), term(ZONE, "v")];
        t.add_workload("w", |s| s.affinity.required = terms, &[("a2", 0, 1)]);
    }),
    ("fit/affinity", "a target in another namespace", |t| {
        t.add_workload("v", elsewhere, &[("a1", 1, 0)]);
        t.add_workload("w", near(HOST, "v"), &[("a1", 0, 1)]);
    }),
    ("fit/affinity", "a node without the key", |t| {
        t.add_workload("w", near("rack", "w"), &[("a1", 0, 1)]);
    }),
    ("fit/affinity", "a selector that is left out", |t| {
        let without_selector = PodAffinityTerm { selector: None, ..term(ZONE, "w") };
        t.add_workload("w", |s| s.affinity.required = vec![without_selector], &[("a1", 0, 1)]);
    }),
    ("fit/spread", "two in one zone, none in the others", |t| {
        t.add_workload("w", even(ZONE, 1, "w"), &[("a1", 0, 1), ("a2", 0, 1)]);
    }),
    ("fit/spread", "one zone forgotten", |t| {
        t.add_workload("w", even(ZONE, 1, "w"), &[("a1", 0, 2), ("b1", 0, 2)]);
    }),
    ("fit/spread", "pods that run are counted", |t| {
        t.add_workload("w", even(ZONE, 1, "w"), &[("a1", 1, 0), ("a2", 0, 1), ("b1", 1, 0)]);
    }),
    ("fit/spread", "the fullest zone of a skewed workload", |t| {
        t.add_workload("w", even(ZONE, 1, "w"), &[("a1", 5, 1), ("b2", 0, 1), ("c2", 0, 1)]);
    }),
    ("fit/spread", "more than the skew allows, though it allows two", |t| {
        t.add_workload("w", even(ZONE, 2, "w"), &[("a2", 0, 3), ("b1", 0, 1)]);
    }),
    ("fit/spread", "two on a node to come", |t| {
        t.add_workload("w", even(HOST, 1, "w"), &[("a2", 0, 2), ("b2", 0, 1)]);
    }),
    ("fit/spread", "too few domains", |t| {
        let rule = TopologySpread { min_domains: Some(4), ..spread(ZONE, 1, "w") };
        t.add_workload("w", |s| s.spread = vec![rule], &[("a1", 0, 2), ("b1", 0, 2), ("c1", 0, 2)]);
    }),
    ("fit/spread", "a zone that the pods may not be in, where affinity is ignored", |t| {
        t.edit_node("c1", |state| drop(state.labels.remove("team")));
        t.edit_node("c2", |state| drop(state.labels.remove("team")));
        let policy = NodeInclusion::Ignore;
        let rule = TopologySpread { node_affinity_policy: policy, ..spread(ZONE, 1, "w") };
        t.add_workload(
            "w",
            |s| {
                only(s, "team", "web");
                s.spread = vec![rule];
            },
            &[("a1", 0, 2), ("b1", 0, 2)],
        );
    }),
    ("fit/spread", "a zone with a taint, where taints are ignored", |t| {
        taint(t, "c1");
        taint(t, "c2");
        t.add_workload("w", even(ZONE, 1, "w"), &[("a1", 0, 2), ("b1", 0, 2)]);
    }),
    ("fit/spread", "pods of the same version", |t| {
        let mut rule = TopologySpread { selector: Some(everything()), ..spread(ZONE, 1, "") };
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
    ("fit/spread", "pods of a DaemonSet are counted", |t| {
        let mut rule = spread(ZONE, 1, "");
        let named =
            Expression { key: "app".into(), operator: Operator::Exists, values: Vec::new() };
        rule.selector = Some(Selector(vec![named]));
        t.add_daemon_set("agent", |s| only(s, ZONE, "a"));
        t.add_workload("w", |s| s.spread = vec![rule], &[("a1", 0, 1)]);
    }),
    ("fit/spread", "two workloads that count each other", |t| {
        let kin = |s: &mut PodShape| {
            s.labels = [label("app", "kin")].into();
            s.spread = vec![spread(ZONE, 1, "kin")];
        };
        t.add_workload("v", kin, &[("a1", 0, 1)]);
        t.add_workload("w", kin, &[("a2", 0, 1)]);
    }),
    ("fit/spread", "pods that do not count themselves, in a zone of those they count", |t| {
        t.add_workload("v", nothing, &[("a1", 2, 0)]);
        t.add_workload("w", even(ZONE, 1, "v"), &[("a2", 0, 1)]);
    }),
    ("fit/spread", "a node without the key", |t| {
        t.add_workload("w", even("rack", 1, "w"), &[("a1", 0, 1)]);
    }),
    ("fit/spread", "the second of two constraints", |t| {
        let rules = vec![spread(ZONE, 1, "w"), spread(HOST, 1, "w")];
        t.add_workload("w", |s| s.spread = rules, &[("a1", 0, 2), ("b1", 0, 1), ("c1", 0, 1)]);
    }),
];

const HARMLESS: &[DefectCase] = &[
    ("fit/ports", "ports of two nodes", |t| {
        t.add_workload("w", binds, &[("a1", 1, 0), ("a2", 0, 1)]);
    }),
    ("fit/ports", "two protocols", |t| {
        t.add_workload("v", |s| s.host_ports = vec![port(53, "UDP", "")], &[("a2", 0, 1)]);
        t.add_workload("w", |s| s.host_ports = vec![port(53, "TCP", "")], &[("a2", 0, 1)]);
    }),
    ("fit/ports", "two addresses", |t| {
        t.add_workload("v", |s| s.host_ports = vec![port(53, "UDP", "10.0.0.1")], &[("a2", 0, 1)]);
        t.add_workload("w", |s| s.host_ports = vec![port(53, "UDP", "10.0.0.2")], &[("a2", 0, 1)]);
    }),
    ("fit/ports", "pods that run together already", |t| {
        t.add_workload("w", binds, &[("a1", 2, 0)]);
    }),
    ("fit/ports", "port 0 binds nothing", |t| {
        t.add_workload("w", |s| s.host_ports = vec![port(0, "TCP", "")], &[("a2", 0, 2)]);
    }),
    ("fit/anti-affinity", "one on each node", |t| {
        t.add_workload(
            "w",
            apart(HOST, "w"),
            &[("a1", 1, 0), ("b1", 0, 1), ("a2", 0, 1), ("b2", 0, 1)],
        );
    }),
    ("fit/anti-affinity", "pods that run together already, while another comes elsewhere", |t| {
        t.add_workload("w", apart(ZONE, "w"), &[("a1", 2, 0), ("b1", 0, 1)]);
    }),
    ("fit/anti-affinity", "nodes without the key", |t| {
        t.add_workload("w", apart("rack", "w"), &[("a1", 0, 2), ("a2", 0, 1)]);
    }),
    ("fit/anti-affinity", "another namespace", |t| {
        t.add_workload("v", elsewhere, &[("a1", 1, 0)]);
        t.add_workload("w", apart(HOST, "v"), &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "a namespace with other labels", |t| {
        declare(t, "bank", "art");
        t.add_workload("v", elsewhere, &[("a1", 1, 0)]);
        let far = PodAffinityTerm { namespace_selector: Some(team("money")), ..term(HOST, "v") };
        t.add_workload("w", |s| s.anti_affinity.required = vec![far], &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "pods of another version", |t| {
        let mut same = PodAffinityTerm { selector: Some(everything()), ..term(HOST, "") };
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
    ("fit/anti-affinity", "pods of one's own tenant", |t| {
        let mut other = PodAffinityTerm { selector: Some(everything()), ..term(HOST, "") };
        other.mismatch_label_keys = vec!["tenant".into()];
        let own = |s: &mut PodShape| {
            s.labels.extend([label("tenant", "x")]);
            s.anti_affinity.required = vec![other];
        };
        t.add_workload("w", own, &[("a1", 0, 2)]);
    }),
    ("fit/anti-affinity", "a selector that is left out", |t| {
        let without_selector = PodAffinityTerm { selector: None, ..term(HOST, "w") };
        t.add_workload("w", |s| s.anti_affinity.required = vec![without_selector], &[("a1", 0, 2)]);
    }),
    ("fit/anti-affinity", "a preference", |t| {
        t.add_workload(
            "w",
            |s| s.anti_affinity.preferred = vec![(100, term(HOST, "w"))],
            &[("a1", 0, 2)],
        );
    }),
    ("fit/affinity", "a running target", |t| {
        t.add_workload("v", nothing, &[("a1", 1, 0)]);
        t.add_workload("w", near(ZONE, "v"), &[("a2", 0, 2)]);
    }),
    ("fit/affinity", "an arriving target", |t| {
        t.add_workload("v", nothing, &[("a2", 0, 1)]);
        t.add_workload("w", near(HOST, "v"), &[("a2", 0, 2)]);
    }),
    ("fit/affinity", "a target that has a target", |t| {
        t.add_workload("u", near(ZONE, "v"), &[("a1", 0, 1)]);
        t.add_workload("v", near(ZONE, "w"), &[("a2", 0, 1)]);
        t.add_workload("w", nothing, &[("a2", 0, 1)]);
    }),
    ("fit/affinity", "the first of its kind", |t| {
        t.add_workload("w", near(ZONE, "w"), &[("a1", 0, 2), ("a2", 0, 1)]);
    }),
    ("fit/affinity", "the first of its kind, before a target arrives elsewhere", |t| {
        t.add_workload("v", |s| s.labels = [label("app", "w")].into(), &[("b1", 0, 1)]);
        t.add_workload("w", near(ZONE, "w"), &[("a1", 0, 1)]);
    }),
    ("fit/affinity", "two that wait for each other, of which one can begin", |t| {
        t.add_workload("v", near(ZONE, "w"), &[("a1", 0, 1)]);
        t.add_workload("w", near(ZONE, "w"), &[("a2", 0, 1)]);
    }),
    ("fit/affinity", "a zone that is reached by way of a region", |t| {
        for node in NODES {
            t.edit_node(node, |state| state.labels.extend([label("region", "r")]));
        }
        let v = |s: &mut PodShape| {
            s.labels = [label("app", "w")].into();
            s.affinity.required = vec![term("region", "w")];
        };
        t.add_workload("v", v, &[("b1", 0, 1)]);
        t.add_workload("w", near(ZONE, "w"), &[("a1", 0, 1), ("b2", 0, 1)]);
    }),
    ("fit/affinity", "pods that lost their target stay", |t| {
        t.add_workload("w", near(ZONE, "v"), &[("a1", 2, 0)]);
    }),
    ("fit/affinity", "one pod that meets all terms", |t| {
        t.add_workload("u", |s| s.labels.extend([label("tier", "db")]), &[("a1", 1, 0)]);
        let mut tier = term(ZONE, "");
        let values = vec!["db".into()];
        let expression = Expression { key: "tier".into(), operator: Operator::In, values };
        tier.selector = Some(Selector(vec![expression]));
        let terms = vec![term(HOST, "u"), tier];
        t.add_workload("w", |s| s.affinity.required = terms, &[("a1", 0, 1)]);
    }),
    ("fit/spread", "an empty selector, which counts no pod", |t| {
        let rule = TopologySpread { selector: Some(everything()), ..spread(ZONE, 1, "") };
        t.add_workload("w", |s| s.spread = vec![rule], &[("a1", 0, 3)]);
    }),
    ("fit/spread", "even", |t| {
        t.add_workload("w", even(ZONE, 1, "w"), &[("a1", 0, 2), ("b1", 0, 1), ("c1", 0, 1)]);
    }),
    ("fit/spread", "a skewed workload that grows where it has least", |t| {
        t.add_workload("w", even(ZONE, 1, "w"), &[("a1", 5, 0), ("b2", 0, 1), ("c2", 0, 1)]);
    }),
    ("fit/spread", "a skewed workload that stays", |t| {
        t.add_workload("w", even(ZONE, 1, "w"), &[("a1", 5, 0)]);
    }),
    ("fit/spread", "a preference", |t| {
        let soft = WhenUnsatisfiable::ScheduleAnyway;
        let rule = TopologySpread { when_unsatisfiable: soft, ..spread(ZONE, 1, "w") };
        t.add_workload("w", |s| s.spread = vec![rule], &[("a1", 0, 5)]);
    }),
    ("fit/spread", "a selector that is left out counts no pods", |t| {
        let rule = TopologySpread { selector: None, ..spread(ZONE, 1, "w") };
        t.add_workload("w", |s| s.spread = vec![rule], &[("a1", 0, 5)]);
    }),
    ("fit/spread", "a selector that demands nothing counts no pods either", |t| {
        let rule = TopologySpread { selector: Some(everything()), ..spread(ZONE, 1, "w") };
        t.add_workload("w", |s| s.spread = vec![rule], &[("a1", 0, 5)]);
    }),
    ("fit/spread", "a zone that the pods may not be in", |t| {
        t.edit_node("c1", |state| drop(state.labels.remove("team")));
        t.edit_node("c2", |state| drop(state.labels.remove("team")));
        t.add_workload(
            "w",
            |s| {
                only(s, "team", "web");
                s.spread = vec![spread(ZONE, 1, "w")];
            },
            &[("a1", 0, 2), ("b1", 0, 2)],
        );
    }),
    ("fit/spread", "a zone with a taint, where taints are honored", |t| {
        taint(t, "c1");
        taint(t, "c2");
        let policy = NodeInclusion::Honor;
        let rule = TopologySpread { node_taints_policy: policy, ..spread(ZONE, 1, "w") };
        t.add_workload("w", |s| s.spread = vec![rule], &[("a1", 0, 2), ("b1", 0, 2)]);
    }),
    ("fit/spread", "a zone that is cordoned, where taints are honored", |t| {
        t.inputs.observed.nodes.get_mut("c1").unwrap().unschedulable = true;
        taint(t, "c2");
        let policy = NodeInclusion::Honor;
        let rule = TopologySpread { node_taints_policy: policy, ..spread(ZONE, 1, "w") };
        t.add_workload("w", |s| s.spread = vec![rule], &[("a1", 0, 2), ("b1", 0, 2)]);
    }),
    ("fit/spread", "a zone without a key of another constraint", |t| {
        for node in ["a1", "b1"] {
            t.edit_node(node, |state| state.labels.extend([label("rack", "7")]));
        }
        let rules = vec![spread(ZONE, 1, "w"), spread("rack", 9, "w")];
        t.add_workload("w", |s| s.spread = rules, &[("a1", 0, 2), ("b1", 0, 2)]);
    }),
    ("fit/spread", "others that come to the zone later", |t| {
        t.add_workload("v", |s| s.labels = [label("app", "w")].into(), &[("a1", 0, 4)]);
        t.add_workload("w", even(ZONE, 1, "w"), &[("a2", 0, 1)]);
    }),
    ("fit/spread", "as few domains as are asked for", |t| {
        let rule = TopologySpread { min_domains: Some(3), ..spread(ZONE, 1, "w") };
        t.add_workload("w", |s| s.spread = vec![rule], &[("a1", 0, 2), ("b1", 0, 2), ("c1", 0, 2)]);
    }),
    ("fit/spread", "pods of another namespace do not count", |t| {
        t.add_workload(
            "v",
            |s| (s.namespace, s.labels) = ("bank".into(), [label("app", "w")].into()),
            &[("a1", 5, 0)],
        );
        t.add_workload("w", even(ZONE, 1, "w"), &[("a1", 0, 1)]);
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
fn reachable_state_breaks_no_rule() {
    for (_, what, make) in HARMLESS {
        let mut fixture = PlanFixture::new();
        make(&mut fixture);
        assert_eq!(fixture.violations(&RULES), [], "{what}");
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
