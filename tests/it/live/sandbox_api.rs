//! Tests of the Kubernetes adapter against the API that `fleetwright sandbox` serves.

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

/// Serves a world and its desired state on a separate thread until the test process ends. Without a
/// world, the API is empty and static.
fn serve(make: impl FnOnce() -> Option<(World, Desired)> + Send + 'static) -> Config {
    let (sender, url) = mpsc::channel();
    std::thread::spawn(move || {
        runtime().block_on(async {
            let server = match make() {
                Some((world, desired)) => {
                    let catalog = Catalog::load(&"us-east-1".into(), &[]).expect("the catalog");
                    ApiServer::for_world(Rc::new(world), catalog, Rc::new(desired), Vec::new(), 0)
                        .await
                }
                None => ApiServer::standalone().await,
            };
            let server = server.expect("a port");
            sender.send(server.url().expect("an address")).expect("a receiver");
            server.run_while(std::future::pending::<()>()).await;
        });
    });
    let url = url.recv().expect("it serves");
    Config::new(url.parse().expect("a URL"))
}

/// Serves an empty API without controllers.
pub(super) fn empty() -> Config {
    serve(|| None)
}

/// Serves a cluster of `nodes` nodes with `pods` pods of one Deployment each.
pub(super) fn fleet(nodes: usize, pods: usize) -> Config {
    serve(move || Some((world(nodes, pods), Desired::default())))
}

/// Serves the world stored in `directory`, 20 times faster than real time.
pub(super) fn stored(directory: PathBuf, files: Vec<TreeFile>) -> Config {
    serve(move || {
        let world = copy_of(&directory, ClusterIdentity::default());
        world.set_speedup(20);
        Some((world, read(&Tree { files }, &Fleet::default())))
    })
}

/// Returns a copy in memory of the world stored in `directory`.
fn copy_of(directory: &Path, cluster: ClusterIdentity) -> World {
    let genesis = WorldInit { cluster, now: Timestamp::UNIX_EPOCH, seed: 1 };
    let shape: ShapeFn = Rc::new(|namespace: &_, template: &_| {
        pod_shape(namespace, template, &ShapeContext::new(&Desired::default()))
    });
    let found = World::copy_in_memory(directory, &genesis, &shape).expect("readable");
    found.expect("a stored world")
}

/// Returns the labels of a Karpenter node.
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
            was_ready: false,
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
                template: key.as_str().into(),
                node: Some(name.clone()),
                nominated: None,
                phase: PodPhase::Running,
                created_at: Timestamp::UNIX_EPOCH,
                terminating: false,
                mirror: false,
                started_at: None,
                ready_at: None,
                deletion_cost: 0,
                granted: [].into(),
            })
        }));
    }
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("world.json");
    std::fs::write(file, write_world(&observed)).expect("written");
    copy_of(directory.path(), cluster)
}

/// Returns the stored world of the quickstart.
fn quickstart() -> World {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/quickstart/world");
    copy_of(directory.as_ref(), ClusterIdentity::default())
}

#[test]
fn sandbox_api_returns_the_simulated_world() {
    let config = serve(|| Some((quickstart(), Desired::default())));
    runtime().block_on(async {
        let kubernetes = Kubernetes::from_config(config).expect("a client");
        let (read, world) = (kubernetes.objects().await.expect("read"), quickstart());
        let expected = world.objects().await.expect("objects");
        assert_eq!(kubernetes.cluster_uid().await.expect("a UID").as_str(), world.cluster().uid);
        assert_eq!(read.unread, Vec::<String>::new());
        assert_eq!(read.nodes, expected.nodes);
        assert_eq!(read.storage, expected.storage);
        assert_eq!(read.pods.len(), expected.pods.len());
        for pod in expected.pods {
            let found = read.pods.iter().find(|found| found.uid == pod.uid).expect("the pod");
            let same = |key: &str| template_key(&expected.templates[key]);
            assert_eq!(same(&found.template), same(&pod.template), "{}", pod.name);
            assert_eq!((&found.node, found.phase), (&pod.node, pod.phase));
            assert_eq!(found.owner, pod.owner);
        }
        let counts = |workloads: &[fleetwright::model::observed::LiveWorkload]| {
            // A DaemonSet has no replica count.
            let counted = workloads.iter().filter(|w| w.id.kind != WorkloadKind::DaemonSet);
            let all = counted.map(|w| (w.id.clone(), w.replicas));
            all.collect::<std::collections::BTreeMap<_, _>>()
        };
        assert_eq!(counts(&read.workloads), counts(&expected.workloads));
    });
}
