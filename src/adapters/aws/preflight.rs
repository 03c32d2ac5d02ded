//! Preflight checks of an account: runs the calls that a plan and an apply need, launches as dry
//! runs.

use std::collections::BTreeMap;

use aws_sdk_ec2::error::ProvideErrorMetadata as _;
use aws_sdk_ec2::types::{
    Filter, InstanceType, RequestLaunchTemplateData, ResourceType, Tag, TagSpecification,
};

use super::client::Aws;
use super::cloud::INSTANCES_PAGE;
use super::cluster_bootstrap::ClusterBootstrap;
use super::dry_run::{DryRunLaunch, dry_run_result};
use super::errors::{AwsError, port_error};
use super::launch_context::LaunchContext;
use super::rate_limiter::ApiBucket;
use super::resolution_cache::Subnets;
use crate::apply::ports::{PortError, Prerequisite, PrerequisiteState};
use crate::model::desired::{Desired, Generation, NodeClass};
use crate::model::ids::{InstanceId, PoolName, Region};
use crate::model::market::{CapacityType, Quota, QuotaClass, Quotas, ZoneSetting};
use crate::model::observed::{Accelerator, Arch, Group, Hardware, Instance, tag};

/// Minimum number of free addresses in a zone. A node of a usual size needs about as many for its
/// pods.
const FREE_ADDRESSES_MIN: i32 = 16;

const QUEUE_REMEDY: &str = "check spec.controller.queue, and attach deploy/aws/controller.json to the role of the controller";
const AUTO_MODE_REMEDY: &str = "disable its built-in node pools (computeConfig.nodePools: []) or Auto Mode itself; until then the controller is in plan-only mode";
const POLICY_REMEDY: &str = "attach deploy/aws/apply.json to the role that applies";

const GROUP_TAG_REMEDY: &str = "tag them with fleetwright.dev/cluster, and do not propagate the tag (aws autoscaling create-or-update-tags)";

/// Checks that managed groups have our tag, because the IAM policies allow changes of no other
/// group. Returns `None` if no group is managed.
fn check_group_tags(
    desired: &Desired,
    live: &[Group],
    cluster: &str,
) -> Option<Result<String, String>> {
    let is_managed = |group: &&Group| {
        let mut declared = desired.node_groups.values().filter(|declared| declared.manage);
        let mut named = desired.external_groups.iter().filter(|(_, external)| external.manage);
        let eks_name = group.tags.get("eks:nodegroup-name").map(String::as_str);
        declared.any(|one| one.matches_live_group(&group.name, &group.tags))
            || named.any(|(name, _)| {
                name.as_str() == group.name.as_str() || Some(name.as_str()) == eks_name
            })
    };
    let managed: Vec<&Group> = live.iter().filter(is_managed).collect();
    let untagged: Vec<&str> = managed
        .iter()
        .filter(|group| group.tags.get(tag::CLUSTER).is_none_or(|value| value != cluster))
        .map(|group| group.name.as_str())
        .collect();
    match (managed.len(), untagged.as_slice()) {
        (0, _) => None,
        (count, []) => Some(Ok(format!("of {count} managed groups"))),
        (_, untagged) => Some(Err(format!("missing: {}", untagged.join(", ")))),
    }
}

/// The result of the preflight checks.
#[derive(Debug, Default)]
pub struct Preflight {
    /// The checked requirements.
    pub prerequisites: Vec<Prerequisite>,
    /// Roles of nodes, which the cluster must admit.
    pub node_roles: Vec<NodeRole>,
    /// API server endpoint reported by EKS, if known.
    pub endpoint: Option<String>,
}

/// Checks that EKS Auto Mode has no node pools of its own.
fn check_auto_mode(bootstrap: &ClusterBootstrap) -> Result<String, String> {
    match &bootstrap.auto_mode {
        None => Ok("off".to_owned()),
        Some(pools) if pools.is_empty() => Ok("on, without built-in node pools".to_owned()),
        Some(pools) => {
            Err(format!("built-in node pools {} would compete for nodes", pools.join(", ")))
        }
    }
}

/// The role of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRole {
    /// ARN.
    pub arn: String,
    /// True if EKS has an access entry for the role. The older `aws-auth` map may admit it as well.
    pub has_entry: bool,
}

/// The resolved inputs of a launch for one node class.
struct LaunchInputs {
    image: Option<(Hardware, String)>,
    subnets: Option<Subnets>,
    groups: Option<Vec<String>>,
    profile: Option<String>,
    placement_group: Option<String>,
}

