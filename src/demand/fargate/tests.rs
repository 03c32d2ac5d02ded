use std::sync::Arc;

use super::*;
use crate::demand::DemandMode;
use crate::model::desired::Severity;
use crate::model::fargate::{FARGATE, ProfileSelector};
use crate::model::ids::WorkloadKind;
use crate::model::pod::{Container, HostPort, Volume, VolumeSource};
use crate::model::requirement::label;
use crate::model::units::{Bytes, MilliCpu};
use crate::testing::Scenario;

/// Returns a scenario with one Deployment of 3 pods, and a profile that matches its namespace.
fn scenario() -> Scenario {
    let mut scenario = Scenario::new(&["m5.large"], 500, 512);
    scenario.scale(3);
    let namespace = workload(&scenario).namespace.to_string();
    let selectors = vec![ProfileSelector { namespace, labels: [].into() }];
    let profile = FargateProfile { name: "web".into(), origin: None, selectors };
    scenario.desired.fargate_profiles.insert("web".into(), profile);
    scenario
}

fn workload(scenario: &Scenario) -> WorkloadId {
    scenario.desired.workloads.keys().next().expect("one workload").clone()
}

fn edit(scenario: &mut Scenario, edit: impl FnOnce(&mut PodTemplate)) {
    edit(scenario.template());
}

fn demand(scenario: &Scenario) -> Demand {
    Demand::build(&scenario.desired, &scenario.observed, DemandMode::Live)
}

/// Returns the number of pods on nodes, the number of pods on Fargate, and the problem messages.
fn split(scenario: &Scenario) -> (u32, u32, Vec<String>) {
    let demand = demand(scenario);
    let on_nodes = demand.groups.iter().map(|group| group.counts.planned).sum();
    let on_fargate = demand.fargate.iter().map(FargatePods::pods_on_fargate).sum();
    (on_nodes, on_fargate, demand.problems.into_iter().map(|p| p.message).collect())
}

#[test]
fn matching_pods_need_no_node() {
    let scenario = scenario();
    let demand = demand(&scenario);
    assert!(demand.groups.is_empty(), "no capacity is planned for them");
    let [fargate_pods] = demand.fargate.as_slice() else { panic!("{:?}", demand.fargate) };
    assert_eq!((fargate_pods.pods, fargate_pods.counts.planned), (3, 3));
    assert_eq!(fargate_pods.profile.as_deref(), Some("web"));
    assert_eq!(fargate_pods.size, Ok(FargateSize { cpu_milli: 500, memory_mib: 1024 }));
}

#[test]
fn pods_stay_on_ec2_although_a_profile_matches() {
    type Edit = fn(&mut PodTemplate);
    let cases: [(&str, Edit, (u32, u32), &str); 5] = [
        (
            "the annotation opts out",
            |t| drop(t.annotations.insert(COMPUTE_TYPE.into(), EC2.into())),
            (3, 0),
            "",
        ),
        (
            "the label names a missing profile",
            |t| drop(t.labels.insert(PROFILE.into(), "other".into())),
            (3, 0),
            "there is no such profile",
        ),
        (
            "the label names the matching profile",
            |t| drop(t.labels.insert(PROFILE.into(), "web".into())),
            (0, 3),
            "",
        ),
        (
            "an annotation has no effect",
            |t| drop(t.annotations.insert(PROFILE.into(), "other".into())),
            (0, 3),
            "chooses no profile",
        ),
        ("the pod sets nodeName", |t| t.spec.node_name = Some("n1".into()), (3, 0), ""),
    ];
    for (rule, change, expected, problem) in cases {
        let mut scenario = scenario();
        edit(&mut scenario, change);
        let (on_nodes, on_fargate, problems) = split(&scenario);
        assert_eq!((on_nodes, on_fargate), expected, "{rule}");
        let is_reported = problems.iter().any(|text| text.contains(problem));
        assert!(problem.is_empty() && problems.is_empty() || is_reported, "{rule}: {problems:?}");
    }
}

