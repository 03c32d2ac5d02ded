//! Well-known, restricted and deprecated label keys.

use crate::model::similar_name::{nearest, nearest_of};

/// Label keys that Fleetwright reads or writes.
pub mod key {
    /// Pool of the node.
    pub const NODEPOOL: &str = "karpenter.sh/nodepool";
    /// Pool of the node, in `karpenter.sh/v1alpha5`.
    pub const PROVISIONER: &str = "karpenter.sh/provisioner-name";
    /// Capacity type: on-demand, spot or reserved.
    pub const CAPACITY_TYPE: &str = "karpenter.sh/capacity-type";
    /// Availability zone.
    pub const ZONE: &str = "topology.kubernetes.io/zone";
    /// Zone ID, equal in all accounts.
    pub const ZONE_ID: &str = "topology.k8s.aws/zone-id";
    /// Region.
    pub const REGION: &str = "topology.kubernetes.io/region";
    /// Instance type.
    pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
    /// CPU architecture.
    pub const ARCH: &str = "kubernetes.io/arch";
    /// Operating system.
    pub const OS: &str = "kubernetes.io/os";
    /// Host name.
    pub const HOSTNAME: &str = "kubernetes.io/hostname";
    /// Windows build.
    pub const WINDOWS_BUILD: &str = "node.kubernetes.io/windows-build";
    /// Node class of the node.
    pub const NODE_CLASS: &str = "karpenter.k8s.aws/ec2nodeclass";
    /// ID of the capacity reservation of the node.
    pub const RESERVATION_ID: &str = "karpenter.k8s.aws/capacity-reservation-id";
    /// Type of the capacity reservation: `default` or `capacity-block`.
    pub const RESERVATION_TYPE: &str = "karpenter.k8s.aws/capacity-reservation-type";
    /// Flag for capacity reservations with interruptible instances: `true` or `false`.
    pub const RESERVATION_INTERRUPTIBLE: &str =
        "karpenter.k8s.aws/capacity-reservation-interruptible";
    /// Tenancy: `default` (shared hardware) or `dedicated`.
    pub const TENANCY: &str = "karpenter.k8s.aws/instance-tenancy";
    /// Family of the instance type, such as `m8i-flex`.
    pub const INSTANCE_FAMILY: &str = "karpenter.k8s.aws/instance-family";
    /// Hypervisor: `nitro` or `xen`, or empty for bare metal.
    pub const HYPERVISOR: &str = "karpenter.k8s.aws/instance-hypervisor";
    /// Prefix of the labels that describe an instance type.
    pub const INSTANCE_PREFIX: &str = "karpenter.k8s.aws/instance-";
}

/// Well-known keys that do not start with [`key::INSTANCE_PREFIX`].
const WELL_KNOWN: [&str; 21] = [
    key::NODEPOOL,
    key::PROVISIONER,
    key::CAPACITY_TYPE,
    key::ZONE,
    key::ZONE_ID,
    key::REGION,
    key::INSTANCE_TYPE,
    key::ARCH,
    key::OS,
    key::WINDOWS_BUILD,
    key::NODE_CLASS,
    "karpenter.k8s.aws/nitro-sandbox",
    key::RESERVATION_ID,
    key::RESERVATION_TYPE,
    key::RESERVATION_INTERRUPTIBLE,
    "karpenter.k8s.aws/placement-group-id",
    "karpenter.k8s.aws/placement-group-partition",
    "karpenter.sh/registered",
    "karpenter.sh/initialized",
    "karpenter.sh/do-not-sync-taints",
    "topology.ebs.csi.aws.com/zone",
];

/// Labels of an instance type, without [`key::INSTANCE_PREFIX`].
const INSTANCE_LABELS: [&str; 22] = [
    "hypervisor",
    "encryption-in-transit-supported",
    "category",
    "family",
    "generation",
    "size",
    "cpu",
    "cpu-manufacturer",
    "cpu-sustained-clock-speed-mhz",
    "memory",
    "ebs-bandwidth",
    "network-bandwidth",
    "local-nvme",
    "gpu-name",
    "gpu-manufacturer",
    "gpu-count",
    "gpu-memory",
    "accelerator-name",
    "accelerator-manufacturer",
    "accelerator-count",
    "capability-flex",
    "tenancy",
];

