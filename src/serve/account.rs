//! An account over the embedded world: the calls of AWS that this program makes, and no others.
//!
//! Launches, groups and terminations are the world's. Subnets, security groups and images are there
//! for whatever a node class selects: an account without them would teach nobody anything. A machine
//! joins with the labels and taints that its user data tells its kubelet.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use serde_json::{Value as Json, json};

use super::api::Answer;
use super::request::Request;
use super::xml::Xml;
use crate::catalog::{CapacityType, Catalog, InstanceType, NodeSettings};
use crate::fleet::{
    Group, Instance, InstanceState, MatchCriteria, ReservationKind, ReservationState,
    ScheduledSize, tag,
};
use crate::ids::{Labels, PoolName};
use crate::manifest::{Desired, Pool};
use crate::pod::{Taint, TaintEffect};
use crate::port::{Cloud, LaunchOutcome, LaunchRequest, PortError};
use crate::sim::World;
use crate::web::form;

/// Tag that keeps the image as the node class names it.
const IMAGE_TAG: &str = "fleetwright.dev/image";

/// Version of Kubernetes that EKS says.
const VERSION: &str = "1.33";

/// Addresses that every subnet has.
const FREE_ADDRESSES: &str = "4000";

/// The fields of a query, by name.
type Form = BTreeMap<String, String>;

/// Why a call fails: a status, a code and a message.
#[derive(Debug)]
struct Fault(u16, &'static str, String);

/// What a launch template tells machines.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Template {
    user_data: String,
    /// The capacity reservation that they are launched into.
    reservation: Option<String>,
}

/// An account.
pub(super) struct Account {
    world: Rc<World>,
    catalog: Catalog,
    /// What pools and node classes say of machines.
    desired: RefCell<Rc<Desired>>,
    templates: RefCell<BTreeMap<String, Template>>,
}

/// Returns what a verb of the world's port gives: it never waits.
fn at_once<T>(verb: impl Future<Output = T>) -> T {
    let mut verb = pin!(verb);
    match verb.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("the embedded world answers at once"),
    }
}

/// Returns the items of a list as the query protocols number them: `Name.1`, `Name.2`, and so on.
fn listed<'f>(form: &'f Form, name: &str) -> Vec<&'f str> {
    (1..).map_while(|n| form.get(&format!("{name}.{n}"))).map(String::as_str).collect()
}

fn field<'f>(form: &'f Form, name: &str) -> &'f str {
    form.get(name).map_or("", String::as_str)
}

impl Account {
    pub(super) fn new(world: Rc<World>, catalog: Catalog, desired: Rc<Desired>) -> Self {
        let desired = RefCell::new(desired);
        Self { world, catalog, desired, templates: RefCell::default() }
    }

    /// Takes over what the repository says of machines now.
    pub(super) fn follow(&self, desired: Rc<Desired>) {
        *self.desired.borrow_mut() = desired;
    }

    /// Returns what the repository says of machines.
    pub(super) fn desired(&self) -> Rc<Desired> {
        Rc::clone(&self.desired.borrow())
    }

    /// Answers a call; `None` for a request that is none of AWS.
    pub(super) fn answer(&self, request: &Request) -> Option<Answer> {
        if let Some((service, operation)) = request.target.split_once('.') {
            return Some(self.operation(service, operation, request));
        }
        if request.path == "/clusters" || request.path.starts_with("/clusters/") {
            return Some(self.eks(request));
        }
        if request.path != "/" || request.method != "POST" {
            return None;
        }
        let form = form(&String::from_utf8_lossy(&request.body));
        let action = field(&form, "Action").to_owned();
        let of_ec2 = field(&form, "Version") == "2016-11-15";
        let answered = if of_ec2 { self.ec2(&action, &form) } else { self.query(&action, &form) };
        Some(match answered {
            Ok(xml) if of_ec2 => Answer::Whole(200, xml.of_ec2(&action)),
            Ok(xml) => Answer::Whole(200, xml.of_query(&action)),
            Err(Fault(status, code, why)) if of_ec2 => {
                Answer::Whole(status, Xml::error_of_ec2(code, &why))
            }
            Err(Fault(status, code, why)) => Answer::Whole(status, Xml::error_of_query(code, &why)),
        })
    }

