//! Templates of Auto Scaling groups without members, against moto.

use aws_sdk_autoscaling::types::{LaunchTemplateSpecification, Tag as GroupTag};
use aws_sdk_ec2::types::{InstanceType, RequestLaunchTemplateData};
use aws_sdk_eks::types::{CapacityTypes, Taint, TaintEffect};
use fleetwright::adapters::aws::Aws;
use fleetwright::apply::ports::Cloud as _;
use fleetwright::model::market::CapacityType;
use fleetwright::model::observed::Group;

use super::cluster::runtime;
use super::end_to_end::create_cluster;
use super::moto::Moto;

const CLUSTER: &str = "prod";

/// Creates a group without members for an EKS node group.
async fn create_group(config: &aws_config::SdkConfig, name: &str, template: &str, version: &str) {
    let tag = |key: &str, value: &str| {
        GroupTag::builder().key(key).value(value).propagate_at_launch(true).build()
    };
    let of = LaunchTemplateSpecification::builder();
    let of = of.launch_template_name(template).version(version).build();
    aws_sdk_autoscaling::Client::new(config)
        .create_auto_scaling_group()
        .auto_scaling_group_name(format!("eks-{name}"))
        .launch_template(of)
        .min_size(0)
        .max_size(4)
        .desired_capacity(0)
        .availability_zones("us-east-1b")
        .tags(tag("eks:cluster-name", CLUSTER))
        .tags(tag("eks:nodegroup-name", name))
        .send()
        .await
        .expect("a group");
}

#[test]
fn empty_group_has_the_template_of_ec2_and_eks() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let config = moto.account();
        create_cluster(&config, CLUSTER).await;
        let ec2 = aws_sdk_ec2::Client::new(&config);
        let data = |kind: InstanceType| {
            RequestLaunchTemplateData::builder().image_id("ami-1").instance_type(kind).build()
        };
        let template = ec2.create_launch_template().launch_template_name("web");
        let template = template.launch_template_data(data(InstanceType::M5Large));
        template.send().await.expect("a template");
        let version = ec2.create_launch_template_version().launch_template_name("web");
        let version = version.launch_template_data(data(InstanceType::M6iXlarge));
        version.send().await.expect("a version");
        let taint = Taint::builder().key("dedicated").value("shop").effect(TaintEffect::NoExecute);
        aws_sdk_eks::Client::new(&config)
            .create_nodegroup()
            .cluster_name(CLUSTER)
            .nodegroup_name("web")
            .node_role("arn:aws:iam::123456789012:role/nodes")
            .subnets("subnet-1")
            .labels("team", "shop")
            .taints(taint.build())
            .capacity_type(CapacityTypes::Spot)
            .send()
            .await
            .expect("a node group");
        create_group(&config, "web", "web", "2").await;
        create_group(&config, "gone", "web", "$Default").await;

        let aws = Aws::from_config(&config, CLUSTER);
        for _ in 0..2 {
            // The second observation reads the cache.
            let inventory = aws.inventory().await.expect("an inventory");
            let group = |name: &str| -> &Group {
                let mut groups = inventory.groups.iter();
                groups.find(|group| group.name.as_str() == name).expect("the group")
            };
            let web = group("eks-web");
            let types: Vec<&str> =
                web.types.iter().map(fleetwright::model::ids::InstanceTypeName::as_str).collect();
            assert_eq!(types, ["m6i.xlarge"], "that of the named version");
            let stated = web.node_group.as_ref().expect("what EKS states");
            assert_eq!((stated.name.as_str(), stated.labels["team"].as_str()), ("web", "shop"));
            assert_eq!(stated.capacity_type, Some(CapacityType::Spot));
            assert_eq!(stated.taints.len(), 1, "{stated:?}");
            assert_eq!(web.template_unread, None);
            // A node group that EKS does not know leaves its template unknown.
            let gone = group("eks-gone");
            let why = gone.template_unread.as_deref().unwrap_or_default();
            assert!(why.contains("read node group gone"), "{why}");
            assert_eq!(gone.node_group, None);
        }
    });
}
