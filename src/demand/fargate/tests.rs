use std::sync::Arc;

use super::*;
use crate::demand::DemandMode;
use crate::model::fargate::{FARGATE, ProfileSelector};
use crate::model::ids::WorkloadKind;
use crate::model::pod::{Container, HostPort, Volume, VolumeSource};
use crate::model::requirement::label;
use crate::model::units::{Bytes, MilliCpu};
use crate::testing::Story;

/// A repository with one Deployment, `web/api` of 3 pods, and a profile that takes its namespace.
fn story() -> Story {
    let mut story = Story::new(&["m5.large"], 500, 512);
    story.scale(3);
    let namespace = workload(&story).namespace.to_string();
    let selectors = vec![ProfileSelector { namespace, labels: [].into() }];
    let profile = FargateProfile { name: "web".into(), origin: None, selectors };
    story.desired.fargate_profiles.insert("web".into(), profile);
    story
}

fn workload(story: &Story) -> WorkloadId {
    story.desired.workloads.keys().next().expect("one workload").clone()
}

fn edit(story: &mut Story, edit: impl FnOnce(&mut PodTemplate)) {
    let workload = story.desired.workloads.values_mut().next().expect("one workload");
    edit(Arc::make_mut(&mut workload.template));
}

fn demand(story: &Story) -> Demand {
    Demand::build(&story.desired, &story.observed, DemandMode::Live)
}

/// Pods that need nodes, pods for Fargate, and the problems in words.
fn split(story: &Story) -> (u32, u32, Vec<String>) {
    let demand = demand(story);
    let on_nodes = demand.groups.iter().map(|group| group.counts.planned).sum();
    let on_fargate = demand.fargate.iter().map(FargatePods::pods_on_fargate).sum();
    (on_nodes, on_fargate, demand.problems.into_iter().map(|p| p.message).collect())
}

#[test]
fn what_a_profile_takes_needs_no_node() {
    let story = story();
    let demand = demand(&story);
    assert!(demand.groups.is_empty(), "nobody plans room for it");
    let [taken] = demand.fargate.as_slice() else { panic!("{:?}", demand.fargate) };
    assert_eq!((taken.pods, taken.counts.planned), (3, 3));
    assert_eq!(taken.profile.as_deref(), Some("web"));
    assert_eq!(taken.size, Ok(FargateSize { cpu_milli: 500, memory_mib: 1024 }));
}

#[test]
fn who_stays_on_ec2_although_a_profile_matches() {
    type Edit = fn(&mut PodTemplate);
    let cases: [(&str, Edit, (u32, u32), &str); 5] = [
        (
            "the annotation opts out",
            |t| drop(t.annotations.insert(COMPUTE_TYPE.into(), EC2.into())),
            (3, 0),
            "",
        ),
        (
            "a profile is asked for that is not there",
            |t| drop(t.labels.insert(PROFILE.into(), "other".into())),
            (3, 0),
            "there is no such profile",
        ),
        (
            "the profile asked for is the one that matches",
            |t| drop(t.labels.insert(PROFILE.into(), "web".into())),
            (0, 3),
            "",
        ),
        (
            "an annotation chooses nothing",
            |t| drop(t.annotations.insert(PROFILE.into(), "other".into())),
            (0, 3),
            "chooses no profile",
        ),
        ("a pod names its node itself", |t| t.spec.node_name = Some("n1".into()), (3, 0), ""),
    ];
    for (rule, change, expected, problem) in cases {
        let mut story = story();
        edit(&mut story, change);
        let (on_nodes, on_fargate, problems) = split(&story);
        assert_eq!((on_nodes, on_fargate), expected, "{rule}");
        let said = problems.iter().any(|text| text.contains(problem));
        assert!(problem.is_empty() && problems.is_empty() || said, "{rule}: {problems:?}");
    }
}

#[test]
fn an_annotation_without_a_matching_profile_is_pointed_out() {
    let mut story = story();
    story.desired.fargate_profiles.clear();
    edit(&mut story, |t| drop(t.annotations.insert(PROFILE.into(), "web".into())));
    let (on_nodes, on_fargate, problems) = split(&story);
    assert_eq!((on_nodes, on_fargate), (3, 0));
    assert!(problems[0].contains("no profile matches the pods"), "{problems:?}");
}

#[test]
fn what_fargate_cannot_run_is_stuck_and_never_ec2_demand() {
    type Edit = fn(&mut PodTemplate);
    let cases: [(&str, Edit, &str); 6] = [
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
        let mut story = story();
        edit(&mut story, change);
        let demand = demand(&story);
        assert!(demand.groups.is_empty(), "{rule}");
        assert_eq!(
            (demand.fargate[0].pods_on_fargate(), demand.fargate[0].rejected_pods()),
            (0, 3),
            "{rule}"
        );
        let errors = demand.problems.iter().filter(|p| p.severity == Severity::Error);
        let said = errors.filter(|p| p.message.contains(problem) && p.hint.is_some()).count();
        assert_eq!(said, 1, "{rule}: {:?}", demand.problems);
    }
}

