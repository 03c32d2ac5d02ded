//! A launch: looks up its inputs and calls `CreateFleet` with all offerings of the request.
//!
//! Each offering has its own launch template, because the labels of its node are in the user data.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aws_sdk_ec2::config::Config;
use aws_sdk_ec2::config::retry::RetryConfig;
use aws_sdk_ec2::operation::create_fleet::CreateFleetOutput;
use aws_sdk_ec2::operation::create_fleet::builders::CreateFleetFluentBuilder;
use aws_sdk_ec2::types::{
    CreateFleetError, DefaultTargetCapacityType, FleetLaunchTemplateConfigRequest,
    FleetLaunchTemplateOverrides, FleetLaunchTemplateOverridesRequest,
    FleetLaunchTemplateSpecificationRequest, FleetOnDemandAllocationStrategy, FleetType,
    InstanceType, LaunchTemplateAndOverridesResponse, OnDemandOptionsRequest, ResourceType,
    SpotAllocationStrategy, SpotOptionsRequest, Tag, TagSpecification,
    TargetCapacitySpecificationRequest,
};
use aws_smithy_types::base64;

use super::client::Aws;
use super::errors::{AwsError, is_insufficient_capacity, port_error};
use super::instance::IMAGE_TAG;
use super::launch_context::LaunchContext;
use super::launch_template::{AddressFamily, TemplateContent};
use super::launch_template_gc::NO_SUCH_TEMPLATE;
use super::rate_limiter::ApiBucket;
use super::user_data::BootstrapConfig;
use crate::apply::concurrent::{BoxedFuture, run_concurrently};
use crate::apply::ports::{
    CallEffect, LaunchOffering, LaunchOutcome, LaunchRequest, LaunchedInstance, PortError,
};
use crate::model::desired::{NodeClass, UserData};
use crate::model::ids::InstanceTypeName;
use crate::model::observed::{Hardware, KEY_LABEL, tag};

/// Maximum number of launch templates that one launch creates at the same time.
const CONCURRENT_TEMPLATES_MAX: usize = 4;

/// Maximum attempts of a throttled launch, and the first backoff. Each further backoff is twice as
/// long.
const THROTTLED_ATTEMPTS_MAX: u32 = 3;
const THROTTLED_BACKOFF: Duration = Duration::from_millis(500);

impl Aws {
    /// Launches one instance, at most once for each token.
    ///
    /// # Errors
    /// Returns an error if the node class cannot be resolved, or if EC2 refuses for a reason other
    /// than capacity.
    pub(super) async fn launch_instance(
        &self,
        context: &LaunchContext,
        request: &LaunchRequest,
    ) -> Result<LaunchOutcome, AwsError> {
        let pool = request.tags.get(tag::POOL).map_or("", String::as_str);
        let class = context.node_class(pool);
        let class = class
            .ok_or_else(|| AwsError::Missing(format!("pool {pool} no longer has a node class")))?;
        let overrides = self.fleet_overrides(context, class, request).await?;
        if overrides.is_empty() {
            let zones: BTreeSet<&str> =
                request.offerings.iter().map(|of| of.zone.as_str()).collect();
            let zones = zones.into_iter().collect::<Vec<_>>().join(", ");
            let reason = format!("node class {} has no subnet in {zones}", class.name);
            return Ok(LaunchOutcome::InsufficientCapacity { reason });
        }
        let end = self
            .create_fleet_with_retry(context, &overrides, || {
                self.create_fleet_request(class, request, &overrides)
            })
            .await;
        if let Err(AwsError::Port(error)) = &end
            && NO_SUCH_TEMPLATE.iter().any(|code| error.reason.contains(code))
        {
            // A template was deleted externally. The retry of the launch creates it again.
            let templates: BTreeSet<&str> =
                overrides.iter().map(|of| of.template.as_str()).collect();
            self.forget_templates(context, &templates);
            return Err(PortError { effect: CallEffect::NotApplied, ..error.clone() }.into());
        }
        end
    }

    /// Forgets launch templates that do not exist, also in a context that has replaced `context`
    /// since the launch began.
    fn forget_templates(&self, context: &LaunchContext, names: &BTreeSet<&str>) {
        context.forget_templates(names.iter().copied());
        if let Some(present) = self.launch_context() {
            present.forget_templates(names.iter().copied());
        }
    }

