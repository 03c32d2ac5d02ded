//! External groups: Auto Scaling groups that no file of the repository describes, and that the
//! settings name for management. The observed state describes their nodes.
//!
//! Existing members are the best source. For a group without members, only its tags are known, in
//! the convention of Cluster Autoscaler.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::SignedDuration;

use crate::model::desired::{
    AmiFamily, Consolidation, Desired, EfaInterfaces, Expiry, ExternalGroup, Generation, GroupKind,
    InstanceSettings, KubeletSettings, NodeClass, NodeGroup, Pool, PoolLimits, PoolRequirement,
    Problem,
};
use crate::model::ids::{InstanceTypeName, LabelKey, Labels, Origin, PoolName, ZoneName};
use crate::model::market::{CapacityMix, CapacityType};
use crate::model::node_annotations::NodeAnnotations;
use crate::model::observed::{Group, Instance, Node, Observed};
use crate::model::pod::{Taint, TaintEffect};
use crate::model::requirement::{Operator, is_well_known, key, label};
use crate::model::units::Quantity;

/// Prefix of tags that describe the nodes of a group.
const TEMPLATE_TAG_PREFIX: &str = "k8s.io/cluster-autoscaler/node-template/";
/// Part of tags with the resources of nodes.
const RESOURCE_TAGS: &str = "resources/";
const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// Extended resources that the catalog knows by instance type.
const GPU_RESOURCES: [&str; 3] = ["amd.com/gpu", "aws.amazon.com/neuron", "nvidia.com/gpu"];
/// Labels that differ between on-demand and spot members.
const CAPACITY_LABELS: [&str; 2] = [CAPACITY_LABEL, "node-lifecycle"];
/// Labels of EKS on nodes of managed node groups.
const CAPACITY_LABEL: &str = "eks.amazonaws.com/capacityType";
const NODE_GROUP_LABEL: &str = "eks.amazonaws.com/nodegroup";
/// Value of [`CAPACITY_LABEL`] for spot nodes.
const SPOT: &str = "SPOT";
/// AMI type of EKS for the image of a launch template.
const CUSTOM_IMAGE: &str = "CUSTOM";
/// Suffixes of taints that node agents remove once they run (`ebs.csi.aws.com`, `node.cilium.io`).
const STARTUP_TAINT_SUFFIXES: [&str; 2] = ["agent-not-ready", "startup-taint"];
/// Domains of labels and taints that belong to a node, not to its group.
const NODE_DOMAINS: [&str; 6] = [
    "kubernetes.io",
    "node.kubernetes.io",
    "beta.kubernetes.io",
    "topology.kubernetes.io",
    "topology.k8s.aws",
    "failure-domain.beta.kubernetes.io",
];

/// Returns the desired state with a pool for each external group that the settings name. Returns
/// `None` if there is no such group.
pub fn with_external_groups(desired: &Desired, observed: &Observed) -> Option<Desired> {
    let found: Vec<_> = desired
        .external_groups
        .iter()
        .filter_map(|(name, declared)| {
            let live = find_group(name, observed).filter(|_| !desired.pools.contains_key(name))?;
            let is_known = known_name(name, live, desired, observed).is_some();
            (!is_known).then_some((name, declared, live))
        })
        .collect();
    if found.is_empty() {
        return None;
    }
    let mut all = desired.clone();
    for (name, declared, live) in found {
        add_observed_group(&mut all, name, declared, live, observed);
    }
    Some(all)
}

/// Adds an observed group that no file describes, with a pool and a node class of its nodes.
pub(super) fn add_observed_group(
    all: &mut Desired,
    name: &PoolName,
    declared: &ExternalGroup,
    live: &Group,
    observed: &Observed,
) {
    let ExternalGroup { manage, origin } = declared;
    let members = GroupMembers::new(live, observed);
    let pool = members.pool(name, origin);
    let mut class = node_class(name, origin, live);
    if members.members.is_empty() {
        class.ephemeral_storage = ephemeral_storage(live);
    }
    let group = members.group(name, origin, &pool, *manage, observed);
    all.node_classes.insert(class.name.clone(), class);
    all.pools.insert(name.clone(), pool);
    all.node_groups.insert(name.clone(), group);
}

