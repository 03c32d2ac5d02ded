//! Truth tables of the filters, from the Kubernetes documentation.

use super::*;
use crate::scheduler::UnfitReason as No;

#[test]
fn a_cordon_forbids_unless_its_taint_is_tolerated() {
    let mut cordoned = node("n", "");
    cordoned.unschedulable = true;
    let mut cluster = Cluster::new(vec![cordoned]);
    for (toleration, expected) in [
        (None, Err(vec![No::Unschedulable])),
        (Some(tolerates("node.kubernetes.io/unschedulable", None)), Ok(())),
        (Some(tolerates("", Some(TaintEffect::NoSchedule))), Ok(())),
        (Some(tolerates("", Some(TaintEffect::NoExecute))), Err(vec![No::Unschedulable])),
        (Some(tolerates("other", None)), Err(vec![No::Unschedulable])),
    ] {
        let asks = PodShape { tolerations: toleration.into_iter().collect(), ..pod("a") };
        assert_eq!(cluster.fits(&asks, "n"), expected, "{:?}", asks.tolerations);
    }
}

#[test]
fn lifting_a_cordon_opens_the_node() {
    let mut cluster = Cluster::new(vec![node("n", "")]);
    let index = cluster.index("n");
    assert_eq!(cluster.fits(&pod("a"), "n"), Ok(()));
    cluster.0.set_unschedulable(index, true);
    assert_eq!(cluster.fits(&pod("a"), "n"), Err(vec![No::Unschedulable]));
    cluster.0.set_unschedulable(index, false);
    assert_eq!(cluster.fits(&pod("a"), "n"), Ok(()));
}

#[test]
fn every_no_schedule_and_no_execute_taint_must_be_tolerated() {
    use TaintEffect::{NoExecute, NoSchedule, PreferNoSchedule};
    for (effect, toleration, fits) in [
        (NoSchedule, None, false),
        (NoExecute, None, false),
        (PreferNoSchedule, None, true),
        (NoSchedule, Some(tolerates("t", Some(NoSchedule))), true),
        (NoSchedule, Some(tolerates("t", Some(NoExecute))), false),
        (NoExecute, Some(tolerates("t", None)), true),
        (NoExecute, Some(tolerates("", None)), true),
    ] {
        let mut tainted = node("n", "");
        tainted.taints = vec![taint("t", effect)];
        let asks = PodShape { tolerations: toleration.into_iter().collect(), ..pod("a") };
        let expected = if fits { Ok(()) } else { Err(vec![No::Taint]) };
        assert_eq!(Cluster::new(vec![tainted]).fits(&asks, "n"), expected, "{effect:?} {asks:?}");
    }
    let mut twice = node("n", "");
    twice.taints = vec![taint("t", NoSchedule), taint("u", NoExecute)];
    let one = PodShape { tolerations: vec![tolerates("t", None)], ..pod("a") };
    assert_eq!(Cluster::new(vec![twice]).fits(&one, "n"), Err(vec![No::Taint]));
}

#[test]
fn one_term_of_node_affinity_must_match() {
    for (any_of, fits) in [
        (vec![Requirements::default()], true),
        (vec![], false),
        (vec![requires(key::ZONE, "z1")], true),
        (vec![requires(key::ZONE, "z2")], false),
        (vec![requires(key::ZONE, "z2"), requires(key::HOSTNAME, "n")], true),
    ] {
        let asks = PodShape { nodes: NodeChoice { any_of, ..NodeChoice::default() }, ..pod("a") };
        let expected = if fits { Ok(()) } else { Err(vec![No::NodeAffinity]) };
        assert_eq!(Cluster::new(vec![node("n", "z1")]).fits(&asks, "n"), expected, "{asks:?}");
    }
}

