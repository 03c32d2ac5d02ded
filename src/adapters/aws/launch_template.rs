//! Launch templates: named by a hash of their content, so that creation is idempotent.

use aws_sdk_ec2::error::ProvideErrorMetadata as _;
use aws_sdk_ec2::types::{
    CapacityReservationPreference, CapacityReservationTarget,
    ConnectionTrackingSpecificationRequest, LaunchTemplateBlockDeviceMappingRequest,
    LaunchTemplateCapacityReservationSpecificationRequest, LaunchTemplateCpuOptionsRequest,
    LaunchTemplateEbsBlockDeviceRequest, LaunchTemplateHttpTokensState,
    LaunchTemplateIamInstanceProfileSpecificationRequest,
    LaunchTemplateInstanceMetadataEndpointState, LaunchTemplateInstanceMetadataOptionsRequest,
    LaunchTemplateInstanceMetadataProtocolIpv6,
    LaunchTemplateInstanceNetworkInterfaceSpecificationRequest, LaunchTemplatesMonitoringRequest,
    NestedVirtualizationSpecification, RequestLaunchTemplateData, ResourceType, Tag,
    TagSpecification, VolumeType,
};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::client::Aws;
use super::errors::{AwsError, port_error};
use super::launch_context::LaunchContext;
use super::rate_limiter::ApiBucket;
use crate::model::desired::{BlockDevice, ConnectionTracking, InstanceSettings, NodeClass};
use crate::model::observed::tag;

/// Bytes of the content hash in a template name.
const NAME_BYTES: usize = 12;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TemplateContent<'a> {
    pub(super) class: &'a NodeClass,
    pub(super) image: String,
    pub(super) profile: Option<String>,
    pub(super) groups: Vec<String>,
    pub(super) reservation: Option<String>,
    /// User data in base64.
    pub(super) user_data: String,
}

impl TemplateContent<'_> {
    fn name(&self, cluster: &str) -> String {
        let Self { class, image, profile, groups, reservation, user_data } = self;
        let settings = &class.instance_settings;
        let parts = format!(
            "{image}\n{profile:?}\n{groups:?}\n{reservation:?}\n{user_data}\n{:?}\n{:?}\n{:?}\n{:?}",
            settings.metadata,
            settings.devices,
            settings.public_address,
            settings.detailed_monitoring
        );
        // The names of classes without these settings stay those of earlier versions.
        let tracking = settings.connection_tracking.map(|stated| format!("\n{stated:?}"));
        let nested = settings.nested_virtualization.map(|on| format!("\nnested {on}"));
        let parts = [Some(parts), tracking, nested].into_iter().flatten().collect::<String>();
        let digest = Sha256::digest(parts.as_bytes());
        format!("fleetwright-{cluster}-{}", hex::encode(&digest[..NAME_BYTES]))
    }

    fn request_data(&self) -> RequestLaunchTemplateData {
        let settings = &self.class.instance_settings;
        let metadata = &settings.metadata;
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
            .set_block_device_mappings(Some(
                block_devices(self.class).iter().map(block_device_mapping).collect(),
            ))
            .metadata_options(metadata)
            .monitoring(monitoring.enabled(settings.detailed_monitoring).build())
            .set_capacity_reservation_specification(
                self.reservation.as_deref().map(reservation_target),
            );
        let data = data.set_cpu_options(settings.nested_virtualization.map(|on| {
            let nested = if on {
                NestedVirtualizationSpecification::Enabled
            } else {
                NestedVirtualizationSpecification::Disabled
            };
            LaunchTemplateCpuOptionsRequest::builder().nested_virtualization(nested).build()
        }));
        match (settings.public_address, connection_tracking(settings)) {
            (None, None) => data.set_security_group_ids(Some(self.groups.clone())),
            // A template has either security groups or interfaces. The public address and the
            // timeouts belong to an interface.
            (public, tracking) => data.network_interfaces(
                LaunchTemplateInstanceNetworkInterfaceSpecificationRequest::builder()
                    .device_index(0)
                    .set_associate_public_ip_address(public)
                    .set_connection_tracking_specification(tracking)
                    .set_groups(Some(self.groups.clone()))
                    .build(),
            ),
        }
        .build()
    }
}

/// Returns the idle timeouts of the connections of an interface, if stated.
pub(super) fn connection_tracking(
    settings: &InstanceSettings,
) -> Option<ConnectionTrackingSpecificationRequest> {
    settings.connection_tracking.map(|ConnectionTracking { tcp_established, udp_stream, udp }| {
        ConnectionTrackingSpecificationRequest::builder()
            .set_tcp_established_timeout(tcp_established)
            .set_udp_stream_timeout(udp_stream)
            .set_udp_timeout(udp)
            .build()
    })
}

/// Restricts a template to one capacity reservation.
fn reservation_target(id: &str) -> LaunchTemplateCapacityReservationSpecificationRequest {
    LaunchTemplateCapacityReservationSpecificationRequest::builder()
        .capacity_reservation_preference(CapacityReservationPreference::CapacityReservationsOnly)
        .capacity_reservation_target(
            CapacityReservationTarget::builder().capacity_reservation_id(id).build(),
        )
        .build()
}

/// Returns the volumes of a class, by default those of its image family.
pub(super) fn block_devices(class: &NodeClass) -> Vec<BlockDevice> {
    let device = |name: &str, gib: i32| BlockDevice {
        name: name.to_owned(),
        gib: Some(gib),
        kind: Some("gp3".to_owned()),
        encrypted: Some(true),
        ..BlockDevice::default()
    };
    let stated = &class.instance_settings.devices;
    if stated.is_empty() {
        return class.ami_family.devices().iter().map(|(name, gib)| device(name, *gib)).collect();
    }
    stated.clone()
}

fn block_device_mapping(device: &BlockDevice) -> LaunchTemplateBlockDeviceMappingRequest {
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
    /// Ensures that a launch template with `content` exists, and returns its name.
    ///
    /// # Errors
    /// Returns an error if the template cannot be created.
    pub(super) async fn ensure_template(
        &self,
        context: &LaunchContext,
        content: &TemplateContent<'_>,
    ) -> Result<String, AwsError> {
        let name = content.name(&self.cluster);
        if context.uses_template(&name) {
            return Ok(name);
        }
        // EC2 limits the creation of templates, so launches with a known template must not wait
        // for it. Another launch may create the same template meanwhile.
        let _guard = context.template_lock.lock().await;
        if context.uses_template(&name) {
            return Ok(name);
        }
        let of_cluster = Tag::builder().key(tag::CLUSTER).value(&self.cluster).build();
        let tags = TagSpecification::builder()
            .resource_type(ResourceType::LaunchTemplate)
            .tags(of_cluster)
            .build();
        self.limiter.acquire(ApiBucket::Template).await;
        let response = self
            .ec2
            .create_launch_template()
            .launch_template_name(&name)
            .launch_template_data(content.request_data())
            .tag_specifications(tags)
            .send()
            .await;
        match response {
            Ok(_) => {}
            Err(error)
                if error.code() == Some("InvalidLaunchTemplateName.AlreadyExistsException") => {}
            Err(error) => return Err(port_error("create launch template", &error).into()),
        }
        context.update_lookups(|known| {
            known.templates.insert(name.clone(), Some(Instant::now()));
        });
        Ok(name)
    }
}
