//! End-to-end tests: the program plans, applies and plans again with moto and a real control plane,
//! with real controllers and the real scheduler.

mod controller;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use aws_sdk_autoscaling::types::{LaunchTemplateSpecification, Tag as GroupTag};
use aws_sdk_ec2::types::{InstanceType, RequestLaunchTemplateData};
use kube::Client;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use super::account::prepare;
use super::cluster::{fleetwright, post, runtime, send};
use super::control_plane::ControlPlane;
use super::kubelets::{Kubelets, get};
use super::moto::Moto;
use super::proxy::{Fault, Proxy};

const FLEET: &str = "\
apiVersion: fleetwright.dev/v1
kind: Fleet
metadata: { name: prod }
spec:
  cluster: { name: prod, region: us-east-1, zones: [us-east-1a, us-east-1b] }
  groups: { web: { manage: true } }
  world: live
";

const POOLS: &str = "\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: general }
spec:
  template:
    metadata: { labels: { pool: general } }
    spec:
      requirements:
      - { key: node.kubernetes.io/instance-type, operator: In, values: [m5.large] }
      - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: own }
  disruption: { consolidateAfter: 0s, budgets: [{ nodes: '100%' }] }
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: cheap }
spec:
  template:
    metadata: { labels: { pool: cheap } }
    spec:
      requirements:
      - { key: node.kubernetes.io/instance-type, operator: In, values: [m5.large] }
      - { key: karpenter.sh/capacity-type, operator: In, values: [spot] }
      taints: [{ key: cheap, value: 'yes', effect: NoSchedule }]
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: own }
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: { name: own }
spec:
  instanceProfile: web
  amiFamily: AL2023
  amiSelectorTerms: [{ id: IMAGE }]
  subnetSelectorTerms: [{ tags: { fleet: web } }]
  securityGroupSelectorTerms: [{ name: default }]
---
apiVersion: eksctl.io/v1alpha5
kind: ClusterConfig
metadata: { name: prod, region: us-east-1, version: '1.33' }
availabilityZones: [us-east-1a, us-east-1b]
nodeGroups:
- name: web
  instanceType: m5.large
  minSize: 1
  maxSize: 4
  desiredCapacity: 1
  availabilityZones: [us-east-1b]
  labels: { role: web }
";

const GROUP: &str = "eksctl-prod-nodegroup-web-NodeGroup-1X";

/// Returns a Deployment whose pods run on nodes with the label.
pub(super) fn deployment(name: &str, replicas: u32, label: &str, value: &str) -> Json {
    let labels = json!({ "app": name });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": {
                "nodeSelector": { label: value },
                "tolerations": [{ "key": "cheap", "operator": "Exists" }],
                "containers": [{ "name": "main", "image": "main:1", "resources": {
                    "requests": { "cpu": "1500m", "memory": "1Gi" }
                } }]
            } }
        }
    })
}

fn workloads(replicas: u32) -> Vec<Json> {
    vec![
        deployment("api", replicas, "pool", "general"),
        deployment("batch", replicas, "pool", "cheap"),
        deployment("shop", replicas, "role", "web"),
    ]
}

/// Sends an HTTP request to the status page. Returns the status code and the body.
async fn send_request(page: &str, request: &str) -> (String, String) {
    let (page, request) = (page.to_owned(), request.to_owned());
    let response = tokio::task::spawn_blocking(move || {
        use std::io::{Read as _, Write as _};
        let mut stream = std::net::TcpStream::connect(page).expect("it listens");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text
    });
    let text = response.await.expect("a result");
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer");
    (head.split(' ').nth(1).expect("a code").to_owned(), body.to_owned())
}

/// Gets a path of the status page. Returns the status code and the body.
pub(super) async fn get_page(page: &str, path: &str) -> (String, String) {
    let head = format!("GET {path} HTTP/1.1\r\nhost: {page}\r\nconnection: close\r\n\r\n");
    send_request(page, &head).await
}

