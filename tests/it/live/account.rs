//! Tests of the AWS adapter, the port `Cloud`, against moto.

use std::collections::BTreeMap;

use aws_config::SdkConfig;
use aws_sdk_ec2::Client;
use aws_sdk_ec2::types::{Filter, LaunchTemplateHttpTokensState, Tag};
use fleetwright::adapters::aws::{Aws, ClusterEndpoint, LaunchContext, TemplateGcResult};
use fleetwright::apply::ports::{
    Cloud, LaunchOffering, LaunchOutcome, LaunchRequest, LaunchedInstance, PrerequisiteState,
};
use fleetwright::manifest::read;
use fleetwright::model::desired::{Desired, Fleet, Tree, TreeFile};
use fleetwright::model::market::CapacityType;
use fleetwright::model::observed::{InstanceState, tag};
use fleetwright::model::units::Resources;

use super::cluster::runtime;
use super::controller_fixture::account;
use super::end_to_end::{create_cluster, create_role};
use super::moto::Moto;
use super::proxy::{Call, Fault, Proxy, refusal_body};

const CLUSTER: &str = "prod";

const POOL: &str = "\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: web }
spec:
  template:
    spec:
      requirements:
      - { key: node.kubernetes.io/instance-type, operator: In, values: [m5.large] }
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: web }
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: { name: web }
spec:
  instanceProfile: web
  amiFamily: AL2023
  amiSelectorTerms: [{ id: IMAGE }]
  subnetSelectorTerms: [{ tags: { fleet: web } }]
  securityGroupSelectorTerms: [{ name: default }]
  userData: |
    #!/bin/sh
    echo hunter2
  tags: { team: web }
";

/// An account of moto with a cluster, an image and subnets, behind a proxy.
pub(super) struct LaunchAccount {
    pub(super) proxy: Proxy,
    /// The account without the proxy.
    pub(super) config: SdkConfig,
    /// Id of an x86-64 image.
    pub(super) image: String,
}

impl LaunchAccount {
    /// Returns an account with a subnet for the node class in each of `zones`.
    pub(super) async fn new(moto: &Moto, zones: &[&str]) -> Self {
        let config = moto.account();
        let image = prepare(&Client::new(&config), zones).await;
        create_cluster(&config, CLUSTER).await;
        Self { proxy: Proxy::start(moto.url()), config, image }
    }

    /// Returns a pool and a node class with the image and these fields.
    pub(super) fn desired(&self, fields: &str) -> Desired {
        read_pools(&format!("id: {}}}]\n  {fields} #", self.image))
    }

    /// Returns a client that launches nothing.
    fn client(&self) -> Aws {
        Aws::from_config(&account(&self.proxy.url), CLUSTER)
    }

    /// Returns a client that launches instances of `desired`.
    pub(super) fn launcher(&self, desired: &Desired) -> Aws {
        self.client().with_launch_context(launch_context(desired))
    }

    /// Returns the calls of this name, the first one first.
    pub(super) fn calls(&self, name: &str) -> Vec<Call> {
        let calls = self.proxy.calls().into_iter().map(|row| row.call);
        calls.filter(|call| call.name() == name).collect()
    }

    pub(super) fn last_call(&self, name: &str) -> Call {
        self.calls(name).pop().unwrap_or_else(|| panic!("no call of {name}"))
    }
}

/// Returns a pool and a node class with the image selector term `images`.
pub(super) fn read_pools(images: &str) -> Desired {
    let content = Ok(POOL.replace("id: IMAGE", images).into_bytes().into());
    let tree = Tree { files: vec![TreeFile { path: "pool.yaml".into(), content }] };
    let desired = read(&tree, &Fleet::default());
    assert_eq!(desired.problems, []);
    desired
}

