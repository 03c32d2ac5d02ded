//! Authorizes requests of operators. The cluster authenticates the operator and decides on the
//! verb.
//!
//! This module knows the possible requests and the verb that each needs.
//!
//! Invariants:
//! - Only requests that the cluster allowed by verb reach the controller.
//! - A token is sent to the cluster alone, never stored and never logged.
//! - If the cluster does not answer, the request is refused.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::apply::ports::Authorizer;
use crate::controller::AuthorizedRequest;
use crate::controller::gates::{BREAK_GLASS_MAX, MASS_REMOVAL_BREAKER};
use crate::model::ids::{Digest, InstanceId};

/// Maximum number of pending requests. Further ones are refused.
pub const PENDING_REQUESTS_MAX: usize = 16;

/// Timeout for token review and access review.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest suspension: a forgotten pause must not last forever.
pub(super) const SUSPENSION_MAX: SignedDuration = SignedDuration::from_hours(24 * 7);

/// A request of an operator, before authorization.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperatorRequest {
    /// Approve the plan with this digest.
    Approve {
        /// Digest of the plan.
        digest: Digest,
    },
    /// Confirm the removal of an instance.
    Confirm {
        /// The instance.
        instance: InstanceId,
    },
    /// Start nothing new for a while.
    Suspend {
        /// Reason.
        reason: String,
        /// Duration.
        lasts: SignedDuration,
    },
    /// End a suspension.
    Resume,
    /// Bypass approvals for a while.
    BreakGlass {
        /// Reason.
        reason: String,
        /// Duration.
        lasts: SignedDuration,
    },
    /// End a break-glass.
    EndBreakGlass,
    /// Reset a breaker.
    Reset {
        /// Name of the breaker.
        breaker: String,
        /// Digest of the plan that the reset approves, for the mass-removal breaker.
        digest: Option<Digest>,
    },
}

impl OperatorRequest {
    /// Returns the verb that the cluster must allow on `capacityplans` of `fleetwright.dev`.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Approve { .. } => "approve",
            Self::Confirm { .. } => "confirm",
            Self::Suspend { .. } | Self::Resume => "suspend",
            // Permission to approve does not imply permission to bypass approval.
            Self::BreakGlass { .. } | Self::EndBreakGlass => "break-glass",
            // A reset of this breaker approves removals without any other approval.
            Self::Reset { breaker, .. } if breaker == MASS_REMOVAL_BREAKER => "approve",
            Self::Reset { .. } => "reset",
        }
    }

    fn into_authorized(self, who: String, now: Timestamp) -> AuthorizedRequest {
        let by = who;
        match self {
            Self::Approve { digest } => AuthorizedRequest::Approve { digest, by },
            Self::Confirm { instance } => AuthorizedRequest::Confirm { instance, by },
            Self::Suspend { reason, lasts } => {
                let until = now.checked_add(lasts.min(SUSPENSION_MAX)).unwrap_or(Timestamp::MAX);
                AuthorizedRequest::Suspend { reason, until: Some(until), by }
            }
            Self::Resume => AuthorizedRequest::Resume { by },
            Self::BreakGlass { reason, lasts } => {
                let until = now.checked_add(lasts.min(BREAK_GLASS_MAX)).unwrap_or(now);
                AuthorizedRequest::BreakGlass { reason, until, by }
            }
            Self::EndBreakGlass => AuthorizedRequest::EndBreakGlass { by },
            Self::Reset { breaker, digest } => AuthorizedRequest::Reset { breaker, digest, by },
        }
    }
}

/// A request that waits for authorization.
#[derive(Debug)]
pub struct PendingRequest {
    /// Bearer token of the operator.
    pub token: BearerToken,
    /// The request.
    pub request: OperatorRequest,
    /// Time of the request.
    pub requested_at: Timestamp,
    /// Receives the decision.
    pub reply: oneshot::Sender<Decision>,
}

/// A bearer token. Its `Debug` output hides the value.
pub struct BearerToken(String);

impl From<String> for BearerToken {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl std::fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Decision on a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The request was passed to the controller.
    Accepted {
        /// Name of the operator, as the cluster reports it.
        who: String,
    },
    /// The cluster does not accept the token.
    Unauthenticated,
    /// The cluster denies the verb.
    Forbidden {
        /// Name of the operator.
        who: String,
        /// The denied verb.
        verb: &'static str,
    },
    /// The cluster or the controller does not answer.
    Unavailable {
        /// Reason.
        why: String,
    },
}

