//! Charts and artifacts of OCI registries, by the distribution API.

use serde_json::Value;

use super::cache::{SOURCE_BYTES_MAX, content_digest};
use super::download::{
    DownloadedSource, HttpResponse, SourceDownloader, authority, join_url, origin,
};
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

/// A repository of a registry.
struct Repository<'a> {
    downloader: &'a SourceDownloader,
    /// Beginning of its URLs: `https://HOST/v2/NAME`.
    url: String,
    /// Name in the registry.
    name: String,
    /// Value of the `Authorization` header, after the first challenge.
    token: Option<String>,
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
            401 | 403 => Err(format!(
                "the registry {} requires other credentials; run `helm registry login`",
                authority(url)
            )),
            404 => Err("the registry has no such artifact".to_owned()),
            status => Err(format!("the registry answers with status {status}")),
        }
    }

    /// Returns the value of the `Authorization` header that a challenge asks for.
    fn authorization(&self, challenge: &str) -> Result<String, String> {
        let basic = self.downloader.credentials(&self.url);
        let Some(parameters) = challenge.strip_prefix("Bearer ") else {
            let login =
                || "the registry requires credentials; run `helm registry login`".to_owned();
            return basic.map(str::to_owned).ok_or_else(login);
        };
        let parameter = |key: &str| {
            let start = parameters.find(&format!("{key}=\""))? + key.len() + 2;
            parameters[start..].split('"').next()
        };
        let realm = parameter("realm").ok_or("the registry names no token server")?;
        let service = parameter("service").unwrap_or_default();
        let scope = format!("repository:{}:pull", self.name);
        let query = [("service", service), ("scope", scope.as_str())];
        let query = query.map(|(key, value)| format!("{key}={}", value.replace(' ', "%20")));
        let url = format!("{realm}?{}", query.join("&"));
        // The token server that a registry names itself receives its credentials, as with Docker and
        // Helm. It may have another name, but must use TLS.
        let own = basic.filter(|_| realm.starts_with("https://"));
        let basic = own.or_else(|| self.downloader.credentials(realm));
        let response = self.downloader.send(&url, "application/json", basic, ANSWER_BYTES_MAX)?;
        let token: Value = serde_json::from_slice(&response.body).unwrap_or_default();
        let token = token["token"].as_str().or(token["access_token"].as_str());
        let token = token.ok_or_else(|| {
            format!("the token server answers with status {} and no token", response.status)
        })?;
        Ok(format!("Bearer {token}"))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::sync::{Arc, Mutex};

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
