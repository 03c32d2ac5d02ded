//! The HTTP client of the forges.

use std::time::Duration;
use std::{fmt, thread};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use ureq::http::Response;
use ureq::{Agent, Body, RequestBuilder};

use crate::apply::ports::ForgeError;

/// Maximum number of attempts.
const ATTEMPTS_MAX: u32 = 4;
/// Maximum wait between two attempts, even if the response requests more.
const WAIT_MAX: Duration = Duration::from_mins(1);
const REQUEST_MAX: Duration = Duration::from_secs(30);
/// Maximum number of pages of a list.
const PAGES_MAX: usize = 20;
/// Maximum size of a response: a page of the longest comments at several bytes per character.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Maximum characters of a response in an error.
const ERROR_CHARS_MAX: usize = 200;

/// Characters of a name that a path contains as they are.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The address of an API. The token is sent there, so it is HTTPS or this computer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgeAddress(String);

impl ForgeAddress {
    /// Parses the URL of an API.
    ///
    /// # Errors
    /// Returns the reason if the URL is not HTTPS, or has a user or a query.
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = url.split_once("://").ok_or("it is no URL")?;
        let host = rest.split('/').next().unwrap_or_default();
        if host.is_empty() || rest.contains(['@', '?', '#', ' ']) || rest.contains(char::is_control)
        {
            return Err("it is not a plain URL");
        }
        match scheme.to_ascii_lowercase().as_str() {
            "https" => {}
            "http" if is_loopback(host) => {}
            "http" => return Err("it is not HTTPS, and would send the token in plain text"),
            _ => return Err("it is not HTTPS"),
        }
        Ok(Self(url.trim_end_matches('/').to_owned()))
    }
}

impl fmt::Display for ForgeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_loopback(host: &str) -> bool {
    let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
    let name = name.map_or(host, |(name, _)| name).trim_matches(['[', ']']);
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// A secret, and the header that carries it.
#[derive(Clone)]
pub struct Token {
    header: &'static str,
    value: String,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("header", &self.header).finish_non_exhaustive()
    }
}

impl Token {
    /// Returns a bearer token.
    pub fn bearer(secret: &str) -> Self {
        Self { header: "authorization", value: format!("Bearer {secret}") }
    }

    /// Returns a token that is the password of `user`.
    pub fn basic(user: &str, secret: &str) -> Self {
        let pair = BASE64.encode(format!("{user}:{secret}"));
        Self { header: "authorization", value: format!("Basic {pair}") }
    }

    /// Returns a token in a header of its own.
    pub(super) fn in_header(header: &'static str, secret: &str) -> Self {
        Self { header, value: secret.to_owned() }
    }
}

/// Sends requests to one API.
pub(super) struct ForgeClient {
    agent: Agent,
    address: ForgeAddress,
    token: Token,
    headers: &'static [(&'static str, &'static str)],
    wait: fn(Duration),
}

impl fmt::Debug for ForgeClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForgeClient").field("address", &self.address).finish_non_exhaustive()
    }
}

enum ApiReply {
    Done(String),
    Retry(Duration, String),
    Failed(ForgeError),
}

impl ForgeClient {
    pub(super) fn new(
        address: ForgeAddress,
        token: Token,
        headers: &'static [(&'static str, &'static str)],
    ) -> Self {
        let config = Agent::config_builder()
            .timeout_global(Some(REQUEST_MAX))
            .http_status_as_error(false)
            .max_redirects(0)
            .build();
        Self { agent: config.into(), address, token, headers, wait: thread::sleep }
    }

    /// Returns a client that does not wait between attempts.
    #[cfg(test)]
    pub(super) fn without_waits(self) -> Self {
        Self { wait: |_| {}, ..self }
    }

    pub(super) fn get(&self, path: &str) -> Result<Value, ForgeError> {
        let text = self.request("GET", path, None)?;
        let unreadable = |_| ForgeError::Unavailable("its answer is not JSON".to_owned());
        serde_json::from_str(&text).map_err(unreadable)
    }

    /// Returns the rows of all pages. `read` returns the rows of a page, and whether another one comes.
    pub(super) fn pages<T>(
        &self,
        path: &dyn Fn(usize) -> String,
        read: &dyn Fn(&Value) -> (Vec<T>, bool),
    ) -> Result<Vec<T>, ForgeError> {
        let mut all = Vec::new();
        for page in 1..=PAGES_MAX {
            let (rows, has_more) = read(&self.get(&path(page))?);
            all.extend(rows);
            if !has_more {
                break;
            }
        }
        Ok(all)
    }

    /// Sends an idempotent request.
    pub(super) fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<String, ForgeError> {
        self.request_unless(method, path, body, &|| Ok(false))
    }

