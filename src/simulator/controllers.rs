//! Workload controllers: create, replace and delete pods.

use std::collections::BTreeSet;
use std::ops::Range;

use super::rolling_update::RollingUpdate;
use super::state::{
    PodKey, PodRef, ScheduledEvent, WorkloadController, WorldBudget, WorldState, pod_key,
};
use super::{Delivery, delay};
use crate::model::ids::{NodeName, Uid, WorkloadId, WorkloadKind};
use crate::model::job::OnEviction;
use crate::model::observed::{JobProgress, LiveJob, Pod, PodPhase, surplus_pods, template_key};

/// Characters of generated names in Kubernetes.
const NAME_CHARACTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: u32 = 5;
/// Coprime to the number of suffixes, 27⁵, so that each number has a unique suffix.
const SUFFIX_STEP: u64 = 7_654_321;
/// Characters of the template key in the names of Deployment pods.
const HASH_LENGTH: usize = 8;

impl WorldState {
    pub(super) fn deliver(&mut self, delivery: &Delivery) {
        self.budgets = delivery.budgets.iter().map(WorldBudget::from).collect();
        self.namespaces.clone_from(&delivery.namespaces);
        self.deliver_storage(&delivery.storage);
        self.deliver_groups(&delivery.groups);
        self.fargate_profiles.extend(delivery.fargate_profiles.clone());
        let missing = |(id, controller): &(&WorkloadId, &WorkloadController)| {
            controller.delivered
                && !delivery.workloads.contains_key(*id)
                && !delivery.retained.contains(*id)
                && !delivery.retaining_namespaces.contains(&id.namespace)
        };
        let removed: Vec<WorkloadId> =
            self.controllers.iter().filter(missing).map(|(id, _)| id.clone()).collect();
        for id in removed {
            self.controllers.remove(&id);
            self.jobs.remove(&id);
            for pod in self.active_pods(&id) {
                self.stop_pod(&pod);
            }
        }
        for (id, workload) in &delivery.workloads {
            let key = template_key(&workload.template);
            self.templates.insert(key.clone(), workload.template.clone());
            let template = Some(key);
            // A rolling update to the same template continues.
            let job = self.controllers.get(id).and_then(|known| known.job);
            let known = self.controllers.get(id).filter(|known| known.template == template);
            let controller = WorkloadController {
                replicas: workload.replicas,
                first_ordinal: workload.first_ordinal,
                delivered: true,
                rolling: known.and_then(|known| known.rolling),
                template,
                job,
            };
            self.controllers.insert(id.clone(), controller);
            self.reconcile(id);
            if id.kind == WorkloadKind::Pod {
                self.create_bare_pod(id);
            }
        }
        for (id, retries) in &delivery.job_retries {
            if id.kind == WorkloadKind::Job {
                let (id, retries) = (id.clone(), *retries);
                let job = LiveJob { id: id.clone(), retries, failed: 0 };
                self.jobs.entry(id).or_insert(job).retries = retries;
            }
        }
        // Daemons run on existing nodes, and existing pods may now fit elsewhere.
        self.wake_scheduler();
    }

