//! `nodeGroups` and `managedNodeGroups`: a pool of one shape, its node class, and its size limits.
//!
//! Sizes follow eksctl's defaults. The minimum is `minSize`, else `desiredCapacity`, else 2. The
//! maximum is `maxSize`, else `desiredCapacity`, else the minimum.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::SignedDuration;

use super::super::collector::{Collector, Definition};
use super::super::decode::{Field, FieldMap, shorten};
use super::super::karpenter::{canonical, kubelet, sha256};
use super::super::labels::{LabelOwner, labels};
use super::super::pod_spec::taints;
use super::super::yaml::YamlValue;
use super::bootstrap_command;
use super::bottlerocket::{self, BottlerocketSettings};
use crate::model::desired::{
    AmiFamily, Consolidation, EfaInterfaces, Expiry, Generation, GroupKind, InstanceSettings,
    KubeletSettings, NodeClass, NodeGroup, Pool, PoolLimits, PoolRequirement, ReservationTerm,
    discovery_tags,
};
use crate::model::ids::{InstanceTypeName, Labels, PoolName, ZoneName};
use crate::model::market::{CapacityMix, CapacityType};
use crate::model::node_annotations::NodeAnnotations;
use crate::model::pod::{Taint, TaintEffect};
use crate::model::requirement::{Operator, key, label};
use crate::model::units::MicroUsd;

/// Default instance type of a group.
const DEFAULT_TYPE: &str = "m5.large";
/// Default number of nodes of a group.
const DEFAULT_SIZE: u32 = 2;
/// Default volume size of a group, in GiB.
const DEFAULT_VOLUME_GIB: i64 = 80;

/// Fields that do not affect capacity.
const IRRELEVANT: &[&str] = &[
    "additionalVolumes",
    "asgMetricsCollection",
    "asgSuspendProcesses",
    "capacityReservation",
    "classicLoadBalancerNames",
    "clusterDNS",
    "containerRuntime",
    "cpuCredits",
    "disableASGTagPropagation",
    "disableIMDSv1",
    "disablePodIMDS",
    "ebsOptimized",
    "enclaveEnabled",
    "enableDetailedMonitoring",
    "iam",
    "instanceName",
    "instancePrefix",
    "maxInstanceLifetime",
    "nodeRepairConfig",
    "outpostARN",
    "placement",
    "preBootstrapCommands",
    "privateNetworking",
    "propagateASGTags",
    "releaseVersion",
    "securityGroups",
    "ssh",
    "subnets",
    "targetGroupARNs",
    "updateConfig",
    "version",
    "volumeEncrypted",
    "volumeIOPS",
    "volumeKmsKeyID",
    "volumeName",
    "volumeThroughput",
    "volumeType",
];

/// What a cluster states for all of its groups.
pub(super) struct ClusterSettings {
    pub(super) name: String,
    /// Tags for Cluster Autoscaler.
    pub(super) tags: BTreeMap<String, String>,
}

/// Reads one node group of `cluster`.
pub(super) fn group(
    kind: &GroupKind,
    cluster: &ClusterSettings,
    field: &Field<'_>,
    into: &mut Collector,
) {
    let Some(map) = field.map() else { return };
    let Some(name) = map.required("name").and_then(|name| name.non_empty_text()) else { return };
    let capacity = GroupCapacity::from_map(kind, &map);
    let (min, max, desired) = sizes(kind, &map);
    let node_labels = map.get("labels").map(|f| labels(&f, LabelOwner::Node)).unwrap_or_default();
    let node_taints = read_taints(map.get("taints"));
    let mut tags = cluster.tags.clone();
    tags.extend(map.get("tags").map(|f| string_map(&f)).unwrap_or_default());
    if has_autoscaler_policy(&map) {
        tags.extend(discovery_tags(&cluster.name));
    }
    check_taint_tags(&map, &node_taints);
    let zones = ["availabilityZones", "localZones"].into_iter().filter_map(|key| map.get(key));
    let zones: Vec<String> = zones.flat_map(|field| field.text_list()).collect();
    let group = NodeGroup {
        name: PoolName::from(&*name),
        origin: field.origin(),
        kind: kind.clone(),
        cluster: cluster.name.clone(),
        min,
        max,
        desired,
        types: capacity.types.clone(),
        zones: zones.iter().map(|zone| zone.as_str().into()).collect(),
        tags,
        mix: capacity.mix,
        max_spot_price: capacity.max_spot_price,
        manage: false,
    };
    let class = node_class(&group, &capacity, &map);
    map.ignore(IRRELEVANT);
    map.finish_with_typo_check();
    let pool = pool(&group, &capacity, node_labels, node_taints, field);
    add(group, pool, class, field, into);
}

