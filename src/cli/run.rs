//! `run`: the loop, for as long as it lives, or until nothing is left to do.

mod embedded;
mod plans;
mod tell;

use jiff::Timestamp;

use super::error::CliError;
use super::repository::Repository;
use super::settings::RunSettings;
use super::world::WorldChoice;
use super::{Console, Exit, planning};
use crate::plan::Plan;
use crate::reconcile::{Held, Start, State, Status};

/// A name that no other process has.
fn identity(now: Timestamp) -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "local".to_owned());
    format!("{host}/{}/{}", std::process::id(), now.as_millisecond())
}

pub(super) fn run(settings: &RunSettings, console: &mut Console) -> Result<Exit, CliError> {
    let tree = planning::read(&settings.source)?;
    let repository = Repository::read(&tree);
    let world = planning::choice(settings.world.as_ref(), &settings.source, &repository)?;
    match &world {
        WorldChoice::Sim(directory) => embedded::run(settings, &repository, directory, console),
        WorldChoice::Live | WorldChoice::Empty | WorldChoice::File(_) => Err(not_a_world(&world)),
    }
}

fn not_a_world(world: &WorldChoice) -> CliError {
    let why = match world {
        WorldChoice::Live => "the loop in a real cluster is not built yet".to_owned(),
        WorldChoice::Empty | WorldChoice::File(_) | WorldChoice::Sim(_) => {
            format!("nothing can be kept together with world `{world}`, which cannot change")
        }
    };
    CliError::text(why)
        .kind(Exit::NotApproved)
        .hint("run against an embedded world: --world sim:DIRECTORY")
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
