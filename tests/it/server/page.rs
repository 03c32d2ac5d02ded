//! The page of the loop, read as text and opened by a browser where there is one.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use fleetwright::controller::authorization::{Decision, OperatorRequest, PendingRequest};
use fleetwright::controller::{Blocked, BlockedReason, Breaker, Status, StatusPublisher};
use fleetwright::plan::wire::Action;
use fleetwright::server::http::{HttpServer, PageSource, ServerConfig, listen};
use fleetwright::server::page::{PageKind, StatusPage, page};

use crate::browser::{Viewport, open};

use super::statuses::{HOSTILE, begun, busy, empty, failing};

const LOOP: PageKind = PageKind::Controller { takes_requests: true };

fn shown(status: &Status, kind: PageKind) -> String {
    page(&StatusPage { status, forecast: None, kind })
}

#[test]
fn page_shows_problems_first() {
    let html = shown(&failing(), LOOP);
    let place = |text: &str| html.find(text).unwrap_or_else(|| panic!("{text}\n{html}"));
    let mut last = 0;
    for text in [
        "standby of fleetwright-7d9-zzzzz",
        "Breaker launches-not-ready latched",
        "12 of 12 machines launched",
        "<strong>Suspended</strong> by bob@example.com",
        "are bypassed</strong> by carol@example.com",
        "The repository cannot be read since 2026-11-21 11:16:00 UTC (44 times in a row",
        "Commit <code>1111111111</code> is not served yet: CI has not applied it yet",
        "ec2 could not be read: RequestLimitExceeded",
        "Persisting the state fails since 2026-11-21 11:16:00 UTC (19 times, last at",
        "Terminating i-0a1b2c3d4e5f60718 fails since",
        "Pool general launches nothing until",
        "The inputs have errors",
        "121 of 180",
        "214 for 31m",
        "Draining instances",
        "Unschedulable pods",
        "<strong>not-applyable</strong> blocks 4",
        "id=\"changes\"",
        "Nodes before and after",
        "History",
        "refused: the world has moved",
        "Nodes that take pods again",
        "Cost over time",
    ] {
        let at = place(text);
        assert!(at > last, "{text} stands too early");
        last = at;
    }
}

#[test]
fn external_text_is_escaped_on_the_page() {
    let html = shown(&failing(), LOOP);
    assert!(html.contains("&lt;/script&gt;&lt;script&gt;alert(1)"), "it is shown as text");
    assert_eq!(html.matches("<script").count(), 2, "the page's own scripts alone");
    assert!(!html.contains(HOSTILE) && !html.contains("\" onload=") && !html.contains('\u{202e}'));
}

#[test]
fn request_forms_need_authentication() {
    for (kind, forms) in
        [(LOOP, 3), (PageKind::Controller { takes_requests: false }, 0), (PageKind::Preview, 0)]
    {
        assert_eq!(shown(&busy(), kind).matches("<form").count(), forms, "{kind:?}");
    }
    let html = shown(&failing(), LOOP);
    assert!(html.contains("value=\"resume\"") && !html.contains("value=\"suspend\""));
    assert!(html.contains("value=\"end-break-glass\"") && !html.contains("value=\"break-glass\""));
}

/// Returns a cluster in which eight removals wait to be confirmed, and two breakers have latched.
fn waits_for_people() -> Status {
    let mut status = busy();
    let since = status.now;
    for held in status.plan.as_mut().expect("a plan").blocked.values_mut() {
        let says = "pool general requires confirmation of each removal".to_owned();
        *held = Blocked {
            reason: BlockedReason::NotConfirmed { pool: "general".into() },
            message: says,
        };
    }
    let breaker = |name: &str, removes| {
        let why = format!("8 of 12 machines {HOSTILE}");
        Breaker { name: name.to_owned(), since, why, removes }
    };
    let breakers = vec![breaker("mass-removal", Some(8)), breaker("launches-not-ready", None)];
    Status { breakers, ..status }
}