/// Returns the lines of `kubectl get nodes`. All nodes must be Ready.
pub(super) fn nodes(world: &LiveEnvironment) -> Vec<String> {
    let kubectl = Path::new(&std::env::var_os("KUBEBUILDER_ASSETS").expect("set")).join("kubectl");
    let response = Command::new(kubectl)
        .args(["get", "nodes", "--no-headers", "--kubeconfig"])
        .arg(&world.plane.kubeconfig)
        .output()
        .expect("kubectl");
    let output = String::from_utf8(response.stdout).expect("text");
    assert!(output.lines().all(|line| line.contains(" Ready ")), "{output}");
    output.lines().map(str::to_owned).collect()
}

/// An account, a cluster, and the tree of their desired state.
pub(super) struct LiveEnvironment {
    pub(super) moto: Moto,
    /// Proxy in front of moto.
    pub(super) aws: Proxy,
    pub(super) image: String,
    plane: ControlPlane,
    pub(super) client: Client,
    pub(super) kubelets: Kubelets,
    tree: TempDir,
    cache: TempDir,
}

impl LiveEnvironment {
    pub(super) async fn start(moto: Moto, plane: ControlPlane) -> Self {
        let config = moto.account();
        let ec2 = aws_sdk_ec2::Client::new(&config);
        let image = prepare(&ec2, &["us-east-1a", "us-east-1b"]).await;
        let tree = tempfile::tempdir().expect("a directory");
        fs::write(tree.path().join("fleetwright.yaml"), FLEET).expect("written");
        let pools = POOLS.replace("IMAGE", &image);
        fs::write(tree.path().join("pools.yaml"), pools).expect("written");
        create_cluster(&config, "prod").await;
        create_group(&config, &ec2, &image).await;
        let client = Client::try_from(plane.config("admin").await).expect("a client");
        super::cluster::grant(&client).await;
        let labels = [
            ("role", "web"),
            ("alpha.eksctl.io/cluster-name", "prod"),
            ("alpha.eksctl.io/nodegroup-name", "web"),
        ];
        let mut kubelets =
            Kubelets::new(ec2, client.clone(), "prod").with_group_labels(GROUP, &labels);
        kubelets.round().await;
        let aws = Proxy::start(moto.url());
        let cache = tempfile::tempdir().expect("a directory");
        Self { moto, aws, image, plane, client, kubelets, tree, cache }
    }

    /// Writes the workloads into the tree.
    pub(super) fn commit(&self, workloads: &[Json]) {
        let all: Vec<String> = workloads.iter().map(ToString::to_string).collect();
        fs::write(self.tree.path().join("apps.yaml"), all.join("\n---\n")).expect("written");
    }

    /// Edits the pools and node classes of the tree.
    pub(super) fn edit_pools(&self, edit: impl FnOnce(&str) -> String) {
        let path = self.tree.path().join("pools.yaml");
        let text = fs::read_to_string(&path).expect("pools");
        fs::write(path, edit(&text)).expect("written");
    }

    /// Returns the AWS configuration that connects through the proxy.
    pub(super) fn account(&self) -> aws_config::SdkConfig {
        let retry = aws_config::retry::RetryConfig::standard();
        self.moto.account().into_builder().endpoint_url(&self.aws.url).retry_config(retry).build()
    }

    /// Applies the workloads to the cluster, as a delivery tool does, and waits until all pods are
    /// ready.
    pub(super) async fn deliver(&mut self, workloads: &[Json]) {
        let path = "/apis/apps/v1/namespaces/default/deployments";
        for workload in workloads {
            let name = workload["metadata"]["name"].as_str().expect("a name");
            let found = get(&self.client, path).await;
            let mut found = found["items"].as_array().expect("a list").iter();
            if found.any(|item| item["metadata"]["name"] == name) {
                let merge = "application/merge-patch+json";
                send(&self.client, "PATCH", &format!("{path}/{name}"), merge, workload).await;
            } else {
                post(&self.client, path, workload).await;
            }
        }
        for _ in 0..200 {
            self.kubelets.round().await;
            let found = get(&self.client, path).await;
            let mut items = found["items"].as_array().expect("a list").iter();
            if items.all(is_complete) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(250)).await;
        }
        panic!("{}", get(&self.client, "/api/v1/events").await);
    }

    /// Returns a command of the program that connects to the cluster and the proxy.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = fleetwright(self.tree.path(), &self.plane.kubeconfig, &self.aws.url);
        command.args(arguments).env("XDG_CACHE_HOME", self.cache.path());
        command
    }

    /// Runs the kubelets until the cluster has `count` nodes.
    async fn wait_for_nodes(&mut self, count: usize, said: &Path) {
        for _ in 0..400 {
            self.kubelets.round().await;
            let found = get(&self.client, "/api/v1/nodes").await;
            if found["items"].as_array().expect("a list").len() == count {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(250)).await;
        }
        panic!("not {count}: {:?}\n{}", nodes(self), fs::read_to_string(said).unwrap_or_default());
    }

    /// Runs the program and the kubelets until the program ends.
    pub(super) async fn run(&mut self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        let ended = tokio::task::spawn_blocking(move || command.output().expect("the program"));
        tokio::select! {
            output = ended => output.expect("a result"),
            () = self.kubelets.run() => unreachable!("kubelets never end by themselves"),
        }
    }

    /// Runs the program, which must end with `code`. Returns its standard output.
    pub(super) async fn expect(&mut self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments).await;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{out}\n{err}");
        out
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.tree.path().join(name).display().to_string()
    }
}