fn add(group: NodeGroup, pool: Pool, class: NodeClass, field: &Field<'_>, into: &mut Collector) {
    let named = |kind| Definition {
        kind,
        name: group.name.to_string(),
        scope: field.scope,
        origin: group.origin.clone(),
    };
    // Groups and pools share a name space, because nodes and plans refer to both by name alone.
    let same = |a: &Pool, b: &Pool| Pool { origin: b.origin.clone(), ..a.clone() } == *b;
    into.insert(named("NodePool"), |all| &mut all.desired.pools, group.name.clone(), pool, same);
    let key = class.name.clone();
    let same = |a: &NodeClass, b: &NodeClass| a.spec_digests == b.spec_digests;
    into.insert(named("node group"), |all| &mut all.desired.node_classes, key, class, same);
    into.desired.node_groups.entry(group.name.clone()).or_insert(group);
}

/// The instance types and purchase options of a group.
struct GroupCapacity {
    types: Vec<InstanceTypeName>,
    /// Capacity type of every node; on-demand if the group mixes the two.
    capacity_type: CapacityType,
    /// Purchase options of a group that mixes spot and on-demand.
    mix: Option<CapacityMix>,
    /// Maximum hourly price of a spot instance.
    max_spot_price: Option<MicroUsd>,
    /// Capacity reservation that nodes of Capacity Blocks run in.
    reservation: Option<ReservationTerm>,
}

impl GroupCapacity {
    fn from_map(kind: &GroupKind, map: &FieldMap<'_>) -> Self {
        let one = map.get("instanceType").and_then(|field| field.non_empty_text());
        let one = one.filter(|name| name != "mixed").map(|name| InstanceTypeName::from(&*name));
        let several = match kind {
            GroupKind::Managed => {
                let types = map.get("instanceTypes").map(|field| field.text_list());
                let spot = map.get("spot").and_then(|field| field.boolean()).unwrap_or(false);
                InstancesDistribution {
                    types: types.unwrap_or_default(),
                    spot,
                    ..InstancesDistribution::default()
                }
            }
            GroupKind::Unmanaged | GroupKind::External(_) => distribution(map),
        };
        if let Some(selector) = map.get("instanceSelector") {
            selector.error(
                "selects types by attributes, which is not supported yet",
                "name the types under `instanceType` or `instanceTypes`".to_owned(),
            );
        }
        let InstancesDistribution { types: listed, spot, mix, max_spot_price } = several;
        if let (Some(one), GroupKind::Managed, false) = (&one, kind, listed.is_empty()) {
            map.field.error(
                format_args!("has both `instanceType` {one} and `instanceTypes`"),
                "keep one of the two: eksctl refuses both".to_owned(),
            );
        }
        let mut types: Vec<InstanceTypeName> =
            listed.iter().map(|name| name.as_str().into()).collect();
        let template = map.get("launchTemplate");
        match (one, template) {
            _ if !types.is_empty() => {}
            (Some(one), _) => types.push(one),
            (None, None) => types.push(DEFAULT_TYPE.into()),
            // The template may name a type, which EC2 alone has.
            (None, Some(template)) => template.warn(
                "may name the instance type, and it is not in the repository: no node is planned in \
                 the group",
                "name the types under `instanceTypes`, or manage the group by the name of its Auto \
                 Scaling group"
                    .to_owned(),
            ),
        }
        let is_block = is_capacity_block(map);
        let reservation = reservation(map).filter(|_| is_block);
        if is_block && reservation.is_none() {
            map.field.warn(
                "launches in a Capacity Block and does not name its reservation: no node is planned \
                 in the group",
                "write the id in `capacityReservation.capacityReservationTarget`".to_owned(),
            );
        }
        let capacity_type = match (is_block, spot) {
            (true, _) => CapacityType::Reserved,
            (false, true) => CapacityType::Spot,
            (false, false) => CapacityType::OnDemand,
        };
        Self { types, capacity_type, mix, max_spot_price, reservation }
    }
}