/// Returns the instances among which the page has somebody choose.
fn machines(html: &str) -> Vec<String> {
    let options = html.split("<option value=\"i-").skip(1);
    options.map(|rest| format!("i-{}", rest.split('"').next().expect("a value"))).collect()
}

#[test]
fn pending_decisions_have_forms() {
    let html = shown(&waits_for_people(), LOOP);
    assert_eq!(html.matches("<form").count(), 6);
    for name in ["mass-removal", "launches-not-ready"] {
        assert!(html.contains(&format!("name=\"breaker\" readonly value=\"{name}\"")), "{html}");
    }
    assert_eq!(html.matches("removes at most 8 instances").count(), 1);
    assert!(!html.contains(HOSTILE));
    let status = waits_for_people();
    let plan = &status.plan.as_ref().expect("a plan").plan;
    let waits = machines(&html);
    assert_eq!(waits.len(), 8);
    for machine in waits {
        let mut rows = plan.resource_changes.iter();
        let of = |row: &&fleetwright::plan::wire::ResourceChange| {
            let before = row.change.before.as_ref().and_then(|before| before.instance_id.as_ref());
            before.is_some_and(|id| id.as_str() == machine)
        };
        assert_eq!(rows.find(of).expect("a row").change.actions, [Action::Delete]);
    }
    // Where nothing is planned there is nothing to approve; the loop can be suspended all the same.
    let html = shown(&Status { breakers: waits_for_people().breakers, ..begun() }, LOOP);
    let forms = ["suspend", "break-glass", "reset\">", "reset\">"];
    assert_eq!(html.matches("<form").count(), forms.len());
    assert!(forms.iter().all(|form| html.contains(&format!("value=\"{form}"))), "{html}");
}

#[test]
fn unreadable_objects_are_reported_on_the_page() {
    let unread = Some(format!("list records failed: denied {HOSTILE}"));
    for status in [
        Status { history_error: unread.clone(), ..busy() },
        Status { history_error: unread, ..begun() },
    ] {
        let html = shown(&status, LOOP);
        assert!(html.contains("may be missing here: list records failed: denied"), "{html}");
        assert!(!html.contains(HOSTILE));
    }
}

#[test]
fn empty_cluster_has_a_page() {
    let html = shown(&begun(), LOOP);
    assert!(
        html.contains("The cluster was not observed yet.")
            && html.contains("No plan was made yet.")
    );
    let html = shown(&empty(), LOOP);
    assert!(html.contains("Nothing changes.") && html.contains("There is no node"));
    assert!(!html.contains("class=\"alert\""));
}

fn serve(status: Status) -> (StatusPublisher, HttpServer) {
    let (board, reader) = StatusPublisher::new(status);
    let site = ServerConfig::new(reader, PageSource::Controller(None));
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    (board, listen(any, site).expect("a port"))
}

/// Sends one request, and returns the answer's head and body.
fn ask(address: SocketAddr, request: &str) -> (String, String) {
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
    let (board, listening) = serve(begun());
    let get =
        |path: &str| ask(listening.address(), &format!("GET {path} HTTP/1.1\r\nHost: localhost"));
    assert!(get("/healthz").0.starts_with("http/1.1 200"));
    let (head, body) = get("/readyz");
    assert!(head.starts_with("http/1.1 503"), "{head}");
    assert_eq!(body, "the repository was not read yet\nthe cluster was not observed yet\n");
    board.publish(empty());
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
        // Another page's name for this machine is not this machine's.
        ("GET / HTTP/1.1\r\nHost: evil.example", 421),
        ("GET / HTTP/1.1\r\nHost: localhost.evil.example:80", 421),
    ] {
        let (head, _) = ask(listening.address(), request);
        assert!(head.starts_with(&format!("http/1.1 {code}")), "{request}: {head}");
    }
}

/// Returns the answer to a request of somebody, with more of a head.
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

