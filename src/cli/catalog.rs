//! `catalog`: instance types, what their nodes offer to pods, and prices.

use std::collections::BTreeMap;

use serde_json::Value;

use super::args::SortArg;
use super::error::CliError;
use super::settings::{CatalogExplainSettings, CatalogListSettings, Format, RegionSettings};
use super::{Console, Exit};
use crate::catalog::{self, Catalog, InstanceType, NodeSettings, Offering, allocation};
use crate::ids::InstanceTypeName;
use crate::plan::canonical;
use crate::render::{TypeRow, Verbosity, allocation_json, allocation_text, types_json, types_text};

pub(super) fn list(
    settings: &CatalogListSettings,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let CatalogListSettings { requirements, sort, limit, region } = settings;
    let catalog = Catalog::load(&region.region, &[])?;
    let mut found: BTreeMap<&InstanceTypeName, (&InstanceType, Vec<&Offering>)> = BTreeMap::new();
    for (kind, offering) in catalog.matching(requirements) {
        found.entry(&kind.name).or_insert((kind, Vec::new())).1.push(offering);
    }
    let row = |(kind, offerings)| row(kind, offerings, &region.node);
    let mut rows: Vec<TypeRow<'_>> = found.into_values().map(row).collect();
    order(&mut rows, *sort);
    rows.truncate(*limit);
    match region.format {
        Format::Json => print_json(&types_json(&rows, &catalog.prices), console)?,
        Format::Text => {
            let text = types_text(&rows, &catalog, &console.style(Verbosity::Full));
            console.print(&text)?;
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
    let catalog = Catalog::load(&region.region, &[])?;
    let Some(kind) = catalog.get(name) else {
        return Err(CliError::text(format!("`{name}` {}", catalog.why_absent(name)?)));
    };
    let row = row(kind, kind.offerings.iter().collect(), &region.node);
    let steps = catalog::explain(kind, &region.node);
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

fn row<'a>(
    kind: &'a InstanceType,
    offerings: Vec<&'a Offering>,
    node: &NodeSettings,
) -> TypeRow<'a> {
    TypeRow { kind, offerings, allocation: allocation(kind, node) }
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
