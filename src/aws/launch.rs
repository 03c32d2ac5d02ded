//! One launch: what a request needs is looked up, and EC2 is asked once.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_sdk_ec2::config::Config;
use aws_sdk_ec2::config::retry::RetryConfig;
use aws_sdk_ec2::operation::create_fleet::CreateFleetOutput;
use aws_sdk_ec2::operation::create_fleet::builders::CreateFleetFluentBuilder;
use aws_sdk_ec2::types::{
    DefaultTargetCapacityType, FleetLaunchTemplateConfigRequest,
    FleetLaunchTemplateOverridesRequest, FleetLaunchTemplateSpecificationRequest,
    FleetOnDemandAllocationStrategy, FleetType, InstanceType, OnDemandOptionsRequest, ResourceType,
    SpotAllocationStrategy, SpotOptionsRequest, Tag, TagSpecification,
    TargetCapacitySpecificationRequest,
};
use aws_smithy_types::base64;

use super::boot::Boot;
use super::client::{Aws, AwsError};
use super::fault::{is_no_capacity, port_error};
use super::instance::IMAGE_TAG;
use super::limiter::Api;
use super::machine::Machines;
use super::sweep::NO_SUCH_TEMPLATE;
use super::template::Content;
use crate::catalog::CapacityType;
use crate::fleet::{Hardware, KEY_LABEL, tag};
use crate::manifest::{Identity, NodeClass, UserData};
use crate::port::{Fate, LaunchOutcome, LaunchRequest, PortError};

/// How often a launch is asked for that EC2 turns away, and how long the first wait in between is; each
/// further one is twice as long.
const TURNED_AWAY_TRIES: u32 = 3;
const TURNED_AWAY_WAIT: Duration = Duration::from_millis(500);

impl Aws {
    /// Launches one instance, at most once for each token.
    ///
    /// # Errors
    /// When the node class cannot be followed, or EC2 refuses for another reason than capacity.
    pub(super) async fn launch_one(
        &self,
        machines: &Machines,
        request: &LaunchRequest,
    ) -> Result<LaunchOutcome, AwsError> {
        let pool = request.tags.get(tag::POOL).map_or("", String::as_str);
        let class = machines.class(pool);
        let class = class
            .ok_or_else(|| AwsError::Missing(format!("pool {pool} has no node class any more")))?;
        let subnets = self.subnets_of(machines, class).await.map_err(not_begun)?;
        let Some(subnet) = subnets.get(&request.zone).and_then(|subnets| subnets.first()) else {
            let (class, zone) = (&class.name, &request.zone);
            let reason = format!("node class {class} has no subnet in {zone}");
            return Ok(LaunchOutcome::InsufficientCapacity { reason });
        };
        let template = {
            // The first of several that need the same looks it up, and the others find it.
            let _alone = machines.looking.lock().await;
            let content = self.content(machines, class, request).await.map_err(not_begun)?;
            self.template(machines, &content).await.map_err(not_begun)?
        };
        let end = self.ask_for(|| self.fleet((class, request), template.clone(), &subnet.id)).await;
        if let Err(AwsError::Port(error)) = &end
            && NO_SUCH_TEMPLATE.iter().any(|code| error.reason.contains(code))
        {
            // Somebody deleted it: it is made again when the launch is asked for again.
            machines.keep(|known| {
                known.templates.remove(&template);
            });
            return Err(PortError { fate: Fate::TurnedAway, ..error.clone() }.into());
        }
        end
    }

