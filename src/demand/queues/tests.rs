//! Counts and shapes of pods that wait for Kueue.

use super::*;
use crate::demand::{Decider, Demand, DemandMode, PodGroup, Unsupported};
use crate::model::desired::{Concurrency, CronSchedule, Scale, Schedule};
use crate::model::observed::PodPhase;
use crate::model::pod::Toleration;
use crate::testing::pods::template_requesting;
use crate::testing::world::live_workload;
use crate::testing::{Scenario, workload_id};

const GATES: [&str; 2] = ["kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"];

fn id(kind: WorkloadKind) -> WorkloadId {
    WorkloadId { kind, ..workload_id() }
}

/// Returns a scenario that declares a workload of queue `team-a`.
fn scenario(kind: WorkloadKind, scale: Scale) -> Scenario {
    let mut scenario = Scenario::without_workloads(&["m5.large"]);
    scenario.declare(id(kind), scale, template_requesting(&[("cpu", 500)]));
    let declared = scenario.desired.workloads.get_mut(&id(kind)).expect("declared");
    declared.queue = Some("team-a".to_owned());
    let mut gated = template_requesting(&[("cpu", 500)]);
    gated.spec.scheduling_gates = GATES.map(str::to_owned).into();
    scenario.observed.templates.insert("gated".into(), Arc::new(gated));
    let free = template_requesting(&[("cpu", 500)]);
    scenario.observed.templates.insert("free".into(), Arc::new(free));
    scenario
}

/// Adds a pending pod and returns its UID.
fn pod(scenario: &mut Scenario, kind: WorkloadKind, template: &str) -> Uid {
    scenario.bind("n1");
    let pod = scenario.last_pod();
    (pod.owner, pod.node) = ((kind != WorkloadKind::Pod).then(|| id(kind)), None);
    pod.template = template.into();
    pod.uid.clone()
}

fn add(
    scenario: &mut Scenario,
    owner: Option<WorkloadId>,
    pods: &[&Uid],
    admission: QueueAdmission,
) {
    let queued = scenario.observed.scaling.queued.get_or_insert_default();
    let name = format!("w{}", queued.len());
    queued.push(QueuedWorkload {
        namespace: workload_id().namespace,
        name,
        queue: "team-a".to_owned(),
        owner,
        pods: pods.iter().map(|uid| (*uid).clone()).collect(),
        admission,
    });
}

fn admit(pods: u32, pool: &str) -> QueueAdmission {
    let node_labels = [("karpenter.sh/nodepool".into(), pool.into())].into();
    let tolerations = vec![Toleration { key: "batch".to_owned(), ..Toleration::default() }];
    QueueAdmission::Admitted { pods, flavor: QueueFlavor { node_labels, tolerations } }
}

fn wait() -> QueueAdmission {
    QueueAdmission::Waiting { because: "no quota".to_owned(), provisioning_check: None }
}

fn demand(scenario: &Scenario) -> Demand {
    Demand::build(&scenario.desired, &scenario.observed, DemandMode::Live)
}

/// Returns the only group of pods.
fn group(scenario: &Scenario) -> PodGroup {
    let [group] = demand(scenario).groups.try_into().expect("one group");
    group
}

fn because(group: &PodGroup) -> String {
    let Decider::Autoscaler { autoscaler, because, .. } = &group.decided_by else {
        panic!("{:?}", group.decided_by)
    };
    format!("{autoscaler}: {because}")
}

fn job() -> Scenario {
    scenario(WorkloadKind::Job, Scale::Job { pods: 4, completions: Some(4), suspended: false })
}

/// Returns a scenario with a Job in the cluster.
fn live_job() -> Scenario {
    let mut scenario = job();
    scenario.observed.workloads.push(live_workload(&id(WorkloadKind::Job), 0));
    scenario
}

#[test]
fn queued_job_counts_once_it_is_admitted() {
    let planned = |admission: Option<QueueAdmission>| {
        let mut scenario = live_job();
        scenario.observed.scaling.queued = Some(Vec::new());
        if let Some(admission) = admission {
            add(&mut scenario, Some(id(WorkloadKind::Job)), &[], admission);
        }
        let group = group(&scenario);
        assert_eq!(group.counts.ceiling, 4, "Kueue may admit all pods");
        (group.counts.planned, because(&group))
    };
    let queue = format!("LocalQueue {}/team-a", workload_id().namespace);
    assert_eq!(planned(None), (0, format!("{queue}: Kueue has not admitted it")));
    let why = format!("{queue}: Kueue has not admitted it: no quota");
    assert_eq!(planned(Some(wait())), (0, why));
    let why = format!("{queue}: Kueue has admitted 3 pods");
    assert_eq!(planned(Some(admit(3, "batch"))), (3, why), "partial admission");
    assert_eq!(planned(Some(admit(1_000_000_000, "batch"))).0, 4, "no more than the Job has");
}

