//! Odd objects against the readers of the Kubernetes adapter: no object stops the rest.
//!
//! With a real kube-apiserver, the objects are those that it accepts. Without one, a server in this
//! process returns all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;

use fleetwright::adapters::kube::Kubernetes;
use fleetwright::apply::ports::{Cluster as _, ClusterObjects};
use fleetwright::demand::{ShapeContext, live_requests};
use fleetwright::manifest::read_live_objects;
use fleetwright::model::desired::Desired;
use fleetwright::model::observed::{Observed, read_world, write_world};
use futures_util::stream::{self, StreamExt as _};
use kube::{Client, Config, Error};
use serde_json::{Value as Json, json};

use super::cluster::{post, runtime};
use super::control_plane::ControlPlane;
use crate::odd_objects::{NAMESPACE, OddObject, exact_requests, odd_objects};

/// Seed of the objects. The same seed gives the same objects everywhere.
const SEED: u64 = 20_261_127;

/// Reasons of isolated objects that the API server takes: the scheduler binds none of their pods.
///
/// It fails for a preferred term that it cannot evaluate, and no node has two values of one label.
const UNPLACEABLE: [&str; 2] =
    ["preferredDuringSchedulingIgnoredDuringExecution", "another name of the same label says"];

/// Objects that are sent at the same time.
const CONCURRENCY: usize = 16;

/// Returns the outcome of each object: the error of the API server, or `None`.
async fn create(client: &Client, objects: &[OddObject]) -> Vec<Option<String>> {
    let send = async |method: &str, path: &str, kind: &str, object: &Json| {
        let request =
            http::Request::builder().method(method).uri(path).header("content-type", kind);
        let request = request.body(object.to_string().into_bytes()).expect("a request");
        match client.request::<Json>(request).await {
            Ok(_) => None,
            Err(Error::Api(status)) => Some(status.message),
            Err(error) => panic!("{path}: {error}"),
        }
    };
    let create = async |made: &OddObject| {
        let rejection = send("POST", &made.path, "application/json", &made.object).await;
        if let (None, Some(status)) = (&rejection, &made.status) {
            let name = made.object["metadata"]["name"].as_str().expect("a name");
            let path = format!("{}/{name}/status", made.path);
            let status = json!({ "status": status });
            // An invalid status changes nothing.
            let _ = send("PATCH", &path, "application/merge-patch+json", &status).await;
        }
        rejection
    };
    stream::iter(objects).map(create).buffered(CONCURRENCY).collect().await
}

/// Returns the objects as a server stores them, by the path of their list.
fn stored(objects: Vec<OddObject>) -> BTreeMap<String, Vec<Json>> {
    let mut lists: BTreeMap<String, Vec<Json>> = BTreeMap::new();
    for (n, made) in objects.into_iter().enumerate() {
        let OddObject { path, mut object, status } = made;
        object["metadata"]["uid"] = json!(format!("u{n}"));
        object["metadata"]["creationTimestamp"] = json!("2026-11-27T00:00:00Z");
        if let Some(status) = status {
            object["status"] = status;
        }
        let list = path.replace(&format!("namespaces/{NAMESPACE}/"), "");
        lists.entry(list).or_default().push(object);
    }
    lists
}

/// Serves lists until the test ends.
fn serve(lists: BTreeMap<String, Vec<Json>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let lists = Arc::new(lists);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let lists = Arc::clone(&lists);
            // A client may leave early.
            std::thread::spawn(move || drop(answer(stream, &lists)));
        }
    });
    address
}

