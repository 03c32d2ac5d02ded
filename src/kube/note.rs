//! Events of Kubernetes: what was done to a node and why, where `kubectl describe node` shows it.

use ::kube::Error;
use ::kube::api::{Api, ObjectMeta, PostParams};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::client::Kubernetes;
use super::port_error;
use super::write::MANAGER;
use crate::ids::NodeName;
use crate::port::PortError;

/// Namespace of events about objects that have none. Source: `client-go`, `tools/record`.
const NAMESPACE: &str = "default";

/// Longest message that the API server takes. Source: `pkg/apis/core/validation/events.go`.
const MESSAGE_MAX: usize = 1024;

/// Something that was done to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The node.
    pub node: NodeName,
    /// What, as one word, such as `Cordoned`.
    pub reason: &'static str,
    /// The same in a sentence, and why.
    pub message: String,
    /// Whether somebody should look at it.
    pub is_warning: bool,
    /// When.
    pub at: Timestamp,
}

impl Kubernetes {
    /// Records an event about a node.
    ///
    /// # Errors
    /// When it cannot be written; nothing depends on it.
    pub async fn note(&self, note: &Note) -> Result<(), PortError> {
        let events: Api<Event> = Api::namespaced(self.writer.clone(), NAMESPACE);
        let written: Result<Event, Error> =
            events.create(&PostParams::default(), &event(note)).await;
        written.map(|_| ()).map_err(|error| port_error("record event", &error))
    }
}

fn event(note: &Note) -> Event {
    let Note { node, reason, message, is_warning, at } = note;
    let message: String = message.chars().take(MESSAGE_MAX).collect();
    Event {
        metadata: ObjectMeta {
            generate_name: Some(format!("{node}.")),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_string()),
            // Kubelets name a node by its name here, and `kubectl describe` looks for that.
            uid: Some(node.to_string()),
            ..ObjectReference::default()
        },
        reason: Some((*reason).to_owned()),
        message: Some(message),
        type_: Some(if *is_warning { "Warning" } else { "Normal" }.to_owned()),
        source: Some(EventSource { component: Some(MANAGER.to_owned()), host: None }),
        first_timestamp: Some(Time(*at)),
        last_timestamp: Some(Time(*at)),
        count: Some(1),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_found_by_the_node_that_it_is_about_and_is_never_too_long() {
        let note = Note {
            node: "n1".into(),
            reason: "Cordoned",
            message: "x".repeat(2000),
            is_warning: false,
            at: Timestamp::UNIX_EPOCH,
        };
        let event = event(&note);
        assert_eq!(event.involved_object.uid.as_deref(), Some("n1"));
        assert_eq!(event.message.map(|message| message.len()), Some(MESSAGE_MAX));
        assert_eq!(event.type_.as_deref(), Some("Normal"));
    }
}
