//! Settings of `top`.

use std::time::Duration;

use super::parse::duration;
use super::planning::{SourceSettings, source_settings};
use crate::cli::args::TopArgs;
use crate::cli::error::CliError;
use crate::cli::world_choice::WorldChoice;
use crate::render::TopSort;

/// Shortest time between two observations.
const INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Settings of `top`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct TopSettings {
    pub(in crate::cli) source: SourceSettings,
    /// The world, unless the repository names it.
    pub(in crate::cli) world: Option<WorldChoice>,
    /// Pools to show; empty for all nodes.
    pub(in crate::cli) pools: Vec<String>,
    pub(in crate::cli) sort: TopSort,
    /// Time between two observations.
    pub(in crate::cli) interval: Duration,
    /// True to print one frame.
    pub(in crate::cli) once: bool,
}

pub(super) fn top(args: TopArgs) -> Result<TopSettings, CliError> {
    let TopArgs { path, source, world, pool: pools, sort, interval: typed, once } = args;
    let interval = duration("--interval", &typed)?;
    if interval < INTERVAL_MIN {
        return Err(CliError::text(format!("--interval is `{typed}`, shorter than 1s"))
            .hint("write 1s or more: each observation reads the cluster and plans"));
    }
    Ok(TopSettings {
        source: source_settings(path, source),
        world: world.as_deref().map(WorldChoice::parse).transpose()?,
        pools,
        sort,
        interval,
        once,
    })
}
