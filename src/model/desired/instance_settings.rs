//! EC2 settings of a node class: a launch needs them, and no plan depends on them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// EC2 settings of the instances of a node class.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InstanceSettings {
    /// Subnet selectors; a subnet that any of them selects may be used.
    pub subnets: Vec<Ec2Selector>,
    /// Security group selectors; every group that any of them selects is used.
    pub security_groups: Vec<Ec2Selector>,
    /// Image terms; the newest compatible image that any of them selects is used.
    pub images: Vec<ImageTerm>,
    /// The instance profile, or the role by which it is found.
    pub identity: Identity,
    /// User data, which an instance runs at its first boot.
    pub user_data: Option<UserData>,
    /// Options of the instance metadata service.
    pub metadata: MetadataOptions,
    /// Volumes, in the order written; empty means the defaults of the AMI family.
    pub devices: Vec<BlockDevice>,
    /// Whether instances get a public address; `None` leaves it to the subnet.
    pub public_address: Option<bool>,
    /// Whether detailed (per-minute) metrics are enabled.
    pub detailed_monitoring: bool,
}

/// Text that may hold secrets: `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct UserData(Arc<str>);

impl UserData {
    /// Wraps a text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the text, for the launch call alone.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for UserData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserData(not shown)")
    }
}

/// The IAM identity of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Identity {
    /// Nothing is stated.
    #[default]
    None,
    /// An instance profile of this name.
    Profile(String),
    /// The instance profile that holds this role.
    Role(String),
}

/// Selects EC2 objects: every stated condition must hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ec2Selector {
    /// Id.
    pub id: Option<String>,
    /// Name (of a security group, not its tag).
    pub name: Option<String>,
    /// Tags; the value `*` means any.
    pub tags: BTreeMap<String, String>,
}

/// Returns a description of selectors; equal selectors have equal descriptions.
#[must_use]
pub fn describe_selectors(selectors: &[Ec2Selector]) -> String {
    let words = |selector: &Ec2Selector| {
        let tags = selector.tags.iter().map(|(key, value)| format!("tag {key}={value}"));
        let id = selector.id.iter().map(|id| format!("id {id}"));
        let name = selector.name.iter().map(|name| format!("name {name}"));
        id.chain(name).chain(tags).collect::<Vec<_>>().join(" and ")
    };
    selectors.iter().map(words).collect::<Vec<_>>().join(", or ")
}

/// Selects images.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImageTerm {
    /// The image that AWS publishes for a family and version, such as `al2023@latest`.
    Alias {
        /// Family, such as `al2023`.
        family: String,
        /// Version, or `latest`.
        version: String,
    },
    /// The image whose id a parameter of the Systems Manager holds.
    Parameter(String),
    /// Images that a selector selects, of an owner (`None`: this account or Amazon).
    Owned(Ec2Selector, Option<String>),
}

/// Options of the instance metadata service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataOptions {
    /// Whether the endpoint is enabled.
    pub enabled: bool,
    /// Whether the IPv6 endpoint is enabled.
    pub ipv6: bool,
    /// Hop limit of responses.
    pub hop_limit: i32,
    /// Whether a session token is required.
    pub tokens_required: bool,
}

impl Default for MetadataOptions {
    /// Karpenter's defaults: pods cannot reach it.
    fn default() -> Self {
        Self { enabled: true, ipv6: false, hop_limit: 1, tokens_required: true }
    }
}

/// A volume of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlockDevice {
    /// Name of the device, such as `/dev/xvda`.
    pub name: String,
    /// Size in GiB; `None` leaves it to the snapshot.
    pub gib: Option<i32>,
    /// Type, such as `gp3`.
    pub kind: Option<String>,
    /// Operations per second.
    pub iops: Option<i32>,
    /// Throughput in MiB per second.
    pub throughput: Option<i32>,
    /// Whether it is encrypted.
    pub encrypted: Option<bool>,
    /// Key that it is encrypted with.
    pub kms_key: Option<String>,
    /// Snapshot that it is created from.
    pub snapshot: Option<String>,
    /// Whether it is deleted with its instance; `None` means yes.
    pub delete_on_termination: Option<bool>,
}
