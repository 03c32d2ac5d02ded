//! `EC2NodeClass` (v1, v1beta1) and `AWSNodeTemplate` (v1alpha1).

use std::sync::Arc;

use super::super::collector::{Collector, Definition};
use super::super::decode::{Field, FieldMap, shorten};
use super::super::object_meta::ObjectMeta;
use super::super::placeholder;
use super::super::yaml::YamlValue;
use super::finish_root;
use super::instance_settings::instance_settings;
use super::kubelet::kubelet;
use super::node_pool::string_map;
use super::spec_digest::{canonical, digests, sha256};
use crate::model::desired::{
    AmiFamily, EfaInterfaces, Generation, InstanceSettings, KubeletSettings, MetadataOptions,
    NodeClass, ReservationTerm, Severity,
};
use crate::model::similar_name::most_similar;
use crate::model::units::{Bytes, Quantity};

/// Values of `amiFamily`.
const FAMILIES: [(&str, AmiFamily); 8] = [
    ("AL2", AmiFamily::Al2),
    ("AL2023", AmiFamily::Al2023),
    ("Bottlerocket", AmiFamily::Bottlerocket),
    ("Windows2019", AmiFamily::Windows),
    ("Windows2022", AmiFamily::Windows),
    ("Windows2025", AmiFamily::Windows),
    ("Ubuntu", AmiFamily::Ubuntu),
    ("Custom", AmiFamily::Custom),
];

/// Fields that may change without any change to the setup of an instance, as in Karpenter.
const WITHOUT_DRIFT: &[&str] = &["capacityReservationSelectorTerms", "ipPrefixCount"];

/// Lists of terms without which no instance can be launched.
const LAUNCH_SELECTORS: [&str; 2] = ["subnetSelectorTerms", "securityGroupSelectorTerms"];

/// Types of volumes.
const VOLUME_TYPES: [&str; 7] = ["standard", "io1", "io2", "gp2", "sc1", "st1", "gp3"];

/// Units of a volume size, each with the maximum number.
const SIZE_UNITS: [(&str, u32); 4] = [("Gi", 59_000), ("G", 64_000), ("Ti", 58), ("T", 64)];

/// Maximum block devices of a class.
const DEVICES_MAX: u32 = 50;

/// Tag keys that Karpenter's API refuses in a class.
const RESERVED_TAGS: [&str; 4] = [
    "eks:eks-cluster-name",
    "karpenter.k8s.aws/ec2nodeclass",
    "karpenter.sh/nodeclaim",
    "karpenter.sh/nodepool",
];
/// Prefixes of tag keys that mark the owner of an instance.
const RESERVED_TAG_PREFIXES: [&str; 2] = ["fleetwright.dev/", "kubernetes.io/cluster"];

/// Annotation of a class whose nodes use prefix delegation.
const PREFIX_DELEGATION: &str = "fleetwright.dev/prefix-delegation";

/// Fields of v1alpha1 that do not affect a node's allocatable.
const ALPHA_IRRELEVANT: &[&str] = &["apiVersion", "kind"];