#[test]
fn pod_with_node_name_fits_only_that_node() {
    let mut cluster = Cluster::new(vec![node("n1", ""), node("n2", "")]);
    let names = |name: &str| {
        let choice = NodeChoice { name: Some(name.into()), ..pod("a").nodes };
        PodShape { nodes: choice, ..pod("a") }
    };
    assert_eq!(cluster.schedule(&names("n2")), Some("n2".into()));
    assert_eq!(cluster.fits(&names("n2"), "n1"), Err(vec![No::NodeName]));
    assert_eq!(cluster.schedule(&names("gone")), None);
}

#[test]
fn ports_conflict_by_number_protocol_and_address() {
    for (held, asked, fits) in [
        (host_port(80, "TCP", ""), host_port(80, "TCP", ""), false),
        (host_port(80, "TCP", ""), host_port(81, "TCP", ""), true),
        (host_port(80, "TCP", ""), host_port(80, "UDP", ""), true),
        (host_port(80, "", ""), host_port(80, "TCP", "0.0.0.0"), false),
        (host_port(80, "TCP", "10.0.0.1"), host_port(80, "TCP", "10.0.0.2"), true),
        (host_port(80, "TCP", "10.0.0.1"), host_port(80, "TCP", "10.0.0.1"), false),
        (host_port(80, "TCP", "10.0.0.1"), host_port(80, "TCP", "0.0.0.0"), false),
        (host_port(80, "TCP", ""), host_port(80, "TCP", "10.0.0.1"), false),
        (host_port(0, "TCP", ""), host_port(0, "TCP", ""), true),
    ] {
        let mut cluster = Cluster::new(vec![node("n", "")]);
        let holder = PodShape { host_ports: vec![held.clone()], ..pod("a") };
        cluster.run(&holder, "n");
        let asks = PodShape { host_ports: vec![asked.clone()], ..pod("b") };
        let expected = if fits { Ok(()) } else { Err(vec![No::HostPorts]) };
        assert_eq!(cluster.fits(&asks, "n"), expected, "{held:?} {asked:?}");
        let (class, index) = (cluster.class(&holder), cluster.index("n"));
        assert!(cluster.0.unbind(class, index), "the holder ran there");
        assert_eq!(cluster.fits(&asks, "n"), Ok(()), "a port is free again with its pod");
    }
}

#[test]
fn every_resource_asked_for_must_be_free() {
    let mut small = node("n", "");
    small.allocatable = Resources {
        ephemeral_storage: Bytes::gib(1),
        pods: 2,
        extended: [("nvidia.com/gpu".into(), 1)].into(),
        ..resources(1000, 1000)
    };
    let short = |name: &str| No::Insufficient(name.into());
    let ask = |cpu, mib, storage, gpus| Resources {
        ephemeral_storage: Bytes::mib(storage),
        extended: [("nvidia.com/gpu".into(), gpus)].into_iter().filter(|(_, n)| *n > 0).collect(),
        ..resources(cpu, mib)
    };
    for (requests, reasons) in [
        (ask(900, 900, 1024, 1), vec![]),
        (ask(901, 900, 0, 0), vec![short("cpu")]),
        (ask(900, 901, 0, 0), vec![short("memory")]),
        (
            ask(901, 901, 1025, 2),
            ["cpu", "memory", "ephemeral-storage", "nvidia.com/gpu"].map(short).into(),
        ),
        (ask(0, 0, 0, 2), vec![short("nvidia.com/gpu")]),
        (ask(0, 0, 0, 0), vec![]),
    ] {
        let mut cluster = Cluster::new(vec![small.clone()]);
        cluster.run(&pod("a"), "n");
        let asks = PodShape { requests, ..pod("b") };
        let found = cluster.fits(&asks, "n").err().unwrap_or_default();
        assert_eq!(found, reasons, "{:?}", asks.requests);
    }
}

#[test]
fn unknown_resource_is_short_and_the_pod_limit_applies() {
    let mut tiny = node("n", "");
    tiny.allocatable.pods = 1;
    let mut cluster = Cluster::new(vec![tiny]);
    let fpga = Resources { extended: [("fpga".into(), 1)].into(), ..resources(0, 0) };
    let asks = PodShape { requests: fpga, ..pod("b") };
    assert_eq!(cluster.fits(&asks, "n"), Err(vec![No::Insufficient("fpga".into())]));
    cluster.run(&pod("a"), "n");
    let nothing = PodShape { requests: resources(0, 0), ..pod("b") };
    assert_eq!(cluster.fits(&nothing, "n"), Err(vec![No::TooManyPods]));
}

