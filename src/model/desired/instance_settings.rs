//! EC2 settings of a node class. Launches use them. Plans depend on the instance types that they
//! require, and on nothing else of them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::pool::{EfaCount, EfaInterfaces};
use crate::model::requirement::{LabelSet, Requirements, ValueSet, key};

/// Families whose virtual instances support nested virtualization, as `DescribeInstanceTypes` reports
/// them (`SupportedFeatures` in the data of moto 5.2.5).
const NESTED_VIRTUALIZATION: [&str; 18] = [
    "c7i", "c7i-flex", "c8i", "c8i-flex", "c8id", "i7i", "i7ie", "m7i", "m7i-flex", "m8i",
    "m8i-flex", "m8id", "r7i", "r7iz", "r8i", "r8i-flex", "r8id", "x8i",
];

/// Families that a placement group of the strategy `cluster` does not accept, as
/// `DescribeInstanceTypes` reports them (`SupportedStrategies` in the data of moto 5.2.5).
const WITHOUT_CLUSTER_PLACEMENT: [&str; 16] = [
    "c1", "c7i-flex", "c8i-flex", "m1", "m2", "m3", "m7i-flex", "m8i-flex", "r8i-flex", "t1", "t2",
    "t3", "t3a", "t4g", "t8i", "vt1",
];

/// EC2 settings of the instances of a node class.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InstanceSettings {
    /// Subnet selectors. A launch may use each subnet that matches any selector.
    pub subnets: Vec<Ec2Selector>,
    /// Security group selectors. A launch uses every group that matches any selector.
    pub security_groups: Vec<Ec2Selector>,
    /// Image terms. A launch uses the newest compatible image that matches any term.
    pub images: Vec<ImageTerm>,
    /// Instance profile, or the role that identifies it.
    pub identity: Identity,
    /// User data, executed at the first boot of an instance.
    pub user_data: Option<UserData>,
    /// Options of the instance metadata service.
    pub metadata: MetadataOptions,
    /// Block devices, in declaration order; empty means the defaults of the AMI family.
    pub devices: Vec<BlockDevice>,
    /// True if instances get a public IP address; `None` means the default of the subnet.
    pub public_address: Option<bool>,
    /// True if detailed (per-minute) metrics are enabled.
    pub detailed_monitoring: bool,
    /// Idle timeouts of tracked connections; `None` means the defaults of EC2.
    pub connection_tracking: Option<ConnectionTracking>,
    /// True if nested virtualization is enabled; `None` means the default of EC2.
    pub nested_virtualization: Option<bool>,
    /// Context of the fleet request.
    pub context: Option<String>,
    /// Network interfaces, in declaration order; empty means one, with an address.
    pub network_interfaces: Vec<NetworkInterface>,
    /// Address prefixes of each interface that has an address; `None` means the default of EC2.
    pub ip_prefix_count: Option<i32>,
    /// Placement group of the instances.
    pub placement_group: Option<PlacementGroupSelector>,
}

impl InstanceSettings {
    /// Returns whether network interfaces or their address prefixes are declared.
    pub fn has_declared_interfaces(&self) -> bool {
        !self.network_interfaces.is_empty() || self.ip_prefix_count.is_some()
    }

    /// Returns the adapters among the declared interfaces.
    pub fn efa_interfaces(&self) -> EfaInterfaces {
        if self.network_interfaces.is_empty() {
            return EfaInterfaces::Absent;
        }
        let mut adapters = EfaCount::default();
        for interface in self.network_interfaces.iter().filter(|interface| interface.efa_only) {
            adapters.all += 1;
            adapters.on_default_card += i64::from(interface.card == 0);
        }
        EfaInterfaces::Declared(adapters)
    }

    /// Returns the labels that an instance type needs for these settings.
    pub fn type_requirements(&self) -> Requirements {
        let mut requirements = Requirements::default();
        let mut require = |key: &str, values: &[&str]| {
            let values = ValueSet::from_values(values.iter().copied());
            requirements.add(key.into(), &LabelSet::present(values));
        };
        // Both are features of the hypervisor, which bare-metal instances lack.
        if self.connection_tracking.is_some() || self.nested_virtualization == Some(true) {
            require(key::HYPERVISOR, &["nitro"]);
        }
        if self.nested_virtualization == Some(true) {
            require(key::INSTANCE_FAMILY, &NESTED_VIRTUALIZATION);
        }
        requirements.and(&self.placement_requirements())
    }

