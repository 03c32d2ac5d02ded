//! The targets: a reader, its inputs, and what it has to hold.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use fleetwright::manifest::{kustomization_references, read, read_fleet, read_live_objects};
use fleetwright::model::desired::{Desired, Fleet, Problem, Tree, TreeFile};
use fleetwright::model::observed::read_world;
use fleetwright::model::units::Quantity;
use fleetwright::plan::{Approvals, read_plan};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::BoxedStrategy;
use serde_json::{Value as Json, json};

use super::{TEXTS, corpus, mutated_bytes, mutated_json, saved_inputs};

/// A reader under test.
pub(super) struct Target {
    /// Name of its directory in the corpus.
    pub(super) name: &'static str,
    /// Returns the strategy of its inputs.
    pub(super) inputs: fn() -> BoxedStrategy<Vec<u8>>,
    /// Reads an input, and returns the class of the outcome.
    pub(super) run: fn(&[u8]) -> String,
}

/// Returns all targets.
pub(super) fn all() -> Vec<Target> {
    let targets = vec![
        MANIFESTS,
        SETTINGS,
        LIVE_OBJECTS,
        QUANTITIES,
        SCHEDULES,
        PLACEHOLDERS,
        PLANS,
        WORLDS,
        APPROVALS,
    ];
    #[cfg(feature = "page")]
    let targets = targets.into_iter().chain([webhooks::WEBHOOKS]).collect();
    targets
}

#[cfg(feature = "page")]
pub(super) use webhooks::WEBHOOKS;

/// Returns an outcome without the parts that depend on the input.
fn class(text: &str) -> String {
    let outside = text.split(['`', '"']).step_by(2).collect::<Vec<_>>().join("_");
    outside.chars().filter(|c| !c.is_ascii_digit()).take(120).collect()
}

fn classes(problems: &[Problem]) -> String {
    let all: BTreeSet<String> = problems.iter().map(|one| class(&one.message)).collect();
    all.into_iter().collect::<Vec<_>>().join("|")
}

fn class_of<T, E: Debug>(result: &Result<T, E>) -> String {
    result.as_ref().map_or_else(|error| class(&format!("{error:?}")), |_| "read".to_owned())
}

fn tree(files: &[(&str, &[u8])]) -> Tree {
    let file = |(path, bytes): &(&str, &[u8])| TreeFile {
        path: (*path).into(),
        content: Ok(Arc::from(*bytes)),
    };
    Tree { files: files.iter().map(file).collect() }
}

/// Reads twice, which has to give the same.
fn read_twice(reads: impl Fn() -> Desired) -> String {
    let desired = reads();
    assert_eq!(format!("{desired:?}"), format!("{:?}", reads()));
    classes(&desired.problems)
}

fn read_manifest(text: &[u8]) -> String {
    read_twice(|| read(&tree(&[("a.yaml", text)]), &Fleet::default()))
}

/// Returns these files, and those of the corpus.
fn with_saved(files: Vec<Vec<u8>>, target: &str) -> Vec<Vec<u8>> {
    files.into_iter().chain(saved_inputs(target)).collect()
}

fn json_of(files: &[Vec<u8>]) -> Vec<Json> {
    files.iter().filter_map(|bytes| serde_json::from_slice(bytes).ok()).collect()
}

/// The reader of YAML, and that of each kind of object.
pub(super) const MANIFESTS: Target = Target {
    name: "manifests",
    inputs: || {
        let files = with_saved(corpus("examples", &[".yaml", ".yml"]), "manifests");
        // JSON is YAML.
        prop_oneof![mutated_bytes(files), mutated_json(objects())].boxed()
    },
    run: |bytes| {
        let _ = kustomization_references(bytes);
        read_manifest(bytes)
    },
};

pub(super) const SETTINGS: Target = Target {
    name: "settings",
    inputs: || mutated_bytes(with_saved(corpus("examples", &["fleetwright.yaml"]), "settings")),
    run: |bytes| {
        let (_, problems) = read_fleet(&tree(&[("fleetwright.yaml", bytes)]));
        assert!(problems.iter().all(|problem| problem.message.len() < 4_000), "{problems:?}");
        classes(&problems)
    },
};

/// Returns the objects of the examples, as an API server returns them.
fn objects() -> Vec<Json> {
    let files = corpus("examples", &[".yaml"]);
    let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    let documents = files.iter().map(text).collect::<Vec<_>>();
    let documents = documents.iter().flat_map(|text| text.split("\n---\n"));
    let parsed = documents.filter_map(|part| serde_saphyr::from_str::<Json>(part).ok());
    let found: Vec<Json> = parsed.filter(|object| object["kind"].is_string()).collect();
    assert!(found.len() > 20, "{}", found.len());
    found
}

