//! Images: what an alias such as `al2023@latest` is today, and what terms select.

use std::collections::BTreeMap;

use aws_sdk_ec2::types::{ArchitectureValues, Image};

use super::client::{Aws, AwsError};
use super::fault::port_error;
use super::limiter::Api;
use super::network::{filters, shown};
use crate::manifest::{ImageTerm, MachineSelector as Selector};

/// What a machine must be for an image to boot on it, and to be of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Hardware {
    pub(super) arch: Arch,
    pub(super) accelerator: Accelerator,
}

/// Processor architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Arch {
    Amd64,
    Arm64,
}

/// What a machine has beside its processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Accelerator {
    None,
    Nvidia,
    Neuron,
}

impl Arch {
    /// Returns the architecture as EC2 spells it.
    fn of_ec2(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "arm64",
        }
    }
}

/// Returns the parameter of the Systems Manager that holds the id of the image AWS publishes for a
/// family and version; `None` where AWS publishes none for such hardware.
///
/// Source: EKS user guide, "retrieve AMI IDs"; Bottlerocket's README; `kubernetes` is like `1.33`.
pub(super) fn parameter(
    (family, version): (&str, &str),
    hardware: Hardware,
    kubernetes: &str,
) -> Option<String> {
    let Hardware { arch, accelerator } = hardware;
    let cpu = arch.of_ec2();
    let eks = format!("/aws/service/eks/optimized-ami/{kubernetes}");
    let latest = version == "latest";
    let path = match family {
        "al2023" => {
            let variant = match accelerator {
                Accelerator::None => "standard",
                Accelerator::Nvidia => "nvidia",
                Accelerator::Neuron => "neuron",
            };
            let name = if latest {
                "recommended".to_owned()
            } else {
                format!("amazon-eks-node-al2023-{cpu}-{variant}-{kubernetes}-{version}")
            };
            format!("{eks}/amazon-linux-2023/{cpu}/{variant}/{name}/image_id")
        }
        "al2" => {
            let (variant, image) = match (arch, accelerator) {
                (Arch::Amd64, Accelerator::None) => ("amazon-linux-2", "amazon-eks-node"),
                (Arch::Amd64, _) => ("amazon-linux-2-gpu", "amazon-eks-gpu-node"),
                (Arch::Arm64, Accelerator::None) => {
                    ("amazon-linux-2-arm64", "amazon-eks-arm64-node")
                }
                (Arch::Arm64, _) => return None,
            };
            let name = if latest {
                "recommended".to_owned()
            } else {
                format!("{image}-{kubernetes}-{version}")
            };
            format!("{eks}/{variant}/{name}/image_id")
        }
        "bottlerocket" => {
            let variant = match accelerator {
                Accelerator::Nvidia => "-nvidia",
                Accelerator::None | Accelerator::Neuron => "",
            };
            let version = version.trim_start_matches('v');
            format!(
                "/aws/service/bottlerocket/aws-k8s-{kubernetes}{variant}/{cpu}/{version}/image_id"
            )
        }
        "windows2019" | "windows2022" | "windows2025" if arch == Arch::Amd64 => {
            let year = family.trim_start_matches("windows");
            format!(
                "/aws/service/ami-windows-latest/Windows_Server-{year}-English-Core-\
                 EKS_Optimized-{kubernetes}/image_id"
            )
        }
        _ => return None,
    };
    Some(path)
}

impl Aws {
    /// Returns the id of the image that `terms` select for machines of such hardware.
    ///
    /// # Errors
    /// When it cannot be read, or there is none.
    pub(super) async fn image(
        &self,
        terms: &[ImageTerm],
        hardware: Hardware,
        kubernetes: &str,
    ) -> Result<String, AwsError> {
        let mut found = Vec::new();
        for term in terms {
            match term {
                ImageTerm::Alias { family, version } => {
                    let path = parameter((family, version), hardware, kubernetes);
                    let path = path.ok_or_else(|| {
                        let arch = hardware.arch.of_ec2();
                        AwsError::Missing(format!(
                            "there is no image {family}@{version} for {arch}"
                        ))
                    })?;
                    return self.parameter(&path).await;
                }
                ImageTerm::Parameter(path) => {
                    let id = self.parameter(path).await?;
                    let by_id = Selector { id: Some(id), ..Selector::default() };
                    found.extend(self.images(&by_id, None).await?);
                }
                ImageTerm::Owned(selector, owner) => {
                    found.extend(self.images(selector, owner.as_deref()).await?);
                }
            }
        }
        let fits = |image: &&Image| {
            let arch = image.architecture.as_ref().map(ArchitectureValues::as_str);
            arch == Some(hardware.arch.of_ec2())
        };
        // The newest; of two of one moment the one whose id comes later, so that it is always one.
        let newest = found
            .iter()
            .filter(fits)
            .max_by_key(|image| (image.creation_date.clone(), image.image_id.clone()));
        newest.and_then(|image| image.image_id.clone()).ok_or_else(|| {
            let arch = hardware.arch.of_ec2();
            let selectors: Vec<Selector> = terms
                .iter()
                .filter_map(|term| match term {
                    ImageTerm::Owned(selector, _) => Some(selector.clone()),
                    ImageTerm::Alias { .. } | ImageTerm::Parameter(_) => None,
                })
                .collect();
            AwsError::Missing(format!("no image for {arch} is selected by {}", shown(&selectors)))
        })
    }

