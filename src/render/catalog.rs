//! Tables of the catalog: types with offerings, and the source of each number of a type.

use serde_json::{Value, json};

use super::amount::{gib, hourly, memory};
use super::text_page::{StyledText, TableColumn, TextPage, TextStyle, Tone, plain};
use crate::catalog::{
    Allocation, AllocationStep, Catalog, InstanceType, Offering, OverlaidOffering, PriceSource,
};
use crate::model::ids::{Region, ZoneName};
use crate::model::market::CapacityType;
use crate::model::units::{Bytes, MicroUsd};
use crate::plan::wire::Amount;

/// An instance type with its matching offerings.
#[derive(Debug)]
pub struct TypeRow<'a> {
    /// The type.
    pub kind: &'a InstanceType,
    /// Its offerings, in catalog order.
    pub offerings: Vec<OfferingRow<'a>>,
    /// The capacity of its nodes.
    pub allocation: Allocation,
    /// The number of nodes that report this capacity. With zero it follows from rules.
    pub nodes_measured: u32,
    /// True if its nodes need a license that the price excludes.
    pub without_license: bool,
}

/// An offering of a type.
#[derive(Debug)]
pub struct OfferingRow<'a> {
    /// The offering in the catalog.
    pub offering: &'a Offering,
    /// The overlays of the repository for this offering.
    pub overlaid: OverlaidOffering,
}

impl<'a> OfferingRow<'a> {
    /// Returns an offering without overlays.
    pub fn without_overlay(offering: &'a Offering) -> Self {
        let overlaid = OverlaidOffering { price: offering.price, ..OverlaidOffering::default() };
        Self { offering, overlaid }
    }
}

impl TypeRow<'_> {
    /// Returns the lowest known price, optionally of one capacity type.
    pub fn cheapest(&self, capacity_type: Option<CapacityType>) -> Option<MicroUsd> {
        let matches = |row: &&OfferingRow<'_>| {
            capacity_type.is_none_or(|wanted| wanted == row.offering.capacity_type)
        };
        self.offerings.iter().filter(matches).filter_map(|row| row.overlaid.price).min()
    }

    fn is_estimate(&self, row: &OfferingRow<'_>) -> bool {
        let OfferingRow { offering, overlaid } = row;
        overlaid.price == offering.price && (self.without_license || offering.estimated)
    }

    fn price(&self, capacity_type: CapacityType) -> String {
        let estimated = |row: &OfferingRow<'_>| {
            row.offering.capacity_type == capacity_type && self.is_estimate(row)
        };
        let mark = if self.offerings.iter().any(estimated) { "~" } else { "" };
        match self.cheapest(Some(capacity_type)) {
            Some(price) => format!("{mark}{}", price.rounded(4)),
            None => "-".to_owned(),
        }
    }

    /// Returns the zones without their common region prefix.
    fn zones(&self, region: &Region) -> String {
        let short = |zone: &'_ ZoneName| {
            let zone = zone.as_str();
            zone.strip_prefix(region.as_str()).unwrap_or(zone).to_owned()
        };
        let mut zones: Vec<String> =
            self.offerings.iter().map(|row| short(&row.offering.zone)).collect();
        zones.sort_unstable();
        zones.dedup();
        zones.join(" ")
    }
}

const WITHOUT_LICENSE: &str = "~ prices are those of Linux, without the Windows license.";

const TYPE_COLUMNS: [TableColumn; 10] = [
    TableColumn::left("type", 28),
    TableColumn::left("arch", 8),
    TableColumn::right("vCPU"),
    TableColumn::right("GiB"),
    TableColumn::right("alloc. cpu"),
    TableColumn::right("alloc. memory"),
    TableColumn::right("pods"),
    TableColumn::right("on-demand $/h"),
    TableColumn::right("spot $/h"),
    TableColumn::left("zones", 0),
];

