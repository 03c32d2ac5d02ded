//! Tests of instance profiles for node classes with a role, against moto.

use std::time::Duration;

use aws_sdk_iam::Client as Iam;
use fleetwright::adapters::aws::{Aws, ProfileGcResult};
use fleetwright::apply::ports::{Cloud, LaunchOutcome, LaunchRequest, PrerequisiteState};
use fleetwright::model::desired::{Desired, Identity};
use fleetwright::model::observed::tag;

use super::account::{LaunchAccount, launch_context, request};
use super::cluster::runtime;
use super::moto::Moto;
use super::proxy::{Call, Fault, Proxy};

/// An account with the role `nodes` and no instance profile, and a node class with this role.
struct RoleAccount {
    proxy: Proxy,
    iam: Iam,
    through: aws_config::SdkConfig,
    desired: Desired,
}

impl RoleAccount {
    async fn new(moto: &Moto) -> Self {
        let account = LaunchAccount::new(moto, &["us-east-1b"]).await;
        let iam = Iam::new(&account.config);
        let role = iam.create_role().role_name("nodes").assume_role_policy_document("{}");
        role.send().await.expect("a role");
        let desired = with_role(account.desired(""));
        let proxy = account.proxy;
        let through = account.config.into_builder().endpoint_url(&proxy.url).build();
        Self { proxy, iam, through, desired }
    }

    /// Returns the account as a new process sees it.
    fn aws(&self) -> Aws {
        Aws::from_config(&self.through, "prod").with_launch_context(launch_context(&self.desired))
    }

    async fn profiles(&self) -> Vec<aws_sdk_iam::types::InstanceProfile> {
        let found = self.iam.list_instance_profiles().send().await.expect("a list");
        found.instance_profiles
    }

    fn count(&self, name: &str) -> usize {
        self.proxy.calls().iter().filter(|row| row.call.name() == name).count()
    }
}

/// Replaces the profile of the node class by the role `nodes`.
fn with_role(mut desired: Desired) -> Desired {
    for class in desired.node_classes.values_mut() {
        class.instance_settings.identity = Identity::Role("nodes".to_owned());
    }
    desired
}

/// Returns an error response of IAM.
fn iam_refusal(code: &str, message: &str) -> String {
    format!(
        "<ErrorResponse xmlns=\"https://iam.amazonaws.com/doc/2010-05-08/\"><Error><Type>Sender\
         </Type><Code>{code}</Code><Message>{message}</Message></Error><RequestId>r</RequestId>\
         </ErrorResponse>"
    )
}

fn launch(token: &str) -> LaunchRequest {
    LaunchRequest { token: token.to_owned(), ..request("us-east-1b") }
}

#[test]
fn launch_creates_the_profile_of_a_role_once() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let account = RoleAccount::new(&moto).await;
        let found = account.aws().preflight(&account.desired, &[], None).await.prerequisites;
        let profile = found.iter().find(|one| one.name == "node class web: instance profile");
        let PrerequisiteState::Missing { why, .. } = &profile.expect("a requirement").state else {
            panic!("{found:?}");
        };
        assert!(why.contains("create the instance profile `fleetwright-prod-"), "{why}");
        assert!(account.profiles().await.is_empty(), "preflight creates nothing");
        // The first attempt ends between the two calls.
        account.proxy.set_fault_rule(|call: &Call| match call.name().as_str() {
            "AddRoleToInstanceProfile" => {
                Fault::Answer(403, iam_refusal("AccessDenied", "not now"))
            }
            _ => Fault::None,
        });
        let refused = account.aws().launch(&launch("a")).await.expect_err("no role");
        assert!(refused.reason.contains("not now"), "{refused}");
        account.proxy.set_fault_rule(|_| Fault::None);
        let launched = account.aws().launch(&launch("a")).await.expect("launched");
        assert!(matches!(launched, LaunchOutcome::Launched(_)), "{launched:?}");
        let profiles = account.profiles().await;
        let [profile] = &profiles[..] else { panic!("{profiles:?}") };
        assert_eq!(profile.path, "/fleetwright/us-east-1/prod/");
        assert_eq!(profile.roles.len(), 1);
        assert_eq!(profile.roles[0].role_name, "nodes");
        let calls = account.proxy.calls().into_iter().map(|row| row.call);
        let create = calls.rev().find(|call| call.name() == "CreateInstanceProfile");
        let form = create.expect("a creation").form;
        let tags = (1..=3).map(|n| {
            let part = |part: &str| form[&format!("Tags.member.{n}.{part}")].clone();
            (part("Key"), part("Value"))
        });
        let tags: Vec<(String, String)> = tags.collect();
        for (key, value) in [(tag::CLUSTER, "prod"), ("fleetwright.dev/node-class", "web")] {
            assert!(tags.contains(&(key.to_owned(), value.to_owned())), "{tags:?}");
        }
        let calls = account.proxy.calls().into_iter().map(|row| row.call);
        let template = calls.rev().find(|call| call.name() == "CreateLaunchTemplate");
        assert_eq!(
            template.expect("a template").form["LaunchTemplateData.IamInstanceProfile.Name"],
            profile.instance_profile_name
        );
        let created = account.count("CreateInstanceProfile");
        account.aws().launch(&launch("b")).await.expect("launched");
        assert_eq!(account.count("CreateInstanceProfile"), created, "the profile is found again");
    });
}

