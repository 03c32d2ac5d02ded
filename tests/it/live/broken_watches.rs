//! Watches that break, by an API server that does what it was told to.

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

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long the client waits for a word.
const SILENCE: Duration = Duration::from_millis(600);

const NODES: &str = "/api/v1/nodes";

/// What the server does, one after the other; what comes after the last is like the last.
#[derive(Debug, Clone)]
enum ServerAction {
    /// It lists these nodes, at this version.
    List(&'static [&'static str], u32),
    /// It watches: says this, and ends the watch.
    Say(Vec<Json>),
    /// It watches, says this, and nothing ever after.
    Hang(Vec<Json>),
    /// It answers nothing at all.
    Silent,
    /// It answers with this status.
    Refuse(u16),
}

/// An API server of nodes; of everything else it has none.
struct WatchServer {
    url: String,
    acts: Mutex<BTreeMap<&'static str, Vec<ServerAction>>>,
    /// What was asked of nodes.
    asked: Mutex<Vec<String>>,
}

impl WatchServer {
    fn start(lists: Vec<ServerAction>, watches: Vec<ServerAction>) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let acts = Mutex::new([("list", lists), ("watch", watches)].into());
        let server = Arc::new(Self { url, acts, asked: Mutex::default() });
        let serving = Arc::clone(&server);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = Arc::clone(&serving);
                // A client that goes away in the middle is no failure of anybody here.
                std::thread::spawn(move || serving.serve(&stream).ok());
            }
        });
        server
    }

    fn next(&self, verb: &'static str) -> ServerAction {
        let mut acts = self.acts.lock().unwrap_or_else(PoisonError::into_inner);
        let left = acts.get_mut(verb).expect("told");
        if left.len() > 1 { left.remove(0) } else { left[0].clone() }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
                self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(path);
            }
            let act = match (of_nodes, watches) {
                (true, true) => self.next("watch"),
                (true, false) => self.next("list"),
                (false, true) => ServerAction::Hang(Vec::new()),
                (false, false) => ServerAction::List(&[], 1),
            };
            let (said, ends) = match act {
                ServerAction::List(names, version) => {
                    let items: Vec<Json> = names.iter().map(|name| node(name, version)).collect();
                    let version = version.to_string();
                    let list = json!({ "kind": "NodeList", "apiVersion": "v1",
                        "metadata": { "resourceVersion": version }, "items": items });
                    write!(stream, "{}", whole(200, &list))?;
                    continue;
                }
                ServerAction::Refuse(code) => {
                    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure",
                        "message": "not now", "reason": "Down", "code": code });
                    write!(stream, "{}", whole(code, &status))?;
                    continue;
                }
                ServerAction::Silent => {
                    std::thread::sleep(PATIENCE);
                    return Ok(());
                }
                ServerAction::Say(said) => (said, true),
                ServerAction::Hang(said) => (said, false),
            };
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
            write!(stream, "{head}transfer-encoding: chunked\r\n\r\n")?;
            for event in said {
                let line = format!("{event}\n");
                write!(stream, "{:x}\r\n{line}\r\n", line.len())?;
            }
            if !ends {
                std::thread::sleep(PATIENCE);
                return Ok(());
            }
            write!(stream, "0\r\n\r\n")?;
        }
    }
}

