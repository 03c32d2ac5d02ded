//! `sandbox`: serves the embedded world of a tree on this computer, with a controller in it.

#[cfg(feature = "cluster")]
mod controller;
mod preview_page;

use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[cfg(feature = "cluster")]
use controller::SandboxController;
use preview_page::PreviewPage;

use super::error::CliError;
use super::repository::Repository;
use super::settings::SandboxSettings;
use super::world_choice::WorldChoice;
use super::{Console, Exit, apply_session, embedded, files, planning, source_tree};
use crate::catalog::Catalog;
use crate::manifest::DeclaredObject;
use crate::model::desired::{Desired, Mode, Problem, Severity};
use crate::model::plural::count;
use crate::render::escape;
use crate::simulator::sandbox::{ApiServer, kubeconfig};
use crate::simulator::{Delivery, SimError, World, eksctl_groups};

const CTRL_C_POLL: Duration = Duration::from_millis(100);

/// Polls of Ctrl-C between two reads of the files.
const POLLS_PER_READ: u32 = 20;

pub(super) fn run(settings: &SandboxSettings, console: &mut Console) -> Result<Exit, CliError> {
    let tree = source_tree::read(&settings.source)?;
    let (repository, objects) = Repository::read_with_objects(&tree);
    let choice = planning::world_choice(None, &settings.source, &repository.fleet)?;
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
        let (desired, port) = (Rc::new(repository.desired.clone()), settings.port);
        let server =
            ApiServer::for_world(Rc::clone(&world), catalog.clone(), desired, objects, port).await;
        let server = server.map_err(|error| server_error(&error))?;
        let url = server.url().map_err(|error| server_error(&error))?;
        let config = directory.path().join("kubeconfig");
        files::write(&config, &kubeconfig(&url))?;
        let deliver = server.deliverer();
        let session = async {
            let page = SandboxPage::open(settings, &world, &repository, catalog, &url)?;
            let session = SandboxSession { settings, deliver: &deliver, page, interrupted };
            let served = Served { config: &config, url: &url };
            session.run(&repository, served, tree.base.tree.clone(), console).await
        };
        server.run_while(session).await
    })
}

/// The served APIs.
struct Served<'s> {
    config: &'s Path,
    url: &'s str,
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
    let catalog = repository.fleet.catalog(&world.observed().region())?;
    let mut delivered = Delivery::from_desired(&repository.desired, &world.observed());
    delivered.groups = eksctl_groups(&repository.desired, &catalog);
    world.deliver(&delivered).map_err(CliError::new)?;
    Ok((world, catalog))
}

/// The longest wait until the controller has ended.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A message of the controller to the command.
#[cfg_attr(
    not(feature = "cluster"),
    expect(dead_code, reason = "only a controller sends messages")
)]
enum ControllerMessage {
    /// A line for the terminal.
    Line(String),
    /// Escaped text for the terminal.
    Text(String),
    /// The controller has ended.
    Ended(Result<(), CliError>),
}

/// The page of the sandbox, and the program behind it.
enum SandboxPage<'s> {
    Preview(Box<PreviewPage<'s>>),
    #[cfg(feature = "cluster")]
    Controller(SandboxController),
}

impl<'s> SandboxPage<'s> {
    fn open(
        settings: &'s SandboxSettings,
        world: &'s World,
        repository: &Rc<Repository>,
        catalog: Catalog,
        url: &str,
    ) -> Result<Self, CliError> {
        #[cfg(feature = "cluster")]
        if let Some(mode) = settings.mode {
            return SandboxController::start(settings, mode, url).map(Self::Controller);
        }
        #[cfg(not(feature = "cluster"))]
        let _ = url;
        let page = PreviewPage::open(settings, world, repository, catalog)?;
        Ok(Self::Preview(Box::new(page)))
    }

    /// Returns the URL of the page, once it is open.
    fn url(&self) -> Option<String> {
        match self {
            Self::Preview(page) => Some(page.url()),
            #[cfg(feature = "cluster")]
            Self::Controller(controller) => controller.page().map(str::to_owned),
        }
    }

    /// Publishes a forecast of one week. A controller makes its own.
    fn forecast(&self) {
        match self {
            Self::Preview(page) => page.forecast(),
            #[cfg(feature = "cluster")]
            Self::Controller(_) => {}
        }
    }

    /// Updates the page after a read of the files, with the repository if they have changed.
    fn refresh(&mut self, changed: Option<Repository>) {
        match self {
            Self::Preview(page) => page.refresh(changed),
            #[cfg(feature = "cluster")]
            Self::Controller(controller) => {
                if changed.is_some() {
                    controller.files_changed();
                }
            }
        }
    }

    /// Returns the messages since the last call.
    fn messages(&self) -> Vec<ControllerMessage> {
        match self {
            Self::Preview(_) => Vec::new(),
            #[cfg(feature = "cluster")]
            Self::Controller(controller) => controller.messages(),
        }
    }

    /// Ends the controller while its APIs are still served.
    async fn stop(self) {
        match self {
            Self::Preview(_) => {}
            #[cfg(feature = "cluster")]
            Self::Controller(controller) => {
                // An apply in progress need not finish: its world ends as well.
                let _ = tokio::time::timeout(STOP_TIMEOUT, controller.stop()).await;
            }
        }
    }
}

