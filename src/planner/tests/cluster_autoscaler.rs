//! Tests of groups that Cluster Autoscaler scales up, and of warnings about its flags.

use std::sync::Arc;

use crate::model::cluster_autoscaler::AutoscalerFlags;
use crate::model::desired::ExternalGroup;
use crate::model::expander_priorities::ExpanderPriorities;
use crate::model::ids::{Address, Origin, WorkloadId, workload_key};
use crate::model::market::{CapacityMix, CapacityType};
use crate::model::observed::{Group, Instance, Membership, Node, NodeGroupTemplate};
use crate::model::pod::{PodTemplate, Taint, TaintEffect, Toleration, TolerationOperator};
use crate::model::requirement::label;
use crate::model::units::{MicroUsd, Resources};
use crate::plan::wire::{AutoscalerGrowthRow, Plan};
use crate::plan::{Facts, verify};
use crate::planner::revalidate;
use crate::testing::pods::{self, deployment};
use crate::testing::world::{self, live_workload};
use crate::testing::{Scenario, workload_id};

pub(super) const GROUP: &str = "terraform-web";

/// A change of `T`, with its description.
type Way<T> = (&'static str, fn(&mut T));

/// Returns a cluster in which Cluster Autoscaler runs, with a group that no file describes. Its node
/// has room for Cluster Autoscaler alone.
pub(super) fn cluster(namespace: &str, flags: AutoscalerFlags) -> Scenario {
    let mut scenario = Scenario::new(&["m5.large"], 1500, 1024);
    let template =
        PodTemplate { cluster_autoscaler: Some(Box::new(flags)), ..pods::template(0, 0) };
    let id = deployment(namespace, "cluster-autoscaler");
    let world = &mut scenario.observed;
    let mut live = live_workload(&id, 1);
    live.template = Some(id.to_string());
    world.workloads.push(live);
    let allocatable = Resources { pods: 1, ..Resources::default() };
    world.nodes.insert("n".into(), Node { allocatable, ..world::node("n") });
    let group = Group {
        types: vec!["m5.large".into()],
        zones: vec!["us-east-1a".into()],
        tags: [("k8s.io/cluster-autoscaler/enabled".to_owned(), "true".to_owned())].into(),
        min: 0,
        max: 3,
        ..world::group(GROUP, 0)
    };
    world.groups.insert(group.name.clone(), group);
    scenario.run(&id, &"n".into(), &Arc::new(template));
    scenario.template().spec.node_selector.clear();
    scenario
}

pub(super) fn discovery() -> AutoscalerFlags {
    let tags = [("k8s.io/cluster-autoscaler/enabled".to_owned(), None)].into();
    AutoscalerFlags { discovery: vec![tags], ..AutoscalerFlags::default() }
}

/// Returns the cluster without a pool of Fleetwright, for `replicas` pods.
pub(super) fn without_pools(replicas: u32) -> Scenario {
    let mut scenario = cluster("kube-system", discovery());
    scenario.desired.pools.clear();
    scenario.scale(replicas);
    scenario
}

pub(super) fn served(plan: &Plan) -> (u32, u32) {
    let pods = plan.capacity.pods;
    (pods.served_by_cluster_autoscaler, pods.unschedulable)
}

#[test]
fn group_of_no_file_serves_pods_up_to_its_maximum() {
    let plan = without_pools(5).plan();
    assert_eq!((served(&plan), plan.capacity.pods.total), ((3, 2), 6));
    let expected = AutoscalerGrowthRow {
        address: "autoscaling_group.terraform-web".into(),
        autoscaler: "kube-system/cluster-autoscaler".to_owned(),
        nodes: 3,
        maximum: 3,
        hourly: Some(MicroUsd(3 * 96_000)),
        pods: [(workload_key(&workload_id()), 3)].into(),
        instead: [].into(),
    };
    assert_eq!(plan.capacity.cluster_autoscaler, [expected]);
    assert_eq!((plan.summary.add, plan.capacity.cost.hourly_delta), (0, MicroUsd::ZERO));
    assert_eq!(plan.capacity.unschedulable.len(), 1, "the rest is still listed");
}

#[test]
fn nothing_is_served_unless_cluster_autoscaler_acts() {
    let ways: [Way<Scenario>; 7] = [
        ("it is scaled to zero", |s| s.observed.workloads[0].replicas = 0),
        ("its pod has no node", |s| {
            let pod =
                s.observed.pods.iter_mut().find(|pod| pod.namespace.as_str() == "kube-system");
            Arc::make_mut(pod.expect("a pod")).node = None;
            s.node().allocatable.pods = 0;
        }),
        ("its flags are unknown", |s| {
            let id = deployment("kube-system", "cluster-autoscaler").to_string();
            let template = s.observed.templates.get_mut(&id).expect("a template");
            Arc::make_mut(template).cluster_autoscaler = None;
        }),
        ("launches are suspended", |s| group(s).suspended.push("Launch".to_owned())),
        ("the group lacks the tag", |s| group(s).tags.clear()),
        ("the group is full", |s| group(s).max = 0),
        ("the type of the group is unknown", |s| group(s).types.clear()),
    ];
    for (why, change) in ways {
        let mut scenario = without_pools(2);
        change(&mut scenario);
        assert_eq!(served(&scenario.plan()).0, 0, "{why}");
    }
    let mut tenant = cluster("shop", discovery());
    tenant.desired.pools.clear();
    tenant.scale(2);
    assert_eq!(served(&tenant.plan()), (0, 2), "a Deployment of a tenant is not trusted");
    tenant.desired.autoscaler_namespaces = Some(["shop".into()].into());
    assert_eq!(served(&tenant.plan()), (2, 0));
}

pub(super) fn group(scenario: &mut Scenario) -> &mut Group {
    scenario.observed.groups.get_mut(GROUP).expect("the group")
}

#[test]
fn pools_come_before_cluster_autoscaler() {
    let mut scenario = cluster("kube-system", discovery());
    scenario.scale(4);
    scenario.pool().limits.nodes = Some(3);
    let plan = scenario.plan();
    assert_eq!((plan.summary.add, served(&plan)), (3, (1, 0)));
}

#[test]
fn growth_drops_no_launch_and_permits_no_removal() {
    let mut scenario = cluster("kube-system", discovery());
    scenario.scale(3);
    let approved = scenario.plan();
    assert_eq!(approved.summary.add, 3);
    scenario.scale(2);
    let found = revalidate(&scenario.inputs(), &approved);
    assert_eq!(found.dropped.len(), 1, "the group could serve both pods: {:?}", found.dropped);
}

#[test]
fn verifier_finds_each_planted_growth() {
    let scenario = without_pools(3);
    let facts = |scenario: &Scenario, plan: &Plan| {
        let demand = scenario.demand();
        let Scenario { desired, observed, catalog, .. } = scenario;
        let allocation = crate::catalog::allocation;
        let facts = Facts { desired, demand: &demand, observed, catalog, allocation };
        verify(plan, &facts).iter().any(|found| found.rule == "autoscaler/growth")
    };
    let plan = scenario.plan();
    assert!(!facts(&scenario, &plan));
    let defects: [Way<AutoscalerGrowthRow>; 7] = [
        ("no node", |row| row.nodes = 0),
        ("no pod", |row| row.pods.clear()),
        ("above the maximum", |row| row.nodes = 4),
        ("another maximum", |row| row.maximum = 4),
        ("too few nodes", |row| row.nodes = 1),
        ("another autoscaler", |row| row.autoscaler = "shop/cluster-autoscaler".to_owned()),
        ("another group", |row| row.address = "autoscaling_group.gone".into()),
    ];
    for (what, defect) in defects {
        let mut plan = plan.clone();
        defect(&mut plan.capacity.cluster_autoscaler[0]);
        assert!(facts(&scenario, &plan), "{what}");
    }
    let ways: [Way<Scenario>; 3] = [
        ("it does not run", |s| s.observed.workloads[0].replicas = 0),
        ("it does not select the group", |s| group(s).tags.clear()),
        ("members exist", |s| {
            let name = GROUP.into();
            let (lifecycle, protected) = ("InService".to_owned(), false);
            let group = Membership { name, lifecycle, protected };
            let member = world::instance("i-1");
            let member = Instance { group: Some(group), ..member };
            s.observed.instances.insert("i-1".into(), member);
        }),
    ];
    for (what, change) in ways {
        let mut scenario = without_pools(3);
        change(&mut scenario);
        assert!(facts(&scenario, &plan), "{what}");
    }
}

#[test]
fn tags_describe_the_disk_of_an_empty_group() {
    const DISK: &str = "k8s.io/cluster-autoscaler/node-template/resources/ephemeral-storage";
    for (disk, expected) in [(None, 0), (Some("100Gi"), 1), (Some("30Gi"), 0), (Some("much"), 0)] {
        let mut scenario = without_pools(1);
        let template = pods::template_requesting(&[("ephemeral-storage", 50 << 30)]);
        scenario.template().spec.containers = template.spec.containers;
        group(&mut scenario).tags.extend(disk.map(|size| (DISK.to_owned(), size.to_owned())));
        assert_eq!(served(&scenario.plan()).0, expected, "{disk:?}");
    }
}

#[test]
fn eks_describes_an_empty_managed_group() {
    let stated = || NodeGroupTemplate {
        name: "web".to_owned(),
        labels: [("team".to_owned(), "shop".to_owned())].into(),
        taints: vec![Taint {
            key: "dedicated".into(),
            value: "shop".into(),
            effect: TaintEffect::NoSchedule,
        }],
        capacity_type: Some(CapacityType::Spot),
        ami_type: Some("AL2023_x86_64_STANDARD".to_owned()),
        disk_gib: Some(100),
    };
    let scenario = || {
        let mut scenario = without_pools(1);
        let template = pods::template_requesting(&[("ephemeral-storage", 50 << 30)]);
        scenario.template().spec.containers = template.spec.containers;
        scenario.template().spec.node_selector = [
            label("team", "shop"),
            label("eks.amazonaws.com/nodegroup", "web"),
            label("eks.amazonaws.com/capacityType", "SPOT"),
        ]
        .into();
        scenario.template().spec.tolerations = vec![Toleration {
            key: "dedicated".to_owned(),
            operator: TolerationOperator::Exists,
            value: String::new(),
            effect: None,
            seconds: None,
        }];
        group(&mut scenario).node_group = Some(stated());
        // EKS states the label of its node group, and the tag of another tool is behind.
        let tag = "k8s.io/cluster-autoscaler/node-template/label/team".to_owned();
        group(&mut scenario).tags.insert(tag, "old".to_owned());
        scenario
    };
    assert_eq!(served(&scenario().plan()), (1, 0));
    let ways: [Way<Scenario>; 4] = [
        ("without EKS, tags alone count", |s| group(s).node_group = None),
        ("a pod without a toleration", |s| s.template().spec.tolerations.clear()),
        ("another label", |s| {
            let stated = group(s).node_group.as_mut().expect("stated");
            stated.labels.insert("team".to_owned(), "other".to_owned());
        }),
        ("what cannot be read takes no pod", |s| {
            group(s).template_unread = Some("not allowed".to_owned());
        }),
    ];
    for (why, change) in ways {
        let mut scenario = scenario();
        change(&mut scenario);
        assert_eq!(served(&scenario.plan()).0, 0, "{why}");
    }
}

#[test]
fn unread_parts_of_an_empty_group_are_warnings() {
    let warnings = |change: fn(&mut Group)| {
        let mut scenario = without_pools(0);
        scenario.observed.workloads.clear();
        change(group(&mut scenario));
        let declared = ExternalGroup { manage: true, origin: Origin::new("fleetwright.yaml", 3) };
        scenario.desired.external_groups.insert(GROUP.into(), declared);
        let found = scenario.plan().capacity.diagnostics.into_iter();
        found.filter(|d| d.object == "Fleet").map(|d| d.message).collect::<Vec<_>>()
    };
    assert_eq!(warnings(|_| ()), [""; 0]);
    let found = warnings(|group| group.types.clear());
    assert!(found[0].contains("its launch template names no instance type"), "{found:?}");
    let found = warnings(|group| group.template_unread = Some("not allowed".to_owned()));
    assert!(found[0].contains("its template cannot be read: not allowed"), "{found:?}");
    let found = warnings(|group| {
        let tag = |name: &str| format!("k8s.io/cluster-autoscaler/node-template/resources/{name}");
        let tags = ["nvidia.com/gpu", "cpu", "acme.com/fpga", "ephemeral-storage"];
        group.tags.extend(tags.map(|name| (tag(name), "x".to_owned())));
    });
    assert!(found[0].ends_with("not counted (acme.com/fpga, ephemeral-storage)"), "{found:?}");
}

/// Returns the price of the single existing node.
fn price_in(zone: &str) -> Option<MicroUsd> {
    let mut scenario = Scenario::without_workloads(&["m5.large"]);
    let (id, zone) = ("i-1".into(), zone.into());
    let member = Instance { zone, capacity_type: CapacityType::OnDemand, ..world::instance("i-1") };
    scenario.observed.instances.insert(id, member);
    let node = Node { instance: Some("i-1".into()), ..world::node("n") };
    scenario.observed.nodes.insert("n".into(), node);
    scenario.plan().capacity.explain.iter().find_map(|row| row.hourly_before)
}

#[test]
fn nodes_of_local_zones_have_no_regional_price() {
    assert_eq!(price_in("us-east-1a"), Some(MicroUsd(96_000)));
    assert_eq!(price_in("us-east-1z"), Some(MicroUsd(96_000)), "a zone that is not listed");
    assert_eq!(price_in("us-east-1-bos-1a"), None);
}

#[test]
fn average_of_a_mix_counts_the_base_first() {
    let mix = |base, percent| CapacityMix { on_demand_base: base, on_demand_percent: percent };
    for (mix, size, expected) in [
        (mix(0, 0), 9, 0),
        (mix(0, 100), 9, 9),
        (mix(2, 0), 1, 1),
        (mix(2, 0), 9, 2),
        (mix(1, 50), 4, 3),
        (mix(0, 33), 3, 1),
        (mix(0, 34), 3, 2),
        (mix(u32::MAX, 250), u32::MAX, u32::MAX),
    ] {
        assert_eq!(mix.on_demand(size), expected, "{mix:?} {size}");
    }
    assert!(mix(0, 0).is_spot() && !mix(0, 0).is_mixed() && !mix(3, 100).is_mixed());
    assert!(mix(2, 0).is_mixed() && mix(0, 50).is_mixed());
}

#[test]
fn growth_of_a_mixed_group_has_the_price_of_its_mix() {
    let mut scenario = without_pools(3);
    group(&mut scenario).mix = Some(CapacityMix { on_demand_base: 1, on_demand_percent: 0 });
    let kind = scenario.catalog.types.get_mut("m5.large").expect("a type");
    for offering in &mut kind.offerings {
        if offering.capacity_type == CapacityType::Spot {
            (offering.price, offering.estimated) = (Some(MicroUsd(30_000)), false);
        }
    }
    let hourly = scenario.plan().capacity.cluster_autoscaler[0].hourly;
    assert_eq!(hourly, Some(MicroUsd(96_000 + 2 * 30_000)));
}

#[test]
fn expander_priority_chooses_the_group() {
    let scenario = |expanders: &[&str], levels: &[(i64, &[&str])]| {
        let expanders = expanders.iter().map(|name| (*name).to_owned()).collect();
        let flags = AutoscalerFlags { expanders, namespace: Some("ca".to_owned()), ..discovery() };
        let mut scenario = cluster("kube-system", flags);
        scenario.desired.pools.clear();
        scenario.scale(1);
        let first = group(&mut scenario).clone();
        for (name, kind) in [("eks-spot-a", "m5.large"), ("eks-spot-b", "m5.4xlarge")] {
            let types = vec![kind.into()];
            let other = Group { name: name.into(), types, ..first.clone() };
            scenario.observed.groups.insert(name.into(), other);
        }
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let levels = levels.iter().map(|(priority, of)| (*priority, texts(of))).collect();
        let live = [("ca".into(), ExpanderPriorities::Levels(levels))].into();
        scenario.observed.scaling.expander_priorities = Some(live);
        scenario
    };
    let chosen = |scenario: &Scenario| {
        let plan = scenario.plan();
        let [row] = &plan.capacity.cluster_autoscaler[..] else { panic!("one group grows") };
        let names = std::iter::once(&row.address).chain(&row.instead);
        let name = |address: &Address| {
            address.as_str().trim_start_matches("autoscaling_group.").to_owned()
        };
        let names = names.map(name).collect::<Vec<_>>().join(" ");
        let found = plan.capacity.diagnostics.iter().find(|d| d.message.contains("expander"));
        (names, found.map(|found| found.message.clone()))
    };
    let spot: &[&str] = &["spot", "web"];
    for (expanders, levels, expected) in [
        (&["priority"][..], &[(10, &["^terraform-"][..]), (5, spot)][..], "terraform-web"),
        // Groups that no expression matches are not chosen while another one matches.
        (&["priority"], &[(1, &["spot-b$"])], "eks-spot-b"),
        (&["priority"], &[(9, &["spot"])], "eks-spot-a eks-spot-b"),
        (&["priority", "least-waste"], &[(9, &["spot"])], "eks-spot-a"),
        (&["least-waste", "priority"], &[(9, &["^eks"])], "eks-spot-a"),
        (&["priority", "least-waste"], &[(9, &["none"])], "eks-spot-a terraform-web"),
        (&["priority"], &[], "eks-spot-a eks-spot-b terraform-web"),
    ] {
        let found = chosen(&scenario(expanders, levels));
        assert_eq!(found, (expected.to_owned(), None), "{expanders:?} {levels:?}");
    }
    // Without its ConfigMap, the expander leaves the choice to the next one.
    let mut without = scenario(&["priority", "least-waste"], &[]);
    without.observed.scaling.expander_priorities = Some([].into());
    assert_eq!(chosen(&without), ("eks-spot-a terraform-web".to_owned(), None));
    // An unreadable ConfigMap is named, and predicts nothing.
    let all = "eks-spot-a eks-spot-b terraform-web";
    let (names, warning) = chosen(&scenario(&["priority", "least-waste"], &[(9, &["spot("])]));
    let warning = warning.expect("a warning");
    assert_eq!(names, all);
    assert!(warning.contains("`spot(` of priority 9 is no known expression"), "{warning}");
    // What is not read is unknown, and not absent; the repository then counts.
    let mut unread = scenario(&["priority"], &[(9, &["spot-b"])]);
    let read = unread.observed.scaling.expander_priorities.take().expect("read");
    let (names, warning) = chosen(&unread);
    assert_eq!(names, all);
    assert!(warning.expect("a warning").contains("is not known"));
    unread.desired.expander_priorities = read;
    assert_eq!(chosen(&unread), ("eks-spot-b".to_owned(), None));
}

#[test]
fn unreadable_flags_and_missing_groups_are_warnings() {
    let flags = AutoscalerFlags {
        groups: [("gone".into(), (0, 3))].into(),
        expanders: vec!["least-waste".to_owned(), "priority".to_owned()],
        unread: ["nodes".to_owned()].into(),
        ..AutoscalerFlags::default()
    };
    let warnings = |flags: AutoscalerFlags| {
        let plan = cluster("kube-system", flags).plan();
        let found = plan.capacity.diagnostics.into_iter();
        let of_one = found.filter(|d| d.object == "Deployment kube-system/cluster-autoscaler");
        of_one.map(|d| d.message).collect::<Vec<_>>()
    };
    let found = warnings(flags);
    for part in ["--nodes cannot be read", "names gone, which is no", "expander priority"] {
        assert!(found.iter().any(|message| message.contains(part)), "{part}: {found:?}");
    }
    assert_eq!(found.len(), 3);
    assert!(warnings(AutoscalerFlags::default())[0].contains("names no node groups"));
    assert_eq!(warnings(discovery()), [""; 0]);
    let elsewhere = [("k8s.io/cluster-autoscaler/other".to_owned(), None)].into();
    let flags = AutoscalerFlags { discovery: vec![elsewhere], ..AutoscalerFlags::default() };
    let found = warnings(flags);
    assert!(found.len() == 1 && found[0].contains("selects no group"), "{found:?}");
}

/// A Deployment that only runs has no file to name.
#[test]
fn observed_deployment_precedes_the_declared_one() {
    let mut scenario = without_pools(2);
    let id: WorkloadId = deployment("kube-system", "cluster-autoscaler");
    let flags =
        AutoscalerFlags { groups: [(GROUP.into(), (0, 1))].into(), ..AutoscalerFlags::default() };
    let template =
        PodTemplate { cluster_autoscaler: Some(Box::new(flags)), ..pods::template(0, 0) };
    scenario.declare(id, crate::model::desired::Scale::Replicas(1), template);
    assert_eq!(served(&scenario.plan()), (2, 0), "the flags that run count");
    scenario.observed.workloads.clear();
    assert_eq!(served(&scenario.plan()), (1, 1), "then those that the plan delivers");
}
