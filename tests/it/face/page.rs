//! The page of the loop, read as text and opened by a browser where there is one.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use fleetwright::door::{Answered, Asked, Wanted};
use fleetwright::face::page::{Page, PageKind, page};
use fleetwright::listen::{Listening, Serves, Site, listen};
use fleetwright::plan::wire::Action;
use fleetwright::reconcile::{Board, Breaker, Held, HeldBy, Status};

use crate::browser::{Look, open};

use super::statuses::{HOSTILE, begun, busy, empty, failing};

const LOOP: PageKind = PageKind::Loop { takes_requests: true };

fn shown(status: &Status, kind: PageKind) -> String {
    page(&Page { status, forecast: None, kind })
}

#[test]
fn the_page_says_what_is_wrong_before_anything_else() {
    let html = shown(&failing(), LOOP);
    let place = |text: &str| html.find(text).unwrap_or_else(|| panic!("{text}\n{html}"));
    let mut last = 0;
    for text in [
        "follows fleetwright-7d9-zzzzz",
        "Breaker launches-not-ready latched",
        "12 of 12 machines launched",
        "<strong>Suspended</strong> by bob@example.com",
        "are passed over</strong> by carol@example.com",
        "The repository cannot be read since 2026-11-21 11:16:00 UTC (44 times in a row",
        "Commit <code>1111111111</code> is not served yet: CI has not applied it yet",
        "ec2 could not be read: RequestLimitExceeded",
        "Keeping what is to survive fails since 2026-11-21 11:16:00 UTC (19 times, last at",
        "Telling i-0a1b2c3d4e5f60718 to end fails since",
        "Pool general launches nothing until",
        "The inputs have errors",
        "121 of 180",
        "214 for 31m",
        "Machines that go",
        "Without a place",
        "<strong>not-applyable</strong> holds back 4",
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
fn nothing_from_outside_becomes_part_of_the_page() {
    let html = shown(&failing(), LOOP);
    assert!(html.contains("&lt;/script&gt;&lt;script&gt;alert(1)"), "it is shown as text");
    assert_eq!(html.matches("<script").count(), 2, "the page's own scripts alone");
    assert!(!html.contains(HOSTILE) && !html.contains("\" onload=") && !html.contains('\u{202e}'));
}

#[test]
fn what_may_be_asked_is_there_only_where_somebody_checks_who_asks() {
    for (kind, forms) in
        [(LOOP, 3), (PageKind::Loop { takes_requests: false }, 0), (PageKind::Preview, 0)]
    {
        assert_eq!(shown(&busy(), kind).matches("<form").count(), forms, "{kind:?}");
    }
    let html = shown(&failing(), LOOP);
    assert!(html.contains("value=\"resume\"") && !html.contains("value=\"suspend\""));
    assert!(html.contains("value=\"mend-glass\"") && !html.contains("value=\"break-glass\""));
}

/// Returns a cluster in which eight removals wait to be confirmed, and two breakers have latched.
fn waits_for_people() -> Status {
    let mut status = busy();
    let since = status.now;
    for held in status.plan.as_mut().expect("a plan").held.values_mut() {
        let says = "pool general asks for a confirmation of each removal".to_owned();
        *held = HeldBy { why: Held::NotConfirmed { pool: "general".into() }, says };
    }
    let breaker = |name: &str, removes| {
        let why = format!("8 of 12 machines {HOSTILE}");
        Breaker { name: name.to_owned(), since, why, removes }
    };
    let breakers = vec![breaker("mass-removal", Some(8)), breaker("launches-not-ready", None)];
    Status { breakers, ..status }
}

/// Returns the machines among which the page has somebody choose.
fn machines(html: &str) -> Vec<String> {
    let options = html.split("<option value=\"i-").skip(1);
    options.map(|rest| format!("i-{}", rest.split('"').next().expect("a value"))).collect()
}

#[test]
fn what_waits_for_a_person_has_a_form_for_it() {
    let html = shown(&waits_for_people(), LOOP);
    assert_eq!(html.matches("<form").count(), 6);
    for name in ["mass-removal", "launches-not-ready"] {
        assert!(html.contains(&format!("name=\"breaker\" readonly value=\"{name}\"")), "{html}");
    }
    assert_eq!(html.matches("removes no more than 8 machines").count(), 1);
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
fn what_cannot_be_read_of_other_processes_is_said() {
    let unread = Some(format!("list records failed: denied {HOSTILE}"));
    for status in [Status { unread: unread.clone(), ..busy() }, Status { unread, ..begun() }] {
        let html = shown(&status, LOOP);
        assert!(html.contains("may be missing here: list records failed: denied"), "{html}");
        assert!(!html.contains(HOSTILE));
    }
}

#[test]
fn a_cluster_without_anything_has_a_page_that_says_so() {
    let html = shown(&begun(), LOOP);
    assert!(html.contains("The world was not read yet.") && html.contains("No plan was made yet."));
    let html = shown(&empty(), LOOP);
    assert!(html.contains("Nothing changes.") && html.contains("There is no node"));
    assert!(!html.contains("class=\"alert\""));
}

fn serve(status: Status) -> (Board, Listening) {
    let (board, reader) = Board::new(status);
    let site = Site::of(reader, Serves::Loop(None));
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
fn each_path_answers_what_it_is_for() {
    let (board, listening) = serve(begun());
    let get =
        |path: &str| ask(listening.address(), &format!("GET {path} HTTP/1.1\r\nHost: localhost"));
    assert!(get("/healthz").0.starts_with("http/1.1 200"));
    let (head, body) = get("/readyz");
    assert!(head.starts_with("http/1.1 503"), "{head}");
    assert_eq!(body, "no repository was read yet\nno world was read yet\n");
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
fn what_is_asked_goes_to_the_door_with_the_token_of_whoever_asks() {
    let (questions, mut asked) = tokio::sync::mpsc::channel(4);
    let (_board, reader) = Board::new(busy());
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let site = Site::of(reader, Serves::Loop(Some(questions)));
    let listening = listen(any, site).expect("a port");
    let desk = std::thread::spawn(move || {
        let mut wanted = Vec::new();
        while let Some(Asked { token, wanted: what, answer, .. }) = asked.blocking_recv() {
            assert_eq!(format!("{token:?}"), "Token(…)");
            wanted.push(what);
            let answered = match wanted.len() {
                1 => Answered::Passed { who: "alice".to_owned() },
                2 => Answered::Unknown,
                3 => Answered::Refused { who: "bob".to_owned(), verb: "suspend" },
                _ => Answered::Unanswered { why: "no answer".to_owned() },
            };
            answer.send(answered).expect("somebody waits");
        }
        wanted
    });
    let post = |body: &str, more: &str| post(listening.address(), body, more);
    let bearer = "\r\nAuthorization: Bearer t";
    for (body, more, code, says) in [
        ("request=approve&digest=sha256%3Aab&token=t", "", 202, "passed on to the loop, as alice"),
        ("request=resume", bearer, 401, "the cluster does not know the token"),
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
        ("request=mend-glass&token=t", "", 503, "no answer"),
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
    assert_eq!(wanted[0], Wanted::Approve { digest: "sha256:ab".into() });
    let lasts = jiff::SignedDuration::from_mins(60);
    assert_eq!(wanted[2], Wanted::Suspend { reason: "a b".to_owned(), lasts });
    let lasts = jiff::SignedDuration::from_mins(240);
    assert_eq!(wanted[4], Wanted::BreakGlass { reason: "r".to_owned(), lasts });
    assert_eq!(wanted[5], Wanted::MendGlass);
    assert_eq!(wanted[6], Wanted::Confirm { instance: "i-1".into() });
    assert_eq!(wanted.len(), 7, "what cannot be meant never gets there");
}

#[test]
fn whoever_waits_for_news_hears_of_each_step_and_readers_are_bounded() {
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
fn a_browser_shows_an_empty_a_busy_and_a_failing_cluster_without_a_complaint() -> anyhow::Result<()>
{
    for (name, status) in [("empty", empty()), ("busy", busy()), ("failing", failing())] {
        let (_board, listening) = serve(status);
        let url = format!("http://{}/", listening.address());
        for (theme, dark) in [("light", false), ("dark", true)] {
            let Some(shown) = open(&url, Look { dark, ..Look::DESK }) else { return Ok(()) };
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
fn a_page_that_is_open_follows_the_loop() -> anyhow::Result<()> {
    let (board, listening) = serve(empty());
    let url = format!("http://{}/", listening.address());
    let Some(shown) = open(&url, Look::DESK) else { return Ok(()) };
    assert!(!shown.document()?.contains("179 of 180"));
    board.publish(busy());
    shown.wait_for("179 of 180")?;
    assert!(shown.complaints().is_empty(), "{:#?}", shown.complaints());
    Ok(())
}

#[test]
fn somebody_breaks_the_glass_by_the_page_and_nothing_takes_what_they_type_from_them()
-> anyhow::Result<()> {
    let (questions, mut asked) = tokio::sync::mpsc::channel(1);
    let (board, reader) = Board::new(busy());
    let site = Site::of(reader, Serves::Loop(Some(questions)));
    let listening = listen(SocketAddr::from(([127, 0, 0, 1], 0)), site)?;
    let Some(shown) = open(&format!("http://{}/", listening.address()), Look::DESK) else {
        return Ok(());
    };
    let field = |name: &str| format!("document.querySelector('#glass [name={name}]')");
    assert_eq!(shown.ask(&format!("{}.checkVisibility()", field("reason")))?, "false");
    shown.ask("document.querySelector('#glass summary').click()")?;
    // Without a reason it is not sent.
    shown.ask("document.querySelector('#glass button').click()")?;
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
        let Asked { wanted, answer, .. } = asked.blocking_recv().expect("somebody asks");
        answer.send(Answered::Passed { who: "carol".to_owned() }).expect("somebody waits");
        (wanted, asked.try_recv().is_ok())
    });
    shown.ask("document.querySelector('#glass button').click()")?;
    shown.wait_for("passed on to the loop, as carol")?;
    let lasts = jiff::SignedDuration::from_mins(30);
    let wanted = Wanted::BreakGlass { reason: "incident 4711".to_owned(), lasts };
    assert_eq!(desk.join().expect("it was asked"), (wanted, false), "once");
    assert!(shown.complaints().is_empty(), "{:#?}", shown.complaints());
    Ok(())
}

#[test]
fn somebody_lets_a_machine_go_and_resets_a_breaker_by_the_page() -> anyhow::Result<()> {
    let second = machines(&shown(&waits_for_people(), LOOP)).swap_remove(1);
    let digest = waits_for_people().plan.map(|plan| plan.digest().clone());
    assert!(digest.is_some(), "there is a plan");
    for (request, wanted) in [
        ("confirm", Wanted::Confirm { instance: second.as_str().into() }),
        ("reset", Wanted::Reset { breaker: "mass-removal".to_owned(), digest }),
    ] {
        let (questions, mut asked) = tokio::sync::mpsc::channel(1);
        let (board, reader) = Board::new(waits_for_people());
        let site = Site::of(reader, Serves::Loop(Some(questions)));
        let listening = listen(SocketAddr::from(([127, 0, 0, 1], 0)), site)?;
        let url = format!("http://{}/", listening.address());
        let Some(shown) = open(&url, Look::DESK) else { return Ok(()) };
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
            let Asked { wanted, answer, .. } = asked.blocking_recv().expect("somebody asks");
            answer.send(Answered::Passed { who: "carol".to_owned() }).expect("somebody waits");
            (wanted, asked.try_recv().is_ok())
        });
        shown.ask(&format!("{form}.querySelector('button').click()"))?;
        shown.wait_for("passed on to the loop, as carol")?;
        assert_eq!(desk.join().expect("it was asked"), (wanted, false), "once");
        assert!(shown.complaints().is_empty(), "{:#?}", shown.complaints());
    }
    Ok(())
}

#[test]
fn who_asks_a_replica_that_does_not_lead_is_told_how_to_ask_the_one_that_does() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let answered = |led_by: Option<&str>, namespace: Option<&str>| {
        let (questions, mut asked) = tokio::sync::mpsc::channel(4);
        let led_by = led_by.map(str::to_owned);
        let (_board, reader) = Board::new(Status { leader: false, led_by, ..busy() });
        let namespace = namespace.map(str::to_owned);
        let site = Site { namespace, ..Site::of(reader, Serves::Loop(Some(questions))) };
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
    assert_eq!(answered(pod, None), "fleetwright-7d9-zzzzz leads; ask there\n");
    assert!(answered(Some("apply/ci-1"), Some("fleet")).starts_with("apply/ci-1 has the lease"));
    assert!(answered(None, Some("fleet")).starts_with("no replica leads now"));
}
