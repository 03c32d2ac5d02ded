//! Pods that a queue of Kueue admits.
//!
//! Kueue suspends a queued Job, and gives queued pods a scheduling gate, until their queue admits the
//! Workload that it makes for them. Pods need no node before. Admitted pods count at once, with the
//! node labels and tolerations of their `ResourceFlavors`, although Kueue adds these later.
//!
//! Queues that were not read are unknown, and not empty: pods count once they may start, and a plan
//! over a cluster then does not know the size of their workload.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::live_pods::LivePods;
use crate::model::desired::{Problem, Scale, Workload};
use crate::model::ids::{Namespace, Uid, WorkloadId, WorkloadKind};
use crate::model::observed::{Observed, Pod, QueueAdmission, QueueFlavor, QueuedWorkload};
use crate::model::plural;
use crate::model::pod::PodTemplate;

/// Prefix of the gates that Kueue lifts once it has admitted the pod.
const GATE_PREFIX: &str = "kueue.x-k8s.io/";

const QUEUES_UNREAD: &str = "the queues of Kueue were not read";

const SEVERAL_FLAVORS: &str =
    "its pods have several ResourceFlavors of Kueue, so that pods without a node do not count";

/// Workloads of Kueue by what owns them.
pub(super) struct Queues<'a> {
    /// False if the Workloads are unknown.
    is_read: bool,
    by_owner: BTreeMap<&'a WorkloadId, Vec<&'a QueuedWorkload>>,
    /// A Workload counts for pods of its namespace only.
    by_pod: BTreeMap<(&'a Namespace, &'a Uid), &'a QueuedWorkload>,
    /// Keys of the pod templates with a gate of Kueue.
    gated_templates: BTreeSet<&'a str>,
}

/// Pods of a declared workload that Kueue admits.
pub(super) struct QueuedPods {
    /// The queue, as kind and name.
    pub(super) queue: String,
    /// Number of pods that run or may start.
    pub(super) startable: u32,
    /// Number of pods of the Jobs that a CronJob or ScaledJob has made, and Kueue has admitted.
    pub(super) in_jobs: u32,
    /// Explanation of the number.
    pub(super) because: String,
    /// False if the queues were not read.
    pub(super) is_read: bool,
    /// Why further pods may be able to start; `None` if Kueue holds them all.
    pub(super) unknown: Option<String>,
}

/// Pods of a workload that wait for Kueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueWait {
    /// Number of pods.
    pub pods: u32,
    /// False if the queues were not read.
    pub is_read: bool,
}

impl<'a> Queues<'a> {
    pub(super) fn new(observed: &'a Observed) -> Self {
        let mut by_owner: BTreeMap<&WorkloadId, Vec<&QueuedWorkload>> = BTreeMap::new();
        let mut by_pod = BTreeMap::new();
        for queued in observed.scaling.queued.iter().flatten() {
            if let Some(owner) = &queued.owner {
                by_owner.entry(owner).or_default().push(queued);
            }
            by_pod.extend(queued.pods.iter().map(|uid| ((&queued.namespace, uid), queued)));
        }
        let templates = observed.templates.iter();
        let gated = templates.filter(|(_, template)| has_gate(template));
        let gated_templates = gated.map(|(key, _)| key.as_str()).collect();
        let is_read = observed.scaling.queued.is_some();
        Self { is_read, by_owner, by_pod, gated_templates }
    }

    /// Returns true if Kueue does not let the pod start.
    pub(super) fn holds(&self, pod: &Pod) -> bool {
        self.gated_templates.contains(&*pod.template) && self.flavor(pod).is_none()
    }

