//! GitHub as a [`Forge`]: its REST API, with patience where it asks for that.
//!
//! This adapter knows HTTP and the API; it knows nothing of plans. Invariants: the token goes into
//! one header and nowhere else, no error and no debug text has it; every request is tried a bounded
//! number of times, with bounded waits; pages have a bound.

use std::fmt;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use ureq::http::Response;
use ureq::{Agent, Body, RequestBuilder};

use crate::port::{CommitState, CommitStatus, Forge, ForgeComment, ForgeError};

/// How often a request is made before it counts as failed.
const TRIES: u32 = 4;
/// Longest wait between two tries, whatever the answer asks for.
const WAIT_MAX: Duration = Duration::from_mins(1);
/// Longest time for one request.
const REQUEST_MAX: Duration = Duration::from_secs(30);
/// Comments of a page, and pages that are read.
const PAGE: usize = 100;
const PAGES_MAX: usize = 20;
/// Most bytes of an answer: a page of the longest comments, several bytes a character.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Who writes with the token of a workflow.
const WORKFLOW: &str = "github-actions[bot]";
/// Longest piece of an answer that an error repeats, in characters.
const SHOWN_MAX: usize = 200;

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

/// What an answer means for the next step.
enum Answer {
    Done(String),
    Again(Duration, String),
    Failed(ForgeError),
}

impl GitHub {
    /// Returns the repository `OWNER/NAME` of the API at `api`.
    #[must_use]
    pub fn new(api: &str, repository: &str, token: String) -> Self {
        Self::patient(api, repository, token, thread::sleep)
    }

    /// Returns the same with another way to wait.
    fn patient(api: &str, repository: &str, token: String, wait: fn(Duration)) -> Self {
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

    /// Makes a request that may be made twice.
    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<String, ForgeError> {
        self.ask_unless(method, &self.url(path), body, &|| Ok(false))
    }

    /// Makes a request, again while it fails for a reason that may pass, unless it turns out to be
    /// `done`: an answer that was lost says nothing about what was asked for.
    fn ask_unless(
        &self,
        method: &str,
        url: &str,
        body: Option<&Value>,
        done: &dyn Fn() -> Result<bool, ForgeError>,
    ) -> Result<String, ForgeError> {
        let mut why = String::new();
        for attempt in 0..TRIES {
            if attempt > 0 && done()? {
                return Ok(String::new());
            }
            let answer = match self.send(method, url, body) {
                Ok(response) => read(response, attempt),
                // The text of the error names the host at most; headers are not in it.
                Err(error) => Answer::Again(backoff(attempt), error.to_string()),
            };
            match answer {
                Answer::Done(text) => return Ok(text),
                Answer::Failed(error) => return Err(error),
                Answer::Again(wait, reason) => {
                    why = reason;
                    if attempt + 1 < TRIES {
                        (self.wait)(wait.min(WAIT_MAX));
                    }
                }
            }
        }
        Err(ForgeError::Unavailable(format!("{TRIES} tries: {why}")))
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
            "GET" => with(self.agent.get(url), &headers).call(),
            "DELETE" => with(self.agent.delete(url), &headers).call(),
            "PATCH" => with(self.agent.patch(url), &headers).send(&text),
            _ => with(self.agent.post(url), &headers).send(&text),
        }
    }
}

fn with<B>(request: RequestBuilder<B>, headers: &[(&str, &str)]) -> RequestBuilder<B> {
    headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))
}

/// Waits grow with each try.
fn backoff(attempt: u32) -> Duration {
    Duration::from_secs(1 << attempt.min(5))
}

fn read(mut response: Response<Body>, attempt: u32) -> Answer {
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
        Err(error) => return Answer::Again(backoff(attempt), error.to_string()),
    };
    let said = || said(status, &text);
    match status {
        200..=299 => Answer::Done(text),
        // Limits come as 403 or 429; the answer says for how long, or that nothing is left.
        403 | 429 if retry_after.is_some() || exhausted || status == 429 => {
            let wait = retry_after.map_or_else(|| backoff(attempt + 2), Duration::from_secs);
            Answer::Again(wait, said())
        }
        401 => Answer::Failed(ForgeError::Unknown(said())),
        403 => Answer::Failed(ForgeError::Refused(said())),
        404 | 410 => Answer::Failed(ForgeError::NotFound(said())),
        500..=599 => Answer::Again(backoff(attempt), said()),
        _ => Answer::Failed(ForgeError::Unprocessable(said())),
    }
}

