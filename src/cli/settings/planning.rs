//! Settings of planning: source, world, and scope.

use std::path::PathBuf;

use jiff::Timestamp;

use super::parse::moment;
use crate::cli::args::{DemandArg, GuardArgs, PlanningArgs, SourceArgs};
use crate::cli::error::CliError;
use crate::cli::world_choice::WorldChoice;
use crate::demand::DemandMode;
use crate::plan::wire::ResourceKind;
use crate::planner::Scope;

/// The source of the desired state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct SourceSettings {
    pub(in crate::cli) path: PathBuf,
    /// The commit to read instead of the files on disk.
    pub(in crate::cli) revision: Option<String>,
}

/// The settings of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct PlanningSettings {
    pub(in crate::cli) source: SourceSettings,
    /// `None`: the world of `fleetwright.yaml`.
    pub(in crate::cli) world: Option<WorldChoice>,
    /// `None`: now, or the time of the world.
    pub(in crate::cli) at: Option<Timestamp>,
    /// `None`: the count of `fleetwright.yaml`.
    pub(in crate::cli) demand: Option<DemandMode>,
    /// True if pods are nominated to their planned nodes.
    pub(in crate::cli) steer: bool,
    pub(in crate::cli) scope: Scope,
    /// The commit to compare with.
    pub(in crate::cli) compare: Option<String>,
    pub(in crate::cli) guard: GuardChoice,
}

/// The policies that judge a plan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::cli) struct GuardChoice {
    /// Policy directories, in addition to those of `fleetwright.yaml`.
    pub(in crate::cli) policies: Vec<PathBuf>,
    /// Policy data files.
    pub(in crate::cli) data: Vec<PathBuf>,
    /// The commit of the guarding settings and policies.
    pub(in crate::cli) revision: Option<String>,
}

pub(super) fn planning(path: PathBuf, args: PlanningArgs) -> Result<PlanningSettings, CliError> {
    let PlanningArgs { source, world, at, demand, steer, target, exclude, replace, compare, guard } =
        args;
    let guard = guard_choice(guard, compare.as_deref());
    Ok(PlanningSettings {
        source: source_settings(path, source),
        world: world.as_deref().map(WorldChoice::parse).transpose()?,
        at: moment("--at", at.as_deref())?,
        demand: demand.map(demand_mode),
        steer,
        scope: Scope {
            target_addresses: addresses(target)?,
            excluded_addresses: addresses(exclude)?,
            replaced_addresses: addresses(replace)?,
            changeable_nodes: None,
            running_pods_only: false,
            skips_demand_scenarios: false,
        },
        compare,
        guard,
    })
}

/// Guarding settings come from `--guard-ref`, otherwise from the compared revision.
pub(super) fn guard_choice(args: GuardArgs, compare: Option<&str>) -> GuardChoice {
    let GuardArgs { policy, policy_data, guard_ref } = args;
    let revision = guard_ref.or_else(|| compare.map(str::to_owned));
    GuardChoice { policies: policy, data: policy_data, revision }
}

pub(super) fn demand_mode(demand: DemandArg) -> DemandMode {
    match demand {
        DemandArg::Floor => DemandMode::Floor,
        DemandArg::Live => DemandMode::Live,
        DemandArg::Ceiling => DemandMode::Ceiling,
    }
}

pub(super) fn source_settings(
    path: PathBuf,
    SourceArgs { revision }: SourceArgs,
) -> SourceSettings {
    SourceSettings { path, revision }
}

fn addresses(texts: Vec<String>) -> Result<Vec<String>, CliError> {
    texts.into_iter().map(|text| address(&text)).collect()
}

/// Returns an address as plans write it: `TYPE.NAME`, or `TYPE.NAME["KEY"]`.
///
/// A shell removes unquoted quotes, so `TYPE.NAME[KEY]` is accepted as well.
fn address(text: &str) -> Result<String, CliError> {
    let wrong = || {
        CliError::text(format!("`{text}` is not the address of a node or pool"))
            .hint("write it as a plan shows it, in single quotes: 'ec2_instance.web[\"0\"]'")
    };
    let kinds =
        [ResourceKind::Ec2Instance, ResourceKind::KubernetesNode, ResourceKind::AutoscalingGroup];
    let (kind, rest) = text.split_once('.').ok_or_else(wrong)?;
    if !kinds.iter().any(|known| known.as_str() == kind) {
        return Err(wrong());
    }
    let (name, key) = match rest.strip_suffix(']') {
        None => (rest, None),
        Some(inner) => {
            let (name, key) = inner.split_once('[').ok_or_else(wrong)?;
            let quoted = key.strip_prefix('"').and_then(|key| key.strip_suffix('"'));
            (name, Some(quoted.unwrap_or(key)))
        }
    };
    let plain = |part: &str| !part.is_empty() && !part.contains(['[', ']', '"']);
    match key {
        None if plain(name) => Ok(format!("{kind}.{name}")),
        Some(key) if plain(name) && plain(key) => Ok(format!("{kind}.{name}[\"{key}\"]")),
        _ => Err(wrong()),
    }
}

/// Refuses planning options with a saved plan, because ignoring them would apply something else.
pub(super) fn refuse_planning(args: &PlanningArgs) -> Result<(), CliError> {
    let PlanningArgs {
        source,
        world: _,
        at,
        demand,
        steer,
        target,
        exclude,
        replace,
        compare,
        guard: _,
    } = args;
    let given = [
        (source.revision.is_some(), "--ref"),
        (compare.is_some(), "--compare"),
        (at.is_some(), "--at"),
        (demand.is_some(), "--demand"),
        (*steer, "--steer"),
        (!target.is_empty(), "--target"),
        (!exclude.is_empty(), "--exclude"),
        (!replace.is_empty(), "--replace"),
    ];
    match given.iter().find(|(is_given, _)| *is_given) {
        None => Ok(()),
        Some((_, option)) => Err(no_effect(option)),
    }
}

pub(super) fn no_effect(option: &str) -> CliError {
    CliError::text(format!("{option} has no effect on a saved plan"))
        .hint("plan again with the option, or name a directory instead of a plan")
}