#[test]
fn pods_of_an_admitted_job_count_once() {
    let mut scenario = live_job();
    add(&mut scenario, Some(id(WorkloadKind::Job)), &[], admit(4, "batch"));
    for _ in 0..3 {
        pod(&mut scenario, WorkloadKind::Job, "free");
    }
    assert_eq!(group(&scenario).counts.planned, 4, "one more is about to be created");
    let shape = group(&scenario).shape;
    assert!(shape.tolerations.iter().any(|toleration| toleration.key == "batch"));
}

#[test]
fn workload_of_an_absent_job_does_not_count() {
    let mut scenario = job();
    add(&mut scenario, Some(id(WorkloadKind::Job)), &[], admit(4, "batch"));
    assert_eq!(group(&scenario).counts.planned, 0);
}

#[test]
fn pods_count_without_kueue_and_after_a_lost_workload() {
    let mut scenario = job();
    pod(&mut scenario, WorkloadKind::Job, "free");
    assert_eq!(group(&scenario).counts.planned, 1, "a pod without a gate needs a node");
}

#[test]
fn queued_deployment_counts_the_pods_that_may_start() {
    let kind = WorkloadKind::Deployment;
    let mut scenario = scenario(kind, Scale::Replicas(3));
    let [first, second] = [(); 2].map(|()| pod(&mut scenario, kind, "gated"));
    assert_eq!(group(&scenario).counts.planned, 0, "the Workloads are not known");
    add(&mut scenario, None, &[&first], admit(1, "batch"));
    add(&mut scenario, None, &[&second], wait());
    let found = group(&scenario);
    assert_eq!(found.counts.planned, 1);
    assert!(because(&found).ends_with("Kueue has admitted 1 pod: no quota"), "{}", because(&found));
    pod(&mut scenario, kind, "free");
    assert_eq!(group(&scenario).counts.planned, 2, "a started pod and an admitted one");
}

#[test]
fn queue_that_only_the_cluster_knows_counts_too() {
    let kind = WorkloadKind::Deployment;
    let mut scenario = scenario(kind, Scale::Replicas(3));
    scenario.desired.workloads.get_mut(&id(kind)).expect("declared").queue = None;
    assert_eq!(group(&scenario).counts.planned, 3);
    pod(&mut scenario, kind, "gated");
    assert_eq!(group(&scenario).counts.planned, 0);
}

#[test]
fn undeclared_pods_get_room_once_they_are_admitted() {
    let mut scenario = scenario(WorkloadKind::Pod, Scale::Replicas(1));
    scenario.desired.workloads.clear();
    let uid = pod(&mut scenario, WorkloadKind::Pod, "gated");
    let gated = group(&scenario);
    assert_eq!(gated.shape.unsupported, [Unsupported::SchedulingGates]);
    let reason = |scenario: &Scenario| queue_reasons(&scenario.observed)[&gated.workload].clone();
    let unread = "the queues of Kueue were not read, so whether the pod may start is not known";
    assert_eq!(reason(&scenario), unread);
    scenario.observed.scaling.queued = Some(Vec::new());
    assert_eq!(reason(&scenario), "Kueue has not admitted the pod");
    let because = "its ResourceFlavor spot was not read".to_owned();
    add(&mut scenario, None, &[&uid], QueueAdmission::Unknown { because });
    assert_eq!(
        reason(&scenario),
        format!(
            "LocalQueue {}/team-a of Kueue has admitted the pod, but its ResourceFlavor spot was \
             not read",
            gated.workload.namespace
        )
    );
    scenario.observed.scaling.queued = Some(Vec::new());
    add(&mut scenario, None, &[&uid], admit(1, "batch"));
    let admitted = group(&scenario);
    assert!(admitted.shape.unsupported.is_empty());
    assert!(admitted.shape.tolerations.iter().any(|toleration| toleration.key == "batch"));
    let template = Arc::make_mut(scenario.observed.templates.get_mut("gated").expect("known"));
    template.spec.scheduling_gates.push("example.com/other".to_owned());
    assert!(!group(&scenario).shape.unsupported.is_empty(), "another controller holds it back");
}

#[test]
fn waiting_pods_do_not_hide_started_ones() {
    let kind = WorkloadKind::Deployment;
    let mut scenario = scenario(kind, Scale::Replicas(3));
    scenario.desired.workloads.clear();
    pod(&mut scenario, kind, "free");
    pod(&mut scenario, kind, "gated");
    pod(&mut scenario, kind, "gated");
    let found = group(&scenario);
    assert!(found.shape.unsupported.is_empty());
    assert_eq!(found.counts.planned, 1);
    let waits = demand(&scenario).queue_waits;
    assert_eq!(waits[&found.workload], QueueWait { pods: 2, is_read: false });
}