    /// Returns the template with which kube-scheduler sees the pod once Kueue has lifted its gates.
    pub(super) fn opened<'t>(&self, pod: &Pod, template: &'t PodTemplate) -> Cow<'t, PodTemplate> {
        if !self.gated_templates.contains(&*pod.template) {
            return Cow::Borrowed(template);
        }
        let Some(flavor) = self.flavor(pod) else { return Cow::Borrowed(template) };
        let mut template = template.clone();
        template.spec.scheduling_gates.retain(|gate| !gate.starts_with(GATE_PREFIX));
        add_flavor(&mut template, flavor);
        Cow::Owned(template)
    }

    /// Returns the flavor of an admitted pod.
    fn flavor(&self, pod: &Pod) -> Option<&'a QueueFlavor> {
        self.of_pod(pod).into_iter().find_map(|queued| Some(admitted(queued)?.1))
    }

    /// Returns the Workloads of a pod, its own first.
    fn of_pod(&self, pod: &Pod) -> Vec<&'a QueuedWorkload> {
        let of_owner = pod.owner.as_ref().and_then(|owner| self.by_owner.get(owner));
        let of_pod = self.by_pod.get(&(&pod.namespace, &pod.uid));
        of_pod.into_iter().chain(of_owner.into_iter().flatten()).copied().collect()
    }

    /// Returns why Kueue does not let a pod start.
    fn reason(&self, pod: &Pod) -> String {
        let unknown = || "Kueue has not admitted the pod".to_owned();
        if !self.is_read {
            return format!("{QUEUES_UNREAD}, so whether the pod may start is not known");
        }
        let Some(queued) = self.of_pod(pod).into_iter().next() else { return unknown() };
        let queue = format!("LocalQueue {}/{} of Kueue", pod.namespace, queued.queue);
        match &queued.admission {
            QueueAdmission::Waiting { because, .. } => {
                format!("{queue} has not admitted the pod: {because}")
            }
            QueueAdmission::Unknown { because } => {
                format!("{queue} has admitted the pod, but {because}")
            }
            QueueAdmission::Admitted { .. } => unknown(),
        }
    }

    /// Returns the Workloads of a workload and of its pods, in order of their names.
    fn of<'p>(
        &self,
        id: &WorkloadId,
        pods: impl Iterator<Item = &'p Pod>,
    ) -> BTreeSet<&'a QueuedWorkload> {
        let mut known: BTreeSet<&QueuedWorkload> =
            self.by_owner.get(id).into_iter().flatten().copied().collect();
        if !self.by_pod.is_empty() {
            known.extend(pods.filter_map(|pod| self.by_pod.get(&(&pod.namespace, &pod.uid))));
        }
        known
    }
}

impl LivePods<'_> {
    /// Returns the pods of a declared workload that Kueue admits; `None` if no queue admits them.
    pub(super) fn queued(&self, workload: &Workload) -> Option<QueuedPods> {
        let id = &workload.id;
        let is_held = self.held.contains_key(id);
        let known = self.queued_workloads(id);
        let is_queued = workload.queue.is_some() || !known.is_empty() || is_held;
        let is_finished = id.kind == WorkloadKind::Pod && self.finished_count(id) > 0;
        if !is_queued || is_finished {
            return None;
        }
        let first = known.iter().map(|queued| queued.queue.as_str()).find(|name| !name.is_empty());
        let queue = match workload.queue.as_deref().or(first) {
            Some(name) => format!("LocalQueue {}/{name}", id.namespace),
            None => "Kueue".to_owned(),
        };
        let free = self.pods_of(id).iter().copied().filter(|pod| !self.queues.holds(pod));
        let (bound, free): (Vec<&Pod>, Vec<&Pod>) = free.partition(|pod| pod.node.is_some());
        let is_read = self.queues.is_read;
        if flavors(&known).len() > 1 {
            let unknown = (!free.is_empty()).then(|| SEVERAL_FLAVORS.to_owned());
            let (startable, because) = (count_of(bound.len()), SEVERAL_FLAVORS.to_owned());
            return Some(QueuedPods { queue, startable, in_jobs: 0, because, is_read, unknown });
        }
        let (in_jobs, to_come) = self.pods_of_jobs(workload, &known);
        let startable = count_of(bound.len().saturating_add(free.len())).max(to_come);
        let unread = known.iter().find_map(|queued| unknown_reason(queued));
        let unread = unread.map(|why| format!("Kueue has admitted it, but {why}"));
        let because = match (is_read, &unread) {
            (false, _) => QUEUES_UNREAD.to_owned(),
            (true, Some(why)) => why.clone(),
            (true, None) => admission_text(startable, &known),
        };
        // A preview without a cluster has no queues to read.
        let is_empty = self.observed.nodes.is_empty() && self.observed.pods.is_empty();
        let unknown = if is_read { unread } else { (!is_empty).then(|| because.clone()) };
        Some(QueuedPods { queue, startable, in_jobs, because, is_read, unknown })
    }

    /// Returns the pods of admitted Jobs that a workload started, and the pods of an admitted Job
    /// including those to come.
    fn pods_of_jobs(&self, workload: &Workload, known: &BTreeSet<&QueuedWorkload>) -> (u32, u32) {
        let counts = known.iter().filter_map(|queued| admitted(queued)).map(|(pods, _)| pods);
        let sum = |of_one: u32| {
            counts.clone().fold(0, |sum: u32, pods| sum.saturating_add(pods.min(of_one)))
        };
        match &workload.scale {
            // Kueue has no Workload of a Job that was deleted for long.
            Scale::Job { .. } if self.has_workload(&workload.id) => {
                (0, counts.clone().max().unwrap_or(0))
            }
            // Each of their Jobs has its own Workload.
            Scale::CronJob { pods, .. } => (sum(*pods), sum(*pods)),
            Scale::ScaledJob(scaling) => (sum(scaling.pods), sum(scaling.pods)),
            Scale::Job { .. } | Scale::Replicas(_) | Scale::PerNode | Scale::Buffer(_) => (0, 0),
        }
    }

    /// Returns the waiting pods of a workload with pods that may start.
    pub(super) fn waits_beside(&self, id: &WorkloadId) -> Option<QueueWait> {
        let held = self.held.get(id)?;
        let is_free = self.pods_of(id).iter().any(|pod| !self.queues.holds(pod));
        let wait = QueueWait { pods: count_of(held.len()), is_read: self.queues.is_read };
        is_free.then_some(wait)
    }

    /// Returns the workload with the flavor of its admitted pods, and a warning if they have several.
    pub(super) fn with_flavor<'w>(
        &self,
        workload: Cow<'w, Workload>,
    ) -> (Cow<'w, Workload>, Option<Problem>) {
        let known = self.queued_workloads(&workload.id);
        let flavors: Vec<&QueueFlavor> = flavors(&known).into_iter().collect();
        match flavors[..] {
            [] => (workload, None),
            [flavor] => {
                let mut workload = workload.into_owned();
                add_flavor(Arc::make_mut(&mut workload.template), flavor);
                (Cow::Owned(workload), None)
            }
            [_, _, ..] => {
                let object = format!("{} {}", workload.id.kind, workload.id);
                let warning = Problem::warning(workload.origin.clone(), object, SEVERAL_FLAVORS);
                let hint = "let its queue have one ResourceFlavor";
                (workload, Some(warning.hint(hint)))
            }
        }
    }

    fn queued_workloads(&self, id: &WorkloadId) -> BTreeSet<&QueuedWorkload> {
        let held = self.held.get(id).into_iter().flatten();
        self.queues.of(id, self.pods_of(id).iter().chain(held).copied())
    }
}

