//! Status objects of the controller in the Kubernetes API.

use std::future::Future;

use jiff::Timestamp;
use serde_json::Value as Json;

use super::PortError;

/// A status object of the controller in the Kubernetes API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// API group and version, such as `fleetwright.dev/v1alpha1`.
    pub api_version: String,
    /// Kind of the object.
    pub kind: String,
    /// Plural name of the kind, used in the API path.
    pub plural: String,
    /// Name of the object.
    pub name: String,
    /// Spec; `None` to write only the status of an existing object.
    pub spec: Option<Json>,
    /// Short spec for a new object, used if `spec` is `None`.
    pub brief: Option<Json>,
    /// Status of the object.
    pub status: Json,
}

/// Metadata of a stored object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObjectHead {
    /// Name of the object.
    pub name: String,
    /// Resource version, which changes with each write.
    pub version: String,
    /// Creation time.
    pub created_at: Timestamp,
}

/// Storage of the controller's status objects.
pub trait ObjectStore {
    /// Writes the spec and the status of an object and replaces its previous content. It sets the
    /// observed generation of the status. Without `spec` and `brief`, it does not create an object.
    fn put(&self, record: &StoredObject) -> impl Future<Output = Result<(), PortError>>;
    /// Returns the metadata of all objects of the kind of `like`.
    fn list(
        &self,
        like: &StoredObject,
    ) -> impl Future<Output = Result<Vec<StoredObjectHead>, PortError>>;
    /// Returns the object `name` of the kind of `like`; `None` if it does not exist.
    fn get(
        &self,
        like: &StoredObject,
        name: &str,
    ) -> impl Future<Output = Result<Option<StoredObject>, PortError>>;
    /// Deletes the object `name` of the kind of `like`. It succeeds if the object does not exist.
    fn remove(
        &self,
        like: &StoredObject,
        name: &str,
    ) -> impl Future<Output = Result<(), PortError>>;
}