    /// Sends a request with retries on transient errors. Before each retry, `done` checks whether
    /// an earlier attempt succeeded although its response was lost.
    pub(super) fn request_unless(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        done: &dyn Fn() -> Result<bool, ForgeError>,
    ) -> Result<String, ForgeError> {
        let mut last_error = String::new();
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 0 && done()? {
                return Ok(String::new());
            }
            let answer = match self.send(method, path, body) {
                Ok(response) => read_reply(response, attempt),
                // The error contains at most the host name, no headers.
                Err(error) => ApiReply::Retry(backoff(attempt), error.to_string()),
            };
            match answer {
                ApiReply::Done(text) => return Ok(text),
                ApiReply::Failed(error) => return Err(error),
                ApiReply::Retry(wait, reason) => {
                    last_error = reason;
                    if attempt + 1 < ATTEMPTS_MAX {
                        (self.wait)(wait.min(WAIT_MAX));
                    }
                }
            }
        }
        Err(ForgeError::Unavailable(format!("{ATTEMPTS_MAX} tries: {last_error}")))
    }

    fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Response<Body>, ureq::Error> {
        let url = format!("{}/{path}", self.address.0);
        let own = [(self.token.header, self.token.value.as_str()), ("user-agent", "fleetwright")];
        let headers: Vec<(&str, &str)> = own.iter().chain(self.headers).copied().collect();
        let text = body.map(Value::to_string).unwrap_or_default();
        let agent = &self.agent;
        match method {
            "GET" => with_headers(agent.get(url), &headers).call(),
            "DELETE" => with_headers(agent.delete(url), &headers).call(),
            "PATCH" => with_headers(agent.patch(url), &headers).send(&text),
            "PUT" => with_headers(agent.put(url), &headers).send(&text),
            _ => with_headers(agent.post(url), &headers).send(&text),
        }
    }
}

/// Returns a name as one segment of a path.
pub(super) fn segment(name: &str) -> String {
    utf8_percent_encode(name, PLAIN).to_string()
}

fn with_headers<B>(request: RequestBuilder<B>, headers: &[(&str, &str)]) -> RequestBuilder<B> {
    headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))
}

fn backoff(attempt: u32) -> Duration {
    Duration::from_secs(1 << attempt.min(5))
}

fn read_reply(mut response: Response<Body>, attempt: u32) -> ApiReply {
    let status = response.status().as_u16();
    let header = |name: &str| {
        let value = response.headers().get(name)?.to_str().ok()?;
        value.parse::<u64>().ok()
    };
    let retry_after = header("retry-after");
    let exhausted = header("x-ratelimit-remaining") == Some(0);
    let text = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
    let text = match text {
        Ok(text) => text,
        Err(error) => return ApiReply::Retry(backoff(attempt), error.to_string()),
    };
    let error_text = || error_text(status, &text);
    match status {
        // Azure DevOps answers 203, or redirects to a login page, if it does not know the token.
        203 | 301..=303 | 401 => ApiReply::Failed(ForgeError::Unknown(error_text())),
        200..=299 => ApiReply::Done(text),
        // Rate limits come as 403 or 429, with the wait time or an exhausted quota.
        403 | 429 if retry_after.is_some() || exhausted || status == 429 => {
            let wait = retry_after.map_or_else(|| backoff(attempt + 2), Duration::from_secs);
            ApiReply::Retry(wait, error_text())
        }
        403 => ApiReply::Failed(ForgeError::Refused(error_text())),
        404 | 410 => ApiReply::Failed(ForgeError::NotFound(error_text())),
        500..=599 => ApiReply::Retry(backoff(attempt), error_text()),
        _ => ApiReply::Failed(ForgeError::Unprocessable(error_text())),
    }
}

/// Returns the status and the message of an error. Each forge has a place of its own for it.
fn error_text(status: u16, text: &str) -> String {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let places =
        ["/message", "/error/message", "/error_description", "/error", "/errors/0/message"];
    let message = places
        .into_iter()
        .find_map(|place| value.pointer(place))
        .map(|message| message.as_str().map_or_else(|| message.to_string(), str::to_owned));
    let message: String = message.unwrap_or_default().chars().take(ERROR_CHARS_MAX).collect();
    format!("{status} {message}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_sent_over_https_or_to_this_computer() {
        for good in ["https://git.example.com/api/v4/", "http://127.0.0.1:80", "http://[::1]:8/x"] {
            assert!(ForgeAddress::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "http://git.example.com",
            "http://127.0.0.1.example.com",
            "ftp://git.example.com",
            "git.example.com",
            "https://user@example.com",
            "https://",
        ] {
            assert!(ForgeAddress::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn debug_text_has_no_token() {
        let address = ForgeAddress::parse("https://example.com").expect("an address");
        for token in [Token::bearer("planted"), Token::basic("", "planted")] {
            let secret = token.value.clone();
            let client = ForgeClient::new(address.clone(), token.clone(), &[]);
            let text = format!("{token:?} {client:?}");
            assert!(!text.contains("planted") && !text.contains(&secret), "{text}");
        }
    }

    #[test]
    fn error_has_the_message_of_each_forge() {
        assert_eq!(error_text(404, r#"{"message": "Not Found"}"#), "404 Not Found");
        assert_eq!(error_text(400, r#"{"error": {"message": "Bad"}}"#), "400 Bad");
        assert_eq!(error_text(403, r#"{"error": "scope"}"#), "403 scope");
        let fields = r#"{"message": {"note": ["is too long"]}}"#;
        assert_eq!(error_text(400, fields), r#"400 {"note":["is too long"]}"#);
        assert_eq!(error_text(502, "<html>"), "502 ");
    }
}
