//! Tables of the catalogue: what is on offer, and where the numbers of one type come from.

use serde_json::{Value, json};

use super::amount::{gib, hourly, memory};
use super::page::{Column, Page, Span, TextStyle, Tone, plain};
use crate::catalog::{
    Allocation, AllocationStep, CapacityType, InstanceType, Offering, PriceSource,
};
use crate::plan::wire::Amount;
use crate::units::{Bytes, MicroUsd};

/// An instance type with those of its offerings that were asked for.
#[derive(Debug)]
pub struct TypeRow<'a> {
    /// The type.
    pub kind: &'a InstanceType,
    /// Its offerings, in the order of the catalogue.
    pub offerings: Vec<OfferingRow<'a>>,
    /// What a node of it offers.
    pub allocation: Allocation,
}

/// An offering of a type.
pub type OfferingRow<'a> = &'a Offering;

impl TypeRow<'_> {
    /// Returns the lowest known price; `capacity_type` narrows it to one way to buy.
    #[must_use]
    pub fn cheapest(&self, capacity_type: Option<CapacityType>) -> Option<MicroUsd> {
        let wanted =
            |offering: &&Offering| capacity_type.is_none_or(|c| c == offering.capacity_type);
        self.offerings.iter().copied().filter(wanted).filter_map(|offering| offering.price).min()
    }

    fn price(&self, capacity_type: CapacityType) -> String {
        let estimated =
            |offering: &&Offering| offering.capacity_type == capacity_type && offering.estimated;
        let mark = if self.offerings.iter().copied().any(|o| estimated(&o)) { "~" } else { "" };
        match self.cheapest(Some(capacity_type)) {
            Some(price) => format!("{mark}{}", price.rounded(4)),
            None => "-".to_owned(),
        }
    }

    fn zones(&self) -> String {
        let mut zones: Vec<&str> = self.offerings.iter().map(|o| o.zone.as_str()).collect();
        zones.sort_unstable();
        zones.dedup();
        zones.join(" ")
    }
}

const TYPE_COLUMNS: [Column; 10] = [
    Column::left("type", 28),
    Column::left("arch", 8),
    Column::right("vCPU"),
    Column::right("GiB"),
    Column::right("alloc. cpu"),
    Column::right("alloc. memory"),
    Column::right("pods"),
    Column::right("on-demand $/h"),
    Column::right("spot $/h"),
    Column::left("zones", 0),
];

