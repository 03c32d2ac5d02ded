//! The set-up as a template of `CloudFormation`, in JSON.

use serde_json::{Map, Value as Json, json};

use super::policies::{AccountSyntax, map_texts};
use super::queue::{QUEUE_ID, map_references};
use super::setup::{ClusterAccess, ProviderId, Role, RoleId, SERVICE_ACCOUNT, Setup};

const ACCOUNT: AccountSyntax = AccountSyntax {
    account: "${AWS::AccountId}",
    partition: "${AWS::Partition}",
    region: "${AWS::Region}",
};

/// Beginning of the identifiers of the queue, which has short ones in its own template.
const QUEUE_PREFIX: &str = "Interruption";

/// Parameters that switch resources off which exist already, each with its condition.
const ACCESS_ENTRIES: &str = "CreateAccessEntries";
pub(super) const SPOT_ROLE: &str = "CreateSpotServiceLinkedRole";

/// Returns the template of a set-up.
///
/// Its resources are the roles, the instance profile of the nodes, access entries, OIDC providers,
/// the queue with its rules, and the service-linked role for spot. Account, region and partition
/// are those of the stack.
pub(super) fn template(setup: &Setup) -> Json {
    let mut resources = Map::new();
    for role in &setup.roles {
        resources.insert(role_id(role.id), role_resource(role));
        resources.extend(access_entry(setup, role));
    }
    resources.insert("NodeInstanceProfile".to_owned(), node_profile(setup));
    if setup.pod_identity {
        resources.insert("ControllerPodIdentity".to_owned(), pod_identity(setup));
    }
    for provider in &setup.providers {
        let properties = json!({
            "Url": format!("https://{}", provider.host),
            "ClientIdList": ["sts.amazonaws.com"],
        });
        let resource = json!({
            "Type": "AWS::IAM::OIDCProvider",
            "Condition": provider_parameter(provider.id),
            "Properties": properties,
        });
        resources.insert(format!("{}OidcProvider", provider.id.logical_id()), resource);
    }
    resources.extend(queue_resources(setup));
    let spot_role = json!({
        "Type": "AWS::IAM::ServiceLinkedRole",
        "Condition": SPOT_ROLE,
        // Spot instances of all clusters of the account use it.
        "DeletionPolicy": "Retain",
        "UpdateReplacePolicy": "Retain",
        "Properties": { "AWSServiceName": "spot.amazonaws.com" },
    });
    resources.insert("SpotServiceLinkedRole".to_owned(), spot_role);
    let parameters = parameters(setup);
    let condition = |(name, _): &(String, Json)| {
        (name.clone(), json!({ "Fn::Equals": [{ "Ref": name }, "true"] }))
    };
    json!({
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": format!("Fleetwright for the EKS cluster {}", setup.cluster),
        "Conditions": parameters.iter().map(condition).collect::<Map<_, _>>(),
        "Parameters": parameters.into_iter().collect::<Map<_, _>>(),
        "Resources": resources,
        "Outputs": outputs(setup),
    })
}

/// Returns the parameters by name. Each is true or false, and true by default.
fn parameters(setup: &Setup) -> Vec<(String, Json)> {
    let parameter = |name: &str, about: &str| {
        let allowed = json!(["true", "false"]);
        let value = json!({
            "Type": "String", "Default": "true", "AllowedValues": allowed, "Description": about,
        });
        (name.to_owned(), value)
    };
    let mut all = vec![
        parameter(
            ACCESS_ENTRIES,
            "false if the cluster authenticates by the ConfigMap aws-auth only",
        ),
        parameter(SPOT_ROLE, "false if the account has AWSServiceRoleForEC2Spot"),
    ];
    all.extend(setup.providers.iter().map(|provider| {
        let about = format!("false if the account has the OIDC provider {}", provider.host);
        parameter(provider_parameter(provider.id), &about)
    }));
    all
}

pub(super) fn provider_parameter(id: ProviderId) -> &'static str {
    match id {
        ProviderId::Cluster => "CreateClusterOidcProvider",
        ProviderId::Ci => "CreateCiOidcProvider",
    }
}

fn role_id(id: RoleId) -> String {
    format!("{}Role", id.logical_id())
}

fn role_arn(id: RoleId) -> Json {
    json!({ "Fn::GetAtt": [role_id(id), "Arn"] })
}

