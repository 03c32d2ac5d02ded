//! GitHub as a [`Forge`]: its REST API with retries and rate limits.
//!
//! This adapter handles HTTP and the API, and has no knowledge of plans. Invariants: the token is
//! sent in one header only and is in no error or debug text. Retries, waits and pages are bounded.

use std::time::Duration;
use std::{fmt, thread};

use serde_json::{Value, json};
use ureq::http::Response;
use ureq::{Agent, Body, RequestBuilder};

use crate::apply::ports::{CommitState, CommitStatus, Forge, ForgeComment, ForgeError};

/// Maximum number of attempts.
const ATTEMPTS_MAX: u32 = 4;
/// Maximum wait between two attempts, even if the response requests more.
const WAIT_MAX: Duration = Duration::from_mins(1);
const REQUEST_MAX: Duration = Duration::from_secs(30);
/// Comments per page, and maximum number of pages.
const PAGE_SIZE: usize = 100;
const PAGES_MAX: usize = 20;
/// Maximum size of a response: a page of the longest comments at several bytes per character.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Author of comments that are written with a workflow token.
const WORKFLOW_AUTHOR: &str = "github-actions[bot]";
/// Maximum characters of a response in an error.
const ERROR_CHARS_MAX: usize = 200;

/// A repository on GitHub.
pub struct GitHub {
    agent: Agent,
    api: String,
    repository: String,
    token: String,
    wait: fn(Duration),
}

impl fmt::Debug for GitHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { api, repository, .. } = self;
        f.debug_struct("GitHub").field("api", api).field("repository", repository).finish()
    }
}

enum ApiReply {
    Done(String),
    Retry(Duration, String),
    Failed(ForgeError),
}

impl GitHub {
    /// Returns the repository `OWNER/NAME` at the API URL `api`.
    #[must_use]
    pub fn new(api: &str, repository: &str, token: String) -> Self {
        Self::with_wait(api, repository, token, thread::sleep)
    }

    fn with_wait(api: &str, repository: &str, token: String, wait: fn(Duration)) -> Self {
        let config = Agent::config_builder()
            .timeout_global(Some(REQUEST_MAX))
            .http_status_as_error(false)
            .max_redirects(0)
            .build();
        let api = api.trim_end_matches('/').to_owned();
        Self { agent: config.into(), api, repository: repository.to_owned(), token, wait }
    }

    fn url(&self, path: &str) -> String {
        format!("{}/repos/{}/{path}", self.api, self.repository)
    }

    /// Sends an idempotent request.
    fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<String, ForgeError> {
        self.request_unless(method, &self.url(path), body, &|| Ok(false))
    }

    /// Sends a request with retries on transient errors. Before each retry, `done` checks whether
    /// an earlier attempt succeeded although its response was lost.
    fn request_unless(
        &self,
        method: &str,
        url: &str,
        body: Option<&Value>,
        done: &dyn Fn() -> Result<bool, ForgeError>,
    ) -> Result<String, ForgeError> {
        let mut last_error = String::new();
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 0 && done()? {
                return Ok(String::new());
            }
            let answer = match self.send(method, url, body) {
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
        url: &str,
        body: Option<&Value>,
    ) -> Result<Response<Body>, ureq::Error> {
        let bearer = format!("Bearer {}", self.token);
        let headers = [
            ("accept", "application/vnd.github+json"),
            ("authorization", bearer.as_str()),
            ("user-agent", "fleetwright"),
            ("x-github-api-version", "2022-11-28"),
        ];
        let text = body.map(Value::to_string).unwrap_or_default();
        match method {
            "GET" => with_headers(self.agent.get(url), &headers).call(),
            "DELETE" => with_headers(self.agent.delete(url), &headers).call(),
            "PATCH" => with_headers(self.agent.patch(url), &headers).send(&text),
            _ => with_headers(self.agent.post(url), &headers).send(&text),
        }
    }
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
        200..=299 => ApiReply::Done(text),
        // Rate limits come as 403 or 429, with the wait time or an exhausted quota.
        403 | 429 if retry_after.is_some() || exhausted || status == 429 => {
            let wait = retry_after.map_or_else(|| backoff(attempt + 2), Duration::from_secs);
            ApiReply::Retry(wait, error_text())
        }
        401 => ApiReply::Failed(ForgeError::Unknown(error_text())),
        403 => ApiReply::Failed(ForgeError::Refused(error_text())),
        404 | 410 => ApiReply::Failed(ForgeError::NotFound(error_text())),
        500..=599 => ApiReply::Retry(backoff(attempt), error_text()),
        _ => ApiReply::Failed(ForgeError::Unprocessable(error_text())),
    }
}

