//! Live pods by workload: their number, their nodes and their requests.
//!
//! The repository states the requests of a workload's pods. Live pods may request more, because a
//! webhook changed them during admission or because they were resized in place. A plan with the
//! requests of the template would then use nodes that are too small.
//!
//! Pods of an older template may also be larger, but the plan ignores them. The template of the
//! controller distinguishes the two cases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::PodShape;
use super::queues::Queues;
use super::shape::{ShapeContext, live_requests, pod_shape};
use crate::model::desired::{Problem, Scale, Workload};
use crate::model::ids::{NodeName, WorkloadId, WorkloadKind};
use crate::model::observed::{JobProgress, LiveWorkload, Observed, Pod, PodPhase};
use crate::model::pod::PodTemplate;
use crate::model::units::Resources;

/// Active pods by the workload at the top of their owners. A pod without an owner is its own
/// workload.
pub(super) struct LivePods<'a> {
    pub(super) observed: &'a Observed,
    context: &'a ShapeContext<'a>,
    pub(super) by_owner: BTreeMap<WorkloadId, Vec<&'a Pod>>,
    /// Active pods that Kueue does not let start. They are in `by_owner` only if all pods of their
    /// workload are.
    pub(super) held: BTreeMap<WorkloadId, Vec<&'a Pod>>,
    pub(super) queues: Queues<'a>,
    /// Number of finished pods: succeeded pods, and failed bare pods.
    finished: BTreeMap<WorkloadId, u32>,
    workloads: BTreeMap<&'a WorkloadId, &'a LiveWorkload>,
}

impl<'a> LivePods<'a> {
    pub(super) fn new(observed: &'a Observed, context: &'a ShapeContext<'a>) -> Self {
        let mut by_owner: BTreeMap<WorkloadId, Vec<&Pod>> = BTreeMap::new();
        let mut held: BTreeMap<WorkloadId, Vec<&Pod>> = BTreeMap::new();
        let mut finished: BTreeMap<WorkloadId, u32> = BTreeMap::new();
        let queues = Queues::new(observed);
        for (owner, pods) in observed.pod_runs() {
            let pods = pods.iter().map(|pod| &**pod).filter(|pod| !pod.mirror);
            let is_finished = |pod: &&Pod| {
                pod.phase == PodPhase::Succeeded
                    || pod.phase == PodPhase::Failed && owner.kind == WorkloadKind::Pod
            };
            let (active, ended): (Vec<&Pod>, Vec<&Pod>) = pods.partition(|pod| pod.is_active());
            let ended = u32::try_from(ended.iter().filter(|pod| is_finished(pod)).count());
            if let Ok(ended @ 1..) = ended {
                *finished.entry(owner.clone()).or_insert(0) += ended;
            }
            let (waiting, free): (Vec<&Pod>, Vec<&Pod>) =
                active.into_iter().partition(|pod| queues.holds(pod));
            if !waiting.is_empty() {
                held.entry(owner.clone()).or_default().extend(waiting);
            }
            if !free.is_empty() {
                by_owner.entry(owner).or_default().extend(free);
            }
        }
        for (owner, pods) in &held {
            by_owner.entry(owner.clone()).or_insert_with(|| pods.clone());
        }
        let workloads = observed.workloads.iter().map(|live| (&live.id, live)).collect();
        Self { observed, context, by_owner, held, queues, finished, workloads }
    }

    /// Returns true if the workload itself was observed.
    pub(super) fn has_workload(&self, id: &WorkloadId) -> bool {
        self.workloads.contains_key(id)
    }