    /// Returns the labels that an instance type needs for a placement group of each strategy; no
    /// labels if the settings select no group.
    pub fn placement_requirements(&self) -> Requirements {
        let mut requirements = Requirements::default();
        // The strategy of the group is known only at a launch.
        if self.placement_group.is_some() {
            let excluded = LabelSet::present(ValueSet::from_values(WITHOUT_CLUSTER_PLACEMENT));
            requirements.add(key::INSTANCE_FAMILY.into(), &excluded.complement());
        }
        requirements
    }
}

/// A network interface of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NetworkInterface {
    /// Index of the network card.
    pub card: i32,
    /// Index of the device.
    pub device: i32,
    /// True for an elastic fabric adapter (EFA) without an address.
    pub efa_only: bool,
}

impl NetworkInterface {
    /// Returns whether this is the primary interface of its instance.
    pub fn is_primary(&self) -> bool {
        self.card == 0 && self.device == 0
    }
}

/// Selector of a placement group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlacementGroupSelector {
    /// Name of the group.
    Name(String),
    /// ID of the group, such as `pg-0123456789abcdef0`.
    Id(String),
}

impl fmt::Display for PlacementGroupSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "name {name}"),
            Self::Id(id) => write!(f, "id {id}"),
        }
    }
}

/// Idle timeouts of tracked connections, in seconds; `None` means the default of EC2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionTracking {
    /// Established TCP connections.
    pub tcp_established: Option<i32>,
    /// UDP flows with more than one request and response.
    pub udp_stream: Option<i32>,
    /// Other UDP flows.
    pub udp: Option<i32>,
}

/// User data. It may contain secrets, so `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct UserData(Arc<str>);

impl UserData {
    /// Wraps a text.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the text. Only the launch call may use it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for UserData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserData(not shown)")
    }
}

/// IAM identity of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Identity {
    /// No identity is declared.
    #[default]
    None,
    /// Name of an instance profile.
    Profile(String),
    /// Role contained in the instance profile.
    Role(String),
}

/// Selector of EC2 objects; an object must match every declared condition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ec2Selector {
    /// ID of the object.
    pub id: Option<String>,
    /// Name of a security group (the group name, not the `Name` tag).
    pub name: Option<String>,
    /// Tags; the value `*` matches any value.
    pub tags: BTreeMap<String, String>,
}

/// Returns a description of selectors. Equal selectors have equal descriptions.
pub fn describe_selectors(selectors: &[Ec2Selector]) -> String {
    let words = |selector: &Ec2Selector| {
        let tags = selector.tags.iter().map(|(key, value)| format!("tag {key}={value}"));
        let id = selector.id.iter().map(|id| format!("id {id}"));
        let name = selector.name.iter().map(|name| format!("name {name}"));
        id.chain(name).chain(tags).collect::<Vec<_>>().join(" and ")
    };
    selectors.iter().map(words).collect::<Vec<_>>().join(", or ")
}

/// Selector of machine images.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImageTerm {
    /// Image that AWS publishes for a family and version, such as `al2023@latest`.
    Alias {
        /// Family, such as `al2023`.
        family: String,
        /// Version, or `latest`.
        version: String,
    },
    /// Systems Manager parameter that contains the image ID.
    Parameter(String),
    /// Images that match a selector, from an owner; `None` means this account or Amazon.
    Owned(Ec2Selector, Option<String>),
}

/// Options of the instance metadata service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataOptions {
    /// True if the HTTP endpoint is enabled.
    pub enabled: bool,
    /// True if the IPv6 endpoint is enabled.
    pub ipv6: bool,
    /// Maximum network hops of a response.
    pub hop_limit: i32,
    /// True if a session token is required.
    pub tokens_required: bool,
}

impl Default for MetadataOptions {
    /// Returns Karpenter's defaults. Pods cannot reach the service with a hop limit of 1.
    fn default() -> Self {
        Self { enabled: true, ipv6: false, hop_limit: 1, tokens_required: true }
    }
}

/// A volume of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlockDevice {
    /// Device name, such as `/dev/xvda`.
    pub name: String,
    /// Size in GiB; `None` means the size of the snapshot.
    pub gib: Option<i32>,
    /// Volume type, such as `gp3`.
    pub kind: Option<String>,
    /// I/O operations per second.
    pub iops: Option<i32>,
    /// Throughput in MiB per second.
    pub throughput: Option<i32>,
    /// True if the volume is encrypted.
    pub encrypted: Option<bool>,
    /// KMS key for the encryption.
    pub kms_key: Option<String>,
    /// Snapshot from which the volume is created.
    pub snapshot: Option<String>,
    /// True if the volume is deleted with its instance; `None` means true.
    pub delete_on_termination: Option<bool>,
}
