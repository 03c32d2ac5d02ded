//! Refusals, as an API server writes them.

use serde_json::{Value as Json, json};

/// Why a request is not served: a status that clients of Kubernetes understand.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Refusal {
    pub(super) code: u16,
    reason: &'static str,
    message: String,
    details: Json,
}

impl Refusal {
    fn of(code: u16, reason: &'static str, message: String) -> Self {
        Self { code, reason, message, details: json!({}) }
    }

    /// Returns that the request makes no sense.
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::of(400, "BadRequest", message.into())
    }

    /// Returns that there is no such object.
    pub(super) fn not_found(plural: &str, name: &str) -> Self {
        Self {
            details: json!({ "name": name, "kind": plural }),
            ..Self::of(404, "NotFound", format!("{plural} \"{name}\" not found"))
        }
    }

    /// Returns that nothing is served at such a path.
    pub(super) fn no_path() -> Self {
        Self::of(404, "NotFound", "the server could not find the requested resource".to_owned())
    }

    /// Returns that what is served there has no such verb.
    pub(super) fn no_verb(method: &str) -> Self {
        Self::of(405, "MethodNotAllowed", format!("{method} is not served here"))
    }

    /// Returns that there is such an object already.
    pub(super) fn exists(plural: &str, name: &str) -> Self {
        Self {
            details: json!({ "name": name, "kind": plural }),
            ..Self::of(409, "AlreadyExists", format!("{plural} \"{name}\" already exists"))
        }
    }

    /// Returns that the object is not as the request takes it to be.
    pub(super) fn conflict(plural: &str, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {plural} \"{name}\": {why}");
        Self {
            details: json!({ "name": name, "kind": plural }),
            ..Self::of(409, "Conflict", message)
        }
    }

    /// Returns that what was known then is known no more.
    pub(super) fn expired(what: &str) -> Self {
        Self::of(410, "Expired", format!("{what} is too old"))
    }

    /// Returns that the body is of no form that is read here.
    pub(super) fn media(kind: &str) -> Self {
        let instead = if kind.contains("protobuf") {
            // Whoever types `kubectl create` has no say in what it sends.
            ": add `--dry-run=client -o yaml | kubectl apply -f -`, which sends JSON"
        } else {
            ""
        };
        let message = format!("bodies of type {kind} are not read here{instead}");
        Self::of(415, "UnsupportedMediaType", message)
    }

    /// Returns that the object breaks a rule.
    pub(super) fn invalid(message: String) -> Self {
        Self::of(422, "Invalid", message)
    }

    /// Returns that a budget forbids an eviction now.
    pub(super) fn budget(name: &str, needs: i64, has: i64) -> Self {
        let cause = format!(
            "The disruption budget {name} needs {needs} healthy pods and has {has} currently"
        );
        Self {
            details: json!({ "causes": [{ "reason": "DisruptionBudget", "message": cause }] }),
            ..Self::of(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.".to_owned(),
            )
        }
    }

    /// Returns that more than one budget protects a pod.
    pub(super) fn budgets() -> Self {
        let message = "This pod has more than one PodDisruptionBudget, which the eviction \
                       subresource does not support.";
        Self::of(500, "InternalError", message.to_owned())
    }

    /// Returns the refusal as a `Status`.
    pub(super) fn status(&self) -> Json {
        let Self { code, reason, message, details } = self;
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "details": details, "code": code
        })
    }
}
