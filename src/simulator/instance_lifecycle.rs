//! Lifecycle of an instance and its node: pending, running, registered, Ready, terminated.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use super::delay;
use super::state::{ClientToken, NodeRegistration, OfferingOutage, ScheduledEvent, WorldState};
use crate::apply::ports::{LaunchOffering, LaunchOutcome, LaunchRequest, LaunchedInstance};
use crate::model::ids::{InstanceId, NodeName, Uid};
use crate::model::market::CapacityType;
use crate::model::observed::{Hardware, Instance, InstanceState, LaunchedWith, Node, tag};
use crate::model::pod::Taint;
use crate::model::requirement::key;

/// Number of node addresses in one `/24` subnet.
const NODES_PER_SUBNET: u64 = 250;

impl OfferingOutage {
    fn covers(&self, offering: &LaunchOffering, capacity_type: CapacityType) -> bool {
        self.instance_type.as_ref().is_none_or(|t| *t == offering.instance_type)
            && self.zone.as_ref().is_none_or(|z| *z == offering.zone)
            && self.capacity_type.is_none_or(|c| c == capacity_type)
    }
}

/// Returns a hash of the request without its token.
fn parameters(request: &LaunchRequest) -> String {
    let bare = LaunchRequest { token: String::new(), ..request.clone() };
    let json = serde_json::to_vec(&bare).expect("a request has text keys only");
    hex::encode(Sha256::digest(json))
}

impl ClientToken {
    /// Returns the launched instance. The offerings before it had no capacity.
    fn to_launched(&self) -> LaunchedInstance {
        let Self { instance, offering, .. } = self;
        let unavailable = (0..*offering).collect();
        LaunchedInstance { id: instance.clone(), offering: Some(*offering), unavailable }
    }
}

impl WorldState {
    /// Launches an instance of the first offering with capacity, or returns the instance that the same
    /// token launched.
    ///
    /// # Errors
    /// Returns an error if the token was used with other parameters.
    pub(super) fn launch(&mut self, request: &LaunchRequest) -> Result<LaunchOutcome, String> {
        let parameters = parameters(request);
        if let Some(used) = self.tokens.get(&request.token) {
            return if used.parameters == parameters {
                Ok(LaunchOutcome::Launched(used.to_launched()))
            } else {
                Err(format!(
                    "IdempotentParameterMismatch: token `{}` launched {} with other parameters",
                    request.token, used.instance
                ))
            };
        }
        let mut reasons = Vec::new();
        for (index, offering) in request.offerings.iter().enumerate() {
            if let Some(reason) = self.insufficient_capacity(request, offering) {
                reasons.push(reason);
                continue;
            }
            let id = self.new_instance(request, offering);
            let token = ClientToken { parameters, instance: id, offering: index };
            let launched = token.to_launched();
            self.tokens.insert(request.token.clone(), token);
            self.after(delay::TOKEN, ScheduledEvent::TokenExpired { token: request.token.clone() });
            return Ok(LaunchOutcome::Launched(launched));
        }
        Ok(LaunchOutcome::InsufficientCapacity { reason: reasons.join("; ") })
    }

    /// Returns the reason for missing capacity. Launch faults are injected only here.
    fn insufficient_capacity(
        &self,
        request: &LaunchRequest,
        offering: &LaunchOffering,
    ) -> Option<String> {
        if let Some(id) = &request.reservation {
            let left = self.reservations.get(id).map_or(0, |reservation| reservation.available);
            return (left == 0).then(|| {
                format!("ReservationCapacityExceeded: reservation {id} has no instance left")
            });
        }
        let capacity_type = request.capacity_type;
        self.unavailable.iter().any(|outage| outage.covers(offering, capacity_type)).then(|| {
            let LaunchOffering { instance_type, zone, .. } = offering;
            format!(
                "InsufficientInstanceCapacity: no {instance_type} ({capacity_type}) in {zone} now"
            )
        })
    }

    fn new_instance(&mut self, request: &LaunchRequest, offering: &LaunchOffering) -> InstanceId {
        let id = self.next_instance();
        let image = self.image_for(&request.image, Hardware::from_labels(&offering.labels));
        let mut tags = request.tags.clone();
        tags.insert(tag::FLEET.to_owned(), format!("fleet-{id}"));
        let instance = Instance {
            id: id.clone(),
            instance_type: offering.instance_type.clone(),
            zone: offering.zone.clone(),
            capacity_type: request.capacity_type,
            state: InstanceState::Pending,
            launched_at: self.now,
            image: request.image.clone(),
            launched_with: LaunchedWith { image, ..LaunchedWith::default() },
            tags: tags.into(),
            reservation: request.reservation.clone(),
            group: None,
        };
        let registration = NodeRegistration {
            labels: offering.labels.clone(),
            taints: request.taints.clone(),
            startup_taints: request.startup_taints.clone(),
            capacity: offering.capacity.clone(),
            allocatable: offering.allocatable.clone(),
        };
        let reservation = request.reservation.as_ref();
        if let Some(reservation) = reservation.and_then(|id| self.reservations.get_mut(id)) {
            reservation.available = reservation.available.saturating_sub(1);
        }
        self.instances.insert(id.clone(), instance);
        self.schedule_boot(&id, registration);
        id
    }