#[test]
fn annotation_without_a_matching_profile_is_reported() {
    let mut scenario = scenario();
    scenario.desired.fargate_profiles.clear();
    edit(&mut scenario, |t| drop(t.annotations.insert(PROFILE.into(), "web".into())));
    let (on_nodes, on_fargate, problems) = split(&scenario);
    assert_eq!((on_nodes, on_fargate), (3, 0));
    assert!(problems[0].contains("no profile matches the pods"), "{problems:?}");
}

#[test]
fn pods_that_fargate_cannot_run_never_become_ec2_demand() {
    type Edit = fn(&mut PodTemplate);
    let cases: [(&str, Edit, &str); 8] = [
        ("privileged", |t| t.spec.containers[0].privileged = true, "is privileged"),
        (
            "a privileged init container",
            |t| {
                let name = "init".to_owned();
                let init = Container { name, privileged: true, ..Container::default() };
                t.spec.init_containers = vec![init];
            },
            "container init is privileged",
        ),
        (
            "Windows",
            |t| t.spec.node_selector = [label("kubernetes.io/os", "windows")].into(),
            "they admit no node with kubernetes.io/os: linux",
        ),
        (
            "Arm",
            |t| t.spec.node_selector = [label("kubernetes.io/arch", "arm64")].into(),
            "they admit no node with kubernetes.io/arch: amd64",
        ),
        ("hostNetwork", |t| t.spec.host_network = true, "hostNetwork"),
        (
            "hostPort",
            |t| {
                let port = HostPort { port: 80, protocol: "TCP".into(), ip: String::new() };
                t.spec.containers[0].host_ports = vec![port];
            },
            "hostPort 80",
        ),
        (
            "a GPU",
            |t| {
                let requests = &mut t.spec.containers[0].resources.requests;
                requests.insert("nvidia.com/gpu".into(), 1);
            },
            "nvidia.com/gpu",
        ),
        (
            "an EBS volume",
            |t| {
                let source = VolumeSource::Ebs("aws://us-east-1a/vol-1".into());
                t.spec.volumes = vec![Volume { name: "data".into(), source }];
            },
            "ebs.csi.aws.com",
        ),
    ];
    for (rule, change, problem) in cases {
        let mut scenario = scenario();
        edit(&mut scenario, change);
        let demand = demand(&scenario);
        assert!(demand.groups.is_empty(), "{rule}");
        assert_eq!(
            (demand.fargate[0].pods_on_fargate(), demand.fargate[0].rejected_pods()),
            (0, 3),
            "{rule}"
        );
        let errors = demand.problems.iter().filter(|p| p.severity == Severity::Error);
        let reported = errors.filter(|p| p.message.contains(problem) && p.hint.is_some()).count();
        assert_eq!(reported, 1, "{rule}: {:?}", demand.problems);
    }
}

#[test]
fn pods_above_the_largest_size_are_rejected() {
    for (cpu, gib, fits) in [(16_000, 119, true), (16_000, 120, false), (17_000, 1, false)] {
        let requests =
            Resources { cpu: MilliCpu(cpu), memory: Bytes::gib(gib), ..Resources::default() };
        let shape = PodShape { requests, ..demand_shape() };
        assert_eq!(fargate_size(&shape, &PodSpec::default()).is_ok(), fits, "{cpu} {gib}");
    }
}

fn demand_shape() -> PodShape {
    let mut scenario = scenario();
    scenario.desired.fargate_profiles.clear();
    (*demand(&scenario).groups[0].shape).clone()
}

/// Binds a pod to a Fargate node.
fn on_fargate(scenario: &mut Scenario, name: &str) {
    scenario.bind(name);
    let declared =
        Arc::new(scenario.desired.workloads.values().next().expect("one").template.clone());
    let key = format!("{name}-template");
    let mut template = (**declared).clone();
    template.spec.scheduler_name = Some(SCHEDULER.into());
    scenario.observed.templates.insert(key.clone(), Arc::new(template));
    let id = workload(scenario);
    let pod = scenario.last_pod();
    (pod.owner, pod.template) = (Some(id), key.into());
}

