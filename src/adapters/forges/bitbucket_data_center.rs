//! Bitbucket Data Center as a [`Forge`], by its APIs of
//! [pull requests](https://developer.atlassian.com/server/bitbucket/rest/v906/api-group-pull-requests/)
//! and [builds](https://developer.atlassian.com/server/bitbucket/how-tos/updating-build-status-for-commits).
//!
//! Every change of a comment names the version that it replaces. The list of comments is that of one
//! file, so general comments are read from the activities of the pull request.

use std::cell::Cell;

use serde_json::{Value, json};

use super::client::{ForgeAddress, ForgeClient, Token, segment};
use crate::apply::ports::{
    CommentSyntax, CommitState, CommitStatus, Forge, ForgeComment, ForgeError,
};

/// Activities per page.
const PAGE_SIZE: usize = 100;
/// Maximum characters of the description of a build.
const DESCRIPTION_CHARS_MAX: usize = 255;

/// A repository on Bitbucket Data Center.
#[derive(Debug)]
pub struct BitbucketDataCenter {
    client: ForgeClient,
    /// Path of the repository.
    repository: String,
    /// Page of the repository.
    page: String,
}

impl BitbucketDataCenter {
    /// Returns the repository `slug` of a project. The address is that of the server. A project that
    /// begins with `~` is the one of a user.
    pub fn new(address: ForgeAddress, project: &str, slug: &str, token: Token) -> Self {
        // Without the header, the server refuses requests without a body as forged ones.
        let headers = &[("content-type", "application/json"), ("x-atlassian-token", "no-check")];
        let (project, slug) = (segment(project), segment(slug));
        let page = format!("{address}/projects/{project}/repos/{slug}");
        let repository = format!("rest/api/latest/projects/{project}/repos/{slug}");
        Self { client: ForgeClient::new(address, token, headers), repository, page }
    }

    fn pull(&self, pull: u64) -> String {
        format!("{}/pull-requests/{pull}", self.repository)
    }

    fn comment(&self, pull: u64, id: u64) -> Result<(String, Value), ForgeError> {
        let path = format!("{}/comments/{id}", self.pull(pull));
        let found = self.client.get(&path)?;
        Ok((path, found))
    }
}

fn version(comment: &Value) -> u64 {
    comment.get("version").and_then(Value::as_u64).unwrap_or(0)
}

/// Returns the comment that an activity added. Without a known author of the token, all comments
/// count as of one author: the API refuses to change those of another one.
fn added_comment(activity: &Value, is_author_known: bool) -> Option<ForgeComment> {
    let is = |key: &str, value: &str| activity.get(key).and_then(Value::as_str) == Some(value);
    if !is("action", "COMMENTED") || !is("commentAction", "ADDED") {
        return None;
    }
    let comment = activity.get("comment")?;
    let author = comment.pointer("/author/name").and_then(Value::as_str);
    let author = author.filter(|_| is_author_known).unwrap_or_default().to_owned();
    let body = comment.get("text")?.as_str()?.to_owned();
    Some(ForgeComment { id: comment.get("id")?.as_u64()?, author, body })
}

/// Bitbucket answers 401 to a change of a comment of another user. The token itself was accepted,
/// because the comment was read.
fn refused_if_unknown(error: ForgeError) -> ForgeError {
    if let ForgeError::Unknown(text) = error { ForgeError::Refused(text) } else { error }
}

impl Forge for BitbucketDataCenter {
    fn syntax(&self) -> CommentSyntax {
        CommentSyntax::Plain
    }

    fn author(&self) -> Result<String, ForgeError> {
        // The REST API has no call for the user of a token.
        match self.client.request("GET", "plugins/servlet/applinks/whoami", None) {
            Err(ForgeError::Refused(_) | ForgeError::Unknown(_) | ForgeError::NotFound(_)) => {
                Ok(String::new())
            }
            Err(error) => Err(error),
            Ok(name) => Ok(name.trim().to_owned()),
        }
    }

