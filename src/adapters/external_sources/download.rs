//! Downloads of external sources, within limits.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use ureq::Agent;
use ureq::unversioned::transport::DefaultConnector;

use super::cache::SOURCE_BYTES_MAX;
use super::credentials::Credentials;
use super::resolver::{CheckedResolver, HostRules, is_loopback};
use super::{git_source, helm_repository, oci_registry};
use crate::model::desired::{DeliverySettings, ExternalSource, LockedSource, SourceKind};

/// Time of one request, with its body.
const REQUEST_MAX: Duration = Duration::from_mins(2);

/// Maximum number of redirects of one request.
const REDIRECTS_MAX: usize = 5;

/// The content of a source, and its version.
#[derive(Debug, PartialEq, Eq)]
pub struct DownloadedSource {
    /// Version of a chart, tag of an artifact, or commit; empty for a file.
    pub version: String,
    /// Bytes, as the cache stores them.
    pub content: Vec<u8>,
}

/// Downloads external sources.
#[derive(Debug)]
pub struct SourceDownloader {
    pub(super) agent: Agent,
    mirrors: BTreeMap<String, String>,
    pub(super) rules: HostRules,
    credentials: Credentials,
    /// Indexes of Helm repositories, by URL.
    pub(super) indexes: Mutex<BTreeMap<String, Vec<u8>>>,
}

/// A response to a request.
pub(super) struct HttpResponse {
    /// URL that answers, after redirects.
    pub(super) url: String,
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
    /// Header `WWW-Authenticate`.
    pub(super) challenge: Option<String>,
    /// Header `Link`.
    pub(super) link: Option<String>,
}

impl SourceDownloader {
    /// Returns a downloader with the settings of a repository and the credentials of the user.
    pub fn new(settings: &DeliverySettings) -> Self {
        Self::with_credentials(settings, Credentials::from_environment())
    }

    /// Returns a downloader with these credentials.
    pub(super) fn with_credentials(settings: &DeliverySettings, credentials: Credentials) -> Self {
        let config = Agent::config_builder()
            .timeout_global(Some(REQUEST_MAX))
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent("fleetwright")
            .build();
        let rules = HostRules::new(&settings.private_hosts);
        let resolver = CheckedResolver::new(rules.clone());
        Self {
            agent: Agent::with_parts(config, DefaultConnector::default(), resolver),
            mirrors: settings.mirrors.clone(),
            rules,
            credentials,
            indexes: Mutex::default(),
        }
    }

    /// Downloads the newest content of `source`.
    ///
    /// # Errors
    /// Returns the reason, without credentials.
    pub fn newest(&self, source: &ExternalSource) -> Result<DownloadedSource, String> {
        self.download(source, None)
    }

    /// Downloads the version of a locked source. The caller checks its digest.
    ///
    /// # Errors
    /// Returns the reason, without credentials.
    pub fn locked(&self, locked: &LockedSource) -> Result<DownloadedSource, String> {
        self.download(&locked.source(), Some(&locked.version))
    }

    /// Downloads `source` at `version`, or else its newest version.
    fn download(
        &self,
        source: &ExternalSource,
        version: Option<&str>,
    ) -> Result<DownloadedSource, String> {
        let found = match source.kind {
            SourceKind::Helm => helm_repository::download(self, source, version),
            SourceKind::Oci => oci_registry::download(self, source, version),
            SourceKind::Git => git_source::download(self, source, version),
            SourceKind::File => self
                .get(&self.mirror(&source.url), SOURCE_BYTES_MAX)
                .map(|content| DownloadedSource { version: String::new(), content }),
        };
        found.map_err(|why| format!("{source} cannot be downloaded: {why}"))
    }

    /// Returns the URL of the mirror of `url`; without a mirror, `url` itself. The longest beginning
    /// wins.
    pub(super) fn mirror(&self, url: &str) -> String {
        let fits = self.mirrors.iter().filter(|(from, _)| url.starts_with(from.as_str()));
        match fits.max_by_key(|(from, _)| from.len()) {
            Some((from, to)) => format!("{to}{}", url.strip_prefix(from.as_str()).unwrap_or(url)),
            None => url.to_owned(),
        }
    }

    /// Returns the basic credentials of the host of a URL. A repository may list any host under
    /// `delivery.privateHosts`. So a host without TLS, and this computer, receive none.
    pub(super) fn credentials(&self, url: &str) -> Option<&str> {
        let is_safe = url.starts_with("https://") && !is_loopback(authority(url));
        self.credentials.basic(authority(url)).filter(|_| is_safe)
    }

