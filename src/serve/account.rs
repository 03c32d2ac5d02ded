//! An account over the embedded world: the calls of AWS that this program makes, and no others.
//!
//! Launches, groups and terminations are the world's. Subnets, security groups and images are there
//! for whatever a node class selects: an account without them would teach nobody anything. A machine
//! joins with the labels and taints that its user data tells its kubelet.

mod groups;
mod machines;
mod offers;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use serde_json::json;

use super::api::Answer;
use super::request::Request;
use super::xml::Xml;
use crate::catalog::Catalog;
use crate::manifest::Desired;
use crate::port::{Cloud, PortError};
use crate::sim::World;
use crate::web::form;
use offers::images;

/// Version of Kubernetes that EKS says.
const VERSION: &str = "1.33";

/// The fields of a query, by name.
type Form = BTreeMap<String, String>;

/// Why a call fails: a status, a code and a message.
#[derive(Debug)]
struct Fault(u16, &'static str, String);

/// What a launch template tells machines.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Template {
    user_data: String,
    image: String,
    security_groups: Vec<String>,
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
