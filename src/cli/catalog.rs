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
use crate::manifest::{AmiFamily, Desired};
use crate::plan::canonical;
use crate::render::{
    OfferingRow, TypeRow, Verbosity, allocatable_text, allocation_json, allocation_text,
    types_json, types_text,
};
use crate::solve::measure;

pub(super) fn list(
    settings: &CatalogListSettings,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let CatalogListSettings { requirements, sort, limit, allocatable, region } = settings;
    let opened = open(&region.node, console)?;
    let catalog = &opened.catalog;
    let mut found: BTreeMap<&InstanceTypeName, (&InstanceType, Vec<&Offering>)> = BTreeMap::new();
    for (kind, offering) in catalog.matching(requirements) {
        found.entry(&kind.name).or_insert((kind, Vec::new())).1.push(offering);
    }
    let row = |(kind, offerings)| opened.row(kind, offerings);
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
                types_text(&rows, catalog, &style)
            })?;
        }
    }
    warn(catalog, region, console);
    Ok(Exit::Done)
}

pub(super) fn explain(
    settings: &CatalogExplainSettings,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let CatalogExplainSettings { name, region } = settings;
    let opened = open(&region.node, console)?;
    let catalog = &opened.catalog;
    let Some(kind) = catalog.get(name) else {
        return Err(CliError::text(format!("`{name}` {}", catalog.why_absent(name)?)));
    };
    let row = opened.row(kind, kind.offerings.iter().collect());
    let steps = catalog.explain(kind, &opened.node);
    match region.format {
        Format::Json => print_json(&allocation_json(&row, &steps, &catalog.prices), console)?,
        Format::Text => {
            let style = console.style(Verbosity::Full);
            console.print(&allocation_text(&row, &steps, &catalog.prices, &style))?;
        }
    }
    warn(catalog, region, console);
    Ok(Exit::Done)
}

/// The catalogue to look at.
struct Opened {
    catalog: Catalog,
    /// How its nodes are set up.
    node: NodeSettings,
    /// The pool whose nodes they are, and the repository that declares it.
    of: Option<(PoolName, Box<Desired>)>,
}

impl Opened {
    fn row<'a>(&'a self, kind: &'a InstanceType, offerings: Vec<&'a Offering>) -> TypeRow<'a> {
        let pool = self.of.as_ref().and_then(|(name, of)| Some((of.pools.get(name)?, of)));
        let offered = |offering| match pool {
            Some((pool, desired)) => {
                let overlaid = self.catalog.overlaid(desired, pool, (kind, offering));
                OfferingRow { offering, overlaid }
            }
            None => OfferingRow::plain(offering),
        };
        TypeRow {
            kind,
            offerings: offerings.into_iter().map(offered).collect(),
            allocation: self.catalog.allocation(kind, &self.node),
            nodes_measured: self.catalog.measured.nodes(&kind.name, &self.node),
            without_licence: self.node.family == AmiFamily::Windows,
        }
    }
}

/// Returns the catalogue to look at, and how its nodes are set up.
fn open(source: &NodeSource, console: &Console) -> Result<Opened, CliError> {
    let (name, source, world) = match source {
        NodeSource::Typed { region, node } => {
            let catalog = Catalog::load(region, &[])?;
            return Ok(Opened { catalog, node: (**node).clone(), of: None });
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
    let market = world::market(&world, &repository, &observed);
    let catalog = planning::catalog(&region, &fleet.zones, market.as_ref())?;
    let catalog = Catalog { measured, ..catalog };
    let node = NodeSettings::of(pool, class);
    let of = Some((name.clone(), Box::new(repository.desired)));
    Ok(Opened { catalog, node, of })
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
