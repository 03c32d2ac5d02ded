//! Webhooks of Git hosts: a hint that something was pushed, and never more.
//!
//! What is said in one is not read. The signature is an HMAC over the body as it came, and says who sent it;
//! neither the moment nor the id of a delivery is signed, so that what was heard is known again by its
//! signature. Invariants: nothing is believed before the signature is checked, in constant time and against
//! every secret; what is remembered is bounded; the worst that a replay does is one more read of the
//! repository, and reads because of hints have a least time between them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit as _, Mac as _};
use http_body_util::{BodyExt as _, Limited};
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderName};
use sha2::Sha256;
use tokio::sync::mpsc;

use crate::web::header;

/// Largest body: pushes of hosts are some tens of kilobytes, and a larger one is found by polling.
const BODY_MAX: usize = 1 << 20;
/// Longest that a body may take to come.
const BODY_WITHIN: Duration = Duration::from_secs(10);
/// Most secrets: the one in use, and the one before or after it.
const SECRETS_MAX: usize = 2;
/// Fewest characters of a secret.
const SECRET_LEAST: usize = 16;
/// Most characters of the id of a delivery.
const ID_MAX: usize = 100;
/// How long a delivery is known again, and most that are.
const KNOWN_FOR: Duration = Duration::from_hours(1);
const KNOWN_MAX: usize = 1_000;

const SIGNATURE: HeaderName = HeaderName::from_static("x-hub-signature-256");
const DELIVERY: HeaderName = HeaderName::from_static("x-github-delivery");
const EVENT: HeaderName = HeaderName::from_static("x-github-event");

type Signature = [u8; 32];