#[test]
fn request_of_zero_fits_an_overcommitted_resource() {
    let mut cluster = Cluster::new(vec![node("n", "")]);
    cluster.run(&PodShape { requests: resources(9000, 1), ..pod("a") }, "n");
    assert_eq!(cluster.fits(&PodShape { requests: resources(0, 1), ..pod("b") }, "n"), Ok(()));
}

/// Nodes a1, a2 in zone a, b1 in zone b, c1 in zone c, x without a zone.
fn zones() -> Cluster {
    let nodes = [("a1", "a"), ("a2", "a"), ("b1", "b"), ("c1", "c"), ("x", "")];
    Cluster::new(nodes.map(|(name, zone)| node(name, zone)).into())
}

#[test]
fn spread_constraint_bounds_every_domain_by_minimum_plus_skew() {
    for (max_skew, pods_on, fitting) in [
        (1, vec![], vec!["a1", "a2", "b1", "c1"]),
        (1, vec![("a1", 1)], vec!["b1", "c1"]),
        (1, vec![("a1", 1), ("b1", 1)], vec!["c1"]),
        (1, vec![("a1", 1), ("b1", 1), ("c1", 1)], vec!["a1", "a2", "b1", "c1"]),
        (2, vec![("a1", 1), ("a2", 1), ("b1", 1)], vec!["b1", "c1"]),
        (3, vec![("a1", 2), ("b1", 3)], vec!["a1", "a2", "c1"]),
        // Pods on a node without the key are not counted.
        (1, vec![("x", 5)], vec!["a1", "a2", "b1", "c1"]),
    ] {
        let mut cluster = zones();
        let asks = PodShape { spread: vec![topology_spread(key::ZONE, max_skew, "s")], ..pod("s") };
        cluster.run_all(&pod("s"), &pods_on);
        assert_eq!(cluster.fitting(&asks), fitting, "skew {max_skew}, {pods_on:?}");
        assert_eq!(cluster.fits(&asks, "x"), Err(vec![No::SpreadKey]));
    }
}

#[test]
fn pod_not_counted_by_its_constraint_may_exceed_skew_by_one() {
    let mut cluster = zones();
    cluster.run_all(&pod("s"), &[("a1", 1), ("b1", 2)]);
    let other = PodShape { spread: vec![topology_spread(key::ZONE, 1, "s")], ..pod("other") };
    assert_eq!(cluster.fitting(&other), ["a1", "a2", "c1"]);
    let itself = PodShape { spread: vec![topology_spread(key::ZONE, 1, "s")], ..pod("s") };
    assert_eq!(cluster.fitting(&itself), ["c1"]);
}

#[test]
fn spread_counts_only_pods_of_the_same_namespace() {
    let mut cluster = zones();
    let elsewhere = PodShape { namespace: "other".into(), ..pod("s") };
    cluster.run_all(&elsewhere, &[("a1", 9)]);
    let asks = PodShape { spread: vec![topology_spread(key::ZONE, 1, "s")], ..pod("s") };
    assert_eq!(cluster.fitting(&asks), ["a1", "a2", "b1", "c1"]);
}

#[test]
fn too_few_domains_count_as_an_empty_one() {
    for (min_domains, fitting) in [
        (None, vec!["a1", "a2", "b1", "c1"]),
        (Some(3), vec!["a1", "a2", "b1", "c1"]),
        (Some(4), vec![]),
    ] {
        let mut cluster = zones();
        cluster.run_all(&pod("s"), &[("a1", 1), ("b1", 1), ("c1", 1)]);
        let rule = TopologySpread { min_domains, ..topology_spread(key::ZONE, 1, "s") };
        let asks = PodShape { spread: vec![rule], ..pod("s") };
        assert_eq!(cluster.fitting(&asks), fitting, "{min_domains:?}");
    }
}

