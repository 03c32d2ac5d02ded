//! The page of the controller, as text and in a real browser if one is installed.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fleetwright::controller::{Blocked, BlockedReason, Status, StatusPublisher};
use fleetwright::plan::wire::Action;
use fleetwright::server::http::{HttpServer, PageSource, ServerConfig, listen};
use fleetwright::server::page::{PageKind, StatusPage, page};

use crate::browser::{Viewport, open};

use super::statuses::{HOSTILE, busy, empty, failing, starting};

pub(super) const CONTROLLER: PageKind = PageKind::Controller { takes_requests: true };

pub(super) fn render_page(status: &Status, kind: PageKind) -> String {
    page(&StatusPage { status, forecast: None, kind })
}

#[test]
fn page_shows_problems_first() {
    let html = render_page(&failing(), CONTROLLER);
    let position = |text: &str| html.find(text).unwrap_or_else(|| panic!("{text}\n{html}"));
    let mut last = 0;
    for text in [
        "<strong>Blocked: breaker ineffective-launches latched</strong>",
        "121 of 180",
        "pending pods, oldest 31m",
        "standby of fleetwright-7d9-zzzzz",
        "Breaker ineffective-launches latched",
        "<strong>Suspended</strong> by bob@example.com",
        "are bypassed</strong> by carol@example.com",
        "The repository cannot be read since 2026-11-21 11:16:00 UTC (44 times in a row",
        "is not served yet: CI has not applied it yet",
        "ec2 could not be read: RequestLimitExceeded",
        "Persisting the state fails since 2026-11-21 11:16:00 UTC (19 times, last at",
        "Terminating i-0a1b2c3d4e5f60718 fails since",
        "Pool general launches nothing until",
        "The inputs have errors",
        "Unschedulable pods",
        "<strong>4 changes blocked by: an error of the plan</strong>",
        "Draining instances",
        "id=\"requests\"",
        "id=\"changes\"",
        "id=\"filters\"",
        "id=\"nodes\"",
        "Cost over time",
        "id=\"history\"",
        "refused: the world has moved",
        "Nodes that take pods again",
    ] {
        let at = position(text);
        assert!(at > last, "{text} is too early");
        last = at;
    }
}

/// Returns the sentence of the verdict.
fn verdict(status: &Status, kind: PageKind) -> String {
    let html = render_page(status, kind);
    let (_, rest) = html.split_once("id=\"verdict\"").expect("a verdict");
    let (_, rest) = rest.split_once("<strong>").expect("a sentence");
    rest.split("</strong>").next().expect("an end").to_owned()
}

#[test]
fn verdict_says_what_the_controller_does_or_waits_for() {
    let with = |status: Status, change: fn(&mut Status)| {
        let mut status = status;
        change(&mut status);
        verdict(&status, CONTROLLER)
    };
    let block = |status: &mut Status, reason: &BlockedReason| {
        let plan = status.plan.as_mut().expect("a plan");
        for row in &plan.plan.resource_changes {
            if row.change.actions == [Action::Delete] {
                let blocked = Blocked { reason: reason.clone(), message: String::new() };
                plan.blocked.insert(row.address.clone(), blocked);
            }
        }
        status.in_progress.clear();
    };
    assert_eq!(verdict(&starting(), CONTROLLER), "Planning: the repository was not read yet");
    assert_eq!(verdict(&empty(), CONTROLLER), "In sync");
    assert_eq!(verdict(&busy(), CONTROLLER), "Applying: 1 of 4 changes finished");
    let mut waiting = busy();
    block(&mut waiting, &BlockedReason::NotApproved { digest: "sha256:ab".into() });
    assert_eq!(verdict(&waiting, CONTROLLER), "Waiting for approval");
    block(&mut waiting, &BlockedReason::NotConfirmed { pool: "general".into() });
    assert_eq!(verdict(&waiting, CONTROLLER), "Waiting for confirmation of 12 removals");
    let mut budget = empty();
    let address = fleetwright::model::ids::Address::from("a");
    let blocked = Blocked { reason: BlockedReason::NotLeader, message: String::new() };
    budget.plan.as_mut().expect("a plan").blocked.insert(address, blocked);
    assert!(verdict(&budget, CONTROLLER).starts_with("Blocked by standby"));
    assert_eq!(
        with(busy(), |status| status.repository.reads.error =
            Some(("denied".to_owned(), status.now - jiff::SignedDuration::from_mins(5)))),
        "Degraded: repository not readable for 5m"
    );
    assert_eq!(
        with(busy(), |status| status.competing_autoscaler = Some("karpenter".to_owned())),
        "Blocked: a competing autoscaler runs"
    );
    assert_eq!(verdict(&empty(), PageKind::Preview), "In sync: no changes");
    let mut partial = empty();
    Arc::make_mut(&mut partial.plan.as_mut().expect("a plan").plan).complete = false;
    assert_eq!(verdict(&partial, CONTROLLER), "No changes in this part of the plan");
}

