//! Authentication and authorization of users.

use std::collections::BTreeMap;
use std::future::Future;

use super::PortError;

/// User authenticated by a token.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Caller {
    /// User name in Kubernetes.
    pub name: String,
    /// UID of the user.
    pub uid: String,
    /// Groups of the user.
    pub groups: Vec<String>,
    /// Additional attributes for authorization.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Authentication and authorization of users.
pub trait Authorizer {
    /// Returns the user of a token; `None` if the token is invalid.
    fn caller(&self, token: &str) -> impl Future<Output = Result<Option<Caller>, PortError>>;
    /// Returns true if the user may do `verb` on the cluster's plans.
    fn may(&self, caller: &Caller, verb: &str) -> impl Future<Output = Result<bool, PortError>>;
}
