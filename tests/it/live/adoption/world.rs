//! The world of a running Karpenter: instances in moto, Nodes, pods and their owners in the embedded
//! Kubernetes. The controllers of Kubernetes are simulated: Deployments have their pods, and each pod
//! is bound to the first node with room.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use aws_sdk_ec2::types::{Filter, Instance, InstanceType, ResourceType, Tag, TagSpecification};
use fleetwright::simulator::sandbox::kubeconfig;
use kube::Client;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use super::super::account::prepare;
use super::super::cluster::{post, send};
use super::super::end_to_end::{create_cluster, deployment};
use super::super::kubelets::{Kubelets, get};
use super::super::moto::Moto;
use super::super::proxy::Proxy;
use super::super::sandbox_api;

const FINALIZER: &str = "karpenter.sh/termination";
const MERGE: &str = "application/merge-patch+json";
const ZONES: [&str; 2] = ["us-east-1a", "us-east-1b"];

const FLEET: &str = "\
apiVersion: fleetwright.dev/v1
kind: Fleet
metadata: { name: prod }
spec:
  cluster: { name: prod, region: us-east-1, zones: [us-east-1a, us-east-1b] }
  world: live
";

/// A generation of Karpenter's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Generation {
    /// Karpenter 0.27: Provisioner and `AWSNodeTemplate`.
    V1alpha5,
    /// Karpenter 0.32 to 0.37.
    V1beta1,
    /// Karpenter 1.x.
    V1,
}

impl Generation {
    /// Returns the pool and its node class.
    fn pools(self, image: &str) -> String {
        let requirements = "requirements:
      - { key: node.kubernetes.io/instance-type, operator: In, values: [m5.large] }
      - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }
      taints: [{ key: team, value: web, effect: NoSchedule }]";
        let terms = "subnetSelectorTerms: [{ tags: { fleet: web } }]
  securityGroupSelectorTerms: [{ tags: { fleet: web } }]";
        match self {
            Self::V1alpha5 => format!(
                "apiVersion: karpenter.sh/v1alpha5\nkind: Provisioner\nmetadata: {{ name: general }}\n\
                 spec:\n  {}\n  labels: {{ pool: general }}\n  consolidation: {{ enabled: true }}\n  \
                 providerRef: {{ name: own }}\n---\n\
                 apiVersion: karpenter.k8s.aws/v1alpha1\nkind: AWSNodeTemplate\n\
                 metadata: {{ name: own }}\nspec:\n  amiFamily: AL2023\n  instanceProfile: web\n  \
                 amiSelector: {{ aws-ids: {image} }}\n  subnetSelector: {{ fleet: web }}\n  \
                 securityGroupSelector: {{ fleet: web }}\n",
                requirements.replace("\n      ", "\n  ")
            ),
            Self::V1beta1 => format!(
                "apiVersion: karpenter.sh/v1beta1\nkind: NodePool\nmetadata: {{ name: general }}\n\
                 spec:\n  template:\n    metadata: {{ labels: {{ pool: general }} }}\n    spec:\n      \
                 {requirements}\n      nodeClassRef: {{ apiVersion: karpenter.k8s.aws/v1beta1, \
                 kind: EC2NodeClass, name: own }}\n  disruption: {{ consolidationPolicy: \
                 WhenUnderutilized, budgets: [{{ nodes: '100%' }}] }}\n---\n\
                 apiVersion: karpenter.k8s.aws/v1beta1\nkind: EC2NodeClass\n\
                 metadata: {{ name: own }}\nspec:\n  amiFamily: AL2023\n  instanceProfile: web\n  \
                 amiSelectorTerms: [{{ id: {image} }}]\n  {terms}\n"
            ),
            Self::V1 => format!(
                "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {{ name: general }}\n\
                 spec:\n  template:\n    metadata: {{ labels: {{ pool: general }} }}\n    spec:\n      \
                 {requirements}\n      nodeClassRef: {{ group: karpenter.k8s.aws, \
                 kind: EC2NodeClass, name: own }}\n  disruption: {{ consolidateAfter: 0s, budgets: \
                 [{{ nodes: '100%' }}] }}\n---\n\
                 apiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\n\
                 metadata: {{ name: own }}\nspec:\n  amiFamily: AL2023\n  instanceProfile: web\n  \
                 amiSelectorTerms: [{{ id: {image} }}]\n  {terms}\n"
            ),
        }
    }

    /// Returns the tags that Karpenter sets on an instance.
    fn tags(self, claim: &str) -> Vec<(&'static str, String)> {
        let owned = ("kubernetes.io/cluster/prod", "owned".to_owned());
        let name = |kind: &str| ("Name", format!("{kind}/general"));
        let pool = "general".to_owned();
        match self {
            Self::V1alpha5 => vec![
                name("karpenter.sh/provisioner-name"),
                ("karpenter.sh/provisioner-name", pool),
                owned,
            ],
            Self::V1beta1 => vec![
                name("karpenter.sh/nodepool"),
                ("karpenter.sh/nodepool", pool),
                ("karpenter.sh/managed-by", "prod".to_owned()),
                owned,
            ],
            Self::V1 => vec![
                ("Name", claim.to_owned()),
                ("karpenter.sh/nodepool", pool),
                ("karpenter.sh/nodeclaim", claim.to_owned()),
                ("karpenter.k8s.aws/ec2nodeclass", "own".to_owned()),
                ("eks:eks-cluster-name", "prod".to_owned()),
                owned,
            ],
        }
    }

    /// Returns the label of a node that names its pool.
    fn pool_label(self) -> &'static str {
        match self {
            Self::V1alpha5 => "karpenter.sh/provisioner-name",
            Self::V1beta1 | Self::V1 => "karpenter.sh/nodepool",
        }
    }

    fn owner(self, claim: &str) -> Json {
        let (version, kind, name) = match self {
            Self::V1alpha5 => ("karpenter.sh/v1alpha5", "Provisioner", "general"),
            Self::V1beta1 => ("karpenter.sh/v1beta1", "NodeClaim", claim),
            Self::V1 => ("karpenter.sh/v1", "NodeClaim", claim),
        };
        json!({
            "apiVersion": version, "kind": kind, "name": name, "uid": format!("uid-{name}"),
            "blockOwnerDeletion": true
        })
    }
}

