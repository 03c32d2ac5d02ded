//! Changes outside the ports: manual operations in the cluster, and real time.
//!
//! The sandbox API applies the writes of its clients here, and reads the result from a
//! [`WorldView`].

use std::cell::Ref;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;

use super::disruption_budgets::BudgetStatus;
use super::state::{
    NodeRegistration, PodKey, ScheduledEvent, WorkloadController, WorldBudget, WorldState, pod_key,
};
use super::{RollingUpdate, ShapeFn, SimError, World, WorldInit, delay, world_file};
use crate::model::desired::DisruptionBudget;
use crate::model::ids::{InstanceId, Labels, Namespace, NodeName, Uid, WorkloadId, WorkloadKind};
use crate::model::observed::{
    Instance, LaunchedWith, LiveJob, Node, Pod, PodPhase, UnreadObject, template_key,
};
use crate::model::pod::PodTemplate;
use crate::model::storage::Storage;
use crate::model::units::Resources;

/// A workload of the world.
#[derive(Debug, Clone, Copy)]
pub struct WorkloadView<'w> {
    /// The workload.
    pub id: &'w WorkloadId,
    /// Desired replicas. Zero for a `DaemonSet`.
    pub replicas: u32,
    /// The first ordinal of a `StatefulSet`.
    pub first_ordinal: u32,
    /// Key of the template of new pods, if known.
    pub template: Option<&'w str>,
    /// True while a rolling update replaces outdated pods.
    pub is_rolling: bool,
}

/// A read-only view of a world. The world cannot change while the view exists.
pub struct WorldView<'w>(Ref<'w, WorldState>);

impl std::fmt::Debug for WorldView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").finish_non_exhaustive()
    }
}

impl WorldView<'_> {
    /// Returns the nodes, by name.
    pub fn nodes(&self) -> &BTreeMap<NodeName, Node> {
        &self.0.nodes
    }

    /// Returns the instances, by id.
    pub fn instances(&self) -> &BTreeMap<InstanceId, Instance> {
        &self.0.instances
    }

    /// Returns the pods, by namespace and name.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.0.pods.iter()
    }

    /// Returns a template by its key.
    pub fn template(&self, key: &str) -> Option<&Arc<PodTemplate>> {
        self.0.templates.get(key)
    }

    /// Returns the workloads.
    pub fn workloads(&self) -> impl Iterator<Item = WorkloadView<'_>> {
        self.0.controllers.iter().map(workload_view)
    }

    /// Returns a workload by its id.
    pub fn workload(&self, id: &WorkloadId) -> Option<WorkloadView<'_>> {
        self.0.controllers.get_key_value(id).map(workload_view)
    }

    /// Returns the failures of a Job whose limits are known.
    pub fn job(&self, id: &WorkloadId) -> Option<&LiveJob> {
        self.0.jobs.get(id)
    }

    /// Returns how often the scheduler has run.
    pub fn scheduler_runs(&self) -> u64 {
        self.0.counters.ticks
    }

    /// Returns the labels of namespaces.
    pub fn namespaces(&self) -> &BTreeMap<Namespace, Labels> {
        &self.0.namespaces
    }

    /// Returns storage classes, volumes, claims and attach limits.
    pub fn storage(&self) -> &Storage {
        &self.0.storage
    }

    /// Returns the disruption budgets with their current status.
    pub fn budgets(&self) -> impl Iterator<Item = BudgetStatus> + '_ {
        self.0.budgets.iter().map(|budget| self.0.budget_status(budget))
    }
}

fn workload_view<'w>(
    (id, controller): (&'w WorkloadId, &'w WorkloadController),
) -> WorkloadView<'w> {
    WorkloadView {
        id,
        replicas: controller.replicas,
        first_ordinal: controller.first_ordinal,
        template: controller.template.as_deref(),
        is_rolling: controller.rolling.is_some(),
    }
}

