//! Node classes that Karpenter's API refuses, and pools that it accepts.

use super::*;
use crate::model::desired::{
    ConnectionTracking, EfaCount, EfaInterfaces, NetworkInterface, PlacementGroupSelector,
};

#[test]
fn node_class_problems_are_reported() {
    for (spec, expected) in [
        ("  amiSelectorTerms: [{alias: al2023}]\n", "is `al2023`, not family@version of a known"),
        ("  amiSelectorTerms: [{alias: al2024@latest}]\n", "write al2023@latest; families are"),
        ("  amiSelectorTerms: [{alias: al2@x}, {id: ami-1}]\n", "conflicts with the other terms"),
        ("  amiSelectorTerms: [{id: ami-1}]\n", "has no `amiFamily`, which selector terms"),
        ("  amiFamily: AL2\n", "`spec` has no `amiSelectorTerms`"),
        ("  amiFamily: AL2\n  amiSelectorTerms: []\n", "`spec.amiSelectorTerms` selects nothing"),
        ("  amiFamily: AL2024\n  amiSelectorTerms: [{id: ami-1}]\n", "write AL2023"),
        ("  amiFamily: Ubuntu\n  amiSelectorTerms: [{id: ami-1}]\n", "is `Ubuntu`, not one of"),
        (
            "  amiFamily: AL2\n  amiSelectorTerms: [{alias: al2023@x}]\n",
            "does not agree with the alias",
        ),
        (
            "  amiSelectorTerms: [{alias: al2@x}]\n  instanceProfile: p\n",
            "`spec.role` conflicts with `instanceProfile`",
        ),
        (
            "  amiFamily: AL2\n  amiSelectorTerms: [{nme: x}]\n",
            "unknown field `nme` in `spec.amiSelectorTerms[0]`",
        ),
        (
            "  amiSelectorTerms: [{alias: al2@x}]\n  blockDevices: []\n",
            "warning a.yaml:7: EC2NodeClass c: unknown field `blockDevices` in `spec`",
        ),
        (
            "  amiSelectorTerms: [{alias: al2@x}]\n  kubelet: {evictionHard: {memory: 1Gi}}\n",
            "is for `memory`, which is not a signal",
        ),
        (
            "  amiSelectorTerms: [{alias: al2@x}]\n  kubelet: {evictionHard: {pid.available: 101%}}\n",
            "is `101%`, not a share",
        ),
    ] {
        let found = problem(&node_class(spec));
        assert!(found.contains(expected), "{spec}\n{found}");
    }
    let bare = node_class(ALIAS).replace("  role: r\n", "");
    assert!(
        problem(&bare).starts_with("error a.yaml:5: EC2NodeClass c: `spec` has neither `role`")
    );
}

#[test]
fn node_template_without_a_profile_is_an_error() {
    let template = "apiVersion: karpenter.k8s.aws/v1alpha1\nkind: AWSNodeTemplate\n\
                    metadata: {name: c}\nspec: {subnetSelector: {a: b}}";
    let desired = read_text(template);
    let [problem] = &desired.problems[..] else { panic!("{:?}", desired.problems) };
    assert_eq!((problem.severity, problem.object.as_str()), (Severity::Error, "AWSNodeTemplate c"));
    assert!(problem.message.contains("has no `instanceProfile`"), "{problem:?}");
    let class = desired.node_classes.values().next().expect("the class");
    assert!(class.unreadable.is_some(), "nothing is launched with it");
    let settings = "apiVersion: fleetwright.dev/v1\nkind: Fleet\n\
                    spec: {karpenter: {defaultInstanceProfile: nodes}}";
    let tree = tree(&[("a.yaml", template), ("fleetwright.yaml", settings)]);
    let (fleet, problems) = read_fleet(&tree);
    assert_eq!(problems, []);
    let desired = read(&tree, &fleet);
    assert_eq!(desired.problems, []);
    let class = desired.node_classes.values().next().expect("the class");
    assert_eq!(class.instance_settings.identity, Identity::Profile("nodes".to_owned()));
}

#[test]
fn node_class_without_launch_selectors_is_an_error() {
    let bare = node_class(ALIAS);
    for (key, terms) in [
        ("subnetSelectorTerms", "[{id: subnet-1}]"),
        ("securityGroupSelectorTerms", "[{id: sg-1}]"),
    ] {
        let line = format!("  {key}: {terms}\n");
        assert!(bare.contains(&line));
        let absent = problem(&bare.replace(&line, ""));
        assert!(absent.contains(&format!("`spec` has no `{key}`")), "{absent}");
        let empty = problem(&bare.replace(terms, "[]"));
        assert!(empty.contains(&format!("`spec.{key}` selects nothing")), "{empty}");
        let class = read_text(&bare.replace(&line, "")).node_classes["c"].clone();
        assert!(class.unreadable.is_some(), "nothing is launched with it");
    }
}

