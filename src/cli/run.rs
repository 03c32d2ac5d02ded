//! `run`: the controller. It reconciles until it is stopped, or with `--once` until nothing is left
//! to do.

mod commit_planner;

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use commit_planner::{SignatureSettings, SourceReader};

use super::error::CliError;
use super::lock::WorldLock;
use super::repository::Repository;
use super::settings::RunSettings;
use super::world::same_cluster;
use super::world_choice::WorldChoice;
use super::{Console, Exit, apply_session, embedded, files, planning, source_tree};
#[cfg(feature = "cluster")]
use crate::adapters::kube::LeaseError;
#[cfg(feature = "cluster")]
use crate::controller::StateKeys;
#[cfg(feature = "page")]
use crate::controller::StatusPublisher;
use crate::controller::runtime::embedded::EmbeddedOptions;
#[cfg(feature = "cluster")]
use crate::controller::runtime::live;
#[cfg(feature = "cluster")]
use crate::controller::runtime::live_cluster::LiveOptions;
use crate::controller::runtime::{
    self, Host, PageChannels, Reporter, RunOptions, RuntimeError, StatusPage, Steering,
};
use crate::controller::{BlockedReason, ControllerState, StartOptions, Status};
use crate::manifest::read_fleet;
use crate::model::desired::{Severity, Signer, Tree, TreeFile};
use crate::plan::Plan;
#[cfg(feature = "page")]
use crate::server::http::{HttpServer, PageSource, RouteSet, ServerConfig, Webhook, listen};

/// Most bytes of a file of signers.
const SIGNERS_BYTES_MAX: u64 = 1 << 20;

/// Most bytes of a file of keys.
#[cfg(feature = "cluster")]
const STATE_KEY_BYTES_MAX: u64 = 4 << 10;

pub(super) fn run(settings: &RunSettings, console: &mut Console) -> Result<Exit, CliError> {
    #[cfg(feature = "cluster")]
    if settings.world == Some(WorldChoice::Live) && !settings.once {
        // A long-running controller retries until the repository, the cluster and the account can
        // be read.
        return run_live(settings, None, console);
    }
    let tree = source_tree::read(&settings.source)?;
    let repository = Repository::read(&tree);
    let world =
        planning::world_choice(settings.world.as_ref(), &settings.source, &repository.fleet)?;
    match &world {
        WorldChoice::Sim(directory) => run_embedded(settings, &repository, directory, console),
        #[cfg(feature = "cluster")]
        WorldChoice::Live => run_live(settings, Some(&repository), console),
        #[cfg(not(feature = "cluster"))]
        WorldChoice::Live => Err(unsupported_world(&world)),
        WorldChoice::Empty | WorldChoice::File(_) => Err(unsupported_world(&world)),
    }
}

fn run_embedded(
    settings: &RunSettings,
    repository: &Repository,
    directory: &Path,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let _lock = WorldLock::acquire(directory, settings.lock_timeout, console)?;
    let desired = Rc::new(repository.desired.clone());
    let world = embedded::open_for(directory, repository, &desired, console.now())?;
    let choice = WorldChoice::Sim(directory.to_owned());
    same_cluster(&choice, repository, &world.cluster())?;
    let options = EmbeddedOptions {
        run: run_options(settings),
        directory: directory.to_owned(),
        cluster: repository.fleet.identity(),
        speed: settings.speed,
        shutdown: shutdown_flag()?,
    };
    let reader = source_reader(settings, choice)?;
    let mut host = RunHost { settings, console };
    let state = runtime::embedded::run(&mut host, options, world, reader)?;
    Ok(exit_status(&state, settings.once))
}

/// Runs the controller over the cluster of the environment. Without a `repository` it retries until
/// the repository, the cluster and the account can be read.
#[cfg(feature = "cluster")]
fn run_live(
    settings: &RunSettings,
    repository: Option<&Repository>,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let options = LiveOptions {
        run: run_options(settings),
        retries_connect: repository.is_none(),
        lock_timeout: settings.lock_timeout,
        state_keys: state_keys(settings, console)?,
        shutdown: shutdown_flag()?,
    };
    let reader = source_reader(settings, WorldChoice::Live)?;
    let connect = async || match repository {
        Some(repository) => super::live::connect(repository).await,
        None => super::live::read_and_connect(&settings.source).await,
    };
    let state = live::run(&mut RunHost { settings, console }, &options, reader, connect)?;
    Ok(state.map_or(Exit::Done, |state| exit_status(&state, settings.once)))
}

