//! Where people ask something of a running loop: who they are and whether they may is for the cluster
//! to say.
//!
//! This module knows what may be asked and which right each needs. Invariants: nothing reaches the loop
//! that the cluster did not allow by name; a token is shown to the cluster alone, kept nowhere and
//! never logged; where the cluster does not answer, the answer is no.

use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, oneshot};

use crate::ids::{Address, Digest};
use crate::port::Gate;
use crate::reconcile::Request;

/// Questions that wait before further ones are refused.
pub const ASKED_MAX: usize = 16;

/// Longest suspension that may be asked for: a pause that nobody ends is forgotten.
const SUSPENSION_MAX: SignedDuration = SignedDuration::from_hours(24 * 7);

/// What somebody wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// The plan with this digest may be carried out.
    Approve {
        /// The digest.
        digest: Digest,
    },
    /// A row that asks for it may go.
    Confirm {
        /// The row.
        address: Address,
    },
    /// Nothing new is begun for a while.
    Suspend {
        /// Why.
        reason: String,
        /// For how long.
        lasts: SignedDuration,
    },
    /// A suspension ends.
    Resume,
    /// A breaker is opened again.
    Reset {
        /// Its name.
        breaker: String,
    },
}

impl Wanted {
    /// Returns the verb that the cluster must allow, on `capacityplans` of `fleetwright.dev`.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Approve { .. } | Self::Confirm { .. } => "approve",
            Self::Suspend { .. } | Self::Resume => "suspend",
            Self::Reset { .. } => "reset",
        }
    }

    fn by(self, who: String, now: Timestamp) -> Request {
        let by = who;
        match self {
            Self::Approve { digest } => Request::Approve { digest, by },
            Self::Confirm { address } => Request::Confirm { address, by },
            Self::Suspend { reason, lasts } => {
                let until = now.checked_add(lasts.min(SUSPENSION_MAX)).unwrap_or(Timestamp::MAX);
                Request::Suspend { reason, until: Some(until), by }
            }
            Self::Resume => Request::Resume { by },
            Self::Reset { breaker } => Request::Reset { breaker, by },
        }
    }
}

/// Something that somebody asks.
#[derive(Debug)]
pub struct Asked {
    /// Who they say they are.
    pub token: Token,
    /// What they want.
    pub wanted: Wanted,
    /// When they asked.
    pub at: Timestamp,
    /// Where the answer goes.
    pub answer: oneshot::Sender<Answered>,
}

/// A token, which nothing prints.
pub struct Token(String);

impl From<String> for Token {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// What somebody who asked is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answered {
    /// It was passed on to the loop.
    Passed {
        /// Who asked, as the cluster knows them.
        who: String,
    },
    /// The cluster does not know the token.
    Unknown,
    /// The cluster does not allow it.
    Refused {
        /// Who asked.
        who: String,
        /// The verb that they may not use.
        verb: &'static str,
    },
    /// The cluster, or the loop, does not answer.
    Unanswered {
        /// Why.
        why: String,
    },
}

/// Answers questions until nobody can ask any more.
pub async fn answer(
    gate: &impl Gate,
    mut asked: mpsc::Receiver<Asked>,
    requests: mpsc::Sender<Request>,
) {
    while let Some(Asked { token: Token(token), wanted, at, answer }) = asked.recv().await {
        let answered = decide(gate, &token, wanted, at, &requests).await;
        // Whoever asked may have gone.
        let _ = answer.send(answered);
    }
}

async fn decide(
    gate: &impl Gate,
    token: &str,
    wanted: Wanted,
    at: Timestamp,
    requests: &mpsc::Sender<Request>,
) -> Answered {
    let unanswered = |why: String| Answered::Unanswered { why };
    let verb = wanted.verb();
    let caller = match gate.caller(token).await {
        Ok(Some(caller)) => caller,
        Ok(None) => return Answered::Unknown,
        Err(error) => return unanswered(error.to_string()),
    };
    let who = caller.name.clone();
    match gate.may(&caller, verb).await {
        Ok(true) => {}
        Ok(false) => return Answered::Refused { who, verb },
        Err(error) => return unanswered(error.to_string()),
    }
    tracing::info!(who, verb, "asked of the loop");
    match requests.try_send(wanted.by(who.clone(), at)) {
        Ok(()) => Answered::Passed { who },
        Err(_) => unanswered("the loop takes no more requests now".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::{Caller, PortError};

    /// Knows two people, of whom one may approve.
    struct Door;

    impl Gate for Door {
        async fn caller(&self, token: &str) -> Result<Option<Caller>, PortError> {
            match token {
                "alice" | "bob" => {
                    Ok(Some(Caller { name: format!("{token}@example.com"), ..Caller::default() }))
                }
                "broken" => Err(PortError {
                    verb: "review token".to_owned(),
                    reason: "no answer".to_owned(),
                    transient: true,
                }),
                _ => Ok(None),
            }
        }

        async fn may(&self, caller: &Caller, verb: &str) -> Result<bool, PortError> {
            Ok(caller.name == "alice@example.com" && verb == "approve")
        }
    }

    #[test]
    fn only_what_the_cluster_allows_reaches_the_loop() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let (requests, mut passed) = mpsc::channel(1);
            let approve = || Wanted::Approve { digest: "sha256:1".into() };
            let at = Timestamp::UNIX_EPOCH;
            let no = |answered: &Answered| !matches!(answered, Answered::Passed { .. });
            for (token, wanted) in [
                ("mallory", approve()),
                ("", approve()),
                ("broken", approve()),
                ("bob", approve()),
                ("alice", Wanted::Resume),
                ("alice", Wanted::Reset { breaker: "b".to_owned() }),
            ] {
                let answered = decide(&Door, token, wanted.clone(), at, &requests).await;
                assert!(no(&answered), "{token} {wanted:?}: {answered:?}");
                assert!(passed.try_recv().is_err(), "{token} {wanted:?}");
            }
            let answered = decide(&Door, "alice", approve(), at, &requests).await;
            assert_eq!(answered, Answered::Passed { who: "alice@example.com".to_owned() });
            // The loop is slow: the next is refused and not queued for ever.
            let answered = decide(&Door, "alice", approve(), at, &requests).await;
            assert!(no(&answered), "{answered:?}");
            let by = "alice@example.com".to_owned();
            let request = Request::Approve { digest: "sha256:1".into(), by };
            assert_eq!(passed.recv().await, Some(request));
        });
    }

    #[test]
    fn a_suspension_ends_by_itself_and_a_token_is_never_printed() {
        let lasts = SignedDuration::from_hours(24 * 365);
        let wanted = Wanted::Suspend { reason: "r".to_owned(), lasts };
        let Request::Suspend { until, .. } = wanted.by("a".to_owned(), Timestamp::UNIX_EPOCH)
        else {
            panic!("a suspension")
        };
        assert_eq!(until, Timestamp::UNIX_EPOCH.checked_add(SUSPENSION_MAX).ok());
        assert!(!format!("{:?}", Token::from("secret".to_owned())).contains("secret"));
    }
}
