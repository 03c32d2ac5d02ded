//! GitLab as a [`Forge`], by its APIs of [notes](https://docs.gitlab.com/api/notes/) and
//! [commit statuses](https://docs.gitlab.com/api/commits/#set-the-pipeline-status-of-a-commit).

use serde_json::{Value, json};

use super::client::{ForgeAddress, ForgeClient, Token, segment};
use crate::apply::ports::{
    CommentSyntax, CommitState, CommitStatus, Forge, ForgeComment, ForgeError,
};

/// Notes per page.
const PAGE_SIZE: usize = 100;

/// A project on GitLab.
#[derive(Debug)]
pub struct GitLab {
    client: ForgeClient,
    project: String,
}

impl GitLab {
    /// Returns the project with the path `GROUP/NAME`, or with an ID.
    pub fn new(address: ForgeAddress, project: &str, secret: &str) -> Self {
        let token = Token::in_header("private-token", secret);
        let client = ForgeClient::new(address, token, &[("content-type", "application/json")]);
        Self { client, project: segment(project) }
    }

    fn notes(&self, merge_request: u64) -> String {
        format!("projects/{}/merge_requests/{merge_request}/notes", self.project)
    }
}

fn comment(row: &Value) -> Option<ForgeComment> {
    if row.get("system") == Some(&Value::Bool(true)) {
        return None;
    }
    let author = row.pointer("/author/username").and_then(Value::as_str).unwrap_or_default();
    let body = row.get("body")?.as_str()?.to_owned();
    Some(ForgeComment { id: row.get("id")?.as_u64()?, author: author.to_owned(), body })
}

impl Forge for GitLab {
    fn syntax(&self) -> CommentSyntax {
        CommentSyntax::GitLab
    }

    fn author(&self) -> Result<String, ForgeError> {
        let user = self.client.get("user")?;
        let name = user.get("username").and_then(Value::as_str).map(str::to_owned);
        name.ok_or_else(|| ForgeError::Unavailable("the response contains no username".into()))
    }

    fn comments(&self, pull: u64) -> Result<Vec<ForgeComment>, ForgeError> {
        let notes = self.notes(pull);
        let query = format!("sort=asc&order_by=created_at&per_page={PAGE_SIZE}");
        self.client.pages(&|page| format!("{notes}?{query}&page={page}"), &|page| {
            let rows = page.as_array().map(Vec::as_slice).unwrap_or_default();
            (rows.iter().filter_map(comment).collect(), rows.len() == PAGE_SIZE)
        })
    }

    fn create(&self, pull: u64, body: &str) -> Result<(), ForgeError> {
        let is_there = || Ok(self.comments(pull)?.iter().any(|found| found.body == body));
        let body = json!({ "body": body });
        self.client.request_unless("POST", &self.notes(pull), Some(&body), &is_there).map(drop)
    }

    fn update(&self, pull: u64, id: u64, body: &str) -> Result<(), ForgeError> {
        let path = format!("{}/{id}", self.notes(pull));
        self.client.request("PUT", &path, Some(&json!({ "body": body }))).map(drop)
    }

    fn delete(&self, pull: u64, id: u64) -> Result<(), ForgeError> {
        let path = format!("{}/{id}", self.notes(pull));
        self.client.request("DELETE", &path, None).map(drop)
    }

    fn set_status(&self, commit: &str, status: &CommitStatus) -> Result<(), ForgeError> {
        let CommitStatus { context, state, description } = status;
        let state = match state {
            CommitState::Success => "success",
            CommitState::Failure => "failed",
        };
        let body = json!({ "name": context, "state": state, "description": description });
        let path = format!("projects/{}/statuses/{commit}", self.project);
        match self.client.request("POST", &path, Some(&body)) {
            // The status has this state already.
            Err(ForgeError::Unprocessable(why)) if why.contains("Cannot transition status") => {
                Ok(())
            }
            end => end.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;

    use super::super::test_server::{self, Reply, TOKEN, lines, ok};
    use super::*;

    fn serve_replies(replies: Vec<Reply>) -> (GitLab, Receiver<String>) {
        let (address, requests) = test_server::serve_replies(replies);
        let GitLab { client, project } = GitLab::new(address, "acme/infra/fleet", TOKEN);
        (GitLab { client: client.without_waits(), project }, requests)
    }

    #[test]
    fn notes_are_read_without_system_notes() {
        let own = json!({ "id": 7, "body": "x", "author": { "username": "bot" } });
        let system = json!({ "id": 8, "body": "approved", "system": true });
        let (gitlab, requests) = serve_replies(vec![ok(&json!([own, system]))]);
        let expected = ForgeComment { id: 7, author: "bot".into(), body: "x".into() };
        assert_eq!(gitlab.comments(3), Ok(vec![expected]));
        let request = requests.recv().expect("asked").to_ascii_lowercase();
        let path = "get /projects/acme%2finfra%2ffleet/merge_requests/3/notes?sort=asc";
        assert!(request.starts_with(path), "{request}");
        assert!(request.contains(&format!("private-token: {TOKEN}")), "{request}");
    }

    #[test]
    fn note_is_written_updated_and_deleted() {
        let done = || ok(&json!({ "id": 7 }));
        let (gitlab, requests) = serve_replies(vec![done(), done(), done()]);
        assert_eq!(gitlab.create(3, "a"), Ok(()));
        assert_eq!(gitlab.update(3, 7, "b"), Ok(()));
        assert_eq!(gitlab.delete(3, 7), Ok(()));
        let notes = "/projects/acme%2Finfra%2Ffleet/merge_requests/3/notes";
        let expected = [
            (format!("POST {notes}"), "{\"body\":\"a\"}"),
            (format!("PUT {notes}/7"), "{\"body\":\"b\"}"),
            (format!("DELETE {notes}/7"), ""),
        ];
        assert_eq!(lines(&requests), expected.map(|(line, body)| (line, body.to_owned())));
    }

    #[test]
    fn status_that_is_set_already_is_no_error() {
        let same = json!({ "message": "Cannot transition status via :succeed from :success" });
        let (gitlab, requests) = serve_replies(vec![("400 Bad Request", same.to_string())]);
        let status = CommitStatus {
            context: "fleetwright/plan".into(),
            state: CommitState::Failure,
            description: "1 to add".into(),
        };
        assert_eq!(gitlab.set_status("4f2c9a1", &status), Ok(()));
        let (line, body) = lines(&requests).remove(0);
        assert_eq!(line, "POST /projects/acme%2Finfra%2Ffleet/statuses/4f2c9a1");
        assert!(body.contains("\"state\":\"failed\""), "{body}");
    }

    #[test]
    fn errors_hide_the_token() {
        let reply = ("403 Forbidden", json!({ "error": "insufficient_scope" }).to_string());
        let (gitlab, _) = serve_replies(vec![reply]);
        let error = gitlab.create(3, "a").expect_err("refused");
        assert_eq!(error, ForgeError::Refused("403 insufficient_scope".into()));
        assert!(!format!("{error} {gitlab:?}").contains(TOKEN));
    }
}