    /// Returns the offerings of the request that the node class can launch, each with its subnet and
    /// launch template. Alternatives without a subnet or an image are left out.
    async fn fleet_overrides(
        &self,
        context: &LaunchContext,
        class: &NodeClass,
        request: &LaunchRequest,
    ) -> Result<Vec<FleetOverride>, AwsError> {
        let subnets = self.launch_subnets(context, class).await.map_err(before_launch_error)?;
        let mut contents = Vec::new();
        {
            // Concurrent launches with the same inputs wait here and then find the cached lookups.
            let _guard = context.lookup_lock.lock().await;
            for (index, offering) in request.offerings.iter().enumerate() {
                let subnet = subnets.get(&offering.zone).and_then(|subnets| subnets.first());
                let Some(subnet) = subnet else { continue };
                match self.template_content(context, class, request, offering).await {
                    Err(AwsError::Missing(_)) if index > 0 => {}
                    content => contents.push((
                        index,
                        offering,
                        subnet,
                        content.map_err(before_launch_error)?,
                    )),
                }
            }
        }
        // The first failure ends the launch, so no further template is requested.
        let has_failed = Cell::new(false);
        let overrides = contents.iter().map(|(index, offering, subnet, content)| {
            let has_failed = &has_failed;
            let fleet_override = async move {
                if has_failed.get() {
                    return Ok(None);
                }
                let template = self.ensure_template(context, content).await;
                has_failed.set(has_failed.get() || template.is_err());
                let template = template.map_err(before_launch_error)?;
                let (instance_type, subnet) = (offering.instance_type.clone(), subnet.id.clone());
                let offering = *index;
                Ok(Some(FleetOverride { offering, template, instance_type, subnet }))
            };
            let boxed: BoxedFuture<'_, Result<_, AwsError>> = Box::pin(fleet_override);
            boxed
        });
        let overrides = run_concurrently(overrides, CONCURRENT_TEMPLATES_MAX).await;
        overrides.into_iter().filter_map(Result::transpose).collect()
    }

    /// Calls `CreateFleet` and retries while it is throttled. SDK retries are disabled: after its
    /// own retries the SDK only reports the last error, although an earlier attempt may have
    /// succeeded. Templates that the response reports as missing are forgotten.
    async fn create_fleet_with_retry(
        &self,
        context: &LaunchContext,
        overrides: &[FleetOverride],
        call: impl Fn() -> CreateFleetFluentBuilder,
    ) -> Result<LaunchOutcome, AwsError> {
        use aws_sdk_ec2::error::ProvideErrorMetadata as _;
        const VERB: &str = "launch instance";
        let (mut wait, mut tries) = (THROTTLED_BACKOFF, 0);
        loop {
            self.limiter.acquire(ApiBucket::Launch).await;
            self.check_write_permit(VERB)?;
            let once = Config::builder().retry_config(RetryConfig::disabled());
            let error = match call().customize().config_override(once).send().await {
                Ok(answer) => {
                    self.forget_templates(context, &missing_templates(&answer, overrides));
                    return launch_outcome(answer, overrides);
                }
                Err(error) => error,
            };
            let (code, message) = (error.code(), error.message());
            if is_insufficient_capacity(code, message) {
                let reason = message.or(code).unwrap_or_default().to_owned();
                return Ok(LaunchOutcome::InsufficientCapacity { reason });
            }
            let error = port_error(VERB, &error);
            tries += 1;
            if tries == THROTTLED_ATTEMPTS_MAX || error.effect != CallEffect::NotApplied {
                return Err(error.into());
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    }

    /// Returns the request for a fleet of one instance of one of the overrides.
    ///
    /// The request has no maximum Spot price: EC2 would also reclaim a running instance above it.
    fn create_fleet_request(
        &self,
        class: &NodeClass,
        request: &LaunchRequest,
        overrides: &[FleetOverride],
    ) -> CreateFleetFluentBuilder {
        let spot = request.capacity_type.is_spot();
        let configs = overrides.chunk_by(|a, b| a.template == b.template).map(|chunk| {
            let template = FleetLaunchTemplateSpecificationRequest::builder()
                .launch_template_name(&chunk[0].template)
                .version("$Default");
            FleetLaunchTemplateConfigRequest::builder()
                .launch_template_specification(template.build())
                .set_overrides(Some(chunk.iter().map(|of| of.request(spot)).collect()))
                .build()
        });
        let configs: Vec<_> = configs.collect();
        let capacity = TargetCapacitySpecificationRequest::builder()
            .total_target_capacity(1)
            .default_target_capacity_type(if spot {
                DefaultTargetCapacityType::Spot
            } else {
                DefaultTargetCapacityType::OnDemand
            })
            .build();
        let tags = launch_tags(class, &self.cluster, &request.image, &request.tags);
        let specifications = [ResourceType::Instance, ResourceType::Volume, ResourceType::Fleet];
        let specifications = specifications.map(|kind| {
            TagSpecification::builder().resource_type(kind).set_tags(Some(tags.clone())).build()
        });
        let call = self
            .ec2
            .create_fleet()
            .r#type(FleetType::Instant)
            .client_token(&request.token)
            .set_context(class.instance_settings.context.clone())
            .set_launch_template_configs(Some(configs))
            .target_capacity_specification(capacity)
            .set_tag_specifications(Some(specifications.into()));
        if spot {
            let strategy = SpotAllocationStrategy::PriceCapacityOptimized;
            call.spot_options(SpotOptionsRequest::builder().allocation_strategy(strategy).build())
        } else {
            let strategy = FleetOnDemandAllocationStrategy::Prioritized;
            let options = OnDemandOptionsRequest::builder().allocation_strategy(strategy);
            call.on_demand_options(options.build())
        }
    }

    /// Looks up the content of the launch template for an offering of a request.
    async fn template_content<'c>(
        &self,
        context: &LaunchContext,
        class: &'c NodeClass,
        request: &LaunchRequest,
        offering: &LaunchOffering,
    ) -> Result<TemplateContent<'c>, AwsError> {
        let hardware = Hardware::from_labels(&offering.labels);
        let image = self.launch_image(context, class, hardware).await?;
        let groups = self.launch_security_groups(context, class).await?;
        let placement_group = self.launch_placement_group(context, class).await?;
        let profile = self.ensure_instance_profile(context, class).await?;
        let taints = [&request.taints[..], &request.startup_taints[..]].concat();
        // The label is constant, and the tag of the instance holds the key. Otherwise every node
        // would need its own launch template, and EC2 limits their creation.
        let mut labels = offering.labels.clone();
        labels.entry(KEY_LABEL.into()).and_modify(|key| *key = "tagged".into());
        let config = BootstrapConfig {
            endpoint: &context.endpoint,
            family: class.ami_family,
            kubelet: &class.kubelet,
            labels: &labels,
            taints: &taints,
            raid0: class.instance_store_raid0,
            custom: class.instance_settings.user_data.as_ref().map(UserData::reveal),
        };
        let user_data = config
            .user_data()
            .map_err(|error| AwsError::Missing(format!("node class {}: {error}", class.name)))?;
        Ok(TemplateContent {
            image,
            profile,
            groups,
            reservation: request.reservation.as_ref().map(ToString::to_string),
            placement_group,
            address_family: AddressFamily::from_service_cidr(&context.endpoint.service_cidr),
            user_data: base64::encode(user_data),
            class,
        })
    }
}

