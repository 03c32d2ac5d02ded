//! Suggested changes: every obstacle is named, with the place, the amount and the price.

use std::sync::Arc;

use crate::model::code::Code;
use crate::model::desired::{
    AutoModePool, ConnectionTracking, EfaInterfaces, Generation, GroupKind, InstanceSettings,
    NodeGroup, Problem, ReservationTerm, Severity, discovery_tags,
};
use crate::model::ids::{Labels, Origin};
use crate::model::observed::Group;
use crate::model::pod::{Expression, NodeTerm, Taint, TaintEffect};
use crate::model::reason::Rejection;
use crate::model::requirement::{Operator, key, label};
use crate::solver::{OfferInput, observe_only_reason, pool_problems};
use crate::testing::{Scenario, requirement, workload_id, world};

/// Returns the detail of the first reason, and the suggested change.
fn advice(scenario: &Scenario) -> (String, String) {
    let target = scenario.solve().target;
    let [unplaced] = target.unschedulable.as_slice() else { panic!("one unschedulable group") };
    let detail = unplaced.rejections[0].detail.clone();
    (detail, unplaced.suggested_change.clone().unwrap_or_default())
}

fn taint(key: &str) -> Taint {
    Taint { key: key.into(), value: "x".into(), effect: TaintEffect::NoSchedule }
}

#[test]
fn larger_type_names_requirement_file_and_price() {
    let mut scenario = Scenario::new(&["m5.large"], 100, 700 * 1024);
    let family = requirement("karpenter.k8s.aws/instance-family", &["m5"]);
    scenario.pool().requirements = vec![family];
    scenario.pool().limits.resources = [("cpu".into(), 8_000)].into();
    scenario.scale(1);
    let (detail, fix) = advice(&scenario);
    assert!(
        detail.contains("needs 700Gi, these nodes of pool default leave at most 3"),
        "{detail}"
    );
    assert!(!detail.contains("Mi"), "one unit: {detail}");
    let (change, price) = fix.split_once(": 1 ").expect("a change and a price");
    assert!(change.starts_with("add "), "{fix}");
    assert!(
        change.contains(" to karpenter.k8s.aws/instance-family in NodePool default (pool.yaml:1)"),
        "{fix}"
    );
    assert!(change.contains(", and raise the limits of NodePool default"), "{fix}");
    assert!(price.contains(", $") && price.ends_with("/h more on demand"), "{fix}");
}

#[test]
fn too_small_states_the_largest_node_without_the_resource() {
    // The limit leaves no large node, the c5 lacks memory, and the r5 lacks CPU.
    let mut scenario = Scenario::new(&["m5.2xlarge", "c5.xlarge", "r5.large"], 3_000, 10 * 1024);
    scenario.scale(1);
    scenario.pool().limits.resources = [("cpu".into(), 4_000)].into();
    let target = scenario.solve().target;
    let [unplaced] = target.unschedulable.as_slice() else { panic!("one unschedulable group") };
    let small = unplaced.rejections.iter().filter(|rejection| rejection.reason == "too-small");
    for Rejection { detail, .. } in small {
        let (needs, leaves) = detail.split_once(", ").expect("two amounts");
        let number = |text: &str| {
            let digits = text.trim_end_matches(char::is_alphabetic).rsplit(' ').next();
            digits.and_then(|digits| digits.parse::<f64>().ok()).expect("an amount")
        };
        assert!(number(leaves) < number(needs), "{detail}");
    }
    let details = unplaced.rejections.iter().filter(|rejection| rejection.reason == "too-small");
    assert_eq!(details.count(), 2, "{:?}", unplaced.rejections);
}

#[test]
fn raised_limit_has_amount_and_price() {
    let mut scenario = Scenario::new(&["m5.xlarge"], 1000, 0);
    scenario.scale(13);
    scenario.pool().limits.resources = [("cpu".into(), 8_000)].into();
    let (_, fix) = advice(&scenario);
    assert_eq!(
        fix,
        "raise the limits of NodePool default (pool.yaml:1) by cpu 12: at least 3 nodes if \
         all are m5.xlarge, $0.5760/h more"
    );
}

