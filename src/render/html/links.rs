//! Links to commits on the web pages of a Git host.

use super::escape::text;

/// Displayed characters of a commit.
const COMMIT_SHOWN: usize = 10;
/// Git hosts whose pages are known, with the path between repository and commit or number.
const HOSTS: [GitHost; 3] = [
    GitHost { name: "github", commits: "commit", pull_requests: "pull" },
    GitHost { name: "gitlab", commits: "-/commit", pull_requests: "-/merge_requests" },
    GitHost { name: "bitbucket", commits: "commits", pull_requests: "pull-requests" },
];

struct GitHost {
    name: &'static str,
    commits: &'static str,
    pull_requests: &'static str,
}

/// Returns the first characters of a commit, linked if the web address of the repository is known.
pub fn commit(repository: Option<&str>, commit: &str) -> String {
    let short = text(&commit.chars().take(COMMIT_SHOWN).collect::<String>(), COMMIT_SHOWN * 2);
    let code = format!("<code>{short}</code>");
    let is_hash = commit.len() >= 40 && commit.chars().all(|c| c.is_ascii_hexdigit());
    match repository.and_then(web_page).filter(|_| is_hash) {
        Some((page, host)) => {
            let part = host.commits;
            format!("<a href=\"{page}/{part}/{commit}\" rel=\"noopener noreferrer\">{code}</a>")
        }
        None => code,
    }
}

/// Returns the number of a pull request, linked if the web address of the repository is known.
pub(super) fn pull_request(repository: Option<&str>, number: u64) -> String {
    match repository.and_then(web_page) {
        Some((page, host)) => {
            let part = host.pull_requests;
            format!("<a href=\"{page}/{part}/{number}\" rel=\"noopener noreferrer\">#{number}</a>")
        }
        None => format!("#{number}"),
    }
}

/// Returns the web address of a repository on a known host.
fn web_page(repository: &str) -> Option<(String, &'static GitHost)> {
    let address = repository.strip_suffix(".git").unwrap_or(repository).trim_end_matches('/');
    let address = match address.split_once("://") {
        Some(("https" | "http" | "ssh" | "git", rest)) => {
            rest.rsplit_once('@').map_or(rest, |(_, rest)| rest).to_owned()
        }
        Some(_) => return None,
        // `git@host:path`, as Git itself writes it; the credentials may be absent.
        None => {
            let rest = address.rsplit_once('@').map_or(address, |(_, rest)| rest);
            rest.replacen(':', "/", 1)
        }
    };
    let (host, path) = address.split_once('/')?;
    // A port is that of Git, and not that of the web pages.
    let host = host.split(':').next()?;
    let is_plain = |text: &str, more: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
    };
    let is_path = is_plain(path, "-._~/") && path.contains('/') && !path.contains("..");
    if !is_plain(host, "-.") || !host.contains('.') || !is_path {
        return None;
    }
    let known = HOSTS.iter().find(|known| host.contains(known.name))?;
    Some((format!("https://{host}/{path}"), known))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "4f2c9a1d5e6b7c8d9e0f1a2b3c4d5e6f7a8b9c0d";

    #[test]
    fn commit_links_to_its_page_on_a_known_host() {
        for (repository, page) in [
            ("https://github.com/acme/fleet.git", "https://github.com/acme/fleet/commit"),
            ("git@github.com:acme/fleet.git", "https://github.com/acme/fleet/commit"),
            ("github.com:acme/fleet", "https://github.com/acme/fleet/commit"),
            ("ssh://git@gitlab.acme.io:2222/a/b/c.git", "https://gitlab.acme.io/a/b/c/-/commit"),
            ("https://bitbucket.org/acme/fleet", "https://bitbucket.org/acme/fleet/commits"),
        ] {
            let link = commit(Some(repository), COMMIT);
            assert!(link.contains(&format!("href=\"{page}/{COMMIT}\"")), "{repository}: {link}");
            assert!(link.contains("<code>4f2c9a1d5e</code>"), "{link}");
        }
    }

    #[test]
    fn pull_request_links_to_its_page_on_a_known_host() {
        for (repository, page) in [
            ("https://github.com/acme/fleet.git", "https://github.com/acme/fleet/pull/12"),
            ("git@gitlab.com:acme/fleet.git", "https://gitlab.com/acme/fleet/-/merge_requests/12"),
            ("https://bitbucket.org/a/b", "https://bitbucket.org/a/b/pull-requests/12"),
        ] {
            let link = pull_request(Some(repository), 12);
            assert!(link.contains(&format!("href=\"{page}\"")), "{repository}: {link}");
        }
        assert_eq!(pull_request(Some("/srv/fleet.git"), 12), "#12");
        assert_eq!(pull_request(None, 12), "#12");
    }

    #[test]
    fn commit_has_no_link_without_a_known_web_address() {
        for repository in [
            "file:///srv/github.com/a/b",
            "/srv/fleet.git",
            "https://git.acme.io/acme/fleet",
            "https://github.com/a/\"onclick=\"x",
            "https://github.com/a/../b",
            "javascript://github.com/a/b",
            "",
        ] {
            assert_eq!(commit(Some(repository), COMMIT), "<code>4f2c9a1d5e</code>", "{repository}");
        }
        assert_eq!(commit(None, COMMIT), "<code>4f2c9a1d5e</code>");
        let hostile = commit(Some("https://github.com/a/b"), "\"><script>");
        assert!(!hostile.contains("href") && !hostile.contains("<script>"), "{hostile}");
    }
}