/// An instance that Karpenter launched, and its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KarpenterInstance {
    pub(super) id: String,
    pub(super) node: String,
    /// Its tags, without those of Fleetwright.
    pub(super) tags: BTreeMap<String, String>,
}

/// The world, the tree and the controllers of Kubernetes.
pub(super) struct Rehearsal {
    ec2: aws_sdk_ec2::Client,
    pub(super) kubernetes: Client,
    aws: Proxy,
    kubelets: Kubelets,
    generation: Generation,
    tree: TempDir,
    cache: TempDir,
    kubeconfig: String,
    /// Number of pods by Deployment.
    replicas: BTreeMap<&'static str, u32>,
    created: u32,
    _moto: Moto,
}

impl Rehearsal {
    pub(super) async fn start(moto: Moto, generation: Generation) -> Self {
        let config = moto.account();
        let ec2 = aws_sdk_ec2::Client::new(&config);
        let image = prepare(&ec2, &ZONES).await;
        create_cluster(&config, "prod").await;
        let tree = tempfile::tempdir().expect("a directory");
        let served = sandbox_api::empty();
        let kubernetes = Client::try_from(served.clone()).expect("a client");
        let kubeconfig_path = tree.path().join(".kubeconfig");
        let url = served.cluster_url.to_string();
        fs::write(&kubeconfig_path, kubeconfig(url.trim_end_matches('/'))).expect("written");
        let write = |name: &str, text: &str| fs::write(tree.path().join(name), text);
        write("fleetwright.yaml", FLEET).expect("written");
        write("pools.yaml", &generation.pools(&image)).expect("written");
        let aws = Proxy::start(moto.url());
        let kubelets = Kubelets::new(ec2.clone(), kubernetes.clone(), "prod");
        let mut rehearsal = Self {
            ec2,
            kubernetes,
            aws,
            kubelets,
            generation,
            kubeconfig: kubeconfig_path.display().to_string(),
            tree,
            cache: tempfile::tempdir().expect("a directory"),
            replicas: [("api", 2), ("side", 1)].into(),
            created: 0,
            _moto: moto,
        };
        rehearsal.commit(2);
        rehearsal.launch_by_karpenter(&image).await;
        rehearsal.deliver().await;
        rehearsal
    }