/// Converts an error that occurred before the launch call. A transient error then has no effect on
/// EC2.
fn before_launch_error(error: AwsError) -> AwsError {
    match error {
        AwsError::Port(error) if error.is_transient() => {
            PortError { effect: CallEffect::NotApplied, ..error }.into()
        }
        other @ (AwsError::Port(_) | AwsError::Missing(_)) => other,
    }
}

/// An offering of a fleet request.
#[derive(Debug)]
struct FleetOverride {
    /// Index in the launch request.
    offering: usize,
    template: String,
    instance_type: InstanceTypeName,
    subnet: String,
}

impl FleetOverride {
    /// Returns the override. EC2 tries overrides in the order of their priority, unless they are
    /// Spot.
    fn request(&self, spot: bool) -> FleetLaunchTemplateOverridesRequest {
        let priority = u32::try_from(self.offering).unwrap_or(u32::MAX);
        FleetLaunchTemplateOverridesRequest::builder()
            .instance_type(InstanceType::from(self.instance_type.as_str()))
            .subnet_id(&self.subnet)
            .set_priority((!spot).then(|| f64::from(priority)))
            .build()
    }

    fn is(&self, found: &FleetLaunchTemplateOverrides) -> bool {
        let kind = found.instance_type().map(InstanceType::as_str);
        kind == Some(self.instance_type.as_str()) && found.subnet_id() == Some(&self.subnet)
    }
}

/// Returns the override that EC2 names in its response.
fn named_override<'o>(
    overrides: &'o [FleetOverride],
    named: Option<&LaunchTemplateAndOverridesResponse>,
) -> Option<&'o FleetOverride> {
    let named = named.and_then(|named| named.overrides())?;
    overrides.iter().find(|of| of.is(named))
}