/// Reads an `EC2NodeClass` of `generation`.
pub(in super::super) fn node_class(
    generation: Generation,
    meta: ObjectMeta,
    root: &FieldMap<'_>,
    into: &mut Collector,
) {
    finish_root(root);
    let Some(spec) = root.required("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let image = image(&spec, generation);
    let kubelet = match generation {
        Generation::V1 => spec.get("kubelet").map(|field| kubelet(&field)),
        Generation::V1beta1 | Generation::V1alpha5 | Generation::Eksctl => None,
    };
    let (role, profile) = (spec.get("role"), spec.get("instanceProfile"));
    match (role, profile) {
        (None, None) => {
            let hint = "state one of them, as the API server requires".to_owned();
            spec.field.error("has neither `role` nor `instanceProfile`", hint);
        }
        (Some(role), Some(_)) => role.error("conflicts with `instanceProfile`", None),
        (Some(_), None) | (None, Some(_)) => {}
    }
    require_selectors(&spec);
    if let Some(devices) = spec.get("blockDeviceMappings") {
        check_devices(&devices);
    }
    if let Some(tags) = spec.get("tags") {
        refuse_reserved_tags(&tags);
    }
    let family = image.as_ref().map_or(AmiFamily::Custom, |(family, _)| *family);
    let class = settings(&spec, generation, meta, family);
    // Selector terms may name any year, and the stated family decides.
    let named = spec.get("amiFamily").and_then(|field| field.node.text());
    let named = named.or_else(|| image.as_ref().map(|(_, image)| image.as_str()));
    let windows_build = named.and_then(|name| family.windows_build(name));
    let alias = image.as_ref().and_then(|(_, image)| image_alias(image));
    let instance_settings = instance_settings(&spec, alias, generation);
    spec.finish_with_typo_check();
    let Some((_, image)) = image else { return };
    let kubelet = kubelet.unwrap_or_default();
    add(NodeClass { windows_build, image, kubelet, instance_settings, ..class }, root, into);
}

/// Reports the lists of [`LAUNCH_SELECTORS`] that are absent or empty.
fn require_selectors(spec: &FieldMap<'_>) {
    for key in LAUNCH_SELECTORS {
        if let Some(terms) = spec.required(key)
            && matches!(&terms.node.value, YamlValue::Seq(items) if items.is_empty())
        {
            terms.error("selects nothing", "state tags or an id".to_owned());
        }
    }
}

/// Reports block devices that the API server refuses.
fn check_devices(devices: &Field<'_>) {
    if devices.scope.verbatim {
        return;
    }
    let (mut roots, mut count) = (0, 0);
    for item in devices.items() {
        let Some(map) = item.map() else { continue };
        count += 1;
        let is_root = map.get("rootVolume").is_some_and(|root| root.node.text() == Some("true"));
        roots += u32::from(is_root);
        let Some(ebs) = map.get("ebs") else { continue };
        let Some(volume) = ebs.map() else { continue };
        let (size, snapshot) = (volume.get("volumeSize"), volume.get("snapshotID"));
        if size.is_none() && snapshot.is_none() {
            ebs.error("has neither `volumeSize` nor `snapshotID`", None);
        }
        if let Some(rate) = volume.get("volumeInitializationRate").filter(|_| snapshot.is_none()) {
            rate.error("needs a `snapshotID`", None);
        }
        if let Some(size) = size {
            check_volume_size(&size);
        }
        if let Some(kind) = volume.get("volumeType") {
            kind.choice(&VOLUME_TYPES.map(|kind| (kind, ())));
        }
    }
    if roots > 1 {
        devices.error("has more than one `rootVolume`", None);
    }
    if count > DEVICES_MAX {
        devices.error(format_args!("lists {count} devices, more than {DEVICES_MAX}"), None);
    }
}

/// Reports a size in a unit, or of an amount, that the API server refuses.
fn check_volume_size(size: &Field<'_>) {
    let text = placeholder::substitute(size.node.text().unwrap_or_default(), size.scope.vars).text;
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let is_known = SIZE_UNITS.iter().find(|(known, _)| *known == unit);
    let is_valid = is_known.is_some_and(|(_, most)| {
        !number.starts_with('0') && number.parse::<u32>().is_ok_and(|number| number <= *most)
    });
    // The reader of the size reports a wrong quantity, and less than 1Gi.
    let is_read = |size: Quantity| Bytes::from_quantity(size).0 >= Bytes::GIB;
    if !is_valid && text.parse().is_ok_and(is_read) {
        size.error(
            format_args!("is `{}`, not a size that the API server accepts", shorten(&text)),
            "write a whole number of Gi or G (up to 59000Gi), or of Ti or T".to_owned(),
        );
    }
}

fn refuse_reserved_tags(tags: &Field<'_>) {
    let Some(map) = tags.map() else { return };
    for (key, field) in map.entries() {
        let has_prefix = RESERVED_TAG_PREFIXES.iter().any(|prefix| key.starts_with(prefix));
        if key.is_empty() {
            field.error("is a tag without a key", None);
        } else if has_prefix || RESERVED_TAGS.contains(&key) {
            field.error("is a reserved tag", "remove it".to_owned());
        }
    }
}

/// Reads an `AWSNodeTemplate`.
pub(in super::super) fn node_template(meta: ObjectMeta, root: &FieldMap<'_>, into: &mut Collector) {
    finish_root(root);
    let Some(spec) = root.required("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let family = family(spec.get("amiFamily"), Generation::V1alpha5);
    let name = spec.get("amiFamily").and_then(|field| field.node.text());
    let selector = spec.get("amiSelector");
    let image = match &selector {
        Some(selector) => canonical(selector.node, selector.scope.vars, &[]),
        None => format!("{}@latest", name.unwrap_or("AL2").to_ascii_lowercase()),
    };
    for key in ["launchTemplate", "launchTemplateName"] {
        if let Some(template) = spec.get(key) {
            template.warn(
                "names a launch template, whose image, disks and user data are not known",
                "move what it sets into the AWSNodeTemplate".to_owned(),
            );
        }
    }
    spec.ignore(ALPHA_IRRELEVANT);
    // This generation defaults to Amazon Linux 2.
    let known = family.as_ref().map_or(AmiFamily::Custom, |f| f.unwrap_or(AmiFamily::Al2));
    let class = settings(&spec, Generation::V1alpha5, meta, known);
    let windows_build = name.and_then(|name| known.windows_build(name));
    let instance_settings = instance_settings(&spec, image_alias(&image), Generation::V1alpha5);
    spec.finish_with_typo_check();
    if family.is_ok() {
        add(NodeClass { windows_build, image, instance_settings, ..class }, root, into);
    }
}

fn add(class: NodeClass, root: &FieldMap<'_>, into: &mut Collector) {
    let mut class = NodeClass {
        efa: class.instance_settings.efa_interfaces(),
        unreadable: root.field.scope.first_failed_field(),
        ..class
    };
    // The API server fills in the defaults, which are then no change.
    if class.instance_settings.metadata == MetadataOptions::default() {
        Arc::make_mut(&mut class.spec_digests).remove("metadataOptions");
    }
    if class.instance_settings.network_interfaces.is_empty() {
        Arc::make_mut(&mut class.spec_digests).remove("networkInterfaces");
    }
    let named = Definition {
        kind: "EC2NodeClass",
        name: class.name.to_string(),
        scope: root.field.scope,
        origin: class.origin.clone(),
    };
    let same =
        |a: &NodeClass, b: &NodeClass| NodeClass { origin: b.origin.clone(), ..a.clone() } == *b;
    into.insert(named, |all| &mut all.desired.node_classes, class.name.clone(), class, same);
}

/// Returns `image` if it is an alias rather than selector terms.
fn image_alias(image: &str) -> Option<&str> {
    let (family, _) = image.split_once('@')?;
    family.chars().all(|c| c.is_ascii_alphanumeric()).then_some(image)
}

/// Reads the fields that all generations share. Image and kubelet keep their defaults.
fn settings(
    spec: &FieldMap<'_>,
    generation: Generation,
    meta: ObjectMeta,
    family: AmiFamily,
) -> NodeClass {
    let policies = [("RAID0", true)];
    let raid0 = spec.get("instanceStorePolicy").and_then(|field| field.choice(&policies));
    let user_data = spec.get("userData").and_then(|field| Some(sha256(field.node.text()?)));
    let vars = spec.field.scope.vars;
    let spec_digests = digests(spec.field.node, vars, WITHOUT_DRIFT);
    let prefix_delegation = prefix_delegation(spec, &meta);
    NodeClass {
        name: meta.name.into(),
        origin: meta.origin,
        generation,
        ami_family: family,
        windows_build: None,
        image: String::new(),
        kubelet: KubeletSettings::default(),
        ephemeral_storage: spec
            .get("blockDeviceMappings")
            .and_then(|field| ephemeral_storage(&field, family)),
        instance_store_raid0: raid0.unwrap_or(false),
        reservations: spec
            .get("capacityReservationSelectorTerms")
            .map(|field| reservation_terms(&field))
            .unwrap_or_default(),
        prefix_delegation,
        eks_caps_pods: false,
        efa: EfaInterfaces::Absent,
        user_data_digest: user_data,
        tags: spec.get("tags").map(|field| string_map(&field)).unwrap_or_default(),
        instance_settings: InstanceSettings::default(),
        spec_digests: spec_digests.into(),
        unreadable: None,
    }
}

/// Reads the terms that select capacity reservations.
fn reservation_terms(field: &Field<'_>) -> Vec<ReservationTerm> {
    let term = |item: Field<'_>| {
        let map = item.map()?;
        let filled = |key, is_valid: fn(&str) -> bool| {
            let field = map.get(key)?;
            let text = field.non_empty_text()?.into_owned();
            if !is_valid(&text) {
                field.error(format_args!("is `{}`, not an id", shorten(&text)), None);
            }
            Some(text)
        };
        let criteria = [("open", false), ("targeted", true)];
        let term = ReservationTerm {
            id: filled("id", is_reservation),
            tags: map.get("tags").map(|field| string_map(&field)).unwrap_or_default(),
            owner: filled("ownerID", is_account),
            targeted: map.get("instanceMatchCriteria").and_then(|f| f.choice(&criteria)),
        };
        map.finish_with_typo_check();
        let beside = term.owner.is_some() || term.targeted.is_some() || !term.tags.is_empty();
        if term.id.is_some() && beside {
            item.error("has an `id`, which excludes other conditions", None);
        } else if term.id.is_none() && term.targeted.is_none() && term.tags.is_empty() {
            let hint = "state an id, tags or instanceMatchCriteria".to_owned();
            let owned = if term.owner.is_some() { " of an account" } else { "" };
            item.error(format_args!("selects every reservation{owned}"), hint);
            return None;
        }
        Some(term)
    };
    field.items().filter_map(term).collect()
}

/// Returns true for an id such as `cr-0a1b2c3d`.
fn is_reservation(id: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_digit() || byte.is_ascii_lowercase();
    id.strip_prefix("cr-").is_some_and(|rest| !rest.is_empty() && rest.bytes().all(is_inner))
}

/// Returns true for the id of an AWS account.
fn is_account(id: &str) -> bool {
    id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_digit())
}

