//! GitHub as a [`Forge`], by its [REST API](https://docs.github.com/en/rest/issues/comments).

use serde_json::{Value, json};

use super::client::{ForgeAddress, ForgeClient, Token};
use crate::apply::ports::{CommitState, CommitStatus, Forge, ForgeComment, ForgeError};

/// Comments per page.
const PAGE_SIZE: usize = 100;
/// Author of comments that are written with a workflow token.
const WORKFLOW_AUTHOR: &str = "github-actions[bot]";

/// A repository on GitHub.
#[derive(Debug)]
pub struct GitHub {
    client: ForgeClient,
    repository: String,
}

impl GitHub {
    /// Returns the repository `OWNER/NAME`.
    pub fn new(address: ForgeAddress, repository: &str, secret: &str) -> Self {
        let headers =
            &[("accept", "application/vnd.github+json"), ("x-github-api-version", "2022-11-28")];
        let client = ForgeClient::new(address, Token::bearer(secret), headers);
        Self { client, repository: repository.to_owned() }
    }

    fn path(&self, path: &str) -> String {
        format!("repos/{}/{path}", self.repository)
    }
}

fn comment(row: &Value) -> Option<ForgeComment> {
    let author = row.pointer("/user/login").and_then(Value::as_str).unwrap_or_default().to_owned();
    let body = row.get("body")?.as_str()?.to_owned();
    Some(ForgeComment { id: row.get("id")?.as_u64()?, author, body })
}

impl Forge for GitHub {
    fn author(&self) -> Result<String, ForgeError> {
        match self.client.get("user") {
            // A workflow token belongs to an app, which is not a user.
            Err(ForgeError::Refused(_)) => Ok(WORKFLOW_AUTHOR.to_owned()),
            Err(error) => Err(error),
            Ok(user) => {
                let login = user.get("login").and_then(Value::as_str).map(str::to_owned);
                login
                    .ok_or_else(|| ForgeError::Unavailable("the response contains no login".into()))
            }
        }
    }

    fn comments(&self, pull: u64) -> Result<Vec<ForgeComment>, ForgeError> {
        let path =
            |page| self.path(&format!("issues/{pull}/comments?per_page={PAGE_SIZE}&page={page}"));
        self.client.pages(&path, &|page| {
            let rows = page.as_array().map(Vec::as_slice).unwrap_or_default();
            (rows.iter().filter_map(comment).collect(), rows.len() == PAGE_SIZE)
        })
    }

    fn create(&self, pull: u64, body: &str) -> Result<(), ForgeError> {
        let path = self.path(&format!("issues/{pull}/comments"));
        let is_there = || Ok(self.comments(pull)?.iter().any(|found| found.body == body));
        let body = json!({ "body": body });
        self.client.request_unless("POST", &path, Some(&body), &is_there).map(drop)
    }

    fn update(&self, _: u64, id: u64, body: &str) -> Result<(), ForgeError> {
        let path = self.path(&format!("issues/comments/{id}"));
        self.client.request("PATCH", &path, Some(&json!({ "body": body }))).map(drop)
    }

    fn delete(&self, _: u64, id: u64) -> Result<(), ForgeError> {
        let path = self.path(&format!("issues/comments/{id}"));
        self.client.request("DELETE", &path, None).map(drop)
    }

    fn set_status(&self, commit: &str, status: &CommitStatus) -> Result<(), ForgeError> {
        let CommitStatus { context, state, description } = status;
        let state = match state {
            CommitState::Success => "success",
            CommitState::Failure => "failure",
        };
        let body = json!({ "context": context, "state": state, "description": description });
        let path = self.path(&format!("statuses/{commit}"));
        self.client.request("POST", &path, Some(&body)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;

    use super::super::test_server::{self, Reply, TOKEN};
    use super::*;

    fn serve_replies(replies: Vec<Reply>) -> (GitHub, Receiver<String>) {
        let (address, requests) = test_server::serve_replies(replies);
        let GitHub { client, repository } = GitHub::new(address, "acme/fleet", TOKEN);
        (GitHub { client: client.without_waits(), repository }, requests)
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
        assert_eq!(github.update(7, 7, "text"), Ok(()));
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
        let error = github.update(7, 7, "x").expect_err("down");
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
            let error = github.update(7, 3, "x").expect_err(head);
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