#[test]
fn node_affinity_limits_spread_domains_unless_ignored() {
    for (policy, fitting) in [
        // Zone c cannot run the pod; it counts as the minimum unless it is excluded.
        (NodeInclusion::Honor, vec!["a1", "a2", "b1"]),
        (NodeInclusion::Ignore, vec![]),
    ] {
        let mut cluster = zones();
        cluster.run_all(&pod("s"), &[("a1", 1), ("b1", 1)]);
        let rule =
            TopologySpread { node_affinity_policy: policy, ..topology_spread(key::ZONE, 1, "s") };
        let any_of = vec![requires(key::ZONE, "a"), requires(key::ZONE, "b")];
        let nodes = NodeChoice { any_of, ..NodeChoice::default() };
        let asks = PodShape { spread: vec![rule], nodes, ..pod("s") };
        assert_eq!(cluster.fitting(&asks), fitting, "{policy:?}");
    }
}

#[test]
fn taints_limit_the_domains_only_if_honored() {
    for (policy, cordon, fitting) in [
        (NodeInclusion::Honor, false, vec!["a1", "b1"]),
        (NodeInclusion::Ignore, false, vec![]),
        (NodeInclusion::Honor, true, vec!["a1", "b1"]),
        (NodeInclusion::Ignore, true, vec![]),
    ] {
        let mut last = node("c1", "c");
        if !cordon {
            last.taints = vec![taint("t", TaintEffect::NoSchedule)];
        }
        let mut cluster = Cluster::new(vec![node("a1", "a"), node("b1", "b"), last]);
        cluster.run_all(&pod("s"), &[("a1", 1), ("b1", 1)]);
        let rule =
            TopologySpread { node_taints_policy: policy, ..topology_spread(key::ZONE, 1, "s") };
        let asks = PodShape { spread: vec![rule], ..pod("s") };
        cluster.class(&asks);
        let index = cluster.index("c1");
        cluster.0.set_unschedulable(index, cordon);
        assert_eq!(cluster.fitting(&asks), fitting, "{policy:?}, cordon {cordon}");
    }
}

#[test]
fn node_without_a_key_of_any_constraint_counts_for_none() {
    let mut cluster = zones();
    // x has a host name but no zone: its pods do not count towards the hostname constraint.
    cluster.run_all(&pod("s"), &[("a1", 1), ("a2", 1), ("b1", 1), ("c1", 1), ("x", 0)]);
    let both = vec![topology_spread(key::HOSTNAME, 1, "s"), topology_spread(key::ZONE, 9, "s")];
    let asks = PodShape { spread: both, ..pod("s") };
    assert_eq!(cluster.fitting(&asks), ["a1", "a2", "b1", "c1"]);
    let alone = PodShape { spread: vec![topology_spread(key::HOSTNAME, 1, "s")], ..pod("s") };
    assert_eq!(cluster.fitting(&alone), ["x"]);
}

#[test]
fn match_label_keys_count_revisions_separately() {
    let of = |revision: &str| PodShape {
        labels: labels(&[("app", "s"), ("hash", revision)]),
        ..pod("s")
    };
    let mut cluster = zones();
    cluster.run_all(&of("1"), &[("a1", 3)]);
    let rule = TopologySpread {
        match_label_keys: vec!["hash".into()],
        ..topology_spread(key::ZONE, 1, "s")
    };
    let new = PodShape { spread: vec![rule.clone()], ..of("2") };
    assert_eq!(cluster.fitting(&new), ["a1", "a2", "b1", "c1"]);
    let old = PodShape { spread: vec![rule], ..of("1") };
    assert_eq!(cluster.fitting(&old), ["b1", "c1"]);
}

