//! What the words of node classes come to in EC2, and what each machine was made with.
//!
//! A class says `al2023@latest`, or the tags of subnets; which image and which subnets that means changes while the
//! words stay. Invariant: what is not known is absent, never empty, so that nobody takes it for a difference.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ids::{ImageId, LabelKey, LabelValue, SecurityGroupId, SubnetId};

/// What words of node classes come to; of each only what was found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Resolved {
    /// Images, by what a class calls them ([`crate::manifest::NodeClass::image`]).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub images: BTreeMap<String, Vec<ImageChoice>>,
    /// Subnets, by the terms of a class in words ([`crate::manifest::in_words`]).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub subnets: BTreeMap<String, BTreeSet<SubnetId>>,
    /// Security groups, by the terms of a class in words.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub security_groups: BTreeMap<String, BTreeSet<SecurityGroupId>>,
    /// When the oldest of it was asked for; absent where it says what is so now. Of a machine that is younger nothing can
    /// be told by it: whoever launched it may have known better.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_at: Option<Timestamp>,
    /// What was asked for and could not be found out.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub unread: BTreeSet<Unread>,
}

/// The image that machines of some hardware are launched from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageChoice {
    /// Id.
    pub id: ImageId,
    /// The machines.
    #[serde(flatten)]
    pub hardware: Hardware,
}

/// Words that could not be looked up.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unread {
    /// What they are about.
    pub part: Part,
    /// The words.
    pub words: String,
    /// Why.
    pub reason: String,
}

/// What words of a node class are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The image.
    Image,
    /// Subnets.
    Subnets,
    /// Security groups.
    SecurityGroups,
}

impl Part {
    /// Returns it as people call it.
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
    /// Returns whether nothing is known, nor was asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether another says the same, whenever either was asked for.
    #[must_use]
    pub fn says_the_same(&self, other: &Self) -> bool {
        let Self { images, subnets, security_groups, asked_at: _, unread } = self;
        *images == other.images
            && *subnets == other.subnets
            && *security_groups == other.security_groups
            && *unread == other.unread
    }

    /// Returns the image that machines of such hardware are launched from; `None` where that is not known.
    #[must_use]
    pub fn image(&self, words: &str, hardware: Hardware) -> Option<&ImageId> {
        let choices = self.images.get(words)?;
        choices.iter().find(|choice| choice.hardware == hardware).map(|choice| &choice.id)
    }
}

/// What an instance was made with, as EC2 tells of it; what it does not tell is absent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MadeWith {
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

impl MadeWith {
    /// Returns whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What a machine must be for an image to boot on it, and to be of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Hardware {
    /// Processor architecture.
    pub arch: Arch,
    /// What it has beside its processor.
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

/// What a machine has beside its processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accelerator {
    /// Nothing that an image is made for.
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
    /// All that images are published for.
    pub const ALL: [Self; 6] = [
        Self { arch: Arch::Amd64, accelerator: Accelerator::None },
        Self { arch: Arch::Amd64, accelerator: Accelerator::Nvidia },
        Self { arch: Arch::Amd64, accelerator: Accelerator::Neuron },
        Self { arch: Arch::Arm64, accelerator: Accelerator::None },
        Self { arch: Arch::Arm64, accelerator: Accelerator::Nvidia },
        Self { arch: Arch::Arm64, accelerator: Accelerator::Neuron },
    ];

    /// Returns what a machine is by the labels of its type, which its nodes have as well.
    #[must_use]
    pub fn of(labels: &BTreeMap<LabelKey, LabelValue>) -> Self {
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
    fn who_asked_at_another_time_says_the_same_and_who_found_or_missed_something_does_not() {
        let known = Resolved { asked_at: Some(Timestamp::MIN), ..Resolved::default() };
        let later = Resolved { asked_at: Some(Timestamp::MAX), ..Resolved::default() };
        assert!(known.says_the_same(&later));
        let found = [("tag a=b".to_owned(), ["sg-1".into()].into())].into();
        assert!(!known.says_the_same(&Resolved { security_groups: found, ..known.clone() }));
        let (words, reason) = ("tag a=b".to_owned(), "AccessDenied".to_owned());
        let unread = [Unread { part: Part::Subnets, words, reason }].into();
        assert!(!known.says_the_same(&Resolved { unread, ..known.clone() }));
    }
}
