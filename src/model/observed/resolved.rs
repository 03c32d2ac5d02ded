//! Images, subnets and security groups: those that node classes resolve to in EC2, and those that
//! each instance was launched with.
//!
//! A class names `al2023@latest`, or the tags of subnets; these terms resolve to other objects over
//! time. Invariant: unknown values are absent, never empty, so that they cannot count as drift.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::ids::{ImageId, LabelKey, LabelValue, SecurityGroupId, SubnetId};

/// The objects that terms of node classes resolve to; only those that were found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Resolved {
    /// Images, by the image term of a class ([`crate::model::desired::NodeClass::image`]).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub images: BTreeMap<String, Vec<ImageChoice>>,
    /// Subnets, by described selectors ([`crate::model::desired::describe_selectors`]).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub subnets: BTreeMap<String, BTreeSet<SubnetId>>,
    /// Security groups, by described selectors.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub security_groups: BTreeMap<String, BTreeSet<SecurityGroupId>>,
    /// When the oldest entry was resolved; absent if all are current. Younger instances cannot be
    /// compared with it: their launch may have used a newer resolution.
    #[serde(rename = "asked_at", skip_serializing_if = "Option::is_none")]
    pub resolved_at: Option<Timestamp>,
    /// Terms that could not be resolved.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub unread: BTreeSet<UnresolvedTerm>,
}

/// The image for instances of some hardware.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageChoice {
    /// Id.
    pub id: ImageId,
    /// The hardware that it boots on.
    #[serde(flatten)]
    pub hardware: Hardware,
}

/// A term of a node class that could not be resolved.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UnresolvedTerm {
    /// The field that holds it.
    pub part: NodeClassField,
    /// The term.
    pub words: String,
    /// Why not.
    pub reason: String,
}

/// A field of a node class that resolves to EC2 objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeClassField {
    /// The image.
    Image,
    /// Subnets.
    Subnets,
    /// Security groups.
    SecurityGroups,
}

impl NodeClassField {
    /// Returns the name of the field for people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Subnets => "subnets",
            Self::SecurityGroups => "security groups",
        }
    }
}

impl Resolved {
    /// Returns whether nothing was resolved or failed to resolve.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether both are equal, apart from the time of resolution.
    #[must_use]
    pub fn has_same_content(&self, other: &Self) -> bool {
        let Self { images, subnets, security_groups, resolved_at: _, unread } = self;
        *images == other.images
            && *subnets == other.subnets
            && *security_groups == other.security_groups
            && *unread == other.unread
    }

    /// Returns the image for `hardware`; `None` if unknown.
    #[must_use]
    pub fn image(&self, words: &str, hardware: Hardware) -> Option<&ImageId> {
        let choices = self.images.get(words)?;
        choices.iter().find(|choice| choice.hardware == hardware).map(|choice| &choice.id)
    }
}

/// Objects that an instance was launched with, as EC2 reports them; unknown ones are absent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LaunchedWith {
    /// The image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageId>,
    /// The subnet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subnet: Option<SubnetId>,
    /// The security groups that it has now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_groups: Option<BTreeSet<SecurityGroupId>>,
}

impl LaunchedWith {
    /// Returns whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The hardware that an image is built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Hardware {
    /// Processor architecture.
    pub arch: Arch,
    /// Its accelerator.
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

/// The accelerator of an instance type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accelerator {
    /// None that images are built for.
    #[default]
    None,
    /// GPUs of NVIDIA.
    Nvidia,
    /// Inferentia or Trainium.
    Neuron,
}

impl Accelerator {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

impl Hardware {
    /// All hardware that images are published for.
    pub const ALL: [Self; 6] = [
        Self { arch: Arch::Amd64, accelerator: Accelerator::None },
        Self { arch: Arch::Amd64, accelerator: Accelerator::Nvidia },
        Self { arch: Arch::Amd64, accelerator: Accelerator::Neuron },
        Self { arch: Arch::Arm64, accelerator: Accelerator::None },
        Self { arch: Arch::Arm64, accelerator: Accelerator::Nvidia },
        Self { arch: Arch::Arm64, accelerator: Accelerator::Neuron },
    ];

    /// Returns the hardware by the labels of an instance type, which its nodes have as well.
    #[must_use]
    pub fn from_labels(labels: &BTreeMap<LabelKey, LabelValue>) -> Self {
        let has = |key: &str| labels.contains_key(key);
        let arch = match labels.get("kubernetes.io/arch").map(LabelValue::as_str) {
            Some("arm64") => Arch::Arm64,
            _ => Arch::Amd64,
        };
        let maker = labels.get("karpenter.k8s.aws/instance-gpu-manufacturer");
        let accelerator = match maker.map(LabelValue::as_str) {
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