pub(super) const LIVE_OBJECTS: Target = Target {
    name: "live-objects",
    inputs: || {
        let saved = json_of(&saved_inputs("live-objects"));
        mutated_json(objects().into_iter().chain(saved).collect())
    },
    run: |bytes| {
        let Ok(object) = serde_json::from_slice::<Json>(bytes) else { return String::new() };
        let good = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "good", "namespace": "web" },
            "spec": {
                "selector": { "matchLabels": { "app": "good" } },
                "template": {
                    "metadata": { "labels": { "app": "good" } },
                    "spec": { "containers": [{ "name": "a", "image": "a" }] },
                },
            },
        });
        let is_other = object["metadata"]["name"] != "good";
        let desired = read_live_objects([&object, &good]);
        let is_read = desired.workloads.keys().any(|id| &*id.name == "good");
        assert!(is_read || !is_other, "an object changes another one");
        read_twice(|| read_live_objects([&object, &good]))
    },
};

/// Inserts, repeats and changes parts of short texts.
fn mutated_texts(target: &'static str, texts: &[&str]) -> BoxedStrategy<Vec<u8>> {
    let texts = texts.iter().chain(&TEXTS).map(|text| text.as_bytes().to_vec()).collect();
    let texts = with_saved(texts, target);
    let repeated = (select(texts.clone()), 0_usize..12).prop_map(|(text, n)| text.repeat(n));
    prop_oneof![mutated_bytes(texts), repeated].boxed()
}

/// Returns a deployment whose container requests `cpu`.
fn deployment(cpu: &str) -> Vec<u8> {
    let object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "a", "namespace": "web" },
        "spec": {
            "selector": { "matchLabels": { "app": "a" } },
            "template": {
                "metadata": { "labels": { "app": "a" } },
                "spec": { "containers": [{
                    "name": "a", "image": "a",
                    "resources": { "requests": { "cpu": cpu, "memory": cpu } },
                }] },
            },
        },
    });
    object.to_string().into_bytes()
}

pub(super) const QUANTITIES: Target = Target {
    name: "quantities",
    inputs: || mutated_texts("quantities", &["100m", "1.5Gi", "2e3", "12Ei", "1n", ".5", "+1"]),
    run: |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let read = text.parse::<Quantity>();
        if let Ok(quantity) = &read {
            let again = quantity.to_string().parse::<Quantity>();
            assert!(again.is_ok_and(|again| again == *quantity), "{quantity:?}");
            let (milli, units) = (quantity.ceil_milli(), quantity.ceil_units());
            assert!(if units > 0 { milli >= units } else { milli <= units }, "{quantity:?}");
        }
        format!("{} {}", class_of(&read), read_manifest(&deployment(&text)))
    },
};

pub(super) const SCHEDULES: Target = Target {
    name: "schedules",
    inputs: || {
        let texts =
            ["0 5 * * 1-5", "*/7 1,3 */2 JAN-MAR ?", "@hourly", "CRON_TZ=Asia/Tokyo 0 0 1 1 0"];
        mutated_texts("schedules", &texts)
    },
    run: |bytes| {
        let object = json!({
            "apiVersion": "batch/v1", "kind": "CronJob",
            "metadata": { "name": "a", "namespace": "web" },
            "spec": {
                "schedule": String::from_utf8_lossy(bytes),
                "jobTemplate": { "spec": { "template": { "spec": {
                    "restartPolicy": "Never", "containers": [{ "name": "a", "image": "a" }],
                } } } },
            },
        });
        read_manifest(object.to_string().as_bytes())
    },
};

pub(super) const PLACEHOLDERS: Target = Target {
    name: "placeholders",
    inputs: || {
        let texts = ["${A}", "${B:-${A:=x}}", "$${A}", "${A", "$A", "${A:-", "${{ A }}", "${1}"];
        mutated_texts("placeholders", &texts)
    },
    run: |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let flux = json!({
            "apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
            "metadata": { "name": "apps", "namespace": "flux-system" },
            "spec": {
                "path": "./apps", "prune": true, "interval": "1m",
                "sourceRef": { "kind": "GitRepository", "name": "flux-system" },
                "postBuild": { "substitute": { "A": "1", "B": "two" } },
            },
        });
        let flux = flux.to_string();
        let workload = deployment(&text);
        let files: [(&str, &[u8]); 3] = [
            ("flux.yaml", flux.as_bytes()),
            ("apps/a.yaml", &workload),
            // Not quoted, so that it may be no YAML.
            ("apps/b.yaml", bytes),
        ];
        read_twice(|| read(&tree(&files), &Fleet::default()))
    },
};

pub(super) const PLANS: Target = Target {
    name: "plans",
    inputs: || {
        let plans = json_of(&corpus("plans", &[".json"])).into_iter();
        let plans = plans.filter(|plan| plan["format_version"].is_string()).take(4);
        let files = with_saved(corpus("plans", &["quickstart.json"]), "plans");
        prop_oneof![mutated_json(plans.collect()), mutated_bytes(files)].boxed()
    },
    run: |bytes| {
        let read = read_plan(bytes);
        // The checksum covers every byte that is read, so a changed plan is refused.
        if let Ok(plan) = &read {
            let again = read_plan(plan.to_json().as_bytes()).expect("read again");
            assert_eq!(again.capacity.plan_id, plan.capacity.plan_id);
        }
        class_of(&read)
    },
};

