//! States that no order of placement leads to, and states that look like them and are right.

use super::*;
use crate::fleet::{Pod, PodPhase};
use crate::pod::{Container, PodSpec, PodTemplate, Taint, TaintEffect};

/// The rules between pods.
const RULES: [&str; 4] = ["fit/ports", "fit/anti-affinity", "fit/affinity", "fit/spread"];

/// A rule, a state, and how it is made.
type Case = (&'static str, &'static str, fn(&mut Town));

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

fn declare(town: &mut Town, namespace: &str, team: &str) {
    town.inputs.desired.namespaces.insert(namespace.into(), [label("team", team)].into());
}

fn team(value: &str) -> Selector {
    let values = vec![value.into()];
    Selector(vec![Expression { key: "team".into(), operator: Operator::In, values }])
}

/// Makes `name` a node with a taint that no pod tolerates.
fn taint(town: &mut Town, name: &str) {
    let taint = Taint { key: "gpu".into(), value: "".into(), effect: TaintEffect::NoSchedule };
    town.node(name, |state| state.taints = vec![taint.clone()]);
}

/// Puts a static pod that binds host port 8080, with label `app: static`, on a node.
fn static_pod(town: &mut Town, node: &str) {
    let container = Container { host_ports: vec![port(8080, "TCP", "")], ..Container::default() };
    let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
    let template =
        PodTemplate { labels: [label("app", "static")].into(), spec, ..PodTemplate::default() };
    town.inputs.observed.templates.insert("static".to_owned(), template.into());
    town.inputs.observed.pods.push(Arc::new(Pod {
        namespace: "shop".into(),
        name: "static".into(),
        uid: "static".into(),
        owner: None,
        template: "static".to_owned(),
        node: Some(node.into()),
        phase: PodPhase::Running,
        created_at: town.inputs.observed.taken_at,
        terminating: false,
        mirror: true,
        started_at: None,
        granted: [].into(),
    }));
}