/// Returns the launch templates that the response reports as missing, also beside an instance. An
/// error that names no override may concern any template.
fn missing_templates<'o>(
    answer: &CreateFleetOutput,
    overrides: &'o [FleetOverride],
) -> BTreeSet<&'o str> {
    let mut missing = BTreeSet::new();
    for error in answer.errors() {
        if error.error_code().is_some_and(|code| NO_SUCH_TEMPLATE.contains(&code)) {
            let named = named_override(overrides, error.launch_template_and_overrides());
            let concerned = named.map_or(overrides, std::slice::from_ref);
            missing.extend(concerned.iter().map(|of| of.template.as_str()));
        }
    }
    missing
}

/// Reads the response: one instance, or the reason that there is none.
fn launch_outcome(
    answer: CreateFleetOutput,
    overrides: &[FleetOverride],
) -> Result<LaunchOutcome, AwsError> {
    let errors = answer.errors.unwrap_or_default();
    let is_capacity = |error: &&CreateFleetError| {
        is_insufficient_capacity(error.error_code(), error.error_message())
    };
    let unavailable = errors.iter().filter(is_capacity).filter_map(|error| {
        Some(named_override(overrides, error.launch_template_and_overrides())?.offering)
    });
    let unavailable: BTreeSet<usize> = unavailable.collect();
    for found in answer.instances.unwrap_or_default() {
        let chosen = named_override(overrides, found.launch_template_and_overrides());
        let offering = chosen.map(|of| of.offering);
        if let Some(id) = found.instance_ids.unwrap_or_default().into_iter().next() {
            let unavailable = unavailable.iter().copied().filter(|index| Some(*index) != offering);
            let unavailable = unavailable.collect();
            let id = id.into();
            return Ok(LaunchOutcome::Launched(LaunchedInstance { id, offering, unavailable }));
        }
    }
    let has_capacity_error = errors.iter().any(|error| is_capacity(&error));
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
    // Of several offerings, some may be refused for good. Another request still helps if any of
    // them only lacks capacity.
    if has_capacity_error {
        return Ok(LaunchOutcome::InsufficientCapacity { reason });
    }
    let reason = if reason.is_empty() {
        "EC2 returned neither an instance nor an error".into()
    } else {
        reason
    };
    let effect = CallEffect::from_transience(words.is_empty());
    let verb = "launch instance".to_owned();
    Err(PortError { verb, reason, effect }.into())
}