#[test]
fn existing_profile_of_the_role_is_used() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let account = RoleAccount::new(&moto).await;
        for (name, path) in [
            ("by-a-new-karpenter", "/karpenter/us-east-1/prod/x/"),
            ("prod_1234567890", "/"),
            ("z-by-hand", "/"),
        ] {
            let call = account.iam.create_instance_profile().instance_profile_name(name);
            call.path(path).send().await.expect("a profile");
            let call = account.iam.add_role_to_instance_profile().instance_profile_name(name);
            call.role_name("nodes").send().await.expect("a role");
        }
        account.aws().launch(&launch("a")).await.expect("launched");
        let calls = account.proxy.calls().into_iter().map(|row| row.call);
        let template = calls.rev().find(|call| call.name() == "CreateLaunchTemplate");
        let name = "LaunchTemplateData.IamInstanceProfile.Name";
        assert_eq!(template.expect("a template").form[name], "z-by-hand");
        assert_eq!(account.count("CreateInstanceProfile"), 0);
        let kept = account.aws().delete_unused_profiles(Duration::ZERO).await.expect("swept");
        assert_eq!((kept, account.profiles().await.len()), (ProfileGcResult::default(), 3));
    });
}

#[test]
fn profile_of_karpenter_is_the_last_choice() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let account = RoleAccount::new(&moto).await;
        let old = "prod_1234567890";
        let call = account.iam.create_instance_profile().instance_profile_name(old);
        call.send().await.expect("a profile");
        let call = account.iam.add_role_to_instance_profile().instance_profile_name(old);
        call.role_name("nodes").send().await.expect("a role");
        let profile = |n: usize| {
            let calls = account.proxy.calls().into_iter().map(|row| row.call);
            let mut templates = calls.filter(|call| call.name() == "CreateLaunchTemplate");
            let form = templates.nth(n).expect("a template").form;
            form["LaunchTemplateData.IamInstanceProfile.Name"].clone()
        };
        account.proxy.set_fault_rule(|call: &Call| match call.name().as_str() {
            "CreateInstanceProfile" => {
                Fault::Answer(403, iam_refusal("AccessDenied", "not authorized"))
            }
            _ => Fault::None,
        });
        account.aws().launch(&launch("a")).await.expect("launched");
        assert_eq!(profile(0), old, "nothing else is there");
        account.proxy.set_fault_rule(|_| Fault::None);
        account.aws().launch(&launch("b")).await.expect("launched");
        assert!(profile(1).starts_with("fleetwright-prod-"), "{}", profile(1));
    });
}

#[test]
fn denied_creation_names_the_profile() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let account = RoleAccount::new(&moto).await;
        account.proxy.set_fault_rule(|call: &Call| match call.name().as_str() {
            "CreateInstanceProfile" | "ListInstanceProfiles" => {
                Fault::Answer(403, iam_refusal("AccessDenied", "not authorized to perform it"))
            }
            _ => Fault::None,
        });
        let refused = account.aws().launch(&launch("a")).await.expect_err("no profile");
        for part in ["role `nodes` of node class web", "not authorized", "`fleetwright-prod-"] {
            assert!(refused.reason.contains(part), "{refused}");
        }
        assert!(!refused.is_transient());
        assert_eq!(account.count("CreateFleet"), 0);
        let swept = account.aws().delete_unused_profiles(Duration::ZERO).await;
        assert_eq!(swept, Ok(ProfileGcResult::default()), "nothing without the permission");
        // The named profile helps.
        let (_, rest) = refused.reason.split_once("instance profile `").expect("a name");
        let (name, _) = rest.split_once('`').expect("a name");
        let call = account.iam.create_instance_profile().instance_profile_name(name);
        call.send().await.expect("a profile");
        let call = account.iam.add_role_to_instance_profile().instance_profile_name(name);
        call.role_name("nodes").send().await.expect("a role");
        account.aws().launch(&launch("a")).await.expect("launched");
    });
}

/// Returns the response of EC2 to a list of the instances of a profile.
fn instances_of_profile(count: usize) -> String {
    let items = "<item><instancesSet/></item>".repeat(count);
    format!(
        "<DescribeInstancesResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">\
         <requestId>r</requestId><reservationSet>{items}</reservationSet>\
         </DescribeInstancesResponse>"
    )
}

#[test]
fn profile_without_class_and_instance_is_deleted() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let account = RoleAccount::new(&moto).await;
        let aws = account.aws();
        aws.launch(&launch("a")).await.expect("launched");
        let use_by = |instances: usize| {
            account.proxy.set_fault_rule(move |call: &Call| {
                let of_profile = call.form.values().any(|v| v == "iam-instance-profile.arn");
                if of_profile && call.name() == "DescribeInstances" {
                    Fault::Answer(200, instances_of_profile(instances))
                } else {
                    Fault::None
                }
            });
        };
        let other = Aws::from_config(&account.through, "prod")
            .with_launch_context(launch_context(&Desired::default()));
        let staging = Aws::from_config(&account.through, "staging")
            .with_launch_context(launch_context(&Desired::default()));
        for (instances, aws, age, case) in [
            (0, &aws, Duration::ZERO, "its node class exists"),
            (1, &other, Duration::ZERO, "an instance uses it"),
            (0, &other, Duration::from_hours(1), "it is young"),
            (0, &staging, Duration::ZERO, "it belongs to another cluster"),
        ] {
            use_by(instances);
            let swept = aws.delete_unused_profiles(age).await.expect("swept");
            assert_eq!(swept, ProfileGcResult::default(), "{case}");
            assert_eq!(account.profiles().await.len(), 1, "{case}");
        }
        use_by(0);
        let swept = other.delete_unused_profiles(Duration::ZERO).await.expect("swept");
        assert_eq!((swept.deleted, swept.failed.len()), (1, 0), "{swept:?}");
        assert!(account.profiles().await.is_empty());
    });
}
