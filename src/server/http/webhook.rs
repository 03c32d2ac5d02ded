//! Webhooks of Git hosts and delivery tools: hints that the repository may have changed.
//!
//! The payload is not interpreted. The sender signs the raw body with an HMAC or sends the secret
//! itself, as its documentation states:
//!
//! | sender | header |
//! |---|---|
//! | GitHub, Gitea, Forgejo | `X-Hub-Signature-256` |
//! | Bitbucket | `X-Hub-Signature` |
//! | Flux, provider `generic-hmac` | `X-Signature` |
//! | GitLab | `X-Gitlab-Token` |
//! | Argo CD notifications | `Authorization: Bearer` |
//!
//! Time and delivery id are not signed, so repeated deliveries are detected by their signature.
//!
//! Invariants:
//! - The sender is authenticated first, in constant time and against every secret.
//! - Memory is bounded: a body is hashed as it arrives and is not stored.
//! - A replay causes at most one more read of the repository, and hinted reads have a minimum
//!   interval.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit as _, Mac as _};
use http_body_util::{BodyExt as _, Limited};
use hyper::Request;
use hyper::body::{Body, Bytes};
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName};
use sha2::Sha256;
use tokio::sync::mpsc;

use crate::adapters::http::{RequestBody, header_values};

/// Maximum body size. Pushes have tens of kilobytes; polling finds larger ones.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Timeout for receiving a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of secrets: the current one, and its predecessor or successor.
const SECRETS_MAX: usize = 2;
const SECRET_CHARS_MIN: usize = 16;
const DELIVERY_ID_CHARS_MAX: usize = 100;
/// How long a delivery is remembered, and how many are.
const DELIVERY_MEMORY: Duration = Duration::from_hours(1);
const DELIVERIES_MAX: usize = 1_000;

const GITHUB_SIGNATURE: HeaderName = HeaderName::from_static("x-hub-signature-256");
const GITHUB_DELIVERY: HeaderName = HeaderName::from_static("x-github-delivery");
/// Headers with the signature of other senders.
const SIGNATURES: [HeaderName; 2] =
    [HeaderName::from_static("x-hub-signature"), HeaderName::from_static("x-signature")];
const GITLAB_TOKEN: HeaderName = HeaderName::from_static("x-gitlab-token");
/// Headers with the event, and the events after which the repository is read.
const EVENTS: [HeaderName; 3] = [
    HeaderName::from_static("x-github-event"),
    HeaderName::from_static("x-gitlab-event"),
    HeaderName::from_static("x-event-key"),
];
const PUSHES: [&str; 4] = ["push", "Push Hook", "repo:push", "repo:refs_changed"];
const PINGS: [&str; 2] = ["ping", "diagnostics:ping"];

type Signature = [u8; 32];

/// Proof that the sender knows a secret.
#[derive(Debug, PartialEq, Eq)]
enum Claim {
    /// HMAC of the body.
    Signature(Signature),
    /// HMAC of a fixed text with the token that the sender sent.
    Token(Signature),
}

/// Secrets that sign webhooks. `Debug` hides them.
#[derive(Clone)]
pub struct WebhookSecrets(Arc<[Vec<u8>]>);

impl fmt::Debug for WebhookSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

impl WebhookSecrets {
    /// Parses secrets, one per line. Two are valid during a rotation.
    ///
    /// # Errors
    /// If there is no secret, there are too many, or one is too short.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines: Vec<&str> =
            text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if lines.is_empty() {
            return Err("the file has no secret; write one of at least 16 characters".to_owned());
        }
        if lines.len() > SECRETS_MAX {
            let most = format!("at most {SECRETS_MAX} are allowed");
            return Err(format!("the file has {} secrets, one per line, and {most}", lines.len()));
        }
        if let Some(n) = lines.iter().position(|line| line.chars().count() < SECRET_CHARS_MIN) {
            let least = format!("fewer than {SECRET_CHARS_MIN} characters");
            return Err(format!("the secret in line {} has {least}", n + 1));
        }
        Ok(Self(lines.into_iter().map(|line| line.as_bytes().to_vec()).collect()))
    }

    /// Begins the verification of a claim.
    fn verification(&self, claim: Claim) -> Verification {
        let macs = self.0.iter().filter_map(|secret| Hmac::<Sha256>::new_from_slice(secret).ok());
        Verification { macs: macs.collect(), claim }
    }
}