    fn ec2(&self, action: &str, form: &Form) -> Result<Xml, Fault> {
        if field(form, "DryRun") == "true" {
            let why = "Request would have succeeded, but DryRun flag is set.";
            return Err(Fault(412, "DryRunOperation", why.to_owned()));
        }
        match action {
            "DescribeInstances" => Ok(self.instances(form)),
            "CreateFleet" => self.launch(form),
            "TerminateInstances" => {
                for id in listed(form, "InstanceId") {
                    at_once(self.world.terminate(&id.into())).map_err(refused)?;
                }
                Ok(Xml::default().list("instancesSet", "item", []))
            }
            "CreateLaunchTemplate" => self.template(form),
            "DescribeSubnets" => Ok(self.subnets()),
            "DescribeCapacityReservations" => Ok(self.reservations()),
            "DescribeSecurityGroups" => {
                let group =
                    Xml::default().text("groupId", "sg-embedded").text("groupName", "nodes");
                Ok(Xml::default().list("securityGroupInfo", "item", [group]))
            }
            "DescribeImages" => Ok(images()),
            "DescribeAvailabilityZones" => Ok(self.zones()),
            "DescribeInstanceTypeOfferings" => Ok(self.offered()),
            // Nobody bids here: no spot price is known, and list prices stand in.
            "DescribeSpotPriceHistory" => {
                Ok(Xml::default().list("spotPriceHistorySet", "item", []))
            }
            _ => Err(unknown(action)),
        }
    }

    fn query(&self, action: &str, form: &Form) -> Result<Xml, Fault> {
        let group = || field(form, "AutoScalingGroupName").into();
        match action {
            "GetCallerIdentity" => {
                let account = self.world.cluster().account;
                let arn = format!("arn:aws:iam::{account}:user/sandbox");
                let xml = Xml::default().text("UserId", "sandbox").text("Account", &account);
                Ok(xml.text("Arn", &arn))
            }
            "DescribeAutoScalingGroups" => {
                Ok(self.groups(&listed(form, "AutoScalingGroupNames.member")))
            }
            "DescribeScheduledActions" => Ok(self.schedules()),
            "DescribeAutoScalingInstances" => Ok(self.members(&listed(form, "InstanceIds.member"))),
            "SetDesiredCapacity" => {
                let desired = field(form, "DesiredCapacity").parse();
                let desired = desired.map_err(|_| invalid("DesiredCapacity is no number"))?;
                at_once(self.world.raise_group(&group(), desired)).map_err(refused)?;
                Ok(Xml::default())
            }
            "TerminateInstanceInAutoScalingGroup" => {
                let id = field(form, "InstanceId").into();
                at_once(self.world.end_member(&id)).map_err(refused)?;
                Ok(Xml::default())
            }
            "ListInstanceProfilesForRole" => {
                let profile = profile(field(form, "RoleName"));
                let xml = Xml::default().list("InstanceProfiles", "member", [profile]);
                Ok(xml.text("IsTruncated", "false"))
            }
            "GetInstanceProfile" => {
                let profile = profile(field(form, "InstanceProfileName"));
                Ok(Xml::default().element("InstanceProfile", &profile))
            }
            _ => Err(unknown(action)),
        }
    }

    /// Answers a service whose operations are named by a header.
    fn operation(&self, service: &str, operation: &str, request: &Request) -> Answer {
        let asked = request.json().unwrap_or_default();
        match (service, operation) {
            ("AmazonSSM", "GetParameter") => {}
            ("AWSPriceListService", "GetProducts") => {
                return Answer::json(200, &self.products(&asked["Filters"]));
            }
            // Nothing is limited.
            ("ServiceQuotasV20190624", "ListServiceQuotas") => {
                return Answer::json(200, &json!({ "Quotas": [] }));
            }
            _ => {
                let refusal =
                    json!({ "__type": "UnsupportedOperationException", "message": operation });
                return Answer::json(400, &refusal);
            }
        }
        let name = asked["Name"].as_str().unwrap_or_default();
        let image =
            if name.contains("arm64") { "ami-embedded-arm64" } else { "ami-embedded-x86_64" };
        Answer::json(
            200,
            &json!({ "Parameter": { "Name": name, "Type": "String", "Value": image } }),
        )
    }

