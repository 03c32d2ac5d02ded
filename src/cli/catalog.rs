//! `catalog`: instance types, what their nodes offer to pods, and prices.

use std::collections::BTreeMap;

use serde_json::Value;

use super::args::SortArg;
use super::error::CliError;
use super::repository::Repository;
use super::settings::{
    CatalogExplainSettings, CatalogListSettings, Format, NodeSource, RegionSettings,
};
use super::{Console, Exit, planning, world};
use crate::catalog::{Catalog, InstanceType, NodeSettings, Offering};
use crate::ids::{InstanceTypeName, PoolName};
use crate::manifest::AmiFamily;
use crate::plan::canonical;
use crate::render::{
    TypeRow, Verbosity, allocatable_text, allocation_json, allocation_text, types_json, types_text,
};
use crate::solve::measure;

pub(super) fn list(
    settings: &CatalogListSettings,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let CatalogListSettings { requirements, sort, limit, allocatable, region } = settings;
    let (catalog, node) = open(&region.node, console)?;
    let mut found: BTreeMap<&InstanceTypeName, (&InstanceType, Vec<&Offering>)> = BTreeMap::new();
    for (kind, offering) in catalog.matching(requirements) {
        found.entry(&kind.name).or_insert((kind, Vec::new())).1.push(offering);
    }
    let row = |(kind, offerings)| row(kind, offerings, &catalog, &node);
    let mut rows: Vec<TypeRow<'_>> = found.into_values().map(row).collect();
    order(&mut rows, *sort);
    rows.truncate(*limit);
    match region.format {
        Format::Json => print_json(&types_json(&rows, &catalog.prices), console)?,
        Format::Text => {
            let style = console.style(Verbosity::Full);
            console.print(&if *allocatable {
                allocatable_text(&rows, &style)
            } else {
                types_text(&rows, &catalog, &style)
            })?;
        }
    }
    warn(&catalog, region, console);
    Ok(Exit::Done)
}

pub(super) fn explain(
    settings: &CatalogExplainSettings,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let CatalogExplainSettings { name, region } = settings;
    let (catalog, node) = open(&region.node, console)?;
    let Some(kind) = catalog.get(name) else {
        return Err(CliError::text(format!("`{name}` {}", catalog.why_absent(name)?)));
    };
    let row = row(kind, kind.offerings.iter().collect(), &catalog, &node);
    let steps = catalog.explain(kind, &node);
    match region.format {
        Format::Json => print_json(&allocation_json(&row, &steps, &catalog.prices), console)?,
        Format::Text => {
            let style = console.style(Verbosity::Full);
            console.print(&allocation_text(&row, &steps, &catalog.prices, &style))?;
        }
    }
    warn(&catalog, region, console);
    Ok(Exit::Done)
}

/// Returns the catalogue to look at, and how its nodes are set up.
fn open(source: &NodeSource, console: &Console) -> Result<(Catalog, NodeSettings), CliError> {
    let (name, source, world) = match source {
        NodeSource::Typed { region, node } => {
            return Ok((Catalog::load(region, &[])?, (**node).clone()));
        }
        NodeSource::Pool { name, source, world } => (name, source, world),
    };
    let repository = Repository::read(&planning::read(source)?);
    let desired = &repository.desired;
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
    let world = planning::choice(world.as_ref(), source, &repository)?;
    let observed = world::observe(&world, &repository, None, console)?;
    let fleet = &repository.fleet;
    let region = if fleet.is_declared { fleet.region.clone() } else { observed.region() };
    let measured = measure(desired, &observed);
    let catalog = Catalog { measured, ..Catalog::load(&region, &fleet.zones)? };
    Ok((catalog, NodeSettings::of(pool, class)))
}

fn row<'a>(
    kind: &'a InstanceType,
    offerings: Vec<&'a Offering>,
    catalog: &Catalog,
    node: &NodeSettings,
) -> TypeRow<'a> {
    TypeRow {
        kind,
        offerings,
        allocation: catalog.allocation(kind, node),
        nodes_measured: catalog.measured.nodes(&kind.name, node),
        without_licence: node.family == AmiFamily::Windows,
    }
}

/// Sorts by what was asked for, then by name; what has no price comes after everything that has.
fn order(rows: &mut [TypeRow<'_>], sort: SortArg) {
    match sort {
        // The rows come by name, and the sort is stable.
        SortArg::Name => {}
        SortArg::Price => rows.sort_by_key(|row| {
            let price = row.cheapest(None);
            (price.is_none(), price)
        }),
        SortArg::Cpu => rows.sort_by_key(|row| row.kind.vcpus),
        SortArg::Memory => rows.sort_by_key(|row| row.kind.memory_mib),
    }
}

fn print_json(value: &Value, console: &mut Console) -> Result<(), CliError> {
    console.print(&canonical::pretty(value).map_err(CliError::new)?)
}

/// Says on stderr what a reader of the numbers should know; JSON is left to programs.
fn warn(catalog: &Catalog, region: &RegionSettings, console: &mut Console) {
    if region.format == Format::Text {
        for warning in &catalog.warnings {
            console.say(&format!("warning: {warning}"));
        }
    }
}