/// Returns warnings about groups that the settings name and no file describes.
pub fn external_group_problems(desired: &Desired, observed: &Observed) -> Vec<Problem> {
    let warning = |origin: &Origin, message, hint: &str| {
        Problem::warning(origin.clone(), "Fleet", message).hint(hint)
    };
    let of_group = |(name, ExternalGroup { origin, .. }): (&PoolName, &ExternalGroup)| {
        let group = desired.node_groups.get(name);
        let is_other = desired.pools.contains_key(name) && group.is_none();
        if is_other {
            let message = format!("`spec.groups.{name}` names a NodePool, which is no node group");
            return Some(warning(origin, message, "remove the setting"));
        }
        let Some(live) = find_group(name, observed) else {
            let message = format!(
                "`spec.groups.{name}` names a node group that no ClusterConfig declares, and the \
                 world has none of this name"
            );
            let hint = "write the name of an Auto Scaling group or of an EKS node group, or remove \
                        the setting";
            return Some(warning(origin, message, hint));
        };
        if let Some(other) = known_name(name, live, desired, observed) {
            let message = format!(
                "`spec.groups.{name}` names Auto Scaling group {}, which is group {other} already",
                live.name
            );
            return Some(warning(origin, message, "name it once"));
        }
        let unread = unread_part(name, live, observed)?;
        Some(warning(origin, unread.message, unread.hint))
    };
    desired.external_groups.iter().filter_map(of_group).collect()
}

/// A part of a group without members that is not read.
pub(super) struct UnreadPart {
    pub(super) message: String,
    hint: &'static str,
}

/// Returns the most important part of an observed group that is not read, if it has no member.
pub(super) fn unread_part(
    name: &PoolName,
    live: &Group,
    observed: &Observed,
) -> Option<UnreadPart> {
    if !GroupMembers::new(live, observed).members.is_empty() {
        return None;
    }
    let unsaid = taints_without_effect(live);
    if !unsaid.is_empty() {
        let message = format!(
            "group {name} has no member, and its tags name taints without an effect ({}): \
             NoSchedule is taken",
            unsaid.join(", ")
        );
        return Some(UnreadPart { message, hint: "write value:Effect into the tags" });
    }
    if let Some(why) = &live.template_unread {
        let message = format!(
            "group {name} has no member, and its template cannot be read: {why}; no node is planned \
             in it"
        );
        let hint = "allow eks:DescribeNodegroup and ec2:DescribeLaunchTemplateVersions";
        return Some(UnreadPart { message, hint });
    }
    if live.types.is_empty() {
        let message = format!(
            "group {name} has no member, and its launch template names no instance type: no node \
             is planned in it"
        );
        let hint = "raise its desired size by one, or give it a mixed instances policy";
        return Some(UnreadPart { message, hint });
    }
    let uncounted = uncounted_resources(live);
    (!uncounted.is_empty()).then(|| {
        let message = format!(
            "group {name} has no member, and its tags name resources that are not counted ({})",
            uncounted.join(", ")
        );
        UnreadPart { message, hint: "declare them in a NodeOverlay" }
    })
}

/// Returns the observed group with this name: its own name, or that of its EKS or eksctl node
/// group.
fn find_group<'a>(name: &PoolName, observed: &'a Observed) -> Option<&'a Group> {
    let tags = ["eks:nodegroup-name", "alpha.eksctl.io/nodegroup-name"];
    let by_tag = |group: &&Group| {
        tags.iter().any(|tag| group.tags.get(*tag).is_some_and(|held| held == name.as_str()))
    };
    let own = observed.groups.get(name.as_str());
    own.or_else(|| observed.groups.values().find(by_tag))
}

