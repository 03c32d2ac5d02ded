//! Operator requests over HTTP: forms of the page, authorization, and the browser that sends them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use fleetwright::controller::authorization::{Decision, OperatorRequest, PendingRequest};
use fleetwright::controller::{Blocked, BlockedReason, Breaker, Status, StatusPublisher};
use fleetwright::plan::wire::Action;
use fleetwright::server::http::{PageSource, ServerConfig, listen};
use fleetwright::server::page::PageKind;
use tokio::sync::mpsc::Receiver;

use crate::browser::{Viewport, open};

use super::page::{CONTROLLER, render_page};
use super::statuses::{HOSTILE, busy, failing, starting};

#[test]
fn request_forms_need_authentication() {
    for (kind, forms) in [
        (CONTROLLER, 3),
        (PageKind::Controller { takes_requests: false }, 0),
        (PageKind::Preview, 0),
    ] {
        assert_eq!(render_page(&busy(), kind).matches("<form").count(), forms, "{kind:?}");
    }
    let html = render_page(&failing(), CONTROLLER);
    assert!(html.contains("value=\"resume\"") && !html.contains("value=\"suspend\""));
    assert!(html.contains("value=\"end-break-glass\"") && !html.contains("value=\"break-glass\""));
}

/// Returns a cluster with eight unconfirmed removals and two latched breakers.
fn with_pending_decisions() -> Status {
    let mut status = busy();
    let since = status.now;
    for blocked in status.plan.as_mut().expect("a plan").blocked.values_mut() {
        let expected = "pool general requires confirmation of each removal".to_owned();
        *blocked = Blocked {
            reason: BlockedReason::NotConfirmed { pool: "general".into() },
            message: expected,
        };
    }
    let breaker = |name: &str, removes| {
        let why = format!("8 of 12 instances {HOSTILE}");
        Breaker { name: name.to_owned(), since, why, removes }
    };
    let breakers = vec![breaker("mass-removal", Some(8)), breaker("ineffective-launches", None)];
    Status { breakers, ..status }
}

/// Returns the instances that the page offers for confirmation.
fn confirmable_instances(html: &str) -> Vec<String> {
    let options = html.split("<option value=\"i-").skip(1);
    options.map(|rest| format!("i-{}", rest.split('"').next().expect("a value"))).collect()
}

#[test]
fn pending_decisions_have_forms() {
    let html = render_page(&with_pending_decisions(), CONTROLLER);
    assert_eq!(html.matches("<form").count(), 6);
    for name in ["mass-removal", "ineffective-launches"] {
        assert!(html.contains(&format!("name=\"breaker\" readonly value=\"{name}\"")), "{html}");
    }
    assert_eq!(html.matches("removes at most 8 instances").count(), 1);
    assert!(!html.contains(HOSTILE));
    let status = with_pending_decisions();
    let plan = &status.plan.as_ref().expect("a plan").plan;
    let instance_ids = confirmable_instances(&html);
    assert_eq!(instance_ids.len(), 8);
    for instance_id in instance_ids {
        let mut rows = plan.resource_changes.iter();
        let of = |row: &&fleetwright::plan::wire::ResourceChange| {
            let before = row.change.before.as_ref().and_then(|before| before.instance_id.as_ref());
            before.is_some_and(|id| id.as_str() == instance_id)
        };
        assert_eq!(rows.find(of).expect("a row").change.actions, [Action::Delete]);
    }
    // Without a plan nothing can be approved, but the controller can be suspended.
    let html = render_page(
        &Status { breakers: with_pending_decisions().breakers, ..starting() },
        CONTROLLER,
    );
    let forms = ["suspend", "break-glass", "reset\">", "reset\">"];
    assert_eq!(html.matches("<form").count(), forms.len());
    assert!(forms.iter().all(|form| html.contains(&format!("value=\"{form}"))), "{html}");
}

