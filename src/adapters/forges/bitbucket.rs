//! Bitbucket Cloud as a [`Forge`], by its APIs of
//! [pull requests](https://developer.atlassian.com/cloud/bitbucket/rest/api-group-pullrequests/) and
//! [commit statuses](https://developer.atlassian.com/cloud/bitbucket/rest/api-group-commit-statuses/).

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::client::{ForgeAddress, ForgeClient, Token};
use crate::apply::ports::{
    CommentSyntax, CommitState, CommitStatus, Forge, ForgeComment, ForgeError,
};

/// Comments per page.
const PAGE_SIZE: usize = 100;
/// Maximum characters of the key of a status.
const KEY_CHARS_MAX: usize = 40;
/// Characters of the hash in a key that was cut.
const KEY_HASH_CHARS: usize = 8;

/// A repository on Bitbucket Cloud.
#[derive(Debug)]
pub struct Bitbucket {
    client: ForgeClient,
    repository: String,
}

impl Bitbucket {
    /// Returns the repository `WORKSPACE/NAME`.
    pub fn new(address: ForgeAddress, repository: &str, token: Token) -> Self {
        let client = ForgeClient::new(address, token, &[("content-type", "application/json")]);
        Self { client, repository: repository.to_owned() }
    }

    fn path(&self, pull: u64) -> String {
        format!("repositories/{}/pullrequests/{pull}/comments", self.repository)
    }
}

/// Returns a comment. Without a known author of the token, all comments count as of one author: the
/// API refuses to change those of another one.
fn comment(row: &Value, is_author_known: bool) -> Option<ForgeComment> {
    if row.get("deleted") == Some(&Value::Bool(true)) {
        return None;
    }
    let author = row.pointer("/user/uuid").and_then(Value::as_str).filter(|_| is_author_known);
    let body = row.pointer("/content/raw")?.as_str()?.to_owned();
    let author = author.unwrap_or_default().to_owned();
    Some(ForgeComment { id: row.get("id")?.as_u64()?, author, body })
}

impl Forge for Bitbucket {
    fn syntax(&self) -> CommentSyntax {
        CommentSyntax::Plain
    }

    fn author(&self) -> Result<String, ForgeError> {
        match self.client.get("user") {
            // An access token of a repository may not read its user.
            Err(ForgeError::Refused(_) | ForgeError::Unknown(_) | ForgeError::NotFound(_)) => {
                Ok(String::new())
            }
            Err(error) => Err(error),
            Ok(user) => {
                let uuid = user.get("uuid").and_then(Value::as_str).unwrap_or_default();
                Ok(uuid.to_owned())
            }
        }
    }

    fn comments(&self, pull: u64) -> Result<Vec<ForgeComment>, ForgeError> {
        let is_author_known = !self.author()?.is_empty();
        let path =
            |page| format!("{}?sort=created_on&pagelen={PAGE_SIZE}&page={page}", self.path(pull));
        self.client.pages(&path, &|page| {
            let rows = page.get("values").and_then(Value::as_array);
            let rows = rows.map(Vec::as_slice).unwrap_or_default();
            let rows = rows.iter().filter_map(|row| comment(row, is_author_known)).collect();
            (rows, page.get("next").is_some())
        })
    }

    fn create(&self, pull: u64, body: &str) -> Result<(), ForgeError> {
        let is_there = || Ok(self.comments(pull)?.iter().any(|found| found.body == body));
        let body = json!({ "content": { "raw": body } });
        self.client.request_unless("POST", &self.path(pull), Some(&body), &is_there).map(drop)
    }

    fn update(&self, pull: u64, id: u64, body: &str) -> Result<(), ForgeError> {
        let path = format!("{}/{id}", self.path(pull));
        self.client.request("PUT", &path, Some(&json!({ "content": { "raw": body } }))).map(drop)
    }

    fn delete(&self, pull: u64, id: u64) -> Result<(), ForgeError> {
        let path = format!("{}/{id}", self.path(pull));
        self.client.request("DELETE", &path, None).map(drop)
    }

    fn set_status(&self, commit: &str, status: &CommitStatus) -> Result<(), ForgeError> {
        let CommitStatus { context, state, description } = status;
        let state = match state {
            CommitState::Success => "SUCCESSFUL",
            CommitState::Failure => "FAILED",
        };
        let repository = &self.repository;
        let body = json!({
            "key": status_key(context),
            "name": context,
            "state": state,
            "description": description,
            // The API requires a page of the status.
            "url": format!("https://bitbucket.org/{repository}/commits/{commit}"),
        });
        let path = format!("repositories/{repository}/commit/{commit}/statuses/build");
        self.client.request("POST", &path, Some(&body)).map(drop)
    }
}