/// Returns the other name of an observed group: a file describes it, or the settings name it a
/// second time.
fn known_name<'a>(
    name: &PoolName,
    live: &Group,
    desired: &'a Desired,
    observed: &Observed,
) -> Option<&'a PoolName> {
    let declared = desired.node_groups.values().filter(|group| group.name != *name);
    let mut declared = declared.filter(|group| group.matches_live_group(&live.name, &live.tags));
    let earlier = desired.external_groups.keys().take_while(|other| *other != name);
    let is_same = |other: &&PoolName| {
        find_group(other, observed).is_some_and(|found| found.name == live.name)
    };
    let mut earlier = earlier.filter(is_same);
    declared.next().map(|group| &group.name).or_else(|| earlier.next())
}

/// An observed group with its initialized members, which describe its nodes.
struct GroupMembers<'a> {
    live: &'a Group,
    members: Vec<(&'a Instance, &'a Node)>,
}

impl<'a> GroupMembers<'a> {
    fn new(live: &'a Group, observed: &'a Observed) -> Self {
        let member = |node: &'a Node| {
            let instance = observed.instances.get(node.instance.as_ref()?)?;
            let is_one = instance.is_active()
                && instance.group.as_ref().is_some_and(|group| group.name == live.name);
            // A starting node has temporary taints and lacks labels.
            let is_up = node.ready && !node.taints.iter().any(is_startup_taint);
            (is_one && is_up).then_some((instance, node))
        };
        Self { live, members: observed.nodes.values().filter_map(member).collect() }
    }

    fn pool(&self, name: &PoolName, origin: &Origin) -> Pool {
        Pool {
            name: name.clone(),
            origin: origin.clone(),
            generation: Generation::Eksctl,
            node_class: Some(name.as_str().into()),
            labels: self.labels(),
            annotations: NodeAnnotations::new(),
            do_not_disrupt: false,
            requirements: self.requirements(),
            taints: self.taints(),
            startup_taints: Vec::new(),
            kubelet: None,
            limits: PoolLimits { nodes: Some(self.live.max), ..PoolLimits::default() },
            weight: 0,
            replicas: None,
            consolidation: Consolidation::WhenEmptyOrUnderutilized,
            consolidate_after: Some(SignedDuration::ZERO),
            budgets: Vec::new(),
            expire_after: Expiry::Never,
            termination_grace_period: None,
            unreadable: None,
        }
    }

    fn group(
        &self,
        name: &PoolName,
        origin: &Origin,
        pool: &Pool,
        manage: bool,
        observed: &Observed,
    ) -> NodeGroup {
        let of_type = pool.requirements.iter().find(|r| r.key.as_str() == key::INSTANCE_TYPE);
        let types = of_type.into_iter().flat_map(|r| &r.values);
        NodeGroup {
            name: name.clone(),
            origin: origin.clone(),
            kind: GroupKind::External(self.live.name.clone()),
            cluster: observed.cluster.name.clone(),
            min: self.live.min,
            max: self.live.max,
            desired: None,
            types: types.map(|name| InstanceTypeName::from(name.as_str())).collect(),
            zones: self.live.zones.clone(),
            tags: self.live.tags.clone(),
            mix: self.live.mix,
            max_spot_price: None,
            manage,
        }
    }

    /// Returns the labels that all members share; without members, those of tags.
    fn labels(&self) -> Labels {
        let Some(((_, first), rest)) = self.members.split_first() else {
            let tags = template_tags(self.live, "label/");
            let mut labels: Labels = tags.map(|(name, value)| label(name, value)).collect();
            if let Some(of) = &self.live.node_group {
                labels.extend(of.labels.iter().map(|(name, value)| label(name, value)));
                labels.extend([label(NODE_GROUP_LABEL, &of.name)]);
                labels.extend(of.capacity_type.map(|of| label(CAPACITY_LABEL, eks_name(of))));
            }
            return labels;
        };
        let is_mixed = self.live.mix.is_some_and(CapacityMix::is_mixed);
        let shared = |(name, value): &(&LabelKey, _)| {
            let same = |(_, node): &(&Instance, &Node)| node.labels.get(*name) == Some(*value);
            let is_of_kind = is_mixed && CAPACITY_LABELS.contains(&name.as_str());
            !is_node_specific(name.as_str()) && !is_of_kind && rest.iter().all(same)
        };
        let labels = first.labels.iter().filter(shared);
        labels.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Returns the taints of any member; without members, those of tags.
    fn taints(&self) -> Vec<Taint> {
        let of_tag = |(name, text): (&str, &str)| {
            let (value, effect) = parse_taint(text).unwrap_or((text, TaintEffect::NoSchedule));
            Taint { key: name.into(), value: value.into(), effect }
        };
        if self.members.is_empty() {
            let mut taints: Vec<Taint> = template_tags(self.live, "taint/").map(of_tag).collect();
            let stated = self.live.node_group.iter().flat_map(|of| &of.taints);
            for taint in stated {
                if !taints.contains(taint) {
                    taints.push(taint.clone());
                }
            }
            return taints;
        }
        let mut taints: Vec<Taint> = Vec::new();
        for taint in self.members.iter().flat_map(|(_, node)| &node.taints) {
            if !is_node_specific(taint.key.as_str()) && !taints.contains(taint) {
                taints.push(taint.clone());
            }
        }
        taints
    }

    fn requirements(&self) -> Vec<PoolRequirement> {
        let of = |name: &str, values: Vec<&str>| PoolRequirement {
            key: name.into(),
            operator: Operator::In,
            values: values.into_iter().map(Into::into).collect(),
            min_values: None,
        };
        let mut types: Vec<&str> = self.live.types.iter().map(InstanceTypeName::as_str).collect();
        if self.members.is_empty() && self.live.template_unread.is_some() {
            types.clear();
        }
        for (instance, _) in &self.members {
            let kind = instance.instance_type.as_str();
            if !types.contains(&kind) {
                types.push(kind);
            }
        }
        let mut bought: BTreeSet<&str> =
            self.members.iter().map(|(instance, _)| instance.capacity_type.as_str()).collect();
        if self.members.is_empty() {
            let spot_tags = template_tags(self.live, "label/").filter(|(_, value)| *value == SPOT);
            let spot = spot_tags.filter(|(name, _)| *name == CAPACITY_LABEL);
            let tagged = spot.map(|_| CapacityType::Spot).next();
            let stated = self.live.node_group.as_ref().and_then(|of| of.capacity_type);
            bought.extend(stated.or(tagged).map(CapacityType::as_str));
        }
        // Of a mixed group, the next member may be of either kind.
        let bought = match (self.live.mix, bought.first()) {
            (Some(mix), _) if mix.is_spot() => CapacityType::Spot.as_str(),
            (None, Some(only)) if bought.len() == 1 => *only,
            (Some(_) | None, _) => CapacityType::OnDemand.as_str(),
        };
        let mut all = vec![of(key::INSTANCE_TYPE, types), of(key::CAPACITY_TYPE, vec![bought])];
        if !self.live.zones.is_empty() {
            let zones = self.live.zones.iter().map(ZoneName::as_str).collect();
            all.push(of(key::ZONE, zones));
        }
        all
    }
}