#[test]
fn reserved_tags_are_errors() {
    for key in [
        "eks:eks-cluster-name",
        "kubernetes.io/cluster/prod",
        "karpenter.sh/nodepool",
        "karpenter.sh/nodeclaim",
        "karpenter.k8s.aws/ec2nodeclass",
        "fleetwright.dev/pool",
    ] {
        let found = problem(&node_class(&format!("{ALIAS}  tags: {{\"{key}\": x}}\n")));
        assert!(found.starts_with("error") && found.contains("is a reserved tag"), "{found}");
    }
    let empty = problem(&node_class(&format!("{ALIAS}  tags: {{\"\": x}}\n")));
    assert!(empty.contains("is a tag without a key"), "{empty}");
    let own = read_text(&node_class(&format!("{ALIAS}  tags: {{karpenter.sh/discovery: x}}\n")));
    assert_eq!(own.problems, []);
}

#[test]
fn windows_alias_with_a_version_is_an_error() {
    let class = |alias: &str| node_class(&format!("  amiSelectorTerms: [{{alias: {alias}}}]\n"));
    let pinned = problem(&class("windows2022@v1.2"));
    assert!(
        pinned.contains("Windows images have no versions; write windows2022@latest"),
        "{pinned}"
    );
    assert_eq!(read_text(&class("windows2022@latest")).problems, []);
}

#[test]
fn excluding_nothing_leaves_the_value_open() {
    for values in ["", ", values: []", ", values: null"] {
        let text = v1(
            &format!("      requirements: [{{key: example.com/team, operator: NotIn{values}}}]\n"),
            "",
        );
        let desired = read_text(&text);
        assert_eq!(lines(&desired), [""; 0], "{values}");
        let [open] = &desired.pools["web"].requirements[..] else { panic!("{values}") };
        assert_eq!((open.key.as_str(), open.operator), ("example.com/team", Operator::Exists));
    }
    let text = v1("      requirements: [{key: example.com/team, operator: In, values: []}]\n", "");
    assert!(lines(&read_text(&text))[0].contains("operator In needs at least one value"));
}

#[test]
fn interface_and_cpu_options_are_read_within_their_bounds() {
    let settings = |spec: &str| {
        let desired = read_text(&node_class(&format!("{ALIAS}{spec}")));
        assert_eq!(desired.problems, [], "{spec}");
        desired.node_classes["c"].instance_settings.clone()
    };
    let tracking = settings("  connectionTracking: {tcpEstablishedTimeout: 600, udpTimeout: 30}\n");
    let expected =
        ConnectionTracking { tcp_established: Some(600), udp_stream: None, udp: Some(30) };
    assert_eq!(tracking.connection_tracking, Some(expected));
    let nested = settings("  cpuOptions: {nestedVirtualization: disabled}\n");
    assert_eq!(nested.nested_virtualization, Some(false));
    assert_eq!(settings("  context: reserved\n").context.as_deref(), Some("reserved"));
    for (spec, expected) in [
        ("  connectionTracking: {tcpEstablishedTimeout: 59}\n", "is 59, below 60"),
        ("  connectionTracking: {udpStreamTimeout: 181}\n", "is 181, above 180"),
        ("  connectionTracking: {udpTimeout: 61}\n", "is 61, above 60"),
        ("  connectionTracking: {}\n", "states no timeout"),
        ("  cpuOptions: {nestedVirtualization: on}\n", "`spec.cpuOptions.nestedVirtualization`"),
    ] {
        let found = problem(&node_class(&format!("{ALIAS}{spec}")));
        assert!(found.starts_with("error") && found.contains(expected), "{spec}\n{found}");
    }
}

/// Returns the text of `networkInterfaces` with these cards, devices and types.
fn interfaces(list: &[(i32, i32, &str)]) -> String {
    let item = |(card, device, kind): &(i32, i32, &str)| {
        format!("{{networkCardIndex: {card}, deviceIndex: {device}, interfaceType: {kind}}}")
    };
    let items: Vec<String> = list.iter().map(item).collect();
    format!("  networkInterfaces: [{}]\n", items.join(", "))
}

