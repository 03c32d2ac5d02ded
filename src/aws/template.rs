//! Launch templates: one for each content, named by it, so that making one twice is making it once.

use aws_sdk_ec2::error::ProvideErrorMetadata as _;
use aws_sdk_ec2::types::{
    CapacityReservationPreference, CapacityReservationTarget,
    LaunchTemplateBlockDeviceMappingRequest, LaunchTemplateCapacityReservationSpecificationRequest,
    LaunchTemplateEbsBlockDeviceRequest, LaunchTemplateHttpTokensState,
    LaunchTemplateIamInstanceProfileSpecificationRequest,
    LaunchTemplateInstanceMetadataEndpointState, LaunchTemplateInstanceMetadataOptionsRequest,
    LaunchTemplateInstanceMetadataProtocolIpv6,
    LaunchTemplateInstanceNetworkInterfaceSpecificationRequest, LaunchTemplatesMonitoringRequest,
    RequestLaunchTemplateData, ResourceType, Tag, TagSpecification, VolumeType,
};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::client::{Aws, AwsError};
use super::fault::port_error;
use super::limiter::Api;
use super::machine::Machines;
use crate::fleet::tag;
use crate::ids::hex;
use crate::manifest::{BlockDevice, NodeClass};

/// Bytes of the content's hash in the name of a template.
const NAME_BYTES: usize = 12;

/// Everything of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Content<'a> {
    pub(super) class: &'a NodeClass,
    pub(super) image: String,
    pub(super) profile: Option<String>,
    pub(super) groups: Vec<String>,
    pub(super) reservation: Option<String>,
    /// User data in base64.
    pub(super) user_data: String,
}

impl Content<'_> {
    /// Returns the name of the template with this content.
    fn name(&self, cluster: &str) -> String {
        let Self { class, image, profile, groups, reservation, user_data } = self;
        let machine = &class.machine;
        let parts = format!(
            "{image}\n{profile:?}\n{groups:?}\n{reservation:?}\n{user_data}\n{:?}\n{:?}\n{:?}\n{:?}",
            machine.metadata, machine.devices, machine.public_address, machine.detailed_monitoring
        );
        let digest = Sha256::digest(parts.as_bytes());
        format!("fleetwright-{cluster}-{}", hex(&digest[..NAME_BYTES]))
    }

    fn data(&self) -> RequestLaunchTemplateData {
        let machine = &self.class.machine;
        let metadata = &machine.metadata;
        let profile = self.profile.as_ref().map(|name| {
            LaunchTemplateIamInstanceProfileSpecificationRequest::builder().name(name).build()
        });
        let metadata = LaunchTemplateInstanceMetadataOptionsRequest::builder()
            .http_endpoint(if metadata.enabled {
                LaunchTemplateInstanceMetadataEndpointState::Enabled
            } else {
                LaunchTemplateInstanceMetadataEndpointState::Disabled
            })
            .http_protocol_ipv6(if metadata.ipv6 {
                LaunchTemplateInstanceMetadataProtocolIpv6::Enabled
            } else {
                LaunchTemplateInstanceMetadataProtocolIpv6::Disabled
            })
            .http_put_response_hop_limit(metadata.hop_limit)
            .http_tokens(if metadata.tokens_required {
                LaunchTemplateHttpTokensState::Required
            } else {
                LaunchTemplateHttpTokensState::Optional
            })
            .build();
        let monitoring = LaunchTemplatesMonitoringRequest::builder();
        let data = RequestLaunchTemplateData::builder()
            .image_id(&self.image)
            .user_data(&self.user_data)
            .set_iam_instance_profile(profile)
            .set_block_device_mappings(Some(volumes(self.class).iter().map(mapping).collect()))
            .metadata_options(metadata)
            .monitoring(monitoring.enabled(machine.detailed_monitoring).build())
            .set_capacity_reservation_specification(self.reservation.as_deref().map(reserved));
        match machine.public_address {
            None => data.set_security_group_ids(Some(self.groups.clone())),
            // A template says either groups or interfaces, and the address is of an interface.
            Some(public) => data.network_interfaces(
                LaunchTemplateInstanceNetworkInterfaceSpecificationRequest::builder()
                    .device_index(0)
                    .associate_public_ip_address(public)
                    .set_groups(Some(self.groups.clone()))
                    .build(),
            ),
        }
        .build()
    }
}

/// Returns the specification of a template into one reservation and no other capacity.
fn reserved(id: &str) -> LaunchTemplateCapacityReservationSpecificationRequest {
    LaunchTemplateCapacityReservationSpecificationRequest::builder()
        .capacity_reservation_preference(CapacityReservationPreference::CapacityReservationsOnly)
        .capacity_reservation_target(
            CapacityReservationTarget::builder().capacity_reservation_id(id).build(),
        )
        .build()
}

/// Returns the volumes of a class: its own, or those that its family has.
pub(super) fn volumes(class: &NodeClass) -> Vec<BlockDevice> {
    let device = |name: &str, gib: i32| BlockDevice {
        name: name.to_owned(),
        gib: Some(gib),
        kind: Some("gp3".to_owned()),
        encrypted: Some(true),
        ..BlockDevice::default()
    };
    let stated = &class.machine.devices;
    if stated.is_empty() {
        return class.ami_family.devices().iter().map(|(name, gib)| device(name, *gib)).collect();
    }
    stated.clone()
}

fn mapping(device: &BlockDevice) -> LaunchTemplateBlockDeviceMappingRequest {
    let ebs = LaunchTemplateEbsBlockDeviceRequest::builder()
        .set_volume_size(device.gib)
        .set_volume_type(device.kind.as_deref().map(VolumeType::from))
        .set_iops(device.iops)
        .set_throughput(device.throughput)
        .set_encrypted(device.encrypted)
        .set_kms_key_id(device.kms_key.clone())
        .set_snapshot_id(device.snapshot.clone())
        .delete_on_termination(device.delete_on_termination.unwrap_or(true))
        .build();
    LaunchTemplateBlockDeviceMappingRequest::builder().device_name(&device.name).ebs(ebs).build()
}

impl Aws {
    /// Returns the name of the launch template with `content`, which is there then.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) async fn template(
        &self,
        machines: &Machines,
        content: &Content<'_>,
    ) -> Result<String, AwsError> {
        let name = content.name(&self.cluster);
        let now = Instant::now();
        let used = machines.recall(|known| known.templates.contains_key(&name).then_some(()));
        if used.is_some() {
            machines.keep(|known| {
                known.templates.insert(name.clone(), now);
            });
            return Ok(name);
        }
        let of_cluster = Tag::builder().key(tag::CLUSTER).value(&self.cluster).build();
        let tags = TagSpecification::builder()
            .resource_type(ResourceType::LaunchTemplate)
            .tags(of_cluster)
            .build();
        self.limiter.take(Api::Template).await;
        let made = self
            .ec2
            .create_launch_template()
            .launch_template_name(&name)
            .launch_template_data(content.data())
            .tag_specifications(tags)
            .send()
            .await;
        match made {
            Ok(_) => {}
            Err(error)
                if error.code() == Some("InvalidLaunchTemplateName.AlreadyExistsException") => {}
            Err(error) => return Err(port_error("make launch template", &error).into()),
        }
        machines.keep(|known| {
            known.templates.insert(name.clone(), now);
        });
        Ok(name)
    }
}