    /// Returns what the catalogue's machines cost on demand, as far as `filters` ask for it: all of them
    /// share their host.
    fn products(&self, filters: &Json) -> Json {
        let stated = |field: &str| {
            let mut all = filters.as_array().into_iter().flatten();
            all.find(|filter| filter["Field"] == field).and_then(|filter| filter["Value"].as_str())
        };
        let shared = stated("tenancy").is_none_or(|tenancy| tenancy == "Shared");
        let asked = |kind: &&InstanceType| {
            shared && stated("instanceType").is_none_or(|name| name == kind.name.as_str())
        };
        let product = |kind: &InstanceType| {
            let mut ways = kind.offerings.iter();
            let price = ways.find(|way| way.capacity_type == CapacityType::OnDemand)?.price?;
            let dimension = json!({ "unit": "Hrs", "pricePerUnit": { "USD": price.to_string() } });
            let product = json!({
                "product": { "attributes": { "instanceType": kind.name } },
                "terms": { "OnDemand": { "S.T": { "priceDimensions": { "S.T.D": dimension } } } }
            });
            Some(product.to_string())
        };
        let products = self.catalog.types.values().filter(asked).filter_map(product);
        json!({ "FormatVersion": "aws_v1", "PriceList": products.collect::<Vec<_>>() })
    }

    fn eks(&self, request: &Request) -> Answer {
        let parts: Vec<&str> = request.path.trim_matches('/').split('/').collect();
        let cluster = self.world.cluster();
        let of_us = parts.get(1).is_none_or(|name| *name == cluster.name);
        let account = &cluster.account;
        let document = match &parts[..] {
            _ if !of_us => None,
            ["clusters", name] => Some(json!({ "cluster": {
                "name": name, "version": VERSION, "status": "ACTIVE",
                "arn": format!("arn:aws:eks:{}:{account}:cluster/{name}", cluster.region),
                "endpoint": "https://embedded.invalid",
                "certificateAuthority": { "data": "ZW1iZWRkZWQ=" },
                "kubernetesNetworkConfig": { "serviceIpv4Cidr": "10.100.0.0/16" }
            } })),
            ["clusters", _, "fargate-profiles"] => {
                let names: Vec<String> =
                    self.world.observed().fargate_profiles.into_keys().collect();
                Some(json!({ "fargateProfileNames": names }))
            }
            ["clusters", _, "fargate-profiles", name] => {
                let profiles = self.world.observed().fargate_profiles;
                profiles.get(*name).map(|profile| {
                    json!({ "fargateProfile": {
                        "fargateProfileName": name, "selectors": profile.selectors,
                        "status": "ACTIVE"
                    } })
                })
            }
            ["clusters", _, "access-entries", arn @ ..] => {
                let arn = arn.join("/");
                Some(json!({ "accessEntry": { "principalArn": arn, "type": "EC2_LINUX" } }))
            }
            _ => None,
        };
        match document {
            Some(document) => Answer::json(200, &document),
            None => Answer::json(
                404,
                &json!({
                    "__type": "ResourceNotFoundException", "message": "there is no such thing"
                }),
            ),
        }
    }

    fn instances(&self, form: &Form) -> Xml {
        let filters: Vec<(&str, Vec<&str>)> = (1..)
            .map_while(|n| {
                let name = form.get(&format!("Filter.{n}.Name"))?;
                Some((name.as_str(), listed(form, &format!("Filter.{n}.Value"))))
            })
            .collect();
        let passes = |instance: &&Instance| {
            filters.iter().all(|(name, values)| match *name {
                "instance-id" => values.contains(&instance.id.as_str()),
                "instance-state-name" => values.contains(&state(instance.state).1),
                name => match name.strip_prefix("tag:") {
                    Some(key) => {
                        instance.tags.get(key).is_some_and(|v| values.contains(&v.as_str()))
                    }
                    None => false,
                },
            })
        };
        let observed = self.world.observed();
        let found = observed.instances.values().filter(passes).map(instance);
        let reservation = Xml::default().list("instancesSet", "item", found);
        Xml::default().list("reservationSet", "item", [reservation])
    }

    fn subnets(&self) -> Xml {
        let of_zone = |zone: &crate::catalog::Zone| {
            Xml::default()
                .text("subnetId", &format!("subnet-{}", zone.name))
                .text("availabilityZone", zone.name.as_str())
                .text("availabilityZoneId", zone.id.as_str())
                .text("availableIpAddressCount", FREE_ADDRESSES)
                .text("state", "available")
        };
        Xml::default().list("subnetSet", "item", self.catalog.zones.iter().map(of_zone))
    }