fn answer(mut stream: TcpStream, lists: &BTreeMap<String, Vec<Json>>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let path = first.split([' ', '?']).nth(1).unwrap_or_default();
    let items = lists.get(path).map(Vec::as_slice).unwrap_or_default();
    let body = json!({ "metadata": { "resourceVersion": "1" }, "items": items }).to_string();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Checks that no object makes the list incomplete, and that each pod is read or named.
fn check_isolated(objects: &ClusterObjects, pods: &[Json]) -> Vec<String> {
    let unread: BTreeSet<&str> =
        objects.unread_objects.iter().map(|unread| unread.object.as_str()).collect();
    let read: BTreeSet<&str> = objects.pods.iter().map(|pod| &*pod.name).collect();
    for pod in pods {
        let name = pod["metadata"]["name"].as_str().expect("a name");
        let is_named = unread.contains(format!("Pod {NAMESPACE}/{name}").as_str());
        let is_bound = pod["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
        assert!(read.contains(name) || is_named && !is_bound, "{name} is lost: {pod}");
    }
    assert_eq!(objects.unread, [""; 0], "an object makes the list incomplete");
    let all = objects.unread_objects.iter();
    all.map(|unread| format!("{}: {}", unread.object, unread.reason)).collect()
}

/// Checks the requests of each pod against their own computation from the stored object.
fn check_requests(objects: &ClusterObjects, pods: &[Json]) -> usize {
    let unread: BTreeSet<&str> =
        objects.unread_objects.iter().map(|unread| unread.object.as_str()).collect();
    let stored: BTreeMap<&str, &Json> =
        pods.iter().filter_map(|pod| Some((pod["metadata"]["name"].as_str()?, pod))).collect();
    let desired = Desired::default();
    let context = ShapeContext::new(&desired);
    let mut checked = 0;
    for pod in &objects.pods {
        let is_unread = unread.contains(format!("Pod {NAMESPACE}/{}", pod.name).as_str());
        // The kubelet granted other amounts than the specification has.
        if is_unread || !pod.granted.is_empty() {
            continue;
        }
        let Some(object) = stored.get(&*pod.name) else { continue };
        let exact = exact_requests(object);
        let read = live_requests(pod, &objects.templates[&*pod.template], &context);
        let mut amounts = BTreeMap::from([
            ("cpu", read.cpu.0),
            ("memory", read.memory.0),
            ("ephemeral-storage", read.ephemeral_storage.0),
        ]);
        amounts.extend(read.extended.iter().map(|(name, amount)| (name.as_str(), *amount)));
        for name in exact.names().into_iter().chain(amounts.keys().copied()) {
            let amount = amounts.get(name).copied().unwrap_or(0);
            assert!(exact.matches(name, amount), "{name}: {amount}, not {exact:?} of {object}");
        }
        checked += 1;
    }
    checked
}

/// Returns the exit code of a plan over these objects, and its errors.
fn plan(objects: ClusterObjects) -> (Option<i32>, String) {
    let ClusterObjects {
        nodes,
        pods,
        templates,
        workloads,
        jobs,
        storage,
        scaling,
        unread: _,
        unread_objects: unread,
        pools: _,
    } = objects;
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/quickstart");
    let world = std::fs::read(root.join("world/world.json")).expect("a world");
    let mut observed: Observed = read_world(&world).expect("a world");
    observed.nodes.extend(nodes.into_iter().map(|node| (node.name.clone(), node)));
    observed.pods.extend(pods);
    observed.templates.extend(templates);
    observed.workloads.extend(workloads);
    observed.jobs.extend(jobs);
    (observed.storage, observed.scaling, observed.unread) = (storage, scaling, unread);
    observed.canonicalize();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("world.json");
    std::fs::write(&path, write_world(&observed)).expect("written");
    let output = Command::new(env!("CARGO_BIN_EXE_fleetwright"))
        .args(["plan", "--format", "json", "--at", "2026-11-27T01:00:00Z"])
        .arg(&root)
        .arg("--world")
        .arg(&path)
        .output()
        .expect("the program");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn odd_objects_are_read_or_isolated() {
    let objects = odd_objects(SEED, 2_000);
    for made in &objects {
        // The reader of files, which reads more kinds, does not panic.
        let _ = read_live_objects([&made.object]);
    }
    let lists = stored(objects);
    let pods = lists["/api/v1/pods"].clone();
    let config = Config::new(format!("http://{}", serve(lists)).parse().expect("a URL"));
    let read = runtime().block_on(async {
        let kubernetes = Kubernetes::from_config(config).expect("a client");
        kubernetes.objects().await.expect("a complete list")
    });
    let isolated = check_isolated(&read, &pods);
    assert!(isolated.len() * 4 < pods.len() * 3, "{} are isolated", isolated.len());
    let (code, stderr) = plan(read);
    assert_eq!(code, Some(0), "{stderr}");
}

#[test]
fn objects_that_the_api_server_accepts_are_read() {
    let Some(plane) = ControlPlane::start() else { return };
    let objects = odd_objects(SEED, super::size("FLEETWRIGHT_ODD_OBJECTS", 4_000));
    runtime().block_on(async {
        let config = plane.config("admin").await;
        let client = Client::try_from(config.clone()).expect("a client");
        let namespace = json!({ "metadata": { "name": NAMESPACE } });
        post(&client, "/api/v1/namespaces", &namespace).await;
        let outcomes = create(&client, &objects).await;
        report_rejections(&objects, &outcomes);
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        let request = http::Request::get(path).body(Vec::new()).expect("a request");
        let listed: Json = client.request(request).await.expect("pods");
        let pods = listed["items"].as_array().expect("a list");
        let kubernetes = Kubernetes::from_config(config).expect("a client");
        let read = kubernetes.objects().await.expect("a complete list");
        let isolated = check_isolated(&read, pods);
        let checked = check_requests(&read, pods);
        super::measured(&format!("{} pods, requests of {checked} checked", pods.len()));
        let (unplaceable, refused): (Vec<String>, Vec<String>) = isolated
            .into_iter()
            .partition(|reason| UNPLACEABLE.iter().any(|known| reason.contains(known)));
        super::measured(&format!("{} objects with unplaceable pods", unplaceable.len()));
        assert_eq!(refused, [""; 0], "the reader refuses what the API server takes");
        let (code, stderr) = plan(read);
        assert_eq!(code, Some(0), "{stderr}");
    });
}

/// Prints how many objects of each kind were accepted, and the most frequent rejections.
fn report_rejections(objects: &[OddObject], outcomes: &[Option<String>]) {
    let mut accepted: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for (made, outcome) in objects.iter().zip(outcomes) {
        let kind = made.object["kind"].as_str().expect("a kind");
        let counts = accepted.entry(kind).or_default();
        counts[0] += usize::from(outcome.is_none());
        counts[1] += 1;
        if let Some(reason) = outcome {
            let start = reason.find("invalid: ").map_or(0, |at| at + 9);
            *reasons.entry(reason[start..].get(..90).unwrap_or(&reason[start..])).or_default() += 1;
        }
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    super::measured(&format!("accepted of sent: {accepted:?}"));
    super::measured(&format!("rejections: {:#?}", &reasons[..reasons.len().min(25)]));
    let total: usize = accepted.values().map(|[accepted, _]| accepted).sum();
    assert!(total * 3 > objects.len(), "{total} of {} are accepted", objects.len());
}
