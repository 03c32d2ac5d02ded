//! Launch templates: named by a hash of their content, so that creation is idempotent.

use aws_sdk_ec2::error::ProvideErrorMetadata as _;
use aws_sdk_ec2::types::builders::LaunchTemplateInstanceNetworkInterfaceSpecificationRequestBuilder;
use aws_sdk_ec2::types::{
    CapacityReservationPreference, CapacityReservationTarget,
    ConnectionTrackingSpecificationRequest, LaunchTemplateBlockDeviceMappingRequest,
    LaunchTemplateCapacityReservationSpecificationRequest, LaunchTemplateCpuOptionsRequest,
    LaunchTemplateEbsBlockDeviceRequest, LaunchTemplateHttpTokensState,
    LaunchTemplateIamInstanceProfileSpecificationRequest,
    LaunchTemplateInstanceMetadataEndpointState, LaunchTemplateInstanceMetadataOptionsRequest,
    LaunchTemplateInstanceMetadataProtocolIpv6,
    LaunchTemplateInstanceNetworkInterfaceSpecificationRequest, LaunchTemplatePlacementRequest,
    LaunchTemplatesMonitoringRequest, NestedVirtualizationSpecification, RequestLaunchTemplateData,
    ResourceType, Tag, TagSpecification, VolumeType,
};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::client::Aws;
use super::errors::{AwsError, port_error};
use super::launch_context::LaunchContext;
use super::rate_limiter::ApiBucket;
use crate::model::desired::{
    BlockDevice, ConnectionTracking, InstanceSettings, NetworkInterface, NodeClass,
};
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
    /// ID of the placement group.
    pub(super) placement_group: Option<String>,
    pub(super) address_family: AddressFamily,
    /// User data in base64.
    pub(super) user_data: String,
}

impl TemplateContent<'_> {
    fn name(&self, cluster: &str) -> String {
        let Self {
            class,
            image,
            profile,
            groups,
            reservation,
            placement_group,
            address_family,
            user_data,
        } = self;
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
        let interfaces = settings.has_declared_interfaces().then(|| {
            let (interfaces, prefixes) = (&settings.network_interfaces, settings.ip_prefix_count);
            format!("\n{interfaces:?}\nprefixes {prefixes:?} {address_family:?}")
        });
        let placement = placement_group.as_ref().map(|id| format!("\nplacement {id}"));
        let parts = [Some(parts), tracking, nested, interfaces, placement];
        let parts = parts.into_iter().flatten().collect::<String>();
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
            )
            .set_placement(
                self.placement_group
                    .as_ref()
                    .map(|id| LaunchTemplatePlacementRequest::builder().group_id(id).build()),
            );
        let data = data.set_cpu_options(settings.nested_virtualization.map(|on| {
            let nested = if on {
                NestedVirtualizationSpecification::Enabled
            } else {
                NestedVirtualizationSpecification::Disabled
            };
            LaunchTemplateCpuOptionsRequest::builder().nested_virtualization(nested).build()
        }));
        // A template has either security groups or interfaces. The public address and the timeouts
        // belong to an interface.
        let has_interfaces = settings.has_declared_interfaces()
            || settings.public_address.is_some()
            || settings.connection_tracking.is_some();
        let data = if has_interfaces {
            data.set_network_interfaces(Some(self.network_interfaces()))
        } else {
            data.set_security_group_ids(Some(self.groups.clone()))
        };
        data.build()
    }

    /// Returns the interfaces of an instance. The override of a fleet names their subnet.
    fn network_interfaces(
        &self,
    ) -> Vec<LaunchTemplateInstanceNetworkInterfaceSpecificationRequest> {
        let settings = &self.class.instance_settings;
        let declared = &settings.network_interfaces;
        if declared.is_empty() {
            let primary = NetworkInterface { card: 0, device: 0, efa_only: false };
            return vec![self.network_interface(primary).build()];
        }
        let interface = |interface: &NetworkInterface| {
            let kind = if interface.efa_only { "efa-only" } else { "interface" };
            let request = self.network_interface(*interface).interface_type(kind);
            request.network_card_index(interface.card).build()
        };
        declared.iter().map(interface).collect()
    }

    /// Returns the request for one interface. EC2 refuses a public address of any but the primary
    /// interface, and every setting of addresses of an EFA-only interface.
    fn network_interface(
        &self,
        interface: NetworkInterface,
    ) -> LaunchTemplateInstanceNetworkInterfaceSpecificationRequestBuilder {
        let settings = &self.class.instance_settings;
        let request = LaunchTemplateInstanceNetworkInterfaceSpecificationRequest::builder()
            .device_index(interface.device)
            .set_groups(Some(self.groups.clone()));
        if interface.efa_only {
            return request;
        }
        let public = settings.public_address.filter(|_| interface.is_primary());
        let request = request
            .set_associate_public_ip_address(public)
            .set_connection_tracking_specification(connection_tracking(settings));
        if !settings.has_declared_interfaces() {
            return request;
        }
        match self.address_family {
            AddressFamily::Ipv4 => request.set_ipv4_prefix_count(settings.ip_prefix_count),
            AddressFamily::Ipv6 => request
                .set_ipv6_prefix_count(settings.ip_prefix_count)
                .ipv6_address_count(1)
                .primary_ipv6(true),
        }
    }
}

/// Address family of the pods of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AddressFamily {
    Ipv4,
    Ipv6,
}