/// Returns the key of a status. A long one is cut and gets a hash, because a status replaces the one
/// with the same key.
fn status_key(context: &str) -> String {
    if context.chars().count() <= KEY_CHARS_MAX {
        return context.to_owned();
    }
    let hash = hex::encode(Sha256::digest(context));
    let cut = context.chars().take(KEY_CHARS_MAX - KEY_HASH_CHARS - 1);
    cut.chain("-".chars()).chain(hash.chars().take(KEY_HASH_CHARS)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;

    use super::super::test_server::{self, Reply, TOKEN, lines, ok};
    use super::*;

    fn serve_replies(replies: Vec<Reply>) -> (Bitbucket, Receiver<String>) {
        let (address, requests) = test_server::serve_replies(replies);
        let bitbucket = Bitbucket::new(address, "acme/fleet", Token::basic("ci@acme", TOKEN));
        let Bitbucket { client, repository } = bitbucket;
        (Bitbucket { client: client.without_waits(), repository }, requests)
    }

    fn row(id: u64, body: &str) -> Value {
        json!({ "id": id, "content": { "raw": body }, "user": { "uuid": "{a}" } })
    }

    #[test]
    fn comments_are_read_page_by_page() {
        let first = json!({ "values": [row(7, "x")], "next": "https://elsewhere.example" });
        let mut deleted = row(8, "");
        deleted["deleted"] = json!(true);
        let last = json!({ "values": [deleted, row(9, "y")] });
        let user = ok(&json!({ "uuid": "{a}" }));
        let (bitbucket, requests) = serve_replies(vec![user, ok(&first), ok(&last)]);
        let found = bitbucket.comments(3).expect("read");
        assert_eq!(
            found.iter().map(|c| (c.id, &*c.author)).collect::<Vec<_>>(),
            [(7, "{a}"), (9, "{a}")]
        );
        let asked = lines(&requests);
        assert!(asked[2].0.starts_with("GET /repositories/acme/fleet/pullrequests/3/comments?"));
        assert!(asked[2].0.ends_with("page=2"), "{}", asked[2].0);
    }

    #[test]
    fn comment_without_known_author_may_be_our_own() {
        let refused = || ("403 Forbidden", json!({ "error": { "message": "scope" } }).to_string());
        let page = json!({ "values": [row(7, "x")] });
        let (bitbucket, _) = serve_replies(vec![refused(), ok(&page), refused()]);
        assert_eq!(bitbucket.comments(3).expect("read")[0].author, "");
        assert_eq!(bitbucket.author(), Ok(String::new()));
    }

    #[test]
    fn comment_is_written_updated_and_deleted() {
        let done = || ok(&json!({ "id": 7 }));
        let (bitbucket, requests) =
            serve_replies(vec![done(), done(), ("204 No Content", String::new())]);
        assert_eq!(bitbucket.create(3, "a"), Ok(()));
        assert_eq!(bitbucket.update(3, 7, "b"), Ok(()));
        assert_eq!(bitbucket.delete(3, 7), Ok(()));
        let comments = "/repositories/acme/fleet/pullrequests/3/comments";
        let expected = [
            (format!("POST {comments}"), "{\"content\":{\"raw\":\"a\"}}"),
            (format!("PUT {comments}/7"), "{\"content\":{\"raw\":\"b\"}}"),
            (format!("DELETE {comments}/7"), ""),
        ];
        assert_eq!(lines(&requests), expected.map(|(line, body)| (line, body.to_owned())));
    }

    #[test]
    fn status_has_key_state_and_page() {
        let (bitbucket, requests) = serve_replies(vec![("201 Created", "{}".into())]);
        let status = CommitStatus {
            context: "fleetwright/plan".into(),
            state: CommitState::Success,
            description: "1 to add".into(),
        };
        assert_eq!(bitbucket.set_status("4f2c9a1", &status), Ok(()));
        let (line, body) = lines(&requests).remove(0);
        assert_eq!(line, "POST /repositories/acme/fleet/commit/4f2c9a1/statuses/build");
        for expected in ["\"key\":\"fleetwright/plan\"", "\"SUCCESSFUL\"", "\"url\":\"https://"] {
            assert!(body.contains(expected), "{body}");
        }
    }

    #[test]
    fn long_status_names_have_different_keys() {
        let name = |cluster: &str| format!("fleetwright/plan/{cluster}");
        assert_eq!(status_key(&name("prod-eu1")), "fleetwright/plan/prod-eu1");
        let long = ["production-europe-west-1", "production-europe-west-2"];
        let keys = long.map(|cluster| status_key(&name(cluster)));
        assert!(keys.iter().all(|key| key.len() == KEY_CHARS_MAX), "{keys:?}");
        assert!(keys[0] != keys[1] && keys[0].starts_with("fleetwright/plan/production-eur"));
    }
}