/// The verification of a claim while the body arrives.
struct Verification {
    /// HMAC with each secret.
    macs: Vec<Hmac<Sha256>>,
    claim: Claim,
}

impl Verification {
    /// Adds the next part of the body.
    fn update(&mut self, part: &[u8]) {
        if let Claim::Signature(_) = self.claim {
            for mac in &mut self.macs {
                mac.update(part);
            }
        }
    }

    /// Returns the claim if it was made with one of the secrets. The time does not depend on the
    /// result.
    fn verified(mut self) -> Option<Claim> {
        let signature = match &self.claim {
            Claim::Signature(signature) => signature,
            Claim::Token(signature) => {
                for mac in &mut self.macs {
                    mac.update(TOKEN_TEXT);
                }
                signature
            }
        };
        let is_valid = self.macs.into_iter().fold(false, |found, mac| {
            let verified = mac.verify_slice(signature).is_ok();
            found | verified
        });
        is_valid.then_some(self.claim)
    }
}

/// Text whose HMAC stands for a token, so that tokens are compared in constant time.
const TOKEN_TEXT: &[u8] = b"token of a webhook";

/// Webhook settings.
#[derive(Debug, Clone)]
pub struct Webhook {
    /// Secrets that sign webhooks.
    pub secrets: WebhookSecrets,
    /// Receives a hint per push. One pending hint stands for all.
    pub push_hints: mpsc::Sender<()>,
}

/// Recent deliveries, oldest first.
#[derive(Debug, Default)]
pub(super) struct RecentDeliveries(VecDeque<(Instant, Signature)>);

impl RecentDeliveries {
    /// Inserts a delivery; returns true if it is new.
    fn insert(&mut self, signature: Signature, now: Instant) -> bool {
        let old = |at: Instant| now.saturating_duration_since(at) >= DELIVERY_MEMORY;
        while self.0.front().is_some_and(|(at, _)| old(*at)) {
            self.0.pop_front();
        }
        if self.0.iter().any(|(_, known)| *known == signature) {
            return false;
        }
        if self.0.len() >= DELIVERIES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((now, signature));
        true
    }
}

/// Handles a webhook; returns the status code and text of the response.
pub(super) async fn handle_webhook(
    hook: &Webhook,
    known: &std::cell::RefCell<RecentDeliveries>,
    request: Request<RequestBody>,
) -> (u16, String) {
    let (head, body) = request.into_parts();
    let claim = match claim_of(&head.headers) {
        Ok(claim) => claim,
        // The body of an unsigned request is not read.
        Err((code, why)) => return (code, format!("{why}\n")),
    };
    let mut verification = hook.secrets.verification(claim);
    let received = receive(body, |part| verification.update(part));
    match tokio::time::timeout(BODY_TIMEOUT, received).await {
        Ok(true) => {}
        Ok(false) => return (413, format!("a webhook has at most {BODY_BYTES_MAX} bytes\n")),
        Err(_) => return (408, "timeout while receiving the webhook\n".to_owned()),
    }
    let Some(claim) = verification.verified() else {
        return (401, "the signature or the token matches no configured secret\n".to_owned());
    };
    // A token is the same in every delivery.
    if let Claim::Signature(signature) = claim
        && !known.borrow_mut().insert(signature, Instant::now())
    {
        return (200, "already received\n".to_owned());
    }
    let events = EVENTS.map(|name| header_values(&head.headers, &name)).into_iter();
    let events: Vec<String> = events.filter(|event| !event.is_empty()).collect();
    let is_of = |names: &[&str]| events.iter().any(|event| names.contains(&event.as_str()));
    // Delivery tools and hosts that imitate GitHub name no event.
    if events.is_empty() || is_of(&PUSHES) {
        // A pending hint already causes a complete read.
        let _ = hook.push_hints.try_send(());
        return (202, "reading the repository\n".to_owned());
    }
    let answer = if is_of(&PINGS) { "pong\n" } else { "event ignored\n" };
    (200, answer.to_owned())
}