/// Returns the node class of a group. Its image is unknown, apart from the family that EKS states,
/// and the reports of its members count.
fn node_class(name: &PoolName, origin: &Origin, live: &Group) -> NodeClass {
    let ami_type = live.node_group.as_ref().and_then(|of| of.ami_type.as_deref());
    let ami_type = ami_type.unwrap_or_default();
    let ami_family = match ami_type.split('_').next() {
        Some("AL2") => AmiFamily::Al2,
        Some("BOTTLEROCKET") => AmiFamily::Bottlerocket,
        Some("WINDOWS") => AmiFamily::Windows,
        _ => AmiFamily::Al2023,
    };
    NodeClass {
        name: name.as_str().into(),
        origin: origin.clone(),
        generation: Generation::Eksctl,
        ami_family,
        windows_build: ami_family.windows_build(ami_type),
        image: String::new(),
        kubelet: KubeletSettings::default(),
        ephemeral_storage: None,
        instance_store_raid0: false,
        reservations: Vec::new(),
        prefix_delegation: false,
        eks_caps_pods: live.node_group.is_some() && ami_type != CUSTOM_IMAGE,
        efa: EfaInterfaces::Reported,
        user_data_digest: None,
        tags: [].into(),
        instance_settings: InstanceSettings::default(),
        // Distinguishes it from other classes with as few settings: the reports of its members
        // apply to it alone.
        spec_digests: Arc::new([("group".to_owned(), live.name.as_str().into())].into()),
        unreadable: None,
    }
}

