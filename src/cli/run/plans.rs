//! Plans of one commit, as `plan` makes them: judged by the policies that guard it.

use std::sync::Arc;

use jiff::Timestamp;

use super::foresight::Foresight;
use crate::catalog::{Catalog, Market};
use crate::cli::error::CliError;
use crate::cli::forecast::windows;
use crate::cli::planning;
use crate::cli::policy::Judge;
use crate::cli::repository::Repository;
use crate::cli::settings::{GuardChoice, SourceSettings};
use crate::cli::world::WorldChoice;
use crate::engine::{self, Inputs, Scope};
use crate::fleet::Observed;
use crate::git::TreeRead;
use crate::manifest::Severity;
use crate::plan::forecast::Forecast;
use crate::plan::{Pinned, Plan, breakdown};
use crate::reconcile::{Head, Limits, NoCommit, Planner};

/// Returns why a commit was not read by its name: there is none, or the read failed.
#[expect(clippy::needless_pass_by_value, reason = "it is passed to map_err by name")]
pub(super) fn unread(error: CliError) -> NoCommit {
    let why = error.to_string();
    if error.is_unknown_revision() { NoCommit::Gone(why) } else { NoCommit::Failed(why) }
}

/// Makes plans of one commit.
pub(super) struct Plans {
    source: SourceSettings,
    world: WorldChoice,
    repository: Repository,
    catalog: Catalog,
    judge: Judge,
    #[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "only a live loop asks"))]
    knows_market: bool,
    /// Where forecasts are told, where somebody may look at them.
    foresight: Option<Arc<Foresight>>,
}

impl Plans {
    /// Reads the branch that is followed.
    pub(super) fn read(source: &SourceSettings, world: &WorldChoice) -> Result<Self, CliError> {
        Self::of(source, world, &planning::read(source)?, |_| None)
    }

    /// Reads what was fetched already; `market` tells what EC2 offers now, where it is asked.
    pub(super) fn of(
        source: &SourceSettings,
        world: &WorldChoice,
        tree: &TreeRead,
        market: impl FnOnce(&Repository) -> Option<Result<Market, String>>,
    ) -> Result<Self, CliError> {
        let judge = Judge::read(source, tree, &GuardChoice::default())?;
        let repository = Repository::read_since(tree, &judge.trusted);
        let market = market(&repository);
        let fleet = &repository.fleet;
        let catalog = planning::catalog(&fleet.region, &fleet.zones, market.as_ref())?;
        let (source, world) = (source.clone(), world.clone());
        let knows_market = matches!(market, Some(Ok(_)));
        Ok(Self { source, world, repository, catalog, judge, knows_market, foresight: None })
    }

    /// Returns whether it is known what EC2 offers now; where it is not, plans carry a warning that says what
    /// stands in.
    #[cfg(feature = "cluster")]
    pub(super) fn knows_market(&self) -> bool {
        self.knows_market
    }

    pub(super) fn repository(&self) -> &Repository {
        &self.repository
    }

    /// Returns what the loop has to know of the commit.
    pub(super) fn head(&self) -> Head {
        let Repository { fleet, desired, base, .. } = &self.repository;
        let rests = desired.pools.values();
        let rests = rests.filter_map(|pool| Some((pool.name.clone(), pool.consolidate_after?)));
        let errors = desired.problems.iter().filter(|problem| problem.severity == Severity::Error);
        Head {
            // What is not committed has no name but its content.
            commit: base
                .commit
                .clone()
                .filter(|_| !base.dirty)
                .unwrap_or_else(|| base.tree.clone()),
            controller: fleet.controller.clone(),
            guard: fleet.guard.clone(),
            rests: rests.collect(),
            problems: u32::try_from(errors.count()).unwrap_or(u32::MAX),
            is_empty: desired.workloads.is_empty() && desired.pools.is_empty(),
            autoscaler_namespaces: desired.autoscaler_namespaces.clone(),
            // Whoever asks EKS adds what it says.
            auto_mode: false,
        }
    }

    fn inputs<'a>(&'a self, observed: &'a Observed, scope: Scope) -> Inputs<'a> {
        let Self { source, world, repository, catalog, .. } = self;
        let (demand, steer) = (repository.fleet.demand, repository.fleet.controller.steer);
        Inputs {
            desired: &repository.desired,
            observed,
            catalog,
            base: planning::base_of(source, repository, world, observed, demand),
            at: observed.taken_at,
            demand,
            is_forecast: false,
            scope,
            settings: crate::solve::Settings { steer, ..repository.fleet.solve },
        }
    }
}

impl Plans {
    /// Returns the plan over `world`, judged.
    pub(super) fn made(&self, world: &Observed, limits: Limits) -> Plan {
        let Limits { only, exclude, running } = limits;
        let exclude = exclude.iter().map(ToString::to_string).collect();
        let scope = Scope { exclude, only, running, ..Scope::default() };
        let mut plan = engine::plan(&self.inputs(world, scope));
        plan.capacity.cost.breakdown = breakdown(&plan, &self.repository.fleet.commitments);
        self.judge.record(&mut plan);
        plan
    }
}

impl Plans {
    /// Returns what planning again over `world`, pinned to `plan`, makes of it; where it is `running`, only pods count
    /// that there are.
    pub(super) fn made_again(&self, plan: &Plan, world: &Observed, running: bool) -> Pinned {
        engine::pinned(&self.inputs(world, Scope { running, ..Scope::default() }), plan)
    }

    /// Returns what the clock will bring until `to`.
    pub(super) fn foreseen(&self, world: &Observed, to: Timestamp) -> Forecast {
        let inputs = Inputs { is_forecast: true, ..self.inputs(world, Scope::default()) };
        let mut forecast = engine::forecast(&inputs, to);
        forecast.events.extend(windows(&self.repository.fleet.guard, (inputs.at, to)));
        forecast.events.sort();
        forecast
    }

    /// Has forecasts be told to `foresight`.
    pub(super) fn foretold(self, foresight: &Arc<Foresight>) -> Self {
        Self { foresight: Some(Arc::clone(foresight)), ..self }
    }
}

impl Planner for Plans {
    async fn plan(&self, world: Arc<Observed>, limits: Limits) -> Plan {
        let plan = self.made(&world, limits);
        if let Some(turn) = self.foresight.as_ref().and_then(|f| f.is_due(&plan, &world)) {
            turn.look_ahead(self, &world);
        }
        plan
    }

    async fn pinned(&self, plan: Arc<Plan>, world: Arc<Observed>, running: bool) -> Pinned {
        self.made_again(&plan, &world, running)
    }

    fn catalog(&self) -> &Catalog {
        &self.catalog
    }
}
