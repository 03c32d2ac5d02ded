//! Whether an account is ready: what a plan and an apply will ask for is asked for now, launches as dry
//! runs.

use std::collections::BTreeMap;

use aws_sdk_ec2::error::ProvideErrorMetadata as _;
use aws_sdk_ec2::types::{
    Filter, InstanceType, RequestLaunchTemplateData, ResourceType, Tag, TagSpecification,
};

use super::client::{Aws, AwsError};
use super::fault::port_error;
use super::joining::Joining;
use super::limiter::Api;
use super::machine::Machines;
use super::network::Subnets;
use super::trial::Trial;
use crate::catalog::{CapacityType, Quota, QuotaClass, Quotas};
use crate::fleet::{Accelerator, Arch, Hardware, Instance, tag};
use crate::ids::{InstanceId, PoolName};
use crate::manifest::{Desired, Generation, NodeClass};
use crate::port::{PortError, Requirement, RequirementState};

/// Code by which EC2 says that a call would have been allowed.
const WOULD_SUCCEED: &str = "DryRunOperation";

/// Fewest free addresses of a zone; a node of a usual size takes about as many for its pods.
const FREE_MIN: i32 = 16;

const IDENTITY: &str = "set credentials and region as the AWS command line takes them; \
                        `aws sts get-caller-identity` tries them";
const QUEUE: &str =
    "check spec.controller.queue, and attach deploy/aws/controller.json to whoever runs the loop";
const AUTO_MODE: &str = "switch its own node pools off (computeConfig.nodePools: []), or all of it: the loop only plans until then";
const POLICY: &str = "attach deploy/aws/apply.json to whoever applies";

/// What was found about an account.
#[derive(Debug, Default)]
pub struct Preflight {
    /// What must be in place.
    pub requirements: Vec<Requirement>,
    /// Roles of nodes, which the cluster must let in.
    pub node_roles: Vec<NodeRole>,
    /// Where EKS has the API server; `None` where it does not say.
    pub endpoint: Option<String>,
}

/// Returns how EKS Auto Mode stands, or what it would launch for.
fn without_auto_mode(joining: &Joining) -> Result<String, String> {
    match &joining.auto_mode {
        None => Ok("it is off".to_owned()),
        Some(pools) if pools.is_empty() => Ok("it is on, without node pools of its own".to_owned()),
        Some(pools) => {
            Err(format!("it has the node pools {}, and would fight for nodes", pools.join(", ")))
        }
    }
}

/// A role that nodes have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRole {
    /// ARN.
    pub arn: String,
    /// Whether EKS has an access entry for it; the older map of the cluster may let it in, too.
    pub has_entry: bool,
}

/// What a launch for one node class needs, as far as it was found.
struct Found {
    image: Option<(Hardware, String)>,
    subnets: Option<Subnets>,
    groups: Option<Vec<String>>,
    profile: Option<String>,
}

impl Aws {
    /// Looks at everything that plans and applies of `desired` need of the account.
    /// `queue` is the queue of interruptions, where one is named.
    pub async fn preflight(&self, desired: &Desired, queue: Option<&str>) -> Preflight {
        let mut found = Preflight::default();
        let account = self.account().await.map(|account| format!("account {account}"));
        let is_known = account.is_ok();
        found.add("AWS identity", account, IDENTITY);
        if !is_known {
            // Whatever else is asked fails for the same reason, and would blame something else.
            found.skip("the rest of AWS", "it is not known who asks");
            return found;
        }
        found.add(
            "read groups",
            self.list_groups().await.map(|all| format!("{} of the cluster", all.groups.len())),
            POLICY,
        );
        let instances = self.owned().await;
        let some = instances.as_ref().ok().and_then(|ids| ids.first().cloned());
        found.add("read instances", instances.map(|ids| format!("{} of ours", ids.len())), POLICY);
        let profiles = self.fargate_profiles().await.map(|all| format!("{} there", all.len()));
        found.add("read Fargate profiles", profiles, POLICY);
        if let Some(name) = queue {
            found.add("read the queue", self.look_at_queue(name).await, QUEUE);
        }
        if let Some(id) = some {
            found.add("may terminate", self.may_terminate(&id).await, POLICY);
        }
        found.add("may make launch templates", self.may_make_templates().await, POLICY);
        let joining = self.joining().await;
        found.endpoint = joining.as_ref().ok().map(|joining| joining.endpoint.url.clone());
        let version = joining.as_ref().map(|joining| format!("version {}", joining.kubernetes));
        let version = version.map_err(ToString::to_string);
        found.add("EKS cluster", version, "check spec.cluster.name and spec.cluster.region");
        if let Ok(joining) = &joining {
            found.add("no EKS Auto Mode", without_auto_mode(joining), AUTO_MODE);
        }
        self.look_at_quotas(&mut found).await;
        let used = |class: &&NodeClass| {
            class.generation != Generation::Eksctl && pool_of(class, desired).is_some()
        };
        for class in desired.node_classes.values().filter(used) {
            self.look_at_class((class, desired), joining.as_ref().ok(), &mut found).await;
        }
        found
    }

