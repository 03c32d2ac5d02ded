//! Service quotas of EC2: vCPUs by class of instance families and by capacity type.
//!
//! Source: "Amazon EC2 instance type quotas". The codes are those of the service `ec2` in Service
//! Quotas.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::CapacityType;
use crate::model::ids::InstanceTypeName;

/// Class of instance families that share a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QuotaClass {
    /// A, C, D, H, I, M, R, T and Z families.
    Standard,
    /// DL.
    Dl,
    /// F.
    F,
    /// G and VT.
    G,
    /// High memory (U).
    HighMemory,
    /// HPC.
    Hpc,
    /// Inf.
    Inf,
    /// P.
    P,
    /// Trn.
    Trn,
    /// X.
    X,
}

/// Identity of a quota: capacity type and class of instance families.
pub type Quota = (CapacityType, QuotaClass);

/// Service Quotas codes.
const CODES: [(&str, Quota); 18] = [
    ("L-1216C47A", (CapacityType::OnDemand, QuotaClass::Standard)),
    ("L-6E869C2A", (CapacityType::OnDemand, QuotaClass::Dl)),
    ("L-74FC7D96", (CapacityType::OnDemand, QuotaClass::F)),
    ("L-DB2E81BA", (CapacityType::OnDemand, QuotaClass::G)),
    ("L-43DA4232", (CapacityType::OnDemand, QuotaClass::HighMemory)),
    ("L-F7808C92", (CapacityType::OnDemand, QuotaClass::Hpc)),
    ("L-1945791B", (CapacityType::OnDemand, QuotaClass::Inf)),
    ("L-417A185B", (CapacityType::OnDemand, QuotaClass::P)),
    ("L-2C3B7624", (CapacityType::OnDemand, QuotaClass::Trn)),
    ("L-7295265B", (CapacityType::OnDemand, QuotaClass::X)),
    ("L-34B43A08", (CapacityType::Spot, QuotaClass::Standard)),
    ("L-85EED4F7", (CapacityType::Spot, QuotaClass::Dl)),
    ("L-88CF9481", (CapacityType::Spot, QuotaClass::F)),
    ("L-3819A6DF", (CapacityType::Spot, QuotaClass::G)),
    ("L-B5D1601B", (CapacityType::Spot, QuotaClass::Inf)),
    ("L-7212CCBC", (CapacityType::Spot, QuotaClass::P)),
    ("L-6B0D517C", (CapacityType::Spot, QuotaClass::Trn)),
    ("L-E3A00192", (CapacityType::Spot, QuotaClass::X)),
];

/// Quotas in vCPUs, by capacity type and class. The quota of an absent class is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quotas {
    /// On-demand quotas in vCPUs.
    pub on_demand: BTreeMap<QuotaClass, i64>,
    /// Spot quotas in vCPUs.
    pub spot: BTreeMap<QuotaClass, i64>,
}

impl QuotaClass {
    /// Returns the class of an instance type; `None` for an unknown family.
    pub fn from_instance_type(kind: &InstanceTypeName) -> Option<Self> {
        let name = kind.as_str();
        let family = name.split(|c: char| !c.is_ascii_lowercase()).next().unwrap_or_default();
        Some(match family {
            "a" | "c" | "d" | "h" | "i" | "m" | "r" | "t" | "z" | "im" | "is" => Self::Standard,
            "dl" => Self::Dl,
            "f" => Self::F,
            "g" | "gr" | "vt" => Self::G,
            "u" => Self::HighMemory,
            "hpc" => Self::Hpc,
            "inf" => Self::Inf,
            "p" => Self::P,
            "trn" => Self::Trn,
            "x" => Self::X,
            _ => return None,
        })
    }

