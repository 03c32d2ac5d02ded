//! Checks of hosts and addresses before a connection.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// Prefix of a host that may be reached without TLS.
const PLAIN_PREFIX: &str = "http://";

/// Hosts that the settings allow beyond public ones.
#[derive(Debug, Clone, Default)]
pub(super) struct HostRules {
    private: Vec<String>,
}

impl HostRules {
    pub(super) fn new(private: &[String]) -> Self {
        let plain = |host: &String| host.trim_end_matches('/').to_ascii_lowercase();
        Self { private: private.iter().map(plain).collect() }
    }

    /// Returns whether `authority` (`HOST` or `HOST:PORT`) may be reached without TLS.
    pub(super) fn allows_plain(&self, authority: &str) -> bool {
        self.lists(PLAIN_PREFIX, authority)
    }

    fn allows_private(&self, authority: &str) -> bool {
        self.lists("", authority) || self.allows_plain(authority)
    }

    fn lists(&self, prefix: &str, authority: &str) -> bool {
        let authority = authority.to_ascii_lowercase();
        let host = host_of(&authority);
        let mut listed = self.private.iter().filter_map(|listed| listed.strip_prefix(prefix));
        listed.any(|listed| listed == authority || listed == host)
    }

    /// Checks the scheme of a URL.
    pub(super) fn check_url(&self, url: &str) -> Result<(), String> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        match scheme {
            "https" => Ok(()),
            "http" if self.allows_plain(authority) => Ok(()),
            "http" => Err(format!(
                "host {authority} is not reached without TLS; use https, or list \
                 `http://{authority}` under `delivery.privateHosts` in fleetwright.yaml"
            )),
            _ => Err(format!("scheme `{scheme}` is not downloaded from; use https")),
        }
    }

    /// Checks the addresses of a host for a program that connects by itself.
    pub(super) fn check_host(&self, authority: &str, port: u16) -> Result<(), String> {
        let name = host_of(authority).trim_matches(['[', ']']);
        let found = (name, port).to_socket_addrs();
        let found = found.map_err(|error| format!("host {name} has no address: {error}"))?;
        self.check_addresses(authority, found)
    }

    fn check_addresses(
        &self,
        authority: &str,
        addresses: impl IntoIterator<Item = SocketAddr>,
    ) -> Result<(), String> {
        let addresses: Vec<SocketAddr> = addresses.into_iter().collect();
        if let Some(address) = addresses.iter().find(|address| is_of_metadata(address.ip())) {
            return Err(format!(
                "host {authority} has the link-local address {}, where metadata services answer \
                 with credentials; no source is downloaded from there",
                address.ip()
            ));
        }
        if self.allows_private(authority) {
            return Ok(());
        }
        match addresses.into_iter().find(|address| is_private(address.ip())) {
            None => Ok(()),
            Some(address) => Err(format!(
                "host {authority} has the private address {}; list it under \
                 `delivery.privateHosts` in fleetwright.yaml if that is right",
                address.ip()
            )),
        }
    }
}

/// Returns whether `authority` (`HOST` or `HOST:PORT`) is a loopback host.
pub(super) fn is_loopback(authority: &str) -> bool {
    let name = host_of(authority).trim_matches(['[', ']']).to_ascii_lowercase();
    let name = name.trim_end_matches('.');
    let is_local = |address: IpAddr| address.is_loopback() || address.is_unspecified();
    name == "localhost"
        || name.ends_with(".localhost")
        || name.parse().is_ok_and(|address: IpAddr| is_local(address.to_canonical()))
}

/// Returns whether a metadata service may have the address: link-local ones, and `fd00:ec2::/32` of
/// EC2. `delivery.privateHosts` does not allow them.
fn is_of_metadata(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => {
            if let [0x64, 0xff9b, 0, 0, 0, 0, 0xa9fe, _] = address.segments() {
                return true;
            }
            let [first, second, ..] = address.segments();
            first & 0xffc0 == 0xfe80 || (first, second) == (0xfd00, 0x0ec2)
        }
    }
}

/// Returns the host of `HOST:PORT`.
pub(super) fn host_of(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.chars().all(|c| c.is_ascii_digit()) => host,
        Some(_) | None => authority,
    }
}

fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_private_v4(address),
        IpAddr::V6(address) => is_private_v6(address),
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || matches!((a, b, c), (0 | 240..=255, ..) | (100, 64..=127, _) | (192, 0, 0))
        || matches!((a, b), (198, 18 | 19))
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    let first = address.segments()[0];
    if let Some(inner) = address.to_ipv4_mapped() {
        return is_private_v4(inner);
    }
    // The last 32 bits of a NAT64 address are an IPv4 address.
    if let [0x64, 0xff9b, 0, 0, 0, 0, high, low] = address.segments() {
        let [[a, b], [c, d]] = [high.to_be_bytes(), low.to_be_bytes()];
        return is_private_v4(Ipv4Addr::new(a, b, c, d));
    }
    address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || first & 0xfe00 == 0xfc00
        || first & 0xffc0 == 0xfe80
}

/// Resolves names, and refuses private addresses of hosts that the settings do not list.
#[derive(Debug)]
pub(super) struct CheckedResolver {
    rules: HostRules,
    inner: DefaultResolver,
}

impl CheckedResolver {
    pub(super) fn new(rules: HostRules) -> Self {
        Self { rules, inner: DefaultResolver::default() }
    }
}

impl Resolver for CheckedResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.inner.resolve(uri, config, timeout)?;
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        // A proxy of the environment decides about addresses by itself.
        let proxy = config.proxy().map(|proxy| proxy.host().to_owned());
        if proxy.is_some_and(|proxy| uri.host() == Some(&proxy)) {
            return Ok(found);
        }
        let checked = self.rules.check_addresses(authority, found.iter().copied());
        checked.map_err(|why| ureq::Error::Io(io::Error::other(why)))?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_need_a_setting() {
        for (address, expected) in [
            ("8.8.8.8", false),
            ("10.1.2.3", true),
            ("127.0.0.1", true),
            ("169.254.169.254", true),
            ("100.64.0.1", true),
            ("0.0.0.0", true),
            ("::1", true),
            ("::ffff:10.0.0.1", true),
            ("64:ff9b::a00:1", true),
            ("fd00::1", true),
            ("fe80::1", true),
            ("2606:4700::1111", false),
        ] {
            let address: IpAddr = address.parse().expect("an address");
            assert_eq!(is_private(address), expected, "{address}");
        }
        let rules = HostRules::new(&["http://127.0.0.1:80".to_owned(), "Charts.Internal".into()]);
        let local: SocketAddr = "127.0.0.1:80".parse().expect("an address");
        let check = |authority: &str| rules.check_addresses(authority, [local]);
        assert_eq!((check("127.0.0.1:80"), check("charts.internal:443")), (Ok(()), Ok(())));
        let refused = check("evil.example").expect_err("not listed");
        assert!(refused.contains("private address 127.0.0.1"), "{refused}");
        assert!(check("127.0.0.1:81").is_err());
        assert_eq!(rules.check_url("http://127.0.0.1:80/x"), Ok(()));
        for url in ["http://charts.internal/x", "http://127.0.0.1:81/", "ftp://h/x", "file:///x"] {
            assert!(rules.check_url(url).is_err(), "{url}");
        }
        assert_eq!(rules.check_url("https://example.com/x"), Ok(()));
    }

    #[test]
    fn metadata_services_are_refused_whatever_the_settings_list() {
        let rules = HostRules::new(&["http://m.internal".to_owned()]);
        for (address, expected) in [
            ("169.254.169.254", false),
            ("169.254.170.2", false),
            ("::ffff:169.254.169.254", false),
            ("64:ff9b::a9fe:a9fe", false),
            ("fd00:ec2::254", false),
            ("fe80::1", false),
            ("10.0.0.1", true),
            ("fd00::1", true),
        ] {
            let address = SocketAddr::new(address.parse().expect("an address"), 80);
            let checked = rules.check_addresses("m.internal", [address]);
            assert_eq!(checked.is_ok(), expected, "{address}: {checked:?}");
        }
        for (authority, expected) in [
            ("localhost:80", true),
            ("x.LOCALHOST", true),
            ("127.0.0.2", true),
            ("[::1]:80", true),
            ("0.0.0.0", true),
            ("10.0.0.1", false),
            ("registry.io", false),
        ] {
            assert_eq!(is_loopback(authority), expected, "{authority}");
        }
    }
}
