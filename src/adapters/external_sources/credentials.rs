//! Credentials of hosts, from the files of Helm, Docker and netrc.
//!
//! Only downloads use them. They are sent to their own host alone, or to the token server of their
//! registry, and never appear in messages.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// Names of Docker Hub. `docker login` writes one of them, and references have another one.
const DOCKER_HUB: [&str; 3] = ["index.docker.io", "registry-1.docker.io", "docker.io"];

/// Maximum bytes of a file with credentials.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The value of the `Authorization` header (Basic), by host.
#[derive(Default)]
pub(super) struct Credentials {
    /// Of netrc, which names no ports.
    by_host: BTreeMap<String, String>,
    /// Of registries, by host and port.
    by_authority: BTreeMap<String, String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("hosts", &(self.by_host.len() + self.by_authority.len()))
            .finish()
    }
}

impl Credentials {
    /// Reads the files of the user. Absent and unreadable files provide nothing.
    pub(super) fn from_environment() -> Self {
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let path = |variable: &str, default: PathBuf| {
            std::env::var_os(variable).map_or(default, PathBuf::from)
        };
        let docker = path("DOCKER_CONFIG", home.join(".docker")).join("config.json");
        let helm = path("HELM_CONFIG_HOME", home.join(".config/helm"));
        let registry = path("HELM_REGISTRY_CONFIG", helm.join("registry/config.json"));
        let netrc = path("NETRC", home.join(".netrc"));
        let mut found = Self::default();
        // Later files win.
        if let Some(text) = read_text(&netrc) {
            found.read_netrc(&text);
        }
        for file in [docker, registry] {
            if let Some(text) = read_text(&file) {
                found.read_registry_config(&text);
            }
        }
        found
    }

    /// Returns the value of the `Authorization` header for `authority` (`HOST` or `HOST:PORT`).
    pub(super) fn basic(&self, authority: &str) -> Option<&str> {
        let host = authority.split(':').next().unwrap_or_default();
        let registry = authority.strip_suffix(":443").unwrap_or(authority);
        let hub = DOCKER_HUB.into_iter().filter(|_| DOCKER_HUB.contains(&registry));
        let mut names = std::iter::once(registry).chain(hub);
        let found = names.find_map(|name| self.by_authority.get(name));
        found.or_else(|| self.by_host.get(host)).map(String::as_str)
    }

    /// Reads the text of a file of Helm or Docker.
    pub(super) fn read_registry_config(&mut self, text: &str) {
        let Ok(config) = serde_json::from_str::<Value>(text) else { return };
        let Some(auths) = config.get("auths").and_then(Value::as_object) else { return };
        for (host, entry) in auths {
            let host = host.split_once("://").map_or(host.as_str(), |(_, rest)| rest);
            let host = host.split('/').next().unwrap_or_default();
            let auth = entry.get("auth").and_then(Value::as_str).unwrap_or_default();
            // The text is the encoded `USER:PASSWORD` of the header.
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
            if !auth.is_empty() && auth.chars().all(is_plain) {
                let host = host.strip_suffix(":443").unwrap_or(host);
                self.by_authority.insert(host.to_owned(), format!("Basic {auth}"));
            }
        }
    }

    fn read_netrc(&mut self, text: &str) {
        let mut words = text.split_whitespace();
        let (mut host, mut login) = (None, None);
        while let Some(word) = words.next() {
            match word {
                "machine" => (host, login) = (words.next(), None),
                "login" => login = words.next(),
                "password" => {
                    if let (Some(host), Some(login), Some(password)) = (host, login, words.next()) {
                        let pair = STANDARD.encode(format!("{login}:{password}"));
                        self.by_host.insert(host.to_owned(), format!("Basic {pair}"));
                    }
                }
                _ => {}
            }
        }
    }
}

fn read_text(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_configs_and_netrc_give_basic_credentials() {
        let mut credentials = Credentials::default();
        credentials.read_netrc("machine h.io\n login me\n password secret\nmachine x password y");
        credentials.read_registry_config(
            r#"{"auths": {"https://r.io/v1/": {"auth": "bWU6c2VjcmV0"}, "bad.io": {"auth": "a\nb"},
                "r.io:5000": {"auth": "eDp5"}, "empty.io": {},
                "https://index.docker.io/v1/": {"auth": "aHViOnNlY3JldA=="}}}"#,
        );
        for (authority, expected) in [
            ("h.io", Some("Basic bWU6c2VjcmV0")),
            ("h.io:8443", Some("Basic bWU6c2VjcmV0")),
            ("r.io", Some("Basic bWU6c2VjcmV0")),
            ("r.io:443", Some("Basic bWU6c2VjcmV0")),
            ("r.io:5000", Some("Basic eDp5")),
            ("r.io:5001", None),
            ("bad.io", None),
            ("x", None),
            ("index.docker.io", Some("Basic aHViOnNlY3JldA==")),
            ("registry-1.docker.io", Some("Basic aHViOnNlY3JldA==")),
            ("auth.docker.io", None),
        ] {
            assert_eq!(credentials.basic(authority), expected, "{authority}");
        }
        assert!(!format!("{credentials:?}").contains("Basic"));
    }
}