pub(super) const WORLDS: Target = Target {
    name: "worlds",
    inputs: || {
        let worlds = json_of(&with_saved(corpus("examples", &["world.json"]), "worlds"));
        mutated_json(worlds)
    },
    run: |bytes| class_of(&read_world(bytes)),
};

pub(super) const APPROVALS: Target = Target {
    name: "approvals",
    inputs: || {
        let approval = json!({ "approvals": [{
            "by": "ann", "at": "2026-11-26T10:00:00Z", "digest": "sha256:ab", "plan_id": "sha256:cd",
            "signature": "ef",
        }] });
        assert!(serde_json::from_value::<Approvals>(approval.clone()).is_ok());
        let saved = json_of(&saved_inputs("approvals"));
        mutated_json(saved.into_iter().chain([approval]).collect())
    },
    run: |bytes| class_of(&serde_json::from_slice::<Approvals>(bytes)),
};

#[cfg(feature = "page")]
mod webhooks {
    //! Requests to the webhook of a controller, byte by byte.

    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpStream};
    use std::sync::LazyLock;
    use std::time::Duration;

    use fleetwright::controller::StatusPublisher;
    use fleetwright::server::http::{
        HttpServer, PageSource, ServerConfig, Webhook, WebhookSecrets, listen,
    };
    use hmac::{Hmac, KeyInit as _, Mac as _};
    use sha2::Sha256;
    use tokio::sync::mpsc;

    use super::{Target, class, mutated_texts};
    use crate::server::statuses::empty;

    const SECRET: &str = "correct horse battery staple";

    /// A request of a Git host, with a signature of its body.
    const PUSH: &str = concat!(
        "POST /webhook HTTP/1.1\r\nHost: localhost\r\nContent-Length: 26\r\n",
        "X-GitHub-Event: push\r\nX-GitHub-Delivery: 72d3162e-cc78-11e3-81ab-4c9367dc0958\r\n",
        "X-Hub-Signature-256: SIGNED\r\nConnection: close\r\n\r\n{\"ref\":\"refs/heads/main\"}\n",
    );

    static SERVER: LazyLock<SocketAddr> = LazyLock::new(|| {
        let (publisher, reader) = StatusPublisher::new(empty());
        let (sender, mut pushed) = mpsc::channel(1);
        let secrets = WebhookSecrets::parse(SECRET).expect("a secret");
        let config = ServerConfig {
            webhook: Some(Webhook { secrets, push_hints: sender }),
            ..ServerConfig::new(reader, PageSource::Controller(None))
        };
        let server: HttpServer = listen(([127, 0, 0, 1], 0).into(), config).expect("a port");
        let address = server.address();
        std::thread::spawn(move || {
            let _kept = (publisher, server);
            while pushed.blocking_recv().is_some() {}
        });
        address
    });

    /// Time for an answer. A request that is not complete has none.
    const ANSWER_WITHIN: Duration = Duration::from_millis(60);

    /// Sends bytes, and returns the answer.
    fn send(bytes: &[u8], within: Duration) -> Vec<u8> {
        let mut stream = TcpStream::connect(*SERVER).expect("it listens");
        stream.set_read_timeout(Some(within)).expect("set");
        // The server may close a rejected connection before everything is sent.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    }

    pub(in super::super) const WEBHOOKS: Target = Target {
        name: "webhooks",
        inputs: || {
            mutated_texts("webhooks", &[PUSH, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"])
        },
        run: |bytes| {
            let secrets = String::from_utf8_lossy(bytes);
            let _ = WebhookSecrets::parse(&secrets);
            let body =
                bytes.windows(4).position(|end| end == b"\r\n\r\n").map(|at| &bytes[at + 4..]);
            let mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).expect("any length");
            let digest = mac.chain_update(body.unwrap_or_default()).finalize().into_bytes();
            let signed = format!("sha256={}", hex::encode(digest));
            let request = secrets.replace("SIGNED", &signed);
            let answer =
                String::from_utf8_lossy(&send(request.as_bytes(), ANSWER_WITHIN)).into_owned();
            assert!(answer.is_empty() || answer.starts_with("HTTP/1."), "{answer}");
            assert!(!answer.starts_with("HTTP/1.1 500"), "{answer}");
            // It still answers others.
            let health = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            let health = send(health, Duration::from_secs(15));
            let health = String::from_utf8_lossy(&health);
            assert!(health.starts_with("HTTP/1.1 "), "{health:?} after {request:?}");
            let code = answer.get(9..12).unwrap_or_default().to_owned();
            format!("{code} {}", class(answer.rsplit("\r\n\r\n").next().unwrap_or_default()))
        },
    };
}