    /// Makes the call for a fleet, again where EC2 turns it away. The SDK makes it once each time: of several
    /// that it makes by itself it tells how the last one ended, and an earlier one may have been heard.
    async fn ask_for(
        &self,
        call: impl Fn() -> CreateFleetFluentBuilder,
    ) -> Result<LaunchOutcome, AwsError> {
        use aws_sdk_ec2::error::ProvideErrorMetadata as _;
        const VERB: &str = "launch instance";
        let (mut wait, mut tries) = (TURNED_AWAY_WAIT, 0);
        loop {
            self.limiter.take(Api::Launch).await;
            self.may_write(VERB)?;
            let once = Config::builder().retry_config(RetryConfig::disabled());
            let error = match call().customize().config_override(once).send().await {
                Ok(answer) => return outcome(answer),
                Err(error) => error,
            };
            if let Some(code) = error.code().filter(|code| is_no_capacity(code)) {
                let reason = error.message().unwrap_or(code).to_owned();
                return Ok(LaunchOutcome::InsufficientCapacity { reason });
            }
            let error = port_error(VERB, &error);
            tries += 1;
            if tries == TURNED_AWAY_TRIES || error.fate != Fate::TurnedAway {
                return Err(error.into());
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    }

    /// Returns the call for a fleet of one instance, in one subnet.
    fn fleet(
        &self,
        (class, request): (&NodeClass, &LaunchRequest),
        template: String,
        subnet: &str,
    ) -> CreateFleetFluentBuilder {
        let overrides = FleetLaunchTemplateOverridesRequest::builder()
            .instance_type(InstanceType::from(request.instance_type.as_str()))
            .subnet_id(subnet)
            .build();
        let config = FleetLaunchTemplateConfigRequest::builder()
            .launch_template_specification(
                FleetLaunchTemplateSpecificationRequest::builder()
                    .launch_template_name(template)
                    .version("$Default")
                    .build(),
            )
            .overrides(overrides)
            .build();
        let spot = request.capacity_type == CapacityType::Spot;
        let capacity = TargetCapacitySpecificationRequest::builder()
            .total_target_capacity(1)
            .default_target_capacity_type(if spot {
                DefaultTargetCapacityType::Spot
            } else {
                DefaultTargetCapacityType::OnDemand
            })
            .build();
        let tags = tags_of(class, &self.cluster, (&request.image, &request.tags));
        let specifications = [ResourceType::Instance, ResourceType::Volume, ResourceType::Fleet];
        let specifications = specifications.map(|kind| {
            TagSpecification::builder().resource_type(kind).set_tags(Some(tags.clone())).build()
        });
        let call = self
            .ec2
            .create_fleet()
            .r#type(FleetType::Instant)
            .client_token(&request.token)
            .launch_template_configs(config)
            .target_capacity_specification(capacity)
            .set_tag_specifications(Some(specifications.into()));
        if spot {
            let strategy = SpotAllocationStrategy::PriceCapacityOptimized;
            call.spot_options(SpotOptionsRequest::builder().allocation_strategy(strategy).build())
        } else {
            let strategy = FleetOnDemandAllocationStrategy::LowestPrice;
            let options = OnDemandOptionsRequest::builder().allocation_strategy(strategy);
            call.on_demand_options(options.build())
        }
    }

    /// Looks up what the launch template of a request holds.
    async fn content<'c>(
        &self,
        machines: &Machines,
        class: &'c NodeClass,
        request: &LaunchRequest,
    ) -> Result<Content<'c>, AwsError> {
        let hardware = Hardware::of(&request.labels);
        let image = self.image_of(machines, (class, hardware)).await?;
        let groups = self.groups_of(machines, class).await?;
        let profile = self.profile_of(machines, class).await?;
        let taints = [&request.taints[..], &request.startup_taints[..]].concat();
        // A node says that it is ours, and the tag of its instance which one: else no two would be made from
        // the same template, and EC2 lets an account make few of them.
        let mut labels = request.labels.clone();
        labels.entry(KEY_LABEL.into()).and_modify(|key| *key = "tagged".into());
        let boot = Boot {
            endpoint: &machines.endpoint,
            family: class.ami_family,
            kubelet: &class.kubelet,
            labels: &labels,
            taints: &taints,
            raid0: class.instance_store_raid0,
            custom: class.machine.user_data.as_ref().map(UserData::reveal),
        };
        let user_data = boot
            .user_data()
            .map_err(|error| AwsError::Missing(format!("node class {}: {error}", class.name)))?;
        Ok(Content {
            image,
            profile,
            groups,
            reservation: request.reservation.as_ref().map(ToString::to_string),
            user_data: base64::encode(user_data),
            class,
        })
    }

