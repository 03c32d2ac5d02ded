//! Azure DevOps as a [`Forge`], by its APIs of
//! [threads](https://learn.microsoft.com/rest/api/azure/devops/git/pull-request-threads) and
//! [statuses](https://learn.microsoft.com/rest/api/azure/devops/git/statuses).
//!
//! A comment is the first one of a thread, and has the ID of the thread.

use serde_json::{Value, json};

use super::client::{ForgeAddress, ForgeClient, Token, segment};
use crate::apply::ports::{CommitState, CommitStatus, Forge, ForgeComment, ForgeError};

const VERSION: &str = "api-version=7.1";

/// A repository on Azure DevOps.
#[derive(Debug)]
pub struct AzureDevOps {
    client: ForgeClient,
    /// Path of the repository.
    repository: String,
}

impl AzureDevOps {
    /// Returns the repository `name` of a project. The address is that of the organization.
    pub fn new(address: ForgeAddress, project: &str, name: &str, secret: &str) -> Self {
        // Tokens of pipelines and of Entra are JSON Web Tokens; personal ones are passwords.
        let is_web_token = secret.starts_with("eyJ") && secret.matches('.').count() == 2;
        let token = if is_web_token { Token::bearer(secret) } else { Token::basic("", secret) };
        let client = ForgeClient::new(address, token, &[("content-type", "application/json")]);
        let repository = format!("{}/_apis/git/repositories/{}", segment(project), segment(name));
        Self { client, repository }
    }

    fn threads(&self, pull: u64) -> String {
        format!("{}/pullRequests/{pull}/threads", self.repository)
    }
}

fn comment(thread: &Value) -> Option<ForgeComment> {
    let first = thread.pointer("/comments/0")?;
    let is_deleted = |value: &Value| value.get("isDeleted") == Some(&Value::Bool(true));
    // The ID of the first comment of a thread is 1.
    if is_deleted(thread) || is_deleted(first) || first.get("id")?.as_u64() != Some(1) {
        return None;
    }
    let author = first.pointer("/author/id").and_then(Value::as_str).unwrap_or_default();
    let body = first.get("content")?.as_str()?.to_owned();
    Some(ForgeComment { id: thread.get("id")?.as_u64()?, author: author.to_owned(), body })
}

impl Forge for AzureDevOps {
    fn author(&self) -> Result<String, ForgeError> {
        let data = self.client.get("_apis/connectionData?api-version=7.1-preview")?;
        let id = data.pointer("/authenticatedUser/id").and_then(Value::as_str).map(str::to_owned);
        id.ok_or_else(|| ForgeError::Unavailable("the response contains no user".into()))
    }

    fn comments(&self, pull: u64) -> Result<Vec<ForgeComment>, ForgeError> {
        // The API returns all threads at once.
        let page = self.client.get(&format!("{}?{VERSION}", self.threads(pull)))?;
        let threads = page.get("value").and_then(Value::as_array);
        Ok(threads.into_iter().flatten().filter_map(comment).collect())
    }

    fn create(&self, pull: u64, body: &str) -> Result<(), ForgeError> {
        let is_there = || Ok(self.comments(pull)?.iter().any(|found| found.body == body));
        let path = format!("{}?{VERSION}", self.threads(pull));
        // An active thread would have to be resolved before the merge.
        let body = json!({
            "comments": [{ "parentCommentId": 0, "content": body, "commentType": "text" }],
            "status": "closed",
        });
        self.client.request_unless("POST", &path, Some(&body), &is_there).map(drop)
    }

    fn update(&self, pull: u64, id: u64, body: &str) -> Result<(), ForgeError> {
        let path = format!("{}/{id}/comments/1?{VERSION}", self.threads(pull));
        self.client.request("PATCH", &path, Some(&json!({ "content": body }))).map(drop)
    }

    fn delete(&self, pull: u64, id: u64) -> Result<(), ForgeError> {
        let path = format!("{}/{id}/comments/1?{VERSION}", self.threads(pull));
        self.client.request("DELETE", &path, None).map(drop)
    }