#[test]
fn network_interfaces_and_prefixes_are_read() {
    let list = [(0, 0, "interface"), (0, 1, "efa-only"), (1, 1, "efa-only")];
    let text = node_class(&format!("{ALIAS}{}  ipPrefixCount: 2\n", interfaces(&list)));
    let class = clean(&text).node_classes["c"].clone();
    let interface = |card: i32, device: i32, efa_only| NetworkInterface { card, device, efa_only };
    let settings = &class.instance_settings;
    assert_eq!(
        settings.network_interfaces,
        [interface(0, 0, false), interface(0, 1, true), interface(1, 1, true)]
    );
    assert_eq!((settings.ip_prefix_count, class.interfaces()), (Some(2), 3));
    assert_eq!(class.efa, EfaInterfaces::Declared(EfaCount { all: 2, on_default_card: 1 }));
    for text in ["", "  networkInterfaces: []\n"] {
        let class = clean(&node_class(&format!("{ALIAS}{text}"))).node_classes["c"].clone();
        assert_eq!((class.efa, class.interfaces()), (EfaInterfaces::Absent, 1), "{text}");
    }
}

#[test]
fn network_interfaces_that_karpenter_refuses_are_errors() {
    let primary = (0, 0, "interface");
    let many: Vec<_> = (0..151).map(|device| (0, device, "interface")).collect();
    for (list, expected) in [
        (&[(0, 0, "efa-only")][..], "has no primary interface; add networkCardIndex: 0"),
        (&[(0, 1, "interface")], "`spec.networkInterfaces` has no primary interface"),
        (&[primary, primary], "`spec.networkInterfaces[1]` repeats device 0 of network card 0"),
        (
            &[primary, (1, 0, "efa-only"), (1, 1, "efa-only")],
            "a second EFA interface of network card 1",
        ),
        (&[primary, (-1, 0, "interface")], "is -1, below 0"),
        (&[primary, (0, 1, "efa")], "is `efa`, not one of interface, efa-only"),
        (&many[..], "lists 151 interfaces, more than 150"),
    ] {
        let found = problem(&node_class(&format!("{ALIAS}{}", interfaces(list))));
        assert!(found.starts_with("error") && found.contains(expected), "{found}");
    }
    let public = "  associatePublicIPAddress: true\n";
    let two = interfaces(&[primary, (0, 1, "interface")]);
    let found = problem(&node_class(&format!("{ALIAS}{two}{public}")));
    assert!(
        found.contains("has several interfaces beside `associatePublicIPAddress: true`"),
        "{found}"
    );
    clean(&node_class(&format!("{ALIAS}{}{public}", interfaces(&[primary]))));
    let part = "  networkInterfaces: [{networkCardIndex: 0, interfaceType: interface}]\n";
    let found = problem(&node_class(&format!("{ALIAS}{part}")));
    assert!(found.contains("`spec.networkInterfaces[0]` has no `deviceIndex`"), "{found}");
    let found = problem(&node_class(&format!("{ALIAS}  ipPrefixCount: -1\n")));
    assert!(found.contains("`spec.ipPrefixCount` is -1, below 0"), "{found}");
}

#[test]
fn placement_group_is_selected_by_name_or_id() {
    let selected = |selector: &str| {
        let text = node_class(&format!("{ALIAS}  placementGroupSelector: {selector}\n"));
        clean(&text).node_classes["c"].instance_settings.placement_group.clone()
    };
    let (name, id) = ("web".to_owned(), "pg-0a1".to_owned());
    assert_eq!(selected("{name: web}"), Some(PlacementGroupSelector::Name(name)));
    assert_eq!(selected("{id: pg-0a1}"), Some(PlacementGroupSelector::Id(id)));
    for (selector, expected) in [
        ("{}", "selects nothing; state name or id"),
        ("{name: web, id: pg-1}", "has both `name` and `id`"),
        ("{id: web}", "`spec.placementGroupSelector.id` is `web`, not the id of a placement group"),
        ("{name: \"\"}", "`spec.placementGroupSelector.name`"),
    ] {
        let text = node_class(&format!("{ALIAS}  placementGroupSelector: {selector}\n"));
        let found = problem(&text);
        assert!(found.starts_with("error") && found.contains(expected), "{found}");
    }
}