    async fn parameter(&self, path: &str) -> Result<String, AwsError> {
        self.limiter.take(Api::Other).await;
        let read = self.ssm.get_parameter().name(path).send().await;
        let read = read.map_err(|error| port_error(&format!("read parameter {path}"), &error))?;
        let value = read.parameter.and_then(|parameter| parameter.value);
        value.ok_or_else(|| AwsError::Missing(format!("parameter {path} has no value")))
    }

    async fn images(
        &self,
        selector: &Selector,
        owner: Option<&str>,
    ) -> Result<Vec<Image>, AwsError> {
        let owners: &[&str] = match owner {
            Some(_) => &[],
            // An image by id may be anybody's; by tag or name it is ours or Amazon's.
            None if selector.id.is_some() => &[],
            None => &["self", "amazon"],
        };
        let owners = owners.iter().copied().chain(owner).map(str::to_owned).collect();
        let request = self
            .ec2
            .describe_images()
            .set_filters(Some(filters(selector, "image-id", "name")))
            .set_owners(Some(owners));
        let (mut pages, mut images) = (request.into_paginator().send(), Vec::new());
        loop {
            self.limiter.take(Api::Describe).await;
            let Some(page) = pages.next().await else { return Ok(images) };
            let page = page.map_err(|error| port_error("list images", &error))?;
            images.extend(page.images.unwrap_or_default());
        }
    }
}

/// Returns what every kind of machine must be, by the labels that its nodes have.
pub(super) fn hardware_of(
    labels: &BTreeMap<crate::ids::LabelKey, crate::ids::LabelValue>,
) -> Hardware {
    let has = |key: &str| labels.contains_key(key);
    let arch = match labels.get("kubernetes.io/arch").map(crate::ids::LabelValue::as_str) {
        Some("arm64") => Arch::Arm64,
        _ => Arch::Amd64,
    };
    let maker = labels.get("karpenter.k8s.aws/instance-gpu-manufacturer");
    let accelerator = match maker.map(crate::ids::LabelValue::as_str) {
        Some("nvidia") => Accelerator::Nvidia,
        _ if has("karpenter.k8s.aws/instance-accelerator-name") => Accelerator::Neuron,
        _ => Accelerator::None,
    };
    Hardware { arch, accelerator }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_lead_to_the_parameters_that_aws_publishes() {
        let plain = Hardware { arch: Arch::Amd64, accelerator: Accelerator::None };
        let arm = Hardware { arch: Arch::Arm64, ..plain };
        let gpu = Hardware { accelerator: Accelerator::Nvidia, ..plain };
        let eks = "/aws/service/eks/optimized-ami/1.33";
        for (alias, hardware, expected) in [
            (
                ("al2023", "latest"),
                arm,
                Some(format!("{eks}/amazon-linux-2023/arm64/standard/recommended/image_id")),
            ),
            (
                ("al2023", "v20260101"),
                gpu,
                Some(format!(
                    "{eks}/amazon-linux-2023/x86_64/nvidia/\
                     amazon-eks-node-al2023-x86_64-nvidia-1.33-v20260101/image_id"
                )),
            ),
            (
                ("al2", "latest"),
                gpu,
                Some(format!("{eks}/amazon-linux-2-gpu/recommended/image_id")),
            ),
            (("al2", "latest"), Hardware { arch: Arch::Arm64, ..gpu }, None),
            (
                ("bottlerocket", "v1.50.0"),
                gpu,
                Some("/aws/service/bottlerocket/aws-k8s-1.33-nvidia/x86_64/1.50.0/image_id".into()),
            ),
            (("windows2022", "latest"), arm, None),
        ] {
            assert_eq!(parameter(alias, hardware, "1.33"), expected, "{alias:?} {hardware:?}");
        }
    }
}