/// Returns types as a table, in the order given, with where the prices come from.
#[must_use]
pub fn types_text(rows: &[TypeRow<'_>], prices: &PriceSource, style: &TextStyle) -> String {
    let mut page = Page::new(style);
    if rows.is_empty() {
        page.text("No instance type of the catalogue meets these requirements.");
        return page.finish();
    }
    let cells: Vec<Vec<Span>> = rows.iter().map(type_cells).collect();
    page.table(&TYPE_COLUMNS, &cells);
    page.gap();
    let plural = if rows.len() == 1 { "type" } else { "types" };
    page.line([plain(format!("{} instance {plural}. ", rows.len())), price_note(prices)]);
    if cells.iter().zip(rows).any(|(_, row)| row.offerings.iter().any(|o| o.estimated)) {
        page.line([Span::new(
            "~ no spot price is known; the on-demand price stands in.",
            Tone::Faint,
        )]);
    }
    page.finish()
}

fn price_note(prices: &PriceSource) -> Span {
    let PriceSource { source, region, date, stand_in } = prices;
    let stand_in = if *stand_in { ", standing in for this region's" } else { "" };
    Span::new(&format!("Prices: {source} of {region}, {date}{stand_in}."), Tone::Faint)
}

fn type_cells(row: &TypeRow<'_>) -> Vec<Span> {
    let TypeRow { kind, allocation, .. } = row;
    let allocatable = &allocation.allocatable;
    vec![
        plain(kind.name.as_str()),
        plain(&kind.arch),
        plain(kind.vcpus.to_string()),
        plain(gib(kind.memory_mib.saturating_mul(Bytes::MIB))),
        plain(allocatable.cpu.to_string()),
        plain(memory(allocatable.memory.0)),
        plain(allocatable.pods.to_string()),
        plain(row.price(CapacityType::OnDemand)),
        plain(row.price(CapacityType::Spot)),
        plain(row.zones()),
    ]
}

/// Returns types as JSON, in the order given.
#[must_use]
pub fn types_json(rows: &[TypeRow<'_>], prices: &PriceSource) -> Value {
    let types: Vec<Value> = rows.iter().map(type_json).collect();
    json!({ "prices": prices, "types": types })
}

fn type_json(row: &TypeRow<'_>) -> Value {
    let TypeRow { kind, offerings, allocation } = row;
    let offerings: Vec<Value> = offerings.iter().map(|offering| offering_json(offering)).collect();
    json!({
        "name": kind.name,
        "arch": kind.arch,
        "vcpus": kind.vcpus,
        "memory_mib": kind.memory_mib,
        "labels": kind.labels,
        "capacity": Amount::from(&allocation.capacity),
        "allocatable": Amount::from(&allocation.allocatable),
        "offerings": offerings,
    })
}

fn offering_json(offering: &Offering) -> Value {
    let Offering { zone, zone_id, capacity_type, price, estimated } = offering;
    json!({
        "zone": zone,
        "zone_id": zone_id,
        "capacity_type": capacity_type,
        "hourly": price,
        "estimated": estimated,
    })
}

const STEP_COLUMNS: [Column; 4] = [
    Column::left("", 20),
    Column::left("resource", 28),
    Column::right("amount"),
    Column::left("where from", 0),
];

const OFFERING_COLUMNS: [Column; 4] = [
    Column::left("zone", 24),
    Column::left("zone id", 24),
    Column::left("bought", 12),
    Column::left("$/h", 0),
];

/// Returns where each number of a type comes from, how it is bought, and its labels.
#[must_use]
pub fn allocation_text(
    row: &TypeRow<'_>,
    steps: &[AllocationStep],
    prices: &PriceSource,
    style: &TextStyle,
) -> String {
    let kind = row.kind;
    let mut page = Page::new(style);
    let size = gib(kind.memory_mib.saturating_mul(Bytes::MIB));
    page.line([
        Span::new(kind.name.as_str(), Tone::Strong),
        plain(format!("  {}, {} vCPU, {size} GiB", kind.arch, kind.vcpus)),
    ]);
    page.gap();
    let mut part = None;
    let cells = steps.iter().map(|step| {
        let title = if part == Some(step.part) { "" } else { step.part.as_str() };
        part = Some(step.part);
        step_cells(title, step)
    });
    let cells: Vec<Vec<Span>> = cells.collect();
    page.table(&STEP_COLUMNS, &cells);
    page.gap();
    let offerings: Vec<Vec<Span>> = row.offerings.iter().map(|o| offering_cells(o)).collect();
    page.table(&OFFERING_COLUMNS, &offerings);
    page.gap();
    for (key, value) in &kind.labels {
        page.text(format!("  {key}={value}"));
    }
    page.gap();
    page.line([price_note(prices)]);
    page.finish()
}

fn step_cells(title: &str, step: &AllocationStep) -> Vec<Span> {
    let AllocationStep { part: _, resource, amount, formula } = step;
    vec![
        plain(title),
        plain(resource.name()),
        plain(resource.show(*amount)),
        plain(format!("{formula} ({})", formula.source())),
    ]
}

fn offering_cells(offering: &Offering) -> Vec<Span> {
    let Offering { zone, zone_id, capacity_type, price, estimated } = offering;
    let mark = if *estimated { " (estimated)" } else { "" };
    let price = price.map_or_else(|| "not known".to_owned(), |price| hourly(price) + mark);
    vec![plain(zone.as_str()), plain(zone_id.as_str()), plain(capacity_type.as_str()), plain(price)]
}

/// Returns the same as [`allocation_text`] as JSON.
#[must_use]
pub fn allocation_json(row: &TypeRow<'_>, steps: &[AllocationStep], prices: &PriceSource) -> Value {
    let step = |step: &AllocationStep| {
        let AllocationStep { part, resource, amount, formula } = step;
        json!({
            "part": part.as_str(),
            "resource": resource.name(),
            "amount": amount,
            "formula": formula.to_string(),
            "source": formula.source(),
        })
    };
    let mut value = type_json(row);
    value["steps"] = steps.iter().map(step).collect();
    value["prices"] = json!(prices);
    value
}
