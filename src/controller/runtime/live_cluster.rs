//! A connected cluster, and the options of a controller over it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::RunOptions;
use crate::adapters::aws::Aws;
use crate::adapters::kube::Kubernetes;
use crate::controller::StateKeys;
use crate::model::observed::ClusterIdentity;

/// A connected cluster and its account.
#[derive(Debug)]
pub struct LiveCluster {
    /// The cluster.
    pub kubernetes: Kubernetes,
    /// The account.
    pub aws: Aws,
    /// The identity of both.
    pub identity: ClusterIdentity,
}

/// Options of a controller over a live cluster.
#[derive(Debug, Clone)]
pub struct LiveOptions {
    /// Options of any world.
    pub run: RunOptions,
    /// True to connect again until repository, cluster and account can be read.
    pub retries_connect: bool,
    /// The longest wait for the lease of a controller that runs once.
    pub lock_timeout: Duration,
    /// The keys that authenticate the persisted state, if any.
    pub state_keys: Option<StateKeys>,
    /// True once the process is to end.
    pub shutdown: Arc<AtomicBool>,
}
