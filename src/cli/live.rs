//! The live world: a real cluster and its AWS account.

use std::collections::BTreeSet;
use std::future::Future;

use super::cluster_pools;
use super::error::CliError;
use super::repository::Repository;
use super::settings::SourceSettings;
use super::source_tree;
use crate::adapters::aws::{Aws, AwsError, MarketAnswers, NodeRole, Preflight};
use crate::adapters::kube::{
    ConnectError, ExpectedCluster, Kubernetes, LEASE_NAME, LEASE_NAMESPACE, PreflightSettings,
};
use crate::adapters::system_clock::SystemClock;
use crate::apply::ports::{Clock as _, Cluster as _, Prerequisite, PrerequisiteState};
use crate::controller::runtime::live_cluster::LiveCluster;
use crate::model::competing_autoscaler::{
    CompetingAutoscaler, detect_autoscalers, partition_by_namespace,
};
use crate::model::desired::{Desired, PoolSource};
use crate::model::ids::{Namespace, Region};
use crate::model::market::Market;
use crate::model::observed::{ClusterIdentity, ClusterPools, Observed};
use crate::model::plural;

/// Connects to the cluster of the kubeconfig and the account of the environment.
pub(super) async fn connect(repository: &Repository) -> Result<LiveCluster, CliError> {
    let kubernetes = Kubernetes::connect().await.map_err(cluster_error)?;
    let fleet = &repository.fleet;
    let aws = Aws::connect(&fleet.cluster, fleet.region.as_str()).await;
    identify(repository, kubernetes, aws).await
}

/// Connects to the sandbox at `url`, with the cluster of the repository. Nothing of the environment
/// is read, so that no other cluster and no account is reached.
#[cfg(feature = "sandbox")]
pub(super) async fn connect_to_sandbox(
    source: &SourceSettings,
    url: &str,
) -> Result<LiveCluster, CliError> {
    let repository = Repository::read(&source_tree::read(source)?);
    let kubernetes = Kubernetes::connect_to(url).map_err(cluster_error)?;
    let fleet = &repository.fleet;
    let aws = Aws::connect_to(&fleet.cluster, fleet.region.as_str(), url);
    identify(&repository, kubernetes, aws).await
}

async fn identify(
    repository: &Repository,
    kubernetes: Kubernetes,
    aws: Aws,
) -> Result<LiveCluster, CliError> {
    let uid = kubernetes.cluster_uid().await.map_err(cluster_error)?;
    let fleet = &repository.fleet;
    let aws = aws.with_reservations(repository.desired.uses_reservations());
    let account = aws.account_id().await.map_err(|error| account_error(error, &fleet.region))?;
    let identity = ClusterIdentity { account, uid: uid.to_string(), ..fleet.identity() };
    Ok(LiveCluster { kubernetes, aws, identity })
}

/// Reads the repository and connects, for one attempt of a controller to start.
pub(super) async fn read_and_connect(source: &SourceSettings) -> Result<LiveCluster, CliError> {
    let source = source.clone();
    let read = move || Ok(Repository::read(&source_tree::read(&source)?));
    let read: Result<Repository, CliError> = match tokio::task::spawn_blocking(read).await {
        Ok(read) => read,
        // A panic continues on the calling thread.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    connect(&read?).await
}

impl LiveCluster {
    /// Resolves the node classes of all pools for the next observation. Classes that cannot be
    /// resolved are recorded as well.
    async fn look_up_classes(&self, repository: &Repository) {
        let Desired { pools, node_classes, .. } = &repository.desired;
        let used: BTreeSet<_> =
            pools.values().filter_map(|pool| pool.node_class.as_ref()).collect();
        let classes: Vec<_> = used.into_iter().filter_map(|name| node_classes.get(name)).collect();
        if classes.is_empty() {
            return;
        }
        let joining = self.aws.cluster_bootstrap().await.map_err(|error| error.to_string());
        let kubernetes = joining.as_ref().map(|joining| joining.kubernetes_version.as_str());
        self.aws.resolve_node_classes(&classes, kubernetes.map_err(String::as_str)).await;
    }

    /// Observes the cluster and the account, with recently unavailable offerings.
    pub(super) async fn observe(&self) -> Observed {
        let Self { kubernetes, aws, identity } = self;
        let mut observed =
            crate::apply::observation::observe(aws, kubernetes, &SystemClock, identity.clone())
                .await;
        match kubernetes.unavailable_offerings(LEASE_NAMESPACE, LEASE_NAME).await {
            Ok(memory) => observed.exclusions = memory.exclusions(observed.taken_at),
            // Unavailable offerings are a hint: a launch finds them itself.
            Err(error) => tracing::warn!(%error, "cannot read unavailable offerings"),
        }
        observed.canonicalize();
        observed
    }
}

pub(super) fn expected_cluster<'c>(
    repository: &'c Repository,
    endpoint: &'c str,
) -> ExpectedCluster<'c> {
    let fleet = &repository.fleet;
    ExpectedCluster { name: &fleet.cluster, region: &fleet.region, endpoint }
}

