//! Whether an instance type has the network interfaces that a node class declares.
//!
//! EC2 refuses a launch with more. Sources: karpenter-provider-aws,
//! `pkg/providers/instancetype/compatibility/compatibility.go`; EC2 user guide, "Prefix delegation".

use super::instance_type::{InstanceType, resource};
use crate::model::desired::{EfaInterfaces, InstanceSettings, NetworkInterface};
use crate::model::requirement::key;

/// Families without enhanced networking (ENA), as `DescribeInstanceTypes` reports them (`EnaSupport`
/// in the data of moto 5.2.5). Of family `m4`, one size has it, and is excluded with the family.
const FAMILIES_WITHOUT_ENA: [&str; 12] =
    ["c1", "c3", "c4", "d2", "i2", "m1", "m2", "m3", "m4", "r3", "t1", "t2"];

impl InstanceType {
    /// Returns whether EC2 launches the type with the network interfaces and address prefixes of a
    /// node class.
    pub fn has_interfaces(&self, settings: &InstanceSettings) -> bool {
        let declared = &settings.network_interfaces;
        self.has_prefixes(settings.ip_prefix_count.unwrap_or(0).into())
            && (declared.is_empty() || self.has_ena() && self.has_adapters(settings))
            && declared.iter().all(|interface| self.has_interface(*interface))
    }

    /// Returns whether an interface can have `count` prefixes besides its own address. Only types on
    /// the Nitro system have prefixes.
    fn has_prefixes(&self, count: i64) -> bool {
        let is_xen = self.labels.get(key::HYPERVISOR).is_some_and(|label| label.as_str() == "xen");
        count == 0 || !is_xen && count < self.ips_per_eni
    }

    fn has_ena(&self) -> bool {
        let family = self.labels.get(key::INSTANCE_FAMILY);
        family.is_none_or(|family| !FAMILIES_WITHOUT_ENA.contains(&family.as_str()))
    }

    fn has_interface(&self, interface: NetworkInterface) -> bool {
        let NetworkInterface { card, device, efa_only } = interface;
        let (card, device) = (i64::from(card), i64::from(device));
        let interfaces = match card {
            0 => self.enis,
            card if card < self.cards => self.enis_of_other_cards,
            _ => 0,
        };
        device < interfaces && (!efa_only || card >= self.first_card_with_adapter())
    }

    fn has_adapters(&self, settings: &InstanceSettings) -> bool {
        match settings.efa_interfaces() {
            EfaInterfaces::Declared(declared) => declared.all <= self.adapters(),
            EfaInterfaces::All | EfaInterfaces::Reported | EfaInterfaces::Absent => true,
        }
    }

    /// Returns the first network card that takes an adapter. A single adapter may be on any card. Of
    /// several, each has a card of its own, and cards that exceed their number come first.
    fn first_card_with_adapter(&self) -> i64 {
        if self.adapters() > 1 { (self.cards - self.adapters()).max(0) } else { 0 }
    }

    fn adapters(&self) -> i64 {
        self.extended.get(resource::EFA).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use crate::catalog::instance_type::{Interner, instance_type};
    use crate::catalog::snapshot;

    fn interface(card: i32, device: i32, efa_only: bool) -> NetworkInterface {
        NetworkInterface { card, device, efa_only }
    }

    #[test]
    fn type_needs_the_declared_cards_devices_and_adapters() {
        let text = snapshot::types_text().expect("inflates");
        let rows = snapshot::parse_types(&text).expect("parses");
        let has = |name: &str, interfaces: &[NetworkInterface]| {
            let row = rows.iter().find(|row| row.name == name).expect("known");
            let network_interfaces = interfaces.into();
            let settings = InstanceSettings { network_interfaces, ..Default::default() };
            instance_type(row, &mut Interner::default()).has_interfaces(&settings)
        };
        let primary = interface(0, 0, false);
        let adapter = |card: i32, device: i32| interface(card, device, true);
        for (name, further, expected, rule) in [
            ("m5.large", &[][..], true, "one interface"),
            ("m4.large", &[], false, "without ENA"),
            ("m5.large", &[interface(0, 2, false)], true, "the third of three interfaces"),
            ("m5.large", &[interface(0, 3, false)], false, "three interfaces"),
            ("m5.large", &[interface(1, 0, false)], false, "one card"),
            ("m5.large", &[adapter(0, 1)], false, "no adapter"),
            ("c5n.18xlarge", &[adapter(0, 1)], true, "one adapter"),
            ("c6in.32xlarge", &[adapter(0, 1), adapter(1, 1)], true, "an adapter on each card"),
            ("c5n.18xlarge", &[adapter(0, 1), adapter(0, 2)], false, "one adapter"),
            ("p5.48xlarge", &[adapter(0, 1), adapter(31, 1)], true, "32 cards"),
            ("p5.48xlarge", &[adapter(32, 1)], false, "32 cards"),
            ("p5.48xlarge", &[adapter(31, 2)], false, "two interfaces on each card"),
            ("i7ie.48xlarge", &[interface(0, 7, false)], true, "eight on the first card"),
            ("i7ie.48xlarge", &[interface(1, 7, false)], false, "seven on the second card"),
            ("i7ie.48xlarge", &[adapter(0, 1)], true, "one adapter on either card"),
            ("i7ie.48xlarge", &[adapter(1, 1)], true, "one adapter on either card"),
            ("p6-b300.48xlarge", &[adapter(0, 1)], false, "no adapter on the first of 17"),
            ("p6-b300.48xlarge", &[adapter(16, 1)], true, "16 adapters on 17 cards"),
        ] {
            let all = [&[primary][..], further].concat();
            assert_eq!(has(name, &all), expected, "{name}: {rule}");
        }
        assert!(has("m4.large", &[]), "a class without the field");
    }

    #[test]
    fn prefixes_need_nitro_and_a_free_slot_of_the_interface() {
        let catalog = Catalog::load(&"us-east-1".into(), &[]).expect("known region");
        let has = |name: &str, count: Option<i32>| {
            let settings = InstanceSettings { ip_prefix_count: count, ..Default::default() };
            catalog.get(&name.into()).expect("offered").has_interfaces(&settings)
        };
        for (name, count, expected) in [
            ("m5.large", None, true),
            ("m5.large", Some(9), true),
            ("m5.large", Some(10), false),
            ("m5.metal", Some(1), true),
            ("t2.large", Some(1), false),
            ("t2.large", Some(0), true),
        ] {
            assert_eq!(has(name, count), expected, "{name} {count:?}");
        }
    }
}