fn error_text(status: u16, text: &str) -> String {
    let message = serde_json::from_str::<Value>(text)
        .ok()
        .and_then(|value| value.get("message")?.as_str().map(str::to_owned))
        .unwrap_or_default();
    format!("{status} {}", message.chars().take(ERROR_CHARS_MAX).collect::<String>())
}

impl Forge for GitHub {
    fn author(&self) -> Result<String, ForgeError> {
        match self.request_unless("GET", &format!("{}/user", self.api), None, &|| Ok(false)) {
            // A workflow token belongs to an app, which is not a user.
            Err(ForgeError::Refused(_)) => Ok(WORKFLOW_AUTHOR.to_owned()),
            Err(error) => Err(error),
            Ok(text) => {
                let user: Option<Value> = serde_json::from_str(&text).ok();
                let login = user.and_then(|user| Some(user.get("login")?.as_str()?.to_owned()));
                login
                    .ok_or_else(|| ForgeError::Unavailable("the response contains no login".into()))
            }
        }
    }

    fn comments(&self, pull: u64) -> Result<Vec<ForgeComment>, ForgeError> {
        let mut all = Vec::new();
        for page in 1..=PAGES_MAX {
            let path = format!("issues/{pull}/comments?per_page={PAGE_SIZE}&page={page}");
            let text = self.request("GET", &path, None)?;
            let unreadable = |_| ForgeError::Unavailable("its answer is not JSON".to_owned());
            let rows: Vec<Value> = serde_json::from_str(&text).map_err(unreadable)?;
            let count = rows.len();
            all.extend(rows.iter().filter_map(|row| {
                let body = row.get("body")?.as_str()?.to_owned();
                let author = row.pointer("/user/login").and_then(Value::as_str);
                let author = author.unwrap_or_default().to_owned();
                Some(ForgeComment { id: row.get("id")?.as_u64()?, author, body })
            }));
            if count < PAGE_SIZE {
                break;
            }
        }
        Ok(all)
    }

    fn create(&self, pull: u64, body: &str) -> Result<(), ForgeError> {
        let url = self.url(&format!("issues/{pull}/comments"));
        let is_there = || Ok(self.comments(pull)?.iter().any(|found| found.body == body));
        self.request_unless("POST", &url, Some(&json!({ "body": body })), &is_there).map(drop)
    }

    fn update(&self, id: u64, body: &str) -> Result<(), ForgeError> {
        let path = format!("issues/comments/{id}");
        self.request("PATCH", &path, Some(&json!({ "body": body }))).map(drop)
    }

    fn delete(&self, id: u64) -> Result<(), ForgeError> {
        self.request("DELETE", &format!("issues/comments/{id}"), None).map(drop)
    }