fn role_resource(role: &Role) -> Json {
    let mut properties = json!({
        "RoleName": role.name,
        "Description": role.id.description(),
        "AssumeRolePolicyDocument": in_stack(&role.trust),
    });
    if !role.managed.is_empty() {
        let arn = |name: &&str| in_stack(&format!("arn:aws:iam::aws:policy/{name}").into());
        properties["ManagedPolicyArns"] = role.managed.iter().map(arn).collect();
    }
    if !role.policies.is_empty() {
        let policy = |(name, document): &(&str, Json)| json!({ "PolicyName": name, "PolicyDocument": in_stack(document) });
        properties["Policies"] = role.policies.iter().map(policy).collect();
    }
    json!({ "Type": "AWS::IAM::Role", "Properties": properties })
}

/// Returns a document with the values of the stack: `Fn::Sub`, or `Ref` for one value alone.
fn in_stack(document: &Json) -> Json {
    map_texts(document.clone(), &|text| {
        let text = ACCOUNT.replace(text);
        let one = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
        match one {
            Some(name) if !name.contains('$') => json!({ "Ref": name }),
            _ if text.contains("${") => json!({ "Fn::Sub": text }),
            _ => Json::String(text),
        }
    })
}

fn access_entry(setup: &Setup, role: &Role) -> Option<(String, Json)> {
    let mut properties = json!({
        "ClusterName": setup.cluster,
        "PrincipalArn": role_arn(role.id),
    });
    match role.access {
        ClusterAccess::Node => properties["Type"] = "EC2_LINUX".into(),
        ClusterAccess::Group(group) => properties["KubernetesGroups"] = json!([group]),
        ClusterAccess::ServiceAccount => return None,
    }
    let resource = json!({
        "Type": "AWS::EKS::AccessEntry",
        "Condition": ACCESS_ENTRIES,
        "Properties": properties,
    });
    Some((format!("{}AccessEntry", role.id.logical_id()), resource))
}

fn node_profile(setup: &Setup) -> Json {
    json!({
        "Type": "AWS::IAM::InstanceProfile",
        "Properties": {
            "InstanceProfileName": setup.role_name(RoleId::Node),
            "Roles": [{ "Ref": role_id(RoleId::Node) }],
        },
    })
}

fn pod_identity(setup: &Setup) -> Json {
    let (namespace, name) = SERVICE_ACCOUNT;
    json!({
        "Type": "AWS::EKS::PodIdentityAssociation",
        "Properties": {
            "ClusterName": setup.cluster,
            "Namespace": namespace,
            "ServiceAccount": name,
            "RoleArn": role_arn(RoleId::Controller),
        },
    })
}

/// Returns the resources of the queue with longer identifiers.
fn queue_resources(setup: &Setup) -> Map<String, Json> {
    let longer = |id: &str| format!("{QUEUE_PREFIX}{id}");
    let rename = |reference: &Json| {
        let is_own = |id: &str| setup.queue.contains_key(id);
        if let Some(id) = reference["Ref"].as_str().filter(|id| is_own(id)) {
            return Some(json!({ "Ref": longer(id) }));
        }
        let attribute = reference["Fn::GetAtt"].as_array()?;
        let [id, name] = &attribute[..] else { return None };
        let id = id.as_str().filter(|id| is_own(id))?;
        Some(json!({ "Fn::GetAtt": [longer(id), name] }))
    };
    let resource = |(id, one): (&String, &Json)| (longer(id), map_references(one, &rename));
    setup.queue.iter().map(resource).collect()
}

fn outputs(setup: &Setup) -> Json {
    let output = |about: &str, value: Json| json!({ "Description": about, "Value": value });
    let mut outputs = Map::new();
    for role in &setup.roles {
        let name = format!("{}RoleArn", role.id.logical_id());
        outputs.insert(name, output(role.id.description(), role_arn(role.id)));
    }
    let queue = json!({ "Fn::GetAtt": [format!("{QUEUE_PREFIX}{QUEUE_ID}"), "QueueName"] });
    outputs.insert("QueueName".to_owned(), output("Value of spec.controller.queue", queue));
    let profile = json!({ "Ref": "NodeInstanceProfile" });
    let about = "Instance profile of the nodes, which node classes find by the node role";
    outputs.insert("NodeInstanceProfileName".to_owned(), output(about, profile));
    Json::Object(outputs)
}