impl World {
    /// Copies the world of `dir` into memory. Returns `None` if there is none.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is invalid, or has a newer major version.
    pub fn copy_in_memory(
        dir: &Path,
        genesis: &WorldInit,
        pod_shape: &ShapeFn,
    ) -> Result<Option<Self>, SimError> {
        let found = world_file::load(&dir.join(world_file::NAME), genesis, pod_shape)?;
        Ok(found.map(|state| Self::from_state(state, None)))
    }

    /// Divides the duration of all further processes by `speedup`.
    pub fn set_speedup(&self, speedup: u32) {
        self.state.borrow_mut().speedup = speedup.max(1);
    }

    /// Advances the time to `now`. Returns whether any event was due.
    pub fn advance_to(&self, now: Timestamp) -> bool {
        let mut state = self.state.borrow_mut();
        let due = state.timers.first().is_some_and(|timer| timer.at <= now);
        state.advance(now);
        due
    }

    /// Returns the current time of the world.
    pub fn current_time(&self) -> Timestamp {
        self.state.borrow().now
    }

    /// Returns an instance, including foreign ones.
    pub fn instance(&self, id: &InstanceId) -> Option<Instance> {
        self.state.borrow().instances.get(id).cloned()
    }

    /// Returns a view of the world.
    pub fn view(&self) -> WorldView<'_> {
        WorldView(self.state.borrow())
    }

    /// Updates the fields of a node that an administrator may change: labels, annotations, taints,
    /// and schedulability. A node with another UID is left alone.
    pub fn update_node(&self, changed: &Node) {
        let mut state = self.state.borrow_mut();
        let same = |node: &&mut Node| node.uid == changed.uid;
        if let Some(node) = state.nodes.get_mut(&changed.name).filter(same) {
            node.labels.clone_from(&changed.labels);
            node.annotations.clone_from(&changed.annotations);
            node.taints.clone_from(&changed.taints);
            node.unschedulable = changed.unschedulable;
            node.faults.clone_from(&changed.faults);
            state.wake_scheduler();
        }
    }

    /// Sets the resources that the kubelet of an instance reports, right or wrong.
    pub fn set_reported_by(&self, id: &InstanceId, capacity: Resources, allocatable: Resources) {
        let mut state = self.state.borrow_mut();
        if let Some(node) = state.node_mut(id) {
            (node.capacity, node.allocatable) = (capacity, allocatable);
        }
        state.wake_scheduler();
    }

    /// Sets a tag of an instance, as an account user may.
    pub fn tag_instance(&self, id: &InstanceId, key: &str, value: &str) {
        if let Some(instance) = self.state.borrow_mut().instances.get_mut(id) {
            instance.tags.insert(key.to_owned(), value.to_owned());
        }
    }

    /// Removes a tag of an instance, as an account user may. Returns its value.
    pub fn untag_instance(&self, id: &InstanceId, key: &str) -> Option<String> {
        self.state.borrow_mut().instances.get_mut(id)?.tags.remove(key)
    }

    /// Releases a new image for the selector `words` of node classes, as AWS does for
    /// `al2023@latest`.
    pub fn release_image(&self, words: &str) {
        self.state.borrow_mut().release_image(words);
    }

    /// Sets the launch details of an instance, including its subnet, unless they are known.
    pub fn set_launched_with(&self, id: &InstanceId, launched_with: LaunchedWith) {
        let mut state = self.state.borrow_mut();
        let known = |instance: &&mut Instance| instance.launched_with.subnet.is_none();
        if let Some(instance) = state.instances.get_mut(id).filter(known) {
            instance.launched_with = launched_with;
        }
    }

    /// Terminates an instance as EC2 does for spot capacity and failed hardware.
    pub fn reclaim_instance(&self, id: &InstanceId) {
        self.state.borrow_mut().terminate(id);
    }

    /// Sets the name of the next node, as if EC2 reused a free address.
    pub fn set_next_node_name(&self, name: NodeName) {
        self.state.borrow_mut().next_node_name = Some(name);
    }

    /// Stops the kubelet of an instance, so that its node becomes `NotReady`. A node that has not
    /// joined yet never joins.
    pub fn stop_kubelet(&self, id: &InstanceId) {
        let mut state = self.state.borrow_mut();
        state.timers.retain(|timer| timer.due.booting_instance() != Some(id));
        if let Some(node) = state.node_mut(id) {
            node.was_ready |= node.ready;
            node.ready = false;
        }
    }

    /// Lets pods that are asked to stop never end, as with a finalizer.
    pub fn stall_pods(&self) {
        self.state.borrow_mut().pods_stall = true;
    }

    /// Removes a node object and its pods. The kubelet of a running instance registers again.
    pub fn remove_node_object(&self, name: &NodeName, uid: &Uid) {
        let mut state = self.state.borrow_mut();
        let Some(node) = state.nodes.get(name).filter(|node| node.uid == *uid).cloned() else {
            return;
        };
        state.remove_node(name, uid);
        let runs = |id: &_| state.instances.get(id).is_some_and(Instance::is_active);
        let Some(instance) = node.instance.filter(runs) else { return };
        let registration = NodeRegistration {
            labels: node.labels,
            taints: node.taints,
            startup_taints: Vec::new(),
            capacity: node.capacity,
            allocatable: node.allocatable,
        };
        state.registrations.insert(instance.clone(), registration);
        state.after(delay::RUNNING, ScheduledEvent::Registers { instance: instance.clone() });
        state.after(delay::RUNNING, ScheduledEvent::Ready { instance });
    }

    /// Deletes a pod, and its controller replaces it. With `at_once`, the pod does not stop
    /// gracefully.
    pub fn remove_pod(&self, namespace: &Namespace, name: &str, uid: &Uid, at_once: bool) {
        let mut state = self.state.borrow_mut();
        let key: PodKey = (namespace.clone(), name.into());
        let Some(pod) = state.pods.get(&key).filter(|pod| pod.uid == *uid).cloned() else { return };
        let bare = pod.owner.as_ref().filter(|owner| owner.kind == WorkloadKind::Pod).cloned();
        state.remove_and_reconcile(pod.owner, |state| {
            if at_once {
                state.pods.remove(&key);
            } else {
                state.stop_pod(&key);
            }
        });
        if let Some(bare) = bare {
            state.controllers.remove(&bare);
        }
        state.wake_scheduler();
    }

    /// Creates a pod without a controller.
    pub fn add_pod(&self, id: &WorkloadId, uid: Uid, template: &Arc<PodTemplate>) {
        let mut state = self.state.borrow_mut();
        let key = template_key(template);
        state.templates.insert(key.clone(), Arc::clone(template));
        let pod = Pod {
            namespace: id.namespace.clone(),
            name: Arc::clone(&id.name),
            uid,
            owner: Some(id.clone()),
            template: key.as_str().into(),
            node: None,
            nominated: None,
            phase: PodPhase::Pending,
            created_at: state.now,
            terminating: false,
            mirror: false,
            started_at: None,
            ready_at: None,
            deletion_cost: 0,
            granted: BTreeMap::new(),
        };
        let controller = WorkloadController {
            replicas: 1,
            first_ordinal: 0,
            delivered: false,
            template: Some(key),
            rolling: None,
            job: None,
        };
        state.controllers.insert(id.clone(), controller);
        let (bound_key, chosen) =
            (pod_key(&pod), template.spec.node_name.as_deref().map(NodeName::from));
        state.pods.insert(pod);
        match chosen.filter(|node| state.nodes.contains_key(node)) {
            Some(node) => state.bind_pod(&bound_key, node),
            None => state.wake_scheduler(),
        }
    }

    /// Returns why no node fits these pods now. Pods that fit a node are left out.
    pub fn unschedulable_reasons(&self, pods: &[(Namespace, Arc<str>)]) -> Vec<(Pod, String)> {
        if pods.is_empty() {
            return Vec::new();
        }
        self.state.borrow_mut().unschedulable_reasons(pods)
    }

    /// Binds a pending pod, as an additional scheduler would.
    pub fn bind_pod(&self, namespace: &Namespace, name: &str, uid: &Uid, node: &NodeName) {
        let mut state = self.state.borrow_mut();
        let key: PodKey = (namespace.clone(), name.into());
        let is_pending =
            state.pods.get(&key).is_some_and(|pod| pod.uid == *uid && pod.node.is_none());
        if is_pending && state.nodes.contains_key(node) {
            state.provision_pod_volumes(&key, node);
            state.bind_pod(&key, node.clone());
        }
    }

    /// Sets replicas, first ordinal and template of a workload.
    pub fn set_workload(
        &self,
        id: &WorkloadId,
        replicas: u32,
        first_ordinal: u32,
        template: &Arc<PodTemplate>,
    ) {
        let mut state = self.state.borrow_mut();
        let key = template_key(template);
        state.templates.insert(key.clone(), Arc::clone(template));
        let controller = WorkloadController {
            replicas,
            first_ordinal,
            delivered: true,
            template: Some(key),
            rolling: None,
            job: None,
        };
        state.controllers.insert(id.clone(), controller);
        state.reconcile(id);
        state.wake_scheduler();
    }

    /// Sets the replicas of a workload, as an autoscaler does through its scale subresource.
    pub fn set_replicas(&self, id: &WorkloadId, replicas: u32) {
        let mut state = self.state.borrow_mut();
        let Some(controller) = state.controllers.get_mut(id) else { return };
        controller.replicas = replicas;
        state.reconcile(id);
        state.wake_scheduler();
    }

    /// Sets the template of a Deployment and replaces its pods by a rolling update.
    pub fn roll_out(&self, id: &WorkloadId, template: &Arc<PodTemplate>, update: RollingUpdate) {
        let mut state = self.state.borrow_mut();
        let key = template_key(template);
        state.templates.insert(key.clone(), Arc::clone(template));
        let Some(controller) = state.controllers.get_mut(id) else { return };
        (controller.template, controller.rolling) = (Some(key), Some(update));
        state.reconcile(id);
        state.wake_scheduler();
    }

    /// Removes a workload and its pods.
    pub fn remove_workload(&self, id: &WorkloadId) {
        let mut state = self.state.borrow_mut();
        if state.controllers.remove(id).is_none() {
            return;
        }
        state.jobs.remove(id);
        let pods: Vec<PodKey> = state.pods.owned_by(id).map(pod_key).collect();
        for pod in pods {
            state.stop_pod(&pod);
        }
        state.wake_scheduler();
    }

    /// Creates or replaces a disruption budget.
    pub fn set_budget(&self, budget: &DisruptionBudget) {
        let mut state = self.state.borrow_mut();
        let same = |current: &WorldBudget| {
            current.namespace == budget.namespace && current.name == budget.name
        };
        state.budgets.retain(|current| !same(current));
        state.budgets.push(WorldBudget::from(budget));
    }

    /// Removes a disruption budget.
    pub fn remove_budget(&self, namespace: &str, name: &str) {
        let mut state = self.state.borrow_mut();
        state
            .budgets
            .retain(|current| current.namespace.as_str() != namespace || current.name != name);
    }

    /// Sets the objects that clients cannot understand.
    pub fn set_unread(&self, objects: Vec<UnreadObject>) {
        self.state.borrow_mut().unread = objects;
    }

    /// Sets the labels of a namespace.
    pub fn set_namespace(&self, name: Namespace, labels: Labels) {
        self.state.borrow_mut().namespaces.insert(name, labels);
    }

    /// Adds storage classes, volumes and claims. Existing ones stay.
    pub fn add_storage(&self, storage: &Storage) {
        let mut state = self.state.borrow_mut();
        state.deliver_storage(storage);
        state.wake_scheduler();
    }
}
