//! Instance types and their catalog.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::catalog::{Catalog, InstanceType, MeasuredNodes, Offering, PriceSource, Zone};
use crate::model::ids::Labels;
use crate::model::market::CapacityType;
use crate::model::requirement::{key, label};
use crate::model::units::MicroUsd;

/// Returns an amd64 type without offerings. `labels` are added to its name.
pub(crate) fn instance_type(
    name: &str,
    vcpus: i64,
    memory_mib: i64,
    labels: &[(&str, &str)],
) -> InstanceType {
    let mut all: Labels = labels.iter().map(|(key, value)| label(key, value)).collect();
    all.extend([label(key::INSTANCE_TYPE, name)]);
    InstanceType {
        name: name.into(),
        arch: "amd64".to_owned(),
        vcpus,
        memory_mib,
        enis: 3,
        cards: 1,
        enis_of_other_cards: 0,
        ips_per_eni: 10,
        local_nvme_gb: 0,
        ebs_attachments: None,
        extended: BTreeMap::new(),
        bare_metal: false,
        has_accelerator: false,
        labels: all,
        offerings: Vec::new(),
    }
}

/// Returns an on-demand offering.
pub(crate) fn offering(zone: &str, zone_id: &str, price: i64) -> Offering {
    Offering {
        zone: zone.into(),
        zone_id: zone_id.into(),
        capacity_type: CapacityType::OnDemand,
        price: Some(MicroUsd(price)),
        estimated: false,
    }
}

/// Returns a catalog of these zones (with their ids) and types.
pub(crate) fn catalog(
    region: &str,
    zones: &[(&str, &str)],
    types: impl IntoIterator<Item = InstanceType>,
) -> Catalog {
    let zone =
        |(name, id): &(&str, &str)| Zone { name: (*name).into(), id: (*id).into(), assumed: true };
    Catalog {
        region: region.into(),
        zones: zones.iter().map(zone).collect(),
        types: types.into_iter().map(|kind| (kind.name.clone(), kind)).collect(),
        prices: prices(region, "2026-09-01"),
        listed: Arc::default(),
        warnings: Vec::new(),
        measured: MeasuredNodes::default(),
        quotas: None,
        offered: None,
    }
}

pub(crate) fn prices(region: &str, date: &str) -> PriceSource {
    PriceSource {
        source: "embedded list prices".to_owned(),
        region: region.into(),
        date: date.to_owned(),
        is_other_region: false,
    }
}
