//! Which path answers what, and with which headers.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, Response};

use super::{Hall, Serves, asked, hook};
use crate::face::{self, Health, metrics, page};
use crate::reconcile::{LOOP, Status};
use crate::web::{Chunks, header, response};

const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// What every answer says: show it as what it is, nowhere else, and keep no copy.
const HEADERS: [(&str, &str); 5] = [
    ("cache-control", "no-store"),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
];

pub(super) async fn answer(hall: Rc<Hall>, request: Request<Incoming>) -> Response<Chunks> {
    let mut answer = route(&hall, request).await;
    let headers = answer.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    answer
}

async fn route(hall: &Hall, request: Request<Incoming>) -> Response<Chunks> {
    // A page elsewhere that points a name of its own at this machine must learn nothing.
    let host = header(request.headers(), &HOST);
    if !is_own(&host, hall.is_local, &hall.site.names) {
        return text(421, "this server does not answer to that name; --listen-name gives it one\n");
    }
    let status: Arc<Status> = Arc::clone(&hall.site.reader.borrow());
    if let (&Method::POST, "/requests", Serves::Loop(Some(questions))) =
        (request.method(), request.uri().path(), &hall.site.serves)
    {
        // What a replica is told that does not lead would be forgotten.
        if !status.leader {
            return text(503, &elsewhere(hall, status.led_by.as_deref()));
        }
        let (code, says) = asked::ask(questions, request).await;
        return text(code, &says);
    }
    if let (&Method::POST, "/webhook", Some(hook)) =
        (request.method(), request.uri().path(), &hall.site.hook)
    {
        let (code, says) = hook::hear(hook, &hall.known, request).await;
        return text(code, &says);
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return text(405, "only GET is answered\n");
    }
    match request.uri().path() {
        "/healthz" => {
            let since = jiff::SignedDuration::try_from(hall.seen.get().elapsed());
            let since = since.unwrap_or(jiff::SignedDuration::MAX);
            let now = status.now.checked_add(since).unwrap_or(jiff::Timestamp::MAX);
            health(&face::health(&status, now))
        }
        "/readyz" => health(&face::readiness(&status)),
        "/metrics" => response(200, metrics::MEDIA, Chunks::whole(metrics::metrics(&status))),
        "/events" => match hall.news() {
            Some(news) => response(200, "text/event-stream", Chunks::Events(news)),
            None => text(503, "too many readers wait for news; come again later\n"),
        },
        "/" => shown(hall, &status),
        // Browsers ask for it beside any answer that is no page of ours.
        "/favicon.ico" => response(204, TEXT, Chunks::whole(String::new())),
        _ => text(404, "there is /, /metrics, /healthz, /readyz and /events\n"),
    }
}

/// Returns where to ask instead of here, and how to get there.
fn elsewhere(hall: &Hall, led_by: Option<&str>) -> String {
    let Some(leader) = led_by else {
        return "no replica leads now; ask again in a minute\n".to_owned();
    };
    let Some(replica) = leader.strip_prefix(LOOP) else {
        return format!(
            "{leader} has the lease, and no replica leads; ask again once it is done\n"
        );
    };
    let port = hall.port;
    match &hall.site.namespace {
        Some(namespace) => format!(
            "{replica} leads; ask there:\n\n  kubectl --namespace {namespace} port-forward pod/{replica} \
             {port}:{port}\n"
        ),
        None => format!("{replica} leads; ask there\n"),
    }
}

fn shown(hall: &Hall, status: &Status) -> Response<Chunks> {
    let forecast = hall.site.forecast.borrow().clone();
    let page = page::Page { status, forecast: forecast.as_deref(), kind: hall.site.serves.kind() };
    let mut answer = response(200, HTML, Chunks::whole(page::page(&page)));
    if let Ok(policy) = HeaderValue::from_str(&page::policy()) {
        answer.headers_mut().insert(HeaderName::from_static("content-security-policy"), policy);
    }
    answer
}

/// Returns whether a name is one of this server. A page elsewhere can give any name of its own to an
/// address, but neither an address itself nor a name that only a cluster resolves.
fn is_own(host: &str, is_local: bool, names: &[String]) -> bool {
    let name = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
    let name = name.map_or(host, |(name, _)| name);
    let of_cluster = || {
        let address = name.trim_start_matches('[').trim_end_matches(']');
        let is_service = [".svc", ".svc.cluster.local"].iter().any(|end| name.ends_with(end));
        address.parse::<IpAddr>().is_ok() || is_service || !name.is_empty() && !name.contains('.')
    };
    ["localhost", "127.0.0.1", "[::1]"].contains(&name)
        || names.iter().any(|own| own == name)
        || !is_local && of_cluster()
}

fn health(health: &Health) -> Response<Chunks> {
    text(if health.is_well { 200 } else { 503 }, &format!("{}\n", health.says))
}

fn text(code: u16, says: &str) -> Response<Chunks> {
    response(code, TEXT, Chunks::whole(says.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_or_of_its_cluster_are_its_own() {
        let names = ["fleet.example.com".to_owned()];
        for (host, here, in_cluster) in [
            ("localhost", true, true),
            ("localhost:8080", true, true),
            ("127.0.0.1:1", true, true),
            ("[::1]:8080", true, true),
            ("[::1]", true, true),
            ("10.0.3.17:8080", false, true),
            ("[fd00::17]:8080", false, true),
            ("fleetwright:8080", false, true),
            ("fleetwright.fleetwright.svc:8080", false, true),
            ("fleetwright.fleetwright.svc.cluster.local", false, true),
            ("fleet.example.com", true, true),
            ("evil.example:8080", false, false),
            ("localhost.evil.example", false, false),
            ("fleetwright.svc.evil.example", false, false),
            ("", false, false),
        ] {
            assert_eq!(is_own(host, true, &names), here, "{host}");
            assert_eq!(is_own(host, false, &names), in_cluster, "{host}");
        }
    }
}
