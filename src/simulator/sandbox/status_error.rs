//! Error responses of an API server.

use serde_json::{Value as Json, json};

/// An error response: a `Status` for Kubernetes clients.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StatusError {
    pub(super) code: u16,
    reason: &'static str,
    message: String,
    details: Json,
}

impl StatusError {
    fn new(code: u16, reason: &'static str, message: String) -> Self {
        Self { code, reason, message, details: json!({}) }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message.into())
    }

    pub(super) fn forbidden(message: String) -> Self {
        Self::new(403, "Forbidden", message)
    }

    pub(super) fn not_found(plural: &str, name: &str) -> Self {
        Self {
            details: json!({ "name": name, "kind": plural }),
            ..Self::new(404, "NotFound", format!("{plural} \"{name}\" not found"))
        }
    }

    pub(super) fn unknown_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource".to_owned())
    }

    pub(super) fn method_not_allowed(method: &str) -> Self {
        Self::new(405, "MethodNotAllowed", format!("{method} is not served here"))
    }

    pub(super) fn no_containers() -> Self {
        let message = "pods of the sandbox have no containers: nothing runs and nothing is logged";
        Self::bad_request(message)
    }

    pub(super) fn read_only(plural: &str) -> Self {
        let message = format!("{plural} are read-only here: change them in the repository");
        Self::new(405, "MethodNotAllowed", message)
    }

    pub(super) fn already_exists(plural: &str, name: &str) -> Self {
        Self {
            details: json!({ "name": name, "kind": plural }),
            ..Self::new(409, "AlreadyExists", format!("{plural} \"{name}\" already exists"))
        }
    }

    pub(super) fn conflict(plural: &str, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {plural} \"{name}\": {why}");
        Self {
            details: json!({ "name": name, "kind": plural }),
            ..Self::new(409, "Conflict", message)
        }
    }

    pub(super) fn expired(what: &str) -> Self {
        Self::new(410, "Expired", format!("{what} is too old"))
    }

    pub(super) fn unsupported_media_type(kind: &str) -> Self {
        let instead = if kind.contains("protobuf") {
            // `kubectl create` users cannot choose the media type.
            ": add `--dry-run=client -o yaml | kubectl apply -f -`, which sends JSON"
        } else {
            ""
        };
        let message = format!("bodies of type {kind} are not read here{instead}");
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub(super) fn invalid(message: String) -> Self {
        Self::new(422, "Invalid", message)
    }

    pub(super) fn blocked_by_budget(name: &str, needs: i64, has: i64) -> Self {
        let cause = format!(
            "The disruption budget {name} needs {needs} healthy pods and has {has} currently"
        );
        Self {
            details: json!({ "causes": [{ "reason": "DisruptionBudget", "message": cause }] }),
            ..Self::new(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.".to_owned(),
            )
        }
    }

    pub(super) fn multiple_budgets() -> Self {
        let message = "This pod has more than one PodDisruptionBudget, which the eviction \
                       subresource does not support.";
        Self::new(500, "InternalError", message.to_owned())
    }

    pub(super) fn to_status(&self) -> Json {
        let Self { code, reason, message, details } = self;
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "details": details, "code": code
        })
    }
}
