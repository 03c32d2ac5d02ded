//! Which types of the catalogue are looked at, and for nodes of which set-up.

use super::planning::SourceSettings;
use super::{Format, of_format};
use crate::catalog::NodeSettings;
use crate::cli::args::{CatalogExplainArgs, CatalogListArgs, FamilyArg, RegionArgs, SortArg};
use crate::cli::error::CliError;
use crate::cli::world::WorldChoice;
use crate::ids::{InstanceTypeName, PoolName, Region};
use crate::manifest::{AmiFamily, KubeletSettings};
use crate::requirement::Requirements;

/// Which catalogue is looked at.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct RegionSettings {
    pub(in crate::cli) node: NodeSource,
    pub(in crate::cli) format: Format,
}

/// Where it is told how nodes are set up.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) enum NodeSource {
    /// On the command line.
    Typed { region: Region, node: Box<NodeSettings> },
    /// In a repository; without a world, what `fleetwright.yaml` says runs.
    Pool { name: PoolName, source: SourceSettings, world: Option<WorldChoice> },
}

#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct CatalogListSettings {
    pub(in crate::cli) requirements: Requirements,
    pub(in crate::cli) sort: SortArg,
    pub(in crate::cli) limit: usize,
    pub(in crate::cli) allocatable: bool,
    pub(in crate::cli) region: RegionSettings,
}

#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct CatalogExplainSettings {
    pub(in crate::cli) name: InstanceTypeName,
    pub(in crate::cli) region: RegionSettings,
}

pub(super) fn catalog_list(args: CatalogListArgs) -> Result<CatalogListSettings, CliError> {
    let CatalogListArgs { selector, sort, limit, allocatable, region: typed } = args;
    let mut requirements = Requirements::default();
    for text in selector {
        requirements = requirements.and(&text.parse()?);
    }
    let limit = limit.unwrap_or(usize::MAX);
    let sort = sort.unwrap_or(if allocatable { SortArg::Name } else { SortArg::Price });
    Ok(CatalogListSettings { requirements, sort, limit, allocatable, region: region(typed)? })
}

pub(super) fn catalog_explain(
    args: CatalogExplainArgs,
) -> Result<CatalogExplainSettings, CliError> {
    let CatalogExplainArgs { name, region: typed } = args;
    Ok(CatalogExplainSettings { name: name.into(), region: region(typed)? })
}

fn region(args: RegionArgs) -> Result<RegionSettings, CliError> {
    let format = of_format(args.format.format);
    let RegionArgs { region, ami_family, max_pods, pods_per_core, prefix_delegation, .. } = args;
    if let Some(name) = args.pool {
        let source = SourceSettings { path: args.path, revision: None };
        let world = args.world.as_deref().map(WorldChoice::parse).transpose()?;
        return Ok(RegionSettings {
            node: NodeSource::Pool { name: name.into(), source, world },
            format,
        });
    }
    let family = match ami_family {
        FamilyArg::Al2 => AmiFamily::Al2,
        FamilyArg::Al2023 => AmiFamily::Al2023,
        FamilyArg::Bottlerocket => AmiFamily::Bottlerocket,
        FamilyArg::Windows => AmiFamily::Windows,
    };
    let kubelet = KubeletSettings { max_pods, pods_per_core, ..KubeletSettings::default() };
    let node = NodeSettings { family, kubelet, prefix_delegation, ..NodeSettings::default() };
    let node = NodeSource::Typed { region: region.into(), node: Box::new(node) };
    Ok(RegionSettings { node, format })
}