/// Reads the prefix delegation annotation.
fn prefix_delegation(spec: &FieldMap<'_>, meta: &ObjectMeta) -> bool {
    match meta.annotations.get(PREFIX_DELEGATION).map(String::as_str) {
        Some("true") => true,
        None | Some("false") => false,
        Some(other) => {
            spec.field.scope.report_problem(
                Severity::Error,
                meta.origin.line,
                format!("annotation `{PREFIX_DELEGATION}` is `{}`", shorten(other)),
                Some("write \"true\" or \"false\"".to_owned()),
            );
            false
        }
    }
}

/// The value is wrong, and the problem is already reported.
struct AlreadyReported;

/// Reads `amiFamily`, if present.
fn family(
    field: Option<Field<'_>>,
    generation: Generation,
) -> Result<Option<AmiFamily>, AlreadyReported> {
    let Some(field) = field else { return Ok(None) };
    let there = |(_, family): &&(&'static str, AmiFamily)| {
        generation != Generation::V1 || *family != AmiFamily::Ubuntu
    };
    let families: Vec<_> = FAMILIES.iter().filter(there).copied().collect();
    field.choice(&families).map(Some).ok_or(AlreadyReported)
}

/// Reads the family and the image of an `EC2NodeClass`; `None` after reporting a problem.
fn image(spec: &FieldMap<'_>, generation: Generation) -> Option<(AmiFamily, String)> {
    let stated = spec.get("amiFamily");
    let name = stated.as_ref().and_then(|field| field.node.text()).unwrap_or_default();
    let latest = format!("{}@latest", name.to_ascii_lowercase());
    let terms = spec.get("amiSelectorTerms").filter(|terms| {
        let is_empty = matches!(&terms.node.value, YamlValue::Seq(items) if items.is_empty());
        if is_empty && generation == Generation::V1 {
            terms.error("selects nothing", "state an alias, tags or an id".to_owned());
        }
        !is_empty
    });
    let aliased = terms.as_ref().map_or(Ok(None), alias);
    let (Ok(family), Ok(aliased)) = (family(stated, generation), aliased) else { return None };
    match (terms, aliased, family) {
        (_, Some((alias, aliased)), stated) => {
            let stated = stated.unwrap_or(aliased);
            if ![aliased, AmiFamily::Custom].contains(&stated)
                && let Some(field) = spec.get("amiFamily")
            {
                field.error(format_args!("does not agree with the alias `{alias}`"), None);
            }
            Some((stated, alias))
        }
        (Some(terms), None, family) => {
            if family.is_none() {
                spec.field.error(
                    "has no `amiFamily`, which selector terms without an alias need",
                    "write amiFamily: AL2023 or another family, or select by alias".to_owned(),
                );
            }
            Some((family?, canonical(terms.node, terms.scope.vars, &[])))
        }
        (None, None, family) if generation == Generation::V1 => {
            spec.required("amiSelectorTerms");
            Some((family?, latest))
        }
        (None, None, Some(family)) => Some((family, latest)),
        (None, None, None) => {
            spec.required("amiFamily");
            None
        }
    }
}