    fn reservations(&self) -> Xml {
        let reserved = self.world.observed().reservations.into_values().map(|own| {
            let criteria = match own.match_criteria {
                MatchCriteria::Open => "open",
                MatchCriteria::Targeted => "targeted",
            };
            let kind = match own.kind {
                ReservationKind::Default => "default",
                ReservationKind::CapacityBlock => "capacity-block",
            };
            let state = match own.state {
                ReservationState::Active => "active",
                ReservationState::Inactive => "pending",
            };
            let tags = own.tags.iter();
            let tags =
                tags.map(|(key, value)| Xml::default().text("key", key).text("value", value));
            let xml = Xml::default()
                .text("capacityReservationId", own.id.as_str())
                .text("ownerId", &own.owner)
                .text("instanceType", own.instance_type.as_str())
                .text("availabilityZone", own.zone.as_str())
                .text("availableInstanceCount", &own.available.to_string())
                .text("instanceMatchCriteria", criteria)
                .text("reservationType", kind)
                .text("state", state)
                .text("interruptible", if own.interruptible { "true" } else { "false" })
                .list("tagSet", "item", tags);
            match own.ends_at {
                Some(end) => xml.text("endDate", &super::object::time(end)),
                None => xml,
            }
        });
        Xml::default().list("capacityReservationSet", "item", reserved)
    }

    fn zones(&self) -> Xml {
        let zones = self.catalog.zones.iter().map(|zone| {
            Xml::default()
                .text("zoneName", zone.name.as_str())
                .text("zoneId", zone.id.as_str())
                .text("zoneType", "availability-zone")
                .text("zoneState", "available")
        });
        Xml::default().list("availabilityZoneInfo", "item", zones)
    }

    fn offered(&self) -> Xml {
        let mut pairs = BTreeSet::new();
        for kind in self.catalog.types.values() {
            pairs.extend(kind.offerings.iter().map(|offering| (&kind.name, &offering.zone)));
        }
        let offered = pairs.into_iter().map(|(kind, zone)| {
            Xml::default()
                .text("instanceType", kind.as_str())
                .text("locationType", "availability-zone")
                .text("location", zone.as_str())
        });
        Xml::default().list("instanceTypeOfferingSet", "item", offered)
    }

    fn template(&self, form: &Form) -> Result<Xml, Fault> {
        let name = field(form, "LaunchTemplateName");
        let data = decoded(field(form, "LaunchTemplateData.UserData"));
        let into = "LaunchTemplateData.CapacityReservationSpecification.CapacityReservationTarget.\
                    CapacityReservationId";
        let template = Template {
            user_data: String::from_utf8_lossy(&data).into_owned(),
            reservation: form.get(into).cloned(),
        };
        let mut templates = self.templates.borrow_mut();
        if templates.contains_key(name) {
            let code = "InvalidLaunchTemplateName.AlreadyExistsException";
            return Err(Fault(400, code, format!("there is a launch template {name}")));
        }
        templates.insert(name.to_owned(), template);
        let made = Xml::default().text("launchTemplateName", name);
        Ok(Xml::default().element("launchTemplate", &made))
    }

    fn launch(&self, form: &Form) -> Result<Xml, Fault> {
        let config = "LaunchTemplateConfigs.1";
        let name = field(form, &format!("{config}.LaunchTemplateSpecification.LaunchTemplateName"));
        let templates = self.templates.borrow();
        let Some(template) = templates.get(name) else {
            let code = "InvalidLaunchTemplateName.NotFoundException";
            return Err(Fault(400, code, format!("there is no launch template {name}")));
        };
        let kind = field(form, &format!("{config}.Overrides.1.InstanceType"));
        let Some(kind) = self.catalog.types.get(kind) else {
            return Err(invalid(&format!("there is no instance type {kind}")));
        };
        let subnet = field(form, &format!("{config}.Overrides.1.SubnetId"));
        let request = self.request(form, template, (kind, subnet));
        let outcome = at_once(self.world.launch(&request)).map_err(refused)?;
        let capacity = request.capacity_type.as_str();
        Ok(match outcome {
            LaunchOutcome::Launched(id) => {
                let ids = Xml::default().text("item", id.as_str());
                let one = Xml::default().text("instanceType", kind.name.as_str());
                let one = one.text("lifecycle", capacity).element("instanceIds", &ids);
                fleet().list("errorSet", "item", []).list("fleetInstanceSet", "item", [one])
            }
            LaunchOutcome::InsufficientCapacity { reason } => {
                let (code, message) = reason.split_once(": ").unwrap_or(("", &reason));
                let error = Xml::default().text("lifecycle", capacity).text("errorCode", code);
                let error = error.text("errorMessage", message);
                fleet().list("errorSet", "item", [error]).list("fleetInstanceSet", "item", [])
            }
        })
    }

