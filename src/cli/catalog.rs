//! `catalog`: instance types, allocatable capacity of their nodes, and prices.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::args::SortArg;
use super::error::CliError;
use super::settings::{
    CatalogExplainSettings, CatalogListSettings, Format, NodeSource, RegionSettings,
};
use super::{Console, Exit, cluster_pools, files, output, planning, source_tree, world};
use crate::catalog::{Catalog, InstanceType, NodeSettings, Offering};
use crate::manifest::read_region_prices;
use crate::model::desired::{
    AmiFamily, Desired, Fleet, PRICE_FILE, Pool, RegionPrices, Tree, TreeFile,
};
use crate::model::ids::{InstanceTypeName, LabelValue, PoolName};
use crate::model::requirement::{LabelSet, Requirements, is_well_known, key, similar_keys};
use crate::render::{
    OfferingRow, TypeRow, Verbosity, allocatable_text, allocation_json, allocation_text, escape,
    types_json, types_text,
};
use crate::solver::measured_resources;

/// Maximum bytes of a price file. A region has some thousand types.
const PRICE_FILE_BYTES_MAX: u64 = 1 << 20;

pub(super) fn list(
    settings: &CatalogListSettings,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let CatalogListSettings { requirements, sort, limit, allocatable, region } = settings;
    let view = open(&region.node, console)?;
    let catalog = &view.catalog;
    let mut found: BTreeMap<&InstanceTypeName, (&InstanceType, Vec<&Offering>)> = BTreeMap::new();
    let pool = view.pool.as_ref().and_then(|(name, desired)| desired.pools.get(name));
    let launched: Option<BTreeSet<&InstanceTypeName>> =
        pool.map(|pool| catalog.types_for_pool(pool).map(|kind| &kind.name).collect());
    let requirements = &pool.map_or_else(
        || requirements.clone(),
        |pool| requirements.and(&offering_requirements(pool)),
    );
    let is_launched =
        |kind: &InstanceType| launched.as_ref().is_none_or(|all| all.contains(&kind.name));
    let matching = catalog.matching(requirements).filter(|(kind, _)| is_launched(kind));
    for (kind, offering) in matching {
        found.entry(&kind.name).or_insert((kind, Vec::new())).1.push(offering);
    }
    let row = |(kind, offerings)| view.row(kind, offerings);
    let mut rows: Vec<TypeRow<'_>> = found.into_values().map(row).collect();
    order(&mut rows, *sort);
    rows.truncate(*limit);
    match region.format {
        Format::Document(format) => {
            console.print(&output::document(&types_json(&rows, &catalog.prices), format)?)?;
        }
        Format::Text => {
            let style = console.style(Verbosity::Full);
            console.print(&if *allocatable {
                allocatable_text(&rows, &style)
            } else {
                types_text(&rows, catalog, &style)
            })?;
        }
    }
    warn(catalog, region, console);
    if region.format == Format::Text {
        for (key, _) in requirements.iter().filter(|(key, _)| !is_well_known(key.as_str())) {
            let similar = similar_keys(key.as_str());
            if !similar.is_empty() {
                let similar = similar.join("` or `");
                console.report(&format!(
                    "warning: no type has the label `{}`; did you mean `{similar}`?",
                    escape(key.as_str())
                ));
            }
        }
    }
    Ok(Exit::Done)
}

/// Returns the requirements of a pool on the labels of offerings, such as the zone.
fn offering_requirements(pool: &Pool) -> Requirements {
    let keys = [key::ZONE, key::ZONE_ID, key::CAPACITY_TYPE, key::REGION];
    let mut required = Requirements::default();
    for of_pool in pool.requirements.iter().filter(|own| keys.contains(&own.key.as_str())) {
        let values: Vec<&str> = of_pool.values.iter().map(LabelValue::as_str).collect();
        if let Ok(set) = LabelSet::from_operator(of_pool.operator, &values) {
            required.add(of_pool.key.clone(), &set);
        }
    }
    required
}

pub(super) fn explain(
    settings: &CatalogExplainSettings,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let CatalogExplainSettings { name, region } = settings;
    let view = open(&region.node, console)?;
    let catalog = &view.catalog;
    let Some(kind) = catalog.get(name) else {
        return Err(CliError::text(format!("`{name}` {}", catalog.explain_missing(name)?)));
    };
    let row = view.row(kind, kind.offerings.iter().collect());
    let steps = catalog.explain(kind, &view.node);
    match region.format {
        Format::Document(format) => {
            let found = allocation_json(&row, &steps, &catalog.prices);
            console.print(&output::document(&found, format)?)?;
        }
        Format::Text => {
            let style = console.style(Verbosity::Full);
            console.print(&allocation_text(&row, &steps, &catalog.prices, &style))?;
        }
    }
    warn(catalog, region, console);
    Ok(Exit::Done)
}

