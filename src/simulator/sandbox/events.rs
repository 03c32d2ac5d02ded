//! Events of pods and nodes, as kube-scheduler, kubelets and the node controller write them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::kube_api::KubeApi;
use super::object::format_time;
use super::store::{ObjectKey, Writer};
use crate::model::ids::{Namespace, Uid};
use crate::model::observed::{Node, Pod, PodPhase};

/// Events of the world that are kept. Clusters drop theirs after an hour.
const EVENTS_MAX: usize = 1_000;

/// Events of one synchronization. Clusters drop those beyond a rate as well.
const EVENTS_PER_SYNC_MAX: usize = 100;

const SCHEDULER: &str = "default-scheduler";
const KUBELET: &str = "kubelet";
const NODE_CONTROLLER: &str = "node-controller";

/// The subject of an event.
struct Subject<'o> {
    kind: &'static str,
    namespace: &'o str,
    name: &'o str,
    uid: &'o Uid,
}

/// The events of the world.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Number of events so far, for their names.
    written: u64,
    /// The kept events, the oldest first.
    keys: VecDeque<ObjectKey>,
    /// Events that wait to be stored.
    pending: Vec<(ObjectKey, Json)>,
    /// Scheduler runs when each pending pod was first seen; `None` once it was announced.
    unscheduled: BTreeMap<Uid, Option<u64>>,
}

impl Events {
    /// Records the events of a pod that changed.
    pub(super) fn pod_changed(&mut self, before: Option<&Pod>, pod: &Pod, now: Timestamp) {
        let before = before.filter(|before| before.uid == pod.uid);
        let subject = Subject {
            kind: "Pod",
            namespace: pod.namespace.as_str(),
            name: &pod.name,
            uid: &pod.uid,
        };
        let node = pod.node.as_ref();
        if let Some(node) = node.filter(|_| before.is_none_or(|before| before.node.is_none())) {
            self.unscheduled.remove(&pod.uid);
            let message = format!("Successfully assigned {}/{} to {node}", pod.namespace, pod.name);
            self.add(&subject, SCHEDULER, "Normal", ("Scheduled", &message), now);
        }
        let ran = before.is_some_and(|before| before.phase == PodPhase::Running);
        if pod.phase == PodPhase::Running && !ran {
            self.add(&subject, KUBELET, "Normal", ("Started", "Started containers"), now);
        }
        if pod.terminating && !before.is_some_and(|before| before.terminating) {
            self.add(&subject, KUBELET, "Normal", ("Killing", "Stopping containers"), now);
        }
    }

    /// Returns the pending pods that the scheduler has tried since they were first seen, once each.
    /// `runs` is the number of scheduler runs so far.
    pub(super) fn newly_unschedulable<'p>(
        &mut self,
        pods: impl Iterator<Item = &'p Pod>,
        runs: u64,
    ) -> Vec<(Namespace, Arc<str>)> {
        let mut found = Vec::new();
        for pod in pods.filter(|pod| pod.node.is_none() && pod.phase == PodPhase::Pending) {
            let seen = self.unscheduled.entry(pod.uid.clone()).or_insert(Some(runs));
            if seen.is_some_and(|seen| runs > seen) && found.len() < EVENTS_PER_SYNC_MAX {
                *seen = None;
                found.push((pod.namespace.clone(), Arc::clone(&pod.name)));
            }
        }
        found
    }

    /// Records that no node fits a pod, with the reasons of the scheduler.
    pub(super) fn pod_unschedulable(&mut self, pod: &Pod, reasons: &str, now: Timestamp) {
        let (namespace, name, uid) = (pod.namespace.as_str(), &pod.name, &pod.uid);
        let subject = Subject { kind: "Pod", namespace, name, uid };
        self.add(&subject, SCHEDULER, "Warning", ("FailedScheduling", reasons), now);
    }

    pub(super) fn pod_removed(&mut self, pod: &Pod) {
        self.unscheduled.remove(&pod.uid);
    }

    /// Records the events of a node that changed.
    pub(super) fn node_changed(&mut self, before: Option<&Node>, node: &Node, now: Timestamp) {
        let before = before.filter(|before| before.uid == node.uid);
        let name = node.name.as_str();
        let mut add = |source: &str, reason: &str, message: String| {
            let subject = Subject { kind: "Node", namespace: "", name, uid: &node.uid };
            self.add(&subject, source, "Normal", (reason, &message), now);
        };
        if before.is_none() {
            add(NODE_CONTROLLER, "RegisteredNode", format!("Node {name} joined the cluster"));
        }
        if node.ready && !before.is_some_and(|before| before.ready) {
            add(KUBELET, "NodeReady", format!("Node {name} is Ready"));
        } else if !node.ready && before.is_some_and(|before| before.ready) {
            add(NODE_CONTROLLER, "NodeNotReady", format!("Node {name} is not Ready"));
        }
        if node.unschedulable != before.is_some_and(|before| before.unschedulable) {
            let reason = if node.unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" };
            add(KUBELET, reason, format!("Node {name} status is now: {reason}"));
        }
    }

    pub(super) fn node_removed(&mut self, node: &Node, now: Timestamp) {
        let name = node.name.as_str();
        let subject = Subject { kind: "Node", namespace: "", name, uid: &node.uid };
        let message = format!("Node {name} was removed from the cluster");
        self.add(&subject, NODE_CONTROLLER, "Normal", ("RemovingNode", &message), now);
    }

    fn add(
        &mut self,
        subject: &Subject<'_>,
        source: &str,
        kind: &str,
        (reason, message): (&str, &str),
        now: Timestamp,
    ) {
        if self.pending.len() >= EVENTS_PER_SYNC_MAX {
            return;
        }
        self.written += 1;
        // Events of cluster-scoped objects are in the namespace `default`.
        let namespace = if subject.namespace.is_empty() { "default" } else { subject.namespace };
        let name = format!("{}.{:016x}", subject.name, self.written);
        let at = format_time(now);
        let version = "v1";
        let mut involved = json!({
            "apiVersion": version, "kind": subject.kind, "name": subject.name,
            "uid": subject.uid
        });
        if !subject.namespace.is_empty() {
            involved["namespace"] = subject.namespace.into();
        }
        let event = json!({
            "apiVersion": version, "kind": "Event",
            "metadata": {
                "name": name, "namespace": namespace, "creationTimestamp": at,
                "uid": super::kubernetes_objects::uid("Event", namespace, &name)
            },
            "involvedObject": involved, "type": kind, "reason": reason, "message": message,
            "source": { "component": source }, "reportingComponent": source,
            "reportingInstance": "", "count": 1, "firstTimestamp": at, "lastTimestamp": at
        });
        self.pending.push((ObjectKey::new("Event", namespace, &name), event));
    }

    /// Forgets the recorded events.
    pub(super) fn discard_recorded(&mut self) {
        self.pending.clear();
    }

    /// Stores the recorded events, and removes the oldest beyond the maximum.
    pub(super) fn store(&mut self, api: &mut KubeApi) {
        for (key, event) in self.pending.drain(..) {
            api.store.upsert(key.clone(), event, Writer::World);
            self.keys.push_back(key);
        }
        while self.keys.len() > EVENTS_MAX {
            if let Some(key) = self.keys.pop_front() {
                api.store.remove(&key, Writer::World);
            }
        }
    }
}