/// Reads the alias among the terms, if there is one.
fn alias(terms: &Field<'_>) -> Result<Option<(String, AmiFamily)>, AlreadyReported> {
    let count = terms.items().count();
    for item in terms.items() {
        let Some(term) = item.map() else { return Err(AlreadyReported) };
        let Some(field) = term.get("alias") else { continue };
        if count > 1 {
            field.error("conflicts with the other terms: an alias must be the only one", None);
        }
        return read_alias(&field).map(Some).ok_or(AlreadyReported);
    }
    Ok(None)
}

/// Reads an alias such as `al2023@latest`, and returns its family.
fn read_alias(field: &Field<'_>) -> Option<(String, AmiFamily)> {
    const FAMILIES: [(&str, AmiFamily); 6] = [
        ("al2", AmiFamily::Al2),
        ("al2023", AmiFamily::Al2023),
        ("bottlerocket", AmiFamily::Bottlerocket),
        ("windows2019", AmiFamily::Windows),
        ("windows2022", AmiFamily::Windows),
        ("windows2025", AmiFamily::Windows),
    ];
    let text = field.text()?;
    let (name, version) = text.split_once('@').unwrap_or((&text, ""));
    let known = FAMILIES.iter().find(|(known, _)| *known == name && !version.is_empty());
    if let Some((_, family)) = known {
        if *family == AmiFamily::Windows && version != "latest" {
            field.error(
                format_args!("is `{}`, but Windows images have no versions", shorten(&text)),
                format!("write {name}@latest"),
            );
        }
        return Some((text.into_owned(), *family));
    }
    let names: Vec<&str> = FAMILIES.iter().map(|(name, _)| *name).collect();
    let near = most_similar(name, &names).unwrap_or("al2023");
    field.error(
        format_args!("is `{}`, not family@version of a known family", shorten(&text)),
        format!("write {near}@latest; families are {}", names.join(", ")),
    );
    None
}