/// Returns the current or recently cached EC2 offerings of `account`, with spot prices if a pool
/// allows spot.
pub(super) fn market(repository: &Repository, account: &str) -> Result<Market, String> {
    let fleet = &repository.fleet;
    let market = block_on(async {
        let aws = Aws::connect(&fleet.cluster, fleet.region.as_str()).await;
        Ok(repository.market_query().read(&aws, account).await)
    });
    market.unwrap_or_else(|_| Err("the runtime cannot be started".to_owned()))
}

/// Observes the live cluster and account.
pub(super) fn observe(repository: &Repository) -> Result<Observed, CliError> {
    block_on(async {
        let live = connect(repository).await?;
        live.look_up_classes(repository).await;
        Ok(live.observe().await)
    })
}

/// Reads the pools of the cluster of the kubeconfig.
pub(super) fn pools() -> Result<ClusterPools, CliError> {
    block_on(async {
        let kubernetes = Kubernetes::connect().await.map_err(cluster_error)?;
        Ok(kubernetes.pools().await)
    })
}

/// Returns the prerequisites of planning and applying live, with their state.
pub(super) fn preflight(repository: &Repository) -> Result<Vec<Prerequisite>, CliError> {
    let fleet = &repository.fleet;
    block_on(async {
        let aws = Aws::connect(&fleet.cluster, fleet.region.as_str()).await;
        let queue = fleet.controller.queue.as_deref();
        let found = aws.preflight(&repository.desired, &fleet.zones, queue).await;
        let Preflight { mut prerequisites, node_roles, endpoint } = found;
        if endpoint.is_some() {
            prerequisites.push(market_prerequisite(&aws, repository).await);
        }
        let kubeconfig = format!(
            "run `aws eks update-kubeconfig --name {} --region {}`",
            fleet.cluster, fleet.region
        );
        let kubernetes = match Kubernetes::connect().await {
            Ok(kubernetes) => kubernetes,
            Err(error) => {
                let why = Err(error.to_string());
                prerequisites.push(Prerequisite::from_result("kubeconfig", why, &kubeconfig));
                return Ok(prerequisites);
            }
        };
        let server = endpoint
            .map(|url| expected_cluster(repository, &url).prerequisite(kubernetes.server()));
        prerequisites.extend(server);
        let settings = PreflightSettings {
            nominates: fleet.controller.requested_nominations(),
            pools: fleet.pools,
        };
        let found = kubernetes.preflight(|| SystemClock.now(), settings, &kubeconfig).await;
        let is_skipped =
            |one: &Prerequisite| matches!(one.state, PrerequisiteState::Unknown { .. });
        let is_reached = !found.iter().any(is_skipped);
        prerequisites.extend(found);
        if !is_reached {
            return Ok(prerequisites);
        }
        let homes = repository.desired.autoscaler_namespaces.as_ref();
        prerequisites.push(autoscaler_prerequisite(&kubernetes, homes).await);
        if fleet.pools == PoolSource::Cluster {
            prerequisites.push(pools_prerequisite(&kubernetes).await);
        }
        for NodeRole { arn, has_entry } in node_roles {
            let mapped = if has_entry {
                Ok("by an access entry".to_owned())
            } else {
                match kubernetes.is_role_mapped(&arn).await {
                    Ok(true) => Ok("by the ConfigMap aws-auth".to_owned()),
                    Ok(false) => Err("neither an access entry nor aws-auth names it".to_owned()),
                    Err(error) => Err(error.to_string()),
                }
            };
            let remedy =
                format!("eksctl create accessentry --principal-arn {arn} --type EC2_LINUX");
            prerequisites.push(Prerequisite::from_result(
                &format!("{arn} may join"),
                mapped,
                &remedy,
            ));
        }
        Ok(prerequisites)
    })
}

