//! The number of EBS volumes that a node can attach in addition to its own.
//!
//! The rule is that of the EBS CSI driver, which registers the number with the kubelet:
//! `kubernetes-sigs/aws-ebs-csi-driver`, `pkg/driver/node.go`, `getVolumesLimit`. EC2's own limit
//! (`EbsInfo.MaximumEbsAttachments`) covers volumes only on newer types, and is shared with network
//! interfaces on older Nitro types. On those it already excludes the first interface and NVMe
//! disks.

use super::instance_type::{InstanceType, Interner, instance_type};
use super::snapshot;
use crate::model::ids::InstanceTypeName;

/// Attachment limit for types without EC2 data: that of the smallest Nitro types.
const UNKNOWN: (i64, bool) = (27, true);

/// Maximum number of volumes of a type that does not run on Nitro, from Linux device names.
const XEN_MAX: i64 = 39;

/// Network interfaces of a node when the driver starts: the first, and the spare one that the VPC
/// CNI attaches at once (`WARM_ENI_TARGET` is 1 by default). Later interfaces come with pods, and
/// the driver does not count them.
const INTERFACES: i64 = 2;

/// Returns the number of EBS volumes that a node of `kind` attaches for pods; at least one, as in
/// the driver.
///
/// `volumes` and `interfaces` are the numbers of the node's own at its launch ([`NodeClass::volumes`],
/// [`NodeClass::interfaces`]). A limit in the world file takes precedence.
///
/// [`NodeClass::volumes`]: crate::model::desired::NodeClass::volumes
/// [`NodeClass::interfaces`]: crate::model::desired::NodeClass::interfaces
pub fn ebs_volumes(kind: &InstanceType, volumes: i64, interfaces: i64) -> u32 {
    let (most, shared) = kind.ebs_attachments.unwrap_or(UNKNOWN);
    let hypervisor = kind.labels.get("karpenter.k8s.aws/instance-hypervisor");
    let is_xen = hypervisor.is_some_and(|value| value.as_str() == "xen");
    let most = if is_xen { most.min(XEN_MAX) } else { most };
    let spare = INTERFACES.min(kind.enis.max(1)) - 1;
    let further = if shared && !is_xen { spare + (interfaces - 1).max(0) } else { 0 };
    u32::try_from((most - further - volumes).max(1)).unwrap_or(u32::MAX)
}

/// Returns the number of EBS volumes that a node of the named type attaches with default settings;
/// `None` if the snapshot has no such type. Reads the snapshot on each call.
pub fn ebs_volumes_by_name(name: &InstanceTypeName) -> Option<u32> {
    let text = snapshot::types_text().ok()?;
    let rows = snapshot::parse_types(&text).ok()?;
    let row = rows.iter().find(|row| row.name == name.as_str())?;
    Some(ebs_volumes(&instance_type(row, &mut Interner::default()), 1, 1))
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
            assert_eq!(ebs_volumes(kind, 1, 1), expected, "{name}: {rule}");
        }
        let kind = catalog.get(&"m5.large".into()).expect("offered");
        assert_eq!(ebs_volumes(kind, 2, 1), 24);
        assert_eq!(ebs_volumes(kind, 1, 3), 23, "each further interface takes a place");
        assert_eq!(ebs_volumes_by_name(&"m5.large".into()), Some(25));
        assert_eq!(ebs_volumes_by_name(&"m5.huge".into()), None);
        let unknown = InstanceType { ebs_attachments: None, ..kind.clone() };
        assert_eq!(ebs_volumes(&unknown, 1, 1), 25);
        let none = InstanceType { ebs_attachments: Some((1, false)), ..kind.clone() };
        assert_eq!(ebs_volumes(&none, 1, 1), 1);
    }
}