fn on_ec2(scenario: &mut Scenario, name: &str) {
    scenario.bind(name);
    let template = scenario.desired.workloads.values().next().expect("one").template.clone();
    scenario.observed.templates.insert("ec2".into(), template);
    let id = workload(scenario);
    let pod = scenario.last_pod();
    (pod.owner, pod.template) = (Some(id), "ec2".into());
}

#[test]
fn running_pods_keep_their_compute_type() {
    let mut scenario = scenario();
    on_ec2(&mut scenario, "n1");
    on_ec2(&mut scenario, "n1");
    on_fargate(&mut scenario, "fargate-1");
    let demand = demand(&scenario);
    assert_eq!(demand.groups[0].counts.planned, 2, "pods on EC2 keep their capacity");
    assert_eq!(demand.groups[0].running, [("n1".into(), 2)].into());
    assert_eq!(demand.fargate[0].pods, 1);
    assert_eq!(demand.fargate[0].counts.planned, 3, "all pods of the workload");
    assert_eq!(demand.planned(&demand.groups[0]), 3);
    let running: Vec<u32> = demand.fargate[0].running.values().copied().collect();
    assert_eq!(running, [1]);
}

#[test]
fn fargate_pods_stay_on_fargate_without_a_known_profile() {
    let mut scenario = scenario();
    scenario.desired.fargate_profiles.clear();
    on_fargate(&mut scenario, "fargate-1");
    let (on_nodes, on_fargate, _) = split(&scenario);
    assert_eq!((on_nodes, on_fargate), (2, 1), "new pods may need a node");
}

#[test]
fn undeclared_pods_count_by_their_compute_type() {
    let mut scenario = scenario();
    scenario.desired.fargate_profiles.clear();
    on_fargate(&mut scenario, "fargate-1");
    scenario.desired.workloads.clear();
    let demand = demand(&scenario);
    assert!(demand.groups.is_empty());
    assert_eq!((demand.fargate[0].pods_on_fargate(), &demand.fargate[0].origin), (1, &None));
}

#[test]
fn daemonsets_never_match_a_profile() {
    let mut scenario = scenario();
    let (id, mut declared) = scenario.desired.workloads.pop_first().expect("one workload");
    declared.id = WorkloadId { kind: WorkloadKind::DaemonSet, ..id };
    declared.scale = crate::model::desired::Scale::PerNode;
    scenario.desired.workloads.insert(declared.id.clone(), declared);
    let demand = demand(&scenario);
    assert_eq!((demand.daemons.len(), demand.fargate.len()), (1, 0));
}

#[test]
fn declared_profile_overrides_the_observed_one() {
    let mut scenario = scenario();
    let declared = scenario.desired.fargate_profiles.remove("web").expect("declared");
    scenario.observed.fargate_profiles.insert("web".into(), declared.clone());
    assert_eq!(split(&scenario).1, 3, "the observed profile matches");
    let selectors = vec![ProfileSelector { namespace: "else".into(), labels: [].into() }];
    scenario
        .desired
        .fargate_profiles
        .insert("web".into(), FargateProfile { selectors, ..declared });
    assert_eq!(split(&scenario).0, 3, "the declared profile does not match");
}

#[test]
fn fargate_node_is_identified_by_label_or_name() {
    let mut scenario = Scenario::new(&["m5.large"], 500, 1);
    scenario.step(1);
    let node = scenario.node();
    assert!(!node.is_fargate());
    node.labels.extend([label(COMPUTE_TYPE, FARGATE)]);
    assert!(node.is_fargate());
    assert!(is_fargate_name(&"fargate-ip-10-0-0-1.ec2.internal".into()));
    assert!(!is_fargate_name(&"ip-10-0-0-1.ec2.internal".into()));
}