    /// Holds what the whole account runs against its quotas of vCPUs: each of them must have room.
    async fn look_at_quotas(&self, into: &mut Preflight) {
        let quotas = match self.quotas().await {
            Ok(quotas) => quotas,
            Err(error) => {
                into.add::<String>("service quotas", Err(error.to_string()), POLICY);
                return;
            }
        };
        let running = match self.running_vcpus().await {
            Ok(running) => running,
            Err(error) => {
                into.add::<String>("service quotas", Err(error.to_string()), POLICY);
                return;
            }
        };
        for (quota, most) in quotas.iter() {
            let used = running.get(&quota).copied().unwrap_or(0);
            // What nobody uses, and nobody was given, is not asked for here either.
            if used == 0 && most == 0 {
                continue;
            }
            let (how, class) = quota;
            let what = format!("quota of {how} {}", class.words());
            let shown = format!("{used} of {most} vCPUs run");
            let code = Quotas::code(quota).unwrap_or_default();
            let remedy = format!(
                "aws service-quotas request-service-quota-increase --service-code ec2 \
                 --quota-code {code} --desired-value VCPUS"
            );
            into.add(&what, if used < most { Ok(shown) } else { Err(shown) }, &remedy);
        }
    }

    /// Returns how many vCPUs run in the account, whoever launched them, by quota.
    async fn running_vcpus(&self) -> Result<BTreeMap<Quota, i64>, PortError> {
        let mut running: BTreeMap<Quota, i64> = BTreeMap::new();
        for machine in self.machines_of_account().await? {
            let kind = machine.instance_type.as_ref().map(|kind| kind.as_str().into());
            let Some(class) = kind.as_ref().and_then(QuotaClass::of) else { continue };
            let spot = machine.instance_lifecycle.is_some_and(|own| own.as_str() == "spot");
            let how = if spot { CapacityType::Spot } else { CapacityType::OnDemand };
            let cores = machine.cpu_options.as_ref().and_then(|cpu| {
                Some(i64::from(cpu.core_count?) * i64::from(cpu.threads_per_core?))
            });
            // By what EC2 says of the machine: its threads may be switched off.
            *running.entry((how, class)).or_insert(0) += cores.unwrap_or(0);
        }
        Ok(running)
    }

    async fn machines_of_account(&self) -> Result<Vec<aws_sdk_ec2::types::Instance>, PortError> {
        let states = Filter::builder().name("instance-state-name").values("pending");
        let request = self.ec2.describe_instances().filters(states.values("running").build());
        let (mut pages, mut found) = (request.into_paginator().send(), Vec::new());
        loop {
            self.limiter.take(Api::Describe).await;
            let Some(page) = pages.next().await else { return Ok(found) };
            let page = page.map_err(|error| port_error("list instances", &error))?;
            let all = page.reservations.unwrap_or_default().into_iter();
            found.extend(all.flat_map(|one| one.instances.unwrap_or_default()));
        }
    }

    async fn owned(&self) -> Result<Vec<InstanceId>, AwsError> {
        let mut holdings = crate::port::Holdings::default();
        self.list_instances(&super::group::Members::new(), &mut holdings).await?;
        let ours = holdings.instances.into_iter().filter(Instance::is_active);
        Ok(ours.map(|instance| instance.id).collect())
    }

