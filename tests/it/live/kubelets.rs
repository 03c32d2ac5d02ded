//! Simulated kubelets: they join the nodes of launched instances to a real cluster, run the bound
//! pods and delete terminating pods.
//!
//! The labels and taints of a node come from the user data in the real launch template. A label
//! that a kubelet may not set on its own node fails the test. The real scheduler and controllers
//! create, schedule and count the pods.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aws_sdk_ec2::types::{Filter, Instance, InstanceAttributeName};
use aws_smithy_types::base64;
use fleetwright::catalog::{Catalog, NodeSettings};
use fleetwright::model::units::Resources;
use kube::Client;
use serde_json::{Value as Json, json};

use super::cluster::send;

/// Pause between two rounds.
const ROUND: Duration = Duration::from_millis(250);

/// Tag that Auto Scaling sets on group members.
const MEMBER: &str = "aws:autoscaling:groupName";

/// The kubelets of all instances of a cluster.
pub(super) struct Kubelets {
    ec2: aws_sdk_ec2::Client,
    client: Client,
    cluster: String,
    catalog: Catalog,
    /// Node labels of the members, by group. Fleetwright does not own the launch templates of
    /// groups.
    group_labels: BTreeMap<String, BTreeMap<String, String>>,
    joined: BTreeSet<String>,
    /// Instances whose nodes a test joins itself, in order.
    ignored: Vec<String>,
    /// True if newly launched instances join the cluster.
    pub(super) instances_join: bool,
}

impl Kubelets {
    pub(super) fn new(ec2: aws_sdk_ec2::Client, client: Client, cluster: &str) -> Self {
        let catalog = Catalog::load(&"us-east-1".into(), &[]).expect("the embedded catalog");
        let cluster = cluster.to_owned();
        let (group_labels, joined) = (BTreeMap::new(), BTreeSet::new());
        let ignored = Vec::new();
        Self { ec2, client, cluster, catalog, group_labels, joined, ignored, instances_join: true }
    }

    /// Leaves the node of an instance to the test.
    pub(super) fn ignore(&mut self, id: &str) {
        self.joined.insert(id.to_owned());
        self.ignored.push(id.to_owned());
    }

    /// Returns the instances whose nodes the test joined.
    pub(super) fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// Sets the node labels of the members of a group.
    pub(super) fn with_group_labels(mut self, group: &str, labels: &[(&str, &str)]) -> Self {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        self.group_labels.insert(group.to_owned(), labels);
        self
    }

    /// Runs rounds for as long as the future is polled.
    pub(super) async fn run(&mut self) {
        loop {
            self.round().await;
            tokio::time::sleep(ROUND).await;
        }
    }

    /// Joins all running instances, runs all bound pods, and deletes all terminating pods.
    pub(super) async fn round(&mut self) {
        let running = Filter::builder().name("instance-state-name").values("running").build();
        let output =
            self.ec2.describe_instances().filters(running).send().await.expect("instances");
        let reservations = output.reservations.unwrap_or_default().into_iter();
        for instance in reservations.flat_map(|r| r.instances.unwrap_or_default()) {
            let id = instance.instance_id().expect("an id").to_owned();
            let has_tag = |key: &str, value: Option<&str>| {
                let mut tags = instance.tags().iter().filter(|tag| tag.key() == Some(key));
                tags.any(|tag| value.is_none() || tag.value() == value)
            };
            if !has_tag(MEMBER, None) && !has_tag("fleetwright.dev/cluster", Some(&self.cluster)) {
                continue;
            }
            if self.joined.insert(id) && self.instances_join {
                self.join(&instance).await;
            }
        }
        let pods = get(&self.client, "/api/v1/pods").await;
        for pod in pods["items"].as_array().expect("pods") {
            self.run_pod(pod).await;
        }
    }

    async fn join(&self, instance: &Instance) {
        let tag = |key: &str| {
            instance.tags().iter().find(|tag| tag.key() == Some(key)).and_then(|tag| tag.value())
        };
        let (mut labels, taints) = match tag(MEMBER) {
            Some(group) => (self.group_labels[group].clone(), Vec::new()),
            None => self.kubelet_settings(instance).await,
        };
        let instance_type = instance.instance_type().expect("a type").as_str();
        let zone = instance.placement().and_then(|p| p.availability_zone()).expect("a zone");
        let name = instance.private_dns_name().expect("a name");
        // Labels that the cloud controller and the kubelet set by themselves.
        for (key, value) in [
            ("kubernetes.io/hostname", name),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", "amd64"),
            ("node.kubernetes.io/instance-type", instance_type),
            ("topology.kubernetes.io/zone", zone),
            ("topology.kubernetes.io/region", "us-east-1"),
        ] {
            labels.insert(key.to_owned(), value.to_owned());
        }
        let id = instance.instance_id().expect("an id");
        let node = json!({
            "metadata": { "name": name, "labels": labels },
            "spec": { "providerID": format!("aws:///{zone}/{id}"), "taints": taints }
        });
        send(&self.client, "POST", "/api/v1/nodes", "application/json", &node).await;
        self.set_ready(name, instance_type).await;
    }