impl Aws {
    /// Checks everything that plans and applies of `desired` need in the account. `zones` are those
    /// of the settings, and `queue` is the interruption queue, if configured.
    pub async fn preflight(
        &self,
        desired: &Desired,
        zones: &[ZoneSetting],
        queue: Option<&str>,
    ) -> Preflight {
        let mut found = Preflight::default();
        let account = self.account_id().await.map(|account| format!("account {account}"));
        let is_known = account.is_ok();
        let region = Region::from(self.region.as_str());
        let remedy = account.as_ref().err().map(|error| error.remedy(&region));
        found.add("AWS identity", account, &remedy.unwrap_or_default());
        if !is_known {
            // All further checks would fail for the same reason, with misleading errors.
            found.skip("the rest of AWS", "the AWS identity is unknown");
            return found;
        }
        let groups = self.list_groups().await;
        if let Ok(live) = &groups
            && let Some(tagged) = check_group_tags(desired, &live.groups, &self.cluster)
        {
            found.add("tags of managed groups", tagged, GROUP_TAG_REMEDY);
        }
        found.add(
            "read groups",
            groups.map(|all| format!("{} of the cluster", all.groups.len())),
            POLICY_REMEDY,
        );
        let instances = self.cluster_instances().await;
        let some = instances.as_ref().ok().and_then(|ids| ids.first().cloned());
        found.add(
            "read instances",
            instances.map(|ids| format!("{} of this cluster", ids.len())),
            POLICY_REMEDY,
        );
        let profiles = self.fargate_profiles().await.map(|all| format!("{} there", all.len()));
        found.add("read Fargate profiles", profiles, POLICY_REMEDY);
        if let Some(name) = queue {
            found.add("read the queue", self.queue_depth(name).await, QUEUE_REMEDY);
        }
        if let Some(id) = some {
            found.add("may terminate", self.dry_run_terminate(&id).await, POLICY_REMEDY);
        }
        found.add(
            "may create launch templates",
            self.dry_run_create_template().await,
            POLICY_REMEDY,
        );
        let bootstrap = self.cluster_bootstrap().await;
        found.endpoint = bootstrap.as_ref().ok().map(|bootstrap| bootstrap.endpoint.url.clone());
        let version =
            bootstrap.as_ref().map(|bootstrap| format!("version {}", bootstrap.kubernetes_version));
        let version = version.map_err(ToString::to_string);
        let remedy = bootstrap.as_ref().err().map(|error| error.remedy(&region));
        found.add("EKS cluster", version, &remedy.unwrap_or_default());
        if let Ok(bootstrap) = &bootstrap {
            found.add("no EKS Auto Mode", check_auto_mode(bootstrap), AUTO_MODE_REMEDY);
        }
        found.prerequisites.extend(self.check_zones(desired, zones).await);
        self.check_quotas(&mut found).await;
        let used = |class: &&NodeClass| {
            class.generation != Generation::Eksctl && first_pool(class, desired).is_some()
        };
        for class in desired.node_classes.values().filter(used) {
            self.check_node_class(class, desired, bootstrap.as_ref().ok(), &mut found).await;
        }
        found
    }

    /// Compares the running vCPUs of the account with its quotas.
    async fn check_quotas(&self, into: &mut Preflight) {
        let quotas = match self.quotas().await {
            Ok(quotas) => quotas,
            Err(error) => {
                into.add::<String>("service quotas", Err(error.to_string()), POLICY_REMEDY);
                return;
            }
        };
        let running = match self.running_vcpus().await {
            Ok(running) => running,
            Err(error) => {
                into.add::<String>("service quotas", Err(error.to_string()), POLICY_REMEDY);
                return;
            }
        };
        for (quota, limit) in quotas.iter() {
            let used = running.get(&quota).copied().unwrap_or(0);
            // An unused quota of zero is irrelevant.
            if used == 0 && limit == 0 {
                continue;
            }
            let (how, class) = quota;
            let name = format!("quota of {how} {}", class.service_quotas_name());
            let text = format!("{used} of {limit} vCPUs run");
            let code = Quotas::code(quota).unwrap_or_default();
            let remedy = format!(
                "aws service-quotas request-service-quota-increase --service-code ec2 \
                 --quota-code {code} --desired-value VCPUS"
            );
            into.add(&name, if used < limit { Ok(text) } else { Err(text) }, &remedy);
        }
    }

