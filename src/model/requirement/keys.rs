//! Well-known, restricted and deprecated label keys.

/// Keys that this program reads or writes.
pub mod key {
    /// The pool a node belongs to.
    pub const NODEPOOL: &str = "karpenter.sh/nodepool";
    /// The pool a node belongs to, in the first generation of the API.
    pub const PROVISIONER: &str = "karpenter.sh/provisioner-name";
    /// Capacity type: on-demand, spot or reserved.
    pub const CAPACITY_TYPE: &str = "karpenter.sh/capacity-type";
    /// Availability zone.
    pub const ZONE: &str = "topology.kubernetes.io/zone";
    /// Zone id, the same in every account.
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
    /// Build of Windows.
    pub const WINDOWS_BUILD: &str = "node.kubernetes.io/windows-build";
    /// Node class of the node.
    pub const NODE_CLASS: &str = "karpenter.k8s.aws/ec2nodeclass";
    /// Capacity reservation that the node runs in.
    pub const RESERVATION_ID: &str = "karpenter.k8s.aws/capacity-reservation-id";
    /// Type of that reservation: `default` or `capacity-block`.
    pub const RESERVATION_TYPE: &str = "karpenter.k8s.aws/capacity-reservation-type";
    /// Whether EC2 may interrupt instances in the reservation.
    pub const RESERVATION_INTERRUPTIBLE: &str =
        "karpenter.k8s.aws/capacity-reservation-interruptible";
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

/// The labels of an instance type, after [`key::INSTANCE_PREFIX`].
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

/// Returns whether the node's instance determines the value of `key`, rather than its pool.
#[must_use]
pub fn is_well_known(key: &str) -> bool {
    WELL_KNOWN.contains(&key)
        || key
            .strip_prefix(key::INSTANCE_PREFIX)
            .is_some_and(|rest| INSTANCE_LABELS.contains(&rest))
}

/// Returns every value that `key` can have, if the list is closed.
#[must_use]
pub fn known_values(key: &str) -> Option<&'static [&'static str]> {
    match key {
        key::CAPACITY_TYPE => Some(&["on-demand", "spot", "reserved"]),
        "karpenter.k8s.aws/instance-tenancy" => Some(&["default", "dedicated"]),
        _ => None,
    }
}

/// Returns whether neither pools nor pods may use `key` to ask for new nodes.
///
/// Restricted are Karpenter's own domains unless the key is well known, and the host name, which
/// no new node can promise. Source: karpenter core, `pkg/apis/v1/labels.go`.
#[must_use]
pub fn is_restricted(key: &str) -> bool {
    if is_well_known(key) {
        return false;
    }
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let within = |owner: &str| domain == owner || domain.ends_with(&format!(".{owner}"));
    key == key::HOSTNAME || within("karpenter.sh") || within("karpenter.k8s.aws")
}

/// Returns the current name of a deprecated key, and any other key unchanged.
#[must_use]
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
    fn deprecated_keys_are_normalized() {
        assert_eq!(normalize_key("beta.kubernetes.io/arch"), key::ARCH);
        assert_eq!(normalize_key("team"), "team");
    }
}