/// Returns true if a Deployment has exactly its desired number of ready pods.
fn is_complete(deployment: &Json) -> bool {
    let status = &deployment["status"];
    let replicas = &deployment["spec"]["replicas"];
    let is_observed = status["observedGeneration"] == deployment["metadata"]["generation"];
    is_observed && status["readyReplicas"] == *replicas && status["replicas"] == *replicas
}

pub(super) async fn create_cluster(config: &aws_config::SdkConfig, name: &str) {
    let vpc = aws_sdk_eks::types::VpcConfigRequest::builder().subnet_ids("subnet-1").build();
    aws_sdk_eks::Client::new(config)
        .create_cluster()
        .name(name)
        .version("1.33")
        .role_arn("arn:aws:iam::123456789012:role/cluster")
        .resources_vpc_config(vpc)
        .send()
        .await
        .expect("an EKS cluster");
}

async fn create_group(config: &aws_config::SdkConfig, ec2: &aws_sdk_ec2::Client, image: &str) {
    let data = RequestLaunchTemplateData::builder();
    let data = data.image_id(image).instance_type(InstanceType::M5Large).build();
    let template = ec2.create_launch_template().launch_template_name("web");
    template.launch_template_data(data).send().await.expect("a template");
    let tag = |key: &str, value: &str| {
        GroupTag::builder().key(key).value(value).propagate_at_launch(true).build()
    };
    let template = LaunchTemplateSpecification::builder();
    let template = template.launch_template_name("web").version("$Default").build();
    aws_sdk_autoscaling::Client::new(config)
        .create_auto_scaling_group()
        .auto_scaling_group_name(GROUP)
        .launch_template(template)
        .min_size(1)
        .max_size(4)
        .desired_capacity(1)
        .availability_zones("us-east-1b")
        .tags(tag("kubernetes.io/cluster/prod", "owned"))
        .tags(tag("alpha.eksctl.io/cluster-name", "prod"))
        .tags(tag("alpha.eksctl.io/nodegroup-name", "web"))
        .send()
        .await
        .expect("a group");
}

/// Creates the role of nodes and its instance profile.
pub(super) async fn create_role(config: &aws_config::SdkConfig) {
    let iam = aws_sdk_iam::Client::new(config);
    let role = iam.create_role().role_name("node").assume_role_policy_document("{}");
    role.send().await.expect("a role");
    let profile = iam.create_instance_profile().instance_profile_name("web");
    profile.send().await.expect("a profile");
    let attachment =
        iam.add_role_to_instance_profile().instance_profile_name("web").role_name("node");
    attachment.send().await.expect("an instance profile with the role");
}