/// Returns whether all EC2 offerings can be read. Without them, plans use embedded data.
async fn market_prerequisite(aws: &Aws, repository: &Repository) -> Prerequisite {
    // An empty cache: an earlier answer proves nothing here.
    let found = match repository.market_query().read_cached(aws, &MarketAnswers::default()).await {
        Ok(market) if market.unread.is_empty() => {
            Ok(format!("{} types in {} zones", market.offered.len(), market.zones.len()))
        }
        Ok(market) => Err(market.unread.join("; ")),
        Err(why) => Err(why),
    };
    let remedy =
        "attach deploy/aws/plan.json to the planning role, and allow it to reach these services";
    Prerequisite::from_result("read EC2 offerings", found, remedy)
}

/// Returns whether a competing autoscaler runs: in the declared namespaces, or without a
/// declaration in any.
async fn autoscaler_prerequisite(
    kubernetes: &Kubernetes,
    homes: Option<&BTreeSet<Namespace>>,
) -> Prerequisite {
    let found = match kubernetes.objects().await {
        Ok(objects) => {
            let all = detect_autoscalers(&objects.workloads, &objects.pods, &objects.templates);
            // Without declared namespaces, a workload with the name of an autoscaler is reported.
            let (count, others) = match homes {
                Some(homes) => partition_by_namespace(all, &objects.nodes, Some(homes)),
                None => (all, Vec::new()),
            };
            match (autoscaler_names(&count), autoscaler_names(&others)) {
                (Some(count), _) => {
                    Err(format!("{count} would compete for nodes, if it is an autoscaler"))
                }
                (None, None) => Ok("neither Karpenter nor Cluster Autoscaler runs".to_owned()),
                (None, Some(others)) => Ok(format!(
                    "none in the namespaces of `spec.autoscalers.namespaces`; ignored: {others}"
                )),
            }
        }
        Err(error) => Err(error.to_string()),
    };
    let remedy =
        "deploy/migrate describes the migration; groups that only it resizes may stay with it";
    Prerequisite::from_result("no competing autoscaler", found, remedy)
}

/// Returns whether the cluster has pools that can be read.
async fn pools_prerequisite(kubernetes: &Kubernetes) -> Prerequisite {
    let pools = kubernetes.pools().await;
    let found = match (pools.unread_reason(), pools.objects.len()) {
        (Some(why), _) => Err(why),
        (None, 0) => Err("the cluster has none".to_owned()),
        (None, n) => Ok(format!("{} of the cluster", plural::count(n, "object"))),
    };
    let remedy = format!(
        "{}; or set spec.pools: repository, and declare the pools in files",
        cluster_pools::PERMISSION_REMEDY
    );
    Prerequisite::from_result("node pools", found, &remedy)
}

/// Returns the names of competing autoscalers; `None` if there are none.
fn autoscaler_names(autoscalers: &[CompetingAutoscaler]) -> Option<String> {
    let names: Vec<String> =
        autoscalers.iter().map(|found| format!("{} ({})", found.kind, found.workload)).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

pub(super) fn block_on<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::new(error).context("cannot start the runtime".to_owned()))?
        .block_on(work)
}

pub(super) fn cluster_error(error: ConnectError) -> CliError {
    let hint = match error {
        ConnectError::NoConfig(_) => "run `aws eks update-kubeconfig --name CLUSTER`",
        ConnectError::NoContext(_) => {
            "run `kubectl config get-contexts`, or `aws eks update-kubeconfig --name CLUSTER`"
        }
        ConnectError::Client(_) | ConnectError::Refused(_) => {
            "try `kubectl get nodes` with the same kubeconfig and context"
        }
    };
    CliError::new(error).context("cannot use the cluster".to_owned()).hint(hint)
}

pub(super) fn account_error(error: AwsError, region: &Region) -> CliError {
    let remedy = error.remedy(region);
    CliError::new(error).context("cannot use the AWS account".to_owned()).hint(remedy)
}
