//! Catalogs other than the snapshot, for tests, benchmarks and what-if questions.

use std::sync::Arc;

use super::instance_type::{InstanceType, Interner, Offering, instance_type};
use super::measured_nodes::MeasuredNodes;
use super::snapshot::{DeviceRow, InstanceTypeRow};
use super::types::{Catalog, PriceSource, Zone};
use crate::model::ids::{Labels, Region, ZoneName};
use crate::model::market::CapacityType;
use crate::model::units::MicroUsd;

/// A synthetic instance type with plausible defaults for the fields that most tests ignore.
///
/// ```
/// use fleetwright::catalog::{Catalog, SyntheticType};
/// use fleetwright::model::units::MicroUsd;
/// let small = SyntheticType::new("a1.small", 2, 4096, MicroUsd(50_000));
/// let arm = SyntheticType { arch: "arm64", ..SyntheticType::new("b1.big", 16, 65_536, MicroUsd(400_000)) };
/// let catalog = Catalog::synthetic("test-1", &["test-1a", "test-1b"], &[small, arm]);
/// assert_eq!(catalog.types.len(), 2);
/// ```
#[derive(Debug, Clone)]
pub struct SyntheticType<'a> {
    /// Name, `family.size`.
    pub name: &'a str,
    /// `amd64` or `arm64`.
    pub arch: &'a str,
    /// vCPUs.
    pub vcpus: i64,
    /// Memory in MiB.
    pub memory_mib: i64,
    /// Network interfaces.
    pub enis: i64,
    /// IPv4 addresses on each of them.
    pub ips_per_eni: i64,
    /// Local NVMe storage in GB.
    pub local_nvme_gb: i64,
    /// GPUs of one NVIDIA model.
    pub gpus: i64,
    /// On-demand price per hour; `None` if unknown.
    pub price: Option<MicroUsd>,
    /// Spot price per hour; `None` if not sold as spot.
    pub spot_price: Option<MicroUsd>,
    /// Zones that offer the type; `None` means all of the catalog.
    pub zones: Option<&'a [&'a str]>,
    /// Zones that sell the type as spot; `None` means all that offer it.
    pub spot_zones: Option<&'a [&'a str]>,
    /// Additional labels, which override the derived ones.
    pub labels: Labels,
}

impl<'a> SyntheticType<'a> {
    /// Returns a type sold on demand at `price` in every zone, with addresses for 58 pods.
    pub fn new(name: &'a str, vcpus: i64, memory_mib: i64, price: MicroUsd) -> Self {
        Self {
            name,
            arch: "amd64",
            vcpus,
            memory_mib,
            enis: 4,
            ips_per_eni: 15,
            local_nvme_gb: 0,
            gpus: 0,
            price: Some(price),
            spot_price: None,
            zones: None,
            spot_zones: None,
            labels: Labels::new(),
        }
    }

    fn kind(&self, zones: &[Zone], interner: &mut Interner) -> InstanceType {
        let (family, size) = self.name.split_once('.').unwrap_or((self.name, ""));
        let digit = family.find(|c: char| c.is_ascii_digit()).unwrap_or(family.len());
        let generation: String = family[digit..].chars().take_while(char::is_ascii_digit).collect();
        let gpu = DeviceRow {
            name: "Synthetic",
            mfr: "NVIDIA",
            count: self.gpus,
            mem_mib: 16_384,
            cores: 0,
        };
        let row = InstanceTypeRow {
            name: self.name,
            family,
            size,
            category: Some(&family[..digit]).filter(|category| !category.is_empty()),
            generation: generation.parse().ok(),
            arch: self.arch,
            vcpu: self.vcpus,
            mem_mib: self.memory_mib,
            cpu_mfr: "intel",
            clock_mhz: 3000,
            hypervisor: "nitro",
            encrypt_transit: true,
            enis: self.enis,
            ips_per_eni: self.ips_per_eni,
            nvme_gb: self.local_nvme_gb,
            gpus: if self.gpus > 0 { vec![gpu] } else { Vec::new() },
            ..InstanceTypeRow::default()
        };
        let mut kind = instance_type(&row, interner);
        kind.labels.extend(self.labels.clone());
        kind.offerings = zones
            .iter()
            .filter(|zone| self.zones.is_none_or(|names| names.contains(&zone.name.as_str())))
            .flat_map(|zone| self.offerings(zone))
            .collect();
        kind
    }