#[test]
fn reached_limits_are_named_without_the_others() {
    let mut scenario = Scenario::new(&["m5.xlarge"], 1000, 0);
    scenario.scale(13);
    scenario.pool().limits.resources =
        [("cpu".into(), 8_000), ("memory".into(), 1024 * 1024 * 1024 * 1024)].into();
    assert_eq!(advice(&scenario).0, "pool default has reached its limits (cpu 8)");
    scenario.pool().limits.nodes = Some(2);
    assert_eq!(advice(&scenario).0, "pool default has reached its limits (cpu 8, nodes 2)");
}

#[test]
fn every_obstacle_is_in_the_suggested_change() {
    let mut scenario = Scenario::new(&["m5.xlarge"], 1000, 0);
    scenario.scale(1);
    scenario.pool().taints = vec![taint("a"), taint("b")];
    scenario.pool().limits.resources = [("cpu".into(), 2_000)].into();
    let (_, fix) = advice(&scenario);
    assert_eq!(
        fix,
        "tolerate taint a=x:NoSchedule, and tolerate taint b=x:NoSchedule, and raise the limits \
         of NodePool default (pool.yaml:1) by cpu 2: 1 m5.xlarge, $0.1920/h more"
    );
}

#[test]
fn label_that_no_node_gets_is_in_the_suggested_change() {
    let mut scenario = Scenario::new(&["m5.large"], 100, 700 * 1024);
    scenario.pool().requirements = vec![requirement("karpenter.k8s.aws/instance-family", &["m5"])];
    scenario.template().spec.node_selector.extend([label("cache", "true")]);
    scenario.scale(1);
    let (_, fix) = advice(&scenario);
    assert!(fix.contains("remove the pod's requirement cache"), "{fix}");
}

/// Returns the advice for a pod that asks for a label, beside a pool for amd64.
fn advice_for(asked: (&str, &str), change: impl FnOnce(&mut Scenario)) -> String {
    let mut scenario = Scenario::new(&["m5.large", "m6g.large"], 1500, 1024);
    scenario.pool().requirements.push(requirement("kubernetes.io/arch", &["amd64"]));
    scenario.template().spec.node_selector.extend([label(asked.0, asked.1)]);
    scenario.scale(1);
    change(&mut scenario);
    advice(&scenario).1
}

#[test]
fn each_of_two_options_has_its_own_price() {
    let own = "1 m5.large, $0.0960/h more";
    assert_eq!(
        advice_for(("kubernetes.io/arch", "arm64"), |_| ()),
        format!(
            "add arm64 to kubernetes.io/arch in NodePool default (pool.yaml:1): 1 m6g.large, \
             $0.0770/h more on demand; or remove the requirement kubernetes.io/arch arm64: {own}"
        )
    );
    let family = ("karpenter.k8s.aws/instance-family", "c7i");
    let fix = advice_for(family, |_| ());
    let (named, without) = fix.split_once("; or ").expect("two options");
    let change = "add c7i.large to node.kubernetes.io/instance-type in NodePool default \
                  (pool.yaml:1): 1 c7i.large, $";
    assert!(named.starts_with(change), "{fix}");
    assert_eq!(without, format!("remove the requirement {} {}: {own}", family.0, family.1));
    let tainted = advice_for(family, |scenario| scenario.pool().taints = vec![taint("a")]);
    let both = [", and tolerate taint a=x:NoSchedule: 1 c7i", "tolerate taint a=x:NoSchedule, and"];
    assert!(both.iter().all(|part| tainted.contains(part)), "{tainted}");
    // The catalog has no such type.
    assert_eq!(
        advice_for(("node.kubernetes.io/instance-type", "m5.tiny"), |_| ()),
        format!(
            "let pool default make nodes with node.kubernetes.io/instance-type m5.tiny, or remove \
             the requirement: {own} without the requirement"
        )
    );
    assert_eq!(
        advice_for(("karpenter.sh/capacity-type", "spot"), |_| ()),
        format!(
            "let pool default make nodes with karpenter.sh/capacity-type spot, or remove the \
             requirement: {own} without the requirement"
        )
    );
    // A label of the user's own does not change the price.
    assert_eq!(
        advice_for(("team", "blue"), |_| ()),
        format!("let pool default make nodes with team blue, or remove the requirement: {own}")
    );
}