/// Sends a request of an operator with additional headers, and returns the response.
fn post(address: SocketAddr, body: &str, more: &str) -> String {
    let length = body.len();
    let head = format!(
        "POST /requests HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: \
         {length}{more}\r\n\r\n{body}"
    );
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(head.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

const BEARER: &str = "\r\nAuthorization: Bearer t";

/// Body, further headers, status and text of the response. The authorizer answers in this order.
const REQUESTS: &[(&str, &str, u16, &str)] = &[
    ("request=approve&digest=sha256%3Aab&token=t", "", 202, "passed to the controller as alice"),
    ("request=resume", BEARER, 401, "the cluster does not accept the token"),
    ("request=suspend&reason=a+b&minutes=60&token=t", "", 403, "bob may not suspend capacityplans"),
    ("request=reset&breaker=b&token=t", "", 503, "no answer"),
    ("request=reset&breaker=mass-removal&token=t", "", 400, "the field `digest` is missing"),
    ("request=approve&token=t", "", 400, "digest"),
    ("request=suspend&reason=&minutes=60&token=t", "", 400, "reason"),
    ("request=suspend&reason=r&minutes=-1&token=t", "", 400, "minutes"),
    ("request=delete-everything&token=t", "", 400, "request"),
    ("request=resume", "", 401, "token"),
    ("request=break-glass&minutes=60&reason=+&token=t", "", 400, "reason"),
    ("request=break-glass&minutes=60&token=t", "", 400, "reason"),
    ("request=break-glass&reason=r&token=t", "", 400, "minutes"),
    ("request=break-glass&reason=r&minutes=0&token=t", "", 400, "1 to 240 minutes"),
    ("request=break-glass&reason=r&minutes=241&token=t", "", 400, "1 to 240 minutes"),
    ("request=break-glass&reason=r&minutes=240", "", 401, "token"),
    ("request=break-glass&reason=r&minutes=240&token=t", "", 503, "no answer"),
    ("request=end-break-glass&token=t", "", 503, "no answer"),
    ("request=confirm&instance=i-1&token=t", "", 503, "no answer"),
    ("request=confirm&token=t", "", 400, "instance"),
    ("request=reset&token=t", "", 400, "breaker"),
];

#[test]
fn requests_are_authorized_with_the_token_of_the_user() {
    let (sender, mut requests) = tokio::sync::mpsc::channel(4);
    let (_publisher, reader) = StatusPublisher::new(busy());
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = ServerConfig::new(reader, PageSource::Controller(Some(sender)));
    let server = listen(any_port, config).expect("a port");
    let authorizer = std::thread::spawn(move || {
        let mut received_requests = Vec::new();
        while let Some(PendingRequest { token, request: operator_request, reply: answer, .. }) =
            requests.blocking_recv()
        {
            assert_eq!(format!("{token:?}"), "Token(…)");
            received_requests.push(operator_request);
            let decision = match received_requests.len() {
                1 => Decision::Accepted { who: "alice".to_owned() },
                2 => Decision::Unauthenticated,
                3 => Decision::Forbidden { who: "bob".to_owned(), verb: "suspend" },
                _ => Decision::Unavailable { why: "no answer".to_owned() },
            };
            answer.send(decision).expect("the server waits for the decision");
        }
        received_requests
    });
    let post = |body: &str, more: &str| post(server.address(), body, more);
    for (body, more, code, expected) in REQUESTS {
        let answer = post(body, more);
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{body}: {answer}");
        assert!(answer.contains(expected), "{body}: {answer}");
    }
    let large = "x".repeat(100_000);
    assert!(post(&large, "").starts_with("HTTP/1.1 413"));
    drop(server);
    let received_requests = authorizer.join().expect("the authorizer ends with the server");
    assert_eq!(received_requests[0], OperatorRequest::Approve { digest: "sha256:ab".into() });
    let lasts = jiff::SignedDuration::from_mins(60);
    assert_eq!(received_requests[2], OperatorRequest::Suspend { reason: "a b".to_owned(), lasts });
    let lasts = jiff::SignedDuration::from_mins(240);
    assert_eq!(received_requests[4], OperatorRequest::BreakGlass { reason: "r".to_owned(), lasts });
    assert_eq!(received_requests[5], OperatorRequest::EndBreakGlass);
    assert_eq!(received_requests[6], OperatorRequest::Confirm { instance: "i-1".into() });
    assert_eq!(received_requests.len(), 7, "invalid requests are not passed on");
}

/// Accepts the first request as carol. Returns it, and whether another one follows.
fn accept_one(mut requests: Receiver<PendingRequest>) -> JoinHandle<(OperatorRequest, bool)> {
    std::thread::spawn(move || {
        let PendingRequest { request, reply, .. } =
            requests.blocking_recv().expect("the page sends a request");
        reply
            .send(Decision::Accepted { who: "carol".to_owned() })
            .expect("the server waits for the decision");
        (request, requests.try_recv().is_ok())
    })
}

#[test]
fn break_glass_form_works_and_keeps_typed_text() -> anyhow::Result<()> {
    let (sender, requests) = tokio::sync::mpsc::channel(1);
    let (publisher, reader) = StatusPublisher::new(busy());
    let config = ServerConfig::new(reader, PageSource::Controller(Some(sender)));
    let server = listen(SocketAddr::from(([127, 0, 0, 1], 0)), config)?;
    let Some(browser_page) = open(&format!("http://{}/", server.address()), Viewport::DESK) else {
        return Ok(());
    };
    let field = |name: &str| format!("document.querySelector('#break-glass [name={name}]')");
    assert_eq!(browser_page.ask(&format!("{}.checkVisibility()", field("reason")))?, "false");
    browser_page.ask("document.querySelector('#other-requests summary').click()")?;
    browser_page.ask("document.querySelector('#break-glass summary').click()")?;
    // A request without a reason is not sent.
    browser_page.ask("document.querySelector('#break-glass button').click()")?;
    browser_page.ask(&format!("{}.focus()", field("reason")))?;
    browser_page.write("incident 4711")?;
    browser_page.ask(&format!("{}.focus()", field("token")))?;
    browser_page.write("t")?;
    browser_page.ask("document.activeElement.blur()")?;
    let mut later = busy();
    later.identity = "fleetwright-another".to_owned();
    publisher.publish(later.clone());
    std::thread::sleep(Duration::from_millis(1_500));
    publisher.publish(later);
    assert_eq!(browser_page.ask(&format!("{}.value", field("reason")))?, "incident 4711");
    let authorizer = accept_one(requests);
    browser_page.ask("document.querySelector('#break-glass button').click()")?;
    browser_page.wait_for("passed to the controller as carol")?;
    let lasts = jiff::SignedDuration::from_mins(30);
    let received_requests =
        OperatorRequest::BreakGlass { reason: "incident 4711".to_owned(), lasts };
    assert_eq!(
        authorizer.join().expect("the authorizer ends"),
        (received_requests, false),
        "the page sends one request"
    );
    assert!(browser_page.complaints().is_empty(), "{:#?}", browser_page.complaints());
    Ok(())
}

#[test]
fn page_confirms_a_removal_and_resets_a_breaker() -> anyhow::Result<()> {
    let second =
        confirmable_instances(&render_page(&with_pending_decisions(), CONTROLLER)).swap_remove(1);
    let digest = with_pending_decisions().plan.map(|plan| plan.digest().clone());
    assert!(digest.is_some(), "there is a plan");
    for (request, received_requests) in [
        ("confirm", OperatorRequest::Confirm { instance: second.as_str().into() }),
        ("reset", OperatorRequest::Reset { breaker: "mass-removal".to_owned(), digest }),
    ] {
        let (sender, requests) = tokio::sync::mpsc::channel(1);
        let (publisher, reader) = StatusPublisher::new(with_pending_decisions());
        let config = ServerConfig::new(reader, PageSource::Controller(Some(sender)));
        let server = listen(SocketAddr::from(([127, 0, 0, 1], 0)), config)?;
        let url = format!("http://{}/", server.address());
        let Some(browser_page) = open(&url, Viewport::DESK) else { return Ok(()) };
        let form = format!("document.querySelector('[name=request][value={request}]').form");
        if request == "confirm" {
            // The selection survives an update of the page.
            browser_page.ask(&format!("{form}.instance.selectedIndex = 1"))?;
            let mut later = with_pending_decisions();
            later.identity = "fleetwright-another".to_owned();
            publisher.publish(later);
            std::thread::sleep(Duration::from_millis(1_500));
            assert_eq!(browser_page.ask(&format!("{form}.instance.value"))?, second);
        }
        browser_page.ask(&format!("{form}.token.focus()"))?;
        browser_page.write("t")?;
        if let Some(folder) = std::env::var_os("FLEETWRIGHT_PICTURES").map(PathBuf::from) {
            browser_page.ask("document.getElementById('requests').scrollIntoView()")?;
            browser_page.picture(&folder.join(format!("ask-{request}.png")))?;
        }
        let authorizer = accept_one(requests);
        browser_page.ask(&format!("{form}.querySelector('button').click()"))?;
        browser_page.wait_for("passed to the controller as carol")?;
        assert_eq!(
            authorizer.join().expect("the authorizer ends"),
            (received_requests, false),
            "the page sends one request"
        );
        assert!(browser_page.complaints().is_empty(), "{:#?}", browser_page.complaints());
    }
    Ok(())
}

#[test]
fn standby_page_explains_how_to_reach_the_leader() {
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let standby_answer = |lease_holder: Option<&str>, namespace: Option<&str>| {
        let (sender, mut requests) = tokio::sync::mpsc::channel(4);
        let lease_holder = lease_holder.map(str::to_owned);
        let (_publisher, reader) =
            StatusPublisher::new(Status { is_leader: false, lease_holder, ..busy() });
        let namespace = namespace.map(str::to_owned);
        let config = ServerConfig {
            namespace,
            ..ServerConfig::new(reader, PageSource::Controller(Some(sender)))
        };
        let server = listen(any_port, config).expect("a port");
        let body = "request=resume&token=t";
        let request = format!(
            "POST /requests HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(server.address()).expect("it listens");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(requests.try_recv().is_err(), "a standby passes on no request");
        let port = server.address().port().to_string();
        answer.split_once("\r\n\r\n").expect("a head").1.replace(&port, "PORT")
    };
    let pod = Some("run/fleetwright-7d9-zzzzz");
    let forward =
        "\n  kubectl --namespace fleet port-forward pod/fleetwright-7d9-zzzzz PORT:PORT\n";
    assert!(standby_answer(pod, Some("fleet")).ends_with(forward));
    assert_eq!(
        standby_answer(pod, None),
        "fleetwright-7d9-zzzzz is the leader; send the request there\n"
    );
    assert!(
        standby_answer(Some("apply/ci-1"), Some("fleet")).starts_with("apply/ci-1 holds the lease")
    );
    assert!(standby_answer(None, Some("fleet")).starts_with("no replica is the leader now"));
}
