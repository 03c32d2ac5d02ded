//! Kubernetes events about nodes and plans, as `kubectl describe` shows them.

use ::kube::Error;
use ::kube::api::{Api, ApiResource, DynamicObject, ObjectMeta, PostParams};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::client::Kubernetes;
use super::node_writes::FIELD_MANAGER;
use super::port_error;
use crate::apply::ports::PortError;
use crate::model::event_reason::EventReason;
use crate::model::ids::NodeName;

/// Namespace for events of cluster-scoped objects. Source: `client-go`, `tools/record`.
const NAMESPACE: &str = "default";

/// Maximum length of a message. Source: `pkg/apis/core/validation/events.go`.
const MESSAGE_MAX: usize = 1024;

/// Type of plan objects.
const PLAN_API_VERSION: &str = "fleetwright.dev/v1alpha1";
const PLAN_KIND: &str = "CapacityPlan";

/// The subject of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventSubject {
    /// A node.
    Node(NodeName),
    /// A plan of the controller, by object name.
    Plan(String),
}

impl std::fmt::Display for EventSubject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(name) => name.fmt(f),
            Self::Plan(name) => name.fmt(f),
        }
    }
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesEvent {
    /// The subject.
    pub subject: EventSubject,
    /// The reason, which decides the type of the event.
    pub reason: EventReason,
    /// The message, with the cause.
    pub message: String,
    /// The time of the event.
    pub at: Timestamp,
}

impl Kubernetes {
    /// Records an event.
    ///
    /// # Errors
    /// Returns an error if it cannot be written. Nothing depends on the event.
    pub async fn record_event(&self, event: &KubernetesEvent) -> Result<(), PortError> {
        let events: Api<Event> = Api::namespaced(self.writer.clone(), NAMESPACE);
        let mut event_object = api_event(event);
        if let EventSubject::Plan(name) = &event.subject {
            event_object.involved_object.uid = self.plan_uid(name).await?;
        }
        let written: Result<Event, Error> =
            events.create(&PostParams::default(), &event_object).await;
        written.map(|_| ()).map_err(|error| port_error("record event", &error))
    }
}

impl Kubernetes {
    /// Returns the UID of a plan object, if it exists. `kubectl describe` searches for it.
    async fn plan_uid(&self, name: &str) -> Result<Option<String>, PortError> {
        let resource = ApiResource {
            group: "fleetwright.dev".to_owned(),
            version: "v1alpha1".to_owned(),
            api_version: PLAN_API_VERSION.to_owned(),
            kind: PLAN_KIND.to_owned(),
            plural: "capacityplans".to_owned(),
        };
        let plans: Api<DynamicObject> = Api::all_with(self.writer.clone(), &resource);
        let found = plans.get_metadata_opt(name).await;
        let found = found.map_err(|error| port_error("read plan", &error))?;
        Ok(found.and_then(|plan| plan.metadata.uid))
    }
}

fn api_event(event: &KubernetesEvent) -> Event {
    let KubernetesEvent { subject, reason, message, at } = event;
    let message: String = message.chars().take(MESSAGE_MAX).collect();
    Event {
        metadata: ObjectMeta {
            generate_name: Some(format!("{subject}.")),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: object_reference(subject),
        reason: Some(reason.to_string()),
        message: Some(message),
        type_: Some(reason.event_type().to_owned()),
        source: Some(EventSource { component: Some(FIELD_MANAGER.to_owned()), host: None }),
        first_timestamp: Some(Time(*at)),
        last_timestamp: Some(Time(*at)),
        count: Some(1),
        ..Event::default()
    }
}

fn object_reference(subject: &EventSubject) -> ObjectReference {
    let (api_version, kind) = match subject {
        EventSubject::Node(_) => ("v1", "Node"),
        EventSubject::Plan(_) => (PLAN_API_VERSION, PLAN_KIND),
    };
    ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        name: Some(subject.to_string()),
        // Kubelets use the name of the node as its UID here, and `kubectl describe` searches for
        // that.
        uid: matches!(subject, EventSubject::Node(_)).then(|| subject.to_string()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_names_its_node_and_is_truncated() {
        let note = KubernetesEvent {
            subject: EventSubject::Node("n1".into()),
            reason: EventReason::Cordoned,
            message: "x".repeat(2000),
            at: Timestamp::UNIX_EPOCH,
        };
        let event = api_event(&note);
        assert_eq!(event.involved_object.uid.as_deref(), Some("n1"));
        assert_eq!(event.message.map(|message| message.len()), Some(MESSAGE_MAX));
        assert_eq!(event.type_.as_deref(), Some("Normal"));
    }
}
