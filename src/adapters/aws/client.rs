//! The SDK clients and the identity of the account.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_ec2::Client as Ec2;
use aws_sdk_ec2::config::{Credentials, SharedCredentialsProvider};
use tokio::time::Instant;

use super::call_timing::CallTimer;
use super::errors::{AwsError, port_error, refused};
use super::group_templates::GroupTemplate;
use super::launch_context::LaunchContext;
use super::rate_limiter::{ApiBucket, RateLimiter};
use super::resolution_cache::ResolutionCache;
use crate::apply::ports::PortError;
use crate::model::fargate::FargateProfile;
use crate::model::ids::GroupName;
use crate::model::observed::ScheduledSize;
use crate::telemetry::histogram::{Histograms, SharedHistograms};

/// Timeout of one call, including retries. It is shorter than the margin at which a lease counts as
/// lost.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(20);

/// A function that returns true while writes are allowed.
type WritePermit = Box<dyn Fn() -> bool + Send + Sync>;

/// Scheduled actions by Auto Scaling group.
pub(super) type ScheduledActions = BTreeMap<GroupName, Vec<ScheduledSize>>;

/// An account in a region, as used by one cluster.
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
    pub(super) limiter: RateLimiter,
    /// Name of the cluster that owns the instances.
    pub(super) cluster: String,
    /// Region of the cluster.
    pub(super) region: String,
    /// Tag key of all resources of the cluster, from any tool.
    pub(super) owned_tag: String,
    /// Pools and node classes for launches. Launches fail without it.
    launch_context: Mutex<Option<Arc<LaunchContext>>>,
    /// Cached results of the node-class selectors.
    pub(super) resolution: ResolutionCache,
    /// True if capacity reservations are read.
    reads_reservations: AtomicBool,
    /// Fargate profiles with the time of the read.
    pub(super) cached_profiles: Mutex<Option<(Instant, Vec<FargateProfile>)>>,
    /// Scheduled actions of groups with the time of the read.
    pub(super) cached_schedules: Mutex<Option<(Instant, ScheduledActions)>>,
    /// Templates of groups with the time of the read.
    pub(super) cached_templates: Mutex<BTreeMap<GroupName, (Instant, GroupTemplate)>>,
    /// Check before each launch and each termination. Without it, writes are allowed.
    write_permit: OnceLock<WritePermit>,
    call_meter: SharedHistograms,
}

fn timeouts() -> TimeoutConfig {
    TimeoutConfig::builder()
        .operation_timeout(CALL_TIMEOUT)
        .operation_attempt_timeout(ATTEMPT_TIMEOUT)
        .build()
}

impl std::fmt::Debug for Aws {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Aws").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl Aws {
    /// Connects like the AWS CLI: by environment, profile, or the role of the pod or instance.
    /// `AWS_ENDPOINT_URL` redirects all calls.
    pub async fn connect(cluster: &str, region: &str) -> Self {
        let config = aws_config::defaults(BehaviorVersion::latest())
            .region(Region::new(region.to_owned()))
            .timeout_config(timeouts())
            .load()
            .await;
        Self::from_config(&config, cluster)
    }

    /// Connects to an account that is served at `url` and checks no credentials. Nothing of the
    /// environment is read, except for a proxy.
    pub fn connect_to(cluster: &str, region: &str, url: &str) -> Self {
        let credentials = Credentials::new("sandbox", "sandbox", None, None, "sandbox");
        let config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .credentials_provider(SharedCredentialsProvider::new(credentials))
            .region(Region::new(region.to_owned()))
            .endpoint_url(url)
            .timeout_config(timeouts())
            .build();
        Self::from_config(&config, cluster)
    }