    fn comments(&self, pull: u64) -> Result<Vec<ForgeComment>, ForgeError> {
        let is_author_known = !self.author()?.is_empty();
        let start = Cell::new(0);
        let path =
            |_| format!("{}/activities?limit={PAGE_SIZE}&start={}", self.pull(pull), start.get());
        let mut comments = self.client.pages(&path, &|page| {
            let rows = page.get("values").and_then(Value::as_array);
            let rows = rows.map(Vec::as_slice).unwrap_or_default();
            let rows = rows.iter().filter_map(|row| added_comment(row, is_author_known)).collect();
            // The server skips activities that the token may not read.
            let next = page.get("nextPageStart").and_then(Value::as_u64);
            start.set(next.unwrap_or_default());
            (rows, next.is_some() && page.get("isLastPage") != Some(&Value::Bool(true)))
        })?;
        // The newest activity comes first.
        comments.sort_by_key(|comment| comment.id);
        Ok(comments)
    }

    fn create(&self, pull: u64, body: &str) -> Result<(), ForgeError> {
        let is_there = || Ok(self.comments(pull)?.iter().any(|found| found.body == body));
        let path = format!("{}/comments", self.pull(pull));
        let text = json!({ "text": body });
        self.client.request_unless("POST", &path, Some(&text), &is_there).map(drop)
    }

    fn update(&self, pull: u64, id: u64, body: &str) -> Result<(), ForgeError> {
        let (path, found) = self.comment(pull, id)?;
        let text = json!({ "text": body, "version": version(&found) });
        // A repeated request has an outdated version.
        let is_written = || {
            let (_, found) = self.comment(pull, id)?;
            Ok(found.get("text").and_then(Value::as_str) == Some(body))
        };
        let answer = self.client.request_unless("PUT", &path, Some(&text), &is_written);
        answer.map(drop).map_err(refused_if_unknown)
    }

    fn delete(&self, pull: u64, id: u64) -> Result<(), ForgeError> {
        // An administrator may delete comments of other users.
        if self.author()?.is_empty() {
            return Err(ForgeError::Refused("the user of the token is unknown".to_owned()));
        }
        let (path, found) = self.comment(pull, id)?;
        let path = format!("{path}?version={}", version(&found));
        self.client.request("DELETE", &path, None).map(drop).map_err(refused_if_unknown)
    }