/// Tags one subnet in each zone of `zones`. Returns the id of an x86-64 image.
pub(super) async fn prepare(ec2: &Client, zones: &[&str]) -> String {
    for zone in zones {
        let zone = Filter::builder().name("availability-zone").values(*zone).build();
        let subnets = ec2.describe_subnets().filters(zone).send().await.expect("subnets");
        let id = subnets.subnets()[0].subnet_id().expect("an id").to_owned();
        let of_fleet = Tag::builder().key("fleet").value("web").build();
        ec2.create_tags().resources(id).tags(of_fleet).send().await.expect("tagged");
    }
    let images = ec2.describe_images().owners("amazon").send().await.expect("images");
    let is_x86 = |image: &&aws_sdk_ec2::types::Image| {
        image.architecture().is_some_and(|arch| arch.as_str() == "x86_64")
    };
    let image = images.images().iter().find(is_x86).expect("an image");
    image.image_id().expect("an id").to_owned()
}

pub(super) fn launch_context(desired: &Desired) -> LaunchContext {
    let endpoint = ClusterEndpoint {
        cluster: CLUSTER.into(),
        url: "https://api.example".into(),
        authority: "Q0E=".into(),
        service_cidr: "10.100.0.0/16".into(),
        dns: "10.100.0.10".into(),
    };
    LaunchContext::new(desired, endpoint, "1.33")
}

pub(super) fn request(zone: &str) -> LaunchRequest {
    let tags = [(tag::CLUSTER, CLUSTER), (tag::POOL, "web"), (tag::KEY, "0")];
    LaunchRequest {
        token: "token-1".into(),
        offerings: vec![LaunchOffering {
            instance_type: "m5.large".into(),
            zone: zone.into(),
            labels: [("team".into(), "web".into())].into(),
            capacity: Resources::default(),
            allocatable: Resources::default(),
        }],
        capacity_type: CapacityType::OnDemand,
        reservation: None,
        image: "ami".into(),
        tags: tags.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        taints: Vec::new(),
        startup_taints: Vec::new(),
    }
}

#[test]
fn instance_is_launched_listed_and_terminated() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let account = LaunchAccount::new(&moto, &["us-east-1b"]).await;
        let (config, ec2) = (&account.config, Client::new(&account.config));
        create_cluster(config, "staging").await;
        let aws = Aws::from_config(config, CLUSTER);
        assert!(aws.launch(&request("us-east-1b")).await.is_err(), "there is no launch context");
        let aws = aws.with_launch_context(launch_context(&account.desired("")));
        assert_eq!(aws.account_id().await.expect("an account"), "123456789012");
        let launched = aws.launch(&request("us-east-1b")).await.expect("an answer");
        let LaunchOutcome::Launched(LaunchedInstance { id, .. }) = launched else {
            panic!("{launched:?}")
        };
        let nowhere = aws.launch(&request("us-east-1a")).await.expect("an answer");
        assert!(
            matches!(&nowhere, LaunchOutcome::InsufficientCapacity { reason }
                if reason.contains("no subnet in us-east-1a")),
            "{nowhere:?}"
        );
        let other = Aws::from_config(config, "staging");
        assert!(other.inventory().await.expect("a list").instances.is_empty());
        let listed = aws.inventory().await.expect("a list").instances;
        let [instance] = &listed[..] else { panic!("{listed:?}") };
        assert_eq!((&instance.id, instance.zone.as_str()), (&id, "us-east-1b"));
        assert_eq!((instance.image.as_str(), instance.tags["team"].as_str()), ("ami", "web"));
        assert!(instance.is_managed_by(CLUSTER) && instance.is_active());
        check_launch_template(&ec2).await;
        check_template_garbage_collection(config, &ec2, &aws).await;
        aws.terminate(&id).await.expect("terminated");
        let listed = aws.inventory().await.expect("a list").instances;
        assert_eq!(listed[0].state, InstanceState::Terminated);
        aws.terminate(&"i-0123456789abcdef0".into()).await.expect("a missing instance is no error");
    });
}