    /// Returns the instance profile of a class: the one it names, or the one that holds its role.
    pub(super) async fn profile_of(
        &self,
        machines: &Machines,
        class: &NodeClass,
    ) -> Result<Option<String>, AwsError> {
        let role = match &class.machine.identity {
            Identity::Profile(name) => return Ok(Some(name.clone())),
            Identity::None => return Ok(None),
            Identity::Role(role) => role,
        };
        if let Some(known) = machines.recall(|known| known.profiles.get(&class.name).cloned()) {
            return Ok(Some(known));
        }
        self.limiter.take(Api::Other).await;
        let found = self.iam.list_instance_profiles_for_role().role_name(role).send().await;
        let found =
            found.map_err(|error| port_error(&format!("read the role `{role}`"), &error))?;
        // The first by name, so that it is always the same one.
        let names =
            found.instance_profiles.into_iter().map(|profile| profile.instance_profile_name);
        let Some(name) = names.min() else {
            return Err(AwsError::Missing(format!(
                "no instance profile holds the role `{role}` of node class {}; make one, or name it \
                 by `instanceProfile`",
                class.name
            )));
        };
        machines.keep(|known| {
            known.profiles.insert(class.name.clone(), name.clone());
        });
        Ok(Some(name))
    }
}

/// Returns the error of a launch that was not asked for, because something else failed before.
fn not_begun(error: AwsError) -> AwsError {
    match error {
        AwsError::Port(error) if error.is_transient() => {
            PortError { fate: Fate::TurnedAway, ..error }.into()
        }
        other @ (AwsError::Port(_) | AwsError::Missing(_)) => other,
    }
}

/// Reads the answer: one instance, or why there is none.
fn outcome(answer: CreateFleetOutput) -> Result<LaunchOutcome, AwsError> {
    let instances = answer.instances.unwrap_or_default();
    let mut ids = instances.into_iter().flat_map(|found| found.instance_ids.unwrap_or_default());
    if let Some(id) = ids.next() {
        return Ok(LaunchOutcome::Launched(id.into()));
    }
    let errors = answer.errors.unwrap_or_default();
    let words: BTreeMap<String, String> = errors
        .into_iter()
        .map(|error| {
            (error.error_code.unwrap_or_default(), error.error_message.unwrap_or_default())
        })
        .collect();
    let reason = words
        .iter()
        .map(|(code, message)| format!("{message} ({code})"))
        .collect::<Vec<_>>()
        .join("; ");
    if !words.is_empty() && words.keys().all(|code| is_no_capacity(code)) {
        return Ok(LaunchOutcome::InsufficientCapacity { reason });
    }
    let reason =
        if reason.is_empty() { "EC2 gave neither instance nor error".into() } else { reason };
    let fate = Fate::of(words.is_empty());
    let verb = "launch instance".to_owned();
    Err(PortError { verb, reason, fate }.into())
}

/// Returns the tags of a launch from an image: those of the node class first, so that ours count.
pub(super) fn tags_of(
    class: &NodeClass,
    cluster: &str,
    (image, ours): (&str, &BTreeMap<String, String>),
) -> Vec<Tag> {
    let mut tags: BTreeMap<&str, &str> =
        class.tags.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let owned = format!("kubernetes.io/cluster/{cluster}");
    tags.insert(&owned, "owned");
    tags.insert("eks:eks-cluster-name", cluster);
    tags.insert(IMAGE_TAG, image);
    tags.extend(ours.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    tags.into_iter().map(|(key, value)| Tag::builder().key(key).value(value).build()).collect()
}