fn whole(code: u16, body: &Json) -> String {
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

/// Waits until exactly these nodes are shown, and returns how often they were not shown at all.
async fn until(watched: &WatchedCluster, names: &[&str]) -> u32 {
    let (begun, mut errors) = (Instant::now(), 0);
    loop {
        match watched.objects().await {
            Ok(objects) => {
                let shown: Vec<String> =
                    objects.nodes.iter().map(|node| node.name.to_string()).collect();
                if shown == names {
                    return errors;
                }
                assert!(begun.elapsed() < PATIENCE, "{names:?}, not {shown:?}");
            }
            Err(error) => {
                errors += 1;
                assert!(begun.elapsed() < PATIENCE, "{names:?}: {error}");
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn watch(server: &WatchServer) -> WatchedCluster {
    watch_for(server, SILENCE)
}

/// Watches with a client that waits so long for a word.
fn watch_for(server: &WatchServer, silence: Duration) -> WatchedCluster {
    let config = Config::new(server.url.parse().expect("a URL"));
    let kubernetes = Kubernetes::with_timeout(config, silence).expect("a client");
    WatchedCluster::start(kubernetes, mpsc::channel(8).0)
}

#[test]
fn expired_watch_restarts_from_full_list() {
    let server = WatchServer::start(
        vec![ServerAction::List(&["a"], 5), ServerAction::List(&["b", "c"], 9)],
        vec![
            // In the middle of it: what was told before counts until the list is there.
            ServerAction::Say(vec![event("ADDED", &node("lost", 6)), expired()]),
            ServerAction::Hang(vec![event("ADDED", &node("d", 10))]),
        ],
    );
    runtime().block_on(async {
        let watched = watch(&server);
        until(&watched, &["b", "c", "d"]).await;
        let asked = server.asked();
        let opened: Vec<&String> = asked.iter().filter(|p| p.contains("watch=true")).collect();
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
            ServerAction::Say(vec![bookmark(70)]),
            // One that lags behind what was shown already takes nothing back.
            ServerAction::Say(vec![event("ADDED", &node("b", 80)), bookmark(80)]),
            ServerAction::Hang(vec![
                event("MODIFIED", &node("b", 81)),
                event("DELETED", &node("a", 82)),
            ]),
        ],
    );
    runtime().block_on(async {
        let watched = watch(&server);
        until(&watched, &["b"]).await;
        let asked = server.asked();
        let from = |n: usize| asked.iter().filter(|p| p.contains("watch=true")).nth(n).cloned();
        // A watch that was begun anew would begin at the version of a list.
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
        vec![ServerAction::Hang(Vec::new())],
    );
    runtime().block_on(async {
        let watched = watch(&server);
        until(&watched, &["a"]).await;
        // Not a byte comes, though the list is another by now.
        let begun = Instant::now();
        until(&watched, &["b"]).await;
        assert!(begun.elapsed() < SILENCE * 8, "{:?}", begun.elapsed());
    });
    let server = WatchServer::start(
        vec![ServerAction::List(&["a"], 5), ServerAction::Refuse(503), ServerAction::Silent],
        vec![ServerAction::Say(vec![expired()])],
    );
    runtime().block_on(async {
        let watched = watch(&server);
        let begun = Instant::now();
        // Never an empty cluster, nor the old one for ever.
        loop {
            match watched.objects().await {
                Ok(objects) => assert_eq!(objects.nodes.len(), 1),
                Err(_) => break,
            }
            assert!(begun.elapsed() < PATIENCE, "what cannot be read is shown");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(watched.objects().await.is_err(), "and it stays so");
    });
}

#[test]
fn failing_watch_restarts_with_backoff() {
    let at_once = || ServerAction::Say(Vec::new());
    // What comes after some of them has the next begin at once.
    let says = ServerAction::Say(vec![event("ADDED", &node("b", 6))]);
    let server = WatchServer::start(
        vec![ServerAction::List(&["a"], 5), ServerAction::List(&["a", "b"], 6)],
        vec![at_once(), at_once(), says, at_once()],
    );
    runtime().block_on(async {
        let watched = watch(&server);
        until(&watched, &["a", "b"]).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let asked = server.asked();
        let begun = asked.iter().filter(|path| path.contains("watch=true")).count();
        // After 0.1, 0.3 and 0.7 s; and after 0.1, 0.3, 0.7, 1.5, 3.1 s.
        assert!((6..=12).contains(&begun), "{begun}");
        // What was told before such a watch is shown, or listed.
        until(&watched, &["a", "b"]).await;
    });
}

#[test]
fn state_is_relisted_after_failing_watches() {
    // The last one lasts, and says nothing of what came while none of them told anything.
    let at_once = || ServerAction::Say(Vec::new());
    let server = WatchServer::start(
        vec![ServerAction::List(&["a"], 5), ServerAction::List(&["a", "b"], 6)],
        vec![at_once(), at_once(), at_once(), at_once(), ServerAction::Hang(Vec::new())],
    );
    runtime().block_on(async {
        let watched = watch_for(&server, PATIENCE);
        // After 0.1, 0.3, 0.7 and 1.5 s. Nobody asks meanwhile, who would be answered from a list of their own.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let shown = watched.objects().await.expect("it is shown");
        let shown: Vec<&str> = shown.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(shown, ["a", "b"]);
        let lists = server.asked().iter().filter(|path| !path.contains("watch=true")).count();
        assert_eq!(lists, 2, "it is listed once, and shown from then on");
    });
}