#[test]
fn each_of_two_options_removes_every_obstacle() {
    let beside_arm = |key: &'static str, value: &'static str| {
        advice_for(("kubernetes.io/arch", "arm64"), |scenario| {
            scenario.template().spec.node_selector.extend([label(key, value)]);
        })
    };
    let disk = "karpenter.k8s.aws/instance-local-nvme";
    let fix = beside_arm(disk, "118");
    let edits = "add arm64 to kubernetes.io/arch and add c6gd.large to \
                 node.kubernetes.io/instance-type in NodePool default";
    assert!(fix.starts_with(edits), "an m6g.large has no disk: {fix}");
    // No type for arm64 has such a disk, and no type is in such a zone.
    for (key, value) in [(disk, "75"), (key::ZONE, "us-west-2a")] {
        let fix = beside_arm(key, value);
        assert!(!fix.contains("; or ") && fix.contains(key), "{fix}");
        assert!(fix.contains("make nodes with kubernetes.io/arch arm64, or remove"), "{fix}");
    }
}

#[test]
fn advice_about_the_operating_system_names_the_node_class() {
    let windows = ("kubernetes.io/os", "windows");
    let rest = "choose an amiFamily or image alias with kubernetes.io/os windows in EC2NodeClass \
                default (pool.yaml:20), or remove the requirement: 1 m5.large, $0.0960/h more \
                without the requirement";
    assert_eq!(advice_for(windows, |_| ()), rest);
    let allow = |values: &'static [&'static str]| {
        advice_for(windows, |scenario| {
            scenario.pool().requirements.push(requirement(windows.0, values));
        })
    };
    assert_eq!(allow(&["linux", "windows"]), rest);
    assert_eq!(
        allow(&["linux"]),
        format!("let pool default make nodes with kubernetes.io/os windows, and {rest}")
    );
}

#[test]
fn limits_are_raised_for_all_workloads_that_they_block() {
    let mut scenario = Scenario::new(&["m5.large"], 1500, 1024);
    scenario.scale(1);
    let template = scenario.template().clone();
    scenario.deploy("second", 1, template.clone());
    scenario.deploy("third", 1, template);
    scenario.pool().limits.resources = [("cpu".into(), 2_000)].into();
    let fixes = |scenario: &Scenario| {
        let unschedulable = scenario.solve().target.unschedulable;
        unschedulable.into_iter().map(|pods| pods.suggested_change).collect::<Vec<_>>()
    };
    let fix = "raise the limits of NodePool default (pool.yaml:1) by cpu 4 for 2 workloads: at \
               most 2 m5.large, $0.1920/h more";
    assert_eq!(fixes(&scenario), [Some(fix.to_owned()), Some(fix.to_owned())]);
    scenario.pool().limits.resources = [("cpu".into(), 4_000)].into();
    let fix = "raise the limits of NodePool default (pool.yaml:1) by cpu 2: 1 m5.large, $0.0960/h \
               more";
    assert_eq!(fixes(&scenario), [Some(fix.to_owned())], "one workload needs it");
    scenario.pool().limits.resources = [("cpu".into(), 6_000)].into();
    assert_eq!(fixes(&scenario), [], "the sum helps all of them");
}

#[test]
fn mistyped_pool_or_zone_is_corrected_in_the_pod() {
    let fix = |selected: (&str, &str)| {
        let mut scenario = Scenario::new(&["m5.large"], 100, 64);
        scenario.template().spec.node_selector.extend([label(selected.0, selected.1)]);
        scenario.scale(1);
        advice(&scenario).1
    };
    let (pool, zone) = ("karpenter.sh/nodepool", "topology.kubernetes.io/zone");
    let mistyped = fix((pool, "defualt"));
    assert!(mistyped.starts_with("write default in place of karpenter.sh/nodepool defualt: 1 m5"));
    let unknown = fix((pool, "gpu"));
    assert!(
        unknown.starts_with("name an existing pool in karpenter.sh/nodepool: there is none of gpu")
    );
    let nowhere = fix((zone, "us-east-1z"));
    assert!(nowhere.starts_with("write us-east-1a or us-east-1b"), "{nowhere}");
    assert!(nowhere.contains(" in place of topology.kubernetes.io/zone us-east-1z: "), "{nowhere}");
}