    fn offerings(&self, zone: &Zone) -> impl Iterator<Item = Offering> {
        let offering = |capacity_type, price| Offering {
            zone: zone.name.clone(),
            zone_id: zone.id.clone(),
            capacity_type,
            price,
            estimated: false,
        };
        let on_demand = offering(CapacityType::OnDemand, self.price);
        let sold = self.spot_zones.is_none_or(|names| names.contains(&zone.name.as_str()));
        let spot = self.spot_price.filter(|_| sold);
        let spot = spot.map(|price| offering(CapacityType::Spot, Some(price)));
        std::iter::once(on_demand).chain(spot)
    }
}

impl Catalog {
    /// Returns a catalog of synthetic types. The id of zone `x` is `id-of-x`.
    pub fn synthetic(region: &str, zones: &[&str], types: &[SyntheticType<'_>]) -> Self {
        let region = Region::from(region);
        let mut zones: Vec<Zone> = zones
            .iter()
            .map(|name| Zone {
                name: ZoneName::from(*name),
                id: format!("id-of-{name}").into(),
                assumed: false,
            })
            .collect();
        zones.sort();
        let mut interner = Interner::default();
        let types = types
            .iter()
            .map(|spec| spec.kind(&zones, &mut interner))
            .map(|kind| (kind.name.clone(), kind))
            .collect();
        let prices = PriceSource {
            source: "made up".to_owned(),
            region: region.clone(),
            date: "1970-01-01".to_owned(),
            is_other_region: false,
        };
        let (warnings, measured) = (Vec::new(), MeasuredNodes::default());
        let listed = Arc::default();
        let (quotas, offered) = (None, None);
        Self { region, zones, types, prices, listed, warnings, measured, quotas, offered }
    }
}

#[cfg(test)]
mod tests {
    use super::super::instance_type::resource;
    use super::*;

    #[test]
    fn a_synthetic_type_has_the_labels_of_a_real_one() {
        let real = Catalog::load(&"us-east-1".into(), &[]).expect("known region");
        let real = real.get(&"m5.large".into()).expect("offered");
        let spec =
            SyntheticType { gpus: 2, ..SyntheticType::new("m5.large", 2, 8192, MicroUsd(1)) };
        let catalog = Catalog::synthetic("r", &["r-b", "r-a"], &[spec]);
        let kind = &catalog.types["m5.large"];
        for key in ["category", "family", "generation", "size", "cpu", "memory"] {
            let key = format!("karpenter.k8s.aws/instance-{key}");
            assert_eq!(kind.labels.get(key.as_str()), real.labels.get(key.as_str()), "{key}");
        }
        assert_eq!(kind.extended.get(resource::NVIDIA_GPU), Some(&2));
        let zones: Vec<&str> = kind.offerings.iter().map(|o| o.zone.as_str()).collect();
        assert_eq!(zones, ["r-a", "r-b"]);
    }

    #[test]
    fn a_synthetic_type_is_sold_as_declared() {
        let spec = SyntheticType {
            spot_price: Some(MicroUsd(3)),
            zones: Some(&["r-b", "r-c"]),
            spot_zones: Some(&["r-a", "r-b"]),
            ..SyntheticType::new("x", 1, 1024, MicroUsd(9))
        };
        let catalog = Catalog::synthetic("r", &["r-a", "r-b", "r-c"], &[spec]);
        let offerings = &catalog.types["x"].offerings;
        let sold: Vec<_> =
            offerings.iter().map(|o| (o.zone.as_str(), o.capacity_type, o.price)).collect();
        assert_eq!(
            sold,
            [
                ("r-b", CapacityType::OnDemand, Some(MicroUsd(9))),
                ("r-b", CapacityType::Spot, Some(MicroUsd(3))),
                ("r-c", CapacityType::OnDemand, Some(MicroUsd(9))),
            ]
        );
    }
}
