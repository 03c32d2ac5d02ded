//! Tests of broken watches against a scripted API server.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fleetwright::adapters::kube::{Kubernetes, WatchedCluster};
use fleetwright::apply::ports::Cluster;
use kube::Config;
use serde_json::{Value as Json, json};
use tokio::sync::mpsc;

use super::cluster::runtime;

/// Timeout of each wait.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Read timeout of the client where the server is silent. Elsewhere the timeout is [`TIMEOUT`]: on a
/// busy computer a short one would repeat a request whose reply is only late.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

const NODES: &str = "/api/v1/nodes";

/// A scripted action of the server. The last action of a script repeats.
#[derive(Debug, Clone)]
enum ServerAction {
    /// Lists these nodes at this resource version.
    List(&'static [&'static str], u32),
    /// Sends these events and ends the watch.
    SendAndEnd(Vec<Json>),
    /// Sends these events and keeps the watch open without further events.
    SendAndHang(Vec<Json>),
    /// Sends no response.
    Silent,
    /// Responds with this HTTP status.
    Refuse(u16),
}

/// An API server with nodes and without other objects.
struct WatchServer {
    url: String,
    actions: Mutex<BTreeMap<&'static str, Vec<ServerAction>>>,
    /// Paths of the requests for nodes, in order.
    requests: Mutex<Vec<String>>,
}

impl WatchServer {
    fn start(lists: Vec<ServerAction>, watches: Vec<ServerAction>) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let actions = Mutex::new([("list", lists), ("watch", watches)].into());
        let server = Arc::new(Self { url, actions, requests: Mutex::default() });
        let serving = Arc::clone(&server);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = Arc::clone(&serving);
                // A client may close its connection at any time.
                std::thread::spawn(move || serving.serve(&stream).ok());
            }
        });
        server
    }

    fn next(&self, verb: &'static str) -> ServerAction {
        let mut actions = self.actions.lock().unwrap_or_else(PoisonError::into_inner);
        let left = actions.get_mut(verb).expect("a script");
        if left.len() > 1 { left.remove(0) } else { left[0].clone() }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn serve(&self, mut stream: &TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let mut first = String::new();
            if reader.read_line(&mut first)? == 0 {
                return Ok(());
            }
            let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
            let mut line = String::new();
            while reader.read_line(&mut line)? > 0 && !line.trim().is_empty() {
                line.clear();
            }
            let of_nodes = path.split('?').next() == Some(NODES);
            let watches = path.contains("watch=true");
            if of_nodes {
                self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(path);
            }
            let action = match (of_nodes, watches) {
                (true, true) => self.next("watch"),
                (true, false) => self.next("list"),
                (false, true) => ServerAction::SendAndHang(Vec::new()),
                (false, false) => ServerAction::List(&[], 1),
            };
            let (events, ends_watch) = match action {
                ServerAction::List(names, version) => {
                    let items: Vec<Json> = names.iter().map(|name| node(name, version)).collect();
                    let version = version.to_string();
                    let list = json!({ "kind": "NodeList", "apiVersion": "v1",
                        "metadata": { "resourceVersion": version }, "items": items });
                    write!(stream, "{}", http_response(200, &list))?;
                    continue;
                }
                ServerAction::Refuse(code) => {
                    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure",
                        "message": "not now", "reason": "Down", "code": code });
                    write!(stream, "{}", http_response(code, &status))?;
                    continue;
                }
                ServerAction::Silent => {
                    std::thread::sleep(TIMEOUT);
                    return Ok(());
                }
                ServerAction::SendAndEnd(events) => (events, true),
                ServerAction::SendAndHang(events) => (events, false),
            };
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
            write!(stream, "{head}transfer-encoding: chunked\r\n\r\n")?;
            for event in events {
                let line = format!("{event}\n");
                write!(stream, "{:x}\r\n{line}\r\n", line.len())?;
            }
            if !ends_watch {
                std::thread::sleep(TIMEOUT);
                return Ok(());
            }
            write!(stream, "0\r\n\r\n")?;
        }
    }
}

