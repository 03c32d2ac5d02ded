//! Which path answers what, and with which headers.

use std::rc::Rc;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, Response};

use super::{Hall, Serves, asked};
use crate::face::{self, Health, metrics, page};
use crate::reconcile::Status;
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
    if hall.is_local && !is_this_machine(&header(request.headers(), &HOST)) {
        return text(421, "this server answers to localhost alone\n");
    }
    if let (&Method::POST, "/requests", Serves::Loop(Some(questions))) =
        (request.method(), request.uri().path(), &hall.site.serves)
    {
        let (code, says) = asked::ask(questions, request).await;
        return text(code, &says);
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return text(405, "only GET is answered\n");
    }
    let status: Arc<Status> = Arc::clone(&hall.site.reader.borrow());
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
        _ => text(404, "there is /, /metrics, /healthz, /readyz and /events\n"),
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
