//! Tests of the templates of `bootstrap aws`: `cfn-lint` checks them, and moto deploys one, after
//! which `preflight` finds everything in place.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

use aws_sdk_ec2::types::{Filter, Tag};
use serde_json::{Value as Json, json};

use super::account::prepare;
use super::cluster::{fleetwright, runtime};
use super::end_to_end::create_cluster;
use super::moto::{Moto, cfn_lint};
use super::proxy::{Call, Fault, Proxy};
use crate::bootstrap::{SETUPS, template};
use crate::sandbox::Sandbox;

const FLEET: &str = "\
apiVersion: fleetwright.dev/v1
kind: Fleet
metadata: { name: prod }
spec:
  cluster: { name: prod, region: us-east-1 }
  world: live
  controller: { queue: fleetwright-prod }
";

/// A pool whose node class names the node role and the tags, as `bootstrap` prints them.
const POOLS: &str = "\
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
  role: fleetwright-prod-node
  amiFamily: AL2023
  amiSelectorTerms: [{ id: IMAGE }]
  subnetSelectorTerms: [{ tags: { karpenter.sh/discovery: prod } }]
  securityGroupSelectorTerms: [{ tags: { karpenter.sh/discovery: prod } }]
";

#[test]
fn bootstrap_templates_pass_cfn_lint() {
    let Some(program) = cfn_lint() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str| directory.path().join(format!("{name}.template.json"));
    let lint = |name: &str| {
        let linted = Command::new(&program).arg(file(name)).stdin(Stdio::null()).output();
        let linted = linted.expect("it runs");
        (linted.status.success(), String::from_utf8_lossy(&linted.stdout).into_owned())
    };
    for (name, options) in SETUPS {
        let text = template(options, "cloudformation");
        fs::write(file(name), &text).expect("written");
        assert_eq!(lint(name), (true, String::new()), "{name}");
        // A misspelled property is found.
        fs::write(file(name), text.replace("\"RoleName\"", "\"Name\"")).expect("written");
        let (passed, found) = lint(name);
        assert!(!passed && found.contains("E3002"), "{found}");
    }
    fs::write(file("queue"), include_str!("../../../deploy/aws/queue.yaml")).expect("written");
    assert_eq!(lint("queue"), (true, String::new()));
}

/// Tags subnets and the default security group, as the next steps of `bootstrap` say.
async fn add_discovery_tags(config: &aws_config::SdkConfig) {
    let ec2 = aws_sdk_ec2::Client::new(config);
    let subnets = ec2.describe_subnets().send().await.expect("subnets");
    let named = Filter::builder().name("group-name").values("default").build();
    let groups = ec2.describe_security_groups().filters(named).send().await.expect("groups");
    let subnets = subnets.subnets().iter().filter_map(|one| one.subnet_id());
    let ids = subnets.chain(groups.security_groups().iter().filter_map(|one| one.group_id()));
    let tag = Tag::builder().key("karpenter.sh/discovery").value("prod").build();
    let call = ec2.create_tags().set_resources(Some(ids.map(str::to_owned).collect()));
    call.tags(tag).send().await.expect("tagged");
}

/// Answers what moto lacks: the endpoint of the cluster, and the access entries of the template.
fn cluster_of(template: &Json, endpoint: &str) -> impl FnMut(&Call) -> Fault + Send + use<> {
    let resources = template["Resources"].as_object().expect("resources").values();
    let entries = resources.filter(|one| one["Type"] == "AWS::EKS::AccessEntry");
    let role = |entry: &Json| {
        let id = entry["Properties"]["PrincipalArn"]["Fn::GetAtt"][0].as_str().expect("a role");
        let name = &template["Resources"][id]["Properties"]["RoleName"];
        name.as_str().expect("a name").to_owned()
    };
    let admitted: BTreeSet<String> = entries.map(role).collect();
    let cluster = json!({ "cluster": {
        "name": "prod", "version": "1.36", "endpoint": endpoint,
        "certificateAuthority": { "data": "ZW1iZWRkZWQ=" },
        "kubernetesNetworkConfig": { "serviceIpv4Cidr": "10.100.0.0/16" },
    } });
    move |call| {
        if call.path.ends_with("/clusters/prod") {
            return Fault::Answer(200, cluster.to_string());
        }
        if call.path.contains("/access-entries/") {
            if admitted.iter().any(|role| call.path.ends_with(role.as_str())) {
                return Fault::Answer(200, json!({ "accessEntry": {} }).to_string());
            }
            let missing = r#"{"__type":"ResourceNotFoundException","message":"no such entry"}"#;
            return Fault::Answer(404, missing.to_owned());
        }
        Fault::None
    }
}

