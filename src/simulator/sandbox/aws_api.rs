//! The AWS calls of this program on the embedded world.
//!
//! The world implements launches, groups and terminations. Subnets, security groups and images
//! exist for every selector, so that node classes work without setup. A node joins with the labels
//! and taints of its user data.

mod auto_scaling;
mod instances;
mod offerings;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use serde_json::json;

use super::kube_api::ApiResponse;
use super::request::ApiRequest;
use super::xml::Xml;
use crate::adapters::http::parse_form;
use crate::apply::ports::{Cloud, PortError};
use crate::catalog::Catalog;
use crate::model::desired::Desired;
use crate::simulator::World;
use offerings::images;

/// Kubernetes version that EKS reports.
const VERSION: &str = "1.33";

/// Fields of a query, by name.
type FormFields = BTreeMap<String, String>;

/// A failed call: status, code and message.
#[derive(Debug)]
struct AwsFault(u16, &'static str, String);

#[derive(Debug, Clone, PartialEq, Eq)]
struct LaunchTemplateData {
    user_data: String,
    image: String,
    security_groups: Vec<String>,
    /// Capacity reservation of the launches.
    reservation: Option<String>,
}

pub(super) struct AwsApi {
    world: Rc<World>,
    catalog: Catalog,
    /// Desired state with pools and node classes.
    desired: RefCell<Rc<Desired>>,
    templates: RefCell<BTreeMap<String, LaunchTemplateData>>,
}

/// Returns the result of a port verb on the world, which is always ready.
fn poll_ready<T>(verb: impl Future<Output = T>) -> T {
    let mut verb = pin!(verb);
    match verb.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("the embedded world answers at once"),
    }
}

/// Returns the items of a list in the numbering of the query protocols: `Name.1`, `Name.2`, and so
/// on.
fn list_values<'f>(form: &'f FormFields, name: &str) -> Vec<&'f str> {
    (1..).map_while(|n| form.get(&format!("{name}.{n}"))).map(String::as_str).collect()
}

fn field<'f>(form: &'f FormFields, name: &str) -> &'f str {
    form.get(name).map_or("", String::as_str)
}

impl AwsApi {
    pub(super) fn new(world: Rc<World>, catalog: Catalog, desired: Rc<Desired>) -> Self {
        let desired = RefCell::new(desired);
        Self { world, catalog, desired, templates: RefCell::default() }
    }

    pub(super) fn set_desired(&self, desired: Rc<Desired>) {
        *self.desired.borrow_mut() = desired;
    }

    pub(super) fn desired(&self) -> Rc<Desired> {
        Rc::clone(&self.desired.borrow())
    }

    /// Answers an AWS call. Returns `None` for other requests.
    pub(super) fn respond(&self, request: &ApiRequest) -> Option<ApiResponse> {
        if let Some((service, operation)) = request.target.split_once('.') {
            return Some(self.json_operation(service, operation, request));
        }
        if request.path == "/clusters" || request.path.starts_with("/clusters/") {
            return Some(self.eks_request(request));
        }
        if request.path != "/" || request.method != "POST" {
            return None;
        }
        let form = parse_form(&String::from_utf8_lossy(&request.body));
        let action = field(&form, "Action").to_owned();
        let is_ec2 = field(&form, "Version") == "2016-11-15";
        let answered = if is_ec2 {
            self.ec2_action(&action, &form)
        } else {
            self.query_action(&action, &form)
        };
        Some(match answered {
            Ok(xml) if is_ec2 => ApiResponse::Whole(200, xml.into_ec2_response(&action)),
            Ok(xml) => ApiResponse::Whole(200, xml.into_query_response(&action)),
            Err(AwsFault(status, code, why)) if is_ec2 => {
                ApiResponse::Whole(status, Xml::ec2_error(code, &why))
            }
            Err(AwsFault(status, code, why)) => {
                ApiResponse::Whole(status, Xml::query_error(code, &why))
            }
        })
    }

    fn ec2_action(&self, action: &str, form: &FormFields) -> Result<Xml, AwsFault> {
        if field(form, "DryRun") == "true" {
            let why = "Request would have succeeded, but DryRun flag is set.";
            return Err(AwsFault(412, "DryRunOperation", why.to_owned()));
        }
        match action {
            "DescribeInstances" => Ok(self.describe_instances(form)),
            "CreateFleet" => self.create_fleet(form),
            "TerminateInstances" => {
                for id in list_values(form, "InstanceId") {
                    poll_ready(self.world.terminate(&id.into())).map_err(port_fault)?;
                }
                Ok(Xml::default().list("instancesSet", "item", []))
            }
            "CreateLaunchTemplate" => self.create_launch_template(form),
            "DescribeSubnets" => Ok(self.subnets()),
            "DescribeCapacityReservations" => Ok(self.reservations()),
            "DescribeSecurityGroups" => {
                let group =
                    Xml::default().text("groupId", "sg-embedded").text("groupName", "nodes");
                Ok(Xml::default().list("securityGroupInfo", "item", [group]))
            }
            // Each placement group exists that a node class selects.
            "DescribePlacementGroups" => {
                let names = list_values(form, "GroupName").into_iter();
                let ids = list_values(form, "GroupId").into_iter().chain(names);
                let group = |id| Xml::default().text("groupId", id).text("strategy", "spread");
                Ok(Xml::default().list("placementGroupSet", "item", ids.map(group)))
            }
            "DescribeImages" => Ok(images()),
            "DescribeAvailabilityZones" => Ok(self.zones()),
            "DescribeInstanceTypeOfferings" => Ok(self.offered()),
            // There are no spot prices. List prices are used instead.
            "DescribeSpotPriceHistory" => {
                Ok(Xml::default().list("spotPriceHistorySet", "item", []))
            }
            _ => Err(unknown(action)),
        }
    }