/// Checks the launch template itself: moto drops parts of it when it launches the instance.
async fn check_launch_template(ec2: &Client) {
    let found = ec2.describe_launch_templates().send().await.expect("templates");
    let [template] = found.launch_templates() else { panic!("{found:?}") };
    let name = template.launch_template_name().expect("a name");
    assert!(name.starts_with("fleetwright-prod-"), "{name}");
    let versions = ec2.describe_launch_template_versions().launch_template_name(name);
    let versions = versions.versions("$Default").send().await.expect("versions");
    let data = versions.launch_template_versions()[0].launch_template_data().expect("data");
    let metadata = data.metadata_options().expect("metadata options");
    assert_eq!(metadata.http_tokens().map(LaunchTemplateHttpTokensState::as_str), Some("required"));
    assert_eq!(data.security_group_ids().len(), 1);
    let profile = data.iam_instance_profile().expect("a profile");
    assert_eq!(profile.name(), Some("web"));
    let device = &data.block_device_mappings()[0];
    assert_eq!(device.device_name(), Some("/dev/xvda"));
    let text = aws_smithy_types::base64::decode(data.user_data().expect("user data"));
    let text = String::from_utf8(text.expect("base64")).expect("text");
    assert!(text.contains("echo hunter2") && text.contains("--node-labels=team=web"), "{text}");
}

/// Checks that garbage collection deletes only launch templates that carry the tag of the cluster,
/// are old enough and unused.
async fn check_template_garbage_collection(config: &SdkConfig, ec2: &Client, launcher: &Aws) {
    // A foreign template with the name prefix of the cluster, and a template with the tag of the
    // cluster under another name.
    let foreign = "fleetwright-prod-0123456789abcdef01234567";
    for (name, tags) in [(foreign, None), ("by-hand", Some(cluster_tags()))] {
        let make = ec2.create_launch_template().launch_template_name(name);
        let make = make
            .launch_template_data(template_data())
            .set_tag_specifications(tags.map(|t| vec![t]));
        make.send().await.expect("made");
    }
    let all = template_names(ec2).await;
    assert_eq!(all.len(), 3, "{all:?}");
    let (none, now) = ([], std::time::Duration::ZERO);
    let later = Aws::from_config(config, CLUSTER);
    let ours = |name: &&String| name.starts_with("fleetwright-prod-") && *name != foreign;
    let ours = all.iter().find(ours).expect("the template of the launch");
    let template = ec2.describe_launch_templates().launch_template_names(ours);
    let template = template.send().await.expect("it").launch_templates.unwrap_or_default();
    let id = template[0].launch_template_id().expect("an id").to_owned();
    let used = [[("aws:ec2launchtemplate:id".to_owned(), id)].into()];
    for (aws, age, tags, case) in [
        (launcher, now, &none[..], "a template that this process has launched from"),
        (&Aws::from_config(config, "staging"), now, &none[..], "a template of another cluster"),
        (&later, std::time::Duration::from_hours(1), &none[..], "a young template"),
        (&later, now, &used[..], "a template that an instance was launched from"),
    ] {
        let found =
            aws.delete_unused_templates(age, &[].into(), tags.iter()).await.expect("collected");
        assert_eq!(
            (found, template_names(ec2).await.len()),
            (TemplateGcResult::default(), 3),
            "{case} is kept"
        );
    }
    check_protected_template(config, ec2, foreign).await;
}

async fn template_names(ec2: &Client) -> Vec<String> {
    let found = ec2.describe_launch_templates().send().await.expect("templates");
    let found = found.launch_templates.unwrap_or_default().into_iter();
    found.filter_map(|template| template.launch_template_name).collect()
}

fn template_data() -> aws_sdk_ec2::types::RequestLaunchTemplateData {
    aws_sdk_ec2::types::RequestLaunchTemplateData::builder().image_id("ami-1").build()
}

/// Returns the tag of the cluster for a launch template.
fn cluster_tags() -> aws_sdk_ec2::types::TagSpecification {
    aws_sdk_ec2::types::TagSpecification::builder()
        .resource_type(aws_sdk_ec2::types::ResourceType::LaunchTemplate)
        .tags(Tag::builder().key(tag::CLUSTER).value(CLUSTER).build())
        .build()
}