#[test]
fn nodes_show_drains_and_changes_in_progress() {
    let mut status = busy();
    let plan = status.plan.as_ref().expect("a plan").plan.clone();
    let kept = plan.resource_changes.iter().find(|row| row.change.actions == [Action::NoOp]);
    let id = kept.and_then(|row| row.change.before.as_ref()?.instance_id.clone());
    status.interrupted[0].instance = id.expect("an instance");
    let html = render_page(&status, CONTROLLER);
    assert!(html.contains("<b class=\"mark\">draining</b>"), "{html}");
    assert!(html.contains("draining for 1m: spot-interruption, terminates in 1m"), "{html}");
    assert_eq!(html.matches("<b class=\"mark\">removing</b>").count(), 3);
    assert!(html.contains("<strong>1 finished, 3 in progress</strong> for 2m"), "{html}");

    assert_eq!(html.matches("<b class=\"mark\">remove, blocked</b>").count(), 8);
}

#[test]
fn page_shows_origin_of_the_commit_and_limits_of_pools() {
    let html = render_page(&busy(), CONTROLLER);
    assert!(html.contains("<dt>Author</dt><dd>Ann &lt;b&gt;</dd>"), "{html}");
    assert!(html.contains("<dt>Pull request</dt><dd>"), "{html}");
    assert!(html.contains("#12"), "{html}");
    let (_, limits) = html.split_once("<span>limits: ").expect("limits");
    assert!(limits.contains(" of 250 nodes, ") && limits.contains(" of 2000 vCPU"), "{limits:.80}");
}

#[test]
fn external_text_is_escaped_on_the_page() {
    let html = render_page(&failing(), CONTROLLER);
    assert!(html.contains("&lt;/script&gt;&lt;script&gt;alert(1)"), "it is escaped");
    assert_eq!(html.matches("<script").count(), 2, "only the scripts of the page");
    assert!(!html.contains(HOSTILE) && !html.contains("\" onload=") && !html.contains('\u{202e}'));
}

#[test]
fn unreadable_objects_are_reported_on_the_page() {
    let unread = Some(format!("list records failed: denied {HOSTILE}"));
    for status in [
        Status { history_error: unread.clone(), ..busy() },
        Status { history_error: unread, ..starting() },
    ] {
        let html = render_page(&status, CONTROLLER);
        assert!(html.contains("may be missing here: list records failed: denied"), "{html}");
        assert!(!html.contains(HOSTILE));
    }
}

#[test]
fn empty_cluster_has_a_page() {
    let html = render_page(&starting(), CONTROLLER);
    assert!(
        html.contains("The cluster was not observed yet.")
            && html.contains("No plan was made yet.")
    );
    let html = render_page(&empty(), CONTROLLER);
    assert!(html.contains("Nothing changes.") && html.contains("There is no node"));
    assert!(!html.contains("class=\"alert\""));
}

fn serve(status: Status) -> (StatusPublisher, HttpServer) {
    let (publisher, reader) = StatusPublisher::new(status);
    let config = ServerConfig::new(reader, PageSource::Controller(None));
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    (publisher, listen(any_port, config).expect("a port"))
}

