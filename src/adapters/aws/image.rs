//! Images: resolves aliases such as `al2023@latest` and image selector terms.

use std::collections::BTreeMap;

use aws_sdk_ec2::error::ProvideErrorMetadata as _;
use aws_sdk_ec2::types::{ArchitectureValues, Image, ImageState};
use jiff::Timestamp;

use super::client::Aws;
use super::errors::{AwsError, port_error};
use super::network::{describe_selectors, filters};
use super::rate_limiter::ApiBucket;
use crate::model::desired::{Ec2Selector as Selector, ImageTerm};
use crate::model::observed::{Accelerator, Arch, Hardware, ImageChoice};

/// Error code of Systems Manager for a missing parameter.
const NO_SUCH_PARAMETER: &str = "ParameterNotFound";

/// An image that AWS publishes, by family and version.
#[derive(Debug, Clone, Copy)]
pub(super) struct ImageAlias<'a> {
    family: &'a str,
    version: &'a str,
}

fn ec2_arch(arch: Arch) -> &'static str {
    match arch {
        Arch::Amd64 => "x86_64",
        Arch::Arm64 => "arm64",
    }
}

/// Returns the Systems Manager parameter with the ID of the published image of a family and
/// version, or `None` if AWS publishes none for the hardware. `kubernetes` is a version such as
/// `1.33`.
///
/// Source: EKS user guide, "retrieve AMI IDs"; Bottlerocket's README.
pub(super) fn ssm_parameter_path(
    alias: ImageAlias<'_>,
    hardware: Hardware,
    kubernetes: &str,
) -> Option<String> {
    let ImageAlias { family, version } = alias;
    let Hardware { arch, accelerator } = hardware;
    let cpu = ec2_arch(arch);
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
    /// Returns the ID of the image that `terms` select for the hardware.
    ///
    /// # Errors
    /// Returns an error if the lookup fails or no image matches.
    pub(super) async fn resolve_image(
        &self,
        terms: &[ImageTerm],
        hardware: Hardware,
        kubernetes: &str,
    ) -> Result<String, AwsError> {
        match alias(terms) {
            Some(alias) => self.published_image(alias, hardware, kubernetes).await,
            None => newest(&self.selected_images(terms).await?, hardware.arch)
                .ok_or_else(|| no_image_selected(terms, hardware.arch)),
        }
    }

    /// Returns the images that `terms` select, one for each hardware that has an image.
    /// `kubernetes` is the version, or the reason that it is unknown.
    ///
    /// # Errors
    /// Returns an error if a lookup fails or no image matches at all.
    pub(super) async fn resolve_images(
        &self,
        terms: &[ImageTerm],
        kubernetes: Result<&str, &str>,
    ) -> Result<Vec<ImageChoice>, AwsError> {
        let choice = |hardware, id: String| ImageChoice { id: id.into(), hardware };
        let Some(alias) = alias(terms) else {
            let found = self.selected_images(terms).await?;
            let newest =
                |hardware: Hardware| Some(choice(hardware, newest(&found, hardware.arch)?));
            let choices: Vec<_> = Hardware::ALL.into_iter().filter_map(newest).collect();
            let none = || no_image_selected(terms, Arch::Amd64);
            return if choices.is_empty() { Err(none()) } else { Ok(choices) };
        };
        let kubernetes = kubernetes.map_err(|why| AwsError::Missing(why.to_owned()))?;
        // Several kinds of hardware may share an image.
        let mut known: BTreeMap<String, Option<String>> = BTreeMap::new();
        let (mut choices, mut missing) = (Vec::new(), None);
        for hardware in Hardware::ALL {
            let Some(path) = ssm_parameter_path(alias, hardware, kubernetes) else { continue };
            let id = if let Some(id) = known.get(&path) {
                id.clone()
            } else {
                let id = match self.read_parameter(&path).await {
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
            return Err(missing.unwrap_or_else(|| no_image_published(alias, Arch::Amd64)));
        }
        Ok(choices)
    }

    async fn published_image(
        &self,
        alias: ImageAlias<'_>,
        hardware: Hardware,
        kubernetes: &str,
    ) -> Result<String, AwsError> {
        let path = ssm_parameter_path(alias, hardware, kubernetes);
        self.read_parameter(&path.ok_or_else(|| no_image_published(alias, hardware.arch))?).await
    }

    /// Returns all images that the terms select, apart from aliases. A term whose parameter does not
    /// exist selects none.
    ///
    /// # Errors
    /// Returns an error if a lookup fails, or if no term selects an image and a parameter is missing.
    async fn selected_images(&self, terms: &[ImageTerm]) -> Result<Vec<Image>, AwsError> {
        let (mut found, mut missing) = (Vec::new(), None);
        for term in terms {
            match term {
                ImageTerm::Alias { .. } => {}
                ImageTerm::Parameter(path) => {
                    let id = match self.read_parameter(path).await {
                        Ok(id) => id,
                        Err(error @ AwsError::Missing(_)) => {
                            missing = missing.or(Some(error));
                            continue;
                        }
                        Err(error @ AwsError::Port(_)) => return Err(error),
                    };
                    let by_id = Selector { id: Some(id), ..Selector::default() };
                    found.extend(self.describe_images(&by_id, None).await?);
                }
                ImageTerm::Owned(selector, owner) => {
                    found.extend(self.describe_images(selector, owner.as_deref()).await?);
                }
            }
        }
        match missing.filter(|_| found.is_empty()) {
            Some(error) => Err(error),
            None => Ok(found),
        }
    }

    async fn read_parameter(&self, path: &str) -> Result<String, AwsError> {
        self.limiter.acquire(ApiBucket::Parameter).await;
        let read = self.ssm.get_parameter().name(path).send().await;
        let read = match read {
            Err(error) if error.code() == Some(NO_SUCH_PARAMETER) => {
                return Err(AwsError::Missing(format!(
                    "parameter {path} does not exist ({NO_SUCH_PARAMETER})"
                )));
            }
            read => read.map_err(|error| port_error(&format!("read parameter {path}"), &error))?,
        };
        let value = read.parameter.and_then(|parameter| parameter.value);
        value.ok_or_else(|| AwsError::Missing(format!("parameter {path} has no value")))
    }

    async fn describe_images(
        &self,
        selector: &Selector,
        owner: Option<&str>,
    ) -> Result<Vec<Image>, AwsError> {
        let owners: &[&str] = match owner {
            Some(_) => &[],
            // A name may be that of a foreign image, so it needs a trusted owner. Tags are our own.
            // Source: karpenter-provider-aws, `pkg/providers/amifamily/ami.go`.
            None if selector.name.is_none() || selector.id.is_some() => &[],
            None => &["self", "amazon"],
        };
        let owners = owners.iter().copied().chain(owner).map(str::to_owned).collect();
        let request = self
            .ec2
            .describe_images()
            // Images in use may be deprecated, and EC2 hides those of other owners.
            .include_deprecated(true)
            .set_filters(Some(filters(selector, "image-id", "name")))
            .set_owners(Some(owners));
        let (mut pages, mut images) = (request.into_paginator().send(), Vec::new());
        loop {
            self.limiter.acquire(ApiBucket::Describe).await;
            let Some(page) = pages.next().await else { return Ok(images) };
            let page = page.map_err(|error| port_error("list images", &error))?;
            images.extend(page.images.unwrap_or_default());
        }
    }
}

/// Returns the first alias in `terms`.
fn alias(terms: &[ImageTerm]) -> Option<ImageAlias<'_>> {
    let mut aliases = terms.iter().filter_map(|term| match term {
        ImageTerm::Alias { family, version } => Some(ImageAlias { family, version }),
        ImageTerm::Parameter(_) | ImageTerm::Owned(..) => None,
    });
    aliases.next()
}

/// Returns the newest available image for an architecture; a deprecated one if there is no other.
/// Ties are broken by the higher ID, so that the result is deterministic.
fn newest(found: &[Image], arch: Arch) -> Option<String> {
    let fits = |image: &&Image| {
        let of = image.architecture.as_ref().map(ArchitectureValues::as_str);
        let is_made = image.state.as_ref().is_none_or(|state| *state == ImageState::Available);
        of == Some(ec2_arch(arch)) && is_made
    };
    let fitting = found.iter().filter(fits);
    let now = Timestamp::now();
    let newest = fitting.max_by_key(|image| {
        let deprecated_at = image.deprecation_time.as_deref().and_then(|at| at.parse().ok());
        let is_current = deprecated_at.is_none_or(|at: Timestamp| at > now);
        (is_current, image.creation_date.clone(), image.image_id.clone())
    });
    newest.and_then(|image| image.image_id.clone())
}

fn no_image_selected(terms: &[ImageTerm], arch: Arch) -> AwsError {
    let selectors = terms.iter().filter_map(|term| match term {
        ImageTerm::Owned(selector, _) => Some(selector.clone()),
        ImageTerm::Alias { .. } | ImageTerm::Parameter(_) => None,
    });
    let selectors: Vec<Selector> = selectors.collect();
    let arch = ec2_arch(arch);
    AwsError::Missing(format!(
        "no image for {arch} is selected by {}",
        describe_selectors(&selectors)
    ))
}

fn no_image_published(alias: ImageAlias<'_>, arch: Arch) -> AwsError {
    let ImageAlias { family, version } = alias;
    let arch = ec2_arch(arch);
    AwsError::Missing(format!("image {family}@{version} does not exist for {arch}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deprecated_image_is_used_if_there_is_no_other() {
        let image = |id: &str, created: &str, deprecated: Option<&str>| {
            let image = Image::builder().image_id(id).creation_date(created);
            let image = image.architecture(ArchitectureValues::X8664);
            image.set_deprecation_time(deprecated.map(str::to_owned)).build()
        };
        let old = image("ami-1", "2023-01-01T00:00:00.000Z", None);
        let new = image("ami-2", "2024-01-01T00:00:00.000Z", Some("2025-01-01T00:00:00.000Z"));
        let later = image("ami-3", "2023-06-01T00:00:00.000Z", Some("2999-01-01T00:00:00.000Z"));
        let of = |images: &[&Image]| {
            let images: Vec<Image> = images.iter().map(|image| (*image).clone()).collect();
            newest(&images, Arch::Amd64)
        };
        assert_eq!(of(&[&old, &new]).as_deref(), Some("ami-1"));
        assert_eq!(of(&[&old, &new, &later]).as_deref(), Some("ami-3"));
        assert_eq!(of(&[&new]).as_deref(), Some("ami-2"));
    }

    #[test]
    fn aliases_map_to_published_parameters() {
        let plain = Hardware { arch: Arch::Amd64, accelerator: Accelerator::None };
        let arm = Hardware { arch: Arch::Arm64, ..plain };
        let gpu = Hardware { accelerator: Accelerator::Nvidia, ..plain };
        let eks = "/aws/service/eks/optimized-ami/1.33";
        for ((family, version), hardware, expected) in [
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
            let alias = ImageAlias { family, version };
            assert_eq!(
                ssm_parameter_path(alias, hardware, "1.33"),
                expected,
                "{alias:?} {hardware:?}"
            );
        }
    }
}
