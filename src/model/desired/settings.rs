//! Types of the settings in `fleetwright.yaml`, with defaults.

mod commitments;
mod controller;
mod guard;

pub use commitments::{CommitmentKind, PricingCommitment};
pub use controller::{AppliedBy, ApprovalRule, ControllerSettings, CountOrShare, Mode, RateLimit};
pub use guard::{ApplyConditions, TrustedKey, Window};

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{LEARNED_FILE, MinValuesPolicy, PRICE_FILE, SOURCE_LOCK_FILE};
use crate::model::fargate::Rates;
use crate::model::ids::{Namespace, Origin, PoolName, Region, ZoneId, ZoneName};
use crate::model::pod::{ResourceList, TopologySpread};
use crate::model::units::MicroUsd;

/// File name of the settings.
pub const FLEET_FILE: &str = "fleetwright.yaml";

/// Files that belong to the settings. They are in one directory.
const SETTINGS_FILES: [&str; 4] = [FLEET_FILE, LEARNED_FILE, PRICE_FILE, SOURCE_LOCK_FILE];

/// Returns whether the file at `path` of a tree belongs to the settings.
pub fn is_settings_file(path: &str) -> bool {
    SETTINGS_FILES.contains(&path)
}

/// Default cluster name and region.
const DEFAULT_CLUSTER: &str = "default";
const DEFAULT_REGION: &str = "us-east-1";

/// Settings of a repository, from `fleetwright.yaml` and defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fleet {
    /// Origin of the settings; `None` if the repository has no `fleetwright.yaml`.
    pub origin: Option<Origin>,
    /// Name of the fleet; defaults to the cluster name.
    pub name: String,
    /// Cluster of the fleet.
    pub cluster: ClusterSettings,
    /// Sources of manifests; empty means all files below the root.
    pub sources: Vec<Source>,
    /// True if the whole Git repository is read, and not only the directory of `fleetwright.yaml`.
    /// Paths of sources are then below the root of the repository.
    pub whole_repository: bool,
    /// Trusted commit signers; empty means that signatures are not required.
    pub signers: Vec<Signer>,
    /// Settings for the delivery objects of Argo CD and Flux.
    pub delivery: DeliverySettings,
    /// Settings for the computation of demand.
    pub demand: DemandSettings,
    /// World that plans are compared with, in the syntax of `--world`.
    pub world: String,
    /// Directories that contain policies.
    pub policies: Vec<String>,
    /// Pricing commitments, such as savings plans.
    pub commitments: Vec<PricingCommitment>,
    /// Conditions under which a plan may be applied.
    pub guard: ApplyConditions,
    /// Settings of the controller.
    pub controller: ControllerSettings,
    /// Thresholds for consolidation savings.
    pub consolidation: ConsolidationSettings,
    /// Policy for `minValues` that cannot be met, as in Karpenter's `MIN_VALUES_POLICY`.
    pub min_values_policy: MinValuesPolicy,
    /// Instance profile of every `AWSNodeTemplate` without one, as Karpenter's setting
    /// `aws.defaultInstanceProfile`.
    pub default_instance_profile: Option<String>,
    /// Default topology spread constraints of kube-scheduler; `None` means its built-in defaults.
    pub default_spread: Option<Vec<TopologySpread>>,
    /// Failure domain limits, by pool.
    pub failure_domains: BTreeMap<PoolName, FailureDomains>,
    /// Maximum share of the Spot nodes of a pool in one instance type and zone, in thousandths of a
    /// percent; `None` means no limit.
    pub max_offering_share: Option<u32>,
    /// What plans without nominations buy for unlikely orders of arrival.
    pub worst_case: WorstCase,
    /// Node groups, by name. The value is true if Fleetwright resizes the group.
    pub groups: BTreeMap<String, bool>,
    /// Namespaces of competing autoscalers; `None` means the system namespaces.
    pub autoscaler_namespaces: Option<BTreeSet<Namespace>>,
    /// Fargate prices; `None` means that Fargate pods have no price.
    pub fargate: Option<Rates>,
    /// Treatment of sources that are not read.
    pub unresolved: UnresolvedPolicy,
    /// Where node pools and node classes are declared.
    pub pools: PoolSource,
    /// Origin of `pools`, if stated.
    pub pools_origin: Option<Origin>,
}

impl Fleet {
    /// Returns the cluster name, if the settings declare it.
    pub fn configured_cluster(&self) -> Option<&str> {
        let name = self.cluster.name.as_str();
        Some(name).filter(|_| self.origin.is_some() && name != DEFAULT_CLUSTER)
    }
}

/// Cluster of a fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSettings {
    /// Name.
    pub name: String,
    /// Region.
    pub region: Region,
    /// Usable zones, with their IDs if declared; empty means every zone of the region.
    pub zones: BTreeMap<ZoneName, Option<ZoneId>>,
}

/// A file or directory from which manifests are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Origin of the declaration.
    pub origin: Origin,
    /// Path relative to the root, with `/` separators and without `.` and `..`. Empty means the
    /// root.
    pub path: String,
    /// Renderer; `None` for plain manifests.
    pub render: Option<Renderer>,
    /// Name of the Helm release; defaults to the name of the directory.
    pub release: Option<String>,
    /// Namespace of the Helm release, and of objects without a namespace.
    pub namespace: Option<String>,
    /// Values files of a Helm chart, as paths relative to the root.
    pub values: Vec<String>,
    /// Values of `${…}` placeholders.
    pub vars: BTreeMap<String, String>,
    /// Pods to plan for if the source is not read and no cluster is observed.
    pub assume: Option<AssumedPods>,
}