    /// Returns the running vCPUs of the account by quota, for the instances of all tools.
    async fn running_vcpus(&self) -> Result<BTreeMap<Quota, i64>, PortError> {
        let mut running: BTreeMap<Quota, i64> = BTreeMap::new();
        for instance in self.account_instances().await? {
            let kind = instance.instance_type.as_ref().map(|kind| kind.as_str().into());
            let Some(class) = kind.as_ref().and_then(QuotaClass::from_instance_type) else {
                continue;
            };
            let spot = instance.instance_lifecycle.is_some_and(|own| own.as_str() == "spot");
            let how = if spot { CapacityType::Spot } else { CapacityType::OnDemand };
            let cores = instance.cpu_options.as_ref().and_then(|cpu| {
                Some(i64::from(cpu.core_count?) * i64::from(cpu.threads_per_core?))
            });
            // Counted by the CPU options of the instance, because threads may be disabled.
            *running.entry((how, class)).or_insert(0) += cores.unwrap_or(0);
        }
        Ok(running)
    }

    async fn account_instances(&self) -> Result<Vec<aws_sdk_ec2::types::Instance>, PortError> {
        let states = Filter::builder().name("instance-state-name").values("pending");
        let states = states.values("running").build();
        let request = self.ec2.describe_instances().filters(states).max_results(INSTANCES_PAGE);
        let (mut pages, mut found) = (request.into_paginator().send(), Vec::new());
        loop {
            self.limiter.acquire(ApiBucket::Describe).await;
            let Some(page) = pages.next().await else { return Ok(found) };
            let page = page.map_err(|error| port_error("list instances", &error))?;
            let all = page.reservations.unwrap_or_default().into_iter();
            found.extend(all.flat_map(|one| one.instances.unwrap_or_default()));
        }
    }

    async fn cluster_instances(&self) -> Result<Vec<InstanceId>, AwsError> {
        let mut inventory = crate::apply::ports::CloudInventory::default();
        self.list_instances(&super::auto_scaling::GroupMembers::new(), &mut inventory).await?;
        let ours = inventory.instances.into_iter().filter(Instance::is_active);
        Ok(ours.map(|instance| instance.id).collect())
    }

    async fn dry_run_terminate(&self, id: &InstanceId) -> Result<String, AwsError> {
        self.limiter.acquire(ApiBucket::Terminate).await;
        let call = self.ec2.terminate_instances().instance_ids(id.as_str()).dry_run(true);
        match call.send().await {
            Err(error) => dry_run_result(error.code(), || {
                port_error("terminate instance (dry run)", &error).into()
            })
            .map(|dry_run| format!("{dry_run} of {id}")),
            Ok(_) => Err(AwsError::Missing("EC2 ignored the dry-run flag".to_owned())),
        }
    }

    async fn dry_run_create_template(&self) -> Result<String, AwsError> {
        self.limiter.acquire(ApiBucket::Template).await;
        let data = RequestLaunchTemplateData::builder().instance_type(InstanceType::M5Large);
        let call = self
            .ec2
            .create_launch_template()
            .launch_template_name(format!("fleetwright-{}-preflight", self.cluster))
            .launch_template_data(data.build())
            .tag_specifications(self.cluster_tag_specification(ResourceType::LaunchTemplate))
            .dry_run(true);
        match call.send().await {
            Err(error) => dry_run_result(error.code(), || {
                port_error("create launch template (dry run)", &error).into()
            }),
            Ok(_) => Err(AwsError::Missing("EC2 ignored the dry-run flag".to_owned())),
        }
    }

    fn cluster_tag_specification(&self, kind: ResourceType) -> TagSpecification {
        let of_cluster = Tag::builder().key(tag::CLUSTER).value(&self.cluster).build();
        TagSpecification::builder().resource_type(kind).tags(of_cluster).build()
    }

