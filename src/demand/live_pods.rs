//! What runs, by workload: how many pods, where, and what they ask for.
//!
//! The repository says what a workload's pods ask for. What runs may ask for more: a webhook
//! changed the pods on their way in, or they were resized in place since. Then planning with the
//! template alone would plan nodes that are too small. Larger pods may as well be left from before
//! a change of the template, and that is no reason to plan for them: the template of the controller
//! tells.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::PodShape;
use super::shape::{ShapeContext, live_requests, pod_shape};
use crate::model::desired::{Problem, Scale, Severity, Workload};
use crate::model::ids::{NodeName, WorkloadId, WorkloadKind};
use crate::model::observed::{LiveWorkload, Observed, Pod, PodPhase};
use crate::model::pod::PodTemplate;
use crate::model::units::Resources;

/// Active pods by the workload at the top of their owners; a pod without one is its own workload.
pub(super) struct LivePods<'a> {
    observed: &'a Observed,
    context: &'a ShapeContext<'a>,
    pub(super) by_owner: BTreeMap<WorkloadId, Vec<&'a Pod>>,
    /// Pods that are done: those that succeeded, and bare pods that ended in any way.
    finished: BTreeMap<WorkloadId, u32>,
    workloads: BTreeMap<&'a WorkloadId, &'a LiveWorkload>,
}

impl<'a> LivePods<'a> {
    pub(super) fn new(observed: &'a Observed, context: &'a ShapeContext<'a>) -> Self {
        let mut by_owner: BTreeMap<WorkloadId, Vec<&Pod>> = BTreeMap::new();
        let mut finished: BTreeMap<WorkloadId, u32> = BTreeMap::new();
        for pod in observed.pods.iter().filter(|pod| !pod.mirror) {
            let owner = pod.workload();
            let ended = pod.phase == PodPhase::Succeeded
                || pod.phase == PodPhase::Failed && owner.kind == WorkloadKind::Pod;
            if pod.is_active() {
                by_owner.entry(owner).or_default().push(pod);
            } else if ended {
                *finished.entry(owner).or_insert(0) += 1;
            }
        }
        let workloads = observed.workloads.iter().map(|live| (&live.id, live)).collect();
        Self { observed, context, by_owner, finished, workloads }
    }

    /// Returns the active pods of a workload.
    pub(super) fn pods_of(&self, id: &WorkloadId) -> &[&'a Pod] {
        self.by_owner.get(id).map_or(&[], Vec::as_slice)
    }

    /// Returns how many pods of a workload are active, bound or not.
    pub(super) fn active_count(&self, id: &WorkloadId) -> u32 {
        u32::try_from(self.pods_of(id).len()).unwrap_or(u32::MAX)
    }

    /// Returns how many pods a workload is set to, where the world tells.
    pub(super) fn stated_replicas(&self, id: &WorkloadId) -> Option<u32> {
        self.workloads.get(id).map(|live| live.replicas)
    }

    /// Returns how many pods of a workload are done and will not be made again.
    pub(super) fn finished_count(&self, id: &WorkloadId) -> u32 {
        self.finished.get(id).copied().unwrap_or(0)
    }

    /// Returns what a live pod asks for.
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

