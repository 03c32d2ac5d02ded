//! Implements the ports on the state of a world.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::World;
use super::call_log::PortCall;
use super::journal::{self, JournalEntry};
use super::state::{WorldState, pod_key};
use crate::apply::ports::{
    CallEffect, Clock, Cloud, CloudInventory, Cluster, ClusterObjects, CordonOutcome, EvictOutcome,
    LaunchOutcome, LaunchRequest, NodeAndPods, PortError, Tagger,
};
use crate::model::ids::{GroupName, InstanceId, NodeName, Uid};
use crate::model::node_annotations::NodeAnnotations;
use crate::model::observed::{
    CORDONED_ANNOTATION, CordonMark, GRACE_PERIOD_ANNOTATION, Instance, Node, Pod, tag,
};
use crate::model::pod::OPENING_TAINT;

/// Returns a permanent error.
fn refused(verb: &str, reason: String) -> PortError {
    PortError { verb: verb.to_owned(), reason, effect: CallEffect::Refused }
}

impl World {
    /// Fails a verb after an unreported write error.
    fn check_saved(&self, verb: &str) -> Result<(), PortError> {
        match self.save_error.borrow().as_ref() {
            None => Ok(()),
            Some(error) => Err(refused(verb, error.to_string())),
        }
    }

    /// Appends an EC2 call to the journal before the verb returns.
    fn append_journal(&self, verb: &str, entry: &JournalEntry) -> Result<(), PortError> {
        let Some(path) = &self.path else { return Ok(()) };
        let failed = |error| {
            refused(verb, format!("cannot append to the journal of {}: {error}", path.display()))
        };
        journal::append(path, entry).map_err(failed)
    }

    fn log_call(&self, call: impl FnOnce(Timestamp) -> PortCall) {
        self.calls.borrow_mut().push(call(self.now()));
    }
}

impl Cloud for World {
    async fn inventory(&self) -> Result<CloudInventory, PortError> {
        self.check_saved("read account")?;
        let state = self.state.borrow();
        let ours = |instance: &&Instance| {
            instance.group.is_some()
                || instance.tags.get(tag::CLUSTER).is_some_and(|name| *name == state.cluster.name)
        };
        Ok(CloudInventory {
            instances: state.instances.values().filter(ours).cloned().collect(),
            groups: state.groups.values().cloned().collect(),
            reservations: state.reservations.values().cloned().collect(),
            fargate_profiles: state.fargate_profiles.values().cloned().collect(),
            resolved: state.resolved.clone(),
            unread: Vec::new(),
        })
    }

    async fn find_instances(&self, ids: &BTreeSet<InstanceId>) -> Result<Vec<Instance>, PortError> {
        self.check_saved("find instances")?;
        let state = self.state.borrow();
        Ok(ids.iter().filter_map(|id| state.instances.get(id).cloned()).collect())
    }

    async fn launch(&self, request: &LaunchRequest) -> Result<LaunchOutcome, PortError> {
        const VERB: &str = "launch instance";
        self.check_saved(VERB)?;
        let result = self.state.borrow_mut().launch(request);
        let outcome = result.as_ref().ok().cloned();
        if matches!(outcome, Some(LaunchOutcome::Launched(_))) {
            self.append_journal(
                VERB,
                &JournalEntry::Launch { request: Box::new(request.clone()) },
            )?;
        }
        self.log_call(|at| PortCall::Launch { at, request: Box::new(request.clone()), outcome });
        result.map_err(|reason| refused(VERB, reason))
    }

    async fn raise_group(&self, group: &GroupName, desired: u32) -> Result<(), PortError> {
        const VERB: &str = "raise group";
        self.check_saved(VERB)?;
        let result = self.state.borrow_mut().raise_group(group, desired);
        self.log_call(|at| PortCall::RaiseGroup { at, group: group.clone(), desired });
        result.map_err(|reason| refused(VERB, reason))?;
        self.append_journal(VERB, &JournalEntry::RaiseGroup { group: group.clone(), desired })
    }

    async fn terminate_member(&self, id: &InstanceId) -> Result<(), PortError> {
        const VERB: &str = "end member of group";
        self.check_saved(VERB)?;
        let result = self.state.borrow_mut().terminate_member(id);
        self.log_call(|at| PortCall::EndMember { at, instance: id.clone() });
        result.map_err(|reason| refused(VERB, reason))?;
        self.append_journal(VERB, &JournalEntry::EndMember { instance: id.clone() })
    }