    async fn may_terminate(&self, id: &InstanceId) -> Result<String, AwsError> {
        self.limiter.take(Api::Terminate).await;
        let call = self.ec2.terminate_instances().instance_ids(id.as_str()).dry_run(true);
        match call.send().await {
            Err(error) => would_succeed(error.code(), || {
                port_error("terminate instance (dry run)", &error).into()
            })
            .map(|dry_run| format!("{dry_run} of {id}")),
            Ok(_) => Err(AwsError::Missing("EC2 passed over that it was a dry run".to_owned())),
        }
    }

    async fn may_make_templates(&self) -> Result<String, AwsError> {
        self.limiter.take(Api::Template).await;
        let data = RequestLaunchTemplateData::builder().instance_type(InstanceType::M5Large);
        let call = self
            .ec2
            .create_launch_template()
            .launch_template_name(format!("fleetwright-{}-preflight", self.cluster))
            .launch_template_data(data.build())
            .tag_specifications(self.tagged(ResourceType::LaunchTemplate))
            .dry_run(true);
        match call.send().await {
            Err(error) => would_succeed(error.code(), || {
                port_error("make launch template (dry run)", &error).into()
            }),
            Ok(_) => Err(AwsError::Missing("EC2 passed over that it was a dry run".to_owned())),
        }
    }

    fn tagged(&self, kind: ResourceType) -> TagSpecification {
        let of_cluster = Tag::builder().key(tag::CLUSTER).value(&self.cluster).build();
        TagSpecification::builder().resource_type(kind).tags(of_cluster).build()
    }

    async fn look_at_class(
        &self,
        (class, desired): (&NodeClass, &Desired),
        joining: Option<&Joining>,
        into: &mut Preflight,
    ) {
        let named = |part: &str| format!("node class {}: {part}", class.name);
        let machine = &class.machine;
        let subnets = self.subnets(&machine.subnets).await;
        into.add(
            &named("subnets"),
            subnets.as_ref().map_err(ToString::to_string).and_then(free_addresses),
            "tag subnets as subnetSelectorTerms selects them, with free addresses in each zone",
        );
        let groups = self.security_groups(&machine.security_groups).await;
        let shown = groups.as_ref().map(|ids| ids.join(", ")).map_err(ToString::to_string);
        let remedy = "tag security groups as securityGroupSelectorTerms selects them";
        into.add(&named("security groups"), shown, remedy);
        let mut found =
            Found { image: None, subnets: subnets.ok(), groups: groups.ok(), profile: None };
        let Some(joining) = joining else {
            into.skip(&named("image"), "the version of the EKS cluster is not known");
            return;
        };
        let image = self.any_image(class, &joining.kubernetes).await;
        let shown = image.as_ref().map(|(_, id)| id.clone()).map_err(ToString::to_string);
        into.add(&named("image"), shown, "check amiSelectorTerms");
        found.image = image.ok();
        let machines = Machines::of(desired, joining.endpoint.clone(), &joining.kubernetes);
        let profile = self.profile_of(&machines, class).await;
        let shown = profile.as_ref().map_err(ToString::to_string).and_then(|profile| {
            let without = "the node class names neither instanceProfile nor role".to_owned();
            profile.clone().ok_or(without)
        });
        into.add(&named("instance profile"), shown, "make an instance profile that holds the role");
        found.profile = profile.ok().flatten();
        if let Some(profile) = &found.profile {
            self.look_at_role(&named("role of its nodes"), profile, into).await;
        }
        self.look_at_launch(&named("launch"), (class, desired), &found, into).await;
    }

    /// Returns an image that the class selects, and the hardware that it is for.
    async fn any_image(
        &self,
        class: &NodeClass,
        kubernetes: &str,
    ) -> Result<(Hardware, String), AwsError> {
        let mut first = None;
        for arch in [Arch::Amd64, Arch::Arm64] {
            let hardware = Hardware { arch, accelerator: Accelerator::None };
            match self.image(&class.machine.images, hardware, kubernetes).await {
                Ok(id) => return Ok((hardware, id)),
                Err(error) => first = first.or(Some(error)),
            }
        }
        let none = || AwsError::Missing("no image is selected".to_owned());
        Err(first.unwrap_or_else(none))
    }