    /// Writes the status of a Ready node.
    pub(super) async fn set_ready(&self, name: &str, instance_type: &str) {
        let settings = NodeSettings::default();
        let amounts = self.catalog.allocation(&self.catalog.types[instance_type], &settings);
        let status = json!({ "status": {
            "capacity": texts(&amounts.capacity), "allocatable": texts(&amounts.allocatable),
            "conditions": [{ "type": "Ready", "status": "True" }]
        } });
        let path = format!("/api/v1/nodes/{name}/status");
        send(&self.client, "PATCH", &path, "application/merge-patch+json", &status).await;
    }

    /// Returns the labels and taints that the user data of an instance passes to its kubelet.
    async fn kubelet_settings(&self, instance: &Instance) -> (BTreeMap<String, String>, Vec<Json>) {
        let id = instance.instance_id().expect("an id");
        let request = self.ec2.describe_instance_attribute().instance_id(id);
        let output = request.attribute(InstanceAttributeName::UserData).send().await;
        let output = output.expect("an answer").user_data.and_then(|data| data.value);
        let text = base64::decode(output.expect("user data")).expect("base64");
        let text = String::from_utf8(text).expect("text");
        let config = text.lines().find(|line| line.starts_with(r#"{"apiVersion":"node.eks.aws"#));
        let config: Json = serde_json::from_str(config.expect("a NodeConfig")).expect("JSON");
        assert_eq!(config["spec"]["cluster"]["name"], self.cluster.as_str());
        let flags = config["spec"]["kubelet"]["flags"].as_array().expect("flags");
        let flag = |name: &str| {
            let values = flags.iter().filter_map(Json::as_str).find_map(|f| f.strip_prefix(name));
            values.map(|all| all.split(',').map(str::to_owned).collect::<Vec<_>>())
        };
        let labels = flag("--node-labels=").unwrap_or_default();
        let labels = labels.iter().map(|label| {
            let (key, value) = label.split_once('=').expect("a label");
            assert!(
                !is_forbidden_for_kubelets(key),
                "a kubelet with the label {key} does not start"
            );
            (key.to_owned(), value.to_owned())
        });
        let taints = flag("--register-with-taints=").unwrap_or_default();
        let taints = taints.iter().map(|taint| {
            let (key, rest) = taint.split_once('=').expect("a taint");
            let (value, effect) = rest.split_once(':').expect("an effect");
            json!({ "key": key, "value": value, "effect": effect })
        });
        (labels.collect(), taints.collect())
    }

    async fn run_pod(&self, pod: &Json) {
        let meta = &pod["metadata"];
        let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text(&meta["namespace"]), text(&meta["name"]));
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        if !meta["deletionTimestamp"].is_null() {
            let immediately = json!({
                "gracePeriodSeconds": 0, "preconditions": { "uid": meta["uid"] }
            });
            try_send(&self.client, "DELETE", &path, "application/json", &immediately).await;
        } else if !pod["spec"]["nodeName"].is_null() && pod["status"]["phase"] == "Pending" {
            let status = json!({ "status": {
                "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }]
            } });
            let (path, merge) = (format!("{path}/status"), "application/merge-patch+json");
            try_send(&self.client, "PATCH", &path, merge, &status).await;
        }
    }
}

/// Returns true if a kubelet refuses to start with this label of its own node.
fn is_forbidden_for_kubelets(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let matches_domain = |name: &str| domain == name || domain.ends_with(&format!(".{name}"));
    let allowed = matches_domain("kubelet.kubernetes.io") || matches_domain("node.kubernetes.io");
    (matches_domain("kubernetes.io") || matches_domain("k8s.io")) && !allowed
}

fn texts(amounts: &Resources) -> Json {
    json!({
        "cpu": format!("{}m", amounts.cpu.0), "memory": amounts.memory.0.to_string(),
        "pods": amounts.pods.to_string(),
        "ephemeral-storage": amounts.ephemeral_storage.0.to_string(),
    })
}

/// Reads an object or a list.
pub(super) async fn get(client: &Client, path: &str) -> Json {
    let request = http::Request::get(path).body(Vec::new()).expect("a request");
    client.request(request).await.unwrap_or_else(|error| panic!("GET {path}: {error}"))
}

/// Sends a request. The object may be deleted or changed in the meantime: 404 and 409 are ignored.
async fn try_send(client: &Client, method: &str, path: &str, content_type: &str, object: &Json) {
    let request =
        http::Request::builder().method(method).uri(path).header("content-type", content_type);
    let request = request.body(object.to_string().into_bytes()).expect("a request");
    match client.request::<Json>(request).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
        Err(error) => panic!("{method} {path}: {error}"),
    }
}