    /// Launches an instance in each zone as Karpenter does, and joins its node.
    async fn launch_by_karpenter(&mut self, image: &str) {
        let groups = self.ec2.describe_security_groups().group_names("default").send().await;
        let group =
            groups.expect("groups").security_groups()[0].group_id().expect("an id").to_owned();
        let of_fleet = Tag::builder().key("fleet").value("web").build();
        self.ec2.create_tags().resources(&group).tags(of_fleet).send().await.expect("tagged");
        for (n, zone) in ZONES.into_iter().enumerate() {
            let claim = format!("general-{n}");
            let zone_filter = Filter::builder().name("availability-zone").values(zone).build();
            let subnets = self.ec2.describe_subnets().filters(zone_filter).send().await;
            let subnet =
                subnets.expect("subnets").subnets()[0].subnet_id().expect("an id").to_owned();
            let tags = self.generation.tags(&claim).into_iter();
            let tags = tags.map(|(key, value)| Tag::builder().key(key).value(value).build());
            let tags = TagSpecification::builder()
                .resource_type(ResourceType::Instance)
                .set_tags(Some(tags.collect()));
            let call =
                self.ec2.run_instances().image_id(image).instance_type(InstanceType::M5Large);
            let call = call.subnet_id(subnet).security_group_ids(&group).min_count(1).max_count(1);
            let launched = call.tag_specifications(tags.build()).send().await.expect("launched");
            self.join(&launched.instances()[0], zone, &claim).await;
        }
    }

    /// Joins the node of an instance, with everything that Karpenter sets on it.
    async fn join(&mut self, instance: &Instance, zone: &str, claim: &str) {
        let id = instance.instance_id().expect("an id");
        let name = instance.private_dns_name().expect("a name");
        let node = json!({
            "metadata": {
                "name": name,
                "labels": {
                    self.generation.pool_label(): "general",
                    "karpenter.k8s.aws/instance-category": "m",
                    "karpenter.k8s.aws/instance-cpu": "2",
                    "karpenter.k8s.aws/instance-family": "m5",
                    "karpenter.k8s.aws/instance-generation": "5",
                    "karpenter.k8s.aws/instance-hypervisor": "nitro",
                    "karpenter.k8s.aws/instance-memory": "8192",
                    "karpenter.k8s.aws/instance-size": "large",
                    "karpenter.sh/capacity-type": "on-demand",
                    "karpenter.sh/initialized": "true",
                    "karpenter.sh/registered": "true",
                    "kubernetes.io/arch": "amd64",
                    "kubernetes.io/hostname": name,
                    "kubernetes.io/os": "linux",
                    "node.kubernetes.io/instance-type": "m5.large",
                    "pool": "general",
                    "topology.kubernetes.io/region": "us-east-1",
                    "topology.kubernetes.io/zone": zone,
                },
                "annotations": {
                    "karpenter.sh/nodepool-hash": "1234567890",
                    "karpenter.sh/nodepool-hash-version": "v3",
                },
                "finalizers": [FINALIZER],
                "ownerReferences": [self.generation.owner(claim)],
            },
            "spec": {
                "providerID": format!("aws:///{zone}/{id}"),
                "taints": [{ "key": "team", "value": "web", "effect": "NoSchedule" }],
            }
        });
        post(&self.kubernetes, "/api/v1/nodes", &node).await;
        self.kubelets.set_ready(name, "m5.large").await;
        self.kubelets.ignore(id);
    }

