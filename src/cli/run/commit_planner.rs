//! Plans of one commit, judged by the policies that guard it, as `plan` makes them.

use std::sync::{Arc, OnceLock};

use jiff::Timestamp;

use crate::adapters::git::{RepositoryTree, TreeBase};
use crate::catalog::Catalog;
use crate::cli::cluster_pools;
use crate::cli::error::CliError;
use crate::cli::forecast::window_events;
use crate::cli::planning;
use crate::cli::policy::{Judge, trust_in};
use crate::cli::repository::{FleetSettings, PoolsRead, Repository};
use crate::cli::settings::{GuardChoice, SourceSettings};
use crate::cli::signature_check::SignatureTrust;
use crate::cli::source_tree;
use crate::cli::world_choice::WorldChoice;
use crate::controller::runtime::{
    BlockingPlanner, ReadMarket, ReadPools, RepositoryReader, Steering, TrustedCommit,
};
use crate::controller::{PlanScope, PodScope, Revision, RevisionError, VerifiedCommit};
use crate::model::commit::CommitSignature;
use crate::model::desired::{Desired, PoolSource, Problem, Severity, Signer};
use crate::model::observed::{ClusterIdentity, Observed};
use crate::plan::forecast::Forecast;
use crate::plan::{Plan, RevalidatedPlan, breakdown};
use crate::planner::{self, Inputs, Scope};
use crate::render::RepositoryFacts;
use crate::solver;

/// Reads the followed repository.
#[derive(Debug, Clone)]
pub(in crate::cli) struct SourceReader {
    pub(super) source: SourceSettings,
    pub(super) world: WorldChoice,
    /// Whether kube-scheduler honors nominations.
    pub(super) steering: Steering,
    pub(super) signatures: Arc<SignatureSettings>,
}

/// The signatures that commits need.
#[derive(Debug, Default)]
pub(super) struct SignatureSettings {
    /// The commit from which the first chain of signatures starts.
    pub(super) guard_ref: Option<String>,
    /// Signers from outside of the repository.
    pub(super) signers: Option<Vec<Signer>>,
    /// The trust in `guard_ref`, once it was read.
    guard: OnceLock<SignatureTrust>,
}

impl SignatureSettings {
    pub(super) fn new(guard_ref: Option<String>, signers: Option<Vec<Signer>>) -> Self {
        Self { guard_ref, signers, guard: OnceLock::new() }
    }
}

impl SourceReader {
    fn judged(
        &self,
        tree: &RepositoryTree,
        trusted: &TrustedCommit,
        market: Option<ReadMarket<'_>>,
        pools: ReadPools<'_>,
    ) -> Result<JudgedPlanner, CliError> {
        let judge = Judge::read(&self.source, tree, &GuardChoice::default())?;
        let trust = self.trust(tree, trusted)?;
        let longer = source_tree::longer_history(tree, &self.source, &trust)?;
        let tree = longer.as_ref().unwrap_or(tree);
        let pools = self.pools(tree, pools)?;
        let mut repository = Repository::read_trusting(tree, &trust, pools);
        if repository.signature == CommitSignature::Refused {
            return Err(refused_signature(&repository));
        }
        repository.desired.problems.extend(repository.fleet.ignored_keys());
        repository.desired.problems.sort();
        let controller = &mut repository.fleet.controller;
        controller.steer = Some(self.steering.resolve(controller));
        let market = market.map(|read| read(&repository.market_query()));
        let fleet = &repository.fleet;
        let catalog = planning::catalog(fleet, &fleet.region, market.as_ref())?;
        let has_current_market = matches!(market, Some(Ok(_)));
        Ok(JudgedPlanner { reader: self.clone(), repository, catalog, judge, has_current_market })
    }
}

impl SourceReader {
    /// Returns the pools of the cluster if the settings of the tree need them.
    fn pools(&self, tree: &RepositoryTree, pools: ReadPools<'_>) -> Result<PoolsRead, CliError> {
        if FleetSettings::read(tree).pools == PoolSource::Repository {
            return Ok(None);
        }
        let pools = pools().ok_or_else(|| cluster_pools::unknown(&self.world))?;
        cluster_pools::check_read(&pools)?;
        Ok(Some(pools))
    }