    fn set_status(&self, commit: &str, status: &CommitStatus) -> Result<(), ForgeError> {
        let CommitStatus { context, state, description } = status;
        let state = match state {
            CommitState::Success => "success",
            CommitState::Failure => "failure",
        };
        let body = json!({ "context": context, "state": state, "description": description });
        self.request("POST", &format!("statuses/{commit}"), Some(&body)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    const TOKEN: &str = "ghs_planted_secret";

    /// Serves the replies in order and returns the requests.
    fn serve_replies(replies: Vec<(&'static str, String)>) -> (GitHub, Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (request_sender, requests) = channel();
        thread::spawn(move || {
            for (head, body) in replies {
                let Ok((mut stream, _)) = listener.accept() else { return };
                let request = request(&mut stream);
                let _ = request_sender.send(request);
                let length = body.len();
                let _ = write!(
                    stream,
                    "HTTP/1.1 {head}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
                );
            }
        });
        let api = format!("http://{address}/");
        (GitHub::with_wait(&api, "acme/fleet", TOKEN.to_owned(), |_| {}), requests)
    }

    fn request(stream: &mut std::net::TcpStream) -> String {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let n = stream.read(&mut buffer).unwrap_or(0);
            bytes.extend_from_slice(&buffer[..n]);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                if n == 0 {
                    return text;
                }
                continue;
            };
            let content_length = head
                .lines()
                .find_map(|line| {
                    line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok()
                })
                .unwrap_or(0);
            if body.len() >= content_length || n == 0 {
                return text;
            }
        }
    }

    fn ok(body: &str) -> (&'static str, String) {
        ("200 OK", body.to_owned())
    }

    #[test]
    fn comments_are_read_page_by_page() {
        let full: Vec<Value> = (0..100).map(|id| json!({ "id": id, "body": "x" })).collect();
        let last = json!([{ "id": 100, "body": "y" }, { "id": 101, "body": null }]);
        let (github, requests) =
            serve_replies(vec![ok(&json!(full).to_string()), ok(&last.to_string())]);
        assert_eq!(github.comments(7).expect("read").len(), 101);
        let first = requests.recv().expect("asked");
        assert!(first.starts_with("GET /repos/acme/fleet/issues/7/comments?per_page=100&page=1 "));
        assert!(first.to_ascii_lowercase().contains(&format!("authorization: bearer {TOKEN}")));
        assert!(requests.recv().expect("asked").contains("page=2"));
    }

    #[test]
    fn rate_limits_and_server_errors_are_retried() {
        let limited = ("403 Forbidden\r\nretry-after: 3", "{}".to_owned());
        let exhausted = ("429 Too Many Requests\r\nx-ratelimit-remaining: 0", "{}".to_owned());
        let broken = ("502 Bad Gateway", "<html>".to_owned());
        let (github, requests) =
            serve_replies(vec![limited, exhausted, broken, ("200 OK", "{}".into())]);
        assert_eq!(github.update(7, "text"), Ok(()));
        let request_log: Vec<String> = requests.iter().collect();
        assert_eq!(request_log.len(), 4);
        assert!(request_log[3].ends_with("{\"body\":\"text\"}"), "{}", request_log[3]);
    }

    #[test]
    fn lost_comment_response_is_checked_before_retry() {
        let broken = || ("502 Bad Gateway", "<html>".to_owned());
        let there = ok(&json!([{ "id": 9, "body": "text" }]).to_string());
        let (github, requests) = serve_replies(vec![broken(), there]);
        assert_eq!(github.create(7, "text"), Ok(()));
        let verbs: Vec<String> =
            requests.iter().map(|request_log| request_log[..4].to_owned()).collect();
        assert_eq!(verbs, ["POST", "GET "]);
        let made = ("201 Created", "{}".to_owned());
        let (github, requests) = serve_replies(vec![broken(), ok("[]"), made]);
        assert_eq!(github.create(7, "text"), Ok(()));
        assert_eq!(requests.iter().count(), 3, "it was not there, so it is written");
    }

    #[test]
    fn author_is_the_token_user_or_the_workflow() {
        let (github, requests) = serve_replies(vec![ok("{\"login\": \"robot\"}")]);
        assert_eq!(github.author(), Ok("robot".to_owned()));
        assert!(requests.recv().expect("asked").starts_with("GET /user "));
        let (github, _) = serve_replies(vec![("403 Forbidden", "{}".to_owned())]);
        assert_eq!(github.author(), Ok("github-actions[bot]".to_owned()));
    }

    #[test]
    fn retries_are_bounded() {
        let broken = || ("503 Service Unavailable", "{\"message\": \"down\"}".to_owned());
        let (github, _) = serve_replies(vec![broken(), broken(), broken(), broken()]);
        let error = github.update(7, "x").expect_err("down");
        assert_eq!(error, ForgeError::Unavailable("4 tries: 503 down".into()));
        // The server no longer listens.
        assert!(matches!(github.create(7, "x"), Err(ForgeError::Unavailable(_))));
    }

    #[test]
    fn errors_are_specific_and_hide_the_token() {
        for (head, body, expected) in [
            ("403 Forbidden", "Resource not accessible by integration", "refuses: 403"),
            ("401 Unauthorized", "Bad credentials", "rejects the token: 401"),
            ("404 Not Found", "Not Found", "not found on the forge: 404"),
            ("422 Unprocessable Entity", "body is too long", "rejects the content: 422 body"),
        ] {
            let (github, _) = serve_replies(vec![(head, json!({ "message": body }).to_string())]);
            let error = github.update(3, "x").expect_err(head);
            assert!(error.to_string().contains(expected), "{error}");
            let all = format!("{error} {error:?} {github:?}");
            assert!(!all.contains(TOKEN), "{all}");
        }
    }

    #[test]
    fn status_is_set_on_its_commit() {
        let (github, requests) = serve_replies(vec![("201 Created", "{}".into())]);
        let status = CommitStatus {
            context: "fleetwright/plan".into(),
            state: CommitState::Success,
            description: "1 to add".into(),
        };
        assert_eq!(github.set_status("4f2c9a1", &status), Ok(()));
        let request_log = requests.recv().expect("asked");
        assert!(
            request_log.starts_with("POST /repos/acme/fleet/statuses/4f2c9a1 "),
            "{request_log}"
        );
        assert!(request_log.contains("\"state\":\"success\""), "{request_log}");
    }
}
