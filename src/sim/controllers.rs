//! The controllers of workloads: they make pods, replace them, and let them go.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::budgets::Budget;
use super::state::{Controller, Due, PodKey, PodRef, State};
use super::{Delivery, delay};
use crate::fleet::{Pod, PodPhase, template_key};
use crate::ids::{NodeName, Uid, WorkloadId, WorkloadKind};

/// Characters that Kubernetes makes generated names of.
const NAME_CHARACTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// Characters in a generated suffix.
const SUFFIX_LENGTH: u32 = 5;
/// Shares no divisor with the number of suffixes, 27⁵, so that each number has a suffix of its own.
const SUFFIX_STEP: u64 = 7_654_321;
/// Characters of a template's key that the name of a Deployment's pods shows.
const HASH_LENGTH: usize = 8;

impl State {
    /// Makes workloads, budgets and namespaces equal to `delivery`.
    pub(super) fn deliver(&mut self, delivery: &Delivery) {
        self.budgets = delivery.budgets.iter().map(Budget::from).collect();
        self.namespaces.clone_from(&delivery.namespaces);
        self.deliver_storage(&delivery.storage);
        self.deliver_groups(&delivery.groups);
        self.fargate_profiles.extend(delivery.fargate_profiles.clone());
        let missing = |(id, controller): &(&WorkloadId, &Controller)| {
            controller.delivered && !delivery.workloads.contains_key(*id)
        };
        let gone: Vec<WorkloadId> =
            self.controllers.iter().filter(missing).map(|(id, _)| id.clone()).collect();
        for id in gone {
            self.controllers.remove(&id);
            for pod in self.active(&id) {
                self.stop(&pod);
            }
        }
        for (id, workload) in &delivery.workloads {
            let key = template_key(&workload.template);
            self.templates.insert(key.clone(), workload.template.clone());
            let template = Some(key);
            let controller = Controller {
                replicas: workload.replicas,
                first_ordinal: workload.first_ordinal,
                delivered: true,
                template,
            };
            self.controllers.insert(id.clone(), controller);
            self.reconcile(id);
            if id.kind == WorkloadKind::Pod {
                self.create_bare(id);
            }
        }
        // Daemons go to the nodes that are there, and pods that are there may fit elsewhere now.
        self.wake_scheduler();
    }

    /// Brings the pods of one workload to what its controller wants.
    pub(super) fn reconcile(&mut self, id: &WorkloadId) {
        let Some(controller) = self.controllers.get(id).cloned() else { return };
        let Controller { replicas, first_ordinal, delivered, template } = controller;
        if let Some(template) = template.as_ref().filter(|_| delivered) {
            self.stop_outdated(id, template);
        }
        let Some(template) = template.or_else(|| self.template_in_use(id)) else { return };
        match id.kind {
            WorkloadKind::Deployment
            | WorkloadKind::ReplicaSet
            | WorkloadKind::ReplicationController
            | WorkloadKind::Job
            | WorkloadKind::CronJob
            | WorkloadKind::Rollout
            | WorkloadKind::ScaledJob => self.scale_replicas(id, replicas, &template),
            WorkloadKind::StatefulSet => {
                let ordinals = first_ordinal..first_ordinal.saturating_add(replicas);
                self.scale_ordinals(id, ordinals, &template);
            }
            // Daemons follow the nodes, at each tick; nobody replaces a bare pod; a buffer is room.
            WorkloadKind::DaemonSet | WorkloadKind::Pod | WorkloadKind::CapacityBuffer => {}
        }
    }

    fn active(&self, id: &WorkloadId) -> Vec<PodKey> {
        self.pods.of(id).filter(|pod| pod.is_active()).map(key_of).collect()
    }

    fn stop_outdated(&mut self, id: &WorkloadId, template: &str) {
        let admitted = self.admitted(id, template);
        let current = |key: &str| key == template || key == admitted;
        let outdated = |pod: &&Pod| pod.is_active() && !current(&pod.template);
        let outdated: Vec<PodKey> = self.pods.of(id).filter(outdated).map(key_of).collect();
        for pod in outdated {
            self.stop(&pod);
        }
    }

    /// Returns the template of some pod of the workload, for controllers that nobody delivered.
    pub(super) fn template_in_use(&self, id: &WorkloadId) -> Option<String> {
        self.pods.of(id).map(|pod| pod.template.clone()).next()
    }