    fn set_status(&self, commit: &str, status: &CommitStatus) -> Result<(), ForgeError> {
        let CommitStatus { context, state, description } = status;
        let state = match state {
            CommitState::Success => "succeeded",
            CommitState::Failure => "failed",
        };
        let (genre, name) = context.split_once('/').unwrap_or(("fleetwright", context));
        let body = json!({
            "context": { "genre": genre, "name": name },
            "state": state,
            "description": description,
        });
        let path = format!("{}/commits/{commit}/statuses?{VERSION}", self.repository);
        self.client.request("POST", &path, Some(&body)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;

    use super::super::test_server::{self, Reply, TOKEN, lines, ok};
    use super::*;

    fn serve_replies(replies: Vec<Reply>) -> (AzureDevOps, Receiver<String>) {
        let (address, requests) = test_server::serve_replies(replies);
        let azure = AzureDevOps::new(address, "Our Fleet", "fleet", TOKEN);
        let AzureDevOps { client, repository } = azure;
        (AzureDevOps { client: client.without_waits(), repository }, requests)
    }

    #[test]
    fn first_comments_of_threads_are_read() {
        let text =
            |id: u64, text: &str| json!({ "id": id, "content": text, "author": { "id": "u" } });
        let threads = json!({ "value": [
            { "id": 4, "comments": [text(1, "x"), text(2, "reply")] },
            { "id": 5, "isDeleted": true, "comments": [text(1, "y")] },
            { "id": 6, "comments": [] },
        ] });
        let (azure, requests) = serve_replies(vec![ok(&threads)]);
        let expected = ForgeComment { id: 4, author: "u".into(), body: "x".into() };
        assert_eq!(azure.comments(3), Ok(vec![expected]));
        let (line, _) = lines(&requests).remove(0);
        let path =
            "/Our%20Fleet/_apis/git/repositories/fleet/pullRequests/3/threads?api-version=7.1";
        assert_eq!(line, format!("GET {path}"));
    }

    #[test]
    fn thread_is_written_updated_and_deleted() {
        let done = || ok(&json!({ "id": 4 }));
        let (azure, requests) = serve_replies(vec![done(), done(), done()]);
        assert_eq!(azure.create(3, "a"), Ok(()));
        assert_eq!(azure.update(3, 4, "b"), Ok(()));
        assert_eq!(azure.delete(3, 4), Ok(()));
        let asked = lines(&requests);
        assert!(asked[0].1.contains("\"status\":\"closed\""), "{}", asked[0].1);
        assert!(asked[1].0.starts_with("PATCH ") && asked[1].1 == "{\"content\":\"b\"}");
        assert!(asked[2].0.contains("/threads/4/comments/1?"), "{}", asked[2].0);
    }

    #[test]
    fn unknown_token_is_named_and_hidden() {
        let login = ("302 Found\r\nlocation: https://login.example", String::new());
        let (azure, requests) = serve_replies(vec![login]);
        let error = azure.author().expect_err("a login page");
        assert!(matches!(error, ForgeError::Unknown(_)), "{error:?}");
        let request = requests.recv().expect("asked").to_ascii_lowercase();
        assert!(request.contains("authorization: basic "), "{request}");
        assert!(!format!("{error} {azure:?}").contains(TOKEN));
    }

    #[test]
    fn web_token_is_a_bearer_token() {
        let (address, requests) =
            test_server::serve_replies(vec![ok(&json!({ "authenticatedUser": { "id": "u" } }))]);
        let azure = AzureDevOps::new(address, "p", "r", "eyJa.b.c");
        assert_eq!(azure.author(), Ok("u".to_owned()));
        let request = requests.recv().expect("asked").to_ascii_lowercase();
        assert!(request.contains("authorization: bearer eyja.b.c"), "{request}");
    }

    #[test]
    fn status_is_set_on_its_commit() {
        let (azure, requests) = serve_replies(vec![("201 Created", "{}".into())]);
        let status = CommitStatus {
            context: "fleetwright/plan".into(),
            state: CommitState::Success,
            description: "1 to add".into(),
        };
        assert_eq!(azure.set_status("4f2c9a1", &status), Ok(()));
        let (line, body) = lines(&requests).remove(0);
        assert!(line.ends_with("/fleet/commits/4f2c9a1/statuses?api-version=7.1"), "{line}");
        assert!(body.contains("\"genre\":\"fleetwright\",\"name\":\"plan\""), "{body}");
    }
}