    async fn terminate(&self, id: &InstanceId) -> Result<(), PortError> {
        const VERB: &str = "terminate instance";
        self.check_saved(VERB)?;
        self.state.borrow_mut().terminate(id);
        self.log_call(|at| PortCall::Terminate { at, instance: id.clone() });
        self.append_journal(VERB, &JournalEntry::Terminate { instance: id.clone() })
    }
}

impl Tagger for World {
    async fn tag(&self, id: &InstanceId, tags: &BTreeMap<String, String>) -> Result<(), PortError> {
        const VERB: &str = "tag instance";
        self.check_saved(VERB)?;
        self.state.borrow_mut().tag(id, tags).map_err(|reason| refused(VERB, reason))?;
        self.append_journal(VERB, &JournalEntry::Tag { instance: id.clone(), tags: tags.clone() })
    }
}

impl Cluster for World {
    async fn objects(&self) -> Result<ClusterObjects, PortError> {
        self.check_saved("read cluster")?;
        let state = self.state.borrow();
        let observed = state.observed();
        Ok(ClusterObjects {
            nodes: observed.nodes.into_values().collect(),
            pods: observed.pods,
            templates: observed.templates,
            workloads: observed.workloads,
            jobs: observed.jobs,
            storage: observed.storage,
            scaling: observed.scaling,
            unread: Vec::new(),
            unread_objects: observed.unread,
            pools: observed.pools.map(Arc::unwrap_or_clone),
        })
    }

    async fn node(&self, name: &NodeName) -> Result<NodeAndPods, PortError> {
        self.check_saved("read node")?;
        let observed = self.state.borrow().observed();
        let on = |pod: &Arc<Pod>| pod.node.as_ref() == Some(name);
        Ok(NodeAndPods {
            node: observed.nodes.get(name).cloned(),
            pods: observed.pods.into_iter().filter(on).collect(),
        })
    }

    async fn cordon(&self, node: &Node, mark: CordonMark) -> Result<CordonOutcome, PortError> {
        self.write_cordon("cordon node", node, Some(mark))
    }

    async fn uncordon(&self, node: &Node) -> Result<CordonOutcome, PortError> {
        self.write_cordon("uncordon node", node, None)
    }

    async fn open(&self, node: &Node, annotations: &NodeAnnotations) -> Result<(), PortError> {
        const VERB: &str = "open node";
        self.check_saved(VERB)?;
        self.state.borrow_mut().open(node, annotations);
        self.log_call(|at| PortCall::Open { at, node: node.name.clone() });
        Ok(())
    }

    async fn nominate(&self, pod: &Pod, node: &NodeName) -> Result<(), PortError> {
        const VERB: &str = "nominate pod";
        self.check_saved(VERB)?;
        let result = self.state.borrow_mut().nominate(pod, node);
        result.map_err(|reason| refused(VERB, reason))
    }

    async fn evict(&self, pod: &Pod) -> Result<EvictOutcome, PortError> {
        const VERB: &str = "evict pod";
        self.check_saved(VERB)?;
        let result = self.state.borrow_mut().evict(pod);
        let outcome = result.as_ref().ok().cloned();
        let (namespace, name) = (pod.namespace.clone(), pod.name.to_string());
        self.log_call(|at| PortCall::Evict { at, namespace, name, outcome });
        result.map_err(|reason| refused(VERB, reason))
    }

    async fn delete_pod(&self, pod: &Pod, grace_seconds: u32) -> Result<(), PortError> {
        const VERB: &str = "delete pod";
        self.check_saved(VERB)?;
        let (namespace, name) = (pod.namespace.clone(), pod.name.to_string());
        self.log_call(|at| PortCall::DeletePod { at, namespace, name, grace_seconds });
        self.state.borrow_mut().delete_pod(pod);
        Ok(())
    }

    async fn delete_node(&self, node: &NodeName, uid: &Uid) -> Result<(), PortError> {
        const VERB: &str = "delete node";
        self.check_saved(VERB)?;
        self.log_call(|at| PortCall::DeleteNode { at, node: node.clone() });
        let result = self.state.borrow_mut().delete_node(node, uid);
        result.map_err(|reason| refused(VERB, reason))
    }
}

impl World {
    /// Cordons a node with `mark`, or uncordons it if there is none.
    fn write_cordon(
        &self,
        verb: &str,
        node: &Node,
        mark: Option<CordonMark>,
    ) -> Result<CordonOutcome, PortError> {
        self.check_saved(verb)?;
        let outcome = self.state.borrow_mut().cordon(node, mark);
        if outcome == CordonOutcome::Written {
            let (node, unschedulable) = (node.name.clone(), mark.is_some());
            self.log_call(|at| PortCall::Cordon { at, node, unschedulable });
        }
        Ok(outcome)
    }
}