#[test]
fn zones_of_another_pool_and_excluded_values_are_no_typos() {
    for (key, operator, values) in [
        ("topology.kubernetes.io/zone", Operator::In, &["us-east-1a", "us-east-1b"][..]),
        ("karpenter.sh/nodepool", Operator::NotIn, &["default"]),
    ] {
        let mut scenario = Scenario::new(&["m5.large"], 100, 64);
        let zone = requirement("topology.kubernetes.io/zone", &["us-east-1c"]);
        scenario.pool().requirements.push(zone);
        let values = values.iter().map(|value| (*value).into()).collect();
        let expressions = vec![Expression { key: key.into(), operator, values }];
        let term = NodeTerm { expressions, fields: Vec::new() };
        scenario.template().spec.node_affinity.required = Some(vec![term]);
        scenario.scale(1);
        let fix = advice(&scenario).1;
        assert!(!fix.contains("none of") && !fix.contains("in place of"), "{key}: {fix}");
    }
}

#[test]
fn pool_that_could_not_be_read_is_to_be_corrected_first() {
    let mut scenario = Scenario::new(&["m5.large"], 100, 64);
    scenario.scale(1);
    scenario.node_class().unreadable = Some("spec.role".to_owned());
    let (detail, fix) = advice(&scenario);
    assert!(detail.contains("`spec.role` of node class"), "{detail}");
    assert_eq!(fix, "correct `spec.role` of node class default");
    let error = |message: &str| {
        let origin = Origin::new("class.yaml", 13);
        let object = format!("{} default", Generation::V1.class_kind());
        Problem::error(origin, object, message).hint("give `ROLE` a value")
    };
    scenario.desired.problems = vec![
        error("`spec.roleName` is unknown"),
        error("`spec.role` needs `ROLE`, which has no value").code(Code::PlaceholderUnresolved),
    ];
    let (detail, fix) = advice(&scenario);
    let expected = "`spec.role` of node class default needs `ROLE`, which has no value \
                    (class.yaml:13)";
    assert!(detail.ends_with(expected), "{detail}");
    assert_eq!(fix, "give `ROLE` a value (class.yaml:13)");
    scenario.desired.problems = vec![error("`spec.role` is a list, not a string")];
    assert_eq!(advice(&scenario).1, "correct `spec.role` of node class default (class.yaml:13)");
}

#[test]
fn pods_that_only_auto_mode_admits_are_left_to_it() {
    let unplaced = |pool: &AutoModePool, is_own: bool, selected: (&str, &str)| {
        let mut scenario = Scenario::new(&["m5.xlarge"], 1000, 0);
        scenario.scale(2);
        let own = if is_own { [label("team", "a")].into() } else { Labels::default() };
        scenario.pool().labels = own;
        scenario.pool().limits.nodes = Some(0);
        scenario.desired.auto_mode_pools.insert("auto".into(), pool.clone());
        let workload = scenario.desired.workloads.get_mut(&workload_id()).expect("declared");
        let spec = &mut Arc::make_mut(&mut workload.template).spec;
        spec.node_selector = [label("team", "a"), label(selected.0, selected.1)].into();
        let target = scenario.solve().target;
        let [unplaced] = target.unschedulable.try_into().expect("one workload");
        let reason = unplaced.rejections[0].reason.clone();
        (reason, unplaced.rejections[0].detail.clone(), unplaced.suggested_change)
    };
    let cpu = ("eks.amazonaws.com/instance-cpu", "8");
    let pool = AutoModePool {
        labels: [label("team", "a")].into(),
        requirements: vec![requirement(cpu.0, &["4", "8"])],
        taints: Vec::new(),
    };
    let (reason, detail, fix) = unplaced(&pool, false, cpu);
    let expected = "NodePool auto of EKS Auto Mode may run the pod, and its nodes are not planned";
    assert_eq!((reason.as_str(), detail.as_str(), fix), ("eks-auto-mode", expected, None));
    let tainted = AutoModePool { taints: vec![taint("a")], ..pool.clone() };
    let unlabeled = AutoModePool { labels: Labels::default(), ..pool.clone() };
    let arch = ("kubernetes.io/arch", "amd64");
    for (rule, pool, is_own, selected, is_left) in [
        ("another label of EKS", &pool, false, ("eks.amazonaws.com/instance-family", "m5"), true),
        ("a required value that it lacks", &pool, false, (cpu.0, "16"), false),
        ("a taint", &tainted, false, cpu, false),
        ("a label that it lacks", &unlabeled, false, cpu, false),
        ("a label of Karpenter", &pool, false, ("karpenter.k8s.aws/instance-cpu", "8"), false),
        ("an own pool that may not grow", &pool, true, arch, false),
        ("a label of every node", &pool, false, arch, true),
    ] {
        let (reason, _, fix) = unplaced(pool, is_own, selected);
        assert_eq!((reason == "eks-auto-mode", fix.is_none()), (is_left, is_left), "{rule}");
    }
}