/// Passes the parts of a body on as they arrive. Returns false if it is too long or ends early.
async fn receive<B: Body<Data = Bytes> + Unpin>(body: B, mut take: impl FnMut(&[u8])) -> bool
where
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let mut body = Limited::new(body, BODY_BYTES_MAX);
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        if let Some(part) = frame.data_ref() {
            take(part);
        }
    }
    true
}

/// Returns the claim of the sender, or the status code and text of the error.
fn claim_of(headers: &HeaderMap) -> Result<Claim, (u16, &'static str)> {
    let token = header_values(headers, &GITLAB_TOKEN);
    let authorization = header_values(headers, &AUTHORIZATION);
    let bearer = authorization.strip_prefix("Bearer ").map(str::trim).unwrap_or_default();
    let token = if token.is_empty() { bearer } else { token.as_str() };
    if !token.is_empty() {
        let mac = Hmac::<Sha256>::new_from_slice(token.as_bytes());
        let mac = mac.map_err(|_| (401, "the token is invalid"))?;
        return Ok(Claim::Token(mac.chain_update(TOKEN_TEXT).finalize().into_bytes().into()));
    }
    let of_github = header_values(headers, &GITHUB_SIGNATURE);
    let others = SIGNATURES.map(|name| header_values(headers, &name));
    let other = others.into_iter().find(|text| !text.is_empty()).unwrap_or_default();
    let text = if of_github.is_empty() { &other } else { &of_github };
    let digits = text.strip_prefix("sha256=").ok_or((
        401,
        "the request is neither signed with SHA-256 nor has a token: give the webhook the secret \
         that this server has",
    ))?;
    let mut signature = Signature::default();
    hex::decode_to_slice(digits, &mut signature)
        .map_err(|_| (401, "the signature is not 64 hex digits"))?;
    let id = header_values(headers, &GITHUB_DELIVERY);
    let is_id = |b: u8| b.is_ascii_alphanumeric() || b"-_.:".contains(&b);
    let is_valid = !id.is_empty() && id.len() <= DELIVERY_ID_CHARS_MAX && id.bytes().all(is_id);
    if !of_github.is_empty() && !is_valid {
        return Err((400, "the header X-GitHub-Delivery is missing or invalid"));
    }
    Ok(Claim::Signature(signature))
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use hyper::body::Frame;

    use super::*;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), value.parse().expect("a value"))
        };
        all.iter().map(pair).collect()
    }

    fn verify(secrets: &WebhookSecrets, body: &[u8], claim: Claim) -> bool {
        let mut verification = secrets.verification(claim);
        verification.update(body);
        verification.verified().is_some()
    }

    /// The example of GitHub's documentation.
    const EXAMPLE: &str = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";

    #[test]
    fn github_example_verifies_with_its_secret_only() {
        let all = headers(&[("x-hub-signature-256", EXAMPLE), ("x-github-delivery", "a-1")]);
        let signed = |secrets: &WebhookSecrets, body: &[u8]| {
            verify(secrets, body, claim_of(&all).expect("a signature"))
        };
        let of = |text: &str| WebhookSecrets::parse(text).expect("secrets");
        let secret = "It's a Secret to Everybody";
        assert!(signed(&of(secret), b"Hello, World!"));
        assert!(signed(&of(&format!("the one that was before\n{secret}\n")), b"Hello, World!"));
        assert!(!signed(&of("It's a Secret to everybody"), b"Hello, World!"));
        assert!(!signed(&of(secret), b"Hello, world!"));
        assert!(!format!("{:?}", of(secret)).contains("Everybody"), "it is never shown");
    }

    #[test]
    fn other_senders_sign_or_send_the_secret() {
        let digits = EXAMPLE.strip_prefix("sha256=").expect("a prefix");
        let secret = "It's a Secret to Everybody";
        let bearer = format!("Bearer {secret}");
        for (name, value, is_valid) in [
            ("x-hub-signature", EXAMPLE, true),
            ("x-signature", EXAMPLE, true),
            ("x-gitlab-token", secret, true),
            ("authorization", bearer.as_str(), true),
            ("x-gitlab-token", "It's a secret to everybody", false),
            ("authorization", "Bearer", false),
            ("authorization", "Basic SXQncw==", false),
            // A signature of an older hash or without its name proves nothing.
            ("x-hub-signature", "sha1=757107ea0eb2509fc211221cce984b8a37570b6d", false),
            ("x-signature", digits, false),
        ] {
            let claim = claim_of(&headers(&[(name, value)]));
            let secrets = WebhookSecrets::parse(secret).expect("a secret");
            let found = claim.is_ok_and(|claim| verify(&secrets, b"Hello, World!", claim));
            assert_eq!(found, is_valid, "{name}: {value}");
        }
    }

    /// A body in parts, such as those of a connection.
    struct Parts(VecDeque<Bytes>);

    impl Body for Parts {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Poll::Ready(self.get_mut().0.pop_front().map(|part| Ok(Frame::data(part))))
        }
    }

    #[test]
    fn body_is_verified_in_parts_and_not_stored() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let all = headers(&[("x-hub-signature-256", EXAMPLE), ("x-github-delivery", "a-1")]);
        let secrets = WebhookSecrets::parse("It's a Secret to Everybody").expect("a secret");
        let mut verification = secrets.verification(claim_of(&all).expect("a signature"));
        let parts = ["Hello", ", ", "World!"].map(|part| Bytes::from_static(part.as_bytes()));
        let mut taken = Vec::new();
        let received = receive(Parts(parts.into()), |part| {
            taken.push(part.len());
            verification.update(part);
        });
        assert!(runtime.block_on(received));
        assert_eq!(taken, [5, 2, 6], "each part is taken when it arrives");
        assert!(verification.verified().is_some());
        let long = std::iter::repeat_n(Bytes::from_static(&[0; 1 << 10]), 1_025).collect();
        let mut most = 0;
        assert!(!runtime.block_on(receive(Parts(long), |part| most += part.len())));
        assert_eq!(most, BODY_BYTES_MAX);
    }

    #[test]
    fn unsigned_webhook_is_refused_before_reading_its_body() {
        let upper = EXAMPLE.to_ascii_uppercase().replace("SHA256", "sha256");
        let long = "a".repeat(DELIVERY_ID_CHARS_MAX + 1);
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
            let found = claim_of(&all).err().map(|(code, _)| code);
            assert_eq!(found, code, "{signature} {id}");
        }
    }

    #[test]
    fn deliveries_are_remembered_for_an_hour_and_bounded() {
        let (mut known, now) = (RecentDeliveries::default(), Instant::now());
        let of = |n: u8| [n; 32];
        assert!(known.insert(of(1), now));
        assert!(!known.insert(of(1), now + DELIVERY_MEMORY / 2));
        assert!(known.insert(of(1), now + DELIVERY_MEMORY), "it is long ago");
        for n in 0..2 * DELIVERIES_MAX {
            let mut signature = of(2);
            signature[..8].copy_from_slice(&n.to_be_bytes());
            assert!(known.insert(signature, now + DELIVERY_MEMORY));
        }
        assert_eq!(known.0.len(), DELIVERIES_MAX);
    }

    #[test]
    fn secrets_are_bounded_in_number_and_length() {
        for (text, why) in [
            ("", "the file has no secret"),
            ("\n \n", "the file has no secret"),
            ("short", "the secret in line 1 has fewer than 16 characters"),
            ("0123456789abcdef\nshort", "the secret in line 2"),
            ("0123456789abcdef\n0123456789abcdeg\n0123456789abcdeh", "the file has 3 secrets"),
        ] {
            let error = WebhookSecrets::parse(text).expect_err("no secrets");
            assert!(error.starts_with(why), "{error}");
            assert!(!error.contains("0123456789"), "{error}");
        }
        assert!(WebhookSecrets::parse(" 0123456789abcdef \n").is_ok());
    }
}