    fn set_status(&self, commit: &str, status: &CommitStatus) -> Result<(), ForgeError> {
        let CommitStatus { context, state, description } = status;
        let state = match state {
            CommitState::Success => "SUCCESSFUL",
            CommitState::Failure => "FAILED",
        };
        let body = json!({
            "key": context,
            "name": context,
            "state": state,
            "description": description.chars().take(DESCRIPTION_CHARS_MAX).collect::<String>(),
            // The API requires a page of the build.
            "url": format!("{}/commits/{commit}", self.page),
        });
        let path = format!("{}/commits/{commit}/builds", self.repository);
        self.client.request("POST", &path, Some(&body)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;

    use super::super::test_server::{self, Reply, TOKEN, lines, ok};
    use super::*;

    const PULL: &str = "/rest/api/latest/projects/OPS/repos/fleet/pull-requests/3";

    fn serve_replies(replies: Vec<Reply>) -> (BitbucketDataCenter, Receiver<String>) {
        let (address, requests) = test_server::serve_replies(replies);
        let server = BitbucketDataCenter::new(address, "OPS", "fleet", Token::bearer(TOKEN));
        let BitbucketDataCenter { client, repository, page } = server;
        let client = client.without_waits();
        (BitbucketDataCenter { client, repository, page }, requests)
    }

    fn activity(id: u64, text: &str) -> Value {
        json!({ "action": "COMMENTED", "commentAction": "ADDED",
            "comment": { "id": id, "version": 2, "text": text, "author": { "name": "ci" } } })
    }

    fn whoami(name: &str) -> Reply {
        ("200 OK", name.to_owned())
    }

    #[test]
    fn comments_are_the_added_ones_of_all_pages() {
        let approved = json!({ "action": "APPROVED", "user": { "name": "ann" } });
        let mut deleted = activity(8, "gone");
        deleted["commentAction"] = json!("DELETED");
        let rows = json!([activity(9, "y"), approved]);
        let first = json!({ "values": rows, "isLastPage": false, "nextPageStart": 250 });
        let last = json!({ "values": [deleted, activity(7, "x")], "isLastPage": true });
        let (server, requests) = serve_replies(vec![whoami("ci\n"), ok(&first), ok(&last)]);
        let found = server.comments(3).expect("read");
        let found: Vec<_> = found.iter().map(|c| (c.id, &*c.author, &*c.body)).collect();
        assert_eq!(found, [(7, "ci", "x"), (9, "ci", "y")], "oldest first");
        let asked = lines(&requests);
        assert_eq!(asked[0].0, "GET /plugins/servlet/applinks/whoami");
        assert_eq!(asked[2].0, format!("GET {PULL}/activities?limit=100&start=250"));
    }

    #[test]
    fn comment_without_known_author_may_be_our_own() {
        let page = json!({ "values": [activity(7, "x")], "isLastPage": true });
        let (server, _) = serve_replies(vec![whoami(""), ok(&page)]);
        assert_eq!(server.comments(3).expect("read")[0].author, "");
    }

    #[test]
    fn update_and_deletion_name_the_version() {
        let found = || ok(&json!({ "id": 7, "version": 4, "text": "a" }));
        let done = || ok(&json!({ "id": 7 }));
        let deleted = ("204 No Content", String::new());
        let replies = vec![done(), found(), done(), whoami("ci"), found(), deleted];
        let (server, requests) = serve_replies(replies);
        assert_eq!(server.create(3, "a"), Ok(()));
        assert_eq!(server.update(3, 7, "b"), Ok(()));
        assert_eq!(server.delete(3, 7), Ok(()));
        let asked = lines(&requests);
        let line = |n: usize| (asked[n].0.as_str(), asked[n].1.as_str());
        assert_eq!(line(0), (&*format!("POST {PULL}/comments"), "{\"text\":\"a\"}"));
        assert_eq!(line(2), (&*format!("PUT {PULL}/comments/7"), "{\"text\":\"b\",\"version\":4}"));
        assert_eq!(line(5), (&*format!("DELETE {PULL}/comments/7?version=4"), ""));
    }

    #[test]
    fn comments_of_other_users_are_neither_changed_nor_deleted() {
        let found = ok(&json!({ "id": 7, "version": 4, "text": "a" }));
        let refused = ("401 Unauthorized", "{}".to_owned());
        let (server, _) = serve_replies(vec![found, refused, whoami("")]);
        assert!(matches!(server.update(3, 7, "b"), Err(ForgeError::Refused(_))));
        assert!(matches!(server.delete(3, 7), Err(ForgeError::Refused(_))));
    }

    #[test]
    fn lost_answer_of_an_update_is_no_conflict() {
        let found = |text: &str| ok(&json!({ "id": 7, "version": 4, "text": text }));
        let lost = ("503 Unavailable", String::new());
        let (server, requests) = serve_replies(vec![found("a"), lost, found("b")]);
        assert_eq!(server.update(3, 7, "b"), Ok(()));
        assert_eq!(lines(&requests).len(), 3);
    }

    #[test]
    fn conflict_has_the_message_of_the_server() {
        let found = ok(&json!({ "id": 7, "version": 4, "text": "a" }));
        let message = json!({ "errors": [{ "context": null, "message": "out of date" }] });
        let (server, _) = serve_replies(vec![found, ("409 Conflict", message.to_string())]);
        let expected = Err(ForgeError::Unprocessable("409 out of date".to_owned()));
        assert_eq!(server.update(3, 7, "b"), expected);
    }

    #[test]
    fn status_has_key_state_and_page() {
        let (server, requests) = serve_replies(vec![("204 No Content", String::new())]);
        let status = CommitStatus {
            context: "fleetwright/plan".into(),
            state: CommitState::Failure,
            description: "x".repeat(300),
        };
        assert_eq!(server.set_status("4f2c9a1", &status), Ok(()));
        let request = requests.recv().expect("asked");
        let (head, body) = request.split_once("\r\n\r\n").expect("a body");
        let path = "/rest/api/latest/projects/OPS/repos/fleet/commits/4f2c9a1/builds";
        assert!(head.starts_with(&format!("POST {path} ")), "{head}");
        assert!(head.to_ascii_lowercase().contains("authorization: bearer "), "{head}");
        let body: Value = serde_json::from_str(body).expect("JSON");
        assert_eq!((&body["key"], &body["state"]), (&json!("fleetwright/plan"), &json!("FAILED")));
        assert_eq!(body["description"].as_str().map(str::len), Some(255));
        let url = body["url"].as_str().expect("a page");
        assert!(url.ends_with("/projects/OPS/repos/fleet/commits/4f2c9a1"), "{url}");
    }
}