/// Decides requests until all senders are dropped. Several run at a time, so one slow token review
/// does not delay the others.
pub async fn serve_requests(
    gate: &impl Authorizer,
    pending: mpsc::Receiver<PendingRequest>,
    requests: mpsc::Sender<AuthorizedRequest>,
) {
    serve_requests_within(REVIEW_TIMEOUT, gate, pending, requests).await;
}

async fn serve_requests_within(
    most: Duration,
    gate: &impl Authorizer,
    pending: mpsc::Receiver<PendingRequest>,
    requests: mpsc::Sender<AuthorizedRequest>,
) {
    let pending = Mutex::new(pending);
    let worker = || serve_worker(most, gate, &pending, &requests);
    tokio::join!(worker(), worker(), worker(), worker());
}

async fn serve_worker(
    most: Duration,
    gate: &impl Authorizer,
    pending: &Mutex<mpsc::Receiver<PendingRequest>>,
    requests: &mpsc::Sender<AuthorizedRequest>,
) {
    loop {
        let next = pending.lock().await.recv().await;
        let Some(PendingRequest { token: BearerToken(token), request, requested_at, reply }) = next
        else {
            return;
        };
        let decided = decide(gate, &token, request, requested_at, requests);
        let decision = tokio::time::timeout(most, decided).await;
        let late = || Decision::Unavailable { why: "the cluster does not answer".to_owned() };
        // The operator may have disconnected.
        let _ = reply.send(decision.unwrap_or_else(|_| late()));
    }
}