/// Returns the value of EKS's label for a capacity type.
fn eks_name(capacity_type: CapacityType) -> &'static str {
    match capacity_type {
        CapacityType::Spot => SPOT,
        CapacityType::OnDemand | CapacityType::Reserved => "ON_DEMAND",
    }
}

/// Returns the template tags of a group below `part`.
fn template_tags<'a>(live: &'a Group, part: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let below = move |tag: &'a String| tag.strip_prefix(TEMPLATE_TAG_PREFIX)?.strip_prefix(part);
    live.tags.iter().filter_map(move |(tag, value)| Some((below(tag)?, value.as_str())))
}

/// Returns the disk that tags or EKS state, in bytes.
fn ephemeral_storage(live: &Group) -> Option<i64> {
    let stated = live.node_group.as_ref().and_then(|of| of.disk_gib);
    tagged_storage(live).or_else(|| stated.map(|size| i64::from(size) << 30))
}

/// Returns the disk of tags, in bytes.
fn tagged_storage(live: &Group) -> Option<i64> {
    let mut tags = template_tags(live, RESOURCE_TAGS);
    let (_, text) = tags.find(|(name, _)| *name == EPHEMERAL_STORAGE)?;
    text.parse::<Quantity>().ok().map(Quantity::ceil_units).filter(|bytes| *bytes > 0)
}

/// Returns the resources of tags that nodes of the group are not planned with: unreadable amounts,
/// and resources that EC2 does not list.
fn uncounted_resources(live: &Group) -> Vec<&str> {
    let is_uncounted = |(name, _): &(&str, &str)| {
        let is_listed = *name == "cpu" || *name == "memory" || GPU_RESOURCES.contains(name);
        !is_listed && (*name != EPHEMERAL_STORAGE || tagged_storage(live).is_none())
    };
    template_tags(live, RESOURCE_TAGS).filter(is_uncounted).map(|(name, _)| name).collect()
}

/// Returns the taints of tags without an effect. Cluster Autoscaler silently drops them.
fn taints_without_effect(live: &Group) -> Vec<&str> {
    let unsaid = template_tags(live, "taint/").filter(|(_, text)| parse_taint(text).is_none());
    unsaid.map(|(name, _)| name).collect()
}

/// Parses `value:Effect`.
fn parse_taint(text: &str) -> Option<(&str, TaintEffect)> {
    let (value, effect) = text.rsplit_once(':')?;
    let effect = match effect {
        "NoSchedule" => TaintEffect::NoSchedule,
        "NoExecute" => TaintEffect::NoExecute,
        "PreferNoSchedule" => TaintEffect::PreferNoSchedule,
        _ => return None,
    };
    Some((value, effect))
}

/// Returns true for a taint that a node loses once it is up.
fn is_startup_taint(taint: &Taint) -> bool {
    let key = taint.key.as_str();
    taint.is_ephemeral() || STARTUP_TAINT_SUFFIXES.iter().any(|ending| key.ends_with(ending))
}

fn is_node_specific(name: &str) -> bool {
    let domain = name.split_once('/').map_or("", |(domain, _)| domain);
    NODE_DOMAINS.contains(&domain)
        || name == "alpha.eksctl.io/instance-id"
        || is_well_known(name)
        || super::is_karpenter_label(name)
}
