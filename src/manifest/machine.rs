//! How the machines of a node class are set up in EC2: what no plan depends on, and a launch needs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// How the machines of a node class are set up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// Subnets; one that any of the terms selects may be used.
    pub subnets: Vec<Selector>,
    /// Security groups; every one that any of the terms selects is used.
    pub security_groups: Vec<Selector>,
    /// Images; of those that any of the terms selects the newest that fits is used.
    pub images: Vec<ImageTerm>,
    /// The instance profile, or the role that one is looked up by.
    pub identity: Identity,
    /// What an instance runs at its first start.
    pub user_data: Option<UserData>,
    /// How the instance metadata service answers.
    pub metadata: MetadataOptions,
    /// Volumes, in the order written; empty means what the family has.
    pub devices: Vec<BlockDevice>,
    /// Whether instances get a public address; `None` leaves it to the subnet.
    pub public_address: Option<bool>,
    /// Whether metrics come every minute.
    pub detailed_monitoring: bool,
}

/// Text that may hold secrets: it can be used, and not be printed.
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

/// Who an instance is to AWS.
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

/// Selects objects of EC2: all that it states must hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Selector {
    /// Id.
    pub id: Option<String>,
    /// Name (of a security group, not its tag).
    pub name: Option<String>,
    /// Tags; the value `*` means any.
    pub tags: BTreeMap<String, String>,
}

/// Returns selectors in words, the same for the same ones.
#[must_use]
pub fn in_words(selectors: &[Selector]) -> String {
    let words = |selector: &Selector| {
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
    Owned(Selector, Option<String>),
}

/// How the instance metadata service answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataOptions {
    /// Whether it answers at all.
    pub enabled: bool,
    /// Whether it answers over IPv6.
    pub ipv6: bool,
    /// How many hops an answer may travel.
    pub hop_limit: i32,
    /// Whether a session token is required.
    pub tokens_required: bool,
}

impl Default for MetadataOptions {
    /// Karpenter's defaults: pods do not reach it.
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
    /// Snapshot that it begins as.
    pub snapshot: Option<String>,
    /// Whether it goes with its instance; it does unless stated.
    pub delete_on_termination: Option<bool>,
}