/// Checks that a template that cannot be deleted is reported and does not block the others. It is
/// the last one to be retried.
async fn check_protected_template(config: &SdkConfig, ec2: &Client, foreign: &str) {
    let (none, now) = ([], std::time::Duration::ZERO);
    let protected = "fleetwright-prod-aaaaaaaaaaaaaaaaaaaaaaaa";
    let make = ec2.create_launch_template().launch_template_name(protected);
    let make = make.launch_template_data(template_data()).tag_specifications(cluster_tags());
    let protected_id = make.send().await.expect("made").launch_template.expect("it");
    let protected_id = protected_id.launch_template_id.expect("an id");
    let proxy = Proxy::start(config.endpoint_url().expect("moto's"));
    let id = protected_id.clone();
    proxy.set_fault_rule(move |call| {
        let of_it = call.form.get("LaunchTemplateId") == Some(&id);
        if call.name() == "DeleteLaunchTemplate" && of_it {
            Fault::Answer(400, refusal_body("OperationNotPermitted", "it is protected"))
        } else {
            Fault::None
        }
    });
    let later = Aws::from_config(&account(&proxy.url), CLUSTER);
    let collected =
        later.delete_unused_templates(now, &[].into(), none.iter()).await.expect("collected");
    assert_eq!((collected.deleted, collected.failed.len()), (1, 1), "{collected:?}");
    assert!(collected.failed[protected].contains("it is protected"), "{collected:?}");
    let remaining = template_names(ec2).await;
    assert!(remaining.len() == 3 && remaining.contains(&foreign.to_owned()), "{remaining:?}");
    let repeated = later
        .delete_unused_templates(now, &collected.failed, none.iter())
        .await
        .expect("collected");
    assert_eq!((repeated.deleted, repeated.failed.len()), (0, 1), "{repeated:?}");
}

/// Returns true if the policy `controller.json` allows this launch.
fn is_allowed(call: &Call) -> bool {
    let has = |key: &str, value: &str| call.form.get(key).is_some_and(|found| found == value);
    let tagged = tags(call, "instance").get(tag::CLUSTER).is_some_and(|name| name == CLUSTER)
        && tags(call, "volume").get(tag::CLUSTER).is_some_and(|name| name == CLUSTER);
    has("MetadataOptions.HttpTokens", "required")
        && has("BlockDeviceMapping.1.Ebs.Encrypted", "true")
        && tagged
}

/// Returns the tags that a call sets on resources of type `kind`.
fn tags(call: &Call, kind: &str) -> BTreeMap<String, String> {
    let of_kind = |(key, value): (&String, &String)| {
        let of = key.strip_suffix(".ResourceType").filter(|_| value == kind)?;
        Some(format!("{of}.Tag."))
    };
    let of = call.form.iter().find_map(of_kind).unwrap_or_default();
    let keys = call.form.iter().filter(|(key, _)| key.starts_with(&of) && key.ends_with(".Key"));
    let value = |key: &str| call.form[&key.replace(".Key", ".Value")].clone();
    keys.map(|(key, name)| (name.clone(), value(key))).collect()
}

/// Returns the launch parameters except type, zone, subnet, tags and user data.
fn launch_parameters(call: &Call, prefix: &str) -> BTreeMap<String, String> {
    const PARTS: [&str; 7] = [
        "BlockDeviceMapping.",
        "IamInstanceProfile.",
        "ImageId",
        "MetadataOptions.",
        "Monitoring.",
        "NetworkInterface.",
        "SecurityGroupId.",
    ];
    let fields = call.form.iter().filter_map(|(key, value)| {
        let key = key.strip_prefix(prefix)?;
        let counts = PARTS.iter().any(|part| key.starts_with(part)) && !key.ends_with(".SubnetId");
        counts.then(|| (key.to_owned(), value.clone()))
    });
    fields.collect()
}

