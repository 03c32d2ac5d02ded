//! Dry run of a launch: checks whether permissions and policy conditions allow an instance of a
//! node class.
//!
//! A dry run of a fleet requires an existing launch template. This module therefore calls
//! `RunInstances`. Invariant: the request has the same images, subnets, groups, metadata options,
//! volumes, placement group and tags as a real launch, because policies may have conditions on each
//! of them. It has the primary network interface alone, because its instance type has few of them.

use std::collections::BTreeMap;

use aws_sdk_ec2::error::ProvideErrorMetadata as _;
use aws_sdk_ec2::operation::run_instances::builders::RunInstancesFluentBuilder;
use aws_sdk_ec2::types::{
    BlockDeviceMapping, EbsBlockDevice, HttpTokensState, IamInstanceProfileSpecification,
    InstanceMetadataEndpointState, InstanceMetadataOptionsRequest, InstanceMetadataProtocolState,
    InstanceNetworkInterfaceSpecification, InstanceType, Placement, ResourceType,
    RunInstancesMonitoringEnabled, TagSpecification, VolumeType,
};

use super::client::Aws;
use super::errors::{AwsError, port_error};
use super::launch::launch_tags;
use super::launch_template::{block_devices, connection_tracking};
use super::rate_limiter::ApiBucket;
use crate::model::desired::{BlockDevice, MetadataOptions, NodeClass};
use crate::model::ids::PoolName;
use crate::model::observed::{Arch, Hardware, tag};

/// Error code of a dry run that would succeed.
const DRY_RUN_CODE: &str = "DryRunOperation";

/// The inputs of a dry-run launch.
pub(super) struct DryRunLaunch<'a> {
    pub(super) class: &'a NodeClass,
    /// A pool of the class.
    pub(super) pool: &'a PoolName,
    pub(super) image: (Hardware, &'a str),
    pub(super) subnet: &'a str,
    pub(super) groups: &'a [String],
    pub(super) profile: Option<&'a str>,
    /// ID of the placement group.
    pub(super) placement_group: Option<&'a str>,
}

impl Aws {
    /// Requests an instance as a dry run.
    ///
    /// # Errors
    /// Returns an error if the launch is refused.
    pub(super) async fn dry_run_launch(
        &self,
        launch: &DryRunLaunch<'_>,
    ) -> Result<String, AwsError> {
        self.limiter.acquire(ApiBucket::Launch).await;
        let call = launch.request(self.ec2.run_instances(), &self.cluster);
        match call.dry_run(true).send().await {
            Err(error) => dry_run_result(error.code(), || {
                port_error("launch instance (dry run)", &error).into()
            }),
            Ok(_) => Err(AwsError::Missing("EC2 ignored the dry-run flag".to_owned())),
        }
    }
}

impl DryRunLaunch<'_> {
    fn request(&self, call: RunInstancesFluentBuilder, cluster: &str) -> RunInstancesFluentBuilder {
        let settings = &self.class.instance_settings;
        let (hardware, image) = self.image;
        let kind = match hardware.arch {
            Arch::Amd64 => InstanceType::M5Large,
            Arch::Arm64 => InstanceType::M6gLarge,
        };
        let profile = IamInstanceProfileSpecification::builder();
        let monitoring = RunInstancesMonitoringEnabled::builder();
        let call = call
            .image_id(image)
            .instance_type(kind)
            .set_iam_instance_profile(self.profile.map(|name| profile.name(name).build()))
            .metadata_options(metadata(&settings.metadata))
            .set_block_device_mappings(Some(
                block_devices(self.class).iter().map(block_device_mapping).collect(),
            ))
            .monitoring(monitoring.enabled(settings.detailed_monitoring).build())
            .set_placement(self.placement_group.map(|id| Placement::builder().group_id(id).build()))
            .set_tag_specifications(Some(self.tags(cluster)))
            .min_count(1)
            .max_count(1);
        let groups = Some(self.groups.to_vec());
        match (settings.public_address, connection_tracking(settings)) {
            (None, None) => call.subnet_id(self.subnet).set_security_group_ids(groups),
            // The public address and the timeouts belong to an interface. Subnet and groups then
            // belong to it as well.
            (public, tracking) => call.network_interfaces(
                InstanceNetworkInterfaceSpecification::builder()
                    .device_index(0)
                    .set_associate_public_ip_address(public)
                    .set_connection_tracking_specification(tracking)
                    .subnet_id(self.subnet)
                    .set_groups(groups)
                    .build(),
            ),
        }
    }

    fn tags(&self, cluster: &str) -> Vec<TagSpecification> {
        let own = [(tag::CLUSTER, cluster), (tag::POOL, self.pool.as_str())];
        let own: BTreeMap<String, String> =
            own.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let tags = launch_tags(self.class, cluster, self.image.1, &own);
        let kinds = [ResourceType::Instance, ResourceType::Volume];
        let of = |kind| {
            TagSpecification::builder().resource_type(kind).set_tags(Some(tags.clone())).build()
        };
        kinds.map(of).into()
    }
}

/// Converts the error code of a dry run to its result.
pub(super) fn dry_run_result(
    code: Option<&str>,
    otherwise: impl FnOnce() -> AwsError,
) -> Result<String, AwsError> {
    if code == Some(DRY_RUN_CODE) { Ok("dry run".to_owned()) } else { Err(otherwise()) }
}

fn metadata(options: &MetadataOptions) -> InstanceMetadataOptionsRequest {
    let MetadataOptions { enabled, ipv6, hop_limit, tokens_required } = *options;
    InstanceMetadataOptionsRequest::builder()
        .http_endpoint(if enabled {
            InstanceMetadataEndpointState::Enabled
        } else {
            InstanceMetadataEndpointState::Disabled
        })
        .http_protocol_ipv6(if ipv6 {
            InstanceMetadataProtocolState::Enabled
        } else {
            InstanceMetadataProtocolState::Disabled
        })
        .http_put_response_hop_limit(hop_limit)
        .http_tokens(if tokens_required {
            HttpTokensState::Required
        } else {
            HttpTokensState::Optional
        })
        .build()
}

fn block_device_mapping(device: &BlockDevice) -> BlockDeviceMapping {
    let ebs = EbsBlockDevice::builder()
        .set_volume_size(device.gib)
        .set_volume_type(device.kind.as_deref().map(VolumeType::from))
        .set_iops(device.iops)
        .set_throughput(device.throughput)
        .set_encrypted(device.encrypted)
        .set_kms_key_id(device.kms_key.clone())
        .set_snapshot_id(device.snapshot.clone())
        .delete_on_termination(device.delete_on_termination.unwrap_or(true))
        .build();
    BlockDeviceMapping::builder().device_name(&device.name).ebs(ebs).build()
}