    /// Returns the launch that a fleet of one instance asks for.
    fn request(
        &self,
        form: &Form,
        template: &Template,
        (kind, subnet): (&InstanceType, &str),
    ) -> LaunchRequest {
        let tags = tags_of(form);
        let desired = Rc::clone(&self.desired.borrow());
        let pool = tags.get(tag::POOL).map(|name| PoolName::from(name.as_str()));
        let pool = pool.and_then(|name| desired.pools.get(&name));
        let zone = subnet.strip_prefix("subnet-").unwrap_or(subnet);
        let spot = field(form, "TargetCapacitySpecification.DefaultTargetCapacityType") == "spot";
        let amounts = self.catalog.allocation(kind, &settings(&desired, pool));
        let (mut labels, mut taints) = told(&template.user_data);
        let startup_taints = pool.map_or(Vec::new(), |pool| pool.startup_taints.clone());
        taints.retain(|taint| !startup_taints.contains(taint));
        let arch = kind.labels.get("kubernetes.io/arch").cloned().unwrap_or_else(|| "amd64".into());
        // What the cloud controller and the kubelet know by themselves.
        for (key, value) in [
            ("kubernetes.io/os", "linux"),
            ("node.kubernetes.io/instance-type", kind.name.as_str()),
            ("topology.kubernetes.io/zone", zone),
            ("topology.kubernetes.io/region", self.catalog.region.as_str()),
            ("kubernetes.io/arch", arch.as_str()),
        ] {
            labels.insert(key.into(), value.into());
        }
        LaunchRequest {
            token: field(form, "ClientToken").to_owned(),
            instance_type: kind.name.clone(),
            zone: zone.into(),
            capacity_type: match &template.reservation {
                Some(_) => CapacityType::Reserved,
                None if spot => CapacityType::Spot,
                None => CapacityType::OnDemand,
            },
            reservation: template.reservation.as_deref().map(Into::into),
            image: tags.get(IMAGE_TAG).cloned().unwrap_or_default(),
            tags,
            labels,
            taints,
            startup_taints,
            capacity: amounts.capacity,
            allocatable: amounts.allocatable,
        }
    }

    fn groups(&self, names: &[&str]) -> Xml {
        let observed = self.world.observed();
        let asked = |group: &&Group| names.is_empty() || names.contains(&group.name.as_str());
        let groups = observed.groups.values().filter(asked).map(|group| {
            let of_group = |i: &&Instance| i.group.as_ref().is_some_and(|m| m.name == group.name);
            let members = observed.instances.values().filter(of_group).filter(|i| i.is_active());
            self::group(group, members.map(member))
        });
        Xml::default().list("AutoScalingGroups", "member", groups)
    }

    fn schedules(&self) -> Xml {
        let observed = self.world.observed();
        let actions = observed.groups.values().flat_map(|group| {
            group.schedules.iter().map(|action| scheduled(group.name.as_str(), action))
        });
        Xml::default().list("ScheduledUpdateGroupActions", "member", actions)
    }

    fn members(&self, ids: &[&str]) -> Xml {
        let observed = self.world.observed();
        let asked =
            |i: &&Instance| i.group.is_some() && i.is_active() && ids.contains(&i.id.as_str());
        let members = observed.instances.values().filter(asked).map(member);
        Xml::default().list("AutoScalingInstances", "member", members)
    }
}

fn fleet() -> Xml {
    Xml::default().text("fleetId", "fleet-embedded")
}

fn unknown(action: &str) -> Fault {
    Fault(400, "UnsupportedOperation", format!("the embedded account does not know {action}"))
}

fn invalid(why: &str) -> Fault {
    Fault(400, "InvalidParameterValue", why.to_owned())
}

/// Returns the fault of a verb that the world refused.
fn refused(error: PortError) -> Fault {
    let mismatch = error.reason.starts_with("IdempotentParameterMismatch");
    let code = if mismatch { "IdempotentParameterMismatch" } else { "ValidationError" };
    Fault(400, code, error.reason)
}