#[test]
fn requests_are_authorized_with_the_token_of_the_user() {
    let (questions, mut asked) = tokio::sync::mpsc::channel(4);
    let (_board, reader) = StatusPublisher::new(busy());
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let site = ServerConfig::new(reader, PageSource::Controller(Some(questions)));
    let listening = listen(any, site).expect("a port");
    let desk = std::thread::spawn(move || {
        let mut wanted = Vec::new();
        while let Some(PendingRequest { token, request: what, reply: answer, .. }) =
            asked.blocking_recv()
        {
            assert_eq!(format!("{token:?}"), "Token(…)");
            wanted.push(what);
            let answered = match wanted.len() {
                1 => Decision::Accepted { who: "alice".to_owned() },
                2 => Decision::Unauthenticated,
                3 => Decision::Forbidden { who: "bob".to_owned(), verb: "suspend" },
                _ => Decision::Unavailable { why: "no answer".to_owned() },
            };
            answer.send(answered).expect("somebody waits");
        }
        wanted
    });
    let post = |body: &str, more: &str| post(listening.address(), body, more);
    let bearer = "\r\nAuthorization: Bearer t";
    for (body, more, code, says) in [
        (
            "request=approve&digest=sha256%3Aab&token=t",
            "",
            202,
            "passed to the controller as alice",
        ),
        ("request=resume", bearer, 401, "the cluster does not accept the token"),
        (
            "request=suspend&reason=a+b&minutes=60&token=t",
            "",
            403,
            "bob may not suspend capacityplans",
        ),
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
    ] {
        let answer = post(body, more);
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{body}: {answer}");
        assert!(answer.contains(says), "{body}: {answer}");
    }
    let large = "x".repeat(100_000);
    assert!(post(&large, "").starts_with("HTTP/1.1 413"));
    drop(listening);
    let wanted = desk.join().expect("it ends with the server");
    assert_eq!(wanted[0], OperatorRequest::Approve { digest: "sha256:ab".into() });
    let lasts = jiff::SignedDuration::from_mins(60);
    assert_eq!(wanted[2], OperatorRequest::Suspend { reason: "a b".to_owned(), lasts });
    let lasts = jiff::SignedDuration::from_mins(240);
    assert_eq!(wanted[4], OperatorRequest::BreakGlass { reason: "r".to_owned(), lasts });
    assert_eq!(wanted[5], OperatorRequest::EndBreakGlass);
    assert_eq!(wanted[6], OperatorRequest::Confirm { instance: "i-1".into() });
    assert_eq!(wanted.len(), 7, "what cannot be meant never gets there");
}

#[test]
fn event_stream_sends_each_step_to_bounded_readers() {
    let (board, listening) = serve(begun());
    let request = "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut first = TcpStream::connect(listening.address()).expect("it listens");
    first.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    first.write_all(request.as_bytes()).expect("sent");
    let mut said = String::new();
    let mut read_until = |text: &str| {
        let mut buffer = [0; 1024];
        while !said.contains(text) {
            let n = first.read(&mut buffer).expect("news");
            assert!(n > 0, "it ended: {said}");
            said.push_str(&String::from_utf8_lossy(&buffer[..n]));
        }
    };
    read_until("retry: 3000");
    board.publish(empty());
    read_until("event: status\ndata: 2026-11-21T12:00:00Z");
    // The others fill the room; whoever comes then is told to come again.
    let mut others = Vec::new();
    for _ in 0..63 {
        let mut other = TcpStream::connect(listening.address()).expect("it listens");
        other.write_all(request.as_bytes()).expect("sent");
        let mut head = [0; 12];
        other.read_exact(&mut head).expect("an answer");
        assert_eq!(&head, b"HTTP/1.1 200");
        others.push(other);
    }
    let (head, _) = ask(listening.address(), "GET /events HTTP/1.1\r\nHost: localhost");
    assert!(head.starts_with("http/1.1 503"), "{head}");
}