/// Reads the keys that authenticate stored decisions.
#[cfg(feature = "cluster")]
fn state_keys(
    settings: &RunSettings,
    console: &mut Console,
) -> Result<Option<StateKeys>, CliError> {
    let Some(path) = &settings.state_key else { return Ok(None) };
    let name = path.display();
    if !path.exists() {
        console.report(&format!(
            "warning: `{name}` does not exist, so stored approvals are not authenticated"
        ));
        return Ok(None);
    }
    let bytes = files::read(path, STATE_KEY_BYTES_MAX)?;
    let keys = StateKeys::parse(&String::from_utf8_lossy(&bytes)).map_err(|why| {
        CliError::text(format!("the keys in `{name}` cannot be used: {why}"))
            .hint("write a random key with `openssl rand -hex 32`")
    })?;
    Ok(Some(keys))
}

fn source_reader(settings: &RunSettings, world: WorldChoice) -> Result<SourceReader, CliError> {
    let signers = settings.signers.as_deref().map(outside_signers).transpose()?;
    let signatures = SignatureSettings::new(settings.guard_ref.clone(), signers);
    let source = settings.source.clone();
    Ok(SourceReader {
        source,
        world,
        steering: Steering::OnRequest,
        signatures: Arc::new(signatures),
    })
}

/// Returns a reader of the repository for the controller of the sandbox.
#[cfg(all(feature = "cluster", feature = "sandbox"))]
pub(super) fn sandbox_reader(source: &super::settings::SourceSettings) -> SourceReader {
    SourceReader {
        source: source.clone(),
        world: WorldChoice::Live,
        steering: Steering::OnRequest,
        signatures: Arc::default(),
    }
}

/// Reads signers from a file in the form of `fleetwright.yaml`.
fn outside_signers(path: &Path) -> Result<Vec<Signer>, CliError> {
    let content = files::read(path, SIGNERS_BYTES_MAX)?;
    let file = TreeFile { path: "fleetwright.yaml".into(), content: Ok(content.into()) };
    let (fleet, problems) = read_fleet(&Tree { files: vec![file] });
    let hint = "write spec.signers in it, as in fleetwright.yaml";
    if let Some(problem) = problems.iter().find(|problem| problem.severity == Severity::Error) {
        let (path, line, message) = (path.display(), problem.origin.line, &problem.message);
        return Err(CliError::text(format!("`{path}`:{line}: {message}")).hint(hint));
    }
    if fleet.signers.is_empty() {
        let path = path.display();
        return Err(CliError::text(format!("`{path}` lists no signers")).hint(hint));
    }
    Ok(fleet.signers)
}

fn run_options(settings: &RunSettings) -> RunOptions {
    let RunSettings { mode, once, log_format, accepts_api_tokens, .. } = *settings;
    RunOptions { mode, once, log_format, accepts_api_tokens }
}

/// Returns a flag that Ctrl-C and SIGTERM set, so that a stop by Kubernetes ends the controller in
/// order.
fn shutdown_flag() -> Result<Arc<AtomicBool>, CliError> {
    let flag = apply_session::interrupt_flag()?;
    signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&flag))
        .map_err(|error| CliError::new(error).context("cannot listen for SIGTERM".to_owned()))?;
    Ok(flag)
}

/// The command around the controller.
struct RunHost<'r> {
    #[cfg_attr(not(feature = "page"), expect(dead_code, reason = "only the page needs it"))]
    settings: &'r RunSettings,
    console: &'r mut Console,
}

impl Reporter for RunHost<'_> {
    fn report(&mut self, line: &str) {
        self.console.report(line);
    }

    fn report_raw(&mut self, text: &str) {
        self.console.report_raw(text);
    }
}

impl Host for RunHost<'_> {
    type Error = CliError;
    type Page = OptionalPage;

    #[cfg(feature = "page")]
    fn open_page(
        &mut self,
        start: &StartOptions,
        channels: PageChannels,
    ) -> Result<OptionalPage, CliError> {
        let PageChannels { requests, hints, forecasts } = channels;
        let RunSettings { listen: page, listen_metrics: metrics, .. } = *self.settings;
        if page.is_none() && metrics.is_none() {
            return Ok(OptionalPage(None));
        }
        let (publisher, receiver) =
            StatusPublisher::new(ControllerState::new(start.clone()).status());
        let secrets = self.settings.webhook.clone();
        let config = ServerConfig {
            forecast: forecasts,
            routes: if metrics.is_some() { RouteSet::Page } else { RouteSet::All },
            allowed_hosts: self.settings.listen_names.clone(),
            webhook: secrets.map(|secrets| Webhook { secrets, push_hints: hints }),
            namespace: namespace_of_pod(),
            ..ServerConfig::new(receiver.clone(), PageSource::Controller(requests))
        };
        let mut servers = Vec::new();
        if let Some(address) = page {
            let server = open_port("--listen", address, config)?;
            self.console.report(&format!("The page is at http://{}/", server.address()));
            servers.push(server);
        }
        if let Some(address) = metrics {
            let source = PageSource::Controller(None);
            let config =
                ServerConfig { routes: RouteSet::Metrics, ..ServerConfig::new(receiver, source) };
            let server = open_port("--listen-metrics", address, config)?;
            self.console.report(&format!("Metrics are at http://{}/metrics", server.address()));
            servers.push(server);
        }
        Ok(OptionalPage(Some((publisher, servers))))
    }

    #[cfg(not(feature = "page"))]
    fn open_page(&mut self, _: &StartOptions, _: PageChannels) -> Result<OptionalPage, CliError> {
        Ok(OptionalPage)
    }
}

