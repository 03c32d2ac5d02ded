//! `fleetwright.yaml`: the settings of a repository.
//!
//! Knows the file's form and defaults (`plans/fleet.schema.json` says the same). An unknown key is
//! an error, because a setting that has no effect is worse than none.

mod controller;
mod file;
mod guard;

pub use controller::{ApprovalRule, ControllerSettings, MergedBy, Mode, Most, Rate};
pub use file::read_fleet;
pub(super) use file::{FILE, is_fleet};
pub use guard::{Commitment, CommitmentKind, GuardSettings, TrustedKey, Window};

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;

use super::pool::MinValuesPolicy;
use crate::fargate::Rates;
use crate::ids::{Namespace, Origin, PoolName, Region, ZoneId, ZoneName};
use crate::pod::TopologySpread;
use crate::units::MicroUsd;

/// Name of a cluster, and region, where the file is absent or does not say.
const DEFAULT_CLUSTER: &str = "default";
const DEFAULT_REGION: &str = "us-east-1";

/// The settings of a repository, from `fleetwright.yaml` and defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fleet {
    /// Where the settings are written; `None` where the repository has no `fleetwright.yaml`.
    pub origin: Option<Origin>,
    /// Name of the fleet; the cluster's name unless stated.
    pub name: String,
    /// The cluster that the fleet serves.
    pub cluster: ClusterSettings,
    /// Where manifests are read; empty means everywhere below the root.
    pub sources: Vec<Source>,
    /// Whose signatures of commits count; empty means that none is needed.
    pub signers: Vec<Signer>,
    /// Which objects of Argo CD and Flux are followed.
    pub delivery: DeliverySettings,
    /// How demand is computed.
    pub demand: DemandSettings,
    /// The world to compare with, as `--world` writes it.
    pub world: String,
    /// Directories of policies.
    pub policies: Vec<String>,
    /// What is paid for whether or not it is used, and makes other prices lower.
    pub commitments: Vec<Commitment>,
    /// Who may apply a plan, and when.
    pub guard: GuardSettings,
    /// How the loop acts.
    pub controller: ControllerSettings,
    /// When moving pods is worth its saving.
    pub consolidation: ConsolidationSettings,
    /// What to do where a pool's `minValues` cannot be met, as Karpenter is told by
    /// `MIN_VALUES_POLICY`.
    pub min_values_policy: MinValuesPolicy,
    /// What pods that ask for no spreading are spread by, as the configuration of the scheduler
    /// says; `None`: as the scheduler does unless it is told otherwise.
    pub default_spread: Option<Vec<TopologySpread>>,
    /// How much may go down with one node or one zone, by pool.
    pub failure_domains: BTreeMap<PoolName, FailureDomains>,
    /// Node groups, by name, and whether this program resizes them.
    pub groups: BTreeMap<String, bool>,
    /// The namespaces in which other autoscalers of nodes live; `None`: where they usually do.
    pub autoscaler_namespaces: Option<BTreeSet<Namespace>>,
    /// What Fargate costs; `None`: it is not priced.
    pub fargate: Option<Rates>,
}

impl Fleet {
    /// Returns the name of the cluster, where the settings say one.
    #[must_use]
    pub(super) fn stated_cluster(&self) -> Option<&str> {
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

/// A place below the root where manifests are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Where the source is declared.
    pub origin: Origin,
    /// Path of a directory or file below the root, with `/`, without `.` and `..`; empty is the
    /// root itself.
    pub path: String,
    /// What makes manifests of it; `None` where it holds plain manifests.
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

/// Somebody whose signature of a commit counts.
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

/// What tells the repository and the cluster that Argo CD and Flux speak of from others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeliverySettings {
    /// Further URLs of this repository, beside that of its remote `origin`.
    pub repositories: Vec<String>,
    /// Revisions that are what is read; empty means `HEAD`, `main` and `master`.
    pub revisions: Vec<String>,
    /// Further names and servers of this cluster, as destinations of Argo CD write them.
    pub clusters: Vec<String>,
    /// Names and servers of other clusters.
    pub other_clusters: Vec<String>,
    /// Values of placeholders that deliverers take from elsewhere.
    pub vars: BTreeMap<String, String>,
}

/// A tool that makes manifests of a source.
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
    /// What runs now.
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
    /// How long before it is needed capacity is to be there.
    pub lead: SignedDuration,
}

impl Default for DemandSettings {
    fn default() -> Self {
        Self { autoscaled: Autoscaled::Live, lead: SignedDuration::from_mins(10) }
    }
}

/// When moving pods is worth its saving.
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

/// How much of what runs in a pool may go down with one node or one zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureDomains {
    /// Where it is written.
    pub origin: Origin,
    /// Of the pods of each workload.
    pub workload: Shares,
    /// Of all pods in the pool.
    pub pods: Shares,
}

/// How much one node and one zone may hold, in thousandths of a percent; `None`: all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shares {
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

/// Returns `path`, seen from the directory `base`, without `.` and `..`; `None` where it leads out
/// of the root.
pub(crate) fn normal_path(base: &str, path: &str) -> Option<String> {
    if path.starts_with('/') {
        return None;
    }
    let mut parts: Vec<&str> = base.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Returns whether files at `path` are read as they are: whether a source without a renderer, or
/// the whole tree in the absence of sources, holds them.
#[must_use]
pub fn is_read(fleet: &Fleet, path: &str) -> bool {
    let holds = |source: &Source| {
        source.render.is_none() && (is_below(path, &source.path) || is_below(&source.path, path))
    };
    fleet.sources.is_empty() || fleet.sources.iter().any(holds)
}

/// Returns whether the file `path` is `root` or below it; the empty root holds every file.
pub(super) fn is_below(path: &str, root: &str) -> bool {
    let rest = path.strip_prefix(root);
    root.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests;
