//! `sandbox`: serves the embedded world of a tree on this computer, for a first try.

use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::error::CliError;
use super::planning::Planned;
use super::preview::Preview;
use super::repository::Repository;
use super::settings::{SandboxSettings, SourceSettings};
use super::world_choice::WorldChoice;
use super::{Console, Exit, apply_session, embedded, files, planning, source_tree};
use crate::catalog::Catalog;
use crate::model::desired::{Desired, Problem, Severity};
use crate::model::observed::Observed;
use crate::plan::{Plan, breakdown};
use crate::planner::{self, Inputs, Scope};
use crate::render::escape;
use crate::simulator::sandbox::{ApiServer, kubeconfig};
use crate::simulator::{Delivery, World, eksctl_groups};

const FORECAST_HORIZON: SignedDuration = SignedDuration::from_hours(7 * 24);

const CTRL_C_POLL: Duration = Duration::from_millis(100);

/// Polls of Ctrl-C between two reads of the files.
const POLLS_PER_READ: u32 = 20;

pub(super) fn run(settings: &SandboxSettings, console: &mut Console) -> Result<Exit, CliError> {
    let tree = source_tree::read(&settings.source)?;
    let repository = Repository::read(&tree);
    let choice = planning::world_choice(None, &settings.source, &repository)?;
    let directory = match &choice {
        WorldChoice::Sim(directory) => Some(directory.as_path()),
        WorldChoice::Empty | WorldChoice::Live | WorldChoice::File(_) => None,
    };
    let (world, catalog) = start_world(&repository, directory, console)?;
    let (world, repository) = (Rc::new(world), Rc::new(repository));
    world.set_speedup(settings.speed);
    let interrupted = apply_session::interrupt_flag()?;
    let directory = tempfile::tempdir().map_err(|error| server_error(&error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| server_error(&error))?;
    runtime.block_on(async {
        let desired = Rc::new(repository.desired.clone());
        let server =
            ApiServer::for_world(Rc::clone(&world), catalog.clone(), desired, settings.port).await;
        let server = server.map_err(|error| server_error(&error))?;
        let url = server.url().map_err(|error| server_error(&error))?;
        let config = directory.path().join("kubeconfig");
        files::write(&config, &kubeconfig(&url))?;
        let repository = Rc::clone(&repository);
        let mut page = SandboxPage::open(settings, &world, &repository, catalog)?;
        let text = welcome(settings.source.path.as_path(), &config, &url, &page.preview.url());
        console.print(&text)?;
        warn(&repository, console);
        page.forecast();
        let session = SandboxSession {
            settings,
            world: &world,
            follow: &server.desired_updater(),
            page: &mut page,
        };
        server.run_while(session.run_until(&interrupted, tree.base.tree.clone(), console)).await
    })
}

/// Writes a warning about files that could not be read.
fn warn(repository: &Repository, console: &mut Console) {
    let problems = repository.desired.problems.iter();
    let mut errors = problems.filter(|problem| problem.severity == Severity::Error);
    let Some(first) = errors.next() else { return };
    let more = match errors.count() {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let Problem { origin, message, .. } = first;
    console.report(&format!(
        "warning: {origin}: {}{more}; `fleetwright validate` lists what cannot be read",
        escape(message)
    ));
}

/// Creates the served world: a copy of the embedded world of the tree, or an empty one, with the
/// workloads delivered.
fn start_world(
    repository: &Repository,
    directory: Option<&Path>,
    console: &Console,
) -> Result<(World, Catalog), CliError> {
    let world = embedded::copy(repository, directory, console.now())?;
    let catalog = Catalog::load(&world.observed().region(), &repository.fleet.zones)?;
    let mut delivered = Delivery::from_desired(&repository.desired, &world.observed());
    delivered.groups = eksctl_groups(&repository.desired, &catalog);
    world.deliver(&delivered).map_err(CliError::new)?;
    Ok((world, catalog))
}

/// A running sandbox.
struct SandboxSession<'s> {
    settings: &'s SandboxSettings,
    world: &'s World,
    /// Updates the desired state of the server.
    follow: &'s dyn Fn(Rc<Desired>),
    page: &'s mut SandboxPage<'s>,
}

/// The page of the sandbox.
struct SandboxPage<'s> {
    settings: &'s SandboxSettings,
    world: &'s World,
    catalog: Catalog,
    repository: Rc<Repository>,
    /// The world of the last plan. Its time is ignored in comparisons.
    planned_over: Observed,
    preview: Preview,
}

