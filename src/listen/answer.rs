//! Which path answers what, and with which headers.

use std::rc::Rc;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{HOST, HeaderName, HeaderValue};
use hyper::{Request, Response};
use jiff::Timestamp;

use super::Desk;
use crate::face::{self, Health, metrics};
use crate::reconcile::Status;
use crate::web::{Chunks, header, response};

const TEXT: &str = "text/plain; charset=utf-8";

/// What every answer says: show it as what it is, nowhere else, and keep no copy.
const HEADERS: [(&str, &str); 5] = [
    ("cache-control", "no-store"),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
];

pub(super) async fn answer(desk: Rc<Desk>, request: Request<Incoming>) -> Response<Chunks> {
    let mut answer = route(&desk, &request);
    let headers = answer.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    answer
}

fn route(desk: &Desk, request: &Request<Incoming>) -> Response<Chunks> {
    // A page elsewhere that points a name of its own at this machine must learn nothing.
    if desk.is_local && !is_this_machine(&header(request.headers(), &HOST)) {
        return text(421, "this server answers to localhost alone\n");
    }
    if !matches!(*request.method(), hyper::Method::GET | hyper::Method::HEAD) {
        return text(405, "only GET is answered\n");
    }
    let status: Arc<Status> = Arc::clone(&desk.site.reader.borrow());
    match request.uri().path() {
        "/healthz" => health(&face::health(&status, Timestamp::now())),
        "/readyz" => health(&face::readiness(&status)),
        "/metrics" => response(200, metrics::MEDIA, Chunks::whole(metrics::metrics(&status))),
        "/events" => match desk.news() {
            Some(news) => response(200, "text/event-stream", Chunks::Events(news)),
            None => text(503, "too many readers wait for news; come again later\n"),
        },
        _ => text(404, "there is /metrics, /healthz, /readyz and /events\n"),
    }
}

fn is_this_machine(host: &str) -> bool {
    let name = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
    let name = name.map_or(host, |(name, _)| name);
    ["localhost", "127.0.0.1", "[::1]"].contains(&name)
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
    fn only_names_of_this_machine_are_its_own() {
        for (host, is) in [
            ("localhost", true),
            ("localhost:8080", true),
            ("127.0.0.1:1", true),
            ("[::1]:8080", true),
            ("[::1]", true),
            ("evil.example:8080", false),
            ("localhost.evil.example", false),
            ("", false),
        ] {
            assert_eq!(is_this_machine(host), is, "{host}");
        }
    }
}
