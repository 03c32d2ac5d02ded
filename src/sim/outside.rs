//! What is done to a world beside the verbs of the ports: somebody works in the cluster by hand, and
//! time passes as it does outside.
//!
//! Whoever serves the world as a Kubernetes API tells it here what clients wrote, and reads from a
//! [`View`] what became of it.

use std::cell::Ref;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;

use super::budgets::Budget;
use super::controllers::key_of;
use super::state::{Controller, Due, Machine, PodKey, State};
use super::{Genesis, ShapeOf, SimError, World, delay, file};
use crate::fleet::{Instance, MadeWith, Node, Pod, PodPhase, template_key};
use crate::ids::{InstanceId, Labels, Namespace, NodeName, Uid, WorkloadId, WorkloadKind};
use crate::manifest::DisruptionBudget;
use crate::pod::{PodTemplate, Selector};
use crate::storage::Storage;

/// What a workload of the world wants and is made from.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'w> {
    /// The workload.
    pub id: &'w WorkloadId,
    /// How many pods it wants; of a `DaemonSet` nothing.
    pub replicas: u32,
    /// The number of the first pod of a `StatefulSet`.
    pub first_ordinal: u32,
    /// Key of the template of its new pods; `None` where nobody knows.
    pub template: Option<&'w str>,
}

/// A disruption budget, and what it allows now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowance {
    /// Namespace.
    pub namespace: Namespace,
    /// Name.
    pub name: String,
    /// The pods it protects; `None`: no pod.
    pub selector: Option<Selector>,
    /// The least that must serve, as written.
    pub min_available: Option<String>,
    /// The most that may be away, as written.
    pub max_unavailable: Option<String>,
    /// How many pods it protects.
    pub expected: i64,
    /// How many of them serve.
    pub healthy: i64,
    /// How many may go now.
    pub allowed: i64,
}

/// A look at a world, during which it stands still.
pub struct View<'w>(Ref<'w, State>);

impl std::fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").finish_non_exhaustive()
    }
}

impl View<'_> {
    /// Returns the nodes, by name.
    #[must_use]
    pub fn nodes(&self) -> &BTreeMap<NodeName, Node> {
        &self.0.nodes
    }

    /// Returns the instances, by id.
    #[must_use]
    pub fn instances(&self) -> &BTreeMap<InstanceId, Instance> {
        &self.0.instances
    }

    /// Returns the pods, by namespace and name.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.0.pods.iter()
    }

    /// Returns a template by its key.
    #[must_use]
    pub fn template(&self, key: &str) -> Option<&Arc<PodTemplate>> {
        self.0.templates.get(key)
    }

    /// Returns the workloads.
    pub fn workloads(&self) -> impl Iterator<Item = Wanted<'_>> {
        self.0.controllers.iter().map(|(id, controller)| Wanted {
            id,
            replicas: controller.replicas,
            first_ordinal: controller.first_ordinal,
            template: controller.template.as_deref(),
        })
    }

    /// Returns the labels of namespaces.
    #[must_use]
    pub fn namespaces(&self) -> &BTreeMap<Namespace, Labels> {
        &self.0.namespaces
    }

    /// Returns classes, volumes, claims, and what nodes can attach.
    #[must_use]
    pub fn storage(&self) -> &Storage {
        &self.0.storage
    }

    /// Returns the disruption budgets, and what each allows now.
    pub fn budgets(&self) -> impl Iterator<Item = Allowance> + '_ {
        self.0.budgets.iter().map(|budget| self.0.allowance(budget))
    }
}

impl World {
    /// Makes a world that is kept nowhere from what is kept in `dir`; `None` where nothing is.
    ///
    /// # Errors
    /// When the file cannot be read, is broken, or is of a newer major version.
    pub fn copied(
        dir: &Path,
        genesis: &Genesis,
        shape_of: &ShapeOf,
    ) -> Result<Option<Self>, SimError> {
        let found = file::load(&dir.join(file::NAME), genesis, shape_of)?;
        Ok(found.map(|state| Self::of(state, None)))
    }