impl AddressFamily {
    /// Returns the family of a cluster with this service address range.
    pub(super) fn from_service_cidr(cidr: &str) -> Self {
        if cidr.contains(':') { Self::Ipv6 } else { Self::Ipv4 }
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
        const VERB: &str = "create launch template";
        let name = content.name(&self.cluster);
        if context.uses_template(&name) {
            return Ok(name);
        }
        // Concurrent launches create different templates at the same time, and each template once.
        let lock = context.template_lock(&name);
        let _guard = lock.lock().await;
        if context.uses_template(&name) {
            return Ok(name);
        }
        let of_cluster = Tag::builder().key(tag::CLUSTER).value(&self.cluster).build();
        let tags = TagSpecification::builder()
            .resource_type(ResourceType::LaunchTemplate)
            .tags(of_cluster)
            .build();
        self.limiter.acquire(ApiBucket::Template).await;
        self.check_write_permit(VERB)?;
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
            Err(error) => return Err(port_error(VERB, &error).into()),
        }
        context.update_lookups(|known| {
            known.templates.insert(name.clone(), Some(Instant::now()));
        });
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(class: &NodeClass, address_family: AddressFamily) -> TemplateContent<'_> {
        TemplateContent {
            class,
            image: "ami-1".to_owned(),
            profile: None,
            groups: vec!["sg-1".to_owned(), "sg-2".to_owned()],
            reservation: None,
            placement_group: None,
            address_family,
            user_data: String::new(),
        }
    }

    fn class(set: impl FnOnce(&mut InstanceSettings)) -> NodeClass {
        let mut class = crate::testing::node_class();
        set(&mut class.instance_settings);
        class
    }

    fn two_interfaces(settings: &mut InstanceSettings) {
        let interface = |device, efa_only| NetworkInterface { card: 0, device, efa_only };
        settings.network_interfaces = vec![interface(0, false), interface(1, true)];
    }

    #[test]
    fn declared_interfaces_have_groups_and_only_some_have_addresses() {
        let class = class(|settings| {
            two_interfaces(settings);
            let further = NetworkInterface { card: 1, device: 1, efa_only: false };
            settings.network_interfaces.push(further);
            settings.ip_prefix_count = Some(2);
            settings.public_address = Some(false);
            settings.connection_tracking = Some(ConnectionTracking::default());
        });
        let data = content(&class, AddressFamily::Ipv4).request_data();
        assert_eq!(data.security_group_ids(), [""; 0], "each interface has the groups");
        let interfaces = data.network_interfaces();
        let places = interfaces
            .iter()
            .map(|one| (one.network_card_index(), one.device_index(), one.interface_type()));
        let (card, kind) = (Some(0), Some("interface"));
        let expected =
            [(card, Some(0), kind), (card, Some(1), Some("efa-only")), (Some(1), Some(1), kind)];
        assert_eq!(places.collect::<Vec<_>>(), expected);
        let settings = interfaces.iter().map(|one| {
            let tracking = one.connection_tracking_specification().is_some();
            (one.ipv4_prefix_count(), one.associate_public_ip_address(), tracking)
        });
        let expected = [(Some(2), Some(false), true), (None, None, false), (Some(2), None, true)];
        assert_eq!(settings.collect::<Vec<_>>(), expected);
        for interface in interfaces {
            assert_eq!(interface.groups(), ["sg-1", "sg-2"]);
            assert_eq!(interface.subnet_id(), None, "the override names it");
            assert_eq!((interface.ipv6_prefix_count(), interface.primary_ipv6()), (None, None));
        }
    }

    #[test]
    fn prefixes_are_of_the_address_family_of_the_cluster() {
        let class = class(|settings| settings.ip_prefix_count = Some(1));
        for (cidr, expected) in [
            ("10.100.0.0/16", (Some(1), None, None, None)),
            ("fd12:3456::/108", (None, Some(1), Some(1), Some(true))),
        ] {
            let family = AddressFamily::from_service_cidr(cidr);
            let data = content(&class, family).request_data();
            let [one] = data.network_interfaces() else { panic!("{data:?}") };
            let (v4, v6) = (one.ipv4_prefix_count(), one.ipv6_prefix_count());
            assert_eq!((v4, v6, one.ipv6_address_count(), one.primary_ipv6()), expected, "{cidr}");
            assert_eq!((one.device_index(), one.network_card_index()), (Some(0), None));
        }
    }

    #[test]
    fn placement_group_is_in_the_template_and_in_its_name() {
        let class = class(|_| {});
        let plain = content(&class, AddressFamily::Ipv4);
        assert_eq!(plain.request_data().placement(), None);
        let placement_group = Some("pg-1".to_owned());
        let placed = TemplateContent { placement_group, ..plain.clone() };
        let data = placed.request_data();
        assert_eq!(data.placement().and_then(|placement| placement.group_id()), Some("pg-1"));
        assert_ne!(placed.name("prod"), plain.name("prod"));
    }

    #[test]
    fn template_name_depends_on_declared_interfaces() {
        let name =
            |family, set: fn(&mut InstanceSettings)| content(&class(set), family).name("prod");
        let (v4, v6) = (AddressFamily::Ipv4, AddressFamily::Ipv6);
        assert_eq!(name(v4, |_| {}), name(v6, |_| {}), "a class without them has no family");
        let prefixes = |settings: &mut InstanceSettings| settings.ip_prefix_count = Some(1);
        let names =
            [name(v4, |_| {}), name(v4, two_interfaces), name(v4, prefixes), name(v6, prefixes)];
        let different: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(different.len(), names.len(), "{names:?}");
        let plain = class(|_| {});
        let data = content(&plain, v6).request_data();
        assert_eq!(data.security_group_ids(), ["sg-1", "sg-2"]);
        assert!(data.network_interfaces().is_empty());
    }
}