#[test]
fn what_is_larger_than_the_table_is_stuck() {
    for (cpu, gib, fits) in [(16_000, 119, true), (16_000, 120, false), (17_000, 1, false)] {
        let requests =
            Resources { cpu: MilliCpu(cpu), memory: Bytes::gib(gib), ..Resources::default() };
        let shape = PodShape { requests, ..demand_shape() };
        assert_eq!(fargate_size(&shape, &PodSpec::default()).is_ok(), fits, "{cpu} {gib}");
    }
}

fn demand_shape() -> PodShape {
    let mut story = story();
    story.desired.fargate_profiles.clear();
    (*demand(&story).groups[0].shape).clone()
}

/// Marks a live pod as one that Fargate runs.
fn on_fargate(story: &mut Story, name: &str) {
    story.bind(name.into());
    let taken = Arc::new(story.desired.workloads.values().next().expect("one").template.clone());
    let key = format!("{name}-template");
    let mut template = (**taken).clone();
    template.spec.scheduler_name = Some(SCHEDULER.into());
    story.observed.templates.insert(key.clone(), Arc::new(template));
    let id = workload(story);
    let pod = Arc::make_mut(story.observed.pods.last_mut().expect("bound"));
    (pod.owner, pod.template) = (Some(id), key);
}

fn on_ec2(story: &mut Story, name: &str) {
    story.bind(name.into());
    let template = story.desired.workloads.values().next().expect("one").template.clone();
    story.observed.templates.insert("ec2".into(), template);
    let id = workload(story);
    let pod = Arc::make_mut(story.observed.pods.last_mut().expect("bound"));
    (pod.owner, pod.template) = (Some(id), "ec2".into());
}

#[test]
fn pods_stay_where_they_run_until_they_are_made_anew() {
    let mut story = story();
    on_ec2(&mut story, "n1");
    on_ec2(&mut story, "n1");
    on_fargate(&mut story, "fargate-1");
    let demand = demand(&story);
    assert_eq!(demand.groups[0].counts.planned, 2, "they keep their room");
    assert_eq!(demand.groups[0].running, [("n1".into(), 2)].into());
    assert_eq!(demand.fargate[0].pods, 1);
    assert_eq!(demand.fargate[0].counts.planned, 3, "of the workload's pods");
    assert_eq!(demand.planned(&demand.groups[0]), 3);
    let running: Vec<u32> = demand.fargate[0].running.values().copied().collect();
    assert_eq!(running, [1]);
}

#[test]
fn pods_that_run_on_fargate_stay_there_although_nobody_tells_the_profile() {
    let mut story = story();
    story.desired.fargate_profiles.clear();
    on_fargate(&mut story, "fargate-1");
    let (on_nodes, on_fargate, _) = split(&story);
    assert_eq!((on_nodes, on_fargate), (2, 1), "what is new may need a node");
}

#[test]
fn pods_that_only_the_world_knows_count_as_what_runs_them() {
    let mut story = story();
    story.desired.fargate_profiles.clear();
    on_fargate(&mut story, "fargate-1");
    story.desired.workloads.clear();
    let demand = demand(&story);
    assert!(demand.groups.is_empty());
    assert_eq!((demand.fargate[0].pods_on_fargate(), &demand.fargate[0].origin), (1, &None));
}

#[test]
fn daemons_are_never_taken() {
    let mut story = story();
    let (id, mut declared) = story.desired.workloads.pop_first().expect("one workload");
    declared.id = WorkloadId { kind: WorkloadKind::DaemonSet, ..id };
    declared.scale = crate::model::desired::Scale::PerNode;
    story.desired.workloads.insert(declared.id.clone(), declared);
    let demand = demand(&story);
    assert_eq!((demand.daemons.len(), demand.fargate.len()), (1, 0));
}

#[test]
fn a_profile_of_the_world_takes_pods_too_and_the_repository_has_the_last_word() {
    let mut story = story();
    let declared = story.desired.fargate_profiles.remove("web").expect("declared");
    story.observed.fargate_profiles.insert("web".into(), declared.clone());
    assert_eq!(split(&story).1, 3, "the world tells it");
    let selectors = vec![ProfileSelector { namespace: "else".into(), labels: [].into() }];
    story.desired.fargate_profiles.insert("web".into(), FargateProfile { selectors, ..declared });
    assert_eq!(split(&story).0, 3, "the repository changes it");
}

#[test]
fn a_node_is_fargates_by_its_label_or_its_name() {
    let mut story = Story::new(&["m5.large"], 500, 1);
    story.step(1);
    let node = story.observed.nodes.values_mut().next().expect("launched");
    assert!(!node.is_fargate());
    node.labels.extend([label(COMPUTE_TYPE, FARGATE)]);
    assert!(node.is_fargate());
    assert!(is_fargate_name(&"fargate-ip-10-0-0-1.ec2.internal".into()));
    assert!(!is_fargate_name(&"ip-10-0-0-1.ec2.internal".into()));
}
