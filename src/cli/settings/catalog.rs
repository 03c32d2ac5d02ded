//! Settings of `catalog`: the types to show, and the settings of their nodes.

use std::path::PathBuf;

use super::planning::SourceSettings;
use super::{Format, to_format};
use crate::catalog::NodeSettings;
use crate::cli::args::{CatalogExplainArgs, CatalogListArgs, FamilyArg, RegionArgs, SortArg};
use crate::cli::error::CliError;
use crate::cli::world_choice::WorldChoice;
use crate::model::desired::{AmiFamily, KubeletSettings};
use crate::model::ids::{InstanceTypeName, PoolName, Region};
use crate::model::requirement::Requirements;

/// The catalog to show.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct RegionSettings {
    pub(in crate::cli) node: NodeSource,
    pub(in crate::cli) format: Format,
}

/// The source of node settings.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) enum NodeSource {
    /// Options of the command line, with the directory of the price file.
    Options { region: Region, node: Box<NodeSettings>, path: PathBuf },
    /// A pool of a repository. Without a world, that of `fleetwright.yaml`.
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
    let format = to_format(args.format.format);
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
    let node = NodeSource::Options { region: region.into(), node: Box::new(node), path: args.path };
    Ok(RegionSettings { node, format })
}