    /// Returns where `pods` pods of a workload run that name `node` themselves: on that node, as
    /// many as it has room for beside the pods of others; none where it is not there.
    pub(super) fn bound_by_name(
        &self,
        id: &WorkloadId,
        node: &str,
        (pods, requests): (u32, &Resources),
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

    /// Returns one shape for all live pods of a workload that the repository does not declare: that
    /// of the youngest, asking for the most that any of them asks for, since several templates may
    /// run side by side.
    pub(super) fn shape(&self, id: &WorkloadId, pods: &[&Pod]) -> Option<Arc<PodShape>> {
        let youngest = pods.iter().max_by_key(|pod| (pod.created_at, &pod.name))?;
        let requests = self.distinct_requests(pods).into_iter().reduce(|a, b| a.at_least(&b))?;
        let is_daemon = id.kind == WorkloadKind::DaemonSet;
        let shape = |pod: &Pod| {
            let template = self.template(pod);
            if is_daemon {
                pod_shape(&pod.namespace, &without_node_name(template), self.context)
            } else {
                pod_shape(&pod.namespace, template, self.context)
            }
        };
        let pinned =
            id.kind == WorkloadKind::Pod || pods.iter().any(|pod| shape(pod).do_not_disrupt);
        let youngest = shape(youngest).spread_by_default(id.kind);
        Some(Arc::new(PodShape { requests, do_not_disrupt: pinned, ..youngest }))
    }

    /// Returns the shape to plan a declared workload with: `stated`, which the repository says, or
    /// a larger one where its pods are changed after they leave the controller; with a warning
    /// where they may be.
    ///
    /// Pods of DaemonSets count as the largest of them, as Karpenter has it: each takes its share
    /// of a node before anything else comes. Of other workloads what all pods have in common
    /// counts: one pod that was resized does not make the rest of them larger. `is_sized` says that
    /// a vertical autoscaler decides what they ask for.
    pub(super) fn with_live_requests(
        &self,
        workload: &Workload,
        stated: PodShape,
        is_sized: bool,
    ) -> (PodShape, Option<Problem>) {
        let pods = self.pods_of(&workload.id);
        let of_controller = self.controller_requests(workload);
        let rolls_out = of_controller.as_ref().is_some_and(|known| *known != stated.requests);
        let is_daemon = workload.scale == Scale::PerNode;
        let common = if is_daemon { Resources::at_least } else { min_requests };
        let live = self.distinct_requests(pods).into_iter().reduce(|a, b| common(&a, &b));
        let grown = live.map(|live| stated.requests.at_least(&live));
        if is_sized {
            // Pods follow a recommendation one by one: until then they need what they run with.
            let requests = grown.unwrap_or_else(|| stated.requests.clone());
            return (PodShape { requests, ..stated }, None);
        }
        let Some(grown) = grown.filter(|grown| !rolls_out && *grown != stated.requests) else {
            return (stated, None);
        };
        let counts = is_daemon || of_controller.is_some();
        let warning = Self::larger_requests_warning(workload, (&stated.requests, &grown), counts);
        let requests = if counts { grown } else { stated.requests.clone() };
        (PodShape { requests, ..stated }, Some(warning))
    }

    fn larger_requests_warning(
        workload: &Workload,
        (stated, live): (&Resources, &Resources),
        counts: bool,
    ) -> Problem {
        let (message, hint) = if counts {
            let message = format!(
                "its pods run with {live}, more than the {stated} of its template; planned with \
                 what they run with"
            );
            (message, "write into the template what a webhook or a resize adds")
        } else {
            let message = format!(
                "its pods run with {live}, more than the {stated} of its template; planned with \
                 the template, since the world does not say what their controller's is"
            );
            (message, "if this is no change on its way, write into the template what they need")
        };
        Problem {
            origin: workload.origin.clone(),
            severity: Severity::Warning,
            object: format!("{} {}", workload.id.kind, workload.id),
            message,
            hint: Some(hint.to_owned()),
        }
    }

    /// Returns what the controller's own template asks for, where it was read.
    fn controller_requests(&self, workload: &Workload) -> Option<Resources> {
        let key = self.workloads.get(&workload.id)?.template.as_ref()?;
        let template = self.observed.templates.get(key)?;
        Some(pod_shape(&workload.id.namespace, template, self.context).requests)
    }

    /// Returns what pods ask for, without repeating those of one template.
    fn distinct_requests(&self, pods: &[&Pod]) -> Vec<Resources> {
        let mut seen = BTreeSet::new();
        let mut requests = Vec::new();
        for pod in pods {
            if !pod.granted.is_empty() || seen.insert((&pod.namespace, pod.template.as_str())) {
                requests.push(live_requests(pod, self.template(pod), self.context));
            }
        }
        requests
    }

    fn template(&self, pod: &Pod) -> &PodTemplate {
        static NOTHING: std::sync::LazyLock<PodTemplate> =
            std::sync::LazyLock::new(PodTemplate::default);
        self.observed.templates.get(&pod.template).map_or(&NOTHING, |template| template)
    }
}

/// Returns the template of a DaemonSet's pod without the name of the node that its controller bound
/// it to: of the controller's own template only this differs.
fn without_node_name(template: &PodTemplate) -> PodTemplate {
    let mut template = template.clone();
    let required = &mut template.spec.node_affinity.required;
    if let Some(terms) = required {
        for term in terms.iter_mut() {
            term.fields.clear();
        }
        // What the controller adds where nothing was required leaves nothing required.
        if terms.iter().any(|term| term.expressions.is_empty()) {
            *required = None;
        }
    }
    template
}

/// Returns the smaller of both, resource by resource.
fn min_requests(a: &Resources, b: &Resources) -> Resources {
    a.minus(&a.minus(b).at_least(&Resources::default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demand::{Demand, DemandMode};
    use crate::model::desired::Desired;
    use crate::model::ids::Origin;
    use crate::model::pod::{Container, ContainerResources, PodSpec};
    use crate::testing::Story;

    fn template_requesting(cpu: i64) -> Arc<PodTemplate> {
        let requests = [("cpu".into(), cpu)].into();
        let resources = ContainerResources { requests, ..ContainerResources::default() };
        let container = Container { name: "app".into(), resources, ..Container::default() };
        let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
        Arc::new(PodTemplate { spec, ..PodTemplate::default() })
    }

    /// What one pod of a workload is planned with that the repository gives 500m, whose controller
    /// has `controller`, and whose pods run with `pods`; and how many warnings there are.
    fn planned(kind: WorkloadKind, controller: Option<i64>, pods: &[i64]) -> (i64, usize) {
        let mut story = Story::new(&["m5.large"], 500, 1);
        story.desired = Desired::default();
        let id = WorkloadId { namespace: "web".into(), name: "api".into(), kind };
        let is_daemon = kind == WorkloadKind::DaemonSet;
        let scale = if is_daemon { Scale::PerNode } else { Scale::Replicas(2) };
        let origin = Origin::new("a.yaml", 1);
        let template = template_requesting(500);
        let workload = Workload { id: id.clone(), origin, scale, template, first_ordinal: 0 };
        story.desired.workloads.insert(id.clone(), workload);
        for cpu in pods {
            story.bind("n1".into());
            let pod = Arc::make_mut(story.observed.pods.last_mut().expect("bound"));
            pod.owner = Some(id.clone());
            pod.template = format!("pod-{cpu}");
            story.observed.templates.insert(pod.template.clone(), template_requesting(*cpu));
        }
        if let Some(cpu) = controller {
            story.observed.templates.insert("controller".into(), template_requesting(cpu));
        }
        story.observed.workloads.push(LiveWorkload {
            id,
            replicas: 2,
            first_ordinal: 0,
            delivered: true,
            template: controller.map(|_| "controller".to_owned()),
        });
        let demand = Demand::build(&story.desired, &story.observed, DemandMode::Live);
        let shapes = demand.groups.iter().map(|group| &group.shape);
        let shape = shapes.chain(demand.daemons.iter().map(|daemon| &daemon.shape)).next();
        (shape.expect("one workload").requests.cpu.0, demand.problems.len())
    }

    #[test]
    fn pods_that_were_changed_on_their_way_in_count_as_they_run() {
        use WorkloadKind::{DaemonSet, Deployment};
        for (rule, kind, controller, pods, expected) in [
            ("nothing runs", Deployment, Some(500), &[][..], (500, 0)),
            ("as declared", Deployment, Some(500), &[500, 500], (500, 0)),
            ("all pods were changed", Deployment, Some(500), &[800, 700], (700, 1)),
            ("one pod was", Deployment, Some(500), &[500, 900], (500, 0)),
            ("less than the template never counts", Deployment, Some(500), &[100], (500, 0)),
            ("left from an older template", Deployment, Some(900), &[900, 900], (500, 0)),
            ("nobody knows why they are larger", Deployment, None, &[900, 900], (500, 1)),
            ("case 15: the largest daemon", DaemonSet, Some(500), &[500, 900], (900, 1)),
            ("case 15: whatever the controller has", DaemonSet, None, &[900], (900, 1)),
            ("daemons of an older template", DaemonSet, Some(900), &[900], (500, 0)),
        ] {
            assert_eq!(planned(kind, controller, pods), expected, "{rule}");
        }
    }

    #[test]
    fn a_pod_resized_in_place_counts_with_what_it_was_granted() {
        let mut story = Story::new(&["m5.large"], 500, 1);
        story.desired.workloads.clear();
        story.observed.templates.insert("t".into(), template_requesting(500));
        story.bind("n1".into());
        Arc::make_mut(&mut story.observed.pods[0]).granted =
            [("app".to_owned(), [("cpu".into(), 800)].into())].into();
        let demand = Demand::build(&story.desired, &story.observed, DemandMode::Live);
        assert_eq!(demand.groups[0].shape.requests.cpu.0, 800);
    }

    proptest::proptest! {
        #[test]
        fn the_smaller_of_two_is_what_they_share(a in 0_i64..9, b in 0_i64..9, c in 0_i64..9) {
            let of = |cpu: i64, gpus: i64| Resources {
                cpu: crate::model::units::MilliCpu(cpu),
                extended: [("gpu".into(), gpus)].into_iter().filter(|(_, n)| *n > 0).collect(),
                ..Resources::default()
            };
            proptest::prop_assert_eq!(min_requests(&of(a, b), &of(b, c)), of(a.min(b), b.min(c)));
        }
    }
}
