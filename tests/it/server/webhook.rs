//! Webhooks over HTTP: signatures, their effect, and their limits.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use fleetwright::controller::StatusPublisher;
use fleetwright::server::http::{
    HttpServer, PageSource, ServerConfig, Webhook, WebhookSecrets, listen,
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tokio::sync::mpsc;

use super::statuses::empty;

const SECRET: &str = "correct horse battery staple";
const PUSH: &str = r#"{"ref":"refs/heads/main","after":"0123"}"#;

struct WebhookServer {
    server: HttpServer,
    pushed: mpsc::Receiver<()>,
    _publisher: StatusPublisher,
}

impl WebhookServer {
    fn new() -> Self {
        let (publisher, reader) = StatusPublisher::new(empty());
        let (sender, pushed) = mpsc::channel(1);
        let secrets = WebhookSecrets::parse(&format!("the former secret of the hook\n{SECRET}\n"))
            .expect("two");
        let hook = Some(Webhook { secrets, push_hints: sender });
        let config = ServerConfig {
            webhook: hook,
            ..ServerConfig::new(reader, PageSource::Controller(None))
        };
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        Self { server: listen(any_port, config).expect("a port"), pushed, _publisher: publisher }
    }

    /// Sends a request with `head` and `body`, and returns the response.
    fn send(&self, head: &str, body: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.server.address()).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        let head = format!("{head}\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("sent");
        // The server may close a rejected connection before the body is sent.
        let _ = stream.write_all(body);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn post(&self, body: &str, signature: &str, more: &str) -> String {
        let length = body.len();
        let head = format!(
            "POST /webhook HTTP/1.1\r\nContent-Length: {length}\r\nX-Hub-Signature-256: \
             {signature}\r\n{more}"
        );
        self.send(&head, body.as_bytes())
    }

    fn received_push(&mut self) -> bool {
        self.pushed.try_recv().is_ok()
    }
}

fn signed(secret: &str, body: &[u8]) -> String {
    let mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("any length");
    let digest = mac.chain_update(body).finalize().into_bytes();
    digest.iter().fold("sha256=".to_owned(), |digits, byte| format!("{digits}{byte:02x}"))
}

const ONE: &str = "X-GitHub-Delivery: 72d3162e-cc78-11e3-81ab-4c9367dc0958\r\nX-GitHub-Event: push";
const TWO: &str = "X-GitHub-Delivery: 72d3162e-cc78-11e3-81ab-4c9367dc0959\r\nX-GitHub-Event: push";
const PING: &str = "X-GitHub-Delivery: 1\r\nX-GitHub-Event: ping";

#[test]
fn only_signed_push_triggers_refresh() {
    let mut server = WebhookServer::new();
    let valid = signed(SECRET, PUSH.as_bytes());
    for (signature, head, code, is_push) in [
        (signed("another secret entirely", PUSH.as_bytes()), ONE, 401, false),
        (signed(SECRET, b"another body"), ONE, 401, false),
        (format!("{}0", &valid[..valid.len() - 1]), ONE, 401, false),
        (valid.replace("sha256", "sha1"), ONE, 401, false),
        (valid.clone(), "X-GitHub-Event: push", 400, false),
        // Rejected deliveries are not remembered.
        (valid.clone(), ONE, 202, true),
        // The same push again, with the same and with another delivery id.
        (valid.clone(), ONE, 200, false),
        (valid, TWO, 200, false),
    ] {
        let answer = server.post(PUSH, &signature, head);
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{signature} {head}: {answer}");
        assert!(!answer.contains("horse"), "{answer}");
        assert_eq!(server.received_push(), is_push, "{signature} {head}: {answer}");
    }
    // A ping, signed with the older secret.
    let answer = server.post("{}", &signed("the former secret of the hook", b"{}"), PING);
    assert!(answer.starts_with("HTTP/1.1 200") && !server.received_push(), "{answer}");
    for n in 0..5 {
        let body = format!("{{\"n\":{n}}}");
        let answer = server.post(&body, &signed(SECRET, body.as_bytes()), ONE);
        assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
    }
    assert!(
        server.received_push() && !server.received_push(),
        "one pending refresh covers all pushes"
    );
}

#[test]
fn oversized_or_unauthenticated_requests_are_closed() {
    let mut server = WebhookServer::new();
    let large = "x".repeat((1 << 20) + 1);
    let answer = server.post(&large, &signed(SECRET, large.as_bytes()), ONE);
    assert!(answer.starts_with("HTTP/1.1 413") || answer.is_empty(), "{answer}");
    let fits = "x".repeat(1 << 20);
    let answer = server.post(&fits, &signed(SECRET, fits.as_bytes()), TWO);
    assert!(answer.starts_with("HTTP/1.1 202") && server.received_push(), "{answer}");
    // The body is not read, independent of its stated length.
    let head = "POST /webhook HTTP/1.1\r\nContent-Length: 99999999999";
    let answer = server.send(head, b"");
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    // A chunked body without an end.
    let signature = signed(SECRET, b"");
    let head = format!(
        "POST /webhook HTTP/1.1\r\nTransfer-Encoding: chunked\r\nX-Hub-Signature-256: {signature}\r\n{ONE}"
    );
    let piece = format!("100000\r\n{fits}\r\n");
    let answer = server.send(&head, piece.repeat(3).as_bytes());
    assert!(answer.starts_with("HTTP/1.1 413") || answer.is_empty(), "{answer}");
    for (head, code) in [
        ("GET /webhook HTTP/1.1", 404),
        ("PUT /webhook HTTP/1.1\r\nContent-Length: 0", 405),
        ("POST /webhook/ HTTP/1.1\r\nContent-Length: 0", 405),
    ] {
        let answer = server.send(head, b"");
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{head}: {answer}");
    }
    assert!(!server.received_push());
}
