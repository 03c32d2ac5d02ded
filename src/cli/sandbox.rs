//! `sandbox`: the embedded world of a tree, served on this machine for a first try.

use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::error::CliError;
use super::preview::Preview;
use super::repository::Repository;
use super::settings::{SandboxSettings, SourceSettings};
use super::world::WorldChoice;
use super::{Console, Exit, embedded, files, planning};
use crate::catalog::Catalog;
use crate::engine::{self, Inputs, Scope};
use crate::fleet::Observed;
use crate::manifest::{Desired, Problem, Severity};
use crate::plan::{Plan, breakdown};
use crate::render::escape;
use crate::serve::{ApiServer, kubeconfig};
use crate::sim::World;

/// What the forecast of the page looks at.
const WEEK: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Between two looks at Ctrl-C.
const WAKE: Duration = Duration::from_millis(100);

/// Looks at Ctrl-C between two looks at the files.
const WAKES_PER_READ: u32 = 20;

pub(super) fn run(settings: &SandboxSettings, console: &mut Console) -> Result<Exit, CliError> {
    let tree = planning::read(&settings.source)?;
    let repository = Repository::read(&tree);
    let choice = planning::choice(None, &settings.source, &repository)?;
    let kept = match &choice {
        WorldChoice::Sim(directory) => Some(directory.as_path()),
        WorldChoice::Empty | WorldChoice::Live | WorldChoice::File(_) => None,
    };
    let (world, catalog) = begin(&repository, kept, console)?;
    let (world, repository) = (Rc::new(world), Rc::new(repository));
    world.quicken(settings.speed);
    let interrupted = embedded::interrupt_flag()?;
    let directory = tempfile::tempdir().map_err(|error| no_server(&error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| no_server(&error))?;
    runtime.block_on(async {
        let machines = (catalog.clone(), Rc::new(repository.desired.clone()));
        let server = ApiServer::over(Rc::clone(&world), machines, settings.port).await;
        let server = server.map_err(|error| no_server(&error))?;
        let url = server.url().map_err(|error| no_server(&error))?;
        let config = directory.path().join("kubeconfig");
        files::write(&config, &kubeconfig(&url))?;
        let repository = Rc::clone(&repository);
        let mut showing = Showing::of(settings, &world, &repository, catalog)?;
        let told = welcome(settings.source.path.as_path(), &config, &url, &showing.preview.url());
        console.print(&told)?;
        warn(&repository, console);
        showing.forecast();
        let stay =
            Stay { settings, world: &world, follow: &server.follower(), showing: &mut showing };
        server.during(stay.until(&interrupted, tree.base.tree.clone(), console)).await
    })
}

/// Says what of the files could not be read, and is thus not served.
fn warn(repository: &Repository, console: &mut Console) {
    let problems = repository.desired.problems.iter();
    let mut errors = problems.filter(|problem| problem.severity == Severity::Error);
    let Some(first) = errors.next() else { return };
    let more = match errors.count() {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let Problem { origin, message, .. } = first;
    console.say(&format!(
        "warning: {origin}: {}{more}; `fleetwright validate` lists what cannot be read",
        escape(message)
    ));
}

/// Makes the world that is served: a copy of the one that the tree keeps, or an empty one, with the
/// workloads of the tree.
fn begin(
    repository: &Repository,
    kept: Option<&Path>,
    console: &Console,
) -> Result<(World, Catalog), CliError> {
    let world = embedded::copied(repository, kept, console.now())?;
    let catalog = Catalog::load(&world.observed().region(), &repository.fleet.zones)?;
    let mut delivered = embedded::delivery(&repository.desired, &world.observed());
    delivered.groups = crate::sim::eksctl_groups(&repository.desired, &catalog);
    world.deliver(&delivered).map_err(CliError::new)?;
    Ok((world, catalog))
}

/// What goes on while the world is served.
struct Stay<'s> {
    settings: &'s SandboxSettings,
    world: &'s World,
    /// Tells the server what the repository says of machines now.
    follow: &'s dyn Fn(Rc<Desired>),
    showing: &'s mut Showing<'s>,
}

/// What the page of the sandbox shows.
struct Showing<'s> {
    settings: &'s SandboxSettings,
    world: &'s World,
    catalog: Catalog,
    repository: Rc<Repository>,
    /// The world as it was planned over last, but for its time.
    seen: Observed,
    preview: Preview,
}

