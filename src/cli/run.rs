//! `run`: the loop, for as long as it lives, or until nothing is left to do.

mod embedded;
mod foresight;
#[cfg(feature = "cluster")]
mod live;
mod plans;
mod tell;

use jiff::Timestamp;
use tokio::sync::mpsc;

use foresight::Told;

use super::error::CliError;
use super::repository::Repository;
use super::settings::RunSettings;
use super::world::WorldChoice;
use super::{Console, Exit, planning};
#[cfg(feature = "page")]
use crate::listen::{Hook, Listening, Serves, Site, listen};
use crate::plan::Plan;
#[cfg(feature = "page")]
use crate::reconcile::Board;
use crate::reconcile::{Held, Start, State, Status};

/// A name that no other process has.
fn identity(now: Timestamp) -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "local".to_owned());
    format!("{host}/{}/{}", std::process::id(), now.as_millisecond())
}

pub(super) fn run(settings: &RunSettings, console: &mut Console) -> Result<Exit, CliError> {
    #[cfg(feature = "cluster")]
    if settings.world == Some(WorldChoice::Live) && !settings.once {
        // Whoever is to run for long waits for what is not there yet.
        return live::run(settings, None, console);
    }
    let tree = planning::read(&settings.source)?;
    let repository = Repository::read(&tree);
    let world = planning::choice(settings.world.as_ref(), &settings.source, &repository)?;
    match &world {
        WorldChoice::Sim(directory) => embedded::run(settings, &repository, directory, console),
        #[cfg(feature = "cluster")]
        WorldChoice::Live => live::run(settings, Some(&repository), console),
        #[cfg(not(feature = "cluster"))]
        WorldChoice::Live => Err(not_a_world(&world)),
        WorldChoice::Empty | WorldChoice::File(_) => Err(not_a_world(&world)),
    }
}

/// Returns the namespace of the pod that this process runs in, where it runs in one.
#[cfg(feature = "page")]
fn namespace_of_pod() -> Option<String> {
    const FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
    std::env::var_os("POD_NAME").filter(|name| !name.is_empty())?;
    let text = std::fs::read_to_string(FILE).ok()?;
    Some(text.trim().to_owned()).filter(|namespace| !namespace.is_empty())
}

/// Where the loop shows itself, if anywhere.
#[cfg(feature = "page")]
struct Face(Option<(Board, Listening)>);

#[cfg(feature = "page")]
impl Face {
    /// Opens it before the first step, so that an address that cannot be had is an error of the start.
    fn open(
        settings: &RunSettings,
        begun: &Start,
        wires: (mpsc::Sender<()>, Told),
        console: &mut Console,
    ) -> Result<Self, CliError> {
        Self::asked(settings, begun, Serves::Loop(None), wires, console)
    }

    fn asked(
        settings: &RunSettings,
        begun: &Start,
        serves: Serves,
        (pushed, forecast): (mpsc::Sender<()>, Told),
        console: &mut Console,
    ) -> Result<Self, CliError> {
        let Some(address) = settings.listen else { return Ok(Self(None)) };
        let (board, reader) = Board::new(State::new(begun.clone()).status());
        let hook = settings.webhook.clone().map(|secrets| Hook { secrets, pushed });
        let names = settings.listen_names.clone();
        let namespace = namespace_of_pod();
        let site = Site { forecast, names, hook, namespace, ..Site::of(reader, serves) };
        let listening = listen(address, site).map_err(|error| {
            CliError::text(error.to_string())
                .context(format!("cannot listen on {address}"))
                .hint("pass --listen with an address that is free")
        })?;
        console.say(&format!("The page is at http://{}/", listening.address()));
        Ok(Self(Some((board, listening))))
    }

    fn show(&self, status: Status) {
        if let Some((board, _)) = &self.0 {
            board.publish(status);
        }
    }
}

/// A loop of a program that was built without what shows it.
#[cfg(not(feature = "page"))]
struct Face;

#[cfg(not(feature = "page"))]
impl Face {
    #[expect(clippy::unnecessary_wraps, reason = "the other one may fail")]
    fn open(
        _: &RunSettings,
        _: &Start,
        _: (mpsc::Sender<()>, Told),
        _: &mut Console,
    ) -> Result<Self, CliError> {
        Ok(Self)
    }

    #[expect(clippy::unused_self, reason = "the other one needs it")]
    fn show(&self, _: Status) {}
}

fn not_a_world(world: &WorldChoice) -> CliError {
    let why = match world {
        WorldChoice::Live => "this program was built without the live world".to_owned(),
        WorldChoice::Empty | WorldChoice::File(_) | WorldChoice::Sim(_) => {
            format!("nothing can be kept together with world `{world}`, which cannot change")
        }
    };
    CliError::text(why).kind(Exit::NotApproved).hint(
        "run against an embedded world: --world sim:DIRECTORY; for a real one, build with the \
               feature `cluster`",
    )
}

fn start(settings: &RunSettings, at: Timestamp, cluster: crate::fleet::ClusterIdentity) -> Start {
    let (mode, once) = (settings.mode, settings.once);
    Start { at, identity: identity(at), cluster, mode, once }
}

/// Says how a loop ends that was to do what there is to do, and no more.
fn exit(state: &State, once: bool) -> Exit {
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
    held(&status, &now.plan)
}

/// Says how it ends by what holds changes back.
fn held(status: &Status, plan: &Plan) -> Exit {
    let Some(now) = &status.plan else { return Exit::Failed };
    let by = |held: fn(&Held) -> bool| now.held.values().any(|by| held(&by.why));
    if by(|held| matches!(held, Held::NotApproved { .. } | Held::NotConfirmed { .. })) {
        return Exit::NotApproved;
    }
    if by(|held| matches!(held, Held::Window { .. })) {
        return Exit::OutsideWindow;
    }
    let observes = by(|held| matches!(held, Held::Mode { .. }));
    if planning::has_changes(plan) && !observes { Exit::Partly } else { Exit::Done }
}