/// A catalog, and the settings of its nodes.
struct CatalogView {
    catalog: Catalog,
    /// The settings of its nodes.
    node: NodeSettings,
    /// The pool of the nodes, and the repository that declares it.
    pool: Option<(PoolName, Box<Desired>)>,
}

impl CatalogView {
    fn row<'a>(&'a self, kind: &'a InstanceType, offerings: Vec<&'a Offering>) -> TypeRow<'a> {
        let pool = self
            .pool
            .as_ref()
            .and_then(|(name, desired)| Some((desired.pools.get(name)?, desired)));
        let offered = |offering| match pool {
            Some((pool, desired)) => {
                let overlaid = self.catalog.apply_overlays(desired, pool, kind, offering);
                OfferingRow { offering, overlaid }
            }
            None => OfferingRow::without_overlay(offering),
        };
        TypeRow {
            kind,
            offerings: offerings.into_iter().map(offered).collect(),
            allocation: self.catalog.allocation(kind, &self.node),
            nodes_measured: self.catalog.measured.nodes(&kind.name, &self.node),
            without_license: self.node.family == AmiFamily::Windows,
        }
    }
}

/// Returns the prices in the price file of a directory.
fn prices_in(path: &Path) -> Result<Option<RegionPrices>, CliError> {
    let file = path.join(PRICE_FILE);
    if !file.exists() {
        return Ok(None);
    }
    let content = Ok(files::read(&file, PRICE_FILE_BYTES_MAX)?.into());
    let tree = Tree { files: vec![TreeFile { path: PRICE_FILE.into(), content }] };
    let (prices, problem) = read_region_prices(&tree, &Fleet::default());
    problem.map_or(Ok(prices), |problem| Err(CliError::from_problem(&problem)))
}

/// Opens the catalog of `source`, with the settings of its nodes.
fn open(source: &NodeSource, console: &mut Console) -> Result<CatalogView, CliError> {
    let (name, source, world) = match source {
        NodeSource::Options { region, node, path } => {
            let prices = prices_in(path)?;
            let catalog = Catalog::load_with_prices(region, &[], prices.as_ref())?;
            return Ok(CatalogView { catalog, node: (**node).clone(), pool: None });
        }
        NodeSource::Pool { name, source, world } => (name, source, world),
    };
    let tree = source_tree::read(source)?;
    let (repository, world) = cluster_pools::read_over(&tree, world.as_ref(), source)?;
    let desired = &repository.desired;
    let mut problems = desired.problems.iter();
    if let Some(problem) = problems.find(|problem| &*problem.origin.file == PRICE_FILE) {
        return Err(CliError::from_problem(problem));
    }
    let Some(pool) = desired.pools.get(name) else {
        let known: Vec<&str> = desired.pools.keys().map(PoolName::as_str).collect();
        let hint = match known.as_slice() {
            [] => "the repository declares none; name another with --path".to_owned(),
            known => format!("its pools are {}", known.join(", ")),
        };
        return Err(CliError::text(format!("there is no pool `{name}`")).hint(hint));
    };
    let class = pool.node_class.as_ref().and_then(|class| desired.node_classes.get(class));
    let Some(class) = class else {
        return Err(CliError::text(format!("pool `{name}` has no node class that is declared"))
            .hint("`fleetwright validate` names it with file and line"));
    };
    let observed = world::observe(&world, &repository, None, console)?;
    let market = world::market(&world, &repository, &observed);
    let region = repository.fleet.region_of(&observed);
    let catalog = planning::catalog(&repository.fleet, &region, market.as_ref())?;
    let measured = measured_resources(desired, &observed, &catalog);
    let catalog = Catalog { measured, ..catalog };
    let node = NodeSettings::new(pool, class);
    let pool = Some((name.clone(), Box::new(repository.desired)));
    Ok(CatalogView { catalog, node, pool })
}

/// Sorts by `sort`, then by name. Types without a price come last.
fn order(rows: &mut [TypeRow<'_>], sort: SortArg) {
    match sort {
        // Rows arrive sorted by name, and the sort is stable.
        SortArg::Name => {}
        SortArg::Price => rows.sort_by_key(|row| {
            let price = row.cheapest(None);
            (price.is_none(), price)
        }),
        SortArg::Cpu => rows.sort_by_key(|row| row.kind.vcpus),
        SortArg::Memory => rows.sort_by_key(|row| row.kind.memory_mib),
    }
}

/// Writes the warnings of the catalog to stderr, for text output only.
fn warn(catalog: &Catalog, region: &RegionSettings, console: &mut Console) {
    if region.format == Format::Text {
        for warning in &catalog.warnings {
            console.report(&format!("warning: {warning}"));
        }
    }
}

#[cfg(test)]
mod tests;
