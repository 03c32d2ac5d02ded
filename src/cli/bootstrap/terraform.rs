//! The set-up as a configuration of Terraform, in its JSON syntax.

use serde_json::{Map, Value as Json, json};

use super::policies::{AccountSyntax, map_texts};
use super::setup::{
    ClusterAccess, DISCOVERY_TAG, ProviderId, Role, RoleId, SERVICE_ACCOUNT, Setup,
};

mod policy_document;
mod queue;

const ACCOUNT: AccountSyntax = AccountSyntax {
    account: "${local.account}",
    partition: "${local.partition}",
    region: "${local.region}",
};

/// Switch of the access entries, one for each role that has one.
const ACCESS_ENTRIES: &str = "${var.create_access_entries ? 1 : 0}";

/// Variable that switches off the service-linked role for spot, which may exist already.
pub(super) const SPOT_ROLE: &str = "create_spot_service_linked_role";

/// Blocks of one type, by type and name.
#[derive(Default)]
struct Blocks(Map<String, Json>);

impl Blocks {
    fn add(&mut self, kind: &str, name: impl Into<String>, block: Json) {
        let of_kind = self.0.entry(kind).or_insert_with(|| json!({}));
        if let Some(blocks) = of_kind.as_object_mut() {
            blocks.insert(name.into(), block);
        }
    }
}

/// Returns the configuration of a set-up.
///
/// It has the resources of the `CloudFormation` template and tags subnets and security groups in
/// addition. Account, region and partition are those of the provider.
pub(super) fn configuration(setup: &Setup) -> Json {
    let (mut data, mut resources) = (Blocks::default(), Blocks::default());
    for name in ["aws_caller_identity", "aws_partition", "aws_region"] {
        data.add(name, "current", json!({}));
    }
    data.add("aws_eks_cluster", "cluster", json!({ "name": setup.cluster }));
    for role in &setup.roles {
        add_role(role, &mut data, &mut resources);
        add_access_entry(setup, role, &mut resources);
    }
    let profile = json!({
        "name": setup.role_name(RoleId::Node),
        "role": role_attribute(RoleId::Node, "name"),
    });
    resources.add("aws_iam_instance_profile", RoleId::Node.as_str(), profile);
    if setup.pod_identity {
        let (namespace, account) = SERVICE_ACCOUNT;
        let association = json!({
            "cluster_name": setup.cluster,
            "namespace": namespace,
            "service_account": account,
            "role_arn": role_attribute(RoleId::Controller, "arn"),
        });
        resources.add("aws_eks_pod_identity_association", "controller", association);
    }
    for provider in &setup.providers {
        let block = json!({
            "count": format!("${{var.{} ? 1 : 0}}", provider_variable(provider.id)),
            "url": format!("https://{}", provider.host),
            "client_id_list": ["sts.amazonaws.com"],
        });
        resources.add("aws_iam_openid_connect_provider", provider.id.as_str(), block);
    }
    queue::add(setup, &mut data, &mut resources);
    let spot_role = json!({
        "count": "${var.create_spot_service_linked_role ? 1 : 0}",
        "aws_service_name": "spot.amazonaws.com",
    });
    resources.add("aws_iam_service_linked_role", "spot", spot_role);
    add_discovery_tags(setup, &mut resources);
    json!({
        "terraform": {
            "required_version": ">= 1.5",
            "required_providers": { "aws": { "source": "hashicorp/aws", "version": ">= 6.0" } },
        },
        "variable": variables(setup),
        "locals": {
            "account": "${data.aws_caller_identity.current.account_id}",
            "partition": "${data.aws_partition.current.partition}",
            "region": "${data.aws_region.current.region}",
        },
        "data": data.0,
        "resource": resources.0,
        "output": outputs(setup),
    })
}

fn role_attribute(id: RoleId, attribute: &str) -> String {
    format!("${{aws_iam_role.{}.{attribute}}}", id.as_str())
}