/// Returns true if EC2 launches the nodes of a group in Capacity Blocks.
fn is_capacity_block(map: &FieldMap<'_>) -> bool {
    let market = map.get("instanceMarketOptions").and_then(|options| {
        let options = options.map()?;
        Some(options.get("marketType")?.text()?.into_owned())
    });
    market.as_deref() == Some("capacity-block")
}

/// Returns the capacity reservation that a group names by its id.
fn reservation(map: &FieldMap<'_>) -> Option<ReservationTerm> {
    let reservation = map.get("capacityReservation")?;
    let reservation = reservation.map()?;
    let target = reservation.get("capacityReservationTarget")?;
    let target = target.map()?;
    let id = target.get("capacityReservationID")?.text()?.into_owned();
    Some(ReservationTerm { id: Some(id), ..ReservationTerm::default() })
}

/// The instance types and purchase options of a group with several types.
#[derive(Default)]
struct InstancesDistribution {
    types: Vec<String>,
    spot: bool,
    mix: Option<CapacityMix>,
    max_spot_price: Option<MicroUsd>,
}

/// Reads `instancesDistribution`: its types, and its share of spot.
fn distribution(map: &FieldMap<'_>) -> InstancesDistribution {
    let Some(field) = map.get("instancesDistribution") else {
        return InstancesDistribution::default();
    };
    let Some(spread) = field.map() else { return InstancesDistribution::default() };
    let types = spread.required("instanceTypes").map(|field| field.text_list()).unwrap_or_default();
    let base = spread.get("onDemandBaseCapacity").and_then(|f| f.int::<u32>(0)).unwrap_or(0);
    let share = spread.get("onDemandPercentageAboveBaseCapacity");
    let share = share.and_then(|f| f.int::<u32>(0)).unwrap_or(100);
    let max_spot_price = spread.get("maxPrice").and_then(|field| price(&field));
    spread.ignore(&["capacityRebalance", "spotAllocationStrategy", "spotInstancePools"]);
    spread.finish_with_typo_check();
    if let Some(named) = map.get("instanceType").filter(|f| f.node.text() != Some("mixed")) {
        named.error("conflicts with `instancesDistribution`, which names the types", None);
    }
    let mix = CapacityMix { on_demand_base: base, on_demand_percent: share };
    let (spot, mix) = (mix.is_spot(), mix.is_mixed().then_some(mix));
    InstancesDistribution { types, spot, mix, max_spot_price }
}

fn price(field: &Field<'_>) -> Option<MicroUsd> {
    let text = field.text_or_number()?;
    let price = text.parse::<MicroUsd>().ok().filter(|price| price.0 > 0);
    if price.is_none() {
        field.error(
            format_args!("is `{}`, not a price in US dollars", shorten(&text)),
            "write a decimal with at most six digits after the point, such as 0.2".to_owned(),
        );
    }
    price
}

fn sizes(kind: &GroupKind, map: &FieldMap<'_>) -> (u32, u32, Option<u32>) {
    let read = |key| map.get(key).and_then(|field| field.int::<u32>(0));
    let (least, most, desired) = (read("minSize"), read("maxSize"), read("desiredCapacity"));
    let min = least.or(desired).unwrap_or(DEFAULT_SIZE);
    let max = most.or(desired).unwrap_or(min);
    let max = if *kind == GroupKind::Managed { max.max(1) } else { max };
    if min > max {
        map.field.error(
            format_args!("has at least {min} and at most {max} nodes"),
            "raise `maxSize`, or lower `minSize`".to_owned(),
        );
    }
    if let Some(desired) = desired.filter(|desired| !(min..=max).contains(desired)) {
        map.field.error(
            format_args!("has `desiredCapacity` {desired}, which is not from {min} to {max}"),
            "keep it between `minSize` and `maxSize`".to_owned(),
        );
    }
    (min, max, desired)
}

