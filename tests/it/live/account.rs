//! The port `Cloud` over moto.

use std::collections::BTreeMap;

use aws_sdk_ec2::Client;
use aws_sdk_ec2::types::{Filter, LaunchTemplateHttpTokensState, Tag};
use fleetwright::adapters::aws::{Aws, ClusterEndpoint, LaunchContext, TemplateGcResult};
use fleetwright::apply::ports::{Cloud, LaunchOutcome, LaunchRequest, RequirementState};
use fleetwright::manifest::read;
use fleetwright::model::desired::{Desired, Fleet, Tree, TreeFile};
use fleetwright::model::market::CapacityType;
use fleetwright::model::observed::{InstanceState, tag};
use fleetwright::model::units::Resources;

use super::cluster::runtime;
use super::controller_fixture::account;
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

fn desired(image: &str) -> Desired {
    read_pools(&format!("id: {image}"))
}

/// Returns pool and node class, of which the images are those that a term selects.
pub(super) fn read_pools(images: &str) -> Desired {
    let content = Ok(POOL.replace("id: IMAGE", images).into_bytes().into());
    let tree = Tree { files: vec![TreeFile { path: "pool.yaml".into(), content }] };
    let desired = read(&tree, &Fleet::default());
    assert_eq!(desired.problems, []);
    desired
}

/// Tags a subnet of each of `zones`, and returns the id of an image.
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

pub(super) fn machines(desired: &Desired) -> LaunchContext {
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
        instance_type: "m5.large".into(),
        zone: zone.into(),
        capacity_type: CapacityType::OnDemand,
        reservation: None,
        image: "ami".into(),
        tags: tags.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        labels: [("team".into(), "web".into())].into(),
        taints: Vec::new(),
        startup_taints: Vec::new(),
        capacity: Resources::default(),
        allocatable: Resources::default(),
    }
}

#[test]
fn instance_is_launched_listed_and_terminated() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let config = moto.account();
        let ec2 = Client::new(&config);
        let desired = desired(&prepare(&ec2, &["us-east-1b"]).await);
        for name in [CLUSTER, "staging"] {
            super::end_to_end::make_cluster(&config, name).await;
        }
        let aws = Aws::from_config(&config, CLUSTER);
        assert!(aws.launch(&request("us-east-1b")).await.is_err(), "nothing says how");
        let aws = aws.with_launch_context(machines(&desired));
        assert_eq!(aws.account_id().await.expect("an account"), "123456789012");
        let launched = aws.launch(&request("us-east-1b")).await.expect("an answer");
        let LaunchOutcome::Launched(id) = launched else { panic!("{launched:?}") };
        let nowhere = aws.launch(&request("us-east-1a")).await.expect("an answer");
        assert!(
            matches!(&nowhere, LaunchOutcome::InsufficientCapacity { reason }
                if reason.contains("no subnet in us-east-1a")),
            "{nowhere:?}"
        );
        let other = Aws::from_config(&config, "staging");
        assert!(other.holdings().await.expect("a list").instances.is_empty());
        let listed = aws.holdings().await.expect("a list").instances;
        let [instance] = &listed[..] else { panic!("{listed:?}") };
        assert_eq!((&instance.id, instance.zone.as_str()), (&id, "us-east-1b"));
        assert_eq!((instance.image.as_str(), instance.tags["team"].as_str()), ("ami", "web"));
        assert!(instance.is_managed_by(CLUSTER) && instance.is_active());
        template_says_everything(&ec2).await;
        only_idle_templates_of_the_cluster_are_swept(&config, &ec2, &aws).await;
        aws.terminate(&id).await.expect("terminated");
        let listed = aws.holdings().await.expect("a list").instances;
        assert_eq!(listed[0].state, InstanceState::Terminated);
        aws.terminate(&"i-0123456789abcdef0".into()).await.expect("one that is gone is no error");
    });
}

