//! How many EBS volumes a node attaches beside its own.
//!
//! The rule is that of the EBS CSI driver, which registers the number with the kubelet:
//! `kubernetes-sigs/aws-ebs-csi-driver`, `pkg/driver/node.go`, `getVolumesLimit`. EC2's own limit
//! (`EbsInfo.MaximumEbsAttachments`) is for volumes alone on newer types, and shared with network
//! interfaces on older Nitro types; there it already leaves out the first interface and NVMe disks.

use super::facts::{Interner, instance_type};
use super::model::InstanceType;
use super::snapshot;
use crate::ids::InstanceTypeName;

/// Most attachments of a type that EC2 says nothing about: that of the smallest Nitro types.
const UNKNOWN: (i64, bool) = (27, true);

/// Most volumes of a type that does not run on Nitro, for the device names that Linux has.
const XEN_MAX: i64 = 39;

/// Network interfaces of a node when the driver starts: the first, and the spare one that the VPC
/// CNI attaches at once (`WARM_ENI_TARGET` is 1 by default). More come with pods, and the driver
/// does not count those.
const INTERFACES: i64 = 2;

/// Returns how many EBS volumes a node of `kind` attaches for pods; at least one, as the driver has
/// it.
///
/// `of_node` volumes are the node's own ([`NodeClass::volumes`]). Where a world tells what nodes of the
/// type attach, that counts.
///
/// [`NodeClass::volumes`]: crate::manifest::NodeClass::volumes
#[must_use]
pub fn ebs_volumes(kind: &InstanceType, of_node: i64) -> u32 {
    let (most, shared) = kind.ebs_attachments.unwrap_or(UNKNOWN);
    let hypervisor = kind.labels.get("karpenter.k8s.aws/instance-hypervisor");
    let is_xen = hypervisor.is_some_and(|value| value.as_str() == "xen");
    let most = if is_xen { most.min(XEN_MAX) } else { most };
    let interfaces = if shared && !is_xen { INTERFACES.min(kind.enis.max(1)) - 1 } else { 0 };
    u32::try_from((most - interfaces - of_node).max(1)).unwrap_or(u32::MAX)
}

/// Returns how many EBS volumes a node of the type of that name attaches, with the settings that most
/// nodes have; `None` where the snapshot has no such type. Reads the snapshot each time.
#[must_use]
pub fn ebs_volumes_of(name: &InstanceTypeName) -> Option<u32> {
    let text = snapshot::types_text().ok()?;
    let rows = snapshot::parse_types(&text).ok()?;
    let row = rows.iter().find(|row| row.name == name.as_str())?;
    Some(ebs_volumes(&instance_type(row, &mut Interner::default()), 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;

    #[test]
    fn the_limit_is_what_the_driver_registers() {
        let catalog = Catalog::load(&"us-east-1".into(), &[]).expect("known region");
        for (name, expected, rule) in [
            ("m5.large", 25, "28 less two interfaces and the root volume"),
            ("m5d.large", 24, "less one NVMe disk"),
            ("c5d.24xlarge", 21, "less four NVMe disks"),
            ("m7i.large", 31, "volumes alone: 32 less the root volume"),
            ("r8g.48xlarge", 127, "128 less the root volume"),
            ("t2.large", 38, "not on Nitro: interfaces do not count"),
        ] {
            let kind = catalog.get(&name.into()).expect("offered");
            assert_eq!(ebs_volumes(kind, 1), expected, "{name}: {rule}");
        }
        let kind = catalog.get(&"m5.large".into()).expect("offered");
        assert_eq!(ebs_volumes(kind, 2), 24);
        assert_eq!(ebs_volumes_of(&"m5.large".into()), Some(25));
        assert_eq!(ebs_volumes_of(&"m5.huge".into()), None);
        let unknown = InstanceType { ebs_attachments: None, ..kind.clone() };
        assert_eq!(ebs_volumes(&unknown, 1), 25);
        let none = InstanceType { ebs_attachments: Some((1, false)), ..kind.clone() };
        assert_eq!(ebs_volumes(&none, 1), 1);
    }
}
