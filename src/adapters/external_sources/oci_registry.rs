//! Charts and artifacts of OCI registries, by the distribution API.

use std::net::Ipv4Addr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::cache::{SOURCE_BYTES_MAX, content_digest};
use super::download::{
    DownloadedSource, HttpResponse, SourceDownloader, authority, join_url, origin,
};
use super::resolver::host_of;
use crate::manifest::newest_in_range;
use crate::model::desired::ExternalSource;

/// Maximum bytes of a manifest, a token or a page of tags.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// Maximum number of pages of tags.
const PAGES_MAX: usize = 50;

/// Media types of manifests.
const MANIFEST_TYPES: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json";

/// Media type of the content of a Helm chart.
const CHART_TYPE: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";

/// Ending of the media types of other archives, such as those of Flux.
const ARCHIVE_TYPE: &str = "tar+gzip";

/// Characters of a parameter that a query contains as they are.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A repository of a registry.
struct Repository<'a> {
    downloader: &'a SourceDownloader,
    /// Beginning of its URLs: `https://HOST/v2/NAME`.
    url: String,
    /// Name in the registry.
    name: String,
    /// Value of the `Authorization` header, after the first challenge.
    token: Option<String>,
    /// Token server that does not receive the credentials of the registry, if there are any.
    untrusted_server: Option<String>,
}

/// Downloads an artifact at the tag `version`, or else the newest one of the requested range.
pub(super) fn download(
    downloader: &SourceDownloader,
    source: &ExternalSource,
    version: Option<&str>,
) -> Result<DownloadedSource, String> {
    let url = downloader.mirror(&source.url);
    let rest = url.strip_prefix("oci://").ok_or("its URL does not begin with oci://")?;
    let (host, name) = rest.split_once('/').ok_or("its URL names no repository")?;
    let scheme = if downloader.rules.allows_plain(host) { "http" } else { "https" };
    let mut repository = Repository {
        downloader,
        url: format!("{scheme}://{host}/v2/{name}"),
        name: name.to_owned(),
        token: None,
        untrusted_server: None,
    };
    let reference = match version {
        Some(version) => version.to_owned(),
        None => repository.resolve(&source.version)?,
    };
    // A tag cannot have `+`, so that Helm writes `_`.
    let path = format!("manifests/{}", reference.replace('+', "_"));
    let manifest = repository.get(&path, MANIFEST_TYPES, ANSWER_BYTES_MAX)?;
    let digest = layer_digest(&manifest)?;
    let content = repository.get(&format!("blobs/{digest}"), "*/*", SOURCE_BYTES_MAX)?;
    if content_digest(&content) != digest {
        return Err("the registry sends other content than its manifest names".to_owned());
    }
    Ok(DownloadedSource { version: reference, content })
}

/// Returns the digest of the archive that a manifest names.
fn layer_digest(manifest: &[u8]) -> Result<String, String> {
    let manifest: Value =
        serde_json::from_slice(manifest).map_err(|_| "its manifest is not JSON".to_owned())?;
    let layers = manifest.get("layers").and_then(Value::as_array).cloned().unwrap_or_default();
    let media_type = |layer: &&Value| layer["mediaType"].as_str().unwrap_or_default().to_owned();
    let chart = layers.iter().find(|layer| media_type(layer) == CHART_TYPE);
    let layer = chart.or_else(|| layers.iter().find(|l| media_type(l).ends_with(ARCHIVE_TYPE)));
    let digest = layer.and_then(|layer| layer["digest"].as_str());
    let digest = digest.filter(|digest| digest.starts_with("sha256:"));
    digest.map(str::to_owned).ok_or_else(|| "its manifest has no archive".to_owned())
}

/// Returns the URL of a token to read the repository `name`. The registry states only the place of
/// the token server and the name of the service, so that it cannot ask for another token.
fn token_url(realm: &str, service: &str, name: &str) -> Result<String, String> {
    if realm.contains(['?', '#']) {
        return Err(format!(
            "the registry names the token server {} with a query, which is not supported",
            authority(realm)
        ));
    }
    let scope = format!("repository:{name}:pull");
    let query = [("service", service), ("scope", scope.as_str())];
    let query = query.map(|(key, value)| format!("{key}={}", utf8_percent_encode(value, PLAIN)));
    Ok(format!("{realm}?{}", query.join("&")))
}

