//! The IAM policies of `deploy/` allow exactly the calls of the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use fleetwright::model::observed::tag;
use serde_json::Value as Json;

/// Permissions that EC2 checks beside the call: a fleet launches and tags instances, and passes a
/// role.
const IMPLIED: [&str; 3] = ["ec2:CreateTags", "ec2:RunInstances", "iam:PassRole"];

/// Client expressions in the code, with the service of each.
const CLIENTS: [(&str, &str); 9] = [
    ("self.scaling.", "autoscaling"),
    ("self.ec2.", "ec2"),
    ("self.eks.", "eks"),
    ("self.iam.", "iam"),
    ("self.pricing.", "pricing"),
    ("self.quotas.", "servicequotas"),
    ("self.sqs.", "sqs"),
    ("self.ssm.", "ssm"),
    ("self.sts.", "sts"),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns every call of the adapter, in the form of policies.
fn calls() -> BTreeSet<String> {
    let mut calls = BTreeSet::new();
    for file in fs::read_dir(root().join("src/adapters/aws")).expect("a folder") {
        let text = fs::read_to_string(file.expect("a file").path()).expect("text");
        let dense: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        for (client, service) in CLIENTS {
            for rest in dense.split(client).skip(1) {
                let name: String = rest.chars().take_while(|c| *c != '(').collect();
                // Batch calls need the permission of the single call.
                let name = if service == "sqs" { name.replace("_batch", "") } else { name };
                calls.insert(format!("{service}:{}", camel(&name)));
            }
        }
    }
    calls
}

fn camel(name: &str) -> String {
    let part = |part: &str| {
        let mut letters = part.chars();
        let first = letters.next().map(|c| c.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    };
    name.split('_').map(part).collect()
}

fn allowed(file: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("deploy/aws").join(file)).expect("a policy");
    let policy: Json = serde_json::from_str(&text).expect("JSON");
    let mut allowed = BTreeSet::new();
    for statement in policy["Statement"].as_array().expect("statements") {
        assert_eq!(statement["Effect"], "Allow");
        let action = &statement["Action"];
        let one = std::slice::from_ref(action);
        let actions = action.as_array().map_or(one, Vec::as_slice);
        allowed.extend(actions.iter().filter_map(Json::as_str).map(str::to_owned));
    }
    allowed
}

/// Calls that remove unused launch templates.
const LAUNCH_TEMPLATE_CLEANUP: [&str; 2] =
    ["ec2:DeleteLaunchTemplate", "ec2:DescribeLaunchTemplates"];

/// Calls that create and delete instance profiles, which an additional policy allows.
const INSTANCE_PROFILES: [&str; 5] = [
    "iam:AddRoleToInstanceProfile",
    "iam:CreateInstanceProfile",
    "iam:DeleteInstanceProfile",
    "iam:ListInstanceProfiles",
    "iam:RemoveRoleFromInstanceProfile",
];

/// Returns the calls of the controller alone: the interruption queue, and cleanup of launch
/// templates.
fn controller_calls() -> BTreeSet<String> {
    let is_controller_call = |call: &String| {
        call.starts_with("sqs:") || LAUNCH_TEMPLATE_CLEANUP.contains(&call.as_str())
    };
    calls().into_iter().filter(is_controller_call).collect()
}

#[test]
fn apply_policy_allows_exactly_the_calls_made() {
    let mut needed = calls();
    needed.retain(|call| !controller_calls().contains(call));
    for call in INSTANCE_PROFILES {
        assert!(needed.remove(call), "{call} is not made");
    }
    assert!(needed.contains("ec2:CreateFleet") && needed.len() > 8, "{needed:?}");
    needed.extend(IMPLIED.map(str::to_owned));
    assert_eq!(allowed("apply.json"), needed);
}

#[test]
fn profile_policy_reaches_profiles_of_the_cluster_only() {
    const FILE: &str = "instance-profiles.json";
    let mut needed: BTreeSet<String> = INSTANCE_PROFILES.map(str::to_owned).into();
    // IAM checks it for the tags of a created profile.
    needed.insert("iam:TagInstanceProfile".to_owned());
    assert_eq!(allowed(FILE), needed);
    for statement in statements(FILE) {
        if statement["Action"] == "iam:ListInstanceProfiles" {
            continue;
        }
        let resource = statement["Resource"].as_str().expect("one resource");
        assert!(resource.ends_with(":instance-profile/fleetwright/${REGION}/${CLUSTER}/*"));
        let condition = statement["Condition"].to_string();
        assert!(condition.contains("/fleetwright.dev/cluster\":\"${CLUSTER}\""), "{condition}");
    }
}

#[test]
fn plan_policy_is_a_read_only_subset() {
    let (plan, apply) = (allowed("plan.json"), allowed("apply.json"));
    assert!(plan.is_subset(&apply) && !plan.is_empty());
    for action in &plan {
        let (_, verb) = action.split_once(':').expect("a service");
        assert!(["Describe", "Get", "List"].iter().any(|read| verb.starts_with(read)), "{action}");
    }
}

#[test]
fn launching_policies_require_imdsv2_and_encryption() {
    let controller_only = controller_calls();
    assert_eq!(controller_only.len(), 4 + LAUNCH_TEMPLATE_CLEANUP.len(), "{controller_only:?}");
    assert_eq!(allowed("controller.json"), &allowed("apply.json") | &controller_only);
    for file in ["controller.json", "apply.json"] {
        let statements = statements(file);
        let conditions_of = |action: &str, kind: &str| {
            let of = |s: &&Json| {
                s["Action"].to_string().contains(action) && s["Resource"].to_string().contains(kind)
            };
            statements.iter().filter(of).map(|s| s["Condition"].to_string()).collect::<Vec<_>>()
        };
        for (action, kind, condition) in [
            ("RunInstances", ":instance/*", r#""ec2:MetadataHttpTokens":"required""#),
            ("RunInstances", ":volume/*", r#""ec2:Encrypted":"true""#),
            // Other groups of the cluster are not ours.
            (
                "SetDesiredCapacity",
                "autoScalingGroup",
                r#""aws:ResourceTag/fleetwright.dev/cluster""#,
            ),
            (
                "InAutoScalingGroup",
                "autoScalingGroup",
                r#""aws:ResourceTag/fleetwright.dev/cluster""#,
            ),
        ] {
            let all = conditions_of(action, kind);
            let holds = !all.is_empty() && all.iter().all(|c| c.contains(condition));
            assert!(holds, "{file}: {action} of {kind}: {all:?}");
        }
    }
}

#[test]
fn ci_roles_trust_only_jobs_of_the_repository() {
    const GITHUB: &str = "token.actions.githubusercontent.com";
    const GITLAB: &str = "${GITLAB_HOST}";
    for (file, host, subject) in [
        (
            "trust-github-plan.json",
            GITHUB,
            r#"["repo:${REPOSITORY}:pull_request","repo:${REPOSITORY}:ref:refs/heads/${BRANCH}"]"#,
        ),
        ("trust-github-apply.json", GITHUB, r#""repo:${REPOSITORY}:environment:capacity""#),
        ("trust-gitlab-plan.json", GITLAB, r#""project_path:${REPOSITORY}:ref_type:branch:ref:*""#),
        (
            "trust-gitlab-apply.json",
            GITLAB,
            r#""project_path:${REPOSITORY}:ref_type:branch:ref:${BRANCH}""#,
        ),
    ] {
        assert_eq!(allowed(file), ["sts:AssumeRoleWithWebIdentity".to_owned()].into());
        let statements = statements(file);
        let [statement] = &statements[..] else { panic!("{file}: one statement") };
        let provider = format!("arn:aws:iam::${{ACCOUNT}}:oidc-provider/{host}");
        assert_eq!(statement["Principal"], serde_json::json!({ "Federated": provider }), "{file}");
        let condition = statement["Condition"].as_object().expect("conditions");
        assert_eq!(condition["StringEquals"][format!("{host}:aud")], "sts.amazonaws.com");
        let subjects = condition.values().filter_map(|test| test.get(format!("{host}:sub")));
        let subjects: Vec<String> = subjects.map(Json::to_string).collect();
        assert_eq!(subjects, [subject], "{file}");
        // A wildcard in `StringEquals` would match nothing, and one in an apply role too much.
        let text = condition["StringEquals"].to_string();
        assert!(!text.contains('*') && (!file.contains("apply") || !subject.contains('*')));
    }
    assert_eq!(allowed("trust-node.json"), ["sts:AssumeRole".to_owned()].into());
    let principal = &statements("trust-node.json")[0]["Principal"];
    assert_eq!(*principal, serde_json::json!({ "Service": "ec2.amazonaws.com" }));
}

/// Returns the statements of a policy.
fn statements(file: &str) -> Vec<Json> {
    let text = fs::read_to_string(root().join("deploy/aws").join(file)).expect("a policy");
    let policy: Json = serde_json::from_str(&text).expect("JSON");
    policy["Statement"].as_array().expect("statements").clone()
}

#[test]
fn launching_policies_allow_shared_placement_groups() {
    for file in ["controller.json", "apply.json"] {
        let mut resources = Vec::new();
        for statement in statements(file) {
            let resource = &statement["Resource"];
            let one = std::slice::from_ref(resource);
            let all = resource.as_array().map_or(one, Vec::as_slice);
            resources.extend(all.iter().filter_map(Json::as_str).map(str::to_owned));
        }
        resources.retain(|resource| resource.contains(":placement-group/"));
        // The ARN of a shared group has the account of its owner.
        assert_eq!(resources, ["arn:aws:ec2:${REGION}:*:placement-group/*"], "{file}");
    }
}

#[test]
fn adopt_policy_adds_and_removes_three_tags_of_cluster_instances() {
    let actions = ["ec2:CreateTags", "ec2:DeleteTags"].map(str::to_owned);
    assert_eq!(allowed("adopt.json"), actions.into());
    for statement in statements("adopt.json") {
        let condition = &statement["Condition"];
        let keys = condition["ForAllValues:StringEquals"]["aws:TagKeys"].as_array().expect("keys");
        let wanted = [tag::CLUSTER, tag::KEY, tag::POOL];
        assert_eq!(keys.iter().filter_map(Json::as_str).collect::<Vec<_>>(), wanted);
        let equals = condition["StringEquals"].to_string();
        assert!(equals.contains("aws:ResourceTag/kubernetes.io/cluster/"), "{equals}");
        if statement["Action"] == "ec2:DeleteTags" {
            assert!(equals.contains("aws:ResourceTag/fleetwright.dev/cluster"), "{equals}");
            // A call without keys deletes every tag, and no key differs from the three.
            assert_eq!(condition["Null"]["aws:TagKeys"], "false");
            // Only a launch sets this tag, so its instances cannot lose theirs.
            let change = format!("aws:ResourceTag/{}", tag::CHANGE);
            assert_eq!(condition["Null"][change], "true");
        }
    }
}

#[test]
fn node_policy_is_read_only_and_scoped_to_the_cluster() {
    for action in allowed("node.json") {
        let (service, verb) = action.split_once(':').expect("a service");
        let reads = ["Describe", "Get", "BatchGet", "BatchCheck"];
        let reads = reads.iter().any(|read| verb.starts_with(read));
        assert!(reads || service == "eks-auth", "{action}");
        assert!(["ec2", "ecr", "eks", "eks-auth"].contains(&service), "{action}");
    }
}

#[test]
fn controller_role_trusts_only_its_service_account() {
    for (file, actions, conditions) in [
        (
            "trust-pod-identity.json",
            &["sts:AssumeRole", "sts:TagSession"][..],
            &[
                ("aws:RequestTag/eks-cluster-arn", "cluster/${CLUSTER}"),
                ("aws:RequestTag/kubernetes-namespace", "fleetwright"),
                ("aws:RequestTag/kubernetes-service-account", "fleetwright"),
            ][..],
        ),
        (
            "trust-irsa.json",
            &["sts:AssumeRoleWithWebIdentity"],
            &[
                ("${OIDC_PROVIDER}:aud", "sts.amazonaws.com"),
                ("${OIDC_PROVIDER}:sub", "system:serviceaccount:fleetwright:fleetwright"),
            ],
        ),
    ] {
        let wanted: BTreeSet<String> = actions.iter().map(|&action| action.to_owned()).collect();
        assert_eq!(allowed(file), wanted);
        let text = fs::read_to_string(root().join("deploy/aws").join(file)).expect("a policy");
        let policy: Json = serde_json::from_str(&text).expect("JSON");
        assert_eq!(policy["Statement"].as_array().map(Vec::len), Some(1), "{file}");
        let condition = &policy["Statement"][0]["Condition"];
        assert_eq!(condition.as_object().map(serde_json::Map::len), Some(1), "{file}");
        let equals = condition["StringEquals"].as_object().expect("conditions");
        assert_eq!(equals.len(), conditions.len(), "{file}");
        for (key, end) in conditions {
            let value = equals[*key].as_str().expect("text");
            assert!(value.ends_with(end), "{file}: {key} is {value}");
        }
    }
}
