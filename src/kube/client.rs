//! The connection to a cluster, and who the cluster is.

use std::time::Duration;

use ::kube::api::{Api, ObjectMeta};
use ::kube::core::PartialObjectMeta;
use ::kube::{Client, Config, Error};
use k8s_openapi::api::core::v1::Namespace;
use thiserror::Error as ThisError;

use crate::ids::Uid;

/// Longest wait for an answer of the API server.
const ANSWER_MAX: Duration = Duration::from_mins(1);

/// Longest wait for the answer to a write: shorter than the margin by which a lease is given up.
const WRITTEN_WITHIN: Duration = Duration::from_secs(20);

/// A cluster, reached through its API server.
#[derive(Clone)]
pub struct Kubernetes {
    /// Reads, which are tried again.
    pub(super) client: Client,
    /// Writes, which are not: of an eviction, 429 is a disruption budget speaking, and waiting for it
    /// here would hold up every other drain.
    pub(super) writer: Client,
}

/// Why a cluster cannot be reached.
#[derive(Debug, ThisError)]
pub enum ConnectError {
    /// Neither a kubeconfig nor a service account says where the API server is.
    #[error("there is no usable kubeconfig, and this is no pod of a cluster: {0}")]
    NoConfig(String),
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
        let config = Config::infer().await.map_err(|e| ConnectError::NoConfig(e.to_string()))?;
        Self::with(config)
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
        Ok(Self { client: client(config)?, writer: client(writes)? })
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

impl std::fmt::Debug for Kubernetes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kubernetes").finish_non_exhaustive()
    }
}