#[test]
fn browser_shows_each_cluster_state_without_errors() -> anyhow::Result<()> {
    for (name, status) in [("empty", empty()), ("busy", busy()), ("failing", failing())] {
        let (_board, listening) = serve(status);
        let url = format!("http://{}/", listening.address());
        for (theme, dark) in [("light", false), ("dark", true)] {
            let Some(shown) = open(&url, Viewport { dark, ..Viewport::DESK }) else {
                return Ok(());
            };
            // The scripts ran: what needs them is shown.
            assert_eq!(
                shown.ask("document.querySelectorAll('[data-script][hidden]').length")?,
                "0"
            );
            assert!(shown.document()?.contains("prod-eu1"), "{name}");
            let cut = "[...document.querySelectorAll('.tile, .tile b, .panel')]\
                       .filter(one => one.scrollWidth > one.clientWidth).map(one => one.outerHTML).join()";
            assert_eq!(shown.ask(cut)?, "", "{name}");
            assert!(shown.complaints().is_empty(), "{name}: {:#?}", shown.complaints());
            // Pictures for whoever asks for them.
            if let Some(folder) = std::env::var_os("FLEETWRIGHT_PICTURES").map(PathBuf::from) {
                shown.picture(&folder.join(format!("{name}-{theme}.png")))?;
            }
        }
    }
    Ok(())
}

#[test]
fn open_page_follows_the_controller() -> anyhow::Result<()> {
    let (board, listening) = serve(empty());
    let url = format!("http://{}/", listening.address());
    let Some(shown) = open(&url, Viewport::DESK) else { return Ok(()) };
    assert!(!shown.document()?.contains("179 of 180"));
    board.publish(busy());
    shown.wait_for("179 of 180")?;
    assert!(shown.complaints().is_empty(), "{:#?}", shown.complaints());
    Ok(())
}

#[test]
fn break_glass_form_works_and_keeps_typed_text() -> anyhow::Result<()> {
    let (questions, mut asked) = tokio::sync::mpsc::channel(1);
    let (board, reader) = StatusPublisher::new(busy());
    let site = ServerConfig::new(reader, PageSource::Controller(Some(questions)));
    let listening = listen(SocketAddr::from(([127, 0, 0, 1], 0)), site)?;
    let Some(shown) = open(&format!("http://{}/", listening.address()), Viewport::DESK) else {
        return Ok(());
    };
    let field = |name: &str| format!("document.querySelector('#break-glass [name={name}]')");
    assert_eq!(shown.ask(&format!("{}.checkVisibility()", field("reason")))?, "false");
    shown.ask("document.querySelector('#break-glass summary').click()")?;
    // Without a reason it is not sent.
    shown.ask("document.querySelector('#break-glass button').click()")?;
    shown.ask(&format!("{}.focus()", field("reason")))?;
    shown.write("incident 4711")?;
    shown.ask(&format!("{}.focus()", field("token")))?;
    shown.write("t")?;
    shown.ask("document.activeElement.blur()")?;
    let mut later = busy();
    later.identity = "fleetwright-another".to_owned();
    board.publish(later.clone());
    std::thread::sleep(Duration::from_millis(1_500));
    board.publish(later);
    assert_eq!(shown.ask(&format!("{}.value", field("reason")))?, "incident 4711");
    let desk = std::thread::spawn(move || {
        let PendingRequest { request: wanted, reply: answer, .. } =
            asked.blocking_recv().expect("somebody asks");
        answer.send(Decision::Accepted { who: "carol".to_owned() }).expect("somebody waits");
        (wanted, asked.try_recv().is_ok())
    });
    shown.ask("document.querySelector('#break-glass button').click()")?;
    shown.wait_for("passed to the controller as carol")?;
    let lasts = jiff::SignedDuration::from_mins(30);
    let wanted = OperatorRequest::BreakGlass { reason: "incident 4711".to_owned(), lasts };
    assert_eq!(desk.join().expect("it was asked"), (wanted, false), "once");
    assert!(shown.complaints().is_empty(), "{:#?}", shown.complaints());
    Ok(())
}