impl<'s> Showing<'s> {
    fn of(
        settings: &'s SandboxSettings,
        world: &'s World,
        repository: &Rc<Repository>,
        catalog: Catalog,
    ) -> Result<Self, CliError> {
        let seen = world.observed();
        let plan = planned(&settings.source, repository, &seen, &catalog);
        let address = SocketAddr::from(([127, 0, 0, 1], settings.page));
        let preview = Preview::open(address, plan, Some(&seen), seen.taken_at)?;
        Ok(Self { settings, world, catalog, repository: Rc::clone(repository), seen, preview })
    }

    /// Plans again, and shows it, where the world or the files are others than before.
    fn turn(&mut self, repository: Option<Repository>) {
        let observed = self.world.observed();
        let same = Observed { taken_at: observed.taken_at, ..self.seen.clone() } == observed;
        if same && repository.is_none() {
            return;
        }
        if let Some(repository) = repository {
            self.repository = Rc::new(repository);
        }
        let plan = planned(&self.settings.source, &self.repository, &observed, &self.catalog);
        self.preview.show(plan, Some(&observed), observed.taken_at);
        self.seen = observed;
    }

    /// Shows what the clock will bring within a week.
    fn forecast(&self) {
        let inputs = inputs(&self.settings.source, &self.repository, &self.seen, &self.catalog);
        let inputs = Inputs { is_forecast: true, ..inputs };
        let until = self.seen.taken_at.checked_add(WEEK).unwrap_or(Timestamp::MAX);
        self.preview.show_forecast(engine::forecast(&inputs, until));
    }
}

fn planned(
    source: &SourceSettings,
    repository: &Repository,
    observed: &Observed,
    catalog: &Catalog,
) -> Plan {
    let mut plan = engine::plan(&inputs(source, repository, observed, catalog));
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
        base: planning::base_of(source, repository, &choice, observed, fleet.demand),
        at: observed.taken_at,
        demand: fleet.demand,
        is_forecast: false,
        scope: Scope::default(),
        settings: fleet.solve,
    }
}

impl Stay<'_> {
    /// Delivers the tree anew whenever its files change, as a delivery tool would, until Ctrl-C.
    async fn until(
        self,
        interrupted: &AtomicBool,
        mut delivered: String,
        console: &mut Console,
    ) -> Result<Exit, CliError> {
        let mut wakes = 0_u32;
        while !interrupted.load(Ordering::Relaxed) {
            tokio::time::sleep(WAKE).await;
            wakes = wakes.wrapping_add(1);
            if !wakes.is_multiple_of(WAKES_PER_READ) {
                continue;
            }
            // Files that are being written are looked at again.
            let Ok(tree) = planning::read(&self.settings.source) else { continue };
            if tree.base.tree == delivered {
                self.showing.turn(None);
                continue;
            }
            delivered.clone_from(&tree.base.tree);
            let repository = Repository::read(&tree);
            let desired = repository.desired.clone();
            let delivery = embedded::delivery(&desired, &self.world.observed());
            self.world.deliver(&delivery).map_err(CliError::new)?;
            let wanted = desired.workloads.len();
            console.say(&format!("The files changed: {wanted} workloads delivered."));
            warn(&repository, console);
            (self.follow)(Rc::new(desired));
            self.showing.turn(Some(repository));
        }
        console.say("The sandbox is gone, and everything in it.");
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

fn no_server(error: &std::io::Error) -> CliError {
    CliError::text(error.to_string())
        .context("cannot serve the sandbox".to_owned())
        .hint("pass --port with a port that is free")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_what_to_type_next() {
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