    /// Returns what the chain of signatures of `tree` starts from.
    fn trust(
        &self,
        tree: &RepositoryTree,
        trusted: &TrustedCommit,
    ) -> Result<SignatureTrust, CliError> {
        let SignatureSettings { guard_ref, signers, guard } = &*self.signatures;
        let anchored = |commit: Option<String>| SignatureTrust {
            lists_signers: commit.is_some(),
            anchor: commit,
            signers: signers.clone(),
            ..SignatureTrust::default()
        };
        match trusted {
            TrustedCommit::Itself => {
                // Whether it lists signers decides, not that it was read by its name.
                let trust = anchored(tree.base.commit.clone());
                return Ok(SignatureTrust { lists_signers: false, ..trust });
            }
            TrustedCommit::Last(Some(last)) if last.guard_ref == *guard_ref => {
                return Ok(anchored(Some(last.commit.clone())));
            }
            TrustedCommit::Last(_) => {}
        }
        let (None, Some(revision)) = (guard.get(), guard_ref) else {
            let trust = guard.get().cloned().unwrap_or_default();
            return Ok(SignatureTrust { signers: signers.clone(), ..trust });
        };
        let source = SourceSettings { revision: Some(revision.clone()), ..self.source.clone() };
        let read = source_tree::read(&source)
            .map_err(|error| error.context(format!("cannot read --guard-ref {revision}")))?;
        let trust = trust_in(&read, &FleetSettings::read(&read));
        let trust = SignatureTrust { signers: signers.clone(), ..trust };
        Ok(guard.get_or_init(|| trust).clone())
    }
}

/// Returns the error of a commit whose signatures do not count. It is not served, whatever it
/// declares.
fn refused_signature(repository: &Repository) -> CliError {
    let problems = repository.desired.problems.iter();
    let mut problems = problems.filter(|problem| problem.object == "spec.signers");
    match problems.next() {
        Some(Problem { message, hint, .. }) => {
            let error = CliError::text(message.clone());
            hint.iter().fold(error, |error, hint| error.hint(hint.clone()))
        }
        None => CliError::text("the signatures of the commit do not count"),
    }
}

impl RepositoryReader for SourceReader {
    type Planner = JudgedPlanner;

    fn with_steering(self, steering: Steering) -> Self {
        Self { steering, ..self }
    }

    fn read_branch(&self) -> Result<RepositoryTree, String> {
        source_tree::read_unlogged(&self.source).map_err(|error| error.to_string())
    }

    fn read_changed_branch(&self, known: &TreeBase) -> Result<Option<RepositoryTree>, String> {
        source_tree::read_changed(&self.source, known).map_err(|error| error.to_string())
    }

    fn read_commit(&self, commit: &str) -> Result<RepositoryTree, RevisionError> {
        // Uncommitted files can be read only while they are unchanged.
        let revision = (!commit.starts_with("sha256:")).then(|| commit.to_owned());
        let source = SourceSettings { revision, ..self.source.clone() };
        source_tree::read(&source).map_err(|error| {
            let why = error.to_string();
            if error.is_unknown_revision() {
                RevisionError::NotFound(why)
            } else {
                RevisionError::Unreadable(why)
            }
        })
    }

    fn planner(
        &self,
        tree: &RepositoryTree,
        trusted: &TrustedCommit,
        market: Option<ReadMarket<'_>>,
        pools: ReadPools<'_>,
    ) -> Result<JudgedPlanner, String> {
        self.judged(tree, trusted, market, pools).map_err(|error| error.to_string())
    }
}

/// Makes plans of one commit.
pub(in crate::cli) struct JudgedPlanner {
    reader: SourceReader,
    repository: Repository,
    catalog: Catalog,
    judge: Judge,
    has_current_market: bool,
}