    /// Counts an evicted pod as a failure of its Job, which fails with one failure too many.
    pub(super) fn count_evicted_pod(&mut self, id: &WorkloadId) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        if job.retries.on_eviction == OnEviction::Ignored {
            return;
        }
        job.failed += 1;
        let survives =
            job.retries.on_eviction != OnEviction::Fatal && job.failed <= job.retries.backoff_limit;
        let Some(controller) = self.controllers.get_mut(id).filter(|_| !survives) else { return };
        let succeeded = controller.job.map_or(0, |job| job.succeeded);
        controller.job = Some(JobProgress { succeeded, ended: true });
        for pod in self.active_pods(id) {
            self.stop_pod(&pod);
        }
    }

    /// Brings the pods of a workload to its desired state.
    pub(super) fn reconcile(&mut self, id: &WorkloadId) {
        let Some(controller) = self.controllers.get(id).cloned() else { return };
        let WorkloadController { replicas, first_ordinal, delivered, template, rolling, job } =
            controller;
        if job.is_some_and(|job| job.ended) {
            return;
        }
        if let (Some(template), Some(update)) = (&template, rolling)
            && self.roll(id, replicas, template, update)
        {
            return;
        }
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
            // The scheduler tick creates daemons. Bare pods are not replaced, and a buffer has no
            // pods.
            WorkloadKind::DaemonSet | WorkloadKind::Pod | WorkloadKind::CapacityBuffer => {}
        }
    }

    fn active_pods(&self, id: &WorkloadId) -> Vec<PodKey> {
        self.pods.owned_by(id).filter(|pod| pod.is_active()).map(pod_key).collect()
    }

    fn stop_outdated(&mut self, id: &WorkloadId, template: &str) {
        let admitted = self.admit(id, template);
        let current = |key: &str| key == template || key == admitted;
        let outdated = |pod: &&Pod| pod.is_active() && !current(&pod.template);
        let outdated: Vec<PodKey> = self.pods.owned_by(id).filter(outdated).map(pod_key).collect();
        for pod in outdated {
            self.stop_pod(&pod);
        }
    }

    /// Advances a rolling update. Returns false once no outdated pod is left.
    fn roll(
        &mut self,
        id: &WorkloadId,
        replicas: u32,
        template: &str,
        update: RollingUpdate,
    ) -> bool {
        let admitted = self.admit(id, template);
        let pods: Vec<&Pod> = self.pods.owned_by(id).filter(|pod| pod.is_active()).collect();
        let is_outdated = |pod: &&Pod| *pod.template != *template && *pod.template != *admitted;
        let (outdated, current): (Vec<&Pod>, Vec<&Pod>) = pods.into_iter().partition(is_outdated);
        if outdated.is_empty() {
            self.controllers.entry(id.clone()).and_modify(|known| known.rolling = None);
            return false;
        }
        let desired = usize::try_from(replicas).unwrap_or(usize::MAX);
        let (surge, unavailable) = update.limits(desired);
        let most = desired.saturating_add(surge);
        let new = desired
            .saturating_sub(current.len())
            .min(most.saturating_sub(outdated.len() + current.len()));
        let runs = |pod: &&&Pod| pod.phase == PodPhase::Running;
        let available = outdated.iter().chain(&current).filter(runs).count();
        let spare = available.saturating_sub(desired.saturating_sub(unavailable));
        // Pods that do not run are replaced first: they make nothing unavailable.
        let (running, waiting): (Vec<&Pod>, Vec<&Pod>) =
            outdated.into_iter().partition(|pod| pod.phase == PodPhase::Running);
        let stopped = waiting.into_iter().chain(running.into_iter().take(spare));
        let stopped: Vec<PodKey> = stopped.map(pod_key).collect();
        for pod in &stopped {
            self.stop_pod(pod);
        }
        for _ in 0..new {
            let name = self.generated_name(id, template);
            self.create_pod(id, name, template, None);
        }
        true
    }

    /// Returns the template of an existing pod, for workloads that were not delivered.
    pub(super) fn template_in_use(&self, id: &WorkloadId) -> Option<String> {
        self.pods.owned_by(id).map(|pod| pod.template.to_string()).next()
    }

    fn scale_replicas(&mut self, id: &WorkloadId, replicas: u32, template: &str) {
        let desired = usize::try_from(replicas).unwrap_or(usize::MAX);
        let active: Vec<&Pod> = self.pods.owned_by(id).filter(|pod| pod.is_active()).collect();
        let running = active.len();
        let surplus = surplus_pods(id.kind, active, running.saturating_sub(desired), self.now);
        let surplus: Vec<PodKey> = surplus.iter().map(|surplus| pod_key(surplus.pod)).collect();
        for pod in &surplus {
            self.stop_pod(pod);
        }
        for _ in running..desired {
            let name = self.generated_name(id, template);
            self.create_pod(id, name, template, None);
        }
    }

    fn scale_ordinals(&mut self, id: &WorkloadId, ordinals: Range<u32>, template: &str) {
        let names: BTreeSet<String> = ordinals.map(|n| format!("{}-{n}", id.name)).collect();
        for pod in self.active_pods(id).into_iter().filter(|(_, name)| !names.contains(&**name)) {
            self.stop_pod(&pod);
        }
        // A name is free only after its pod has stopped.
        for name in names {
            if self.pods.get(&(id.namespace.clone(), name.as_str().into())).is_none() {
                self.create_pod(id, name, template, None);
            }
        }
    }

    /// Creates the pod of a bare-pod workload, as its delivery tool would.
    fn create_bare_pod(&mut self, id: &WorkloadId) {
        let Some(controller) = self.controllers.get(id) else { return };
        let desired = controller.template.clone().filter(|_| controller.replicas > 0);
        let free = self.pods.get(&(id.namespace.clone(), id.name.clone())).is_none();
        match desired {
            Some(template) if free => self.create_pod(id, id.name.to_string(), &template, None),
            Some(_) => {}
            None => {
                for pod in self.active_pods(id) {
                    self.stop_pod(&pod);
                }
            }
        }
    }

    /// Creates a pod. With `node`, it is bound at once.
    pub(super) fn create_pod(
        &mut self,
        id: &WorkloadId,
        name: String,
        template: &str,
        node: Option<NodeName>,
    ) {
        let template = &self.admit(id, template);
        let uid = self.next_uid();
        let pod = Pod {
            namespace: id.namespace.clone(),
            name: name.into(),
            uid,
            owner: Some(id.clone()),
            template: template.as_str().into(),
            node: None,
            nominated: None,
            phase: PodPhase::Pending,
            created_at: self.now,
            terminating: false,
            mirror: false,
            started_at: None,
            ready_at: None,
            deletion_cost: 0,
            granted: [].into(),
        };
        let key = pod_key(&pod);
        self.pods.insert(pod);
        self.create_claims(&key, template);
        match node {
            Some(node) => self.bind_pod(&key, node),
            None => self.wake_scheduler(),
        }
    }

    /// Binds a pod to a node. It runs a little later.
    pub(super) fn bind_pod(&mut self, key: &PodKey, node: NodeName) {
        let Some(pod) = self.pods.get_mut(key) else { return };
        (pod.node, pod.nominated) = (Some(node), None);
        pod.started_at = Some(self.now);
        let pod = pod_ref(pod);
        self.after(delay::POD_RUNNING, ScheduledEvent::PodRuns { pod });
    }

    /// Stops a pod. An unbound pod is deleted at once. Others keep their resources until they have
    /// stopped.
    pub(super) fn stop_pod(&mut self, key: &PodKey) {
        let Some(pod) = self.pods.get_mut(key) else { return };
        if pod.node.is_none() {
            self.pods.remove(key);
        } else if !pod.terminating {
            pod.terminating = true;
            let pod = pod_ref(pod);
            if !self.pods_stall {
                self.after(delay::POD_STOPPED, ScheduledEvent::PodStopped { pod });
            }
        }
    }

    pub(super) fn mark_pod_running(&mut self, pod: &PodRef) {
        let now = self.now;
        let pending = |pod: &&mut Pod| pod.phase == PodPhase::Pending;
        let Some(pod) = self.pod_by_ref(pod).filter(pending) else { return };
        pod.phase = PodPhase::Running;
        pod.ready_at = Some(now);
        let Some(owner) = pod.owner.clone() else { return };
        // A rolling update continues when a pod runs.
        if self.controllers.get(&owner).is_some_and(|known| known.rolling.is_some()) {
            self.reconcile(&owner);
            self.wake_scheduler();
        }
    }

    pub(super) fn remove_stopped_pod(&mut self, pod: &PodRef) {
        let Some(owner) = self.pod_by_ref(pod).map(|pod| pod.owner.clone()) else { return };
        self.remove_and_reconcile(owner, |state| {
            let key = (pod.namespace.clone(), pod.name.clone());
            state.remove_fargate_node(&key);
            state.pods.remove(&key);
        });
        self.wake_scheduler();
    }

    /// Removes a node object and its pods.
    pub(super) fn remove_node(&mut self, name: &NodeName, uid: &Uid) {
        if self.nodes.get(name).is_none_or(|node| node.uid != *uid) {
            return;
        }
        self.nodes.remove(name);
        self.storage.attach_limits.remove(name);
        let stranded = |pod: &&Pod| pod.node.as_ref() == Some(name);
        let stranded: Vec<(PodKey, Option<WorkloadId>)> =
            self.pods.iter().filter(stranded).map(|p| (pod_key(p), p.owner.clone())).collect();
        for (key, owner) in stranded {
            self.remove_and_reconcile(owner, |state| {
                state.pods.remove(&key);
            });
        }
        // A pending pod with spread constraints may fit with one domain less.
        self.wake_scheduler();
    }

    /// Removes a pod by `remove` and reconciles its controller. The template is stored first,
    /// because for undelivered workloads only the pod contains it.
    pub(super) fn remove_and_reconcile(
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

    fn pod_by_ref(&mut self, pod: &PodRef) -> Option<&mut Pod> {
        let key = (pod.namespace.clone(), pod.name.clone());
        self.pods.get_mut(&key).filter(|found| found.uid == pod.uid)
    }

    /// Returns a unique pod name.
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
        // Suffixes repeat only after 14 million pods. A taken name comes from an observed world.
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

fn pod_ref(pod: &Pod) -> PodRef {
    PodRef { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() }
}