/// What webhooks are signed with. It is never shown.
#[derive(Clone)]
pub struct Secrets(Arc<[Vec<u8>]>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

impl Secrets {
    /// Reads secrets, one a line: two while one takes the place of the other.
    ///
    /// # Errors
    /// When there is none, when there are too many, or one is too short to be one.
    pub fn read(text: &str) -> Result<Self, String> {
        let lines: Vec<&str> =
            text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if lines.is_empty() {
            return Err("it holds no secret; write one of at least 16 characters".to_owned());
        }
        if lines.len() > SECRETS_MAX {
            let most = format!("at most {SECRETS_MAX} may hold at a time");
            return Err(format!("it holds {} secrets, one a line, and {most}", lines.len()));
        }
        if let Some(n) = lines.iter().position(|line| line.chars().count() < SECRET_LEAST) {
            let least = format!("fewer than {SECRET_LEAST} characters");
            return Err(format!("the secret in line {} has {least}", n + 1));
        }
        Ok(Self(lines.into_iter().map(|line| line.as_bytes().to_vec()).collect()))
    }

    /// Returns whether `body` was signed with one of them. Takes as long whichever it was, and whether it was.
    fn signed(&self, body: &[u8], signature: &Signature) -> bool {
        self.0.iter().fold(false, |found, secret| {
            let verified = Hmac::<Sha256>::new_from_slice(secret)
                .is_ok_and(|mac| mac.chain_update(body).verify_slice(signature).is_ok());
            found | verified
        })
    }
}

/// Where webhooks are heard.
#[derive(Debug, Clone)]
pub struct Hook {
    /// What they are signed with.
    pub secrets: Secrets,
    /// Told that something was pushed; one that waits already stands for all.
    pub pushed: mpsc::Sender<()>,
}

/// Deliveries that were heard lately, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Known(VecDeque<(Instant, Signature)>);

impl Known {
    /// Notes a delivery; returns whether it is a new one.
    fn note(&mut self, signature: Signature, now: Instant) -> bool {
        let old = |at: Instant| now.saturating_duration_since(at) >= KNOWN_FOR;
        while self.0.front().is_some_and(|(at, _)| old(*at)) {
            self.0.pop_front();
        }
        if self.0.iter().any(|(_, known)| *known == signature) {
            return false;
        }
        if self.0.len() >= KNOWN_MAX {
            self.0.pop_front();
        }
        self.0.push_back((now, signature));
        true
    }
}

/// Hears a webhook, and returns the code and text of the answer.
pub(super) async fn hear(
    hook: &Hook,
    known: &std::cell::RefCell<Known>,
    request: Request<Incoming>,
) -> (u16, String) {
    let (head, body) = request.into_parts();
    let signature = match claimed(&head.headers) {
        Ok(signature) => signature,
        // Nothing is read of whoever signs nothing.
        Err((code, why)) => return (code, format!("{why}\n")),
    };
    let body = Limited::new(body, BODY_MAX).collect();
    let body = match tokio::time::timeout(BODY_WITHIN, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => return (413, format!("a webhook has at most {BODY_MAX} bytes\n")),
        Err(_) => return (408, "the webhook did not come in time\n".to_owned()),
    };
    if !hook.secrets.signed(&body, &signature) {
        return (401, "the signature is not of a secret that is known here\n".to_owned());
    }
    if !known.borrow_mut().note(signature, Instant::now()) {
        return (200, "heard before\n".to_owned());
    }
    match header(&head.headers, &EVENT).as_str() {
        // Hosts that speak GitHub's tongue may leave it out.
        "push" | "" => {
            // One that waits already has everything be read.
            let _ = hook.pushed.try_send(());
            (202, "the repository is read now\n".to_owned())
        }
        "ping" => (200, "heard\n".to_owned()),
        _ => (200, "nothing is done for this event\n".to_owned()),
    }
}

/// Returns the signature that a webhook claims to have; else the code and text of the answer.
fn claimed(headers: &HeaderMap) -> Result<Signature, (u16, &'static str)> {
    let text = header(headers, &SIGNATURE);
    let digits = text.strip_prefix("sha256=").ok_or((
        401,
        "the header X-Hub-Signature-256 is missing: give the webhook the secret that this server has",
    ))?;
    let signature = read_hex(digits).ok_or((401, "the signature is not 64 hex digits"))?;
    let id = header(headers, &DELIVERY);
    let is_id = |b: u8| b.is_ascii_alphanumeric() || b"-_.:".contains(&b);
    if id.is_empty() || id.len() > ID_MAX || !id.bytes().all(is_id) {
        return Err((400, "the header X-GitHub-Delivery is missing, or is no id"));
    }
    Ok(signature)
}

fn read_hex(digits: &str) -> Option<Signature> {
    let mut signature = Signature::default();
    if digits.len() != 2 * signature.len() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (n, byte) in signature.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * n..2 * n + 2)?, 16).ok()?;
    }
    Some(signature)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), value.parse().expect("a value"))
        };
        all.iter().map(pair).collect()
    }

    /// The example of GitHub's documentation.
    const EXAMPLE: &str = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";

    #[test]
    fn the_example_of_github_is_signed_by_its_secret_and_by_no_other() {
        let all = headers(&[("x-hub-signature-256", EXAMPLE), ("x-github-delivery", "a-1")]);
        let signature = claimed(&all).expect("a signature");
        let of = |text: &str| Secrets::read(text).expect("secrets");
        let secret = "It's a Secret to Everybody";
        assert!(of(secret).signed(b"Hello, World!", &signature));
        assert!(
            of(&format!("the one that was before\n{secret}\n"))
                .signed(b"Hello, World!", &signature)
        );
        assert!(!of("It's a Secret to everybody").signed(b"Hello, World!", &signature));
        assert!(!of(secret).signed(b"Hello, world!", &signature));
        assert!(!format!("{:?}", of(secret)).contains("Everybody"), "it is never shown");
    }

    #[test]
    fn what_claims_nothing_is_refused_before_it_is_read() {
        let upper = EXAMPLE.to_ascii_uppercase().replace("SHA256", "sha256");
        let long = "a".repeat(ID_MAX + 1);
        for (signature, id, code) in [
            ("", "a", Some(401)),
            ("sha1=757107ea0eb2509fc211221cce984b8a37570b6d", "a", Some(401)),
            ("sha256=", "a", Some(401)),
            (&EXAMPLE[..70], "a", Some(401)),
            (&EXAMPLE.replace("75", "+5"), "a", Some(401)),
            (EXAMPLE, "", Some(400)),
            (EXAMPLE, "a b", Some(400)),
            (EXAMPLE, long.as_str(), Some(400)),
            (EXAMPLE, "72d3162e-cc78-11e3-81ab-4c9367dc0958", None),
            (upper.as_str(), "a", None),
        ] {
            let all = headers(&[("x-hub-signature-256", signature), ("x-github-delivery", id)]);
            let found = claimed(&all).err().map(|(code, _)| code);
            assert_eq!(found, code, "{signature} {id}");
        }
    }

    #[test]
    fn a_delivery_is_known_again_for_an_hour_and_so_many_are() {
        let (mut known, now) = (Known::default(), Instant::now());
        let of = |n: u8| [n; 32];
        assert!(known.note(of(1), now));
        assert!(!known.note(of(1), now + KNOWN_FOR / 2));
        assert!(known.note(of(1), now + KNOWN_FOR), "it is long ago");
        for n in 0..2 * KNOWN_MAX {
            let mut signature = of(2);
            signature[..8].copy_from_slice(&n.to_be_bytes());
            assert!(known.note(signature, now + KNOWN_FOR));
        }
        assert_eq!(known.0.len(), KNOWN_MAX);
    }

    #[test]
    fn a_secret_is_no_line_too_many_and_none_too_short() {
        for (text, why) in [
            ("", "it holds no secret"),
            ("\n \n", "it holds no secret"),
            ("short", "the secret in line 1 has fewer than 16 characters"),
            ("0123456789abcdef\nshort", "the secret in line 2"),
            ("0123456789abcdef\n0123456789abcdeg\n0123456789abcdeh", "it holds 3 secrets"),
        ] {
            let error = Secrets::read(text).expect_err("no secrets");
            assert!(error.starts_with(why), "{error}");
            assert!(!error.contains("0123456789"), "{error}");
        }
        assert!(Secrets::read(" 0123456789abcdef \n").is_ok());
    }
}