fn said(status: u16, text: &str) -> String {
    let message = serde_json::from_str::<Value>(text)
        .ok()
        .and_then(|value| value.get("message")?.as_str().map(str::to_owned))
        .unwrap_or_default();
    format!("{status} {}", message.chars().take(SHOWN_MAX).collect::<String>())
}

impl Forge for GitHub {
    fn author(&self) -> Result<String, ForgeError> {
        match self.ask_unless("GET", &format!("{}/user", self.api), None, &|| Ok(false)) {
            // The token of a workflow is that of an app, which is no user.
            Err(ForgeError::Refused(_)) => Ok(WORKFLOW.to_owned()),
            Err(error) => Err(error),
            Ok(text) => {
                let user: Option<Value> = serde_json::from_str(&text).ok();
                let login = user.and_then(|user| Some(user.get("login")?.as_str()?.to_owned()));
                login.ok_or_else(|| ForgeError::Unavailable("it does not say who we are".into()))
            }
        }
    }

    fn comments(&self, pull: u64) -> Result<Vec<ForgeComment>, ForgeError> {
        let mut all = Vec::new();
        for page in 1..=PAGES_MAX {
            let path = format!("issues/{pull}/comments?per_page={PAGE}&page={page}");
            let text = self.ask("GET", &path, None)?;
            let unreadable = |_| ForgeError::Unavailable("its answer is not JSON".to_owned());
            let rows: Vec<Value> = serde_json::from_str(&text).map_err(unreadable)?;
            let count = rows.len();
            all.extend(rows.iter().filter_map(|row| {
                let body = row.get("body")?.as_str()?.to_owned();
                let author = row.pointer("/user/login").and_then(Value::as_str);
                let author = author.unwrap_or_default().to_owned();
                Some(ForgeComment { id: row.get("id")?.as_u64()?, author, body })
            }));
            if count < PAGE {
                break;
            }
        }
        Ok(all)
    }

    fn create(&self, pull: u64, body: &str) -> Result<(), ForgeError> {
        let url = self.url(&format!("issues/{pull}/comments"));
        let is_there = || Ok(self.comments(pull)?.iter().any(|found| found.body == body));
        self.ask_unless("POST", &url, Some(&json!({ "body": body })), &is_there).map(drop)
    }

    fn update(&self, id: u64, body: &str) -> Result<(), ForgeError> {
        let path = format!("issues/comments/{id}");
        self.ask("PATCH", &path, Some(&json!({ "body": body }))).map(drop)
    }

    fn delete(&self, id: u64) -> Result<(), ForgeError> {
        self.ask("DELETE", &format!("issues/comments/{id}"), None).map(drop)
    }