async fn decide(
    gate: &impl Authorizer,
    token: &str,
    request: OperatorRequest,
    at: Timestamp,
    requests: &mpsc::Sender<AuthorizedRequest>,
) -> Decision {
    let unanswered = |why: String| Decision::Unavailable { why };
    let verb = request.verb();
    let caller = match gate.caller(token).await {
        Ok(Some(caller)) => caller,
        Ok(None) => return Decision::Unauthenticated,
        Err(error) => return unanswered(error.to_string()),
    };
    let who = caller.name.clone();
    match gate.may(&caller, verb).await {
        Ok(true) => {}
        Ok(false) => return Decision::Forbidden { who, verb },
        Err(error) => return unanswered(error.to_string()),
    }
    tracing::info!(who, verb, "operator request authorized");
    match requests.try_send(request.into_authorized(who.clone(), at)) {
        Ok(()) => Decision::Accepted { who },
        Err(_) => unanswered("the controller accepts no more requests now".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::ports::{CallEffect, Caller, PortError};

    /// Authenticates two users. Only one may approve.
    struct FakeReviewer;

    impl Authorizer for FakeReviewer {
        async fn caller(&self, token: &str) -> Result<Option<Caller>, PortError> {
            match token {
                "alice" | "bob" => {
                    Ok(Some(Caller { name: format!("{token}@example.com"), ..Caller::default() }))
                }
                "slow" => std::future::pending().await,
                "broken" => Err(PortError {
                    verb: "review token".to_owned(),
                    reason: "no answer".to_owned(),
                    effect: CallEffect::Unknown,
                }),
                _ => Ok(None),
            }
        }

        async fn may(&self, caller: &Caller, verb: &str) -> Result<bool, PortError> {
            Ok(caller.name == "alice@example.com" && verb == "approve")
        }
    }

    #[test]
    fn only_authorized_requests_reach_the_controller() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let (requests, mut passed) = mpsc::channel(1);
            let approve = || OperatorRequest::Approve { digest: "sha256:1".into() };
            let at = Timestamp::UNIX_EPOCH;
            let no = |decision: &Decision| !matches!(decision, Decision::Accepted { .. });
            for (token, request) in [
                ("mallory", approve()),
                ("", approve()),
                ("broken", approve()),
                ("bob", approve()),
                ("alice", OperatorRequest::Resume),
                ("alice", OperatorRequest::Confirm { instance: "i-1".into() }),
                ("alice", OperatorRequest::Reset { breaker: "b".to_owned(), digest: None }),
                (
                    "bob",
                    OperatorRequest::Reset {
                        breaker: MASS_REMOVAL_BREAKER.to_owned(),
                        digest: None,
                    },
                ),
                // Permission to approve does not permit a break-glass.
                ("alice", broken(SignedDuration::from_mins(5))),
                ("alice", OperatorRequest::EndBreakGlass),
            ] {
                let decision = decide(&FakeReviewer, token, request.clone(), at, &requests).await;
                assert!(no(&decision), "{token} {request:?}: {decision:?}");
                assert!(passed.try_recv().is_err(), "{token} {request:?}");
            }
            let decision = decide(&FakeReviewer, "alice", approve(), at, &requests).await;
            assert_eq!(decision, Decision::Accepted { who: "alice@example.com".to_owned() });
            // The controller is slow: the next request is refused instead of queued.
            let decision = decide(&FakeReviewer, "alice", approve(), at, &requests).await;
            assert!(no(&decision), "{decision:?}");
            let by = "alice@example.com".to_owned();
            let request = AuthorizedRequest::Approve { digest: "sha256:1".into(), by };
            assert_eq!(passed.recv().await, Some(request));
        });
    }

    fn broken(lasts: SignedDuration) -> OperatorRequest {
        OperatorRequest::BreakGlass { reason: "r".to_owned(), lasts }
    }

    #[test]
    fn break_glass_request_is_limited_in_time() {
        let ends = |hours: i64| {
            let request = broken(SignedDuration::from_hours(hours));
            let request = request.into_authorized("a".to_owned(), Timestamp::UNIX_EPOCH);
            let AuthorizedRequest::BreakGlass { until, .. } = request else {
                panic!("{request:?}")
            };
            until.as_second() / 3_600
        };
        assert_eq!([1, 4, 5, 24 * 365].map(ends), [1, 4, 4, 4]);
    }

    #[test]
    fn resetting_mass_removal_breaker_needs_approve_verb() {
        let reset = |breaker: &str| {
            OperatorRequest::Reset { breaker: breaker.to_owned(), digest: None }.verb()
        };
        assert_eq!(
            (reset(MASS_REMOVAL_BREAKER), reset("ineffective-launches")),
            ("approve", "reset")
        );
    }

    #[test]
    fn slow_token_review_does_not_delay_other_requests() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let (questions, pending) = mpsc::channel(PENDING_REQUESTS_MAX);
            let (requests, mut passed) = mpsc::channel(1);
            let ask = |token: &str| {
                let (reply, decision) = oneshot::channel();
                let (token, requested_at) = (token.to_owned().into(), Timestamp::UNIX_EPOCH);
                let request = OperatorRequest::Approve { digest: "sha256:1".into() };
                questions
                    .try_send(PendingRequest { token, request, requested_at, reply })
                    .expect("there is room");
                decision
            };
            let mut slow: Vec<_> = (0..3).map(|_| ask("slow")).collect();
            let alice = ask("alice");
            let asks = async move {
                assert!(matches!(alice.await, Ok(Decision::Accepted { .. })));
                let pending = slow.iter_mut().all(|decision| decision.try_recv().is_err());
                assert!(pending, "the cluster is still asked who they are");
                for decision in slow {
                    assert!(matches!(decision.await, Ok(Decision::Unavailable { .. })));
                }
                drop(questions);
            };
            let most = Duration::from_millis(300);
            tokio::join!(asks, serve_requests_within(most, &FakeReviewer, pending, requests));
            assert!(passed.recv().await.is_some());
        });
    }

    #[test]
    fn suspension_is_limited_and_token_debug_is_hidden() {
        let lasts = SignedDuration::from_hours(24 * 365);
        let request = OperatorRequest::Suspend { reason: "r".to_owned(), lasts };
        let AuthorizedRequest::Suspend { until, .. } =
            request.into_authorized("a".to_owned(), Timestamp::UNIX_EPOCH)
        else {
            panic!("a suspension")
        };
        assert_eq!(until, Timestamp::UNIX_EPOCH.checked_add(SUSPENSION_MAX).ok());
        assert!(!format!("{:?}", BearerToken::from("secret".to_owned())).contains("secret"));
    }
}