#[test]
fn lower_requests_names_the_taint_too() {
    let mut scenario = Scenario::new(&["m5.xlarge"], 1_000_000, 0);
    scenario.scale(1);
    scenario.pool().taints = vec![taint("a")];
    let (_, fix) = advice(&scenario);
    assert_eq!(
        fix,
        "lower the requests: no instance type of the region is large enough; then also tolerate \
         taint a=x:NoSchedule"
    );
}

/// Turns the pool into a node group of these types, which only its owner resizes.
fn as_group(scenario: &mut Scenario, types: &[&str]) {
    scenario.pool().generation = Generation::Eksctl;
    let group = NodeGroup {
        name: "default".into(),
        origin: Origin::new("cluster.yaml", 6),
        kind: GroupKind::Managed,
        cluster: "prod".to_owned(),
        min: 0,
        max: 1,
        desired: None,
        types: types.iter().map(|name| (*name).into()).collect(),
        zones: Vec::new(),
        tags: [].into(),
        mix: None,
        max_spot_price: None,
        manage: false,
    };
    scenario.desired.node_groups.insert(group.name.clone(), group);
}

#[test]
fn group_grows_by_its_own_type_alone() {
    let mut scenario = Scenario::new(&["m5.large"], 1500, 1024);
    as_group(&mut scenario, &["m5.large"]);
    scenario.scale(2);
    assert_eq!(
        advice(&scenario).1,
        "set `spec.groups.default: { manage: true }` in fleetwright.yaml, or resize node group \
         default (pool.yaml:1) by hand, and raise its maxSize from 1 to 2: at least 2 nodes if all \
         are m5.large, $0.1920/h more on demand"
    );
    let group = scenario.desired.node_groups.get_mut("default").expect("the group");
    group.manage = true;
    group.tags = [("k8s.io/cluster-autoscaler/enabled".to_owned(), "true".to_owned())].into();
    let (_, fix) = advice(&scenario);
    assert!(fix.starts_with("resize node group default (pool.yaml:1) by hand, and raise"), "{fix}");
    let group = scenario.desired.node_groups.get_mut("default").expect("the group");
    group.manage = false;
    let (_, fix) = advice(&scenario);
    assert!(fix.starts_with("resize node group default"), "the setting alone does not help: {fix}");
}

#[test]
fn pods_with_fabric_adapters_need_a_group_that_enables_them() {
    let mut scenario = Scenario::new(&["c5n.18xlarge"], 500, 256);
    let container = &mut scenario.template().spec.containers[0];
    container.resources.requests.insert("vpc.amazonaws.com/efa".into(), 1);
    scenario.scale(1);
    let (detail, fix) = advice(&scenario);
    assert!(detail.contains("vpc.amazonaws.com/efa: needs 1"), "{detail}");
    assert!(fix.contains("`efaEnabled: true`"), "{fix}");
    assert!(fix.contains("`networkInterfaces` of type `efa-only`"), "{fix}");
    scenario.node_class().efa = EfaInterfaces::All;
    assert_eq!(scenario.solve().target.launches.len(), 1);
}

#[test]
fn advice_about_the_volume_of_a_group_names_the_field_of_eksctl() {
    let mut scenario = Scenario::new(&["m5.large"], 500, 256);
    as_group(&mut scenario, &["m5.large"]);
    scenario.desired.node_groups.get_mut("default").expect("the group").manage = true;
    let container = &mut scenario.template().spec.containers[0];
    container.resources.requests.insert("ephemeral-storage".into(), 500 << 30);
    scenario.scale(1);
    let (_, fix) = advice(&scenario);
    assert!(fix.contains("in node group `default` (volumeSize)"), "{fix}");
}

#[test]
fn advice_about_a_static_pool_names_its_limit() {
    let mut scenario = Scenario::new(&["m5.large"], 1500, 1024);
    scenario.pool().replicas = Some(2);
    scenario.scale(3);
    for (limit, expected) in [
        (Some(1), "raise `limits.nodes` of pool default above 1: "),
        (Some(2), "raise `replicas` and `limits.nodes` of pool default: "),
        (None, "raise `replicas` of pool default: "),
    ] {
        scenario.pool().limits.nodes = limit;
        let (_, fix) = advice(&scenario);
        assert!(fix.starts_with(expected), "{fix}");
    }
}

