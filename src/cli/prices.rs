//! `catalog prices`: downloads the list prices of the region of a repository, and saves them beside
//! its `fleetwright.yaml`.

use std::fmt::Write as _;

use super::error::CliError;
use super::settings::CatalogPricesSettings;
use super::sources::{downloader, read_local};
use super::{Console, Exit, files, source_tree};
use crate::catalog::Catalog;
use crate::manifest::read_region_prices;
use crate::model::desired::{PRICE_FILE, RegionPrices};
use crate::plan::canonical;
use crate::render::escape;

pub(super) fn run(
    settings: &CatalogPricesSettings,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let CatalogPricesSettings { path, check, guard_ref } = settings;
    let (tree, fleet) = read_local(path, source_tree::read_alone)?;
    if fleet.origin.is_none() {
        let path = path.display();
        return Err(CliError::text(format!("there is no fleetwright.yaml in `{path}`"))
            .hint("`fleetwright init` writes one, with the region"));
    }
    let region = &fleet.cluster.region;
    // The prices of an unknown region would be of no use.
    Catalog::load(region, &[])?;
    let (old, problem) = read_region_prices(&tree.tree, &fleet);
    let old = if *check {
        if let Some(problem) = problem {
            return Err(CliError::from_problem(&problem));
        }
        let missing = CliError::text(format!("there is no {PRICE_FILE}"));
        Some(old.ok_or(missing.hint("run `fleetwright catalog prices`"))?)
    } else {
        None
    };
    console.report(&format!("downloading the price list of {region}, some hundred MB"));
    let version = old.as_ref().map(|old| old.version.as_str());
    let listed = downloader(path, guard_ref.as_deref(), &fleet)?.list_prices(region, version);
    let listed = listed.map_err(|why| {
        CliError::text(why)
            .hint("check that pricing.us-east-1.amazonaws.com is reachable, or map it to a mirror (spec.delivery.mirrors)")
            .hint(format!("or run the command where it is reachable, and commit {PRICE_FILE}; without it, plans use the prices of this version"))
    })?;
    let (count, published) = (listed.hourly.len(), listed.published);
    let summary = format!("{count} instance types of {region}, published {published}");
    let Some(old) = old else {
        let text = canonical::pretty(&listed).map_err(CliError::new)?;
        files::write(&path.join(PRICE_FILE), &text)?;
        console.print(&format!("{PRICE_FILE}: {summary}.\n"))?;
        return Ok(Exit::Done);
    };
    if old == listed {
        console.print(&format!("{PRICE_FILE} has the prices of AWS: {summary}.\n"))?;
        return Ok(Exit::Done);
    }
    let mut out = differences(&old, &listed);
    let _ = writeln!(out, "{PRICE_FILE} differs from AWS. Run `fleetwright catalog prices`.");
    console.print(&out)?;
    Ok(Exit::Failed)
}

/// Returns the differences between the file and the list, one line each.
fn differences(file: &RegionPrices, listed: &RegionPrices) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        let _ = writeln!(out, "{}", escape(&text));
    };
    if file.published != listed.published {
        line(format!("~ published {}, and AWS says {}", file.published, listed.published));
    }
    for (name, price) in &file.hourly {
        match listed.hourly.get(name) {
            None => line(format!("- {name} {price}, which AWS does not list")),
            Some(real) if real != price => line(format!("~ {name} {price}, and AWS says {real}")),
            Some(_) => {}
        }
    }
    let missing = listed.hourly.iter().filter(|(name, _)| !file.hourly.contains_key(*name));
    for (name, price) in missing {
        line(format!("+ {name} {price} is missing"));
    }
    out
}
