//! What describes the nodes of a group without members: its launch template, and what EKS states
//! about a managed node group.

use std::sync::PoisonError;
use std::time::Duration;

use aws_sdk_autoscaling::types::{AutoScalingGroup, LaunchTemplate, LaunchTemplateSpecification};
use aws_sdk_eks::types::{CapacityTypes, Nodegroup};
use tokio::time::Instant;

use super::client::Aws;
use super::errors::port_error;
use super::rate_limiter::ApiBucket;
use crate::apply::ports::PortError;
use crate::model::ids::InstanceTypeName;
use crate::model::market::CapacityType;
use crate::model::observed::{Group, NodeGroupTemplate};
use crate::model::pod::{Taint, TaintEffect};

/// Lifetime of cached templates.
const TEMPLATES_TTL: Duration = Duration::from_mins(5);
/// Version that Auto Scaling takes if a group names none.
const DEFAULT_VERSION: &str = "$Default";
/// Tag of Auto Scaling groups with the name of their EKS node group.
pub(super) const NODE_GROUP_TAG: &str = "eks:nodegroup-name";

/// The template of a group, as far as it could be read.
#[derive(Debug, Clone, Default)]
pub(super) struct GroupTemplate {
    types: Vec<InstanceTypeName>,
    node_group: Option<NodeGroupTemplate>,
    unread: Option<String>,
    /// True if the launch template was read too, because no type was known.
    has_launch_template: bool,
}

/// Returns the launch template of a group. Attributes of an override replace its instance type.
pub(super) fn launch_template(group: &AutoScalingGroup) -> Option<LaunchTemplateSpecification> {
    let mixed = group.mixed_instances_policy().and_then(|policy| policy.launch_template());
    let overrides = mixed.map(LaunchTemplate::overrides).unwrap_or_default();
    if overrides.iter().any(|found| found.instance_requirements().is_some()) {
        return None;
    }
    let of_policy = mixed.and_then(|template| template.launch_template_specification());
    group.launch_template().or(of_policy).cloned()
}

impl Aws {
    /// Completes a group from its template, which is cached for [`TEMPLATES_TTL`]. A template that
    /// cannot be read reduces only what is planned in the group.
    pub(super) async fn add_template(
        &self,
        group: &mut Group,
        launch_template: Option<&LaunchTemplateSpecification>,
    ) {
        let template = match self.cached_template(group) {
            Some(template) => template,
            None => self.read_template(group, launch_template).await,
        };
        if group.types.is_empty() {
            group.types = template.types;
        }
        (group.node_group, group.template_unread) = (template.node_group, template.unread);
    }

    fn cached_template(&self, group: &Group) -> Option<GroupTemplate> {
        let cached = self.cached_templates.lock().unwrap_or_else(PoisonError::into_inner);
        let (read, template) = cached.get(&group.name)?;
        // A group that lost its last member needs the type of its launch template.
        let is_complete = template.has_launch_template || !group.types.is_empty();
        (read.elapsed() < TEMPLATES_TTL && is_complete).then(|| template.clone())
    }

    async fn read_template(
        &self,
        group: &Group,
        launch_template: Option<&LaunchTemplateSpecification>,
    ) -> GroupTemplate {
        let started = Instant::now();
        let has_launch_template = group.types.is_empty();
        let mut template = GroupTemplate { has_launch_template, ..GroupTemplate::default() };
        if let Some(specification) = launch_template.filter(|_| has_launch_template) {
            match self.launch_template_type(specification).await {
                Ok(found) => template.types.extend(found),
                Err(error) => template.unread = Some(error.to_string()),
            }
        }
        if let Some(name) = group.tags.get(NODE_GROUP_TAG) {
            match self.describe_node_group(name).await {
                Ok(found) => {
                    let types = found.as_ref().and_then(|found| found.instance_types.clone());
                    if template.types.is_empty() {
                        template.types.extend(types.into_iter().flatten().map(Into::into));
                    }
                    template.node_group = found.map(parse_node_group);
                }
                Err(error) => template.unread = Some(error.to_string()),
            }
        }
        if template.unread.is_none() {
            let mut cached = self.cached_templates.lock().unwrap_or_else(PoisonError::into_inner);
            cached.insert(group.name.clone(), (started, template.clone()));
        }
        template
    }

    async fn describe_node_group(&self, name: &str) -> Result<Option<Nodegroup>, PortError> {
        self.limiter.acquire(ApiBucket::Other).await;
        let request = self.eks.describe_nodegroup().cluster_name(&self.cluster);
        let found = request.nodegroup_name(name).send().await;
        let found =
            found.map_err(|error| port_error(&format!("read node group {name}"), &error))?;
        Ok(found.nodegroup)
    }

