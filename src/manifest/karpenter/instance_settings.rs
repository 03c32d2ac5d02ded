//! The fields of a node class that only a launch needs.

use super::super::decode::{Field, FieldMap, shorten};
use super::selector_terms::{Selected, image_terms, selectors};
use super::warn_unsupported;
use crate::model::desired::{
    BlockDevice, ConnectionTracking, Generation, Identity, InstanceSettings, MetadataOptions,
    NetworkInterface, PlacementGroupSelector, UserData,
};
use crate::model::units::Bytes;

/// Maximum hop limit of the metadata service.
const HOPS_MAX: i32 = 64;

/// Maximum network interfaces of a class.
const INTERFACES_MAX: usize = 150;

/// Reads the launch settings of instances. `alias` is the AMI alias of the class, if any.
pub(super) fn instance_settings(
    spec: &FieldMap<'_>,
    alias: Option<&str>,
    generation: Generation,
) -> InstanceSettings {
    let text = |key| spec.get(key).and_then(|f: Field<'_>| Some(f.non_empty_text()?.into_owned()));
    let identity = match (text("instanceProfile"), text("role")) {
        (Some(profile), _) => Identity::Profile(profile),
        (None, Some(role)) => Identity::Role(role),
        (None, None) => Identity::None,
    };
    let public_address = spec.get("associatePublicIPAddress").and_then(|f| f.boolean());
    InstanceSettings {
        subnets: selectors(spec, Selected::Subnets),
        security_groups: selectors(spec, Selected::SecurityGroups),
        images: image_terms(spec, alias, generation),
        identity,
        user_data: spec.get("userData").and_then(|f| Some(UserData::new(&f.script()?))),
        metadata: spec.get("metadataOptions").map(|f| metadata(&f)).unwrap_or_default(),
        devices: spec.get("blockDeviceMappings").map(|f| devices(&f)).unwrap_or_default(),
        public_address,
        detailed_monitoring: spec.get("detailedMonitoring").and_then(|f| f.boolean()) == Some(true),
        connection_tracking: spec.get("connectionTracking").and_then(|f| connection_tracking(&f)),
        nested_virtualization: spec.get("cpuOptions").and_then(|f| nested_virtualization(&f)),
        context: text("context"),
        network_interfaces: network_interfaces(spec, public_address),
        ip_prefix_count: spec.get("ipPrefixCount").and_then(|f| f.int(0)),
        placement_group: spec.get("placementGroupSelector").and_then(|f| placement_group(&f)),
    }
}

/// Reads the selector of a placement group, with the rules of Karpenter's API.
fn placement_group(field: &Field<'_>) -> Option<PlacementGroupSelector> {
    let map = field.map()?;
    let (name, id) = (map.get("name"), map.get("id"));
    map.finish_with_typo_check();
    match (name, id) {
        (Some(name), None) => {
            Some(PlacementGroupSelector::Name(name.non_empty_text()?.into_owned()))
        }
        (None, Some(id)) => {
            let text = id.non_empty_text()?.into_owned();
            if !is_placement_group(&text) {
                id.error(
                    format_args!("is `{}`, not the id of a placement group", shorten(&text)),
                    "write an id such as pg-0123456789abcdef0, or the name of the group".to_owned(),
                );
            }
            Some(PlacementGroupSelector::Id(text))
        }
        (None, None) => {
            field.error("selects nothing", "state name or id".to_owned());
            None
        }
        (Some(_), Some(_)) => {
            field.error("has both `name` and `id`", "state one of them".to_owned());
            None
        }
    }
}

/// Returns true for an id such as `pg-0a1b2c3d`.
fn is_placement_group(id: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_digit() || byte.is_ascii_lowercase();
    id.strip_prefix("pg-").is_some_and(|rest| !rest.is_empty() && rest.bytes().all(is_inner))
}

/// Reads the network interfaces, with the rules of Karpenter's API.
fn network_interfaces(spec: &FieldMap<'_>, public_address: Option<bool>) -> Vec<NetworkInterface> {
    let Some(field) = spec.get("networkInterfaces") else { return Vec::new() };
    let mut interfaces: Vec<NetworkInterface> = Vec::new();
    let mut is_complete = true;
    for item in field.items() {
        let Some(interface) = item.map().and_then(|map| network_interface(&map)) else {
            is_complete = false;
            continue;
        };
        let NetworkInterface { card, device, efa_only } = interface;
        if interfaces.iter().any(|other| (other.card, other.device) == (card, device)) {
            item.error(format_args!("repeats device {device} of network card {card}"), None);
        } else if efa_only && interfaces.iter().any(|other| other.efa_only && other.card == card) {
            item.error(format_args!("is a second EFA interface of network card {card}"), None);
        }
        interfaces.push(interface);
    }
    let count = interfaces.len();
    if count > INTERFACES_MAX {
        field.error(format_args!("lists {count} interfaces, more than {INTERFACES_MAX}"), None);
    }
    let is_primary = |one: &NetworkInterface| one.is_primary() && !one.efa_only;
    if is_complete && count > 0 && !interfaces.iter().any(is_primary) {
        field.error(
            "has no primary interface",
            "add networkCardIndex: 0, deviceIndex: 0 and interfaceType: interface".to_owned(),
        );
    }
    if count > 1 && public_address == Some(true) {
        field.error(
            "has several interfaces beside `associatePublicIPAddress: true`, which EC2 refuses",
            "remove associatePublicIPAddress, or state one interface".to_owned(),
        );
    }
    interfaces
}

fn network_interface(map: &FieldMap<'_>) -> Option<NetworkInterface> {
    let index = |key| map.required(key).and_then(|field: Field<'_>| field.int(0));
    let (card, device) = (index("networkCardIndex"), index("deviceIndex"));
    let kinds = [("interface", false), ("efa-only", true)];
    let efa_only = map.required("interfaceType").and_then(|field| field.choice(&kinds));
    map.finish_with_typo_check();
    Some(NetworkInterface { card: card?, device: device?, efa_only: efa_only? })
}

/// Reads the idle timeouts, with the bounds of Karpenter.
fn connection_tracking(field: &Field<'_>) -> Option<ConnectionTracking> {
    let map = field.map()?;
    let seconds = |key, least: i32, most: i32| {
        let field = map.get(key)?;
        let seconds = field.int(least.into())?;
        if seconds > most {
            field.error(format_args!("is {seconds}, above {most}"), None);
            return None;
        }
        Some(seconds)
    };
    let tracking = ConnectionTracking {
        tcp_established: seconds("tcpEstablishedTimeout", 60, 432_000),
        udp_stream: seconds("udpStreamTimeout", 60, 180),
        udp: seconds("udpTimeout", 30, 60),
    };
    if map.entries().next().is_none() {
        field.error("states no timeout", "state tcpEstablishedTimeout or another".to_owned());
    }
    map.finish_with_typo_check();
    (tracking != ConnectionTracking::default()).then_some(tracking)
}

fn nested_virtualization(field: &Field<'_>) -> Option<bool> {
    let map = field.map()?;
    let states = [("enabled", true), ("disabled", false)];
    let nested = map.get("nestedVirtualization").and_then(|f| f.choice(&states));
    map.finish_with_typo_check();
    nested
}

fn metadata(field: &Field<'_>) -> MetadataOptions {
    let mut options = MetadataOptions::default();
    let Some(map) = field.map() else { return options };
    let states = [("enabled", true), ("disabled", false)];
    let choice = |key| map.get(key).and_then(|f: Field<'_>| f.choice(&states));
    options.enabled = choice("httpEndpoint").unwrap_or(options.enabled);
    options.ipv6 = choice("httpProtocolIPv6").unwrap_or(options.ipv6);
    let hops = map.get("httpPutResponseHopLimit").and_then(|field| {
        let hops = field.int(1)?;
        if hops > HOPS_MAX {
            field.error(format_args!("is {hops}, above {HOPS_MAX}"), None);
        }
        Some(hops)
    });
    options.hop_limit = hops.unwrap_or(options.hop_limit);
    let tokens = [("required", true), ("optional", false)];
    let tokens = map.get("httpTokens").and_then(|f| f.choice(&tokens));
    options.tokens_required = tokens.unwrap_or(options.tokens_required);
    map.finish_with_typo_check();
    options
}

fn devices(field: &Field<'_>) -> Vec<BlockDevice> {
    field.items().filter_map(|item| device(&item.map()?)).collect()
}

fn device(map: &FieldMap<'_>) -> Option<BlockDevice> {
    let name = map.required("deviceName")?.non_empty_text()?.into_owned();
    map.ignore(&["rootVolume"]);
    let mut device = BlockDevice { name, ..BlockDevice::default() };
    if let Some(ebs) = map.get("ebs").as_ref().and_then(Field::map) {
        let text =
            |key| ebs.get(key).and_then(|f: Field<'_>| Some(f.non_empty_text()?.into_owned()));
        device.gib = ebs.get("volumeSize").and_then(|field| gib(&field));
        device.kind = text("volumeType");
        device.iops = ebs.get("iops").and_then(|f| f.int(1));
        device.throughput = ebs.get("throughput").and_then(|f| f.int(1));
        device.encrypted = ebs.get("encrypted").and_then(|f| f.boolean());
        device.kms_key = text("kmsKeyID");
        device.snapshot = text("snapshotID");
        device.delete_on_termination = ebs.get("deleteOnTermination").and_then(|f| f.boolean());
        let without = "volumes are created without it";
        warn_unsupported(&ebs, &["volumeInitializationRate"], without);
        ebs.finish_with_typo_check();
    }
    map.finish_with_typo_check();
    Some(device)
}

/// Reads a size in whole GiB, rounded up as EC2 requires. A number without a unit is one of bytes.
fn gib(field: &Field<'_>) -> Option<i32> {
    let bytes = Bytes::from_quantity(super::super::resource_list::non_negative_quantity(field)?).0;
    let gib = bytes.saturating_add(Bytes::GIB - 1) / Bytes::GIB;
    // The minimum of all generations of Karpenter.
    let size = i32::try_from(gib).ok().filter(|_| bytes >= Bytes::GIB);
    if size.is_none() {
        let text = field.node.text().unwrap_or_default();
        field.error(
            format_args!("is `{}`, not a volume size of 1Gi or more", shorten(text)),
            "write a number with a unit, such as 100Gi".to_owned(),
        );
    }
    size
}