/// moto drops parts of a template on the way to the instance, so that the template is looked at.
async fn template_says_everything(ec2: &Client) {
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

/// Of launch templates only those go that carry our tag, are old enough, and are of no use to anybody.
async fn only_idle_templates_of_the_cluster_are_swept(
    config: &aws_config::SdkConfig,
    ec2: &Client,
    launches: &Aws,
) {
    let names = async || {
        let found = ec2.describe_launch_templates().send().await.expect("templates");
        let found = found.launch_templates.unwrap_or_default().into_iter();
        found.filter_map(|template| template.launch_template_name).collect::<Vec<_>>()
    };
    // One of somebody else, whose name is like ours, and one that carries our tag under another name.
    let data =
        || aws_sdk_ec2::types::RequestLaunchTemplateData::builder().image_id("ami-1").build();
    let of_cluster = aws_sdk_ec2::types::TagSpecification::builder()
        .resource_type(aws_sdk_ec2::types::ResourceType::LaunchTemplate)
        .tags(Tag::builder().key(tag::CLUSTER).value(CLUSTER).build())
        .build();
    let like_ours = "fleetwright-prod-0123456789abcdef01234567";
    for (name, tags) in [(like_ours, None), ("by-hand", Some(of_cluster.clone()))] {
        let make = ec2.create_launch_template().launch_template_name(name);
        let make = make.launch_template_data(data()).set_tag_specifications(tags.map(|t| vec![t]));
        make.send().await.expect("made");
    }
    let all = names().await;
    assert_eq!(all.len(), 3, "{all:?}");
    let (none, now) = ([], std::time::Duration::ZERO);
    let later = Aws::from_config(config, CLUSTER);
    let ours = |name: &&String| name.starts_with("fleetwright-prod-") && *name != like_ours;
    let ours = all.iter().find(ours).expect("that of the launch");
    let template = ec2.describe_launch_templates().launch_template_names(ours);
    let template = template.send().await.expect("it").launch_templates.unwrap_or_default();
    let id = template[0].launch_template_id().expect("an id").to_owned();
    let used = [[("aws:ec2launchtemplate:id".to_owned(), id)].into()];
    for (aws, age, tags, swept) in [
        (launches, now, &none[..], "what launches of this process are made from"),
        (&Aws::from_config(config, "staging"), now, &none[..], "those of another cluster"),
        (&later, std::time::Duration::from_hours(1), &none[..], "a young one"),
        (&later, now, &used[..], "one that a machine was launched from"),
    ] {
        let found = aws.delete_unused_templates(age, &[].into(), tags.iter()).await.expect("swept");
        assert_eq!(
            (found, names().await.len()),
            (TemplateGcResult::default(), 3),
            "{swept} is left alone"
        );
    }
    // One that cannot be deleted is named, and holds up no other; the next time it comes last.
    let stays = "fleetwright-prod-aaaaaaaaaaaaaaaaaaaaaaaa";
    let make = ec2.create_launch_template().launch_template_name(stays);
    let make = make.launch_template_data(data()).tag_specifications(of_cluster);
    let stays_id = make.send().await.expect("made").launch_template.expect("it");
    let stays_id = stays_id.launch_template_id.expect("an id");
    let proxy = Proxy::start(config.endpoint_url().expect("moto's"));
    let id = stays_id.clone();
    proxy.judge(move |call| {
        let of_it = call.form.get("LaunchTemplateId") == Some(&id);
        if call.name() == "DeleteLaunchTemplate" && of_it {
            Fault::Answer(400, refusal_body("OperationNotPermitted", "it is protected"))
        } else {
            Fault::None
        }
    });
    let later = Aws::from_config(&account(&proxy.url), CLUSTER);
    let swept = later.delete_unused_templates(now, &[].into(), none.iter()).await.expect("swept");
    assert_eq!((swept.deleted, swept.failed.len()), (1, 1), "{swept:?}");
    assert!(swept.failed[stays].contains("it is protected"), "{swept:?}");
    let left = names().await;
    assert!(left.len() == 3 && left.contains(&like_ours.to_owned()), "{left:?}");
    let again =
        later.delete_unused_templates(now, &swept.failed, none.iter()).await.expect("swept");
    assert_eq!((again.deleted, again.failed.len()), (0, 1), "{again:?}");
}

/// Returns whether `controller.json` lets a machine be made so.
fn is_allowed(call: &Call) -> bool {
    let has = |key: &str, value: &str| call.form.get(key).is_some_and(|found| found == value);
    let tagged = tags(call, "instance").get(tag::CLUSTER).is_some_and(|name| name == CLUSTER)
        && tags(call, "volume").get(tag::CLUSTER).is_some_and(|name| name == CLUSTER);
    has("MetadataOptions.HttpTokens", "required")
        && has("BlockDeviceMapping.1.Ebs.Encrypted", "true")
        && tagged
}

/// Returns the tags that a call gives to what it makes of a kind.
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

/// Returns what an instance is made with, apart from its type, place, tags and user data.
fn made_with(call: &Call, prefix: &str) -> BTreeMap<String, String> {
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
        let config = moto.account();
        let image = prepare(&Client::new(&config), &["us-east-1b"]).await;
        super::end_to_end::make_cluster(&config, CLUSTER).await;
        super::end_to_end::make_role(&config).await;
        let proxy = Proxy::start(moto.url());
        proxy.judge(|call| match call.name().as_str() {
            "RunInstances" if !is_allowed(call) => {
                Fault::Answer(403, refusal_body("UnauthorizedOperation", "not so"))
            }
            _ => Fault::None,
        });
        let volume = "blockDeviceMappings: [{ deviceName: /dev/xvda, ebs: { volumeSize: 20Gi";
        let all = [
            (String::new(), true),
            ("associatePublicIPAddress: false\n  detailedMonitoring: true".to_owned(), true),
            (format!("{volume}, iops: 4000, encrypted: true }} }}]"), true),
            (format!("{volume} }} }}]"), false),
            ("metadataOptions: { httpTokens: optional }".to_owned(), false),
        ];
        for (n, (more, allowed)) in all.into_iter().enumerate() {
            let desired = read_pools(&format!("id: {image}}}]\n  {more} #"));
            let aws = Aws::from_config(&account(&proxy.url), CLUSTER);
            let found = aws.preflight(&desired, None).await.requirements;
            let launch = found.iter().find(|one| one.what == "node class web: launch");
            let state = &launch.expect("it is asked for").state;
            assert_eq!(matches!(state, RequirementState::Met { .. }), allowed, "{more}: {state:?}");
            let aws = aws.with_launch_context(machines(&desired));
            let request = LaunchRequest { token: format!("try-{n}"), ..request("us-east-1b") };
            aws.launch(&request).await.expect("launched");
            let calls: Vec<Call> = proxy.ledger().into_iter().map(|row| row.call).collect();
            let last = |name: &str| calls.iter().rfind(|call| call.name() == name).expect("it");
            let (tried, template) = (last("RunInstances"), last("CreateLaunchTemplate"));
            assert_eq!(made_with(tried, ""), made_with(template, "LaunchTemplateData."), "{more}");
            assert!(made_with(tried, "").len() > 8, "{tried:?}");
            for kind in ["instance", "volume"] {
                let mut launched = tags(last("CreateFleet"), kind);
                let mut tried = tags(tried, kind);
                // Each instance has one of its own, and an image by the name that the class has for it.
                launched.retain(|key, _| key != tag::KEY && !key.ends_with("/image"));
                tried.retain(|key, _| !key.ends_with("/image"));
                assert!(tried.contains_key("team"), "{tried:?}");
                assert_eq!(tried, launched, "{kind}");
            }
        }
    });
}
