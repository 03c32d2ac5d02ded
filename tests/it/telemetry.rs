//! Traces of the controller in a collector, and its logs as JSON.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::Duration;

use serde_json::Value as Json;

use crate::binary::Workspace;

/// Answers requests until `GET /end`, and returns the bodies.
fn collector(listener: TcpListener) -> std::thread::JoinHandle<Vec<Json>> {
    std::thread::spawn(move || {
        let mut bodies = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.expect("a client");
            stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
            let (mut text, mut buffer) = (Vec::new(), vec![0; 65_536]);
            loop {
                let all = String::from_utf8_lossy(&text).into_owned();
                if let Some((head, body)) = all.split_once("\r\n\r\n") {
                    let length = head.to_ascii_lowercase();
                    let length = length.split("content-length: ").nth(1).map_or("", |rest| rest);
                    let length: usize =
                        length.lines().next().and_then(|n| n.trim().parse().ok()).unwrap_or(0);
                    if body.len() >= length {
                        if head.starts_with("GET /end") {
                            return bodies;
                        }
                        assert!(head.starts_with("POST /v1/traces"), "{head}");
                        bodies.push(serde_json::from_str(body).expect("JSON"));
                        break;
                    }
                }
                let n = stream.read(&mut buffer).expect("a request");
                assert!(n > 0, "the connection ended early");
                text.extend_from_slice(&buffer[..n]);
            }
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
            stream.write_all(answer.as_bytes()).expect("sent");
        }
        bodies
    })
}

#[test]
fn collector_receives_linked_controller_spans() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let collected = collector(listener);
    let mut workspace = Workspace::example("quickstart");
    let endpoint = format!("http://{address}");
    workspace.variables.insert("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), endpoint);
    let result = workspace.run(&["run", "--mode", "full", "--once", "--log-format", "json"]);
    assert_eq!(result.code, Some(0), "{}", result.err);
    let mut last = std::net::TcpStream::connect(address).expect("it listens");
    last.write_all(b"GET /end HTTP/1.1\r\n\r\n").expect("sent");
    let bodies = collected.join().expect("it ends");
    let spans: Vec<&Json> = bodies
        .iter()
        .filter_map(|body| body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array())
        .flatten()
        .collect();
    let spans_named = |name: &'static str| spans.iter().filter(move |span| span["name"] == name);
    for name in ["observe", "read", "step", "plan", "apply", "effect"] {
        assert!(spans_named(name).next().is_some(), "no span {name} among {}", spans.len());
    }
    let parent = |span: &Json| {
        spans
            .iter()
            .find(|other| other["spanId"] == span["parentSpanId"])
            .map(|p| p["name"].clone())
    };
    assert!(
        spans_named("observe").all(|span| parent(span).is_none()),
        "an observation is the root of a trace"
    );
    assert!(spans_named("plan").all(|span| parent(span) == Some("step".into())));
    assert!(spans_named("step").any(|span| parent(span) == Some("observe".into())));
    assert!(spans_named("step").any(|span| parent(span) == Some("plan".into())));
    let digest = |span: &&&Json| span["attributes"].to_string().contains("sha256:");
    assert!(
        spans_named("plan").any(|span| digest(&span))
            && spans_named("apply").all(|span| digest(&span))
    );
    // The JSON log of the same run.
    let lines: Vec<Json> =
        result.err.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let events =
        |event: &str| lines.iter().filter(|line| line["event"] == event).collect::<Vec<_>>();
    assert!(lines.iter().all(|line| line["time"].is_string() && line["level"].is_string()));
    assert!(
        events("plan_changed")
            .iter()
            .any(|line| line["plan"].as_str().is_some_and(|p| p.starts_with("sha256:")))
    );
    let messages: std::collections::BTreeSet<_> =
        events("plan_changed").iter().map(|line| line["message"].to_string()).collect();
    assert_eq!(messages.len(), 1, "the message is constant: {messages:?}");
    assert!(events("revision_served").iter().all(|line| line["errors"] == 0), "{}", result.err);
    let first = events("plan_changed").first().copied().expect("a plan");
    let cause = first["cause"].as_str().expect("a cause");
    assert!(first["add"].as_u64() > Some(0) && cause.contains(" pods have no room: "), "{first}");
    assert!(!events("applied").is_empty() && !events("change").is_empty(), "{}", result.err);
    assert!(
        events("change").iter().all(|line| line["step"].is_string() && line["outcome"] == "done")
    );
}

#[test]
fn log_of_an_unreachable_collector_has_no_credentials() {
    for endpoint in ["http://user:PASSWORD@127.0.0.1:9/in?token=TOKEN", "http://user:PASSWORD@[::1"]
    {
        let mut workspace = Workspace::example("quickstart");
        let name = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT".to_owned();
        workspace.variables.insert(name, endpoint.to_owned());
        let result = workspace.run(&["run", "--once", "--log-format", "json"]);
        assert!(result.err.contains("traces cannot be sent"), "{}", result.err);
        for secret in ["PASSWORD", "TOKEN"] {
            assert!(!result.err.contains(secret), "{}", result.err);
        }
    }
}