/// Adds a role with its policies. Each policy is a data source of its own, so that a plan of
/// Terraform shows its statements.
fn add_role(role: &Role, data: &mut Blocks, resources: &mut Blocks) {
    const DOCUMENT: &str = "aws_iam_policy_document";
    let id = role.id.as_str();
    let document = |policy: &Json| policy_document::from_policy(&in_provider(policy));
    let trust = format!("{id}_trust");
    let block = json!({
        "name": role.name,
        "description": role.id.description(),
        "assume_role_policy": format!("${{data.{DOCUMENT}.{trust}.json}}"),
    });
    data.add(DOCUMENT, trust, document(&role.trust));
    resources.add("aws_iam_role", id, block);
    for (name, policy) in &role.policies {
        let key = format!("{id}_{}", name.replace('-', "_"));
        let block = json!({
            "name": name,
            "role": role_attribute(role.id, "name"),
            "policy": format!("${{data.{DOCUMENT}.{key}.json}}"),
        });
        data.add(DOCUMENT, key.clone(), document(policy));
        resources.add("aws_iam_role_policy", key, block);
    }
    if !role.managed.is_empty() {
        let block = json!({
            "for_each": format!("${{toset({})}}", json!(role.managed)),
            "role": role_attribute(role.id, "name"),
            "policy_arn": "arn:${local.partition}:iam::aws:policy/${each.value}",
        });
        resources.add("aws_iam_role_policy_attachment", id, block);
    }
}

/// Returns a document with the values of the provider.
fn in_provider(document: &Json) -> Json {
    map_texts(document.clone(), &|text| Json::String(ACCOUNT.replace(text)))
}

fn add_access_entry(setup: &Setup, role: &Role, resources: &mut Blocks) {
    let mut block = json!({
        "count": ACCESS_ENTRIES,
        "cluster_name": setup.cluster,
        "principal_arn": role_attribute(role.id, "arn"),
    });
    match role.access {
        ClusterAccess::Node => block["type"] = "EC2_LINUX".into(),
        ClusterAccess::Group(group) => block["kubernetes_groups"] = json!([group]),
        ClusterAccess::ServiceAccount => return,
    }
    resources.add("aws_eks_access_entry", role.id.as_str(), block);
}

/// Tags the subnets and security groups of the variables, else those of the cluster.
fn add_discovery_tags(setup: &Setup, resources: &mut Blocks) {
    const NETWORK: &str = "data.aws_eks_cluster.cluster.vpc_config[0]";
    let choice = |variable: &str, default: String| {
        format!("${{toset(length(var.{variable}) > 0 ? var.{variable} : {default})}}")
    };
    let subnets = choice("subnet_ids", format!("tolist({NETWORK}.subnet_ids)"));
    let groups = choice("security_group_ids", format!("[{NETWORK}.cluster_security_group_id]"));
    for (name, resource_ids) in [("subnets", subnets), ("security_groups", groups)] {
        let block = json!({
            "for_each": resource_ids,
            "resource_id": "${each.value}",
            "key": DISCOVERY_TAG,
            "value": setup.cluster,
        });
        resources.add("aws_ec2_tag", name, block);
    }
}

pub(super) fn provider_variable(id: ProviderId) -> &'static str {
    match id {
        ProviderId::Cluster => "create_cluster_oidc_provider",
        ProviderId::Ci => "create_ci_oidc_provider",
    }
}

fn variables(setup: &Setup) -> Json {
    let switch = |about: &str| json!({ "type": "bool", "default": true, "description": about });
    let ids = |about: &str| json!({ "type": "list(string)", "default": [], "description": about });
    let mut all = json!({
        "create_access_entries":
            switch("false if the cluster authenticates by the ConfigMap aws-auth only"),
        SPOT_ROLE:
            switch("false if the account has AWSServiceRoleForEC2Spot"),
        "subnet_ids": ids("Subnets of the nodes; by default those of the cluster"),
        "security_group_ids":
            ids("Security groups of the nodes; by default the one of the cluster"),
    });
    for provider in &setup.providers {
        let about = format!("false if the account has the OIDC provider {}", provider.host);
        all[provider_variable(provider.id)] = switch(&about);
    }
    all
}

fn outputs(setup: &Setup) -> Json {
    let mut outputs = Map::new();
    for role in &setup.roles {
        let output = json!({
            "description": role.id.description(),
            "value": role_attribute(role.id, "arn"),
        });
        outputs.insert(format!("{}_role_arn", role.id.as_str()), output);
    }
    let queue = json!({
        "description": "Value of spec.controller.queue",
        "value": format!("${{{}.name}}", queue::QUEUE),
    });
    outputs.insert("queue_name".to_owned(), queue);
    Json::Object(outputs)
}
