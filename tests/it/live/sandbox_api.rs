//! The API that `fleetwright sandbox` serves, read by the adapter for real ones.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, mpsc};

use fleetwright::adapters::kube::Kubernetes;
use fleetwright::apply::ports::Cluster;
use fleetwright::catalog::Catalog;
use fleetwright::demand::{ShapeContext, pod_shape};
use fleetwright::manifest::read;
use fleetwright::model::desired::{Desired, Fleet, Tree, TreeFile};
use fleetwright::model::ids::{Labels, NodeName, WorkloadId, WorkloadKind};
use fleetwright::model::observed::{
    ClusterIdentity, Node, Observed, Pod, PodPhase, template_key, write_world,
};
use fleetwright::model::pod::{Container, PodTemplate};
use fleetwright::model::units::Resources;
use fleetwright::simulator::sandbox::ApiServer;
use fleetwright::simulator::{ShapeFn, World, WorldInit};
use jiff::Timestamp;
use kube::Config;

use super::cluster::runtime;

/// Serves on a thread of its own, for as long as the process of the tests lasts: a world, and the files by which
/// instances are made in it.
fn serve(make: impl FnOnce() -> Option<(World, Desired)> + Send + 'static) -> Config {
    let (sender, url) = mpsc::channel();
    std::thread::spawn(move || {
        runtime().block_on(async {
            let server = match make() {
                Some((world, desired)) => {
                    let catalog = Catalog::load(&"us-east-1".into(), &[]).expect("the catalogue");
                    ApiServer::for_world(Rc::new(world), (catalog, Rc::new(desired)), 0).await
                }
                None => ApiServer::standalone().await,
            };
            let server = server.expect("a port");
            sender.send(server.url().expect("an address")).expect("somebody waits");
            server.run_while(std::future::pending::<()>()).await;
        });
    });
    let url = url.recv().expect("it serves");
    Config::new(url.parse().expect("a URL"))
}

/// Serves an API on which nobody acts.
pub(super) fn alone() -> Config {
    serve(|| None)
}

/// Serves a cluster of so many nodes, each with so many pods of one Deployment.
pub(super) fn fleet(nodes: usize, pods: usize) -> Config {
    serve(move || Some((world(nodes, pods), Desired::default())))
}

/// Serves the world that is kept in `directory`, in which everything takes a twentieth of its time.
pub(super) fn kept(directory: PathBuf, files: Vec<TreeFile>) -> Config {
    serve(move || {
        let world = copied(&directory, ClusterIdentity::default());
        world.set_speedup(20);
        Some((world, read(&Tree { files }, &Fleet::default())))
    })
}

/// Returns what is kept in `directory`.
fn copied(directory: &Path, cluster: ClusterIdentity) -> World {
    let genesis = WorldInit { cluster, now: Timestamp::UNIX_EPOCH, seed: 1 };
    let shape: ShapeFn = Rc::new(|namespace: &_, template: &_| {
        pod_shape(namespace, template, &ShapeContext::new(&Desired::default()))
    });
    let found = World::copy_in_memory(directory, &genesis, &shape).expect("readable");
    found.expect("a world is kept there")
}

/// Returns as many labels as a node has that Karpenter made.
fn labels(node: &NodeName) -> Labels {
    let of_all = [
        ("beta.kubernetes.io/arch", "amd64"),
        ("beta.kubernetes.io/instance-type", "m6i.4xlarge"),
        ("beta.kubernetes.io/os", "linux"),
        ("k8s.io/cloud-provider-aws", "0a1b2c3d4e5f60718293a4b5c6d7e8f9"),
        ("karpenter.k8s.aws/ec2nodeclass", "general"),
        ("karpenter.k8s.aws/instance-category", "m"),
        ("karpenter.k8s.aws/instance-cpu", "16"),
        ("karpenter.k8s.aws/instance-cpu-manufacturer", "intel"),
        ("karpenter.k8s.aws/instance-ebs-bandwidth", "10000"),
        ("karpenter.k8s.aws/instance-encryption-in-transit-supported", "true"),
        ("karpenter.k8s.aws/instance-family", "m6i"),
        ("karpenter.k8s.aws/instance-generation", "6"),
        ("karpenter.k8s.aws/instance-hypervisor", "nitro"),
        ("karpenter.k8s.aws/instance-memory", "65536"),
        ("karpenter.k8s.aws/instance-network-bandwidth", "12500"),
        ("karpenter.k8s.aws/instance-size", "4xlarge"),
        ("karpenter.sh/capacity-type", "on-demand"),
        ("karpenter.sh/initialized", "true"),
        ("karpenter.sh/nodepool", "others"),
        ("karpenter.sh/registered", "true"),
        ("kubernetes.io/arch", "amd64"),
        ("kubernetes.io/hostname", node.as_str()),
        ("kubernetes.io/os", "linux"),
        ("node.kubernetes.io/instance-type", "m6i.4xlarge"),
        ("topology.k8s.aws/zone-id", "use1-az2"),
        ("topology.kubernetes.io/region", "us-east-1"),
        ("topology.kubernetes.io/zone", "us-east-1a"),
    ];
    of_all.map(|(key, value)| (key.into(), value.into())).into()
}