#[test]
fn an_unreadable_node_class_is_not_missing() {
    let read = |old: &str, new: &str| lines(&read_text(&v1("", "").replace(old, new)));
    let problems = read("al2023@latest", "AL2023@latest");
    assert!(!problems.is_empty(), "the alias is wrong");
    assert!(problems.iter().all(|line| !line.contains("not in the repository")), "{problems:#?}");
    let absent = read("EC2NodeClass, name: default", "EC2NodeClass, name: other");
    assert!(absent.iter().any(|line| line.contains("not in the repository")), "{absent:#?}");
}

#[test]
fn a_volume_has_at_least_one_gib() {
    for (size, is_valid) in [("100Gi", true), ("1Ti", true), ("100", false), ("9Mi", false)] {
        let device = format!("[{{deviceName: /dev/xvda, ebs: {{volumeSize: {size}}}}}]");
        let text = node_class(&format!("{ALIAS}  blockDeviceMappings: {device}\n"));
        let problems = lines(&read_text(&text));
        let is_named = problems.iter().any(|line| line.contains("not a volume size"));
        assert_eq!(is_named, !is_valid, "{size}: {problems:#?}");
    }
}

/// Cases that the API server refuses by the rules of the resource definition.
const REFUSED: &[(&str, &str)] = &[
    ("amiSelectorTerms: [{alias: al2@x, id: ami-1}]", "has both `id` and `alias`"),
    ("amiSelectorTerms: [{alias: al2@x, owner: self}]", "has both `alias` and `owner`"),
    ("amiSelectorTerms: [{id: ami-1, tags: {a: b}}]", "has both `id` and `tags`"),
    ("amiSelectorTerms: [{owner: self}]", "has no condition; state one of alias, tags"),
    ("amiSelectorTerms: [{id: image-1}]", "is `image-1`, not an id; write an id such as ami-0a"),
    ("amiSelectorTerms: [{tags: {a: ''}}]", "has a tag without a key or value"),
    ("amiSelectorTerms: [{alias: al2@v123456789012345678901234567890}]", "more than 30 characters"),
    ("subnetSelectorTerms: [{id: subnet-1, tags: {a: b}}]", "has both `id` and `tags`"),
    ("subnetSelectorTerms: [{id: net-1}]", "is `net-1`, not an id"),
    ("securityGroupSelectorTerms: [{name: x, tags: {a: b}}]", "has both `name` and `tags`"),
    ("securityGroupSelectorTerms: [{id: sg-1, name: x}]", "has both `id` and `name`"),
    ("blockDeviceMappings: [{deviceName: a, ebs: {volumeType: gp3}}]", "has neither `volumeSize`"),
    ("blockDeviceMappings: [{deviceName: a, ebs: {volumeSize: 9Gi, volumeType: gp9}}]", "`gp9`"),
    ("blockDeviceMappings: [{deviceName: a, ebs: {volumeSize: 20480Mi}}]", "`20480Mi`, not a size"),
    ("blockDeviceMappings: [{deviceName: a, ebs: {volumeSize: 59Ti}}]", "`59Ti`, not a size"),
    (
        "blockDeviceMappings: [{deviceName: a, rootVolume: true}, {deviceName: b, rootVolume: true}]",
        "has more than one `rootVolume`",
    ),
    ("metadataOptions: {httpPutResponseHopLimit: 65}", "is 65, above 64"),
    ("kubelet: {kubeReserved: {nvidia.com/gpu: 1}}", "`nvidia.com/gpu`, which is not reserved"),
    ("capacityReservationSelectorTerms: [{ownerID: '123456789012'}]", "selects every reservation"),
    ("capacityReservationSelectorTerms: [{id: res-1}]", "is `res-1`, not an id"),
];

#[test]
fn what_the_api_server_refuses_is_an_error() {
    let text = |spec: &str| {
        let key = spec.split_once(':').expect("a field").0;
        let others: String = [
            "  amiSelectorTerms: [{tags: {a: b}}]\n",
            "  subnetSelectorTerms: [{id: subnet-1}]\n",
            "  securityGroupSelectorTerms: [{id: sg-1}]\n",
        ]
        .into_iter()
        .filter(|other| !other.trim_start().starts_with(key))
        .collect();
        format!(
            "apiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\nmetadata: {{name: c}}\nspec:\n  \
             role: r\n  amiFamily: AL2\n{others}  {spec}\n"
        )
    };
    for (spec, expected) in REFUSED {
        let found = problem(&text(spec));
        assert!(found.starts_with("error") && found.contains(expected), "{spec}\n{found}");
    }
    for spec in [
        "amiSelectorTerms: [{name: x, owner: self}, {ssmParameter: /a}]",
        // The rules of these lists hold unless every term breaks them.
        "subnetSelectorTerms: [{id: subnet-1, tags: {a: b}}, {id: subnet-2}]",
        "securityGroupSelectorTerms: [{name: x}]",
        "kubelet: {systemReserved: {pid: '100'}}",
    ] {
        assert_eq!(lines(&read_text(&text(spec))), [""; 0], "{spec}");
    }
}

