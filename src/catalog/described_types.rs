//! Instance types as EC2 describes them, for types newer than the snapshot.
//!
//! The fields are the snapshot's, under the same names. No API reports two of them, so both count
//! as none: branch interfaces (security groups for pods) and the attachment slots that a type's
//! devices leave.

use super::snapshot::{DeviceRow, InstanceTypeRow};
use crate::model::ids::InstanceTypeName;
use crate::model::market::{DeviceFacts, TypeFacts};

impl TypeFacts {
    /// Returns the name of a fact that planning needs and EC2 does not report; `None` if there is
    /// none.
    fn missing_fact(&self) -> Option<&'static str> {
        let Self { vcpus, memory_mib, enis, ips_per_eni, .. } = self;
        [
            (*vcpus > 0, "vCPUs"),
            (*memory_mib > 0, "memory"),
            (*enis > 0 && *ips_per_eni > 0, "network interfaces"),
            (self.arch().is_some(), "an architecture that runs Kubernetes"),
        ]
        .into_iter()
        .find_map(|(is_known, what)| (!is_known).then_some(what))
    }

    fn arch(&self) -> Option<&'static str> {
        let has = |arch: &str| self.architectures.iter().any(|own| own == arch);
        match (has("x86_64"), has("arm64")) {
            (true, _) => Some("amd64"),
            (false, true) => Some("arm64"),
            (false, false) => None,
        }
    }

    /// Returns the facts as a snapshot row; `None` if a fact that planning needs is missing.
    pub(super) fn to_row<'a>(&'a self, name: &'a InstanceTypeName) -> Option<InstanceTypeRow<'a>> {
        if self.missing_fact().is_some() {
            return None;
        }
        let name = name.as_str();
        let (family, size) = name.split_once('.')?;
        let (category, generation) = parse_family(family);
        let devices = |all: &'a [DeviceFacts]| all.iter().map(DeviceFacts::to_row).collect();
        Some(InstanceTypeRow {
            name,
            family,
            size,
            category,
            generation,
            partial: false,
            flex: family.ends_with("-flex"),
            arch: self.arch()?,
            raw_arch: Vec::new(),
            vcpu: self.vcpus,
            mem_mib: self.memory_mib,
            cpu_mfr: &self.cpu_manufacturer,
            clock_mhz: self.clock_mhz,
            hypervisor: &self.hypervisor,
            bare_metal: self.bare_metal,
            enclaves: self.enclaves,
            encrypt_transit: self.encrypts_in_transit,
            usage: self.usage.iter().map(String::as_str).collect(),
            enis: self.enis,
            cards: Some(self.cards),
            enis_total: self.enis + self.enis_per_card * (self.cards - 1).max(0),
            ips_per_eni: self.ips_per_eni,
            branch_enis: 0,
            efas: self.efas,
            net_mbps: self.network_mbps,
            ebs_max_mbps: self.ebs_mbps,
            ebs_opt: if self.ebs_optimized { "default" } else { "" },
            ebs_attach: self.ebs_attachments,
            ebs_attach_kind: if self.ebs_shared { "shared" } else { "dedicated" },
            nvme_gb: self.nvme_gb,
            gpus: devices(&self.gpus),
            neuron: devices(&self.neuron),
            accel: devices(&self.accelerators),
            fpgas: devices(&self.fpgas),
            media: devices(&self.media),
        })
    }
}

impl DeviceFacts {
    fn to_row(&self) -> DeviceRow<'_> {
        let Self { name, manufacturer, count, cores, memory_mib } = self;
        DeviceRow { name, mfr: manufacturer, count: *count, cores: *cores, mem_mib: *memory_mib }
    }
}

/// Returns category and generation of a family, as Karpenter parses them.
///
/// The category is the leading letters. The generation is the first number after them, except for a
/// number of terabytes: `u-3tb1` is `u` and 1, `p6-b200` is `p` and 6.
fn parse_family(family: &str) -> (Option<&str>, Option<i64>) {
    let letters = |text: &str| text.bytes().take_while(u8::is_ascii_lowercase).count();
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (category, rest) = family.split_at(letters(family));
    let terabytes = rest.strip_prefix('-').and_then(|rest| {
        let (number, unit) = rest.split_at(digits(rest));
        if number.is_empty() { None } else { unit.strip_prefix("tb") }
    });
    let rest = terabytes.unwrap_or(rest);
    let generation = rest[..digits(rest)].parse().ok();
    if category.is_empty() || generation.is_none() {
        (None, None)
    } else {
        (Some(category), generation)
    }
}

#[cfg(test)]
mod tests {
    use super::super::instance_type::{Interner, instance_type};
    use super::super::snapshot;
    use super::*;

    #[test]
    fn family_names_parse_as_in_the_snapshot() {
        let text = snapshot::types_text().expect("inflates");
        let rows = snapshot::parse_types(&text).expect("parses");
        for row in rows.iter().filter(|row| !row.partial) {
            assert_eq!(parse_family(row.family), (row.category, row.generation), "{}", row.name);
        }
    }

    #[test]
    fn unknown_network_cards_stay_unknown() {
        let name = InstanceTypeName::from("z9.large");
        for (cards, enis_per_card, expected) in [(0, 0, (0, 0)), (1, 3, (1, 0)), (2, 3, (2, 3))] {
            let facts = TypeFacts { cards, enis_per_card, ..whole() };
            let row = facts.to_row(&name).expect("whole");
            let kind = instance_type(&row, &mut Interner::default());
            assert_eq!((kind.cards, kind.enis_of_other_cards), expected, "{cards} cards");
        }
        // A saved world of an earlier version does not state cards.
        let saved: TypeFacts = serde_json::from_str(r#"{"enis": 3}"#).expect("facts");
        assert_eq!(saved.cards, 0);
    }

    fn whole() -> TypeFacts {
        TypeFacts {
            architectures: vec!["i386".into(), "x86_64".into()],
            vcpus: 2,
            memory_mib: 4096,
            enis: 3,
            ips_per_eni: 10,
            ..TypeFacts::default()
        }
    }

    #[test]
    fn a_type_that_lacks_a_needed_fact_is_rejected() {
        let whole = whole();
        let name = InstanceTypeName::from("z9.large");
        assert!(
            whole.to_row(&name).is_some_and(|row| row.arch == "amd64" && row.category == Some("z"))
        );
        for broken in [
            TypeFacts { vcpus: 0, ..whole.clone() },
            TypeFacts { memory_mib: 0, ..whole.clone() },
            TypeFacts { ips_per_eni: 0, ..whole.clone() },
            TypeFacts { architectures: vec!["arm64_mac".into()], ..whole.clone() },
        ] {
            assert!(broken.to_row(&name).is_none(), "{broken:?}");
        }
        assert!(whole.to_row(&"z9".into()).is_none(), "a name of another form");
    }
}