#[test]
fn advice_about_reserved_capacity_is_to_read_the_account() {
    let mut scenario = Scenario::new(&["m5.large"], 1500, 1024);
    let requirements = &mut scenario.pool().requirements;
    requirements.retain(|one| one.key.as_str() != key::CAPACITY_TYPE);
    requirements.push(requirement(key::CAPACITY_TYPE, &["reserved"]));
    let term = ReservationTerm { id: Some("cr-1".to_owned()), ..ReservationTerm::default() };
    scenario.node_class().reservations = vec![term];
    scenario.scale(1);
    let (detail, fix) = advice(&scenario);
    assert!(detail.contains("no capacity reservation is known"), "{detail}");
    assert!(fix.starts_with("plan with --world live"), "{fix}");
    let severity = |scenario: &Scenario| {
        let Scenario { desired, catalog, observed, .. } = scenario;
        let supply = OfferInput { desired, catalog, observed, at: observed.taken_at };
        pool_problems(&supply, &scenario.demand())[0].severity
    };
    assert_eq!(severity(&scenario), Severity::Warning, "the account may have one");
    scenario.node_class().reservations.clear();
    assert_eq!(severity(&scenario), Severity::Error);
    let (detail, fix) = advice(&scenario);
    assert!(detail.contains("its node class selects none"), "{detail}");
    assert!(fix.starts_with("correct the requirements"), "{fix}");
}

#[test]
fn advice_about_a_mistyped_reservation_names_the_selector() {
    let mut scenario = Scenario::new(&["m5.large"], 1500, 1024);
    let requirements = &mut scenario.pool().requirements;
    requirements.retain(|one| one.key.as_str() != key::CAPACITY_TYPE);
    requirements.push(requirement(key::CAPACITY_TYPE, &["reserved"]));
    let tags = [("team".to_owned(), "shop".to_owned())].into();
    let owner = Some("123456789012".to_owned());
    let tagged = ReservationTerm { tags, owner, targeted: Some(true), id: None };
    let term = ReservationTerm { id: Some("cr-1".to_owned()), ..ReservationTerm::default() };
    scenario.node_class().reservations = vec![term, tagged];
    scenario.observed.cluster.account = "123456789012".to_owned();
    scenario.scale(1);
    let (detail, fix) = advice(&scenario);
    let place = "`capacityReservationSelectorTerms` of EC2NodeClass default (pool.yaml:20)";
    let selectors =
        "id cr-1, or tag team=shop and owner 123456789012 and instanceMatchCriteria targeted";
    assert_eq!(
        detail,
        format!(
            "NodePool default cannot launch any node: it launches in capacity reservations alone, \
             and {place} matches none: {selectors} (pool.yaml:1)"
        )
    );
    let expected =
        format!("correct {place}, or let NodePool default (pool.yaml:1) use other capacity");
    assert!(fix.starts_with(&expected), "{fix}");
    let Scenario { desired, catalog, observed, .. } = &scenario;
    let supply = OfferInput { desired, catalog, observed, at: observed.taken_at };
    let problems = pool_problems(&supply, &scenario.demand());
    assert_eq!(problems[0].severity, Severity::Error, "the account has none");
}

#[test]
fn tags_that_eks_sets_by_itself_hand_no_group_over() {
    let mut scenario = Scenario::new(&["m5.large"], 1500, 1024);
    as_group(&mut scenario, &["m5.large"]);
    let group = scenario.desired.node_groups.get_mut("default").expect("the group");
    group.manage = true;
    let own = group.identity_tags().into_iter();
    let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let tags = own.chain(discovery_tags("prod")).collect();
    let live = Group { tags, min: 0, ..world::group("eks-default", 0) };
    scenario.observed.groups.insert(live.name.clone(), live);
    let reason = |scenario: &Scenario| {
        let group = &scenario.desired.node_groups["default"];
        observe_only_reason(group, &scenario.desired, &scenario.observed)
    };
    assert_eq!(reason(&scenario), None);
    let group = scenario.desired.node_groups.get_mut("default").expect("the group");
    group.tags = discovery_tags("prod").into();
    let stated = reason(&scenario).expect("a reason");
    assert!(stated.starts_with("its tag k8s.io/cluster-autoscaler/"), "{stated}");
}