/// Returns why Kueue does not let pods start, by workload.
pub fn queue_reasons(observed: &Observed) -> BTreeMap<WorkloadId, String> {
    let queues = Queues::new(observed);
    let mut reasons = BTreeMap::new();
    if queues.gated_templates.is_empty() {
        return reasons;
    }
    for (owner, pods) in observed.pod_runs() {
        if let Some(pod) = pods.iter().find(|pod| pod.is_active() && queues.holds(pod)) {
            reasons.entry(owner).or_insert_with(|| queues.reason(pod));
        }
    }
    reasons
}

/// Returns the number of admitted pods as text, and why further ones wait.
fn admission_text(startable: u32, known: &BTreeSet<&QueuedWorkload>) -> String {
    let why = known.iter().find_map(|queued| waiting_reason(queued));
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    match startable {
        0 => format!("Kueue has not admitted it{why}"),
        some => format!("Kueue has admitted {}{why}", plural::count(some, "pod")),
    }
}

fn count_of(pods: usize) -> u32 {
    u32::try_from(pods).unwrap_or(u32::MAX)
}

/// Returns the distinct flavors of admitted Workloads.
fn flavors<'q>(known: &BTreeSet<&'q QueuedWorkload>) -> BTreeSet<&'q QueueFlavor> {
    known.iter().copied().filter_map(|queued| Some(admitted(queued)?.1)).collect()
}

fn has_gate(template: &PodTemplate) -> bool {
    template.spec.scheduling_gates.iter().any(|gate| gate.starts_with(GATE_PREFIX))
}

/// Returns the pods and the flavor of an admitted Workload.
fn admitted(queued: &QueuedWorkload) -> Option<(u32, &QueueFlavor)> {
    match &queued.admission {
        QueueAdmission::Admitted { pods, flavor } => Some((*pods, flavor)),
        QueueAdmission::Unknown { .. } | QueueAdmission::Waiting { .. } => None,
    }
}

fn waiting_reason(queued: &QueuedWorkload) -> Option<&str> {
    match &queued.admission {
        QueueAdmission::Waiting { because, .. } => Some(because),
        QueueAdmission::Unknown { .. } | QueueAdmission::Admitted { .. } => None,
    }
}

fn unknown_reason(queued: &QueuedWorkload) -> Option<&str> {
    match &queued.admission {
        QueueAdmission::Unknown { because } => Some(because),
        QueueAdmission::Waiting { .. } | QueueAdmission::Admitted { .. } => None,
    }
}

fn add_flavor(template: &mut PodTemplate, flavor: &QueueFlavor) {
    let spec = &mut template.spec;
    spec.node_selector.extend(flavor.node_labels.clone());
    for toleration in &flavor.tolerations {
        if !spec.tolerations.contains(toleration) {
            spec.tolerations.push(toleration.clone());
        }
    }
}

#[cfg(test)]
mod tests;
