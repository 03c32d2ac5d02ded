//! Events of Kubernetes: what was done to a node or with a plan, and why, where `kubectl describe` shows
//! it.

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

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum About {
    /// A node.
    Node(NodeName),
    /// A plan of the loop, by the name of its object.
    Plan(String),
}

impl std::fmt::Display for About {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(name) => name.fmt(f),
            Self::Plan(name) => name.fmt(f),
        }
    }
}

/// Something that was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// To what.
    pub about: About,
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
    /// Records an event.
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
    let Note { about, reason, message, is_warning, at } = note;
    let message: String = message.chars().take(MESSAGE_MAX).collect();
    Event {
        metadata: ObjectMeta {
            generate_name: Some(format!("{about}.")),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: object(about),
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

fn object(about: &About) -> ObjectReference {
    let (api_version, kind) = match about {
        About::Node(_) => ("v1", "Node"),
        About::Plan(_) => ("fleetwright.dev/v1alpha1", "CapacityPlan"),
    };
    ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        name: Some(about.to_string()),
        // Kubelets name a node by its name here, and `kubectl describe` looks for that.
        uid: matches!(about, About::Node(_)).then(|| about.to_string()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_found_by_the_node_that_it_is_about_and_is_never_too_long() {
        let note = Note {
            about: About::Node("n1".into()),
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