/// Returns true for a well-known key. Nodes have such labels even if their pool does not declare
/// them.
pub fn is_well_known(key: &str) -> bool {
    WELL_KNOWN.contains(&key)
        || key
            .strip_prefix(key::INSTANCE_PREFIX)
            .is_some_and(|rest| INSTANCE_LABELS.contains(&rest))
}

/// Returns the well-known keys of the same domain that are most similar to the unknown `key`.
pub fn similar_keys(key: &str) -> Vec<String> {
    if let Some(rest) = key.strip_prefix(key::INSTANCE_PREFIX) {
        let near = nearest(rest, INSTANCE_LABELS);
        return near.iter().map(|rest| format!("{}{rest}", key::INSTANCE_PREFIX)).collect();
    }
    let Some((domain, name)) = key.split_once('/') else { return Vec::new() };
    let of_domain = WELL_KNOWN.iter().filter_map(|known| {
        let (other, name) = known.split_once('/')?;
        (other == domain).then_some((name, (*known).to_owned()))
    });
    nearest_of(name, of_domain)
}

/// Returns all possible values of `key`, if the set is closed.
pub fn known_values(key: &str) -> Option<&'static [&'static str]> {
    match key {
        key::CAPACITY_TYPE => Some(&["on-demand", "spot", "reserved"]),
        key::TENANCY => Some(&["default", "dedicated"]),
        _ => None,
    }
}

/// Returns true if pools and pods must not use `key` in requirements for new nodes.
///
/// Restricted keys are the host name, which is unknown before launch, and keys in Karpenter's
/// domains that are not well-known. Source: karpenter core, `pkg/apis/v1/labels.go`.
pub fn is_restricted(key: &str) -> bool {
    if is_well_known(key) {
        return false;
    }
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let within = |owner: &str| domain == owner || domain.ends_with(&format!(".{owner}"));
    key == key::HOSTNAME || within("karpenter.sh") || within("karpenter.k8s.aws")
}

/// Returns the current name of a deprecated key; other keys are unchanged.
pub fn normalize_key(key: &str) -> &str {
    match key {
        "failure-domain.beta.kubernetes.io/zone" | "topology.ebs.csi.aws.com/zone" => key::ZONE,
        "failure-domain.beta.kubernetes.io/region" => key::REGION,
        "beta.kubernetes.io/arch" => key::ARCH,
        "beta.kubernetes.io/os" => key::OS,
        "beta.kubernetes.io/instance-type" => key::INSTANCE_TYPE,
        _ => key,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn karpenter_domains_and_hostname_are_restricted() {
        for (name, restricted) in [
            ("karpenter.sh/custom", true),
            ("x.karpenter.sh/custom", true),
            ("kubernetes.io/hostname", true),
            ("karpenter.sh/capacity-type", false),
            ("karpenter.k8s.aws/instance-family", false),
            ("karpenter.k8s.aws/instance-nonsense", true),
            ("kubernetes.io/custom", false),
            ("team", false),
            ("notkarpenter.sh/x", false),
        ] {
            assert_eq!(is_restricted(name), restricted, "{name}");
        }
    }

    #[test]
    fn mistyped_keys_are_similar_to_those_of_their_domain() {
        for (name, expected) in [
            ("karpenter.k8s.aws/instance-categorie", "karpenter.k8s.aws/instance-category"),
            ("karpenter.k8s.aws/instance-famly", "karpenter.k8s.aws/instance-family"),
            ("karpenter.sh/capacity-typ", "karpenter.sh/capacity-type"),
            ("karpenter.k8s.aws/instance-nonsense", ""),
            ("example.com/capacity-typ", ""),
            ("team", ""),
        ] {
            assert_eq!(similar_keys(name).join(" "), expected, "{name}");
        }
    }

    #[test]
    fn deprecated_keys_are_normalized() {
        assert_eq!(normalize_key("beta.kubernetes.io/arch"), key::ARCH);
        assert_eq!(normalize_key("team"), "team");
    }
}
