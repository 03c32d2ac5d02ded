//! The page of a sandbox without a controller: plans of the served cluster.

use std::net::SocketAddr;
use std::rc::Rc;

use jiff::{SignedDuration, Timestamp};

use crate::catalog::Catalog;
use crate::cli::error::CliError;
use crate::cli::planning::{self, Planned};
use crate::cli::preview::Preview;
use crate::cli::repository::Repository;
use crate::cli::settings::{SandboxSettings, SourceSettings};
use crate::cli::world_choice::WorldChoice;
use crate::model::observed::Observed;
use crate::plan::{Plan, breakdown};
use crate::planner::{self, Inputs};
use crate::simulator::World;

const FORECAST_HORIZON: SignedDuration = SignedDuration::from_hours(7 * 24);

/// A page that shows plans and applies nothing.
pub(super) struct PreviewPage<'s> {
    settings: &'s SandboxSettings,
    world: &'s World,
    catalog: Catalog,
    repository: Rc<Repository>,
    /// The world of the last plan. Its time is ignored in comparisons.
    planned_over: Observed,
    preview: Preview,
}

impl<'s> PreviewPage<'s> {
    pub(super) fn open(
        settings: &'s SandboxSettings,
        world: &'s World,
        repository: &Rc<Repository>,
        catalog: Catalog,
    ) -> Result<Self, CliError> {
        let planned_over = world.observed();
        let plan = make_plan(&settings.source, repository, &planned_over, &catalog);
        let planned = Planned { plan, facts: repository.facts() };
        let address = SocketAddr::from(([127, 0, 0, 1], settings.page));
        let preview = Preview::open(address, planned, Some(&planned_over), planned_over.taken_at)?;
        Ok(Self {
            settings,
            world,
            catalog,
            repository: Rc::clone(repository),
            planned_over,
            preview,
        })
    }

    /// Returns the URL of the page.
    pub(super) fn url(&self) -> String {
        self.preview.url()
    }

    /// Plans again and publishes the plan, if the world or the files have changed.
    pub(super) fn refresh(&mut self, repository: Option<Repository>) {
        let observed = self.world.observed();
        let same =
            Observed { taken_at: observed.taken_at, ..self.planned_over.clone() } == observed;
        if same && repository.is_none() {
            return;
        }
        if let Some(repository) = repository {
            self.repository = Rc::new(repository);
        }
        let plan = make_plan(&self.settings.source, &self.repository, &observed, &self.catalog);
        let planned = Planned { plan, facts: self.repository.facts() };
        self.preview.show(planned, Some(&observed), observed.taken_at);
        self.planned_over = observed;
    }

    /// Publishes a forecast of one week.
    pub(super) fn forecast(&self) {
        let Self { settings: SandboxSettings { source, .. }, catalog, .. } = self;
        let (repository, observed) = (&self.repository, &self.planned_over);
        let inputs = planning::inputs(source, repository, &WorldChoice::Live, observed, catalog);
        let inputs = Inputs { is_forecast: true, ..inputs };
        let until =
            self.planned_over.taken_at.checked_add(FORECAST_HORIZON).unwrap_or(Timestamp::MAX);
        self.preview.show_forecast(planner::forecast(&inputs, until));
    }
}

fn make_plan(
    source: &SourceSettings,
    repository: &Repository,
    observed: &Observed,
    catalog: &Catalog,
) -> Plan {
    let inputs = planning::inputs(source, repository, &WorldChoice::Live, observed, catalog);
    let mut plan = planner::plan(&inputs);
    plan.capacity.cost.breakdown = breakdown(&plan, &repository.fleet.commitments);
    plan
}