    /// Schedules the boot of an instance and the registration of its node.
    pub(super) fn schedule_boot(&mut self, id: &InstanceId, registration: NodeRegistration) {
        let startup_taints = registration.startup_taints.clone();
        self.registrations.insert(id.clone(), registration);
        self.after(delay::RUNNING, ScheduledEvent::Runs { instance: id.clone() });
        self.after(delay::REGISTERED, ScheduledEvent::Registers { instance: id.clone() });
        self.after(delay::READY, ScheduledEvent::Ready { instance: id.clone() });
        let initialized = ScheduledEvent::Initialized { instance: id.clone(), startup_taints };
        self.after(delay::INITIALIZED, initialized);
    }

    /// Adds tags to an instance, unless it carries the tag of another cluster.
    pub(super) fn tag(
        &mut self,
        id: &InstanceId,
        tags: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        let cluster = tags.get(tag::CLUSTER);
        let Some(instance) = self.instances.get_mut(id) else {
            return Err(format!("InvalidInstanceID.NotFound: instance {id} does not exist"));
        };
        if let Some(other) = instance.tags.get(tag::CLUSTER).filter(|name| Some(*name) != cluster) {
            return Err(format!("{id} carries the tag of cluster {other}"));
        }
        if let Some((key, value)) = instance.conflicting_tag(tags) {
            return Err(format!("{id} is ours already, with {key} = {value}"));
        }
        instance.tags.extend(tags.clone());
        Ok(())
    }

    /// Starts the termination of an instance. A terminating or missing instance is left alone.
    pub(super) fn terminate(&mut self, id: &InstanceId) {
        let Some(instance) = self.instances.get_mut(id) else { return };
        if matches!(instance.state, InstanceState::ShuttingDown | InstanceState::Terminated) {
            return;
        }
        instance.state = InstanceState::ShuttingDown;
        let reservation = instance.reservation.as_ref();
        if let Some(reservation) = reservation.and_then(|id| self.reservations.get_mut(id)) {
            reservation.available = reservation.available.saturating_add(1);
        }
        self.registrations.remove(id);
        self.timers.retain(|timer| timer.due.booting_instance() != Some(id));
        if let Some(node) = self.node_mut(id) {
            node.was_ready |= node.ready;
            node.ready = false;
        }
        self.after(delay::TERMINATED, ScheduledEvent::Gone { instance: id.clone() });
    }

    pub(super) fn node_mut(&mut self, id: &InstanceId) -> Option<&mut Node> {
        self.nodes.values_mut().find(|node| node.instance.as_ref() == Some(id))
    }

    pub(super) fn mark_instance_running(&mut self, id: &InstanceId) {
        if let Some(instance) = self.instances.get_mut(id) {
            instance.state = InstanceState::Running;
        }
        self.mark_member_in_service(id);
    }

    pub(super) fn register_node(&mut self, id: &InstanceId) {
        let Some(NodeRegistration {
            mut labels,
            mut taints,
            startup_taints,
            mut capacity,
            mut allocatable,
        }) = self.registrations.remove(id)
        else {
            return;
        };
        let kind = self.instances.get(id).map(|instance| &instance.instance_type);
        if let Some(real) = self.reported.iter().find(|real| Some(&real.instance_type) == kind) {
            capacity = real.capacity.clone();
            allocatable = real.allocatable.clone();
        }
        let uid = self.next_uid();
        let requested_name = self.next_node_name.take_if(|name| !self.nodes.contains_key(name));
        let name = requested_name.unwrap_or_else(|| self.node_name(&uid));
        labels.insert(key::HOSTNAME.into(), name.as_str().into());
        taints.extend(startup_taints);
        let node = Node {
            name: name.clone(),
            uid,
            instance: Some(id.clone()),
            labels,
            annotations: [].into(),
            taints,
            capacity,
            allocatable,
            ready: false,
            faults: [].into(),
            was_ready: false,
            unschedulable: false,
            created_at: self.now,
        };
        self.nodes.insert(name, node);
        self.wake_scheduler();
    }

    /// Returns a node name in the format of EC2, from a unique address.
    ///
    /// UIDs and nodes share a counter, so that names are unique.
    pub(super) fn node_name(&self, uid: &Uid) -> NodeName {
        let digits = uid.as_str().rsplit('-').next().unwrap_or_default();
        let n = u64::from_str_radix(digits, 16).unwrap_or(0);
        let (host, subnet) = (n % NODES_PER_SUBNET + 4, n / NODES_PER_SUBNET);
        let region = &self.cluster.region;
        format!("ip-10-{}-{}-{host}.{region}.compute.internal", subnet / 256, subnet % 256).into()
    }

    pub(super) fn mark_node_ready(&mut self, id: &InstanceId) {
        if let Some(node) = self.node_mut(id) {
            (node.ready, node.was_ready) = (true, false);
            self.wake_scheduler();
        }
    }

    pub(super) fn remove_startup_taints(&mut self, id: &InstanceId, startup_taints: &[Taint]) {
        if startup_taints.is_empty() {
            return;
        }
        if let Some(node) = self.node_mut(id) {
            node.taints.retain(|taint| !startup_taints.contains(taint));
            self.wake_scheduler();
        }
    }

    pub(super) fn mark_instance_terminated(&mut self, id: &InstanceId) {
        if let Some(instance) = self.instances.get_mut(id) {
            instance.state = InstanceState::Terminated;
        }
        self.handle_member_loss(id);
        if let Some(node) = self.node_mut(id) {
            let (node, uid) = (node.name.clone(), node.uid.clone());
            self.after(delay::NODE_REMOVED, ScheduledEvent::NodeRemoved { node, uid });
        }
        self.after(delay::FORGOTTEN, ScheduledEvent::Forgotten { instance: id.clone() });
    }
}
