//! What a commit says about its origin: author, pull request, and whether its signature counts.

use serde::Serialize;

/// Longest name of an author, in characters.
const NAME_MAX: usize = 80;

/// Author and pull request of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct CommitOrigin {
    /// Name of the author, as the commit states it.
    pub author: String,
    /// Number of the pull request or merge request that the message names.
    pub pull_request: Option<u64>,
}

impl CommitOrigin {
    /// Returns the origin that author and message state.
    pub fn new(author: &str, message: &str) -> Self {
        Self {
            author: author.trim().chars().take(NAME_MAX).collect(),
            pull_request: pull_request(message),
        }
    }
}

/// Result of checking the signatures of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CommitSignature {
    /// No signers are listed.
    #[default]
    NotRequired,
    /// The commit counts: listed signers signed it and the commits before it.
    Verified,
    /// The commit does not count.
    Refused,
}

/// Returns the number in a message as GitHub, GitLab and Bitbucket write it for a merge.
fn pull_request(message: &str) -> Option<u64> {
    let subject = message.lines().next().unwrap_or_default().trim_end();
    let number = |text: &str, end: char| text.split(end).next()?.parse().ok();
    if let Some(rest) = subject.strip_prefix("Merge pull request #") {
        return number(rest, ' ');
    }
    if let Some((_, rest)) = subject.rsplit_once("(pull request #") {
        return number(rest, ')');
    }
    let squashed = subject.strip_suffix(')').and_then(|rest| rest.rsplit_once("(#"));
    if let Some((_, number)) = squashed {
        return number.parse().ok();
    }
    // GitLab writes it at the end. An author may write it above.
    let merged = message.lines().rev().find_map(|line| line.strip_prefix("See merge request "));
    merged.and_then(|rest| rest.trim_end().rsplit_once('!')?.1.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_of_a_merge_names_its_pull_request() {
        for (message, number) in [
            ("Merge pull request #12 from acme/web\n\nAdd web", Some(12)),
            ("Add web (#34)\n\nCo-authored-by: Bob", Some(34)),
            ("Merged in web (pull request #56)", Some(56)),
            (
                "Merge branch 'web' into 'main'\n\nAdd web\n\nSee merge request acme/fleet!78",
                Some(78),
            ),
            (
                "Merge\n\nSee merge request acme/fleet!1\n\nSee merge request acme/fleet!78",
                Some(78),
            ),
            ("Add web, closes #9", None),
            ("Add web (#x)", None),
            ("", None),
        ] {
            let origin = CommitOrigin::new(" Ann ", message);
            assert_eq!((origin.author.as_str(), origin.pull_request), ("Ann", number), "{message}");
        }
    }
}
