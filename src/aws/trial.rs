//! A launch that is only tried: whether permissions and conditions let a machine of a node class be made.
//!
//! A fleet can be asked for as a dry run only from a launch template that is there, so that a bare machine is asked
//! for. Invariant: it is asked for as launches ask (images, subnets, groups, metadata options, volumes, tags), since
//! policies have conditions on each of them.

use std::collections::BTreeMap;

use aws_sdk_ec2::error::ProvideErrorMetadata as _;
use aws_sdk_ec2::operation::run_instances::builders::RunInstancesFluentBuilder;
use aws_sdk_ec2::types::{
    BlockDeviceMapping, EbsBlockDevice, HttpTokensState, IamInstanceProfileSpecification,
    InstanceMetadataEndpointState, InstanceMetadataOptionsRequest, InstanceMetadataProtocolState,
    InstanceNetworkInterfaceSpecification, InstanceType, ResourceType,
    RunInstancesMonitoringEnabled, TagSpecification, VolumeType,
};

use super::client::{Aws, AwsError};
use super::fault::port_error;
use super::launch::tags_of;
use super::limiter::Api;
use super::preflight::would_succeed;
use super::template::volumes;
use crate::fleet::{Arch, Hardware, tag};
use crate::ids::PoolName;
use crate::manifest::{BlockDevice, MetadataOptions, NodeClass};

/// What a launch is tried with.
pub(super) struct Trial<'a> {
    pub(super) class: &'a NodeClass,
    /// A pool of the class.
    pub(super) pool: &'a PoolName,
    pub(super) image: (Hardware, &'a str),
    pub(super) subnet: &'a str,
    pub(super) groups: &'a [String],
    pub(super) profile: Option<&'a str>,
}

impl Aws {
    /// Asks for a machine as a dry run.
    ///
    /// # Errors
    /// When it would be refused.
    pub(super) async fn try_launch(&self, trial: &Trial<'_>) -> Result<String, AwsError> {
        self.limiter.take(Api::Launch).await;
        let call = trial.call(self.ec2.run_instances(), &self.cluster);
        match call.dry_run(true).send().await {
            Err(error) => would_succeed(error.code(), || {
                port_error("launch instance (dry run)", &error).into()
            }),
            Ok(_) => Err(AwsError::Missing("EC2 passed over that it was a dry run".to_owned())),
        }
    }
}

impl Trial<'_> {
    fn call(&self, call: RunInstancesFluentBuilder, cluster: &str) -> RunInstancesFluentBuilder {
        let machine = &self.class.machine;
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
            .metadata_options(metadata(&machine.metadata))
            .set_block_device_mappings(Some(volumes(self.class).iter().map(mapping).collect()))
            .monitoring(monitoring.enabled(machine.detailed_monitoring).build())
            .set_tag_specifications(Some(self.tags(cluster)))
            .min_count(1)
            .max_count(1);
        let groups = Some(self.groups.to_vec());
        match machine.public_address {
            None => call.subnet_id(self.subnet).set_security_group_ids(groups),
            // The address is of an interface, and so are then subnet and groups.
            Some(public) => call.network_interfaces(
                InstanceNetworkInterfaceSpecification::builder()
                    .device_index(0)
                    .associate_public_ip_address(public)
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
        let tags = tags_of(self.class, cluster, (self.image.1, &own));
        let kinds = [ResourceType::Instance, ResourceType::Volume];
        let of = |kind| {
            TagSpecification::builder().resource_type(kind).set_tags(Some(tags.clone())).build()
        };
        kinds.map(of).into()
    }
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

fn mapping(device: &BlockDevice) -> BlockDeviceMapping {
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