#[test]
fn page_confirms_a_removal_and_resets_a_breaker() -> anyhow::Result<()> {
    let second = machines(&shown(&waits_for_people(), LOOP)).swap_remove(1);
    let digest = waits_for_people().plan.map(|plan| plan.digest().clone());
    assert!(digest.is_some(), "there is a plan");
    for (request, wanted) in [
        ("confirm", OperatorRequest::Confirm { instance: second.as_str().into() }),
        ("reset", OperatorRequest::Reset { breaker: "mass-removal".to_owned(), digest }),
    ] {
        let (questions, mut asked) = tokio::sync::mpsc::channel(1);
        let (board, reader) = StatusPublisher::new(waits_for_people());
        let site = ServerConfig::new(reader, PageSource::Controller(Some(questions)));
        let listening = listen(SocketAddr::from(([127, 0, 0, 1], 0)), site)?;
        let url = format!("http://{}/", listening.address());
        let Some(shown) = open(&url, Viewport::DESK) else { return Ok(()) };
        let form = format!("document.querySelector('[name=request][value={request}]').form");
        if request == "confirm" {
            // What somebody chose stays chosen, whatever comes.
            shown.ask(&format!("{form}.instance.selectedIndex = 1"))?;
            let mut later = waits_for_people();
            later.identity = "fleetwright-another".to_owned();
            board.publish(later);
            std::thread::sleep(Duration::from_millis(1_500));
            assert_eq!(shown.ask(&format!("{form}.instance.value"))?, second);
        }
        shown.ask(&format!("{form}.token.focus()"))?;
        shown.write("t")?;
        if let Some(folder) = std::env::var_os("FLEETWRIGHT_PICTURES").map(PathBuf::from) {
            shown.ask("document.getElementById('requests').scrollIntoView()")?;
            shown.picture(&folder.join(format!("ask-{request}.png")))?;
        }
        let desk = std::thread::spawn(move || {
            let PendingRequest { request: wanted, reply: answer, .. } =
                asked.blocking_recv().expect("somebody asks");
            answer.send(Decision::Accepted { who: "carol".to_owned() }).expect("somebody waits");
            (wanted, asked.try_recv().is_ok())
        });
        shown.ask(&format!("{form}.querySelector('button').click()"))?;
        shown.wait_for("passed to the controller as carol")?;
        assert_eq!(desk.join().expect("it was asked"), (wanted, false), "once");
        assert!(shown.complaints().is_empty(), "{:#?}", shown.complaints());
    }
    Ok(())
}

#[test]
fn standby_page_explains_how_to_reach_the_leader() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let answered = |led_by: Option<&str>, namespace: Option<&str>| {
        let (questions, mut asked) = tokio::sync::mpsc::channel(4);
        let led_by = led_by.map(str::to_owned);
        let (_board, reader) =
            StatusPublisher::new(Status { is_leader: false, lease_holder: led_by, ..busy() });
        let namespace = namespace.map(str::to_owned);
        let site = ServerConfig {
            namespace,
            ..ServerConfig::new(reader, PageSource::Controller(Some(questions)))
        };
        let listening = listen(any, site).expect("a port");
        let body = "request=resume&token=t";
        let request = format!(
            "POST /requests HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(listening.address()).expect("it listens");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(asked.try_recv().is_err(), "what it is told would be forgotten");
        let port = listening.address().port().to_string();
        answer.split_once("\r\n\r\n").expect("a head").1.replace(&port, "PORT")
    };
    let pod = Some("run/fleetwright-7d9-zzzzz");
    let forward =
        "\n  kubectl --namespace fleet port-forward pod/fleetwright-7d9-zzzzz PORT:PORT\n";
    assert!(answered(pod, Some("fleet")).ends_with(forward));
    assert_eq!(answered(pod, None), "fleetwright-7d9-zzzzz leads; send the request there\n");
    assert!(answered(Some("apply/ci-1"), Some("fleet")).starts_with("apply/ci-1 holds the lease"));
    assert!(answered(None, Some("fleet")).starts_with("no replica leads now"));
}