    /// Has everything that begins from now on take a `pace`-th of its time.
    pub fn quicken(&self, pace: u32) {
        self.state.borrow_mut().pace = pace.max(1);
    }

    /// Lets time pass until `now`; returns whether anything happened.
    pub fn pass(&self, now: Timestamp) -> bool {
        let mut state = self.state.borrow_mut();
        let due = state.timers.first().is_some_and(|timer| timer.at <= now);
        state.advance(now);
        due
    }

    /// Returns the moment that it is in the world.
    #[must_use]
    pub fn observed_at(&self) -> Timestamp {
        self.state.borrow().now
    }

    /// Returns an instance, whoever it belongs to.
    #[must_use]
    pub fn instance(&self, id: &InstanceId) -> Option<Instance> {
        self.state.borrow().instances.get(id).cloned()
    }

    /// Returns a look at the world.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View(self.state.borrow())
    }

    /// Changes what whoever administers a cluster may change of a node: labels, annotations, taints,
    /// and whether pods may come. Another node, or none, is left alone.
    pub fn change_node(&self, changed: &Node) {
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

    /// Sets a tag of a machine, as whoever has access to the account may.
    pub fn tag_instance(&self, id: &InstanceId, key: &str, value: &str) {
        if let Some(instance) = self.state.borrow_mut().instances.get_mut(id) {
            instance.tags.insert(key.to_owned(), value.to_owned());
        }
    }

    /// Releases a new image behind what node classes call `words`, as AWS does behind `al2023@latest`.
    pub fn release_image(&self, words: &str) {
        self.state.borrow_mut().release_image(words);
    }

    /// Says what a machine was made with, subnet included, unless that is known.
    pub fn set_made_with(&self, id: &InstanceId, made_with: MadeWith) {
        let mut state = self.state.borrow_mut();
        let known = |instance: &&mut Instance| instance.made_with.subnet.is_none();
        if let Some(instance) = state.instances.get_mut(id).filter(known) {
            instance.made_with = made_with;
        }
    }

    /// Has EC2 take a machine back, as it does with spot capacity and broken hardware.
    pub fn reclaim(&self, id: &InstanceId) {
        self.state.borrow_mut().terminate(id);
    }

    /// Has the next node that joins be called `name`, as where EC2 gives an address again that is free.
    pub fn name_next_node(&self, name: NodeName) {
        self.state.borrow_mut().next_name = Some(name);
    }

    /// Has the kubelet of a machine fall silent: its node is no longer Ready, and one that has not
    /// joined yet never does.
    pub fn silence(&self, id: &InstanceId) {
        let mut state = self.state.borrow_mut();
        state.timers.retain(|timer| timer.due.boots() != Some(id));
        if let Some(node) = state.node_mut(id) {
            node.ready = false;
        }
    }

    /// Removes a node object, and with it its pods. The kubelet of a machine that runs registers
    /// again.
    pub fn forget_node(&self, name: &NodeName, uid: &Uid) {
        let mut state = self.state.borrow_mut();
        let Some(node) = state.nodes.get(name).filter(|node| node.uid == *uid).cloned() else {
            return;
        };
        state.remove_node(name, uid);
        let runs = |id: &_| state.instances.get(id).is_some_and(Instance::is_active);
        let Some(instance) = node.instance.filter(runs) else { return };
        let machine = Machine {
            labels: node.labels,
            taints: node.taints,
            startup_taints: Vec::new(),
            capacity: node.capacity,
            allocatable: node.allocatable,
        };
        state.machines.insert(instance.clone(), machine);
        state.after(delay::RUNNING, Due::Registers { instance: instance.clone() });
        state.after(delay::RUNNING, Due::Ready { instance });
    }

    /// Has a pod go; its controller makes another one. With `at_once` nothing waits for it to stop.
    pub fn remove_pod(&self, namespace: &Namespace, name: &str, uid: &Uid, at_once: bool) {
        let mut state = self.state.borrow_mut();
        let key: PodKey = (namespace.clone(), name.into());
        let Some(pod) = state.pods.get(&key).filter(|pod| pod.uid == *uid).cloned() else { return };
        let bare = pod.owner.as_ref().filter(|owner| owner.kind == WorkloadKind::Pod).cloned();
        state.replace_after(pod.owner, |state| {
            if at_once {
                state.pods.remove(&key);
            } else {
                state.stop(&key);
            }
        });
        if let Some(bare) = bare {
            state.controllers.remove(&bare);
        }
        state.wake_scheduler();
    }

    /// Makes a pod that no controller looks after.
    pub fn add_pod(&self, id: &WorkloadId, uid: Uid, template: &Arc<PodTemplate>) {
        let mut state = self.state.borrow_mut();
        let key = template_key(template);
        state.templates.insert(key.clone(), Arc::clone(template));
        let pod = Pod {
            namespace: id.namespace.clone(),
            name: Arc::clone(&id.name),
            uid,
            owner: Some(id.clone()),
            template: key.clone(),
            node: None,
            phase: PodPhase::Pending,
            created_at: state.now,
            terminating: false,
            mirror: false,
            started_at: None,
            granted: BTreeMap::new(),
        };
        let controller =
            Controller { replicas: 1, first_ordinal: 0, delivered: false, template: Some(key) };
        state.controllers.insert(id.clone(), controller);
        let (place, chosen) =
            (key_of(&pod), template.spec.node_name.as_deref().map(NodeName::from));
        state.pods.insert(pod);
        match chosen.filter(|node| state.nodes.contains_key(node)) {
            Some(node) => state.bind(&place, node),
            None => state.wake_scheduler(),
        }
    }

    /// Binds a pod that waits, as a scheduler beside the world's own would.
    pub fn bind_pod(&self, namespace: &Namespace, name: &str, uid: &Uid, node: &NodeName) {
        let mut state = self.state.borrow_mut();
        let key: PodKey = (namespace.clone(), name.into());
        let waits = state.pods.get(&key).is_some_and(|pod| pod.uid == *uid && pod.node.is_none());
        if waits && state.nodes.contains_key(node) {
            state.provision_for(&key, node);
            state.bind(&key, node.clone());
        }
    }

    /// Has a workload want so many pods of that template, a `StatefulSet` from that ordinal on.
    pub fn set_workload(
        &self,
        id: &WorkloadId,
        (replicas, first_ordinal): (u32, u32),
        template: &Arc<PodTemplate>,
    ) {
        let mut state = self.state.borrow_mut();
        let key = template_key(template);
        state.templates.insert(key.clone(), Arc::clone(template));
        let controller =
            Controller { replicas, first_ordinal, delivered: true, template: Some(key) };
        state.controllers.insert(id.clone(), controller);
        state.reconcile(id);
        state.wake_scheduler();
    }

    /// Takes a workload away, and its pods with it.
    pub fn drop_workload(&self, id: &WorkloadId) {
        let mut state = self.state.borrow_mut();
        if state.controllers.remove(id).is_none() {
            return;
        }
        let pods: Vec<PodKey> = state.pods.of(id).map(key_of).collect();
        for pod in pods {
            state.stop(&pod);
        }
        state.wake_scheduler();
    }

    /// Sets a disruption budget, or changes the one of that name.
    pub fn set_budget(&self, budget: &DisruptionBudget) {
        let mut state = self.state.borrow_mut();
        let same = |held: &Budget| held.namespace == budget.namespace && held.name == budget.name;
        state.budgets.retain(|held| !same(held));
        state.budgets.push(Budget::from(budget));
    }

    /// Takes a disruption budget away.
    pub fn drop_budget(&self, namespace: &str, name: &str) {
        let mut state = self.state.borrow_mut();
        state.budgets.retain(|held| held.namespace.as_str() != namespace || held.name != name);
    }

    /// Sets the labels of a namespace.
    pub fn set_namespace(&self, name: Namespace, labels: Labels) {
        self.state.borrow_mut().namespaces.insert(name, labels);
    }

    /// Adds classes, volumes and claims; those that are there stay.
    pub fn add_storage(&self, storage: &Storage) {
        let mut state = self.state.borrow_mut();
        state.deliver_storage(storage);
        state.wake_scheduler();
    }
}