#[test]
fn dry_run_is_denied_like_the_launch() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let account = LaunchAccount::new(&moto, &["us-east-1b"]).await;
        create_role(&account.config).await;
        account.proxy.set_fault_rule(|call| match call.name().as_str() {
            "RunInstances" if !is_allowed(call) => {
                Fault::Answer(403, refusal_body("UnauthorizedOperation", "not so"))
            }
            _ => Fault::None,
        });
        let volume = "blockDeviceMappings: [{ deviceName: /dev/xvda, ebs: { volumeSize: 20Gi";
        let all = [
            (String::new(), true),
            ("associatePublicIPAddress: false\n  detailedMonitoring: true".to_owned(), true),
            ("connectionTracking: { udpTimeout: 40 }".to_owned(), true),
            (format!("{volume}, iops: 4000, encrypted: true }} }}]"), true),
            (format!("{volume} }} }}]"), false),
            ("metadataOptions: { httpTokens: optional }".to_owned(), false),
        ];
        for (n, (more, allowed)) in all.into_iter().enumerate() {
            let desired = account.desired(&more);
            let aws = account.client();
            let found = aws.preflight(&desired, &[], None).await.prerequisites;
            let launch = found.iter().find(|one| one.name == "node class web: launch");
            let state = &launch.expect("a requirement").state;
            assert_eq!(
                matches!(state, PrerequisiteState::Met { .. }),
                allowed,
                "{more}: {state:?}"
            );
            let aws = aws.with_launch_context(launch_context(&desired));
            let request = LaunchRequest { token: format!("try-{n}"), ..request("us-east-1b") };
            aws.launch(&request).await.expect("launched");
            let [dry_run, template, fleet] =
                ["RunInstances", "CreateLaunchTemplate", "CreateFleet"]
                    .map(|name| account.last_call(name));
            assert_eq!(
                launch_parameters(&dry_run, ""),
                launch_parameters(&template, "LaunchTemplateData."),
                "{more}"
            );
            assert!(launch_parameters(&dry_run, "").len() > 8, "{dry_run:?}");
            for kind in ["instance", "volume"] {
                let mut launched = tags(&fleet, kind);
                let mut dry_run = tags(&dry_run, kind);
                // Each instance has its own key. The image differs: the class has a name for it.
                launched.retain(|key, _| key != tag::KEY && !key.ends_with("/image"));
                dry_run.retain(|key, _| !key.ends_with("/image"));
                assert!(dry_run.contains_key("team"), "{dry_run:?}");
                assert_eq!(dry_run, launched, "{kind}");
            }
        }
    });
}

#[test]
fn placement_group_is_resolved_before_the_launch() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let account = LaunchAccount::new(&moto, &["us-east-1b"]).await;
        let desired = account.desired("placementGroupSelector: { name: web }");
        let answer = |fault: fn() -> Fault| {
            account.proxy.set_fault_rule(move |call| match call.name().as_str() {
                "DescribePlacementGroups" => fault(),
                _ => Fault::None,
            });
            account.launcher(&desired)
        };
        let calls = |name: &str| account.calls(name);
        let faults: [fn() -> Fault; 2] = [
            || Fault::Answer(200, placement_groups("")),
            || Fault::Answer(400, refusal_body("InvalidPlacementGroup.Unknown", "no such")),
        ];
        for fault in faults {
            let aws = answer(fault);
            let missing = aws.launch(&request("us-east-1b")).await.expect_err("no group");
            let expected = "no available placement group has the name web";
            assert!(missing.reason.contains(expected), "{missing:?}");
        }
        assert!(calls("CreateFleet").is_empty() && calls("CreateLaunchTemplate").is_empty());
        let aws = answer(|| Fault::Answer(200, placement_groups(PLACEMENT_GROUP)));
        aws.launch(&request("us-east-1b")).await.expect("launched");
        let lookup = &calls("DescribePlacementGroups")[2].form;
        assert_eq!(lookup["GroupName.1"], "web", "{lookup:?}");
        assert_eq!(lookup["Filter.1.Value.1"], "available", "{lookup:?}");
        let template = &calls("CreateLaunchTemplate")[0].form;
        assert_eq!(template["LaunchTemplateData.Placement.GroupId"], "pg-1", "{template:?}");
    });
}

