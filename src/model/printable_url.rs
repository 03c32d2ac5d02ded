//! URLs in messages and in the lock file.
//!
//! Users write passwords and tokens into URLs. Plans, comments and pages are public to many readers.

/// Shown in place of a text that may hold a password.
const HIDDEN: &str = "…";

/// Returns `url` without user, password, query and fragment. The user of an address for SSH stays,
/// because it is a part of the name of the repository: `git@HOST:PATH`, `ssh://git@HOST/PATH`.
pub fn printable_url(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let prefix = &url[..url.len() - rest.len()];
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let login = authority.rsplit_once('@').filter(|(user, _)| !user.is_empty());
    let Some((user, host)) = login else {
        // A password that is not escaped may hold a slash. Its beginning reads as a port.
        let port = authority.rsplit_once(':').filter(|_| !authority.ends_with(']'));
        let is_digits = |port: &str| !port.is_empty() && port.chars().all(|c| c.is_ascii_digit());
        let is_port = port.is_none_or(|(_, port)| is_digits(port));
        // The path of a package may have `/@`. Any other `@` may be that of a login.
        let mut ats = path.match_indices('@');
        let is_login = scheme.starts_with("http") && ats.any(|(at, _)| !path[..at].ends_with('/'));
        let may_hide = is_login || (!is_port && (!prefix.is_empty() || path.contains('@')));
        return if may_hide { format!("{prefix}{HIDDEN}") } else { url.to_owned() };
    };
    let is_scp = prefix.is_empty() && host.contains(':') && !user.contains(':');
    if scheme == "ssh" || is_scp {
        let name = user.split(':').next().unwrap_or_default();
        return format!("{prefix}{name}@{host}{path}");
    }
    format!("{prefix}{host}{path}")
}

/// Returns whether two URLs differ at most in the parts that are not printed.
pub fn is_same_printed(a: &str, b: &str) -> bool {
    let printed = printable_url(a);
    // Two hidden addresses may differ.
    a == b || (printed == printable_url(b) && !printed.ends_with(HIDDEN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_addresses_are_not_the_same() {
        assert!(is_same_printed("https://a:b@h/x?t=1", "https://h/x"));
        assert!(!is_same_printed("https://h/x", "https://h/y"));
        assert!(!is_same_printed("https://u:P/W@a/x", "https://u:P/W@b/x"));
    }

    #[test]
    fn printed_urls_hold_no_password_and_no_token() {
        for (url, expected) in [
            ("https://h/o/r", "https://h/o/r"),
            ("https://h/@scope/r", "https://h/@scope/r"),
            ("oci://h/charts@sha256:0a", "oci://h/charts@sha256:0a"),
            ("https://user:PW@h/o/r.git?token=T#F", "https://h/o/r.git"),
            ("https://TOKEN@h:8443", "https://h:8443"),
            ("https://h?access=T@x", "https://h"),
            ("https://user:P@W@h/o", "https://h/o"),
            ("https://user:P/W@h/o", "https://…"),
            ("https://user:P?W@h/o", "https://…"),
            ("https://user:123/45@h/o", "https://…"),
            ("https://user:/W@h/o", "https://…"),
            ("https://TO/KEN@h/o", "https://…"),
            ("https://[::1]:80/o", "https://[::1]:80/o"),
            ("https://[::1]/o", "https://[::1]/o"),
            ("oci://user:PW@h/charts?x=T", "oci://h/charts"),
            ("s3::https://user:PW@h/o", "s3::https://h/o"),
            ("git@h:o/r.git", "git@h:o/r.git"),
            ("ssh://git@h:22/o/r", "ssh://git@h:22/o/r"),
            ("ssh://git:PW@h/o/r", "ssh://git@h/o/r"),
            ("user:PW@h/o/r?token=T", "h/o/r"),
            ("user:PW@h:o/r", "h:o/r"),
            ("user:P/W@h:o/r", "…"),
            ("TOKEN@h/o", "h/o"),
            ("h:5000/charts", "h:5000/charts"),
            ("h:o/r", "h:o/r"),
            ("@stable", "@stable"),
            ("in-cluster", "in-cluster"),
            ("", ""),
        ] {
            assert_eq!(printable_url(url), expected, "{url}");
            assert_eq!(printable_url(expected), expected, "a printed URL stays");
        }
    }
}