    /// Returns the instance type of a launch template, if it names one.
    async fn launch_template_type(
        &self,
        template: &LaunchTemplateSpecification,
    ) -> Result<Option<InstanceTypeName>, PortError> {
        let (id, name) = (template.launch_template_id(), template.launch_template_name());
        self.limiter.acquire(ApiBucket::Describe).await;
        let request = self.ec2.describe_launch_template_versions();
        let request = request.set_launch_template_id(id.map(str::to_owned));
        // EC2 refuses a name beside an ID.
        let request =
            request.set_launch_template_name(name.filter(|_| id.is_none()).map(str::to_owned));
        let version = template.version().unwrap_or(DEFAULT_VERSION);
        let found = request.versions(version).send().await;
        let found = found.map_err(|error| port_error("read launch template", &error))?;
        let mut versions = found.launch_template_versions.unwrap_or_default().into_iter();
        let of = versions.find_map(|version| version.launch_template_data?.instance_type);
        Ok(of.map(|kind| kind.as_str().into()))
    }
}

fn parse_node_group(found: Nodegroup) -> NodeGroupTemplate {
    let taint = |taint: aws_sdk_eks::types::Taint| {
        let effect = match taint.effect?.as_str() {
            "NO_EXECUTE" => TaintEffect::NoExecute,
            "PREFER_NO_SCHEDULE" => TaintEffect::PreferNoSchedule,
            // An effect that is not known keeps pods away.
            _ => TaintEffect::NoSchedule,
        };
        let value = taint.value.unwrap_or_default().as_str().into();
        Some(Taint { key: taint.key?.as_str().into(), value, effect })
    };
    NodeGroupTemplate {
        name: found.nodegroup_name.unwrap_or_default(),
        labels: found.labels.unwrap_or_default().into_iter().collect(),
        taints: found.taints.unwrap_or_default().into_iter().filter_map(taint).collect(),
        capacity_type: match found.capacity_type {
            Some(CapacityTypes::Spot) => Some(CapacityType::Spot),
            Some(CapacityTypes::OnDemand) => Some(CapacityType::OnDemand),
            _ => None,
        },
        ami_type: found.ami_type.map(|kind| kind.as_str().to_owned()),
        disk_gib: found.disk_size.and_then(|size| u32::try_from(size).ok()),
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_autoscaling::types::{LaunchTemplate, MixedInstancesPolicy};
    use aws_sdk_eks::types::{AmiTypes, Taint as EksTaint};

    use aws_sdk_eks::types::TaintEffect as EksEffect;

    use super::*;

    #[test]
    fn node_group_of_eks_is_parsed() {
        let taint = |key: &str, effect| EksTaint::builder().key(key).effect(effect).build();
        let found = Nodegroup::builder()
            .nodegroup_name("gpu")
            .labels("team", "ml")
            .taints(taint("a", EksEffect::NoExecute))
            .taints(taint("b", EksEffect::from("NEVER_SEEN")))
            .capacity_type(CapacityTypes::Spot)
            .ami_type(AmiTypes::BottlerocketArm64)
            .disk_size(80)
            .build();
        let read = parse_node_group(found);
        let effects: Vec<TaintEffect> = read.taints.iter().map(|taint| taint.effect).collect();
        assert_eq!(effects, [TaintEffect::NoExecute, TaintEffect::NoSchedule]);
        assert_eq!((read.name.as_str(), read.labels["team"].as_str()), ("gpu", "ml"));
        assert_eq!(read.capacity_type, Some(CapacityType::Spot));
        assert_eq!(
            (read.ami_type.as_deref(), read.disk_gib),
            (Some("BOTTLEROCKET_ARM_64"), Some(80))
        );
    }

    #[test]
    fn launch_template_of_a_mixed_policy_is_found() {
        let own = LaunchTemplateSpecification::builder().launch_template_id("lt-1").build();
        let template = LaunchTemplate::builder().launch_template_specification(own.clone()).build();
        let policy = MixedInstancesPolicy::builder().launch_template(template).build();
        let mixed = AutoScalingGroup::builder().mixed_instances_policy(policy).build();
        let plain = AutoScalingGroup::builder().launch_template(own.clone()).build();
        assert_eq!(launch_template(&mixed), Some(own.clone()));
        assert_eq!(launch_template(&plain), Some(own));
        assert_eq!(launch_template(&AutoScalingGroup::builder().build()), None);
    }
}