fn settings(desired: &Desired, pool: Option<&Pool>) -> NodeSettings {
    let class = pool.and_then(|pool| desired.node_classes.get(pool.node_class.as_ref()?));
    let both = pool.zip(class);
    both.map_or_else(NodeSettings::default, |(pool, class)| NodeSettings::of(pool, class))
}

/// Returns the tags of the instances that a fleet is to launch.
fn tags_of(form: &Form) -> BTreeMap<String, String> {
    let mut tags = BTreeMap::new();
    for n in (1..).take_while(|n| form.contains_key(&format!("TagSpecification.{n}.ResourceType")))
    {
        let specification = format!("TagSpecification.{n}");
        if field(form, &format!("{specification}.ResourceType")) != "instance" {
            continue;
        }
        for m in (1..).take_while(|m| form.contains_key(&format!("{specification}.Tag.{m}.Key"))) {
            let of =
                |part: &str| field(form, &format!("{specification}.Tag.{m}.{part}")).to_owned();
            tags.insert(of("Key"), of("Value"));
        }
    }
    tags
}

/// Returns the labels and taints that user data tells the kubelet.
fn told(user_data: &str) -> (Labels, Vec<Taint>) {
    let flag = |name: &str| {
        let (_, rest) = user_data.split_once(name)?;
        let ends = |c: char| c.is_whitespace() || ['"', '\'', '\\'].contains(&c);
        rest.split(ends).next()
    };
    let labels = flag("--node-labels=").unwrap_or_default().split(',');
    let labels = labels.filter_map(|label| label.split_once('='));
    let taints = flag("--register-with-taints=").unwrap_or_default().split(',');
    let taints = taints.filter_map(|taint| {
        let (key, rest) = taint.split_once('=')?;
        let (value, effect) = rest.rsplit_once(':')?;
        let effect = match effect {
            "NoSchedule" => TaintEffect::NoSchedule,
            "PreferNoSchedule" => TaintEffect::PreferNoSchedule,
            "NoExecute" => TaintEffect::NoExecute,
            _ => return None,
        };
        Some(Taint { key: key.into(), value: value.into(), effect })
    });
    (labels.map(|(key, value)| (key.into(), value.into())).collect(), taints.collect())
}

fn state(state: InstanceState) -> (&'static str, &'static str) {
    match state {
        InstanceState::Pending => ("0", "pending"),
        InstanceState::Running => ("16", "running"),
        InstanceState::ShuttingDown => ("32", "shutting-down"),
        InstanceState::Terminated => ("48", "terminated"),
        InstanceState::Stopping => ("64", "stopping"),
        InstanceState::Stopped => ("80", "stopped"),
    }
}

fn instance(instance: &Instance) -> Xml {
    let (code, name) = state(instance.state);
    let tags = instance.tags.iter();
    let tags = tags.map(|(key, value)| Xml::default().text("key", key).text("value", value));
    let placement = Xml::default().text("availabilityZone", instance.zone.as_str());
    let xml = Xml::default()
        .text("instanceId", instance.id.as_str())
        .text("imageId", &instance.image)
        .element("instanceState", &Xml::default().text("code", code).text("name", name))
        .text("instanceType", instance.instance_type.as_str())
        .text("launchTime", &super::object::time(instance.launched_at))
        .element("placement", &placement)
        .list("tagSet", "item", tags);
    match (instance.capacity_type, &instance.reservation) {
        (CapacityType::Spot, _) => xml.text("instanceLifecycle", "spot"),
        (_, Some(reservation)) => xml.text("capacityReservationId", reservation.as_str()),
        (_, None) => xml,
    }
}

fn images() -> Xml {
    let image = |arch: &str| {
        Xml::default()
            .text("imageId", &format!("ami-embedded-{arch}"))
            .text("architecture", arch)
            .text("creationDate", "2026-01-01T00:00:00.000Z")
            .text("imageState", "available")
    };
    Xml::default().list("imagesSet", "item", ["arm64", "x86_64"].map(image))
}

fn profile(name: &str) -> Xml {
    Xml::default()
        .text("Path", "/")
        .text("InstanceProfileName", name)
        .text("InstanceProfileId", "embedded")
        .text("Arn", &format!("arn:aws:iam::000000000000:instance-profile/{name}"))
        .text("CreateDate", "2026-01-01T00:00:00Z")
        .list(
            "Roles",
            "member",
            [Xml::default()
                .text("Path", "/")
                .text("RoleName", name)
                .text("RoleId", "embedded")
                .text("Arn", &format!("arn:aws:iam::000000000000:role/{name}"))
                .text("CreateDate", "2026-01-01T00:00:00Z")],
        )
}