    fn set_status(&self, commit: &str, status: &CommitStatus) -> Result<(), ForgeError> {
        let CommitStatus { context, state, description } = status;
        let state = match state {
            CommitState::Success => "success",
            CommitState::Failure => "failure",
        };
        let body = json!({ "context": context, "state": state, "description": description });
        self.ask("POST", &format!("statuses/{commit}"), Some(&body)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    const TOKEN: &str = "ghs_planted_secret";

    /// Serves the answers one after the other, and tells what was asked.
    fn stand_in(answers: Vec<(&'static str, String)>) -> (GitHub, Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (tell, told) = channel();
        thread::spawn(move || {
            for (head, body) in answers {
                let Ok((mut stream, _)) = listener.accept() else { return };
                let request = request(&mut stream);
                let _ = tell.send(request);
                let length = body.len();
                let _ = write!(
                    stream,
                    "HTTP/1.1 {head}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
                );
            }
        });
        let api = format!("http://{address}/");
        (GitHub::patient(&api, "acme/fleet", TOKEN.to_owned(), |_| {}), told)
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
            let wanted = head
                .lines()
                .find_map(|line| {
                    line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok()
                })
                .unwrap_or(0);
            if body.len() >= wanted || n == 0 {
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
        let (github, told) = stand_in(vec![ok(&json!(full).to_string()), ok(&last.to_string())]);
        assert_eq!(github.comments(7).expect("read").len(), 101);
        let first = told.recv().expect("asked");
        assert!(first.starts_with("GET /repos/acme/fleet/issues/7/comments?per_page=100&page=1 "));
        assert!(first.to_ascii_lowercase().contains(&format!("authorization: bearer {TOKEN}")));
        assert!(told.recv().expect("asked").contains("page=2"));
    }

    #[test]
    fn limits_and_faults_are_waited_for_and_then_it_goes_on() {
        let limited = ("403 Forbidden\r\nretry-after: 3", "{}".to_owned());
        let exhausted = ("429 Too Many Requests\r\nx-ratelimit-remaining: 0", "{}".to_owned());
        let broken = ("502 Bad Gateway", "<html>".to_owned());
        let (github, told) = stand_in(vec![limited, exhausted, broken, ("200 OK", "{}".into())]);
        assert_eq!(github.update(7, "text"), Ok(()));
        let asked: Vec<String> = told.iter().collect();
        assert_eq!(asked.len(), 4);
        assert!(asked[3].ends_with("{\"body\":\"text\"}"), "{}", asked[3]);
    }

    #[test]
    fn a_comment_whose_answer_was_lost_is_looked_for_before_it_is_written_again() {
        let broken = || ("502 Bad Gateway", "<html>".to_owned());
        let there = ok(&json!([{ "id": 9, "body": "text" }]).to_string());
        let (github, told) = stand_in(vec![broken(), there]);
        assert_eq!(github.create(7, "text"), Ok(()));
        let verbs: Vec<String> = told.iter().map(|asked| asked[..4].to_owned()).collect();
        assert_eq!(verbs, ["POST", "GET "]);
        let made = ("201 Created", "{}".to_owned());
        let (github, told) = stand_in(vec![broken(), ok("[]"), made]);
        assert_eq!(github.create(7, "text"), Ok(()));
        assert_eq!(told.iter().count(), 3, "it was not there, so it is written");
    }

    #[test]
    fn who_we_are_is_the_user_of_the_token_or_the_workflow() {
        let (github, told) = stand_in(vec![ok("{\"login\": \"robot\"}")]);
        assert_eq!(github.author(), Ok("robot".to_owned()));
        assert!(told.recv().expect("asked").starts_with("GET /user "));
        let (github, _) = stand_in(vec![("403 Forbidden", "{}".to_owned())]);
        assert_eq!(github.author(), Ok("github-actions[bot]".to_owned()));
    }

    #[test]
    fn what_does_not_pass_ends_after_a_bounded_number_of_tries() {
        let broken = || ("503 Service Unavailable", "{\"message\": \"down\"}".to_owned());
        let (github, _) = stand_in(vec![broken(), broken(), broken(), broken()]);
        let error = github.update(7, "x").expect_err("down");
        assert_eq!(error, ForgeError::Unavailable("4 tries: 503 down".into()));
        // Nobody listens any more.
        assert!(matches!(github.create(7, "x"), Err(ForgeError::Unavailable(_))));
    }

    #[test]
    fn a_refusal_is_told_apart_and_no_error_has_the_token() {
        for (head, body, expected) in [
            ("403 Forbidden", "Resource not accessible by integration", "refuses: 403"),
            ("401 Unauthorized", "Bad credentials", "does not know the token: 401"),
            ("404 Not Found", "Not Found", "no such thing: 404"),
            ("422 Unprocessable Entity", "body is too long", "does not accept it: 422 body"),
        ] {
            let (github, _) = stand_in(vec![(head, json!({ "message": body }).to_string())]);
            let error = github.update(3, "x").expect_err(head);
            assert!(error.to_string().contains(expected), "{error}");
            let all = format!("{error} {error:?} {github:?}");
            assert!(!all.contains(TOKEN), "{all}");
        }
    }

    #[test]
    fn a_status_is_set_on_its_commit() {
        let (github, told) = stand_in(vec![("201 Created", "{}".into())]);
        let status = CommitStatus {
            context: "fleetwright/plan".into(),
            state: CommitState::Success,
            description: "1 to add".into(),
        };
        assert_eq!(github.set_status("4f2c9a1", &status), Ok(()));
        let asked = told.recv().expect("asked");
        assert!(asked.starts_with("POST /repos/acme/fleet/statuses/4f2c9a1 "), "{asked}");
        assert!(asked.contains("\"state\":\"success\""), "{asked}");
    }
}