    /// Creates the Deployments of the cluster with their pods, and that of Karpenter.
    async fn deliver(&mut self) {
        let karpenter = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "karpenter", "namespace": "kube-system",
                "labels": { "app.kubernetes.io/name": "karpenter" } },
            "spec": { "replicas": 2, "selector": { "matchLabels": { "app": "karpenter" } },
                "template": { "metadata": { "labels": { "app": "karpenter" } }, "spec": {
                    "containers": [{ "name": "controller",
                        "image": "public.ecr.aws/karpenter/controller:1.13.0" }]
                } } },
        });
        let path = "/apis/apps/v1/namespaces/kube-system/deployments";
        post(&self.kubernetes, path, &karpenter).await;
        for name in ["api", "side"] {
            let workload = self.workload(name);
            let of = "/apis/apps/v1/namespaces/default/deployments";
            let made = post(&self.kubernetes, of, &workload).await;
            let mut set = workload.clone();
            set["kind"] = "ReplicaSet".into();
            set["metadata"] = json!({ "name": format!("{name}-1"), "namespace": "default",
                "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "Deployment", "name": name,
                    "uid": made["metadata"]["uid"], "controller": true }] });
            post(&self.kubernetes, "/apis/apps/v1/namespaces/default/replicasets", &set).await;
        }
        self.settle().await;
    }

    fn workload(&self, name: &str) -> Json {
        let mut workload = deployment(name, self.replicas[name], "pool", "general");
        let spec = &mut workload["spec"]["template"]["spec"];
        spec["tolerations"] = json!([{ "key": "team", "operator": "Exists" }]);
        if name == "side" {
            spec["containers"][0]["resources"]["requests"] =
                json!({ "cpu": "100m", "memory": "64Mi" });
        }
        workload
    }

    /// Commits the workloads, with `replicas` pods that fill a node.
    pub(super) fn commit(&mut self, replicas: u32) {
        self.replicas.insert("api", replicas);
        let all = ["api", "side"].map(|name| self.workload(name).to_string());
        fs::write(self.tree.path().join("apps.yaml"), all.join("\n---\n")).expect("written");
    }

    /// Runs the controllers until each Deployment has its pods, all of them running.
    pub(super) async fn settle(&mut self) {
        for _ in 0..100 {
            if self.round().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{}", get(&self.kubernetes, "/api/v1/pods").await);
    }

    /// Runs kubelets, ReplicaSets and the scheduler once. Returns true if nothing was left to do.
    async fn round(&mut self) -> bool {
        self.kubelets.round().await;
        let pods = get(&self.kubernetes, "/api/v1/namespaces/default/pods").await;
        let pods = pods["items"].as_array().expect("pods");
        let is_running = |pod: &Json| {
            pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
        };
        let mut is_done = pods.iter().all(is_running);
        for (name, replicas) in self.replicas.clone() {
            let of_name = |pod: &&Json| {
                pod["metadata"]["labels"]["app"] == name
                    && pod["metadata"]["deletionTimestamp"].is_null()
            };
            if pods.iter().filter(of_name).count() < usize::try_from(replicas).expect("a count") {
                is_done = false;
                self.create_pod(name, pods).await;
            }
        }
        is_done
    }

    /// Creates a pod on the first open node with room. Without one, it waits.
    async fn create_pod(&mut self, name: &'static str, pods: &[Json]) {
        let nodes = get(&self.kubernetes, "/api/v1/nodes").await;
        let cpu = |name: &Json| if name == "side" { 100 } else { 1500 };
        let asked = cpu(&name.into());
        let has_room = |node: &&Json| {
            let here =
                pods.iter().filter(|pod| pod["spec"]["nodeName"] == node["metadata"]["name"]);
            let used: i32 = here.map(|pod| cpu(&pod["metadata"]["labels"]["app"])).sum();
            let is_open = node["spec"]["unschedulable"] != true
                && node["status"]["conditions"].to_string().contains("Ready");
            is_open && used + asked <= 1900
        };
        let node = nodes["items"].as_array().expect("nodes").iter().find(has_room);
        let Some(node) = node else { return };
        self.created += 1;
        let workload = self.workload(name);
        let mut spec = workload["spec"]["template"]["spec"].clone();
        spec["nodeName"] = node["metadata"]["name"].clone();
        let pod = json!({
            "metadata": { "name": format!("{name}-1-{}", self.created), "namespace": "default",
                "labels": { "app": name }, "ownerReferences": [{ "apiVersion": "apps/v1",
                    "kind": "ReplicaSet", "name": format!("{name}-1"), "uid": "set",
                    "controller": true }] },
            "spec": spec, "status": { "phase": "Pending" },
        });
        post(&self.kubernetes, "/api/v1/namespaces/default/pods", &pod).await;
    }

    /// Returns the number of pods that were created so far.
    pub(super) fn created(&self) -> u32 {
        self.created
    }

    /// Deletes the pod of `api` on a node, as its ReplicaSet does when it has too many.
    pub(super) async fn delete_replica_on(&mut self, node: &str) {
        let pods = get(&self.kubernetes, "/api/v1/namespaces/default/pods").await;
        let mut pods = pods["items"].as_array().expect("pods").iter();
        let pod = pods.find(|pod| {
            pod["spec"]["nodeName"] == node && pod["metadata"]["labels"]["app"] == "api"
        });
        let name = pod.expect("a pod")["metadata"]["name"].as_str().expect("a name").to_owned();
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        send(&self.kubernetes, "DELETE", &path, "application/json", &json!({})).await;
        self.settle().await;
    }

    /// Scales Karpenter to zero.
    pub(super) async fn stop_karpenter(&self) {
        let path = "/apis/apps/v1/namespaces/kube-system/deployments/karpenter";
        send(&self.kubernetes, "PATCH", path, MERGE, &json!({ "spec": { "replicas": 0 } })).await;
    }

    /// Removes owners and finalizers of Karpenter from the adopted nodes, as the guide does.
    pub(super) async fn release_nodes(&self) {
        for instance in self.karpenter_instances().await {
            let path = format!("/api/v1/nodes/{}", instance.node);
            let patch = json!({ "metadata": { "ownerReferences": [], "finalizers": [] } });
            send(&self.kubernetes, "PATCH", &path, MERGE, &patch).await;
        }
    }

    /// Removes the tags of Fleetwright and restores the finalizers, as the guide does.
    pub(super) async fn go_back(&self) {
        for instance in self.karpenter_instances().await {
            let keys = ["fleetwright.dev/cluster", "fleetwright.dev/pool", "fleetwright.dev/key"];
            let tags = keys.map(|key| Tag::builder().key(key).build());
            let call = self.ec2.delete_tags().resources(&instance.id).set_tags(Some(tags.into()));
            call.send().await.expect("removed");
            let path = format!("/api/v1/nodes/{}", instance.node);
            let patch = json!({ "metadata": { "finalizers": [FINALIZER] } });
            send(&self.kubernetes, "PATCH", &path, MERGE, &patch).await;
        }
    }

    /// Returns the running instances with the tags of Karpenter, in launch order.
    pub(super) async fn karpenter_instances(&self) -> Vec<KarpenterInstance> {
        let found = self.ec2.describe_instances().send().await.expect("instances");
        let found = found.reservations.unwrap_or_default().into_iter();
        let running = found.flat_map(|one| one.instances.unwrap_or_default()).filter(|instance| {
            let state = instance.state().and_then(|state| state.name());
            state.is_some_and(|state| state.as_str() == "running")
        });
        let mut all: Vec<KarpenterInstance> = running
            .filter_map(|instance| {
                let tags = instance
                    .tags()
                    .iter()
                    .filter_map(|tag| Some((tag.key()?.to_owned(), tag.value()?.to_owned())));
                let ours = |key: &String| key.starts_with("fleetwright.dev/");
                let tags: BTreeMap<String, String> = tags.filter(|(key, _)| !ours(key)).collect();
                let is_karpenter = tags.contains_key(self.generation.pool_label());
                let node = instance.private_dns_name()?.to_owned();
                let id = instance.instance_id()?.to_owned();
                is_karpenter.then_some(KarpenterInstance { id, node, tags })
            })
            .collect();
        let order: Vec<String> = self.kubelets.ignored().to_vec();
        all.sort_by_key(|instance| order.iter().position(|id| *id == instance.id));
        all
    }

    pub(super) async fn state_of(&self, id: &str) -> String {
        let found = self.ec2.describe_instances().instance_ids(id).send().await.expect("it");
        let state = found.reservations()[0].instances()[0].state().expect("a state").clone();
        state.name().expect("a name").as_str().to_owned()
    }

    /// Returns all Nodes and pods, without their versions.
    pub(super) async fn objects(&self) -> Vec<Json> {
        let mut all = Vec::new();
        for path in ["/api/v1/nodes", "/api/v1/pods"] {
            let found = get(&self.kubernetes, path).await;
            all.extend(found["items"].as_array().expect("a list").iter().cloned());
        }
        all
    }

    pub(super) async fn nodes(&self) -> BTreeSet<String> {
        let found = get(&self.kubernetes, "/api/v1/nodes").await;
        let name = |node: &Json| node["metadata"]["name"].as_str().expect("a name").to_owned();
        found["items"].as_array().expect("a list").iter().map(name).collect()
    }

    /// Returns the names of the nodes with an owner or a finalizer.
    pub(super) async fn owned_nodes(&self) -> Vec<String> {
        let found = get(&self.kubernetes, "/api/v1/nodes").await;
        let is_owned = |node: &&Json| {
            let is_filled =
                |key: &str| node["metadata"][key].as_array().is_some_and(|all| !all.is_empty());
            is_filled("ownerReferences") || is_filled("finalizers")
        };
        let nodes = found["items"].as_array().expect("a list").iter().filter(is_owned);
        nodes.map(|node| node["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.tree.path().join(name).display().to_string()
    }

    pub(super) async fn plan(&mut self) -> Json {
        let plan = self.expect(0, &["plan", "--format", "json"]).await;
        serde_json::from_str(&plan).expect("a plan")
    }

    /// Plans, checks the summary, and applies the plan.
    pub(super) async fn apply(&mut self, summary: &str) {
        let plan = self.path("plan.json");
        let planned = self.expect(2, &["plan", "--out", &plan, "--detailed-exitcode"]).await;
        assert!(planned.contains(summary), "{summary}\n{planned}");
        self.expect(0, &["apply", &plan, "--auto-approve"]).await;
    }

    /// Runs the program and the controllers until the program ends, which must be with `code`.
    /// Returns its output.
    pub(super) async fn expect(&mut self, code: i32, arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fleetwright"));
        command
            .args(arguments)
            .current_dir(self.tree.path())
            .env("KUBECONFIG", &self.kubeconfig)
            .env("AWS_ENDPOINT_URL", &self.aws.url)
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("XDG_CACHE_HOME", self.cache.path())
            .env("NO_COLOR", "1")
            .stdin(Stdio::null());
        let ended = tokio::task::spawn_blocking(move || command.output().expect("the program"));
        let controllers = async {
            loop {
                self.round().await;
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
        };
        let output = tokio::select! {
            output = ended => output.expect("a result"),
            () = controllers => unreachable!("controllers never end by themselves"),
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{out}\n{err}");
        out
    }
}
