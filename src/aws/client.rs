//! The clients, and who this account is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_ec2::Client as Ec2;
use thiserror::Error as ThisError;
use tokio::time::Instant;

use super::fault::port_error;
use super::group::Schedules;
use super::limiter::{Api, Limiter};
use super::listed::served_by;
use super::machine::Machines;
use super::resolve::Answers;
use super::timed::Timed;
use crate::fargate::Profile;
use crate::measure::{Measured, Meter};
use crate::port::PortError;

/// Longest wait for one answer, tries included: shorter than the margin by which a lease is given up.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Longest wait for one try.
const TRY_MAX: Duration = Duration::from_secs(20);

/// Says whether something may be written now.
type Permit = Box<dyn Fn() -> bool + Send + Sync>;

/// An account in a region, as one cluster uses it.
pub struct Aws {
    pub(super) ec2: Ec2,
    pub(super) scaling: aws_sdk_autoscaling::Client,
    pub(super) ssm: aws_sdk_ssm::Client,
    pub(super) eks: aws_sdk_eks::Client,
    pub(super) iam: aws_sdk_iam::Client,
    pub(super) pricing: aws_sdk_pricing::Client,
    pub(super) quotas: aws_sdk_servicequotas::Client,
    pub(super) sqs: aws_sdk_sqs::Client,
    sts: aws_sdk_sts::Client,
    pub(super) limiter: Limiter,
    /// Name of the cluster whose instances these are.
    pub(super) cluster: String,
    /// The tag that everything of the cluster carries, whoever made it.
    pub(super) owned_tag: String,
    /// How machines are set up; none may be launched without.
    machines: Mutex<Option<Arc<Machines>>>,
    /// What words of node classes come to.
    pub(super) answers: Answers,
    /// Whether capacity reservations count; else they are not read.
    reserving: AtomicBool,
    /// Fargate profiles, and when they were read.
    pub(super) profiles: Mutex<Option<(Instant, Vec<Profile>)>>,
    /// Scheduled actions of groups, and when they were read.
    pub(super) schedules: Mutex<Option<(Instant, Schedules)>>,
    /// Asked right before a machine is launched or ended; without one, always.
    permit: OnceLock<Permit>,
    /// How long calls took.
    meter: Meter,
}

impl std::fmt::Debug for Aws {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Aws").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

/// Why an account cannot be used.
#[derive(Debug, ThisError)]
pub enum AwsError {
    /// A call failed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// What a node class names is not there.
    #[error("{0}")]
    Missing(String),
}

impl Aws {
    /// Connects as the AWS command line would: by environment, profile, or the role of the pod or
    /// machine it runs on. `AWS_ENDPOINT_URL` leads all calls elsewhere.
    pub async fn connect(cluster: &str, region: &str) -> Self {
        let timeouts = TimeoutConfig::builder()
            .operation_timeout(ANSWER_MAX)
            .operation_attempt_timeout(TRY_MAX)
            .build();
        let config = aws_config::defaults(BehaviorVersion::latest())
            .region(Region::new(region.to_owned()))
            .timeout_config(timeouts)
            .load()
            .await;
        Self::with(&config, cluster)
    }

    /// Connects with a configuration that is made already.
    #[must_use]
    pub fn with(config: &SdkConfig, cluster: &str) -> Self {
        let region = config.region().map_or("", |region| region.as_ref());
        let office = Region::new(served_by(region));
        let meter = Meter::default();
        let timed = || Timed(meter.clone());
        let prices = aws_sdk_pricing::config::Builder::from(config).region(office);
        let prices = prices.interceptor(timed()).build();
        Self {
            ec2: Ec2::from_conf(
                aws_sdk_ec2::config::Builder::from(config).interceptor(timed()).build(),
            ),
            scaling: aws_sdk_autoscaling::Client::from_conf(
                aws_sdk_autoscaling::config::Builder::from(config).interceptor(timed()).build(),
            ),
            ssm: aws_sdk_ssm::Client::from_conf(
                aws_sdk_ssm::config::Builder::from(config).interceptor(timed()).build(),
            ),
            eks: aws_sdk_eks::Client::from_conf(
                aws_sdk_eks::config::Builder::from(config).interceptor(timed()).build(),
            ),
            iam: aws_sdk_iam::Client::from_conf(
                aws_sdk_iam::config::Builder::from(config).interceptor(timed()).build(),
            ),
            pricing: aws_sdk_pricing::Client::from_conf(prices),
            quotas: aws_sdk_servicequotas::Client::from_conf(
                aws_sdk_servicequotas::config::Builder::from(config).interceptor(timed()).build(),
            ),
            sqs: aws_sdk_sqs::Client::from_conf(
                aws_sdk_sqs::config::Builder::from(config).interceptor(timed()).build(),
            ),
            sts: aws_sdk_sts::Client::from_conf(
                aws_sdk_sts::config::Builder::from(config).interceptor(timed()).build(),
            ),
            limiter: Limiter::default(),
            cluster: cluster.to_owned(),
            owned_tag: format!("kubernetes.io/cluster/{cluster}"),
            machines: Mutex::default(),
            answers: Answers::default(),
            reserving: AtomicBool::new(false),
            profiles: Mutex::default(),
            schedules: Mutex::default(),
            permit: OnceLock::new(),
            meter,
        }
    }

    /// Returns how long calls took until now.
    #[must_use]
    pub fn measured(&self) -> Measured {
        self.meter.so_far()
    }

    /// Asks `permit` right before a machine is launched or ended: what is looked up first, and what a
    /// limit makes wait, may take longer than a lease lasts. The first permit counts.
    pub fn permitted_by(&self, permit: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.permit.set(Box::new(permit));
    }

    /// Returns an error where nothing may be written any more.
    pub(super) fn may_write(&self, verb: &str) -> Result<(), PortError> {
        if self.permit.get().is_none_or(|permit| permit()) {
            return Ok(());
        }
        Err(super::cloud::refused(
            verb,
            "it is no longer certain that this process leads".to_owned(),
        ))
    }

    /// Returns the same with what launches need.
    #[must_use]
    pub fn launching(self, machines: Machines) -> Self {
        self.set_up(Arc::new(machines));
        self
    }

    /// Has launches need `machines` from now on.
    pub fn set_up(&self, machines: Arc<Machines>) {
        let mut now = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = now.as_ref().filter(|before| !Arc::ptr_eq(before, &machines)) {
            machines.inherit(before);
        }
        *now = Some(machines);
    }

    /// Returns what launches need.
    #[must_use]
    pub fn machines(&self) -> Option<Arc<Machines>> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the same, which reads capacity reservations if `reserving`: whoever selects none need
    /// not be permitted to see them.
    #[must_use]
    pub fn reserving(self, reserving: bool) -> Self {
        self.reserve(reserving);
        self
    }

    /// Has capacity reservations read from now on, or no more.
    pub fn reserve(&self, reserving: bool) {
        self.reserving.store(reserving, Ordering::Relaxed);
    }

    pub(super) fn is_reserving(&self) -> bool {
        self.reserving.load(Ordering::Relaxed)
    }

    /// Returns the number of the account.
    ///
    /// # Errors
    /// When nobody is who the credentials say, or AWS cannot be reached.
    pub async fn account(&self) -> Result<String, AwsError> {
        self.limiter.take(Api::Other).await;
        let identity = self.sts.get_caller_identity().send().await;
        let identity = identity.map_err(|error| port_error("ask who this is", &error))?;
        identity.account.ok_or_else(|| AwsError::Missing("AWS names no account".to_owned()))
    }
}