/// A function that delivers a repository.
type Deliver<'d> = &'d dyn Fn(Rc<Desired>, Vec<DeclaredObject>) -> Result<(), SimError>;

/// A running sandbox.
struct SandboxSession<'s> {
    settings: &'s SandboxSettings,
    deliver: Deliver<'s>,
    page: SandboxPage<'s>,
    interrupted: std::sync::Arc<AtomicBool>,
}

impl SandboxSession<'_> {
    /// Delivers the tree whenever its files change, as a delivery tool would, until Ctrl-C.
    async fn run(
        mut self,
        repository: &Repository,
        served: Served<'_>,
        mut delivered: String,
        console: &mut Console,
    ) -> Result<Exit, CliError> {
        let Some(page) = self.page_url(console).await? else { return Ok(Exit::Done) };
        let path = self.settings.source.path.as_path();
        console.print(&welcome(path, &served, &page, self.settings.mode))?;
        warn(repository, console);
        self.page.forecast();
        let mut wakes = 0_u32;
        while !self.interrupted.load(Ordering::Relaxed) {
            tokio::time::sleep(CTRL_C_POLL).await;
            self.report_messages(console)?;
            wakes = wakes.wrapping_add(1);
            if !wakes.is_multiple_of(POLLS_PER_READ) {
                continue;
            }
            // Files that cannot be read are probably being written.
            let Ok(tree) = source_tree::read_unlogged(&self.settings.source) else { continue };
            if tree.base.tree == delivered {
                self.page.refresh(None);
                continue;
            }
            delivered.clone_from(&tree.base.tree);
            let (repository, objects) = Repository::read_with_objects(&tree);
            let desired = Rc::new(repository.desired.clone());
            let wanted = count(desired.workloads.len(), "workload");
            (self.deliver)(desired, objects).map_err(CliError::new)?;
            console.report(&format!("The files changed: {wanted} delivered."));
            warn(&repository, console);
            self.page.refresh(Some(repository));
        }
        self.page.stop().await;
        console.report("The sandbox is gone, and everything in it.");
        Ok(Exit::Done)
    }

    /// Waits until the page is open, and returns its URL; `None` after Ctrl-C.
    async fn page_url(&self, console: &mut Console) -> Result<Option<String>, CliError> {
        loop {
            if let Some(url) = self.page.url() {
                return Ok(Some(url));
            }
            if self.interrupted.load(Ordering::Relaxed) {
                return Ok(None);
            }
            tokio::time::sleep(CTRL_C_POLL / 10).await;
            self.report_messages(console)?;
        }
    }

    /// Reports the messages of the controller. Its error ends the sandbox.
    fn report_messages(&self, console: &mut Console) -> Result<(), CliError> {
        for message in self.page.messages() {
            match message {
                ControllerMessage::Line(line) => console.report(&line),
                ControllerMessage::Text(text) => console.report_raw(&text),
                ControllerMessage::Ended(end) => end?,
            }
        }
        Ok(())
    }
}

fn welcome(path: &Path, served: &Served<'_>, page: &str, mode: Option<Mode>) -> String {
    let Served { config, url } = served;
    let apply = super::plan::apply_command(Path::new("plan.json"), path);
    let apply = escape(&apply);
    let (path, config) = (escape(&path.display().to_string()).into_owned(), config.display());
    let account = format!(
        "  export AWS_ENDPOINT_URL={url} AWS_ACCESS_KEY_ID=sandbox AWS_SECRET_ACCESS_KEY=sandbox\n"
    );
    let fleetwright = if !cfg!(feature = "cluster") {
        "\nPlans and applies reach it by `--world live`, in a program with the feature `cluster`.\n"
            .to_owned()
    } else if mode.is_some() {
        format!("{account}  fleetwright plan {path} --world live\n")
    } else {
        format!("{account}  fleetwright plan {path} --world live --out plan.json\n  {apply}\n")
    };
    let page = match mode {
        Some(mode) => format!("The controller (mode `{}`): {page}", mode.as_str()),
        None => format!("The fleet, and the plan for it: {page}"),
    };
    format!(
        "A cluster for `{path}` runs at {url}, with a simulated AWS account. Both end with this \
         command.\n\n\
         In another terminal:\n\n  \
         export KUBECONFIG={config}\n  \
         kubectl get nodes\n  \
         kubectl get pods --all-namespaces --watch\n\
         {fleetwright}\n\
         {page}\n\
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
        let served = Served { config: Path::new("/tmp/k"), url: "http://127.0.0.1:1" };
        let text = |mode| welcome(Path::new("shop"), &served, "http://127.0.0.1:2/", mode);
        let preview = text(None);
        assert!(preview.contains("the plan for it: http://127.0.0.1:2/\n"), "{preview}");
        assert!(preview.contains("export KUBECONFIG=/tmp/k\n  kubectl get nodes"), "{preview}");
        assert!(preview.contains("--world live"), "{preview}");
        let first = "A cluster for `shop` runs at http://127.0.0.1:1, with a simulated AWS \
                     account. Both end with this command.\n";
        assert!(preview.starts_with(first), "{preview}");
        let run = text(Some(Mode::Full));
        assert!(run.contains("The controller (mode `full`): http://127.0.0.1:2/\n"), "{run}");
    }
}