/// Reads taints: a list as in Kubernetes, or a mapping `key: value:Effect`.
fn read_taints(field: Option<Field<'_>>) -> Vec<Taint> {
    let Some(found) = &field else { return Vec::new() };
    if !matches!(found.node.value, YamlValue::Map(_)) {
        return taints(field);
    }
    let Some(map) = found.map() else { return Vec::new() };
    let one = |(name, value): (&str, Field<'_>)| {
        let text = value.text()?;
        // Without a colon, the text is the effect, as in eksctl.
        let (value_text, effect) = text.rsplit_once(':').unwrap_or(("", &text));
        let effect = parse_effect(effect);
        if effect.is_none() {
            value.error(
                format_args!("is `{text}`, which is neither value:Effect nor an effect"),
                format!("write \"{}:NoSchedule\"", text.split(':').next().unwrap_or_default()),
            );
        }
        Some(Taint { key: name.into(), value: value_text.into(), effect: effect? })
    };
    map.entries().filter_map(one).collect()
}

fn parse_effect(text: &str) -> Option<TaintEffect> {
    match text {
        "NoSchedule" => Some(TaintEffect::NoSchedule),
        "NoExecute" => Some(TaintEffect::NoExecute),
        "PreferNoSchedule" => Some(TaintEffect::PreferNoSchedule),
        _ => None,
    }
}