fn http_response(code: u16, body: &Json) -> String {
    let body = body.to_string();
    format!(
        "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn node(name: &str, version: u32) -> Json {
    json!({ "kind": "Node", "apiVersion": "v1", "metadata": {
        "name": name, "uid": name, "resourceVersion": version.to_string(),
        "creationTimestamp": "2026-01-01T00:00:00Z",
    } })
}

fn event(kind: &str, object: &Json) -> Json {
    json!({ "type": kind, "object": object })
}

fn bookmark(version: u32) -> Json {
    let mark = json!({ "kind": "Node", "apiVersion": "v1",
        "metadata": { "resourceVersion": version.to_string(), "creationTimestamp": null } });
    event("BOOKMARK", &mark)
}

fn expired() -> Json {
    event(
        "ERROR",
        &json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "message": "too old resource version", "reason": "Expired", "code": 410 }),
    )
}

/// Waits until exactly the nodes `names` are observed. Returns the number of failed observations.
async fn wait_for_nodes(watched: &WatchedCluster, names: &[&str]) -> u32 {
    let (started, mut errors) = (Instant::now(), 0);
    loop {
        match watched.objects().await {
            Ok(objects) => {
                let observed: Vec<String> =
                    objects.nodes.iter().map(|node| node.name.to_string()).collect();
                if observed == names {
                    return errors;
                }
                assert!(started.elapsed() < TIMEOUT, "{names:?}, not {observed:?}");
            }
            Err(error) => {
                errors += 1;
                assert!(started.elapsed() < TIMEOUT, "{names:?}: {error}");
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until `count` watches of nodes were requested. An observation while no watch runs lists
/// nodes itself and uses up an action of the script.
async fn wait_for_watches(server: &WatchServer, count: usize) {
    let started = Instant::now();
    loop {
        let requests = server.requests();
        let requested = requests.iter().filter(|path| path.contains("watch=true")).count();
        if requested >= count {
            return;
        }
        assert!(started.elapsed() < TIMEOUT, "{requested} of {count} watches");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn watch(server: &WatchServer) -> WatchedCluster {
    watch_for(server, TIMEOUT)
}

/// Starts a watch with this read timeout.
fn watch_for(server: &WatchServer, read_timeout: Duration) -> WatchedCluster {
    let config = Config::new(server.url.parse().expect("a URL"));
    let kubernetes = Kubernetes::with_timeout(config, read_timeout).expect("a client");
    WatchedCluster::start(kubernetes, mpsc::channel(8).0)
}

#[test]
fn expired_watch_restarts_from_full_list() {
    let server = WatchServer::start(
        vec![ServerAction::List(&["a"], 5), ServerAction::List(&["b", "c"], 9)],
        vec![
            // The watch expires after an event. The event counts until the new list arrives.
            ServerAction::SendAndEnd(vec![event("ADDED", &node("lost", 6)), expired()]),
            ServerAction::SendAndHang(vec![event("ADDED", &node("d", 10))]),
        ],
    );
    runtime().block_on(async {
        let watched = watch(&server);
        wait_for_watches(&server, 1).await;
        wait_for_nodes(&watched, &["b", "c", "d"]).await;
        let requests = server.requests();
        let opened: Vec<&String> = requests.iter().filter(|p| p.contains("watch=true")).collect();
        assert!(
            opened[0].contains("resourceVersion=5&") || opened[0].ends_with("resourceVersion=5")
        );
        assert!(opened[1].contains("resourceVersion=9"), "{opened:?}");
    });
}

#[test]
fn idle_watch_resumes_from_last_bookmark() {
    let server = WatchServer::start(
        vec![ServerAction::List(&["a"], 5)],
        vec![
            ServerAction::SendAndEnd(vec![bookmark(70)]),
            // A bookmark that is older than the observed state reverts nothing.
            ServerAction::SendAndEnd(vec![event("ADDED", &node("b", 80)), bookmark(80)]),
            ServerAction::SendAndHang(vec![
                event("MODIFIED", &node("b", 81)),
                event("DELETED", &node("a", 82)),
            ]),
        ],
    );
    runtime().block_on(async {
        let watched = watch(&server);
        wait_for_nodes(&watched, &["b"]).await;
        let requests = server.requests();
        let from = |n: usize| requests.iter().filter(|p| p.contains("watch=true")).nth(n).cloned();
        // A new watch would start at the version of a list.
        for (n, version) in [(0, "5"), (1, "70"), (2, "80")] {
            let path = from(n).expect("a watch");
            assert!(path.contains(&format!("resourceVersion={version}")), "{n}: {path}");
        }
    });
}

#[test]
fn silent_watch_expires_and_silent_server_is_an_error() {
    let server = WatchServer::start(
        vec![
            ServerAction::List(&["a"], 5),
            ServerAction::List(&["a"], 5),
            ServerAction::List(&["b"], 9),
        ],
        vec![ServerAction::SendAndHang(Vec::new())],
    );
    runtime().block_on(async {
        let watched = watch_for(&server, READ_TIMEOUT);
        wait_for_nodes(&watched, &["a"]).await;
        // The watch is silent although the list has changed.
        let started = Instant::now();
        wait_for_nodes(&watched, &["b"]).await;
        assert!(started.elapsed() < TIMEOUT / 2, "{:?}", started.elapsed());
    });
    let server = WatchServer::start(
        vec![ServerAction::List(&["a"], 5), ServerAction::Refuse(503), ServerAction::Silent],
        vec![ServerAction::SendAndEnd(vec![expired()])],
    );
    runtime().block_on(async {
        let watched = watch_for(&server, READ_TIMEOUT);
        let started = Instant::now();
        // The cluster is never empty, and the old state is not served forever.
        loop {
            match watched.objects().await {
                Ok(objects) => assert_eq!(objects.nodes.len(), 1),
                Err(_) => break,
            }
            assert!(started.elapsed() < TIMEOUT, "an unreadable cluster is observed");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(watched.objects().await.is_err(), "and it stays so");
    });
}

#[test]
fn failing_watch_restarts_with_backoff() {
    let ends_at_once = || ServerAction::SendAndEnd(Vec::new());
    // An event after failed watches resets the backoff.
    let event_watch = ServerAction::SendAndEnd(vec![event("ADDED", &node("b", 6))]);
    let server = WatchServer::start(
        vec![ServerAction::List(&["a"], 5), ServerAction::List(&["a", "b"], 6)],
        vec![ends_at_once(), ends_at_once(), event_watch, ends_at_once()],
    );
    runtime().block_on(async {
        let watched = watch(&server);
        wait_for_nodes(&watched, &["a", "b"]).await;
        let started =
            || server.requests().iter().filter(|path| path.contains("watch=true")).count();
        tokio::time::sleep(Duration::from_secs(3)).await;
        // The watches start after 0.1, 0.3 and 0.7 s; after the reset, after 0.1, 0.3, 0.7, 1.5 and
        // 3.1 s.
        assert!(started() <= 12, "{}", started());
        // On a busy computer they start later.
        let waited = Instant::now();
        while started() < 6 {
            assert!(waited.elapsed() < TIMEOUT, "{}", started());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Events before a failed watch are kept or listed again.
        wait_for_nodes(&watched, &["a", "b"]).await;
    });
}

#[test]
fn state_is_relisted_after_failing_watches() {
    // The last watch stays open and sends none of the changes during the failed watches.
    let ends_at_once = || ServerAction::SendAndEnd(Vec::new());
    let server = WatchServer::start(
        vec![ServerAction::List(&["a"], 5), ServerAction::List(&["a", "b"], 6)],
        vec![
            ends_at_once(),
            ends_at_once(),
            ends_at_once(),
            ends_at_once(),
            ServerAction::SendAndHang(Vec::new()),
        ],
    );
    runtime().block_on(async {
        let watched = watch(&server);
        // The watches restart after 0.1, 0.3, 0.7 and 1.5 s. No observation happens meanwhile.
        wait_for_watches(&server, 5).await;
        let lists = server.requests().iter().filter(|path| !path.contains("watch=true")).count();
        assert_eq!(lists, 2, "one relist after the first list");
        let observed = watched.objects().await.expect("observed");
        let observed: Vec<&str> = observed.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(observed, ["a", "b"]);
    });
}