    async fn check_node_class(
        &self,
        class: &NodeClass,
        desired: &Desired,
        bootstrap: Option<&ClusterBootstrap>,
        into: &mut Preflight,
    ) {
        let named = |part: &str| format!("node class {}: {part}", class.name);
        let settings = &class.instance_settings;
        let subnets = self.subnets(&settings.subnets).await;
        into.add(
            &named("subnets"),
            subnets.as_ref().map_err(ToString::to_string).and_then(free_addresses),
            "tag subnets as subnetSelectorTerms selects them, with free addresses in each zone",
        );
        let groups = self.security_groups(&settings.security_groups).await;
        let text = groups.as_ref().map(|ids| ids.join(", ")).map_err(ToString::to_string);
        let remedy = "tag security groups as securityGroupSelectorTerms selects them";
        into.add(&named("security groups"), text, remedy);
        let mut found = LaunchInputs {
            image: None,
            subnets: subnets.ok(),
            groups: groups.ok(),
            profile: None,
            placement_group: None,
        };
        let Some(bootstrap) = bootstrap else {
            into.skip(&named("image"), "the version of the EKS cluster is not known");
            return;
        };
        let image = self.any_image(class, &bootstrap.kubernetes_version).await;
        let text = image.as_ref().map(|(_, id)| id.clone()).map_err(ToString::to_string);
        into.add(&named("image"), text, "check amiSelectorTerms");
        found.image = image.ok();
        let context =
            LaunchContext::new(desired, bootstrap.endpoint.clone(), &bootstrap.kubernetes_version);
        let profile = self.instance_profile(&context, class).await;
        let text = profile.as_ref().map_err(ToString::to_string).and_then(|profile| {
            let without = "the node class names neither instanceProfile nor role".to_owned();
            profile.clone().ok_or(without)
        });
        into.add(&named("instance profile"), text, "create an instance profile with the role");
        found.profile = profile.ok().flatten();
        if let Some(profile) = &found.profile {
            self.check_node_role(&named("role of its nodes"), profile, into).await;
        }
        let Ok(placement_group) = self.check_placement_group(class, into).await else {
            into.skip(&named("launch"), "its placement group is missing");
            return;
        };
        found.placement_group = placement_group;
        self.check_launch(&named("launch"), class, desired, &found, into).await;
    }

    /// Checks the placement group of a class, and returns its ID.
    async fn check_placement_group(
        &self,
        class: &NodeClass,
        into: &mut Preflight,
    ) -> Result<Option<String>, AwsError> {
        let Some(selector) = &class.instance_settings.placement_group else { return Ok(None) };
        let found = self.placement_group(selector).await;
        let text = found.as_ref().map(ToString::to_string).map_err(ToString::to_string);
        let remedy = "create the placement group, or correct placementGroupSelector";
        into.add(&format!("node class {}: placement group", class.name), text, remedy);
        found.map(|group| Some(group.id))
    }

    /// Returns an image that the class selects, with its hardware.
    async fn any_image(
        &self,
        class: &NodeClass,
        kubernetes: &str,
    ) -> Result<(Hardware, String), AwsError> {
        let mut first = None;
        for arch in [Arch::Amd64, Arch::Arm64] {
            let hardware = Hardware { arch, accelerator: Accelerator::None };
            match self.resolve_image(&class.instance_settings.images, hardware, kubernetes).await {
                Ok(id) => return Ok((hardware, id)),
                Err(error) => first = first.or(Some(error)),
            }
        }
        let none = || AwsError::Missing("no image is selected".to_owned());
        Err(first.unwrap_or_else(none))
    }

    /// Checks whether EKS admits the role of a profile.
    async fn check_node_role(&self, name: &str, profile: &str, into: &mut Preflight) {
        let remedy = "check spec.role or spec.instanceProfile of the node class";
        self.limiter.acquire(ApiBucket::Other).await;
        let found = self.iam.get_instance_profile().instance_profile_name(profile).send().await;
        let found = found.map_err(|error| port_error("read instance profile", &error));
        let role = found.map(|found| {
            let roles = found.instance_profile.map(|profile| profile.roles).unwrap_or_default();
            roles.into_iter().next().map(|role| role.arn)
        });
        let arn = match role {
            Ok(Some(arn)) => arn,
            Ok(None) => {
                into.add(name, Err(format!("instance profile {profile} has no role")), remedy);
                return;
            }
            Err(error) => {
                into.add::<String>(name, Err(error.to_string()), remedy);
                return;
            }
        };
        self.limiter.acquire(ApiBucket::Other).await;
        let call = self.eks.describe_access_entry().cluster_name(&self.cluster);
        let has_entry = match call.principal_arn(&arn).send().await {
            Ok(_) => true,
            Err(error) if error.code() == Some("ResourceNotFoundException") => false,
            Err(error) => {
                let error = port_error("read access entry", &error);
                into.add::<String>(name, Err(error.to_string()), POLICY_REMEDY);
                return;
            }
        };
        into.node_roles.push(NodeRole { arn, has_entry });
    }