#[test]
fn required_affinity_needs_every_term_in_the_domain() {
    let asks = PodShape {
        affinity: required(vec![
            affinity_term(key::ZONE, "db"),
            affinity_term(key::HOSTNAME, "db"),
        ]),
        ..pod("a")
    };
    let mut cluster = zones();
    assert!(cluster.fitting(&asks).is_empty(), "no pod matches, nor does the pod itself");
    cluster.run(&pod("db"), "a1");
    assert_eq!(cluster.fitting(&asks), ["a1"]);
    assert_eq!(cluster.fits(&asks, "a2"), Err(vec![No::PodAffinity]));
    let zonal = PodShape { affinity: required(vec![affinity_term(key::ZONE, "db")]), ..pod("a") };
    assert_eq!(cluster.fitting(&zonal), ["a1", "a2"]);
}

#[test]
fn pod_must_match_all_affinity_terms_to_count() {
    let two = vec![
        affinity_term(key::ZONE, "db"),
        PodAffinityTerm { selector: Some(selector("tier", "1")), ..affinity_term(key::ZONE, "") },
    ];
    let asks = PodShape { affinity: required(two), ..pod("a") };
    let mut cluster = zones();
    cluster.run(&pod("db"), "a1");
    cluster.run(&PodShape { labels: labels(&[("tier", "1")]), ..pod("") }, "a1");
    assert!(cluster.fitting(&asks).is_empty(), "each pod matches one of the two terms");
    cluster.run(&PodShape { labels: labels(&[("app", "db"), ("tier", "1")]), ..pod("") }, "b1");
    assert_eq!(cluster.fitting(&asks), ["b1"]);
}

#[test]
fn first_pod_of_a_group_fits_any_node_with_the_key() {
    let asks = PodShape { affinity: required(vec![affinity_term(key::ZONE, "a")]), ..pod("a") };
    let mut cluster = zones();
    assert_eq!(cluster.fitting(&asks), ["a1", "a2", "b1", "c1"]);
    assert_eq!(cluster.fits(&asks, "x"), Err(vec![No::PodAffinity]), "x has no zone");
    cluster.run(&asks, "b1");
    assert_eq!(cluster.fitting(&asks), ["b1"]);
    let class = cluster.class(&asks);
    let index = cluster.index("b1");
    cluster.0.unbind(class, index);
    assert_eq!(cluster.fitting(&asks), ["a1", "a2", "b1", "c1"], "again the first");
}

#[test]
fn match_on_a_node_without_the_key_does_not_count() {
    let asks = PodShape { affinity: required(vec![affinity_term(key::ZONE, "a")]), ..pod("a") };
    let mut cluster = zones();
    cluster.run(&pod("a"), "x");
    assert_eq!(cluster.fitting(&asks), ["a1", "a2", "b1", "c1"]);
}

#[test]
fn anti_affinity_excludes_the_domain_but_not_keyless_nodes() {
    let asks =
        PodShape { anti_affinity: required(vec![affinity_term(key::ZONE, "db")]), ..pod("a") };
    let mut cluster = zones();
    cluster.run_all(&pod("db"), &[("a1", 1), ("x", 1)]);
    assert_eq!(cluster.fitting(&asks), ["b1", "c1", "x"]);
    assert_eq!(cluster.fits(&asks, "a2"), Err(vec![No::PodAntiAffinity]));
}

#[test]
fn anti_affinity_of_running_pods_applies_to_new_pods() {
    let jealous =
        PodShape { anti_affinity: required(vec![affinity_term(key::ZONE, "a")]), ..pod("db") };
    let mut cluster = zones();
    cluster.run(&jealous, "a1");
    assert_eq!(cluster.fitting(&pod("a")), ["b1", "c1", "x"]);
    assert_eq!(cluster.fits(&pod("a"), "a2"), Err(vec![No::ExistingAntiAffinity]));
    assert_eq!(cluster.fitting(&pod("b")).len(), 5, "it names only a");
    assert_eq!(cluster.fitting(&jealous).len(), 5, "it does not name itself");
}