/// Sends one request, and returns head and body of the response.
fn send_request(address: SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    write!(stream, "{request}\r\nConnection: close\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_ascii_lowercase(), body.to_owned())
}

#[test]
fn each_route_returns_its_content() {
    let (publisher, server) = serve(starting());
    let get = |path: &str| {
        send_request(server.address(), &format!("GET {path} HTTP/1.1\r\nHost: localhost"))
    };
    assert!(get("/healthz").0.starts_with("http/1.1 200"));
    let (head, body) = get("/readyz");
    assert!(head.starts_with("http/1.1 503"), "{head}");
    assert_eq!(body, "the repository was not read yet\nthe cluster was not observed yet\n");
    publisher.publish(empty());
    assert!(get("/readyz").0.starts_with("http/1.1 200"));
    let (head, body) = get("/metrics");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("\nfleetwright_leader 1\n"), "{body}");
    let (head, body) = get("/");
    assert!(body.contains("<h1>prod-eu1 "), "{body}");
    assert!(head.contains("content-security-policy: default-src 'none'; "), "{head}");
    assert!(!head.contains("unsafe-inline") && head.contains("frame-ancestors 'none'"), "{head}");
    assert!(
        head.contains("x-content-type-options: nosniff") && head.contains("no-store"),
        "{head}"
    );
    assert!(get("/../etc/passwd").0.starts_with("http/1.1 404"));
    for (request, code) in [
        ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0", 405),
        ("POST /requests HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0", 405),
        // Host names of other sites are rejected.
        ("GET / HTTP/1.1\r\nHost: evil.example", 421),
        ("GET / HTTP/1.1\r\nHost: localhost.evil.example:80", 421),
    ] {
        let (head, _) = send_request(server.address(), request);
        assert!(head.starts_with(&format!("http/1.1 {code}")), "{request}: {head}");
    }
}

#[test]
fn event_stream_sends_each_step_to_bounded_readers() {
    let (publisher, server) = serve(starting());
    let request = "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut first = TcpStream::connect(server.address()).expect("it listens");
    first.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    first.write_all(request.as_bytes()).expect("sent");
    let mut received = String::new();
    let mut read_until = |text: &str| {
        let mut buffer = [0; 1024];
        while !received.contains(text) {
            let n = first.read(&mut buffer).expect("an event");
            assert!(n > 0, "it ended: {received}");
            received.push_str(&String::from_utf8_lossy(&buffer[..n]));
        }
    };
    read_until("retry: 3000");
    publisher.publish(empty());
    read_until("event: status\ndata: 2026-11-21T12:00:00Z");
    // Further clients reach the limit, and the next client is rejected.
    let mut others = Vec::new();
    for _ in 0..63 {
        let mut other = TcpStream::connect(server.address()).expect("it listens");
        other.write_all(request.as_bytes()).expect("sent");
        let mut head = [0; 12];
        other.read_exact(&mut head).expect("an answer");
        assert_eq!(&head, b"HTTP/1.1 200");
        others.push(other);
    }
    let (head, _) = send_request(server.address(), "GET /events HTTP/1.1\r\nHost: localhost");
    assert!(head.starts_with("http/1.1 503"), "{head}");
}

#[test]
fn browser_shows_each_cluster_state_without_errors() -> anyhow::Result<()> {
    for (name, status) in [("empty", empty()), ("busy", busy()), ("failing", failing())] {
        let (_publisher, server) = serve(status);
        let url = format!("http://{}/", server.address());
        for (theme, dark) in [("light", false), ("dark", true)] {
            let Some(browser_page) = open(&url, Viewport { dark, ..Viewport::DESK }) else {
                return Ok(());
            };
            // The scripts ran, so the elements that need them are visible.
            let hidden = if name == "empty" { "1" } else { "0" };
            assert_eq!(
                browser_page.ask("document.querySelectorAll('[data-script][hidden]').length")?,
                hidden,
                "a cluster without nodes has no filters"
            );
            assert!(browser_page.document()?.contains("prod-eu1"), "{name}");
            let cut = "[...document.querySelectorAll('.verdict, .totals, .facts, .pool')]\
                       .filter(one => one.scrollWidth > one.clientWidth).map(one => one.outerHTML).join()";
            assert_eq!(browser_page.ask(cut)?, "", "{name}");
            assert!(
                browser_page.complaints().is_empty(),
                "{name}: {:#?}",
                browser_page.complaints()
            );
            // Screenshots are saved on request.
            if let Some(folder) = std::env::var_os("FLEETWRIGHT_PICTURES").map(PathBuf::from) {
                browser_page.picture(&folder.join(format!("{name}-{theme}.png")))?;
            }
        }
    }
    Ok(())
}

#[test]
fn open_page_follows_the_controller() -> anyhow::Result<()> {
    let (publisher, server) = serve(empty());
    let url = format!("http://{}/", server.address());
    let Some(browser_page) = open(&url, Viewport::DESK) else { return Ok(()) };
    assert!(!browser_page.document()?.contains("179 of 180"));
    publisher.publish(busy());
    browser_page.wait_for("179 of 180")?;
    assert!(browser_page.complaints().is_empty(), "{:#?}", browser_page.complaints());
    Ok(())
}