    /// Looks whether EKS lets the role of a profile in.
    async fn look_at_role(&self, what: &str, profile: &str, into: &mut Preflight) {
        let remedy = "check spec.role or spec.instanceProfile of the node class";
        self.limiter.take(Api::Other).await;
        let found = self.iam.get_instance_profile().instance_profile_name(profile).send().await;
        let found = found.map_err(|error| port_error("read instance profile", &error));
        let role = found.map(|found| {
            let roles = found.instance_profile.map(|profile| profile.roles).unwrap_or_default();
            roles.into_iter().next().map(|role| role.arn)
        });
        let arn = match role {
            Ok(Some(arn)) => arn,
            Ok(None) => {
                into.add(what, Err(format!("instance profile {profile} holds no role")), remedy);
                return;
            }
            Err(error) => {
                into.add::<String>(what, Err(error.to_string()), remedy);
                return;
            }
        };
        self.limiter.take(Api::Other).await;
        let call = self.eks.describe_access_entry().cluster_name(&self.cluster);
        let has_entry = match call.principal_arn(&arn).send().await {
            Ok(_) => true,
            Err(error) if error.code() == Some("ResourceNotFoundException") => false,
            Err(error) => {
                let error = port_error("read access entry", &error);
                into.add::<String>(what, Err(error.to_string()), POLICY);
                return;
            }
        };
        into.node_roles.push(NodeRole { arn, has_entry });
    }

    /// Asks for a machine of the class, as a dry run.
    async fn look_at_launch(
        &self,
        what: &str,
        (class, desired): (&NodeClass, &Desired),
        found: &Found,
        into: &mut Preflight,
    ) {
        let Found { image, subnets, groups, profile } = found;
        let subnet = subnets.as_ref().and_then(|all| all.values().flatten().next());
        let pool = pool_of(class, desired);
        let (Some(pool), Some((hardware, image)), Some(subnet), Some(groups)) =
            (pool, image, subnet, groups)
        else {
            into.skip(what, "what it needs is missing");
            return;
        };
        let trial = Trial {
            class,
            pool,
            image: (*hardware, image),
            subnet: &subnet.id,
            groups,
            profile: profile.as_deref(),
        };
        into.add(what, self.try_launch(&trial).await, POLICY);
    }
}

/// Returns the first pool of a node class.
fn pool_of<'a>(class: &NodeClass, desired: &'a Desired) -> Option<&'a PoolName> {
    let mut pools = desired.pools.iter();
    pools.find(|(_, pool)| pool.node_class.as_ref() == Some(&class.name)).map(|(name, _)| name)
}

/// Returns that a dry run would have succeeded, where that is what EC2 says by the code of its error.
pub(super) fn would_succeed(
    code: Option<&str>,
    otherwise: impl FnOnce() -> AwsError,
) -> Result<String, AwsError> {
    if code == Some(WOULD_SUCCEED) { Ok("dry run".to_owned()) } else { Err(otherwise()) }
}

impl Preflight {
    fn add<E: ToString>(&mut self, what: &str, found: Result<String, E>, remedy: &str) {
        let found = found.map_err(|error| error.to_string());
        self.requirements.push(Requirement::of(what, found, remedy));
    }

    fn skip(&mut self, what: &str, why: &str) {
        let state = RequirementState::Unknown { why: why.to_owned() };
        self.requirements.push(Requirement { what: what.to_owned(), state });
    }
}

/// Returns the free addresses by zone; an error where a zone has too few.
fn free_addresses(subnets: &Subnets) -> Result<String, String> {
    let of_zone = subnets.iter().map(|(zone, all)| {
        (zone, all.iter().fold(0_i32, |sum, subnet| sum.saturating_add(subnet.free)))
    });
    let shown: Vec<String> =
        of_zone.clone().map(|(zone, free)| format!("{zone}: {free} addresses free")).collect();
    let shown = shown.join(", ");
    let enough = of_zone.map(|(_, free)| free).all(|free| free >= FREE_MIN);
    if enough { Ok(shown) } else { Err(shown) }
}

#[cfg(test)]
mod tests {
    use super::super::network::Subnet;
    use super::*;

    #[test]
    fn a_zone_without_addresses_is_named() {
        let subnet = |free| vec![Subnet { id: "subnet-1".to_owned(), free }];
        let full: Subnets = [("a".into(), subnet(200)), ("b".into(), subnet(3))].into();
        assert_eq!(
            free_addresses(&full),
            Err("a: 200 addresses free, b: 3 addresses free".to_owned())
        );
        let roomy: Subnets = [("a".into(), subnet(200))].into();
        assert_eq!(free_addresses(&roomy), Ok("a: 200 addresses free".to_owned()));
    }
}