impl Clock for World {
    fn now(&self) -> Timestamp {
        self.state.borrow().now
    }

    async fn sleep(&self, duration: SignedDuration) {
        let until =
            crate::model::saturating_time::later(self.now(), duration.max(SignedDuration::ZERO));
        self.state.borrow_mut().advance(until);
        // A sleep cannot fail. The next verb reports the error.
        let failed = self.save().err();
        *self.save_error.borrow_mut() = failed;
    }
}

impl WorldState {
    fn cordon(&mut self, seen: &Node, mark: Option<CordonMark>) -> CordonOutcome {
        let as_seen = |node: &&mut Node| node.cordon_state() == seen.cordon_state();
        let Some(node) = self.nodes.get_mut(&seen.name).filter(as_seen) else {
            return CordonOutcome::Outdated;
        };
        node.unschedulable = mark.is_some();
        if let Some(mark) = mark {
            let annotations = &mut node.annotations;
            annotations.insert(CORDONED_ANNOTATION.to_owned(), mark.reason.as_str().to_owned());
            if let Some(at) = mark.grace_period_began_at {
                annotations.insert(GRACE_PERIOD_ANNOTATION.to_owned(), at.to_string());
            } else {
                annotations.remove(GRACE_PERIOD_ANNOTATION);
            }
        } else {
            node.annotations.remove(CORDONED_ANNOTATION);
            node.annotations.remove(GRACE_PERIOD_ANNOTATION);
            self.wake_scheduler();
        }
        CordonOutcome::Written
    }

    fn open(&mut self, seen: &Node, annotations: &NodeAnnotations) {
        let Some(node) = self.nodes.get_mut(&seen.name).filter(|node| node.uid == seen.uid) else {
            return;
        };
        node.taints.retain(|taint| taint.key.as_str() != OPENING_TAINT);
        for (key, value) in annotations {
            node.annotations.entry(key.clone()).or_insert_with(|| value.clone());
        }
        self.wake_scheduler();
    }

    /// Sets the nominated node of a pending pod.
    ///
    /// # Errors
    /// Returns an error if the pod no longer exists.
    pub(super) fn nominate(&mut self, pod: &Pod, node: &NodeName) -> Result<(), String> {
        let same = |found: &&mut Pod| found.uid == pod.uid;
        let found = self.pods.get_mut(&pod_key(pod)).filter(same);
        let found = found.ok_or_else(|| format!("pod `{}/{}` is gone", pod.namespace, pod.name))?;
        found.nominated = Some(node.clone());
        Ok(())
    }

    fn evict(&mut self, pod: &Pod) -> Result<EvictOutcome, String> {
        let key = pod_key(pod);
        let same = |found: &&Pod| found.uid == pod.uid && !found.terminating;
        let Some(found) = self.pods.get(&key).filter(same).cloned() else {
            return Ok(EvictOutcome::Evicted);
        };
        if found.mirror {
            return Err(format!("`{}/{}` is a mirror pod", pod.namespace, Arc::clone(&pod.name)));
        }
        let outcome = self.evaluate_eviction(&found)?;
        if outcome == EvictOutcome::Evicted {
            if let Some(owner) = &found.owner {
                self.count_evicted_pod(owner);
            }
            self.remove_and_reconcile(found.owner, |state| state.stop_pod(&key));
        }
        Ok(outcome)
    }

    fn delete_pod(&mut self, pod: &Pod) {
        let key = pod_key(pod);
        let found = self.pods.get(&key).filter(|found| found.uid == pod.uid).cloned();
        if let Some(found) = found {
            self.remove_and_reconcile(found.owner, |state| state.stop_pod(&key));
        }
    }

    fn delete_node(&mut self, name: &NodeName, uid: &Uid) -> Result<(), String> {
        let Some(node) = self.nodes.get(name) else { return Ok(()) };
        if node.uid != *uid {
            return Err(format!("node `{name}` has the UID {}, not {uid}", node.uid));
        }
        // The API server would delete the node, and its kubelet would register it again. A caller
        // that deletes the node of a running instance is wrong and gets an error here.
        let instance = node.instance.as_ref().and_then(|id| self.instances.get(id));
        if let Some(instance) = instance.filter(|instance| instance.is_active()) {
            return Err(format!("the instance {} of node `{name}` still runs", instance.id));
        }
        self.remove_node(name, uid);
        Ok(())
    }
}