/// Returns the tags of a launch. Our tags override the tags of the node class.
pub(super) fn launch_tags(
    class: &NodeClass,
    cluster: &str,
    image: &str,
    ours: &BTreeMap<String, String>,
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

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::types::CreateFleetInstance;

    use super::super::user_data::ClusterEndpoint;
    use super::*;
    use crate::model::desired::Desired;

    fn overrides() -> Vec<FleetOverride> {
        let one = |(offering, kind, subnet): (usize, &str, &str)| FleetOverride {
            offering,
            template: format!("template-{offering}"),
            instance_type: kind.into(),
            subnet: subnet.to_owned(),
        };
        [(0, "m5.large", "subnet-a"), (1, "m6i.large", "subnet-a"), (3, "m5.large", "subnet-b")]
            .map(one)
            .into()
    }

    fn named(of: &FleetOverride) -> LaunchTemplateAndOverridesResponse {
        let overrides = FleetLaunchTemplateOverrides::builder()
            .instance_type(InstanceType::from(of.instance_type.as_str()))
            .subnet_id(&of.subnet);
        LaunchTemplateAndOverridesResponse::builder().overrides(overrides.build()).build()
    }

    fn error(code: &str, of: &FleetOverride) -> CreateFleetError {
        CreateFleetError::builder()
            .error_code(code)
            .error_message("no")
            .launch_template_and_overrides(named(of))
            .build()
    }

    #[test]
    fn response_names_the_launched_and_unavailable_offerings() {
        let overrides = overrides();
        let instance = CreateFleetInstance::builder()
            .instance_ids("i-1")
            .instance_type(InstanceType::M5Large)
            .launch_template_and_overrides(named(&overrides[2]));
        let answer = CreateFleetOutput::builder()
            .instances(instance.build())
            .errors(error("InsufficientInstanceCapacity", &overrides[1]))
            .errors(error("UnsupportedOperation", &overrides[0]));
        let found = launch_outcome(answer.build(), &overrides).expect("launched");
        let expected =
            LaunchedInstance { id: "i-1".into(), offering: Some(3), unavailable: vec![1] };
        assert_eq!(found, LaunchOutcome::Launched(expected));
    }

    #[test]
    fn template_that_is_missing_beside_a_launched_instance_is_forgotten() {
        let overrides = overrides();
        let instance = CreateFleetInstance::builder()
            .instance_ids("i-1")
            .launch_template_and_overrides(named(&overrides[2]))
            .build();
        let missing = error(NO_SUCH_TEMPLATE[1], &overrides[1]);
        let unnamed = CreateFleetError::builder().error_code(NO_SUCH_TEMPLATE[0]).build();
        let other = error("InsufficientInstanceCapacity", &overrides[0]);
        for (error, expected) in [
            (missing, [true, false, true]),
            (unnamed, [false, false, false]),
            (other, [true, true, true]),
        ] {
            let endpoint = ClusterEndpoint {
                cluster: String::new(),
                url: String::new(),
                authority: String::new(),
                service_cidr: String::new(),
                dns: String::new(),
            };
            let context = LaunchContext::new(&Desired::default(), endpoint, "1.33");
            context.update_lookups(|known| {
                known.templates.extend(overrides.iter().map(|of| (of.template.clone(), None)));
            });
            let answer = CreateFleetOutput::builder().instances(instance.clone()).errors(error);
            let answer = answer.build();
            context.forget_templates(missing_templates(&answer, &overrides));
            let known = overrides.iter().map(|of| context.uses_template(&of.template));
            assert_eq!(known.collect::<Vec<_>>(), expected, "{answer:?}");
            let launched = launch_outcome(answer, &overrides);
            assert!(matches!(launched, Ok(LaunchOutcome::Launched(_))), "{launched:?}");
        }
    }

    #[test]
    fn offering_that_the_response_does_not_name_is_unknown() {
        let overrides = overrides();
        let other = FleetOverride {
            offering: 0,
            template: "template-0".to_owned(),
            instance_type: "m5.large".into(),
            subnet: "subnet-z".to_owned(),
        };
        for named in [None, Some(named(&other))] {
            let instance = CreateFleetInstance::builder()
                .instance_ids("i-1")
                .instance_type(InstanceType::M5Large)
                .set_launch_template_and_overrides(named);
            let answer = CreateFleetOutput::builder().instances(instance.build());
            let found = launch_outcome(answer.build(), &overrides).expect("launched");
            let expected =
                LaunchedInstance { id: "i-1".into(), offering: None, unavailable: vec![] };
            assert_eq!(found, LaunchOutcome::Launched(expected));
        }
    }

    #[test]
    fn launch_into_a_full_spread_group_is_refused() {
        const FULL: &str = "You've reached the limit of instances in this spread placement group. A \
                            spread placement group can have up to seven instances per \
                            Availability Zone.";
        let overrides = overrides();
        let full = |code: &str, of: &FleetOverride| {
            CreateFleetError::builder()
                .error_code(code)
                .error_message(FULL)
                .launch_template_and_overrides(named(of))
                .build()
        };
        let groups = [
            full("InsufficientInstanceCapacity", &overrides[0]),
            full("UnfulfillableCapacity", &overrides[1]),
        ];
        let answer = CreateFleetOutput::builder().set_errors(Some(groups.into()));
        let found = launch_outcome(answer.clone().build(), &overrides);
        let Err(AwsError::Port(refusal)) = &found else { panic!("{found:?}") };
        assert_eq!(refusal.effect, CallEffect::Refused);
        assert!(refusal.reason.starts_with(FULL), "{refusal:?}");

        let lacking =
            answer.clone().errors(error("InsufficientInstanceCapacity", &overrides[2])).build();
        let found = launch_outcome(lacking, &overrides);
        assert!(matches!(found, Ok(LaunchOutcome::InsufficientCapacity { .. })), "{found:?}");

        let instance = CreateFleetInstance::builder()
            .instance_ids("i-1")
            .launch_template_and_overrides(named(&overrides[2]));
        let found = launch_outcome(answer.instances(instance.build()).build(), &overrides);
        let expected =
            LaunchedInstance { id: "i-1".into(), offering: Some(3), unavailable: vec![] };
        assert_eq!(found.expect("launched"), LaunchOutcome::Launched(expected));
    }

    #[test]
    fn capacity_error_among_refusals_permits_the_next_request() {
        let overrides = overrides();
        let outcome = |codes: [&str; 2]| {
            let errors = codes.iter().zip(&overrides).map(|(code, of)| error(code, of));
            let answer = CreateFleetOutput::builder().set_errors(Some(errors.collect()));
            launch_outcome(answer.build(), &overrides)
        };
        let found = outcome(["UnfulfillableCapacity", "UnsupportedOperation"]);
        assert!(matches!(found, Ok(LaunchOutcome::InsufficientCapacity { .. })), "{found:?}");
        assert!(outcome(["UnauthorizedOperation", "UnsupportedOperation"]).is_err());
    }
}
