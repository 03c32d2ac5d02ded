//! The settings of a repository: `fleetwright.yaml` as types, with defaults.

mod controller;
mod guard;

pub use controller::{AppliedBy, ApprovalRule, ControllerSettings, CountOrShare, Mode, RateLimit};
pub use guard::{CommitmentKind, GuardSettings, PricingCommitment, TrustedKey, Window};

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;

use super::MinValuesPolicy;
use crate::model::fargate::Rates;
use crate::model::ids::{Namespace, Origin, PoolName, Region, ZoneId, ZoneName};
use crate::model::pod::TopologySpread;
use crate::model::units::MicroUsd;

/// Defaults for the cluster's name and region.
const DEFAULT_CLUSTER: &str = "default";
const DEFAULT_REGION: &str = "us-east-1";

/// The settings of a repository, from `fleetwright.yaml` and defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fleet {
    /// Origin of the settings; `None` if the repository has no `fleetwright.yaml`.
    pub origin: Option<Origin>,
    /// Name of the fleet; the cluster's name unless stated.
    pub name: String,
    /// The cluster that the fleet serves.
    pub cluster: ClusterSettings,
    /// Where manifests are read; empty means everywhere below the root.
    pub sources: Vec<Source>,
    /// Trusted signers of commits; empty means that no signature is required.
    pub signers: Vec<Signer>,
    /// Which objects of Argo CD and Flux are followed.
    pub delivery: DeliverySettings,
    /// How demand is computed.
    pub demand: DemandSettings,
    /// The world to compare with, as `--world` writes it.
    pub world: String,
    /// Directories of policies.
    pub policies: Vec<String>,
    /// Pricing commitments, such as savings plans.
    pub commitments: Vec<PricingCommitment>,
    /// Who may apply a plan, and when.
    pub guard: GuardSettings,
    /// Settings of the controller.
    pub controller: ControllerSettings,
    /// When a saving justifies moving pods.
    pub consolidation: ConsolidationSettings,
    /// Policy for `minValues` that cannot be met, like Karpenter's `MIN_VALUES_POLICY`.
    pub min_values_policy: MinValuesPolicy,
    /// Default spread constraints in the scheduler's configuration; `None`: the scheduler's own.
    pub default_spread: Option<Vec<TopologySpread>>,
    /// Failure domain limits, by pool.
    pub failure_domains: BTreeMap<PoolName, FailureDomains>,
    /// Node groups, by name, and whether this program resizes them.
    pub groups: BTreeMap<String, bool>,
    /// The namespaces of competing autoscalers; `None`: the usual ones.
    pub autoscaler_namespaces: Option<BTreeSet<Namespace>>,
    /// Prices of Fargate; `None`: it is not priced.
    pub fargate: Option<Rates>,
}

impl Fleet {
    /// Returns the name of the cluster, if the settings have one.
    #[must_use]
    pub fn configured_cluster(&self) -> Option<&str> {
        let name = self.cluster.name.as_str();
        Some(name).filter(|_| self.origin.is_some() && name != DEFAULT_CLUSTER)
    }
}

/// The cluster that a fleet serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSettings {
    /// Name.
    pub name: String,
    /// Region.
    pub region: Region,
    /// Zones that may be used, with their ids where declared; empty means every zone of the region.
    pub zones: BTreeMap<ZoneName, Option<ZoneId>>,
}

/// A path below the root where manifests are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Where the source is declared.
    pub origin: Origin,
    /// Path of a directory or file below the root, with `/`, without `.` and `..`; empty is the
    /// root itself.
    pub path: String,
    /// Its renderer; `None` for plain manifests.
    pub render: Option<Renderer>,
    /// Name of the Helm release; the directory's unless stated.
    pub release: Option<String>,
    /// The namespace of objects that name none, and that of a Helm release.
    pub namespace: Option<String>,
    /// Values files of a Helm chart, as paths below the root.
    pub values: Vec<String>,
    /// Values of `${…}` placeholders.
    pub vars: BTreeMap<String, String>,
}

/// A trusted signer of commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    /// Name, for messages.
    pub name: String,
    /// Public key.
    pub key: SignerKey,
}

/// The public key of a signer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignerKey {
    /// One line, as in `id_ed25519.pub`.
    Ssh(String),
    /// An armored block.
    Gpg(String),
}

/// How Argo CD and Flux refer to this repository and this cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeliverySettings {
    /// Further URLs of this repository, beside that of its remote `origin`.
    pub repositories: Vec<String>,
    /// Revisions that mean the tree that is read; empty means `HEAD`, `main` and `master`.
    pub revisions: Vec<String>,
    /// Further names and servers of this cluster, as destinations of Argo CD write them.
    pub clusters: Vec<String>,
    /// Names and servers of other clusters.
    pub other_clusters: Vec<String>,
    /// Values of placeholders that delivery tools read from elsewhere.
    pub vars: BTreeMap<String, String>,
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
    /// Returns the renderer as `fleetwright.yaml` spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kustomize => "kustomize",
            Self::Helm => "helm",
        }
    }
}

/// Which count of an autoscaled workload is planned for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Autoscaled {
    /// The least the autoscaler may choose.
    Floor,
    /// The current count.
    #[default]
    Live,
    /// The most the autoscaler may choose.
    Ceiling,
}

/// How demand is computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemandSettings {
    /// Which count of an autoscaled workload is planned for.
    pub autoscaled: Autoscaled,
    /// How long before demand arises its capacity must be ready.
    pub lead_time: SignedDuration,
}

impl Default for DemandSettings {
    fn default() -> Self {
        Self { autoscaled: Autoscaled::Live, lead_time: SignedDuration::from_mins(10) }
    }
}

/// When a saving justifies moving pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsolidationSettings {
    /// The time over which a saving counts.
    pub horizon: SignedDuration,
    /// What the restart of one pod costs.
    pub restart_cost: MicroUsd,
    /// The least saving, in thousandths of a percent of the affected nodes' price.
    pub minimum_saving_milli_percent: u32,
}

impl Default for ConsolidationSettings {
    fn default() -> Self {
        Self {
            horizon: SignedDuration::from_hours(24),
            restart_cost: MicroUsd(1_000),
            minimum_saving_milli_percent: 5_000,
        }
    }
}

/// Limits on the share of a pool's pods in one failure domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureDomains {
    /// File and line.
    pub origin: Origin,
    /// Limits for the pods of each workload.
    pub workload: DomainShares,
    /// Limits for all pods in the pool.
    pub pods: DomainShares,
}

/// Maximum shares of one node and one zone, in thousandths of a percent; `None`: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DomainShares {
    /// One node.
    pub node: Option<u32>,
    /// One zone.
    pub zone: Option<u32>,
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
            signers: Vec::new(),
            delivery: DeliverySettings::default(),
            demand: DemandSettings::default(),
            world: "empty".to_owned(),
            policies: Vec::new(),
            commitments: Vec::new(),
            guard: GuardSettings::default(),
            controller: ControllerSettings::default(),
            consolidation: ConsolidationSettings::default(),
            min_values_policy: MinValuesPolicy::default(),
            default_spread: None,
            failure_domains: BTreeMap::new(),
            groups: BTreeMap::new(),
            autoscaler_namespaces: None,
            fargate: None,
        }
    }
}