/// A placement group.
const PLACEMENT_GROUP: &str = "<item><groupId>pg-1</groupId><groupName>web</groupName>\
                               <state>available</state><strategy>spread</strategy></item>";

/// Returns the list of these placement groups as EC2 does.
fn placement_groups(items: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><DescribePlacementGroupsResponse \
         xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><placementGroupSet>{items}\
         </placementGroupSet></DescribePlacementGroupsResponse>"
    )
}

#[test]
fn declared_network_interfaces_reach_the_launch() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let account = LaunchAccount::new(&moto, &["us-east-1b"]).await;
        let desired = account.desired(
            "ipPrefixCount: 1\n  networkInterfaces:\n  \
             - { networkCardIndex: 0, deviceIndex: 0, interfaceType: interface }\n  \
             - { networkCardIndex: 0, deviceIndex: 1, interfaceType: efa-only }",
        );
        account.launcher(&desired).launch(&request("us-east-1b")).await.expect("launched");
        let template = account.last_call("CreateLaunchTemplate").form;
        for (key, value) in [
            ("1.NetworkCardIndex", Some("0")),
            ("1.DeviceIndex", Some("0")),
            ("1.InterfaceType", Some("interface")),
            ("1.Ipv4PrefixCount", Some("1")),
            ("1.SubnetId", None),
            ("2.DeviceIndex", Some("1")),
            ("2.InterfaceType", Some("efa-only")),
            ("2.Ipv4PrefixCount", None),
            ("3.DeviceIndex", None),
        ] {
            let key = format!("LaunchTemplateData.NetworkInterface.{key}");
            assert_eq!(template.get(&key).map(String::as_str), value, "{key}: {template:?}");
        }
        let has_groups = |number: u32| {
            let prefix = format!("LaunchTemplateData.NetworkInterface.{number}.SecurityGroupId.");
            template.keys().any(|key| key.starts_with(&prefix))
        };
        assert!(has_groups(1) && has_groups(2), "{template:?}");
        assert!(!template.contains_key("LaunchTemplateData.SecurityGroupId.1"), "{template:?}");
        let fleet = account.last_call("CreateFleet").form;
        let is_subnet = |key: &String| key.ends_with(".SubnetId");
        assert!(fleet.keys().any(is_subnet), "{fleet:?}");
    });
}

#[test]
fn interface_and_cpu_options_reach_the_launch() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let account = LaunchAccount::new(&moto, &["us-east-1b"]).await;
        let desired = account.desired(
            "connectionTracking: { tcpEstablishedTimeout: 600, udpTimeout: 40 }\n  \
             cpuOptions: { nestedVirtualization: disabled }\n  context: reserved",
        );
        account.launcher(&desired).launch(&request("us-east-1b")).await.expect("launched");
        let template = account.last_call("CreateLaunchTemplate").form;
        let tracking = "LaunchTemplateData.NetworkInterface.1.ConnectionTrackingSpecification";
        for (key, value) in [
            (format!("{tracking}.TcpEstablishedTimeout"), "600"),
            (format!("{tracking}.UdpTimeout"), "40"),
            ("LaunchTemplateData.CpuOptions.NestedVirtualization".to_owned(), "disabled"),
        ] {
            assert_eq!(template.get(&key).map(String::as_str), Some(value), "{template:?}");
        }
        assert!(!template.contains_key(&format!("{tracking}.UdpStreamTimeout")), "{template:?}");
        assert!(!template.contains_key("LaunchTemplateData.SecurityGroupId.1"), "{template:?}");
        assert_eq!(account.last_call("CreateFleet").form["Context"], "reserved");
    });
}