/// Pods that a source is assumed to declare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssumedPods {
    /// Number of pods.
    pub pods: u32,
    /// Requests of each pod.
    pub requests: ResourceList,
}

/// Treatment of sources that are not read, from strict to loose.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum UnresolvedPolicy {
    /// No node is removed while a source is not read.
    Hold,
    /// The pods of the sources are those that run. Nodes without such pods may be removed.
    #[default]
    Running,
    /// The sources count as empty.
    Ignore,
}

/// Where node pools and node classes are declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PoolSource {
    /// In the files of the repository.
    #[default]
    Repository,
    /// In the API server of the cluster, where another tool creates them.
    Cluster,
}

/// A trusted signer of commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    /// Name, used in messages.
    pub name: String,
    /// Public key.
    pub key: SignerKey,
}

/// Public key of a signer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignerKey {
    /// SSH key in one line, as in `id_ed25519.pub`.
    Ssh(String),
    /// GPG key as an armored block.
    Gpg(String),
}

/// Names by which Argo CD and Flux refer to this repository and this cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeliverySettings {
    /// Further URLs of this repository, besides the URL of the remote `origin`.
    pub repositories: Vec<String>,
    /// Revisions that denote the current tree; empty means `HEAD`, `main` and `master`.
    pub revisions: Vec<String>,
    /// Further names and server URLs of this cluster, as in Argo CD destinations.
    pub clusters: Vec<String>,
    /// Names and server URLs of other clusters.
    pub other_clusters: Vec<String>,
    /// Values of placeholders that delivery tools read from other sources.
    pub vars: BTreeMap<String, String>,
    /// Beginnings of the URLs of external sources, with the beginnings to download from instead.
    pub mirrors: BTreeMap<String, String>,
    /// Hosts, optionally with a port, whose addresses may be private and which may serve plain HTTP.
    pub private_hosts: Vec<String>,
}

/// A renderer of manifests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renderer {
    /// `kustomize build`, or `kubectl kustomize`.
    Kustomize,
    /// `helm template`.
    Helm,
}

impl Renderer {
    /// Returns the name of the renderer in `fleetwright.yaml`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kustomize => "kustomize",
            Self::Helm => "helm",
        }
    }
}

/// Selection of a workload's replica count for a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DemandMode {
    /// The minimum that an autoscaler may choose.
    Floor,
    /// The current count, or the count in Git if no autoscaler or schedule decides.
    #[default]
    Live,
    /// The maximum that an autoscaler may choose.
    Ceiling,
}

/// Settings for the computation of demand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemandSettings {
    /// Planned replica count of autoscaled workloads.
    pub autoscaled: DemandMode,
    /// Lead time: capacity must be ready this long before its demand arises.
    pub lead_time: SignedDuration,
    /// Number of rolling updates that have room at the same time.
    pub rollouts: u32,
}

impl Default for DemandSettings {
    fn default() -> Self {
        Self { autoscaled: DemandMode::Live, lead_time: SignedDuration::from_mins(10), rollouts: 0 }
    }
}

/// Thresholds for consolidation savings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsolidationSettings {
    /// Time over which a saving is counted.
    pub horizon: SignedDuration,
    /// Cost of one pod restart.
    pub restart_cost: MicroUsd,
    /// Minimum saving, in thousandths of a percent of the price of the affected nodes.
    pub minimum_saving_milli_percent: u32,
    /// Minimum saving of all changes that move pods, in thousandths of a percent of the price of the
    /// fleet.
    pub minimum_fleet_saving_milli_percent: u32,
}

impl Default for ConsolidationSettings {
    fn default() -> Self {
        Self {
            horizon: SignedDuration::from_hours(24),
            restart_cost: MicroUsd(1_000),
            minimum_saving_milli_percent: 5_000,
            minimum_fleet_saving_milli_percent: 5_000,
        }
    }
}

/// Limits on the share of a pool's pods in one failure domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureDomains {
    /// Source file and line.
    pub origin: Origin,
    /// Limits on the pods of each workload.
    pub workload: MaxShares,
    /// Limits on all pods of the pool.
    pub pods: MaxShares,
}

/// Maximum shares per node and per zone, in thousandths of a percent; `None` means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MaxShares {
    /// Maximum share per node.
    pub node: Option<u32>,
    /// Maximum share per zone.
    pub zone: Option<u32>,
}

/// What a plan without nominations buys for unlikely orders in which pods arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WorstCase {
    /// Nodes: every simulated order places every pod.
    Capacity,
    /// A contingency: likely orders place every pod, and the plan names the nodes that the others
    /// need beyond it.
    #[default]
    Contingency,
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            origin: None,
            name: DEFAULT_CLUSTER.to_owned(),
            cluster: ClusterSettings {
                name: DEFAULT_CLUSTER.to_owned(),
                region: DEFAULT_REGION.into(),
                zones: BTreeMap::new(),
            },
            sources: Vec::new(),
            whole_repository: false,
            signers: Vec::new(),
            delivery: DeliverySettings::default(),
            demand: DemandSettings::default(),
            world: "empty".to_owned(),
            policies: Vec::new(),
            commitments: Vec::new(),
            guard: ApplyConditions::default(),
            controller: ControllerSettings::default(),
            consolidation: ConsolidationSettings::default(),
            min_values_policy: MinValuesPolicy::default(),
            default_instance_profile: None,
            default_spread: None,
            failure_domains: BTreeMap::new(),
            max_offering_share: Some(50_000),
            worst_case: WorstCase::default(),
            groups: BTreeMap::new(),
            autoscaler_namespaces: None,
            fargate: None,
            unresolved: UnresolvedPolicy::default(),
            pools: PoolSource::default(),
            pools_origin: None,
        }
    }
}