impl BlockingPlanner for JudgedPlanner {
    fn revision(&self) -> Revision {
        let Repository { fleet, desired, base, .. } = &self.repository;
        let delays = desired.pools.values();
        let delays = delays.filter_map(|pool| Some((pool.name.clone(), pool.consolidate_after?)));
        let RepositoryFacts { origin, pool_limits } = self.repository.facts();
        let errors = desired.problems.iter().filter(|problem| problem.severity == Severity::Error);
        Revision {
            // Files without a commit are identified by their content.
            commit: base
                .commit
                .clone()
                .filter(|_| !base.dirty)
                .unwrap_or_else(|| base.tree.clone()),
            origin,
            pool_limits,
            controller: fleet.controller.clone(),
            guard: fleet.guard.clone(),
            consolidate_after: delays.collect(),
            error_count: u32::try_from(errors.count()).unwrap_or(u32::MAX),
            is_empty: self.repository.is_empty(),
            autoscaler_namespaces: desired.autoscaler_namespaces.clone(),
            // The live source sets it after it has asked EKS.
            auto_mode: false,
            policies: self.judge.policy_hashes(),
            unresolved: desired.unresolved_policy,
            fleet_digest: self.repository.fleet_digest.clone(),
            cluster_pools: self.repository.cluster_pools.clone(),
            verified: base
                .commit
                .clone()
                .filter(|_| self.repository.signature == CommitSignature::Verified)
                .map(|commit| VerifiedCommit {
                    commit,
                    guard_ref: self.reader.signatures.guard_ref.clone(),
                }),
        }
    }

    fn cluster(&self) -> ClusterIdentity {
        self.repository.fleet.identity()
    }

    fn base(&self) -> &TreeBase {
        &self.repository.base
    }

    fn desired(&self) -> &Desired {
        &self.repository.desired
    }

    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn has_current_market(&self) -> bool {
        self.has_current_market
    }

    fn plan(&self, world: &Observed, limits: PlanScope) -> Plan {
        let PlanScope {
            changeable_nodes,
            excluded_addresses,
            running_pods_only,
            skips_demand_scenarios,
        } = limits;
        let scope = Scope {
            excluded_addresses: excluded_addresses.iter().map(ToString::to_string).collect(),
            changeable_nodes,
            running_pods_only,
            // A policy may read them in every plan that it judges.
            skips_demand_scenarios: skips_demand_scenarios && !self.judge.has_policies(),
            ..Scope::default()
        };
        let mut plan = planner::plan(&self.inputs(world, scope));
        plan.capacity.cost.breakdown = breakdown(&plan, &self.repository.fleet.commitments);
        self.judge.record(&mut plan);
        plan
    }

    fn reproduce(&self, plan: &Plan, world: &Observed, pods: PodScope) -> Option<RevalidatedPlan> {
        planner::reproduce(&self.inputs(world, scope_of(pods)), plan)
    }

    fn revalidate(&self, plan: &Plan, world: &Observed, pods: PodScope) -> RevalidatedPlan {
        planner::revalidate(&self.inputs(world, scope_of(pods)), plan)
    }

    fn forecast(&self, world: &Observed, to: Timestamp) -> Forecast {
        let inputs = Inputs { is_forecast: true, ..self.inputs(world, Scope::default()) };
        let mut forecast = planner::forecast(&inputs, to);
        forecast.events.extend(window_events(&self.repository.fleet.guard, inputs.at, to));
        forecast.events.sort();
        forecast
    }
}

/// Returns the scope of a plan of the whole fleet for these pods.
fn scope_of(pods: PodScope) -> Scope {
    Scope { running_pods_only: pods == PodScope::RunningOnly, ..Scope::default() }
}

impl JudgedPlanner {
    fn inputs<'a>(&'a self, observed: &'a Observed, scope: Scope) -> Inputs<'a> {
        let Self { reader: SourceReader { source, world, .. }, repository, catalog, .. } = self;
        let steer = repository.fleet.controller.nominates_pods();
        let settings =
            solver::Settings { steer, keep_young_nodes: false, ..repository.fleet.solve };
        let defaults = planning::inputs(source, repository, world, observed, catalog);
        Inputs { scope, settings, ..defaults }
    }
}