#[test]
fn affinity_selects_pods_of_its_namespaces() {
    let namespaces = [
        ("default".into(), Labels::new()),
        ("other".into(), labels(&[("team", "x")])),
        ("third".into(), Labels::new()),
    ];
    let everywhere = Selector::default();
    for (listed, by_labels, fitting) in [
        (vec![], None, vec!["a1"]),
        (vec!["other"], None, vec!["b1"]),
        (vec!["default", "other"], None, vec!["a1", "b1"]),
        (vec![], Some(selector("team", "x")), vec!["b1"]),
        (vec!["default"], Some(selector("team", "x")), vec!["a1", "b1"]),
        (vec![], Some(everywhere), vec!["a1", "b1", "c1"]),
        (vec![], Some(selector("kubernetes.io/metadata.name", "third")), vec!["c1"]),
        (vec![], Some(selector("team", "y")), vec![]),
    ] {
        let nodes = [("a1", "a"), ("b1", "b"), ("c1", "c")].map(|(n, zone)| node(n, zone));
        let known = namespaces.clone().into();
        let mut cluster = Cluster(Scheduler::new(nodes.into(), &known, 1));
        for (namespace, node) in [("default", "a1"), ("other", "b1"), ("third", "c1")] {
            cluster.run(&PodShape { namespace: namespace.into(), ..pod("db") }, node);
        }
        let looks = PodAffinityTerm {
            namespaces: listed.iter().map(ToString::to_string).collect(),
            namespace_selector: by_labels.clone(),
            ..affinity_term(key::ZONE, "db")
        };
        let asks = PodShape { affinity: required(vec![looks]), ..pod("a") };
        assert_eq!(cluster.fitting(&asks), fitting, "{listed:?} {by_labels:?}");
    }
}

#[test]
fn match_and_mismatch_label_keys_narrow_the_selector() {
    let of = |tenant: &str| PodShape {
        labels: labels(&[("app", "db"), ("tenant", tenant)]),
        ..pod("db")
    };
    let mut cluster = zones();
    cluster.run(&of("one"), "a1");
    cluster.run(&of("two"), "b1");
    let keys = vec!["tenant".into(), "unset".into()];
    let with = PodAffinityTerm { match_label_keys: keys.clone(), ..affinity_term(key::ZONE, "db") };
    let company = PodShape { affinity: required(vec![with]), ..of("two") };
    assert_eq!(cluster.fitting(&company), ["b1"]);
    let without = PodAffinityTerm { mismatch_label_keys: keys, ..affinity_term(key::ZONE, "db") };
    let alone = PodShape { anti_affinity: required(vec![without]), ..of("two") };
    assert_eq!(cluster.fitting(&alone), ["b1", "c1", "x"]);
}

#[test]
fn a_term_without_selector_selects_nothing() {
    let nothing = PodAffinityTerm { selector: None, ..affinity_term(key::ZONE, "") };
    let mut cluster = zones();
    cluster.run(&pod("a"), "a1");
    let wants = PodShape { affinity: required(vec![nothing.clone()]), ..pod("a") };
    assert!(cluster.fitting(&wants).is_empty());
    let avoids = PodShape { anti_affinity: required(vec![nothing]), ..pod("a") };
    assert_eq!(cluster.fitting(&avoids).len(), 5);
}

#[test]
fn an_unfit_pod_counts_nodes_by_reason() {
    let mut tainted = node("t", "");
    tainted.taints = vec![taint("t", TaintEffect::NoSchedule)];
    let mut cluster = Cluster::new(vec![node("n1", ""), tainted, node("n2", "")]);
    let huge = PodShape { requests: resources(5000, 9000), ..pod("a") };
    let class = cluster.class(&huge);
    let unfit = cluster.0.schedule(class, None).expect_err("too large");
    assert_eq!(
        unfit.to_string(),
        "0/3 nodes: 1 taint not tolerated, 2 insufficient cpu, 2 insufficient memory"
    );
    let nowhere = Cluster::new(Vec::new()).schedule(&pod("a"));
    assert_eq!(nowhere, None);
}