/// Returns whether a token server may receive the credentials of a registry: it has the host of the
/// registry, or one in its domain. So `registry.example.com` may name `gitlab.example.com`, and
/// `registry-1.docker.io` names `auth.docker.io`.
fn is_token_server(registry: &str, realm: &str) -> bool {
    let name = |authority: &str| host_of(authority).to_ascii_lowercase();
    let (registry, realm) = (name(registry), name(realm));
    // An address is in no domain, and the owner of a domain of one label is unknown.
    let is_address = registry.starts_with('[') || registry.parse::<Ipv4Addr>().is_ok();
    let domain = registry.split_once('.').map(|(_, domain)| domain);
    let domain = domain.filter(|domain| !is_address && domain.contains('.'));
    let is_inside = |domain: &str| {
        realm == domain || realm.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
    };
    registry == realm || domain.is_some_and(is_inside)
}

/// Returns the error of a registry whose token server must not receive the needed credentials.
fn untrusted_server_error(registry: &str, server: &str) -> String {
    format!(
        "the registry {registry} names the token server {server}, which receives no credentials: it \
         is outside of the domain of the registry, or has no TLS; copy the artifact to another \
         registry, and name that in `spec.delivery.mirrors`"
    )
}

impl Repository<'_> {
    /// Returns the tag or digest that `requested` denotes. A tag of that name wins over a range.
    fn resolve(&mut self, requested: &str) -> Result<String, String> {
        if requested.starts_with("sha256:") {
            return Ok(requested.to_owned());
        }
        let tags = self.tags()?;
        let exact = requested.replace('+', "_");
        if tags.contains(&exact) {
            return Ok(exact);
        }
        let found = newest_in_range(requested, tags.iter().map(String::as_str));
        let none = || format!("the registry has no tag {requested}");
        // A text that is no range can only be a tag.
        found.map_err(|_| none())?.map(str::to_owned).ok_or_else(none)
    }

    fn tags(&mut self) -> Result<Vec<String>, String> {
        let mut tags = Vec::new();
        let mut url = format!("{}/tags/list?n=1000", self.url);
        for _ in 0..PAGES_MAX {
            let response = self.send(&url, "application/json", ANSWER_BYTES_MAX)?;
            let page: Value = serde_json::from_slice(&response.body)
                .map_err(|_| "its tags are not JSON".to_owned())?;
            let names = page["tags"].as_array().cloned().unwrap_or_default();
            tags.extend(names.iter().filter_map(|name| name.as_str().map(str::to_owned)));
            // `<URL>; rel="next"`
            let next = response.link.as_deref().and_then(|link| {
                link.split_once('<')?.1.split_once('>').map(|(next, _)| join_url(&url, next))
            });
            match next {
                Some(next) if origin(&next) == origin(&url) => url = next,
                // The next request carries the credentials of this registry.
                Some(next) => {
                    return Err(format!(
                        "the registry names {} for the next page of tags, which is another host",
                        authority(&next)
                    ));
                }
                None => return Ok(tags),
            }
        }
        Err(format!("the registry has more than {PAGES_MAX} pages of tags"))
    }

    fn get(&mut self, path: &str, accept: &str, limit: u64) -> Result<Vec<u8>, String> {
        self.send(&format!("{}/{path}", self.url), accept, limit).map(|response| response.body)
    }

    /// Sends a request, and answers one challenge of the registry.
    fn send(&mut self, url: &str, accept: &str, limit: u64) -> Result<HttpResponse, String> {
        let mut response = self.downloader.send(url, accept, self.token.as_deref(), limit)?;
        // The challenge of a host that the registry redirects to is not answered: its credentials are
        // those of the registry.
        let is_own = origin(&response.url) == origin(url);
        if let (401, true, Some(challenge)) = (response.status, is_own, &response.challenge) {
            self.token = Some(self.authorization(challenge)?);
            response = self.downloader.send(url, accept, self.token.as_deref(), limit)?;
        }
        match response.status {
            200 => Ok(response),
            401 | 403 => Err(match &self.untrusted_server {
                Some(server) => untrusted_server_error(authority(url), server),
                None => format!(
                    "the registry {} requires other credentials; run `helm registry login`",
                    authority(url)
                ),
            }),
            404 => Err("the registry has no such artifact".to_owned()),
            status => Err(format!("the registry answers with status {status}")),
        }
    }

    /// Returns the credentials of the registry, if a token server may receive them. Credentials belong
    /// to the registry of the reference, never to the token server that its challenge names.
    fn credentials_for(&self, realm: &str) -> Option<&str> {
        let own = self.downloader.credentials(&self.url);
        own.filter(|_| realm.starts_with("https://"))
            .filter(|_| is_token_server(authority(&self.url), authority(realm)))
    }

    /// Returns true if the token server must not receive the credentials of the registry.
    fn has_withheld_credentials(&self, realm: &str) -> bool {
        self.downloader.credentials(&self.url).is_some() && self.credentials_for(realm).is_none()
    }

    /// Returns the value of the `Authorization` header that a challenge asks for.
    fn authorization(&mut self, challenge: &str) -> Result<String, String> {
        let Some(parameters) = challenge.strip_prefix("Bearer ") else {
            let login =
                || "the registry requires credentials; run `helm registry login`".to_owned();
            let basic = self.downloader.credentials(&self.url);
            return basic.map(str::to_owned).ok_or_else(login);
        };
        let parameter = |key: &str| {
            let start = parameters.find(&format!("{key}=\""))? + key.len() + 2;
            parameters[start..].split('"').next()
        };
        let realm = parameter("realm").ok_or("the registry names no token server")?;
        let url = token_url(realm, parameter("service").unwrap_or_default(), &self.name)?;
        let server = authority(realm);
        self.untrusted_server = self.has_withheld_credentials(realm).then(|| server.to_owned());
        let basic = self.credentials_for(realm);
        let response = self.downloader.send(&url, "application/json", basic, ANSWER_BYTES_MAX)?;
        let token: Value = serde_json::from_slice(&response.body).unwrap_or_default();
        let token = token["token"].as_str().or(token["access_token"].as_str());
        let token = token.ok_or_else(|| {
            let (registry, status) = (authority(&self.url), response.status);
            let login = if basic.is_none() { "; run `helm registry login`" } else { "" };
            match &self.untrusted_server {
                Some(server) => untrusted_server_error(registry, server),
                None => format!(
                    "the token server {server} of the registry {registry} answers with status \
                     {status} and no token{login}"
                ),
            }
        })?;
        Ok(format!("Bearer {token}"))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::sync::{Arc, Mutex};

    use super::super::credentials::Credentials;
    use super::*;
    use crate::model::desired::{DeliverySettings, SourceKind};

    /// Answers one request, and returns its path.
    fn answer(mut stream: TcpStream, other: &str) -> Option<String> {
        let mut lines = BufReader::new(stream.try_clone().ok()?).lines().map_while(Result::ok);
        let path = lines.next()?.split(' ').nth(1)?.to_owned();
        lines.find(String::is_empty)?;
        let (head, body) = match path.as_str() {
            "/v2/pages/tags/list?n=1000" => {
                (format!("200 OK\r\nLink: <{other}/steal>; rel=\"next\""), r#"{"tags": ["1.0.0"]}"#)
            }
            "/v2/moved/tags/list?n=1000" => (format!("307 Moved\r\nLocation: {other}/there"), ""),
            "/there" => {
                let challenge = format!("Bearer realm=\"{other}/token\",service=\"s\"");
                (format!("401 Unauthorized\r\nWWW-Authenticate: {challenge}"), "")
            }
            _ => ("404 Not Found".to_owned(), ""),
        };
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .ok()?;
        Some(path)
    }

    #[test]
    fn answers_that_lead_to_another_host_are_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (own, other) = (format!("127.0.0.1:{port}"), format!("http://localhost:{port}"));
        let paths = Arc::new(Mutex::new(Vec::new()));
        let (seen, to) = (Arc::clone(&paths), other.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let path = answer(stream, &to);
                seen.lock().expect("no panic").extend(path);
            }
        });
        let settings = DeliverySettings {
            private_hosts: vec![format!("http://{own}"), other],
            ..DeliverySettings::default()
        };
        let downloader = SourceDownloader::new(&settings);
        for (name, expected) in [
            ("pages", format!("names localhost:{port} for the next page of tags")),
            ("moved", "requires other credentials".to_owned()),
        ] {
            let source = ExternalSource {
                kind: SourceKind::Oci,
                url: format!("oci://{own}/{name}"),
                name: String::new(),
                version: "1.x".to_owned(),
            };
            let refused = downloader.newest(&source).expect_err("it leads to another host");
            assert!(refused.contains(&expected), "{refused}");
        }
        let paths = paths.lock().expect("no panic");
        assert!(
            !paths.iter().any(|path| path == "/steal" || path.starts_with("/token")),
            "{paths:?}"
        );
    }

    /// A registry of a contributor must not make us use the credentials of another registry.
    #[test]
    fn credentials_of_a_registry_reach_its_own_token_server_only() {
        let mut credentials = Credentials::default();
        credentials.read_registry_config(
            r#"{"auths": {"ghcr.io": {"auth": "b3duOmdoY3I="},
                "registry.example.com:5050": {"auth": "b3duOmdpdA=="},
                "https://index.docker.io/v1/": {"auth": "b3duOmh1Yg=="}}}"#,
        );
        let downloader =
            SourceDownloader::with_credentials(&DeliverySettings::default(), credentials);
        for (registry, realm, expected) in [
            ("ghcr.io", "https://ghcr.io/token", Some("Basic b3duOmdoY3I=")),
            ("ghcr.io", "https://GHCR.io:443/token", Some("Basic b3duOmdoY3I=")),
            ("ghcr.io", "http://ghcr.io/token", None),
            ("ghcr.io", "https://evil.io/token", None),
            ("ghcr.io", "https://ghcr.io@evil.io/token", None),
            ("ghcr.io", "https://ghcr.io.evil.io/token", None),
            ("evil.io", "https://ghcr.io/token", None),
            ("127.0.0.1:31080", "https://ghcr.io/token", None),
            (
                "registry.example.com:5050",
                "https://gitlab.example.com/jwt/auth",
                Some("Basic b3duOmdpdA=="),
            ),
            ("registry.example.com:5050", "https://evilexample.com/jwt/auth", None),
            ("other.example.com", "https://registry.example.com:5050/token", None),
            ("index.docker.io", "https://auth.docker.io/token", Some("Basic b3duOmh1Yg==")),
            ("registry-1.docker.io", "https://auth.docker.io/token", Some("Basic b3duOmh1Yg==")),
            ("registry-1.docker.io", "https://auth.docker.io.evil.io/token", None),
            ("registry.gitlab.com", "https://gitlab.com/jwt/auth", None),
        ] {
            let repository = Repository {
                downloader: &downloader,
                url: format!("https://{registry}/v2/team/app"),
                name: "team/app".to_owned(),
                token: None,
                untrusted_server: None,
            };
            assert_eq!(repository.credentials_for(realm), expected, "{registry}, {realm}");
            let has_own = downloader.credentials(&repository.url).is_some();
            let withheld = has_own && expected.is_none();
            assert_eq!(repository.has_withheld_credentials(realm), withheld, "{registry}, {realm}");
        }
    }

    #[test]
    fn error_names_the_registry_and_a_token_server_without_credentials() {
        let error = untrusted_server_error("registry.example.net", "gitlab.example.com");
        let start = "the registry registry.example.net names the token server gitlab.example.com, ";
        assert!(error.starts_with(start), "{error}");
        assert!(error.contains("outside of the domain") && error.ends_with("mirrors`"), "{error}");
    }

    #[test]
    fn registry_cannot_choose_the_scope_of_a_token() {
        let service = "s&scope=repository:victim/app:pull,push#";
        assert_eq!(
            token_url("https://r.io/token", service, "team/app").expect("a URL"),
            "https://r.io/token?service=s%26scope%3Drepository%3Avictim%2Fapp%3Apull%2Cpush%23\
             &scope=repository%3Ateam%2Fapp%3Apull"
        );
        for realm in ["https://r.io/token?scope=repository:victim:pull", "https://r.io/token?a#"] {
            assert!(token_url(realm, "s", "team/app").is_err(), "{realm}");
        }
    }

    #[test]
    fn archive_of_a_manifest_is_found() {
        let manifest = format!(
            r#"{{"layers": [{{"mediaType": "x/provenance", "digest": "sha256:0"}},
                {{"mediaType": "application/vnd.cncf.flux.content.v1.tar+gzip", "digest": "sha256:1"}},
                {{"mediaType": "{CHART_TYPE}", "digest": "sha256:2"}}]}}"#
        );
        assert_eq!(layer_digest(manifest.as_bytes()), Ok("sha256:2".to_owned()));
        let flux = manifest.replace(CHART_TYPE, "x/y");
        assert_eq!(layer_digest(flux.as_bytes()), Ok("sha256:1".to_owned()));
        for none in ["{}", "<html>", r#"{"layers": [{"mediaType": "tar+gzip", "digest": "x"}]}"#] {
            assert!(layer_digest(none.as_bytes()).is_err(), "{none}");
        }
    }
}