fn member(instance: &Instance) -> Xml {
    let group = instance.group.as_ref();
    let lifecycle = group.map_or("InService", |group| group.lifecycle.as_str());
    let protected = group.is_some_and(|group| group.protected);
    Xml::default()
        .text("InstanceId", instance.id.as_str())
        .text("AutoScalingGroupName", group.map_or("", |group| group.name.as_str()))
        .text("InstanceType", instance.instance_type.as_str())
        .text("AvailabilityZone", instance.zone.as_str())
        .text("LifecycleState", lifecycle)
        .text("HealthStatus", "Healthy")
        .text("ProtectedFromScaleIn", if protected { "true" } else { "false" })
}

fn group(group: &Group, members: impl IntoIterator<Item = Xml>) -> Xml {
    let Group { name, min, max, desired, types, zones, tags, suspended, .. } = group;
    let overrides = types.iter().map(|kind| Xml::default().text("InstanceType", kind.as_str()));
    let template = Xml::default().list("Overrides", "member", overrides);
    let policy = Xml::default().element("LaunchTemplate", &template);
    let zones = zones.iter().fold(Xml::default(), |all, zone| all.text("member", zone.as_str()));
    let tags = tags.iter().map(|(key, value)| {
        Xml::default().text("Key", key).text("Value", value).text("PropagateAtLaunch", "true")
    });
    let suspended = suspended.iter().map(|name| Xml::default().text("ProcessName", name));
    Xml::default()
        .text("AutoScalingGroupName", name.as_str())
        .text("MinSize", &min.to_string())
        .text("MaxSize", &max.to_string())
        .text("DesiredCapacity", &desired.to_string())
        .text("DefaultCooldown", "300")
        .text("HealthCheckType", "EC2")
        .text("CreatedTime", "2026-01-01T00:00:00Z")
        .element("MixedInstancesPolicy", &policy)
        .element("AvailabilityZones", &zones)
        .list("Instances", "member", members)
        .list("Tags", "member", tags)
        .list("SuspendedProcesses", "member", suspended)
}

fn scheduled(group: &str, action: &ScheduledSize) -> Xml {
    let ScheduledSize { name, recurrence, time_zone, starts_at, ends_at, min, max, desired } =
        action;
    let texts = [
        ("Recurrence", recurrence.clone()),
        ("TimeZone", time_zone.clone()),
        ("StartTime", starts_at.map(|at| at.to_string())),
        ("EndTime", ends_at.map(|at| at.to_string())),
        ("MinSize", min.map(|size| size.to_string())),
        ("MaxSize", max.map(|size| size.to_string())),
        ("DesiredCapacity", desired.map(|size| size.to_string())),
    ];
    let named =
        Xml::default().text("AutoScalingGroupName", group).text("ScheduledActionName", name);
    let texts = texts.iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
    texts.fold(named, |xml, (key, value)| xml.text(key, value))
}

/// Reads base64; what is none is passed over.
fn decoded(text: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => Some(u32::from(c - b'A')),
        b'a'..=b'z' => Some(u32::from(c - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(c - b'0') + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut out, mut held, mut bits) = (Vec::new(), 0_u32, 0_u32);
    for value in text.bytes().filter_map(digit) {
        held = (held << 6 | value) & 0xffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.extend(u8::try_from(held >> bits & 0xff));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_as_launch_templates_hold_it() {
        for (text, expected) in [("", ""), ("YQ==", "a"), ("YWI=", "ab"), ("YWJj\nZA==", "abcd")] {
            assert_eq!(decoded(text), expected.as_bytes(), "{text}");
        }
    }

    #[test]
    fn a_machine_is_what_its_user_data_tells_its_kubelet() {
        let (labels, taints) = told(
            r#"{"flags":["--node-labels=team=web,a/b=c","--register-with-taints=cheap=yes:NoSchedule"]}"#,
        );
        assert_eq!(labels.len(), 2);
        assert_eq!(labels["a/b"].as_str(), "c");
        assert_eq!((taints.len(), taints[0].effect), (1, TaintEffect::NoSchedule));
        assert_eq!(told("#!/bin/sh\n"), (Labels::new(), Vec::new()));
    }
}