const DEFECTS: &[Case] = &[
    ("fit/ports", "two pods of a workload on one node", |t| t.put("w", binds, &[("a2", 0, 2)])),
    ("fit/ports", "a pod beside its like that runs", |t| t.put("w", binds, &[("a1", 1, 1)])),
    ("fit/ports", "two workloads with one port", |t| {
        t.put("v", binds, &[("a1", 1, 0)]);
        t.put("w", binds, &[("a1", 0, 1)]);
    }),
    ("fit/ports", "a port that a DaemonSet has", |t| {
        t.daemon("agent", binds);
        t.put("w", binds, &[("c2", 0, 1)]);
    }),
    ("fit/ports", "a port that a static pod has", |t| {
        static_pod(t, "b1");
        t.put("w", binds, &[("b1", 0, 1)]);
    }),
    ("fit/ports", "one address and every address", |t| {
        t.put("v", |s| s.host_ports = vec![port(53, "UDP", "0.0.0.0")], &[("a2", 0, 1)]);
        t.put("w", |s| s.host_ports = vec![port(53, "UDP", "10.0.0.1")], &[("a2", 0, 1)]);
    }),
    ("fit/ports", "a protocol that is left out is TCP", |t| {
        t.put("v", |s| s.host_ports = vec![port(53, "", "")], &[("a2", 0, 1)]);
        t.put("w", |s| s.host_ports = vec![port(53, "TCP", "")], &[("a2", 0, 1)]);
    }),
    ("fit/anti-affinity", "two pods on a node to come", |t| {
        t.put("w", apart(HOST, "w"), &[("a2", 0, 2)]);
    }),
    ("fit/anti-affinity", "a pod beside its like that runs", |t| {
        t.put("w", apart(HOST, "w"), &[("a1", 1, 1)]);
    }),
    ("fit/anti-affinity", "two pods in a zone", |t| {
        t.put("w", apart(ZONE, "w"), &[("a1", 0, 1), ("a2", 0, 1)]);
    }),
    ("fit/anti-affinity", "a zone in which one runs", |t| {
        t.put("w", apart(ZONE, "w"), &[("a1", 1, 0), ("a2", 0, 1)]);
    }),
    ("fit/anti-affinity", "a pod that comes to those that it avoids", |t| {
        t.put("v", nothing, &[("a1", 1, 0)]);
        t.put("w", apart(HOST, "v"), &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "a pod that comes to one that avoids it", |t| {
        t.put("v", apart(HOST, "w"), &[("a1", 1, 0)]);
        t.put("w", nothing, &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "two that come at once", |t| {
        t.put("v", apart(ZONE, "w"), &[("c1", 0, 1)]);
        t.put("w", nothing, &[("c2", 0, 1)]);
    }),
    ("fit/anti-affinity", "a pod that avoids a DaemonSet", |t| {
        t.daemon("agent", nothing);
        t.put("w", apart(HOST, "agent"), &[("b2", 0, 1)]);
    }),
    ("fit/anti-affinity", "a DaemonSet that avoids a pod", |t| {
        t.daemon("agent", apart(HOST, "w"));
        t.put("w", nothing, &[("b2", 0, 1)]);
    }),
    ("fit/anti-affinity", "a pod that avoids a static one", |t| {
        static_pod(t, "b1");
        t.put("w", apart(ZONE, "static"), &[("b2", 0, 1)]);
    }),
    ("fit/anti-affinity", "a namespace by name", |t| {
        t.put("v", elsewhere, &[("a1", 1, 0)]);
        let mut far = term(HOST, "v");
        far.namespaces = vec!["bank".to_owned()];
        t.put("w", |s| s.anti_affinity.required = vec![far], &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "a namespace by its labels", |t| {
        declare(t, "bank", "money");
        t.put("v", elsewhere, &[("a1", 1, 0)]);
        let far = PodAffinityTerm { namespace_selector: Some(team("money")), ..term(HOST, "v") };
        t.put("w", |s| s.anti_affinity.required = vec![far], &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "every namespace", |t| {
        t.put("v", elsewhere, &[("a1", 1, 0)]);
        let far = PodAffinityTerm { namespace_selector: Some(everything()), ..term(HOST, "v") };
        t.put("w", |s| s.anti_affinity.required = vec![far], &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "pods of the same version", |t| {
        let mut same = PodAffinityTerm { selector: Some(everything()), ..term(HOST, "") };
        same.match_label_keys = vec!["version".into()];
        t.put("v", |s| s.labels.extend([label("version", "2")]), &[("a1", 1, 0)]);
        t.put(
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
        t.put("v", |s| s.labels.extend([label("tenant", "x")]), &[("a1", 1, 0)]);
        t.put(
            "w",
            |s| {
                s.labels.extend([label("tenant", "y")]);
                s.anti_affinity.required = vec![other];
            },
            &[("a2", 0, 1)],
        );
    }),
    ("fit/anti-affinity", "a topology of one's own", |t| {
        t.node("a1", |state| state.labels.extend([label("rack", "7")]));
        t.node("c2", |state| state.labels.extend([label("rack", "7")]));
        t.put("w", apart("rack", "w"), &[("a1", 1, 0), ("c2", 0, 1)]);
    }),
    ("fit/anti-affinity", "the second of two terms", |t| {
        t.put("v", nothing, &[("a1", 1, 0)]);
        let terms = vec![term(HOST, "w"), term(ZONE, "v")];
        t.put("w", |s| s.anti_affinity.required = terms, &[("a2", 0, 1)]);
    }),
    ("fit/affinity", "nobody to join in the zone", |t| {
        t.put("v", nothing, &[("a1", 1, 0)]);
        t.put("w", near(ZONE, "v"), &[("b1", 0, 1)]);
    }),
    ("fit/affinity", "nobody to join anywhere", |t| t.put("w", near(ZONE, "v"), &[("b1", 0, 1)])),
    ("fit/affinity", "company on another node of the zone", |t| {
        t.put("v", nothing, &[("a1", 1, 0)]);
        t.put("w", near(HOST, "v"), &[("a2", 0, 1)]);
    }),
    ("fit/affinity", "a workload that begins in two zones", |t| {
        t.put("w", near(ZONE, "w"), &[("a1", 0, 1), ("b1", 0, 1)]);
    }),
    ("fit/affinity", "twins in a zone, while the first runs in another", |t| {
        t.put("w", near(ZONE, "w"), &[("a1", 1, 0), ("b2", 0, 2)]);
    }),
    ("fit/affinity", "two workloads that wait for each other", |t| {
        t.put("v", near(ZONE, "w"), &[("a1", 0, 1)]);
        t.put("w", near(ZONE, "v"), &[("a2", 0, 1)]);
    }),
    ("fit/affinity", "two workloads of one kind that begin apart", |t| {
        let kin = |s: &mut PodShape| {
            s.labels = [label("app", "kin")].into();
            s.affinity.required = vec![term(ZONE, "kin")];
        };
        t.put("v", kin, &[("a1", 0, 1)]);
        t.put("w", kin, &[("b1", 0, 1)]);
    }),
    ("fit/affinity", "one term met by one pod, the other by another", |t| {
        t.put("u", nothing, &[("a1", 1, 0)]);
        t.put("v", nothing, &[("a2", 0, 1)]);
        let terms = vec![term(ZONE, "u"), term(ZONE, "v")];
        t.put("w", |s| s.affinity.required = terms, &[("a2", 0, 1)]);
    }),
    ("fit/affinity", "company in another namespace", |t| {
        t.put("v", elsewhere, &[("a1", 1, 0)]);
        t.put("w", near(HOST, "v"), &[("a1", 0, 1)]);
    }),
    ("fit/affinity", "a node without the key", |t| t.put("w", near("rack", "w"), &[("a1", 0, 1)])),
    ("fit/affinity", "a selector that is left out", |t| {
        let nobody = PodAffinityTerm { selector: None, ..term(ZONE, "w") };
        t.put("w", |s| s.affinity.required = vec![nobody], &[("a1", 0, 1)]);
    }),
    ("fit/spread", "two in one zone, none in the others", |t| {
        t.put("w", even(ZONE, 1, "w"), &[("a1", 0, 1), ("a2", 0, 1)]);
    }),
    ("fit/spread", "one zone forgotten", |t| {
        t.put("w", even(ZONE, 1, "w"), &[("a1", 0, 2), ("b1", 0, 2)]);
    }),
    ("fit/spread", "pods that run are counted", |t| {
        t.put("w", even(ZONE, 1, "w"), &[("a1", 1, 0), ("a2", 0, 1), ("b1", 1, 0)]);
    }),
    ("fit/spread", "the fullest zone of a skewed workload", |t| {
        t.put("w", even(ZONE, 1, "w"), &[("a1", 5, 1), ("b2", 0, 1), ("c2", 0, 1)]);
    }),
    ("fit/spread", "more than the skew allows, though it allows two", |t| {
        t.put("w", even(ZONE, 2, "w"), &[("a2", 0, 3), ("b1", 0, 1)]);
    }),
    ("fit/spread", "two on a node to come", |t| {
        t.put("w", even(HOST, 1, "w"), &[("a2", 0, 2), ("b2", 0, 1)]);
    }),
    ("fit/spread", "too few domains", |t| {
        let rule = TopologySpread { min_domains: Some(4), ..spread(ZONE, 1, "w") };
        t.put("w", |s| s.spread = vec![rule], &[("a1", 0, 2), ("b1", 0, 2), ("c1", 0, 2)]);
    }),
    ("fit/spread", "a zone that the pods may not be in, where affinity is ignored", |t| {
        t.node("c1", |state| drop(state.labels.remove("team")));
        t.node("c2", |state| drop(state.labels.remove("team")));
        let policy = NodeInclusion::Ignore;
        let rule = TopologySpread { node_affinity_policy: policy, ..spread(ZONE, 1, "w") };
        t.put(
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
        t.put("w", even(ZONE, 1, "w"), &[("a1", 0, 2), ("b1", 0, 2)]);
    }),
    ("fit/spread", "pods of the same version", |t| {
        let mut rule = TopologySpread { selector: Some(everything()), ..spread(ZONE, 1, "") };
        rule.match_label_keys = vec!["version".into()];
        t.put("v", |s| s.labels.extend([label("version", "2")]), &[("a1", 1, 0)]);
        t.put(
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
        t.daemon("agent", |s| only(s, ZONE, "a"));
        t.put("w", |s| s.spread = vec![rule], &[("a1", 0, 1)]);
    }),
    ("fit/spread", "two workloads that count each other", |t| {
        let kin = |s: &mut PodShape| {
            s.labels = [label("app", "kin")].into();
            s.spread = vec![spread(ZONE, 1, "kin")];
        };
        t.put("v", kin, &[("a1", 0, 1)]);
        t.put("w", kin, &[("a2", 0, 1)]);
    }),
    ("fit/spread", "pods that do not count themselves, in a zone of those they count", |t| {
        t.put("v", nothing, &[("a1", 2, 0)]);
        t.put("w", even(ZONE, 1, "v"), &[("a2", 0, 1)]);
    }),
    ("fit/spread", "a node without the key", |t| {
        t.put("w", even("rack", 1, "w"), &[("a1", 0, 1)]);
    }),
    ("fit/spread", "the second of two constraints", |t| {
        let rules = vec![spread(ZONE, 1, "w"), spread(HOST, 1, "w")];
        t.put("w", |s| s.spread = rules, &[("a1", 0, 2), ("b1", 0, 1), ("c1", 0, 1)]);
    }),
];

const HARMLESS: &[Case] = &[
    ("fit/ports", "ports of two nodes", |t| t.put("w", binds, &[("a1", 1, 0), ("a2", 0, 1)])),
    ("fit/ports", "two protocols", |t| {
        t.put("v", |s| s.host_ports = vec![port(53, "UDP", "")], &[("a2", 0, 1)]);
        t.put("w", |s| s.host_ports = vec![port(53, "TCP", "")], &[("a2", 0, 1)]);
    }),
    ("fit/ports", "two addresses", |t| {
        t.put("v", |s| s.host_ports = vec![port(53, "UDP", "10.0.0.1")], &[("a2", 0, 1)]);
        t.put("w", |s| s.host_ports = vec![port(53, "UDP", "10.0.0.2")], &[("a2", 0, 1)]);
    }),
    ("fit/ports", "pods that run together already", |t| t.put("w", binds, &[("a1", 2, 0)])),
    ("fit/ports", "port 0 binds nothing", |t| {
        t.put("w", |s| s.host_ports = vec![port(0, "TCP", "")], &[("a2", 0, 2)]);
    }),
    ("fit/anti-affinity", "one on each node", |t| {
        t.put("w", apart(HOST, "w"), &[("a1", 1, 0), ("b1", 0, 1), ("a2", 0, 1), ("b2", 0, 1)]);
    }),
    ("fit/anti-affinity", "pods that run together already, while another comes elsewhere", |t| {
        t.put("w", apart(ZONE, "w"), &[("a1", 2, 0), ("b1", 0, 1)]);
    }),
    ("fit/anti-affinity", "nodes without the key", |t| {
        t.put("w", apart("rack", "w"), &[("a1", 0, 2), ("a2", 0, 1)]);
    }),
    ("fit/anti-affinity", "another namespace", |t| {
        t.put("v", elsewhere, &[("a1", 1, 0)]);
        t.put("w", apart(HOST, "v"), &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "a namespace with other labels", |t| {
        declare(t, "bank", "art");
        t.put("v", elsewhere, &[("a1", 1, 0)]);
        let far = PodAffinityTerm { namespace_selector: Some(team("money")), ..term(HOST, "v") };
        t.put("w", |s| s.anti_affinity.required = vec![far], &[("a1", 0, 1)]);
    }),
    ("fit/anti-affinity", "pods of another version", |t| {
        let mut same = PodAffinityTerm { selector: Some(everything()), ..term(HOST, "") };
        same.match_label_keys = vec!["version".into()];
        t.put("v", |s| s.labels.extend([label("version", "1")]), &[("a1", 1, 0)]);
        t.put(
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
        t.put("w", own, &[("a1", 0, 2)]);
    }),
    ("fit/anti-affinity", "a selector that is left out", |t| {
        let nobody = PodAffinityTerm { selector: None, ..term(HOST, "w") };
        t.put("w", |s| s.anti_affinity.required = vec![nobody], &[("a1", 0, 2)]);
    }),
    ("fit/anti-affinity", "a wish", |t| {
        t.put("w", |s| s.anti_affinity.preferred = vec![(100, term(HOST, "w"))], &[("a1", 0, 2)]);
    }),
    ("fit/affinity", "company that runs", |t| {
        t.put("v", nothing, &[("a1", 1, 0)]);
        t.put("w", near(ZONE, "v"), &[("a2", 0, 2)]);
    }),
    ("fit/affinity", "company that comes", |t| {
        t.put("v", nothing, &[("a2", 0, 1)]);
        t.put("w", near(HOST, "v"), &[("a2", 0, 2)]);
    }),
    ("fit/affinity", "company that has company", |t| {
        t.put("u", near(ZONE, "v"), &[("a1", 0, 1)]);
        t.put("v", near(ZONE, "w"), &[("a2", 0, 1)]);
        t.put("w", nothing, &[("a2", 0, 1)]);
    }),
    ("fit/affinity", "the first of its kind", |t| {
        t.put("w", near(ZONE, "w"), &[("a1", 0, 2), ("a2", 0, 1)]);
    }),
    ("fit/affinity", "the first of its kind, before company comes elsewhere", |t| {
        t.put("v", |s| s.labels = [label("app", "w")].into(), &[("b1", 0, 1)]);
        t.put("w", near(ZONE, "w"), &[("a1", 0, 1)]);
    }),
    ("fit/affinity", "two that wait for each other, of which one can begin", |t| {
        t.put("v", near(ZONE, "w"), &[("a1", 0, 1)]);
        t.put("w", near(ZONE, "w"), &[("a2", 0, 1)]);
    }),
    ("fit/affinity", "a zone that is reached by way of a region", |t| {
        for node in NODES {
            t.node(node, |state| state.labels.extend([label("region", "r")]));
        }
        let v = |s: &mut PodShape| {
            s.labels = [label("app", "w")].into();
            s.affinity.required = vec![term("region", "w")];
        };
        t.put("v", v, &[("b1", 0, 1)]);
        t.put("w", near(ZONE, "w"), &[("a1", 0, 1), ("b2", 0, 1)]);
    }),
    ("fit/affinity", "pods that lost their company stay", |t| {
        t.put("w", near(ZONE, "v"), &[("a1", 2, 0)]);
    }),
    ("fit/affinity", "one pod that meets all terms", |t| {
        t.put("u", |s| s.labels.extend([label("tier", "db")]), &[("a1", 1, 0)]);
        let mut tier = term(ZONE, "");
        let values = vec!["db".into()];
        let expression = Expression { key: "tier".into(), operator: Operator::In, values };
        tier.selector = Some(Selector(vec![expression]));
        let terms = vec![term(HOST, "u"), tier];
        t.put("w", |s| s.affinity.required = terms, &[("a1", 0, 1)]);
    }),
    ("fit/spread", "an empty selector, which counts no pod", |t| {
        let rule = TopologySpread { selector: Some(everything()), ..spread(ZONE, 1, "") };
        t.put("w", |s| s.spread = vec![rule], &[("a1", 0, 3)]);
    }),
    ("fit/spread", "even", |t| {
        t.put("w", even(ZONE, 1, "w"), &[("a1", 0, 2), ("b1", 0, 1), ("c1", 0, 1)]);
    }),
    ("fit/spread", "a skewed workload that grows where it has least", |t| {
        t.put("w", even(ZONE, 1, "w"), &[("a1", 5, 0), ("b2", 0, 1), ("c2", 0, 1)]);
    }),
    ("fit/spread", "a skewed workload that stays", |t| {
        t.put("w", even(ZONE, 1, "w"), &[("a1", 5, 0)]);
    }),
    ("fit/spread", "a wish", |t| {
        let soft = WhenUnsatisfiable::ScheduleAnyway;
        let rule = TopologySpread { when_unsatisfiable: soft, ..spread(ZONE, 1, "w") };
        t.put("w", |s| s.spread = vec![rule], &[("a1", 0, 5)]);
    }),
    ("fit/spread", "a selector that is left out counts nobody", |t| {
        let rule = TopologySpread { selector: None, ..spread(ZONE, 1, "w") };
        t.put("w", |s| s.spread = vec![rule], &[("a1", 0, 5)]);
    }),
    ("fit/spread", "a selector that demands nothing counts nobody either", |t| {
        let rule = TopologySpread { selector: Some(everything()), ..spread(ZONE, 1, "w") };
        t.put("w", |s| s.spread = vec![rule], &[("a1", 0, 5)]);
    }),
    ("fit/spread", "a zone that the pods may not be in", |t| {
        t.node("c1", |state| drop(state.labels.remove("team")));
        t.node("c2", |state| drop(state.labels.remove("team")));
        t.put(
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
        t.put("w", |s| s.spread = vec![rule], &[("a1", 0, 2), ("b1", 0, 2)]);
    }),
    ("fit/spread", "a zone that is cordoned, where taints are honored", |t| {
        t.inputs.observed.nodes.get_mut("c1").unwrap().unschedulable = true;
        taint(t, "c2");
        let policy = NodeInclusion::Honor;
        let rule = TopologySpread { node_taints_policy: policy, ..spread(ZONE, 1, "w") };
        t.put("w", |s| s.spread = vec![rule], &[("a1", 0, 2), ("b1", 0, 2)]);
    }),
    ("fit/spread", "a zone without a key of another constraint", |t| {
        for node in ["a1", "b1"] {
            t.node(node, |state| state.labels.extend([label("rack", "7")]));
        }
        let rules = vec![spread(ZONE, 1, "w"), spread("rack", 9, "w")];
        t.put("w", |s| s.spread = rules, &[("a1", 0, 2), ("b1", 0, 2)]);
    }),
    ("fit/spread", "others that come to the zone later", |t| {
        t.put("v", |s| s.labels = [label("app", "w")].into(), &[("a1", 0, 4)]);
        t.put("w", even(ZONE, 1, "w"), &[("a2", 0, 1)]);
    }),
    ("fit/spread", "as few domains as are asked for", |t| {
        let rule = TopologySpread { min_domains: Some(3), ..spread(ZONE, 1, "w") };
        t.put("w", |s| s.spread = vec![rule], &[("a1", 0, 2), ("b1", 0, 2), ("c1", 0, 2)]);
    }),
    ("fit/spread", "pods of another namespace do not count", |t| {
        t.put(
            "v",
            |s| (s.namespace, s.labels) = ("bank".into(), [label("app", "w")].into()),
            &[("a1", 5, 0)],
        );
        t.put("w", even(ZONE, 1, "w"), &[("a1", 0, 1)]);
    }),
];

#[test]
fn every_state_that_no_order_leads_to_is_found_by_its_rule_alone() {
    for (rule, what, make) in DEFECTS {
        let mut town = Town::new();
        make(&mut town);
        let found = town.violations(&RULES);
        assert!(!found.is_empty(), "{what}: {rule} is not found");
        assert!(found.iter().all(|violation| violation.rule == *rule), "{what}: {found:#?}");
    }
}

#[test]
fn a_state_that_some_order_leads_to_breaks_no_rule() {
    for (_, what, make) in HARMLESS {
        let mut town = Town::new();
        make(&mut town);
        assert_eq!(town.violations(&RULES), [], "{what}");
    }
}

#[test]
fn a_violation_between_pods_names_both_the_domain_and_the_rule() {
    for (number, expected) in [
        (
            5,
            "fit/ports: ec2_instance.web[\"a2\"]: pods of shop/Deployment/v and shop/Deployment/w \
             are planned here, and both bind host port 53/UDP",
        ),
        (
            12,
            "fit/anti-affinity: ec2_instance.web[\"a1\"]: shop/Deployment/w comes to \
             kubernetes.io/hostname a1, where shop/Deployment/v is; required anti-affinity of \
             shop/Deployment/v over kubernetes.io/hostname keeps them apart",
        ),
        (
            24,
            "fit/affinity: ec2_instance.web[\"b1\"]: shop/Deployment/w comes to \
             topology.kubernetes.io/zone b, where no pod that its required affinity asks for is or \
             can come before it",
        ),
        (
            36,
            "fit/spread: ec2_instance.web[\"a1\"]: shop/Deployment/w comes to \
             topology.kubernetes.io/zone a, which then has 2 of the pods that its spread \
             constraint counts; with maxSkew 1 no domain may have more than 1",
        ),
    ] {
        let (_, _, make) = DEFECTS[number];
        let mut town = Town::new();
        make(&mut town);
        let found = town.violations(&RULES);
        assert_eq!(found.first().map(ToString::to_string).as_deref(), Some(expected));
    }
}