    fn query_action(&self, action: &str, form: &FormFields) -> Result<Xml, AwsFault> {
        let group = || field(form, "AutoScalingGroupName").into();
        match action {
            "GetCallerIdentity" => {
                let account = self.world.cluster().account;
                let arn = format!("arn:aws:iam::{account}:user/sandbox");
                let xml = Xml::default().text("UserId", "sandbox").text("Account", &account);
                Ok(xml.text("Arn", &arn))
            }
            "DescribeAutoScalingGroups" => {
                Ok(self.groups(&list_values(form, "AutoScalingGroupNames.member")))
            }
            "DescribeScheduledActions" => Ok(self.schedules()),
            "DescribeAutoScalingInstances" => {
                Ok(self.members(&list_values(form, "InstanceIds.member")))
            }
            "SetDesiredCapacity" => {
                let desired = field(form, "DesiredCapacity").parse();
                let desired = desired.map_err(|_| invalid("DesiredCapacity is not a number"))?;
                poll_ready(self.world.raise_group(&group(), desired)).map_err(port_fault)?;
                Ok(Xml::default())
            }
            "TerminateInstanceInAutoScalingGroup" => {
                let id = field(form, "InstanceId").into();
                poll_ready(self.world.terminate_member(&id)).map_err(port_fault)?;
                Ok(Xml::default())
            }
            "ListInstanceProfilesForRole" => {
                let profile = instance_profile_xml(field(form, "RoleName"));
                let xml = Xml::default().list("InstanceProfiles", "member", [profile]);
                Ok(xml.text("IsTruncated", "false"))
            }
            "GetInstanceProfile" => {
                let profile = instance_profile_xml(field(form, "InstanceProfileName"));
                Ok(Xml::default().element("InstanceProfile", &profile))
            }
            _ => Err(unknown(action)),
        }
    }

    /// Answers a service whose operation is in a header.
    fn json_operation(&self, service: &str, operation: &str, request: &ApiRequest) -> ApiResponse {
        let requested = request.json().unwrap_or_default();
        match (service, operation) {
            ("AmazonSSM", "GetParameter") => {}
            ("AWSPriceListService", "GetProducts") => {
                return ApiResponse::json(200, &self.products(&requested["Filters"]));
            }
            // There are no quotas.
            ("ServiceQuotasV20190624", "ListServiceQuotas") => {
                return ApiResponse::json(200, &json!({ "Quotas": [] }));
            }
            _ => {
                let error =
                    json!({ "__type": "UnsupportedOperationException", "message": operation });
                return ApiResponse::json(400, &error);
            }
        }
        let name = requested["Name"].as_str().unwrap_or_default();
        let arch = if name.contains("arm64") { "arm64" } else { "x86_64" };
        // Each pinned version has an image of its own.
        let version = name.rsplit('/').nth(1).and_then(|image| image.rsplit('-').next());
        let version = version.filter(|version| !["recommended", "latest"].contains(version));
        let image = version.map_or_else(
            || format!("ami-embedded-{arch}"),
            |version| format!("ami-embedded-{arch}-{version}"),
        );
        ApiResponse::json(
            200,
            &json!({ "Parameter": { "Name": name, "Type": "String", "Value": image } }),
        )
    }

    fn eks_request(&self, request: &ApiRequest) -> ApiResponse {
        let parts: Vec<&str> = request.path.trim_matches('/').split('/').collect();
        let cluster = self.world.cluster();
        let is_our_cluster = parts.get(1).is_none_or(|name| *name == cluster.name);
        let account = &cluster.account;
        let document = match &parts[..] {
            _ if !is_our_cluster => None,
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
            Some(document) => ApiResponse::json(200, &document),
            None => ApiResponse::json(
                404,
                &json!({
                    "__type": "ResourceNotFoundException", "message": "not found"
                }),
            ),
        }
    }
}

fn unknown(action: &str) -> AwsFault {
    AwsFault(400, "UnsupportedOperation", format!("the embedded account does not know {action}"))
}

fn invalid(why: &str) -> AwsFault {
    AwsFault(400, "InvalidParameterValue", why.to_owned())
}

fn port_fault(error: PortError) -> AwsFault {
    let mismatch = error.reason.starts_with("IdempotentParameterMismatch");
    let code = if mismatch { "IdempotentParameterMismatch" } else { "ValidationError" };
    AwsFault(400, code, error.reason)
}

fn instance_profile_xml(name: &str) -> Xml {
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