#[test]
fn preflight_reports_missing_permissions_then_passes() {
    let (Some(plane), Some(moto)) = (ControlPlane::start_with_controllers(), Moto::start()) else {
        return;
    };
    runtime().block_on(async {
        let mut world = LiveEnvironment::start(moto, plane).await;
        // moto has no EKS access entries.
        world.aws.set_fault_rule(|call| {
            if call.path.contains("/access-entries/") {
                let body = r#"{"__type":"ResourceNotFoundException","message":"no such entry"}"#;
                return Fault::Answer(404, body.to_owned());
            }
            Fault::None
        });
        let output = world.expect(5, &["preflight"]).await;
        assert!(output.contains("MISSING  node class own: role of its nodes"), "{output}");
        assert!(output.contains("account 123456789012"), "{output}");
        create_role(&world.moto.account()).await;
        let output = world.expect(5, &["preflight"]).await;
        assert!(output.contains("eksctl create accessentry --principal-arn"), "{output}");
        let map = json!({
            "metadata": { "name": "aws-auth" },
            "data": { "mapRoles": "- rolearn: arn:aws:iam::123456789012:role/node\n  username: x\n" }
        });
        post(&world.client, "/api/v1/namespaces/kube-system/configmaps", &map).await;
        let output = world.expect(0, &["preflight"]).await;
        assert!(output.contains("by the ConfigMap aws-auth"), "{output}");
        assert!(output.contains("Everything is in place."), "{output}");
        world.aws.set_fault_rule(|call| {
            let cluster = json!({ "cluster": {
                "name": "prod", "version": "1.33", "endpoint": "https://embedded.invalid",
                "certificateAuthority": { "data": "ZW1iZWRkZWQ=" },
                "kubernetesNetworkConfig": { "serviceIpv4Cidr": "10.100.0.0/16" },
                "computeConfig": { "enabled": true, "nodePools": ["general-purpose"] }
            } });
            if call.path.ends_with("/clusters/prod") {
                return Fault::Answer(200, cluster.to_string());
            }
            Fault::None
        });
        let output = world.expect(5, &["preflight"]).await;
        assert!(output.contains("MISSING  no EKS Auto Mode"), "{output}");
        assert!(output.contains("general-purpose"), "{output}");
        // Preflight checks launch nothing.
        let launches = world.aws.calls().iter().filter(|row| {
            row.call.is_effect() && row.call.form.get("DryRun").is_none_or(|dry| dry != "true")
        }).count();
        assert_eq!(launches, 0);
    });
}

#[test]
fn applied_plan_leaves_an_empty_plan() {
    let (Some(plane), Some(moto)) = (ControlPlane::start_with_controllers(), Moto::start()) else {
        return;
    };
    runtime().block_on(async {
        let mut world = LiveEnvironment::start(moto, plane).await;
        // Scale up: two nodes for `general`, two for `cheap`, one more member for the group.
        world.commit(&workloads(2));
        let plan = world.path("plan.json");
        let output = world.expect(2, &["plan", "--out", &plan, "--detailed-exitcode"]).await;
        assert!(output.contains("5 to add, 1 to change, 0 to destroy"), "{output}");
        let text = fs::read_to_string(&plan).expect("a plan");
        assert!(
            text.contains("embedded list prices, spot prices of EC2 ("),
            "the plan uses live prices"
        );
        world.expect(0, &["apply", &plan, "--auto-approve"]).await;
        let events = get(&world.client, "/api/v1/namespaces/default/events").await.to_string();
        assert!(events.contains("the node is ready: ec2_instance.general"), "{events}");
        world.expect(0, &["apply", &plan, "--auto-approve"]).await;
        world.deliver(&workloads(2)).await;
        world.expect(0, &["plan", "--detailed-exitcode"]).await;
        assert_eq!(nodes(&world).len(), 6);
        // The saved world contains no secrets.
        let saved = world.path("world.json");
        world.expect(0, &["observe", "--out", &saved]).await;
        let text = fs::read_to_string(&saved).expect("a world");
        assert!(!text.contains("secret"), "{text}");
        // Scale down: half of the pods and their nodes are removed.
        world.commit(&workloads(1));
        world.deliver(&workloads(1)).await;
        let output = world.expect(2, &["plan", "--out", &plan, "--detailed-exitcode"]).await;
        assert!(output.contains("0 to add, 1 to change, 3 to destroy"), "{output}");
        world.expect(0, &["apply", &plan, "--auto-approve"]).await;
        world.deliver(&workloads(1)).await;
        world.expect(0, &["plan", "--detailed-exitcode"]).await;
        assert_eq!(nodes(&world).len(), 3);
    });
}