    /// Returns the content at `url`, with the credentials of its host.
    pub(super) fn get(&self, url: &str, limit: u64) -> Result<Vec<u8>, String> {
        let response = self.send(url, "*/*", self.credentials(url), limit)?;
        if response.status == 200 {
            return Ok(response.body);
        }
        Err(format!("{} answers with status {}", host(url), response.status))
    }

    /// Sends a request and follows redirects. `authorization` is sent to the host of `url` alone.
    pub(super) fn send(
        &self,
        url: &str,
        accept: &str,
        authorization: Option<&str>,
        limit: u64,
    ) -> Result<HttpResponse, String> {
        let mut next = url.to_owned();
        for _ in 0..=REDIRECTS_MAX {
            self.rules.check_url(&next)?;
            let mut request = self.agent.get(&next).header("accept", accept);
            if let Some(value) = authorization.filter(|_| origin(&next) == origin(url)) {
                request = request.header("authorization", value);
            }
            let failed = |error: ureq::Error| format!("{}: {error}", host(&next));
            let mut response = request.call().map_err(failed)?;
            let header = |name: &str| {
                let value = response.headers().get(name)?.to_str().ok()?;
                Some(value.to_owned())
            };
            let status = response.status().as_u16();
            if let (301 | 302 | 303 | 307 | 308, Some(location)) = (status, header("location")) {
                next = join_url(&next, &location);
                continue;
            }
            let (challenge, link) = (header("www-authenticate"), header("link"));
            let body = response.body_mut().with_config().limit(limit).read_to_vec();
            let body = body.map_err(|error| format!("{}: {error}", host(&next)))?;
            return Ok(HttpResponse { url: next, status, body, challenge, link });
        }
        Err(format!("{} redirects more than {REDIRECTS_MAX} times", host(url)))
    }
}

/// Returns scheme and authority of a URL.
pub(super) fn origin(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |at| start + at);
    &url[..end]
}

/// Returns host and port of a URL.
pub(super) fn authority(url: &str) -> &str {
    let origin = origin(url);
    let authority = origin.split_once("://").map_or(origin, |(_, rest)| rest);
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

/// Returns host and path of a URL for a message. The query may contain a token.
pub(super) fn host(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (_, path) = rest.split_once('/').unwrap_or((rest, ""));
    format!("{}/{path}", authority(url))
}

/// Resolves the URL `reference` against `base`.
pub(super) fn join_url(base: &str, reference: &str) -> String {
    if reference.contains("://") {
        return reference.to_owned();
    }
    let origin = origin(base);
    if let Some(rest) = reference.strip_prefix("//") {
        let scheme = origin.split_once("://").map_or("https", |(scheme, _)| scheme);
        return format!("{scheme}://{rest}");
    }
    if reference.starts_with('/') {
        return format!("{origin}{reference}");
    }
    let path = base[origin.len()..].split(['?', '#']).next().unwrap_or_default();
    let directory = path.rfind('/').map_or("/", |at| &path[..=at]);
    format!("{origin}{directory}{reference}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_joined_mirrored_and_shown_without_secrets() {
        for (reference, expected) in [
            ("web-1.tgz", "https://h:8443/charts/web-1.tgz"),
            ("/x/web-1.tgz", "https://h:8443/x/web-1.tgz"),
            ("//c.io/web", "https://c.io/web"),
            ("http://c.io/web", "http://c.io/web"),
        ] {
            assert_eq!(join_url("https://h:8443/charts/index.yaml?a=/b", reference), expected);
        }
        assert_eq!(host("https://me:token@h:1/a/b?sig=secret"), "h:1/a/b");
        let mirrors = [("https://c.io/", "https://m/c/"), ("https://c.io/x/", "https://m/x/")];
        let pair = |(from, to): (&str, &str)| (from.to_owned(), to.to_owned());
        let settings =
            DeliverySettings { mirrors: mirrors.map(pair).into(), ..DeliverySettings::default() };
        let downloader = SourceDownloader::new(&settings);
        assert_eq!(downloader.mirror("https://c.io/x/y"), "https://m/x/y");
        assert_eq!(downloader.mirror("https://c.io/y"), "https://m/c/y");
        assert_eq!(downloader.mirror("https://d.io/y"), "https://d.io/y");
    }
}
