//! Where people ask something of a running loop: who they are and whether they may is for the cluster
//! to say.
//!
//! This module knows what may be asked and which right each needs. Invariants: nothing reaches the loop
//! that the cluster did not allow by name; a token is shown to the cluster alone, kept nowhere and
//! never logged; where the cluster does not answer, the answer is no.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::ids::{Digest, InstanceId};
use crate::port::Gate;
use crate::reconcile::Request;
use crate::reconcile::allow::{GLASS_MAX, MASS_REMOVAL};

/// Questions that wait before further ones are refused.
pub const ASKED_MAX: usize = 16;

/// Longest that the cluster may take to say who asks, and whether they may.
const REVIEW_MAX: Duration = Duration::from_secs(10);

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
    /// A machine of a pool that asks for it may go.
    Confirm {
        /// The machine.
        instance: InstanceId,
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
    /// Approval is passed over for a while.
    BreakGlass {
        /// Why.
        reason: String,
        /// For how long.
        lasts: SignedDuration,
    },
    /// It is passed over no longer.
    MendGlass,
    /// A breaker is opened again.
    Reset {
        /// Its name.
        breaker: String,
        /// The plan that may be carried out then, where the breaker is that of mass removals.
        digest: Option<Digest>,
    },
}

impl Wanted {
    /// Returns the verb that the cluster must allow, on `capacityplans` of `fleetwright.dev`.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Approve { .. } => "approve",
            Self::Confirm { .. } => "confirm",
            Self::Suspend { .. } | Self::Resume => "suspend",
            // Whoever may approve need not be who may do without approval.
            Self::BreakGlass { .. } | Self::MendGlass => "break-glass",
            // What is removed once this breaker is opened is what nobody approved before.
            Self::Reset { breaker, .. } if breaker == MASS_REMOVAL => "approve",
            Self::Reset { .. } => "reset",
        }
    }

    fn by(self, who: String, now: Timestamp) -> Request {
        let by = who;
        match self {
            Self::Approve { digest } => Request::Approve { digest, by },
            Self::Confirm { instance } => Request::Confirm { instance, by },
            Self::Suspend { reason, lasts } => {
                let until = now.checked_add(lasts.min(SUSPENSION_MAX)).unwrap_or(Timestamp::MAX);
                Request::Suspend { reason, until: Some(until), by }
            }
            Self::Resume => Request::Resume { by },
            Self::BreakGlass { reason, lasts } => {
                let until = now.checked_add(lasts.min(GLASS_MAX)).unwrap_or(now);
                Request::BreakGlass { reason, until, by }
            }
            Self::MendGlass => Request::MendGlass { by },
            Self::Reset { breaker, digest } => Request::Reset { breaker, digest, by },
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

/// Answers questions until nobody can ask any more, several at a time: who shows a token that the
/// cluster is slow about holds up nobody else.
pub async fn answer(
    gate: &impl Gate,
    asked: mpsc::Receiver<Asked>,
    requests: mpsc::Sender<Request>,
) {
    answer_within(REVIEW_MAX, gate, asked, requests).await;
}

async fn answer_within(
    most: Duration,
    gate: &impl Gate,
    asked: mpsc::Receiver<Asked>,
    requests: mpsc::Sender<Request>,
) {
    let asked = Mutex::new(asked);
    let desk = || answer_in_turn(most, gate, &asked, &requests);
    tokio::join!(desk(), desk(), desk(), desk());
}

async fn answer_in_turn(
    most: Duration,
    gate: &impl Gate,
    asked: &Mutex<mpsc::Receiver<Asked>>,
    requests: &mpsc::Sender<Request>,
) {
    loop {
        let next = asked.lock().await.recv().await;
        let Some(Asked { token: Token(token), wanted, at, answer }) = next else { return };
        let decided = decide(gate, &token, wanted, at, requests);
        let answered = tokio::time::timeout(most, decided).await;
        let late = || Answered::Unanswered { why: "the cluster does not answer".to_owned() };
        // Whoever asked may have gone.
        let _ = answer.send(answered.unwrap_or_else(|_| late()));
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
    use crate::port::{Caller, Fate, PortError};

    /// Knows two people, of whom one may approve.
    struct Door;

    impl Gate for Door {
        async fn caller(&self, token: &str) -> Result<Option<Caller>, PortError> {
            match token {
                "alice" | "bob" => {
                    Ok(Some(Caller { name: format!("{token}@example.com"), ..Caller::default() }))
                }
                "slow" => std::future::pending().await,
                "broken" => Err(PortError {
                    verb: "review token".to_owned(),
                    reason: "no answer".to_owned(),
                    fate: Fate::Unknown,
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
                ("alice", Wanted::Confirm { instance: "i-1".into() }),
                ("alice", Wanted::Reset { breaker: "b".to_owned(), digest: None }),
                ("bob", Wanted::Reset { breaker: MASS_REMOVAL.to_owned(), digest: None }),
                // Who may approve may not do without approval.
                ("alice", broken(SignedDuration::from_mins(5))),
                ("alice", Wanted::MendGlass),
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

    fn broken(lasts: SignedDuration) -> Wanted {
        Wanted::BreakGlass { reason: "r".to_owned(), lasts }
    }

    #[test]
    fn the_glass_is_broken_for_a_few_hours_at_most() {
        let ends = |hours: i64| {
            let wanted = broken(SignedDuration::from_hours(hours));
            let request = wanted.by("a".to_owned(), Timestamp::UNIX_EPOCH);
            let Request::BreakGlass { until, .. } = request else { panic!("{request:?}") };
            until.as_second() / 3_600
        };
        assert_eq!([1, 4, 5, 24 * 365].map(ends), [1, 4, 4, 4]);
    }

    #[test]
    fn to_open_the_breaker_of_mass_removals_is_to_approve_them() {
        let reset =
            |breaker: &str| Wanted::Reset { breaker: breaker.to_owned(), digest: None }.verb();
        assert_eq!((reset(MASS_REMOVAL), reset("launches-not-ready")), ("approve", "reset"));
    }

    #[test]
    fn who_shows_a_token_that_the_cluster_is_slow_about_holds_up_nobody() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let (questions, asked) = mpsc::channel(ASKED_MAX);
            let (requests, mut passed) = mpsc::channel(1);
            let ask = |token: &str| {
                let (answer, answered) = oneshot::channel();
                let (token, at) = (token.to_owned().into(), Timestamp::UNIX_EPOCH);
                let wanted = Wanted::Approve { digest: "sha256:1".into() };
                questions.try_send(Asked { token, wanted, at, answer }).expect("there is room");
                answered
            };
            let mut slow: Vec<_> = (0..3).map(|_| ask("slow")).collect();
            let alice = ask("alice");
            let asks = async move {
                assert!(matches!(alice.await, Ok(Answered::Passed { .. })));
                let asked = slow.iter_mut().all(|answered| answered.try_recv().is_err());
                assert!(asked, "the cluster is still asked who they are");
                for answered in slow {
                    assert!(matches!(answered.await, Ok(Answered::Unanswered { .. })));
                }
                drop(questions);
            };
            let most = Duration::from_millis(300);
            tokio::join!(asks, answer_within(most, &Door, asked, requests));
            assert!(passed.recv().await.is_some());
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