impl From<RuntimeError> for CliError {
    fn from(error: RuntimeError) -> Self {
        match error {
            #[cfg(feature = "cluster")]
            RuntimeError::Lease(error @ LeaseError::Port(_)) => {
                Self::new(error).hint("the controller needs permission to read and write leases")
            }
            #[cfg(feature = "cluster")]
            RuntimeError::Lease(error) => Self::new(error)
                .kind(Exit::Locked)
                .hint("wait for it, or pass a longer --lock-timeout"),
            error => Self::new(error),
        }
    }
}

/// The page, the metrics and the probes of the controller; `None` if no port is open.
#[cfg(feature = "page")]
struct OptionalPage(Option<(StatusPublisher, Vec<HttpServer>)>);

/// Opens the port of a flag.
#[cfg(feature = "page")]
fn open_port(
    flag: &str,
    address: std::net::SocketAddr,
    config: ServerConfig,
) -> Result<HttpServer, CliError> {
    listen(address, config).map_err(|error| {
        CliError::text(error.to_string())
            .context(format!("cannot listen on {address}"))
            .hint(format!("pass {flag} with an address that is free"))
    })
}

/// Stands in for the page in a program that is built without the feature `page`.
#[cfg(not(feature = "page"))]
struct OptionalPage;

impl StatusPage for OptionalPage {
    #[cfg(feature = "page")]
    fn publish(&self, status: Status) {
        if let Some((publisher, _)) = &self.0 {
            publisher.publish(status);
        }
    }

    #[cfg(not(feature = "page"))]
    fn publish(&self, _: Status) {}
}

/// Returns the namespace of the pod that this process runs in, if any.
#[cfg(feature = "page")]
fn namespace_of_pod() -> Option<String> {
    const FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
    std::env::var_os("POD_NAME").filter(|name| !name.is_empty())?;
    let text = std::fs::read_to_string(FILE).ok()?;
    Some(text.trim().to_owned()).filter(|namespace| !namespace.is_empty())
}

fn unsupported_world(world: &WorldChoice) -> CliError {
    let (why, hint) = match world {
        WorldChoice::Live => (
            "this program was built without the live world".to_owned(),
            "run against an embedded world: --world sim:DIRECTORY; for a real one, build with the \
             feature `cluster`",
        ),
        WorldChoice::Empty | WorldChoice::File(_) | WorldChoice::Sim(_) => (
            format!("world `{world}` cannot change, so it cannot be reconciled"),
            "run against a world that can change: --world live, or --world sim:DIRECTORY",
        ),
    };
    CliError::text(why).kind(Exit::NotApproved).hint(hint)
}

/// Returns the exit of a controller that ran with `once`.
fn exit_status(state: &ControllerState, once: bool) -> Exit {
    if !once {
        return Exit::Done;
    }
    let status = state.status();
    let unread = status.repository.reads.error.is_some();
    let Some(now) = status.plan.as_ref().filter(|_| !unread) else { return Exit::Failed };
    if now.plan.errored {
        return Exit::Failed;
    }
    if planning::is_denied(&now.plan) {
        return Exit::Denied;
    }
    exit_when_blocked(&status, &now.plan)
}

/// Returns the exit that follows from the reasons that block changes.
fn exit_when_blocked(status: &Status, plan: &Plan) -> Exit {
    let Some(now) = &status.plan else { return Exit::Failed };
    let by = |held: fn(&BlockedReason) -> bool| now.blocked.values().any(|by| held(&by.reason));
    if by(|held| {
        matches!(held, BlockedReason::NotApproved { .. } | BlockedReason::NotConfirmed { .. })
    }) {
        return Exit::NotApproved;
    }
    if by(|held| matches!(held, BlockedReason::OutsideWindow { .. })) {
        return Exit::OutsideWindow;
    }
    let observes = by(|held| matches!(held, BlockedReason::Mode { .. }));
    if planning::has_changes(plan) && !observes { Exit::Partly } else { Exit::Done }
}