/// Returns types as a table in the given order, with the source of prices.
pub fn types_text(rows: &[TypeRow<'_>], catalog: &Catalog, style: &TextStyle) -> String {
    let mut page = TextPage::new(style);
    if rows.is_empty() {
        page.text("No instance type of the catalog meets these requirements.");
        return page.finish();
    }
    let cells: Vec<Vec<StyledText>> =
        rows.iter().map(|row| type_cells(row, &catalog.region)).collect();
    page.table(&TYPE_COLUMNS, &cells);
    page.gap();
    let plural = if rows.len() == 1 { "type" } else { "types" };
    page.line([plain(format!("{} instance {plural}. ", rows.len())), price_note(&catalog.prices)]);
    if rows.iter().any(|row| row.without_license) {
        page.line([StyledText::new(WITHOUT_LICENSE, Tone::Faint)]);
    }
    let stands_in =
        |of: &OfferingRow<'_>| of.offering.estimated && of.overlaid.price == of.offering.price;
    if rows.iter().any(|row| row.offerings.iter().any(stands_in)) {
        page.line([StyledText::new(
            "~ no spot price is known; the on-demand price stands in.",
            Tone::Faint,
        )]);
    }
    page.finish()
}

fn price_note(prices: &PriceSource) -> StyledText {
    let PriceSource { source, region, date, is_other_region } = prices;
    let note = if *is_other_region { ", standing in for this region's" } else { "" };
    StyledText::new(&format!("Prices: {source} of {region}, {date}{note}."), Tone::Faint)
}

fn type_cells(row: &TypeRow<'_>, region: &Region) -> Vec<StyledText> {
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
        plain(row.zones(region)),
    ]
}

const ALLOCATABLE_COLUMNS: [TableColumn; 13] = [
    TableColumn::left("type", 28),
    TableColumn::left("arch", 8),
    TableColumn::right("vCPU"),
    TableColumn::right("MiB"),
    TableColumn::right("cap. memory"),
    TableColumn::right("cap. storage"),
    TableColumn::right("reserved cpu"),
    TableColumn::right("reserved memory"),
    TableColumn::right("alloc. cpu"),
    TableColumn::right("alloc. memory"),
    TableColumn::right("alloc. storage"),
    TableColumn::right("pods"),
    TableColumn::last("devices"),
];