    fn scale_replicas(&mut self, id: &WorkloadId, replicas: u32, template: &str) {
        let active = self.active(id);
        let wanted = usize::try_from(replicas).unwrap_or(usize::MAX);
        for _ in active.len()..wanted {
            let name = self.generated_name(id, template);
            self.create(id, name, template, None);
        }
        if active.len() > wanted {
            for pod in self.least_missed(id).into_iter().take(active.len() - wanted) {
                self.stop(&pod);
            }
        }
    }

    /// Returns the active pods of a workload in the order in which its `ReplicaSet` lets them go:
    /// unassigned first, then those that do not run, then those on nodes with more of their kind,
    /// then the younger ones.
    fn least_missed(&self, id: &WorkloadId) -> Vec<PodKey> {
        let mut siblings: BTreeMap<&NodeName, usize> = BTreeMap::new();
        for node in self.pods.of(id).filter(|pod| pod.is_active()).filter_map(|p| p.node.as_ref()) {
            *siblings.entry(node).or_default() += 1;
        }
        let mut pods: Vec<&Pod> = self.pods.of(id).filter(|pod| pod.is_active()).collect();
        pods.sort_by_key(|pod| {
            let crowd = pod.node.as_ref().and_then(|node| siblings.get(node)).copied();
            (
                pod.node.is_some(),
                pod.phase == PodPhase::Running,
                Reverse(crowd),
                Reverse(pod.created_at),
                // UIDs rise, so that the later of two pods of one moment goes first.
                Reverse(&pod.uid),
            )
        });
        pods.into_iter().map(key_of).collect()
    }

    fn scale_ordinals(&mut self, id: &WorkloadId, ordinals: Range<u32>, template: &str) {
        let kept: BTreeSet<String> = ordinals.map(|n| format!("{}-{n}", id.name)).collect();
        for pod in self.active(id).into_iter().filter(|(_, name)| !kept.contains(&**name)) {
            self.stop(&pod);
        }
        // A name is free only once the pod that bore it has stopped.
        for name in kept {
            if self.pods.get(&(id.namespace.clone(), name.as_str().into())).is_none() {
                self.create(id, name, template, None);
            }
        }
    }

    /// Makes the pod of a workload that is a pod itself, as the tool that delivers it would.
    fn create_bare(&mut self, id: &WorkloadId) {
        let Some(controller) = self.controllers.get(id) else { return };
        let wanted = controller.template.clone().filter(|_| controller.replicas > 0);
        let free = self.pods.get(&(id.namespace.clone(), id.name.clone())).is_none();
        match wanted {
            Some(template) if free => self.create(id, id.name.to_string(), &template, None),
            Some(_) => {}
            None => {
                for pod in self.active(id) {
                    self.stop(&pod);
                }
            }
        }
    }

    /// Makes a pod; `node` binds it at once.
    pub(super) fn create(
        &mut self,
        id: &WorkloadId,
        name: String,
        template: &str,
        node: Option<NodeName>,
    ) {
        let template = &self.admitted(id, template);
        let uid = self.next_uid();
        let pod = Pod {
            namespace: id.namespace.clone(),
            name: name.into(),
            uid,
            owner: Some(id.clone()),
            template: template.to_owned(),
            node: None,
            phase: PodPhase::Pending,
            created_at: self.now,
            terminating: false,
            mirror: false,
            started_at: None,
            granted: [].into(),
        };
        let key = key_of(&pod);
        self.pods.insert(pod);
        self.make_claims(&key, template);
        match node {
            Some(node) => self.bind(&key, node),
            None => self.wake_scheduler(),
        }
    }

    /// Binds a pod to a node; it runs a little later.
    pub(super) fn bind(&mut self, key: &PodKey, node: NodeName) {
        let Some(pod) = self.pods.get_mut(key) else { return };
        pod.node = Some(node);
        pod.started_at = Some(self.now);
        let pod = reference(pod);
        self.after(delay::POD_RUNNING, Due::PodRuns { pod });
    }

    /// Has a pod stop: one without a node is gone at once, another holds its room until it has.
    pub(super) fn stop(&mut self, key: &PodKey) {
        let Some(pod) = self.pods.get_mut(key) else { return };
        if pod.node.is_none() {
            self.pods.remove(key);
        } else if !pod.terminating {
            pod.terminating = true;
            let pod = reference(pod);
            self.after(delay::POD_STOPPED, Due::PodStopped { pod });
        }
    }