#[test]
fn unread_queues_are_unknown_and_not_empty() {
    let mut scenario = live_job();
    let preview = demand(&scenario);
    assert!(preview.unresolved.is_empty(), "nothing was observed");
    assert!(because(&preview.groups[0]).ends_with("the queues of Kueue were not read"));
    pod(&mut scenario, WorkloadKind::Job, "free");
    pod(&mut scenario, WorkloadKind::Job, "gated");
    let found = demand(&scenario);
    let counts = found.groups[0].counts;
    assert_eq!((counts.planned, counts.ceiling), (1, 4), "only the pod that may start");
    assert_eq!(found.unresolved[0].reason, "the queues of Kueue were not read");
    assert!(!found.queue_waits[&id(WorkloadKind::Job)].is_read);
    scenario.observed.scaling.queued = Some(Vec::new());
    assert!(demand(&scenario).unresolved.is_empty());
}

#[test]
fn unknown_place_of_admitted_pods_is_unresolved() {
    let mut scenario = live_job();
    let because = "its ResourceFlavor spot was not read".to_owned();
    let unknown = QueueAdmission::Unknown { because };
    add(&mut scenario, Some(id(WorkloadKind::Job)), &[], unknown);
    let found = demand(&scenario);
    assert_eq!(found.groups[0].counts.planned, 0);
    let reason = "Kueue has admitted it, but its ResourceFlavor spot was not read";
    assert_eq!(found.unresolved[0].reason, reason);
}

#[test]
fn jobs_of_a_cron_job_add_up() {
    let kind = WorkloadKind::CronJob;
    let schedule = CronSchedule {
        schedule: Schedule::parse("0 2 1 1 *").expect("cron"),
        concurrency: Concurrency::Allow,
        deadline: None,
    };
    let mut scenario = scenario(kind, Scale::CronJob { pods: 2, suspended: false, schedule });
    for _ in 0..3 {
        add(&mut scenario, Some(id(kind)), &[], admit(1_000_000_000, "batch"));
    }
    add(&mut scenario, Some(id(kind)), &[], wait());
    let found = group(&scenario);
    assert_eq!(found.counts.planned, 6, "three of four Jobs are admitted");
    assert!(found.shape.tolerations.iter().any(|toleration| toleration.key == "batch"));
}

#[test]
fn workload_admits_pods_of_its_namespace_only() {
    let mut scenario = scenario(WorkloadKind::Pod, Scale::Replicas(1));
    scenario.desired.workloads.clear();
    let uid = pod(&mut scenario, WorkloadKind::Pod, "gated");
    add(&mut scenario, None, &[&uid], admit(1_000_000_000, "batch"));
    assert!(group(&scenario).shape.unsupported.is_empty());
    let queued = scenario.observed.scaling.queued.as_mut().expect("read");
    queued[0].namespace = "elsewhere".into();
    assert!(!group(&scenario).shape.unsupported.is_empty());
}

#[test]
fn several_flavors_are_a_warning() {
    let kind = WorkloadKind::Deployment;
    let mut scenario = scenario(kind, Scale::Replicas(2));
    let [first, second] = [(); 2].map(|()| pod(&mut scenario, kind, "gated"));
    add(&mut scenario, None, &[&first], admit(1, "spot"));
    add(&mut scenario, None, &[&second], admit(1, "on-demand"));
    let found = demand(&scenario);
    assert_eq!(found.groups[0].counts.planned, 0, "where they may run is not known");
    assert!(found.problems[0].message.contains("several ResourceFlavors"));
    assert!(found.unresolved[0].reason.contains("several ResourceFlavors"));
    scenario.last_pod().node = Some("n1".into());
    assert_eq!(demand(&scenario).groups[0].counts.planned, 1, "a pod that runs counts");
}

#[test]
fn finished_pod_no_longer_waits() {
    let mut scenario = scenario(WorkloadKind::Pod, Scale::Replicas(1));
    scenario.observed.scaling.queued = Some(Vec::new());
    assert!(because(&group(&scenario)).contains("Kueue has not admitted it"));
    let name = id(WorkloadKind::Pod).name;
    pod(&mut scenario, WorkloadKind::Pod, "free");
    let finished = scenario.last_pod();
    (finished.name, finished.phase) = (name, PodPhase::Succeeded);
    let found = group(&scenario);
    assert_eq!((found.counts.planned, found.decided_by), (0, Decider::Git));
}
