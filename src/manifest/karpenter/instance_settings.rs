//! The fields of a node class that only a launch needs.
//!
//! The generations differ in names. v1alpha1 selects by one map of tags, in which `aws-ids` and
//! `aws::ids` stand for ids; v1beta1 and v1 have lists of terms.

use super::super::decode::{Field, FieldMap, shorten};
use super::node_pool::string_map;
use super::warn_unsupported;
use crate::model::desired::{
    BlockDevice, ConnectionTracking, Ec2Selector, Identity, ImageTerm, InstanceSettings,
    MetadataOptions, UserData,
};
use crate::model::units::Bytes;

/// Keys of a v1alpha1 selector that stand for ids.
const ID_KEYS: [&str; 2] = ["aws-ids", "aws::ids"];
/// Keys of a v1alpha1 selector that stand for names.
const NAME_KEYS: [&str; 1] = ["aws::name"];

/// Reads the launch settings of instances. `alias` is the AMI alias of the class, if any.
pub(super) fn instance_settings(spec: &FieldMap<'_>, alias: Option<&str>) -> InstanceSettings {
    let one_of = |terms: &'static str, map: &'static str| {
        let terms = spec.get(terms).map(|field| selectors(&field));
        terms.or_else(|| spec.get(map).map(|field| tag_selectors(&field))).unwrap_or_default()
    };
    let text = |key| spec.get(key).and_then(|f: Field<'_>| Some(f.non_empty_text()?.into_owned()));
    let identity = match (text("instanceProfile"), text("role")) {
        (Some(profile), _) => Identity::Profile(profile),
        (None, Some(role)) => Identity::Role(role),
        (None, None) => Identity::None,
    };
    InstanceSettings {
        subnets: one_of("subnetSelectorTerms", "subnetSelector"),
        security_groups: one_of("securityGroupSelectorTerms", "securityGroupSelector"),
        images: images(spec, alias),
        identity,
        user_data: spec.get("userData").and_then(|f| Some(UserData::new(&f.script()?))),
        metadata: spec.get("metadataOptions").map(|f| metadata(&f)).unwrap_or_default(),
        devices: spec.get("blockDeviceMappings").map(|f| devices(&f)).unwrap_or_default(),
        public_address: spec.get("associatePublicIPAddress").and_then(|f| f.boolean()),
        detailed_monitoring: spec.get("detailedMonitoring").and_then(|f| f.boolean()) == Some(true),
        connection_tracking: spec.get("connectionTracking").and_then(|f| connection_tracking(&f)),
        nested_virtualization: spec.get("cpuOptions").and_then(|f| nested_virtualization(&f)),
        context: text("context"),
    }
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

fn images(spec: &FieldMap<'_>, alias: Option<&str>) -> Vec<ImageTerm> {
    let aliased = alias.and_then(|alias| alias.split_once('@'));
    if let Some((family, version)) = aliased {
        let (family, version) = (family.to_owned(), version.to_owned());
        return vec![ImageTerm::Alias { family, version }];
    }
    if let Some(terms) = spec.get("amiSelectorTerms") {
        return terms.items().filter_map(|item| image_term(&item)).collect();
    }
    let selector = spec.get("amiSelector").map(|field| tag_selectors(&field)).unwrap_or_default();
    selector.into_iter().map(|selector| ImageTerm::Owned(selector, None)).collect()
}

fn image_term(item: &Field<'_>) -> Option<ImageTerm> {
    let map = &item.map()?;
    let text = |key| map.get(key).and_then(|f: Field<'_>| Some(f.non_empty_text()?.into_owned()));
    let (parameter, selector, owner) = (text("ssmParameter"), selector(map), text("owner"));
    map.ignore(&["alias"]);
    map.finish_with_typo_check();
    if let Some(parameter) = parameter {
        return Some(ImageTerm::Parameter(parameter));
    }
    is_selective(item, map, &selector).then_some(ImageTerm::Owned(selector, owner))
}

fn selectors(field: &Field<'_>) -> Vec<Ec2Selector> {
    let read = |item: Field<'_>| {
        let map = item.map()?;
        let selector = selector(&map);
        map.finish_with_typo_check();
        is_selective(&item, &map, &selector).then_some(selector)
    };
    field.items().filter_map(read).collect()
}

/// Returns whether a term has a condition, and reports one that selects everything. An unreadable
/// term is already reported.
fn is_selective(item: &Field<'_>, map: &FieldMap<'_>, selector: &Ec2Selector) -> bool {
    if *selector != Ec2Selector::default() {
        return true;
    }
    let states_tags = |tags: Field<'_>| tags.map().is_some_and(|m| m.entries().next().is_some());
    let mut entries = map.entries();
    if entries.all(|(key, field)| key == "tags" && !states_tags(field)) {
        item.error("selects everything", "state tags or an id".to_owned());
    }
    false
}

fn selector(map: &FieldMap<'_>) -> Ec2Selector {
    let text = |key| map.get(key).and_then(|f: Field<'_>| Some(f.non_empty_text()?.into_owned()));
    let tags = map.get("tags").map(|field| string_map(&field)).unwrap_or_default();
    Ec2Selector { id: text("id"), name: text("name"), tags }
}

/// Reads a v1alpha1 selector: a map of tags, or of comma-separated ids or names.
fn tag_selectors(field: &Field<'_>) -> Vec<Ec2Selector> {
    let mut tags = string_map(field);
    let mut listed = |keys: &[&str]| -> Vec<String> {
        let found = keys.iter().find_map(|key| tags.remove(*key)).unwrap_or_default();
        found.split(',').map(str::trim).filter(|t| !t.is_empty()).map(str::to_owned).collect()
    };
    let (ids, names) = (listed(&ID_KEYS), listed(&NAME_KEYS));
    let by_id = ids.into_iter().map(|id| Ec2Selector { id: Some(id), ..Ec2Selector::default() });
    let by_name =
        names.into_iter().map(|name| Ec2Selector { name: Some(name), ..Ec2Selector::default() });
    let mut all: Vec<Ec2Selector> = by_id.chain(by_name).collect();
    for selector in &mut all {
        selector.tags.clone_from(&tags);
    }
    if all.is_empty() && !tags.is_empty() {
        all.push(Ec2Selector { tags, ..Ec2Selector::default() });
    }
    all
}

fn metadata(field: &Field<'_>) -> MetadataOptions {
    let mut options = MetadataOptions::default();
    let Some(map) = field.map() else { return options };
    let states = [("enabled", true), ("disabled", false)];
    let choice = |key| map.get(key).and_then(|f: Field<'_>| f.choice(&states));
    options.enabled = choice("httpEndpoint").unwrap_or(options.enabled);
    options.ipv6 = choice("httpProtocolIPv6").unwrap_or(options.ipv6);
    let hops = map.get("httpPutResponseHopLimit").and_then(|f| f.int(1));
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