fn string_map(field: &Field<'_>) -> BTreeMap<String, String> {
    let Some(map) = field.map() else { return BTreeMap::new() };
    let read = |(key, value): (&str, Field<'_>)| Some((key.to_owned(), value.text()?.into_owned()));
    map.entries().filter_map(read).collect()
}

fn has_autoscaler_policy(map: &FieldMap<'_>) -> bool {
    let policy = map.get("iam").and_then(|iam| {
        let iam = iam.map()?;
        let policies = iam.get("withAddonPolicies")?;
        policies.map()?.get("autoScaler")?.boolean()
    });
    policy.unwrap_or(false)
}

/// Prefix of the taint tags that Cluster Autoscaler reads for groups without nodes.
const TAINT_TAG: &str = "k8s.io/cluster-autoscaler/node-template/taint/";

/// Reports taint tags without an effect, which Cluster Autoscaler drops, and suggests the full tag.
fn check_taint_tags(map: &FieldMap<'_>, node_taints: &[Taint]) {
    let Some(tags) = map.get("tags") else { return };
    let Some(tags) = tags.map() else { return };
    for (tag, value) in tags.entries() {
        let Some(name) = tag.strip_prefix(TAINT_TAG) else { continue };
        let Some(text) = value.text() else { continue };
        if text.rsplit_once(':').is_some_and(|(_, effect)| parse_effect(effect).is_some()) {
            continue;
        }
        let effect = node_taints.iter().find(|taint| taint.key.as_str() == name);
        let effect = effect.map_or(TaintEffect::NoSchedule, |taint| taint.effect);
        value.warn(
            format_args!(
                "says `{text}` without an effect: Cluster Autoscaler drops it, and treats the group as one without the taint while it has no nodes"
            ),
            format!("write {tag}: \"{text}:{effect:?}\""),
        );
    }
}

/// Families of images, by name.
/// Source: eksctl, `pkg/apis/eksctl.io/v1alpha5/types.go`, `SupportedAMIFamilies`.
const AMI_FAMILIES: [(&str, AmiFamily); 18] = [
    ("AmazonLinux2023", AmiFamily::Al2023),
    ("AmazonLinux2", AmiFamily::Al2),
    ("Bottlerocket", AmiFamily::Bottlerocket),
    ("BottlerocketFips", AmiFamily::Bottlerocket),
    ("Ubuntu2604", AmiFamily::Ubuntu),
    ("UbuntuPro2604", AmiFamily::Ubuntu),
    ("Ubuntu2404", AmiFamily::Ubuntu),
    ("UbuntuPro2404", AmiFamily::Ubuntu),
    ("Ubuntu2204", AmiFamily::Ubuntu),
    ("UbuntuPro2204", AmiFamily::Ubuntu),
    ("Ubuntu2004", AmiFamily::Ubuntu),
    ("UbuntuPro2004", AmiFamily::Ubuntu),
    ("WindowsServer2019CoreContainer", AmiFamily::Windows),
    ("WindowsServer2019FullContainer", AmiFamily::Windows),
    ("WindowsServer2022CoreContainer", AmiFamily::Windows),
    ("WindowsServer2022FullContainer", AmiFamily::Windows),
    ("WindowsServer2025CoreContainer", AmiFamily::Windows),
    ("WindowsServer2025FullContainer", AmiFamily::Windows),
];

/// Returns the name and family of images. eksctl ignores the case of the name.
fn ami_family(field: Option<&Field<'_>>) -> (String, AmiFamily) {
    let stated = field.and_then(Field::text);
    let is_same = |name: &str| stated.as_ref().is_some_and(|text| text.eq_ignore_ascii_case(name));
    let found = AMI_FAMILIES.iter().find(|(name, _)| is_same(name));
    let found = found.map(|(name, family)| (*name, *family));
    let family = found.map(|(_, family)| family).or_else(|| field?.choice(&AMI_FAMILIES));
    let name = found.map(|(name, _)| name.to_owned()).or(stated.map(Cow::into_owned));
    (name.unwrap_or_else(|| "AmazonLinux2023".to_owned()), family.unwrap_or(AmiFamily::Al2023))
}

/// Returns the settings of the kubelet, with digests of their text.
fn kubelet_settings(
    group: &NodeGroup,
    family: AmiFamily,
    map: &FieldMap<'_>,
) -> (KubeletSettings, Vec<(&'static str, String)>) {
    let special = map.get("bottlerocket").filter(|_| family == AmiFamily::Bottlerocket);
    let special = special.map(|field| bottlerocket::settings(&field, &group.kind));
    let BottlerocketSettings { kubelet: special, text } = special.unwrap_or_default();
    let own = map.get("kubeletExtraConfig");
    let mut settings = own.as_ref().map(kubelet).unwrap_or_default();
    let own = own.map(|field| canonical(field.node, field.scope.vars, &[])).unwrap_or_default();
    let stated_pods = map.get("maxPodsPerNode").and_then(|f| f.int::<u32>(0));
    let pods = stated_pods.map_or(String::new(), |pods| pods.to_string());
    settings.max_pods = stated_pods.or(special.max_pods).or(settings.max_pods);
    settings.kube_reserved.extend(special.kube_reserved);
    settings.system_reserved.extend(special.system_reserved);
    settings.eviction_hard.extend(special.eviction_hard);
    let mut digests = vec![("kubeletExtraConfig", own), ("maxPodsPerNode", pods)];
    // Without settings there is no digest, so that those of other groups stay the same.
    digests.extend((!text.is_empty()).then_some(("bottlerocket", text)));
    (settings, digests)
}

fn node_class(group: &NodeGroup, capacity: &GroupCapacity, map: &FieldMap<'_>) -> NodeClass {
    let (image, family) = ami_family(map.get("amiFamily").as_ref());
    let gib = map.get("volumeSize").and_then(|f| f.int::<i64>(1)).unwrap_or(DEFAULT_VOLUME_GIB);
    let ephemeral_storage = Some(gib.saturating_mul(1 << 30));
    let (settings, of_kubelet) = kubelet_settings(group, family, map);
    // The digest covers the text of the file, not the internal representation.
    let digests = [("amiFamily", image.clone()), ("volumeSize", gib.to_string())];
    let digests = digests.into_iter().chain(of_kubelet);
    let digests: BTreeMap<String, Arc<str>> =
        digests.map(|(field, text)| (field.to_owned(), sha256(&text))).collect();
    let is_own_image = map.get("ami").is_some();
    let has_efa = map.get("efaEnabled").and_then(|field| field.boolean()).unwrap_or(false);
    NodeClass {
        name: group.name.as_str().into(),
        origin: group.origin.clone(),
        generation: Generation::Eksctl,
        ami_family: family,
        windows_build: family.windows_build(&image),
        image,
        kubelet: settings,
        ephemeral_storage,
        instance_store_raid0: bootstrap_command::uses_instance_store(map, family),
        reservations: capacity.reservation.clone().into_iter().collect(),
        prefix_delegation: false,
        eks_caps_pods: group.kind == GroupKind::Managed && !is_own_image,
        efa: if has_efa { EfaInterfaces::All } else { EfaInterfaces::Absent },
        user_data_digest: None,
        tags: BTreeMap::new(),
        instance_settings: InstanceSettings::default(),
        spec_digests: digests.into(),
        unreadable: map.field.scope.first_failed_field(),
    }
}

/// Returns the labels that eksctl adds to the nodes of a group.
fn eksctl_labels(group: &NodeGroup, capacity: &GroupCapacity) -> Labels {
    let name = group.name.as_str();
    let mut labels: Labels = [
        label("alpha.eksctl.io/cluster-name", &group.cluster),
        label("alpha.eksctl.io/nodegroup-name", name),
    ]
    .into();
    match group.kind {
        GroupKind::Managed => {
            let capacity = match capacity.capacity_type {
                CapacityType::Spot => "SPOT",
                CapacityType::OnDemand => "ON_DEMAND",
                CapacityType::Reserved => "CAPACITY_BLOCK",
            };
            labels.extend([
                label("eks.amazonaws.com/nodegroup", name),
                label("eks.amazonaws.com/capacityType", capacity),
            ]);
        }
        // In a mixed group, the lifecycle of the next node is unknown.
        GroupKind::External(_) => {}
        GroupKind::Unmanaged if capacity.mix.is_some() => {}
        GroupKind::Unmanaged => {
            let lifecycle = if capacity.capacity_type.is_spot() { "spot" } else { "on-demand" };
            labels.extend([label("node-lifecycle", lifecycle)]);
        }
    }
    labels
}

fn requirements(group: &NodeGroup, capacity: &GroupCapacity) -> Vec<PoolRequirement> {
    let of = |name: &str, values: Vec<&str>| PoolRequirement {
        key: name.into(),
        operator: Operator::In,
        values: values.into_iter().map(Into::into).collect(),
        min_values: None,
    };
    let types = group.types.iter().map(InstanceTypeName::as_str).collect();
    let capacity_type = capacity.capacity_type.as_str();
    let mut requirements =
        vec![of(key::INSTANCE_TYPE, types), of(key::CAPACITY_TYPE, vec![capacity_type])];
    if !group.zones.is_empty() {
        let zones = group.zones.iter().map(ZoneName::as_str).collect();
        requirements.push(of(key::ZONE, zones));
    }
    requirements
}

fn pool(
    group: &NodeGroup,
    capacity: &GroupCapacity,
    node_labels: Labels,
    node_taints: Vec<Taint>,
    field: &Field<'_>,
) -> Pool {
    Pool {
        name: group.name.clone(),
        origin: group.origin.clone(),
        generation: Generation::Eksctl,
        node_class: Some(group.name.as_str().into()),
        labels: node_labels.into_iter().chain(eksctl_labels(group, capacity)).collect(),
        annotations: NodeAnnotations::new(),
        do_not_disrupt: false,
        requirements: requirements(group, capacity),
        taints: node_taints,
        startup_taints: Vec::new(),
        kubelet: None,
        limits: PoolLimits { nodes: Some(group.max), ..PoolLimits::default() },
        weight: 0,
        replicas: None,
        consolidation: Consolidation::WhenEmptyOrUnderutilized,
        consolidate_after: Some(SignedDuration::ZERO),
        budgets: Vec::new(),
        expire_after: Expiry::Never,
        termination_grace_period: None,
        unreadable: field.scope.first_failed_field(),
    }
}
