//! Images: what an alias such as `al2023@latest` is today, and what terms select.

use std::collections::BTreeMap;

use aws_sdk_ec2::error::ProvideErrorMetadata as _;
use aws_sdk_ec2::types::{ArchitectureValues, Image, ImageState};

use super::client::{Aws, AwsError};
use super::fault::port_error;
use super::limiter::Api;
use super::network::{filters, shown};
use crate::fleet::{Accelerator, Arch, Hardware, ImageChoice};
use crate::manifest::{ImageTerm, MachineSelector as Selector};

/// Code by which the Systems Manager says that there is no such parameter.
const NO_SUCH_PARAMETER: &str = "ParameterNotFound";

/// Returns the architecture as EC2 spells it.
fn of_ec2(arch: Arch) -> &'static str {
    match arch {
        Arch::Amd64 => "x86_64",
        Arch::Arm64 => "arm64",
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
    let cpu = of_ec2(arch);
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
        match alias(terms) {
            Some(alias) => self.published(alias, hardware, kubernetes).await,
            None => newest(&self.selected(terms).await?, hardware.arch)
                .ok_or_else(|| none_selected(terms, hardware.arch)),
        }
    }

    /// Returns the image that `terms` select, for all hardware that there is one for; `kubernetes` is the version, or
    /// why it is not known.
    ///
    /// # Errors
    /// When one cannot be read, or there is none at all.
    pub(super) async fn images_of(
        &self,
        terms: &[ImageTerm],
        kubernetes: Result<&str, &str>,
    ) -> Result<Vec<ImageChoice>, AwsError> {
        let choice = |hardware, id: String| ImageChoice { id: id.into(), hardware };
        let Some(alias) = alias(terms) else {
            let found = self.selected(terms).await?;
            let newest =
                |hardware: Hardware| Some(choice(hardware, newest(&found, hardware.arch)?));
            let choices: Vec<_> = Hardware::ALL.into_iter().filter_map(newest).collect();
            let none = || none_selected(terms, Arch::Amd64);
            return if choices.is_empty() { Err(none()) } else { Ok(choices) };
        };
        let kubernetes = kubernetes.map_err(|why| AwsError::Missing(why.to_owned()))?;
        // Kinds of hardware may share an image.
        let mut known: BTreeMap<String, Option<String>> = BTreeMap::new();
        let (mut choices, mut missing) = (Vec::new(), None);
        for hardware in Hardware::ALL {
            let Some(path) = parameter(alias, hardware, kubernetes) else { continue };
            let id = if let Some(id) = known.get(&path) {
                id.clone()
            } else {
                let id = match self.parameter(&path).await {
                    Ok(id) => Some(id),
                    Err(error @ AwsError::Missing(_)) => {
                        missing = missing.or(Some(error));
                        None
                    }
                    Err(error @ AwsError::Port(_)) => return Err(error),
                };
                known.entry(path).or_insert(id).clone()
            };
            choices.extend(id.map(|id| choice(hardware, id)));
        }
        if choices.is_empty() {
            return Err(missing.unwrap_or_else(|| none_published(alias, Arch::Amd64)));
        }
        Ok(choices)
    }

    /// Returns the image that AWS publishes for an alias.
    async fn published(
        &self,
        alias: (&str, &str),
        hardware: Hardware,
        kubernetes: &str,
    ) -> Result<String, AwsError> {
        let path = parameter(alias, hardware, kubernetes);
        self.parameter(&path.ok_or_else(|| none_published(alias, hardware.arch))?).await
    }

    /// Returns all images that terms without an alias select.
    async fn selected(&self, terms: &[ImageTerm]) -> Result<Vec<Image>, AwsError> {
        let mut found = Vec::new();
        for term in terms {
            match term {
                ImageTerm::Alias { .. } => {}
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
        Ok(found)
    }

    async fn parameter(&self, path: &str) -> Result<String, AwsError> {
        self.limiter.take(Api::Parameter).await;
        let read = self.ssm.get_parameter().name(path).send().await;
        let read = match read {
            Err(error) if error.code() == Some(NO_SUCH_PARAMETER) => {
                return Err(AwsError::Missing(format!(
                    "there is no parameter {path} ({NO_SUCH_PARAMETER})"
                )));
            }
            read => read.map_err(|error| port_error(&format!("read parameter {path}"), &error))?,
        };
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

/// Returns family and version, where terms are an alias.
fn alias(terms: &[ImageTerm]) -> Option<(&str, &str)> {
    let mut aliases = terms.iter().filter_map(|term| match term {
        ImageTerm::Alias { family, version } => Some((family.as_str(), version.as_str())),
        ImageTerm::Parameter(_) | ImageTerm::Owned(..) => None,
    });
    aliases.next()
}

/// Returns the newest image for an architecture; of two of one moment the one whose id comes later, so that it is
/// always one. One that is still being made is none yet.
fn newest(found: &[Image], arch: Arch) -> Option<String> {
    let fits = |image: &&Image| {
        let of = image.architecture.as_ref().map(ArchitectureValues::as_str);
        let is_made = image.state.as_ref().is_none_or(|state| *state == ImageState::Available);
        of == Some(of_ec2(arch)) && is_made
    };
    let fitting = found.iter().filter(fits);
    let newest = fitting.max_by_key(|image| (image.creation_date.clone(), image.image_id.clone()));
    newest.and_then(|image| image.image_id.clone())
}

fn none_selected(terms: &[ImageTerm], arch: Arch) -> AwsError {
    let selectors = terms.iter().filter_map(|term| match term {
        ImageTerm::Owned(selector, _) => Some(selector.clone()),
        ImageTerm::Alias { .. } | ImageTerm::Parameter(_) => None,
    });
    let selectors: Vec<Selector> = selectors.collect();
    let arch = of_ec2(arch);
    AwsError::Missing(format!("no image for {arch} is selected by {}", shown(&selectors)))
}

fn none_published((family, version): (&str, &str), arch: Arch) -> AwsError {
    let arch = of_ec2(arch);
    AwsError::Missing(format!("there is no image {family}@{version} for {arch}"))
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