    /// Returns the name of the class in Service Quotas.
    pub fn service_quotas_name(self) -> &'static str {
        match self {
            Self::Standard => "Standard (A, C, D, H, I, M, R, T, Z)",
            Self::Dl => "DL",
            Self::F => "F",
            Self::G => "G and VT",
            Self::HighMemory => "High Memory",
            Self::Hpc => "HPC",
            Self::Inf => "Inf",
            Self::P => "P",
            Self::Trn => "Trn",
            Self::X => "X",
        }
    }
}

impl Quotas {
    /// Returns a quota in vCPUs; `None` if unknown. Reserved capacity counts as on-demand.
    pub fn get(&self, (capacity_type, class): Quota) -> Option<i64> {
        match capacity_type {
            CapacityType::OnDemand | CapacityType::Reserved => self.on_demand.get(&class).copied(),
            CapacityType::Spot => self.spot.get(&class).copied(),
        }
    }

    /// Returns all known quotas, in vCPUs.
    pub fn iter(&self) -> impl Iterator<Item = (Quota, i64)> {
        let Self { on_demand, spot } = self;
        let with = |capacity_type| {
            move |(class, vcpus): (&QuotaClass, &i64)| ((capacity_type, *class), *vcpus)
        };
        let on_demand = on_demand.iter().map(with(CapacityType::OnDemand));
        on_demand.chain(spot.iter().map(with(CapacityType::Spot)))
    }

    /// Sets a quota in vCPUs by its Service Quotas code. Unknown codes are ignored.
    pub fn set(&mut self, code: &str, vcpus: i64) {
        let Some((_, quota)) = CODES.iter().find(|(known, _)| *known == code) else { return };
        let (capacity_type, class) = quota;
        let is_spot = *capacity_type == CapacityType::Spot;
        let quotas = if is_spot { &mut self.spot } else { &mut self.on_demand };
        quotas.insert(*class, vcpus);
    }

    /// Returns the Service Quotas code, which requests for an increase refer to.
    pub fn code((capacity_type, class): Quota) -> Option<&'static str> {
        let capacity_type = match capacity_type {
            CapacityType::OnDemand | CapacityType::Reserved => CapacityType::OnDemand,
            CapacityType::Spot => CapacityType::Spot,
        };
        CODES.iter().find(|(_, known)| *known == (capacity_type, class)).map(|(code, _)| *code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;

    #[test]
    fn every_instance_type_has_a_quota_class() {
        let catalog = Catalog::load(&"us-east-1".into(), &[]).expect("known region");
        let without: Vec<_> =
            catalog.types.keys().filter(|n| QuotaClass::from_instance_type(n).is_none()).collect();
        assert!(without.is_empty(), "{without:?}");
        for (name, class) in [
            ("m7i-flex.large", QuotaClass::Standard),
            ("u-3tb1.56xlarge", QuotaClass::HighMemory),
            ("u7i-12tb.224xlarge", QuotaClass::HighMemory),
            ("x2gd.medium", QuotaClass::X),
            ("gr6.4xlarge", QuotaClass::G),
            ("is4gen.medium", QuotaClass::Standard),
            ("p6-b200.48xlarge", QuotaClass::P),
        ] {
            assert_eq!(QuotaClass::from_instance_type(&name.into()), Some(class), "{name}");
        }
    }

    #[test]
    fn value_is_set_by_quota_code() {
        let mut quotas = Quotas::default();
        for (code, vcpus) in [("L-1216C47A", 64), ("L-34B43A08", 32), ("L-0000", 1)] {
            quotas.set(code, vcpus);
        }
        let standard = QuotaClass::Standard;
        assert_eq!(quotas.get((CapacityType::OnDemand, standard)), Some(64));
        assert_eq!(quotas.get((CapacityType::Reserved, standard)), Some(64));
        assert_eq!(quotas.get((CapacityType::Spot, standard)), Some(32));
        assert_eq!(quotas.get((CapacityType::Spot, QuotaClass::P)), None);
        assert_eq!(Quotas::code((CapacityType::Spot, standard)), Some("L-34B43A08"));
    }
}