    /// Returns the active pods of a workload.
    pub(super) fn pods_of(&self, id: &WorkloadId) -> &[&'a Pod] {
        self.by_owner.get(id).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of active pods of a workload, bound or not.
    pub(super) fn active_count(&self, id: &WorkloadId) -> u32 {
        u32::try_from(self.pods_of(id).len()).unwrap_or(u32::MAX)
    }

    /// Returns the observed `replicas` setting of a workload; `None` if it was not observed.
    pub(super) fn specified_replicas(&self, id: &WorkloadId) -> Option<u32> {
        self.workloads.get(id).map(|live| live.replicas)
    }

    /// Returns the number of finished pods of a workload. Its controller does not replace them. The
    /// status of a Job counts pods that no longer exist as well. A Job that ended has no pod to come.
    pub(super) fn finished_count(&self, id: &WorkloadId) -> u32 {
        let seen = self.finished.get(id).copied().unwrap_or(0);
        match self.workloads.get(id).and_then(|live| live.job) {
            Some(JobProgress { ended: true, .. }) => u32::MAX,
            Some(JobProgress { succeeded, ended: false }) => seen.max(succeeded),
            None => seen,
        }
    }

    /// Returns the requests of a live pod.
    pub(super) fn requests(&self, pod: &Pod, template: &PodTemplate) -> Resources {
        live_requests(pod, template, self.context)
    }

    pub(super) fn running_by_node(&self, id: &WorkloadId) -> BTreeMap<NodeName, u32> {
        let mut counts = BTreeMap::new();
        let bound = self.by_owner.get(id).into_iter().flatten().filter_map(|pod| pod.node.as_ref());
        for node in bound {
            *counts.entry(node.clone()).or_insert(0) += 1;
        }
        counts
    }

    /// Returns the node of pods that set `nodeName` to `node`, with the number of pods that fit
    /// beside the pods of other workloads. The result is empty if the node does not exist.
    pub(super) fn running_on_named_node(
        &self,
        id: &WorkloadId,
        node: &str,
        pods: u32,
        requests: &Resources,
    ) -> BTreeMap<NodeName, u32> {
        let Some(node) = self.observed.nodes.get(node) else { return BTreeMap::new() };
        let others = self.by_owner.iter().filter(|(owner, _)| *owner != id);
        let here =
            others.flat_map(|(_, pods)| pods).filter(|p| p.node.as_ref() == Some(&node.name));
        let used = here
            .map(|pod| live_requests(pod, self.template(pod), self.context))
            .fold(Resources::default(), |sum, requests| sum.plus(&requests));
        let fits = requests.copies_in(&node.allocatable.minus(&used), i64::from(pods));
        let fits = u32::try_from(fits).unwrap_or(0);
        [(node.name.clone(), fits)].into_iter().filter(|(_, pods)| *pods > 0).collect()
    }

    /// Returns one shape for all live pods of an undeclared workload: the shape of the youngest
    /// pod, with the maximum requests of all pods. Several templates may run side by side.
    pub(super) fn shape(&self, id: &WorkloadId, pods: &[&Pod]) -> Option<Arc<PodShape>> {
        let youngest = pods.iter().max_by_key(|pod| (pod.created_at, &pod.name))?;
        let requests = self.distinct_requests(pods).into_iter().reduce(|a, b| a.at_least(&b))?;
        let is_daemon = id.kind == WorkloadKind::DaemonSet;
        let shape = |pod: &Pod| {
            let template = self.queues.opened(pod, self.template(pod));
            if is_daemon {
                pod_shape(&pod.namespace, &without_node_name(&template), self.context)
            } else {
                pod_shape(&pod.namespace, &template, self.context)
            }
        };
        let pinned =
            id.kind == WorkloadKind::Pod || pods.iter().any(|pod| shape(pod).do_not_disrupt);
        let youngest = shape(youngest).spread_by_default(id.kind);
        Some(Arc::new(PodShape { requests, do_not_disrupt: pinned, ..youngest }))
    }

    /// Returns the shape to plan a declared workload with, and a warning if live pods request more
    /// than `stated`, the shape in the repository.
    ///
    /// Live requests apply unless the controller's template differs from the repository, because a
    /// rollout replaces the pods then. If that template was not observed, they apply to DaemonSets
    /// only; other workloads get the warning alone.
    ///
    /// For a DaemonSet, the largest pod counts, as in Karpenter. For other workloads, the minimum
    /// over all pods counts, so that one resized pod does not enlarge the others. `is_sized` is
    /// true if a vertical autoscaler decides the requests. Live requests then always apply.
    pub(super) fn with_live_requests(
        &self,
        workload: &Workload,
        stated: PodShape,
        is_sized: bool,
    ) -> (PodShape, Option<Problem>) {
        let pods = self.pods_of(&workload.id);
        let in_controller = self.controller_requests(workload);
        let rolls_out = in_controller.as_ref().is_some_and(|known| *known != stated.requests);
        let is_daemon = workload.scale == Scale::PerNode;
        let common = if is_daemon { Resources::at_least } else { min_requests };
        let live = self.distinct_requests(pods).into_iter().reduce(|a, b| common(&a, &b));
        let enlarged = live.map(|live| stated.requests.at_least(&live));
        if is_sized {
            // A vertical autoscaler updates the pods one by one. Until then they need their current
            // requests.
            let requests = enlarged.unwrap_or_else(|| stated.requests.clone());
            return (PodShape { requests, ..stated }, None);
        }
        let Some(enlarged) = enlarged.filter(|enlarged| !rolls_out && *enlarged != stated.requests)
        else {
            return (stated, None);
        };
        let counts = is_daemon || in_controller.is_some();
        let warning = Self::larger_requests_warning(workload, &stated.requests, &enlarged, counts);
        let requests = if counts { enlarged } else { stated.requests.clone() };
        (PodShape { requests, ..stated }, Some(warning))
    }

    fn larger_requests_warning(
        workload: &Workload,
        stated: &Resources,
        live: &Resources,
        counts: bool,
    ) -> Problem {
        let (message, hint) = if counts {
            let message = format!(
                "its pods request {live}, more than the {stated} of its template; planned with \
                 the requests of the pods"
            );
            (message, "write into the template what a webhook or a resize adds")
        } else {
            let message = format!(
                "its pods request {live}, more than the {stated} of its template; planned with \
                 the template because the live template was not observed"
            );
            (message, "if this is no change on its way, write into the template what they need")
        };
        Problem::warning(
            workload.origin.clone(),
            format!("{} {}", workload.id.kind, workload.id),
            message,
        )
        .hint(hint)
    }

    /// Returns the requests of the controller's own template; `None` if it was not observed.
    fn controller_requests(&self, workload: &Workload) -> Option<Resources> {
        let key = self.workloads.get(&workload.id)?.template.as_ref()?;
        let template = self.observed.templates.get(key)?;
        Some(pod_shape(&workload.id.namespace, template, self.context).requests)
    }

    /// Returns the distinct requests of pods. Pods of one template count once, unless the kubelet
    /// granted them resources of their own.
    fn distinct_requests(&self, pods: &[&Pod]) -> Vec<Resources> {
        let mut seen = BTreeSet::new();
        let mut requests = Vec::new();
        for pod in pods {
            if !pod.granted.is_empty() || seen.insert((&pod.namespace, &*pod.template)) {
                requests.push(live_requests(pod, self.template(pod), self.context));
            }
        }
        requests
    }

    fn template(&self, pod: &Pod) -> &PodTemplate {
        static EMPTY: std::sync::LazyLock<PodTemplate> =
            std::sync::LazyLock::new(PodTemplate::default);
        self.observed.templates.get(&*pod.template).map_or(&EMPTY, |template| template)
    }
}

/// Returns the template of a DaemonSet's pod without the node name that the DaemonSet controller
/// adds to it. The template of the controller has no other difference.
fn without_node_name(template: &PodTemplate) -> PodTemplate {
    let mut template = template.clone();
    let required = &mut template.spec.node_affinity.required;
    if let Some(terms) = required {
        for term in terms.iter_mut() {
            term.fields.clear();
        }
        // A term that held only the node name requires nothing else.
        if terms.iter().any(|term| term.expressions.is_empty()) {
            *required = None;
        }
    }
    template
}

/// Returns the minimum of both, for each resource.
fn min_requests(a: &Resources, b: &Resources) -> Resources {
    a.minus(&a.minus(b).at_least(&Resources::default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::desired::Desired;
    use crate::testing::pods::template_requesting;
    use crate::testing::world::live_workload;
    use crate::testing::{Scenario, workload_id};

    fn requesting(cpu: i64) -> Arc<PodTemplate> {
        Arc::new(template_requesting(&[("cpu", cpu)]))
    }

    /// Returns the planned CPU request of a pod and the number of warnings. The repository requests
    /// 500m, the template of the controller `controller`, and the live pods `pods`.
    fn planned(kind: WorkloadKind, controller: Option<i64>, pods: &[i64]) -> (i64, usize) {
        let mut scenario = Scenario::new(&["m5.large"], 500, 1);
        scenario.desired = Desired::default();
        let id = WorkloadId { namespace: "web".into(), name: "api".into(), kind };
        let is_daemon = kind == WorkloadKind::DaemonSet;
        let scale = if is_daemon { Scale::PerNode } else { Scale::Replicas(2) };
        scenario.declare(id.clone(), scale, PodTemplate::clone(&requesting(500)));
        for cpu in pods {
            let template = format!("pod-{cpu}");
            scenario.observed.templates.insert(template.clone(), requesting(*cpu));
            scenario.bind("n1");
            let pod = scenario.last_pod();
            (pod.owner, pod.template) = (Some(id.clone()), template.into());
        }
        if let Some(cpu) = controller {
            scenario.observed.templates.insert("controller".into(), requesting(cpu));
        }
        scenario.observed.workloads.push(LiveWorkload {
            delivered: true,
            template: controller.map(|_| "controller".to_owned()),
            ..live_workload(&id, 2)
        });
        let demand = scenario.demand();
        let shapes = demand.groups.iter().map(|group| &group.shape);
        let shape = shapes.chain(demand.daemons.iter().map(|daemon| &daemon.shape)).next();
        (shape.expect("one workload").requests.cpu.0, demand.problems.len())
    }

    #[test]
    fn pods_changed_during_admission_count_with_live_requests() {
        use WorkloadKind::{DaemonSet, Deployment};
        for (rule, kind, controller, pods, expected) in [
            ("nothing runs", Deployment, Some(500), &[][..], (500, 0)),
            ("as declared", Deployment, Some(500), &[500, 500], (500, 0)),
            ("all pods were changed", Deployment, Some(500), &[800, 700], (700, 1)),
            ("one pod was changed", Deployment, Some(500), &[500, 900], (500, 0)),
            ("less than the template never counts", Deployment, Some(500), &[100], (500, 0)),
            ("pods of an older template", Deployment, Some(900), &[900, 900], (500, 0)),
            ("larger for an unknown reason", Deployment, None, &[900, 900], (500, 1)),
            ("case 15: the largest daemon", DaemonSet, Some(500), &[500, 900], (900, 1)),
            ("case 15: controller template unknown", DaemonSet, None, &[900], (900, 1)),
            ("daemons of an older template", DaemonSet, Some(900), &[900], (500, 0)),
        ] {
            assert_eq!(planned(kind, controller, pods), expected, "{rule}");
        }
    }

    #[test]
    fn resized_pod_counts_with_its_granted_resources() {
        let mut scenario = Scenario::new(&["m5.large"], 500, 1);
        scenario.desired.workloads.clear();
        scenario.run(&workload_id(), &"n1".into(), &requesting(500));
        Arc::make_mut(&mut scenario.observed.pods[0]).granted =
            [("app".to_owned(), [("cpu".into(), 800)].into())].into();
        let demand = scenario.demand();
        assert_eq!(demand.groups[0].shape.requests.cpu.0, 800);
    }

    #[test]
    fn status_of_a_job_counts_pods_that_no_longer_exist() {
        let planned = |completions: Option<u32>, job: Option<JobProgress>| {
            let mut scenario = Scenario::without_workloads(&["m5.large"]);
            let id = WorkloadId { kind: WorkloadKind::Job, ..workload_id() };
            let scale = Scale::Job { pods: 2, completions, suspended: false };
            scenario.declare(id.clone(), scale, template_requesting(&[("cpu", 500)]));
            scenario.observed.workloads.push(LiveWorkload { job, ..live_workload(&id, 2) });
            scenario.demand().groups[0].counts.planned
        };
        let at = |succeeded, ended| Some(JobProgress { succeeded, ended });
        for (rule, completions, job, expected) in [
            ("it has not started", Some(3), None, 2),
            ("two of three succeeded", Some(3), at(2, false), 1),
            ("complete", Some(3), at(3, true), 0),
            ("failed", Some(3), at(0, true), 0),
            ("a work queue that runs", None, at(0, false), 2),
            ("a work queue that failed", None, at(0, true), 0),
        ] {
            assert_eq!(planned(completions, job), expected, "{rule}");
        }
    }

    proptest::proptest! {
        #[test]
        fn min_requests_takes_each_minimum(a in 0_i64..9, b in 0_i64..9, c in 0_i64..9) {
            let resources = |cpu: i64, gpus: i64| Resources {
                cpu: crate::model::units::MilliCpu(cpu),
                extended: [("gpu".into(), gpus)].into_iter().filter(|(_, n)| *n > 0).collect(),
                ..Resources::default()
            };
            let minimum = min_requests(&resources(a, b), &resources(b, c));
            proptest::prop_assert_eq!(minimum, resources(a.min(b), b.min(c)));
        }
    }
}
