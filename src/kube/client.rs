//! The connection to a cluster, and who the cluster is.

use std::time::Duration;

use ::kube::api::{Api, ObjectMeta};
use ::kube::config::KubeconfigError;
use ::kube::core::PartialObjectMeta;
use ::kube::{Client, Config, Error};
use k8s_openapi::api::core::v1::Namespace;
use thiserror::Error as ThisError;

use crate::ids::Uid;

/// Longest wait for an answer of the API server.
const ANSWER_MAX: Duration = Duration::from_mins(1);

/// Longest wait for the answer to a write: shorter than the margin by which a lease is given up.
pub(super) const WRITTEN_WITHIN: Duration = Duration::from_secs(20);

/// A cluster, reached through its API server.
#[derive(Clone)]
pub struct Kubernetes {
    /// Reads, which are tried again.
    pub(super) client: Client,
    /// Writes, which are not: of an eviction, 429 is a disruption budget speaking, and waiting for it
    /// here would hold up every other drain.
    pub(super) writer: Client,
    /// URL of the API server.
    server: String,
}

/// Why a cluster cannot be reached.
#[derive(Debug, ThisError)]
pub enum ConnectError {
    /// Neither a kubeconfig nor a service account says where the API server is.
    #[error("{0}, and this is no pod of a cluster")]
    NoConfig(String),
    /// The kubeconfig is there, and leads nowhere.
    #[error("{0}")]
    NoContext(String),
    /// The client cannot be made.
    #[error("the API server cannot be used: {0}")]
    Client(String),
    /// The API server does not answer, or refuses.
    #[error("{0}")]
    Refused(String),
}

impl Kubernetes {
    /// Connects as `kubectl` would: by `KUBECONFIG` or `~/.kube/config` and its current context, else
    /// by the service account of the pod it runs in.
    ///
    /// # Errors
    /// When neither is there, or what is there cannot be used.
    pub async fn connect() -> Result<Self, ConnectError> {
        Self::with(Config::infer().await.map_err(|error| unusable(&error))?)
    }

    /// Returns the URL of the API server.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Connects with a configuration that is made already.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn with(config: Config) -> Result<Self, ConnectError> {
        Self::patient(config, ANSWER_MAX)
    }

    /// Connects as [`Kubernetes::with`], and waits for an answer, or for the next word of a watch, no longer
    /// than `patience`.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn patient(mut config: Config, patience: Duration) -> Result<Self, ConnectError> {
        config.read_timeout = Some(patience);
        config.write_timeout = Some(patience);
        let mut writes = config.clone();
        writes.default_retry = false;
        writes.read_timeout = Some(WRITTEN_WITHIN.min(patience));
        writes.write_timeout = Some(WRITTEN_WITHIN.min(patience));
        let client = |config: Config| -> Result<Client, ConnectError> {
            Client::try_from(config).map_err(|e: Error| ConnectError::Client(e.to_string()))
        };
        let server = config.cluster_url.to_string();
        Ok(Self { client: client(config)?, writer: client(writes)?, server })
    }

    /// Returns the UID of the namespace `kube-system`, which tells one cluster from another.
    ///
    /// # Errors
    /// When the API server does not answer, or refuses.
    pub async fn uid(&self) -> Result<Uid, ConnectError> {
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

/// Returns why nothing says where the API server is. A kubeconfig that is no YAML is not quoted: it holds
/// secrets.
fn unusable(error: &(dyn std::error::Error + 'static)) -> ConnectError {
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
            "the kubeconfig has no context `{name}`, which it says is the current one"
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

    /// What is below the error is what [`unusable`] looks at.
    #[derive(Debug, ThisError)]
    #[error("not inferred")]
    struct Above(#[source] KubeconfigError);

    fn told(error: KubeconfigError) -> String {
        let above = Above(error);
        assert!(above.source().is_some());
        unusable(&above).to_string()
    }

    #[test]
    fn a_kubeconfig_that_leads_nowhere_is_told_of_in_plain_words_and_never_quoted() {
        let missing = Kubeconfig::read_from("/nowhere/config").expect_err("no such file");
        assert_eq!(
            told(missing),
            "there is no kubeconfig `/nowhere/config`: No such file or directory (os error 2), and \
             this is no pod of a cluster"
        );
        let broken = Kubeconfig::from_yaml("users:\n- { token: s3cret").expect_err("no YAML");
        let text = told(broken);
        assert!(text.starts_with("the kubeconfig cannot be read at line "), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
        let other = told(KubeconfigError::LoadContext("other".to_owned()));
        assert!(other.contains("no context `other`"), "{other}");
        let none = told(KubeconfigError::CurrentContextNotSet);
        assert_eq!(none, "the kubeconfig has no current context");
    }
}