/// Returns a table of capacity, reserved capacity and allocatable capacity of each type.
pub fn allocatable_text(rows: &[TypeRow<'_>], style: &TextStyle) -> String {
    let mut page = TextPage::new(style);
    if rows.is_empty() {
        page.text("No instance type of the catalog meets these requirements.");
        return page.finish();
    }
    let cells: Vec<Vec<StyledText>> = rows.iter().map(allocatable_cells).collect();
    page.table(&ALLOCATABLE_COLUMNS, &cells);
    page.gap();
    let measured = rows.iter().filter(|row| row.nodes_measured > 0).count();
    let plural = if rows.len() == 1 { "type" } else { "types" };
    page.text(format!(
        "{} instance {plural}; {measured} as reported by running nodes (*).",
        rows.len()
    ));
    page.finish()
}

fn allocatable_cells(row: &TypeRow<'_>) -> Vec<StyledText> {
    let TypeRow { kind, allocation, nodes_measured, .. } = row;
    let Allocation { capacity, allocatable, .. } = allocation;
    let reserved = capacity.minus(allocatable);
    let mark = if *nodes_measured > 0 { "*" } else { "" };
    let devices: Vec<String> =
        allocatable.extended.iter().map(|(name, amount)| format!("{name} {amount}")).collect();
    vec![
        plain(format!("{}{mark}", kind.name)),
        plain(&kind.arch),
        plain(kind.vcpus.to_string()),
        plain(kind.memory_mib.to_string()),
        plain(memory(capacity.memory.0)),
        plain(memory(capacity.ephemeral_storage.0)),
        plain(reserved.cpu.to_string()),
        plain(memory(reserved.memory.0)),
        plain(allocatable.cpu.to_string()),
        plain(memory(allocatable.memory.0)),
        plain(memory(allocatable.ephemeral_storage.0)),
        plain(allocatable.pods.to_string()),
        plain(devices.join(", ")),
    ]
}

/// Returns types as JSON in the given order.
pub fn types_json(rows: &[TypeRow<'_>], prices: &PriceSource) -> Value {
    let types: Vec<Value> = rows.iter().map(type_json).collect();
    json!({ "prices": prices, "types": types })
}

fn type_json(row: &TypeRow<'_>) -> Value {
    let TypeRow { kind, offerings, allocation, nodes_measured, without_license: _ } = row;
    let Allocation { capacity, kube_reserved, system_reserved, eviction, huge_pages, allocatable } =
        allocation;
    let offerings: Vec<Value> =
        offerings.iter().map(|offering| offering_json(row, offering)).collect();
    json!({
        "name": kind.name,
        "arch": kind.arch,
        "vcpus": kind.vcpus,
        "memory_mib": kind.memory_mib,
        "labels": kind.labels,
        "capacity": Amount::from(capacity),
        "kube_reserved": Amount::from(kube_reserved),
        "system_reserved": Amount::from(system_reserved),
        "eviction": Amount::from(eviction),
        "huge_pages": Amount::from(huge_pages),
        "allocatable": Amount::from(allocatable),
        "nodes_measured": nodes_measured,
        "offerings": offerings,
    })
}

fn offering_json(row: &TypeRow<'_>, of: &OfferingRow<'_>) -> Value {
    let Offering { zone, zone_id, capacity_type, .. } = of.offering;
    let OverlaidOffering { price, capacity, names } = &of.overlaid;
    let mut value = json!({
        "zone": zone,
        "zone_id": zone_id,
        "capacity_type": capacity_type,
        "hourly": price,
        "estimated": row.is_estimate(of),
    });
    if !names.is_empty() {
        value["overlays"] = json!(names);
        value["overlaid_capacity"] = json!(capacity);
    }
    value
}

const STEP_COLUMNS: [TableColumn; 4] = [
    TableColumn::left("", 20),
    TableColumn::left("resource", 28),
    TableColumn::right("amount"),
    TableColumn::last("source"),
];

const OFFERING_COLUMNS: [TableColumn; 4] = [
    TableColumn::left("zone", 24),
    TableColumn::left("zone id", 24),
    TableColumn::left("capacity type", 16),
    TableColumn::last("$/h"),
];

/// Returns the source of each number of a type, its offerings, and its labels.
pub fn allocation_text(
    row: &TypeRow<'_>,
    steps: &[AllocationStep],
    prices: &PriceSource,
    style: &TextStyle,
) -> String {
    let kind = row.kind;
    let mut page = TextPage::new(style);
    let size = gib(kind.memory_mib.saturating_mul(Bytes::MIB));
    page.line([
        StyledText::new(kind.name.as_str(), Tone::Strong),
        plain(format!("  {}, {} vCPU, {size} GiB", kind.arch, kind.vcpus)),
    ]);
    page.gap();
    let mut part = None;
    let cells = steps.iter().map(|step| {
        let title = if part == Some(step.part) { "" } else { step.part.as_str() };
        part = Some(step.part);
        step_cells(title, step)
    });
    let cells: Vec<Vec<StyledText>> = cells.collect();
    page.table(&STEP_COLUMNS, &cells);
    page.gap();
    let offerings: Vec<Vec<StyledText>> =
        row.offerings.iter().map(|o| offering_cells(row, o)).collect();
    page.table(&OFFERING_COLUMNS, &offerings);
    page.gap();
    for (key, value) in &kind.labels {
        page.text(format!("  {key}={value}"));
    }
    page.gap();
    page.line([price_note(prices)]);
    if row.without_license {
        page.line([StyledText::new(WITHOUT_LICENSE, Tone::Faint)]);
    }
    page.finish()
}

fn step_cells(title: &str, step: &AllocationStep) -> Vec<StyledText> {
    let AllocationStep { part: _, resource, amount, formula } = step;
    vec![
        plain(title),
        plain(resource.name()),
        plain(resource.format_amount(*amount)),
        plain(format!("{formula} ({})", formula.source())),
    ]
}

fn offering_cells(row: &TypeRow<'_>, of: &OfferingRow<'_>) -> Vec<StyledText> {
    let Offering { zone, zone_id, capacity_type, .. } = of.offering;
    let mark = if row.is_estimate(of) { " (estimated)" } else { "" };
    let price = of.overlaid.price.map_or_else(|| "not known".to_owned(), |p| hourly(p) + mark);
    let price = price + &overlay_text(of);
    vec![plain(zone.as_str()), plain(zone_id.as_str()), plain(capacity_type.as_str()), plain(price)]
}

/// Returns the changes that overlays make to an offering.
fn overlay_text(row: &OfferingRow<'_>) -> String {
    let OfferingRow { offering, overlaid: OverlaidOffering { price, capacity, names } } = row;
    if names.is_empty() {
        return String::new();
    }
    let mut changes = Vec::new();
    if *price != offering.price {
        let of_cloud = offering.price.map_or_else(|| "no known price".to_owned(), hourly);
        changes.push(format!("instead of {of_cloud}"));
    }
    changes.extend(capacity.iter().map(|(name, amount)| format!("{name}: {amount}")));
    let plural = if names.len() == 1 { "overlay" } else { "overlays" };
    format!("  {plural} {}: {}", names.join(", "), changes.join(", "))
}

/// Returns [`allocation_text`] as JSON.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{NodeSettings, SyntheticType, allocation, explain};

    fn catalog() -> Catalog {
        let small = SyntheticType {
            spot_price: Some(MicroUsd(31_000)),
            ..SyntheticType::new("a1.small", 2, 8_192, MicroUsd(96_000))
        };
        let odd = SyntheticType {
            arch: "arm64",
            price: None,
            zones: Some(&["test-1b"]),
            ..SyntheticType::new("b1.odd", 16, 65_536, MicroUsd::ZERO)
        };
        Catalog::synthetic("test-1", &["test-1a", "test-1b"], &[small, odd])
    }

    fn rows(catalog: &Catalog) -> Vec<TypeRow<'_>> {
        let row = |kind| TypeRow {
            kind,
            offerings: kind.offerings.iter().map(OfferingRow::without_overlay).collect(),
            allocation: allocation(kind, &NodeSettings::default()),
            nodes_measured: u32::from(kind.arch == "arm64"),
            without_license: false,
        };
        catalog.types.values().map(row).collect()
    }

    #[test]
    fn types_table_has_allocatable_capacity_and_prices() {
        let catalog = catalog();
        let text = types_text(&rows(&catalog), &catalog, &TextStyle::default());
        insta::assert_snapshot!(text, @r"
          type      arch   vCPU  GiB  alloc. cpu  alloc. memory  pods  on-demand $/h  spot $/h  zones
          a1.small  amd64     2    8       1930m         6584Mi    58         0.0960    0.0310  a b
          b1.odd    arm64    16   64      15890m        59568Mi    58              -         -  b

        2 instance types. Prices: made up of test-1, 1970-01-01.
        ");
        assert!(types_text(&[], &catalog, &TextStyle::default()).starts_with("No instance type"));
        let json = types_json(&rows(&catalog), &catalog.prices);
        assert_eq!(json["types"][0]["offerings"][0]["hourly"], "0.096000");
        assert_eq!(json["types"][1]["offerings"][0]["hourly"], Value::Null);
    }

    #[test]
    fn allocatable_table_has_reserved_capacity_and_its_source() {
        let catalog = catalog();
        let style = TextStyle { width: 160, ..TextStyle::default() };
        insta::assert_snapshot!(allocatable_text(&rows(&catalog), &style), @r"
          type      arch   vCPU    MiB  cap. memory  cap. storage  reserved cpu  reserved memory  alloc. cpu  alloc. memory  alloc. storage  pods  devices
          a1.small  amd64     2   8192       7577Mi          20Gi           70m            993Mi       1930m         6584Mi            17Gi    58
          b1.odd*   arm64    16  65536      60561Mi          20Gi          110m            993Mi      15890m        59568Mi            17Gi    58

        2 instance types; 1 as reported by running nodes (*).
        ");
        assert!(allocatable_text(&[], &style).starts_with("No instance type"));
        let json = types_json(&rows(&catalog), &catalog.prices);
        assert_eq!(json["types"][0]["kube_reserved"]["cpu_milli"], 70);
        assert_eq!(json["types"][1]["nodes_measured"], 1);
    }

    #[test]
    fn prices_without_license_are_marked() {
        let catalog = catalog();
        let mut rows = rows(&catalog);
        for row in &mut rows {
            row.without_license = true;
        }
        let text = types_text(&rows, &catalog, &TextStyle::default());
        assert!(text.contains("~0.0960") && text.contains(WITHOUT_LICENSE), "{text}");
        let json = types_json(&rows, &catalog.prices);
        assert_eq!(json["types"][0]["offerings"][0]["estimated"], true);
    }

    #[test]
    fn overlay_price_is_shown_beside_the_cloud_price() {
        let catalog = catalog();
        let mut row = rows(&catalog).remove(0);
        row.offerings[0].overlaid = OverlaidOffering {
            price: Some(MicroUsd(50_000)),
            capacity: [("smarter-devices/fuse".into(), 4)].into(),
            names: vec!["fuse".to_owned()],
        };
        let text = allocation_text(&row, &[], &catalog.prices, &TextStyle::default());
        let expected = "$0.0500/h  overlay fuse: instead of $0.0960/h, smarter-devices/fuse: 4";
        assert!(text.contains(expected), "{text}");
        let json = allocation_json(&row, &[], &catalog.prices);
        assert_eq!(json["offerings"][0]["overlays"], json!(["fuse"]));
        assert_eq!(json["offerings"][0]["hourly"], "0.050000");
        assert_eq!(json["offerings"][1].get("overlays"), None);
    }

    #[test]
    fn allocation_text_explains_each_number() {
        let catalog = catalog();
        let row = rows(&catalog).remove(0);
        let steps = explain(row.kind, &NodeSettings::default());
        let style = TextStyle { width: 60, ..TextStyle::default() };
        insta::assert_snapshot!(allocation_text(&row, &steps, &catalog.prices, &style), @r"
        a1.small  amd64, 2 vCPU, 8 GiB

                              resource           amount  source
          capacity            cpu                     2  2 vCPU (EC2 instance type)
                              memory                8Gi  8192 MiB (EC2 instance type)
                              memory             -615Mi  hypervisor: 7.5 % of 8192 MiB, rounded up (Karpenter's estimate)
                              ephemeral-storage    20Gi  default volume of Amazon Linux 2023 (AMI family)
                              pods                   58  4 network interfaces × (15 addresses − 1) + 2 (EC2 instance type)
          kube-reserved       cpu                   70m  6 % of core 1 (60m) + 1 % of core 2 (10m) (EKS node bootstrap)
                              memory              893Mi  255 MiB + 11 MiB × 58 pods that have an address (EKS node bootstrap)
                              ephemeral-storage     1Gi  a fixed amount (EKS node bootstrap)
          eviction threshold  memory              100Mi  memory.available below a fixed amount (kubelet default)
                              ephemeral-storage     2Gi  nodefs.available below 10 % of 20Gi, rounded up (kubelet default)
          allocatable         cpu                 1930m  capacity 2 − kube-reserved 70m (the above)
                              memory             6584Mi  capacity 7577Mi − kube-reserved 893Mi − eviction threshold 100Mi (the above)
                              ephemeral-storage    17Gi  capacity 20Gi − kube-reserved 1Gi − eviction threshold 2Gi (the above)
                              pods                   58  capacity 58 (the above)

          zone     zone id        capacity type  $/h
          test-1a  id-of-test-1a  on-demand      $0.0960/h
          test-1a  id-of-test-1a  spot           $0.0310/h
          test-1b  id-of-test-1b  on-demand      $0.0960/h
          test-1b  id-of-test-1b  spot           $0.0310/h

          karpenter.k8s.aws/instance-capability-flex=false
          karpenter.k8s.aws/instance-category=a
          karpenter.k8s.aws/instance-cpu=2
          karpenter.k8s.aws/instance-cpu-manufacturer=intel
          karpenter.k8s.aws/instance-cpu-sustained-clock-speed-mhz=3000
          karpenter.k8s.aws/instance-encryption-in-transit-supported=true
          karpenter.k8s.aws/instance-family=a1
          karpenter.k8s.aws/instance-generation=1
          karpenter.k8s.aws/instance-hypervisor=nitro
          karpenter.k8s.aws/instance-memory=8192
          karpenter.k8s.aws/instance-size=small
          karpenter.k8s.aws/instance-tenancy=default
          karpenter.k8s.aws/nitro-sandbox=false
          kubernetes.io/arch=amd64
          kubernetes.io/os=linux
          node.kubernetes.io/instance-type=a1.small

        Prices: made up of test-1, 1970-01-01.
        ");
    }
}