    pub(super) fn pod_runs(&mut self, pod: &PodRef) {
        if let Some(pod) = self.same_pod(pod).filter(|pod| pod.phase == PodPhase::Pending) {
            pod.phase = PodPhase::Running;
        }
    }

    pub(super) fn pod_stopped(&mut self, pod: &PodRef) {
        let Some(owner) = self.same_pod(pod).map(|pod| pod.owner.clone()) else { return };
        self.replace_after(owner, |state| {
            let key = (pod.namespace.clone(), pod.name.clone());
            state.leave_fargate(&key);
            state.pods.remove(&key);
        });
        self.wake_scheduler();
    }

    /// Removes a node object, and with it the pods that it held.
    pub(super) fn remove_node(&mut self, name: &NodeName, uid: &Uid) {
        if self.nodes.get(name).is_none_or(|node| node.uid != *uid) {
            return;
        }
        self.nodes.remove(name);
        self.storage.attach_limits.remove(name);
        let stranded = |pod: &&Pod| pod.node.as_ref() == Some(name);
        let stranded: Vec<(PodKey, Option<WorkloadId>)> =
            self.pods.iter().filter(stranded).map(|p| (key_of(p), p.owner.clone())).collect();
        for (key, owner) in stranded {
            self.replace_after(owner, |state| {
                state.pods.remove(&key);
            });
        }
        // A domain less may be what a pod that spreads waits for.
        self.wake_scheduler();
    }

    /// Takes a pod away by `remove`, and lets its controller answer. The template is remembered
    /// first: where nobody delivered the workload, the pod that goes is all that tells it.
    pub(super) fn replace_after(
        &mut self,
        owner: Option<WorkloadId>,
        remove: impl FnOnce(&mut Self),
    ) {
        let Some(owner) = owner else { return remove(self) };
        let in_use = self.template_in_use(&owner);
        if let Some(controller) = self.controllers.get_mut(&owner) {
            controller.template = controller.template.take().or(in_use);
        }
        remove(self);
        self.reconcile(&owner);
    }

    fn same_pod(&mut self, pod: &PodRef) -> Option<&mut Pod> {
        let key = (pod.namespace.clone(), pod.name.clone());
        self.pods.get_mut(&key).filter(|found| found.uid == pod.uid)
    }

    /// Returns a name that no other pod of the namespace has.
    pub(super) fn generated_name(&mut self, id: &WorkloadId, template: &str) -> String {
        let stem = match id.kind {
            WorkloadKind::Deployment => {
                let hash: String = template.chars().take(HASH_LENGTH).collect();
                format!("{}-{hash}", id.name)
            }
            WorkloadKind::StatefulSet
            | WorkloadKind::DaemonSet
            | WorkloadKind::ReplicaSet
            | WorkloadKind::ReplicationController
            | WorkloadKind::Job
            | WorkloadKind::CronJob
            | WorkloadKind::Rollout
            | WorkloadKind::ScaledJob
            | WorkloadKind::CapacityBuffer
            | WorkloadKind::Pod => id.name.to_string(),
        };
        // Suffixes do not repeat for 14 million pods: what is taken came with an observed world.
        loop {
            self.counters.pods += 1;
            let name = format!("{stem}-{}", suffix(self.seed, self.counters.pods));
            if self.pods.get(&(id.namespace.clone(), name.as_str().into())).is_none() {
                return name;
            }
        }
    }
}

/// Returns the `n`-th suffix of generated names.
fn suffix(seed: u64, n: u64) -> String {
    let suffixes = 27_u64.pow(SUFFIX_LENGTH);
    let mut n = (n % suffixes * SUFFIX_STEP + seed % suffixes) % suffixes;
    let mut suffix = String::new();
    for _ in 0..SUFFIX_LENGTH {
        let digit = usize::try_from(n % 27).unwrap_or(0);
        suffix.push(char::from(NAME_CHARACTERS[digit]));
        n /= 27;
    }
    suffix
}

pub(super) fn key_of(pod: &Pod) -> PodKey {
    (pod.namespace.clone(), pod.name.clone())
}

fn reference(pod: &Pod) -> PodRef {
    PodRef { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() }
}