/// Answers for a control plane that keeps nominations. The sandbox has an older version.
fn newer_version(call: &Call) -> Fault {
    if call.path != "/version" {
        return Fault::None;
    }
    let version = json!({
        "major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": "", "gitTreeState": "",
        "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
    });
    Fault::Answer(200, version.to_string())
}

#[test]
fn preflight_passes_after_bootstrap() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let config = moto.account();
        let ec2 = aws_sdk_ec2::Client::new(&config);
        let image = prepare(&ec2, &["us-east-1b"]).await;
        create_cluster(&config, "prod").await;
        let tree = tempfile::tempdir().expect("a directory");
        fs::write(tree.path().join("fleetwright.yaml"), FLEET).expect("written");
        let pools = POOLS.replace("IMAGE", &image);
        fs::write(tree.path().join("pools.yaml"), pools).expect("written");
        let sandbox = Sandbox::start(tree.path());
        let api_server = Proxy::start(sandbox.url());
        api_server.set_fault_rule(newer_version);
        let kubeconfig = tree.path().join(".kubeconfig");
        let config_text = fs::read_to_string(&sandbox.kubeconfig).expect("a kubeconfig");
        fs::write(&kubeconfig, config_text.replace(sandbox.url(), &api_server.url))
            .expect("written");
        let proxy = Proxy::start(moto.url());
        let text = template(SETUPS[0].1, "cloudformation");
        let parsed: Json = serde_json::from_str(&text).expect("JSON");
        proxy.set_fault_rule(cluster_of(&parsed, &api_server.url));
        let preflight = || {
            let mut command = fleetwright(tree.path(), &kubeconfig, &proxy.url);
            let ran = command.arg("preflight").output().expect("the program");
            let output = [ran.stdout, ran.stderr].concat();
            (ran.status.code(), String::from_utf8_lossy(&output).into_owned())
        };
        let (code, output) = preflight();
        assert_eq!(code, Some(5), "{output}");
        for what in ["read the queue", "node class web: subnets", "instance profile"] {
            assert!(output.lines().any(|line| line.starts_with("MISSING") && line.contains(what)));
        }
        moto.deploy(&text, "fleetwright-prod", &[]);
        add_discovery_tags(&config).await;
        let (code, output) = preflight();
        assert_eq!(code, Some(0), "{output}");
        assert!(output.contains("Everything is in place."), "{output}");
        assert!(output.contains("role/fleetwright-prod-node may join"), "{output}");
        check_roles(&config).await;
        check_events_reach_the_queue(&moto, &config).await;
        sandbox.end();
    });
}

/// Checks the policies of the deployed roles.
async fn check_roles(config: &aws_config::SdkConfig) {
    let iam = aws_sdk_iam::Client::new(config);
    // moto knows no policies of AWS, so it attaches none of the four.
    let node = iam.get_role().role_name("fleetwright-prod-node").send().await.expect("a role");
    let trust = node.role.and_then(|role| role.assume_role_policy_document).unwrap_or_default();
    assert!(trust.contains("ec2.amazonaws.com"), "{trust}");
    for (role, policy) in [("controller", "controller"), ("plan", "plan"), ("apply", "apply")] {
        let call = iam.list_role_policies().role_name(format!("fleetwright-prod-{role}"));
        assert_eq!(call.send().await.expect("policies").policy_names(), [policy]);
    }
}

/// Checks the queue and its rules.
async fn check_events_reach_the_queue(moto: &Moto, config: &aws_config::SdkConfig) {
    let detail = json!({ "instance-id": "i-0123456789abcdef0", "instance-action": "terminate" });
    moto.put_event("EC2 Spot Instance Interruption Warning", &detail);
    let sqs = aws_sdk_sqs::Client::new(config);
    let queue = sqs.get_queue_url().queue_name("fleetwright-prod").send().await.expect("a queue");
    let call = sqs.receive_message().set_queue_url(queue.queue_url);
    let received = call.send().await.expect("messages");
    let body = received.messages()[0].body().unwrap_or_default();
    assert!(body.contains("i-0123456789abcdef0"), "{body}");
}
