//! Images, subnets and security groups: the resolved objects of node classes, and the objects of
//! each instance at launch.
//!
//! A node class contains terms such as `al2023@latest` or subnet tags. Terms resolve to different
//! objects over time. Invariant: unknown values are absent instead of empty, so that they never
//! count as drift.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::ids::{ImageId, LabelKey, LabelValue, SecurityGroupId, SubnetId};

/// Resolved objects of the terms of node classes. Unknown terms are absent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Resolved {
    /// Images, by the image term of a class ([`crate::model::desired::NodeClass::image`]).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub images: BTreeMap<String, Vec<ImageChoice>>,
    /// Subnets, by the description of their selectors
    /// ([`crate::model::desired::describe_selectors`]).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub subnets: BTreeMap<String, BTreeSet<SubnetId>>,
    /// Security groups, by the description of their selectors.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub security_groups: BTreeMap<String, BTreeSet<SecurityGroupId>>,
    /// Resolution time of the oldest entry; absent if all entries are current. Instances launched
    /// later cannot be compared, because their launch may have used a newer resolution.
    #[serde(rename = "asked_at", skip_serializing_if = "Option::is_none")]
    pub resolved_at: Option<Timestamp>,
    /// Terms that could not be resolved.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub unread: BTreeSet<UnresolvedTerm>,
}

/// Image for one kind of hardware.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageChoice {
    /// Image ID.
    pub id: ImageId,
    /// Compatible hardware.
    #[serde(flatten)]
    pub hardware: Hardware,
}

/// A term of a node class that could not be resolved.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UnresolvedTerm {
    /// Field of the term.
    pub part: NodeClassField,
    /// The term as declared.
    pub words: String,
    /// Reason of the failure.
    pub reason: String,
}

/// A field of a node class that resolves to EC2 objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeClassField {
    /// Image.
    Image,
    /// Subnets.
    Subnets,
    /// Security groups.
    SecurityGroups,
}

impl NodeClassField {
    /// Returns the human-readable name of the field.
    pub fn words(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Subnets => "subnets",
            Self::SecurityGroups => "security groups",
        }
    }
}

impl Resolved {
    /// Returns true if there are neither resolved nor unresolved terms.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if both are equal, ignoring the resolution time.
    pub fn has_same_content(&self, other: &Self) -> bool {
        let Self { images, subnets, security_groups, resolved_at: _, unread } = self;
        *images == other.images
            && *subnets == other.subnets
            && *security_groups == other.security_groups
            && *unread == other.unread
    }

    /// Returns the image of an image term for `hardware`; `None` if unknown.
    pub fn image(&self, words: &str, hardware: Hardware) -> Option<&ImageId> {
        let choices = self.images.get(words)?;
        choices.iter().find(|choice| choice.hardware == hardware).map(|choice| &choice.id)
    }
}

/// Image, subnet and security groups of an instance, as reported by EC2. Unknown values are absent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LaunchedWith {
    /// Image at launch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageId>,
    /// Subnet at launch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subnet: Option<SubnetId>,
    /// Current security groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_groups: Option<BTreeSet<SecurityGroupId>>,
}

impl LaunchedWith {
    /// Returns true if all values are unknown.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Hardware for which an image is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Hardware {
    /// Processor architecture.
    pub arch: Arch,
    /// Accelerator.
    #[serde(default, skip_serializing_if = "Accelerator::is_none")]
    pub accelerator: Accelerator,
}

/// Processor architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arch {
    /// `amd64`.
    Amd64,
    /// `arm64`.
    Arm64,
}

/// Accelerator of an instance type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accelerator {
    /// No accelerator that requires a special image.
    #[default]
    None,
    /// NVIDIA GPU.
    Nvidia,
    /// AWS Inferentia or Trainium.
    Neuron,
}

impl Accelerator {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

impl Hardware {
    /// All kinds of hardware for which images are published.
    pub const ALL: [Self; 6] = [
        Self { arch: Arch::Amd64, accelerator: Accelerator::None },
        Self { arch: Arch::Amd64, accelerator: Accelerator::Nvidia },
        Self { arch: Arch::Amd64, accelerator: Accelerator::Neuron },
        Self { arch: Arch::Arm64, accelerator: Accelerator::None },
        Self { arch: Arch::Arm64, accelerator: Accelerator::Nvidia },
        Self { arch: Arch::Arm64, accelerator: Accelerator::Neuron },
    ];

    /// Returns the hardware from the labels of an instance type or node.
    pub fn from_labels(labels: &BTreeMap<LabelKey, LabelValue>) -> Self {
        let has = |key: &str| labels.contains_key(key);
        let arch = match labels.get("kubernetes.io/arch").map(LabelValue::as_str) {
            Some("arm64") => Arch::Arm64,
            _ => Arch::Amd64,
        };
        let manufacturer = labels.get("karpenter.k8s.aws/instance-gpu-manufacturer");
        let accelerator = match manufacturer.map(LabelValue::as_str) {
            Some("nvidia") => Accelerator::Nvidia,
            _ if has("karpenter.k8s.aws/instance-accelerator-name") => Accelerator::Neuron,
            _ => Accelerator::None,
        };
        Self { arch, accelerator }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_comparison_ignores_resolution_time() {
        let known = Resolved { resolved_at: Some(Timestamp::MIN), ..Resolved::default() };
        let later = Resolved { resolved_at: Some(Timestamp::MAX), ..Resolved::default() };
        assert!(known.has_same_content(&later));
        let found = [("tag a=b".to_owned(), ["sg-1".into()].into())].into();
        assert!(!known.has_same_content(&Resolved { security_groups: found, ..known.clone() }));
        let (words, reason) = ("tag a=b".to_owned(), "AccessDenied".to_owned());
        let unread = [UnresolvedTerm { part: NodeClassField::Subnets, words, reason }].into();
        assert!(!known.has_same_content(&Resolved { unread, ..known.clone() }));
    }
}