    /// Connects with an existing configuration.
    pub fn from_config(config: &SdkConfig, cluster: &str) -> Self {
        let region = config.region().map_or("", |region| region.as_ref());
        let price_region = Region::new(price_list_region(region));
        let meter = SharedHistograms::default();
        let timed = || CallTimer(meter.clone());
        let prices = aws_sdk_pricing::config::Builder::from(config).region(price_region);
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
            limiter: RateLimiter::default(),
            cluster: cluster.to_owned(),
            region: region.to_owned(),
            owned_tag: format!("kubernetes.io/cluster/{cluster}"),
            launch_context: Mutex::default(),
            resolution: ResolutionCache::default(),
            reads_reservations: AtomicBool::new(false),
            cached_profiles: Mutex::default(),
            cached_schedules: Mutex::default(),
            cached_templates: Mutex::default(),
            write_permit: OnceLock::new(),
            call_meter: meter,
        }
    }

    /// Returns the latencies of all calls so far.
    pub fn call_latencies(&self) -> Histograms {
        self.call_meter.snapshot()
    }

    /// Sets the check that runs right before an instance is launched or terminated. Lookups and
    /// rate limits before the call may take longer than the lease lasts. Only the first permit is
    /// used.
    pub fn set_write_permit(&self, permit: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.write_permit.set(Box::new(permit));
    }

    /// Returns an error if writes are no longer allowed.
    pub(super) fn check_write_permit(&self, verb: &str) -> Result<(), PortError> {
        if self.write_permit.get().is_none_or(|permit| permit()) {
            return Ok(());
        }
        Err(refused(verb, "this process may no longer be the leader".to_owned()))
    }

    /// Returns this account with the data that launches need.
    #[must_use]
    pub fn with_launch_context(self, context: LaunchContext) -> Self {
        self.set_launch_context(Arc::new(context));
        self
    }

    /// Replaces the data that launches need.
    pub fn set_launch_context(&self, context: Arc<LaunchContext>) {
        let mut now = self.launch_context.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = now.as_ref().filter(|before| !Arc::ptr_eq(before, &context)) {
            context.inherit_templates(before);
        }
        *now = Some(context);
    }

    /// Returns the data that launches need.
    pub fn launch_context(&self) -> Option<Arc<LaunchContext>> {
        self.launch_context.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns this account with reads of capacity reservations enabled or disabled. Clusters
    /// without reservations need no permission to read them.
    #[must_use]
    pub fn with_reservations(self, enabled: bool) -> Self {
        self.set_reads_reservations(enabled);
        self
    }

    /// Enables or disables reads of capacity reservations.
    pub fn set_reads_reservations(&self, enabled: bool) {
        self.reads_reservations.store(enabled, Ordering::Relaxed);
    }

    pub(super) fn reads_reservations(&self) -> bool {
        self.reads_reservations.load(Ordering::Relaxed)
    }

    /// Returns the account ID.
    ///
    /// # Errors
    /// Returns an error if the credentials are invalid or AWS is unreachable.
    pub async fn account_id(&self) -> Result<String, AwsError> {
        self.limiter.acquire(ApiBucket::Other).await;
        let identity = self.sts.get_caller_identity().send().await;
        let identity = identity.map_err(|error| port_error("get caller identity", &error))?;
        identity
            .account
            .ok_or_else(|| AwsError::Missing("the response contains no account".to_owned()))
    }
}

/// Returns the region of the Price List endpoint for `region`. Only a few regions have one.
///
/// Source: AWS Billing, "Price List Query API endpoints".
fn price_list_region(region: &str) -> &'static str {
    match region.split('-').next() {
        Some("eu" | "il" | "me" | "af") => "eu-central-1",
        Some("ap") => "ap-south-1",
        Some("cn") => "cn-northwest-1",
        _ => "us-east-1",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn price_list_region_serves_the_region() {
        for (region, expected) in [
            ("us-west-2", "us-east-1"),
            ("eu-west-1", "eu-central-1"),
            ("ap-southeast-2", "ap-south-1"),
            ("sa-east-1", "us-east-1"),
        ] {
            assert_eq!(price_list_region(region), expected);
        }
    }
}