#[test]
fn advice_about_a_group_of_several_types_uses_the_room_of_each_type() {
    let types = ["c5.xlarge", "r5.large"];
    let mut scenario = Scenario::new(&types, 3000, 1024);
    as_group(&mut scenario, &types);
    scenario.scale(1);
    let (_, fix) = advice(&scenario);
    assert!(fix.starts_with("add a node group of "), "an r5.large has two vCPUs: {fix}");
}

#[test]
fn pod_larger_than_the_type_of_a_group_needs_another_group() {
    let mut scenario = Scenario::new(&["m5.large"], 3000, 1024);
    as_group(&mut scenario, &["m5.large"]);
    scenario.scale(1);
    let (_, fix) = advice(&scenario);
    let (change, nodes) = fix.split_once(": 1 ").expect("a change and nodes");
    let (kind, _) = nodes.split_once(',').expect("a type");
    assert_eq!(
        change,
        format!(
            "add a node group of {kind}, because the type of node group default (pool.yaml:1) is \
             fixed and too small"
        )
    );
    let arch = &scenario.catalog.types[kind].labels["kubernetes.io/arch"];
    assert_eq!(arch.as_str(), "amd64", "{kind}: the type has the architecture of the group");
}

#[test]
fn settings_of_a_node_class_need_types_that_have_them() {
    let launched = |types: &[&str], set: fn(&mut InstanceSettings)| {
        let mut scenario = Scenario::new(types, 1500, 1024);
        let class = scenario.desired.node_classes.values_mut().next().expect("a node class");
        set(&mut class.instance_settings);
        scenario.scale(1);
        let launched = scenario.solve().target.launches;
        launched.first().map(|launch| launch.node.instance_type.to_string())
    };
    let tracking = |settings: &mut InstanceSettings| {
        let udp = Some(40);
        settings.connection_tracking = Some(ConnectionTracking { udp, ..Default::default() });
    };
    assert_eq!(launched(&["m4.large"], |_| {}), Some("m4.large".to_owned()));
    assert_eq!(launched(&["m4.large"], tracking), None, "it needs Nitro");
    assert_eq!(launched(&["m4.large", "m5.large"], tracking), Some("m5.large".to_owned()));
    let nested = |settings: &mut InstanceSettings| settings.nested_virtualization = Some(true);
    let types = ["m5.large", "m8i.large"];
    assert_eq!(launched(&types, |_| {}), Some("m5.large".to_owned()));
    assert_eq!(launched(&types, nested), Some("m8i.large".to_owned()));
    let metal = ["m8i.metal-48xl"];
    assert_eq!(launched(&metal, |_| {}), Some("m8i.metal-48xl".to_owned()));
    assert_eq!(launched(&metal, nested), None, "it has no hypervisor");
    let off = |settings: &mut InstanceSettings| settings.nested_virtualization = Some(false);
    assert_eq!(launched(&types, off), Some("m5.large".to_owned()));
}

#[test]
fn suggested_type_has_the_settings_of_the_node_class() {
    let mut scenario = Scenario::new(&["m5.large"], 1500, 1024);
    let class = scenario.desired.node_classes.values_mut().next().expect("a node class");
    class.instance_settings.nested_virtualization = Some(true);
    scenario.scale(1);
    let (_, fix) = advice(&scenario);
    let kind = fix.strip_prefix("add ").and_then(|fix| fix.split(' ').next()).expect("a type");
    assert!(["c7i", "c7i-flex"].contains(&kind.split('.').next().expect("a family")), "{fix}");
}

#[test]
fn rules_of_a_pod_that_exclude_each_other_are_named() {
    let mut scenario = Scenario::new(&["m5.large"], 100, 1);
    scenario.scale(1);
    let spec = &mut scenario.template().spec;
    spec.node_selector = [label("topology.kubernetes.io/zone", "us-east-1a")].into();
    let other = Expression {
        key: "topology.kubernetes.io/zone".into(),
        operator: Operator::In,
        values: vec!["us-east-1b".into()],
    };
    let term = NodeTerm { expressions: vec![other], fields: Vec::new() };
    spec.node_affinity.required = Some(vec![term]);
    let (detail, fix) = advice(&scenario);
    assert_eq!(
        detail,
        "the rules of the pod about topology.kubernetes.io/zone exclude each other, so that no \
         node meets them"
    );
    assert!(
        fix.starts_with("keep one of the pod's rules about topology.kubernetes.io/zone"),
        "{fix}"
    );
}
