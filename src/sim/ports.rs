//! The ports, over the state of a world.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::World;
use super::controllers::key_of;
use super::journal::{self, Entry};
use super::ledger::Call;
use super::state::State;
use crate::fleet::{CORDONED_ANNOTATION, CordonedFor, Instance, Node, Pod, tag};
use crate::ids::{GroupName, InstanceId, NodeName, Uid};
use crate::port::{
    Clock, Cloud, Cluster, ClusterObjects, CordonOutcome, EvictOutcome, Fate, Holdings,
    LaunchOutcome, LaunchRequest, NodeNow, PortError, Tagger,
};

/// Returns the error of a verb that the world refused; the same call is refused again.
fn refused(verb: &str, reason: String) -> PortError {
    PortError { verb: verb.to_owned(), reason, fate: Fate::Refused }
}

impl World {
    /// Fails a verb after a write that could not be reported when it failed.
    fn check_saved(&self, verb: &str) -> Result<(), PortError> {
        match self.unsaved.borrow().as_ref() {
            None => Ok(()),
            Some(error) => Err(refused(verb, error.to_string())),
        }
    }

    /// Keeps what EC2 was told before the verb returns.
    fn keep(&self, verb: &str, entry: &Entry) -> Result<(), PortError> {
        let Some(path) = &self.path else { return Ok(()) };
        let failed =
            |error| refused(verb, format!("cannot keep it beside {}: {error}", path.display()));
        journal::append(path, entry).map_err(failed)
    }

    fn record(&self, call: impl FnOnce(Timestamp) -> Call) {
        self.ledger.borrow_mut().push(call(self.now()));
    }
}

impl Cloud for World {
    async fn holdings(&self) -> Result<Holdings, PortError> {
        self.check_saved("read account")?;
        let state = self.state.borrow();
        let ours = |instance: &&Instance| {
            instance.group.is_some()
                || instance.tags.get(tag::CLUSTER).is_some_and(|name| *name == state.cluster.name)
        };
        Ok(Holdings {
            instances: state.instances.values().filter(ours).cloned().collect(),
            groups: state.groups.values().cloned().collect(),
            reservations: state.reservations.values().cloned().collect(),
            fargate_profiles: state.fargate_profiles.values().cloned().collect(),
            resolved: state.resolved.clone(),
            unread: Vec::new(),
        })
    }

    async fn launch(&self, request: &LaunchRequest) -> Result<LaunchOutcome, PortError> {
        const VERB: &str = "launch instance";
        self.check_saved(VERB)?;
        let result = self.state.borrow_mut().launch(request);
        let outcome = result.as_ref().ok().cloned();
        if matches!(outcome, Some(LaunchOutcome::Launched(_))) {
            self.keep(VERB, &Entry::Launch { request: Box::new(request.clone()) })?;
        }
        self.record(|at| Call::Launch { at, request: Box::new(request.clone()), outcome });
        result.map_err(|reason| refused(VERB, reason))
    }

    async fn raise_group(&self, group: &GroupName, desired: u32) -> Result<(), PortError> {
        const VERB: &str = "raise group";
        self.check_saved(VERB)?;
        let result = self.state.borrow_mut().raise_group(group, desired);
        self.record(|at| Call::RaiseGroup { at, group: group.clone(), desired });
        result.map_err(|reason| refused(VERB, reason))?;
        self.keep(VERB, &Entry::RaiseGroup { group: group.clone(), desired })
    }

    async fn end_member(&self, id: &InstanceId) -> Result<(), PortError> {
        const VERB: &str = "end member of group";
        self.check_saved(VERB)?;
        let result = self.state.borrow_mut().end_member(id);
        self.record(|at| Call::EndMember { at, instance: id.clone() });
        result.map_err(|reason| refused(VERB, reason))?;
        self.keep(VERB, &Entry::EndMember { instance: id.clone() })
    }

    async fn terminate(&self, id: &InstanceId) -> Result<(), PortError> {
        const VERB: &str = "terminate instance";
        self.check_saved(VERB)?;
        self.state.borrow_mut().terminate(id);
        self.record(|at| Call::Terminate { at, instance: id.clone() });
        self.keep(VERB, &Entry::Terminate { instance: id.clone() })
    }
}