fn world(nodes: usize, pods: usize) -> World {
    let cluster = ClusterIdentity { name: "large".to_owned(), ..ClusterIdentity::default() };
    let mut observed = Observed::empty(cluster.clone(), Timestamp::UNIX_EPOCH);
    let resources: Resources = serde_json::from_value(serde_json::json!({
        "cpu": 16_000, "memory": 64_u64 << 30, "pods": 110
    }))
    .expect("resources");
    let mut template = PodTemplate::default();
    let container = Container { name: "api".to_owned(), ..Container::default() };
    template.spec.containers.push(container);
    let key = template_key(&template);
    observed.templates.insert(key.clone(), template.into());
    let owner =
        WorkloadId { namespace: "web".into(), name: "api".into(), kind: WorkloadKind::Deployment };
    for n in 0..nodes {
        let name = NodeName::from(format!("n{n:05}"));
        let node = Node {
            name: name.clone(),
            uid: format!("node-{n}").into(),
            instance: None,
            labels: labels(&name),
            annotations: [].into(),
            taints: Vec::new(),
            capacity: resources.clone(),
            allocatable: resources.clone(),
            ready: true,
            faults: [].into(),
            unschedulable: false,
            created_at: Timestamp::UNIX_EPOCH,
        };
        observed.nodes.insert(name.clone(), node);
        observed.pods.extend((0..pods).map(|m| {
            Arc::new(Pod {
                namespace: "web".into(),
                name: format!("api-{n:05}-{m:03}").into(),
                uid: format!("pod-{n}-{m}").into(),
                owner: Some(owner.clone()),
                template: key.clone(),
                node: Some(name.clone()),
                phase: PodPhase::Running,
                created_at: Timestamp::UNIX_EPOCH,
                terminating: false,
                mirror: false,
                started_at: None,
                granted: [].into(),
            })
        }));
    }
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("world.json");
    std::fs::write(file, write_world(&observed)).expect("written");
    copied(directory.path(), cluster)
}

/// Returns the world of the quickstart, at rest.
fn quickstart() -> World {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/quickstart/world");
    copied(directory.as_ref(), ClusterIdentity::default())
}

#[test]
fn sandbox_api_returns_the_simulated_world() {
    let config = serve(|| Some((quickstart(), Desired::default())));
    runtime().block_on(async {
        let kubernetes = Kubernetes::from_config(config).expect("a client");
        let (read, world) = (kubernetes.objects().await.expect("read"), quickstart());
        let held = world.objects().await.expect("held");
        assert_eq!(kubernetes.cluster_uid().await.expect("a UID").as_str(), world.cluster().uid);
        assert_eq!(read.unread, Vec::<String>::new());
        assert_eq!(read.nodes, held.nodes);
        assert_eq!(read.storage, held.storage);
        assert_eq!(read.pods.len(), held.pods.len());
        for pod in held.pods {
            let found = read.pods.iter().find(|found| found.uid == pod.uid).expect("the pod");
            let same = |key: &str| template_key(&held.templates[key]);
            assert_eq!(same(&found.template), same(&pod.template), "{}", pod.name);
            assert_eq!((&found.node, found.phase), (&pod.node, pod.phase));
            assert_eq!(found.owner, pod.owner);
        }
        let counts = |workloads: &[fleetwright::model::observed::LiveWorkload]| {
            // A DaemonSet wants as many as there are nodes, and says no number.
            let counted = workloads.iter().filter(|w| w.id.kind != WorkloadKind::DaemonSet);
            let all = counted.map(|w| (w.id.clone(), w.replicas));
            all.collect::<std::collections::BTreeMap<_, _>>()
        };
        assert_eq!(counts(&read.workloads), counts(&held.workloads));
    });
}