#[test]
fn what_the_api_server_refuses_of_a_pool_is_an_error() {
    let budget =
        |budget: &str| format!("  disruption: {{consolidateAfter: 0s, budgets: [{budget}]}}\n");
    let many = vec!["{nodes: '1'}"; 51].join(", ");
    for (text, expected) in [
        (v1("", "").replace("group: karpenter.k8s.aws, ", ""), "has no `group`"),
        (
            v1("", "").replace("kind: EC2NodeClass, name: default}\n", "name: default}\n"),
            "no `kind`",
        ),
        (v1("", "").replace("      requirements: []\n", ""), "has no `requirements`"),
        (v1("", "  disruption: {consolidateAfter: 100ms}\n"), "is `100ms`, not in whole hours"),
        (v1("      expireAfter: 1.5h\n", ""), "is `1.5h`, not in whole hours"),
        (v1("      terminationGracePeriod: 100ms\n", ""), "is `100ms`, not in whole hours"),
        (
            v1("", &budget("{nodes: '1', schedule: '@daily', duration: 60s}")),
            "is not in hours and minutes",
        ),
        (v1("", &budget(&many)), "lists 51 budgets, more than 50"),
    ] {
        let found = problem(&text);
        assert!(found.starts_with("error") && found.contains(expected), "{text}\n{found}");
    }
    for duration in ["10m", "2h", "1h30m", "1h30m0s"] {
        let written = format!("{{nodes: '1', schedule: '@daily', duration: {duration}}}");
        assert_eq!(lines(&read_text(&v1("", &budget(&written)))), [""; 0], "{duration}");
    }
}

#[test]
fn values_of_exists_have_no_effect() {
    for operator in ["Exists", "DoesNotExist"] {
        let written = format!("{{key: example.com/team, operator: {operator}, values: [a]}}");
        let text = v1(&format!("      requirements: [{written}]\n"), "");
        let found = problem(&text);
        assert!(found.starts_with("warning") && found.contains("has no effect with"), "{found}");
        let read = read_text(&text);
        let [open] = &read.pools["web"].requirements[..] else { panic!("{operator}") };
        assert_eq!((format!("{:?}", open.operator), open.values.len()), (operator.to_owned(), 0));
    }
}

#[test]
fn converted_kubelet_settings_of_a_pool_are_read() {
    let text = |annotation: &str| {
        let name = "metadata: {name: web}";
        let annotated = format!("metadata:\n  name: web\n  annotations:\n    {annotation}");
        v1("", "").replace(name, &annotated)
    };
    let kubelet = "compatibility.karpenter.sh/v1beta1-kubelet-conversion";
    let converted = text(&format!(
        "{kubelet}: '{{\"maxPods\":20,\"evictionHard\":{{\"memory.available\":\"5%\"}}}}'"
    ));
    let found = problem(&converted);
    assert!(
        found.starts_with("warning a.yaml:6: NodePool web: Karpenter 1.1 and later do not start"),
        "{found}"
    );
    let settings = read_text(&converted).pools["web"].kubelet.clone().expect("settings");
    assert_eq!((settings.max_pods, settings.eviction_hard.len()), (Some(20), 1));
    let wrong = read_text(&text(&format!("{kubelet}: '{{\"maxPods\":\"x\"}}'")));
    assert!(
        lines(&wrong)
            .iter()
            .any(|line| line.starts_with("error a.yaml:6") && line.contains("maxPods")),
        "{:?}",
        lines(&wrong)
    );
    assert!(wrong.pools["web"].unreadable.is_some(), "nothing is launched with it");
    let broken = read_text(&text(&format!("{kubelet}: '{{'")));
    assert!(
        lines(&broken).iter().any(|line| line.contains("is not a JSON object")),
        "{:?}",
        lines(&broken)
    );
    let reference = "compatibility.karpenter.sh/v1beta1-nodeclass-reference";
    let found = problem(&text(&format!("{reference}: '{{\"name\":\"default\"}}'")));
    assert!(found.starts_with("warning") && found.contains("has no effect"), "{found}");
}