impl<'s> SandboxPage<'s> {
    fn open(
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

    /// Plans again and publishes the plan, if the world or the files have changed.
    fn refresh(&mut self, repository: Option<Repository>) {
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
    fn forecast(&self) {
        let inputs =
            inputs(&self.settings.source, &self.repository, &self.planned_over, &self.catalog);
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
    let mut plan = planner::plan(&inputs(source, repository, observed, catalog));
    plan.capacity.cost.breakdown = breakdown(&plan, &repository.fleet.commitments);
    plan
}

fn inputs<'i>(
    source: &SourceSettings,
    repository: &'i Repository,
    observed: &'i Observed,
    catalog: &'i Catalog,
) -> Inputs<'i> {
    let (fleet, choice) = (&repository.fleet, WorldChoice::Live);
    Inputs {
        desired: &repository.desired,
        observed,
        catalog,
        base: planning::plan_base(source, repository, &choice, observed, fleet.demand),
        at: observed.taken_at,
        demand: fleet.demand,
        is_forecast: false,
        scope: Scope::default(),
        settings: fleet.solve,
    }
}

impl SandboxSession<'_> {
    /// Delivers the tree whenever its files change, as a delivery tool would, until Ctrl-C.
    async fn run_until(
        self,
        interrupted: &AtomicBool,
        mut delivered: String,
        console: &mut Console,
    ) -> Result<Exit, CliError> {
        let mut wakes = 0_u32;
        while !interrupted.load(Ordering::Relaxed) {
            tokio::time::sleep(CTRL_C_POLL).await;
            wakes = wakes.wrapping_add(1);
            if !wakes.is_multiple_of(POLLS_PER_READ) {
                continue;
            }
            // Files that cannot be read are probably being written.
            let Ok(tree) = source_tree::read(&self.settings.source) else { continue };
            if tree.base.tree == delivered {
                self.page.refresh(None);
                continue;
            }
            delivered.clone_from(&tree.base.tree);
            let repository = Repository::read(&tree);
            let desired = repository.desired.clone();
            let delivery = Delivery::from_desired(&desired, &self.world.observed());
            self.world.deliver(&delivery).map_err(CliError::new)?;
            let wanted = desired.workloads.len();
            console.report(&format!("The files changed: {wanted} workloads delivered."));
            warn(&repository, console);
            (self.follow)(Rc::new(desired));
            self.page.refresh(Some(repository));
        }
        console.report("The sandbox is gone, and everything in it.");
        Ok(Exit::Done)
    }
}

fn welcome(path: &Path, config: &Path, url: &str, page: &str) -> String {
    let (path, config) = (escape(&path.display().to_string()).into_owned(), config.display());
    let plans = if cfg!(feature = "cluster") {
        format!(
            "  export AWS_ENDPOINT_URL={url} AWS_ACCESS_KEY_ID=sandbox \
             AWS_SECRET_ACCESS_KEY=sandbox\n  \
             fleetwright plan {path} --world live --out plan.json\n  \
             fleetwright apply plan.json\n"
        )
    } else {
        "\nPlans and applies reach it by `--world live`, in a program with the feature `cluster`.\n"
            .to_owned()
    };
    format!(
        "A cluster for `{path}` is served at {url}, with an account of AWS. Both live as long as \
         this command.\n\n\
         In another terminal:\n\n  \
         export KUBECONFIG={config}\n  \
         kubectl get nodes\n  \
         kubectl get pods --all-namespaces --watch\n\
         {plans}\n\
         The fleet, and the plan for it: {page}\n\
         Ctrl-C ends it.\n"
    )
}

fn server_error(error: &std::io::Error) -> CliError {
    CliError::text(error.to_string())
        .context("cannot serve the sandbox".to_owned())
        .hint("pass --port with a port that is free")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn welcome_prints_the_next_commands() {
        let text = welcome(
            Path::new("shop"),
            Path::new("/tmp/k"),
            "http://127.0.0.1:1",
            "http://127.0.0.1:2/",
        );
        assert!(text.contains("the plan for it: http://127.0.0.1:2/\n"), "{text}");
        assert!(text.contains("export KUBECONFIG=/tmp/k\n  kubectl get nodes"), "{text}");
        assert!(text.contains("--world live"), "{text}");
    }
}
