//! Pods that a queue of Kueue admits.
//!
//! Kueue suspends a queued Job, and gives queued pods a scheduling gate, until their queue admits the
//! Workload that it makes for them. Pods need no node before. Admitted pods count at once, with the
//! node labels and tolerations of their ResourceFlavors, although Kueue adds these later.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::live_pods::LivePods;
use crate::model::desired::{Problem, Workload};
use crate::model::ids::{Namespace, Uid, WorkloadId, WorkloadKind};
use crate::model::observed::{Observed, Pod, QueueAdmission, QueueFlavor, QueuedWorkload};
use crate::model::plural;
use crate::model::pod::PodTemplate;

/// Prefix of the gates that Kueue lifts once it has admitted the pod.
const GATE_PREFIX: &str = "kueue.x-k8s.io/";

/// Workloads of Kueue by what owns them.
pub(super) struct Queues<'a> {
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
    /// Explanation of the number.
    pub(super) because: String,
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
        Self { by_owner, by_pod, gated_templates: gated.map(|(key, _)| key.as_str()).collect() }
    }

    /// Returns true if Kueue does not let the pod start.
    pub(super) fn holds(&self, pod: &Pod) -> bool {
        self.gated_templates.contains(pod.template.as_str()) && self.flavor(pod).is_none()
    }

    /// Returns the template with which kube-scheduler sees the pod once Kueue has lifted its gates.
    pub(super) fn opened<'t>(&self, pod: &Pod, template: &'t PodTemplate) -> Cow<'t, PodTemplate> {
        if !self.gated_templates.contains(pod.template.as_str()) {
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
        let of_owner = pod.owner.as_ref().and_then(|owner| self.by_owner.get(owner));
        let of_pod = self.by_pod.get(&(&pod.namespace, &pod.uid));
        let known = of_pod.into_iter().chain(of_owner.into_iter().flatten());
        known.copied().find_map(|queued| Some(admitted(queued)?.1))
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
        let held = self.held.get(id).map_or(0, Vec::len);
        let known = self.queued_workloads(id);
        let is_queued = workload.queue.is_some() || !known.is_empty() || held > 0;
        let is_finished = id.kind == WorkloadKind::Pod && self.finished_count(id) > 0;
        if !is_queued || is_finished {
            return None;
        }
        let free = self.pods_of(id).iter().filter(|pod| !self.queues.holds(pod)).count();
        // Kueue has no Workload of a Job that was deleted for long.
        let is_started = id.kind == WorkloadKind::Job && self.has_workload(id);
        let to_come = known.iter().filter(|_| is_started).filter_map(|queued| admitted(queued));
        let to_come = to_come.map(|(pods, _)| pods).max().unwrap_or(0);
        let startable = u32::try_from(free).unwrap_or(u32::MAX).max(to_come);
        let first = known.iter().map(|queued| queued.queue.as_str()).find(|name| !name.is_empty());
        let queue = match workload.queue.as_deref().or(first) {
            Some(name) => format!("LocalQueue {}/{name}", id.namespace),
            None => "Kueue".to_owned(),
        };
        let why = known.iter().find_map(|queued| waiting_reason(queued));
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        let because = match startable {
            0 => format!("Kueue has not admitted it{why}"),
            some => format!("Kueue has admitted {}{why}", plural::count(some, "pod")),
        };
        Some(QueuedPods { queue, startable, because })
    }

    /// Returns the workload with the flavor of its admitted pods, and a warning if they have several.
    pub(super) fn with_flavor<'w>(
        &self,
        workload: Cow<'w, Workload>,
    ) -> (Cow<'w, Workload>, Option<Problem>) {
        let known = self.queued_workloads(&workload.id);
        let flavors = known.iter().filter_map(|queued| Some(admitted(queued)?.1));
        let flavors: Vec<&QueueFlavor> = flavors.collect::<BTreeSet<_>>().into_iter().collect();
        match flavors[..] {
            [] => (workload, None),
            [flavor] => {
                let mut workload = workload.into_owned();
                add_flavor(Arc::make_mut(&mut workload.template), flavor);
                (Cow::Owned(workload), None)
            }
            [_, _, ..] => {
                let object = format!("{} {}", workload.id.kind, workload.id);
                let message = "its pods have several ResourceFlavors of Kueue; planned without \
                               the node labels and tolerations of either";
                let warning = Problem::warning(workload.origin.clone(), object, message);
                let hint = "write a node selector into the pod template";
                (workload, Some(warning.hint(hint)))
            }
        }
    }

    fn queued_workloads(&self, id: &WorkloadId) -> BTreeSet<&QueuedWorkload> {
        let held = self.held.get(id).into_iter().flatten();
        self.queues.of(id, self.pods_of(id).iter().chain(held).copied())
    }
}

/// Returns why Kueue does not let the pods of a workload start; `None` if their gates are not from
/// Kueue.
pub fn queue_reason(observed: &Observed, id: &WorkloadId) -> Option<String> {
    let of_owner = |pod: &&Arc<Pod>| pod.owner.as_ref() == Some(id);
    let pod = if id.kind == WorkloadKind::Pod {
        let key = |pod: &Arc<Pod>| (&pod.namespace, &*pod.name).cmp(&(&id.namespace, &*id.name));
        observed.pods.get(observed.pods.binary_search_by(key).ok()?)?
    } else {
        observed.pods.iter().find(of_owner)?
    };
    if !observed.templates.get(&pod.template).is_some_and(|template| has_gate(template)) {
        return None;
    }
    let is_of = |queued: &&QueuedWorkload| {
        queued.namespace == pod.namespace && queued.pods.contains(&pod.uid)
            || queued.owner.is_some() && queued.owner == pod.owner
    };
    let queued = observed.scaling.queued.iter().flatten().find(is_of);
    let Some(queued) = queued else { return Some("Kueue has not admitted the pod".to_owned()) };
    let why = waiting_reason(queued)?;
    let queue = &queued.queue;
    Some(format!("LocalQueue {}/{queue} of Kueue has not admitted the pod: {why}", id.namespace))
}

fn has_gate(template: &PodTemplate) -> bool {
    template.spec.scheduling_gates.iter().any(|gate| gate.starts_with(GATE_PREFIX))
}

/// Returns the pods and the flavor of an admitted Workload.
fn admitted(queued: &QueuedWorkload) -> Option<(u32, &QueueFlavor)> {
    match &queued.admission {
        QueueAdmission::Admitted { pods, flavor } => Some((*pods, flavor)),
        QueueAdmission::Waiting { .. } => None,
    }
}

fn waiting_reason(queued: &QueuedWorkload) -> Option<&str> {
    match &queued.admission {
        QueueAdmission::Waiting { because, .. } => Some(because),
        QueueAdmission::Admitted { .. } => None,
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
