//! The connection to a cluster, and its identity.

use std::time::Duration;

use ::kube::api::{Api, ObjectMeta};
use ::kube::config::KubeconfigError;
use ::kube::core::PartialObjectMeta;
use ::kube::{Client, Config, Error};
use k8s_openapi::api::core::v1::Namespace;
use thiserror::Error as ThisError;

use crate::model::ids::Uid;

/// Timeout of a response of the API server.
const READ_TIMEOUT: Duration = Duration::from_mins(1);

/// Timeout of a write. It is shorter than the margin at which a lease counts as lost.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(20);

/// Name of this program in the audit log of the API server.
const USER_AGENT: &str = concat!("fleetwright/", env!("CARGO_PKG_VERSION"));

/// A connection to a cluster.
#[derive(Clone)]
pub struct Kubernetes {
    /// Client for reads, with retries.
    pub(super) client: Client,
    /// Client for writes, without retries. Status 429 of an eviction means a disruption budget, and
    /// a retry here would delay all other drains.
    pub(super) writer: Client,
    /// URL of the API server.
    server: String,
    /// True to accept tokens that have no audience of ours.
    pub(super) accepts_api_tokens: bool,
}

/// The reason that a cluster is unreachable.
#[derive(Debug, ThisError)]
pub enum ConnectError {
    /// There is neither a kubeconfig nor a service account.
    #[error("{0}, and this is not a pod of a cluster")]
    NoConfig(String),
    /// The kubeconfig has no usable context.
    #[error("{0}")]
    NoContext(String),
    /// The client cannot be created.
    #[error("the API server cannot be used: {0}")]
    Client(String),
    /// The API server is unreachable or refuses the request.
    #[error("{0}")]
    Refused(String),
}

impl Kubernetes {
    /// Connects like `kubectl`: by `KUBECONFIG` or `~/.kube/config` and its current context,
    /// otherwise by the service account of the pod.
    ///
    /// # Errors
    /// Returns an error if neither exists or the configuration is unusable.
    pub async fn connect() -> Result<Self, ConnectError> {
        Self::from_config(Config::infer().await.map_err(|error| connect_error(&error))?)
    }

    /// Connects to an API server that needs no credentials.
    ///
    /// # Errors
    /// Returns an error if the URL is invalid.
    pub fn connect_to(url: &str) -> Result<Self, ConnectError> {
        let url = url.parse().map_err(|_| ConnectError::Client(format!("`{url}` is no URL")))?;
        Self::from_config(Config::new(url))
    }

    /// Returns the URL of the API server.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Sets whether operators may use tokens that the API server itself accepts.
    #[must_use]
    pub fn accept_api_tokens(mut self, accepts: bool) -> Self {
        self.accepts_api_tokens = accepts;
        self
    }

    /// Connects with an existing configuration.
    ///
    /// # Errors
    /// Returns an error if the configuration is unusable.
    pub fn from_config(config: Config) -> Result<Self, ConnectError> {
        Self::with_timeout(config, READ_TIMEOUT)
    }

    /// Connects as [`Kubernetes::from_config`], with `timeout` as the longest wait for a response
    /// or a watch event.
    ///
    /// # Errors
    /// Returns an error if the configuration is unusable.
    pub fn with_timeout(mut config: Config, timeout: Duration) -> Result<Self, ConnectError> {
        if let (Ok(name), Ok(agent)) = ("user-agent".parse(), USER_AGENT.parse()) {
            config.headers.push((name, agent));
        }
        config.read_timeout = Some(timeout);
        config.write_timeout = Some(timeout);
        let mut writes = config.clone();
        writes.default_retry = false;
        writes.read_timeout = Some(WRITE_TIMEOUT.min(timeout));
        writes.write_timeout = Some(WRITE_TIMEOUT.min(timeout));
        let client = |config: Config| -> Result<Client, ConnectError> {
            Client::try_from(config).map_err(|e: Error| ConnectError::Client(e.to_string()))
        };
        let server = config.cluster_url.to_string();
        let (client, writer) = (client(config)?, client(writes)?);
        Ok(Self { client, writer, server, accepts_api_tokens: false })
    }

    /// Returns the UID of the namespace `kube-system`, which identifies the cluster.
    ///
    /// # Errors
    /// Returns an error if the API server is unreachable or refuses the request.
    pub async fn cluster_uid(&self) -> Result<Uid, ConnectError> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let found: Result<PartialObjectMeta<Namespace>, Error> =
            namespaces.get_metadata("kube-system").await;
        match found.map(|found| found.metadata) {
            Ok(ObjectMeta { uid: Some(uid), .. }) => Ok(uid.into()),
            Ok(_) => Err(ConnectError::Refused("namespace kube-system has no UID".to_owned())),
            Err(error) => {
                let error = super::port_error("read namespace kube-system", &error);
                Err(ConnectError::Refused(error.to_string()))
            }
        }
    }
}

/// Converts a configuration error. An invalid kubeconfig is not quoted, because it contains
/// secrets.
fn connect_error(error: &(dyn std::error::Error + 'static)) -> ConnectError {
    let kubeconfig = error.source().and_then(|below| below.downcast_ref::<KubeconfigError>());
    match kubeconfig {
        Some(KubeconfigError::ReadConfig(why, path)) => {
            ConnectError::NoConfig(format!("there is no kubeconfig `{}`: {why}", path.display()))
        }
        Some(KubeconfigError::Parse(why)) => {
            let at = why.to_string();
            let at = at.split(": ").find(|part| part.starts_with("line ")).unwrap_or("nowhere");
            ConnectError::NoContext(format!("the kubeconfig cannot be read at {at}"))
        }
        Some(KubeconfigError::CurrentContextNotSet) => {
            ConnectError::NoContext("the kubeconfig has no current context".to_owned())
        }
        Some(KubeconfigError::LoadContext(name)) => ConnectError::NoContext(format!(
            "the kubeconfig has no context `{name}`, which is its current context"
        )),
        Some(other) => ConnectError::NoContext(format!("the kubeconfig cannot be used: {other}")),
        None => ConnectError::NoConfig(format!("there is no usable kubeconfig: {error}")),
    }
}

impl std::fmt::Debug for Kubernetes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kubernetes").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use ::kube::config::Kubeconfig;

    use super::*;

    /// [`connect_error`] inspects the source of the error.
    #[derive(Debug, ThisError)]
    #[error("not inferred")]
    struct WrappedError(#[source] KubeconfigError);

    fn error_text(error: KubeconfigError) -> String {
        let above = WrappedError(error);
        assert!(above.source().is_some());
        connect_error(&above).to_string()
    }

    #[test]
    fn kubeconfig_errors_are_plain_and_quote_nothing() {
        let missing = Kubeconfig::read_from("/nowhere/config").expect_err("no such file");
        assert_eq!(
            error_text(missing),
            "there is no kubeconfig `/nowhere/config`: No such file or directory (os error 2), and \
             this is not a pod of a cluster"
        );
        let broken = Kubeconfig::from_yaml("users:\n- { token: s3cret").expect_err("no YAML");
        let text = error_text(broken);
        assert!(text.starts_with("the kubeconfig cannot be read at line "), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
        let other = error_text(KubeconfigError::LoadContext("other".to_owned()));
        assert!(other.contains("no context `other`"), "{other}");
        let none = error_text(KubeconfigError::CurrentContextNotSet);
        assert_eq!(none, "the kubeconfig has no current context");
    }
}