/// The name and size of a block device.
struct DeviceSize {
    name: String,
    root: bool,
    size: Option<i64>,
}

/// Returns the size of the volume that holds the kubelet's data: the root volume, else the family's
/// device, else the last one for custom images.
fn ephemeral_storage(field: &Field<'_>, family: AmiFamily) -> Option<i64> {
    let devices: Vec<DeviceSize> =
        field.items().filter_map(|item| Some(device(&item.map()?))).collect();
    let chosen = devices.iter().find(|device| device.root).or_else(|| match family.devices() {
        // Pods use the last of an image's volumes.
        [.., (name, _)] => devices.iter().find(|device| device.name == *name),
        [] => devices.last(),
    });
    chosen.and_then(|device| device.size)
}

fn device(map: &FieldMap<'_>) -> DeviceSize {
    let name = map.get("deviceName").and_then(|field| field.text());
    let root = map.get("rootVolume").and_then(|field| field.boolean()).unwrap_or(false);
    let size = map.get("ebs").and_then(|field| {
        let ebs = field.map()?;
        let size = ebs.get("volumeSize")?;
        Some(Bytes::from_quantity(super::super::resource_list::non_negative_quantity(&size)?).0)
    });
    DeviceSize { name: name.unwrap_or_default().into_owned(), root, size }
}