    async fn check_launch(
        &self,
        name: &str,
        class: &NodeClass,
        desired: &Desired,
        found: &LaunchInputs,
        into: &mut Preflight,
    ) {
        let LaunchInputs { image, subnets, groups, profile, placement_group } = found;
        let subnet = subnets.as_ref().and_then(|all| all.values().flatten().next());
        let pool = first_pool(class, desired);
        let (Some(pool), Some((hardware, image)), Some(subnet), Some(groups)) =
            (pool, image, subnet, groups)
        else {
            into.skip(name, "required inputs are missing");
            return;
        };
        let launch = DryRunLaunch {
            class,
            pool,
            image: (*hardware, image),
            subnet: &subnet.id,
            groups,
            profile: profile.as_deref(),
            placement_group: placement_group.as_deref(),
        };
        into.add(name, self.dry_run_launch(&launch).await, POLICY_REMEDY);
    }
}

fn first_pool<'a>(class: &NodeClass, desired: &'a Desired) -> Option<&'a PoolName> {
    let mut pools = desired.pools.iter();
    pools.find(|(_, pool)| pool.node_class.as_ref() == Some(&class.name)).map(|(name, _)| name)
}

impl Preflight {
    fn add<E: ToString>(&mut self, name: &str, found: Result<String, E>, remedy: &str) {
        let found = found.map_err(|error| error.to_string());
        self.prerequisites.push(Prerequisite::from_result(name, found, remedy));
    }

    fn skip(&mut self, name: &str, why: &str) {
        let state = PrerequisiteState::Unknown { why: why.to_owned() };
        self.prerequisites.push(Prerequisite { name: name.to_owned(), state });
    }
}

/// Returns the free addresses by zone, as an error if a zone has too few.
fn free_addresses(subnets: &Subnets) -> Result<String, String> {
    let of_zone = subnets.iter().map(|(zone, all)| {
        (zone, all.iter().fold(0_i32, |sum, subnet| sum.saturating_add(subnet.free_addresses)))
    });
    let text: Vec<String> =
        of_zone.clone().map(|(zone, free)| format!("{zone}: {free} addresses free")).collect();
    let text = text.join(", ");
    let enough = of_zone.map(|(_, free)| free).all(|free| free >= FREE_ADDRESSES_MIN);
    if enough { Ok(text) } else { Err(text) }
}

#[cfg(test)]
mod tests {
    use super::super::resolution_cache::Subnet;
    use super::*;

    #[test]
    fn zone_short_of_addresses_fails() {
        let subnet = |free_addresses| vec![Subnet { id: "subnet-1".to_owned(), free_addresses }];
        let full: Subnets = [("a".into(), subnet(200)), ("b".into(), subnet(3))].into();
        assert_eq!(
            free_addresses(&full),
            Err("a: 200 addresses free, b: 3 addresses free".to_owned())
        );
        let roomy: Subnets = [("a".into(), subnet(200))].into();
        assert_eq!(free_addresses(&roomy), Ok("a: 200 addresses free".to_owned()));
    }

    #[test]
    fn managed_groups_need_the_tag_that_iam_policies_require() {
        use crate::model::desired::ExternalGroup;
        use crate::model::ids::Origin;
        let mut desired = Desired::default();
        for (name, manage) in [("web", true), ("system", false)] {
            let external = ExternalGroup { manage, origin: Origin::new("fleetwright.yaml", 1) };
            desired.external_groups.insert(name.into(), external);
        }
        let mut web = crate::testing::world::group("eks-web-1", 2);
        web.tags.insert("eks:nodegroup-name".to_owned(), "web".to_owned());
        let system = crate::testing::world::group("system", 2);
        let check =
            |web: &Group| check_group_tags(&desired, &[web.clone(), system.clone()], "prod");
        assert_eq!(check_group_tags(&desired, &[], "prod"), None, "there is none yet");
        assert_eq!(check(&web), Some(Err("missing: eks-web-1".to_owned())));
        web.tags.insert(tag::CLUSTER.to_owned(), "other".to_owned());
        assert!(check(&web).is_some_and(|tagged| tagged.is_err()));
        web.tags.insert(tag::CLUSTER.to_owned(), "prod".to_owned());
        assert_eq!(check(&web), Some(Ok("of 1 managed groups".to_owned())));
    }
}