impl Tagger for World {
    async fn tag(&self, id: &InstanceId, tags: &BTreeMap<String, String>) -> Result<(), PortError> {
        const VERB: &str = "tag instance";
        self.check_saved(VERB)?;
        self.state.borrow_mut().tag(id, tags).map_err(|reason| refused(VERB, reason))?;
        self.keep(VERB, &Entry::Tag { instance: id.clone(), tags: tags.clone() })
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
            storage: observed.storage,
            scaling: observed.scaling,
            unread: Vec::new(),
        })
    }

    async fn node(&self, name: &NodeName) -> Result<NodeNow, PortError> {
        self.check_saved("read node")?;
        let observed = self.state.borrow().observed();
        let on = |pod: &Arc<Pod>| pod.node.as_ref() == Some(name);
        Ok(NodeNow {
            node: observed.nodes.get(name).cloned(),
            pods: observed.pods.into_iter().filter(on).collect(),
        })
    }

    async fn cordon(
        &self,
        node: &Node,
        mark: Option<CordonedFor>,
    ) -> Result<CordonOutcome, PortError> {
        const VERB: &str = "cordon node";
        self.check_saved(VERB)?;
        let outcome = self.state.borrow_mut().cordon(node, mark);
        if outcome == CordonOutcome::Written {
            let (node, unschedulable) = (node.name.clone(), mark.is_some());
            self.record(|at| Call::Cordon { at, node, unschedulable });
        }
        Ok(outcome)
    }

    async fn evict(&self, pod: &Pod) -> Result<EvictOutcome, PortError> {
        const VERB: &str = "evict pod";
        self.check_saved(VERB)?;
        let result = self.state.borrow_mut().evict(pod);
        let outcome = result.as_ref().ok().cloned();
        let (namespace, name) = (pod.namespace.clone(), pod.name.to_string());
        self.record(|at| Call::Evict { at, namespace, name, outcome });
        result.map_err(|reason| refused(VERB, reason))
    }

    async fn delete_node(&self, node: &NodeName, uid: &Uid) -> Result<(), PortError> {
        const VERB: &str = "delete node";
        self.check_saved(VERB)?;
        self.record(|at| Call::DeleteNode { at, node: node.clone() });
        let result = self.state.borrow_mut().delete_node(node, uid);
        result.map_err(|reason| refused(VERB, reason))
    }
}

impl Clock for World {
    fn now(&self) -> Timestamp {
        self.state.borrow().now
    }

    async fn sleep(&self, duration: SignedDuration) {
        let until = super::state::later(self.now(), duration.max(SignedDuration::ZERO));
        self.state.borrow_mut().advance(until);
        // A sleep cannot fail: the next verb does.
        let failed = self.save().err();
        *self.unsaved.borrow_mut() = failed;
    }
}

impl State {
    fn cordon(&mut self, seen: &Node, mark: Option<CordonedFor>) -> CordonOutcome {
        let as_seen = |node: &&mut Node| node.cordon() == seen.cordon();
        let Some(node) = self.nodes.get_mut(&seen.name).filter(as_seen) else {
            return CordonOutcome::Outdated;
        };
        node.unschedulable = mark.is_some();
        if let Some(mark) = mark {
            node.annotations.insert(CORDONED_ANNOTATION.to_owned(), mark.as_str().to_owned());
        } else {
            node.annotations.remove(CORDONED_ANNOTATION);
            self.wake_scheduler();
        }
        CordonOutcome::Written
    }

    fn evict(&mut self, pod: &Pod) -> Result<EvictOutcome, String> {
        let key = key_of(pod);
        let same = |found: &&Pod| found.uid == pod.uid && !found.terminating;
        let Some(found) = self.pods.get(&key).filter(same).cloned() else {
            return Ok(EvictOutcome::Evicted);
        };
        if found.mirror {
            return Err(format!("`{}/{}` is a mirror pod", pod.namespace, Arc::clone(&pod.name)));
        }
        let outcome = self.may_evict(&found)?;
        if outcome == EvictOutcome::Evicted {
            self.replace_after(found.owner, |state| state.stop(&key));
        }
        Ok(outcome)
    }

    fn delete_node(&mut self, name: &NodeName, uid: &Uid) -> Result<(), String> {
        let Some(node) = self.nodes.get(name) else { return Ok(()) };
        if node.uid != *uid {
            return Err(format!("node `{name}` has the UID {}, not {uid}", node.uid));
        }
        // The API server would obey, and the kubelet would register again: whoever deletes the node
        // of a running machine is wrong, and is told so here.
        let instance = node.instance.as_ref().and_then(|id| self.instances.get(id));
        if let Some(instance) = instance.filter(|instance| instance.is_active()) {
            return Err(format!("the instance {} of node `{name}` still runs", instance.id));
        }
        self.remove_node(name, uid);
        Ok(())
    }
}
