//! The world that a command observes.

use std::path::Path;

use jiff::Timestamp;

use super::error::CliError;
#[cfg(not(feature = "cluster"))]
use super::hints;
use super::repository::Repository;
use super::world_choice::WorldChoice;
use super::{Console, Exit, embedded, files};
use crate::model::market::Market;
use crate::model::observed::{ClusterIdentity, Observed, read_world};
use crate::model::similar_name::most_similar;
use crate::simulator::World;

/// Observes `world` for the cluster of `repository`, and writes nothing. A missing embedded world is
/// empty, with a warning: its name is most likely a typing error, or nothing was applied yet.
///
/// `at` is the requested time: the time of an empty or missing world.
///
/// # Errors
/// Fails if the world cannot be read, is of another cluster, or is not built in.
pub(super) fn observe(
    world: &WorldChoice,
    repository: &Repository,
    at: Option<Timestamp>,
    console: &mut Console,
) -> Result<Observed, CliError> {
    let at = at.unwrap_or_else(|| console.now());
    let observed = match world {
        WorldChoice::Empty => Observed::empty(repository.fleet.identity(), at),
        #[cfg(feature = "cluster")]
        WorldChoice::Live => super::live::observe(repository)?,
        #[cfg(not(feature = "cluster"))]
        WorldChoice::Live => return Err(not_built()),
        WorldChoice::File(path) => read(path)?,
        WorldChoice::Sim(directory) => embedded::observe(directory, repository, at)?,
    };
    same_cluster(world, repository, &observed.cluster)?;
    if is_missing(world) {
        console.report(&format!(
            "warning: world {world} does not exist, and counts as an empty cluster until apply or \
             run creates it"
        ));
    }
    Ok(observed)
}

/// Returns whether `world` is an embedded world that nothing has created yet.
fn is_missing(world: &WorldChoice) -> bool {
    match world {
        WorldChoice::Sim(directory) => !World::exists_in(directory),
        WorldChoice::Empty | WorldChoice::Live | WorldChoice::File(_) => false,
    }
}

/// Returns the current EC2 offerings, or the reason why they are not known. A world file returns
/// its saved offerings; other worlds return `None`.
pub(super) fn market(
    world: &WorldChoice,
    repository: &Repository,
    observed: &Observed,
) -> Option<Result<Market, String>> {
    match world {
        #[cfg(feature = "cluster")]
        WorldChoice::Live => Some(super::live::market(repository, &observed.cluster.account)),
        #[cfg(not(feature = "cluster"))]
        WorldChoice::Live => {
            let _ = repository;
            None
        }
        WorldChoice::File(_) => observed.market.clone().map(Ok),
        WorldChoice::Empty | WorldChoice::Sim(_) => None,
    }
}

#[cfg(not(feature = "cluster"))]
pub(super) fn not_built() -> CliError {
    CliError::text("this build has no support for `--world live`")
        .hint(hints::CLUSTER_BUILD)
        .hint("without it: plan against a file that `fleetwright observe --out FILE` wrote")
}

/// Reads a world file.
pub(super) fn read(path: &Path) -> Result<Observed, CliError> {
    let hint = "name a file that `fleetwright observe --out FILE` wrote, or write live, empty or \
                sim:DIRECTORY";
    let bytes = files::read(path, files::WORLD_BYTES_MAX).map_err(|error| {
        let meant = meant_world(path).into_iter();
        meant.fold(error, |error, word| error.hint(format!("did you mean `{word}`?"))).hint(hint)
    })?;
    read_world(&bytes).map_err(|error| {
        CliError::new(error).context(format!("cannot read world `{}`", path.display())).hint(hint)
    })
}

/// Returns the world that a misspelled word means.
fn meant_world(path: &Path) -> Option<&'static str> {
    most_similar(path.to_str()?, &["live", "empty"])
}

/// Refuses a world of another cluster than the declared one.
///
/// # Errors
/// If the repository declares another cluster (exit code 10).
pub(super) fn same_cluster(
    world: &WorldChoice,
    repository: &Repository,
    found: &ClusterIdentity,
) -> Result<(), CliError> {
    let ClusterIdentity { name, region, .. } = repository.fleet.identity();
    let same = (found.name == name && found.region == region) || !repository.fleet.is_declared;
    if same {
        return Ok(());
    }
    Err(CliError::text(format!(
        "world `{world}` is of cluster `{}` in `{}`, and fleetwright.yaml names `{name}` in \
         `{region}`",
        found.name, found.region
    ))
    .kind(Exit::OtherCluster)
    .hint("name a world of the same cluster, or change spec.cluster"))
}

/// Returns the time to plan for: the requested time, the time of the embedded world, or now.
pub(super) fn planning_time(
    world: &WorldChoice,
    requested: Option<Timestamp>,
    observed: &Observed,
    console: &Console,
) -> Timestamp {
    match world {
        WorldChoice::Sim(_) => requested.unwrap_or(observed.taken_at),
        WorldChoice::Empty | WorldChoice::Live | WorldChoice::File(_) => {
            requested.unwrap_or_else(|| console.now())
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::Exit;
    use crate::cli::tests::run_command;

    #[test]
    fn missing_world_file_is_an_error_with_a_hint() {
        let tree = tempfile::tempdir().expect("a directory");
        std::fs::write(tree.path().join("a.yaml"), "a: 1").expect("written");
        let path = tree.path().to_str().expect("UTF-8");
        let ran = run_command(&["plan", path, "--world", "no-such-world"]);
        assert_eq!(ran.exit, Exit::Failed);
        assert!(ran.err.contains("cannot read `no-such-world`"), "{}", ran.err);
        assert!(ran.err.contains("hint:  name a file that `fleetwright observe --out FILE` wrote"));
        assert!(ran.err.contains("write live, empty or sim:DIRECTORY"), "{}", ran.err);
        let misspelled = run_command(&["plan", path, "--world", "lvie"]);
        assert!(misspelled.err.contains("did you mean `live`?"), "{}", misspelled.err);
    }
}
